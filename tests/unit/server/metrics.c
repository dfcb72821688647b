#include "server/metrics.h"

#include "../sched/engine_rig.h"
#include "sched/router.h"
#include "test.h"

#include <stdlib.h>

static const str nobody;

/* The value of a whole series, such as `tandem_x{model_name="m"}`; NAN: there is none. */
static double value_of(const buf *page, const char *series)
{
    size_t n = strlen(series);
    for (const char *at = page->p; (at = strstr(at, series)); at += n)
        if ((at == page->p || at[-1] == '\n') && at[n] == ' ') return strtod(at + n, NULL);
    return NAN;
}

static const model_parts loaded = {
    .part       = {{.role        = "model",
                    .id          = "nano",
                    .path        = "/m/\"nano\".gguf",
                    .family      = "gemma4",
                    .fingerprint = "sha256:aa",
                    .state       = "loaded"},
                   {.role = "drafter", .id = "d", .path = "/m/d", .family = "dflash", .state = "failed", .error = "gone"}},
    .n_drafters = 1};

static void write_page(const metrics *m, const metrics_view *v, buf *page)
{
    buf_clear(page);
    metrics_write(m, v, page);
    buf_putc(page, 0);
}

static void check_value(test_case *t, const buf *page, const char *prefix, const char *name, const char *more,
                        double want)
{
    char series[256];
    snprintf(series, sizeof series, "%s%s{model_name=\"nano\"%s%s}", prefix, name, more[0] ? "," : "", more);
    double got = value_of(page, series);
    CHECK_MSG(fabs(got - want) <= 1e-9 * fabs(want), "%s is %.12g, expected %.12g", series, got, want);
}

static void check_both(test_case *t, const buf *page, const char *name, const char *more, double want)
{
    check_value(t, page, "tandem_", name, more, want);
    check_value(t, page, "vllm:", name, more, want);
}

/* --- promise 6 ------------------------------------------------------------------------------------*/
static void add_answer(metrics *m, const nano_answer *a, tandem_usage *sum)
{
    const tandem_usage *u = &a->result.usage;
    metrics_request(m, &(server_record){.status    = 200,
                                        .delivered = true,
                                        .total_s   = u->queue_s + u->prefill_s + u->decode_s,
                                        .choice    = {&a->result},
                                        .n_choices = 1});
    if (a->n > 1) metrics_tokens(m, nobody, a->n - 1, u->decode_s);
    sum->prompt_tokens += u->prompt_tokens;
    sum->cached_tokens += u->cached_tokens;
    sum->completion_tokens += u->completion_tokens;
    sum->spec.rounds += u->spec.rounds;
    sum->spec.drafted += u->spec.drafted;
    sum->spec.accepted += u->spec.accepted;
    sum->prefill_s += u->prefill_s;
    for (int i = 0; i < TANDEM_MAX_DRAFT; i++) sum->spec.right_at[i] += u->spec.right_at[i];
}

static void check_usage(test_case *t, const buf *page, const tandem_usage *sum, int n_answers)
{
    check_both(t, page, "prompt_tokens_total", "", sum->prompt_tokens);
    check_both(t, page, "generation_tokens_total", "", sum->completion_tokens);
    check_both(t, page, "prefix_cache_queries_total", "", sum->prompt_tokens);
    check_both(t, page, "prefix_cache_hits_total", "", sum->cached_tokens);
    check_both(t, page, "spec_decode_num_drafts_total", "", (double)sum->spec.rounds);
    check_both(t, page, "spec_decode_num_draft_tokens_total", "", (double)sum->spec.drafted);
    check_both(t, page, "spec_decode_num_accepted_tokens_total", "", (double)sum->spec.accepted);
    check_both(t, page, "spec_decode_num_accepted_tokens_per_pos_total", "position=\"0\"",
               (double)sum->spec.right_at[0]);
    check_both(t, page, "spec_decode_num_accepted_tokens_per_pos_total", "position=\"2\"",
               (double)sum->spec.right_at[2]);
    check_both(t, page, "request_success_total", "finished_reason=\"length\"", n_answers);
    check_both(t, page, "time_to_first_token_seconds_count", "", n_answers);
    check_both(t, page, "inter_token_latency_seconds_count", "", sum->completion_tokens - n_answers);
    check_both(t, page, "request_generation_tokens_sum", "", sum->completion_tokens);
    check_both(t, page, "e2e_request_latency_seconds_bucket", "le=\"+Inf\"", n_answers);
    check_both(t, page, "num_requests_running", "", 0);
}

