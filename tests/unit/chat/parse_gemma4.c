/* The answer's parser: every tolerance by name, each stream in one piece, byte by byte and cut at every place. */
#include "chat/gemma4_inside.h"
#include "chat/transcript.h"
#include "marked_text.h"
#include "test.h"
#include "tok/inside.h"

typedef struct {
    bool        in_thought, thinking;
    const chat *chat;
} how;

/* Cut into pieces of `step` bytes, the first of `first`. */
static void run(test_case *t, transcript *x, str in, size_t first, size_t step, how h)
{
    err                e;
    chat_parse_options opt = {.format     = &gemma4_format,
                              .on_event   = transcript_note,
                              .ctx        = x,
                              .in_thought = h.in_thought,
                              .thinking   = h.thinking,
                              .chat       = h.chat};
    chat_parser       *p   = gemma4_parser_ops.create(&opt);
    marked_text        m;
    *x = (transcript){0};
    buf_init(&x->text, 1 << 20);
    marked_text_init(&m, p);
    for (size_t i = 0, n = first; i < in.n; i += n, n = step) {
        if (n > in.n - i) n = in.n - i;
        marked_text_put(&m, (str){in.s + i, n});
    }
    marked_text_end(&m);
    CHECK_OK(p->ops->finish(p, &e), e);
    transcript_close(x);
    p->ops->destroy(p);
}

static void check_how(test_case *t, const char *text, const char *want, how h)
{
    str        in = str_of(text);
    transcript x;
    run(t, &x, in, in.n, 1, h);
    CHECK_MSG(str_is(buf_str(&x.text), want), "'%s' gives '%.*s', expected '%s'", text, STR_ARG(buf_str(&x.text)),
              want);
    for (size_t cut = 0; cut < in.n; cut++) {
        transcript y;
        run(t, &y, in, cut ? cut : 1, cut ? in.n : 1, h);
        CHECK_MSG(str_eq(buf_str(&y.text), buf_str(&x.text)), "'%s' cut at %zu gives '%.*s'", text, cut,
                  STR_ARG(buf_str(&y.text)));
        buf_deinit(&y.text);
    }
    buf_deinit(&x.text);
}

#define Q           "<|\"|>"
#define CALL(text)  "<|tool_call>call:" text "<tool_call|>"
#define ARGS(text)  CALL("f{" text "}")
#define GIVES(json) "0:f({" json "})|"

enum { PLAIN, IN_THOUGHT, TYPED, THINKING };

/* TYPED: f is declared with s a string, i an integer, n a number or null, b a boolean, l a list of integers, o an object whose s
 * is a string, e a string or an integer; "two words" is a tool as well. */
