/* Requests of wrong shapes: each is refused with the path of what is wrong. */
#include "base/fault.h"
#include "chat/chat.h"
#include "chat/gemma4.h"
#include "test.h"

static bool parse(const char *request, arena *mem, chat **c, err *e)
{
    const json_value *v;
    *c = NULL;
    return json_parse(&v, mem, str_of(request), NULL, e) && chat_parse(c, mem, v, e);
}

TEST(chat_request_names_what_is_wrong)
{
    static const struct {
        const char *request, *part;
    } cases[] = {
        {"[]", "the request must be an object"},
        {"{}", "messages must be a list with at least one message"},
        {"{'messages':[]}", "messages must be a list with at least one"},
        {"{'messages':'hi'}", "messages must be a list"},
        {"{'messages':['hi']}", "messages[0] must be an object"},
        {"{'messages':[{'role':'user','content':'x'},{'role':'boss','content':'x'}]}",
         "messages[1].role must be system"},
        {"{'messages':[{'content':'x'}]}", "messages[0].role must be"},
        {"{'messages':[{'role':'user'}]}", "messages[0].content is missing"},
        {"{'messages':[{'role':'user','content':null}]}", "messages[0].content is missing"},
        {"{'messages':[{'role':'user','content':5}]}", "messages[0].content must be a string or a list"},
        {"{'messages':[{'role':'user','content':['x']}]}", "messages[0].content[0] must be an object"},
        {"{'messages':[{'role':'user','content':[{'type':'text','text':'a'},{'type':'pdf'}]}]}",
         "messages[0].content[1].type must be text"},
        {"{'messages':[{'role':'user','content':[{'type':'text'}]}]}", "messages[0].content[0].text must be a string"},
        {"{'messages':[{'role':'system','content':[{'type':'image'}]}]}",
         "messages[0].content[0] must be a text part: a system message has no media"},
        {"{'messages':[{'role':'assistant','content':[{'type':'refusal','text':'no'}]}]}",
         "messages[0].content[0].refusal must be a string"},
        {"{'messages':[{'role':'assistant','content':[{'type':'pdf'}]}]}",
         "messages[0].content[0].type must be text, refusal, image_url, input_audio or video_url"},
        {"{'messages':[{'role':'user','content':[{'type':'refusal','refusal':'no'}]}]}",
         "messages[0].content[0].type must be text, image_url, input_audio or video_url"},
        {"{'messages':[{'role':'assistant','reasoning':5}]}", "messages[0].reasoning must be a string"},
        {"{'messages':[{'role':'assistant','tool_calls':{}}]}", "messages[0].tool_calls must be a list"},
        {"{'messages':[{'role':'user','content':'x','tool_calls':[{}]}]}",
         "messages[0].tool_calls is only allowed in an assistant message"},
        {"{'messages':[{'role':'assistant','tool_calls':[5]}]}", "messages[0].tool_calls[0] must be an object"},
        {"{'messages':[{'role':'assistant','tool_calls':[{'id':'1'}]}]}", "tool_calls[0].function must be an object"},
        {"{'messages':[{'role':'assistant','tool_calls':[{'function':{}}]}]}", "function.name is missing"},
        {"{'messages':[{'role':'assistant','tool_calls':[{'id':7,'function':{'name':'f'}}]}]}",
         "messages[0].tool_calls[0].id must be a string"},
        {"{'messages':[{'role':'assistant','tool_responses':[{'name':'f'}]}]}",
         "tool_responses[0].response is missing"},
        {"{'messages':[{'role':'tool','content':'x','tool_call_id':1}]}", "messages[0].tool_call_id must be a string"},
        {"{'messages':[{'role':'tool','content':['x']}]}", "messages[0].content[0] must be an object"},
        {"{'messages':[{'role':'user','content':'x'}],'tools':{}}", "tools must be a list"},
        {"{'messages':[{'role':'user','content':'x'}],'tools':[{}]}", "tools[0].function must be an object"},
        {"{'messages':[{'role':'user','content':'x'}],'tools':[{'function':{}}]}", "tools[0].function.name is missing"},
        {"{'messages':[{'role':'user','content':'x'}],'tools':[{'function':{'name':5}}]}",
         "tools[0].function.name must be a string"},
        {"{'messages':[{'role':'user','content':'x'}],'tools':[{'function':{'name':'f','parameters':[]}}]}",
         "tools[0].function.parameters must be an object"},
        {"{'messages':[{'role':'user','content':'x'}],'enable_thinking':'yes'}",
         "enable_thinking must be true or false"},
        {"{'messages':[{'role':'user','content':'x'}],'chat_template_kwargs':5}",
         "chat_template_kwargs must be an object"},
        {"{'messages':[{'role':'user','content':'x'}],'chat_template_kwargs':{'preserve_thinking':1}}",
         "chat_template_kwargs.preserve_thinking must be true or false"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        arena mem;
        chat *c;
        err   e = {0};
        char  text[512];
        snprintf(text, sizeof text, "%s", cases[i].request);
        for (char *q = text; (q = strchr(q, '\''));) *q = '"';
        arena_init(&mem, 1 << 20);
        CHECK_FAILS(parse(text, &mem, &c, &e), e, cases[i].part);
        CHECK_INT(e.code, ERR_INPUT);
        arena_deinit(&mem);
    }
}

/* Every field of a request, where it ends up. */
TEST(chat_request_reads_every_field)
{
    static const char request[] =
        "{'messages':[{'role':'developer','content':[{'type':'input_text','text':'a'}]},{'role':'user','content':[{'"
        "type':"
        "'image_url','image_url':{'url':'u'}},{'type':'output_text','text':'b'},{'type':'input_audio'},{'type':'video_"
        "url'}]},"
        "{'role':'assistant','content':null,'reasoning_content':'why','tool_calls':[{'id':'1','function':{'name':'f',"
        "'arguments':'[1]'}},{'function':{'name':'g','arguments':' \\n'}},{'function':{'name':'h','arguments':'no "
        "json'}},"
        "{'function':{'name':'i','arguments':{'x':1}}}]},{'role':'tool','content':{'y':2},'tool_call_id':'1','name':'n'"
        "},"
        "{'role':'assistant','content':'','reasoning':'r','reasoning_content':'other','tool_responses':[{'name':'f',"
        "'response':3},{'response':null}]},{'role':'tool'}],'tools':[{'type':'function','function':{'name':'f',"
        "'description':'d','parameters':{},'response':{}}}],'enable_thinking':true,'preserve_thinking':true,"
        "'chat_template_kwargs':{'enable_thinking':false,'add_generation_prompt':false}}";
    char  text[sizeof request];
    arena mem;
    chat *c;
    err   e = {0};
    memcpy(text, request, sizeof text);
    for (char *q = text; (q = strchr(q, '\''));) *q = '"';
    arena_init(&mem, 1 << 20);
    if (!CHECK_OK(parse(text, &mem, &c, &e), e)) return;
    const chat_message *m = c->message;
    CHECK_INT(c->n, 6);
    CHECK(m[0].role == CHAT_DEVELOPER && m[1].role == CHAT_USER && m[2].role == CHAT_ASSISTANT &&
          m[3].role == CHAT_TOOL);
    CHECK(m[0].content.kind == CHAT_PARTS && m[0].content.n_parts == 1 && m[1].content.n_parts == 4);
    static const chat_part_kind kinds[] = {CHAT_IMAGE, CHAT_TEXT, CHAT_AUDIO, CHAT_VIDEO};
    for (size_t i = 0; i < 4; i++) {
        CHECK_INT(m[1].content.part[i].kind, kinds[i]);
        CHECK((m[1].content.part[i].source != NULL) == (kinds[i] != CHAT_TEXT));
    }
    CHECK_STR(m[0].content.part[0].text, STR("a"));
    CHECK_STR(m[1].content.part[1].text, STR("b"));
    CHECK(m[2].content.kind == CHAT_NO_CONTENT && m[2].n_calls == 4);
    CHECK_STR(m[2].reasoning, STR("why"));
    CHECK(m[2].call[0].has_id && !m[2].call[1].has_id);
    CHECK_STR(m[2].call[0].id, STR("1"));
    CHECK_STR(m[2].call[3].name, STR("i"));
    CHECK(m[2].call[0].args->kind == JSON_ARRAY && !m[2].call[1].args && m[2].call[2].args->kind == JSON_STRING);
    CHECK(m[2].call[3].args->kind == JSON_OBJECT);
    CHECK(m[3].content.kind == CHAT_VALUE && m[3].has_call_id);
    CHECK_STR(m[3].call_id, STR("1"));
    CHECK_STR(m[3].name, STR("n"));
    CHECK(m[4].content.kind == CHAT_STRING && m[4].n_responses == 2 && m[4].response[0].response->i == 3);
    CHECK_STR(m[4].reasoning, STR("r"));
    CHECK_STR(m[4].response[0].name, STR("f"));
    CHECK(!m[4].response[1].name.n && m[4].response[1].response->kind == JSON_NULL);
    CHECK(m[5].content.kind == CHAT_NO_CONTENT && !m[5].has_call_id);
    CHECK(c->n_tools == 1 && c->tool[0].description && c->tool[0].parameters && c->tool[0].response);
    CHECK(c->thinking == CHAT_NO && c->preserve_thinking == CHAT_YES && c->add_generation_prompt == CHAT_NO);
    arena_deinit(&mem);
}

TEST(chat_request_ignores_tools_of_other_types)
{
    static const char request[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"web_search\"},{\"type\":"
        "\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"custom\",\"custom\":{\"name\":\"g\"}},"
        "{\"function\":{\"name\":\"h\"}}]}";
    arena mem;
    chat *c;
    err   e = {0};
    arena_init(&mem, 1 << 20);
    bool ok = parse(request, &mem, &c, &e);
    CHECK_MSG(ok && c->n_tools == 2, "%s", e.text);
    if (ok && c->n_tools == 2) {
        CHECK_STR(c->tool[0].name, STR("f"));
        CHECK_STR(c->tool[1].name, STR("h"));
    }
    arena_deinit(&mem);
}

/* Clients that know both shapes of a call send the one that they do not use empty. */
TEST(chat_request_reads_a_function_call_beside_empty_tool_calls)
{
    arena mem;
    chat *c;
    err   e = {0};
    arena_init(&mem, 1 << 20);
    if (CHECK_OK(
            parse("{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"tool_calls\":[],"
                  "\"function_call\":{\"name\":\"add\",\"arguments\":\"{}\"}}]}",
                  &mem, &c, &e),
            e)) {
        CHECK_INT(c->message[1].n_calls, 1);
        CHECK_STR(c->message[1].call->name, STR("add"));
    }
    arena_deinit(&mem);
}

TEST(chat_request_bounds_calls_and_memory)
{
    arena mem;
    chat *c;
    err   e;
    buf   text;
    buf_init(&text, 1 << 20);
    buf_puts(&text, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[");
    for (int i = 0; i <= CHAT_MAX_CALLS; i++) buf_printf(&text, "%s{\"function\":{\"name\":\"f\"}}", i ? "," : "");
    buf_puts(&text, "]}]}");
    buf_putc(&text, 0);
    arena_init(&mem, 1 << 22);
    CHECK_FAILS(parse(text.p, &mem, &c, &e), e, "messages[0].tool_calls has more than 256 calls");
    char *one = strstr(text.p, "{\"function\""); /* one call less is allowed */
    memset(one, ' ', strchr(one, ',') + 1 - one);
    CHECK_OK(parse(text.p, &mem, &c, &e), e);
    if (c) CHECK_INT(c->message[0].n_calls, CHAT_MAX_CALLS);
    arena_deinit(&mem);
    buf_deinit(&text);
}

/* A refusal is what the assistant said. */
TEST(chat_request_takes_refusals)
{
    arena mem;
    chat *c;
    err   e = {0};
    arena_init(&mem, 1 << 20);
    CHECK_OK(
        parse("{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"I can't.\"},{"
              "\"type\":\"text\",\"text\":\"Sorry.\"}]}]}",
              &mem, &c, &e),
        e);
    if (c) CHECK_INT(c->message[0].content.n_parts, 2);
    if (c && c->message[0].content.n_parts == 2) {
        CHECK_INT(c->message[0].content.part[0].kind, CHAT_TEXT);
        CHECK_STR(c->message[0].content.part[0].text, STR("I can't."));
        CHECK_STR(c->message[0].content.part[1].text, STR("Sorry."));
    }
    arena_deinit(&mem);
}

/* A full arena is not the client's fault. */
TEST(chat_request_is_unavailable_when_the_arena_is_full)
{
    static const char request[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},{\"role\":\"assistant\","
        "\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\"}}],\"tool_responses\":[{\"response\":1}]},"
        "{\"role\":\"assistant\",\"function_call\":{\"name\":\"f\"}},{\"role\":\"assistant\",\"content\":"
        "[{\"type\":\"text\",\"text\":\"b\"}]}],\"tools\":[{\"function\":{\"name\":\"f\"}}],"
        "\"continue_final_message\":true}";
    const json_value *v;
    arena             tree;
    err               e;
    int               failed = 0;
    bool              ok     = false;
    arena_init(&tree, 1 << 20);
    if (CHECK_OK(json_parse(&v, &tree, str_of(request), NULL, &e), e))
        for (size_t limit = 0; limit < 1 << 16 && !ok; limit += 16) {
            arena mem;
            chat *c;
            arena_init(&mem, limit);
            ok = chat_parse(&c, &mem, v, &e);
            CHECK_MSG(ok || (e.code == ERR_UNAVAILABLE && !c), "%zu bytes: code %d, %s", limit, e.code, e.text);
            failed += !ok;
            arena_deinit(&mem);
        }
    CHECK(ok && failed > 8);
    arena_deinit(&tree);
}

TEST(chat_request_survives_no_memory)
{
    static const char request[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},{\"role\":\"assistant\","
        "\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[1]}\"}}]},{\"role\":"
        "\"tool\","
        "\"tool_call_id\":\"1\",\"content\":\"x\"}],\"tools\":[{\"function\":{\"name\":\"f\"}}]}";
    chat_options o      = {.format = &gemma4_format, .add_generation_prompt = true};
    int          failed = 0;
    for (long nth = 1;; nth++) {
        arena mem;
        chat *c;
        buf   out;
        err   e = {0};
        arena_init(&mem, 1 << 20);
        buf_init(&out, 1 << 20);
        fault_fail_nth(nth);
        bool ok    = parse(request, &mem, &c, &e) && chat_render_text(&out, c, &o, &e);
        bool tried = fault_tries() >= nth;
        fault_fail_nth(0);
        CHECK_MSG(ok || (e.text[0] && e.code == ERR_UNAVAILABLE), "allocation %ld fails: code %d, '%s'", nth, e.code,
                  e.text);
        if (ok) CHECK(c->message[1].call[0].args->kind == JSON_OBJECT);
        failed += !ok;
        buf_deinit(&out);
        arena_deinit(&mem);
        if (!tried) {
            CHECK_MSG(ok, "%s", e.text);
            break;
        }
    }
    CHECK(failed > 3);
}