TEST(server_metrics_are_the_sum_of_usage)
{
    tandem        *e;
    tandem_options o;
    tandem_request r;
    nano_answer    a;
    tandem_usage   sum = {0};
    metrics_view   v   = {.model = "nano", .parts = loaded, .http = {.connections = 3, .bytes_out = 5000000000}};
    metrics       *m   = metrics_new();
    buf            page;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    buf_init(&page, 1 << 20);
    for (int i = 0; i < 5; i++) {
        nano_request(e, &r, 8 + 5 * i);
        r.spec.method = i == 0 ? TANDEM_SPEC_OFF : i == 4 ? TANDEM_SPEC_MTP : TANDEM_SPEC_DFLASH;
        nano_ask(t, e, &r, &a);
        add_answer(m, &a, &sum);
    }
    CHECK(sum.spec.accepted > 0 && sum.cached_tokens > 0);
    tandem_get_stats(e, &v.engine);
    write_page(m, &v, &page);
    check_usage(t, &page, &sum, 5);
    check_both(t, &page, "request_prefill_time_seconds_count", "", 5);
    check_value(t, &page, "tandem_", "step_seconds_count", "", (double)v.engine.steps);
    check_value(t, &page, "tandem_", "grammar_mask_seconds_sum", "", v.engine.mask_s);
    check_value(t, &page, "tandem_", "rounds_total", "method=\"mtp\"",
                (double)v.engine.spec.rounds_by_method[TANDEM_SPEC_MTP]);
    check_value(t, &page, "tandem_", "http_connections", "", 3);
    check_value(t, &page, "tandem_", "http_sent_bytes_total", "", 5e9);
    check_value(t, &page, "tandem_", "kv_cache_bytes", "state=\"total\"", (double)v.engine.kv_bytes);
    tandem_close(e);
    metrics_free(m);
    buf_deinit(&page);
}

/* --- the format -----------------------------------------------------------------------------------*/
/* Every sample follows its own name's TYPE; every line is a comment or "name{labels} number". */
static void check_form(test_case *t, const buf *page)
{
    char name[128] = "", type[16] = "";
    for (const char *at = page->p, *end; *at; at = end + 1) {
        end      = strchr(at, '\n');
        size_t n = (size_t)(end - at);
        if (sscanf(at, "# TYPE %127s %15s", name, type) == 2 || strncmp(at, "# HELP ", 7) == 0) continue;
        CHECK_MSG(strncmp(at, name, strlen(name)) == 0, "'%.*s' under TYPE %s", (int)n, at, name);
        const char *brace = memchr(at, '{', n);
        char       *rest  = NULL;
        if (!CHECK(brace)) return;
        const char *value = end;
        while (value > at && value[-1] != ' ') value--;
        double x = strtod(value, &rest);
        CHECK_MSG(value[-2] == '}' && rest == end && x >= 0, "'%.*s' is no sample", (int)n, at);
        if (strcmp(type, "counter") == 0)
            CHECK_MSG(memcmp(brace - 6, "_total", 6) == 0, "the counter '%.*s' is no total", (int)n, at);
    }
}

