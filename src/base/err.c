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
        e->code = code;
    }
    return false;
}

bool err_wrap(err *e, const char *fmt, ...)
{
    if (e) {
        char    inner[sizeof e->text];
        va_list ap;
        memcpy(inner, e->text, sizeof inner);
        va_start(ap, fmt);
        vsnprintf(e->text, sizeof e->text, fmt, ap);
        va_end(ap);
        size_t n = strlen(e->text);
        snprintf(e->text + n, sizeof e->text - n, ": %s", inner);
        make_printable(e->text);
    }
    return false;
}
