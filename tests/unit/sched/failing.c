/* Steps that a device fails, and what requests are told of their time and by which name. */
#include "engine_rig.h"

#include "sched/inside.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

static bool (*real_step)(target *t, kv_pool *kv, const step *s, err *e);
static atomic_int n_good, n_bad; /* steps until one fails; steps that fail then */

static bool failing_step(target *t, kv_pool *kv, const step *s, err *e)
{
    if (atomic_load(&n_bad) > 0 && atomic_fetch_sub(&n_good, 1) <= 0) {
        atomic_fetch_sub(&n_bad, 1);
        return err_set(e, ERR_IO, "the device is gone");
    }
    return real_step(t, kv, s, e);
}

/* While no request is there the engine's thread does not look at the model. */
static void fail_steps(tandem *e, int after, int n)
{
    if (e->m.model->step != failing_step) real_step = e->m.model->step;
    e->m.model->step = failing_step;
    atomic_store(&n_good, after);
    atomic_store(&n_bad, n);
}

TEST(sched_a_failed_step_ends_its_requests_alone)
{
    tandem_options     o;
    tandem            *e;
    tandem_request     r;
    tandem_stats       s;
    static nano_answer a, want;
    nano_options(&o);
    o.no_prefix = true;
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 20);
    r.spec.method = TANDEM_SPEC_OFF;
    nano_ask(t, e, &r, &want);
    for (int after = 0; after < 8; after++) {
        test_listen_begin(false);
        fail_steps(e, after, 1);
        nano_ask(t, e, &r, &a);
        CHECK_INT(a.result.finish, TANDEM_FINISH_ERROR);
        CHECK_STR(str_of(a.result.error.text), str_of("the device is gone"));
        CHECK_INT(a.n, after); /* the prompt's step decides a token, too */
        CHECK_INT(a.result.usage.completion_tokens, a.n);
        for (int i = 0; i < a.n; i++) CHECK_INT(a.token[i], want.token[i]);
        tandem_get_stats(e, &s);
        CHECK_INT(s.failed_steps, after + 1);
        CHECK_INT(s.finished[TANDEM_FINISH_ERROR], after + 1);
        CHECK(strstr(test_listen_end(), "the device is gone") != NULL);
        nano_ask(t, e, &r, &a); /* the next one fares better */
        nano_same(t, &a, &want);
        nano_check_idle(t, e);
    }
    tandem_close(e);
}

/* The step that runs a drafter's first page again at admission: without it there is no hit, and nothing else is lost. */
TEST(sched_a_failed_first_page_costs_a_hit)
{
    enum { N = 1000 };
    static int32_t     ids[N];
    static nano_answer a, want;
    tandem_options     o;
    tandem            *e;
    tandem_request     r;
    for (int i = 0; i < N; i++) ids[i] = i ? nano_prompt[1 + i % (NANO_PROMPT - 1)] : nano_prompt[0];
    nano_options(&o);
    o.n_ctx = 1100;
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 10);
    r.ids         = ids;
    r.n_ids       = N;
    r.spec.method = TANDEM_SPEC_OFF;
    nano_ask(t, e, &r, &want);
    r.spec.method = TANDEM_SPEC_DFLASH;
    fail_steps(e, 0, 1);
    nano_ask(t, e, &r, &a);
    CHECK_INT(atomic_load(&n_bad), 0);
    CHECK_INT(a.result.usage.cached_tokens, 0);
    nano_same(t, &a, &want);
    nano_check_idle(t, e);
    tandem_close(e);
}

static bool wait_5ms(void *ctx, int32_t token)
{
    (void)ctx, (void)token;
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    return true;
}

TEST(sched_times_of_a_request_add_up)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    a;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 12);
    r.on_token    = wait_5ms;
    r.spec.method = TANDEM_SPEC_OFF;
    nano_ask(t, e, &r, &a);
    const tandem_usage *u = &a.result.usage;
    CHECK(u->queue_s >= 0 && u->prefill_s > 0);
    CHECK_MSG(u->decode_s >= 11 * 0.005, "12 tokens with 5 ms after each: %.3f s", u->decode_s);
    tandem_close(e);
}

/* By its own name, however short, or else by its number. */
TEST(sched_requests_have_names)
{
    static const char *const name[] = {NULL, "x", "ab", NULL}, *const shown[] = {"1", "x", "ab", "4"};
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    a;
    char           text[8192], want[64];
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    for (size_t i = 0; i < COUNT(name); i++) {
        nano_request(e, &r, 3);
        r.id = name[i];
        nano_ask(t, e, &r, &a);
        snprintf(want, sizeof want, "\"request_id\":\"%s\"", shown[i]);
        CHECK(nano_routing(e, shown[i], 10, text, sizeof text) < sizeof text);
        CHECK_MSG(strstr(text, want), "%s is not in %s", want, text);
    }
    tandem_close(e);
}
