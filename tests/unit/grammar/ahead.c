/* The shortest way to an end, and what must come next. */
#include "grammar/guide.h"
#include "rig.h"
#include "schemas.h"

#include <stdlib.h>

static void quoted(char *out, size_t cap, const char *schema)
{
    size_t n = 0;
    for (; schema[n] && n + 1 < cap; n++) out[n] = schema[n] == '\'' ? '"' : schema[n];
    out[n] = 0;
}

/* From any place of a random walk: no more tokens than symbols, each one nearer to the end, and an end behind the last. */
static void check_way(test_case *t, grammar_machine *m, grammar_state from, const char *schema)
{
    enum { MOST = 512 };
    static int32_t way[MOST];
    int            n = grammar_shortest(m, from, way, MOST);
    grammar_state  s = grammar_fork(m, from);
    CHECK_MSG(n >= 0 && n <= MOST && n <= grammar_distance(m, from), "%s: %d tokens, %d symbols", schema, n,
              grammar_distance(m, from));
    for (int i = 0; i < n && s >= 0; i++) {
        CHECK_MSG(!grammar_can_end(m, s), "%s: it could have ended after %d of %d", schema, i, n);
        grammar_state to = grammar_take(m, s, way[i]);
        grammar_drop(m, s);
        s = to;
        CHECK_MSG(s >= 0 && grammar_shortest(m, s, NULL, 0) == n - 1 - i, "%s: the way changes after %d of %d", schema,
                  i + 1, n);
    }
    CHECK_MSG(grammar_can_end(m, s), "%s: no end after %d tokens", schema, n);
    grammar_drop(m, s);
}

static int32_t any_token(const uint64_t *mask, size_t words, uint64_t *rand)
{
    for (int tries = 0; tries < 100000; tries++) {
        size_t id = test_rand(rand) % (words * 64);
        if (mask[id / 64] >> id % 64 & 1) return (int32_t)id;
    }
    return -1;
}

TEST(grammar_the_shortest_way_is_one_way)
{
    rig_vocab *v    = rig_nano();
    uint64_t   rand = 5;
    char       text[4096];
    for (size_t i = 0; i < n_schema_rows; i++) {
        if (!schema_rows[i].yes[0]) continue;
        quoted(text, sizeof text, schema_rows[i].schema);
        grammar_machine *m = rig_schema(t, v, text);
        if (!m) continue;
        grammar_state s = grammar_start(m);
        for (int step = 0; step < 12 && s >= 0; step++) {
            check_way(t, m, s, text);
            const uint64_t *mask = grammar_mask(m, s, NULL);
            grammar_state   to =
                mask ? grammar_take(m, s, any_token(mask, grammar_mask_words(v->vocab), &rand)) : GRAMMAR_NO;
            grammar_drop(m, s);
            s = to;
        }
        grammar_drop(m, s);
        rig_free(m);
    }
}

TEST(grammar_ahead_is_what_must_follow)
{
    rig_vocab       *v = rig_nano();
    grammar_machine *m = rig_gbnf(t, v, "root ::= \"the same words\" <|tool_call> \"again\" (\"a\" | \"b\")");
    grammar_state    s = grammar_start(m);
    int32_t          out[64];
    int              n = grammar_forced_tokens(m, s, out, 64);
    CHECK(n > 2 && n < 20);
    CHECK_INT(grammar_forced_tokens(m, s, out, 2), 2);
    n = grammar_forced_tokens(m, s, out, 64);
    for (int i = 0; i < n && s >= 0; i++) {
        grammar_state to = grammar_take(m, s, out[i]);
        grammar_drop(m, s);
        s = to;
    }
    CHECK(s >= 0);
    CHECK_INT(grammar_distance(m, s), 1);
    CHECK_INT(grammar_forced_tokens(m, s, out, 64), 0);
    grammar_drop(m, s);
    rig_free(m);
}

/* Readings grow with the text: the way is given up after so many looks, and says the same with everything cached and nothing. */
TEST(grammar_looking_for_the_shortest_way_is_bounded)
{
    static const char *const text[] = {"root ::= (\"a\" | \"aa\"){900}", "root ::= (\"a\" | \"aa\"){6000}",
                                       "root ::= ((\"a\" | \"aa\") \"b\"?){400} [ab]{600}"};
    enum { LETTERS = 300, MOST_LOOKS = 1 << 16 };
    rig_vocab *v = rig_bytes();
    for (size_t i = 0; i < COUNT(text); i++) {
        grammar_machine *m = rig_gbnf(t, v, text[i]);
        grammar_state    s = grammar_start(m);
        for (int n = 0; n < LETTERS && s >= 0; n++) {
            grammar_state to = grammar_take_bytes(m, s, STR("a"));
            grammar_drop(m, s);
            s = to;
            if (n % 20) continue;
            int     first  = grammar_shortest(m, s, NULL, 0);
            int64_t before = grammar_machine_stats(m).steps;
            CHECK_INT(grammar_shortest(m, s, NULL, 0), first);
            int64_t took = grammar_machine_stats(m).steps - before;
            CHECK_MSG(took <= MOST_LOOKS, "%s: %lld looks after %d letters", text[i], (long long)took, n);
            CHECK(first < 0 || grammar_distance(m, s) <= GRAMMAR_MAX_AHEAD);
        }
        CHECK(s >= 0);
        grammar_drop(m, s);
        rig_free(m);
    }
}

/* An end that so few tokens cannot be, or that any so many are, is told without a step. */
TEST(guide_tells_far_and_near_ends_without_looking)
{
    rig_vocab    *v = rig_bytes();
    guide_markers k;
    err           e   = {0};
    grammar      *g   = NULL;
    guide        *way = NULL;
    if (!CHECK_OK(guide_markers_init(&k, v->tok, &v->end, 1, &e), e)) return;
    if (CHECK_OK(grammar_from_gbnf(&g, STR("root ::= (\"a\" | \"aa\"){1000}"), NULL, &e), e) &&
        CHECK_OK(guide_new(&way, g, false, v->vocab, &k, &e), e)) {
        grammar_state s     = guide_begin(way, &(guide_begins){0});
        int32_t       a     = tok_find(v->tok, STR("a")), out[4];
        int64_t       steps = guide_stats(way).steps;
        CHECK_INT(guide_settle(way, s, a, 20), a);
        CHECK_INT(guide_settle(way, s, a, 2000), a);
        CHECK(guide_stats(way).steps - steps < 100); /* of the one letter */
        CHECK_INT(guide_draft(way, s, 2000, out, 0), 0);
        CHECK_INT(guide_settle(way, s, a, 1000), a);
        guide_drop(way, s);
    }
    guide_free(way);
    guide_markers_deinit(&k);
}
