#include "http/client.h"

#include "base/clock.h"
#include "base/mem.h"
#include "http/client_inside.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_BYTES = 64 << 10, MAX_REQUEST = 256 << 20, MAX_EVENTS = 256 };
static const double look_s = 0.1; /* interval of checking deadlines */

typedef enum { WIRE_CONNECTING, WIRE_SHAKING, WIRE_RUNNING, WIRE_IDLE, WIRE_DEAD } wire_phase;

typedef struct wire wire;
struct wire {
    http_client     *c;
    wire            *prev, *next; /* list of all wires, or of dead ones, which are freed at the end of a turn */
    int              fd;
    http_tls         tls;
    wire_phase       phase;
    uint32_t         armed;
    struct addrinfo *address;
    bool             was_used;
    double           began;
    http_fetch      *fetch; /* NULL: idle or dead */
    http_response    reply;
};

struct http_fetch {
    http_client       *c;
    http_fetch        *prev, *next;
    wire              *wire; /* NULL: it failed before a connection was made */
    http_fetch_handler h;
    buf                request;
    size_t             sent;
    double             deadline;
    uint64_t           body_bytes;
    bool               told_head;
    err                failed; /* reported in the next turn; ERR_NONE: none */
};

struct http_client {
    http_url            url;
    http_client_options o;
    int                 epoll;
    void               *tls; /* SSL_CTX */
    struct addrinfo    *addresses, *good;
    wire               *wires, *dead;
    http_fetch         *fetches;
    bool                has_failed; /* a fetch has a failure to report */
    double              now, next_look;
    char                scratch[READ_BYTES];
};

/* --- wires --------------------------------------------------------------------------------------*/
static void arm(wire *l, uint32_t want)
{
    struct epoll_event ev = {.events = want, .data.ptr = l};
    if (want == l->armed) return;
    (void)epoll_ctl(l->c->epoll, l->armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, l->fd, &ev);
    l->armed = want;
}

static void remove_wire(wire *l)
{
    if (l->prev)
        l->prev->next = l->next;
    else
        l->c->wires = l->next;
    if (l->next) l->next->prev = l->prev;
}

static void drop_socket(wire *l)
{
    if (l->tls.ssl) http_tls_detach(&l->tls);
    if (l->fd >= 0) close(l->fd);
    l->fd    = -1;
    l->armed = 0;
}

static void wire_close(wire *l)
{
    http_client *c = l->c;
    if (l->phase == WIRE_DEAD) return;
    remove_wire(l);
    drop_socket(l);
    if (l->fetch) l->fetch->wire = NULL;
    l->fetch = NULL;
    l->phase = WIRE_DEAD;
    l->next  = c->dead;
    c->dead  = l;
}

static void bury(http_client *c)
{
    while (c->dead) {
        wire *l = c->dead;
        c->dead = l->next;
        http_response_deinit(&l->reply);
        mem_free(l);
    }
}

