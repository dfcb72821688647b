/* Plans of lanes, and the drafts of a step. */
#include "base/clock.h"
#include "spec/inside.h"

#include <assert.h>
#include <math.h>

static const int default_draft[SPEC_METHODS] = {
    [SPEC_DFLASH] = DRAFT_MAX, [SPEC_TREE] = DRAFT_MAX, [SPEC_MTP] = 3, [SPEC_NGRAM] = 8};
static const int auto_draft[SPEC_METHODS] = {
    [SPEC_DFLASH] = DRAFT_MAX, [SPEC_TREE] = DRAFT_MAX, [SPEC_MTP] = 7, [SPEC_NGRAM] = SHADOW_MAX};
enum { DEFAULT_TREE_BUDGET = 22 };

/* Returns the maximum draft tokens in a row of a method; 0 when the lane cannot use it. */
static int draft_limit(const spec_lane *l, spec_method m)
{
    const spec_settings *o = &l->opt.spec;
    drafter_kind         k = spec_method_drafter(m);
    if (!l->uses[k]) return 0;
    const drafter *d = l->s->slots[k].d;
    int            n = o->draft_max > 0 ? o->draft_max : (o->method == SPEC_AUTO ? auto_draft : default_draft)[m];
    return min_int(n, d->max_draft);
}

static int tree_budget(const spec_lane *l)
{
    return l->opt.spec.tree_budget > 0 ? l->opt.spec.tree_budget : DEFAULT_TREE_BUDGET;
}

/* --- input of the policy ---------------------------------------------------------------*/
static void fill_job(spec_lane *l, drafter_kind k, int n_want)
{
    draft_job *j       = &l->job;
    j->lane            = l->draft_lane[k];
    j->kv_lane         = kv_lane_index(l->kv);
    j->text            = l->text;
    j->n_text          = l->n_text;
    j->params          = l->opt.params;
    j->history         = l->counting ? l->history : NULL;
    j->penalty         = &l->opt.penalty;
    j->n_want          = n_want;
    j->n_top           = 0;
    j->soft            = l->opt.spec.tree_temp > 0 ? l->opt.spec.tree_temp : 1;
    j->n               = 0;
    j->device_tokens   = (dev){0};
    j->later           = false;
    j->stop            = 0;
    j->want_confidence = false;
    j->params.temp *= l->opt.spec.draft_noise;
}

/* Drafts with n-grams in any case, because it costs almost nothing: the policy learns how long the draft is, and later
 * how much of it was right. */
static void draft_ngrams(spec_lane *l)
{
    drafter   *d   = l->s->slots[DRAFTER_NGRAM].d;
    draft_job *job = &l->job;
    l->n_shadow    = 0;
    l->shadow_at   = l->n_text;
    if (l->opt.spec.method != SPEC_AUTO || !l->uses[DRAFTER_NGRAM]) return;
    fill_job(l, DRAFTER_NGRAM, SHADOW_MAX);
    if (d->draft(d, l->s->kv, &job, 1, NULL)) l->n_shadow = job->n;
    memcpy(l->shadow, job->token, (size_t)l->n_shadow * sizeof *l->shadow);
}

static void update_limits(spec_lane *l)
{
    policy_limits *lim = &l->policy.limits;
    *lim               = (policy_limits){.tree_budget = tree_budget(l)};
    l->room            = min_int(l->n_max - l->n_text, l->limit - 1);
    if (l->shadow_at != l->n_text) draft_ngrams(l);
    for (int m = SPEC_OFF + 1; m < SPEC_METHODS; m++) {
        lim->max_draft[m] = draft_limit(l, (spec_method)m);
        if (m == SPEC_NGRAM && l->opt.spec.method == SPEC_AUTO)
            lim->max_draft[m] = min_int(l->n_shadow, lim->max_draft[m]);
        lim->there[m] = lim->max_draft[m] > 0;
    }
}

void spec_lane_facts(spec_lane *l, policy_facts *out)
{
    update_limits(l);
    *out = (policy_facts){.p        = &l->policy,
                          .method   = l->opt.spec.method,
                          .room     = l->room > 0 ? l->room : 0,
                          .n_ctx    = l->n_text,
                          .n_prompt = l->n_prompt};
}

