/* Schemas in terms of others: not, if, dependent*, and which alternatives of a oneOf exclude one another.
 *
 * A schema is negated one level deep: it fails where one of its keywords does, so its negation is a list of
 * alternatives, one or more for each keyword, in which `not` stands before the schemas inside. A keyword fails only
 * for values of its type:
 *
 *      not {"minimum": 5}                  {"type": "number", "exclusiveMaximum": 5}
 *      not {"required": ["a", "b"]}        {"type": "object", "properties": {"a": false}} or the same with b
 *      not {"properties": {"a": X}}        {"type": "object", "required": ["a"], "properties": {"a": {"not": X}}}
 *
 * What is made of a schema is made once, so that references that go round in circles come back to a known schema. */
#include "base/mem.h"
#include "grammar/schema.h"

#include <math.h>

typedef enum { MADE_NOT, MADE_NEGATION, MADE_IF, MADE_DEPENDENCY, MADE_EITHER } made_kind;

struct made {
    const void       *of, *also; /* NULL: a free slot; of one alone */
    made_kind         kind;
    const json_value *v;
};

/* --- what was made before ---------------------------------------------------------------------- */
static made *made_slot(made *all, uint32_t cap, const made *x)
{
    uint32_t at = (uint32_t)hash_mix(hash_mix((uintptr_t)x->of, (uintptr_t)x->also), (uint64_t)x->kind);
    while (all[at &= cap - 1].of && (all[at].of != x->of || all[at].also != x->also || all[at].kind != x->kind)) at++;
    return &all[at];
}

/* Returns the slot of what is made of `of`; NULL: the maker failed. Its value is NULL until it is made. */
static made *find_made_of(maker *m, const void *of, const void *also, made_kind kind)
{
    made key = {.of = of, .also = also, .kind = kind};
    if (2 * m->n_made >= m->made_cap) {
        uint32_t cap = m->made_cap ? m->made_cap * 2 : 64;
        made    *all = builder_spend(&m->b, cap) ? arena_try(&m->b.mem, cap, sizeof *all) : NULL;
        if (!all) return builder_full(&m->b), NULL;
        for (uint32_t i = 0; i < m->made_cap; i++)
            if (m->made[i].of) *made_slot(all, cap, &m->made[i]) = m->made[i];
        m->made     = all;
        m->made_cap = cap;
    }
    made *x = made_slot(m->made, m->made_cap, &key);
    if (!x->of) {
        *x = key;
        m->n_made++;
    }
    return builder_spend(&m->b, 2) ? x : NULL;
}

static made *find_made(maker *m, const void *of, made_kind kind) { return find_made_of(m, of, NULL, kind); }

/* Returns the member, and counts the search for it: a schema may have any number of members. */
static const json_value *get(maker *m, const json_value *v, const char *key)
{
    builder_spend(&m->b, 1 + v->n / 4);
    return json_get(v, key);
}

/* --- making schemas ---------------------------------------------------------------------------- */
static const json_value never = {.kind = JSON_BOOL, .b = false};

static json_value word(const char *s) { return json_of_text(str_of(s)); }

/* Makes an object of up to three members; those without a key are left out. */
static json_value object(maker *m, json_member a, json_member b, json_member c)
{
    json_member *p = schema_take(m, 3, sizeof *p);
    json_value   v = {.kind = JSON_OBJECT, .member = p};
    if (!p) return never;
    if (a.key.s) p[v.n++] = a;
    if (b.key.s) p[v.n++] = b;
    if (c.key.s) p[v.n++] = c;
    return v;
}

static json_value object1(maker *m, str key, json_value x)
{
    return object(m, (json_member){key, x}, (json_member){{0}, {0}}, (json_member){{0}, {0}});
}

static json_value array(maker *m, const json_value *x, size_t n)
{
    json_value *p = schema_take(m, n, sizeof *p);
    if (!p) return never;
    if (n) memcpy(p, x, n * sizeof *p);
    return (json_value){.kind = JSON_ARRAY, .n = n, .item = p};
}

static json_value typed(maker *m, const char *type, const char *key, json_value x)
{
    return object(m, (json_member){STR("type"), word(type)}, (json_member){str_of(key), x}, (json_member){{0}, {0}});
}

