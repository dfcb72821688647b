/* Answers that are held to a form: what clients write, and what they get. */
#include "base/mem.h"
#include "server_rig.h"

#include <stdio.h>
#include <unistd.h>

#define CHAT       "/v1/chat/completions"
#define TEXT       "/v1/completions"
#define USER       "\"messages\":[{\"role\":\"user\",\"content\":\"Hello there\"}]"
#define TOOL(n, p) "{\"type\":\"function\",\"function\":{\"name\":\"" n "\",\"parameters\":" p "}}"
#define CITY                                                                                                           \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":9},\"n\":{\"type\":\"integer\"," \
    "\"minimum\":"                                                                                                     \
    "1,\"maximum\":99}},\"required\":[\"city\",\"n\"],\"additionalProperties\":false}"
#define TOOLS                                                                                                          \
    "\"tools\":[" TOOL("look", CITY) "," TOOL("wait", "{\"type\":\"object\",\"additionalProperties\":false}") "]"
#define FORMAT      "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"c\",\"schema\":" CITY "}}"
#define FUNCTION(n) "{\"type\":\"function\",\"function\":{\"name\":\"" n "\"}}"

static void start(server_rig *r, test_case *t)
{
    rig_init(r, t);
    r->engine_opt.n_ctx = 1024;
    rig_start(r);
}

/* {"city":"...","n":5} */
static bool is_city(str text)
{
    arena             mem;
    const json_value *v;
    arena_init(&mem, 1 << 20);
    bool ok = json_parse(&v, &mem, text, NULL, NULL) && v->kind == JSON_OBJECT && v->n == 2 && rig_at(v, "city") &&
              rig_at(v, "city")->kind == JSON_STRING && rig_int(v, "n") >= 1 && rig_int(v, "n") <= 99;
    arena_deinit(&mem);
    return ok;
}

TEST(server_content_fits_its_schema)
{
    static const char *const how[] = {FORMAT,
                                      "\"json_schema\":" CITY,
                                      "\"response_format\":{\"type\":\"json_object\",\"schema\":" CITY "}",
                                      FORMAT ",\"max_tokens\":20",
                                      FORMAT ",\"stop\":[\"never\"],\"logprobs\":true,\"top_logprobs\":2",
                                      FORMAT ",\"chat_template_kwargs\":{\"enable_thinking\":true},\"max_tokens\":60",
                                      FORMAT ",\"ignore_eos\":true,\"presence_penalty\":1,\"logit_bias\":{\"300\":5}"};
    server_rig               r;
    rig_reply                a;
    char                     body[2048];
    start(&r, t);
    for (size_t i = 0; i < COUNT(how); i++)
        for (int seed = 0; seed < 3; seed++) {
            snprintf(body, sizeof body, "{\"temperature\":1,\"seed\":%d,%s," USER "}", seed, how[i]);
            rig_post(&r, CHAT, body, &a);
            CHECK_INT(a.status, 200);
            CHECK_MSG(is_city(rig_str(rig_json(&a), "choices.0.message.content")), "%s gives %s", how[i], a.body.p);
            rig_reply_deinit(&a);
        }
    rig_post(&r, TEXT, "{\"prompt\":[\"A\",\"B\"],\"n\":2,\"temperature\":1,\"json_schema\":" CITY "}", &a);
    for (int i = 0; i < 4; i++) {
        char path[32];
        snprintf(path, sizeof path, "choices.%d.text", i);
        CHECK(is_city(rig_str(rig_json(&a), path)));
    }
    rig_reply_deinit(&a);
    rig_post(&r, TEXT, "{\"prompt\":\"A\",\"grammar\":\"root ::= \\\"yes\\\" [.!]\"}", &a);
    CHECK(str_starts(rig_str(rig_json(&a), "choices.0.text"), "yes"));
    CHECK_INT(rig_str(rig_json(&a), "choices.0.text").n, 4);
    CHECK_STR(rig_str(rig_json(&a), "choices.0.finish_reason"), STR("stop"));
    rig_reply_deinit(&a);
    rig_wait_idle(&r);
    rig_stop(&r);
}

