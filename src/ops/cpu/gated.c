#include "ops/cpu/kernels.h"
#include "ops/cpu/vec.h"

/* 0.5 x (1 + tanh u) = x / (1 + e^-2u), which loses no digits where tanh nears -1; u = sqrt(2/pi) (x + 0.044715 x^3) */
INLINE v8f gelu_tanh(v8f x)
{
    v8f u2 = v8_set1(-2 * 0.797884561f) * x * v8_fma(v8_set1(0.044715f), x * x, v8_set1(1));
    return x / (v8_set1(1) + v8_exp(u2));
}

INLINE v8f silu(v8f x) { return x / (v8_set1(1) + v8_exp(-x)); }

static void gelu_span(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 8)
        v8_store_n(y + i, gelu_tanh(v8_load_n(gate + i, n - i)) * v8_load_n(up + i, n - i), n - i);
}

static void silu_span(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 8)
        v8_store_n(y + i, silu(v8_load_n(gate + i, n - i)) * v8_load_n(up + i, n - i), n - i);
}

void CPU_FN(gated)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_gated_args *a       = args;
    size_t                n_spans = ((size_t)a->n + GATED_SPAN - 1) / GATED_SPAN;
    (void)thread;
    for (size_t item = from; item < to; item++) {
        size_t row = item / n_spans, i = item % n_spans * GATED_SPAN;
        int    n = a->n - (int)i < GATED_SPAN ? a->n - (int)i : GATED_SPAN;
        (a->act == ACT_SILU ? silu_span : gelu_span)(a->y + row * (size_t)a->n + i, a->gate + row * a->gate_stride + i,
                                                     a->up + row * a->up_stride + i, n);
    }
}
