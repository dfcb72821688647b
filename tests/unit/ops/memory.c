#include "ops/sampling.h"
#include "ops_test.h"

#include "backends.h"

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
    static const weight_src   src      = {QUANT_F32, 8, 4, 2, .data = data};
    static const queue_limits lim      = {4, 64, 2, 2, 100, 0, 0, 0};

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
    test_backend b[TEST_BACKENDS_MAX];
    for (int i = 0, n_backends = test_backends(b); i < n_backends; i++) {
        err e = {0};
        fault_fail_nth(0);
        CHECK_OK(set_up(b[i].name, &e), e);
        long n = fault_tries();
        CHECK_MSG(n >= 4 && n < 100, "%s tries %ld allocations", b[i].name, n);
        for (long nth = 1; nth <= n; nth++) {
            fault_fail_nth(nth);
            CHECK_FAILS(set_up(b[i].name, &e), e, "memory");
        }
        fault_fail_nth(0);
    }
}

/* --- queues that grow --------------------------------------------------------------------------------*/
enum { SMALL_VOCAB = 20, LARGE_VOCAB = 3000 };
static const queue_limits small = {2, 64, 1, 2, SMALL_VOCAB, 0, 0, 0};

/* A step of what the limits promise: the widest matmul of all rows and slots, and a pick with every candidate kept. */
static void use(rig *g, const queue_limits *l)
{
    enum { OUT = 8 };
    size_t        rows = (size_t)l->max_rows, pairs = rows * (size_t)l->max_expert_slots, in = (size_t)l->max_in;
    void         *blocks = rig_rand_blocks(g, QUANT_Q8_0, in * OUT * (size_t)l->n_experts);
    const weight *w      = rig_weight(g, QUANT_Q8_0, l->max_in, OUT, l->n_experts, blocks);
    float        *z      = rig_randn(g, (size_t)l->max_vocab);
    sample_params p      = {.temp = 1, .top_p = 1, .seed = 3};
    dev           id     = rig_put_i32(g, rig_randint(g, pairs, l->n_experts), pairs);
    dev           y = rig_new(g, pairs * OUT * sizeof(float)), x = rig_put_randn(g, pairs * in);
    dev           logits = rig_put_f32(g, z, (size_t)l->max_vocab), params = rig_put(g, &p, sizeof p);
    OP(g, matmul_experts, y, w, x, true, id, l->max_rows, l->max_expert_slots);
    OP(g, sample, id, logits, params, 1, l->max_vocab);
    sampling_candidate *c = arena_new_n(&g->host, sampling_candidate, l->max_vocab);
    SAME(g, rig_get_i32(g, id, 1)[0], sampling_pick(z, l->max_vocab, &p, c));
}

static void reserved(rig *g)
{
    static const queue_limits more[] = {{1, 32, 1, 1, 1, 0, 0, 0},
                                        {9, 64, 1, 2, 10, 0, 0, 0},
                                        {3, 512, 1, 2, 20, 0, 0, 0},
                                        {1, 32, 4, 40, 5, 0, 0, 0},
                                        {1, 32, 0, 0, LARGE_VOCAB, 0, 0, 0}};

    test_case   *t    = g->t;
    queue_limits all  = small;
    queue       *ours = g->q;
    err          e    = {0};
    if (!CHECK_OK(g->o->queue_new(g->o, &g->q, &small, &e), e)) return;
    use(g, &small);
    for (size_t i = 0; i < COUNT(more); i++) {
        CHECK_OK(g->o->queue_reserve(g->q, &more[i], &e), e);
        all = queue_limits_max(&all, &more[i]);
        use(g, &all);
    }
    CHECK_INT(all.max_rows, 9);
    CHECK_INT(all.max_in, 512);
    CHECK_INT(all.max_expert_slots, 4);
    CHECK_INT(all.n_experts, 40);
    CHECK_INT(all.max_vocab, LARGE_VOCAB);
    g->o->queue_free(g->q);
    g->q = ours;
}
TEST(queue_holds_the_larger_of_its_limits) { rig_each(t, reserved); }

/* Each allocation of a reserve fails in turn, and the queue goes on with what it had; then it grows after all. */
static void not_reserved(rig *g)
{
    static const queue_limits large = {16, 1024, 4, 32, LARGE_VOCAB, 0, 0, 0};

    test_case *t    = g->t;
    queue     *ours = g->q;
    err        e    = {0};
    if (!CHECK_OK(g->o->queue_new(g->o, &g->q, &small, &e), e)) return;
    bool done = false;
    long nth  = 1;
    for (; !done && nth < 100; nth++) {
        fault_fail_nth(nth);
        done = g->o->queue_reserve(g->q, &large, &e);
        fault_fail_nth(0);
        if (!done) CHECK_MSG(strstr(e.text, "memory"), "%s", e.text);
        use(g, done ? &large : &small);
    }
    CHECK(done && nth > 2);
    g->o->queue_free(g->q);
    g->q = ours;
}
TEST(queue_that_cannot_grow_stays_as_it_was) { rig_each(t, not_reserved); }

TEST(unknown_backends_are_named)
{
    err  e;
    ops *o = NULL;
    CHECK_FAILS(ops_open(&o, "tpu", 0, &e), e, "tpu");
    CHECK_FAILS(ops_open(&o, "cpu:sse9", 0, &e), e, "unknown CPU kernels 'sse9': use base, avx2 or vnni");
    CHECK_FAILS(ops_open(&o, "cpu:", 0, &e), e, "use base, avx2 or vnni");
    CHECK_FAILS(ops_open(&o, "cuda:one", 0, &e), e, "cuda:one");
    CHECK_FAILS(ops_open(&o, "cuda:99999999999", 0, &e), e, ""); /* why depends on the machine */
    CHECK(e.text[0]);
    CHECK(!o);
    ops_close(NULL);
}

TEST(devices_are_listed_with_their_memory)
{
    ops_device d[TEST_BACKENDS_MAX], found;
    err        e = {0};
    int        n = ops_devices(d, TEST_BACKENDS_MAX);
    CHECK(n >= 1 && !strcmp(d[n - 1].name, "cpu"));
    for (int i = 0; i < n; i++) {
        CHECK(d[i].what[0] && d[i].free_bytes > 0 && d[i].total_bytes >= d[i].free_bytes);
        CHECK_OK(ops_device_find(&found, d[i].name, &e), e);
        CHECK(!strcmp(found.name, d[i].name));
    }
    CHECK_OK(ops_device_find(&found, "auto", &e), e);
    CHECK(!strcmp(found.name, d[0].name)); /* the GPU when there is one */
    CHECK_FAILS(ops_device_find(&found, "tpu", &e), e, "tpu");
    CHECK_FAILS(ops_device_find(&found, "cpu:sse9", &e), e, "sse9");
    CHECK_OK(ops_device_find(&found, "cpu:base", &e), e);
    CHECK(!strcmp(found.name, "cpu:base") && strstr(found.what, "processor with base"));
}
