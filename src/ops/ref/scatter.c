#include "ops/ref/table.h"

#include <assert.h>
#include <math.h>

typedef struct {
    const int32_t *sel, *map;
    int            n_slots, n, n_vocab;
} layout;

static void scatter_row(float *y, const float *x, const layout *l, int r, float below)
{
    size_t n = (size_t)l->n, n_slots = (size_t)l->n_slots;
    float  min = INFINITY;
    for (size_t j = 0; j < n_slots * n; j++) min = fminf(min, x[j]);
    for (int i = 0; i < l->n_vocab; i++) y[i] = min - below;
    for (size_t j = 0; j < n_slots * n; j++) {
        size_t  slot  = l->sel ? (size_t)l->sel[(size_t)r * n_slots + j / n] : j / n;
        int32_t token = l->map[slot * n + j % n];
        assert(token >= 0 && token < l->n_vocab);
        y[token] = x[j];
    }
}

void ref_scatter_logits(queue *q, dev y, dev x, dev sel, dev map, int n_rows, int n_slots, int n, int n_vocab,
                        float below)
{
    (void)q;
    layout l = {sel.p, map.p, n_slots, n, n_vocab};
    for (int r = 0; r < n_rows; r++)
        scatter_row((float *)y.p + (size_t)r * (size_t)n_vocab,
                    (const float *)x.p + (size_t)r * (size_t)n_slots * (size_t)n, &l, r, below);
}
