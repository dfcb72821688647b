/* JSON Schema to rules.
 *
 * A value must fit a set of schemas at once (a schema, what its allOf and $ref add, what a sibling says of a property). Such a
 * set is read into a `shape`: what all of them together demand. anyOf and oneOf wait in the shape and are multiplied out when
 * it is written. A set of schemas that was met before is its rule, so references may go round in circles.
 *
 * Properties come in the order in which they are listed; then others, where allowed. Rule (i, c) of an object writes the
 * properties from i on when c were written, c being counted only as far as someone asks: whether a comma is due, and
 * minProperties and maxProperties. Every keyword is kept, is an annotation, or is refused with its path. */
#include "grammar/schema.h"
#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    T_NULL    = 1,
    T_BOOL    = 2,
    T_INTEGER = 4,
    T_REAL    = 8, /* numbers that are not whole; "number" is both */
    T_STRING  = 16,
    T_ARRAY   = 32,
    T_OBJECT  = 64,
    T_ALL     = 127,
    T_NUMBER  = T_INTEGER | T_REAL,
};

enum {
    MAX_NESTED  = 200,     /* values inside one another, references followed */
    MAX_SHAPES  = 1 << 13, /* of one schema */
    MAX_PARTS   = 64,      /* schemas that say something about one object or array */
    MAX_CHOICES = 16,      /* anyOf of one value */
    MAX_NAMES   = 4096,    /* in properties and required of one object */
    MAX_CHAIN   = 1 << 13, /* rules of one object */
    MAX_COUNT   = GRAMMAR_MAX_REPEAT,
};

typedef struct {             /* one schema's word on members: `rest` for those that it does not name */
    const json_value *named; /* properties, or prefixItems */
    const path       *named_at;
    spot              rest; /* .v NULL: anything */
} members;

typedef struct {
    unsigned           types, hinted; /* allowed; those that its keywords speak of */
    bool               typed;
    members            object[MAX_PARTS], array[MAX_PARTS];
    int32_t            n_objects, n_arrays;
    spot               required[MAX_PARTS]; /* arrays of names */
    int32_t            n_required;
    int32_t            min_props, max_props, min_items, max_items, min_length, max_length; /* max < 0: no end */
    spot               min_props_at, max_props_at;
    spot               pattern, format, multiple;
    bounds             range;
    const path        *range_at;
    spot               values[MAX_CHOICES]; /* enum and const */
    int32_t            n_values;
    spot               choice[MAX_CHOICES]; /* arrays of schemas */
    int32_t            n_choices;
    const json_value **collected; /* the schemas that are part of it, by hash; NULL where free */
    uint32_t           n_collected, collected_cap;
} shape;

/* --- sentences --------------------------------------------------------------------------------- */
const path *path_down(maker *m, const path *up, str key)
{
    path *p = builder_spend(&m->b, 2) ? arena_try(&m->b.mem, 1, sizeof *p) : NULL;
    if (!p) {
        builder_fail(&m->b, ERR_TOO_LARGE, "the schema needs more than %zu MiB to compile", GRAMMAR_MAX_MEMORY >> 20);
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
    refuse(m, at, NULL, "%s", what);
    if (m->b.failed && m->b.why.code == ERR_INPUT) m->b.why.code = ERR_TOO_LARGE;
    return false;
}

/* --- references -------------------------------------------------------------------------------- */
/* The next part of a pointer, with ~0 ~1 and %HH undone. */
static str pointer_part(maker *m, str *rest)
{
    size_t n = 0, k = 0;
    while (n < rest->n && rest->s[n] != '/') n++;
    char *out = builder_spend(&m->b, 2 + n / 4) ? arena_try(&m->b.mem, n + 1, 1) : NULL;
    for (size_t i = 0; out && i < n; i++) {
        char c = rest->s[i];
        if (c == '~' && i + 1 < n && (rest->s[i + 1] == '0' || rest->s[i + 1] == '1')) {
            c = rest->s[++i] == '0' ? '~' : '/';
        } else if (c == '%' && i + 2 < n) {
            char hex[3] = {rest->s[i + 1], rest->s[i + 2], 0}, *end;
            long x      = strtol(hex, &end, 16);
            bool ok     = end == hex + 2 && x > 0;
            c           = ok ? (char)x : c;
            i += ok ? 2 : 0;
        }
        out[k++] = c;
    }
    *rest = n < rest->n ? (str){rest->s + n + 1, rest->n - n - 1} : (str){NULL, 0};
    return (str){out, out ? k : 0};
}

static bool find_ref(maker *m, const json_value *ref, const path *at, spot *out)
{
    if (ref->kind != JSON_STRING) return refuse(m, at, "$ref", "is not a string");
    const json_value *v    = m->root;
    str               rest = ref->s;
    if (!str_starts(rest, "#")) return refuse(m, at, "$ref", "'%.*s' is not in this document", STR_ARG(rest));
    rest = (str){rest.s + 1, rest.n - 1};
    if (rest.n && rest.s[0] != '/') return refuse(m, at, "$ref", "'%.*s' is not a JSON pointer", STR_ARG(ref->s));
    rest = rest.n ? (str){rest.s + 1, rest.n - 1} : (str){NULL, 0};
    while (v && rest.s) v = find_member(m, v, pointer_part(m, &rest));
    if (!v) return refuse(m, at, "$ref", "there is no '%.*s'", STR_ARG(ref->s));
    *out = (spot){v, v == m->root ? m->root_at : path_down(m, NULL, ref->s)};
    return !m->b.failed;
}

/* --- reading keywords -------------------------------------------------------------------------- */
static const char *const annotations[] = {"$schema",
                                          "$id",
                                          "$comment",
                                          "$anchor",
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

static bool is_annotation(str key)
{
    if (str_starts(key, "x-")) return true;
    for (size_t i = 0; i < COUNT(annotations); i++)
        if (str_is(key, annotations[i])) return true;
    return false;
}

static bool collect(maker *m, shape *s, spot p);

static bool read_count(maker *m, spot p, const char *key, int32_t *out)
{
    const json_value *v     = p.v;
    bool              whole = v->kind == JSON_INT || (v->kind == JSON_REAL && v->d == floor(v->d));
    if (!whole || v->d < 0) return refuse(m, p.at, key, "is not a number of things");
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
    *out = most(*out, n);
    return true;
}

static unsigned type_named(str s)
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
        if (!t) return refuse(m, p.at, "type", "'%.*s' is no type", STR_ARG(v->s));
        types |= t;
    }
    s->types &= types;
    s->typed = true;
    return true;
}

