/* ops/cuda/panel.cuh - reads the weights of a panel, as operand A of the tensor cores or one by one. layout.h describes
 * the layout.
 *
 * The arithmetic of operand A (docs/ops.md) is f16: d or scale times the tensor's power of two, (q - offset) exact, one
 * product. Types with a minimum: s = f16(d scale), m = f16(dmin minimum), w = fma(q, s, -m). */
#ifndef TANDEM_OPS_CUDA_PANEL_CUH
#define TANDEM_OPS_CUDA_PANEL_CUH
#include "ops/cuda/device.cuh"
#include "ops/cuda/ptx.cuh"

/* --- a lane's part of a tile ---------------------------------------------------------------------*/
template <quant_type T> struct lane_tile { /* the parts of layout.h that type T has */
    uint4    q[layout_q(T) > 16 ? layout_q(T) / 16 : 1];
    uint32_t h[2];
    uint4    s;
    uint2    d;
};

/* Loads a lane's part from copies in shared memory of the tile and of the scales of its super-block. */
template <quant_type T>
static __device__ inline void load_tile(lane_tile<T> &k, const char *tile, const char *super, int lane)
{
    constexpr int Q = layout_q(T), H = layout_h(T), S = layout_s(T), D = layout_d(T);
    if constexpr (Q == 8) {
        uint2 v  = *(const uint2 *)(tile + lane * 8);
        k.q[0].x = v.x, k.q[0].y = v.y;
    } else {
#pragma unroll
        for (int p = 0; p < Q / 16; p++) k.q[p] = *(const uint4 *)(tile + p * 512 + lane * 16);
    }
    const char *h = tile + 32 * Q, *s = h + 32 * H + lane / 4 * S;
    if constexpr (H == 4) k.h[0] = *(const uint32_t *)(h + lane * 4);
    if constexpr (H == 8) {
        uint2 v = *(const uint2 *)(h + lane * 8);
        k.h[0] = v.x, k.h[1] = v.y;
    }
    if constexpr (S == 4) k.s.x = *(const uint32_t *)s;
    if constexpr (S == 8) {
        uint2 v = *(const uint2 *)s;
        k.s.x = v.x, k.s.y = v.y;
    }
    if constexpr (S == 16) k.s = *(const uint4 *)s;
    if constexpr (D == 4) k.d.x = *(const uint32_t *)(super + lane / 4 * D);
    if constexpr (D == 8) k.d = *(const uint2 *)(super + lane / 4 * D);
    (void)super;
}

/* --- scales of a step ----------------------------------------------------------------------------*/
#define H2_1024 0x64006400u
#define H2_1152 0x64806480u

/* The scales and negated minima of a lane's two outputs, each as a pair of equal f16. */
struct step_scales {
    uint32_t s[2], m[2];
};

/* Returns 2^(e - 128 + up) as f16. */
static __device__ inline uint32_t fp4_scale(uint32_t e, int up)
{
    int f = (int)e - 128 + up + 15; /* the exponent's bits */
    return f >= 31 ? 0x7bffu : f > 0 ? (uint32_t)f << 10 : f > -10 ? 0x200u >> -f : 0;
}

/* Returns the scales of a step. up: the tensor's power of two as a pair of equal f16; for Q4_0 as two factors, for
 * MXFP4 its logarithm. */
