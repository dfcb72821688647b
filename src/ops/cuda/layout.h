/* ops/cuda/layout.h - the layout of weights and activations in GPU memory, for the C files, which compute sizes, and
 * for the kernels.
 *
 * Weights. A matrix is panels of 16 outputs over all inputs; outputs and inputs are padded with zeros, to multiples of
 * 16 and of 64. A panel is tiles of 16 outputs x 64 inputs, then the scales of super-blocks. A tile is a warp's operand
 * A of four tensor-core steps of 16 inputs: lane 4 g + c has outputs g and g + 8, and in step s the inputs 16 s + 4 c
 * to 16 s + 4 c + 3. Its eight numbers of a step are four pairs a[i], in the order of the instruction: output
 * g + 8 (i % 2), inputs 2 (i / 2) and 2 (i / 2) + 1 of the four.
 *
 *     q   per lane; 4-bit types: 16 bytes, word s is step s, pair i in bits 4 i and 16 + 4 i
 *         8-bit types: two pieces of 16 bytes, piece j has steps 2 j and 2 j + 1, two words a step, a byte each
 *         2-bit types: 8 bytes, word s / 2, pair i in bits 8 (s % 2) + 2 i and 16 further
 *         F16, BF16: four pieces, piece s is a[0..3] of step s; F32: eight, two a step
 *         Piece p of all lanes is stored before piece p + 1.
 *     h   per lane; 5-bit types and Q3_K: 4 bytes, pair i of step s in bits 4 s + i and 16 further
 *         6-bit types: 8 bytes, as q of the 2-bit types
 *     s   per g (0..7): output g, then g + 8. Q4_0, Q5_0, Q8_0, IQ4_NL: f16 d of both blocks of 32. Q4_1, Q5_1: f16 d,
 *         m of both. Q4_K, Q5_K: bytes scale, minimum of both. Q6_K, Q3_K: int8 scale of each step. Q2_K: a byte for
 *         each step, scale and minimum. IQ4_XS: int8 scale of both. MXFP4: exponent of both
 *     d   after all tiles, per super-block (4 tiles) and g, output g, then g + 8: f16 d, dmin, or f16 d
 *
 * All numbers are those of the file, so that embeddings can be read from the panels exactly.
 *
 * Activations. f16 numbers in groups of 8 rows, a group is tiles of 64 inputs, a tile (1 KB) is a warp's operand B:
 * two pieces of 16 bytes a lane; lane 4 g + c has row g, piece j has steps 2 j and 2 j + 1, inputs 4 c to 4 c + 3 of
 * each. For many rows the layout is wide, tile by tile: a tile is groups of 8 rows, 1 KB each, a group four steps of 16
 * inputs, a step 8 rows of 32 bytes, a row two pieces of 16 bytes: inputs 0, 1, 4, 5, 8, 9, 12, 13 of the step, then 2,
 * 3, 6, 7, ...; in rows 4 to 7 of a group the second piece comes first. So any groups of a tile that follow each other
 * are one copy, and are as wgmma reads them. The lanes of a panel have the inputs in this order. */
#ifndef TANDEM_OPS_CUDA_LAYOUT_H
#define TANDEM_OPS_CUDA_LAYOUT_H
#include "gguf/quant.h"

#ifdef __CUDACC__
#define BOTH static __host__ __device__ constexpr inline
#elif defined __cplusplus
#define BOTH static constexpr inline
#else
#define BOTH static inline
#endif

enum {
    PANEL_OUTS  = 16,                       /* outputs of a panel */
    TILE_IN     = 64,                       /* inputs of a tile */
    TILE_STEPS  = 4,                        /* tensor-core steps of a tile */
    STEP_IN     = 16,                       /* inputs of a step */
    SUPER_TILES = QK_K / TILE_IN,           /* tiles of a super-block */
    GROUP_ROWS  = 8,                        /* rows of a group of activations */
    XTILE_BYTES = GROUP_ROWS * TILE_IN * 2, /* bytes of a tile of activations */
};

BOTH bool layout_is_super(quant_type t)
{
    return t == QUANT_Q2_K || t == QUANT_Q3_K || t == QUANT_Q4_K || t == QUANT_Q5_K || t == QUANT_Q6_K ||
           t == QUANT_IQ4_XS;
}
BOTH bool layout_has_min(quant_type t)
{
    return t == QUANT_Q4_1 || t == QUANT_Q5_1 || t == QUANT_Q4_K || t == QUANT_Q5_K || t == QUANT_Q2_K;
}

/* Return the bytes of each part, as named above: q and h of a lane, s and d of a g. */
BOTH int layout_q(quant_type t)
{
    return t == QUANT_F32                       ? 128
           : t == QUANT_F16 || t == QUANT_BF16  ? 64
           : t == QUANT_Q8_0                    ? 32
           : t == QUANT_Q2_K || t == QUANT_Q3_K ? 8
                                                : 16;
}
BOTH int layout_h(quant_type t)
{
    return t == QUANT_Q6_K ? 8 : t == QUANT_Q5_0 || t == QUANT_Q5_1 || t == QUANT_Q5_K || t == QUANT_Q3_K ? 4 : 0;
}
BOTH int layout_s(quant_type t)
{
    return t == QUANT_F32 || t == QUANT_F16 || t == QUANT_BF16 ? 0
           : t == QUANT_Q4_1 || t == QUANT_Q5_1                ? 16
           : t == QUANT_IQ4_XS || t == QUANT_MXFP4             ? 4
                                                               : 8;
}
BOTH int layout_d(quant_type t) { return !layout_is_super(t) ? 0 : layout_has_min(t) ? 8 : 4; }

/* Return the bytes of a tile of weights, the tiles of n_in inputs, the panels of n_out outputs, the bytes of a panel,
 * and the bytes of `high` or `low` of n_rows rows of activations. */
BOTH size_t layout_tile_bytes(quant_type t) { return (size_t)(32 * (layout_q(t) + layout_h(t)) + 8 * layout_s(t)); }
BOTH size_t layout_tiles(size_t n_in) { return (n_in + TILE_IN - 1) / TILE_IN; }
BOTH size_t layout_panels(size_t n_out) { return (n_out + PANEL_OUTS - 1) / PANEL_OUTS; }
BOTH size_t layout_panel_bytes(quant_type t, size_t n_in)
{
    size_t n = layout_tiles(n_in);
    return n * layout_tile_bytes(t) + n / SUPER_TILES * 8 * (size_t)layout_d(t);
}
BOTH size_t layout_x_bytes(size_t n_rows, size_t n_in)
{
    return (n_rows + GROUP_ROWS - 1) / GROUP_ROWS * layout_tiles(n_in) * XTILE_BYTES;
}

/* The sum over the inputs is divided into segments of whole tiles, as even as possible, longer ones first: up to 12
 * tiles, 768 inputs; for F32, which needs three products a step, up to 4. These return the maximum of tiles of a
 * segment, and the number of segments. */
BOTH int layout_segment_max(quant_type t) { return t == QUANT_F32 ? 4 : 12; }
BOTH int layout_segments(quant_type t, int n_tiles)
{
    return (n_tiles + layout_segment_max(t) - 1) / layout_segment_max(t);
}
#endif
