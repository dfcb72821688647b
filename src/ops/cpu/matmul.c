/* y[r][o] = sum over i of w[o][i] x[r][i].
 *
 * The arithmetic of a number y[r][o] is fixed by the weight's type and n_in (promise 1):
 *   quantised   for blocks of 32 inputs in order: acc = fma(dw * dx, exact integer dot, acc), and where the type has a
 *               minimum acc = fma(m, dx * sum of x, acc); for Q2_K acc = fma(m * dx, exact sum of minima times x, acc)
 *   floats      acc = fma(w, x, acc), inputs in order
 *
 * A kernel call has up to 4 tiles and 6 rows: all rows use a decoded block, all tiles use a row's activations, and 4
 * tiles are 4 memory streams, which are faster than one. Each (row, output) has its own sum, so the number and grouping
 * of rows change nothing. Loops over accumulators are unrolled, since a run-time index would keep them in memory. */
#include "ops/cpu/tile.h"
#include "ops/sampling.h"

#include <assert.h>
#include <float.h>
#include <math.h>

enum { MAX_N = 6, MAX_M = 4 }; /* maximum of rows and of (W-fold) tiles per kernel call */

/* --- activations ----------------------------------------------------------------------------------*/

/* Quantises 32 activations: d = max|x| / 127, q = x * (1 / d) to nearest, ties to even. A block too small for 1 / d
 * becomes 0. NaN and infinity make d NaN, so that the product shows it. */
static void quantise_block(cpu_xblock *out, const float *x)
{
    const v8f magic = v8_set1(12582912.0f); /* 1.5 * 2^23: adding it rounds, and leaves the integer in the low bits */
    v8f       v[4], top = {0}, wrong = {0};
    v8i       q[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i]  = v8_load(x + 8 * i);
        top   = v8_max(v8_abs(v[i]), top);
        wrong = wrong + v[i] * v8_set1(0);
    }
    float d     = v8_hmax(top) / 127 + v8_sum(wrong);
    d           = d < FLT_MIN ? 0 : d;
    v8f inverse = v8_set1(d > 0 ? 1 / d : 0);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) q[i] = (v8i)(((v8u)(v[i] * inverse + magic) - (v8u)magic) << 24) >> 24;
    v32_store_i8(out->q, q);
    int32_t low = v8i_sum(q[0] + q[1]), sum = low + v8i_sum(q[2] + q[3]);
    out->d    = d;
    out->ds   = d * (float)sum;
    out->off8 = -8 * sum;
    out->low8 = -8 * low;
}

void CPU_FN(quantise)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_quantise_args *a = args;
    (void)thread;
    for (size_t b = from; b < to; b++) quantise_block(&a->out[b], a->x + b * QK);
}

/* --- W interleaved tiles -------------------------------------------------------------------------
 * A wide vector is as wide as the registers: one tile, or with AVX-512 two, which share their activations. */
#ifdef __AVX512VNNI__
enum { W = 2 };
#else
enum { W = 1 };
#endif
typedef float   wide_f __attribute__((vector_size(W * 32)));
typedef int32_t wide_i __attribute__((vector_size(W * 32)));
typedef uint8_t wide_u8 __attribute__((vector_size(W * LINE)));

INLINE wide_f wide_set1(float x) { return x - (wide_f){0}; }
INLINE wide_i wide_set1i(int32_t x) { return x - (wide_i){0}; }

