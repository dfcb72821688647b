/* Binds a DFlash drafter: finds its tensors by name and checks it against its target. */
#include "base/mem.h"
#include "model/dflash_inside.h"

#include <math.h>

/* --- binding ------------------------------------------------------------------------------------*/
static bool require(const dflash *m, const binder *b, dflash_role r, int l, const tensor **out, err *e)
{
    char name[DFLASH_NAME_MAX];
    dflash_tensor_name(m->c.layout, m->c.prefix, r, l, name);
    return bind_require(b, name, out, e);
}

static bool load_matrix(dflash *m, binder *b, weight **out, dflash_role r, int l, int n_in, int n_out, err *e)
{
    const tensor *t;
    return require(m, b, r, l, &t, e) && bind_matrix(b, out, t, n_in, n_out, 1, e);
}

static bool load_vector(dflash *m, binder *b, dev *out, dflash_role r, int l, int n, err *e)
{
    const tensor *t;
    return require(m, b, r, l, &t, e) && bind_vector(b, out, t, n, 1, e);
}

/* Loads what only layers like Gemma 4's have. */
static bool load_gemma(dflash *m, binder *b, int l, err *e)
{
    layer        *y = &m->layers[l];
    const tensor *scale;
    if (!m->c.gemma) return true;
    return load_vector(m, b, &y->n_after_attn, DFLASH_POST_ATTN, l, m->c.n_embd, e) &&
           load_vector(m, b, &y->n_after_ff, DFLASH_POST_FF, l, m->c.n_embd, e) &&
           require(m, b, DFLASH_SCALE, l, &scale, e) && bind_scalar(&y->scale, scale, e);
}

static bool load_conv(dflash *m, binder *b, layer_conv *out, dflash_role base, dflash_role kernel, int l, err *e)
{
    const dflash_config *c = &m->c;
    const tensor        *t;
    int                  H = c->n_embd, taps = c->n_taps;
    return require(m, b, base, l, &t, e) && bind_check_shape(t, H, taps, 2, e) &&
           bind_floats(b, &out->base, t, (size_t)(2 * taps) * (size_t)H, NULL, NULL, e) &&
           load_matrix(m, b, &out->kernel, kernel, l, H, 2 * taps * (H / c->group), e);
}

static bool load_convs(dflash *m, binder *b, int l, err *e)
{
    layer *y = &m->layers[l];
    return m->c.kind != DFLASH_2 || (load_conv(m, b, &y->attn_conv, DFLASH_ATTN_BASE, DFLASH_ATTN_CONV, l, e) &&
                                     load_conv(m, b, &y->ff_conv, DFLASH_FF_BASE, DFLASH_FF_CONV, l, e));
}

static bool load_layer(dflash *m, binder *b, int l, err *e)
{
    const dflash_config *c = &m->c;
    layer               *y = &m->layers[l];
    int                  H = c->n_embd, D = c->head_dim, F = c->n_ff, nq = c->n_heads * D, nk = c->n_kv_heads * D;
    y->scale = 1;
    return load_gemma(m, b, l, e) && load_convs(m, b, l, e) && load_vector(m, b, &y->n_in, DFLASH_ATTN_NORM, l, H, e) &&
           load_vector(m, b, &y->n_ff, DFLASH_FF_NORM, l, H, e) && load_vector(m, b, &y->n_q, DFLASH_Q_NORM, l, D, e) &&
           load_vector(m, b, &y->n_k, DFLASH_K_NORM, l, D, e) && load_matrix(m, b, &y->q, DFLASH_Q, l, H, nq, e) &&
           load_matrix(m, b, &y->k, DFLASH_K, l, H, nk, e) &&
           (c->k_is_v || load_matrix(m, b, &y->v, DFLASH_V, l, H, nk, e)) &&
           load_matrix(m, b, &y->o, DFLASH_O, l, nq, H, e) && load_matrix(m, b, &y->gate, DFLASH_GATE, l, H, F, e) &&
           load_matrix(m, b, &y->up, DFLASH_UP, l, H, F, e) && load_matrix(m, b, &y->down, DFLASH_DOWN, l, F, H, e);
}

/* Reads the table of ids, one per row of the head. Directories store the offset from the row number, GGUF files the
 * id. */
