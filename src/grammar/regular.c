/* Derivatives of regular expressions (Brzozowski): d(c, x) is the set of the strings that may follow c in x. An
 * expression has finitely many derivatives up to the order and repetition of alternatives, which the constructors
 * below remove. */
#include "grammar/regular.h"
#include "base/mem.h"
#include "base/num.h"

#include <stdlib.h>

typedef enum { RE_NONE, RE_EMPTY, RE_CLASS, RE_SEQ, RE_ALT, RE_AND, RE_NOT, RE_REPEAT } term_kind;

struct term {
    term_kind   kind;
    bool        nullable; /* the empty string is one of them */
    uint32_t    id;       /* in order of creation */
    uint64_t    hash;
    int32_t     state;    /* number in the automaton being written, + 1 */
    int32_t     min, max; /* RE_REPEAT */
    char_range *range;    /* RE_CLASS: n of them, sorted */
    int32_t     n;        /* number of ranges or kids */
    term      **kid;      /* RE_SEQ: two; RE_ALT, RE_AND: sorted by id; RE_NOT, RE_REPEAT: one */
};

enum { MAX_CODE = 0x10FFFF, MAX_KIDS = 4096, MAX_TERMS = 1 << 18 };

/* --- making terms ------------------------------------------------------------------------------ */
static void *alloc_items(regular *r, size_t n, size_t each)
{
    void *p = builder_spend(r->b, 2 + n * each / 64) ? arena_try(&r->b->mem, n ? n : 1, each) : NULL;
    if (!p) builder_full(r->b);
    return p;
}

static bool same_term(const term *a, const term *b)
{
    if (a->hash != b->hash || a->kind != b->kind || a->n != b->n || a->min != b->min || a->max != b->max) return false;
    if (a->kind == RE_CLASS) return !a->n || !memcmp(a->range, b->range, (size_t)a->n * sizeof *a->range);
    return !a->n || !memcmp(a->kid, b->kid, (size_t)a->n * sizeof(term *));
}

static uint64_t hash_term(const term *x)
{
    uint64_t h = hash_mix((uint64_t)x->kind, (uint64_t)(uint32_t)x->min << 32 | (uint32_t)x->max);
    for (int32_t i = 0; i < x->n; i++)
        h = x->kind == RE_CLASS ? hash_mix(h, (uint64_t)x->range[i].lo << 32 | x->range[i].hi)
                                : hash_mix(h, x->kid[i]->id);
    return h;
}

static bool grow_terms(regular *r)
{
    uint32_t cap = r->cap ? r->cap * 2 : 256;
    term   **to  = alloc_items(r, cap, sizeof(term *));
    if (!to) return false;
    for (uint32_t i = 0; i < r->cap; i++) {
        if (!r->table[i]) continue;
        uint32_t at = (uint32_t)r->table[i]->hash & (cap - 1);
        while (to[at]) at = (at + 1) & (cap - 1);
        to[at] = r->table[i];
    }
    r->table = to;
    r->cap   = cap;
    return true;
}

/* Returns the one term that equals *x. */
static term *intern(regular *r, term *x)
{
    if (2 * r->n >= r->cap && !grow_terms(r)) return r->none;
    if (!builder_spend(r->b, 4 + (size_t)x->n)) return r->none;
    x->hash     = hash_term(x);
    uint32_t at = (uint32_t)x->hash;
    for (; r->table[at &= r->cap - 1]; at++)
        if (same_term(r->table[at], x)) return r->table[at];
    if (r->n == MAX_TERMS) return builder_fail(r->b, ERR_TOO_LARGE, "a pattern has too many states"), r->none;
    term *copy = alloc_items(r, 1, sizeof *copy);
    if (!copy) return r->none;
    *copy        = *x;
    copy->id     = r->n++;
    r->table[at] = copy;
    return copy;
}