TEST(server_metrics_form)
{
    metrics     *m = metrics_new();
    metrics_view v = {
        .model  = "a \"b\"\\c\nd",
        .parts  = loaded,
        .engine = {.kv_bytes = 100, .kv_pinned_bytes = 25, .mask_s = 0.75, .mask_bucket = {[0] = 2, [3] = 5}}};
    buf page;
    buf_init(&page, 1 << 20);
    metrics_reply(m, nobody, 200);
    metrics_reply(m, nobody, 200);
    metrics_reply(m, nobody, 429);
    metrics_reply(m, nobody, 9999);
    metrics_reply(m, nobody, -1);
    metrics_reply(m, nobody, 0); /* it left before there was one */
    v.engine.spec.tried_at[1] = v.engine.spec.right_at[0] = 1;
    write_page(m, &v, &page);
    check_form(t, &page);
#define MODEL "model_name=\"a \\\"b\\\"\\\\c\\nd\""
    CHECK_NEAR(value_of(&page, "tandem_http_requests_total{" MODEL ",code=\"200\"}"), 2, 0);
    CHECK_NEAR(value_of(&page, "tandem_http_requests_total{" MODEL ",code=\"429\"}"), 1, 0);
    CHECK(isnan(value_of(&page, "tandem_http_requests_total{" MODEL ",code=\"404\"}")));
    CHECK(isnan(value_of(&page, "tandem_http_requests_total{" MODEL ",code=\"0\"}")));
    CHECK_NEAR(value_of(&page, "vllm:kv_cache_usage_perc{" MODEL "}"), 0.25, 0);
    CHECK_NEAR(value_of(&page, "tandem_model_info{" MODEL ",role=\"model\",id=\"nano\",path=\"/m/\\\"nano\\\".gguf\","
                               "family=\"gemma4\",fingerprint=\"sha256:aa\"}"),
               1, 0);
    CHECK_NEAR(value_of(&page, "tandem_model_info{" MODEL ",role=\"drafter\",id=\"d\",path=\"/m/d\",family=\"dflash\","
                               "fingerprint=\"\"}"),
               0, 0);
    CHECK_NEAR(value_of(&page, "vllm:spec_decode_num_accepted_tokens_per_pos_total{" MODEL ",position=\"1\"}"), 0, 0);
    CHECK(isnan(value_of(&page, "vllm:spec_decode_num_accepted_tokens_per_pos_total{" MODEL ",position=\"2\"}")));
    CHECK(isnan(value_of(&page, "vllm:step_seconds_count{" MODEL "}"))); /* ours alone */
    CHECK_NEAR(value_of(&page, "tandem_grammar_mask_seconds_sum{" MODEL "}"), 0.75, 0);
    CHECK_NEAR(value_of(&page, "tandem_grammar_mask_seconds_count{" MODEL "}"), 7, 0);
    CHECK_NEAR(value_of(&page, "tandem_grammar_mask_seconds_bucket{" MODEL ",le=\"0.0005\"}"), 2, 0);
    CHECK_NEAR(value_of(&page, "tandem_grammar_mask_seconds_bucket{" MODEL ",le=\"0.001\"}"), 7, 0);
    metrics_free(m);
    buf_deinit(&page);
}

TEST(server_metrics_buckets)
{
    metrics     *m = metrics_new();
    metrics_view v = {.model = "nano", .parts = loaded};
    buf          page;
    buf_init(&page, 1 << 20);
    metrics_tokens(m, nobody, 4, 0.004); /* 1 ms each: in the bucket that ends there */
    metrics_tokens(m, nobody, 1, 0.0011);
    metrics_tokens(m, nobody, 2, 100);
    metrics_tokens(m, nobody, 0, 100);
    write_page(m, &v, &page);
    check_both(t, &page, "inter_token_latency_seconds_bucket", "le=\"0.0005\"", 0);
    check_both(t, &page, "inter_token_latency_seconds_bucket", "le=\"0.001\"", 4);
    check_both(t, &page, "inter_token_latency_seconds_bucket", "le=\"0.0025\"", 5);
    check_both(t, &page, "inter_token_latency_seconds_bucket", "le=\"5\"", 5);
    check_both(t, &page, "inter_token_latency_seconds_bucket", "le=\"+Inf\"", 7);
    check_both(t, &page, "inter_token_latency_seconds_sum", "", 100.0051);
    metrics_free(m);
    buf_deinit(&page);
}

