/* grammar/schema.h - shared by the files that read JSON Schema. Private to grammar/. */
#ifndef TANDEM_GRAMMAR_SCHEMA_H
#define TANDEM_GRAMMAR_SCHEMA_H
#include "grammar/regular.h"

/* The path of a schema, for messages: #/properties/a/items. */
typedef struct path path;
struct path {
    const path *up; /* NULL: the root, whose key is "#" or a reference */
    str         key;
};

typedef struct { /* rules that are the same for all strings of these lengths */
    int32_t min, max, rule;
} string_rule;

typedef struct { /* the same for strings of one pattern or format */
    str     text;
    bool    is_format;
    int32_t min, max, rule;
} text_rule;

typedef struct {
    const json_value *v;
    const path       *at;
} spot;

typedef struct { /* the rule of a value that must match all of these */
    spot   *part;
    int32_t n, rule; /* rule -1: nothing matches */
    int32_t level;   /* while it is written: values around it; -1: it is done */
    int32_t next;    /* with the same hash, + 1; 0: none */
} known_rule;

typedef struct lookup    lookup;
typedef struct made      made;
typedef struct reference reference;
typedef struct scope     scope;
enum {
    KNOWN_TABLE = 1024,
    MAX_DEEP    = 64, /* references, allOf and anyOf inside one another; nested values are the reader's */
};

typedef struct {
    builder           b;
    const json_value *root;
    const path       *root_at;
    const tok_markup *call; /* NULL: values are written as JSON */
    known_rule       *known;
    int32_t           n_known, known_cap;
    int32_t           known_head[KNOWN_TABLE]; /* by hash */
    lookup           *lookups;                 /* by the hash of what they are tables of */
    uint32_t          n_lookups, lookup_cap;
    const path       *at;             /* the schema that was collected last */
    const json_value *open[MAX_DEEP]; /* being collected, one for the other; [deep] of them */
    int               open_level[MAX_DEEP];
    const scope      *scope; /* scope of the schema being collected */
    int               level; /* objects and arrays around the value that is written */
    string_rule       strings[64];
    text_rule         texts[64];
    int32_t           n_strings, n_texts;
    int32_t           any_value, key, number, integer; /* rules, -1: not made yet */
    node             *unit, *key_unit;                 /* a character as it is written in a string */
    int               n_shapes, deep, nested;
    made             *made; /* schemas made of others, by hash */
    uint32_t          n_made, made_cap;
    reference        *refs; /* schema_ref.c */
} maker;

/* The bounds of a number; `low` and `high` only where has_low and has_high. A long double keeps every int64_t. */
typedef struct {
    bool        has_low, has_high, low_out, high_out; /* _out: the bound itself is excluded */
    long double low, high;
} bounds;

/* A multiple of k / 10^places; k 0: of anything. */
typedef struct {
    int64_t k;
    int     places;
} decimal;

/* Constraints on a string. */
enum { MAX_TEXTS = 16 };
typedef struct {
    spot    pattern[MAX_TEXTS], without[MAX_TEXTS]; /* patterns that it must match, and must not */
    int32_t n_patterns, n_without;
    spot    except[MAX_TEXTS]; /* arrays of values that it must not be */
    int32_t n_except;
    spot    format;   /* an annotation with a pattern, or if unknown */
    int32_t min, max; /* characters; max < 0: no end */
} text_demand;

/* --- shapes ------------------------------------------------------------------------------------ */
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
    MAX_SHAPES  = 1 << 13, /* shapes of one schema */
    MAX_PARTS   = 64,      /* schemas that apply to one object or array */
    MAX_CHOICES = 32,      /* anyOf, oneOf, if and similar of one value */
    MAX_NAMES   = 4096,    /* in properties and required of one object */
    MAX_CHAIN   = 1 << 13, /* rules of one object or array */
    MAX_CONTAIN = 4,       /* contains of one array */
    MAX_OUTSIDE = 3,       /* closed objects that one value must not fit */
    MAX_LEFT    = 8,       /* unevaluated* of one value */
    MAX_COUNT   = GRAMMAR_MAX_REPEAT,
};

