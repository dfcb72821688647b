/* Compiles rules to automata.
 *
 * A node is emitted from its end: emit(x, then) returns the place where x begins, given the place after it. Equal
 * places are merged, so common ends (continuation bytes of characters, closing quotes) are shared between rules. Place
 * 0 is the end of every rule.
 *
 * A short repetition is unrolled; one of more than MAX_WRITTEN_OUT places becomes a counted loop. */
#include "base/mem.h"
#include "base/num.h"
#include "grammar/inside.h"

#include <assert.h>
#include <stdlib.h>

enum {
    END             = 0,
    MAX_WRITTEN_OUT = 96,
    MAX_INLINED     = 64,      /* maximum weight of a rule that is inlined in a repetition */
    MAX_TINY        = 8,       /* maximum weight of a rule that is inlined anywhere */
    MAX_INLINE_DEEP = 4,       /* inlined inside inlined */
    INLINE_BUDGET   = 1 << 14, /* places */
    MAX_BRANCHES    = 64,      /* maximum depth of a tree of words */
    WEIGHT_MOST     = 1 << 20,
    MAX_EDGES       = GRAMMAR_MAX_STATES * 4,
};

typedef struct {
    builder *b;
    grammar *g;
    int32_t  place_cap, edge_cap, start_cap;
    int32_t *table; /* places by hash, + 1 */
    uint32_t table_mask;
    node   **round; /* bodies of loops: rules after those of the builder */
    int32_t  n_rounds, round_cap;
    bool    *refers; /* [rule] calls others */
    bool    *cyclic; /* [rule] can reach itself */
    int      inline_deep, inlined;
    bool     repeated; /* directly inside a repetition */
    err     *e;
    bool     failed;
} compiler;

static int32_t fail_compiler(compiler *c, err_code code, const char *what, int limit)
{
    if (!c->failed) err_set(c->e, code, what, limit);
    c->failed = true;
    return END;
}

/* As builder_spend. */
static bool spend(compiler *c, size_t n)
{
    if (!c->failed && !builder_spend(c->b, n)) {
        c->failed = true;
        err_set(c->e, c->b->why.code, "%s", c->b->why.text);
    }
    return !c->failed;
}

static bool grow_array(compiler *c, void **p, int32_t *cap, int32_t n, int32_t most_n, size_t each)
{
    if (n < *cap) return true;
    int32_t more = *cap ? *cap * 2 : 256;
    if (more > most_n) more = most_n;
    void *q = n < more ? mem_try_resize(*p, (size_t)more * each) : NULL;
    if (!q) {
        if (n >= most_n)
            fail_compiler(c, ERR_TOO_LARGE, "the grammar needs more than %d states", GRAMMAR_MAX_STATES);
        else
            fail_compiler(c, ERR_UNAVAILABLE, "no memory for a grammar of %d states", c->g->n_places);
        return false;
    }
    *p   = q;
    *cap = more;
    return true;
}

/* --- places ------------------------------------------------------------------------------------ */
static uint64_t place_hash(const grammar *g, const place *p)
{
    uint64_t h = hash_mix(hash_mix(p->kind, (uint32_t)p->rule), (uint32_t)p->then);
    h          = hash_mix(hash_mix(h, (uint32_t)p->min), (uint32_t)p->max);
    for (int32_t i = 0; i < p->n; i++) {
        edge x = g->edge[p->first + i];
        h      = hash_mix(hash_mix(h, (uint64_t)x.lo << 16 | x.hi), (uint32_t)x.to);
    }
    return h;
}

static bool place_same(const grammar *g, const place *a, const place *b)
{
    if (a->kind != b->kind || a->n != b->n || a->rule != b->rule || a->then != b->then || a->min != b->min ||
        a->max != b->max)
        return false;
    for (int32_t i = 0; i < a->n; i++) {
        edge x = g->edge[a->first + i], y = g->edge[b->first + i];
        if (x.lo != y.lo || x.hi != y.hi || x.to != y.to) return false;
    }
    return true;
}

static int32_t add_place(compiler *c, place p)
{
    grammar *g = c->g;
    if (c->failed || !grow_array(c, (void **)&g->place, &c->place_cap, g->n_places, GRAMMAR_MAX_STATES, sizeof p))
        return END;
    g->place[g->n_places] = p;
    return g->n_places++;
}

static void add_edge(compiler *c, int lo, int hi, int32_t to)
{
    grammar *g = c->g;
    if (c->failed || !grow_array(c, (void **)&g->edge, &c->edge_cap, g->n_edges, MAX_EDGES, sizeof(edge))) return;
    g->edge[g->n_edges++] = (edge){(uint16_t)lo, (uint16_t)hi, to};
}

