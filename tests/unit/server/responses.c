/* POST /v1/responses without a model: bodies become conversations, scripted answers become items. */
#include "marked_text.h"
#include "test.h"

#include "base/fault.h"
#include "server/reply.h"
#include "server/responses.h"

/* --- bodies -------------------------------------------------------------------------------------*/
static bool open_body(server_request *q, const char *body, server_error *why)
{
    buf b;
    err e = {0};
    buf_init(&b, 1 << 26);
    buf_puts(&b, body);
    request_init(q, FIELD_RESPONSES, &b);
    *why = (server_error){0};
    if (!json_parse(&q->root, &q->mem, buf_str(&q->body), NULL, &e)) return error_set(why, 400, "", NULL, "%s", e.text);
    return fields_read(&q->f, &fields_generate, q->root, FIELD_RESPONSES, why) && responses_translate(q, why) &&
           responses_read(q, why);
}

/* The prompt without its first marker. */
static void renders(test_case *t, const char *body, const char *want)
{
    server_request q;
    server_error   why;
    chat_options   o = {.format = &gemma4_format, .revision = GEMMA4_VLLM_0617, .add_generation_prompt = true};
    buf            text;
    err            e = {0};
    buf_init(&text, 1 << 26);
    if (CHECK_MSG(open_body(&q, body, &why), "%.200s: %s", body, why.message)) {
        CHECK_MSG(chat_render_text(&text, q.chat, &o, &e), "%.200s: %s", body, e.text);
        CHECK_STR(((str){text.p + 5, text.n - 5}), str_of(want));
    }
    buf_deinit(&text);
    request_forget(&q);
}

#define IN(items)  "{\"input\":[" items "]}"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASKED      "<|turn>user\nHi<turn|>\n<|turn>model\n"
#define CALL(n, id)                                                                                                    \
    "{\"type\":\"function_call\",\"call_id\":\"" id "\",\"name\":\"" n "\",\"arguments\":\"{\\\"a\\\":1}\"}"
#define OUT(id, x) "{\"type\":\"function_call_output\",\"call_id\":\"" id "\",\"output\":" x "}"
#define SAID(text)                                                                                                     \
    "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"" text "\"}]}"
#define THOUGHT(has) "{\"type\":\"reasoning\",\"id\":\"rs_1\"," has "}"

TEST(responses_are_conversations)
{
    renders(t, "{\"input\":\"Hi\"}", ASKED);
    renders(t, IN(USER("Hi")), ASKED);
    renders(t,
            IN("{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"H\"},"
               "{\"type\":\"input_text\",\"text\":\"i\"}]}"),
            ASKED);
    renders(t, "{\"instructions\":\"A\",\"input\":\"Hi\"}", "<|turn>system\nA<turn|>\n" ASKED);
    renders(
        t,
        "{\"instructions\":\"A\",\"input\":[{\"role\":\"developer\",\"content\":[{\"type\":\"input_text\",\"text\":"
        "\"B\"},{\"type\":\"input_text\",\"text\":\"C\"}]},{\"role\":\"system\",\"content\":\"D\"}," USER("Hi") "]}",
        "<|turn>system\nA\n\nBC\n\nD<turn|>\n" ASKED);
    renders(t, IN(USER("Hi") "," SAID("Yes") "," USER("So")),
            "<|turn>user\nHi<turn|>\n<|turn>model\nYes<turn|>\n<|turn>user\nSo<turn|>\n<|turn>model\n");
    renders(
        t,
        IN(USER("Hi") ",{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"No\"}]}," USER("So")),
        "<|turn>user\nHi<turn|>\n<|turn>model\nNo<turn|>\n<|turn>user\nSo<turn|>\n<|turn>model\n");
}

