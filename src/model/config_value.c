#include "model/config_value.h"

#include <stdio.h>

bool config_int(const char *key, int64_t v, int64_t lo, int64_t hi, int *out, err *e)
{
    if (v < lo || v > hi)
        return err_set(e, ERR_FORMAT, "%s is %lld, expected %lld to %lld", key, (long long)v, (long long)lo,
                       (long long)hi);
    *out = (int)v;
    return true;
}

bool config_real(const char *key, double v, double lo, double hi, double *out, err *e)
{
    if (!(v >= lo && v <= hi)) return err_set(e, ERR_FORMAT, "%s is %g, expected %g to %g", key, v, lo, hi);
    *out = v;
    return true;
}

bool config_missing(const char *key, err *e) { return err_set(e, ERR_FORMAT, "%s is missing", key); }

const gguf_value *gguf_arch_find(const gguf *g, const char *arch, const char *suffix, char key[CONFIG_KEY_MAX])
{
    snprintf(key, CONFIG_KEY_MAX, "%s.%s", arch, suffix);
    return gguf_find(g, key);
}

bool gguf_arch_int(const gguf *g, const char *arch, const char *suffix, int64_t fallback, int64_t lo, int64_t hi,
                   int *out, err *e)
{
    char              key[CONFIG_KEY_MAX];
    const gguf_value *v = gguf_arch_find(g, arch, suffix, key);
    int64_t           i = fallback;
    if (!v && fallback == CONFIG_REQUIRED) return config_missing(key, e);
    if (v && !gguf_int(v, &i)) return err_set(e, ERR_FORMAT, "%s is not an integer", key);
    return config_int(key, i, lo, hi, out, e);
}

bool gguf_arch_real(const gguf *g, const char *arch, const char *suffix, double fallback, double lo, double hi,
                    double *out, err *e)
{
    char              key[CONFIG_KEY_MAX];
    const gguf_value *v = gguf_arch_find(g, arch, suffix, key);
    double            d = fallback;
    if (v && !gguf_real(v, &d)) return err_set(e, ERR_FORMAT, "%s is not a number", key);
    return config_real(key, d, lo, hi, out, e);
}

const json_value *hf_present(const json_value *o, const char *key)
{
    const json_value *v = json_get(o, key);
    return v && v->kind != JSON_NULL ? v : NULL;
}

bool hf_int(const json_value *o, const char *key, int64_t fallback, int64_t lo, int64_t hi, int *out, err *e)
{
    const json_value *v = hf_present(o, key);
    if (!v && fallback == CONFIG_REQUIRED) return config_missing(key, e);
    if (v && v->kind != JSON_INT) return err_set(e, ERR_FORMAT, "%s is not an integer", key);
    return config_int(key, v ? v->i : fallback, lo, hi, out, e);
}

bool hf_real(const json_value *o, const char *key, double fallback, double lo, double hi, double *out, err *e)
{
    const json_value *v = hf_present(o, key);
    if (v && v->kind != JSON_INT && v->kind != JSON_REAL) return err_set(e, ERR_FORMAT, "%s is not a number", key);
    return config_real(key, v ? v->d : fallback, lo, hi, out, e);
}

bool hf_bool(const json_value *o, const char *key)
{
    const json_value *v = hf_present(o, key);
    return v && v->kind == JSON_BOOL && v->b;
}

bool hf_layer_types(const json_value *o, int n_layers, bool *sliding, err *e)
{
    const json_value *types = hf_present(o, "layer_types");
    if (!types || types->kind != JSON_ARRAY || types->n != (size_t)n_layers)
        return err_set(e, ERR_FORMAT, "layer_types is not a list of %d names", n_layers);
    for (int l = 0; l < n_layers; l++) {
        const json_value *v = &types->item[l];
        sliding[l]          = v->kind == JSON_STRING && str_is(v->s, "sliding_attention");
        if (!sliding[l] && !(v->kind == JSON_STRING && str_is(v->s, "full_attention")))
            return err_set(e, ERR_FORMAT, "layer_types[%d] is neither sliding_attention nor full_attention", l);
    }
    return true;
}
