/* sched/routing_recent.h - keeps the last records of the routing log in memory, with or without a file.
 *
 * Threads: put from one, read from any. */
#ifndef TANDEM_SCHED_ROUTING_RECENT_H
#define TANDEM_SCHED_ROUTING_RECENT_H
#include "sched/engine.h"
#include "sched/routing_log.h"

#include <pthread.h>

typedef struct {
    routing_record r;
    double         ts;
} routing_seen;

typedef struct {
    pthread_mutex_t lock;
    size_t          n; /* put so far */
    routing_seen   *ring;
} routing_recent;

void routing_recent_init(routing_recent *x);
void routing_recent_deinit(routing_recent *x);
void routing_recent_put(routing_recent *x, const routing_record *r);
/* Copies at most max records, the newest first: of the request with this id, or of all when it is NULL. Returns how
 * many. */
size_t routing_recent_get(routing_recent *x, const char *request_id, routing_seen *out, size_t max);
#endif
