/* http/http.h - an HTTP/1.1 server: one thread, epoll, strict parsing.
 *
 *      head read -> on_head -> body read -> on_request -> http_reply, or http_begin, http_put ..., http_end
 *
 * The I/O thread is the one in http_run. All functions except http_wake and http_stop must be called on it, or before
 * http_run begins or after it returned. It also runs all callbacks, so handlers need no locks. Nothing here blocks.
 *
 * A call lives from on_head until on_done, which is always called, but of the functions below only http_close calls it
 * before it returns. Bytes are sent at the end of the loop iteration.
 *
 * Ownership: the server owns a call, which must not be used after on_done returned. Its strings are valid until then,
 * its body until http_drop_body or http_take_body. Fields and bytes of a response are copied. */
#ifndef TANDEM_HTTP_HTTP_H
#define TANDEM_HTTP_HTTP_H
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

typedef struct http_server http_server;
typedef struct http_call   http_call; /* one request and its response */

typedef struct {
    str name, value;
} http_field;

typedef struct {
    str               method, target, path, query; /* path: percent-decoded; target and query: as received */
    int               minor;                       /* minor version: 0 or 1 */
    const http_field *field;
    size_t            n_fields;
    str               body; /* empty until on_request */
    str               peer; /* the client's address without a port; empty for a unix socket */
    bool              is_tls;
} http_request;

/* Callbacks. on_head and on_request are required; the others may be NULL. */
typedef struct {
    /* Called after the head was read. Returns false if it has replied already (missing key, unknown path); the body is
     * then never read. */
    bool (*on_head)(void *ctx, http_call *c);
    void (*on_request)(void *ctx, http_call *c); /* the body is complete; reply now or later */
    /* The call ends. delivered: the kernel took the last byte of a complete response; false: the client disconnected or
     * was disconnected, the server refused the request, or http_cut or http_close ended the call. */
    void (*on_done)(void *ctx, http_call *c, bool delivered);
    /* The unsent bytes fell to half of max_unsent, after they were over it. */
    void (*on_room)(void *ctx, http_call *c);
    void (*on_wake)(void *ctx); /* after one or several calls of http_wake */
    void (*on_tick)(void *ctx); /* about every 250 ms */
    void *ctx;
    /* The server itself sends an error: it refuses a connection or an incomplete request, or has no memory for the
     * response of http_reply. `why` is the message. c: the call, whose on_done follows; NULL if the connection is
     * refused or the head is incomplete or malformed. Writes header fields, whose strings stay valid until on_refuse is
     * called again, and appends at most 4096 bytes to body; if a connection is refused, the whole response must fit
     * into 1024 bytes. Returns the number of fields, at most HTTP_MAX_REFUSAL_FIELDS. If on_refuse is NULL, the body is
     * `why`. */
    size_t (*on_refuse)(void *ctx, http_call *c, int status, const char *why, http_field *fields, buf *body);
} http_handler;
enum { HTTP_MAX_REFUSAL_FIELDS = 10 };

/* Set by http_options_init to the numbers given here, then changed by the caller. 0 is not replaced by a default. A
 * host, a unix_path or both are required; NULL: none. */
typedef struct {
    const char *host; /* a numeric address, or localhost; NULL: none */
    int         port; /* 0: any free port */
    const char *unix_path;
    const char *tls_cert, *tls_key;             /* PEM files, for host and port; NULL: no TLS */
    size_t      max_head, max_fields, max_body; /* 32 KiB, 100, 64 MiB */
    size_t      max_unsent;                     /* unsent bytes of a stream, 1 MiB */
    size_t      max_bodies;                     /* memory of all bodies; 256 MiB */
    int         max_connections;                /* 1024 */
    int         reserved;                       /* additional connections for 127.0.0.1, ::1 and the unix socket; 16 */
    int         max_per_peer;                   /* connections of one address, or of one IPv6 /64; 512 */
    /* Timeouts in seconds: 10 for a head, from the connection or its first byte; 60 for a body; 75 for an idle
     * connection between requests; 20 for a client that takes no bytes of a response. */
    double head_s, body_s, idle_s, stall_s;
    /* Minimum bytes per second, 1024: of a body after its first second, and of a response with unsent bytes, after
     * stall_s. */
    size_t min_rate;
} http_options;

void http_options_init(http_options *o);
bool http_host_is_local(const char *host); /* true for localhost and loopback addresses; host must not be NULL */
/* Opens the sockets and listens. Copies *o and *h; the strings of o are needed only during the call, h->ctx until
 * http_close. After a failure *out is NULL. */
bool http_open(http_server **out, const http_options *o, const http_handler *h, err *e);
int  http_port(const http_server *s); /* the TCP port that is bound; 0: none */
/* Runs the loop until http_stop; returns at once if that was called before. The calling thread becomes the I/O thread
 * and has SIGPIPE blocked from then on. */
void http_run(http_server *s);
void http_stop(http_server *s); /* may be called on any thread and in signal handlers */
/* Ends all calls, each with on_done, closes the sockets and frees s, which may be NULL. Never call it in a callback. */
void http_close(http_server *s);
/* Requests a call of on_wake, from any thread. Writes to an eventfd unless a wake is pending. */
void http_wake(http_server *s);
/* Begins the shutdown: closes idle connections, and closes others after their next response. New connections are still
 * accepted, so that clients get an error response. */
void http_drain(http_server *s);

/* Enables or disables keep-alive for the responses that begin from now on. Enabled at first. */
void http_keep_alive(http_server *s, bool on);

const http_request *http_call_request(const http_call *c);
str   http_call_field(const http_call *c, const char *name); /* a header field by name, ignoring case; s NULL: absent */
void  http_call_set_user(http_call *c, void *user);
void *http_call_user(const http_call *c);
int   http_call_status(const http_call *c);      /* status of the response; 0: none yet */
void  http_limit_body(http_call *c, size_t max); /* in on_head: lowers max_body for this call */
void  http_drop_body(http_call *c);              /* frees the body */
/* Transfers ownership of the body to the caller. Overwrites *out without freeing it. The caller frees the body with
 * buf_deinit and then passes the returned number of bytes to http_give_back, because they count towards max_bodies
 * until then. */
size_t http_take_body(http_call *c, buf *out);
void   http_give_back(http_server *s, size_t bytes);

/* Sends a complete response. A call gets one response: http_reply, or http_begin to http_end. Adds Content-Length, Date
 * and Connection; omits the body for HEAD, 204 and 304, and fields with a control character. */
void http_reply(http_call *c, int status, const http_field *fields, size_t n, str body);
/* Begins a streamed response: chunked, or for HTTP/1.0 until the connection closes. Fields as for http_reply. */
void http_begin(http_call *c, int status, const http_field *fields, size_t n);
void http_put(http_call *c, str bytes); /* adds a chunk; the puts of one loop iteration are sent in one write */
void http_end(http_call *c);            /* ends a streamed response; on_done follows later */
/* Ends a call without a complete response: sends the bytes put so far, then closes without the last chunk, so that the
 * client detects the failure. */
void http_cut(http_call *c);
/* Returns the bytes that the kernel has not taken. Above max_unsent, put no more until on_room. A put above four times
 * max_unsent disconnects the client. */
size_t http_unsent(const http_call *c);

typedef struct {
    int     connections, calls;         /* now; the following count from the start */
    int64_t accepted, refused, evicted; /* connections; evicted: closed in favour of others while they had no call */
    int64_t requests, bad_requests, timeouts, bytes_in, bytes_out;
} http_stats;
void http_get_stats(const http_server *s, http_stats *out);
#endif
