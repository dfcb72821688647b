#include "model/bind.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>

/* --- what a model owns --------------------------------------------------------------------------*/
void owned_init(owned *w, const ops *o, int max_each)
{
    *w = (owned){.o        = o,
                 .weights  = xnew_n(weight *, (size_t)max_each),
                 .bufs     = xnew_n(dev, (size_t)max_each),
                 .max_each = max_each};
}

void owned_free(owned *w)
{
    for (int i = 0; i < w->n_weights; i++) w->o->weight_free(w->o, w->weights[i]);
    for (int i = 0; i < w->n_bufs; i++) w->o->free(w->o, w->bufs[i]);
    mem_free(w->weights);
    mem_free(w->bufs);
    *w = (owned){0};
}

bool owned_buf(owned *w, dev *out, size_t bytes, err *e)
{
    assert(w->n_bufs < w->max_each);
    if (!w->o->alloc(w->o, out, bytes, e)) return false;
    w->bufs[w->n_bufs++] = *out;
    return true;
}

bool owned_put(owned *w, dev *out, const void *data, size_t bytes, err *e)
{
    if (!owned_buf(w, out, bytes, e)) return false;
    w->o->upload(w->q, *out, data, bytes);
    w->o->sync(w->q);
    return true;
}

/* --- tensors ------------------------------------------------------------------------------------*/
bool bind_require(const binder *b, const char *name, const tensor **out, err *e)
{
    *out = tensor_find(b->cp->tensors, str_of(name));
    return *out || err_set(e, ERR_FORMAT, "tensor '%s' is missing", name);
}

bool bind_check_shape(const tensor *t, int64_t d0, int64_t d1, int64_t d2, err *e)
{
    if (!quant_can_dequantise(t->type))
        return err_set(e, ERR_FORMAT, "tensor '%.*s' is of type %s, which cannot be read as weights", STR_ARG(t->name),
                       quant_name(t->type) ? quant_name(t->type) : "unknown");
    if (t->dim[0] != d0 || t->dim[1] != d1 || t->dim[2] != d2 || t->dim[3] != 1)
        return err_set(e, ERR_FORMAT,
                       "tensor '%.*s' has shape [%lld, %lld, %lld, %lld], expected [%lld, %lld, %lld, 1]",
                       STR_ARG(t->name), (long long)t->dim[0], (long long)t->dim[1], (long long)t->dim[2],
                       (long long)t->dim[3], (long long)d0, (long long)d1, (long long)d2);
    return true;
}

/* --- the two passes ---------------------------------------------------------------------------- */
static bool note_order(binder *b, const tensor *t, err *e)
{
    if (b->n_order == b->max_order) {
        size_t         max  = b->max_order ? 2 * b->max_order : 256;
        const tensor **more = mem_try_resize(b->order, max * sizeof *more);
        if (!more) return err_set(e, ERR_UNAVAILABLE, "no memory for a list of %zu tensors", max);
        b->order     = more;
        b->max_order = max;
    }
    b->order[b->n_order++] = t;
    return true;
}

void bind_begin(binder *b)
{
    b->dry        = false;
    b->prefetcher = prefetch_start(b->order, b->n_order);
}

void bind_end(binder *b)
{
    prefetch_stop(b->prefetcher);
    mem_free(b->order);
    b->order      = NULL;
    b->prefetcher = NULL;
}

static void load_begin(binder *b, const tensor *t)
{
    b->now      = t;
    b->now_done = 0;
}

/* The backend has its own copy of the tensor's first bytes. */
static void load_took(void *binder_, size_t bytes)
{
    binder *b     = binder_;
    tensor  piece = {.data = (const char *)b->now->data + b->now_done, .bytes = bytes - b->now_done};
    checkpoint_drop(b->cp, &piece);
    prefetch_advance(b->prefetcher, piece.bytes);
    b->now_done = bytes;
    b->done += piece.bytes;
    if (b->progress) b->progress(b->progress_ctx, b->done, b->cp->bytes);
}

/* Once more in one piece: a fault maps its neighbours too, those of pieces that were dropped. */
static void load_end(binder *b)
{
    load_took(b, b->now->bytes);
    checkpoint_drop(b->cp, b->now);
}

static bool wants_recoding(const binder *b, const weight_src *src)
{
    double bits = 8.0 * (double)quant_block_bytes(src->type) / quant_block(src->type);
    return b->recode != QUANT_F32 && src->n_in % quant_block(b->recode) == 0 &&
           bits > 8.0 * (double)quant_block_bytes(b->recode) / quant_block(b->recode);
}