/* A tool whose schema can be enforced, and one whose cannot. `strict` is text behind the name. */
#define STRICT(n, p, strict) "{\"type\":\"function\",\"function\":{\"name\":\"" n "\"" strict ",\"parameters\":" p "}}"
#define YES                  ",\"strict\":true"
#define ODD                  "{\"type\":\"object\",\"maxproperties\":3}"

/* Under `auto` the model begins calls because their marker is favoured; what follows is up to it. */
TEST(server_holds_strict_tools_under_auto)
{
    static const char *const how[] = {"", ",\"tool_choice\":\"auto\"", "," FORMAT,
                                      ",\"response_format\":{\"type\":\"json_object\"}"};
    server_rig               r;
    rig_reply                a;
    char                     body[2048];
    start(&r, t);
    int32_t marker = tok_find(engine_tok(r.engine), STR("<|tool_call>"));
    for (size_t i = 0; i < COUNT(how); i++)
        for (int seed = 0; seed < 4; seed++) {
            snprintf(body, sizeof body,
                     "{\"max_tokens\":200,\"temperature\":1,\"seed\":%d,\"logit_bias\":{\"%d\":%d},"
                     "\"parallel_tool_calls\":false,\"tools\":[" STRICT("look", CITY, YES) "]%s," USER "}",
                     seed, marker, seed == 3 ? -100 : 100, how[i]);
            rig_post(&r, CHAT, body, &a);
            const json_value *v = rig_json(&a), *calls = rig_at(v, "choices.0.message.tool_calls");
            CHECK_INT(a.status, 200);
            if (seed == 3) {
                str text = rig_str(v, "choices.0.message.content");
                CHECK_MSG(!calls && (i < 2 || (i == 2 ? is_city(text) : text.n && text.s[0] == '{')), "%s", a.body.p);
            } else {
                CHECK_MSG(calls && calls->n == 1 && is_city(rig_str(&calls->item[0], "function.arguments")), "%s: %s",
                          how[i], a.body.p);
            }
            CHECK_INT(rig_field(&a, "X-Tandem-Warning").n, 0);
            rig_reply_deinit(&a);
        }
    rig_stop(&r);
}

TEST(server_warns_of_a_tool_that_takes_any_arguments)
{
    static const struct {
        const char *tools, *choice;
        int         status;
        const char *says; /* the header's beginning, or a part of the error */
    } c[] = {
        {STRICT("odd", ODD, "") "," STRICT("look", CITY, ""), "\"required\"", 200,
         "tool 'odd' takes any arguments: #/maxprop"},
        {STRICT("odd", ODD, ",\"strict\":false"), FUNCTION("odd"), 200, "tool 'odd' takes any arguments: #/maxprop"},
        {STRICT("odd", ODD, "") "," STRICT("look", CITY, ""), FUNCTION("look"), 200, ""},
        {STRICT("odd", ODD, ""), "\"auto\"", 200, ""},
        {STRICT("odd", ODD, "") "," STRICT("look", CITY, YES), "\"auto\"", 200, ""},
        {STRICT("odd", ODD, YES), "\"auto\"", 400, "'tools' cannot be enforced: the parameters of tool 'odd'"},
        {STRICT("odd", ODD, YES) "," STRICT("look", CITY, ""), "\"required\"", 400,
         "'tools' cannot be enforced: the parameters"},
        {STRICT("odd", ODD, ",\"strict\":1"), "\"auto\"", 400, "tools[0].function.strict"},
    };
    server_rig r;
    rig_reply  a;
    char       body[2048];
    start(&r, t);
    for (size_t i = 0; i < COUNT(c); i++)
        for (int again = 0; again < 2; again++) { /* the second finds it compiled */
            snprintf(body, sizeof body, "{\"max_tokens\":20,\"tools\":[%s],\"tool_choice\":%s,%s" USER "}", c[i].tools,
                     c[i].choice, again ? "\"stream\":true," : "");
            rig_post(&r, CHAT, body, &a);
            CHECK_INT(a.status, c[i].status);
            str told = rig_field(&a, "X-Tandem-Warning");
            if (a.status == 200)
                CHECK_MSG(c[i].says[0] ? str_starts(told, c[i].says) : !told.n, "%zu: '%.*s'", i, STR_ARG(told));
            else
                CHECK_MSG(strstr(a.body.p, c[i].says), "%zu: %s", i, a.body.p);
            rig_reply_deinit(&a);
        }
    rig_wait_idle(&r);
    rig_stop(&r);
}

