#include "base/clock.h"
#include "base/mem.h"
#include "http/inside.h"

#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TICK_S 0.25
enum { EVENTS_A_TURN = 128 };

void http_options_init(http_options *o)
{
    *o = (http_options){
        .max_head        = 32 << 10,
        .max_fields      = 100,
        .max_body        = 64 << 20,
        .max_unsent      = 1 << 20,
        .max_bodies      = 256 << 20,
        .max_connections = 1024,
        .reserved        = 16,
        .max_per_peer    = 512,
        .head_s          = 10,
        .body_s          = 60,
        .idle_s          = 75,
        .stall_s         = 20,
        .min_rate        = 1024,
    };
}

/* --- waking --------------------------------------------------------------------------------------- */
static void ring_server(http_server *s)
{
    uint64_t one = 1;
    ssize_t  n   = write(s->event, &one, sizeof one); /* fails when the count is full: a wake is then pending */
    (void)n;
}

void http_wake(http_server *s)
{
    if (!atomic_exchange(&s->woken, true)) ring_server(s);
}

void http_stop(http_server *s)
{
    atomic_store(&s->stopped, true);
    ring_server(s);
}

static void hear_wake(http_server *s)
{
    uint64_t count;
    ssize_t  n = read(s->event, &count, sizeof count);
    (void)n;
    /* cleared before the callback, so that a wake during on_wake is not lost */
    if (atomic_exchange(&s->woken, false) && s->h.on_wake) s->h.on_wake(s->h.ctx);
}

/* --- opening and closing -------------------------------------------------------------------------- */
static bool open_loop(http_server *s, err *e)
{
    struct epoll_event ev = {.events = EPOLLIN};
    s->epoll              = epoll_create1(EPOLL_CLOEXEC);
    s->event              = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (s->epoll < 0 || s->event < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->event, &ev) != 0)
        return err_set(e, ERR_IO, "cannot make an event loop: %s", strerror(errno));
    return true;
}

bool http_open(http_server **out, const http_options *o, const http_handler *h, err *e)
{
    http_server *s = xnew(http_server);
    s->o           = *o;
    s->h           = *h;
    s->epoll = s->event = s->spare = -1;
    s->touched_end                 = &s->touched;
    s->now                         = clock_s();
    for (int i = 0; i < LISTENERS; i++) s->listener[i].fd = -1;

    *out = NULL;
    if (!open_loop(s, e) || !http_tls_open(s, e) || !http_listen(s, e)) {
        http_close(s);
        return err_wrap(e, "cannot start the server");
    }
    *out = s;
    return true;
}

static void bury(http_server *s)
{
    conn **at = &s->dead;
    while (*at) {
        conn *c = *at;
        if (c->touched) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        mem_free(c);
    }
}

static void close_fd(int fd)
{
    if (fd >= 0) close(fd);
}

void http_close(http_server *s)
{
    if (!s) return;
    http_unlisten(s);
    while (s->first) http_conn_lose(s->first);
    for (conn *c = s->dead; c; c = c->next) c->touched = false;
    bury(s);
    http_tls_close(s);
    close_fd(s->epoll);
    close_fd(s->event);
    close_fd(s->spare);
    mem_free(s);
}

int  http_port(const http_server *s) { return s->port; }
void http_get_stats(const http_server *s, http_stats *out) { *out = s->stats; }

void http_drain(http_server *s)
{
    s->draining = true;
    for (conn *c = s->first, *next; c; c = next) {
        next = c->next;
        if (http_conn_is_idle(c)) http_conn_lose(c);
    }
}

void http_keep_alive(http_server *s, bool on) { s->no_keep_alive = !on; }

/* --- the loop ------------------------------------------------------------------------------------- */
static bool is_listener(const http_server *s, const void *p)
{
    return p >= (const void *)s->listener && p < (const void *)(s->listener + LISTENERS);
}

static void handle(http_server *s, const struct epoll_event *ev)
{
    if (!ev->data.ptr)
        hear_wake(s);
    else if (is_listener(s, ev->data.ptr))
        http_accept(s, ev->data.ptr);
    else
        http_conn_event(ev->data.ptr, ev->events);
}

static void resume_accepting(http_server *s)
{
    for (int i = 0; i < LISTENERS; i++) {
        listener          *l  = &s->listener[i];
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = l};
        if (l->fd >= 0 && l->paused) l->paused = epoll_ctl(s->epoll, EPOLL_CTL_MOD, l->fd, &ev) != 0;
    }
}

static void tick(http_server *s)
{
    s->next_tick = s->now + TICK_S;
    resume_accepting(s);
    for (conn *c = s->first, *next; c; c = next) {
        next = c->next;
        http_conn_check_deadline(c);
    }
    if (s->h.on_tick) s->h.on_tick(s->h.ctx);
}

/* Handles each touched connection once. A connection touched meanwhile follows in the next iteration. */
static void settle_touched(http_server *s)
{
    conn *c        = s->touched;
    s->touched     = NULL;
    s->touched_end = &s->touched;
    while (c) {
        conn *next = c->next_touched;
        c->touched = false;
        http_settle(c);
        c = next;
    }
}

static int wait_ms(const http_server *s)
{
    if (s->touched) return 0;
    double ms = (s->next_tick - clock_s()) * 1e3;
    return ms <= 0 ? 0 : (int)ms + 1;
}

void http_run(http_server *s)
{
    struct epoll_event ev[EVENTS_A_TURN];
    sigset_t           pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    while (!atomic_load(&s->stopped)) {
        int n  = epoll_wait(s->epoll, ev, EVENTS_A_TURN, wait_ms(s));
        s->now = clock_s();
        for (int i = 0; i < n; i++) handle(s, &ev[i]);
        if (s->now >= s->next_tick) tick(s);
        settle_touched(s);
        bury(s);
    }
}
