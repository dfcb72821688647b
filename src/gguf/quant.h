/* gguf/quant.h - number formats of weight files: plain floats and integers, and blocks of small integers with scales.
 *
 * A type stores quant_block elements in quant_block_bytes bytes; the length of a row must be a multiple of quant_block.
 * The blocks have llama.cpp's layout, which quant.c describes. All functions may be called on any thread. */
#ifndef TANDEM_GGUF_QUANT_H
#define TANDEM_GGUF_QUANT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are those of GGUF. */
typedef enum {
    QUANT_F32    = 0,
    QUANT_F16    = 1,
    QUANT_Q4_0   = 2,
    QUANT_Q4_1   = 3,
    QUANT_Q5_0   = 6,
    QUANT_Q5_1   = 7,
    QUANT_Q8_0   = 8,
    QUANT_Q2_K   = 10,
    QUANT_Q3_K   = 11,
    QUANT_Q4_K   = 12,
    QUANT_Q5_K   = 13,
    QUANT_Q6_K   = 14,
    QUANT_IQ4_NL = 20,
    QUANT_IQ4_XS = 23,
    QUANT_I8     = 24,
    QUANT_I16    = 25,
    QUANT_I32    = 26,
    QUANT_I64    = 27,
    QUANT_F64    = 28,
    QUANT_BF16   = 30,
    QUANT_MXFP4  = 39,
    QUANT_TYPES  = 40, /* one above the largest value */
} quant_type;

enum { QK = 32, QK_K = 256 }; /* elements of a plain block, of a super-block */

/* The blocks. The comment after each is the value of an element. q: the element's integer, from qs (low bits) and qh or
 * hmask (high bits). d, m, dmin: f16. sc, m of the K types: the scale and minimum of the element's sub-block. */

typedef struct {
    uint16_t d;
    uint8_t  qs[QK / 2];
} block_q4_0; /* d * (q - 8) */
typedef struct {
    uint16_t d, m;
    uint8_t  qs[QK / 2];
} block_q4_1; /* d * q + m */
typedef struct {
    uint16_t d;
    uint8_t  qh[4];
    uint8_t  qs[QK / 2];
} block_q5_0; /* d * (q - 16) */
typedef struct {
    uint16_t d, m;
    uint8_t  qh[4];
    uint8_t  qs[QK / 2];
} block_q5_1; /* d * q + m */
typedef struct {
    uint16_t d;
    int8_t   qs[QK];
} block_q8_0; /* d * q */
typedef struct {
    uint8_t  scales[QK_K / 16]; /* scale in the low half, minimum in the high one */
    uint8_t  qs[QK_K / 4];
    uint16_t d, dmin;
} block_q2_K; /* d*sc * q - dmin*m */
typedef struct {
    uint8_t  hmask[QK_K / 8];
    uint8_t  qs[QK_K / 4];
    uint8_t  scales[12];
    uint16_t d;
} block_q3_K; /* d*(sc - 32) * (q - 4) */
typedef struct {
    uint16_t d, dmin;
    uint8_t  scales[12];
    uint8_t  qs[QK_K / 2];
} block_q4_K; /* d*sc * q - dmin*m */
typedef struct {
    uint16_t d, dmin;
    uint8_t  scales[12];
    uint8_t  qh[QK_K / 8];
    uint8_t  qs[QK_K / 2];
} block_q5_K; /* d*sc * q - dmin*m */
typedef struct {
    uint8_t  ql[QK_K / 2];
    uint8_t  qh[QK_K / 4];
    int8_t   scales[QK_K / 16];
    uint16_t d;
} block_q6_K; /* d*sc * (q - 32) */
typedef struct {
    uint16_t d;
    uint8_t  qs[QK / 2];
} block_iq4_nl; /* d * quant_iq4_level[q]: sixteen levels that lie closer near zero */
typedef struct {
    uint16_t d, scales_h;
    uint8_t  scales_l[QK_K / 64];
    uint8_t  qs[QK_K / 2];
} block_iq4_xs; /* d*(sc - 32) * quant_iq4_level[q] */
typedef struct {
    uint8_t e;
    uint8_t qs[QK / 2];
} block_mxfp4; /* 2^(e - 127) * q, q a float of four bits: quant_fp4_level[q] / 2 */
_Static_assert(sizeof(block_q4_0) == 18 && sizeof(block_q4_1) == 20 && sizeof(block_q5_0) == 22, "block sizes");
_Static_assert(sizeof(block_q5_1) == 24 && sizeof(block_q8_0) == 34 && sizeof(block_q4_K) == 144, "block sizes");
_Static_assert(sizeof(block_q5_K) == 176 && sizeof(block_q6_K) == 210 && sizeof(block_q2_K) == 84, "block sizes");
_Static_assert(sizeof(block_q3_K) == 110 && sizeof(block_iq4_nl) == 18 && sizeof(block_iq4_xs) == 136, "block sizes");
_Static_assert(sizeof(block_mxfp4) == 17, "block sizes");