TEST(server_calls_are_forced)
{
    static const struct {
        const char *choice;
        const char *name; /* that is called; NULL: any */
        bool        one;
    } c[] = {{"\"required\"", NULL, false},
             {FUNCTION("look"), "look", true},
             {"{\"type\":\"function\",\"name\":\"wait\"}", "wait", true},
             {"{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"required\",\"tools\":[" FUNCTION("wait") "]}}",
              "wait", false},
             {"\"required\",\"parallel_tool_calls\":false", NULL, true},
             {FUNCTION("look") "," FORMAT, "look", true}};
    server_rig r;
    rig_reply  a;
    char       body[2048];
    start(&r, t);
    for (size_t i = 0; i < COUNT(c); i++)
        for (int seed = 0; seed < 4; seed++) {
            snprintf(body, sizeof body,
                     "{\"max_tokens\":200,\"temperature\":1,\"seed\":%d,%s\"tool_choice\":%s," TOOLS "," USER "}", seed,
                     seed == 3 ? "\"chat_template_kwargs\":{\"enable_thinking\":true}," : "", c[i].choice);
            rig_post(&r, CHAT, body, &a);
            const json_value *v = rig_json(&a), *calls = rig_at(v, "choices.0.message.tool_calls");
            CHECK_INT(a.status, 200);
            CHECK_MSG(calls && calls->n >= 1 && (!c[i].one || calls->n == 1), "%s: %s", c[i].choice, a.body.p);
            CHECK(rig_at(v, "choices.0.message.content")->kind == JSON_NULL);
            for (size_t k = 0; calls && k < calls->n; k++) {
                str name = rig_str(&calls->item[k], "function.name"),
                    args = rig_str(&calls->item[k], "function.arguments");
                if (c[i].name) CHECK_STR(name, str_of(c[i].name));
                CHECK_MSG(str_is(name, "look") ? is_city(args) : str_is(args, "{}"), "%s", a.body.p);
            }
            rig_reply_deinit(&a);
        }
    rig_stop(&r);
}

