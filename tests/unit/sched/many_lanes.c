/* More lanes than 64: requests that run together give the texts that they give alone. */
#include "engine_rig.h"

enum { MOST = TANDEM_MAX_LANES };

static void vary(tandem_request *r, int i)
{
    r->temp     = 1;
    r->has_seed = true;
    r->seed     = (uint64_t)(1000 + i);
}

/* `rows`: of a step. `alone`: only every so many-th lane is compared with a run of its own. */
static void check_lanes(test_case *t, int lanes, int rows, int tokens, int alone, tandem_method m)
{
    tandem_options     o;
    tandem            *e;
    tandem_request     r;
    static nano_answer a, want;
    tandem_job        *job[MOST];
    nano_options(&o);
    o.n_ctx       = 64;
    o.max_lanes   = lanes;
    o.step_tokens = rows;
    if (!nano_open(t, &e, &o)) return;
    for (int i = 0; i < lanes; i++) {
        nano_request(e, &r, tokens);
        vary(&r, i);
        r.spec.method = m;
        job[i]        = nano_submit(t, e, &r);
    }
    for (int i = 0; i < lanes; i++) {
        nano_collect(job[i], &a);
        CHECK_INT(a.n, tokens);
        if (i % alone) continue;
        nano_request(e, &r, tokens);
        vary(&r, i);
        r.spec.method = TANDEM_SPEC_OFF;
        nano_ask(t, e, &r, &want);
        nano_same(t, &a, &want);
    }
    nano_check_idle(t, e);
    tandem_close(e);
}

TEST(sched_hundred_lanes_give_their_own_texts) { check_lanes(t, 100, 256, 3, 10, TANDEM_SPEC_OFF); }
/* More rows than the cost model has. */
TEST(sched_large_steps_give_their_own_texts) { check_lanes(t, 20, TANDEM_MAX_STEP_TOKENS, 12, 5, TANDEM_SPEC_AUTO); }
TEST_SLOW(sched_all_lanes_give_their_own_texts)
{
    check_lanes(t, MOST, 256, 24, 1, TANDEM_SPEC_OFF);
    check_lanes(t, MOST, TANDEM_MAX_STEP_TOKENS, 24, 4, TANDEM_SPEC_AUTO);
    check_lanes(t, MOST, 1024, 16, 4, TANDEM_SPEC_DFLASH);
}
