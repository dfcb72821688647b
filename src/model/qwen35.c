/* The Qwen 3.5 text decoder (also 3.6 and 3.8). A layer is a gated delta net (G) or has full attention (A).
 *
 *   x = E[token]
 *   layer:  u = x + mixer(N_in(x))
 *           x = u + FFN(N_post(u))
 *   A:      q, g = Wq n, head by head; k = Wk n; v = Wv n; q = rope(N_q(q)), k = rope(N_k(k))    N: per head
 *           mixer = Wo (attention(q, k, v) * sigmoid(g))                                         scale 1 / sqrt(head)
 *   G:      c = silu(conv(Wqkv n)): queries, keys, values;  o = delta rule of c with Wa n, Wb n  (ops.h)
 *           mixer = Wout (N_o(o) * silu(Wz n))                                                   N_o: per value head
 *   FFN:    Wd (silu(Wg n) * (Wu n)), or the chosen experts' weighted sum + sigmoid(w n) * the shared expert
 *   y = N_out(x), logits = H y
 *
 * All norms are RMS norms. Rope rotates the first part of a head. */
#include "model/qwen35.h"

#include "base/mem.h"
#include "model/decoder.h"
#include "model/qwen35_layer.h"
#include "ops/joined.h"

#include <assert.h>

/* Scratch of delta nets: [max_rows][n] floats unless noted. */
typedef struct {
    dev qkv, conv, z, a, b, values; /* [channels], [channels], [values], [value heads], ..., [values] */
    dev replays, places;            /* delta_replay_item [max_rows]; int32 [max_rows] */
} scratch;

typedef struct {
    decoder            d; /* first: a decoder * is a qwen35 * */
    qwen35_config      c;
    qwen35_layer      *layers;
    delta_class        delta; /* without the addresses, which are the pool's */
    qwen35_pass        p;
    scratch            s;
    delta_replay_item *replays; /* [max_rows], on the host */
} qwen35;

/* --- binding ------------------------------------------------------------------------------------*/
/* Files have the taps of a channel together; the op reads the channels of a tap. */
static void transpose_taps(float *v, size_t n, void *n_taps_)
{
    size_t n_taps = *(const size_t *)n_taps_, n_channels = n / n_taps;
    float *copy = xnew_n(float, n);
    memcpy(copy, v, n * sizeof *v);
    for (size_t i = 0; i < n_channels; i++)
        for (size_t j = 0; j < n_taps; j++) v[j * n_channels + i] = copy[i * n_taps + j];
    mem_free(copy);
}

static bool load_delta(const qwen35 *m, role_binder *g, qwen35_layer *y, int l, err *e)
{
    size_t        n_taps = (size_t)m->c.n_taps, n = n_taps * (size_t)delta_channels(&m->delta);
    const tensor *conv;
    return role_matrix(g, &y->qkv, QWEN35_DELTA_QKV, l, e) && role_matrix(g, &y->z, QWEN35_DELTA_Z, l, e) &&
           role_matrix(g, &y->b, QWEN35_DELTA_B, l, e) && role_matrix(g, &y->a, QWEN35_DELTA_A, l, e) &&
           role_require(g, QWEN35_DELTA_CONV, l, &conv, e) &&
           bind_floats(&g->b, &y->conv, conv, n, transpose_taps, &n_taps, e) &&
           role_vector(g, &y->rate, QWEN35_DELTA_RATE, l, 1, e) &&
           role_vector(g, &y->bias, QWEN35_DELTA_BIAS, l, 1, e) &&
           role_vector(g, &y->n_o, QWEN35_DELTA_NORM, l, 1, e) && role_matrix(g, &y->out, QWEN35_DELTA_OUT, l, e);
}

static bool load_head(qwen35 *m, role_binder *g, err *e)
{
    const tensor *t;
    m->d.head = m->d.embed;
    return m->c.tied || (bind_require(&g->b, g->b.cp->gguf ? "output.weight" : "lm_head.weight", &t, e) &&
                         bind_matrix(&g->b, &m->d.head, t, m->c.n_embd, m->c.n_vocab, 1, e));
}

static bool load_all(decoder *d, role_binder *g, err *e)
{
    qwen35 *m = (qwen35 *)d;
    if (!role_matrix(g, &d->embed, QWEN35_EMBED, 0, e) || !load_head(m, g, e) ||
        !role_vector(g, &d->n_out, QWEN35_OUT_NORM, 0, 1, e))
        return false;
    for (int l = 0; l < m->c.n_layers; l++) {
        qwen35_layer *y = &m->layers[l];
        if (!(m->c.full[l] ? qwen35_load_attention(g, y, l, e) : load_delta(m, g, y, l, e)) ||
            !qwen35_load_ffn(g, y, l, e))
            return false;
    }
    return true;
}

/* --- pages, states, scratch ---------------------------------------------------------------------*/
/* Returns the class of the delta nets' states with the addresses of the pool. */
static delta_class delta_in(const qwen35 *m, const kv_state *s)
{
    delta_class c  = m->delta;
    c.pool         = s->pool;
    c.table        = s->table;
    c.table_stride = s->table_stride;
    c.kept         = s->kept;
    return c;
}

