/* base/err.h - why a call failed: a code for programs, a sentence for people.
 *
 * Functions that can fail return bool, true on success, and take an `err *e` last.
 * On success *e is untouched, so calls chain; on failure it holds one sentence.
 * `e` may be NULL where the caller does not want the reason. */
#ifndef TANDEM_BASE_ERR_H
#define TANDEM_BASE_ERR_H
#include <stdbool.h>

typedef enum {
    ERR_NONE,
    ERR_INPUT,       /* the caller's request is wrong: HTTP 400, exit 1 */
    ERR_NOT_FOUND,   /* no such file or model: 404 */
    ERR_TOO_LARGE,   /* over a stated limit: 413 */
    ERR_BUSY,        /* try again later: 429 */
    ERR_UNAVAILABLE, /* loading, draining or out of memory for this: 503 */
    ERR_FORMAT,      /* a file is not what it claims to be */
    ERR_LIMIT,       /* a pool or a buffer is full */
    ERR_IO,          /* the operating system said no */
} err_code;

typedef struct {
    err_code code;
    char     text[512]; /* one sentence, no newline; cut at the end when too long */
} err;

/* Both return false, so that `return err_set(...)` reads as the failure it is. */
bool err_set(err *e, err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "fmt: " before the sentence that is there. */
bool err_wrap(err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
