#include "ops/cpu/kernels.h"
#include "ops/cpu/vec.h"

/* Computes p = e^(logit - max): softmax without its divisor, which cancels when the weights are normalised. */
static void numerators(float *p, const float *logits, int n)
{
    float max = logits[0];
    for (int i = 1; i < n; i++) max = logits[i] > max ? logits[i] : max;
    for (int i = 0; i < n; i += 8) v8_store_n(p + i, v8_exp(v8_load_n(logits + i, n - i) - v8_set1(max)), n - i);
}

/* Finds the n_slots best, ranked, the lower id first of equals. Compares logits, not their exponentials, which may be
 * equal for different logits. With NaNs the ids are still valid and distinct. */
static void rank_best(int32_t *id, int n_slots, const float *logits, int n)
{
    int taken = 0;
    for (int32_t i = 0; i < n; i++) {
        if (taken == n_slots && !(logits[i] > logits[id[taken - 1]])) continue;
        int at = taken < n_slots ? taken++ : n_slots - 1;
        for (; at > 0 && logits[i] > logits[id[at - 1]]; at--) id[at] = id[at - 1];
        id[at] = i;
    }
}

static void route(int32_t *id, float *w, const float *logits, const float *p, const cpu_router_args *a)
{
    float sum = 0;
    rank_best(id, a->n_slots, logits, a->n_experts);
    for (int s = 0; s < a->n_slots; s++) sum += p[id[s]];
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
