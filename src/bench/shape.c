/* bench/shape.c
 *
 *   image   | header | vector, vector ... | matrix          | matrix ...      |     one range of addresses
 *                      a memfd of its own   |     |           |
 *                                        slab: the blocks of one type, in a memfd, from a page of its own on and round
 *
 * A tensor starts at a page, so the alignment of the file is a page. A slab has whole pages and whole blocks, and its
 * size is not a multiple of a row, so equal rows of a matrix are tens of thousands of rows apart. */
#include "bench/shape.h"

#include "bench/shape_tok.h"

#include "base/mem.h"
#include "gguf/gguf_write.h"
#include "gguf/out_file.h"
#include "model/convert_plan.h"
#include "model/dflash_config.h"
#include "model/gemma4_roles.h"
#include "model/qwen35_roles.h"
#include "ops/sampling_math.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    MAX_ITEMS        = 64 * SHAPE_MAX_LAYERS,
    SLAB_BYTES       = 16 << 20,
    MASK_ID          = 4,
    BLOCK            = 16,
    CONTEXT          = 262144,
    ASSISTANT_LAYERS = 4
};

/* --- the shapes --------------------------------------------------------------------------------- */
typedef struct {
    int  n_layers, period; /* every period-th layer is full */
    int  n_embd, n_ff, n_heads, n_kv_heads, n_kv_heads_full, head_dim, head_dim_full, window, n_vocab;
    int  n_experts, n_used, n_ff_expert;
    int  n_ple, n_kv_own; /* layers with K/V of their own; 0: all */
    bool k_is_v;          /* in full layers */
    struct {
        int n_layers, n_heads, n_kv_heads, head_dim, n_ff, n_captures;
    } draft;
    struct { /* Qwen 3.5; heads of 128 and 4 taps */
        int n_k_heads, n_v_heads, n_ff_shared;
    } delta;
} dims;

const char *const shape_names[]  = {"26b-a4b", "31b", "e2b", "mini", "35b-a3b", "27b", NULL};
static const dims shape_of_all[] = {
    {30, 6, 2816, 2112, 16, 8, 2, 256, 512, 1024, 262144, 128, 8, 704, 0, 0, true, {5, 32, 8, 128, 5632, 6}, {0}},
    {60, 6, 5376, 21504, 32, 16, 4, 256, 512, 1024, 262144, 0, 0, 0, 0, 0, true, {5, 64, 8, 128, 10752, 6}, {0}},
    {35, 5, 1536, 6144, 8, 1, 1, 256, 512, 512, 262144, 0, 0, 0, 256, 15, false, {5, 16, 8, 128, 3072, 6}, {0}},
    {12, 6, 1024, 2048, 8, 4, 1, 128, 256, 512, 32768, 32, 4, 512, 0, 0, true, {2, 16, 4, 64, 2048, 3}, {0}},
    {40, 4, 2048, 0, 16, 0, 2, 0, 256, 0, 248320, 256, 8, 512, 0, 0, false, {8, 32, 4, 128, 6144, 5}, {16, 32, 512}},
    {64, 4, 5120, 17408, 24, 0, 4, 0, 256, 0, 248320, 0, 0, 0, 0, 0, false, {5, 32, 8, 128, 17408, 5}, {16, 48, 0}},
};
const char *const shape_quants[] = {"q4_0",   "q8_0",  "q4_k", "q5_k", "q6_k", "q5_0",
                                    "iq4_xs", "mxfp4", "bf16", "f16",  "f32",  NULL};

/* Like in the real model, a whole period precedes the first layer that shares K/V: full and sliding donors. */
static int own_layers(const dims *d, int n_layers)
{
    int periods = (int)lrint((double)n_layers * d->n_kv_own / d->n_layers / d->period);
    int own     = d->period * (periods > 1 ? periods : 1);
    return !d->n_kv_own || own > n_layers ? n_layers : own;
}

static gemma4_config config_of(const dims *d, int n_layers)
{
    int           own = own_layers(d, n_layers);
    gemma4_config c   = {.n_layers      = n_layers,
                         .n_embd        = d->n_embd,
                         .n_vocab       = d->n_vocab,
                         .n_heads       = d->n_heads,
                         .n_ctx         = CONTEXT,
                         .window        = d->window,
                         .n_ple         = d->n_ple,
                         .n_kv_shared   = n_layers - own,
                         .n_experts     = d->n_experts,
                         .n_used        = d->n_used,
                         .n_ff_expert   = d->n_ff_expert,
                         .eps           = 1e-6f,
                         .softcap       = 30,
                         .theta_full    = 1e6,
                         .theta_sliding = 1e4};
    for (int l = 0; l < n_layers; l++) {
        bool sliding = c.sliding[l] = (l + 1) % d->period != 0 && l + 1 < n_layers;
        c.k_is_v[l]                 = d->k_is_v && !sliding;
        c.n_kv_heads[l]             = sliding ? d->n_kv_heads : d->n_kv_heads_full;
        c.head_dim[l]               = sliding ? d->head_dim : d->head_dim_full;
        c.n_ff[l]                   = l < own ? d->n_ff : 2 * d->n_ff;
    }
    return c;
}

