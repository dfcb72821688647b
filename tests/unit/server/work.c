#include "server/work.h"

#include "base/clock.h"
#include "test.h"

#include <sched.h>
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
static void put_waiting(work *w, task *x, bool slow)
{
    *x = (task){.item = {.run = run_waiting, .done = done, .slow = slow}};
    sem_init(&x->begun, 0, 0);
    sem_init(&x->go, 0, 0);
    work_put(w, &x->item);
    sem_wait(&x->begun);
}

static void put(work *w, task *x, bool slow)
{
    *x = (task){.item = {.run = run, .done = done, .slow = slow}};
    work_put(w, &x->item);
}

static bool ends(work *w, const task *x)
{
    for (double until = clock_s() + 10; !x->is_done && clock_s() < until; sched_yield()) work_collect(w);
    return x->is_done;
}

TEST(work_gives_back_what_was_not_begun)
{
    work *w = open_work(t, 1);
    task  first, x[4];
    put_waiting(w, &first, false);
    for (int i = 0; i < 3; i++) put(w, &x[i], i == 1);
    CHECK(!work_withdraw(w, &first.item));
    CHECK(work_withdraw(w, &x[2].item) && work_withdraw(w, &x[0].item));
    CHECK(!work_withdraw(w, &x[0].item));
    put(w, &x[3], true);
    sem_post(&first.go);
    CHECK(ends(w, &x[3]));
    work_free(w);
    CHECK(first.is_done && x[1].is_done && x[3].is_done && !x[0].is_done && !x[2].is_done);
    CHECK(first.order == 1 && x[1].order == 2 && x[3].order == 3 && !x[0].order && !x[2].order);
}

TEST(work_does_what_is_quick_first)
{
    work *w = open_work(t, 1);
    task  first, slow, quick;
    put_waiting(w, &first, false);
    put(w, &slow, true);
    put(w, &quick, false);
    sem_post(&first.go);
    CHECK(ends(w, &slow));
    CHECK(quick.order == 2 && slow.order == 3);
    work_free(w);
}

/* A slow one has one of two workers, and the next one comes when it has ended. */
TEST(work_keeps_a_worker_for_what_is_quick)
{
    work *w = open_work(t, 2);
    task  slow, next, quick;
    put_waiting(w, &slow, true);
    put(w, &next, true);
    for (int i = 0; i < 20; i++) {
        put(w, &quick, false);
        CHECK(ends(w, &quick));
    }
    CHECK(!atomic_load(&next.order));
    sem_post(&slow.go);
    CHECK(ends(w, &next) && slow.order == 21 && next.order == 22);
    work_free(w);
}

TEST(work_is_full_and_skips_what_was_not_begun)
{
    enum { MOST = 1000 };
    static task many[2][MOST];
    work       *w = open_work(t, 1);
    task        first;
    int         n[2] = {0};
    put_waiting(w, &first, false);
    for (int slow = 0; slow < 2; slow++)
        while (n[slow] < MOST && !work_is_full(w, slow)) put(w, &many[slow][n[slow]++], slow);
    CHECK(n[0] > n[1] && n[1] > 0 && n[0] < MOST);
    CHECK(work_withdraw(w, &many[1][0].item) && !work_is_full(w, true) && work_is_full(w, false));
    work_skip(w);
    CHECK(!work_is_full(w, false));
    sem_post(&first.go);
    work_free(w);
    CHECK(first.is_done && !first.item.skipped && first.order == 1 && n_run == 1);
    for (int slow = 0; slow < 2; slow++)
        for (int i = slow; i < n[slow]; i++) CHECK(many[slow][i].is_done && many[slow][i].item.skipped);
}