/* The matrix's numbers in the binder's type; for mem_free. */
static bool recode_matrix(const binder *b, weight_src *src, void **out, err *e)
{
    size_t rows = (size_t)src->n_out * (size_t)src->n_mats, n = (size_t)src->n_in, from, to, bytes;
    if (!quant_bytes(src->type, n, &from) || !quant_bytes(b->recode, n, &to) || !size_mul(&bytes, rows, to))
        return err_set(e, ERR_LIMIT, "it is too large");
    char  *all = *out = mem_try(bytes);
    float *row        = mem_try_n(n, sizeof *row);
    bool   ok         = (all && row) || err_set(e, ERR_UNAVAILABLE, "no memory to quantise it");
    for (size_t r = 0; ok && r < rows; r++) {
        quant_dequantise(src->type, (const char *)src->data + r * from, row, n);
        ok = quant_quantise(b->recode, row, all + r * to, n) ||
             err_set(e, ERR_FORMAT, "row %zu has a number that is not finite", r);
    }
    mem_free(row);
    src->type = b->recode;
    src->data = all;
    return ok;
}

/* Loads a weight whose source is set up, and counts it. */
static bool load_weight(binder *b, weight **out, weight_src *src, err *e)
{
    owned *w    = b->own;
    void  *copy = NULL;
    bool   ok   = (!wants_recoding(b, src) || recode_matrix(b, src, &copy, e)) && w->o->weight_load(w->o, out, src, e);
    mem_free(copy);
    if (!ok) return false;
    assert(w->n_weights < w->max_each);
    w->weights[w->n_weights++] = *out;
    w->weight_bytes += (*out)->bytes;
    w->n_params += (uint64_t)src->n_in * (uint64_t)src->n_out * (uint64_t)src->n_mats;
    return true;
}

bool bind_matrix(binder *b, weight **out, const tensor *t, int n_in, int n_out, int n_mats, err *e)
{
    weight_src src = {t->type, n_in, n_out, n_mats, .data = t->data};
    if (!bind_check_shape(t, n_in, n_out, n_mats, e)) return false;
    if (b->dry) return note_order(b, t, e);
    load_begin(b, t);
    if (!wants_recoding(b, &src)) src.took = load_took, src.ctx = b;
    if (!load_weight(b, out, &src, e)) return err_wrap(e, "tensor '%.*s'", STR_ARG(t->name));
    load_end(b);
    return true;
}

bool bind_stack(binder *b, weight **out, const tensor *const *t, int n_in, int n_out, int n_mats, err *e)
{
    weight_src src   = {t[0]->type, n_in, n_out, n_mats, .data = NULL};
    size_t     bytes = t[0]->bytes, all;
    for (int i = 0; i < n_mats; i++) {
        if (!bind_check_shape(t[i], n_in, n_out, 1, e)) return false;
        if (t[i]->type != src.type)
            return err_set(e, ERR_FORMAT, "tensors '%.*s' and '%.*s' are of different types", STR_ARG(t[0]->name),
                           STR_ARG(t[i]->name));
        if (b->dry && !note_order(b, t[i], e)) return false;
    }
    if (b->dry) return true;
    char *data = size_mul(&all, bytes, (size_t)n_mats) ? mem_try(all) : NULL;
    if (!data)
        return err_set(e, ERR_UNAVAILABLE, "no memory to stack %d tensors like '%.*s'", n_mats, STR_ARG(t[0]->name));
    for (int i = 0; i < n_mats; i++) {
        load_begin(b, t[i]);
        memcpy(data + (size_t)i * bytes, t[i]->data, bytes);
        load_end(b);
    }
    src.data = data;
    bool ok  = load_weight(b, out, &src, e) || err_wrap(e, "tensor '%.*s'", STR_ARG(t[0]->name));
    mem_free(data);
    return ok;
}

bool bind_pairs(binder *b, weight **out, const tensor *const t[2], int n_in, int n_out, int n_mats, err *e)
{
    weight_src src   = {t[0]->type, n_in, 2 * n_out, n_mats, .data = NULL};
    size_t     bytes = t[0]->bytes / (size_t)n_mats, all;
    assert(t[0]->type == t[1]->type);
    for (int k = 0; k < 2; k++)
        if (!bind_check_shape(t[k], n_in, n_out, n_mats, e) || (b->dry && !note_order(b, t[k], e))) return false;
    if (b->dry) return true;
    char *data = size_mul(&all, t[0]->bytes, 2) ? mem_try(all) : NULL;
    if (!data) return err_set(e, ERR_UNAVAILABLE, "no memory to join tensor '%.*s' to another", STR_ARG(t[0]->name));
    for (int k = 0; k < 2; k++) {
        load_begin(b, t[k]);
        for (size_t i = 0; i < (size_t)n_mats; i++)
            memcpy(data + (2 * i + (size_t)k) * bytes, (const char *)t[k]->data + i * bytes, bytes);
        load_end(b);
    }
    src.data = data;
    bool ok  = load_weight(b, out, &src, e) || err_wrap(e, "tensor '%.*s'", STR_ARG(t[0]->name));
    mem_free(data);
    return ok;
}