static bool read_d2t(const dflash *m, const tensor *t, int32_t *map, err *e)
{
    int      n_vocab = m->d.t->n_vocab;
    uint8_t *seen    = mem_try((size_t)n_vocab);
    bool     ok      = seen || err_set(e, ERR_UNAVAILABLE, "no memory to read 'd2t'");
    for (int i = 0; ok && i < m->n_few; i++) {
        int64_t id = tensor_int(t, (size_t)i);
        if (dflash_is_dir(&m->c) && id > -n_vocab && id < n_vocab) id += i;
        ok = (id >= 0 && id < n_vocab) ||
             err_set(e, ERR_FORMAT, "'d2t' maps row %d to token %lld, but there are %d tokens", i, (long long)id,
                     n_vocab);
        ok = ok && (!seen[id]++ || err_set(e, ERR_FORMAT, "'d2t' names token %lld twice", (long long)id));
        if (ok) map[i] = (int32_t)id;
    }
    mem_free(seen);
    return ok;
}

static bool load_d2t(dflash *m, binder *b, const tensor *t, err *e)
{
    if (!tensor_is_ints(t, m->n_few))
        return err_set(e, ERR_FORMAT, "'d2t' is not a list of %d integers, one per row of the output matrix", m->n_few);
    int32_t *map = mem_try_n((size_t)m->n_few, sizeof *map);
    bool     ok  = (map || err_set(e, ERR_UNAVAILABLE, "no memory to read 'd2t'")) && read_d2t(m, t, map, e) &&
              (b->dry || owned_put(b->own, &m->d2t, map, (size_t)m->n_few * sizeof *map, e));
    mem_free(map);
    return ok;
}

/* Loads its own head: for all tokens of the target, or with d2t for some. */
static bool load_head(dflash *m, binder *b, const tensor *t, err *e)
{
    const tensor *d2t     = dflash_tensor(&m->c, b->cp, DFLASH_D2T, 0);
    int           n_vocab = m->d.t->n_vocab;
    if (t->dim[1] < 1 || t->dim[1] > n_vocab || (!d2t && t->dim[1] != n_vocab))
        return err_set(e, ERR_INPUT, "its output matrix is for %lld tokens, the target has %d", (long long)t->dim[1],
                       n_vocab);
    m->n_few = d2t ? (int)t->dim[1] : 0;
    return bind_matrix(b, &m->head, t, m->c.n_embd, (int)t->dim[1], 1, e) && (!d2t || load_d2t(m, b, d2t, e));
}

/* Returns a table of the file that is used; NULL: the target's is. */
static const tensor *own_table(const dflash *m, const checkpoint *cp, dflash_role r)
{
    bool not_used = r == DFLASH_EMBED ? !m->c.own_embed || m->same_embed : m->same_head;
    return not_used ? NULL : dflash_tensor(&m->c, cp, r, 0);
}

static bool load_tables(dflash *m, binder *b, err *e)
{
    const dflash_config *c     = &m->c;
    const target        *t     = m->d.t;
    const tensor        *embed = own_table(m, b->cp, DFLASH_EMBED), *head = own_table(m, b->cp, DFLASH_HEAD);
    bool                 tied = embed && !head && c->tied;
    if ((!embed || (!head && !tied)) && c->n_embd != t->n_embd)
        return err_set(e, ERR_INPUT, "it is %d wide and borrows the embeddings of the target, which is %d wide",
                       c->n_embd, t->n_embd);
    if (embed && embed->dim[1] != t->n_vocab)
        return err_set(e, ERR_INPUT, "its embeddings are for %lld tokens, the target has %d", (long long)embed->dim[1],
                       t->n_vocab);
    if (embed && !bind_matrix(b, &m->embed, embed, c->n_embd, t->n_vocab, 1, e)) return false;
    if (tied) m->head = m->embed;
    return !head || load_head(m, b, head, e);
}

static bool load_spark(dflash *m, binder *b, err *e)
{
    const dflash_config *c = &m->c;
    const tensor        *bias;
    int                  n_vocab = m->d.t->n_vocab, n_out = m->n_few ? m->n_few : n_vocab;
    m->conf_bias = 0;
    return load_matrix(m, b, &m->w1, DFLASH_W1, 0, c->rank, n_vocab, e) &&
           load_matrix(m, b, &m->w2, DFLASH_W2, 0, c->rank, n_out, e) &&
           (!c->conf ||
            (load_matrix(m, b, &m->conf, DFLASH_CONF, 0, c->n_embd + (c->conf_pairs ? c->rank : 0), 1, e) &&
             (!(bias = dflash_tensor(c, b->cp, DFLASH_CONF_BIAS, 0)) || bind_scalar(&m->conf_bias, bias, e))));
}

