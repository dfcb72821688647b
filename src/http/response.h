/* http/response.h - the reader of replies: bytes in, in any pieces; no sockets.
 *
 * Where the pieces were cut changes nothing. Lines may end in a bare LF, chunks may have extensions and trailers: servers
 * that are on the way between us and the one that was meant write such things. Heads, chunk lines and trailers are bounded;
 * a body is handed on in pieces and never held. */
#ifndef TANDEM_HTTP_RESPONSE_H
#define TANDEM_HTTP_RESPONSE_H
#include "base/buf.h"
#include "base/err.h"
#include "http/http.h"

typedef enum {
    RESPONSE_HEAD,
    RESPONSE_COUNTED, /* `left` bytes */
    RESPONSE_TO_END,  /* until the connection closes */
    RESPONSE_SIZE,    /* a chunk's line */
    RESPONSE_DATA,
    RESPONSE_DATA_END, /* the line end behind a chunk */
    RESPONSE_TRAILER,
    RESPONSE_DONE,
} response_state;

typedef struct {
    response_state state;
    int            status;
    bool           keep_alive; /* the connection may carry another request */
    buf            head;       /* its lines, each ended by LF */
    buf            line;       /* the unfinished one; while the body is read a chunk's */
    uint64_t       left;
    int            n_interim; /* 1xx replies before this one */
} http_response;

enum { RESPONSE_MAX_HEAD = 64 << 10 };

void http_response_init(http_response *r);
void http_response_deinit(http_response *r);
/* For the next reply. */
void http_response_reset(http_response *r);
/* Takes some of `in`: *used bytes, at least one, of which *body are the body's, if any. To be called until all is used or
 * the state is RESPONSE_DONE. */
bool http_response_feed(http_response *r, str in, size_t *used, str *body, err *e);
/* The connection ended. */
bool http_response_end(http_response *r, err *e);
/* Of the head, any case; n 0: absent. */
str http_response_field(const http_response *r, const char *name);
#endif
