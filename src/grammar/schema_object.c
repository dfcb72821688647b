/* Objects.
 *
 * Properties come in the order in which they are listed; then others, where allowed. Rule (i, c) of an object writes
 * the properties from i on when c were written, c being counted only as far as someone asks: whether a comma is due,
 * and minProperties and maxProperties.
 *
 * With patternProperties the other keys are divided by the set of patterns that they match: each set has its own
 * values. */
#include "base/mem.h"
#include "base/num.h"
#include "grammar/schema.h"

#include <stdlib.h>

node *any_members(maker *m, node *value)
{
    builder *b = &m->b;
    if (m->key < 0) {
        m->key = builder_rule(b, (str){0});
        builder_define(b, m->key, make_other_name(m, NULL, 0));
    }
    node *member = node_seq(b, node_rule(b, m->key), value);
    node *more   = node_repeat(b, node_seq(b, make_comma(m), member), 0, -1);
    return node_seq(b, node_puts(b, "{"), node_alt(b, node_puts(b, "}"), node_seq(b, member, more, node_puts(b, "}"))));
}

typedef struct {
    str   name;
    node *value; /* NULL: nothing fits, so it is never written */
    bool  required;
} property;

enum { MAX_KEY_PATTERNS = 6 };

typedef struct { /* the keys of an object, as far as patternProperties and propertyNames speak of them */
    maker  *m;
    regular re;
    str     pattern[MAX_KEY_PATTERNS];
    term   *term[MAX_KEY_PATTERNS], *names; /* names: that propertyNames allows */
    int32_t n;
} keys;

typedef struct {
    maker      *m;
    const path *at;
    property   *prop;
    int32_t    *table; /* properties by the hash of their names, + 1 */
    uint32_t    table_mask;
    int32_t     n, min, max; /* max < 0: no end */
    keys        keys;
    const spot *outside; /* objects of the shape; for each, a property that is not in it must be written */
    int32_t     n_outside;
    node       *other; /* a key that is not named and its value; NULL: none */
    int32_t     cap;   /* counts from here on are alike */
    int32_t    *rule;  /* [n + 1][cap + 1], -1: not made yet */
} chain;

/* --- keys and the patterns they match ------------------------------------------------------------- */
/* Finds or adds a pattern. Returns its number, -1: the maker failed. */
static int32_t add_pattern(keys *k, str pattern, const path *at)
{
    text_demand one = {.pattern = {{&(json_value){.kind = JSON_STRING, .s = pattern}, at}}, .n_patterns = 1, .max = -1};
    for (int32_t i = 0; i < k->n; i++)
        if (str_eq(k->pattern[i], pattern)) return i;
    if (k->n == MAX_KEY_PATTERNS) {
        refuse(k->m, at, NULL, "more than %d patterns of one object cannot be enforced", MAX_KEY_PATTERNS);
        return -1;
    }
    term *x = make_text_term(k->m, &k->re, &one);
    if (!x) return -1;
    k->pattern[k->n] = pattern;
    k->term[k->n]    = x;
    return k->n++;
}

static bool read_patterns(keys *k, const shape *s)
{
    for (int32_t i = 0; i < s->n_objects; i++) {
        const json_value *p = s->object[i].patterns;
        for (size_t n = 0; p && n < p->n; n++)
            if (add_pattern(k, p->member[n].key, s->object[i].patterns_at) < 0) return false;
    }
    return true;
}

/* Returns the keys that a propertyNames allows; NULL: the maker failed. */
static term *names_of(keys *k, const shape *s, const path *at)
{
    maker *m   = k->m;
    term  *all = k->re.none, *x;
    if (!(s->types & T_STRING)) return all;
    if (!s->n_choices && !s->n_values) return make_text_term(m, &k->re, &s->text);
    if (s->n_choices) {
        size_t n = s->choice[s->n_choices - 1].list.v->n;
        for (size_t i = 0; i < n; i++) {
            shape *with = choose(m, s, i, at);
            x           = with ? names_of(k, with, at) : NULL;
            mem_free(with);
            m->deep--;
            if (!x) return NULL;
            all = term_alt(&k->re, all, x);
        }
        return all;
    }
    bool              many = str_is(s->values[0].at->key, "enum");
    const json_value *list = s->values[0].v;
    for (size_t i = 0; i < (many ? list->n : 1) && !m->b.failed; i++) {
        const json_value *v = many ? &list->item[i] : list;
        if (v->kind == JSON_STRING && constant_fits(m, s, v, at)) all = term_alt(&k->re, all, term_word(&k->re, v->s));
    }
    return m->b.failed ? NULL : all;
}

