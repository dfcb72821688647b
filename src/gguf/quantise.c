/* gguf/quantise.c - conversion of f32 to blocks.
 *
 * A block is one or two scales and small integers. Given the scales, the best integers are the nearest ones; given
 * the integers, the best scales solve a least-squares problem. So a search tries about ten scales around the one that
 * just covers the range, rounds, solves, and keeps the result with the smallest sum of squared errors. The integers
 * are chosen last, with the stored scales. docs/quantisation.md compares the errors with those of llama.cpp. */
#include "gguf/quant.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const float TINY = 0x1p-40f; /* below this no f16 scale is small enough: all zeros */

/* Rounds to the nearest integer, ties to even. |v| < 2^22. */
static float nearest(float v) { return (v + 0x1.8p23f) - 0x1.8p23f; }

/* Rounds and clamps to lo .. hi. Returns lo for NaN. */
static float whole(float v, float lo, float hi)
{
    v = v > lo ? v : lo;
    v = v < hi ? v : hi;
    return nearest(v);
}

static float inverse(float d) { return d != 0 ? 1 / d : 0; }

/* --- the two searches ----------------------------------------------------------------------------*/
typedef struct {
    float xq, qq, q; /* sums of x * q, q * q, q */
} moments;

/* Four floats: every processor has such vectors. */
typedef float   v4 __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));

static inline v4    pick(v4i yes, v4 a, v4 b) { return (v4)(((v4i)a & yes) | ((v4i)b & ~yes)); }
static inline float sum(v4 v) { return (v[0] + v[1]) + (v[2] + v[3]); }

/* Computes the sums over x, with q = whole((x - base) * inv, lo, hi). */
static inline moments measure(const float *x, int n, float base, float inv, float lo, float hi)
{
    v4 xq = {0}, qq = {0}, sq = {0}, min = (v4){0} + lo, max = (v4){0} + hi;
    for (int i = 0; i < n; i += 4) {
        v4 v, q;
        memcpy(&v, x + i, sizeof v);
        q = (v - base) * inv;
        q = pick(q > min, q, min);
        q = pick(q < max, q, max);
        q = (q + 0x1.8p23f) - 0x1.8p23f; /* as nearest */
        xq += v * q;
        qq += q * q;
        sq += q;
    }
    return (moments){sum(xq), sum(qq), sum(sq)};
}

/* Returns the scale s that minimises the error of s * q against x, q from -top to top - 1. The element of largest
 * magnitude becomes -top. For given integers q the best s is (x q) / (q q); it reduces the sum of squares by (x q)^2
 * / (q q). */
static inline float fit_scale(const float *x, int n, int top)
{
    float far = 0, scale = 0, best = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(far)) far = x[i];
    if (fabsf(far) < TINY) return 0;
    for (int step = -9; step <= 9; step += 3) {
        float   inv = -((float)top + 0.1f * (float)step) / far;
        moments m   = measure(x, n, 0, inv, (float)-top, (float)(top - 1));
        if (m.xq * m.xq > best * m.qq) {
            scale = m.xq / m.qq;
            best  = m.xq * scale;
        }
    }
    return scale;
}

typedef struct {
    float scale, min;
} affine;

/* Finds the scale and minimum that minimise the error of scale * q + min against x, q from 0 to top. K-quants store the
 * minimum as a negated magnitude: there it is at most 0, and 0 is part of the range. */
static inline affine fit_affine(const float *x, int n, int top, bool any_min)
{
    float lo = any_min ? x[0] : 0, hi = lo, sx = 0;
    for (int i = 0; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
        sx += x[i];
    }
    if (hi - lo < TINY) return (affine){0, lo};
    affine best   = {(hi - lo) / (float)top, lo};
    double gained = -INFINITY; /* reduction of the sum of squares */
    for (int step = -10; step <= 10; step += 2) {
        float   inv = ((float)top + 0.1f * (float)step) / (hi - lo);
        moments m   = measure(x, n, lo, inv, 0, (float)top);
        double  det = (double)n * m.qq - (double)m.q * m.q;
        if (!(det > 0)) continue;
        double scale = ((double)n * m.xq - (double)sx * m.q) / det, min = (sx - scale * m.q) / n;
        if (min > 0 && !any_min) {
            min   = 0;
            scale = m.xq / m.qq;
        }
        double gain = 2 * (scale * m.xq + min * sx) - scale * (scale * m.qq + 2 * min * m.q) - n * min * min;
        if (gain > gained) {
            gained = gain;
            best   = (affine){(float)scale, (float)min};
        }
    }
    return best;
}

