/* Members of the server's own replies: all of them, in their order, and errors by their cause. */
#include "server_rig.h"

#include "../sched/engine_rig.h"
#include "base/mem.h"
#include "server/errors.h"

#include <stdio.h>

/* Writes the names of all members, nested ones in braces; of an array its first item. Leaves out the members of settings
 * and of counts by reason or method. */
static void put_shape(const json_value *v, buf *out)
{
    if (v->kind == JSON_ARRAY && v->n) {
        buf_putc(out, '[');
        put_shape(&v->item[0], out);
        buf_putc(out, ']');
    }
    if (v->kind != JSON_OBJECT) return;
    buf_putc(out, '{');
    for (size_t i = 0; i < v->n; i++) {
        str key = v->member[i].key;
        if (i) buf_putc(out, ' ');
        buf_put(out, key.s, key.n);
        if (!str_is(key, "settings") && !str_is(key, "routes") && !str_is(key, "reasons") &&
            (!str_is(key, "rounds") || v->member[i].value.kind != JSON_OBJECT))
            put_shape(&v->member[i].value, out);
    }
    buf_putc(out, '}');
}

#define GUESSES        "rounds drafted accepted acceptance_rate acceptance_length"
#define METHOD         "{" GUESSES " recent_drafted recent_accepted}"
#define SPREAD         "{mean median median_low median_high p95}"
#define INTERVAL(name) name " " name "_low " name "_high "
#define HISTOGRAM      "{bounds_s[] counts[]}"
#define PART           "id role path family fingerprint state error"

