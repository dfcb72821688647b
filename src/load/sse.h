/* load/sse.h - reads server-sent events, from bytes in chunks of any size.
 *
 * Lines end in LF, CR LF or CR. Comments, ids, names and retry times are skipped, and so is a byte order mark at the
 * start. The data lines of an event are joined by LF and reported at the empty line after them. An event that the
 * stream does not finish is never reported. */
#ifndef TANDEM_LOAD_SSE_H
#define TANDEM_LOAD_SSE_H
#include "base/buf.h"
#include "base/err.h"

enum { SSE_MAX_EVENT = 8 << 20 }; /* bytes of a line, and of the data of an event */

typedef struct {
    buf  line, data; /* the unfinished line, the data of the current event */
    bool has_data;   /* the current event has a data line */
    bool after_cr;   /* the last byte was CR: an LF is not another line */
    bool began;      /* the first line was read */
    void (*on_data)(void *ctx, str data);
    void *ctx;
} sse_reader;

/* on_data is called by sse_feed, once for each event; data is valid during the call. */
void sse_init(sse_reader *r, void (*on_data)(void *ctx, str data), void *ctx);
void sse_deinit(sse_reader *r);
void sse_reset(sse_reader *r); /* begins another stream */
/* Reads the next bytes of the stream. Fails with ERR_TOO_LARGE when a line or event is too large or there is no memory;
 * sse_reset is needed before the next call. */
bool sse_feed(sse_reader *r, str in, err *e);
#endif
