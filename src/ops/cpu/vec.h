/* ops/cpu/vec.h - vectors of eight floats, for the kernels.
 *
 * Each function gives the same bits on all instruction sets, except v8_fma, which rounds once with hardware support and
 * twice without, and the functions that call it. So kernels give the same bits on one instruction set, and close
 * results on two. Sums over lanes have a fixed order. Addresses may be unaligned. */
#ifndef TANDEM_OPS_CPU_VEC_H
#define TANDEM_OPS_CPU_VEC_H
#include "gguf/quant.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float    v8f __attribute__((vector_size(32)));
typedef int32_t  v8i __attribute__((vector_size(32)));
typedef uint32_t v8u __attribute__((vector_size(32)));
typedef uint8_t  v32u8 __attribute__((vector_size(32)));
typedef uint8_t  v8u8 __attribute__((vector_size(8)));
typedef int8_t   v8i8 __attribute__((vector_size(8)));
typedef uint16_t v8u16 __attribute__((vector_size(16)));

INLINE v8f v8_set1(float x) { return (v8f){x, x, x, x, x, x, x, x}; }
INLINE v8i v8_set1i(int32_t x) { return (v8i){x, x, x, x, x, x, x, x}; }

INLINE v8f v8_load(const float *p)
{
    v8f v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void v8_store(float *p, v8f v) { memcpy(p, &v, sizeof v); }

/* Loads the first n lanes, 1 to 8; the others are zero. */
INLINE v8f v8_load_n(const float *p, int n)
{
    v8f v = {0};
    if (n >= 8) return v8_load(p);
    for (int i = 0; i < n; i++) v[i] = p[i];
    return v;
}

INLINE void v8_store_n(float *p, v8f v, int n)
{
    if (n >= 8)
        v8_store(p, v);
    else
        for (int i = 0; i < n; i++) p[i] = v[i];
}

INLINE v32u8 v32_load(const uint8_t *p)
{
    v32u8 v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE v8i v8i_from_u8(const uint8_t *p)
{
#ifdef __AVX2__ /* intrinsics: the compiler would use memory or halves for these */
    return (v8i)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
    v8u8 b;
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(b, v8i);
#endif
}

INLINE v8f v8_from_u8(const uint8_t *p) { return __builtin_convertvector(v8i_from_u8(p), v8f); }

INLINE v8i v8i_from_i8(const int8_t *p)
{
#ifdef __AVX2__
    return (v8i)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
    v8i8 b;
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(b, v8i);
#endif
}

INLINE v8f v8_from_bf16(const uint16_t *p)
{
#ifdef __AVX2__
    return (v8f)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
    v8u16 h;
    memcpy(&h, p, sizeof h);
    return (v8f)(__builtin_convertvector(h, v8u) << 16);
#endif
}

INLINE v8f v8_from_f16(const uint16_t *p)
{
#ifdef __F16C__
    return (v8f)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
    return (v8f){f16_to_f32(p[0]), f16_to_f32(p[1]), f16_to_f32(p[2]), f16_to_f32(p[3]),
                 f16_to_f32(p[4]), f16_to_f32(p[5]), f16_to_f32(p[6]), f16_to_f32(p[7])};
#endif
}

INLINE void v8_to_f16(uint16_t *p, v8f v)
{
#ifdef __F16C__
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < 8; i++) p[i] = f32_to_f16(v[i]);
#endif
}

/* Returns a * b + c. */
INLINE v8f v8_fma(v8f a, v8f b, v8f c)
{
#ifdef __FMA__
    return (v8f)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* Returns `yes` in the lanes where the mask is set, `no` in the others. Comparisons such as `a > b` make masks. */
INLINE v8f v8_select(v8i mask, v8f yes, v8f no)
{
#ifdef __AVX2__
    return (v8f)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
    return (v8f)((mask & (v8i)yes) | (~mask & (v8i)no));
#endif
}

INLINE v8f v8_max(v8f a, v8f b) /* b where either is a NaN */
{
#ifdef __AVX2__
    return (v8f)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return v8_select(a > b, a, b);
#endif
}
INLINE v8f v8_abs(v8f x) { return (v8f)((v8i)x & v8_set1i(0x7fffffff)); }

/* --- sixteen floats: one register of AVX-512, two of the others, with the same bits ----------------*/
#ifdef __AVX512F__
typedef float v16f __attribute__((vector_size(64)));
INLINE v16f   v16_set1(float x) { return (v16f)_mm512_set1_ps(x); }
INLINE v16f   v16_load(const float *p) { return (v16f)_mm512_loadu_ps(p); }
INLINE void   v16_store(float *p, v16f v) { _mm512_storeu_ps(p, (__m512)v); }
INLINE v16f   v16_from_f16(const uint16_t *p) { return (v16f)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE v16f   v16_fma(v16f a, v16f b, v16f c) { return (v16f)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE v8f    v16_low(v16f v) { return (v8f)_mm512_castps512_ps256((__m512)v); }
INLINE v8f    v16_high(v16f v) { return v16_low((v16f)_mm512_shuffle_f32x4((__m512)v, (__m512)v, 0xee)); }
INLINE v16f   v16_from_low(v8f v) { return (v16f)_mm512_zextps256_ps512((__m256)v); } /* the others are zero */
#else
typedef struct {
    v8f low, high;
} v16f;
INLINE v16f v16_set1(float x) { return (v16f){v8_set1(x), v8_set1(x)}; }
INLINE v16f v16_load(const float *p) { return (v16f){v8_load(p), v8_load(p + 8)}; }
INLINE void v16_store(float *p, v16f v)
{
    v8_store(p, v.low);
    v8_store(p + 8, v.high);
}
INLINE v16f v16_from_f16(const uint16_t *p) { return (v16f){v8_from_f16(p), v8_from_f16(p + 8)}; }
INLINE v16f v16_fma(v16f a, v16f b, v16f c)
{
    return (v16f){v8_fma(a.low, b.low, c.low), v8_fma(a.high, b.high, c.high)};
}
INLINE v8f v16_low(v16f v) { return v.low; }
INLINE v8f v16_high(v16f v) { return v.high; }
INLINE v16f v16_from_low(v8f v) { return (v16f){v, v8_set1(0)}; }
#endif

/* Returns x * y. */
INLINE v16f v16_mul(v16f x, v16f y)
{
#ifdef __AVX512F__
    return x * y;
#else
    return (v16f){x.low * y.low, x.high * y.high};
#endif
}

/* Returns an f16 number in all lanes. */
INLINE v16f v16_set1_f16(const uint16_t *p)
{
#ifdef __AVX512F__
    return (v16f)_mm512_cvtph_ps(_mm256_set1_epi16((short)*p));
#elif defined __F16C__
    v8f x = (v8f)_mm256_cvtph_ps(_mm_set1_epi16((short)*p));
    return (v16f){x, x};
#else
    return v16_set1(f16_to_f32(*p));
#endif
}

INLINE v16f v16_from_i8(const int8_t *p)
{
#ifdef __AVX512F__
    return (v16f)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#else
    return (v16f){__builtin_convertvector(v8i_from_i8(p), v8f), __builtin_convertvector(v8i_from_i8(p + 8), v8f)};
#endif
}

/* Returns the low or the high nibbles of 16 bytes, minus 8. */
INLINE v16f v16_from_nibbles(const uint8_t *p, bool high)
{
#ifdef __AVX2__
    __m128i b = _mm_loadu_si128((const __m128i *)p);
    b         = _mm_and_si128(high ? _mm_srli_epi16(b, 4) : b, _mm_set1_epi8(15));
    b         = _mm_sub_epi8(b, _mm_set1_epi8(8));
#ifdef __AVX512F__
    return (v16f)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
#else
    return (v16f){(v8f)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
                  (v8f)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
#endif
#else
    int8_t code[16];
    for (int i = 0; i < 16; i++) code[i] = (int8_t)((p[i] >> (high ? 4 : 0) & 15) - 8);
    return v16_from_i8(code);
#endif
}

/* Returns table[code] for eight codes of 3 bits, in the nibbles of a word; bit 3 of a nibble is ignored. */
INLINE v8f v8_look_up(const float table[8], uint32_t word)
{
    const v8u at = (v8u){word, word, word, word, word, word, word, word} >> (v8u){0, 4, 8, 12, 16, 20, 24, 28};
#ifdef __AVX2__
    return (v8f)_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)at);
#else
    v8f v;
    for (int i = 0; i < 8; i++) v[i] = table[at[i] & 7];
    return v;
#endif
}

INLINE v16f v16_from_halves(v8f low, v8f high)
{
#ifdef __AVX512F__
    return (v16f)_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512((__m256)low)),
                                    _mm256_castps_pd((__m256)high), 1);
#else
    return (v16f){low, high};
#endif
}

INLINE float v8_sum(v8f v) /* ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)) */
{
#ifdef __AVX2__
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    __m128 two  = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
#endif
}

/* Returns v8_sum(v[i]) in lane i. */
INLINE v8f v8_sums(const v8f v[8])
{
#ifdef __AVX2__
    __m256 four[4], two[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256 a = (__m256)v[i], b = (__m256)v[i + 4];
        four[i] = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m256 a = four[2 * i], b = four[2 * i + 1];
        two[i] = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    }
    return (v8f)_mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xdd));
