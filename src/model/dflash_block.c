/* Makes DFlash drafts: one pass over the blocks of several lanes, then picks draft tokens. */
#include "base/fault.h"
#include "model/dflash_inside.h"
#include "ops/joined.h"

#include <assert.h>
#include <math.h>

/* --- rows of a pass ------------------------------------------------------------------------------*/
static void add_padding(block_rows *b, int n)
{
    for (int i = b->n; i < n; i++) {
        b->token[i] = b->lane[i] = b->last_full[i] = b->last_sliding[i] = -1;
        b->pos[i] = b->slot[i] = b->root[i] = b->place[i] = 0;
    }
}

step_rows dflash_upload_rows(dflash *m, int n_rows)
{
    dev d = m->s.rows;
    add_padding(&m->rows, n_rows);
    m->o->upload(m->q, d, &m->rows, sizeof m->rows);
    return (step_rows){.n_rows = n_rows,
                       .token  = dev_at(d, offsetof(block_rows, token)),
                       .pos    = dev_at(d, offsetof(block_rows, pos)),
                       .lane   = dev_at(d, offsetof(block_rows, lane)),
                       .slot   = dev_at(d, offsetof(block_rows, slot)),
                       .parent =
                           dev_at(d, offsetof(block_rows, slot)), /* not read: all attended slots are below root */
                       .root = dev_at(d, offsetof(block_rows, root)),
                       .last = dev_at(d, offsetof(block_rows, last_full))};
}

void dflash_add_row(dflash *m, const draft_lane *l, int32_t token, int32_t slot, int32_t first, int32_t end)
{
    const dflash_config *c       = &m->c;
    block_rows          *b       = &m->rows;
    int                  i       = b->n++;
    int32_t              in_view = slot + c->window - 1 < end ? slot + c->window - 1 : end;
    assert(i < MAX_ROWS);
    b->token[i]        = token;
    b->pos[i]          = l->base + (slot < KV_PAGE ? slot : slot + l->shift);
    b->lane[i]         = kv_seq_lane(l->seq);
    b->slot[i]         = slot;
    b->root[i]         = end + 1;
    b->last_full[i]    = c->causal_full ? slot : end;
    b->last_sliding[i] = c->causal_sliding ? slot : in_view;
    b->place[i]        = slot - first;
}

/* k = rope(N_k(Wk x)), v = Wv x, into the pages. In layers like Gemma 4's V is normalised, and may be K. */
void dflash_store_kv(dflash *m, int l, dev x, const step_rows *r)
{
    const dflash_config *c  = &m->c;
    const ops           *o  = m->o;
    const layer         *y  = &m->layers[l];
    int                  nk = c->n_kv_heads, D = c->head_dim, n = r->n_rows * nk;
    ops_matmuls(o, m->q, (dev[]){m->s.k, m->s.v}, (const weight *[]){y->k, y->v}, y->v ? 2 : 1, x, r->n_rows);
    if (c->gemma) o->rms_norm(m->q, m->s.v, y->v ? m->s.v : m->s.k, (dev){0}, n, D, (float)c->eps);
    o->rms_norm(m->q, m->s.k, m->s.k, y->n_k, n, D, (float)c->eps);
    o->rope(m->q, m->s.k, r, nk, D, &m->rope);
    o->kv_store(m->q, kv_pool_class(m->kv, m->cls), l, r, m->s.k, m->s.v);
}

/* Replays a recorded pass over the rows. Returns false when it must be enqueued op by op. */
bool dflash_replay(dflash *m, dev x, int n_rows)
{
    uint64_t key = graph_key_at(graph_key_at(kv_pool_key(m->kv), m), x.p);
    return n_rows <= GRAPH_MAX_ROWS && m->o->replay(m->q, graph_key(key, (uint64_t)n_rows));
}

/* --- a block ------------------------------------------------------------------------------------*/
/* Returns the rows convolved with half 0, before a sublayer, or half 1, after it, of the kernels in s.delta. */
static dev convolve(dflash *m, const layer_conv *v, dev x, int half, int n)
{
    const dflash_config *c    = &m->c;
    int                  taps = c->n_taps, groups = c->n_embd / c->group;
    conv_rows            rows = {.y            = m->s.z,
                                 .x            = x,
                                 .base         = dev_at_f32(v->base, (size_t)(half * taps * c->n_embd)),
                                 .delta        = dev_at_f32(m->s.delta, (size_t)(half * taps * groups)),
                                 .place        = dev_at(m->s.rows, offsetof(block_rows, place)),
                                 .delta_stride = 2 * taps * groups,
                                 .n            = c->n_embd,
                                 .n_taps       = taps,
                                 .group        = c->group};
    m->o->block_conv(m->q, &rows, n);
    return m->s.z;
}

