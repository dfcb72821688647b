/* GBNF: texts byte by byte, and what is refused. */
#include "base/clock.h"
#include "grammar/guide.h"
#include "grammar/rig.h"
#include "tok/small.h"

typedef struct {
    const char *grammar, *yes[6], *no[6];
} gbnf_row;

static const gbnf_row rows[] = {
    {"root ::= \"a\"", {"a"}, {"", "b", "aa"}},
    {"root ::= \"a\" | \"b\"\n", {"a", "b"}, {"ab", ""}},
    {"root ::= \"a\" \"b\" # comment\n", {"ab"}, {"a", "a b"}},
    {"# first\n\nroot ::=\n  \"a\" |\n  \"b\"\n", {"a", "b"}, {"c"}},
    {"root ::= \"a\"\n  | \"b\"\n", {"a", "b"}, {""}},
    {"root ::= (\n \"a\"\n |\n \"b\" # x\n)\nx ::= \"z\"", {"a", "b"}, {"z"}},
    {"root ::= [a-c]", {"a", "b", "c"}, {"d", "", "ab"}},
    {"root ::= [^a-c]", {"d", "\n", "\xC3\xA9", "\xF0\x9F\x98\x80"}, {"a", "\xC3", "dd"}},
    {"root ::= [a\\-\\]\\\\]", {"a", "-", "]", "\\"}, {"b"}},
    {"root ::= [-a]", {"-", "a"}, {"b"}},
    {"root ::= [a-]", {"-", "a"}, {"b"}},
    {"root ::= \"\\x41\\u00e9\\U0001F600\\n\\t\\r\\\"\"", {"A\xC3\xA9\xF0\x9F\x98\x80\n\t\r\""}, {"A"}},
    {"root ::= [\\u00e0-\\u00ff]+", {"\xC3\xA0", "\xC3\xBF\xC3\xA9"}, {"\xC3\x9F", "a", ""}},
    {"root ::= [\\U00010000-\\U0010FFFF]",
     {"\xF0\x9F\x98\x80", "\xF4\x8F\xBF\xBF", "\xF0\x90\x80\x80"},
     {"a", "\xEF\xBF\xBF"}},
    {"root ::= [\\u07ff-\\u0801]", {"\xDF\xBF", "\xE0\xA0\x80", "\xE0\xA0\x81"}, {"\xDF\xBE", "\xE0\xA0\x82"}},
    {"root ::= [\\u0fff-\\ud7ff\\ue000]",
     {"\xE0\xBF\xBF", "\xE1\x80\x80", "\xED\x9F\xBF", "\xEE\x80\x80"},
     {"\xED\xA0\x80", "\xEE\x80\x81"}},
    {"root ::= .", {"a", "\n", "\xC3\xA9"}, {"", "ab", "\xFF", "\xC0\x80"}},
    {"root ::= \"a\"?", {"", "a"}, {"aa"}},
    {"root ::= \"a\"*", {"", "a", "aaaa"}, {"b"}},
    {"root ::= \"a\"+", {"a", "aaaa"}, {"", "b"}},
    {"root ::= \"a\"{3}", {"aaa"}, {"aa", "aaaa"}},
    {"root ::= \"a\"{2,}", {"aa", "aaaaa"}, {"a", ""}},
    {"root ::= \"a\"{1,3}", {"a", "aa", "aaa"}, {"", "aaaa"}},
    {"root ::= \"a\"{0}", {""}, {"a"}},
    {"root ::= \"a\"{,2}", {"", "aa"}, {"aaa"}},
    {"root ::= (\"ab\" | \"c\"){2,3}", {"abab", "cc", "abcab"}, {"ab", "cccc"}},
    {"root ::= [ab]{152}",
     {"ababababababababababababababababababababababababababababababababababababababababababababababababababab"
      "ababababababababababababababababababababababababab"},
     {"ab"}},
    {"root ::= (\"a\" [0-9] \"bcdefghijklmnopqrstuvwxyz\"){4,}",
     {"a1bcdefghijklmnopqrstuvwxyza1bcdefghijklmnopqrstuvwxyza1bcdefghijklmnopqrstuvwxyza1bcdefghijklmnopqrstuvwxyz"},
     {"a1bcdefghijklmnopqrstuvwxyza1bcdefghijklmnopqrstuvwxyza1bcdefghijklmnopqrstuvwxyz"}},
    {"root ::= (\"a\"?)*", {"", "aaa"}, {"b"}},
    {"root ::= (\"a\"*)+ \"b\"", {"b", "aab"}, {"", "a"}},
    {"root ::= (\"a\"?){500} \"b\"", {"b", "aaab"}, {"a"}},
    {"root ::= x y\nx ::= \"x\"\ny ::= \"y\" x", {"xyx"}, {"xy", "xyxy"}},
    {"root ::= list\nlist ::= \"a\" list | \"\"", {"", "a", "aaaaaa"}, {"b"}},
    {"root ::= ws \"x\" ws\nws ::= [ \\t\\n]*", {"x", " x\n ", "\t\tx"}, {"", " ", "xx"}},
    {"root ::= e\ne ::= \"(\" e \")\" | \"n\"", {"n", "(n)", "(((n)))"}, {"(n", "()", "n)"}},
    {"root ::= e\ne ::= t (\"+\" t)*\nt ::= [0-9]+ | \"(\" e \")\"", {"1", "1+22", "(1+2)+3"}, {"+1", "(1", "1+"}},
    {"root ::= a-b_c\na-b_c ::= \"ok\"", {"ok"}, {"o"}},
    {"root ::= \"a\" | \"ab\" | \"abc\" | \"b\"", {"a", "ab", "abc", "b"}, {"abcd", "bc", ""}},
    {"root ::= \"\" | \"x\"", {"", "x"}, {"y"}},
    {"root ::= s s\ns ::= \"a\"?", {"", "a", "aa"}, {"aaa"}},
    {"root   ::= object\n"
     "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
     "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n"
     "array  ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
     "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" "
     "ws\n"
     "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n"
     "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n",
     {"{}", "{\"a\": [1, {\"b\": null}]}", "{\n  \"a\": -1.5e1\n}", "{\"\\u00e9\":\"\"}"},
     {"[]", "{\"a\"}", "{\"a\":01}", "{\"a\":1,}"}},
};

