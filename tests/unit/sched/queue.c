#include "sched/queue.h"
#include "test.h"

enum { N = 200 };

TEST(queue_order_against_sorting)
{
    static tandem_job job[N];
    job_queue         q     = {0};
    uint64_t          seed  = 11;
    int               in[N] = {0};
    for (int round = 0; round < 2000; round++) {
        int         i = (int)(test_rand(&seed) % N);
        tandem_job *j = &job[i];
        if (in[i]) {
            queue_take(&q, j);
        } else {
            j->priority = (int)(test_rand(&seed) % 5) - 2;
            j->order    = (uint64_t)round;
            queue_put(&q, j);
        }
        in[i] = !in[i];
        int n = 0;
        for (tandem_job *x = q.first, *before = NULL; x; before = x, x = x->next, n++) {
            CHECK(x->prev == before);
            if (before)
                CHECK(before->priority > x->priority || (before->priority == x->priority && before->order < x->order));
        }
        CHECK_INT(n, q.n);
    }
}
