/* grammar/schema.h - shared by the files that convert JSON Schema to rules. Private to grammar/.
 *
 * schema.c collects all constraints of the schemas that apply to a value in a `shape`, and writes the shape as nodes;
 * schema_object.c, schema_array.c, schema_text.c and schema_value.c write the kinds of values. Functions that return a
 * node return NULL when no value matches or the maker failed (maker.b.failed), unless they say otherwise. Memory is the
 * builder's, except where the caller frees. */
#ifndef TANDEM_GRAMMAR_SCHEMA_H
#define TANDEM_GRAMMAR_SCHEMA_H
#include "grammar/regular.h"

/* The path of a schema, for messages: #/properties/a/items. */
typedef struct path path;
struct path {
    const path *up; /* NULL: the root, whose key is "#" or a reference */
    str         key;
};

typedef struct { /* the rule that all strings with these lengths in characters share */
    int32_t min, max, rule;
} string_rule;

typedef struct {  /* the same for strings of one pattern or format */
    str     text; /* the pattern, or the name of the format */
    bool    is_format;
    int32_t min, max, rule;
} text_rule;

typedef struct { /* a part of a schema and its path */
    const json_value *v;
    const path       *at;
} spot;

typedef struct { /* the rule of a value that must match all of these schemas */
    spot   *part;
    int32_t n, rule; /* rule -1: nothing matches */
    int32_t level;   /* while it is written: maker.level at its start; -1: it is complete */
    int32_t next;    /* next one with the same hash, + 1; 0: none */
} known_rule;

typedef struct lookup    lookup;
typedef struct made      made;
typedef struct reference reference;
typedef struct scope     scope;
enum {
    KNOWN_TABLE = 1024,
    MAX_DEEP    = 64, /* references, allOf and anyOf inside one another; nested values have MAX_NESTED */
};

typedef struct {
    builder           b;
    const json_value *root; /* the document; references are resolved in it */
    const path       *root_at;
    const tok_markup *call; /* NULL: values are written as JSON */
    known_rule       *known;
    int32_t           n_known, known_cap;
    int32_t           known_head[KNOWN_TABLE]; /* by hash */
    lookup           *lookups;                 /* schema_find.c: tables of objects and lists */
    uint32_t          n_lookups, lookup_cap;
    const path       *at;                   /* the schema that was collected last */
    const json_value *open[MAX_DEEP];       /* [deep]: schemas being collected, each inside the one before */
    int               open_level[MAX_DEEP]; /* `level` of each */
    const scope      *scope;                /* scope of the schema being collected */
    int               level;                /* objects and arrays around the value that is written */
    string_rule       strings[64];
    text_rule         texts[64];
    int32_t           n_strings, n_texts;
    int32_t           any_value, key, number, integer; /* rules, -1: not made yet */
    node             *unit, *key_unit;                 /* a character as it is written in a string, in a key; or NULL */
    int               n_shapes;                        /* shapes made so far */
    int               deep;                            /* entries of `open` */
    int               nested;                          /* values being written inside one another */
    made             *made;                            /* schemas made of others, by hash */
    uint32_t          n_made, made_cap;
    reference        *refs; /* schema_ref.c: index of the document; NULL: not made yet */
} maker;

/* The bounds of a number; `low` and `high` only where has_low and has_high. A long double keeps every int64_t. */
typedef struct {
    bool        has_low, has_high, low_out, high_out; /* _out: the bound itself is excluded */
    long double low, high;
} bounds;

/* The multiples of k / 10^places; k 0: all numbers. */
typedef struct {
    int64_t k;
    int     places;
} decimal;

/* Constraints on a string. */
enum { MAX_TEXTS = 16 };
typedef struct {
    spot    pattern[MAX_TEXTS], without[MAX_TEXTS]; /* patterns that it must match, and must not */
    int32_t n_patterns, n_without;
    spot    except[MAX_TEXTS]; /* arrays of values that it must not be; other types than strings count too */
    int32_t n_except;
    spot    format;   /* a known format; .v NULL: none. Not enforced next to a pattern */
    int32_t min, max; /* characters; max < 0: no limit */
} text_demand;

/* --- shapes ------------------------------------------------------------------------------------ */
enum { /* sets of types */
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
    MAX_PARTS   = 64,      /* schemas with constraints on members that apply to one object or array */
    MAX_CHOICES = 32,      /* anyOf, oneOf, if and similar of one value */
    MAX_NAMES   = 4096,    /* in properties and required of one object */
    MAX_CHAIN   = 1 << 13, /* rules of one object or array */
    MAX_CONTAIN = 4,       /* contains of one array */
    MAX_OUTSIDE = 3,       /* closed objects that one value must not fit */
    MAX_LEFT    = 8,       /* unevaluated* of one value */
    MAX_COUNT   = GRAMMAR_MAX_REPEAT,
};