TEST(responses_join_what_was_one_turn)
{
    static const char called[] = "<|turn>user\nHi<turn|>\n<|turn>model\n<|tool_call>call:f{a:1}<tool_call|>"
                                 "<|tool_call>call:g{a:1}<tool_call|><|tool_response>response:f{value:<|\"|>x<|\"|>}"
                                 "<tool_response|><|tool_response>response:g{value:<|\"|>y<|\"|>}<tool_response|>";
    renders(t, IN(USER("Hi") "," CALL("f", "1") "," CALL("g", "2") "," OUT("1", "\"x\"") "," OUT("2", "\"y\"")),
            called);
    renders(t,
            IN(USER("Hi") "," CALL("f", "1") "," CALL("g", "2") "," OUT("1", "\"x\"") "," OUT(
                "2", "[{\"type\":\"input_text\",\"text\":\"y\"}]")),
            called);
    renders(t,
            IN(USER("Hi") "," THOUGHT("\"content\":[{\"type\":\"reasoning_text\",\"text\":\"T\"}]") "," CALL(
                "f", "1") "," OUT("1", "\"x\"")),
            "<|turn>user\nHi<turn|>\n<|turn>model\n<|channel>thought\nT\n<channel|><|tool_call>call:f{a:1}<tool_call|>"
            "<|tool_response>response:f{value:<|\"|>x<|\"|>}<tool_response|>");
    /* what a tool shows and the model cannot see is said */
    renders(t, IN(USER("Hi") "," CALL("f", "1") "," OUT("1", "[{\"type\":\"input_file\",\"file_url\":\"data:\"}]")),
            "<|turn>user\nHi<turn|>\n<|turn>model\n<|tool_call>call:f{a:1}<tool_call|><|tool_response>response:f{value:"
            "<|\"|>(an image or a file, which cannot be shown here)<|\"|>}<tool_response|>");
}

TEST(responses_take_thoughts_as_they_were_told)
{
    static const char *const same[] = {
        THOUGHT("\"content\":[{\"type\":\"reasoning_text\",\"text\":\"T\"}]"),
        THOUGHT("\"encrypted_content\":\"" RESPONSES_SEAL "T\""),
        THOUGHT("\"summary\":[{\"type\":\"summary_text\",\"text\":\"T\"}]"),
        THOUGHT("\"summary\":[{\"type\":\"summary_text\",\"text\":\"S\"}],\"encrypted_content\":\"" RESPONSES_SEAL
                "T\""),
    };
    char body[1024];
    for (size_t i = 0; i < COUNT(same); i++) {
        snprintf(body, sizeof body, "{\"input\":[%s,%s,%s,%s]}", USER("Hi"), same[i], CALL("f", "1"),
                 OUT("1", "\"x\""));
        renders(t, body,
                "<|turn>user\nHi<turn|>\n<|turn>model\n<|channel>thought\nT\n<channel|><|tool_call>call:f{a:1}"
                "<tool_call|><|tool_response>response:f{value:<|\"|>x<|\"|>}<tool_response|>");
    }
    snprintf(body, sizeof body, "{\"input\":[%s,%s,%s,%s]}", USER("Hi"),
             THOUGHT("\"encrypted_content\":\"gAAAAABo\",\"summary\":[]"), CALL("f", "1"), OUT("1", "\"x\""));
    renders(t, body,
            "<|turn>user\nHi<turn|>\n<|turn>model\n<|tool_call>call:f{a:1}<tool_call|><|tool_response>response:f{value:"
            "<|\"|>x<|\"|>}<tool_response|>");
}

