/* gguf/quant.c - the table of types, and the conversion of blocks to f32.
 *
 * The layout of blocks (x is an element, j an index of the bytes):
 *   Q4_0 Q4_1   qs[j] holds x[j] in its low and x[j + 16] in its high half; Q5_* the same, bit x of qh is the fifth
 *   Q4_K Q5_K   four groups of 64: qs[32 * g + j] holds x[64 g + j] low and x[64 g + 32 + j] high; each 32 elements
 *               are a sub-block with a scale and a minimum; Q5_K: bit (sub-block) of qh[j] is the fifth
 *   Q2_K Q3_K   two halves of 128: bits 2q, 2q + 1 of qs[32 h + j], j < 32, are x[128 h + 32 q + j]; each 16 elements
 *               have a scale; Q3_K: bit 4h + q of hmask[j] is the third
 *   Q6_K        two halves of 128: ql[64 h + j], j < 64, holds x[128 h + j] low and x[128 h + 64 + j] high;
 *               bits 2q, 2q + 1 of qh[32 h + j], j < 32, top x[128 h + 32 q + j]; each 16 elements have a scale
 *   IQ4_NL MXFP4  as Q4_0; IQ4_XS: eight times that, bits 2b, 2b + 1 of scales_h top the half-byte b of scales_l */
#include "gguf/quant.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <strings.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files and this machine must be little endian");

typedef void dequantise_fn(const char *src, float *dst, size_t n);

static float bits_to_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t f32_to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31) return bits_to_f32(sign | 0x7f800000 | fraction << 13);
    if (exponent) return bits_to_f32(sign | (exponent + 112) << 23 | fraction << 13);
    float tiny = (float)fraction * 0x1p-24f; /* subnormal; exact */
    return sign ? -tiny : tiny;
}

/* Drops the low n bits (n >= 1). Rounds to nearest, ties to even. */
static uint32_t round_off(uint32_t u, uint32_t n)
{
    uint32_t half = 1u << (n - 1), odd = u >> n & 1;
    return (u + half - 1 + odd) >> n;
}

uint16_t f32_to_f16(float f)
{
    uint32_t u = f32_to_bits(f), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff)); /* NaN, made quiet */
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                       /* 65520 and above: infinity */
    if (size >= 0x38800000) return (uint16_t)(sign | round_off(size - (112u << 23), 13)); /* normal: 2^-14 and above */
    if (size < 0x33000000) return (uint16_t)sign; /* below half of the smallest subnormal */
    uint32_t shift = 126 - (size >> 23);          /* 14 .. 24: bits of the fraction below 2^-24 */
    return (uint16_t)(sign | round_off((size & 0x7fffff) | 0x800000, shift));
}

uint16_t f32_to_bf16(float f)
{
    uint32_t u = f32_to_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 64); /* NaN, made quiet */
    return (uint16_t)round_off(u, 16);
}

static void dequantise_f32(const char *src, float *dst, size_t n) { memcpy(dst, src, n * sizeof *dst); }

static void dequantise_f16(const char *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + i * sizeof h, sizeof h);
        dst[i] = f16_to_f32(h);
    }
}

static void dequantise_bf16(const char *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + i * sizeof h, sizeof h);
        dst[i] = bf16_to_f32(h);
    }
}

/* Calls a block function for each block of src, copied to an aligned place. */
#define DEQUANTISE(type, per_block)                                                                                    \
    static void dequantise_##type(const char *src, float *dst, size_t n)                                               \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i += (per_block), src += sizeof(block_##type)) {                                     \
            block_##type b;                                                                                            \
            memcpy(&b, src, sizeof b);                                                                                 \
            one_##type(&b, dst + i);                                                                                   \
        }                                                                                                              \
    }

static void one_q4_0(const block_q4_0 *b, float *y)
{
    float d = f16_to_f32(b->d);
    for (int j = 0; j < QK / 2; j++) {
        y[j]          = d * (float)((b->qs[j] & 15) - 8);
        y[j + QK / 2] = d * (float)((b->qs[j] >> 4) - 8);
    }
}

static void one_q4_1(const block_q4_1 *b, float *y)
{
    float d = f16_to_f32(b->d), m = f16_to_f32(b->m);
    for (int j = 0; j < QK / 2; j++) {
        y[j]          = d * (float)(b->qs[j] & 15) + m;
        y[j + QK / 2] = d * (float)(b->qs[j] >> 4) + m;
    }
}

/* Returns the fifth bit of element i, shifted to bit 4. */
static int fifth_bit(const uint8_t qh[4], int i) { return (qh[i / 8] >> (i % 8) & 1) << 4; }

