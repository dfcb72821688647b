/* http/response.h - the parser of responses: takes bytes in chunks of any size; no sockets.
 *
 * The sizes of the chunks do not change the result. Lines may end with a bare LF, and chunks may have extensions and
 * trailers, because proxies send them; both are skipped. Heads, chunk lines and trailers are bounded. A body is passed
 * on and never stored. Interim responses (1xx) are skipped, except 101, which is an error.
 *
 * The parser does not know the request: do not use it for responses to HEAD. 204 and 304 have no body. */
#ifndef TANDEM_HTTP_RESPONSE_H
#define TANDEM_HTTP_RESPONSE_H
#include "base/buf.h"
#include "base/err.h"
#include "http/http.h"

typedef enum {
    RESPONSE_HEAD,
    RESPONSE_COUNTED,  /* a body of which `bytes_left` bytes are missing */
    RESPONSE_TO_END,   /* a body that ends when the connection closes */
    RESPONSE_SIZE,     /* the line with the size of a chunk */
    RESPONSE_DATA,     /* a chunk of which `bytes_left` bytes are missing */
    RESPONSE_DATA_END, /* the line end after a chunk */
    RESPONSE_TRAILER,
    RESPONSE_DONE,
} response_state;

typedef struct {
    response_state state;
    int            status;     /* this and keep_alive are valid when the state has left RESPONSE_HEAD */
    bool           keep_alive; /* the connection may carry another request */
    buf            head;       /* its lines, the status line first, each with LF at the end */
    buf            line;       /* incomplete line of the head or of a chunk */
    uint64_t       bytes_left;
    int            n_interim; /* number of 1xx responses before this one */
} http_response;

enum { RESPONSE_MAX_HEAD = 64 << 10 };

void http_response_init(http_response *r);
void http_response_deinit(http_response *r);
/* Resets the parser for the next response, or after an error; keeps the memory. */
void http_response_reset(http_response *r);
/* Consumes *used bytes of `in`, at least one; *body is the part of them that belongs to the body, a part of `in` or
 * empty. Call it with the rest until all bytes are used or the state is RESPONSE_DONE. `in` must not be empty and the
 * state not RESPONSE_DONE. After false the response cannot be continued. */
bool http_response_feed(http_response *r, str in, size_t *used, str *body, err *e);
/* Handles the end of the connection, which completes a response in RESPONSE_TO_END. Fails if the response is
 * incomplete. */
bool http_response_end(http_response *r, err *e);
/* Returns the first header field with this name, ignoring case; s is NULL if absent, n is 0 if absent or empty. Valid
 * until the next reset or deinit; call it when the state has left RESPONSE_HEAD. */
str http_response_field(const http_response *r, const char *name);
#endif
