/* daemon/line_reader.h - splits a stream of bytes into lines of a limited length.
 *
 *      while ((kind = line_reader_next(&r, &bytes, &line)) != LINE_NONE) ...
 *
 * A line ends with LF; a CR before it is removed. A line over the limit is dropped up to its end and reported once, so
 * that the reader never holds more than the limit. */
#ifndef TANDEM_DAEMON_LINE_READER_H
#define TANDEM_DAEMON_LINE_READER_H
#include "base/buf.h"

typedef enum {
    LINE_NONE,     /* there is no further line yet */
    LINE_WHOLE,    /* a line */
    LINE_TOO_LONG, /* a line over the limit, or one for which there is no memory: its bytes are lost */
} line_kind;

typedef struct {
    buf     held;     /* the beginning of a line whose end has not arrived */
    bool    skipping; /* the current line is over the limit */
    bool    returned; /* `held` is the line that was returned last */
    int64_t n_lines;  /* lines returned so far, those over the limit included */
} line_reader;

void line_reader_init(line_reader *r, size_t max_bytes);
void line_reader_deinit(line_reader *r);
/* Consumes bytes from the front of *in up to the end of a line, or all of them. *line is valid until the next call and
 * while the bytes of *in are. */
line_kind line_reader_next(line_reader *r, str *in, str *line);
/* Returns the last line of an input that does not end with LF. */
line_kind line_reader_finish(line_reader *r, str *line);
#endif
