/* Masks: equal to asking for every token, whatever was cached or swept before; and fast. */
#include "base/clock.h"
#include "base/fault.h"
#include "grammar/rig.h"
#include "tok/small.h"
#include "tok/vocab.h"

#include <stdlib.h>

static const char json_gbnf[] =
    "root ::= value\nvalue ::= object | array | string | number | \"true\" | \"null\"\n"
    "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\"\n"
    "array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\"\nstring ::= \"\\\"\" char* \"\\\"\"\n"
    "char ::= [^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4})\n"
    "number ::= \"-\"? [0-9]+ (\".\" [0-9]+)?\nws ::= [ \\n]*\n";

static const char *const grammars[] = {
    json_gbnf,
    "root ::= [a-c]{3,30} (\"1\" | [0-9]{20,40}) \".\"?",
    "root ::= (\"a\" | \"ab\" | \"abc\")+ \"b\"",
    "root ::= ([a-z] | \"\\\\\" [a-z\\\"] | \"1\" \"2\"? | [\\u0080-\\uffff]){5,14} \"\\\"\" ([a-z\\\":{}]{20,35})*",
    "root ::= line+\nline ::= [^\\n]{1,12} \"\\n\"",
    "root ::= e\ne ::= t ((\"-\" | \",\") t)*\nt ::= [0-9]+ | \"[\" e \"]\" | \"{\" e \"}\"",
    "root ::= x\nx ::= \"[\" x \"]\" | \"a\"",
    "root ::= ([a-z]{0,300} \",\"){2,9}",
    "root ::= <|turn> .* <turn|> \"a\"",
    "root ::= item*\nitem ::= [a-z\"]+ | \" \" item",
};

/* Every token of the vocabulary fed by itself. */
static void check_mask(test_case *t, rig_vocab *v, grammar_machine *m, grammar_state s, const char *what)
{
    err             e     = {0};
    const uint64_t *mask  = grammar_mask(m, s, &e);
    size_t          words = grammar_mask_words(v->vocab);
    if (!CHECK_MSG(mask != NULL, "%s", e.text)) return;
    uint64_t *copy = xnew_n(uint64_t, words);
    memcpy(copy, mask, words * sizeof *copy);
    int wrong = 0, n = 0;
    for (int32_t id = 0; id < tok_size(v->tok); id++) {
        grammar_state to  = grammar_take(m, s, id);
        bool          yes = to >= 0 || to == GRAMMAR_ENDED, bit = copy[id >> 6] >> (id & 63) & 1;
        n += yes;
        if (yes != bit && wrong++ < 2)
            CHECK_MSG(false, "%s: token %d '%.*s' is %s and the mask says %d", what, id, STR_ARG(tok_bytes(v->tok, id)),
                      yes ? "taken" : "refused", bit);
        grammar_drop(m, to);
    }
    CHECK(n > 0);
    mem_free(copy);
}

static int32_t random_allowed(rig_vocab *v, const uint64_t *mask, uint64_t *seed)
{
    int32_t size = tok_size(v->tok), from = (int32_t)(test_rand(seed) % (uint64_t)size);
    for (int32_t i = 0; i < size; i++) {
        int32_t id = (from + i) % size;
        if (mask[id >> 6] >> (id & 63) & 1) return id;
    }
    return -1;
}

static void check_along_walks(test_case *t, rig_vocab *v, grammar_machine *m, int walks, int steps, const char *what)
{
    uint64_t seed = 11;
    for (int w = 0; w < walks; w++) {
        grammar_state s = grammar_start(m);
        for (int n = 0; n < steps && s >= 0; n++) {
            err e;
            check_mask(t, v, m, s, what);
            const uint64_t *mask = grammar_mask(m, s, &e);
            grammar_state   to   = mask ? grammar_take(m, s, random_allowed(v, mask, &seed)) : GRAMMAR_NO;
            grammar_drop(m, s);
            s = to;
        }
        grammar_drop(m, s);
    }
}