static bool is_qwen(const dims *d) { return d->delta.n_k_heads > 0; }

static qwen35_config qwen_config_of(const dims *d, int n_layers)
{
    qwen35_config c = {.n_layers    = n_layers,
                       .n_embd      = d->n_embd,
                       .n_vocab     = d->n_vocab,
                       .n_ctx       = CONTEXT,
                       .n_heads     = d->n_heads,
                       .n_kv_heads  = d->n_kv_heads_full,
                       .head_dim    = d->head_dim_full,
                       .n_rot       = d->head_dim_full / 4,
                       .n_k_heads   = d->delta.n_k_heads,
                       .n_v_heads   = d->delta.n_v_heads,
                       .delta_dim   = 128,
                       .n_taps      = 4,
                       .n_ff        = d->n_ff,
                       .n_experts   = d->n_experts,
                       .n_used      = d->n_used,
                       .n_ff_expert = d->n_ff_expert,
                       .n_ff_shared = d->delta.n_ff_shared,
                       .eps         = 1e-6f,
                       .theta       = 1e7};
    for (int l = 0; l < n_layers; l++) c.full[l] = (l + 1) % d->period == 0;
    return c;
}

/* --- blocks of random numbers ------------------------------------------------------------------- */
static uint64_t random_at(uint64_t seed, uint64_t i) { return sampling_mix(seed + (i + 1) * 0x9e3779b97f4a7c15u); }

static void fill_random(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t r = random_at(seed, i / 8);
        memcpy(p + i, &r, n - i < 8 ? n - i : 8);
    }
}

/* Sets minima equal to the scales, so that numbers are symmetric about zero: d * scale * (q - middle). */
static void even_minima(uint8_t scales[12])
{
    for (int j = 0; j < 4; j++) {
        scales[4 + j] = scales[j];
        scales[8 + j] = (uint8_t)((scales[8 + j] & 15) * 17);
    }
}

static void set_min(uint16_t *d, uint16_t *min, float scale, float middle)
{
    *d   = f32_to_f16(scale);
    *min = f32_to_f16(middle * scale);
}

/* Random bytes become a block: integers stay as they are, the scale is set. Where integers lean to one side of zero,
 * half of the scales are negative. */
static void set_scale(quant_type t, void *block, float scale)
{
    float turned = *(uint8_t *)block & 1 ? -scale : scale;
    switch (t) {
    case QUANT_Q4_0: ((block_q4_0 *)block)->d = f32_to_f16(turned); break;
    case QUANT_Q5_0: ((block_q5_0 *)block)->d = f32_to_f16(turned); break;
    case QUANT_Q8_0: ((block_q8_0 *)block)->d = f32_to_f16(turned); break;
    case QUANT_Q6_K: ((block_q6_K *)block)->d = f32_to_f16(turned); break;
    case QUANT_IQ4_XS: ((block_iq4_xs *)block)->d = f32_to_f16(turned); break;
    case QUANT_MXFP4: ((block_mxfp4 *)block)->e = (uint8_t)(127 + lrintf(log2f(scale))); break;
    case QUANT_Q4_K:
        set_min(&((block_q4_K *)block)->d, &((block_q4_K *)block)->dmin, scale, 7.5f);
        even_minima(((block_q4_K *)block)->scales);
        break;
    case QUANT_Q5_K:
        set_min(&((block_q5_K *)block)->d, &((block_q5_K *)block)->dmin, scale, 15.5f);
        even_minima(((block_q5_K *)block)->scales);
        break;
    default: assert(!"a type with blocks");
    }
}

/* Standard deviation of a block's numbers when its scale is 1. */
static double spread_of(quant_type t)
{
    enum { BLOCKS = 64 };
    _Alignas(16) uint8_t block[BLOCKS * 256];
    float                x[QK_K];
    double               squares = 0;
    int                  n       = quant_block(t);
    fill_random(block, sizeof block, 1);
    for (int b = 0; b < BLOCKS; b++) {
        set_scale(t, block + b * 256, 1);
        quant_dequantise(t, block + b * 256, x, (size_t)n);
        for (int i = 0; i < n; i++) squares += (double)x[i] * x[i];
    }
    return sqrt(squares / (BLOCKS * n));
}

/* Evenly distributed. */
static void fill_floats(quant_type t, uint8_t *p, size_t bytes, uint64_t seed, double spread)
{
    size_t size = quant_block_bytes(t);
    for (size_t i = 0; i < bytes / size; i++) {
        float    f = (float)(((double)(random_at(seed, i) >> 40) / (1 << 23) - 1) * sqrt(3) * spread);
        uint16_t h = t == QUANT_BF16 ? f32_to_bf16(f) : f32_to_f16(f);
        memcpy(p + i * size, t == QUANT_F32 ? (void *)&f : &h, size);
    }
}

