/* Packs rows of a file into tiles, and unpacks a row of a tile to floats. tile.h describes the layouts. */
#include "ops/cpu/tile.h"

#include <assert.h>

/* --- one row's share of a block ------------------------------------------------------------------*/

/* Packs the bytes of q of row r, from 16 bytes that pair elements (j, j + 16), as in the plain types. */
static void put_pairs(uint8_t q[4][LINE], int r, const uint8_t pairs[QK / 2])
{
    for (int j = 0; j < 4; j++) memcpy(q[j] + 4 * r, pairs + 4 * j, 4);
}

/* Packs bit `which` of v[i]. */
static void put_bit(uint8_t h[LINE], int r, const uint8_t v[QK], int which)
{
    for (int k = 0; k < 4; k++) {
        int byte = 0;
        for (int g = 0; g < 8; g++) byte |= (v[4 * g + k] >> which & 1) << g;
        h[4 * r + k] = (uint8_t)byte;
    }
}

static void put_fifth_bits(uint8_t h[LINE], int r, const uint8_t qh[4])
{
    uint8_t v[QK];
    for (int i = 0; i < QK; i++) v[i] = (uint8_t)((qh[i / 8] >> (i % 8) & 1) << 4);
    put_bit(h, r, v, 4);
}

/* Packs bits `low` and `low` + 1 of v[i]. */
static void put_two(uint8_t hh[2][LINE], int r, const uint8_t v[QK], int low)
{
    for (int line = 0; line < 2; line++)
        for (int k = 0; k < 4; k++) {
            int byte = 0;
            for (int f = 0; f < 4; f++) byte |= (v[16 * line + 4 * f + k] >> low & 3) << (2 * f);
            hh[line][4 * r + k] = (uint8_t)byte;
        }
}

/* Packs bits 0 to 3 of v[i]. */
static void put_low(uint8_t q[4][LINE], int r, const uint8_t v[QK])
{
    uint8_t pairs[QK / 2];
    for (int j = 0; j < QK / 2; j++) pairs[j] = (uint8_t)((v[j] & 15) | v[j + QK / 2] << 4);
    put_pairs(q, r, pairs);
}

/* Reads the stored numbers of row r of a block; 8-bit ones as bytes. */
static void get_row(quant_type t, const tile_block *k, int r, uint8_t v[QK])
{
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 4; i++) {
            int at = 4 * r + i, q;
            if (tile_bits(t) == 8)
                q = k->q[LINE * g + at];
            else if (tile_bits(t) < 4)
                q = k->q[LINE * (g / 4) + at] >> (2 * (g % 4)) & 3;
            else
                q = k->q[LINE * (g % 4) + at] >> (g / 4 * 4) & 15;
            if (tile_bits(t) == 3) q |= (k->h[at] >> g & 1) << 2;
            if (tile_bits(t) == 5) q |= (k->h[at] >> g & 1) << 4;
            if (tile_bits(t) == 6) q |= (k->h[LINE * (g / 4) + at] >> (2 * (g % 4)) & 3) << 4;
            v[4 * g + i] = (uint8_t)q;
        }
}

/* --- one block of a row, by type ------------------------------------------------------------------*/

static void one_q4_0(tile_q4_0 *t, int r, const block_q4_0 *s)
{
    t->d[r] = s->d;
    put_pairs(t->q, r, s->qs);
}

static void one_iq4_nl(tile_iq4_nl *t, int r, const block_iq4_nl *s)
{
    t->d[r] = s->d;
    put_pairs(t->q, r, s->qs);
}

static void one_mxfp4(tile_mxfp4 *t, int r, const block_mxfp4 *s)
{
    t->e[r] = s->e;
    put_pairs(t->q, r, s->qs);
}

static void one_q4_1(tile_q4_1 *t, int r, const block_q4_1 *s)
{
    t->d[r] = s->d;
    t->m[r] = s->m;
    put_pairs(t->q, r, s->qs);
}

static void one_q5_0(tile_q5_0 *t, int r, const block_q5_0 *s)
{
    t->d[r] = s->d;
    put_pairs(t->q, r, s->qs);
    put_fifth_bits(t->h, r, s->qh);
}