/* One request with two answers to one prompt, whose client left; one that was refused; one whose answer has no token. */
TEST(server_metrics_of_records)
{
    metrics      *m     = metrics_new();
    metrics_view  v     = {.model = "nano", .parts = loaded};
    tandem_result two[] = {{.finish = TANDEM_FINISH_LENGTH,
                            .usage  = {.prompt_tokens     = 40,
                                       .completion_tokens = 9,
                                       .queue_s           = 0.5,
                                       .prefill_s         = 1.5,
                                       .decode_s          = 4,
                                       .route_reason      = "default"}},
                           {.finish = TANDEM_FINISH_STOP,
                            .usage  = {.prompt_tokens     = 40,
                                       .completion_tokens = 3,
                                       .queue_s           = 0.25,
                                       .prefill_s         = 1,
                                       .decode_s          = 2,
                                       .route_reason      = "default"}}};
    tandem_result none  = {
         .usage = {.prompt_tokens = 7, .queue_s = 3, .prefill_s = 9, .decode_s = 9, .route_reason = ""}};
    server_record left = {.total_s = 8, .choice = {&two[0], &two[1]}, .shares_prompt = {false, true}, .n_choices = 2};
    server_record refused = {.status = 429, .delivered = true, .total_s = 100};
    server_record empty   = {.status = 200, .delivered = true, .total_s = 2, .choice = {&none}, .n_choices = 1};
    static const struct {
        const char *name;
        double      count, sum;
    } k[] = {{"time_to_first_token_seconds", 2, 3.25}, {"e2e_request_latency_seconds", 2, 10},
             {"request_queue_time_seconds", 3, 3.75},  {"request_prefill_time_seconds", 2, 2.5},
             {"request_decode_time_seconds", 2, 6},    {"request_prompt_tokens", 2, 47},
             {"request_generation_tokens", 3, 12}};
    buf page;
    buf_init(&page, 1 << 20);
    metrics_request(m, &left);
    metrics_request(m, &refused);
    metrics_request(m, &empty);
    write_page(m, &v, &page);
    CHECK_NEAR(value_of(&page, "tandem_http_disconnects_total{model_name=\"nano\"}"), 1, 0);
    for (size_t i = 0; i < COUNT(k); i++) {
        char series[200];
        snprintf(series, sizeof series, "vllm:%s_count{model_name=\"nano\"}", k[i].name);
        CHECK_MSG(value_of(&page, series) == k[i].count, "%s is %g", series, value_of(&page, series));
        snprintf(series, sizeof series, "vllm:%s_sum{model_name=\"nano\"}", k[i].name);
        CHECK_MSG(fabs(value_of(&page, series) - k[i].sum) < 1e-9, "%s is %g", series, value_of(&page, series));
    }
    metrics_free(m);
    buf_deinit(&page);
}

/* The names and meanings are those of llama.cpp's tools/server/README.md. */
TEST(server_metrics_under_llamacpp_names)
{
    metrics      *m   = metrics_new();
    metrics_view  v   = {.model    = "nano",
                         .parts    = loaded,
                         .llamacpp = true,
                         .engine   = {.running           = 3,
                                      .queued            = 2,
                                      .prompt_tokens     = 100,
                                      .cached_tokens     = 40,
                                      .completion_tokens = 90,
                                      .steps             = 20,
                                      .spec.rounds       = 25,
                                      .spec.plain_rounds = 5,
                                      .spec.drafted      = 70,
                                      .spec.accepted     = 50,
                                      .spec.tried_at     = {30, 20},
                                      .spec.right_at     = {28, 12}}};
    tandem_result one = {.usage = {.prompt_tokens     = 60,
                                   .completion_tokens = 45,
                                   .prefill_s         = 1.5,
                                   .decode_s          = 4.5,
                                   .route_reason      = "default"}};
    server_record r   = {
          .status = 200, .delivered = true, .total_s = 8, .tenant = "ann", .choice = {&one}, .n_choices = 1};
    static const struct {
        const char *name, *more;
        double      x, own; /* own: on the page of a key; NAN: it is not there */
    } k[] = {{"prompt_tokens_total", "", 60, 60},
             {"prompt_tokens_cached_total", "", 40, 0},
             {"prompt_seconds_total", "", 1.5, 1.5},
             {"prompt_tokens_seconds", "", 40, 40},
             {"tokens_predicted_total", "", 90, 45},
             {"tokens_predicted_seconds_total", "", 4.5, 4.5},
             {"predicted_tokens_seconds", "", 20, 10},
             {"requests_processing", "", 3, 0},
             {"requests_deferred", "", 2, 0},
             {"n_tokens_max", "", 105, 105},
             {"n_decode_total", "", 20, NAN},
             {"n_busy_slots_per_decode", "", 1.5, NAN},
             {"spec_decode_num_draft_tokens_total", "", 70, 0},
             {"spec_decode_num_accepted_tokens_total", "", 50, 0},
             {"spec_decode_num_drafts_total", "", 25, 0},
             {"spec_decode_num_accepted_tokens_per_pos_total", ",position=\"0\"", 28, NAN},
             {"spec_decode_num_accepted_tokens_per_pos_total", ",position=\"1\"", 12, NAN}};
    buf page;
    buf_init(&page, 1 << 20);
    metrics_request(m, &r);
    for (int own = 0; own < 2; own++) {
        v.tenant = own ? STR("ann") : (str){0};
        write_page(m, &v, &page);
        for (size_t i = 0; i < COUNT(k); i++) {
            char series[200];
            snprintf(series, sizeof series, "llamacpp:%s{model_name=\"nano\"%s}", k[i].name, k[i].more);
            double got = value_of(&page, series), want = own ? k[i].own : k[i].x;
            CHECK_MSG(got == want || (isnan(got) && isnan(want)), "%s is %g, not %g", series, got, want);
        }
    }
    v.llamacpp = false;
    write_page(m, &v, &page);
    CHECK(!strstr(page.p, "llamacpp"));
    metrics_free(m);
    buf_deinit(&page);
}