/* Connects to this address or one after it. Returns false with errno if none can be tried. */
static bool begin_connect(wire *l)
{
    int one = 1;
    for (; l->address; l->address = l->address->ai_next) {
        drop_socket(l);
        l->fd = socket(l->address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (l->fd < 0) continue;
        (void)setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (!connect(l->fd, l->address->ai_addr, l->address->ai_addrlen) || errno == EINPROGRESS) {
            l->phase = WIRE_CONNECTING;
            arm(l, EPOLLOUT);
            return true;
        }
    }
    return false;
}

static bool cannot_connect(const http_client *c, int error, err *e)
{
    return err_set(e, ERR_IO, "cannot connect to %s port %d: %s", c->url.host, c->url.port, strerror(error));
}

static wire *find_idle(http_client *c)
{
    for (wire *l = c->wires; l; l = l->next)
        if (l->phase == WIRE_IDLE) return l;
    return NULL;
}

static bool wire_open(http_client *c, http_fetch *f, err *e)
{
    wire *l = xnew(wire);
    *l      = (wire){.c = c, .fd = -1, .address = c->good, .next = c->wires, .fetch = f, .began = clock_s()};
    http_response_init(&l->reply);
    if (c->wires) c->wires->prev = l;
    c->wires = l;
    f->wire  = l;
    if (begin_connect(l)) return true;
    int error = errno;
    wire_close(l);
    return cannot_connect(c, error, e);
}

/* --- fetches ------------------------------------------------------------------------------------*/
static void fetch_free(http_fetch *f)
{
    if (f->prev)
        f->prev->next = f->next;
    else
        f->c->fetches = f->next;
    if (f->next) f->next->prev = f->prev;
    buf_deinit(&f->request);
    mem_free(f);
}

static void fetch_end(http_fetch *f, const err *why)
{
    http_fetch_handler h = f->h;
    fetch_free(f);
    h.on_end(h.ctx, why);
}

static void fetch_fail(http_fetch *f, const err *why)
{
    err copy = *why;
    if (f->wire) wire_close(f->wire);
    fetch_end(f, &copy);
}

static void use_wire(http_fetch *f, wire *l)
{
    f->wire  = l;
    l->fetch = f;
    l->phase = WIRE_RUNNING;
    http_response_reset(&l->reply);
    arm(l, EPOLLIN | EPOLLOUT);
}

static void put_head(http_client *c, buf *out, const char *path, const http_field *fields, size_t n, str body)
{
    buf_printf(out, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: tandem/" TANDEM_VERSION "\r\n", body.n ? "POST" : "GET",
               path, c->url.authority);
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%.*s: %.*s\r\n", (int)fields[i].name.n, fields[i].name.s, (int)fields[i].value.n,
                   fields[i].value.s);
    if (body.n) buf_printf(out, "Content-Length: %zu\r\n", body.n);
    buf_puts(out, "\r\n");
}

static void fail_later(http_fetch *f)
{
    if (f->failed.code == ERR_NONE) f->failed.code = ERR_IO;
    f->c->has_failed = true;
}

http_fetch *http_fetch_start(http_client *c, const char *path, const http_field *fields, size_t n, str body,
                             const http_fetch_handler *h)
{
    http_fetch *f    = xnew(http_fetch);
    wire       *idle = find_idle(c);
    *f               = (http_fetch){.c = c, .next = c->fetches, .h = *h, .deadline = clock_s() + c->o.total_s};
    if (c->fetches) c->fetches->prev = f;
    c->fetches = f;
    buf_init(&f->request, MAX_REQUEST);
    put_head(c, &f->request, path, fields, n, body);
    if (body.n) buf_put(&f->request, body.s, body.n);
    if (f->request.failed) {
        err_set(&f->failed, ERR_TOO_LARGE, "no memory for the request");
        fail_later(f);
    } else if (idle) {
        use_wire(f, idle);
    } else if (!wire_open(c, f, &f->failed)) {
        fail_later(f);
    }
    return f;
}

void http_fetch_cancel(http_fetch *f)
{
    if (f->wire) wire_close(f->wire);
    fetch_free(f);
}

/* --- a wire's events ----------------------------------------------------------------------------*/
static void wire_lost(wire *l, const err *why)
{
    http_fetch *f       = l->fetch;
    bool        is_kept = l->was_used && l->reply.state == RESPONSE_HEAD && !l->reply.head.n && !l->reply.line.n;
    err         e       = {0};
    if (!f) {
        wire_close(l);
        return;
    }
    if (!is_kept) {
        fetch_fail(f, why);
        return;
    }
    wire_close(l);
    f->sent = 0;
    if (!wire_open(f->c, f, &e)) fetch_fail(f, &e);
}

static void start_running(wire *l)
{
    l->c->good = l->address;
    use_wire(l->fetch, l);
}

static void shake(wire *l)
{
    err     e = {0};
    ssize_t r = http_tls_shake(&l->tls);
    if (r == 1) {
        start_running(l);
    } else if (r == IO_AGAIN) {
        arm(l, l->tls.wants_out ? EPOLLOUT : EPOLLIN);
    } else {
        http_tls_client_fail(&l->tls, &e);
        fetch_fail(l->fetch, &e);
    }
}