static bool read_names(keys *k, const shape *s)
{
    for (int32_t i = 0; i < s->n_names; i++) {
        shape *x  = new_shape(k->m, s->names[i].at);
        term  *of = NULL;
        if (x && (x->types = T_STRING, collect(k->m, x, s->names[i]))) of = names_of(k, x, s->names[i].at);
        mem_free(x);
        if (!of) return false;
        k->names = term_and(&k->re, k->names, of);
    }
    return !k->m->b.failed;
}

/* Returns the patterns that a key matches, as bits. */
static unsigned matches(keys *k, str name)
{
    unsigned set = 0;
    for (int32_t i = 0; i < k->n; i++) set |= (unsigned)term_has(&k->re, k->term[i], name) << i;
    return set;
}

/* Returns whether a schema in the scope applies to the member. */
static bool is_evaluated(keys *k, const shape *s, const leftover *left, const str *name, unsigned set)
{
    for (int32_t i = 0; i < s->n_objects && !k->m->b.failed; i++) {
        const members *x = &s->object[i];
        if (!is_inside(x->in, left->of)) continue;
        if (x->rest.v || (x->named && name && find_member(k->m, x->named, *name))) return true;
        for (size_t p = 0; x->patterns && p < x->patterns->n; p++) {
            int32_t bit = add_pattern(k, x->patterns->member[p].key, x->patterns_at);
            if (bit >= 0 && set >> bit & 1) return true;
        }
    }
    return is_covered(s, left);
}

/* The schemas that apply to one property. */
typedef struct {
    spot        at[MAX_PARTS * 2 + MAX_LEFT];
    int32_t     n;
    const path *path;
} speakers;

static bool put_speaker(maker *m, speakers *all, spot p)
{
    if (all->n == (int32_t)COUNT(all->at))
        return refuse(m, all->path, NULL, "more than %zu schemas apply to one property", COUNT(all->at));
    all->at[all->n++] = p;
    return true;
}

/* Adds the schemas of one object: by the property's name, by the patterns that it matches, or else the rest's. */
static bool put_speakers(keys *k, const members *x, const str *name, unsigned set, speakers *all)
{
    maker            *m     = k->m;
    const json_value *v     = x->named && name ? find_member(m, x->named, *name) : NULL;
    bool              named = v != NULL;
    if (v && !put_speaker(m, all, (spot){v, path_down(m, x->named_at, *name)})) return false;
    for (size_t p = 0; x->patterns && p < x->patterns->n; p++) {
        int32_t bit = add_pattern(k, x->patterns->member[p].key, x->patterns_at);
        if (bit < 0 || !(set >> bit & 1)) continue;
        spot at = {&x->patterns->member[p].value, path_down(m, x->patterns_at, k->pattern[bit])};
        named   = true;
        if (!put_speaker(m, all, at)) return false;
    }
    return named || !x->rest.v || put_speaker(m, all, x->rest);
}

/* Writes the value of the member with this name, or, without a name, of members that match these patterns. Returns
 * NULL when nothing fits. */
static node *write_property(keys *k, const shape *s, const str *name, unsigned set, const path *at)
{
    maker   *m   = k->m;
    speakers all = {.path = at};
    for (int32_t i = 0; i < s->n_objects && !m->b.failed; i++)
        if (!builder_spend(&m->b, 2) || !put_speakers(k, &s->object[i], name, set, &all)) return NULL;
    for (int32_t i = 0; i < s->n_left; i++)
        if (!s->leftover_of[i].array && !is_evaluated(k, s, &s->leftover_of[i], name, set) &&
            !put_speaker(m, &all, s->leftover_of[i].rest))
            return NULL;
    m->level++;
    node *out = write_spots(m, all.at, all.n, at);
    m->level--;
    return out;
}

