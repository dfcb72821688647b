#include "json/json.h"

#include "base/buf.h"
#include "base/fault.h"
#include "test.h"
#include "json/internal.h"

#include <stdlib.h>

/* Reads the whole text; the bytes lie in a block of their own, so that a sanitizer sees a look beyond. */
static bool read_all(str text, const json_limits *limits, err *e)
{
    char        *copy = malloc(text.n ? text.n : 1);
    json_reader *r    = NULL;
    json_event   ev   = {0};
    if (text.n) memcpy(copy, text.s, text.n);
    bool ok = json_reader_open(&r, (str){copy, text.n}, limits, e);
    while (ok && ev.kind != JSON_END) ok = json_next(r, &ev, e);
    json_reader_close(r);
    free(copy);
    return ok;
}

/* The only value of the text, a scalar but no string: those may live in the reader. */
static json_event one_value(test_case *t, str text)
{
    json_reader *r;
    json_event   ev = {0}, end;
    err          e  = {0};
    if (!CHECK_OK(json_reader_open(&r, text, NULL, &e), e)) return ev;
    CHECK_OK(json_next(r, &ev, &e), e);
    CHECK_OK(json_next(r, &end, &e) && end.kind == JSON_END, e);
    json_reader_close(r);
    return ev;
}

/* The text is one string, and this is what it says. */
static void check_string(test_case *t, str text, str expected)
{
    json_reader *r;
    json_event   ev;
    err          e = {0};
    if (!CHECK_OK(json_reader_open(&r, text, NULL, &e), e)) return;
    if (CHECK_OK(json_next(r, &ev, &e), e)) {
        CHECK_INT(ev.kind, JSON_STRING);
        CHECK_STR(ev.s, expected);
    }
    json_reader_close(r);
}

TEST(json_next_tells_each_event_and_where_it_is)
{
    static const struct {
        json_kind   kind;
        size_t      at;
        const char *s;
    } expected[] = {
        {JSON_OBJECT, 1, ""},     {JSON_KEY, 2, "a"},     {JSON_ARRAY, 7, ""},       {JSON_INT, 8, ""},
        {JSON_REAL, 10, ""},      {JSON_BOOL, 16, ""},    {JSON_BOOL, 21, ""},       {JSON_NULL, 27, ""},
        {JSON_ARRAY_END, 31, ""}, {JSON_KEY, 33, "b"},    {JSON_OBJECT, 37, ""},     {JSON_OBJECT_END, 39, ""},
        {JSON_KEY, 41, "c"},      {JSON_STRING, 45, "d"}, {JSON_OBJECT_END, 48, ""}, {JSON_END, 50, ""},
        {JSON_END, 50, ""},
    };
    str          text = STR(" {\"a\": [1,-2.5, true,false,null],\"b\":{ },\"c\":\"d\"}\n");
    json_reader *r;
    json_event   ev;
    err          e = {0};
    CHECK_INT(text.n, 50);
    if (!CHECK_OK(json_reader_open(&r, text, NULL, &e), e)) return;
    for (size_t i = 0; i < COUNT(expected); i++) {
        if (!CHECK_OK(json_next(r, &ev, &e), e)) break;
        CHECK_MSG(ev.kind == expected[i].kind && ev.at == expected[i].at && str_is(ev.s, expected[i].s),
                  "event %zu: kind %d at %zu '%.*s', expected %d at %zu '%s'", i, (int)ev.kind, ev.at, STR_ARG(ev.s),
                  (int)expected[i].kind, expected[i].at, expected[i].s);
        if (ev.kind == JSON_INT) CHECK(ev.i == 1 && ev.d == 1);
        if (ev.kind == JSON_REAL) CHECK(ev.d == -2.5);
        if (ev.kind == JSON_BOOL) CHECK(ev.b == (ev.at == 16));
        if (ev.s.n) CHECK(ev.s.s >= text.s && ev.s.s < text.s + text.n); /* not copied */
    }
    json_reader_close(r);
}

TEST(json_accepts_every_kind_of_document)
{
    static const char *const good[] = {
        "null",
        "true",
        " false ",
        "0",
        "-0",
        "-1",
        "1e0",
        "1E+2",
        "1e-400",
        "0.0",
        "\"\"",
        "[]",
        "{}",
        "[[],{},\"\"]",
        "\t[\r\n1 , 2 ]",
        "{\"\":1}",
        "[1,1,1]",
        "{\"a\":{\"a\":{\"a\":1},\"b\":1}}",
        "[{\"a\":1},{\"a\":1}]",
        "{\"model\":1,\"Model\":2}", /* keys are bytes: case matters */
        "\"\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\"",
        "9223372036854775807",
        "-9223372036854775808",
        "1.7976931348623157e308",
    };
    err e = {0};
    for (size_t i = 0; i < COUNT(good); i++) CHECK_MSG(read_all(str_of(good[i]), NULL, &e), "%s: %s", good[i], e.text);
}

