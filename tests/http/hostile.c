/* Clients that mean harm, or just leave: what the server promises in docs/http.md, measured from outside.
 *
 *   http_hostile [full] [part of a name ...]       full: the sizes of the promises; without: smaller, in seconds
 *
 * The cases wait for events, not for times to pass. Wall-clock bounds are relative to the pace of the machine, and a
 * case that misses one is run again, twice at most: a fault of the server shows each time, other processes do not. */
#include "base/clock.h"
#include "base/mem.h"
#include "pace.h"
#include "stage.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define HOST "Host: x\r\n"

enum { PATIENCE_S = 60, TRIES = 3 }; /* the time limit of an event that must come; runs of a case */

static bool full;
static int  n_checks, n_failed;
static int  n_late; /* wall-clock bounds that this run of the case missed */

static bool must(bool ok, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool must(bool ok, const char *fmt, ...)
{
    va_list ap;
    printf("  %-6s ", ok ? "ok" : "FAILED");
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    n_checks++;
    n_failed += !ok;
    return ok;
}

/* A figure with its bound; under sanitizers it is only shown. */
static void at_most(double value, double bound, const char *unit, const char *what)
{
    must(SANITIZED || value <= bound, "%s: %.4g %s, at most %.4g%s", what, value, unit, bound,
         SANITIZED ? " (not held under sanitizers)" : "");
}

/* A wall-clock time with its bound for a machine that has nothing else to do. A request, its reply and a timer are each
 * late when the machine is. */
static void in_time(double ms, double bound, const char *what)
{
    double delay = pace_delay() * 1e3, allowed = bound + 3 * delay;
    bool   ok = SANITIZED || ms <= allowed;
    printf("  %-6s %s: %.4g ms, at most %.4g + 3 * %.3g%s\n", ok ? "ok" : "late", what, ms, bound, delay,
           SANITIZED ? " (not held under sanitizers)" : "");
    n_checks++;
    n_late += !ok;
}

/* Calls `met` until it returns true; false when the time limit is over. */
static bool wait_until(bool (*met)(const stage *g, void *ctx), const stage *g, void *ctx)
{
    for (double end = clock_s() + PATIENCE_S; !met(g, ctx); usleep(2000))
        if (clock_s() > end) return false;
    return true;
}

static uint64_t random_state = 1;
static unsigned random_below(unsigned n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % n;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(double *v, int n, int p)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n ? v[(n - 1) * p / 100] : 0;
}

/* One request on a connection of its own: its status, 0 when none came. */
static int ask(const stage *g, str request, bool *closes, double *seconds)
{
    client       c;
    client_reply r      = {0};
    int          status = 0;
    double       start  = clock_s();
    if (!stage_connect(g, &c)) return 0;
    client_send(&c, request);
    if (client_read(&c, &r, PATIENCE_S)) status = r.status;
    if (seconds) *seconds = clock_s() - start;
    if (closes) *closes = client_closes(&c, PATIENCE_S) && !memmem(r.body.p, r.body.n, "HTTP/1.1", 8);
    client_reply_deinit(&r);
    client_close(&c);
    return status;
}

static bool serves(const stage *g)
{
    return ask(g, STR("GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"), NULL, NULL) == 200;
}

static void end_stage(stage *g)
{
    must(serves(g), "serves on");
    must(stage_close(g), "ends well");
}

/* --- what is refused ------------------------------------------------------------------------------ */
static void smuggling_probes(void)
{
#define P    "POST /echo HTTP/1.1\r\n" HOST
#define NEXT "GET /hello HTTP/1.1\r\n" HOST "\r\n"
    static const str probe[] = {
        STR(P "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello" NEXT),
        STR(P "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello" NEXT),
        STR(P "Content-Length: 5, 5\r\n\r\nhello" NEXT),
        STR(P "Content-Length: +5\r\n\r\nhello" NEXT),
        STR(P "Content-Length: 0x5\r\n\r\nhello" NEXT),
        STR(P "Content-Length: 5 5\r\n\r\nhello" NEXT),
        STR(P "Content-Length: -1\r\n\r\n" NEXT),
        STR(P "Content-Length : 5\r\n\r\nhello" NEXT),
        STR(P "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" NEXT),
        STR(P "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" NEXT),
        STR(P "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" NEXT),
        STR(P "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" NEXT),
        STR(P "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n" NEXT),
        STR(P "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" NEXT),
        STR(P "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" NEXT),
        STR(P "Transfer-Encoding:\x0b"
              "chunked\r\n\r\n0\r\n\r\n" NEXT),
        STR(P " Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" NEXT),
        STR(P "X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" NEXT),
        STR(P "X:\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" NEXT),
        STR(P "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" NEXT),
        STR("POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" NEXT),
        STR(P "Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\n\r\n" NEXT),
        STR(P "Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n" NEXT),
        STR(P "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n" NEXT),
        STR(P "Transfer-Encoding: chunked\r\n\r\n5\r\nhello0\r\n\r\n" NEXT),
        STR(P "Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n" NEXT),
        STR("GET /hello HTTP/1.1\nHost: x\n\n"),
        STR("GET /hello HTTP/1.1\r\n\r\n"),
        STR("GET /hello HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"),
        STR("GET /hello HTTP/1.1\r\nHost: x\0y\r\n\r\n"),
        STR("GET /hello\r\n\r\n"),
        STR("GET /hel lo HTTP/1.1\r\n" HOST "\r\n"),
    };
    setup s;
    stage g;
    int   wrong = 0;
    setup_init(&s);
    stage_open(&g, &s);
    for (size_t i = 0; i < COUNT(probe); i++) {
        bool closes = false;
        int  status = ask(&g, probe[i], &closes, NULL);
        if (status == 400 && closes) continue;
        wrong++;
        printf("  probe %zu: status %d, %s: %.*s\n", i, status, closes ? "closes" : "stays open", STR_ARG(probe[i]));
    }
    must(!wrong, "%zu probes: 400 and closed, all but %d", COUNT(probe), wrong);
    end_stage(&g);
}

static void put_fields(buf *b, int n)
{
    for (int i = 0; i < n; i++) buf_printf(b, "X-%d: y\r\n", i);
}

/* Sends chunks for as long as it may. */
static int endless_chunks(const stage *g, double *seconds)
{
    static char  chunk[8 + 4096 + 2];
    client       c;
    client_reply r     = {0};
    double       start = clock_s();
    int          n     = snprintf(chunk, sizeof chunk, "1000\r\n");
    memset(chunk + n, 'x', 4096);
    memcpy(chunk + n + 4096, "\r\n", 2);
    if (!client_open(&c, g->port)) return 0;
    client_say(&c, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
    while (!client_more(&c, -1) && clock_s() - start < PATIENCE_S) client_send(&c, (str){chunk, (size_t)n + 4098});
    client_read(&c, &r, PATIENCE_S);
    *seconds   = clock_s() - start;
    int status = r.status;
    client_reply_deinit(&r);
    client_close(&c);
    return status;
}

static bool sends_on_after_refusal(const stage *g)
{
    static const char piece[16 << 10];
    client            c;
    client_reply      r = {0};
    bool              ok =
        client_open(&c, g->port) && client_say(&c, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1048577\r\n\r\n");
    for (int i = 0; i < 20 && ok; i++) {
        usleep(5000);
        ok = client_send(&c, (str){piece, sizeof piece});
    }
    ok = ok && client_read(&c, &r, PATIENCE_S) && r.status == 413;
    client_reply_deinit(&r);
    client_close(&c);
    return ok;
}

static void limits(void)
{
    setup  s;
    stage  g;
    double seconds, slowest = 0;
    buf    b;
    setup_init(&s);
    s.o.max_body = 1 << 20;
    stage_open(&g, &s);
    must(serves(&g), "serves");
    long memory = stage_memory_kib(&g);

    buf_init(&b, 1 << 20);
    for (int extra = 0; extra < 2; extra++) { /* 32 KiB of head, and a byte more */
        buf_clear(&b);
        buf_puts(&b, "GET /hello HTTP/1.1\r\n" HOST "X: ");
        while (b.n < (size_t)(32 << 10) - 4 + (size_t)extra) buf_putc(&b, 'a');
        buf_puts(&b, "\r\n\r\n");
        must(ask(&g, buf_str(&b), NULL, &seconds) == (extra ? 431 : 200), "a head of 32 KiB + %d", extra);
        slowest = seconds > slowest ? seconds : slowest;
        buf_clear(&b);
        buf_puts(&b, "GET /hello HTTP/1.1\r\n" HOST);
        put_fields(&b, 99 + extra);
        buf_puts(&b, "\r\n");
        must(ask(&g, buf_str(&b), NULL, &seconds) == (extra ? 431 : 200), "%d header lines", 100 + extra);
        slowest = seconds > slowest ? seconds : slowest;
    }
    must(ask(&g, STR("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1048577\r\n\r\nabc"), NULL, &seconds) == 413,
         "a body of the limit + 1");
    slowest = seconds > slowest ? seconds : slowest;
    must(ask(&g, STR("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 107374182400\r\n\r\nabc"), NULL, &seconds) == 413,
         "a body of 100 GiB");
    slowest = seconds > slowest ? seconds : slowest;
    in_time(slowest * 1e3, 100, "the slowest of these answers");
    at_most((double)(stage_memory_kib(&g) - memory), 128, "KiB", "memory that they took");
    must(sends_on_after_refusal(&g), "one that sends on after a refusal reads it: no reset comes between");
    must(endless_chunks(&g, &seconds) == 413, "chunks without end");
    in_time(seconds * 1e3, 500, "until they were refused");
    buf_deinit(&b);
    end_stage(&g);
}

/* --- slow ones ------------------------------------------------------------------------------------ */
typedef struct {
    client *c;
    int     n, n_open;
    double  last_close; /* since the start */
    double *probe;      /* seconds of each /hello meanwhile */
    int     n_probes;
} crowd;

enum { MAX_PROBES = 20000, TAKE_ALL = 64 << 10 };

static void crowd_open(crowd *w, const stage *g, int n, int receive_bytes, const char *say)
{
    *w = (crowd){.c = xnew_n(client, (size_t)n), .n = n, .probe = xnew_n(double, MAX_PROBES)};
    for (int i = 0; i < n; i++)
        if (client_open_small(&w->c[i], g->port, receive_bytes) && client_say(&w->c[i], say)) w->n_open++;
}

static void crowd_close(crowd *w)
{
    for (int i = 0; i < w->n; i++) client_close(&w->c[i]);
    mem_free(w->c);
    mem_free(w->probe);
}

/* Takes up to `bytes` of what is there; closes what the server closed. */
static void crowd_look(crowd *w, size_t bytes, double since)
{
    char waste[TAKE_ALL];
    for (int i = 0; i < w->n; i++) {
        if (!w->c[i].fd) continue;
        struct pollfd p = {.fd = w->c[i].fd, .events = POLLIN};
        if (poll(&p, 1, 0) <= 0) continue;
        if (!(p.revents & (POLLERR | POLLHUP)) && recv(w->c[i].fd, waste, bytes, MSG_DONTWAIT) > 0) continue;
        client_close(&w->c[i]);
        w->n_open--;
        w->last_close = clock_s() - since;
    }
}

static void probe_health(crowd *w, client *c)
{
    client_reply r     = {0};
    double       start = clock_s();
    if (!client_say(c, "GET /hello HTTP/1.1\r\n" HOST "\r\n") || !client_read(c, &r, PATIENCE_S) || r.status != 200)
        must(false, "/hello meanwhile");
    if (w->n_probes < MAX_PROBES) w->probe[w->n_probes++] = clock_s() - start;
    client_reply_deinit(&r);
}

/* Each sends a byte now and then, or takes some, until all are closed. */
static void crowd_trickle(crowd *w, const stage *g, const char *byte, size_t take)
{
    client health;
    double start = clock_s();
    if (!must(client_open(&health, g->port), "%d slow clients", w->n_open)) return;
    while (w->n_open && clock_s() - start < PATIENCE_S) {
        for (int i = 0; byte && i < w->n; i++)
            if (w->c[i].fd) client_send_some(&w->c[i], byte, 1);
        for (int i = 0; i < 10; i++) {
            probe_health(w, &health);
            usleep(10000);
        }
        crowd_look(w, take, start);
    }
    client_close(&health);
}

static void crowd_report(crowd *w, double deadline)
{
    must(!w->n_open, "all but %d were closed", w->n_open);
    in_time(w->last_close * 1e3, (deadline + 1) * 1e3, "the last one");
    in_time(percentile(w->probe, w->n_probes, 99) * 1e3, full ? 10 : 30, "p99 of /hello meanwhile");
}

static int crowd_size(void) { return full ? 600 : 60; }

static void slowloris(void)
{
    setup s;
    stage g;
    crowd w;
    setup_init(&s);
    s.o.head_s = full ? 10 : 1;
    stage_open(&g, &s);
    crowd_open(&w, &g, crowd_size(), 0, "GET /hello HTTP/1.1\r\nX: ");
    crowd_trickle(&w, &g, "a", TAKE_ALL);
    crowd_report(&w, s.o.head_s);
    crowd_close(&w);
    end_stage(&g);
}

/* Below the rate; and above it, against the absolute deadline. */
static void slow_body(void)
{
    setup s;
    stage g;
    crowd w;
    setup_init(&s);
    stage_open(&g, &s);
    crowd_open(&w, &g, crowd_size(), 0, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 100000\r\n\r\n");
    crowd_trickle(&w, &g, "a", TAKE_ALL);
    crowd_report(&w, 1);
    crowd_close(&w);
    end_stage(&g);

    setup_init(&s);
    s.o.body_s   = full ? 10 : 1.5;
    s.o.min_rate = 1;
    stage_open(&g, &s);
    crowd_open(&w, &g, crowd_size(), 0, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 100000\r\n\r\n");
    crowd_trickle(&w, &g, "a", TAKE_ALL);
    crowd_report(&w, s.o.body_s);
    crowd_close(&w);
    end_stage(&g);
}

/* Some take nothing to speak of; one takes twice the least rate, and must not be cut. */
static void slow_read(void)
{
    setup  s;
    stage  g;
    crowd  w;
    client fair;
    setup_init(&s);
    s.o.stall_s  = full ? 10 : 1.5;
    s.o.min_rate = 16 << 10;
    stage_open(&g, &s);
    crowd_open(&w, &g, crowd_size() / 3, 4096, "GET /flood HTTP/1.1\r\n" HOST "\r\n");
    crowd_trickle(&w, &g, NULL, 400);
    crowd_report(&w, s.o.stall_s * 4 / 3); /* a quarter of the rate buys a third more */
    crowd_close(&w);

    must(client_open_small(&fair, g.port, 16 << 10) && client_say(&fair, "GET /flood HTTP/1.1\r\n" HOST "\r\n"),
         "a fair one");
    double start = clock_s(), passed = 0;
    char   piece[4096];
    size_t taken = 0;
    for (; passed < 2.5 * s.o.stall_s; usleep(80000), passed = clock_s() - start)
        while ((double)taken < 2 * s.o.min_rate * passed) { /* as much as is due, however late */
            ssize_t n = recv(fair.fd, piece, sizeof piece, MSG_DONTWAIT);
            if (n <= 0) break;
            taken += (size_t)n;
        }
    must(stage_stat(&g, "calls") == 2, "it took %zu KiB and is there still", taken >> 10);
    client_close(&fair);
    end_stage(&g);
}

static void idle_ones(void)
{
    setup s;
    stage g;
    crowd w;
    setup_init(&s);
    s.o.idle_s = 1;
    stage_open(&g, &s);
    crowd_open(&w, &g, crowd_size(), 0, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    crowd_trickle(&w, &g, NULL, TAKE_ALL);
    crowd_report(&w, s.o.idle_s);
    crowd_close(&w);
    end_stage(&g);
}

/* --- streams -------------------------------------------------------------------------------------- */
typedef struct {
    double *gap;
    int     n_gaps, n_events;
    int     n_whole, n_broken;
} listening;

enum { MAX_GAPS = 2000000 };

/* Reads all of them as the bytes come, until each has ended. An event ends with an empty line. */
static void listen_to(client *c, int n, listening *l)
{
    struct pollfd *p    = xnew_n(struct pollfd, (size_t)n);
    double        *last = xnew_n(double, (size_t)n), end = clock_s() + 2 * PATIENCE_S;
    int            n_live = n;
    char           piece[16 << 10];
    *l = (listening){.gap = xnew_n(double, MAX_GAPS)};
    for (int i = 0; i < n; i++) p[i] = (struct pollfd){.fd = c[i].fd, .events = POLLIN};
    while (n_live && clock_s() < end) {
        poll(p, (nfds_t)n, 100);
        double now = clock_s();
        for (int i = 0; i < n; i++) {
            if (p[i].fd < 0 || !p[i].revents) continue;
            ssize_t got    = recv(p[i].fd, piece, sizeof piece, MSG_DONTWAIT);
            int     events = 0;
            for (ssize_t k = 1; k < got; k++) events += piece[k] == '\n' && piece[k - 1] == '\n';
            l->n_events += events;
            if (events && last[i] > 0 && l->n_gaps < MAX_GAPS) l->gap[l->n_gaps++] = now - last[i];
            if (events) last[i] = now;
            bool whole = got >= 5 && !memcmp(piece + got - 5, "0\r\n\r\n", 5);
            if (got > 0 && !whole) continue;
            l->n_whole += whole;
            l->n_broken += !whole;
            p[i].fd = -1;
            n_live--;
        }
    }
    mem_free(p);
    mem_free(last);
}

static client *open_many(const stage *g, int n, const char *say)
{
    client *c  = xnew_n(client, (size_t)n);
    int     ok = 0;
    for (int i = 0; i < n; i++) ok += stage_connect(g, &c[i]) && client_say(&c[i], say);
    if (ok != n) must(false, "%d of %d connections", ok, n);
    return c;
}

static void close_many(client *c, int n)
{
    for (int i = 0; i < n; i++) client_close(&c[i]);
    mem_free(c);
}

static int hear_hello(client *c, int n)
{
    int ok = 0;
    for (int i = 0; i < n; i++) {
        client_reply r = {0};
        ok += client_read(&c[i], &r, PATIENCE_S) && r.status == 200;
        client_reply_deinit(&r);
    }
    return ok;
}

static void stalled_reader(void)
{
    setup     s;
    stage     g;
    client    stalled;
    listening alone, beside;
    double    start;
    setup_init(&s);
    s.event_s   = 0.01;
    s.o.stall_s = full ? 20 : 2;
    stage_open(&g, &s);
    client *c = open_many(&g, 8, "GET /stream?100 HTTP/1.1\r\n" HOST "\r\n");
    listen_to(c, 8, &alone);
    close_many(c, 8);
    long memory = stage_memory_kib(&g);

    start = clock_s();
    must(client_open_small(&stalled, g.port, 4096) && client_say(&stalled, "GET /flood HTTP/1.1\r\n" HOST "\r\n"),
         "one that never reads");
    c = open_many(&g, 8, "GET /stream?100 HTTP/1.1\r\n" HOST "\r\n");
    listen_to(c, 8, &beside);
    close_many(c, 8);
    at_most((double)(stage_memory_kib(&g) - memory), 1152, "KiB", "memory that it holds");
    must(stage_stat(&g, "most_unsent") <= (1 << 20) + (32 << 10), "bytes that wait: at most 1 MiB and a piece");
    double before = percentile(alone.gap, alone.n_gaps, 99), after = percentile(beside.gap, beside.n_gaps, 99);
    in_time(after * 1e3, before * 1.1e3 + (full ? 1 : 10), "p99 between events of other streams");
    must(stage_stat_becomes(&g, "timeouts", 1, PATIENCE_S), "it is cut");
    in_time((clock_s() - start) * 1e3, (s.o.stall_s + 1) * 1e3, "after");
    must(stage_stat(&g, "lost") == 1, "its call ended undelivered");
    mem_free(alone.gap);
    mem_free(beside.gap);
    client_close(&stalled);
    end_stage(&g);
}

static void junk_after_a_stream(void)
{
    static const char junk[64 << 10];
    setup             s;
    stage             g;
    client            c;
    client_reply      r;
    long              taken = 0, n = 0;
    setup_init(&s);
    stage_open(&g, &s);
    must(client_open(&c, g.port) && client_say(&c, "GET /stream?1000000 HTTP/1.1\r\n" HOST "\r\n") &&
             client_read_head(&c, &r, PATIENCE_S),
         "a stream");
    usleep(100000);
    long memory = stage_memory_kib(&g), puts = stage_stat(&g, "puts");
    for (double end = clock_s() + 0.6; clock_s() < end || stage_stat(&g, "puts") <= puts + 5; usleep(1000)) {
        if (clock_s() > end + PATIENCE_S) break;
        while ((n = client_send_some(&c, junk, sizeof junk)) > 0 && taken < 400L << 20) taken += n;
    }
    must(n == 0, "the sender is held back after %ld KiB", taken >> 10);
    at_most((double)(stage_memory_kib(&g) - memory), 64, "KiB", "memory that it took");
    must(stage_stat(&g, "puts") > puts + 5 && client_more(&c, PATIENCE_S), "the stream goes on");
    client_reply_deinit(&r);
    client_close(&c);
    must(stage_stat_becomes(&g, "calls", 1, PATIENCE_S), "a closed connection is noticed after the junk");
    end_stage(&g);
}

static void cpu_per_event(void)
{
    setup     s;
    stage     g;
    listening l;
    int       n = 200, events = full ? 1000 : 100;
    char      say[96];
    setup_init(&s);
    s.event_s = 0.01;
    stage_open(&g, &s);
    snprintf(say, sizeof say, "GET /stream?%d HTTP/1.1\r\n" HOST "\r\n", events);
    long    cpu = stage_cpu_us(&g);
    client *c   = open_many(&g, n, say);
    listen_to(c, n, &l);
    cpu = stage_cpu_us(&g) - cpu;
    must(l.n_whole == n && l.n_events == n * events, "%d streams of %d events are whole", l.n_whole, events);
    at_most((double)cpu / l.n_events, 25, "us", "processor per event");
    mem_free(l.gap);
    close_many(c, n);
    end_stage(&g);
}

static void many_streams(void)
{
    setup     s;
    stage     g;
    listening l;
    int       n = full ? 1000 : 250, events = full ? 50 : 15;
    char      say[96];
    setup_init(&s);
    s.event_s = 0.1;
    stage_open(&g, &s);
    snprintf(say, sizeof say, "GET /stream?%d HTTP/1.1\r\n" HOST "\r\n", events);
    client *c = open_many(&g, n, say);
    listen_to(c, n, &l);
    must(l.n_whole == n && !l.n_broken, "%d streams of %d events at 10 a second are whole", l.n_whole, events);
    in_time(percentile(l.gap, l.n_gaps, 99) * 1e3, 200, "p99 between events that are 100 ms apart");
    mem_free(l.gap);
    close_many(c, n);
    end_stage(&g);
}

static void idle_among_streams(void)
{
    setup     s;
    stage     g;
    listening l;
    setup_init(&s);
    http_options_init(&s.o); /* as it comes */
    s.o.host = "127.0.0.1";
    stage_open(&g, &s);
    client *idle = open_many(&g, 256, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    must(hear_hello(idle, 256) == 256, "256 connections were answered");
    client *c = open_many(&g, 64, "GET /stream?100 HTTP/1.1\r\n" HOST "\r\n");
    listen_to(c, 64, &l);
    must(l.n_whole == 64 && l.n_events == 6400, "64 other streams are whole");
    in_time(percentile(l.gap, l.n_gaps, 99) * 1e3, full ? 30 : 60, "p99 between events that are 20 ms apart");
    for (int i = 0; i < 256; i++) client_say(&idle[i], "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    must(hear_hello(idle, 256) == 256, "and the 256 are answered again");
    mem_free(l.gap);
    close_many(idle, 256);
    close_many(c, 64);
    end_stage(&g);
}

/* --- leaving -------------------------------------------------------------------------------------- */
enum { LEAVE_FIN, LEAVE_RST, LEAVE_HALF, WAYS };

/* Milliseconds until the application knows. */
static double leave(const stage *g, const char *request, int way)
{
    client c;
    long   lost = stage_stat(g, "lost");
    if (!stage_connect(g, &c) || !client_say(&c, request) || !stage_stat_becomes(g, "calls", 2, PATIENCE_S)) return 1e9;
    int64_t start = clock_ns();
    if (way == LEAVE_RST)
        client_reset(&c);
    else if (way == LEAVE_HALF)
        shutdown(c.fd, SHUT_WR);
    else
        client_close(&c);
    bool   seen = stage_stat_becomes(g, "lost", lost + 1, PATIENCE_S);
    double ms   = seen ? (double)(stage_stat(g, "lost_ns") - start) * 1e-6 : 1e9;
    if (way == LEAVE_HALF) client_close(&c);
    return ms;
}

static void disconnects(void)
{
    static const struct {
        const char *phase, *request;
        double      closed_ms; /* until a closed socket is found by writing to it; 0: its end cuts the request short */
    } p[] = {
        {"queued", "GET /wait HTTP/1.1\r\n" HOST "\r\n", 2300},
        {"streaming, between events", "GET /stream?1000000 HTTP/1.1\r\n" HOST "\r\n", 1050},
        {"sending its body", "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 100\r\n\r\nabc", 0},
        {"sending chunks", "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nab", 0},
    };
    for (int tls = 0; tls < 2; tls++) {
        setup s;
        stage g;
        setup_init(&s);
        s.event_s = 1;
        s.tls     = tls;
        stage_open(&g, &s);
        for (size_t i = 0; i < COUNT(p); i++) {
            double slowest = 0;
            char   what[96];
            for (int way = 0; way < WAYS; way++)
                for (int k = 0; k < (full ? 20 : 3) && (way == LEAVE_RST || !p[i].closed_ms); k++) {
                    double ms = leave(&g, p[i].request, way);
                    slowest   = ms > slowest ? ms : slowest;
                }
            snprintf(what, sizeof what, "leaving while %s%s is seen within", p[i].phase, tls ? ", TLS," : "");
            in_time(slowest, 50, what);
            must(slowest < 1e8, "each was seen");
            if (p[i].closed_ms) in_time(leave(&g, p[i].request, LEAVE_FIN), p[i].closed_ms, "and closing its socket");
        }
        end_stage(&g);
    }
}

/* Connects, says something or nothing, leaves at any moment. */
static void abort_once(const stage *g)
{
    static const char *const say[] = {
        "",
        "GET /hel",
        "GET /wait HTTP/1.1\r\n" HOST "\r\n",
        "GET /stream?1000 HTTP/1.1\r\n" HOST "\r\n",
        "GET /flood HTTP/1.1\r\n" HOST "\r\n",
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5000\r\n\r\nhello",
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "GET /hello HTTP/1.1\r\n" HOST "\r\nGET /stream?1000 HTTP/1.1\r\n" HOST "\r\n",
        "GET /big?300000 HTTP/1.1\r\n" HOST "\r\n",
        "\x16\x03\x01\x02",
    };
    client c;
    if (!client_open(&c, g->port)) return;
    client_say(&c, say[random_below(COUNT(say))]);
    if (random_below(2)) usleep(random_below(3000));
    if (random_below(2)) client_more(&c, -1);
    if (random_below(2))
        client_reset(&c);
    else
        client_close(&c);
}

static bool has_descriptors(const stage *g, void *n) { return stage_descriptors(g) <= *(int *)n; }

static void connect_abort_cycles(void)
{
    setup s;
    stage g;
    int   n = full ? 1000 : 300;
    setup_init(&s);
    s.event_s = 0.002;
    stage_open(&g, &s);
    must(serves(&g), "serves");
    int fds = stage_descriptors(&g);
    for (int i = 0; i < 300; i++) abort_once(&g);
    must(stage_stat_becomes(&g, "calls", 1, PATIENCE_S) && wait_until(has_descriptors, &g, &fds), "warmed up");
    long memory = stage_memory_kib(&g);
    for (int i = 0; i < n; i++) abort_once(&g);
    must(stage_stat_becomes(&g, "calls", 1, PATIENCE_S), "%d were come and gone", n);
    must(wait_until(has_descriptors, &g, &fds), "descriptors: %d before, %d after", fds, stage_descriptors(&g));
    at_most((double)(stage_memory_kib(&g) - memory), (double)memory / 100 + 128, "KiB", "memory that stayed");
    end_stage(&g);
}

/* --- few resources -------------------------------------------------------------------------------- */
typedef struct {
    client *c;
    int     n, n_closed;
} turned_away;

static bool are_turned_away(const stage *g, void *ctx)
{
    turned_away *w = ctx;
    (void)g;
    w->n_closed = 0;
    for (int i = 0; i < w->n; i++) w->n_closed += client_closes(&w->c[i], 0);
    return w->n_closed >= 40;
}

static bool answers_a_new_one(const stage *g, void *ctx)
{
    (void)ctx;
    return serves(g);
}

static void descriptor_limit(void)
{
    setup  s;
    stage  g;
    client idle;
    setup_init(&s);
    s.n_descriptors = 64;
    s.o.head_s      = 60;
    s.o.min_rate    = 1;
    stage_open(&g, &s);
    must(client_open(&idle, g.port) && client_say(&idle, "GET /hello HTTP/1.1\r\n" HOST "\r\n"), "a connection");
    must(hear_hello(&idle, 1) == 1, "is answered");
    /* and has begun another with a body: it may not be closed for others */
    client_say(&idle, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 65\r\n\r\n"
                      "0123456789012345678901234567890123456789012345678901234567890123");
    must(serves(&g), "serves others"); /* so the server has read the line above */
    turned_away w = {.c = open_many(&g, 100, "GET /hel"), .n = 100};
    wait_until(are_turned_away, &g, &w);
    usleep(300000);
    are_turned_away(&g, &w);
    must(w.n_closed >= 40 && w.n_closed < 60, "of 100 more, %d are turned away", w.n_closed);
    client_say(&idle, "4");
    must(hear_hello(&idle, 1) == 1, "the first is answered still");
    long cpu = stage_cpu_us(&g);
    usleep(500000);
    at_most((double)(stage_cpu_us(&g) - cpu) / 5e5 * 100, 2, "%", "processor meanwhile");
    must(stage_log_lines(&g) == 1, "said in %d line", stage_log_lines(&g));
    close_many(w.c, 100);
    must(wait_until(answers_a_new_one, &g, NULL), "new ones are answered when these are gone");
    client_close(&idle);
    end_stage(&g);
}

/* Three addresses with more unfinished heads, or handshakes, than there are places: others are served. */
static void half_open(void)
{
    enum { PLACES = 256, HALF_OPEN = 280, OTHERS = 20 };
    for (int tls = 0; tls < 2; tls++) {
        setup  s;
        stage  g;
        client c[HALF_OPEN] = {0};
        int    served       = 0;
        setup_init(&s);
        s.o.max_connections = PLACES;
        s.o.head_s          = 60;
        s.tls               = tls;
        stage_open(&g, &s);
        for (int i = 0; i < HALF_OPEN; i++)
            if (client_open_from(&c[i], g.port, 2 + i % 3) && !tls) client_say(&c[i], "GET /hello HTTP/1.1\r\n" HOST);
        for (int i = 0; i < OTHERS; i++) {
            client other;
            served += stage_connect(&g, &other) && client_say(&other, "GET /hello HTTP/1.1\r\n" HOST "\r\n") &&
                      hear_hello(&other, 1);
            client_close(&other);
        }
        must(served == OTHERS, "%d of %d others are served during half-open %s", served, OTHERS,
             tls ? "handshakes" : "heads");
        for (int i = 0; i < HALF_OPEN; i++) client_close(&c[i]);
        end_stage(&g);
    }
}

static void idle_memory(void)
{
    for (int tls = 0; tls < 2; tls++) {
        setup s;
        stage g;
        int   n = tls ? (full ? 500 : 100) : (full ? 1000 : 400);
        setup_init(&s);
        s.tls     = tls;
        s.event_s = 1;
        stage_open(&g, &s);
        client *warm = open_many(&g, 20, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
        hear_hello(warm, 20);
        long    memory = stage_memory_kib(&g);
        client *c      = open_many(&g, n, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
        must(hear_hello(c, n) == n, "%d idle connections", n);
        at_most((double)(stage_memory_kib(&g) - memory) / n, tls ? 20 : 4, "KiB", tls ? "each, TLS" : "each");
        close_many(warm, 20);
        close_many(c, n);
        end_stage(&g);
    }
}

/* --- anything ------------------------------------------------------------------------------------- */
static void mutate(buf *b)
{
    for (int k = 1 + (int)random_below(4); k > 0 && b->n; k--) {
        size_t at = random_below((unsigned)b->n);
        switch (random_below(4)) {
        case 0: b->p[at] = (char)random_below(256); break;
        case 1: b->p[at] = "\r\n\t :,;0\0%"[random_below(10)]; break;
        case 2: b->n = at; break;
        default: buf_put(b, "Content-Length: 1\r\n", random_below(20)); break;
        }
    }
}

static void garbage(void)
{
    static const char *const seed[] = {
        "GET /hello HTTP/1.1\r\n" HOST "\r\n",
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello",
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HEAD /big?1000 HTTP/1.0\r\n\r\n",
        "GET /stream?3 HTTP/1.1\r\n" HOST "\r\nPUT /cut HTTP/1.1\r\n" HOST
        "Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
    };
    setup s;
    stage g;
    int   n = full ? 10000 : 1000, hung = 0;
    setup_init(&s);
    s.event_s = 0.001;
    stage_open(&g, &s);
    for (int i = 0; i < n; i++) {
        client c;
        buf    b;
        buf_init(&b, 4096);
        buf_puts(&b, seed[random_below(COUNT(seed))]);
        mutate(&b);
        if (client_open(&c, g.port)) {
            client_send(&c, buf_str(&b));
            shutdown(c.fd, SHUT_WR);
            hung += !client_closes(&c, PATIENCE_S);
        }
        client_close(&c);
        buf_deinit(&b);
    }
    must(!hung, "%d requests with bytes changed, %d without an end", n, hung);
    must(stage_stat_becomes(&g, "calls", 1, PATIENCE_S), "none is left");
    end_stage(&g);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"smuggling_probes", smuggling_probes},
    {"limits", limits},
    {"slowloris", slowloris},
    {"slow_body", slow_body},
    {"slow_read", slow_read},
    {"idle_ones", idle_ones},
    {"stalled_reader", stalled_reader},
    {"junk_after_a_stream", junk_after_a_stream},
    {"cpu_per_event", cpu_per_event},
    {"many_streams", many_streams},
    {"idle_among_streams", idle_among_streams},
    {"disconnects", disconnects},
    {"half-open", half_open},
    {"connect_abort_cycles", connect_abort_cycles},
    {"descriptor_limit", descriptor_limit},
    {"idle_memory", idle_memory},
    {"garbage", garbage},
};

/* A failed check counts at once; a wall-clock bound only when each run of the case misses it. */
static void run_case(void (*run)(void))
{
    for (int i = 0; i < TRIES; i++) {
        n_late = 0;
        pace_reset();
        run();
        if (!n_late) return;
        printf("  late: the machine may be busy%s\n", i + 1 < TRIES ? "; again" : "");
    }
    n_failed += n_late;
}

static bool is_asked_for(const char *name, int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (strstr(name, argv[i])) return true;
    return argc == 0;
}

int main(int argc, char **argv)
{
    struct rlimit files;
    argc--, argv++;
    if (argc && !strcmp(argv[0], "full")) {
        full = true;
        argc--, argv++;
    }
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    pace_start();
    for (size_t i = 0; i < COUNT(cases); i++) {
        double start = clock_s();
        if (!is_asked_for(cases[i].name, argc, argv)) continue;
        printf("%s\n", cases[i].name);
        run_case(cases[i].run);
        printf("  %.1f s\n", clock_s() - start);
    }
    printf("%d cases, %d failed\n", n_checks, n_failed);
    return n_failed || !n_checks;
}
