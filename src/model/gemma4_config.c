#include "model/gemma4_config.h"

#include "model/config_value.h"
#include "ops/ops.h"

#include <math.h>
#include <stdio.h>

enum { MAX_WIDTH = 1 << 20, MAX_CONTEXT = 1 << 24 };

/* --- GGUF ---------------------------------------------------------------------------------------*/
static const char *arch_of(const gguf *g)
{
    str arch = {0};
    gguf_str(gguf_find(g, "general.architecture"), &arch);
    return str_is(arch, "gemma4-assistant") ? "gemma4-assistant" : "gemma4";
}

static const gguf_value *find_key(const gguf *g, const char *suffix, char key[CONFIG_KEY_MAX])
{
    return gguf_arch_find(g, arch_of(g), suffix, key);
}

static bool g_int(const gguf *g, const char *suffix, int64_t fallback, int64_t lo, int64_t hi, int *out, err *e)
{
    return gguf_arch_int(g, arch_of(g), suffix, fallback, lo, hi, out, e);
}

static bool g_real(const gguf *g, const char *suffix, double fallback, double lo, double hi, double *out, err *e)
{
    return gguf_arch_real(g, arch_of(g), suffix, fallback, lo, hi, out, e);
}

/* One number for all layers, or a list of one per layer. */
static bool g_per_layer(const gguf *g, const char *suffix, int n_layers, int64_t lo, int64_t hi, int *out, err *e)
{
    char              key[CONFIG_KEY_MAX];
    const gguf_value *v = find_key(g, suffix, key);
    if (!v) return config_missing(key, e);
    if (v->type == GGUF_ARRAY && v->n < (uint64_t)n_layers)
        return err_set(e, ERR_FORMAT, "%s has %llu entries for %d layers", key, (unsigned long long)v->n, n_layers);
    for (int l = 0; l < n_layers; l++) {
        int64_t i;
        if (!(v->type == GGUF_ARRAY ? gguf_item_int(v, (uint64_t)l, &i) : gguf_int(v, &i)))
            return err_set(e, ERR_FORMAT, "%s is not an integer or a list of integers", key);
        if (!config_int(key, i, lo, hi, &out[l], e)) return false;
    }
    return true;
}

static bool g_pattern(const gguf *g, gemma4_config *c, err *e)
{
    int               flag[GEMMA4_MAX_LAYERS];
    char              key[CONFIG_KEY_MAX];
    const gguf_value *v      = find_key(g, "attention.sliding_window_pattern", key);
    int64_t           period = 6;
    if (v && v->type == GGUF_ARRAY) {
        if (!g_per_layer(g, "attention.sliding_window_pattern", c->n_layers, 0, 1, flag, e)) return false;
        for (int l = 0; l < c->n_layers; l++) c->sliding[l] = flag[l];
        return true;
    }
    if (v && (!gguf_int(v, &period) || period < 1))
        return err_set(e, ERR_FORMAT, "%s is neither a list nor a period", key);
    for (int l = 0; l < c->n_layers; l++) c->sliding[l] = (l + 1) % period != 0 && l + 1 < c->n_layers;
    return true;
}

static bool has_layer_tensor(const checkpoint *cp, const char *fmt_suffix, int l)
{
    char name[96];
    snprintf(name, sizeof name, "blk.%d.%s", l, fmt_suffix);
    return tensor_find(cp->tensors, str_of(name)) != NULL;
}

static bool g_heads(const checkpoint *cp, gemma4_config *c, err *e)
{
    const gguf *g = cp->gguf;
    int         dim_full, dim_sliding;
    if (!g_int(g, "attention.head_count", CONFIG_REQUIRED, 1, 1024, &c->n_heads, e) ||
        !g_per_layer(g, "attention.head_count_kv", c->n_layers, 1, 1024, c->n_kv_heads, e) ||
        !g_int(g, "attention.key_length", CONFIG_REQUIRED, 8, 4096, &dim_full, e) ||
        !g_int(g, "attention.key_length_swa", dim_full, 8, 4096, &dim_sliding, e))
        return false;
    for (int l = 0; l < c->n_layers; l++) {
        c->head_dim[l] = c->sliding[l] ? dim_sliding : dim_full;
        c->k_is_v[l]   = !c->sliding[l] && !has_layer_tensor(cp, "attn_v.weight", l);
    }
    return true;
}

static bool g_vocab(const checkpoint *cp, gemma4_config *c, err *e)
{
    const tensor *t = tensor_find(cp->tensors, STR("token_embd.weight"));
    if (!t) return err_set(e, ERR_FORMAT, "tensor 'token_embd.weight' is missing");
    return config_int("the number of rows of token_embd.weight", t->dim[1], 2, 1 << 22, &c->n_vocab, e);
}

