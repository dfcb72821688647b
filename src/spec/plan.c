/* What a lane drafts, and the drafts of a step. */
#include "base/clock.h"
#include "spec/inside.h"

#include <assert.h>

static const int default_draft[SPEC_METHODS] = {
    [SPEC_DFLASH] = DRAFT_MAX, [SPEC_TREE] = DRAFT_MAX, [SPEC_MTP] = 3, [SPEC_NGRAM] = 8};
static const int auto_draft[SPEC_METHODS] = {
    [SPEC_DFLASH] = DRAFT_MAX, [SPEC_TREE] = DRAFT_MAX, [SPEC_MTP] = 7, [SPEC_NGRAM] = SHADOW_MAX};
enum { DEFAULT_TREE_BUDGET = 22 };

/* Guesses in a row that the lane may want of a method: 0 when it cannot use it. */
static int draft_limit(const spec_lane *l, spec_method m)
{
    const spec_settings *o = &l->opt.spec;
    drafter_index        k = drafter_of(m);
    if (!l->uses[k]) return 0;
    const drafter *d = l->s->slots[k].d;
    int            n = o->draft_max > 0 ? o->draft_max : (o->method == SPEC_AUTO ? auto_draft : default_draft)[m];
    return least(n, d->max_draft);
}

static int tree_budget(const spec_lane *l)
{
    return l->opt.spec.tree_budget > 0 ? l->opt.spec.tree_budget : DEFAULT_TREE_BUDGET;
}

policy_limits lane_limits(const spec_lane *l)
{
    policy_limits lim = {.tree_budget = tree_budget(l)};
    for (int m = SPEC_OFF + 1; m < SPEC_METHODS; m++) {
        lim.max_draft[m] = draft_limit(l, (spec_method)m);
        lim.there[m]     = lim.max_draft[m] > 0;
    }
    return lim;
}

spec_plan lane_choose(const spec_lane *l, int room_rows)
{
    int       m    = l->opt.spec.method;
    spec_plan plan = {.method = SPEC_OFF};
    if (m == SPEC_OFF || room_rows <= 0 || l->room <= 0) return plan;
    if (m == SPEC_AUTO)
        plan = policy_choose(&l->policy, &l->s->cost, l->room, l->n_text);
    else if (draft_limit(l, (spec_method)m) > 0)
        plan = (spec_plan){.method = (spec_method)m,
                           .n      = m == SPEC_TREE ? tree_budget(l) : least(draft_limit(l, (spec_method)m), l->room)};
    plan.n = least(plan.n, room_rows);
    if (plan.n <= 0) plan.method = SPEC_OFF;
    return plan;
}

bool lane_shows(const spec_lane *l, drafter_index k)
{
    if (!l->uses[k]) return false;
    if (k != WITH_DFLASH || l->opt.spec.method != SPEC_AUTO || l->plan.method != SPEC_OFF) return true;
    return l->policy.wait[SPEC_DFLASH] <= l->s->slots[k].d->enough_ctx; /* trees are tried only after its chains */
}

/* --- drafting -----------------------------------------------------------------------------------*/
static void fill_job(spec_lane *l, drafter_index k, int n_want)
{
    draft_job *j = &l->job;
    j->lane      = l->draft_lane[k];
    j->kv_lane   = kv_seq_lane(l->seq);
    j->text      = l->text;
    j->n_text    = l->n_text;
    j->params    = l->opt.params;
    j->history   = l->counting ? l->history : NULL;
    j->penalty   = &l->opt.penalty;
    j->n_want    = n_want;
    j->n_top     = 0;
    j->soft      = l->opt.spec.tree_temp > 0 ? l->opt.spec.tree_temp : 1;
    j->n         = 0;
    j->guesses   = (dev){0};
    j->later     = false;
    j->params.temp *= l->opt.spec.draft_noise;
}

dev lane_guesses(const spec_lane *l) { return dev_at(l->s->guesses, (size_t)l->index * DRAFT_MAX * sizeof(int32_t)); }

static void plan_job(spec_lane *l)
{
    drafter_index k = drafter_of(l->plan.method);
    if (l->plan.method == SPEC_TREE) {
        fill_job(l, k, least(least(draft_limit(l, SPEC_TREE), l->room), l->plan.n));
        l->job.n_top = least(l->plan.n, DRAFT_TOP_MAX);
    } else {
        fill_job(l, k, l->plan.n);
        if (!l->counting) l->job.guesses = lane_guesses(l);
    }
}

/* Together; when that fails one by one, so that a lane's trouble is its own. */
static void run_jobs(spec *s, drafter_index k, spec_lane *const *lanes, int n)
{
    drafter   *d = s->slots[k].d;
    draft_job *jobs[STEP_MAX_ROWS];
    err        why = {0};
    for (int i = 0; i < n; i++) jobs[i] = &lanes[i]->job;
    if (n > 1 && d->draft(d, s->kv, jobs, n, NULL)) return;
    for (int i = 0; i < n; i++)
        if (!d->draft(d, s->kv, &jobs[i], 1, &why)) {
            jobs[i]->n = 0;
            lane_drafter_failed(lanes[i], k, &why);
        }
}

