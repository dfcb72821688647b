#include "ops/ref/table.h"

#include <assert.h>
#include <math.h>

static bool chosen(const int32_t *id, int n, int32_t expert)
{
    for (int s = 0; s < n; s++)
        if (id[s] == expert) return true;
    return false;
}

/* Ranks by the logits: softmax keeps their order, but may round two of them to the same number. */
static void rank(int32_t *id, const float *logit, int n_experts, int n_slots)
{
    for (int s = 0; s < n_slots; s++) {
        int32_t best = -1;
        for (int32_t e = 0; e < n_experts; e++)
            if (!chosen(id, s, e) && (best < 0 || logit[e] > logit[best])) best = e;
        id[s] = best;
    }
}

/* Softmax over the chosen experts: the sum over all experts cancels in the renormalisation. */
static void weigh(float *w, const int32_t *id, const float *logit, const float *expert_scale, int n_slots)
{
    double sum = 0;
    for (int s = 0; s < n_slots; s++) sum += exp((double)logit[id[s]] - logit[id[0]]);
    for (int s = 0; s < n_slots; s++)
        w[s] = (float)(exp((double)logit[id[s]] - logit[id[0]]) / sum * (expert_scale ? expert_scale[id[s]] : 1));
}

void ref_router(queue *q, dev id, dev w, dev logits, dev expert_scale, int n_rows, int n_experts, int n_slots)
{
    (void)q;
    int32_t     *idr = id.p;
    float       *wr  = w.p;
    const float *lr  = logits.p;
    assert(n_slots <= n_experts);
    for (int r = 0; r < n_rows; r++, idr += n_slots, wr += n_slots, lr += n_experts) {
        rank(idr, lr, n_experts, n_slots);
        weigh(wr, idr, lr, expert_scale.p, n_slots);
    }
}

void ref_experts_sum(queue *q, dev y, dev x, dev w, int n_rows, int n_slots, int n)
{
    (void)q;
    const float *xr = x.p, *wr = w.p;
    float       *yr = y.p;
    for (int r = 0; r < n_rows; r++, xr += (size_t)n_slots * (size_t)n, wr += n_slots, yr += n)
        for (int i = 0; i < n; i++) {
            double sum = 0;
            for (int s = 0; s < n_slots; s++) sum += (double)wr[s] * xr[(size_t)s * (size_t)n + (size_t)i];
            yr[i] = (float)sum;
        }
}
