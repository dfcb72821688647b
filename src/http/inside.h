/* http/inside.h - types and functions shared by the files of the server. All run on the I/O thread.
 *
 * A connection has one call at a time, so they are one object. Its phases:
 *
 *      HANDSHAKE -> HEAD -> BODY -> RUNNING -> FLUSH -> HEAD ...      Only the first three read bytes of the client.
 *                    |       |                   |                    Bytes after a request stay in the kernel, and
 *                    +-------+-- refused ------->+--> LINGER -> DEAD  block the client when its buffers are full.
 *
 * RUNNING only waits for a disconnect. A client that shuts down its sending side still gets its response; a failed
 * write shows that it is gone (http_conn_check_deadline). LINGER has sent everything and the end, and discards further
 * bytes, so that no reset overtakes the response. DEAD has no descriptor; its memory is freed at the end of the loop
 * iteration, because events of this iteration may refer to it.
 *
 * Every change of a connection calls http_touch. At the end of the iteration http_settle sends, ends and arms the
 * touched connections. */
#ifndef TANDEM_HTTP_INSIDE_H
#define TANDEM_HTTP_INSIDE_H
#include "http/http.h"
#include "http/parse.h"

#include <stdatomic.h>
#include <sys/types.h>
#include <time.h>

typedef enum { PHASE_HANDSHAKE, PHASE_HEAD, PHASE_BODY, PHASE_RUNNING, PHASE_FLUSH, PHASE_LINGER, PHASE_DEAD } phase;

enum {
    SCRATCH_BYTES = 64 << 10, /* most bytes of one read */
    PEER_TEXT     = 48,       /* an address as text, with its NUL */
    PEER_SLOTS    = 256,      /* hash buckets of peers */
    LISTENERS     = 2,        /* TCP and unix */
};

typedef struct http_peer http_peer; /* counts the connections of one address */
/* The address of a client. */
typedef struct {
    uint8_t byte[16]; /* IPv6; IPv4 is mapped */
} http_from;

/* One side of a TLS connection. */
typedef struct {
    void *ssl;       /* NULL: plain */
    bool  wants_out; /* the last call needs the socket to be writable before it can continue */
} http_tls;

typedef struct http_call conn;
struct http_call {
    http_server *s;
    conn        *prev, *next; /* list of all connections, or of dead ones */
    conn        *next_touched;
    bool         touched;
    int          fd;
    http_tls     tls;
    phase        phase;
    uint32_t     armed;    /* events registered with epoll */
    double       since;    /* start of the wait for a head or body */
    double       deadline; /* end of this phase; unused in RUNNING and FLUSH */
    http_peer   *from_peer;
    bool         is_local, is_unix; /* 127.0.0.1, ::1 or the unix socket; the latter alone */
    bool         half_closed;       /* the client has shut down its sending side */
    double       next_probe;        /* time of the next write to a half-closed client without a response */
    char         peer[PEER_TEXT];

    http_scan    scan;
    http_head    head;
    http_body    to_read;
    buf          body;
    size_t       body_counted; /* its bytes in body_bytes of the server */
    http_request request;
    void        *user;
    int          status;   /* HTTP status of the response; 0: none */
    bool         live;     /* between on_head and on_done */
    bool         was_used; /* the connection has had a call */

    buf     out;
    size_t  out_at;                                 /* bytes of `out` that were sent */
    bool    replying, chunked, no_body, ended, cut; /* state of the response */
    bool    closing;                                /* the connection closes after it */
    bool    was_over;                               /* over max_unsent; on_room must follow */
    int64_t sent;                                   /* bytes that the kernel has taken in total */
    double  patience_end;                           /* time at which a slow client is disconnected; 0: it is not slow */
    int64_t arrived;                                /* last value of http_net_arrived */
    size_t  may_waste;                              /* bytes that LINGER may still discard */
};

typedef struct {
    int  fd;                      /* -1: none */
    bool is_unix, is_tls, paused; /* paused: until the next tick, because there are no descriptors */
} listener;

