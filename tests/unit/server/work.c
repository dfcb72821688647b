#include "server/work.h"

#include "test.h"

#include <semaphore.h>
#include <stdatomic.h>

typedef struct {
    work_item  item;
    sem_t      begun, go; /* of one that waits */
    atomic_int order;     /* in which it was run, from 1 on; 0: it was not */
    bool       is_done;
} task;

static atomic_int n_run;

static void run(work_item *item) { atomic_store(&((task *)item)->order, atomic_fetch_add(&n_run, 1) + 1); }

static void run_waiting(work_item *item)
{
    task *x = (task *)item;
    sem_post(&x->begun);
    sem_wait(&x->go);
    run(item);
}

static void done(work_item *item) { ((task *)item)->is_done = true; }
static void wake(void *ctx) { (void)ctx; }

static work *open_work(test_case *t, int n_threads)
{
    work *w;
    err   e;
    atomic_store(&n_run, 0);
    CHECK_OK(work_new(&w, n_threads, wake, NULL, &e), e);
    return w;
}

/* Until it is let go, a worker has nothing else to do. */
static void put_waiting(work *w, task *x)
{
    *x = (task){.item = {.run = run_waiting, .done = done}};
    sem_init(&x->begun, 0, 0);
    sem_init(&x->go, 0, 0);
    work_put(w, &x->item);
    sem_wait(&x->begun);
}

static void put(work *w, task *x)
{
    *x = (task){.item = {.run = run, .done = done}};
    work_put(w, &x->item);
}

TEST(work_gives_back_what_was_not_begun)
{
    work *w = open_work(t, 1);
    task  first, x[4];
    put_waiting(w, &first);
    for (int i = 0; i < 3; i++) put(w, &x[i]);
    CHECK(!work_withdraw(w, &first.item));
    CHECK(work_withdraw(w, &x[2].item) && work_withdraw(w, &x[0].item));
    CHECK(!work_withdraw(w, &x[0].item));
    put(w, &x[3]);
    sem_post(&first.go);
    work_free(w);
    CHECK(first.is_done && x[1].is_done && x[3].is_done && !x[0].is_done && !x[2].is_done);
    CHECK(first.order == 1 && x[1].order == 2 && x[3].order == 3 && !x[0].order && !x[2].order);
}