/* {"type": "object", "properties": {name: x}}, with required where it must be there. */
static json_value with_property(maker *m, str name, json_value x, bool required)
{
    json_value list = array(m, (json_value[]){json_of_text(name)}, 1);
    return object(m, (json_member){STR("type"), word("object")}, (json_member){STR("properties"), object1(m, name, x)},
                  required ? (json_member){STR("required"), list} : (json_member){{0}, {0}});
}

const json_value *wrap_not(maker *m, const json_value *v)
{
    made *x = find_made(m, v, MADE_NOT);
    if (!x) return NULL;
    if (!x->v) {
        json_value *out = schema_take(m, 1, sizeof *out);
        if (!out) return NULL;
        *out = object1(m, STR("not"), *v);
        x    = find_made(m, v, MADE_NOT);
        if (!x || m->b.failed) return NULL;
        x->v = out;
    }
    return x->v;
}

static json_value not_of(maker *m, const json_value *v)
{
    const json_value *x = wrap_not(m, v);
    return x ? *x : never;
}

/* --- negation ---------------------------------------------------------------------------------- */
typedef struct {
    maker      *m;
    const path *at;
    json_value *item;
    size_t      n, cap;
} alternatives;

static void add_alternative(alternatives *l, json_value v)
{
    if (l->n == l->cap) {
        size_t      cap = l->cap ? l->cap * 2 : 8;
        json_value *p   = schema_take(l->m, cap, sizeof *p);
        if (!p) return;
        if (l->n) memcpy(p, l->item, l->n * sizeof *p);
        l->item = p;
        l->cap  = cap;
    }
    l->item[l->n++] = v;
}

/* Adds the types that a `type` does not allow. Without integers there are no numbers at all. */
static bool negate_type(alternatives *l, const json_value *type, bool nullable)
{
    static const char *const name[] = {"null", "boolean", "number", "string", "array", "object"};
    json_value               out[COUNT(name)];
    size_t                   n = 0;
    for (size_t i = 0; i < COUNT(name); i++) {
        bool   allowed = nullable && !i;
        size_t count   = type->kind == JSON_ARRAY ? type->n : 1;
        for (size_t k = 0; k < count; k++) {
            const json_value *t = type->kind == JSON_ARRAY ? &type->item[k] : type;
            if (t->kind != JSON_STRING) return refuse(l->m, l->at, "type", "is no type");
            allowed = allowed || str_is(t->s, name[i]) || (i == 2 && str_is(t->s, "integer"));
        }
        builder_spend(&l->m->b, count);
        if (!allowed) out[n++] = word(name[i]);
    }
    if (n) add_alternative(l, object1(l->m, STR("type"), array(l->m, out, n)));
    return true;
}

/* Adds the way in which a smallest or largest count fails. */
static bool negate_count(alternatives *l, str key, const json_value *v)
{
    static const char *const pair[][3] = {{"minLength", "maxLength", "string"},
                                          {"minItems", "maxItems", "array"},
                                          {"minProperties", "maxProperties", "object"}};
    double                   n         = v->d;
    if ((v->kind != JSON_INT && v->kind != JSON_REAL) || n < 0 || n != floor(n))
        return refuse(l->m, path_down(l->m, l->at, key), NULL, "is not a non-negative integer");
    if (n >= MAX_COUNT) n = MAX_COUNT - 1;
    for (size_t i = 0; i < COUNT(pair); i++) {
        if (str_is(key, pair[i][0]) && n > 0)
            add_alternative(l, typed(l->m, pair[i][2], pair[i][1], json_of_int((int64_t)n - 1)));
        if (str_is(key, pair[i][1]))
            add_alternative(l, typed(l->m, pair[i][2], pair[i][0], json_of_int((int64_t)n + 1)));
    }
    return true;
}

static bool negate_bound(alternatives *l, str key, const json_value *v)
{
    static const char *const pair[][2] = {{"minimum", "exclusiveMaximum"},
                                          {"maximum", "exclusiveMinimum"},
                                          {"exclusiveMinimum", "maximum"},
                                          {"exclusiveMaximum", "minimum"}};
    if (v->kind == JSON_BOOL) return refuse(l->m, path_down(l->m, l->at, key), NULL, "cannot be enforced inside a not");
    for (size_t i = 0; i < COUNT(pair); i++)
        if (str_is(key, pair[i][0])) add_alternative(l, typed(l->m, "number", pair[i][1], *v));
    return true;
}

