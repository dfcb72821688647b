/* The weights and the forward passes of the encoders. P patches, width h, heads of d.
 *
 *   pooled   z = W_in p + Pos_x[x] + Pos_y[y]
 *            block:  z = z + N_post_attn(Wo attention(rope(N_q(Wq n)), rope(N_k(Wk n)), N(Wv n)))    n = N_in(z)
 *                    z = z + N_post_ff(Wd(gelu(Wg n) * (Wu n)))                                      n = N_pre_ff(z)
 *            cell:   c = mean of its patches * sqrt(h), then (c - bias) * scale if the file has these
 *            soft token = W_proj N(c)                                            all norms are RMS norms
 *   direct   soft token = W_proj N(LN_pos(LN_dense(W LN_patch(p) + b) + Pos_x[x] + Pos_y[y]))
 *   merged   z = W_in p + b + Pos(x, y)
 *            block:  z = z + Wo attention(rope(q), rope(k), v) + bo          q, k, v = W_qkv LN(z) + b
 *                    z = z + W2 gelu(W1 LN(z) + b1) + b2
 *            soft token = W2' gelu_erf(W1' (LN of the 4 patches of a cell, joined) + b1') + b2'
 *
 * Attention is that of a text model over pages: all K and V of a layer are stored first, then every row sees all of
 * them. Rope turns one half of a head's pairs by the column and the other half by the row. In the pooled kind the
 * file's heads have (x, x, y, y) quarters; rows of Wq, Wk and their norms are loaded as (x, y, x, y), which makes pairs
 * (i, i + d/2) and changes no product of q and k. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "model/vision_inside.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum { NAME_MAX_BYTES = 160, POOL_SIDE = 3, MERGED_PATCHES = 4 };
static const float direct_eps = 1e-5f; /* epsilon of the layer norms of the direct kind */

/* --- names ----------------------------------------------------------------------------------------*/
typedef struct {
    vision *v;
    binder  b;
} loader;

/* Finds a tensor by the name of a directory (without "model."), or by that of a GGUF file. %d in both: the layer. */
static const tensor *find(const loader *ld, const char *hf, const char *in_gguf, int layer, const char *suffix,
                          char *name)
{
    char base[NAME_MAX_BYTES - 40];
    snprintf(base, sizeof base, ld->v->gguf ? in_gguf : hf, layer);
    snprintf(name, NAME_MAX_BYTES, "%s%s%s", ld->v->gguf ? "" : "model.", base, suffix);
    const tensor *t = tensor_find(ld->b.cp->tensors, str_of(name));
    if (!t && !ld->v->gguf) t = tensor_find(ld->b.cp->tensors, str_of(name + strlen("model.")));
    return t;
}

static bool require(const loader *ld, const tensor **out, const char *hf, const char *in_gguf, int layer,
                    const char *suffix, err *e)
{
    char name[NAME_MAX_BYTES];
    *out = find(ld, hf, in_gguf, layer, suffix, name);
    return *out || err_set(e, ERR_FORMAT, "tensor '%s' is missing", name);
}

/* --- binding --------------------------------------------------------------------------------------*/
static bool load_vector(loader *ld, dev *out, const char *hf, const char *in_gguf, int layer, const char *suffix, int n,
                        err *e)
{
    const tensor *t;
    return require(ld, &t, hf, in_gguf, layer, suffix, e) && bind_floats(&ld->b, out, t, (size_t)n, NULL, NULL, e);
}

/* Reads a bound of a linear map; it is absent from files without bounds. */
static bool read_bound(const loader *ld, vision_linear *l, float *out, const char *hf, const char *in_gguf, int layer,
                       const char *suffix, err *e)
{
    char          name[NAME_MAX_BYTES];
    const tensor *t = find(ld, hf, in_gguf, layer, suffix, name);
    if (!t) return true;
    l->clipped = true;
    return bind_scalar(out, t, e);
}

