/* A server as one of several: every reply says whose it is, and an operator takes it out and puts it back. */
#include "server_rig.h"

#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MINE "Connection: close\r\nX-Request-Id: mine\r\n"
#define CHAT "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"

/* --- who answers --------------------------------------------------------------------------------*/
static void check_ids(test_case *t, const rig_reply *a, const char *what, int status, bool mine)
{
    str id = rig_field(a, "X-Request-Id");
    CHECK_MSG(a->status == status, "%s: status %d instead of %d", what, a->status, status);
    CHECK_MSG(str_is(rig_field(a, "X-Replica-Id"), "left.1"), "%s: no replica", what);
    CHECK_MSG(mine ? str_is(id, "mine") : str_starts(id, "req_"), "%s: the id is '%.*s'", what, STR_ARG(id));
}

TEST(server_every_reply_has_its_ids)
{
    static const struct {
        const char *what, *text;
        int         status;
        bool        mine;
    } asks[] = {
        {"a look", "GET /health HTTP/1.1\r\nHost: localhost\r\n" MINE "\r\n", 200, true},
        {"a page", "GET / HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: k\r\n" MINE "\r\n", 200, true},
        {"no key", CHAT MINE "Content-Length: 2\r\n\r\n{}", 401, true},
        {"no such path", "GET /x HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: k\r\n" MINE "\r\n", 404, true},
        {"no such method", "PUT /health HTTP/1.1\r\nHost: localhost\r\n" MINE "X-Api-Key: k\r\n\r\n", 405, true},
        {"a browser asks", "OPTIONS / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://p\r\n" MINE "\r\n", 204, true},
        {"no JSON", CHAT MINE "X-Api-Key: k\r\nContent-Length: 1\r\n\r\n{", 400, true},
        {"a field", CHAT MINE "X-Api-Key: k\r\nContent-Length: 13\r\n\r\n{\"prompt\": 1}", 400, true},
        {"a large body", CHAT MINE "X-Api-Key: k\r\nContent-Length: 2000000\r\n\r\n", 413, true},
        {"large chunks", CHAT MINE "X-Api-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n200000\r\n", 413, true},
        {"a slow body", CHAT MINE "X-Api-Key: k\r\nContent-Length: 10\r\n\r\n{", 408, true},
        {"a slow head", CHAT MINE, 408, false},
        {"another protocol", "HELO x\r\n\r\n", 400, false},
        {"no host", "GET / HTTP/1.1\r\n" MINE "\r\n", 400, false},
    };
    server_rig r;
    rig_reply  a;
    buf        large;
    rig_init(&r, t);
    r.opt.api_key       = "k";
    r.opt.cors          = (const char *const[]){"*"};
    r.opt.n_cors        = 1;
    r.opt.replica_id    = "left.1";
    r.opt.http.max_body = 1 << 20;
    r.opt.http.head_s = r.opt.http.body_s = 0.3;
    rig_start(&r);
    for (size_t i = 0; i < COUNT(asks); i++) {
        int fd = rig_connect(&r);
        rig_send_text(fd, asks[i].text);
        rig_read(fd, &a);
        check_ids(t, &a, asks[i].what, asks[i].status, asks[i].mine);
        if (a.status >= 400) CHECK_MSG(rig_str(rig_json(&a), "error.message").n > 0, "%s: no message", asks[i].what);
        rig_reply_deinit(&a);
    }
    buf_init(&large, 1 << 20);
    buf_puts(&large, "X-Large: ");
    while (large.n < 40000) buf_puts(&large, "0123456789");
    buf_puts(&large, "\r\n");
    buf_putc(&large, 0);
    rig_ask(&r, "GET", "/health", large.p, "", &a);
    check_ids(t, &a, "a large head", 431, false);
    rig_reply_deinit(&a);
    buf_deinit(&large);
    rig_ask(&r, "POST", "/v1/chat/completions", MINE "X-Api-Key: k\r\n",
            "{\"stream\":true,\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", &a);
    check_ids(t, &a, "a stream", 200, true);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

TEST(server_that_is_full_says_who_it_is)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    r.opt.replica_id        = "left.1";
    r.opt.http.max_per_peer = 1;
    rig_start(&r);
    int fd = rig_connect(&r);
    rig_ask(&r, "GET", "/health", "", "", &a);
    check_ids(t, &a, "one too many", 503, false);
    CHECK_STR(rig_field(&a, "Retry-After"), STR("1"));
    CHECK_STR(rig_str(rig_json(&a), "error.type"), STR("overloaded_error"));
    rig_reply_deinit(&a);
    close(fd);
    rig_stop(&r);
}

