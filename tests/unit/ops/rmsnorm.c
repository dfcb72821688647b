#include "ops_test.h"

typedef struct {
    int  rows, n;
    bool weighted;
} shape;

static const shape shapes[] = {{1, 1, true},   {1, 8, true},     {2, 64, false},  {3, 100, true},
                               {7, 257, true}, {33, 256, false}, {1, 5120, true}, {33, 2816, true}};

static rig_result play_rms_norm(rig *g, const void *arg)
{
    const shape *s = arg;
    size_t       n = (size_t)s->rows * (size_t)s->n;
    dev          x = rig_put_randn(g, n), y = rig_new(g, n * sizeof(float)), w = {0};
    if (s->weighted) w = rig_put_randn(g, (size_t)s->n);
    OP(g, rms_norm, y, x, w, s->rows, s->n, 1e-6f);
    return rig_give(g, y, n, 1e-5, 0);
}

static rig_result play_rms_norm_add(rig *g, const void *arg)
{
    const shape *s = arg;
    size_t       n = (size_t)s->rows * (size_t)s->n;
    dev          x = rig_put_randn(g, n), res = rig_put_randn(g, n), w = {0};
    if (s->weighted) w = rig_put_randn(g, (size_t)s->n);
    OP(g, rms_norm_add, res, res, x, w, s->rows, s->n, 1e-6f, 0.053f);
    return rig_give(g, res, n, 1e-5, 1e-6);
}

TEST(rms_norm_agrees_with_ref)
{
    for (size_t i = 0; i < COUNT(shapes); i++) rig_compare(t, play_rms_norm, &shapes[i]);
}

TEST(rms_norm_add_agrees_with_ref)
{
    for (size_t i = 0; i < COUNT(shapes); i++) rig_compare(t, play_rms_norm_add, &shapes[i]);
}

/* A constant row c becomes c / sqrt(c^2 + eps); eps matters when c is small. */
static void constant_rows(rig *g)
{
    enum { N = 100 };
    static const float c[] = {3, -0.5f, 1e-3f, 0};

    float x[4 * N], w[N];
    for (int i = 0; i < 4 * N; i++) x[i] = c[i / N];
    for (int i = 0; i < N; i++) w[i] = (float)(i + 1);
    dev d = rig_put_f32(g, x, 4 * N);
    OP(g, rms_norm, d, d, rig_put_f32(g, w, N), 4, N, 1e-6f);
    float *y = rig_get_f32(g, d, 4 * N);
    for (int i = 0; i < 4 * N; i++) {
        double r = c[i / N];
        NEAR(g, y[i], r / sqrt(r * r + 1e-6) * (i % N + 1), 1e-4);
    }
}
TEST(rms_norm_of_constant_rows) { rig_each(t, constant_rows); }

/* mean(x^2) = 12.5 for (3, 4): 3 / 3.5355339 = 0.84852814 */
static void add_by_hand(rig *g)
{
    static const float x[] = {3, 4}, res[] = {1, -1}, w[] = {2, 10};

    dev y = rig_new(g, sizeof x);
    OP(g, rms_norm_add, y, rig_put_f32(g, res, 2), rig_put_f32(g, x, 2), rig_put_f32(g, w, 2), 1, 2, 0, 0.5f);
    float *got = rig_get_f32(g, y, 2);
    NEAR(g, got[0], (1 + 2 * 0.84852814) * 0.5, 1e-6);
    NEAR(g, got[1], (-1 + 10 * 1.13137085) * 0.5, 1e-6);
}
TEST(rms_norm_add_by_hand) { rig_each(t, add_by_hand); }

static void rows_alone(rig *g)
{
    enum { ROWS = 33, N = 257, ALL = ROWS * N };
    dev x = rig_put_randn(g, ALL), w = rig_put_randn(g, N), res = rig_put_randn(g, ALL);
    dev y = rig_new(g, ALL * sizeof(float)), z = rig_new(g, ALL * sizeof(float));
    OP(g, rms_norm, y, x, w, ROWS, N, 1e-6f);
    OP(g, rms_norm_add, z, res, x, w, ROWS, N, 1e-6f, 0.3f);
    float *together = rig_get_f32(g, y, ALL), *added = rig_get_f32(g, z, ALL);
    for (size_t r = 0; r < ROWS; r++) {
        dev xr = dev_at_f32(x, r * N);
        OP(g, rms_norm, dev_at_f32(y, r * N), xr, w, 1, N, 1e-6f);
        OP(g, rms_norm_add, dev_at_f32(z, r * N), dev_at_f32(res, r * N), xr, w, 1, N, 1e-6f, 0.3f);
    }
    SAME_F32(g, rig_get_f32(g, y, ALL), together, ALL);
    SAME_F32(g, rig_get_f32(g, z, ALL), added, ALL);
}
TEST(rms_norm_rows_are_their_own) { rig_each(t, rows_alone); }