/* With tools an answer may be a call instead; without the schema's words nothing else. */
TEST(server_schema_leaves_calls_alone)
{
    server_rig r;
    rig_reply  a;
    start(&r, t);
    rig_post(&r, CHAT,
             "{\"temperature\":0," FORMAT ",\"tools\":[" TOOL(
                 "get_weather", "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":["
                                "\"city\"]}") "],\"messages\":[{\"role\":\"user\",\"content\":\"What is the weather in "
                                              "Paris?\"}]}",
             &a);
    CHECK_STR(rig_str(rig_json(&a), "choices.0.message.tool_calls.0.function.name"), STR("get_weather"));
    rig_reply_deinit(&a);
    rig_stop(&r);
}

static void refused(server_rig *r, const char *path, const char *more, const char *param, const char *words)
{
    test_case *t = r->t;
    rig_reply  a;
    char       body[1024];
    snprintf(body, sizeof body, "{\"prompt\":\"A\"," USER ",%s}", more);
    rig_post(r, path, body, &a);
    CHECK_MSG(a.status == 400, "%s: %d", more, a.status);
    CHECK_MSG(str_is(rig_str(rig_json(&a), "error.param"), param) && strstr(a.body.p, words), "%s: %s", more, a.body.p);
    CHECK_MSG(!strstr(a.body.p, "context_length"), "%s: %s", more, a.body.p);
    rig_reply_deinit(&a);
}

TEST(server_says_which_form_cannot_be_kept)
{
    server_rig r;
    start(&r, t);
    refused(&r, CHAT, "\"tool_choice\":\"required\"", "tool_choice", "no 'tools'");
    refused(&r, CHAT, "\"tool_choice\":" FUNCTION("other") "," TOOLS, "tool_choice", "'other'");
    refused(&r, CHAT, "\"tool_choice\":{\"type\":\"allowed_tools\"}," TOOLS, "tool_choice", "allowed_tools");
    refused(&r, CHAT, "\"tool_choice\":\"required\",\"tools\":[" STRICT("x", "{\"not\":{}}", YES) "]", "tools",
            "object");
    refused(&r, CHAT, "\"response_format\":{\"type\":\"xml\"}", "response_format.type", "json_schema");
    refused(&r, CHAT, "\"response_format\":{\"type\":\"json_schema\"}", "response_format.json_schema", "schema");
    refused(&r, CHAT, "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":7,\"schema\":{}}}",
            "response_format.json_schema.name", "1 to 64");
    refused(&r, CHAT, "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"strict\":7,\"schema\":{}}}",
            "response_format.json_schema.strict", "true or false");
    refused(&r, CHAT,
            "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"properties\":{\"a\":{\"not\":"
            "1}}}}}",
            "response_format", "#/properties/a/not");
    refused(&r, TEXT, "\"json_schema\":[]", "json_schema", "JSON Schema");
    refused(&r, TEXT, "\"json_schema\":{\"type\":\"nothing\"}", "json_schema", "nothing");
    refused(&r, TEXT, "\"grammar\":\"root ::= yes\"", "grammar", "'yes'");
    refused(&r, TEXT, "\"grammar\":\"root ::= <nothing>\"", "grammar", "<nothing>");
    refused(&r, TEXT, "\"json_schema\":{},\"grammar\":\"root ::= [a]\"", "grammar", "exclude each other");
    rig_wait_idle(&r);
    rig_stop(&r);
}

/* --- costly ones --------------------------------------------------------------------------------*/
/* An enum of n beside an anyOf of n: their product is far more work than a compilation may take. */
static void put_costly(buf *b, int n)
{
    buf_puts(b, "{" USER ",\"max_tokens\":4,\"json_schema\":{\"enum\":[0");
    for (int i = 1; i < n; i++) buf_printf(b, ",%d", i);
    buf_puts(b, "],\"anyOf\":[{\"minimum\":3}");
    for (int i = 1; i < n; i++) buf_printf(b, ",{\"maximum\":-1.%d}", i);
    buf_puts(b, "]}}");
    buf_putc(b, 0);
}

TEST(server_refuses_schemas_that_take_too_much_work)
{
    enum { MANY = 6 };
    server_rig r;
    rig_reply  a;
    buf        b;
    int        fd[MANY];
    buf_init(&b, 8 << 20);
    put_costly(&b, 8000);
    start(&r, t);
    for (int i = 0; i < MANY; i++) {
        fd[i] = rig_connect(&r);
        rig_send(fd[i], "POST", CHAT, "", b.p);
    }
    rig_post(&r, CHAT, "{\"max_tokens\":4," USER "}", &a); /* the other workers go on */
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    rig_ask(&r, "GET", "/ready", "", "", &a);
    CHECK_INT(a.status, 200);
    rig_reply_deinit(&a);
    for (int i = 0; i < MANY; i++) {
        if (i % 2) {
            close(fd[i]); /* a client that leaves */
            continue;
        }
        rig_read(fd[i], &a);
        CHECK_INT(a.status, 400);
        CHECK_MSG(strstr(a.body.p, "takes too much work to compile"), "%s", a.body.p);
        rig_reply_deinit(&a);
    }
    rig_wait_idle(&r);
    rig_stop(&r);
    buf_deinit(&b);
}
