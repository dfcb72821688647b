/* Picks draft tokens from a drafter's logits, with the bias, penalties and sampling that the target's logits will
 * get. */
#include "base/mem.h"
#include "model/drafter.h"

#include <assert.h>
#include <math.h>

bool draft_picker_init(draft_picker *p, target *t, err *e)
{
    const ops *o = t->o;
    *p           = (draft_picker){.o = o, .q = t->q, .n_vocab = t->n_vocab};
    return o->alloc(o, &p->params, HEAD_ROWS * sizeof(sample_params), e) &&
           o->alloc(o, &p->picked, HEAD_ROWS * sizeof(int32_t), e) && o->alloc(o, &p->top, sizeof p->host_top, e) &&
           o->alloc(o, &p->confidence, HEAD_ROWS * sizeof(float), e) &&
           o->alloc(o, &p->changes, (size_t)t->n_vocab * sizeof(logit_change), e) &&
           ((p->host_changes = mem_try_n((size_t)t->n_vocab, sizeof(logit_change))) ||
            err_set(e, ERR_UNAVAILABLE, "no memory to count tokens"));
}

void draft_picker_deinit(draft_picker *p)
{
    const dev bufs[] = {p->params, p->picked, p->top, p->changes, p->confidence};
    for (size_t i = 0; i < COUNT(bufs); i++)
        if (bufs[i].p) p->o->free(p->o, bufs[i]);
    mem_free(p->host_changes);
    *p = (draft_picker){0};
}

static void upload_params(draft_picker *p, const draft_job *job, int first, int n)
{
    sample_params rows[HEAD_ROWS];
    for (int i = 0; i < n; i++) {
        rows[i]     = job->params;
        rows[i].pos = job->n_text + first + i; /* the first draft token follows the anchor */
    }
    p->o->upload(p->q, p->params, rows, (size_t)n * sizeof *rows);
}

static void pick_top(draft_picker *p, draft_job *job, dev logits, int first, int n)
{
    int k = job->n_top;
    upload_params(p, job, first, n);
    p->o->sample_top(p->q, p->top, logits, p->params, n, p->n_vocab, k, job->soft);
    p->o->download(p->q, p->host_top, p->top, (size_t)(n * k) * sizeof *p->host_top);
    p->o->sync(p->q);
    for (int i = 0; i < n; i++) {
        memcpy(job->top[first + i], p->host_top + i * k, (size_t)k * sizeof *p->host_top);
        job->token[first + i]      = job->top[first + i][0].id;
        job->confidence[first + i] = expf(job->top[first + i][0].logprob);
    }
}

/* Picks n tokens without candidates. */
static void pick_one_each(draft_picker *p, const draft_job *job, dev to, dev logits, int first, int n)
{
    if (job->params.temp <= 0) {
        p->o->argmax(p->q, to, logits, n, p->n_vocab);
        return;
    }
    upload_params(p, job, first, n);
    p->o->sample(p->q, to, logits, p->params, n, p->n_vocab);
}

static void leave_rows(draft_picker *p, draft_job *job, dev logits, int first, int n)
{
    pick_one_each(p, job, dev_at(job->device_tokens, (size_t)first * sizeof(int32_t)), logits, first, n);
    job->later = true;
}

static bool pick_rows(draft_picker *p, draft_job *job, dev logits, int first, int n, err *e)
{
    if (job->n_top > 0)
        pick_top(p, job, logits, first, n);
    else {
        pick_one_each(p, job, p->picked, logits, first, n);
        p->o->download(p->q, job->token + first, p->picked, (size_t)n * sizeof(int32_t));
        if (job->want_confidence) {
            p->o->confidence(p->q, p->confidence, logits, p->picked, n, p->n_vocab);
            p->o->download(p->q, job->confidence + first, p->confidence, (size_t)n * sizeof(float));
        }
        p->o->sync(p->q);
    }
    if (!p->o->check(p->q, e)) return false;
    for (int i = 0; i < n; i++)
        if (job->token[first + i] < 0)
            return err_set(e, ERR_FORMAT, "its output is not a number, or all its tokens are banned");
    return true;
}

/* Picks all rows at once: biases are the same for all. */
static bool pick_with_bias(draft_picker *p, draft_job *job, dev logits, int first, int n, err *e)
{
    int m = 0;
    for (int i = 0; i < n; i++) m += history_changes(job->history, job->penalty, i, false, p->host_changes + m);
    p->o->upload(p->q, p->changes, p->host_changes, (size_t)m * sizeof(logit_change));
    p->o->change_logits(p->q, logits, p->n_vocab, p->changes, m);
    return pick_rows(p, job, logits, first, n, e);
}

/* Picks row by row, since each draft token changes the penalties of the next row. */
static bool pick_with_penalties(draft_picker *p, draft_job *job, dev logits, int first, int n, err *e)
{
    bool ok = true;
    int  i  = 0;
    for (; i < first; i++) history_push(job->history, job->token[i]);
    for (; ok && i < first + n; i++) {
        dev row = dev_at_f32(logits, (size_t)(i - first) * (size_t)p->n_vocab);
        int m   = history_changes(job->history, job->penalty, 0, false, p->host_changes);
        p->o->upload(p->q, p->changes, p->host_changes, (size_t)m * sizeof(logit_change));
        p->o->change_logits(p->q, row, p->n_vocab, p->changes, m);
        ok = pick_rows(p, job, row, i, 1, e);
        if (ok) history_push(job->history, job->token[i]);
    }
    for (int k = ok ? i : i - 1; k > 0; k--) history_pop(job->history, job->token[k - 1]);
    return ok;
}

bool draft_pick(draft_picker *p, draft_job *job, dev logits, int first, int n, err *e)
{
    assert(n >= 1 && n <= HEAD_ROWS && first + n <= DRAFT_MAX && job->n_top <= DRAFT_TOP_MAX);
    if (job->device_tokens.p) {
        assert(!job->history && !job->n_top);
        leave_rows(p, job, logits, first, n);
        return true;
    }
    if (!job->history) return pick_rows(p, job, logits, first, n, e);
    if (!penalty_counts(job->penalty) && n * history_size(job->history) <= p->n_vocab)
        return pick_with_bias(p, job, logits, first, n, e);
    return pick_with_penalties(p, job, logits, first, n, e);
}
