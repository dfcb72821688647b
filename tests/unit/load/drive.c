#include "load/drive.h"

#include "base/clock.h"
#include "load/inside.h"
#include "load/report.h"
#include "stub.h"
#include "test.h"

#include <stdatomic.h>
#include <unistd.h>

typedef struct {
    load_prompts prompts;
    load_ask     ask;
    stub        *stub;
    load_server *server;
    char         url[64];
} stage;

static void stage_open(test_case *t, stage *g, stub_reply *reply, void *ctx)
{
    err e = {0};
    *g    = (stage){.ask = {.is_chat = true, .model = "m"}};
    load_prompts_init(&g->prompts);
    g->ask.prompts = &g->prompts;
    http_client_options_init(&g->ask.http);
    g->ask.http.total_s = 5;
    g->stub             = stub_open(reply, ctx);
    snprintf(g->url, sizeof g->url, "http://127.0.0.1:%d", stub_port(g->stub));
    CHECK_OK(load_server_open(&g->server, g->url, &g->ask, &e), e);
}

static void stage_close(stage *g)
{
    load_server_close(g->server);
    stub_close(g->stub);
    load_prompts_deinit(&g->prompts);
}

static bool reply_well(void *ctx, const stub_request *q, buf *out)
{
    (void)ctx;
    if (str_is(q->path, "/v1/chat/completions"))
        stub_put_stream(out, 5, "");
    else
        stub_put(out, 404, "text/plain", "no");
    return true;
}

TEST(load_drive_makes_all_requests_on_kept_connections)
{
    stage    g;
    load_run r;
    err      e;
    stage_open(t, &g, reply_well, NULL);
    load_plan plan = {.users = 4, .requests = 50};
    CHECK_OK(load_drive(g.server, &plan, &r, &e), e);
    CHECK_INT(r.asked, 50);
    CHECK_INT(r.n, 50);
    CHECK_INT(r.failed, 0);
    CHECK_INT(r.gaps.n, 50);
    CHECK(r.seconds > 0 && !r.gave_up && !r.stopped && !r.speculation.reported);
    CHECK(stub_connections(g.stub) <= 4);
    CHECK_INT(stub_requests(g.stub), 51); /* and the counters, which are not there */
    load_run_deinit(&r);
    stage_close(&g);
}

/* Requests of all turns, each with the responses before it. */
typedef struct {
    atomic_int by_turn[4]; /* requests with this number of responses */
    atomic_int wrong;
} turns_seen;

static bool reply_to_turns(void *ctx, const stub_request *q, buf *out)
{
    static const char first[] = "{\"role\":\"user\",\"content\":\"one\"}";
    static const char next[]  = "{\"role\":\"user\",\"content\":\"one\"},{\"role\":\"assistant\",\"content\":\"Hel\"},"
                                "{\"role\":\"user\",\"content\":\"two\"}]";
    turns_seen       *seen    = ctx;
    int               n       = 0;
    if (!str_is(q->path, "/v1/chat/completions")) return reply_well(NULL, q, out);
    for (const char *at = q->body.s; (at = memmem(at, q->body.n - (size_t)(at - q->body.s), "assistant", 9)); at++) n++;
    if (n > 3 || !memmem(q->body.s, q->body.n, n ? next : first, strlen(n ? next : first)))
        atomic_fetch_add(&seen->wrong, 1);
    else
        atomic_fetch_add(&seen->by_turn[n], 1);
    return reply_well(NULL, q, out);
}

TEST(load_drive_asks_all_turns)
{
    stage      g;
    load_run   r;
    err        e;
    turns_seen seen = {0};
    stage_open(t, &g, reply_to_turns, &seen);
    load_prompts_deinit(&g.prompts);
    CHECK_OK(load_prompts_parse(&g.prompts, STR("{\"turns\":[\"one\",\"two\"]}"), &e), e);
    for (int all = 0; all < 2; all++) {
        load_plan plan  = {.users = 3, .requests = 7};
        g.ask.all_turns = all;
        CHECK_OK(load_drive(g.server, &plan, &r, &e), e);
        CHECK_INT(r.begun, 7);
        CHECK_INT(r.asked, all ? 14 : 7);
        CHECK_INT(r.n, all ? 14 : 7);
        load_run_deinit(&r);
    }
    CHECK_INT(atomic_load(&seen.by_turn[0]), 14);
    CHECK_INT(atomic_load(&seen.by_turn[1]), 7);
    CHECK_INT(atomic_load(&seen.wrong), 0);
    stage_close(&g);
}

