#include "model/convert.h"

#include "base/log.h"
#include "base/mem.h"
#include "model/config_value.h"
#include "model/convert_plan.h"
#include "model/drafter.h"
#include "model/family.h"
#include "model/model.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_PLAN_MEMORY = 64 << 20 };

/* --- keys --------------------------------------------------------------------------------------- */
static const char *full_key(const convert_plan *p, const char *key, char out[128])
{
    snprintf(out, 128, "%s.%s", p->arch, key);
    return out;
}

void plan_u32(convert_plan *p, const char *key, int v)
{
    char name[128];
    gguf_put_u32(p->w, full_key(p, key, name), (uint32_t)v);
}

void plan_f32(convert_plan *p, const char *key, double v)
{
    char name[128];
    gguf_put_f32(p->w, full_key(p, key, name), (float)v);
}

void plan_bools(convert_plan *p, const char *key, const bool *v, int n)
{
    char     name[128];
    uint8_t *byte = xnew_n(uint8_t, (size_t)n);
    for (int i = 0; i < n; i++) byte[i] = v[i];
    gguf_put_array(p->w, full_key(p, key, name), GGUF_BOOL, byte, (size_t)n);
    mem_free(byte);
}

void plan_u32_per_layer(convert_plan *p, const char *key, const int *v)
{
    char name[128];
    bool same = true;
    for (int l = 1; l < p->n_layers; l++) same &= v[l] == v[0];
    if (same)
        plan_u32(p, key, v[0]);
    else
        gguf_put_array(p->w, full_key(p, key, name), GGUF_I32, v, (size_t)p->n_layers);
}

/* --- tensors ------------------------------------------------------------------------------------ */
static bool add_item(convert_plan *p, const tensor *src, const char *to, err *e)
{
    char *name = arena_str(&p->mem, str_of(to));
    if (name && p->n == p->cap) {
        size_t     cap  = p->cap ? 2 * p->cap : 256;
        plan_item *item = mem_try_resize(p->item, cap * sizeof *item);
        if (!item) return err_set(e, ERR_UNAVAILABLE, "no memory for a list of %zu tensors", cap);
        p->item = item;
        p->cap  = cap;
    }
    if (!name) return err_set(e, ERR_UNAVAILABLE, "no memory for names");
    plan_item *x = &p->item[p->n++];
    *x           = (plan_item){.src = *src, .out = *src};
    x->out.name  = str_of(name);
    return true;
}

bool plan_use(convert_plan *p, const tensor *t)
{
    p->used[t - tensor_at(p->cp->tensors, 0)] = true;
    return true;
}

bool plan_found(convert_plan *p, const tensor *t, const char *to, err *e)
{
    if (!quant_can_dequantise(t->type))
        return err_set(e, ERR_FORMAT, "tensor '%.*s' is of type %s, which cannot be read as weights", STR_ARG(t->name),
                       quant_name(t->type));
    return plan_use(p, t) && add_item(p, t, to, e);
}

bool plan_optional(convert_plan *p, const char *from, const char *to, err *e)
{
    const tensor *t = tensor_find(p->cp->tensors, str_of(from));
    return !t || plan_found(p, t, to, e);
}

bool plan_tensor(convert_plan *p, const char *from, const char *to, int64_t d0, int64_t d1, err *e)
{
    const tensor *t = tensor_find(p->cp->tensors, str_of(from));
    if (!t) return err_set(e, ERR_FORMAT, "tensor '%s' is missing", from);
    if (t->dim[0] != d0 || t->dim[1] != d1 || t->dim[2] != 1 || t->dim[3] != 1)
        return err_set(e, ERR_FORMAT, "tensor '%s' has shape [%lld, %lld, %lld, %lld], expected [%lld, %lld, 1, 1]",
                       from, (long long)t->dim[0], (long long)t->dim[1], (long long)t->dim[2], (long long)t->dim[3],
                       (long long)d0, (long long)d1);
    return plan_found(p, t, to, e);
}

bool plan_made_2d(convert_plan *p, const char *to, const float *v, int n_in, int n_out, err *e)
{
    size_t n    = (size_t)n_in * (size_t)n_out;
    float *copy = arena_try(&p->mem, n, sizeof *copy);
    if (!copy) return err_set(e, ERR_UNAVAILABLE, "no memory for tensor '%s'", to);
    memcpy(copy, v, n * sizeof *v);
    tensor t = {.type   = QUANT_F32,
                .n_dims = n_out > 1 ? 2 : 1,
                .dim    = {n_in, n_out, 1, 1},
                .data   = copy,
                .bytes  = n * sizeof *v};
    return add_item(p, &t, to, e);
}

