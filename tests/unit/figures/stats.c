#include "figures/stats.h"

#include "test.h"

TEST(figures_medians)
{
    double   x[] = {9, 1, 5, 3, 7, 2, 8, 4, 6};
    interval i   = stats_median(x, 9);
    CHECK_NEAR(i.median, 5, 0);
    CHECK_NEAR(i.low, 2, 0); /* with nine the second and the eighth: 2 * (1 + 9) / 512 is 4% */
    CHECK_NEAR(i.high, 8, 0);
    i = stats_median((double[]){4, 2}, 2);
    CHECK_NEAR(i.median, 3, 0);
    CHECK(isnan(stats_median(x, 0).median));
}

TEST(figures_spread_is_mean_median_p95_and_p99)
{
    double x[1000];
    for (int n = 1; n <= 1000; n++) {
        for (int i = 0; i < n; i++) x[i] = n - i; /* 1 to n, backwards */
        spread s = stats_spread(x, (size_t)n);
        CHECK_NEAR(s.mean, (n + 1) / 2.0, 1e-9);
        CHECK_NEAR(s.median, (n + 1) / 2.0, 1e-9);
        CHECK_NEAR(s.p95, ceil(0.95 * n - 1e-9), 0);
        CHECK_NEAR(s.p99, ceil(0.99 * n - 1e-9), 0);
    }
    CHECK(isnan(stats_spread(x, 0).p99) && isnan(stats_spread(x, 0).mean));
}
