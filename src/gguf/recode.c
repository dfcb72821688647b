#include "gguf/recode.h"

#include "base/mem.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>

enum {
    PIECE       = 64 * 1024, /* elements per thread and turn; a multiple of every block */
    SLAB_PIECES = 64,        /* pieces between two writes */
};
_Static_assert(PIECE % QK_K == 0, "a piece is whole blocks");

/* --- types --------------------------------------------------------------------------------------- */
static bool contains(str s, const char *part) { return memmem(s.s, s.n, part, strlen(part)) != NULL; }

bool recode_is_matrix(const tensor *t)
{
    bool flat = t->dim[1] == 1 && t->dim[2] == 1 && t->dim[3] == 1;
    return !flat && str_ends(t->name, "weight") && !str_ends(t->name, "_norm.weight") &&
           !str_ends(t->name, "ffn_gate_inp.weight") && !contains(t->name, "per_layer_model_proj") &&
           !contains(t->name, ".ssm_conv1d") && !contains(t->name, "_conv_base.") && !contains(t->name, ".ssm_alpha") &&
           !contains(t->name, ".ssm_beta");
}

static bool is_token_table(str name)
{
    return str_is(name, "token_embd.weight") || str_is(name, "per_layer_token_embd.weight");
}

/* Returns the layer number: 7 for blk.7.attn_v.weight; -1 for a tensor outside the layers. */
static int layer_of(str name)
{
    int64_t l;
    size_t  n = 0;
    if (!str_starts(name, "blk.")) return -1;
    str rest = {name.s + 4, name.n - 4};
    while (n < rest.n && rest.s[n] != '.') n++;
    return str_to_i64((str){rest.s, n}, &l) && l >= 0 && l < INT32_MAX ? (int)l : -1;
}

/* Returns whether Q4_K and Q5_K files store this tensor as Q6_K: attn_v and ffn_down, which lose most, in the first
 * and last eighth of the layers and in every third layer between. */
static bool has_more_bits(const recode_rules *r, const tensor *t)
{
    int  l = layer_of(t->name), n = r->n_layers;
    bool tender =
        contains(t->name, ".attn_v.") || contains(t->name, ".ffn_down.") || contains(t->name, ".ffn_down_exps.");
    if (l < 0 || l >= n || !tender || (r->want != QUANT_Q4_K && r->want != QUANT_Q5_K)) return false;
    return l < n / 8 || l >= 7 * n / 8 || (l - n / 8) % 3 == 2;
}

/* Returns a type whose block divides the rows. */
static quant_type that_fits(quant_type type, const tensor *t)
{
    if (t->dim[0] % quant_block(type) && quant_block(type) == QK_K)
        type = type == QUANT_Q4_K     ? QUANT_Q5_0
               : type == QUANT_Q5_K   ? QUANT_Q5_1
               : type == QUANT_IQ4_XS ? QUANT_IQ4_NL
                                      : QUANT_Q8_0;
    if (t->dim[0] % quant_block(type)) type = t->type == QUANT_BF16 ? QUANT_BF16 : QUANT_F16;
    return type;
}

quant_type recode_type(const recode_rules *r, const tensor *t)
{
    quant_type want = r->want;
    if (!recode_is_matrix(t) || !quant_can_dequantise(t->type)) return t->type;
    if (quant_is_float(want)) return want;
    if (str_is(t->name, "output.weight") || (r->tied && is_token_table(t->name)))
        want = want == QUANT_Q8_0 || t->dim[0] % quant_block(want) ? QUANT_Q8_0 : QUANT_Q6_K;
    else if (has_more_bits(r, t))
        want = QUANT_Q6_K;
    return that_fits(want, t);
}

