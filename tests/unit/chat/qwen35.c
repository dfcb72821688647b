/* Qwen's chat format: prompts against those of the published templates, byte for byte, and the parser of answers, each
 * stream in one piece, byte by byte and cut at every place. */
#include "chat/qwen35_inside.h"

#include "base/file.h"
#include "chat/prompt_check.h"
#include "chat/transcript.h"
#include "test.h"

/* --- prompts ------------------------------------------------------------------------------------*/
/* The template's own defaults, which a request may change. */
static chat_options defaults_of(int revision)
{
    return (chat_options){.format                = &qwen35_format,
                          .revision              = revision,
                          .thinking              = revision != QWEN35_SMALL,
                          .preserve_thinking     = revision == QWEN38,
                          .add_generation_prompt = true,
                          .exact                 = true};
}

TEST(qwen_prompts_are_the_templates)
{
    file_map          file = {0};
    const json_value *root, *cases;
    arena             mem;
    err               e;
    arena_init(&mem, 1 << 26);
    if (CHECK_OK(file_map_open(&file, test_path("tests/golden/chat/qwen.json"), &e), e) &&
        CHECK_OK(json_parse(&root, &mem, (str){file.p, file.n}, NULL, &e), e) &&
        CHECK((cases = json_get(root, "cases")) && cases->n >= 25))
        for (size_t i = 0; i < cases->n; i++) {
            const json_value *in = &cases->item[i], *of = json_get(in, "of"), *texts = json_get(in, "texts");
            for (int r = 0; r < QWEN35_REVISIONS; r++)
                check_prompt(t, json_get(in, "name")->s, defaults_of(r), json_get(in, "request"),
                             of->item[r].i < 0 ? NULL : &texts->item[of->item[r].i].s);
        }
    file_map_close(&file);
    arena_deinit(&mem);
}

/* Where we go beyond the template: system messages anywhere, developers, results of tools that are values. */
static void check_text(test_case *t, const char *request, const char *want)
{
    chat_options o = defaults_of(QWEN36);
    o.exact        = false;
    check_prompt_text(t, request, o, want);
}

#define ASSISTANT "<|im_start|>assistant\n<think>\n"
TEST(qwen_prompts_beyond_the_templates)
{
    check_text(t, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"developer\",\"content\":\" b \"}]}",
               "<|im_start|>system\nb<|im_end|>\n<|im_start|>user\na<|im_end|>\n" ASSISTANT);
    check_text(t,
               "{\"messages\":[{\"role\":\"system\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"a\"},"
               "{\"role\":\"system\",\"content\":\"y\"}]}",
               "<|im_start|>system\nx\n\ny<|im_end|>\n<|im_start|>user\na<|im_end|>\n" ASSISTANT);
    check_text(t, "{\"messages\":[{\"role\":\"system\",\"content\":\"x\"}]}",
               "<|im_start|>system\nx<|im_end|>\n" ASSISTANT);
    check_text(t,
               "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"It is\"}],"
               "\"continue_final_message\":true}",
               "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nIt is");
}

/* --- answers ------------------------------------------------------------------------------------*/
/* Feeds whole characters and whole markers, as tokens do. */
static size_t put_piece(chat_parser *p, str s, size_t max)
{
    size_t n = 0;
    for (qwen35_marker m = 0; m < Q_MARKERS; m++)
        if (s.n >= qwen35_marker_name(m).n && !memcmp(s.s, qwen35_marker_name(m).s, qwen35_marker_name(m).n)) {
            qwen35_parser_put_marker(p, m);
            return qwen35_marker_name(m).n;
        }
    while (n < s.n && (n < max || utf8_open_tail(s.s, n))) {
        bool marks = false;
        for (qwen35_marker m = 0; n && m < Q_MARKERS; m++) {
            str name = qwen35_marker_name(m);
            marks |= s.n - n >= name.n && !memcmp(s.s + n, name.s, name.n);
        }
        if (marks) break;
        n++;
    }
    qwen35_parser_put_text(p, (str){s.s, n});
    return n;
}

static void run(test_case *t, transcript *x, str in, size_t first, size_t step, const chat *c, bool in_thought)
{
    err                e;
    chat_parse_options opt = {
        .format = &qwen35_format, .on_event = transcript_note, .ctx = x, .in_thought = in_thought, .chat = c};
    chat_parser *p = qwen35_parser_ops.create(&opt);
    *x             = (transcript){0};
    buf_init(&x->text, 1 << 20);
    for (size_t i = 0, n = first; i < in.n; n = step) i += put_piece(p, (str){in.s + i, in.n - i}, n);
    CHECK_OK(p->ops->finish(p, &e), e);
    transcript_close(x);
    p->ops->destroy(p);
}

