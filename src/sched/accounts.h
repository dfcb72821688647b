/* sched/accounts.h - accounts share the lanes and the queue.
 *
 * Every request belongs to an account: that of its API key, or the one account of all requests without a key. An
 * account exists while it has unfinished requests. A single account may use all lanes and the whole queue. When the
 * queue is full, a request of an account with fewer waiting requests is still accepted, and the account with the most
 * waiting requests yields a place: the engine refuses its last request.
 *
 * Threads: `accounts` and the first group of fields are guarded by the scheduler's lock. Only the engine's thread
 * writes n_running, so it may read it without the lock. */
#ifndef TANDEM_SCHED_ACCOUNTS_H
#define TANDEM_SCHED_ACCOUNTS_H
#include "base/err.h"

#include <stdint.h>

typedef struct account    account;
typedef struct tandem_job tandem_job;
struct account {
    uint64_t key;
    int      n_live;    /* unfinished requests */
    int      n_running; /* requests in a lane */
    int      n_yield;   /* waiting requests that the engine is about to refuse */
    account *next_live;

    /* used by sched/queue.c on the engine's thread */
    tandem_job *first, *last; /* waiting requests */
    int         n_waiting;
    bool        was_queued;
    uint64_t    served; /* 2 * number of admissions at its arrival, or that + 1 at its last admission */
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

/* Counts one more request of this key and sets *out to its account. Fails with ERR_BUSY and the text `busy` when there
 * is no place for it, with ERR_UNAVAILABLE when there is no memory. */
bool accounts_join(accounts *a, uint64_t key, const account_limits *l, account **out, const char *busy, err *e);
void accounts_leave(accounts *a, account *x); /* counts one request less; may free x */
void accounts_settle(accounts *a);            /* the engine has refused the requests that yield */
int  account_waiting(const account *x);       /* without those that yield */
#endif
