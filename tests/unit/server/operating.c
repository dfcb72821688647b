/* What the server tells of itself over HTTP, who may ask for it, and that all its counts are one (promise 6). */
#include "server/tables_inside.h"
#include "server_rig.h"

#include "base/clock.h"
#include "base/sha256.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static void nap(double s) { nanosleep(&(struct timespec){.tv_nsec = (long)(s * 1e9)}, NULL); }

static void get(const server_rig *r, const char *path, const char *fields, rig_reply *out)
{
    rig_ask(r, "GET", path, fields, "", out);
}

static int status_of(const server_rig *r, const char *method, const char *path, const char *fields)
{
    rig_reply a;
    rig_ask(r, method, path, fields, "", &a);
    int status = a.status;
    rig_reply_deinit(&a);
    return status;
}

/* --- keys ---------------------------------------------------------------------------------------*/
static const char *key_file(char path[512], const char *name, const char *key, const char *who)
{
    char   text[256], hex[65];
    sha256 s;
    sha256_init(&s);
    sha256_put(&s, key, strlen(key));
    sha256_hex(&s, hex);
    snprintf(text, sizeof text, "%s %s\n", hex, who);
    snprintf(path, 512, "%s", test_tmp_file(name, text, strlen(text)));
    return path;
}

static const char *const everything[][2] = {
    {"POST", "/v1/chat/completions"}, {"POST", "/completions"}, {"POST", "/tokenize"}, {"POST", "/detokenize"},
    {"POST", "/apply-template"},      {"GET", "/ready"},        {"GET", "/version"},   {"GET", "/v1/models"},
    {"GET", "/v1/models/nano"},       {"GET", "/props"},        {"GET", "/slots"},     {"GET", "/api/drain"},
    {"DELETE", "/api/drain"},         {"GET", "/metrics"},      {"GET", "/"},          {"GET", "/page.css"},
    {"GET", "/no/such/path"},         {"DELETE", "/props"}};

/* The dashboard's files hold no data; the page asks for a key. */
TEST(server_keys_guard_all_but_health_and_the_dashboard)
{
    server_rig r;
    rig_reply  a;
    char       path[2][512];
    rig_init(&r, t);
    r.opt.api_key_file   = key_file(path[0], "api.keys", "open sesame", "ali");
    r.opt.admin_key_file = key_file(path[1], "admin.keys", "root", "boss");
    rig_start(&r);
    CHECK_INT(status_of(&r, "GET", "/health", ""), 200);
    CHECK_INT(status_of(&r, "GET", "/ui/", ""), 200);
    CHECK_INT(status_of(&r, "GET", "/favicon.ico", ""), 200);
    for (size_t i = 0; i < COUNT(everything); i++) {
        const char *method = everything[i][0], *at = everything[i][1];
        bool        admin = !strcmp(at, "/slots") || !strcmp(at, "/api/drain");
        CHECK_MSG(status_of(&r, method, at, "") == 401, "%s %s needs no key", method, at);
        CHECK_MSG(status_of(&r, method, at, "Authorization: Bearer wrong\r\n") == 401, "%s takes any key", at);
        int with = status_of(&r, method, at, "X-API-Key: open sesame\r\n");
        CHECK_MSG(admin ? with == 403 : with != 401 && with != 403, "%s gives %d to who has a key", at, with);
        with = status_of(&r, method, at, "Authorization: bearer root\r\n");
        CHECK_MSG(with != 401 && with != 403, "%s gives %d to an admin", at, with);
    }
    get(&r, "/props", "", &a);
    CHECK_STR(rig_field(&a, "WWW-Authenticate"), STR("Bearer"));
    CHECK_STR(rig_str(rig_json(&a), "error.code"), STR("invalid_api_key"));
    rig_reply_deinit(&a);
    CHECK_INT(status_of(&r, "GET", "/slots", "X-Api-Key: root\r\nOrigin: http://evil.example\r\n"), 403);
    CHECK_INT(status_of(&r, "GET", "/slots", "X-Api-Key: root\r\nOrigin: http://localhost\r\n"), 200);
    rig_stop(&r);
}

