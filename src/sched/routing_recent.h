/* sched/routing_recent.h - keeps the last ENGINE_ROUTING_MAX routing records in memory, also without a routing log.
 *
 * The engine thread puts records; any thread may get them. */
#ifndef TANDEM_SCHED_ROUTING_RECENT_H
#define TANDEM_SCHED_ROUTING_RECENT_H
#include "sched/engine.h"
#include "sched/routing_log.h"

#include <pthread.h>

typedef struct {
    routing_record r;
    double         ts; /* as routing_now */
} routing_seen;

typedef struct {
    pthread_mutex_t lock;
    size_t          n;    /* number of records put so far */
    routing_seen   *ring; /* [ENGINE_ROUTING_MAX] */
} routing_recent;

void routing_recent_init(routing_recent *x);
void routing_recent_deinit(routing_recent *x);
void routing_recent_put(routing_recent *x, const routing_record *r);
/* Copies at most max records, the newest first: of the request with this id, or of all when it is NULL. Ids are
 * equal if their first ROUTING_ID_MAX - 1 bytes are. Returns how many it copied. */
size_t routing_recent_get(routing_recent *x, const char *request_id, routing_seen *out, size_t max);
#endif
