/* sched/queue.h - waiting requests: one queue per account (sched/accounts.h), served alternately.
 *
 * Within an account the highest priority goes first, among equals the oldest. Between accounts, in this order: the one
 * whose first request has the highest priority; the one with the fewest running requests; the one that was served
 * longest ago. A new account counts as served at the last admission, before the account that was admitted then. So it
 * waits for at most one admission of each waiting account, and for none of an account with running requests.
 *
 * When the first request does not fit, all others wait too, so that small requests do not starve a large one.
 * The engine thread is the only caller. */
#ifndef TANDEM_SCHED_QUEUE_H
#define TANDEM_SCHED_QUEUE_H
#include "sched/job.h"

typedef struct {
    account *first;        /* accounts with waiting requests */
    int      n;            /* requests */
    uint64_t n_admissions; /* admissions so far */
} job_queue;               /* zeroed storage is an empty one */

void queue_put(job_queue *q, tandem_job *j);  /* adds j to the queue of j->account; borrows it */
void queue_take(job_queue *q, tandem_job *j); /* removes j */
/* Returns the request to admit next, NULL if there is none. Skips accounts with max_lanes_per_key running requests or
 * more, unless that is SETTING_UNLIMITED. */
tandem_job *queue_next(const job_queue *q, int64_t max_lanes_per_key);
void        queue_note_admission(job_queue *q, account *x); /* a request of x was admitted */
/* Returns the request to refuse first: the last one of the account with the most waiting requests. NULL: the queue is
 * empty. */
tandem_job *queue_last_of_longest(const job_queue *q);
/* Walk through all waiting requests, account by account: queue_first, then queue_after until NULL. To remove a request
 * on the way, call queue_after for it first. */
tandem_job *queue_first(const job_queue *q);
tandem_job *queue_after(const tandem_job *j);
#endif