static void add_property(chain *c, str name, bool required)
{
    uint32_t at = (uint32_t)str_hash(name);
    builder_spend(&c->m->b, 4 + name.n / 8);
    for (; c->table[at &= c->table_mask]; at++) {
        property *p = &c->prop[c->table[at] - 1];
        if (!str_eq(p->name, name)) continue;
        p->required |= required;
        return;
    }
    c->prop[c->n++] = (property){.name = name, .required = required};
    c->table[at]    = c->n;
}

static int by_lower_name(const void *pa, const void *pb)
{
    str    a = ((const property *)pa)->name, b = ((const property *)pb)->name;
    size_t n = a.n < b.n ? a.n : b.n;
    for (size_t i = 0; i < n; i++) {
        int x = (uint8_t)a.s[i], y = (uint8_t)b.s[i];
        if (x >= 'A' && x <= 'Z') x += 32;
        if (y >= 'A' && y <= 'Z') y += 32;
        if (x != y) return x - y;
    }
    return a.n < b.n ? -1 : a.n > b.n;
}

/* Returns false for a name with a brace, which a reader of calls takes for the end of the name or of the arguments. */
bool is_callable(str name) { return name.n && !memchr(name.s, '{', name.n) && !memchr(name.s, '}', name.n); }

static bool check_call_keys(const chain *c)
{
    for (int32_t i = 0; i < c->n; i++) {
        str name = c->prop[i].name;
        if (!is_callable(name) || memchr(name.s, ':', name.n))
            return refuse(c->m, c->at, "properties", "the key '%.*s' cannot be used in a call", STR_ARG(name));
    }
    return true;
}

/* Returns the enum of a propertyNames, whose names become properties as if they were listed; NULL: it has none. */
static const json_value *listed_names(const shape *s, int32_t i)
{
    const json_value *list = json_get(s->names[i].v, "enum");
    return list && list->kind == JSON_ARRAY ? list : NULL;
}

/* Lists the named properties and writes their values. Returns false when none can be right, or the maker failed. */
static bool list_properties(chain *c, const shape *s)
{
    maker *m = c->m;
    keys  *k = &c->keys;
    for (int32_t i = 0; i < s->n_objects; i++)
        for (size_t n = 0; s->object[i].named && n < s->object[i].named->n; n++)
            add_property(c, s->object[i].named->member[n].key, false);
    for (int32_t i = 0; i < s->n_required; i++)
        for (size_t n = 0; n < s->required[i].v->n; n++) add_property(c, s->required[i].v->item[n].s, true);
    for (int32_t i = 0; i < s->n_outside; i++)
        for (size_t n = 0; n < s->outside[i].v->n; n++) add_property(c, s->outside[i].v->member[n].key, false);
    for (int32_t i = 0; i < s->n_names; i++) {
        const json_value *list = listed_names(s, i);
        for (size_t n = 0; list && n < list->n; n++)
            if (list->item[n].kind == JSON_STRING) add_property(c, list->item[n].s, false);
    }
    if (m->call && !check_call_keys(c)) return false;
    if (m->call && builder_spend_sort(&m->b, (size_t)c->n, 16 * (size_t)c->n))
        qsort(c->prop, (size_t)c->n, sizeof *c->prop, by_lower_name);
    for (int32_t i = 0; i < c->n; i++) {
        property *p = &c->prop[i];
        if (!s->n_names || term_has(&k->re, k->names, p->name))
            p->value = write_property(k, s, &p->name, matches(k, p->name), c->at);
        if (m->b.failed || (p->required && !p->value)) return false;
    }
    return true;
}

static bool put_other(chain *c, node_vec *v, node *key, node *value)
{
    int32_t r = builder_rule(&c->m->b, (str){0});
    builder_define(&c->m->b, r, key);
    node_vec_put(&c->m->b, v, node_seq(&c->m->b, node_rule(&c->m->b, r), value));
    return !c->m->b.failed;
}