/* A body of which nothing is read. */
TEST(server_refuses_before_the_body)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    r.opt.api_key = "sesame";
    rig_start(&r);
    int         fd   = rig_connect(&r);
    const char *head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n";
    CHECK(send(fd, head, strlen(head), 0) == (ssize_t)strlen(head));
    rig_read(fd, &a);
    CHECK_INT(a.status, 401);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

TEST(server_reads_its_keys_again)
{
    server_rig r;
    char       path[512];
    int        status = 0;
    rig_init(&r, t);
    r.opt.api_key_file = key_file(path, "hup.keys", "old", "ali");
    test_listen_begin(false);
    rig_start(&r);
    CHECK_INT(status_of(&r, "GET", "/version", "X-Api-Key: old\r\n"), 200);
    key_file(path, "hup.keys", "new", "ali");
    pthread_kill(r.thread, SIGHUP);
    for (int i = 0; i < 1000 && status != 200; i++, nap(0.005))
        status = status_of(&r, "GET", "/version", "X-Api-Key: new\r\n");
    CHECK_INT(status, 200);
    CHECK_INT(status_of(&r, "GET", "/version", "X-Api-Key: old\r\n"), 401);
    test_tmp_file("hup.keys", "in the clear\n", 13);
    pthread_kill(r.thread, SIGHUP);
    nap(0.1);
    CHECK_INT(status_of(&r, "GET", "/version", "X-Api-Key: new\r\n"), 200);
    rig_stop(&r);
    const char *said = test_listen_end();
    CHECK(strstr(said, "reloaded; 1 keys") && strstr(said, "not the SHA-256") &&
          strstr(said, "the keys are unchanged"));
}

TEST(server_does_not_start_with_wrong_keys)
{
    server_options o;
    err            e = {0};
    server_options_init(&o);
    o.http.port    = 0;
    o.api_key_file = test_tmp_file("wrong.keys", "clear\n", 6);
    CHECK_FAILS(server_run(&o, &e), e, "not the SHA-256");
    o.api_key_file   = NULL;
    o.admin_key_file = "/nowhere/keys";
    CHECK_FAILS(server_run(&o, &e), e, "/nowhere/keys");
}

/* --- text ---------------------------------------------------------------------------------------*/
static void check_text(const server_rig *r, const char *path, const char *body, int status, const char *want)
{
    test_case *t = r->t;
    rig_reply  a;
    rig_post(r, path, body, &a);
    CHECK_MSG(a.status == status && strstr(a.body.p, want), "%s %s: %d %s, expected %d %s", path, body, a.status,
              a.body.p, status, want);
    rig_reply_deinit(&a);
}

