/* ops/cpu/tile.h - the memory layout of weights: tiles of 8 output rows, so that a SIMD lane is an output. Included by
 * kernels.
 *
 * A tile holds the inputs of its 8 rows in order, in blocks of 32 (super-blocks of 256 for the K types). Inside a block
 * the numbers of the 8 rows are interleaved in groups of 4 inputs:
 *
 *     group g:   row 0        row 1              row 7
 *                4g .. 4g+3   4g .. 4g+3   ...   4g .. 4g+3        32 numbers, g = 0 .. 7
 *
 * so 32 bytes of weights times 4 activations, repeated 8 times, are 8 partial sums. Parts of a number:
 *     q     low 4 bits: line j holds group j in the low half of its bytes and group j + 4 in the high half
 *           (8-bit types: line g holds group g; Q2 and Q3: two bits, stored as hh)
 *     h     Q5: bit g of a byte is bit 4 of its number in group g; Q3: bit 2
 *     hh    Q6: line g / 4, bits 2 (g % 4) and up of a byte are bits 4 and 5 of its number in group g
 * Floats keep their type: [input][8 rows]. */
#ifndef TANDEM_OPS_CPU_TILE_H
#define TANDEM_OPS_CPU_TILE_H
#include "ops/cpu/kernels.h"
#include "ops/cpu/vec.h"

#define LINE (4 * TILE_ROWS) /* bytes of a group */

typedef struct {
    uint16_t d[8];
    uint8_t  q[4][LINE];
} tile_q4_0;
typedef tile_q4_0 tile_iq4_nl; /* q are indices of a code book */
typedef struct {
    uint8_t e[8], q[4][LINE];
} tile_mxfp4; /* the same */
typedef struct {
    uint16_t d[8], m[8];
    uint8_t  q[4][LINE];
} tile_q4_1;
typedef struct {
    uint16_t d[8];
    uint8_t  q[4][LINE], h[LINE];
} tile_q5_0;
typedef struct {
    uint16_t d[8], m[8];
    uint8_t  q[4][LINE], h[LINE];
} tile_q5_1;
typedef struct {
    uint16_t d[8];
    uint8_t  q[8][LINE];
} tile_q8_0; /* q as int8 */
typedef struct {
    uint8_t sc[8], m[8], q[4][LINE];
} sub_q4_K;
typedef struct {
    uint8_t sc[8], m[8], q[4][LINE], h[LINE];
} sub_q5_K;
typedef struct {
    int8_t  sc[2][8];
    uint8_t q[4][LINE], hh[2][LINE];
} sub_q6_K; /* sc: by halves of 16 inputs */
typedef struct {
    uint8_t sc[2][8], q[2][LINE];
} sub_q2_K; /* sc: by halves, the scale in the low half of a byte, the minimum in the high one */
typedef struct {
    int8_t  sc[2][8];
    uint8_t q[2][LINE], h[LINE];
} sub_q3_K;
typedef struct {
    int8_t  sc[8];
    uint8_t q[4][LINE];
} sub_iq4_xs;
typedef struct {
    uint16_t d[8], dmin[8];
    sub_q2_K sub[8];
} tile_q2_K;
typedef struct {
    uint16_t d[8];
    sub_q3_K sub[8];
} tile_q3_K;
typedef struct {
    uint16_t d[8], dmin[8];
    sub_q4_K sub[8];
} tile_q4_K;
typedef struct {
    uint16_t d[8], dmin[8];
    sub_q5_K sub[8];
} tile_q5_K;
typedef struct {
    uint16_t d[8];
    sub_q6_K sub[8];
} tile_q6_K;
typedef struct {
    uint16_t   d[8];
    sub_iq4_xs sub[8];
} tile_iq4_xs;

_Static_assert(sizeof(tile_q4_0) == 8 * sizeof(block_q4_0) && sizeof(tile_q4_1) == 8 * sizeof(block_q4_1), "no growth");
_Static_assert(sizeof(tile_q5_0) == 8 * sizeof(block_q5_0) && sizeof(tile_q5_1) == 8 * sizeof(block_q5_1), "no growth");
_Static_assert(sizeof(tile_q8_0) == 8 * sizeof(block_q8_0) && sizeof(tile_q6_K) == 8 * sizeof(block_q6_K), "no growth");
_Static_assert(sizeof(tile_iq4_nl) == 8 * sizeof(block_iq4_nl) && sizeof(tile_mxfp4) == 8 * sizeof(block_mxfp4), "too");
_Static_assert(sizeof(tile_q4_K) == 8 * sizeof(block_q4_K) + 32, "scales and minima expanded to bytes: 2.8% more");
_Static_assert(sizeof(tile_q5_K) == 8 * sizeof(block_q5_K) + 32, "2.3% more");
_Static_assert(sizeof(tile_iq4_xs) == 8 * sizeof(block_iq4_xs) + 16, "1.5% more");
_Static_assert(sizeof(tile_q2_K) == 8 * sizeof(block_q2_K), "no growth");
_Static_assert(sizeof(tile_q3_K) == 8 * sizeof(block_q3_K) + 32, "3.6% more");

