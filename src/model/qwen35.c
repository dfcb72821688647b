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

#include "base/fault.h"
#include "base/mem.h"
#include "model/capture.h"
#include "model/qwen35_layer.h"

#include <assert.h>

/* Scratch of delta nets: [max_rows][n] floats unless noted. */
typedef struct {
    dev qkv, conv, z, a, b, values; /* [channels], [channels], [values], [value heads], ..., [values] */
    dev rows, paths;                /* the step's int32 arrays; `before` and `kept` of its rows */
    dev replays, places;            /* delta_replay_item [max_rows]; int32 [max_rows] */
} scratch;

typedef struct {
    target             t; /* first: a target * is a qwen35 * */
    qwen35_config      c;
    ops               *o;
    weight            *embed, *head; /* head == embed when tied */
    dev                n_out;
    qwen35_layer      *layers;
    delta_class        delta; /* without the addresses, which are the pool's */
    qwen35_pass        p;
    scratch            s;
    int32_t           *paths;   /* [2][max_rows], on the host */
    delta_replay_item *replays; /* [max_rows], on the host */
    captures           captured;
    owned              own;
} qwen35;

/* --- binding ------------------------------------------------------------------------------------*/
typedef struct {
    qwen35     *m;
    role_binder g;
} loader;

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

static bool load_delta(loader *ld, qwen35_layer *y, int l, err *e)
{
    role_binder  *g      = &ld->g;
    size_t        n_taps = (size_t)ld->m->c.n_taps, n = n_taps * (size_t)delta_channels(&ld->m->delta);
    const tensor *conv;
    return role_matrix(g, &y->qkv, QWEN35_DELTA_QKV, l, e) && role_matrix(g, &y->z, QWEN35_DELTA_Z, l, e) &&
           role_matrix(g, &y->b, QWEN35_DELTA_B, l, e) && role_matrix(g, &y->a, QWEN35_DELTA_A, l, e) &&
           role_require(g, QWEN35_DELTA_CONV, l, &conv, e) &&
           bind_floats(&g->b, &y->conv, conv, n, transpose_taps, &n_taps, e) &&
           role_vector(g, &y->rate, QWEN35_DELTA_RATE, l, 1, e) &&
           role_vector(g, &y->bias, QWEN35_DELTA_BIAS, l, 1, e) &&
           role_vector(g, &y->n_o, QWEN35_DELTA_NORM, l, 1, e) && role_matrix(g, &y->out, QWEN35_DELTA_OUT, l, e);
}

static bool load_head(loader *ld, err *e)
{
    qwen35       *m = ld->m;
    const tensor *t;
    m->head = m->embed;
    return m->c.tied || (bind_require(&ld->g.b, ld->g.b.cp->gguf ? "output.weight" : "lm_head.weight", &t, e) &&
                         bind_matrix(&ld->g.b, &m->head, t, m->c.n_embd, m->c.n_vocab, 1, e));
}

static bool load_all(loader *ld, err *e)
{
    qwen35 *m = ld->m;
    if (!role_matrix(&ld->g, &m->embed, QWEN35_EMBED, 0, e) || !load_head(ld, e) ||
        !role_vector(&ld->g, &m->n_out, QWEN35_OUT_NORM, 0, 1, e))
        return false;
    for (int l = 0; l < m->c.n_layers; l++) {
        qwen35_layer *y = &m->layers[l];
        if (!(m->c.full[l] ? qwen35_load_attention(&ld->g, y, l, e) : load_delta(ld, y, l, e)) ||
            !qwen35_load_ffn(&ld->g, y, l, e))
            return false;
    }
    return true;
}

/* --- pages, states, scratch ---------------------------------------------------------------------*/
/* Applies the kept rows that were accepted. The states of all layers are one class. */
static void replay_states(void *ctx, const kv_state *s, const kv_replay *r)
{
    qwen35     *m = ctx;
    queue      *q = m->t.q;
    delta_class c = m->delta;
    c.pool = s->pool, c.table = s->table, c.table_stride = s->table_stride, c.kept = s->kept;
    assert(r->n_items <= m->t.max_rows && r->n_rows <= m->t.max_rows);
    for (int i = 0; i < r->n_items; i++)
        m->replays[i] = (delta_replay_item){r->item[i].lane, r->item[i].pos, r->item[i].first, r->item[i].n};
    m->o->upload(q, m->s.replays, m->replays, (size_t)r->n_items * sizeof *m->replays);
    m->o->upload(q, m->s.places, r->row, (size_t)r->n_rows * sizeof *r->row);
    m->o->delta_replay(q, &c, m->s.replays, r->n_items, m->s.places);
}

