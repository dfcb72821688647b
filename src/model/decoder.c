#include "model/decoder.h"

#include "base/fault.h"
#include "base/mem.h"
#include "base/num.h"

#include <assert.h>

/* --- captures -----------------------------------------------------------------------------------*/
static void free_features(target *t)
{
    if (t->features.p) t->o->free(t->o, t->features);
    t->features   = (dev){0};
    t->n_features = 0;
    t->feature_id = NULL;
}

static bool select_features(target *t, const int *ids, int n_ids, err *e)
{
    decoder *d    = (decoder *)t;
    dev      room = {0};
    assert(n_ids >= 0 && n_ids <= t->n_layers + 1);
    if (n_ids && !t->o->alloc(t->o, &room, (size_t)t->max_rows * (size_t)n_ids * (size_t)t->n_embd * sizeof(float), e))
        return err_wrap(e, "cannot keep the hidden states of %d layers", n_ids);
    free_features(t);
    d->capture_key = 0;
    if (!n_ids) return true;
    t->features = room;
    for (int i = 0; i < n_ids; i++) {
        assert(ids[i] >= 0 && ids[i] <= t->n_layers);
        d->capture_id[i] = ids[i];
        d->capture_key   = graph_key(d->capture_key, (uint64_t)ids[i]);
    }
    d->capture_key = graph_key_at(d->capture_key, t->features.p);
    t->n_features  = n_ids;
    t->feature_id  = d->capture_id;
    return true;
}

void decoder_capture(const decoder *d, int h, int n_rows)
{
    const target *t = &d->t;
    int           H = t->n_embd;
    for (int i = 0; i < t->n_features; i++)
        if (d->capture_id[i] == h)
            d->o->copy_rows(t->q, dev_at_f32(t->features, (size_t)i * (size_t)H), t->n_features * H, d->x, H, (dev){0},
                            n_rows, H);
}

/* --- rows that nobody reads ---------------------------------------------------------------------*/
/* Returns the layer in which they end: what is captured is captured of every row. */
static int narrow_layer(const decoder *d)
{
    int l = d->last_store;
    for (int i = 0; i < d->t.n_features; i++) l = max_int(l, d->capture_id[i]);
    return l;
}

void decoder_gather(const decoder *d, const layer_rows *r, dev rows, int n, dev scratch)
{
    d->o->copy_rows(d->t.q, scratch, n, rows, n, r->read_at, r->read.n_rows, n);
    d->o->copy_rows(d->t.q, rows, n, scratch, n, (dev){0}, r->read.n_rows, n);
}

void decoder_narrow(const decoder *d, const layer_rows *r)
{
    if (d->o->padding) d->o->padding(d->t.q, r->read.lane);
    decoder_gather(d, r, d->x, d->t.n_embd, d->n);
}

/* --- a step -------------------------------------------------------------------------------------*/
static void embed_tokens(target *t, dev y, dev ids, int n)
{
    decoder *d = (decoder *)t;
    d->o->embed(t->q, y, d->embed, ids, n, d->embed_scale);
}

/* Replaces the embeddings of rows whose own are given. */
static void put_soft_rows(decoder *d, const step *s)
{
    size_t H = (size_t)d->t.n_embd;
    for (int i = 0; i < s->n_soft; i++)
        d->o->upload(d->t.q, dev_at_f32(d->x, (size_t)s->soft[i].first * H), s->soft[i].x,
                     (size_t)s->soft[i].n * H * sizeof(float));
}

/* From token ids to the wanted rows' final states. */
static void forward(decoder *d, kv_pool *kv, const step *s, const layer_rows *r, dev want, int n_want)
{
    target *t = &d->t;
    int     H = t->n_embd;
    if (d->o->padding) d->o->padding(t->q, r->all.lane);
    embed_tokens(t, d->x, r->all.token, r->all.n_rows);
    put_soft_rows(d, s);
    d->run_layers(d, kv, r);
    decoder_capture(d, t->n_layers, layer_rows_in(r, t->n_layers)->n_rows);
    if (d->o->padding) d->o->padding(t->q, (dev){0});
    if (!n_want) return;
    d->o->copy_rows(t->q, d->n, H, d->x, H, want, n_want, H);
    d->o->rms_norm(t->q, t->hidden, d->n, d->n_out, n_want, H, d->eps);
}

static uint64_t step_key(const decoder *d, const kv_pool *kv, int n_rows, bool few_lanes)
{
    uint64_t key = graph_key(graph_key(graph_key_at(kv_pool_key(kv), d), d->capture_key), (uint64_t)n_rows);
    return graph_key(key, few_lanes);
}

/* Returns whether attention of some layer takes step_rows.few_lanes into account. */
static bool asks_lanes(const decoder *d, const kv_pool *kv, int n_rows)
{
    for (int i = 0; d->o->asks_lanes && i < d->t.n_kv_classes; i++)
        if (d->o->asks_lanes(d->t.q, kv_pool_class(kv, i), n_rows)) return true;
    return false;
}

/* Runs the rows of s and padding up to n_rows. All rows of a step that may be recorded go through all layers, wanted or
 * not, so that recordings do not depend on which are. */
