/* ops/cuda/cache.cuh - keys and values in the paged cache: addresses, and the stored form of types with scales
 * (ops/cache_code.h), which is the same on every backend.
 *
 * Kernels read stored values as f16, eight at a time (cache_eight): the exact product of code and scale, rounded
 * once. */
#ifndef TANDEM_OPS_CUDA_CACHE_CUH
#define TANDEM_OPS_CUDA_CACHE_CUH
extern "C" {
#include "ops/cache_code.h"
}
#include "ops/cuda/device.cuh"

/* Returns the address of K or V of one head in the page with this id. */
static __device__ inline char *cache_plane_in(const kv_view &c, bool is_v, int layer, int head, int32_t page)
{
    return c.pool + (size_t)page * KV_UNIT + (size_t)layer * c.layer_bytes +
           (is_v ? c.plane_bytes + head * c.v_head_bytes : head * c.head_bytes);
}

/* Returns the id of the page of a slot. */
static __device__ inline int32_t cache_page(const kv_view &c, int32_t lane, int32_t slot)
{
    return c.table[lane * c.table_stride + slot / KV_PAGE];
}

/* Returns the address of the key of one head at `slot`. Where K and V have one type without scales, the value is
 * plane_bytes after it. */
static __device__ inline char *cache_k(const kv_view &c, int layer, int head, int32_t lane, int32_t slot)
{
    return cache_plane_in(c, false, layer, head, cache_page(c, lane, slot)) + slot % KV_PAGE * c.vec_bytes;
}

/* Returns the address of the value of one head at `slot`. */
static __device__ inline char *cache_v(const kv_view &c, int layer, int head, int32_t lane, int32_t slot)
{
    return cache_plane_in(c, true, layer, head, cache_page(c, lane, slot)) + slot % KV_PAGE * c.v_vec_bytes;
}

/* Returns whether a type has scales: cache_has_scales, which is a function of the host. */
static __device__ inline bool cache_is_coded(cache_type type) { return type >= CACHE_Q8_0; }

/* Stores x as element i of a key or value of a type without scales. */
static __device__ inline void cache_put(cache_type type, char *vec, int i, float x)
{
    if (type == CACHE_F32)
        ((float *)vec)[i] = x;
    else
        ((uint16_t *)vec)[i] = to_f16(x);
}

/* --- stored vectors -------------------------------------------------------------------------------*/

/* Codes and scales of one position of a head. */
struct cache_vec {
    char     *code;
    uint16_t *scale;

    __device__ inline cache_vec(const kv_view &c, bool is_v, char *plane, int at)
    {
        size_t vec = is_v ? c.v_vec_bytes : c.vec_bytes;
        code       = plane + at * vec;
        scale      = (uint16_t *)(plane + KV_PAGE * vec + at * (is_v ? c.v_scale_bytes : c.scale_bytes));
    }
    __device__ inline cache_vec(const kv_view &c, bool is_v, int layer, int head, int32_t lane, int32_t slot)
        : cache_vec(c, is_v, cache_plane_in(c, is_v, layer, head, cache_page(c, lane, slot)), slot % KV_PAGE)
    {
    }
};

/* Two f16 of bytes `pick` of x, of which each is the number 1024 + byte; pick: 0 for bytes 0 and 1, 2 for 2 and 3. */
static __device__ inline uint32_t cache_pair(uint32_t x, int pick)
{
    return __byte_perm(x, 0x64, pick ? 0x4342 : 0x4140);
}

#define CACHE_LEVEL_BYTE(x) (uint32_t)((x) + 128)
/* Returns four levels of tq3, each plus 128, in bytes; codes: in the low nibbles. */
static __device__ inline uint32_t cache_levels(uint32_t codes)
{
    constexpr uint32_t L[8] = CACHE_TQ3_LEVELS(CACHE_LEVEL_BYTE);
    return __byte_perm(L[0] | L[1] << 8 | L[2] << 16 | L[3] << 24, L[4] | L[5] << 8 | L[6] << 16 | L[7] << 24, codes);
}

/* Returns the codes of tq3 of elements 8 k to 8 k + 7 of a block, in nibbles; w: its three words. */
static __device__ inline uint32_t cache_nibbles(const uint32_t *w, int k)
{
    if (k < 3) return (k == 0 ? w[0] : k == 1 ? w[1] : w[2]) & 0x77777777u;
    return (w[0] >> 3 & 0x11111111u) | (w[1] >> 2 & 0x22222222u) | (w[2] >> 1 & 0x44444444u);
}

