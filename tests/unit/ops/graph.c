/* Recorded runs of ops: the same numbers as ops one by one, whatever the buffers hold when they are run again. */
#include "ops_test.h"

enum { N = 100 };

/* y = 2 x, then y = y + x, as one run. Returns whether it was replayed. */
static bool triple(rig *g, dev y, dev x, uint64_t key)
{
    fault_no_alloc_begin("a run");
    bool there = g->o->replay(g->q, key);
    for (bool done = there; !done; done = g->o->record_end(g->q)) {
        g->o->add(g->q, y, x, x, N, 1);
        g->o->add(g->q, y, y, x, N, 1);
    }
    fault_no_alloc_end();
    return there;
}

static void check_triple(rig *g, dev y, dev x, float value, uint64_t key, bool *there)
{
    float host[N];
    for (int i = 0; i < N; i++) host[i] = value + (float)i;
    g->o->upload(g->q, x, host, sizeof host);
    *there     = triple(g, y, x, key);
    float *got = rig_get_f32(g, y, N);
    for (int i = 0; i < N; i++)
        if (!test_check(g->t, got[i] == 3 * host[i], __FILE__, __LINE__, "%s: element %d is %g, expected %g",
                        g->o->name, i, (double)got[i], (double)(3 * host[i])))
            return;
}

static bool records(const rig *g) { return !strcmp(g->o->name, "cuda"); }

static void again_and_again(rig *g)
{
    dev  x = rig_new(g, N * sizeof(float)), y = rig_new(g, N * sizeof(float)), z = rig_new(g, N * sizeof(float));
    bool there;
    for (int k = 0; k < 5; k++) {
        check_triple(g, y, x, (float)k, 1, &there);
        SAME(g, there, records(g) && k >= 2); /* plainly, recorded, replayed */
        check_triple(g, z, x, (float)k, 2, &there);
        SAME(g, there, records(g) && k >= 2);
    }
    SAME(g, g->o->queue_reserve(g->q, &(queue_limits){.max_rows = 1}, NULL), true);
    check_triple(g, z, x, 7, 1, &there); /* another buffer under an old key: it was forgotten */
    SAME(g, there, false);
}
TEST(graph_runs_again_with_new_numbers) { rig_each(t, again_and_again); }

static void more_than_fit(rig *g)
{
    dev  x = rig_new(g, N * sizeof(float)), y = rig_new(g, N * sizeof(float));
    bool there;
    for (int turn = 0; turn < 3; turn++)
        for (uint64_t key = 0; key < 70; key++) check_triple(g, y, x, (float)key, key, &there);
    for (int k = 0; k < 3; k++) check_triple(g, y, x, (float)k, 69, &there);
    SAME(g, there, records(g));
}
TEST(graph_cache_is_bounded) { rig_each(t, more_than_fit); }

static void rows_of_steps(rig *g)
{
    static const int buckets[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
    ops              no = *g->o, yes = *g->o;
    no.padding = NULL;
    if (!yes.padding) yes.padding = (void (*)(queue *, dev))1; /* not called */
    SAME(g, graph_rows(&no, 5, 256), 5);
    SAME(g, graph_rows_after(&no, 0, 256), 0);
    SAME(g, graph_rows(&yes, 1, 256), 1);
    SAME(g, graph_rows(&yes, 5, 256), 6);
    SAME(g, graph_rows(&yes, 5, 5), 5);
    SAME(g, graph_rows(&yes, 33, 40), 40);
    SAME(g, graph_rows(&yes, 64, 256), 64);
    SAME(g, graph_rows(&yes, 65, 256), 65);
    int n = 0, last = 0;
    for (int rows = 0; (rows = graph_rows_after(&yes, rows, 256)) > 0; last = rows) SAME(g, rows, buckets[n++]);
    SAME(g, n, (int)COUNT(buckets));
    SAME(g, last, GRAPH_MAX_ROWS);
    SAME(g, graph_rows_after(&yes, 4, 5), 5);
    SAME(g, graph_rows_after(&yes, 5, 5), 0);
}
TEST(graph_rows_are_buckets) { rig_each(t, rows_of_steps); }

static void counts(rig *g)
{
    dev  x = rig_new(g, N * sizeof(float)), y = rig_new(g, N * sizeof(float));
    bool there;
    if (!g->o->recordings) return;
    for (int k = 0; k < 3; k++) check_triple(g, y, x, 1, 1, &there), check_triple(g, y, x, 1, 2, &there);
    graph_counts c = g->o->recordings(g->q);
    SAME(g, c.n, 2);
    SAME(g, c.recorded, 2);
    SAME(g, g->o->queue_reserve(g->q, &(queue_limits){.max_rows = 1}, NULL), true);
    c = g->o->recordings(g->q);
    SAME(g, c.n == 0 && c.recorded == 2, true);
}
TEST(graph_counts_what_was_recorded) { rig_each(t, counts); }

static void cannot_record(rig *g)
{
    dev  x = rig_new(g, N * sizeof(float)), y = rig_new(g, N * sizeof(float));
    bool there;
    check_triple(g, y, x, 1, 1, &there);
    fault_fail_nth(1);
    check_triple(g, y, x, 2, 1, &there);
    fault_fail_nth(0);
    for (int k = 0; k < 3; k++) {
        check_triple(g, y, x, (float)k, 1, &there);
        SAME(g, there, false);
    }
    err e = {0};
    test_check(g->t, g->o->check(g->q, &e), __FILE__, __LINE__, "%s: %s", g->o->name, e.text);
}
TEST(graph_that_cannot_be_recorded_runs_plainly) { rig_each(t, cannot_record); }

/* Downloads arrive with the sync, however many they are. */
static void many_downloads(rig *g)
{
    enum { COUNT_ = 200, BIG = 100000 };
    int32_t *from = rig_randint(g, BIG, 1 << 30), *to = arena_alloc(&g->host, BIG * sizeof *to);
    dev      d = rig_put_i32(g, from, BIG);
    for (int turn = 0; turn < 2; turn++) {
        memset(to, 0, BIG * sizeof *to);
        for (int i = 0; i < COUNT_; i++) g->o->download(g->q, to + i, dev_at(d, (size_t)i * sizeof *to), sizeof *to);
        g->o->download(g->q, to + COUNT_, dev_at(d, COUNT_ * sizeof *to), (BIG - COUNT_) * sizeof *to);
        g->o->sync(g->q);
        SAME(g, memcmp(to, from, BIG * sizeof *to), 0);
    }
}
TEST(queue_downloads_arrive_with_the_sync) { rig_each(t, many_downloads); }
