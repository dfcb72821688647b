/* Bodies of Anthropic's Messages API: each gives the prompt of a chat's body that means the same; what is wrong is refused by
 * the place where it is. */
#include "chat/gemma4.h"
#include "test.h"

#include "server/messages.h"

#define TOOLS                                                                                                          \
    "\"tools\":[{\"name\":\"get_time\",\"description\":\"Time in a city\",\"input_schema\":{\"type\":\"object\","      \
    "\"properties\":{\"city\":{\"type\":\"string\"}}},\"cache_control\":{\"type\":\"ephemeral\"}},"                    \
    "{\"type\":\"web_search_20250305\",\"name\":\"web_search\",\"max_uses\":5},"                                       \
    "{\"type\":\"custom\",\"name\":\"noop\"}]"
#define FUNCTIONS                                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_time\",\"description\":\"Time in a city\","        \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}}},"                          \
    "{\"type\":\"function\",\"function\":{\"name\":\"noop\"}}]"
#define USE(id, city)                                                                                                  \
    "{\"type\":\"tool_use\",\"id\":\"" id "\",\"name\":\"get_time\",\"input\":{\"city\":\"" city "\"}}"
#define CALL(id, city)                                                                                                 \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"get_time\","                                    \
    "\"arguments\":\"{\\\"city\\\":\\\"" city "\\\"}\"}}"
#define TEXT(text)          "{\"type\":\"text\",\"text\":\"" text "\",\"cache_control\":{\"type\":\"ephemeral\"}}"
#define PART(text)          "{\"type\":\"text\",\"text\":\"" text "\"}"
#define SAYS(role, content) "{\"role\":\"" role "\",\"content\":" content "}"

typedef struct {
    arena         mem;
    server_fields f;
    server_error  why;
    chat         *chat;
} reading;

static bool read_body(reading *r, const char *body)
{
    const json_value *v;
    err               e = {0};
    *r                  = (reading){0};
    arena_init(&r->mem, 1 << 26);
    return json_parse(&v, &r->mem, str_of(body), NULL, &e) &&
           fields_read(&r->f, &fields_generate, v, FIELD_MESSAGES, &r->why) &&
           messages_options(&r->f, &r->mem, &r->why) && messages_chat(&r->chat, &r->mem, &r->f, &r->why);
}

static void render(test_case *t, const chat *c, gemma4_revision revision, buf *out)
{
    chat_options o = {
        .format = &gemma4_format, .revision = revision, .empty_thought = true, .add_generation_prompt = true};
    err e = {0};
    buf_init(out, 1 << 20);
    if (!CHECK(c != NULL)) return;
    chat_apply_wishes(c, &o);
    CHECK_MSG(chat_render_text(out, c, &o, &e), "%s", e.text);
}

static void same_prompt(test_case *t, const char *messages, const char *chat_body)
{
    reading           r;
    arena             mem;
    const json_value *v;
    chat             *c = NULL;
    err               e = {0};
    buf               got, want;
    arena_init(&mem, 1 << 26);
    CHECK_MSG(read_body(&r, messages), "%s: %s", messages, r.why.message);
    CHECK_MSG(json_parse(&v, &mem, str_of(chat_body), NULL, &e) && chat_parse(&c, &mem, v, &e), "%s", e.text);
    for (gemma4_revision rev = 0; rev < GEMMA4_REVISIONS; rev++) {
        render(t, r.chat, rev, &got);
        render(t, c, rev, &want);
        CHECK_MSG(str_eq(buf_str(&got), buf_str(&want)), "'%.*s' instead of '%.*s'", (int)got.n, got.p, (int)want.n,
                  want.p);
        buf_deinit(&got);
        buf_deinit(&want);
    }
    arena_deinit(&r.mem);
    arena_deinit(&mem);
}

/* The end of a call, and its result with a text, an image and a document that is not shown. */
#define SHOWN                                                                                                          \
    "]},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"          \
    "\"image\"},"                                                                                                      \
    "{\"type\":\"text\",\"text\":\"" ERROR_NOT_SHOWN "\"}]}]}"