static void grow_tree(spec_lane *l)
{
    const draft_job *j = &l->job;
    l->later           = j->later && j->n > 0;
    l->s->n_later += l->later;
    if (l->plan.method == SPEC_TREE)
        tree_add_best(&l->tree, (const token_logprob(*)[DRAFT_TOP_MAX])j->top, j->n, j->n_top, l->plan.n,
                      !l->opt.spec.no_chain_seed);
    else
        tree_add_chain(&l->tree, j->token, least(j->n, l->plan.n));
}

/* What n-grams would say costs next to nothing to know: how far they could go, and later whether they were right. */
void lane_ask_ngrams(spec_lane *l)
{
    policy_limits *lim = &l->policy.limits;
    drafter       *d   = l->s->slots[WITH_NGRAM].d;
    draft_job     *job = &l->job;
    l->n_shadow        = 0;
    if (l->opt.spec.method != SPEC_AUTO || !l->uses[WITH_NGRAM]) return;
    fill_job(l, WITH_NGRAM, SHADOW_MAX);
    if (d->draft(d, l->s->kv, &job, 1, NULL)) l->n_shadow = job->n;
    memcpy(l->shadow, job->token, (size_t)l->n_shadow * sizeof *l->shadow);
    lim->max_draft[SPEC_NGRAM] = least(l->n_shadow, lim->max_draft[SPEC_NGRAM]);
    lim->there[SPEC_NGRAM]     = l->n_shadow > 0;
}

static bool drafts_with(const spec_lane *l, drafter_index k)
{
    return l->plan.method != SPEC_OFF && drafter_of(l->plan.method) == k;
}

static void draft_with(spec *s, drafter_index k, spec_lane *const *lanes, int n_lanes)
{
    const ops *o = s->t->o;
    spec_lane *some[STEP_MAX_ROWS];
    int        n = 0;
    for (int i = 0; i < n_lanes; i++)
        if (drafts_with(lanes[i], k)) some[n++] = lanes[i];
    if (n == 0) return;
    o->mark(s->t->q, 2 * k);
    for (int i = 0; i < n; i++) {
        assert(some[i]->uses[k]);
        plan_job(some[i]);
    }
    run_jobs(s, k, some, n);
    o->mark(s->t->q, 2 * k + 1);
    for (int i = 0; i < n; i++) grow_tree(some[i]);
}

void draft_trees(spec *s, spec_lane *const *lanes, int n_lanes)
{
    _Static_assert(2 * DRAFTERS <= QUEUE_MARKS, "a mark before and after each");
    s->n_later = 0;
    for (int i = 0; i < n_lanes; i++) tree_start(&lanes[i]->tree, lanes[i]->text[lanes[i]->n_text - 1]);
    for (int k = 0; k < DRAFTERS; k++) draft_with(s, (drafter_index)k, lanes, n_lanes);
}

/* The tree ends before a guess that is none. */
static void learn_guesses(spec_lane *l)
{
    draft_tree    *t    = &l->tree;
    const int32_t *from = l->s->host_guesses + (size_t)l->index * DRAFT_MAX;
    err            why  = {0};
    for (int i = 1; i < t->n; i++) {
        t->token[i] = from[i - 1];
        if (t->token[i] >= 0) continue;
        t->n = i;
        err_set(&why, ERR_FORMAT, "its output is not a number");
        lane_drafter_failed(l, drafter_of(l->plan.method), &why);
    }
}

static double drafted_with(spec *s, drafter_index k, spec_lane *const *lanes, int n_lanes)
{
    spec_lane *one = NULL;
    int        n   = 0;
    double     seconds;
    for (int i = 0; i < n_lanes; i++)
        if (drafts_with(lanes[i], k)) one = lanes[i], n++;
    if (n == 0) return 0;
    seconds = s->t->o->between_s(s->t->q, 2 * k, 2 * k + 1);
    if (n == 1 && one->job.n > 0)
        cost_note_draft(&s->cost, one->plan.method, 1, one->job.n + (k == WITH_DFLASH), seconds);
    for (int i = 0; i < n_lanes; i++)
        if (drafts_with(lanes[i], k)) lanes[i]->stats.draft_s += seconds;
    return seconds;
}

double drafts_done(spec *s, spec_lane *const *lanes, int n_lanes)
{
    double seconds = 0;
    for (int k = 0; k < DRAFTERS; k++) seconds += drafted_with(s, (drafter_index)k, lanes, n_lanes);
    for (int i = 0; i < n_lanes; i++)
        if (lanes[i]->later) learn_guesses(lanes[i]);
    return seconds;
}
