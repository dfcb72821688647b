/* ops/cuda/convert.cuh - converts rows of floats to f16, for the tensor cores.
 *
 * A row is scaled by a power of two that puts its largest number into [2^14, 2^15): high = f16(x s), low = f16(x s -
 * high). A row of zeros has scale 1; a NaN or an infinity makes the whole product NaN. Weights of float types use
 * `low`, others do not. */
#ifndef TANDEM_OPS_CUDA_CONVERT_CUH
#define TANDEM_OPS_CUDA_CONVERT_CUH
#include "ops/cuda/device.cuh"
#include "ops/cuda/ptx.cuh"

/* Returns the offset in bytes of inputs `in` to `in` + 3 of `row`; in: a multiple of 4. */
static __device__ inline size_t x_offset(int row, int in, int n_tiles)
{
    return ((size_t)(row / GROUP_ROWS) * n_tiles + in / TILE_IN) * XTILE_BYTES + in % TILE_IN / 32 * 512 +
           (row % GROUP_ROWS * 4 + in % STEP_IN / 4) * 16 + in % 32 / STEP_IN * 8;
}

/* The same in the wide layout, of inputs `in` and `in` + 1; in: a multiple of 2. */
static __device__ inline size_t x_offset_wide(int row, int in, size_t tile_bytes)
{
    return in / TILE_IN * tile_bytes + (size_t)(row / GROUP_ROWS) * XTILE_BYTES + in % TILE_IN / STEP_IN * 256 +
           row % GROUP_ROWS * 32 + (in % 4 / 2 ^ row % GROUP_ROWS / 4) * 16 + in % STEP_IN / 4 * 4;
}

/* The power of two by which a row is multiplied, and its inverse. */
struct row_scale {
    float up, down;
};
/* Returns the scale of a row; largest: bits of the largest |x|. */
static __device__ inline row_scale scale_of_row(uint32_t largest)
{
    if (largest >= 0x7f800000u) return {0, NAN};
    if (!largest) return {1, 1};
    int e = 14 + 127 - (int)(largest >> 23);
    e     = e > 126 ? 126 : e;
    return {__uint_as_float((uint32_t)(127 + e) << 23), __uint_as_float((uint32_t)(127 - e) << 23)};
}

/* Stores inputs i to i + 3 of a row as f16. */
static __device__ inline void put_x(const cuda_x &to, int row, int i, int n_tiles, float4 v, float up)
{
    v          = up != 0 ? make_float4(v.x * up, v.y * up, v.z * up, v.w * up) : make_float4(0, 0, 0, 0);
    uint2 high = {h2_from_f32(v.x, v.y), h2_from_f32(v.z, v.w)}, low;
    low.x      = h2_from_f32(v.x - from_f16((uint16_t)high.x), v.y - from_f16((uint16_t)(high.x >> 16)));
    low.y      = h2_from_f32(v.z - from_f16((uint16_t)high.y), v.w - from_f16((uint16_t)(high.y >> 16)));
    if (to.wide) {
        size_t at = x_offset_wide(row, i, to.tile_bytes), other = at ^ 16;
        *(uint32_t *)(to.high + at)    = high.x;
        *(uint32_t *)(to.high + other) = high.y;
        *(uint32_t *)(to.low + at)     = low.x;
        *(uint32_t *)(to.low + other)  = low.y;
        return;
    }
    size_t at                = x_offset(row, i, n_tiles);
    *(uint2 *)(to.high + at) = high;
    *(uint2 *)(to.low + at)  = low;
}

/* Returns which row of floats is row i of x; -1: none. */
static __device__ inline int source_of(const cuda_x &x, int i) { return x.order ? read_l2(&x.order[i]) : i; }

/* Returns the larger one of `largest` and the bits of the magnitudes of v. */
static __device__ inline uint32_t largest_of(float4 v, uint32_t largest)
{
    uint32_t bits[4] = {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)};
#pragma unroll
    for (int i = 0; i < 4; i++) largest = (bits[i] & 0x7fffffffu) > largest ? bits[i] & 0x7fffffffu : largest;
    return largest;
}

/* --- rows by quads --------------------------------------------------------------------------------
 * Quad q of a row, elements 4 q to 4 q + 3, belongs to thread q mod THREADS, which keeps up to QUADS of them. Elements
 * from n on are loaded as 0 and not stored. */
static __device__ inline float4 load_quad(const float *x, int i, int n)
{
    if (i >= n) return make_float4(0, 0, 0, 0);
    if (n % 4 == 0 && (uintptr_t)x % sizeof(float4) == 0) return *(const float4 *)(x + i);
    return make_float4(x[i], i + 1 < n ? x[i + 1] : 0, i + 2 < n ? x[i + 2] : 0, i + 3 < n ? x[i + 3] : 0);
}
static __device__ inline void store_quad(float *y, int i, int n, float4 v)
{
    if (n % 4 == 0 && (uintptr_t)y % sizeof(float4) == 0) {
        if (i < n) *(float4 *)(y + i) = v;
        return;
    }
    if (i < n) y[i] = v.x;
    if (i + 1 < n) y[i + 1] = v.y;
    if (i + 2 < n) y[i + 2] = v.z;
    if (i + 3 < n) y[i + 3] = v.w;
}

template <int THREADS, int QUADS> struct row_quads {
    float4 v[QUADS];

    static __device__ inline int at(int j) { return 4 * ((int)threadIdx.x + j * THREADS); }
    __device__ inline void       load(const float *x, int n)
    {
#pragma unroll
        for (int j = 0; j < QUADS; j++) v[j] = load_quad(x, at(j), n);
    }
    __device__ inline void store(float *y, int n) const
    {
#pragma unroll
        for (int j = 0; j < QUADS; j++) store_quad(y, at(j), n, v[j]);
    }
    __device__ inline uint32_t largest() const
    {
        uint32_t top = 0;
#pragma unroll
        for (int j = 0; j < QUADS; j++) top = largest_of(v[j], top);
        return top;
    }
    /* Writes the row as f16, padding included. largest: bits of the largest magnitude of the whole row. */
    __device__ inline void convert(const cuda_x &to, int row, int n, uint32_t largest) const
    {
        row_scale s       = scale_of_row(largest);
        int       n_tiles = (int)layout_tiles(n);
        if (threadIdx.x == 0) to.scale[row] = s.down;
#pragma unroll
        for (int j = 0; j < QUADS; j++)
            if (at(j) < n_tiles * TILE_IN) put_x(to, row, at(j), n_tiles, v[j], s.up);
    }
};

/* Calls CALL(threads, quads) with the sizes of row_quads for rows of n. Returns cudaErrorInvalidValue from the calling
 * function if a row is too long. */
#define BY_ROW_LENGTH(n, CALL)                                                                                         \
    do {                                                                                                               \
        if ((n) <= 256)                                                                                                \
            CALL(64, 1);                                                                                               \
        else if ((n) <= 1024)                                                                                          \
            CALL(256, 1);                                                                                              \
        else if ((n) <= 4096)                                                                                          \
            CALL(1024, 1);                                                                                             \
        else if ((n) <= 8192)                                                                                          \
            CALL(1024, 2);                                                                                             \
        else if ((n) <= 24576)                                                                                         \
            CALL(1024, 6);                                                                                             \
        else                                                                                                           \
            return cudaErrorInvalidValue;                                                                              \
    } while (0)
#endif
