/* sched/errand.h - runs functions of other threads on the engine thread, between two steps. The scheduler uses it to
 * park drafters.
 *
 *      any thread: errands_do(fn, ctx) ---> engine thread: errands_run calls fn(ctx) ---> errands_do returns */
#ifndef TANDEM_SCHED_ERRAND_H
#define TANDEM_SCHED_ERRAND_H
#include <pthread.h>
#include <stdbool.h>

typedef struct errand errand;
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t  some_done;
    errand         *first, **end;
    bool            closed;
} errands;

void errands_init(errands *x);
void errands_deinit(errands *x); /* after errands_close, or when errands_do was never called */
/* Queues a call of fn and blocks until the engine thread has made it. Returns false when it was not made and never will
 * be: errands_close came first. Calls `ring`, which wakes the engine thread, once the errand is queued, while the lock
 * of x is held. */
bool errands_do(errands *x, void (*fn)(void *ctx), void *ctx, void (*ring)(void *ring_ctx), void *ring_ctx);
/* Runs the queued errands, on the engine thread. Returns whether there were any. */
bool errands_run(errands *x);
void errands_close(errands *x); /* drops queued errands, whose errands_do return false, and refuses new ones */
#endif
