/* Anthropic's Messages API over HTTP: a stream's events, joined, are the whole reply, byte for byte; errors have its shape. */
#include "../sched/engine_rig.h"
#include "server_rig.h"

#include <sys/socket.h>
#include <unistd.h>

#define USER(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define SUM        "\"max_tokens\":200," USER("What is 27 plus 58?")
#define TOOLS                                                                                                          \
    "\"tools\":[{\"name\":\"get_time\",\"description\":\"Time in a city\",\"input_schema\":{\"type\":\"object\","      \
    "\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}},{\"name\":\"calculate\","               \
    "\"description\":\"Evaluate an arithmetic expression.\",\"input_schema\":{\"type\":\"object\",\"properties\":"     \
    "{\"expression\":{\"type\":\"string\"}},\"required\":[\"expression\"]}}],"
#define THINK "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024},"

static const char path[] = "/v1/messages";

typedef struct {
    buf     text; /* a line for each block: its type, and what it says */
    str     reason, sequence;
    int64_t input, output, thinking;
} told;

static void told_init(told *x)
{
    *x = (told){0};
    buf_init(&x->text, 1 << 20);
}

static void add(buf *to, str s) { buf_put(to, s.s, s.n); }

static void add_head(test_case *t, told *x, const json_value *block)
{
    str id = rig_str(block, "id");
    buf_printf(&x->text, "\n[%.*s %.*s]", STR_ARG(rig_str(block, "type")), STR_ARG(rig_str(block, "name")));
    CHECK((str_starts(id, "toolu_") && id.n == 30) == str_is(rig_str(block, "type"), "tool_use"));
}

static void add_texts(told *x, const json_value *v)
{
    add(&x->text, rig_str(v, "thinking"));
    add(&x->text, rig_str(v, "signature"));
    add(&x->text, rig_str(v, "text"));
    add(&x->text, rig_str(v, "partial_json"));
}

static void take_end(told *x, const json_value *stop, const json_value *usage)
{
    x->reason   = rig_str(stop, "stop_reason");
    x->sequence = rig_str(stop, "stop_sequence");
    x->input    = rig_int(usage, "input_tokens") + rig_int(usage, "cache_read_input_tokens");
    x->output   = rig_int(usage, "output_tokens");
    x->thinking = rig_int(usage, "output_tokens_details.thinking_tokens");
}

/* False: it was not told to its end, and does not look so. */
static bool join_whole(test_case *t, rig_reply *r, told *x)
{
    const json_value *v = r->status == 200 && r->complete ? rig_json(r) : NULL, *list = rig_at(v, "content");
    if (!list) return false;
    for (size_t i = 0; i < list->n; i++) {
        const json_value *b = &list->item[i], *input = rig_at(b, "input");
        json_writer       w;
        add_head(t, x, b);
        add_texts(x, b);
        json_writer_init(&w, &x->text);
        if (input) json_put_value(&w, input);
    }
    take_end(x, v, rig_at(v, "usage"));
    return true;
}

static bool join_stream(test_case *t, rig_reply *r, told *x)
{
    size_t            at = 0;
    str               data;
    const json_value *v;
    int               n_blocks = 0;
    bool              open = false, begun = false, over = false;
    if (r->status != 200 || !r->complete) return false;
    while (rig_event(r, &at, &data)) {
        if (!CHECK(json_parse(&v, &r->mem, data, NULL, NULL))) return true;
        str type = rig_str(v, "type");
        CHECK(!over && begun != str_is(type, "message_start"));
        begun = true;
        if (str_is(type, "content_block_start")) {
            CHECK(!open && rig_int(v, "index") == n_blocks);
            add_head(t, x, rig_at(v, "content_block"));
            open = true;
        } else if (str_is(type, "content_block_delta")) {
            CHECK(open && rig_int(v, "index") == n_blocks);
            add_texts(x, rig_at(v, "delta"));
        } else if (str_is(type, "content_block_stop")) {
            CHECK(open && rig_int(v, "index") == n_blocks++);
            open = false;
        } else if (str_is(type, "message_delta")) {
            CHECK(!open);
            take_end(x, rig_at(v, "delta"), rig_at(v, "usage"));
        }
        over = str_is(type, "message_stop");
    }
    return over;
}

