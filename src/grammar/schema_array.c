/* Arrays.
 *
 * A plain array is a sequence of its prefixItems and a repetition of its items. With `contains`, rule (i, counts)
 * writes the items from i on after `counts` matches of each `contains`. With uniqueItems the items are constants: a
 * rule for each set of those that were written, or, where there are many, constants in the order of the schema. */
#include "base/mem.h"
#include "base/num.h"
#include "grammar/schema.h"

enum { MAX_PREFIX = 4097, MAX_SET = 8 };

node *any_items(maker *m, node *value)
{
    builder *b    = &m->b;
    node    *more = node_repeat(b, node_seq(b, make_comma(m), value), 0, -1);
    return node_seq(b, node_puts(b, "["), node_alt(b, node_puts(b, "]"), node_seq(b, value, more, node_puts(b, "]"))));
}

/* --- lists ------------------------------------------------------------------------------------- */
/* Returns the length of the longest prefixItems, at most MAX_PREFIX. */
static int32_t count_prefix(const shape *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_arrays; i++)
        if (s->array[i].named)
            n = max_int(n, s->array[i].named->n > MAX_PREFIX ? MAX_PREFIX : (int32_t)s->array[i].named->n);
    return n;
}

/* Returns whether a schema in the scope applies to item i. */
static bool is_evaluated(const shape *s, const leftover *left, int32_t i)
{
    for (int32_t k = 0; k < s->n_arrays; k++) {
        const members *x = &s->array[k];
        if (!is_inside(x->in, left->of)) continue;
        if (x->rest.v || (x->named && (size_t)i < x->named->n && i < MAX_PREFIX)) return true;
    }
    return is_covered(s, left);
}

/* Returns the schema of items that are not evaluated: the unevaluatedItems, or a `contains` in its scope. */
static spot unless_contained(maker *m, const shape *s, const leftover *left)
{
    const json_value *all = left->rest.v;
    for (int32_t k = 0; all && k < s->n_contain; k++)
        if (is_inside(s->contain[k].in, left->of)) all = either(m, s->contain[k].fits.v, all);
    return all ? (spot){all, left->rest.at} : left->rest;
}

/* Lists the schemas of item i; MAX_PREFIX: of items after all prefixItems. */
static int32_t item_spots(maker *m, const shape *s, int32_t i, spot *out)
{
    int32_t n = 0;
    for (int32_t k = 0; k < s->n_arrays; k++) {
        const members *x = &s->array[k];
        builder_spend(&m->b, 2);
        if (x->named && (size_t)i < x->named->n && i < MAX_PREFIX)
            out[n++] = (spot){&x->named->item[i], x->named_at};
        else if (x->rest.v)
            out[n++] = x->rest;
    }
    for (int32_t k = 0; k < s->n_left && !m->b.failed; k++)
        if (s->leftover_of[k].array && !is_evaluated(s, &s->leftover_of[k], i))
            out[n++] = unless_contained(m, s, &s->leftover_of[k]);
    return n;
}

/* Writes item i, which must also match n more schemas; NULL: nothing does. */
static node *write_item(maker *m, const shape *s, int32_t i, const spot *more, int32_t n_more, const path *at)
{
    spot    all[MAX_PARTS + MAX_CONTAIN + MAX_LEFT];
    int32_t n = item_spots(m, s, i, all);
    for (int32_t k = 0; k < n_more; k++) all[n++] = more[k];
    m->level++;
    node *x = write_spots(m, all, n, at);
    m->level--;
    return x;
}

/* Writes the items from i on, i >= 1, and the closing bracket. */
static node *items_after(maker *m, const shape *s, node *item, int32_t i)
{
    builder *b   = &m->b;
    int32_t  min = max_int(0, s->min_items - i), max = s->max_items < 0 ? -1 : s->max_items - i;
    node    *end = node_puts(b, "]");
    if (!item || max == 0) return min ? NULL : end;
    return node_seq(b, node_repeat(b, node_seq(b, make_comma(m), item), min, max), end);
}

static node *write_list(maker *m, const shape *s, const path *at)
{
    builder *b        = &m->b;
    int32_t  n_prefix = count_prefix(s), max = s->max_items;
    if (max >= 0 && n_prefix > max) n_prefix = max;
    node *item = write_item(m, s, MAX_PREFIX, NULL, 0, at);
    node *rest = m->b.failed ? NULL : items_after(m, s, item, max_int(n_prefix, 1));
    /* From the last to the first: rest is what may follow item i. */
    for (int32_t i = max_int(n_prefix, 1) - 1; i >= 0 && !m->b.failed; i--) {
        node    *x   = i < n_prefix ? write_item(m, s, i, NULL, 0, at) : item;
        node    *end = i >= s->min_items ? node_puts(b, "]") : NULL;
        node_vec v   = {0};
        if (x && rest && max != 0) node_vec_put(b, &v, i ? node_seq(b, make_comma(m), x, rest) : node_seq(b, x, rest));
        if (end) node_vec_put(b, &v, end);
        node *here = v.n ? node_list(b, NODE_ALT, v.p, v.n) : NULL;
        if (here && i) {
            int32_t r = builder_rule(b, (str){0});
            builder_define(b, r, here);
            here = node_rule(b, r);
        }
        rest = here;
    }
    return rest && !m->b.failed ? node_seq(b, node_puts(b, "["), rest) : NULL;
}

