/* ops/sampling_math.h - the arithmetic under ops/sampling.h, for processors and GPUs alike.
 *
 * It uses IEEE additions, multiplications, divisions and integers alone, never contracted: all compilers make the
 * same bits (gcc with -ffp-contract=off, nvcc with -fmad=false), and no version of libm changes a text. The relative
 * error of logarithms and powers is below 1e-14. */
#ifndef TANDEM_OPS_SAMPLING_MATH_H
#define TANDEM_OPS_SAMPLING_MATH_H
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SAMPLING_FN static __host__ __device__ inline
#else
#define SAMPLING_FN static inline
#endif

/* Their sum is ln 2. */
#define SAMPLING_LN2_HI 0x1.62e42fee00000p-1
#define SAMPLING_LN2_LO 0x1.a39ef35793c76p-33

/* Returns log x, x positive and normal.
 * x = m 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 (s + s^3/3 + s^5/5 + ...), s = (m - 1) / (m + 1). */
SAMPLING_FN double sampling_math_log(double x)
{
    const double one_over_odd[] = {1. / 21, 1. / 19, 1. / 17, 1. / 15, 1. / 13,
                                   1. / 11, 1. / 9,  1. / 7,  1. / 5,  1. / 3};
    uint64_t     bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    bits  = (bits & 0xFFFFFFFFFFFFFu) | (uint64_t)1023 << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m >= 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
    for (int k = 0; k < (int)(sizeof one_over_odd / sizeof *one_over_odd); k++) sum = (sum + one_over_odd[k]) * s2;
    return e * SAMPLING_LN2_HI + (e * SAMPLING_LN2_LO + (2 * s + 2 * s * sum));
}

/* Returns e^x; 0 below -708 and for NaN; x above 709 counts as 709.
 * x = k ln 2 + r with |r| <= ln 2 / 2; e^r by its series. */
SAMPLING_FN double sampling_math_exp(double x)
{
    const double one_over_factorial[] = {
        1.,        1.,         1. / 2,      1. / 6,       1. / 24,       1. / 120,       1. / 720,
        1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800.};
    if (!(x > -708)) return 0;
    if (x > 709) x = 709;
    int    k = (int)(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5));
    double r = (x - k * SAMPLING_LN2_HI) - k * SAMPLING_LN2_LO, sum = one_over_factorial[13];
    for (int i = 12; i >= 0; i--) sum = sum * r + one_over_factorial[i];
    uint64_t bits = (uint64_t)(k + 1023) << 52;
    double   scale;
    memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}

/* Returns e^x, x <= 0, as an integer in units of 2^-44, rounded to nearest, so that the order of a sum does not matter.
 * A sum of up to 2^19 of them fits in 64 bits. */
#define SAMPLING_SHARE_ONE 0x1p44
SAMPLING_FN uint64_t sampling_share(double x)
{
    return x > -32 ? (uint64_t)(sampling_math_exp(x) * SAMPLING_SHARE_ONE + 0.5) : 0; /* e^-32 is 0.22 of a unit */
}

/* Mixes the bits of z, as SplitMix64 does. */
SAMPLING_FN uint64_t sampling_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Return the random bits of (seed, position, token), in two steps. */
SAMPLING_FN uint64_t sampling_position_key(uint64_t seed, int32_t pos)
{
    return sampling_mix(sampling_mix(seed + 0x9E3779B97F4A7C15u) ^ ((uint64_t)(uint32_t)pos + 1) * 0xD1B54A32D192ED03u);
}

SAMPLING_FN uint64_t sampling_token_bits(uint64_t key, int32_t token)
{
    return sampling_mix(key + ((uint64_t)(uint32_t)token + 1) * 0x9E3779B97F4A7C15u);
}

/* Returns Gumbel noise: -log(-log u), u one of 2^52 evenly spaced numbers inside (0, 1). */
SAMPLING_FN double sampling_noise_of(uint64_t bits)
{
    double u = ((double)(bits >> 12) + 0.5) * 0x1p-52;
    return -sampling_math_log(-sampling_math_log(u));
}

/* Returns an upper bound of sampling_noise_of without a logarithm: -log u >= 1 - u >= 2^-(leading ones of u + 1). */
SAMPLING_FN double sampling_noise_bound(uint64_t bits)
{
#ifdef __CUDA_ARCH__
    int ones = __clzll((long long)~bits);
#else
    int ones = ~bits ? __builtin_clzll(~bits) : 64;
#endif
    return 0.69314718055994540 * (ones + 1);
}
#endif