/* Load line i of 32 bytes from W places: floats, f16, bf16, bytes and int8, as floats. */
#ifdef __AVX512VNNI__
INLINE __m512i join(v8i a, v8i b) { return _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)a), (__m256i)b, 1); }
INLINE __m128i join_8(const uint8_t *a, const uint8_t *b)
{
    return _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)a), _mm_loadl_epi64((const __m128i *)b));
}
INLINE wide_f load_f32(const uint8_t *const p[W]) { return (wide_f)join((v8i)v32_load(p[0]), (v8i)v32_load(p[1])); }
INLINE wide_f load_bf16(const uint8_t *const p[W])
{
    __m256i low = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p[0]));
    low         = _mm256_inserti128_si256(low, _mm_loadu_si128((const __m128i *)p[1]), 1);
    return (wide_f)_mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16);
}
INLINE wide_f load_f16(const uint16_t *const p[W])
{
    __m256i low = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p[0]));
    return (wide_f)_mm512_cvtph_ps(_mm256_inserti128_si256(low, _mm_loadu_si128((const __m128i *)p[1]), 1));
}
INLINE wide_i load_u8i(const uint8_t *const p[W], int at)
{
    return (wide_i)_mm512_cvtepu8_epi32(join_8(p[0] + at, p[1] + at));
}
INLINE wide_f load_u8(const uint8_t *const p[W]) { return (wide_f)_mm512_cvtepi32_ps((__m512i)load_u8i(p, 0)); }
INLINE wide_f load_i8(const uint8_t *const p[W], int at)
{
    return (wide_f)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(join_8(p[0] + at, p[1] + at)));
}
INLINE wide_u8 load_line(const uint8_t *const p[W], int i)
{
    return (wide_u8)join((v8i)v32_load(p[0] + LINE * i), (v8i)v32_load(p[1] + LINE * i));
}
INLINE wide_u8 look_up(wide_u8 book, wide_u8 q) { return (wide_u8)_mm512_shuffle_epi8((__m512i)book, (__m512i)q); }
INLINE wide_f  wide_fma(wide_f a, wide_f b, wide_f c)
{
    return (wide_f)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#else
INLINE wide_f load_f32(const uint8_t *const p[W]) { return v8_load((const float *)p[0]); }
INLINE wide_f load_bf16(const uint8_t *const p[W]) { return v8_from_bf16((const uint16_t *)p[0]); }
INLINE wide_f load_f16(const uint16_t *const p[W]) { return v8_from_f16(p[0]); }
INLINE wide_i load_u8i(const uint8_t *const p[W], int at) { return v8i_from_u8(p[0] + at); }
INLINE wide_f load_u8(const uint8_t *const p[W]) { return v8_from_u8(p[0]); }
INLINE wide_f load_i8(const uint8_t *const p[W], int at)
{
    return __builtin_convertvector(v8i_from_i8((const int8_t *)p[0] + at), v8f);
}
INLINE wide_u8 load_line(const uint8_t *const p[W], int i) { return v32_load(p[0] + LINE * i); }
INLINE wide_u8 look_up(wide_u8 book, wide_u8 q)
{
#ifdef __AVX2__
    return (wide_u8)_mm256_shuffle_epi8((__m256i)book, (__m256i)q);
#else
    for (int i = 0; i < LINE; i++) q[i] = book[q[i]];
    return q;
#endif
}
INLINE wide_f wide_fma(wide_f a, wide_f b, wide_f c) { return v8_fma(a, b, c); }
#endif

/* Prefetch distance in bytes. The hardware prefetcher stops at page ends. The target is the L2 cache, which can have
 * more lines in flight than L1. */
enum { AHEAD = 2048 };

INLINE wide_f
wide_exp2(wide_i e) /* 2^(e - 128), e from 0 to 255; in two factors, since the smallest result is subnormal */
{
    wide_i half = e >> 1;
    return (wide_f)((half + 63) << 23) * (wide_f)((e - half + 63) << 23);
}

/* Rows that need several kernel passes over the same tiles: pass `now` of `all`. Each pass prefetches its share of
 * the next strip's blocks, so that memory is equally busy in all passes. */
typedef struct {
    int now, all;
} turns;

/* A block of W tiles: weight = d * (q - offset) + m. */
typedef struct {
    wide_f         d, m;
    wide_f         all_d, all_m; /* scales of the block or super-block, decoded at its start */
    const uint8_t *sc[W], *q[W], *h[W];
} wide_block;

INLINE void ask_for_block(quant_type t, const uint8_t *q)
{
#pragma GCC unroll 8
    for (int at = 0; at < QK * tile_bits(t) + TILE_ROWS * 2; at += 64) __builtin_prefetch(q + at, 0, 2);
}

INLINE void go_to_block(quant_type t, wide_block *k, const uint8_t *const tile[W], int b, size_t ahead)
{
    const uint16_t *d[W], *m[W];
    const uint8_t  *sm[W];
#pragma GCC unroll 2
    for (int i = 0; i < W; i++) {
        tile_block one = tile_at(t, tile[i], b);
        if (ahead) ask_for_block(t, one.q + ahead);
        d[i]     = one.d;
        m[i]     = one.m;
        sm[i]    = one.sm;
        k->sc[i] = one.sc;
        k->q[i]  = one.q;
        k->h[i]  = one.h;
    }
    if (!tile_is_super(t) || b % 8 == 0) {
        k->all_d = t == QUANT_MXFP4 ? wide_exp2(load_u8i(k->sc, 0)) : load_f16(d);
        if (tile_has_min(t)) k->all_m = load_f16(m);
    }
    bool scaled = t == QUANT_Q4_K || t == QUANT_Q5_K;
    k->d        = scaled ? k->all_d * load_u8(k->sc) : k->all_d;
    if (t == QUANT_IQ4_XS) k->d = k->all_d * load_i8(k->sc, 0);
    if (tile_has_min(t)) k->m = scaled ? -(k->all_m * load_u8(sm)) : k->all_m;
}

/* Returns the scale of a half block, and Q2_K's minimum, for types that have one per 16 inputs. */
INLINE wide_f half_scale(quant_type t, const wide_block *k, int half)
{
    if (t != QUANT_Q2_K) return load_i8(k->sc, half * TILE_ROWS);
    return __builtin_convertvector(load_u8i(k->sc, half * TILE_ROWS) & 15, wide_f);
}

INLINE wide_f half_min(const wide_block *k, int half)
{
    return __builtin_convertvector(load_u8i(k->sc, half * TILE_ROWS) >> 4, wide_f);
}

/* Returns -8 times the sum of minima times x, an integer. */
INLINE wide_f half_minima(const wide_block *k, const cpu_xblock *x)
{
    wide_f low = half_min(k, 0) * wide_set1((float)x->low8);
    return wide_fma(half_min(k, 1), wide_set1((float)(x->off8 - x->low8)), low);
}

/* Returns the offset of wide_group's numbers over the weight's: VNNI needs unsigned numbers. */
INLINE int offset(quant_type t) { return W == 2 && tile_number_bits(t) == 8 ? 128 : tile_offset(t); }

/* Returns the type's code book with the offset added, repeated every 16 bytes. */
INLINE wide_u8 wide_book(quant_type t)
{
    wide_u8 book = {0};
    if (tile_book(t))
#pragma GCC unroll 4
        for (size_t i = 0; i < sizeof book; i += 16) memcpy((char *)&book + i, tile_book(t), 16);
    return book + (uint8_t)offset(t);
}

/* Returns the numbers of group g in the form that dot_add needs. */
INLINE wide_u8 wide_group(quant_type t, const wide_block *k, int g)
{
    if (tile_bits(t) == 8) return load_line(k->q, g) ^ (uint8_t)offset(t);
    wide_u8 q = load_line(k->q, tile_bits(t) < 4 ? g / 4 : g % 4);
    if (tile_bits(t) < 4)
        q = q >> (2 * (g % 4)) & 3;
    else
        q = g < 4 ? q & 15 : q >> 4;
    if (tile_bits(t) == 3) {
        wide_u8 h = load_line(k->h, 0) & (uint8_t)(1 << g);
        q |= g < 2 ? h << (2 - g) : h >> (g - 2);
    }
    if (tile_bits(t) == 5) {
        wide_u8 h = load_line(k->h, 0) & (uint8_t)(1 << g);
        q |= g < 4 ? h << (4 - g) : h >> (g - 4);
    }
    if (tile_bits(t) == 6) {
        int     at = 2 * (g % 4);
        wide_u8 h  = load_line(k->h, g / 4) & (uint8_t)(3 << at);
        q |= at < 4 ? h << (4 - at) : h >> (at - 4);
    }
    return tile_book(t) ? look_up(wide_book(t), q) : q;
}

/* --- integer dots ---------------------------------------------------------------------------------
 * dot_end(dot_add(.., dot_add(.., dot_begin(from)))) = from + the dot of up to span(t) groups, one per output. */
#if defined(__AVX512VNNI__)
INLINE int    span(quant_type t) { return tile_has_halves(t) ? 4 : 8; }
INLINE wide_i dot_begin(wide_i from) { return from; }
INLINE wide_i dot_add(quant_type t, wide_u8 w, wide_i x, wide_i part)
{
    (void)t;
    return (wide_i)_mm512_dpbusd_epi32((__m512i)part, (__m512i)w, (__m512i)x);
}
INLINE wide_i dot_end(wide_i from, wide_i part)
{
    (void)from;
    return part;
}
#elif defined(__AVX2__)
/* Sums of pairs of products must fit 16 bits: 2 * 15 * 128 * 8, 2 * 31 * 128 * 4, 2 * 63 * 128 * 2. */
INLINE int span(quant_type t)
{
    switch (tile_number_bits(t)) {
    case 8: return 1;
    case 6: return 2;
    case 4: return 8;
    default: return 4; /* half a block for Q2_K and Q3_K */
    }
}
/* Forces the addition here: the compiler would keep all products in memory and add them at the end. */
INLINE wide_i now(__m256i v)
{
    __asm__ volatile("" : "+x"(v));
    return (wide_i)v;
}
INLINE wide_i dot_begin(wide_i from) { return from ^ from; }
INLINE wide_i dot_add(quant_type t, wide_u8 w, wide_i x, wide_i part)
{
    __m256i wi = (__m256i)w, xi = (__m256i)x;
    if (tile_number_bits(t) == 8) /* |w| <= 128 is unsigned; the sign of w moves to x */
        return (wide_i)_mm256_maddubs_epi16(_mm256_abs_epi8(wi), _mm256_sign_epi8(xi, wi));
    return now(_mm256_add_epi16((__m256i)part, _mm256_maddubs_epi16(wi, xi)));
}
INLINE wide_i dot_end(wide_i from, wide_i part)
{
    return now(_mm256_add_epi32((__m256i)from, _mm256_madd_epi16((__m256i)part, _mm256_set1_epi16(1))));
}
#else
INLINE int    span(quant_type t) { return tile_has_halves(t) ? 4 : 8; }
INLINE wide_i dot_begin(wide_i from) { return from; }
INLINE wide_i dot_add(quant_type t, wide_u8 w, wide_i x, wide_i part)
{
    const int8_t *four = (const int8_t *)&x;
    for (int r = 0; r < TILE_ROWS; r++)
        for (int k = 0; k < 4; k++)
            part[r] += (tile_number_bits(t) == 8 ? (int8_t)w[4 * r + k] : w[4 * r + k]) * four[k];
    return part;
}
INLINE wide_i dot_end(wide_i from, wide_i part)
{
    (void)from;
    return part;
}
#endif

INLINE wide_i four_of(const cpu_xblock *x, int g) /* the activations of group g, repeated for each output */
{
    int32_t four;
    memcpy(&four, x->q + 4 * g, sizeof four);
    return wide_set1i(four);
}

/* Adds groups [g0, g0 + groups) to the sums, each row against each block. The sums alternate, to hide latency. */
INLINE void dot_groups(quant_type t, int m, int n, const wide_block *k, const cpu_xblock *const *x, int g0, int groups,
                       wide_i sum[MAX_M][MAX_N])
{
#pragma GCC unroll 8
    for (int from = g0; from < g0 + groups; from += span(t)) {
        wide_i part[MAX_M][MAX_N];
#pragma GCC unroll 4
        for (int j = 0; j < m; j++)
#pragma GCC unroll 8
            for (int r = 0; r < n; r++) part[j][r] = dot_begin(sum[j][r]);
#pragma GCC unroll 8
        for (int g = from; g < from + span(t); g++) {
            wide_u8 w[MAX_M];
#pragma GCC unroll 4
            for (int j = 0; j < m; j++) w[j] = wide_group(t, &k[j], g);
#pragma GCC unroll 8
            for (int r = 0; r < n; r++)
#pragma GCC unroll 4
                for (int j = 0; j < m; j++) part[j][r] = dot_add(t, w[j], four_of(x[r], g), part[j][r]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < n; r++)
#pragma GCC unroll 4
            for (int j = 0; j < m; j++) sum[j][r] = dot_end(sum[j][r], part[j][r]);
    }
}

/* Computes the dot products of groups [g0, g0 + groups) without the offset: integers below 2^24, exact in a float. */
INLINE void dot_block(quant_type t, int m, int n, const wide_block *k, const cpu_xblock *const *x, int g0, int groups,
                      wide_f dot[MAX_M][MAX_N])
{
    wide_i sum[MAX_M][MAX_N];
#pragma GCC unroll 8
    for (int r = 0; r < n; r++) {
        int32_t off8 = groups == 8 ? x[r]->off8 : g0 == 0 ? x[r]->low8 : x[r]->off8 - x[r]->low8;
#pragma GCC unroll 4
        for (int j = 0; j < m; j++)
            sum[j][r] = offset(t) % 8 ? wide_set1i(off8) * offset(t) >> 3 : wide_set1i(off8) * (offset(t) / 8);
    }
    dot_groups(t, m, n, k, x, g0, groups, sum);
#pragma GCC unroll 8
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int j = 0; j < m; j++) dot[j][r] = __builtin_convertvector(sum[j][r], wide_f);
}

/* Computes the dot product of a whole block with the scales of its halves: for Q6_K 2^16 times 2^7, twice. */
INLINE void dot_scaled(quant_type t, int m, int n, const wide_block *k, const cpu_xblock *const *x,
                       wide_f dot[MAX_M][MAX_N])
{
    wide_f high[MAX_M][MAX_N];
    dot_block(t, m, n, k, x, 0, tile_has_halves(t) ? 4 : 8, dot);
    if (!tile_has_halves(t)) return;
#pragma GCC unroll 4
    for (int j = 0; j < m; j++)
#pragma GCC unroll 8
        for (int r = 0; r < n; r++) dot[j][r] *= half_scale(t, &k[j], 0);
    dot_block(t, m, n, k, x, 4, 4, high);
#pragma GCC unroll 4
    for (int j = 0; j < m; j++)
#pragma GCC unroll 8
        for (int r = 0; r < n; r++) dot[j][r] = wide_fma(high[j][r], half_scale(t, &k[j], 1), dot[j][r]);
}

/* --- m times W tiles against n rows ---------------------------------------------------------------
 * tile: m * W tiles. y[r]: the outputs of row r, n_out of them, tile after tile. */
typedef void tile_fn(const uint8_t *const *tile, int n_in, const void *const *x, float *const *y, int n_out, turns go);

INLINE void put_rows(int m, int n, float *const *y, wide_f acc[MAX_M][MAX_N], int n_out)
{
#pragma GCC unroll 8
    for (int r = 0; r < n; r++) {
        wide_f out[MAX_M];
#pragma GCC unroll 4
        for (int j = 0; j < m; j++) out[j] = acc[j][r];
        memcpy(y[r], out, (size_t)n_out * sizeof(float));
    }
}

INLINE void tile_ints(quant_type t, int m, int n, const uint8_t *const *tile, int n_in, const void *const *rows,
                      float *const *y, int n_out, turns go)
{
    wide_f            acc[MAX_M][MAX_N] = {0};
    wide_block        k[MAX_M]          = {0};
    const cpu_xblock *x[MAX_N];
    size_t            tile_bytes = (size_t)(tile[1] - tile[0]), skip = (size_t)(m * W - 1) * tile_bytes;
#pragma GCC unroll 8
    for (int r = 0; r < n; r++) x[r] = rows[r];
    for (int b = 0; b < n_in / QK; b++) {
        wide_f dot[MAX_M][MAX_N];
        bool   ends  = b >= n_in / QK - AHEAD / (QK * tile_bits(t)); /* prefetch the next tiles from here on */
        size_t ahead = go.all == 1 ? AHEAD + (ends ? skip : 0) : go.now ? 0 : TILE_STRIP * tile_bytes;
        go.now       = go.now ? go.now - 1 : go.all - 1;
#pragma GCC unroll 4
        for (int j = 0; j < m; j++) go_to_block(t, &k[j], tile + j * W, b, ahead);
        dot_scaled(t, m, n, k, x, dot);
#pragma GCC unroll 8
        for (int r = 0; r < n; r++) {
#pragma GCC unroll 4
            for (int j = 0; j < m; j++) {
                acc[j][r] = wide_fma(k[j].d * wide_set1(x[r]->d), dot[j][r], acc[j][r]);
                if (t == QUANT_Q2_K)
                    acc[j][r] = wide_fma(k[j].m * wide_set1(x[r]->d / 8), half_minima(&k[j], x[r]), acc[j][r]);
                else if (tile_has_min(t))
                    acc[j][r] = wide_fma(k[j].m, wide_set1(x[r]->ds), acc[j][r]);
            }
            x[r]++;
        }
    }
    put_rows(m, n, y, acc, n_out);
}

/* Loads input i of W tiles. */
INLINE wide_f load_floats(quant_type t, const uint8_t *const *tile, int i)
{
    size_t         at = (size_t)i * TILE_ROWS * (t == QUANT_F32 ? 4 : 2);
    const uint8_t *p[W];
#pragma GCC unroll 2
    for (int k = 0; k < W; k++) p[k] = tile[k] + at;
    return t == QUANT_F32 ? load_f32(p) : t == QUANT_F16 ? load_f16((const uint16_t *const *)p) : load_bf16(p);
}

INLINE void add_input(quant_type t, int m, int n, const uint8_t *const *tile, const float *const *x, int i,
                      wide_f acc[MAX_M][MAX_N])
{
    wide_f w[MAX_M];
#pragma GCC unroll 4
    for (int j = 0; j < m; j++) w[j] = load_floats(t, tile + j * W, i);
#pragma GCC unroll 8
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int j = 0; j < m; j++) acc[j][r] = wide_fma(w[j], wide_set1(x[r][i]), acc[j][r]);
}