static bool negate_properties(alternatives *l, const json_value *v)
{
    for (size_t i = 0; v->kind == JSON_OBJECT && i < v->n; i++)
        add_alternative(l, with_property(l->m, v->member[i].key, not_of(l->m, &v->member[i].value), true));
    return true;
}

/* Adds objects with a property that a closed object does not name. */
static bool negate_closed(alternatives *l, const json_value *schema)
{
    const json_value *own  = get(l->m, schema, "properties");
    json_value        none = {.kind = JSON_OBJECT};
    json_value        x    = typed(l->m, "object", "", own && own->kind == JSON_OBJECT ? *own : none);
    if (l->m->b.failed) return false;
    x.member[1].key = KEY_OUTSIDE;
    add_alternative(l, x);
    return true;
}

static bool negate_required(alternatives *l, const json_value *v)
{
    for (size_t i = 0; v->kind == JSON_ARRAY && i < v->n; i++)
        if (v->item[i].kind == JSON_STRING) add_alternative(l, with_property(l->m, v->item[i].s, never, false));
    return true;
}

/* Adds arrays with an item that does not fit. */
static bool negate_items(alternatives *l, str key, const json_value *v, const json_value *schema)
{
    maker            *m      = l->m;
    const json_value *prefix = get(m, schema, "prefixItems");
    if (v->kind == JSON_ARRAY) { /* prefixItems */
        for (size_t i = 0; i < v->n; i++) {
            json_value *first = schema_take(m, i + 1, sizeof *first);
            if (!first) return false;
            for (size_t k = 0; k < i; k++) first[k] = json_of_bool(true);
            first[i] = not_of(m, &v->item[i]);
            add_alternative(l,
                            object(m, (json_member){STR("type"), word("array")},
                                   (json_member){STR("prefixItems"), {.kind = JSON_ARRAY, .n = i + 1, .item = first}},
                                   (json_member){STR("minItems"), json_of_int((int64_t)i + 1)}));
        }
        return true;
    }
    if (v->kind == JSON_BOOL && v->b) return true;
    if (v->kind == JSON_BOOL)
        return add_alternative(l, typed(m, "array", "minItems", json_of_int(prefix ? (int64_t)prefix->n + 1 : 1))),
               true;
    if (prefix) return refuse(m, path_down(m, l->at, key), NULL, "cannot be enforced with prefixItems inside a not");
    add_alternative(l, typed(m, "array", "contains", not_of(m, v)));
    return true;
}

static bool negate_contains(alternatives *l, const json_value *v, const json_value *schema)
{
    maker            *m   = l->m;
    const json_value *min = get(m, schema, "minContains"), *max = get(m, schema, "maxContains");
    if (max || (min && min->d != 1)) return refuse(m, l->at, "contains", "cannot be enforced with counts inside a not");
    add_alternative(l, typed(m, "array", "items", not_of(m, v)));
    return true;
}

/* Adds that none of them fits, or that two of a oneOf do. */
static bool negate_choice(alternatives *l, str key, const json_value *v)
{
    enum { MAX_PAIRED = 8 };
    maker      *m   = l->m;
    json_value *all = schema_take(m, v->n, sizeof *all);
    if (!all || v->kind != JSON_ARRAY) return refuse(m, path_down(m, l->at, key), NULL, "is not an array of schemas");
    for (size_t i = 0; i < v->n; i++) all[i] = not_of(m, &v->item[i]);
    add_alternative(l, object1(m, STR("allOf"), (json_value){.kind = JSON_ARRAY, .n = v->n, .item = all}));
    if (str_is(key, "anyOf") || v->n > MAX_PAIRED) return true;
    for (size_t i = 0; i < v->n; i++)
        for (size_t k = i + 1; k < v->n; k++)
            add_alternative(l, object1(m, STR("allOf"), array(m, (json_value[]){v->item[i], v->item[k]}, 2)));
    return true;
}

