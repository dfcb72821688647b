#include "model/model.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "model/drafter.h"
#include "model/family.h"
#include "model/vision.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* --- types of K and V ---------------------------------------------------------------------------*/
kv_types kv_types_default(cache_types full)
{
    cache_types others = cache_types_at_least(full, CACHE_F16);
    return (kv_types){.full = full, .sliding = others, .draft = others};
}

const char *kv_types_text(const kv_types *t, char out[KV_TYPES_TEXT])
{
    kv_types usual = kv_types_default(t->full);
    char     text[CACHE_TYPES_TEXT], share[SPARSE_TEXT];
    size_t   n = (size_t)snprintf(out, KV_TYPES_TEXT, "%s", cache_types_text(t->full, text));
    if (!cache_types_equal(t->sliding, usual.sliding))
        n += (size_t)snprintf(out + n, KV_TYPES_TEXT - n, ", sliding %s", cache_types_text(t->sliding, text));
    if (!cache_types_equal(t->draft, usual.draft))
        n += (size_t)snprintf(out + n, KV_TYPES_TEXT - n, ", draft %s", cache_types_text(t->draft, text));
    if (t->sparse.drop) snprintf(out + n, KV_TYPES_TEXT - n, ", sparse %s", sparse_text(&t->sparse, share));
    return out;
}

int target_kv_classes(const target *t, const kv_types *types, kv_class_spec out[KV_MAX_CLASSES])
{
    if (t->kv_classes) return t->kv_classes(t, types, out);
    for (int i = 0; i < t->n_kv_classes; i++) {
        out[i]       = t->kv_class[i];
        out[i].types = out[i].window ? types->sliding : types->full;
        if (!out[i].window) out[i].sparse = types->sparse;
    }
    return t->n_kv_classes;
}

void target_set_kv(target *t, const kv_types *types)
{
    t->n_kv_classes = target_kv_classes(t, types, t->kv_class);
    if (t->set_kv) t->set_kv(t, types);
    if (t->vision) vision_set_exact(t->vision, types->full.k == CACHE_F32 && types->full.v == CACHE_F32);
}

/* --- steps --------------------------------------------------------------------------------------*/
/* int32 arrays of a step, for recurrent layers, of the rows that are read, which are at most half, and in all. */
enum {
    FIELDS      = 9,
    PATH_FIELDS = 2,
    READ_FIELDS = 8,
    ALL_FIELDS  = FIELDS + PATH_FIELDS + ROPE_SECTIONS + READ_FIELDS / 2 + 1
};

void step_init(step *s, int max_rows)
{
    size_t n = (size_t)max_rows;
    assert(max_rows >= 1 && max_rows <= STEP_MAX_ROWS);
    *s          = (step){.max_rows = max_rows};
    s->token    = xnew_n(int32_t, FIELDS * n);
    s->pos      = s->token + n;
    s->lane     = s->pos + n;
    s->slot     = s->lane + n;
    s->parent   = s->slot + n;
    s->root     = s->parent + n;
    s->last     = s->root + n;
    s->ahead    = s->last + n;
    s->want     = s->ahead + n;
    s->section  = xnew_n(int32_t, ROPE_SECTIONS * n);
    s->packed   = xnew_n(int32_t, ALL_FIELDS * n);
    void *given = xalloc_n(n, sizeof *s->given), *kept = xalloc_n(n, sizeof *s->kept);
    void *soft = xalloc_n(n, sizeof *s->soft);
    s->given   = given;
    s->kept    = kept;
    s->soft    = soft;
}

void step_deinit(step *s)
{
    mem_free(s->token);
    mem_free(s->packed);
    mem_free(s->given);
    mem_free(s->kept);
    mem_free(s->soft);
    mem_free(s->section);
    *s = (step){0};
}

size_t step_bytes(int max_rows) { return ALL_FIELDS * (size_t)max_rows * sizeof(int32_t); }