TEST(json_refuses_what_is_not_json_and_says_where)
{
#define AT(text, part)                                                                                                 \
    {                                                                                                                  \
        STR(text), "line " part                                                                                        \
    }
    static const struct {
        str         text;
        const char *sentence;
    } bad[] = {
        AT("", "1, column 1: expected a value, found the end of the text"),
        AT(" \n ", "2, column 2: expected a value, found the end"),
        AT("[1,\n 2,\n 3 4]", "3, column 4: expected ',' or ']' after an item, found '4'"),
        AT("{\"a\":1\n\n\"b\":2}", "3, column 1: expected ',' or '}' after a member, found '\"'"),
        AT("[1", "1, column 3: expected ',' or ']' after an item, found the end"),
        AT("[1}", "1, column 3: expected ',' or ']'"),
        AT("{\"a\":1]", "1, column 7: expected ',' or '}'"),
        AT("[1,]", "1, column 4: expected a value, found ']'"),
        AT("[,1]", "1, column 2: expected a value, found ','"),
        AT("{\"a\":1,}", "1, column 8: expected a key in quotes, found '}'"),
        AT("{,}", "1, column 2: expected a key in quotes, found ','"),
        AT("{a:1}", "1, column 2: expected a key in quotes, found 'a'"),
        AT("{\"a\" 1}", "1, column 6: expected ':' after a key, found '1'"),
        AT("{\"a\":}", "1, column 6: expected a value, found '}'"),
        AT("{\"a\"", "1, column 5: expected ':' after a key, found the end"),
        AT("]", "1, column 1: expected a value, found ']'"),
        AT("1 2", "1, column 3: expected nothing after the document, found '2'"),
        AT("{} x", "1, column 4: expected nothing after the document"),
        AT("1\0", "1, column 2: expected nothing after the document, found byte 0x00"),
        AT("\xEF\xBB\xBF{}", "1, column 1: expected a value, found byte 0xef"),
        AT("[1,\v2]", "1, column 4: expected a value, found byte 0x0b"),
        AT("// no\n1", "1, column 1: expected a value, found '/'"),
        /* words */
        AT("NaN", "1, column 1: expected a value, found 'N'"),
        AT("nul", "1, column 1: expected a value, found 'n'"),
        AT("[Infinity]", "1, column 2: expected a value"),
        AT("-Infinity", "1, column 2: expected a digit, found 'I'"),
        AT("True", "1, column 1: expected a value"),
        AT("truex", "1, column 5: expected nothing after the document, found 'x'"),
        AT("['a']", "1, column 2: expected a value, found '''"),
        /* numbers */
        AT("01", "1, column 1: a number must not begin with a zero"),
        AT("-00", "1, column 1: a number must not begin with a zero"),
        AT("-", "1, column 2: expected a digit, found the end"),
        AT("+1", "1, column 1: expected a value, found '+'"),
        AT(".5", "1, column 1: expected a value, found '.'"),
        AT("[1.]", "1, column 4: expected a digit, found ']'"),
        AT("1.e5", "1, column 3: expected a digit, found 'e'"),
        AT("1e", "1, column 3: expected a digit"),
        AT("1e+", "1, column 4: expected a digit"),
        AT("0x10", "1, column 2: expected nothing after the document"),
        AT("1e400", "1, column 1: number 1e400 is too large for a double"),
        AT("-1E400", "1, column 1: number -1E400 is too large"),
        /* strings */
        AT("[\"abc", "1, column 2: this string is not closed"),
        AT("\"", "1, column 1: this string is not closed"),
        AT("\"abcdefgh\\", "1, column 10: invalid escape"),
        AT("\"a\nb\"", "1, column 3: control byte 0x0a in a string must be escaped"),
        AT("\"a\0b\"", "1, column 3: control byte 0x00 in a string"),
        AT("\"\x1f\"", "1, column 2: control byte 0x1f"),
        AT("\"\\x41\"", "1, column 2: invalid escape"),
        AT("\"\\u12g4\"", "1, column 2: invalid escape"),
        AT("\"\\u12", "1, column 2: invalid escape"),
        AT("\"\\u+123\"", "1, column 2: invalid escape"),
        AT("\"\\U0041\"", "1, column 2: invalid escape"),
        AT("\"\xff\"", "1, column 2: byte 0xff is not valid UTF-8 here"),
        AT("\"\x80\"", "1, column 2: byte 0x80 is not valid"),
        AT("\"\xc0\x80\"", "1, column 2: byte 0xc0"),         /* overlong NUL */
        AT("\"\xe0\x9f\xbf\"", "1, column 2: byte 0xe0"),     /* overlong */
        AT("\"\xed\xa0\x80\"", "1, column 2: byte 0xed"),     /* a surrogate */
        AT("\"\xf4\x90\x80\x80\"", "1, column 2: byte 0xf4"), /* above U+10FFFF */
        AT("\"abcdefg\xe2\x82\"", "1, column 9: byte 0xe2"),  /* cut off by the quote */
        AT("\"abcdefg\xe2\x82", "1, column 9: byte 0xe2"),    /* cut off by the end */
        /* keys */
        AT("{\"a\":1,\"b\":2,\n\"a\":3}", "2, column 1: key 'a' appears twice in one object"),
        AT("{\"a\":1,\"\\u0061\":3}", "1, column 8: key 'a' appears twice"),
        AT("{\"\":1,\"\":3}", "1, column 7: key '' appears twice"),
        AT("{\"a\":{\"a\":[{\"a\":1}]},\"a\":3}", "1, column 22: key 'a' appears twice"),
        AT("{\"a\\u0000b\":1}", "1, column 2: this key contains NUL"),
        AT("{1:2}", "1, column 2: expected a key in quotes, found '1'"),
    };
#undef AT
    err e = {0};
    for (size_t i = 0; i < COUNT(bad); i++) {
        e       = (err){0};
        bool ok = read_all(bad[i].text, NULL, &e);
        CHECK_MSG(!ok && e.code == ERR_FORMAT && strstr(e.text, bad[i].sentence) == e.text, "%.*s: %s, expected '%s'",
                  STR_ARG(bad[i].text), ok ? "accepted" : e.text, bad[i].sentence);
    }
}