/* Returns the input of a sublayer: N(x), convolved if there is a convolution. */
static dev sublayer_in(dflash *m, dev norm, const layer_conv *v, int n)
{
    m->o->rms_norm(m->q, m->s.y, m->s.x, norm, n, m->c.n_embd, (float)m->c.eps);
    if (!v->kernel) return m->s.y;
    m->o->matmul(m->q, m->s.delta, v->kernel, m->s.y, n);
    return convolve(m, v, m->s.y, 0, n);
}

/* x = x + s.f, convolved or normalised first if the layer does; then times `scale`. */
static void sublayer_out(dflash *m, dev norm, const layer_conv *v, int n, float scale)
{
    size_t H = (size_t)m->c.n_embd;
    dev    f = v->kernel ? convolve(m, v, m->s.f, 1, n) : m->s.f;
    if (norm.p)
        m->o->rms_norm_add(m->q, m->s.x, m->s.x, f, norm, n, (int)H, (float)m->c.eps, scale);
    else
        m->o->add(m->q, m->s.x, m->s.x, f, (size_t)n * H, scale);
}

/* x = x + Wo attention(N_in(x)) */
static void attention_block(dflash *m, int l, const step_rows *r)
{
    const dflash_config *c    = &m->c;
    const ops           *o    = m->o;
    const layer         *y    = &m->layers[l];
    int                  n    = r->n_rows;
    step_rows            seen = *r;
    head_rows            h    = {.q       = m->s.q,
                                 .k       = m->s.k,
                                 .v       = m->s.v,
                                 .w_q     = y->n_q,
                                 .w_k     = y->n_k,
                                 .rope    = m->rope,
                                 .n_heads = c->n_heads,
                                 .layer   = l,
                                 .norm_v  = c->gemma,
                                 .k_as_v  = !y->v,
                                 .c       = kv_pool_class(m->kv, m->cls),
                                 .eps     = (float)c->eps};
    dev                  x    = sublayer_in(m, y->n_in, &y->attn_conv, n);
    ops_matmuls(o, m->q, (dev[]){h.q, h.k, h.v}, (const weight *[]){y->q, y->k, y->v}, y->v ? 3 : 2, x, n);
    ops_heads(o, m->q, &h, r);
    seen.pos = r->slot;
    if (c->sliding[l]) seen.last = dev_at(m->s.rows, offsetof(block_rows, last_sliding));
    o->attention(m->q, m->s.heads, m->s.q, c->n_heads, h.c, l, &seen, m->attention_scale,
                 c->sliding[l] ? c->window : m->full_window);
    o->matmul(m->q, m->s.f, y->o, m->s.heads, n);
    sublayer_out(m, y->n_after_attn, &y->attn_conv, n, 1);
}

/* x = x + Wdown(act(Wgate z) * Wup z), z = N_ff(x) */
static void dense_block(dflash *m, int l, int n)
{
    const dflash_config *c = &m->c;
    const ops           *o = m->o;
    const layer         *y = &m->layers[l];
    int                  F = c->n_ff;
    dev                  x = sublayer_in(m, y->n_ff, &y->ff_conv, n);
    ops_matmuls(o, m->q, (dev[]){m->s.gate, m->s.up}, (const weight *[]){y->gate, y->up}, 2, x, n);
    o->gated(m->q, m->s.gate, m->s.gate, F, m->s.up, F, n, F, c->gemma ? ACT_GELU_TANH : ACT_SILU);
    o->matmul(m->q, m->s.f, y->down, m->s.gate, n);
    sublayer_out(m, y->n_after_ff, &y->ff_conv, n, y->scale);
}

/* y = x * factor, rows of n_embd */
static void scale_rows(dflash *m, dev y, dev x, int n, float factor)
{
    m->o->add(m->q, y, x, x, (size_t)n * (size_t)m->c.n_embd, factor / 2);
}

static void embed_rows(dflash *m, const step_rows *r)
{
    target *t = m->d.t;
    if (m->embed) {
        m->o->embed(m->q, m->s.x, m->embed, r->token, r->n_rows, m->embed_scale);
        return;
    }
    t->embed(t, m->s.x, r->token, r->n_rows);
    if (m->embed_scale != 1) scale_rows(m, m->s.x, m->s.x, r->n_rows, m->embed_scale);
}

