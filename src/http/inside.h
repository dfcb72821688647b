/* http/inside.h - what the files of the server share.
 *
 * A connection carries one call at a time, so they are one object. Its phases:
 *
 *      HANDSHAKE -> HEAD -> BODY -> RUNNING -> FLUSH -> HEAD ...      the client's bytes are read in the first three
 *                    |       |                   |                    alone: what he sends behind a request waits in
 *                    +-------+-- refused ------->+--> LINGER -> DEAD  the kernel, and blocks him when that is full
 *
 * RUNNING listens for the client's leaving only. A client that ends its own sending has not left: it gets its reply, and is
 * found to have gone when a write fails (http_conn_check_deadline). LINGER has sent all and said so, and throws away what still comes, so
 * that no reset overtakes the reply. DEAD has no descriptor; the memory goes at the end of the loop's turn, because
 * events of this turn may name it.
 *
 * Whatever changes a connection calls http_touch; at the end of the turn http_settle sends, ends and arms what was
 * touched. */
#ifndef TANDEM_HTTP_INSIDE_H
#define TANDEM_HTTP_INSIDE_H
#include "http/http.h"
#include "http/parse.h"

#include <stdatomic.h>
#include <sys/types.h>
#include <time.h>

typedef enum { PHASE_HANDSHAKE, PHASE_HEAD, PHASE_BODY, PHASE_RUNNING, PHASE_FLUSH, PHASE_LINGER, PHASE_DEAD } phase;

enum { SCRATCH_BYTES = 64 << 10, PEER_TEXT = 48, PEER_SLOTS = 256, LISTENERS = 2 };

typedef struct http_peer http_peer;
typedef struct {
    uint8_t byte[16]; /* IPv4 is mapped */
} http_from;

/* One side of a TLS connection. */
typedef struct {
    void *ssl; /* NULL: plain */
    bool  wants_out;
} http_tls;

typedef struct http_call conn;
struct http_call {
    http_server *s;
    conn        *prev, *next; /* of all connections, or of the dead */
    conn        *next_touched;
    bool         touched;
    int          fd;
    http_tls     tls;
    phase        phase;
    uint32_t     armed;    /* events that epoll was asked for */
    double       since;    /* when it began to wait for a head, or for a body */
    double       deadline; /* of this phase; unused while RUNNING and in FLUSH */
    http_peer   *from_peer;
    bool         is_local, is_unix; /* 127.0.0.1, ::1 or the unix socket; the latter alone */
    bool         half_closed;       /* the client sends no more */
    double       next_probe;        /* when a half-closed client without a reply is written to */
    char         peer[PEER_TEXT];

    http_scan    scan;
    http_head    head;
    http_body    to_read;
    buf          body;
    size_t       body_counted; /* bytes of it in the server's sum */
    http_request request;
    void        *user;
    int          status; /* that was answered; 0: none */
    bool         live;   /* between on_head and on_done */
    bool         was_used;

    buf     out;
    size_t  out_at; /* bytes of it that are sent */
    bool    replying, chunked, no_body, ended, cut, closing;
    bool    was_over;     /* max_unsent; on_room is owed */
    int64_t sent;         /* bytes that the system took, over the connection's life */
    double  patience_end; /* when a client that is behind is cut; 0: it is not behind */
    int64_t arrived;      /* http_net_arrived at the last look */
    size_t  may_waste;    /* bytes that LINGER still throws away */
};

typedef struct {
    int  fd; /* -1: none */
    bool is_unix, is_tls, paused;
} listener;

struct http_server {
    http_options o;
    http_handler h;
    int          epoll, event, spare; /* spare: given up for a moment when there are no descriptors left */
    listener     listener[LISTENERS];
    int          port;
    char        *unix_path; /* that we made */
    void        *tls;       /* SSL_CTX */
    atomic_bool  woken, stopped;
    bool         draining, no_keep_alive;
    conn        *first, *dead;
    conn        *touched, **touched_end;
    http_peer   *peer[PEER_SLOTS];
    size_t       body_bytes;
    double       now, next_tick, told_full;
    time_t       date_at;
    char         date[32];
    http_stats   stats;
    char         scratch[SCRATCH_BYTES];
};

/* conn.c */
conn *http_conn_new(http_server *s, int fd, bool is_tls); /* NULL: there is no memory */
void  http_conn_event(conn *c, uint32_t events);
void  http_conn_check_deadline(conn *c);
void  http_conn_lose(conn *c);          /* at once; a live call ends undelivered */
bool  http_conn_is_idle(const conn *c); /* no byte of a next request is there */
void  http_touch(conn *c);
void  http_settle(conn *c);

/* reply.c */
void http_put_refusal(buf *out, http_server *s, conn *live, http_verdict v); /* live: NULL when there is no call */

/* net.c: bytes, plain or by TLS. 0: the client ended; IO_AGAIN: none for now; IO_BROKEN. */
enum { IO_AGAIN = -1, IO_BROKEN = -2 };
ssize_t http_net_outcome(ssize_t n); /* of recv and send */
ssize_t http_net_read(conn *c, void *p, size_t n, bool peek);
ssize_t http_net_write(conn *c, const void *p, size_t n);
int64_t http_net_arrived(const conn *c); /* of what was sent, the bytes that the client's side has acknowledged */
bool    http_net_pending(const conn *c); /* bytes were taken from the system and wait in the TLS */
void    http_net_say_end(conn *c);       /* no more comes from us */
void    http_net_close(conn *c);
void http_net_drop_unsent(conn *c); /* when it closes: the system need not hold what a stalled client does not take */

/* tls.c */
bool    http_tls_open(http_server *s, err *e);
void    http_tls_close(http_server *s);
bool    http_tls_attach(conn *c);
void    http_tls_detach(http_tls *t);
ssize_t http_tls_shake(http_tls *t); /* 1: done */
ssize_t http_tls_read(http_tls *t, void *p, size_t n, bool peek);
ssize_t http_tls_write(http_tls *t, const void *p, size_t n);
bool    http_tls_pending(const http_tls *t);
void    http_tls_say_end(http_tls *t);

/* admit.c */
void http_admit(http_server *s, int fd, bool is_tls, const http_from *from); /* from: NULL for the unix socket */
bool http_make_room(http_server *s, const conn *newcomer); /* closes one that gives way; newcomer: NULL when unknown */
void http_leave_peer(conn *c);
void http_tell_full(http_server *s, const char *what); /* counts a refusal */

/* listen.c */
bool http_listen(http_server *s, err *e);
void http_unlisten(http_server *s);
void http_accept(http_server *s, listener *l);
#endif
