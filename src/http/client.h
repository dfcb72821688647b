/* http/client.h - an HTTP/1.1 client for many concurrent requests to one server: one thread, epoll, kept connections.
 *
 *      http_fetch_start -> on_head -> on_body ... -> on_end          all handlers are called by http_client_poll
 *
 * on_end is called exactly once for each fetch that is not cancelled, with an error if the response is incomplete. It
 * may start other fetches. A handler may cancel other fetches, not its own. If the server closed a kept connection, the
 * request is sent again on a new one (RFC 9112 9.3.1). Only http_client_open, which resolves the name, may block for
 * longer than its timeout. The calling thread has SIGPIPE blocked from then on. */
#ifndef TANDEM_HTTP_CLIENT_H
#define TANDEM_HTTP_CLIENT_H
#include "http/response.h"

#include <sys/socket.h>

typedef struct {
    bool is_tls;
    char host[256]; /* a name, or an address without brackets */
    int  port;
    char authority[272]; /* as in the URL, for the Host header */
    char path[1024];     /* begins with a slash, does not end with one; "": none */
} http_url;

/* Parses a URL. Its scheme is http or https; user, query and fragment are refused. ERR_INPUT; *out is undefined
 * then. */
bool http_url_parse(http_url *out, str text, err *e);

typedef struct {
    const char *ca_file;   /* PEM file of certificates; NULL: the system's */
    bool        insecure;  /* accept any certificate */
    double      connect_s; /* timeout of connecting, with TLS */
    double      total_s;   /* timeout of a fetch, from its start to the end of the response */
    uint64_t    max_body;  /* bytes of a response's body */
    /* Checks each address that the host resolves to. If it returns false for one, http_client_open fails with
     * ERR_INPUT, and nothing is connected. Connections go to the checked addresses. NULL: all are allowed. */
    bool (*allows)(const struct sockaddr *address);
} http_client_options;

typedef struct http_client http_client;
typedef struct http_fetch  http_fetch;

typedef struct {
    void (*on_head)(void *ctx, const http_response *r); /* the head of the final response, valid during the call */
    void (*on_body)(void *ctx, str bytes);              /* a part of the body, valid during the call */
    void (*on_end)(void *ctx, const err *why);          /* why NULL: complete. The fetch was freed before the call */
    void *ctx;
} http_fetch_handler; /* all functions are required */

void http_client_options_init(http_client_options *o); /* 10 s, 600 s, 256 MiB */
/* Resolves the host and prepares TLS; connects with the first fetch. *url and *o are copied. *out is NULL on
 * failure. */
bool http_client_open(http_client **out, const http_url *url, const http_client_options *o, err *e);
void http_client_close(http_client *c); /* c may be NULL; cancels all fetches */
/* Starts a request: GET if the body is empty, else POST. Adds Host, User-Agent and Content-Length. path, which includes
 * that of the URL, fields, body and *h are copied; path and fields must not contain CR or LF. Never returns NULL:
 * on_end reports errors in the next turn. */
http_fetch *http_fetch_start(http_client *c, const char *path, const http_field *fields, size_t n, str body,
                             const http_fetch_handler *h);
void        http_fetch_cancel(http_fetch *f); /* closes its connection and frees f, without on_end */
/* Waits for events, at most until `until` (clock_s), and calls the handlers. May return earlier without an event.
 * Returns false when a signal interrupted it. */
bool   http_client_poll(http_client *c, double until);
double http_client_now(const http_client *c); /* arrival time of the bytes being handled */
#endif