TEST(grammar_mask_is_every_token_tried)
{
    for (size_t i = 0; i < COUNT(grammars); i++) {
        grammar_machine *m = rig_gbnf(t, rig_bytes(), grammars[i]);
        if (m) check_along_walks(t, rig_bytes(), m, 12 / TEST_SLOWER + 2, 40, grammars[i]);
        rig_free(m);
    }
}

TEST(grammar_mask_is_every_token_tried_with_schemas)
{
    static const char *const schema[] = {
        "{}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":20},\"b\":{\"type\":\"array\","
        "\"items\":"
        "{\"type\":\"number\",\"minimum\":-2,\"maximum\":7.5},\"maxItems\":100}},\"additionalProperties\":{\"type\":"
        "\"null\"}}",
        "{\"anyOf\":[{\"type\":\"string\",\"minLength\":15},{\"type\":\"string\",\"pattern\":\"a1?b\"},{\"enum\":["
        "\"ab\",\"abc\"]}]}",
        "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}",
    };
    for (size_t i = 0; i < COUNT(schema); i++) {
        grammar_machine *m = rig_schema(t, rig_nano(), schema[i]);
        if (m) check_along_walks(t, rig_nano(), m, 4 / TEST_SLOWER + 1, 40, schema[i]);
        rig_free(m);
    }
}

TEST(grammar_mask_holds_at_the_depth_limit)
{
    grammar_machine *m = rig_schema(t, rig_bytes(), "{\"type\":\"array\"}");
    grammar_state    s = grammar_start(m);
    for (int n = 0; n < GRAMMAR_JSON_DEPTH + 2; n++) {
        if (n > GRAMMAR_JSON_DEPTH - 8) check_mask(t, rig_bytes(), m, s, "deep brackets");
        grammar_state to = grammar_take_bytes(m, s, STR("["));
        if (to < 0) break;
        grammar_drop(m, s);
        s = to;
    }
    grammar_drop(m, s);
    rig_free(m);
}

/* States of a long text with everything swept on the way are those of a fresh machine. */
TEST(grammar_states_outlive_sweeps)
{
    rig_vocab       *v = rig_bytes();
    grammar_machine *m = rig_gbnf(t, v, "root ::= ([a-z]{0,100000} \"\\n\"){0,100000}"), *other;
    grammar_state    s = grammar_start(m), kept;
    CHECK(s >= 0);
    kept = grammar_take_bytes(m, s, STR("ab\ncd"));
    for (int i = 0; i < 40000; i++) {
        grammar_state to = grammar_take_bytes(m, s, i % 100 ? STR("x") : STR("\n"));
        CHECK(to >= 0);
        grammar_drop(m, s);
        s = to;
    }
    CHECK(grammar_machine_stats(m).sweeps > 0);
    check_mask(t, v, m, s, "after sweeps");
    check_mask(t, v, m, kept, "kept over sweeps");
    other              = rig_gbnf(t, v, "root ::= ([a-z]{0,100000} \"\\n\"){0,100000}");
    grammar_state same = grammar_start(other), to = grammar_take_bytes(other, same, STR("ab\ncd"));
    err           e;
    CHECK(!memcmp(grammar_mask(m, kept, &e), grammar_mask(other, to, &e), 8 * grammar_mask_words(v->vocab)));
    grammar_drop(m, s), grammar_drop(m, kept), grammar_drop(other, same), grammar_drop(other, to);
    rig_free(other);
    rig_free(m);
}

