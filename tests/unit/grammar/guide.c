/* Answers that are held to a grammar: thoughts and calls before it, ends that fit, drafts that are dropped when they fail. */
#include "grammar/guide.h"
#include "chat/gemma4_inside.h"
#include "grammar/rig.h"

typedef struct {
    rig_vocab    *v;
    guide_markers k;
    guide        *g;
} way;

static bool open_way(test_case *t, way *w, const char *gbnf)
{
    err      e = {0};
    grammar *g = NULL;
    *w         = (way){.v = rig_nano()};
    return CHECK_OK(guide_markers_init(&w->k, w->v->tok, &w->v->end, 1, &e), e) &&
           CHECK_OK(grammar_from_gbnf(&g, str_of(gbnf), NULL, &e), e) &&
           CHECK_OK(guide_new(&w->g, g, false, w->v->vocab, &w->k, &e), e);
}

static void close_way(way *w)
{
    guide_free(w->g);
    guide_markers_deinit(&w->k);
}

static bool    bit(const uint64_t *mask, int32_t id) { return mask[id >> 6] >> (id & 63) & 1; }
static int32_t id_of(const way *w, const char *text) { return tok_find(w->v->tok, str_of(text)); }

static void move(way *w, grammar_state *s, int32_t token)
{
    grammar_state to = guide_take(w->g, *s, token);
    guide_drop(w->g, *s);
    *s = to;
}

/* The mask of a place has exactly the tokens that may be taken there. */
static void check_place(test_case *t, way *w, grammar_state s, const char *where)
{
    err             e    = {0};
    const uint64_t *mask = guide_mask(w->g, s, &e);
    if (!CHECK_MSG(mask, "%s: %s", where, e.text)) return;
    for (int32_t id = 0; id < tok_size(w->v->tok); id++) {
        grammar_state to = guide_take(w->g, s, id);
        bool          ok = to != GRAMMAR_NO;
        guide_drop(w->g, to);
        mask = guide_mask(w->g, s, &e);
        if (!CHECK_MSG(bit(mask, id) == ok, "%s: token %d is %s", where, id, ok ? "not in the mask" : "in the mask"))
            return;
    }
    CHECK_INT(guide_take(w->g, s, -1), GRAMMAR_NO);
    CHECK_INT(guide_take(w->g, s, (int32_t)guide_mask_words(w->g) * 64), GRAMMAR_NO);
}

static bool may(way *w, grammar_state s, int32_t id)
{
    grammar_state to = guide_take(w->g, s, id);
    guide_drop(w->g, to);
    return to != GRAMMAR_NO;
}

/* Where an answer begins: the grammar, a thought, a call, in all combinations. */
TEST(guide_begins_where_it_may)
{
    way w;
    if (open_way(t, &w, "root ::= \"ab\"")) {
        int32_t a = id_of(&w, "a"), b = id_of(&w, "b");
        CHECK(w.k.open >= 0 && w.k.close >= 0 && w.k.call >= 0 && a >= 0 && b >= 0);
        for (int i = 0; i < 8; i++) {
            guide_begins  begins = {.in_thought = i & 1, .may_think = i & 2, .may_call = i & 4};
            grammar_state s      = guide_begin(w.g, &begins);
            CHECK(guide_goes_on(s));
            check_place(t, &w, s, "the beginning");
            CHECK_INT(may(&w, s, a), true);
            CHECK_INT(may(&w, s, b), begins.in_thought); /* anything can be thought */
            CHECK_INT(may(&w, s, w.k.close), begins.in_thought);
            CHECK_INT(may(&w, s, w.k.open), !begins.in_thought && begins.may_think);
            CHECK_INT(may(&w, s, w.k.call), !begins.in_thought && begins.may_call);
            CHECK_INT(may(&w, s, w.v->end), false);
            if (!begins.in_thought && begins.may_think) move(&w, &s, w.k.open);
            if (begins.in_thought || begins.may_think) {
                move(&w, &s, b);
                move(&w, &s, b);
                check_place(t, &w, s, "a thought");
                CHECK(!may(&w, s, w.k.open) && !may(&w, s, w.k.call) && !may(&w, s, w.v->end));
                move(&w, &s, w.k.close);
                check_place(t, &w, s, "after a thought");
                CHECK(!may(&w, s, w.k.open) && !may(&w, s, b)); /* one thought */
                CHECK_INT(may(&w, s, w.k.call), begins.may_call);
            }
            grammar_state called = guide_take(w.g, s, w.k.call);
            if (begins.may_call) {
                check_place(t, &w, called, "a call");
                CHECK(may(&w, called, b) && may(&w, called, w.v->end) && may(&w, called, w.k.open));
                CHECK(guide_goes_on(called));
            }
            guide_drop(w.g, called);
            move(&w, &s, a);
            check_place(t, &w, s, "the grammar");
            CHECK(may(&w, s, b) && !may(&w, s, a) && !may(&w, s, w.k.call) && !may(&w, s, w.k.open));
            move(&w, &s, b);
            move(&w, &s, w.v->end);
            CHECK(!guide_goes_on(s));
            guide_drop(w.g, s);
        }
    }
    close_way(&w);
}