static void one_q5_0(const block_q5_0 *b, float *y)
{
    float d = f16_to_f32(b->d);
    for (int j = 0; j < QK / 2; j++) {
        y[j]          = d * (float)(((b->qs[j] & 15) | fifth_bit(b->qh, j)) - 16);
        y[j + QK / 2] = d * (float)(((b->qs[j] >> 4) | fifth_bit(b->qh, j + QK / 2)) - 16);
    }
}

static void one_q5_1(const block_q5_1 *b, float *y)
{
    float d = f16_to_f32(b->d), m = f16_to_f32(b->m);
    for (int j = 0; j < QK / 2; j++) {
        y[j]          = d * (float)((b->qs[j] & 15) | fifth_bit(b->qh, j)) + m;
        y[j + QK / 2] = d * (float)((b->qs[j] >> 4) | fifth_bit(b->qh, j + QK / 2)) + m;
    }
}

static void one_q8_0(const block_q8_0 *b, float *y)
{
    float d = f16_to_f32(b->d);
    for (int j = 0; j < QK; j++) y[j] = d * (float)b->qs[j];
}

static void one_q2_K(const block_q2_K *b, float *y)
{
    float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
    for (int i = 0; i < QK_K; i++) {
        int     q = b->qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        uint8_t s = b->scales[i / 16];
        y[i]      = d * (float)(s & 15) * (float)q - dmin * (float)(s >> 4);
    }
}

static void one_q3_K(const block_q3_K *b, float *y)
{
    float d = f16_to_f32(b->d);
    for (int i = 0; i < QK_K; i++) {
        int low  = b->qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        int high = b->hmask[i % 32] >> (i / 32) & 1;
        y[i]     = d * (float)quant_q3_k_scale(b->scales, i / 16) * (float)((low | high << 2) - 4);
    }
}

/* Computes y = scale * q - min by sub-blocks of 32. Two sub-blocks share 32 bytes of 4-bit codes. qh, if any, has
 * fifth bits. */
static inline void from_k(float d, float dmin, const uint8_t scales[12], const uint8_t *qs, const uint8_t *qh, float *y)
{
    for (int sub = 0; sub < QK_K / QK; sub++, y += QK) {
        const uint8_t *low = qs + sub / 2 * QK;
        uint8_t        sc, mn;
        quant_k_scale_min(scales, sub, &sc, &mn);
        float scale = d * (float)sc, min = dmin * (float)mn;
        for (int j = 0; j < QK; j++) {
            int high = qh ? qh[j] >> sub & 1 : 0;
            y[j]     = scale * (float)((low[j] >> sub % 2 * 4 & 15) | high << 4) - min;
        }
    }
}

static void one_q4_K(const block_q4_K *b, float *y)
{
    from_k(f16_to_f32(b->d), f16_to_f32(b->dmin), b->scales, b->qs, NULL, y);
}

static void one_q5_K(const block_q5_K *b, float *y)
{
    from_k(f16_to_f32(b->d), f16_to_f32(b->dmin), b->scales, b->qs, b->qh, y);
}

static void one_q6_K(const block_q6_K *b, float *y)
{
    float d = f16_to_f32(b->d);
    for (int i = 0; i < QK_K; i++) {
        int half = i / 128, quarter = i % 128 / 32, j = i % 32;
        int low  = b->ql[64 * half + i % 64] >> (quarter / 2 * 4) & 15;
        int high = b->qh[32 * half + j] >> (2 * quarter) & 3;
        y[i]     = d * (float)b->scales[i / 16] * (float)((low | high << 4) - 32);
    }
}