static delta_class delta_of(const qwen35_config *c)
{
    return (delta_class){.n_k_heads = c->n_k_heads,
                         .n_v_heads = c->n_v_heads,
                         .head_dim  = c->delta_dim,
                         .n_taps    = c->n_taps,
                         .tiled     = c->tiled};
}

static void init_memory(qwen35 *m)
{
    const qwen35_config *c = &m->c;
    target              *t = &m->t;
    t->kv_class[0] =
        (kv_class_spec){.n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim, .types = {CACHE_F16, CACHE_F16}};
    t->n_kv_classes = 1;
    m->delta        = delta_of(c);
    for (int l = 0; l < c->n_layers; l++)
        m->layers[l].index = c->full[l] ? t->kv_class[0].n_layers++ : m->delta.n_layers++;
    size_t n           = (size_t)m->delta.n_layers * sizeof(float);
    m->delta.row_bytes = n * delta_kept_floats(&m->delta);
    if (!n) return;
    t->state[0]      = (kv_state_spec){n * delta_state_floats(&m->delta), m->delta.row_bytes, replay_states, m};
    t->n_states      = 1;
    t->max_kept_rows = t->max_rows;
}

static bool init_scratch(qwen35 *m, err *e)
{
    const qwen35_config *c        = &m->c;
    scratch             *s        = &m->s;
    qwen35_pass         *p        = &m->p;
    size_t               max_rows = (size_t)m->t.max_rows, values = (size_t)(c->n_v_heads * c->delta_dim);
    size_t               ch = (size_t)delta_channels(&m->delta), V = (size_t)c->n_v_heads;
    *p         = (qwen35_pass){.c = c, .o = m->o, .q = m->t.q, .own = &m->own, .max_rows = m->t.max_rows};
    m->paths   = xnew_n(int32_t, 2 * max_rows);
    m->replays = xnew_n(delta_replay_item, max_rows);
    return qwen35_pass_init(p, e) && qwen35_take_floats(p, &s->qkv, ch, e) && qwen35_take_floats(p, &s->conv, ch, e) &&
           qwen35_take_floats(p, &s->z, values, e) && qwen35_take_floats(p, &s->a, V, e) &&
           qwen35_take_floats(p, &s->b, V, e) && qwen35_take_floats(p, &s->values, values, e) &&
           qwen35_take_floats(p, &m->t.hidden, (size_t)c->n_embd, e) &&
           owned_buf(&m->own, &m->t.logits, (size_t)HEAD_ROWS * (size_t)c->n_vocab * sizeof(float), e) &&
           owned_buf(&m->own, &m->t.best, (size_t)HEAD_ROWS * SAMPLE_TOP_MAX * sizeof(token_logit), e) &&
           owned_buf(&m->own, &s->rows, step_bytes(m->t.max_rows), e) &&
           owned_buf(&m->own, &s->paths, 2 * max_rows * sizeof(int32_t), e) &&
           owned_buf(&m->own, &s->replays, max_rows * sizeof(delta_replay_item), e) &&
           owned_buf(&m->own, &s->places, max_rows * sizeof(int32_t), e);
}

static bool init_queue(qwen35 *m, err *e)
{
    const qwen35_config *c   = &m->c;
    queue_limits         lim = {m->t.max_rows, qwen35_widest(c), c->n_used, c->n_experts, c->n_vocab};
    return m->o->queue_new(m->o, &m->t.q, &lim, e);
}

/* --- the forward pass ---------------------------------------------------------------------------*/
/* f = Wout (N_o(delta rule(n)) * silu(z)) */
static void delta_block(qwen35 *m, const qwen35_layer *y, kv_pool *pool, const step_rows *r)
{
    const qwen35_config *c = &m->c;
    const ops           *o = m->o;
    queue               *q = m->t.q;
    const kv_state      *s = kv_pool_state(pool, 0);
    delta_class          d = m->delta;
    int                  n = r->n_rows, values = c->n_v_heads * c->delta_dim;
    d.pool = s->pool, d.table = s->table, d.table_stride = s->table_stride, d.kept = s->kept;
    o->matmul(q, m->s.qkv, y->qkv, m->p.n, n);
    o->matmul(q, m->s.z, y->z, m->p.n, n);
    o->matmul(q, m->s.a, y->a, m->p.n, n);
    o->matmul(q, m->s.b, y->b, m->p.n, n);
    o->conv(q, m->s.conv, m->s.qkv, y->conv, &d, y->index, r);
    o->delta(q, m->s.values, m->s.conv, m->s.a, m->s.b, y->rate, y->bias, &d, y->index, r);
    o->rms_norm(q, m->s.values, m->s.values, y->n_o, n * c->n_v_heads, c->delta_dim, c->eps);
    o->gated(q, m->s.z, m->s.z, values, m->s.values, values, n, values, c->delta_gate);
    o->matmul(q, m->p.f, y->out, m->s.z, n);
}