static const struct {
    const char *in, *want;
    int         how;
} cases[] = {
    /* content and thoughts */
    {"Hello", "C(Hello)", PLAIN},
    {"", "", PLAIN},
    {"\n\n Hello \n", "C(\n\n Hello \n)", PLAIN},
    {"Grüße, 世界 🦙", "C(Grüße, 世界 🦙)", PLAIN},
    {"\xff\xfe ok \xf0\x9f", "C(\xff\xfe ok \xf0\x9f)", PLAIN},
    {"{\"a\":[1,2]}", "C({\"a\":[1,2]})", PLAIN},
    {"call:f{a:1}", "C(call:f{a:1})", PLAIN},
    {"<|channel>thought\nTwo and two.\n<channel|>4", "R(Two and two.)C(4)", PLAIN},
    {"<|channel>thought\nTwo\n\n<channel|>\n4\n", "R(Two\n)C(\n4\n)", PLAIN}, /* one newline is the markup's */
    {"<|channel>thought\n\n  Two<channel|>4", "R(\n  Two)C(4)", PLAIN},
    {"<|channel>thought\nTwo \n <channel|>4", "R(Two \n )C(4)", PLAIN},
    {"<|channel>thought\na\nb\n\nc\n<channel|>", "R(a\nb\n\nc)", PLAIN},
    {"<|channel>thought\n🦙\n<channel|>🦙", "R(🦙)C(🦙)", PLAIN},
    {"<|channel>thought\nnever closed", "R(never closed)", PLAIN},
    {"<|channel>thought\nnever closed\n", "R(never closed\n)", PLAIN},
    {"<|channel>thought\nturn over\n<turn|>", "R(turn over\n)", PLAIN},
    {"<|channel>thought\na<channel|>b<|channel>thought\nc<channel|>d", "R(a)C(b)R(c)C(d)", PLAIN},
    {"a<|channel>thought\nb<channel|>", "C(a)R(b)", PLAIN},

    /* the prompt ended inside a thought */
    {"Two.\n<channel|>4", "R(Two.)C(4)", IN_THOUGHT},
    {"\n Two.<channel|>4", "R(\n Two.)C(4)", IN_THOUGHT},
    {"<channel|>4", "C(4)", IN_THOUGHT},
    {"\n<channel|>4", "C(4)", IN_THOUGHT},
    {"never closed", "R(never closed)", IN_THOUGHT},
    {"thought\nTwo<channel|>4", "R(thought\nTwo)C(4)", IN_THOUGHT},
    {"<|channel>thought\nTwo<channel|>4", "R(Two)C(4)", IN_THOUGHT},
    {"look" CALL("f{}"), "R(look)0:f({})|", IN_THOUGHT},
    {"look\n<channel|>" CALL("f{}") "x", "R(look)0:f({})|C(x)", IN_THOUGHT},
    {"", "", IN_THOUGHT},
    {" \n", "", IN_THOUGHT},
    {"a<turn|>", "R(a)", IN_THOUGHT},

    /* odd thoughts */
    {"<|channel>thought\n<channel|>4", "C(4)", PLAIN},
    {"<|channel>thought<channel|>4", "C(4)", PLAIN},
    {"<|channel><channel|>4", "C(4)", PLAIN},
    {"<|channel>thought\n \n<channel|>4", "C(4)", PLAIN},
    {"<|channel>thought No newline.<channel|>4", "R(No newline.)C(4)", PLAIN},
    {"<|channel>thought\r\nx<channel|>4", "R(\nx)C(4)", PLAIN},
    {"4<channel|> it is<channel|>", "C(4 it is)", PLAIN},
    {"<channel|><channel|>4", "C(4)", PLAIN},
    {"<|channel><|channel>thought\nx<channel|>4", "R(x)C(4)", PLAIN},
    {"<|channel>thought\nx\n<|channel>thought\ny<channel|>4", "R(x\ny)C(4)", PLAIN},
    {"<|channel>thought\nx\n<|channel>thought\n<channel|>4", "R(x\n)C(4)", PLAIN},
    {"4<|channel>thought\n<channel|>", "C(4)", PLAIN},
    {"<|channel>analysis: x<channel|>4", "R(analysis: x)C(4)", PLAIN},
    {"<|channel>final\n4", "R(final\n4)", PLAIN},
    {"<|channel>tho<channel|>4", "R(tho)C(4)", PLAIN},
    {"<|channel>thoughts", "R(thoughts)", PLAIN},
    {"<|channel>thought", "", PLAIN},
    {"<|channel>thought:x<channel|>4", "R(thought:x)C(4)", PLAIN},
    {"<|channel>", "", PLAIN},
    {"<|channel>x" Q "y" Q "<channel|>", "R(x" Q "y" Q ")", PLAIN},

    /* a bare label */
    {"thought\n4", "C(4)", PLAIN},
    {"thought\n", "", PLAIN},
    {"thought\n\n4", "C(\n4)", PLAIN},
    {"thoughtful", "C(thoughtful)", PLAIN},
    {"thought", "C(thought)", PLAIN},
    {"thought 4", "C(thought 4)", PLAIN},
    {"though", "C(though)", PLAIN},
    {" thought\n4", "C( thought\n4)", PLAIN},
    {"thought<channel|>4", "C(4)", PLAIN},
    {"thought<|channel>thought\nx<channel|>4", "R(x)C(4)", PLAIN},
    {"tho<|channel>thought\nx<channel|>4", "C(tho)R(x)C(4)", PLAIN},
    {"4 thought\n", "C(4 thought\n)", PLAIN},
    {"thought" CALL("f{}"), "C(thought)0:f({})|", PLAIN},

    /* a thought without its opening marker */
    {"thought\nTwo<channel|>4", "R(Two)C(4)", PLAIN},
    {"thought\nTwo and two.\n<channel|>4", "R(Two and two.)C(4)", PLAIN},
    {"thought\n\n Two\n\nthree\n\n<channel|>\n4", "R(\n Two\n\nthree\n)C(\n4)", PLAIN},
    {"thought\n<channel|>4", "C(4)", PLAIN},
    {"thought\n \n<channel|>4", "C(4)", PLAIN},
    {"thought\n🦙 " Q "x" Q "\n<channel|>🦙", "R(🦙 " Q "x" Q ")C(🦙)", PLAIN},
    {"thought\nlook<channel|>" CALL("f{}"), "R(look)0:f({})|", PLAIN},
    {"thought\nlook\n<channel|>\n" CALL("f{}") "so", "R(look)C(\n)0:f({})|C(so)", PLAIN},
    {"thought\na<channel|>b<channel|>c", "R(a)C(bc)", PLAIN},
    {"thought\na<channel|>b<|channel>thought\nc<channel|>d", "R(a)C(b)R(c)C(d)", PLAIN},
    {"thought\nlook" CALL("f{}"), "C(look)0:f({})|", PLAIN}, /* a label that means nothing, and a text */
    {"thought\nlook<|channel>thought\nx<channel|>4", "C(look)R(x)C(4)", PLAIN},
    {"thought\n4<turn|>", "C(4)", PLAIN},
    {"thought\nTwo<channel|>4", "R(Two)C(4)", THINKING},
    {"thought\nTwo and two.\n<channel|>4", "R(Two and two.)C(4)", THINKING},
    {"thought\n\n Two\n\nthree\n\n<channel|>\n4", "R(\n Two\n\nthree\n)C(\n4)", THINKING},
    {"thought\n<channel|>4", "C(4)", THINKING},
    {"thought\nnever closed", "R(never closed)", THINKING},
    {"thought\nlook" CALL("f{}"), "R(look)0:f({})|", THINKING},
    {"thought\n", "", THINKING},
    {"thought", "C(thought)", THINKING},
    {"thoughts", "C(thoughts)", THINKING},
    {"thought Two<channel|>4", "C(thought Two4)", THINKING},
    {"4", "C(4)", THINKING},

    /* calls */
    {CALL("get_weather{city:" Q "Oslo" Q ",days:2}") "<|tool_response>",
     "0:get_weather({\"city\":\"Oslo\",\"days\":2})|", PLAIN},
    {CALL("f{}"), "0:f({})|", PLAIN},
    {"See: " CALL("f{a:true}") "<turn|>", "C(See: )0:f({\"a\":true})|", PLAIN},
    {CALL("f{}") "\n" CALL("g{}") "\n", "0:f({})|1:g({})|", PLAIN},
    {CALL("f{}") CALL("f{}") CALL("f{}"), "0:f({})|1:f({})|2:f({})|", PLAIN},
    {CALL("f{}") " then text", "0:f({})|C( then text)", PLAIN},
    {CALL("f{}") " and " CALL("g{}") "\n\nend", "0:f({})|C( and )1:g({})|C(\n\nend)", PLAIN},
    {"<|channel>thought\nlook" CALL("f{}"), "R(look)0:f({})|", PLAIN},
    {"<|channel>thought\nlook\n" CALL("f{}"), "R(look\n)0:f({})|", PLAIN},
    {"<|channel>thought\nlook\n<channel|>" CALL("f{}"), "R(look)0:f({})|", PLAIN},
    {CALL("f{}") "<|channel>thought\nnow?\n<channel|>" CALL("g{}"), "0:f({})|R(now?)1:g({})|", PLAIN},
    {CALL("my-tool.v2/x{}"), "0:my-tool.v2/x({})|", PLAIN},
    {CALL("wetter_für_世界{}"), "0:wetter_für_世界({})|", PLAIN},
    {"<|tool_call> call: f {}<tool_call|>", "0:f({})|", PLAIN},
    {"<|tool_call>f{}<tool_call|>", "0:f({})|", PLAIN},
    {"<|tool_call>call:f\n{\n}\n<tool_call|>", "0:f({})|", PLAIN},
    {CALL("f"), "0:f({})|", PLAIN},
    {CALL("call:f{}"), "0:call:f({})|", PLAIN},
    {CALL("f{}") "<|tool_response>ignored?", "0:f({})|C(ignored?)", PLAIN},
    {"<|tool_call><tool_call|>x", "C(x)", PLAIN},
    {"<|tool_call> \n<tool_call|>x", "C(x)", PLAIN},
    {"<tool_call|>x", "C(x)", PLAIN},

    /* what is no call is content, markers and all */
    {"<|tool_call>{a:1}<tool_call|>x", "C(<|tool_call>{a:1}<tool_call|>x)", PLAIN},
    {"<|tool_call>call:{a:1}<tool_call|>x", "C(<|tool_call>call:{a:1}<tool_call|>x)", PLAIN},
    {CALL(""), "C(<|tool_call>call:<tool_call|>)", PLAIN},
    {CALL("f(a=1)"), "C(<|tool_call>call:f(a=1)<tool_call|>)", PLAIN},
    {CALL("two words{a:1}") " x", "C(<|tool_call>call:two words{a:1}<tool_call|> x)", PLAIN},
    {CALL("two words{i:1}"), "0:two words({\"i\":1})|", TYPED},
    {"<|tool_call>I would like to know.<tool_call|>", "C(<|tool_call>I would like to know.<tool_call|>)", PLAIN},
    {"<|tool_call>hello<tool_call|>", "C(<|tool_call>hello<tool_call|>)", PLAIN},
    {"<|tool_call>{\"name\":\"f\",\"arguments\":{}}<tool_call|>",
     "C(<|tool_call>{\"name\":\"f\",\"arguments\":{}}<tool_call|>)", PLAIN},
    {"<|tool_call>[f{}]<tool_call|>", "C(<|tool_call>[f{}]<tool_call|>)", PLAIN},
    {"<|tool_call>" Q "f" Q "{a:" Q "x" Q "}<tool_call|>", "C(<|tool_call>" Q "f" Q "{a:" Q "x" Q "}<tool_call|>)",
     PLAIN},
    {"<|tool_call>call:get_wea", "C(<|tool_call>call:get_wea)", PLAIN},
    {"<|tool_call>call:get_wea<turn|>", "C(<|tool_call>call:get_wea)", PLAIN},
    {"<|tool_call>", "", PLAIN},
    {"<|tool_call>a b{<|tool_call>call:f{}<tool_call|>", "C(<|tool_call>a b{)0:f({})|", PLAIN},
    {"<|tool_call>a b<|tool_call>call:f{}<tool_call|>", "C(<|tool_call>a b)0:f({})|", PLAIN},
    {"<|tool_call>a b{<|channel>thought\nx<channel|>y<tool_call|>", "C(<|tool_call>a b{)R(x)C(y)", PLAIN},
    {"<|tool_call>a b{}<tool_call|><tool_call|>z", "C(<|tool_call>a b{}<tool_call|>z)", PLAIN},

    /* values */
    {ARGS("a:true,b:false,c:null"), GIVES("\"a\":true,\"b\":false,\"c\":null"), PLAIN},
    {ARGS("a:True,b:False,c:None"), GIVES("\"a\":true,\"b\":false,\"c\":null"), PLAIN},
    {ARGS("a:TRUE,b:nil,c:truely,d:undefined"),
     GIVES("\"a\":\"TRUE\",\"b\":\"nil\",\"c\":\"truely\",\"d\":\"undefined\""), PLAIN},
    {ARGS("a:0,b:-12,c:-0"), GIVES("\"a\":0,\"b\":-12,\"c\":-0"), PLAIN},
    {ARGS("a:2.5e-3,b:108.2,c:1E+9,d:-0.5"), GIVES("\"a\":2.5e-3,\"b\":108.2,\"c\":1E+9,\"d\":-0.5"), PLAIN},
    {ARGS("a:007,b:1.,c:- 1,d:.5,e:+5"), GIVES("\"a\":\"007\",\"b\":\"1.\",\"c\":\"- 1\",\"d\":\".5\",\"e\":\"+5\""),
     PLAIN},
    {ARGS("a:1e,b:1e+,c:0x1F,d:1_000,e:NaN,g:-Infinity"),
     GIVES("\"a\":\"1e\",\"b\":\"1e+\",\"c\":\"0x1F\",\"d\":\"1_000\",\"e\":\"NaN\",\"g\":\"-Infinity\""), PLAIN},
    {ARGS("a:9223372036854775807,b:-9223372036854775808"),
     GIVES("\"a\":9223372036854775807,\"b\":-9223372036854775808"), PLAIN},
    {ARGS("a:9223372036854775808,b:99999999999999999999"),
     GIVES("\"a\":\"9223372036854775808\",\"b\":\"99999999999999999999\""), PLAIN},
    {ARGS("a:1e999,b:-1e999,c:1e-999"), GIVES("\"a\":\"1e999\",\"b\":\"-1e999\",\"c\":1e-999"), PLAIN},
    {ARGS("a:3.14159265358979323846264338327950288"), GIVES("\"a\":3.14159265358979323846264338327950288"), PLAIN},
    {ARGS("a:abc def, b: x y "), GIVES("\"a\":\"abc def\",\"b\":\"x y\""), PLAIN},
    {ARGS("a:2024-05-01T10:00:00Z"), GIVES("\"a\":\"2024-05-01T10:00:00Z\""), PLAIN},
    {ARGS("a:https://x.org/?q=1"), GIVES("\"a\":\"https://x.org/?q=1\""), PLAIN},
    {ARGS("a:世界"), GIVES("\"a\":\"世界\""), PLAIN},
    {ARGS("o:{x:[1," Q "a,]}" Q ",{y:[]}],z:{}},l:[[],[1,2]]"),
     GIVES("\"o\":{\"x\":[1,\"a,]}\",{\"y\":[]}],\"z\":{}},\"l\":[[],[1,2]]"), PLAIN},
    {ARGS("a:[[[[1]]]]"), GIVES("\"a\":[[[[1]]]]"), PLAIN},
    {ARGS("a:[true,null,-1.5," Q "x" Q ",{}]"), GIVES("\"a\":[true,null,-1.5,\"x\",{}]"), PLAIN},
    {ARGS("a:{b:{c:{d:" Q "e" Q "}}}"), GIVES("\"a\":{\"b\":{\"c\":{\"d\":\"e\"}}}"), PLAIN},
    {ARGS("a:{k:1},b:{k:2}"), GIVES("\"a\":{\"k\":1},\"b\":{\"k\":2}"), PLAIN},

    /* strings */
    {ARGS("s:" Q "a\"b\\c\nd\te" Q), GIVES("\"s\":\"a\\\"b\\\\c\\nd\\te\""), PLAIN},
    {ARGS("s:" Q "\\n \\u0041 \\" Q), GIVES("\"s\":\"\\\\n \\\\u0041 \\\\\""), PLAIN},
    {ARGS("s:" Q "\x01\x1f\x7f" Q), GIVES("\"s\":\"\\u0001\\u001f\\u007f\""), PLAIN},
    {ARGS("s:" Q "Grüße 🦙" Q), GIVES("\"s\":\"Grüße 🦙\""), PLAIN},
    {ARGS("s:" Q "\u2028\u200d\ufeff" Q), GIVES("\"s\":\"\\u2028\u200d\ufeff\""), PLAIN},
    {ARGS("s:" Q Q), GIVES("\"s\":\"\""), PLAIN},
    {ARGS("s:" Q "  " Q), GIVES("\"s\":\"  \""), PLAIN},
    {ARGS("s:" Q " true " Q ",n:" Q "12" Q), GIVES("\"s\":\" true \",\"n\":\"12\""), PLAIN},
    {ARGS("s:" Q "{\"a\": [1]}" Q), GIVES("\"s\":\"{\\\"a\\\": [1]}\""), PLAIN},
    {ARGS("a:" Q "}" Q ",b:{c:" Q "{" Q "}"), GIVES("\"a\":\"}\",\"b\":{\"c\":\"{\"}"), PLAIN},
    {ARGS("a:" Q "x<tool_call|>y" Q), GIVES("\"a\":\"x<tool_call|>y\""), PLAIN},
    {ARGS("a:" Q "<|channel>thought\n<channel|><|tool_call>" Q),
     GIVES("\"a\":\"<|channel>thought\\n<channel|><|tool_call>\""), PLAIN},
    {ARGS("a:" Q "<|turn>user<bos><|image|>" Q), GIVES("\"a\":\"<|turn>user<bos><|image|>\""), PLAIN},
    {ARGS("a:" Q "<|\" |> <|" Q), GIVES("\"a\":\"<|\\\" |> <|\""), PLAIN},
    {ARGS("a:[" Q "x" Q "," Q "y" Q "," Q Q "]"), GIVES("\"a\":[\"x\",\"y\",\"\"]"), PLAIN},
    {ARGS("a:" Q "for (;;) {\n\tx[i] = '\\0'; // 100%\n}\n" Q),
     GIVES("\"a\":\"for (;;) {\\n\\tx[i] = '\\\\0'; // 100%\\n}\\n\""), PLAIN},

    /* strings that go on behind a quote, or began before it */
    {ARGS("a:" Q "he said " Q "hi" Q " twice" Q ",b:1"), GIVES("\"a\":\"he said <|\\\"|>hi<|\\\"|> twice\",\"b\":1"),
     PLAIN},
    {ARGS("a:" Q "x" Q "junk" Q ",b:1"), GIVES("\"a\":\"x<|\\\"|>junk\",\"b\":1"), PLAIN},
    {ARGS("a:" Q "x" Q Q ",b:1"), GIVES("\"a\":\"x<|\\\"|>\",\"b\":1"), PLAIN},
    {ARGS("a:" Q "x" Q "  ,b:1"), GIVES("\"a\":\"x\",\"b\":1"), PLAIN},
    {ARGS("a:pre" Q "x,y" Q ",b:1"), GIVES("\"a\":\"prex,y\",\"b\":1"), PLAIN},
    {ARGS("a:[" Q "x" Q " " Q "y" Q "]"), GIVES("\"a\":[\"x\",\"y\"]"), PLAIN},
    {ARGS("a:[{} {b:1} " Q "x" Q " [3] 4]"), GIVES("\"a\":[{},{\"b\":1},\"x<|\\\"|> [3] 4]}<tool_call|>\"]"), PLAIN},

    /* JSON inside the braces */
    {ARGS("\"a\": 1, \"b\": \"x\", \"c\": [true, \"y\"]"), GIVES("\"a\":1,\"b\":\"x\",\"c\":[true,\"y\"]"), PLAIN},
    {ARGS("\"a\":\"x, y} ]: z\""), GIVES("\"a\":\"x, y} ]: z\""), PLAIN},
    {ARGS("\"a\":\"say \\\"hi\\\"\\n\\u00fc\\ud83e\\udd99\""), GIVES("\"a\":\"say \\\"hi\\\"\\nü🦙\""), PLAIN},
    {ARGS("\"a:b,c}\":1"), GIVES("\"a:b,c}\":1"), PLAIN},
    {ARGS("\"a\\\"b\":1"), GIVES("\"a\\\"b\":1"), PLAIN},
    {ARGS("\"a\":{\"b\":{}}"), GIVES("\"a\":{\"b\":{}}"), PLAIN},
    {ARGS("a:\"\\q\",b:1"), GIVES("\"a\":\"\\\"\\\\q\\\"\",\"b\":1"), PLAIN},
    {ARGS("a:\"x\" y,b:1"), GIVES("\"a\":\"\\\"x\\\" y\",\"b\":1"), PLAIN},
    {"<|tool_call>call:f{a:\"x,b:1}<tool_call|>", GIVES("\"a\":\"\\\"x,b:1}\""), PLAIN},
    {ARGS("a:'x',b:'y'"), GIVES("\"a\":\"'x'\",\"b\":\"'y'\""), PLAIN},

    /* slips of the form */
    {ARGS("a:1,"), GIVES("\"a\":1"), PLAIN},
    {ARGS(",,a:1,,b:2"), GIVES("\"a\":1,\"b\":2"), PLAIN},
    {ARGS(" a : 1 , b : [ 1 , 2 , ] "), GIVES("\"a\":1,\"b\":[1,2]"), PLAIN},
    {ARGS("\n  a: 1,\n  b: " Q "x" Q "\n"), GIVES("\"a\":1,\"b\":\"x\""), PLAIN},
    {ARGS(Q "a b" Q ":1," Q "c" Q " :" Q "d" Q), GIVES("\"a b\":1,\"c\":\"d\""), PLAIN},
    {ARGS(Q "a" Q "b:1,c" Q "d" Q ":2"), GIVES("\"ab\":1,\"cd\":2"), PLAIN},
    {ARGS(":1"), "0:f({})|C(:1)", PLAIN},
    {ARGS(Q Q ":1"), GIVES("\"\":1"), PLAIN},
    {ARGS("a:,b:"), GIVES("\"a\":null,\"b\":null"), PLAIN},
    {ARGS("a b c:1"), GIVES("\"a b c\":1"), PLAIN},
    {ARGS("ключ:1,🦙:2"), GIVES("\"ключ\":1,\"🦙\":2"), PLAIN},
    {CALL("f{a:[1}}"), GIVES("\"a\":[1]"), PLAIN},
    {CALL("f{a:1}}}"), GIVES("\"a\":1"), PLAIN},
    {CALL("f{a:1}\n"), GIVES("\"a\":1"), PLAIN},
    {ARGS("a:1<|channel>,b:2"), "0:f({\"a\":1})|R(,b:2})", PLAIN},
    {ARGS("a:1<channel|>,b:<bos>2"), GIVES("\"a\":1,\"b\":2"), PLAIN},

    /* calls that do not end */
    {"<|tool_call>call:f{a:" Q "rest", GIVES("\"a\":\"rest\""), PLAIN},
    {"<|tool_call>call:f{a:" Q "rest" Q, GIVES("\"a\":\"rest\""), PLAIN},
    {"<|tool_call>call:f{a:" Q "rest" Q " ", GIVES("\"a\":\"rest\""), PLAIN},
    {"<|tool_call>call:f{a:" Q "rest<turn|>", GIVES("\"a\":\"rest\""), PLAIN},
    {"<|tool_call>call:f{a:[1,{b:tr", GIVES("\"a\":[1,{\"b\":\"tr\"}]"), PLAIN},
    {"<|tool_call>call:f{a:1<turn|>", GIVES("\"a\":1"), PLAIN},
    {"<|tool_call>call:f{a:1}<eos>", GIVES("\"a\":1"), PLAIN},
    {"<|tool_call>call:f{a:1}", GIVES("\"a\":1"), PLAIN},
    {"<|tool_call>call:f{a:", GIVES("\"a\":null"), PLAIN},
    {"<|tool_call>call:f{", GIVES(""), PLAIN},
    {"<|tool_call>call:f{a:1<|tool_call>call:g{}<tool_call|>", "0:f({\"a\":1})|1:g({})|", PLAIN},
    {"<|tool_call>call:f{a:1}<|channel>thought\nhm<channel|>4", "0:f({\"a\":1})|R(hm)C(4)", PLAIN},

    /* what is no argument is content behind the call */
    {ARGS("abc"), "0:f({})|C(abc)", PLAIN},
    {ARGS(Q "abc" Q), "0:f({})|C(abc)", PLAIN},
    {ARGS(Q "abc" Q ",b:1"), "0:f({\"b\":1})|C(abc)", PLAIN},
    {"<|tool_call>call:f{ab", "0:f({})|C(ab)", PLAIN},
    {"<|tool_call>call:f{" Q "ab", "0:f({})|C(ab)", PLAIN},
    {CALL("f{a:1}}} junk") "x", "0:f({\"a\":1})|C(}} junkx)", PLAIN},
    {CALL("f{a:1}" Q "junk" Q) "\nx", "0:f({\"a\":1})|C(" Q "junk" Q "\nx)", PLAIN},
    {ARGS("a:{b:1}junk,c:2"), "0:f({\"a\":{\"b\":1},\"c\":2})|C(junk)", PLAIN},
    {ARGS("a:{b:1}" Q "junk,}" Q ",c:2"), "0:f({\"a\":{\"b\":1},\"c\":2})|C(" Q "junk,}" Q ")", PLAIN},
    {ARGS("a:1,a:2"), "0:f({\"a\":1})|C(a:2)", PLAIN},
    {ARGS("a:{b:1,b:{c:" Q "2" Q "},d:3},a:[4,{x:5}],e:5"),
     "0:f({\"a\":{\"b\":1,\"d\":3},\"e\":5})|C(b:{c:" Q "2" Q "},a:[4,{x:5}])", PLAIN},
    {ARGS("a:1,a:" Q "x" Q ",b:2"), "0:f({\"a\":1,\"b\":2})|C(a:" Q "x" Q ")", PLAIN},
    {ARGS("a:1,\"a\":2," Q "a" Q ":3"), "0:f({\"a\":1})|C(\"a\":2,a:3)", PLAIN},
    {"<|tool_call>call:f{a:1,a:{b", "0:f({\"a\":1})|C(a:{b)", PLAIN},
    {ARGS("a:1,a:1") ARGS("a:2"), "0:f({\"a\":1})|C(a:1)1:f({\"a\":2})|", PLAIN},

    /* other markers, and text like them */
    {"a<|turn>b<bos>c<|image|>d", "C(abcd)", PLAIN},
    {"say " Q "hi" Q, "C(say " Q "hi" Q ")", PLAIN},
    {"a <| b <|turn c < d", "C(a <| b <|turn c < d)", PLAIN},
    {"a<turn|>b", "C(ab)", PLAIN},
    {"cut off <|tool_c", "C(cut off <|tool_c)", PLAIN},
    {"<|<|<|channel>thought\nx<channel|><", "C(<|<|)R(x)C(<)", PLAIN},
    {"<|\"|", "C(<|\"|)", PLAIN},

    /* declared types */
    {ARGS("s:12,i:" Q "7" Q ",n:" Q " 2.5 " Q ",b:" Q "true" Q), GIVES("\"s\":\"12\",\"i\":7,\"n\":2.5,\"b\":true"),
     TYPED},
    {ARGS("s:true,i:" Q "seven" Q ",n:null,b:no"), GIVES("\"s\":\"true\",\"i\":\"seven\",\"n\":null,\"b\":\"no\""),
     TYPED},
    {ARGS("l:[" Q "1" Q ",2],o:{s:3},s:null,e:5,i:" Q "1.5" Q),
     GIVES("\"l\":[1,2],\"o\":{\"s\":\"3\"},\"s\":null,\"e\":5,\"i\":\"1.5\""), TYPED},
    {ARGS("s:None,b:True,e:" Q "5" Q), GIVES("\"s\":null,\"b\":true,\"e\":\"5\""), TYPED},
    {ARGS("\"s\":\"12\",\"i\":\"7\""), GIVES("\"s\":\"12\",\"i\":7"), TYPED},
    {"<|tool_call>call:f{i:" Q "7", GIVES("\"i\":7"), TYPED},
    {ARGS("i:" Q "7" Q " or 8" Q), GIVES("\"i\":\"7<|\\\"|> or 8\""), TYPED},
    {ARGS("i:" Q "1" Q ",i:" Q "2" Q), "0:f({\"i\":1})|C(i:" Q "2" Q ")", TYPED},
    {ARGS("i:99999999999999999999,n:" Q "1e999" Q), GIVES("\"i\":\"99999999999999999999\",\"n\":\"1e999\""), TYPED},
    {CALL("g{s:12}"), "0:g({\"s\":12})|", TYPED},
};