/* Returns two bytes of codes with their offset, as cache_pair gives them, as f16: code times scale, rounded once.
 * T: a type with scales; s: the scale of each. */
template <cache_type T> static __device__ inline uint32_t cache_scaled(uint32_t pair, uint32_t s)
{
    uint32_t code = h2_sub(pair, T == CACHE_Q4_0 ? 0x64086408u /* 1032 */ : 0x64806480u /* 1152 */);
    return h2_mul(T == CACHE_TQ3 ? h2_mul(code, 0x24002400u /* 1 / 64 */) : code, s);
}

/* Eight elements as they are stored, with their scale. A kernel loads many before it decodes the first. */
struct cache_raw {
    uint32_t w[3];
    uint16_t s;
};

/* Loads elements i to i + 7 of a stored vector, without their scale; i is a multiple of 8. T: a type with scales. */
template <cache_type T> static __device__ inline cache_raw cache_load_codes(const char *code, int i)
{
    cache_raw r = {};
    if (T == CACHE_TQ3) {
        const uint32_t *w = (const uint32_t *)(code + i / CACHE_BLOCK * 12);
        r.w[0] = w[0], r.w[1] = w[1], r.w[2] = w[2];
        return r;
    }
    uint2 x = *(const uint2 *)(code + (T == CACHE_Q8_0 ? i : i / CACHE_BLOCK * (CACHE_BLOCK / 2) + i % 16));
    r.w[0] = x.x, r.w[1] = x.y;
    return r;
}
/* The same with their scale. */
template <cache_type T> static __device__ inline cache_raw cache_load(const char *code, const uint16_t *scale, int i)
{
    cache_raw r = cache_load_codes<T>(code, i);
    r.s         = scale[i / (T == CACHE_TQ3 ? (int)CACHE_GROUP : (int)CACHE_BLOCK)];
    return r;
}

/* Returns these elements as f16; s: their scale, twice. */
template <cache_type T> static __device__ inline uint4 cache_decoded(const cache_raw &r, int i, uint32_t s)
{
    uint32_t low, high; /* codes with their offset, in bytes */
    if (T == CACHE_Q8_0) {
        low = r.w[0] ^ 0x80808080u, high = r.w[1] ^ 0x80808080u;
    } else if (T == CACHE_Q4_0) {
        int shift = i & 16 ? 4 : 0;
        low = r.w[0] >> shift & 0x0f0f0f0fu, high = r.w[1] >> shift & 0x0f0f0f0fu;
    } else {
        uint32_t n = cache_nibbles(r.w, i % CACHE_BLOCK / 8);
        low = cache_levels(n & 0xffff), high = cache_levels(n >> 16);
    }
    return {cache_scaled<T>(cache_pair(low, 0), s), cache_scaled<T>(cache_pair(low, 2), s),
            cache_scaled<T>(cache_pair(high, 0), s), cache_scaled<T>(cache_pair(high, 2), s)};
}
template <cache_type T> static __device__ inline uint4 cache_decoded(const cache_raw &r, int i)
{
    return cache_decoded<T>(r, i, both_low(r.s));
}

/* Returns elements i to i + 7 of a stored vector as f16. T: any type but F32. */
template <cache_type T> static __device__ inline uint4 cache_eight(const char *code, const uint16_t *scale, int i)
{
    if constexpr (T == CACHE_F16)
        return *(const uint4 *)(code + 2 * i);
    else
        return cache_decoded<T>(cache_load<T>(code, scale, i), i);
}

/* A type as an argument, and a call with the type that has scales. */
template <cache_type T> struct type_tag {
};
template <typename F> static __device__ inline void with_type(cache_type t, const F &f)
{
    switch (t) {
    case CACHE_Q8_0: f(type_tag<CACHE_Q8_0>{}); break;
    case CACHE_Q4_0: f(type_tag<CACHE_Q4_0>{}); break;
    default: f(type_tag<CACHE_TQ3>{});
    }
}