TEST(server_replies_have_all_their_members)
{
    static const struct {
        const char *method, *path, *body, *shape;
    } k[] = {
        {"GET", "/health", "", "{status}"},
        {"GET", "/ready", "", "{status}"},
        {"GET", "/version", "", "{version}"},
        {"GET", "/v1/models", "",
         "{object data[{id object created owned_by max_model_len input_modalities[] meta{family n_vocab n_layers "
         "size}}]}"},
        {"GET", "/tokenizer_info", "",
         "{tokenizer_class vocab_size model_max_length add_bos_token bos_token eos_token pad_token unk_token}"},
        {"POST", "/tokenize", "{\"prompt\":\"Hi\"}", "{count max_model_len tokens[]}"},
        {"POST", "/tokenize", "{\"content\":\"Hi\"}", "{tokens[]}"},
        {"POST", "/detokenize", "{\"tokens\":[5]}", "{content prompt}"},
        {"GET", "/props", "",
         "{default_generation_settings{n_ctx params{temperature top_k top_p min_p repeat_penalty presence_penalty "
         "frequency_penalty speculative}} total_slots model_alias model_path models[{" PART
         "}] modalities{vision video audio} build_info limits{request_memory body_memory} engine{device threads "
         "kv_type "
         "kv_sliding kv_draft sparse_fa kv_bytes_per_token kv_bytes_per_token_full "
         "kv_bytes step_tokens dflash mtp} "
         "settings "
         "files[{role name bytes sha256}]}"},
        {"GET", "/slots", "", "[{id n_ctx speculative is_processing}]"},
        {"GET", "/api/drain", "", "{draining running}"},
        {"GET", "/api/models/nano", "",
         "{" PART
         " object state_s quantisation weight_bytes kv_bytes kv_type kv_sliding kv_draft sparse_fa kv_bytes_per_token "
         "kv_bytes_per_token_full context input_modalities[] layers vocabulary max_lanes "
         "step_tokens device threads settings}"},
        {"GET", "/api/models/dflash", "", "{" PART " object of quantisation weight_bytes context max_draft}"},
        {"GET", "/api/models/nano/settings", "", "{object model settings warnings}"},
        {"GET", "/api/routing", "",
         "{object data[{ts event request_id ctx_len active_count kv_usage_ratio projected_kv_after routed_to reason "
         "plan{method guesses trial} costs{plain_tokens_per_s plan_tokens_per_s} outcome{tokens drafted accepted "
         "acceptance rounds "
         "seconds tokens_per_s route_changes} drafters{dflash mtp}}]}"},
        {"POST", "/api/bench", "{\"methods\":[\"dflash\"],\"prompt_tokens\":60,\"output_tokens\":8,\"requests\":1}",
         "{object id model prompt_tokens prompts output_tokens requests repeats temperature complete same_text others "
         "seconds "
         "cells[{concurrency method control answers failed tokens " INTERVAL("tokens_per_s") INTERVAL("ratio")
             INTERVAL("gen_tokens_per_s") INTERVAL(
                 "gen_ratio") "tokens_per_s_each[] "
                              "decode_tokens_per_s" SPREAD " ttft_s" SPREAD " " GUESSES
                              " accepted_share tokens_per_round plain_rounds reasons methods{dflash{" GUESSES "}}}]}"},
        {"GET", "/api/stats", "",
         "{ts model state draining bench rates{window_s prompt_tokens_per_s cached_tokens_per_s "
         "completion_tokens_per_s "
         "requests_per_s steps_per_s rows_per_step} requests{running queued submitted admitted refused finished{stop "
         "stop_string length cancelled timeout error}} tokens{prompt cached completion} kv{bytes pinned_bytes "
         "reserved_bytes cached_bytes pressure prefix_hits prefix_misses prefix_evicted stored_bytes parked_bytes "
         "stored_hits "
         "stored_misses classes[{kind window held_bytes used_bytes pinned_bytes reserved_bytes}]} speculation{" GUESSES
         " plain_rounds drafted_by_position[] accepted_by_position[] methods{dflash" METHOD " tree" METHOD " mtp" METHOD
         " ngram" METHOD " grammar" METHOD "} routes} steps{steps failed rows prompt_rows prompt_steps seconds busy_s "
         "buckets[]} slots latency{first_token" HISTOGRAM " between_tokens" HISTOGRAM " total" HISTOGRAM
         "} process{resident_bytes held_bytes "
         "host_bytes host_available_bytes uptime_s} "
         "http{connections calls accepted refused bytes_in bytes_out stats_streams} gpus}"},
    };
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    r.engine_opt.fingerprints = true;
    rig_start(&r);
    rig_post(&r, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":8,\"ignore_eos\":true}", &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    rig_wait_idle(&r);
    for (size_t i = 0; i < COUNT(k); i++) {
        buf shape;
        buf_init(&shape, 1 << 16);
        rig_ask(&r, k[i].method, k[i].path, "", k[i].body, &a);
        CHECK_MSG(a.status == 200, "%s: %d %s", k[i].path, a.status, a.body.p);
        const json_value *v = rig_json(&a);
        if (v) put_shape(v, &shape);
        buf_putc(&shape, 0);
        CHECK_MSG(v && !strcmp(shape.p, k[i].shape), "%s has\n%s, expected\n%s", k[i].path, shape.p, k[i].shape);
        buf_deinit(&shape);
        rig_reply_deinit(&a);
    }
    rig_stop(&r);
}

/* The numbers of /api/stats are the engine's. */
TEST(server_stats_are_the_engines)
{
    server_rig   r;
    rig_reply    a;
    tandem_stats s;
    rig_init(&r, t);
    rig_start(&r);
    for (int i = 0; i < 3; i++) {
        rig_post(&r, "/v1/completions",
                 "{\"prompt\":\"Once upon a time there "
                 "was\",\"max_tokens\":24,\"ignore_eos\":true,\"speculative\":\"dflash\"}",
                 &a);
        rig_reply_deinit(&a);
    }
    rig_wait_idle(&r);
    rig_ask(&r, "GET", "/api/stats", "", "", &a);
    const json_value *v = rig_json(&a);
    tandem_get_stats(r.engine, &s);
    const struct {
        const char *at;
        int64_t     want;
    } k[] = {{"requests.running", 0},
             {"requests.submitted", 3},
             {"requests.admitted", s.admitted},
             {"requests.refused", s.refused},
             {"requests.finished.length", 3},
             {"requests.finished.stop", 0},
             {"tokens.prompt", s.prompt_tokens},
             {"tokens.cached", s.cached_tokens},
             {"tokens.completion", 72},
             {"kv.bytes", (int64_t)s.kv_bytes},
             {"kv.pinned_bytes", (int64_t)s.kv_pinned_bytes},
             {"kv.reserved_bytes", (int64_t)s.kv_reserved_bytes},
             {"kv.cached_bytes", (int64_t)s.kv_cached_bytes},
             {"kv.prefix_hits", s.prefix_hits},
             {"kv.prefix_misses", s.prefix_misses},
             {"kv.prefix_evicted", s.prefix_evicted},
             {"speculation.rounds", s.spec.rounds},
             {"speculation.drafted", s.spec.drafted},
             {"speculation.accepted", s.spec.accepted},
             {"speculation.plain_rounds", s.spec.plain_rounds},
             {"speculation.methods.dflash.rounds", s.spec.rounds_by_method[TANDEM_SPEC_DFLASH]},
             {"speculation.methods.dflash.drafted", s.spec.drafted_by_method[TANDEM_SPEC_DFLASH]},
             {"speculation.methods.dflash.accepted", s.spec.accepted_by_method[TANDEM_SPEC_DFLASH]},
             {"speculation.methods.mtp.rounds", 0},
             {"speculation.routes.request", s.routes[3]},
             {"steps.steps", s.steps},
             {"steps.failed", 0},
             {"steps.rows", s.rows},
             {"steps.prompt_rows", s.prompt_rows},
             {"steps.prompt_steps", s.prompt_steps}};
    for (size_t i = 0; i < COUNT(k); i++)
        CHECK_MSG(rig_int(v, k[i].at) == k[i].want, "%s is %lld, expected %lld", k[i].at,
                  (long long)rig_int(v, k[i].at), (long long)k[i].want);
    CHECK(s.spec.drafted > 0 && s.spec.rounds > 0);
    CHECK_INT(s.prefix_hits + s.prefix_misses, 3);
    CHECK_NEAR(rig_at(v, "speculation.acceptance_rate")->d, (double)s.spec.accepted / (double)s.spec.drafted, 1e-6);
    CHECK_NEAR(rig_at(v, "speculation.acceptance_length")->d, 1 + (double)s.spec.accepted / (double)s.spec.rounds,
               1e-6);
    CHECK_NEAR(rig_at(v, "kv.pressure")->d, (double)s.kv_pinned_bytes / (double)s.kv_bytes, 1e-9);
    CHECK(rig_int(v, "process.resident_bytes") > 1 << 20 && rig_at(v, "process.uptime_s")->d > 0);
    CHECK(rig_int(v, "http.calls") >= 1 && rig_int(v, "http.accepted") >= 4);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* --- errors ---------------------------------------------------------------------------------------*/
TEST(server_errors_by_their_cause)
{
    static const struct {
        err_code    code;
        bool        running;
        int         status;
        const char *word, *type;
        bool        has_param, has_text;
    } k[] = {{ERR_BUSY, false, 429, "busy", "rate_limit_error", false, false},
             {ERR_BUSY, true, 503, "unavailable", "overloaded_error", false, false},
             {ERR_UNAVAILABLE, false, 503, "unavailable", "overloaded_error", false, false},
             {ERR_UNAVAILABLE, true, 503, "unavailable", "overloaded_error", false, false},
             {ERR_INPUT, false, 400, NULL, "invalid_request_error", true, true},
             {ERR_INPUT, true, 400, NULL, "invalid_request_error", true, true},
             {ERR_CONTEXT, false, 400, "context_length_exceeded", "invalid_request_error", true, true},
             {ERR_CONTEXT, true, 400, "context_length_exceeded", "invalid_request_error", true, true},
             {ERR_TOO_LARGE, false, 400, NULL, "invalid_request_error", true, true},
             {ERR_TOO_LARGE, true, 400, NULL, "invalid_request_error", true, true},
             {ERR_LIMIT, true, 500, "internal_error", "server_error", false, false},
             {ERR_LIMIT, false, 500, "internal_error", "server_error", false, false},
             {ERR_NOT_FOUND, false, 404, "not_found", "not_found_error", true, true},
             {ERR_FORMAT, false, 400, NULL, "invalid_request_error", true, true},
             {ERR_FORMAT, true, 500, "internal_error", "server_error", false, false},
             {ERR_IO, false, 500, "internal_error", "server_error", false, false},
             {ERR_NOT_FOUND, true, 500, "internal_error", "server_error", false, false}};
    for (size_t i = 0; i < COUNT(k); i++) {
        server_error x   = {0};
        err          why = {.code = k[i].code, .text = "secret insides"};
        CHECK(!error_take(&x, &why, "field", k[i].running));
        CHECK_INT(x.status, k[i].status);
        CHECK_MSG(k[i].word ? x.code && !strcmp(x.code, k[i].word) : !x.code, "case %zu: %s", i, x.code);
        CHECK_STR(str_of(error_type(x.status)), str_of(k[i].type));
        CHECK_STR(str_of(x.param), str_of(k[i].has_param ? "field" : ""));
        CHECK_MSG(!strstr(x.message, "secret") == !k[i].has_text && x.message[0], "case %zu: %s", i, x.message);
        CHECK_INT(error_retry_after(x.status), x.status == 429 || x.status == 503);
    }
}

/* The field that a lower layer names comes first. A whole body is over its limit where there is no field. */
TEST(server_errors_name_the_field_at_fault)
{
    server_error x = {0};
    err          e = {0};
    err_blame(&e, "nothing", 7);
    err_set(&e, ERR_TOO_LARGE, "it has 9 bytes, more than 8");
    CHECK(!e.field[0] && !e.limit);
    CHECK(!error_take(&x, &e, NULL, false));
    CHECK_INT(x.status, 413);
    CHECK_STR(str_of(x.code), STR("request_too_large"));
    CHECK(!err_blame(&e, "tools", 8) && !error_take(&x, &e, "messages", false));
    CHECK_INT(x.status, 400);
    CHECK(!x.code);
    CHECK_STR(str_of(x.param), STR("tools"));
    CHECK_STR(str_of(x.message), STR("'tools' is over a limit: it has 9 bytes, more than 8."));
    err_set(&e, ERR_CONTEXT, "the prompt has 9 tokens");
    err_blame(&e, NULL, 8);
    err_wrap(&e, "the first prompt");
    CHECK(!error_take(&x, &e, "prompt", true));
    CHECK_STR(str_of(x.param), STR("prompt"));
    CHECK_INT(x.n_ctx, 8);
    CHECK_INT(e.limit, 8);
    CHECK(!error_body(&x, &(err){.code = ERR_TOO_LARGE, .text = "deep"}));
    CHECK_INT(x.status, 413);
    CHECK(!error_body(&x, &(err){.code = ERR_UNAVAILABLE, .text = "full"}));
    CHECK_INT(x.status, 503);
    CHECK(!error_body(&x, &(err){.code = ERR_FORMAT, .text = "odd"}));
    CHECK_INT(x.status, 400);
    CHECK(!err_blame(NULL, "tools", 1)); /* nobody asked why */
}

TEST(server_errors_have_types_by_status)
{
    static const struct {
        int         status;
        const char *type;
    } k[] = {{400, "invalid_request_error"}, {401, "authentication_error"},  {403, "authentication_error"},
             {404, "not_found_error"},       {413, "invalid_request_error"}, {429, "rate_limit_error"},
             {499, "invalid_request_error"}, {500, "server_error"},          {501, "server_error"},
             {503, "overloaded_error"},      {504, "timeout_error"}};
    for (size_t i = 0; i < COUNT(k); i++) CHECK_STR(str_of(error_type(k[i].status)), str_of(k[i].type));
}

/* --- streams ----------------------------------------------------------------------------------------*/
static void put_items(const json_value *list, buf *out)
{
    json_writer w;
    for (size_t i = 0; list && i < list->n; i++) {
        json_writer_init(&w, out);
        json_put_value(&w, &list->item[i]);
        buf_putc(out, '\n');
    }
}

/* Log-probabilities and text of a stream's pieces, put together, are those of its end; events are numbered. */
TEST(server_streams_responses_in_pieces_of_the_whole)
{
    server_rig r;
    rig_reply  a;
    buf        pieces, whole, text;
    size_t     at = 0;
    str        data;
    int        n_deltas = 0, n_events = 0;
    rig_init(&r, t);
    rig_start(&r);
    buf_init(&pieces, 1 << 20);
    buf_init(&whole, 1 << 20);
    buf_init(&text, 1 << 16);
    rig_post(&r, "/v1/responses",
             "{\"stream\":true,\"input\":\"Tell me a "
             "story.\",\"max_output_tokens\":40,\"top_logprobs\":2,\"temperature\":0}",
             &a);
    CHECK_INT(a.status, 200);
    while (rig_event(&a, &at, &data)) {
        const json_value *v;
        if (!CHECK(json_parse(&v, &a.mem, data, NULL, NULL))) break;
        str type = rig_str(v, "type");
        CHECK_INT(rig_int(v, "sequence_number"), n_events++);
        if (str_is(type, "response.output_text.delta")) {
            put_items(rig_at(v, "logprobs"), &pieces);
            buf_put(&text, rig_str(v, "delta").s, rig_str(v, "delta").n);
            n_deltas++;
        }
        if (str_is(type, "response.output_text.done")) {
            put_items(rig_at(v, "logprobs"), &whole);
            CHECK_STR(rig_str(v, "text"), buf_str(&text));
        }
        if (str_is(type, "response.completed") || str_is(type, "response.incomplete")) {
            buf of_end;
            buf_init(&of_end, 1 << 20);
            put_items(rig_at(v, "response.output.0.content.0.logprobs"), &of_end);
            CHECK(of_end.n > 0);
            CHECK_STR(buf_str(&of_end), buf_str(&whole));
            buf_deinit(&of_end);
        }
    }
    CHECK(n_deltas > 2 && whole.n > 0);
    CHECK_STR(buf_str(&pieces), buf_str(&whole));
    buf_deinit(&pieces);
    buf_deinit(&whole);
    buf_deinit(&text);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* --- bounds -----------------------------------------------------------------------------------------*/
TEST(server_queries_have_their_bounds)
{
    static const struct {
        const char *path, *name;
        int         min, max;
    } k[] = {{"/api/stats", "window_s", 1, LIVE_MAX_WINDOW_S},
             {"/api/stats", "interval_ms", 250, 60000},
             {"/api/routing", "n", 1, ENGINE_ROUTING_MAX}};
    server_rig r;
    rig_reply  a;
    char       path[100];
    rig_init(&r, t);
    rig_start(&r);
    for (size_t i = 0; i < COUNT(k); i++) {
        const int value[] = {k[i].min - 1, k[i].min, k[i].max, k[i].max + 1};
        for (int n = 0; n < 4; n++) {
            snprintf(path, sizeof path, "%s?%s=%d", k[i].path, k[i].name, value[n]);
            rig_ask(&r, "GET", path, "", "", &a);
            CHECK_MSG(a.status == (n == 1 || n == 2 ? 200 : 400), "%s: %d", path, a.status);
            if (a.status == 400) CHECK_STR(rig_str(rig_json(&a), "error.param"), str_of(k[i].name));
            rig_reply_deinit(&a);
        }
    }
    rig_ask(&r, "GET", "/api/stats?stream=2", "", "", &a);
    CHECK_INT(a.status, 400);
    rig_reply_deinit(&a);
    rig_ask(&r, "GET", "/api/stats?stream=0", "Accept: application/json\r\n", "", &a);
    CHECK(a.status == 200 && str_is(rig_field(&a, "Content-Type"), "application/json"));
    rig_reply_deinit(&a);
    rig_ask(&r, "HEAD", "/api/stats?stream=1", "", "", &a);
    CHECK(a.status == 200 && str_is(rig_field(&a, "Content-Type"), "application/json"));
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* Draining is logged when it changes, and looking at it changes nothing. */
TEST(server_logs_draining_once)
{
    static const char *const method[] = {"GET", "POST", "POST", "GET", "DELETE", "DELETE", "GET"};
    static const bool        drains[] = {false, true, true, true, false, false, false};
    server_rig               r;
    rig_init(&r, t);
    rig_start(&r);
    for (size_t i = 0; i < COUNT(method); i++) {
        rig_reply a;
        bool      changes = drains[i] != (i && drains[i - 1]);
        test_listen_begin(false);
        rig_ask(&r, method[i], "/api/drain", "", "", &a);
        const char *said = test_listen_end();
        CHECK(rig_at(rig_json(&a), "draining")->b == drains[i]);
        CHECK_MSG(!strstr(said, "drain:") == !changes, "%zu, %s: '%s'", i, method[i], said);
        if (changes)
            CHECK(strstr(said, drains[i] ? "refusing new requests; 0 are running" : "accepting new requests again"));
        rig_reply_deinit(&a);
    }
    rig_stop(&r);
}

/* Requests that are no completions have a line in the log, except GETs that go well: probes would fill it. */
TEST(server_logs_every_request_but_probes)
{
    static const struct {
        const char *method, *path, *body, *line; /* line NULL: none */
    } cases[] = {
        {"POST", "/tokenize", "{\"content\":\"a\"}", "\"endpoint\":\"/tokenize\",\"status\":200,\"sent\":\"all\""},
        {"POST", "/tokenize", "{", "\"endpoint\":\"/tokenize\",\"status\":400,"},
        {"GET", "/health", "", NULL},
        {"GET", "/v1/models", "", NULL},
        {"GET", "/v1/models/none", "", "\"endpoint\":\"/models/*\",\"status\":404,"},
        {"GET", "/nothing", "", "\"endpoint\":\"none\",\"status\":404,"},
        {"DELETE", "/api/drain", "", "\"endpoint\":\"/api/drain\",\"status\":200,"}};
    server_rig r;
    rig_init(&r, t);
    rig_start(&r);
    for (size_t i = 0; i < COUNT(cases); i++) {
        rig_reply a, probe;
        test_listen_begin(true);
        rig_ask(&r, cases[i].method, cases[i].path, "", cases[i].body, &a);
        rig_ask(&r, "GET", "/health", "", "", &probe); /* the line of the request before is written by now */
        const char *said = test_listen_end();
        CHECK_MSG(cases[i].line ? !!strstr(said, cases[i].line) : !strstr(said, "\"endpoint\""), "%s %s: '%s'",
                  cases[i].method, cases[i].path, said);
        rig_reply_deinit(&a);
        rig_reply_deinit(&probe);
    }
    rig_stop(&r);
}

/* --- timings ----------------------------------------------------------------------------------------*/
static void check_rate(test_case *t, const json_value *v, const char *what, double n)
{
    char   at[64];
    double ms;
    snprintf(at, sizeof at, "timings.%s_n", what);
    CHECK_INT(rig_int(v, at), (int64_t)n);
    snprintf(at, sizeof at, "timings.%s_ms", what);
    ms = rig_at(v, at) ? rig_at(v, at)->d : 0;
    CHECK(ms > 0);
    snprintf(at, sizeof at, "timings.%s_per_second", what);
    double rate = rig_at(v, at) ? rig_at(v, at)->d : 0, tokens = rate * ms / 1e3;
    CHECK_MSG(tokens > 0.9 * (n - 1) && tokens < 1.1 * n, "%s: %g tokens in %g ms, %g per second", what, n, ms, rate);
}

/* Counts, times and rates of one answer fit together. */
TEST(server_timings_fit_together)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(
        &r, "/v1/completions",
        "{\"prompt\":\"Once upon a time there was a king who had three sons\",\"max_tokens\":40,\"ignore_eos\":true}",
        &a);
    const json_value *v = rig_json(&a);
    CHECK_INT(rig_int(v, "timings.cache_n"), 0);
    check_rate(t, v, "prompt", (double)rig_int(v, "usage.prompt_tokens"));
    check_rate(t, v, "predicted", 40);
    CHECK(rig_int(v, "timings.draft_n_accepted") <= rig_int(v, "timings.draft_n"));
    rig_reply_deinit(&a);
    rig_stop(&r);
}
