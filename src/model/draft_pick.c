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
           o->alloc(o, &p->picked, sizeof p->host_picked, e) && o->alloc(o, &p->top, sizeof p->host_top, e) &&
           o->alloc(o, &p->confidence, sizeof p->host_confidence, e) &&
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

void draft_pick_begin(draft_picker *p) { p->n_open = p->n_rows = 0; }

/* --- runs alike together ------------------------------------------------------------------------ */
static dev picked_at(const draft_picker *p, int row) { return dev_at(p->picked, (size_t)row * sizeof(int32_t)); }

static void upload_params(draft_picker *p, const draft_run *run, int n_runs)
{
    sample_params rows[HEAD_ROWS];
    int           n = 0;
    for (int i = 0; i < n_runs; i++)
        for (int k = 0; k < run[i].n; k++) {
            rows[n]       = run[i].job->params;
            rows[n++].pos = run[i].job->n_text + run[i].first + k; /* the first draft token follows the anchor */
        }
    p->o->upload(p->q, p->params, rows, (size_t)n * sizeof *rows);
}

/* Returns whether the jobs are picked by the same ops. */
static bool are_alike(const draft_job *a, const draft_job *b)
{
    if (a->n_top != b->n_top) return false;
    return a->n_top ? a->soft == b->soft : (a->params.temp > 0) == (b->params.temp > 0);
}

/* Picks n rows, the first of which is `at` of picked. */
static void enqueue_picks(draft_picker *p, const draft_run *run, int n_runs, dev logits, int at, int n)
{
    const draft_job *job        = run->job;
    dev              to         = picked_at(p, at);
    bool             confidence = false;
    if (job->n_top || job->params.temp > 0) upload_params(p, run, n_runs);
    if (job->n_top) {
        dev top = dev_at(p->top, (size_t)at * DRAFT_TOP_MAX * sizeof(token_logprob));
        p->o->sample_top(p->q, top, logits, p->params, n, p->n_vocab, job->n_top, job->soft);
        return;
    }
    if (job->params.temp > 0)
        p->o->sample(p->q, to, logits, p->params, n, p->n_vocab);
    else
        p->o->argmax(p->q, to, logits, n, p->n_vocab);
    for (int i = 0; i < n_runs; i++) confidence |= run[i].job->want_confidence && !run[i].job->device_tokens.p;
    if (confidence) p->o->confidence(p->q, dev_at_f32(p->confidence, (size_t)at), logits, to, n, p->n_vocab);
}

/* Copies n ids; they are copied as floats: 4 bytes each. */
static void copy_ids(const draft_picker *p, dev to, int to_row, dev from, int n)
{
    p->o->copy_rows(p->q, dev_at(to, (size_t)to_row * sizeof(int32_t)), n, from, n, (dev){0}, 1, n);
}

static bool check_ids(const int32_t *id, int n, err *e)
{
    for (int i = 0; i < n; i++)
        if (id[i] < 0) return err_set(e, ERR_FORMAT, "its output is not a number, or all its tokens are banned");
    return true;
}

static bool read_run(const draft_picker *p, int i, err *e)
{
    const draft_run *run = &p->open[i].run;
    draft_job       *job = run->job;
    int              k   = job->n_top;
    for (int r = 0; r < run->n; r++) {
        int at = run->first + r, row = p->open[i].row + r;
        if (k) {
            memcpy(job->top[at], p->host_top + p->open[i].top + r * k, (size_t)k * sizeof *p->host_top);
            job->token[at]      = job->top[at][0].id;
            job->confidence[at] = expf(job->top[at][0].logprob);
        } else {
            job->token[at] = p->host_picked[row];
            if (job->want_confidence) job->confidence[at] = p->host_confidence[row];
        }
    }
    return check_ids(job->token + run->first, run->n, e);
}

bool draft_pick_read(draft_picker *p, err *e)
{
    bool ok = true, ids = false, confidence = false, top = false;
    for (int i = 0; i < p->n_open; i++) {
        const draft_job *job = p->open[i].run.job;
        top |= job->n_top > 0;
        ids |= job->n_top == 0;
        confidence |= job->n_top == 0 && job->want_confidence;
    }
    size_t n = (size_t)p->n_rows;
    if (ids) p->o->download(p->q, p->host_picked, p->picked, n * sizeof *p->host_picked);
    if (confidence) p->o->download(p->q, p->host_confidence, p->confidence, n * sizeof *p->host_confidence);
    if (top) p->o->download(p->q, p->host_top, p->top, n * DRAFT_TOP_MAX * sizeof *p->host_top);
    if (p->n_open > 0) {
        p->o->sync(p->q);
        ok = p->o->check(p->q, e);
    }
    for (int i = 0; ok && i < p->n_open; i++) ok = read_run(p, i, e);
    draft_pick_begin(p);
    return ok;
}

