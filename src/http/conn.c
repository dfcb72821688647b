#include "base/mem.h"
#include "http/inside.h"

#include <sys/epoll.h>

enum { LINGER_S = 2, PROBE_EVERY_S = 15, KEPT_OUT_BYTES = 16 << 10 };
#define PROBE_AFTER_S 0.25

/* --- lists ---------------------------------------------------------------------------------------- */
static void link_in(conn *c)
{
    http_server *s = c->s;
    c->next        = s->first;
    if (s->first) s->first->prev = c;
    s->first = c;
    s->stats.connections++;
}

static void move_to_dead(conn *c)
{
    http_server *s = c->s;
    if (c->prev)
        c->prev->next = c->next;
    else
        s->first = c->next;
    if (c->next) c->next->prev = c->prev;
    c->next = s->dead;
    s->dead = c;
    s->stats.connections--;
    http_leave_peer(c);
}

void http_touch(conn *c)
{
    if (c->touched) return;
    c->touched         = true;
    c->next_touched    = NULL;
    *c->s->touched_end = c;
    c->s->touched_end  = &c->next_touched;
}

/* --- calls ---------------------------------------------------------------------------------------- */
static void end_call(conn *c, bool delivered)
{
    http_server *s = c->s;
    if (!c->live) return;
    c->live = false;
    s->stats.calls--;
    if (s->h.on_done) s->h.on_done(s->h.ctx, c, delivered);
}

/* Frees the memory of a call, so that an idle connection needs little. */
static void clear_call(conn *c)
{
    http_drop_body(c);
    http_scan_deinit(&c->scan);
    mem_free(c->head.field);
    c->head    = (http_head){0};
    c->to_read = (http_body){0};
    c->request = (http_request){0};
    c->user    = NULL;
    c->status  = 0;
    buf_deinit(&c->out);
    c->out_at       = 0;
    c->patience_end = 0;
    c->replying = c->chunked = c->no_body = c->ended = c->cut = c->closing = c->was_over = false;
}

static void await_head(conn *c, double seconds)
{
    http_scan_init(&c->scan, c->s->o.max_head);
    c->phase    = PHASE_HEAD;
    c->since    = c->s->now;
    c->deadline = c->since + seconds;
}

conn *http_conn_new(http_server *s, int fd, bool is_tls)
{
    conn *c = mem_try(sizeof *c);
    if (!c) return NULL;
    c->s  = s;
    c->fd = fd;
    buf_init(&c->out, SIZE_MAX / 2);
    link_in(c);
    await_head(c, s->o.head_s);
    if (is_tls) {
        c->phase = PHASE_HANDSHAKE;
        if (!http_tls_attach(c)) http_conn_lose(c);
    }
    http_touch(c);
    return c;
}

void http_conn_lose(conn *c)
{
    if (c->phase == PHASE_DEAD) return;
    c->phase = PHASE_DEAD;
    end_call(c, false);
    clear_call(c);
    http_net_close(c);
    move_to_dead(c);
}

bool http_conn_is_idle(const conn *c) { return c->phase == PHASE_HEAD && !c->scan.bytes.n; }

static void refuse_request(conn *c, http_verdict v)
{
    http_server *s = c->s;
    *(v.status == 408 ? &s->stats.timeouts : &s->stats.bad_requests) += 1;
    c->status = v.status;
    http_put_refusal(&c->out, s, c->live ? c : NULL, v);
    end_call(c, false);
    http_drop_body(c);
    c->closing = c->ended = true;
    c->phase              = PHASE_FLUSH;
    http_touch(c);
}

/* --- requests ------------------------------------------------------------------------------------- */
static void run_connection(conn *c)
{
    c->phase        = PHASE_RUNNING;
    c->request.body = buf_str(&c->body);
    c->s->h.on_request(c->s->h.ctx, c);
}