/* Writes `before` and `kept` of the rows, for recurrent layers. */
static void pack_paths(const step *s, int n_rows, int32_t *before, int32_t *kept)
{
    for (int i = s->n_rows; i < n_rows; i++) before[i] = kept[i] = -1;
    for (int i = 0; i < s->n_rows; i++) {
        bool follows = i > 0 && s->lane[i - 1] == s->lane[i];
        before[i]    = s->parent[i] >= 0 ? s->parent[i] : follows ? i - 1 : -1;
        kept[i]      = -1;
    }
    for (int i = 0; i < s->n_kept; i++)
        for (int k = 0; k < s->kept[i].n; k++) kept[s->kept[i].first + k] = s->kept[i].at + k;
}

/* Returns the end of the run of rows from `from` on that follow each other in one lane and see no branch of a tree. */
static int chain_after(const step *s, int from)
{
    int to = from;
    while (to < s->n_rows && s->lane[to] == s->lane[from] && s->last[to] < s->root[to]) to++;
    return to;
}

/* Finds the most rows in a row that are long chains: those of prompts. */
static void find_chains(const step *s, step_rows *r)
{
    enum { LONG_CHAIN = 16 };
    for (int i = 0, from = 0, end = 0, reach = 0, to; i < s->n_rows; i = to) {
        to = chain_after(s, i);
        if (to - i < LONG_CHAIN) {
            to   = to > i ? to : i + 1;
            from = to, end = reach = 0;
            continue;
        }
        for (int k = i; k < to; k++) {
            end   = max_int(end, s->ahead[k] + 1);
            reach = max_int(reach, s->ahead[k] - s->pos[k] + 1);
        }
        if (to - from <= r->chain_to - r->chain_from) continue;
        r->chain_from = from, r->chain_to = to, r->chain_end = end, r->chain_sees = reach;
    }
}

bool step_has_few_lanes(const step *s)
{
    enum { LANE_ROWS = 8, LONG = 4096 };
    int64_t all = 0, once = 0; /* positions that the rows see, and that the first rows of their lanes see */
    for (int i = 0; i < s->n_rows; i++) {
        all += s->last[i] + 1;
        if (i == 0 || s->lane[i] != s->lane[i - 1]) once += s->last[i] + 1;
    }
    return all >= LANE_ROWS * once && all >= (int64_t)LONG * s->n_rows;
}

/* Writes the fields of the rows, n of each, and those of padding rows after them. `want` is padded with row 0. */
static void pack_fields(const step *s, int32_t *to, size_t n)
{
    static const int32_t padding[FIELDS] = {-1, 0, -1, 0, -1, 0, -1, -1, 0}; /* as the arrays of a step */
    for (size_t i = 0; i < FIELDS; i++) {
        size_t there = (size_t)(i == FIELDS - 1 ? s->n_want : s->n_rows);
        memcpy(to + i * n, s->token + i * (size_t)s->max_rows, there * sizeof(int32_t));
        for (size_t r = there; r < n; r++) to[i * n + r] = padding[i];
    }
}

/* Returns whether row i is read by others or wanted; *want: the next wanted row to look for. */
static bool is_read(const step *s, int i, int *want)
{
    bool wanted = *want < s->n_want && s->want[*want] == i;
    *want += wanted;
    return wanted || s->last[i] >= s->root[i]; /* the second: a row of a tree */
}

static int count_read(const step *s)
{
    int n = 0;
    for (int i = 0, want = 0; i < s->n_rows; i++) n += is_read(s, i, &want);
    return n;
}

/* Writes the fields of the n rows that are read, n of each, as describe_read reads them. `place`: scratch, [n_rows]. */
static void pack_read(const step *s, int32_t *to, int n, int32_t *place)
{
    const int32_t *from[] = {s->pos, s->lane, s->slot, s->root, s->last};
    int32_t       *index = to, *want_at = to + n, *parent = to + 2 * (size_t)n, *fields = to + 3 * (size_t)n;
    for (int i = 0, k = 0, want = 0; i < s->n_rows; i++) {
        int before = want;
        if (!is_read(s, i, &want)) continue;
        if (want > before) want_at[before] = k;
        index[k]  = i;
        parent[k] = s->parent[i] < 0 ? -1 : place[s->parent[i]];
        for (size_t f = 0; f < COUNT(from); f++) fields[f * (size_t)n + (size_t)k] = from[f][i];
        place[i] = k++;
    }
    for (int i = s->n_want; i < n; i++) want_at[i] = 0;
}

