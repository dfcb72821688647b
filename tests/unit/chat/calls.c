/* Tool calls: what the renderer writes, the parser reads back; many keys, odd keys, markers at the edge of a slice. */
#include "base/mem.h"
#include "chat/transcript.h"
#include "marked_text.h"
#include "test.h"

#define Q "<|\"|>"

/* Feeds text in pieces of 1 to max bytes, each in memory of exactly its size: the sanitizer sees a read past its end. */
static void feed(chat_parser *p, str text, uint64_t *seed, size_t max)
{
    marked_text m;
    marked_text_init(&m, p);
    for (size_t i = 0, n; i < text.n; i += n) {
        n = 1 + test_rand(seed) % max;
        if (n > text.n - i) n = text.n - i;
        char *piece = xalloc(n);
        memcpy(piece, text.s + i, n);
        marked_text_put(&m, (str){piece, n});
        mem_free(piece);
    }
    marked_text_end(&m);
}

static void parse(test_case *t, transcript *x, str text, uint64_t *seed, size_t max)
{
    err e;
    *x = (transcript){0};
    buf_init(&x->text, 1 << 24);
    chat_parser *p = gemma4_parser_ops.create(
        &(chat_parse_options){.format = &gemma4_format, .on_event = transcript_note, .ctx = x});
    feed(p, text, seed, max);
    CHECK_OK(p->ops->finish(p, &e), e);
    transcript_close(x);
    p->ops->destroy(p);
}

/* --- there and back ----------------------------------------------------------------------------- */
static void random_string(buf *b, uint64_t *seed)
{
    static const char *const piece[] = {"a",       "B7",     " ",        "\n",
                                        "\"",      "\\",     "\\\"",     ",",
                                        ", ",      "}",      "]",        "{",
                                        "[",       ":",      "\xC3\xBC", "\xF0\x9F\xA6\x99",
                                        "<|",      "|>",     "<|turn>",  "<tool_call|>",
                                        "null",    "1",      "\t",       "'",
                                        "\\u0041", "call:f{"};
    for (uint64_t n = test_rand(seed) % 6; n; n--) buf_puts(b, piece[test_rand(seed) % COUNT(piece)]);
}

static void random_value(json_writer *w, uint64_t *seed, int depth);

static void random_object(json_writer *w, uint64_t *seed, int depth, uint64_t n)
{
    json_begin_object(w);
    for (uint64_t i = 0; i < n; i++) {
        char key[32]; /* the template sorts by key, so the number goes first */
        snprintf(key, sizeof key, "k%03d%s", (int)i, test_rand(seed) % 2 ? "-x y" : "\xC3\xA9");
        json_key(w, key);
        random_value(w, seed, depth + 1);
    }
    json_end(w);
}

static void random_value(json_writer *w, uint64_t *seed, int depth)
{
    buf s;
    switch (test_rand(seed) % (depth < 4 ? 8 : 6)) {
    case 0: json_put_int(w, (int64_t)(test_rand(seed) >> (test_rand(seed) % 64)) / 2 - 50); break;
    case 1: json_put_real(w, (double)(int64_t)test_rand(seed) / (double)(1 + test_rand(seed) % 1000000)); break;
    case 2: json_put_bool(w, test_rand(seed) % 2); break;
    case 3: json_put_null(w); break;
    case 6: random_object(w, seed, depth, test_rand(seed) % 5); break;
    case 7:
        json_begin_array(w);
        for (uint64_t n = test_rand(seed) % 4; n; n--) random_value(w, seed, depth + 1);
        json_end(w);
        break;
    default:
        buf_init(&s, 1000);
        random_string(&s, seed);
        json_put_str(w, buf_str(&s));
        buf_deinit(&s);
    }
}

/* Renders an assistant's message with these calls and returns what stands between its turn's markers. */
static void render_calls(test_case *t, buf *out, arena *mem, const buf *args, size_t n, gemma4_revision revision)
{
    chat         *c    = chat_new(mem);
    chat_options  o    = {.format = &gemma4_format, .revision = revision, .exact = true};
    const str     open = STR("<|turn>model\n");
    buf           text;
    err           e;
    chat_message *m = (chat_add(c, CHAT_USER, STR("x")), chat_add(c, CHAT_ASSISTANT, (str){0}));
    m->call         = arena_try(mem, n, sizeof *m->call);
    m->n_calls      = n;
    buf_init(&text, 1 << 24);
    for (size_t i = 0; i < n; i++) {
        m->call[i].name = STR("f");
        CHECK_OK(json_parse(&m->call[i].args, mem, buf_str(&args[i]), NULL, &e), e);
    }
    CHECK_OK(chat_render_text(&text, c, &o, &e), e);
    const char *at = memmem(text.p, text.n, open.s, open.n);
    if (CHECK(at)) buf_put(out, at + open.n, (size_t)(text.p + text.n - at) - open.n);
    buf_deinit(&text);
}