TEST(json_every_cut_of_a_document_is_refused)
{
    str text = STR("{\"k\\n\":[1,-2.5e3,true,false,null,\"\xf0\x9f\x98\x80\\ud83d\\ude00\",{}]} ");
    err e    = {0};
    CHECK_OK(read_all(text, NULL, &e), e);
    for (size_t n = 0; n + 1 < text.n; n++) CHECK_MSG(!read_all((str){text.s, n}, NULL, &e), "first %zu bytes", n);
}

TEST(json_strings_are_decoded)
{
    check_string(t, STR("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""), STR("\"\\/\b\f\n\r\t"));
    check_string(t, STR("\"a\\u0041b\\u00e9c\\u20ACd\""),
                 STR("aAb\xc3\xa9"
                     "c\xe2\x82\xac"
                     "d"));
    check_string(t, STR("\"\\ud83d\\uDE00!\""), STR("\xf0\x9f\x98\x80!"));
    check_string(t, STR("\"a\\u0000b\""), STR("a\0b")); /* a byte like any other */
    check_string(t, STR("\"plain, long enough for two words \xe2\x96\x81 and a tail\""),
                 STR("plain, long enough for two words \xe2\x96\x81 and a tail"));
}

TEST(json_a_lone_surrogate_escape_becomes_the_replacement_character)
{
    check_string(t, STR("\"\\ud800\""), STR("\xef\xbf\xbd"));
    check_string(t, STR("\"a\\uDC00z\""), STR("a\xef\xbf\xbdz"));
    check_string(t, STR("\"\\ud83d\\ud83d\\ude00\""), STR("\xef\xbf\xbd\xf0\x9f\x98\x80"));
    check_string(t, STR("\"\\ude00\\ud83d\""), STR("\xef\xbf\xbd\xef\xbf\xbd"));
    check_string(t, STR("\"\\ud83d\\n\""), STR("\xef\xbf\xbd\n"));
    check_string(t, STR("\"\\ud83d\\u0041\""), STR("\xef\xbf\xbd\x41"));
    err e = {0};
    CHECK_FAILS(read_all(STR("\"\\ud83d\\uzzzz\""), NULL, &e), e, "column 8: invalid escape"); /* bad stays bad */
    CHECK_FAILS(read_all(STR("{\"\\ud800\":1,\"\\udfff\":2}"), NULL, &e), e, "appears twice"); /* both U+FFFD */
}

