#include "sched/routing_recent.h"

#include "base/mem.h"

void routing_recent_init(routing_recent *x)
{
    *x = (routing_recent){.ring = xnew_n(routing_seen, ENGINE_ROUTING_MAX)};
    pthread_mutex_init(&x->lock, NULL);
}

void routing_recent_deinit(routing_recent *x)
{
    pthread_mutex_destroy(&x->lock);
    mem_free(x->ring);
}

void routing_recent_put(routing_recent *x, const routing_record *r)
{
    double now = routing_now();
    pthread_mutex_lock(&x->lock);
    x->ring[x->n++ % ENGINE_ROUTING_MAX] = (routing_seen){.r = *r, .ts = now};
    pthread_mutex_unlock(&x->lock);
}

size_t routing_recent_get(routing_recent *x, const char *request_id, routing_seen *out, size_t max)
{
    size_t n = 0;
    pthread_mutex_lock(&x->lock);
    size_t there = x->n < ENGINE_ROUTING_MAX ? x->n : ENGINE_ROUTING_MAX;
    for (size_t i = 1; i <= there && n < max; i++) {
        const routing_seen *s = &x->ring[(x->n - i) % ENGINE_ROUTING_MAX];
        /* Records have as much of an id as they have room for. */
        if (!request_id || strncmp(s->r.request_id, request_id, ROUTING_ID_MAX - 1) == 0) out[n++] = *s;
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}