/* A connection serves two requests, then the server closes it without a word: before the third arrives, or after. */
static bool reply_twice(void *ctx, const stub_request *q, buf *out)
{
    atomic_int *count = ctx;
    int         n     = atomic_fetch_add(&count[q->connection], 1);
    if (n == 2) return false;
    return reply_well(NULL, q, out);
}

TEST(load_drive_asks_again_when_a_kept_connection_was_closed)
{
    static atomic_int count[512];
    stage             g;
    load_run          r;
    err               e;
    stage_open(t, &g, reply_twice, count);
    load_plan plan = {.users = 3, .requests = 40};
    CHECK_OK(load_drive(g.server, &plan, &r, &e), e);
    CHECK_INT(r.n, 40);
    CHECK_MSG(r.failed == 0, "%s", r.reason[0].why.text);
    CHECK(stub_connections(g.stub) > 10);
    load_run_deinit(&r);
    stage_close(&g);
}

/* Every fourth of each kind of trouble. */
static bool reply_badly(void *ctx, const stub_request *q, buf *out)
{
    (void)ctx;
    if (!str_is(q->path, "/v1/chat/completions")) return reply_well(NULL, q, out);
    switch (q->number % 4) {
    case 0: stub_put(out, 429, "application/json", "{\"error\":{\"message\":\"busy\"}}"); return true;
    case 1:
        buf_puts(out, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\ndata");
        return false;
    case 2: return false;
    default: return reply_well(NULL, q, out);
    }
}

TEST(load_drive_counts_failures_by_reason)
{
    stage      g;
    load_run   r;
    err        e;
    load_tally sum = {0};
    buf        out;
    stage_open(t, &g, reply_badly, NULL);
    load_plan plan = {.users = 1, .requests = 40};
    CHECK_OK(load_drive(g.server, &plan, &r, &e), e);
    CHECK_INT(r.asked, 40);
    CHECK_INT((int64_t)r.n + r.failed, 40);
    CHECK(r.n >= 8 && r.failed >= 20);
    CHECK(r.n_reasons >= 2 && !r.gave_up);
    int64_t by_reason = 0;
    bool    busy      = false;
    for (int i = 0; i < r.n_reasons; i++) {
        by_reason += r.reason[i].n;
        busy = busy || !strcmp(r.reason[i].why.text, "HTTP 429: busy");
    }
    CHECK_INT(by_reason, r.failed);
    CHECK(busy);
    CHECK_OK(load_tally_add(&sum, &r, &e), e);
    CHECK_OK(load_tally_add(&sum, &r, &e), e);
    CHECK_INT(sum.failed, 2 * r.failed);
    CHECK_INT(sum.n_reasons, r.n_reasons);
    buf_init(&out, 1 << 16);
    load_put_reasons(&out, &sum);
    buf_putc(&out, 0);
    CHECK(strstr(out.p, "failed: HTTP 429: busy\n"));
    buf_deinit(&out);
    load_tally_deinit(&sum);
    load_run_deinit(&r);
    stage_close(&g);
}

static bool reply_no(void *ctx, const stub_request *q, buf *out)
{
    (void)ctx;
    char text[64];
    snprintf(text, sizeof text, "number %d", q->number);
    stub_put(out, 503, "text/plain", text);
    return true;
}

TEST(load_drive_gives_up_where_nothing_works)
{
    stage    g;
    load_run r;
    err      e;
    stage_open(t, &g, reply_no, NULL);
    load_plan plan = {.users = 2, .duration_s = 60};
    double    from = clock_s();
    CHECK_OK(load_drive(g.server, &plan, &r, &e), e);
    CHECK(r.gave_up && clock_s() - from < 5);
    CHECK(r.failed >= 10 && r.failed <= 12);
    CHECK_INT(r.n_reasons, LOAD_MAX_REASONS);
    CHECK(!strcmp(r.reason[LOAD_MAX_REASONS - 1].why.text, "other reasons"));
    load_run_deinit(&r);
    stage_close(&g);
}

/* --- time ---------------------------------------------------------------------------------------*/
static bool reply_slowly(void *ctx, const stub_request *q, buf *out)
{
    usleep(20000);
    return reply_well(ctx, q, out);
}

TEST(load_drive_ends_after_its_time)
{
    stage    g;
    load_run r;
    err      e;
    stage_open(t, &g, reply_slowly, NULL);
    load_plan plan = {.users = 2, .duration_s = 0.3};
    CHECK_OK(load_drive(g.server, &plan, &r, &e), e);
    CHECK(r.seconds >= 0.3 && r.seconds < 3);
    CHECK(r.n >= 4 && r.n <= 32 && !r.failed && !r.cut);
    load_run_deinit(&r);
    stage_close(&g);
}

TEST(load_drive_keeps_to_a_rate)
{
    stage    g;
    load_run r;
    err      e;
    stage_open(t, &g, reply_well, NULL);
    load_plan plan = {.users = 64, .rate = 200, .requests = 100, .seed = 7};
    CHECK_OK(load_drive(g.server, &plan, &r, &e), e);
    CHECK_INT(r.n, 100);
    CHECK(r.seconds > 0.3 && r.seconds < 3); /* half a second, give or take */
    load_run_deinit(&r);
    stage_close(&g);
}

/* One user at most, each request takes 20 ms, and they come every millisecond: waiting counts. */
TEST(load_drive_counts_the_time_before_a_free_user)
{
    stage    g;
    load_run r;
    err      e;
    stage_open(t, &g, reply_slowly, NULL);
    load_plan plan = {.users = 1, .rate = 1000, .requests = 10};
    CHECK_OK(load_drive(g.server, &plan, &r, &e), e);
    CHECK_INT(r.n, 10);
    CHECK(r.n == 10 && r.sample[9].end - r.sample[9].due > 0.1);
    load_run_deinit(&r);
    stage_close(&g);
}

static bool reply_never(void *ctx, const stub_request *q, buf *out)
{
    if (!str_is(q->path, "/v1/chat/completions")) return reply_well(ctx, q, out);
    buf_puts(out, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"choices\":[");
    return true;
}

static bool stop_at_once(void *ctx, int64_t done, int64_t running, int64_t tokens)
{
    *(int64_t *)ctx = 100 * running + 10 * done + tokens;
    return false;
}

TEST(load_drive_stops_when_told)
{
    stage    g;
    load_run r;
    err      e;
    int64_t  seen = 0;
    stage_open(t, &g, reply_never, NULL);
    load_plan plan = {.users = 3, .requests = 9, .go_on = stop_at_once, .ctx = &seen};
    double    from = clock_s();
    CHECK_OK(load_drive(g.server, &plan, &r, &e), e);
    CHECK(r.stopped && clock_s() - from < 3);
    CHECK_INT(seen, 300);
    CHECK_INT(r.cut, 3);
    CHECK_INT((int64_t)r.n + r.failed, 0);
    load_run_deinit(&r);
    stage_close(&g);
}

TEST(load_drive_cuts_what_takes_too_long)
{
    stage    g;
    load_run r;
    err      e;
    stage_open(t, &g, reply_never, NULL);
    load_server_close(g.server);
    g.ask.http.total_s = 0.3;
    CHECK_OK(load_server_open(&g.server, g.url, &g.ask, &e), e);
    load_plan plan = {.users = 3, .requests = 3};
    CHECK_OK(load_drive(g.server, &plan, &r, &e), e);
    CHECK_INT(r.failed, 3);
    CHECK_MSG(strstr(r.reason[0].why.text, "no complete response within 0.3 s"), "%s", r.reason[0].why.text);
    load_run_deinit(&r);
    stage_close(&g);
}

/* --- opening ------------------------------------------------------------------------------------*/
static bool reply_fixed(void *ctx, const stub_request *q, buf *out)
{
    (void)q;
    stub_put(out, 200, "application/json", ctx);
    return true;
}

TEST(load_server_finds_its_model)
{
    static const struct {
        const char *page, *why;
    } pages[] = {{"{\"data\":[{\"id\":\"the one\"},{\"id\":\"x\"}]}", NULL},
                 {"{\"data\":[]}", "is empty: use --model"},
                 {"{\"data\":[{\"id\":7}]}", "list of models is empty"},
                 {"{\"data\":[{\"id\":\"\\u001b[31m\"}]}", "cannot be printed"},
                 {"[]", "list of models is empty"},
                 {"<html>", "is not JSON: it is not an OpenAI-compatible server"},
                 {"", "is not JSON"}};
    for (size_t i = 0; i < COUNT(pages); i++) {
        stub        *s   = stub_open(reply_fixed, (void *)(uintptr_t)pages[i].page);
        load_ask     ask = {.is_chat = true};
        load_server *server;
        err          e = {0};
        char         url[64];
        http_client_options_init(&ask.http);
        snprintf(url, sizeof url, "http://localhost:%d/v1/", stub_port(s)); /* ::1 first, perhaps, and nobody there */
        if (pages[i].why) {
            CHECK_FAILS(load_server_open(&server, url, &ask, &e), e, pages[i].why);
        } else if (CHECK_OK(load_server_open(&server, url, &ask, &e), e)) {
            CHECK_STR(str_of(load_server_model(server)), STR("the one"));
            load_server_close(server);
        }
        stub_close(s);
    }
}

TEST(load_server_says_why_it_cannot_be_reached)
{
    stub        *s    = stub_open(reply_no, NULL);
    int          port = stub_port(s);
    load_ask     ask  = {.is_chat = true};
    load_server *server;
    err          e;
    char         url[64];
    http_client_options_init(&ask.http);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    CHECK_FAILS(load_server_open(&server, url, &ask, &e), e, "/v1/models is HTTP 503: number 0");
    snprintf(url, sizeof url, "https://127.0.0.1:%d", port);
    ask.http.connect_s = 0.3;
    CHECK_FAILS(load_server_open(&server, url, &ask, &e), e, "no TLS with 127.0.0.1");
    stub_close(s);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    CHECK_FAILS(load_server_open(&server, url, &ask, &e), e, "Connection refused");
    CHECK_FAILS(load_server_open(&server, "http://host.invalid", &ask, &e), e, "cannot resolve the host host.invalid");
}

/* Eight words are taken for ten tokens, and three more are around them. */
static bool reply_length(void *ctx, const stub_request *q, buf *out)
{
    (void)ctx;
    int         words = 1;
    const char *from  = q->body.n ? memmem(q->body.s, q->body.n, "\"content\":", 10) : NULL;
    for (const char *p = from; p && *p != '}'; p++) words += *p == ' ';
    char body[512];
    snprintf(body, sizeof body,
             "data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"length\"}],\"usage\":"
             "{\"prompt_tokens\":%d,\"completion_tokens\":1}}\n\n",
             3 + words * 10 / 8);
    stub_put(out, 200, "text/event-stream", body);
    return true;
}

TEST(load_measures_a_prompt)
{
    stage   g;
    err     e;
    int64_t n = 0;
    stage_open(t, &g, reply_length, NULL);
    CHECK_OK(load_measure_prompt(g.server, 80, &n, &e), e);
    CHECK_INT(n, 103);
    stage_close(&g);
}

/* --- figures ------------------------------------------------------------------------------------*/
TEST(load_tally_has_the_right_figures)
{
    load_sample s[] = {
        {.due               = 10,
         .first             = 10.1,
         .last              = 11.1,
         .end               = 11.2,
         .pieces            = 3,
         .prompt_tokens     = 7,
         .completion_tokens = 11,
         .has_usage         = true,
         .drafted           = 10,
         .accepted          = 4,
         .acceptance_length = 2},
        {.due = 10, .first = 10.3, .last = 10.3, .end = 10.4, .pieces = 1, .prompt_tokens = 3, .completion_tokens = 1},
    };
    double     gap[] = {0.25, 0.75};
    load_run   r     = {.sample = s, .n = 2, .gaps = {gap, 2, 2}, .asked = 3, .cut = 1, .seconds = 2};
    load_tally a = {0}, b = {0}, c = {0};
    err        e;
    buf        out;
    CHECK_OK(load_tally_add(&a, &r, &e), e);
    r.seconds = 4;
    CHECK_OK(load_tally_add(&b, &r, &e), e);
    CHECK_NEAR(a.tok_s[0], 6, 1e-9);
    CHECK_NEAR(a.total_s[0], 11, 1e-9);
    CHECK_NEAR(stats_spread(a.ttft.x, a.ttft.n).mean, 200, 1e-6);
    CHECK_INT(a.tpot.n, 1); /* one token has no next one */
    CHECK_NEAR(a.tpot.x[0], 100, 1e-6);
    CHECK_NEAR(stats_spread(a.e2e.x, a.e2e.n).median, 800, 1e-6);
    CHECK_NEAR(stats_spread(a.itl.x, a.itl.n).p99, 750, 1e-6);
    CHECK_NEAR(load_acceptance_rate(&a), 0.4, 1e-9);
    CHECK_NEAR(load_acceptance_length(&a), 2, 1e-9);
    CHECK_INT(a.counted, 1);
    CHECK_NEAR(load_ratio_of(&a, &b, LOAD_TOK_S).median, 2, 1e-9);
    CHECK_NEAR(load_ratio_of(&a, &b, LOAD_TTFT).median, 1, 1e-9);
    buf_init(&out, 1 << 16);
    load_put_head(&out);
    load_put_row(&out, "8", "one", &a);
    load_put_reasons(&out, &a);
    load_put_ratios(&out, "8", "one", "two", &a, &b);
    load_run one = {.sample = s + 1, .n = 1, .asked = 1, .seconds = 1};
    CHECK_OK(load_tally_add(&c, &one, &e), e);
    load_put_ratios(&out, "1", "three", "three", &c, &c);
    buf_putc(&out, 0);
    CHECK(strstr(out.p, "1 were cut") && strstr(out.p, "1 responses had no usage"));
    CHECK(strstr(out.p, "one / two: output tok/s 2.00 [2.00, 2.00]"));
    CHECK(strstr(out.p, "TTFT 1.00 [1.00, 1.00], TPOT -, E2E 1.00")); /* it has no response of several tokens */
    buf_deinit(&out);
    load_tally_deinit(&a);
    load_tally_deinit(&b);
    load_tally_deinit(&c);
}

TEST(load_tally_takes_counters_where_answers_tell_nothing)
{
    load_sample s[] = {{.due = 1, .first = 2, .last = 3, .end = 3, .pieces = 2, .completion_tokens = 9}};
    load_run    r   = {.sample = s, .n = 1, .seconds = 2, .speculation = {true, 10, 40, 25}};
    load_tally  a = {0}, none = {0};
    err         e;
    CHECK_OK(load_tally_add(&a, &r, &e), e);
    CHECK_NEAR(load_acceptance_rate(&a), 25.0 / 40, 1e-9);
    CHECK_NEAR(load_acceptance_length(&a), 3.5, 1e-9);
    r.speculation.reported = false;
    CHECK_OK(load_tally_add(&none, &r, &e), e);
    CHECK(isnan(load_acceptance_rate(&none)) && isnan(load_acceptance_length(&none)));
    load_tally_deinit(&a);
    load_tally_deinit(&none);
}
