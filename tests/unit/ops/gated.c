#include "ops_test.h"

typedef struct {
    int      rows, n, gate_stride, up_stride;
    act_kind act;
} shape;

static rig_result play_gated(rig *g, const void *arg)
{
    const shape *s = arg;
    size_t       n = (size_t)s->rows * (size_t)s->n, rows = (size_t)s->rows;
    dev gate = rig_put_randn(g, rows * (size_t)s->gate_stride), up = rig_put_randn(g, rows * (size_t)s->up_stride);
    dev y = s->gate_stride == s->n ? gate : rig_new(g, n * sizeof(float));
    OP(g, gated, y, gate, s->gate_stride, up, s->up_stride, s->rows, s->n, s->act);
    return rig_give(g, y, n, 1e-5, 1e-6);
}

TEST(gated_agrees_with_ref)
{
    static const shape s[] = {{1, 8, 8, 8, ACT_GELU_TANH},          {2, 64, 128, 128, ACT_GELU_TANH},
                              {3, 100, 200, 300, ACT_SILU},         {7, 257, 257, 257, ACT_SILU},
                              {33, 704, 1408, 1408, ACT_GELU_TANH}, {1, 5120, 5120, 5121, ACT_SILU}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_gated, &s[i]);
}

static void values(rig *g)
{
    static const float  x[]    = {0, 1, -1, 3, -0.1f, 100, -100};
    static const double gelu[] = {0, 0.841191991, -0.158808009, 2.996362607, -0.0460170, 100, 0};
    static const double silu[] = {0, 0.731058579, -0.268941421, 2.857722380, -0.0475021, 100, 0};
    static const double sigm[] = {0.5, 0.731058579, 0.268941421, 0.952574127, 0.475020813, 1, 0};

    float up[COUNT(x)];
    for (size_t i = 0; i < COUNT(x); i++) up[i] = 2;
    dev y = rig_new(g, sizeof x), gate = rig_put_f32(g, x, COUNT(x)), u = rig_put_f32(g, up, COUNT(x));
    for (act_kind act = ACT_GELU_TANH; act <= ACT_SIGMOID; act++) {
        OP(g, gated, y, gate, COUNT(x), u, COUNT(x), 1, COUNT(x), act);
        float *got = rig_get_f32(g, y, COUNT(x));
        for (size_t i = 0; i < COUNT(x); i++)
            NEAR(g, got[i],
                 2 * (act == ACT_SILU      ? silu
                      : act == ACT_SIGMOID ? sigm
                                           : gelu)[i],
                 2e-6 * (1 + x[i] * x[i]));
    }
}
TEST(gated_values) { rig_each(t, values); }

/* Gate and up as the two halves of one product's rows. */
static void halves(rig *g)
{
    static const float both[] = {1, 2, 10, 20, 3, 4, 30, 40};

    dev x = rig_put_f32(g, both, 8), y = rig_new(g, 4 * sizeof(float));
    OP(g, gated, y, x, 4, dev_at_f32(x, 2), 4, 2, 2, ACT_SILU);
    float *got = rig_get_f32(g, y, 4);
    for (int i = 0; i < 4; i++) NEAR(g, got[i], (i + 1) / (1 + exp(-i - 1)) * 10 * (i + 1), 1e-4);
}
TEST(gated_reads_halves_of_rows) { rig_each(t, halves); }

/* A row of 257 starts at every alignment; a vector's tail must give the same bits as its middle. */
static void rows_alone(rig *g)
{
    enum { ROWS = 9, N = 257 };
    dev gate = rig_put_randn(g, ROWS * N), up = rig_put_randn(g, ROWS * N), y = rig_new(g, ROWS * N * sizeof(float));
    for (act_kind act = ACT_GELU_TANH; act <= ACT_SIGMOID; act++) {
        OP(g, gated, y, gate, N, up, N, ROWS, N, act);
        float *together = rig_get_f32(g, y, ROWS * N);
        for (size_t r = 0; r < ROWS; r++)
            OP(g, gated, dev_at_f32(y, r * N), dev_at_f32(gate, r * N), N, dev_at_f32(up, r * N), N, 1, N, act);
        SAME_F32(g, rig_get_f32(g, y, ROWS * N), together, ROWS * N);
    }
}
TEST(gated_rows_are_their_own) { rig_each(t, rows_alone); }
