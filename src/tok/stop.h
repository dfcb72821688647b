/* tok/stop.h - finds stop strings in a stream of text. The text ends before the stop string that is complete first; of
 * several that end at the same byte, before the longest.
 *
 * Bytes go in as they arrive. Bytes that cannot be part of a stop string any more come out at once. The start of a
 * possible stop string is held back, at most one byte less than the longest string. The output depends on the bytes
 * alone, not on how they are split into calls. */
#ifndef TANDEM_TOK_STOP_H
#define TANDEM_TOK_STOP_H
#include "base/buf.h"
#include "base/str.h"

enum { STOP_MAX_STRINGS = 64, STOP_MAX_BYTES = 256 }; /* strings, bytes of one string */

typedef struct {
    str      string[STOP_MAX_STRINGS]; /* borrowed; not empty */
    uint16_t start[STOP_MAX_STRINGS];  /* how many first bytes of each string the text ends in */
    int      n_strings;
    char     held[STOP_MAX_BYTES]; /* the text held back */
    size_t   n_held;
    bool     found; /* a stop string was found; the text from it on is discarded */
    int      which; /* if found: the index of the string, in the order of stop_add */
} stop_match;       /* nothing to free */

void stop_init(stop_match *m); /* no strings: all text passes */
/* Adds a string before the first stop_put. Borrows it for as long as m is used. Returns false when there are too many,
 * or when it is empty or too long. */
bool stop_add(stop_match *m, str s);
/* Appends to out the text that is not held back. Returns m->found: true once a stop string is complete, and in all
 * later calls, which append nothing. */
bool stop_put(stop_match *m, str text, buf *out);
void stop_finish(stop_match *m, buf *out); /* ends the stream: appends the text held back, unless a string was found */
#endif
