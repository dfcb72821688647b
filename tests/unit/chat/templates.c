/* Our prompts against those of the published templates, byte for byte: tests/chat/templates.py rendered them. */
#include "base/file.h"
#include "chat/chat.h"
#include "chat/gemma4.h"
#include "chat/prompt_check.h"
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

static gemma4_revision find_revision(test_case *t, str name)
{
    gemma4_revision r = 0;
    while (r < GEMMA4_REVISIONS && !str_is(name, gemma4_revision_name(r))) r++;
    CHECK_MSG(r < GEMMA4_REVISIONS, "no revision '%.*s'", STR_ARG(name));
    return r < GEMMA4_REVISIONS ? r : 0;
}

/* Checks a conversation with every template. */
static void check_case(test_case *t, const json_value *in, const json_value *templates, const json_value *want)
{
    const json_value *of = json_get(want, "of"), *texts = json_get(want, "texts");
    if (!CHECK(of && texts && of->n == templates->n)) return;
    for (size_t i = 0; i < templates->n; i++) {
        chat_options o = {.format                = &gemma4_format,
                          .revision              = find_revision(t, json_get(&templates->item[i], "revision")->s),
                          .empty_thought         = json_get(&templates->item[i], "large")->b,
                          .add_generation_prompt = true,
                          .exact                 = true};
        check_prompt(t, json_get(in, "name")->s, o, json_get(in, "request"),
                     of->item[i].i < 0 ? NULL : &texts->item[of->item[i].i].s);
    }
}

/* Every two templates differ in at least one conversation. */
static void check_differences(test_case *t, const json_value *templates, const json_value *cases)
{
    for (size_t a = 0; a < templates->n; a++)
        for (size_t b = 0; b < a; b++) {
            size_t n = 0;
            for (size_t i = 0; i < cases->n; i++) {
                const json_value *of = json_get(&cases->member[i].value, "of");
                n += of->item[a].i != of->item[b].i;
            }
            CHECK_MSG(n > 0, "templates %zu and %zu are the same", a, b);
        }
}

TEST(chat_prompts_are_the_templates)
{
    document in, want;
    arena    mem;
    arena_init(&mem, 1 << 26);
    if (open_json(t, &in, &mem, "conversations.json") && open_json(t, &want, &mem, "expected.json")) {
        const json_value *templates = json_get(want.root, "templates"), *cases = json_get(want.root, "cases");
        CHECK(in.root->n >= 160 && in.root->n == cases->n && templates->n >= 19);
        for (size_t i = 0; i < in.root->n && i < cases->n; i++) {
            CHECK_STR(cases->member[i].key, json_get(&in.root->item[i], "name")->s);
            check_case(t, &in.root->item[i], templates, &cases->member[i].value);
        }
        check_differences(t, templates, cases);
    }
    file_map_close(&in.text);
    file_map_close(&want.text);
    arena_deinit(&mem);
}

/* --- where we go beyond the templates -----------------------------------------------------------*/
#define CALL                                                                                                           \
    "{\"role\":\"user\",\"content\":\"Go\"},{\"role\":\"assistant\",\"content\":\"See\",\"tool_calls\":[{\"id\":"      \
    "\"1\","                                                                                                           \
    "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}"

TEST(chat_opens_a_turn_after_a_call_with_a_text)
{
    static const char request[] =
        "{\"messages\":[" CALL ",{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"x\"}]}";
    chat_options a = {.format = &gemma4_format, .revision = GEMMA4_GOOGLE_0410, .add_generation_prompt = true};
    chat_options b = {
        .format = &gemma4_format, .revision = GEMMA4_VLLM_0617, .add_generation_prompt = true, .thinking = true};
    check_prompt_text(
        t, request, a,
        "<bos><|turn>user\nGo<turn|>\n<|turn>model\n<|tool_call>call:f{}<tool_call|><|tool_response>response:f{"
        "value:<|\"|>x<|\"|>}<tool_response|>See<turn|>\n<|turn>model\n");
    check_prompt_text(
        t, request, b,
        "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nGo<turn|>\n<|turn>model\n<|tool_call>call:f{}<tool_"
        "call|><|tool_response>response:f{value:<|\"|>x<|\"|>}<tool_response|>See<turn|>\n<|turn>model\n<|channel>"
        "thought\n");
}

