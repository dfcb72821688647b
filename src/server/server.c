#include "server/server.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/admin.h"
#include "server/inside.h"
#include "server/notify.h"
#include "server/request_log.h"
#include "server/route.h"
#include "store/results.h"

#include <assert.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 2, WORKER_END_S = 5 /* for workers to end after the last reply */ };

/* Returns at most `max`, and a share of the memory that this process may still take; at least 8 MiB. */
static size_t share_of_memory(size_t max, size_t available, size_t share)
{
    enum { LEAST = 8 << 20 };
    size_t n = available / share < max ? available / share : max;
    return n < LEAST ? LEAST : n;
}

void server_options_init(server_options *o)
{
    size_t available = mem_available();
    *o               = (server_options){.model = "tandem", .grace_s = 30, .ping_s = 15, .hang_s = 60};
    http_options_init(&o->http);
    o->http.max_body   = (size_t)96 << 20; /* a file of DECODE_MAX_FILE as base64; less for text (route.c) */
    o->http.host       = "127.0.0.1";
    o->http.port       = 8080;
    o->max_held_bytes  = share_of_memory((size_t)1 << 30, available, 8);
    o->http.max_bodies = share_of_memory(o->http.max_bodies, available, 16);
}

/* --- signals ------------------------------------------------------------------------------------*/
static atomic_int             n_signals;
static _Atomic(double)        closing_since; /* clock_s; 0: the loop runs */
static atomic_bool            keys_changed;
static _Atomic(http_server *) serving;

/* The first signal drains, the second cuts. After the loop has ended all replies are sent, and a further signal ends
 * the process while it waits for the engine's last step. */
static void on_signal(int sig)
{
    enum { PATIENCE_S = 2 };
    (void)sig;
    http_server *h     = atomic_load(&serving);
    double       since = atomic_load(&closing_since);
    atomic_fetch_add(&n_signals, 1);
    if (h) http_wake(h);
    if (since > 0 && clock_s() - since > PATIENCE_S) _exit(0);
}

static void on_hangup(int sig)
{
    (void)sig;
    http_server *h = atomic_load(&serving);
    atomic_store(&keys_changed, true);
    if (h) http_wake(h);
}

typedef struct {
    struct sigaction term, intr, pipe, hup;
} signals;

static void take_signals(signals *before, const server *s)
{
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, ignore = {.sa_handler = SIG_IGN};
    struct sigaction hup = {.sa_handler = on_hangup, .sa_flags = SA_RESTART};
    atomic_store(&n_signals, 0);
    atomic_store(&closing_since, 0);
    atomic_store(&keys_changed, false);
    atomic_store(&serving, s->http);
    sigaction(SIGTERM, &act, &before->term);
    sigaction(SIGINT, &act, &before->intr);
    sigaction(SIGPIPE, &ignore, &before->pipe);
    sigaction(SIGHUP, s->opt->api_key_file || s->opt->admin_key_file ? &hup : NULL, &before->hup);
}

/* Handles signals after the loop has ended, so that a late one does not kill the process while it exits. */
static void begin_closing(void)
{
    atomic_store(&serving, NULL);
    atomic_store(&closing_since, clock_s());
}

static void give_signals_back(const signals *before)
{
    sigaction(SIGTERM, &before->term, NULL);
    sigaction(SIGINT, &before->intr, NULL);
    sigaction(SIGPIPE, &before->pipe, NULL);
    sigaction(SIGHUP, &before->hup, NULL);
}

/* --- keys ---------------------------------------------------------------------------------------*/
static bool open_keys(server *s, err *e)
{
    const server_options *o = s->opt;
    access_rules         *a = &s->access;
    a->names                = o->names;
    a->n_names              = o->n_names;
    a->cors                 = o->cors;
    a->n_cors               = o->n_cors;
    if (o->api_key && o->api_key_file) return err_set(e, ERR_INPUT, "both a key and a key file are given");
    return (!o->api_key || keys_of_one(&a->api, str_of(o->api_key), "default", e)) &&
           (!o->api_key_file || keys_load(&a->api, o->api_key_file, e)) &&
           (!o->admin_key_file || keys_load(&a->admin, o->admin_key_file, e));
}

