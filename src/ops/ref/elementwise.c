#include "ops/ref/table.h"

void ref_add(queue *q, dev y, dev a, dev b, size_t n, float scale)
{
    (void)q;
    const float *ai = a.p, *bi = b.p;
    float       *yi = y.p;
    for (size_t i = 0; i < n; i++) yi[i] = (float)(((double)ai[i] + bi[i]) * scale);
}

void ref_softcap(queue *q, dev x, size_t n, float cap)
{
    (void)q;
    float *xi = x.p;
    for (size_t i = 0; i < n; i++) xi[i] = ref_capped(xi[i], cap);
}

void ref_copy_rows(queue *q, dev y, int y_stride, dev x, int x_stride, dev idx, int n_rows, int n)
{
    (void)q;
    const int32_t *from = idx.p;
    for (int r = 0; r < n_rows; r++) {
        const float *xr = (const float *)x.p + (size_t)(from ? from[r] : r) * (size_t)x_stride;
        float       *yr = (float *)y.p + (size_t)r * (size_t)y_stride;
        for (int i = 0; i < n; i++) yr[i] = xr[i];
    }
}