/* Returns the place, or an equal existing one; then removes p's edges, which are the last ones. */
static int32_t settle(compiler *c, place p)
{
    grammar *g = c->g;
    if (!spend(c, 4 + (size_t)p.n)) return END;
    uint32_t at = (uint32_t)place_hash(g, &p) & c->table_mask;
    for (; c->table[at]; at = (at + 1) & c->table_mask)
        if (place_same(g, &g->place[c->table[at] - 1], &p)) {
            if (p.n) g->n_edges = p.first;
            return c->table[at] - 1;
        }
    int32_t i = add_place(c, p);
    if (!c->failed) c->table[at] = i + 1;
    return i;
}

static int32_t split(compiler *c, const int32_t *to, int32_t n)
{
    place p = {.kind = PLACE_SPLIT, .n = n, .first = c->g->n_edges};
    if (n == 1) return to[0];
    for (int32_t i = 0; i < n; i++) add_edge(c, 0, 0, to[i]);
    return settle(c, p);
}

static int32_t one_symbol(compiler *c, int lo, int hi, int32_t then)
{
    place p = {.kind = PLACE_BYTES, .n = 1, .first = c->g->n_edges};
    add_edge(c, lo, hi, then);
    return settle(c, p);
}

static int32_t emit_text(compiler *c, str s, int32_t then)
{
    for (size_t i = s.n; i-- > 0 && !c->failed;) then = one_symbol(c, (uint8_t)s.s[i], (uint8_t)s.s[i], then);
    return then;
}

/* --- characters -------------------------------------------------------------------------------- */
typedef struct { /* edges of a class's first place */
    edge    p[256 * 4];
    int32_t n;
} first_edges;

static int32_t tail_place(compiler *c, int n, int32_t then)
{
    for (int i = 0; i < n; i++) then = one_symbol(c, 0x80, 0xBF, then);
    return then;
}

/* Every sequence of n bytes from lo to hi, all of them ends of characters of one length. */
static int32_t bytes_between(compiler *c, const uint8_t *lo, const uint8_t *hi, int n, int32_t then)
{
    edge    x[3];
    int32_t k    = 0;
    bool    full = true, empty_lo = true, full_hi = true;
    if (!n) return then;
    for (int i = 1; i < n; i++) {
        if (lo[i] != 0x80) empty_lo = false;
        if (hi[i] != 0xBF) full_hi = false;
    }
    full = empty_lo && full_hi;
    if (lo[0] == hi[0] || full) {
        int32_t rest = full ? tail_place(c, n - 1, then) : bytes_between(c, lo + 1, hi + 1, n - 1, then);
        return one_symbol(c, lo[0], hi[0], rest);
    }
    static const uint8_t least_tail[3] = {0x80, 0x80, 0x80}, most_tail[3] = {0xBF, 0xBF, 0xBF};
    int                  from = lo[0], to = hi[0];
    if (!empty_lo) {
        int32_t rest = bytes_between(c, lo + 1, most_tail, n - 1, then);
        x[k++]       = (edge){lo[0], lo[0], rest};
        from++;
    }
    if (!full_hi) to--;
    if (from <= to) {
        int32_t rest = tail_place(c, n - 1, then);
        x[k++]       = (edge){(uint16_t)from, (uint16_t)to, rest};
    }
    if (!full_hi) {
        int32_t rest = bytes_between(c, least_tail, hi + 1, n - 1, then);
        x[k++]       = (edge){hi[0], hi[0], rest};
    }
    place p = {.kind = PLACE_BYTES, .n = k, .first = c->g->n_edges};
    for (int32_t i = 0; i < k; i++) add_edge(c, x[i].lo, x[i].hi, x[i].to);
    return settle(c, p);
}

/* The edges of bytes_between's place join those of the class. */
static void join_range(compiler *c, first_edges *f, uint32_t lo, uint32_t hi, int32_t then)
{
    uint8_t a[4], z[4];
    int     n = utf8_encode((char *)a, lo);
    utf8_encode((char *)z, hi);
    int32_t at = bytes_between(c, a, z, n, then);
    if (c->failed) return;
    const place *p = &c->g->place[at];
    for (int32_t i = 0; i < p->n && f->n < (int32_t)COUNT(f->p); i++) {
        edge x = c->g->edge[p->first + i];
        if (f->n && f->p[f->n - 1].to == x.to && f->p[f->n - 1].hi + 1 == x.lo)
            f->p[f->n - 1].hi = x.hi;
        else
            f->p[f->n++] = x;
    }
}

