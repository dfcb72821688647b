/* Requests among others: no room, clients that leave or stall, the end of the server. */
#include "server_rig.h"

#include "../sched/engine_rig.h"
#include "base/clock.h"
#include "server/text.h"

#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char path[] = "/v1/chat/completions";

/* Goes on for `n` tokens, whatever they are. */
static const char *story(char out[512], int n, const char *more)
{
    snprintf(
        out, 512,
        "{\"stream\":true,\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true,\"speculative\":\"off\",%s"
        "\"max_tokens\":%d,\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]}",
        more, n);
    return out;
}

static int begin_story(server_rig *r, int n)
{
    char body[512], first[12];
    int  fd = rig_connect(r);
    rig_send(fd, "POST", path, "", story(body, n, ""));
    test_check(r->t, recv(fd, first, sizeof first, MSG_PEEK | MSG_WAITALL) == 12 && !memcmp(first, "HTTP/1.1 200", 12),
               __FILE__, __LINE__, "the stream does not begin");
    return fd;
}

static void wait_for(server_rig *r, bool (*is_so)(const tandem_stats *s))
{
    tandem_stats s;
    double       until = clock_s() + 20;
    do {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        tandem_get_stats(r->engine, &s);
    } while (!is_so(&s) && clock_s() < until);
    test_check(r->t, is_so(&s), __FILE__, __LINE__, "what was waited for does not come");
}

static bool is_idle(const tandem_stats *s)
{
    int64_t n = 0;
    for (int i = 0; i < TANDEM_FINISHES; i++) n += s->finished[i];
    return n == s->submitted;
}
static bool is_queued(const tandem_stats *s) { return s->queued > 0; }

/* --- no room ------------------------------------------------------------------------------------*/
/* Returns the seconds that it took. */
static double expect_busy(server_rig *r, int status)
{
    test_case *t = r->t;
    rig_reply  a;
    char       body[512];
    double     start = clock_s();
    rig_post(r, path, story(body, 4, ""), &a);
    double took = clock_s() - start;
    CHECK_INT(a.status, status);
    CHECK_STR(rig_field(&a, "Retry-After"), STR("1"));
    CHECK_STR(rig_str(rig_json(&a), "error.message"), STR("The server is busy. Please try again later."));
    rig_reply_deinit(&a);
    return took;
}

