/* Draft tokens that depend on the token before, picked from left to right. With a the token before, o the state of a
 * row after the last norm, and u its logits:
 *
 *   DSpark     z = u + W2 W1[a]                        over all tokens
 *              confidence = sigmoid(w [o; W1[a]] + b)  that the token is accepted, given that those before it are
 *   DFlash-2   z[b] = u[b] + sum_i A[a]_i (Hp o)_i S[b]_i    over the n_top tokens b with the largest u
 *
 * On a processor DSpark scores the SPARK_TOP tokens with the largest u alone: W2 has a row for every token, and reading
 * all of them for each draft token takes long. The rows of several jobs share rounds: round i picks the next token of
 * each. */
#include "model/dflash_inside.h"

#include <math.h>

/* The rows of a job that are picked together. */
typedef struct {
    draft_job *job;
    int        nth;      /* index of the job in the pass */
    int        first, n; /* draft tokens of the job */
    int        at;       /* first row of the logits */
} pair_run;

enum { SPARK_TOP = 64 };
enum { BELOW = 100 }; /* the logits of other tokens, below those of the candidates, where a bias may ban these */

static bool take(dflash *m, dev *out, int rows, int n, err *e)
{
    return owned_buf(&m->own, out, (size_t)rows * (size_t)n * sizeof(float), e);
}

/* Returns the candidates per row; 0: all tokens. */
static int candidates(const dflash *m, bool keep_rows)
{
    bool few = m->o->n_threads > 0 && !keep_rows && !m->n_few && m->d.t->n_vocab > 4 * SPARK_TOP;
    return m->c.kind == DFLASH_2 ? m->c.n_top : few ? SPARK_TOP : 0;
}

bool dflash_pairs_init(dflash *m, bool keep_rows, err *e)
{
    const dflash_config *c = &m->c;
    pair_scratch        *s = &m->s.pairs;
    int                  R = HEAD_ROWS, K = m->n_top = candidates(m, keep_rows);
    sample_params        likeliest[HEAD_ROWS];
    for (int i = 0; i < R; i++) likeliest[i] = (sample_params){.top_p = 1};
    if (!c->rank) return true;
    return take(m, &s->prev, MAX_ROWS, 1, e) && take(m, &s->id, R, 1, e) && take(m, &s->row, R, c->rank, e) &&
           take(m, &s->logits, R, m->d.t->n_vocab, e) && (!m->n_few || take(m, &s->few, R, m->n_few, e)) &&
           (!c->conf || (take(m, &s->conf_in, R, c->n_embd + c->rank, e) && take(m, &s->conf, R, 1, e))) &&
           (c->kind != DFLASH_2 || take(m, &s->middle, R, c->rank, e)) &&
           (!K || (owned_put(&m->own, &s->params, likeliest, sizeof likeliest, e) &&
                   owned_buf(&m->own, &s->top, (size_t)(R * K) * sizeof(token_logprob), e) &&
                   take(m, &s->top_id, R, K, e) && take(m, &s->after, R * K, c->rank, e)));
}

/* --- logits of a round --------------------------------------------------------------------------*/
static dev round_logits(const dflash *m, int i)
{
    return dev_at_f32(m->s.pairs.logits, (size_t)i * (size_t)m->d.t->n_vocab);
}

/* Adds the bias of the token before to the logits of row `nth` of each run. */
static void spark_logits(dflash *m, const pair_run *const *run, int n, int nth)
{
    pair_scratch *s  = &m->s.pairs;
    size_t        V  = (size_t)(m->n_few ? m->n_few : m->d.t->n_vocab);
    dev           to = m->n_few ? s->few : s->logits, from = m->n_few ? m->s.few : m->s.logits;
    m->o->matmul(m->q, to, m->w2, s->row, n);
    for (int i = 0; i < n; i++) {
        dev y = dev_at_f32(to, (size_t)i * V);
        m->o->add(m->q, y, y, dev_at_f32(from, (size_t)(run[i]->at + nth) * V), V, 1);
    }
    if (m->n_few) dflash_expand(m, s->logits, s->few, n);
}