static const chat *declared(test_case *t, arena *mem)
{
    static const char request[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
        "\"name\":"
        "\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":"
        "\"integer\"},\"n\":{\"type\":[\"number\",\"null\"]},\"b\":{\"type\":\"BOOLEAN\"},\"l\":{\"type\":\"array\","
        "\"items\":{\"type\":\"integer\"}},\"o\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"}}},"
        "\"e\":{\"type\":[\"string\",\"integer\"]}}}}},{\"type\":\"function\",\"function\":{\"name\":\"two words\"}}]}";
    const json_value *v;
    chat             *c = NULL;
    err               e;
    if (CHECK_OK(json_parse(&v, mem, str_of(request), NULL, &e), e)) CHECK_OK(chat_parse(&c, mem, v, &e), e);
    return c;
}

TEST(chat_parse_cases)
{
    arena mem;
    arena_init(&mem, 1 << 20);
    const chat *c = declared(t, &mem);
    CHECK(COUNT(cases) >= 150);
    for (size_t i = 0; i < COUNT(cases); i++) {
        for (size_t j = 0; j < i; j++)
            CHECK_MSG(strcmp(cases[i].in, cases[j].in) || cases[i].how != cases[j].how, "case %zu is case %zu again", i,
                      j);
        check_how(t, cases[i].in, cases[i].want,
                  (how){.in_thought = cases[i].how == IN_THOUGHT,
                        .thinking   = cases[i].how == THINKING,
                        .chat       = cases[i].how == TYPED ? c : NULL});
    }
    arena_deinit(&mem);
}