static void both_ways(server_rig *r, const char *members, told *whole)
{
    test_case *t = r->t;
    rig_reply  a, b;
    told       x;
    char       body[2048];
    told_init(whole);
    told_init(&x);
    snprintf(body, sizeof body, "{%s}", members);
    rig_post(r, path, body, &a);
    CHECK_MSG(join_whole(t, &a, whole), "%.*s", (int)a.body.n, a.body.p);
    snprintf(body, sizeof body, "{\"stream\":true,%s}", members);
    rig_post(r, path, body, &b);
    CHECK_MSG(join_stream(t, &b, &x), "%.*s", (int)b.body.n, b.body.p);
    CHECK_STR(rig_field(&b, "Content-Type"), STR("text/event-stream"));
    CHECK(!strstr(b.body.p, "[DONE]"));
    CHECK_MSG(str_eq(buf_str(&x.text), buf_str(&whole->text)), "'%.*s' in a stream and '%.*s' whole", (int)x.text.n,
              x.text.p, (int)whole->text.n, whole->text.p);
    CHECK_STR(x.reason, whole->reason);
    CHECK_STR(x.sequence, whole->sequence);
    CHECK(x.input == whole->input && x.output == whole->output && x.thinking == whole->thinking);
    CHECK(whole->input > 0);
    buf_printf(&whole->text, "\n%.*s %.*s", STR_ARG(whole->reason), STR_ARG(whole->sequence));
    buf_deinit(&x.text);
    rig_reply_deinit(&a);
    rig_reply_deinit(&b);
}

TEST(server_tells_messages_in_events_and_whole)
{
    static const struct {
        const char *members, *text;
    } cases[] = {
        {SUM, "\n[text ]27 + 58\nones: 7 + 8 = 15, write 5, carry 1\ntens: 2 + 5 + 1 = 8, write 8\nThe answer is 85."
              "\nend_turn "},
        {THINK SUM, "\n[thinking ]27 + 58\nones: 7 + 8 = 15, write 5, carry 1\ntens: 2 + 5 + 1 = 8, write 8dGFuZGVt"
                    "\n[text ]The answer is 85.\nend_turn "},
        {"\"stop_sequences\":[\"zz\",\"answer\"]," THINK SUM,
         "\n[thinking ]27 + 58\nones: 7 + 8 = 15, write 5, carry 1\ntens: 2 + 5 + 1 = 8, write 8dGFuZGVt"
         "\n[text ]The \nstop_sequence answer"},
        {"\"max_tokens\":5," USER("What is 27 plus 58?"), "\n[text ]27 + 5\nmax_tokens "},
        {"\"max_tokens\":0," USER("Hi"), "\nmax_tokens "},
        {TOOLS "\"max_tokens\":100," USER("What is the time in Paris and in Rome?"),
         "\n[tool_use get_time]{\"city\":\"Paris\"}\n[tool_use get_time]{\"city\":\"Rome\"}\ntool_use "},
        {"\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true}," TOOLS
         "\"max_tokens\":100," USER("What is the time in Paris and in Rome?"),
         "\n[tool_use get_time]{\"city\":\"Paris\"}\ntool_use "},
        {"\"temperature\":30,\"seed\":3,\"ignore_eos\":true,\"max_tokens\":300," USER("Hi"), NULL},
    };
    static const double wake_ms[] = {0, 500};
    for (size_t k = 0; k < COUNT(wake_ms); k++) {
        server_rig r;
        told       x;
        rig_init(&r, t);
        r.engine_opt.n_ctx   = 1024;
        r.engine_opt.wake_ms = wake_ms[k];
        rig_start(&r);
        for (size_t i = 0; i < COUNT(cases); i++) {
            both_ways(&r, cases[i].members, &x);
            if (cases[i].text) CHECK_STR(buf_str(&x.text), str_of(cases[i].text));
            buf_deinit(&x.text);
        }
        rig_wait_idle(&r);
        rig_stop(&r);
    }
}

