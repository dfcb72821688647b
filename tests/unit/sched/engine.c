/* The engine with nano: what an answer is, how it ends, and that its usage is what its reader got. */
#include "base/clock.h"
#include "base/fault.h"
#include "engine_rig.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

static void nap(double ms) { nanosleep(&(struct timespec){.tv_nsec = (long)(ms * 1e6)}, NULL); }

static bool open_default(test_case *t, tandem **e)
{
    tandem_options o;
    nano_options(&o);
    return nano_open(t, e, &o);
}

TEST(sched_answers_alone_and_together)
{
    enum { N = NANO_SLOWEST ? 24 : 60 };
    tandem        *e;
    tandem_request r;
    nano_answer    plain, a;
    tandem_job    *j[12];
    if (!open_default(t, &e)) return;
    nano_request(e, &r, N);
    r.spec.method = TANDEM_SPEC_OFF;
    nano_ask(t, e, &r, &plain);
    CHECK_INT(plain.n, N);
    CHECK_INT(plain.result.finish, TANDEM_FINISH_LENGTH);
    CHECK_INT(plain.result.usage.spec.drafted, 0);
    CHECK_INT(plain.result.usage.completion_tokens, N);
    CHECK_INT(plain.result.usage.prompt_tokens, NANO_PROMPT);
    for (int i = 0; i < 12; i++) { /* more than there are lanes */
        r.spec.method = (tandem_method)(i % (TANDEM_SPEC_AUTO + 1));
        j[i]          = nano_submit(t, e, &r);
    }
    for (int i = 0; i < 12 && j[i]; i++) {
        nano_collect(j[i], &a);
        nano_same(t, &a, &plain);
        CHECK_INT(a.result.usage.completion_tokens, a.n);
        CHECK_INT(a.result.usage.spec.drafted > 0, i % (TANDEM_SPEC_AUTO + 1) != TANDEM_SPEC_OFF);
    }
    nano_check_idle(t, e);
    tandem_close(e);
}

/* A step's tokens behind the one that was asked for last never were: whatever the drafts, usage is what poll gave. */
TEST(sched_usage_is_exact_at_every_length)
{
    enum { N = NANO_SLOWEST ? 20 : 40 };
    tandem        *e;
    tandem_request r;
    nano_answer    whole, a;
    if (!open_default(t, &e)) return;
    nano_request(e, &r, N);
    nano_ask(t, e, &r, &whole);
    for (int n = 0; n <= N; n++) {
        r.max_tokens = n;
        nano_ask(t, e, &r, &a);
        CHECK_INT(a.n, n);
        CHECK_INT(a.result.usage.completion_tokens, n);
        CHECK_INT(a.result.finish, TANDEM_FINISH_LENGTH);
        CHECK(!a.result.context_full);
        CHECK(!memcmp(a.token, whole.token, (size_t)n * sizeof *a.token));
    }
    nano_check_idle(t, e);
    tandem_close(e);
}

/* --- cancelling ---------------------------------------------------------------------------------*/
typedef struct {
    tandem_job *job; /* set before the first token is kept */
    atomic_bool go;
    int         at, seen;
} canceller;

static bool cancel_at(void *ctx, int32_t token)
{
    canceller *c = ctx;
    (void)token;
    while (!atomic_load(&c->go)) nap(0.05);
    if (++c->seen == c->at) tandem_cancel(c->job);
    return true;
}

/* Cancelled while token n is delivered: exactly n tokens were, the rest of the step's block too is gone. */
TEST(sched_usage_is_exact_when_cancelled_after_every_token)
{
    enum { N = NANO_SLOWEST ? 20 : 40 };
    tandem        *e;
    tandem_request r;
    nano_answer    whole, a;
    if (!open_default(t, &e)) return;
    nano_request(e, &r, N);
    nano_ask(t, e, &r, &whole);
    for (int n = 1; n < N; n++) {
        canceller c    = {.at = n};
        r.on_token     = cancel_at;
        r.on_token_ctx = &c;
        r.spec.method  = n % 2 ? TANDEM_SPEC_DFLASH : TANDEM_SPEC_TREE;
        c.job          = nano_submit(t, e, &r);
        atomic_store(&c.go, true);
        nano_collect(c.job, &a);
        CHECK_INT(a.n, n);
        CHECK_INT(a.result.usage.completion_tokens, n);
        CHECK_INT(a.result.finish, TANDEM_FINISH_CANCELLED);
        CHECK(!memcmp(a.token, whole.token, (size_t)n * sizeof *a.token));
    }
    nano_check_idle(t, e);
    tandem_close(e);
}