uint32_t recode_file_type(quant_type want)
{
    switch (want) {
    case QUANT_F32: return 0;
    case QUANT_F16: return 1;
    case QUANT_Q4_0: return 2;
    case QUANT_Q4_1: return 3;
    case QUANT_Q8_0: return 7;
    case QUANT_Q5_0: return 8;
    case QUANT_Q5_1: return 9;
    case QUANT_Q4_K: return 15; /* these two as the mixes "medium" */
    case QUANT_Q5_K: return 17;
    case QUANT_Q6_K: return 18;
    case QUANT_IQ4_NL: return 25;
    case QUANT_IQ4_XS: return 30;
    case QUANT_MXFP4: return 38;
    default: return 32; /* BF16 */
    }
}

/* --- slabs --------------------------------------------------------------------------------------- */
struct recoder {
    gguf_writer *w;
    pool        *pool;
    float       *floats; /* [threads][PIECE] */
    char        *out;    /* a slab as written, at most 4 bytes per element */
    size_t       done, total;
    void (*progress)(void *ctx, size_t done, size_t total);
    void *progress_ctx;
    void (*drop)(const void *ctx, const tensor *piece);
    const void                  *drop_ctx;
    const volatile sig_atomic_t *stop;
};

recoder *recoder_new(gguf_writer *w, const recode_options *opt, size_t total_bytes,
                     void (*drop)(const void *ctx, const tensor *piece), const void *drop_ctx)
{
    recoder *r      = xnew(recoder);
    r->w            = w;
    r->pool         = pool_new(opt->n_threads);
    r->floats       = xnew_n(float, (size_t)pool_threads(r->pool) * PIECE);
    r->out          = xalloc((size_t)SLAB_PIECES * PIECE * sizeof(float));
    r->total        = total_bytes;
    r->progress     = opt->progress;
    r->progress_ctx = opt->progress_ctx;
    r->drop         = drop;
    r->drop_ctx     = drop_ctx;
    r->stop         = opt->stop;
    return r;
}

void recoder_free(recoder *r)
{
    if (!r) return;
    pool_free(r->pool);
    mem_free(r->floats);
    mem_free(r->out);
    mem_free(r);
}

typedef struct {
    const recoder *r;
    const char    *src;
    quant_type     from, to;
    size_t         n; /* elements */
    atomic_bool    bad;
} slab;

static size_t bytes_of(quant_type t, size_t n) { return n / (size_t)quant_block(t) * quant_block_bytes(t); }

static void recode_piece(void *ctx, int chunk, int thread)
{
    slab  *s     = ctx;
    size_t first = (size_t)chunk * PIECE, n = s->n - first < PIECE ? s->n - first : PIECE;
    float *x = s->r->floats + (size_t)thread * PIECE;
    quant_dequantise(s->from, s->src + bytes_of(s->from, first), x, n);
    if (!quant_quantise(s->to, x, s->r->out + bytes_of(s->to, first), n)) atomic_store(&s->bad, true);
}

/* Reports a piece of the source as written. */
static void step_on(recoder *r, const tensor *src, const char *data, size_t bytes)
{
    tensor piece = *src;
    piece.data   = data;
    piece.bytes  = bytes;
    if (r->drop) r->drop(r->drop_ctx, &piece);
    r->done += bytes;
    if (r->progress) r->progress(r->progress_ctx, r->done, r->total);
}

static bool put_slab(recoder *r, const tensor *src, const char *data, size_t n, quant_type to, err *e)
{
    slab s = {.r = r, .src = data, .from = src->type, .to = to, .n = n};
    if (to == src->type) return gguf_writer_data(r->w, data, bytes_of(to, n), e);
    pool_run(r->pool, (int)((n + PIECE - 1) / PIECE), recode_piece, &s);
    if (atomic_load(&s.bad))
        return err_set(e, ERR_FORMAT,
                       "tensor '%.*s' has NaN, an infinity or a number beyond 65504, which %s cannot represent",
                       STR_ARG(src->name), quant_name(to));
    return gguf_writer_data(r->w, r->out, bytes_of(to, n), e);
}