const int8_t quant_iq4_level[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t quant_fp4_level[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void from_levels(const int8_t level[16], float d, const uint8_t qs[QK / 2], float *y)
{
    for (int j = 0; j < QK / 2; j++) {
        y[j]          = d * (float)level[qs[j] & 15];
        y[j + QK / 2] = d * (float)level[qs[j] >> 4];
    }
}

static void one_iq4_nl(const block_iq4_nl *b, float *y) { from_levels(quant_iq4_level, f16_to_f32(b->d), b->qs, y); }

static void one_iq4_xs(const block_iq4_xs *b, float *y)
{
    float d = f16_to_f32(b->d);
    for (int sub = 0; sub < QK_K / QK; sub++, y += QK)
        from_levels(quant_iq4_level, d * (float)quant_iq4_xs_scale(b, sub), b->qs + sub * QK / 2, y);
}

static void one_mxfp4(const block_mxfp4 *b, float *y)
{
    from_levels(quant_fp4_level, ldexpf(1, b->e - 128), b->qs, y); /* halved: the levels are doubled */
}

DEQUANTISE(q4_0, QK)
DEQUANTISE(q4_1, QK)
DEQUANTISE(q5_0, QK)
DEQUANTISE(q5_1, QK)
DEQUANTISE(q8_0, QK)
DEQUANTISE(q4_K, QK_K)
DEQUANTISE(q5_K, QK_K)
DEQUANTISE(q6_K, QK_K)
DEQUANTISE(q2_K, QK_K)
DEQUANTISE(q3_K, QK_K)
DEQUANTISE(iq4_nl, QK)
DEQUANTISE(iq4_xs, QK_K)
DEQUANTISE(mxfp4, QK)

static const struct {
    const char    *name;
    int            block; /* elements */
    size_t         bytes; /* size of a block */
    dequantise_fn *dequantise;
} types[QUANT_TYPES] = {
    [QUANT_F32]    = {"F32", 1, 4, dequantise_f32},
    [QUANT_F16]    = {"F16", 1, 2, dequantise_f16},
    [QUANT_Q4_0]   = {"Q4_0", QK, sizeof(block_q4_0), dequantise_q4_0},
    [QUANT_Q4_1]   = {"Q4_1", QK, sizeof(block_q4_1), dequantise_q4_1},
    [QUANT_Q5_0]   = {"Q5_0", QK, sizeof(block_q5_0), dequantise_q5_0},
    [QUANT_Q5_1]   = {"Q5_1", QK, sizeof(block_q5_1), dequantise_q5_1},
    [QUANT_Q8_0]   = {"Q8_0", QK, sizeof(block_q8_0), dequantise_q8_0},
    [QUANT_Q2_K]   = {"Q2_K", QK_K, sizeof(block_q2_K), dequantise_q2_K},
    [QUANT_Q3_K]   = {"Q3_K", QK_K, sizeof(block_q3_K), dequantise_q3_K},
    [QUANT_Q4_K]   = {"Q4_K", QK_K, sizeof(block_q4_K), dequantise_q4_K},
    [QUANT_Q5_K]   = {"Q5_K", QK_K, sizeof(block_q5_K), dequantise_q5_K},
    [QUANT_Q6_K]   = {"Q6_K", QK_K, sizeof(block_q6_K), dequantise_q6_K},
    [QUANT_IQ4_NL] = {"IQ4_NL", QK, sizeof(block_iq4_nl), dequantise_iq4_nl},
    [QUANT_IQ4_XS] = {"IQ4_XS", QK_K, sizeof(block_iq4_xs), dequantise_iq4_xs},
    [QUANT_I8]     = {"I8", 1, 1, NULL},
    [QUANT_I16]    = {"I16", 1, 2, NULL},
    [QUANT_I32]    = {"I32", 1, 4, NULL},
    [QUANT_I64]    = {"I64", 1, 8, NULL},
    [QUANT_F64]    = {"F64", 1, 8, NULL},
    [QUANT_BF16]   = {"BF16", 1, 2, dequantise_bf16},
    [QUANT_MXFP4]  = {"MXFP4", QK, sizeof(block_mxfp4), dequantise_mxfp4},
};

static bool is_known(quant_type t) { return (unsigned)t < QUANT_TYPES && types[t].name; }

const char *quant_name(quant_type t) { return is_known(t) ? types[t].name : NULL; }
int         quant_block(quant_type t) { return is_known(t) ? types[t].block : 0; }
size_t      quant_block_bytes(quant_type t) { return is_known(t) ? types[t].bytes : 0; }
bool        quant_can_dequantise(quant_type t) { return is_known(t) && types[t].dequantise; }
bool quant_is_float(quant_type t) { return t == QUANT_F32 || t == QUANT_F16 || t == QUANT_BF16 || t == QUANT_F64; }

bool quant_parse(const char *name, quant_type *out)
{
    for (int t = 0; t < QUANT_TYPES; t++)
        if (types[t].name && !strcasecmp(types[t].name, name)) {
            *out = (quant_type)t;
            return true;
        }
    return false;
}

bool quant_bytes(quant_type t, uint64_t n, size_t *out)
{
    if (!is_known(t) || n % (uint64_t)types[t].block) return false;
    return size_mul(out, n / (uint64_t)types[t].block, types[t].bytes);
}

void quant_dequantise(quant_type t, const void *src, float *dst, size_t n)
{
    assert(quant_can_dequantise(t) && n % (size_t)types[t].block == 0);
    types[t].dequantise(src, dst, n);
}