/* An answer that goes on with a text that was begun is content from its first byte. */
TEST(chat_parse_goes_on_with_a_prefill)
{
    chat begun = {.prefill = STR("A second ")};
    check_how(t, "thought\nabout it", "C(thought\nabout it)", (how){.chat = &begun});
    check_how(t, "thought\nabout it", "C(thought\nabout it)", (how){.chat = &begun, .thinking = true});
    check_how(t, "<|channel>thought\na<channel|>b", "R(a)C(b)", (how){.chat = &begun});
}

TEST(chat_parse_bounds_the_depth)
{
    buf               in, args;
    transcript        x;
    arena             mem;
    const json_value *v;
    err               e;
    buf_init(&in, 1 << 16);
    buf_puts(&in, "<|tool_call>call:f{a:");
    for (int i = 0; i < 1000; i++) buf_puts(&in, i % 2 ? "{k:" : "[");
    buf_puts(&in, "1");
    for (int i = 0; i < 1000; i++) buf_puts(&in, "}");
    buf_puts(&in, ",b:2}<tool_call|>");
    run(t, &x, buf_str(&in), in.n, 1, (how){0});
    arena_init(&mem, 1 << 20);
    buf_init(&args, 1 << 16);
    const char *behind = memmem(x.text.p, x.text.n, ")|C(", 4);
    if (!CHECK(behind)) return;
    buf_put(&args, x.text.p + 4, (size_t)(behind - x.text.p) - 4);
    CHECK_OK(json_parse(&v, &mem, buf_str(&args), NULL, &e), e);
    CHECK(json_get(v, "b") && json_get(v, "b")->i == 2);
    CHECK_INT(x.text.p + x.text.n - behind,
              5 + 500 - 24 + 3 * (500 - 23) + 1 + 1000 - 47); /* what was too deep is content */
    buf_deinit(&args);
    arena_deinit(&mem);
    buf_deinit(&x.text);
    buf_deinit(&in);
}

