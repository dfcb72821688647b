#include "sched/queue.h"

static bool goes_before(const tandem_job *a, const tandem_job *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->order < b->order;
}

void queue_put(job_queue *q, tandem_job *j)
{
    tandem_job *before = q->last; /* most come at the end */
    while (before && goes_before(j, before)) before = before->prev;
    j->prev                                = before;
    j->next                                = before ? before->next : q->first;
    *(before ? &before->next : &q->first)  = j;
    *(j->next ? &j->next->prev : &q->last) = j;
    q->n++;
}

void queue_take(job_queue *q, tandem_job *j)
{
    *(j->prev ? &j->prev->next : &q->first) = j->next;
    *(j->next ? &j->next->prev : &q->last)  = j->prev;
    j->next = j->prev = NULL;
    q->n--;
}
