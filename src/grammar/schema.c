/* Converts JSON Schema to rules.
 *
 * A value must match a set of schemas: a schema, those that its allOf and $ref add, and those of siblings that apply to
 * a property. A `shape` collects all constraints of such a set. anyOf, oneOf and keywords that are expressed by them
 * (not, if, dependentRequired, ...; schema_not.c) are stored in the shape and multiplied out when it is written. Each
 * set of schemas has one rule, so references may be recursive. Every keyword is enforced, is an annotation, or is
 * refused with its path. */
#include "grammar/schema.h"
#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* --- sentences --------------------------------------------------------------------------------- */
void *schema_take(maker *m, size_t n, size_t each)
{
    void *p = builder_spend(&m->b, 4 + n * each / 64) ? arena_try(&m->b.mem, n ? n : 1, each) : NULL;
    if (!p) builder_full(&m->b);
    return p;
}

const path *path_down(maker *m, const path *up, str key)
{
    path *p = builder_spend(&m->b, 2) ? arena_try(&m->b.mem, 1, sizeof *p) : NULL;
    if (!p) {
        builder_full(&m->b);
        return up;
    }
    *p = (path){up, key};
    return p;
}

static void put_path(buf *b, const path *p)
{
    const path *up[24];
    int         n = 0;
    for (; p && n < (int)COUNT(up); p = p->up) up[n++] = p;
    if (p) buf_puts(b, "...");
    while (n--) {
        if (up[n]->up) buf_putc(b, '/');
        buf_put(b, up[n]->key.s, up[n]->key.n);
    }
}

bool refuse(maker *m, const path *at, const char *key, const char *fmt, ...)
{
    char    what[256];
    buf     where;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    buf_init(&where, 4096);
    put_path(&where, at);
    str s = buf_str(&where);
    builder_fail(&m->b, ERR_INPUT, "%.*s%s%s: %s", STR_ARG(s), key ? "/" : "", key ? key : "", what);
    buf_deinit(&where);
    return false;
}

bool refuse_too_large(maker *m, const path *at, const char *what)
{
    bool first = !m->b.failed;
    refuse(m, at, NULL, "%s", what);
    if (first && m->b.why.code == ERR_INPUT) m->b.why.code = ERR_TOO_LARGE;
    return false;
}

/* --- reading keywords -------------------------------------------------------------------------- */
static const char *const annotations[] = {"$schema",
                                          "$id",
                                          "$comment",
                                          "$anchor",
                                          "$dynamicAnchor",
                                          "$defs",
                                          "definitions",
                                          "title",
                                          "description",
                                          "default",
                                          "example",
                                          "examples",
                                          "deprecated",
                                          "readOnly",
                                          "writeOnly",
                                          "nullable",
                                          "strict",
                                          "contentEncoding",
                                          "contentMediaType",
                                          "contentSchema",
                                          "propertyOrdering",
                                          "discriminator",
                                          "externalDocs",
                                          "xml",
                                          "markdownDescription",
                                          "enumDescriptions",
                                          "enumNames",
                                          "errorMessage",
                                          "id",
                                          "$vocabulary"};

bool is_annotation(str key)
{
    if (str_starts(key, "x-")) return true;
    for (size_t i = 0; i < COUNT(annotations); i++)
        if (str_is(key, annotations[i])) return true;
    return false;
}

static bool read_count(maker *m, spot p, const char *key, int32_t *out)
{
    const json_value *v     = p.v;
    bool              whole = v->kind == JSON_INT || (v->kind == JSON_REAL && v->d == floor(v->d));
    if (!whole || v->d < 0) return refuse(m, p.at, key, "is not a non-negative integer");
    *out = v->d > MAX_COUNT ? MAX_COUNT : (int32_t)v->d;
    return true;
}

static bool read_most(maker *m, spot p, const char *key, int32_t *out)
{
    int32_t n = 0;
    if (!read_count(m, p, key, &n)) return false;
    if (n < MAX_COUNT && (*out < 0 || n < *out)) *out = n;
    return true;
}

static bool read_least(maker *m, spot p, const char *key, int32_t *out)
{
    int32_t n = 0;
    if (!read_count(m, p, key, &n)) return false;
    if (n == MAX_COUNT) return refuse(m, p.at, key, "is too large");
    *out = max_int(*out, n);
    return true;
}

