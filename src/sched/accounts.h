/* sched/accounts.h - whose requests they are: shares of lanes and of the queue between API keys.
 *
 * Every request belongs to an account: that of its API key, or the one account of all requests without a key. An account
 * exists while it has requests that are not done. One account alone may use all lanes and the whole queue. When the queue
 * is full, a request of an account with fewer waiting requests is still accepted, and the account with the most waiting
 * requests yields a place: the engine refuses its last request.
 *
 * Threads: `accounts` and the first group of fields are used under the scheduler's lock. The engine's thread is the only
 * writer of n_running, so it may read that without the lock. */
#ifndef TANDEM_SCHED_ACCOUNTS_H
#define TANDEM_SCHED_ACCOUNTS_H
#include "base/err.h"

#include <stdint.h>

typedef struct account    account;
typedef struct tandem_job tandem_job;
struct account {
    uint64_t key;
    int      n_live;    /* requests that are not done */
    int      n_running; /* of them in a lane */
    int      n_yield;   /* waiting ones that the engine is about to refuse */
    account *next_live;

    /* sched/queue.c's, on the engine's thread */
    tandem_job *first, *last; /* that wait */
    int         n_waiting;
    bool        was_queued;
    uint64_t    served; /* 2 * turn of its arrival, or 2 * turn + 1 of its last admission */
    account    *next;
};

typedef struct {
    account *first;
    int      n_live, n_yield; /* sums over all */
} accounts;                   /* zeroed storage has none */

typedef struct {
    int     max_lanes;
    int64_t queue_max, max_lanes_per_key, max_queue_per_key; /* the last two: or SETTING_UNLIMITED */
} account_limits;

/* Counts one more request of this key and returns its account. ERR_BUSY with `busy` as text: there is no place for it;
 * ERR_UNAVAILABLE: no memory. */
bool accounts_join(accounts *a, uint64_t key, const account_limits *l, account **out, const char *busy, err *e);
void accounts_leave(accounts *a, account *x); /* one request less; x may be freed */
void accounts_settle(accounts *a);            /* the engine has refused what had to yield */
int  account_waiting(const account *x);       /* not counting those that yield */
#endif
