/* sched/accounts.h - accounts share the lanes and the queue.
 *
 * Every request belongs to an account: that of its API key, or the one account of all requests without a key. An
 * account exists while it has unfinished requests. A single account may use all lanes and the whole queue, unless
 * limits per key are set. When the queue is full, a request is still accepted if its account then has fewer waiting
 * requests than the account with the most, which yields a place: the engine refuses its last request.
 *
 * Threads: `accounts` and the first group of fields are guarded by the scheduler's lock, which the callers of all
 * functions hold. Only the engine thread writes n_running, so it may read it without the lock. */
#ifndef TANDEM_SCHED_ACCOUNTS_H
#define TANDEM_SCHED_ACCOUNTS_H
#include "base/err.h"

#include <stdint.h>

typedef struct account    account;
typedef struct tandem_job tandem_job;
struct account {
    uint64_t key;       /* hash of the API key; 0: without a key */
    int      n_live;    /* unfinished requests: running and waiting */
    int      n_running; /* requests in a lane */
    int      n_yield;   /* waiting requests that the engine is about to refuse */
    account *next_live; /* in accounts.first */

    /* used by sched/queue.c on the engine thread */
    tandem_job *first, *last; /* waiting requests */
    int         n_waiting;    /* requests in the queue; those in the inbox are not counted */
    bool        was_queued;   /* `served` is set */
    uint64_t    served;       /* 2 * number of admissions at its arrival, or that + 1 at its last admission */
    account    *next;         /* in job_queue.first */
};

typedef struct {
    account *first;
    int      n_live, n_yield; /* sums over all */
} accounts;                   /* zeroed storage has none */

typedef struct {
    int     max_lanes;
    int64_t queue_max, max_lanes_per_key, max_queue_per_key; /* the last two: or SETTING_UNLIMITED */
} account_limits;

/* Counts one more request of this key and sets *out to its account, which belongs to `a`. Fails with ERR_BUSY and the
 * text `busy` when there is no place for it, with ERR_UNAVAILABLE when there is no memory; *out is NULL then. */
bool accounts_join(accounts *a, uint64_t key, const account_limits *l, account **out, const char *busy, err *e);
void accounts_leave(accounts *a, account *x); /* counts one request less; the last one frees x */
void accounts_settle(accounts *a);            /* sets n_yield to 0: the engine has refused the requests that yield */
#endif
