/* figures/stats.h - statistics of measurements, without assumptions about the distribution of noise. */
#ifndef TANDEM_FIGURES_STATS_H
#define TANDEM_FIGURES_STATS_H
#include <stddef.h>

typedef struct {
    double median, low, high; /* low, high: 90% interval of the median; all NaN without measurements */
} interval;

interval stats_median(const double *x, int n);
/* Returns the median of the ratios a[i] / b[i], those that are finite. */
interval stats_ratio(const double *a, const double *b, int n);

/* A summary of waiting times. p95: the smallest value that 95% do not exceed. All NaN without measurements. */
typedef struct {
    double mean, median, p95, p99;
} spread;

spread stats_spread(double *x, size_t n); /* sorts x */
#endif