static bool load_bounds(const loader *ld, vision_linear *l, const char *hf, const char *in_gguf, int layer, err *e)
{
    l->in[0] = l->out[0] = -INFINITY;
    l->in[1] = l->out[1] = INFINITY;
    return read_bound(ld, l, &l->in[0], hf, in_gguf, layer, ".input_min", e) &&
           read_bound(ld, l, &l->in[1], hf, in_gguf, layer, ".input_max", e) &&
           read_bound(ld, l, &l->out[0], hf, in_gguf, layer, ".output_min", e) &&
           read_bound(ld, l, &l->out[1], hf, in_gguf, layer, ".output_max", e);
}

/* Loads a linear map of a pooled tower. from: the file's row of each row; NULL: the same. */
static bool load_clipped(loader *ld, vision_linear *l, const char *hf, const char *in_gguf, int layer, int n_in,
                         int n_out, const int *from, err *e)
{
    char          name[NAME_MAX_BYTES];
    const tensor *t = find(ld, hf, in_gguf, layer, ".linear.weight", name);
    if (!t && !require(ld, &t, hf, in_gguf, layer, ".weight", e)) return false;
    return bind_rows(&ld->b, &l->w, t, n_in, n_out, from, e) && load_bounds(ld, l, hf, in_gguf, layer, e);
}

static bool load_linear(loader *ld, vision_linear *l, const char *hf, const char *in_gguf, int layer, int n_in,
                        int n_out, bool bias, err *e)
{
    const tensor *t;
    return require(ld, &t, hf, in_gguf, layer, ".weight", e) && bind_rows(&ld->b, &l->w, t, n_in, n_out, NULL, e) &&
           (!bias || load_vector(ld, &l->bias, hf, in_gguf, layer, ".bias", n_out, e));
}

static bool load_norm(loader *ld, dev *w, dev *b, const char *hf, const char *in_gguf, int layer, int n, err *e)
{
    return load_vector(ld, w, hf, in_gguf, layer, ".weight", n, e) &&
           load_vector(ld, b, hf, in_gguf, layer, ".bias", n, e);
}

/* Copies a table of n_rows positions to the host. */
static bool load_table(loader *ld, const char *hf, const char *in_gguf, int n_rows, err *e)
{
    vision       *v = ld->v;
    const tensor *t;
    size_t        n = (size_t)n_rows * (size_t)v->c.width, row;
    if (!require(ld, &t, hf, in_gguf, 0, "", e)) return false;
    if (!quant_can_dequantise(t->type) || !quant_bytes(t->type, (size_t)v->c.width, &row) ||
        (uint64_t)t->dim[0] * (uint64_t)t->dim[1] * (uint64_t)t->dim[2] * (uint64_t)t->dim[3] != n)
        return err_set(e, ERR_FORMAT, "tensor '%.*s' does not have %d positions of %d numbers", STR_ARG(t->name),
                       n_rows, v->c.width);
    if (ld->b.dry) return true;
    v->table = (vision_table){.type = t->type, .row_bytes = row, .data = mem_try((size_t)n_rows * row)};
    if (!v->table.data) return err_set(e, ERR_UNAVAILABLE, "no memory for the table of positions");
    memcpy(v->table.data, t->data, (size_t)n_rows * row);
    return true;
}

/* Copies a vector to the host. */
static bool load_host(loader *ld, float **out, const char *hf, const char *in_gguf, err *e)
{
    char          name[NAME_MAX_BYTES];
    int           n = ld->v->c.width;
    const tensor *t = find(ld, hf, in_gguf, 0, "", name);
    if (!t) return true;
    if (!bind_check_shape(t, n, 1, 1, e)) return false;
    if (ld->b.dry) return true;
    *out = xnew_n(float, (size_t)n);
    quant_dequantise(t->type, t->data, *out, (size_t)n);
    return true;
}

/* Writes the file's place of each element of n_heads heads: (x, y, x, y) quarters of (x, x, y, y). */
static void quarter_order(int *from, int n_heads, int d)
{
    static const int quarter[] = {0, 2, 1, 3};
    for (int i = 0; i < n_heads * d; i++) from[i] = i / d * d + quarter[i % d / (d / 4)] * (d / 4) + i % (d / 4);
}

