/* One connection's bytes through the parser, in pieces, request by request as the server does it. */
#ifndef TANDEM_FUZZ_HTTP_STREAM_H
#define TANDEM_FUZZ_HTTP_STREAM_H
#include "base/mem.h"
#include "http/parse.h"

#include <stdio.h>
#include <stdlib.h>

#define MUST(cond)                                                                                                     \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #cond);                                  \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { MAX_HEAD = 4096, MAX_FIELDS = 20, MAX_BODY = 8192 };

typedef struct {
    http_scan    scan;
    http_head    head;
    http_body    bytes_left;
    buf          body;
    http_verdict verdict;
    size_t       at; /* offset in the input of the first byte after it */
    bool         has_head, done;
} one_request;

typedef size_t piece_fn(void *ctx, size_t bytes_left); /* how many bytes come next: 1 to left */

static inline void feed_request(one_request *r, str in)
{
    size_t used = 0;
    if (!r->has_head)
        r->verdict = http_scan_feed(&r->scan, in, &used);
    else
        r->verdict = http_body_read(&r->bytes_left, in, &used, &r->body);
    MUST(used <= in.n && (used > 0 || r->verdict.status));
    r->at += used;
    if (!r->verdict.status && !r->has_head && r->scan.done) {
        r->verdict  = http_head_parse(&r->head, &r->scan, MAX_FIELDS, MAX_BODY);
        r->has_head = true;
        if (!r->verdict.status) http_body_init(&r->bytes_left, &r->head, MAX_BODY);
    }
    MUST(!r->verdict.status || (r->verdict.why && r->verdict.status >= 400 && r->verdict.status < 600));
    r->done = r->verdict.status || (r->has_head && r->bytes_left.state == BODY_DONE);
}

/* Until it is whole, refused, or the input ends. */
static inline void read_request(one_request *r, str in, size_t at, piece_fn *piece, void *ctx)
{
    *r = (one_request){.at = at};
    http_scan_init(&r->scan, MAX_HEAD);
    buf_init(&r->body, MAX_BODY);
    while (!r->done && r->at < in.n) {
        size_t end = r->at + piece(ctx, in.n - r->at);
        while (!r->done && r->at < end) feed_request(r, (str){in.s + r->at, end - r->at});
    }
}

static inline void drop_request(one_request *r)
{
    http_scan_deinit(&r->scan);
    mem_free(r->head.field);
    buf_deinit(&r->body);
}

static inline bool   is_accepted(const one_request *r) { return r->done && !r->verdict.status; }
static inline size_t piece_all(void *ctx, size_t bytes_left)
{
    (void)ctx;
    return bytes_left;
}
#endif
