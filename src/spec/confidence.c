#include "spec/confidence.h"

static const double FULL    = 512; /* observations of a cell at which they are halved, so that old ones fade */
static const double ASSUMED = 8;   /* observations that the next coarser estimate is worth */

/* Bins are narrow where confidences are high: most are, and products of many of them must be right. */
static int bin_of(double confidence)
{
    static const double end[CONFIDENCE_BINS - 1] = {0.15, 0.3, 0.45, 0.6, 0.75, 0.86, 0.93, 0.97, 0.99};
    int                 b                        = 0;
    while (b < CONFIDENCE_BINS - 1 && confidence >= end[b]) b++;
    return b;
}

static int depth_bin(int depth)
{
    static const int end[CONFIDENCE_DEPTHS - 1] = {1, 2, 3, 5, 9};
    int              d                          = 0;
    while (d < CONFIDENCE_DEPTHS - 1 && depth >= end[d]) d++;
    return d;
}

/* The confidence itself, corrected by all depths together, then by the depth. */
double calibration_rate(const calibration *c, int depth, double confidence)
{
    int    b = bin_of(confidence), at = depth_bin(depth);
    double right = ASSUMED * confidence, tried = ASSUMED;
    for (int d = 0; d < CONFIDENCE_DEPTHS; d++) {
        right += c->right[d][b];
        tried += c->tried[d][b];
    }
    return (c->right[at][b] + ASSUMED * right / tried) / (c->tried[at][b] + ASSUMED);
}

void calibration_note(calibration *c, int depth, double confidence, bool right)
{
    double *r = &c->right[depth_bin(depth)][bin_of(confidence)], *t = &c->tried[depth_bin(depth)][bin_of(confidence)];
    *r += right;
    *t += 1;
    if (*t < FULL) return;
    *r /= 2;
    *t /= 2;
}
