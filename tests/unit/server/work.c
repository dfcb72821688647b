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
    *x = (task){.item = {.run = run_waiting, .done = done, .kind = slow ? WORK_SLOW : WORK_QUICK}};
    sem_init(&x->begun, 0, 0);
    sem_init(&x->go, 0, 0);
    work_put(w, &x->item);
    sem_wait(&x->begun);
}

static void put(work *w, task *x, bool slow)
{
    *x = (task){.item = {.run = run, .done = done, .kind = slow ? WORK_SLOW : WORK_QUICK}};
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
        while (n[slow] < MOST && !work_is_full(w, slow ? WORK_SLOW : WORK_QUICK, 0))
            put(w, &many[slow][n[slow]++], slow);
    CHECK(n[0] > n[1] && n[1] > 0 && n[0] < MOST);
    CHECK(work_withdraw(w, &many[1][0].item) && !work_is_full(w, WORK_SLOW, 0) && work_is_full(w, WORK_QUICK, 0));
    work_skip(w);
    CHECK(!work_is_full(w, WORK_QUICK, 0));
    sem_post(&first.go);
    work_free(w);
    CHECK(first.is_done && !first.item.skipped && first.order == 1 && n_run == 1);
    for (int slow = 0; slow < 2; slow++)
        for (int i = slow; i < n[slow]; i++) CHECK(many[slow][i].is_done && many[slow][i].item.skipped);
}

/* --- grammars ---------------------------------------------------------------------------------- */
static void put_grammar(work *w, task *x, uint64_t share)
{
    *x = (task){.item = {.run = run, .done = done, .kind = WORK_GRAMMAR, .share = share}};
    work_put(w, &x->item);
}

static void put_waiting_of(work *w, task *x, work_kind kind, uint64_t share)
{
    *x = (task){.item = {.run = run_waiting, .done = done, .kind = kind, .share = share}};
    sem_init(&x->begun, 0, 0);
    sem_init(&x->go, 0, 0);
    work_put(w, &x->item);
    sem_wait(&x->begun);
}

static void put_waiting_grammar(work *w, task *x, uint64_t share) { put_waiting_of(w, x, WORK_GRAMMAR, share); }

TEST(work_compiles_grammars_beside_the_rest)
{
    work *w = open_work(t, 1);
    task  costly, quick, other;
    put_waiting_grammar(w, &costly, 1);
    put_grammar(w, &other, 1);
    put(w, &quick, false);
    CHECK(ends(w, &quick) && !atomic_load(&other.order));
    CHECK(work_withdraw(w, &other.item) && !work_withdraw(w, &costly.item));
    sem_post(&costly.go);
    CHECK(ends(w, &costly) && !other.order);
    put_waiting(w, &quick, false);
    put_grammar(w, &other, 1);
    CHECK(ends(w, &other));
    sem_post(&quick.go);
    work_free(w);
}

TEST(work_compiles_for_all_shares_in_turns)
{
    work *w = open_work(t, 1);
    task  first, a[5], b[2], c;
    put_waiting_grammar(w, &first, 1);
    for (int i = 0; i < 5; i++) put_grammar(w, &a[i], 1);
    put_grammar(w, &b[0], 2);
    put_grammar(w, &c, 3);
    put_grammar(w, &b[1], 2);
    sem_post(&first.go);
    CHECK(ends(w, &a[4]));
    CHECK_INT(b[0].order, 2); /* after another's: not again the first's */
    CHECK_INT(a[0].order, 3);
    CHECK_INT(c.order, 4);
    CHECK_INT(a[1].order, 5);
    CHECK_INT(b[1].order, 6);
    CHECK_INT(a[4].order, 9);
    work_free(w);
}

TEST(work_one_share_does_not_fill_the_line)
{
    enum { MOST = 200 };
    static task many[MOST];
    work       *w = open_work(t, 1);
    task        first;
    int         n = 0;
    put_waiting_grammar(w, &first, 1);
    while (n < MOST && !work_is_full(w, WORK_GRAMMAR, 1)) put_grammar(w, &many[n++], 1);
    CHECK(n > 8 && n < MOST && !work_is_full(w, WORK_GRAMMAR, 2) && !work_is_full(w, WORK_QUICK, 1));
    while (n < MOST && !work_is_full(w, WORK_GRAMMAR, 2)) put_grammar(w, &many[n++], 2);
    CHECK(n < MOST && work_is_full(w, WORK_GRAMMAR, 3));
    work_skip(w);
    CHECK(!work_is_full(w, WORK_GRAMMAR, 1));
    sem_post(&first.go);
    work_free(w);
    for (int i = 0; i < n; i++) CHECK(many[i].is_done && many[i].item.skipped);
}

TEST(work_knows_a_worker_that_is_stuck)
{
    work *w = open_work(t, 2);
    task  slow, stuck, next;
    CHECK(work_longest_s(w) == 0);
    put_waiting(w, &slow, true);
    CHECK(work_longest_s(w) == 0);
    put_waiting_grammar(w, &stuck, 1);
    put_grammar(w, &next, 1);
    double before = work_longest_s(w), until = clock_s() + 10;
    while (work_longest_s(w) < before + 0.01 && clock_s() < until) sched_yield();
    CHECK(work_longest_s(w) >= before + 0.01);
    CHECK(!work_stop(w, 0)); /* two still run, and are not waited for */
    work_collect(w);
    CHECK(next.is_done && next.item.skipped && !slow.is_done && !stuck.is_done);
    sem_post(&slow.go);
    sem_post(&stuck.go);
    CHECK(work_stop(w, 10) && work_longest_s(w) == 0);
    work_free(w);
    CHECK(slow.is_done && stuck.is_done);
}

/* Two media delay neither quick items nor grammars, and do not count as stuck; a third one waits. */
TEST(work_loads_media_beside_the_rest)
{
    work *w = open_work(t, 1);
    task  a, b, c, quick, grammar;
    put_waiting_of(w, &a, WORK_MEDIA, 1);
    put_waiting_of(w, &b, WORK_MEDIA, 1);
    c = (task){.item = {.run = run, .done = done, .kind = WORK_MEDIA, .share = 1}};
    work_put(w, &c.item);
    put(w, &quick, false);
    put_grammar(w, &grammar, 1);
    CHECK(ends(w, &quick) && ends(w, &grammar) && !atomic_load(&c.order));
    CHECK(work_longest_s(w) == 0);
    sem_post(&a.go);
    CHECK(ends(w, &a) && ends(w, &c) && !b.is_done);
    sem_post(&b.go);
    work_free(w);
    CHECK(b.is_done);
}