/* A schema with unevaluatedProperties or unevaluatedItems. The schemas inside it count as evaluating members, except
 * inside a `not`. */
struct scope {
    const scope *up;
};

typedef struct {             /* the constraints of one schema on members; `rest` for those that it does not name */
    const json_value *named; /* properties, or prefixItems */
    const path       *named_at;
    const json_value *patterns; /* patternProperties */
    const path       *patterns_at;
    spot              rest; /* .v NULL: anything */
    const scope      *in;   /* NULL: none */
} members;

typedef struct { /* unevaluatedProperties or unevaluatedItems: for members that no schema in its scope evaluates */
    spot         rest;
    const scope *of;
    bool         array;
} leftover;

typedef struct { /* an array has min to max matching items; max < 0: unbounded */
    spot         fits, other;
    int32_t      min, max;
    const scope *in;
} containing;

typedef struct {
    spot         list; /* an array of schemas, one of which must match */
    bool         one;  /* exactly one */
    const scope *in;
} choice;

/* All constraints of a set of schemas on a value. */
typedef struct {
    unsigned           types, hinted; /* allowed types; types that its keywords apply to */
    bool               typed, unique;
    spot               unique_at;
    members            object[MAX_PARTS], array[MAX_PARTS];
    int32_t            n_objects, n_arrays;
    spot               required[MAX_PARTS]; /* arrays of names */
    int32_t            n_required;
    int32_t            min_props, max_props, min_items, max_items; /* max < 0: no end */
    spot               min_props_at, max_props_at;
    spot               names[MAX_CHOICES]; /* propertyNames */
    int32_t            n_names;
    containing         contain[MAX_CONTAIN];
    int32_t            n_contain;
    spot               outside[MAX_OUTSIDE]; /* objects; for each, a property that is not in it is required */
    int32_t            n_outside;
    leftover           left[MAX_LEFT];
    int32_t            n_left;
    text_demand        text;
    decimal            multiple;
    spot               multiple_at, number_format;
    bounds             range;
    const path        *range_at;
    spot               values[MAX_CHOICES]; /* enum and const */
    int32_t            n_values;
    choice             choice[MAX_CHOICES];
    int32_t            n_choices;
    const json_value **collected; /* the schemas that are part of it, by hash; NULL where free */
    uint32_t           n_collected, collected_cap;
} shape;

/* schema.c */
void maker_init(maker *m, const tok_markup *call, const atomic_bool *cancel);
/* Writes all following values in this markup. Earlier rules are not reused. */
void   maker_set_markup(maker *m, const tok_markup *call);
node  *write_root(maker *m, const json_value *schema, const json_value *also); /* also: a second schema; NULL: none */
bool   maker_finish(maker *m, node *root, grammar **out, err *e); /* compiles, and frees the maker's memory */
shape *new_shape(maker *m, const path *at);                       /* the caller frees it; NULL: the maker failed */
bool   collect(maker *m, shape *s, spot p);                       /* adds the constraints of one schema */
node  *write_spots(maker *m, spot *p, int32_t n, const path *at); /* a value that matches all; NULL: none does */
node  *any_value(maker *m);
/* Copies a shape without its last choice and adds alternative i of that. NULL: the maker failed. The caller frees it
 * and decrements m->deep. */
shape   *choose(maker *m, const shape *s, size_t i, const path *at);
bool     constant_fits(maker *m, const shape *s, const json_value *v, const path *at);
bool     is_callable(str name);
bool     is_annotation(str key);
unsigned type_named(str s); /* 0: there is no such type */

/* schema_object.c and schema_array.c. Return NULL when nothing matches. */
node *any_members(maker *m, node *value);
node *write_object(maker *m, const shape *s, const path *at);
node *any_items(maker *m, node *value);
node *write_array(maker *m, const shape *s, const path *at);