/* More places than the cache holds, forth and back. */
TEST(grammar_mask_survives_its_cache)
{
    char       text[512] = "root ::= \"";
    rig_vocab *v         = rig_bytes();
    size_t     head = strlen(text), n = 400;
    uint64_t   seed = 9;
    for (size_t i = 0; i < n; i++) text[head + i] = "ab1"[test_rand(&seed) % 3];
    text[head + n]     = '"';
    grammar_machine *m = rig_gbnf(t, v, text);
    grammar_state    s[401];
    s[0] = grammar_start(m);
    for (size_t i = 0; i < n; i++) s[i + 1] = grammar_take_bytes(m, s[i], (str){text + head + i, 1});
    for (size_t i = 0; i <= n; i++) check_mask(t, v, m, s[i], "forth");
    for (size_t i = n + 1; i-- > 0;) check_mask(t, v, m, s[i], "back");
    for (size_t i = 0; i <= n; i++) grammar_drop(m, s[i]);
    rig_free(m);
}

/* A machine has room for so many states at once; those who hold them let go, and it goes on. */
TEST(grammar_full_machines_say_so)
{
    enum { MANY = 10000 };
    rig_vocab       *v    = rig_bytes();
    grammar_machine *m    = rig_gbnf(t, v, "root ::= [a-z\"]{0,100000} \"1\"");
    grammar_state   *s    = xnew_n(grammar_state, MANY);
    int              n    = 0;
    grammar_state    last = grammar_start(m);
    while (n < MANY && last >= 0) {
        s[n++] = last;
        if (n % 500 == 0) CHECK(grammar_mask(m, last, NULL) != NULL);
        last = grammar_take_bytes(m, last, STR("a"));
    }
    CHECK_MSG(last == GRAMMAR_FULL && n > 5000, "%d states, then %d", n, last);
    err e = {0};
    CHECK(grammar_take(m, s[n - 1], tok_find(v->tok, STR("a"))) == GRAMMAR_FULL);
    CHECK(grammar_mask(m, s[n - 1], &e) == NULL && strstr(e.text, "too ambiguous"));
    for (int i = 10; i < n; i++) grammar_drop(m, s[i]);
    for (int i = 0; i < 10; i++) check_mask(t, v, m, s[i], "after the crowd");
    for (int i = 0; i < 10; i++) grammar_drop(m, s[i]);
    CHECK(grammar_machine_stats(m).sweeps > 0);
    mem_free(s);
    rig_free(m);
}

/* Letters until one is refused, and the states behind the last `held` of them. */
static int follow_far(grammar_machine *m, grammar_state *held, int n_held)
{
    grammar_state s = grammar_start(m), to;
    int           n = 0;
    for (int i = 0; i < n_held; i++) held[i] = GRAMMAR_NO;
    for (; n < 9000 && (to = grammar_take_bytes(m, s, STR("a"))) >= 0; n++) {
        grammar_drop(m, held[n % n_held]);
        held[n % n_held] = s;
        s                = to;
    }
    grammar_drop(m, s);
    return to == GRAMMAR_NO ? n : -1;
}

/* Promise 2: as many rows and lanes as a step can have, each where the grammar is most ambiguous, leave room for one another. What
 * is refused is refused to a text that is alone, too. */
TEST(grammar_rows_do_not_starve_one_another)
{
    enum { ROWS = 256 + 64 };
    static const char *const text[] = {
        "root ::= ((\"a\" | \"aa\") \"b\"?){0,9000} \"c\"",
        "root ::= ([a-z] ((\"a\" | \"aa\"){0,9000} \"c\")?){0,9000} \"d\"",
        "root ::= x \"d\"\nx ::= \"a\" x \"b\" | \"a\" x \"c\" | \"a\"",
    };
    static grammar_state held[ROWS], one[1];
    rig_vocab           *v = rig_bytes();
    for (size_t i = 0; i < COUNT(text); i++) {
        grammar_machine *m = rig_gbnf(t, v, text[i]), *alone = rig_gbnf(t, v, text[i]);
        fault_no_alloc_begin("grammar"); /* also where there is much to sort */
        int n = follow_far(alone, one, 1);
        fault_no_alloc_end();
        CHECK_MSG(n > 0, "%s: a text that is alone finds the machine full", text[i]);
        CHECK_INT(follow_far(m, held, ROWS), n);
        for (int k = 0; k < ROWS; k++) {
            if (held[k] < 0) continue;
            grammar_state to = grammar_take_bytes(m, held[k], STR("a"));
            CHECK_MSG(to != GRAMMAR_FULL, "%s: full at %d", text[i], k);
            grammar_drop(m, to);
            if (k % 100 == 0) CHECK_MSG(grammar_mask(m, held[k], NULL), "%s: no mask at %d", text[i], k);
        }
        for (int k = 0; k < ROWS; k++) grammar_drop(m, held[k]);
        grammar_drop(alone, one[0]);
        rig_free(m);
        rig_free(alone);
    }
}