static term *with_kids(regular *r, term_kind kind, term *const *kid, int32_t n, bool nullable)
{
    term  x = {.kind = kind, .n = n, .nullable = nullable};
    term *copy[8], **kids = n <= (int32_t)COUNT(copy) ? copy : NULL;
    if (!kids && !(kids = alloc_items(r, (size_t)n, sizeof(term *)))) return r->none;
    memcpy(kids, kid, (size_t)n * sizeof(term *));
    x.kid     = kids;
    term *out = intern(r, &x);
    if (out->kid == copy) { /* new: its kids must outlive this call */
        out->kid = alloc_items(r, (size_t)n, sizeof(term *));
        if (!out->kid) {
            out->n = 0;
            return r->none;
        }
        memcpy(out->kid, kids, (size_t)n * sizeof(term *));
    }
    return out;
}

void regular_init(regular *r, builder *b)
{
    static term nothing = {.kind = RE_NONE};
    *r                  = (regular){.b = b, .none = &nothing};
    r->none             = intern(r, &(term){.kind = RE_NONE});
    r->empty            = intern(r, &(term){.kind = RE_EMPTY, .nullable = true});
    r->any_char         = term_class(r, &(char_range){0, MAX_CODE}, 1);
    r->all              = r->empty;
    r->all              = term_repeat(r, r->any_char, 0, -1);
}

term *term_class(regular *r, const char_range *range, int32_t n)
{
    node *x = node_class(r->b, range, n); /* sorts and joins */
    if (x->kind != NODE_CLASS || !x->n) return r->none;
    return intern(r, &(term){.kind = RE_CLASS, .range = x->range, .n = x->n});
}

/* Returns the term of a string of a, then one of b. */
static term *term_seq(regular *r, term *a, term *b)
{
    if (a == r->none || b == r->none) return r->none;
    if (a == r->empty) return b;
    if (b == r->empty) return a;
    if (a->kind == RE_SEQ) return term_seq(r, a->kid[0], term_seq(r, a->kid[1], b));
    return with_kids(r, RE_SEQ, (term *[]){a, b}, 2, a->nullable && b->nullable);
}

term *term_word(regular *r, str s)
{
    term    *x = r->empty;
    size_t   n = s.n;
    uint32_t c;
    while (n) {
        size_t from = n - 1;
        while (from && (s.s[from] & 0xC0) == 0x80) from--;
        if (!utf8_decode(s.s + from, n - from, &c)) return r->none;
        x = term_seq(r, term_class(r, &(char_range){c, c}, 1), x);
        n = from;
    }
    return x;
}

/* Joins two sets of kids of an ALT or an AND. `zero` makes it all, `unit` nothing. */
static term *join_kids(regular *r, term_kind kind, term *a, term *b, term *zero, term *unit)
{
    if (a == zero || b == zero) return zero;
    if (a == unit || a == b) return b;
    if (b == unit) return a;
    term *const *of_a = a->kind == kind ? a->kid : &a, *const *of_b = b->kind == kind ? b->kid : &b;
    int32_t      n_a = a->kind == kind ? a->n : 1, n_b = b->kind == kind ? b->n : 1, n = 0;
    term        *few[16], **all = n_a + n_b <= (int32_t)COUNT(few) ? few : NULL;
    if (n_a + n_b > MAX_KIDS) return builder_fail(r->b, ERR_TOO_LARGE, "a pattern has too many alternatives"), r->none;
    if (!all && !(all = alloc_items(r, (size_t)(n_a + n_b), sizeof(term *)))) return r->none;
    builder_spend(r->b, (size_t)(n_a + n_b));
    for (int32_t i = 0, k = 0; i < n_a || k < n_b; n++) {
        if (k == n_b || (i < n_a && of_a[i]->id <= of_b[k]->id)) {
            if (k < n_b && of_a[i] == of_b[k]) k++;
            all[n] = of_a[i++];
        } else {
            all[n] = of_b[k++];
        }
    }
    bool nullable = kind == RE_ALT ? a->nullable || b->nullable : a->nullable && b->nullable;
    return n == 1 ? all[0] : with_kids(r, kind, all, n, nullable);
}

