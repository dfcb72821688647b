/* Lookups in a schema's document by hash: members of objects by name, constants among the values of an enum.
 *
 * The first lookup in an object or a list of more than a few builds its table, which later ones share: a document of
 * n bytes is searched n times in the time of reading it a few times, whatever it looks like. */
#include "grammar/schema.h"

enum { FEW = 8 }; /* are compared one by one */

struct lookup {
    const json_value *of;   /* an object, or an array of constants */
    uint32_t          mask; /* slots - 1 */
    int32_t          *slot; /* index of a member or an item + 1, 0: free */
};

static uint64_t number_hash(double d)
{
    uint64_t bits;
    if (d == 0) d = 0; /* -0 too */
    memcpy(&bits, &d, sizeof bits);
    return hash_mix(bits ^ bits >> 32, 1);
}

/* Equal for values that same_value says are equal: whole and real numbers, and the order of members, do not matter. */
static uint64_t value_hash(maker *m, const json_value *v)
{
    uint64_t h = hash_mix((uint64_t)v->kind, v->n);
    builder_spend(&m->b, 4 + v->s.n / 16);
    switch (v->kind) {
    case JSON_INT:
    case JSON_REAL: return number_hash(v->d);
    case JSON_BOOL: return hash_mix(h, v->b);
    case JSON_STRING: return hash_mix(h, str_hash(v->s));
    case JSON_ARRAY:
        for (size_t i = 0; i < v->n; i++) h = hash_mix(h, value_hash(m, &v->item[i]));
        return h;
    case JSON_OBJECT:
        for (size_t i = 0; i < v->n; i++) h += hash_mix(str_hash(v->member[i].key), value_hash(m, &v->member[i].value));
        return h;
    default: return h;
    }
}

static uint64_t entry_hash(maker *m, const json_value *of, size_t i)
{
    return of->kind == JSON_OBJECT ? str_hash(of->member[i].key) : value_hash(m, &of->item[i]);
}

static bool fill_lookup(maker *m, lookup *x, const json_value *of)
{
    uint32_t cap = 16;
    while (cap < 2 * of->n) cap *= 2;
    if (!builder_spend(&m->b, 6 * of->n)) return false;
    *x = (lookup){of, cap - 1, arena_try(&m->b.mem, cap, sizeof *x->slot)};
    if (!x->slot) return builder_full(&m->b);
    for (size_t i = 0; i < of->n; i++) {
        uint32_t at = (uint32_t)entry_hash(m, of, i) & x->mask;
        while (x->slot[at]) at = (at + 1) & x->mask;
        x->slot[at] = (int32_t)i + 1;
    }
    return !m->b.failed;
}

static lookup *lookup_slot(lookup *all, uint32_t cap, const json_value *of)
{
    uint32_t at = (uint32_t)hash_mix((uintptr_t)of, 0) & (cap - 1);
    while (all[at].of && all[at].of != of) at = (at + 1) & (cap - 1);
    return &all[at];
}

static bool grow_lookups(maker *m)
{
    uint32_t cap = m->lookup_cap ? m->lookup_cap * 2 : 64;
    lookup  *all = arena_try(&m->b.mem, cap, sizeof *all);
    if (!all || !builder_spend(&m->b, cap)) return builder_full(&m->b);
    for (uint32_t i = 0; i < m->lookup_cap; i++)
        if (m->lookups[i].of) *lookup_slot(all, cap, m->lookups[i].of) = m->lookups[i];
    m->lookups    = all;
    m->lookup_cap = cap;
    return true;
}

/* The table of an object or a list, made when it is first asked for; NULL: the maker failed. */
static const lookup *lookup_of(maker *m, const json_value *of)
{
    if (2 * m->n_lookups >= m->lookup_cap && !grow_lookups(m)) return NULL;
    lookup *x = lookup_slot(m->lookups, m->lookup_cap, of);
    if (x->of) return x;
    if (!fill_lookup(m, x, of)) {
        *x = (lookup){0};
        return NULL;
    }
    m->n_lookups++;
    return x;
}

static const json_value *named_member(maker *m, const json_value *v, str key)
{
    builder_spend(&m->b, 2 + key.n / 16);
    if (v->n <= FEW) {
        for (size_t i = 0; i < v->n; i++)
            if (str_eq(v->member[i].key, key)) return &v->member[i].value;
        return NULL;
    }
    const lookup *x = lookup_of(m, v);
    for (uint32_t at = (uint32_t)str_hash(key); x && x->slot[at &= x->mask]; at++)
        if (str_eq(v->member[x->slot[at] - 1].key, key)) return &v->member[x->slot[at] - 1].value;
    return NULL;
}

const json_value *find_member(maker *m, const json_value *v, str key)
{
    int64_t index;
    if (v->kind == JSON_OBJECT) return named_member(m, v, key);
    if (v->kind == JSON_ARRAY && str_to_i64(key, &index) && index >= 0 && (size_t)index < v->n) return &v->item[index];
    return NULL;
}

bool same_value(maker *m, const json_value *a, const json_value *b)
{
    bool numbers = (a->kind == JSON_INT || a->kind == JSON_REAL) && (b->kind == JSON_INT || b->kind == JSON_REAL);
    builder_spend(&m->b, 2 + a->s.n / 16);
    if (numbers) return a->kind == b->kind && a->kind == JSON_INT ? a->i == b->i : a->d == b->d;
    if (a->kind != b->kind || a->n != b->n) return false;
    if (a->kind == JSON_BOOL) return a->b == b->b;
    if (a->kind == JSON_STRING) return str_eq(a->s, b->s);
    for (size_t i = 0; i < a->n; i++) {
        const json_value *x = a->kind == JSON_ARRAY ? &a->item[i] : &a->member[i].value, *y;
        y                   = a->kind == JSON_ARRAY ? &b->item[i] : find_member(m, b, a->member[i].key);
        if (!y || !same_value(m, x, y)) return false;
    }
    return true;
}

bool is_listed(maker *m, spot list, const json_value *v)
{
    const json_value *all = list.v;
    if (!str_is(list.at->key, "enum")) return same_value(m, all, v);
    if (all->n <= FEW) {
        for (size_t i = 0; i < all->n; i++)
            if (same_value(m, &all->item[i], v)) return true;
        return false;
    }
    const lookup *x = lookup_of(m, all);
    for (uint32_t at = x ? (uint32_t)value_hash(m, v) : 0; x && x->slot[at &= x->mask]; at++)
        if (same_value(m, &all->item[x->slot[at] - 1], v)) return true;
    return false;
}

bool are_different(maker *m, const json_value *list)
{
    const lookup *x = lookup_of(m, list);
    for (size_t i = 0; x && i < list->n; i++)
        for (uint32_t at = (uint32_t)value_hash(m, &list->item[i]); x->slot[at &= x->mask]; at++) {
            size_t k = (size_t)x->slot[at] - 1;
            if (m->b.failed || (k != i && same_value(m, &list->item[k], &list->item[i]))) return false;
        }
    return x != NULL;
}
