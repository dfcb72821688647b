/* sched/queue.h - requests that wait: a queue for each account (sched/accounts.h), served in turns.
 *
 * Inside an account the highest priority goes first, among equals the oldest. Between accounts, in this order: the one
 * whose first request has the highest priority; the one with the fewest running requests; the one that was served longest
 * ago, where an account that arrives counts as served when the last admission was, and goes before the account admitted
 * then. So a new account waits for at most one admission of each account that waits already, and for none of one that has
 * other requests running.
 *
 * When the first does not fit, all others wait too, so that small requests do not starve a large one. Thread: the
 * engine's. */
#ifndef TANDEM_SCHED_QUEUE_H
#define TANDEM_SCHED_QUEUE_H
#include "sched/job.h"

typedef struct {
    account *first; /* accounts with waiting requests */
    int      n;     /* requests */
    uint64_t turn;  /* admissions so far */
} job_queue;        /* zeroed storage is an empty one */

void queue_put(job_queue *q, tandem_job *j);  /* into the queue of j->account */
void queue_take(job_queue *q, tandem_job *j); /* from wherever it is */
/* Returns the request to admit next, NULL if there is none. Accounts with max_lanes_per_key running requests or more are
 * passed over, unless that is SETTING_UNLIMITED. */
tandem_job *queue_next(const job_queue *q, int64_t max_lanes_per_key);
void        queue_note_admission(job_queue *q, account *x); /* of a request of x */
/* Returns the last request of the account with the most waiting ones: the first to be refused. NULL: the queue is empty. */
tandem_job *queue_last_of_longest(const job_queue *q);
/* Walks through all waiting requests, account by account: queue_first, then queue_after until NULL. */
tandem_job *queue_first(const job_queue *q);
tandem_job *queue_after(const tandem_job *j);
#endif
