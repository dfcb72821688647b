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
#include "ops/joined.h"

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

/* Loads a table of n_rows positions. */
static bool load_table(loader *ld, const char *hf, const char *in_gguf, int n_rows, err *e)
{
    const tensor *t;
    return require(ld, &t, hf, in_gguf, 0, "", e) &&
           bind_rows(&ld->b, &ld->v->table.w, t, ld->v->c.width, n_rows, NULL, e);
}

static void negate(float *x, size_t n, void *unused)
{
    (void)unused;
    for (size_t i = 0; i < n; i++) x[i] = -x[i];
}

/* Loads a vector that files may have; `change` as for bind_floats. */
static bool load_optional(loader *ld, dev *out, const char *hf, const char *in_gguf,
                          void (*change)(float *x, size_t n, void *ctx), err *e)
{
    char          name[NAME_MAX_BYTES];
    int           n = ld->v->c.width;
    const tensor *t = find(ld, hf, in_gguf, 0, "", name);
    return !t || (bind_check_shape(t, n, 1, 1, e) && bind_floats(&ld->b, out, t, (size_t)n, change, NULL, e));
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
        load_optional(ld, &v->std_bias, "vision_tower.std_bias", "v.std_bias", negate, e) &&
        load_optional(ld, &v->std_scale, "vision_tower.std_scale", "v.std_scale", NULL, e) &&
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

/* Makes the numbers for the bytes of patches. */
static bool init_values(vision *v, err *e)
{
    float value[256];
    for (int i = 0; i < 256; i++) {
        value[i] = patch_value(&v->c.rules.image, (uint8_t)i);
        if (v->c.kind == VISION_POOLED) value[i] = 2 * value[i] - 1;
    }
    return owned_put(&v->own, &v->values, value, sizeof value, e);
}

static bool take(vision *v, dev *out, int n, err *e)
{
    return owned_buf(&v->own, out, (size_t)v->max_rows * (size_t)n * sizeof(float), e);
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
    int                  h = c->width, D = c->n_heads * c->head_dim, mixed = vision_mixed(v) * h;
    bool                 ok = take(v, &v->n, h, e) && take(v, &v->t, max_int(h, c->n_out), e) &&
              take(v, &v->in, max_int(widest(v), c->kind == VISION_MERGED ? 3 * h : h), e) &&
              take(v, &v->up, max_int(c->n_ff, mixed), e) && init_values(v, e);
    if (!ok || c->kind == VISION_DIRECT) return ok;
    return take(v, &v->heads, D, e) && take(v, &v->q_rows, D, e) && take(v, &v->k, D, e) && take(v, &v->v, D, e) &&
           take(v, &v->gate, c->n_ff, e) && init_rope(v, e);
}

static bool load_from(vision *v, const checkpoint *cp, err *e)
{
    loader ld   = {.v = v, .b = {.cp = cp, .own = &v->own, .dry = true}};
    v->max_rows = v->o->runs_later ? VISION_ROWS_LATER : VISION_ROWS;

    queue_limits lim = {.max_rows = v->max_rows, .max_in = widest(v), .max_vocab = 1};
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
    v->q        = NULL;
    v->layers   = NULL;
    v->table    = (vision_table){0};
    v->std_bias = v->std_scale = (dev){0};
    v->loaded                  = false;
}

bool vision_load(vision *v, err *e)
{
    checkpoint *cp;
    double      start = clock_s();
    if (v->o->n_threads && v->file_bytes > mem_available())
        return err_set(e, ERR_UNAVAILABLE, "its weights need %.1f GB of memory, and %.1f GB are free",
                       (double)v->file_bytes / 1e9, (double)mem_available() / 1e9);
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
/* Returns the rows of a pass of P, so that all are about equal. */
static int pass_rows(const vision *v, int P)
{
    int n = (P + v->max_rows - 1) / v->max_rows, rows = (P + n - 1) / n;
    return (rows + VISION_UNIT - 1) / VISION_UNIT * VISION_UNIT;
}

/* Returns whether two maps limit their inputs alike. */
static bool same_inputs(const vision_linear *a, const vision_linear *b)
{
    return a->clipped == b->clipped && a->in[0] == b->in[0] && a->in[1] == b->in[1];
}

/* y[i] = l[i] x, without biases. Maps that limit their inputs alike share them. */
static void linears(vision *v, const dev *y, const vision_linear *const *l, int n_maps, dev x, int n)
{
    const ops *o = v->o;
    for (int i = 0, k; i < n_maps; i += k) {
        const weight *w[JOINED_MATMULS] = {l[i]->w};
        dev           from              = l[i]->clipped ? v->in : x;
        for (k = 1; i + k < n_maps && same_inputs(l[i], l[i + k]); k++) w[k] = l[i + k]->w;
        if (l[i]->clipped) o->clamp(v->q, from, x, (size_t)n * (size_t)l[i]->w->n_in, l[i]->in[0], l[i]->in[1]);
        ops_matmuls(o, v->q, y + i, w, k, from, n);
        for (int m = i; m < i + k; m++)
            if (l[m]->clipped)
                o->clamp(v->q, y[m], y[m], (size_t)n * (size_t)l[m]->w->n_out, l[m]->out[0], l[m]->out[1]);
    }
}

static void linear(vision *v, dev y, const vision_linear *l, dev x, int n) { linears(v, &y, &l, 1, x, n); }

/* y = res + act(l x + bias); res NULL (.p): 0 */
static void biased(vision *v, dev y, dev res, dev scratch, const vision_linear *l, dev x, int n, bias_act act)
{
    linear(v, scratch, l, x, n);
    v->o->bias(v->q, y, res, scratch, l->bias, n, l->w->n_out, act);
}

static dev z_at(const vision *v, int row) { return dev_at_f32(v->z, (size_t)row * (size_t)v->c.width); }

/* Returns an array of the picture's P rows, from row `first` on, `each` numbers a row. */
static dev array_at(const vision *v, int which, int first, int each, int P)
{
    return dev_at(v->rows, ((size_t)which * (size_t)P + (size_t)first * (size_t)each) * sizeof(int32_t));
}

/* Describes the rows of n patches from `first` on, of P, for attention. They see each other, as long chains do. */
static step_rows rows_at(const vision *v, int first, int n, int P)
{
    step_rows r = {.n_rows      = n,
                   .pos         = array_at(v, ROW_POS, first, 1, P),
                   .lane        = array_at(v, ROW_LANE, first, 1, P),
                   .parent      = array_at(v, ROW_PARENT, first, 1, P),
                   .root        = array_at(v, ROW_ROOT, first, 1, P),
                   .last        = array_at(v, ROW_LAST, first, 1, P),
                   .section_pos = array_at(v, ROW_SECTION, first, ROPE_SECTIONS, P),
                   .chain_to    = n >= 16 ? n : 0,
                   .chain_end   = P,
                   .chain_sees  = P};
    r.slot      = r.pos;
    return r;
}

/* z = z + the embeddings of the positions of n patches from `first` on, of P. */
static void add_positions(vision *v, dev z, int first, int n, int P)
{
    const ops *o = v->o;
    int        h = v->c.width, each = vision_mixed(v);
    o->embed(v->q, v->up, v->table.w, array_at(v, ROW_MIX, first, each, P), n * each, 1);
    o->experts_sum(v->q, v->t, v->up, array_at(v, ROW_FACTOR, first, each, P), n, each, h);
    o->add(v->q, z, z, v->t, (size_t)n * (size_t)h, 1);
}

/* Writes the numbers of part k of n patches to v->in. */
static void read_patches(vision *v, int k, int first, int n, int P)
{
    size_t each = (size_t)patch_values(&v->c.rules.image) / (size_t)vision_parts(v);
    v->o->lookup(v->q, v->in, dev_at(v->bytes, ((size_t)k * (size_t)P + (size_t)first) * each), v->values,
                 (size_t)n * each);
}

/* Writes the embeddings of patches to z. */
static void embed_patches(vision *v, int first, int n, int P)
{
    const ops *o   = v->o;
    dev        z   = z_at(v, first);
    size_t     all = (size_t)n * (size_t)v->c.width;
    for (int k = 0; k < vision_parts(v); k++) {
        read_patches(v, k, first, n, P);
        o->matmul(v->q, k ? v->t : z, v->patch[k].w, v->in, n);
        if (k) o->add(v->q, z, z, v->t, all, 1);
    }
    if (v->patch[0].bias.p) o->bias(v->q, z, (dev){0}, z, v->patch[0].bias, n, v->c.width, BIAS_PLAIN);
    add_positions(v, z, first, n, P);
}

static void attend(vision *v, const step_rows *r, float scale)
{
    v->o->attention(v->q, v->heads, v->q_rows, v->c.n_heads, &v->kv, 0, r, scale, 0);
}

/* Enqueues the download of n soft tokens in v->t to row `first` of out. */
static void give(vision *v, float *out, int first, int n)
{
    size_t each = (size_t)v->c.n_out;
    v->o->download(v->q, out + (size_t)first * each, v->t, (size_t)n * each * sizeof(float));
}

/* A layer of the tower. with_q, with_kv: makes queries, and attends; makes K and V, and stores them. */
typedef void layer_fn(vision *v, int layer, int first, int n, int P, bool with_q, bool with_kv);

/* Runs all layers: all K and V of a layer are stored before its first row attends. */
static void run_layers(vision *v, layer_fn *run, int P)
{
    int rows = pass_rows(v, P);
    for (int l = 0; l < v->c.n_layers; l++) {
        if (rows >= P) {
            run(v, l, 0, P, P, true, true);
            continue;
        }
        for (int i = 0; i < P; i += rows) run(v, l, i, min_int(P - i, rows), P, false, true);
        for (int i = 0; i < P; i += rows) run(v, l, i, min_int(P - i, rows), P, true, false);
    }
}

/* --- pooled ---------------------------------------------------------------------------------------*/
static void make_pooled_heads(vision *v, const vision_layer *y, const step_rows *r, bool with_q, bool with_kv)
{
    const vision_linear *map[] = {&y->q, &y->k, &y->v};
    dev                  to[]  = {v->q_rows, v->k, v->v};
    head_rows            h     = {.q       = v->q_rows,
                                  .k       = with_kv ? v->k : (dev){0},
                                  .v       = v->v,
                                  .w_q     = y->n_q,
                                  .w_k     = y->n_k,
                                  .rope    = v->rope,
                                  .n_heads = with_q ? v->c.n_heads : 0,
                                  .norm_v  = true,
                                  .c       = &v->kv,
                                  .eps     = v->c.eps};
    int                  skip  = with_q ? 0 : 1;
    linears(v, to + skip, map + skip, (with_kv ? 3 : 1) - skip, v->n, r->n_rows);
    ops_heads(v->o, v->q, &h, r);
}

/* z = z + norm(v->t) w, then v->n = norm(z) next; next NULL (.p): no second norm. */
static void end_block(vision *v, dev z, dev w, dev next, int n)
{
    norm_rows c = {.y      = z,
                   .res    = z,
                   .z      = v->t,
                   .w      = w,
                   .n      = v->c.width,
                   .n_outs = next.p ? 1 : 0,
                   .scale  = 1,
                   .eps    = v->c.eps,
                   .out    = {{v->n, next}}};
    ops_norms(v->o, v->q, &c, n);
}

static void run_pooled_layer(vision *v, int layer, int first, int n, int P, bool with_q, bool with_kv)
{
    const ops           *o       = v->o;
    const vision_config *c       = &v->c;
    const vision_layer  *y       = &v->layers[layer];
    const vision_linear *gated[] = {&y->gate, &y->up};
    dev                  z = z_at(v, first), to[] = {v->gate, v->up};
    step_rows            r     = rows_at(v, first, n, P);
    bool                 whole = with_q && with_kv; /* v->n was made by the layer before */
    if (!whole || layer == 0) o->rms_norm(v->q, v->n, z, y->n_in, n, c->width, c->eps);
    make_pooled_heads(v, y, &r, with_q, with_kv);
    if (!with_q) return;
    attend(v, &r, 1);
    linear(v, v->t, &y->o, v->heads, n);
    end_block(v, z, y->n_post_attn, y->n_pre_ff, n);
    linears(v, to, gated, 2, v->n, n);
    o->gated(v->q, v->gate, v->gate, c->n_ff, v->up, c->n_ff, n, c->n_ff, ACT_GELU_TANH);
    linear(v, v->t, &y->down, v->gate, n);
    end_block(v, z, y->n_post_ff, whole && layer + 1 < c->n_layers ? y[1].n_in : (dev){0}, n);
}

static void run_pooled(vision *v, int P, float *out)
{
    enum { EACH = POOL_SIDE * POOL_SIDE };
    const ops           *o     = v->o;
    const vision_config *c     = &v->c;
    float                scale = (float)(sqrt(c->width) / EACH);
    _Static_assert(VISION_UNIT % EACH == 0, "a pass has whole cells");
    run_layers(v, run_pooled_layer, P);
    for (int i = 0, n; i < P / EACH; i += n) {
        n = min_int(P / EACH - i, v->max_rows);
        o->pool(v->q, v->n, z_at(v, EACH * i), v->std_bias, v->std_scale, n, EACH, c->width, scale);
        o->rms_norm(v->q, v->n, v->n, (dev){0}, n, c->width, c->eps);
        o->matmul(v->q, v->t, v->proj.w, v->n, n);
        give(v, out, i, n);
    }
}

/* --- direct ---------------------------------------------------------------------------------------*/
static void run_direct(vision *v, int P, float *out)
{
    const ops           *o = v->o;
    const vision_config *c = &v->c;
    int                  h = c->width, values = patch_values(&c->rules.image);
    for (int i = 0, n; i < P; i += n) {
        n = min_int(P - i, v->max_rows);
        read_patches(v, 0, i, n, P);
        o->layer_norm(v->q, v->in, v->in, v->n_patch, v->b_patch, n, values, direct_eps);
        biased(v, v->n, (dev){0}, v->n, &v->patch[0], v->in, n, BIAS_PLAIN);
        o->layer_norm(v->q, v->n, v->n, v->n_dense, v->b_dense, n, h, direct_eps);
        add_positions(v, v->n, i, n, P);
        o->layer_norm(v->q, v->n, v->n, v->n_pos, v->b_pos, n, h, direct_eps);
        o->rms_norm(v->q, v->n, v->n, (dev){0}, n, h, c->eps);
        o->matmul(v->q, v->t, v->proj.w, v->n, n);
        give(v, out, i, n);
    }
}

/* --- merged ---------------------------------------------------------------------------------------*/
/* Takes q, k or v of n rows, part 0, 1 or 2 of the joined map's result in v->in, and rotates q and k. */
static void take_part(vision *v, dev y, int part, const step_rows *r)
{
    int h = v->c.width;
    v->o->copy_rows(v->q, y, h, dev_at_f32(v->in, (size_t)part * (size_t)h), 3 * h, (dev){0}, r->n_rows, h);
    if (part < 2) v->o->rope(v->q, y, r, v->c.n_heads, v->c.head_dim, &v->rope);
}

static void run_merged_layer(vision *v, int layer, int first, int n, int P, bool with_q, bool with_kv)
{
    const ops           *o = v->o;
    const vision_config *c = &v->c;
    const vision_layer  *y = &v->layers[layer];
    dev                  z = z_at(v, first);
    step_rows            r = rows_at(v, first, n, P);
    o->layer_norm(v->q, v->n, z, y->n_in, y->b_in, n, c->width, c->eps);
    biased(v, v->in, (dev){0}, v->in, &y->q, v->n, n, BIAS_PLAIN);
    if (with_kv) {
        take_part(v, v->k, 1, &r);
        take_part(v, v->v, 2, &r);
        o->kv_store(v->q, &v->kv, 0, &r, v->k, v->v);
    }
    if (!with_q) return;
    take_part(v, v->q_rows, 0, &r);
    attend(v, &r, 1 / sqrtf((float)c->head_dim));
    biased(v, z, z, v->t, &y->o, v->heads, n, BIAS_PLAIN);
    o->layer_norm(v->q, v->n, z, y->n_pre_ff, y->b_pre_ff, n, c->width, c->eps);
    biased(v, v->up, (dev){0}, v->up, &y->up, v->n, n, BIAS_GELU_TANH);
    biased(v, z, z, v->t, &y->down, v->up, n, BIAS_PLAIN);
}

/* Joined cells are rows of 4 h numbers: a fourth of the rows of a pass. */
static void run_merged(vision *v, int P, float *out)
{
    const ops           *o = v->o;
    const vision_config *c = &v->c;
    _Static_assert(VISION_UNIT % MERGED_PATCHES == 0, "a pass has whole cells");
    run_layers(v, run_merged_layer, P);
    for (int i = 0, rows = pass_rows(v, P), n; i < P; i += rows) {
        n = min_int(P - i, rows);
        o->layer_norm(v->q, v->n, z_at(v, i), v->n_patch, v->b_patch, n, c->width, c->eps);
        biased(v, v->in, (dev){0}, v->in, &v->fc, v->n, n / MERGED_PATCHES, BIAS_GELU);
        biased(v, v->t, (dev){0}, v->t, &v->proj, v->in, n / MERGED_PATCHES, BIAS_PLAIN);
        give(v, out, i / MERGED_PATCHES, n / MERGED_PATCHES);
    }
}

void vision_run(vision *v, int P, float *out)
{
    int rows = pass_rows(v, P);
    if (v->c.kind == VISION_DIRECT) {
        run_direct(v, P, out);
        return;
    }
    for (int i = 0; i < P; i += rows) embed_patches(v, i, min_int(P - i, rows), P);
    if (v->c.kind == VISION_MERGED)
        run_merged(v, P, out);
    else
        run_pooled(v, P, out);
}
