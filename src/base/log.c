#include "base/log.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/fault.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const char *const level_name[LOG_LEVELS] = {"error", "warn", "info", "debug"};
static log_level         max_level              = LOG_WARN;
static bool              as_json;

void log_setup(log_level max, bool json)
{
    max_level = max;
    as_json   = json;
}

static void put_time(buf *b)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    clock_put_utc(b, &t, 3);
}

typedef struct {
    buf         b;
    const char *scope;
} line;

/* Allows allocations: logging is permitted inside a step, and a line needs memory. */
static void begin_line(line *x, log_level l, const char *event)
{
    x->scope = fault_scope();
    fault_scope_set(NULL);
    buf_init(&x->b, 16 * 1024);
    if (as_json) buf_puts(&x->b, "{\"ts\":\"");
    put_time(&x->b);
    buf_printf(&x->b, as_json ? "\",\"level\":\"%s\",\"event\":\"%s\"" : " %-5s %s:", level_name[l], event);
}

static void end_line(line *x)
{
    buf_puts(&x->b, as_json ? "}\n" : "\n");
    ssize_t done = write(STDERR_FILENO, x->b.p, x->b.n); /* a single write, so that lines of threads do not mix */
    (void)done;
    buf_deinit(&x->b);
    fault_scope_set(x->scope);
}

void log_event(log_level l, const char *event, const char *fmt, ...)
{
    if (l > max_level) return;
    char    text[1024];
    line    x;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);

    begin_line(&x, l, event);
    if (as_json) {
        buf_puts(&x.b, ",\"message\":");
        buf_put_json_string(&x.b, str_of(text));
    } else {
        for (char *p = text; *p; p++)
            if (*p == '\n') *p = ' ';
        buf_printf(&x.b, " %s", text);
    }
    end_line(&x);
}

/* In text, quotes a value with spaces or quotes as in JSON. */
static void put_text(buf *b, const char *s)
{
    if (as_json || !s[0] || strpbrk(s, " =\"\\\n\r\t"))
        buf_put_json_string(b, str_of(s));
    else
        buf_puts(b, s);
}

void log_fields(log_level l, const char *event, const log_field *f, size_t n)
{
    if (l > max_level) return;
    line x;
    begin_line(&x, l, event);
    for (; n--; f++) {
        if (f->kind == LOG_STR && !f->s) continue;
        buf_printf(&x.b, as_json ? ",\"%s\":" : " %s=", f->name);
        if (f->kind == LOG_STR)
            put_text(&x.b, f->s);
        else if (f->kind == LOG_REAL)
            buf_printf(&x.b, "%.6g", isfinite(f->d) ? f->d : 0);
        else
            buf_printf(&x.b, "%lld", (long long)f->i);
    }
    end_line(&x);
}
