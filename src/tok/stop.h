/* tok/stop.h - stop strings in a stream of text: an answer ends before the first one, wherever its pieces fall.
 *
 * Bytes go in as they come; what cannot be part of a stop string any more comes out at once. What could still become one
 * is held back, at most one byte less than the longest string. Any split of the same bytes gives the same result. */
#ifndef TANDEM_TOK_STOP_H
#define TANDEM_TOK_STOP_H
#include "base/buf.h"
#include "base/str.h"

enum { STOP_MAX_STRINGS = 64, STOP_MAX_BYTES = 256 }; /* bytes of one string */

typedef struct {
    str      string[STOP_MAX_STRINGS]; /* borrowed; not empty */
    uint16_t start[STOP_MAX_STRINGS];  /* bytes of each that the text so far ends in */
    int      n_strings;
    char     held[STOP_MAX_BYTES];
    size_t   n_held;
    bool     found; /* all that follows is swallowed */
    int      which; /* was found */
} stop_match;

void stop_init(stop_match *m);
/* False when there are too many or it is empty or too long. */
bool stop_add(stop_match *m, str s);
/* Appends to out what is safe to show; true as soon as a stop string is complete. */
bool stop_put(stop_match *m, str text, buf *out);
void stop_finish(stop_match *m, buf *out); /* the stream is over: what was held is text after all */
#endif