/* A class has up to 256 first bytes, each with few places after it; larger ones are split. */
static int32_t emit_class(compiler *c, const node *x, int32_t then)
{
    static const char_range span[] = {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
    int32_t                 part[64], n_parts = 0;
    first_edges             f;
    f.n = 0;
    for (int32_t i = 0; i <= x->n && spend(c, 4); i++) {
        bool full = f.n + 16 > (int32_t)COUNT(f.p);
        if ((i == x->n || full) && f.n) {
            if (n_parts == (int32_t)COUNT(part))
                return fail_compiler(c, ERR_TOO_LARGE, "a class has over %d ranges", 1 << 14);
            place p = {.kind = PLACE_BYTES, .n = f.n, .first = c->g->n_edges};
            for (int32_t k = 0; k < f.n; k++) add_edge(c, f.p[k].lo, f.p[k].hi, f.p[k].to);
            part[n_parts++] = settle(c, p);
            f.n             = 0;
        }
        for (size_t s = 0; i < x->n && s < COUNT(span); s++) {
            uint32_t lo = x->range[i].lo, hi = x->range[i].hi;
            if (lo < span[s].lo) lo = span[s].lo;
            if (hi > span[s].hi) hi = span[s].hi;
            if (lo <= hi) join_range(c, &f, lo, hi, then);
        }
    }
    return c->failed ? END : split(c, part, n_parts);
}

/* --- nodes ------------------------------------------------------------------------------------- */
static int32_t emit(compiler *c, node *x, int32_t then);

static int32_t add_weight(int32_t a, int32_t b) { return min_int(a + b, WEIGHT_MOST); }
static int32_t times_weight(int32_t a, int32_t b)
{
    int64_t w = (int64_t)a * b;
    return w > WEIGHT_MOST ? WEIGHT_MOST : (int32_t)w;
}

static int32_t weigh(node *x)
{
    int32_t w = 1;
    if (x->weight) return x->weight;
    switch (x->kind) {
    case NODE_TEXT: w = x->text.n < WEIGHT_MOST ? max_int(1, (int32_t)x->text.n) : WEIGHT_MOST; break;
    case NODE_CLASS: w = x->n ? (x->range[x->n - 1].hi < 0x80 ? 1 : add_weight(4, x->n)) : 1; break;
    case NODE_SEQ:
    case NODE_ALT:
        for (int32_t i = 0; i < x->n; i++) w = add_weight(w, weigh(x->kid[i]));
        break;
    case NODE_REPEAT: w = add_weight(1, times_weight(weigh(x->body), x->max < 0 ? x->min + 1 : x->max)); break;
    case NODE_RULE:
    case NODE_MARKER:
    case NODE_AHEAD: break;
    }
    return x->weight = w;
}

static int by_text(const void *a, const void *b) { return str_order(*(const str *)a, *(const str *)b); }

/* Emits sorted words with a common prefix of `from` bytes as a tree with one place for each next byte. */
static int32_t emit_words(compiler *c, const str *w, int32_t n, size_t from, int deep, int32_t then)
{
    if (deep > MAX_BRANCHES) { /* side by side */
        int32_t at = emit_text(c, (str){w[0].s + from, w[0].n - from}, then);
        for (int32_t i = 1; i < n && !c->failed; i++)
            at = split(c, (int32_t[]){at, emit_text(c, (str){w[i].s + from, w[i].n - from}, then)}, 2);
        return at;
    }
    str    first = w[0], last = w[n - 1];
    size_t same = from;
    while (same < first.n && same < last.n && first.s[same] == last.s[same]) same++;
    if (!spend(c, 8 + (size_t)n)) return END;
    if (first.n == last.n && same == first.n)
        return emit_text(c, (str){first.s + from, first.n - from}, then); /* equal words */
    int32_t ends = 0, part[2], n_parts = 0, n_edges = 0;
    edge    x[256];
    while (w[ends].n == same) ends++;
    for (int32_t i = ends; i < n && !c->failed;) {
        int32_t k = i;
        uint8_t b = (uint8_t)w[i].s[same];
        while (k < n && (uint8_t)w[k].s[same] == b) k++;
        x[n_edges++] = (edge){b, b, emit_words(c, w + i, k - i, same + 1, deep + 1, then)};
        i            = k;
    }
    place p = {.kind = PLACE_BYTES, .n = n_edges, .first = c->g->n_edges};
    for (int32_t i = 0; i < n_edges; i++) add_edge(c, x[i].lo, x[i].hi, x[i].to);
    part[n_parts++] = settle(c, p);
    if (ends) part[n_parts++] = then;
    return emit_text(c, (str){first.s + from, same - from}, split(c, part, n_parts));
}

static int32_t emit_texts(compiler *c, const node *x, int32_t then)
{
    str *w = mem_try_n((size_t)x->n, sizeof *w);
    if (!w) return fail_compiler(c, ERR_UNAVAILABLE, "no memory for %d alternatives", x->n);
    size_t n_bytes = 0;
    for (int32_t i = 0; i < x->n; i++) n_bytes += (w[i] = x->kid[i]->text).n;
    if (spend(c, 8 * (size_t)x->n + n_bytes / 2)) qsort(w, (size_t)x->n, sizeof *w, by_text);
    int32_t at = c->failed ? END : emit_words(c, w, x->n, 0, 0, then);
    mem_free(w);
    return at;
}

static int32_t emit_alt(compiler *c, node *x, int32_t then)
{
    bool words = x->n > 1;
    for (int32_t i = 0; i < x->n; i++) words = words && x->kid[i]->kind == NODE_TEXT;
    if (words) return emit_texts(c, x, then);
    int32_t *to = mem_try_n((size_t)x->n + 1, sizeof *to);
    if (!to) return fail_compiler(c, ERR_UNAVAILABLE, "no memory for %d alternatives", x->n);
    for (int32_t i = 0; i < x->n && !c->failed; i++) to[i] = emit(c, x->kid[i], then);
    int32_t at = split(c, to, x->n);
    mem_free(to);
    return at;
}

static int32_t emit_body(compiler *c, node *body, int32_t then)
{
    bool was    = c->repeated;
    c->repeated = true;
    int32_t at  = emit(c, body, then);
    c->repeated = was;
    return at;
}

/* Emits an unbounded repetition: the body, then a choice to repeat it. It begins at the choice, or at the body if one
 * round is required. */
static int32_t emit_star(compiler *c, node *body, bool once, int32_t then)
{
    int32_t loop = add_place(c, (place){.kind = PLACE_SPLIT});
    int32_t to   = emit_body(c, body, loop);
    if (c->failed) return END;
    place *p = &c->g->place[loop];
    p->first = c->g->n_edges;
    p->n     = 2;
    add_edge(c, 0, 0, to);
    add_edge(c, 0, 0, then);
    return once ? to : loop;
}

static int32_t emit_loop(compiler *c, const node *x, int32_t then)
{
    node *body = x->body;
    if (!body->round) {
        if (!grow_array(c, (void **)&c->round, &c->round_cap, c->n_rounds, GRAMMAR_MAX_STATES, sizeof *c->round))
            return END;
        c->round[c->n_rounds++] = body;
        body->round             = c->b->n_rules + c->n_rounds;
    }
    return settle(c, (place){.kind = PLACE_LOOP, .rule = body->round - 1, .then = then, .min = x->min, .max = x->max});
}

static int32_t emit_repeat(compiler *c, node *x, int32_t then)
{
    node *body = x->body;
    if (x->max == 0) return then;
    if (body->kind == NODE_REPEAT && !body->min && body->max < 0) return emit(c, body, then); /* (y*){m,n} is y* */
    if (body->kind == NODE_REPEAT && !body->min && body->max == 1) {                          /* (y?){m,n} is y{0,n} */
        node inner = *x;
        inner.body = body->body;
        inner.min  = 0;
        return emit(c, &inner, then);
    }
    int32_t rounds = x->max < 0 ? x->min : x->max;
    if (rounds > 1 && times_weight(weigh(body), rounds) > MAX_WRITTEN_OUT) return emit_loop(c, x, then);
    int32_t at = x->max < 0 ? emit_star(c, body, x->min > 0, then) : then;
    for (int32_t i = x->max; i > x->min && !c->failed; i--) at = split(c, (int32_t[]){emit_body(c, body, at), then}, 2);
    for (int32_t i = x->max < 0; i < x->min && !c->failed; i++) at = emit_body(c, body, at);
    return at;
}

static bool wants_inline(const compiler *c, node *body, int32_t index)
{
    if (!c->b->inlines || c->cyclic[index] || c->inline_deep >= MAX_INLINE_DEEP || c->inlined > INLINE_BUDGET)
        return false;
    int32_t w = weigh(body);
    return (c->repeated && w <= MAX_INLINED) || (w <= MAX_TINY && !c->refers[index]);
}

static int32_t emit_rule(compiler *c, int32_t index, int32_t then)
{
    node *body = c->b->rule[index].body;
    if (!wants_inline(c, body, index))
        return settle(c, (place){.kind = PLACE_CALL, .rule = index, .then = then == END ? -1 : then});
    bool was    = c->repeated;
    int  before = c->g->n_places;
    c->repeated = false;
    c->inline_deep++;
    int32_t at = emit(c, body, then);
    c->inline_deep--;
    c->inlined += c->g->n_places - before;
    c->repeated = was;
    return at;
}

static int32_t emit(compiler *c, node *x, int32_t then)
{
    if (!spend(c, 1)) return END;
    switch (x->kind) {
    case NODE_TEXT: return emit_text(c, x->text, then);
    case NODE_CLASS: return emit_class(c, x, then);
    case NODE_SEQ:
        for (int32_t i = x->n; i-- > 0 && !c->failed;) then = emit(c, x->kid[i], then);
        return then;
    case NODE_ALT: return emit_alt(c, x, then);
    case NODE_REPEAT: return emit_repeat(c, x, then);
    case NODE_RULE: return emit_rule(c, x->index, then);
    case NODE_MARKER: return one_symbol(c, SYMBOL_MARKER + x->index, SYMBOL_MARKER + x->index, then);
    case NODE_AHEAD: assert(false); /* regular.c has replaced it */
    }
    return END;
}

/* --- which rules reach themselves -------------------------------------------------------------- */
/* Calls in the order of the nodes; `to` may be NULL to count. Depth of nodes is bounded by the readers. */
static int32_t list_calls(compiler *c, const node *x, int32_t *to, int32_t n)
{
    if (!spend(c, 1)) return n;
    if (x->kind == NODE_RULE) {
        if (to) to[n] = x->index;
        return n + 1;
    }
    if (x->kind == NODE_REPEAT) return list_calls(c, x->body, to, n);
    if (x->kind == NODE_SEQ || x->kind == NODE_ALT)
        for (int32_t i = 0; i < x->n; i++) n = list_calls(c, x->kid[i], to, n);
    return n;
}

typedef struct { /* a graph of rules: the calls of rule r are to[from[r]] .. to[from[r + 1]] */
    int32_t *from, *to, n;
} call_graph;

static void graph_deinit(call_graph *x)
{
    mem_free(x->from);
    mem_free(x->to);
}

/* Tarjan's strongly connected components, with a stack of our own. hit[r] is set for rules on a cycle. */
static bool find_cycles(const call_graph *x, bool *hit)
{
    size_t   n     = (size_t)x->n;
    int32_t *order = mem_try_n(n, sizeof *order), *low = mem_try_n(n, sizeof *low), *at = mem_try_n(n, sizeof *at);
    int32_t *path = mem_try_n(n, sizeof *path), *open = mem_try_n(n, sizeof *open), n_path = 0, n_open = 0, count = 0;
    bool     ok = order && low && at && path && open; /* order: 0 not met, < 0 closed */
    for (int32_t r = 0; ok && r < x->n; r++) {
        if (order[r]) continue;
        path[n_path++] = open[n_open++] = r;
        order[r] = low[r] = ++count;
        at[r]             = x->from[r];
        while (n_path) {
            int32_t v = path[n_path - 1];
            if (at[v] < x->from[v + 1]) {
                int32_t w = x->to[at[v]++];
                if (w == v) hit[v] = true;
                if (!order[w]) {
                    path[n_path++] = open[n_open++] = w;
                    order[w] = low[w] = ++count;
                    at[w]             = x->from[w];
                } else if (order[w] > 0 && order[w] < low[v]) {
                    low[v] = order[w];
                }
                continue;
            }
            n_path--;
            if (n_path && low[v] < low[path[n_path - 1]]) low[path[n_path - 1]] = low[v];
            if (low[v] != order[v]) continue;
            bool several = open[n_open - 1] != v;
            for (int32_t w = -1; w != v;) {
                w        = open[--n_open];
                order[w] = -1;
                if (several) hit[w] = true;
            }
        }
    }
    mem_free(order), mem_free(low), mem_free(at), mem_free(path), mem_free(open);
    return ok;
}

static bool note_calls(compiler *c)
{
    builder   *b = c->b;
    size_t     n = (size_t)b->n_rules;
    call_graph x = {.n = b->n_rules};
    bool       ok;
    c->refers = mem_try(n + 1);
    c->cyclic = mem_try(n + 1);
    x.from    = mem_try_n(n + 1, sizeof *x.from);
    ok        = c->refers && c->cyclic && x.from;
    for (size_t r = 0; ok && r < n; r++) {
        int32_t calls = list_calls(c, b->rule[r].body, NULL, 0);
        c->refers[r]  = calls > 0;
        x.from[r + 1] = x.from[r] + calls;
    }
    x.to = ok ? mem_try_n((size_t)x.from[n] + 1, sizeof *x.to) : NULL;
    for (size_t r = 0; x.to && !c->failed && r < n; r++) list_calls(c, b->rule[r].body, x.to, x.from[r]);
    ok = x.to && spend(c, 4 * ((size_t)x.from[n] + n)) && find_cycles(&x, c->cyclic);
    graph_deinit(&x);
    return ok || (fail_compiler(c, ERR_UNAVAILABLE, "no memory for a grammar of %d rules", b->n_rules), false);
}

/* --- what can be empty, and how many calls an end takes ----------------------------------------- */
typedef struct { /* the places that depend on place p: at[from[p]] .. at[from[p + 1]] */
    int32_t *from, *at;
} waiters;

/* Returns the i-th successor of p, -1 after the last. */
static int32_t successor(const grammar *g, const place *p, int32_t i)
{
    if (i < p->n) return g->edge[p->first + i].to;
    if (p->kind == PLACE_CALL || p->kind == PLACE_LOOP) {
        if (i == 0) return g->start[p->rule];
        if (i == 1 && p->then >= 0) return p->then;
    }
    return -1;
}

static bool find_waiters(const grammar *g, waiters *w)
{
    size_t n = (size_t)g->n_places;
    *w       = (waiters){mem_try_n(n + 2, sizeof *w->from), NULL};
    if (!w->from) return false;
    for (size_t p = 0; p < n; p++)
        for (int32_t i = 0, q; (q = successor(g, &g->place[p], i)) >= 0; i++) w->from[q + 2]++;
    for (size_t p = 0; p < n; p++) w->from[p + 2] += w->from[p + 1];
    w->at = mem_try_n((size_t)w->from[n + 1] + 1, sizeof *w->at);
    if (!w->at) return false;
    for (size_t p = 0; p < n; p++)
        for (int32_t i = 0, q; (q = successor(g, &g->place[p], i)) >= 0; i++) w->at[w->from[q + 1]++] = (int32_t)p;
    return true;
}

/* Returns whether p can be completed without consuming a symbol, given the known places. */
static bool is_empty(const grammar *g, const bool *empty, const place *p)
{
    switch (p->kind) {
    case PLACE_BYTES: return false;
    case PLACE_CALL: return empty[g->start[p->rule]] && (p->then < 0 || empty[p->then]);
    case PLACE_LOOP: return empty[p->then] && (!p->min || empty[g->start[p->rule]]);
    default: return true;
    }
}

static void find_empty(const grammar *g, const waiters *w, bool *empty, int32_t *queue)
{
    int32_t n  = 0;
    empty[END] = true;
    queue[n++] = END;
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = w->from[queue[i]]; k < w->from[queue[i] + 1]; k++) {
            int32_t p = w->at[k];
            if (empty[p] || !is_empty(g, empty, &g->place[p])) continue;
            empty[p]   = true;
            queue[n++] = p;
        }
}