TEST(grammar_gbnf_table)
{
    for (size_t i = 0; i < COUNT(rows); i++) {
        grammar_machine *m = rig_gbnf(t, rig_bytes(), rows[i].grammar);
        for (size_t k = 0; m && k < COUNT(rows[i].yes) && rows[i].yes[k]; k++)
            CHECK_MSG(rig_follow(m, str_of(rows[i].yes[k])) == RIG_WHOLE, "%s should allow '%s'", rows[i].grammar,
                      rows[i].yes[k]);
        for (size_t k = 0; m && k < COUNT(rows[i].no) && rows[i].no[k]; k++)
            CHECK_MSG(rig_follow(m, str_of(rows[i].no[k])) != RIG_WHOLE, "%s should not allow '%s'", rows[i].grammar,
                      rows[i].no[k]);
        rig_free(m);
    }
}

TEST(grammar_gbnf_refuses_with_a_place)
{
    static const char *const bad[][2] = {
        {"", "no rule 'root'"},
        {"x ::= \"a\"", "no rule 'root'"},
        {"root ::= x", "rule 'x' is used but not defined"},
        {"root ::= \"a", "line 1, column 12: a literal does not end"},
        {"root ::= [a", "the grammar ends in the middle"},
        {"root ::= [b-a]", "a range ends before it begins"},
        {"root ::= (\"a\"", "expected ) here"},
        {"root ::= \"a\")", "expected the end of the rule"},
        {"root := \"a\"", "expected ::="},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 9: this rule is defined twice"},
        {"root ::= \"\\q\"", "unknown escape"},
        {"root ::= \"\\x4\"", "hexadecimal digit"},
        {"root ::= \"\\ud800\"", "not a character"},
        {"root ::= \"a\"{3,2}", "maximum of a repetition is below its minimum"},
        {"root ::= \"a\"{99999999}", "count is over"},
        {"root ::= \"a\"{x}", "a count is missing"},
        {"root ::= root \"a\" | \"b\"", "rule 'root' is left-recursive"},
        {"root ::= x\nx ::= y\ny ::= \"a\"? x \"b\"", "is left-recursive"},
        {"root ::= x \"a\"\nx ::= \"\" | root", "is left-recursive"},
        {"root ::= \"a\" root", "rule 'root' can never be completed"},
        {"root ::= \"a\" | x\nx ::= [] \"b\"", "rule 'x' can never be completed"},
        {"root ::= (\"a\"* \"b\"?){500}", "may be empty"},
        {"root ::= \"\xFF\"", "not UTF-8"},
        {"root ::= <|tool", "does not end with >"},
        {"root ::= \"a\"*****", "too many repetitions"},
        {"=", "expected a rule's name"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        grammar *g  = NULL;
        err      e  = {0};
        bool     ok = grammar_from_gbnf(&g, str_of(bad[i][0]), NULL, &e);
        CHECK_MSG(!ok && strstr(e.text, bad[i][1]), "%s: %s; expected '%s'", bad[i][0], ok ? "was accepted" : e.text,
                  bad[i][1]);
        grammar_free(g);
    }
}

/* Kinds of large grammars; each is done, or refused, in a second. */
static void put_large_grammar(buf *b, int kind)
{
    buf_puts(b, kind < 2 ? "root ::= r0\n" : "root ::= ");
    for (int i = 0; i < 15000; i++) {
        if (kind == 0) buf_printf(b, "r%d ::= r%d r%d | \"x\"\n", i, i + 1, i + 1);
        if (kind == 1) buf_printf(b, "r%d ::= \"\" | r%d\n", i, (i + 1) % 15000);
        if (kind == 2) buf_printf(b, "\"%d\"? ", i);
        if (kind == 3) buf_printf(b, "\"%d\" | ", i);
        if (kind == 4 && i < 60) buf_puts(b, "(");
        if (kind == 5) buf_printf(b, "[\\u%04x-\\u%04x]", 0x100 + i, 0x110 + i);
        if (kind == 6 && i < 64) buf_puts(b, "( [a-z]? ");
    }
    if (kind == 0) buf_puts(b, "r15000 ::= \"y\"");
    if (kind == 3) buf_puts(b, "\"z\"");
    if (kind == 4) buf_puts(b, "\"a\"");
    for (int i = 0; i < 64; i++) {
        if (kind == 4 && i < 60) buf_puts(b, "){3,9}");
        if (kind == 6) buf_puts(b, ")+");
    }
}

TEST(grammar_large_grammars_are_done_in_a_second)
{
    buf b;
    buf_init(&b, 4 << 20);
    for (int kind = 0; kind < 7; kind++) {
        grammar *g = NULL;
        err      e = {0};
        buf_clear(&b);
        put_large_grammar(&b, kind);
        double before = clock_thread_s();
        bool   ok     = grammar_from_gbnf(&g, buf_str(&b), NULL, &e);
        double took   = clock_thread_s() - before;
        CHECK_MSG(took < TEST_SLOWER, "large grammar %d took %.2f s", kind, took);
        CHECK_MSG(ok == (kind != 1), "large grammar %d: %s", kind, ok ? "was accepted" : e.text);
        grammar_free(g);
    }
    buf_deinit(&b);
}

TEST(grammar_gbnf_names_tokens)
{
    rig_vocab       *v = rig_bytes();
    grammar_machine *m = rig_gbnf(t, v, "root ::= <|turn> \"a\" <[5]>");
    grammar_state    s = grammar_start(m), a, b, c;
    CHECK_INT(rig_next(m, s), tok_find(v->tok, STR("<|turn>")));
    CHECK_INT(grammar_take_bytes(m, s, STR("<|turn>")), GRAMMAR_NO); /* text is no marker */
    a = grammar_take(m, s, tok_find(v->tok, STR("<|turn>")));
    b = grammar_take_bytes(m, a, STR("a"));
    c = grammar_take(m, b, 5);
    CHECK(rig_must_end(m, v, c));
    CHECK_INT(grammar_take(m, c, v->end), GRAMMAR_ENDED);
    CHECK_INT(grammar_take(m, a, v->end), GRAMMAR_NO);
    grammar_drop(m, s), grammar_drop(m, a), grammar_drop(m, b), grammar_drop(m, c);
    rig_free(m);
    grammar         *g;
    grammar_machine *none;
    err              e;
    CHECK_OK(grammar_from_gbnf(&g, STR("root ::= <nowhere>"), NULL, &e), e);
    CHECK_FAILS(grammar_machine_new(&none, g, v->vocab, &e), e, "<nowhere>");
    grammar_free(g);
    CHECK_OK(grammar_from_gbnf(&g, STR("root ::= <eos> \"a\""), NULL, &e), e);
    CHECK_FAILS(grammar_machine_new(&none, g, v->vocab, &e), e, "which is a stop token");
    grammar_free(g);
}

TEST(grammar_ahead_is_what_must_come)
{
    rig_vocab       *v = rig_bytes();
    grammar_machine *m = rig_gbnf(t, v, "root ::= \"abc\" (\"def\" | \"deg\") \"h\"?");
    grammar_state    s = grammar_start(m), a;
    int32_t          out[16];
    int              n = grammar_forced_tokens(m, s, out, 16);
    buf              text;
    buf_init(&text, 64);
    tok_decode(v->tok, out, (size_t)n, false, &text);
    CHECK_STR(buf_str(&text), STR("abcde"));
    buf_deinit(&text);
    CHECK_INT(grammar_forced_tokens(m, s, out, 1), 1);
    a = grammar_take_bytes(m, s, STR("abcdef"));
    CHECK_INT(grammar_forced_tokens(m, a, out, 16), 0); /* it may end here */
    grammar_drop(m, a);
    grammar_drop(m, s);
    rig_free(m);
}

TEST(grammar_nothing_is_fine_to_free)
{
    grammar_free(NULL);
    grammar_vocab_free(NULL);
    grammar_machine_free(NULL);
    guide_free(NULL);
}
