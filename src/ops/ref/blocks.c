#include "ops/ref/table.h"

#include <assert.h>
#include <math.h>

static void conv_row(const conv_rows *c, size_t r)
{
    size_t         n = (size_t)c->n, group = (size_t)c->group;
    const float   *x = c->x.p, *base = c->base.p, *delta = (const float *)c->delta.p + r * (size_t)c->delta_stride;
    const int32_t *place = c->place.p;
    float         *y     = (float *)c->y.p + r * n;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t u = 0; u < (size_t)c->n_taps && u <= (size_t)place[r]; u++)
            sum += ((double)base[u * n + i] + delta[u * (n / group) + i / group]) * x[(r - u) * n + i];
        y[i] = (float)sum;
    }
}

void ref_block_conv(queue *q, const conv_rows *c, int n_rows)
{
    (void)q;
    for (int r = 0; r < n_rows; r++) conv_row(c, (size_t)r);
}

static float pair_score(const pair_rows *c, size_t r, size_t s)
{
    size_t               n   = (size_t)c->n;
    const token_logprob *top = c->top.p;
    const float         *a = c->a.p, *b = c->b.p, *x = (const float *)c->c.p + (r * (size_t)c->n_top + s) * n;
    double               sum = top[r * (size_t)c->n_top + s].logprob;
    for (size_t i = 0; i < n; i++) sum += (double)a[r * n + i] * (b ? b[r * n + i] : 1) * x[i];
    return (float)sum;
}

static void pair_row(const pair_rows *c, size_t r)
{
    const token_logprob *top = (const token_logprob *)c->top.p + r * (size_t)c->n_top;
    float               *y = (float *)c->y.p + r * (size_t)c->n_vocab, score[SAMPLE_TOP_MAX], min = INFINITY;
    assert(c->n_top <= SAMPLE_TOP_MAX);
    for (int s = 0; s < c->n_top; s++) {
        score[s] = pair_score(c, r, (size_t)s);
        if (top[s].id >= 0) min = fminf(min, score[s]);
    }
    for (int i = 0; i < c->n_vocab; i++) y[i] = min - c->below;
    for (int s = 0; s < c->n_top; s++) {
        assert(top[s].id < c->n_vocab);
        if (top[s].id >= 0) y[top[s].id] = score[s];
    }
}

void ref_pair_logits(queue *q, const pair_rows *c, int n_rows)
{
    (void)q;
    for (int r = 0; r < n_rows; r++) pair_row(c, (size_t)r);
}
