#include "sched/router.h"

#include "base/num.h"

#include <assert.h>

const char *const route_reason_names[ROUTE_REASONS] = {
    [ROUTE_DEFAULT] = "default",         [ROUTE_TRIAL] = "trial",       [ROUTE_COST] = "cost",
    [ROUTE_REQUEST] = "request",         [ROUTE_DISABLED] = "disabled", [ROUTE_CONCURRENCY] = "concurrency",
    [ROUTE_KV_PRESSURE] = "kv_pressure", [ROUTE_MAX_CTX] = "max_ctx",   [ROUTE_NO_DRAFTER] = "no_drafter",
    [ROUTE_NO_ROOM] = "no_room"};

enum { ALL_METHODS = (1 << SPEC_METHODS) - 2 };

/* Returns the methods that use a drafter with weights, as bits. */
static unsigned methods_with_weights(void)
{
    unsigned bits = 0;
    for (int m = SPEC_OFF + 1; m < SPEC_METHODS; m++) bits |= (unsigned)spec_needs_file((spec_method)m) << m;
    return bits;
}

/* Methods that the lane may use, by its request and by what is loaded. */
static unsigned methods_of(const route_lane *l)
{
    unsigned there = 0;
    for (int m = SPEC_OFF + 1; m < SPEC_METHODS; m++)
        if (l->lane.p->limits.there[m] && l->lane.p->limits.max_draft[m] > 0) there |= 1u << m;
    return l->method == SPEC_AUTO ? there : there & 1u << l->method & ALL_METHODS;
}

static bool is_over_ctx(const route_lane *l, const settings *s)
{
    return s->dflash_max_ctx != SETTING_UNLIMITED && l->n_prompt >= s->dflash_max_ctx;
}

/* A lane that may not use a drafter anyway takes no one's place. */
static bool wants_place(const route_lane *l, const settings *s)
{
    return (methods_of(l) & methods_with_weights()) != 0 && !is_over_ctx(l, s);
}

static bool came_before(const route_lane *lanes, int a, int b)
{
    return lanes[a].order != lanes[b].order ? lanes[a].order < lanes[b].order : a < b;
}

static bool is_over_concurrency(const route_lane *lanes, int n, int i, const settings *s)
{
    int64_t before = 0;
    if (s->dflash_max_concurrent == SETTING_UNLIMITED) return false;
    for (int k = 0; k < n; k++) before += k != i && came_before(lanes, k, i) && wants_place(&lanes[k], s);
    return before >= s->dflash_max_concurrent;
}

/* The first limit that bars drafters; ROUTE_DEFAULT: none does. */
static route_reason limit_of(const route_lane *lanes, int n, int i, const route_load *load, const settings *s)
{
    if (lanes[i].method == SPEC_OFF) return ROUTE_REQUEST;
    if (!s->dflash_enabled) return ROUTE_DISABLED;
    if (is_over_concurrency(lanes, n, i, s)) return ROUTE_CONCURRENCY;
    if (load->kv_pressure >= 0 && load->kv_pressure > s->dflash_kv_pressure_threshold) return ROUTE_KV_PRESSURE;
    if (is_over_ctx(&lanes[i], s)) return ROUTE_MAX_CTX;
    return ROUTE_DEFAULT;
}

static unsigned barred_by(route_reason limit)
{
    if (limit == ROUTE_DEFAULT) return 0;
    return limit == ROUTE_REQUEST || limit == ROUTE_DISABLED ? ALL_METHODS : methods_with_weights();
}

/* The whole draft that a request asked for by name. */
static spec_plan asked_plan(const route_lane *l, unsigned may_use)
{
    const policy_limits *lim  = &l->lane.p->limits;
    spec_plan            plan = {.method = (spec_method)l->method};
    plan.n = min_int(plan.method == SPEC_TREE ? lim->tree_budget : lim->max_draft[plan.method], l->lane.room);
    return may_use && plan.n > 0 ? plan : (spec_plan){0};
}

static route_reason reason_of(const route_lane *l, const spec_plan *plan, route_reason limit, unsigned barred)
{
    unsigned had             = methods_of(l);
    bool     free_of_weights = !spec_needs_file(plan->method);
    if (limit == ROUTE_REQUEST || limit == ROUTE_DISABLED) return limit;
    if (had == 0) return ROUTE_NO_DRAFTER;
    if (free_of_weights && (had & barred)) return limit;
    if (plan->method == SPEC_OFF && l->lane.room <= 0) return ROUTE_NO_ROOM;
    if (l->method != SPEC_AUTO) return plan->method == SPEC_OFF ? ROUTE_NO_ROOM : ROUTE_REQUEST;
    return plan->trial ? ROUTE_TRIAL : plan->method == SPEC_OFF ? ROUTE_COST : ROUTE_DEFAULT;
}

/* Returns the load for the cost model, which ends at COST_MAX_ROWS. A larger step is planned as one whose prompts have
 * fewer rows, at least one if they had any, with as many rows left for drafts as n lanes allow. */
static route_load modelled_load(const route_load *load, int n)
{
    route_load l    = *load;
    int        left = l.max_rows - l.fixed_rows;
    if (l.max_rows <= COST_MAX_ROWS) return l;
    l.max_rows   = COST_MAX_ROWS;
    l.fixed_rows = left < COST_MAX_ROWS ? COST_MAX_ROWS - left : 0;
    if (load->fixed_rows > 0 && l.fixed_rows == 0) l.fixed_rows = min_int(1, COST_MAX_ROWS - n);
    return l;
}

void route_lanes(const route_lane *lanes, int n, const route_load *load, const cost_table *costs, const settings *s,
                 route *out)
{
    policy_lane     seats[POLICY_MAX_LANES];
    spec_plan       asked[POLICY_MAX_LANES], plan[POLICY_MAX_LANES];
    route_reason    limit[POLICY_MAX_LANES];
    policy_forecast f;
    assert(n >= 1 && n <= POLICY_MAX_LANES);
    for (int i = 0; i < n; i++) {
        limit[i]         = limit_of(lanes, n, i, load, s);
        unsigned may_use = methods_of(&lanes[i]) & ~barred_by(limit[i]);
        seats[i]         = lanes[i].lane;
        seats[i].without = ALL_METHODS & ~may_use;
        seats[i].fixed   = NULL;
        if (lanes[i].method == SPEC_AUTO) continue;
        asked[i]       = asked_plan(&lanes[i], may_use);
        seats[i].fixed = &asked[i];
    }
    route_load l = modelled_load(load, n);
    policy_choose_all(seats, n, costs, l.fixed_rows, l.max_rows, plan, &f);
    for (int i = 0; i < n; i++) {
        bool measured = plan[i].rate > 0;
        out[i]        = (route){.plan       = plan[i],
                                .reason     = reason_of(&lanes[i], &plan[i], limit[i], barred_by(limit[i])),
                                .rate_plain = measured ? f.plain_tokens / f.plain_s : 0,
                                .rate_plan  = measured ? f.tokens / (f.draft_s + f.step_s) : 0};
    }
}

void route_compare(const route_lane *lanes, int n, int at, const route_load *load, const cost_table *costs,
                   const route *all, policy_options *out)
{
    policy_lane seats[POLICY_MAX_LANES];
    assert(n >= 1 && n <= POLICY_MAX_LANES);
    for (int i = 0; i < n; i++) {
        seats[i]         = lanes[i].lane;
        seats[i].without = 0;
        seats[i].fixed   = &all[i].plan;
    }
    route_load l = modelled_load(load, n);
    policy_compare(seats, n, at, costs, l.fixed_rows, l.max_rows, out);
}
