/* base/buf.h - a growing byte buffer with a fixed maximum.
 *
 * A put that exceeds the maximum or finds no memory adds nothing and sets `failed`. All later puts fail too, so
 * several puts need only one check at the end. */
#ifndef TANDEM_BASE_BUF_H
#define TANDEM_BASE_BUF_H
#include "base/str.h"

typedef struct {
    char  *p;
    size_t n, cap, max;
    bool   failed;
    bool   over; /* it failed because it would exceed `max` */
} buf;

void              buf_init(buf *b, size_t max);
void              buf_deinit(buf *b);
void              buf_clear(buf *b); /* empties it and clears `failed` and `over`; keeps the memory */
bool              buf_put(buf *b, const void *p, size_t n);
bool              buf_puts(buf *b, const char *s);
bool              buf_putc(buf *b, char c);
bool              buf_printf(buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void              buf_drop_front(buf *b, size_t n); /* n <= b->n */
static inline str buf_str(const buf *b) { return (str){b->p, b->n}; }

/* Put s as a JSON string, with or without its quotes. Invalid UTF-8 becomes U+FFFD. */
bool buf_put_json_string(buf *b, str s);
bool buf_put_json_text(buf *b, str s);
#endif