static void attention_block(qwen35 *m, const qwen35_layer *y, kv_pool *pool, const step_rows *r)
{
    const kv_class *kv = kv_pool_class(pool, 0);
    qwen35_make_heads(&m->p, y, kv, r);
    qwen35_attend(&m->p, y, kv, r);
}

static void run_layer(qwen35 *m, int l, kv_pool *pool, const step_rows *r)
{
    const qwen35_layer *y = &m->layers[l];
    captures_copy(&m->captured, &m->t, m->p.x, l, r->n_rows);
    m->o->rms_norm(m->t.q, m->p.n, m->p.x, y->n_in, r->n_rows, m->c.n_embd, m->c.eps);
    (m->c.full[l] ? attention_block : delta_block)(m, y, pool, r);
    qwen35_end_layer(&m->p, y, r->n_rows);
}

static void qwen35_embed(target *t, dev y, dev ids, int n)
{
    qwen35 *m = (qwen35 *)t;
    m->o->embed(t->q, y, m->embed, ids, n, 1);
}

/* From token ids to the wanted rows' final states. */
static void forward(qwen35 *m, kv_pool *kv, const step_rows *r, dev want, int n_want)
{
    target *t = &m->t;
    int     H = m->c.n_embd;
    qwen35_embed(t, m->p.x, r->token, r->n_rows);
    for (int l = 0; l < m->c.n_layers; l++) run_layer(m, l, kv, r);
    captures_copy(&m->captured, t, m->p.x, m->c.n_layers, r->n_rows);
    if (!n_want) return;
    m->o->copy_rows(t->q, m->p.n, H, m->p.x, H, want, n_want, H);
    m->o->rms_norm(t->q, t->hidden, m->p.n, m->n_out, n_want, H, m->c.eps);
}

/* Uploads the paths of the rows, for recurrent layers. */
static void upload_paths(qwen35 *m, const step *s, step_rows *r)
{
    int32_t *before = m->paths, *kept = m->paths + s->n_rows;
    for (int i = 0; i < s->n_rows; i++) {
        bool follows = i > 0 && s->lane[i - 1] == s->lane[i];
        before[i]    = s->parent[i] >= 0 ? s->parent[i] : follows ? i - 1 : -1;
        kept[i]      = -1;
    }
    for (int i = 0; i < s->n_kept; i++)
        for (int k = 0; k < s->kept[i].n; k++) kept[s->kept[i].first + k] = s->kept[i].at + k;
    m->o->upload(m->t.q, m->s.paths, m->paths, 2 * (size_t)s->n_rows * sizeof(int32_t));
    r->before = m->s.paths;
    r->kept   = dev_at(m->s.paths, (size_t)s->n_rows * sizeof(int32_t));
}

static uint64_t step_key(const qwen35 *m, const kv_pool *kv, const step *s)
{
    uint64_t key = graph_key_at(kv_pool_key(kv), m);
    return graph_key(graph_key(graph_key(key, m->captured.key), (uint64_t)s->n_rows), (uint64_t)s->n_want);
}

static bool qwen35_step(target *t, kv_pool *kv, const step *s, err *e)
{
    qwen35 *m = (qwen35 *)t;
    (void)e;
    assert(s->n_rows >= 1 && s->n_rows <= t->max_rows);
    for (int i = 0; i < s->n_rows; i++) assert(s->token[i] >= 0 && s->token[i] < t->n_vocab);
    fault_no_alloc_begin("step"); /* promise 4 */
    kv_pool_flush(kv, t->q);
    dev       want;
    step_rows r = step_upload(s, m->o, t->q, m->s.rows, &want);
    upload_paths(m, s, &r);
    bool done = s->n_rows <= GRAPH_MAX_ROWS && m->o->replay(t->q, step_key(m, kv, s));
    for (; !done; done = m->o->record_end(t->q)) forward(m, kv, &r, want, s->n_want);
    fault_no_alloc_end();
    return true;
}

