/* sched/router.h - chooses the draft of each lane of a step, with a reason.
 *
 * A pure function of the lanes, the load, the measured costs and the settings, without a clock or state. Hard limits
 * come first, in this order, and give the reason:
 *
 *   the request's method, dflash_enabled, dflash_max_concurrent, K/V pressure, dflash_max_ctx
 *
 * Method off and dflash_enabled false exclude all drafts. The other limits exclude drafters with weights (DFlash,
 * trees, MTP); n-grams are free and stay. The cost model chooses among the remaining methods, for all lanes together
 * (spec/policy.h). Within these limits, a request that names one method gets the longest draft that it allows. */
#ifndef TANDEM_SCHED_ROUTER_H
#define TANDEM_SCHED_ROUTER_H
#include "sched/settings.h"
#include "spec/spec.h"

typedef enum {
    ROUTE_DEFAULT,     /* the plan pays */
    ROUTE_TRIAL,       /* one round, to learn whether it pays */
    ROUTE_COST,        /* no allowed method pays */
    ROUTE_REQUEST,     /* the request asks for off or one method */
    ROUTE_DISABLED,    /* dflash_enabled */
    ROUTE_CONCURRENCY, /* dflash_max_concurrent older lanes may use a drafter */
    ROUTE_KV_PRESSURE, /* dflash_kv_pressure_threshold */
    ROUTE_MAX_CTX,     /* dflash_max_ctx */
    ROUTE_NO_DRAFTER,  /* there is none, or not the requested one */
    ROUTE_NO_ROOM,     /* the response ends with the next token, or no row is left in the step */
    ROUTE_REASONS
} route_reason;
extern const char *const route_reason_names[ROUTE_REASONS];

typedef struct {
    int         method; /* the request's: spec_method or SPEC_AUTO */
    policy_lane lane;   /* `without` and `fixed` are ignored: the router chooses them */
    int32_t     n_prompt;
    int64_t     order; /* order of submission: older lanes keep their drafter */
} route_lane;

typedef struct {
    double kv_pressure; /* bytes that live lanes hold / bytes of the pool; below 0: not known */
    int    fixed_rows;  /* rows of this step without a choice of plan: prompts, and lanes with method off */
    int    max_rows;    /* maximum of rows in a step */
} route_load;

typedef struct {
    spec_plan    plan;
    route_reason reason;
    double       rate_plain, rate_plan; /* tokens per second of the whole step; 0: not measured yet */
} route;

/* Fills out[n_lanes]. Requires 1 <= n_lanes <= POLICY_MAX_LANES and n_lanes + fixed_rows <= max_rows. */
void route_lanes(const route_lane *lanes, int n_lanes, const route_load *load, const cost_table *costs,
                 const settings *s, route *out);
/* Compares the methods of lanes[at] that are loaded, whatever the limits, while the other lanes keep their plans in
 * all[n_lanes]. The other arguments are those that route_lanes filled `all` with. */
void route_compare(const route_lane *lanes, int n_lanes, int at, const route_load *load, const cost_table *costs,
                   const route *all, policy_options *out);
#endif