term *term_alt(regular *r, term *a, term *b)
{
    if (a == r->empty && b->nullable) return b;
    if (b == r->empty && a->nullable) return a;
    return join_kids(r, RE_ALT, a, b, r->all, r->none);
}

term *term_and(regular *r, term *a, term *b)
{
    if (a == r->empty || b == r->empty) return a->nullable && b->nullable ? r->empty : r->none;
    return join_kids(r, RE_AND, a, b, r->none, r->all);
}

term *term_not(regular *r, term *a)
{
    if (a->kind == RE_NOT) return a->kid[0];
    if (a == r->none) return r->all;
    if (a == r->all) return r->none;
    return with_kids(r, RE_NOT, &a, 1, !a->nullable);
}

term *term_repeat(regular *r, term *a, int32_t min, int32_t max)
{
    if (max >= 0 && min > max) return r->none;
    if (a->nullable) min = 0;
    if (max == 0 || a == r->empty) return r->empty;
    if (a == r->none) return min ? r->none : r->empty;
    if (min == 1 && max == 1) return a;
    if (a->kind == RE_REPEAT && !a->min && a->max < 0) return a; /* (x*){m,n} */
    term  x   = {.kind = RE_REPEAT, .n = 1, .min = min, .max = max, .nullable = !min, .kid = &a};
    term *out = intern(r, &x);
    if (out->kid == &a) {
        out->kid = alloc_items(r, 1, sizeof(term *));
        if (!out->kid) return out->n = 0, r->none;
        out->kid[0] = a;
    }
    return out;
}

/* Joins many terms, halves first: adding them one by one would copy the list each time. */
typedef term *join_fn(regular *r, term *a, term *b);

static term *join_all(regular *r, join_fn *join_two, term *const *x, int32_t n)
{
    if (n == 1) return x[0];
    return join_two(r, join_all(r, join_two, x, n / 2), join_all(r, join_two, x + n / 2, n - n / 2));
}

term *term_any_of(regular *r, term *const *x, int32_t n) { return n ? join_all(r, term_alt, x, n) : r->none; }

/* --- patterns ---------------------------------------------------------------------------------- */
static bool has_lookahead(regular *r, const node *x)
{
    if (!builder_spend(r->b, 1)) return false;
    if (x->kind == NODE_AHEAD) return true;
    if (x->kind == NODE_REPEAT) return has_lookahead(r, x->body);
    for (int32_t i = 0; (x->kind == NODE_SEQ || x->kind == NODE_ALT) && i < x->n; i++)
        if (has_lookahead(r, x->kid[i])) return true;
    return false;
}

/* Returns the strings of x, each followed by one of `then`. A look-ahead is a demand on `then`. NULL: it is inside a
 * repetition. */
static term *followed(regular *r, const node *x, term *then)
{
    term *out = r->none, *y;
    if (!builder_spend(r->b, 2)) return r->none;
    switch (x->kind) {
    case NODE_TEXT: return term_seq(r, term_word(r, x->text), then);
    case NODE_CLASS: return term_seq(r, term_class(r, x->range, x->n), then);
    case NODE_SEQ:
        for (int32_t i = x->n; i-- > 0 && then;) then = followed(r, x->kid[i], then);
        return then;
    case NODE_ALT:
        for (int32_t i = 0; i < x->n; i++) {
            if (!(y = followed(r, x->kid[i], then))) return NULL;
            out = term_alt(r, out, y);
        }
        return out;
    case NODE_AHEAD:
        if (!(y = followed(r, x->body, r->empty))) return NULL;
        return term_and(r, then, x->max ? y : term_not(r, y));
    case NODE_REPEAT:
        if (x->max == 1) return (y = followed(r, x->body, then)) ? x->min ? y : term_alt(r, y, then) : NULL;
        if (has_lookahead(r, x->body)) return NULL;
        return term_seq(r, term_repeat(r, followed(r, x->body, r->empty), x->min, x->max), then);
    default: return r->none;
    }
}