unsigned type_named(str s)
{
    static const char *const name[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
    static const unsigned    bits[] = {T_NULL, T_BOOL, T_INTEGER, T_NUMBER, T_STRING, T_ARRAY, T_OBJECT};
    for (size_t i = 0; i < COUNT(name); i++)
        if (str_is(s, name[i])) return bits[i];
    return 0;
}

static bool read_type(maker *m, shape *s, spot p, bool nullable)
{
    unsigned types = nullable ? T_NULL : 0;
    size_t   n     = p.v->kind == JSON_ARRAY ? p.v->n : 1;
    for (size_t i = 0; i < n; i++) {
        const json_value *v = p.v->kind == JSON_ARRAY ? &p.v->item[i] : p.v;
        unsigned          t = v->kind == JSON_STRING ? type_named(v->s) : 0;
        if (!t) return refuse(m, p.at, "type", "'%.*s' is not a type", STR_ARG(v->s));
        types |= t;
    }
    s->types &= types;
    s->typed = true;
    return true;
}

static void bound_low(bounds *b, long double x, bool out)
{
    if (b->has_low && (x < b->low || (x == b->low && b->low_out))) return;
    b->has_low = true;
    b->low     = x;
    b->low_out = out;
}

static void bound_high(bounds *b, long double x, bool out)
{
    if (b->has_high && (x > b->high || (x == b->high && b->high_out))) return;
    b->has_high = true;
    b->high     = x;
    b->high_out = out;
}

/* Reads exclusiveMinimum and exclusiveMaximum: numbers, or in old schemas booleans that modify minimum and maximum. */
static bool read_bound(maker *m, shape *s, spot p, str key, const json_value *schema)
{
    bool low = str_ends(key, "inimum"), out = str_starts(key, "exclusive");
    if (out && p.v->kind == JSON_BOOL) {
        if (json_get(schema, low ? "minimum" : "maximum")) return true;
        return !p.v->b ||
               refuse(m, p.at, low ? "exclusiveMinimum" : "exclusiveMaximum", "there is no bound next to it");
    }
    if (p.v->kind != JSON_INT && p.v->kind != JSON_REAL)
        return refuse(m, path_down(m, p.at, key), NULL, "is not a number");
    const json_value *old = json_get(schema, low ? "exclusiveMinimum" : "exclusiveMaximum");
    out                   = out || (old && old->kind == JSON_BOOL && old->b);
    s->range_at           = p.at;
    (low ? bound_low : bound_high)(&s->range, number_of(p.v), out);
    return true;
}

static bool put_spot(maker *m, spot *list, int32_t *n, int32_t max, spot p, const char *key)
{
    if (*n == max) return refuse(m, p.at, key, "applies more than %d times to one value", max);
    list[(*n)++] = p;
    return true;
}

static bool take_string(maker *m, shape *s, spot p, str key)
{
    text_demand *d = &s->text;
    if (str_is(key, "minLength")) return read_least(m, p, "minLength", &d->min);
    if (str_is(key, "maxLength")) return read_most(m, p, "maxLength", &d->max);
    if (p.v->kind != JSON_STRING) return refuse(m, path_down(m, p.at, key), NULL, "is not a string");
    if (str_is(key, "format")) {
        if (is_number_format(p.v->s)) s->number_format = p;
        if (!is_text_format(p.v->s)) return true;
        if (d->format.v && !d->n_patterns && !str_eq(d->format.v->s, p.v->s))
            return refuse(m, p.at, "format", "two of them cannot be enforced together");
        d->format = p;
        return true;
    }
    for (int32_t i = 0; i < d->n_patterns; i++)
        if (str_eq(d->pattern[i].v->s, p.v->s)) return true;
    return put_spot(m, d->pattern, &d->n_patterns, MAX_TEXTS, p, "pattern");
}

static bool take_number(maker *m, shape *s, spot p, str key, const json_value *schema)
{
    decimal x;
    if (!str_is(key, "multipleOf")) return read_bound(m, s, p, key, schema);
    if (p.v->kind != JSON_INT && p.v->kind != JSON_REAL) return refuse(m, p.at, "multipleOf", "is not a number");
    if (p.v->d <= 0) return refuse(m, p.at, "multipleOf", "is not above 0");
    if (!read_decimal(p.v->d, &x) || !join_decimals(s->multiple, x, &s->multiple))
        return refuse(m, p.at, "multipleOf", "has too many digits to be enforced");
    s->multiple_at = p;
    return true;
}

static bool is_schema(const json_value *v) { return v->kind == JSON_OBJECT || v->kind == JSON_BOOL; }

static bool bad_schema(maker *m, const path *at, str key)
{
    return refuse(m, path_down(m, at, key), NULL, "is not a schema");
}

/* Returns the entry for the members of this schema, created on first use. */
static members *own_members(maker *m, members *list, int32_t *n, bool *mine, const path *at)
{
    if (*mine) return &list[*n - 1];
    if (*n == MAX_PARTS) {
        refuse(m, at, NULL, "more than %d schemas apply to one value", MAX_PARTS);
        return NULL;
    }
    *mine    = true;
    list[*n] = (members){.in = m->scope};
    return &list[(*n)++];
}

typedef struct {
    bool object, array;
} mine;

static bool take_contains(maker *m, shape *s, spot p, const json_value *schema)
{
    const json_value *min = json_get(schema, "minContains"), *max = json_get(schema, "maxContains");
    containing        c = {.fits = {p.v, path_down(m, p.at, STR("contains"))}, .min = 1, .max = -1, .in = m->scope};
    if (!is_schema(p.v)) return bad_schema(m, p.at, STR("contains"));
    if (min) c.min = 0;
    if (min && !read_least(m, (spot){min, p.at}, "minContains", &c.min)) return false;
    if (max && !read_most(m, (spot){max, p.at}, "maxContains", &c.max)) return false;
    if (!c.min && c.max < 0 && !m->scope) return true; /* no constraint, and no scope needs the matches */
    if (s->n_contain == MAX_CONTAIN)
        return refuse(m, p.at, "contains", "applies more than %d times to one value", MAX_CONTAIN);
    c.other = (spot){wrap_not(m, p.v), c.fits.at};
    if (!c.other.v) return false;
    s->contain[s->n_contain++] = c;
    return true;
}

static bool take_array(maker *m, shape *s, spot p, str key, const json_value *schema, mine *own)
{
    if (str_is(key, "minItems")) return read_least(m, p, "minItems", &s->min_items);
    if (str_is(key, "maxItems")) return read_most(m, p, "maxItems", &s->max_items);
    if (str_is(key, "contains")) return take_contains(m, s, p, schema);
    if (str_is(key, "minContains") || str_is(key, "maxContains")) return true; /* read with contains */
    if (str_is(key, "uniqueItems")) {
        if (p.v->kind != JSON_BOOL) return refuse(m, p.at, "uniqueItems", "is not true or false");
        if (p.v->b) s->unique = true, s->unique_at = p;
        return true;
    }
    members *x = own_members(m, s->array, &s->n_arrays, &own->array, p.at);
    if (!x) return false;
    bool prefix = str_is(key, "prefixItems") || (str_is(key, "items") && p.v->kind == JSON_ARRAY);
    if (prefix ? p.v->kind != JSON_ARRAY : !is_schema(p.v)) return bad_schema(m, p.at, key);
    if (prefix) {
        x->named    = p.v;
        x->named_at = path_down(m, p.at, key);
        return true;
    }
    /* additionalItems applies to items after an array of `items`, and has no effect without one */
    const json_value *items = json_get(schema, "items");
    if (str_is(key, "additionalItems") && (!items || items->kind != JSON_ARRAY)) return true;
    x->rest = (spot){p.v, path_down(m, p.at, key)};
    return true;
}

static bool read_required(maker *m, shape *s, spot p)
{
    if (p.v->kind == JSON_BOOL) return true; /* old drafts: it applies to the object above */
    bool ok = p.v->kind == JSON_ARRAY;
    for (size_t i = 0; ok && i < p.v->n; i++) ok = p.v->item[i].kind == JSON_STRING;
    if (!ok) return refuse(m, p.at, "required", "is not an array of names");
    return put_spot(m, s->required, &s->n_required, MAX_PARTS, p, "required");
}

static bool take_object(maker *m, shape *s, spot p, str key, mine *own)
{
    if (str_is(key, "minProperties")) {
        s->min_props_at = p;
        return read_least(m, p, "minProperties", &s->min_props);
    }
    if (str_is(key, "maxProperties")) {
        s->max_props_at = p;
        return read_most(m, p, "maxProperties", &s->max_props);
    }
    if (str_is(key, "required")) return read_required(m, s, p);
    const path *at = path_down(m, p.at, key);
    if (str_is(key, "propertyNames")) {
        if (!is_schema(p.v)) return bad_schema(m, p.at, key);
        return put_spot(m, s->names, &s->n_names, MAX_CHOICES, (spot){p.v, at}, NULL);
    }
    members *x = own_members(m, s->object, &s->n_objects, &own->object, p.at);
    if (!x) return false;
    bool rest = str_is(key, "additionalProperties");
    if (rest ? !is_schema(p.v) : p.v->kind != JSON_OBJECT)
        return refuse(m, at, NULL, rest ? "is not a schema" : "is not an object");
    if (rest)
        x->rest = (spot){p.v, at};
    else if (str_is(key, "properties"))
        x->named = p.v, x->named_at = at;
    else
        x->patterns = p.v, x->patterns_at = at;
    return true;
}

static bool is_one_of(str key, const char *const *list)
{
    for (; *list; list++)
        if (str_is(key, *list)) return true;
    return false;
}

static bool collect_all(maker *m, shape *s, spot p, str key)
{
    if (p.v->kind != JSON_ARRAY || !p.v->n) return refuse(m, p.at, "allOf", "is not an array of schemas");
    const path *at = path_down(m, p.at, key);
    for (size_t i = 0; i < p.v->n; i++)
        if (!collect(m, s, (spot){&p.v->item[i], at})) return false;
    return true;
}

/* Adds alternatives, one of which must match. A single one is an ordinary constraint; without any, nothing matches. */
static bool take_choice(maker *m, shape *s, const json_value *list, const path *at, bool one)
{
    if (!list) return false;
    if (!list->n) return s->types = 0, true;
    if (list->n == 1) return collect(m, s, (spot){&list->item[0], at});
    if (s->n_choices == MAX_CHOICES)
        return refuse(m, at, NULL, "more than %d anyOf, oneOf, not, if or dependencies apply to one value",
                      MAX_CHOICES);
    s->choice[s->n_choices++] = (choice){{list, at}, one, m->scope};
    return true;
}

static bool take_dependencies(maker *m, shape *s, spot p, str key)
{
    const path *at = path_down(m, p.at, key);
    if (p.v->kind != JSON_OBJECT) return refuse(m, at, NULL, "is not an object");
    for (size_t i = 0; i < p.v->n; i++) {
        const json_value *on = &p.v->member[i].value;
        const path       *to = path_down(m, at, p.v->member[i].key);
        bool              ok = str_is(key, "dependentRequired") ? false : is_schema(on);
        if (on->kind == JSON_ARRAY && !str_is(key, "dependentSchemas")) {
            ok = true;
            for (size_t k = 0; k < on->n; k++) ok = ok && on->item[k].kind == JSON_STRING;
        }
        if (!ok) return refuse(m, to, NULL, "is not a schema or an array of names");
        if (!take_choice(m, s, expand_dependency(m, &p.v->member[i]), to, false)) return false;
    }
    return true;
}

static bool take_negation(maker *m, shape *s, spot p)
{
    const scope *was = m->scope;
    m->scope         = NULL;
    bool ok          = take_choice(m, s, negate(m, p), p.at, false);
    m->scope         = was;
    return ok;
}

static bool take_unevaluated(maker *m, shape *s, spot p, str key)
{
    bool array = str_is(key, "unevaluatedItems");
    if (!is_schema(p.v)) return bad_schema(m, p.at, key);
    if (s->n_left == MAX_LEFT)
        return refuse(m, path_down(m, p.at, key), NULL, "more than %d apply to one value", MAX_LEFT);
    s->hinted |= array ? T_ARRAY : T_OBJECT;
    s->leftover_of[s->n_left++] = (leftover){{p.v, path_down(m, p.at, key)}, m->scope, array};
    return true;
}

/* Reads a keyword that is expressed by other schemas. */
static bool take_combined(maker *m, shape *s, spot p, str key, const json_value *schema)
{
    const path *at = path_down(m, p.at, key);
    if (str_is(key, "allOf")) return collect_all(m, s, p, key);
    if (str_is(key, "anyOf") || str_is(key, "oneOf")) {
        if (p.v->kind != JSON_ARRAY || !p.v->n) return refuse(m, at, NULL, "is not an array of schemas");
        return take_choice(m, s, p.v, at, str_is(key, "oneOf"));
    }
    if (str_starts(key, "depend")) return take_dependencies(m, s, p, key);
    if (str_is(key, "then") || str_is(key, "else")) return is_schema(p.v) || bad_schema(m, p.at, key);
    if (!is_schema(p.v)) return bad_schema(m, p.at, key);
    if (str_is(key, "not")) return take_negation(m, s, (spot){p.v, at});
    if (!json_get(schema, "then") && !json_get(schema, "else") && !m->scope) return true;
    return take_choice(m, s, expand_if(m, schema), at, false);
}

static bool take_keyword(maker *m, shape *s, spot p, str key, const json_value *schema, mine *own)
{
    static const char *const strings[] = {"minLength", "maxLength", "pattern", "format", NULL};
    static const char *const numbers[] = {"minimum",          "maximum",    "exclusiveMinimum",
                                          "exclusiveMaximum", "multipleOf", NULL};
    static const char *const arrays[]  = {"items",    "prefixItems", "additionalItems", "minItems",    "maxItems",
                                          "contains", "minContains", "maxContains",     "uniqueItems", NULL};
    static const char *const objects[] = {"properties",    "required",      "additionalProperties", "patternProperties",
                                          "propertyNames", "minProperties", "maxProperties",        NULL};
    static const char *const combined[] = {
        "allOf",        "anyOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas",
        "dependencies", NULL};
    if (is_one_of(key, strings)) {
        if (!str_is(key, "format")) s->hinted |= T_STRING;
        return take_string(m, s, p, key);
    }
    if (is_one_of(key, numbers)) return s->hinted |= T_NUMBER, take_number(m, s, p, key, schema);
    if (is_one_of(key, arrays)) return s->hinted |= T_ARRAY, take_array(m, s, p, key, schema, own);
    if (is_one_of(key, objects)) return s->hinted |= T_OBJECT, take_object(m, s, p, key, own);
    if (is_one_of(key, combined)) return take_combined(m, s, p, key, schema);
    if (str_starts(key, "unevaluated")) return take_unevaluated(m, s, p, key);
    if (str_is(key, "enum") && p.v->kind != JSON_ARRAY) return refuse(m, p.at, "enum", "is not an array");
    if (str_is(key, "enum") || str_is(key, "const"))
        return put_spot(m, s->values, &s->n_values, MAX_CHOICES, (spot){p.v, path_down(m, p.at, key)}, NULL);
    if (str_is(key, "$ref") || str_is(key, "$dynamicRef")) {
        spot to;
        return find_ref(m, p.v, p.at, str_is(key, "$dynamicRef"), &to) && collect(m, s, to);
    }
    if (str_eq(key, KEY_EXCEPT)) return put_spot(m, s->text.except, &s->text.n_except, MAX_TEXTS, p, "enum");
    if (str_eq(key, KEY_OUTSIDE)) {
        s->hinted |= T_OBJECT; /* a constant that is an object is not compared with it */
        return put_spot(m, s->outside, &s->n_outside, MAX_OUTSIDE, p, NULL);
    }
    if (str_eq(key, KEY_WITHOUT)) return put_spot(m, s->text.without, &s->text.n_without, MAX_TEXTS, p, "pattern");
    return refuse(m, path_down(m, p.at, key), NULL, "this keyword cannot be enforced");
}

/* --- schemas that were collected into a shape --------------------------------------------------- */
static bool has_collected(const shape *s, const json_value *v)
{
    uint32_t at = (uint32_t)hash_mix((uintptr_t)v, 0);
    if (s->collected_cap == 0) return false;
    while (s->collected[at &= s->collected_cap - 1] && s->collected[at] != v) at++;
    return s->collected[at] != NULL;
}

static void put_collected(const json_value **to, uint32_t cap, const json_value *v)
{
    uint32_t at = (uint32_t)hash_mix((uintptr_t)v, 0);
    while (to[at &= cap - 1]) at++;
    to[at] = v;
}

static bool note_collected(maker *m, shape *s, const json_value *v)
{
    if (2 * s->n_collected >= s->collected_cap) {
        uint32_t           cap = s->collected_cap ? s->collected_cap * 2 : 16;
        const json_value **to  = builder_spend(&m->b, cap) ? arena_try(&m->b.mem, cap, sizeof *to) : NULL;
        if (!to) return builder_full(&m->b);
        for (uint32_t i = 0; i < s->collected_cap; i++)
            if (s->collected[i]) put_collected(to, cap, s->collected[i]);
        s->collected     = to;
        s->collected_cap = cap;
    }
    put_collected(s->collected, s->collected_cap, v);
    s->n_collected++;
    return true;
}

/* Returns whether the schema is being collected already, so that it refers to itself. */
static bool is_open(const maker *m, const json_value *v)
{
    for (int i = 0; i < m->deep; i++)
        if (m->open[i] == v) return true;
    return false;
}

static bool open_schema(maker *m, spot p)
{
    if (m->deep == MAX_DEEP)
        return refuse(m, p.at, NULL, "references, allOf and anyOf are nested more than %d levels deep", MAX_DEEP);
    m->open_level[m->deep] = m->level;
    m->open[m->deep++]     = p.v;
    return true;
}

bool is_inside(const scope *in, const scope *of)
{
    while (in && in != of) in = in->up;
    return in != NULL;
}

bool is_covered(const shape *s, const leftover *x)
{
    for (int32_t i = 0; i < s->n_left; i++)
        if (s->leftover_of[i].array == x->array && s->leftover_of[i].of != x->of &&
            is_inside(s->leftover_of[i].of, x->of))
            return true;
    return false;
}

static bool open_scope(maker *m, const json_value *v)
{
    if (!json_get(v, "unevaluatedProperties") && !json_get(v, "unevaluatedItems")) return true;
    scope *x = schema_take(m, 1, sizeof *x);
    if (!x) return false;
    x->up    = m->scope;
    m->scope = x;
    return true;
}

/* Adds the constraints of one schema. A schema that was added before adds nothing. */
bool collect(maker *m, shape *s, spot p)
{
    mine         own = {0};
    const scope *was = m->scope;
    if (m->b.failed) return false;
    if (p.v->kind == JSON_BOOL) {
        if (!p.v->b) s->types = 0;
        return true;
    }
    if (p.v->kind != JSON_OBJECT) return refuse(m, p.at, NULL, "is not a schema");
    m->at = p.at;
    if (has_collected(s, p.v)) return !is_open(m, p.v) || refuse(m, p.at, NULL, "refers to itself");
    if (!builder_spend(&m->b, 8 + 16 * p.v->n) || !open_schema(m, p) || !note_collected(m, s, p.v)) return false;
    bool              ok       = open_scope(m, p.v);
    const json_value *nullable = json_get(p.v, "nullable"), *type = json_get(p.v, "type");
    if (type && ok) ok = read_type(m, s, (spot){type, p.at}, nullable && nullable->kind == JSON_BOOL && nullable->b);
    for (size_t i = 0; ok && i < p.v->n; i++) {
        str key = p.v->member[i].key;
        if (is_annotation(key) || str_is(key, "type")) continue;
        ok = take_keyword(m, s, (spot){&p.v->member[i].value, p.at}, key, p.v, &own);
    }
    m->deep--;
    m->scope = was;
    return ok;
}

/* --- rules of sets of schemas ------------------------------------------------------------------ */
static node *write_shape(maker *m, shape *s, const path *at);

/* Removes schemas without constraints and duplicates, and follows pure references. */
static int32_t tidy_spots(maker *m, spot *p, int32_t n)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        spot x = p[i];
        builder_spend(&m->b, 2 + (size_t)kept / 4);
        for (int hop = 0; x.v->kind == JSON_OBJECT && !m->b.failed; hop++) {
            const json_value *ref   = json_get(x.v, "$ref");
            bool              alone = ref != NULL;
            for (size_t k = 0; k < x.v->n; k++)
                alone = alone && (str_is(x.v->member[k].key, "$ref") || is_annotation(x.v->member[k].key));
            builder_spend(&m->b, 2 + x.v->n * (alone ? 8 : 1));
            if (!alone) break;
            if (hop == MAX_DEEP) refuse(m, x.at, "$ref", "refers to itself");
            if (m->b.failed || !find_ref(m, ref, x.at, false, &x)) break;
        }
        bool known = x.v->kind == JSON_BOOL && x.v->b;
        for (int32_t k = 0; k < kept; k++) known = known || p[k].v == x.v;
        if (!known) p[kept++] = x;
    }
    return kept;
}

