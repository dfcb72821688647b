#include "load/prompts.h"

#include "load/body.h"
#include "load/inside.h"
#include "test.h"

TEST(load_prompts_of_every_kind)
{
    static const char file[] =
        "{\"task_id\": \"HumanEval/0\", \"prompt\": \"def f():\\n\"}\n"
        "\n"
        "{\"question_id\": 81, \"turns\": [\"First\", \"Second\"]}\r\n"
        "{\"conversations\": [{\"from\": \"gpt\", \"value\": \"x\"}, {\"from\": \"human\", \"value\": \"Hi\"}]}\n"
        "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"u\"}]}\n"
        "{\"text\": \"T\"}\n{\"question\": \"Q\", \"answer\": \"A\"}\n\"plain\"";
    static const char *const want[] = {"def f():\n", "First", "Hi", "", "T", "Q", "plain"};
    load_prompts             p;
    err                      e;
    CHECK_OK(load_prompts_parse(&p, str_of(file), &e), e);
    CHECK_INT(p.n, COUNT(want));
    for (size_t i = 0; i < p.n && i < COUNT(want); i++) CHECK_STR(p.item[i].text, str_of(want[i]));
    CHECK(p.n > 3 && p.item[3].messages && p.item[3].messages->n == 2);
    load_prompts_deinit(&p);
    CHECK_OK(load_prompts_parse(&p, STR(" [{\"text\": \"a\"},\n \"b\"]\n"), &e), e);
    CHECK_INT(p.n, 2);
    load_prompts_deinit(&p);
}

TEST(load_prompts_have_classes)
{
    static const char *want[] = {"code", "sums", "", "code"};
    static const char  file[] =
        "{\"prompt\": \"a\", \"class\": \"code\"}\n{\"turns\": [\"b\"], \"category\": \"sums\"}\n"
        "\"c\"\n{\"text\": \"d\", \"category\": \"sums\", \"class\": \"code\"}\n";
    load_prompts p;
    err          e = {0};
    CHECK_OK(load_prompts_parse(&p, str_of(file), &e), e);
    CHECK_INT(p.n, COUNT(want));
    for (size_t i = 0; i < p.n; i++) CHECK_STR(p.item[i].kind, str_of(want[i]));
    load_prompts_deinit(&p);
}

TEST(load_prompts_say_what_is_wrong_and_where)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"", "it has no prompts"},
        {"\n \n", "it has no prompts"},
        {"[]", "it has no prompts"},
        {"{\"text\": \"a\"}\n{\"text\": 1}\n", "line 2: it has none of messages"},
        {"{\"text\": \"a\"}\n\n{\"text\": \"a\"", "line 3: "},
        {"{\"text\": \"\"}", "line 1: the prompt is empty"},
        {"17", "neither an object nor a string"},
        {"{\"turns\": []}", "'turns' has 0 items, expected 1 to 16"},
        {"{\"turns\": [\"a\", 1]}", "item 2 of 'turns' is not a text"},
        {"{\"messages\": []}", "'messages' is empty"},
        {"{\"messages\": [{\"content\": \"x\"}]}", "message 1 of 'messages' has no role"},
        {"{\"conversations\": [{\"from\": \"gpt\", \"value\": \"x\"}]}", "no message from a human"},
        {"[\"a\", 1]", "item 2: "},
        {"<!DOCTYPE html>", "line 1: "},
        {"\x1f\x8b\x08", "it is compressed"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        load_prompts p;
        err          e;
        CHECK_FAILS(load_prompts_parse(&p, str_of(bad[i].text), &e), e, bad[i].why);
        load_prompts_deinit(&p);
    }
    load_prompts p;
    err          e;
    CHECK_FAILS(load_prompts_read(&p, "/nowhere.jsonl", &e), e, "/nowhere.jsonl");
    load_prompts_deinit(&p);
}

static void check_body(test_case *t, const load_ask *ask, uint64_t number, const char *want)
{
    buf out;
    err e;
    buf_init(&out, 1 << 16);
    CHECK_OK(load_body_put(&out, ask, "m", number, 0, 0, &e), e);
    CHECK_STR(buf_str(&out), str_of(want));
    buf_deinit(&out);
}

TEST(load_bodies)
{
    load_prompts      p;
    err               e;
    arena             mem;
    const json_value *extra;
    arena_init(&mem, 1 << 20);
    CHECK_OK(load_prompts_parse(&p,
                                STR("\"a\\\"b\"\n{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":"
                                    "\"user\",\"content\":[{\"type\":\"text\",\"text\":\"u\"}]}]}"),
                                &e),
             e);
    CHECK_OK(json_parse(&extra, &mem, STR("{\"stream_options\":{},\"top_k\":3,\"model\":\"x\"}"), NULL, &e), e);
    load_ask ask = {.is_chat = true, .prompts = &p};
    check_body(t, &ask, 0,
               "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\\\"b\"}],\"stream\":true,"
               "\"stream_options\":{\"include_usage\":true}}");
    ask.unique   = true;
    ask.has_temp = true;
    check_body(t, &ask, 3,
               "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"Question 3: s\"},{\"role\":\"user\","
               "\"content\":[{\"type\":\"text\",\"text\":\"u\"}]}],\"stream\":true,\"stream_options\":"
               "{\"include_usage\":true},\"temperature\":0.0}");
    ask = (load_ask){.prompts = &p, .extra = extra, .output_len = 7, .has_seed = true, .seed = 5};
    check_body(t, &ask, 2,
               "{\"prompt\":\"a\\\"b\",\"stream\":true,\"max_tokens\":7,\"ignore_eos\":true,\"seed\":5,"
               "\"stream_options\":{},\"top_k\":3,\"model\":\"x\"}");
    ask.may_end = true;
    check_body(t, &ask, 2,
               "{\"prompt\":\"a\\\"b\",\"stream\":true,\"max_tokens\":7,\"seed\":5,\"stream_options\":{},\"top_k\":3,"
               "\"model\":\"x\"}");
    buf out;
    buf_init(&out, 1 << 16);
    CHECK_FAILS(load_body_put(&out, &ask, "m", 1, 0, 0, &e), e, "need the chat completions endpoint");
    buf_deinit(&out);
    load_prompts_deinit(&p);
    arena_deinit(&mem);
}

TEST(load_made_up_prompts_differ_and_come_again)
{
    buf a, b;
    buf_init(&a, 1 << 16);
    buf_init(&b, 1 << 16);
    load_prompt_make(&a, 1, 5, 20);
    load_prompt_make(&b, 1, 5, 20);
    CHECK_STR(buf_str(&a), buf_str(&b));
    int spaces = 0;
    for (size_t i = 0; i < a.n; i++) spaces += a.p[i] == ' ';
    CHECK_INT(spaces, 19);
    buf_clear(&b);
    load_prompt_make(&b, 1, 6, 20);
    CHECK(!str_eq(buf_str(&a), buf_str(&b)));
    buf_clear(&b);
    load_prompt_make(&b, 2, 5, 20);
    CHECK(!str_eq(buf_str(&a), buf_str(&b)));
    buf_deinit(&a);
    buf_deinit(&b);
}
