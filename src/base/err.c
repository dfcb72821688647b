#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Replaces control characters, because messages are printed to terminals and may contain bytes of hostile files. */
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

/* Cuts a long prefix, down to PREFIX_MIN bytes, so that the cause after it fits. */
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
        size_t limit = cause + PREFIX_MIN < room ? room - cause : PREFIX_MIN;
        if (n > limit) memcpy(e->text + (n = limit) - 3, "...", 3);
        if (cause > room - n) cause = room - n;
        memcpy(e->text + n, ": ", 2);
        memcpy(e->text + n + 2, inner, cause);
        e->text[n + 2 + cause] = 0;
        make_printable(e->text);
    }
    return false;
}
