#include "sched/queue.h"

static bool goes_before(const tandem_job *a, const tandem_job *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->order < b->order;
}

static void add_account(job_queue *q, account *x)
{
    if (!x->was_queued) x->served = 2 * q->n_admissions;
    x->was_queued = true;
    x->next       = q->first;
    q->first      = x;
}

void queue_put(job_queue *q, tandem_job *j)
{
    account    *x      = j->account;
    tandem_job *before = x->last; /* most belong at the end */
    if (!x->n_waiting++) add_account(q, x);
    while (before && goes_before(j, before)) before = before->prev;
    j->prev                                = before;
    j->next                                = before ? before->next : x->first;
    *(before ? &before->next : &x->first)  = j;
    *(j->next ? &j->next->prev : &x->last) = j;
    q->n++;
}

static void remove_account(job_queue *q, account *x)
{
    account **at = &q->first;
    while (*at != x) at = &(*at)->next;
    *at     = x->next;
    x->next = NULL;
}

void queue_take(job_queue *q, tandem_job *j)
{
    account *x                              = j->account;
    *(j->prev ? &j->prev->next : &x->first) = j->next;
    *(j->next ? &j->next->prev : &x->last)  = j->prev;
    j->next = j->prev = NULL;
    q->n--;
    if (!--x->n_waiting) remove_account(q, x);
}

/* Whether a's first request is admitted before b's. */
static bool is_served_before(const account *a, const account *b)
{
    if (a->first->priority != b->first->priority) return a->first->priority > b->first->priority;
    if (a->n_running != b->n_running) return a->n_running < b->n_running;
    return a->served != b->served ? a->served < b->served : goes_before(a->first, b->first);
}

tandem_job *queue_next(const job_queue *q, int64_t max_lanes_per_key)
{
    const account *best = NULL;
    for (const account *x = q->first; x; x = x->next) {
        if (max_lanes_per_key != SETTING_UNLIMITED && x->n_running >= max_lanes_per_key) continue;
        if (!best || is_served_before(x, best)) best = x;
    }
    return best ? best->first : NULL;
}

void queue_note_admission(job_queue *q, account *x) { x->served = 2 * ++q->n_admissions + 1; }

tandem_job *queue_last_of_longest(const job_queue *q)
{
    const account *longest = q->first;
    for (const account *x = q->first; x; x = x->next)
        if (x->n_waiting > longest->n_waiting) longest = x;
    return longest ? longest->last : NULL;
}

tandem_job *queue_first(const job_queue *q) { return q->first ? q->first->first : NULL; }

tandem_job *queue_after(const tandem_job *j)
{
    if (j->next) return j->next;
    return j->account->next ? j->account->next->first : NULL;
}
