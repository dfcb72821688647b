#include "ops/ref/table.h"

#include <math.h>

static double activate(double x, act_kind act)
{
    const double sqrt_2_over_pi = 0.7978845608028654;
    switch (act) {
    case ACT_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
    case ACT_SILU: return x / (1 + exp(-x));
    case ACT_SIGMOID: return 1 / (1 + exp(-x));
    }
    return NAN;
}

void ref_gated(queue *q, dev y, dev gate, int gate_stride, dev up, int up_stride, int n_rows, int n, act_kind act)
{
    (void)q;
    const float *g = gate.p, *u = up.p;
    float       *yr = y.p;
    for (int r = 0; r < n_rows; r++, g += gate_stride, u += up_stride, yr += n)
        for (int i = 0; i < n; i++) yr[i] = (float)(activate(g[i], act) * u[i]);
}

void ref_add_gated(queue *q, dev y, dev a, dev b, dev gate, int n_rows, int n)
{
    (void)q;
    const float *ar = a.p, *br = b.p, *g = gate.p;
    float       *yr = y.p;
    for (int r = 0; r < n_rows; r++, ar += n, br += n, yr += n)
        for (int i = 0; i < n; i++) yr[i] = (float)(ar[i] + activate(g[r], ACT_SIGMOID) * br[i]);
}
