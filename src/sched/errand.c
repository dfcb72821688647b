#include "sched/errand.h"

#include <stddef.h>

struct errand { /* on the stack of who waits for it */
    void (*fn)(void *ctx);
    void   *ctx;
    errand *next;
    bool    over, done;
};

void errands_init(errands *x)
{
    *x     = (errands){0};
    x->end = &x->first;
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->some_done, NULL);
}

void errands_deinit(errands *x)
{
    pthread_cond_destroy(&x->some_done);
    pthread_mutex_destroy(&x->lock);
}

bool errands_do(errands *x, void (*fn)(void *ctx), void *ctx, void (*ring)(void *ring_ctx), void *ring_ctx)
{
    errand mine = {.fn = fn, .ctx = ctx};
    pthread_mutex_lock(&x->lock);
    mine.over = x->closed;
    if (!x->closed) {
        *x->end = &mine;
        x->end  = &mine.next;
        ring(ring_ctx);
    }
    while (!mine.over) pthread_cond_wait(&x->some_done, &x->lock);
    pthread_mutex_unlock(&x->lock);
    return mine.done;
}

static errand *take_all(errands *x)
{
    errand *first = x->first;
    x->first      = NULL;
    x->end        = &x->first;
    return first;
}

static void end_errand(errands *x, errand *e, bool done)
{
    e->done = done;
    e->over = true;
    pthread_cond_broadcast(&x->some_done);
}

bool errands_run(errands *x)
{
    pthread_mutex_lock(&x->lock);
    errand *first = take_all(x);
    for (errand *e = first, *next; e; e = next) {
        next = e->next;
        pthread_mutex_unlock(&x->lock);
        e->fn(e->ctx);
        pthread_mutex_lock(&x->lock);
        end_errand(x, e, true);
    }
    pthread_mutex_unlock(&x->lock);
    return first != NULL;
}

void errands_close(errands *x)
{
    pthread_mutex_lock(&x->lock);
    x->closed = true;
    for (errand *e = take_all(x), *next; e; e = next) {
        next = e->next;
        end_errand(x, e, false);
    }
    pthread_mutex_unlock(&x->lock);
}
