/* Computes the text that must come next, or the shortest end: symbols first, then tokens.
 *
 * The shortest path follows distances: it takes the configs of a state that are nearest to the end, and the first of
 * their symbols that comes nearer. It depends on the state alone, so the rest after its first token is the shortest
 * path from there. */
#include "grammar/inside.h"

enum { MAX_LOOKS = 1 << 15 }; /* maximum of configs visited for a shortest path */

static int32_t distance_of(const grammar_machine *m, config c)
{
    int64_t d = (int64_t)m->g->place[c.place].distance + m->stack[c.stack].distance;
    return d < GRAMMAR_FAR ? (int32_t)d : GRAMMAR_FAR;
}

int32_t grammar_distance(const grammar_machine *m, grammar_state s)
{
    int32_t nearest = GRAMMAR_FAR;
    if (s < 0 || m->state[s].can_end) return 0;
    for (int32_t i = 0; i < m->state[s].n; i++) {
        int32_t d = distance_of(m, m->config[m->state[s].first + i]);
        if (d < nearest) nearest = d;
    }
    return nearest;
}

/* Returns the first class of symbols that leads from a place at distance `nearest` to a nearer one; -1: none. */
static int32_t nearer_class(const grammar_machine *m, int32_t s, int32_t nearest)
{
    int32_t first = -1;
    for (int32_t i = 0; i < m->state[s].n; i++) {
        config       c = m->config[m->state[s].first + i];
        const place *p = &m->g->place[c.place];
        if (distance_of(m, c) != nearest) continue;
        for (int32_t k = 0; k < p->n; k++) {
            edge e = m->g->edge[p->first + k];
            if (m->g->place[e.to].distance == p->distance - 1 && (first < 0 || e.lo < first)) first = e.lo;
        }
    }
    return first;
}

/* Writes the symbols of the shortest path to m->symbol. Returns -1 if it is too long, too ambiguous or too deep. */
static int32_t shortest_symbols(grammar_machine *m, int32_t s)
{
    int32_t n = grammar_distance(m, s), left = n, looks = 0;
    if (n > GRAMMAR_MAX_AHEAD) return -1;
    grammar_fork(m, s);
    for (int32_t i = 0; i < n && s >= 0; i++) {
        looks += m->state[s].n;
        if (looks > MAX_LOOKS) break;
        int32_t cls = nearer_class(m, s, left--), to = cls < 0 ? GRAMMAR_NO : machine_next(m, s, cls);
        if (to >= 0) machine_hold(m, to);
        grammar_drop(m, s);
        s            = to;
        m->symbol[i] = cls < 0 ? 0 : m->g->symbol_of[cls];
        if (s < 0 || grammar_distance(m, s) != left) n = -1;
    }
    grammar_drop(m, s);
    m->stats.steps += looks;
    return looks > MAX_LOOKS ? -1 : n;
}

static int32_t forced_symbols(grammar_machine *m, int32_t s, int32_t max)
{
    int32_t n = 0;
    grammar_fork(m, s);
    while (s >= 0 && n < max && !m->state[s].can_end) {
        int32_t to = GRAMMAR_NO, symbol = machine_only(m, s, &to);
        grammar_drop(m, s);
        s = symbol < 0 ? GRAMMAR_NO : to;
        if (symbol >= 0) m->symbol[n++] = (uint16_t)symbol;
    }
    grammar_drop(m, s);
    return n;
}

static uint32_t child_of(const grammar_vocab *v, uint32_t at, uint16_t symbol)
{
    for (uint32_t i = at + 1; i < v->node[at].next; i = v->node[i].next)
        if (v->node[i].byte == symbol) return i;
    return 0;
}

/* Returns the token that covers the most symbols, *n of them; -1: none. */
static int32_t longest_token(const grammar_machine *m, const uint16_t *symbol, int32_t n_symbols, int32_t *n)
{
    int32_t  best = -1;
    uint32_t at   = 0;
    if (symbol[0] >= SYMBOL_MARKER) {
        *n = 1;
        return m->marker_id[symbol[0] - SYMBOL_MARKER];
    }
    for (int32_t i = 0; i < n_symbols && symbol[i] < SYMBOL_MARKER; i++) {
        at = child_of(m->v, at, symbol[i]);
        if (!at) break;
        if (m->v->node[at].token < 0) continue;
        best = m->v->node[at].token;
        *n   = i + 1;
    }
    return best;
}

/* Writes the first `max` tokens. Returns their total number, -1 if a part is not a token. */
static int cut(const grammar_machine *m, int32_t n_symbols, int32_t *out, int max)
{
    int n = 0;
    for (int32_t at = 0, step = 0; at < n_symbols; at += step) {
        int32_t token = longest_token(m, m->symbol + at, n_symbols - at, &step);
        if (token < 0) return -1;
        if (n < max) out[n] = token;
        n++;
    }
    return n;
}

int grammar_shortest(grammar_machine *m, grammar_state s, int32_t *out, int max)
{
    if (s < 0) return -1;
    machine_begin(m);
    m->budget =
        INT64_MAX; /* the number of closures and their steps are bounded; the result must not depend on the cache */
    int32_t n = shortest_symbols(m, s);
    return n < 0 ? -1 : cut(m, n, out, max);
}

int32_t grammar_longest(const grammar_machine *m) { return m->v->max_depth > 1 ? m->v->max_depth : 1; }

int grammar_forced_tokens(grammar_machine *m, grammar_state s, int32_t *out, int max)
{
    enum { BYTES_EACH = 16 };
    if (s < 0 || max < 1) return 0;
    machine_begin(m);
    int32_t room = max < GRAMMAR_MAX_AHEAD / BYTES_EACH ? max * BYTES_EACH : GRAMMAR_MAX_AHEAD;
    int     n    = cut(m, forced_symbols(m, s, room), out, max);
    return n < max ? n > 0 ? n : 0 : max;
}