spec_plan spec_choose_alone(spec_lane *l)
{
    policy_facts f;
    spec_plan    plan = {.method = SPEC_OFF};
    if (!spec_lane_can_draft(l) || l->opt.spec.method == SPEC_OFF) return plan;
    spec_lane_facts(l, &f);
    if (f.room == 0) return plan;
    if (f.method == SPEC_AUTO) return policy_choose(f.p, &l->s->cost, f.room, f.n_ctx);
    plan.method = (spec_method)f.method;
    plan.n      = f.method == SPEC_TREE ? f.p->limits.tree_budget : f.p->limits.max_draft[f.method];
    return plan;
}

spec_plan lane_fit_plan(spec_lane *l, const spec_plan *wanted, int room_rows)
{
    spec_plan plan = *wanted;
    update_limits(l);
    const policy_limits *lim = &l->policy.limits;
    if (plan.method == SPEC_OFF || !lim->there[plan.method] || l->room <= 0) plan.n = 0;
    if (plan.method != SPEC_TREE) plan.n = min_int(plan.n, min_int(lim->max_draft[plan.method], l->room));
    plan.n = min_int(plan.n, min_int(room_rows, DRAFT_MAX));
    return plan.n > 0 ? plan : (spec_plan){.method = SPEC_OFF};
}

/* --- drafting -----------------------------------------------------------------------------------*/
dev lane_device_tokens(const spec_lane *l)
{
    return dev_at(l->s->device_tokens, (size_t)l->index * DRAFT_MAX * sizeof(int32_t));
}

/* wait: the host reads the drafts of `auto` before the step. price: of a row and a pass, in tokens. A draft that may
 * stop is read after each of its passes, which a device that runs ops later would have to wait for. */
static void plan_job(spec_lane *l, bool wait, double price)
{
    drafter_kind k     = spec_method_drafter(l->plan.method);
    bool         reads = lane_draft_is_read(l) || (wait && l->opt.spec.method == SPEC_AUTO);
    if (l->plan.method == SPEC_TREE) {
        fill_job(l, k, min_int(min_int(draft_limit(l, SPEC_TREE), l->room), l->plan.n));
        l->job.n_top = min_int(l->plan.n, DRAFT_TOP_MAX);
    } else {
        fill_job(l, k, l->plan.n);
        if (!reads) l->job.device_tokens = lane_device_tokens(l);
    }
    l->job.want_confidence = l->opt.spec.method == SPEC_AUTO && k != DRAFTER_NGRAM;
    if (lane_shares_rows(l) && price > 0 && !l->s->t->o->runs_later) l->job.stop = (float)fmin(price, 0.99);
}

/* Drafts for all lanes together. If that fails, drafts for one lane after another, so that only the lanes that fail
 * lose the drafter. */
static void run_jobs(spec *s, drafter_kind k, spec_lane *const *lanes, int n)
{
    drafter    *d    = s->slots[k].d;
    draft_job **jobs = s->by_lane.job;
    err         why  = {0};
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
    else {
        tree_add_chain(&l->tree, j->token, j->want_confidence ? j->confidence : NULL, min_int(j->n, l->plan.n));
        lane_add_tail(l);
    }
    l->n_grown = l->tree.n - 1;
    l->n_made  = j->n > 0 && j->stop > 0 ? j->n_want : j->n; /* a draft that stopped had no confidence in the rest */
}

static bool drafts_with(const spec_lane *l, drafter_kind k)
{
    return l->plan.method != SPEC_OFF && !lane_draft_is_forced(l) && spec_method_drafter(l->plan.method) == k;
}

static void draft_with(spec *s, drafter_kind k, spec_lane *const *lanes, int n_lanes, bool wait)
{
    const ops  *o    = s->t->o;
    spec_lane **some = s->by_lane.drafting;
    int         n    = 0;
    for (int i = 0; i < n_lanes; i++)
        if (drafts_with(lanes[i], k)) some[n++] = lanes[i];
    if (n == 0) return;
    double price = wait ? row_price(s, lanes, n_lanes) : 0;
    o->mark(s->t->q, 2 * k);
    for (int i = 0; i < n; i++) {
        assert(some[i]->uses[k]);
        plan_job(some[i], wait, price);
    }
    run_jobs(s, k, some, n);
    o->mark(s->t->q, 2 * k + 1);
    for (int i = 0; i < n; i++) grow_tree(some[i]);
}