TEST_LONG(server_tells_no_message_that_lost_bytes)
{
    static const char members[] = "\"stop_sequences\":[\"carry\"]," THINK SUM "}";
    server_rig                                                            r;
    rig_reply                                                             a;
    told                                                                  want, got;
    char                                                                  body[512];
    int                                                                   failed = 0;
    rig_init(&r, t);
    rig_start(&r);
    both_ways(&r, "\"stop_sequences\":[\"carry\"]," THINK SUM, &want);
    for (long nth = 1; nth <= 200; nth++) {
        bool streams = nth % 2;
        snprintf(body, sizeof body, "{\"stream\":%s,%s", streams ? "true" : "false", members);
        rig_post_with_fault(&r, path, body, 1 + nth / 2, &a);
        told_init(&got);
        bool whole = streams ? join_stream(t, &a, &got) : join_whole(t, &a, &got);
        if (whole) buf_printf(&got.text, "\n%.*s %.*s", STR_ARG(got.reason), STR_ARG(got.sequence));
        CHECK_MSG(!whole || str_eq(buf_str(&got.text), buf_str(&want.text)), "%ld: '%.*s'", nth, (int)got.text.n,
                  got.text.p);
        failed += !whole;
        buf_deinit(&got.text);
        rig_reply_deinit(&a);
    }
    CHECK(failed > 5);
    buf_deinit(&want.text);
    rig_wait_idle(&r);
    rig_stop(&r);
}

static void refused(server_rig *r, const char *at, const char *body, int status, const char *type, const char *words)
{
    test_case *t = r->t;
    rig_reply  a;
    rig_post(r, at, body, &a);
    const json_value *v = rig_json(&a);
    CHECK_MSG(a.status == status, "%.100s: %d, expected %d", body, a.status, status);
    CHECK_STR(rig_str(v, "type"), STR("error"));
    CHECK_STR(rig_str(v, "error.type"), str_of(type));
    CHECK_MSG(strstr(a.body.p, words), "%.100s: '%.300s' does not say '%s'", body, a.body.p, words);
    CHECK_STR(rig_field(&a, "request-id"), rig_field(&a, "X-Request-Id"));
    CHECK_INT(rig_field(&a, "Retry-After").n, status == 429 || status == 529 ? 1 : 0);
    rig_reply_deinit(&a);
}

TEST(server_refuses_messages_in_their_shape)
{
    static const char count[] = "/v1/messages/count_tokens";
    server_rig        r;
    rig_reply         a;
    buf               long_one;
    rig_init(&r, t);
    rig_start(&r);
    refused(&r, path, "", 400, "invalid_request_error", "not JSON");
    refused(&r, path, "{" USER("Hi") "}", 400, "invalid_request_error", "'max_tokens' is missing");
    refused(&r, path, "{\"max_tokens\":1}", 400, "invalid_request_error", "'messages'");
    refused(&r, path, "{\"stop_sequences\":[\"\"]," SUM "}", 400, "invalid_request_error", "'stop_sequences'");
    refused(&r, path, "{\"temperature\":-1," SUM "}", 400, "invalid_request_error", "from 0 to 100");
    refused(&r, path, "{\"thread\":{\"type\":\"create\"}," SUM "}", 400, "invalid_request_error",
            "\"details\":{\"error_code\":\"thread_unsupported_request\"}");
    refused(&r, count, "{}", 400, "invalid_request_error", "'messages'");
    refused(&r, count, "{\"thinking\":{\"type\":\"x\"}," USER("Hi") "}", 400, "invalid_request_error", "adaptive");
    buf_init(&long_one, 1 << 20);
    buf_puts(&long_one, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 600; i++) buf_puts(&long_one, "goat ");
    buf_puts(&long_one, "\"}]}");
    buf_putc(&long_one, 0);
    refused(&r, path, long_one.p, 400, "invalid_request_error", "\"prompt is too long: ");
    refused(&r, path, long_one.p, 400, "invalid_request_error", " tokens > 511 maximum\"");
    rig_post(&r, count, long_one.p, &a);
    CHECK(a.status == 200 && rig_int(rig_json(&a), "input_tokens") > 600);
    rig_reply_deinit(&a);
    buf_deinit(&long_one);
    rig_wait_idle(&r);
    rig_stop(&r);
}