/* --- plain blocks ---------------------------------------------------------------------------------*/
static void make_q8_0(block_q8_0 *b, const float *x)
{
    float max = 0;
    for (int i = 0; i < QK; i++) max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    b->d      = f32_to_f16(max / 127);
    float inv = inverse(f16_to_f32(b->d));
    for (int i = 0; i < QK; i++) b->qs[i] = (int8_t)whole(x[i] * inv, -127, 127);
}

/* Packs the low four bits of 32 numbers, x[j] with x[j + 16]. */
static void pack_low(uint8_t qs[QK / 2], const uint8_t q[QK])
{
    for (int j = 0; j < QK / 2; j++) qs[j] = (uint8_t)((q[j] & 15) | q[j + QK / 2] << 4);
}

static void pack_fifth(uint8_t qh[4], const uint8_t q[QK])
{
    memset(qh, 0, 4);
    for (int i = 0; i < QK; i++) qh[i / 8] |= (uint8_t)((q[i] >> 4) << (i % 8));
}

/* d * (q - top) */
static inline uint16_t round_scaled(uint8_t q[QK], const float *x, int top)
{
    uint16_t d   = f32_to_f16(fit_scale(x, QK, top));
    float    inv = inverse(f16_to_f32(d));
    for (int i = 0; i < QK; i++) q[i] = (uint8_t)(whole(x[i] * inv, (float)-top, (float)(top - 1)) + (float)top);
    return d;
}

/* d * q + m */
static inline void round_affine(uint8_t q[QK], uint16_t *d, uint16_t *m, const float *x, int top)
{
    affine f  = fit_affine(x, QK, top, true);
    *d        = f32_to_f16(f.scale);
    *m        = f32_to_f16(f.min);
    float inv = inverse(f16_to_f32(*d)), min = f16_to_f32(*m);
    for (int i = 0; i < QK; i++) q[i] = (uint8_t)whole((x[i] - min) * inv, 0, (float)top);
}

static void make_q4_0(block_q4_0 *b, const float *x)
{
    uint8_t q[QK];
    b->d = round_scaled(q, x, 8);
    pack_low(b->qs, q);
}

static void make_q5_0(block_q5_0 *b, const float *x)
{
    uint8_t q[QK];
    b->d = round_scaled(q, x, 16);
    pack_low(b->qs, q);
    pack_fifth(b->qh, q);
}

static void make_q4_1(block_q4_1 *b, const float *x)
{
    uint8_t q[QK];
    round_affine(q, &b->d, &b->m, x, 15);
    pack_low(b->qs, q);
}

static void make_q5_1(block_q5_1 *b, const float *x)
{
    uint8_t q[QK];
    round_affine(q, &b->d, &b->m, x, 31);
    pack_low(b->qs, q);
    pack_fifth(b->qh, q);
}

/* --- code books -----------------------------------------------------------------------------------*/
enum { MAX_LEVELS = 16 };
typedef struct {
    int   n;
    float lowest, highest;
    float middle[MAX_LEVELS], step[MAX_LEVELS]; /* between a level and the next lower one, from level 1 on */
} book;

static book book_of(const int8_t *level, int n) /* ascending */
{
    book b = {.n = n, .lowest = level[0], .highest = level[n - 1]};
    for (int k = 1; k < n; k++) {
        b.middle[k] = 0.5f * (float)(level[k - 1] + level[k]);
        b.step[k]   = (float)(level[k] - level[k - 1]);
    }
    return b;
}

