/* load/sse.h - reads server-sent events, from bytes in chunks of any size.
 *
 * Lines end in LF, CR LF or CR; comments, ids, names and retry times are skipped. The data lines of an event are joined
 * by LF and reported at the empty line after them. An unfinished event at the end is dropped. */
#ifndef TANDEM_LOAD_SSE_H
#define TANDEM_LOAD_SSE_H
#include "base/buf.h"
#include "base/err.h"

enum { SSE_MAX_EVENT = 8 << 20 };

typedef struct {
    buf  line, data;
    bool has_data, after_cr, began;
    void (*on_data)(void *ctx, str data);
    void *ctx;
} sse_reader;

void sse_init(sse_reader *r, void (*on_data)(void *ctx, str data), void *ctx);
void sse_deinit(sse_reader *r);
void sse_reset(sse_reader *r); /* begins another stream */
bool sse_feed(sse_reader *r, str in, err *e);
#endif
