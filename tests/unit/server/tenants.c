/* What one API key is told of the requests of another: nothing. */
#include "server_rig.h"

#include "base/sha256.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static const char ali[] = "X-Api-Key: of ali\r\n", bea[] = "X-Api-Key: of bea\r\n", boss[] = "X-Api-Key: of boss\r\n";

static void put_line(char *text, size_t cap, const char *name)
{
    sha256 s;
    char   hex[65], key[64];
    size_t n = strlen(text);
    snprintf(key, sizeof key, "of %s", name);
    sha256_init(&s);
    sha256_put(&s, key, strlen(key));
    sha256_hex(&s, hex);
    snprintf(text + n, cap - n, "%s %s\n", hex, name);
}

static void start(server_rig *r, test_case *t, bool with_admin)
{
    static char file[2][512];
    char        text[512] = "";
    rig_init(r, t);
    put_line(text, sizeof text, "ali");
    put_line(text, sizeof text, "bea");
    snprintf(file[0], sizeof file[0], "%s", test_tmp_file("tenants.keys", text, strlen(text)));
    r->opt.api_key_file = file[0];
    text[0]             = 0;
    put_line(text, sizeof text, "boss");
    snprintf(file[1], sizeof file[1], "%s", test_tmp_file("tenants.admin", text, strlen(text)));
    if (with_admin) r->opt.admin_key_file = file[1];
    r->engine_opt.max_lanes = 2;
}

static void ask(const server_rig *r, const char *key, const char *body, rig_reply *a)
{
    rig_ask(r, "POST", "/v1/completions", key, body, a);
}

static int64_t tokens_of(const server_rig *r, const char *key, const char *body, const char *member)
{
    rig_reply  a;
    test_case *t = r->t;
    ask(r, key, body, &a);
    CHECK_INT(a.status, 200);
    int64_t n = rig_int(rig_json(&a), member);
    rig_reply_deinit(&a);
    return n;
}

/* The value of the first series that begins with `series`; -1: there is none. */
static double metric(const server_rig *r, const char *key, const char *series)
{
    rig_reply a;
    double    x = -1;
    rig_ask(r, "GET", "/metrics", key, "", &a);
    const char *at = strstr(a.body.p, series);
    while (at && at != a.body.p && at[-1] != '\n') at = strstr(at + 1, series);
    if (at && (at = strchr(at, '}'))) x = strtod(at + 1, NULL);
    rig_reply_deinit(&a);
    return x;
}

static bool has(const server_rig *r, const char *key, const char *text)
{
    rig_reply a;
    rig_ask(r, "GET", "/metrics", key, "", &a);
    bool found = strstr(a.body.p, text) != NULL;
    rig_reply_deinit(&a);
    return found;
}

static const char question[] =
    "{\"prompt\":\"Tell me a story about a cat, and then another one about a dog.\",\"max_tokens\":9,"
    "\"ignore_eos\":true}";

TEST(server_metrics_of_a_key_are_its_own)
{
    static const char *const of_all[] = {
        "kv_cache",          "_connections", "step_",          "route_rounds", "busy_seconds", "sent_bytes",
        "requests_admitted", "ubmitt",       "requests_refus", "key_requests", "stats_streams"};
    server_rig r;
    start(&r, t, true);
    rig_start(&r);
    int64_t prompt = tokens_of(&r, ali, question, "usage.prompt_tokens");
    for (int i = 0; i < 2; i++) tokens_of(&r, ali, question, "usage.prompt_tokens");
    tokens_of(&r, bea, question, "usage.prompt_tokens");
    rig_wait_idle(&r);
    CHECK(metric(&r, ali, "tandem_generation_tokens_total") == 27);
    CHECK(metric(&r, bea, "tandem_generation_tokens_total") == 9);
    CHECK(metric(&r, boss, "tandem_generation_tokens_total") == 36);
    CHECK(metric(&r, ali, "vllm:prompt_tokens_total") == 3 * (double)prompt);
    CHECK(metric(&r, bea, "tandem_prefix_cache_hits_total") == 0); /* another tenant's prefix is not found */
    CHECK(metric(&r, ali, "tandem_prefix_cache_hits_total") > 0);
    CHECK(metric(&r, bea, "tandem_e2e_request_latency_seconds_count") == 1);
    CHECK(metric(&r, bea, "tandem_inter_token_latency_seconds_count") == 8);
    CHECK(metric(&r, ali, "tandem_request_success_total{model_name=\"nano\",finished_reason=\"length\"") == 3);
    CHECK(metric(&r, bea, "tandem_request_success_total{model_name=\"nano\",finished_reason=\"length\"") == 1);
    CHECK(metric(&r, bea, "tandem_http_requests_total{model_name=\"nano\",code=\"200\"") < 10);
    CHECK(metric(&r, boss, "tandem_key_generation_tokens_total{model_name=\"nano\",key=\"ali\"") == 27);
    CHECK(metric(&r, boss, "tandem_key_requests_finished_total{model_name=\"nano\",key=\"bea\"") == 1);
    CHECK(metric(&r, boss, "tandem_key_prompt_tokens_total{model_name=\"nano\",key=\"bea\"") == (double)prompt);
    CHECK(metric(&r, boss, "tandem_key_cached_tokens_total{model_name=\"nano\",key=\"bea\"") == 0);
    for (size_t i = 0; i < COUNT(of_all); i++) {
        CHECK_MSG(!has(&r, bea, of_all[i]), "a user's page has '%s'", of_all[i]);
        CHECK_MSG(has(&r, boss, of_all[i]), "an admin's page has no '%s'", of_all[i]);
    }
    CHECK(!has(&r, bea, "ali") && has(&r, boss, "ali"));
    rig_stop(&r);
}

