#include "sched/router.h"

#include "spec/inside.h"
#include "test.h"

enum { MAX_LANES = 8 };

/* Lanes that may use everything, with a good record and no trial due; rows and drafts cost next to nothing. */
typedef struct {
    policy     p[MAX_LANES];
    route_lane lane[MAX_LANES];
    int        n;
    route_load load;
    cost_table costs;
    settings   s;
    route      out[MAX_LANES];
} scene;

static void set_record(policy *p, spec_method m, double rate)
{
    for (int d = 0; d < DRAFT_MAX; d++) {
        p->record[m].tried[d] = 1000;
        p->record[m].right[d] = 1000 * rate;
    }
}

static void set_costs(cost_table *c, double per_row, double pass)
{
    *c = (cost_table){0};
    for (int rows = 1; rows <= COST_MAX_ROWS; rows++) {
        c->step[0].at[rows]            = (cost){.seconds = 0.01 + per_row * rows, .n = 20};
        c->block[SPEC_DFLASH].at[rows] = (cost){.seconds = pass, .n = 20};
        c->pass.at[rows]               = (cost){.seconds = pass, .n = 20};
    }
    c->ngram.seconds = 1e-7;
    cost_refresh(c);
}

static const policy_limits ALL       = {.there       = {true, true, true, true, true},
                                        .max_draft   = {0, 15, 15, 7, 16},
                                        .tree_budget = 22},
                           NO_NGRAMS = {.there       = {true, true, true, true, false},
                                        .max_draft   = {0, 15, 15, 7, 0},
                                        .tree_budget = 22},
                           NGRAMS    = {.there = {true, false, false, false, true}, .max_draft = {0, 0, 0, 0, 16}},
                           NOTHING   = {.there = {true}};

static void set_lane(scene *k, int i, int method, const policy_limits *l)
{
    policy_init(&k->p[i], l);
    for (int m = 0; m < SPEC_METHODS; m++) k->p[i].wait[m] = 1000;
    set_record(&k->p[i], SPEC_DFLASH, 0.9);
    set_record(&k->p[i], SPEC_TREE, 0.9);
    set_record(&k->p[i], SPEC_MTP, 0.6);
    set_record(&k->p[i], SPEC_NGRAM, 0.6);
    k->lane[i] = (route_lane){
        .method = method, .lane = {.p = &k->p[i], .room = 100, .ctx = 200}, .n_prompt = 100, .order = 10 + i};
}

static scene *new_scene(int n, int method, const policy_limits *l)
{
    static scene k;
    k = (scene){.n = n, .load = {.kv_pressure = 0.1, .max_rows = COST_MAX_ROWS}};
    settings_init(&k.s);
    set_costs(&k.costs, 0.00001, 0.0005);
    for (int i = 0; i < n; i++) set_lane(&k, i, method, l);
    return &k;
}

static void run(scene *k) { route_lanes(k->lane, k->n, &k->load, &k->costs, &k->s, k->out); }

static bool has_weights(spec_method m) { return m == SPEC_DFLASH || m == SPEC_TREE || m == SPEC_MTP; }

#define CHECK_ROUTE(k, i, want)                                                                                        \
    CHECK_MSG((k)->out[i].reason == (want), "lane %d: %s %d because of %s, expected %s", i,                            \
              spec_method_names[(k)->out[i].plan.method], (k)->out[i].plan.n, route_reason_names[(k)->out[i].reason],  \
              route_reason_names[want])

TEST(router_default_is_to_speculate)
{
    scene *k = new_scene(3, SPEC_AUTO, &ALL);
    run(k);
    for (int i = 0; i < 3; i++) {
        CHECK_ROUTE(k, i, ROUTE_DEFAULT);
        CHECK(has_weights(k->out[i].plan.method) && k->out[i].plan.n > 3);
        CHECK(k->out[i].rate_plan > 2 * k->out[i].rate_plain && k->out[i].rate_plain > 0);
    }
}

/* Each limit alone. */
TEST(router_limits_one_by_one)
{
    scene *k          = new_scene(2, SPEC_AUTO, &NO_NGRAMS);
    k->lane[0].method = SPEC_OFF;
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_REQUEST);
    CHECK_INT(k->out[0].plan.method, SPEC_OFF);
    CHECK_ROUTE(k, 1, ROUTE_DEFAULT);

    k                   = new_scene(2, SPEC_AUTO, &ALL);
    k->s.dflash_enabled = false;
    run(k);
    for (int i = 0; i < 2; i++) {
        CHECK_ROUTE(k, i, ROUTE_DISABLED);
        CHECK_INT(k->out[i].plan.method, SPEC_OFF); /* n-grams too */
    }

    k                          = new_scene(3, SPEC_AUTO, &NO_NGRAMS);
    k->s.dflash_max_concurrent = 2;
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_DEFAULT);
    CHECK_ROUTE(k, 1, ROUTE_DEFAULT);
    CHECK_ROUTE(k, 2, ROUTE_CONCURRENCY);
    CHECK_INT(k->out[2].plan.method, SPEC_OFF);

    k                   = new_scene(1, SPEC_AUTO, &NO_NGRAMS);
    k->load.kv_pressure = 0.71;
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_KV_PRESSURE);
    k->load.kv_pressure = 0.7; /* above, not at */
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_DEFAULT);
    k->load.kv_pressure = -1; /* not known: goes on with the other tests */
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_DEFAULT);
    k->s.dflash_max_ctx = 100; /* at it, or above */
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_MAX_CTX);
    k->s.dflash_max_ctx = 101;
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_DEFAULT);

    k = new_scene(1, SPEC_AUTO, &NOTHING);
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_NO_DRAFTER);
    k = new_scene(1, SPEC_MTP, &NGRAMS);
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_NO_DRAFTER);
    k                    = new_scene(1, SPEC_AUTO, &ALL);
    k->lane[0].lane.room = 0;
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_NO_ROOM);
}