static void run_layers(dflash *m, const step_rows *r)
{
    embed_rows(m, r);
    for (int l = 0; l < m->c.n_layers; l++) {
        attention_block(m, l, r);
        dense_block(m, l, r->n_rows);
    }
    m->o->rms_norm(m->q, m->s.y, m->s.x, m->n_out, r->n_rows, m->c.n_embd, (float)m->c.eps);
}

/* Runs the rows, and padding up to n_rows, through all layers. s.y has them after the last norm. */
static void forward(dflash *m, int n_rows)
{
    kv_pool_flush(m->kv, m->q);
    step_rows r = dflash_upload_rows(m, n_rows);
    for (bool done = dflash_replay(m, m->s.rows, n_rows); !done; done = m->o->record_end(m->q)) run_layers(m, &r);
}

/* The second time a pass is recorded. */
void dflash_warm(drafter *d, kv_pool *kv)
{
    dflash *m = (dflash *)d;
    (void)kv; /* not used: the context has its own pages */
    m->rows.n = 0;
    for (int n = 0; (n = graph_rows_after(m->o, n, MAX_ROWS)) > 0;)
        for (int twice = 0; twice < 2; twice++) {
            forward(m, n);
            dflash_store_context(m, m->s.y, n);
        }
}

void dflash_project(dflash *m, dev logits, dev hidden, int n, float cap)
{
    target *t     = m->d.t;
    float   scale = (float)m->c.logit_scale;
    if (scale != 1) scale_rows(m, m->s.f, hidden, n, scale);
    dev x = scale != 1 ? m->s.f : hidden;
    if (m->head)
        m->o->matmul(m->q, logits, m->head, x, n);
    else
        t->project(t, logits, x, n);
    if (cap > 0) m->o->softcap(m->q, logits, (size_t)n * (size_t)(m->n_few ? m->n_few : t->n_vocab), cap);
}

void dflash_expand(dflash *m, dev logits, dev few, int n)
{
    m->o->scatter_logits(m->q, logits, few, (dev){0}, m->d2t, n, 1, m->n_few, m->d.t->n_vocab, INFINITY);
}

/* Computes the logits of all tokens. Applies the softcap before tokens outside a reduced vocabulary get -infinity. */
static void project_all(dflash *m, dev logits, dev hidden, int n, float cap)
{
    dflash_project(m, m->n_few ? m->s.few : logits, hidden, n, cap);
    if (m->n_few) dflash_expand(m, logits, m->s.few, n);
}

int dflash_wanted(const dflash *m, const draft_job *job) { return min_int(job->n_want, m->d.max_draft); }

int dflash_lead(const dflash *m) { return !m->c.anchored; }

int dflash_block_rows(const dflash *m, const draft_job *job)
{
    return m->whole_block ? m->c.block : dflash_lead(m) + dflash_wanted(m, job);
}

void dflash_gather(dflash *m, const int32_t *row, int n)
{
    int H = m->c.n_embd;
    m->o->upload(m->q, m->s.index, row, (size_t)n * sizeof *row);
    m->o->copy_rows(m->q, m->s.hidden, H, m->s.y, H, m->s.index, n, H);
}

/* Picks all rows, HEAD_ROWS at a time across jobs, since the output matrix is the largest weight. */
static bool pick_draft_tokens(dflash *m, draft_job *const *jobs, int n_jobs, err *e)
{
    for (int j = 0, done = 0, block = 0; j < n_jobs;) { /* block: first row of job j */
        draft_run run[HEAD_ROWS];
        int32_t   row[HEAD_ROWS];
        int       n = 0, n_runs = 0;
        while (j < n_jobs && n < HEAD_ROWS) {
            int left = dflash_wanted(m, jobs[j]) - done, k = left < HEAD_ROWS - n ? left : HEAD_ROWS - n;
            run[n_runs++] = (draft_run){jobs[j], done, k, n};
            for (int i = 0; i < k; i++) row[n++] = block + dflash_lead(m) + done++;
            if (k == left) block += dflash_block_rows(m, jobs[j++]), done = 0;
        }
        dflash_gather(m, row, n);
        project_all(m, m->s.logits, m->s.hidden, n, m->softcap);
        if (!draft_pick(&m->pick, run, n_runs, m->s.logits, (dev){0}, e)) return false;
    }
    return true;
}

/* Copies the n_rows rows of the first block to draft_hidden. The logits: DFlash, all rows before the softcap; the
 * others, the rows with a draft token, after it. */
