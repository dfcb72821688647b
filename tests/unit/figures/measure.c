#include "figures/measure.h"

#include "base/clock.h"
#include "base/str.h"
#include "test.h"

/* Writes the order of runs: a letter for the arm, a capital in the warm-up, and a bar where the cell changes. */
static str order_of(test_case *t, const measure_plan *plan)
{
    static char  text[256];
    measure_loop m;
    measure_run  at;
    int          n = 0, cell = 0;
    for (measure_begin(&m, plan); measure_next(&m, &at); cell = at.cell) {
        if (at.cell != cell)
            text[n++] = '|';
        else if (n && at.first)
            text[n++] = ' ';
        text[n++] = (char)((at.warm_up ? 'A' : 'a') + at.arm);
    }
    text[n] = 0;
    CHECK_INT(m.n_begun, measure_total(plan));
    return str_of(text);
}

TEST(measure_rotates_the_arms)
{
    CHECK_STR(order_of(t, &(measure_plan){.n_cells = 1, .n_arms = 3, .n_turns = 4}), STR("abc bca cab abc"));
    CHECK_STR(order_of(t, &(measure_plan){.n_cells = 2, .n_arms = 3, .n_turns = 2}), STR("abc bca|bca cab"));
    CHECK_STR(order_of(t, &(measure_plan){.n_cells = 2, .n_arms = 3, .n_turns = 2, .interleave = true}),
              STR("abc|bca|bca|cab"));
    CHECK_STR(order_of(t, &(measure_plan){.n_cells = 3, .n_arms = 1, .n_turns = 2}), STR("a a|a a|a a"));
    CHECK_STR(order_of(t, &(measure_plan){.n_cells = 1, .n_arms = 2, .n_turns = 0}), STR(""));
}

TEST(measure_warms_up_each_cell)
{
    CHECK_STR(order_of(t, &(measure_plan){.n_cells = 2, .n_arms = 2, .n_turns = 2, .n_warm_up = 1}),
              STR("BA ab ba|AB ba ab"));
    CHECK_STR(order_of(t, &(measure_plan){.n_cells = 1, .n_arms = 2, .n_turns = 1, .n_warm_up = 2}), STR("AB BA ab"));
    measure_loop m;
    measure_run  at;
    measure_begin(&m, &(measure_plan){.n_cells = 1, .n_arms = 1, .n_turns = 2, .n_warm_up = 2, .interleave = true});
    for (int turn = -2; turn < 2; turn++) {
        CHECK(measure_next(&m, &at));
        CHECK_INT(at.turn, turn);
        CHECK_INT(at.warm_up, turn < 0);
        CHECK(at.first && at.last);
    }
}

TEST(measure_stops_when_the_time_is_over)
{
    measure_plan plan = {.n_cells = 1, .n_arms = 2, .n_turns = 3, .end_at = clock_s() + 3600};
    measure_loop m;
    measure_run  at;
    measure_begin(&m, &plan);
    CHECK(!measure_time_over(&plan) && measure_next(&m, &at));
    m.plan.end_at = clock_s();
    CHECK(measure_time_over(&m.plan) && !measure_next(&m, &at));
    CHECK_INT(m.n_begun, 1);
}
