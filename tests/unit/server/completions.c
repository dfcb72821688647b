/* Completions over HTTP: a stream's pieces, joined, are the whole reply, byte for byte; what is wrong is refused by name. */
#include "server_rig.h"

#define WEATHER                                                                                                        \
    "{\"type\":\"function\",\"function\":{\"name\":\"get_time\",\"description\":\"Time in a city\",\"parameters\":"    \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}}"
#define CALCULATE                                                                                                      \
    "{\"type\":\"function\",\"function\":{\"name\":\"calculate\",\"description\":\"Evaluate an arithmetic "            \
    "expression.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"expression\":{\"type\":\"string\"}},"         \
    "\"required\":[\"expression\"]}}}"
#define USER(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define SUM        USER("What is 27 plus 58?")
#define CALC       "\"tools\":[" CALCULATE "," WEATHER "]," USER("What is 3 + 4? Use the tool.")
#define THINK      "\"chat_template_kwargs\":{\"enable_thinking\":true},"

enum { MOST = 4 };
typedef struct {
    buf reasoning, content, calls, logprobs;
    str finish;
} joined;

static void joined_init(joined *j)
{
    *j = (joined){0};
    buf_init(&j->reasoning, 1 << 20);
    buf_init(&j->content, 1 << 20);
    buf_init(&j->calls, 1 << 20);
    buf_init(&j->logprobs, 1 << 24);
}

static void joined_deinit(joined *j)
{
    buf_deinit(&j->reasoning);
    buf_deinit(&j->content);
    buf_deinit(&j->calls);
    buf_deinit(&j->logprobs);
}

static void add(buf *to, str s) { buf_put(to, s.s, s.n); }

static void add_calls(test_case *t, joined *j, const json_value *calls, int *n_calls)
{
    for (size_t i = 0; calls && i < calls->n; i++) {
        const json_value *c  = &calls->item[i];
        str               id = rig_str(c, "id");
        if (id.n) {
            CHECK(str_starts(id, "call_") && id.n >= 9);
            buf_printf(&j->calls, "|%.*s ", (int)rig_str(c, "function.name").n, rig_str(c, "function.name").s);
            ++*n_calls;
        }
        if (rig_at(c, "index")) CHECK_INT(rig_int(c, "index"), *n_calls - 1);
        add(&j->calls, rig_str(c, "function.arguments"));
    }
}

static void add_logprobs(joined *j, const json_value *choice)
{
    const json_value *list = rig_at(choice, "logprobs.content");
    if (!list) list = rig_at(choice, "logprobs.tokens");
    for (size_t i = 0; list && i < list->n; i++) {
        json_writer w;
        json_writer_init(&w, &j->logprobs);
        json_put_value(&w, &list->item[i]);
    }
}

static void add_choice(test_case *t, joined *j, const json_value *choice, const char *part, int *n_calls)
{
    const json_value *m = rig_at(choice, part);
    add(&j->reasoning, rig_str(m, "reasoning_content"));
    add(&j->content, rig_str(m, "content"));
    add(&j->content, rig_str(choice, "text"));
    add_calls(t, j, rig_at(m, "tool_calls"), n_calls);
    add_logprobs(j, choice);
    if (rig_str(choice, "finish_reason").n) j->finish = rig_str(choice, "finish_reason");
}

static void join_whole(test_case *t, rig_reply *r, joined j[MOST], int n)
{
    const json_value *v     = rig_json(r);
    int               calls = 0;
    CHECK_INT(r->status, 200);
    for (int i = 0; i < n; i++) {
        char path[16];
        snprintf(path, sizeof path, "choices.%d", i);
        calls = 0;
        CHECK_INT(rig_int(rig_at(v, path), "index"), i);
        add_choice(t, &j[i], rig_at(v, path), "message", &calls);
    }
}