/* Appends the value of a JSON text as our writer spells it: 1e-05 and 0.00001 are the same. */
static void canonical(test_case *t, buf *out, str text)
{
    arena             mem;
    json_writer       w;
    const json_value *v;
    err               e;
    arena_init(&mem, 1 << 24);
    json_writer_init(&w, out);
    if (CHECK_OK(json_parse(&v, &mem, text, NULL, &e), e)) json_put_value(&w, v);
    arena_deinit(&mem);
}

typedef struct {
    buf *args;
    int  n, n_done, max;
} call_log;

static void note_call(void *ctx, const chat_event *ev)
{
    call_log *x = ctx;
    if (ev->kind == CHAT_EVENT_CALL_NAME) x->n++;
    if (ev->kind == CHAT_EVENT_CALL_ARGS && ev->call < x->max) buf_put(&x->args[ev->call], ev->text.s, ev->text.n);
    if (ev->kind == CHAT_EVENT_CALL_DONE && !ev->cut) x->n_done++;
}

/* Makes calls at random, renders and parses them: the arguments are the same, up to the spelling of numbers. */
static void check_round(test_case *t, uint64_t *seed, int n, uint64_t max_keys)
{
    buf          args[8], got[8], text;
    arena        mem;
    err          e;
    call_log     log = {.args = got, .max = n};
    chat_parser *p =
        gemma4_parser_ops.create(&(chat_parse_options){.format = &gemma4_format, .on_event = note_call, .ctx = &log});
    arena_init(&mem, 1 << 26);
    buf_init(&text, 1 << 24);
    for (int i = 0; i < n; i++) {
        json_writer w;
        buf_init(&args[i], 1 << 20);
        buf_init(&got[i], 1 << 20);
        json_writer_init(&w, &args[i]);
        random_object(&w, seed, 0, max_keys > 8 ? max_keys : test_rand(seed) % (max_keys + 1));
    }
    render_calls(t, &text, &mem, args, (size_t)n, (gemma4_revision)(test_rand(seed) % GEMMA4_REVISIONS));
    feed(p, buf_str(&text), seed, test_rand(seed) % 2 ? 3 : 100);
    CHECK_OK(p->ops->finish(p, &e), e);
    CHECK(log.n == n && log.n_done == n);
    for (int i = 0; i < n; i++) {
        buf want, have;
        buf_init(&want, 1 << 20);
        buf_init(&have, 1 << 20);
        canonical(t, &want, buf_str(&args[i]));
        canonical(t, &have, buf_str(&got[i]));
        CHECK_STR(buf_str(&have), buf_str(&want));
        buf_deinit(&want);
        buf_deinit(&have);
        buf_deinit(&args[i]);
        buf_deinit(&got[i]);
    }
    p->ops->destroy(p);
    buf_deinit(&text);
    arena_deinit(&mem);
}

TEST(calls_are_read_back_as_they_were_written)
{
    uint64_t seed = 21;
    for (int i = 0; i < 600; i++) check_round(t, &seed, 1 + (int)(test_rand(&seed) % 3), 8);
}

/* The table of keys is emptied for each call: it has room for those of one, not of all. */
TEST(calls_with_many_keys_are_read_one_after_another)
{
    uint64_t seed = 22;
    for (uint64_t n = 30; n <= 130; n += 20) check_round(t, &seed, 5, n);
}

/* --- keys --------------------------------------------------------------------------------------- */
/* A key that an object has already is noticed among many, in every object of its own. */
TEST(calls_notice_a_repeated_key_among_many)
{
    for (int n = 1; n <= 200; n += 7) {
        transcript x;
        buf        in, want;
        uint64_t   seed = 23;
        buf_init(&in, 1 << 20);
        buf_init(&want, 1 << 20);
        for (int call = 0; call < 3; call++) {
            buf_puts(&in, "<|tool_call>call:f{");
            buf_printf(&want, "%d:f({", call);
            for (int i = 0; i < n; i++) {
                buf_printf(&in, "k%d:{k%d:%d},", i, i, i);
                buf_printf(&want, "%s\"k%d\":{\"k%d\":%d}", i ? "," : "", i, i, i);
            }
            buf_printf(&in, "k%d:7}<tool_call|>", n / 2);
            buf_printf(&want, "})|C(k%d:7)", n / 2);
        }
        parse(t, &x, buf_str(&in), &seed, 1000);
        CHECK_STR(buf_str(&x.text), buf_str(&want));
        buf_deinit(&x.text);
        buf_deinit(&in);
        buf_deinit(&want);
    }
}