static void begin_body(conn *c)
{
    c->phase    = PHASE_BODY;
    c->since    = c->s->now;
    c->deadline = c->since + c->s->o.body_s;
    buf_init(&c->body, c->head.chunked ? (size_t)c->to_read.max : (size_t)c->head.length);
    if (c->head.expects_continue) buf_puts(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
    http_touch(c);
}

static void fill_request(conn *c)
{
    const http_head *h = &c->head;
    c->request         = (http_request){.method   = h->method,
                                        .target   = h->target,
                                        .path     = h->path,
                                        .query    = h->query,
                                        .minor    = h->minor,
                                        .field    = h->field,
                                        .n_fields = h->n_fields,
                                        .peer     = str_of(c->peer),
                                        .is_tls   = c->tls.ssl != NULL};
}

static void head_is_there(conn *c)
{
    http_server *s = c->s;
    http_verdict v =
        http_head_parse(&c->head, &c->scan, s->o.max_fields, SIZE_MAX / 16); /* max_body is checked after on_head */
    if (v.status) {
        refuse_request(c, v);
        return;
    }
    fill_request(c);
    http_body_init(&c->to_read, &c->head, s->o.max_body);
    c->was_used = c->live = true;
    c->phase              = PHASE_RUNNING;
    s->stats.requests++;
    s->stats.calls++;
    if (!s->h.on_head(s->h.ctx, c) || c->replying || c->ended) return;
    if (v = http_body_check(&c->to_read), v.status)
        refuse_request(c, v);
    else if (c->to_read.state == BODY_DONE)
        run_connection(c);
    else
        begin_body(c);
}

/* Updates the memory of all bodies. Refuses the request when it is over max_bodies. */
static http_verdict count_body(conn *c)
{
    http_server *s = c->s;
    s->body_bytes += c->body.cap - c->body_counted;
    c->body_counted = c->body.cap;
    if (s->body_bytes > s->o.max_bodies)
        return (http_verdict){503, "The server has reached its memory limit for request bodies."};
    return (http_verdict){0};
}

/* Handles the first byte of another request. */
static void begin_head(conn *c)
{
    c->since    = c->s->now;
    c->deadline = c->since + c->s->o.head_s;
}

/* Reads no byte after the request: later ones stay in the kernel. */
static void read_some(conn *c)
{
    http_server *s       = c->s;
    bool         counted = c->phase == PHASE_BODY && c->to_read.state == BODY_COUNTED;
    size_t  limit = counted && c->to_read.bytes_left < SCRATCH_BYTES ? (size_t)c->to_read.bytes_left : SCRATCH_BYTES;
    ssize_t n     = http_net_read(c, s->scratch, limit, !counted);
    str     in    = {s->scratch, n > 0 ? (size_t)n : 0};
    size_t  used  = 0;
    http_verdict v;

    if (n <= 0) {
        if (!n) http_net_shut_down(c); /* a half-closed client sees a clean end */
        if (n != IO_AGAIN) http_conn_lose(c);
        return;
    }
    if (c->phase == PHASE_HEAD) {
        if (c->was_used && http_conn_is_idle(c)) begin_head(c);
        v = http_scan_feed(&c->scan, in, &used);
    } else {
        v = http_body_read(&c->to_read, in, &used, &c->body);
        if (!v.status) v = count_body(c);
    }
    if (!counted) http_net_read(c, s->scratch, used, false);
    if (v.status)
        refuse_request(c, v);
    else if (c->phase == PHASE_HEAD && c->scan.done)
        head_is_there(c);
    else if (c->phase == PHASE_BODY && c->to_read.state == BODY_DONE)
        run_connection(c);
}

static bool is_reading(const conn *c) { return c->phase == PHASE_HEAD || c->phase == PHASE_BODY; }

/* epoll does not report bytes that TLS has buffered. */
static void read_all(conn *c)
{
    do read_some(c);
    while (is_reading(c) && http_net_pending(c));
}

static void shake(conn *c)
{
    ssize_t r = http_tls_shake(&c->tls);
    if (r == 1) {
        c->phase = PHASE_HEAD;
        read_all(c);
    } else if (r != IO_AGAIN) {
        http_conn_lose(c);
    }
}

static void discard(conn *c)
{
    ssize_t n = http_net_read(c, c->s->scratch, SCRATCH_BYTES, false);
    if (n == IO_AGAIN) return;
    if (n <= 0 || (size_t)n > c->may_waste)
        http_conn_lose(c);
    else
        c->may_waste -= (size_t)n;
}

/* The client may still wait for its response, or be gone: a write shows which. */
static void half_close(conn *c)
{
    c->half_closed = true;
    c->next_probe  = c->s->now + PROBE_AFTER_S;
}

void http_conn_event(conn *c, uint32_t events)
{
    bool hung_up = events & (EPOLLHUP | EPOLLERR);
    switch (c->phase) {
    case PHASE_HANDSHAKE: shake(c); break;
    case PHASE_HEAD:
    case PHASE_BODY: read_all(c); break;
    case PHASE_RUNNING:
        if (events & EPOLLRDHUP) half_close(c); /* fall through */
    case PHASE_FLUSH:
        if (hung_up) http_conn_lose(c);
        break;
    case PHASE_LINGER: discard(c); break;
    case PHASE_DEAD: return;
    }
    http_touch(c);
}

/* --- the end of a turn ---------------------------------------------------------------------------- */
static uint32_t wanted(const conn *c)
{
    uint32_t out = http_unsent(c) || c->tls.wants_out ? EPOLLOUT : 0;
    switch (c->phase) {
    case PHASE_HANDSHAKE: return c->tls.wants_out ? EPOLLOUT : EPOLLIN;
    case PHASE_HEAD:
    case PHASE_BODY: return EPOLLIN | out;
    case PHASE_RUNNING: return (c->half_closed ? EPOLLERR : EPOLLRDHUP) | out; /* EPOLLERR is always reported */
    case PHASE_FLUSH: return EPOLLOUT;
    default: return EPOLLIN;
    }
}

static void arm(conn *c)
{
    struct epoll_event ev = {.events = wanted(c), .data.ptr = c};
    if (c->armed == ev.events) return;
    if (epoll_ctl(c->s->epoll, c->armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &ev) != 0)
        http_conn_lose(c);
    else
        c->armed = ev.events;
}

static void begin_behind(conn *c)
{
    c->patience_end = c->s->now + c->s->o.stall_s;
    c->arrived      = http_net_arrived(c);
}

static void forget_sent(conn *c)
{
    if (http_unsent(c)) {
        if (!c->patience_end) begin_behind(c);
        if (c->out_at < KEPT_OUT_BYTES || c->out_at < c->out.n / 2) return;
        buf_drop_front(&c->out, c->out_at);
    } else {
        c->patience_end = 0;
        if (c->out.cap > KEPT_OUT_BYTES) buf_deinit(&c->out);
        buf_clear(&c->out);
    }
    c->out_at = 0;
}

static void send_out(conn *c)
{
    while (http_unsent(c)) {
        ssize_t n = http_net_write(c, c->out.p + c->out_at, http_unsent(c));
        if (n == IO_AGAIN) break;
        if (n <= 0) {
            http_conn_lose(c);
            return;
        }
        c->out_at += (size_t)n;
    }
    forget_sent(c);
}

static void linger(conn *c)
{
    clear_call(c);
    http_net_shut_down(c);
    c->phase     = PHASE_LINGER;
    c->deadline  = c->s->now + LINGER_S;
    c->may_waste = c->s->o.max_body;
}

/* Handles the end of a response that the kernel has taken. */
static void finish_response(conn *c)
{
    bool closing = c->closing;
    end_call(c, !c->cut);
    if (c->cut) {
        http_conn_lose(c);
    } else if (closing || c->s->draining) {
        linger(c);
    } else {
        clear_call(c);
        await_head(c, c->s->o.idle_s);
        if (http_net_pending(c)) read_all(c);
    }
}

static void report_room(conn *c)
{
    if (!c->was_over || c->ended || http_unsent(c) > c->s->o.max_unsent / 2) return;
    c->was_over = false;
    if (c->s->h.on_room) c->s->h.on_room(c->s->h.ctx, c);
}

void http_settle(conn *c)
{
    if (c->out.failed) http_conn_lose(c);
    if (c->phase == PHASE_DEAD) return;
    if (http_unsent(c)) send_out(c);
    if (c->phase == PHASE_RUNNING) report_room(c);
    if (c->phase == PHASE_FLUSH && !http_unsent(c)) finish_response(c);
    if (c->phase != PHASE_DEAD) arm(c);
}

/* --- deadlines ------------------------------------------------------------------------------------ */
static bool body_is_slow(const conn *c)
{
    double seconds = c->s->now - c->since - 1;
    return seconds > 0 && (double)c->body.n < seconds * (double)c->s->o.min_rate;
}

/* Gives a slow client stall_s. Each acknowledged byte extends that at min_rate, up to stall_s from now. */
static bool reader_is_slow(conn *c)
{
    const http_options *o       = &c->s->o;
    int64_t             before  = c->arrived;
    double              longest = c->s->now + o->stall_s;
    if (!c->patience_end) return false;
    c->arrived = http_net_arrived(c);
    c->patience_end += (double)(c->arrived - before) / (double)o->min_rate;
    if (c->patience_end > longest) c->patience_end = longest;
    return c->s->now > c->patience_end;
}

/* Sends an interim response to a half-closed client without a response. If the client has closed its socket too, it
 * replies with a reset, which ends the call. HTTP/1.0 has no interim responses. */
static void probe_half_closed(conn *c)
{
    if (!c->half_closed || c->replying || !c->head.minor || c->s->now < c->next_probe) return;
    c->next_probe = c->s->now + PROBE_EVERY_S;
    buf_puts(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
    http_touch(c);
}

void http_conn_check_deadline(conn *c)
{
    bool late = c->s->now > c->deadline;
    switch (c->phase) {
    case PHASE_HEAD:
        if (late && c->scan.bytes.n) {
            refuse_request(c, (http_verdict){408, "The request's head took too long."});
            return;
        }
        break;
    case PHASE_BODY:
        if (late || body_is_slow(c)) refuse_request(c, (http_verdict){408, "The request's body took too long."});
        return;
    case PHASE_RUNNING: probe_half_closed(c); /* fall through */
    case PHASE_FLUSH:
        late = reader_is_slow(c);
        c->s->stats.timeouts += late;
        if (late) http_net_drop_unsent(c);
        break;
    default: break;
    }
    if (late) http_conn_lose(c);
}
