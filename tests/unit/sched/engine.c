/* The engine with nano: what an answer is, and how it ends. */
#include "engine_rig.h"

#include <string.h>

TEST(sched_answers_alone_and_together)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer     plain, a;
    tandem_job    *j[12];
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 60);
    r.spec.method = TANDEM_SPEC_OFF;
    nano_ask(t, e, &r, &plain);
    CHECK_INT(plain.n, 60);
    CHECK_INT(plain.result.finish, TANDEM_FINISH_LENGTH);
    CHECK_INT(plain.result.usage.drafted, 0);
    CHECK_INT(plain.result.usage.completion_tokens, 60);
    CHECK_INT(plain.result.usage.prompt_tokens, NANO_PROMPT);
    for (int i = 0; i < 12; i++) { /* more than there are lanes */
        r.spec.method = (tandem_method)(i % (TANDEM_SPEC_AUTO + 1));
        j[i]          = nano_submit(t, e, &r);
    }
    for (int i = 0; i < 12 && j[i]; i++) {
        nano_collect(j[i], &a);
        nano_same(t, &a, &plain);
        CHECK_INT(a.result.usage.completion_tokens, a.n);
        CHECK_INT(a.result.usage.drafted > 0, i % (TANDEM_SPEC_AUTO + 1) != TANDEM_SPEC_OFF);
    }
    nano_check_idle(t, e);
    tandem_close(e);
}
