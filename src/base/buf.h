/* base/buf.h - a growing byte buffer with a fixed maximum.
 *
 * Every put appends, and returns false on failure. A put that would exceed the maximum or finds no memory sets
 * `failed`. All later puts then fail too, so several puts need only one check at the end. A failed buf_put, buf_puts,
 * buf_putc or buf_printf adds nothing; a failed JSON put may have added a part. Arguments must not point into the
 * buffer. */
#ifndef TANDEM_BASE_BUF_H
#define TANDEM_BASE_BUF_H
#include "base/str.h"

typedef struct {
    char  *p; /* the contents, without a NUL at the end; may be NULL while n is 0; moves when the buffer grows */
    size_t n, cap, max; /* bytes used, allocated, and the maximum of n */
    bool   failed;
    bool   over; /* it failed because it would exceed `max` */
} buf;

void buf_init(buf *b, size_t max); /* allocates nothing */
void buf_deinit(buf *b);           /* frees the memory; the buffer is then empty, with the same maximum */
void buf_clear(buf *b);            /* empties it and clears `failed` and `over`; keeps the memory */
bool buf_put(buf *b, const void *p, size_t n);
bool buf_puts(buf *b, const char *s);
bool buf_putc(buf *b, char c);
/* Formats as printf. Needs one byte more than it adds, also of `max`. */
bool buf_printf(buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_drop_front(buf *b, size_t n); /* removes the first n bytes; n <= b->n */
/* Returns the contents, valid until the buffer changes. */
static inline str buf_str(const buf *b) { return (str){b->p, b->n}; }

/* Put s escaped as a JSON string; buf_put_json_text omits the quotes around it. Each invalid byte of UTF-8 becomes
 * U+FFFD. DEL, U+0085, U+2028 and U+2029 are escaped too. */
bool buf_put_json_string(buf *b, str s);
bool buf_put_json_text(buf *b, str s);
#endif