/* Loads what relates a token to the one before. */
static bool load_pairs(dflash *m, binder *b, err *e)
{
    const dflash_config *c       = &m->c;
    int                  n_vocab = m->d.t->n_vocab;
    if (!c->rank) return true;
    if (c->kind == DFLASH_SPARK) return load_spark(m, b, e);
    return load_matrix(m, b, &m->before, DFLASH_BEFORE, 0, c->rank, n_vocab, e) &&
           load_matrix(m, b, &m->after, DFLASH_AFTER, 0, c->rank, n_vocab, e) &&
           load_matrix(m, b, &m->middle, DFLASH_MIDDLE, 0, c->n_embd, c->rank, e);
}

bool dflash_load_all(dflash *m, binder *b, err *e)
{
    const dflash_config *c = &m->c;
    if (!load_matrix(m, b, &m->fc, DFLASH_FC, 0, c->n_features, c->n_embd, e) ||
        !load_vector(m, b, &m->n_hidden, DFLASH_HIDDEN_NORM, 0, c->n_embd, e) ||
        !load_vector(m, b, &m->n_out, DFLASH_NORM, 0, c->n_embd, e) || !load_tables(m, b, e) || !load_pairs(m, b, e))
        return false;
    for (int l = 0; l < c->n_layers; l++)
        if (!load_layer(m, b, l, e)) return false;
    return true;
}

/* --- does it fit the target? --------------------------------------------------------------------*/
static bool fit_captures(dflash_config *c, const target_shape *t, err *e)
{
    if (!c->n_captures && c->n_features % t->n_embd == 0 && c->n_features / t->n_embd <= t->n_layers &&
        c->n_features / t->n_embd <= DFLASH_MAX_CAPTURES) {
        c->n_captures = c->n_features / t->n_embd;
        dflash_default_captures(c->capture, c->n_captures, t->n_layers);
    }
    if (!c->n_captures || (int64_t)c->n_captures * t->n_embd != c->n_features)
        return err_set(e, ERR_INPUT, "its features are %d wide, but %d layers of the target have a width of %d each",
                       c->n_features, c->n_captures, t->n_embd);
    if (c->n_captures > t->n_layers)
        return err_set(e, ERR_INPUT, "it reads the outputs of %d layers, the target has %d", c->n_captures,
                       t->n_layers);
    for (int i = 0; i < c->n_captures; i++)
        if (c->capture[i] >= t->n_layers)
            return err_set(e, ERR_INPUT, "it reads the output of layer %d, the target has %d", c->capture[i],
                           t->n_layers);
    return true;
}

/* Checks the sizes, and sets the captured layers of a file without a list. */
static bool fit_shape(dflash_config *c, const target_shape *t, err *e)
{
    if (c->n_vocab && c->n_vocab != t->n_vocab)
        return err_set(e, ERR_INPUT, "its vocabulary has %d tokens, the target's %d", c->n_vocab, t->n_vocab);
    if (c->mask_id >= t->n_vocab)
        return err_set(e, ERR_INPUT, "its mask token is %d, the target has %d tokens", c->mask_id, t->n_vocab);
    return fit_captures(c, t, e);
}

bool dflash_fits(const checkpoint *cp, const target_shape *t, err *e)
{
    dflash_config c;
    return dflash_config_read(&c, cp, e) && fit_shape(&c, t, e);
}

bool dflash_fit_target(dflash *m, err *e)
{
    target_shape t = target_shape_of(m->d.t);
    if (!fit_shape(&m->c, &t, e)) return false;
    m->d.n_capture = m->c.n_captures;
    for (int i = 0; i < m->c.n_captures; i++)
        m->d.capture_id[i] = m->c.capture[i] + 1; /* the output of a layer is the input of the next */
    return true;
}

/* --- tables that are copies of the target's -------------------------------------------------------*/
enum { SAMPLES = 8 }; /* rows of the embeddings, columns of the output matrix */

/* Returns whether a table of the file has the shape of the target's. */
static const tensor *like_the_targets(const dflash *m, const checkpoint *cp, dflash_role r)
{
    const tensor *x    = own_table(m, cp, r);
    const target *t    = m->d.t;
    bool          fits = x && quant_can_dequantise(x->type) && x->dim[0] == t->n_embd && x->dim[1] == t->n_vocab &&
                x->dim[2] == 1 && x->dim[3] == 1;
    return fits ? x : NULL;
}

