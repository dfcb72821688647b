/* What requests in the words of other servers get back. */
#include "server_rig.h"

#include "base/mem.h"

#include <stdio.h>

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"Hello there\"}]"
#define ADD                                                                                                            \
    "\"functions\":[{\"name\":\"add\",\"parameters\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":"            \
    "\"integer\","                                                                                                     \
    "\"minimum\":1,\"maximum\":9}},\"required\":[\"n\"],\"additionalProperties\":false}}]"

static bool matches_code(str s)
{
    bool ok = s.n == 5 && s.s[2] == '-';
    for (size_t i = 0; ok && i < 5; i++)
        ok = i == 2 || (s.s[i] >= (i < 2 ? 'a' : '0') && s.s[i] <= (i < 2 ? 'c' : '9'));
    return ok;
}

TEST(server_answers_match_a_regular_expression)
{
    static const char *const how[] = {"\"guided_regex\":\"[a-c]{2}-[0-9]{2}\"",
                                      "\"structured_outputs\":{\"regex\":\"^[a-c]{2}-\\\\d\\\\d$\"}"};
    server_rig               r;
    rig_reply                a;
    char                     body[512];
    rig_init(&r, t);
    rig_start(&r);
    for (int i = 0; i < 6; i++) {
        snprintf(body, sizeof body, "{\"temperature\":1.5,\"seed\":%d,%s," USER "}", i, how[i % 2]);
        rig_post(&r, CHAT, body, &a);
        CHECK_MSG(a.status == 200 && matches_code(rig_str(rig_json(&a), "choices.0.message.content")), "%s gives %s",
                  body, a.body.p);
        rig_reply_deinit(&a);
    }
    rig_post(&r, TEXT, "{\"prompt\":\"A\",\"guided_choice\":[\"yes\\\"\\\\\",\"no\\n\"]}", &a);
    str text = rig_str(rig_json(&a), "choices.0.text");
    CHECK_MSG(str_is(text, "yes\"\\") || str_is(text, "no\n"), "%s", a.body.p);
    rig_reply_deinit(&a);
    rig_post(&r, TEXT, "{\"prompt\":\"A\",\"guided_regex\":\"(?=a)b\"}", &a);
    CHECK_INT(a.status, 400);
    CHECK_STR(rig_str(rig_json(&a), "error.param"), STR("guided_regex"));
    rig_reply_deinit(&a);
    rig_wait_idle(&r);
    rig_stop(&r);
}

/* A request with `functions` is answered with `function_call`, whole and in events. */
TEST(server_functions_are_answered_as_they_were_asked)
{
    server_rig r;
    rig_reply  a;
    buf        args, name;
    str        data, reason = {0};
    size_t     at = 0;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(&r, CHAT, "{\"seed\":1," ADD ",\"function_call\":{\"name\":\"add\"}," USER "}", &a);
    const json_value *v = rig_json(&a);
    CHECK_STR(rig_str(v, "choices.0.finish_reason"), STR("function_call"));
    CHECK_STR(rig_str(v, "choices.0.message.function_call.name"), STR("add"));
    CHECK(str_starts(rig_str(v, "choices.0.message.function_call.arguments"), "{\"n\":"));
    CHECK(v && !rig_at(v, "choices.0.message.tool_calls"));
    buf_init(&args, 1 << 16);
    buf_init(&name, 1 << 16);
    rig_reply s;
    rig_post(&r, CHAT, "{\"stream\":true,\"seed\":1," ADD ",\"function_call\":{\"name\":\"add\"}," USER "}", &s);
    while (rig_event(&s, &at, &data)) {
        const json_value *e;
        if (str_is(data, "[DONE]") || !json_parse(&e, &s.mem, data, NULL, NULL)) continue;
        str piece = rig_str(e, "choices.0.delta.function_call.arguments");
        str given = rig_str(e, "choices.0.delta.function_call.name"), end = rig_str(e, "choices.0.finish_reason");
        buf_put(&args, piece.s, piece.n);
        buf_put(&name, given.s, given.n);
        if (end.n) reason = end;
    }
    CHECK_STR(buf_str(&args), rig_str(v, "choices.0.message.function_call.arguments"));
    CHECK_STR(buf_str(&name), STR("add"));
    CHECK_STR(reason, STR("function_call"));
    buf_deinit(&args);
    buf_deinit(&name);
    rig_reply_deinit(&a);
    rig_reply_deinit(&s);
    rig_wait_idle(&r);
    rig_stop(&r);
}

