#include "build_gguf.h"

#include "test.h"

#include <assert.h>
#include <stdlib.h>

static void put_u32(buf *b, uint32_t v) { buf_put(b, &v, sizeof v); }
static void put_u64(buf *b, uint64_t v) { buf_put(b, &v, sizeof v); }

static void put_str(buf *b, const char *s)
{
    put_u64(b, strlen(s));
    buf_puts(b, s);
}

static void put_zeros(buf *b, size_t n)
{
    while (n--) buf_putc(b, 0);
}

static void pad(buf *b, size_t alignment)
{
    if (alignment && b->n % alignment) put_zeros(b, alignment - b->n % alignment);
}

void gguf_builder_init(gguf_builder *b)
{
    *b = (gguf_builder){.version = 3, .alignment = 32};
    buf_init(&b->kv, (size_t)1 << 30);
    buf_init(&b->infos, (size_t)1 << 30);
    buf_init(&b->data, (size_t)1 << 30);
}

void gguf_builder_deinit(gguf_builder *b)
{
    buf_deinit(&b->kv);
    buf_deinit(&b->infos);
    buf_deinit(&b->data);
}

void gguf_builder_raw(gguf_builder *b, const char *key, uint32_t type, const void *bytes, size_t n)
{
    b->n_kv++;
    put_str(&b->kv, key);
    put_u32(&b->kv, type);
    buf_put(&b->kv, bytes, n);
}

void gguf_builder_raw_arr(gguf_builder *b, const char *key, uint32_t item, uint64_t claim, const void *bytes, size_t n)
{
    gguf_builder_raw(b, key, GGUF_ARRAY, NULL, 0);
    put_u32(&b->kv, item);
    put_u64(&b->kv, claim);
    buf_put(&b->kv, bytes, n);
}

void gguf_builder_u16(gguf_builder *b, const char *key, uint16_t v)
{
    gguf_builder_raw(b, key, GGUF_U16, &v, sizeof v);
}
void gguf_builder_u32(gguf_builder *b, const char *key, uint32_t v)
{
    gguf_builder_raw(b, key, GGUF_U32, &v, sizeof v);
}
void gguf_builder_i32(gguf_builder *b, const char *key, int32_t v) { gguf_builder_raw(b, key, GGUF_I32, &v, sizeof v); }
void gguf_builder_f32(gguf_builder *b, const char *key, float v) { gguf_builder_raw(b, key, GGUF_F32, &v, sizeof v); }

void gguf_builder_bool(gguf_builder *b, const char *key, bool v)
{
    gguf_builder_raw(b, key, GGUF_BOOL, v ? "\1" : "\0", 1);
}

void gguf_builder_str(gguf_builder *b, const char *key, const char *v)
{
    gguf_builder_raw(b, key, GGUF_STRING, NULL, 0);
    put_str(&b->kv, v);
}

void gguf_builder_arr_i32(gguf_builder *b, const char *key, const int32_t *v, size_t n)
{
    gguf_builder_raw_arr(b, key, GGUF_I32, n, v, n * sizeof *v);
}

void gguf_builder_arr_f32(gguf_builder *b, const char *key, const float *v, size_t n)
{
    gguf_builder_raw_arr(b, key, GGUF_F32, n, v, n * sizeof *v);
}

void gguf_builder_arr_bool(gguf_builder *b, const char *key, const bool *v, size_t n)
{
    gguf_builder_raw_arr(b, key, GGUF_BOOL, n, NULL, 0);
    for (size_t i = 0; i < n; i++) buf_putc(&b->kv, v[i]);
}

void gguf_builder_arr_str(gguf_builder *b, const char *key, const char *const *v, size_t n)
{
    gguf_builder_raw_arr(b, key, GGUF_STRING, n, NULL, 0);
    for (size_t i = 0; i < n; i++) put_str(&b->kv, v[i]);
}

void gguf_builder_align(gguf_builder *b, uint32_t alignment)
{
    b->alignment = alignment;
    gguf_builder_u32(b, "general.alignment", alignment);
}

void gguf_builder_info(gguf_builder *b, const char *name, uint32_t n_dims, const uint64_t *dim, uint32_t type,
                       uint64_t offset)
{
    b->n_tensors++;
    put_str(&b->infos, name);
    put_u32(&b->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) put_u64(&b->infos, dim[i]);
    put_u32(&b->infos, type);
    put_u64(&b->infos, offset);
}

void gguf_builder_tensor(gguf_builder *b, const char *name, quant_type type, int n_dims, const int64_t *dim,
                         const void *data)
{
    uint64_t n = 1, d[TENSOR_MAX_DIMS];
    size_t   bytes;
    for (int i = 0; i < n_dims; i++) n *= d[i] = (uint64_t)dim[i];
    if (!quant_bytes(type, n, &bytes)) abort();
    pad(&b->data, b->alignment);
    gguf_builder_info(b, name, (uint32_t)n_dims, d, type, b->data.n);
    if (data)
        buf_put(&b->data, data, bytes);
    else
        put_zeros(&b->data, bytes);
}

void gguf_builder_bytes(const gguf_builder *b, buf *out)
{
    buf_init(out, (size_t)1 << 31);
    buf_puts(out, "GGUF");
    put_u32(out, b->version);
    put_u64(out, b->n_tensors);
    put_u64(out, b->n_kv);
    buf_put(out, b->kv.p, b->kv.n);
    buf_put(out, b->infos.p, b->infos.n);
    pad(out, b->alignment);
    buf_put(out, b->data.p, b->data.n);
    assert(!out->failed && !b->kv.failed && !b->infos.failed && !b->data.failed);
}

