/* figures/stats.h - what a series of measurements says, with nothing assumed about its noise. */
#ifndef TANDEM_FIGURES_STATS_H
#define TANDEM_FIGURES_STATS_H
#include <stddef.h>

typedef struct {
    double median, low, high; /* low, high: a 90% interval of the median; all NaN when there was no measurement */
} interval;

interval stats_median(double *x, int n); /* sorts x */

/* What people waited. p95: the least value that 95% do not exceed; p99. All NaN when there was no measurement. */
typedef struct {
    double mean, median, p95, p99;
} spread;

spread stats_spread(double *x, size_t n); /* sorts x */
#endif