static void fill_slab(quant_type t, uint8_t *p, size_t bytes, uint64_t seed, double spread)
{
    if (quant_is_float(t)) {
        fill_floats(t, p, bytes, seed, spread);
        return;
    }
    float scale = (float)(spread / spread_of(t));
    fill_random(p, bytes, seed);
    for (size_t at = 0; at < bytes; at += quant_block_bytes(t)) set_scale(t, p + at, scale);
}

/* --- what the file holds ------------------------------------------------------------------------ */
typedef struct {
    tensor t;
    char   name[ROLE_NAME_MAX];
    bool   is_vector;
    float  value; /* value of all its numbers */
    int    n_one; /* rope divisors: number of leading ones; 0: not a rope tensor */
} item;

typedef struct {
    int    fd;
    size_t bytes, quantum;
} slab;

typedef struct {
    const shape_spec *spec;
    convert_plan      plan; /* for the keys */
    item             *items;
    int               n_items;
    int               n_embd;
    quant_type        type;
    size_t            page;
    slab              slabs[QUANT_TYPES];
    buf               header;
    char             *at; /* the image */
    size_t            bytes;
} maker;

static item *add_tensor(maker *m, const char *name, int64_t d0, int64_t d1, int64_t d2, quant_type t)
{
    assert(m->n_items < MAX_ITEMS);
    item *i = &m->items[m->n_items++];
    snprintf(i->name, sizeof i->name, "%s", name);
    i->t = (tensor){.name = str_of(i->name), .type = t, .n_dims = d2 > 1 ? 3 : d1 > 1 ? 2 : 1, .dim = {d0, d1, d2, 1}};
    return i;
}

static quant_type type_for(quant_type t, int64_t row)
{
    if (row % quant_block(t) == 0) return t;
    return row % QK == 0 ? QUANT_Q8_0 : QUANT_BF16;
}

static void add_matrix(maker *m, const char *name, int64_t d0, int64_t d1, int64_t d2)
{
    add_tensor(m, name, d0, d1, d2, type_for(m->type, d0));
}

static void add_vector(maker *m, const char *name, int64_t n, float value)
{
    item *i      = add_tensor(m, name, n, 1, 1, QUANT_F32);
    i->is_vector = true;
    i->value     = value;
}

static void add_matrix_of(maker *m, const role_table *t, const void *c, int role, int l)
{
    char name[ROLE_NAME_MAX];
    role_name(t, role, NULL, l, name);
    add_matrix(m, name, role_size(t, c, role, 0, l), role_size(t, c, role, 1, l), role_size(t, c, role, 2, l));
}

static void add_vector_of(maker *m, const role_table *t, const void *c, int role, int l, float value)
{
    char name[ROLE_NAME_MAX];
    role_name(t, role, NULL, l, name);
    add_vector(m, name, role_size(t, c, role, 0, l), value);
}

static void add_role_matrix(maker *m, const gemma4_config *c, gemma4_role r, int l)
{
    add_matrix_of(m, &gemma4_roles, c, (int)r, l);
}

static void add_role_vector(maker *m, const gemma4_config *c, gemma4_role r, int l, float value)
{
    add_vector_of(m, &gemma4_roles, c, (int)r, l, value);
}

/* The size of a sublayer's output relative to the embedding. It makes the last token's share of the final state small;
 * otherwise, with tied embeddings, the next token would repeat it. */
static const float SUBLAYER = 8;

static void add_experts(maker *m, const gemma4_config *c, int l)
{
    int  H = c->n_embd, E = c->n_experts;
    char name[ROLE_NAME_MAX];
    role_name(&gemma4_roles, ROLE_ROUTER, NULL, l, name);
    add_tensor(m, name, H, E, 1, QUANT_F32);
    add_role_vector(m, c, ROLE_ROUTER_SCALE, l,
                    2 * sqrtf((float)H)); /* the router's logits then have a deviation of 2 */
    add_role_vector(m, c, ROLE_EXPERT_SCALE, l, 1);
    add_role_matrix(m, c, ROLE_EXP_GATE_UP, l);
    add_role_matrix(m, c, ROLE_EXP_DOWN, l);
    add_role_vector(m, c, ROLE_FF_NORM_2, l, 1);
    add_role_vector(m, c, ROLE_POST_FF_NORM_1, l, 1);
    add_role_vector(m, c, ROLE_POST_FF_NORM_2, l, 1);
}

