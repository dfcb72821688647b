/* ops/cpu/hadamard.h - the rotation of cache_code.h, eight channels at a time. It gives the same bits: each value is
 * made of the same sums and differences. */
#ifndef TANDEM_OPS_CPU_HADAMARD_H
#define TANDEM_OPS_CPU_HADAMARD_H
#include "ops/cache_code.h"
#include "ops/cpu/vec.h"

/* Negates the channels from i on of a group whose sign is set. */
INLINE v8f flip_signs(v8f x, int i)
{
    const v8u bit  = (v8u){1, 2, 4, 8, 16, 32, 64, 128};
    uint32_t  byte = (uint32_t)(cache_signs[i / 64] >> (i % 64) & 255);
    v8i       set  = (v8i)(((v8u){byte, byte, byte, byte, byte, byte, byte, byte} & bit) == bit);
    return (v8f)((v8i)x ^ (set & v8_set1i(INT32_MIN)));
}

/* Returns (a + b, a - b) for the lanes (a, b) at a distance of 1, 2 or 4. swapped: x with these lanes exchanged. */
INLINE v8f butterfly(v8f x, v8f swapped, v8i minus) { return (v8f)((v8i)x ^ (minus & v8_set1i(INT32_MIN))) + swapped; }

INLINE v8f butterflies_inside(v8f x)
{
    x = butterfly(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6), (v8i){0, -1, 0, -1, 0, -1, 0, -1});
    x = butterfly(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5), (v8i){0, 0, -1, -1, 0, 0, -1, -1});
    return butterfly(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3), (v8i){0, 0, 0, 0, -1, -1, -1, -1});
}

/* Transforms one group: n vectors of eight, of which half or all of `x` is used. */
INLINE void transform_group(v8f *x, int n)
{
    const v8f factor = v8_set1(n == 8 ? CACHE_FACTOR_64 : CACHE_FACTOR_128);
    for (int i = 0; i < n; i++) x[i] = butterflies_inside(x[i]);
    for (int h = 1; h < n; h *= 2)
        for (int i = 0; i < n; i += 2 * h)
            for (int j = i; j < i + h; j++) {
                v8f a = x[j], b = x[j + h];
                x[j]     = a + b;
                x[j + h] = a - b;
            }
    for (int i = 0; i < n; i++) x[i] *= factor;
}

/* Writes R x to y, or the inverse R^T x. y may be x. */
INLINE void rotate_head(float *y, const float *x, int head_dim, bool inverse)
{
    const int group = cache_group(head_dim), n = group / 8;
    for (int from = 0; from < head_dim; from += group) {
        v8f v[CACHE_GROUP / 8];
        for (int i = 0; i < n; i++) {
            v[i] = v8_load(x + from + 8 * i);
            if (!inverse) v[i] = flip_signs(v[i], 8 * i);
        }
        transform_group(v, n);
        for (int i = 0; i < n; i++) v8_store(y + from + 8 * i, inverse ? flip_signs(v[i], 8 * i) : v[i]);
    }
}
#endif