/* An answer that is begun with its own first words goes on with the rest of it. */
TEST(server_continues_the_last_message)
{
#define SUM "{\"role\":\"user\",\"content\":\"What is 27 plus 58?\"}"
    server_rig r;
    rig_reply  whole, rest;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(&r, CHAT, "{\"temperature\":0,\"messages\":[" SUM "]}", &whole);
    rig_post(&r, CHAT,
             "{\"temperature\":0,\"messages\":[" SUM ",{\"role\":\"assistant\",\"content\":\"27 + 58\\nones:\"}],"
             "\"continue_final_message\":true,\"add_generation_prompt\":false}",
             &rest);
    str all = rig_str(rig_json(&whole), "choices.0.message.content"),
        end = rig_str(rig_json(&rest), "choices.0.message.content");
    CHECK_MSG(str_starts(all, "27 + 58\nones:"), "the answer is %.*s", STR_ARG(all));
    CHECK_STR(end, ((str){all.s + 13, all.n - 13}));
    rig_reply_deinit(&whole);
    rig_reply_deinit(&rest);
    rig_wait_idle(&r);
    rig_stop(&r);
}

TEST(server_counts_the_tokens_of_a_chat)
{
    server_rig r;
    rig_reply  a, b;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(&r, CHAT "/input_tokens", "{" USER "}", &a);
    rig_post(&r, CHAT, "{\"max_tokens\":1," USER "}", &b);
    CHECK_STR(rig_str(rig_json(&a), "object"), STR("response.input_tokens"));
    CHECK_INT(rig_int(rig_json(&a), "input_tokens"), rig_int(rig_json(&b), "usage.prompt_tokens"));
    rig_reply_deinit(&a);
    rig_reply_deinit(&b);
    rig_wait_idle(&r);
    rig_stop(&r);
}

TEST(server_warns_of_fields_that_it_ignores)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(&r, CHAT, "{\"max_tokens\":1,\"samplers\":[\"top_k\"],\"repeat_last_n\":64,\"mirostat\":0," USER "}", &a);
    CHECK_INT(a.status, 200);
    str warning = rig_field(&a, "X-Tandem-Warning");
    CHECK(warning.n && memmem(warning.s, warning.n, "'samplers'", 10));
    CHECK(warning.n && memmem(warning.s, warning.n, "'repeat_last_n'", 15));
    CHECK(warning.n && !memmem(warning.s, warning.n, "mirostat", 8));
    rig_reply_deinit(&a);
    rig_post(&r, "/apply-template", "{\"samplers\":[\"top_k\"]," USER "}", &a);
    CHECK(a.status == 200 && rig_field(&a, "X-Tandem-Warning").n);
    rig_reply_deinit(&a);
    rig_wait_idle(&r);
    rig_stop(&r);
}

TEST(server_model_has_aliases)
{
    static const char *const names[] = {"other", "third"};
    server_rig               r;
    rig_reply                a;
    rig_init(&r, t);
    r.opt.aliases   = names;
    r.opt.n_aliases = 2;
    rig_start(&r);
    rig_ask(&r, "GET", "/v1/models", "", "", &a);
    CHECK_STR(rig_str(rig_json(&a), "data.0.id"), str_of(r.opt.model));
    CHECK_STR(rig_str(rig_json(&a), "data.2.id"), STR("third"));
    rig_reply_deinit(&a);
    rig_ask(&r, "GET", "/v1/models/other", "", "", &a);
    CHECK_INT(a.status, 200);
    CHECK_STR(rig_str(rig_json(&a), "id"), STR("other"));
    rig_reply_deinit(&a);
    rig_ask(&r, "GET", "/v1/models/fourth", "", "", &a);
    CHECK_INT(a.status, 404);
    rig_reply_deinit(&a);
    rig_stop(&r);
}
