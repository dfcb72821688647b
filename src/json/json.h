/* json/json.h - strict JSON: a pull reader, a tree for small documents, a writer.
 *
 * Strict: UTF-8 only, no duplicate keys, no leading zeros, only white space after the value. A number without point and
 * exponent that fits in int64 is a JSON_INT, any other a JSON_REAL. A number too large for a double is an error. One
 * leniency: a lone surrogate escape becomes U+FFFD, since clients cut strings in the middle of an emoji. An escaped NUL
 * is allowed in strings and refused in keys.
 *
 * The reader works on the caller's text, which must outlive it, and stores only decoded strings and the keys of open
 * objects. Strings without escapes point into the text, others into the reader's memory. The work is linear in the
 * length of the text.
 *
 * Errors: ERR_FORMAT with line and column (in bytes, from 1) for invalid JSON, ERR_TOO_LARGE over a limit,
 * ERR_UNAVAILABLE when there is no memory.
 *
 * Threads: a reader or a writer belongs to one thread at a time. The locale of the process has no effect. */
#ifndef TANDEM_JSON_JSON_H
#define TANDEM_JSON_JSON_H
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

/* The kind of a value in a tree, or of an event of the reader. */
typedef enum {
    JSON_NULL,
    JSON_BOOL,
    JSON_INT,
    JSON_REAL,
    JSON_STRING,
    JSON_ARRAY,  /* as an event: its opening bracket */
    JSON_OBJECT, /* as an event: its opening brace */
    JSON_KEY,    /* this and the following are events only */
    JSON_ARRAY_END,
    JSON_OBJECT_END,
    JSON_END, /* the document is complete; every later call returns it again */
} json_kind;

/* 0 means the default. */
typedef struct {
    int    max_depth;  /* open arrays and objects; default 64 */
    size_t max_bytes;  /* length of the text; default 1 GiB */
    size_t max_memory; /* bytes for decoded strings, keys and the tree; default 1 GiB */
} json_limits;

/* --- reading as a stream ----------------------------------------------------------------------- */
typedef struct json_reader json_reader;
typedef struct {
    json_kind kind;
    bool      b;  /* JSON_BOOL */
    int64_t   i;  /* JSON_INT */
    double    d;  /* JSON_REAL; for JSON_INT the nearest double */
    str       s;  /* JSON_STRING, JSON_KEY: valid until the reader is closed */
    size_t    at; /* byte offset of the token in the text */
} json_event;

/* limits may be NULL: all defaults. On failure *out is NULL. */
bool json_reader_open(json_reader **out, str text, const json_limits *limits, err *e);
void json_reader_close(json_reader *r); /* r may be NULL */
/* Reads the next event. After a failure every call fails with the same error. */
bool json_next(json_reader *r, json_event *ev, err *e);
/* Skips one whole value: after a key, inside an array or at the start of the document; asserts that it is called there.
 * The value is checked as json_next does, but only its keys are decoded. Fails with ERR_FORMAT when the array has no
 * further value. */
bool json_skip(json_reader *r, err *e);

/* --- reading as a tree ------------------------------------------------------------------------- */
typedef struct json_value  json_value;
typedef struct json_member json_member;
struct json_value {
    json_kind kind;
    bool      b; /* JSON_BOOL */
    int64_t   i; /* JSON_INT */
    double    d; /* JSON_REAL; for JSON_INT the nearest double */
    str       s; /* JSON_STRING */
    size_t    n; /* number of items of an array, of members of an object */
    union {
        json_value  *item;
        json_member *member; /* in the order of the text */
    };
};
struct json_member {
    str        key;
    json_value value;
};

/* Return values for trees that the program builds itself. The text is borrowed. */
static inline json_value json_of_text(str s) { return (json_value){.kind = JSON_STRING, .s = s}; }
static inline json_value json_of_bool(bool b) { return (json_value){.kind = JSON_BOOL, .b = b}; }
static inline json_value json_of_int(int64_t i) { return (json_value){.kind = JSON_INT, .i = i, .d = (double)i}; }

/* Parses a document into a tree in the arena. Strings without escapes point into the text: keep both while the tree is
 * used. The bytes added to the arena are bounded by max_memory and by the arena's limit. On failure *out is NULL and
 * the arena's contents are as before. */
bool json_parse(const json_value **out, arena *a, str text, const json_limits *limits, err *e);
/* Returns the value of a key; NULL when v is NULL, is not an object, or has no such key. Searches the members one by
 * one. */
const json_value *json_get(const json_value *v, const char *key);
const json_value *json_find(const json_value *v, const char *key); /* as json_get; also NULL for a JSON null */

/* --- writing ----------------------------------------------------------------------------------- */
/* The writer appends to a buf and adds commas and colons. json_end closes the innermost array or object. Errors are
 * those of the buf: check b->failed at the end. Asserts that in an object each value follows a key. Duplicate keys are
 * not detected. */
enum { JSON_WRITER_DEPTH = 64 }; /* maximum number of open arrays and objects, asserted */
typedef struct {
    buf     *b;                              /* borrowed */
    int      depth;                          /* open arrays and objects */
    uint64_t is_object, has_item, after_key; /* bit d - 1 for depth d */
} json_writer;

void json_writer_init(json_writer *w, buf *b); /* nothing to free */
void json_begin_object(json_writer *w);
void json_begin_array(json_writer *w);
void json_end(json_writer *w);
void json_key(json_writer *w, const char *key);
void json_key_str(json_writer *w, str key);
void json_put_str(json_writer *w, str s);
void json_put_int(json_writer *w, int64_t i);
/* Writes the fewest digits that read back as d, always with a point or an exponent, so that it stays a real.
 * Infinities and NaN become null. */
void json_put_real(json_writer *w, double d);
void json_put_bool(json_writer *w, bool b);
void json_put_null(json_writer *w);
/* Write a key and its value. */
void json_member_int(json_writer *w, const char *key, int64_t i);
void json_member_real(json_writer *w, const char *key, double d);
void json_member_bool(json_writer *w, const char *key, bool b);
void json_member_str(json_writer *w, const char *key, const char *s); /* NULL becomes null */
/* Writes a tree. Sets b->failed when more than JSON_WRITER_DEPTH arrays and objects would be open. */
void json_put_value(json_writer *w, const json_value *v);
#endif