static void bound_low(bounds *b, double x, bool out)
{
    if (b->has_low && (x < b->low || (x == b->low && b->low_out))) return;
    b->has_low = true;
    b->low     = x;
    b->low_out = out;
}

static void bound_high(bounds *b, double x, bool out)
{
    if (b->has_high && (x > b->high || (x == b->high && b->high_out))) return;
    b->has_high = true;
    b->high     = x;
    b->high_out = out;
}

/* exclusiveMinimum and exclusiveMaximum are numbers; in old schemas booleans beside minimum and maximum. */
static bool read_bound(maker *m, shape *s, spot p, str key, const json_value *schema)
{
    bool low = str_ends(key, "inimum"), out = str_starts(key, "exclusive");
    if (out && p.v->kind == JSON_BOOL) {
        if (json_get(schema, low ? "minimum" : "maximum")) return true;
        return !p.v->b || refuse(m, p.at, low ? "exclusiveMinimum" : "exclusiveMaximum", "there is no bound beside it");
    }
    if (p.v->kind != JSON_INT && p.v->kind != JSON_REAL)
        return refuse(m, path_down(m, p.at, key), NULL, "is not a number");
    const json_value *old = json_get(schema, low ? "exclusiveMinimum" : "exclusiveMaximum");
    out                   = out || (old && old->kind == JSON_BOOL && old->b);
    s->range_at           = p.at;
    (low ? bound_low : bound_high)(&s->range, p.v->d, out);
    return true;
}

static bool put_spot(maker *m, spot *list, int32_t *n, int32_t max, spot p, const char *key)
{
    if (*n == max) return refuse(m, p.at, key, "is said more than %d times of one value", max);
    list[(*n)++] = p;
    return true;
}

static bool set_once(maker *m, spot *to, spot p, const char *key)
{
    if (p.v->kind != JSON_STRING) return refuse(m, p.at, key, "is not a string");
    if (to->v && !str_eq(to->v->s, p.v->s)) return refuse(m, p.at, key, "two of them cannot be kept at once");
    *to = p;
    return true;
}

/* A keyword that speaks of one type of values. */
typedef bool keyword_fn(maker *m, shape *s, spot p, str key, const json_value *schema);

static bool take_string(maker *m, shape *s, spot p, str key, const json_value *schema)
{
    (void)schema;
    if (str_is(key, "minLength")) return read_least(m, p, "minLength", &s->min_length);
    if (str_is(key, "maxLength")) return read_most(m, p, "maxLength", &s->max_length);
    if (str_is(key, "pattern")) return set_once(m, &s->pattern, p, "pattern");
    return set_once(m, &s->format, p, "format");
}

static bool take_number(maker *m, shape *s, spot p, str key, const json_value *schema)
{
    if (!str_is(key, "multipleOf")) return read_bound(m, s, p, key, schema);
    if (s->multiple.v && s->multiple.v->d != p.v->d)
        return refuse(m, p.at, "multipleOf", "two of them cannot be kept at once");
    if (p.v->kind != JSON_INT && (p.v->kind != JSON_REAL || p.v->d != floor(p.v->d) || p.v->d > 1e9))
        return refuse(m, p.at, "multipleOf", "only whole numbers can be kept");
    if (p.v->d <= 0) return refuse(m, p.at, "multipleOf", "is not above 0");
    s->multiple = p;
    return true;
}

