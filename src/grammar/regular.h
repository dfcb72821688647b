/* grammar/regular.h - sets of strings with intersection and complement. Private to grammar/.
 *
 * A term stands for a set of strings of Unicode characters. It is a regular expression, made once for each different
 * one, so equal terms are equal pointers (two terms may still have the same strings). The states of its automaton are
 * its derivatives: the term of what may follow after a character. A pattern together with lengths, other patterns,
 * lookaheads or excluded words is one term.
 *
 * All memory is the builder's; there is nothing to free. Every function counts its work (builder_spend). No memory,
 * too much work and too many terms fail the builder (builder.failed). The functions may still be called then, but the
 * sets are wrong, often but not always the empty one, so check it before using a result. Terms of one `regular` must
 * not be used with another, and only one thread may use it. */
#ifndef TANDEM_GRAMMAR_REGULAR_H
#define TANDEM_GRAMMAR_REGULAR_H
#include "grammar/inside.h"

/* REGULAR_MAX_PATTERN: bytes of a pattern for term_of_node, which the caller checks: terms are as deep as a pattern is
 * long, and functions recurse. */
enum { REGULAR_MAX_STATES = 3000, REGULAR_MAX_PATTERN = 4096 };

typedef struct term term;

typedef struct {
    builder *b;                  /* borrowed */
    term   **table;              /* by hash */
    uint32_t n, cap;             /* terms, places of the table */
    term    *none, *empty, *all; /* no string; the empty string; every string */
    term    *any_char;           /* all strings of one character */
} regular;

void  regular_init(regular *r, builder *b);
term *term_class(regular *r, const char_range *range, int32_t n); /* one character of the ranges, in any order */
term *term_word(regular *r, str s);                               /* one string; not UTF-8: no string */
term *term_alt(regular *r, term *a, term *b);                     /* the strings of a and those of b */
term *term_any_of(regular *r, term *const *x, int32_t n);         /* the strings of all n; n 0: no string */
term *term_and(regular *r, term *a, term *b);                     /* the strings that are in both */
term *term_not(regular *r, term *a);                              /* all other strings */
/* Returns the strings that are min to max strings of a in a row. max < 0: no limit. 0 <= max < min: no string. */
term *term_repeat(regular *r, term *a, int32_t min, int32_t max);
/* Returns the strings that a pattern matches as a whole. x: regex.body of regex_parse, whose option `wrap` writes plain
 * classes (NODE_CLASS). Returns NULL for a lookahead inside a repetition other than "?". */
term *term_of_node(regular *r, const node *x);

bool term_has(regular *r, term *x, str s); /* whether s is in the set; false if s is not UTF-8 or the builder failed */

/* Writes the set as rules of the builder, one for each state of its automaton, and returns a node that refers to the
 * first. `wrap` returns the node of a class of characters; `end` is put after every string. Returns NULL when there is
 * no string, when the builder failed, or when there are more than REGULAR_MAX_STATES states. *too_many is written
 * in every case, true only for the last. */
node *term_write(regular *r, term *x, node *(*wrap)(void *ctx, const char_range *range, int32_t n), void *ctx,
                 node *end, bool *too_many);
#endif
