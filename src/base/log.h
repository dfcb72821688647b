/* base/log.h - one line per event on stderr, as text or as JSON. Any thread may log.
 * Never log the text of a prompt or response. */
#ifndef TANDEM_BASE_LOG_H
#define TANDEM_BASE_LOG_H
#include "base/str.h"

#include <stdbool.h>

typedef enum { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_LEVELS } log_level;

void log_setup(log_level max, bool json); /* before other threads start; default LOG_WARN, text */
/* Logs a message. event: a short fixed word such as "load". */
void log_event(log_level l, const char *event, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A field of a structured event: "event: id=x tokens=7" in text, a member of the object in JSON. */
typedef struct {
    enum { LOG_INT, LOG_REAL, LOG_STR } kind;
    const char *name;
    int64_t     i;
    double      d;
    const char *s; /* NULL: omit the field */
} log_field;
void log_fields(log_level l, const char *event, const log_field *f, size_t n);
#endif