static bool is_schema(const json_value *v) { return v->kind == JSON_OBJECT || v->kind == JSON_BOOL; }

/* The members of this schema; made for the first keyword that asks. */
static members *own_members(maker *m, members *list, int32_t *n, bool *mine, const path *at)
{
    if (*mine) return &list[*n - 1];
    if (*n == MAX_PARTS) {
        refuse(m, at, NULL, "more than %d schemas speak of one value", MAX_PARTS);
        return NULL;
    }
    *mine    = true;
    list[*n] = (members){0};
    return &list[(*n)++];
}

typedef struct {
    bool object, array;
} mine;

static bool take_array(maker *m, shape *s, spot p, str key, mine *own)
{
    if (str_is(key, "minItems")) return read_least(m, p, "minItems", &s->min_items);
    if (str_is(key, "maxItems")) return read_most(m, p, "maxItems", &s->max_items);
    if (str_is(key, "uniqueItems"))
        return (p.v->kind == JSON_BOOL && !p.v->b) || refuse(m, p.at, "uniqueItems", "cannot be kept");
    members *x = own_members(m, s->array, &s->n_arrays, &own->array, p.at);
    if (!x) return false;
    bool prefix = str_is(key, "prefixItems") || (str_is(key, "items") && p.v->kind == JSON_ARRAY);
    if (prefix ? p.v->kind != JSON_ARRAY : !is_schema(p.v))
        return refuse(m, path_down(m, p.at, key), NULL, "is not a schema");
    if (prefix) {
        x->named    = p.v;
        x->named_at = path_down(m, p.at, key);
    } else if (!x->rest.v || str_is(key, "additionalItems") || str_is(key, "items")) {
        x->rest = (spot){p.v, path_down(m, p.at, key)};
    }
    return true;
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
    if (str_is(key, "required")) {
        if (p.v->kind == JSON_BOOL) return true; /* of an old draft: said to the object above */
        bool ok = p.v->kind == JSON_ARRAY;
        for (size_t i = 0; ok && i < p.v->n; i++) ok = p.v->item[i].kind == JSON_STRING;
        if (!ok) return refuse(m, p.at, "required", "is not an array of names");
        return put_spot(m, s->required, &s->n_required, MAX_PARTS, p, "required");
    }
    members *x = own_members(m, s->object, &s->n_objects, &own->object, p.at);
    if (!x) return false;
    bool named = str_is(key, "properties");
    if (named ? p.v->kind != JSON_OBJECT : !is_schema(p.v))
        return refuse(m, path_down(m, p.at, key), NULL, named ? "is not an object" : "is not a schema");
    if (named) {
        x->named    = p.v;
        x->named_at = path_down(m, p.at, key);
    } else {
        x->rest = (spot){p.v, path_down(m, p.at, key)};
    }
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

static bool take_keyword(maker *m, shape *s, spot p, str key, const json_value *schema, mine *own)
{
    static const char *const strings[] = {"minLength", "maxLength", "pattern", "format", NULL};
    static const char *const numbers[] = {"minimum",          "maximum",    "exclusiveMinimum",
                                          "exclusiveMaximum", "multipleOf", NULL};
    static const char *const arrays[]  = {"items",       "prefixItems", "additionalItems", "minItems", "maxItems",
                                          "uniqueItems", NULL};
    static const char *const objects[] = {"properties",    "required",      "additionalProperties",
                                          "minProperties", "maxProperties", NULL};
    if (is_one_of(key, strings)) {
        if (!str_is(key, "format")) s->hinted |= T_STRING;
        return take_string(m, s, p, key, schema);
    }
    if (is_one_of(key, numbers)) return s->hinted |= T_NUMBER, take_number(m, s, p, key, schema);
    if (is_one_of(key, arrays)) return s->hinted |= T_ARRAY, take_array(m, s, p, key, own);
    if (is_one_of(key, objects)) return s->hinted |= T_OBJECT, take_object(m, s, p, key, own);
    if (str_is(key, "allOf")) return collect_all(m, s, p, key);
    if (str_is(key, "anyOf") || str_is(key, "oneOf")) {
        if (p.v->kind != JSON_ARRAY || !p.v->n)
            return refuse(m, path_down(m, p.at, key), NULL, "is not an array of schemas");
        p.at = path_down(m, p.at, key);
        return put_spot(m, s->choice, &s->n_choices, MAX_CHOICES, p, NULL);
    }
    if (str_is(key, "enum") && p.v->kind != JSON_ARRAY) return refuse(m, p.at, "enum", "is not an array");
    if (str_is(key, "enum") || str_is(key, "const"))
        return put_spot(m, s->values, &s->n_values, MAX_CHOICES, (spot){p.v, path_down(m, p.at, key)}, NULL);
    if (str_is(key, "$ref")) {
        spot to;
        return find_ref(m, p.v, p.at, &to) && collect(m, s, to);
    }
    return refuse(m, path_down(m, p.at, key), NULL, "this keyword cannot be kept");
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
        if (!to) return builder_fail(&m->b, ERR_TOO_LARGE, "the schema is too large");
        for (uint32_t i = 0; i < s->collected_cap; i++)
            if (s->collected[i]) put_collected(to, cap, s->collected[i]);
        s->collected     = to;
        s->collected_cap = cap;
    }
    put_collected(s->collected, s->collected_cap, v);
    s->n_collected++;
    return true;
}