static void finish_connect(wire *l)
{
    int       error = 0;
    socklen_t n     = sizeof error;
    err       e     = {0};
    (void)getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &n);
    if (error) {
        l->address = l->address->ai_next;
        if (l->address && begin_connect(l)) return;
        cannot_connect(l->c, error, &e);
        fetch_fail(l->fetch, &e);
        return;
    }
    if (!l->c->url.is_tls) {
        start_running(l);
        return;
    }
    l->phase = WIRE_SHAKING;
    if (http_tls_client_attach(&l->tls, l->c->tls, l->fd, l->c->url.host)) {
        shake(l);
        return;
    }
    err_set(&e, ERR_UNAVAILABLE, "cannot start TLS");
    fetch_fail(l->fetch, &e);
}

static ssize_t wire_write(wire *l, const void *p, size_t n)
{
    return l->tls.ssl ? http_tls_write(&l->tls, p, n) : http_net_outcome(send(l->fd, p, n, MSG_NOSIGNAL));
}

static ssize_t wire_read(wire *l, void *p, size_t n)
{
    return l->tls.ssl ? http_tls_read(&l->tls, p, n, false) : http_net_outcome(recv(l->fd, p, n, 0));
}

/* A server may respond and close before it has read the whole request: read its response. */
static void send_request(wire *l)
{
    http_fetch *f = l->fetch;
    while (f->sent < f->request.n) {
        ssize_t n = wire_write(l, f->request.p + f->sent, f->request.n - f->sent);
        if (n == IO_AGAIN) return;
        f->sent = n > 0 ? f->sent + (size_t)n : f->request.n;
    }
}

static void finish_fetch(wire *l, bool has_rest)
{
    http_fetch *f    = l->fetch;
    bool        keep = l->reply.keep_alive && !has_rest && f->sent == f->request.n;
    l->fetch         = NULL;
    f->wire          = NULL;
    if (keep) {
        l->phase    = WIRE_IDLE;
        l->was_used = true;
        arm(l, EPOLLIN);
    } else {
        wire_close(l);
    }
    fetch_end(f, NULL);
}

/* Returns false if the fetch has ended. */
static bool take_bytes(wire *l, str in)
{
    http_fetch *f = l->fetch;
    err         e = {0};
    while (in.n && l->reply.state != RESPONSE_DONE) {
        size_t used;
        str    body;
        bool   ok = http_response_feed(&l->reply, in, &used, &body, &e);
        if (ok && !f->told_head && l->reply.state != RESPONSE_HEAD) {
            f->told_head = true;
            f->h.on_head(f->h.ctx, &l->reply);
        }
        f->body_bytes += body.n;
        if (ok && f->body_bytes > f->c->o.max_body)
            ok = err_set(&e, ERR_TOO_LARGE, "the response is larger than %llu MiB",
                         (unsigned long long)(f->c->o.max_body >> 20));
        if (!ok) {
            fetch_fail(f, &e);
            return false;
        }
        if (body.n) f->h.on_body(f->h.ctx, body);
        in = (str){in.s + used, in.n - used};
    }
    if (l->reply.state != RESPONSE_DONE) return true;
    finish_fetch(l, in.n > 0);
    return false;
}

static void read_reply(wire *l)
{
    err e = {0};
    for (;;) {
        ssize_t n = wire_read(l, l->c->scratch, READ_BYTES);
        if (n > 0) {
            if (!take_bytes(l, (str){l->c->scratch, (size_t)n})) return;
            if (n < READ_BYTES && !l->tls.ssl) return;
            continue;
        }
        if (n == IO_AGAIN) return;
        if (n == 0 && http_response_end(&l->reply, &e)) {
            finish_fetch(l, true);
            return;
        }
        if (n != 0) err_set(&e, ERR_IO, "the connection was lost");
        wire_lost(l, &e);
        return;
    }
}

static void run_wire(wire *l)
{
    send_request(l);
    read_reply(l);
    if (l->phase != WIRE_RUNNING) return;
    bool wants_out = l->fetch->sent < l->fetch->request.n || l->tls.wants_out;
    arm(l, EPOLLIN | (wants_out ? EPOLLOUT : 0));
}

static void wire_event(wire *l)
{
    switch (l->phase) {
    case WIRE_CONNECTING: finish_connect(l); break;
    case WIRE_SHAKING: shake(l); break;
    case WIRE_RUNNING: run_wire(l); break;
    case WIRE_IDLE: wire_close(l); break;
    case WIRE_DEAD: break;
    }
}