/* Limits bar what has weights; n-grams stay. */
TEST(router_leaves_ngrams_alone)
{
    static const route_reason limit[] = {ROUTE_CONCURRENCY, ROUTE_KV_PRESSURE, ROUTE_MAX_CTX};
    for (int which = 0; which < 3; which++) {
        scene *k = new_scene(1, SPEC_AUTO, &ALL);
        if (which == 0) k->s.dflash_max_concurrent = 0;
        if (which == 1) k->load.kv_pressure = 0.99;
        if (which == 2) k->s.dflash_max_ctx = 50;
        run(k);
        CHECK_INT(k->out[0].plan.method, SPEC_NGRAM);
        CHECK_ROUTE(k, 0, limit[which]);
    }
}

/* Zero is a value: never, at once, none. */
TEST(router_zero_is_a_value)
{
    scene *k                   = new_scene(2, SPEC_AUTO, &NO_NGRAMS);
    k->s.dflash_max_concurrent = 0;
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_CONCURRENCY);
    CHECK_ROUTE(k, 1, ROUTE_CONCURRENCY);
    k->s.dflash_max_concurrent        = SETTING_UNLIMITED;
    k->s.dflash_kv_pressure_threshold = 0;
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_KV_PRESSURE);
    k->load.kv_pressure = 0;
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_DEFAULT);
    k->s.dflash_max_ctx = 0;
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_MAX_CTX);
}

/* All combinations of limits that apply and do not, against the order in words. */
TEST(router_order_of_the_limits)
{
    for (int bits = 0; bits < 32; bits++)
        for (int method = SPEC_OFF; method <= SPEC_AUTO; method++) {
            scene *k          = new_scene(2, SPEC_AUTO, &NO_NGRAMS);
            bool   off        = bits & 1 || method == SPEC_OFF;
            k->lane[1].method = off ? SPEC_OFF : method;
            if (bits & 2) k->s.dflash_enabled = false;
            if (bits & 4) k->s.dflash_max_concurrent = 1;
            if (bits & 8) k->load.kv_pressure = 0.9;
            if (bits & 16) k->lane[1].n_prompt = 5000, k->s.dflash_max_ctx = 4096;
            run(k);
            bool         drafts = method == SPEC_AUTO || has_weights((spec_method)method);
            route_reason want   = off                   ? ROUTE_REQUEST
                                  : bits & 2            ? ROUTE_DISABLED
                                  : !drafts             ? ROUTE_NO_DRAFTER
                                  : bits & 4            ? ROUTE_CONCURRENCY
                                  : bits & 8            ? ROUTE_KV_PRESSURE
                                  : bits & 16           ? ROUTE_MAX_CTX
                                  : method == SPEC_AUTO ? ROUTE_DEFAULT
                                                        : ROUTE_REQUEST;
            CHECK_ROUTE(k, 1, want);
            bool free_way = want == ROUTE_DEFAULT || (want == ROUTE_REQUEST && !off);
            CHECK_MSG((k->out[1].plan.n > 0) == free_way, "bits %d, method %d: %d guesses", bits, method,
                      k->out[1].plan.n);
        }
}

/* The oldest keep their places; at the same age the first of the list. Who may not use a drafter takes no one's place. */
TEST(router_places_go_to_the_oldest)
{
    scene *k                   = new_scene(4, SPEC_AUTO, &NO_NGRAMS);
    k->s.dflash_max_concurrent = 2;
    k->lane[0].order           = 9;
    k->lane[1].order           = 3;
    k->lane[2].order           = 7;
    k->lane[3].order           = 7;
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_CONCURRENCY);
    CHECK_ROUTE(k, 1, ROUTE_DEFAULT);
    CHECK_ROUTE(k, 2, ROUTE_DEFAULT);
    CHECK_ROUTE(k, 3, ROUTE_CONCURRENCY);
    k->lane[1].method = SPEC_OFF; /* gone, as far as places go */
    run(k);
    CHECK_ROUTE(k, 3, ROUTE_DEFAULT);
    k->s.dflash_max_ctx = 4096;
    k->lane[2].n_prompt = 4096;
    run(k);
    CHECK_ROUTE(k, 2, ROUTE_MAX_CTX);
    CHECK_ROUTE(k, 0, ROUTE_DEFAULT);
}