/* In one item and in a row of them: memory grows with the body, not with its square. */
TEST(responses_join_many_thoughts)
{
    static const char *const form[][3] = {
        {"{\"type\":\"reasoning\",\"content\":[", "{\"text\":\"some thought\"}", "]}"},
        {"", THOUGHT("\"content\":[{\"text\":\"some thought\"}]"), ""},
        {"", THOUGHT("\"summary\":[{\"text\":\"some thought\"}]"), ""},
    };
    enum { N = 12000 };
    for (size_t k = 0; k < COUNT(form); k++) {
        server_request q;
        server_error   why;
        buf            b;
        buf_init(&b, 1 << 26);
        buf_puts(&b, "{\"input\":[");
        buf_puts(&b, form[k][0]);
        for (int i = 0; i < N; i++) {
            buf_puts(&b, i ? "," : "");
            buf_puts(&b, form[k][1]);
        }
        buf_puts(&b, form[k][2]);
        buf_puts(&b, "," CALL("f", "1") "," OUT("1", "\"x\"") "]}");
        buf_putc(&b, 0);
        if (CHECK_MSG(open_body(&q, b.p, &why), "%s", why.message)) {
            CHECK(q.chat->n == 2 && q.chat->message[0].reasoning.n == N * strlen("some thought\n") - 1);
            CHECK_MSG(q.mem.used < 40 << 20, "%zu bytes", q.mem.used);
        }
        request_forget(&q);
        buf_deinit(&b);
    }
}

TEST(responses_know_other_calls)
{
    renders(t,
            IN(USER("Hi") ",{\"type\":\"custom_tool_call\",\"call_id\":\"1\",\"name\":\"p\",\"input\":\"a b\"},"
                          "{\"type\":\"custom_tool_call_output\",\"call_id\":\"1\",\"output\":\"x\"}"),
            "<|turn>user\nHi<turn|>\n<|turn>model\n<|tool_call>call:p{input:<|\"|>a b<|\"|>}<tool_call|>"
            "<|tool_response>response:p{value:<|\"|>x<|\"|>}<tool_response|>");
    renders(
        t,
        IN(USER("Hi") ",{\"type\":\"function_call\",\"call_id\":\"1\",\"namespace\":\"s\",\"name\":\"f\","
                      "\"arguments\":\"\"}," OUT("1", "\"x\"")),
        "<|turn>user\nHi<turn|>\n<|turn>model\n<|tool_call>call:s.f{}<tool_call|><|tool_response>response:s.f{value:"
        "<|\"|>x<|\"|>}<tool_response|>");
    renders(t,
            IN(USER("Hi") ",{\"type\":\"local_shell_call\",\"call_id\":\"1\",\"action\":{\"command\":[\"ls\"]}},"
                          "{\"type\":\"local_shell_call_output\",\"id\":\"1\",\"output\":\"x\"}"),
            "<|turn>user\nHi<turn|>\n<|turn>model\n<|tool_call>call:local_shell{command:[<|\"|>ls<|\"|>]}<tool_call|>"
            "<|tool_response>response:local_shell{value:<|\"|>x<|\"|>}<tool_response|>");
    renders(t, IN("{\"type\":\"web_search_call\",\"id\":\"1\"},{\"type\":\"compaction\"}," USER("Hi")), ASKED);
}

static void refused(test_case *t, const char *body, const char *param, const char *words)
{
    server_request q;
    server_error   why;
    CHECK_MSG(!open_body(&q, body, &why), "%.200s is taken", body);
    CHECK_INT(why.status, 400);
    CHECK_MSG(!strcmp(why.param, param), "%.200s: the error is about '%s'", body, why.param);
    CHECK_MSG(strstr(why.message, words), "%.200s: '%s' does not say '%s'", body, why.message, words);
    request_forget(&q);
}

