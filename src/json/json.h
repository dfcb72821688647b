/* json/json.h - strict JSON: a pull reader, a tree for small documents, a writer.
 *
 * Strict: UTF-8 only, no duplicate keys, no leading zeros, no trailing bytes, nothing after the value but
 * white space; integers are exact int64 (others are reals), reals are finite. One leniency: a lone
 * surrogate escape becomes U+FFFD, since clients cut strings in the middle of an emoji. NUL in a
 * key is refused; in a string it is a byte like any other.
 *
 * The reader works on the caller's bytes and keeps only open objects' keys. Strings without escapes point
 * into the text; others into the reader's arena. The work is linear in the text, whatever the text.
 *
 * Errors: ERR_FORMAT with line and column (in bytes, from 1) for what is not JSON, ERR_TOO_LARGE over a
 * limit, ERR_UNAVAILABLE when there is no memory. A server answers its client's ERR_FORMAT with 400.
 *
 * Threads: a reader or a writer belongs to one thread at a time. The process's locale does not matter. */
#ifndef TANDEM_JSON_JSON_H
#define TANDEM_JSON_JSON_H
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

typedef enum {
    JSON_NULL,
    JSON_BOOL,
    JSON_INT,
    JSON_REAL,
    JSON_STRING,
    JSON_ARRAY,  /* as an event: its opening bracket */
    JSON_OBJECT, /* as an event: its opening brace */
    JSON_KEY,    /* events only, from here on */
    JSON_ARRAY_END,
    JSON_OBJECT_END,
    JSON_END, /* the document is complete; so says every call from then on */
} json_kind;

typedef struct {
    int    max_depth;  /* open arrays and objects; 0: 64 */
    size_t max_bytes;  /* of the text; 0: 1 GiB */
    size_t max_memory; /* for decoded strings, keys and trees; 0: 1 GiB */
} json_limits;

/* --- reading as a stream ----------------------------------------------------------------------- */
typedef struct json_reader json_reader;
typedef struct {
    json_kind kind;
    bool      b;
    int64_t   i;  /* JSON_INT */
    double    d;  /* JSON_REAL; also set for JSON_INT */
    str       s;  /* JSON_STRING, JSON_KEY: good until the text goes or the reader is closed */
    size_t    at; /* byte offset of the token, for messages */
} json_event;

bool json_reader_open(json_reader **out, str text, const json_limits *limits, err *e); /* limits may be NULL */
void json_reader_close(json_reader *r);                                                /* NULL is fine */
/* After a failure the reader stays failed, with the same sentence. */
bool json_next(json_reader *r, json_event *ev, err *e);
/* The next value, whole; call it after a key, inside an array or before the document. It is checked like
 * any other, but its strings are not decoded. ERR_FORMAT when the array ends instead. */
bool json_skip(json_reader *r, err *e);

/* --- reading as a tree ------------------------------------------------------------------------- */
typedef struct json_value  json_value;
typedef struct json_member json_member;
struct json_value {
    json_kind kind;
    bool      b;
    int64_t   i;
    double    d; /* JSON_REAL and JSON_INT */
    str       s;
    size_t    n; /* items of an array, members of an object */
    union {
        json_value  *item;
        json_member *member; /* in the order of the text */
    };
};
struct json_member {
    str        key;
    json_value value;
};

/* The tree lives in the arena and borrows strings without escapes from the text: keep both. A failure leaves
 * *out NULL and the arena as it was; max_memory bounds what is added to it. */
bool json_parse(const json_value **out, arena *a, str text, const json_limits *limits, err *e);
/* NULL when v is NULL, is not an object, or has no such key. */
const json_value *json_get(const json_value *v, const char *key);
const json_value *json_find(const json_value *v, const char *key); /* the same; NULL for a null too */

/* --- writing ----------------------------------------------------------------------------------- */
/* Puts commas and colons itself; json_end closes what is innermost. Errors show in b->failed. */
enum { JSON_WRITER_DEPTH = 64 }; /* open arrays and objects: asserted */
typedef struct {
    buf     *b;
    int      depth;
    uint64_t is_object, has_item, after_key; /* bit d - 1 for depth d */
} json_writer;

void json_writer_init(json_writer *w, buf *b);
void json_begin_object(json_writer *w);
void json_begin_array(json_writer *w);
void json_end(json_writer *w);
void json_key(json_writer *w, const char *key);
void json_key_str(json_writer *w, str key);
void json_put_str(json_writer *w, str s);
void json_put_int(json_writer *w, int64_t i);
/* The fewest digits that read back the same, always with a point or an exponent: a real stays a real.
 * What is not finite has no such text and becomes null. */
void json_put_real(json_writer *w, double d);
void json_put_bool(json_writer *w, bool b);
void json_put_null(json_writer *w);
/* A key and its value. */
void json_member_int(json_writer *w, const char *key, int64_t i);
void json_member_real(json_writer *w, const char *key, double d);
void json_member_bool(json_writer *w, const char *key, bool b);
void json_member_str(json_writer *w, const char *key, const char *s); /* NULL becomes null */
/* A whole tree; one that is too deep for the writer, being foreign, sets b->failed. */
void json_put_value(json_writer *w, const json_value *v);
#endif
