/* Weights as the file has them into panels, and the largest of them; layout.h has the layout. */
#include "ops/cuda/panel.cuh"

enum { REPACK_THREADS = 128 };

/* --- the file's blocks ----------------------------------------------------------------------------*/
template <quant_type T> struct block_of;
#define BLOCK(T, type, n)                                                                                              \
    template <> struct block_of<QUANT_##T> {                                                                           \
        typedef type block;                                                                                            \
        enum { N = n };                                                                                                \
    }
BLOCK(F32, uint32_t, 1);
BLOCK(F16, uint16_t, 1);
BLOCK(BF16, uint16_t, 1);
BLOCK(Q4_0, block_q4_0, QK);
BLOCK(Q4_1, block_q4_1, QK);
BLOCK(Q5_0, block_q5_0, QK);
BLOCK(Q5_1, block_q5_1, QK);
BLOCK(Q8_0, block_q8_0, QK);
BLOCK(Q2_K, block_q2_K, QK_K);
BLOCK(Q3_K, block_q3_K, QK_K);
BLOCK(Q4_K, block_q4_K, QK_K);
BLOCK(Q5_K, block_q5_K, QK_K);
BLOCK(Q6_K, block_q6_K, QK_K);
BLOCK(IQ4_NL, block_iq4_nl, QK);
BLOCK(IQ4_XS, block_iq4_xs, QK_K);
BLOCK(MXFP4, block_mxfp4, QK);

static __device__ inline uint32_t nibble(const uint8_t *qs, int i) { return qs[i % 16] >> (i / 16 * 4) & 15; }
static __device__ inline uint32_t fifth(const uint8_t *qh, int i) { return (uint32_t)(qh[i / 8] >> (i % 8) & 1) << 4; }

/* Number i of a block, as it is stored. */
template <quant_type T> static __device__ inline uint32_t stored(const typename block_of<T>::block *b, int i)
{
    int j = i % 32, half = i / 128, sub = i / 32;
    if constexpr (T == QUANT_F32 || T == QUANT_F16 || T == QUANT_BF16) return *b;
    if constexpr (T == QUANT_Q8_0) return (uint8_t)b->qs[i];
    if constexpr (T == QUANT_Q4_0 || T == QUANT_Q4_1 || T == QUANT_IQ4_NL || T == QUANT_MXFP4) return nibble(b->qs, i);
    if constexpr (T == QUANT_Q5_0 || T == QUANT_Q5_1) return nibble(b->qs, i) | fifth(b->qh, i);
    if constexpr (T == QUANT_IQ4_XS) return nibble(b->qs + sub * 16, j);
    if constexpr (T == QUANT_Q2_K) return b->qs[half * 32 + j] >> (sub % 4 * 2) & 3;
    if constexpr (T == QUANT_Q3_K)
        return (b->qs[half * 32 + j] >> (sub % 4 * 2) & 3) | (uint32_t)(b->hmask[j] >> sub & 1) << 2;
    if constexpr (T == QUANT_Q4_K) return b->qs[sub / 2 * 32 + j] >> (sub % 2 * 4) & 15;
    if constexpr (T == QUANT_Q5_K)
        return (b->qs[sub / 2 * 32 + j] >> (sub % 2 * 4) & 15) | (uint32_t)(b->qh[j] >> sub & 1) << 4;
    if constexpr (T == QUANT_Q6_K)
        return (b->ql[half * 64 + i % 64] >> (sub % 4 / 2 * 4) & 15) |
               (uint32_t)(b->qh[half * 32 + j] >> (sub % 4 * 2) & 3) << 4;
}

/* One of the four bytes that scale a tile's 64 inputs of one output, in types that have bytes; i0: the tile's first
 * input in its block. */
template <quant_type T> static __device__ inline int scale_byte(const typename block_of<T>::block *b, int i0, int n)
{
    if constexpr (T == QUANT_Q4_K || T == QUANT_Q5_K) {
        uint8_t scale, min;
        quant_k_scale_min(b->scales, i0 / 32 + n / 2, &scale, &min);
        return n % 2 ? min : scale;
    }
    if constexpr (T == QUANT_Q2_K || T == QUANT_Q6_K) return b->scales[i0 / 16 + n];
    if constexpr (T == QUANT_Q3_K) return quant_q3_k_scale(b->scales, i0 / 16 + n);
    if constexpr (T == QUANT_IQ4_XS) return quant_iq4_xs_scale(b, i0 / 32 + n);
    return 0;
}

/* The rows of a chunk. */
template <quant_type T> struct file_rows {
    const typename block_of<T>::block *at;
    int                                n_in, n_rows;
    /* NULL in the padding */
    __device__ const typename block_of<T>::block *block(int row, int in) const
    {
        constexpr int N = block_of<T>::N;
        return row < n_rows && in < n_in ? at + (size_t)row * (n_in / N) + in / N : NULL;
    }
    __device__ uint32_t number(int row, int in) const
    {
        const typename block_of<T>::block *b = block(row, in);
        return b ? stored<T>(b, in % block_of<T>::N) : 0;
    }
};