static void one_q5_1(tile_q5_1 *t, int r, const block_q5_1 *s)
{
    t->d[r] = s->d;
    t->m[r] = s->m;
    put_pairs(t->q, r, s->qs);
    put_fifth_bits(t->h, r, s->qh);
}

static void one_q8_0(tile_q8_0 *t, int r, const block_q8_0 *s)
{
    t->d[r] = s->d;
    for (int g = 0; g < 8; g++) memcpy(t->q[g] + 4 * r, s->qs + 4 * g, 4);
}

static void one_q2_K(tile_q2_K *t, int r, const block_q2_K *s)
{
    t->d[r]    = s->d;
    t->dmin[r] = s->dmin;
    for (int j = 0; j < 8; j++) {
        sub_q2_K *sub = &t->sub[j];
        uint8_t   v[QK];
        for (int i = 0; i < QK; i++) v[i] = s->qs[j / 4 * QK + i] >> (j % 4 * 2) & 3;
        put_two(sub->q, r, v, 0);
        sub->sc[0][r] = s->scales[2 * j];
        sub->sc[1][r] = s->scales[2 * j + 1];
    }
}

static void one_q3_K(tile_q3_K *t, int r, const block_q3_K *s)
{
    t->d[r] = s->d;
    for (int j = 0; j < 8; j++) {
        sub_q3_K *sub = &t->sub[j];
        uint8_t   v[QK];
        for (int i = 0; i < QK; i++)
            v[i] = (uint8_t)((s->qs[j / 4 * QK + i] >> (j % 4 * 2) & 3) | (s->hmask[i] >> j & 1) << 2);
        put_two(sub->q, r, v, 0);
        put_bit(sub->h, r, v, 2);
        sub->sc[0][r] = (int8_t)quant_q3_k_scale(s->scales, 2 * j);
        sub->sc[1][r] = (int8_t)quant_q3_k_scale(s->scales, 2 * j + 1);
    }
}

static void one_q4_K(tile_q4_K *t, int r, const block_q4_K *s)
{
    t->d[r]    = s->d;
    t->dmin[r] = s->dmin;
    for (int j = 0; j < 8; j++) {
        sub_q4_K *sub = &t->sub[j];
        uint8_t   v[QK];
        for (int i = 0; i < QK; i++) v[i] = s->qs[j / 2 * QK + i] >> (j % 2 * 4) & 15;
        put_low(sub->q, r, v);
        quant_k_scale_min(s->scales, j, &sub->sc[r], &sub->m[r]);
    }
}

static void one_q5_K(tile_q5_K *t, int r, const block_q5_K *s)
{
    t->d[r]    = s->d;
    t->dmin[r] = s->dmin;
    for (int j = 0; j < 8; j++) {
        sub_q5_K *sub = &t->sub[j];
        uint8_t   v[QK];
        for (int i = 0; i < QK; i++)
            v[i] = (uint8_t)((s->qs[j / 2 * QK + i] >> (j % 2 * 4) & 15) | (s->qh[i] >> j & 1) << 4);
        put_low(sub->q, r, v);
        put_bit(sub->h, r, v, 4);
        quant_k_scale_min(s->scales, j, &sub->sc[r], &sub->m[r]);
    }
}

static void one_q6_K(tile_q6_K *t, int r, const block_q6_K *s)
{
    t->d[r] = s->d;
    for (int j = 0; j < 8; j++) {
        const uint8_t *ql = s->ql + j / 4 * 64 + j % 2 * QK, *qh = s->qh + j / 4 * QK;
        sub_q6_K      *sub = &t->sub[j];
        uint8_t        v[QK];
        for (int i = 0; i < QK; i++)
            v[i] = (uint8_t)((ql[i] >> (j % 4 / 2 * 4) & 15) | (qh[i] >> (j % 4 * 2) & 3) << 4);
        put_low(sub->q, r, v);
        put_two(sub->hh, r, v, 4);
        sub->sc[0][r] = s->scales[2 * j];
        sub->sc[1][r] = s->scales[2 * j + 1];
    }
}

static void one_iq4_xs(tile_iq4_xs *t, int r, const block_iq4_xs *s)
{
    t->d[r] = s->d;
    for (int j = 0; j < 8; j++) {
        t->sub[j].sc[r] = (int8_t)quant_iq4_xs_scale(s, j);
        put_pairs(t->sub[j].q, r, s->qs + j * QK / 2);
    }
}