TEST(grammar_a_hostile_grammar_is_an_error)
{
    static const char *const hostile[] = {
        "root ::= (\"a\"? \"a\" \"a\"? [a-z] [a-z]? [a-z]? [a-z]? [a-z]? [a-z]? [a-z]? [a-z]? [a-z]? [a-z]? [a-z]? "
        "[a-z]? \"a\"?){0,5000}",
        "root ::= x x x x x x\nx ::= \"[\" x x \"]\" | \"[\" x \"]\" | [a-z]+ y\ny ::= [a-z]+ x | \"b\"",
        "root ::= a\na ::= \"x\" a b | \"x\" a c | \"x\"\nb ::= \"y\" b | \"\"\nc ::= \"y\" c | \"\"",
    };
    rig_vocab *v = rig_bytes();
    for (size_t i = 0; i < COUNT(hostile); i++) {
        grammar_machine *m      = rig_gbnf(t, v, hostile[i]);
        grammar_state    s      = m ? grammar_start(m) : GRAMMAR_NO;
        uint64_t         seed   = i;
        double           most_s = 0;
        for (int n = 0; n < 60 && s >= 0; n++) {
            err             e;
            double          before = clock_thread_s();
            const uint64_t *mask   = grammar_mask(m, s, &e);
            double          took   = clock_thread_s() - before;
            if (took > most_s) most_s = took;
            grammar_state to = mask ? grammar_take(m, s, random_allowed(v, mask, &seed)) : GRAMMAR_NO;
            grammar_drop(m, s);
            s = to;
        }
        grammar_drop(m, s);
        CHECK_MSG(most_s < 2 * TEST_SLOWER, "a mask took %.3f s", most_s);
        rig_free(m);
    }
}

/* One letter more makes one more way to read the text, until there are too many: a sentence, soon. */
TEST(grammar_too_many_readings_end_with_a_sentence)
{
    rig_vocab       *v      = rig_bytes();
    grammar_machine *m      = rig_gbnf(t, v, "root ::= ((\"a\" | \"aa\") \"b\"?){0,9000} \"c\"");
    grammar_state    s      = grammar_start(m);
    err              e      = {0};
    double           before = clock_thread_s();
    int              n      = 0;
    for (; n < 9000; n++) {
        grammar_state to = grammar_take_bytes(m, s, STR("a"));
        if (to < 0) break;
        grammar_drop(m, s);
        s = to;
    }
    CHECK_MSG(n > 1000 && n < 9000, "%d letters were taken", n);
    check_mask(t, v, m, s, "nearly too many"); /* c still ends it */
    CHECK(clock_thread_s() - before < 2 * TEST_SLOWER);
    grammar_drop(m, s);
    rig_free(m);

    m = rig_gbnf(t, v, "root ::= ((\"a\" | \"aa\") \"b\"?){9000}");
    s = grammar_start(m);
    for (n = 0; n < 9000; n++) {
        grammar_state to = grammar_take_bytes(m, s, STR("a"));
        if (to < 0) break;
        grammar_drop(m, s);
        s = to;
    }
    s = (grammar_drop(m, s), grammar_start(m));
    CHECK_MSG(grammar_mask(m, s, &e) != NULL, "%s", e.text); /* it still serves other texts */
    grammar_drop(m, s);
    rig_free(m);
}

