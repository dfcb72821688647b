#include "server/work.h"

#include "base/mem.h"

#include <pthread.h>
#include <signal.h>

enum { MAX_THREADS = 8 };

typedef struct {
    work_item *first, **end;
} item_list;

struct work {
    pthread_mutex_t lock;
    pthread_cond_t  more;
    item_list       todo, finished; /* under the lock */
    bool            closing;
    pthread_t       thread[MAX_THREADS];
    int             n_threads;
    void (*wake)(void *ctx);
    void *ctx;
};

static void append(item_list *l, work_item *item)
{
    item->next = NULL;
    *l->end    = item;
    l->end     = &item->next;
}

static work_item *take_first(item_list *l)
{
    work_item *item = l->first;
    if (!item) return NULL;
    l->first = item->next;
    if (!l->first) l->end = &l->first;
    return item;
}

static bool remove_from(item_list *l, work_item *item)
{
    work_item **at = &l->first;
    while (*at && *at != item) at = &(*at)->next;
    if (!*at) return false;
    *at = item->next;
    if (!*at) l->end = at;
    return true;
}

static void *worker_main(void *arg)
{
    work *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        work_item *item = take_first(&w->todo);
        if (!item && w->closing) break;
        if (!item) {
            pthread_cond_wait(&w->more, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        item->run(item);
        pthread_mutex_lock(&w->lock);
        append(&w->finished, item);
        w->wake(w->ctx);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Signals are the I/O thread's. */
static bool start(work *w, int n, err *e)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (w->n_threads < n && pthread_create(&w->thread[w->n_threads], NULL, worker_main, w) == 0) w->n_threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return w->n_threads == n || err_set(e, ERR_UNAVAILABLE, "the system gives no thread to the server");
}

bool work_new(work **out, int n_threads, void (*wake)(void *ctx), void *ctx, err *e)
{
    work *w         = xnew(work);
    w->wake         = wake;
    w->ctx          = ctx;
    w->todo.end     = &w->todo.first;
    w->finished.end = &w->finished.first;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    if (start(w, n_threads < MAX_THREADS ? n_threads : MAX_THREADS, e)) {
        *out = w;
        return true;
    }
    work_free(w);
    *out = NULL;
    return false;
}

void work_put(work *w, work_item *item)
{
    pthread_mutex_lock(&w->lock);
    append(&w->todo, item);
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
}

bool work_withdraw(work *w, work_item *item)
{
    pthread_mutex_lock(&w->lock);
    bool waited = remove_from(&w->todo, item);
    pthread_mutex_unlock(&w->lock);
    return waited;
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

void work_free(work *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_threads; i++) pthread_join(w->thread[i], NULL);
    work_collect(w);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
}