TEST(server_counts_what_messages_use)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    rig_start(&r);
    for (int i = 0; i < 2; i++) {
        rig_post(&r, path, "{" SUM "}", &a);
        const json_value *u   = rig_at(rig_json(&a), "usage");
        int64_t           hit = rig_int(u, "cache_read_input_tokens"), run = rig_int(u, "input_tokens");
        CHECK(i ? hit >= 16 : hit == 0);
        CHECK_INT(hit + run, 23);
        CHECK_INT(rig_int(u, "cache_creation_input_tokens"), 0);
        rig_reply_deinit(&a);
    }
    rig_post(&r, "/v1/messages/count_tokens?beta=true", "{" USER("What is 27 plus 58?") "}", &a);
    CHECK_STR(buf_str(&a.body), STR("{\"input_tokens\":23}"));
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* With no key, with a queue that is full, after too long a wait. */
TEST(server_has_no_time_for_messages)
{
    static const char story[] =
        "{\"max_tokens\":3500,\"ignore_eos\":true,\"stream\":true," USER("Tell me a story.") "}";
    for (int waits = 0; waits < 2; waits++) {
        server_rig r;
        char       head[16];
        rig_init(&r, t);
        r.engine_opt.max_lanes = 1;
        r.engine_opt.n_ctx     = 4096;
        nano_setting(&r.engine_opt, waits ? "queue_timeout_ms" : "queue_max", waits ? "100" : "0");
        rig_start(&r);
        int fd = rig_connect(&r);
        rig_send(fd, "POST", path, "", story);
        CHECK(recv(fd, head, sizeof head, MSG_WAITALL) == sizeof head && !memcmp(head, "HTTP/1.1 200", 12));
        refused(&r, path, "{" SUM "}", waits ? 529 : 429, waits ? "overloaded_error" : "rate_limit_error", "busy");
        close(fd);
        rig_stop(&r);
    }
    server_rig r;
    rig_init(&r, t);
    r.opt.api_key = "sesame";
    rig_start(&r);
    refused(&r, path, "{" SUM "}", 401, "authentication_error", "key");
    rig_stop(&r);
}

TEST_LONG(server_pings_and_fails_in_events)
{
    for (int fails = 0; fails < 2; fails++) {
        server_rig r;
        rig_reply  a;
        char       body[256];
        rig_init(&r, t);
        r.engine_opt.n_ctx = 4096;
        if (fails)
            nano_setting(&r.engine_opt, "request_timeout_ms", "50");
        else
            r.opt.ping_s = 0;
        rig_start(&r);
        snprintf(body, sizeof body,
                 "{\"max_tokens\":%d,\"ignore_eos\":true,\"stream\":true," USER("Tell me a story.") "}",
                 fails       ? 3900
                 : NANO_SLOW ? 200
                             : 3000);
        rig_post(&r, path, body, &a);
        CHECK_INT(a.complete, !fails);
        if (!fails) CHECK(strstr(a.body.p, "\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n"));
        if (fails && a.status == 200) { /* else the time was over before it began */
            const char *end = strstr(a.body.p, "event: message_delta\n");
            CHECK(end && strstr(end, "\"stop_reason\":null") && strstr(end, "\"output_tokens\":"));
            CHECK(end && strstr(end, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"timeout_error\""));
        }
        rig_reply_deinit(&a);
        rig_stop(&r);
    }
}
