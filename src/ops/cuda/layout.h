/* ops/cuda/layout.h - how weights lie in GPU memory, for the C side that writes it and the kernels that read it.
 *
 * A matrix is rows of row_bytes, one output each. A row of quantised numbers is four planes, each over all its blocks of
 * 32 inputs, so that neighbouring lanes, which take neighbouring blocks, read neighbouring bytes:
 *
 *     q   16 bytes a block: byte j holds input j in its low and input j + 16 in its high half; 8-bit types: 32 bytes
 *     h   5-bit types, 4 bytes: bit g of byte k is the fifth bit of input 4 g + k
 *         6-bit types, 8 bytes: bits 2 g and up of byte k of word i are the top bits of input 16 i + 4 g + k
 *     s   what scales a block: f16 d; or f16 d, m; or, for K types, two bytes (scale and minimum, or two scales)
 *     d   K types, per 8 blocks: f16 d, dmin, or f16 d
 *
 * Floats keep their type, [row][input], a row padded with zeros to a multiple of 4. */
#ifndef TANDEM_OPS_CUDA_LAYOUT_H
#define TANDEM_OPS_CUDA_LAYOUT_H
#include "gguf/quant.h"

#ifdef __CUDACC__
#define BOTH static __host__ __device__ inline
#else
#define BOTH static inline
#endif

enum { SUPER_BLOCKS = QK_K / QK, ROW_ALIGN = 16, FLOAT_PAD = 4 };

BOTH int layout_bits(quant_type t)
{
    return t == QUANT_Q8_0 ? 8 : t == QUANT_Q6_K ? 6 : t == QUANT_Q5_0 || t == QUANT_Q5_1 || t == QUANT_Q5_K ? 5 : 4;
}
BOTH bool layout_is_super(quant_type t) { return t == QUANT_Q4_K || t == QUANT_Q5_K || t == QUANT_Q6_K; }
BOTH bool layout_has_min(quant_type t)
{
    return t == QUANT_Q4_1 || t == QUANT_Q5_1 || t == QUANT_Q4_K || t == QUANT_Q5_K;
}
/* What is taken from a stored number to give the weight's. */
BOTH int layout_offset(quant_type t) { return t == QUANT_Q4_0 ? 8 : t == QUANT_Q5_0 ? 16 : t == QUANT_Q6_K ? 32 : 0; }

/* Bytes of a block in each plane; of a super-block in the last. */
BOTH size_t layout_q(quant_type t) { return layout_bits(t) == 8 ? 32 : 16; }
BOTH size_t layout_h(quant_type t) { return layout_bits(t) == 5 ? 4 : layout_bits(t) == 6 ? 8 : 0; }
BOTH size_t layout_s(quant_type t) { return t == QUANT_Q4_1 || t == QUANT_Q5_1 ? 4 : 2; }
BOTH size_t layout_d(quant_type t) { return t == QUANT_Q6_K ? 2 : layout_is_super(t) ? 4 : 0; }

/* Where the planes of a row of n blocks begin; the first is at 0. */
BOTH size_t layout_h_at(quant_type t, size_t n) { return n * layout_q(t); }
BOTH size_t layout_s_at(quant_type t, size_t n) { return layout_h_at(t, n) + n * layout_h(t); }
BOTH size_t layout_d_at(quant_type t, size_t n) { return layout_s_at(t, n) + n * layout_s(t); }
BOTH size_t layout_row_bytes(quant_type t, size_t n_in)
{
    if (t == QUANT_F32 || t == QUANT_F16 || t == QUANT_BF16)
        return (n_in + FLOAT_PAD - 1) / FLOAT_PAD * FLOAT_PAD * (t == QUANT_F32 ? 4 : 2);
    size_t n = n_in / QK, bytes = layout_d_at(t, n) + n / SUPER_BLOCKS * layout_d(t);
    return (bytes + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
}
#endif