/* --- a row -----------------------------------------------------------------------------------------
 * Packs n blocks into lane r of a tile. Source blocks may be unaligned, so each is copied to an aligned place. */
typedef void pack_fn(uint8_t *tile, int r, const uint8_t *src, size_t n);

#define PACK_ROW(type)                                                                                                 \
    static void pack_##type(uint8_t *tile, int r, const uint8_t *src, size_t n)                                        \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++) {                                                                               \
            block_##type s;                                                                                            \
            memcpy(&s, src + i * sizeof s, 2); /* separate: no 4 bytes after the scale span two stores */              \
            memcpy((uint8_t *)&s + 2, src + i * sizeof s + 2, sizeof s - 2);                                           \
            one_##type((tile_##type *)tile + i, r, &s);                                                                \
        }                                                                                                              \
    }
PACK_ROW(q4_0)
PACK_ROW(q4_1)
PACK_ROW(q5_0)
PACK_ROW(q5_1)
PACK_ROW(q8_0)
PACK_ROW(q2_K)
PACK_ROW(q3_K)
PACK_ROW(q4_K)
PACK_ROW(q5_K)
PACK_ROW(q6_K)
PACK_ROW(iq4_nl)
PACK_ROW(iq4_xs)
PACK_ROW(mxfp4)

static void pack_2_bytes(uint8_t *tile, int r, const uint8_t *src, size_t n)
{
    for (size_t i = 0; i < n; i++) memcpy(tile + 2 * (TILE_ROWS * i + (size_t)r), src + 2 * i, 2);
}

static void pack_4_bytes(uint8_t *tile, int r, const uint8_t *src, size_t n)
{
    for (size_t i = 0; i < n; i++) memcpy(tile + 4 * (TILE_ROWS * i + (size_t)r), src + 4 * i, 4);
}

static pack_fn *const PACK[QUANT_TYPES] = {
    [QUANT_F32] = pack_4_bytes,   [QUANT_F16] = pack_2_bytes, [QUANT_BF16] = pack_2_bytes, [QUANT_Q4_0] = pack_q4_0,
    [QUANT_Q4_1] = pack_q4_1,     [QUANT_Q5_0] = pack_q5_0,   [QUANT_Q5_1] = pack_q5_1,    [QUANT_Q8_0] = pack_q8_0,
    [QUANT_Q4_K] = pack_q4_K,     [QUANT_Q5_K] = pack_q5_K,   [QUANT_Q6_K] = pack_q6_K,    [QUANT_IQ4_NL] = pack_iq4_nl,
    [QUANT_IQ4_XS] = pack_iq4_xs, [QUANT_MXFP4] = pack_mxfp4, [QUANT_Q2_K] = pack_q2_K,    [QUANT_Q3_K] = pack_q3_K,
};

/* The tiles are zeroed, so rows beyond n_out need no code. */
void CPU_FN(pack)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_pack_args *a       = args;
    const weight        *w       = &a->w->pub;
    size_t               n_out   = (size_t)w->n_out;
    size_t               n_units = (size_t)w->n_in / (size_t)quant_block(w->type);
    (void)thread;
    for (size_t t = a->first + from; t < a->first + to; t++) {
        size_t mat = t / a->w->n_tiles, row0 = t % a->w->n_tiles * TILE_ROWS;
        for (int r = 0; r < TILE_ROWS && row0 + (size_t)r < n_out; r++)
            PACK[w->type](a->w->tiles + t * a->w->tile_bytes, r,
                          a->src + (mat * n_out + row0 + (size_t)r) * a->row_bytes, n_units);
    }
}

/* --- a row back -----------------------------------------------------------------------------------*/

INLINE float number_of(quant_type t, uint8_t q)
{
    if (tile_book(t)) return (float)tile_book(t)[q];
    return tile_bits(t) == 8 ? (float)(int8_t)q : (float)(q - tile_offset(t));
}

typedef struct {
    float scale, min;
} half_scale;

INLINE half_scale half_scale_of(quant_type t, const tile_block *k, int r, int half)
{
    if (!tile_has_halves(t)) return (half_scale){0};
    uint8_t s = k->sc[half * TILE_ROWS + r];
    return t == QUANT_Q2_K ? (half_scale){(float)(s & 15), (float)(s >> 4)} : (half_scale){(float)(int8_t)s, 0};
}

