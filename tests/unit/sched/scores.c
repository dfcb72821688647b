/* Log-probabilities of the prompt: exact, whatever the cache, the batch and the drafters do. */
#include "engine_rig.h"

#include <math.h>

enum { TOP = 3, EACH = 1 + TOP };

static void score_request(const tandem *e, tandem_request *r)
{
    nano_request(e, r, 1);
    r->logprobs        = TOP;
    r->prompt_logprobs = true;
}

/* What each token of the prompt has as an answer to the ones before it: the bias makes it the pick, and log-probabilities are
 * those before it. */
static void expect(test_case *t, tandem *e, tandem_logprob want[NANO_PROMPT][EACH])
{
    for (int i = 1; i < NANO_PROMPT; i++) {
        tandem_bias    bias = {nano_prompt[i], 100};
        tandem_token   x    = {0};
        tandem_request r;
        nano_request(e, &r, 1);
        r.n_ids       = (size_t)i;
        r.logprobs    = TOP;
        r.bias        = &bias;
        r.n_bias      = 1;
        tandem_job *j = nano_submit(t, e, &r);
        if (!j) return;
        tandem_wait(j, -1);
        CHECK_INT(tandem_poll(j, &x, 1), 1);
        CHECK_INT(x.id, nano_prompt[i]);
        if (x.logprobs) memcpy(want[i], x.logprobs, sizeof want[i]);
        tandem_release(j);
    }
}

static void check_scores(test_case *t, tandem_job *j, tandem_logprob want[NANO_PROMPT][EACH], const char *how)
{
    while (!tandem_job_result(j)) tandem_wait(j, 0.01);
    const tandem_logprob *got = tandem_prompt_logprobs(j);
    if (!CHECK_MSG(got != NULL, "%s: there are none", how)) return;
    CHECK_INT(got[0].id, -1);
    for (int i = 1; i < NANO_PROMPT; i++)
        for (int k = 0; k < EACH; k++) {
            const tandem_logprob *a = &got[i * EACH + k], *b = &want[i][k];
            CHECK_MSG(a->id == b->id && a->logprob == b->logprob, "%s: token %d, item %d: %d %.9g, expected %d %.9g",
                      how, i, k, a->id, (double)a->logprob, b->id, (double)b->logprob);
        }
    CHECK_INT(tandem_job_result(j)->usage.cached_tokens, 0);
}

TEST(scores_of_a_prompt_are_those_of_its_tokens_as_answers)
{
    static const struct {
        const char *how;
        int         step_tokens, n_jobs;
    } k[]                                  = {{"alone", 256, 1}, {"in small pieces", 16, 1}, {"among others", 64, 5}};
    tandem_logprob want[NANO_PROMPT][EACH] = {{{0}}};
    for (size_t i = 0; i < COUNT(k); i++) {
        tandem_options o;
        tandem        *e;
        tandem_request r;
        tandem_job    *j[5] = {0};
        nano_options(&o);
        o.step_tokens = k[i].step_tokens;
        o.max_lanes   = 5;
        if (!nano_open(t, &e, &o)) return;
        if (i == 0) expect(t, e, want);
        for (int m = TANDEM_SPEC_OFF; m <= TANDEM_SPEC_AUTO; m++) {
            for (int n = 0; n < k[i].n_jobs; n++) {
                score_request(e, &r);
                r.spec.method = (tandem_method)m;
                r.temp        = n % 2 ? 1 : 0;
                if (n == 2) r.repeat_penalty = 1.3f;
                if (n == 3) r.grammar = (tandem_grammar){.kind = TANDEM_GRAMMAR_GBNF, .text = "root ::= [a-z]+"};
                if (n == 4) r.max_tokens = 0;
                j[n] = nano_submit(t, e, &r);
            }
            for (int n = 0; n < k[i].n_jobs; n++) {
                if (!j[n]) continue;
                check_scores(t, j[n], want, k[i].how);
                tandem_release(j[n]);
            }
        }
        nano_check_idle(t, e);
        tandem_close(e);
    }
}

TEST(scores_need_logprobs_and_are_there_when_asked_for)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_error   why = {0};
    tandem_job    *j;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    score_request(e, &r);
    r.logprobs = -1;
    CHECK(!tandem_submit(e, &r, &j, &why) && strstr(why.text, "prompt_logprobs"));
    score_request(e, &r);
    r.prompt_logprobs = false;
    if ((j = nano_submit(t, e, &r))) {
        while (!tandem_job_result(j)) tandem_wait(j, 0.01);
        CHECK(!tandem_prompt_logprobs(j));
        tandem_release(j);
    }
    tandem_close(e);
}
