/* ops/cuda/device.cuh - what the kernels share: launches, sums over a warp and a block, stored numbers as floats. */
#ifndef TANDEM_OPS_CUDA_DEVICE_CUH
#define TANDEM_OPS_CUDA_DEVICE_CUH
#include "ops/cuda/kernels.h"
#include "ops/cuda/layout.h"

#include <cuda_fp16.h>
#include <float.h>
#include <math.h>

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

/* What only nvcc can read; tests/emu has its own. */
#ifndef LAUNCH
#define LAUNCH(kernel, grid, block, shared, stream, ...) kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#define DYNAMIC_SHARED(type, name)                       extern __shared__ type name[]
#endif

static inline unsigned blocks_for(size_t n, size_t per_block) { return (unsigned)((n + per_block - 1) / per_block); }

/* Sum over the lanes by halves; every lane gets the same bits. */
static __device__ inline float warp_sum(float v)
{
    for (int k = WARP / 2; k > 0; k /= 2) v += __shfl_xor_sync(ALL_LANES, v, k);
    return v;
}

static __device__ inline float warp_max(float v)
{
    for (int k = WARP / 2; k > 0; k /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, k));
    return v;
}

/* The same over a block of THREADS, a multiple of 32; warps add up from first to last. */
template <int THREADS> static __device__ inline float block_sum(float v)
{
    __shared__ float part[THREADS / WARP];
    v = warp_sum(v);
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = v;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < THREADS / WARP; i++) sum += part[i];
    __syncthreads(); /* part may be written again */
    return sum;
}

static __device__ inline float from_f16(uint16_t h)
{
    __half_raw raw;
    raw.x = h;
    return __half2float(__half(raw));
}

static __device__ inline uint16_t to_f16(float f) { return __half_raw(__float2half_rn(f)).x; }
static __device__ inline float    from_bf16(uint16_t b) { return __uint_as_float((uint32_t)b << 16); }
#endif