/* From another thread, at whatever moment: what was delivered is the beginning of the answer, and what usage says. */
TEST(sched_cancel_at_any_moment)
{
    tandem        *e;
    tandem_request r;
    nano_answer    whole, a;
    uint64_t       seed = 5;
    if (!open_default(t, &e)) return;
    nano_request(e, &r, 200);
    nano_ask(t, e, &r, &whole);
    for (int i = 0; i < 60; i++) {
        tandem_job *j = nano_submit(t, e, &r);
        if (i % 3) nap((double)(test_rand(&seed) % 6000) / 1000);
        tandem_cancel(j);
        tandem_cancel(j);
        nano_collect(j, &a);
        CHECK_INT(a.result.usage.completion_tokens, a.n);
        CHECK(a.n == 200 ? a.result.finish == TANDEM_FINISH_LENGTH : a.result.finish == TANDEM_FINISH_CANCELLED);
        CHECK(!memcmp(a.token, whole.token, (size_t)a.n * sizeof *a.token));
    }
    nano_check_idle(t, e);
    tandem_close(e);
}

TEST(sched_cancel_in_every_phase)
{
    static int32_t long_prompt[200];
    tandem_options o;
    tandem        *e;
    tandem_request r, big;
    nano_answer    a;
    tandem_stats   s;
    nano_options(&o);
    o.max_lanes   = 1;
    o.step_tokens = 16;
    if (!nano_open(t, &e, &o)) return;
    for (int i = 0; i < 200; i++) long_prompt[i] = 5 + i;
    nano_request(e, &r, 200);
    tandem_job *running = nano_submit(t, e, &r), *queued = nano_submit(t, e, &r);
    tandem_cancel(queued);
    nano_collect(queued, &a); /* while the other one runs */
    CHECK_INT(a.result.finish, TANDEM_FINISH_CANCELLED);
    CHECK_INT(a.n, 0);
    tandem_cancel(running);
    nano_collect(running, &a);
    big       = r;
    big.ids   = long_prompt; /* 13 steps of prompt */
    big.n_ids = 200;
    for (int i = 0; i < 8; i++) {
        tandem_job *j = nano_submit(t, e, &big);
        nap(0.2 * i);
        tandem_release(j); /* nobody waits for it */
    }
    nano_check_idle(t, e);
    r.max_tokens   = 5;
    tandem_job  *j = nano_submit(t, e, &r);
    tandem_token x[8];
    while (!tandem_job_result(j)) nap(0.1);
    tandem_cancel(j); /* after its end: nothing changes */
    CHECK_INT(tandem_poll(j, x, 8), 5);
    CHECK_INT(tandem_job_result(j)->finish, TANDEM_FINISH_LENGTH);
    CHECK_INT(tandem_job_result(j)->usage.completion_tokens, 5);
    tandem_release(j);
    tandem_get_stats(e, &s);
    CHECK(s.finished[TANDEM_FINISH_CANCELLED] >= 3);
    tandem_close(e);
}

/* --- waiting ------------------------------------------------------------------------------------*/
typedef struct {
    atomic_int n;
    int        order[16];
} arrivals;
typedef struct {
    arrivals *all;
    int       me;
} arrival;

static bool note_first(void *ctx, int32_t token)
{
    arrival *a = ctx;
    (void)token;
    if (a->me >= 0) a->all->order[atomic_fetch_add(&a->all->n, 1)] = a->me;
    a->me = -1;
    return true;
}