TEST(server_is_busy_at_once_and_then_it_is_not)
{
    server_rig r;
    rig_reply  a;
    char       body[512];
    rig_init(&r, t);
    r.engine_opt.max_lanes = 1;
    r.engine_opt.n_ctx     = 4096;
    nano_setting(&r.engine_opt, "queue_max", "0");
    rig_start(&r);
    int    fd   = begin_story(&r, 3000);
    double best = INFINITY; /* of several: the machine may have other things to do */
    for (int i = 0; i < 5; i++) best = fmin(best, expect_busy(&r, 429));
    CHECK_MSG(best < 0.1, "a refusal takes %.0f ms", best * 1e3);
    close(fd);
    wait_for(&r, is_idle);
    rig_post(&r, path, story(body, 4, ""), &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* A body of a few bytes makes a tree of many; what all of them hold is bounded, and comes back. */
TEST(server_holds_so_much_and_no_more)
{
    server_rig r;
    rig_reply  a;
    char       body[512];
    buf        large;
    rig_init(&r, t);
    r.opt.max_held_bytes = 1 << 20;
    rig_start(&r);
    buf_init(&large, 1 << 20);
    buf_puts(&large, "{\"x\":[0");
    for (int i = 0; i < 50000; i++) buf_puts(&large, ",0");
    buf_puts(&large, "],\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}");
    buf_putc(&large, 0);
    for (int i = 0; i < 3; i++) {
        rig_post(&r, path, large.p, &a);
        CHECK_INT(a.status, 503);
        CHECK(rig_field(&a, "Retry-After").s);
        rig_reply_deinit(&a);
    }
    rig_post(&r, path, story(body, 4, ""), &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    buf_deinit(&large);
    rig_stop(&r);
}

/* Whoever has no key cannot fill what is there for bodies. */
TEST(server_reads_no_body_of_a_get)
{
    static const char *const head[] = {"Content-Length: 60000000\r\n", "Transfer-Encoding: chunked\r\n"};
    server_rig               r;
    rig_reply                a;
    char                     text[256], body[512];
    rig_init(&r, t);
    r.opt.http.max_bodies = 1000;
    rig_start(&r);
    for (int i = 0; i < 4; i++) {
        int fd = rig_connect(&r);
        snprintf(text, sizeof text, "%s /health HTTP/1.1\r\nHost: localhost\r\n%s\r\n", i < 2 ? "GET" : "HEAD",
                 head[i % 2]);
        rig_send_text(fd, text);
        rig_read(fd, &a); /* which ends, though nothing of the body was sent */
        CHECK_INT(a.status, 200);
        CHECK_STR(rig_field(&a, "Connection"), STR("close"));
        rig_reply_deinit(&a);
    }
    rig_post(&r, path, story(body, 4, ""), &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* A text to tokenise. */
static void fill(buf *out, size_t n, const char *more)
{
    buf_init(out, (size_t)1 << 26);
    buf_printf(out, "{%s\"content\":\"", more);
    while (out->n < n) buf_puts(out, "Grüße, Ωμέγα! ");
    buf_puts(out, "\"}");
    buf_putc(out, 0);
}

TEST(server_takes_texts_of_so_many_bytes)
{
    static const char *const paths[] = {"/tokenize", "/detokenize", "/v1/apply-template"};
    server_rig               r;
    rig_reply                a;
    buf                      text;
    rig_init(&r, t);
    rig_start(&r);
    fill(&text, TEXT_MAX_BODY + 1, "");
    for (size_t i = 0; i < COUNT(paths); i++) {
        rig_post(&r, paths[i], text.p, &a);
        CHECK_INT(a.status, 413);
        rig_reply_deinit(&a);
    }
    int fd = rig_connect(&r);
    rig_send_text(fd, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n400001\r\n");
    rig_read(fd, &a);
    CHECK_INT(a.status, 413);
    rig_reply_deinit(&a);
    buf_deinit(&text);
    rig_stop(&r);
}

static void wait_for_status(server_rig *r, const char *at, const char *body, int status)
{
    rig_reply a;
    int       got;
    double    until = clock_s() + 20;
    do {
        rig_post(r, at, body, &a);
        got = a.status;
        rig_reply_deinit(&a);
    } while (got != status && clock_s() < until);
    test_check(r->t, got == status, __FILE__, __LINE__, "the status is %d, expected %d", got, status);
}

/* Whoever does not read a large reply holds it, and others are told so; a chat still has its room. */
TEST(server_holds_replies_of_texts_until_they_are_sent)
{
    server_rig r;
    rig_reply  a;
    char       body[512];
    buf        text;
    int        small = 1 << 14;
    rig_init(&r, t);
    r.opt.max_held_bytes = 48 << 20;
    rig_start(&r);
    fill(&text, 700000, "\"with_pieces\":true,");
    int fd = rig_connect(&r);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    rig_send(fd, "POST", "/tokenize", "", text.p);
    CHECK_INT(recv(fd, body, 1, MSG_PEEK), 1);
    rig_post(&r, "/tokenize", text.p, &a);
    CHECK_INT(a.status, 503);
    rig_reply_deinit(&a);
    rig_post(&r, path, story(body, 4, ""), &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    close(fd);
    wait_for_status(&r, "/tokenize", text.p, 200);
    wait_for_status(&r, "/tokenize", text.p, 200);
    buf_deinit(&text);
    rig_stop(&r);
}

static const char *logprobs_of(char out[512], int n, bool stream)
{
    snprintf(out, 512,
             "{\"logprobs\":true,\"top_logprobs\":20,\"ignore_eos\":true,\"stream\":%s,\"max_tokens\":%d,"
             "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}",
             stream ? "true" : "false", n);
    return out;
}

static bool is_running(const tandem_stats *s) { return s->submitted > 0; }

/* Log-probabilities are a thousand times their token: their room is there before the first one is made. */
TEST_LONG(server_has_room_for_log_probabilities_or_says_so)
{
    server_rig r;
    rig_reply  a;
    char       body[512];
    rig_init(&r, t);
    r.engine_opt.n_ctx   = 4096;
    r.opt.max_held_bytes = 8 << 20;
    rig_start(&r);
    rig_post(&r, path, logprobs_of(body, 2000, false), &a);
    CHECK_INT(a.status, 400);
    CHECK_STR(rig_str(rig_json(&a), "error.param"), STR("top_logprobs"));
    rig_reply_deinit(&a);
    int fd = rig_connect(&r);
    rig_send(fd, "POST", path, "", logprobs_of(body, 1000, false));
    wait_for(&r, is_running);
    rig_post(&r, path, logprobs_of(body, 1000, false), &a);
    CHECK_INT(a.status, 503);
    rig_reply_deinit(&a);
    rig_read(fd, &a);
    CHECK_INT(a.status, 200);
    CHECK(a.body.n < 1000 * 21 * (72 + 8));
    rig_reply_deinit(&a);
    wait_for_status(&r, path, logprobs_of(body, 2000, true), 200);
    wait_for_status(&r, path, logprobs_of(body, 1000, false), 200);
    rig_stop(&r);
}

/* The 200 waits for the admission. */
TEST(server_that_let_a_request_wait_too_long_says_503)
{
    server_rig r;
    rig_init(&r, t);
    r.engine_opt.max_lanes = 1;
    r.engine_opt.n_ctx     = 4096;
    nano_setting(&r.engine_opt, "queue_timeout_ms", "100");
    rig_start(&r);
    int fd = begin_story(&r, 3500);
    expect_busy(&r, 503);
    close(fd);
    wait_for(&r, is_idle);
    rig_stop(&r);
}

static void expect_timeout(server_rig *r, bool stream)
{
    test_case *t = r->t;
    rig_reply  a;
    char       body[512];
    story(body, 4000, "");
    if (!stream) memcpy(strstr(body, "true"), "0   ", 4), memcpy(strstr(body, "\"stream\""), "\"strEam\"", 8);
    rig_post(r, path, body, &a);
    const char *usage = strstr(a.body.p, "\"usage\":{\"prompt_tokens\":1");
    CHECK(usage && !strstr(a.body.p, "\"completion_tokens\":0") && !strstr(a.body.p, "[DONE]"));
    CHECK(strstr(a.body.p, "\"error\":{\"message\":\"The request timed out.\",\"type\":\"timeout_error\""));
    CHECK_INT(a.status, stream ? 200 : 504);
    CHECK_INT(a.complete, !stream);
    rig_reply_deinit(&a);
}

/* What was used is told before the error. */
TEST(server_says_when_time_is_up)
{
    server_rig r;
    rig_init(&r, t);
    r.engine_opt.n_ctx = 4096;
    nano_setting(&r.engine_opt, "request_timeout_ms", "150");
    rig_start(&r);
    expect_timeout(&r, true);
    expect_timeout(&r, false);
    rig_wait_idle(&r);
    rig_stop(&r);
}

/* --- clients that leave -------------------------------------------------------------------------*/
/* Closes with a reset. A plain close looks like a client that has ended its sending side, which is served. */
static void reset(int fd)
{
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
    close(fd);
}

TEST(server_cancels_what_nobody_waits_for)
{
    server_rig   r;
    tandem_stats s;
    char         body[512];
    rig_init(&r, t);
    r.engine_opt.max_lanes = 1;
    r.engine_opt.n_ctx     = 4096;
    rig_start(&r);
    int streaming = begin_story(&r, 3500), queued = rig_connect(&r), whole = rig_connect(&r);
    rig_send(queued, "POST", path, "", story(body, 3500, ""));
    wait_for(&r, is_queued);
    reset(queued);
    rig_send(whole, "POST", path, "",
             "{\"ignore_eos\":true,\"n\":2,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}");
    close(streaming);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    reset(whole);
    wait_for(&r, is_idle);
    tandem_get_stats(r.engine, &s);
    CHECK(s.finished[TANDEM_FINISH_CANCELLED] >= 2);
    CHECK_INT(s.finished[TANDEM_FINISH_LENGTH], 0);
    nano_check_idle(t, r.engine);
    rig_stop(&r);
}

/* Of several prompts with several answers each only the first answers were submitted yet. */
TEST(server_cancels_what_was_begun_of_many)
{
    static const char body[] =
        "{\"prompt\":[\"Once\",\"Twice\"],\"n\":2,\"ignore_eos\":true,\"max_tokens\":3000,\"speculative\":\"off\"}";
    server_rig   r;
    tandem_stats s;
    rig_init(&r, t);
    r.engine_opt.max_lanes = 1;
    r.engine_opt.n_ctx     = 4096;
    rig_start(&r);
    int fd = rig_connect(&r);
    rig_send(fd, "POST", "/v1/completions", "", body);
    wait_for(&r, is_queued);
    rig_reset(fd);
    wait_for(&r, is_idle);
    tandem_get_stats(r.engine, &s);
    CHECK_INT(s.finished[TANDEM_FINISH_CANCELLED], 2);
    rig_stop(&r);
}

/* What waits behind long texts goes with its client: the room for bodies is there again at once. */
TEST(server_forgets_bodies_of_clients_that_left)
{
    server_rig r;
    rig_reply  a;
    buf        text;
    int        busy[2];
    rig_init(&r, t);
    r.opt.http.max_bodies = 9 << 20;
    rig_start(&r);
    fill(&text, 1900000, "");
    for (int i = 0; i < 2; i++) rig_send(busy[i] = rig_connect(&r), "POST", "/tokenize", "", text.p);
    for (int i = 0; i < 4; i++) {
        int fd = rig_connect(&r);
        rig_send(fd, "POST", i % 2 ? path : "/tokenize", "", text.p);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        rig_reset(fd);
    }
    rig_post(&r, "/tokenize", text.p, &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    for (int i = 0; i < 2; i++) {
        rig_read(busy[i], &a);
        CHECK_INT(a.status, 200);
        rig_reply_deinit(&a);
    }
    buf_deinit(&text);
    rig_stop(&r);
}

/* A client that does not read holds up nobody, and gets all of it when it does. */
TEST(server_waits_for_a_slow_reader)
{
    server_rig r;
    rig_reply  a;
    char       body[512];
    int        small = 1 << 16;
    rig_init(&r, t);
    r.engine_opt.n_ctx    = 4096;
    r.opt.http.max_unsent = 1 << 16;
    rig_start(&r);
    int fd = rig_connect(&r);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    rig_send(fd, "POST", path, "", story(body, 1500, "\"logprobs\":true,\"top_logprobs\":20,"));
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    rig_post(&r, path, story(body, 4, ""), &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    rig_read(fd, &a);
    CHECK(a.complete && strstr(a.body.p, "\"completion_tokens\":1500") && strstr(a.body.p, "[DONE]"));
    CHECK(a.body.n > (size_t)1 << 20);
    rig_reply_deinit(&a);
    rig_wait_idle(&r);
    rig_stop(&r);
}

TEST(server_keeps_a_silent_stream_alive)
{
    server_rig r;
    rig_reply  a;
    char       body[512];
    rig_init(&r, t);
    r.engine_opt.n_ctx = 4096;
    r.opt.ping_s       = 0; /* at every tick: answers never pause for long here */
    rig_start(&r);
    rig_post(&r, path, story(body, NANO_SLOW ? 200 : 4000, ""), &a);
    CHECK(a.complete && strstr(a.body.p, "\n\n: ping\n\ndata: "));
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* --- the end ------------------------------------------------------------------------------------*/
static void expect_cut(test_case *t, int fd)
{
    rig_reply a;
    rig_read(fd, &a);
    const char *usage = a.body.n ? strstr(a.body.p, "\"choices\":[],\"usage\":{\"prompt_tokens\":") : NULL;
    CHECK(!a.complete && usage && !strstr(a.body.p, "[DONE]"));
    CHECK(usage && strstr(usage, "data: {\"error\":{\"message\":\"The server is shutting down.\""));
    rig_reply_deinit(&a);
}

TEST(server_lets_answers_end_and_takes_no_new_ones)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    r.engine_opt.n_ctx = 4096;
    rig_start(&r);
    int fd = begin_story(&r, 300);
    pthread_kill(r.thread, SIGTERM);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    rig_ask(&r, "GET", "/health", "", "", &a);
    CHECK_INT(a.status, 503);
    rig_reply_deinit(&a);
    rig_ask(&r, "POST", "/v1/chat/completions", "", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", &a);
    CHECK(a.status == 503 && strstr(a.body.p, "shutting down"));
    rig_reply_deinit(&a);
    rig_read(fd, &a);
    CHECK(a.complete && strstr(a.body.p, "\"completion_tokens\":300") && strstr(a.body.p, "[DONE]"));
    rig_reply_deinit(&a);
    pthread_join(r.thread, NULL);
    CHECK(r.ok);
}

/* A second signal, or the end of the grace: what was used is told, then that it broke. */
TEST(server_cuts_what_does_not_end)
{
    for (int twice = 0; twice < 2; twice++) {
        server_rig r;
        rig_init(&r, t);
        r.engine_opt.n_ctx = 4096;
        r.opt.grace_s      = twice ? 60 : 0.05;
        rig_start(&r);
        int a = begin_story(&r, 3900), b = begin_story(&r, 3900);
        for (int i = 0; i <= twice; i++) {
            pthread_kill(r.thread, SIGTERM);
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        }
        expect_cut(t, a);
        expect_cut(t, b);
        pthread_join(r.thread, NULL);
        CHECK(r.ok);
    }
}

static bool is_refused(int fd)
{
    char head[12];
    return recv(fd, head, sizeof head, MSG_PEEK | MSG_DONTWAIT) == sizeof head && !memcmp(head, "HTTP/1.1 429", 12);
}

static void wait_for_refusal(const int *fd, int n)
{
    bool   any   = false;
    double until = clock_s() + 20;
    while (!any && clock_s() < until) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        for (int i = 0; i < n; i++) any |= is_refused(fd[i]);
    }
}

/* Texts wait, as many as may; a chat goes before them, and at the end nobody waits for them. */
TEST(server_puts_texts_behind_chats_and_skips_them_when_it_ends)
{
    enum { TEXTS = 60 };
    server_rig r;
    rig_reply  a;
    char       body[512];
    buf        text;
    int        fd[TEXTS], n_of[600] = {0};
    rig_init(&r, t);
    rig_start(&r);
    fill(&text, 400000, "");
    for (int i = 0; i < TEXTS; i++) rig_send(fd[i] = rig_connect(&r), "POST", "/tokenize", "", text.p);
    wait_for_refusal(fd, TEXTS);
    rig_post(&r, path, story(body, 4, ""), &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    for (int i = 0; i < 2; i++) {
        pthread_kill(r.thread, SIGTERM);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    for (int i = 0; i < TEXTS; i++) {
        rig_read(fd[i], &a);
        n_of[a.status]++;
        rig_reply_deinit(&a);
    }
    CHECK_MSG(n_of[429] && n_of[503] > TEXTS / 4 && n_of[200] + n_of[429] + n_of[503] == TEXTS,
              "%d were answered, %d too many, %d skipped", n_of[200], n_of[429], n_of[503]);
    pthread_join(r.thread, NULL);
    CHECK(r.ok);
    buf_deinit(&text);
}

static bool open_nothing(void *ctx, const settings *changed, tandem **out, void (*wake)(void *wake_ctx), void *wake_ctx,
                         err *e)
{
    (void)ctx, (void)changed, (void)out, (void)wake, (void)wake_ctx;
    return err_set(e, ERR_NOT_FOUND, "no such model");
}

TEST(server_ends_where_no_model_is_loaded)
{
    server_options o;
    err            e = {0};
    server_options_init(&o);
    o.http.port = 0;
    o.open      = open_nothing;
    CHECK(!server_run(&o, &e));
    CHECK_STR(str_of(e.text), STR("no such model"));
    o.http.host = "not an address";
    CHECK(!server_run(&o, &e));
}

/* --- from one engine to the next ------------------------------------------------------------------*/
/* All that closed engines have counted is in the sums; what was so at their time is not. */
TEST(server_counts_all_its_engines)
{
    static server s;
    tandem_stats  out, want = {0};
    for (int i = 0; i < (int)(sizeof want.finished / sizeof want.finished[0]); i++) want.finished[i] = 100 + i;
    for (int i = 0; i < TANDEM_STEP_BUCKETS; i++) want.step_bucket[i] = 200 + i, want.mask_bucket[i] = 300 + i;
    for (int i = 0; i < TANDEM_MAX_DRAFT; i++) want.spec.tried_at[i] = 400 + i, want.spec.right_at[i] = 500 + i;
    for (int i = 0; i < TANDEM_MAX_ROUTES; i++) want.routes[i] = 600 + i;
    for (int i = 0; i < TANDEM_SPEC_METHODS; i++)
        want.spec.rounds_by_method[i] = 700 + i, want.spec.drafted_by_method[i] = 710 + i,
        want.spec.accepted_by_method[i] = 720 + i;
    int64_t *const counts[] = {&want.submitted,         &want.refused,     &want.admitted,          &want.prompt_tokens,
                               &want.cached_tokens,     &want.steps,       &want.failed_steps,      &want.rows,
                               &want.completion_tokens, &want.prompt_rows, &want.prefix_hits,       &want.prefix_misses,
                               &want.prefix_evicted,    &want.spec.rounds, &want.spec.plain_rounds, &want.spec.drafted,
                               &want.spec.accepted,     &want.kv_wiped,    &want.prompt_steps};
    for (size_t i = 0; i < COUNT(counts); i++) *counts[i] = 1 + (int64_t)i;
    want.step_s           = 0.5;
    want.mask_s           = 0.25;
    s                     = (server){.life.before = want};
    s.life.before.running = s.life.before.queued = 7;
    s.life.before.busy_s                         = 7;
    s.life.before.kv_bytes = s.life.before.kv_pinned_bytes = s.life.before.kv_reserved_bytes = 7;
    s.life.before.kv_cached_bytes                                                            = 7;
    life_stats(&s, &out);
    CHECK(!memcmp(&out, &want, sizeof out));
}

TEST(server_answers_by_the_models_state)
{
    static const struct {
        model_state state;
        const char *code;
    } k[] = {{MODEL_LOADED, NULL},
             {MODEL_LOADING, "loading"},
             {MODEL_PARKING, "parked"},
             {MODEL_PARKED, "parked"},
             {MODEL_FAILED, "load_failed"}};
    static server s;
    for (size_t i = 0; i < COUNT(k); i++)
        for (int how = 0; how < 4; how++) {
            server_error why = {0};
            s = (server){.life.state = k[i].state, .draining = how == 1, .drained = how == 2, .cut = how == 3};
            CHECK_INT(life_check(k[i].state, &why), !k[i].code);
            if (k[i].code) CHECK(why.status == 503 && !strcmp(why.code, k[i].code));
            bool ready = server_is_ready(&s, &why);
            CHECK_INT(ready, !k[i].code && how != 1 && how != 2);
            if (!ready) CHECK_STR(str_of(why.code), str_of(how == 1 || how == 2 ? "draining" : k[i].code));
            CHECK(!server_why_cancelled(&s, &why) || k[i].state == MODEL_LOADED);
            CHECK_STR(str_of(why.code), str_of(k[i].state == MODEL_PARKING && how != 3 ? "parked" : "draining"));
        }
}

/* Bytes are counted while they are held, also of those who are refused and let them go. */
TEST(server_holds_bytes_up_to_a_limit)
{
    static server s;
    server_error  why = {0};
    CHECK(server_hold(&s, 60, 100, &why) && server_hold(&s, 40, 100, &why));
    CHECK(!server_hold(&s, 1, 100, &why));
    CHECK_INT(why.status, 503);
    server_let_go(&s, 1);
    CHECK_INT(atomic_load(&s.held_bytes), 100);
    server_let_go(&s, 40);
    CHECK(server_hold(&s, 40, 100, &why));
    server_let_go(&s, 100);
    CHECK_INT(atomic_load(&s.held_bytes), 0);
}
