/* Sums, caps and copies. A tail uses the same vectors, so the index of an element changes no bit. */
#include "ops/cpu/kernels.h"
#include "ops/cpu/vec.h"

void CPU_FN(experts_sum)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_experts_sum_args *a = args;
    (void)thread;
    for (size_t r = from; r < to; r++) {
        const float *x = a->x + r * (size_t)a->n_slots * (size_t)a->n, *w = a->w + r * (size_t)a->n_slots;
        for (int i = 0; i < a->n; i += 8) {
            v8f acc = {0};
            for (int s = 0; s < a->n_slots; s++)
                acc = v8_fma(v8_set1(w[s]), v8_load_n(x + (size_t)s * (size_t)a->n + i, a->n - i), acc);
            v8_store_n(a->y + r * (size_t)a->n + i, acc, a->n - i);
        }
    }
}

INLINE int lanes(size_t i, size_t to) { return to - i < 8 ? (int)(to - i) : 8; }

void CPU_FN(add)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_elements_args *a = args;
    (void)thread;
    for (size_t i = from; i < to; i += 8) {
        int n = lanes(i, to);
        v8_store_n(a->y + i, (v8_load_n(a->a + i, n) + v8_load_n(a->b + i, n)) * v8_set1(a->scale), n);
    }
}

void CPU_FN(softcap)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_elements_args *a   = args;
    v8f                      cap = v8_set1(a->scale);
    (void)thread;
    for (size_t i = from; i < to; i += 8) {
        int n = lanes(i, to);
        v8_store_n(a->y + i, v8_softcap(v8_load_n(a->a + i, n), cap), n);
    }
}

void CPU_FN(copy_rows)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_copy_args *a = args;
    (void)thread;
    for (size_t r = from; r < to; r++) {
        size_t src = a->idx ? (size_t)a->idx[r] : r;
        memcpy(a->y + r * a->y_stride, a->x + src * a->x_stride, (size_t)a->n * sizeof(float));
    }
}

/* Sums e^(z - pick) over the row. */
static float sum_exp(const float *z, int n, float pick)
{
    float tail[8];
    v8f   sum = {0}, top = v8_set1(pick);
    int   i = 0;
    for (; i + 8 <= n; i += 8) sum += v8_exp(v8_load(z + i) - top);
    for (int k = 0; k < 8; k++) tail[k] = i + k < n ? z[i + k] : -INFINITY;
    sum += v8_exp(v8_load(tail) - top);
    return v8_sum(sum);
}

void CPU_FN(confidence)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_confidence_args *a = args;
    (void)thread;
    for (size_t r = from; r < to; r++) {
        const float *z = a->logits + r * (size_t)a->n_vocab;
        a->out[r]      = a->id[r] >= 0 ? 1 / sum_exp(z, a->n_vocab, z[a->id[r]]) : 0;
    }
}
