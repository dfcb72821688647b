#include "server/work.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"

#include <time.h>

enum { MAX_THREADS = 8, GRAMMAR_THREADS = 1, MEDIA_THREADS = 2, OWN_THREADS = GRAMMAR_THREADS + MEDIA_THREADS };

static const int most_waiting[WORK_KINDS] = {
    [WORK_QUICK] = 512, [WORK_SLOW] = 32, [WORK_GRAMMAR] = 128, [WORK_MEDIA] = 128};
enum { MOST_OF_A_SHARE = 64 }; /* grammars, media */

typedef struct {
    work_item *first, **end;
    int        n;
} item_list;

typedef struct {
    work     *w;
    pthread_t thread;
    work_kind kind;  /* WORK_GRAMMAR, WORK_MEDIA: only these; WORK_QUICK: quick and slow ones */
    double    since; /* clock_s when it began a quick item or a grammar; 0: it has none. Under the lock */
} worker;

struct work {
    pthread_mutex_t lock;
    pthread_cond_t  more[WORK_KINDS], ended;       /* more[WORK_QUICK]: also slow ones */
    item_list       waiting[WORK_KINDS], finished; /* under the lock, as the rest */
    int             n_slow, most_slow;             /* that are being run, and may be */
    uint64_t        last_share[WORK_KINDS];        /* share of the grammar or medium that was started last */
    bool            closing;
    worker          worker[MAX_THREADS + OWN_THREADS];
    int             n_workers, n_running; /* started; of them not ended */
    void (*wake)(void *ctx);
    void *ctx;
};

static void init_list(item_list *l) { l->end = &l->first; }

static void append(item_list *l, work_item *item)
{
    item->next = NULL;
    *l->end    = item;
    l->end     = &item->next;
    l->n++;
}

static work_item *take_first(item_list *l)
{
    work_item *item = l->first;
    if (!item) return NULL;
    l->first = item->next;
    if (!l->first) l->end = &l->first;
    l->n--;
    return item;
}

static bool remove_from(item_list *l, work_item *item)
{
    work_item **at = &l->first;
    while (*at && *at != item) at = &(*at)->next;
    if (!*at) return false;
    *at = item->next;
    if (!*at) l->end = at;
    l->n--;
    return true;
}

/* Removes and returns the first item of another share than the last one returned, else the first; NULL: none. */
static work_item *take_in_turn(work *w, work_kind kind)
{
    item_list *l = &w->waiting[kind];
    work_item *x = l->first;
    while (x && x->share == w->last_share[kind]) x = x->next;
    if (!x) x = l->first;
    if (!x) return NULL;
    remove_from(l, x);
    w->last_share[kind] = x->share;
    return x;
}

static bool has_shares(work_kind kind) { return kind == WORK_GRAMMAR || kind == WORK_MEDIA; }

static work_item *take_next(work *w, work_kind kind)
{
    if (has_shares(kind)) return take_in_turn(w, kind);
    work_item *item = take_first(&w->waiting[WORK_QUICK]);
    return item || w->n_slow >= w->most_slow ? item : take_first(&w->waiting[WORK_SLOW]);
}

static void run_item(worker *me, work_item *item)
{
    work *w    = me->w;
    bool  slow = item->kind == WORK_SLOW;
    w->n_slow += slow;
    me->since = slow || item->kind == WORK_MEDIA ? 0 : clock_s();
    pthread_mutex_unlock(&w->lock);
    item->run(item);
    pthread_mutex_lock(&w->lock);
    me->since = 0;
    w->n_slow -= slow;
    if (w->waiting[WORK_SLOW].first) pthread_cond_signal(&w->more[WORK_QUICK]);
    append(&w->finished, item);
    w->wake(w->ctx);
}