static void check_args(test_case *t, str args, const char *want)
{
    transcript x;
    buf        in, expected;
    buf_init(&in, 1 << 16);
    buf_init(&expected, 1 << 16);
    buf_puts(&in, "<|tool_call>call:f{");
    buf_put(&in, args.s, args.n);
    buf_puts(&in, "}<tool_call|>");
    buf_printf(&expected, "0:f({%s})|", want);
    for (uint64_t seed = 1; seed < 20; seed++) {
        uint64_t cuts = seed;
        parse(t, &x, buf_str(&in), &cuts, seed);
        CHECK_STR(buf_str(&x.text), buf_str(&expected));
        buf_deinit(&x.text);
    }
    buf_deinit(&in);
    buf_deinit(&expected);
}

/* Our reader takes no NUL in a key: it becomes U+FFFD, wherever it stands and however it was written. */
TEST(calls_have_no_nul_in_a_key)
{
    check_args(t, STR("\"k\\u0000x\":1"), "\"k\xEF\xBF\xBDx\":1");
    check_args(t, STR("\"\\u0000\":1"), "\"\xEF\xBF\xBD\":1");
    check_args(t, STR("\"\\u0000\\u0000a\\u0000\":1"),
               "\"\xEF\xBF\xBD\xEF\xBF\xBD"
               "a\xEF\xBF\xBD\":1");
    check_args(t, STR(Q "k\0x" Q ":1"), "\"k\xEF\xBF\xBDx\":1");
    check_args(t, STR("k\0x:1,k\0y:2"), "\"k\xEF\xBF\xBDx\":1,\"k\xEF\xBF\xBDy\":2");
    check_args(t, STR("\"k\\\\u0000\":1"), "\"k\\\\u0000\":1"); /* a backslash and five characters */
    check_args(t, STR("\"k\\\\\\u0000\":1"), "\"k\\\\\xEF\xBF\xBD\":1");
    check_args(t, STR("\"\\u00001\":1"),
               "\"\xEF\xBF\xBD"
               "1\":1");
    check_args(t, STR("a:" Q "x\0y" Q), "\"a\":\"x\\u0000y\""); /* a value may have it */
}

/* Each word is judged by its own bytes, not by those that a longer one left behind. */
TEST(calls_judge_each_number_alone)
{
    check_args(t, STR("a:1.5e7,b:1.5,c:2.5x,d:2.5"), "\"a\":1.5e7,\"b\":1.5,\"c\":\"2.5x\",\"d\":2.5");
    check_args(t, STR("a:-12,b:-,c:-1"), "\"a\":-12,\"b\":\"-\",\"c\":-1");
    check_args(t, STR("a:1.25,b:1.,c:1"), "\"a\":1.25,\"b\":\"1.\",\"c\":1");
    check_args(t, STR("a:1e+55,b:1e+,c:1e,d:1"), "\"a\":1e+55,\"b\":\"1e+\",\"c\":\"1e\",\"d\":1");
}

TEST(calls_know_which_quote_ends_a_word)
{
    check_args(t, STR("a:\"x\\\",y\",b:1"), "\"a\":\"x\\\",y\",\"b\":1");
    check_args(t, STR("a:\"x\\\\\",b:1"), "\"a\":\"x\\\\\",\"b\":1");
    check_args(t, STR("a:\"\\\\\\\",\",b:1"), "\"a\":\"\\\\\\\",\",\"b\":1");
    check_args(t, STR("a:\"\",b:\",\""), "\"a\":\"\",\"b\":\",\"");
    check_args(t, STR("\"a\\\":,\":1"), "\"a\\\":,\":1");
    check_args(t, STR("\"a\\\\\":1,b:\"}\""), "\"a\\\\\":1,\"b\":\"}\"");
    check_args(t, STR("a:[\"x\\\",\",\"]\"]"), "\"a\":[\"x\\\",\",\"]\"]");
    check_args(t, STR("a:x\"y,b:1"),
               "\"a\":\"x\\\"y\",\"b\":1"); /* only a word that begins with a quote is in quotes */
    check_args(t, STR("a:x\\,b:1"), "\"a\":\"x\\\\\",\"b\":1");
}

/* --- thoughts in an earlier answer ------------------------------------------------------------- */
static void check_kept(test_case *t, const char *content, const char *kept)
{
    arena        mem;
    buf          text, want;
    err          e;
    chat_options o = {.format = &gemma4_format, .revision = GEMMA4_GOOGLE_0410};
    arena_init(&mem, 1 << 20);
    buf_init(&text, 1 << 16);
    buf_init(&want, 1 << 16);
    chat *c = chat_new(&mem);
    chat_add(c, CHAT_ASSISTANT, str_of(content));
    CHECK_OK(chat_render_text(&text, c, &o, &e), e);
    buf_printf(&want, "<bos><|turn>model\n%s<turn|>\n", kept);
    CHECK_STR(buf_str(&text), buf_str(&want));
    buf_deinit(&text);
    buf_deinit(&want);
    arena_deinit(&mem);
}