#else
    return (v8f){v8_sum(v[0]), v8_sum(v[1]), v8_sum(v[2]), v8_sum(v[3]),
                 v8_sum(v[4]), v8_sum(v[5]), v8_sum(v[6]), v8_sum(v[7])};
#endif
}

INLINE int32_t v8i_sum(v8i v)
{
#ifdef __AVX2__
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    __m128i two  = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
#else
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
#endif
}

INLINE float v8_hmax(v8f v) /* without NaN */
{
#ifdef __AVX2__
    __m128 four = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    __m128 two  = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
    float m = v[0];
    for (int i = 1; i < 8; i++) m = v[i] > m ? v[i] : m;
    return m;
#endif
}

/* Stores 32 numbers from -128 to 127 as int8. */
INLINE void v32_store_i8(int8_t *p, const v8i v[4])
{
#ifdef __AVX2__
    __m256i low  = _mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]),
            high = _mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]);
    __m256i all  = _mm256_packs_epi16(low, high); /* fours of v[0], v[1], v[2], v[3], first halves first */
    _mm256_storeu_si256((__m256i *)p, _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
#else
    for (int i = 0; i < 32; i++) p[i] = (int8_t)v[i / 8][i % 8];
#endif
}

/* Splits e^x = 2^n * (1 + *em1), |x| <= 89. Returns 2^n. n is the integer next to x / ln 2, em1 the series of e^r - 1
 * for the rest r, |r| <= 0.347, with an omitted term below 6e-9. ln 2 is split so that n times its head is exact. */