static void reload_keys(keys **k, const char *path)
{
    err e = {0};
    if (!path) return;
    if (keys_reload(k, path, &e))
        log_event(LOG_INFO, "keys", "%s reloaded; %zu keys", path, keys_count(*k));
    else
        log_event(LOG_ERROR, "keys", "%s; the keys are unchanged", e.text);
}

static void look_at_keys(server *s)
{
    if (!atomic_exchange(&keys_changed, false)) return;
    reload_keys(&s->access.api, s->opt->api_key_file);
    reload_keys(&s->access.admin, s->opt->admin_key_file);
}

/* --- draining -----------------------------------------------------------------------------------*/
static void drain(server *s)
{
    s->draining = true;
    s->cut_at   = clock_s() + s->opt->grace_s;
    log_event(LOG_INFO, "drain", "refusing new requests; %d running requests have %.0f s to finish", s->n_completions,
              s->opt->grace_s);
    notify_manager("STOPPING=1");
    http_drain(s->http);
    live_end(s);
    bench_cut(s);
}

static void cut_responses(server *s, double now)
{
    s->cut    = true;
    s->cut_at = now;
    work_skip(s->work);
    work_collect(s->work);
    completions_cut(s);
    bench_cut(s);
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
    if (!s->cut && (n > 1 || now >= s->cut_at)) cut_responses(s, now);
    http_get_stats(s->http, &h);
    if (!h.calls || (s->cut && now >= s->cut_at + LINGER_S)) http_stop(s->http);
}

/* --- watching -----------------------------------------------------------------------------------*/
/* Sends no watchdog message while a step hangs, so that the service manager restarts the service. */
static void watch_engine(server *s)
{
    tandem_stats st;
    double       now = clock_s(), within = notify_watchdog_s();
    if (!s->engine && !s->life.loaded_before) return;
    life_stats(s, &st);
    watchdog_look(&s->watchdog, st.busy_s);
    if (within <= 0 || s->watchdog.hangs || now - s->notified < within / 3) return;
    s->notified = now;
    notify_manager("WATCHDOG=1");
}

/* --- the loop -----------------------------------------------------------------------------------*/
static void on_wake(void *ctx)
{
    server *s = ctx;
    work_collect(s->work);
    completions_pump(s);
    bench_pump(s);
    life_look(s);
    look_at_keys(s);
    look_at_signals(s);
}

static void on_tick(void *ctx)
{
    completions_tick(ctx);
    bench_pump(ctx);
    life_look(ctx);
    live_tick(ctx);
    watch_engine(ctx);
    look_at_signals(ctx);
}

static void on_room(void *ctx, http_call *h)
{
    server_call *c = http_call_user(h);
    (void)ctx;
    if (c->completion) completion_pump(c->completion);
}

/* Sets the replica id. The default, host name and port, is the same after a restart. */
static bool name_replica(server *s, err *e)
{
    const char *given = s->opt->replica_id;
    char       *out   = s->replica_id;
    if (given && given[0] && !call_id_is_valid(str_of(given)))
        return err_set(e, ERR_INPUT, "a replica's id has up to %d letters, digits and -_.:/+=@", REQUEST_ID_MAX);
    if (given) {
        snprintf(out, sizeof s->replica_id, "%s", given);
    } else {
        char host[64] = "";
        if (gethostname(host, sizeof host - 1) != 0 || !call_id_is_valid(str_of(host))) strcpy(host, "tandem");
        snprintf(out, sizeof s->replica_id, http_port(s->http) ? "%s:%d" : "%s", host, http_port(s->http));
    }
    return true;
}

static void wake_server(void *ctx) { http_wake(ctx); }

static bool open_server(server *s, err *e)
{
    http_handler h = {.on_head    = route_on_head,
                      .on_request = route_on_request,
                      .on_done    = route_on_done,
                      .on_room    = on_room,
                      .on_wake    = on_wake,
                      .on_tick    = on_tick,
                      .on_refuse  = route_on_refuse,
                      .ctx        = s};
    return open_keys(s, e) && http_open(&s->http, &s->opt->http, &h, e) && name_replica(s, e) &&
           work_new(&s->work, WORKERS, wake_server, s->http, e);
}

