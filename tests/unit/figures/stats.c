#include "figures/stats.h"

#include "test.h"

TEST(figures_medians)
{
    double   x[] = {9, 1, 5, 3, 7, 2, 8, 4, 6};
    interval i   = stats_median(x, 9);
    CHECK_NEAR(i.median, 5, 0);
    CHECK_NEAR(i.low, 2, 0); /* with nine the second and the eighth: 2 * (1 + 9) / 512 is 4% */
    CHECK_NEAR(i.high, 8, 0);
    CHECK_NEAR(x[0], 9, 0); /* not sorted */
    i = stats_median((double[]){4, 2}, 2);
    CHECK_NEAR(i.median, 3, 0);
    CHECK(isnan(stats_median(x, 0).median));
}

TEST(figures_ratio_compares_pair_by_pair)
{
    double   a[] = {2, 40, 600, 8}, b[] = {1, 10, 100, 0};
    interval i = stats_ratio(a, b, 4); /* 2, 4, 6; the last is not finite */
    CHECK_NEAR(i.median, 4, 0);
    CHECK_NEAR(i.low, 2, 0);
    CHECK_NEAR(i.high, 6, 0);
    CHECK_NEAR(stats_ratio(a, b, 2).median, 3, 0);
    CHECK(isnan(stats_ratio(a, b, 0).median) && isnan(stats_ratio(a + 3, b + 3, 1).median));
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
