/* Ops of the encoders of pictures. A tail uses the same vectors, so the index of an element changes no bit. */
#include "ops/cpu/kernels.h"
#include "ops/cpu/vec.h"

/* Returns the sum of (x - minus)^power, power 1 or 2: 32 partial sums by i mod 32, then a fixed tree. */
INLINE float sum_of(const float *x, int n, float minus, int power)
{
    v8f acc[4] = {0};
    for (int i = 0; i < n; i += 32)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            int left = n - i - 8 * j;
            if (left <= 0) break;
            v8f v = v8_load_n(x + i + 8 * j, left) - v8_set1(minus);
            if (left < 8)
                for (int k = left; k < 8; k++) v[k] = 0;
            acc[j] = power == 1 ? acc[j] + v : v8_fma(v, v, acc[j]);
        }
    return v8_sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

void CPU_FN(layer_norm)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_layer_norm_args *a = args;
    (void)thread;
    for (size_t r = from; r < to; r++) {
        const float *x    = a->x + r * (size_t)a->n;
        float       *y    = a->y + r * (size_t)a->n;
        float        mean = sum_of(x, a->n, 0, 1) / (float)a->n;
        v8f          inv  = v8_set1(1 / sqrtf(sum_of(x, a->n, mean, 2) / (float)a->n + a->eps));
        for (int i = 0; i < a->n; i += 8) {
            int left = a->n - i;
            v8f v    = (v8_load_n(x + i, left) - v8_set1(mean)) * inv;
            v8_store_n(y + i, v8_fma(v, v8_load_n(a->w + i, left), v8_load_n(a->b + i, left)), left);
        }
    }
}

/* 0.5 x (1 + tanh u) = x / (1 + e^-2u); u = sqrt(2/pi) (x + 0.044715 x^3) */
INLINE v8f gelu_tanh(v8f x)
{
    v8f u2 = v8_set1(-2 * 0.797884561f) * x * v8_fma(v8_set1(0.044715f), x * x, v8_set1(1));
    return x / (v8_set1(1) + v8_exp(u2));
}

/* 0.5 x (1 + erf(x / sqrt 2)) = 0.5 x erfc(-x / sqrt 2), which loses no digits where erf nears -1 */
static v8f gelu(v8f x)
{
    v8f y;
    for (int i = 0; i < 8; i++) y[i] = 0.5f * x[i] * erfcf(-0.707106781f * x[i]);
    return y;
}

void CPU_FN(bias)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_bias_args *a = args;
    (void)thread;
    for (size_t r = from; r < to; r++)
        for (int i = 0; i < a->n; i += 8) {
            size_t at   = r * (size_t)a->n + (size_t)i;
            int    left = a->n - i;
            v8f    v    = v8_load_n(a->x + at, left) + v8_load_n(a->b + i, left);
            v           = a->act == BIAS_PLAIN ? v : a->act == BIAS_GELU ? gelu(v) : gelu_tanh(v);
            if (a->res) v = v8_load_n(a->res + at, left) + v;
            v8_store_n(a->y + at, v, left);
        }
}

void CPU_FN(clamp)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_clamp_args *a   = args;
    v8f                   low = v8_set1(a->low), high = v8_set1(a->high);
    (void)thread;
    for (size_t i = from; i < to; i += 8) {
        int n = to - i < 8 ? (int)(to - i) : 8;
        v8f v = v8_load_n(a->x + i, n);
        v     = v8_select(v < low, low, v);
        v8_store_n(a->y + i, v8_select(v > high, high, v), n);
    }
}

void CPU_FN(lookup)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_lookup_args *a = args;
    (void)thread;
    for (size_t i = from; i < to; i++) a->y[i] = a->table[a->x[i]];
}

void CPU_FN(pool)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_pool_args *a = args;
    size_t               n = (size_t)a->n;
    (void)thread;
    for (size_t r = from; r < to; r++)
        for (size_t i = 0; i < n; i += 8) {
            const float *x    = a->x + r * (size_t)a->n_each * n + i;
            int          left = n - i < 8 ? (int)(n - i) : 8;
            v8f          sum  = v8_set1(0);
            for (size_t s = 0; s < (size_t)a->n_each; s++) sum = sum + v8_load_n(x + s * n, left);
            sum = sum * v8_set1(a->scale);
            if (a->add) sum = sum + v8_load_n(a->add + i, left);
            if (a->by) sum = sum * v8_load_n(a->by + i, left);
            v8_store_n(a->y + r * n + i, sum, left);
        }
}