static void add_attention(maker *m, const gemma4_config *c, int l)
{
    add_role_vector(m, c, ROLE_ATTN_NORM, l, 1);
    add_role_matrix(m, c, ROLE_ATTN_Q, l);
    add_role_vector(m, c, ROLE_Q_NORM, l, 1);
    if (gemma4_kv_donor(c, l) == l) {
        add_role_matrix(m, c, ROLE_ATTN_K, l);
        add_role_vector(m, c, ROLE_K_NORM, l, 1);
        if (!c->k_is_v[l]) add_role_matrix(m, c, ROLE_ATTN_V, l);
    }
    add_role_matrix(m, c, ROLE_ATTN_O, l);
    add_role_vector(m, c, ROLE_POST_ATTN_NORM, l, SUBLAYER);
}

static void add_layer(maker *m, const gemma4_config *c, int l)
{
    add_attention(m, c, l);
    add_role_vector(m, c, ROLE_FF_NORM, l, 1);
    add_role_matrix(m, c, ROLE_FF_GATE, l);
    add_role_matrix(m, c, ROLE_FF_UP, l);
    add_role_matrix(m, c, ROLE_FF_DOWN, l);
    if (c->n_experts) add_experts(m, c, l);
    add_role_vector(m, c, ROLE_POST_FF_NORM, l, SUBLAYER);
    if (c->n_ple) {
        add_role_matrix(m, c, ROLE_PLE_GATE, l);
        add_role_matrix(m, c, ROLE_PLE_PROJ, l);
        add_role_vector(m, c, ROLE_PLE_NORM, l, 1);
    }
    add_role_vector(m, c, ROLE_LAYER_SCALAR, l, 1);
}

/* Small types leave the embeddings, which are the output matrix too, one more bit or two, as quantisers do. */
static quant_type embed_type(const maker *m, int n_embd)
{
    bool k = m->type == QUANT_Q4_K || m->type == QUANT_Q5_K || m->type == QUANT_IQ4_XS;
    return k && n_embd % QK_K == 0 ? QUANT_Q6_K : type_for(m->type, n_embd);
}

static void add_table(maker *m, const dims *d, const gemma4_config *c)
{
    int H = c->n_embd, half = d->head_dim_full / 2;
    add_tensor(m, "token_embd.weight", H, c->n_vocab, 1, embed_type(m, H));
    add_role_vector(m, c, ROLE_OUT_NORM, 0, 1);
    add_vector(m, "rope_freqs.weight", half, 1e30f);
    m->items[m->n_items - 1].n_one = half / 4;
}

static void add_target(maker *m, const dims *d, const gemma4_config *c)
{
    add_table(m, d, c);
    if (c->n_ple) {
        add_role_matrix(m, c, ROLE_PLE_EMBED, 0);
        add_role_matrix(m, c, ROLE_PLE_MODEL, 0);
        add_role_vector(m, c, ROLE_PLE_MODEL_NORM, 0, 1);
    }
    for (int l = 0; l < c->n_layers; l++) add_layer(m, c, l);
}

/* --- Qwen 3.5 ---*/
static void add_qwen_matrices(maker *m, const qwen35_config *c, int l, const qwen35_role *r, size_t n)
{
    for (size_t i = 0; i < n; i++) add_matrix_of(m, &qwen35_roles, c, (int)r[i], l);
}

static void add_qwen_vector(maker *m, const qwen35_config *c, qwen35_role r, int l, float value)
{
    add_vector_of(m, &qwen35_roles, c, (int)r, l, value);
}

/* A head forgets about a third of its memory with each token. */
static void add_delta(maker *m, const qwen35_config *c, int l)
{
    static const qwen35_role matrices[] = {QWEN35_DELTA_QKV, QWEN35_DELTA_Z, QWEN35_DELTA_B, QWEN35_DELTA_A,
                                           QWEN35_DELTA_OUT};
    char                     name[ROLE_NAME_MAX];
    add_qwen_matrices(m, c, l, matrices, COUNT(matrices));
    role_name(&qwen35_roles, QWEN35_DELTA_CONV, NULL, l, name);
    item *taps = add_tensor(m, name, c->n_taps, role_size(&qwen35_roles, c, QWEN35_DELTA_CONV, 1, l), 1, QUANT_F32);
    taps->is_vector = true;
    taps->value     = 0.5f;
    add_qwen_vector(m, c, QWEN35_DELTA_RATE, l, -0.5f);
    add_qwen_vector(m, c, QWEN35_DELTA_BIAS, l, 0);
    add_qwen_vector(m, c, QWEN35_DELTA_NORM, l, 1);
}

static void add_qwen_attention(maker *m, const qwen35_config *c, int l)
{
    static const qwen35_role matrices[] = {QWEN35_ATTN_Q, QWEN35_ATTN_K, QWEN35_ATTN_V, QWEN35_ATTN_O};
    add_qwen_matrices(m, c, l, matrices, COUNT(matrices));
    add_qwen_vector(m, c, QWEN35_Q_NORM, l, 1);
    add_qwen_vector(m, c, QWEN35_K_NORM, l, 1);
}