/* Returns the index of the level nearest to v, from the lowest. */
static int nearest_level(const book *b, float v)
{
    int at = 0;
    for (int k = 1; k < b->n; k++) at += v > b->middle[k];
    return at;
}

/* Computes the sums as measure does, with q the level nearest to x * inv: the lowest plus every step whose middle it
 * exceeds. */
static inline moments measure_levels(const float *x, int n, float inv, const book *b)
{
    v4 xq = {0}, qq = {0}, zero = {0};
    for (int i = 0; i < n; i += 4) {
        v4 x4, v, q = zero + b->lowest;
        memcpy(&x4, x + i, sizeof x4);
        v = x4 * inv;
        for (int k = 1; k < b->n; k++) q += pick(v > zero + b->middle[k], zero + b->step[k], zero);
        xq += x4 * q;
        qq += q * q;
    }
    return (moments){sum(xq), sum(qq), 0};
}

/* Returns a scale as fit_scale does. The largest number may become the lowest or the highest level. */
static float fit_levels(const float *x, int n, const book *b)
{
    float far = 0, scale = 0, best = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(far)) far = x[i];
    if (fabsf(far) < TINY) return 0;
    for (int high = 0; high < 2; high++)
        for (int step = -9; step <= 9; step += 3) {
            float   inv = (high ? b->highest : b->lowest) * (1 + 0.0125f * (float)step) / far;
            moments m   = measure_levels(x, n, inv, b);
            if (m.xq * m.xq > best * m.qq) {
                scale = m.xq / m.qq;
                best  = m.xq * scale;
            }
        }
    return scale;
}

static void round_levels(uint8_t qs[QK / 2], const float *x, float inv, const book *b)
{
    uint8_t q[QK];
    for (int i = 0; i < QK; i++) q[i] = (uint8_t)nearest_level(b, x[i] * inv);
    pack_low(qs, q);
}

static void make_iq4_nl(block_iq4_nl *b, const float *x)
{
    book iq4 = book_of(quant_iq4_level, 16);
    b->d     = f32_to_f16(fit_levels(x, QK, &iq4));
    round_levels(b->qs, x, inverse(f16_to_f32(b->d)), &iq4);
}

/* Chooses the power of two that scales the largest number to 8 .. 16 or to 4 .. 8, by the smaller error. */
static void make_mxfp4(block_mxfp4 *b, const float *x)
{
    static const int8_t level[] = {-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12};
    enum { ZERO = 7 };
    book    fp4 = book_of(level, sizeof level);
    float   max = 0, gained = -INFINITY;
    uint8_t q[QK];
    for (int i = 0; i < QK; i++) max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    memset(b, 0, sizeof *b);
    if (max < TINY) return;
    for (int up = 0; up < 2; up++) {
        int     e    = ilogbf(max) - 3 + up;
        float   d    = ldexpf(1, e);
        moments m    = measure_levels(x, QK, 1 / d, &fp4);
        float   gain = d * (2 * m.xq - d * m.qq);
        if (gain > gained) {
            gained = gain;
            b->e   = (uint8_t)(e + 128);
        }
    }
    float inv = ldexpf(1, 128 - b->e);
    for (int i = 0; i < QK; i++) {
        int at = nearest_level(&fp4, x[i] * inv) - ZERO;
        q[i]   = (uint8_t)(at < 0 ? 8 - at : at);
    }
    pack_low(b->qs, q);
}

/* --- super-blocks ---------------------------------------------------------------------------------*/
enum { SUBS = QK_K / QK };

/* Stores a scale and minimum for quant_k_scale_min. Call it for sub-blocks 0 to 7 in this order. */
static void pack_scale_min(uint8_t s[12], int j, uint8_t scale, uint8_t min)
{
    if (j < 4) {
        s[j]     = scale;
        s[j + 4] = min;
    } else {
        s[j + 4] = (uint8_t)((scale & 15) | min << 4);
        s[j - 4] |= (uint8_t)(scale >> 4 << 6);
        s[j] |= (uint8_t)(min >> 4 << 6);
    }
}