/* Every count of the engine and of HTTP stands under its own name. */
TEST(server_metrics_tell_every_number)
{
    metrics     *m = metrics_new();
    metrics_view v = {.model    = "nano",
                      .parts    = loaded,
                      .draining = true,
                      .streams  = 31,
                      .engine   = {.running           = 1,
                                   .queued            = 2,
                                   .submitted         = 3,
                                   .refused           = 4,
                                   .admitted          = 5,
                                   .prompt_tokens     = 6,
                                   .cached_tokens     = 7,
                                   .completion_tokens = 8,
                                   .failed_steps      = 9,
                                   .rows              = 10,
                                   .prompt_rows       = 11,
                                   .prompt_steps      = 111,
                                   .step_s            = 12.5,
                                   .busy_s            = 13.5,
                                   .kv_bytes          = 14,
                                   .kv_pinned_bytes   = 7,
                                   .kv_reserved_bytes = 16,
                                   .kv_cached_bytes   = 17,
                                   .prefix_hits       = 18,
                                   .prefix_misses     = 19,
                                   .prefix_evicted    = 20,
                                   .kv_wiped          = 120,
                                   .graphs            = 121,
                                   .graph_bytes       = 122,
                                   .graphs_recorded   = 123,
                                   .spec.rounds       = 21,
                                   .spec.plain_rounds = 22,
                                   .spec.drafted      = 23,
                                   .spec.accepted     = 24},
                      .http     = {.connections  = 51,
                                   .accepted     = 52,
                                   .refused      = 53,
                                   .evicted      = 54,
                                   .bad_requests = 55,
                                   .timeouts     = 56,
                                   .bytes_in     = 57,
                                   .bytes_out    = 58}};
    static const struct {
        const char *name, *more;
        double      value;
    } both[] = {{"num_requests_running", "", 1},
                {"num_requests_waiting", "", 2},
                {"num_preemptions_total", "", 0},
                {"prompt_tokens_total", "", 6},
                {"prefix_cache_queries_total", "", 6},
                {"prefix_cache_hits_total", "", 7},
                {"generation_tokens_total", "", 8},
                {"kv_cache_usage_perc", "", 0.5},
                {"request_success_total", "finished_reason=\"stop\"",
                 100 * TANDEM_FINISH_STOP + 100 * TANDEM_FINISH_STOP_STRING},
                {"request_success_total", "finished_reason=\"length\"", 100 * TANDEM_FINISH_LENGTH},
                {"request_success_total", "finished_reason=\"abort\"", 100 * TANDEM_FINISH_CANCELLED},
                {"request_success_total", "finished_reason=\"timeout\"", 100 * TANDEM_FINISH_TIMEOUT},
                {"request_success_total", "finished_reason=\"error\"", 100 * TANDEM_FINISH_ERROR},
                {"spec_decode_num_drafts_total", "", 21},
                {"spec_decode_num_draft_tokens_total", "", 23},
                {"spec_decode_num_accepted_tokens_total", "", 24},
                {"spec_decode_num_accepted_tokens_per_pos_total", "position=\"0\"", 61},
                {"spec_decode_num_accepted_tokens_per_pos_total", "position=\"63\"", 62}},
      ours[] = {{"requests_submitted_total", "", 3},
                {"requests_refused_total", "", 4},
                {"requests_admitted_total", "", 5},
                {"failed_steps_total", "", 9},
                {"step_rows_total", "", 10},
                {"step_prompt_rows_total", "", 11},
                {"prompt_steps_total", "", 111},
                {"step_seconds_sum", "", 12.5},
                {"step_seconds_bucket", "le=\"0.000125\"", 71},
                {"step_seconds_bucket", "le=\"+Inf\"", 71 + 72},
                {"engine_busy_seconds", "", 13.5},
                {"kv_cache_bytes", "state=\"total\"", 14},
                {"kv_cache_bytes", "state=\"pinned\"", 7},
                {"kv_cache_bytes", "state=\"reserved\"", 16},
                {"kv_cache_bytes", "state=\"cached\"", 17},
                {"prefix_cache_lookups_total", "result=\"hit\"", 18},
                {"prefix_cache_lookups_total", "result=\"miss\"", 19},
                {"prefix_cache_evicted_total", "", 20},
                {"kv_pages_wiped_total", "", 120},
                {"graphs", "", 121},
                {"graph_bytes", "", 122},
                {"graphs_recorded_total", "", 123},
                {"plain_rounds_total", "", 22},
                {"spec_decode_num_tried_tokens_per_pos_total", "position=\"63\"", 63},
                {"rounds_total", "method=\"off\"", 81},
                {"rounds_total", "method=\"ngram\"", 82},
                {"rounds_total", "method=\"grammar\"", 83},
                {"route_rounds_total", "reason=\"default\"", 91},
                {"route_rounds_total", "reason=\"no_room\"", 92},
                {"http_connections", "", 51},
                {"http_accepted_total", "", 52},
                {"http_refused_total", "", 53},
                {"http_evicted_total", "", 54},
                {"http_bad_requests_total", "", 55},
                {"http_timeouts_total", "", 56},
                {"http_received_bytes_total", "", 57},
                {"http_sent_bytes_total", "", 58},
                {"draining", "", 1},
                {"model_loaded", "", 0},
                {"stats_streams", "", 31}};
    buf page;
    buf_init(&page, 1 << 20);
    for (int i = 0; i < TANDEM_FINISHES; i++) v.engine.finished[i] = 100 * i;
    v.engine.spec.right_at[0]                           = 61;
    v.engine.spec.right_at[63]                          = 62;
    v.engine.spec.tried_at[63]                          = 63;
    v.engine.step_bucket[0]                             = 71;
    v.engine.step_bucket[TANDEM_STEP_BUCKETS - 1]       = 72;
    v.engine.spec.rounds_by_method[TANDEM_SPEC_OFF]     = 81;
    v.engine.spec.rounds_by_method[TANDEM_SPEC_NGRAM]   = 82;
    v.engine.spec.rounds_by_method[TANDEM_SPEC_GRAMMAR] = 83;
    v.engine.routes[ROUTE_DEFAULT]                      = 91;
    v.engine.routes[ROUTE_NO_ROOM]                      = 92;
    write_page(m, &v, &page);
    for (size_t i = 0; i < COUNT(both); i++) check_both(t, &page, both[i].name, both[i].more, both[i].value);
    for (size_t i = 0; i < COUNT(ours); i++) {
        char vllms[64];
        snprintf(vllms, sizeof vllms, "vllm:%s{", ours[i].name);
        check_value(t, &page, "tandem_", ours[i].name, ours[i].more, ours[i].value);
        CHECK_MSG(!strstr(page.p, vllms), "%s} is not a name of vLLM's", vllms);
    }
    v.engine.kv_bytes = 0;
    write_page(m, &v, &page);
    check_both(t, &page, "kv_cache_usage_perc", "", 0); /* no pool is not in use */
    metrics_free(m);
    buf_deinit(&page);
}