static void add_qwen_ffn(maker *m, const qwen35_config *c, int l)
{
    static const qwen35_role dense[]   = {QWEN35_FF_GATE, QWEN35_FF_UP, QWEN35_FF_DOWN};
    static const qwen35_role experts[] = {QWEN35_EXP_GATE,    QWEN35_EXP_UP,    QWEN35_EXP_DOWN,
                                          QWEN35_SHARED_GATE, QWEN35_SHARED_UP, QWEN35_SHARED_DOWN};
    char                     name[ROLE_NAME_MAX];
    add_qwen_vector(m, c, QWEN35_IN_NORM, l, 1);
    add_qwen_vector(m, c, QWEN35_POST_NORM, l, 1);
    if (!c->n_experts) {
        add_qwen_matrices(m, c, l, dense, COUNT(dense));
        return;
    }
    role_name(&qwen35_roles, QWEN35_ROUTER, NULL, l, name);
    add_tensor(m, name, c->n_embd, c->n_experts, 1, QUANT_F32);
    role_name(&qwen35_roles, QWEN35_SHARED_SCALE, NULL, l, name);
    add_tensor(m, name, c->n_embd, 1, 1, QUANT_F32);
    add_qwen_matrices(m, c, l, experts, COUNT(experts));
}

static void add_qwen(maker *m, const qwen35_config *c)
{
    add_tensor(m, "token_embd.weight", c->n_embd, c->n_vocab, 1, embed_type(m, c->n_embd));
    add_tensor(m, "output.weight", c->n_embd, c->n_vocab, 1, embed_type(m, c->n_embd));
    add_qwen_vector(m, c, QWEN35_OUT_NORM, 0, 1);
    for (int l = 0; l < c->n_layers; l++) {
        (c->full[l] ? add_qwen_attention : add_delta)(m, c, l);
        add_qwen_ffn(m, c, l);
    }
}

static void add_role(maker *m, dflash_role r, int l, int64_t d0, int64_t d1)
{
    char name[DFLASH_NAME_MAX];
    dflash_tensor_name(DFLASH_LLAMA, "", r, l, name);
    if (d1 > 1)
        add_matrix(m, name, d0, d1, 1);
    else
        add_vector(m, name, d0, 1);
}

static void add_drafter(maker *m, const dflash_config *c)
{
    int64_t H = c->n_embd, D = c->head_dim, nq = c->n_heads * D, nk = c->n_kv_heads * D, F = c->n_ff;
    const struct {
        dflash_role role;
        int64_t     d0, d1;
    } layer[] = {{DFLASH_ATTN_NORM, H, 1}, {DFLASH_Q, H, nq},     {DFLASH_K, H, nk},     {DFLASH_V, H, nk},
                 {DFLASH_O, nq, H},        {DFLASH_Q_NORM, D, 1}, {DFLASH_K_NORM, D, 1}, {DFLASH_FF_NORM, H, 1},
                 {DFLASH_GATE, H, F},      {DFLASH_UP, H, F},     {DFLASH_DOWN, F, H}};
    add_role(m, DFLASH_FC, 0, c->n_features, H);
    add_role(m, DFLASH_HIDDEN_NORM, 0, H, 1);
    add_role(m, DFLASH_NORM, 0, H, 1);
    for (int l = 0; l < c->n_layers; l++)
        for (size_t i = 0; i < COUNT(layer); i++) add_role(m, layer[i].role, l, layer[i].d0, layer[i].d1);
}

/* --- keys ---------------------------------------------------------------------------------------- */
static void put_token_ids(gguf_writer *w, uint32_t bos, uint32_t eos, uint32_t pad, bool add_bos)
{
    gguf_put_u32(w, "tokenizer.ggml.bos_token_id", bos);
    gguf_put_u32(w, "tokenizer.ggml.eos_token_id", eos);
    gguf_put_u32(w, "tokenizer.ggml.padding_token_id", pad);
    gguf_put_bool(w, "tokenizer.ggml.add_bos_token", add_bos);
}

/* Writes the character that byte-level vocabularies spell byte b by, as UTF-8. */
static void spell_byte(int b, char out[8])
{
    int n = 0; /* bytes before b that have no character of their own */
    for (int i = 0; i < b; i++) n += !((i > 32 && i < 127) || (i > 160 && i != 173));
    int c = (b > 32 && b < 127) || (b > 160 && b != 173) ? b : 256 + n;
    if (c < 128)
        snprintf(out, 8, "%c", c);
    else
        snprintf(out, 8, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 63));
}