/* Returns the usage of the last event but one. */
static const json_value *join_stream(test_case *t, rig_reply *r, joined j[MOST], bool is_chat)
{
    size_t            at = 0;
    str               data;
    int               calls[MOST] = {0}, n_seen[MOST] = {0};
    bool              done  = false;
    const json_value *usage = NULL;
    CHECK_INT(r->status, 200);
    CHECK_STR(rig_field(r, "Content-Type"), STR("text/event-stream"));
    CHECK(r->complete);
    while (rig_event(r, &at, &data)) {
        const json_value *v;
        CHECK(!done);
        done = str_is(data, "[DONE]");
        if (done) continue;
        if (!CHECK(json_parse(&v, &r->mem, data, NULL, NULL))) continue;
        const json_value *choice = rig_at(v, "choices.0");
        int64_t           i      = choice ? rig_int(choice, "index") : 0;
        usage                    = rig_at(v, "usage");
        if (!choice || !CHECK(i >= 0 && i < MOST)) continue;
        if (is_chat && !n_seen[i]++) CHECK_STR(rig_str(choice, "delta.role"), STR("assistant"));
        CHECK(!j[i].finish.n);
        add_choice(t, &j[i], choice, "delta", &calls[i]);
    }
    CHECK(done);
    return usage;
}

static void same(test_case *t, const char *what, const joined *a, const joined *b)
{
    const buf *x[] = {&a->reasoning, &a->content, &a->calls, &a->logprobs};
    const buf *y[] = {&b->reasoning, &b->content, &b->calls, &b->logprobs};
    for (size_t i = 0; i < COUNT(x); i++)
        CHECK_MSG(str_eq(buf_str(x[i]), buf_str(y[i])), "%s: part %zu is '%.*s' in a stream and '%.*s' whole", what, i,
                  STR_ARG(buf_str(x[i])), STR_ARG(buf_str(y[i])));
    CHECK_STR(a->finish, b->finish);
}

static void both_ways(server_rig *r, const char *path, const char *members, int n, joined whole[MOST])
{
    test_case *t = r->t;
    char       body[4096];
    rig_reply  a, b;
    joined     j[MOST];
    for (int i = 0; i < MOST; i++) {
        joined_init(&j[i]);
        joined_init(&whole[i]);
    }
    snprintf(body, sizeof body, "{%s}", members);
    rig_post(r, path, body, &a);
    join_whole(t, &a, whole, n);
    snprintf(body, sizeof body, "{\"stream\":true,\"stream_options\":{\"include_usage\":true},%s}", members);
    rig_post(r, path, body, &b);
    const json_value *usage = join_stream(t, &b, j, strstr(path, "chat") != NULL), *u = rig_at(rig_json(&a), "usage");
    for (int i = 0; i < n; i++) same(t, members, &j[i], &whole[i]);
    CHECK(rig_int(u, "completion_tokens") > 0 && rig_int(u, "prompt_tokens") > 0);
    CHECK_INT(rig_int(usage, "completion_tokens"), rig_int(u, "completion_tokens"));
    CHECK_INT(rig_int(usage, "prompt_tokens"), rig_int(u, "prompt_tokens"));
    CHECK_INT(rig_int(usage, "total_tokens"), rig_int(u, "prompt_tokens") + rig_int(u, "completion_tokens"));
    CHECK_INT(rig_int(usage, "completion_tokens_details.reasoning_tokens"),
              rig_int(u, "completion_tokens_details.reasoning_tokens"));
    for (int i = 0; i < MOST; i++) joined_deinit(&j[i]);
    for (int i = 0; i < n; i++) whole[i].finish = STR(""); /* borrowed from what goes now */
    rig_reply_deinit(&a);
    rig_reply_deinit(&b);
}

static void forget(joined whole[MOST])
{
    for (int i = 0; i < MOST; i++) joined_deinit(&whole[i]);
}

static const char chat_path[] = "/v1/chat/completions", text_path[] = "/v1/completions";

