#include "ops_test.h"

static void buffers(rig *g)
{
    test_case          *t       = g->t;
    static const size_t bytes[] = {0, 1, 255, 256, 257, 100000};
    for (size_t i = 0; i < COUNT(bytes); i++) {
        dev            d = rig_new(g, bytes[i]);
        unsigned char *p = arena_alloc(&g->host, bytes[i]);
        CHECK(d.p && (uintptr_t)d.p % 256 == 0);
        memset(p, 1, bytes[i]);
        g->o->download(g->q, p, d, bytes[i]);
        g->o->sync(g->q);
        for (size_t j = 0; j < bytes[i]; j++)
            if (!CHECK(p[j] == 0)) break;
    }
    err e = {0};
    dev d;
    CHECK_FAILS(g->o->alloc(g->o, &d, SIZE_MAX - 10, &e), e, "memory");
    fault_fail_nth(1);
    CHECK_FAILS(g->o->alloc(g->o, &d, 100, &e), e, "memory");
    fault_fail_nth(0);
    g->o->free(g->o, (dev){0});
    g->o->weight_free(g->o, NULL);
}
TEST(buffers_are_zeroed_and_aligned) { rig_each(t, buffers); }

/* Opens a backend, makes a queue, a buffer and a weight; false when one of them failed, with all the rest undone. */
static bool set_up(const char *backend, err *e)
{
    static const float        data[64] = {1};
    static const weight_src   src      = {QUANT_F32, 8, 4, 2, data};
    static const queue_limits lim      = {4, 64, 2, 2, 100};

    ops    *o  = NULL;
    queue  *q  = NULL;
    weight *w  = NULL;
    dev     d  = {0};
    bool    ok = ops_open(&o, backend, 2, e) && o->queue_new(o, &q, &lim, e) && o->alloc(o, &d, 1000, e) &&
              o->weight_load(o, &w, &src, e);
    if (o) {
        o->weight_free(o, w);
        o->free(o, d);
        o->queue_free(q);
    }
    ops_close(o);
    return ok;
}

TEST(each_failed_allocation_of_a_backend_is_an_answer)
{
    static const char *const names[] = {"ref", "cpu"};
    for (size_t i = 0; i < COUNT(names); i++) {
        err e = {0};
        fault_fail_nth(0);
        CHECK_OK(set_up(names[i], &e), e);
        long n = fault_tries();
        CHECK_MSG(n >= 4 && n < 100, "%s tries %ld allocations", names[i], n);
        for (long nth = 1; nth <= n; nth++) {
            fault_fail_nth(nth);
            CHECK_FAILS(set_up(names[i], &e), e, "memory");
        }
        fault_fail_nth(0);
    }
}

TEST(unknown_backends_are_named)
{
    err  e;
    ops *o = NULL;
    CHECK_FAILS(ops_open(&o, "tpu", 0, &e), e, "tpu");
    CHECK(!o);
    ops_close(NULL);
}