shape *new_shape(maker *m, const path *at)
{
    if (m->n_shapes++ == MAX_SHAPES) refuse_too_large(m, at, "the schema has too many combinations");
    shape *s = builder_spend(&m->b, sizeof *s / 128) ? mem_try(sizeof *s) : NULL;
    if (!s) {
        builder_fail(&m->b, ERR_UNAVAILABLE, "no memory for a schema");
        return NULL;
    }
    s->types     = T_ALL;
    s->max_props = s->max_items = s->text.max = -1;
    return s;
}

/* Returns the first known rule with the same hash, + 1. */
static int32_t *known_head(maker *m, const spot *p, int32_t n)
{
    uint64_t h = (uint32_t)n;
    for (int32_t i = 0; i < n; i++) h = hash_mix(h, (uintptr_t)p[i].v);
    return &m->known_head[h & (KNOWN_TABLE - 1)];
}

static int32_t add_known(maker *m, const spot *p, int32_t n)
{
    if (m->n_known == m->known_cap) {
        int32_t     cap  = m->known_cap ? m->known_cap * 2 : 64;
        known_rule *more = arena_try(&m->b.mem, (size_t)cap, sizeof *more);
        if (!more) return builder_full(&m->b), -1;
        if (m->n_known) memcpy(more, m->known, (size_t)m->n_known * sizeof *more);
        m->known     = more;
        m->known_cap = cap;
    }
    spot *copy = arena_try(&m->b.mem, (size_t)n + 1, sizeof *copy);
    if (!copy) return builder_full(&m->b), -1;
    if (n) memcpy(copy, p, (size_t)n * sizeof *p);
    int32_t *head        = known_head(m, p, n);
    m->known[m->n_known] = (known_rule){copy, n, builder_rule(&m->b, (str){0}), -1, *head};
    if (m->b.failed) return -1;
    *head = m->n_known + 1;
    return m->n_known++;
}