/* Describes what pack_read wrote to `to`. These rows are not settled: more rows than these store K/V in the step. */
static void describe_read(step_upload_rows *u, dev to, int n)
{
    dev at[READ_FIELDS];
    for (size_t i = 0; i < READ_FIELDS; i++) at[i] = dev_at(to, i * (size_t)n * sizeof(int32_t));
    u->narrow  = true;
    u->read_at = at[0];
    u->want    = at[1];
    u->read    = (step_rows){
           .n_rows = n, .parent = at[2], .pos = at[3], .lane = at[4], .slot = at[5], .root = at[6], .last = at[7]};
}

static void pack_sections(const step *s, size_t n, int32_t *to)
{
    size_t there = ROPE_SECTIONS * (size_t)s->n_rows;
    memcpy(to, s->section, there * sizeof *to);
    memset(to + there, 0, (ROPE_SECTIONS * n - there) * sizeof *to);
}

/* On the device the arrays are n_rows apart, so that a small step uploads little. */
step_upload_rows step_upload(const step *s, int n_rows, const ops *o, queue *q, dev to, unsigned parts)
{
    size_t n = (size_t)n_rows, n_fields = FIELDS + (parts & STEP_PATHS ? PATH_FIELDS : 0), n_ints = n_fields * n;
    int    n_read                   = parts & STEP_NARROW ? count_read(s) : n_rows;
    bool   narrow                   = n_read <= n_rows / 2;
    dev    at[FIELDS + PATH_FIELDS] = {0};
    assert(n_rows >= s->n_rows && n_rows <= s->max_rows);
    for (size_t i = 0; i < n_fields; i++) at[i] = dev_at(to, i * n * sizeof(int32_t));
    pack_fields(s, s->packed, n);
    if (parts & STEP_PATHS) pack_paths(s, n_rows, s->packed + FIELDS * n, s->packed + (FIELDS + 1) * n);
    dev sections = {0};
    if (parts & STEP_SECTIONS) {
        sections = dev_at(to, n_ints * sizeof(int32_t));
        pack_sections(s, n, s->packed + n_ints);
        n_ints += ROPE_SECTIONS * n;
    }
    if (narrow) pack_read(s, s->packed + n_ints, n_read, s->packed + (ALL_FIELDS - 1) * n);
    o->upload(q, to, s->packed, (n_ints + (narrow ? READ_FIELDS * (size_t)n_read : 0)) * sizeof(int32_t));
    for (int i = 0; i < s->n_given; i++) /* ids travel as floats do: 4 bytes each */
        o->copy_rows(q, dev_at(at[0], (size_t)s->given[i].first * sizeof(int32_t)), s->given[i].n, s->given[i].ids,
                     s->given[i].n, (dev){0}, 1, s->given[i].n);
    step_upload_rows u = {.all   = {.n_rows      = n_rows,
                                    .token       = at[0],
                                    .pos         = at[1],
                                    .lane        = at[2],
                                    .slot        = at[3],
                                    .parent      = at[4],
                                    .root        = at[5],
                                    .last        = at[6],
                                    .before      = at[9],
                                    .kept        = at[10],
                                    .section_pos = sections,
                                    .settled     = true},
                          .ahead = at[7],
                          .want  = at[8]};
    find_chains(s, &u.all);
    if (narrow) describe_read(&u, dev_at(to, n_ints * sizeof(int32_t)), n_read);
    return u;
}

void step_clear(step *s) { s->n_rows = s->n_want = s->n_given = s->n_kept = s->n_soft = 0; }

static void add_row(step *s, int lane, int32_t pos, int32_t slot, int32_t root, int parent, int32_t token, bool want)
{
    int i = s->n_rows++;
    assert(i < s->max_rows && parent < i);
    s->token[i]  = token;
    s->pos[i]    = pos;
    s->lane[i]   = lane;
    s->slot[i]   = slot;
    s->parent[i] = parent;
    s->root[i]   = root;
    s->last[i]   = pos;
    s->ahead[i]  = pos;
    for (int k = 0; k < ROPE_SECTIONS; k++) s->section[ROPE_SECTIONS * i + k] = pos;
    if (want) s->want[s->n_want++] = i;
}

