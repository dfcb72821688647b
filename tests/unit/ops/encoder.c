#include "ops_test.h"

static const int shapes[][2] = {{1, 8}, {7, 64}, {33, 257}, {64, 1152}, {3, 6912}}; /* rows, n */

static rig_result play_layer_norm(rig *g, const void *arg)
{
    const int *s = arg;
    size_t     n = (size_t)s[1], all = (size_t)s[0] * n;
    float     *x = rig_randn(g, all);
    for (size_t i = 0; i < all; i++) x[i] = 3 * x[i] + 2;
    dev d = rig_put_f32(g, x, all), w = rig_put_randn(g, n), b = rig_put_randn(g, n);
    OP(g, layer_norm, d, d, w, b, s[0], s[1], 1e-5f);
    return rig_give(g, d, all, 1e-5, 1e-5);
}

static rig_result play_bias(rig *g, const void *arg)
{
    const int *s = arg;
    size_t     n = (size_t)s[1], all = (size_t)s[0] * n;
    dev        b = rig_put_randn(g, n), y = rig_new(g, 4 * all * sizeof(float)), res = rig_put_randn(g, all);
    float     *x = rig_randn(g, all);
    for (size_t i = 0; i < all; i++) x[i] *= 4;
    dev d = rig_put_f32(g, x, all);
    for (int act = BIAS_PLAIN; act <= BIAS_GELU; act++)
        OP(g, bias, dev_at_f32(y, (size_t)act * all), (dev){0}, d, b, s[0], s[1], (bias_act)act);
    OP(g, bias, dev_at_f32(y, 3 * all), res, d, b, s[0], s[1], BIAS_GELU);
    return rig_give(g, y, 4 * all, 3e-6, 1e-6);
}

static rig_result play_clamp(rig *g, const void *arg)
{
    const int *s   = arg;
    size_t     all = (size_t)s[0] * (size_t)s[1];
    dev        d   = rig_put_randn(g, all);
    OP(g, clamp, d, d, all, -0.5f, 1.25f);
    return rig_give(g, d, all, 0, 0);
}

static rig_result play_pool(rig *g, const void *arg)
{
    enum { EACH = 9 };
    const int *s = arg;
    size_t     n = (size_t)s[1], all = (size_t)s[0] * n;
    dev        x = rig_put_randn(g, EACH * all), add = rig_put_randn(g, n), by = rig_put_randn(g, n);
    dev        y = rig_new(g, 2 * all * sizeof(float));
    OP(g, pool, y, x, add, by, s[0], EACH, s[1], 0.75f);
    OP(g, pool, dev_at_f32(y, all), x, (dev){0}, (dev){0}, s[0], EACH, s[1], 0.75f);
    return rig_give(g, y, 2 * all, 1e-5, 1e-5);
}

TEST(encoder_ops_agree_with_ref)
{
    for (size_t i = 0; i < COUNT(shapes); i++) {
        rig_compare(t, play_layer_norm, &shapes[i]);
        rig_compare(t, play_bias, &shapes[i]);
        rig_compare(t, play_clamp, &shapes[i]);
        rig_compare(t, play_pool, &shapes[i]);
    }
}

static void by_hand(rig *g)
{
    static const float  x[] = {1, 2, 3, 6}, w[] = {1, 1, 2, 1}, b[] = {0, 10, 0, -1};
    static const double norm[] = {-1.069044968, 9.465477516, 0, 0.603567452}, sum[] = {1, 12, 3, 5};
    static const double tanh_formula[] = {0.841191991, 12, 2.996362608, 4.999999771};
    static const double exact[]        = {0.841344746, 12, 2.995950306, 4.999998567};
    dev                 d = rig_put_f32(g, x, 4), dw = rig_put_f32(g, w, 4), db = rig_put_f32(g, b, 4);
    dev                 y = rig_new(g, sizeof x);
    OP(g, layer_norm, y, d, dw, db, 1, 4, 0);
    float *got = rig_get_f32(g, y, 4);
    for (int i = 0; i < 4; i++) NEAR(g, got[i], norm[i], 2e-6);
    const double *const want[] = {[BIAS_PLAIN] = sum, [BIAS_GELU_TANH] = tanh_formula, [BIAS_GELU] = exact};
    for (int act = BIAS_PLAIN; act <= BIAS_GELU; act++) {
        OP(g, bias, y, (dev){0}, d, db, 1, 4, (bias_act)act);
        got = rig_get_f32(g, y, 4);
        for (int i = 0; i < 4; i++) NEAR(g, got[i], want[act][i], 2e-6);
    }
    OP(g, bias, y, db, d, db, 1, 4, BIAS_PLAIN);
    static const float doubled[] = {1, 22, 3, 4};
    SAME_F32(g, rig_get_f32(g, y, 4), doubled, 4);
    OP(g, clamp, y, d, 4, 1.5f, 3);
    static const float limited[] = {1.5f, 2, 3, 3};
    SAME_F32(g, rig_get_f32(g, y, 4), limited, 4);
    OP(g, pool, y, d, dw, db, 1, 2, 2, 0.5f); /* means of (1, 2) and (3, 6), plus (1, 1), times (0, 10) */
    static const float pooled[] = {0, 50};
    SAME_F32(g, rig_get_f32(g, y, 2), pooled, 2);
}
TEST(encoder_ops_by_hand) { rig_each(t, by_hand); }

