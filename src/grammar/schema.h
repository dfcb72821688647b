/* grammar/schema.h - what the files that read JSON Schema share. Private to grammar/. */
#ifndef TANDEM_GRAMMAR_SCHEMA_H
#define TANDEM_GRAMMAR_SCHEMA_H
#include "grammar/inside.h"

/* Where a schema stands, for sentences: #/properties/a/items. */
typedef struct path path;
struct path {
    const path *up; /* NULL: the root, whose key is "#" or a reference */
    str         key;
};

typedef struct { /* rules that are the same for all strings of these lengths */
    int32_t min, max, rule;
} string_rule;

typedef struct {
    const json_value *v;
    const path       *at;
} spot;

typedef struct { /* the rule of a value that must fit all of these */
    spot   *part;
    int32_t n, rule; /* rule -1: nothing fits */
    int32_t next;    /* with the same hash, + 1; 0: none */
} known_rule;

typedef struct lookup lookup;
enum {
    KNOWN_TABLE = 1024,
    MAX_DEEP    = 64, /* references, allOf and anyOf inside one another; nested values are the reader's */
};

typedef struct {
    builder           b;
    const json_value *root;
    const path       *root_at;
    grammar_dialect   dialect;
    known_rule       *known;
    int32_t           n_known, known_cap;
    int32_t           known_head[KNOWN_TABLE]; /* by hash */
    lookup           *lookups;                 /* by the hash of what they are tables of */
    uint32_t          n_lookups, lookup_cap;
    const path       *at;             /* the schema that was collected last */
    const json_value *open[MAX_DEEP]; /* being collected, one for the other; [deep] of them */
    string_rule       strings[64];
    int32_t           n_strings;
    int32_t           any_value, key, number, integer; /* rules, -1: not made yet */
    node             *unit, *key_unit;                 /* a character as it is written in a string */
    int               n_shapes, deep, nested;
} maker;

/* The bounds of a number; `low` and `high` only where has_low and has_high. */
typedef struct {
    bool   has_low, has_high, low_out, high_out; /* _out: the bound itself is excluded */
    double low, high;
} bounds;

const path *path_down(maker *m, const path *up, str key);
/* Refuses with the path: "#/a/pattern: ...". Always false. */
bool refuse(maker *m, const path *at, const char *key, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
bool refuse_too_large(maker *m, const path *at, const char *what);

/* The member of an object, or the item of an array whose number the key is; NULL: there is none, or the maker failed. */
const json_value *find_member(maker *m, const json_value *v, str key);
bool              is_listed(maker *m, spot list, const json_value *v); /* in an enum, or it is the const */

/* Values that are not objects or arrays. NULL: nothing fits, or the maker failed. */
node *make_null(maker *m);
node *make_string(maker *m, int32_t min, int32_t max); /* max < 0: no end */
node *make_pattern(maker *m, const path *at, str pattern, bool is_format, int32_t min, int32_t max);
node *make_format(maker *m, const path *at, str format, int32_t min, int32_t max);
bool  is_number_format(str format);
node *make_number(maker *m, const path *at, const bounds *b);
node *make_integer(maker *m, const path *at, const bounds *b, int64_t multiple);
node *make_literal(maker *m, const json_value *v); /* of any kind */
node *make_name(maker *m, str name);               /* a key and the colon behind it */
node *make_other_name(maker *m, const str *names, size_t n);
node *make_space(maker *m); /* what may stand behind : and , */
node *make_comma(maker *m);
#endif