TEST(sched_priority_then_age)
{
    static const int priority[] = {0, 0, 5, -3, 5, 0}, expected[] = {2, 4, 0, 1, 5, 3};
    tandem_options   o;
    tandem          *e;
    tandem_request   r;
    nano_answer      a;
    arrivals         all = {0};
    arrival          each[6];
    tandem_job      *j[6];
    canceller        hold = {.at = 1};
    nano_options(&o);
    o.max_lanes = 1;
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 3);
    r.on_token     = cancel_at; /* holds the lane until all have come */
    r.on_token_ctx = &hold;
    hold.job       = nano_submit(t, e, &r);
    r.on_token     = note_first;
    for (int i = 0; i < 6; i++) {
        each[i]        = (arrival){&all, i};
        r.priority     = priority[i];
        r.on_token_ctx = &each[i];
        j[i]           = nano_submit(t, e, &r);
    }
    atomic_store(&hold.go, true);
    nano_collect(hold.job, &a);
    for (int i = 0; i < 6; i++) nano_collect(j[i], &a);
    for (int i = 0; i < 6; i++) CHECK_INT(all.order[i], expected[i]);
    tandem_close(e);
}

TEST(sched_refuses_with_a_sentence)
{
    static const int32_t     ids[300], bad[] = {2, 4096};
    const char              *too_many[65];
    static const tandem_bias twice[] = {{5, 1}, {5, 2}}, beyond[] = {{9999, 1}}, nan_bias[] = {{5, NAN}};
    tandem                  *e;
    tandem_request           r, ok;
    tandem_job              *j;
    tandem_error             why;
    if (!open_default(t, &e)) return;
    for (size_t i = 0; i < COUNT(too_many); i++) too_many[i] = "x";
    nano_request(e, &ok, 10);
#define REFUSED(change, part)                                                                                          \
    r = ok;                                                                                                            \
    change;                                                                                                            \
    CHECK_FAILS(tandem_submit(e, &r, &j, &why), why, part);                                                            \
    CHECK_INT(why.code, strstr(part, "context holds") ? TANDEM_CONTEXT : TANDEM_INPUT);                                \
    CHECK(j == NULL)
    REFUSED((r.ids = ids, r.n_ids = 300), "the prompt has 300 tokens and the context holds 256");
    REFUSED((r.ids = ids, r.n_ids = 256), "the prompt has 256 tokens and the context holds 256");
    REFUSED(r.n_ids = 0, "the prompt is empty");
    REFUSED((r.ids = NULL, r.text = NULL), "the prompt is empty");
    REFUSED((r.ids = bad, r.n_ids = 2), "token 4096 of the prompt is not in the vocabulary of 4096");
    REFUSED(r.temp = NAN, "temp must be between");
    REFUSED(r.temp = -1, "temp must be between 0 and 100, got -1");
    REFUSED(r.top_p = 2, "top_p must be between");
    REFUSED(r.min_p = -1, "min_p must be between");
    REFUSED(r.top_k = -1, "top_k must be between");
    REFUSED(r.repeat_penalty = 0, "repeat_penalty must be between");
    REFUSED(r.presence_penalty = 101, "presence_penalty must be between");
    REFUSED(r.frequency_penalty = -101, "frequency_penalty must be between");
    REFUSED(r.logprobs = 21, "logprobs must be between");
    REFUSED(r.max_tokens = -2, "max_tokens must be between");
    REFUSED(r.priority = 101, "priority must be between");
    REFUSED(r.time_limit_s = -1, "time_limit_s must be between");
    REFUSED(r.choice = -1, "choice must be between");
    REFUSED(r.spec.method = (tandem_method)6, "spec.method must be between");
    REFUSED(r.spec.draft_max = 65, "spec.draft_max must be between");
    REFUSED(r.spec.tree_budget = -1, "spec.tree_budget must be between");
    REFUSED(r.spec.tree_temp = NAN, "spec.tree_temp must be between");
    REFUSED(r.spec.draft_noise = 2, "spec.draft_noise must be between");
    REFUSED((r.bias = twice, r.n_bias = 2), "token 5 appears twice");
    REFUSED((r.bias = beyond, r.n_bias = 1), "token 9999 is not in the vocabulary");
    REFUSED((r.bias = nan_bias, r.n_bias = 1), "token 5 is not a number");
    REFUSED((r.bias = twice, r.n_bias = 1025), "must be between 0 and 1024, got 1025");
    REFUSED((r.stop = too_many, r.n_stop = 65), "stop takes up to 64 texts");
#undef REFUSED
    nano_check_idle(t, e);
    tandem_close(e);
}

static bool slowly(void *ctx, int32_t token)
{
    (void)ctx, (void)token;
    nap(2);
    return true;
}

