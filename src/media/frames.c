#include "media/frames.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>

static int64_t between(int64_t v, int64_t lo, int64_t hi)
{
    if (v < lo) v = lo;
    return v > hi ? hi : v;
}

int frames_pick(int64_t index[FRAMES_MAX], const frame_rule *r, int64_t total, double source_fps)
{
    if (!r->per_second) {
        int64_t n = between(r->max_frames, 1, total);
        for (int64_t i = 0; i < n; i++) index[i] = i * total / n;
        return (int)n;
    }
    double  fps  = source_fps > 0 ? source_fps : FRAMES_UNKNOWN_S;
    double  want = fmin((double)total / fps * r->per_second, FRAMES_MAX);
    int64_t n    = between(between((int64_t)want, r->min_frames, r->max_frames), 1, total);
    double  step = n > 1 ? (double)(total - 1) / (double)(n - 1) : 0;
    for (int64_t i = 0; i < n; i++) index[i] = i == n - 1 && n > 1 ? total - 1 : (int64_t)rint((double)i * step);
    return (int)n;
}

size_t frames_stamp(char out[48], const frame_rule *r, const double *seconds, int n_frames, int each, int i)
{
    int    first = i * each, last = min_int(first + each, n_frames) - 1;
    double at = seconds[first];
    int    n;
    if (r->stamp == FRAME_STAMP_CLOCK) {
        long long whole = (long long)floor(at);
        n               = snprintf(out, 48, "%s%02lld:%02lld ", i ? " " : "", whole / 60, whole % 60);
    } else {
        n = snprintf(out, 48, "<%.1f seconds>", (at + seconds[last]) / 2);
    }
    return (size_t)n;
}
