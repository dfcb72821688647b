#include "ops/cpu/kernels.h"
#include "ops/cpu/vec.h"

/* p = e^(logit - max): softmax without its divisor, which the weights' own sum makes superfluous. */
static void numerators(float *p, const float *logits, int n)
{
    float max = logits[0];
    for (int i = 1; i < n; i++) max = logits[i] > max ? logits[i] : max;
    for (int i = 0; i < n; i += 8) v8_store_n(p + i, v8_exp(v8_load_n(logits + i, n - i) - v8_set1(max)), n - i);
}

/* The best not yet taken; the lower id where two are equal. Logits rank, not their exponentials, which may be equal
 * where logits are not. Even among NaNs the id is a valid one. */
static int next_best(const float *logits, int n, const int32_t *taken, int n_taken)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        bool free = true;
        for (int s = 0; s < n_taken && free; s++) free = taken[s] != i;
        if (free && (best < 0 || logits[i] > logits[best])) best = i;
    }
    return best;
}

static void route(int32_t *id, float *w, const float *logits, const float *p, const cpu_router_args *a)
{
    float sum = 0;
    for (int s = 0; s < a->n_slots; s++) {
        id[s] = next_best(logits, a->n_experts, id, s);
        sum += p[id[s]];
    }
    for (int s = 0; s < a->n_slots; s++) w[s] = p[id[s]] / sum * (a->expert_scale ? a->expert_scale[id[s]] : 1);
}

void CPU_FN(router)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_router_args *a = args;
    float                 *p = a->scratch + (size_t)thread * (size_t)a->n_experts;
    for (size_t r = from; r < to; r++) {
        const float *logits = a->logits + r * (size_t)a->n_experts;
        numerators(p, logits, a->n_experts);
        route(a->id + r * (size_t)a->n_slots, a->w + r * (size_t)a->n_slots, logits, p, a);
    }
}