void draft_trees(spec *s, spec_lane *const *lanes, int n_lanes)
{
    _Static_assert(2 * DRAFTER_KINDS <= QUEUE_MARKS, "one mark before and one after each");
    bool wait  = drafts_wait(s, lanes, n_lanes);
    s->n_later = 0;
    for (int i = 0; i < n_lanes; i++) {
        tree_start(&lanes[i]->tree, lanes[i]->text[lanes[i]->n_text - 1]);
        lanes[i]->n_tail = lanes[i]->n_made = 0;
    }
    for (int k = 0; k < DRAFTER_KINDS; k++) draft_with(s, (drafter_kind)k, lanes, n_lanes, wait);
    s->drafted_at = clock_s();
    if (wait) give_rows(s, lanes, n_lanes);
    for (int i = 0; i < n_lanes; i++) lane_guide_tree(lanes[i]);
}

/* Reads the draft tokens that stayed on the device. An invalid one ends the tree. */
static void read_draft_tokens(spec_lane *l)
{
    draft_tree    *t    = &l->tree;
    const int32_t *from = l->s->host_tokens + (size_t)l->index * DRAFT_MAX;
    err            why  = {0};
    for (int i = 1; i < t->n; i++) {
        t->token[i] = from[i - 1];
        if (t->token[i] >= 0) continue;
        t->n = i;
        err_set(&why, ERR_FORMAT, "its output is not a number");
        lane_drafter_failed(l, spec_method_drafter(l->plan.method), &why);
    }
}

/* Records the cost of a draft by drafter k, in the units of cost_note_draft. */
static void note_cost(spec *s, drafter_kind k, spec_lane *const *lanes, int n_lanes, double seconds)
{
    spec_method m    = spec_chain_method(k);
    int         some = 0, n_tokens = 0, longest = 0;
    for (int i = 0; i < n_lanes; i++) {
        const spec_lane *l = lanes[i];
        if (!drafts_with(l, k) || l->job.n == 0) continue;
        if (l->plan.method == SPEC_TREE) m = SPEC_TREE;
        some++;
        n_tokens += l->job.n;
        longest = l->job.n > longest ? l->job.n : longest;
    }
    if (some == 0) return;
    if (k == DRAFTER_DFLASH && some + n_tokens <= COST_MAX_ROWS)
        cost_note_draft(&s->cost, m, some, some + n_tokens, seconds);
    if (k == DRAFTER_MTP) cost_note_draft(&s->cost, m, (n_tokens + longest / 2) / longest, longest, seconds);
    if (k == DRAFTER_NGRAM) cost_note_draft(&s->cost, m, some, (n_tokens + some / 2) / some, seconds);
}

static double drafted_with(spec *s, drafter_kind k, spec_lane *const *lanes, int n_lanes)
{
    int    n = 0;
    double seconds;
    for (int i = 0; i < n_lanes; i++) n += drafts_with(lanes[i], k);
    if (n == 0) return 0;
    seconds = s->t->o->between_s(s->t->q, 2 * k, 2 * k + 1);
    note_cost(s, k, lanes, n_lanes, seconds);
    for (int i = 0; i < n_lanes; i++)
        if (drafts_with(lanes[i], k)) lanes[i]->stats.draft_s += seconds;
    return seconds;
}

static void show_round(const spec_lane *l)
{
    const spec_options *o = &l->s->opt;
    o->on_round(o->on_round_ctx, &(spec_round){.lane   = l->index,
                                               .n_text = l->n_text,
                                               .text   = l->text,
                                               .method = l->plan.method,
                                               .n_want = l->plan.n,
                                               .token  = l->tree.token + 1,
                                               .parent = l->tree.parent + 1,
                                               .n      = l->tree.n - 1,
                                               .shared = lane_shares_rows(l)});
}

double drafts_done(spec *s, spec_lane *const *lanes, int n_lanes)
{
    double seconds = 0;
    for (int k = 0; k < DRAFTER_KINDS; k++) seconds += drafted_with(s, (drafter_kind)k, lanes, n_lanes);
    for (int i = 0; i < n_lanes; i++)
        if (lanes[i]->later) read_draft_tokens(lanes[i]);
    for (int i = 0; s->opt.on_round && i < n_lanes; i++)
        if (lanes[i]->plan.method != SPEC_OFF) show_round(lanes[i]);
    return seconds;
}