/* Over the bound at once, after the time-out later, and always with the same words. */
TEST(sched_queue_is_bounded_and_times_out)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_job    *j[3], *none;
    tandem_error   why = {0};
    tandem_job    *first;
    nano_answer    a;
    tandem_stats   s;
    nano_options(&o);
    o.max_lanes = 1;
    nano_setting(&o, "queue_max", "2");
    nano_setting(&o, "queue_timeout_ms", "50");
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 100);
    r.on_token = slowly;
    first      = nano_submit(t, e, &r);
    r.on_token = NULL;
    for (int i = 0; i < 2; i++) j[i] = nano_submit(t, e, &r);
    CHECK_FAILS(tandem_submit(e, &r, &none, &why), why, "the server is busy; try again");
    CHECK_INT(why.code, TANDEM_BUSY);
    nano_collect(first, &a);
    CHECK_INT(a.n, 100);
    for (int i = 0; i < 2; i++) {
        nano_collect(j[i], &a);
        CHECK_INT(a.result.finish, TANDEM_FINISH_ERROR);
        CHECK_INT(a.result.error.code, TANDEM_BUSY);
        CHECK_STR(str_of(a.result.error.text), str_of("the server is busy; try again"));
        CHECK_INT(a.result.usage.completion_tokens, 0);
        CHECK_INT(a.result.usage.prompt_tokens, NANO_PROMPT);
        CHECK(a.result.usage.queue_s >= 0.05);
    }
    tandem_get_stats(e, &s);
    CHECK_INT(s.refused, 1);
    CHECK_INT(s.prompt_tokens, NANO_PROMPT); /* of the only one that ran */
    nano_ask(t, e, &r, &a);                  /* there is room again */
    CHECK_INT(a.n, 100);
    tandem_close(e);
}

TEST(sched_queue_of_none)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_job    *none;
    tandem_error   why  = {0};
    canceller      hold = {.at = 1};
    nano_answer    a;
    nano_options(&o);
    o.max_lanes = 1;
    nano_setting(&o, "queue_max", "0"); /* a legal value: nobody waits */
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 10);
    for (int i = 0; i < 20; i++) {
        nano_ask(t, e, &r, &a);
        CHECK_INT(a.n, 10);
    }
    r.on_token     = cancel_at;
    r.on_token_ctx = &hold;
    hold.job       = nano_submit(t, e, &r);
    CHECK_FAILS(tandem_submit(e, &r, &none, &why), why, "busy");
    atomic_store(&hold.go, true);
    nano_collect(hold.job, &a);
    tandem_close(e);
}

static bool dawdle(void *ctx, int32_t token)
{
    (void)ctx, (void)token;
    nap(5);
    return true;
}

TEST(sched_time_limit)
{
    tandem        *e;
    tandem_request r;
    nano_answer    a;
    if (!open_default(t, &e)) return;
    nano_request(e, &r, 200);
    r.on_token     = dawdle;
    r.time_limit_s = 0.5; /* on a busy machine, too, the first token comes before */
    nano_ask(t, e, &r, &a);
    CHECK_INT(a.result.finish, TANDEM_FINISH_TIMEOUT);
    CHECK(a.n > 0 && a.n < 200);
    CHECK_INT(a.result.usage.completion_tokens, a.n);
    nano_check_idle(t, e);
    tandem_close(e);
}