template <quant_type T> static __device__ inline step_scales scales_of(const lane_tile<T> &k, int step, uint32_t up)
{
    step_scales r     = {};
    int         block = step / 2;
    if constexpr (T == QUANT_Q4_1 || T == QUANT_Q5_1) {
        uint32_t v[2] = {h2_mul(block ? k.s.y : k.s.x, up), h2_mul(block ? k.s.w : k.s.z, up)};
#pragma unroll
        for (int i = 0; i < 2; i++) r.s[i] = both_low(v[i]), r.m[i] = both_high(v[i]);
    } else if constexpr (T == QUANT_Q4_K || T == QUANT_Q5_K || T == QUANT_Q2_K) {
        uint32_t s[2] = {k.s.x, k.s.y}, d[2] = {k.d.x, k.d.y};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t v;
            if (T == QUANT_Q2_K) {
                uint32_t byte = s[i] >> (8 * step);
                v             = (byte & 15) | (byte & 0xf0) << 12;
            } else {
                v = __byte_perm(s[i], 0, block ? 0x4342 : 0x4140);
            }
            v      = h2_mul(h2_sub(v | H2_1024, H2_1024), h2_mul(d[i], up));
            r.s[i] = both_low(v), r.m[i] = both_high(v) ^ 0x80008000u;
        }
    } else if constexpr (T == QUANT_Q6_K || T == QUANT_Q3_K || T == QUANT_IQ4_XS) {
        uint32_t v; /* bytes of output g and g + 8, plus 128 */
        if (T == QUANT_IQ4_XS)
            v = __byte_perm(k.s.x, 0, block ? 0x4341 : 0x4240);
        else
            v = __byte_perm(k.s.x, k.s.y, (unsigned)(step | (4 + step) << 8));
        v      = h2_sub(((v & 0x00ff00ffu) ^ 0x00800080u) | H2_1024, H2_1152);
        v      = h2_mul(v, h2_mul(k.d.x, up));
        r.s[0] = both_low(v), r.s[1] = both_high(v);
    } else if constexpr (T == QUANT_MXFP4) {
        uint32_t e = k.s.x >> (8 * block);
        r.s[0] = fp4_scale(e & 0xff, (int)up) * 0x10001u, r.s[1] = fp4_scale(e >> 16 & 0xff, (int)up) * 0x10001u;
    } else if constexpr (T == QUANT_Q4_0) {
        /* s is for q 2^-24, of the second output for q 2^-20; m is -8 2^-24 d. */
        uint32_t v[2] = {h2_mul(h2_mul(k.s.x, both_low(up)), both_high(up)),
                         h2_mul(h2_mul(k.s.y, both_low(up)), h2_mul(both_high(up), 0x2c002c00u /* 1 / 16 */))};
        uint32_t m[2] = {h2_mul(v[0], 0x80088008u), h2_mul(v[1], 0x80808080u)};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            r.s[i] = block ? both_high(v[i]) : both_low(v[i]);
            r.m[i] = block ? both_high(m[i]) : both_low(m[i]);
        }
    } else {
        uint32_t v[2] = {h2_mul(k.s.x, up), h2_mul(k.s.y, up)};
#pragma unroll
        for (int i = 0; i < 2; i++) r.s[i] = block ? both_high(v[i]) : both_low(v[i]);
    }
    return r;
}

/* --- numbers of a step ---------------------------------------------------------------------------*/

/* Returns levels 4 i to 4 i + 3 plus 128, a byte each. */
template <quant_type T> static __device__ inline uint32_t level_word(int i)
{
    if (T == QUANT_MXFP4) return i == 0 ? 0x83828180u : i == 1 ? 0x8c888684u : i == 2 ? 0x7d7e7f80u : 0x74787a7cu;
    return i == 0 ? 0x3f2d1801u : i == 1 ? 0x766a5d4fu : i == 2 ? 0xa6998d81u : 0xf1d9c5b5u;
}

/* Returns the levels plus 128 of the four 4-bit numbers in the low half of v, a byte each. */
template <quant_type T> static __device__ inline uint32_t levels(uint32_t v)
{
    uint32_t low  = __byte_perm(level_word<T>(0), level_word<T>(1), v & 0x7777);
    uint32_t high = __byte_perm(level_word<T>(2), level_word<T>(3), v & 0x7777);
    return __byte_perm(low, high, (v & 0x8888) >> 1 | 0x3210);
}

/* Returns pair i of a step as f16: 1024 + q; for types with levels or 8 bits 1024 + 128 + q. */
template <quant_type T> static __device__ inline uint32_t pair_of(const lane_tile<T> &k, int step, int i)
{
    uint32_t word[4] = {k.q[0].x, k.q[0].y, k.q[0].z, k.q[0].w};
    if constexpr (T == QUANT_Q8_0) {
        uint32_t more[4] = {k.q[1].x, k.q[1].y, k.q[1].z, k.q[1].w};
        uint32_t v       = (step / 2 ? more : word)[step % 2 * 2 + i / 2] ^ 0x80808080u;
        return __byte_perm(v, H2_1024, i % 2 ? 0x7372 : 0x7170);
    } else if constexpr (T == QUANT_IQ4_NL || T == QUANT_IQ4_XS || T == QUANT_MXFP4) {
        uint32_t low = levels<T>(word[step]), high = levels<T>(word[step] >> 16);
        return (__byte_perm(low, high, (unsigned)(i | (4 + i) << 8)) & 0x00ff00ffu) | H2_1024;
    } else if constexpr (layout_q(T) == 8) {
        uint32_t v = word[step / 2] >> (8 * (step % 2) + 2 * i) & 0x00030003u;
        if constexpr (T == QUANT_Q3_K) v |= (k.h[0] >> (4 * step + i) & 0x00010001u) << 2;
        return v | H2_1024;
    } else {
        uint32_t v = word[step] >> (4 * i) & 0x000f000fu;
        if constexpr (layout_h(T) == 4) v |= (k.h[0] >> (4 * step + i) & 0x00010001u) << 4;
        if constexpr (layout_h(T) == 8) v |= (k.h[step / 2] >> (8 * (step % 2) + 2 * i) & 0x00030003u) << 4;
        return v | H2_1024;
    }
}