/* --- a tile ---------------------------------------------------------------------------------------*/

/* Pair i of a lane's step: the outputs and inputs that layout.h says. in0: the tile's first input. */
template <quant_type T>
static __device__ inline uint32_t pair_at(const file_rows<T> &f, int in0, int lane, int step, int i, int half)
{
    return f.number(lane / 4 + 8 * (i % 2), in0 + STEP_IN * step + 4 * (lane % 4) + 2 * (i / 2) + half);
}

/* `bits` bits from bit `from` of the lane's numbers, spread over words of per_word steps as layout.h says. */
template <quant_type T>
static __device__ inline void put_bits(uint32_t *to, const file_rows<T> &f, int in0, int lane, int from, int bits)
{
    int per_word = 4 / bits; /* steps */
#pragma unroll 1
    for (int w = 0; w < TILE_STEPS / per_word; w++) {
        uint32_t word = 0;
#pragma unroll 1
        for (int n = 0; n < per_word * 8; n++) {
            int step = w * per_word + n / 8, i = n % 4, half = n / 4 % 2;
            word |= (pair_at(f, in0, lane, step, i, half) >> from & ((1u << bits) - 1))
                    << (n / 8 * 4 * bits + bits * i + 16 * half);
        }
        to[lane * (TILE_STEPS / per_word) + w] = word;
    }
}

/* 8-bit numbers and floats. */
template <quant_type T, typename N>
static __device__ inline void put_whole(char *to, const file_rows<T> &f, int in0, int lane)
{
    constexpr int PIECE = 16 / sizeof(N);
#pragma unroll 1
    for (int n = 0; n < 32; n++)
        ((N *)(to + n / PIECE * 512 + lane * 16))[n % PIECE] = (N)pair_at(f, in0, lane, n / 8, n % 8 / 2, n % 2);
}

template <quant_type T> static __device__ inline void put_scales(char *s, const file_rows<T> &f, int in0, int g)
{
    constexpr int S = layout_s(T) / 2;
    for (int side = 0; side < 2; side++, s += S)
        for (int n = 0; n < S; n++) s[n] = 0;
    s -= 2 * S;
#pragma unroll 1
    for (int side = 0; side < 2; side++, s += S) {
        int row = g + 8 * side;
        for (int block = 0; block < 2; block++) {
            const typename block_of<T>::block *b = f.block(row, in0 + QK * block);
            if (!b) continue;
            if constexpr (T == QUANT_Q4_1 || T == QUANT_Q5_1)
                ((uint16_t *)s)[2 * block] = b->d, ((uint16_t *)s)[2 * block + 1] = b->m;
            else if constexpr (T == QUANT_MXFP4)
                s[block] = (char)b->e;
            else if constexpr (!layout_is_super(T))
                ((uint16_t *)s)[block] = b->d;
            else
                for (int n = 0; n < S / 2; n++)
                    s[block * (S / 2) + n] = (char)scale_byte<T>(b, in0 % QK_K, block * (S / 2) + n);
        }
    }
}

template <quant_type T> static __device__ inline void put_super(char *d, const file_rows<T> &f, int in0, int g)
{
    for (int side = 0; side < 2; side++) {
        const typename block_of<T>::block *b = f.block(g + 8 * side, in0);
        if constexpr (layout_d(T) == 8)
            ((uint16_t *)d)[2 * side] = b ? b->d : 0, ((uint16_t *)d)[2 * side + 1] = b ? b->dmin : 0;
        if constexpr (layout_d(T) == 4) ((uint16_t *)d)[side] = b ? b->d : 0;
    }
}

template <quant_type T>
static __device__ inline void put_tile(char *panel, int n_tiles, const file_rows<T> &f, int tile, int lane)
{
    constexpr int Q = layout_q(T), H = layout_h(T), S = layout_s(T), D = layout_d(T);
    char         *at = panel + tile * layout_tile_bytes(T), *h = at + 32 * Q, *s = h + 32 * H;
    char         *d   = panel + n_tiles * layout_tile_bytes(T) + (size_t)(tile / SUPER_TILES) * (8 * D);
    int           in0 = tile * TILE_IN;
    if constexpr (Q == 8) put_bits((uint32_t *)at, f, in0, lane, 0, 2);
    if constexpr (Q == 16) put_bits((uint32_t *)at, f, in0, lane, 0, 4);
    if constexpr (Q == 32) put_whole<T, uint8_t>(at, f, in0, lane);
    if constexpr (Q == 64) put_whole<T, uint16_t>(at, f, in0, lane);
    if constexpr (Q == 128) put_whole<T, uint32_t>(at, f, in0, lane);
    if constexpr (H == 4) put_bits((uint32_t *)h, f, in0, lane, T == QUANT_Q3_K ? 2 : 4, 1);
    if constexpr (H == 8) put_bits((uint32_t *)h, f, in0, lane, 4, 2);
    if constexpr (S > 0)
        if (lane < 8) put_scales(s + lane * S, f, in0, lane);
    if constexpr (D > 0)
        if (lane < 8 && tile % SUPER_TILES == 0) put_super(d + lane * D, f, in0, lane);
}

