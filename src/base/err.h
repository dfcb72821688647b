/* base/err.h - why a call failed: a code and a field for programs, a sentence for people.
 *
 * Functions that can fail return bool, true on success, and take an `err *e` last. Some return a pointer instead,
 * NULL on failure. On success *e is unchanged and may be uninitialized, so that calls chain. On failure *e is set.
 * `e` may be NULL when the caller does not need the reason.
 *
 * Callers decide by the code and the field, never by the sentence. */
#ifndef TANDEM_BASE_ERR_H
#define TANDEM_BASE_ERR_H
#include <stdbool.h>
#include <stdint.h>

/* The comments give the HTTP status that the server sends. */
typedef enum {
    ERR_NONE,        /* no error, in a zeroed err */
    ERR_INPUT,       /* the request or an argument is invalid: 400 */
    ERR_NOT_FOUND,   /* there is no such file or model: 404; 500 once the request runs */
    ERR_TOO_LARGE,   /* a field is over its limit: 400 with the field's name; a whole body is: 413 */
    ERR_BUSY,        /* try again later: 429; when the request was queued already: 503 */
    ERR_UNAVAILABLE, /* loading, draining or out of memory: 503 */
    ERR_FORMAT,      /* malformed data: 400; 500 once the request runs */
    ERR_LIMIT,       /* an internal pool or buffer is full: 500 */
    ERR_IO,          /* a system call failed: 500 */
    ERR_CONTEXT,     /* the prompt does not fit in the context: 400 context_length_exceeded */
} err_code;

typedef struct {
    err_code code;
    char     text[512];  /* one sentence; cut when too long; control characters become '?' */
    char     field[128]; /* the field or setting at fault, as a path: "messages[3].role"; empty: none */
    int64_t  limit;      /* the maximum that was exceeded; 0: none */
} err;

/* All three return false, so that a function can `return err_set(...)`. With e NULL they do nothing else.
 *
 * Sets the code and the sentence, and clears the field and the limit. The arguments must not point into *e. */
bool err_set(err *e, err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Names the field at fault (NULL: none) and its limit (0: none) after err_set. */
bool err_blame(err *e, const char *field, int64_t limit);
/* Puts "fmt: " before the sentence of an err that is set. Keeps the code, the field and the limit. A long prefix is cut
 * before the sentence is. The arguments must not point into *e. */
bool err_wrap(err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