bool is_inside(const scope *in, const scope *of); /* true also for the same scope */
/* Returns whether another unevaluated* inside its scope applies to all members. */
bool is_covered(const shape *s, const leftover *x);

/* schema_ref.c: follows a reference inside the document. */
bool find_ref(maker *m, const json_value *ref, const path *at, bool dynamic, spot *out);

/* Keywords of made schemas; no client can write them, since the reader refuses a NUL in a key. */
#define KEY_EXCEPT  ((str){"\0except", 7})  /* an array of values: none of them */
#define KEY_OUTSIDE ((str){"\0outside", 8}) /* an object: a property that is not in it */
#define KEY_WITHOUT ((str){"\0without", 8}) /* a pattern that does not match */

/* schema_not.c: expresses schemas by others. Returns an array of alternatives; NULL: refused. */
const json_value *negate(maker *m, spot p);
const json_value *wrap_not(maker *m, const json_value *v); /* {"not": v}; NULL: the maker failed */
const json_value *expand_if(maker *m, const json_value *schema);
const json_value *expand_dependency(maker *m, const json_member *d);
const json_value *either(maker *m, const json_value *a, const json_value *b); /* {"anyOf": [a, b]}; NULL: it failed */
bool              are_disjoint(maker *m, spot a, spot b);
bool              all_disjoint(maker *m, spot list); /* each requires a different constant */

void       *schema_take(maker *m, size_t n, size_t each); /* zeroed; NULL: the maker failed */
const path *path_down(maker *m, const path *up, str key);
/* Refuses with the path: "#/a/pattern: ...". Always false. */
bool refuse(maker *m, const path *at, const char *key, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
bool refuse_too_large(maker *m, const path *at, const char *what);

/* Returns a member of an object, or the item of an array at index `key`; NULL: none, or the maker failed. */
const json_value *find_member(maker *m, const json_value *v, str key);
/* Returns whether $schema names draft 7 or older, which ignores keywords next to $ref. */
bool is_old_draft(const maker *m);
bool is_listed(maker *m, spot list, const json_value *v); /* true if v is in the enum, or equals the const */
bool same_value(maker *m, const json_value *a, const json_value *b);
bool are_different(maker *m, const json_value *list); /* true if all its values differ */

enum { N_JSON_PLAIN = 3 };
extern const char_range json_plain[N_JSON_PLAIN]; /* characters that need no escape in a JSON string */

/* Write values other than objects and arrays. NULL: nothing matches, or the maker failed. */
node *make_null(maker *m);
node *make_string(maker *m, int32_t min, int32_t max); /* max < 0: no end */
node *make_quote(maker *m);
node *make_text(maker *m, const text_demand *d, const path *at);
bool  is_text_format(str name);
bool  text_allows(maker *m, const text_demand *d, str s); /* ignores the format: constants need not match it */
/* Returns the set of matching strings, for keys; NULL: the maker failed. */
term *make_text_term(maker *m, regular *r, const text_demand *d);
/* Writes one of these keys and its colon, except keys that a call cannot contain. NULL: none. */
node       *make_key(maker *m, regular *r, term *keys, const path *at);
bool        is_number_format(str format);
node       *make_number(maker *m, const path *at, const bounds *b, decimal multiple);
node       *make_integer(maker *m, const path *at, const bounds *b, decimal multiple);
bool        read_decimal(double d, decimal *out);              /* false: more than 9 digits after the point */
bool        join_decimals(decimal a, decimal b, decimal *out); /* the least common multiple; false: too large */
bool        is_multiple(const json_value *v, decimal of);
long double number_of(const json_value *v);
node       *make_literal(maker *m, const json_value *v); /* a constant of any type */
node       *make_name(maker *m, str name);               /* a key and its colon */
node       *make_other_name(maker *m, const str *names, size_t n);
node       *make_space(maker *m); /* optional space after : and , */
node       *make_comma(maker *m);
#endif