/* Writes the other keys, for each set of patterns that they may match at once. */
static bool find_patterned(chain *c, const shape *s, node_vec *v)
{
    maker   *m    = c->m;
    keys    *k    = &c->keys;
    regular *r    = &k->re;
    term   **word = arena_try(&m->b.mem, (size_t)c->n + 1, sizeof(term *));
    if (!word) return builder_full(&m->b);
    for (int32_t i = 0; i < c->n; i++) word[i] = term_word(r, c->prop[i].name);
    term *free = term_and(r, k->names, term_not(r, term_any_of(r, word, c->n)));
    for (unsigned set = 0; set < 1u << k->n && !m->b.failed; set++) {
        term *x = free;
        for (int32_t i = 0; i < k->n; i++) x = term_and(r, x, set >> i & 1 ? k->term[i] : term_not(r, k->term[i]));
        node *value = x == r->none ? NULL : write_property(k, s, NULL, set, c->at);
        node *key   = value ? make_key(m, r, x, c->at) : NULL;
        if (key && !put_other(c, v, key, value)) return false;
    }
    return !m->b.failed;
}

static bool find_plain(chain *c, const shape *s, node_vec *v)
{
    maker *m     = c->m;
    node  *value = write_property(&c->keys, s, NULL, 0, c->at);
    if (m->b.failed) return false;
    if (!value) return true;
    str *name = arena_try(&m->b.mem, (size_t)c->n + 1, sizeof *name);
    if (!name) return builder_full(&m->b);
    for (int32_t i = 0; i < c->n; i++) name[i] = c->prop[i].name;
    return put_other(c, v, make_other_name(m, name, (size_t)c->n), value);
}

static bool find_other(chain *c, const shape *s)
{
    node_vec v  = {0};
    bool     ok = c->keys.n || s->n_names ? find_patterned(c, s, &v) : find_plain(c, s, &v);
    if (v.n) c->other = node_list(&c->m->b, NODE_ALT, v.p, v.n);
    return ok && !c->m->b.failed;
}

/* Returns the place of rule (i, count, met): the properties from i on and the closing brace, when count properties
 * were written and those of the `outside` lists in the set were met. */
static int32_t *rest_slot(chain *c, int32_t i, int32_t count, unsigned met)
{
    size_t column = ((size_t)min_int(count, c->cap) << c->n_outside) + met;
    return &c->rule[(size_t)i * ((size_t)(c->cap + 1) << c->n_outside) + column];
}

static node *rest_of(chain *c, int32_t i, int32_t count, unsigned met)
{
    int32_t *slot = rest_slot(c, i, count, met);
    if (*slot < 0) *slot = builder_rule(&c->m->b, (str){0});
    return node_rule(&c->m->b, *slot);
}

/* Returns the `outside` lists that a property of this name is not in, as bits. */
static unsigned meets(const chain *c, str name)
{
    unsigned set = 0;
    for (int32_t i = 0; i < c->n_outside; i++) set |= (unsigned)!find_member(c->m, c->outside[i].v, name) << i;
    return set;
}

static void write_rest(chain *c, int32_t i, int32_t count, unsigned met)
{
    builder *b     = &c->m->b;
    node_vec v     = {0};
    node    *comma = count ? make_comma(c->m) : node_empty(b);
    bool     room  = c->max < 0 || count < c->max;
    unsigned all   = (1u << c->n_outside) - 1;
    if (i < c->n) {
        property *p = &c->prop[i];
        if (room && p->value)
            node_vec_put(b, &v,
                         node_seq(b, comma, make_name(c->m, p->name), p->value,
                                  rest_of(c, i + 1, count + 1, met | meets(c, p->name))));
        if (!p->required) node_vec_put(b, &v, rest_of(c, i + 1, count, met));
    } else {
        if (room && c->other) node_vec_put(b, &v, node_seq(b, comma, c->other, rest_of(c, i, count + 1, all)));
        if (count >= c->min && met == all) node_vec_put(b, &v, node_puts(b, "}"));
    }
    rest_of(c, i, count, met);
    builder_define(b, *rest_slot(c, i, count, met), node_list(b, NODE_ALT, v.p, v.n));
}

