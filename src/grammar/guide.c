#include "grammar/guide.h"

#include "base/mem.h"

#include <string.h>

struct guide {
    grammar             *g;
    grammar_machine     *m;
    const guide_markers *k;
    bool                 calls_only; /* text outside calls is free */
    grammar_state        start;
    size_t               n_words;
    int       tried, right, asked; /* draft tokens tried and accepted; requests since drafts were suspended */
    uint64_t *first;               /* mask of a state before the grammar */
};

/* --- states outside the grammar ------------------------------------------------------------------*/
/* They are below all negative grammar states. The state itself says what may follow, so all responses share a guide. */
enum { THINK = 1, CALL = 2, IN_THOUGHT = 4, FREE = 8, OUTSIDE = -16 };

static bool          is_outside(grammar_state s) { return s <= OUTSIDE; }
static unsigned      flags_of(grammar_state s) { return (unsigned)(OUTSIDE - s); }
static grammar_state outside(unsigned flags) { return OUTSIDE - (grammar_state)flags; }
static grammar_state before(guide *g, unsigned flags) { return flags ? outside(flags) : grammar_fork(g->m, g->start); }

/* --- markers ------------------------------------------------------------------------------------*/
static bool has_bit(const uint64_t *mask, int32_t id) { return mask[id >> 6] >> (id & 63) & 1; }
static void set_bit(uint64_t *mask, int32_t id) { mask[id >> 6] |= (uint64_t)1 << (id & 63); }

bool guide_markers_init(guide_markers *k, const tok *t, const int32_t *end_ids, size_t n_ends, err *e)
{
    int32_t n     = tok_size(t);
    size_t  words = ((size_t)n + 63) / 64 + 1;
    *k            = (guide_markers){.open    = tok_find_marker(t, tok_markup_of(t)->thought_open),
                                    .close   = tok_find_marker(t, tok_markup_of(t)->thought_close),
                                    .call    = tok_find_marker(t, tok_markup_of(t)->call_open),
                                    .thought = mem_try_n(words, sizeof *k->thought),
                                    .any     = mem_try_n(words, sizeof *k->any)};
    if (!k->thought || !k->any) {
        guide_markers_deinit(k);
        return err_set(e, ERR_UNAVAILABLE, "no memory for a mask");
    }
    for (int32_t id = 0; id < n; id++) {
        bool end = false;
        for (size_t i = 0; i < n_ends; i++) end |= end_ids[i] == id;
        set_bit(k->any, id);
        if (!end && (id == k->close || tok_kind(t, id) == TOK_NORMAL || tok_kind(t, id) == TOK_BYTE))
            set_bit(k->thought, id);
    }
    return true;
}

void guide_markers_deinit(guide_markers *k)
{
    mem_free(k->thought);
    mem_free(k->any);
    *k = (guide_markers){0};
}

