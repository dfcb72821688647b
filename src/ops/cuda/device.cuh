/* ops/cuda/device.cuh - shared by the kernels: launches, sums over a warp and a block, conversion of f16 and bf16. */
#ifndef TANDEM_OPS_CUDA_DEVICE_CUH
#define TANDEM_OPS_CUDA_DEVICE_CUH
#include "ops/cuda/kernels.h"
#include "ops/cuda/layout.h"
#include "ops/cuda/ptx.cuh"

#include <cuda_fp16.h>
#include <float.h>
#include <math.h>

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

/* Declarations for nvcc alone; tests/emu has its own. */
#ifndef LAUNCH
#define LAUNCH(kernel, grid, block, shared, stream, ...) kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#define DYNAMIC_SHARED(type, name)                       extern __shared__ type name[]
/* Returns whether the current GPU supports programmatic launch and this program has code for it. */
static inline bool can_start_early()
{
    constexpr int built[] = {__CUDA_ARCH_LIST__};
    int           device = 0, major = 0;
    bool          known = built[sizeof built / sizeof *built - 1] >= 900;
    return known && cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
}
/* Returns whether the current GPU has wgmma and this program has code for it, which runs on no other GPU. */
static inline bool has_wgmma()
{
#ifdef TANDEM_SM90A
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
           minor == 0;
#else
    return false;
#endif
}
static inline int multiprocessors()
{
    int device = 0, n = 1;
    if (cudaGetDevice(&device) == cudaSuccess) cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return n;
}
/* As LAUNCH, but the kernel may start before the previous one has finished; it calls wait_for_previous (ptx.cuh). */
template <typename... P, typename... A>
static void launch_early(dim3 grid, dim3 block, size_t shared, cudaStream_t s, void (*kernel)(P...), A... args)
{
    cudaLaunchAttribute early                        = {};
    cudaLaunchConfig_t  c                            = {};
    early.id                                         = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim                                        = grid;
    c.blockDim                                       = block;
    c.dynamicSmemBytes                               = shared;
    c.stream                                         = s;
    c.attrs                                          = &early;
    c.numAttrs                                       = can_start_early() ? 1 : 0;
    cudaLaunchKernelEx(&c, kernel, P(args)...);
}
/* Returns the maximum of shared memory of a block, in bytes. */
static inline int shared_limit()
{
    int device = 0, bytes = 48 << 10;
    if (cudaGetDevice(&device) == cudaSuccess)
        cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return bytes;
}
/* Allows a kernel this much dynamic shared memory. Without this call a kernel has 48 KB less its static shared memory,
 * which is at most 8 KB. */
template <typename... P> static void allow_shared(void (*kernel)(P...), size_t bytes)
{
    if (bytes > 40 << 10) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}
#define LAUNCH_EARLY(kernel, grid, block, shared, stream, ...)                                                         \
    launch_early(grid, block, shared, stream, kernel, __VA_ARGS__)
#endif

/* Returns n / per_block, rounded up. */
static inline unsigned blocks_for(size_t n, size_t per_block) { return (unsigned)((n + per_block - 1) / per_block); }

static inline int            min_int(int a, int b) { return a < b ? a : b; }
static inline size_t         min_size(size_t a, size_t b) { return a < b ? a : b; }
static __device__ inline int min_of(int a, int b) { return a < b ? a : b; }

/* Return the sum and the maximum over the lanes of a warp, by halves; every lane gets the same bits. */
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

/* Replaces each of N numbers by its sum over a block of THREADS threads, whose number of warps is a power of two; the
 * warps' sums are added by halves too. Two calls in one kernel without a barrier between them need different TAGs. */
template <int THREADS, int TAG, int N> static __device__ inline void block_sums_of(float (&v)[N])
{
    __shared__ float part[N][THREADS / WARP];
    int              lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] = warp_sum(v[i]);
        if (lane == 0) part[i][threadIdx.x / WARP] = v[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = warp_sum(lane < THREADS / WARP ? part[i][lane] : 0);
}
template <int THREADS, int TAG> static __device__ inline float block_sum(float v)
{
    float one[1] = {v};
    block_sums_of<THREADS, TAG>(one);
    return one[0];
}

/* Replaces each of N numbers by its maximum over a block of THREADS threads. */
template <int THREADS, int N> static __device__ inline void block_max(uint32_t (&v)[N])
{
    __shared__ uint32_t part[N][THREADS / WARP];
    int                 lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] = warp_max_u32(v[i]);
        if (lane == 0) part[i][threadIdx.x / WARP] = v[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = warp_max_u32(lane < THREADS / WARP ? part[i][lane] : 0);
    __syncthreads(); /* part may be written again */
}
template <int THREADS> static __device__ inline uint32_t block_max(uint32_t v)
{
    uint32_t one[1] = {v};
    block_max<THREADS, 1>(one);
    return one[0];
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
