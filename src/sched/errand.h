/* sched/errand.h - runs functions of other threads on the engine's thread, between two steps.
 *
 *      any thread: errands_do(fn, ctx) ---> the engine's: errands_run, which calls fn(ctx) ---> errands_do returns */
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
void errands_deinit(errands *x); /* after errands_close, or when errands_run was never called */
/* Blocks until the engine's thread has called fn. Returns false when it was not called and never will be, because the
 * thread has ended. Calls `ring` once the errand is queued. */
bool errands_do(errands *x, void (*fn)(void *ctx), void *ctx, void (*ring)(void *ring_ctx), void *ring_ctx);
/* Runs the queued errands, on the engine's thread. Returns whether there were any. */
bool errands_run(errands *x);
void errands_close(errands *x); /* drops queued errands and refuses new ones */
#endif