bool plan_made(convert_plan *p, const char *to, const float *v, int n, err *e)
{
    return plan_made_2d(p, to, v, n, 1, e);
}

bool plan_made_ids(convert_plan *p, const char *to, const int32_t *id, int n, err *e)
{
    tensor t = {.type = QUANT_I32, .n_dims = 1, .dim = {n, 1, 1, 1}, .data = id, .bytes = (size_t)n * sizeof(int32_t)};
    return add_item(p, &t, to, e);
}

bool plan_computed(convert_plan *p, const tensor *like, const char *to, void (*compute)(const plan_item *x, char *to),
                   const void *ctx, err *e)
{
    if (!add_item(p, like, to, e)) return false;
    p->item[p->n - 1].compute = compute;
    p->item[p->n - 1].ctx     = ctx;
    return true;
}

/* --- tensors that are not converted -------------------------------------------------------------------------- */
static bool is_media(str name)
{
    static const char *const part[] = {"vision", "visual", "audio"};
    for (size_t i = 0; i < COUNT(part); i++)
        if (memmem(name.s, name.n, part[i], strlen(part[i]))) return true;
    return false;
}

static void report_left_out(const convert_plan *p)
{
    size_t n_media = 0, n_other = 0;
    str    other = {0};
    for (size_t i = 0; i < tensor_count(p->cp->tensors); i++) {
        str name = tensor_at(p->cp->tensors, i)->name;
        if (p->used[i]) continue;
        n_media += is_media(name);
        if (is_media(name)) continue;
        if (!n_other++) other = name;
    }
    if (n_media)
        log_event(LOG_WARN, "convert", "%zu tensors for images and sound are left out: the file is a text model",
                  n_media);
    if (n_other)
        log_event(LOG_INFO, "convert", "%zu unused tensors are left out, the first is '%.*s'", n_other, STR_ARG(other));
}

/* --- types -------------------------------------------------------------------------------------- */
/* Matrices as stored, or as the float type that was asked for; all else f32. */
static quant_type plain_type(const tensor *t, const convert_options *opt)
{
    bool wide = recode_is_matrix(t) || str_is(t->name, "per_layer_model_proj.weight");
    if (!quant_can_dequantise(t->type)) return t->type; /* ids */
    if (!wide) return QUANT_F32;
    return !opt->as_stored && quant_is_float(opt->type) ? opt->type : t->type;
}

static void choose_types(convert_plan *p, const convert_options *opt)
{
    recode_rules rules     = {.want = opt->type, .n_layers = p->n_layers, .tied = true};
    bool         quantised = false;
    quant_type   main_type = QUANT_F32; /* for general.file_type */
    size_t       max_bytes = 0;
    for (size_t i = 0; i < p->n; i++)
        if (str_is(p->item[i].out.name, "output.weight")) rules.tied = false;
    for (size_t i = 0; i < p->n; i++) {
        tensor *t = &p->item[i].out;
        t->type   = plain_type(t, opt);
        if (!opt->as_stored) t->type = recode_type(&rules, t);
        quantised |= quant_block(t->type) > 1;
        if (p->item[i].src.bytes > max_bytes) {
            max_bytes = p->item[i].src.bytes;
            main_type = t->type;
        }
        gguf_put_tensor(p->w, t);
    }
    gguf_put_u32(p->w, "general.file_type", recode_file_type(opt->as_stored ? main_type : opt->type));
    if (quantised) gguf_put_u32(p->w, "general.quantization_version", RECODE_FORMAT_VERSION);
}

/* --- sampling defaults -------------------------------------------------------------------------- */
static void put_real(convert_plan *p, const char *from, const char *to)
{
    const json_value *v = hf_present(p->cp->generation, from);
    if (v && (v->kind == JSON_INT || v->kind == JSON_REAL)) gguf_put_f32(p->w, to, (float)v->d);
}

static void put_sampling(convert_plan *p)
{
    const json_value *o = p->cp->generation, *top_k = hf_present(o, "top_k");
    if (!hf_bool(o, "do_sample")) return; /* greedy, whatever the rest says */
    put_real(p, "temperature", "general.sampling.temp");
    if (!hf_present(o, "temperature")) gguf_put_f32(p->w, "general.sampling.temp", 1);
    int32_t k = top_k && top_k->kind == JSON_INT && top_k->i >= 0 && top_k->i < INT32_MAX ? (int32_t)top_k->i : 50;
    gguf_put_i32(p->w, "general.sampling.top_k", k);
    put_real(p, "top_p", "general.sampling.top_p");
    put_real(p, "min_p", "general.sampling.min_p");
}