static bool negate_if(alternatives *l, const json_value *schema)
{
    maker            *m = l->m;
    const json_value *c = get(m, schema, "if"), *t = get(m, schema, "then"), *e = get(m, schema, "else");
    if (t) add_alternative(l, object1(m, STR("allOf"), array(m, (json_value[]){*c, not_of(m, t)}, 2)));
    if (e) add_alternative(l, object1(m, STR("allOf"), array(m, (json_value[]){not_of(m, c), not_of(m, e)}, 2)));
    return true;
}

static bool negate_dependencies(alternatives *l, const json_value *v)
{
    maker *m = l->m;
    for (size_t i = 0; v->kind == JSON_OBJECT && i < v->n; i++) {
        const json_member *d  = &v->member[i];
        json_value         on = with_property(m, d->key, json_of_bool(true), true);
        if (d->value.kind != JSON_ARRAY) {
            add_alternative(l, object1(m, STR("allOf"), array(m, (json_value[]){on, not_of(m, &d->value)}, 2)));
            continue;
        }
        for (size_t k = 0; k < d->value.n; k++)
            add_alternative(
                l, object1(m, STR("allOf"),
                           array(m, (json_value[]){on, with_property(m, d->value.item[k].s, never, false)}, 2)));
    }
    return true;
}

static bool negate_values(alternatives *l, str key, const json_value *v)
{
    json_value all = *v;
    if (str_is(key, "const")) all = array(l->m, v, 1);
    if (all.kind != JSON_ARRAY) return refuse(l->m, l->at, "enum", "is not an array");
    add_alternative(l, object1(l->m, KEY_EXCEPT, all));
    return true;
}

static bool is_in(str key, const char *const *names)
{
    for (; *names; names++)
        if (str_is(key, *names)) return true;
    return false;
}

/* Adds the ways in which one keyword fails. */
static bool negate_keyword(alternatives *l, str key, const json_value *v, const json_value *schema)
{
    static const char *const counts[]     = {"minLength",     "maxLength",     "minItems", "maxItems",
                                             "minProperties", "maxProperties", NULL};
    static const char *const bound[]      = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", NULL};
    static const char *const never_fail[] = {"format", "then", "else", "minContains", "maxContains", NULL};
    maker                   *m            = l->m;
    spot                     to;
    if (is_in(key, never_fail)) return true; /* or are read with another one */
    if (is_in(key, counts)) return negate_count(l, key, v);
    if (is_in(key, bound)) return negate_bound(l, key, v);
    if (str_is(key, "const") || str_is(key, "enum")) return negate_values(l, key, v);
    if (str_is(key, "pattern"))
        return add_alternative(l, typed(m, "string", "", *v)), l->item[l->n - 1].member[1].key = KEY_WITHOUT, true;
    if (str_is(key, "properties")) return negate_properties(l, v);
    if (str_is(key, "required")) return negate_required(l, v);
    if (str_is(key, "items") || str_is(key, "prefixItems")) return negate_items(l, key, v, schema);
    if (str_is(key, "contains")) return negate_contains(l, v, schema);
    if (str_is(key, "anyOf") || str_is(key, "oneOf")) return negate_choice(l, key, v);
    if (str_is(key, "not")) return add_alternative(l, *v), true;
    if (str_is(key, "if")) return negate_if(l, schema);
    if (str_starts(key, "depend")) return negate_dependencies(l, v);
    if (str_is(key, "allOf") && v->kind == JSON_ARRAY) {
        for (size_t i = 0; i < v->n; i++) add_alternative(l, not_of(m, &v->item[i]));
        return true;
    }
    if (str_is(key, "$ref") || str_is(key, "$dynamicRef")) {
        if (!find_ref(m, v, l->at, str_is(key, "$dynamicRef"), &to)) return false;
        return add_alternative(l, not_of(m, to.v)), true;
    }
    bool closed = v->kind == JSON_BOOL && !v->b && str_is(key, "additionalProperties");
    if (closed && !get(m, schema, "patternProperties")) return negate_closed(l, schema);
    bool harmless = v->kind == JSON_BOOL && (str_is(key, "uniqueItems") ? !v->b : v->b);
    if (harmless && (str_is(key, "uniqueItems") || str_is(key, "additionalProperties") || str_is(key, "propertyNames")))
        return true;
    if (str_is(key, "patternProperties") && v->kind == JSON_OBJECT && !v->n) return true;
    if (str_is(key, "additionalProperties") && v->kind == JSON_OBJECT && !v->n) return true;
    return refuse(m, path_down(m, l->at, key), NULL,
                  "cannot be enforced inside not or if, or in a oneOf whose alternatives do not differ by a type, a "
                  "constant or a required key");
}