static int32_t height_now(const grammar *g, const place *p)
{
    int32_t h = HEIGHT_NEVER, then = p->then >= 0 ? g->place[p->then].height : 0;
    switch (p->kind) {
    case PLACE_CALL: h = g->place[g->start[p->rule]].height; return p->then < 0 ? h : max_int(h + 1, then);
    case PLACE_LOOP: return p->min ? max_int(g->place[g->start[p->rule]].height + 1, then) : then;
    case PLACE_END: return 0;
    default:
        for (int32_t i = 0; i < p->n; i++) h = min_int(h, g->place[g->edge[p->first + i].to].height);
        return h;
    }
}

/* Computes heights by Knuth's generalisation of Dijkstra's algorithm. They increase by at most one, so two queues
 * suffice: one for this height, one for the next. */
static void find_heights(grammar *g, const waiters *w, int32_t *queue, int32_t *later)
{
    int32_t n = 0, n_later = 0, level = 0;
    for (int32_t p = 0; p < g->n_places; p++) g->place[p].height = HEIGHT_NEVER;
    g->place[END].height = 0;
    queue[n++]           = END;
    while (n) {
        for (int32_t i = 0; i < n; i++)
            for (int32_t k = w->from[queue[i]]; k < w->from[queue[i] + 1]; k++) {
                place  *p = &g->place[w->at[k]];
                int32_t h = p->height == HEIGHT_NEVER ? height_now(g, p) : HEIGHT_NEVER;
                if (h >= HEIGHT_NEVER) continue;
                p->height = h;
                if (h == level)
                    queue[n++] = w->at[k];
                else
                    later[n_later++] = w->at[k];
            }
        int32_t *was = queue;
        queue        = later;
        later        = was;
        n            = n_later;
        n_later      = 0;
        level++;
    }
}

