/* Our prompts against those of the real templates, byte for byte. conversations.json was rendered by
 * tests/e2e/templates.mjs, quirks.json (values whose text is Python's) by tests/golden/chat/quirks.py. */
#include "base/file.h"
#include "chat/chat.h"
#include "test.h"

typedef struct {
    file_map          text;
    const json_value *root;
} document;

static bool open_json(test_case *t, document *d, arena *mem, const char *name)
{
    char path[256];
    err  e;
    *d = (document){0};
    snprintf(path, sizeof path, "tests/golden/chat/%s", name);
    return CHECK_OK(file_map_open(&d->text, test_path(path), &e), e) &&
           CHECK_OK(json_parse(&d->root, mem, (str){d->text.p, d->text.n}, NULL, &e), e);
}

static void print_difference(str got, str want)
{
    size_t i = 0;
    while (i < got.n && i < want.n && got.s[i] == want.s[i]) i++;
    size_t from = i > 60 ? i - 60 : 0;
    printf("    got      ...%.*s\n    expected ...%.*s\n", (int)(got.n - from < 160 ? got.n - from : 160), got.s + from,
           (int)(want.n - from < 160 ? want.n - from : 160), want.s + from);
}

static void check_one(test_case *t, str name, const char *key, const json_value *request, const json_value *want)
{
    chat        *c;
    arena        mem;
    buf          text;
    err          e = {0};
    chat_options o = {.revision              = key[0] == 'A' ? CHAT_REV_A : CHAT_REV_B,
                      .empty_thought         = !key[1],
                      .add_generation_prompt = true,
                      .exact                 = true};
    arena_init(&mem, 1 << 24);
    buf_init(&text, 1 << 24);
    bool ok = chat_parse(&c, &mem, request, &e);
    if (ok) {
        chat_apply_wishes(c, &o);
        ok = chat_render_text(&text, c, &o, &e);
    }
    if (want->kind != JSON_STRING) { /* the reference raised an error */
        CHECK_MSG(!ok && e.code == ERR_INPUT && e.text[0], "%s %.*s: not refused", key, STR_ARG(name));
    } else if (!CHECK_MSG(ok, "%s %.*s: %s", key, STR_ARG(name), e.text) ||
               !CHECK_MSG(str_eq(buf_str(&text), want->s), "%s %.*s differs", key, STR_ARG(name))) {
        print_difference(buf_str(&text), want->s);
    }
    buf_deinit(&text);
    arena_deinit(&mem);
}

static void check_file(test_case *t, const char *conversations, const char *expected, size_t at_least)
{
    static const char *const keys[] = {"A", "A-small", "B", "B-small"};
    document                 in, want;
    arena                    mem;
    arena_init(&mem, 1 << 26);
    if (open_json(t, &in, &mem, conversations) && open_json(t, &want, &mem, expected)) {
        CHECK(in.root->n >= at_least && in.root->n == want.root->n);
        for (size_t i = 0; i < in.root->n && i < want.root->n; i++) {
            str               name  = json_get(&in.root->item[i], "name")->s;
            const json_value *texts = &want.root->member[i].value;
            CHECK_STR(want.root->member[i].key, name);
            for (size_t k = 0; k < COUNT(keys); k++)
                check_one(t, name, keys[k], json_get(&in.root->item[i], "request"), json_get(texts, keys[k]));
        }
    }
    file_map_close(&in.text);
    file_map_close(&want.text);
    arena_deinit(&mem);
}

TEST(chat_prompts_are_the_templates) { check_file(t, "conversations.json", "expected.json", 120); }
TEST(chat_prompts_print_values_as_python_does) { check_file(t, "quirks.json", "quirks_expected.json", 15); }

/* --- where we go beyond the templates -----------------------------------------------------------*/
static void check_text(test_case *t, const char *request, chat_options o, const char *want)
{
    chat             *c;
    arena             mem;
    buf               text;
    err               e;
    const json_value *v;
    arena_init(&mem, 1 << 20);
    buf_init(&text, 1 << 20);
    if (CHECK_OK(json_parse(&v, &mem, str_of(request), NULL, &e), e) && CHECK_OK(chat_parse(&c, &mem, v, &e), e)) {
        chat_apply_wishes(c, &o);
        CHECK_OK(chat_render_text(&text, c, &o, &e), e);
        if (!CHECK(str_is(buf_str(&text), want))) print_difference(buf_str(&text), str_of(want));
    }
    buf_deinit(&text);
    arena_deinit(&mem);
}

#define CALL                                                                                                           \
    "{\"role\":\"user\",\"content\":\"Go\"},{\"role\":\"assistant\",\"content\":\"See\",\"tool_calls\":[{\"id\":"      \
    "\"1\","                                                                                                           \
    "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}"

TEST(chat_opens_a_turn_after_a_call_with_a_text)
{
    static const char request[] =
        "{\"messages\":[" CALL ",{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"x\"}]}";
    chat_options a = {.revision = CHAT_REV_A, .add_generation_prompt = true};
    chat_options b = {.revision = CHAT_REV_B, .add_generation_prompt = true, .thinking = true};
    check_text(t, request, a,
               "<bos><|turn>user\nGo<turn|>\n<|turn>model\n<|tool_call>call:f{}<tool_call|><|tool_response>response:f{"
               "value:<|\"|>x<|\"|>}<tool_response|>See<turn|>\n<|turn>model\n");
    check_text(
        t, request, b,
        "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nGo<turn|>\n<|turn>model\n<|tool_call>call:f{}<tool_"
        "call|><|tool_response>response:f{value:<|\"|>x<|\"|>}<tool_response|>See<turn|>\n<|turn>model\n<|channel>"
        "thought\n");
}

TEST(chat_fills_the_gaps_of_the_templates)
{
    chat_options a = {.revision = CHAT_REV_A};
    check_text(
        t,
        "{\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\" one \"},{\"type\":\"text\","
        "\"text\":\"two\"}]},{\"role\":\"user\",\"content\":\"x\"}]}",
        a, "<bos><|turn>system\nonetwo<turn|>\n<|turn>user\nx<turn|>\n");
    check_text(t, "{\"messages\":[" CALL ",{\"role\":\"tool\",\"content\":{\"temp\":3,\"Sky\":null}}]}", a,
               "<bos><|turn>user\nGo<turn|>\n<|turn>model\n<|tool_call>call:f{}<tool_call|><|tool_response>response:"
               "unknown{Sky:None,temp:3}<tool_response|>See<turn|>\n");
}