/* Brackets inside a string of what is too deep are text, and its quotes are told with it. */
TEST(chat_parse_reads_strings_that_are_too_deep)
{
    transcript x;
    buf        in, want;
    buf_init(&in, 1 << 12);
    buf_init(&want, 1 << 12);
    buf_puts(&in, "<|tool_call>call:f{a:");
    buf_puts(&want, "0:f({\"a\":");
    for (int i = 0; i < 47; i++) buf_putc(&in, '['), buf_putc(&want, '[');
    buf_puts(&in, "[" Q "]]x" Q "]");
    buf_puts(&want, "null");
    for (int i = 0; i < 47; i++) buf_putc(&in, ']'), buf_putc(&want, ']');
    buf_puts(&in, ",b:1}<tool_call|>");
    buf_puts(&want, ",\"b\":1})|C([" Q "]]x" Q "])");
    for (size_t cut = 0; cut <= in.n; cut++) {
        run(t, &x, buf_str(&in), cut, in.n, (how){0});
        CHECK_STR(buf_str(&x.text), buf_str(&want));
        buf_deinit(&x.text);
    }
    buf_deinit(&in);
    buf_deinit(&want);
}

TEST(chat_parse_bounds_the_name)
{
    for (int n = 250; n < 260; n++) {
        transcript x;
        buf        in;
        buf_init(&in, 1 << 12);
        buf_puts(&in, "<|tool_call>");
        for (int i = 0; i < n; i++) buf_putc(&in, 'n');
        buf_puts(&in, "{}<tool_call|>");
        run(t, &x, buf_str(&in), in.n, 1, (how){0});
        CHECK(n <= 256 ? str_starts(buf_str(&x.text), "0:nnn") && str_ends(buf_str(&x.text), "n({})|")
                       : x.text.n == in.n + 3 && !memcmp(x.text.p + 2, in.p, in.n));
        buf_deinit(&x.text);
        buf_deinit(&in);
    }
}

