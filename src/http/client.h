/* http/client.h - an HTTP/1.1 client: many requests to one server at once, one thread, epoll; connections are kept.
 *
 *      http_fetch_start -> on_head -> on_body ... -> on_end          all from inside http_client_turn
 *
 * on_end comes exactly once for each fetch that was not cancelled, with a sentence when there is no whole reply; other
 * fetches may be started from inside it. A handler does not cancel its own fetch. A request on a kept connection that the server closed meanwhile is sent again on a
 * new one, as RFC 9112 9.3.1 has it. Nothing but http_client_open, which looks up the name, blocks for longer than it was
 * told to. The caller's thread has SIGPIPE blocked from then on. */
#ifndef TANDEM_HTTP_CLIENT_H
#define TANDEM_HTTP_CLIENT_H
#include "http/response.h"

typedef struct {
    bool is_tls;
    char host[256]; /* a name, or an address without brackets */
    int  port;
    char authority[272]; /* as the URL has it: for the Host field */
    char path[1024];     /* begins with a slash and does not end in one; "": none */
} http_url;

/* http or https; no user, no query, no fragment. */
bool http_url_parse(http_url *out, str text, err *e);

typedef struct {
    const char *ca_file;  /* PEM; NULL: the system's */
    bool        insecure; /* any certificate will do */
    double      connect_s, total_s;
    uint64_t    max_body;
} http_client_options;

typedef struct http_client http_client;
typedef struct http_fetch  http_fetch;

typedef struct {
    void (*on_head)(void *ctx, const http_response *r); /* of the final reply */
    void (*on_body)(void *ctx, str bytes);
    void (*on_end)(void *ctx, const err *why); /* NULL: it is whole; the fetch is gone */
    void *ctx;
} http_fetch_handler;

void http_client_options_init(http_client_options *o); /* 10 s, 600 s, 256 MiB */
bool http_client_open(http_client **out, const http_url *url, const http_client_options *o, err *e);
void http_client_close(http_client *c); /* NULL is fine; cancels all fetches */
/* Body empty: a GET. Host, User-Agent and Content-Length are put here. */
http_fetch *http_fetch_start(http_client *c, const char *path, const http_field *fields, size_t n, str body,
                             const http_fetch_handler *h);
void        http_fetch_cancel(http_fetch *f); /* closes its connection */
/* Waits until something happens, or until `until` by clock_s, and calls what is to be called. False: a signal came. */
bool   http_client_turn(http_client *c, double until);
double http_client_now(const http_client *c); /* when the bytes that are being told about came */
#endif