static bool same_spots(const known_rule *k, const spot *p, int32_t n)
{
    if (k->n != n) return false;
    for (int32_t i = 0; i < n; i++)
        if (k->part[i].v != p[i].v) return false;
    return true;
}

/* Returns the rule of a set of schemas that was met before. One that is still being written without an object or
 * array around would begin with itself. */
static node *use_known(maker *m, const known_rule *k, const path *at)
{
    if (k->level == m->level)
        return refuse(m, at, NULL, "the schema refers to itself without an object or array in between"), NULL;
    return k->rule < 0 ? NULL : node_rule(&m->b, k->rule);
}

/* Changes p. */
node *write_spots(maker *m, spot *p, int32_t n, const path *at)
{
    n = tidy_spots(m, p, n);
    if (m->b.failed) return NULL;
    if (!n) return any_value(m);
    for (int32_t i = *known_head(m, p, n); i && builder_spend(&m->b, 1); i = m->known[i - 1].next)
        if (same_spots(&m->known[i - 1], p, n)) return use_known(m, &m->known[i - 1], p[0].at);
    if (m->b.failed) return NULL;
    if (m->nested == MAX_NESTED) return refuse_too_large(m, at, "values are nested too deeply"), NULL;
    m->nested++;
    int32_t k = add_known(m, p, n);
    shape  *s = k < 0 ? NULL : new_shape(m, at);
    if (k >= 0) m->known[k].level = m->level;
    bool         ok  = s != NULL;
    const scope *was = m->scope;
    m->scope         = NULL;
    for (int32_t i = 0; ok && i < n; i++) ok = collect(m, s, p[i]);
    m->scope   = was;
    node *body = ok ? write_shape(m, s, p[0].at) : NULL;
    mem_free(s);
    m->nested--;
    if (m->b.failed) return NULL;
    int32_t r         = m->known[k].rule;
    m->known[k].level = -1;
    builder_define(&m->b, r, body ? body : node_list(&m->b, NODE_ALT, NULL, 0));
    if (!body) m->known[k].rule = -1;
    return body ? node_rule(&m->b, r) : NULL;
}