static node *write_chain(chain *c)
{
    builder *b       = &c->m->b;
    size_t   n_rules = (size_t)(c->n + 1) * ((size_t)(c->cap + 1) << c->n_outside);
    unsigned n_sets  = 1u << c->n_outside;
    if (n_rules > MAX_CHAIN) {
        refuse_too_large(c->m, c->at, "an object has too many properties for its minProperties or maxProperties");
        return NULL;
    }
    c->rule = mem_try_n(n_rules, sizeof *c->rule);
    if (!c->rule) {
        builder_fail(b, ERR_UNAVAILABLE, "no memory for a schema");
        return NULL;
    }
    for (size_t i = 0; i < n_rules; i++) c->rule[i] = -1;
    node *first = rest_of(c, 0, 0, 0);
    for (int32_t i = 0; i <= c->n && !b->failed; i++)
        for (int32_t count = 0; count <= c->cap && !b->failed; count++)
            for (unsigned met = 0; met < n_sets; met++)
                if (*rest_slot(c, i, count, met) >= 0 || i == c->n) write_rest(c, i, count, met);
    mem_free(c->rule);
    return node_seq(b, node_puts(b, "{"), first);
}

static bool take_properties(chain *c, size_t n)
{
    builder *b   = &c->m->b;
    uint32_t cap = 16;
    while (cap < 2 * n) cap *= 2;
    c->table_mask = cap - 1;
    if (!builder_spend(b, n)) return false;
    c->prop  = arena_try(&b->mem, n, sizeof *c->prop);
    c->table = arena_try(&b->mem, cap, sizeof *c->table);
    return (c->prop && c->table) || builder_full(b);
}

static bool has_patterns(const shape *s)
{
    bool any = s->n_names > 0;
    for (int32_t i = 0; i < s->n_objects; i++) any |= s->object[i].patterns != NULL;
    return any;
}

node *write_object(maker *m, const shape *s, const path *at)
{
    chain c = {
        .m = m, .at = at, .min = s->min_props, .max = s->max_props, .outside = s->outside, .n_outside = s->n_outside};
    if (!s->n_objects && !s->n_required && !s->n_names && !s->n_left && !s->n_outside && !s->min_props &&
        s->max_props < 0)
        return any_members(m, any_value(m));
    size_t n_names = 1;
    for (int32_t i = 0; i < s->n_objects; i++) n_names += s->object[i].named ? s->object[i].named->n : 0;
    for (int32_t i = 0; i < s->n_required; i++) n_names += s->required[i].v->n;
    for (int32_t i = 0; i < s->n_outside; i++) n_names += s->outside[i].v->n;
    for (int32_t i = 0; i < s->n_names; i++) n_names += listed_names(s, i) ? listed_names(s, i)->n : 0;
    if (n_names > MAX_NAMES) return refuse_too_large(m, at, "an object has too many properties"), NULL;
    c.keys = (keys){.m = m};
    if (has_patterns(s)) {
        regular_init(&c.keys.re, &m->b);
        c.keys.names = c.keys.re.all;
    }
    if (!read_patterns(&c.keys, s) || !read_names(&c.keys, s)) return NULL;
    if (!take_properties(&c, n_names) || !list_properties(&c, s) || !find_other(&c, s)) return NULL;
    int32_t n_required = 0, n_possible = 0;
    for (int32_t i = 0; i < c.n; i++) n_required += c.prop[i].required, n_possible += c.prop[i].value != NULL;
    if (c.min <= n_required) c.min = 0;
    if (c.max >= 0 && (c.max < c.min || c.max < n_required)) return NULL;
    if (c.min > n_possible && !c.other) return NULL;
    /* Two other keys may be the same word, which a reader counts once. */
    if (c.min > 1 && c.other)
        return refuse(m, s->min_props_at.at, "minProperties", "cannot be enforced where other properties are allowed"),
               NULL;
    c.cap = max_int(1, max_int(c.min, c.max));
    return write_chain(&c);
}