/* Rows one by one have the bits of rows together. */
static void rows_alone(rig *g)
{
    enum { ROWS = 9, N = 257, ALL = ROWS * N };
    float *x        = rig_randn(g, ALL);
    dev    together = rig_put_f32(g, x, ALL), alone = rig_put_f32(g, x, ALL);
    dev    w = rig_put_randn(g, N), b = rig_put_randn(g, N);
    OP(g, layer_norm, together, together, w, b, ROWS, N, 1e-6f);
    OP(g, bias, together, (dev){0}, together, b, ROWS, N, BIAS_GELU);
    OP(g, clamp, together, together, ALL, -0.1f, 2);
    for (size_t r = 0; r < ROWS; r++) {
        dev one = dev_at_f32(alone, r * N);
        OP(g, layer_norm, one, one, w, b, 1, N, 1e-6f);
        OP(g, bias, one, (dev){0}, one, b, 1, N, BIAS_GELU);
        OP(g, clamp, one, one, N, -0.1f, 2);
    }
    SAME_F32(g, rig_get_f32(g, alone, ALL), rig_get_f32(g, together, ALL), ALL);
}
TEST(encoder_ops_do_not_depend_on_other_rows) { rig_each(t, rows_alone); }

static void all_bytes(rig *g)
{
    enum { N = 256 + 41 };
    uint8_t x[N];
    float   want[N], *table = rig_randn(g, 256);
    for (int i = 0; i < N; i++) x[i] = (uint8_t)(i * 7), want[i] = table[x[i]];
    dev y = rig_new(g, sizeof want);
    OP(g, lookup, y, rig_put(g, x, sizeof x), rig_put_f32(g, table, 256), N);
    SAME_F32(g, rig_get_f32(g, y, N), want, N);
}
TEST(encoder_ops_look_up_bytes) { rig_each(t, all_bytes); }

/* What these ops leave for the matrix that follows is what it makes of the same numbers. */
static void rows_for_a_matrix(rig *g)
{
    enum { ROWS = 5, N = 200, OUT = 24 };
    const weight *m = rig_weight(g, QUANT_F16, N, OUT, 1, rig_rand_blocks(g, QUANT_F16, N * OUT));
    dev           x = rig_put_randn(g, ROWS * N), w = rig_put_randn(g, N), b = rig_put_randn(g, N);
    dev           y = rig_new(g, ROWS * N * sizeof(float)), z = rig_new(g, 2 * ROWS * OUT * sizeof(float));
    for (int turn = 0; turn < 2; turn++) {
        if (turn)
            OP(g, bias, y, x, x, b, ROWS, N, BIAS_GELU_TANH);
        else
            OP(g, layer_norm, y, x, w, b, ROWS, N, 1e-6f);
        OP(g, matmul, z, m, y, ROWS);
        dev same = rig_put_f32(g, rig_get_f32(g, y, ROWS * N), ROWS * N);
        OP(g, matmul, dev_at_f32(z, ROWS * OUT), m, same, ROWS);
        float *got = rig_get_f32(g, z, 2 * ROWS * OUT);
        SAME_F32(g, got, got + ROWS * OUT, ROWS * OUT);
    }
}
TEST(encoder_ops_leave_their_rows_for_a_matrix) { rig_each(t, rows_for_a_matrix); }
