/* Expands the logits of some tokens to all tokens: writes the floor first, then the known logits. */
#include "ops/cpu/kernels.h"

#include <assert.h>
#include <math.h>

void CPU_FN(scatter_logits)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_scatter_args *a       = args;
    size_t                  n_slots = (size_t)a->n_slots, n = (size_t)a->n, n_vocab = (size_t)a->n_vocab;
    (void)thread;
    for (size_t r = from; r < to; r++) {
        const float *x   = a->x + r * n_slots * n;
        float       *y   = a->y + r * n_vocab;
        float        min = INFINITY;
        for (size_t j = 0; j < n_slots * n; j++) min = x[j] < min ? x[j] : min;
        float floor = min - a->below;
        for (size_t i = 0; i < n_vocab; i++) y[i] = floor;
        for (size_t s = 0; s < n_slots; s++, x += n) {
            const int32_t *token = a->map + (a->sel ? (size_t)a->sel[r * n_slots + s] : s) * n;
            for (size_t i = 0; i < n; i++) {
                assert(token[i] >= 0 && token[i] < a->n_vocab);
                y[token[i]] = x[i];
            }
        }
    }
}