/* Structure at random with words in between, each another one: every word is told once. */
TEST(chat_parse_tells_each_word_once)
{
    static const char *const structure[] = {"<|tool_call>",
                                            "<|tool_call>call:",
                                            "<tool_call|>",
                                            "<|channel>",
                                            "<channel|>",
                                            "<|channel>thought\n",
                                            "<turn|>",
                                            "<bos>",
                                            Q,
                                            Q,
                                            Q,
                                            "{",
                                            "{",
                                            "}",
                                            "[",
                                            "]",
                                            ",",
                                            ":",
                                            ":",
                                            "a:",
                                            "a:",
                                            " ",
                                            "\n",
                                            "\"",
                                            "null",
                                            "-1.5",
                                            "s:",
                                            "i:",
                                            "f{"};
    arena                    mem;
    uint64_t                 rng = 7;
    arena_init(&mem, 1 << 20);
    const chat *c = declared(t, &mem);
    for (int round = 0; round < 20000; round++) {
        transcript x;
        buf        in;
        int        n = 0, parts = 1 + (int)(test_rand(&rng) % 40);
        buf_init(&in, 1 << 16);
        if (test_rand(&rng) % 8 == 0) buf_puts(&in, "thought\n");
        for (int i = 0; i < parts; i++)
            if (test_rand(&rng) % 3)
                buf_puts(&in, structure[test_rand(&rng) % COUNT(structure)]);
            else
                buf_printf(&in, "W%dW", n++);
        how h = {.in_thought = test_rand(&rng) % 4 == 0,
                 .thinking   = test_rand(&rng) % 2,
                 .chat       = test_rand(&rng) % 2 ? c : NULL};
        run(t, &x, buf_str(&in), 1 + test_rand(&rng) % (in.n + 1), 1 + test_rand(&rng) % 9, h);
        buf_putc(&x.text, 0);
        for (int i = 0; i < n; i++) {
            char word[16];
            snprintf(word, sizeof word, "W%dW", i);
            const char *at = strstr(x.text.p, word);
            CHECK_MSG(at && !strstr(at + 1, word), "%s is %s in '%s' of '%.*s'", word, at ? "twice" : "not", x.text.p,
                      STR_ARG(buf_str(&in)));
        }
        buf_deinit(&x.text);
        buf_deinit(&in);
    }
    arena_deinit(&mem);
}