TEST(chat_fills_the_gaps_of_the_templates)
{
    chat_options a = {.format = &gemma4_format, .revision = GEMMA4_GOOGLE_0410};
    check_prompt_text(
        t,
        "{\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\" one \"},{\"type\":\"text\","
        "\"text\":\"two\"}]},{\"role\":\"user\",\"content\":\"x\"}]}",
        a, "<bos><|turn>system\nonetwo<turn|>\n<|turn>user\nx<turn|>\n");
    check_prompt_text(
        t,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Go\"},{\"role\":\"assistant\",\"content\":\"S\",\"tool_"
        "calls\":["
        "{\"function\":{\"name\":\"f\"}}]},{\"role\":\"tool\",\"name\":\"f\",\"content\":\"x\"}]}",
        a,
        "<bos><|turn>user\nGo<turn|>\n<|turn>model\n<|tool_call>call:f{}<tool_call|><|tool_response>response:f{"
        "value:<|\"|>x<|\"|>}<tool_response|>S<turn|>\n");
    check_prompt_text(
        t, "{\"messages\":[" CALL ",{\"role\":\"tool\",\"content\":{\"temp\":3,\"Sky\":null}}]}", a,
        "<bos><|turn>user\nGo<turn|>\n<|turn>model\n<|tool_call>call:f{}<tool_call|><|tool_response>response:"
        "unknown{Sky:None,temp:3}<tool_response|>See<turn|>\n");
    a.revision = GEMMA4_GOOGLE_0402; /* an answer is a turn of its own, which can only be a text */
    check_prompt_text(t, "{\"messages\":[{\"role\":\"tool\",\"content\":{\"temp\":3,\"Sky\":null}}]}", a,
                      "<bos><|turn>tool\n{Sky:None,temp:3}<turn|>\n");
}