static void check_name(test_case *t, const char *given, const char *want)
{
    server_rig r;
    rig_reply  a;
    char       port[16];
    rig_init(&r, t);
    r.opt.replica_id = given;
    rig_start(&r);
    rig_ask(&r, "GET", "/health", "", "", &a);
    str got = rig_field(&a, "X-Replica-Id");
    snprintf(port, sizeof port, ":%d", r.port);
    if (want)
        CHECK_STR(got, str_of(want));
    else
        CHECK(got.n > strlen(port) && !memcmp(got.s + got.n - strlen(port), port, strlen(port)));
    rig_reply_deinit(&a);
    rig_stop(&r);
}

TEST(server_replica_names)
{
    server_options o;
    err            e = {0};
    check_name(t, NULL, NULL);
    check_name(t, "", "");
    check_name(t, "rack-3/gpu@2", "rack-3/gpu@2");
    server_options_init(&o);
    o.http.port  = 0;
    o.replica_id = "two words";
    CHECK_FAILS(server_run(&o, &e), e, "a replica's id has up to 128 letters");
}

/* --- draining -----------------------------------------------------------------------------------*/
static void check_drain(const server_rig *r, const char *method, bool draining, int running)
{
    test_case *t = r->t;
    rig_reply  a;
    char       want[64];
    rig_ask(r, method, "/api/drain", "", "", &a);
    CHECK_INT(a.status, 200);
    snprintf(want, sizeof want, "{\"draining\":%s,\"running\":%d}", draining ? "true" : "false", running);
    CHECK_STR(buf_str(&a.body), str_of(want));
    rig_reply_deinit(&a);
}

static void check_refusal(const server_rig *r, const char *method, const char *path, int status)
{
    test_case *t = r->t;
    rig_reply  a;
    rig_ask(r, method, path, "",
            *method == 'P' ? "{\"max_tokens\":1,\"content\":\"\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"
                           : "",
            &a);
    CHECK_MSG(a.status == status, "%s: %d instead of %d", path, a.status, status);
    CHECK_STR(rig_field(&a, "Retry-After"), status == 503 ? STR("1") : (str){0});
    if (status == 503) CHECK_STR(rig_str(rig_json(&a), "error.code"), STR("draining"));
    rig_reply_deinit(&a);
}

static void check_doors(const server_rig *r, int status)
{
    check_refusal(r, "GET", "/health", status);
    check_refusal(r, "GET", "/ready", status);
    check_refusal(r, "POST", "/v1/chat/completions", status);
    check_refusal(r, "POST", "/tokenize", status);
    check_refusal(r, "GET", "/props", 200);
}

TEST_LONG(server_is_drained_and_taken_back)
{
    server_rig r;
    rig_reply  a;
    char       first[12];
    rig_init(&r, t);
    r.engine_opt.n_ctx = 4096;
    rig_start(&r);
    check_drain(&r, "GET", false, 0);
    int fd = rig_connect(&r);
    rig_send(fd, "POST", "/v1/chat/completions", "",
             "{\"stream\":true,\"ignore_eos\":true,\"speculative\":\"off\",\"max_tokens\":3000,"
             "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}");
    CHECK_INT(recv(fd, first, sizeof first, MSG_PEEK | MSG_WAITALL), 12);
    check_drain(&r, "POST", true, 1);
    check_drain(&r, "POST", true, 1);
    check_doors(&r, 503);
    int kept = rig_connect(&r);
    rig_send_text(kept, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    rig_read(kept, &a); /* which ends: the next request may go elsewhere */
    CHECK_STR(rig_field(&a, "Connection"), STR("close"));
    rig_reply_deinit(&a);
    rig_ask(&r, "GET", "/metrics", "", "", &a);
    CHECK(strstr(a.body.p, "\ntandem_draining{model_name=\"nano\"} 1\n"));
    rig_reply_deinit(&a);
    rig_read(fd, &a);
    CHECK(a.complete && strstr(a.body.p, "\"finish_reason\":\"length\"") && strstr(a.body.p, "[DONE]"));
    rig_reply_deinit(&a);
    rig_wait_idle(&r);
    check_drain(&r, "GET", true, 0);
    check_drain(&r, "DELETE", false, 0);
    check_doors(&r, 200);
    rig_ask(&r, "PUT", "/api/drain", "", "", &a);
    CHECK_INT(a.status, 405);
    CHECK_STR(rig_field(&a, "Allow"), STR("GET, HEAD, POST, DELETE"));
    rig_reply_deinit(&a);
    check_drain(&r, "POST", true, 0);
    rig_stop(&r);
}
