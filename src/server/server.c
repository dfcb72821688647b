#include "server/server.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

enum { WORKERS = 2 };

void server_options_init(server_options *o)
{
    *o = (server_options){.model = "tandem", .grace_s = 30, .ping_s = 15};
    http_options_init(&o->http);
    o->http.host = "127.0.0.1";
    o->http.port = 8080;
}

/* --- signals ------------------------------------------------------------------------------------*/
static atomic_int             n_signals;
static _Atomic(http_server *) serving;

static void on_signal(int sig)
{
    (void)sig;
    http_server *h = atomic_load(&serving);
    atomic_fetch_add(&n_signals, 1);
    if (h) http_wake(h);
}

typedef struct {
    struct sigaction term, intr, pipe;
} signals;

static void take_signals(signals *before, http_server *h)
{
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, ignore = {.sa_handler = SIG_IGN};
    atomic_store(&n_signals, 0);
    atomic_store(&serving, h);
    sigaction(SIGTERM, &act, &before->term);
    sigaction(SIGINT, &act, &before->intr);
    sigaction(SIGPIPE, &ignore, &before->pipe);
}

static void give_signals_back(const signals *before)
{
    sigaction(SIGTERM, &before->term, NULL);
    sigaction(SIGINT, &before->intr, NULL);
    sigaction(SIGPIPE, &before->pipe, NULL);
    atomic_store(&serving, NULL);
}

/* --- loading ------------------------------------------------------------------------------------*/
static void wake(void *ctx) { http_wake(ctx); }

static void load(work_item *item)
{
    server *s = (server *)((char *)item - offsetof(server, loading));
    tandem *t = NULL;
    s->failed = !s->opt->open(s->opt->open_ctx, &t, wake, s->http, &s->why);
    s->loaded = t;
}

static void on_loaded(work_item *item)
{
    server *s = (server *)((char *)item - offsetof(server, loading));
    s->engine = s->loaded;
    if (s->failed) http_stop(s->http);
    if (!s->failed && s->opt->ready && !s->draining) s->opt->ready(s->opt->ready_ctx, s->http);
}

/* --- draining -----------------------------------------------------------------------------------*/
static void drain(server *s)
{
    s->draining = true;
    s->cut_at   = clock_s() + s->opt->grace_s;
    log_event(LOG_INFO, "drain", "no new requests; %d running ones may end within %.0f s", s->n_completions,
              s->opt->grace_s);
    http_refuse_new(s->http);
}

static void cut(server *s, double now)
{
    s->cut    = true;
    s->cut_at = now;
    completions_cut(s);
}

/* The loop ends when the last reply was sent, or broken off; who does not read is not waited for. */
static void look_at_signals(server *s)
{
    enum { LINGER_S = 2 };
    http_stats h;
    double     now = clock_s();
    int        n   = atomic_load(&n_signals);
    if (n && !s->draining) drain(s);
    if (!s->draining) return;
    if (!s->cut && (n > 1 || now >= s->cut_at)) cut(s, now);
    http_get_stats(s->http, &h);
    if (!h.calls || (s->cut && now >= s->cut_at + LINGER_S)) http_stop(s->http);
}

/* --- the loop -----------------------------------------------------------------------------------*/
static void on_wake(void *ctx)
{
    server *s = ctx;
    work_collect(s->work);
    completions_pump(s);
    look_at_signals(s);
}

static void on_tick(void *ctx)
{
    completions_tick(ctx);
    look_at_signals(ctx);
}

static void on_room(void *ctx, http_call *h)
{
    server_call *c = http_call_user(h);
    (void)ctx;
    if (c->completion) completion_pump(c->completion);
}

static bool open_server(server *s, err *e)
{
    http_handler h = {.on_head    = route_on_head,
                      .on_request = route_on_request,
                      .on_done    = route_on_done,
                      .on_room    = on_room,
                      .on_wake    = on_wake,
                      .on_tick    = on_tick,
                      .ctx        = s};
    return http_open(&s->http, &s->opt->http, &h, e) && work_new(&s->work, WORKERS, wake, s->http, e);
}

/* What is asked for ends first, then who could wake the loop, then the calls, then what all of it stands on. */
static void close_server(server *s)
{
    s->draining = s->cut = true;
    completions_cut(s);
    work_free(s->work);
    if (s->engine) tandem_shutdown(s->engine, 0);
    http_close(s->http);
    tandem_close(s->engine);
}

bool server_run(const server_options *o, err *e)
{
    server  s = {.opt = o, .started = clock_s(), .loading = {.run = load, .done = on_loaded}};
    signals before;
    bool    ok = open_server(&s, e);
    if (ok) {
        take_signals(&before, s.http);
        work_put(s.work, &s.loading);
        http_run(s.http);
        give_signals_back(&before);
    }
    close_server(&s);
    if (!s.failed) return ok;
    *e = s.why;
    return false;
}

void server_note(server *s, const server_record *r)
{
    (void)s;
    (void)r;
}