/* --- contains ---------------------------------------------------------------------------------- */
typedef struct {
    maker       *m;
    const shape *s;
    const path  *at;
    int32_t      n_prefix, n_pos;            /* positions from the last on are alike */
    int32_t      cap[MAX_CONTAIN], n_counts; /* counts of each: 0 to cap; of all together */
    int32_t     *rule;                       /* [position][counts], -1: not made yet */
} tally;

static void unpack(const tally *c, int32_t counts, int32_t *out)
{
    for (int32_t i = 0; i < c->s->n_contain; i++) {
        out[i] = counts % (c->cap[i] + 1);
        counts /= c->cap[i] + 1;
    }
}

static int32_t pack(const tally *c, const int32_t *count)
{
    int32_t counts = 0;
    for (int32_t i = c->s->n_contain; i-- > 0;) counts = counts * (c->cap[i] + 1) + count[i];
    return counts;
}

static node *tally_rule(tally *c, int32_t pos, int32_t counts)
{
    int32_t *slot = &c->rule[pos * c->n_counts + counts];
    if (*slot < 0) *slot = builder_rule(&c->m->b, (str){0});
    return node_rule(&c->m->b, *slot);
}

/* Writes one item that fits the `contains` of the set and does not count for the others, and the rest. NULL: none. */
static node *tally_item(tally *c, int32_t pos, const int32_t *count, unsigned set)
{
    const shape *s = c->s;
    spot         more[MAX_CONTAIN];
    int32_t      next[MAX_CONTAIN], n = 0;
    for (int32_t i = 0; i < s->n_contain; i++) {
        const containing *x   = &s->contain[i];
        bool              fit = set >> i & 1;
        next[i]               = count[i];
        if (fit && x->max < 0 && count[i] >= x->min) return NULL; /* further matches are not distinguished */
        if (fit && count[i] == c->cap[i]) return NULL;
        if (fit) next[i]++;
        if (fit || x->max >= 0) more[n++] = fit ? x->fits : x->other;
    }
    node *item = write_item(c->m, s, pos < c->n_prefix ? pos : MAX_PREFIX, more, n, c->at);
    if (!item) return NULL;
    node *rest = tally_rule(c, min_int(pos + 1, c->n_pos), pack(c, next));
    return pos ? node_seq(&c->m->b, make_comma(c->m), item, rest) : node_seq(&c->m->b, item, rest);
}

static void write_tally(tally *c, int32_t pos, int32_t counts)
{
    const shape *s = c->s;
    builder     *b = &c->m->b;
    int32_t      count[MAX_CONTAIN];
    node_vec     v   = {0};
    bool         end = pos >= s->min_items;
    unpack(c, counts, count);
    for (int32_t i = 0; i < s->n_contain; i++) end = end && count[i] >= s->contain[i].min;
    if (end) node_vec_put(b, &v, node_puts(b, "]"));
    for (unsigned set = 0; set < 1u << s->n_contain && (s->max_items < 0 || pos < s->max_items) && !b->failed; set++) {
        node *x = tally_item(c, pos, count, set);
        if (x) node_vec_put(b, &v, x);
    }
    tally_rule(c, pos, counts);
    builder_define(b, c->rule[pos * c->n_counts + counts], node_list(b, NODE_ALT, v.p, v.n));
}