/* Computes scales and codes of Q4_K and Q5_K, not yet packed. */
static inline void round_super(uint8_t q[QK_K], uint16_t *d, uint16_t *dmin, uint8_t scales[12], const float *x,
                               int top)
{
    affine f[SUBS];
    float  most_scale = 0, most_min = 0;
    for (int j = 0; j < SUBS; j++) {
        f[j]       = fit_affine(x + j * QK, QK, top, false);
        most_scale = f[j].scale > most_scale ? f[j].scale : most_scale;
        most_min   = -f[j].min > most_min ? -f[j].min : most_min;
    }
    *d       = f32_to_f16(most_scale / 63);
    *dmin    = f32_to_f16(most_min / 63);
    float ds = f16_to_f32(*d), dm = f16_to_f32(*dmin);
    for (int j = 0; j < SUBS; j++) {
        float scale = whole(f[j].scale * inverse(ds), 0, 63), min = whole(-f[j].min * inverse(dm), 0, 63);
        float inv = inverse(ds * scale);
        pack_scale_min(scales, j, (uint8_t)scale, (uint8_t)min);
        for (int i = j * QK; i < (j + 1) * QK; i++) q[i] = (uint8_t)whole((x[i] + dm * min) * inv, 0, (float)top);
    }
}

/* Packs sub-block 2g into the low halves and 2g + 1 into the high ones. */
static void pack_groups(uint8_t qs[QK_K / 2], const uint8_t q[QK_K])
{
    for (int g = 0; g < QK_K / 64; g++)
        for (int j = 0; j < QK; j++) qs[g * QK + j] = (uint8_t)((q[64 * g + j] & 15) | q[64 * g + QK + j] << 4);
}

static void make_q4_K(block_q4_K *b, const float *x)
{
    uint8_t q[QK_K];
    round_super(q, &b->d, &b->dmin, b->scales, x, 15);
    pack_groups(b->qs, q);
}

static void make_q5_K(block_q5_K *b, const float *x)
{
    uint8_t q[QK_K];
    round_super(q, &b->d, &b->dmin, b->scales, x, 31);
    pack_groups(b->qs, q);
    memset(b->qh, 0, sizeof b->qh);
    for (int i = 0; i < QK_K; i++) b->qh[i % QK] |= (uint8_t)(q[i] >> 4 << (i / QK));
}

static void pack_q6(block_q6_K *b, const uint8_t q[QK_K])
{
    memset(b->ql, 0, sizeof b->ql);
    memset(b->qh, 0, sizeof b->qh);
    for (int i = 0; i < QK_K; i++) {
        int half = i / 128, quarter = i % 128 / 32;
        b->ql[64 * half + i % 64] |= (uint8_t)((q[i] & 15) << (quarter / 2 * 4));
        b->qh[32 * half + i % 32] |= (uint8_t)(q[i] >> 4 << (2 * quarter));
    }
}

/* d * s * (q - 32); the scale of largest magnitude becomes -128. */
static void make_q6_K(block_q6_K *b, const float *x)
{
    enum { N = 16 };
    uint8_t q[QK_K];
    float   scale[QK_K / N], far = 0;
    for (int j = 0; j < QK_K / N; j++) {
        scale[j] = fit_scale(x + j * N, N, 32);
        if (fabsf(scale[j]) > fabsf(far)) far = scale[j];
    }
    b->d    = f32_to_f16(far / -128);
    float d = f16_to_f32(b->d), inv_d = inverse(d);
    for (int j = 0; j < QK_K / N; j++) {
        b->scales[j] = (int8_t)whole(scale[j] * inv_d, -128, 127);
        float inv    = inverse(d * (float)b->scales[j]);
        for (int i = j * N; i < (j + 1) * N; i++) q[i] = (uint8_t)(whole(x[i] * inv, -32, 31) + 32);
    }
    pack_q6(b, q);
}