/* --- ends ---------------------------------------------------------------------------------------*/
TEST(sched_stop_tokens_and_texts)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    whole, a;
    char           text[4096], piece[64];
    size_t         n = 0, got;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 30);
    nano_ask(t, e, &r, &whole);
    for (int i = 0; i < 30; i++) { /* a token wherever a block of guesses may end */
        int first    = 0;
        r.stop_ids   = &whole.token[i];
        r.n_stop_ids = 1;
        while (whole.token[first] != whole.token[i]) first++;
        nano_ask(t, e, &r, &a);
        CHECK_INT(a.n, first + 1);
        CHECK_INT(a.result.finish, TANDEM_FINISH_STOP);
        CHECK_INT(a.result.usage.completion_tokens, first + 1); /* the stop token counts, those behind it do not */
    }
    r.n_stop_ids = 0;
    size_t all   = tandem_detokenize(e, whole.token, 30, false, text, sizeof text);
    CHECK(all > 20 && all < sizeof text);
    for (size_t at = 1; at + 6 < all; at++) { /* a text that begins anywhere, across tokens too */
        char        stop[8] = {0};
        const char *list[]  = {stop};
        char        out[4096];
        memcpy(stop, text + at, 5);
        if ((stop[0] & 0x80) || (stop[4] & 0x80)) continue;
        size_t where  = (size_t)(strstr(text, stop) - text);
        r.stop        = list;
        r.n_stop      = 1;
        tandem_job *j = nano_submit(t, e, &r);
        for (n = 0; (got = tandem_read(j, piece, sizeof piece)) > 0; n += got) memcpy(out + n, piece, got);
        CHECK_INT(n, where);
        CHECK(!memcmp(out, text, n));
        while (!tandem_job_result(j)) nap(0.1);
        const tandem_result *x = tandem_job_result(j);
        CHECK_INT(x->finish, TANDEM_FINISH_STOP_STRING);
        int least = 0; /* tokens that make the text up to the end of the string */
        while (tandem_detokenize(e, whole.token, (size_t)least, false, out, sizeof out) < where + 5) least++;
        CHECK_INT(x->usage.completion_tokens, least);
        tandem_release(j);
    }
    tandem_close(e);
}

TEST(sched_end_of_the_context)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    a;
    nano_options(&o);
    o.n_ctx = 40;
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 1000);
    nano_ask(t, e, &r, &a);
    CHECK_INT(a.n, 40 - NANO_PROMPT + 1); /* the last one is decided, but nothing can follow it */
    CHECK_INT(a.result.finish, TANDEM_FINISH_LENGTH);
    CHECK(a.result.context_full);
    r.max_tokens = -1;
    nano_ask(t, e, &r, &a);
    CHECK(a.result.context_full);
    tandem_close(e);
}

/* Greedy twice alike, drawn seeds reported and good for the same text again. */
TEST(sched_seeds)
{
    tandem        *e;
    tandem_request r;
    nano_answer    a, b;
    if (!open_default(t, &e)) return;
    nano_request(e, &r, 40);
    r.temp   = 3;
    r.choice = 3;
    nano_ask(t, e, &r, &a);
    r.has_seed = true;
    r.seed     = a.result.usage.seed;
    nano_ask(t, e, &r, &b);
    nano_same(t, &b, &a);
    r.choice = 2;
    nano_ask(t, e, &r, &b);
    CHECK(memcmp(a.token, b.token, 40 * sizeof *a.token));
    tandem_close(e);
}

TEST(sched_logprobs)
{
    tandem        *e;
    tandem_request r;
    tandem_token   x[20];
    if (!open_default(t, &e)) return;
    nano_request(e, &r, 20);
    r.logprobs    = 3;
    tandem_job *j = nano_submit(t, e, &r);
    while (!tandem_job_result(j)) nap(0.1);
    CHECK_INT(tandem_poll(j, x, 20), 20);
    for (int i = 0; i < 20; i++) {
        CHECK_INT(x[i].logprobs[0].id, x[i].id);
        CHECK_INT(x[i].logprobs[1].id, x[i].id); /* greedy: the likeliest */
        CHECK(x[i].logprobs[0].logprob == x[i].logprobs[1].logprob &&
              x[i].logprobs[1].logprob >= x[i].logprobs[3].logprob);
    }
    tandem_release(j);
    tandem_close(e);
}

/* Nobody reads: the engine goes on, and all is there afterwards. */
TEST(sched_slow_reader)
{
    tandem        *e;
    tandem_request r;
    nano_answer    a, b;
    if (!open_default(t, &e)) return;
    nano_request(e, &r, 200);
    tandem_job *j = nano_submit(t, e, &r);
    nano_ask(t, e, &r, &b);
    while (!tandem_job_result(j)) nap(0.1);
    nano_check_idle(t, e);
    nano_collect(j, &a);
    nano_same(t, &a, &b);
    tandem_close(e);
}