TEST(server_streams_what_it_says_whole)
{
    server_rig r;
    joined     x[MOST];
    rig_init(&r, t);
    rig_start(&r);
    both_ways(&r, chat_path, SUM, 1, x);
    CHECK_STR(buf_str(&x[0].content),
              STR("27 + 58\nones: 7 + 8 = 15, write 5, carry 1\ntens: 2 + 5 + 1 = 8, write 8\nThe answer is 85."));
    forget(x);
    both_ways(&r, chat_path, THINK SUM, 1, x);
    CHECK_STR(buf_str(&x[0].content), STR("The answer is 85."));
    CHECK(str_starts(buf_str(&x[0].reasoning), "27 + 58\n"));
    forget(x);
    both_ways(&r, chat_path, "\"reasoning_effort\":\"low\",\"logprobs\":true,\"top_logprobs\":2," SUM, 1, x);
    CHECK(x[0].reasoning.n && x[0].logprobs.n);
    forget(x);
    both_ways(&r, chat_path, "\"logprobs\":true," CALC, 1, x);
    CHECK_STR(buf_str(&x[0].calls), STR("|calculate {\"expression\":\"3 + 4\"}"));
    CHECK(x[0].logprobs.n > 0 && x[0].content.n == 0);
    forget(x);
    both_ways(&r, chat_path, "\"n\":3,\"temperature\":1.2,\"seed\":7,\"max_tokens\":40," USER("Tell me a story."), 3,
              x);
    CHECK(!str_eq(buf_str(&x[0].content), buf_str(&x[1].content)));
    forget(x);
    both_ways(&r, chat_path,
              USER("\xE6\xB3\x95\xE5\x9B\xBD\xE7\x9A\x84\xE9\xA6\x96\xE9\x83\xBD\xE6\x98\xAF\xE5\x93\xAA\xE9\x87\x8C"
                   "\xEF\xBC\x9F"),
              1, x);
    forget(x);
    both_ways(&r, text_path, "\"prompt\":\"Once upon\",\"max_tokens\":30,\"logprobs\":3", 1, x);
    CHECK(x[0].logprobs.n);
    forget(x);
    both_ways(&r, text_path,
              "\"prompt\":[\"Once upon\",[2,15,591]],\"n\":2,\"max_tokens\":9,\"temperature\":1,\"seed\":1", 4, x);
    CHECK(x[3].content.n);
    forget(x);
    rig_wait_idle(&r);
    rig_stop(&r);
}

/* Stop strings are the content's: a thought may have them. */
TEST(server_stops_in_the_content)
{
    server_rig r;
    joined     x[MOST];
    rig_init(&r, t);
    rig_start(&r);
    both_ways(&r, chat_path, "\"stop\":[\"zzz\",\"write 8\\nThe\"]," SUM, 1, x);
    CHECK_STR(buf_str(&x[0].content), STR("27 + 58\nones: 7 + 8 = 15, write 5, carry 1\ntens: 2 + 5 + 1 = 8, "));
    forget(x);
    both_ways(&r, chat_path, "\"stop\":\"answer\"," THINK SUM, 1, x);
    CHECK(x[0].reasoning.n > 0);
    CHECK_STR(buf_str(&x[0].content), STR("The "));
    forget(x);
    both_ways(&r, chat_path, "\"stop\":\"ones\"," THINK SUM, 1, x);
    CHECK_STR(buf_str(&x[0].content), STR("The answer is 85."));
    forget(x);
    both_ways(&r, text_path, "\"stop\":\" there\",\"max_tokens\":30,\"prompt\":\"Once upon a time\"", 1, x);
    CHECK(x[0].content.n && !memmem(x[0].content.p, x[0].content.n, " there", 6));
    forget(x);
    rig_wait_idle(&r);
    rig_stop(&r);
}

static int64_t cached(server_rig *r, const char *more)
{
    rig_reply a;
    char      body[512];
    snprintf(body, sizeof body, "{\"max_tokens\":1,%s" USER("Sort these numbers: 9 2 7 4 11 35 3 8 1") "}", more);
    rig_post(r, chat_path, body, &a);
    int64_t n = rig_int(rig_json(&a), "usage.prompt_tokens_details.cached_tokens");
    rig_reply_deinit(&a);
    return n;
}

