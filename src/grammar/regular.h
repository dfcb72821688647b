/* grammar/regular.h - sets of strings with intersection and complement.
 *
 * A term is a regular expression over characters, made once for each different one, so equal terms are equal
 * pointers. The states of its automaton are its derivatives: the term of what may follow after a character. A
 * pattern together with lengths, other patterns, look-aheads or excluded words is one term.
 *
 * All memory is the builder's. Every function counts its work (builder_spend); after a failure terms are RE_NONE. */
#ifndef TANDEM_GRAMMAR_REGULAR_H
#define TANDEM_GRAMMAR_REGULAR_H
#include "grammar/inside.h"

/* Bytes of a pattern: terms are as deep as it is long. */
enum { REGULAR_MAX_STATES = 3000, REGULAR_MAX_PATTERN = 4096 };

typedef struct term term;

typedef struct {
    builder *b;
    term   **table; /* by hash */
    uint32_t n, cap;
    term    *none, *empty, *all; /* no string; the empty string; every string */
    term    *any_char;
} regular;

void  regular_init(regular *r, builder *b);
term *term_class(regular *r, const char_range *range, int32_t n);
term *term_word(regular *r, str s); /* one string */
term *term_seq(regular *r, term *a, term *b);
term *term_alt(regular *r, term *a, term *b);
term *term_any_of(regular *r, term *const *x, int32_t n);
term *term_and(regular *r, term *a, term *b);
term *term_not(regular *r, term *a);
term *term_repeat(regular *r, term *a, int32_t min, int32_t max); /* max < 0: no end */
/* A pattern as regex_parse reads it with plain classes. Returns NULL for a lookahead inside a repetition. */
term *term_of_node(regular *r, const node *x);

bool term_has(regular *r, term *x, str s); /* whether the string is one of them */

/* Writes the strings as rules: `wrap` writes a class of characters, `end` follows every string. Returns NULL when
 * there is no string, when the builder failed, or, with *too_many set, when there are more than REGULAR_MAX_STATES. */

node *term_write(regular *r, term *x, node *(*wrap)(void *ctx, const char_range *range, int32_t n), void *ctx,
                 node *end, bool *too_many);
#endif