static void *worker_main(void *arg)
{
    worker *me = arg;
    work   *w  = me->w;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        work_item *item = take_next(w, me->kind);
        if (!item && w->closing) break;
        if (item)
            run_item(me, item);
        else
            pthread_cond_wait(&w->more[me->kind], &w->lock);
    }
    w->n_running--;
    pthread_cond_signal(&w->ended);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static bool start_workers(work *w, int n, err *e)
{
    for (int i = 0; i < n + OWN_THREADS; i++) {
        w->worker[i] = (worker){.w    = w,
                                .kind = i < n                     ? WORK_QUICK
                                        : i < n + GRAMMAR_THREADS ? WORK_GRAMMAR
                                                                  : WORK_MEDIA};
        if (!thread_start(&w->worker[i].thread, worker_main, &w->worker[i]))
            return err_set(e, ERR_UNAVAILABLE, "cannot start a worker thread");
        pthread_mutex_lock(&w->lock);
        w->n_workers++;
        w->n_running++;
        pthread_mutex_unlock(&w->lock);
    }
    return true;
}

bool work_new(work **out, int n_threads, void (*wake)(void *ctx), void *ctx, err *e)
{
    work              *w = xnew(work);
    pthread_condattr_t monotonic;
    w->wake      = wake;
    w->ctx       = ctx;
    w->most_slow = n_threads > 2 ? n_threads - 1 : 1;
    for (int i = 0; i < WORK_KINDS; i++) init_list(&w->waiting[i]);
    init_list(&w->finished);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    for (int i = 0; i < WORK_KINDS; i++) pthread_cond_init(&w->more[i], NULL);
    pthread_cond_init(&w->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (start_workers(w, n_threads < MAX_THREADS ? n_threads : MAX_THREADS, e)) {
        *out = w;
        return true;
    }
    work_free(w);
    *out = NULL;
    return false;
}

bool work_is_full(work *w, work_kind kind, uint64_t share)
{
    int mine = 0;
    pthread_mutex_lock(&w->lock);
    for (const work_item *x = w->waiting[kind].first; x && has_shares(kind); x = x->next) mine += x->share == share;
    bool full = w->waiting[kind].n >= most_waiting[kind] || mine >= MOST_OF_A_SHARE;
    pthread_mutex_unlock(&w->lock);
    return full;
}

void work_put(work *w, work_item *item)
{
    pthread_mutex_lock(&w->lock);
    append(&w->waiting[item->kind], item);
    pthread_cond_signal(&w->more[has_shares(item->kind) ? item->kind : WORK_QUICK]);
    pthread_mutex_unlock(&w->lock);
}

bool work_withdraw(work *w, work_item *item)
{
    pthread_mutex_lock(&w->lock);
    bool waited = remove_from(&w->waiting[item->kind], item);
    pthread_mutex_unlock(&w->lock);
    return waited;
}

double work_longest_s(work *w)
{
    double now = clock_s(), longest = 0;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->n_workers; i++)
        if (w->worker[i].since > 0 && now - w->worker[i].since > longest) longest = now - w->worker[i].since;
    pthread_mutex_unlock(&w->lock);
    return longest;
}

void work_collect(work *w)
{
    for (;;) {
        pthread_mutex_lock(&w->lock);
        work_item *item = take_first(&w->finished);
        pthread_mutex_unlock(&w->lock);
        if (!item) return;
        item->done(item);
    }
}

static void skip_all(work *w, item_list *from)
{
    for (work_item *item; (item = take_first(from));) {
        item->skipped = true;
        append(&w->finished, item);
    }
}

void work_skip(work *w)
{
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < WORK_KINDS; i++) skip_all(w, &w->waiting[i]);
    pthread_mutex_unlock(&w->lock);
}

bool work_stop(work *w, double wait_s)
{
    struct timespec until;
    work_skip(w);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)wait_s;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    for (int i = 0; i < WORK_KINDS; i++) pthread_cond_broadcast(&w->more[i]);
    while (w->n_running && !pthread_cond_timedwait(&w->ended, &w->lock, &until)) {}
    bool all = !w->n_running;
    pthread_mutex_unlock(&w->lock);
    return all;
}

void work_free(work *w)
{
    if (!w) return;
    work_stop(w, 0);
    for (int i = 0; i < w->n_workers; i++) pthread_join(w->worker[i].thread, NULL);
    work_collect(w);
    for (int i = 0; i < WORK_KINDS; i++) pthread_cond_destroy(&w->more[i]);
    pthread_cond_destroy(&w->ended);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
}
