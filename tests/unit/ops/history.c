#include "ops/history.h"

#include "base/fault.h"
#include "test.h"

enum { V = 40 };

/* What a token's change must be, counted from scratch. */
static logit_change expected(const int32_t *prompt, int n_prompt, const int32_t *out, int n_out,
                             const penalty_params *p, int32_t token)
{
    logit_change c         = {.row = 3, .token = token, .repeat = 1};
    int          in_prompt = 0, in_out = 0;
    for (int i = 0; i < n_prompt; i++) in_prompt += prompt[i] == token;
    for (int i = 0; i < n_out; i++) in_out += out[i] == token;
    for (int i = 0; i < p->n_bias; i++)
        if (p->bias[i].token == token) c.bias = p->bias[i].bias;
    if (in_prompt + in_out) c.repeat = p->repeat;
    if (in_out) c.minus = p->presence + p->frequency * (float)in_out;
    return c;
}

TEST(history_counts_prompt_and_output_as_the_penalties_want)
{
    static const logit_bias     bias[]   = {{5, 2}, {39, -100}};
    static const penalty_params params[] = {
        {.repeat = 1.3f},
        {.repeat = 1, .presence = 0.5f},
        {.repeat = 1, .frequency = 0.25f},
        {.repeat = 1, .bias = bias, .n_bias = 2},
        {.repeat = 1.1f, .presence = 0.5f, .frequency = -0.25f, .bias = bias, .n_bias = 2}};
    uint64_t r = 5;
    history *h;
    err      e = {0};
    CHECK_OK(history_new(&h, V, &e), e);
    for (int round = 0; round < 500; round++) {
        const penalty_params *p = &params[round % COUNT(params)];
        int32_t               prompt[30], out[30];
        int                   n_prompt = (int)(test_rand(&r) % 30), n_out = (int)(test_rand(&r) % 30);
        for (int i = 0; i < 30; i++) prompt[i] = (int32_t)(test_rand(&r) % V), out[i] = (int32_t)(test_rand(&r) % V);
        history_clear(h);
        history_bias(h, p->bias, p->n_bias);
        history_prompt(h, prompt, (size_t)n_prompt);
        for (int i = 0; i < n_out; i++) history_push(h, out[i]);
        for (int i = n_out; i < 30; i++) history_push(h, out[i]); /* a branch that comes and goes */
        for (int i = 29; i >= n_out; i--) history_pop(h, out[i]);
        logit_change got[2 * V];
        int          n = history_changes(h, p, 3, false, got), n_expected = 0;
        for (int32_t token = 0; token < V; token++) {
            logit_change want = expected(prompt, n_prompt, out, n_out, p, token);
            if (want.bias == 0 && want.repeat == 1 && want.minus == 0) continue;
            n_expected++;
            int at = 0;
            while (at < n && got[at].token != token) at++;
            if (CHECK_MSG(at < n, "no change for token %d", token)) CHECK(!memcmp(&got[at], &want, sizeof want));
        }
        CHECK_INT(n, n_expected);
    }
    history_free(h);
}

TEST(history_new_survives_failed_allocations)
{
    err e = {0};
    for (long n = 1; n <= 2; n++) {
        history *h;
        fault_fail_nth(n);
        CHECK_FAILS(history_new(&h, V, &e), e, "no memory");
        CHECK(h == NULL);
    }
    CHECK(penalty_is_off(&(penalty_params){.repeat = 1}));
    CHECK(!penalty_is_off(&(penalty_params){.repeat = 1.01f}));
}