/* What was worked out beforehand is not worked out again, and changes nothing. */
TEST(grammar_warm_machines_say_the_same)
{
    rig_vocab       *v = rig_nano();
    grammar_machine *m = rig_schema(t, v, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":30}}");
    grammar_machine_warm(m);
    int64_t       before = grammar_machine_stats(m).locals;
    grammar_state s = grammar_start(m), a = grammar_take_bytes(m, s, STR("[\""));
    CHECK(before > 0);
    grammar_mask(m, a, NULL);
    CHECK_INT(grammar_machine_stats(m).locals, before);
    check_mask(t, v, m, a, "warm");
    grammar_drop(m, a);
    a = grammar_take_bytes(m, s, STR("[\"abcdefghijklmnopqrstuv"));
    check_mask(t, v, m, a, "warm, near the end");
    grammar_drop(m, a), grammar_drop(m, s);
    rig_free(m);
}

/* Promise 4: all memory is there at birth. */
TEST(grammar_following_takes_no_memory)
{
    rig_vocab       *v    = rig_nano();
    grammar_machine *m    = rig_schema(t, v, "{\"type\":\"object\"}");
    uint64_t         seed = 5;
    fault_no_alloc_begin("grammar");
    grammar_state s = grammar_start(m);
    for (int n = 0; n < 60 && s >= 0; n++) {
        grammar_state to = grammar_take(m, s, random_allowed(v, grammar_mask(m, s, NULL), &seed));
        rig_next(m, s);
        grammar_drop(m, s);
        s = to;
    }
    grammar_drop(m, s);
    fault_no_alloc_end();
    rig_free(m);
}

TEST(grammar_large_vocabulary_is_fast)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{"
                                 "\"type\":\"integer\"},\"tags\":{\"type\":"
                                 "\"array\",\"items\":{\"type\":\"string\"}},\"note\":{\"type\":\"string\"}},"
                                 "\"required\":[\"name\",\"age\",\"tags\",\"note\"]}";
    static const char text[] =
        "{\"name\": \"Ada\", \"age\": 36, \"tags\": [\"one\", \"two\"], \"note\": \"some text here\"}";
    rig_vocab       *v     = rig_large();
    grammar_machine *m     = rig_schema(t, v, schema);
    grammar_state    s     = grammar_start(m);
    double           first = clock_thread_s(), all;
    err              e;
    for (int round = 0; round < 2; round++) {
        double before = clock_thread_s();
        for (size_t i = 0; i < sizeof text - 1; i++) {
            CHECK(grammar_mask(m, s, &e) != NULL);
            grammar_state to = grammar_take_bytes(m, s, (str){text + i, 1});
            grammar_drop(m, s);
            s = to;
        }
        all = clock_thread_s() - before;
        if (!round) first = all;
        CHECK(grammar_can_end(m, s));
        grammar_drop(m, s);
        s = grammar_start(m);
    }
    grammar_drop(m, s);
    CHECK_MSG(grammar_machine_stats(m).locals > 0 && first < 0.5 * TEST_SLOWER, "%zu masks took %.1f ms at first",
              sizeof text - 1, first * 1e3);
    CHECK_MSG(all < 0.02 * TEST_SLOWER, "%zu masks took %.1f ms again", sizeof text - 1, all * 1e3);
    rig_free(m);
}

/* --- slices ------------------------------------------------------------------------------------ */
/* The mask of s in slices; between them the machine follows other texts. Returns how many it took, or -1. */
static int mask_in_slices(grammar_machine *m, grammar_state s, int64_t slice, grammar_state other)
{
    for (int n = 1; n < 1000000; n++) {
        int64_t work = slice;
        int     done = grammar_mask_work(m, s, &work, NULL);
        if (done != GRAMMAR_LATER) return done == GRAMMAR_READY ? n : -1;
        grammar_drop(m, grammar_take_bytes(m, other, STR("a")));
        grammar_drop(m, grammar_take_bytes(m, other, STR("b c")));
    }
    return -1;
}

