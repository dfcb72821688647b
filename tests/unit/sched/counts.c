/* What the engine counts of steps, rows and rounds, and how it ends. */
#include "engine_rig.h"
#include "sched/inside.h"
#include "sched/sched.h"

#include <pthread.h>
#include <time.h>

static int64_t sum(const int64_t *x, int n)
{
    int64_t all = 0;
    for (int i = 0; i < n; i++) all += x[i];
    return all;
}

/* A prompt in pieces of a step, then a row for each token; the first token comes with the last piece. */
TEST(sched_counts_steps_and_rows)
{
    enum { N = 9 };
    static const struct {
        int step_tokens, pieces;
    } k[] = {{256, 1}, {NANO_PROMPT, 1}, {NANO_PROMPT - 1, 2}, {16, 2}};
    for (size_t i = 0; i < COUNT(k); i++) {
        tandem_options o;
        tandem        *e;
        tandem_request r;
        tandem_stats   s;
        nano_answer    a;
        nano_options(&o);
        o.n_drafters  = 0;
        o.no_prefix   = true;
        o.step_tokens = k[i].step_tokens;
        if (!nano_open(t, &e, &o)) return;
        nano_request(e, &r, N);
        r.spec.method = TANDEM_SPEC_OFF;
        nano_ask(t, e, &r, &a);
        nano_check_idle(t, e);
        tandem_get_stats(e, &s);
        int64_t last =
            NANO_PROMPT - (k[i].pieces - 1) * k[i].step_tokens; /* rows of the last piece; one is an answer's */
        CHECK_INT(s.steps, k[i].pieces + N - 1);
        CHECK_INT(s.rows, NANO_PROMPT + N - 1);
        CHECK_INT(s.prompt_rows, NANO_PROMPT - (last == 1));
        CHECK(s.prompt_steps > 0 && s.prompt_steps <= s.steps);
        CHECK_INT(sum(s.step_bucket, TANDEM_STEP_BUCKETS), s.steps);
        CHECK_INT(sum(s.mask_bucket, TANDEM_STEP_BUCKETS), 0);
        CHECK(s.step_s > 0 && s.mask_s == 0 && s.failed_steps == 0);
        CHECK(s.submitted == 1 && s.admitted == 1 && s.refused == 0 && s.finished[TANDEM_FINISH_LENGTH] == 1);
        CHECK_INT(sum(s.finished, TANDEM_FINISHES), 1);
        CHECK_INT(s.routes[ROUTE_REQUEST], N - 1);
        CHECK_INT(sum(s.routes, TANDEM_MAX_ROUTES), N - 1);
        CHECK_INT(s.spec.plain_rounds, N);
        tandem_close(e);
    }
}

/* The first bucket is under an eighth of a millisecond, each further one twice as long, and the last one has no end. */
TEST(sched_buckets_double)
{
    CHECK_INT(sched_bucket(0), 0);
    for (int i = 0; i < TANDEM_STEP_BUCKETS - 1; i++) {
        double end = ldexp(0.125e-3, i);
        CHECK_INT(sched_bucket(end * 0.999), i);
        CHECK_INT(sched_bucket(end * 1.001), i + 1);
    }
    CHECK_INT(sched_bucket(1e9), TANDEM_STEP_BUCKETS - 1);
}

/* Every round has one reason, also where a choice holds for several steps. */
TEST(sched_counts_a_reason_for_each_round)
{
    enum { LANES = 4, N = 30 };
    for (int drafters = 0; drafters <= 2; drafters += 2) {
        tandem_options o;
        tandem        *e;
        tandem_request r;
        tandem_stats   s;
        tandem_job    *j[LANES];
        nano_answer    a;
        int64_t        rounds = 0;
        nano_options(&o);
        o.n_drafters = drafters;
        if (!nano_open(t, &e, &o)) return;
        for (int i = 0; i < LANES; i++) {
            nano_request(e, &r, N + i);
            j[i] = nano_submit(t, e, &r);
        }
        for (int i = 0; i < LANES; i++) {
            nano_collect(j[i], &a);
            rounds += a.result.usage.spec.rounds + a.result.usage.spec.plain_rounds;
            CHECK(a.result.usage.route_reason[0]);
        }
        tandem_get_stats(e, &s);
        CHECK_INT(s.spec.rounds + s.spec.plain_rounds, rounds);
        CHECK_INT(sum(s.routes, TANDEM_MAX_ROUTES), rounds - LANES); /* none for the round that ends a prompt */
        CHECK_INT(s.admitted, LANES);
        tandem_close(e);
    }
}

