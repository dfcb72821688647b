#include "ops_test.h"

/* theta^(-2i / head_dim) for the first n_turning pairs, 0 for the others. */
static float *frequencies(rig *g, int head_dim, double theta, int n_turning)
{
    float *f = arena_new_n(&g->host, float, head_dim / 2);
    for (int i = 0; i < n_turning; i++) f[i] = (float)pow(theta, -2.0 * i / head_dim);
    return f;
}

typedef struct {
    int32_t first_pos;
    int     rows, n_heads, head_dim;
} shape;

static rig_result play_rope(rig *g, const void *arg)
{
    const shape *s    = arg;
    size_t       n    = (size_t)s->rows * (size_t)s->n_heads * (size_t)s->head_dim;
    float       *freq = frequencies(g, s->head_dim, 1e4, s->head_dim / 2), *x = rig_randn(g, n);
    dev          d    = rig_put_f32(g, x, n);
    step_rows    rows = rig_chain(g, 0, s->first_pos, s->rows);
    OP(g, rope, d, &rows, s->n_heads, s->head_dim, rig_put_f32(g, freq, (size_t)s->head_dim / 2));

    rig_result r    = rig_give(g, d, n, 0, 0);
    size_t     half = (size_t)s->head_dim / 2;
    for (size_t i = 0; i < n; i++) {
        size_t pair = i % (size_t)s->head_dim >= half ? i - half : i;
        r.allow[i]  = 5e-7f * hypotf(x[pair], x[pair + half]);
    }
    return r;
}

TEST(rope_agrees_with_ref)
{
    static const shape s[] = {{0, 1, 1, 16},   {1, 3, 1, 8},        {100, 7, 3, 64},    {4090, 33, 2, 256},
                              {7, 2, 16, 512}, {131000, 2, 4, 256}, {262100, 1, 1, 512}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_rope, &s[i]);
}

/* Pair i of (1, 0) turns to (cos, sin) of pos * f_i; the pair is (i, i + half), not (2i, 2i + 1). */
static void turns_pairs(rig *g)
{
    enum { D = 8, ROWS = 3, HEADS = 2 };
    float x[ROWS * HEADS * D] = {0}, *freq = frequencies(g, D, 100, D / 2);
    for (int i = 0; i < ROWS * HEADS * D; i++) x[i] = i % D < D / 2 ? 1 : 0;
    dev       d    = rig_put_f32(g, x, COUNT(x));
    step_rows rows = rig_chain(g, 0, 0, ROWS);
    OP(g, rope, d, &rows, HEADS, D, rig_put_f32(g, freq, D / 2));
    float *y = rig_get_f32(g, d, COUNT(x));
    SAME_F32(g, y, x, HEADS * D); /* position 0 turns nothing */
    for (int i = 0; i < ROWS * HEADS * D; i++) {
        double angle = i / (HEADS * D) * pow(100, -2.0 * (i % (D / 2)) / D);
        NEAR(g, y[i], i % D < D / 2 ? cos(angle) : sin(angle), 1e-6);
    }
}
TEST(rope_turns_pairs_half_a_head_apart) { rig_each(t, turns_pairs); }

static void keeps_lengths(rig *g)
{
    enum { D = 256, ROWS = 5 };
    float    *x = rig_randn(g, ROWS * D), *freq = frequencies(g, D, 1e4, D / 2);
    dev       d    = rig_put_f32(g, x, ROWS * D);
    step_rows rows = rig_chain(g, 0, 1000, ROWS);
    OP(g, rope, d, &rows, 1, D, rig_put_f32(g, freq, D / 2));
    float *y = rig_get_f32(g, d, ROWS * D);
    for (int i = 0; i < ROWS * D; i += D) {
        double before = 0, after = 0;
        for (int j = 0; j < D; j++) before += (double)x[i + j] * x[i + j], after += (double)y[i + j] * y[i + j];
        NEAR(g, after / before, 1, 1e-5);
    }
}
TEST(rope_keeps_lengths) { rig_each(t, keeps_lengths); }

/* q.k after turning depends on the distance of the two positions alone. */
static void relative(rig *g)
{
    enum { D = 64 };
    static const int32_t at[] = {0, 7, 400};

    float *q = rig_randn(g, D), *k = rig_randn(g, D);
    dev    freq = rig_put_f32(g, frequencies(g, D, 1e4, D / 2), D / 2);
    double dot[COUNT(at)];
    for (size_t i = 0; i < COUNT(at); i++) {
        step_rows qr = rig_chain(g, 0, at[i] + 5, 1), kr = rig_chain(g, 0, at[i], 1);
        dev       a = rig_put_f32(g, q, D), b = rig_put_f32(g, k, D);
        OP(g, rope, a, &qr, 1, D, freq);
        OP(g, rope, b, &kr, 1, D, freq);
        float *x = rig_get_f32(g, a, D), *y = rig_get_f32(g, b, D);
        dot[i] = 0;
        for (int j = 0; j < D; j++) dot[i] += (double)x[j] * y[j];
        NEAR(g, dot[i], dot[0], 2e-3);
    }
}
TEST(rope_scores_depend_on_distance) { rig_each(t, relative); }

/* Full layers of Gemma 4: a quarter of the pairs turn, at frequencies cut from the whole head. */
static void proportional(rig *g)
{
    enum { D = 512, POS = 777 };
    float *freq = frequencies(g, D, 1e6, D / 8), *x = rig_randn(g, D);
    NEAR(g, freq[0], 1, 0);
    NEAR(g, freq[63], 0.0333762, 1e-7);
    NEAR(g, freq[64], 0, 0);

    dev       d    = rig_put_f32(g, x, D);
    step_rows rows = rig_chain(g, 0, POS, 1);
    OP(g, rope, d, &rows, 1, D, rig_put_f32(g, freq, D / 2));
    float *y = rig_get_f32(g, d, D);
    SAME_F32(g, y + 64, x + 64, 192);
    SAME_F32(g, y + 320, x + 320, 192);
    double angle = fmod(POS * 0.033376247, 2 * 3.141592653589793);
    NEAR(g, y[63], x[63] * cos(angle) - x[319] * sin(angle), 1e-4);
    NEAR(g, y[319], x[319] * cos(angle) + x[63] * sin(angle), 1e-4);
}
TEST(rope_proportional_turns_a_quarter_of_the_pairs) { rig_each(t, proportional); }

static void rows_alone(rig *g)
{
    enum { ROWS = 7, HEADS = 3, D = 72, ONE = HEADS * D };
    float *x = rig_randn(g, ROWS * ONE), *f = frequencies(g, D, 1e4, D / 2);
    dev    together = rig_put_f32(g, x, ROWS * ONE), alone = rig_put_f32(g, x, ROWS * ONE),
        freq       = rig_put_f32(g, f, D / 2);
    step_rows rows = rig_chain(g, 0, 1234, ROWS);
    OP(g, rope, together, &rows, HEADS, D, freq);
    for (int r = 0; r < ROWS; r++) {
        step_rows one = rig_chain(g, 0, 1234 + r, 1);
        OP(g, rope, dev_at_f32(alone, (size_t)r * ONE), &one, HEADS, D, freq);
    }
    SAME_F32(g, rig_get_f32(g, alone, ROWS * ONE), rig_get_f32(g, together, ROWS * ONE), ROWS * ONE);
}
TEST(rope_rows_are_their_own) { rig_each(t, rows_alone); }
