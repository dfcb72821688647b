/* base/buf.h - a growing run of bytes with a ceiling from birth.
 *
 * A put that would pass the ceiling, or finds no memory, adds nothing and sets `failed`; so do all
 * that follow, and a run of puts needs one check at the end. */
#ifndef TANDEM_BASE_BUF_H
#define TANDEM_BASE_BUF_H
#include "base/str.h"

typedef struct {
    char  *p;
    size_t n, cap, max;
    bool   failed;
    bool   over; /* it failed because it would have passed `max` */
} buf;

void              buf_init(buf *b, size_t max);
void              buf_deinit(buf *b);
void              buf_clear(buf *b); /* keeps the memory, forgets `failed` and `over` */
bool              buf_put(buf *b, const void *p, size_t n);
bool              buf_puts(buf *b, const char *s);
bool              buf_putc(buf *b, char c);
bool              buf_printf(buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void              buf_drop_front(buf *b, size_t n); /* n <= b->n */
static inline str buf_str(const buf *b) { return (str){b->p, b->n}; }

/* s as a JSON string with its quotes, or what stands between them; bytes that are not UTF-8 become U+FFFD. */
bool buf_put_json_string(buf *b, str s);
bool buf_put_json_text(buf *b, str s);
#endif