/* Applies the kept rows that were accepted. The states of all layers are one class. */
static void replay_states(void *ctx, const kv_state *s, const kv_replay *r)
{
    qwen35     *m = ctx;
    queue      *q = m->d.t.q;
    delta_class c = delta_in(m, s);
    assert(r->n_items <= m->d.t.max_rows && r->n_rows <= m->d.t.max_rows);
    for (int i = 0; i < r->n_items; i++)
        m->replays[i] = (delta_replay_item){r->item[i].lane, r->item[i].pos, r->item[i].first, r->item[i].n};
    m->d.o->upload(q, m->s.replays, m->replays, (size_t)r->n_items * sizeof *m->replays);
    m->d.o->upload(q, m->s.places, r->row, (size_t)r->n_rows * sizeof *r->row);
    m->d.o->delta_replay(q, &c, m->s.replays, r->n_items, m->s.places);
}

static delta_class delta_of(const qwen35_config *c)
{
    return (delta_class){.n_k_heads = c->n_k_heads,
                         .n_v_heads = c->n_v_heads,
                         .head_dim  = c->delta_dim,
                         .n_taps    = c->n_taps,
                         .tiled     = c->tiled};
}

/* Returns the page class of the layers with full attention. */
static kv_class_spec full_class(const qwen35_config *c, int n_layers, cache_types types)
{
    return (kv_class_spec){.n_layers   = n_layers,
                           .n_heads    = c->n_heads,
                           .n_kv_heads = c->n_kv_heads,
                           .head_dim   = c->head_dim,
                           .types      = types};
}

static void init_memory(qwen35 *m)
{
    const qwen35_config *c = &m->c;
    target              *t = &m->d.t;
    t->kv_class[0]         = full_class(c, 0, cache_types_both(CACHE_F16));
    t->n_kv_classes        = 1;
    m->delta               = delta_of(c);
    for (int l = 0; l < c->n_layers; l++)
        m->layers[l].index = c->full[l] ? t->kv_class[0].n_layers++ : m->delta.n_layers++;
    size_t n           = (size_t)m->delta.n_layers * sizeof(float);
    m->delta.row_bytes = n * delta_kept_floats(&m->delta);
    if (!n) return;
    t->state[0]      = (kv_state_spec){n * delta_state_floats(&m->delta), m->delta.row_bytes, replay_states, m};
    t->n_states      = 1;
    t->max_kept_rows = t->max_rows;
}

static bool init_scratch(decoder *d, const checkpoint *cp, err *e)
{
    qwen35              *m        = (qwen35 *)d;
    const qwen35_config *c        = &m->c;
    scratch             *s        = &m->s;
    size_t               max_rows = (size_t)d->t.max_rows, values = (size_t)(c->n_v_heads * c->delta_dim);
    size_t               ch = (size_t)delta_channels(&m->delta), V = (size_t)c->n_v_heads;
    (void)cp;
    m->p =
        (qwen35_pass){.c = c, .o = d->o, .q = d->t.q, .own = &d->own, .max_rows = d->t.max_rows, .x = d->x, .n = d->n};
    m->replays = xnew_n(delta_replay_item, max_rows);
    return qwen35_pass_init(&m->p, e) && decoder_take_floats(d, &s->qkv, ch, e) &&
           decoder_take_floats(d, &s->conv, ch, e) && decoder_take_floats(d, &s->z, values, e) &&
           decoder_take_floats(d, &s->a, V, e) && decoder_take_floats(d, &s->b, V, e) &&
           decoder_take_floats(d, &s->values, values, e) &&
           owned_buf(&d->own, &s->replays, max_rows * sizeof(delta_replay_item), e) &&
           owned_buf(&d->own, &s->places, max_rows * sizeof(int32_t), e);
}

/* --- the forward pass ---------------------------------------------------------------------------*/
/* Drops the rows that nobody reads, when the K/V or the state of the layer is stored. */
static void narrow_rows(qwen35 *m, bool full, const layer_rows *r)
{
    int values = m->c.n_v_heads * m->c.delta_dim, heads = m->c.n_heads * m->c.head_dim;
    decoder_narrow(&m->d, r);
    decoder_gather(&m->d, r, full ? m->p.heads_q : m->s.values, full ? heads : values, full ? m->p.heads : m->s.conv);
    /* two heads wide, but at most half of the rows: they fit */
    decoder_gather(&m->d, r, full ? m->p.qg : m->s.z, full ? 2 * heads : values, full ? m->p.v : m->s.conv);
}