/* As put_gemma_tokens, in the scheme of Qwen 3.5. */
static void put_qwen_tokens(gguf_writer *w, int n)
{
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    int32_t                 *kind      = xnew_n(int32_t, (size_t)n);
    gguf_put_str(w, "tokenizer.ggml.model", STR("gpt2"));
    gguf_put_str(w, "tokenizer.ggml.pre", STR("qwen35"));
    gguf_put_strings(w, "tokenizer.ggml.tokens");
    for (int i = 0; i < n; i++) {
        char text[32];
        if (i < 256)
            spell_byte(i, text);
        else if (i < 259)
            snprintf(text, sizeof text, "%s", special[i - 256]);
        else
            snprintf(text, sizeof text, "t%d", i - 259);
        kind[i] = i >= 256 && i < 259 ? 3 : 1;
        gguf_put_item(w, str_of(text));
    }
    gguf_put_array(w, "tokenizer.ggml.token_type", GGUF_I32, kind, (size_t)n);
    gguf_put_strings(w, "tokenizer.ggml.merges");
    gguf_put_item(w, STR("t 1"));
    put_token_ids(w, 256, 258, 256, false);
    mem_free(kind);
}

/* Fillers: names for all tokens, and a byte each for some, so that any text can be read. */
static void put_gemma_tokens(gguf_writer *w, int n)
{
    static const char *const special[] = {"<pad>", "<eos>", "<bos>", "<unk>"};
    int32_t                 *kind      = xnew_n(int32_t, (size_t)n);
    float                   *score     = xnew_n(float, (size_t)n);
    gguf_put_str(w, "tokenizer.ggml.model", STR("gemma4"));
    gguf_put_strings(w, "tokenizer.ggml.tokens");
    for (int i = 0; i < n; i++) {
        char text[32];
        if (i < 4)
            snprintf(text, sizeof text, "%s", special[i]);
        else
            snprintf(text, sizeof text, i < 260 ? "<0x%02X>" : "t%d", i < 260 ? i - 4 : i - 260);
        kind[i] = i < 3 ? 3 : i < 4 ? 2 : i < 260 ? 6 : 1;
        gguf_put_item(w, str_of(text));
    }
    gguf_put_array(w, "tokenizer.ggml.scores", GGUF_F32, score, (size_t)n);
    gguf_put_array(w, "tokenizer.ggml.token_type", GGUF_I32, kind, (size_t)n);
    gguf_put_strings(w, "tokenizer.ggml.merges");
    gguf_put_item(w, STR("t 1"));
    put_token_ids(w, 2, 1, 0, true);
    gguf_put_u32(w, "tokenizer.ggml.unknown_token_id", 3);
    gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", false);
    mem_free(kind);
    mem_free(score);
}

/* mask_id: that of a drafter; -1: none */
static bool put_tokens(maker *m, const dims *d, int mask_id, err *e)
{
    m->plan.n_vocab = d->n_vocab;
    m->plan.mask_id = mask_id;
    if (m->spec->tokenizer) return shape_put_tokenizer(&m->plan, m->spec->tokenizer, e);
    (is_qwen(d) ? put_qwen_tokens : put_gemma_tokens)(m->plan.w, d->n_vocab);
    if (mask_id >= 0) gguf_put_u32(m->plan.w, "tokenizer.ggml.mask_token_id", (uint32_t)mask_id);
    return true;
}

static void put_general(maker *m, const char *arch, const char *name)
{
    gguf_writer *w    = m->plan.w;
    uint32_t     page = (uint32_t)m->page;
    m->plan.arch      = arch;
    gguf_put_str(w, "general.architecture", str_of(arch));
    gguf_put_str(w, "general.name", str_of(name));
    gguf_put_value(w, &(gguf_value){STR("general.alignment"), GGUF_U32, GGUF_U32, 1, (const char *)&page});
}

/* Sets the values of the real generation_config. */
static void put_sampling(gguf_writer *w)
{
    gguf_put_f32(w, "general.sampling.temp", 1);
    gguf_put_i32(w, "general.sampling.top_k", 64);
    gguf_put_f32(w, "general.sampling.top_p", 0.95f);
}

/* --- the image ----------------------------------------------------------------------------------- */
static bool no_memory(err *e) { return err_set(e, ERR_UNAVAILABLE, "no memory for a model: %s", strerror(errno)); }

static bool map_new(char **out, size_t bytes, err *e)
{
    int   fd = memfd_create("shape", MFD_CLOEXEC);
    void *p  = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    *out = p == MAP_FAILED ? NULL : p;
    if (!*out) no_memory(e);
    if (fd >= 0) close(fd);
    return *out;
}

static size_t quantum_of(const maker *m, quant_type t)
{
    size_t n = m->page;
    while (n % quant_block_bytes(t)) n += m->page;
    return n;
}

/* Returns a size with small prime factors, like the widths. */
static size_t coprime_from(size_t n)
{
    while (n % 2 == 0 || n % 3 == 0 || n % 5 == 0 || n % 7 == 0 || n % 11 == 0) n++;
    return n;
}