/* Returns, as a pair of equal f16, 1024 plus the offset that is subtracted from a stored number. */
template <quant_type T> static __host__ __device__ constexpr uint32_t offset_of()
{
    return T == QUANT_Q4_0                                                                 ? 0x64086408u
           : T == QUANT_Q5_0                                                               ? 0x64106410u
           : T == QUANT_Q6_K                                                               ? 0x64206420u
           : T == QUANT_Q3_K                                                               ? 0x64046404u
           : T == QUANT_Q8_0 || T == QUANT_IQ4_NL || T == QUANT_IQ4_XS || T == QUANT_MXFP4 ? H2_1152
                                                                                           : H2_1024;
}

/* Returns pair i of a step as f16, exact, without the offset. Numbers of 4 bits that are stored 4 bits higher are read
 * as 1024 + 16 q and need no shift. */
template <quant_type T>
static __device__ inline uint32_t number_pair(const lane_tile<T> &k, int step, int i, uint32_t h2_1024)
{
    (void)h2_1024;
    if constexpr (T == QUANT_Q4_1 || T == QUANT_Q4_K) {
        uint32_t word[4] = {k.q[0].x, k.q[0].y, k.q[0].z, k.q[0].w};
        uint32_t v       = i / 2 ? word[step] >> 8 : word[step];
        if (i % 2 == 0) return h2_sub(pick_bits(v, 0x000f000fu, h2_1024), offset_of<T>());
        return h2_fma(pick_bits(v, 0x00f000f0u, h2_1024), 0x2c002c00u /* 1 / 16 */, 0xd400d400u /* -64 */);
    } else {
        return h2_sub(pair_of<T>(k, step, i), offset_of<T>());
    }
}

/* Computes operand A of a step. low: for F32 weights, the remainder that f16 does not represent. up: as for scales_of;
 * for BF16 and F32, the bits of the power of two as f32. h2_1024: H2_1024, in a register. */
template <quant_type T>
static __device__ inline void decode_step(uint32_t (&a)[4], uint32_t (&low)[4], const lane_tile<T> &k, int step,
                                          uint32_t up, uint32_t h2_1024)
{
    (void)up, (void)h2_1024, (void)low;
    if constexpr (T == QUANT_F16) {
        a[0] = k.q[step].x, a[1] = k.q[step].y, a[2] = k.q[step].z, a[3] = k.q[step].w;
    } else if constexpr (T == QUANT_BF16) {
        float    by   = __uint_as_float(up);
        uint32_t v[4] = {k.q[step].x, k.q[step].y, k.q[step].z, k.q[step].w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = h2_from_f32(__uint_as_float(v[i] << 16) * by, __uint_as_float(v[i] & 0xffff0000u) * by);
    } else if constexpr (T == QUANT_F32) {
        float by = __uint_as_float(up);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint4 v = k.q[2 * step + i / 2];
            float x = __uint_as_float(i % 2 ? v.z : v.x) * by, y = __uint_as_float(i % 2 ? v.w : v.y) * by;
            a[i]   = h2_from_f32(x, y);
            low[i] = h2_from_f32(x - from_f16((uint16_t)a[i]), y - from_f16((uint16_t)(a[i] >> 16)));
        }
    } else if constexpr (T == QUANT_Q4_0) { /* the bits of q, in their place, are a subnormal f16 */
        step_scales r       = scales_of<T>(k, step, up);
        uint32_t    word[4] = {k.q[0].x, k.q[0].y, k.q[0].z, k.q[0].w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t v = i / 2 ? word[step] >> 8 : word[step];
            a[i]       = h2_fma(v & (i % 2 ? 0x00f000f0u : 0x000f000fu), r.s[i % 2], r.m[i % 2]);
        }
    } else {
        step_scales r = scales_of<T>(k, step, up);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t q = number_pair<T>(k, step, i, h2_1024);
            a[i]       = layout_has_min(T) ? h2_fma(q, r.s[i % 2], r.m[i % 2]) : h2_mul(q, r.s[i % 2]);
        }
    }
}

/* --- one by one ----------------------------------------------------------------------------------*/

/* The place of a weight's number in a tile: output g + 8 side, lane, step, pair, and half of the pair. */
struct place {
    int g, side, lane, step, pair, half;
};
static __device__ inline place place_of(int out, int in)
{
    place p = {out % 8, out % PANEL_OUTS / 8, 0, in % TILE_IN / STEP_IN, 0, in % 2};
    p.lane  = 4 * p.g + in % STEP_IN / 4;
    p.pair  = in % 4 / 2 * 2 + p.side;
    return p;
}
static __device__ inline int f16_at(const char *p, int i) { return ((const uint16_t *)p)[i]; }
static __device__ inline int byte_at(const char *p, int i) { return ((const uint8_t *)p)[i]; }