TEST(server_shares_prefixes_by_salt)
{
    server_rig r;
    rig_init(&r, t);
    rig_start(&r);
    CHECK_INT(cached(&r, ""), 0);
    int64_t hit = cached(&r, "");
    CHECK(hit >= 16);
    CHECK_INT(cached(&r, "\"cache_salt\":\"a\","), 0);
    CHECK_INT(cached(&r, "\"cache_salt\":\"a\","), hit);
    CHECK_INT(cached(&r, "\"cache_salt\":\"b\","), 0);
    rig_stop(&r);
}

/* The others find what the first one has read. */
/* Asks for the same text whole and streamed: one fingerprint, in every chunk. */
static void read_fingerprint(server_rig *r, const char *path, const char *members, char out[64])
{
    test_case        *t = r->t;
    rig_reply         a;
    char              body[512];
    size_t            at = 0, n = 0;
    str               data;
    const json_value *v;
    snprintf(body, sizeof body, "{%s}", members);
    rig_post(r, path, body, &a);
    snprintf(out, 64, "%.*s", STR_ARG(rig_str(rig_json(&a), "system_fingerprint")));
    CHECK_MSG(strlen(out) == 19 && !strncmp(out, "fp_", 3), "%s: '%s'", path, out);
    rig_reply_deinit(&a);
    snprintf(body, sizeof body, "{%s,\"stream\":true}", members);
    rig_post(r, path, body, &a);
    for (; rig_event(&a, &at, &data) && !str_is(data, "[DONE]"); n++)
        if (CHECK(json_parse(&v, &a.mem, data, NULL, NULL))) CHECK_STR(rig_str(v, "system_fingerprint"), str_of(out));
    CHECK(n > 1);
    rig_reply_deinit(&a);
}

TEST(server_fingerprint_depends_on_the_settings)
{
    static const char *const path[] = {"/v1/chat/completions", "/v1/completions"};
    static const char *const body[] = {"\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":9",
                                       "\"prompt\":\"Hi\",\"max_tokens\":9"};
    char                     first[64], again[64];
    server_rig               r;
    rig_init(&r, t);
    rig_start(&r);
    for (size_t i = 0; i < COUNT(path); i++) {
        read_fingerprint(&r, path[i], body[i], first);
        read_fingerprint(&r, path[!i], body[!i], again);
        CHECK_STR(str_of(again), str_of(first));
        CHECK(tandem_set(r.engine, "queue_max", i ? "8" : "7", NULL));
        read_fingerprint(&r, path[i], body[i], again);
        CHECK(strcmp(again, first) != 0);
    }
    rig_stop(&r);
}