TEST(sched_text_in_and_out)
{
    tandem        *e;
    tandem_request r;
    tandem_ids     ids;
    tandem_error   why = {0};
    bool           in_thought;
    char           text[512], piece[5], all[4096];
    size_t         n = 0, got;
    if (!open_default(t, &e)) return;
    static const tandem_message talk[]    = {{"user", "What is 27 plus 58?"}};
    static const tandem_message no_role[] = {{"robot", "x"}};
    CHECK_OK(tandem_chat_prompt(e, talk, 1, false, &ids, &in_thought, &why), why);
    CHECK(!in_thought && ids.n > 8);
    tandem_ids same;
    CHECK_FAILS(tandem_chat_prompt(e, no_role, 1, false, &same, NULL, &why), why, "'robot' is not a role");
    tandem_request_init(e, &r);
    r.ids         = ids.p;
    r.n_ids       = ids.n;
    r.temp        = 0;
    tandem_job *j = nano_submit(t, e, &r);
    while ((got = tandem_read(j, piece, sizeof piece)) > 0) memcpy(all + n, piece, got), n += got;
    all[n] = 0;
    CHECK(strstr(all, "The answer is 85.") != NULL);
    CHECK_INT(tandem_job_result(j)->finish, TANDEM_FINISH_STOP);
    tandem_release(j);
    tandem_ids_free(&ids);
    CHECK_OK(tandem_tokenize(e, "27 + 58", 7, false, &ids, &why), why);
    CHECK_INT(tandem_detokenize(e, ids.p, ids.n, false, text, sizeof text), 7);
    CHECK_STR(str_of(text), STR("27 + 58"));
    CHECK_INT(tandem_detokenize(e, ids.p, ids.n, false, text, 3), 7);
    CHECK_STR(str_of(text), STR("27"));
    tandem_ids_free(&ids);
    r.ids        = NULL;
    r.text       = "27 + 58";
    r.max_tokens = 4;
    j            = nano_submit(t, e, &r);
    nano_answer a;
    nano_collect(j, &a);
    CHECK(a.result.usage.prompt_tokens > 3);
    tandem_close(e);
}

/* --- the end of the engine ----------------------------------------------------------------------*/
TEST(sched_shutdown_with_work_in_flight)
{
    enum { N = NANO_SLOWEST ? 60 : 200 };
    tandem        *e;
    tandem_request r;
    nano_answer    a;
    tandem_job    *j[10], *none;
    tandem_error   why = {0};
    for (int grace = 0; grace < 2; grace++) {
        if (!open_default(t, &e)) return;
        nano_request(e, &r, N);
        for (int i = 0; i < 10; i++) j[i] = nano_submit(t, e, &r);
        nap(1);
        tandem_shutdown(e, grace ? 60 : 0);
        CHECK_FAILS(tandem_submit(e, &r, &none, &why), why, "shutting down");
        CHECK_INT(why.code, TANDEM_UNAVAILABLE);
        tandem_close(e);
        for (int i = 0; i < 10; i++) { /* jobs outlive the engine */
            CHECK(tandem_job_result(j[i]) != NULL);
            nano_collect(j[i], &a);
            CHECK_INT(a.result.usage.completion_tokens, a.n);
            if (grace) CHECK_INT(a.n, N);
        }
    }
}

/* --- failures -----------------------------------------------------------------------------------*/
/* Every allocation of submission and admission fails once: a sentence, nothing lost, and the next one works. */
TEST(sched_allocation_failures)
{
    static const char *const stops[] = {"zzz"};
    tandem                  *e;
    tandem_request           r;
    nano_answer              whole, a;
    int                      refused = 0, failed = 0, n_ok = 0;
    if (!open_default(t, &e)) return;
    nano_request(e, &r, 12);
    r.logprobs         = 2;
    r.stop             = stops;
    r.n_stop           = 1;
    r.presence_penalty = 0.1f; /* counts tokens: memory at admission */
    nano_ask(t, e, &r, &whole);
    CHECK_INT(whole.n, 12);
    tandem_close(e);
    if (!open_default(t, &e)) return; /* nothing is there yet */
    for (long nth = 1; n_ok < 2 && nth < 100; nth++) {
        tandem_job  *j   = NULL;
        tandem_error why = {0};
        fault_fail_nth(nth);
        bool ok = tandem_submit(e, &r, &j, &why);
        if (ok) tandem_wait(j, -1);
        fault_fail_nth(0);
        if (!ok) {
            CHECK_INT(why.code, TANDEM_UNAVAILABLE);
            CHECK(strstr(why.text, "memory") != NULL);
            refused++;
            continue;
        }
        nano_collect(j, &a);
        if (a.result.finish == TANDEM_FINISH_ERROR) {
            CHECK_INT(a.result.error.code, TANDEM_UNAVAILABLE);
            failed++;
            continue;
        }
        n_ok++;
        nano_same(t, &a, &whole);
    }
    CHECK(refused >= 3 && failed >= 2);
    nano_check_idle(t, e);
    nano_ask(t, e, &r, &a);
    nano_same(t, &a, &whole);
    tandem_close(e);
}