TEST(server_tokenizes_and_back)
{
    server_rig r;
    rig_init(&r, t);
    rig_start(&r);
    check_text(&r, "/tokenize", "{\"content\":\"Hello world\"}", 200, "{\"tokens\":[1548,1762]}");
    check_text(&r, "/v1/tokenize", "{\"content\":\"Hello world\",\"add_special\":true}", 200,
               "{\"tokens\":[2,1548,1762]}");
    check_text(&r, "/tokenize", "{\"content\":\"<bos>\"}", 200, "{\"tokens\":[2]}");
    check_text(&r, "/tokenize", "{\"content\":\"Hello\",\"with_pieces\":true}", 200,
               "[{\"id\":1548,\"piece\":\"Hello\"}]");
    check_text(&r, "/tokenize", "{\"content\":\"\xf0\x9f\xa6\x91\",\"with_pieces\":true}", 200, "\"piece\":[240]");
    check_text(&r, "/tokenize", "{\"content\":\"\"}", 200, "{\"tokens\":[]}");
    check_text(&r, "/tokenize", "{}", 400, "\"param\":\"content\"");
    check_text(&r, "/tokenize", "{\"content\":7}", 400, "\"param\":\"content\"");
    check_text(&r, "/tokenize", "{\"content\":\"x\",\"add_special\":1}", 400, "\"param\":\"add_special\"");
    check_text(&r, "/tokenize", "[", 400, "not JSON");
    check_text(&r, "/detokenize", "{\"tokens\":[2,1548,1762]}", 200,
               "{\"content\":\"<bos>Hello world\",\"prompt\":\"<bos>Hello world\"}");
    check_text(&r, "/detokenize", "{\"tokens\":[]}", 200, "{\"content\":\"\",\"prompt\":\"\"}");
    check_text(&r, "/detokenize", "{}", 400, "\"param\":\"tokens\"");
    check_text(&r, "/detokenize", "{\"tokens\":[1,4096]}", 400, "item 1 is not one");
    check_text(&r, "/detokenize", "{\"tokens\":[-1]}", 400, "item 0 is not one");
    check_text(&r, "/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi <turn|>\"}]}", 200,
               "{\"prompt\":\"<bos><|turn>user\\nHi <turn|><turn|>\\n<|turn>model\\n");
    check_text(&r, "/apply-template",
               "{\"reasoning_effort\":\"high\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", 200,
               "<|think|>");
    check_text(&r, "/apply-template", "{\"messages\":[{\"role\":\"king\",\"content\":\"Hi\"}]}", 400,
               "messages[0].role");
    rig_stop(&r);
}

/* --- the page -----------------------------------------------------------------------------------*/
TEST(server_shows_its_page)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    rig_start(&r);
    get(&r, "/", "", &a);
    CHECK_INT(a.status, 200);
    CHECK_STR(rig_field(&a, "Content-Type"), STR("text/html; charset=utf-8"));
    CHECK(str_starts(rig_field(&a, "Content-Security-Policy"), "default-src 'none';"));
    CHECK(strstr(a.body.p, "curl http://localhost/v1/chat/completions"));
    rig_reply_deinit(&a);
    rig_ask(&r, "HEAD", "/", "", "", &a);
    CHECK(a.status == 200 && a.body.n == 0);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