bool recoder_put(recoder *r, const tensor *src, quant_type to, err *e)
{
    enum { SLAB = SLAB_PIECES * PIECE };
    size_t n = src->bytes / quant_block_bytes(src->type) * (size_t)quant_block(src->type);
    assert(to == src->type || (quant_can_dequantise(src->type) && quant_can_quantise(to)));
    for (size_t at = 0; at < n; at += SLAB) {
        size_t      k    = n - at < SLAB ? n - at : SLAB;
        const char *data = (const char *)src->data + bytes_of(src->type, at);
        if (r->stop && *r->stop) return err_set(e, ERR_IO, "ended by signal %d", (int)*r->stop);
        if (!put_slab(r, src, data, k, to, e)) return false;
        step_on(r, src, data, bytes_of(src->type, k));
    }
    return true;
}

/* --- whole files --------------------------------------------------------------------------------- */
static bool is_rewritten(str key)
{
    return str_is(key, "general.file_type") || str_is(key, "general.quantization_version") || str_is(key, "split.no") ||
           str_is(key, "split.count") || str_is(key, "split.tensors.count");
}

static recode_rules rules_for(const gguf *g, quant_type want)
{
    recode_rules r    = {.want = want, .tied = !tensor_find(gguf_tensors(g), STR("output.weight"))};
    str          arch = STR("");
    char         key[160];
    int64_t      n;
    gguf_str(gguf_find(g, "general.architecture"), &arch);
    snprintf(key, sizeof key, "%.*s.block_count", STR_ARG(arch));
    if (gguf_int(gguf_find(g, key), &n) && n > 0 && n < INT32_MAX / 8) r.n_layers = (int)n;
    return r;
}

static void put_header(gguf_writer *w, const gguf *g, const recode_rules *rules)
{
    const tensor_table *all       = gguf_tensors(g);
    bool                quantised = false;
    for (size_t i = 0; i < gguf_n_values(g); i++)
        if (!is_rewritten(gguf_value_at(g, i)->key)) gguf_put_value(w, gguf_value_at(g, i));
    for (size_t i = 0; i < tensor_count(all); i++) {
        tensor t = *tensor_at(all, i);
        t.type   = recode_type(rules, &t);
        quantised |= quant_block(t.type) > 1;
        gguf_put_tensor(w, &t);
    }
    gguf_put_u32(w, "general.file_type", recode_file_type(rules->want));
    if (quantised) gguf_put_u32(w, "general.quantization_version", RECODE_FORMAT_VERSION);
}

static void drop_piece(const void *ctx, const tensor *piece) { gguf_drop(ctx, piece); }

static bool copy_tensors(gguf_writer *w, const gguf *g, const recode_rules *rules, const recode_options *opt,
                         size_t *n_lossy, err *e)
{
    const tensor_table *all = gguf_tensors(g);
    recoder            *r   = recoder_new(w, opt, gguf_bytes(g), drop_piece, g);
    bool                ok  = true;
    for (size_t i = 0; ok && i < tensor_count(all); i++) {
        const tensor *t  = tensor_at(all, i);
        quant_type    to = recode_type(rules, t);
        *n_lossy += to != t->type && quant_block(t->type) > 1;
        ok = recoder_put(r, t, to, e);
    }
    recoder_free(r);
    return ok;
}

bool recode_file(const char *in, const char *out, quant_type want, const recode_options *opt, size_t *n_lossy, err *e)
{
    gguf *g;
    *n_lossy = 0;
    if (!gguf_open(&g, in, e)) return false;
    recode_rules rules = rules_for(g, want);
    gguf_writer *w     = gguf_writer_new();
    gguf_writer_protect(w, g);
    put_header(w, g, &rules);
    bool ok = gguf_writer_begin(w, out, opt->part_bytes, e) && copy_tensors(w, g, &rules, opt, n_lossy, e) &&
              gguf_writer_end(w, e);
    gguf_writer_free(w);
    gguf_close(g);
    return ok;
}