static bool from_gguf(gemma4_config *c, const checkpoint *cp, err *e)
{
    const gguf *g = cp->gguf;
    double      eps, softcap;
    c->assistant        = !strcmp(arch_of(g), "gemma4-assistant");
    c->rotary_part      = 0.25;
    c->rope_factor_full = c->rope_factor_sliding = 1;
    if (!g_int(g, "block_count", CONFIG_REQUIRED, 1, GEMMA4_MAX_LAYERS, &c->n_layers, e) ||
        !g_int(g, "embedding_length", CONFIG_REQUIRED, 8, MAX_WIDTH, &c->n_embd, e) ||
        !g_int(g, "context_length", CONFIG_REQUIRED, 1, MAX_CONTEXT, &c->n_ctx, e) ||
        !g_int(g, "attention.sliding_window", CONFIG_REQUIRED, 1, MAX_CONTEXT, &c->window, e) ||
        !g_int(g, "embedding_length_per_layer_input", 0, 0, 4096, &c->n_ple, e) ||
        !g_int(g, "attention.shared_kv_layers", 0, 0, c->n_layers - !c->assistant, &c->n_kv_shared, e) ||
        !g_int(g, "expert_count", 0, 0, GEMMA4_MAX_EXPERTS, &c->n_experts, e) ||
        !g_int(g, "expert_used_count", 0, 0, GEMMA4_MAX_USED, &c->n_used, e) ||
        !g_int(g, "expert_feed_forward_length", 0, 0, MAX_WIDTH, &c->n_ff_expert, e) ||
        !g_per_layer(g, "feed_forward_length", c->n_layers, 1, MAX_WIDTH, c->n_ff, e) ||
        !g_real(g, "attention.layer_norm_rms_epsilon", 1e-6, 0, 1, &eps, e) ||
        !g_real(g, "final_logit_softcapping", 0, 0, 1e6, &softcap, e) ||
        !g_real(g, "rope.freq_base", 1e6, 1, 1e12, &c->theta_full, e) ||
        !g_real(g, "rope.freq_base_swa", 1e4, 1, 1e12, &c->theta_sliding, e))
        return false;
    c->eps     = (float)eps;
    c->softcap = (float)softcap;
    return g_pattern(g, c, e) && g_heads(cp, c, e) && g_vocab(cp, c, e);
}

/* --- Hugging Face -------------------------------------------------------------------------------*/
/* The last layer is full whatever the list says, as in the reference. */
static bool h_layer_types(const json_value *o, gemma4_config *c, err *e)
{
    for (int l = 0; l < c->n_layers; l++) c->sliding[l] = (l + 1) % 6 != 0;
    if (hf_present(o, "layer_types") && !hf_layer_types(o, c->n_layers, c->sliding, e)) return false;
    c->sliding[c->n_layers - 1] = false;
    return true;
}

/* {"05": {"head_dim": 512, "num_key_value_heads": 1}, ...}: what newer files say instead of global_*. */
static bool h_layer_overrides(const json_value *per_layer, gemma4_config *c, err *e)
{
    if (per_layer->kind != JSON_OBJECT) return err_set(e, ERR_FORMAT, "per_layer_config is not an object");
    for (size_t i = 0; i < per_layer->n; i++) {
        const json_member *m = &per_layer->member[i];
        uint64_t           l;
        if (!str_to_u64(m->key, &l) || l >= (uint64_t)c->n_layers)
            return err_set(e, ERR_FORMAT, "per_layer_config has no layer '%.*s'", STR_ARG(m->key));
        if (!hf_int(&m->value, "head_dim", c->head_dim[l], 8, 4096, &c->head_dim[l], e) ||
            !hf_int(&m->value, "num_key_value_heads", c->n_kv_heads[l], 1, 1024, &c->n_kv_heads[l], e))
            return false;
    }
    return true;
}

static bool h_heads(const json_value *o, gemma4_config *c, err *e)
{
    const json_value *per_layer = hf_present(o, "per_layer_config");
    bool              k_eq_v    = hf_bool(o, "attention_k_eq_v");
    int               dim, dim_full, n_kv, n_kv_full;
    if (!hf_int(o, "num_attention_heads", CONFIG_REQUIRED, 1, 1024, &c->n_heads, e) ||
        !hf_int(o, "head_dim", 256, 8, 4096, &dim, e) ||
        !hf_int(o, "num_key_value_heads", CONFIG_REQUIRED, 1, 1024, &n_kv, e) ||
        !hf_int(o, "global_head_dim", per_layer ? dim : 512, 8, 4096, &dim_full, e) ||
        !hf_int(o, "num_global_key_value_heads", n_kv, 1, 1024, &n_kv_full, e))
        return false;
    for (int l = 0; l < c->n_layers; l++) {
        c->head_dim[l]   = c->sliding[l] ? dim : dim_full;
        c->n_kv_heads[l] = c->sliding[l] || !k_eq_v ? n_kv : n_kv_full;
        c->k_is_v[l]     = k_eq_v && !c->sliding[l];
    }
    return !per_layer || h_layer_overrides(per_layer, c, e);
}

