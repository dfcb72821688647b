/* http/http.h - an HTTP/1.1 server: one thread, epoll, strict.
 *
 *      head read -> on_head -> body read -> on_request -> http_reply, or http_begin, http_put ..., http_end
 *
 * All functions but http_wake and http_stop are for the I/O thread, and all callbacks come on it: what uses a server
 * needs no locks. Nothing here blocks. A call lives from on_head until on_done, which always comes, and never from
 * inside a function of this header but http_close. What is put leaves at the end of the loop's turn.
 *
 * Ownership: a call is the server's; its strings are good until it ends, and its body until http_drop_body. */
#ifndef TANDEM_HTTP_HTTP_H
#define TANDEM_HTTP_HTTP_H
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

typedef struct http_server http_server;
typedef struct http_call   http_call; /* one request, and its reply */

typedef struct {
    str name, value;
} http_field;

typedef struct {
    str               method, target, path, query; /* path: percent-decoded; target and query: as they came */
    int               minor;                       /* of the version: 0 or 1 */
    const http_field *field;
    size_t            n_fields;
    str               body;
    str               peer; /* the client's address without a port; empty for a unix socket */
    bool              is_tls;
} http_request;

/* on_head and on_request must be there; the others may be NULL. */
typedef struct {
    /* The head is there, the body is not. False: it was answered already (a key is missing, no such path), and the body
     * is then never read. */
    bool (*on_head)(void *ctx, http_call *c);
    void (*on_request)(void *ctx, http_call *c); /* all of it is there; to be answered now or later */
    /* The call ends. delivered: the last byte of a finished reply was handed to the system; else the client left or was
     * cut. */
    void (*on_done)(void *ctx, http_call *c, bool delivered);
    /* At most half of max_unsent waits again, after http_unsent was over it. */
    void (*on_room)(void *ctx, http_call *c);
    void (*on_wake)(void *ctx); /* after http_wake; several wakes may be told as one */
    void (*on_tick)(void *ctx); /* about every 250 ms */
    void *ctx;
    /* A request is refused here, before it was whole: `why` is a sentence. c: its call, whose on_done follows; NULL: there
     * was no head to make a call of. Fields and a body of the handler's own, good until it is called again; returns how many
     * fields, at most HTTP_MAX_REFUSAL_FIELDS. */
    size_t (*on_refuse)(void *ctx, http_call *c, int status, const char *why, http_field *fields, buf *body);
} http_handler;
enum { HTTP_MAX_REFUSAL_FIELDS = 10 };

typedef struct {
    const char *host; /* a numeric address, or localhost; NULL: none */
    int         port; /* 0: any that is free */
    const char *unix_path;
    const char *tls_cert, *tls_key;              /* PEM files, for host and port; NULL: no TLS */
    size_t      max_head, max_fields, max_body;  /* 32 KiB, 100, 64 MiB */
    size_t      max_unsent;                      /* of a growing reply, 1 MiB */
    size_t      max_bodies;                      /* memory of all bodies that are being held; 256 MiB */
    int         max_connections;                 /* 1024 */
    int         reserved;                        /* places beyond that for 127.0.0.1, ::1 and the unix socket; 16 */
    int         max_per_peer;                    /* connections of one address, or of one IPv6 /64; 512 */
    double      head_s, body_s, idle_s, stall_s; /* deadlines: 10, 60, 75, 20 */
    /* Bytes a second, 1024: of a body after its first second; of a reply while some of it waits, with stall_s of
     * patience. */
    size_t min_rate;
} http_options;

void http_options_init(http_options *o);
bool http_host_is_local(const char *host); /* only this machine can reach it */
bool http_open(http_server **out, const http_options *o, const http_handler *h, err *e); /* listens from here on */
int  http_port(const http_server *s);                                                    /* that was bound; 0: none */
/* Until http_stop. The caller's thread is the I/O thread, and has SIGPIPE blocked from then on. */
void http_run(http_server *s);
void http_stop(http_server *s);  /* any thread, and from a signal handler */
void http_close(http_server *s); /* NULL is fine; ends all calls */
/* Any thread: on_wake comes soon. One write to an eventfd, and none while one is pending. */
void http_wake(http_server *s);
/* The end is near: idle connections are closed, and each reply is the last of its connection. New ones are still taken, so
 * that who asks can be told. */
void http_drain(http_server *s);

/* Off: each reply is the last of its connection. */
void http_keep_alive(http_server *s, bool on);

const http_request *http_call_request(const http_call *c);
str   http_call_field(const http_call *c, const char *name); /* of the request, any case; s NULL: absent */
void  http_call_set_user(http_call *c, void *user);
void *http_call_user(const http_call *c);
int   http_call_status(const http_call *c);       /* that was answered; 0: nothing yet */
void  http_limit_body(http_call *c, size_t most); /* in on_head: less than max_body; 413 beyond it */
void  http_drop_body(http_call *c);               /* it is not needed any more */
/* The body becomes the caller's, who ends it by buf_deinit and then gives back what is returned here: the bytes that it
 * counts towards max_bodies, also when the call has ended meanwhile. */
size_t http_take_body(http_call *c, buf *out);
void   http_give_back(http_server *s, size_t bytes);

/* Whole replies. Content-Length, Date, Connection are put here; a HEAD gets no body. A field with a control
 * character is left out. */
void http_reply(http_call *c, int status, const http_field *fields, size_t n, str body);
/* Replies that grow: chunked, or to a 1.0 client until the connection closes. */
void http_begin(http_call *c, int status, const http_field *fields, size_t n);
void http_put(http_call *c, str bytes); /* one chunk; several puts in one turn of the loop leave in one write */
void http_end(http_call *c);
/* What was put is sent, then the connection closes without the end: the client sees that it broke. */
void http_cut(http_call *c);
/* Bytes that the system has not taken. Over max_unsent: put no more until on_room. A put at four times that cuts the
 * client. */
size_t http_unsent(const http_call *c);

typedef struct {
    int     connections, calls;
    int64_t accepted, refused, evicted; /* evicted: they carried no call and gave way to others */
    int64_t requests, bad_requests, timeouts, bytes_in, bytes_out;
} http_stats;
void http_get_stats(const http_server *s, http_stats *out);
#endif