INLINE v8f v8_exp_parts(v8f x, v8f *em1)
{
    const v8f magic = v8_set1(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer, ties to even */
    v8f       t     = v8_fma(x, v8_set1(1.44269504f), magic);
    v8f       n     = t - magic;
    v8f       r     = v8_fma(n, v8_set1(-0.693359375f), x);
    r               = v8_fma(n, v8_set1(2.12194440e-4f), r);
    v8f p           = v8_fma(v8_set1(1 / 5040.0f), r, v8_set1(1 / 720.0f));
    p               = v8_fma(p, r, v8_set1(1 / 120.0f));
    p               = v8_fma(p, r, v8_set1(1 / 24.0f));
    p               = v8_fma(p, r, v8_set1(1 / 6.0f));
    p               = v8_fma(p, r, v8_set1(0.5f));
    *em1            = v8_fma(r * r, p, r);
    return (v8f)(((v8u)t - (v8u)magic + 127) << 23);
}

/* Returns e^x with a relative error below 3e-7; 0 below -87.7, infinity above 88.4, NaN for NaN. */
INLINE v8f v8_exp(v8f x)
{
    v8f em1;
    x         = v8_select(x < v8_set1(-88), v8_set1(-88), x); /* n = -127: scale is 0 */
    x         = v8_select(x > v8_set1(89), v8_set1(89), x);   /* n = 128: scale is infinite */
    v8f scale = v8_exp_parts(x, &em1);
    return (v8_set1(1) + em1) * scale;
}

INLINE v8f v8_sigmoid(v8f x) { return v8_set1(1) / (v8_set1(1) + v8_exp(-x)); }
INLINE v8f v8_silu(v8f x) { return x / (v8_set1(1) + v8_exp(-x)); }

/* Returns tanh x as t / (t + 2) with t = e^2|x| - 1, which is accurate near 0; 1 beyond |x| = 20. */
INLINE v8f v8_tanh(v8f x)
{
    v8f em1, y = v8_abs(x) * v8_set1(2);
    y         = v8_select(y > v8_set1(40), v8_set1(40), y);
    v8f scale = v8_exp_parts(y, &em1);
    v8f t     = v8_fma(em1, scale, scale - v8_set1(1));
    v8f r     = t / (t + v8_set1(2));
    return (v8f)((v8i)r | ((v8i)x & v8_set1i(INT32_MIN)));
}

INLINE v8f v8_softcap(v8f x, v8f cap) { return cap * v8_tanh(x / cap); }
#endif
