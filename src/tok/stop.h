/* tok/stop.h - finds stop strings in a stream of text. The text ends before the first stop string.
 *
 * Bytes go in as they arrive. Bytes that cannot be part of a stop string any more come out at once. The start of a
 * possible stop string is held back, at most one byte less than the longest string. Any split of the same bytes gives
 * the same result. */
#ifndef TANDEM_TOK_STOP_H
#define TANDEM_TOK_STOP_H
#include "base/buf.h"
#include "base/str.h"

enum { STOP_MAX_STRINGS = 64, STOP_MAX_BYTES = 256 }; /* bytes of one string */

typedef struct {
    str      string[STOP_MAX_STRINGS]; /* borrowed; not empty */
    uint16_t start[STOP_MAX_STRINGS];  /* bytes of each string that the text ends in */
    int      n_strings;
    char     held[STOP_MAX_BYTES];
    size_t   n_held;
    bool     found; /* the rest of the text is discarded */
    int      which; /* index of the string that was found */
} stop_match;

void stop_init(stop_match *m);
/* Adds a string. Returns false when there are too many, or when it is empty or too long. */
bool stop_add(stop_match *m, str s);
/* Appends to out the text that is decided. Returns true as soon as a stop string is complete. */
bool stop_put(stop_match *m, str text, buf *out);
void stop_finish(stop_match *m, buf *out); /* ends the stream: appends the text held back */
#endif
