#include "ops/cache_inside.h"

#include "base/num.h"
#include "gguf/quant.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* --- rotation ------------------------------------------------------------------------------------*/
const uint64_t cache_signs[2] = CACHE_SIGNS;

static void apply_signs(float *x, int group)
{
    for (int i = 0; i < group; i++)
        if (cache_signs[i / 64] >> (i % 64) & 1) x[i] = -x[i];
}

/* Multiplies by the Hadamard matrix in natural order, then by 1 / sqrt(group). */
static void transform(float *x, int group)
{
    const float factor = group == 64 ? CACHE_FACTOR_64 : CACHE_FACTOR_128;
    for (int h = 1; h < group; h *= 2)
        for (int i = 0; i < group; i += 2 * h)
            for (int j = i; j < i + h; j++) {
                float a = x[j], b = x[j + h];
                x[j]     = a + b;
                x[j + h] = a - b;
            }
    for (int i = 0; i < group; i++) x[i] *= factor;
}

void cache_rotate(float *x, int head_dim)
{
    int group = cache_group(head_dim);
    assert(head_dim % group == 0);
    for (int i = 0; i < head_dim; i += group) {
        apply_signs(x + i, group);
        transform(x + i, group);
    }
}

void cache_unrotate(float *x, int head_dim)
{
    int group = cache_group(head_dim);
    assert(head_dim % group == 0);
    for (int i = 0; i < head_dim; i += group) {
        transform(x + i, group);
        apply_signs(x + i, group);
    }
}

/* --- blocks ---------------------------------------------------------------------------------------*/
/* A NaN stays one, so that a block with NaN or infinity decodes to NaN. */
uint16_t     cache_clamped_f16(float v) { return f32_to_f16(v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v); }
static float inverse(float s) { return s != 0 ? 1.0f / s : 0; }

static int clamped_code(float v, int min, int max)
{
    v = rintf(v);
    return (int)(!(v >= (float)min) ? (float)min : v > (float)max ? (float)max : v); /* a NaN becomes min */
}

/* Returns the value of largest magnitude, the first of equals; the last NaN, if there is one. */
static float largest(const float *y)
{
    float m = 0;
    for (int i = 0; i < CACHE_BLOCK; i++)
        if (!(fabsf(y[i]) <= fabsf(m))) m = y[i];
    return m;
}

uint16_t cache_encode_block(cache_type t, int8_t code[CACHE_BLOCK], const float *y)
{
    bool     wide  = t == CACHE_Q8_0;
    float    m     = largest(y);
    uint16_t scale = cache_clamped_f16(wide ? fabsf(m) / 127.0f : m / -8.0f);
    float    inv   = inverse(f16_to_f32(scale));
    for (int i = 0; i < CACHE_BLOCK; i++) code[i] = (int8_t)clamped_code(y[i] * inv, wide ? -127 : -8, wide ? 127 : 7);
    return scale;
}

static uint16_t encode_q4_0(uint8_t *to, const float *y)
{
    int8_t   code[CACHE_BLOCK];
    uint16_t scale = cache_encode_block(CACHE_Q4_0, code, y);
    for (int i = 0; i < CACHE_BLOCK / 2; i++) to[i] = (uint8_t)((code[i] + 8) | (code[i + CACHE_BLOCK / 2] + 8) << 4);
    return scale;
}

/* --- tq3 ------------------------------------------------------------------------------------------
 * Eight Lloyd-Max levels of a normal distribution, as integers. The scale keeps the length of the group. In a block of
 * 32 codes, code i < 24 is bits 4 (i % 8) .. + 2 of word i / 8; bit b of code 24 + j is bit 4 j + 3 of word b. So one
 * permute turns a word of eight nibbles into eight levels. */
#define LEVEL(x) (x)
static const int8_t tq3_level[8] = CACHE_TQ3_LEVELS(LEVEL);

static int tq3_code(float t)
{
    static const float cut[7] = {-103, -62, -29.5f, 0, 29.5f, 62, 103};
    int                code   = 0;
    for (int i = 0; i < 7; i++) code += cut[i] <= t;
    return code;
}

/* Sums at distance n / 2, n / 4, ... 1. x is overwritten. */
static float halving_sum(float *x, int n)
{
    for (int h = n / 2; h >= 1; h /= 2)
        for (int i = 0; i < h; i++) x[i] += x[i + h];
    return x[0];
}

static void pack_tq3(uint32_t *word, const uint8_t *code)
{
    word[0] = word[1] = word[2] = 0;
    for (int i = 0; i < 24; i++) word[i / 8] |= (uint32_t)code[i] << 4 * (i % 8);
    for (int j = 0; j < 8; j++)
        for (int b = 0; b < 3; b++) word[b] |= (uint32_t)(code[24 + j] >> b & 1) << (4 * j + 3);
}

static int unpack_tq3(const uint32_t *word, int i)
{
    if (i < 24) return (int)(word[i / 8] >> 4 * (i % 8) & 7);
    int at = 4 * (i - 24) + 3;
    return (int)((word[0] >> at & 1) | (word[1] >> at & 1) << 1 | (word[2] >> at & 1) << 2);
}