INLINE void tile_floats(quant_type t, int m, int n, const uint8_t *const *tile, int n_in, const void *const *rows,
                        float *const *y, int n_out, turns go)
{
    enum { STEP = 4 }; /* inputs: one or two cache lines of each tile */
    wide_f       acc[MAX_M][MAX_N] = {0};
    const float *x[MAX_N];
    int          i = 0;
    (void)go;
#pragma GCC unroll 8
    for (int r = 0; r < n; r++) x[r] = rows[r];
    for (; i + STEP <= n_in; i += STEP) {
#pragma GCC unroll 4
        for (int j = 0; j < m * W; j++)
            for (int at = 0; at < STEP * TILE_ROWS * (t == QUANT_F32 ? 4 : 2); at += 64)
                __builtin_prefetch(tile[j] + (size_t)i * TILE_ROWS * (t == QUANT_F32 ? 4 : 2) + AHEAD + at);
#pragma GCC unroll 4
        for (int k = 0; k < STEP; k++) add_input(t, m, n, tile, x, i + k, acc);
    }
    for (; i < n_in; i++) add_input(t, m, n, tile, x, i, acc);
    put_rows(m, n, y, acc, n_out);
}

#define TILE_FN(kind, type, m, n)                                                                                      \
    static void tile_##type##_##m##x##n(const uint8_t *const *tile, int n_in, const void *const *x, float *const *y,   \
                                        int n_out, turns go)                                                           \
    {                                                                                                                  \
        tile_##kind(QUANT_##type, m, n, tile, n_in, x, y, n_out, go);                                                  \
    }