/* --- any value --------------------------------------------------------------------------------- */
node *any_value(maker *m)
{
    builder     *b    = &m->b;
    const bounds free = {0};
    if (m->any_value < 0) {
        m->any_value = builder_rule(b, (str){0});
        node *self   = node_rule(b, m->any_value);
        builder_define(b, m->any_value,
                       node_alt(b, make_string(m, 0, -1), make_number(m, NULL, &free, (decimal){0}),
                                any_members(m, self), any_items(m, self), node_puts(b, "true"), node_puts(b, "false"),
                                make_null(m)));
    }
    return node_rule(b, m->any_value);
}

/* --- constants --------------------------------------------------------------------------------- */
static unsigned type_of(const json_value *v)
{
    switch (v->kind) {
    case JSON_NULL: return T_NULL;
    case JSON_BOOL: return T_BOOL;
    case JSON_INT: return T_INTEGER;
    case JSON_REAL: return v->d == floor(v->d) ? T_INTEGER : T_REAL;
    case JSON_STRING: return T_STRING;
    case JSON_ARRAY: return T_ARRAY;
    default: return T_OBJECT;
    }
}

/* Returns whether one of the `except` lists of the shape has the value. */
static bool is_excepted(maker *m, const shape *s, const json_value *v)
{
    for (int32_t i = 0; i < s->text.n_except; i++)
        for (size_t k = 0; k < s->text.except[i].v->n; k++)
            if (same_value(m, &s->text.except[i].v->item[k], v)) return true;
    return false;
}