static void run_rows(decoder *d, kv_pool *kv, const step *s, int n_rows, bool few_lanes)
{
    target  *t       = &d->t;
    bool     records = d->o->padding && n_rows <= GRAPH_MAX_ROWS && !s->n_soft;
    int      narrow  = records || (s->n_soft && t->sees_ahead) ? t->n_layers : narrow_layer(d);
    unsigned parts   = (t->n_states ? STEP_PATHS : 0u) | (narrow < t->n_layers ? STEP_NARROW : 0u);
    if (t->sections) parts |= STEP_SECTIONS;
    kv_pool_flush(kv, t->q);
    step_upload_rows u = step_upload(s, n_rows, d->o, t->q, d->rows, parts);
    layer_rows       r = {u.all, u.read, u.read_at, u.narrow ? narrow : t->n_layers};
    d->ahead           = u.ahead;
    r.all.few_lanes    = few_lanes;
    if (records) r.all.chain_from = r.all.chain_to = r.all.chain_end = 0; /* it serves steps with other chains */
    bool done = records && d->o->replay(t->q, step_key(d, kv, n_rows, few_lanes));
    for (; !done; done = d->o->record_end(t->q)) forward(d, kv, s, &r, u.want, records ? n_rows : s->n_want);
}

static bool run_step(target *t, kv_pool *kv, const step *s, err *e)
{
    decoder *d = (decoder *)t;
    (void)e; /* device errors appear in ops->check */
    assert(s->n_rows >= 1 && s->n_rows <= t->max_rows);
    for (int i = 0; i < s->n_rows; i++) assert(s->token[i] >= 0 && s->token[i] < t->n_vocab);
    fault_no_alloc_begin("step"); /* promise 4 */
    int n_rows = graph_rows(d->o, s->n_rows, t->max_rows);
    run_rows(d, kv, s, n_rows, step_has_few_lanes(s) && asks_lanes(d, kv, n_rows));
    fault_no_alloc_end();
    return true;
}

/* The second time a step is recorded. */
static void warm_steps(target *t, kv_pool *kv)
{
    decoder *d = (decoder *)t;
    step     empty;
    step_init(&empty, t->max_rows);
    for (int n = 0; (n = graph_rows_after(d->o, n, t->max_rows)) > 0;) {
        for (int few_lanes = 0; few_lanes <= asks_lanes(d, kv, n); few_lanes++)
            for (int twice = 0; twice < 2; twice++) run_rows(d, kv, &empty, n, few_lanes);
        t->head(t, 0, min_int(n, HEAD_ROWS));
    }
    step_deinit(&empty);
}

/* --- the output matrix --------------------------------------------------------------------------*/
static dev hidden_row(const target *t, int first, int n)
{
    assert(n >= 1 && n <= HEAD_ROWS && first + n <= t->max_rows);
    return dev_at_f32(t->hidden, (size_t)first * (size_t)t->n_embd);
}

static void project(target *t, dev logits, dev hidden, int n)
{
    decoder *d = (decoder *)t;
    d->o->matmul(t->q, logits, d->head, hidden, n);
}

static void run_head(target *t, int first, int n)
{
    decoder *d = (decoder *)t;
    fault_no_alloc_begin("head");
    project(t, t->logits, hidden_row(t, first, n), n);
    if (t->softcap > 0) d->o->softcap(t->q, t->logits, (size_t)n * (size_t)t->n_vocab, t->softcap);
    fault_no_alloc_end();
}

static void run_head_top(target *t, int first, int n, int n_top)
{
    decoder *d = (decoder *)t;
    fault_no_alloc_begin("head_top");
    d->o->matmul_top(t->q, t->best, d->head, hidden_row(t, first, n), n, t->softcap, n_top);
    fault_no_alloc_end();
}

/* --- open and close -----------------------------------------------------------------------------*/
void decoder_init(decoder *d, const target *sizes, ops *o, const model_options *opt)
{
    target *t = &d->t;
    assert(sizes->n_layers <= DECODER_MAX_LAYERS);
    *t          = *sizes;
    d->o        = o;
    t->o        = o;
    t->max_rows = opt->max_rows ? opt->max_rows : o->default_rows ? o->default_rows : STEP_DEFAULT_ROWS;
    t->capture  = select_features;
    t->step     = run_step;
    t->warm     = warm_steps;
    t->head     = run_head;
    t->head_top = o->matmul_top ? run_head_top : NULL;
    t->embed    = embed_tokens;
    t->project  = project;
    t->close    = decoder_close;
    owned_init(&d->own, o, t->n_layers * 24 + 64);
}

bool decoder_take_floats(decoder *d, dev *out, size_t n, err *e)
{
    return owned_buf(&d->own, out, (size_t)d->t.max_rows * n * sizeof(float), e);
}

static bool init_results(decoder *d, err *e)
{
    target *t = &d->t;
    size_t  H = (size_t)t->n_embd;
    return decoder_take_floats(d, &d->x, H, e) && decoder_take_floats(d, &d->n, H, e) &&
           decoder_take_floats(d, &t->hidden, H, e) &&
           owned_buf(&d->own, &t->logits, (size_t)HEAD_ROWS * (size_t)t->n_vocab * sizeof(float), e) &&
           owned_buf(&d->own, &t->best, (size_t)HEAD_ROWS * SAMPLE_TOP_MAX * sizeof(token_logit), e) &&
           owned_buf(&d->own, &d->rows, step_bytes(t->max_rows), e);
}

bool decoder_load(decoder *d, role_binder *g, const queue_limits *lim, err *e)
{
    g->b.dry = true;
    bool ok  = d->load(d, g, e) && d->o->queue_new(d->o, &d->t.q, lim, e);
    d->own.q = d->t.q;
    if (ok) bind_begin(&g->b);
    ok = ok && d->load(d, g, e) && init_results(d, e) && d->init_scratch(d, g->b.cp, e);
    bind_end(&g->b);
    d->t.weight_bytes = d->own.weight_bytes;
    d->t.n_params     = d->own.n_params;
    return ok;
}

void decoder_close(target *t)
{
    decoder *d = (decoder *)t;
    ops     *o = d->o;
    free_features(t);
    owned_free(&d->own);
    if (t->q) o->queue_free(t->q);
    d->free_layers(d);
    ops_close(o);
    mem_free(d);
}