TEST(guide_markers_of_a_vocabulary)
{
    way w;
    if (open_way(t, &w, "root ::= \"a\"")) {
        for (int32_t id = 0; id < tok_size(w.v->tok); id++) {
            bool text = tok_kind(w.v->tok, id) == TOK_NORMAL || tok_kind(w.v->tok, id) == TOK_BYTE;
            CHECK(bit(w.k.any, id));
            CHECK_INT(bit(w.k.thought, id), id != w.v->end && (text || id == w.k.close));
        }
        guide_markers none = w.k;
        none.open = none.close = none.call = -1; /* a model without markers thinks and calls nothing */
        err      e                         = {0};
        grammar *g;
        guide   *plain;
        if (CHECK_OK(grammar_from_gbnf(&g, STR("root ::= \"a\""), NULL, &e), e) &&
            CHECK_OK(guide_new(&plain, g, false, w.v->vocab, &none, &e), e)) {
            grammar_state s = guide_begin(plain, &(guide_begins){true, true, true});
            CHECK(s >= 0); /* the grammar itself */
            guide_drop(plain, s);
            guide_free(plain);
        }
        guide_markers_deinit(&w.k);
        CHECK(!w.k.any && !w.k.thought);
    }
    close_way(&w);
}

/* Somebody who never wants to end is made to: at every length that the shortest answer fits into, the answer is whole; one
 * token shorter nothing is changed. */
static void check_ends(test_case *t, way *w, const guide_begins *b, int32_t want, int least)
{
    for (int n = 1; n <= least + 12; n++) {
        grammar_state s       = guide_begin(w->g, b);
        int           changed = 0, left = n;
        if (b->may_think && !b->in_thought) {
            CHECK_INT(guide_settle(w->g, s, w->k.open, left) == w->k.open, left >= least + 2 || left < least);
            guide_drop(w->g, s);
            return;
        }
        for (; left > 0 && guide_goes_on(s); left--) {
            int32_t pick = may(w, s, want) ? want : w->v->end, kept = guide_settle(w->g, s, pick, left);
            int32_t guess[32];
            changed += kept != pick;
            int n_guess = guide_draft(w->g, s, left, guess, 32);
            if (kept != pick)
                CHECK_MSG(n_guess > 0 && guess[0] == kept, "%d left: the draft does not begin with it", left);
            CHECK(may(w, s, kept));
            move(w, &s, kept);
        }
        CHECK_MSG(n < least ? changed == 0 : !guide_goes_on(s) || may(w, s, w->v->end),
                  "with %d tokens, %d at least: %d changed", n, least, changed);
        guide_drop(w->g, s);
    }
}

TEST(guide_ends_fit_where_they_can)
{
    way w;
    if (open_way(t, &w, "root ::= [a-z]{3,900} \"!\"")) {
        int32_t a = id_of(&w, "a");
        /* three letters may be one token or more in this vocabulary: what the shortest end takes is asked once */
        grammar_state s = guide_begin(w.g, &(guide_begins){0});
        int32_t       out[16];
        int           shortest = 0;
        for (int left = 1; left < 6 && !shortest; left++) shortest = guide_draft(w.g, s, left, out, 16);
        CHECK_MSG(shortest >= 2 && shortest <= 5, "%d tokens", shortest);
        guide_drop(w.g, s);
        check_ends(t, &w, &(guide_begins){0}, a, shortest);
        check_ends(t, &w, &(guide_begins){.in_thought = true}, a, shortest + 1);
        check_ends(t, &w, &(guide_begins){.may_think = true}, a, shortest);
    }
    close_way(&w);
}

