/* y[r][o] = sum over i of w[o][i] x[r][i].
 *
 * The arithmetic of a number y[r][o] is fixed by the weight's type and n_in (promise 1):
 *   quantised   for blocks of 32 inputs in order: acc = fma(dw * dx, exact integer dot, acc), and where the type has a
 *               minimum acc = fma(m, dx * sum of x, acc)
 *   floats      four chains by input mod 4, each an fma per input in order; then (0 + 1) + (2 + 3)
 * A tile is decoded once for up to 4 rows; each (row, output) has its own chain, so how many rows there are, and how
 * they are grouped, changes nothing. Loops over accumulators are unrolled: an index known only at run time would keep
 * them in memory. */
#include "ops/cpu/tile.h"

#include <assert.h>
#include <float.h>

enum { MAX_N = 4, ROW_BLOCK = 32 };

/* --- activations ----------------------------------------------------------------------------------*/

/* d = max|x| / 127, q = x * (1 / d) to nearest, ties to even. What is too small for 1 / d counts as 0; a NaN or an
 * infinity makes d NaN, so that it is seen in the product. */
static void quantise_block(cpu_xblock *out, const float *x)
{
    const v8f magic = v8_set1(12582912.0f); /* 1.5 * 2^23: adding it rounds, and leaves the integer in the low bits */
    v8f       v[4], top = {0}, wrong = {0};
    v8i       q[4];
    for (int i = 0; i < 4; i++) {
        v[i]  = v8_load(x + 8 * i);
        top   = v8_max(v8_abs(v[i]), top);
        wrong = wrong + v[i] * v8_set1(0);
    }
    float d     = v8_hmax(top) / 127 + v8_sum(wrong);
    d           = d < FLT_MIN ? 0 : d;
    v8f inverse = v8_set1(d > 0 ? 1 / d : 0);
    for (int i = 0; i < 4; i++) {
        q[i]        = (v8i)(((v8u)(v[i] * inverse + magic) - (v8u)magic) << 24) >> 24;
        v8i8 narrow = __builtin_convertvector(q[i], v8i8);
        memcpy(out->q + 8 * i, &narrow, sizeof narrow);
    }
    out->d      = d;
    out->sum[0] = v8i_sum(q[0] + q[1]);
    out->sum[1] = v8i_sum(q[2] + q[3]);
    out->ds     = d * (float)(out->sum[0] + out->sum[1]);
}

void CPU_FN(quantise)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_quantise_args *a = args;
    (void)thread;
    for (size_t b = from; b < to; b++) quantise_block(&a->out[b], a->x + b * QK);
}

/* --- integer dots ---------------------------------------------------------------------------------*/

#ifdef __AVX2__
/* Groups whose sums of pairs of products fit 16 bits: 2 * 15 * 128 * 8, 2 * 31 * 128 * 4, 2 * 63 * 128 * 2. */
INLINE int span(quant_type t) { return tile_bits(t) == 4 ? 8 : tile_bits(t) == 5 ? 4 : tile_bits(t) == 6 ? 2 : 1; }
#endif

/* Sums of groups [g0, g0 + n) for the 8 rows, n a multiple of span(t). */
INLINE v8i dot_groups(quant_type t, const v32u8 w[8], const int8_t *x, int g0, int n)
{
#ifdef __AVX2__
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int g = g0; g < g0 + n; g += span(t)) {
        __m256i pairs = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int i = g; i < g + span(t); i++) {
            int32_t four;
            memcpy(&four, x + 4 * i, sizeof four);
            __m256i xi = _mm256_set1_epi32(four), wi = (__m256i)w[i];
            if (tile_bits(t) == 8) /* |w| <= 128 is unsigned, and w's sign goes to x */
                pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(wi), _mm256_sign_epi8(xi, wi));
            else
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(wi, xi));
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return (v8i)sum;
#else
    v8i sum = {0};
    for (int g = g0; g < g0 + n; g++)
        for (int r = 0; r < TILE_ROWS; r++)
            for (int k = 0; k < 4; k++) {
                int wk = tile_bits(t) == 8 ? (int8_t)w[g][4 * r + k] : w[g][4 * r + k];
                sum[r] += wk * x[4 * g + k];
            }
    return sum;
#endif
}

/* acc plus one block of one row. */
INLINE v8f add_block(quant_type t, const tile_block *k, const v32u8 w[8], const cpu_xblock *x, v8f acc)
{
    v8i sum;
    if (t == QUANT_Q6_K) {
        v8i low  = dot_groups(t, w, x->q, 0, 4) - v8_set1i(32 * x->sum[0]);
        v8i high = dot_groups(t, w, x->q, 4, 4) - v8_set1i(32 * x->sum[1]);
        sum      = low * v8i_from_i8(k->sc) + high * v8i_from_i8(k->sc + TILE_ROWS);
    } else {
        sum = dot_groups(t, w, x->q, 0, 8);
        if (tile_offset(t)) sum -= v8_set1i(tile_offset(t) * (x->sum[0] + x->sum[1]));
    }
    acc = v8_fma(k->d * v8_set1(x->d), __builtin_convertvector(sum, v8f), acc);
    return tile_has_min(t) ? v8_fma(k->m, v8_set1(x->ds), acc) : acc;
}

/* --- a tile against n rows ------------------------------------------------------------------------
 * y[r]: where the tile's outputs of row r go, n_out of them, 1 to 8. */
typedef void tile_fn(const uint8_t *tile, int n_in, const void *const x[], float *const y[], int n_out);

