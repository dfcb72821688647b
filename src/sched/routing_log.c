/* The ring has one writer and one reader: head is the engine's, tail the log's. A record is copied in, then head moves.
 */
#include "sched/routing_log.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "sched/inside.h"
#include "json/json.h"

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RING = 1024, PATH_MAX_BYTES = 4096, MAX_LINE = 64 << 10 };

typedef struct {
    routing_record r;
    double         ts; /* seconds since 1970 */
} entry;

struct routing_log {
    char             path[PATH_MAX_BYTES], model[256], fingerprint[FINGERPRINT_MAX];
    int              n_files;
    _Atomic(bool)    on, closing;
    _Atomic(int64_t) max_bytes, n_dropped;
    _Atomic(size_t)  head, tail;
    sem_t            some;
    pthread_t        thread;
    entry            ring[RING];

    /* the thread's own */
    int     fd; /* -1: not open */
    int64_t size;
    bool    said_full, said_trouble;
    buf     text;
};

/* --- a line -------------------------------------------------------------------------------------- */
static void put_ratio(json_writer *w, const char *key, double x)
{
    json_key(w, key);
    if (x < 0)
        json_put_null(w);
    else
        json_put_real(w, x);
}

static void put_str(json_writer *w, const char *key, const char *s)
{
    json_key(w, key);
    json_put_str(w, str_of(s));
}

static void put_int(json_writer *w, const char *key, int64_t i)
{
    json_key(w, key);
    json_put_int(w, i);
}

static void put_plan(json_writer *w, const route *to)
{
    json_key(w, "plan");
    json_begin_object(w);
    put_str(w, "method", spec_method_name((int)to->plan.method));
    put_int(w, "guesses", to->plan.n);
    json_key(w, "trial");
    json_put_bool(w, to->plan.trial);
    json_end(w);
    json_key(w, "costs");
    json_begin_object(w);
    put_ratio(w, "plain_tokens_per_s", to->rate_plain > 0 ? to->rate_plain : -1);
    put_ratio(w, "plan_tokens_per_s", to->rate_plan > 0 ? to->rate_plan : -1);
    json_end(w);
}

static void put_option(json_writer *w, spec_method m, const policy_option *o)
{
    json_begin_object(w);
    put_str(w, "method", spec_method_name((int)m));
    put_int(w, "guesses", o->n);
    put_ratio(w, "tokens", o->tokens);
    put_ratio(w, "tokens_per_s", o->rate);
    json_key(w, "survival");
    json_begin_array(w);
    for (int i = 0; i < o->n_survival; i++) json_put_real(w, o->survival[i]);
    json_end(w);
    json_end(w);
}

static void put_choice(json_writer *w, const policy_options *c)
{
    json_key(w, "choice");
    if (!(c->option[SPEC_OFF].rate > 0)) {
        json_put_null(w);
        return;
    }
    json_begin_object(w);
    put_int(w, "rows", c->rows);
    put_ratio(w, "row_s", c->row_s);
    json_key(w, "options");
    json_begin_array(w);
    for (int m = 0; m < SPEC_METHODS; m++)
        if (c->option[m].rate > 0) put_option(w, (spec_method)m, &c->option[m]);
    json_end(w);
    json_end(w);
}

static void put_outcome(json_writer *w, const routing_record *r)
{
    json_key(w, "outcome");
    json_begin_object(w);
    put_int(w, "tokens", r->tokens);
    put_int(w, "drafted", r->drafted);
    put_int(w, "accepted", r->accepted);
    put_ratio(w, "acceptance", r->drafted > 0 ? (double)r->accepted / (double)r->drafted : -1);
    json_key(w, "rounds");
    json_begin_object(w);
    for (int m = 0; m < SPEC_COUNTED; m++)
        if (r->rounds[m]) put_int(w, spec_method_name(m), r->rounds[m]);
    json_end(w);
    put_ratio(w, "seconds", r->seconds);
    put_ratio(w, "tokens_per_s", r->seconds > 0 ? (double)r->tokens / r->seconds : -1);
    put_int(w, "route_changes", r->n_changes);
    json_end(w);
}