void step_add(step *s, int lane, int32_t pos, int32_t token, bool want)
{
    add_row(s, lane, pos, pos, pos + 1, -1, token, want);
}

void step_add_given(step *s, int lane, int32_t pos, dev ids, int n)
{
    assert(s->n_given < s->max_rows);
    s->given[s->n_given].first = s->n_rows;
    s->given[s->n_given].n     = n;
    s->given[s->n_given++].ids = ids;
    for (int i = 0; i < n; i++) step_add(s, lane, pos + i, 0, true);
}

void step_add_tree(step *s, int lane, int32_t root, int index, int parent, int32_t token, bool want)
{
    int32_t pos = parent < 0 ? root : s->pos[parent] + 1;
    add_row(s, lane, pos, root + index, root, parent, token, want);
}

void step_see_ahead(step *s, int row, int32_t last)
{
    assert(row >= 0 && row < s->n_rows && last >= s->pos[row]);
    s->ahead[row] = last;
    s->root[row]  = last + 1;
}

void step_embed(step *s, int first, int n, const float *x)
{
    assert(n > 0 && first >= 0 && first + n <= s->n_rows && s->n_soft < s->max_rows);
    s->soft[s->n_soft].first = first;
    s->soft[s->n_soft].n     = n;
    s->soft[s->n_soft++].x   = x;
}

void step_keep(step *s, int n, int at)
{
    assert(n > 0 && n <= s->n_rows && s->lane[s->n_rows - n] == s->lane[s->n_rows - 1]);
    s->kept[s->n_kept].first = s->n_rows - n;
    s->kept[s->n_kept].n     = n;
    s->kept[s->n_kept++].at  = at;
}

/* --- what the files say about stopping and sampling ---------------------------------------------*/
typedef struct {
    int32_t *id;
    int     *n;
    int      n_vocab;
} id_set;

static bool add_id(const id_set *set, int64_t id, const char *key, err *e)
{
    if (id < 0 || id >= set->n_vocab) return true; /* a token that the model cannot pick anyway */
    for (int i = 0; i < *set->n; i++)
        if (set->id[i] == id) return true;
    if (*set->n == MODEL_MAX_STOPS) return err_set(e, ERR_FORMAT, "%s has over %d token ids", key, MODEL_MAX_STOPS);
    set->id[(*set->n)++] = (int32_t)id;
    return true;
}

/* A number or a list of numbers; null or absent adds nothing. */
static bool add_ids_json(const id_set *set, const json_value *o, const char *key, err *e)
{
    const json_value *v = json_get(o, key);
    if (!v || v->kind == JSON_NULL) return true;
    if (v->kind == JSON_INT) return add_id(set, v->i, key, e);
    for (size_t i = 0; v->kind == JSON_ARRAY && i < v->n; i++)
        if (v->item[i].kind != JSON_INT || !add_id(set, v->item[i].i, key, e))
            return v->item[i].kind == JSON_INT ? false : err_set(e, ERR_FORMAT, "%s[%zu] is not a number", key, i);
    return v->kind == JSON_ARRAY || err_set(e, ERR_FORMAT, "%s is neither a number nor a list of numbers", key);
}

static bool add_ids_gguf(const id_set *set, const gguf *g, const char *key, err *e)
{
    const gguf_value *v = gguf_find(g, key);
    int64_t           id;
    if (!v) return true;
    if (v->type != GGUF_ARRAY && gguf_int(v, &id)) return add_id(set, id, key, e);
    for (uint64_t i = 0; v->type == GGUF_ARRAY && i < v->n; i++)
        if (!gguf_item_int(v, i, &id))
            return err_set(e, ERR_FORMAT, "%s is not a list of numbers", key);
        else if (!add_id(set, id, key, e))
            return false;
    return v->type == GGUF_ARRAY || err_set(e, ERR_FORMAT, "%s is neither a number nor a list of numbers", key);
}

