/* base/str.h - a borrowed byte string with a length, and functions for numbers and UTF-8 in text.
 *
 * A str owns nothing: its bytes must live as long as it is used. It is not terminated by NUL and may contain NUL bytes.
 * The bytes are text in UTF-8, unchecked unless a comment says otherwise. An empty str may have s == NULL. */
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

/* A str of a string literal. */
#define STR(literal) ((str){"" literal, sizeof(literal) - 1})
/* Arguments of "%.*s". Long strings are cut to 120 bytes, to keep messages readable. Evaluates x more than once. */
#define STR_ARG(x) ((int)((x).n < 120 ? (x).n : 120)), ((x).n ? (x).s : "")

static inline str  str_of(const char *s) { return (str){s, strlen(s)}; }
static inline bool str_eq(str a, str b) { return a.n == b.n && (!a.n || !memcmp(a.s, b.s, a.n)); }
static inline bool str_is(str a, const char *b) { return str_eq(a, str_of(b)); }
bool               str_is_nocase(str a, str b); /* ignores case of ASCII letters */
bool               str_starts(str s, const char *prefix);
bool               str_ends(str s, const char *suffix);
uint64_t           str_hash(str s); /* the same in every process; not safe against chosen collisions */
/* Returns the next word of "a,b,c", which may be empty, and moves *at after it and its comma. The word points into the
 * text. Call it while **at is not NUL; an empty word after a last comma is not returned. */
str str_next_word(const char **at);

/* Convert a whole string to a number: decimal digits, for i64 also a minus sign before them, no spaces. Return false
 * and leave *out unchanged when it is not such a number or out of range. */
bool str_to_i64(str s, int64_t *out);
bool str_to_u64(str s, uint64_t *out);
bool str_to_f64(str s, double *out); /* as strtod, without names and hexadecimal; at most 63 bytes; finite only */

/* Decodes the first code point of s[0..n), n > 0. Returns its length in bytes, or 0 when it is not valid UTF-8
 * (overlong, surrogate, above U+10FFFF, truncated); *cp is then unspecified. */
int utf8_decode(const char *s, size_t n, uint32_t *cp);
/* Writes cp as UTF-8, without a NUL. Returns its length in bytes. cp must not be a surrogate or above U+10FFFF. */
int utf8_encode(char out[4], uint32_t cp);
/* Returns the length in bytes of an incomplete character at the end of s[0..n) that more bytes could complete: 0 (none)
 * to 3. */
size_t utf8_open_tail(const char *s, size_t n);
#endif