TEST(server_reads_a_prompt_once_for_several_answers)
{
    server_rig   r;
    rig_reply    a;
    tandem_stats st;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(&r, chat_path, "{\"n\":3,\"max_tokens\":4," USER("Sort these numbers: 9 2 7 4 11 35 3 8 1") "}", &a);
    const json_value *u = rig_at(rig_json(&a), "usage");
    tandem_get_stats(r.engine, &st);
    int64_t n = rig_int(u, "prompt_tokens");
    CHECK(n >= 32 && rig_int(u, "prompt_tokens_details.cached_tokens") == 0);
    CHECK_INT(rig_int(u, "completion_tokens"), 12);
    CHECK_INT(st.prompt_tokens, n);
    CHECK_INT(st.cached_tokens, 0);
    CHECK_INT(st.prefix_hits, 2);
    CHECK_MSG(st.prompt_rows <= n + 2 * 16, "%d rows for %d tokens", (int)st.prompt_rows, (int)n);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

TEST(server_takes_any_length)
{
    static const char *const more[] = {"\"max_tokens\":-1", "\"max_tokens\":4294967296",
                                       "\"max_tokens\":1,\"max_completion_tokens\":-1"};
    server_rig               r;
    rig_reply                a;
    char                     body[1024];
    rig_init(&r, t);
    r.engine_opt.n_settings = 1;
    r.engine_opt.settings   = &(tandem_setting){"default_max_tokens", "2"};
    rig_start(&r);
    for (size_t i = 0; i < COUNT(more); i++) {
        snprintf(body, sizeof body, "{%s," SUM "}", more[i]);
        rig_post(&r, chat_path, body, &a);
        CHECK_INT(a.status, 200);
        CHECK_STR(rig_str(rig_json(&a), "choices.0.finish_reason"), STR("stop"));
        rig_reply_deinit(&a);
    }
    rig_stop(&r);
}

/* Timings are of all answers, so they come with the end of the last one, whichever that is. */
TEST(server_streams_timings_once_with_the_last_answer)
{
    static const char *const path[] = {"/v1/chat/completions", "/v1/completions"};
    static const char *const what[] = {USER("What is 27 plus 58?"), "\"prompt\":\"Once\",\"max_tokens\":6"};
    server_rig               r;
    rig_init(&r, t);
    rig_start(&r);
    for (size_t i = 0; i < COUNT(path); i++) {
        rig_reply a;
        char      body[512];
        size_t    at = 0;
        str       data;
        int       n_ends = 0, n_timings = 0;
        snprintf(body, sizeof body, "{\"stream\":true,\"n\":3,\"temperature\":1,\"seed\":5,%s}", what[i]);
        rig_post(&r, path[i], body, &a);
        while (rig_event(&a, &at, &data)) {
            n_ends += memmem(data.s, data.n, "\"finish_reason\":\"", 17) != NULL;
            if (!memmem(data.s, data.n, "\"timings\":", 10)) continue;
            n_timings++;
            CHECK_INT(n_ends, 3);
        }
        CHECK_INT(n_ends, 3);
        CHECK_INT(n_timings, 1);
        rig_reply_deinit(&a);
    }
    rig_stop(&r);
}

/* Guesses change the speed, never the text; off means none. */
TEST(server_speculates_as_it_is_told)
{
    static const char *const how[]    = {"\"off\"",
                                         "\"ngram\"",
                                         "\"dflash\"",
                                         "{\"method\":\"mtp\",\"draft_max\":2}",
                                         "{\"enabled\":false}",
                                         "{\"enabled\":false,\"method\":\"dflash\"}",
                                         "{\"enabled\":true,\"method\":\"dflash\"}"};
    static const char *const routes[] = {"off", "ngram", "dflash", "mtp", "off", "off", "dflash"};
    server_rig               r;
    str                      text = {0};
    char                     kept[512];
    rig_init(&r, t);
    rig_start(&r);
    for (size_t i = 0; i < COUNT(how); i++) {
        rig_reply a;
        char      body[512];
        snprintf(body, sizeof body, "{\"speculative\":%s," SUM "}", how[i]);
        rig_post(&r, chat_path, body, &a);
        const json_value *v = rig_json(&a);
        str               s = rig_str(v, "choices.0.message.content");
        if (!text.n) snprintf(kept, sizeof kept, "%.*s", (int)s.n, s.s);
        text = str_of(kept);
        CHECK_STR(s, text);
        bool off = !strcmp(routes[i], "off");
        CHECK((rig_int(v, "timings.draft_n") == 0) == off);
        CHECK(rig_int(v, "timings.draft_n_accepted") <= rig_int(v, "timings.draft_n"));
        CHECK_STR(rig_str(v, "timings.route"), str_of(routes[i]));
        CHECK_INT(rig_int(v, "timings.predicted_n"), rig_int(v, "usage.completion_tokens"));
        CHECK(!rig_at(v, "timings.accepted_per_position.0") == off);
        rig_reply_deinit(&a);
    }
    rig_stop(&r);
}

/* The end of one call and the beginning of the next, whether they come in one piece or in several. */
TEST(server_streams_two_calls)
{
    static const double wake_ms[] = {0, 2, 500};
    for (size_t i = 0; i < COUNT(wake_ms); i++) {
        server_rig r;
        joined     x[MOST];
        rig_init(&r, t);
        r.engine_opt.n_ctx   = 1024;
        r.engine_opt.wake_ms = wake_ms[i];
        rig_start(&r);
        both_ways(&r, chat_path,
                  "\"tools\":[" WEATHER "," CALCULATE "]," USER("What is the time in Paris and in Rome?"), 1, x);
        CHECK(memmem(x[0].calls.p, x[0].calls.n, "}|", 2));
        forget(x);
        rig_stop(&r);
    }
}

TEST(server_calls_no_tools_or_one)
{
    server_rig  r;
    rig_reply   a;
    const char *two = "{\"parallel_tool_calls\":%s,\"tools\":[" WEATHER "," CALCULATE
                      "]," USER("What is the time in Paris and in Rome?") "}";
    char body[2048];
    rig_init(&r, t);
    r.engine_opt.n_ctx = 1024;
    rig_start(&r);
    for (int parallel = 0; parallel < 2; parallel++) {
        snprintf(body, sizeof body, two, parallel ? "true" : "false");
        rig_post(&r, chat_path, body, &a);
        const json_value *v = rig_json(&a), *calls = rig_at(v, "choices.0.message.tool_calls");
        CHECK_INT(calls ? calls->n : 0, parallel ? 2 : 1);
        CHECK_STR(rig_str(v, "choices.0.finish_reason"), STR("tool_calls"));
        CHECK(rig_at(v, "choices.0.message.content")->kind == JSON_NULL);
        rig_reply_deinit(&a);
    }
    rig_post(&r, chat_path, "{\"tool_choice\":\"none\"," CALC "}", &a);
    CHECK(!strstr(a.body.p, "tool_calls"));
    CHECK_STR(rig_str(rig_json(&a), "choices.0.finish_reason"), STR("stop"));
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* The answer as it was told up to its end; false: it was not told whole, and does not look so. */
static bool told_whole(rig_reply *a, buf *content, size_t *n_logprobs)
{
    size_t            at = 0;
    str               data;
    const json_value *v;
    bool              done = false, streams = str_is(rig_field(a, "Content-Type"), "text/event-stream");
    *n_logprobs = 0;
    if (a->status != 200 || !a->complete) return false;
    while (!done && (!streams || rig_event(a, &at, &data))) {
        done = !streams || str_is(data, "[DONE]");
        if (streams && done) break;
        if (!json_parse(&v, &a->mem, streams ? data : buf_str(&a->body), NULL, NULL)) return true;
        const json_value *list = rig_at(v, "choices.0.logprobs.content");
        if (!list) list = rig_at(v, "choices.0.logprobs.tokens");
        add(content, rig_str(v, streams ? "choices.0.delta.content" : "choices.0.message.content"));
        add(content, rig_str(v, "choices.0.text"));
        *n_logprobs += list ? list->n : 0;
    }
    return done;
}

TEST_LONG(server_tells_no_answer_that_lost_bytes)
{
    rig_check_lost_bytes(t, chat_path, "\"stop\":\"carry\"," SUM,
                         "\"logprobs\":true,\"top_logprobs\":2,\"stop\":\"carry\"," SUM, told_whole);
}

TEST_LONG(server_tells_no_text_that_lost_bytes)
{
#define TEXT "\"prompt\":\"Once upon a time\",\"max_tokens\":12,\"ignore_eos\":true,\"temperature\":0"
    rig_check_lost_bytes(t, "/v1/completions", TEXT, "\"logprobs\":2,\"stop\":\"qqq\"," TEXT, told_whole);
}

TEST(server_has_room_to_ban_calls)
{
    server_rig r;
    rig_reply  a;
    buf        body;
    rig_init(&r, t);
    rig_start(&r);
    buf_init(&body, 1 << 20);
    for (int n = TANDEM_MAX_BIAS - 1; n <= TANDEM_MAX_BIAS; n++) {
        buf_clear(&body);
        buf_puts(&body, "{\"max_tokens\":1,\"tool_choice\":\"none\",\"logit_bias\":{");
        for (int i = 0; i < n; i++) buf_printf(&body, "%s\"%d\":0", i ? "," : "", 300 + i);
        buf_puts(&body, "}," CALC "}");
        buf_putc(&body, 0);
        rig_post(&r, chat_path, body.p, &a);
        CHECK_INT(a.status, n < TANDEM_MAX_BIAS ? 200 : 400);
        if (n == TANDEM_MAX_BIAS) CHECK_STR(rig_str(rig_json(&a), "error.param"), STR("logit_bias"));
        rig_reply_deinit(&a);
    }
    buf_deinit(&body);
    rig_stop(&r);
}

/* --- refusals -----------------------------------------------------------------------------------*/
static void refused(server_rig *r, const char *path, const char *body, int status, const char *param, const char *words)
{
    test_case *t = r->t;
    rig_reply  a;
    rig_post(r, path, body, &a);
    const json_value *e = rig_at(rig_json(&a), "error");
    CHECK_MSG(a.status == status, "%.100s: %d, expected %d", body, a.status, status);
    CHECK_MSG(e && rig_at(e, "type") && rig_at(e, "code"), "%.100s: no error object", body);
    CHECK_MSG(str_is(rig_str(e, "param"), param), "%.100s: param is '%.*s'", body, STR_ARG(rig_str(e, "param")));
    CHECK_MSG(strstr(a.body.p, words), "%.100s: '%.300s' does not say '%s'", body, a.body.p, words);
    rig_reply_deinit(&a);
}

TEST(server_refuses_what_is_wrong)
{
    server_rig r;
    buf        long_one;
    rig_init(&r, t);
    rig_start(&r);
    refused(&r, chat_path, "", 400, "", "not JSON");
    refused(&r, chat_path, "{\"a\":1,\"a\":2}", 400, "", "not JSON");
    refused(&r, chat_path, "[]", 400, "", "object");
    refused(&r, chat_path, "{}", 400, "messages", "'messages'");
    refused(&r, chat_path, "{\"messages\":[{\"role\":\"robot\",\"content\":\"\"}]}", 400, "messages[0].role",
            "must be system");
    refused(&r, chat_path,
            "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]}",
            400, "messages[0].content[0]", "text only");
    refused(&r, chat_path, "{\"temperature\":-1," SUM "}", 400, "temperature", "from 0 to 100");
    refused(&r, chat_path, "{\"stop\":[1]," SUM "}", 400, "stop", "'stop'");
    refused(&r, chat_path, "{\"stop\":\"\"," SUM "}", 400, "stop", "'stop'");
    refused(&r, chat_path, "{\"logit_bias\":{\"99999999\":1}," SUM "}", 400, "logit_bias", "token id");
    refused(&r, chat_path, "{\"logit_bias\":{\"5\":101}," SUM "}", 400, "logit_bias", "-100 to 100");
    refused(&r, chat_path, "{\"logit_bias\":{\"5\":1,\"05\":1}," SUM "}", 400, "logit_bias", "twice");
    refused(&r, chat_path, "{\"top_logprobs\":3," SUM "}", 400, "top_logprobs", "logprobs");
    refused(&r, chat_path, "{\"tool_choice\":{\"type\":\"function\"}," CALC "}", 400, "tool_choice", "name a function");
    refused(&r, chat_path, "{\"tool_choice\":7," CALC "}", 400, "tool_choice", "auto, none, required");
    refused(&r, chat_path, "{\"reasoning_effort\":\"much\"," SUM "}", 400, "reasoning_effort", "high");
    refused(&r, chat_path, "{\"speculative\":\"fast\"," SUM "}", 400, "speculative", "fast");
    refused(&r, chat_path, "{\"speculative\":{\"method\":\"fast\"}," SUM "}", 400, "speculative.method", "fast");
    refused(&r, chat_path, "{\"speculative\":{\"draft_max\":65}," SUM "}", 400, "speculative.draft_max", "1 to 64");
    refused(&r, chat_path, "{\"tools\":[{\"type\":\"function\"}]," SUM "}", 400, "tools[0].function", "object");
    refused(&r, text_path, "{}", 400, "prompt", "'prompt'");
    refused(&r, text_path, "{\"prompt\":[]}", 400, "prompt", "'prompt'");
    refused(&r, text_path, "{\"prompt\":[1,\"x\",[2]]}", 400, "prompt", "'prompt'");
    refused(&r, text_path, "{\"prompt\":[-1]}", 400, "prompt", "token id");
    refused(&r, text_path, "{\"prompt\":[99999999]}", 400, "prompt", "token id");
    refused(&r, text_path, "{\"prompt\":[[]]}", 400, "prompt", "empty");
    refused(&r, text_path, "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":32}", 400, "n", "64");
    buf_init(&long_one, 1 << 20);
    buf_puts(&long_one, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 600; i++) buf_puts(&long_one, "goat ");
    buf_puts(&long_one, "\"}]}");
    buf_putc(&long_one, 0);
    refused(&r, chat_path, long_one.p, 400, "messages",
            "This model's maximum context length is 512 tokens. However, your messages resulted in ");
    refused(&r, chat_path, long_one.p, 400, "messages", " tokens. Please reduce the length of the messages.\"");
    refused(&r, chat_path, long_one.p, 400, "messages", "\"code\":\"context_length_exceeded\"");
    buf_deinit(&long_one);
    rig_wait_idle(&r);
    rig_stop(&r);
}

TEST(server_routes)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    r.opt.cors   = (const char *const[]){"https://example.org"};
    r.opt.n_cors = 1;
    rig_start(&r);
    rig_ask(&r, "POST", "/chat/completions?beta=true", "X-Request-Id: my-id.7\r\n", "{\"max_tokens\":1," SUM "}", &a);
    CHECK_INT(a.status, 200);
    CHECK_STR(rig_field(&a, "X-Request-Id"), STR("my-id.7"));
    CHECK(!rig_field(&a, "Access-Control-Allow-Origin").s);
    CHECK_STR(rig_field(&a, "Vary"), STR("Origin"));
    CHECK_STR(rig_str(rig_json(&a), "choices.0.finish_reason"), STR("length"));
    rig_reply_deinit(&a);
    rig_ask(&r, "POST", "/v1/chat/completions", "X-Request-Id: no good\r\nOrigin: https://example.org\r\n", "{", &a);
    CHECK_INT(a.status, 400);
    CHECK(str_starts(rig_field(&a, "X-Request-Id"), "req_"));
    CHECK_STR(rig_field(&a, "Access-Control-Allow-Origin"), STR("https://example.org"));
    rig_reply_deinit(&a);
    rig_ask(&r, "OPTIONS", "/v1/chat/completions", "Origin: https://example.org\r\n", "", &a);
    CHECK_INT(a.status, 204);
    CHECK(strstr(a.head.p, "Authorization"));
    CHECK_STR(rig_field(&a, "Vary"), STR("Origin"));
    rig_reply_deinit(&a);
    rig_ask(&r, "OPTIONS", "/v1/chat/completions",
            "Origin: https://example.org\r\nAccess-Control-Request-Headers: authorization, x-stainless-os\r\n", "", &a);
    CHECK_STR(rig_field(&a, "Access-Control-Allow-Headers"), STR("authorization, x-stainless-os"));
    rig_reply_deinit(&a);
    rig_ask(&r, "OPTIONS", "/v1/chat/completions",
            "Origin: https://example.org\r\nAccess-Control-Request-Headers: x; y=\"z\"\r\n", "", &a);
    CHECK(str_starts(rig_field(&a, "Access-Control-Allow-Headers"), "Authorization, "));
    rig_reply_deinit(&a);
    rig_ask(&r, "OPTIONS", "/v1/chat/completions", "Origin: https://other.org\r\n", "", &a);
    CHECK_INT(a.status, 403);
    rig_reply_deinit(&a);
    rig_ask(&r, "GET", "/v1/chat/completions", "", "", &a);
    CHECK_INT(a.status, 405);
    CHECK_STR(rig_field(&a, "Allow"), STR("POST"));
    rig_reply_deinit(&a);
    rig_ask(&r, "GET", "/v1/nothing", "", "", &a);
    CHECK_INT(a.status, 404);
    CHECK_STR(rig_str(rig_json(&a), "error.code"), STR("not_found"));
    rig_reply_deinit(&a);
    rig_stop(&r);
}
