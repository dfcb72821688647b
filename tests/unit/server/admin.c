/* The admin API over HTTP: models, settings, parking under load, decisions, live numbers, bench. */
#include "server_rig.h"

#include "server/admin.h"

#include "../sched/engine_rig.h"
#include "base/clock.h"
#include "base/file.h"
#include "server/live_inside.h"
#include "server/query.h"

#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void nap(double s) { nanosleep(&(struct timespec){.tv_nsec = (long)(s * 1e9)}, NULL); }

/* --- a query ------------------------------------------------------------------------------------*/
TEST(server_query_texts)
{
    static const struct {
        const char *query, *want; /* NULL: refused */
    } cases[] = {{"", ""},
                 {"id=a", "a"},
                 {"x=1&id=a%2Fb+c&id=2", "a/b c"},
                 {"id", ""},
                 {"idx=1", ""},
                 {"xid=1", ""},
                 {"&&id=q&", "q"},
                 {"id=%41%7a", "Az"},
                 {"id=", NULL},
                 {"id=%", NULL},
                 {"id=%4", NULL},
                 {"id=%4g", NULL},
                 {"id=a%00b", NULL},
                 {"id=1234567", "1234567"},
                 {"id=12345678", NULL},
                 {"id=a=b", "a=b"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char         out[8];
        server_error why = {0};
        bool         ok  = query_text(str_of(cases[i].query), "id", out, sizeof out, &why);
        CHECK_MSG(ok == (cases[i].want != NULL), "'%s': %d", cases[i].query, ok);
        if (ok && cases[i].want) CHECK_STR(str_of(out), str_of(cases[i].want));
        if (!ok) CHECK(why.status == 400 && !strcmp(why.param, "id"));
    }
}

TEST(server_query_numbers)
{
    static const struct {
        const char *query;
        int         want; /* -1: refused */
    } cases[] = {{"", 7},     {"n=1", 1},  {"n=50", 50}, {"n=0", -1}, {"n=51", -1}, {"n=1.5", -1},
                 {"n=", -1},  {"n=x", -1}, {"n=%31", 1}, {"m=3", 7},  {"n=+1", -1}, {"n=99999999999999999999", -1},
                 {"n=-1", -1}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t      n   = 7;
        server_error why = {0};
        bool         ok  = query_int(str_of(cases[i].query), "n", 1, 50, &n, &why);
        CHECK_MSG(ok == (cases[i].want >= 0), "'%s': %d", cases[i].query, ok);
        CHECK_INT(n, ok ? cases[i].want : 7);
    }
}

/* --- rates --------------------------------------------------------------------------------------*/
TEST(server_live_rates_are_over_the_window)
{
    live_stats  *l = calloc(1, sizeof *l);
    tandem_stats s = {0};
    live_sample  x;
    double       seconds;
    live_since(l, 5, &x, &seconds);
    CHECK_NEAR(seconds, 0, 0);
    for (int i = 0; i < 3 * LIVE_SAMPLES; i++) {
        s.completion_tokens                          = 10 * i;
        s.spec.drafted_by_method[TANDEM_SPEC_DFLASH] = 4 * i;
        s.finished[TANDEM_FINISH_STOP]               = i;
        live_note(l, 100 + 0.25 * i, &s);
        live_since(l, 5, &x, &seconds);
        if (i == 0) CHECK_NEAR(seconds, 0, 0);
        if (i != 4 && i < 2 * LIVE_SAMPLES) continue;
        CHECK_NEAR(seconds, i == 4 ? 1 : 5, 1e-9);
        CHECK_NEAR((double)x.completion_tokens / seconds, 40, 1e-9);
        CHECK_NEAR((double)x.drafted[TANDEM_SPEC_DFLASH] / seconds, 16, 1e-9);
        CHECK_NEAR((double)x.finished / seconds, 4, 1e-9);
    }
    live_since(l, LIVE_MAX_WINDOW_S, &x, &seconds);
    CHECK_NEAR(seconds, LIVE_MAX_WINDOW_S, 1e-9);
    live_since(l, 1e9, &x, &seconds);
    CHECK_NEAR(seconds, 0.25 * (LIVE_SAMPLES - 1), 1e-9);
    free(l);
}

/* --- models -------------------------------------------------------------------------------------*/
TEST(server_admin_tells_models)
{
    server_rig        r;
    rig_reply         a;
    const json_value *v;
    rig_init(&r, t);
    r.opt.model = "org/na no";
    rig_start(&r);
    v = rig_ask_json(&r, "GET", "/api/models", "", &a, 200);
    CHECK_STR(rig_str(v, "data.0.id"), STR("org/na no"));
    CHECK_STR(rig_str(v, "data.0.state"), STR("loaded"));
    CHECK_STR(rig_str(v, "data.0.family"), STR("gemma4"));
    CHECK_STR(rig_str(v, "data.0.quantisation"), STR("Q8_0"));
    CHECK_INT(rig_int(v, "data.0.context"), 512);
    CHECK(rig_int(v, "data.0.weight_bytes") > 1000000 && rig_int(v, "data.0.kv_bytes") > 1000000);
    CHECK_STR(rig_str(v, "data.0.settings.dflash_max_concurrent"), STR("auto"));
    CHECK_INT(rig_at(v, "data")->n, 3);
    CHECK_STR(rig_str(v, "data.1.id"), STR("dflash.gguf"));
    CHECK_STR(rig_str(v, "data.1.role"), STR("drafter"));
    CHECK_STR(rig_str(v, "data.1.of"), STR("org/na no"));
    CHECK_STR(rig_str(v, "data.2.family"), STR("mtp"));
    CHECK_STR(rig_str(v, "data.2.state"), STR("loaded"));
    rig_reply_deinit(&a);
    rig_expect(&r, "GET", "/api/models/org%2Fna%20no", "", 200, "state", "loaded");
    rig_expect(&r, "GET", "/v1/api/models/org/na%20no", "", 200, "state", "loaded");
    rig_expect(&r, "GET", "/api/models/org%2Fna%20no/settings", "", 200, "settings.queue_max.source", "default");
    rig_expect(&r, "GET", "/api/models/mtp.gguf", "", 200, "family", "mtp");
    rig_expect(&r, "GET", "/api/models/dflash", "", 200, "id", "dflash.gguf");
    rig_expect(&r, "GET", "/api/models/nobody", "", 404, "error.code", "model_not_found");
    rig_expect(&r, "GET", "/api/models/nobody/settings", "", 404, "error.code", "model_not_found");
    rig_expect(&r, "GET", "/api/models//settings", "", 404, "error.code", "model_not_found");
    rig_expect(&r, "GET", "/api/models/", "", 404, "error.code", "not_found");
    rig_expect(&r, "GET", "/api/models/mtp.gguf/settings", "", 404, "error.code", "not_found");
    rig_expect(&r, "GET", "/api/models/mtp.gguf/park", "", 404, "error.code", "model_not_found");
    rig_expect(&r, "PUT", "/api/models/mtp.gguf/park", "{}", 405, "error.code", "method_not_allowed");
    rig_expect(&r, "PUT", "/api/models/mtp.gguf/settings", "{}", 404, "error.code", "not_found");
    rig_expect(&r, "POST", "/api/models/mtp.gguf/settings", "{}", 405, "error.code", "method_not_allowed");
    rig_expect(&r, "POST", "/api/models/mtp.gguf", "{}", 405, "error.code", "method_not_allowed");
    rig_ask_json(&r, "DELETE", "/api/models/mtp.gguf/settings", "", &a, 405);
    CHECK_STR(rig_field(&a, "Allow"), STR("GET, HEAD, PUT"));
    rig_reply_deinit(&a);
    rig_expect(&r, "POST", "/api/models/nobody/park", "{}", 404, "error.code", "model_not_found");
    rig_stop(&r);
}

TEST(server_admin_is_for_admins)
{
    static const char *const paths[][2] = {{"GET", "/api/models"},
                                           {"GET", "/api/models/nano"},
                                           {"PUT", "/api/models/nano/settings"},
                                           {"POST", "/api/models/nano/park"},
                                           {"GET", "/api/routing"},
                                           {"GET", "/api/stats"},
                                           {"POST", "/api/bench"}};
    server_rig               r;
    rig_reply                a;
    char                     file[600];
    rig_init(&r, t);
    /* The SHA-256 of "root". */
    static const char line[] = "4813494d137e1631bba301d5acab6e7bb7aa74ce1185d456565ef51d737677b2 boss\n";
    snprintf(file, sizeof file, "%s", test_tmp_file("admins.keys", line, sizeof line - 1));
    r.opt.api_key        = "sesame";
    r.opt.admin_key_file = file;
    rig_start(&r);
    for (size_t i = 0; i < COUNT(paths); i++) {
        static const struct {
            const char *fields;
            int         status;
        } tries[] = {
            {"", 401}, {"X-API-Key: sesame\r\n", 403}, {"X-API-Key: root\r\nOrigin: https://evil.example\r\n", 403}};
        for (size_t k = 0; k < COUNT(tries); k++) {
            rig_ask(&r, paths[i][0], paths[i][1], tries[k].fields, "", &a);
            CHECK_MSG(a.status == tries[k].status, "%s %s with %s: %d", paths[i][0], paths[i][1], tries[k].fields,
                      a.status);
            rig_reply_deinit(&a);
        }
    }
    rig_ask(&r, "GET", "/api/models", "X-API-Key: root\r\n", "", &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* --- settings -----------------------------------------------------------------------------------*/
static const char settings_path[] = "/api/models/nano/settings";

TEST(server_admin_changes_settings_all_or_none)
{
    static const struct {
        const char *body, *param, *says;
        int         status;
    } bad[] = {{"{\"queue_max\":3,\"dflash_max_concurrent\":-1}", "dflash_max_concurrent", "expected", 400},
               {"{\"queue_max\":3,\"dflash_max_concurrent\":\"many\"}", "dflash_max_concurrent", "expected", 400},
               {"{\"queue_max\":3,\"hat\":1}", "", "there is no setting 'hat'", 400},
               {"{\"queue_max\":3,\"dflash_draft_quant_weight_bits\":5}", "dflash_draft_quant_weight_bits", "4", 400},
               {"{\"queue_max\":3", "", "JSON", 400},
               {"{\"queue_max\":3,\"queue_max\":4}", "", "JSON", 400},
               {"[3]", "", "object", 400},
               {"7", "", "object", 400},
               {"\xff", "", "JSON", 400}};
    server_rig        r;
    rig_reply         a;
    const json_value *v;
    char              file[600], text[400] = "";
    rig_init(&r, t);
    static const char in_file[] = "{\"models\":{\"nano\":{\"default_max_tokens\":100}}}";
    snprintf(file, sizeof file, "%s", test_tmp_file("admin.json", in_file, sizeof in_file - 1));
    r.engine_opt.name          = "nano";
    r.engine_opt.settings_path = file;
    nano_setting(&r.engine_opt, "max_stall_ms", "77");
    setenv("DFLASH_MAX_CTX", "4000", 1);
    rig_start(&r);
    unsetenv("DFLASH_MAX_CTX");
    for (size_t i = 0; i < COUNT(bad); i++) {
        v = rig_ask_json(&r, "PUT", settings_path, bad[i].body, &a, bad[i].status);
        CHECK_MSG(strstr(a.body.p, bad[i].says), "%s: %s", bad[i].body, a.body.p);
        CHECK_MSG(str_is(rig_str(v, "error.param"), bad[i].param), "%s: %s", bad[i].body, a.body.p);
        rig_reply_deinit(&a);
    }
    v = rig_ask_json(&r, "GET", settings_path, "", &a, 200);
    CHECK_INT(rig_int(v, "settings.queue_max.value"), 256);
    CHECK_INT(rig_int(v, "settings.queue_max.default"), 256);
    CHECK_INT(rig_int(v, "settings.queue_max.min"), 0);
    CHECK_INT(rig_int(v, "settings.queue_max.max"), 1 << 20);
    CHECK_STR(rig_str(v, "settings.queue_max.source"), STR("default"));
    CHECK_STR(rig_str(v, "settings.default_max_tokens.source"), STR("file"));
    CHECK_STR(rig_str(v, "settings.max_stall_ms.source"), STR("options"));
    CHECK_STR(rig_str(v, "settings.dflash_max_ctx.source"), STR("environment"));
    CHECK_STR(rig_str(v, "settings.dflash_max_ctx.word"), STR("none"));
    CHECK(rig_at(v, "settings.kv_cap.live") && !rig_at(v, "settings.kv_cap.live")->b);
    CHECK(rig_at(v, "settings.queue_max.live")->b);
    rig_reply_deinit(&a);

    v = rig_ask_json(&r, "PUT", settings_path,
                     "{\"queue_max\":0,\"dflash_max_concurrent\":4,\"kv_cap\":0.5,\"dflash_max_ctx\":9}", &a, 200);
    CHECK_INT(rig_int(v, "settings.queue_max.value"), 0);
    CHECK_STR(rig_str(v, "settings.queue_max.source"), STR("file"));
    CHECK(rig_at(v, "settings.kv_cap.pending")->b && !rig_at(v, "settings.queue_max.pending")->b);
    CHECK_INT(rig_int(v, "settings.dflash_max_ctx.value"), 4000);
    rig_reply_deinit(&a);
    file_map m = {0};
    if (file_map_open(&m, file, NULL)) snprintf(text, sizeof text, "%.*s", (int)m.n, (const char *)m.p);
    file_map_close(&m);
    CHECK_STR(str_of(text),
              STR("{\"models\":{\"nano\":{\"default_max_tokens\":100,\"queue_max\":0,\"dflash_max_concurrent\":4,"
                  "\"kv_cap\":0.5,\"dflash_max_ctx\":9}}}\n"));
    rig_expect(&r, "PUT", settings_path, "{\"queue_max\":null}", 200, "settings.queue_max.source", "api");
    rig_expect(&r, "GET", "/api/models", "", 200, "data.0.object", "model");
    v = rig_ask_json(&r, "GET", "/api/models", "", &a, 200);
    CHECK_INT(rig_int(v, "data.0.settings.dflash_max_concurrent"), 4);
    CHECK_INT(rig_int(v, "data.0.settings.queue_max"), 256);
    rig_reply_deinit(&a);
    /* A file that cannot be written: nothing has changed. */
    test_tmp_file("admin.json", "{", 1);
    rig_expect(&r, "PUT", settings_path, "{\"queue_max\":9}", 500, "error.code", "not_kept");
    v = rig_ask_json(&r, "GET", settings_path, "", &a, 200);
    CHECK_INT(rig_int(v, "settings.queue_max.value"), 256);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* --- parking the model --------------------------------------------------------------------------*/
static const char chat_path[] = "/v1/chat/completions";
static const char question[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 27 plus 58?\"}],\"temperature\":0}";

static const char *story(char out[512], int n, const char *more)
{
    snprintf(out, 512,
             "{\"stream\":true,\"ignore_eos\":true,\"speculative\":\"off\",\"max_tokens\":%d,%s"
             "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]}",
             n, more);
    return out;
}

static int begin(const server_rig *r, const char *method, const char *path, const char *body, bool wait)
{
    test_case *t = r->t;
    char       first[12];
    int        fd = rig_connect(r);
    rig_send(fd, method, path, "", body);
    if (wait) CHECK(recv(fd, first, sizeof first, MSG_PEEK | MSG_WAITALL) == 12 && !memcmp(first, "HTTP/1.1 200", 12));
    return fd;
}

static int64_t metric(const server_rig *r, const char *name)
{
    rig_reply a;
    char      wanted[128];
    rig_ask(r, "GET", "/metrics", "", "", &a);
    snprintf(wanted, sizeof wanted, "\n%s{", name);
    const char *at = a.body.n ? strstr(a.body.p, wanted) : NULL;
    at             = at ? strchr(at, '}') : NULL;
    int64_t n      = at ? atoll(at + 1) : -1;
    rig_reply_deinit(&a);
    return n;
}

TEST(server_parks_its_model_and_loads_it_again)
{
    server_rig        r;
    rig_reply         a, before;
    const json_value *v;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(&r, chat_path, question, &before);
    CHECK_INT(before.status, 200);
    rig_ask_json(&r, "PUT", settings_path, "{\"queue_max\":5}", &a, 200);
    rig_reply_deinit(&a);
    for (int round = 0; round < (NANO_SLOWEST ? 2 : 4); round++) {
        int64_t tokens = metric(&r, "tandem_generation_tokens_total");
        CHECK(tokens > 0);
        for (int twice = 0; twice < 2; twice++)
            rig_expect(&r, "POST", "/api/models/nano/park", "", 200, "state", "parked");
        rig_expect(&r, "GET", "/health", "", 200, "status", "parked");
        rig_expect(&r, "GET", "/ready", "", 503, "error.code", "parked");
        v = rig_ask_json(&r, "POST", chat_path, question, &a, 503);
        CHECK_STR(rig_str(v, "error.code"), STR("parked"));
        CHECK(rig_field(&a, "Retry-After").n && strstr(a.body.p, "The model is parked."));
        rig_reply_deinit(&a);
        rig_expect(&r, "POST", "/tokenize", "{\"content\":\"a\"}", 503, "error.code", "parked");
        rig_expect(&r, "GET", "/v1/models", "", 503, "error.code", "parked");
        rig_expect(&r, "GET", "/props", "", 503, "error.code", "parked");
        rig_expect(&r, "GET", "/slots", "", 503, "error.code", "parked");
        rig_expect(&r, "GET", "/api/routing", "", 503, "error.code", "parked");
        rig_expect(&r, "POST", "/api/bench", "{}", 503, "error.code", "parked");
        rig_expect(&r, "POST", "/api/models/dflash/park", "{}", 503, "error.code", "parked");
        rig_expect(&r, "GET", "/api/stats", "", 200, "state", "parked");
        v = rig_ask_json(&r, "GET", "/api/models", "", &a, 200);
        CHECK_STR(rig_str(v, "data.0.family"), STR("gemma4"));
        CHECK_INT(rig_int(v, "data.0.settings.queue_max"), 5);
        CHECK_STR(rig_str(v, "data.1.state"), STR("parked"));
        CHECK_STR(rig_str(v, "data.1.id"), STR("dflash.gguf"));
        rig_reply_deinit(&a);
        v = rig_ask_json(&r, "GET", settings_path, "", &a, 200);
        CHECK_INT(rig_int(v, "settings.queue_max.value"), 5);
        rig_reply_deinit(&a);
        CHECK_INT(metric(&r, "tandem_generation_tokens_total"), tokens);
        for (int twice = 0; twice < 2; twice++)
            rig_expect(&r, "POST", "/api/models/nano/unpark", "", 200, "state", "loaded");
        rig_expect(&r, "GET", "/health", "", 200, "status", "ok");
        v = rig_ask_json(&r, "GET", settings_path, "", &a, 200);
        CHECK_INT(rig_int(v, "settings.queue_max.value"), 5);
        rig_reply_deinit(&a);
        rig_post(&r, chat_path, question, &a);
        CHECK_STR(rig_str(rig_json(&a), "choices.0.message.content"),
                  rig_str(rig_json(&before), "choices.0.message.content"));
        rig_reply_deinit(&a);
        CHECK(metric(&r, "tandem_generation_tokens_total") > tokens);
    }
    rig_expect(&r, "POST", "/api/models/nano/park", "{\"wait\":1}", 400, "error.param", "wait");
    rig_expect(&r, "POST", "/api/models/nano/park", "{\"grace_s\":-1}", 400, "error.param", "grace_s");
    rig_expect(&r, "POST", "/api/models/nano/park", "x", 400, "error.type", "invalid_request_error");
    rig_reply_deinit(&before);
    rig_stop(&r);
}

TEST(server_lets_answers_end_before_it_parks)
{
    server_rig r;
    rig_reply  a;
    char       body[512];
    rig_init(&r, t);
    rig_start(&r);
    int stream = begin(&r, "POST", chat_path, story(body, 300, ""), true);
    int park   = begin(&r, "POST", "/api/models/nano/park", "{\"grace_s\":60}", false);
    int again  = begin(&r, "POST", "/api/models/nano/park", "", false);
    do { /* refused from the moment on that it was asked for */
        rig_post(&r, chat_path, question, &a);
        int status = a.status;
        rig_reply_deinit(&a);
        if (status == 503) break;
        CHECK_INT(status, 200);
    } while (true);
    rig_read(stream, &a);
    CHECK(a.status == 200 && a.complete && strstr(a.body.p, "\"finish_reason\":\"length\"") &&
          strstr(a.body.p, "[DONE]"));
    rig_reply_deinit(&a);
    for (int i = 0; i < 2; i++) {
        rig_read(i ? again : park, &a);
        CHECK_INT(a.status, 200);
        CHECK_STR(rig_str(rig_json(&a), "state"), STR("parked"));
        rig_reply_deinit(&a);
    }
    rig_expect(&r, "POST", "/api/models/nano/unpark", "", 200, "state", "loaded");
    rig_stop(&r);
}

TEST(server_cuts_answers_that_park_cannot_wait_for)
{
    enum { N = 5 };
    server_rig r;
    rig_reply  a;
    int        fd[N];
    char       body[512];
    rig_init(&r, t);
    r.engine_opt.n_ctx = 4096;
    rig_start(&r);
    for (int i = 0; i < N; i++) fd[i] = begin(&r, "POST", chat_path, story(body, 3900, ""), i < 4);
    rig_expect(&r, "POST", "/api/models/nano/park", "{\"grace_s\":0}", 200, "state", "parked");
    for (int i = 0; i < N; i++) {
        rig_read(fd[i], &a);
        CHECK(!a.complete || a.status == 503);
        CHECK_MSG(a.status == 0 || strstr(a.body.p, "\"code\":\"parked\""), "%d: %s", a.status,
                  a.body.n > 300 ? a.body.p + a.body.n - 300 : a.body.p);
        rig_reply_deinit(&a);
    }
    rig_expect(&r, "POST", "/api/models/nano/unpark", "", 200, "state", "loaded");
    rig_post(&r, chat_path, question, &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* What nobody reads does not hold the model. */
TEST_LONG(server_parks_beside_a_client_that_does_not_read)
{
    server_rig r;
    char       body[512];
    int        little = 4096, fd;
    rig_init(&r, t);
    r.engine_opt.n_ctx    = 2048;
    r.opt.http.max_unsent = 4096;
    rig_start(&r);
    struct sockaddr_storage to;
    socklen_t               n    = sizeof to;
    int                     like = rig_connect(&r);
    CHECK(getpeername(like, (struct sockaddr *)&to, &n) == 0);
    close(like);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
    CHECK(connect(fd, (struct sockaddr *)&to, n) == 0);
    rig_send(fd, "POST", chat_path, "", story(body, 1500, "\"logprobs\":true,\"top_logprobs\":20,"));
    tandem_stats s = {0};
    for (double until = clock_s() + 60; s.finished[TANDEM_FINISH_LENGTH] == 0 && clock_s() < until;) {
        nap(0.01);
        tandem_get_stats(r.engine, &s);
    }
    double start = clock_s();
    rig_expect(&r, "POST", "/api/models/nano/park", "{\"grace_s\":0}", 200, "state", "parked");
    CHECK(clock_s() - start < 10);
    close(fd);
    rig_expect(&r, "POST", "/api/models/nano/unpark", "", 200, "state", "loaded");
    rig_stop(&r);
}

TEST(server_parked_and_unparked_at_once)
{
    enum { N = NANO_SLOWEST ? 6 : 16 };
    server_rig r;
    rig_reply  a;
    int        fd[N], n_ok = 0;
    rig_init(&r, t);
    rig_start(&r);
    for (int i = 0; i < N; i++)
        fd[i] = begin(&r, "POST", i % 3 == 1 ? "/api/models/nano/unpark" : "/api/models/nano/park",
                      i % 5 ? "" : "{\"wait\":false}", false);
    for (int i = 0; i < N; i++) {
        rig_read(fd[i], &a);
        CHECK_MSG(a.status == 200 || a.status == 409, "%d: %s", a.status, a.body.p);
        if (a.status == 409) CHECK_STR(rig_str(rig_json(&a), "error.code"), STR("conflict"));
        n_ok += a.status == 200;
        rig_reply_deinit(&a);
    }
    CHECK(n_ok > 0);
    rig_expect(&r, "POST", "/api/models/nano/unpark", "", 200, "state", "loaded");
    rig_post(&r, chat_path, question, &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    /* Who asked has left: it is done all the same. */
    close(begin(&r, "POST", "/api/models/nano/park", "", false));
    for (double until = clock_s() + 20; clock_s() < until; nap(0.005)) {
        rig_ask(&r, "GET", "/health", "", "", &a);
        bool parked = str_is(rig_str(rig_json(&a), "status"), "parked");
        rig_reply_deinit(&a);
        if (parked) break;
    }
    rig_expect(&r, "GET", "/health", "", 200, "status", "parked");
    rig_stop(&r); /* as it is */
}

static struct {
    bool (*open)(void *ctx, const settings *changed, tandem **out, void (*wake)(void *wake_ctx), void *wake_ctx,
                 err *e);
    atomic_bool fails;
} broken;

static bool open_or_fail(void *ctx, const settings *changed, tandem **out, void (*wake)(void *wake_ctx), void *wake_ctx,
                         err *e)
{
    if (broken.fails) return err_set(e, ERR_IO, "the disk is gone");
    return broken.open(ctx, changed, out, wake, wake_ctx, e);
}

TEST(server_goes_on_when_its_model_does_not_load_again)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    broken.open  = r.opt.open;
    broken.fails = false;
    r.opt.open   = open_or_fail;
    rig_start(&r);
    rig_expect(&r, "POST", "/api/models/nano/park", "", 200, "state", "parked");
    broken.fails        = true;
    const json_value *v = rig_ask_json(&r, "POST", "/api/models/nano/unpark", "", &a, 503);
    CHECK_STR(rig_str(v, "error.code"), STR("load_failed"));
    CHECK(strstr(a.body.p, "the disk is gone"));
    rig_reply_deinit(&a);
    rig_expect(&r, "GET", "/health", "", 503, "error.code", "load_failed");
    rig_expect(&r, "POST", chat_path, question, 503, "error.code", "load_failed");
    rig_expect(&r, "GET", "/api/models", "", 200, "data.0.error", "the disk is gone");
    rig_expect(&r, "POST", "/api/models/nano/unpark", "", 503, "error.code", "load_failed");
    rig_expect(&r, "POST", "/api/models/nano/park", "", 200, "state", "parked");
    broken.fails = false;
    rig_expect(&r, "POST", "/api/models/nano/unpark", "", 200, "state", "loaded");
    rig_post(&r, chat_path, question, &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

typedef struct {
    server_rig *r;
    atomic_bool stop;
    atomic_int  n_ok, n_parked;
    str         want; /* the answer */
} crowd;

static void *keep_asking(void *ctx)
{
    crowd     *c = ctx;
    test_case *t = c->r->t;
    while (!c->stop) {
        rig_reply a;
        rig_post(c->r, chat_path, question, &a);
        const json_value *v = rig_json(&a);
        if (a.status == 200) {
            CHECK_STR(rig_str(v, "choices.0.message.content"), c->want);
            c->n_ok++;
        } else {
            str code = rig_str(v, "error.code");
            CHECK_MSG(a.status == 503 && (str_is(code, "parked") || str_is(code, "loading")), "%d: %s", a.status,
                      a.body.p);
            c->n_parked++;
            nap(0.002);
        }
        rig_reply_deinit(&a);
    }
    return NULL;
}

enum { CROWD = 4 };
static void crowd_begin(crowd *c, server_rig *r, test_case *t, rig_reply *first, pthread_t thread[CROWD])
{
    *c = (crowd){.r = r};
    rig_init(r, t);
    rig_start(r);
    rig_post(r, chat_path, question, first);
    c->want = rig_str(rig_json(first), "choices.0.message.content");
    for (int i = 0; i < CROWD; i++) pthread_create(&thread[i], NULL, keep_asking, c);
}

static void crowd_end(crowd *c, rig_reply *first, pthread_t thread[CROWD])
{
    c->stop = true;
    for (int i = 0; i < CROWD; i++) pthread_join(thread[i], NULL);
    rig_reply_deinit(first);
    rig_wait_idle(c->r);
    rig_stop(c->r);
}

TEST(server_parks_under_load)
{
    enum { ROUNDS = NANO_SLOWEST ? 3 : NANO_SLOW ? 5 : 12 };
    server_rig r;
    rig_reply  first;
    pthread_t  thread[CROWD];
    crowd      c;
    crowd_begin(&c, &r, t, &first, thread);
    for (int i = 0; i < ROUNDS; i++) {
        int ok = c.n_ok, parked = c.n_parked;
        rig_expect(&r, "POST", "/api/models/nano/park", i % 2 ? "{\"grace_s\":0}" : "", 200, "state", "parked");
        while (c.n_parked == parked) nap(0.001);
        rig_expect(&r, "POST", "/api/models/nano/unpark", "", 200, "state", "loaded");
        while (c.n_ok == ok) nap(0.001);
    }
    crowd_end(&c, &first, thread);
    CHECK(c.n_ok >= ROUNDS && c.n_parked >= ROUNDS);
}

TEST(server_parks_drafters_under_load)
{
    enum { ROUNDS = NANO_SLOWEST ? 3 : NANO_SLOW ? 6 : 20 };
    server_rig r;
    rig_reply  first;
    pthread_t  thread[CROWD];
    crowd      c;
    crowd_begin(&c, &r, t, &first, thread);
    for (int i = 0; i < ROUNDS; i++) {
        const char *which = i % 2 ? "dflash.gguf" : "mtp";
        char        path[96];
        snprintf(path, sizeof path, "/api/models/%s/park", which);
        for (int twice = 0; twice < 2; twice++) rig_expect(&r, "POST", path, "", 200, "state", "parked");
        int ok = c.n_ok;
        while (c.n_ok == ok) nap(0.001);
        snprintf(path, sizeof path, "/api/models/%s/unpark", which);
        for (int twice = 0; twice < 2; twice++) rig_expect(&r, "POST", path, "", 200, "state", "loaded");
    }
    crowd_end(&c, &first, thread);
    CHECK_INT(c.n_parked, 0);
}

/* --- decisions ----------------------------------------------------------------------------------*/
TEST(server_admin_tells_decisions)
{
    server_rig        r;
    rig_reply         a;
    const json_value *v;
    rig_init(&r, t);
    rig_start(&r);
    v = rig_ask_json(&r, "GET", "/api/routing", "", &a, 200);
    CHECK(rig_at(v, "data") && rig_at(v, "data")->n == 0);
    rig_reply_deinit(&a);
    for (int i = 0; i < 3; i++) {
        char id[64];
        snprintf(id, sizeof id, "X-Request-Id: call/%d\r\n", i);
        rig_ask(&r, "POST", chat_path, id, question, &a);
        CHECK_INT(a.status, 200);
        rig_reply_deinit(&a);
    }
    v = rig_ask_json(&r, "GET", "/api/routing?n=1", "", &a, 200);
    CHECK_INT(rig_at(v, "data")->n, 1);
    CHECK_STR(rig_str(v, "data.0.request_id"), STR("call/2"));
    CHECK_STR(rig_str(v, "data.0.event"), STR("end"));
    CHECK(rig_str(v, "data.0.reason").n && rig_int(v, "data.0.outcome.tokens") > 0);
    rig_reply_deinit(&a);
    v = rig_ask_json(&r, "GET", "/api/routing?request_id=call%2F1&n=1000", "", &a, 200);
    CHECK(rig_at(v, "data")->n >= 2);
    for (size_t i = 0; i < rig_at(v, "data")->n; i++)
        CHECK_STR(rig_str(&rig_at(v, "data")->item[i], "request_id"), STR("call/1"));
    rig_reply_deinit(&a);
    v = rig_ask_json(&r, "GET", "/api/routing?request_id=nobody", "", &a, 200);
    CHECK_INT(rig_at(v, "data")->n, 0);
    rig_reply_deinit(&a);
    rig_expect(&r, "GET", "/api/routing?n=0", "", 400, "error.param", "n");
    rig_expect(&r, "GET", "/api/routing?n=9999", "", 400, "error.param", "n");
    rig_expect(&r, "GET", "/api/routing?n=x", "", 400, "error.param", "n");
    rig_expect(&r, "GET", "/api/routing?request_id=%zz", "", 400, "error.param", "request_id");
    rig_stop(&r);
}

/* --- live numbers -------------------------------------------------------------------------------*/
TEST(server_admin_tells_stats)
{
    server_rig        r;
    rig_reply         a;
    const json_value *v;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(&r, chat_path, question, &a);
    int64_t tokens = rig_int(rig_json(&a), "usage.completion_tokens"),
            prompt = rig_int(rig_json(&a), "usage.prompt_tokens");
    rig_reply_deinit(&a);
    nap(0.6); /* two ticks */
    v = rig_ask_json(&r, "GET", "/api/stats?window_s=60", "", &a, 200);
    CHECK_STR(rig_str(v, "state"), STR("loaded"));
    CHECK_INT(rig_int(v, "tokens.completion"), tokens);
    CHECK_INT(rig_int(v, "tokens.prompt"), prompt);
    CHECK_INT(rig_int(v, "requests.finished.stop"), 1);
    CHECK_INT(rig_int(v, "requests.running"), 0);
    CHECK(rig_int(v, "kv.bytes") > 0 && rig_int(v, "process.resident_bytes") > 1000000);
    CHECK(rig_at(v, "process.uptime_s")->d > 0.5);
    int64_t drafted = 0, rounds = 0;
    for (int m = TANDEM_SPEC_OFF + 1; m < TANDEM_SPEC_METHODS; m++) {
        char path[64];
        if (m == TANDEM_SPEC_AUTO) continue;
        snprintf(path, sizeof path, "speculation.methods.%s.drafted", tandem_method_name(m));
        drafted += rig_int(v, path);
        snprintf(path, sizeof path, "speculation.methods.%s.rounds", tandem_method_name(m));
        rounds += rig_int(v, path);
    }
    CHECK_INT(drafted, rig_int(v, "speculation.drafted"));
    CHECK_INT(rounds, rig_int(v, "speculation.rounds"));
    CHECK(rounds > 0);
    CHECK(rig_at(v, "rates.window_s")->d > 0);
    CHECK(!rig_at(v, "draining")->b);
    rig_reply_deinit(&a);
    rig_ask_json(&r, "POST", "/api/drain", "", &a, 200);
    rig_reply_deinit(&a);
    CHECK(rig_at(rig_ask_json(&r, "GET", "/api/stats", "", &a, 200), "draining")->b);
    rig_reply_deinit(&a);
    rig_ask_json(&r, "DELETE", "/api/drain", "", &a, 200);
    rig_reply_deinit(&a);
    rig_ask(&r, "HEAD", "/api/stats?stream=1", "Accept: text/event-stream\r\n", "", &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    rig_expect(&r, "GET", "/api/stats?window_s=0", "", 400, "error.param", "window_s");
    rig_expect(&r, "GET", "/api/stats?stream=2", "", 400, "error.param", "stream");
    rig_expect(&r, "GET", "/api/stats?stream=1&interval_ms=10", "", 400, "error.param", "interval_ms");
    rig_stop(&r);
}

TEST(server_streams_stats_to_so_many_and_until_it_drains)
{
    server_rig r;
    rig_reply  a;
    int        fd[LIVE_MAX_STREAMS];
    rig_init(&r, t);
    rig_start(&r);
    for (int i = 0; i < LIVE_MAX_STREAMS; i++) {
        fd[i] = rig_connect(&r);
        char first[12];
        if (i % 2)
            rig_send(fd[i], "GET", "/api/stats", "Accept: text/event-stream\r\n", "");
        else
            rig_send(fd[i], "GET", "/api/stats?stream=1&interval_ms=250", "", "");
        CHECK(recv(fd[i], first, sizeof first, MSG_PEEK | MSG_WAITALL) == 12 && !memcmp(first, "HTTP/1.1 200", 12));
    }
    rig_expect(&r, "GET", "/api/stats?stream=1", "", 429, "error.code", "too_many_streams");
    rig_ask(&r, "GET", "/api/stats", "", "", &a);
    CHECK_INT(rig_int(rig_json(&a), "http.stats_streams"), LIVE_MAX_STREAMS);
    rig_reply_deinit(&a);
    close(fd[0]); /* who leaves makes room */
    for (int tries = 0; tries < 200; tries++) {
        fd[0] = begin(&r, "GET", "/api/stats?stream=1&interval_ms=250", "", false);
        char first[12];
        if (recv(fd[0], first, sizeof first, MSG_PEEK | MSG_WAITALL) == 12 && !memcmp(first, "HTTP/1.1 200", 12)) break;
        close(fd[0]);
        nap(0.01);
    }
    nap(0.8);
    pthread_kill(r.thread, SIGTERM);
    for (int i = 0; i < LIVE_MAX_STREAMS; i++) {
        rig_read(fd[i], &a);
        size_t at = 0;
        str    data;
        int    n = 0;
        while (rig_event(&a, &at, &data)) n++;
        CHECK(a.status == 200 && a.complete);
        CHECK_STR(rig_field(&a, "Content-Type"), STR("text/event-stream"));
        CHECK_MSG(n >= (i % 2 ? 2 : 3), "%d events", n);
        CHECK(strstr(a.body.p, "event: end\ndata: {\"reason\":\"draining\"}\n\n"));
        rig_reply_deinit(&a);
    }
    rig_stop(&r);
}

TEST(server_admin_bodies)
{
    static const struct {
        const char *body, *words; /* NULL: it is good */
    } k[] = {{"", NULL},        {"{}", NULL},          {"{\"a\":1}", NULL},    {" ", "not JSON"},
             {"{", "not JSON"}, {"[]", "JSON object"}, {"null", "JSON object"}};
    for (size_t i = 0; i < COUNT(k); i++) {
        const json_value *v;
        server_error      why = {0};
        arena             mem;
        arena_init(&mem, 1 << 16);
        CHECK_INT(admin_read_body(str_of(k[i].body), &mem, &v, &why), !k[i].words);
        if (!k[i].words) CHECK(v->kind == JSON_OBJECT && v->n == (i == 2));
        if (k[i].words) CHECK_MSG(why.status == 400 && strstr(why.message, k[i].words), "%s", why.message);
        arena_deinit(&mem);
    }
}

static size_t allocated(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* A model that is parked gives its memory back, each time. */
TEST(server_parked_models_take_no_memory)
{
    server_rig r;
    size_t     with = 0, without[3];
    rig_init(&r, t);
    rig_start(&r);
    for (int i = 0; i < 3; i++) {
        with = allocated();
        rig_expect(&r, "POST", "/api/models/nano/park", "", 200, "state", "parked");
        without[i] = allocated();
        rig_expect(&r, "POST", "/api/models/nano/unpark", "", 200, "state", "loaded");
    }
    /* 0: the sanitizers' allocator does not say */
    CHECK_MSG(!with || (without[2] < with / 2 && without[2] < without[0] + with / 4),
              "%zu bytes, and %zu, %zu without a model", with, without[0], without[2]);
    rig_stop(&r);
}

/* --- bench --------------------------------------------------------------------------------------*/
static void check_interval(test_case *t, const json_value *cell, const char *name)
{
    char low[64], high[64];
    snprintf(low, sizeof low, "%s_low", name);
    snprintf(high, sizeof high, "%s_high", name);
    double x = rig_at(cell, name)->d;
    CHECK_MSG(x > 0 && rig_at(cell, low)->d <= x && x <= rig_at(cell, high)->d, "%s is %g", name, x);
}

/* Without fields: plain decoding twice and auto, nine times each. */
TEST(server_bench_has_a_control_and_intervals)
{
    server_rig        r;
    rig_reply         a;
    const json_value *v;
    rig_init(&r, t);
    rig_start(&r);
    v = rig_ask_json(&r, "POST", "/api/bench",
                     "{\"prompts\":[\"Count from 3 to 14.\",\"What is 27 plus 58?\"],\"output_tokens\":12}", &a, 200);
    CHECK_INT(rig_at(v, "cells")->n, 3);
    CHECK_INT(rig_int(v, "repeats"), 9);
    for (int i = 0; i < 3 && v; i++) {
        static const char *const method[] = {"off", "off", "auto"};
        const json_value        *c        = &rig_at(v, "cells")->item[i];
        CHECK_STR(rig_str(c, "method"), str_of(method[i]));
        CHECK(rig_at(c, "control")->b == (i == 1));
        CHECK_INT(rig_at(c, "tokens_per_s_each")->n, 9);
        check_interval(t, c, "tokens_per_s");
        check_interval(t, c, "ratio");
        check_interval(t, c, "gen_tokens_per_s");
        check_interval(t, c, "gen_ratio");
        check_interval(t, rig_at(c, "ttft_s"), "median");
        double generated = 9 * 2 * 12, rounds = (double)(rig_int(c, "rounds") + rig_int(c, "plain_rounds"));
        CHECK_NEAR(rig_at(c, "accepted_share")->d, (double)rig_int(c, "accepted") / generated, 1e-6);
        CHECK_NEAR(rig_at(c, "tokens_per_round")->d, generated / rounds, 1e-6);
    }
    rig_reply_deinit(&a);
    rig_stop(&r);
}

TEST(server_benches)
{
    server_rig        r;
    rig_reply         a;
    const json_value *v;
    rig_init(&r, t);
    rig_start(&r);
    v = rig_ask_json(
        &r, "POST", "/api/bench",
        "{\"concurrency\":[1,3],\"methods\":[\"off\",\"auto\",\"dflash\"],\"prompt_tokens\":60,\"output_tokens\":12,"
        "\"requests\":2,\"repeats\":2}",
        &a, 200);
    CHECK_INT(rig_at(v, "cells")->n, 6);
    CHECK(rig_at(v, "same_text")->b && rig_at(v, "complete")->b);
    for (int i = 0; i < 6 && v; i++) {
        const json_value *c = &rig_at(v, "cells")->item[i];
        int64_t           n = rig_int(c, "concurrency");
        CHECK_INT(n, i < 3 ? 1 : 3);
        CHECK_STR(rig_str(c, "method"), str_of(i % 3 == 0 ? "off" : i % 3 == 1 ? "auto" : "dflash"));
        CHECK_INT(rig_int(c, "answers"), 2 * 2 * n);
        CHECK_INT(rig_int(c, "failed"), 0);
        CHECK_INT(rig_int(c, "tokens"), 2 * 2 * n * 12);
        CHECK(rig_at(c, "tokens_per_s")->d > 0 && rig_at(c, "ttft_s.median")->d > 0);
        CHECK(rig_at(c, "decode_tokens_per_s.median")->d > 0);
        CHECK_INT(rig_at(c, "tokens_per_s_each")->n, 2);
        if (i % 3 == 0) CHECK_NEAR(rig_at(c, "ratio")->d, 1, 1e-9);
        if (i % 3 == 0) CHECK_INT(rig_int(c, "drafted"), 0);
        if (i % 3 == 2) CHECK(rig_int(c, "methods.dflash.drafted") > 0);
        if (i % 3 == 2) CHECK_INT(rig_int(c, "methods.dflash.drafted"), rig_int(c, "drafted"));
    }
    rig_reply_deinit(&a);
    /* No prompt was found in the cache. */
    v = rig_ask_json(&r, "GET", "/api/stats", "", &a, 200);
    CHECK_INT(rig_int(v, "tokens.cached"), 0);
    CHECK_INT(rig_int(v, "tokens.prompt"), 6 * 2 * 2 * 2 * 60);
    rig_reply_deinit(&a);
    static const struct {
        const char *body, *param;
    } bad[] = {{"{\"concurrency\":[]}", "concurrency"},
               {"{\"concurrency\":[0]}", "concurrency"},
               {"{\"concurrency\":[5]}", "concurrency"}, /* of 4 lanes */
               {"{\"concurrency\":[\"1\"]}", "concurrency"},
               {"{\"concurrency\":3}", "concurrency"},
               {"{\"methods\":[\"turbo\"]}", "methods"},
               {"{\"methods\":[7]}", "methods"},
               {"{\"prompt_tokens\":500,\"output_tokens\":60}", "prompt_tokens"},
               {"{\"prompt_tokens\":3}", "prompt_tokens"},
               {"{\"output_tokens\":1}", "output_tokens"},
               {"{\"repeats\":51}", "repeats"},
               {"{\"max_seconds\":0}", "max_seconds"},
               {"{\"temperature\":-1}", "temperature"}};
    for (size_t i = 0; i < COUNT(bad); i++)
        rig_expect(&r, "POST", "/api/bench", bad[i].body, 400, "error.param", bad[i].param);
    rig_expect(&r, "POST", "/api/bench", "[", 400, "error.type", "invalid_request_error");
    rig_expect(&r, "POST", "/api/models/dflash/park", "", 200, "state", "parked");
    rig_expect(&r, "POST", "/api/bench", "{\"methods\":[\"tree\"]}", 400, "error.param", "methods");
    rig_expect(&r, "POST", "/api/models/dflash/unpark", "", 200, "state", "loaded");
    rig_wait_idle(&r);
    rig_stop(&r);
}

/* A method that a setting bars is refused with the reason; where it is barred for some lanes, or for what is chosen by
 * itself, the cell says what ran. */
TEST(server_bench_measures_nothing_under_a_wrong_name)
{
#define SMALL ",\"prompt_tokens\":60,\"output_tokens\":12,\"requests\":1,\"repeats\":1}"
    static const struct {
        const char *set, *method, *says;
    } barred[] = {{"{\"dflash_enabled\":false}", "dflash", "dflash_enabled is false"},
                  {"{\"dflash_enabled\":false}", "ngram", "dflash_enabled is false"},
                  {"{\"dflash_max_concurrent\":0}", "tree", "dflash_max_concurrent is 0"},
                  {"{\"dflash_max_concurrent\":0}", "mtp", "dflash_max_concurrent is 0"},
                  {"{\"dflash_max_concurrent\":0}", "ngram", NULL},
                  {"{\"dflash_max_ctx\":60}", "dflash", "dflash_max_ctx is 60 and prompts have 60 tokens"},
                  {"{\"dflash_max_ctx\":61}", "dflash", NULL}};
    server_rig        r;
    rig_reply         a;
    const json_value *v;
    rig_init(&r, t);
    rig_start(&r);
    for (size_t i = 0; i < COUNT(barred); i++) {
        char body[200];
        rig_expect(&r, "PUT", settings_path,
                   "{\"dflash_enabled\":null,\"dflash_max_concurrent\":null,\"dflash_max_ctx\":null}", 200, "model",
                   "nano");
        rig_expect(&r, "PUT", settings_path, barred[i].set, 200, "model", "nano");
        snprintf(body, sizeof body, "{\"methods\":[\"%s\"]" SMALL, barred[i].method);
        v = rig_ask_json(&r, "POST", "/api/bench", body, &a, barred[i].says ? 400 : 200);
        if (barred[i].says) {
            CHECK_STR(rig_str(v, "error.param"), STR("methods"));
            CHECK_STR(rig_str(v, "error.code"), STR("method_barred"));
            CHECK_MSG(strstr(a.body.p, barred[i].says), "%s", a.body.p);
        } else if (strcmp(barred[i].method, "ngram")) {
            CHECK(rig_int(v, "cells.0.methods.dflash.rounds") > 0);
            CHECK(rig_int(v, "cells.0.reasons.request") > 0);
        }
        rig_reply_deinit(&a);
    }
    /* Two lanes of three are over the limit. */
    rig_expect(&r, "PUT", settings_path, "{\"dflash_max_concurrent\":1,\"dflash_max_ctx\":null}", 200, "model", "nano");
    v = rig_ask_json(&r, "POST", "/api/bench", "{\"concurrency\":[3],\"methods\":[\"dflash\"]" SMALL, &a, 200);
    CHECK_INT(rig_int(v, "cells.0.answers"), 3);
    CHECK(rig_int(v, "cells.0.reasons.concurrency") > 0 && rig_int(v, "cells.0.reasons.request") > 0);
    CHECK(rig_int(v, "cells.0.plain_rounds") >= rig_int(v, "cells.0.reasons.concurrency"));
    rig_reply_deinit(&a);
    rig_expect(&r, "PUT", settings_path, "{\"dflash_enabled\":false}", 200, "model", "nano");
    v = rig_ask_json(&r, "POST", "/api/bench", "{\"methods\":[\"auto\"]" SMALL, &a, 200);
    CHECK_INT(rig_int(v, "cells.0.reasons.disabled"), 11); /* the first token is the prompt's */
    CHECK_INT(rig_int(v, "cells.0.rounds"), 0);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

static const char endless[] = "{\"concurrency\":[4],\"methods\":[\"off\"],\"prompt_tokens\":60,\"output_tokens\":400,"
                              "\"requests\":64,\"repeats\":50,\"stream\":true}";

static const char many[] =
    "{\"concurrency\":[4],\"prompt_tokens\":400,\"output_tokens\":60,\"requests\":64,\"repeats\":50}";

static void wait_for_bench(const server_rig *r, bool wanted)
{
    test_case *t    = r->t;
    bool       runs = !wanted;
    for (int tries = 0; tries < 5000 && runs != wanted; tries++) {
        rig_reply a;
        runs = rig_at(rig_ask_json(r, "GET", "/api/stats", "", &a, 200), "bench")->b;
        rig_reply_deinit(&a);
        if (runs != wanted) nap(0.001);
    }
    CHECK(runs == wanted);
}

TEST(server_benches_one_at_a_time_and_for_somebody)
{
    server_rig r;
    rig_reply  a;
    char       other[400];
    rig_init(&r, t);
    nano_setting(&r.engine_opt, "queue_timeout_ms", "none"); /* the lanes of a bench end late under a sanitizer */
    rig_start(&r);
    int fd = begin(&r, "POST", "/api/bench", endless, true);
    rig_expect(&r, "POST", "/api/bench", "{}", 409, "error.code", "bench_running");
    rig_post(&r, chat_path, question, &a); /* others go first */
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    close(fd);
    rig_wait_idle(&r);
    /* Its time is up: what there is is told. */
    snprintf(other, sizeof other, "{\"max_seconds\":1,%s", endless + 1);
    rig_ask(&r, "POST", "/api/bench", "", other, &a);
    CHECK(a.status == 200 && a.complete && strstr(a.body.p, "event: result\ndata: "));
    CHECK(strstr(a.body.p, "\"complete\":false"));
    rig_reply_deinit(&a);
    rig_wait_idle(&r);
    /* The model is parked: it ends at once. */
    fd = begin(&r, "POST", "/api/bench", endless, true);
    rig_expect(&r, "POST", "/api/models/nano/park", "{\"grace_s\":60}", 200, "state", "parked");
    rig_read(fd, &a);
    CHECK(a.status == 200 && !a.complete && strstr(a.body.p, "event: error\ndata: ") && strstr(a.body.p, "\"parked\""));
    rig_reply_deinit(&a);
    rig_expect(&r, "POST", "/api/models/nano/unpark", "", 200, "state", "loaded");
    /* Also while its prompts are made. */
    fd = begin(&r, "POST", "/api/bench", many, false);
    wait_for_bench(&r, true);
    rig_expect(&r, "POST", "/api/models/nano/park", "{\"grace_s\":60}", 200, "state", "parked");
    rig_read(fd, &a);
    CHECK_INT(a.status, 503);
    CHECK_STR(rig_str(rig_json(&a), "error.code"), STR("parked"));
    rig_reply_deinit(&a);
    rig_expect(&r, "POST", "/api/models/nano/unpark", "", 200, "state", "loaded");
    /* The server ends: so does it. */
    fd           = begin(&r, "POST", "/api/bench", endless, true);
    double start = clock_s();
    rig_stop(&r);
    CHECK(clock_s() - start < 10);
    rig_read(fd, &a);
    CHECK(!a.complete);
    rig_reply_deinit(&a);
}

/* Running answers have time to end; a bench has none. */
TEST(server_bench_ends_with_the_server)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    r.opt.grace_s = 3600;
    rig_start(&r);
    int fd = begin(&r, "POST", "/api/bench", endless, true);
    rig_stop(&r);
    rig_read(fd, &a);
    CHECK(!a.complete && strstr(a.body.p, "event: error\ndata: ") && strstr(a.body.p, "\"draining\""));
    rig_reply_deinit(&a);
}

/* Promise 6: what the engine counts of it is in the histograms, too, also when its client leaves in the middle. */
static void check_counts(const server_rig *r)
{
    static const char *const same[][2] = {
        {"tandem_generation_tokens_total", "tandem_request_generation_tokens_sum"},
        {"tandem_prompt_tokens_total", "tandem_request_prompt_tokens_sum"},
        {"tandem_requests_admitted_total", "tandem_e2e_request_latency_seconds_count"},
        {"tandem_requests_admitted_total", "tandem_request_queue_time_seconds_count"},
    };
    test_case *t = r->t;
    for (size_t i = 0; i < COUNT(same); i++) CHECK_INT(metric(r, same[i][1]), metric(r, same[i][0]));
}

TEST(server_bench_is_in_all_counts)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    rig_start(&r);
    rig_ask_json(&r, "POST", "/api/bench",
                 "{\"concurrency\":[3],\"prompt_tokens\":60,\"output_tokens\":12,\"repeats\":1}", &a, 200);
    rig_reply_deinit(&a);
    CHECK_INT(metric(&r, "tandem_request_generation_tokens_sum"), 3 * 3 * 2 * 12);
    check_counts(&r);
    int fd = begin(&r, "POST", "/api/bench", endless, true);
    for (int tries = 0; tries < 1000 && metric(&r, "tandem_num_requests_running") < 4; tries++) nap(0.001);
    close(fd);
    wait_for_bench(&r, false);
    CHECK(metric(&r, "tandem_request_generation_tokens_count") >= 3 * 2 * 2 + 4);
    check_counts(&r);
    CHECK_INT(metric(&r, "tandem_http_disconnects_total"), 0); /* no answer of it is a client */
    rig_stop(&r);
}

TEST(server_bench_tells_its_progress)
{
    server_rig r;
    rig_reply  a;
    size_t     at = 0;
    str        data;
    int        n = 0;
    rig_init(&r, t);
    rig_start(&r);
    rig_ask(&r, "POST", "/api/bench", "",
            "{\"methods\":[\"off\",\"mtp\"],\"prompt_tokens\":50,\"output_tokens\":8,\"repeats\":3,\"stream\":true,"
            "\"temperature\":1}",
            &a);
    CHECK(a.status == 200 && a.complete);
    while (rig_event(&a, &at, &data)) {
        const json_value *v;
        CHECK(json_parse(&v, &a.mem, data, NULL, NULL));
        n++;
        if (n <= 6) CHECK(rig_int(v, "done") == n && rig_int(v, "of") == 6 && rig_str(v, "cell.method").n);
        if (n == 7) CHECK(rig_at(v, "cells")->n == 2 && rig_at(v, "same_text")->b && rig_at(v, "complete")->b);
    }
    CHECK_INT(n, 7);
    rig_reply_deinit(&a);
    rig_stop(&r);
}
