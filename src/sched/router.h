/* sched/router.h - what each lane of a step drafts, and why.
 *
 * A pure function of the lanes, the load, the measured costs and the settings: no clock, no state, no switch that stays
 * where it was put. Hard limits come first, in this order, and name the reason:
 *
 *   the request's own word, dflash_enabled, dflash_max_concurrent, K/V pressure, dflash_max_ctx
 *
 * They bar what has weights (DFlash, trees, MTP); n-grams are free and stay, unless nothing may be guessed at all. What is
 * left is the cost model's to choose, for all lanes together (spec/policy.h). */
#ifndef TANDEM_SCHED_ROUTER_H
#define TANDEM_SCHED_ROUTER_H
#include "sched/settings.h"
#include "spec/spec.h"

typedef enum {
    ROUTE_DEFAULT,     /* it pays */
    ROUTE_TRIAL,       /* to learn whether it pays */
    ROUTE_COST,        /* nothing that it may use pays */
    ROUTE_REQUEST,     /* the request says what is to be used: nothing, or one method */
    ROUTE_DISABLED,    /* dflash_enabled */
    ROUTE_CONCURRENCY, /* dflash_max_concurrent: as many older lanes may use a drafter */
    ROUTE_KV_PRESSURE, /* dflash_kv_pressure_threshold */
    ROUTE_MAX_CTX,     /* dflash_max_ctx */
    ROUTE_NO_DRAFTER,  /* there is none, or not the one that the request wants */
    ROUTE_NO_ROOM,     /* the answer's last token, or no row is left in the step */
    ROUTE_REASONS
} route_reason;
extern const char *const route_reason_names[ROUTE_REASONS];

typedef struct {
    int         method; /* of the request: spec_method or SPEC_AUTO */
    policy_lane lane;   /* without and fixed are the router's */
    int32_t     n_prompt;
    int64_t     order; /* of admission: who came first keeps its drafter */
} route_lane;

typedef struct {
    double kv_pressure; /* bytes that live lanes hold / bytes of the pool; below 0: not known */
    int    fixed_rows;  /* of prompts, in this step */
    int    max_rows;    /* of the step */
} route_load;

typedef struct {
    spec_plan    plan;
    route_reason reason;
    double       rate_plain, rate_plan; /* tokens per second of the whole step; 0: not measured yet */
} route;

/* n_lanes + fixed_rows fit into max_rows. */
void route_lanes(const route_lane *lanes, int n_lanes, const route_load *load, const cost_table *costs,
                 const settings *s, route *out);
#endif