/* Each byte at each place of a string that spans several words: stops where it must, nowhere else. */
TEST(json_string_scan_agrees_with_a_byte_at_a_time)
{
    for (int at = 0; at < 20; at++)
        for (int c = 0; c < 256; c++) {
            char text[22];
            err  e = {0};
            memset(text, 'x', sizeof text);
            text[0] = text[21] = '"';
            text[1 + at]       = (char)c;
            bool plain         = c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
            CHECK_MSG(read_all((str){text, sizeof text}, NULL, &e) == plain, "byte 0x%02x at %d: %s", c, at, e.text);
        }
}

TEST(json_integers_are_exact)
{
    CHECK(one_value(t, STR("9223372036854775807")).i == INT64_MAX);
    CHECK(one_value(t, STR("-9223372036854775808")).i == INT64_MIN);
    CHECK(one_value(t, STR("9007199254740993")).i == 9007199254740993); /* not a double */
    json_event zero = one_value(t, STR("-0"));
    CHECK(zero.kind == JSON_INT && zero.i == 0 && !signbit(zero.d));
    static const struct {
        const char *text;
        double      d;
    } beyond[] = {{"9223372036854775808", 0x1p63},
                  {"-9223372036854775809", -0x1p63},
                  {"18446744073709551615", 0x1p64},
                  {"100000000000000000000000", 1e23}};
    for (size_t i = 0; i < COUNT(beyond); i++) {
        json_event x = one_value(t, str_of(beyond[i].text));
        CHECK_MSG(x.kind == JSON_REAL && x.d == beyond[i].d, "%s is %.17g", beyond[i].text, x.d);
    }
    CHECK_INT(one_value(t, STR("1e3")).kind, JSON_REAL);
    CHECK_INT(one_value(t, STR("1.0")).kind, JSON_REAL);
}

static void nest(buf *b, int depth, bool objects)
{
    for (int i = 0; i < depth; i++) buf_puts(b, objects && i + 1 < depth ? "{\"a\":" : objects ? "{" : "[");
    for (int i = 0; i < depth; i++) buf_putc(b, objects ? '}' : ']');
}

TEST(json_depth_has_a_limit)
{
    for (int objects = 0; objects < 2; objects++)
        for (int limit = 0; limit <= 3; limit++) { /* 0: the default */
            json_limits limits = {.max_depth = limit};
            int         max    = limit ? limit : 64;
            buf         b;
            err         e = {0};
            buf_init(&b, 10000);
            nest(&b, max, objects);
            CHECK_OK(read_all(buf_str(&b), limit ? &limits : NULL, &e), e);
            buf_clear(&b);
            nest(&b, max + 1, objects);
            CHECK_FAILS(read_all(buf_str(&b), limit ? &limits : NULL, &e), e, "nested deeper than");
            CHECK_INT(e.code, ERR_TOO_LARGE);
            buf_deinit(&b);
        }
}

TEST(json_text_has_a_limit)
{
    json_limits limits = {.max_bytes = 4};
    err         e      = {0};
    CHECK_OK(read_all(STR("[10]"), &limits, &e), e);
    CHECK_FAILS(read_all(STR("[100]"), &limits, &e), e, "the text has 5 bytes, the limit is 4");
    CHECK_INT(e.code, ERR_TOO_LARGE);
}

static void put_keys(buf *b, int n)
{
    buf_putc(b, '{');
    for (int i = 0; i < n; i++) buf_printf(b, "%s\"key%d\":%d", i ? "," : "", i, i);
    buf_putc(b, '}');
}

TEST(json_memory_has_a_limit)
{
    json_limits limits = {.max_memory = 4096};
    err         e      = {0};
    buf         b;
    buf_init(&b, 1 << 20);
    put_keys(&b, 64);
    CHECK_OK(read_all(buf_str(&b), &limits, &e), e);
    buf_clear(&b);
    put_keys(&b, 1000); /* as keys */
    CHECK_FAILS(read_all(buf_str(&b), &limits, &e), e, "more memory than its limit");
    CHECK_INT(e.code, ERR_TOO_LARGE);
    buf_clear(&b);
    buf_puts(&b, "[\"\\n"); /* as a decoded string */
    for (int i = 0; i < 4096; i++) buf_putc(&b, 'x');
    buf_puts(&b, "\"]");
    CHECK_FAILS(read_all(buf_str(&b), &limits, &e), e, "more memory than its limit");
    buf_clear(&b);
    buf_putc(&b, '['); /* keys of closed objects are forgotten */
    for (int i = 0; i < 100; i++) {
        if (i) buf_putc(&b, ',');
        put_keys(&b, 50);
    }
    buf_putc(&b, ']');
    CHECK_OK(read_all(buf_str(&b), &limits, &e), e);
    buf_deinit(&b);
}