/* --- how far an end is -------------------------------------------------------------------------- */
typedef struct {
    int32_t distance, place;
} far_place;
typedef struct { /* the nearest on top */
    far_place *p;
    int32_t    n;
} far_heap;

static void heap_put(far_heap *h, far_place x)
{
    int32_t i = h->n++;
    for (; i > 0 && x.distance < h->p[(i - 1) / 2].distance; i = (i - 1) / 2) h->p[i] = h->p[(i - 1) / 2];
    h->p[i] = x;
}

static far_place heap_take(far_heap *h)
{
    far_place top = h->p[0], x = h->p[--h->n];
    int32_t   i = 0;
    for (int32_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && h->p[child + 1].distance < h->p[child].distance) child++;
        if (x.distance <= h->p[child].distance) break;
        h->p[i] = h->p[child];
    }
    h->p[i] = x;
    return top;
}

enum { DISTANCE_UNKNOWN = GRAMMAR_FAR + 1 };

/* Returns the distance of a place from the end, given that of the nearest place that its edges or its call lead to. */
static int32_t distance_now(const grammar *g, const place *p, int32_t nearest)
{
    int64_t d = (int64_t)nearest + (p->kind == PLACE_BYTES);
    if (p->kind == PLACE_CALL || p->kind == PLACE_LOOP) {
        int64_t then = p->then >= 0 ? g->place[p->then].distance : 0, called = g->place[g->start[p->rule]].distance;
        int64_t rounds = p->kind == PLACE_CALL ? 1 : p->min;
        if (then == DISTANCE_UNKNOWN || (rounds && called == DISTANCE_UNKNOWN)) return DISTANCE_UNKNOWN;
        d = rounds * called + then;
    }
    return d < GRAMMAR_FAR ? (int32_t)d : GRAMMAR_FAR;
}