/* --- the whole ---------------------------------------------------------------------------------- */
typedef bool plan_fn(convert_plan *p, err *e);

/* Returns the planner of the checkpoint's family or drafter kind, NULL when it has none. */
static plan_fn *planner_for(const checkpoint *cp)
{
    const model_family *f = family_of(cp);
    int                 k = drafter_kind_of(cp);
    return f ? f->plan : k >= 0 ? drafter_kinds[k].plan : NULL;
}

/* The directory's own name. */
static void put_name(convert_plan *p)
{
    char        path[PATH_MAX];
    const char *real = realpath(p->cp->path, path), *slash = real ? strrchr(real, '/') : NULL;
    if (slash && slash[1]) gguf_put_str(p->w, "general.name", str_of(slash + 1));
}

static bool find_tokenizer(const convert_plan *p, const convert_options *opt, char path[PATH_MAX], const char **out,
                           err *e)
{
    *out = opt->tokenizer;
    if (opt->tokenizer) return true;
    if (!file_join(path, PATH_MAX, p->cp->path, "tokenizer.json")) return err_set(e, ERR_INPUT, "the path is too long");
    if (file_exists(path)) *out = path;
    return true;
}

static bool make_plan(convert_plan *p, const convert_options *opt, err *e)
{
    char        path[PATH_MAX];
    const char *tokenizer;
    plan_fn    *plan = planner_for(p->cp);
    if (!plan)
        return err_set(e, ERR_INPUT,
                       "models of kind '%.*s' cannot be converted, only Gemma 4, its assistants, Qwen 3.5, DFlash, "
                       "DSpark and DFlash-2 drafters",
                       STR_ARG(model_arch(p->cp)));
    if (!plan(p, e) || !find_tokenizer(p, opt, path, &tokenizer, e) || !plan_tokenizer(p, tokenizer, e)) return false;
    gguf_put_str(p->w, "general.architecture", str_of(p->arch));
    gguf_put_str(p->w, "general.type", STR("model"));
    put_name(p);
    put_sampling(p);
    choose_types(p, opt);
    report_left_out(p);
    return true;
}

static void drop_piece(const void *ctx, const tensor *piece) { checkpoint_drop(ctx, piece); }

static bool write_item(recoder *r, const plan_item *x, err *e)
{
    tensor made = x->src;
    if (!x->compute) return recoder_put(r, &x->src, x->out.type, e);
    char *data = mem_try(x->src.bytes);
    if (!data) return err_set(e, ERR_UNAVAILABLE, "no memory for tensor '%.*s'", STR_ARG(x->out.name));
    x->compute(x, data);
    made.data = data;
    bool ok   = recoder_put(r, &made, x->out.type, e);
    mem_free(data);
    return ok;
}

static bool write_tensors(convert_plan *p, const recode_options *opt, err *e)
{
    size_t total = 0;
    bool   ok    = true;
    for (size_t i = 0; i < p->n; i++) total += p->item[i].src.bytes;
    recoder *r = recoder_new(p->w, opt, total, drop_piece, p->cp);
    for (size_t i = 0; ok && i < p->n; i++) ok = write_item(r, &p->item[i], e);
    recoder_free(r);
    return ok;
}

bool convert_dir(const char *dir, const char *out, const convert_options *opt, err *e)
{
    checkpoint  *cp;
    convert_plan p = {.mask_id = -1};
    if (!checkpoint_open(&cp, dir, e)) return false;
    p.cp   = cp;
    p.w    = gguf_writer_new();
    p.used = mem_try_n(tensor_count(cp->tensors) + 1, sizeof *p.used);
    arena_init(&p.mem, MAX_PLAN_MEMORY);
    bool ok = !cp->gguf || err_set(e, ERR_INPUT, "%s is a GGUF file already: see tandem quantize", dir);
    ok      = ok && (p.used || err_set(e, ERR_UNAVAILABLE, "no memory for a list of tensors"));
    ok      = ok && (make_plan(&p, opt, e) || err_wrap(e, "cannot convert %s", dir));
    ok      = ok && gguf_writer_begin(p.w, out, opt->recode.part_bytes, e) && write_tensors(&p, &opt->recode, e) &&
         gguf_writer_end(p.w, e);
    mem_free(p.item);
    mem_free(p.used);
    arena_deinit(&p.mem);
    gguf_writer_free(p.w);
    checkpoint_close(cp);
    return ok;
}