TEST(json_finds_one_duplicate_among_many_keys)
{
    enum { N = 100000 };
    buf b;
    err e = {0};
    buf_init(&b, 8 << 20);
    put_keys(&b, N);
    CHECK_OK(read_all(buf_str(&b), NULL, &e), e);
    for (int i = 0; i < N; i += N / 7) {
        b.n--; /* the brace */
        size_t before = b.n;
        buf_printf(&b, ",\"key%d\":0}", i);
        CHECK_FAILS(read_all(buf_str(&b), NULL, &e), e, "appears twice");
        b.n = before;
        buf_putc(&b, '}');
    }
    buf_deinit(&b);
}

/* Keys come and go in nested objects; a plain list of the open ones is the judge. */
TEST(json_keys_of_closed_objects_are_forgotten_and_others_kept)
{
    uint64_t seed = 7;
    for (int round = 0; round < 300; round++) {
        struct {
            int key[64], n;
        } open[8]  = {0};
        int  depth = 0;
        bool twice = false;
        buf  b;
        err  e = {0};
        buf_init(&b, 1 << 20);
        buf_putc(&b, '{');
        for (int i = 0; i < 60 && !twice; i++) {
            int key = (int)(test_rand(&seed) % 400);
            for (int k = 0; k < open[depth].n; k++) twice |= open[depth].key[k] == key;
            buf_printf(&b, "%s\"%d\":", open[depth].n ? "," : "", key);
            open[depth].key[open[depth].n++] = key;
            if (depth < 7 && test_rand(&seed) % 3 == 0) {
                open[++depth].n = 0;
                buf_putc(&b, '{');
                continue;
            }
            buf_puts(&b, "0");
            for (; depth && test_rand(&seed) % 3 == 0; depth--) buf_putc(&b, '}');
        }
        if (b.p[b.n - 1] == ':') buf_puts(&b, "0");
        for (; depth >= 0; depth--) buf_putc(&b, '}');
        CHECK_MSG(read_all(buf_str(&b), NULL, &e) == !twice, "%.*s: %s, twice %d", STR_ARG(buf_str(&b)), e.text, twice);
        buf_deinit(&b);
    }
}

/* The same key in every one of many open objects, and many objects below: a table that put them into one
 * chain would take minutes. */
TEST(json_equal_keys_of_nested_objects_stay_apart)
{
    enum { DEPTH = 100000 };
    json_limits limits = {.max_depth = DEPTH + 2};
    err         e      = {0};
    buf         b;
    buf_init(&b, 8 << 20);
    for (int i = 0; i < DEPTH; i++) buf_puts(&b, "{\"a\":");
    buf_putc(&b, '[');
    for (int i = 0; i < DEPTH; i++) buf_puts(&b, i ? ",{\"a\":0}" : "{\"a\":0}");
    buf_putc(&b, ']');
    for (int i = 0; i < DEPTH; i++) buf_putc(&b, '}');
    CHECK_OK(read_all(buf_str(&b), &limits, &e), e);
    buf_deinit(&b);
}

TEST(json_the_hash_of_keys_differs_from_reader_to_reader)
{
    arena     a;
    json_keys x, y;
    arena_init(&a, 1 << 20);
    json_keys_init(&x, &a);
    json_keys_init(&y, &a);
    CHECK(x.seed[0] != y.seed[0] && x.seed[1] != y.seed[1]);
    json_keys_deinit(&x);
    json_keys_deinit(&y);
}

TEST(json_a_failed_reader_stays_failed_with_the_same_sentence)
{
    json_reader *r;
    json_event   ev;
    err          e = {0}, again = {0};
    if (!CHECK_OK(json_reader_open(&r, STR("[1 2]"), NULL, &e), e)) return;
    CHECK_OK(json_next(r, &ev, &e) && json_next(r, &ev, &e), e);
    CHECK_FAILS(json_next(r, &ev, &e), e, "line 1, column 4: expected ',' or ']'");
    CHECK(!json_next(r, &ev, &again) && !strcmp(again.text, e.text));
    again = (err){0};
    CHECK(!json_skip(r, &again) && !strcmp(again.text, e.text) && again.code == e.code);
    CHECK(!json_next(r, &ev, NULL));
    json_reader_close(r);
}