static void reorder(float *x, size_t n, void *from)
{
    float *copy = xnew_n(float, n);
    memcpy(copy, x, n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = copy[((const int *)from)[i]];
    mem_free(copy);
}

#define HF_LAYER   "vision_tower.encoder.layers.%d."
#define GGUF_LAYER "v.blk.%d."

static bool load_pooled_layer(loader *ld, int l, int *from, err *e)
{
    const vision_config *c = &ld->v->c;
    vision_layer        *y = &ld->v->layers[l];
    int                  h = c->width, D = c->n_heads * c->head_dim;
    const tensor        *n_q, *n_k;
#define NORM(to, hf, in_gguf) load_vector(ld, &y->to, HF_LAYER hf, GGUF_LAYER in_gguf, l, ".weight", h, e)
#define MAP(to, hf, in_gguf, n_in, n_out, from)                                                                        \
    load_clipped(ld, &y->to, HF_LAYER hf, GGUF_LAYER in_gguf, l, n_in, n_out, from, e)
    return NORM(n_in, "input_layernorm", "ln1") && NORM(n_post_attn, "post_attention_layernorm", "attn_post_norm") &&
           NORM(n_pre_ff, "pre_feedforward_layernorm", "ln2") &&
           NORM(n_post_ff, "post_feedforward_layernorm", "ffn_post_norm") &&
           MAP(q, "self_attn.q_proj", "attn_q", h, D, from) && MAP(k, "self_attn.k_proj", "attn_k", h, D, from) &&
           MAP(v, "self_attn.v_proj", "attn_v", h, D, NULL) && MAP(o, "self_attn.o_proj", "attn_out", D, h, NULL) &&
           MAP(gate, "mlp.gate_proj", "ffn_gate", h, c->n_ff, NULL) &&
           MAP(up, "mlp.up_proj", "ffn_up", h, c->n_ff, NULL) &&
           MAP(down, "mlp.down_proj", "ffn_down", c->n_ff, h, NULL) &&
           require(ld, &n_q, HF_LAYER "self_attn.q_norm", GGUF_LAYER "attn_q_norm", l, ".weight", e) &&
           require(ld, &n_k, HF_LAYER "self_attn.k_norm", GGUF_LAYER "attn_k_norm", l, ".weight", e) &&
           bind_floats(&ld->b, &y->n_q, n_q, (size_t)c->head_dim, reorder, from, e) &&
           bind_floats(&ld->b, &y->n_k, n_k, (size_t)c->head_dim, reorder, from, e);
#undef NORM
#undef MAP
}

static bool load_pooled(loader *ld, err *e)
{
    vision *v = ld->v;
    int     h = v->c.width, D = v->c.n_heads * v->c.head_dim, n_in = patch_values(&v->c.rules.image);
    int    *from = xnew_n(int, (size_t)D);
    quarter_order(from, v->c.n_heads, v->c.head_dim);
    bool ok =
        load_linear(ld, &v->patch[0], "vision_tower.patch_embedder.input_proj", "v.patch_embd", 0, n_in, h, false, e) &&
        load_table(ld, "vision_tower.patch_embedder.position_embedding_table", "v.position_embd.weight", 2 * v->c.n_pos,
                   e) &&
        load_host(ld, &v->std_bias, "vision_tower.std_bias", "v.std_bias", e) &&
        load_host(ld, &v->std_scale, "vision_tower.std_scale", "v.std_scale", e) &&
        load_linear(ld, &v->proj, "embed_vision.embedding_projection", "mm.input_projection", 0, h, v->c.n_out, false,
                    e);
    for (int l = 0; ok && l < v->c.n_layers; l++) ok = load_pooled_layer(ld, l, from, e);
    mem_free(from);
    return ok;
}

static bool load_direct(loader *ld, err *e)
{
    vision *v = ld->v;
    int     h = v->c.width, n_in = patch_values(&v->c.rules.image);
    bool    ok = load_norm(ld, &v->n_patch, &v->b_patch, "vision_embedder.patch_ln1", "v.patch_norm.1", 0, n_in, e) &&
              load_linear(ld, &v->patch[0], "vision_embedder.patch_dense", "v.patch_embd", 0, n_in, h, true, e) &&
              load_norm(ld, &v->n_dense, &v->b_dense, "vision_embedder.patch_ln2", "v.patch_norm.2", 0, h, e) &&
              load_norm(ld, &v->n_pos, &v->b_pos, "vision_embedder.pos_norm", "v.patch_norm.3", 0, h, e) &&
              load_table(ld, "vision_embedder.pos_embedding", "v.position_embd.weight", 2 * v->c.n_pos, e) &&
              load_linear(ld, &v->proj, "embed_vision.embedding_projection", "mm.input_projection", 0, h, v->c.n_out,
                          false, e);
    v->table.pairs = !v->gguf;
    return ok;
}

#undef HF_LAYER
#define HF_LAYER "visual.blocks.%d."

static bool load_merged_layer(loader *ld, int l, err *e)
{
    const vision_config *c = &ld->v->c;
    vision_layer        *y = &ld->v->layers[l];
    int                  h = c->width;
#define MAP(to, hf, in_gguf, n_in, n_out)                                                                              \
    load_linear(ld, &y->to, HF_LAYER hf, GGUF_LAYER in_gguf, l, n_in, n_out, true, e)
    return load_norm(ld, &y->n_in, &y->b_in, HF_LAYER "norm1", GGUF_LAYER "ln1", l, h, e) &&
           load_norm(ld, &y->n_pre_ff, &y->b_pre_ff, HF_LAYER "norm2", GGUF_LAYER "ln2", l, h, e) &&
           MAP(q, "attn.qkv", "attn_qkv", h, 3 * h) && MAP(o, "attn.proj", "attn_out", h, h) &&
           MAP(up, "mlp.linear_fc1", "ffn_up", h, c->n_ff) && MAP(down, "mlp.linear_fc2", "ffn_down", c->n_ff, h);
#undef MAP
}

static bool load_merged(loader *ld, err *e)
{
    vision *v = ld->v;
    int     h = v->c.width, n_in = patch_values(&v->c.rules.image), n_parts = v->gguf ? 2 : 1;
    bool ok = load_linear(ld, &v->patch[0], "visual.patch_embed.proj", "v.patch_embd", 0, n_in / n_parts, h, true, e) &&
              load_table(ld, "visual.pos_embed.weight", "v.position_embd.weight", v->c.n_pos, e) &&
              load_norm(ld, &v->n_patch, &v->b_patch, "visual.merger.norm", "v.post_ln", 0, h, e) &&
              load_linear(ld, &v->fc, "visual.merger.linear_fc1", "mm.0", 0, MERGED_PATCHES * h, MERGED_PATCHES * h,
                          true, e) &&
              load_linear(ld, &v->proj, "visual.merger.linear_fc2", "mm.2", 0, MERGED_PATCHES * h, v->c.n_out, true, e);
    if (ok && n_parts == 2) {
        const tensor *t;
        ok = require(ld, &t, "", "v.patch_embd.weight.1", 0, "", e) &&
             bind_rows(&ld->b, &v->patch[1].w, t, n_in / 2, h, NULL, e);
    }
    for (int l = 0; ok && l < v->c.n_layers; l++) ok = load_merged_layer(ld, l, e);
    return ok;
}

static bool load_all(loader *ld, err *e)
{
    switch (ld->v->c.kind) {
    case VISION_POOLED: return load_pooled(ld, e);
    case VISION_DIRECT: return load_direct(ld, e);
    default: return load_merged(ld, e);
    }
}

/* --- scratch --------------------------------------------------------------------------------------*/
static bool init_rope(vision *v, err *e)
{
    int     d = v->c.head_dim, half = d / 2, quarter = d / 4;
    float  *freq = xnew_n(float, (size_t)half);
    int32_t section[OPS_MAX_HEAD_DIM / 2];
    for (int i = 0; i < half; i++) {
        freq[i]    = (float)pow(v->c.theta, -2.0 * (i % quarter) / half);
        section[i] = i >= quarter;
    }
    v->rope = (rope_params){.n_dims = d};
    bool ok = owned_put(&v->own, &v->rope.freq, freq, (size_t)half * sizeof *freq, e) &&
              owned_put(&v->own, &v->rope.section, section, (size_t)half * sizeof *section, e);
    mem_free(freq);
    return ok;
}

static bool take(vision *v, dev *out, int n, err *e)
{
    return owned_buf(&v->own, out, (size_t)VISION_ROWS * (size_t)n * sizeof(float), e);
}

static int widest(const vision *v)
{
    const vision_config *c = &v->c;
    int n = max_int(max_int(patch_values(&c->rules.image), c->n_ff), max_int(c->width, c->n_heads * c->head_dim));
    return c->kind == VISION_MERGED ? max_int(n, MERGED_PATCHES * c->width) : n;
}

static bool take_scratch(vision *v, err *e)
{
    const vision_config *c = &v->c;
    int                  h = c->width, D = c->n_heads * c->head_dim;
    int                  wide = max_int(widest(v), c->kind == VISION_MERGED ? 3 * h : h);
    bool ok = take(v, &v->n, max_int(h, max_int(D, c->n_ff)), e) && take(v, &v->t, max_int(h, c->n_out), e) &&
              take(v, &v->in, wide, e);
    if (!ok || c->kind == VISION_DIRECT) return ok;
    return take(v, &v->heads, D, e) && take(v, &v->q_rows, D, e) && take(v, &v->k, D, e) && take(v, &v->v, D, e) &&
           take(v, &v->gate, c->n_ff, e) && take(v, &v->up, max_int(c->n_ff, h), e) && init_rope(v, e);
}

static bool load_from(vision *v, const checkpoint *cp, err *e)
{
    loader       ld  = {.v = v, .b = {.cp = cp, .own = &v->own, .dry = true}};
    queue_limits lim = {.max_rows = VISION_ROWS, .max_in = widest(v), .max_vocab = 1};
    owned_init(&v->own, v->o, v->c.n_layers * 32 + 64);
    v->layers = xnew_n(vision_layer, (size_t)v->c.n_layers + 1);
    bool ok   = load_all(&ld, e) && v->o->queue_new(v->o, &v->q, &lim, e);
    v->own.q  = v->q;
    if (ok) bind_begin(&ld.b);
    ok = ok && load_all(&ld, e) && take_scratch(v, e);
    bind_end(&ld.b);
    return ok;
}

void vision_unload(vision *v)
{
    owned_free(&v->own);
    if (v->q) v->o->queue_free(v->q);
    mem_free(v->layers);
    mem_free(v->table.data);
    mem_free(v->std_bias);
    mem_free(v->std_scale);
    v->q        = NULL;
    v->layers   = NULL;
    v->table    = (vision_table){0};
    v->std_bias = v->std_scale = NULL;
    v->loaded                  = false;
}

bool vision_load(vision *v, err *e)
{
    checkpoint *cp;
    double      start = clock_s();
    if (v->o->n_threads && v->bytes > mem_available())
        return err_set(e, ERR_UNAVAILABLE, "its weights need %.1f GB of memory, and %.1f GB are free",
                       (double)v->bytes / 1e9, (double)mem_available() / 1e9);
    if (!checkpoint_open(&cp, v->path, e)) return false;
    v->loaded = load_from(v, cp, e);
    checkpoint_close(cp);
    if (!v->loaded)
        vision_unload(v);
    else
        log_event(LOG_INFO, "vision", "encoder of pictures: %.2f GB of weights in %.1f s",
                  (double)v->own.weight_bytes / 1e9, clock_s() - start);
    return v->loaded;
}

/* --- passes ---------------------------------------------------------------------------------------*/
static void linear(vision *v, dev y, const vision_linear *l, dev x, int n, bias_act act)
{
    const ops *o = v->o;
    if (l->clipped) {
        assert(y.p != v->in.p);
        o->clamp(v->q, v->in, x, (size_t)n * (size_t)l->w->n_in, l->in[0], l->in[1]);
        x = v->in;
    }
    o->matmul(v->q, y, l->w, x, n);
    if (l->clipped) o->clamp(v->q, y, y, (size_t)n * (size_t)l->w->n_out, l->out[0], l->out[1]);
    if (l->bias.p) o->bias(v->q, y, y, l->bias, n, l->w->n_out, act);
}

static dev z_at(const vision *v, int row) { return dev_at_f32(v->z, (size_t)row * (size_t)v->c.width); }

/* The rows of attention of n patches from `first` on, of P. */
static step_rows rows_at(const vision *v, int first, int n, int P)
{
    size_t    i = (size_t)first * sizeof(int32_t), all = (size_t)P * sizeof(int32_t);
    step_rows r = {.n_rows      = n,
                   .pos         = dev_at(v->rows, i),
                   .lane        = dev_at(v->rows, all + i),
                   .parent      = dev_at(v->rows, 2 * all + i),
                   .root        = dev_at(v->rows, 3 * all + i),
                   .last        = dev_at(v->rows, 4 * all + i),
                   .section_pos = dev_at(v->rows, 5 * all + 3 * i)};
    r.slot      = r.pos;
    return r;
}

void vision_embed(vision *v, int P, const float *pos)
{
    const ops *o = v->o;
    size_t     h = (size_t)v->c.width, values = (size_t)patch_values(&v->c.rules.image);
    int        n_parts = v->patch[1].w ? 2 : 1;
    for (int i = 0, n; i < P; i += n) {
        n     = min_int(P - i, VISION_ROWS);
        dev z = z_at(v, i);
        for (int k = 0; k < n_parts; k++) {
            size_t part = values / (size_t)n_parts;
            if (n_parts == 1) {
                o->upload(v->q, v->in, v->host + (size_t)i * values, (size_t)n * values * sizeof(float));
            } else {
                for (int r = 0; r < n; r++)
                    o->upload(v->q, dev_at_f32(v->in, (size_t)r * part),
                              v->host + ((size_t)i + (size_t)r) * values + (size_t)k * part, part * sizeof(float));
            }
            o->matmul(v->q, k ? v->t : z, v->patch[k].w, v->in, n);
            if (k) o->add(v->q, z, z, v->t, (size_t)n * h, 1);
        }
        if (v->patch[0].bias.p) o->bias(v->q, z, z, v->patch[0].bias, n, v->c.width, BIAS_PLAIN);
        o->upload(v->q, v->t, pos + (size_t)i * h, (size_t)n * h * sizeof(float));
        o->add(v->q, z, z, v->t, (size_t)n * h, 1);
    }
}

static void attend(vision *v, const step_rows *r, float scale)
{
    v->o->attention(v->q, v->heads, v->q_rows, v->c.n_heads, &v->kv, 0, r, scale, 0);
}

/* --- pooled ---------------------------------------------------------------------------------------*/
static void store_pooled(vision *v, const vision_layer *y, int first, int n, int P)
{
    const ops           *o = v->o;
    const vision_config *c = &v->c;
    step_rows            r = rows_at(v, first, n, P);
    o->rms_norm(v->q, v->n, z_at(v, first), y->n_in, n, c->width, c->eps);
    linear(v, v->k, &y->k, v->n, n, BIAS_PLAIN);
    linear(v, v->v, &y->v, v->n, n, BIAS_PLAIN);
    o->rms_norm(v->q, v->k, v->k, y->n_k, n * c->n_heads, c->head_dim, c->eps);
    o->rms_norm(v->q, v->v, v->v, (dev){0}, n * c->n_heads, c->head_dim, c->eps);
    o->rope(v->q, v->k, &r, c->n_heads, c->head_dim, &v->rope);
    o->kv_store(v->q, &v->kv, 0, &r, v->k, v->v);
}

static void run_pooled_rows(vision *v, const vision_layer *y, int first, int n, int P)
{
    const ops           *o = v->o;
    const vision_config *c = &v->c;
    dev                  z = z_at(v, first);
    step_rows            r = rows_at(v, first, n, P);
    o->rms_norm(v->q, v->n, z, y->n_in, n, c->width, c->eps);
    linear(v, v->q_rows, &y->q, v->n, n, BIAS_PLAIN);
    o->rms_norm(v->q, v->q_rows, v->q_rows, y->n_q, n * c->n_heads, c->head_dim, c->eps);
    o->rope(v->q, v->q_rows, &r, c->n_heads, c->head_dim, &v->rope);
    attend(v, &r, 1);
    linear(v, v->t, &y->o, v->heads, n, BIAS_PLAIN);
    o->rms_norm_add(v->q, z, z, v->t, y->n_post_attn, n, c->width, c->eps, 1);
    o->rms_norm(v->q, v->n, z, y->n_pre_ff, n, c->width, c->eps);
    linear(v, v->gate, &y->gate, v->n, n, BIAS_PLAIN);
    linear(v, v->up, &y->up, v->n, n, BIAS_PLAIN);
    o->gated(v->q, v->gate, v->gate, c->n_ff, v->up, c->n_ff, n, c->n_ff, ACT_GELU_TANH);
    linear(v, v->t, &y->down, v->gate, n, BIAS_PLAIN);
    o->rms_norm_add(v->q, z, z, v->t, y->n_post_ff, n, c->width, c->eps, 1);
}

/* Averages the patches of a cell, in v->host, as the file asks. */
static void pool_cell(const vision *v, int cols, int cx, int cy, float *out)
{
    size_t h    = (size_t)v->c.width;
    double norm = sqrt(v->c.width) / (POOL_SIDE * POOL_SIDE);
    for (size_t i = 0; i < h; i++) {
        double sum = 0;
        for (int y = 0; y < POOL_SIDE; y++)
            for (int x = 0; x < POOL_SIDE; x++)
                sum += v->host[((size_t)(POOL_SIDE * cy + y) * (size_t)cols + (size_t)(POOL_SIDE * cx + x)) * h + i];
        sum *= norm;
        if (v->std_bias) sum -= v->std_bias[i];
        if (v->std_scale) sum *= v->std_scale[i];
        out[i] = (float)sum;
    }
}

/* Projects n rows of v->host to soft tokens. */
static void project(vision *v, const float *from, int n_rows, float *out)
{
    const ops           *o = v->o;
    const vision_config *c = &v->c;
    size_t               h = (size_t)c->width, H = (size_t)c->n_out;
    for (int i = 0, n; i < n_rows; i += n) {
        n = min_int(n_rows - i, VISION_ROWS);
        o->upload(v->q, v->n, from + (size_t)i * h, (size_t)n * h * sizeof(float));
        o->rms_norm(v->q, v->n, v->n, (dev){0}, n, c->width, c->eps);
        o->matmul(v->q, v->t, v->proj.w, v->n, n);
        o->download(v->q, out + (size_t)i * H, v->t, (size_t)n * H * sizeof(float));
        o->sync(v->q);
    }
}

void vision_run_pooled(vision *v, int cols, int rows, float *out)
{
    int    P = cols * rows, cw = cols / POOL_SIDE, n_cells = cw * (rows / POOL_SIDE);
    size_t h = (size_t)v->c.width;
    for (int l = 0; l < v->c.n_layers; l++) {
        for (int i = 0; i < P; i += VISION_ROWS) store_pooled(v, &v->layers[l], i, min_int(P - i, VISION_ROWS), P);
        for (int i = 0; i < P; i += VISION_ROWS) run_pooled_rows(v, &v->layers[l], i, min_int(P - i, VISION_ROWS), P);
    }
    v->o->download(v->q, v->host, v->z, (size_t)P * h * sizeof(float));
    v->o->sync(v->q);
    float *cells = xnew_n(float, (size_t)n_cells *h);
    for (int i = 0; i < n_cells; i++) pool_cell(v, cols, i % cw, i / cw, cells + (size_t)i * h);
    project(v, cells, n_cells, out);
    mem_free(cells);
}

/* --- direct ---------------------------------------------------------------------------------------*/
void vision_run_direct(vision *v, int P, const float *pos, float *out)
{
    const ops           *o = v->o;
    const vision_config *c = &v->c;
    int                  h = c->width, values = patch_values(&c->rules.image);
    for (int i = 0, n; i < P; i += n) {
        n = min_int(P - i, VISION_ROWS);
        o->upload(v->q, v->in, v->host + (size_t)i * (size_t)values, (size_t)n * (size_t)values * sizeof(float));
        o->layer_norm(v->q, v->in, v->in, v->n_patch, v->b_patch, n, values, direct_eps);
        linear(v, v->n, &v->patch[0], v->in, n, BIAS_PLAIN);
        o->layer_norm(v->q, v->n, v->n, v->n_dense, v->b_dense, n, h, direct_eps);
        o->upload(v->q, v->t, pos + (size_t)i * (size_t)h, (size_t)n * (size_t)h * sizeof(float));
        o->add(v->q, v->n, v->n, v->t, (size_t)n * (size_t)h, 1);
        o->layer_norm(v->q, v->n, v->n, v->n_pos, v->b_pos, n, h, direct_eps);
        o->rms_norm(v->q, v->n, v->n, (dev){0}, n, h, c->eps);
        o->matmul(v->q, v->t, v->proj.w, v->n, n);
        o->download(v->q, out + (size_t)i * (size_t)c->n_out, v->t, (size_t)n * (size_t)c->n_out * sizeof(float));
        o->sync(v->q);
    }
}

/* --- merged ---------------------------------------------------------------------------------------*/
/* q, k or v of n rows, part 0, 1 or 2 of the joined map's result in v->in. */
static void take_part(vision *v, dev y, int part, int n)
{
    int h = v->c.width;
    v->o->copy_rows(v->q, y, h, dev_at_f32(v->in, (size_t)part * (size_t)h), 3 * h, (dev){0}, n, h);
}

/* Makes q, k and v of rows, which are needed twice: K and V of all rows first. */
static void make_merged(vision *v, const vision_layer *y, int first, int n)
{
    v->o->layer_norm(v->q, v->n, z_at(v, first), y->n_in, y->b_in, n, v->c.width, v->c.eps);
    linear(v, v->in, &y->q, v->n, n, BIAS_PLAIN);
}

static void store_merged(vision *v, const vision_layer *y, int first, int n, int P)
{
    step_rows r = rows_at(v, first, n, P);
    make_merged(v, y, first, n);
    take_part(v, v->k, 1, n);
    take_part(v, v->v, 2, n);
    v->o->rope(v->q, v->k, &r, v->c.n_heads, v->c.head_dim, &v->rope);
    v->o->kv_store(v->q, &v->kv, 0, &r, v->k, v->v);
}

static void run_merged_rows(vision *v, const vision_layer *y, int first, int n, int P)
{
    const ops           *o   = v->o;
    const vision_config *c   = &v->c;
    dev                  z   = z_at(v, first);
    size_t               all = (size_t)n * (size_t)c->width;
    step_rows            r   = rows_at(v, first, n, P);
    make_merged(v, y, first, n);
    take_part(v, v->q_rows, 0, n);
    o->rope(v->q, v->q_rows, &r, c->n_heads, c->head_dim, &v->rope);
    attend(v, &r, 1 / sqrtf((float)c->head_dim));
    linear(v, v->t, &y->o, v->heads, n, BIAS_PLAIN);
    o->add(v->q, z, z, v->t, all, 1);
    o->layer_norm(v->q, v->n, z, y->n_pre_ff, y->b_pre_ff, n, c->width, c->eps);
    linear(v, v->up, &y->up, v->n, n, BIAS_GELU_TANH);
    linear(v, v->t, &y->down, v->up, n, BIAS_PLAIN);
    o->add(v->q, z, z, v->t, all, 1);
}

/* Joined cells are rows of 4 h numbers: a fourth of the rows of a pass. */
static void merge_rows(vision *v, int first, int n, float *out)
{
    const ops           *o     = v->o;
    const vision_config *c     = &v->c;
    int                  cells = n / MERGED_PATCHES;
    o->layer_norm(v->q, v->n, z_at(v, first), v->n_patch, v->b_patch, n, c->width, c->eps);
    linear(v, v->up, &v->fc, v->n, cells, BIAS_GELU);
    linear(v, v->t, &v->proj, v->up, cells, BIAS_PLAIN);
    o->download(v->q, out + (size_t)(first / MERGED_PATCHES) * (size_t)c->n_out, v->t,
                (size_t)cells * (size_t)c->n_out * sizeof(float));
    o->sync(v->q);
}

void vision_run_merged(vision *v, int P, float *out)
{
    _Static_assert(VISION_ROWS % MERGED_PATCHES == 0, "a pass has whole cells");
    for (int l = 0; l < v->c.n_layers; l++) {
        for (int i = 0; i < P; i += VISION_ROWS) store_merged(v, &v->layers[l], i, min_int(P - i, VISION_ROWS), P);
        for (int i = 0; i < P; i += VISION_ROWS) run_merged_rows(v, &v->layers[l], i, min_int(P - i, VISION_ROWS), P);
    }
    for (int i = 0; i < P; i += VISION_ROWS) merge_rows(v, i, min_int(P - i, VISION_ROWS), out);
}