/* y = w * scale; the weight is rounded as quant_dequantise rounds it. */
INLINE void read_ints(quant_type t, float *y, const uint8_t *tile, int r, int n_in, float scale)
{
    for (int b = 0; b < n_in / QK; b++) {
        tile_block k = tile_at(t, tile, b);
        uint8_t    v[QK];
        float      d = t == QUANT_MXFP4 ? ldexpf(1, k.sc[r] - 128) : f16_to_f32(k.d[r]);
        float      m = tile_has_min(t) ? f16_to_f32(k.m[r]) : 0;
        if (t == QUANT_IQ4_XS) d = d * (float)(int8_t)k.sc[r];
        if (tile_is_super(t) && tile_has_min(t) && !tile_has_halves(t)) {
            d = d * k.sc[r];
            m = -(m * k.sm[r]);
        }
        get_row(t, &k, r, v);
        for (int i = 0; i < QK; i++) {
            float      q       = number_of(t, v[i]);
            half_scale s       = half_scale_of(t, &k, r, i / 16);
            float      scale_i = tile_has_halves(t) ? d * s.scale : d;
            float      x  = t == QUANT_Q2_K ? scale_i * q - m * s.min : tile_has_min(t) ? scale_i * q + m : scale_i * q;
            y[b * QK + i] = x * scale;
        }
    }
}

static void read_floats(quant_type t, float *y, const uint8_t *tile, int r, int n_in, float scale)
{
    for (int i = 0; i < n_in; i++) {
        size_t at = (size_t)i * TILE_ROWS + (size_t)r;
        float  x  = t == QUANT_F32   ? ((const float *)tile)[at]
                    : t == QUANT_F16 ? f16_to_f32(((const uint16_t *)tile)[at])
                                     : bf16_to_f32(((const uint16_t *)tile)[at]);
        y[i]      = x * scale;
    }
}

static void read_row(quant_type t, float *y, const uint8_t *tile, int r, int n_in, float scale)
{
    switch (t) {
    case QUANT_Q4_0: read_ints(QUANT_Q4_0, y, tile, r, n_in, scale); break;
    case QUANT_Q4_1: read_ints(QUANT_Q4_1, y, tile, r, n_in, scale); break;
    case QUANT_Q5_0: read_ints(QUANT_Q5_0, y, tile, r, n_in, scale); break;
    case QUANT_Q5_1: read_ints(QUANT_Q5_1, y, tile, r, n_in, scale); break;
    case QUANT_Q8_0: read_ints(QUANT_Q8_0, y, tile, r, n_in, scale); break;
    case QUANT_Q2_K: read_ints(QUANT_Q2_K, y, tile, r, n_in, scale); break;
    case QUANT_Q3_K: read_ints(QUANT_Q3_K, y, tile, r, n_in, scale); break;
    case QUANT_Q4_K: read_ints(QUANT_Q4_K, y, tile, r, n_in, scale); break;
    case QUANT_Q5_K: read_ints(QUANT_Q5_K, y, tile, r, n_in, scale); break;
    case QUANT_Q6_K: read_ints(QUANT_Q6_K, y, tile, r, n_in, scale); break;
    case QUANT_IQ4_NL: read_ints(QUANT_IQ4_NL, y, tile, r, n_in, scale); break;
    case QUANT_IQ4_XS: read_ints(QUANT_IQ4_XS, y, tile, r, n_in, scale); break;
    case QUANT_MXFP4: read_ints(QUANT_MXFP4, y, tile, r, n_in, scale); break;
    default: read_floats(t, y, tile, r, n_in, scale);
    }
}

void CPU_FN(embed)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_embed_args *a = args;
    const weight         *w = &a->w->pub;
    (void)thread;
    for (size_t i = from; i < to; i++) {
        if (a->id[i] < 0) continue;
        assert(a->id[i] < w->n_out);
        const uint8_t *tile = a->w->tiles + (size_t)(a->id[i] / TILE_ROWS) * a->w->tile_bytes;
        read_row(w->type, a->y + i * (size_t)w->n_in, tile, a->id[i] % TILE_ROWS, w->n_in, a->scale);
    }
}