const json_value *negate(maker *m, spot p)
{
    alternatives l = {.m = m, .at = p.at};
    if (p.v->kind != JSON_BOOL && p.v->kind != JSON_OBJECT) return refuse(m, p.at, NULL, "is not a schema"), NULL;
    made *x = find_made(m, p.v, MADE_NEGATION);
    if (!x || x->v) return x ? x->v : NULL;
    if (!builder_spend(&m->b, 8 * p.v->n)) return NULL;
    if (p.v->kind == JSON_BOOL && !p.v->b) add_alternative(&l, json_of_bool(true));
    const json_value *type = get(m, p.v, "type"), *nullable = get(m, p.v, "nullable");
    bool              ref_alone = p.v->kind == JSON_OBJECT && json_get(p.v, "$ref") && is_old_draft(m);
    if (type && !ref_alone && !negate_type(&l, type, nullable && nullable->kind == JSON_BOOL && nullable->b))
        return NULL;
    for (size_t i = 0; p.v->kind == JSON_OBJECT && i < p.v->n; i++) {
        str key = p.v->member[i].key;
        if (is_annotation(key) || str_is(key, "type") || (ref_alone && !str_is(key, "$ref"))) continue;
        if (!negate_keyword(&l, key, &p.v->member[i].value, p.v)) return NULL;
    }
    json_value *out = schema_take(m, 1, sizeof *out);
    x               = out ? find_made(m, p.v, MADE_NEGATION) : NULL;
    if (!x || m->b.failed) return NULL;
    *out = (json_value){.kind = JSON_ARRAY, .n = l.n, .item = l.item};
    x->v = out;
    return out;
}

/* --- conditions -------------------------------------------------------------------------------- */
static const json_value *keep_made(maker *m, const void *of, made_kind kind, json_value v)
{
    json_value *out = schema_take(m, 1, sizeof *out);
    made       *x   = out ? find_made(m, of, kind) : NULL;
    if (!x || m->b.failed) return NULL;
    *out = v;
    x->v = out;
    return out;
}

const json_value *either(maker *m, const json_value *a, const json_value *b)
{
    made *x = find_made_of(m, a, b, MADE_EITHER);
    if (!x || x->v) return x ? x->v : NULL;
    json_value *out = schema_take(m, 1, sizeof *out);
    if (!out) return NULL;
    *out = object1(m, STR("anyOf"), array(m, (json_value[]){*a, *b}, 2));
    x    = find_made_of(m, a, b, MADE_EITHER);
    if (!x || m->b.failed) return NULL;
    x->v = out;
    return out;
}

const json_value *expand_if(maker *m, const json_value *schema)
{
    const json_value *c = get(m, schema, "if"), *t = get(m, schema, "then"), *e = get(m, schema, "else");
    made             *x = find_made(m, c, MADE_IF);
    json_value        yes[2], no[2], both[2];
    if (!x || x->v) return x ? x->v : NULL;
    yes[0] = *c;
    no[0]  = not_of(m, c);
    if (t) yes[1] = *t;
    if (e) no[1] = *e;
    both[0] = t ? object1(m, STR("allOf"), array(m, yes, 2)) : yes[0];
    both[1] = e ? object1(m, STR("allOf"), array(m, no, 2)) : no[0];
    return keep_made(m, c, MADE_IF, array(m, both, 2));
}

const json_value *expand_dependency(maker *m, const json_member *d)
{
    made      *x = find_made(m, d, MADE_DEPENDENCY);
    json_value both[2];
    if (!x || x->v) return x ? x->v : NULL;
    both[0] = object1(m, STR("properties"), object1(m, d->key, never));
    /* with the key, so that what the schema says of members counts only where it applies */
    json_value key    = json_of_text(d->key);
    json_value with[] = {typed(m, "object", "required", array(m, &key, 1)), d->value};
    both[1]           = d->value.kind == JSON_ARRAY ? object1(m, STR("required"), d->value)
                                                    : object1(m, STR("allOf"), array(m, with, 2));
    return keep_made(m, d, MADE_DEPENDENCY, array(m, both, 2));
}