/* --- life ---------------------------------------------------------------------------------------*/
bool guide_new(guide **out, grammar *gr, bool calls_only, const grammar_vocab *v, const guide_markers *k, err *e)
{
    guide *g = mem_try(sizeof *g);
    *out     = NULL;
    if (!g) {
        grammar_free(gr);
        return err_set(e, ERR_UNAVAILABLE, "no memory for the state of a grammar");
    }
    *g = (guide){.g = gr, .k = k, .calls_only = calls_only, .start = GRAMMAR_NO, .n_words = grammar_mask_words(v)};
    if (!grammar_machine_new(&g->m, gr, v, e)) {
        guide_free(g);
        return false;
    }
    g->first = mem_try_n(g->n_words + 1, sizeof *g->first);
    g->start = g->first ? grammar_start(g->m) : GRAMMAR_NO;
    if (g->start < 0) {
        bool full = g->first != NULL;
        guide_free(g);
        return full ? err_set(e, ERR_TOO_LARGE, "the grammar is too ambiguous")
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
grammar_state guide_begin(guide *g, const guide_begins *b)
{
    if (g->calls_only) return outside(FREE | CALL);
    unsigned call = b->may_call && g->k->call >= 0 ? CALL : 0, think = b->may_think && g->k->open >= 0 ? THINK : 0;
    if (g->k->close < 0) think = 0;
    return b->in_thought && g->k->close >= 0 ? outside(IN_THOUGHT | call) : before(g, think | call);
}

static grammar_state take_outside(guide *g, unsigned at, int32_t token)
{
    if (token < 0 || (size_t)token >= g->n_words * 64) return GRAMMAR_NO;
    if (at & FREE) {
        if (at & CALL && token == g->k->call) return grammar_take(g->m, g->start, token);
        return has_bit(g->k->any, token) ? outside(at) : GRAMMAR_NO;
    }
    if (at & IN_THOUGHT) {
        if (token == g->k->close) return before(g, at & CALL);
        return has_bit(g->k->thought, token) ? outside(at) : GRAMMAR_NO;
    }
    if (at & THINK && token == g->k->open) return outside(IN_THOUGHT | (at & CALL));
    if (at & CALL && token == g->k->call) return outside(FREE);
    return grammar_take(g->m, g->start, token);
}

grammar_state guide_take(guide *g, grammar_state s, int32_t token)
{
    if (is_outside(s)) return take_outside(g, flags_of(s), token);
    grammar_state to = grammar_take(g->m, s, token);
    if (!g->calls_only || to < 0 || !grammar_can_end(g->m, to)) return to;
    grammar_drop(g->m, to); /* the call is complete */
    return outside(FREE | CALL);
}

void guide_drop(guide *g, grammar_state s) { grammar_drop(g->m, s); }

grammar_stats guide_stats(const guide *g) { return grammar_machine_stats(g->m); }

int64_t guide_work(const guide *g) { return grammar_machine_work(g->m); }

bool guide_goes_on(grammar_state s) { return s >= 0 || is_outside(s); }

size_t guide_mask_words(const guide *g) { return g->n_words; }

static const uint64_t *mask_outside(guide *g, unsigned at, err *e)
{
    if (at & FREE) return g->k->any;
    if (at & IN_THOUGHT) return g->k->thought;
    const uint64_t *mask = grammar_mask(g->m, g->start, e);
    if (!mask) return NULL;
    memcpy(g->first, mask, g->n_words * sizeof *mask);
    if (at & THINK) set_bit(g->first, g->k->open);
    if (at & CALL) set_bit(g->first, g->k->call);
    return g->first;
}

const uint64_t *guide_mask(guide *g, grammar_state s, err *e)
{
    if (s >= 0) return grammar_mask(g->m, s, e);
    if (is_outside(s)) return mask_outside(g, flags_of(s), e);
    err_set(e, ERR_TOO_LARGE, "the grammar is too ambiguous");
    return NULL;
}

int guide_mask_work(guide *g, grammar_state s, int64_t *work, err *e)
{
    if (is_outside(s) && flags_of(s) & (FREE | IN_THOUGHT)) return GRAMMAR_READY;
    if (s >= 0 || is_outside(s)) return grammar_mask_work(g->m, s >= 0 ? s : g->start, work, e);
    err_set(e, ERR_TOO_LARGE, "the grammar is too ambiguous");
    return GRAMMAR_NO;
}

/* --- the end ------------------------------------------------------------------------------------*/
/* Returns the grammar state, or the one that the grammar will start with, and the tokens before it; -1:
 * unconstrained. */
static grammar_state grammar_at(const guide *g, grammar_state s, int32_t *wait)
{
    *wait = is_outside(s) && flags_of(s) & IN_THOUGHT;
    return !is_outside(s) ? s : flags_of(s) & FREE ? -1 : g->start;
}

/* Returns the tokens of the shortest end, at most n_left, and its first token; -1: it does not fit. No path is searched
 * when even the longest tokens would not be enough. */
static int shortest_within(guide *g, grammar_state at, int32_t n_left, int32_t *out, int max)
{
    if (grammar_distance(g->m, at) > (int64_t)n_left * grammar_longest(g->m)) return -1;
    int n = grammar_shortest(g->m, at, out, max);
    return n <= n_left ? n : -1;
}

/* Most ends are known to fit without a search, because a token has at least one symbol. */
static bool end_fits(guide *g, grammar_state s, int32_t n_left)
{
    int32_t       wait;
    grammar_state at = grammar_at(g, s, &wait);
    return at < 0 || grammar_distance(g->m, at) <= n_left - wait || shortest_within(g, at, n_left - wait, NULL, 0) >= 0;
}

/* Writes the first tokens of the shortest path to an end from s. Returns their number; 0: it does not fit. */
static int way_out(guide *g, grammar_state s, int32_t n_left, int32_t *out, int max)
{
    int32_t       wait;
    grammar_state at = grammar_at(g, s, &wait);
    if (at < 0 || max < 1) return 0;
    if (wait) out[0] = g->k->close;
    int n = shortest_within(g, at, n_left - wait, out + wait, max - wait);
    if (n < 0) return 0;
    return n + wait < max ? n + wait : max;
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
    int32_t       wait;
    grammar_state at = grammar_at(g, s, &wait);
    if (at >= 0 && grammar_distance(g->m, at) + wait >= n_left) {
        int n = way_out(g, s, n_left, out, max);
        if (n) return n;
    }
    return s >= 0 ? grammar_forced_tokens(g->m, s, out, max) : 0;
}

void guide_note(guide *g, int n_tried, int n_right)
{
    enum { ENOUGH = 64 };
    g->tried += n_tried;
    g->right += n_right;
    g->asked = 0;
    if (g->tried < ENOUGH) return;
    g->tried /= 2;
    g->right /= 2;
}

/* Requires three of four accepted: a rejected row costs about as much as an accepted one saves. Ignores the first
 * few. */
bool guide_draft_pays(guide *g)
{
    enum { FIRST = 4, AGAIN = 64 };
    return 4 * (g->right + FIRST) >= 3 * (g->tried + FIRST) || ++g->asked % AGAIN == 0;
}