/* Further answers to a prompt are not counted as prompts again; what was found in the cache is the requests' own count. */
TEST(sched_counts_prompts_once)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_stats   s;
    nano_answer    a;
    int64_t        cached = 0;
    nano_options(&o);
    o.n_drafters = 0;
    if (!nano_open(t, &e, &o)) return;
    for (int i = 0; i < 4; i++) {
        nano_request(e, &r, 3);
        r.choice = i % 2;
        nano_ask(t, e, &r, &a);
        if (!r.choice) cached += a.result.usage.cached_tokens;
        CHECK_INT(a.result.usage.prompt_tokens, NANO_PROMPT);
        CHECK_INT(a.result.usage.cached_tokens > 0, i > 0);
    }
    tandem_get_stats(e, &s);
    CHECK_INT(s.prompt_tokens, 2 * NANO_PROMPT);
    CHECK_INT(s.cached_tokens, cached);
    CHECK_INT(s.completion_tokens, 12);
    CHECK(s.prefix_hits == 3 && s.prefix_misses == 1 && s.prefix_evicted == 0);
    CHECK(s.kv_bytes > 0 && s.kv_cached_bytes > 0 && s.kv_cached_bytes < s.kv_bytes);
    CHECK_INT(s.kv_pinned_bytes + s.kv_reserved_bytes, 0);
    tandem_close(e);
}

/* --- the end ------------------------------------------------------------------------------------*/
static bool slowly(void *ctx, int32_t token)
{
    (void)ctx, (void)token;
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    return true;
}

static void *shut_down_late(void *e)
{
    tandem_shutdown(e, 3600);
    return NULL;
}

static bool is_closing(test_case *t, tandem *e, const tandem_request *r)
{
    tandem_error why = {0};
    tandem_job  *j   = NULL;
    if (tandem_submit(e, r, &j, &why)) {
        tandem_release(j);
        return false;
    }
    if (why.code == TANDEM_BUSY) return false; /* many have asked meanwhile */
    CHECK(why.code == TANDEM_UNAVAILABLE && strstr(why.text, "the engine is shutting down"));
    return true;
}

/* The shortest time that anybody gave counts, also where a longer one comes later. */
TEST(sched_shuts_down_as_soon_as_anybody_wants)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_stats   s;
    tandem_error   why = {0};
    pthread_t      late;
    nano_options(&o);
    o.max_lanes = 1;
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 200);
    r.on_token      = slowly;
    tandem_job *run = nano_submit(t, e, &r), *wait = nano_submit(t, e, &r);
    tandem_wait(run, -1);
    pthread_create(&late, NULL, shut_down_late, e);
    while (!is_closing(t, e, &r)) {}
    CHECK(!tandem_job_result(run) && !tandem_job_result(wait)); /* they have an hour */
    tandem_shutdown(e, 0);
    CHECK(tandem_job_result(run) && tandem_job_result(wait));
    CHECK_INT(tandem_job_result(run)->finish, TANDEM_FINISH_CANCELLED);
    CHECK_INT(tandem_job_result(wait)->finish, TANDEM_FINISH_CANCELLED);
    pthread_join(late, NULL);
    tandem_shutdown(e, 3600); /* is over already */
    CHECK(is_closing(t, e, &r));
    CHECK_FAILS(tandem_park_drafter(e, TANDEM_SPEC_MTP, &why), why, "the engine is shutting down");
    tandem_get_stats(e, &s);
    CHECK(s.refused >= 2 && s.running == 0 && s.queued == 0 && s.busy_s == 0);
    tandem_release(run);
    tandem_release(wait);
    tandem_close(e);
}