TEST(responses_refuse_by_name)
{
    refused(t, "{}", "input", "a text, or a list");
    refused(t, "{\"input\":{}}", "input", "a text, or a list");
    refused(t, "{\"input\":[]}", "input", "a text, or a list");
    refused(t, IN("7"), "input[0]", "a type, or with a role");
    refused(t, IN("{}"), "input[0]", "a type, or with a role");
    refused(t, IN(USER("a") ",{\"role\":\"tool\",\"content\":\"\"}"), "input[1].role", "user, assistant");
    refused(t, IN("{\"role\":\"user\",\"content\":7}"), "input[0].content", "a list of parts");
    refused(t, IN("{\"role\":\"user\",\"content\":[7]}"), "input[0].content[0].type", "input_text");
    refused(t, IN("{\"role\":\"user\",\"content\":[{\"type\":\"input_text\"}]}"), "input[0].content[0].text", "string");
    refused(t, IN("{\"role\":\"user\",\"content\":[{\"type\":\"input_file\"}]}"), "input[0].content[0]", "files");
    refused(t, IN("{\"type\":\"item_reference\",\"id\":\"x\"}"), "input[0].type", "nothing is stored");
    refused(t, IN("{\"type\":\"function_call\",\"arguments\":\"{}\"}"), "input[0].name", "name");
    refused(t, IN("{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":{}}"), "input[0].arguments", "string");
    refused(t, IN("{\"type\":\"custom_tool_call\",\"name\":\"f\"}"), "input[0].input", "string");
    refused(t, IN("{\"type\":\"local_shell_call\"}"), "input[0].action", "object");
    refused(t, IN("{\"type\":\"function_call_output\",\"output\":\"x\"}"), "input[0].call_id", "of a call");
    refused(t, IN("{\"type\":\"function_call_output\",\"call_id\":\"1\"}"), "input[0].output", "a list of parts");
    refused(t, "{\"input\":\"a\",\"tools\":[{\"type\":\"function\"}]}", "tools", "no name");
    refused(t, "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":7}]}", "tools",
            "schema");
    refused(t, "{\"input\":\"a\",\"tool_choice\":{\"type\":\"web_search\"}}", "tool_choice", "auto, none");
    refused(t, "{\"input\":\"a\",\"tool_choice\":{\"type\":\"allowed_tools\"}}", "tool_choice", "list");
    refused(t, "{\"input\":\"a\",\"previous_response_id\":\"x\"}", "previous_response_id", "nothing is stored");
    refused(t, "{\"input\":\"a\",\"conversation\":{}}", "conversation", "nothing is stored");
    refused(t, "{\"input\":\"a\",\"prompt\":{}}", "prompt", "nothing is stored");
    refused(t, "{\"input\":\"a\",\"background\":true}", "background", "only be false");
}

TEST(responses_speak_of_their_own_fields)
{
    server_request q;
    server_error   why;
    CHECK(
        open_body(&q,
                  "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{}}},"
                  "\"tool_choice\":{\"type\":\"function\",\"name\":\"g\"},\"tools\":[{\"type\":\"namespace\",\"name\":"
                  "\"s\",\"tools\":[{\"type\":\"function\",\"name\":\"g\"}]}]}",
                  &why));
    const json_value *schema = json_get(q.f.response_format, "json_schema");
    const json_value *named  = json_get(json_get(q.f.tool_choice, "function"), "name");
    CHECK(json_get(schema, "schema") && json_get(schema, "name"));
    CHECK(named && str_is(named->s, "s.g"));
    CHECK(str_is(json_get(q.f.response_format, "type")->s, "json_schema"));
    CHECK(str_is(json_get(q.f.tool_choice, "type")->s, "function"));
    request_forget(&q);
}

TEST(responses_bound_calls_and_tools)
{
    buf b;
    buf_init(&b, 1 << 26);
    buf_puts(&b, "{\"input\":[" USER("Hi"));
    for (int i = 0; i < CHAT_MAX_CALLS + 1; i++) buf_puts(&b, "," CALL("f", "1"));
    buf_puts(&b, "]}");
    buf_putc(&b, 0);
    refused(t, b.p, "input[257]", "more than 256 calls");
    buf_clear(&b);
    buf_puts(&b, "{\"input\":\"Hi\",\"tools\":[{\"type\":\"namespace\",\"name\":\"s\",\"tools\":[{\"type\":\"web\"}");
    for (int i = 0; i < 1025; i++) buf_puts(&b, ",{\"type\":\"function\",\"name\":\"f\"}");
    buf_puts(&b, "]}]}");
    buf_putc(&b, 0);
    refused(t, b.p, "tools", "more than 1024");
    buf_deinit(&b);
}

/* --- answers ------------------------------------------------------------------------------------*/
typedef struct {
    server_request q;
    reply          r;
    server_choice  c;
    tandem_result  result;
    arena          mem;
} play;