static void put_drafters(json_writer *w, const routing_record *r)
{
    json_key(w, "drafters");
    json_begin_object(w);
    if (r->dflash[0]) put_str(w, "dflash", r->dflash);
    if (r->mtp[0]) put_str(w, "mtp", r->mtp);
    json_end(w);
}

void routing_put_record(json_writer *w, const routing_record *r, double ts)
{
    put_ratio(w, "ts", ts);
    put_str(w, "event", r->end ? "end" : "route");
    put_str(w, "request_id", r->request_id);
    put_int(w, "ctx_len", r->ctx_len);
    put_int(w, "active_count", r->active_count);
    put_ratio(w, "kv_usage_ratio", r->kv_usage_ratio);
    put_ratio(w, "projected_kv_after", r->projected_kv_after);
    put_str(w, "routed_to", r->to.plan.method == SPEC_OFF ? "plain" : spec_method_name((int)r->to.plan.method));
    put_str(w, "reason", route_reason_names[r->to.reason]);
    put_plan(w, &r->to);
    if (r->end)
        put_outcome(w, r);
    else
        put_choice(w, &r->choice);
    put_drafters(w, r);
}

static void put_line(const routing_log *l, const entry *x, buf *out)
{
    json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    routing_put_record(&w, &x->r, x->ts);
    put_str(&w, "model", l->model);
    if (l->fingerprint[0]) put_str(&w, "target", l->fingerprint);
    json_end(&w);
    buf_putc(out, '\n');
}

/* --- the files ----------------------------------------------------------------------------------- */
static void say_trouble(routing_log *l, const char *what)
{
    if (!l->said_trouble) log_event(LOG_WARN, "routing_log", "cannot %s %s: %s", what, l->path, strerror(errno));
    l->said_trouble = true;
}

/* A line that a crash cut short is ended. */
static void end_last_line(routing_log *l)
{
    char last = '\n';
    if (l->size > 0 && pread(l->fd, &last, 1, l->size - 1) == 1 && last != '\n') l->size += write(l->fd, "\n", 1) == 1;
}

