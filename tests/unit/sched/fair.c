/* Many requests at the same time: equal ones end together, streams keep their rate while a long prompt is read, and a
 * short request waits for one chunk of a long prompt. Times are CPU time of the engine's thread, or counts of rounds and
 * rows, so the machine's pace does not matter. */
#include "base/clock.h"
#include "base/mem.h"
#include "engine_rig.h"

#include <math.h>
#include <semaphore.h>

/* --- two hundred equal requests ------------------------------------------------------------------*/
/* With rows for four draft tokens of each. Time is counted in rounds, as in equal.c. */
TEST_LONG(sched_two_hundred_equal_requests_end_together)
{
    enum { LANES = 200, TOKENS = NANO_SLOW ? 24 : 96 };
    tandem_options     o;
    tandem            *e;
    tandem_request     r;
    static nano_answer a;
    tandem_job        *j[LANES];
    double             first = INFINITY, last = 0;
    nano_options(&o);
    o.n_ctx       = 160;
    o.max_lanes   = TANDEM_MAX_LANES;
    o.step_tokens = 1024;
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, TOKENS);
    r.spec.method = TANDEM_SPEC_DFLASH;
    for (int i = 0; i < LANES; i++) j[i] = nano_submit(t, e, &r);
    for (int i = 0; i < LANES; i++) {
        nano_collect(j[i], &a);
        const tandem_usage *u    = &a.result.usage;
        double              took = (double)(u->spec.rounds + u->spec.plain_rounds);
        CHECK_INT(a.n, TOKENS);
        CHECK(u->spec.accepted > 0);
        first = fmin(first, took);
        last  = fmax(last, took);
    }
    tandem_close(e);
    CHECK_MSG(last <= 1.3 * first, "the first after %.0f rounds, the last after %.0f", first, last);
}

/* --- streams and a long prompt -------------------------------------------------------------------*/
/* The stream lasts for several chunks of the prompt: each may take about as long as 100 of its tokens, and one more or
 * one less must not decide. */
enum { FROM = 20, TO = 1520 };
typedef struct {
    int    n;
    double first, last; /* CPU time of the engine's thread */
    sem_t  reached, go; /* at token FROM the engine waits for the test */
} stream;

static bool note_stream(void *ctx, int32_t token)
{
    stream *s = ctx;
    (void)token;
    if (++s->n == FROM) {
        sem_post(&s->reached);
        sem_wait(&s->go);
        s->first = clock_thread_s();
    }
    if (s->n == TO) s->last = clock_thread_s();
    return true;
}

static void long_prompt(tandem *e, tandem_request *r, int32_t *ids, int n)
{
    for (int i = 0; i < n; i++) ids[i] = nano_prompt[(i * 7 + i / 11) % NANO_PROMPT];
    nano_request(e, r, 1);
    r->ids         = ids;
    r->n_ids       = (size_t)n;
    r->spec.method = TANDEM_SPEC_OFF;
}

/* Returns the CPU time of the stream from token FROM to token TO, while a prompt of n tokens is read; n 0: alone. */
static double stream_time(test_case *t, tandem *e, int32_t *ids, int n)
{
    tandem_request     r, other;
    static nano_answer a;
    tandem_job        *j, *prompt = NULL;
    tandem_stats       before, after;
    stream             s = {0};
    sem_init(&s.reached, 0, 0);
    sem_init(&s.go, 0, 0);
    nano_request(e, &r, TO);
    r.spec.method  = TANDEM_SPEC_OFF;
    r.on_token     = note_stream;
    r.on_token_ctx = &s;
    j              = nano_submit(t, e, &r);
    sem_wait(&s.reached);
    tandem_get_stats(e, &before);
    if (n) {
        long_prompt(e, &other, ids, n);
        prompt = nano_submit(t, e, &other);
    }
    sem_post(&s.go);
    nano_collect(j, &a);
    CHECK_INT(s.n, TO);
    tandem_get_stats(e, &after);
    if (prompt) {
        CHECK_MSG(after.prompt_rows - before.prompt_rows >= 64, "%lld rows of the prompt",
                  (long long)(after.prompt_rows - before.prompt_rows));
        tandem_cancel(prompt);
        nano_collect(prompt, &a);
        CHECK_INT(a.result.finish, TANDEM_FINISH_CANCELLED); /* it was read all the time */
    }
    nano_check_idle(t, e);
    sem_destroy(&s.reached);
    sem_destroy(&s.go);
    return s.last - s.first;
}

