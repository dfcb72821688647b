#include "ops/ref/table.h"

#include <math.h>

/* 1 / sqrt(mean(x^2) + eps) */
static double inverse_rms(const float *x, int n, float eps)
{
    double ss = 0;
    for (int i = 0; i < n; i++) ss += (double)x[i] * x[i];
    return 1 / sqrt(ss / n + eps);
}

void ref_rms_norm(queue *q, dev y, dev x, dev w, int n_rows, int n, float eps)
{
    (void)q;
    const float *xr = x.p, *wi = w.p;
    float       *yr = y.p;
    for (int r = 0; r < n_rows; r++, xr += n, yr += n) {
        double s = inverse_rms(xr, n, eps);
        for (int i = 0; i < n; i++) yr[i] = (float)(xr[i] * s * (wi ? wi[i] : 1));
    }
}

void ref_rms_norm_add(queue *q, dev y, dev res, dev x, dev w, int n_rows, int n, float eps, float scale)
{
    (void)q;
    const float *xr = x.p, *rr = res.p, *wi = w.p;
    float       *yr = y.p;
    for (int r = 0; r < n_rows; r++, xr += n, rr += n, yr += n) {
        double s = inverse_rms(xr, n, eps);
        for (int i = 0; i < n; i++) yr[i] = (float)((rr[i] + xr[i] * s * (wi ? wi[i] : 1)) * scale);
    }
}
