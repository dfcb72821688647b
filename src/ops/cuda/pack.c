#include "ops/cuda/pack.h"

#include "ops/cuda/layout.h"

#include <string.h>

/* --- the parts of a block -------------------------------------------------------------------------
 * v: 32 stored numbers, before the type's offset. */

static void put_low(char *q, const uint8_t v[QK])
{
    for (int j = 0; j < QK / 2; j++) q[j] = (char)((v[j] & 15) | v[j + QK / 2] << 4);
}

static void put_fifth(char *h, const uint8_t v[QK])
{
    for (int k = 0; k < 4; k++) {
        int byte = 0;
        for (int g = 0; g < 8; g++) byte |= (v[4 * g + k] >> 4 & 1) << g;
        h[k] = (char)byte;
    }
}

static void put_top(char *h, const uint8_t v[QK])
{
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 4; k++) {
            int byte = 0;
            for (int g = 0; g < 4; g++) byte |= (v[16 * i + 4 * g + k] >> 4 & 3) << (2 * g);
            h[4 * i + k] = (char)byte;
        }
}

static void pairs(uint8_t v[QK], const uint8_t qs[QK / 2])
{
    for (int j = 0; j < QK / 2; j++) {
        v[j]          = qs[j] & 15;
        v[j + QK / 2] = qs[j] >> 4;
    }
}

static void pairs_and_fifth(uint8_t v[QK], const uint8_t qs[QK / 2], const uint8_t qh[4])
{
    pairs(v, qs);
    for (int i = 0; i < QK; i++) v[i] = (uint8_t)(v[i] | (qh[i / 8] >> (i % 8) & 1) << 4);
}

/* --- blocks ---------------------------------------------------------------------------------------*/

/* Where the planes of a row are, at the block or super-block that is being written. */
typedef struct {
    char *q, *h, *s, *d;
} planes;

static planes planes_at(quant_type t, char *row, size_t n_blocks, size_t b)
{
    return (planes){row + b * layout_q(t), row + layout_h_at(t, n_blocks) + b * layout_h(t),
                    row + layout_s_at(t, n_blocks) + b * layout_s(t),
                    row + layout_d_at(t, n_blocks) + b / SUPER_BLOCKS * layout_d(t)};
}

static void put_numbers(quant_type t, const planes *p, const uint8_t v[QK])
{
    put_low(p->q, v);
    if (layout_bits(t) == 5) put_fifth(p->h, v);
    if (layout_bits(t) == 6) put_top(p->h, v);
}

/* d, m (where there is one) and the numbers of a plain block. */
static void pack_plain(quant_type t, const planes *p, const char *src)
{
    uint8_t v[QK];
    memcpy(p->s, src, layout_s(t));
    src += layout_s(t);
    if (t == QUANT_Q8_0) {
        memcpy(p->q, src, QK);
        return;
    }
    const uint8_t *bytes = (const uint8_t *)src;
    if (layout_bits(t) == 5)
        pairs_and_fifth(v, bytes + 4, bytes);
    else
        pairs(v, bytes);
    put_numbers(t, p, v);
}
_Static_assert(offsetof(block_q4_0, qs) == 2 && offsetof(block_q4_1, qs) == 4 && offsetof(block_q8_0, qs) == 2 &&
                   offsetof(block_q5_0, qh) == 2 && offsetof(block_q5_0, qs) == 6 && offsetof(block_q5_1, qh) == 4 &&
                   offsetof(block_q5_1, qs) == 8,
               "scales first, then fifth bits, then pairs");

/* Sub-block i of a super-block: stored numbers and the two bytes that scale them. */
static void sub_q4_K(const block_q4_K *b, int i, uint8_t v[QK], uint8_t s[2])
{
    for (int j = 0; j < QK; j++) v[j] = b->qs[i / 2 * QK + j] >> (i % 2 * 4) & 15;
    quant_k_scale_min(b->scales, i, &s[0], &s[1]);
}