TEST(sched_streams_keep_their_rate_while_a_long_prompt_is_read)
{
    enum { N = 32768 };
    tandem_options o;
    tandem        *e;
    double         with = INFINITY, alone = INFINITY;
    nano_options(&o);
    o.n_ctx     = N + 16;
    o.max_lanes = 2;
    o.no_prefix = true;
    if (!nano_open(t, &e, &o)) return;
    int32_t *ids = xnew_n(int32_t, N);
    /* In turns, so that a change of the machine's pace hits both; the best of each. */
    for (int i = 0; i < 3 && (i < 1 || alone < 0.7 * with); i++) {
        alone = fmin(alone, stream_time(t, e, ids, 0));
        with  = fmin(with, stream_time(t, e, ids, N));
    }
    CHECK_MSG(alone >= 0.7 * with, "next to a long prompt a stream has %.0f %% of its rate", 100 * alone / with);
    mem_free(ids);
    tandem_close(e);
}

/* --- a short request after a long one ------------------------------------------------------------*/
typedef struct {
    tandem *e;
    int64_t rows; /* prompt rows of the steps before the first token; -1: there was none yet */
} first_token;

static bool note_rows(void *ctx, int32_t token)
{
    first_token *f = ctx;
    tandem_stats s;
    (void)token;
    if (f->rows >= 0) return true;
    tandem_get_stats(f->e, &s);
    f->rows = s.prompt_rows;
    return true;
}

TEST(sched_short_requests_wait_for_one_chunk)
{
    enum { N = NANO_SLOW ? 1200 : 4000, CHUNK = 256 };
    tandem_options     o;
    tandem            *e;
    tandem_request     r;
    static nano_answer a;
    stream             s = {0};
    sem_init(&s.reached, 0, 0);
    sem_init(&s.go, 0, 0);
    nano_options(&o);
    o.n_ctx       = N + 16;
    o.max_lanes   = 3;
    o.step_tokens = CHUNK;
    o.no_prefix   = true;
    if (!nano_open(t, &e, &o)) return;
    for (int busy = 0; busy < 2; busy++) { /* alone with the long prompt, and next to a stream */
        int32_t     *ids   = xnew_n(int32_t, N);
        first_token  first = {e, -1}, late = {e, -1};
        tandem_stats before;
        s.n = 0;
        nano_request(e, &r, busy ? TO : FROM);
        r.on_token       = note_stream; /* holds the engine until all have come */
        r.on_token_ctx   = &s;
        tandem_job *hold = nano_submit(t, e, &r);
        sem_wait(&s.reached);
        tandem_get_stats(e, &before);
        long_prompt(e, &r, ids, N);
        r.on_token          = note_rows;
        r.on_token_ctx      = &late;
        tandem_job *longest = nano_submit(t, e, &r);
        nano_request(e, &r, 2);
        r.on_token        = note_rows;
        r.on_token_ctx    = &first;
        tandem_job *brief = nano_submit(t, e, &r);
        sem_post(&s.go);
        nano_collect(brief, &a);
        nano_collect(longest, &a);
        nano_collect(hold, &a);
        CHECK_MSG(first.rows >= 0 && first.rows - before.prompt_rows <= CHUNK, "%lld rows before the short request",
                  (long long)(first.rows - before.prompt_rows));
        CHECK(late.rows > first.rows);
        nano_check_idle(t, e);
        mem_free(ids);
    }
    tandem_close(e);
    sem_destroy(&s.reached);
    sem_destroy(&s.go);
}
