/* figures/stats.h - statistics of measurements, without assumptions about the distribution of noise. No measurement may
 * be NaN. */
#ifndef TANDEM_FIGURES_STATS_H
#define TANDEM_FIGURES_STATS_H
#include <stddef.h>

/* A median, with an interval that contains the true median with at least 90% probability; with fewer than 5
 * measurements the interval is from the smallest to the largest. All NaN without measurements. */
typedef struct {
    double median, low, high;
} interval;

interval stats_median(const double *x, int n);
/* Returns the median of those ratios a[i] / b[i] that are finite. */
interval stats_ratio(const double *a, const double *b, int n);

/* A summary of times. p95: the smallest measurement that 95% of them do not exceed; p99: 99%. All NaN without
 * measurements. */
typedef struct {
    double mean, median, p95, p99;
} spread;

spread stats_spread(double *x, size_t n); /* sorts x[0..n) */
#endif