static uint16_t encode_tq3(uint8_t *to, const float *y, int group)
{
    float   square[CACHE_GROUP];
    uint8_t code[CACHE_GROUP];
    int     norm = 0;
    for (int i = 0; i < group; i++) square[i] = y[i] * y[i];
    float energy = halving_sum(square, group);
    float length = sqrtf(energy * (1.0f / (float)group));
    float factor = length != 0 ? 0x1.d8218p+5f / length : 0;
    for (int i = 0; i < group; i++) {
        code[i] = (uint8_t)tq3_code(y[i] * factor);
        norm += tq3_level[code[i]] * tq3_level[code[i]];
    }
    uint16_t scale = cache_clamped_f16(64.0f * sqrtf(energy / (float)norm));
    if (!(scale & 0x7fff)) memset(code, 0, sizeof code);
    for (int i = 0; i < group; i += CACHE_BLOCK) {
        uint32_t word[3];
        pack_tq3(word, code + i);
        memcpy(to + i / CACHE_BLOCK * (int)sizeof word, word, sizeof word);
    }
    return scale;
}

/* --- planes ---------------------------------------------------------------------------------------*/
typedef struct {
    uint8_t  *code;  /* codes of one position */
    uint16_t *scale; /* its scales; aligned to 2 */
    size_t    code_bytes, scale_bytes;
} cell;

static cell cell_of(cache_type t, const void *plane, int at, int head_dim)
{
    const cache_layout *l = cache_layout_of(t);
    cell c  = {.code_bytes = cache_code_bytes(l, head_dim), .scale_bytes = cache_scale_bytes(l, head_dim)};
    c.code  = (uint8_t *)plane + (size_t)at * c.code_bytes;
    c.scale = (uint16_t *)(void *)((char *)plane + KV_PAGE * c.code_bytes + (size_t)at * c.scale_bytes);
    return c;
}

static void encode_blocks(cache_type t, cell c, const float *y, int head_dim)
{
    int group = t == CACHE_TQ3 ? cache_group(head_dim) : CACHE_BLOCK;
    for (int i = 0; i < head_dim / group; i++, y += group) {
        if (t == CACHE_Q8_0) c.scale[i] = cache_encode_block(t, (int8_t *)c.code + i * CACHE_BLOCK, y);
        if (t == CACHE_Q4_0) c.scale[i] = encode_q4_0(c.code + i * (CACHE_BLOCK / 2), y);
        if (t == CACHE_TQ3) c.scale[i] = encode_tq3(c.code + i * group * 3 / 8, y, group);
    }
}

void cache_encode(cache_type t, void *plane, int at, const float *x, int head_dim)
{
    float y[CACHE_MAX_HEAD];
    cell  c = cell_of(t, plane, at, head_dim);
    assert(head_dim <= CACHE_MAX_HEAD);
    if (t == CACHE_F32) {
        memcpy(c.code, x, c.code_bytes);
    } else if (t == CACHE_F16) {
        for (int i = 0; i < head_dim; i++) ((uint16_t *)(void *)c.code)[i] = f32_to_f16(x[i]);
    } else {
        memcpy(y, x, (size_t)head_dim * sizeof *y);
        cache_rotate(y, head_dim);
        encode_blocks(t, c, y, head_dim);
    }
}

static float decode_at(cache_type t, cell c, int i, int group)
{
    int   block = i / CACHE_BLOCK, in = i % CACHE_BLOCK;
    float scale = f16_to_f32(c.scale[i / group]);
    if (t == CACHE_Q8_0) return (float)((const int8_t *)c.code)[i] * scale;
    if (t == CACHE_Q4_0) {
        uint8_t b = c.code[block * (CACHE_BLOCK / 2) + in % 16];
        return (float)((in < 16 ? b & 15 : b >> 4) - 8) * scale;
    }
    uint32_t word[3];
    memcpy(word, c.code + block * (int)sizeof word, sizeof word);
    return scale * ((float)tq3_level[unpack_tq3(word, in)] / 64.0f);
}

void cache_decode(cache_type t, const void *plane, int at, float *y, int head_dim)
{
    cell c     = cell_of(t, plane, at, head_dim);
    int  group = t == CACHE_TQ3 ? cache_group(head_dim) : CACHE_BLOCK;
    if (t == CACHE_F32) memcpy(y, c.code, c.code_bytes);
    for (int i = 0; i < head_dim && t != CACHE_F32; i++)
        y[i] = t == CACHE_F16 ? f16_to_f32(((const uint16_t *)(const void *)c.code)[i]) : decode_at(t, c, i, group);
}

void cache_copy(cache_type t, void *to, int to_at, const void *from, int from_at, int head_dim)
{
    cell a = cell_of(t, to, to_at, head_dim), b = cell_of(t, from, from_at, head_dim);
    memmove(a.code, b.code, a.code_bytes);
    memmove(a.scale, b.scale, a.scale_bytes);
}