/* An answer as the model writes it, in pieces of so many bytes; what was made is in r.out. False: some of it was lost. */
static bool play_on(play *p, const char *text, bool stream, size_t piece, tandem_finish finish)
{
    marked_text m;
    p->result     = (tandem_result){.finish = finish};
    p->q.f.stream = stream;
    p->q.format   = &gemma4_format;
    reply_init(&p->r, &reply_responses, &p->q, NULL, "m");
    if (!choice_init(&p->c, &p->r, 0)) return false;
    marked_text_init(&m, p->c.events.parser);
    if (stream) reply_begin(&p->c);
    for (size_t at = 0, n = strlen(text); at < n; at += piece) {
        marked_text_put(&m, (str){text + at, n - at < piece ? n - at : piece});
        if (stream) p->r.format->flush(&p->c);
    }
    p->c.lost |= !marked_text_end(&m);
    p->c.lost |= !chat_stream_finish(&p->c.events, NULL);
    p->c.result = &p->result;
    if (stream) {
        reply_end(&p->c, &p->c, 1, true);
        p->r.format->done(&p->r, &p->c, 1);
    } else {
        p->r.format->put_whole(&p->r, &p->c, 1);
    }
    /* all ids have this in them */
    str id = buf_str(&p->r.tail);
    for (char *at = p->r.out.p, *end = at + p->r.out.n;
         id.n && at && (at = memmem(at, (size_t)(end - at), id.s, id.n));)
        memset(at, 'X', id.n);
    return !reply_lost(&p->r, &p->c, 1);
}

static void play_answer(test_case *t, play *p, const char *body, const char *text, bool stream, size_t piece,
                        tandem_finish finish)
{
    server_error why;
    *p = (play){0};
    CHECK_MSG(open_body(&p->q, body, &why), "%s", why.message);
    arena_init(&p->mem, 1 << 26);
    CHECK(play_on(p, text, stream, piece, finish));
}

static void play_off(play *p)
{
    choice_deinit(&p->c);
    reply_deinit(&p->r);
}

static void play_end(play *p)
{
    play_off(p);
    arena_deinit(&p->mem);
    request_forget(&p->q);
}

/* The last event's data. */
static str last_event(const buf *out)
{
    str         all  = {out->p, out->n - 2};
    const char *from = all.s;
    for (const char *at; (at = memmem(from, (size_t)(all.s + all.n - from), "\ndata: ", 7));) from = at + 7;
    return (str){from, (size_t)(all.s + all.n - from)};
}

static void put_output(test_case *t, play *p, str json, const char *path, buf *out)
{
    const json_value *v;
    json_writer       w;
    if (!CHECK_MSG(json_parse(&v, &p->mem, json, NULL, NULL), "no JSON: %.*s", STR_ARG(json))) return;
    if (path) v = json_get(v, path);
    json_writer_init(&w, out);
    json_put_value(&w, json_get(v, "status"));
    buf_putc(out, ' ');
    json_put_value(&w, json_get(v, "output"));
}

/* Whole, and in a stream of pieces: `want` is the status and the items. */
static void answers_as(test_case *t, const char *body, const char *text, tandem_finish finish, const char *want)
{
    static const size_t pieces[] = {1, 2, 7, 1000};
    play                p;
    buf                 out;
    buf_init(&out, 1 << 20);
    play_answer(t, &p, body, text, false, 1000, finish);
    put_output(t, &p, buf_str(&p.r.out), NULL, &out);
    CHECK_STR(buf_str(&out), str_of(want));
    play_end(&p);
    for (size_t i = 0; i < COUNT(pieces); i++) {
        buf_clear(&out);
        play_answer(t, &p, body, text, true, pieces[i], finish);
        put_output(t, &p, last_event(&p.r.out), "response", &out);
        CHECK_STR(buf_str(&out), str_of(want));
        play_end(&p);
    }
    buf_deinit(&out);
}