/* Scores the candidates of row `nth` of each run. */
static void selected_logits(dflash *m, const pair_run *const *run, int n, int nth)
{
    pair_scratch *s = &m->s.pairs;
    size_t        K = (size_t)m->n_top, rank = (size_t)m->c.rank;
    for (int i = 0; i < n; i++) {
        size_t    row = (size_t)(run[i]->at + nth);
        pair_rows p   = {.y       = round_logits(m, i),
                         .top     = dev_at(s->top, row * K * sizeof(token_logprob)),
                         .a       = dev_at_f32(s->row, (size_t)i * rank),
                         .b       = s->middle.p ? dev_at_f32(s->middle, row * rank) : (dev){0},
                         .c       = dev_at_f32(s->after, row * K * rank),
                         .n_top   = m->n_top,
                         .n       = m->c.rank,
                         .n_vocab = m->d.t->n_vocab,
                         .below   = run[i]->job->history ? BELOW : INFINITY};
        m->o->pair_logits(m->q, &p, 1);
    }
}

/* Finds the candidates of n rows, whose logits are computed. */
static void find_candidates(dflash *m, int n)
{
    pair_scratch *s = &m->s.pairs;
    int           K = m->n_top;
    m->o->sample_top(m->q, s->top, m->s.logits, s->params, n, m->d.t->n_vocab, K, 1);
    m->o->copy_rows(m->q, s->top_id, 1, s->top, 2, (dev){0}, n * K, 1); /* ids, copied as floats: 4 bytes each */
    m->o->embed(m->q, s->after, m->after ? m->after : m->w2, s->top_id, n * K, 1);
}

/* --- confidence ---------------------------------------------------------------------------------*/
/* Copies what the confidence reads of the token before. */
static void note_pairs(dflash *m, const pair_run *const *run, int n, int nth)
{
    size_t H = (size_t)m->c.n_embd, rank = (size_t)m->c.rank, wide = (size_t)m->conf->n_in;
    if (!m->c.conf || !m->c.conf_pairs) return;
    for (int i = 0; i < n; i++)
        m->o->copy_rows(m->q, dev_at_f32(m->s.pairs.conf_in, (size_t)(run[i]->at + nth) * wide + H), (int)wide,
                        dev_at_f32(m->s.pairs.row, (size_t)i * rank), (int)rank, (dev){0}, 1, (int)rank);
}

/* Computes the confidences of the runs' jobs, unless the host waits for none of their tokens. */
static bool read_confidence(dflash *m, const pair_run *run, int n_runs, int n, err *e)
{
    float logit[HEAD_ROWS];
    bool  wanted = false;
    for (int i = 0; i < n_runs; i++) wanted |= !run[i].job->later;
    if (!m->c.conf || !wanted) return true;
    if (!draft_pick_read(&m->pick, e)) return false;
    m->o->matmul(m->q, m->s.pairs.conf, m->conf, m->s.pairs.conf_in, n);
    m->o->download(m->q, logit, m->s.pairs.conf, (size_t)n * sizeof *logit);
    m->o->sync(m->q);
    if (!m->o->check(m->q, e)) return false;
    for (int i = 0; i < n_runs; i++)
        for (int k = 0; k < run[i].n; k++)
            run[i].job->confidence[run[i].first + k] = 1 / (1 + expf(-logit[run[i].at + k] - m->conf_bias));
    return true;
}

/* --- rounds -------------------------------------------------------------------------------------*/
/* Writes the rows of the tokens before to s.row. */
static void read_before(dflash *m, const pair_run *const *run, int n)
{
    pair_scratch *s = &m->s.pairs;
    int32_t       index[HEAD_ROWS];
    bool          spark = m->c.kind == DFLASH_SPARK;
    for (int i = 0; i < n; i++) index[i] = run[i]->nth;
    m->o->upload(m->q, m->s.index, index, (size_t)n * sizeof *index);
    m->o->copy_rows(m->q, s->id, 1, s->prev, 1, m->s.index, n, 1);
    m->o->embed(m->q, s->row, spark ? m->w1 : m->before, s->id, n, 1);
}