/* kind: full_attention or sliding_attention. `part` is how much of the pairs turns. */
static bool h_rope_kind(const json_value *all, const char *kind, bool proportional, double theta_default, double *theta,
                        double *part, double *factor, err *e)
{
    const json_value *o = hf_present(all, kind), *type = hf_present(o, "rope_type");
    if (type) {
        proportional = type->kind == JSON_STRING && str_is(type->s, "proportional");
        if (!proportional && !(type->kind == JSON_STRING && str_is(type->s, "default")))
            return err_set(e, ERR_FORMAT, "the rope_type of %s is neither default nor proportional", kind);
    }
    return (hf_real(o, "rope_theta", theta_default, 1, 1e12, theta, e) &&
            hf_real(o, "partial_rotary_factor", o || !proportional ? 1 : 0.25, 0, 1, part, e) &&
            hf_real(o, "factor", 1, 1e-3, 1e6, factor, e)) ||
           err_wrap(e, "rope_parameters.%s", kind);
}

static bool h_rope(const json_value *o, gemma4_config *c, err *e)
{
    const json_value *rope = hf_present(o, "rope_parameters");
    double            part_sliding;
    if (!h_rope_kind(rope, "full_attention", true, 1e6, &c->theta_full, &c->rotary_part, &c->rope_factor_full, e) ||
        !h_rope_kind(rope, "sliding_attention", false, 1e4, &c->theta_sliding, &part_sliding, &c->rope_factor_sliding,
                     e))
        return false;
    return part_sliding == 1 || err_set(e, ERR_FORMAT, "sliding layers with partial rotation are not supported");
}

static bool h_feed_forward(const json_value *o, gemma4_config *c, err *e)
{
    int  n_ff;
    bool moe = hf_bool(o, "enable_moe_block");
    if (!hf_int(o, "intermediate_size", CONFIG_REQUIRED, 1, MAX_WIDTH, &n_ff, e)) return false;
    for (int l = 0; l < c->n_layers; l++) {
        bool wide  = hf_bool(o, "use_double_wide_mlp") && l >= c->n_layers - c->n_kv_shared;
        c->n_ff[l] = wide ? 2 * n_ff : n_ff;
    }
    return !moe || (hf_int(o, "num_experts", CONFIG_REQUIRED, 1, GEMMA4_MAX_EXPERTS, &c->n_experts, e) &&
                    hf_int(o, "top_k_experts", CONFIG_REQUIRED, 1, GEMMA4_MAX_USED, &c->n_used, e) &&
                    hf_int(o, "moe_intermediate_size", CONFIG_REQUIRED, 1, MAX_WIDTH, &c->n_ff_expert, e));
}

/* Members of the family, and exports of it, that this code would run wrongly. */
static bool h_refuse_unknown(const checkpoint *cp, const json_value *o, err *e)
{
    const json_value *act = hf_present(o, "hidden_activation"), *both = hf_present(o, "use_bidirectional_attention");
    if (hf_present(cp->config, "quantization_config"))
        return err_set(e, ERR_FORMAT,
                       "its weights are quantised in a way that only other engines read (quantization_config): "
                       "use the original checkpoint or a GGUF file");
    if (act && !(act->kind == JSON_STRING && str_is(act->s, "gelu_pytorch_tanh")))
        return err_set(e, ERR_FORMAT, "hidden_activation is not gelu_pytorch_tanh");
    if (hf_bool(o, "attention_bias")) return err_set(e, ERR_FORMAT, "attention_bias is true, Gemma 4 has none");
    if (both && both->kind == JSON_STRING && str_is(both->s, "all"))
        return err_set(e, ERR_FORMAT, "it attends in both directions (an embedding model) and cannot write text");
    return true;
}