/* d * s * level; the scale of largest magnitude becomes -32. */
static void make_iq4_xs(block_iq4_xs *b, const float *x)
{
    book  iq4 = book_of(quant_iq4_level, 16);
    float scale[SUBS], far = 0;
    for (int j = 0; j < SUBS; j++) {
        scale[j] = fit_levels(x + j * QK, QK, &iq4);
        if (fabsf(scale[j]) > fabsf(far)) far = scale[j];
    }
    memset(b, 0, sizeof *b);
    b->d    = f32_to_f16(far / -32);
    float d = f16_to_f32(b->d), inv_d = inverse(d);
    for (int j = 0; j < SUBS; j++) {
        float s    = whole(scale[j] * inv_d, -32, 31);
        int   bits = (int)s + 32;
        b->scales_l[j / 2] |= (uint8_t)((bits & 15) << (j % 2 * 4));
        b->scales_h |= (uint16_t)(bits >> 4 << (2 * j));
        round_levels(b->qs + j * QK / 2, x + j * QK, inverse(d * s), &iq4);
    }
}

/* --- rows -----------------------------------------------------------------------------------------*/
typedef void quantise_fn(const float *src, char *dst, size_t n);

static void quantise_f32(const float *src, char *dst, size_t n) { memcpy(dst, src, n * sizeof *src); }

static void quantise_f16(const float *src, char *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = f32_to_f16(src[i]);
        memcpy(dst + i * sizeof h, &h, sizeof h);
    }
}

static void quantise_bf16(const float *src, char *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = f32_to_bf16(src[i]);
        memcpy(dst + i * sizeof h, &h, sizeof h);
    }
}

#define QUANTISE(type, per_block)                                                                                      \
    static void quantise_##type(const float *src, char *dst, size_t n)                                                 \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i += (per_block), dst += sizeof(block_##type)) {                                     \
            block_##type b;                                                                                            \
            make_##type(&b, src + i);                                                                                  \
            memcpy(dst, &b, sizeof b);                                                                                 \
        }                                                                                                              \
    }
QUANTISE(q8_0, QK)
QUANTISE(q4_0, QK)
QUANTISE(q4_1, QK)
QUANTISE(q5_0, QK)
QUANTISE(q5_1, QK)
QUANTISE(q4_K, QK_K)
QUANTISE(q5_K, QK_K)
QUANTISE(q6_K, QK_K)
QUANTISE(iq4_nl, QK)
QUANTISE(iq4_xs, QK_K)
QUANTISE(mxfp4, QK)

static quantise_fn *const quantisers[QUANT_TYPES] = {
    [QUANT_F32] = quantise_f32,       [QUANT_F16] = quantise_f16,     [QUANT_BF16] = quantise_bf16,
    [QUANT_Q8_0] = quantise_q8_0,     [QUANT_Q4_0] = quantise_q4_0,   [QUANT_Q4_1] = quantise_q4_1,
    [QUANT_Q5_0] = quantise_q5_0,     [QUANT_Q5_1] = quantise_q5_1,   [QUANT_Q4_K] = quantise_q4_K,
    [QUANT_Q5_K] = quantise_q5_K,     [QUANT_Q6_K] = quantise_q6_K,   [QUANT_IQ4_NL] = quantise_iq4_nl,
    [QUANT_IQ4_XS] = quantise_iq4_xs, [QUANT_MXFP4] = quantise_mxfp4,
};

bool quant_can_quantise(quant_type t) { return (unsigned)t < QUANT_TYPES && quantisers[t]; }

/* Returns whether every number rounds to a finite f16. */
static bool fits_f16(const float *x, size_t n)
{
    int bad = 0;
    for (size_t i = 0; i < n; i++) bad |= !(fabsf(x[i]) < 65520);
    return !bad;
}

bool quant_quantise(quant_type t, const float *src, void *dst, size_t n)
{
    assert(quant_can_quantise(t) && n % (size_t)quant_block(t) == 0);
    if (t != QUANT_F32 && t != QUANT_BF16 && !fits_f16(src, n)) return false;
    quantisers[t](src, dst, n);
    return true;
}