TEST(messages_are_a_chat)
{
    static const struct {
        const char *messages, *chat;
    } pair[] = {
        {"{\"messages\":[" SAYS("user", "\"Hi\"") "]}", "{\"messages\":[" SAYS("user", "\"Hi\"") "]}"},
        {"{\"messages\":[" SAYS("user", "[" TEXT("a ") "," TEXT("b") "]") "]}",
         "{\"messages\":[" SAYS("user", "[" PART("a ") "," PART("b") "]") "]}"},
        {"{\"system\":\"Be brief.\",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024},\"messages\":[" SAYS(
             "user", "\"Hi\"") "]}",
         "{\"enable_thinking\":true,\"messages\":[" SAYS("system", "\"Be brief.\"") "," SAYS("user", "\"Hi\"") "]}"},
        {"{\"system\":[" TEXT("One.") "," TEXT("") "," TEXT("Two.") "],\"messages\":[" SAYS("user", "\"Hi\"") "]}",
         "{\"messages\":[" SAYS("system", "\"One.\\n\\nTwo.\"") "," SAYS("user", "\"Hi\"") "]}"},
        {"{\"system\":[" TEXT("x-anthropic-billing-header: cc_version=2.1.7; cch=0f3a;") "," TEXT(
             "Two.") "],\"messages\":[" SAYS("user", "\"Hi\"") "]}",
         "{\"messages\":[" SAYS("system", "\"Two.\"") "," SAYS("user", "\"Hi\"") "]}"},
        {"{\"system\":\"x-anthropic-billing-header: cc_version=2.1.7;\\nTwo.\",\"messages\":[" SAYS("user",
                                                                                                    "\"Hi\"") "]}",
         "{\"messages\":[" SAYS("system", "\"Two.\"") "," SAYS("user", "\"Hi\"") "]}"},
        {"{\"system\":\"x-anthropic-billing-header: x\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[" SAYS(
             "user", "\"Hi\"") "]}",
         "{\"messages\":[" SAYS("user", "\"Hi\"") "]}"},
        {"{\"system\":\"One.\",\"messages\":[" SAYS("user", "\"Hi\"") "," SAYS("system", "[" TEXT("Now!") "]") "]}",
         "{\"messages\":[" SAYS("system", "\"One.\\n\\nNow!\"") "," SAYS("user", "\"Hi\"") "]}"},
        {"{\"messages\":[" SAYS("user", "\"Hi\"") "," SAYS("system", "\"Now!\"") "," SAYS(
             "assistant", "\"Hello.\"") "," SAYS("user", "\"Well?\"") "," SAYS("system", "[" TEXT("Go on.") "]") "]}",
         "{\"messages\":[" SAYS("system", "\"Now!\"") "," SAYS("user", "\"Hi\"") "," SAYS(
             "assistant", "\"Hello.\"") "," SAYS("user", "\"Well?\"") "," SAYS("system", "\"Go on.\"") "]}"},
        {"{" TOOLS ",\"messages\":[" SAYS("user", "\"Hi\"") "]}",
         "{" FUNCTIONS ",\"messages\":[" SAYS("user", "\"Hi\"") "]}"},
        {"{\"thinking\":{\"type\":\"adaptive\"}," TOOLS ",\"messages\":[" SAYS("user", "\"Time?\"") "," SAYS(
             "assistant",
             "[{\"type\":\"thinking\",\"thinking\":\"Two cities.\",\"signature\":\"x\"},"
             "{\"type\":\"redacted_thinking\",\"data\":\"x\"}," TEXT("I look.") "," USE("a", "Paris") "," USE(
                 "b", "Rome") "]") "," SAYS("user",
                                            "[" TEXT("Well?") ",{\"type\":\"tool_result\",\"tool_use_id\":"
                                                              "\"b\",\"content\":\"nine\"},{\"type\":"
                                                              "\"tool_result\",\"tool_use_id\":\"a\","
                                                              "\"content\":[" TEXT("ten") "," TEXT(" past") "]}]") "]}",
         "{\"enable_thinking\":true," FUNCTIONS ",\"messages\":[" SAYS(
             "user", "\"Time?\"") ",{\"role\":\"assistant\",\"reasoning_content\":\"Two "
                                  "cities.\",\"content\":[" PART(
                                      "I look.") "],"
                                                 "\"tool_calls\":[" CALL("a", "Paris") "," CALL(
                                                     "b", "Rome") "]},"
                                                                  "{\"role\":\"tool\",\"tool_"
                                                                  "call_id\":\"b\",\"content\":"
                                                                  "\"nine\"},"
                                                                  "{\"role\":\"tool\",\"tool_"
                                                                  "call_id\":\"a\",\"content\":"
                                                                  "[" PART("ten") "," PART(
                                                                      " pas"
                                                                      "t") "]}," SAYS("user",
                                                                                      "[" PART("Well?") "]") "]}"},
        {"{\"messages\":[" SAYS("user", "\"Time?\"") "," SAYS("assistant", "[" USE("a", "Paris") "]") "," SAYS(
             "user", "[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"is_error\":true,\"content\":[" TEXT(
                         "no such") "," TEXT("city") "]}]") "]}",
         "{\"messages\":[" SAYS("user", "\"Time?\"") ",{\"role\":\"assistant\",\"tool_calls\":[" CALL(
             "a",
             "Paris") "]},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":{\"error\":\"no such\\ncity\"}}]}"},
        {"{\"messages\":[" SAYS("user", "\"Time?\"") "," SAYS("assistant", "[" USE("a", "Paris") "]") "," SAYS(
             "user", "[{\"type\":\"tool_result\",\"tool_use_id\":\"a\"}]") "]}",
         "{\"messages\":[" SAYS("user", "\"Time?\"") ",{\"role\":\"assistant\",\"tool_calls\":[" CALL(
             "a", "Paris") "]},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"\"}]}"},
        {"{\"messages\":[" SAYS("user", "\"Time?\"") "," SAYS("assistant", "[" USE("a", "Paris") "]") "," SAYS(
             "user", "[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":[{\"type\":\"tool_reference\","
                     "\"tool_name\":\"noop\"}]}]") "]}",
         "{\"messages\":[" SAYS("user", "\"Time?\"") ",{\"role\":\"assistant\",\"tool_calls\":[" CALL(
             "a", "Paris") "]},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"noop\"}]}"},
        {"{\"messages\":[" SAYS("user", "\"Time?\"") "," SAYS("assistant", "[" USE("a", "Paris") "]") "," SAYS(
             "user", "[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":[" TEXT(
                         "a") ",{\"type\":\"image\"},{\"type\":\"document\",\"source\":{\"type\":\"base64\"}}]}]") "]}",
         "{\"messages\":[" SAYS("user", "\"Time?\"") ",{\"role\":\"assistant\",\"tool_calls\":[" CALL("a", "Paris")
             SHOWN},
        {"{\"messages\":[" SAYS("user", "\"Hi\"") "," SAYS(
             "assistant", "[{\"type\":\"server_tool_use\",\"id\":\"s\",\"name\":\"web_search\",\"input\":{}}," TEXT(
                              "Hello.") "]") "," SAYS("user",
                                                      "[{\"type\":\"document\",\"source\":{\"type\":\"text\","
                                                      "\"media_type\":\"text/plain\",\"data\":\"page\"}}]") "]}",
         "{\"messages\":[" SAYS("user", "\"Hi\"") "," SAYS("assistant", "\"Hello.\"") "," SAYS("user",
                                                                                               "\"page\"") "]}"},
    };
    for (size_t i = 0; i < COUNT(pair); i++) same_prompt(t, pair[i].messages, pair[i].chat);
}

#define RESULT(id)    "{\"type\":\"tool_result\",\"tool_use_id\":\"" id "\",\"content\":\"" id "!\"}"
#define RESULTS(list) SAYS("user", "[" list "]")
#define USES(list)    SAYS("assistant", "[" list "]")
#define CALLS(list)   "{\"role\":\"assistant\",\"tool_calls\":[" list "]}"
#define ANSWER(id)    "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" id "!\"}"
#define TALK(list)    "{\"messages\":[" SAYS("user", "\"Time?\"") "," list "]}"

TEST(messages_results_go_behind_their_calls)
{
    static const struct {
        const char *messages, *chat;
    } pair[] = {
        {TALK(USES(USE("a", "Rome")) "," SAYS("assistant", "\"Hm.\"") "," RESULTS(RESULT("a"))),
         TALK(CALLS(CALL("a", "Rome")) "," ANSWER("a") "," SAYS("assistant", "\"Hm.\""))},
        {TALK(USES(USE("a", "Rome")) "," SAYS("system", "\"Now!\"") "," RESULTS(RESULT("a"))),
         TALK(CALLS(CALL("a", "Rome")) "," ANSWER("a") "," SAYS("system", "\"Now!\""))},
        {TALK(USES(USE("a", "Rome")) "," SAYS("user", "\"Well?\"") "," RESULTS(RESULT("a"))),
         TALK(CALLS(CALL("a", "Rome")) "," ANSWER("a") "," SAYS("user", "\"Well?\""))},
        {TALK(USES(USE("a", "Rome") "," USE("b", "Paris")) "," RESULTS(RESULT("b") "," TEXT("Well?")) "," RESULTS(
             RESULT("a"))),
         TALK(CALLS(CALL("a", "Rome") "," CALL("b", "Paris")) "," ANSWER("b") "," ANSWER("a") "," SAYS("user",
                                                                                                       "\"Well?\""))},
        {TALK(USES(USE("a", "Rome")) "," USES(USE("b", "Paris")) "," RESULTS(RESULT("b") "," RESULT("a"))),
         TALK(CALLS(CALL("a", "Rome")) "," ANSWER("a") "," CALLS(CALL("b", "Paris")) "," ANSWER("b"))},
        {TALK(USES(USE("a", "Rome")) "," RESULTS(RESULT("a")) "," USES(USE("a", "Paris")) "," RESULTS(RESULT("a"))),
         TALK(CALLS(CALL("a", "Rome")) "," ANSWER("a") "," CALLS(CALL("a", "Paris")) "," ANSWER("a"))},
    };
    for (size_t i = 0; i < COUNT(pair); i++) same_prompt(t, pair[i].messages, pair[i].chat);
}

TEST(messages_know_so_many_calls)
{
    for (int n = CHAT_MAX_CALLS; n <= CHAT_MAX_CALLS + 1; n++) {
        reading r;
        buf     body;
        buf_init(&body, 1 << 20);
        buf_puts(&body, "{\"messages\":[" USES(USE("a", "Rome")));
        for (int i = 1; i < n; i++) buf_puts(&body, "," USES(USE("b", "Paris")));
        buf_puts(&body, "," RESULTS(RESULT("a")) "]}");
        buf_putc(&body, 0);
        CHECK_INT(read_body(&r, body.p), n <= CHAT_MAX_CALLS);
        if (r.chat) CHECK(r.chat->message[1].role == CHAT_TOOL && r.chat->n == (size_t)n + 1);
        arena_deinit(&r.mem);
        buf_deinit(&body);
    }
}

#define ASK "\"messages\":[" SAYS("user", "\"Hi\"") "]"

TEST(messages_options_are_a_chats)
{
    reading r;
    CHECK(read_body(&r, "{" ASK "}") && !r.f.tool_choice && r.f.parallel_tool_calls && !r.chat->thinking);
    arena_deinit(&r.mem);
    static const struct {
        const char *theirs, *ours;
    } word[] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    for (size_t i = 0; i < COUNT(word); i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"tool_choice\":{\"type\":\"%s\",\"disable_parallel_tool_use\":true}," ASK "}",
                 word[i].theirs);
        CHECK(read_body(&r, body) && str_is(r.f.tool_choice->s, word[i].ours) && !r.f.parallel_tool_calls);
        arena_deinit(&r.mem);
    }
    if (CHECK(read_body(&r, "{\"tool_choice\":{\"type\":\"tool\",\"name\":\"get_time\"}," ASK "}"))) {
        const json_value *fn = json_get(r.f.tool_choice, "function");
        CHECK_STR(json_get(r.f.tool_choice, "type")->s, STR("function"));
        CHECK_STR(json_get(fn, "name")->s, STR("get_time"));
    }
    arena_deinit(&r.mem);
    CHECK(read_body(&r, "{\"stop_sequences\":[\"a\",\"b\"],\"metadata\":{\"user_id\":\"x\"},\"context_management\":{},"
                        "\"output_config\":{\"effort\":\"high\"},\"max_tokens\":32000,\"top_k\":5," ASK "}"));
    CHECK(r.f.stop && r.f.stop->n == 2 && r.f.max_tokens == 32000 && r.f.top_k == 5 && !r.f.response_format);
    arena_deinit(&r.mem);
    CHECK(read_body(&r, "{\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{}}}," ASK "}"));
    CHECK(r.f.response_format && json_get(r.f.response_format, "schema"));
    arena_deinit(&r.mem);
}

TEST(messages_refuse_what_is_wrong)
{
    static const struct {
        const char *body, *param, *words;
    } wrong[] = {
        {"{}", "messages", "at least one"},
        {"{\"messages\":[]}", "messages", "list of 1"},
        {"{\"messages\":[7]}", "messages[0]", "object with role"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content", "string or a list"},
        {"{\"messages\":[" SAYS("robot", "\"\"") "]}", "messages[0].role", "user or assistant"},
        {"{\"messages\":[" SAYS("user", "\"Hi\"") "," SAYS("assistant", "\"{\"") "]}", "messages", "prefill"},
        {"{\"messages\":[" SAYS("system", "\"x-anthropic-billing-header\"") "]}", "messages", "a message with text"},
        {"{\"system\":7," ASK "}", "system", "text blocks"},
        {"{\"system\":[{\"type\":\"image\"}]," ASK "}", "system[0].type", "must be text."},
        {"{\"messages\":[" SAYS("user", "\"Hi\"") "," SAYS("system", "[{\"type\":\"text\"}]") "]}",
         "messages[1].content[0].text", "must be a string"},
        {"{\"messages\":[" SAYS("system", "7") "]}", "messages[0].content", "text blocks"},
        {"{\"system\":[{\"type\":\"text\"}]," ASK "}", "system[0].text", "must be a string"},
        {"{\"messages\":[" SAYS("user", "[1]") "]}", "messages[0].content[0]", "with a type"},
        {"{\"messages\":[" SAYS("user", "[{}]") "]}", "messages[0].content[0].type",
         "must be text, image, document, tool_result."},
        {"{\"messages\":[" SAYS("user", "[{\"type\":\"tool_use\"}]") "]}", "messages[0].content[0].type", "must be"},
        {"{\"messages\":[" SAYS("user", "[{\"type\":\"document\",\"source\":{\"type\":\"url\"}}]") "]}",
         "messages[0].content[0]", "other documents are not supported"},
        {"{\"messages\":[" SAYS("user", "[{\"type\":\"document\",\"source\":{\"type\":\"text\"}}]") "]}",
         "messages[0].content[0].source.data", "string"},
        {"{\"messages\":[" SAYS("user", "[{\"type\":\"tool_result\"}]") "]}", "messages[0].content[0].tool_use_id",
         "must be a string"},
        {"{\"messages\":[" SAYS("user", "[{\"type\":\"tool_result\",\"tool_use_id\":\"a\"}]") "]}",
         "messages[0].content[0].tool_use_id", "not the id"},
        {"{\"messages\":[" SAYS("user", "[{\"type\":\"tool_result\",\"tool_use_id\":\"a\"}]") "," SAYS(
             "assistant", "[" USE("a", "Paris") "]") "," SAYS("user", "\"Well?\"") "]}",
         "messages[0].content[0].tool_use_id", "not the id"},
        {"{\"messages\":[" SAYS("user", "\"Hi\"") "," SAYS("assistant", "[" USE("a", "Paris") "]") "," SAYS(
             "user", "[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":[{\"type\":\"video\"}]}]") "]}",
         "messages[2].content[0].content[0].type", "must be"},
        {"{\"messages\":[" SAYS("user", "\"Hi\"") "," SAYS("assistant", "[" USE("a", "Paris") "]") "," SAYS(
             "user", "[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"is_error\":1}]") "]}",
         "messages[2].content[0].is_error", "true or false"},
        {"{\"messages\":[" SAYS("assistant", "[{\"type\":\"tool_use\",\"name\":\"f\"}]") "]}",
         "messages[0].content[0].id", "must be a string"},
        {"{\"messages\":[" SAYS("assistant", "[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\",\"input\":[]}]") "]}",
         "messages[0].content[0].input", "must be an object"},
        {"{\"messages\":[" SAYS("assistant", "[{\"type\":\"thinking\"}]") "]}", "messages[0].content[0].thinking",
         "must be a string"},
        {"{\"tools\":[7]," ASK "}", "tools[0]", "input_schema"},
        {"{\"tools\":[{\"description\":\"x\"}]," ASK "}", "tools[0].name", "must be a string"},
        {"{\"tools\":[{\"name\":\"f\",\"description\":1}]," ASK "}", "tools[0].description", "must be a string"},
        {"{\"tools\":[{\"name\":\"f\",\"input_schema\":[]}]," ASK "}", "tools[0].input_schema", "must be an object"},
        {"{\"tool_choice\":{}," ASK "}", "tool_choice", "auto, any"},
        {"{\"tool_choice\":{\"type\":\"tool\"}," ASK "}", "tool_choice", "with a name"},
        {"{\"tool_choice\":\"auto\"," ASK "}", "tool_choice", "an object"},
        {"{\"thinking\":{\"type\":\"much\"}," ASK "}", "thinking.type", "adaptive"},
        {"{\"thinking\":true," ASK "}", "thinking", "an object"},
        {"{\"thread\":{\"type\":\"create\"}," ASK "}", "thread", "without it"},
        {"{\"output_config\":{\"format\":{\"type\":\"text\"}}," ASK "}", "output_config.format", "json_schema"},
        {"{\"output_config\":{\"format\":{\"type\":\"json_schema\"}}," ASK "}", "output_config.format",
         "with a schema"},
        {"{\"max_tokens\":-1," ASK "}", "max_tokens", "from 0 up"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        reading r;
        CHECK_MSG(!read_body(&r, wrong[i].body), "%s is taken", wrong[i].body);
        CHECK_INT(r.why.status, 400);
        CHECK_MSG(!strcmp(r.why.param, wrong[i].param), "%s: param is '%s'", wrong[i].body, r.why.param);
        CHECK_MSG(strstr(r.why.message, wrong[i].words), "%s: '%s'", wrong[i].body, r.why.message);
        arena_deinit(&r.mem);
    }
}

TEST(messages_have_so_many_calls)
{
    for (int n = CHAT_MAX_CALLS; n <= CHAT_MAX_CALLS + 1; n++) {
        reading r;
        buf     body;
        buf_init(&body, 1 << 20);
        buf_puts(&body, "{\"messages\":[{\"role\":\"assistant\",\"content\":[");
        for (int i = 0; i < n; i++) buf_puts(&body, i ? "," USE("a", "Rome") : USE("a", "Rome"));
        buf_puts(&body, "]}," SAYS("user", "\"Well?\"") "]}");
        buf_putc(&body, 0);
        CHECK_INT(read_body(&r, body.p), n <= CHAT_MAX_CALLS);
        CHECK_STR(str_of(r.why.param), str_of(n <= CHAT_MAX_CALLS ? "" : "messages[0].content"));
        arena_deinit(&r.mem);
        buf_deinit(&body);
    }
}

/* Wherever memory ends, it is told, and nothing is half there. */
TEST(messages_without_memory)
{
    static const char body[] =
        "{\"tool_choice\":{\"type\":\"any\"}," TOOLS ",\"system\":[" TEXT("One.") "],\"messages\":[" SAYS(
            "assistant",
            "[{\"type\":\"thinking\",\"thinking\":\"x\"}"
            "," USE("a", "Rome") "]") "," SAYS("user", "[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"is_error\":"
                                                       "true,\"content\":[" TEXT("x") "]}," TEXT("b") "]") "]}";
    arena             tree, mem;
    const json_value *v;
    server_fields     f;
    server_error      why = {0};
    chat             *c;
    size_t            need;
    arena_init(&tree, 1 << 20);
    CHECK(json_parse(&v, &tree, str_of(body), NULL, NULL));
    arena_init(&mem, 1 << 20);
    CHECK(fields_read(&f, &fields_generate, v, FIELD_MESSAGES, &why) && messages_options(&f, &mem, &why) &&
          messages_chat(&c, &mem, &f, &why));
    need = mem.used;
    arena_deinit(&mem);
    for (size_t limit = 0; limit < need; limit += 16) {
        arena_init(&mem, limit);
        why = (server_error){0};
        CHECK(fields_read(&f, &fields_generate, v, FIELD_MESSAGES, &why));
        CHECK(!messages_options(&f, &mem, &why) || (!messages_chat(&c, &mem, &f, &why) && !c));
        CHECK_MSG(why.status == 503 || why.status == 400, "%zu: %d", limit, why.status);
        arena_deinit(&mem);
    }
    arena_deinit(&tree);
}