#define ID "XXXXXXXXXXXXXXXXXXXXXXXX"
#define MSG(n, s, text)                                                                                                \
    "{\"id\":\"msg_" ID "_" n "\",\"type\":\"message\",\"status\":\"" s                                                \
    "\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"" text                                \
    "\",\"annotations\":[],\"logprobs\":[]}]}"
#define FC(n, s, name, more, args)                                                                                     \
    "{\"id\":\"fc_" ID "_" n "\",\"type\":\"function_call\",\"status\":\"" s "\",\"call_id\":\"call_" ID "_" n         \
    "\",\"name\":\"" name "\"" more ",\"arguments\":\"" args "\"}"
#define RS(n, more) "{\"id\":\"rs_" ID "_" n "\",\"type\":\"reasoning\",\"status\":\"completed\"," more "}"
#define TOOLED                                                                                                         \
    "{\"input\":\"Hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"custom\",\"name\":\"p\"},"        \
    "{\"type\":\"namespace\",\"name\":\"s\",\"tools\":[{\"type\":\"function\",\"name\":\"g\"}]}]}"
static const tandem_finish STOP = TANDEM_FINISH_STOP, LENGTH = TANDEM_FINISH_LENGTH;

TEST(responses_answer_in_items)
{
    answers_as(t, "{\"input\":\"Hi\"}", "Yes \"it\"\n", STOP,
               "\"completed\" [" MSG("0", "completed", "Yes \\\"it\\\"\\n") "]");
    answers_as(t, "{\"input\":\"Hi\"}", "", STOP, "\"completed\" [" MSG("0", "completed", "") "]");
    answers_as(t, "{\"input\":\"Hi\"}", "Ye", LENGTH, "\"incomplete\" [" MSG("0", "incomplete", "Ye") "]");
    answers_as(t, TOOLED, "<|tool_call>call:f{a:1}<tool_call|>", STOP,
               "\"completed\" [" FC("0", "completed", "f", "", "{\\\"a\\\":1}") "]");
    answers_as(t, TOOLED, "So<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:f{}<tool_call|>", STOP,
               "\"completed\" [" MSG("0", "completed", "So") "," FC("1", "completed", "f", "", "{\\\"a\\\":1}") "," FC(
                   "2", "completed", "f", "", "{}") "]");
    answers_as(t, TOOLED, "<|tool_call>call:f{a:<|\"|>x", LENGTH,
               "\"incomplete\" [" FC("0", "incomplete", "f", "", "{\\\"a\\\":\\\"x\\\"}") "]");
    answers_as(t, TOOLED, "<|tool_call>call:s.g{}<tool_call|>", STOP,
               "\"completed\" [" FC("0", "completed", "g", ",\"namespace\":\"s\"", "{}") "]");
    answers_as(t, TOOLED, "<|tool_call>call:p{input:<|\"|>a \"b\"\n<|\"|>}<tool_call|>", STOP,
               "\"completed\" [{\"id\":\"ctc_" ID "_0\",\"type\":\"custom_tool_call\",\"status\":\"completed\","
               "\"call_id\":\"call_" ID "_0\",\"name\":\"p\",\"input\":\"a \\\"b\\\"\\n\"}]");
    answers_as(t, TOOLED, "<|tool_call>call:p{text:3}<tool_call|>", STOP,
               "\"completed\" [{\"id\":\"ctc_" ID "_0\",\"type\":\"custom_tool_call\",\"status\":\"completed\","
               "\"call_id\":\"call_" ID "_0\",\"name\":\"p\",\"input\":\"{\\\"text\\\":3}\"}]");
}