bool bind_rows(binder *b, weight **out, const tensor *t, int n_in, int n_out, const int *from, err *e)
{
    weight_src src = {t->type, n_in, n_out, 1, .data = t->data};
    size_t     row;
    if (!quant_can_dequantise(t->type) || !quant_bytes(t->type, (size_t)n_in, &row) ||
        t->bytes != row * (size_t)n_out || t->bytes / (size_t)n_out != row)
        return err_set(e, ERR_FORMAT, "tensor '%.*s' is not a matrix of %d x %d weights", STR_ARG(t->name), n_out,
                       n_in);
    if (b->dry) return note_order(b, t, e);
    char *copy = from ? mem_try(t->bytes) : NULL;
    if (from && !copy) return err_set(e, ERR_UNAVAILABLE, "no memory to reorder tensor '%.*s'", STR_ARG(t->name));
    load_begin(b, t);
    for (int i = 0; copy && i < n_out; i++)
        memcpy(copy + (size_t)i * row, (const char *)t->data + (size_t)from[i] * row, row);
    if (copy) src.data = copy;
    bool ok = load_weight(b, out, &src, e) || err_wrap(e, "tensor '%.*s'", STR_ARG(t->name));
    mem_free(copy);
    if (ok) load_end(b);
    return ok;
}

bool bind_floats(binder *b, dev *out, const tensor *t, size_t n, void (*change)(float *v, size_t n, void *ctx),
                 void *ctx, err *e)
{
    if (!quant_can_dequantise(t->type) ||
        (uint64_t)t->dim[0] * (uint64_t)t->dim[1] * (uint64_t)t->dim[2] * (uint64_t)t->dim[3] != n)
        return err_set(e, ERR_FORMAT, "tensor '%.*s' does not have %zu numbers that can be read as weights",
                       STR_ARG(t->name), n);
    if (b->dry) return note_order(b, t, e);
    load_begin(b, t);
    float *v = mem_try_n(n, sizeof *v);
    if (!v) return err_set(e, ERR_LIMIT, "no memory for tensor '%.*s'", STR_ARG(t->name));
    quant_dequantise(t->type, t->data, v, n);
    if (change) change(v, n, ctx);
    bool ok = owned_put(b->own, out, v, n * sizeof *v, e);
    mem_free(v);
    if (ok) load_end(b);
    return ok;
}

static void multiply(float *v, size_t n, void *scale)
{
    for (size_t i = 0; i < n; i++) v[i] *= *(const float *)scale;
}

bool bind_vector(binder *b, dev *out, const tensor *t, int n, float scale, err *e)
{
    return bind_check_shape(t, n, 1, 1, e) && bind_floats(b, out, t, (size_t)n, multiply, &scale, e);
}

bool bind_scalar(float *out, const tensor *t, err *e)
{
    if (!bind_check_shape(t, 1, 1, 1, e)) return false;
    if (quant_block(t->type) != 1)
        return err_set(e, ERR_FORMAT, "tensor '%.*s' is not a plain number", STR_ARG(t->name));
    quant_dequantise(t->type, t->data, out, 1);
    return true;
}

/* --- rope ---------------------------------------------------------------------------------------*/
bool bind_rope(owned *w, rope_params *out, int D, double theta, double factor, double part, const float *divisor,
               err *e)
{
    float *f     = xnew_n(float, (size_t)D / 2);
    int    n_rot = (int)(part * D / 2);
    for (int i = 0; i < D / 2; i++) {
        double base = pow(theta, -2.0 * i / D) / factor;
        f[i]        = divisor ? (float)(base / (double)divisor[i]) : i < n_rot ? (float)base : 0;
    }
    *out    = (rope_params){.n_dims = D};
    bool ok = owned_put(w, &out->freq, f, (size_t)D / 2 * sizeof *f, e);
    mem_free(f);
    return ok;
}

bool bind_rope_divisors(const checkpoint *cp, int D, float **out, err *e)
{
    const tensor *t = cp->gguf ? tensor_find(cp->tensors, STR("rope_freqs.weight")) : NULL;
    *out            = NULL;
    if (!t) return true;
    if (t->type != QUANT_F32 || t->dim[0] != D / 2 || t->dim[1] != 1)
        return err_set(e, ERR_FORMAT, "tensor 'rope_freqs.weight' is not a list of %d f32 numbers", D / 2);
    *out = xnew_n(float, (size_t)D / 2);
    quant_dequantise(t->type, t->data, *out, (size_t)D / 2);
    for (int i = 0; i < D / 2; i++)
        if (!((*out)[i] > 0)) { /* NaN too */
            mem_free(*out);
            *out = NULL;
            return err_set(e, ERR_FORMAT, "tensor 'rope_freqs.weight' has an entry that is not a positive number");
        }
    return true;
}