/* Whether the schema is being collected now, further up: it refers to itself then. */
static bool is_open(const maker *m, const json_value *v)
{
    for (int i = 0; i < m->deep; i++)
        if (m->open[i] == v) return true;
    return false;
}

static bool open_schema(maker *m, spot p)
{
    if (m->deep == MAX_DEEP)
        return refuse(m, p.at, NULL, "references, allOf and anyOf are nested over %d deep", MAX_DEEP);
    m->open[m->deep++] = p.v;
    return true;
}

/* Adds what one schema demands. A schema that was added before adds nothing. */
static bool collect(maker *m, shape *s, spot p)
{
    mine own = {0};
    if (m->b.failed) return false;
    if (p.v->kind == JSON_BOOL) {
        if (!p.v->b) s->types = 0;
        return true;
    }
    if (p.v->kind != JSON_OBJECT) return refuse(m, p.at, NULL, "is not a schema");
    m->at = p.at;
    if (has_collected(s, p.v)) return !is_open(m, p.v) || refuse(m, p.at, NULL, "refers to itself");
    if (!builder_spend(&m->b, 8 + 16 * p.v->n) || !open_schema(m, p) || !note_collected(m, s, p.v)) return false;
    bool              ok       = true;
    const json_value *nullable = json_get(p.v, "nullable"), *type = json_get(p.v, "type");
    if (type) ok = read_type(m, s, (spot){type, p.at}, nullable && nullable->kind == JSON_BOOL && nullable->b);
    for (size_t i = 0; ok && i < p.v->n; i++) {
        str key = p.v->member[i].key;
        if (is_annotation(key) || str_is(key, "type")) continue;
        ok = take_keyword(m, s, (spot){&p.v->member[i].value, p.at}, key, p.v, &own);
    }
    m->deep--;
    return ok;
}

/* --- rules of sets of schemas ------------------------------------------------------------------ */
static node *write_shape(maker *m, shape *s, const path *at);

/* Schemas that demand nothing and repeat others go; pure references are followed. */
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
            if (m->b.failed || !find_ref(m, ref, x.at, &x)) break;
        }
        bool known = x.v->kind == JSON_BOOL && x.v->b;
        for (int32_t k = 0; k < kept; k++) known = known || p[k].v == x.v;
        if (!known) p[kept++] = x;
    }
    return kept;
}

static shape *new_shape(maker *m, const path *at)
{
    if (m->n_shapes++ == MAX_SHAPES) refuse_too_large(m, at, "the schema has too many combinations");
    shape *s = builder_spend(&m->b, sizeof *s / 128) ? mem_try(sizeof *s) : NULL;
    if (!s) {
        builder_fail(&m->b, ERR_UNAVAILABLE, "no memory for a schema");
        return NULL;
    }
    s->types     = T_ALL;
    s->max_props = s->max_items = s->max_length = -1;
    return s;
}

/* The first known rule with the same hash, + 1. */
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
        if (!more) return builder_fail(&m->b, ERR_TOO_LARGE, "the schema is too large"), -1;
        if (m->n_known) memcpy(more, m->known, (size_t)m->n_known * sizeof *more);
        m->known     = more;
        m->known_cap = cap;
    }
    spot *copy = arena_try(&m->b.mem, (size_t)n + 1, sizeof *copy);
    if (!copy) return builder_fail(&m->b, ERR_TOO_LARGE, "the schema is too large"), -1;
    if (n) memcpy(copy, p, (size_t)n * sizeof *p);
    int32_t *head        = known_head(m, p, n);
    m->known[m->n_known] = (known_rule){copy, n, builder_rule(&m->b, (str){0}), *head};
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

static node *any_value(maker *m);

/* A value that fits all n schemas; NULL when nothing does. p is changed. */
static node *write_spots(maker *m, spot *p, int32_t n, const path *at)
{
    n = tidy_spots(m, p, n);
    if (m->b.failed) return NULL;
    if (!n) return any_value(m);
    for (int32_t i = *known_head(m, p, n); i && builder_spend(&m->b, 1); i = m->known[i - 1].next)
        if (same_spots(&m->known[i - 1], p, n))
            return m->known[i - 1].rule < 0 ? NULL : node_rule(&m->b, m->known[i - 1].rule);
    if (m->b.failed) return NULL;
    if (m->nested == MAX_NESTED) return refuse_too_large(m, at, "values are nested too deep"), NULL;
    m->nested++;
    int32_t k  = add_known(m, p, n);
    shape  *s  = k < 0 ? NULL : new_shape(m, at);
    bool    ok = s != NULL;
    for (int32_t i = 0; ok && i < n; i++) ok = collect(m, s, p[i]);
    node *body = ok ? write_shape(m, s, p[0].at) : NULL;
    mem_free(s);
    m->nested--;
    if (m->b.failed) return NULL;
    int32_t r = m->known[k].rule;
    builder_define(&m->b, r, body ? body : node_list(&m->b, NODE_ALT, NULL, 0));
    if (!body) m->known[k].rule = -1;
    return body ? node_rule(&m->b, r) : NULL;
}