/* Ends requests first, then threads that wake the loop, then calls, then the state that they use. */
static void close_server(server *s)
{
    s->draining = s->cut = true;
    completions_cut(s);
    bench_cut(s);
    work_free(s->work);
    if (s->engine) tandem_shutdown(s->engine, 0);
    http_close(s->http);
    s->http = NULL;
    completions_pump(s); /* completions whose clients disconnected */
    bench_pump(s);
    assert(!s->n_completions && !s->n_users && !s->bench);
    life_end(s);
    live_sessions_deinit(&s->sessions);
    decode_worker_free(s->media.decoder);
    metrics_free(s->metrics);
    results_close(s->results);
    live_deinit(s);
    keys_free(s->access.api);
    keys_free(s->access.admin);
}

/* The server serves also without the results of earlier benchmarks. */
static void open_results(server *s)
{
    err e = {0};
    if (!results_open(&s->results, s->opt->state_dir, &e))
        log_event(LOG_WARN, "bench", "%s; results of benchmarks are not kept", e.text);
}

static void set_media(server *s)
{
    s->media            = (media_access){.decoder  = decode_worker_new(decode_default_limits()),
                                         .from     = source_default_options(),
                                         .held     = &s->held_bytes,
                                         .max_held = s->opt->max_held_bytes};
    s->media.from.fetch = s->opt->media_fetch;
    s->media.from.dir   = s->opt->media_dir;
}

bool server_run(const server_options *o, err *e)
{
    server  s = {.opt      = o,
                 .started  = clock_s(),
                 .created  = time(NULL),
                 .metrics  = metrics_new(),
                 .watchdog = {.limit_s = o->hang_s}};
    signals before;
    set_media(&s);
    live_sessions_init(&s.sessions);
    bool ok = open_server(&s, e);
    if (ok) {
        take_signals(&before, &s);
        log_event(LOG_INFO, "memory", "memory limits: %zu MB for requests, %zu MB for their bodies",
                  o->max_held_bytes / 1000000, o->http.max_bodies / 1000000);
        open_results(&s);
        life_begin(&s);
        http_run(s.http);
        begin_closing();
        if (s.life.state == MODEL_LOADING)
            _exit(0); /* weights that are being read cannot be waited for, and nothing needs an end */
        s.draining = s.cut = true;
        completions_cut(&s);
        if (!work_stop(s.work, WORKER_END_S)) {
            log_event(LOG_WARN, "drain", "a worker has not finished its request; exiting without it");
            _exit(0);
        }
    }
    close_server(&s);
    if (ok && !o->exits_next) give_signals_back(&before);
    if (s.life.loaded_before || !s.life.failed) return ok;
    *e = s.life.why;
    return false;
}

void server_body_is_freed(server *s, size_t counted)
{
    if (s->http) http_give_back(s->http, counted);
}

void server_note(server *s, const server_record *r)
{
    metrics_request(s->metrics, r);
    request_log(LOG_INFO, r);
}

/* --- checks and accounting ------------------------------------------------------------------------*/
bool server_is_loaded(const server *s, server_error *why) { return s->engine || life_check(s->life.state, why); }

bool server_is_ready(const server *s, server_error *why)
{
    if (s->draining) return error_shutting_down(why);
    return s->drained ? error_drained(why) : life_check(s->life.state, why);
}

bool server_why_cancelled(const server *s, server_error *why)
{
    return s->life.state == MODEL_PARKING && !s->cut ? life_check(s->life.state, why) : error_shutting_down(why);
}

bool server_takes(const server *s, work_kind kind, server_error *why)
{
    if (!server_is_ready(s, why)) return false;
    return !work_is_full(s->work, kind, 0) || error_take(why, &(err){.code = ERR_BUSY}, NULL, false);
}

/* Counts the memory of requests, because a small body can make a large tree and a large reply that wait for long. */
bool server_hold(server *s, size_t bytes, size_t max, server_error *why)
{
    return atomic_fetch_add(&s->held_bytes, bytes) + bytes <= max || error_no_memory(why);
}

void server_let_go(server *s, size_t bytes) { atomic_fetch_sub(&s->held_bytes, bytes); }