/* f = Wout (N_o(delta rule(n)) * silu(z)) */
static void delta_block(qwen35 *m, int l, kv_pool *pool, const layer_rows *r)
{
    const qwen35_config *c    = &m->c;
    const qwen35_layer  *y    = &m->layers[l];
    const ops           *o    = m->d.o;
    queue               *q    = m->d.t.q;
    delta_class          d    = delta_in(m, kv_pool_state(pool, 0));
    int                  n    = layer_rows_out(r, l)->n_rows;
    dev                  to[] = {m->s.qkv, m->s.z, m->s.a, m->s.b};
    const weight        *w[]  = {y->qkv, y->z, y->a, y->b};
    delta_io             io   = {.y    = m->s.values,
                                 .x    = m->s.qkv,
                                 .conv = m->s.conv,
                                 .a    = m->s.a,
                                 .b    = m->s.b,
                                 .w    = y->conv,
                                 .rate = y->rate,
                                 .bias = y->bias};
    ops_matmuls(o, q, to, w, 4, m->p.n, layer_rows_in(r, l)->n_rows);
    o->delta(q, &io, &d, y->index, layer_rows_in(r, l));
    if (!n) return;
    if (l == r->narrow) narrow_rows(m, false, r);
    ops_gated_norm(o, q, m->s.z, m->s.values, y->n_o, m->s.z, n, c->n_v_heads, c->delta_dim, c->eps, c->delta_gate);
    o->matmul(q, m->p.f, y->out, m->s.z, n);
}

static void attention_block(qwen35 *m, int l, kv_pool *pool, const layer_rows *r)
{
    const kv_class     *kv = kv_pool_class(pool, 0);
    const qwen35_layer *y  = &m->layers[l];
    qwen35_make_heads(&m->p, y, kv, layer_rows_in(r, l));
    if (!layer_rows_out(r, l)->n_rows) return;
    if (l == r->narrow) narrow_rows(m, true, r);
    qwen35_attend(&m->p, y, kv, layer_rows_out(r, l));
}

static void run_layers(decoder *d, kv_pool *kv, const layer_rows *r)
{
    qwen35 *m = (qwen35 *)d;
    d->o->rms_norm(d->t.q, d->n, d->x, m->layers[0].n_in, r->all.n_rows, m->c.n_embd, m->c.eps);
    for (int l = 0; l < m->c.n_layers; l++) {
        const qwen35_layer *y = &m->layers[l];
        int                 n = layer_rows_out(r, l)->n_rows;
        decoder_capture(d, l, layer_rows_in(r, l)->n_rows);
        (m->c.full[l] ? attention_block : delta_block)(m, l, kv, r);
        if (!n) return;
        qwen35_end_layer(&m->p, y, l + 1 < m->c.n_layers ? y[1].n_in : (dev){0}, n);
    }
}

/* --- open and close -----------------------------------------------------------------------------*/
static void free_layers(decoder *d)
{
    qwen35 *m = (qwen35 *)d;
    mem_free(m->layers);
    mem_free(m->replays);
}

bool qwen35_describe(model_summary *out, const checkpoint *cp, const kv_types *types, err *e)
{
    qwen35_config c;
    if (!qwen35_config_read(&c, cp, e)) return false;
    *out = (model_summary){.n_layers    = c.n_layers,
                           .n_embd      = c.n_embd,
                           .n_heads     = c.n_heads,
                           .n_vocab     = c.n_vocab,
                           .n_ctx       = c.n_ctx,
                           .n_experts   = c.n_experts,
                           .n_used      = c.n_used,
                           .n_ff_expert = c.n_ff_expert};
    for (int l = 0; l < c.n_layers; l++) out->n_full += c.full[l];
    out->kv_class[0]  = full_class(&c, out->n_full, types->full);
    out->n_kv_classes = 1;
    delta_class d     = delta_of(&c);
    out->state_bytes  = (double)((size_t)(c.n_layers - out->n_full) * delta_state_floats(&d) * sizeof(float));
    return true;
}

static void init_target(qwen35 *m, ops *o, const model_options *opt)
{
    const qwen35_config *c = &m->c;
    target sizes           = {.n_layers = c->n_layers, .n_embd = c->n_embd, .n_vocab = c->n_vocab, .n_ctx = c->n_ctx};
    m->d                   = (decoder){.embed_scale  = 1,
                                       .eps          = c->eps,
                                       .load         = load_all,
                                       .init_scratch = init_scratch,
                                       .run_layers   = run_layers,
                                       .free_layers  = free_layers};
    decoder_init(&m->d, &sizes, o, opt);
    m->d.last_store = c->n_layers - 1; /* every layer stores K/V or a state */
    m->layers       = xnew_n(qwen35_layer, (size_t)c->n_layers);
    init_memory(m);
}

bool qwen35_open(target **out, const checkpoint *cp, const model_options *opt, ops *o, err *e)
{
    qwen35     *m = xnew(qwen35);
    binder      b = {.cp = cp, .own = &m->d.own, .progress = opt->progress, .progress_ctx = opt->progress_ctx};
    role_binder g = role_binder_of(b, &qwen35_roles, &m->c);
    *out          = NULL;
    if (!qwen35_config_read(&m->c, cp, e)) {
        ops_close(o);
        mem_free(m);
        return false;
    }
    init_target(m, o, opt);
    queue_limits lim = qwen35_limits(&m->c, m->d.t.max_rows);
    if (!decoder_load(&m->d, &g, &lim, e)) {
        decoder_close(&m->d.t);
        return false;
    }
    *out = &m->d.t;
    return true;
}