const char *gguf_builder_write(const gguf_builder *b, const char *name)
{
    buf file;
    gguf_builder_bytes(b, &file);
    const char *path = test_tmp_file(name, file.p, file.n);
    buf_deinit(&file);
    return path;
}

/* --- test data --------------------------------------------------------------------------------- */
static void quantise_q8_0(const float *x, block_q8_0 *b)
{
    float most = 0;
    for (int i = 0; i < QK; i++) most = fmaxf(most, fabsf(x[i]));
    b->d    = f32_to_f16(most / 127);
    float d = f16_to_f32(b->d);
    for (int i = 0; i < QK; i++) b->qs[i] = (int8_t)fmaxf(-127, fminf(127, d > 0 ? rintf(x[i] / d) : 0));
}

static uint8_t nibble(float q) { return (uint8_t)fmaxf(0, fminf(15, rintf(q))); }

static void quantise_q4_0(const float *x, block_q4_0 *b)
{
    float most = 0;
    for (int i = 0; i < QK; i++) most = fmaxf(most, fabsf(x[i]));
    b->d    = f32_to_f16(most / 7);
    float d = f16_to_f32(b->d), r = d > 0 ? 1 / d : 0;
    for (int i = 0; i < QK / 2; i++) b->qs[i] = (uint8_t)(nibble(x[i] * r + 8) | nibble(x[i + QK / 2] * r + 8) << 4);
}

static void quantise_q4_1(const float *x, block_q4_1 *b)
{
    float lo = x[0], hi = x[0];
    for (int i = 1; i < QK; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
    b->d    = f32_to_f16((hi - lo) / 15);
    b->m    = f32_to_f16(lo);
    float d = f16_to_f32(b->d), m = f16_to_f32(b->m), r = d > 0 ? 1 / d : 0;
    for (int i = 0; i < QK / 2; i++)
        b->qs[i] = (uint8_t)(nibble((x[i] - m) * r) | nibble((x[i + QK / 2] - m) * r) << 4);
}

static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void test_quantise(quant_type type, const float *src, void *dst, size_t n)
{
    assert(n % (size_t)quant_block(type) == 0);
    for (size_t i = 0, k = 0; i < n; i += (size_t)quant_block(type), k++) switch (type) {
        case QUANT_F32: ((float *)dst)[k] = src[i]; break;
        case QUANT_F16: ((uint16_t *)dst)[k] = f32_to_f16(src[i]); break;
        case QUANT_BF16: ((uint16_t *)dst)[k] = to_bf16(src[i]); break;
        case QUANT_Q8_0: quantise_q8_0(src + i, (block_q8_0 *)dst + k); break;
        case QUANT_Q4_0: quantise_q4_0(src + i, (block_q4_0 *)dst + k); break;
        case QUANT_Q4_1: quantise_q4_1(src + i, (block_q4_1 *)dst + k); break;
        default: abort();
        }
}

/* Where the f16 scales of a block lie, and by how much the largest quantum exceeds 1. */
static const struct {
    quant_type type;
    int        at[2]; /* byte of d and of m or dmin; -1: none */
    float      top[2];
} scales[] = {
    {QUANT_Q4_0, {0, -1}, {8, 0}},        {QUANT_Q4_1, {0, 2}, {15, 1}},
    {QUANT_Q5_0, {0, -1}, {16, 0}},       {QUANT_Q5_1, {0, 2}, {31, 1}},
    {QUANT_Q8_0, {0, -1}, {128, 0}},      {QUANT_Q4_K, {0, 2}, {63 * 15, 63}},
    {QUANT_Q5_K, {0, 2}, {63 * 31, 63}},  {QUANT_Q6_K, {208, -1}, {128 * 32, 0}},
    {QUANT_Q2_K, {80, 82}, {15 * 3, 15}}, {QUANT_Q3_K, {108, -1}, {32 * 4, 0}},
    {QUANT_IQ4_NL, {0, -1}, {127, 0}},    {QUANT_IQ4_XS, {0, -1}, {32 * 127, 0}},
};

static void set_scales(quant_type type, uint64_t *seed, float size, char *block)
{
    if (type == QUANT_MXFP4) block[0] = (char)(ilogbf(size) + 124 + (int)(test_rand(seed) % 3));
    for (size_t i = 0; i < COUNT(scales); i++)
        for (int k = 0; k < 2; k++)
            if (scales[i].type == type && scales[i].at[k] >= 0) {
                float    part = (0.5f + (float)(test_rand(seed) >> 40) * 0x1p-25f) * (test_rand(seed) % 2 ? 1 : -1);
                uint16_t h    = f32_to_f16(size * part / scales[i].top[k]);
                memcpy(block + scales[i].at[k], &h, sizeof h);
            }
}

void test_random_blocks(quant_type type, uint64_t *seed, float size, void *dst, size_t n)
{
    size_t bytes, each = quant_block_bytes(type);
    char  *p = dst;
    if (!quant_can_dequantise(type) || !quant_bytes(type, n, &bytes)) abort();
    if (quant_is_float(type)) {
        for (size_t i = 0; i < n; i++) {
            float x = size * test_randn(seed);
            test_quantise(type, &x, p + i * each, 1);
        }
        return;
    }
    for (size_t i = 0; i < bytes; i++) p[i] = (char)test_rand(seed);
    for (size_t i = 0; i < bytes; i += each) set_scales(type, seed, size, p + i);
}