/* What is counted for a key is on its own page, and its sums are on the page of all. */
TEST(server_metrics_of_each_key)
{
    static const int statuses[] = {200, 428, 429, 429, 430, 502, 503, 504, 599, 600};
    metrics         *m          = metrics_new();
    metrics_view     v          = {.model = "nano", .parts = loaded};
    tandem_result    done       = {.finish = TANDEM_FINISH_STOP,
                                   .usage  = {.prompt_tokens     = 40,
                                              .cached_tokens     = 30,
                                              .completion_tokens = 9,
                                              .spec.drafted      = 4,
                                              .route_reason      = "default"}};
    server_record    r          = {
                    .tenant = "a", .total_s = 1, .choice = {&done, &done}, .shares_prompt = {false, true}, .n_choices = 2};
    buf page;
    buf_init(&page, 1 << 20);
    for (size_t i = 0; i < COUNT(statuses); i++) metrics_reply(m, STR("a"), statuses[i]);
    metrics_request(m, &r);
    metrics_tokens(m, STR("a"), 3, 3);
    metrics_note_live(m, STR("a"), true);
    for (int shares_prompt = 0; shares_prompt < 2; shares_prompt++) {
        metrics_clear_live(m);
        metrics_note_live(m, STR("a"), true);
        metrics_note_live(m, STR("a"), false);
        metrics_note_live(m, STR("a"), false);
        metrics_note_live(m, STR("b"), true);
        metrics_note_live(m, nobody, true);
    }
    write_page(m, &v, &page);
    static const struct {
        const char *name;
        double      of_a, of_b;
    } k[] = {{"key_requests_running", 1, 1},        {"key_requests_waiting", 2, 0},
             {"key_requests_finished_total", 2, 0}, {"key_requests_refused_total", 3, 0},
             {"key_prompt_tokens_total", 40, 0},    {"key_cached_tokens_total", 30, 0},
             {"key_generation_tokens_total", 18, 0}};
    for (size_t i = 0; i < COUNT(k); i++) {
        check_value(t, &page, "tandem_", k[i].name, "key=\"a\"", k[i].of_a);
        check_value(t, &page, "tandem_", k[i].name, "key=\"b\"", k[i].of_b);
    }
    check_value(t, &page, "tandem_", "http_requests_total", "code=\"599\"", 1);
    v.tenant = STR("a");
    write_page(m, &v, &page);
    check_both(t, &page, "num_requests_running", "", 1);
    check_both(t, &page, "prompt_tokens_total", "", 40);
    check_both(t, &page, "generation_tokens_total", "", 18);
    check_both(t, &page, "spec_decode_num_draft_tokens_total", "", 8);
    check_both(t, &page, "request_success_total", "finished_reason=\"stop\"", 2);
    check_both(t, &page, "request_prompt_tokens_count", "", 1);
    check_both(t, &page, "inter_token_latency_seconds_sum", "", 3);
    check_value(t, &page, "tandem_", "http_requests_total", "code=\"429\"", 2);
    check_value(t, &page, "tandem_", "http_disconnects_total", "", 1);
    CHECK(isnan(value_of(&page, "tandem_key_requests_running{model_name=\"nano\",key=\"a\"}")));
    v.tenant = STR("nobody");
    write_page(m, &v, &page);
    check_both(t, &page, "generation_tokens_total", "", 0);
    metrics_free(m);
    buf_deinit(&page);
}

