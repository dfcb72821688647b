#include "ops/ref/table.h"

#include <assert.h>

static float dot(const float *w, const float *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)w[i] * x[i];
    return (float)sum;
}

/* y[o] = sum_i w[o][i] x[i] */
static void mat_vec(float *y, const float *w, const float *x, int n_in, int n_out)
{
    for (int o = 0; o < n_out; o++, w += n_in) y[o] = dot(w, x, n_in);
}

void ref_matmul(queue *q, dev y, const weight *w, dev x, int n_rows)
{
    (void)q;
    for (int r = 0; r < n_rows; r++)
        mat_vec((float *)y.p + (size_t)r * (size_t)w->n_out, weight_mat(w, 0),
                (const float *)x.p + (size_t)r * (size_t)w->n_in, w->n_in, w->n_out);
}

void ref_matmul_top(queue *q, dev out, const weight *w, dev x, int n_rows, float cap, int n_top)
{
    (void)q;
    for (int r = 0; r < n_rows; r++) {
        token_logit *best = (token_logit *)out.p + (size_t)r * (size_t)n_top;
        const float *xr   = (const float *)x.p + (size_t)r * (size_t)w->n_in;
        int          n    = 0;
        for (int o = 0; o < w->n_out; o++) {
            float y = dot(weight_mat(w, 0) + (size_t)o * (size_t)w->n_in, xr, w->n_in);
            n       = sampling_rank(best, n, n_top, o, cap > 0 ? ref_capped(y, cap) : y);
        }
        for (; n < n_top; n++) best[n] = (token_logit){-1, -INFINITY};
    }
}

void ref_matmul_experts(queue *q, dev y, const weight *w, dev x, bool x_per_slot, dev id, int n_rows, int n_slots)
{
    (void)q;
    const int32_t *expert = id.p;
    for (int r = 0; r < n_rows; r++)
        for (int s = 0; s < n_slots; s++) {
            size_t at = (size_t)r * (size_t)n_slots + (size_t)s;
            assert(expert[at] >= 0 && expert[at] < w->n_mats);
            mat_vec((float *)y.p + at * (size_t)w->n_out, weight_mat(w, expert[at]),
                    (const float *)x.p + (x_per_slot ? at : (size_t)r) * (size_t)w->n_in, w->n_in, w->n_out);
        }
}