/* --- the loop -----------------------------------------------------------------------------------*/
static bool is_late(const http_client *c, const http_fetch *f, err *e)
{
    const wire *l = f->wire;
    if (c->now > f->deadline) return err_set(e, ERR_IO, "no complete response within %g s", c->o.total_s), true;
    bool connecting = l && (l->phase == WIRE_CONNECTING || l->phase == WIRE_SHAKING);
    if (!connecting || c->now <= l->began + c->o.connect_s) return false;
    err_set(e, ERR_IO, "%s %s port %d within %g s", l->phase == WIRE_SHAKING ? "no TLS with" : "cannot connect to",
            c->url.host, c->url.port, c->o.connect_s);
    return true;
}

/* Restarts the search after each callback, which may start and cancel fetches. */
static void report_failed(http_client *c)
{
    while (c->has_failed) {
        http_fetch *f = c->fetches;
        while (f && f->failed.code == ERR_NONE) f = f->next;
        c->has_failed = f != NULL;
        if (f) fetch_fail(f, &f->failed);
    }
}

static void look_at_deadlines(http_client *c)
{
    err e = {0};
    if (c->now < c->next_look) return;
    c->next_look = c->now + look_s;
    for (http_fetch *f = c->fetches; f;)
        if (is_late(c, f, &e)) {
            fetch_fail(f, &e);
            f = c->fetches;
        } else {
            f = f->next;
        }
}

static int wait_ms(const http_client *c, double until)
{
    double now = clock_s(), end = c->fetches ? fmin(until, c->next_look) : until;
    if (c->has_failed || end <= now) return 0;
    return (int)fmin(ceil((end - now) * 1e3), 1e6);
}

bool http_client_poll(http_client *c, double until)
{
    struct epoll_event ev[MAX_EVENTS];
    int                n           = epoll_wait(c->epoll, ev, MAX_EVENTS, wait_ms(c, until));
    bool               interrupted = n < 0;
    c->now                         = clock_s();
    for (int i = 0; i < n; i++) wire_event(ev[i].data.ptr);
    report_failed(c);
    look_at_deadlines(c);
    bury(c);
    return !interrupted;
}

double http_client_now(const http_client *c) { return c->now; }

/* --- opening ------------------------------------------------------------------------------------*/
void http_client_options_init(http_client_options *o)
{
    *o = (http_client_options){.connect_s = 10, .total_s = 600, .max_body = (uint64_t)256 << 20};
}

static bool look_up(http_client *c, err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char            port[8];
    snprintf(port, sizeof port, "%d", c->url.port);
    int why = getaddrinfo(c->url.host, port, &hints, &c->addresses);
    c->good = c->addresses;
    if (why) return err_set(e, ERR_IO, "cannot resolve the host %s: %s", c->url.host, gai_strerror(why));
    for (const struct addrinfo *a = c->addresses; a && c->o.allows; a = a->ai_next)
        if (!c->o.allows(a->ai_addr))
            return err_set(e, ERR_INPUT, "the host %s has an address that is not allowed", c->url.host);
    return true;
}

bool http_client_open(http_client **out, const http_url *url, const http_client_options *o, err *e)
{
    http_client *c = xnew(http_client);
    sigset_t     pipe;
    *out     = NULL;
    c->url   = *url;
    c->o     = *o;
    c->now   = clock_s();
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    bool ok = (c->epoll >= 0 || err_set(e, ERR_IO, "no epoll: %s", strerror(errno))) && look_up(c, e) &&
              (!url->is_tls || http_tls_client_open(&c->tls, o, e));
    if (ok)
        *out = c;
    else
        http_client_close(c);
    return ok;
}

void http_client_close(http_client *c)
{
    if (!c) return;
    while (c->fetches) http_fetch_cancel(c->fetches);
    while (c->wires) wire_close(c->wires);
    bury(c);
    if (c->tls) http_tls_client_close(c->tls);
    if (c->addresses) freeaddrinfo(c->addresses);
    if (c->epoll >= 0) close(c->epoll);
    mem_free(c);
}
