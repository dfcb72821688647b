#include "spec/survival.h"

#include <assert.h>
#include <math.h>

const double        SURVIVAL_FIRST = 0.75;
static const double KEPT           = 0.9928; /* factor of the counts per round: one half after 96 rounds */
static const double SURPRISED      = 1;      /* standard deviations, smoothed over four rounds: 2.6 in effect */

double survival_rate(const survival *s, int d, double before)
{
    double assumed = d ? 2 : 1 / (1 + s->tried[0] / 4);
    return (s->right[d] + assumed * before) / (s->tried[d] + assumed);
}

double survival_share(const survival *s, int d, double before) { return (s->given[d] + before) / (s->open[d] + 1); }

void survival_curve(const survival *s, double *out, int n)
{
    double rate = SURVIVAL_FIRST, all = 1;
    for (int d = 0; d < n; d++) {
        rate   = survival_rate(s, d, rate);
        out[d] = all *= rate;
    }
}

/* Returns the deviation of `right` from the expected number of accepted tokens of n, in standard deviations. */
static double surprise_of(const survival *s, int n, int right)
{
    double curve[DRAFT_MAX], mean = 0, square = 0;
    survival_curve(s, curve, n);
    for (int d = 0; d < n; d++) {
        mean += curve[d];
        square += (2 * d + 1) * curve[d]; /* E[x^2] = sum of (2k - 1) P(x >= k) */
    }
    return (right - mean) / fmax(0.3, sqrt(fmax(0, square - mean * mean)));
}

void survival_forget(survival *s, double kept)
{
    for (int d = 0; d < DRAFT_MAX; d++) {
        s->right[d] *= kept;
        s->tried[d] *= kept;
        s->given[d] *= kept;
        s->open[d] *= kept;
    }
}

void survival_add(survival *s, const survival *other, double share)
{
    for (int d = 0; d < DRAFT_MAX; d++) {
        s->right[d] += share * other->right[d];
        s->tried[d] += share * other->tried[d];
        s->given[d] += share * other->given[d];
        s->open[d] += share * other->open[d];
    }
}

/* A text can change its kind abruptly, for example from prose to a copied table. When the last rounds deviate from the
 * record, its weight is reduced, to that of three rounds at least, so that new rounds decide. */
void survival_note(survival *s, int n, int n_given, int right)
{
    assert(n >= 1 && n <= DRAFT_MAX && right >= 0 && right <= n_given && n_given <= n);
    s->surprise += (surprise_of(s, n, right) - s->surprise) / 4;
    survival_forget(s,
                    fabs(s->surprise) > SURPRISED && s->tried[0] > 3 ? fmin(KEPT, fmax(0.25, 3 / s->tried[0])) : KEPT);
    for (int d = 0; d < n && d <= n_given; d++) {
        s->open[d]++;
        s->given[d] += d < n_given;
        s->tried[d] += d <= right;
        s->right[d] += d < right;
    }
}