/* Prompt rows do not vanish from steps larger than the cost model: such steps never measure plain decoding. */
TEST(router_plans_large_steps_with_their_prompts)
{
    scene *k           = new_scene(2, SPEC_AUTO, &ALL);
    k->load.fixed_rows = 100;
    k->costs           = (cost_table){0};
    run(k);
    spec_plan small  = k->out[0].plan;
    k->load.max_rows = 4096;
    run(k);
    CHECK_INT(k->out[0].plan.method, small.method);
    CHECK_INT(k->out[0].plan.n > 0, small.n > 0);
}

/* No state: after a burst the next request has what it had before. */
TEST(router_has_no_memory)
{
    scene *k = new_scene(8, SPEC_AUTO, &ALL);
    route  alone, after;
    route_lanes(k->lane, 1, &k->load, &k->costs, &k->s, &alone);
    k->s.dflash_max_concurrent = 1;
    k->load.kv_pressure        = 0.95;
    run(k);
    k->s.dflash_max_concurrent = SETTING_UNLIMITED;
    k->load.kv_pressure        = 0.1;
    route_lanes(k->lane, 1, &k->load, &k->costs, &k->s, &after);
    CHECK(alone.plan.method == after.plan.method && alone.plan.n == after.plan.n && alone.reason == after.reason);
    CHECK(alone.rate_plan == after.rate_plan && alone.rate_plain == after.rate_plain);
}

/* The cost model's reasons. */
TEST(router_costs_decide_the_rest)
{
    scene *k = new_scene(4, SPEC_AUTO, &NO_NGRAMS);
    set_costs(&k->costs, 0.1, 0.0005); /* a row costs ten steps */
    run(k);
    for (int i = 0; i < 4; i++) CHECK_ROUTE(k, i, ROUTE_COST);
    CHECK_NEAR(k->out[0].rate_plan, k->out[0].rate_plain, 1e-9);
    set_costs(&k->costs, 0.00001, 0.2); /* a pass costs twenty */
    run(k);
    for (int i = 0; i < 4; i++) CHECK_ROUTE(k, i, ROUTE_COST);
    set_costs(&k->costs, 0.00001, 0.0005);
    run(k);
    for (int i = 0; i < 4; i++) CHECK_ROUTE(k, i, ROUTE_DEFAULT);
    for (int i = 0; i < 4; i++) { /* bad so far, due again */
        for (int m = 1; m < SPEC_METHODS; m++) set_record(&k->p[i], (spec_method)m, 0.01);
        k->p[i].wait[SPEC_DFLASH] = 0;
    }
    run(k);
    CHECK_ROUTE(k, 0, ROUTE_TRIAL);
    CHECK(k->out[0].plan.trial && k->out[0].plan.method == SPEC_DFLASH);
}

/* Without room there is nothing to decide; with room for one guess it is the costs that decide. */
TEST(router_room_for_one_guess)
{
    for (int room = 0; room < 2; room++) {
        scene *k = new_scene(2, SPEC_AUTO, &NO_NGRAMS);
        set_costs(&k->costs, 0.1, 0.0005);
        k->lane[0].lane.room = room;
        run(k);
        CHECK_ROUTE(k, 0, room ? ROUTE_COST : ROUTE_NO_ROOM);
        CHECK_ROUTE(k, 1, ROUTE_COST);
        set_costs(&k->costs, 0.00001, 0.0005);
        run(k);
        CHECK_ROUTE(k, 0, room ? ROUTE_DEFAULT : ROUTE_NO_ROOM);
        CHECK_INT(k->out[0].plan.n, room);
    }
}

TEST(router_does_what_was_asked)
{
    static const int guesses[SPEC_METHODS] = {0, 15, 22, 7, 16};
    for (int m = SPEC_OFF + 1; m < SPEC_METHODS; m++) {
        scene *k = new_scene(2, m, &ALL);
        set_costs(&k->costs, 0.1, 10); /* whatever it costs */
        k->lane[1].lane.room = 3;
        run(k);
        CHECK_INT(k->out[0].plan.method, m);
        CHECK_INT(k->out[0].plan.n, guesses[m]);
        CHECK_ROUTE(k, 0, ROUTE_REQUEST);
        CHECK_INT(k->out[1].plan.n, 3);
        k->load.fixed_rows = COST_MAX_ROWS - 2; /* no row is left */
        run(k);
        CHECK_INT(k->out[0].plan.n, 0);
        CHECK_ROUTE(k, 0, ROUTE_NO_ROOM);
    }
}

TEST(router_names_all_reasons)
{
    for (int i = 0; i < ROUTE_REASONS; i++) CHECK(route_reason_names[i] && route_reason_names[i][0]);
}