static node *write_containing(maker *m, const shape *s, const path *at)
{
    tally   c = {.m = m, .s = s, .at = at, .n_prefix = count_prefix(s), .n_counts = 1};
    int64_t n = max_int(max_int(1, c.n_prefix), max_int(s->min_items, s->max_items));
    for (int32_t i = 0; i < s->n_contain; i++) {
        c.cap[i]   = max_int(s->contain[i].min, s->contain[i].max);
        c.n_counts = c.n_counts > MAX_CHAIN || c.cap[i] > MAX_CHAIN ? MAX_CHAIN + 1 : c.n_counts * (c.cap[i] + 1);
        if (s->contain[i].max >= 0 && s->contain[i].max < s->contain[i].min) return NULL;
    }
    if (n > MAX_CHAIN || (n + 1) * c.n_counts > MAX_CHAIN)
        return refuse_too_large(m, s->contain[0].fits.at, "it has too many items to count"), NULL;
    c.n_pos        = (int32_t)n;
    size_t n_rules = (size_t)(n + 1) * (size_t)c.n_counts;
    c.rule         = arena_try(&m->b.mem, n_rules, sizeof *c.rule);
    if (!c.rule || !builder_spend(&m->b, n_rules)) return builder_full(&m->b), NULL;
    for (size_t i = 0; i < n_rules; i++) c.rule[i] = -1;
    node *first = tally_rule(&c, 0, 0);
    /* a rule is asked for by one with a lower position, by itself, or at the last position by one with lower counts */
    for (int32_t pos = 0; pos <= c.n_pos; pos++)
        for (int32_t counts = 0; counts < c.n_counts && !m->b.failed; counts++)
            if (c.rule[pos * c.n_counts + counts] >= 0) write_tally(&c, pos, counts);
    return m->b.failed ? NULL : node_seq(&m->b, node_puts(&m->b, "["), first);
}

/* --- uniqueItems ------------------------------------------------------------------------------- */
typedef struct {
    const json_value **p; /* different constants */
    int32_t            n, cap;
} constants;

static const json_value literals[] = {
    {.kind = JSON_NULL}, {.kind = JSON_BOOL, .b = false}, {.kind = JSON_BOOL, .b = true}};

static void put_constant(maker *m, constants *c, const json_value *v)
{
    for (int32_t i = 0; i < c->n; i++)
        if (same_value(m, c->p[i], v)) return;
    if (c->n == c->cap) {
        int32_t            cap = c->cap ? c->cap * 2 : 16;
        const json_value **p = builder_spend(&m->b, (size_t)cap) ? arena_try(&m->b.mem, (size_t)cap, sizeof *p) : NULL;
        if (!p) {
            builder_full(&m->b);
            return;
        }
        if (c->n) memcpy(p, c->p, (size_t)c->n * sizeof *p);
        c->p   = p;
        c->cap = cap;
    }
    c->p[c->n++] = v;
}

/* Adds the values that match a shape. Returns false if they are not constants. */
static bool list_shape(maker *m, const shape *s, constants *out, const path *at)
{
    if (!s->types) return true;
    if (s->n_choices) {
        size_t n = s->choice[s->n_choices - 1].list.v->n;
        for (size_t i = 0; i < n; i++) {
            shape *with = choose(m, s, i, at);
            bool   ok   = with && list_shape(m, with, out, at);
            mem_free(with);
            m->deep--;
            if (!ok) return false;
        }
        return true;
    }
    if (!s->n_values) {
        if (s->types & ~(unsigned)(T_NULL | T_BOOL)) return false;
        for (size_t i = s->types & T_NULL ? 0 : 1; i < (s->types & T_BOOL ? 3 : 1); i++)
            if (constant_fits(m, s, &literals[i], at)) put_constant(m, out, &literals[i]);
        return true;
    }
    bool              many = str_is(s->values[0].at->key, "enum");
    const json_value *list = s->values[0].v;
    for (size_t i = 0; i < (many ? list->n : 1) && !m->b.failed; i++) {
        const json_value *v = many ? &list->item[i] : list;
        if (constant_fits(m, s, v, at)) put_constant(m, out, v);
    }
    return true;
}

/* Adds the values of item i. False: they are not constants, or the maker failed. */
static bool list_item(maker *m, const shape *s, int32_t i, constants *out, const path *at)
{
    spot    all[MAX_PARTS + MAX_LEFT];
    int32_t n  = item_spots(m, s, i, all);
    shape  *x  = new_shape(m, at);
    bool    ok = x != NULL;
    for (int32_t k = 0; ok && k < n; k++) ok = collect(m, x, all[k]);
    if (ok && !x->typed && x->hinted && !x->n_values) ok = false;
    ok = ok && list_shape(m, x, out, at);
    mem_free(x);
    return ok && !m->b.failed;
}

static bool has_constant(maker *m, const constants *c, const json_value *v)
{
    for (int32_t i = 0; i < c->n; i++)
        if (same_value(m, c->p[i], v)) return true;
    return false;
}