INLINE void tile_ints(quant_type t, int n, const uint8_t *tile, int n_in, const void *const x[], float *const y[],
                      int n_out)
{
    v8f acc[MAX_N] = {0};
    for (int b = 0; b < n_in / QK; b++) {
        tile_block k = tile_at(t, tile, b);
        v32u8      w[8];
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) w[g] = tile_group(t, &k, g);
#pragma GCC unroll 4
        for (int r = 0; r < n; r++) acc[r] = add_block(t, &k, w, (const cpu_xblock *)x[r] + b, acc[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n; r++) v8_store_n(y[r], acc[r], n_out);
}

INLINE v8f load_floats(quant_type t, const uint8_t *tile, int i)
{
    if (t == QUANT_F32) return v8_load((const float *)tile + TILE_ROWS * (size_t)i);
    const uint16_t *p = (const uint16_t *)tile + TILE_ROWS * (size_t)i;
    return t == QUANT_F16 ? v8_from_f16(p) : v8_from_bf16(p);
}

INLINE void tile_floats(quant_type t, int n, const uint8_t *tile, int n_in, const void *const x[], float *const y[],
                        int n_out)
{
    v8f acc[MAX_N][4] = {0};
    int i             = 0;
    for (; i + 4 <= n_in; i += 4)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            v8f w = load_floats(t, tile, i + j);
#pragma GCC unroll 4
            for (int r = 0; r < n; r++) acc[r][j] = v8_fma(w, v8_set1(((const float *)x[r])[i + j]), acc[r][j]);
        }
#pragma GCC unroll 3
    for (int j = 0; j < 3; j++) {
        if (i + j >= n_in) break;
        v8f w = load_floats(t, tile, i + j);
#pragma GCC unroll 4
        for (int r = 0; r < n; r++) acc[r][j] = v8_fma(w, v8_set1(((const float *)x[r])[i + j]), acc[r][j]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n; r++) v8_store_n(y[r], (acc[r][0] + acc[r][1]) + (acc[r][2] + acc[r][3]), n_out);
}

#define TILE_FN(kind, type, n)                                                                                         \
    static void tile_##type##_##n(const uint8_t *tile, int n_in, const void *const x[], float *const y[], int n_out)   \
    {                                                                                                                  \
        kind(QUANT_##type, n, tile, n_in, x, y, n_out);                                                                \
    }
#define INT_FNS(type)   TILE_FN(tile_ints, type, 1) TILE_FN(tile_ints, type, 2) TILE_FN(tile_ints, type, 4)
#define FLOAT_FNS(type) TILE_FN(tile_floats, type, 1) TILE_FN(tile_floats, type, 2) TILE_FN(tile_floats, type, 3)
INT_FNS(Q4_0)
INT_FNS(Q4_1)
INT_FNS(Q5_0)
INT_FNS(Q5_1)
INT_FNS(Q8_0)
INT_FNS(Q4_K)
INT_FNS(Q5_K)
INT_FNS(Q6_K)
FLOAT_FNS(F32)
FLOAT_FNS(F16)
FLOAT_FNS(BF16)

/* By type and number of rows; 4 accumulators of 4 rows of floats would not fit the registers. */
#define INTS(type)   [QUANT_##type] = {NULL, tile_##type##_1, tile_##type##_2, NULL, tile_##type##_4}
#define FLOATS(type) [QUANT_##type] = {NULL, tile_##type##_1, tile_##type##_2, tile_##type##_3, NULL}
static tile_fn *const TILE[QUANT_TYPES][MAX_N + 1] = {INTS(Q4_0),  INTS(Q4_1),  INTS(Q5_0),  INTS(Q5_1),
                                                      INTS(Q8_0),  INTS(Q4_K),  INTS(Q5_K),  INTS(Q6_K),
                                                      FLOATS(F32), FLOATS(F16), FLOATS(BF16)};

/* --- tiles against the pairs of a run -------------------------------------------------------------*/

/* Pairs [first, last) of the order, one tile. */
static void tile_pairs(const cpu_matmul_args *a, const uint8_t *tile, size_t out0, int first, int last)
{
    const weight   *w     = &a->w->pub;
    tile_fn *const *fn    = TILE[w->type];
    int             n_out = w->n_out - (int)out0 < TILE_ROWS ? w->n_out - (int)out0 : TILE_ROWS;
    for (int i = first, n; i < last; i += n) {
        const void *x[MAX_N];
        float      *y[MAX_N];
        for (n = last - i < MAX_N ? last - i : MAX_N; !fn[n]; n--) {}
        for (int j = 0; j < n; j++) {
            int pair = a->order ? a->order[i + j] : i + j;
            x[j]     = (const char *)a->x + (size_t)(pair / a->pairs_to_x) * a->x_bytes;
            y[j]     = a->y + (size_t)pair * (size_t)w->n_out + out0;
        }
        fn[n](tile, w->n_in, x, y, n_out);
    }
}

/* Items [from, to) of run g. Rows go in blocks, so that they stay in the cache while the tiles pass by. */
static void run_tiles(const cpu_matmul_args *a, size_t g, size_t from, size_t to)
{
    const uint8_t *tiles = a->w->tiles + (size_t)a->mat[g] * a->w->n_tiles * a->w->tile_bytes;
    int            last  = a->first[g + 1];
    for (int i = a->first[g]; i < last; i += ROW_BLOCK)
        for (size_t t = from; t < to; t++)
            tile_pairs(a, tiles + t * a->w->tile_bytes, t * TILE_ROWS, i, last - i < ROW_BLOCK ? last : i + ROW_BLOCK);
}

void CPU_FN(matmul)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_matmul_args *a       = args;
    size_t                 n_tiles = a->w->n_tiles;
    (void)thread;
    while (from < to) {
        size_t g = from / n_tiles, end = (g + 1) * n_tiles < to ? (g + 1) * n_tiles : to;
        run_tiles(a, g, from - g * n_tiles, end - g * n_tiles);
        from = end;
    }
}
