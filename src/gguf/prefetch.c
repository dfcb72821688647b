#include "gguf/prefetch.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/thread.h"

/* The disk gets requests for the next AHEAD_BYTES before a piece is waited for, so that it is never idle. */
enum { PIECE_BYTES = 4 << 20, AHEAD_BYTES = 32 << 20 };

struct prefetcher {
    const tensor *const *list;
    size_t               n, asked; /* bytes, counted over all tensors */
    pthread_t            thread;
    pthread_mutex_t      lock; /* protects the fields below */
    pthread_cond_t       moved;
    size_t               taken;
    bool                 stop;
};

/* Returns false when the reader was stopped. */
static bool wait_for_room(prefetcher *a)
{
    pthread_mutex_lock(&a->lock);
    while (!a->stop && a->asked >= a->taken + PREFETCH_BYTES) pthread_cond_wait(&a->moved, &a->lock);
    bool go = !a->stop;
    pthread_mutex_unlock(&a->lock);
    return go;
}

/* A place in the list. */
typedef struct {
    size_t i, at, passed; /* tensor, byte in it, and bytes before it in all */
} place;

/* Returns the size of the piece at the place, and moves on after it; 0: there are no more. */
static size_t next_piece(const prefetcher *a, place *x, const char **p)
{
    while (x->i < a->n && x->at == a->list[x->i]->bytes) x->i++, x->at = 0;
    if (x->i == a->n) return 0;
    size_t left = a->list[x->i]->bytes - x->at, n = left < PIECE_BYTES ? left : PIECE_BYTES;
    *p = (const char *)a->list[x->i]->data + x->at;
    x->at += n;
    x->passed += n;
    return n;
}

static void *read_all(void *arg)
{
    prefetcher *a     = arg;
    place       ahead = {0}, here = {0};
    const char *p;
    for (size_t n; wait_for_room(a);) {
        while (ahead.passed < here.passed + AHEAD_BYTES && (n = next_piece(a, &ahead, &p)) > 0) file_request(p, n);
        if (!(n = next_piece(a, &here, &p))) return NULL;
        file_prefetch(p, n);
        a->asked += n;
    }
    return NULL;
}

prefetcher *prefetch_start(const tensor *const *list, size_t n)
{
    prefetcher *a = xnew(prefetcher);
    *a            = (prefetcher){.list = list, .n = n};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->moved, NULL);
    if (thread_start(&a->thread, read_all, a)) return a;
    mem_free(a);
    return NULL;
}

static void post_bytes(prefetcher *a, size_t n_bytes, bool stop)
{
    pthread_mutex_lock(&a->lock);
    a->taken += n_bytes;
    a->stop = stop;
    pthread_cond_signal(&a->moved);
    pthread_mutex_unlock(&a->lock);
}

void prefetch_advance(prefetcher *a, size_t n_bytes)
{
    if (a) post_bytes(a, n_bytes, false);
}

void prefetch_stop(prefetcher *a)
{
    if (!a) return;
    post_bytes(a, 0, true);
    pthread_join(a->thread, NULL);
    mem_free(a);
}