/* While another key's answers run and wait. */
TEST(server_load_of_others_is_hidden)
{
    enum { MANY = 12 }; /* some still wait when the first ones have ended */
    server_rig r;
    rig_reply  a;
    int        fd[MANY];
    start(&r, t, true);
    rig_start(&r);
    for (int i = 0; i < MANY; i++) {
        fd[i] = rig_connect(&r);
        rig_send(fd[i], "POST", "/v1/completions", ali,
                 "{\"prompt\":\"Tell me a story.\",\"max_tokens\":7000,\"ignore_eos\":true,\"stream\":true}");
    }
    bool seen = false;
    for (int i = 0; i < 4000 && !seen; i++, nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL))
        seen = metric(&r, boss, "tandem_key_requests_running{model_name=\"nano\",key=\"ali\"") == 2 &&
               metric(&r, boss, "tandem_key_requests_waiting{model_name=\"nano\",key=\"ali\"") >= 4;
    CHECK_MSG(seen, "two answers run, and others wait");
    CHECK(metric(&r, boss, "tandem_num_requests_running") >= 1);
    CHECK(metric(&r, ali, "vllm:num_requests_waiting") >= 1);
    CHECK(metric(&r, ali, "vllm:num_requests_running") >= 1);
    CHECK(metric(&r, bea, "vllm:num_requests_running") == 0);
    CHECK(metric(&r, bea, "vllm:num_requests_waiting") == 0);
    CHECK(metric(&r, bea, "tandem_time_to_first_token_seconds_count") == 0);
    CHECK(metric(&r, ali, "vllm:num_requests_running") >= 1); /* they still do */
    for (int i = 0; i < MANY; i++) {
        shutdown(fd[i], SHUT_RDWR);
        rig_read(fd[i], &a);
        rig_reply_deinit(&a);
    }
    rig_wait_idle(&r);
    rig_stop(&r);
}

static str reason_for(const server_rig *r, const char *key, rig_reply *a)
{
    ask(r, key, question, a);
    return rig_str(rig_json(a), "timings.route_reason");
}

TEST(server_route_reasons_of_load_are_hidden)
{
    static tandem_setting none = {"dflash_max_concurrent", "0"};
    server_rig            r;
    rig_reply             a;
    start(&r, t, true);
    r.engine_opt.settings   = &none;
    r.engine_opt.n_settings = 1;
    rig_start(&r);
    CHECK_STR(reason_for(&r, ali, &a), STR("policy"));
    CHECK(!strstr(a.body.p, "concurrency"));
    rig_reply_deinit(&a);
    CHECK_STR(reason_for(&r, boss, &a), STR("concurrency"));
    rig_reply_deinit(&a);
    rig_stop(&r);
}

TEST(server_without_admin_file_users_see_no_others)
{
    static const char *const paths[] = {"/slots", "/api/stats", "/api/routing", "/api/drain"};
    server_rig               r;
    rig_reply                a;
    start(&r, t, false);
    rig_start(&r);
    for (size_t i = 0; i < COUNT(paths); i++) {
        rig_ask(&r, "GET", paths[i], ali, "", &a);
        CHECK_MSG(a.status == 403, "%s gives %d to a user", paths[i], a.status);
        CHECK(strstr(a.body.p, "admin key") && strstr(a.body.p, "--admin-key-file"));
        rig_reply_deinit(&a);
    }
    tokens_of(&r, ali, question, "usage.prompt_tokens");
    CHECK(metric(&r, ali, "tandem_generation_tokens_total") == 9);
    CHECK(metric(&r, bea, "tandem_generation_tokens_total") == 0);
    rig_stop(&r);
}

/* A cached prefix is found by the same key with the same salt alone. */
TEST(server_prefixes_belong_to_a_key_and_a_salt)
{
    static const char *const body[] = {
        "{\"prompt\":\"Tell me a story about a cat, and then another one about a dog.\",\"max_tokens\":2}",
        "{\"prompt\":\"Tell me a story about a cat, and then another one about a dog.\",\"max_tokens\":2,"
        "\"cache_salt\":\"x\"}"};
    server_rig r;
    start(&r, t, true);
    rig_start(&r);
    for (int again = 0; again < 2; again++)
        for (int i = 0; i < 4; i++) {
            int64_t n = tokens_of(&r, i / 2 ? ali : bea, body[i % 2], "timings.cache_n");
            CHECK_MSG(again ? n >= 16 : n == 0, "key %d, salt %d: %lld of the prompt is cached", i / 2, i % 2,
                      (long long)n);
        }
    rig_stop(&r);
}