term *term_of_node(regular *r, const node *x) { return followed(r, x, r->empty); }

/* --- derivatives ------------------------------------------------------------------------------- */
static bool in_class(const term *x, uint32_t c)
{
    int32_t lo = 0, hi = x->n;
    while (lo < hi) {
        int32_t mid = (lo + hi) / 2;
        if (x->range[mid].hi < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < x->n && x->range[lo].lo <= c;
}

static term *derive(regular *r, term *x, uint32_t c);

static term *derive_all(regular *r, join_fn *join_two, term *const *x, int32_t n, uint32_t c)
{
    if (n == 1) return derive(r, x[0], c);
    return join_two(r, derive_all(r, join_two, x, n / 2, c), derive_all(r, join_two, x + n / 2, n - n / 2, c));
}

static term *derive(regular *r, term *x, uint32_t c)
{
    term *y;
    if (!builder_spend(r->b, 3)) return r->none;
    switch (x->kind) {
    case RE_CLASS: return in_class(x, c) ? r->empty : r->none;
    case RE_SEQ:
        for (y = r->none;; x = x->kid[1]) { /* a chain: no deeper for a longer one */
            if (x->kind != RE_SEQ) return term_alt(r, y, derive(r, x, c));
            y = term_alt(r, y, term_seq(r, derive(r, x->kid[0], c), x->kid[1]));
            if (!x->kid[0]->nullable || !builder_spend(r->b, 2)) return y;
        }
    case RE_ALT: return derive_all(r, term_alt, x->kid, x->n, c);
    case RE_AND: return derive_all(r, term_and, x->kid, x->n, c);
    case RE_NOT: return term_not(r, derive(r, x->kid[0], c));
    case RE_REPEAT:
        return term_seq(r, derive(r, x->kid[0], c),
                        term_repeat(r, x->kid[0], max_int(x->min - 1, 0), x->max < 0 ? -1 : x->max - 1));
    default: return r->none;
    }
}

bool term_has(regular *r, term *x, str s)
{
    uint32_t c;
    for (size_t i = 0; i < s.n && x != r->none;) {
        int n = utf8_decode(s.s + i, s.n - i, &c);
        if (!n) return false;
        x = derive(r, x, c);
        i += (size_t)n;
    }
    return x->nullable && !r->b->failed;
}

/* --- the alphabet ------------------------------------------------------------------------------ */
typedef struct { /* groups of characters that no class of a term distinguishes */
    uint32_t lo, hi, group;
} piece;

typedef struct {
    piece   *piece;
    int32_t  n_pieces, n_groups;
    uint32_t group_char[512]; /* one of each group */
} alphabet;

typedef struct {
    const term **p;
    int32_t      n, cap;
} class_list;

static void put_class(regular *r, class_list *v, const term *x)
{
    for (int32_t i = 0; i < v->n; i++)
        if (v->p[i] == x) return;
    builder_spend(r->b, 1 + (size_t)v->n / 8);
    if (v->n == v->cap) {
        int32_t      cap = v->cap ? v->cap * 2 : 16;
        const term **p   = alloc_items(r, (size_t)cap, sizeof(term *));
        if (!p) return;
        if (v->n) memcpy(p, v->p, (size_t)v->n * sizeof(term *));
        v->p   = p;
        v->cap = cap;
    }
    v->p[v->n++] = x;
}

/* Lists the classes of a term; `state` marks what was visited. */
static void list_classes(regular *r, class_list *v, term *x)
{
    while (!x->state && builder_spend(r->b, 1)) {
        x->state = 1;
        if (x->kind == RE_CLASS) put_class(r, v, x);
        if (x->kind == RE_CLASS || !x->n) return;
        for (int32_t i = 0; i + 1 < x->n; i++) list_classes(r, v, x->kid[i]);
        x = x->kid[x->n - 1]; /* the rest of a chain */
    }
}

static int by_code(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static bool same_membership(regular *r, const class_list *v, uint32_t a, uint32_t b)
{
    for (int32_t i = 0; i < v->n; i++) {
        builder_spend(r->b, 1);
        if (in_class(v->p[i], a) != in_class(v->p[i], b)) return false;
    }
    return true;
}

static bool make_alphabet(regular *r, alphabet *a, term *x)
{
    class_list v = {0};
    size_t     n = 1;
    list_classes(r, &v, x);
    for (int32_t i = 0; i < v.n; i++) n += 2 * (size_t)v.p[i]->n;
    uint32_t *from = alloc_items(r, n, sizeof *from);
    a->piece       = from ? alloc_items(r, n, sizeof *a->piece) : NULL;
    if (!a->piece) return false;
    n = 1; /* from[0] is 0 */
    for (int32_t i = 0; i < v.n; i++)
        for (int32_t k = 0; k < v.p[i]->n; k++) {
            from[n++] = v.p[i]->range[k].lo;
            from[n++] = v.p[i]->range[k].hi + 1;
        }
    if (!builder_spend_sort(r->b, n, 0)) return false;
    qsort(from, n, sizeof *from, by_code);
    for (size_t i = 0; i < n && from[i] <= MAX_CODE; i++) {
        if (i && from[i] == from[i - 1]) continue;
        int32_t g = 0;
        while (g < a->n_groups && !same_membership(r, &v, a->group_char[g], from[i])) g++;
        if (g == (int32_t)COUNT(a->group_char) || r->b->failed)
            return builder_fail(r->b, ERR_TOO_LARGE, "a pattern has too many classes of characters");
        if (g == a->n_groups) a->group_char[a->n_groups++] = from[i];
        if (a->n_pieces) a->piece[a->n_pieces - 1].hi = from[i] - 1;
        a->piece[a->n_pieces++] = (piece){from[i], MAX_CODE, (uint32_t)g};
    }
    return true;
}

/* --- the automaton ----------------------------------------------------------------------------- */
typedef struct {
    regular *r;
    alphabet a;
    term   **state;
    int32_t *next; /* [state][group], -1: none */
    bool    *live; /* a string ends from here */
    int32_t *rule; /* -1: not made yet */
    int32_t  n, cap;
} automaton;

static void clear_states(regular *r)
{
    builder_spend(r->b, r->cap / 4);
    for (uint32_t i = 0; i < r->cap; i++)
        if (r->table[i]) r->table[i]->state = 0;
}

static bool grow_states(automaton *m)
{
    size_t   groups = (size_t)m->a.n_groups;
    int32_t  cap    = m->cap ? m->cap * 2 : 32;
    term   **found  = alloc_items(m->r, (size_t)cap, sizeof(term *));
    int32_t *next   = found ? alloc_items(m->r, (size_t)cap * groups, sizeof *next) : NULL;
    if (!next) return false;
    if (m->n) memcpy(found, m->state, (size_t)m->n * sizeof(term *));
    if (m->n) memcpy(next, m->next, (size_t)m->n * groups * sizeof *next);
    m->state = found;
    m->next  = next;
    m->cap   = cap;
    return true;
}

/* Returns the number of the state, -1 for none. False in *ok: there are too many, or the builder failed. */
static int32_t state_of(automaton *m, term *x, bool *ok)
{
    if (x == m->r->none) return -1;
    if (!x->state) {
        *ok = m->n < REGULAR_MAX_STATES && (m->n < m->cap || grow_states(m));
        if (!*ok) return -1;
        m->state[m->n++] = x;
        x->state         = m->n;
    }
    return x->state - 1;
}

static bool find_states(automaton *m, term *x)
{
    regular *r      = m->r;
    size_t   groups = (size_t)m->a.n_groups;
    bool     ok     = true;
    clear_states(r);
    state_of(m, x, &ok);
    for (int32_t i = 0; ok && i < m->n && !r->b->failed; i++)
        for (size_t g = 0; ok && g < groups; g++) {
            int32_t to                      = state_of(m, derive(r, m->state[i], m->a.group_char[g]), &ok);
            m->next[(size_t)i * groups + g] = to; /* state_of may have moved it */
        }
    return ok && !r->b->failed;
}

/* Marks the states from which a string ends. */
static void find_live(automaton *m)
{
    size_t groups = (size_t)m->a.n_groups;
    for (bool more = true; more && builder_spend(m->r->b, (size_t)m->n * (groups / 4 + 1));) {
        more = false;
        for (int32_t i = m->n; i-- > 0;) {
            bool live = m->live[i] || m->state[i]->nullable;
            for (size_t g = 0; g < groups && !live; g++) {
                int32_t to = m->next[(size_t)i * groups + g];
                live       = to >= 0 && m->live[to];
            }
            more |= live != m->live[i];
            m->live[i] = live;
        }
    }
}

static int32_t rule_of(automaton *m, int32_t i)
{
    if (m->rule[i] < 0) m->rule[i] = builder_rule(m->r->b, (str){0});
    return m->rule[i];
}

typedef struct {
    node *(*wrap)(void *ctx, const char_range *range, int32_t n);
    void *ctx;
    node *end;
} writing;

static void write_state(automaton *m, int32_t i, const writing *w)
{
    builder    *b      = m->r->b;
    size_t      groups = (size_t)m->a.n_groups;
    node_vec    v      = {0};
    bool       *done   = alloc_items(m->r, groups, 1);
    char_range *range  = alloc_items(m->r, (size_t)m->a.n_pieces, sizeof *range);
    if (!done || !range) return;
    if (m->state[i]->nullable) node_vec_put(b, &v, w->end);
    for (size_t g = 0; g < groups && builder_spend(b, 2); g++) {
        int32_t to = m->next[(size_t)i * groups + g], n = 0;
        if (to < 0 || !m->live[to] || done[g]) continue;
        for (size_t k = g; k < groups; k++) done[k] |= m->next[(size_t)i * groups + k] == to;
        for (int32_t k = 0; k < m->a.n_pieces; k++)
            if (m->next[(size_t)i * groups + m->a.piece[k].group] == to)
                range[n++] = (char_range){m->a.piece[k].lo, m->a.piece[k].hi};
        builder_spend(b, (size_t)m->a.n_pieces / 2);
        node_vec_put(b, &v, node_seq(b, w->wrap(w->ctx, range, n), node_rule(b, rule_of(m, to))));
    }
    builder_define(b, rule_of(m, i), node_list(b, NODE_ALT, v.p, v.n));
}

node *term_write(regular *r, term *x, node *(*wrap)(void *ctx, const char_range *range, int32_t n), void *ctx,
                 node *end, bool *too_many)
{
    automaton m = {.r = r};
    writing   w = {wrap, ctx, end};
    *too_many   = false;
    clear_states(r);
    if (x == r->none || !make_alphabet(r, &m.a, x)) return NULL;
    if (!find_states(&m, x)) return *too_many = !r->b->failed, NULL;
    m.live = alloc_items(r, (size_t)m.n, 1);
    m.rule = alloc_items(r, (size_t)m.n, sizeof *m.rule);
    if (!m.live || !m.rule) return NULL;
    find_live(&m);
    if (r->b->failed || !m.live[0]) return NULL;
    for (int32_t i = 0; i < m.n; i++) m.rule[i] = -1;
    rule_of(&m, 0);
    for (int32_t i = 0; i < m.n && !r->b->failed; i++)
        if (m.live[i] && m.rule[i] >= 0) write_state(&m, i, &w);
    return node_rule(r->b, m.rule[0]);
}