/* The addresses of the parts of one block of 32 inputs; NULL where the type has no such part. A weight is d * q + m,
 * after tile_offset was subtracted from q; in the K types it is d * sc * q - m * sm, with d and m of the whole
 * super-block. With a code book, q is the entry. sc of super-blocks are bytes; for IQ4_XS int8; for Q3_K and Q6_K int8
 * [2][8]; for Q2_K [2][8] with the minima. For MXFP4 they are the exponents, and there is no d. */
typedef struct {
    const uint16_t *d, *m; /* f16; m only where the type has a minimum */
    const uint8_t  *sc, *sm;
    const uint8_t  *q, *h;
} tile_block;

/* Returns the parts of block b of a tile. t is a quantised type, constant at every call, here and below. */
/* clang-format off */
INLINE tile_block tile_at(quant_type t, const uint8_t *tile, int b)
{
#define PLAIN(T) const T *p = (const T *)tile + b
#define SUPER(T) const tile_##T *s = (const tile_##T *)tile + b / 8; const sub_##T *p = &s->sub[b % 8]
    switch (t) {
    case QUANT_Q4_0: { PLAIN(tile_q4_0); return (tile_block){.d = p->d, .q = p->q[0]}; }
    case QUANT_Q5_0: { PLAIN(tile_q5_0); return (tile_block){.d = p->d, .q = p->q[0], .h = p->h}; }
    case QUANT_Q8_0: { PLAIN(tile_q8_0); return (tile_block){.d = p->d, .q = p->q[0]}; }
    case QUANT_Q4_1: { PLAIN(tile_q4_1); return (tile_block){.d = p->d, .m = p->m, .q = p->q[0]}; }
    case QUANT_Q5_1: { PLAIN(tile_q5_1); return (tile_block){.d = p->d, .m = p->m, .q = p->q[0], .h = p->h}; }
    case QUANT_IQ4_NL: { PLAIN(tile_iq4_nl); return (tile_block){.d = p->d, .q = p->q[0]}; }
    case QUANT_MXFP4: { PLAIN(tile_mxfp4); return (tile_block){.sc = p->e, .q = p->q[0]}; }
    case QUANT_IQ4_XS: { SUPER(iq4_xs); return (tile_block){.d = s->d, .sc = (const uint8_t *)p->sc, .q = p->q[0]}; }
    case QUANT_Q2_K: { SUPER(q2_K); return (tile_block){.d = s->d, .m = s->dmin, .sc = p->sc[0], .q = p->q[0]}; }
    case QUANT_Q3_K: {
        SUPER(q3_K);
        return (tile_block){.d = s->d, .sc = (const uint8_t *)p->sc[0], .q = p->q[0], .h = p->h};
    }
    case QUANT_Q4_K: { SUPER(q4_K); return (tile_block){s->d, s->dmin, p->sc, p->m, p->q[0], NULL}; }
    case QUANT_Q5_K: { SUPER(q5_K); return (tile_block){s->d, s->dmin, p->sc, p->m, p->q[0], p->h}; }
    default: { /* QUANT_Q6_K */
        SUPER(q6_K);
        return (tile_block){.d = s->d, .sc = (const uint8_t *)p->sc[0], .q = p->q[0], .h = p->hh[0]};
    }
    }
#undef PLAIN
#undef SUPER
}
/* clang-format on */

INLINE bool tile_is_super(quant_type t)
{
    switch (t) {
    case QUANT_Q2_K:
    case QUANT_Q3_K:
    case QUANT_Q4_K:
    case QUANT_Q5_K:
    case QUANT_Q6_K:
    case QUANT_IQ4_XS: return true;
    default: return false;
    }
}

INLINE bool tile_has_halves(quant_type t) /* each 16 inputs have a scale */
{
    return t == QUANT_Q2_K || t == QUANT_Q3_K || t == QUANT_Q6_K;
}

INLINE bool tile_has_min(quant_type t)
{
    return t == QUANT_Q4_1 || t == QUANT_Q5_1 || t == QUANT_Q2_K || t == QUANT_Q4_K || t == QUANT_Q5_K;
}

INLINE const int8_t *tile_book(quant_type t) /* NULL: q are the numbers themselves */
{
    return t == QUANT_IQ4_NL || t == QUANT_IQ4_XS ? quant_iq4_level : t == QUANT_MXFP4 ? quant_fp4_level : NULL;
}

/* Returns the bits of a stored number. */
INLINE int tile_bits(quant_type t)
{
    switch (t) {
    case QUANT_Q2_K: return 2;
    case QUANT_Q3_K: return 3;
    case QUANT_Q5_0:
    case QUANT_Q5_1:
    case QUANT_Q5_K: return 5;
    case QUANT_Q6_K: return 6;
    case QUANT_Q8_0: return 8;
    default: return 4;
    }
}

/* Returns the bits of a number as multiplied; entries of a code book have more than q. Numbers of 8 bits are signed. */
INLINE int tile_number_bits(quant_type t) { return t == QUANT_MXFP4 ? 5 : tile_book(t) ? 8 : tile_bits(t); }

/* Returns the offset to subtract from such a number; for MXFP4 it is added to the code book first, to make the entries
 * unsigned. */
INLINE int tile_offset(quant_type t)
{
    switch (t) {
    case QUANT_Q3_K: return 4;
    case QUANT_Q4_0: return 8;
    case QUANT_Q5_0:
    case QUANT_MXFP4: return 16;
    case QUANT_Q6_K: return 32;
    default: return 0;
    }
}

#endif