TEST(json_success_leaves_the_error_alone)
{
    err e = {.code = ERR_IO, .text = "as it was"};
    CHECK(read_all(STR("{\"a\":[1]}"), NULL, &e));
    CHECK(e.code == ERR_IO && !strcmp(e.text, "as it was"));
}

TEST(json_skip_passes_one_whole_value)
{
    str          text = STR("{\"a\":{\"x\":[1,{\"y\":\"\\n\"}],\"z\":\"]\"},\"b\":[[],7,{\"a\":1},\"s\",9],\"c\":3}");
    json_reader *r;
    json_event   ev;
    err          e = {0};
    if (!CHECK_OK(json_reader_open(&r, text, NULL, &e), e)) return;
    CHECK_OK(json_next(r, &ev, &e) && json_next(r, &ev, &e) && json_skip(r, &e), e); /* the value of a */
    CHECK_OK(json_next(r, &ev, &e), e);
    CHECK_STR(ev.s, STR("b"));
    CHECK_OK(json_next(r, &ev, &e), e);
    for (int i = 0; i < 4; i++) CHECK_OK(json_skip(r, &e), e);
    CHECK_OK(json_next(r, &ev, &e), e);
    CHECK_INT(ev.i, 9);
    CHECK_OK(json_next(r, &ev, &e), e);
    CHECK_INT(ev.kind, JSON_ARRAY_END);
    CHECK_OK(json_next(r, &ev, &e) && json_skip(r, &e) && json_next(r, &ev, &e), e);
    CHECK_INT(ev.kind, JSON_OBJECT_END);
    CHECK_OK(json_next(r, &ev, &e), e);
    CHECK_INT(ev.kind, JSON_END);
    json_reader_close(r);
}

TEST(json_skip_checks_what_it_passes)
{
    static const struct {
        const char *text, *sentence;
    } bad[] = {
        {"{\"a\":1,\"a\":2}", "key 'a' appears twice"},
        {"[[1,2", "expected ',' or ']'"},
        {"[\"\\q\"]", "invalid escape"},
        {"[1e999]", "too large"},
        {"", "expected a value"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        json_reader *r;
        err          e = {0};
        if (!CHECK_OK(json_reader_open(&r, str_of(bad[i].text), NULL, &e), e)) continue;
        CHECK_FAILS(json_skip(r, &e), e, bad[i].sentence);
        json_reader_close(r);
    }
}

TEST(json_skip_at_the_end_of_an_array_is_an_error)
{
    json_reader *r;
    json_event   ev;
    err          e = {0};
    if (!CHECK_OK(json_reader_open(&r, STR("[1]"), NULL, &e), e)) return;
    CHECK_OK(json_next(r, &ev, &e) && json_skip(r, &e), e);
    CHECK_FAILS(json_skip(r, &e), e, "line 1, column 3: expected a value, found the end of the array");
    json_reader_close(r);
}

TEST(json_skip_decodes_no_strings_but_keys)
{
    json_limits limits = {.max_memory = 2048};
    err         e      = {0};
    buf         b;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "{\"\\u0061\":\"");
    for (int i = 0; i < 4096; i++) buf_puts(&b, "\\n");
    buf_puts(&b, "\"}");
    json_reader *r;
    if (CHECK_OK(json_reader_open(&r, buf_str(&b), &limits, &e), e)) CHECK_OK(json_skip(r, &e), e);
    json_reader_close(r);
    CHECK_FAILS(read_all(buf_str(&b), &limits, &e), e, "more memory than its limit");
    buf_deinit(&b);
}

/* Every allocation of the reader fails once. */
TEST(json_next_survives_each_failing_allocation)
{
    err e = {0};
    buf b;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "[\"\\n");
    for (int i = 0; i < 70000; i++) buf_putc(&b, 'x'); /* more than a chunk of the arena */
    buf_puts(&b, "\",");
    put_keys(&b, 100); /* grows thrice */
    buf_puts(&b, "]");
    long n = 0;
    bool ok;
    do {
        fault_fail_nth(++n);
        ok = read_all(buf_str(&b), NULL, &e);
        if (!ok) CHECK_MSG(e.code == ERR_UNAVAILABLE && strstr(e.text, "out of memory"), "%ld: %s", n, e.text);
    } while (!ok && n < 1000);
    CHECK_MSG(n > 8 && n < 1000, "%ld allocations", n);
    fault_fail_nth(0);
    buf_deinit(&b);
}