static bool make_slab(maker *m, quant_type t, err *e)
{
    slab *s = &m->slabs[t];
    if (s->bytes) return true;
    s->quantum = quantum_of(m, t);
    s->bytes   = coprime_from(SLAB_BYTES / s->quantum) * s->quantum;
    s->fd      = memfd_create("slab", MFD_CLOEXEC);
    if (s->fd < 0 || ftruncate(s->fd, (off_t)s->bytes) != 0) return no_memory(e);
    void *p = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (p == MAP_FAILED) return no_memory(e);
    fill_slab(t, p, s->bytes, sampling_mix(m->spec->seed) + (uint64_t)t, 1 / sqrt(m->n_embd));
    munmap(p, s->bytes);
    return true;
}

/* Maps the slab repeatedly, from one of its quanta on. */
static bool map_matrix(maker *m, const item *i, char *to, size_t bytes, err *e)
{
    const slab *s     = &m->slabs[i->t.type];
    uint64_t    place = m->spec->seed;
    for (size_t k = 0; k < i->t.name.n; k++) place = sampling_mix(place + (uint8_t)i->t.name.s[k]);
    size_t at = (size_t)(place % (s->bytes / s->quantum)) * s->quantum;
    for (size_t n; bytes; bytes -= n, to += n, at = 0) {
        n = s->bytes - at < bytes ? s->bytes - at : bytes;
        if (mmap(to, n, PROT_READ, MAP_SHARED | MAP_FIXED, s->fd, (off_t)at) == MAP_FAILED) return no_memory(e);
    }
    return true;
}

static bool put_tensor(maker *m, const item *i, char *to, size_t bytes, err *e)
{
    if (!i->is_vector) return make_slab(m, i->t.type, e) && map_matrix(m, i, to, bytes, e);
    float *v = (float *)to;
    for (int64_t k = 0; k < i->t.dim[0] * i->t.dim[1]; k++) v[k] = k < i->n_one ? 1 : i->value;
    return true;
}

static size_t round_to_pages(const maker *m, size_t n) { return (n + m->page - 1) & ~(m->page - 1); }

static bool build_image(maker *m, err *e)
{
    for (int i = 0; i < m->n_items; i++) {
        if (!tensor_size(&m->items[i].t, e)) return false;
        gguf_put_tensor(m->plan.w, &m->items[i].t);
    }
    if (!gguf_writer_header(m->plan.w, &m->header, e)) return false;
    size_t at = m->bytes = m->header.n;
    for (int i = 0; i < m->n_items; i++) m->bytes += round_to_pages(m, m->items[i].t.bytes);
    if (!map_new(&m->at, m->bytes, e)) return false;
    memcpy(m->at, m->header.p, m->header.n);
    for (int i = 0; i < m->n_items; i++) {
        size_t n = round_to_pages(m, m->items[i].t.bytes);
        if (!put_tensor(m, &m->items[i], m->at + at, n, e)) return false;
        at += n;
    }
    return true;
}

static void start_shape(maker *m, const shape_spec *s, int n_embd)
{
    *m         = (maker){.spec = s, .n_embd = n_embd, .page = (size_t)sysconf(_SC_PAGESIZE)};
    bool known = quant_parse(shape_quants[s->quant], &m->type);
    assert(known);
    m->items  = xnew_n(item, MAX_ITEMS);
    m->plan.w = gguf_writer_new();
    buf_init(&m->header, (size_t)1 << 30);
}

/* ok: the keys were put. Frees m in any case. */
static bool finish_shape(maker *m, shape_image *out, bool ok, err *e)
{
    ok = ok && build_image(m, e);
    if (ok) out->bytes = (str){m->at, m->bytes};
    if (!ok && m->at) munmap(m->at, m->bytes);
    for (int t = 0; t < QUANT_TYPES; t++)
        if (m->slabs[t].bytes && m->slabs[t].fd >= 0) close(m->slabs[t].fd);
    gguf_writer_free(m->plan.w);
    buf_deinit(&m->header);
    mem_free(m->items);
    return ok;
}

static int layers_of(const shape_spec *s)
{
    assert(s->n_layers <= SHAPE_MAX_LAYERS);
    return s->n_layers ? s->n_layers : shape_of_all[s->shape].n_layers;
}

static void name_image(shape_image *out, const shape_spec *s, const char *what)
{
    *out = (shape_image){0};
    snprintf(out->name, sizeof out->name, "random %s%s, %d layers, %s", shape_names[s->shape], what, layers_of(s),
             shape_quants[s->quant]);
}

static void plan_gemma(maker *m, const dims *d)
{
    gemma4_config c = config_of(d, layers_of(m->spec));
    plan_gemma4_keys(&m->plan, &c);
    add_target(m, d, &c);
}

static void plan_qwen(maker *m, const dims *d)
{
    qwen35_config c = qwen_config_of(d, layers_of(m->spec));
    plan_qwen35_keys(&m->plan, &c);
    add_qwen(m, &c);
}

