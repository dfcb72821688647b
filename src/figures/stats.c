#include "figures/stats.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

static int by_size(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

/* Sorts x. Returns the median and the order statistics k and n - 1 - k. The binomial distribution gives the k with at
 * most 5% on each side. */
static interval sort_median(double *x, int n)
{
    interval r = {NAN, NAN, NAN};
    if (n == 0) return r;
    qsort(x, (size_t)n, sizeof *x, by_size);
    int    k   = n > 200 ? (int)(n / 2 - 0.8224 * sqrt(n)) : 0; /* by the normal approximation */
    double sum = 0, p = exp2(-n);                               /* C(n, i) / 2^n */
    for (int i = 0; n <= 200 && i < n / 2 && (sum += p) <= 0.05; i++, p = p * (n - i + 1) / i) k = i + 1;
    r.median = n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
    r.low    = x[k > 0 ? k - 1 : 0];
    r.high   = x[n - (k > 0 ? k : 1)];
    return r;
}

interval stats_median(const double *x, int n)
{
    double *sorted = xnew_n(double, (size_t)n);
    for (int i = 0; i < n; i++) sorted[i] = x[i];
    interval r = sort_median(sorted, n);
    mem_free(sorted);
    return r;
}

interval stats_ratio(const double *a, const double *b, int n)
{
    double *ratio    = xnew_n(double, (size_t)n);
    int     n_finite = 0;
    for (int i = 0; i < n; i++)
        if (isfinite(a[i] / b[i])) ratio[n_finite++] = a[i] / b[i];
    interval r = sort_median(ratio, n_finite);
    mem_free(ratio);
    return r;
}

spread stats_spread(double *x, size_t n)
{
    double sum = 0;
    if (n == 0) return (spread){NAN, NAN, NAN, NAN};
    qsort(x, n, sizeof *x, by_size);
    for (size_t i = 0; i < n; i++) sum += x[i];
    return (spread){.mean   = sum / (double)n,
                    .median = n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2,
                    .p95    = x[n - 1 - n / 20],
                    .p99    = x[n - 1 - n / 100]};
}