/* Returns element i of a stored vector, exactly. */
static __device__ inline float cache_value(cache_type t, const cache_vec &v, int i)
{
    if (t == CACHE_F32) return ((const float *)v.code)[i];
    if (t == CACHE_F16) return from_f16(((const uint16_t *)v.code)[i]);
    float s = from_f16(v.scale[i / (t == CACHE_TQ3 ? (int)CACHE_GROUP : (int)CACHE_BLOCK)]);
    if (t == CACHE_Q8_0) return (float)((const int8_t *)v.code)[i] * s;
    if (t == CACHE_Q4_0) {
        uint8_t b = ((const uint8_t *)v.code)[i / CACHE_BLOCK * (CACHE_BLOCK / 2) + i % 16];
        return (float)((i & 16 ? b >> 4 : b & 15) - 8) * s;
    }
    uint32_t n =
        cache_nibbles((const uint32_t *)(v.code + i / CACHE_BLOCK * 12), i % CACHE_BLOCK / 8) >> (4 * (i % 8)) & 7;
    return s * ((float)((int)(cache_levels(n) & 255) - 128) / 64.0f);
}

/* --- rotation and encoding, by a block ------------------------------------------------------------*/

/* Multiplies a head in shared memory by R of cache_code.h, or by its inverse. Begins and ends with a barrier. */
static __device__ inline void turn_head(float *x, int dim, bool inverse)
{
    constexpr uint64_t signs[2] = CACHE_SIGNS;
    int                group    = dim == 64 ? 64 : (int)CACHE_GROUP;
    float              factor   = dim == 64 ? CACHE_FACTOR_64 : CACHE_FACTOR_128;
    __syncthreads();
    for (int i = threadIdx.x; i < dim && !inverse; i += blockDim.x)
        if (signs[i % group / 64] >> (i % 64) & 1) x[i] = -x[i];
    __syncthreads();
    for (int h = 1; h < group; h *= 2) {
        for (int i = threadIdx.x; i < dim / 2; i += blockDim.x) {
            int   j = i / h * 2 * h + i % h;
            float a = x[j], b = x[j + h];
            x[j]     = a + b;
            x[j + h] = a - b;
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        float y = x[i] * factor;
        x[i]    = inverse && signs[i % group / 64] >> (i % 64) & 1 ? -y : y;
    }
    __syncthreads();
}

/* The same by the lanes of a warp, with the same bits: lane i has elements 4 i to 4 i + 3 of a group of GROUP channels,
 * or of two of 64. All lanes call it. */
template <int GROUP> static __device__ inline float4 turn_quads(float4 x)
{
    constexpr uint64_t signs[2] = CACHE_SIGNS;
    int                at       = 4 * (int)(threadIdx.x % (GROUP / 4));
    unsigned           negative = (unsigned)(signs[at / 64] >> (at % 64));
    float4             y        = {negative & 1 ? -x.x : x.x, negative & 2 ? -x.y : x.y, negative & 4 ? -x.z : x.z,
                negative & 8 ? -x.w : x.w};
    x = {y.x + y.y, y.x - y.y, y.z + y.w, y.z - y.w};
    y = {x.x + x.z, x.y + x.w, x.x - x.z, x.y - x.w};
#pragma unroll
    for (int h = 1; h < GROUP / 4; h *= 2) {
        bool   second = threadIdx.x & h;
        float4 other  = {__shfl_xor_sync(ALL_LANES, y.x, h), __shfl_xor_sync(ALL_LANES, y.y, h),
                         __shfl_xor_sync(ALL_LANES, y.z, h), __shfl_xor_sync(ALL_LANES, y.w, h)};
        y             = {second ? other.x - y.x : y.x + other.x, second ? other.y - y.y : y.y + other.y,
             second ? other.z - y.z : y.z + other.z, second ? other.w - y.w : y.w + other.w};
    }
    float factor = GROUP == 64 ? CACHE_FACTOR_64 : CACHE_FACTOR_128;
    return {y.x * factor, y.y * factor, y.z * factor, y.w * factor};
}

/* Returns the thread's element of a group that is multiplied by the inverse of R, by a block of CACHE_GROUP threads
 * with an element each; dim 64: the first 64 of them. */
static __device__ inline float turn_back(float x, int dim)
{
    __shared__ float   all[CACHE_GROUP];
    constexpr uint64_t signs[2] = CACHE_SIGNS;
    int                i        = threadIdx.x;
    for (int h = 1; h < WARP; h *= 2) {
        float other = __shfl_xor_sync(ALL_LANES, x, h);
        x           = i & h ? other - x : x + other;
    }
    for (int h = WARP; h < (dim == 64 ? 64 : (int)CACHE_GROUP); h *= 2) {
        all[i] = x;
        __syncthreads();
        x = i & h ? all[i ^ h] - x : x + all[i ^ h];
        __syncthreads();
    }
    x *= dim == 64 ? CACHE_FACTOR_64 : CACHE_FACTOR_128;
    return signs[i / 64] >> (i % 64) & 1 ? -x : x;
}

static __device__ inline uint16_t clamped_f16(float v)
{
    return to_f16(v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v);
}

/* Encodes 32 values of q8_0 or q4_0, one of each lane of a warp. */
static __device__ inline void encode_block(cache_type t, char *code, uint16_t *scale, float y)
{
    int      lane = threadIdx.x % WARP;
    uint32_t size = __float_as_uint(y) & 0x7fffffffu, top = warp_max_u32(size);
    unsigned all  = __ballot_sync(ALL_LANES, size == top);
    float    m    = __shfl_sync(ALL_LANES, y, __popc((all & -all) - 1)); /* the first of the largest */
    uint16_t s    = clamped_f16(t == CACHE_Q8_0 ? fabsf(m) / 127.0f : m / -8.0f);
    float    back = from_f16(s), v = rintf(y * (back != 0 ? 1.0f / back : 0));
    float    min = t == CACHE_Q8_0 ? -127 : -8, max = t == CACHE_Q8_0 ? 127 : 7;
    int      q = (int)(!(v >= min) ? min : v > max ? max : v);
    if (lane == 0) *scale = s;
    if (t == CACHE_Q8_0) {
        code[lane] = (char)q;
        return;
    }
    int other = __shfl_xor_sync(ALL_LANES, q, 16);
    if (lane < 16) ((uint8_t *)code)[lane] = (uint8_t)((q + 8) | (other + 8) << 4);
}

static __device__ inline uint32_t warp_or(uint32_t v)
{
    for (int k = WARP / 2; k > 0; k /= 2) v |= __shfl_xor_sync(ALL_LANES, v, k);
    return v;
}

/* Encodes a group of tq3 by a warp; lane i has values i, i + 32, ... */
static __device__ inline void encode_tq3(char *code, uint16_t *scale, const float *y, int group)
{
    constexpr float cut[7] = {-103, -62, -29.5f, 0, 29.5f, 62, 103};
    int             lane = threadIdx.x % WARP, n = group / WARP;
    float           x[4] = {}, square[4];
    uint32_t        q[4];
    float           norm = 0;
    for (int k = 0; k < n; k++) x[k] = y[lane + k * WARP];
    for (int k = 0; k < 4; k++) square[k] = x[k] * x[k];
    /* at distance group / 2, group / 4, ... 1 */
    float energy = warp_sum(n == 4 ? (square[0] + square[2]) + (square[1] + square[3]) : square[0] + square[1]);
    float length = sqrtf(energy * (1.0f / (float)group)), factor = length != 0 ? 0x1.d8218p+5f / length : 0;
    for (int k = 0; k < n; k++) {
        float t = x[k] * factor;
        q[k]    = 0;
        for (int i = 0; i < 7; i++) q[k] += cut[i] <= t;
        int level = (int)(cache_levels(q[k]) & 255) - 128;
        norm += (float)(level * level);
    }
    uint16_t s = clamped_f16(64.0f * sqrtf(energy / warp_sum(norm))); /* the norm is a whole number: exact */
    if (lane == 0) *scale = s;
    for (int k = 0; k < n; k++) {
        if (!(s & 0x7fff)) q[k] = 0;
        for (int w = 0; w < 3; w++) {
            uint32_t mine = lane / 8 == w ? q[k] << (4 * (lane % 8)) : 0;
            if (lane >= 24) mine = (q[k] >> w & 1) << (4 * (lane - 24) + 3);
            mine = warp_or(mine);
            if (lane == 0) ((uint32_t *)code)[3 * k + w] = mine;
        }
    }
}

/* Stores a head, in shared memory and rotated already where the type has scales. */
static __device__ inline void encode_head(cache_type t, const cache_vec &to, const float *y, int dim)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;
    int group = t == CACHE_TQ3 ? (dim == 64 ? 64 : (int)CACHE_GROUP) : (int)CACHE_BLOCK;
    if (!cache_is_coded(t))
        for (int i = threadIdx.x; i < dim; i += blockDim.x) cache_put(t, to.code, i, y[i]);
    else
        for (int i = warp; i < dim / group; i += n_warps)
            if (t == CACHE_TQ3)
                encode_tq3(to.code + i * group / 8 * 3, to.scale + i, y + i * group, group);
            else
                encode_block(t, to.code + i * (t == CACHE_Q8_0 ? group : group / 2), to.scale + i, y[i * group + lane]);
}
#endif