TEST(sched_opening_fails_with_a_sentence)
{
    tandem_options o;
    tandem        *e;
    tandem_error   why = {0};
    nano_options(&o);
#define REFUSED(change, part)                                                                                          \
    nano_options(&o);                                                                                                  \
    change;                                                                                                            \
    CHECK_FAILS(tandem_open(&e, &o, &why), why, part);                                                                 \
    CHECK(e == NULL)
    REFUSED(o.path = "nowhere.gguf", "nowhere.gguf");
    REFUSED(o.path = NULL, "no path");
    REFUSED(o.max_lanes = 0, "max_lanes must be between");
    REFUSED(o.max_lanes = 257, "max_lanes must be between");
    REFUSED(o.step_tokens = 8, "step_tokens must be between");
    REFUSED(nano_setting(&o, "kv_cap", "0"), "kv_cap is 0");
    REFUSED(nano_setting(&o, "kv_hat", "0"), "there is no setting 'kv_hat'");
    REFUSED(o.kv_type = "q4", "kv_type: a K/V type must be f32, f16, q8_0, q4_0 or tq3, or two of them as "
                              "k=TYPE,v=TYPE, got 'q4'");
    REFUSED(o.n_ctx = 1 << 24, "over the model's limit");
    REFUSED(o.device = "toaster", "toaster");
#undef REFUSED
}

/* --- wake ---------------------------------------------------------------------------------------*/
static void count_wake(void *ctx) { atomic_fetch_add((atomic_int *)ctx, 1); }

static void count_wakes(test_case *t, double wake_ms, int *one, int *all)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    a;
    atomic_int     of_all = 0, of_one = 0;
    nano_options(&o);
    o.wake_ms  = wake_ms;
    o.wake     = count_wake;
    o.wake_ctx = &of_all;
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 20);
    r.spec.method = TANDEM_SPEC_OFF;
    r.wake        = count_wake;
    r.wake_ctx    = &of_one;
    nano_ask(t, e, &r, &a);
    tandem_close(e);
    CHECK_INT(a.n, 20);
    *one = of_one;
    *all = of_all;
}

TEST(sched_wakes)
{
    int one = 0, all = 0;
    count_wakes(t, 0, &one, &all);
    CHECK_INT(one, 20); /* a token a step; the last one and the end together */
    CHECK_INT(all, 20);
    count_wakes(t, 1000, &one, &all);
    CHECK_INT(one, 2); /* the first token and the end */
    CHECK_INT(all, 2);
}

typedef struct {
    int   n;
    sem_t reached, go;
} pause_at_ten;

static bool pause_once(void *ctx, int32_t token)
{
    pause_at_ten *p = ctx;
    (void)token;
    if (++p->n == 10) {
        sem_post(&p->reached);
        sem_wait(&p->go);
    }
    return true;
}

/* A step with a prompt takes longer than the last ones: what was held back until then is told before it. */
TEST(sched_tells_of_tokens_before_a_prompt)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    a;
    atomic_int     told = 0;
    pause_at_ten   p    = {0};
    sem_init(&p.reached, 0, 0);
    sem_init(&p.go, 0, 0);
    nano_options(&o);
    o.wake_ms   = 1000;
    o.no_prefix = true;
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 30);
    r.spec.method  = TANDEM_SPEC_OFF;
    r.wake         = count_wake;
    r.wake_ctx     = &told;
    r.on_token     = pause_once;
    r.on_token_ctx = &p;
    tandem_job *j  = nano_submit(t, e, &r);
    sem_wait(&p.reached);
    nano_request(e, &r, 3);
    tandem_job *other = nano_submit(t, e, &r);
    sem_post(&p.go);
    nano_collect(other, &a);
    nano_collect(j, &a);
    CHECK_INT(a.n, 30);
    tandem_close(e);
    CHECK_MSG(told >= 3, "told %d times", (int)told); /* of the first token, before the prompt, of the end */
    sem_destroy(&p.reached);
    sem_destroy(&p.go);
}

