/* The answer's parser: every tolerance by name, each stream in one piece, byte by byte and cut at every place. */
#include "chat/parse_gemma4.h"
#include "test.h"

/* Events as one text: R(...) C(...) name(arguments) and a bar for a call's end. */
typedef struct {
    buf               text;
    gemma4_event_kind last;
    bool              open;
} transcript;

static void close_piece(transcript *x)
{
    if (x->open) buf_putc(&x->text, ')');
    x->open = false;
}

static void note(void *ctx, const gemma4_event *ev)
{
    transcript *x = ctx;
    if (x->open && ev->kind == x->last) { /* goes on */
        buf_put(&x->text, ev->text.s, ev->text.n);
        return;
    }
    close_piece(x);
    if (ev->kind == GEMMA4_REASONING) buf_puts(&x->text, "R(");
    if (ev->kind == GEMMA4_CONTENT) buf_puts(&x->text, "C(");
    if (ev->kind == GEMMA4_CALL_NAME) buf_printf(&x->text, "%d:", ev->call);
    if (ev->kind == GEMMA4_CALL_ARGS) buf_puts(&x->text, "(");
    buf_put(&x->text, ev->text.s, ev->text.n);
    if (ev->kind == GEMMA4_CALL_DONE) buf_puts(&x->text, "|");
    x->open = ev->kind != GEMMA4_CALL_NAME && ev->kind != GEMMA4_CALL_DONE;
    x->last = ev->kind;
}

typedef struct {
    bool        in_thought;
    const chat *chat;
} how;