static void keep_rows(dflash *m, int n_rows)
{
    drafter *d = &m->d;
    size_t   H = (size_t)m->c.n_embd, V = (size_t)d->t->n_vocab;
    bool     all  = m->c.kind == DFLASH_1;
    int      lead = all ? 0 : dflash_lead(m);
    if (!d->draft_hidden.p) return;
    m->o->copy_rows(m->q, d->draft_hidden, (int)H, m->s.y, (int)H, (dev){0}, n_rows, (int)H);
    for (int first = lead, n; first < n_rows; first += n) {
        n = min_int(n_rows - first, HEAD_ROWS);
        project_all(m, dev_at_f32(d->draft_logits, (size_t)(first - lead) * V),
                    dev_at_f32(d->draft_hidden, (size_t)first * H), n, all ? 0 : m->softcap);
    }
}

static bool add_block(dflash *m, const draft_job *job, err *e)
{
    draft_lane *l   = job->lane;
    int32_t     len = kv_seq_len(l->seq), end = len + dflash_block_rows(m, job) - 1;
    if (!kv_seq_grow(l->seq, end + 1, e)) return false;
    dflash_add_row(m, l, job->text[job->n_text - 1], len, len, end);
    for (int32_t s = len + 1; s <= end; s++) dflash_add_row(m, l, m->c.mask_id, s, len, end);
    return true;
}

/* Runs the blocks of these jobs. Their contexts must be complete. */
static bool run_blocks(dflash *m, draft_job *const *jobs, int n_jobs, err *e)
{
    bool ok   = true;
    m->rows.n = 0;
    for (int i = 0; ok && i < n_jobs; i++) ok = add_block(m, jobs[i], e);
    if (ok) forward(m, graph_rows(m->o, m->rows.n, MAX_ROWS));
    for (int i = 0; i < n_jobs; i++) { /* the next rows of the text use these slots */
        draft_lane *l = jobs[i]->lane;
        kv_seq_cut(l->seq, dflash_slot(l, l->n_seen));
    }
    return ok;
}

static bool draft_pass(dflash *m, draft_job *const *jobs, int n_jobs, bool first, err *e)
{
    if (!run_blocks(m, jobs, n_jobs, e)) return false;
    if (first) keep_rows(m, dflash_block_rows(m, jobs[0]));
    return m->c.rank ? dflash_pick_pairs(m, jobs, n_jobs, first, e) : pick_draft_tokens(m, jobs, n_jobs, e);
}

/* Runs as many blocks per pass as there are rows. */
static bool draft_passes(dflash *m, draft_job *const *jobs, int n_jobs, err *e)
{
    for (int i = 0, end; i < n_jobs; i = end) {
        int rows = 0;
        for (end = i; end < n_jobs && rows + dflash_block_rows(m, jobs[end]) <= MAX_ROWS; end++)
            rows += dflash_block_rows(m, jobs[end]);
        if (!draft_pass(m, jobs + i, end - i, i == 0, e)) return false;
    }
    return draft_pick_read(&m->pick, e);
}

/* Selects the jobs whose context matches their text. The others get no draft. */
static bool draft_all(dflash *m, draft_job *const *jobs, int n_jobs, err *e)
{
    draft_job  **live  = m->live;
    draft_lane **lanes = m->drafting;
    int          n     = 0;
    for (int i = 0; i < n_jobs; i++)
        if (jobs[i]->n_want > 0 && dflash_next_pos(jobs[i]->lane) == jobs[i]->n_text - 1) {
            live[n]    = jobs[i];
            lanes[n++] = jobs[i]->lane;
        }
    if (n == 0) return true;
    draft_pick_begin(&m->pick);
    if (!dflash_fold_together(m, lanes, n, e)) return false;
    for (int i = 0; i < n; i++)
        if (!dflash_rotate_first(m, lanes[i], e)) return false;
    return draft_passes(m, live, n, e);
}

bool dflash_draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e)
{
    assert(n_jobs <= ((dflash *)d)->max_lanes);
    (void)kv; /* not used: the context has its own pages */
    for (int i = 0; i < n_jobs; i++) jobs[i]->n = 0, jobs[i]->later = false;
    fault_no_alloc_begin("draft"); /* promise 4 */
    bool ok = draft_all((dflash *)d, jobs, n_jobs, e);
    fault_no_alloc_end();
    for (int i = 0; !ok && i < n_jobs; i++) {
        jobs[i]->n = 0;
        dflash_lose((dflash *)d, jobs[i]->lane);
    }
    return ok;
}