/* A schema with unevaluatedProperties or unevaluatedItems: members that the schemas inside it constrain count as
 * evaluated, except inside a `not`. */
struct scope {
    const scope *up;
};

typedef struct {             /* the constraints of one schema on members; `rest` for those that it does not name */
    const json_value *named; /* properties, or prefixItems */
    const path       *named_at;
    const json_value *patterns; /* patternProperties */
    const path       *patterns_at;
    spot              rest; /* additionalProperties or items; .v NULL: anything */
    const scope      *in;   /* innermost scope around the schema; NULL: none */
} members;

typedef struct { /* unevaluatedProperties or unevaluatedItems: for members that no schema in its scope evaluates */
    spot         rest; /* their schema */
    const scope *of;
    bool         array; /* unevaluatedItems */
} leftover;

typedef struct {              /* an array has min to max matching items; max < 0: unbounded */
    spot         fits, other; /* the schema of `contains`, and its negation */
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
    unsigned    types, hinted; /* allowed types; types that its keywords apply to */
    bool        typed;         /* a schema has `type`; if not, the hinted types are written; without any, all */
    bool        unique;        /* uniqueItems */
    spot        unique_at;
    members     object[MAX_PARTS], array[MAX_PARTS];
    int32_t     n_objects, n_arrays;
    spot        required[MAX_PARTS]; /* arrays of names */
    int32_t     n_required;
    int32_t     min_props, max_props, min_items, max_items; /* max < 0: no end */
    spot        min_props_at, max_props_at;
    spot        names[MAX_CHOICES]; /* propertyNames */
    int32_t     n_names;
    containing  contain[MAX_CONTAIN];
    int32_t     n_contain;
    spot        outside[MAX_OUTSIDE]; /* objects of properties; for each, a property that is not in it is required */
    int32_t     n_outside;
    leftover    leftover_of[MAX_LEFT];
    int32_t     n_left;
    text_demand text;
    decimal     multiple;
    spot        multiple_at, number_format;
    bounds      range;
    const path *range_at;
    spot        values[MAX_CHOICES]; /* enum and const */
    int32_t     n_values;
    choice      choice[MAX_CHOICES];
    int32_t     n_choices;
    const json_value **collected; /* hash table of the schemas that are part of it; NULL where free */
    uint32_t           n_collected, collected_cap;
} shape;

/* schema.c */
void maker_init(maker *m, const tok_markup *call, const atomic_bool *cancel); /* free it with maker_finish */
/* Makes all following values be written in this markup (NULL: as JSON). Call write_root next: only it forgets the
 * rules of earlier schemas. Rules of numbers are reused. */
void maker_set_markup(maker *m, const tok_markup *call);
/* Writes a document: a value that matches schema and also, if it is not NULL, `also`. Refuses a schema that no value
 * matches. Returns NULL only when the maker failed. */
node *write_root(maker *m, const json_value *schema, const json_value *also);
/* Compiles a grammar of `root`, which may be NULL if the maker failed, and frees the maker's memory in any case. */
bool   maker_finish(maker *m, node *root, grammar **out, err *e);
shape *new_shape(maker *m, const path *at); /* no constraints; freed with mem_free; NULL: the maker failed */
/* Adds the constraints of one schema. Returns false when the maker failed. */
bool  collect(maker *m, shape *s, spot p);
node *write_spots(maker *m, spot *p, int32_t n, const path *at); /* a value that matches all n; reorders p */
node *any_value(maker *m);                                       /* a value of any type; not NULL */
/* Copies a shape without its last choice and adds alternative i of that. The caller frees it with mem_free and
 * decrements m->deep. NULL: the maker failed. */
shape *choose(maker *m, const shape *s, size_t i, const path *at);
/* Returns whether v, a constant of s->values[0], satisfies the other constraints. Refuses the schema, and returns
 * false, if that cannot be decided. */
bool     constant_fits(maker *m, const shape *s, const json_value *v, const path *at);
bool     is_callable(str name);  /* true if it can be the name of a tool in a call: not empty, no braces */
bool     is_annotation(str key); /* true for keywords that do not constrain values, and for x-... */
unsigned type_named(str s);      /* the types of a name such as "number"; 0: there is no such type */

/* tagged.c: writes a call of the tool in a markup without quote; m writes JSON. After a failure of the maker the result
 * is of no use. */
node *write_tagged_call(maker *m, const grammar_tool *tool, const tok_markup *markup);

/* schema_object.c and schema_array.c */
node *any_members(maker *m, node *value); /* an object with any keys and these values; not NULL */
node *write_object(maker *m, const shape *s, const path *at);
node *any_items(maker *m, node *value); /* an array of these values; not NULL */
node *write_array(maker *m, const shape *s, const path *at);

bool is_inside(const scope *in, const scope *of); /* whether `in` is `of` or inside it; false if it is NULL */
/* Returns whether another unevaluated* of the same kind, inside the scope of x, applies to all members. */
bool is_covered(const shape *s, const leftover *x);