TEST(responses_tell_thoughts_as_asked)
{
    static const char thought[] = "<|channel>thought\nT<channel|>Yes";
    answers_as(
        t, "{\"input\":\"Hi\"}", thought, STOP,
        "\"completed\" [" RS("0", "\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"T\"}]") "," MSG(
            "1", "completed", "Yes") "]");
    answers_as(t, "{\"input\":\"Hi\",\"include\":[\"reasoning.encrypted_content\"]}", thought, STOP,
               "\"completed\" [" RS("0", "\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"T\"}],"
                                         "\"encrypted_content\":\"" RESPONSES_SEAL
                                         "T\"") "," MSG("1", "completed", "Yes") "]");
    answers_as(t, "{\"input\":\"Hi\",\"reasoning\":{\"summary\":\"auto\"}}", thought, STOP,
               "\"completed\" [" RS("0", "\"summary\":[{\"type\":\"summary_text\",\"text\":\"T\"}]") "," MSG(
                   "1", "completed", "Yes") "]");
}

TEST(responses_fail_with_what_there_was)
{
    play         p;
    server_error why;
    error_set(&why, 504, NULL, "timeout", "Out of \"time\".");
    play_answer(t, &p, "{\"input\":\"Hi\"}", "Yes", true, 1, STOP);
    buf_clear(&p.r.out);
    p.r.format->fail(&p.r, &p.c, 1, &why);
    buf_putc(&p.r.out, 0);
    CHECK(strstr(p.r.out.p, "event: response.failed\ndata: {\"type\":\"response.failed\""));
    CHECK(strstr(p.r.out.p,
                 "\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"Out of \\\"time\\\".\"}"));
    CHECK(strstr(p.r.out.p, "event: error\ndata: {\"type\":\"error\""));
    CHECK(strstr(p.r.out.p, "\"code\":\"timeout\",\"message\":\"Out of \\\"time\\\".\",\"param\":null}\n\n"));
    play_end(&p);
}

TEST(responses_repeat_what_is_small)
{
    play p;
    buf  body;
    buf_init(&body, 1 << 24);
    buf_puts(&body,
             "{\"input\":\"Hi\",\"metadata\":{\"a\":\"b\"},\"tool_choice\":null,\"text\":{\"verbosity\":\"low\"},"
             "\"user\":7,\"max_output_tokens\":5,\"instructions\":\"");
    for (int i = 0; i < 9 << 20; i++) buf_putc(&body, 'x');
    buf_puts(&body, "\"}");
    buf_putc(&body, 0);
    play_answer(t, &p, body.p, "Yes", false, 9, STOP);
    buf_putc(&p.r.out, 0);
    CHECK(p.r.out.n < 4096);
    CHECK(
        strstr(p.r.out.p,
               "\"instructions\":null,\"metadata\":{\"a\":\"b\"},\"tools\":[],\"tool_choice\":\"auto\",\"user\":null"));
    CHECK(strstr(p.r.out.p, "\"max_output_tokens\":5"));
    play_end(&p);
    buf_deinit(&body);
}

TEST(responses_tell_nothing_that_lost_bytes)
{
    static const char text[] = "<|channel>thought\nT<channel|>Yes<|tool_call>call:p{input:<|\"|>a<|\"|>}<tool_call|>"
                               "<|tool_call>call:s.g{a:1}<tool_call|>";
    play              p;
    buf               want, got;
    int               lost = 0;
    buf_init(&want, 1 << 20);
    buf_init(&got, 1 << 20);
    play_answer(t, &p, TOOLED, text, false, 3, STOP);
    put_output(t, &p, buf_str(&p.r.out), NULL, &want);
    for (long nth = 1; nth <= 80; nth++) {
        bool stream = nth % 2;
        play_off(&p);
        fault_fail_nth(1 + nth / 2);
        bool whole = play_on(&p, text, stream, 3, STOP);
        fault_fail_nth(0);
        lost += !whole;
        if (!whole) continue;
        buf_clear(&got);
        put_output(t, &p, stream ? last_event(&p.r.out) : buf_str(&p.r.out), stream ? "response" : NULL, &got);
        CHECK_MSG(str_eq(buf_str(&got), buf_str(&want)), "%ld: %.*s", nth, STR_ARG(buf_str(&got)));
    }
    CHECK_MSG(lost > 10 && lost < 80, "%d were lost", lost);
    play_end(&p);
    buf_deinit(&want);
    buf_deinit(&got);
}