static bool is_counted(const metrics *m, int tenant, buf *page)
{
    char         name[16];
    metrics_view v = {.model = "nano", .parts = loaded};
    snprintf(name, sizeof name, "t%d", tenant);
    v.tenant = str_of(name);
    write_page(m, &v, page);
    return !isnan(value_of(page, "tandem_http_requests_total{model_name=\"nano\",code=\"200\"}"));
}

static void reply_to(metrics *m, int tenant)
{
    char name[16];
    snprintf(name, sizeof name, "t%d", tenant);
    metrics_reply(m, str_of(name), 200);
}

/* Beyond the limit a new key takes the place of the one that was quiet for longest. */
TEST(server_metrics_keep_so_many_keys)
{
    enum { N = METRICS_MAX_TENANTS };
    metrics *m = metrics_new();
    buf      page;
    buf_init(&page, 1 << 20);
    for (int i = 0; i < N; i++) reply_to(m, i);
    CHECK(is_counted(m, 0, &page) && is_counted(m, N - 1, &page) && !is_counted(m, N, &page));
    for (int i = 0; i < N; i++)
        if (i != 5 && i != N - 1) reply_to(m, i);
    reply_to(m, N);
    CHECK(!is_counted(m, 5, &page) && is_counted(m, N, &page) && is_counted(m, N - 1, &page) &&
          is_counted(m, 0, &page));
    reply_to(m, 5);
    CHECK(is_counted(m, 5, &page) && is_counted(m, N, &page) && !is_counted(m, N - 1, &page) &&
          is_counted(m, 4, &page));
    metrics_free(m);
    buf_deinit(&page);
}