/* Picks one token of each run, and stores it as the last token of its job. */
static bool pick_next(dflash *m, const pair_run *const *some, int n, int nth, bool keep, err *e)
{
    pair_scratch *s = &m->s.pairs;
    draft_run     run[HEAD_ROWS];
    size_t        V = (size_t)m->d.t->n_vocab;
    for (int i = 0; i < n; i++) run[i] = (draft_run){some[i]->job, some[i]->first + nth, 1, i};
    if (keep && some[0]->nth == 0 && m->d.draft_logits.p && m->c.kind == DFLASH_SPARK)
        m->o->copy_rows(m->q, dev_at_f32(m->d.draft_logits, (size_t)run[0].first * V), (int)V, round_logits(m, 0),
                        (int)V, (dev){0}, 1, (int)V);
    if (!draft_pick(&m->pick, run, n, s->logits, s->id, e)) return false;
    for (int i = 0; i < n; i++) /* copied as floats: 4 bytes each */
        m->o->copy_rows(m->q, dev_at(s->prev, (size_t)some[i]->nth * sizeof(int32_t)), 1,
                        dev_at(s->id, (size_t)i * sizeof(int32_t)), 1, (dev){0}, 1, 1);
    return true;
}

/* Picks token `nth` of the runs that have as many. Returns false in *more when there is none. */
static bool pick_round(dflash *m, const pair_run *run, int n_runs, int nth, bool keep, bool *more, err *e)
{
    const pair_run *some[HEAD_ROWS];
    dev             row   = m->s.pairs.row;
    float           scale = m->c.kind == DFLASH_SPARK ? (float)m->c.logit_scale : 1;
    int             n     = 0;
    for (int i = 0; i < n_runs; i++)
        if (run[i].n > nth) some[n++] = &run[i];
    *more = n > 0;
    if (n == 0) return true;
    read_before(m, some, n);
    note_pairs(m, some, n, nth);
    if (scale != 1) m->o->add(m->q, row, row, row, (size_t)n * (size_t)m->c.rank, scale / 2);
    (m->n_top ? selected_logits : spark_logits)(m, some, n, nth);
    return pick_next(m, some, n, nth, keep, e);
}

/* Computes what does not depend on the tokens before, for the n rows of the runs. */
static void prepare_rows(dflash *m, const int32_t *row, int n)
{
    int H = m->c.n_embd;
    dflash_gather(m, row, n);
    if (m->c.conf) m->o->copy_rows(m->q, m->s.pairs.conf_in, m->conf->n_in, m->s.hidden, H, (dev){0}, n, H);
    if (m->c.kind == DFLASH_2) m->o->matmul(m->q, m->s.pairs.middle, m->middle, m->s.hidden, n);
    dflash_project(m, m->n_few ? m->s.few : m->s.logits, m->s.hidden, n, m->softcap);
    if (!m->n_top) return;
    if (m->n_few) dflash_expand(m, m->s.logits, m->s.few, n);
    find_candidates(m, n);
}

static bool pick_runs(dflash *m, const pair_run *run, int n_runs, const int32_t *row, int n, bool keep, err *e)
{
    bool more = true;
    prepare_rows(m, row, n);
    for (int nth = 0; more; nth++)
        if (!pick_round(m, run, n_runs, nth, keep, &more, e)) return false;
    return read_confidence(m, run, n_runs, n, e);
}

static void upload_anchors(dflash *m, draft_job *const *jobs, int n_jobs)
{
    int32_t anchor[MAX_ROWS] = {0};
    for (int i = 0; i < n_jobs; i++) anchor[i] = jobs[i]->text[jobs[i]->n_text - 1];
    m->o->upload(m->q, m->s.pairs.prev, anchor, (size_t)n_jobs * sizeof *anchor);
}

bool dflash_pick_pairs(dflash *m, draft_job *const *jobs, int n_jobs, bool keep, err *e)
{
    upload_anchors(m, jobs, n_jobs);
    for (int j = 0, done = 0, block = 0; j < n_jobs;) { /* block: first row of job j */
        pair_run run[HEAD_ROWS];
        int32_t  row[HEAD_ROWS];
        int      n = 0, n_runs = 0;
        while (j < n_jobs && n < HEAD_ROWS) {
            int left = dflash_wanted(m, jobs[j]) - done, k = min_int(left, HEAD_ROWS - n);
            run[n_runs++] = (pair_run){jobs[j], j, done, k, n};
            for (int i = 0; i < k; i++) row[n++] = block + dflash_lead(m) + done++;
            if (k == left) block += dflash_block_rows(m, jobs[j++]), done = 0;
        }
        if (!pick_runs(m, run, n_runs, row, n, keep, e)) return false;
    }
    return true;
}
