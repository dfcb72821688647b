/* sched/errand.h - what other threads want done on the engine's thread, between two steps, and wait for.
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
void errands_deinit(errands *x); /* they were closed, or never run */
/* Returns when fn was called; false: it was not and never will be, the thread has ended. `ring` is called once it waits. */
bool errands_do(errands *x, void (*fn)(void *ctx), void *ctx, void (*ring)(void *ring_ctx), void *ring_ctx);
/* On the engine's thread; whether there was any. */
bool errands_run(errands *x);
void errands_close(errands *x); /* what waits is not done, and nothing will be */
#endif