/* Computes distances by the same algorithm with a heap, because they increase by any number. Places leave the heap
 * nearest first, and their distance is then final, so the first edge to a final place is on the shortest path. */
static bool find_distances(grammar *g, const waiters *w)
{
    far_heap h = {mem_try_n((size_t)w->from[g->n_places] + 2, sizeof *h.p), 0};
    if (!h.p) return false;
    for (int32_t p = 0; p < g->n_places; p++) g->place[p].distance = DISTANCE_UNKNOWN;
    heap_put(&h, (far_place){0, END});
    while (h.n) {
        far_place x = heap_take(&h);
        if (g->place[x.place].distance != DISTANCE_UNKNOWN) continue;
        g->place[x.place].distance = x.distance;
        for (int32_t k = w->from[x.place]; k < w->from[x.place + 1]; k++) {
            const place *p = &g->place[w->at[k]];
            int32_t      d = p->distance == DISTANCE_UNKNOWN ? distance_now(g, p, x.distance) : DISTANCE_UNKNOWN;
            if (d != DISTANCE_UNKNOWN) heap_put(&h, (far_place){d, w->at[k]});
        }
    }
    mem_free(h.p);
    return true;
}

/* --- left recursion ---------------------------------------------------------------------------- */
typedef struct { /* places to visit, each once per rule */
    int32_t *seen, *todo, n, visit;
} search;