static bool from_hf(gemma4_config *c, const checkpoint *cp, err *e)
{
    const json_value *text = hf_present(cp->config, "text_config"), *o = text ? text : cp->config;
    const json_value *kind = hf_present(cp->config, "model_type");
    double            eps, softcap;
    c->assistant = kind && kind->kind == JSON_STRING && str_ends(kind->s, "assistant");
    if (!h_refuse_unknown(cp, o, e) ||
        !hf_int(o, "num_hidden_layers", CONFIG_REQUIRED, 1, GEMMA4_MAX_LAYERS, &c->n_layers, e) ||
        !hf_int(o, "hidden_size", CONFIG_REQUIRED, 8, MAX_WIDTH, &c->n_embd, e) ||
        !hf_int(o, "vocab_size", CONFIG_REQUIRED, 2, 1 << 22, &c->n_vocab, e) ||
        !hf_int(o, "max_position_embeddings", 131072, 1, MAX_CONTEXT, &c->n_ctx, e) ||
        !hf_int(o, "sliding_window", 512, 1, MAX_CONTEXT, &c->window, e) ||
        !hf_int(o, "hidden_size_per_layer_input", 0, 0, 4096, &c->n_ple, e) ||
        !hf_int(o, "num_kv_shared_layers", 0, 0, c->n_layers - !c->assistant, &c->n_kv_shared, e) ||
        !hf_real(o, "rms_norm_eps", 1e-6, 0, 1, &eps, e) ||
        !hf_real(o, "final_logit_softcapping", 0, 0, 1e6, &softcap, e))
        return false;
    c->eps     = (float)eps;
    c->softcap = (float)softcap;
    return h_layer_types(o, c, e) && h_heads(o, c, e) && h_rope(o, c, e) && h_feed_forward(o, c, e);
}

/* --- what must hold together --------------------------------------------------------------------*/
int gemma4_kv_donor(const gemma4_config *c, int l)
{
    int first_shared = c->n_layers - c->n_kv_shared;
    if (l < first_shared) return l;
    for (int d = first_shared - 1; d >= 0; d--)
        if (c->sliding[d] == c->sliding[l]) return d;
    return -1;
}

/* One class of pages per kind of layer: the layers of a kind must agree in shape. */
static bool check_layer(const gemma4_config *c, int l, err *e)
{
    int d = gemma4_kv_donor(c, l);
    if (d < 0 && !c->assistant)
        return err_set(e, ERR_FORMAT, "layer %d shares K/V, but no earlier layer of its kind has any", l);
    if (c->head_dim[l] % 8 || c->head_dim[l] > OPS_MAX_HEAD_DIM)
        return err_set(e, ERR_FORMAT, "the head size of layer %d is %d, not a multiple of 8 up to %d", l,
                       c->head_dim[l], OPS_MAX_HEAD_DIM);
    if (c->n_heads % c->n_kv_heads[l])
        return err_set(e, ERR_FORMAT, "layer %d has %d query heads over %d K/V heads", l, c->n_heads, c->n_kv_heads[l]);
    for (int k = 0; k < l; k++)
        if (c->sliding[k] == c->sliding[l] &&
            (c->head_dim[k] != c->head_dim[l] || c->n_kv_heads[k] != c->n_kv_heads[l]))
            return err_set(e, ERR_FORMAT, "layers %d and %d are of one kind but differ in heads or head size", k, l);
    return true;
}

static bool check_whole(const gemma4_config *c, err *e)
{
    if (c->n_experts && (!c->n_used || c->n_used > c->n_experts || !c->n_ff_expert))
        return err_set(e, ERR_FORMAT, "%d experts of width %d cannot be used %d at a time", c->n_experts,
                       c->n_ff_expert, c->n_used);
    for (int l = 0; l < c->n_layers; l++)
        if (!check_layer(c, l, e)) return false;
    return true;
}

/* A file whose numbers switch off what its tensors hold would run, and write nonsense. */
static bool check_tensors(const gemma4_config *c, const checkpoint *cp, err *e)
{
    static const struct {
        const char *suffix, *what;
        bool        is_ple;
    } sign[] = {
        {"per_layer_token_embd.weight", "per-layer embeddings (embedding_length_per_layer_input)", true},
        {"embed_tokens_per_layer.weight", "per-layer embeddings (hidden_size_per_layer_input)", true},
        {".ffn_down_exps.weight", "experts (expert_count)", false},
        {".experts.down_proj", "experts (enable_moe_block)", false},
    };
    for (size_t i = 0; i < tensor_count(cp->tensors); i++)
        for (size_t k = 0; k < sizeof sign / sizeof *sign; k++) {
            str name = tensor_at(cp->tensors, i)->name;
            if (str_ends(name, sign[k].suffix) && (sign[k].is_ple ? c->n_ple : c->n_experts) == 0)
                return err_set(e, ERR_FORMAT, "tensor '%.*s' is there, but the configuration has no %s", STR_ARG(name),
                               sign[k].what);
        }
    return true;
}

bool gemma4_config_read(gemma4_config *out, const checkpoint *c, err *e)
{
    *out = (gemma4_config){0};
    return (c->gguf ? from_gguf(out, c, e) : from_hf(out, c, e)) && check_whole(out, e) && check_tensors(out, c, e);
}