bool shape_target(shape_image *out, const shape_spec *s, err *e)
{
    maker       m;
    const dims *d = &shape_of_all[s->shape];
    name_image(out, s, "");
    start_shape(&m, s, d->n_embd);
    put_general(&m, !is_qwen(d) ? "gemma4" : d->n_experts ? "qwen35moe" : "qwen35", out->name);
    put_sampling(m.plan.w);
    (is_qwen(d) ? plan_qwen : plan_gemma)(&m, d);
    bool ok = put_tokens(&m, d, -1, e);
    return finish_shape(&m, out, ok, e);
}

/* All layers but the last slide, as in the published ones. */
static dflash_config drafter_config(const dims *d, int target_layers)
{
    int           n = d->draft.n_captures < target_layers ? d->draft.n_captures : target_layers;
    dflash_config c = {.n_layers   = d->draft.n_layers,
                       .n_embd     = d->n_embd,
                       .n_ff       = d->draft.n_ff,
                       .n_heads    = d->draft.n_heads,
                       .n_kv_heads = d->draft.n_kv_heads,
                       .head_dim   = d->draft.head_dim,
                       .n_features = n * d->n_embd,
                       .n_vocab    = d->n_vocab,
                       .n_ctx      = CONTEXT,
                       .block      = BLOCK,
                       .n_captures = n,
                       .window     = 2048,
                       .eps        = 1e-6,
                       .theta      = is_qwen(d) ? 1e7 : 1e6,
                       .softcap    = is_qwen(d) ? 0 : 30};
    for (int i = 0; i < n; i++) c.capture[i] = (2 * i + 1) * target_layers / (2 * n);
    for (int l = 0; l + 1 < c.n_layers; l++) c.sliding[l] = true;
    return c;
}

bool shape_drafter(shape_image *out, const shape_spec *s, err *e)
{
    maker         m;
    dflash_config c = drafter_config(&shape_of_all[s->shape], layers_of(s));
    name_image(out, s, "'s drafter");
    start_shape(&m, s, c.n_embd);
    put_general(&m, "dflash", out->name);
    plan_dflash_keys(&m.plan, &c);
    bool ok = put_tokens(&m, &shape_of_all[s->shape], MASK_ID, e);
    add_drafter(&m, &c);
    return finish_shape(&m, out, ok, e);
}

/* As the published assistants, except the head of the small ones, which is a whole matrix here. */
static gemma4_config assistant_config(const dims *d)
{
    bool          small = d->n_ple;
    gemma4_config c     = config_of(d, ASSISTANT_LAYERS);
    c.assistant         = true;
    c.n_embd            = small ? 256 : 1024;
    c.n_heads           = small ? d->n_heads / 2 : d->n_heads;
    c.n_kv_shared       = c.n_layers;
    c.n_ple = c.n_experts = c.n_used = c.n_ff_expert = 0;
    c.softcap                                        = 0;
    for (int l = 0; l < c.n_layers; l++) c.n_ff[l] = 8 * c.n_embd;
    return c;
}

bool shape_assistant(shape_image *out, const shape_spec *s, err *e)
{
    maker         m;
    const dims   *d = &shape_of_all[s->shape];
    gemma4_config c = assistant_config(d);
    name_image(out, s, "'s assistant");
    if (is_qwen(d)) return err_set(e, ERR_INPUT, "%s has no assistant", shape_names[s->shape]);
    start_shape(&m, s, c.n_embd);
    put_general(&m, "gemma4-assistant", out->name);
    plan_gemma4_keys(&m.plan, &c);
    plan_u32(&m.plan, "embedding_length_out", d->n_embd);
    plan_u32(&m.plan, "nextn_predict_layers", c.n_layers);
    add_table(&m, d, &c);
    add_matrix(&m, "nextn.pre_projection.weight", 2 * (int64_t)d->n_embd, c.n_embd, 1);
    add_matrix(&m, "nextn.post_projection.weight", c.n_embd, d->n_embd, 1);
    for (int l = 0; l < c.n_layers; l++) add_layer(&m, &c, l);
    bool ok = put_tokens(&m, d, -1, e);
    return finish_shape(&m, out, ok, e);
}

void shape_free(shape_image *i)
{
    if (i->bytes.s) munmap((void *)(uintptr_t)i->bytes.s, i->bytes.n);
    i->bytes = (str){0};
}

bool shape_write(const shape_image *i, const char *path, const volatile sig_atomic_t *stop, err *e)
{
    enum { PIECE = 64 << 20 };
    out_file f;
    bool     ok = out_file_open(&f, path, e);
    for (size_t at = 0; ok && at < i->bytes.n; at += PIECE) {
        size_t left = i->bytes.n - at;
        ok          = (!(stop && *stop) || err_set(e, ERR_IO, "ended by signal %d", (int)*stop)) &&
             out_file_put(&f, i->bytes.s + at, left < PIECE ? left : PIECE, e);
    }
    ok = ok && out_file_close(&f, e) && out_file_keep(&f, e);
    out_file_discard(&f);
    return ok;
}
