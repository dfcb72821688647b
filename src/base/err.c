#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A sentence is shown on terminals and in logs: bytes of a hostile file must not steer them. */
static void make_printable(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
}

bool err_set(err *e, err_code code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(e->text, sizeof e->text, fmt, ap);
        va_end(ap);
        make_printable(e->text);
        e->code     = code;
        e->field[0] = 0;
        e->limit    = 0;
    }
    return false;
}

bool err_blame(err *e, const char *field, int64_t limit)
{
    if (e) {
        snprintf(e->field, sizeof e->field, "%s", field ? field : "");
        make_printable(e->field);
        e->limit = limit;
    }
    return false;
}

/* The cause matters most: a prefix that would push it out (a long path) is cut instead, down to PREFIX_MIN bytes. */
enum { PREFIX_MIN = 80 };

bool err_wrap(err *e, const char *fmt, ...)
{
    if (e) {
        char    inner[sizeof e->text];
        va_list ap;
        memcpy(inner, e->text, sizeof inner);
        va_start(ap, fmt);
        vsnprintf(e->text, sizeof e->text, fmt, ap);
        va_end(ap);
        size_t room = sizeof e->text - 3, cause = strlen(inner), n = strlen(e->text);
        size_t most = cause + PREFIX_MIN < room ? room - cause : PREFIX_MIN;
        if (n > most) memcpy(e->text + (n = most) - 3, "...", 3);
        if (cause > room - n) cause = room - n;
        memcpy(e->text + n, ": ", 2);
        memcpy(e->text + n + 2, inner, cause);
        e->text[n + 2 + cause] = 0;
        make_printable(e->text);
    }
    return false;
}
