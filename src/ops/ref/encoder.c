/* Ops of the encoders of pictures. */
#include "ops/ref/table.h"

#include <math.h>

void ref_layer_norm(queue *q, dev y, dev x, dev w, dev b, int n_rows, int n, float eps)
{
    (void)q;
    const float *xr = x.p, *wi = w.p, *bi = b.p;
    float       *yr = y.p;
    for (int r = 0; r < n_rows; r++, xr += n, yr += n) {
        double mean = 0, ss = 0;
        for (int i = 0; i < n; i++) mean += xr[i];
        mean /= n;
        for (int i = 0; i < n; i++) ss += (xr[i] - mean) * (xr[i] - mean);
        double s = 1 / sqrt(ss / n + eps);
        for (int i = 0; i < n; i++) yr[i] = (float)((xr[i] - mean) * s * wi[i] + bi[i]);
    }
}

static double activate(double x, bias_act act)
{
    const double sqrt_2_over_pi = 0.7978845608028654, sqrt_half = 0.7071067811865476;
    switch (act) {
    case BIAS_PLAIN: return x;
    case BIAS_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
    case BIAS_GELU: return 0.5 * x * (1 + erf(x * sqrt_half));
    }
    return NAN;
}

void ref_bias(queue *q, dev y, dev res, dev x, dev b, int n_rows, int n, bias_act act)
{
    (void)q;
    const float *xi = x.p, *bi = b.p, *before = res.p;
    float       *yi = y.p;
    for (size_t at = 0; at < (size_t)n_rows * (size_t)n; at++)
        yi[at] = (float)((before ? (double)before[at] : 0) + activate((double)xi[at] + bi[at % (size_t)n], act));
}

void ref_clamp(queue *q, dev y, dev x, size_t n, float low, float high)
{
    (void)q;
    const float *xi = x.p;
    float       *yi = y.p;
    for (size_t i = 0; i < n; i++) yi[i] = xi[i] < low ? low : xi[i] > high ? high : xi[i];
}

void ref_lookup(queue *q, dev y, dev x, dev table, size_t n)
{
    (void)q;
    const uint8_t *xi = x.p;
    const float   *v  = table.p;
    float         *yi = y.p;
    for (size_t i = 0; i < n; i++) yi[i] = v[xi[i]];
}

void ref_pool(queue *q, dev y, dev x, dev add, dev by, int n_rows, int n_each, int n, float scale)
{
    (void)q;
    const float *xr = x.p, *a = add.p, *b = by.p;
    float       *yr = y.p;
    for (int r = 0; r < n_rows; r++, xr += (size_t)n_each * (size_t)n, yr += n)
        for (int i = 0; i < n; i++) {
            double sum = 0;
            for (int s = 0; s < n_each; s++) sum += xr[(size_t)s * (size_t)n + (size_t)i];
            yr[i] = (float)(((double)scale * sum + (a ? (double)a[i] : 0)) * (b ? (double)b[i] : 1));
        }
}