static void qwen35_project(target *t, dev logits, dev hidden, int n)
{
    qwen35 *m = (qwen35 *)t;
    m->o->matmul(t->q, logits, m->head, hidden, n);
}

static void qwen35_head(target *t, int first, int n)
{
    assert(n >= 1 && n <= HEAD_ROWS && first + n <= t->max_rows);
    qwen35_project(t, t->logits, dev_at_f32(t->hidden, (size_t)first * (size_t)t->n_embd), n);
}

static void qwen35_head_top(target *t, int first, int n, int n_top)
{
    qwen35 *m = (qwen35 *)t;
    assert(n >= 1 && n <= HEAD_ROWS && first + n <= t->max_rows);
    m->o->matmul_top(t->q, t->best, m->head, dev_at_f32(t->hidden, (size_t)first * (size_t)t->n_embd), n, 0, n_top);
}

static bool qwen35_capture(target *t, const int *ids, int n_ids, err *e)
{
    return captures_select(&((qwen35 *)t)->captured, t, ids, n_ids, e);
}

/* --- open and close -----------------------------------------------------------------------------*/
static void qwen35_close(target *t)
{
    qwen35 *m = (qwen35 *)t;
    captures_free(t);
    owned_free(&m->own);
    if (t->q) m->o->queue_free(t->q);
    mem_free(m->layers);
    mem_free(m->paths);
    mem_free(m->replays);
    ops_close(m->o);
    mem_free(m);
}

static void init_target(qwen35 *m, const model_options *opt)
{
    const qwen35_config *c = &m->c;
    m->t                   = (target){.o        = m->o,
                                      .n_layers = c->n_layers,
                                      .n_embd   = c->n_embd,
                                      .n_vocab  = c->n_vocab,
                                      .n_ctx    = c->n_ctx,
                                      .max_rows = opt->max_rows ? opt->max_rows : STEP_DEFAULT_ROWS,
                                      .capture  = qwen35_capture,
                                      .step     = qwen35_step,
                                      .head     = qwen35_head,
                                      .head_top = m->o->matmul_top ? qwen35_head_top : NULL,
                                      .embed    = qwen35_embed,
                                      .project  = qwen35_project,
                                      .close    = qwen35_close};
    owned_init(&m->own, m->o, c->n_layers * 24 + 64);
    m->layers = xnew_n(qwen35_layer, (size_t)c->n_layers);
}

/* Shapes first: they bound every size that the queue and the scratch are given. */
static bool load_model(loader *ld, err *e)
{
    qwen35 *m   = ld->m;
    ld->g.b.dry = true;
    if (!load_all(ld, e) || !init_queue(m, e)) return false;
    m->own.q = m->t.q;
    bind_begin(&ld->g.b);
    if (!load_all(ld, e) || !init_scratch(m, e)) return false;
    m->t.weight_bytes = m->own.weight_bytes;
    m->t.n_params     = m->own.n_params;
    return true;
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
    out->kv_class[0] = (kv_class_spec){
        .n_layers = out->n_full, .n_kv_heads = c.n_kv_heads, .head_dim = c.head_dim, .types = types->full};
    out->n_kv_classes = 1;
    delta_class d     = delta_of(&c);
    out->state_bytes  = (double)((size_t)(c.n_layers - out->n_full) * delta_state_floats(&d) * sizeof(float));
    return true;
}

bool qwen35_open(target **out, const checkpoint *cp, const model_options *opt, ops *o, err *e)
{
    qwen35 *m  = xnew(qwen35);
    binder  b  = {.cp = cp, .own = &m->own, .progress = opt->progress, .progress_ctx = opt->progress_ctx};
    loader  ld = {m, role_binder_of(b, &qwen35_roles, &m->c)};
    *out       = NULL;
    m->o       = o;
    if (!qwen35_config_read(&m->c, cp, e) ||
        (!o->delta && !err_set(e, ERR_INPUT, "Qwen 3.5 models do not run on %s yet: use --device cpu", o->name))) {
        ops_close(o);
        mem_free(m);
        return false;
    }
    init_target(m, opt);
    init_memory(m);
    bool ok = load_model(&ld, e);
    bind_end(&ld.g.b);
    if (!ok) {
        qwen35_close(&m->t);
        return false;
    }
    *out = &m->t;
    return true;
}
