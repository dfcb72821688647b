#include "server/work.h"

#include "base/mem.h"
#include "base/thread.h"

enum { MAX_THREADS = 8, MAX_QUICK = 512, MAX_SLOW = 32 };

typedef struct {
    work_item *first, **end;
    int        n;
} item_list;

struct work {
    pthread_mutex_t lock;
    pthread_cond_t  more;
    item_list       quick, slow, finished; /* under the lock */
    int             n_slow, most_slow;     /* that are being run, and may be */
    bool            closing;
    pthread_t       thread[MAX_THREADS];
    int             n_threads;
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

static item_list *list_of(work *w, bool slow) { return slow ? &w->slow : &w->quick; }

static work_item *take_next(work *w)
{
    work_item *item = take_first(&w->quick);
    return item || w->n_slow >= w->most_slow ? item : take_first(&w->slow);
}

static void run(work *w, work_item *item)
{
    w->n_slow += item->slow;
    pthread_mutex_unlock(&w->lock);
    item->run(item);
    pthread_mutex_lock(&w->lock);
    w->n_slow -= item->slow;
    if (w->slow.first) pthread_cond_signal(&w->more);
    append(&w->finished, item);
    w->wake(w->ctx);
}

static void *worker_main(void *arg)
{
    work *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        work_item *item = take_next(w);
        if (!item && w->closing) break;
        if (item)
            run(w, item);
        else
            pthread_cond_wait(&w->more, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static bool start(work *w, int n, err *e)
{
    while (w->n_threads < n && thread_start(&w->thread[w->n_threads], worker_main, w)) w->n_threads++;
    return w->n_threads == n || err_set(e, ERR_UNAVAILABLE, "the system gives no thread to the server");
}

bool work_new(work **out, int n_threads, void (*wake)(void *ctx), void *ctx, err *e)
{
    work *w      = xnew(work);
    w->wake      = wake;
    w->ctx       = ctx;
    w->most_slow = n_threads > 2 ? n_threads - 1 : 1;
    init_list(&w->quick);
    init_list(&w->slow);
    init_list(&w->finished);
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

bool work_is_full(work *w, bool slow)
{
    pthread_mutex_lock(&w->lock);
    bool full = list_of(w, slow)->n >= (slow ? MAX_SLOW : MAX_QUICK);
    pthread_mutex_unlock(&w->lock);
    return full;
}

void work_put(work *w, work_item *item)
{
    pthread_mutex_lock(&w->lock);
    append(list_of(w, item->slow), item);
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
}

bool work_withdraw(work *w, work_item *item)
{
    pthread_mutex_lock(&w->lock);
    bool waited = remove_from(list_of(w, item->slow), item);
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
    skip_all(w, &w->quick);
    skip_all(w, &w->slow);
    pthread_mutex_unlock(&w->lock);
}

void work_free(work *w)
{
    if (!w) return;
    work_skip(w);
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
