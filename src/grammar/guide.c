#include "grammar/guide.h"

#include "base/mem.h"

#include <string.h>

struct guide {
    grammar              *g;
    grammar_machine      *m;
    const guide_thoughts *thoughts;
    grammar_state         start;
    size_t                n_words;
    uint64_t             *first; /* room for the mask of GUIDE_START */
};

/* --- thoughts -----------------------------------------------------------------------------------*/
static void set_bit(uint64_t *mask, int32_t id) { mask[id >> 6] |= (uint64_t)1 << (id & 63); }
static void clear_bit(uint64_t *mask, int32_t id) { mask[id >> 6] &= ~((uint64_t)1 << (id & 63)); }

bool guide_thoughts_init(guide_thoughts *t, const tok *k, const int32_t *end_ids, size_t n_ends, err *e)
{
    int32_t n = tok_size(k);
    *t        = (guide_thoughts){tok_find(k, STR("<|channel>")), tok_find(k, STR("<channel|>")),
                                 mem_try_n(((size_t)n + 63) / 64 + 1, sizeof *t->mask)};
    if (!t->mask) return err_set(e, ERR_UNAVAILABLE, "no memory for a mask");
    for (int32_t id = 0; id < n; id++)
        if (tok_kind(k, id) == TOK_NORMAL || tok_kind(k, id) == TOK_BYTE) set_bit(t->mask, id);
    for (size_t i = 0; i < n_ends; i++)
        if (end_ids[i] >= 0 && end_ids[i] < n) clear_bit(t->mask, end_ids[i]);
    if (t->close >= 0) set_bit(t->mask, t->close);
    return true;
}

void guide_thoughts_deinit(guide_thoughts *t)
{
    mem_free(t->mask);
    *t = (guide_thoughts){0};
}

/* --- life ---------------------------------------------------------------------------------------*/
bool guide_new(guide **out, grammar *gr, const grammar_vocab *v, const guide_thoughts *t, err *e)
{
    guide *g = mem_try(sizeof *g);
    *out     = NULL;
    if (!g) {
        grammar_free(gr);
        return err_set(e, ERR_UNAVAILABLE, "no memory to follow a grammar");
    }
    *g = (guide){.g = gr, .thoughts = t, .start = GRAMMAR_NO, .n_words = grammar_mask_words(v)};
    if (!grammar_machine_new(&g->m, gr, v, e)) {
        guide_free(g);
        return false;
    }
    g->first = mem_try_n(g->n_words + 1, sizeof *g->first);
    g->start = g->first ? grammar_start(g->m) : GRAMMAR_NO;
    if (g->start < 0) {
        bool full = g->first != NULL;
        guide_free(g);
        return full ? err_set(e, ERR_TOO_LARGE, "the grammar is too ambiguous to be followed")
                    : err_set(e, ERR_UNAVAILABLE, "no memory for a mask");
    }
    grammar_machine_warm(g->m);
    *out = g;
    return true;
}

void guide_free(guide *g)
{
    if (!g) return;
    grammar_machine_free(g->m);
    grammar_free(g->g);
    mem_free(g->first);
    mem_free(g);
}

/* --- following an answer ------------------------------------------------------------------------*/
grammar_state guide_begin(guide *g, guide_begins how)
{
    bool can_think = g->thoughts->close >= 0;
    if (how == GUIDE_IN_THOUGHT && can_think) return GUIDE_THOUGHT;
    if (how == GUIDE_MAY_THINK && can_think && g->thoughts->open >= 0) return GUIDE_START;
    return grammar_fork(g->m, g->start);
}

static grammar_state take_in_thought(guide *g, int32_t token)
{
    if (token < 0 || (size_t)token >= g->n_words * 64 || !(g->thoughts->mask[token >> 6] >> (token & 63) & 1))
        return GRAMMAR_NO;
    return token == g->thoughts->close ? grammar_fork(g->m, g->start) : GUIDE_THOUGHT;
}

grammar_state guide_take(guide *g, grammar_state s, int32_t token)
{
    if (s == GUIDE_THOUGHT) return take_in_thought(g, token);
    if (s == GUIDE_START && token == g->thoughts->open) return GUIDE_THOUGHT;
    return grammar_take(g->m, s == GUIDE_START ? g->start : s, token);
}

void guide_drop(guide *g, grammar_state s) { grammar_drop(g->m, s); }

bool guide_goes_on(grammar_state s) { return s >= 0 || s == GUIDE_START || s == GUIDE_THOUGHT; }

size_t guide_mask_words(const guide *g) { return g->n_words; }

const uint64_t *guide_mask(guide *g, grammar_state s, err *e)
{
    if (s == GUIDE_THOUGHT) return g->thoughts->mask;
    if (!guide_goes_on(s)) {
        err_set(e, ERR_LIMIT, "the grammar cannot be followed any further");
        return NULL;
    }
    const uint64_t *mask = grammar_mask(g->m, s == GUIDE_START ? g->start : s, e);
    if (s != GUIDE_START || !mask) return mask;
    memcpy(g->first, mask, g->n_words * sizeof *mask);
    set_bit(g->first, g->thoughts->open);
    return g->first;
}

/* --- the end ------------------------------------------------------------------------------------*/
/* Where the grammar stands, and the tokens before it goes on from there. */
static grammar_state grammar_at(const guide *g, grammar_state s, int32_t *before)
{
    *before = s == GUIDE_THOUGHT;
    return s == GUIDE_THOUGHT || s == GUIDE_START ? g->start : s;
}

/* A token is one symbol at least: most are seen to fit without looking for the way. */
static bool end_fits(guide *g, grammar_state s, int32_t n_left)
{
    int32_t       before;
    grammar_state at = grammar_at(g, s, &before);
    if (at < 0 || grammar_distance(g->m, at) <= n_left - before) return true;
    int n = grammar_shortest(g->m, at, NULL, 0);
    return n >= 0 && n <= n_left - before;
}

/* The first tokens of the shortest way to an end from s; how many of them were written. 0: it does not fit. */
static int way_out(guide *g, grammar_state s, int32_t n_left, int32_t *out, int max)
{
    int32_t       before;
    grammar_state at = grammar_at(g, s, &before);
    if (at < 0 || max < 1) return 0;
    if (before) out[0] = g->thoughts->close;
    int n = grammar_shortest(g->m, at, out + before, max - before);
    if (n < 0 || n > n_left - before) return 0;
    return n + before < max ? n + before : max;
}

int32_t guide_settle(guide *g, grammar_state s, int32_t pick, int32_t n_left)
{
    int32_t       instead;
    grammar_state to   = guide_take(g, s, pick);
    bool          fits = end_fits(g, to, n_left - 1);
    guide_drop(g, to);
    return fits || !way_out(g, s, n_left, &instead, 1) ? pick : instead;
}

int guide_draft(guide *g, grammar_state s, int32_t n_left, int32_t *out, int max)
{
    int32_t before;
    if (grammar_distance(g->m, grammar_at(g, s, &before)) + before >= n_left) {
        int n = way_out(g, s, n_left, out, max);
        if (n) return n;
    }
    return s >= 0 ? grammar_ahead(g->m, s, out, max) : 0;
}
