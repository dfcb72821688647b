/* Equal requests that run together end together. Time is counted in rounds: the machine's pace does not matter. */
#include "engine_rig.h"

enum { LANES = 16, TOKENS = NANO_SLOW ? 24 : 60 };

typedef struct {
    int64_t first, last; /* rounds of the request that ended first, and last */
    double  mean;
} outcome;

static outcome run(test_case *t, tandem_method m, int step_tokens)
{
    tandem_options     o;
    tandem            *e;
    tandem_request     r;
    static nano_answer a, want;
    tandem_job        *j[LANES];
    outcome            out = {.first = INT64_MAX};
    nano_options(&o);
    o.max_lanes   = LANES;
    o.step_tokens = step_tokens;
    if (!nano_open(t, &e, &o)) return out;
    nano_request(e, &r, TOKENS);
    r.spec.method = TANDEM_SPEC_OFF;
    nano_ask(t, e, &r, &want);
    r.spec.method = m;
    for (int i = 0; i < LANES; i++) j[i] = nano_submit(t, e, &r);
    for (int i = 0; i < LANES; i++) {
        nano_collect(j[i], &a);
        nano_same(t, &a, &want);
        int64_t rounds = a.result.usage.spec.rounds + a.result.usage.spec.plain_rounds;
        CHECK(a.result.usage.spec.accepted > 0);
        out.mean += (double)rounds / LANES;
        if (rounds < out.first) out.first = rounds;
        if (rounds > out.last) out.last = rounds;
    }
    tandem_close(e);
    return out;
}

/* There are rows for a third of the guesses. */
TEST(sched_equal_requests_end_together)
{
    static const struct {
        tandem_method method;
        int           step_tokens;
    } cell[] = {{TANDEM_SPEC_DFLASH, 96}, {TANDEM_SPEC_TREE, 128}, {TANDEM_SPEC_MTP, 32}};
    for (size_t i = 0; i < COUNT(cell); i++) {
        outcome x = run(t, cell[i].method, cell[i].step_tokens);
        CHECK_MSG((double)x.last <= 1.3 * (double)x.first, "%s: %lld to %lld rounds, %.1f on average",
                  tandem_method_name((int)cell[i].method), (long long)x.first, (long long)x.last, x.mean);
        CHECK_MSG(x.mean < 0.75 * TOKENS, "%s: %.1f rounds of %d tokens", tandem_method_name((int)cell[i].method),
                  x.mean, TOKENS);
    }
}