const char *quant_name(quant_type t);                       /* "Q4_0", static; NULL for an unknown type */
bool        quant_parse(const char *name, quant_type *out); /* a name in any case; false: unknown, *out unchanged */
int         quant_block(quant_type t);                      /* elements of a block; 0 for an unknown type */
size_t      quant_block_bytes(quant_type t);                /* bytes of a block; 0 for an unknown type */
bool        quant_is_float(quant_type t);                   /* F32 F16 BF16 F64 */
bool        quant_can_dequantise(quant_type t);             /* all except integers and F64 */
bool        quant_can_quantise(quant_type t); /* F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K IQ4_* MXFP4 */
/* Computes the bytes of n elements. Returns false when the type is unknown, n is not a multiple of the block or the
 * size overflows. */
bool quant_bytes(quant_type t, uint64_t n, size_t *out);
/* Converts n elements to f32. n: a multiple of the block. src may be unaligned. Asserts quant_can_dequantise. */
void quant_dequantise(quant_type t, const void *src, float *dst, size_t n);
/* Converts n elements from f32. n: a multiple of the block. dst may be unaligned. Asserts quant_can_quantise. The
 * scales of Q8_0 follow from the largest magnitude; those of other blocks from a search for the smallest sum of squared
 * errors. F32 and BF16 accept every number. For other types, returns false and leaves dst unchanged when src contains
 * NaN, an infinity or a magnitude that does not round to a finite f16 (65520 and above). */
bool quant_quantise(quant_type t, const float *src, void *dst, size_t n);
/* The levels of IQ4_NL and IQ4_XS, and the sixteen numbers of MXFP4 times two, by the four bits of an element. */
extern const int8_t quant_iq4_level[16], quant_fp4_level[16];
#ifdef __CUDACC__
#define QUANT_INLINE static __host__ __device__ inline
#else
#define QUANT_INLINE static inline
#endif
/* Returns the scale of elements 16 j to 16 j + 15 (j 0..15) of a Q3_K super-block, -32 to 31. The 12 bytes hold 16
 * scales of 6 bits: the low halves two to a byte in 0-7, the upper two bits four to a byte in 8-11. */
QUANT_INLINE int quant_q3_k_scale(const uint8_t s[12], int j)
{
    int low = s[j % 8] >> (j / 8 * 4) & 15, high = s[8 + j % 4] >> (j / 4 * 2) & 3;
    return (low | high << 4) - 32;
}
/* Returns the scale of sub-block j (0..7) of an IQ4_XS super-block, -32 to 31. */
QUANT_INLINE int quant_iq4_xs_scale(const block_iq4_xs *b, int j)
{
    int low = b->scales_l[j / 2] >> (j % 2 * 4) & 15, high = b->scales_h >> (2 * j) & 3;
    return (low | high << 4) - 32;
}
/* Sets *scale and *min to the 6-bit scale and minimum of sub-block j (0..7) of a Q4_K or Q5_K super-block. Bytes 0-3
 * hold scales 0-3 and bytes 4-7 minima 0-3 in their low six bits. Bytes 8-11 hold the low halves of scales and minima
 * 4-7, whose upper bits are the upper two bits of bytes 0-7. */
QUANT_INLINE void quant_k_scale_min(const uint8_t s[12], int j, uint8_t *scale, uint8_t *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min   = s[j + 4] & 63;
    } else {
        *scale = (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *min   = (uint8_t)((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
}

float               f16_to_f32(uint16_t h);
uint16_t            f32_to_f16(float f);  /* rounds to nearest, ties to even; too large: infinity; NaN stays NaN */
uint16_t            f32_to_bf16(float f); /* rounds the same way */
static inline float bf16_to_f32(uint16_t b)
{
    union {
        uint32_t u;
        float    f;
    } x = {(uint32_t)b << 16};
    return x.f;
}
#endif