/* Returns whether a constant satisfies the other constraints; refuses the schema if that cannot be decided here. */
bool constant_fits(maker *m, const shape *s, const json_value *v, const path *at)
{
    const bounds *r    = &s->range;
    unsigned      type = type_of(v);
    if (!(type & s->types)) return false;
    for (int32_t i = 1; i < s->n_values; i++) /* it comes from the first list */
        if (!is_listed(m, s->values[i], v)) return false;
    if (is_excepted(m, s, v)) return false;
    if (type & T_NUMBER) {
        long double x = number_of(v);
        if (r->has_low && (x < r->low || (x == r->low && r->low_out))) return false;
        if (r->has_high && (x > r->high || (x == r->high && r->high_out))) return false;
        return is_multiple(v, s->multiple);
    }
    if (type == T_STRING) return text_allows(m, &s->text, v->s);
    if ((type == T_ARRAY && (s->hinted & T_ARRAY)) || (type == T_OBJECT && (s->hinted & T_OBJECT)))
        return refuse(m, at, NULL, "constants combined with constraints on their members cannot be enforced");
    return true;
}

static node *write_constants(maker *m, const shape *s)
{
    node_vec          v    = {0};
    const json_value *list = s->values[0].v;
    bool              many = str_is(s->values[0].at->key, "enum");
    for (size_t i = 0; i < (many ? list->n : 1) && !m->b.failed; i++) {
        const json_value *x = many ? &list->item[i] : list;
        builder_spend(&m->b, 8 + (x->kind == JSON_STRING ? x->s.n / 4 : 0));
        if (constant_fits(m, s, x, s->values[0].at)) node_vec_put(&m->b, &v, make_literal(m, x));
    }
    return v.n && !m->b.failed ? node_list(&m->b, NODE_ALT, v.p, v.n) : NULL;
}

/* --- shapes ------------------------------------------------------------------------------------ */
/* Writes the numbers between the bounds except one, or all of them. */
static node *write_range(maker *m, const shape *s, const bounds *r)
{
    const path *at = s->multiple.k ? s->multiple_at.at : s->range_at;
    return s->types & T_REAL ? make_number(m, at, r, s->multiple) : make_integer(m, at, r, s->multiple);
}