/* --- chunks of panels -----------------------------------------------------------------------------
 * Grid: x over panels. */
static __device__ inline int first_row_of(const cuda_repack_args &a, size_t panel)
{
    return (int)(panel / a.n_panels * a.n_out + panel % a.n_panels * PANEL_OUTS - a.first_row);
}

template <quant_type T> static __global__ void repack_kernel(cuda_repack_args a)
{
    size_t       panel = a.first_panel + blockIdx.x;
    int          left = a.n_out - (int)(panel % a.n_panels) * PANEL_OUTS, n_tiles = (int)layout_tiles(a.n_in);
    file_rows<T> f = {(const typename block_of<T>::block *)a.file +
                          (size_t)first_row_of(a, panel) * (a.n_in / block_of<T>::N),
                      a.n_in, left < PANEL_OUTS ? left : (int)PANEL_OUTS};
    for (int tile = threadIdx.x / WARP; tile < n_tiles; tile += REPACK_THREADS / WARP)
        put_tile<T>(a.to + panel * layout_panel_bytes(T, a.n_in), n_tiles, f, tile, threadIdx.x % WARP);
}

/* The scale of (output, input) of a panel of Q4_0. */
static __device__ inline float q4_scale(const char *panel, int out, int in)
{
    place       p = place_of(out, in);
    const char *s = panel + (size_t)(in / TILE_IN) * layout_tile_bytes(QUANT_Q4_0) + 32 * layout_q(QUANT_Q4_0);
    return from_f16((uint16_t)f16_at(s + p.g * layout_s(QUANT_Q4_0) + p.side * (layout_s(QUANT_Q4_0) / 2), p.step / 2));
}

/* Q4_0: the largest weight that a scale allows. */
template <quant_type T> static __global__ void largest_kernel(cuda_repack_args a)
{
    size_t   panel = a.first_panel + blockIdx.x;
    int      left = a.n_out - (int)(panel % a.n_panels) * PANEL_OUTS, n = left < PANEL_OUTS ? left : (int)PANEL_OUTS;
    uint32_t largest = 0;
    for (int i = threadIdx.x; i < n * a.n_in; i += REPACK_THREADS) {
        const char *at = a.to + panel * layout_panel_bytes(T, a.n_in);
        float       w  = T == QUANT_Q4_0 ? 8 * fabsf(q4_scale(at, i / a.n_in, i % a.n_in))
                                         : fabsf(weight_at<T>(at, (int)layout_tiles(a.n_in), i / a.n_in, i % a.n_in));
        if (isfinite(w) && __float_as_uint(w) > largest) largest = __float_as_uint(w);
    }
    if (largest) atomicMax(a.largest, largest);
}

template <quant_type T> static void launch_repack(cudaStream_t s, const cuda_repack_args *a)
{
    LAUNCH(repack_kernel<T>, (unsigned)a->count, REPACK_THREADS, 0, s, *a);
    LAUNCH(largest_kernel<T>, (unsigned)a->count, REPACK_THREADS, 0, s, *a);
}

extern "C" cudaError_t cuda_repack(cudaStream_t s, quant_type type, const cuda_repack_args *a)
{
    switch (type) {
#define CASE(T)                                                                                                        \
    case QUANT_##T: launch_repack<QUANT_##T>(s, a); break;
        EACH_TYPE(CASE)
#undef CASE
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}

/* --- embeddings -----------------------------------------------------------------------------------
 * Grid: x over rows, y over elements. */
template <quant_type T>
static __global__ void embed_kernel(float *y, const char *data, int n_in, const int32_t *id, float scale)
{
    let_next_start();
    wait_for_previous();
    int32_t token = id[blockIdx.x];
    if (token < 0) return;
    const char *panel = data + (size_t)(token / PANEL_OUTS) * layout_panel_bytes(T, n_in);
    int         i     = blockIdx.y * blockDim.x + threadIdx.x;
    if (i < n_in)
        y[(size_t)blockIdx.x * n_in + i] = weight_at<T>(panel, (int)layout_tiles(n_in), token % PANEL_OUTS, i) * scale;
}

extern "C" cudaError_t cuda_embed(cudaStream_t s, float *y, const cuda_weight *w, const int32_t *id, int n_rows,
                                  float scale)
{
    enum { EMBED_THREADS = 128 };
    dim3 grid((unsigned)n_rows, blocks_for((size_t)w->pub.n_in, EMBED_THREADS));
    switch (w->pub.type) {
#define CASE(T)                                                                                                        \
    case QUANT_##T:                                                                                                    \
        LAUNCH_EARLY(embed_kernel<QUANT_##T>, grid, EMBED_THREADS, 0, s, y, w->data, w->pub.n_in, id, scale);          \
        break;
        EACH_TYPE(CASE)
#undef CASE
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