/* --- alternatives that exclude one another ----------------------------------------------------- */
static spot follow_reference(maker *m, spot p)
{
    for (int hop = 0; p.v->kind == JSON_OBJECT && hop < MAX_DEEP && !m->b.failed; hop++) {
        const json_value *ref = get(m, p.v, "$ref");
        if (!ref || p.v->n > 1 || !find_ref(m, ref, p.at, false, &p)) break;
    }
    return p;
}

/* Returns the types that a schema may allow. */
static unsigned types_of(maker *m, const json_value *v)
{
    const json_value *type = get(m, v, "type"), *nullable = get(m, v, "nullable");
    unsigned          bits = 0;
    if (!type) return T_ALL;
    builder_spend(&m->b, 4 + type->n);
    for (size_t i = 0; i < (type->kind == JSON_ARRAY ? type->n : 1); i++) {
        const json_value *t   = type->kind == JSON_ARRAY ? &type->item[i] : type;
        unsigned          one = t->kind == JSON_STRING ? type_named(t->s) : 0;
        bits |= one ? one : T_ALL;
    }
    return nullable && nullable->kind == JSON_BOOL && nullable->b ? bits | T_NULL : bits;
}

/* Returns the constants of a schema as a list; not an array: it has none. */
static json_value constants_of(maker *m, const json_value *v)
{
    const json_value *one = get(m, v, "const"), *many = get(m, v, "enum");
    if (one) return (json_value){.kind = JSON_ARRAY, .n = 1, .item = (json_value *)one};
    return many && many->kind == JSON_ARRAY ? *many : (json_value){0};
}

static bool share_no_constant(maker *m, const json_value *a, const json_value *b)
{
    json_value x = constants_of(m, a), y = constants_of(m, b);
    if (x.kind != JSON_ARRAY || y.kind != JSON_ARRAY) return false;
    for (size_t i = 0; i < x.n; i++)
        for (size_t k = 0; k < y.n; k++)
            if (m->b.failed || same_value(m, &x.item[i], &y.item[k])) return false;
    return true;
}

/* Whether the constants of a are all of types that b does not allow. */
static bool constants_miss(maker *m, const json_value *a, unsigned types)
{
    static const unsigned of_kind[] = {
        [JSON_NULL] = T_NULL,     [JSON_BOOL] = T_BOOL,   [JSON_INT] = T_NUMBER,   [JSON_REAL] = T_NUMBER,
        [JSON_STRING] = T_STRING, [JSON_ARRAY] = T_ARRAY, [JSON_OBJECT] = T_OBJECT};
    json_value x = constants_of(m, a);
    if (x.kind != JSON_ARRAY) return false;
    builder_spend(&m->b, x.n);
    for (size_t i = 0; i < x.n; i++)
        if (of_kind[x.item[i].kind] & types) return false;
    return true;
}

static bool requires(maker *m, const json_value *v, str name)
{
    const json_value *list = get(m, v, "required");
    for (size_t i = 0; list && list->kind == JSON_ARRAY && i < list->n && builder_spend(&m->b, 1); i++)
        if (list->item[i].kind == JSON_STRING && str_eq(list->item[i].s, name)) return true;
    return false;
}

static const json_value *property_of(maker *m, const json_value *v, str name)
{
    const json_value *all = get(m, v, "properties");
    return all && all->kind == JSON_OBJECT ? find_member(m, all, name) : NULL;
}

/* Returns whether an object that matches v never has the property. */
static bool forbids(maker *m, const json_value *v, str name)
{
    const json_value *p = property_of(m, v, name), *rest = get(m, v, "additionalProperties");
    if (p) return p->kind == JSON_BOOL && !p->b;
    return rest && rest->kind == JSON_BOOL && !rest->b && !get(m, v, "patternProperties");
}

static bool are_disjoint_at(maker *m, spot a, spot b, int deep);

