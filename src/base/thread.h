/* base/thread.h - a persistent pool for data-parallel loops.
 *
 * pool_run calls fn(ctx, chunk, thread) once for each chunk in 0 .. n_chunks-1, on the caller and
 * the workers together, and returns when all are done. Which thread gets which chunk is not fixed,
 * so the result must not depend on it (promise 1). Both sides spin for a bounded time and then sleep
 * on a futex, so an idle pool uses no CPU time, and an oversubscribed machine does not spin.
 *
 * One pool_run at a time per pool; fn must not call pool_run on the same pool. */
#ifndef TANDEM_BASE_THREAD_H
#define TANDEM_BASE_THREAD_H
#include <pthread.h>
#include <stdbool.h>

typedef struct pool pool;
typedef void        pool_fn(void *ctx, int chunk, int thread);

pool *pool_new(int n_threads);     /* 0: all processors that this process may use */
void  pool_free(pool *p);          /* p may be NULL */
int   pool_threads(const pool *p); /* including the caller */
void  pool_run(pool *p, int n_chunks, pool_fn *fn, void *ctx);
/* Starts a thread that handles no signals except those of errors in it. Returns false when the system has no threads
 * left. */
bool thread_start(pthread_t *out, void *(*body)(void *), void *arg);
int  cpu_allowed(void); /* processors allowed by affinity and cgroup quota, at least 1 */
/* Returns the cgroup quota (version 1 or 2, parents included) in whole processors; 0: none. root: "", or a directory
 * with copies of the machine's files for tests. */
int cpu_quota(const char *root);
#endif