#define TWO_BY_3_TO_6(kind, type)                                                                                      \
    TILE_FN(kind, type, 2, 3) TILE_FN(kind, type, 2, 4) TILE_FN(kind, type, 2, 5) TILE_FN(kind, type, 2, 6)
#ifdef __AVX512VNNI__ /* 4 tiles each: up to 12 accumulators and 12 sums of 32 registers */
#define TILE_FNS(kind, type) TILE_FN(kind, type, 2, 1) TILE_FN(kind, type, 2, 2) TWO_BY_3_TO_6(kind, type)
#define INT_FNS(type)        TILE_FNS(ints, type)
#define FLOAT_FNS(type)      TILE_FNS(floats, type)
#define INTS(type)                                                                                                     \
    [QUANT_##type] = {[1] = {4, tile_##type##_2x1}, [2] = {4, tile_##type##_2x2}, [3] = {4, tile_##type##_2x3},        \
                      [4] = {4, tile_##type##_2x4}, [5] = {4, tile_##type##_2x5}, [6] = {4, tile_##type##_2x6}}
#define FLOATS(type) INTS(type)
#else /* floats: 12 sums, which alternate and leave registers for the factors */
#define INT_FNS(type)                                                                                                  \
    TILE_FN(ints, type, 4, 1) TILE_FN(ints, type, 2, 2) TILE_FN(ints, type, 2, 3) TILE_FN(ints, type, 2, 4)
#define FLOAT_FNS(type) TILE_FN(floats, type, 4, 1) TILE_FN(floats, type, 4, 2) TWO_BY_3_TO_6(floats, type)
#define INTS(type)                                                                                                     \
    [QUANT_##type] = {[1] = {4, tile_##type##_4x1},                                                                    \
                      [2] = {2, tile_##type##_2x2},                                                                    \
                      [3] = {2, tile_##type##_2x3},                                                                    \
                      [4] = {2, tile_##type##_2x4}}
#define FLOATS(type)                                                                                                   \
    [QUANT_##type] = {[1] = {4, tile_##type##_4x1}, [2] = {4, tile_##type##_4x2}, [3] = {2, tile_##type##_2x3},        \
                      [4] = {2, tile_##type##_2x4}, [5] = {2, tile_##type##_2x5}, [6] = {2, tile_##type##_2x6}}
#endif
INT_FNS(Q4_0)
INT_FNS(Q4_1)
INT_FNS(Q5_0)
INT_FNS(Q5_1)
INT_FNS(Q8_0)
INT_FNS(Q2_K)
INT_FNS(Q3_K)
INT_FNS(Q4_K)
INT_FNS(Q5_K)
INT_FNS(Q6_K)
INT_FNS(IQ4_NL)
INT_FNS(IQ4_XS)
INT_FNS(MXFP4)
FLOAT_FNS(F32)
FLOAT_FNS(F16)
FLOAT_FNS(BF16)

/* The kernels by type and number of rows: as many accumulators as fit the registers. */
static const struct {
    int      n_tiles; /* per call */
    tile_fn *fn;
} TILE[QUANT_TYPES][MAX_N + 1] = {INTS(Q4_0),  INTS(Q4_1),  INTS(Q5_0),  INTS(Q5_1),  INTS(Q8_0),   INTS(Q2_K),
                                  INTS(Q3_K),  INTS(Q4_K),  INTS(Q5_K),  INTS(Q6_K),  INTS(IQ4_NL), INTS(IQ4_XS),
                                  INTS(MXFP4), FLOATS(F32), FLOATS(F16), FLOATS(BF16)};

/* --- tiles against the pairs of a run -------------------------------------------------------------*/

/* Returns how many of the remaining rows the next kernel call gets: even shares, since few rows cost more each. */
static int rows_at_once(quant_type t, int left)
{
    int max = MAX_N, n;
    while (!TILE[t][max].fn) max--;
    n = (left + max - 1) / max;
    for (n = (left + n - 1) / n; !TILE[t][n].fn; n--) {}
    return n;
}

/* Ranks a row's outputs from out0 on, at most a strip, among this thread's best. The cap makes no output larger,
 * except by rounding, so most strips are skipped before it. */
static void rank_outputs(const cpu_top_args *a, int thread, int row, float *y, int n_out, size_t out0)
{
    cpu_ranking *seen   = &a->seen[(size_t)thread * (size_t)a->n_rows + (size_t)row];
    float        cutoff = seen->n == a->n_top ? seen->best[a->n_top - 1].logit : -INFINITY;
    v8f          max    = v8_set1(-INFINITY);
    for (int i = 0; i < n_out; i += TILE_ROWS) max = v8_max(v8_load(y + i), max);
    if (cutoff > 0 && v8_hmax(max) * 1.001f < cutoff) return;
    for (int i = 0; a->cap > 0 && i < n_out; i += TILE_ROWS)
        v8_store(y + i, v8_softcap(v8_load(y + i), v8_set1(a->cap)));
    for (int i = 0; i < n_out; i++)
        if (y[i] >= cutoff) seen->n = sampling_rank(seen->best, seen->n, a->n_top, (int32_t)out0 + i, y[i]);
}

/* Multiplies pairs [first, last) of the order by n_tiles tiles, at most a strip. Missing tiles of a kernel call
 * repeat the last one, and their outputs are dropped. */
static void strip_pairs(const cpu_matmul_args *a, const uint8_t *strip, int n_tiles, size_t out0, int first, int last,
                        int thread)
{
    const weight  *w = &a->w->pub;
    const uint8_t *tile[TILE_STRIP];
    float          ranked[MAX_N][TILE_STRIP * TILE_ROWS];
    int            n_out = (int)out0 + n_tiles * TILE_ROWS < w->n_out ? n_tiles * TILE_ROWS : w->n_out - (int)out0;
    if (a->top) memset(ranked, 0, sizeof ranked);
    for (int t = 0; t < TILE_STRIP; t++) tile[t] = strip + (size_t)(t < n_tiles ? t : n_tiles - 1) * a->w->tile_bytes;
    turns go = {0, 0};
    for (int i = first; i < last; i += rows_at_once(w->type, last - i)) go.all++;
    for (int i = first, n; i < last; i += n, go.now++) {
        const void *x[MAX_N];
        float      *y[MAX_N];
        n = rows_at_once(w->type, last - i);
        for (int j = 0; j < n; j++) {
            int pair = a->order ? a->order[i + j] : i + j;
            x[j]     = (const char *)a->x + (size_t)(pair / a->pairs_to_x) * a->x_bytes;
            y[j]     = a->top ? ranked[j] : a->y + (size_t)pair * (size_t)w->n_out + out0;
        }
        for (int t = 0; t < n_tiles; t += TILE[w->type][n].n_tiles) {
            int out = n_out - t * TILE_ROWS, max_out = TILE[w->type][n].n_tiles * TILE_ROWS;
            TILE[w->type][n].fn(tile + t, w->n_in, x, y, out < max_out ? out : max_out, go);
            for (int j = 0; j < n; j++) y[j] += TILE[w->type][n].n_tiles * TILE_ROWS;
        }
        for (int j = 0; a->top && j < n; j++) rank_outputs(a->top, thread, i + j, ranked[j], n_out, out0);
    }
}

/* Runs items [from, to) of run g in blocks of rows, so that the rows stay in the cache while the tiles stream by. */
static void run_tiles(const cpu_matmul_args *a, size_t g, size_t from, size_t to, int thread)
{
    const uint8_t *tiles = a->w->tiles + (size_t)a->mat[g] * a->w->n_tiles * a->w->tile_bytes;
    int            last  = a->first[g + 1];
    for (int i = a->first[g]; i < last; i += CPU_ROW_BLOCK)
        for (size_t t = from; t < to; t += TILE_STRIP)
            strip_pairs(a, tiles + t * a->w->tile_bytes, to - t < TILE_STRIP ? (int)(to - t) : TILE_STRIP,
                        t * TILE_ROWS, i, last - i < CPU_ROW_BLOCK ? last : i + CPU_ROW_BLOCK, thread);
}

void CPU_FN(matmul)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_matmul_args *a       = args;
    size_t                 n_tiles = a->w->n_tiles;
    while (from < to) {
        size_t g = from / n_tiles, end = (g + 1) * n_tiles < to ? (g + 1) * n_tiles : to;
        run_tiles(a, g, from - g * n_tiles, end - g * n_tiles, thread);
        from = end;
    }
}