/* Cut into pieces of `step` bytes, the first of `first`. */
static void run(test_case *t, transcript *x, str in, size_t first, size_t step, how h)
{
    err                  e;
    gemma4_parse_options opt = {.on_event = note, .ctx = x, .in_thought = h.in_thought, .chat = h.chat};
    gemma4_parser       *p   = gemma4_parser_new(&opt);
    *x                       = (transcript){0};
    buf_init(&x->text, 1 << 20);
    for (size_t i = 0, n = first; i < in.n; i += n, n = step) {
        if (n > in.n - i) n = in.n - i;
        gemma4_parse_marked(p, (str){in.s + i, n});
    }
    CHECK_OK(gemma4_parse_finish(p, &e), e);
    close_piece(x);
    gemma4_parser_free(p);
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

static void check(test_case *t, const char *text, const char *want) { check_how(t, text, want, (how){0}); }

#define Q "<|\"|>"

TEST(chat_parse_splits_thought_and_answer)
{
    check(t, "Hello", "C(Hello)");
    check(t, "", "");
    check(t, "<|channel>thought\nTwo and two.\n<channel|>4", "R(Two and two.)C(4)");
    check(t, "<|channel>thought\nTwo\n\n<channel|>\n4\n", "R(Two\n)C(\n4\n)"); /* one newline is the markup's */
    check(t, "<|channel>thought\nnever closed\n", "R(never closed)");
    check_how(t, "Two.\n<channel|>4", "R(Two.)C(4)", (how){.in_thought = true});
}

TEST(chat_parse_tolerates_odd_thoughts)
{
    check(t, "<|channel>thought\n<channel|>4", "C(4)");
    check(t, "<|channel>thought<channel|>4", "C(4)");
    check(t, "<|channel><channel|>4", "C(4)");
    check(t, "<|channel>thought\n \n<channel|>4", "C(4)");
    check(t, "<|channel>thought No newline.<channel|>4", "R(No newline.)C(4)");
    check(t, "4<channel|> it is<channel|>", "C(4 it is)");
    check(t, "<|channel><|channel>thought\nx<channel|>4", "R(x)C(4)");
    check(t, "<|channel>thought\nx\n<|channel>thought\ny<channel|>4", "R(x\ny)C(4)");
    check(t, "4<|channel>thought\n<channel|>", "C(4)");
    check(t, "<|channel>thought\na<channel|>b<|channel>thought\nc<channel|>d", "R(a)C(b)R(c)C(d)");
    check(t, "<|channel>analysis: x<channel|>4", "R(analysis: x)C(4)");
    check(t, "<|channel>tho<channel|>4", "R(tho)C(4)");
    check(t, "<|channel>thoughts", "R(s)");
}

TEST(chat_parse_tolerates_a_bare_label)
{
    check(t, "thought\n4", "C(4)");
    check(t, "thought\n", "");
    check(t, "thoughtful", "C(thoughtful)");
    check(t, "thought", "C(thought)");
    check(t, "though", "C(though)");
    check(t, " thought\n4", "C( thought\n4)");
    check(t, "thought<channel|>4", "C(4)");
    check(t, "4 thought\n", "C(4 thought\n)");
}

TEST(chat_parse_reads_calls)
{
    check(t, "<|tool_call>call:get_weather{city:" Q "Oslo" Q ",days:2}<tool_call|><|tool_response>",
          "0:get_weather({\"city\":\"Oslo\",\"days\":2})|");
    check(t, "<|tool_call>call:f{}<tool_call|>", "0:f({})|");
    check(t, "See: <|tool_call>call:f{a:true}<tool_call|><turn|>", "C(See: )0:f({\"a\":true})|");
    check(t, "<|tool_call>call:f{}<tool_call|>\n<|tool_call>call:g{}<tool_call|>\n", "0:f({})|1:g({})|");
    check(t, "<|tool_call>call:f{}<tool_call|> then text", "0:f({})|C( then text)");
    check(t, "<|channel>thought\nlook<|tool_call>call:f{}<tool_call|>", "R(look)0:f({})|");
    check(t, "<|channel>thought\nlook\n<channel|><|tool_call>call:f{}<tool_call|>", "R(look)0:f({})|");
    check(t, "<|tool_call>call:my-tool.v2/x{}<tool_call|>", "0:my-tool.v2/x({})|");
    check(t, "<|tool_call> call: f {}<tool_call|>", "0:f({})|");
    check(t, "<|tool_call>f{}<tool_call|>", "0:f({})|");
    check(t, "<|tool_call>call:f<tool_call|>", "0:f({})|");
    check(t, "<|tool_call><tool_call|>x", "C(x)");
    check(t, "<|tool_call>{a:1}<tool_call|>x", "C(x)");
}

TEST(chat_parse_types_arguments)
{
    check(t, "<|tool_call>call:f{a:true,b:false,c:null,d:-12,e:2.5e-3,g:abc def,h:007,i:1.,j:- 1}<tool_call|>",
          "0:f({\"a\":true,\"b\":false,\"c\":null,\"d\":-12,\"e\":2.5e-3,\"g\":\"abc "
          "def\",\"h\":\"007\",\"i\":\"1.\",\"j\":"
          "\"- 1\"})|");
    check(t, "<|tool_call>call:f{a:99999999999999999999,b:1e999,c:truely,d:108.2}<tool_call|>",
          "0:f({\"a\":\"99999999999999999999\",\"b\":\"1e999\",\"c\":\"truely\",\"d\":108.2})|");
    check(t, "<|tool_call>call:f{o:{x:[1," Q "a,]}" Q ",{y:[]}],z:{}},l:[[],[1,2]]}<tool_call|>",
          "0:f({\"o\":{\"x\":[1,\"a,]}\",{\"y\":[]}],\"z\":{}},\"l\":[[],[1,2]]})|");
    check(t, "<|tool_call>call:f{s:" Q "a\"b\\c\nd\te" Q "}<tool_call|>", "0:f({\"s\":\"a\\\"b\\\\c\\nd\\te\"})|");
    check(t, "<|tool_call>call:f{s:" Q "Grüße 🦙" Q "}<tool_call|>", "0:f({\"s\":\"Grüße 🦙\"})|");
    check(t, "<|tool_call>call:f{s:" Q Q "}<tool_call|>", "0:f({\"s\":\"\"})|");
}

TEST(chat_parse_tolerates_odd_arguments)
{
    check(t, "<|tool_call>call:f{a:1,}<tool_call|>", "0:f({\"a\":1})|");
    check(t, "<|tool_call>call:f{ a : 1 , b : [ 1 , 2 , ] }<tool_call|>", "0:f({\"a\":1,\"b\":[1,2]})|");
    check(t, "<|tool_call>call:f{" Q "a b" Q ":1," Q "c" Q " :" Q "d" Q "}<tool_call|>",
          "0:f({\"a b\":1,\"c\":\"d\"})|");
    check(t, "<|tool_call>call:f{a:" Q "x<tool_call|>y" Q "}<tool_call|>", "0:f({\"a\":\"x<tool_call|>y\"})|");
    check(t, "<|tool_call>call:f{a:" Q "}" Q ",b:{c:" Q "{" Q "}}<tool_call|>",
          "0:f({\"a\":\"}\",\"b\":{\"c\":\"{\"}})|");
    check(t, "<|tool_call>call:f{a:" Q "rest", "0:f({\"a\":\"rest\"})|");
    check(t, "<|tool_call>call:f{a:" Q "rest<turn|>", "0:f({\"a\":\"rest\"})|");
    check(t, "<|tool_call>call:f{a:[1,{b:tr", "0:f({\"a\":[1,{\"b\":\"tr\"}]})|");
    check(t, "<|tool_call>call:f{a:1<turn|>", "0:f({\"a\":1})|");
    check(t, "<|tool_call>call:f{a:1}<eos>", "0:f({\"a\":1})|");
    check(t, "<|tool_call>call:f{a:", "0:f({\"a\":null})|");
    check(t, "<|tool_call>call:f{a:,b:}<tool_call|>", "0:f({\"a\":null,\"b\":null})|");
    check(t, "<|tool_call>call:f{abc}<tool_call|>", "0:f({})|");
    check(t, "<|tool_call>call:f{" Q "abc" Q "}<tool_call|>", "0:f({})|");
    check(t, "<|tool_call>call:f{" Q "abc" Q ",b:1}<tool_call|>", "0:f({\"b\":1})|");
    check(t, "<|tool_call>call:f{a:[1}}<tool_call|>", "0:f({\"a\":[1]})|");
    check(t, "<|tool_call>call:f{a:1}}} junk<tool_call|>x", "0:f({\"a\":1})|C(x)");
    check(t, "<|tool_call>call:f{a:pre" Q "x,y" Q ",b:1}<tool_call|>", "0:f({\"a\":\"prex,y\",\"b\":1})|");
    check(t, "<|tool_call>call:f{a:" Q "x" Q "junk" Q ",c:2" Q ",b:1}<tool_call|>", "0:f({\"a\":\"x\",\"b\":1})|");
    check(t, "<|tool_call>call:f{a:1<|tool_call>call:g{}<tool_call|>", "0:f({\"a\":1})|1:g({})|");
    check(t, "<|tool_call>call:f{a:{b:1,b:{c:2},d:3},a:4,e:5}<tool_call|>", "0:f({\"a\":{\"b\":1,\"d\":3},\"e\":5})|");
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
    buf_put(&args, x.text.p + 4, x.text.n - 6);
    CHECK_OK(json_parse(&v, &mem, buf_str(&args), NULL, &e), e);
    CHECK(json_get(v, "b") && json_get(v, "b")->i == 2);
    buf_deinit(&args);
    arena_deinit(&mem);
    buf_deinit(&x.text);
    buf_deinit(&in);
}

TEST(chat_parse_ignores_other_markers)
{
    check(t, "a<|turn>b<bos>c<|image|>d", "C(abcd)");
    check(t, "say " Q "hi" Q, "C(say " Q "hi" Q ")");
    check(t, "a <| b <|turn c < d", "C(a <| b <|turn c < d)");
    check(t, "a<turn|>b", "C(ab)");
    check(t, "cut off <|tool_c", "C(cut off <|tool_c)");
}

TEST(chat_parse_fits_declared_types)
{
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":"
                                  "\"function\",\"function\":{\"name\":\"f\","
                                  "\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"},"
                                  "\"i\":{\"type\":\"integer\"},\"n\":{"
                                  "\"type\":[\"number\",\"null\"]},\"b\":{\"type\":\"BOOLEAN\"},\"l\":{\"type\":"
                                  "\"array\",\"items\":{\"type\":\"integer\"}},"
                                  "\"o\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"}}},\"e\":{"
                                  "\"type\":[\"string\",\"integer\"]}}}}}]}";
    arena             mem;
    const json_value *v;
    chat             *c = NULL;
    err               e;
    arena_init(&mem, 1 << 20);
    if (CHECK_OK(json_parse(&v, &mem, str_of(request), NULL, &e), e) && CHECK_OK(chat_parse(&c, &mem, v, &e), e)) {
        how h = {.chat = c};
        check_how(t, "<|tool_call>call:f{s:12,i:" Q "7" Q ",n:" Q " 2.5 " Q ",b:" Q "true" Q "}<tool_call|>",
                  "0:f({\"s\":\"12\",\"i\":7,\"n\":2.5,\"b\":true})|", h);
        check_how(t, "<|tool_call>call:f{s:true,i:" Q "seven" Q ",n:null,b:no}<tool_call|>",
                  "0:f({\"s\":\"true\",\"i\":\"seven\",\"n\":null,\"b\":\"no\"})|", h);
        check_how(t, "<|tool_call>call:f{l:[" Q "1" Q ",2],o:{s:3},s:null,e:5,i:" Q "1.5" Q "}<tool_call|>",
                  "0:f({\"l\":[1,2],\"o\":{\"s\":\"3\"},\"s\":null,\"e\":5,\"i\":\"1.5\"})|", h);
        check_how(t, "<|tool_call>call:f{i:" Q "7", "0:f({\"i\":7})|", h);
        check_how(t, "<|tool_call>call:g{s:12}<tool_call|>", "0:g({\"s\":12})|", h);
    }
    arena_deinit(&mem);
}