/* --- any value --------------------------------------------------------------------------------- */
static node *any_members(maker *m, node *value)
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

static node *any_items(maker *m, node *value)
{
    builder *b    = &m->b;
    node    *more = node_repeat(b, node_seq(b, make_comma(m), value), 0, -1);
    return node_seq(b, node_puts(b, "["), node_alt(b, node_puts(b, "]"), node_seq(b, value, more, node_puts(b, "]"))));
}

static node *any_value(maker *m)
{
    builder     *b    = &m->b;
    const bounds free = {0};
    if (m->any_value < 0) {
        m->any_value = builder_rule(b, (str){0});
        node *self   = node_rule(b, m->any_value);
        builder_define(b, m->any_value,
                       node_alt(b, make_string(m, 0, -1), make_number(m, NULL, &free), any_members(m, self),
                                any_items(m, self), node_puts(b, "true"), node_puts(b, "false"), make_null(m)));
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

static size_t characters(str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += (s.s[i] & 0xC0) != 0x80;
    return n;
}

/* Whether a constant keeps what else is demanded; refuses where that cannot be told here. */
static bool constant_fits(maker *m, const shape *s, const json_value *v, const path *at)
{
    const bounds *r    = &s->range;
    unsigned      type = type_of(v);
    if (!(type & s->types)) return false;
    for (int32_t i = 1; i < s->n_values; i++) /* it comes from the first list */
        if (!is_listed(m, s->values[i], v)) return false;
    if (type & T_NUMBER) {
        if (r->has_low && (v->d < r->low || (v->d == r->low && r->low_out))) return false;
        if (r->has_high && (v->d > r->high || (v->d == r->high && r->high_out))) return false;
        return !s->multiple.v || fmod(v->d, s->multiple.v->d) == 0;
    }
    if (type == T_STRING) {
        size_t n = characters(v->s);
        if (s->pattern.v || s->format.v)
            return refuse(m, at, NULL, "constants beside a pattern or a format cannot be kept");
        return n >= (size_t)s->min_length && (s->max_length < 0 || n <= (size_t)s->max_length);
    }
    if ((type == T_ARRAY && (s->hinted & T_ARRAY)) || (type == T_OBJECT && (s->hinted & T_OBJECT)))
        return refuse(m, at, NULL, "constants beside demands on their members cannot be kept");
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

/* --- objects ----------------------------------------------------------------------------------- */
typedef struct {
    str   name;
    node *value; /* NULL: nothing fits, so it is never written */
    bool  required;
} property;

typedef struct {
    maker      *m;
    const path *at;
    property   *prop;
    int32_t    *table; /* properties by the hash of their names, + 1 */
    uint32_t    table_mask;
    int32_t     n, min, max; /* max < 0: no end */
    node       *other;       /* a key that is not named and its value; NULL: none */
    int32_t     cap;         /* counts from here on are alike */
    int32_t    *rule;        /* [n + 1][cap + 1], -1: not made yet */
} chain;

/* What all parts together say of a member; NULL when nothing fits. */
static node *write_member(maker *m, const members *list, int32_t n, str name, int64_t index, const path *at)
{
    spot    all[MAX_PARTS];
    int32_t n_all = 0;
    for (int32_t i = 0; i < n; i++) {
        const json_value *named = list[i].named, *v = NULL;
        builder_spend(&m->b, 2);
        if (named && named->kind == JSON_OBJECT && index < 0) v = find_member(m, named, name);
        if (named && named->kind == JSON_ARRAY && index >= 0 && (size_t)index < named->n) v = &named->item[index];
        if (v)
            all[n_all++] = (spot){v, path_down(m, list[i].named_at, name)};
        else if (list[i].rest.v)
            all[n_all++] = list[i].rest;
    }
    return write_spots(m, all, n_all, at);
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

/* What a reader of calls takes for the end of a name or of the arguments cannot be part of a name. */
static bool is_callable(str name) { return name.n && !memchr(name.s, '{', name.n) && !memchr(name.s, '}', name.n); }

static bool check_call_keys(const chain *c)
{
    for (int32_t i = 0; i < c->n; i++) {
        str name = c->prop[i].name;
        if (!is_callable(name) || memchr(name.s, ':', name.n))
            return refuse(c->m, c->at, "properties", "the key '%.*s' cannot be written in a call", STR_ARG(name));
    }
    return true;
}

/* All named properties with their values. False when none can be right, or the maker failed. */
static bool list_properties(chain *c, const shape *s)
{
    maker *m = c->m;
    for (int32_t i = 0; i < s->n_objects; i++)
        for (size_t k = 0; s->object[i].named && k < s->object[i].named->n; k++)
            add_property(c, s->object[i].named->member[k].key, false);
    for (int32_t i = 0; i < s->n_required; i++)
        for (size_t k = 0; k < s->required[i].v->n; k++) add_property(c, s->required[i].v->item[k].s, true);
    if (m->dialect == GRAMMAR_GEMMA4 && !check_call_keys(c)) return false;
    if (m->dialect == GRAMMAR_GEMMA4 && builder_spend_sort(&m->b, (size_t)c->n, 16 * (size_t)c->n))
        qsort(c->prop, (size_t)c->n, sizeof *c->prop, by_lower_name);
    for (int32_t i = 0; i < c->n; i++) {
        property *p = &c->prop[i];
        p->value    = write_member(m, s->object, s->n_objects, p->name, -1, c->at);
        if (m->b.failed || (p->required && !p->value)) return false;
    }
    return true;
}

static bool find_other(chain *c, const shape *s)
{
    maker *m     = c->m;
    node  *value = write_member(m, s->object, s->n_objects, (str){0}, INT64_MAX, c->at);
    if (m->b.failed) return false;
    if (!value) return true;
    str *name = arena_try(&m->b.mem, (size_t)c->n + 1, sizeof *name);
    if (!name) return builder_fail(&m->b, ERR_TOO_LARGE, "the schema is too large");
    for (int32_t i = 0; i < c->n; i++) name[i] = c->prop[i].name;
    int32_t key = builder_rule(&m->b, (str){0});
    builder_define(&m->b, key, make_other_name(m, name, (size_t)c->n));
    c->other = node_seq(&m->b, node_rule(&m->b, key), value);
    return !m->b.failed;
}

/* Rule (i, count): the properties from i on and the closing brace. */
static node *rest_of(chain *c, int32_t i, int32_t count)
{
    builder *b    = &c->m->b;
    int32_t *slot = &c->rule[(size_t)i * (size_t)(c->cap + 1) + (size_t)least(count, c->cap)];
    if (*slot < 0) *slot = builder_rule(b, (str){0});
    return node_rule(b, *slot);
}

static void write_rest(chain *c, int32_t i, int32_t count)
{
    builder *b     = &c->m->b;
    node_vec v     = {0};
    node    *comma = count ? make_comma(c->m) : node_empty(b);
    bool     room  = c->max < 0 || count < c->max;
    if (i < c->n) {
        property *p = &c->prop[i];
        if (room && p->value)
            node_vec_put(b, &v, node_seq(b, comma, make_name(c->m, p->name), p->value, rest_of(c, i + 1, count + 1)));
        if (!p->required) node_vec_put(b, &v, rest_of(c, i + 1, count));
    } else {
        if (room && c->other) node_vec_put(b, &v, node_seq(b, comma, c->other, rest_of(c, i, count + 1)));
        if (count >= c->min) node_vec_put(b, &v, node_puts(b, "}"));
    }
    rest_of(c, i, count);
    builder_define(b, c->rule[(size_t)i * (size_t)(c->cap + 1) + (size_t)count], node_list(b, NODE_ALT, v.p, v.n));
}

static node *write_chain(chain *c)
{
    builder *b       = &c->m->b;
    size_t   n_rules = (size_t)(c->n + 1) * (size_t)(c->cap + 1);
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
    node *first = rest_of(c, 0, 0);
    for (int32_t i = 0; i <= c->n && !b->failed; i++)
        for (int32_t count = 0; count <= c->cap && !b->failed; count++)
            if (c->rule[(size_t)i * (size_t)(c->cap + 1) + (size_t)count] >= 0 || i == c->n) write_rest(c, i, count);
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
    return (c->prop && c->table) || builder_fail(b, ERR_TOO_LARGE, "the schema is too large");
}

static node *write_object(maker *m, const shape *s, const path *at)
{
    chain c = {.m = m, .at = at, .min = s->min_props, .max = s->max_props};
    if (!s->n_objects && !s->n_required && !s->min_props && s->max_props < 0) return any_members(m, any_value(m));
    size_t n_names = 1;
    for (int32_t i = 0; i < s->n_objects; i++) n_names += s->object[i].named ? s->object[i].named->n : 0;
    for (int32_t i = 0; i < s->n_required; i++) n_names += s->required[i].v->n;
    if (n_names > MAX_NAMES) return refuse_too_large(m, at, "an object has too many properties"), NULL;
    if (!take_properties(&c, n_names) || !list_properties(&c, s) || !find_other(&c, s)) return NULL;
    int32_t n_required = 0, n_possible = 0;
    for (int32_t i = 0; i < c.n; i++) n_required += c.prop[i].required, n_possible += c.prop[i].value != NULL;
    if (c.min <= n_required) c.min = 0;
    if (c.max >= 0 && (c.max < c.min || c.max < n_required)) return NULL;
    if (c.min > n_possible && !c.other) return NULL;
    /* Two other keys may be the same word, which a reader counts once. */
    if (c.min > 1 && c.other)
        return refuse(m, s->min_props_at.at, "minProperties", "cannot be kept where other properties are allowed"),
               NULL;
    c.cap = most(1, most(c.min, c.max));
    return write_chain(&c);
}

/* --- arrays ------------------------------------------------------------------------------------ */
/* Items from i on, i >= 1, and the closing bracket. */
static node *items_after(maker *m, const shape *s, node *item, int32_t i)
{
    builder *b   = &m->b;
    int32_t  min = most(0, s->min_items - i), max = s->max_items < 0 ? -1 : s->max_items - i;
    node    *end = node_puts(b, "]");
    if (!item || max == 0) return min ? NULL : end;
    return node_seq(b, node_repeat(b, node_seq(b, make_comma(m), item), min, max), end);
}

static node *write_array(maker *m, const shape *s, const path *at)
{
    builder *b        = &m->b;
    int32_t  n_prefix = 0, max = s->max_items;
    for (int32_t i = 0; i < s->n_arrays; i++)
        if (s->array[i].named)
            n_prefix = most(n_prefix, s->array[i].named->n > 4096 ? 4097 : (int32_t)s->array[i].named->n);
    if (n_prefix > 4096) return refuse_too_large(m, at, "an array has more than 4096 prefixItems"), NULL;
    if (max >= 0 && max < s->min_items) return NULL;
    if (max >= 0 && n_prefix > max) n_prefix = max;
    node *item = write_member(m, s->array, s->n_arrays, (str){0}, INT64_MAX, at);
    node *rest = m->b.failed ? NULL : items_after(m, s, item, most(n_prefix, 1));
    /* From the last to the first: rest is what may follow item i. */
    for (int32_t i = most(n_prefix, 1) - 1; i >= 0 && !m->b.failed; i--) {
        node    *x   = i < n_prefix ? write_member(m, s->array, s->n_arrays, (str){0}, i, at) : item;
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

/* --- shapes ------------------------------------------------------------------------------------ */
static node *write_text(maker *m, const shape *s)
{
    bool format = s->format.v && !is_number_format(s->format.v->s);
    if (s->pattern.v && format)
        return refuse(m, s->format.at, "format", "cannot be kept together with a pattern"), NULL;
    if (s->pattern.v) return make_pattern(m, s->pattern.at, s->pattern.v->s, false, s->min_length, s->max_length);
    if (format) return make_format(m, s->format.at, s->format.v->s, s->min_length, s->max_length);
    return make_string(m, s->min_length, s->max_length);
}

static node *write_number(maker *m, const shape *s)
{
    bounds  r        = s->range;
    int64_t multiple = s->multiple.v ? (int64_t)s->multiple.v->d : 0;
    str     format   = s->format.v ? s->format.v->s : (str){0};
    bool    whole    = !(s->types & T_REAL) || multiple;
    if (!(s->types & T_INTEGER))
        return refuse(m, s->range_at, NULL, "numbers that are not whole cannot be asked for"), NULL;
    if (str_is(format, "int32")) bound_low(&r, INT32_MIN, false), bound_high(&r, INT32_MAX, false);
    if (str_is(format, "uint32")) bound_low(&r, 0, false), bound_high(&r, UINT32_MAX, false);
    if (str_is(format, "uint64")) bound_low(&r, 0, false);
    return whole ? make_integer(m, s->multiple.at ? s->multiple.at : s->range_at, &r, multiple)
                 : make_number(m, s->range_at, &r);
}

static node *write_types(maker *m, shape *s, const path *at)
{
    builder *b = &m->b;
    node_vec v = {0};
    if (!s->typed && s->hinted) s->types &= s->hinted;
    if (!s->typed && !s->hinted && s->format.v && !is_number_format(s->format.v->s)) s->types &= T_STRING;
    for (unsigned t = 1; t <= T_OBJECT && !b->failed; t <<= 1) {
        node *x = NULL;
        if (!(s->types & t) || (t == T_REAL && (s->types & T_INTEGER))) continue;
        if (t == T_NULL) x = make_null(m);
        if (t == T_BOOL) x = node_alt(b, node_puts(b, "true"), node_puts(b, "false"));
        if (t == T_INTEGER || t == T_REAL) x = write_number(m, s);
        if (t == T_STRING) x = write_text(m, s);
        if (t == T_ARRAY) x = write_array(m, s, at);
        if (t == T_OBJECT) x = write_object(m, s, at);
        if (x) node_vec_put(b, &v, x);
    }
    return v.n && !b->failed ? node_list(b, NODE_ALT, v.p, v.n) : NULL;
}

static void forget_collected(shape *s)
{
    s->collected   = NULL;
    s->n_collected = s->collected_cap = 0;
}

/* Whether the last anyOf is all that the shape demands: its alternatives are then rules of their own. */
static bool only_choice(const shape *s)
{
    return s->types == T_ALL && !s->typed && !s->hinted && !s->format.v && !s->n_values && s->n_choices == 1;
}

static node *write_choice(maker *m, const shape *s, const path *at)
{
    spot     list = s->choice[s->n_choices - 1];
    node_vec v    = {0};
    for (size_t i = 0; i < list.v->n && !m->b.failed; i++) {
        spot  p = {&list.v->item[i], list.at};
        node *x = NULL;
        if (only_choice(s)) {
            x = write_spots(m, &p, 1, at);
        } else {
            shape *with = new_shape(m, at);
            if (!with) return NULL;
            *with = *s;
            with->n_choices--;
            forget_collected(with); /* what the alternatives refer to is demanded of each of them anew */
            if (open_schema(m, (spot){NULL, list.at})) {
                if (collect(m, with, p)) x = write_shape(m, with, at);
                m->deep--;
            }
            mem_free(with);
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
static void maker_init(maker *m, grammar_dialect dialect, const atomic_bool *cancel)
{
    *m = (maker){.dialect = dialect, .any_value = -1, .key = -1, .number = -1, .integer = -1};
    builder_init(&m->b, GRAMMAR_JSON_DEPTH, cancel);
}

/* Says where a schema was when its work ran out. */
static void name_long_part(maker *m)
{
    if (!m->b.too_long || !m->at) return;
    m->b.failed = m->b.too_long = false;
    refuse_too_large(m, m->at,
                     "the schema takes too much work to compile; use fewer properties, constants or alternatives, or "
                     "fewer of them joined by allOf");
}

/* also: another schema that is to be kept; NULL: none. */
static node *write_root(maker *m, const json_value *schema, const json_value *also)
{
    m->root    = schema;
    m->root_at = path_down(m, NULL, STR("#"));
    m->n_known = 0;
    memset(m->known_head, 0, sizeof m->known_head);
    spot  p[] = {{schema, m->root_at}, {also, m->root_at}};
    node *x   = write_spots(m, p, also ? 2 : 1, m->root_at);
    if (!x && !m->b.failed) refuse(m, m->root_at, NULL, also ? "it must be an object" : "no value fits the schema");
    name_long_part(m);
    return x;
}

static bool finish(maker *m, node *root, grammar **out, err *e)
{
    int32_t r = builder_rule(&m->b, (str){0});
    builder_define(&m->b, r, root);
    bool ok = grammar_compile(out, &m->b, r, e);
    builder_deinit(&m->b);
    return ok;
}

bool grammar_from_schema(grammar **out, const json_value *schema, grammar_dialect dialect, const atomic_bool *cancel,
                         err *e)
{
    maker m;
    maker_init(&m, dialect, cancel);
    return finish(&m, write_root(&m, schema, NULL), out, e) || err_wrap(e, "the schema cannot be used");
}

bool grammar_any_object(grammar **out, err *e)
{
    maker m;
    maker_init(&m, GRAMMAR_JSON, NULL);
    return finish(&m, any_members(&m, any_value(&m)), out, e);
}

static node *write_call(maker *m, const grammar_tool *tool)
{
    json_member       type   = {STR("type"), {.kind = JSON_STRING, .s = STR("object")}};
    json_value        object = {.kind = JSON_OBJECT, .n = 1, .member = &type};
    builder          *b      = &m->b;
    const json_value *p      = tool->parameters;
    node             *args   = !p || p->kind == JSON_NULL ? node_puts(b, "{}") : write_root(m, p, &object);
    if (!is_callable(tool->name)) builder_fail(b, ERR_INPUT, "its name cannot be written in a call");
    return node_seq(b, node_marker(b, STR("<|tool_call>")), node_puts(b, "call:"), node_text(b, tool->name),
                    args ? args : node_empty(b), node_marker(b, STR("<tool_call|>")));
}

bool grammar_tool_calls(grammar **out, const grammar_tool *tool, size_t n, bool several, const atomic_bool *cancel,
                        err *e)
{
    maker    m;
    node_vec v = {0};
    maker_init(&m, GRAMMAR_GEMMA4, cancel);
    *out = NULL;
    for (size_t i = 0; i < n && !m.b.failed; i++) {
        node_vec_put(&m.b, &v, write_call(&m, &tool[i]));
        if (m.b.failed) {
            err_set(e, m.b.why.code, "%s", m.b.why.text);
            builder_deinit(&m.b);
            return err_wrap(e, "the parameters of tool '%.*s' cannot be used", STR_ARG(tool[i].name));
        }
    }
    return finish(&m, node_repeat(&m.b, node_list(&m.b, NODE_ALT, v.p, v.n), 1, several ? -1 : 1), out, e);
}
