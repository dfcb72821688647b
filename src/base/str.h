/* base/str.h - a borrowed byte string with a length: not terminated by NUL, may contain NUL bytes, owns nothing.
 * UTF-8. */
#ifndef TANDEM_BASE_STR_H
#define TANDEM_BASE_STR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const char *s;
    size_t      n;
} str;

#define STR(literal) ((str){"" literal, sizeof(literal) - 1})
/* Arguments of "%.*s". Long strings are cut to 120 bytes, to keep messages readable. */
#define STR_ARG(x) ((int)((x).n < 120 ? (x).n : 120)), ((x).n ? (x).s : "")

static inline str  str_of(const char *s) { return (str){s, strlen(s)}; }
static inline bool str_eq(str a, str b) { return a.n == b.n && (!a.n || !memcmp(a.s, b.s, a.n)); }
static inline bool str_is(str a, const char *b) { return str_eq(a, str_of(b)); }
bool               str_is_nocase(str a, str b); /* ignores case of ASCII letters */
bool               str_starts(str s, const char *prefix);
bool               str_ends(str s, const char *suffix);
uint64_t           str_hash(str s); /* the same on every machine */
/* Returns the next word of "a,b,c", which may be empty, and moves *at after it and its comma. Call it while **at is
 * not NUL. */
str str_next_word(const char **at);

/* Convert a whole string to a number in range: decimal digits, a minus sign for i64, no spaces. Set *out only on
 * success. */
bool str_to_i64(str s, int64_t *out);
bool str_to_u64(str s, uint64_t *out);
bool str_to_f64(str s, double *out); /* also + - . e E; fewer than 64 bytes; finite only */

/* Decodes one code point of s[0..n), n > 0. Returns its length, or 0 when it is not valid UTF-8 (overlong, surrogate,
 * above U+10FFFF, truncated). */
int utf8_decode(const char *s, size_t n, uint32_t *cp);
int utf8_encode(char out[4], uint32_t cp); /* returns 1 to 4; cp must not be a surrogate or above U+10FFFF */
/* Returns the length of a character at the end of s[0..n) that more bytes could complete: 0 (none) to 3. */
size_t utf8_open_tail(const char *s, size_t n);
#endif