struct http_server {
    http_options o;
    http_handler h;
    int          epoll, event, spare; /* spare: closed for a moment when no descriptors are left */
    listener     listener[LISTENERS];
    int          port;
    char        *unix_path; /* path of the socket that we created */
    void        *tls;       /* SSL_CTX */
    atomic_bool  woken, stopped;
    bool         draining, no_keep_alive;
    conn        *first, *dead;
    conn        *touched, **touched_end;
    http_peer   *peer[PEER_SLOTS];
    size_t       body_bytes;                /* memory of all bodies */
    double       now, next_tick, told_full; /* clock_s; the last one: when http_refuse_full logged */
    time_t       date_at;
    char         date[32];
    http_stats   stats;
    char         scratch[SCRATCH_BYTES];
};

/* conn.c */
/* Adds a connection, which owns fd. NULL: out of memory; fd is still the caller's. The phase is DEAD if TLS failed. */
conn *http_conn_new(http_server *s, int fd, bool is_tls);
void  http_conn_event(conn *c, uint32_t events); /* handles events of epoll */
void  http_conn_check_deadline(conn *c);         /* ends a phase that took too long, and probes half-closed clients */
void  http_conn_lose(conn *c);                   /* closes immediately; a live call ends undelivered */
bool  http_conn_is_idle(const conn *c);          /* true if no byte of the next request has arrived */
void  http_touch(conn *c);                       /* has http_settle called at the end of the iteration */
void  http_settle(conn *c);

/* reply.c */
/* Appends the whole response for a refusal, with the fields and the body of on_refuse. live: NULL when there is no
 * call. */
void http_put_refusal(buf *out, http_server *s, conn *live, http_verdict v);

/* net.c: reads and writes, plain or TLS. They return the number of bytes; 0: the client shut down; IO_AGAIN: nothing
 * for now; IO_BROKEN: failed. */
enum { IO_AGAIN = -1, IO_BROKEN = -2 };
ssize_t http_net_outcome(ssize_t n); /* result of recv or send as IO_...; reads errno */
ssize_t http_net_read(conn *c, void *p, size_t n, bool peek);
ssize_t http_net_write(conn *c, const void *p, size_t n);
int64_t http_net_arrived(const conn *c); /* sent bytes that the client has acknowledged */
bool    http_net_pending(const conn *c); /* TLS has buffered bytes */
void    http_net_shut_down(conn *c);     /* shuts down our sending side */
void    http_net_close(conn *c);
void    http_net_drop_unsent(conn *c); /* makes the kernel drop unsent bytes on close */

/* tls.c: results as in net.c */
bool    http_tls_open(http_server *s, err *e); /* does nothing without a certificate and key */
void    http_tls_close(http_server *s);
bool    http_tls_attach(conn *c);     /* prepares a handshake; false: no memory */
void    http_tls_detach(http_tls *t); /* frees the TLS state; the socket stays open */
ssize_t http_tls_shake(http_tls *t);  /* continues the handshake; 1: done */
ssize_t http_tls_read(http_tls *t, void *p, size_t n, bool peek);
ssize_t http_tls_write(http_tls *t, const void *p, size_t n);
bool    http_tls_pending(const http_tls *t);
void    http_tls_send_end(http_tls *t); /* sends close_notify */

/* admit.c */
/* Adds a connection of an accepted socket, which it owns, or refuses it. from: NULL for the unix socket. */
void http_admit(http_server *s, int fd, bool is_tls, const http_from *from);
/* Closes a connection without a call for newcomer, which may be NULL. Returns false if there is none to close. */
bool http_make_room(http_server *s, const conn *newcomer);
void http_leave_peer(conn *c);                           /* removes c from the count of its peer */
void http_refuse_full(http_server *s, const char *what); /* counts a refusal, and logs the reason once a minute */

/* listen.c */
bool http_listen(http_server *s, err *e); /* after a failure, too, http_unlisten closes the sockets */
void http_unlisten(http_server *s);
void http_accept(http_server *s, listener *l); /* accepts all connections that wait */
#endif