static int by_number(const void *a, const void *b)
{
    long double x = *(const long double *)a, y = *(const long double *)b;
    return x < y ? -1 : x > y;
}

/* Writes the numbers of the ranges between those that are excluded. */
static node *write_gaps(maker *m, const shape *s, const bounds *r, long double *out, size_t n)
{
    node_vec v    = {0};
    bounds   left = *r;
    qsort(out, n, sizeof *out, by_number);
    for (size_t i = 0; i <= n && !m->b.failed; i++) {
        bounds part = left;
        if (i < n) bound_high(&part, out[i], true);
        if (!part.has_low || !part.has_high || part.low <= part.high) {
            node *x = write_range(m, s, &part);
            if (x) node_vec_put(&m->b, &v, x);
        }
        if (i < n) bound_low(&left, out[i], true);
    }
    return v.n ? node_list(&m->b, NODE_ALT, v.p, v.n) : NULL;
}

static node *write_number(maker *m, const shape *s)
{
    enum { MAX_OUT = 64 };
    bounds      r      = s->range;
    str         format = s->number_format.v ? s->number_format.v->s : (str){0};
    long double out[MAX_OUT];
    size_t      n = 0;
    if (str_is(format, "int32")) bound_low(&r, INT32_MIN, false), bound_high(&r, INT32_MAX, false);
    if (str_is(format, "uint32")) bound_low(&r, 0, false), bound_high(&r, UINT32_MAX, false);
    if (str_is(format, "uint64")) bound_low(&r, 0, false);
    for (int32_t i = 0; i < s->text.n_except; i++)
        for (size_t k = 0; k < s->text.except[i].v->n; k++) {
            const json_value *x = &s->text.except[i].v->item[k];
            if (!(type_of(x) & T_NUMBER)) continue;
            if (n == MAX_OUT)
                return refuse(m, s->text.except[i].at, NULL, "more than %d numbers cannot be excluded", MAX_OUT), NULL;
            out[n++] = number_of(x);
        }
    return n ? write_gaps(m, s, &r, out, n) : write_range(m, s, &r);
}

static bool excepts(const shape *s, json_kind kind, bool value)
{
    for (int32_t i = 0; i < s->text.n_except; i++)
        for (size_t k = 0; k < s->text.except[i].v->n; k++) {
            const json_value *x = &s->text.except[i].v->item[k];
            if (x->kind == kind && (kind != JSON_BOOL || x->b == value)) return true;
        }
    return false;
}

static node *write_bool(maker *m, const shape *s)
{
    builder *b = &m->b;
    bool     t = !excepts(s, JSON_BOOL, true), f = !excepts(s, JSON_BOOL, false);
    if (t && f) return node_alt(b, node_puts(b, "true"), node_puts(b, "false"));
    return t || f ? node_puts(b, t ? "true" : "false") : NULL;
}

/* Excludes arrays or objects: only the empty one can be, by a smallest size. */
static bool except_members(maker *m, shape *s, json_kind kind)
{
    for (int32_t i = 0; i < s->text.n_except; i++)
        for (size_t k = 0; k < s->text.except[i].v->n; k++) {
            const json_value *x = &s->text.except[i].v->item[k];
            if (x->kind != kind) continue;
            if (x->n) return refuse(m, s->text.except[i].at, NULL, "an object or array cannot be excluded");
            if (kind == JSON_ARRAY) s->min_items = max_int(s->min_items, 1);
            if (kind == JSON_OBJECT) s->min_props = max_int(s->min_props, 1);
        }
    return true;
}

static node *write_type(maker *m, shape *s, unsigned type, const path *at)
{
    switch (type) {
    case T_NULL: return excepts(s, JSON_NULL, false) ? NULL : make_null(m);
    case T_BOOL: return write_bool(m, s);
    case T_INTEGER: return write_number(m, s);
    case T_STRING: return make_text(m, &s->text, at);
    case T_ARRAY: return except_members(m, s, JSON_ARRAY) ? write_array(m, s, at) : NULL;
    case T_OBJECT: return except_members(m, s, JSON_OBJECT) ? write_object(m, s, at) : NULL;
    default: return NULL;
    }
}

static node *write_types(maker *m, shape *s, const path *at)
{
    builder *b = &m->b;
    node_vec v = {0};
    if (!s->typed && s->hinted) s->types &= s->hinted;
    if (!s->typed && !s->hinted && s->text.format.v) s->types &= T_STRING;
    if (!s->typed && !s->hinted && s->number_format.v && !s->text.format.v) s->types &= T_NUMBER;
    for (unsigned t = 1; t <= T_OBJECT && !b->failed; t <<= 1) {
        node *x = s->types & t ? write_type(m, s, t, at) : NULL;
        if (x) node_vec_put(b, &v, x);
    }
    return v.n && !b->failed ? node_list(b, NODE_ALT, v.p, v.n) : NULL;
}

/* Returns whether the last anyOf is the only constraint of the shape; its alternatives then have their own rules. */
static bool only_choice(const shape *s)
{
    return s->types == T_ALL && !s->typed && !s->hinted && !s->text.format.v && !s->number_format.v && !s->n_values &&
           !s->text.n_except && !s->text.n_without && s->n_choices == 1;
}