static void read_row(const tensor *x, int row, float *out)
{
    size_t n = (size_t)x->dim[0], bytes = x->bytes / (size_t)x->dim[1];
    quant_dequantise(x->type, (const char *)x->data + (size_t)row * bytes, out, n);
}

/* Returns whether two lists of numbers agree as well as two quantisations of the same weights do. */
static bool alike(const float *a, const float *b, size_t n)
{
    double diff = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return size > 0 && diff < 0.02 * size; /* not for NaN */
}

/* Embeds some tokens with the target and compares the rows. */
static bool same_embeddings(dflash *m, const tensor *x, dev ids, dev y, float *got, float *want)
{
    target *t     = m->d.t;
    size_t  H     = (size_t)t->n_embd;
    float   scale = t->scaled_embed ? sqrtf((float)H) : 1;
    int32_t id[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) id[i] = (int32_t)((int64_t)(2 * i + 1) * t->n_vocab / (2 * SAMPLES));
    t->o->upload(t->q, ids, id, sizeof id);
    t->embed(t, y, ids, SAMPLES);
    t->o->download(t->q, got, y, SAMPLES * H * sizeof *got);
    t->o->sync(t->q);
    for (int i = 0; i < SAMPLES; i++) read_row(x, id[i], want + (size_t)i * H);
    for (size_t i = 0; i < SAMPLES * H; i++) want[i] *= scale;
    return alike(got, want, SAMPLES * H);
}

/* Projects unit vectors with the target: the results are columns of its output matrix. */
static bool same_output(dflash *m, const tensor *x, dev y, dev logits, float *got, float *want)
{
    target *t = m->d.t;
    size_t  H = (size_t)t->n_embd, V = (size_t)t->n_vocab;
    size_t  at[SAMPLES];
    memset(want, 0, SAMPLES * H * sizeof *want);
    for (size_t i = 0; i < SAMPLES; i++) want[i * H + (at[i] = (2 * i + 1) * H / (2 * SAMPLES))] = 1;
    t->o->upload(t->q, y, want, SAMPLES * H * sizeof *want);
    t->project(t, logits, y, SAMPLES);
    t->o->download(t->q, got, logits, SAMPLES * V * sizeof *got);
    t->o->sync(t->q);
    for (size_t v = 0; v < V; v++) {
        float *row = want + SAMPLES * V;
        read_row(x, (int)v, row);
        for (size_t i = 0; i < SAMPLES; i++) want[i * V + v] = row[at[i]];
    }
    return alike(got, want, SAMPLES * V);
}

/* Only DSpark's files have copies: their training froze the tables. Memory is what this saves, so a target of another
 * quantisation counts as the same. */
bool dflash_compare_tables(dflash *m, const checkpoint *cp, err *e)
{
    target       *t     = m->d.t;
    const tensor *embed = like_the_targets(m, cp, DFLASH_EMBED), *head = like_the_targets(m, cp, DFLASH_HEAD);
    size_t        H = (size_t)t->n_embd, V = (size_t)t->n_vocab, wide = V > H ? V : H;
    dev           ids = {0}, y = {0}, logits = {0};
    float        *got, *want;
    if (m->c.kind != DFLASH_SPARK || m->c.n_embd != t->n_embd || (!embed && !head)) return true;
    bool ok = t->o->alloc(t->o, &ids, SAMPLES * sizeof(int32_t), e) &&
              t->o->alloc(t->o, &y, SAMPLES * H * sizeof(float), e) &&
              t->o->alloc(t->o, &logits, SAMPLES * V * sizeof(float), e);
    got  = mem_try_n(SAMPLES * wide, sizeof *got);
    want = mem_try_n(SAMPLES * wide + H, sizeof *want);
    ok   = ok && ((got && want) || err_set(e, ERR_UNAVAILABLE, "no memory to compare tables"));
    if (ok && embed) m->same_embed = same_embeddings(m, embed, ids, y, got, want);
    if (ok && head) m->same_head = same_output(m, head, y, logits, got, want);
    ok = ok && t->o->check(t->q, e);
    mem_free(got);
    mem_free(want);
    t->o->free(t->o, ids);
    t->o->free(t->o, y);
    t->o->free(t->o, logits);
    return ok;
}