/* Writes the tokens of candidates, which are on the host, to `to`. */
static bool upload_ids(draft_picker *p, const draft_run *run, int n_runs, dev to, err *e)
{
    if (!draft_pick_read(p, e)) return false;
    for (int i = 0; i < n_runs; i++)
        p->o->upload(p->q, dev_at(to, (size_t)run[i].at * sizeof(int32_t)), run[i].job->token + run[i].first,
                     (size_t)run[i].n * sizeof(int32_t));
    return true;
}

static bool pick_alike(draft_picker *p, const draft_run *run, int n_runs, dev logits, dev to, err *e)
{
    int n = 0, row;
    for (int i = 0; i < n_runs; i++) n += run[i].n;
    if (p->n_rows + n > PICK_ROWS && !draft_pick_read(p, e)) return false;
    row = p->n_rows;
    enqueue_picks(p, run, n_runs, dev_at_f32(logits, (size_t)run->at * (size_t)p->n_vocab), row, n);
    for (int i = 0; i < n_runs; i++) {
        draft_job *job = run[i].job;
        int        at  = row + run[i].at - run->at;
        job->n         = run[i].first + run[i].n;
        job->later     = job->device_tokens.p != NULL;
        if (job->later)
            copy_ids(p, job->device_tokens, run[i].first, picked_at(p, at), run[i].n);
        else {
            p->open[p->n_open].run   = run[i];
            p->open[p->n_open].row   = at;
            p->open[p->n_open++].top = row * DRAFT_TOP_MAX + (at - row) * job->n_top;
        }
    }
    p->n_rows += n;
    if (!to.p) return true;
    if (run->job->n_top) return upload_ids(p, run, n_runs, to, e);
    copy_ids(p, to, run->at, picked_at(p, row), n);
    return true;
}

/* --- biases and penalties ----------------------------------------------------------------------- */
/* Returns whether each draft token of the run changes the logits of the next row, or there are too many biases. */
static bool is_sequential(const draft_picker *p, const draft_run *run)
{
    const draft_job *job = run->job;
    if (!job->history) return false;
    return penalty_counts(job->penalty) || run->n * history_size(job->history) > p->n_vocab;
}

/* Applies the biases and penalties of the text to n rows. */
static void change_rows(draft_picker *p, const draft_job *job, dev logits, int n)
{
    int m = 0;
    for (int i = 0; i < n; i++) m += history_changes(job->history, job->penalty, i, false, p->host_changes + m);
    p->o->upload(p->q, p->changes, p->host_changes, (size_t)m * sizeof(logit_change));
    p->o->change_logits(p->q, logits, p->n_vocab, p->changes, m);
}

static dev row_logits(const draft_picker *p, dev logits, int row)
{
    return dev_at_f32(logits, (size_t)row * (size_t)p->n_vocab);
}

static bool pick_one_by_one(draft_picker *p, const draft_run *run, dev logits, dev to, err *e)
{
    draft_job *job = run->job;
    int        i   = 0;
    bool       ok  = draft_pick_read(p, e);
    for (; ok && i < run->first; i++) history_push(job->history, job->token[i]);
    for (; ok && i < run->first + run->n; i++) {
        draft_run one = {job, i, 1, run->at + i - run->first};
        change_rows(p, job, row_logits(p, logits, one.at), 1);
        ok = pick_alike(p, &one, 1, logits, to, e) && draft_pick_read(p, e);
        if (ok) history_push(job->history, job->token[i]);
    }
    for (int k = ok ? i : i - 1; k > 0; k--) history_pop(job->history, job->token[k - 1]);
    return ok;
}

bool draft_pick(draft_picker *p, const draft_run *run, int n_runs, dev logits, dev to, err *e)
{
    bool ok = true;
    for (int i = 0, n; ok && i < n_runs; i += n) {
        n = 1;
        if (is_sequential(p, &run[i])) {
            ok = pick_one_by_one(p, &run[i], logits, to, e);
            continue;
        }
        while (i + n < n_runs && !is_sequential(p, &run[i + n]) && are_alike(run[i].job, run[i + n].job)) n++;
        for (int k = i; k < i + n; k++)
            if (run[k].job->history) change_rows(p, run[k].job, row_logits(p, logits, run[k].at), run[k].n);
        ok = pick_alike(p, &run[i], n, logits, to, e);
    }
    return ok;
}