/* A character that a marker cuts off comes out before what the marker begins. */
TEST(chat_parse_gives_up_a_character_before_a_marker)
{
    tok       *tk;
    tok_ids    ids;
    transcript x = {0};
    err        e;
    if (!CHECK_OK(tok_from_json(&tk, test_path("tests/golden/demo/tokenizer.json"), &gemma4_tokens, &e), e)) return;
    chat_parser *p = gemma4_parser_ops.create(
        &(chat_parse_options){.format = &gemma4_format, .on_event = transcript_note, .ctx = &x, .tok = tk});
    buf_init(&x.text, 1 << 20);
    tok_ids_init(&ids, 100);
    tok_ids_put(&ids, tok_find(tk, STR("<0xF0>")));
    tok_encode(tk, &ids, STR("<|channel>thought\na"), true, &e);
    tok_ids_put(&ids, tok_find(tk, STR("<0xE2>")));
    tok_encode(tk, &ids, STR("<channel|>b"), true, &e);
    tok_ids_put(&ids, tok_find(tk, STR("<0xC3>")));
    for (size_t i = 0; i < ids.n; i++) p->ops->put_id(p, ids.p[i]);
    p->ops->put_id(p, -1);
    p->ops->put_id(p, tok_size(tk));
    CHECK_OK(p->ops->finish(p, &e), e);
    transcript_close(&x);
    CHECK_STR(buf_str(&x.text), STR("C(\xEF\xBF\xBD)R(a\xEF\xBF\xBD)C(b\xEF\xBF\xBD)"));
    p->ops->destroy(p);
    tok_ids_deinit(&ids);
    buf_deinit(&x.text);
    tok_free(tk);
}

