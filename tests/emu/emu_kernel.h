/* tests/emu/emu_kernel.h - the words of CUDA that the kernels use, as C++. */
#ifndef TANDEM_EMU_KERNEL_H
#define TANDEM_EMU_KERNEL_H
#include <math.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __noinline__
#define __launch_bounds__(...)
#define DYNAMIC_SHARED(type, name) type *name = (type *)emu_at.dynamic
#define threadIdx                  (emu_at.thread)
#define blockIdx                   (emu_at.block)
#define blockDim                   (emu_at.block_dim)
#define gridDim                    (emu_at.grid_dim)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) ushort4 {
    unsigned short x, y, z, w;
};
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <typename F> struct emu_launch_of {
    emu_node n; /* first */
    F        f;
};
template <typename F> static void emu_call(void *node) { ((emu_launch_of<F> *)node)->f(); }
template <typename F> static void emu_free(emu_node *node) { delete (emu_launch_of<F> *)node; }
template <typename F> static void emu_do(const char *name, int early, dim3 grid, dim3 block, size_t shared, F f)
{
    emu_node n = {nullptr,     name,        early, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared,
                  emu_call<F>, emu_free<F>, 0};
    if (emu_recording()) {
        emu_record(&(new emu_launch_of<F>{n, f})->n);
        return;
    }
    emu_launch_of<F> now = {n, f};
    emu_run(&now.n);
}
/* Arguments are taken as they are now: a recorded launch outlives what they were computed from. */
template <typename... P, typename... A>
static void emu_launch(const char *name, int early, dim3 grid, dim3 block, size_t shared, void (*kernel)(P...),
                       A... args)
{
    emu_do(name, early, grid, block, shared, [=] { kernel(args...); });
}
#define EMU_LAUNCH(early, kernel, grid, block, shared, stream, ...)                                                    \
    do {                                                                                                               \
        (void)(stream);                                                                                                \
        emu_launch(#kernel, early, grid, block, shared, kernel, __VA_ARGS__);                                          \
    } while (0)
#define LAUNCH(...)       EMU_LAUNCH(0, __VA_ARGS__)
#define LAUNCH_EARLY(...) EMU_LAUNCH(1, __VA_ARGS__)
template <typename... P> static void allow_shared(void (*)(P...), size_t) {}
static inline int                    shared_limit() { return 227 << 10; }
static inline bool                   can_start_early() { return true; }
static inline bool                   has_wgmma() { return true; }
static inline int                    multiprocessors() { return 3; }

static inline void __syncthreads() { emu_sync_block(); }
static inline void __syncwarp() { emu_sync_warp(0); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}

template <typename T> static inline T emu_from(const uint64_t *all, int lane)
{
    T v;
    memcpy(&v, &all[lane], sizeof v);
    return v;
}
template <typename T> static inline const uint64_t *emu_give(T v)
{
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    return emu_sync_warp(bits);
}
template <typename T> static inline T __shfl_xor_sync(unsigned, T v, int k)
{
    return emu_from<T>(emu_give(v), emu_lane() ^ k);
}
template <typename T> static inline T __shfl_sync(unsigned, T v, int from, int width = 32)
{
    return emu_from<T>(emu_give(v), emu_lane() / width * width + (from & (width - 1)));
}
static inline bool __any_sync(unsigned, bool v)
{
    const uint64_t *all = emu_give((uint64_t)v);
    for (int i = 0; i < 32; i++)
        if (all[i]) return true;
    return false;
}
static inline bool     __all_sync(unsigned all, bool v) { return !__any_sync(all, !v); }
static inline unsigned __ballot_sync(unsigned, bool v)
{
    const uint64_t *all = emu_give((uint64_t)v);
    unsigned        set = 0;
    for (int i = 0; i < 32; i++) set |= (unsigned)(all[i] != 0) << i;
    return set;
}
static inline int                     __ffs(int v) { return __builtin_ffs(v); }
static inline int                     __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int                     __popc(unsigned v) { return __builtin_popcount(v); }
static inline int                     __popcll(unsigned long long v) { return __builtin_popcountll(v); }
template <typename T> static inline T atomicAdd(T *p, T v)
{
    T was = *p;
    *p += v;
    return was;
}
template <typename T> static inline T atomicOr(T *p, T v)
{
    T was = *p;
    *p |= v;
    return was;
}
template <typename T> static inline T atomicMax(T *p, T v)
{
    T was = *p;
    if (v > was) *p = v;
    return was;
}
template <typename T> static inline T atomicMin(T *p, T v)
{
    T was = *p;
    if (v < was) *p = v;
    return was;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select)
{
    uint64_t both = a | (uint64_t)b << 32;
    unsigned r    = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(both >> (8 * (select >> (4 * i) & 7)) & 0xff) << (8 * i);
    return r;
}
static inline uint32_t __float_as_uint(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline long long __double_as_longlong(double x)
{
    long long v;
    memcpy(&v, &x, sizeof v);
    return v;
}
#include "emu_ptx.h"
#endif