static void sub_q5_K(const block_q5_K *b, int i, uint8_t v[QK], uint8_t s[2])
{
    for (int j = 0; j < QK; j++)
        v[j] = (uint8_t)((b->qs[i / 2 * QK + j] >> (i % 2 * 4) & 15) | (b->qh[j] >> i & 1) << 4);
    quant_k_scale_min(b->scales, i, &s[0], &s[1]);
}

static void sub_q6_K(const block_q6_K *b, int i, uint8_t v[QK], uint8_t s[2])
{
    int half = i / 4, quarter = i % 4;
    for (int j = 0; j < QK; j++) {
        int low = b->ql[64 * half + (quarter % 2) * QK + j] >> (quarter / 2 * 4) & 15;
        v[j]    = (uint8_t)(low | (b->qh[32 * half + j] >> (2 * quarter) & 3) << 4);
    }
    memcpy(s, b->scales + 2 * i, 2);
}

static void pack_super(quant_type t, char *row, size_t n_blocks, size_t b, const char *src)
{
    union {
        block_q4_K q4;
        block_q5_K q5;
        block_q6_K q6;
    } x;
    memcpy(&x, src, quant_block_bytes(t));
    for (int i = 0; i < SUPER_BLOCKS; i++) {
        uint8_t v[QK], s[2];
        planes  p = planes_at(t, row, n_blocks, b + (size_t)i);
        if (t == QUANT_Q4_K) sub_q4_K(&x.q4, i, v, s);
        if (t == QUANT_Q5_K) sub_q5_K(&x.q5, i, v, s);
        if (t == QUANT_Q6_K) sub_q6_K(&x.q6, i, v, s);
        put_numbers(t, &p, v);
        memcpy(p.s, s, sizeof s);
        if (i == 0) memcpy(p.d, t == QUANT_Q6_K ? &x.q6.d : &x.q4.d, layout_d(t)); /* d, dmin: first in Q5_K too */
    }
}

/* --- rows -----------------------------------------------------------------------------------------*/

static void pack_floats(quant_type t, int n_in, const char *src, char *dst)
{
    size_t bytes = (size_t)n_in * quant_block_bytes(t);
    memcpy(dst, src, bytes);
    memset(dst + bytes, 0, layout_row_bytes(t, (size_t)n_in) - bytes);
}

static void pack_as_f16(quant_type t, int n_in, const char *src, char *dst)
{
    float    x[QK_K];
    int      block = quant_block(t);
    uint16_t h;
    for (int i = 0; i < n_in; i += block, src += quant_block_bytes(t)) {
        quant_dequantise(t, src, x, (size_t)block);
        for (int j = 0; j < block; j++) {
            h = f32_to_f16(x[j]);
            memcpy(dst + (size_t)(i + j) * sizeof h, &h, sizeof h);
        }
    }
}

quant_type cuda_pack_form(quant_type type)
{
    switch (type) {
    case QUANT_F32:
    case QUANT_BF16:
    case QUANT_Q4_0:
    case QUANT_Q4_1:
    case QUANT_Q5_0:
    case QUANT_Q5_1:
    case QUANT_Q8_0:
    case QUANT_Q4_K:
    case QUANT_Q5_K:
    case QUANT_Q6_K: return type;
    default: return QUANT_F16;
    }
}

void cuda_pack_row(quant_type t, int n_in, const char *src, char *dst)
{
    size_t n_blocks = (size_t)n_in / QK, step = (size_t)quant_block(t) / QK;
    if (quant_is_float(t)) {
        pack_floats(t, n_in, src, dst);
    } else if (cuda_pack_form(t) != t) {
        pack_as_f16(t, n_in, src, dst);
    } else {
        for (size_t b = 0; b < n_blocks; b += step, src += quant_block_bytes(t)) {
            planes p = planes_at(t, dst, n_blocks, b);
            if (layout_is_super(t))
                pack_super(t, dst, n_blocks, b, src);
            else
                pack_plain(t, &p, src);
        }
    }
}