/* schema_ref.c: sets *out to the schema that a $ref, or if `dynamic` a $dynamicRef, names in the document. Refuses one
 * that is not there. */
bool find_ref(maker *m, const json_value *ref, const path *at, bool dynamic, spot *out);

/* Keywords of made schemas; no client can write them, since the reader refuses a NUL in a key. */
#define KEY_EXCEPT  ((str){"\0except", 7})  /* an array of values: none of them */
#define KEY_OUTSIDE ((str){"\0outside", 8}) /* an object: a property that is not in it is required */
#define KEY_WITHOUT ((str){"\0without", 8}) /* a pattern that must not match */

/* schema_not.c: expresses schemas by others. Each returns the same pointer for the same arguments; NULL: the maker
 * failed. The first three return an array of alternatives, one of which must match. */
const json_value *negate(maker *m, spot p);                          /* the negation, one level deep */
const json_value *expand_if(maker *m, const json_value *schema);     /* if, then and else of a schema */
const json_value *expand_dependency(maker *m, const json_member *d); /* a member of dependentRequired or -Schemas */
const json_value *wrap_not(maker *m, const json_value *v);           /* {"not": v} */
const json_value *either(maker *m, const json_value *a, const json_value *b); /* {"anyOf": [a, b]} */
/* Return true if it is certain that no value matches both schemas, or two of the list; false if it is not known. */
bool are_disjoint(maker *m, spot a, spot b);
bool all_disjoint(maker *m, spot list); /* checks only for a required key with a different constant in each */

void       *schema_take(maker *m, size_t n, size_t each); /* zeroed memory of the builder; NULL: the maker failed */
const path *path_down(maker *m, const path *up, str key); /* up and a key; up itself if the maker fails. Borrows key */
/* Fail the maker, unless it has failed already, with ERR_INPUT or ERR_TOO_LARGE and the path: "#/a/pattern: ...". key:
 * appended to the path, or NULL. Always return false. */
bool refuse(maker *m, const path *at, const char *key, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
bool refuse_too_large(maker *m, const path *at, const char *what);

/* Returns a member of an object, or the item of an array at index `key`; NULL: none, or the maker failed. */
const json_value *find_member(maker *m, const json_value *v, str key);
/* Returns whether $schema names draft 7 or older, which ignores keywords next to $ref. */
bool is_old_draft(const maker *m);
bool is_listed(maker *m, spot list, const json_value *v);            /* true if v is in the enum, or equals the const */
bool same_value(maker *m, const json_value *a, const json_value *b); /* 1 equals 1.0; the order of members is ignored */
bool are_different(maker            *m,
                   const json_value *list); /* true if all its values differ; false also if the maker failed */

enum { N_JSON_PLAIN = 3 };
extern const char_range json_plain[N_JSON_PLAIN]; /* characters that need no escape in a JSON string */

/* schema_text.c and schema_value.c: values other than objects and arrays. */
node *make_null(maker *m);
node *make_string(maker *m, int32_t min, int32_t max); /* a string of min to max characters; max < 0: no limit */
node *make_quote(maker *m);                            /* the character or marker before and after a string */
/* A string that satisfies d. Where the automaton is too large, only the shorter ones of the matching strings. */
node *make_text(maker *m, const text_demand *d, const path *at);
bool  is_text_format(str name);                           /* a format of strings that is enforced */
bool  text_allows(maker *m, const text_demand *d, str s); /* ignores the format: constants need not match it */
/* Returns the set of matching strings; NULL: the maker failed. */
term *make_text_term(maker *m, regular *r, const text_demand *d);
/* Writes one of these keys and its colon; in a call only keys of ASCII letters, digits, - and _. */
node *make_key(maker *m, regular *r, term *keys, const path *at);
bool  is_number_format(str format); /* int32, double and similar; int32, uint32 and uint64 set bounds */
/* Write a number, or an integer, between the bounds that is one of the multiples. */
node       *make_number(maker *m, const path *at, const bounds *b, decimal multiple);
node       *make_integer(maker *m, const path *at, const bounds *b, decimal multiple);
bool        read_decimal(double d, decimal *out);              /* d > 0; false: too many digits, or too large */
bool        join_decimals(decimal a, decimal b, decimal *out); /* the least common multiple; false: too large */
bool        is_multiple(const json_value *v, decimal of);      /* v: a number */
long double number_of(const json_value *v);                    /* the value of a number */
/* Not NULL: */
node *make_literal(maker *m, const json_value *v); /* a constant of any type */
node *make_name(maker *m, str name);               /* a key and its colon */
/* A key other than these, and its colon. Some other keys that begin like them may be left out. */
node *make_other_name(maker *m, const str *names, size_t n);
node *make_space(maker *m); /* optional space after : and , */
node *make_comma(maker *m); /* a comma and optional space */
#endif