/* Lists alternative i of a choice and, of a oneOf, the negations of those that might fit too. */
static int32_t alternative(maker *m, const choice *c, size_t i, bool apart, spot *out)
{
    const json_value *list = c->list.v;
    int32_t           n    = 0;
    out[n++]               = (spot){&list->item[i], c->list.at};
    for (size_t k = 0; c->one && !apart && k < list->n && !m->b.failed; k++) {
        spot other = {&list->item[k], c->list.at};
        if (k == i || are_disjoint(m, out[0], other)) continue;
        if (n == MAX_PARTS) {
            refuse(m, c->list.at, NULL, "too many of its alternatives may match together; anyOf has no such limit");
            return n;
        }
        out[n++] = (spot){wrap_not(m, other.v), c->list.at};
    }
    return n;
}

/* Refuses an alternative that is open already for the same value: it would begin with itself. */
static bool begins_anew(maker *m, spot p)
{
    for (int i = 0; i < m->deep; i++)
        if (m->open[i] == p.v && m->open_level[i] == m->level)
            return refuse(m, p.at, NULL, "the schema refers to itself without an object or array in between");
    return true;
}

/* Copies a shape without its last choice, and adds schemas. One more is open (m->deep) until the caller is done. */
static shape *with_spots(maker *m, const shape *s, const spot *p, int32_t n, const path *at)
{
    shape *with = new_shape(m, at);
    bool   ok   = with != NULL;
    if (ok) {
        *with = *s;
        with->n_choices--;
        /* references of the alternatives apply to each of them again */
        with->collected   = NULL;
        with->n_collected = with->collected_cap = 0;
        ok                                      = begins_anew(m, p[0]) && open_schema(m, p[0]);
    }
    const scope *was = m->scope;
    m->scope         = s->choice[s->n_choices - 1].in;
    for (int32_t i = 0; ok && i < n; i++) ok = collect(m, with, p[i]);
    m->scope = was;
    if (ok) return with;
    mem_free(with);
    return NULL;
}

shape *choose(maker *m, const shape *s, size_t i, const path *at)
{
    const choice *c = &s->choice[s->n_choices - 1];
    spot          p[MAX_PARTS];
    int32_t       n = alternative(m, c, i, false, p);
    return m->b.failed ? NULL : with_spots(m, s, p, n, at);
}

static node *write_choice(maker *m, const shape *s, const path *at)
{
    const choice *c     = &s->choice[s->n_choices - 1];
    bool          apart = c->one && all_disjoint(m, c->list);
    node_vec      v     = {0};
    for (size_t i = 0; i < c->list.v->n && !m->b.failed; i++) {
        spot    p[MAX_PARTS];
        int32_t n = alternative(m, c, i, apart, p);
        node   *x = NULL;
        if (m->b.failed) return NULL;
        if (only_choice(s)) {
            x = write_spots(m, p, n, at);
        } else {
            shape *with = with_spots(m, s, p, n, at);
            if (!with) return NULL;
            x = write_shape(m, with, at);
            mem_free(with);
            m->deep--;
        }
        if (x) node_vec_put(&m->b, &v, x);
    }
    return v.n && !m->b.failed ? node_list(&m->b, NODE_ALT, v.p, v.n) : NULL;
}

static node *write_shape(maker *m, shape *s, const path *at)
{
    if (m->b.failed || !s->types) return NULL;
    if (s->n_choices) return write_choice(m, s, at);
    return s->n_values ? write_constants(m, s) : write_types(m, s, at);
}

/* --- from outside ------------------------------------------------------------------------------ */
void maker_set_markup(maker *m, const tok_markup *call)
{
    m->call      = call;
    m->any_value = m->key = -1;
    m->n_strings = m->n_texts = 0;
    m->unit = m->key_unit = NULL;
}

void maker_init(maker *m, const tok_markup *call, const atomic_bool *cancel)
{
    *m = (maker){.number = -1, .integer = -1};
    maker_set_markup(m, call);
    builder_init(&m->b, GRAMMAR_JSON_DEPTH, cancel);
}

/* Adds the path of the schema at which the work ran out to the error. */
static void name_long_part(maker *m)
{
    if (!m->b.too_long || !m->at) return;
    m->b.failed = m->b.too_long = false;
    refuse_too_large(m, m->at,
                     "the schema takes too much work to compile; use fewer properties, constants or alternatives, or "
                     "fewer of them joined by allOf");
}

node *write_root(maker *m, const json_value *schema, const json_value *also)
{
    m->root    = schema;
    m->root_at = path_down(m, NULL, STR("#"));
    m->n_known = 0;
    m->refs    = NULL;
    memset(m->known_head, 0, sizeof m->known_head);
    spot  p[] = {{schema, m->root_at}, {also, m->root_at}};
    node *x   = write_spots(m, p, also ? 2 : 1, m->root_at);
    if (!x && !m->b.failed) refuse(m, m->root_at, NULL, also ? "it must be an object" : "no value matches the schema");
    name_long_part(m);
    return x;
}

bool maker_finish(maker *m, node *root, grammar **out, err *e)
{
    int32_t r = builder_rule(&m->b, (str){0});
    builder_define(&m->b, r, root);
    bool ok = grammar_compile(out, &m->b, r, e);
    builder_deinit(&m->b);
    return ok;
}

bool grammar_from_schema(grammar **out, const json_value *schema, const tok_markup *call, const atomic_bool *cancel,
                         err *e)
{
    maker m;
    maker_init(&m, call, cancel);
    return maker_finish(&m, write_root(&m, schema, NULL), out, e) || err_wrap(e, "the schema cannot be used");
}

bool grammar_any_object(grammar **out, err *e)
{
    maker m;
    maker_init(&m, NULL, NULL);
    return maker_finish(&m, any_members(&m, any_value(&m)), out, e);
}