/* A draft is what must follow: taken token by token it is allowed, and no longer than asked for. */
TEST(guide_drafts_what_must_follow)
{
    way w;
    if (open_way(t, &w, "root ::= \"abcdefgh\" [0-9] \"xyz\"")) {
        int32_t       out[32];
        grammar_state s = guide_begin(w.g, &(guide_begins){0});
        for (int max = 0; max <= 12; max++) {
            int           n  = guide_draft(w.g, s, 1000, out, max);
            grammar_state at = guide_begin(w.g, &(guide_begins){0});
            CHECK(n <= max && (max == 0 || n > 0));
            for (int i = 0; i < n; i++) move(&w, &at, out[i]);
            CHECK(guide_goes_on(at));
            guide_drop(w.g, at);
        }
        guide_drop(w.g, s);
        s = guide_begin(w.g, &(guide_begins){.in_thought = true});
        CHECK_INT(guide_draft(w.g, s, 1000, out, 8), 0); /* nobody knows what is thought */
        guide_drop(w.g, s);
    }
    close_way(&w);
}

/* Three of four guesses must be right, the first four are not held against it; then one in 64 rounds is tried. */
TEST(guide_drafts_pay_while_most_are_right)
{
    way w;
    if (open_way(t, &w, "root ::= \"a\"")) {
        CHECK(guide_draft_pays(w.g));
        guide_note(w.g, 1, 0);
        CHECK(guide_draft_pays(w.g)); /* 4 * 4 >= 3 * 5 */
        guide_note(w.g, 1, 0);
        CHECK(!guide_draft_pays(w.g));
        int n = 1;
        while (!guide_draft_pays(w.g) && n < 1000) n++;
        CHECK_INT(n, 63); /* the 64th time */
        guide_note(w.g, 4, 4);
        CHECK(guide_draft_pays(w.g)); /* 4 * 8 >= 3 * 10 */
        guide_note(w.g, 58, 40);      /* 64 tried: from here on they count half */
        guide_note(w.g, 8, 8);        /* 32 + 8 tried, 22 + 8 right: 136 >= 132 */
        CHECK(guide_draft_pays(w.g));
    }
    close_way(&w);
}

/* With tools that are strict all is free but the calls. */
TEST(guide_holds_only_calls)
{
    json_member  type   = {STR("type"), {.kind = JSON_STRING, .s = STR("integer")}};
    json_member  n      = {STR("n"), {.kind = JSON_OBJECT, .n = 1, .member = &type}};
    json_member  all[]  = {{STR("properties"), {.kind = JSON_OBJECT, .n = 1, .member = &n}},
                           {STR("additionalProperties"), {.kind = JSON_BOOL, .b = false}}};
    json_value   schema = {.kind = JSON_OBJECT, .n = 2, .member = all};
    grammar_tool tool[] = {{.name = STR("f"), .parameters = &schema, .strict = true}, {.name = STR("g"), .free = true}};
    grammar     *g;
    buf          warnings;
    err          e    = {0};
    way          w    = {.v = rig_nano()};
    grammar_calls how = {.markup = gemma4_tokens.markup, .warnings = &warnings};
    buf_init(&warnings, 64);
    if (!CHECK_OK(guide_markers_init(&w.k, w.v->tok, &w.v->end, 1, &e), e) ||
        !CHECK_OK(grammar_tool_calls(&g, tool, 2, &how, &e), e) ||
        !CHECK_OK(guide_new(&w.g, g, true, w.v->vocab, &w.k, &e), e))
        return;
    grammar_state s = guide_begin(w.g, &(guide_begins){.may_think = true});
    check_place(t, &w, s, "before a call");
    CHECK(may(&w, s, w.v->end) && may(&w, s, id_of(&w, "<|channel>")));
    for (int round = 0; round < 2; round++) {
        static const char *const f[] = {"c", "a", "l", "l", ":", "f", "{", "n", ":", "1", "}"};
        move(&w, &s, id_of(&w, "a"));
        move(&w, &s, id_of(&w, "<|tool_call>"));
        check_place(t, &w, s, "in a call");
        for (size_t i = 0; i < COUNT(f); i++) {
            CHECK(!may(&w, s, w.v->end) && !may(&w, s, id_of(&w, "<tool_call|>")));
            if (i == 9) CHECK(!may(&w, s, id_of(&w, "x")));
            move(&w, &s, id_of(&w, f[i]));
        }
        move(&w, &s, id_of(&w, "<tool_call|>"));
        CHECK(guide_goes_on(s) && may(&w, s, w.v->end));
        check_place(t, &w, s, "after a call");
    }
    guide_drop(w.g, s);
    buf_deinit(&warnings);
    close_way(&w);
}