static void check_answer(test_case *t, const char *text, const char *want, const chat *c, bool in_thought)
{
    str        in = str_of(text);
    transcript x;
    run(t, &x, in, in.n, 1, c, in_thought);
    CHECK_MSG(str_is(buf_str(&x.text), want), "'%s' gives '%.*s', expected '%s'", text, STR_ARG(buf_str(&x.text)),
              want);
    for (size_t cut = 0; cut < in.n; cut++) {
        transcript y;
        run(t, &y, in, cut ? cut : 1, cut ? in.n : 1, c, in_thought);
        CHECK_MSG(str_eq(buf_str(&y.text), buf_str(&x.text)), "'%s' cut at %zu gives '%.*s'", text, cut,
                  STR_ARG(buf_str(&y.text)));
        buf_deinit(&y.text);
    }
    buf_deinit(&x.text);
}

#define FN(name, text)  "<function=" name ">\n" text "</function>"
#define CALL(text)      "<tool_call>\n" FN("f", text) "\n</tool_call>"
#define PARAM(key, val) "<parameter=" key ">\n" val "\n</parameter>\n"

/* f is declared with s a string, i an integer, b a boolean, l a list, o an object, e a string or an integer. */
static const struct {
    const char *in, *want;
    bool        in_thought;
} answers[] = {
    {"Hello", "C(Hello)", false},
    {"  Hello \n", "C(  Hello \n)", false},
    {"I think.\n</think>\n\nHello", "R(I think.)C(Hello)", true},
    {"\nSo\n\nit is \n", "R(So\n\nit is \n)", true},
    {"</think>\n\nHello", "C(Hello)", true},
    {"<think>\nHm\n</think>\n\nHi", "R(Hm)C(Hi)", false},
    {"Hm</think>A<think>B</think>C", "R(Hm)C(A)R(B)C(C)", true},
    {CALL(""), "0:f({})|", false},
    {CALL(PARAM("s", "Vienna")), "0:f({\"s\":\"Vienna\"})|", false},
    {"Look:\n\n" CALL(PARAM("s", "a")) "<|im_end|>", "C(Look:)0:f({\"s\":\"a\"})|", false},
    {"why\n</think>\n\n" CALL(PARAM("s", "a")), "R(why)0:f({\"s\":\"a\"})|", true},
    {"why\n" CALL(PARAM("s", "a")), "R(why)0:f({\"s\":\"a\"})|", true}, /* a call inside a thought */
    {CALL(PARAM("s", "a")) "\n" CALL(PARAM("s", "b")), "0:f({\"s\":\"a\"})|1:f({\"s\":\"b\"})|", false},
    {CALL(PARAM("s", "a") PARAM("i", "3")), "0:f({\"s\":\"a\",\"i\":3})|", false},
    {CALL(PARAM("s", "  if x:\n    y\n")), "0:f({\"s\":\"  if x:\\n    y\\n\"})|", false}, /* indent, blank line */
    {CALL(PARAM("s", "")), "0:f({\"s\":\"\"})|", false},
    {CALL("<parameter=s>\n</parameter>\n"), "0:f({\"s\":\"\"})|", false},
    {CALL("<parameter=s>Vienna</parameter>\n"), "0:f({\"s\":\"Vienna\"})|", false},
    {CALL(PARAM("s", "a </parameter> b")), "0:f({\"s\":\"a </parameter> b\"})|", false},
    {CALL(PARAM("s", "a\n</para\n</function>x")), "0:f({\"s\":\"a\\n</para\\n</function>x\"})|", false},
    {CALL(PARAM("i", "3") PARAM("b", "True") PARAM("l", "[1, 2]") PARAM("o", "{\"a\": \"b\"}")),
     "0:f({\"i\":3,\"b\":true,\"l\":[1, 2],\"o\":{\"a\": \"b\"}})|", false},
    {CALL(PARAM("i", "three") PARAM("b", "maybe")), "0:f({\"i\":\"three\",\"b\":\"maybe\"})|", false},
    {CALL(PARAM("s", "3") PARAM("e", "3")), "0:f({\"s\":\"3\",\"e\":\"3\"})|", false},
    {CALL(PARAM("unknown", "x")), "0:f({\"unknown\":\"x\"})|", false},
    {CALL(PARAM("s", "a") PARAM("s", "b")), "0:f({\"s\":\"a\"})|C(b)", false},
    {CALL(PARAM("s", "Gr\xC3\xBC\xC3\x9F"
                     "e \xF0\x9F\xA6\x99")),
     "0:f({\"s\":\"Gr\xC3\xBC\xC3\x9F"
     "e \xF0\x9F\xA6\x99\"})|",
     false},
    {CALL(PARAM("s", "a\n\xC3\xBC")), "0:f({\"s\":\"a\\n\xC3\xBC\"})|", false},
    {"<tool_call>\n<function=f>\n<parameter=s>\nVie", "0:f({\"s\":\"Vie\"})|", false}, /* cut off */
    {"<tool_call>\n<function=f>\n<parameter=s>\nVie\n</tool_call>", "0:f({\"s\":\"Vie\"})|", false},
    {"<tool_call>\n<function=f>\n<parameter=s>\nVie\n</function>\n</tool_call>", "0:f({\"s\":\"Vie\"})|", false},
    {"<tool_call>\n<function=f>\n" PARAM("s", "a") "</tool_call>", "0:f({\"s\":\"a\"})|", false},
    {"Now " FN("f", PARAM("s", "a")), "C(Now)0:f({\"s\":\"a\"})|", false}, /* without its marker, a known name */
    {"#include <function=g>\n", "C(#include <function=g>\n)", false},
    {"a <b> < <func", "C(a <b> < <func)", false},
    {"<tool_call>\nnothing\n</tool_call>", "C(<tool_call>nothing\n</tool_call>)", false},
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"a\"}}\n</tool_call>", "0:f({\"s\":\"a\"})|", false},
    {"<tool_call>\n{\"no\": 1}\n</tool_call>", "C(<tool_call>{\"no\": 1}\n</tool_call>)", false},
    {"<tool_call>\n" FN("f", "") "\n" FN("f", PARAM("s", "a")), "0:f({})|1:f({\"s\":\"a\"})|", false}, /* two in one */
    {"<tool_call>\n" FN("f", "") "x <", "0:f({})|C(x <)", false},
    {"<tool_call>{\"x\": \"<function=f>", "C(<tool_call>{\"x\": \"<function=f>)", false},
    {"<tool_call>\n" FN("f", "") "x <tool_call>\n" FN("f", PARAM("s", "b")) "</tool_call>",
     "0:f({})|C(x)1:f({\"s\":\"b\"})|", false},
    {CALL("<parameter=s>a <"), "0:f({\"s\":\"a <</function>\"})|", false},
    {"<tool_call><function=f><parameter=s>a <</tool_call>", "0:f({\"s\":\"a <\"})|", false},
    {CALL(PARAM("s", "a\n</function>   \n\n  b")), "0:f({\"s\":\"a\\n</function>   \\n\\n  b\"})|", false},
    {CALL("<parameter=s><think>x</parameter>\n"), "0:f({\"s\":\"<think>x\"})|", false},
    {CALL("junk " PARAM("s", "a")) "after", "0:f({\"s\":\"a\"})|C(junkafter)", false},
};

