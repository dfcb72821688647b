#include "ops/cpu/kernels.h"
#include "ops/cpu/vec.h"

/* 0.5 x (1 + tanh u) = x / (1 + e^-2u), which loses no digits where tanh nears -1; u = sqrt(2/pi) (x + 0.044715 x^3) */
INLINE v8f gelu_tanh(v8f x)
{
    v8f u2 = v8_set1(-2 * 0.797884561f) * x * v8_fma(v8_set1(0.044715f), x * x, v8_set1(1));
    return x / (v8_set1(1) + v8_exp(u2));
}

static void gelu_span(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 8)
        v8_store_n(y + i, gelu_tanh(v8_load_n(gate + i, n - i)) * v8_load_n(up + i, n - i), n - i);
}

static void silu_span(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 8)
        v8_store_n(y + i, v8_silu(v8_load_n(gate + i, n - i)) * v8_load_n(up + i, n - i), n - i);
}

static void sigmoid_span(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 8)
        v8_store_n(y + i, v8_sigmoid(v8_load_n(gate + i, n - i)) * v8_load_n(up + i, n - i), n - i);
}

typedef void span_fn(float *y, const float *gate, const float *up, int n);

void CPU_FN(gated)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_gated_args *a       = args;
    size_t                n_spans = ((size_t)a->n + GATED_SPAN - 1) / GATED_SPAN;
    static span_fn *const span[]  = {[ACT_GELU_TANH] = gelu_span, [ACT_SILU] = silu_span, [ACT_SIGMOID] = sigmoid_span};
    (void)thread;
    for (size_t item = from; item < to; item++) {
        size_t row = item / n_spans, i = item % n_spans * GATED_SPAN;
        int    n = a->n - (int)i < GATED_SPAN ? a->n - (int)i : GATED_SPAN;
        span[a->act](a->y + row * (size_t)a->n + i, a->gate + row * a->gate_stride + i, a->up + row * a->up_stride + i,
                     n);
    }
}