static void visit(search *x, int32_t p)
{
    if (x->seen[p] == x->visit) return;
    x->seen[p]      = x->visit;
    x->todo[x->n++] = p;
}

/* Rules that rule r may begin with. Returns how many were put at `to`, which may be NULL to count. */
static int32_t left_calls(compiler *c, const bool *empty, int32_t r, search *x, int32_t *to)
{
    const grammar *g = c->g;
    int32_t        n = 0;
    x->visit         = r + 1;
    visit(x, g->start[r]);
    while (x->n) {
        const place *p = &g->place[x->todo[--x->n]];
        spend(c, 1 + (size_t)p->n / 4);
        for (int32_t i = 0; p->kind == PLACE_SPLIT && i < p->n; i++) visit(x, g->edge[p->first + i].to);
        if (p->kind != PLACE_CALL && p->kind != PLACE_LOOP) continue;
        if (to) to[n] = p->rule;
        n++;
        bool skipped = empty[g->start[p->rule]] || (p->kind == PLACE_LOOP && !p->min);
        if (p->then >= 0 && skipped) visit(x, p->then);
    }
    return n;
}

static bool find_left_cycles(compiler *c, const bool *empty, int32_t *todo, bool *hit)
{
    grammar   *g   = c->g;
    size_t     n   = (size_t)g->n_rules;
    search     see = {.seen = mem_try_n((size_t)g->n_places, sizeof *see.seen), .todo = todo};
    call_graph x   = {.n = g->n_rules, .from = mem_try_n(n + 1, sizeof *x.from)};
    bool       ok  = see.seen && x.from;
    for (int32_t r = 0; ok && !c->failed && r < g->n_rules; r++)
        x.from[r + 1] = x.from[r] + left_calls(c, empty, r, &see, NULL);
    if (ok) memset(see.seen, 0, (size_t)g->n_places * sizeof *see.seen);
    x.to = ok && !c->failed ? mem_try_n((size_t)x.from[n] + 1, sizeof *x.to) : NULL;
    for (int32_t r = 0; x.to && !c->failed && r < g->n_rules; r++) left_calls(c, empty, r, &see, x.to + x.from[r]);
    ok = x.to && !c->failed && find_cycles(&x, hit);
    graph_deinit(&x);
    mem_free(see.seen);
    return ok;
}

static bool name_bad_rule(const compiler *c, const bool *left)
{
    const grammar *g = c->g;
    const rule    *r = c->b->rule;
    for (int32_t i = 0; i < c->b->n_rules; i++) {
        if (left[i])
            return err_set(c->e, ERR_INPUT, "rule '%.*s' is left-recursive: it can begin with itself",
                           STR_ARG(r[i].name));
    }
    for (int32_t i = 0; i < c->b->n_rules; i++) {
        if (r[i].name.n && g->place[g->start[i]].height >= HEIGHT_NEVER)
            return err_set(c->e, ERR_INPUT, "rule '%.*s' can never be completed", STR_ARG(r[i].name));
    }
    int32_t h = g->place[g->start[g->root]].height;
    if (h >= HEIGHT_NEVER) return err_set(c->e, ERR_INPUT, "the grammar matches nothing");
    if (h > g->max_depth)
        return err_set(c->e, ERR_TOO_LARGE, "the shortest match needs %d nested rules, more than %d", h, g->max_depth);
    return true;
}

static bool no_empty_rounds(const compiler *c, const bool *empty)
{
    const grammar *g = c->g;
    for (int32_t i = 0; i < g->n_places; i++)
        if (g->place[i].kind == PLACE_LOOP && empty[g->start[g->place[i].rule]])
            return err_set(c->e, ERR_INPUT, "an expression that may be empty is repeated up to %d times: use * instead",
                           g->place[i].max < 0 ? g->place[i].min : g->place[i].max);
    return true;
}