TEST(server_page_tells_strangers_of_keys)
{
    static const char *const fields[] = {"", "Authorization: Bearer wrong\r\n"};
    server_rig               r;
    rig_reply                a;
    rig_init(&r, t);
    r.opt.api_key = "secret";
    rig_start(&r);
    for (size_t i = 0; i < COUNT(fields); i++) {
        get(&r, "/", fields[i], &a);
        CHECK_INT(a.status, 401);
        CHECK_STR(rig_field(&a, "Content-Type"), STR("text/html; charset=utf-8"));
        CHECK_STR(rig_field(&a, "WWW-Authenticate"), STR("Bearer"));
        CHECK(str_starts(rig_field(&a, "Content-Security-Policy"), "default-src 'none';"));
        CHECK(strstr(a.body.p, "-H 'Authorization: Bearer KEY'") && strstr(a.body.p, "</html>"));
        CHECK(!strstr(a.body.p, "{{") && !strstr(a.body.p, "nano") && !strstr(a.body.p, TANDEM_VERSION));
        rig_reply_deinit(&a);
    }
    get(&r, "/page.css", "", &a);
    CHECK(a.status == 401 && str_starts(rig_field(&a, "Content-Type"), "application/json"));
    rig_reply_deinit(&a);
    get(&r, "/", "Authorization: Bearer secret\r\n", &a);
    CHECK(a.status == 200 && strstr(a.body.p, "curl http://localhost/v1/chat/completions"));
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* Every path that can be got, with and without the version before it. */
TEST(server_paths_have_a_version_or_none)
{
    server_rig r;
    rig_init(&r, t);
    rig_start(&r);
    for (int i = 0; i < n_routes; i++)
        for (int version = 0; version < 2; version++) {
            char      path[64];
            rig_reply a;
            if (strcmp(route_table[i].method, "GET") != 0 || strchr(route_table[i].path, '*')) continue;
            snprintf(path, sizeof path, "%s%s", version ? "/v1" : "", route_table[i].path);
            get(&r, path, "", &a);
            CHECK_MSG(a.status == 200, "%s gives %d", path, a.status);
            rig_reply_deinit(&a);
        }
    rig_stop(&r);
}

/* --- a step that hangs --------------------------------------------------------------------------*/
static bool wait_for(void *ctx, int32_t token)
{
    (void)token;
    while (!atomic_load((atomic_bool *)ctx)) nap(0.001);
    return true;
}

static void until_health(const server_rig *r, int want)
{
    test_case *t      = r->t;
    int        status = 0;
    for (int i = 0; i < 1000 && status != want; i++, nap(0.005)) status = status_of(r, "GET", "/health", "");
    CHECK_INT(status, want);
}

static void count_datagrams(int fd, const char *what, int *n)
{
    char    got[64];
    ssize_t k;
    while ((k = recv(fd, got, sizeof got - 1, MSG_DONTWAIT)) > 0) {
        got[k] = 0;
        *n += strcmp(got, what) == 0;
    }
}

TEST(server_tells_when_a_step_hangs)
{
    server_rig         r;
    tandem_request     q;
    tandem_job        *j;
    tandem_error       e       = {0};
    atomic_bool        go      = false;
    struct sockaddr_un at      = {.sun_family = AF_UNIX};
    int                manager = socket(AF_UNIX, SOCK_DGRAM, 0), fed = 0, starved = 0;
    snprintf(at.sun_path, sizeof at.sun_path, "%s/manager", test_tmp_dir());
    CHECK(bind(manager, (struct sockaddr *)&at, sizeof at) == 0);
    setenv("NOTIFY_SOCKET", at.sun_path, 1);
    setenv("WATCHDOG_USEC", "300000", 1);
    rig_init(&r, t);
    r.opt.hang_s = 0.2;
    test_listen_begin(false);
    rig_start(&r);
    until_health(&r, 200);
    nap(0.6);
    count_datagrams(manager, "WATCHDOG=1", &fed);
    CHECK(fed > 0);

    tandem_request_init(r.engine, &q);
    q.text         = "Hello";
    q.max_tokens   = 4;
    q.on_token     = wait_for;
    q.on_token_ctx = &go;
    CHECK_OK(tandem_submit(r.engine, &q, &j, &e), e);
    until_health(&r, 503);
    CHECK_INT(status_of(&r, "GET", "/ready", ""), 503);
    CHECK_INT(status_of(&r, "GET", "/metrics", ""), 200);
    CHECK_INT(status_of(&r, "GET", "/metrics?names=llamacpp", ""), 200);
    CHECK_INT(status_of(&r, "GET", "/metrics?names=prom", ""), 400);
    count_datagrams(manager, "WATCHDOG=1", &fed);
    nap(0.6);
    count_datagrams(manager, "WATCHDOG=1", &starved);
    CHECK_INT(starved, 0);

    atomic_store(&go, true);
    until_health(&r, 200);
    tandem_wait(j, -1);
    tandem_release(j);
    rig_stop(&r);
    const char *said = test_listen_end();
    CHECK(strstr(said, "watchdog: a step has been running") && strstr(said, "watchdog: the engine responds again"));
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    close(manager);
}

/* --- promise 6 ----------------------------------------------------------------------------------*/
static const char chat_path[] = "/v1/chat/completions";

static double metric(const server_rig *r, const char *series)
{
    rig_reply a;
    double    x = NAN;
    get(r, "/metrics", "", &a);
    size_t n = strlen(series);
    for (const char *at = a.body.p; (at = strstr(at, series)); at += n)
        if ((at == a.body.p || at[-1] == '\n') && at[n] == ' ') x = strtod(at + n, NULL);
    rig_reply_deinit(&a);
    return x;
}

/* The sums of a field over all log lines of completions. */
static int64_t logged(const char *said, const char *field)
{
    int64_t sum = 0;
    char    part[64];
    snprintf(part, sizeof part, ",\"%s\":", field);
    for (const char *at = said; (at = strstr(at, part));) sum += strtoll(at += strlen(part), NULL, 10);
    return sum;
}

static void ask(const server_rig *r, const char *more, int64_t *tokens, int64_t *prompt)
{
    test_case *t = r->t;
    char       body[512];
    rig_reply  a;
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 27 plus 58?\"}],%s\"seed\":1}",
             more);
    rig_post(r, chat_path, body, &a);
    CHECK_INT(a.status, 200);
    const char *usage = strstr(a.body.p, "\"usage\":{");
    if (!CHECK(usage)) return;
    *tokens += strtoll(strstr(usage, "\"completion_tokens\":") + 20, NULL, 10);
    *prompt += strtoll(strstr(usage, "\"prompt_tokens\":") + 16, NULL, 10);
    rig_reply_deinit(&a);
}