static const char *const sliced[] = {
    "root ::= w{1,1000000}\nw ::= \"a\" | \"b\" | [c-z ]+",
    "root ::= (a b?){1,100000}\na ::= [a-z]{1,40}\nb ::= \" \" [a-z]{2,30}",
    "root ::= x\nx ::= [a-z ] x [a-z ] | [a-z ]",
    "root ::= ([a-z]{1,50} [a-z ]{1,50} [a-z]{1,50})+",
    "root ::= \"a\"* (\"b c\" | [a-z ]+ \"!\"){3,9}",
    "root ::= s (\" \" s)*\ns ::= [a-z]{1,300} | \"(\" s \")\"",
    "root ::= [a-z ]{110,130} \"!\"",
    "root ::= [a-z ]{9,150} \"!\"?",
};

TEST(grammar_masks_in_slices_are_the_same)
{
    static const int64_t slices[] = {1, 100, 5000};
    rig_vocab           *v        = rig_nano();
    size_t               bytes    = grammar_mask_words(v->vocab) * sizeof(uint64_t);
    for (size_t i = 0; i < COUNT(sliced); i++)
        for (size_t k = 0; k < COUNT(slices); k++) {
            grammar_machine *whole = rig_gbnf(t, v, sliced[i]), *cut = rig_gbnf(t, v, sliced[i]);
            grammar_state    a = grammar_start(whole), b = grammar_start(cut), other = grammar_fork(cut, b);
            uint32_t         random = (uint32_t)(i * 7 + k + 1);
            int              n = 0, slow = 0;
            for (; n < 12 && a >= 0 && b >= 0; n++) {
                const uint64_t *x     = grammar_mask(whole, a, NULL), *y;
                int             taken = mask_in_slices(cut, b, slices[k], other);
                slow += taken > 1;
                CHECK_MSG(x && taken > 0, "%s", sliced[i]);
                if (!x || taken <= 0) break;
                y = grammar_mask(cut, b, NULL);
                CHECK_MSG(y && !memcmp(x, y, bytes), "%s: token %d, slices of %d", sliced[i], n, (int)slices[k]);
                int32_t id = -1;
                do id = (int32_t)((random = random * 1664525u + 1013904223u) >> 8) % tok_size(v->tok);
                while (!(x[id >> 6] >> (id & 63) & 1) || id == v->end);
                grammar_state to = grammar_take(whole, a, id), also = grammar_take(cut, b, id);
                grammar_drop(whole, a), grammar_drop(cut, b);
                a = to, b = also;
            }
            CHECK_MSG(slow > 0 || slices[k] > 100, "%s: never paused", sliced[i]);
            grammar_drop(whole, a), grammar_drop(cut, b), grammar_drop(cut, other);
            rig_free(whole), rig_free(cut);
        }
}

/* A slice ends soon: after what was granted and one closure more. */
TEST(grammar_slices_of_masks_are_short)
{
    enum { GRANTED = 2000, CLOSURE = 8 * 8192 };
    grammar_machine *m = rig_gbnf(t, rig_nano(), sliced[0]);
    grammar_state    s = grammar_start(m), to = grammar_take_bytes(m, s, STR("cabin does"));
    int              n = 0;
    for (int done = GRAMMAR_LATER; done == GRAMMAR_LATER && n < 100000; n++) {
        int64_t work = GRANTED, before = grammar_machine_work(m);
        done = grammar_mask_work(m, to, &work, NULL);
        CHECK(done != GRAMMAR_NO && grammar_machine_work(m) - before == GRANTED - work && work > -CLOSURE);
        CHECK(done == GRAMMAR_READY || work <= 0);
    }
    CHECK(n > 2);
    grammar_drop(m, s), grammar_drop(m, to);
    rig_free(m);
}

