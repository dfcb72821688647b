/* bench/stats.h - what a series of measurements says, with nothing assumed about its noise. */
#ifndef TANDEM_BENCH_STATS_H
#define TANDEM_BENCH_STATS_H
typedef struct {
    double median, low, high; /* low, high: a 90% interval of the median; all NaN when there was no measurement */
} interval;

interval stats_median(double *x, int n); /* sorts x */
#endif