/* --- after the end ------------------------------------------------------------------------------*/
TEST(sched_tokens_outlive_the_engine)
{
    tandem        *e;
    tandem_request r;
    tandem_token   got[100];
    tandem_options o;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 100);
    r.ignore_stop_ids = false;
    tandem_job *j     = nano_submit(t, e, &r);
    while (!tandem_job_result(j)) nap(1);
    tandem_close(e);
    const tandem_result *result = tandem_job_result(j);
    size_t               n      = tandem_poll(j, got, COUNT(got));
    CHECK_INT(n, (size_t)result->usage.completion_tokens);
    for (size_t i = 0; i < n; i++) CHECK_INT(got[i].is_stop, result->finish == TANDEM_FINISH_STOP && i == n - 1);
    tandem_release(j);
}

/* --- a step that hangs ----------------------------------------------------------------------------*/
static bool wait_for(void *ctx, int32_t token)
{
    (void)token;
    while (!atomic_load((atomic_bool *)ctx)) nap(1);
    return true;
}

static double busy_of(tandem *e)
{
    tandem_stats s;
    tandem_get_stats(e, &s);
    return s.busy_s;
}

TEST(sched_tells_how_long_a_step_takes)
{
    tandem        *e;
    tandem_request r;
    nano_answer    a;
    atomic_bool    go   = false;
    double         seen = 0;
    if (!open_default(t, &e)) return;
    nano_request(e, &r, 4);
    r.on_token     = wait_for;
    r.on_token_ctx = &go;
    tandem_job *j  = nano_submit(t, e, &r);
    for (int i = 0; i < 5000 && seen < 0.05; i++, nap(1)) seen = busy_of(e);
    CHECK_MSG(seen >= 0.05, "a step that hangs is said to take %.3f s", seen);
    CHECK(busy_of(e) >= seen); /* the same step */
    atomic_store(&go, true);
    nano_collect(j, &a);
    for (int i = 0; i < 5000 && busy_of(e) > 0; i++) nap(1);
    CHECK_NEAR(busy_of(e), 0, 0);
    tandem_close(e);
}

TEST(sched_tells_who_was_admitted)
{
    tandem        *e;
    tandem_options o;
    tandem_request r;
    nano_answer    a;
    nano_options(&o);
    o.max_lanes = 1;
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 200);
    tandem_job *first = nano_submit(t, e, &r), *second = nano_submit(t, e, &r);
    tandem_wait(first, -1);
    CHECK(tandem_job_admitted(first) && !tandem_job_admitted(second));
    tandem_cancel(first);
    nano_collect(first, &a);
    tandem_wait(second, -1);
    CHECK(tandem_job_admitted(second));
    tandem_release(second);
    tandem_close(e);
}

/* A step may take long; what comes meanwhile is counted at once. */
TEST(sched_counts_what_waits_for_a_step)
{
    tandem        *e;
    tandem_request r;
    tandem_stats   s;
    nano_answer    a;
    tandem_job    *j[3];
    atomic_bool    go = false;
    if (!open_default(t, &e)) return;
    nano_request(e, &r, 4);
    r.on_token     = wait_for;
    r.on_token_ctx = &go;
    j[0]           = nano_submit(t, e, &r);
    for (int i = 0; i < 5000 && !tandem_job_admitted(j[0]); i++) nap(1);
    tandem_get_stats(e, &s);
    CHECK_INT(s.running, 1);
    CHECK_INT(s.queued, 0);
    j[1] = nano_submit(t, e, &r);
    j[2] = nano_submit(t, e, &r);
    for (int i = 0; i < 5000 && busy_of(e) < 0.02; i++) nap(1);
    tandem_get_stats(e, &s);
    CHECK_INT(s.running + s.queued, 3);
    atomic_store(&go, true);
    for (int i = 0; i < 3; i++) nano_collect(j[i], &a);
    nano_check_idle(t, e);
    tandem_close(e);
}
