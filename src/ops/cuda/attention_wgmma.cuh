/* ops/cuda/attention_wgmma.cuh - what the kernels of attention on wgmma compute alike. */
#ifndef TANDEM_OPS_CUDA_ATTENTION_WGMMA_CUH
#define TANDEM_OPS_CUDA_ATTENTION_WGMMA_CUH
#include "ops/cuda/attention_mma.cuh"

enum {
    GROUP_THREADS = 128,            /* threads of a warpgroup */
    BLOCK_BYTES   = TILE_KEYS * 128 /* 64 elements of the keys of a tile */
};

/* Returns where elements 4 unit to 4 unit + 3 of a row of K or of queries are in blocks of 64 rows. */
static __device__ inline int key_place(int row, int unit)
{
    int in = unit % 8, piece = unit % 16 / 8 * 4 + in % 2 * 2 + in / 4;
    return unit / 16 * BLOCK_BYTES + row * 128 + ((piece ^ row % 8) << 4) + in / 2 % 2 * 8;
}

/* --- scores: products of a tile as wgmma has them ---*/

/* Returns the maximum of a query's scores, over the four threads that share it. */
template <int N> static __device__ inline float max_score(const float (&s)[4 * N], int side)
{
    float max = -INFINITY;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) max = fmaxf(max, s[4 * n + 2 * side + k]);
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 1));
    return fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 2));
}

/* Turns them into weights. A query whose row sees nothing of the tile gets NaN, which nobody uses. */
template <int N> static __device__ inline void soften_scores(float (&s)[4 * N], float max, int side)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) s[4 * n + 2 * side + k] = expf(s[4 * n + 2 * side + k] - max);
}

/* Returns the sum of a query's weights by halves: keys i and i + 32, then 16, 8, 4, 2, 1 apart. */
static __device__ inline float sum_weights(const float (&s)[32], int side)
{
    float part[TILE_KEYS / 8][2];
#pragma unroll
    for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) part[n][k] = s[4 * n + 2 * side + k];
#pragma unroll
    for (int apart = TILE_KEYS / 16; apart > 0; apart /= 2)
#pragma unroll
        for (int n = 0; n < apart; n++)
#pragma unroll
            for (int k = 0; k < 2; k++) part[n][k] += part[n + apart][k];
#pragma unroll
    for (int k = 0; k < 2; k++) part[0][k] += __shfl_xor_sync(ALL_LANES, part[0][k], 2);
#pragma unroll
    for (int k = 0; k < 2; k++) part[0][k] += __shfl_xor_sync(ALL_LANES, part[0][k], 1);
    return part[0][0] + part[0][1];
}

/* Weights of a warp's queries for a tile as operand A, high and low. */
struct held_weights {
    uint32_t p[2][TILE_KEYS / 16][4];

    __device__ inline void take(const float (&s)[32])
    {
#pragma unroll
        for (int k = 0; k < TILE_KEYS / 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float x = s[8 * k + i / 2 * 4 + i % 2 * 2], y = s[8 * k + i / 2 * 4 + i % 2 * 2 + 1];
                p[0][k][i] = h2_from_f32(x, y);
                p[1][k][i] =
                    h2_from_f32(x - from_f16((uint16_t)p[0][k][i]), y - from_f16((uint16_t)(p[0][k][i] >> 16)));
            }
    }
};

/* Computes out: 16 elements of the V of a tile, from element `at` of `block` on, by the weights, on mma.sync. V of keys
 * that are not in `seen` counts as zero. */
static __device__ inline void weigh_seen(float (&out)[2][4], const held_weights &w, const char *block, int at,
                                         uint64_t seen, int lane)
{
    int i = lane / 8, r = lane % 8, c = lane % 4;
#pragma unroll
    for (int k = 0; k < TILE_KEYS / 16; k++) {
        int      key = 16 * k + i % 2 * 8 + r;
        uint32_t v[4]; /* elements from `at` on, keys 0 and 8; elements 8 further, the same */
        load_matrices_transposed(v, block + key * 128 + (((at / 8 + i / 2) ^ key % 8) << 4));
        uint32_t bits = (uint32_t)(seen >> (16 * k));
        uint32_t low  = (bits >> (2 * c) & 1 ? 0xffffu : 0) | (bits >> (2 * c + 1) & 1 ? 0xffff0000u : 0);
        uint32_t high = (bits >> (2 * c + 8) & 1 ? 0xffffu : 0) | (bits >> (2 * c + 9) & 1 ? 0xffff0000u : 0);
        v[0] &= low, v[1] &= high, v[2] &= low, v[3] &= high;
#pragma unroll
        for (int part = 0; part < 2; part++) {
            mma_16x8x16(out[0], w.p[part][k], v[0], v[1]);
            mma_16x8x16(out[1], w.p[part][k], v[2], v[3]);
        }
    }
}
#endif