/* Markers by id; the same characters as text are text. */
TEST(chat_parse_knows_markers_by_id)
{
    static const char literal[] = "<|channel>thought\n<|tool_call>";
    tok              *tk;
    tok_ids           ids;
    transcript        x = {0};
    err               e;
    if (!CHECK_OK(tok_from_json(&tk, test_path("tests/golden/demo/tokenizer.json"), &gemma4_tokens, &e), e)) return;
    chat_parser *p = gemma4_parser_ops.create(
        &(chat_parse_options){.format = &gemma4_format, .on_event = transcript_note, .ctx = &x, .tok = tk});
    buf_init(&x.text, 1 << 20);
    tok_ids_init(&ids, 1 << 16);
    tok_encode(tk, &ids, STR("<|channel>thought\nhm 🦙\n<channel|>"), true, &e);
    tok_encode(tk, &ids, str_of(literal), false, &e);
    tok_encode(tk, &ids, STR("<|tool_call>call:f{s:" Q "ü" Q "}<tool_call|><turn|>"), true, &e);
    for (size_t i = 0; i < ids.n; i++) p->ops->put_id(p, ids.p[i]);
    CHECK_OK(p->ops->finish(p, &e), e);
    transcript_close(&x);
    CHECK_STR(buf_str(&x.text), STR("R(hm 🦙)C(<|channel>thought\n<|tool_call>)0:f({\"s\":\"ü\"})|"));
    p->ops->destroy(p);
    tok_ids_deinit(&ids);
    buf_deinit(&x.text);
    tok_free(tk);
}
