/* Ops of drafters that fill in blocks. An item of both kernels is a row; their arguments are those of ops.h. */
#include "ops/cpu/kernels.h"
#include "ops/cpu/vec.h"

#include <assert.h>

/* y += (base + delta) * x, for the n channels of one group */
INLINE void add_tap(float *y, const float *base, float delta, const float *x, int n)
{
    for (int i = 0; i < n; i += 8) {
        int some = n - i < 8 ? n - i : 8;
        v8f w    = v8_load_n(base + i, some) + v8_set1(delta);
        v8_store_n(y + i, v8_fma(w, v8_load_n(x + i, some), v8_load_n(y + i, some)), some);
    }
}

void CPU_FN(block_conv)(const void *args, size_t from, size_t to, int thread)
{
    const conv_rows *c = args;
    size_t           n = (size_t)c->n, group = (size_t)c->group;
    const float     *x = c->x.p, *base = c->base.p;
    (void)thread;
    for (size_t r = from; r < to; r++) {
        const float *delta = (const float *)c->delta.p + r * (size_t)c->delta_stride;
        float       *y     = (float *)c->y.p + r * n;
        size_t       place = (size_t)((const int32_t *)c->place.p)[r];
        memset(y, 0, n * sizeof *y);
        for (size_t u = 0; u < (size_t)c->n_taps && u <= place; u++)
            for (size_t k = 0; k < n / group; k++)
                add_tap(y + k * group, base + u * n + k * group, delta[u * (n / group) + k],
                        x + (r - u) * n + k * group, c->group);
    }
}

static float pair_sum(const float *a, const float *b, const float *x, int n)
{
    v8f sum = {0};
    for (int i = 0; i < n; i += 8) {
        int some = n - i < 8 ? n - i : 8;
        v8f ab   = v8_load_n(a + i, some) * (b ? v8_load_n(b + i, some) : v8_set1(1));
        sum      = v8_fma(ab, v8_load_n(x + i, some), sum);
    }
    return v8_sum(sum);
}

void CPU_FN(pair_logits)(const void *args, size_t from, size_t to, int thread)
{
    const pair_rows *c = args;
    size_t           n = (size_t)c->n, n_top = (size_t)c->n_top, n_vocab = (size_t)c->n_vocab;
    (void)thread;
    assert(c->n_top <= SAMPLE_TOP_MAX);
    for (size_t r = from; r < to; r++) {
        const token_logprob *top = (const token_logprob *)c->top.p + r * n_top;
        const float         *a = (const float *)c->a.p + r * n, *b = c->b.p ? (const float *)c->b.p + r * n : NULL;
        const float         *x = (const float *)c->c.p + r * n_top * n;
        float               *y = (float *)c->y.p + r * n_vocab, score[SAMPLE_TOP_MAX], min = INFINITY;
        for (size_t s = 0; s < n_top; s++) {
            if (top[s].id < 0) continue;
            score[s] = top[s].logprob + pair_sum(a, b, x + s * n, c->n);
            min      = score[s] < min ? score[s] : min;
        }
        float floor = min - c->below;
        for (size_t i = 0; i < n_vocab; i++) y[i] = floor;
        for (size_t s = 0; s < n_top; s++)
            if (top[s].id >= 0) y[top[s].id] = score[s];
    }
}
