#include "ops_test.h"

typedef struct {
    int  rows, n_experts, n_slots;
    bool scaled;
} shape;

/* ids and weights in one result; ids must match exactly */
static rig_result play_router(rig *g, const void *arg)
{
    const shape *s  = arg;
    size_t       n  = (size_t)s->rows * (size_t)s->n_slots;
    dev          id = rig_new(g, n * sizeof(int32_t)), w = rig_new(g, n * sizeof(float)), scale = {0};
    dev          z = rig_put_randn(g, (size_t)s->rows * (size_t)s->n_experts);
    if (s->scaled) scale = rig_put_randn(g, (size_t)s->n_experts);
    OP(g, router, id, w, z, scale, s->rows, s->n_experts, s->n_slots);
    int32_t   *ids = rig_get_i32(g, id, n);
    float     *ws  = rig_get_f32(g, w, n);
    rig_result r = {.n = 2 * n, .y = arena_new_n(&g->host, float, 2 * n), .allow = arena_new_n(&g->host, float, 2 * n)};
    for (size_t i = 0; i < n; i++) {
        r.y[i]         = (float)ids[i];
        r.y[n + i]     = ws[i];
        r.allow[n + i] = 1e-5f * fabsf(ws[i]) + 1e-9f;
    }
    return r;
}

TEST(router_agrees_with_ref)
{
    static const shape s[] = {
        {1, 1, 1, false}, {2, 3, 3, true}, {3, 8, 2, true}, {7, 64, 6, false}, {33, 128, 8, true}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_router, &s[i]);
}

/* softmax(log p) = p, here with p = 0.1 0.4 0.2 0.3: the best two have 0.4 / 0.7 and 0.3 / 0.7 */
static void by_hand(rig *g)
{
    static const float p[] = {0.1f, 0.4f, 0.2f, 0.3f}, scale[] = {1, 2, 3, 10};

    float z[4];
    for (int i = 0; i < 4; i++) z[i] = 50 + logf(p[i]);
    dev id = rig_new(g, 8), w = rig_new(g, 8), logits = rig_put_f32(g, z, 4);
    OP(g, router, id, w, logits, (dev){0}, 1, 4, 2);
    SAME(g, rig_get_i32(g, id, 2)[0], 1);
    SAME(g, rig_get_i32(g, id, 2)[1], 3);
    NEAR(g, rig_get_f32(g, w, 2)[0], 4.0 / 7, 1e-5);
    NEAR(g, rig_get_f32(g, w, 2)[1], 3.0 / 7, 1e-5);
    OP(g, router, id, w, logits, rig_put_f32(g, scale, 4), 1, 4, 2);
    NEAR(g, rig_get_f32(g, w, 2)[0], 2 * 4.0 / 7, 1e-5);
    NEAR(g, rig_get_f32(g, w, 2)[1], 10 * 3.0 / 7, 1e-4);
}
TEST(router_by_hand) { rig_each(t, by_hand); }

static void ties(rig *g)
{
    static const float   z[]    = {1, 2, 1, 2, 1, 2, 0, 0, 0, 0, 0, 0, -300, -200, -300, 300, -250, -250};
    static const int32_t want[] = {1, 3, 5, 0, 0, 1, 2, 3, 3, 1, 4, 5};

    dev id = rig_new(g, sizeof want), w = rig_new(g, sizeof want);
    OP(g, router, id, w, rig_put_f32(g, z, 18), (dev){0}, 3, 6, 4);
    int32_t *got = rig_get_i32(g, id, 12);
    for (int i = 0; i < 12; i++) SAME(g, got[i], want[i]);
    NEAR(g, rig_get_f32(g, w, 12)[4], 0.25, 1e-6);
    NEAR(g, rig_get_f32(g, w, 12)[8], 1, 1e-6);
}
TEST(router_ties_go_to_the_lower_id) { rig_each(t, ties); }

/* A broken row must still name experts that exist, each once. */
static void nan_row(rig *g)
{
    const float z[] = {NAN, 1, NAN, 2, NAN, NAN};
    dev         id = rig_new(g, 16), w = rig_new(g, 16);
    OP(g, router, id, w, rig_put_f32(g, z, 6), (dev){0}, 1, 6, 4);
    int32_t   *got = rig_get_i32(g, id, 4);
    test_case *t   = g->t;
    for (int i = 0; i < 4; i++) {
        CHECK(got[i] >= 0 && got[i] < 6);
        for (int j = 0; j < i; j++) CHECK(got[i] != got[j]);
    }
}
TEST(router_names_real_experts_for_nan) { rig_each(t, nan_row); }

/* --- the sum ---------------------------------------------------------------------------------------- */
static rig_result play_sum(rig *g, const void *arg)
{
    const int *s = arg; /* rows, slots, n */
    size_t     n = (size_t)s[0] * (size_t)s[2], slots = (size_t)s[1];
    dev y = rig_new(g, n * sizeof(float)), x = rig_put_randn(g, n * slots), w = rig_put_randn(g, (size_t)s[0] * slots);
    OP(g, experts_sum, y, x, w, s[0], s[1], s[2]);
    return rig_give(g, y, n, 1e-5, 1e-5);
}

TEST(experts_sum_agrees_with_ref)
{
    static const int s[][3] = {{1, 1, 8}, {2, 2, 100}, {3, 8, 257}, {33, 8, 64}, {1, 8, 5120}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_sum, s[i]);
}

static void sum_by_hand(rig *g)
{
    static const float x[] = {1, 2, 10, 20, 3, 4, 30, 40}, w[] = {2, 0.5f, -1, 1}, want[] = {7, 14, 27, 36};

    dev y = rig_new(g, sizeof want);
    OP(g, experts_sum, y, rig_put_f32(g, x, 8), rig_put_f32(g, w, 4), 2, 2, 2);
    SAME_F32(g, rig_get_f32(g, y, 4), want, 4);
}
TEST(experts_sum_by_hand) { rig_each(t, sum_by_hand); }

/* Promise 1, for the choice and for the sum. */
static void rows_alone(rig *g)
{
    enum { ROWS = 7, EXPERTS = 100, SLOTS = 8, N = 67 };
    dev z = rig_put_randn(g, ROWS * EXPERTS), x = rig_put_randn(g, ROWS * SLOTS * N);
    dev id = rig_new(g, ROWS * SLOTS * sizeof(int32_t)), w = rig_new(g, ROWS * SLOTS * sizeof(float));
    dev y = rig_new(g, ROWS * N * sizeof(float));
    OP(g, router, id, w, z, (dev){0}, ROWS, EXPERTS, SLOTS);
    OP(g, experts_sum, y, x, w, ROWS, SLOTS, N);
    float *weights = rig_get_f32(g, w, ROWS * SLOTS), *sums = rig_get_f32(g, y, ROWS * N);
    for (size_t r = 0; r < ROWS; r++) {
        dev wr = dev_at_f32(w, r * SLOTS);
        OP(g, router, dev_at_f32(id, r * SLOTS), wr, dev_at_f32(z, r * EXPERTS), (dev){0}, 1, EXPERTS, SLOTS);
        OP(g, experts_sum, dev_at_f32(y, r * N), dev_at_f32(x, r * SLOTS * N), wr, 1, SLOTS, N);
    }
    SAME_F32(g, rig_get_f32(g, w, ROWS * SLOTS), weights, ROWS * SLOTS);
    SAME_F32(g, rig_get_f32(g, y, ROWS * N), sums, ROWS * N);
}
TEST(router_rows_are_their_own) { rig_each(t, rows_alone); }
