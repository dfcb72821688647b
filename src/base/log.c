#include "base/log.h"

#include "base/buf.h"
#include "base/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const char *const level_name[LOG_LEVELS] = {"error", "warn", "info", "debug"};
static log_level         most_level             = LOG_WARN;
static bool              as_json;

void log_setup(log_level most, bool json)
{
    most_level = most;
    as_json    = json;
}

static void put_time(buf *b)
{
    struct timespec t;
    struct tm       utc;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &utc);
    buf_printf(b, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour,
               utc.tm_min, utc.tm_sec, t.tv_nsec / 1000000);
}

void log_event(log_level l, const char *event, const char *fmt, ...)
{
    if (l > most_level) return;
    char    text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);

    buf         b;
    const char *scope = fault_scope();
    fault_scope_set(NULL); /* what went wrong in a step may be said, and a line takes memory */
    buf_init(&b, 16 * 1024);
    if (as_json) {
        buf_puts(&b, "{\"ts\":\"");
        put_time(&b);
        buf_printf(&b, "\",\"level\":\"%s\",\"event\":\"%s\",\"message\":", level_name[l], event);
        buf_put_json_string(&b, str_of(text));
        buf_puts(&b, "}\n");
    } else {
        put_time(&b);
        for (char *p = text; *p; p++)
            if (*p == '\n') *p = ' ';
        buf_printf(&b, " %-5s %s: %s\n", level_name[l], event, text);
    }
    ssize_t done = write(STDERR_FILENO, b.p, b.n); /* one write: lines of threads do not mix */
    (void)done;
    buf_deinit(&b);
    fault_scope_set(scope);
}
