/* base/log.h - one line per event on stderr, for people or (JSON lines) for machines.
 * Never put a prompt or an answer into an event: they are the user's. Any thread may log. */
#ifndef TANDEM_BASE_LOG_H
#define TANDEM_BASE_LOG_H
#include "base/str.h"

#include <stdbool.h>

typedef enum { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_LEVELS } log_level;

void log_setup(log_level most, bool json); /* before other threads start; default LOG_WARN, text */
/* event: a short fixed word such as "load"; the rest is the sentence. */
void log_event(log_level l, const char *event, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* An event that is numbers and names: "event: id=x tokens=7", or members of the JSON object. */
typedef struct {
    enum { LOG_INT, LOG_REAL, LOG_STR } kind;
    const char *name;
    int64_t     i;
    double      d;
    const char *s; /* NULL: the field is left out */
} log_field;
void log_fields(log_level l, const char *event, const log_field *f, size_t n);
#endif