/* Returns whether no object matches both. */
static bool objects_differ(maker *m, spot a, spot b, int deep)
{
    const json_value *list = get(m, a.v, "required");
    for (size_t i = 0; list && list->kind == JSON_ARRAY && i < list->n && !m->b.failed; i++) {
        if (list->item[i].kind != JSON_STRING) continue;
        str               name = list->item[i].s;
        const json_value *x = property_of(m, a.v, name), *y = property_of(m, b.v, name);
        if (forbids(m, b.v, name)) return true;
        if (x && y && are_disjoint_at(m, (spot){x, a.at}, (spot){y, b.at}, deep + 1)) return true;
    }
    list = get(m, b.v, "required");
    for (size_t i = 0; list && list->kind == JSON_ARRAY && i < list->n && !m->b.failed; i++)
        if (list->item[i].kind == JSON_STRING && forbids(m, a.v, list->item[i].s)) return true;
    return false;
}

static bool ranges_differ(maker *m, const json_value *a, const json_value *b)
{
    const json_value *high = get(m, a, "maximum"), *low = get(m, b, "minimum");
    const json_value *out_high = get(m, a, "exclusiveMaximum"), *out_low = get(m, b, "exclusiveMinimum");
    bool              number_high = high && (high->kind == JSON_INT || high->kind == JSON_REAL);
    bool              number_low  = low && (low->kind == JSON_INT || low->kind == JSON_REAL);
    if (number_high && number_low && number_of(high) < number_of(low)) return true;
    if (out_high && out_high->kind != JSON_BOOL && number_low && number_of(out_high) <= number_of(low)) return true;
    return number_high && out_low && out_low->kind != JSON_BOOL && number_of(high) <= number_of(out_low);
}

/* Returns whether types, constants, bounds or required keys show that no value matches both. One key that both require
 * is enough, because every object that matches both has it. */
static bool are_disjoint_at(maker *m, spot a, spot b, int deep)
{
    enum { MAX_LOOK = 4 };
    if (deep > MAX_LOOK || !builder_spend(&m->b, 16)) return false;
    a = follow_reference(m, a);
    b = follow_reference(m, b);
    if ((a.v->kind == JSON_BOOL && !a.v->b) || (b.v->kind == JSON_BOOL && !b.v->b)) return true;
    if (a.v->kind != JSON_OBJECT || b.v->kind != JSON_OBJECT) return false;
    unsigned types = types_of(m, a.v) & types_of(m, b.v);
    if (!types || share_no_constant(m, a.v, b.v)) return true;
    if (constants_miss(m, a.v, types) || constants_miss(m, b.v, types)) return true;
    if (!(types & ~(unsigned)T_NUMBER) && (ranges_differ(m, a.v, b.v) || ranges_differ(m, b.v, a.v))) return true;
    return types == T_OBJECT && objects_differ(m, a, b, deep);
}

bool are_disjoint(maker *m, spot a, spot b) { return are_disjoint_at(m, a, b, 0); }

/* --- many of them ------------------------------------------------------------------------------ */
static const json_value *constant_at(maker *m, spot p, str name)
{
    p                   = follow_reference(m, p);
    const json_value *x = p.v->kind == JSON_OBJECT && types_of(m, p.v) == T_OBJECT && requires(m, p.v, name)
                              ? property_of(m, p.v, name)
                              : NULL;
    return x ? get(m, x, "const") : NULL;
}

/* Whether each alternative requires the key with a constant that no other one has. */
static bool told_by(maker *m, spot list, str name)
{
    json_value *all = schema_take(m, list.v->n, sizeof *all);
    if (!all) return false;
    for (size_t i = 0; i < list.v->n; i++) {
        const json_value *x = constant_at(m, (spot){&list.v->item[i], list.at}, name);
        if (!x || m->b.failed) return false;
        all[i] = *x;
    }
    json_value *copy = schema_take(m, 1, sizeof *copy);
    if (!copy) return false;
    *copy = (json_value){.kind = JSON_ARRAY, .n = list.v->n, .item = all};
    return are_different(m, copy);
}

bool all_disjoint(maker *m, spot list)
{
    spot              first = follow_reference(m, (spot){&list.v->item[0], list.at});
    const json_value *names = first.v->kind == JSON_OBJECT ? get(m, first.v, "required") : NULL;
    for (size_t i = 0; names && names->kind == JSON_ARRAY && i < names->n && i < 8 && !m->b.failed; i++)
        if (names->item[i].kind == JSON_STRING && told_by(m, list, names->item[i].s)) return true;
    return false;
}
