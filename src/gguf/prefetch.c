#include "gguf/prefetch.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/thread.h"

enum { PIECE_BYTES = 4 << 20 };

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

static void *read_all(void *arg)
{
    prefetcher *a = arg;
    for (size_t i = 0; i < a->n; i++)
        for (size_t at = 0; at < a->list[i]->bytes;) {
            size_t left = a->list[i]->bytes - at, n = left < PIECE_BYTES ? left : PIECE_BYTES;
            if (!wait_for_room(a)) return NULL;
            file_prefetch((const char *)a->list[i]->data + at, n);
            a->asked += n;
            at += n;
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
