#include "ops/cpu/kernels.h"
#include "ops/cpu/vec.h"

/* Returns the sum of squares: 32 partial sums by i mod 32, then a fixed tree. */
static float sum_of_squares(const float *x, int n)
{
    v8f acc[4] = {0};
    for (int i = 0; i < n; i += 32)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            if (i + 8 * j >= n) break;
            v8f v  = v8_load_n(x + i + 8 * j, n - i - 8 * j);
            acc[j] = v8_fma(v, v, acc[j]);
        }
    return v8_sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

void CPU_FN(rms_norm)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_norm_args *a = args;
    (void)thread;
    for (size_t r = from; r < to; r++) {
        const float *x = a->x + r * (size_t)a->n, *res = a->res ? a->res + r * (size_t)a->n : NULL;
        float       *y   = a->y + r * (size_t)a->n;
        v8f          inv = v8_set1(1 / sqrtf(sum_of_squares(x, a->n) / (float)a->n + a->eps));
        for (int i = 0; i < a->n; i += 8) {
            int left = a->n - i;
            v8f v    = v8_load_n(x + i, left) * inv;
            if (a->w) v = v * v8_load_n(a->w + i, left);
            if (res) v = (v8_load_n(res + i, left) + v) * v8_set1(a->scale);
            v8_store_n(y + i, v, left);
        }
    }
}