static bool check(compiler *c)
{
    grammar *g     = c->g;
    size_t   n     = (size_t)g->n_places;
    waiters  w     = {0};
    bool    *empty = mem_try(n), *left = mem_try((size_t)g->n_rules + 1);
    int32_t *queue = mem_try_n(n + 1, sizeof *queue), *later = mem_try_n(n + 1, sizeof *later);
    bool     ok = empty && left && queue && later && spend(c, 8 * n + 6 * (size_t)g->n_edges) && find_waiters(g, &w);
    if (ok) {
        find_empty(g, &w, empty, queue);
        find_heights(g, &w, queue, later);
        ok = find_distances(g, &w) && find_left_cycles(c, empty, queue, left);
    }
    if (c->failed)
        ok = false;
    else if (!ok)
        err_set(c->e, ERR_UNAVAILABLE, "no memory for a grammar of %d states", g->n_places);
    else
        ok = name_bad_rule(c, left) && no_empty_rounds(c, empty);
    mem_free(empty), mem_free(left), mem_free(queue), mem_free(later), mem_free(w.from), mem_free(w.at);
    return ok;
}

/* --- classes of symbols ------------------------------------------------------------------------ */
static void find_classes(grammar *g)
{
    bool    begins[MAX_SYMBOLS + 1] = {true};
    int32_t n = 0, n_symbols = SYMBOL_MARKER + g->n_markers;
    for (int32_t i = 0; i <= g->n_markers; i++) begins[SYMBOL_MARKER + i] = true;
    for (int32_t i = 0; i < g->n_places; i++)
        for (int32_t k = 0; g->place[i].kind == PLACE_BYTES && k < g->place[i].n; k++) {
            edge x           = g->edge[g->place[i].first + k];
            begins[x.lo]     = true;
            begins[x.hi + 1] = true;
        }
    for (int32_t s = 0; s < n_symbols; s++) {
        if (begins[s]) g->symbol_of[n++] = (uint16_t)s;
        g->class_of[s] = (uint16_t)(n - 1);
    }
    g->n_classes = n;
    for (int32_t i = 0; i < g->n_places; i++)
        for (int32_t k = 0; g->place[i].kind == PLACE_BYTES && k < g->place[i].n; k++) {
            edge *x = &g->edge[g->place[i].first + k];
            x->lo   = g->class_of[x->lo];
            x->hi   = g->class_of[x->hi];
        }
}

/* --- all of it --------------------------------------------------------------------------------- */
static void emit_rules(compiler *c)
{
    grammar *g = c->g;
    for (int32_t r = 0; r < c->b->n_rules + c->n_rounds && !c->failed; r++) {
        bool made = r >= c->b->n_rules;
        if (!grow_array(c, (void **)&g->start, &c->start_cap, r, GRAMMAR_MAX_STATES, sizeof *g->start)) return;
        c->repeated = made;
        g->start[r] = emit(c, made ? c->round[r - c->b->n_rules] : c->b->rule[r].body, END);
        g->n_rules  = r + 1;
    }
}

static bool copy_markers(grammar *g, const builder *b)
{
    for (int32_t i = 0; i < b->n_markers; i++) {
        g->marker[i] = mem_try(b->marker[i].n + 1);
        if (!g->marker[i]) return false;
        memcpy(g->marker[i], b->marker[i].s, b->marker[i].n);
        g->n_markers++;
    }
    return true;
}

static bool compile(compiler *c)
{
    int32_t table = GRAMMAR_MAX_STATES * 2;
    c->table      = mem_try_n((size_t)table, sizeof *c->table);
    c->table_mask = (uint32_t)table - 1;
    if (!c->table || !copy_markers(c->g, c->b)) return err_set(c->e, ERR_UNAVAILABLE, "no memory for a grammar");
    add_place(c, (place){.kind = PLACE_END});
    if (c->failed || !note_calls(c)) return false;
    emit_rules(c);
    if (c->failed || !check(c)) return false;
    find_classes(c->g);
    return true;
}

bool grammar_compile(grammar **out, builder *b, int32_t root, err *e)
{
    *out = NULL;
    if (b->failed) return err_set(e, b->why.code, "%s", b->why.text);
    compiler c = {.b = b, .g = mem_try(sizeof *c.g), .e = e};
    if (!c.g) return err_set(e, ERR_UNAVAILABLE, "no memory for a grammar");
    c.g->root      = root;
    c.g->max_depth = b->max_depth;
    bool ok        = compile(&c);
    mem_free(c.table), mem_free(c.round), mem_free(c.refers), mem_free(c.cyclic);
    if (ok)
        *out = c.g;
    else
        grammar_free(c.g);
    return ok;
}

void grammar_free(grammar *g)
{
    if (!g) return;
    for (int32_t i = 0; i < g->n_markers; i++) mem_free(g->marker[i]);
    mem_free(g->place);
    mem_free(g->edge);
    mem_free(g->start);
    mem_free(g);
}