/* Two texts share a machine: both masks come, whoever asks; what nobody wants any more is left. */
TEST(grammar_slices_of_two_masks_take_turns)
{
    grammar_machine *m = rig_gbnf(t, rig_nano(), sliced[0]);
    grammar_state    s = grammar_start(m), a = grammar_take_bytes(m, s, STR("cabin")),
                  b = grammar_take_bytes(m, s, STR("do it"));
    int64_t work = 100, none = 0;
    CHECK_INT(grammar_mask_work(m, a, &work, NULL), GRAMMAR_LATER);
    CHECK_INT(grammar_mask_work(m, b, &none, NULL), GRAMMAR_LATER);
    work = INT64_MAX;
    CHECK_INT(grammar_mask_work(m, b, &work, NULL), GRAMMAR_READY);
    CHECK_INT(grammar_mask_work(m, a, &none, NULL), GRAMMAR_READY); /* it was finished first */
    grammar_state c = grammar_take_bytes(m, s, STR("no one"));
    work            = 100;
    CHECK_INT(grammar_mask_work(m, c, &work, NULL), GRAMMAR_LATER);
    grammar_drop(m, c);
    int64_t before = grammar_machine_stats(m).masks;
    CHECK(grammar_mask(m, a, NULL) && grammar_machine_stats(m).masks == before + 1);
    CHECK_INT(grammar_mask_work(m, a, &none, NULL), GRAMMAR_READY);
    grammar_drop(m, s), grammar_drop(m, a), grammar_drop(m, b);
    rig_free(m);
}

/* Near the end of a count only long tokens are walked anew: the rest is known from where the end was out of sight. */
TEST(grammar_masks_near_the_end_of_a_count_are_cheap)
{
    static char      text[400];
    grammar_machine *m = rig_gbnf(t, rig_nano(), "root ::= \"<\" [a-z ]{1,400} \">\"");
    memset(text, 'a', sizeof text);
    text[0]         = '<';
    grammar_state s = grammar_start(m), far = grammar_take_bytes(m, s, (str){text, 200}),
                  near = grammar_take_bytes(m, s, (str){text, 390});
    int64_t before     = grammar_machine_work(m), first, second;
    CHECK(grammar_mask(m, far, NULL) != NULL);
    first  = grammar_machine_work(m) - before;
    before = grammar_machine_work(m);
    CHECK(grammar_mask(m, near, NULL) != NULL);
    second = grammar_machine_work(m) - before;
    CHECK_MSG(first > 1000 && second < first / 2, "%d steps far from the end, %d near it", (int)first, (int)second);
    before = grammar_machine_work(m);
    CHECK(grammar_mask(m, near, NULL) && grammar_machine_work(m) == before);
    grammar_drop(m, s), grammar_drop(m, far), grammar_drop(m, near);
    rig_free(m);
}

/* The first token of a vocabulary is one like any other. */
TEST(grammar_masks_have_the_first_token)
{
    static const char *const pieces[] = {"a", "b", "ab", "<eos>"};
    static vocab_source      source;
    int32_t                  end = 3;
    tok                     *words;
    grammar_vocab           *v;
    grammar                 *g;
    grammar_machine         *m;
    err                      e = {0};
    vocab_source_init(&source, NULL);
    for (int i = 0; i < 4; i++)
        CHECK_OK(vocab_source_set(&source, i, str_of(pieces[i]), i == 3 ? TOK_CONTROL : TOK_NORMAL, &e), e);
    CHECK_OK(vocab_build(&words, &source, &e) && grammar_vocab_new(&v, words, &end, 1, &e), e);
    CHECK_OK(grammar_from_gbnf(&g, STR("root ::= \"a\" \"b\"?"), NULL, &e) && grammar_machine_new(&m, g, v, &e), e);
    grammar_state s = grammar_start(m), a = grammar_take(m, s, 0);
    CHECK(grammar_mask(m, s, &e)[0] == (1 | 4));
    CHECK(grammar_mask(m, a, &e)[0] == (2 | 8));
    grammar_drop(m, s), grammar_drop(m, a);
    grammar_machine_free(m);
    grammar_free(g);
    grammar_vocab_free(v);
    vocab_source_deinit(&source);
    tok_free(words);
}
