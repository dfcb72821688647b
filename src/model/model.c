#include "model/model.h"

#include "base/log.h"
#include "base/mem.h"
#include "model/gemma4.h"

#include <assert.h>

/* --- steps --------------------------------------------------------------------------------------*/
void step_clear(step *s) { s->n_rows = s->n_want = 0; }

static void add_row(step *s, int lane, int32_t pos, int32_t slot, int32_t root, int parent, int32_t token, bool want)
{
    int i = s->n_rows++;
    assert(i < STEP_MAX_ROWS && parent < i);
    s->token[i]  = token;
    s->pos[i]    = pos;
    s->lane[i]   = lane;
    s->slot[i]   = slot;
    s->parent[i] = parent;
    s->root[i]   = root;
    if (want) s->want[s->n_want++] = i;
}

void step_add(step *s, int lane, int32_t pos, int32_t token, bool want)
{
    add_row(s, lane, pos, pos, pos + 1, -1, token, want);
}

void step_add_tree(step *s, int lane, int32_t root, int index, int parent, int32_t token, bool want)
{
    int32_t pos = parent < 0 ? root : s->pos[parent] + 1;
    add_row(s, lane, pos, root + index, root, parent, token, want);
}

/* --- what the files say about stopping and sampling ---------------------------------------------*/
static void add_stop(target *t, int64_t id)
{
    if (id < 0 || id >= t->n_vocab) return;
    for (int i = 0; i < t->n_stop_ids; i++)
        if (t->stop_id[i] == id) return;
    if (t->n_stop_ids < (int)COUNT(t->stop_id)) t->stop_id[t->n_stop_ids++] = (int32_t)id;
}

/* A number or a list of numbers. */
static void add_stops_json(target *t, const json_value *o)
{
    const json_value *v = json_get(o, "eos_token_id");
    if (v && v->kind == JSON_INT) add_stop(t, v->i);
    for (size_t i = 0; v && v->kind == JSON_ARRAY && i < v->n; i++)
        if (v->item[i].kind == JSON_INT) add_stop(t, v->item[i].i);
}

static void add_stops_gguf(target *t, const gguf *g, const char *key)
{
    const gguf_value *v = gguf_find(g, key);
    int64_t           id;
    if (v && v->type != GGUF_ARRAY && gguf_int(v, &id)) add_stop(t, id);
    for (uint64_t i = 0; v && v->type == GGUF_ARRAY && i < v->n; i++)
        if (gguf_item_int(v, i, &id)) add_stop(t, id);
}

static void collect_stops(target *t, const checkpoint *c)
{
    if (c->gguf) {
        add_stops_gguf(t, c->gguf, "tokenizer.ggml.eos_token_id");
        add_stops_gguf(t, c->gguf, "tokenizer.ggml.eos_token_ids");
        add_stops_gguf(t, c->gguf, "tokenizer.ggml.eot_token_id");
    } else {
        add_stops_json(t, c->config);
        add_stops_json(t, json_get(c->config, "text_config"));
        add_stops_json(t, c->generation);
    }
}

/* A default that makes no sense is said and passed over: the user can still set his own. */
static float default_real(const json_value *o, const char *key, double fallback, double lo, double hi)
{
    const json_value *v = json_get(o, key);
    if (!v || v->kind == JSON_NULL) return (float)fallback;
    if ((v->kind == JSON_INT || v->kind == JSON_REAL) && v->d >= lo && v->d <= hi) return (float)v->d;
    log_event(LOG_WARN, "load", "generation_config: %s is not a number from %g to %g, using %g", key, lo, hi, fallback);
    return (float)fallback;
}

static void defaults_from_json(sample_params *p, const json_value *o)
{
    const json_value *sample = json_get(o, "do_sample");
    if (!sample || sample->kind != JSON_BOOL || !sample->b) return;
    p->temp  = default_real(o, "temperature", 1, 0, 100);
    p->top_k = (int32_t)default_real(o, "top_k", 50, 0, 1 << 22);
    p->top_p = default_real(o, "top_p", 1, 0, 1);
    p->min_p = default_real(o, "min_p", 0, 0, 1);
}

static void defaults_from_gguf(sample_params *p, const gguf *g)
{
    double d;
    if (gguf_real(gguf_find(g, "general.sampling.temp"), &d) && d >= 0 && d <= 100) p->temp = (float)d;
    if (gguf_real(gguf_find(g, "general.sampling.top_k"), &d) && d >= 0 && d <= 1 << 22) p->top_k = (int32_t)d;
    if (gguf_real(gguf_find(g, "general.sampling.top_p"), &d) && d >= 0 && d <= 1) p->top_p = (float)d;
    if (gguf_real(gguf_find(g, "general.sampling.min_p"), &d) && d >= 0 && d <= 1) p->min_p = (float)d;
}

/* --- open ---------------------------------------------------------------------------------------*/
str model_arch(const checkpoint *c)
{
    str s = {0};
    if (c->gguf) {
        gguf_str(gguf_find(c->gguf, "general.architecture"), &s);
        return s;
    }
    const json_value *v = json_get(c->config, "model_type");
    return v && v->kind == JSON_STRING ? v->s : s;
}

static bool is_gemma4(str arch)
{
    static const char *const names[] = {"gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (str_is(arch, names[i])) return true;
    return false;
}

static bool check_arch(str arch, err *e)
{
    if (is_gemma4(arch)) return true;
    if (!arch.n) return err_set(e, ERR_FORMAT, "the file does not say what kind of model it is");
    if (str_starts(arch, "gemma4") && (str_ends(arch, "assistant")))
        return err_set(e, ERR_INPUT, "this is a drafter (%.*s), not a model that can run alone", STR_ARG(arch));
    return err_set(e, ERR_INPUT, "models of kind '%.*s' are not supported, only gemma4", STR_ARG(arch));
}

static bool open_target(target **out, const checkpoint *c, const model_options *opt, err *e)
{
    ops *o;
    if (!check_arch(model_arch(c), e)) return false;
    if (!ops_open(&o, opt->device ? opt->device : "auto", opt->n_threads, e)) return false;
    return gemma4_open(out, c, opt, o, e); /* takes o over, also when it fails */
}

bool model_open(target **out, const checkpoint *c, const model_options *opt, err *e)
{
    assert(opt->max_rows >= 0 && opt->max_rows <= STEP_MAX_ROWS);
    *out = NULL;
    if (!open_target(out, c, opt, e)) return err_wrap(e, "cannot load %s", c->path);
    target *t   = *out;
    t->defaults = (sample_params){.top_p = 1};
    collect_stops(t, c);
    if (c->gguf)
        defaults_from_gguf(&t->defaults, c->gguf);
    else
        defaults_from_json(&t->defaults, c->generation);
    return true;
}

void model_close(target *t)
{
    if (t) t->close(t);
}