/* Markers by id; the same characters as text are text. */
TEST(chat_parse_knows_markers_by_id)
{
    static const char literal[] = "<|channel>thought\n<|tool_call>";
    tok              *tk;
    tok_ids           ids;
    transcript        x = {0};
    err               e;
    if (!CHECK_OK(tok_from_json(&tk, test_path("tests/golden/demo/tokenizer.json"), &e), e)) return;
    gemma4_parser *p = gemma4_parser_new(&(gemma4_parse_options){.on_event = note, .ctx = &x, .tok = tk});
    buf_init(&x.text, 1 << 20);
    tok_ids_init(&ids, 1 << 16);
    tok_encode(tk, &ids, STR("<|channel>thought\nhm 🦙\n<channel|>"), true, &e);
    tok_encode(tk, &ids, str_of(literal), false, &e);
    tok_encode(tk, &ids, STR("<|tool_call>call:f{s:" Q "ü" Q "}<tool_call|><turn|>"), true, &e);
    for (size_t i = 0; i < ids.n; i++) gemma4_parse_id(p, ids.p[i]);
    CHECK_OK(gemma4_parse_finish(p, &e), e);
    close_piece(&x);
    CHECK_STR(buf_str(&x.text), STR("R(hm 🦙)C(<|channel>thought\n<|tool_call>)0:f({\"s\":\"ü\"})|"));
    gemma4_parser_free(p);
    tok_ids_deinit(&ids);
    buf_deinit(&x.text);
    tok_free(tk);
}
