/* ops/cpu/rotate.h - rotates pairs of a head, for rope and for keys that move. Included by kernels. */
#ifndef TANDEM_OPS_CPU_ROTATE_H
#define TANDEM_OPS_CPU_ROTATE_H
#include "ops/cpu/vec.h"

#include <math.h>

/* Computes the cosines and sines of n pairs at position `pos`. */
INLINE void pair_angles(float *cosine, float *sine, int32_t pos, const float *freq, int n)
{
    for (int i = 0; i < n; i++) {
        float angle = (float)pos * freq[i];
        cosine[i]   = cosf(angle);
        sine[i]     = sinf(angle);
    }
}

/* The same, with the position of each pair's section. */
INLINE void section_angles(float *cosine, float *sine, const int32_t *pos, const int32_t *section, const float *freq,
                           int n)
{
    for (int i = 0; i < n; i++) pair_angles(cosine + i, sine + i, pos[section[i]], freq + i, 1);
}

/* Rotates pairs [i0, i0 + n) of the head x in place; a pair's elements are `half` apart. cosine, sine: [n], of pair i0
 * on. */
INLINE void rotate_pairs(float *x, const float *cosine, const float *sine, int i0, int n, int half)
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