/* Writes the constants in any order: rule `set` writes what may follow those constants. */
static node *write_set(maker *m, const shape *s, const constants *all, int32_t n_prefix, const path *at)
{
    builder  *b = &m->b;
    constants at_pos[MAX_SET + 1];
    int32_t   of_set[1 << MAX_SET], n_sets = 1 << all->n;
    for (int32_t i = 0; i <= MAX_SET; i++) {
        at_pos[i] = (constants){0};
        if (!list_item(m, s, i < n_prefix ? i : MAX_PREFIX, &at_pos[i], at)) return NULL;
    }
    for (int32_t set = 0; set < n_sets; set++) of_set[set] = builder_rule(b, (str){0});
    for (int32_t set = 0; set < n_sets && !b->failed; set++) {
        node_vec v   = {0};
        int32_t  pos = __builtin_popcount((unsigned)set);
        if (pos >= s->min_items) node_vec_put(b, &v, node_puts(b, "]"));
        for (int32_t i = 0; i < all->n && (s->max_items < 0 || pos < s->max_items); i++) {
            if (set >> i & 1 || !has_constant(m, &at_pos[pos], all->p[i])) continue;
            node *item = make_literal(m, all->p[i]), *rest = node_rule(b, of_set[set | 1 << i]);
            node_vec_put(b, &v, set ? node_seq(b, make_comma(m), item, rest) : node_seq(b, item, rest));
        }
        builder_define(b, of_set[set], node_list(b, NODE_ALT, v.p, v.n));
    }
    return node_seq(b, node_puts(b, "["), node_rule(b, of_set[0]));
}

/* Writes the constants in the order of the schema: rule (i, n) writes constants from i on when n were written. */
static node *write_in_order(maker *m, const shape *s, const constants *all, const path *at)
{
    builder *b   = &m->b;
    int32_t  cap = max_int(1, max_int(s->min_items, s->max_items));
    if (cap > all->n) cap = max_int(1, all->n);
    if ((int64_t)(all->n + 1) * (cap + 1) > MAX_CHAIN)
        return refuse_too_large(m, at, "uniqueItems has too many constants to count"), NULL;
    size_t   width = (size_t)cap + 1, n_rules = (size_t)(all->n + 1) * width;
    int32_t *of_set = arena_try(&b->mem, n_rules, sizeof *of_set);
    if (!of_set || !builder_spend(b, n_rules)) return builder_full(b), NULL;
    for (size_t i = 0; i < n_rules; i++) of_set[i] = builder_rule(b, (str){0});
    for (int32_t i = all->n; i >= 0; i--)
        for (int32_t n = 0; n <= cap && !b->failed; n++) {
            node_vec v = {0};
            if (i < all->n) {
                if (s->max_items < 0 || n < s->max_items) {
                    node *item = make_literal(m, all->p[i]);
                    node *rest = node_rule(b, of_set[(size_t)(i + 1) * width + (size_t)min_int(n + 1, cap)]);
                    node_vec_put(b, &v, n ? node_seq(b, make_comma(m), item, rest) : node_seq(b, item, rest));
                }
                node_vec_put(b, &v, node_rule(b, of_set[(size_t)(i + 1) * width + (size_t)n]));
            } else if (n >= s->min_items) {
                node_vec_put(b, &v, node_puts(b, "]"));
            }
            builder_define(b, of_set[(size_t)i * width + (size_t)n], node_list(b, NODE_ALT, v.p, v.n));
        }
    return node_seq(b, node_puts(b, "["), node_rule(b, of_set[0]));
}

static bool refuse_unique(maker *m, const shape *s, const char *why)
{
    return m->b.failed ? false : refuse(m, s->unique_at.at, "uniqueItems", "%s", why);
}

static node *write_unique(maker *m, const shape *s, const path *at)
{
    constants all      = {0};
    int32_t   n_prefix = count_prefix(s);
    bool      ok       = true;
    if (s->n_contain) return refuse_unique(m, s, "cannot be enforced together with contains"), NULL;
    for (int32_t i = 0; ok && i < n_prefix; i++) ok = list_item(m, s, i, &all, at);
    ok = ok && list_item(m, s, MAX_PREFIX, &all, at);
    if (!ok)
        return refuse_unique(m, s, "can be enforced only where the items are constants: an enum, booleans or null"),
               NULL;
    if (s->min_items > all.n) return NULL;
    if (all.n > MAX_SET && n_prefix)
        return refuse_unique(m, s, "cannot be enforced for prefixItems with more than 8 constants"), NULL;
    return all.n <= MAX_SET ? write_set(m, s, &all, n_prefix, at) : write_in_order(m, s, &all, s->unique_at.at);
}

node *write_array(maker *m, const shape *s, const path *at)
{
    if (count_prefix(s) == MAX_PREFIX) return refuse_too_large(m, at, "an array has more than 4096 prefixItems"), NULL;
    if (s->max_items >= 0 && s->max_items < s->min_items) return NULL;
    if (s->unique && (s->max_items < 0 || s->max_items > 1)) return write_unique(m, s, at);
    return s->n_contain ? write_containing(m, s, at) : write_list(m, s, at);
}
