/* base/log.h - one line per event on stderr, as text or as JSON, with the time in UTC and the level.
 *
 * Any thread may log; each line is a single write of at most 16 KiB. Errors of writing are ignored. Never log the text
 * of a prompt or response. No pointer is kept. */
#ifndef TANDEM_BASE_LOG_H
#define TANDEM_BASE_LOG_H
#include "base/str.h"

#include <stdbool.h>

/* From the most to the least severe; LOG_LEVELS is their number. */
typedef enum { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_LEVELS } log_level;

/* Sets the least severe level that is logged, and the form of lines. Call it before other threads start. The defaults
 * are LOG_WARN and text. */
void log_setup(log_level max, bool json);
/* Logs a message of at most 1023 bytes; the rest is cut off. In text, newlines become spaces and other control
 * characters are written as they are. event: a short fixed word such as "load", written without escapes. */
void log_event(log_level l, const char *event, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A field of a structured event: "event: id=x tokens=7" in text, a member of the object in JSON. In text, a value that
 * is empty or contains white space, '=', '"' or '\\' is quoted as in JSON. Names are written without escapes. */
typedef struct {
    enum { LOG_INT, LOG_REAL, LOG_STR } kind;
    const char *name;
    int64_t     i; /* LOG_INT */
    double      d; /* LOG_REAL; NaN and infinities are written as 0 */
    const char *s; /* LOG_STR; NULL: omit the field */
} log_field;
/* Logs n fields in one line. */
void log_fields(log_level l, const char *event, const log_field *f, size_t n);
#endif