/* Begins an answer that would be long, and leaves. */
static void leave(const server_rig *r)
{
    char first[12];
    int  fd = rig_connect(r);
    rig_send(fd, "POST", chat_path, "",
             "{\"stream\":true,\"ignore_eos\":true,\"max_tokens\":400,\"messages\":[{\"role\":\"user\",\"content\":"
             "\"Go\"}]}");
    (void)!recv(fd, first, sizeof first, MSG_WAITALL);
    close(fd);
    for (int i = 0; i < 2000 && metric(r, "tandem_http_disconnects_total{model_name=\"nano\"}") < 1; i++) nap(0.002);
}

TEST(server_usage_metrics_and_log_are_one)
{
    server_rig r;
    int64_t    tokens = 0, prompt = 0;
    rig_init(&r, t);
    test_listen_begin(true);
    rig_start(&r);
    ask(&r, "", &tokens, &prompt);
    ask(&r, "\"stream\":true,\"stream_options\":{\"include_usage\":true},", &tokens, &prompt);
    ask(&r, "\"max_tokens\":7,", &tokens, &prompt);
    ask(&r, "\"stop\":\"carry\",\"speculative\":\"off\",", &tokens, &prompt);
    ask(&r, "\"n\":3,", &tokens, &prompt);
    CHECK_NEAR(metric(&r, "tandem_generation_tokens_total{model_name=\"nano\"}"), (double)tokens, 0);
    CHECK_NEAR(metric(&r, "vllm:prompt_tokens_total{model_name=\"nano\"}"), (double)prompt, 0);
    CHECK_NEAR(metric(&r, "vllm:inter_token_latency_seconds_count{model_name=\"nano\"}"), (double)tokens - 7, 0);
    CHECK_NEAR(metric(&r, "vllm:e2e_request_latency_seconds_count{model_name=\"nano\"}"), 5, 0);
    CHECK_NEAR(metric(&r, "vllm:request_prompt_tokens_sum{model_name=\"nano\"}"), (double)prompt, 0);
    CHECK_NEAR(metric(&r, "vllm:request_success_total{model_name=\"nano\",finished_reason=\"length\"}"), 1, 0);
    leave(&r);
    double all     = metric(&r, "tandem_generation_tokens_total{model_name=\"nano\"}");
    double read    = metric(&r, "tandem_prompt_tokens_total{model_name=\"nano\"}");
    double cached  = metric(&r, "tandem_prefix_cache_hits_total{model_name=\"nano\"}");
    double drafted = metric(&r, "tandem_spec_decode_num_draft_tokens_total{model_name=\"nano\"}");
    rig_stop(&r);
    const char *said = test_listen_end();
    CHECK(all >= (double)tokens);
    CHECK_NEAR((double)logged(said, "tokens"), all, 0);
    CHECK_NEAR((double)logged(said, "drafted"), drafted, 0);
    CHECK_NEAR((double)logged(said, "prompt"), read, 0);
    CHECK_NEAR((double)logged(said, "cached"), cached, 0);
    CHECK(strstr(said, "\"status\":200,\"sent\":\"cut\""));
    CHECK(!strstr(said, "27 plus") && !strstr(said, "carry")); /* never the text */
}

