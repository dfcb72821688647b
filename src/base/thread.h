/* base/thread.h - a persistent pool for data-parallel loops, the start of threads, and the number of processors.
 *
 * pool_run calls fn(ctx, chunk, thread) once for each chunk in 0 .. n_chunks-1, on the calling thread and on the pool's
 * workers, and returns when all calls have returned. Which thread gets which chunk is not fixed, so the result must not
 * depend on it (promise 1). Threads without work spin for 30 us and then sleep, so an idle pool uses no CPU time. A
 * pool with more threads than processors does not spin.
 *
 * One pool_run at a time per pool, from any thread; fn must not call pool_run on the same pool. */
#ifndef TANDEM_BASE_THREAD_H
#define TANDEM_BASE_THREAD_H
#include <pthread.h>
#include <stdbool.h>

typedef struct pool pool;
typedef void        pool_fn(void *ctx, int chunk, int thread); /* thread: 0 (the caller) to pool_threads - 1 */

/* Starts n_threads - 1 workers; the caller of pool_run is the last thread. n_threads <= 0: cpu_allowed(); the maximum
 * is 256. Never fails: a pool has fewer threads when the system cannot start more. */
pool *pool_new(int n_threads);
void  pool_free(pool *p);          /* ends and joins the workers; p may be NULL */
int   pool_threads(const pool *p); /* number of threads, including the caller of pool_run */
void  pool_run(pool *p, int n_chunks, pool_fn *fn, void *ctx);
/* Starts a thread with all signals blocked except SIGBUS, SIGSEGV, SIGFPE, SIGILL and SIGABRT. The caller joins or
 * detaches it. Returns false when the system cannot start one. */
bool thread_start(pthread_t *out, void *(*body)(void *), void *arg);
int  cpu_allowed(void); /* number of processors allowed by affinity and cgroup quota, 1 to 256 */
#endif