static bool open_file(routing_log *l)
{
    struct stat st;
    if (l->fd >= 0) return true;
    l->fd = open(l->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (l->fd < 0 || fstat(l->fd, &st) != 0) return false;
    l->size = st.st_size;
    end_last_line(l);
    return true;
}

static bool reopen_log(routing_log *l)
{
    if (open_file(l)) return true;
    say_trouble(l, "open");
    return false;
}

static void numbered_path(const routing_log *l, int i, char out[PATH_MAX_BYTES + 16])
{
    if (i == 0)
        snprintf(out, PATH_MAX_BYTES + 16, "%s", l->path);
    else
        snprintf(out, PATH_MAX_BYTES + 16, "%s.%d", l->path, i);
}

static void rotate_files(routing_log *l)
{
    char from[PATH_MAX_BYTES + 16], to[PATH_MAX_BYTES + 16];
    for (int i = l->n_files - 1; i > 0; i--) {
        numbered_path(l, i - 1, from);
        numbered_path(l, i, to);
        if (rename(from, to) != 0 && errno != ENOENT) say_trouble(l, "move on");
    }
    close(l->fd);
    l->fd = -1;
}

static void say_full(routing_log *l)
{
    if (!l->said_full)
        log_event(LOG_WARN, "routing_log", "%s has reached its limit of %lld bytes: writing stops", l->path,
                  (long long)l->max_bytes);
    l->said_full = true;
}

/* Room for n bytes in the newest file, if need be a new one. */
static bool make_room(routing_log *l, size_t n)
{
    int64_t share = l->max_bytes / l->n_files;
    if ((int64_t)n > share) {
        say_full(l);
        return false;
    }
    if (!reopen_log(l)) return false;
    if (l->size + (int64_t)n <= share) return true;
    if (l->n_files == 1) {
        say_full(l);
        return false;
    }
    rotate_files(l);
    return reopen_log(l) && l->size + (int64_t)n <= share;
}

static void write_text(routing_log *l)
{
    size_t at = 0;
    while (at < l->text.n) {
        ssize_t n = write(l->fd, l->text.p + at, l->text.n - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            say_trouble(l, "write");
            break;
        }
        at += (size_t)n;
        l->size += n;
    }
}

/* --- the thread ---------------------------------------------------------------------------------- */
static void write_records(routing_log *l)
{
    size_t tail = atomic_load_explicit(&l->tail, memory_order_relaxed);
    while (tail != atomic_load_explicit(&l->head, memory_order_acquire)) {
        buf_clear(&l->text);
        put_line(l, &l->ring[tail % RING], &l->text);
        atomic_store_explicit(&l->tail, ++tail, memory_order_release);
        if (!l->text.failed && make_room(l, l->text.n)) write_text(l);
    }
}

static void *write_log(void *ctx)
{
    routing_log *l = ctx;
    while (!atomic_load(&l->closing)) {
        while (sem_wait(&l->some) != 0 && errno == EINTR) {}
        write_records(l);
    }
    write_records(l);
    return NULL;
}

bool routing_log_open(routing_log **out, const routing_log_options *o, err *e)
{
    *out = NULL;
    if (strlen(o->path) >= PATH_MAX_BYTES) return err_set(e, ERR_INPUT, "the routing log's path is too long");
    routing_log *l = xnew(routing_log);
    l->fd          = -1;
    l->n_files     = o->n_files > 0 ? o->n_files : 1;
    snprintf(l->path, sizeof l->path, "%s", o->path);
    snprintf(l->model, sizeof l->model, "%s", o->model ? o->model : "");
    snprintf(l->fingerprint, sizeof l->fingerprint, "%s", o->fingerprint ? o->fingerprint : "");
    routing_log_set(l, o->on, o->max_bytes);
    buf_init(&l->text, MAX_LINE);
    sem_init(&l->some, 0, 0);
    bool ok = (!o->on || open_file(l) || err_set(e, ERR_IO, "cannot open %s: %s", l->path, strerror(errno))) &&
              (thread_start(&l->thread, write_log, l) || err_set(e, ERR_UNAVAILABLE, "no thread for the routing log"));
    if (ok) {
        *out = l;
    } else {
        if (l->fd >= 0) close(l->fd);
        sem_destroy(&l->some);
        mem_free(l);
    }
    return ok;
}

void routing_log_close(routing_log *l)
{
    if (!l) return;
    atomic_store(&l->closing, true);
    sem_post(&l->some);
    pthread_join(l->thread, NULL);
    if (l->fd >= 0) close(l->fd);
    if (l->n_dropped > 0)
        log_event(LOG_WARN, "routing_log", "%lld records were dropped: the disk is too slow", (long long)l->n_dropped);
    sem_destroy(&l->some);
    buf_deinit(&l->text);
    mem_free(l);
}

void routing_log_set(routing_log *l, bool on, int64_t max_bytes)
{
    atomic_store(&l->on, on);
    atomic_store(&l->max_bytes, max_bytes);
}

int64_t routing_log_dropped(const routing_log *l) { return atomic_load(&l->n_dropped); }

double routing_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)(t.tv_nsec / 1000) * 1e-6;
}

void routing_log_put(routing_log *l, const routing_record *r)
{
    if (!l || !atomic_load_explicit(&l->on, memory_order_relaxed)) return;
    size_t head = atomic_load_explicit(&l->head, memory_order_relaxed);
    if (head - atomic_load_explicit(&l->tail, memory_order_acquire) >= RING) {
        atomic_fetch_add(&l->n_dropped, 1);
        return;
    }
    l->ring[head % RING] = (entry){.r = *r, .ts = routing_now()};
    atomic_store_explicit(&l->head, head + 1, memory_order_release);
    sem_post(&l->some);
}

bool routing_trace_note(routing_trace *t, const route *now)
{
    bool same = t->begun && (now->reason == ROUTE_TRIAL ||
                             (t->last.reason == now->reason && t->last.plan.method == now->plan.method));
    if (same) return false;
    t->begun = true;
    t->last  = *now;
    return ++t->n_changes <= ROUTING_LINES_MAX;
}
