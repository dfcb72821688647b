/* sched/queue.h - requests that wait: the highest priority first, among equals the one that came first.
 *
 * Nobody overtakes an equal: when the first does not fit, the others wait too, so that a large request is not starved
 * by small ones. Thread: the engine's. */
#ifndef TANDEM_SCHED_QUEUE_H
#define TANDEM_SCHED_QUEUE_H
#include "sched/job.h"

typedef struct {
    tandem_job *first, *last;
    int         n;
} job_queue; /* zeroed storage is an empty one */

void queue_put(job_queue *q, tandem_job *j);
void queue_take(job_queue *q, tandem_job *j); /* from wherever it stands */
#endif
