/* Ops of drafters that fill in blocks. */
#include "ops_test.h"

typedef struct {
    int n_rows, n, n_taps, group, block; /* block: rows of a block; the last one may be shorter */
} conv_shape;

static rig_result conv_scene(rig *g, const void *arg)
{
    const conv_shape *s     = arg;
    int32_t          *place = arena_new_n(&g->host, int32_t, s->n_rows);
    size_t            n = (size_t)s->n, rows = (size_t)s->n_rows, taps = (size_t)s->n_taps;
    conv_rows         c = {.y            = rig_put_randn(g, rows * n),
                           .x            = rig_put_randn(g, rows * n),
                           .base         = rig_put_randn(g, taps * n),
                           .delta        = rig_put_randn(g, rows * 2 * taps * (n / (size_t)s->group)),
                           .delta_stride = 2 * s->n_taps * (s->n / s->group),
                           .n            = s->n,
                           .n_taps       = s->n_taps,
                           .group        = s->group};
    for (int i = 0; i < s->n_rows; i++) place[i] = i % s->block;
    c.place = rig_put_i32(g, place, rows);
    OP(g, block_conv, &c, s->n_rows);
    return rig_give(g, c.y, rows * n, 1e-5, 1e-5);
}

TEST(block_conv_agrees_with_ref)
{
    static const conv_shape s[] = {{1, 16, 2, 16, 8}, {24, 128, 2, 16, 8}, {17, 60, 3, 5, 4}, {9, 33, 1, 1, 9}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, conv_scene, &s[i]);
}

/* Two blocks of two rows and one of one: no tap crosses the start of a block. */
static void conv_by_hand(rig *g)
{
    static const float   x[] = {1, 2, 10, 20, 100, 200, 5, 6, 7, 8}, base[] = {1, 2, 0.5f, 0.25f};
    static const float   delta[] = {0, 0, 1, 0, 0, 1, 0, -1, 2, 2}; /* one group: tap 0, tap 1 of each row */
    static const int32_t place[] = {0, 1, 0, 1, 0};
    static const float   want[]  = {1, 4, 20.5f, 60.5f, 100, 400, -45, -138, 21, 32};
    conv_rows            c       = {.y            = rig_new(g, sizeof want),
                                    .x            = rig_put_f32(g, x, 10),
                                    .base         = rig_put_f32(g, base, 4),
                                    .delta        = rig_put_f32(g, delta, 10),
                                    .place        = rig_put_i32(g, place, 5),
                                    .delta_stride = 2,
                                    .n            = 2,
                                    .n_taps       = 2,
                                    .group        = 2};
    OP(g, block_conv, &c, 5);
    SAME_F32(g, rig_get_f32(g, c.y, 10), want, 10);
}
TEST(block_conv_by_hand) { rig_each(t, conv_by_hand); }

typedef struct {
    int  n_rows, n_top, n, n_vocab;
    bool has_b;
} pair_shape;

static rig_result pair_scene(rig *g, const void *arg)
{
    const pair_shape *s    = arg;
    size_t            rows = (size_t)s->n_rows, n = (size_t)s->n, n_top = (size_t)s->n_top;
    token_logprob    *top = arena_new_n(&g->host, token_logprob, s->n_rows * s->n_top);
    for (size_t i = 0; i < rows * n_top; i++)
        top[i] = (token_logprob){(int32_t)(i * 7 % (size_t)s->n_vocab), -(float)(i % n_top)};
    pair_rows c = {.y       = rig_put_randn(g, rows * (size_t)s->n_vocab),
                   .top     = rig_put(g, top, rows * n_top * sizeof *top),
                   .a       = rig_put_randn(g, rows * n),
                   .b       = s->has_b ? rig_put_randn(g, rows * n) : (dev){0},
                   .c       = rig_put_randn(g, rows * n_top * n),
                   .n_top   = s->n_top,
                   .n       = s->n,
                   .n_vocab = s->n_vocab,
                   .below   = 3};
    OP(g, pair_logits, &c, s->n_rows);
    return rig_give(g, c.y, rows * (size_t)s->n_vocab, 1e-5, 1e-4);
}

TEST(pair_logits_agree_with_ref)
{
    static const pair_shape s[] = {
        {1, 1, 1, 10, true}, {3, 16, 256, 1000, true}, {5, 64, 33, 500, false}, {2, 8, 16, 512, true}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, pair_scene, &s[i]);
}

static void pairs_by_hand(rig *g)
{
    static const token_logprob top[] = {{3, -1}, {0, -2}, {-1, 0}, /* row 1: none */ {-1, 0}, {-1, 0}, {-1, 0}};
    static const float         a[] = {1, 2, 1, 1}, b[] = {3, 1, 1, 1};
    static const float         x[]        = {1, 0, 0, 4, 9, 9, 1, 1, 1, 1, 1, 1};
    static const float         want[2][5] = {{6, -1, -1, 2, -1}, {6, -INFINITY, -INFINITY, 2, -INFINITY}};
    for (int i = 0; i < 2; i++) {
        pair_rows c = {.y       = rig_new(g, 10 * sizeof(float)),
                       .top     = rig_put(g, top, sizeof top),
                       .a       = rig_put_f32(g, a, 4),
                       .b       = rig_put_f32(g, b, 4),
                       .c       = rig_put_f32(g, x, 12),
                       .n_top   = 3,
                       .n       = 2,
                       .n_vocab = 5,
                       .below   = i ? INFINITY : 3};
        OP(g, pair_logits, &c, 2);
        float *y = rig_get_f32(g, c.y, 10);
        SAME_F32(g, y, want[i], 5);
        for (int k = 5; k < 10; k++) SAME(g, isfinite(y[k]) != 0, 0);
    }
}
TEST(pair_logits_by_hand) { rig_each(t, pairs_by_hand); }