TEST(qwen_answers)
{
    static const char tools[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"?\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
        "\"name\":"
        "\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":"
        "\"integer\"},\"b\":{\"type\":\"boolean\"},\"l\":{\"type\":\"array\"},\"o\":{\"type\":\"object\"},\"e\":{"
        "\"type\":[\"string\",\"integer\"]}}}}}]}";
    arena             mem;
    const json_value *v;
    chat             *c;
    err               e;
    arena_init(&mem, 1 << 20);
    if (CHECK_OK(json_parse(&v, &mem, str_of(tools), NULL, &e), e) && CHECK_OK(chat_parse(&c, &mem, v, &e), e))
        for (size_t i = 0; i < COUNT(answers); i++)
            check_answer(t, answers[i].in, answers[i].want, c, answers[i].in_thought);
    arena_deinit(&mem);
}

/* White space after </function> inside a value is neither searched again nor moved byte by byte. */
TEST(qwen_answers_take_linear_time)
{
    enum { SPACES = 1 << 20 };
    err                e;
    transcript         x    = {0};
    chat_parse_options opt  = {.format = &qwen35_format, .on_event = transcript_note, .ctx = &x};
    chat_parser       *p    = qwen35_parser_ops.create(&opt);
    char              *text = xalloc(SPACES);
    memset(text, ' ', SPACES);
    buf_init(&x.text, 1 << 24);
    qwen35_parser_put_marker(p, Q_CALL);
    qwen35_parser_put_text(p, STR("<function=f>\n<parameter=s>\na\n</function>"));
    double start = test_cpu_s();
    for (int i = 0; i < SPACES; i += 8) qwen35_parser_put_text(p, (str){text + i, 8});
    qwen35_parser_put_text(p, STR("b\n</parameter>"));
    CHECK_OK(p->ops->finish(p, &e), e);
    CHECK(test_cpu_s() - start < 5);
    transcript_close(&x);
    CHECK(x.text.n > SPACES);
    p->ops->destroy(p);
    buf_deinit(&x.text);
    mem_free(text);
}