/* --- who is in it -------------------------------------------------------------------------------*/
TEST(server_shows_its_slots)
{
    server_rig r;
    rig_reply  a;
    char       first[12];
    rig_init(&r, t);
    r.engine_opt.max_lanes = 2;
    r.engine_opt.n_ctx     = 4096;
    rig_start(&r);
    int fd = rig_connect(&r);
    rig_send(fd, "POST", chat_path, "X-Request-Id: my-own\r\n",
             "{\"stream\":true,\"ignore_eos\":true,\"max_tokens\":3500,\"speculative\":\"off\","
             "\"messages\":[{\"role\":\"user\",\"content\":\"Go\"}]}");
    CHECK(recv(fd, first, sizeof first, MSG_WAITALL) == 12);
    get(&r, "/slots", "", &a);
    const json_value *v = rig_json(&a);
    CHECK(v && v->n == 2 && json_get(&v->item[0], "is_processing")->b && !json_get(&v->item[1], "is_processing")->b);
    CHECK_STR(rig_str(v, "0.request_id"), STR("my-own"));
    CHECK(rig_int(v, "0.n_prompt") > 5);
    CHECK(!strstr(a.body.p, "Go"));
    rig_reply_deinit(&a);
    CHECK_INT(status_of(&r, "GET", "/slots?fail_on_no_slot=1", ""), 200);
    close(fd);
    rig_stop(&r);
}

/* --- pages of other sites -----------------------------------------------------------------------*/
static int status_for(const server_rig *r, const char *method, const char *url, const char *fields, const char *says)
{
    test_case *t  = r->t;
    int        fd = rig_connect(r), status;
    rig_reply  a;
    char       text[1024];
    snprintf(text, sizeof text,
             "%s %s HTTP/1.1\r\n%sContent-Type: text/plain\r\nContent-Length: 15\r\n\r\n{\"content\":\"a\"}", method,
             url, fields);
    rig_send_text(fd, text);
    rig_read(fd, &a);
    status = a.status;
    if (says) CHECK_MSG(a.body.n && strstr(a.body.p, says), "%s: no '%s' in the reply", url, says);
    rig_reply_deinit(&a);
    return status;
}

TEST(server_without_keys_refuses_pages_of_other_sites)
{
    static const struct {
        const char *method, *target;
    } all[]                          = {{"POST", "/v1/chat/completions"},
                                        {"POST", "/v1/completions"},
                                        {"POST", "/v1/messages"},
                                        {"POST", "/tokenize"},
                                        {"GET", "/v1/models"},
                                        {"GET", "/props"},
                                        {"GET", "/metrics"},
                                        {"GET", "/"},
                                        {"GET", "/nowhere"}};
    static const char *const names[] = {"proxy.example"};
    server_rig               r;
    rig_init(&r, t);
    r.opt.names   = names;
    r.opt.n_names = 1;
    rig_start(&r);
    for (size_t i = 0; i < COUNT(all); i++) {
        CHECK_INT(
            status_for(&r, all[i].method, all[i].target, "Host: evil.example:80\r\n", "--allow-host evil.example"),
            403);
        CHECK_INT(status_for(&r, all[i].method, all[i].target, "Host: localhost\r\nOrigin: http://evil.example\r\n",
                             "--cors"),
                  403);
    }
    CHECK_INT(status_for(&r, "POST", "/tokenize", "Host: proxy.example\r\nConnection: close\r\n", NULL), 200);
    CHECK_INT(status_for(&r, "POST", "/tokenize", "Host: 127.0.0.1:1\r\nConnection: close\r\n", NULL), 200);
    CHECK_INT(status_for(&r, "GET", "/health", "Host: evil.example\r\nConnection: close\r\n", NULL), 200);
    rig_stop(&r);
}