/* What Python escapes in a quoted text, and which quotes it takes. */
TEST(chat_quotes_as_python_does)
{
    static const struct {
        const char *json, *python;
    } cases[] = {{"a", "'a'"},
                 {"it's", "\"it's\""},
                 {"\\\"", "'\"'"},
                 {"'\\\"", "'\\'\"'"},
                 {"\\\\", "'\\\\'"},
                 {"\\n\\r\\t", "'\\n\\r\\t'"},
                 {"\\u0001\\u001f \\u007f~", "'\\x01\\x1f \\x7f~'"},
                 {"\xC3\xA9", "'\xC3\xA9'"},
                 {"", "''"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char request[512], want[512];
        snprintf(request, sizeof request,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"function\":{\"name\":\"f\","
                 "\"description\":["
                 "\"%s\",{\"%s\":1}]}}]}",
                 cases[i].json, cases[i].json);
        snprintf(
            want, sizeof want,
            "<bos><|turn>system\n<|tool>declaration:f{description:<|\"|>[%s, {%s: 1}]<|\"|>}<tool|><turn|>\n<|turn>user"
            "\nx<turn|>\n",
            cases[i].python, cases[i].python);
        check_prompt_text(t, request, (chat_options){.format = &gemma4_format, .revision = GEMMA4_VLLM_0617}, want);
    }
}

/* --- the order of keys --------------------------------------------------------------------------*/
/* Capitals, each with its small letter, of the alphabets that keys are written in. */
static const char letters[] = "AaBbCcDdEeFfGgHhIiJjKkLlMmNnOoPpQqRrSsTtUuVvWwXxYyZz"
                              "ÀàÁáÂâÃãÄäÅåÆæÇçÈèÉéÊêËëÌìÍíÎîÏïÐðÑñÒòÓóÔôÕõÖöØøÙùÚúÛûÜüÝýÞþ"
                              "ĀāĂăĄąĆćĈĉĊċČčĎďĐđĒēĔĕĖėĘęĚěĜĝĞğĠġĢģĤĥĦħĨĩĪīĬĭĮįĲĳĴĵĶķ"
                              "ĹĺĻļĽľĿŀŁłŃńŅņŇň"
                              "ŊŋŌōŎŏŐőŒœŔŕŖŗŘřŚśŜŝŞşŠšŢţŤťŦŧŨũŪūŬŭŮůŰűŲųŴŵŶŷ"
                              "ŸÿŹźŻżŽž"
                              "ΑαΒβΓγΔδΕεΖζΗηΘθΙιΚκΛλΜμΝνΞξΟοΠπΡρΣσΤτΥυΦφΧχΨψΩωΪϊΫϋ"
                              "ЀѐЁёЂђЃѓЄєЅѕІіЇїЈјЉљЊњЋћЌќЍѝЎўЏџ"
                              "АаБбВвГгДдЕеЖжЗзИиЙйКкЛлМмНнОоПпРрСсТтУуФфХхЦцЧчШшЩщЪъЫыЬьЭэЮюЯя"
                              "ѠѡѢѣѤѥѦѧѨѩѪѫѬѭѮѯѰѱѲѳѴѵѶѷѸѹѺѻѼѽѾѿҀҁ";

static uint32_t small_letter(uint32_t c)
{
    uint32_t pair[2];
    for (const char *p = letters; *p;) {
        for (int k = 0; k < 2; k++) p += utf8_decode(p, strlen(p), &pair[k]);
        if (pair[0] == c) return pair[1];
    }
    return c;
}

/* Puts the character's UTF-8, and a letter behind it. */
static void put_key(buf *b, uint32_t c, char end)
{
    if (c < 0x80)
        buf_putc(b, (char)c);
    else
        buf_printf(b, "%c%c", (int)(0xC0 | c >> 6), (int)(0x80 | (c & 63)));
    buf_putc(b, end);
}

/* Renders {"Xb":1,"Ya":1} and tells whether the second key comes first. */
static bool second_is_first(test_case *t, uint32_t x, uint32_t y)
{
    arena             mem;
    buf               request, text, key;
    chat             *c;
    const json_value *v;
    err               e;
    chat_options      o = {.format = &gemma4_format, .revision = GEMMA4_VLLM_0617};
    arena_init(&mem, 1 << 20);
    buf_init(&request, 1 << 12);
    buf_init(&text, 1 << 12);
    buf_init(&key, 16);
    buf_puts(&request,
             "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"");
    put_key(&request, x, 'b');
    buf_puts(&request, "\":1,\"");
    put_key(&request, y, 'a');
    buf_puts(&request, "\":1}}}]}]}");
    put_key(&key, y, 'a');
    CHECK_OK(json_parse(&v, &mem, buf_str(&request), NULL, &e), e);
    CHECK_OK(chat_parse(&c, &mem, v, &e) && chat_render_text(&text, c, &o, &e), e);
    const char *brace = memchr(text.p, '{', text.n);
    bool        first = brace && !memcmp(brace + 1, key.p, key.n);
    arena_deinit(&mem);
    buf_deinit(&request);
    buf_deinit(&text);
    buf_deinit(&key);
    return first;
}

/* By the small letters, whichever are given: each character beside those that it could be mistaken for. */
TEST(chat_keys_are_sorted_whatever_their_case)
{
    static const int beside[] = {1, -1, 32, -32, 80, -80, 121, -121};
    for (uint32_t x = 'A'; x < 0x490; x++) {
        if (x > 'z' && x < 0xA0) continue;
        if (x == '\\' || x == 0x3A2) continue; /* U+03A2 is no letter */
        for (size_t i = 0; i < COUNT(beside); i++) {
            uint32_t y = (uint32_t)((int)x + beside[i]), a = small_letter(x), b = small_letter(y);
            if (y < '0' || y == '\\' || y == 0x3A2 || (y > 'z' && y < 0xA0) || y > 0x489) continue;
            if (y > 0x3CE && y < 0x400) continue; /* Coptic and others, as they are */
            if (x > 0x3CE && x < 0x400) continue;
            bool want = a == b || b < a;
            CHECK_MSG(second_is_first(t, x, y) == want, "U+%04X and U+%04X", x, y);
        }
    }
}