/* Each search for an opening marker ends at the next closing one. */
TEST(thoughts_are_cut_out_of_an_earlier_answer)
{
    check_kept(t, "a", "a");
    check_kept(t, "<|channel>x<channel|>y", "y");
    check_kept(t, "a<channel|>b<|channel>c<channel|>d", "abd");
    check_kept(t, "a<|channel>b<channel|>c<|channel>d<channel|>e", "ace");
    check_kept(t, "a<|channel>b<|channel>c<channel|>d", "ad");
    check_kept(t, "a<|channel>b", "a");
    check_kept(t, "a<channel|>b", "ab");
    check_kept(t, "<channel|><|channel>", "");
    check_kept(t, "<channel|>a<channel|>", "a");
    check_kept(t, " a <channel|> b ", "a  b");
    check_kept(t, "a<|channel", "a<|channel");
    check_kept(t, "a<channel|", "a<channel|");
}

/* --- calls that were cut -------------------------------------------------------------------------- */
static void note_cut(void *ctx, const chat_event *ev)
{
    if (ev->kind == CHAT_EVENT_CALL_DONE) buf_putc(ctx, ev->cut ? 'x' : '.');
}

/* A call is cut when the answer ends inside its arguments. */
TEST(calls_say_whether_they_were_cut)
{
    static const struct {
        const char *text, *want;
    } cases[] = {{"<|tool_call>call:f{a:1}<tool_call|>", "."},
                 {"<|tool_call>call:f{a:1}<turn|>", "."},
                 {"<|tool_call>call:f{a:1}", "."},
                 {"<|tool_call>call:f{a:1<tool_call|>", "."},
                 {"<|tool_call>call:f<tool_call|>", "."},
                 {"<|tool_call>call:f{a:1<turn|>", "x"},
                 {"<|tool_call>call:f{a:", "x"},
                 {"<|tool_call>call:f{", "x"},
                 {"<|tool_call>call:f{a:{b:1}<|tool_call>call:g{}<tool_call|>", "x."},
                 {"<|tool_call>call:f{}<|tool_call>call:g{a:" Q "x", ".x"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        buf      cut;
        err      e;
        uint64_t seed = i;
        buf_init(&cut, 100);
        chat_parser *p = gemma4_parser_ops.create(
            &(chat_parse_options){.format = &gemma4_format, .on_event = note_cut, .ctx = &cut});
        feed(p, str_of(cases[i].text), &seed, 5);
        CHECK_OK(p->ops->finish(p, &e), e);
        CHECK_MSG(str_is(buf_str(&cut), cases[i].want), "'%s'", cases[i].text);
        p->ops->destroy(p);
        buf_deinit(&cut);
    }
}

/* --- depth -------------------------------------------------------------------------------------- */
/* Values up to 200 deep are written, deeper ones refused; the way back up is counted too. */
TEST(calls_bound_the_depth_of_values)
{
    for (int n = 195; n < 205; n++) {
        json_value   value[256] = {0};
        json_member  member[2]  = {{.key = STR("a"), .value = {0}}, {.key = STR("b"), .value = {0}}};
        json_value   args       = {.kind = JSON_OBJECT, .n = 2, .member = member};
        chat_call    call       = {.name = STR("f"), .args = &args};
        chat_options o          = {.format = &gemma4_format, .revision = GEMMA4_VLLM_0617};
        arena        mem;
        buf          text;
        err          e = {0};
        for (int i = 0; i < n - 1; i++) value[i] = (json_value){.kind = JSON_ARRAY, .n = 1, .item = &value[i + 1]};
        value[n - 1]    = (json_value){.kind = JSON_BOOL, .b = true};
        member[0].value = member[1].value = value[0];
        arena_init(&mem, 1 << 20);
        buf_init(&text, 1 << 16);
        chat         *c = chat_new(&mem);
        chat_message *m = chat_add(c, CHAT_ASSISTANT, (str){0});
        m->call         = &call;
        m->n_calls      = 1;
        if (n <= 200) {
            CHECK_OK(chat_render_text(&text, c, &o, &e), e);
        } else {
            CHECK_FAILS(chat_render_text(&text, c, &o, &e), e, "nested more than 200 deep");
            CHECK_INT(e.code, ERR_INPUT);
        }
        buf_deinit(&text);
        arena_deinit(&mem);
    }
}
