#include "sched/accounts.h"

#include "base/mem.h"
#include "sched/settings.h"

#include <assert.h>

/* Counts the waiting requests without those that yield. */
static int count_waiting(const account *x) { return x->n_live - x->n_running - x->n_yield; }

static account *find_account(const accounts *a, uint64_t key)
{
    account *x = a->first;
    while (x && x->key != key) x = x->next_live;
    return x;
}

static account *find_longest(const accounts *a)
{
    account *longest = NULL;
    for (account *x = a->first; x; x = x->next_live)
        if (!longest || count_waiting(x) > count_waiting(longest)) longest = x;
    return longest;
}

/* Whether the account has as many requests as one key may have. */
static bool is_at_limit(const account *x, const account_limits *l)
{
    int64_t lanes = l->max_lanes;
    if (l->max_queue_per_key == SETTING_UNLIMITED) return false;
    if (l->max_lanes_per_key != SETTING_UNLIMITED && l->max_lanes_per_key < lanes) lanes = l->max_lanes_per_key;
    return x && x->n_live - x->n_yield >= lanes + l->max_queue_per_key;
}

/* Makes the account with the most waiting requests yield a place, if it then still has no fewer than the newcomer. */
static bool make_place(accounts *a, const account *newcomer)
{
    account *longest = find_longest(a);
    int      waiting = newcomer ? count_waiting(newcomer) : 0;
    if (!longest || waiting + 1 >= count_waiting(longest)) return false;
    longest->n_yield++;
    a->n_yield++;
    return true;
}

static account *add_account(accounts *a, uint64_t key)
{
    account *x = mem_try(sizeof *x);
    if (!x) return NULL;
    x->key       = key;
    x->next_live = a->first;
    a->first     = x;
    return x;
}

bool accounts_join(accounts *a, uint64_t key, const account_limits *l, account **out, const char *busy, err *e)
{
    account *x    = find_account(a, key);
    bool     full = a->n_live - a->n_yield >= l->max_lanes + l->queue_max;
    *out          = NULL;
    if (is_at_limit(x, l) || (full && !make_place(a, x))) return err_set(e, ERR_BUSY, "%s", busy);
    if (!x) x = add_account(a, key);
    if (!x) return err_set(e, ERR_UNAVAILABLE, "no memory for this request now");
    x->n_live++;
    a->n_live++;
    *out = x;
    return true;
}

void accounts_leave(accounts *a, account *x)
{
    assert(x->n_live > 0 && !(x->n_live == 1 && x->n_running + x->n_waiting));
    a->n_live--;
    if (--x->n_live) return;
    account **at = &a->first;
    while (*at != x) at = &(*at)->next_live;
    *at = x->next_live;
    a->n_yield -= x->n_yield;
    mem_free(x);
}

void accounts_settle(accounts *a)
{
    if (!a->n_yield) return;
    for (account *x = a->first; x; x = x->next_live) x->n_yield = 0;
    a->n_yield = 0;
}
