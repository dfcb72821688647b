/* ops/cpu/turn.h - turning pairs of a head, for rope and for keys that move. Included by kernels. */
#ifndef TANDEM_OPS_CPU_TURN_H
#define TANDEM_OPS_CPU_TURN_H
#include "ops/cpu/vec.h"

#include <math.h>

INLINE void turn_angles(float *cosine, float *sine, int32_t pos, const float *freq, int n)
{
    for (int i = 0; i < n; i++) {
        float angle = (float)pos * freq[i];
        cosine[i]   = cosf(angle);
        sine[i]     = sinf(angle);
    }
}

/* Pairs [i0, i0 + n) of one head. */
INLINE void turn_pairs(float *x, const float *cosine, const float *sine, int i0, int n, int half)
{
    float *lo = x + i0, *hi = x + half + i0;
    for (int i = 0; i < n; i += 8) {
        int left = n - i;
        v8f c = v8_load_n(cosine + i, left), s = v8_load_n(sine + i, left);
        v8f a = v8_load_n(lo + i, left), b = v8_load_n(hi + i, left);
        v8_store_n(lo + i, a * c - b * s, left);
        v8_store_n(hi + i, b * c + a * s, left);
    }
}
#endif
