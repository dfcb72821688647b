#include "model/draft_chain.h"

#include "base/fault.h"

#include <assert.h>

static void group_add(draft_group *g, draft_job *j)
{
    int i = g->n++;
    for (; i > 0 && g->job[i - 1]->n_want < j->n_want; i--) g->job[i] = g->job[i - 1];
    g->job[i] = j;
}

/* Copies a row of the pass for `tandem draft` and tests. */
static void keep_row(const draft_chain *c, int nth, int row)
{
    drafter   *d = c->d;
    const ops *o = d->t->o;
    size_t     H = (size_t)d->n_draft_hidden, V = (size_t)d->t->n_vocab, g = (size_t)nth, r = (size_t)row;
    if (!d->draft_hidden.p) return;
    o->copy_rows(d->t->q, dev_at_f32(d->draft_hidden, g * H), (int)H, dev_at_f32(c->hidden, r * H), (int)H, (dev){0}, 1,
                 (int)H);
    o->copy_rows(d->t->q, dev_at_f32(d->draft_logits, g * V), (int)V, dev_at_f32(c->logits, r * V), (int)V, (dev){0}, 1,
                 (int)V);
}

/* Picks a draft token of each of the group's jobs, and stores it where the next pass reads it. */
static bool pick_draft_token(const draft_chain *c, const draft_group *g, int nth, const draft_job *kept, err *e)
{
    draft_run run[HEAD_ROWS];
    bool      may_stop = false;
    for (int i = 0; i < g->n; i++) {
        run[i] = (draft_run){g->job[i], nth, 1, i};
        may_stop |= g->job[i]->stop > 0;
        if (g->job[i] == kept) keep_row(c, nth, i);
    }
    return draft_pick(c->pick, run, g->n, c->logits, c->token, e) && (!may_stop || draft_pick_read(c->pick, e));
}

/* Returns whether the job makes no token in pass `nth`. */
static bool has_ended(const draft_job *j, int nth)
{
    float all = 1;
    if (nth >= j->n_want) return true;
    if (!(j->stop > 0) || j->later) return false;
    for (int i = 0; i < nth; i++) all *= j->confidence[i];
    return all < j->stop;
}

static bool run_group(const draft_chain *c, kv_pool *kv, draft_group *g, const draft_job *kept, err *e)
{
    draft_group whole = *g;
    bool        ok    = true;
    for (int nth = 0; ok; nth++) {
        step_rows r;
        while (g->n && has_ended(g->job[g->n - 1], nth)) g->n--; /* states belong to rows: only the last can leave */
        if (g->n == 0) break;
        ok = c->begin(c->d, g, nth, &r, e);
        if (!ok) break;
        r.n_rows = g->n;
        c->run(c->d, kv, &r, nth);
        ok = pick_draft_token(c, g, nth, kept, e);
    }
    if (c->end) c->end(c->d, &whole);
    return ok && draft_pick_read(c->pick, e);
}

bool draft_chain_run(const draft_chain *c, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e)
{
    bool        ok = true;
    draft_group g  = {.n = 0};
    for (int i = 0; i < n_jobs; i++) jobs[i]->n = 0, jobs[i]->later = false;
    fault_no_alloc_begin("draft"); /* promise 4 */
    draft_pick_begin(c->pick);
    for (int i = 0; ok && i < n_jobs; i++) {
        assert(jobs[i]->n_want <= DRAFT_MAX);
        if (jobs[i]->n_want > 0 && c->can_draft(jobs[i])) group_add(&g, jobs[i]);
        if (g.n == c->max_rows || (g.n && i == n_jobs - 1)) {
            ok  = run_group(c, kv, &g, jobs[0], e);
            g.n = 0;
        }
    }
    fault_no_alloc_end();
    return ok;
}
