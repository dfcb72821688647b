#include "base/buf.h"

#include "base/mem.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

void buf_init(buf *b, size_t max) { *b = (buf){.max = max}; }

void buf_deinit(buf *b)
{
    mem_free(b->p);
    *b = (buf){.max = b->max};
}

void buf_clear(buf *b)
{
    b->n      = 0;
    b->failed = b->over = false;
}

static bool grow_for(buf *b, size_t more)
{
    size_t need;
    if (b->failed) return false;
    if (!size_add(&need, b->n, more) || need > b->max) return !(b->failed = b->over = true);
    if (need <= b->cap) return true;
    size_t cap = b->cap ? b->cap : 256;
    while (cap < need) cap = cap > b->max / 2 ? b->max : cap * 2;
    char *p = mem_try_resize(b->p, cap);
    if (!p) return !(b->failed = true);
    b->p   = p;
    b->cap = cap;
    return true;
}

bool buf_put(buf *b, const void *p, size_t n)
{
    if (!grow_for(b, n)) return false;
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
    return true;
}

bool buf_puts(buf *b, const char *s) { return buf_put(b, s, strlen(s)); }
bool buf_putc(buf *b, char c) { return buf_put(b, &c, 1); }

bool buf_printf(buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) b->failed = b->over = true; /* more than INT_MAX bytes */
    if (n < 0 || !grow_for(b, (size_t)n + 1)) return false;
    va_start(ap, fmt);
    vsnprintf(b->p + b->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
    return true;
}

void buf_drop_front(buf *b, size_t n)
{
    assert(n <= b->n);
    if (n) memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
}

static bool put_json_char(buf *b, uint32_t cp, const char *s, int len)
{
    switch (cp) {
    case '"': return buf_puts(b, "\\\"");
    case '\\': return buf_puts(b, "\\\\");
    case '\n': return buf_puts(b, "\\n");
    case '\r': return buf_puts(b, "\\r");
    case '\t': return buf_puts(b, "\\t");
    }
    /* some readers of event streams and JSON lines end a line at U+0085, U+2028 and U+2029 */
    if (cp < 0x20 || cp == 0x7f || cp == 0x85 || cp == 0x2028 || cp == 0x2029) return buf_printf(b, "\\u%04x", cp);
    return buf_put(b, s, (size_t)len);
}

/* Returns the length of the part at the start of s that needs no escape. */
static size_t plain_run(str s)
{
    size_t n = 0;
    while (n < s.n && (signed char)s.s[n] >= 0x20 && s.s[n] != '"' && s.s[n] != '\\' && s.s[n] != 0x7f) n++;
    return n;
}

bool buf_put_json_text(buf *b, str s)
{
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        size_t   run = plain_run((str){s.s + i, s.n - i});
        buf_put(b, s.s + i, run);
        if ((i += run) == s.n) break;
        int len = utf8_decode(s.s + i, s.n - i, &cp);
        if (len)
            put_json_char(b, cp, s.s + i, len);
        else
            buf_puts(b, "\xEF\xBF\xBD");
        i += len ? (size_t)len : 1;
    }
    return !b->failed;
}

bool buf_put_json_string(buf *b, str s)
{
    buf_putc(b, '"');
    buf_put_json_text(b, s);
    return buf_putc(b, '"');
}