/* Returns the stored number minus the type's offset, or its level. */
template <quant_type T> static __device__ inline int number_at(const char *tile, const place &p)
{
    constexpr int Q = layout_q(T), H = layout_h(T);
    const char   *h = tile + 32 * Q;
    int           q;
    if (Q == 32) return (int8_t)byte_at(tile, p.step / 2 * 512 + p.lane * 16 + p.step % 2 * 8 + 2 * p.pair + p.half);
    if (Q == 8)
        q = ((const uint32_t *)tile)[p.lane * 2 + p.step / 2] >> (8 * (p.step % 2) + 2 * p.pair + 16 * p.half) & 3;
    else
        q = ((const uint32_t *)tile)[p.lane * 4 + p.step] >> (4 * p.pair + 16 * p.half) & 15;
    if (H == 4)
        q |= (int)((((const uint32_t *)h)[p.lane] >> (4 * p.step + p.pair + 16 * p.half) & 1) << (Q == 8 ? 2 : 4));
    if (H == 8)
        q |= (int)((((const uint32_t *)h)[p.lane * 2 + p.step / 2] >> (8 * (p.step % 2) + 2 * p.pair + 16 * p.half) & 3)
                   << 4);
    if (T == QUANT_IQ4_NL || T == QUANT_IQ4_XS || T == QUANT_MXFP4)
        return (int)(level_word<T>(q / 4) >> (8 * (q % 4)) & 0xff) - 128;
    return q - (int)(offset_of<T>() & 0xff);
}

/* Returns the number of a float type. */
template <quant_type T> static __device__ inline float float_at(const char *tile, const place &p)
{
    int         piece = T == QUANT_F32 ? 2 * p.step + p.pair / 2 : p.step, in = T == QUANT_F32 ? p.pair % 2 : p.pair;
    const char *at = tile + piece * 512 + p.lane * 16;
    if (T == QUANT_F32) return ((const float *)at)[2 * in + p.half];
    uint16_t v = ((const uint16_t *)at)[2 * in + p.half];
    return T == QUANT_F16 ? from_f16(v) : from_bf16(v);
}

/* Returns the weight of (output, input), bit for bit as quant_dequantise does. */
template <quant_type T> static __device__ inline float weight_at(const char *panel, int n_tiles, int out, int in)
{
    constexpr int S = layout_s(T), D = layout_d(T);
    place         p    = place_of(out, in);
    const char   *tile = panel + (size_t)(in / TILE_IN) * layout_tile_bytes(T);
    if constexpr (T == QUANT_F32 || T == QUANT_F16 || T == QUANT_BF16) {
        return float_at<T>(tile, p);
    } else {
        const char *s = tile + 32 * (layout_q(T) + layout_h(T)) + p.g * S + p.side * (S / 2);
        const char *d =
            panel + n_tiles * layout_tile_bytes(T) + (size_t)(in / QK_K) * (8 * D) + p.g * D + p.side * (D / 2);
        float q     = (float)number_at<T>(tile, p);
        int   block = p.step / 2;
        if (T == QUANT_Q4_1 || T == QUANT_Q5_1)
            return from_f16((uint16_t)f16_at(s, 2 * block)) * q + from_f16((uint16_t)f16_at(s, 2 * block + 1));
        if (T == QUANT_Q4_K || T == QUANT_Q5_K)
            return from_f16((uint16_t)f16_at(d, 0)) * (float)byte_at(s, 2 * block) * q -
                   from_f16((uint16_t)f16_at(d, 1)) * (float)byte_at(s, 2 * block + 1);
        if (T == QUANT_Q2_K)
            return from_f16((uint16_t)f16_at(d, 0)) * (float)(byte_at(s, p.step) & 15) * q -
                   from_f16((uint16_t)f16_at(d, 1)) * (float)(byte_at(s, p.step) >> 4);
        if (T == QUANT_Q6_K || T == QUANT_Q3_K)
            return from_f16((uint16_t)f16_at(d, 0)) * (float)(int8_t)byte_at(s, p.step) * q;
        if (T == QUANT_IQ4_XS) return from_f16((uint16_t)f16_at(d, 0)) * (float)(int8_t)byte_at(s, block) * q;
        if (T == QUANT_MXFP4) {
            int e = byte_at(s, block);
            return __uint_as_float(e > 1 ? (uint32_t)(e - 1) << 23 : 0x200000u << e) * q;
        }
        return from_f16((uint16_t)f16_at(s, block)) * q;
    }
}
#endif