static bool collect_ids(target *t, const checkpoint *c, err *e)
{
    id_set stops = {t->stop_id, &t->n_stop_ids, t->n_vocab}, never = {t->suppress_id, &t->n_suppress_ids, t->n_vocab};
    if (c->gguf)
        return add_ids_gguf(&stops, c->gguf, "tokenizer.ggml.eos_token_id", e) &&
               add_ids_gguf(&stops, c->gguf, "tokenizer.ggml.eos_token_ids", e) &&
               add_ids_gguf(&stops, c->gguf, "tokenizer.ggml.eot_token_id", e) &&
               add_ids_gguf(&stops, c->gguf, "tokenizer.ggml.eom_token_id", e) &&
               add_ids_gguf(&never, c->gguf, "tokenizer.ggml.suppress_tokens", e);
    return add_ids_json(&stops, c->config, "eos_token_id", e) &&
           add_ids_json(&stops, json_get(c->config, "text_config"), "eos_token_id", e) &&
           add_ids_json(&stops, c->generation, "eos_token_id", e) &&
           add_ids_json(&never, c->generation, "suppress_tokens", e);
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

/* Explains why the table has no family for the checkpoint. Always false. */
static bool fail_unknown_arch(const checkpoint *c, err *e)
{
    str arch = model_arch(c);
    buf names;
    if (!arch.n) return err_set(e, ERR_FORMAT, "the file does not name its architecture");
    if (drafter_kind_of(c) >= 0)
        return err_set(e, ERR_INPUT, "this is a drafter (%.*s), not a model that can run alone", STR_ARG(arch));
    buf_init(&names, 256);
    for (const model_family *const *f = model_families; *f; f++)
        buf_printf(&names, "%s%s", f == model_families ? "" : ", ", (*f)->name);
    err_set(e, ERR_INPUT, "models of kind '%.*s' are not supported, only %.*s", STR_ARG(arch), (int)names.n, names.p);
    buf_deinit(&names);
    return false;
}

static bool open_target(target **out, const checkpoint *c, const model_options *opt, err *e)
{
    ops                *o;
    const model_family *f = family_of(c);
    if (!f) return fail_unknown_arch(c, e);
    if (!ops_open(&o, opt->device ? opt->device : "auto", opt->n_threads, e)) return false;
    if (opt->wrap) o = opt->wrap(o);
    if (!f->open(out, c, opt, o, e)) return false; /* takes over o, also when it fails */
    (*out)->family = f;
    return true;
}

static bool open_media(target *t, const checkpoint *c, const char *mmproj, err *e)
{
    if (!vision_open(&t->vision, t, c, mmproj, e)) return err_wrap(e, "no encoder of pictures");
    if (!t->vision) return true;
    const vision_config *v = vision_config_of(t->vision);
    t->media               = &v->rules;
    t->media_bytes         = vision_bytes(t->vision);
    t->media_stamp         = vision_stamp(t->vision)[0] ? vision_stamp(t->vision) : NULL;
    t->sees_ahead          = v->sees_ahead;
    t->sections            = v->sections;
    return true;
}

bool target_encode(target *t, const media_span *s, float *out, err *e) { return vision_encode(t->vision, s, out, e); }
void target_park_media(target *t) { vision_park(t->vision); }

static bool open_all(target **out, const checkpoint *c, const model_options *opt, err *e)
{
    if (!open_target(out, c, opt, e)) return false;
    target *t      = *out;
    t->weight_type = checkpoint_type(c);
    t->defaults    = t->family->sampling;
    if (c->gguf)
        defaults_from_gguf(&t->defaults, c->gguf);
    else
        defaults_from_json(&t->defaults, c->generation);
    return collect_ids(t, c, e) && open_media(t, c, opt->mmproj, e);
}

bool model_open(target **out, const checkpoint *c, const model_options *opt, err *e)
{
    assert(opt->max_rows >= 0 && opt->max_rows <= STEP_MAX_ROWS);
    *out = NULL;
    if (open_all(out, c, opt, e)) return true;
    model_close(*out);
    *out = NULL;
    return err_wrap(e, "cannot load %s", c->path);
}

void model_close(target *t)
{
    if (!t) return;
    vision_close(t->vision);
    t->close(t);
}
