/* y = softmax(scale q.k) v over the positions of a row's own path.
 *
 * Positions are cut into tiles at multiples of KEY_TILE, for every row and step. For the keys of a tile that a row
 * sees, the kernel computes scores, their maximum m, weights p = e^(s - m), their sum l, and o = sum of p v in
 * ascending order. Tiles merge from left to right:
 *
 *     M' = max(M, m)    L' = L e^(M - M') + l e^(m - M')    O' = O e^(M - M') + o e^(m - M')    finally y = O / L
 *
 * The index of a key in its tile and of an element in its head fix the SIMD lane of every sum, so a number depends on
 * the query, the keys and their positions alone (promise 1). A query is a head of a row. Up to BLOCK queries that
 * read the same kv head run together and share its loads. Each has its own sums.
 *
 * Keys and values of types with scales are rotated (cache_code.h): a query is rotated when it is packed, an output when
 * it is complete. */
#include "ops/cpu/hadamard.h"
#include "ops/cpu/kernels.h"

#include <assert.h>

enum {
    BLOCK  = 8,            /* queries */
    SCORES = KEY_TILE + 8, /* floats between the scores of two queries */
    AHEAD  = 4096,         /* bytes of prefetch distance */
    FEW    = 4             /* fewer queries than this are bound by memory */
};
#ifdef __AVX512F__
enum { WIDE = 8, SUMS = 16 }; /* maximum of queries per kernel call, and of v16f sums in registers */
#else
enum { WIDE = 4, SUMS = 4 };
#endif

/* A list of keys or values: the codes of vector i are at code[i] + to, its scales at scale[i] + to if its type has
 * scales. */
typedef struct {
    const char *const *code, *const *scale;
    size_t to;
} vectors;

INLINE vectors vectors_from(vectors v, int i) { return (vectors){v.code + i, v.scale + i, v.to}; }

#define LEVEL(x) ((x) / 64.0f)
static const float TQ3_LEVEL[8] = CACHE_TQ3_LEVELS(LEVEL);
#undef LEVEL

/* Returns 16 levels from i on; i is a multiple of 16. cache_code.c describes the three words of a block. */
INLINE v16f load_tq3(const char *p, int i)
{
    uint32_t w[3];
    memcpy(w, p + i / 32 * (int)sizeof w, sizeof w);
    if (i % 32 == 0) return v16_from_halves(v8_look_up(TQ3_LEVEL, w[0]), v8_look_up(TQ3_LEVEL, w[1]));
    uint32_t last = (w[0] >> 3 & 0x11111111u) | (w[1] >> 2 & 0x22222222u) | (w[2] >> 1 & 0x44444444u);
    return v16_from_halves(v8_look_up(TQ3_LEVEL, w[2]), v8_look_up(TQ3_LEVEL, last));
}

/* Returns 16 elements from i on of the vector with codes p and scales s. A value with a scale is the exact product of
 * code and scale. */
INLINE v16f load_stored(cache_type t, const char *p, const char *s, int i)
{
    const uint16_t *scale = (const uint16_t *)(const void *)s;
    switch (t) {
    case CACHE_F32: return v16_load((const float *)p + i);
    case CACHE_F16: return v16_from_f16((const uint16_t *)p + i);
    case CACHE_Q8_0: return v16_mul(v16_from_i8((const int8_t *)p + i), v16_set1_f16(scale + i / CACHE_BLOCK));
    case CACHE_Q4_0:
        return v16_mul(v16_from_nibbles((const uint8_t *)p + i / CACHE_BLOCK * (CACHE_BLOCK / 2), i & 16),
                       v16_set1_f16(scale + i / CACHE_BLOCK));
    default: return v16_mul(load_tq3(p, i), v16_set1_f16(scale + i / CACHE_GROUP));
    }
}

/* The last 8 elements of a head; types with scales have none. */
INLINE v16f load_stored_half(cache_type t, const char *p, int i)
{
    return v16_from_low(t == CACHE_F32 ? v8_load((const float *)p + i) : v8_from_f16((const uint16_t *)p + i));
}

/* Returns the bytes of the codes of n elements; n is a multiple of 8. */
INLINE size_t code_bytes(cache_type t, size_t n)
{
    return t == CACHE_F32 ? 4 * n : t == CACHE_F16 ? 2 * n : t == CACHE_Q8_0 ? n : t == CACHE_Q4_0 ? n / 2 : n / 8 * 3;
}

INLINE void prefetch(const char *p, size_t bytes)
{
#pragma GCC unroll 8
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

/* --- scores ----------------------------------------------------------------------------------------*/

/* The queries of a block, interleaved: q[i / 16][query][i % 16], zeros after the end of a head. */
typedef struct {
    const float *q;
    size_t       step; /* floats between two groups of 16 */
    int          head_dim;
    float        scale;
    size_t       vec_bytes; /* bytes of the codes of a key */
    vectors      v;         /* the values, for prefetches */
} packed;

INLINE void fma_keys(int n, int m, v16f acc[BLOCK][BLOCK], const float *q, const v16f *key)
{
#pragma GCC unroll 8
    for (int h = 0; h < n; h++) {
        v16f x = v16_load(q + 16 * h);
#pragma GCC unroll 8
        for (int j = 0; j < m; j++) acc[h][j] = v16_fma(x, key[j], acc[h][j]);
    }
}

/* Computes sum[query][key] of n queries and m keys in 16 partial sums by element mod 16, added by halves to 8.
 * Prefetches as many bytes at `ahead`. */
INLINE void dot_keys(cache_type t, int n, int m, v8f *sum, int sum_step, const packed *x, const char *const *k,
                     const char *const *scale, const char *ahead)
{
    v16f         acc[BLOCK][BLOCK], key[BLOCK];
    const float *q = x->q;
    int          i = 0;
#pragma GCC unroll 8
    for (int h = 0; h < n; h++)
#pragma GCC unroll 8
        for (int j = 0; j < m; j++) acc[h][j] = v16_set1(0);
    for (; i + 16 <= x->head_dim; i += 16, q += x->step) {
#pragma GCC unroll 8
        for (int j = 0; j < m; j++) key[j] = load_stored(t, k[j], scale[j], i);
        prefetch(ahead + code_bytes(t, (size_t)(i * m)), code_bytes(t, 16 * (size_t)m));
        fma_keys(n, m, acc, q, key);
    }
    if (i < x->head_dim) {
#pragma GCC unroll 8
        for (int j = 0; j < m; j++) key[j] = load_stored_half(t, k[j], i);
        fma_keys(n, m, acc, q, key);
    }
#pragma GCC unroll 8
    for (int h = 0; h < n; h++)
#pragma GCC unroll 8
        for (int j = 0; j < m; j++) sum[h * sum_step + j] = v16_low(acc[h][j]) + v16_high(acc[h][j]);
}

/* Computes s[query][key] = scale * q.k. Writes up to 7 scores past the last key. Prefetches keys AHEAD bytes early,
 * and the first values when there are many queries. */
INLINE void score_keys(cache_type t, int n, float *s, const packed *x, vectors k, int n_keys)
{
    const int side = n < 4 ? n : 4, m = 8 / side, at_once = SUMS / n < m ? SUMS / n : m; /* side * m is 8 */
    int       early = AHEAD / (int)x->vec_bytes;
    for (int i = 0; i < n_keys; i += m) {
        const char *key[8], *scale[8], *ahead = k.code[i + early < n_keys ? i + early : n_keys - 1];
        v8f         sum[16];
#pragma GCC unroll 8
        for (int j = 0; j < m; j++) {
            int place = i + j < n_keys ? i + j : n_keys - 1;
            key[j]    = k.code[place];
            scale[j]  = cache_has_scales(t) ? k.scale[place] : NULL;
            if (n >= FEW) __builtin_prefetch(x->v.code[place] + x->v.to);
        }
#pragma GCC unroll 8
        for (int j = 0; j < m; j += at_once)
            dot_keys(t, n, at_once, sum + j, m, x, key + j, scale + j, ahead + (size_t)j * x->vec_bytes);
#pragma GCC unroll 2
        for (int g = 0; g < n * m; g += 8) {
            float eight[8];
            v8_store(eight, v8_sums(sum + g) * v8_set1(x->scale));
#pragma GCC unroll 8
            for (int h = 0; h < side; h++)
                memcpy(s + (g / m + h) * SCORES + i, eight + h * m, (size_t)m * sizeof(float));
        }
    }
}

/* Replaces s by p. Returns the sum, and the maximum in *max. Lanes outside first .. last get weight 0. */
static float soften(float *s, int first, int last, float *max)
{
    int from = first & ~7, to = last | 7;
    for (int i = from; i < first; i++) s[i] = -INFINITY;
    for (int i = last + 1; i <= to; i++) s[i] = -INFINITY;
    v8f m = v8_load(s + from), acc = v8_set1(0);
    for (int i = from + 8; i < to; i += 8) m = v8_max(v8_load(s + i), m);
    *max = v8_hmax(m);
    for (int i = from; i < to; i += 8) {
        v8f p = v8_exp(v8_load(s + i) - v8_set1(*max));
        v8_store(s + i, p);
        acc += p;
    }
    return v8_sum(acc);
}

/* --- values ----------------------------------------------------------------------------------------*/

/* Adds p v over the keys to o[query], for `width` times 16 elements from i on, or for the 8 of a last half. With each
 * key it prefetches as many bytes at `ahead`, or the next ones of the same vector. */
INLINE void add_columns(cache_type t, int n, int width, bool half, float *o, size_t o_step, const float *p,
                        vectors value, int n_keys, int i, const char *ahead)
{
    const size_t bytes = code_bytes(t, 16 * (size_t)width), at = code_bytes(t, (size_t)i);
    v16f         acc[BLOCK][4];
#pragma GCC unroll 8
    for (int h = 0; h < n; h++)
#pragma GCC unroll 4
        for (int j = 0; j < width; j++) acc[h][j] = v16_load(o + (size_t)h * o_step + i + 16 * j);
    for (int key = 0; key < n_keys; key++) {
        const char *code  = value.code[key] + value.to,
                   *scale = cache_has_scales(t) ? value.scale[key] + value.to : NULL;
        v16f v[4];
#pragma GCC unroll 4
        for (int j = 0; j < width; j++)
            v[j] = half ? load_stored_half(t, code, i) : load_stored(t, code, scale, i + 16 * j);
        prefetch(n < FEW ? ahead + (size_t)key * bytes : code + at + bytes, bytes);
#pragma GCC unroll 8
        for (int h = 0; h < n; h++) {
            v16f w = v16_set1(p[h * SCORES + key]);
#pragma GCC unroll 4
            for (int j = 0; j < width; j++) acc[h][j] = v16_fma(w, v[j], acc[h][j]);
        }
    }
#pragma GCC unroll 8
    for (int h = 0; h < n; h++)
#pragma GCC unroll 4
        for (int j = 0; j < width; j++) v16_store(o + (size_t)h * o_step + i + 16 * j, acc[h][j]);
}

/* Adds p v for all elements. The 8 after a last half belong to PART_EXTRA and stay zero. */
INLINE void add_all_columns(cache_type t, int n, float *o, int head_dim, const float *p, vectors v, int n_keys,
                            const char *ahead)
{
    const int width  = SUMS / n < 4 ? SUMS / n : 4;
    size_t    o_step = (size_t)head_dim + PART_EXTRA;
    int       i      = 0;
    for (; i + 16 * width <= head_dim; i += 16 * width)
        add_columns(t, n, width, false, o, o_step, p, v, n_keys, i, ahead + code_bytes(t, (size_t)(i * n_keys)));
    for (; i + 16 <= head_dim; i += 16)
        add_columns(t, n, 1, false, o, o_step, p, v, n_keys, i, ahead + code_bytes(t, (size_t)(i * n_keys)));
    if (i < head_dim)
        add_columns(t, n, 1, true, o, o_step, p, v, n_keys, i, ahead + code_bytes(t, (size_t)(i * n_keys)));
}

/* Adds p v for few queries, which are bound by memory: reads it in its own order, a page at a time. */
INLINE void add_values(cache_type t, int n, float *o, int head_dim, const float *p, vectors v, int n_keys)
{
    const int max_keys = n < FEW ? KV_PAGE : KEY_TILE;
    for (int i = 0, count; i < n_keys; i += count) {
        count             = n_keys - i < max_keys ? n_keys - i : max_keys;
        const char *ahead = v.code[i + count < n_keys ? i + count : i] + v.to;
        add_all_columns(t, n, o, head_dim, p + i, vectors_from(v, i), count, ahead);
    }
}

/* --- a block of queries -----------------------------------------------------------------------------*/

typedef struct {
    const cpu_attention_args *a;
    const cpu_row_tile       *tile;
    int                       kv_head, group;
    int32_t                   p0; /* first position of the tile of keys */
    float                    *parts;
    int32_t                  *path;
} unit;

/* A block: n_heads heads from `head` on, of n_rows rows from `row` on, at most BLOCK queries. A row sees positions
 * first to last of the tile. All rows see positions from .. to, with the same keys. */
typedef struct {
    size_t      row;
    int         n_rows, head, n_heads;
    int         first[BLOCK], last[BLOCK], from, to;
    unsigned    kept[BLOCK]; /* pages of the tile that the row attends to, a bit each */
    float      *o;           /* part of the first query */
    const char *k[KEY_TILE], *v[KEY_TILE], *k_scale[KEY_TILE], *v_scale[KEY_TILE];
    _Alignas(64) float s[BLOCK * SCORES];
    _Alignas(64) float q[BLOCK * OPS_MAX_HEAD_DIM];
} block;

static size_t part_floats(const cpu_attention_args *a) { return (size_t)a->c.head_dim + PART_EXTRA; }

static float *part_of(const cpu_attention_args *a, size_t unit_number, size_t query)
{
    return a->parts + ((unit_number - a->first) * (size_t)a->tile_queries + query) * part_floats(a);
}

INLINE int piece_of(int n) { return n >= WIDE ? WIDE : n >= 4 ? 4 : n >= 2 ? 2 : 1; }

INLINE void score_pieces(cache_type t, int n, float *s, packed x, vectors k, int n_keys)
{
    for (int piece; n > 0; n -= piece, s += piece * SCORES, x.q += piece * 16) {
        piece = piece_of(n);
        if (WIDE == 8 && piece == 8) score_keys(t, 8, s, &x, k, n_keys);
        if (piece == 4) score_keys(t, 4, s, &x, k, n_keys);
        if (piece == 2) score_keys(t, 2, s, &x, k, n_keys);
        if (piece == 1) score_keys(t, 1, s, &x, k, n_keys);
    }
}

INLINE void add_pieces(cache_type t, int n, float *o, int head_dim, const float *p, vectors v, int n_keys)
{
    for (int piece; n > 0; n -= piece, p += piece * SCORES, o += piece * (head_dim + PART_EXTRA)) {
        piece = piece_of(n);
        if (WIDE == 8 && piece == 8) add_values(t, 8, o, head_dim, p, v, n_keys);
        if (piece == 4) add_values(t, 4, o, head_dim, p, v, n_keys);
        if (piece == 2) add_values(t, 2, o, head_dim, p, v, n_keys);
        if (piece == 1) add_values(t, 1, o, head_dim, p, v, n_keys);
    }
}

/* Returns whether K and V have the same type: then every value lies plane_bytes after its key. */
static bool same_types(const cpu_attention_args *a) { return a->c.types.k == a->c.types.v; }

/* Returns the values from `first` on. With the same type they are where the keys are, a plane further. */
static vectors values_of(const cpu_attention_args *a, const block *b, int first)
{
    bool same = same_types(a);
    return vectors_from((vectors){same ? b->k : b->v, same ? b->k_scale : b->v_scale, same ? a->c.plane_bytes : 0},
                        first);
}

/* Runs n rows from r on of the block over the keys first .. last in b->k. */
static void score_places(const unit *u, block *b, int r, int n, int first, int last)
{
    const cpu_attention_args *a  = u->a;
    int                       at = r * b->n_heads, count = n * b->n_heads, n_keys = last - first + 1;
    packed  x = {b->q + 16 * at,        16 * (size_t)(b->n_rows * b->n_heads), a->c.head_dim, a->scale, a->c.vec_bytes,
                 values_of(a, b, first)};
    vectors k = vectors_from((vectors){b->k, b->k_scale, 0}, first);
    float  *s = b->s + at * SCORES + first;
    switch (a->c.types.k) {
    case CACHE_F32: score_pieces(CACHE_F32, count, s, x, k, n_keys); break;
    case CACHE_F16: score_pieces(CACHE_F16, count, s, x, k, n_keys); break;
    case CACHE_Q8_0: score_pieces(CACHE_Q8_0, count, s, x, k, n_keys); break;
    case CACHE_Q4_0: score_pieces(CACHE_Q4_0, count, s, x, k, n_keys); break;
    default: score_pieces(CACHE_TQ3, count, s, x, k, n_keys);
    }
}

static void add_places(const unit *u, block *b, int r, int n, int first, int last)
{
    const cpu_attention_args *a = u->a;
    int     at = r * b->n_heads, count = n * b->n_heads, n_keys = last - first + 1, dim = a->c.head_dim;
    float  *o = b->o + (size_t)at * part_floats(a), *p = b->s + at * SCORES + first;
    vectors v = values_of(a, b, first);
    switch (a->c.types.v) {
    case CACHE_F32: add_pieces(CACHE_F32, count, o, dim, p, v, n_keys); break;
    case CACHE_F16: add_pieces(CACHE_F16, count, o, dim, p, v, n_keys); break;
    case CACHE_Q8_0: add_pieces(CACHE_Q8_0, count, o, dim, p, v, n_keys); break;
    case CACHE_Q4_0: add_pieces(CACHE_Q4_0, count, o, dim, p, v, n_keys); break;
    default: add_pieces(CACHE_TQ3, count, o, dim, p, v, n_keys);
    }
}

/* Sets path[p - root] to the slot of position p, for the row and its ancestors in this step. */
static void walk_path(const cpu_attention_args *a, int32_t *path, size_t row)
{
    int32_t root = a->root[row], pos = a->pos[row];
    assert(a->last[row] == pos && pos - root < a->max_path);
    for (int32_t p = pos, r = (int32_t)row; p >= root; p--) {
        assert(r >= 0 && r < a->n_rows && a->pos[r] == p);
        path[p - root] = a->slot[r];
        if (p > root) r = a->parent[r];
    }
}

/* Sets the addresses of the codes and scales of place i, where the vector has position `at` of its page. */
INLINE void set_vector(const char **code, const char **scale, int i, const char *plane, int at, size_t vec_bytes,
                       size_t scale_bytes)
{
    code[i] = plane + (size_t)at * vec_bytes;
    if (scale_bytes) scale[i] = plane + KV_PAGE * vec_bytes + (size_t)at * scale_bytes;
}

/* Sets the addresses of keys, and of values unless K and V have the same type, of positions first .. last, as this row
 * sees them. */
static void find_keys(const unit *u, block *b, size_t row, int first, int last)
{
    const cpu_attention_args *a    = u->a;
    const kv_view            *c    = &a->c;
    int32_t                   root = a->root[row], lane = a->lane[row];
    bool                      same = same_types(a);
    const char               *k = NULL, *v = NULL; /* the planes of a page */
    if (root <= u->p0 + last) walk_path(a, u->path, row);
    for (int i = first; i <= last; i++) {
        int32_t p = u->p0 + i, slot = p < root ? p : u->path[p - root];
        if (i == first || p >= root || p % KV_PAGE == 0) {
            k = cpu_plane_k(c, a->layer, u->kv_head, lane, slot);
            if (!same) v = cpu_plane_v(c, a->layer, u->kv_head, lane, slot);
        }
        set_vector(b->k, b->k_scale, i, k, slot % KV_PAGE, c->vec_bytes, c->scale_bytes);
        if (!same) set_vector(b->v, b->v_scale, i, v, slot % KV_PAGE, c->v_vec_bytes, c->v_scale_bytes);
    }
}

typedef void places_fn(const unit *u, block *b, int r, int n, int first, int last);

/* Returns which of n rows from r on keep a page, a bit each. */
static unsigned rows_keeping(const block *b, int r, int n, int page)
{
    unsigned rows = 0;
    for (int i = 0; i < n; i++) rows |= (b->kept[r + i] >> page & 1) << i;
    return rows;
}

/* Runs the keys first .. last for n rows from r on, without the pages that a row dropped. */
static void do_places(const unit *u, block *b, places_fn *fn, int r, int n, int first, int last)
{
    if (!u->a->kept) {
        fn(u, b, r, n, first, last);
        return;
    }
    for (int from = first, end; from <= last; from = end) {
        unsigned rows = rows_keeping(b, r, n, from / KV_PAGE);
        end           = (from / KV_PAGE + 1) * KV_PAGE;
        while (end <= last && rows_keeping(b, r, n, end / KV_PAGE) == rows) end += KV_PAGE;
        if (end > last + 1) end = last + 1;
        for (int i = 0, count; i < n; i += count) {
            for (count = 1; i + count < n && (rows >> (i + count) & 1) == (rows >> i & 1);) count++;
            if (rows >> i & 1) fn(u, b, r + i, count, from, end - 1);
        }
    }
}

/* Runs the positions of one row that the others do not share. */
static void do_own_places(const unit *u, block *b, places_fn *fn, int r, int first, int last)
{
    if (last < first) return;
    find_keys(u, b, b->row + (size_t)r, first, last);
    do_places(u, b, fn, r, 1, first, last);
}

static void do_places_before(const unit *u, block *b, places_fn *fn)
{
    for (int r = 0; r < b->n_rows; r++)
        do_own_places(u, b, fn, r, b->first[r], b->last[r] < b->from ? b->last[r] : b->from - 1);
}

static void do_places_after(const unit *u, block *b, places_fn *fn)
{
    for (int r = 0; r < b->n_rows; r++) do_own_places(u, b, fn, r, b->to + 1, b->last[r]);
}

/* Finds the positions that the rows see. Returns false when there are none. */
static bool look(const unit *u, block *b)
{
    bool any = false, all = true;
    b->from = 0;
    b->to   = KEY_TILE - 1;
    for (int r = 0; r < b->n_rows; r++) {
        cpu_seen seen = cpu_row_sees(u->a, b->row + (size_t)r);
        int32_t  root = b->n_rows > 1 ? u->a->root[b->row + (size_t)r] : INT32_MAX;
        b->first[r]   = seen.first > u->p0 ? seen.first < u->p0 + KEY_TILE ? seen.first - u->p0 : KEY_TILE : 0;
        b->last[r]    = seen.last < u->p0 + KEY_TILE ? seen.last - u->p0 : KEY_TILE - 1;
        b->kept[r]    = cpu_kept_pages(u->a, b->row + (size_t)r, u->kv_head, u->p0 / KEY_TILE);
        any |= (b->kept[r] & cpu_pages_between(b->first[r], b->last[r])) != 0;
        all &= b->first[r] <= b->last[r];
        if (b->first[r] > b->from) b->from = b->first[r];
        if (b->last[r] < b->to) b->to = b->last[r];
        if (root <= u->p0 + b->to) b->to = root - 1 - u->p0;
    }
    if (!all || b->to < b->from) { /* nothing is shared */
        b->from = KEY_TILE;
        b->to   = KEY_TILE - 1;
    }
    return any;
}

/* Copies the queries, in the basis of the stored keys. */
static void pack_queries(const unit *u, block *b)
{
    const cpu_attention_args *a = u->a;
    int                       n = b->n_rows * b->n_heads, dim = a->c.head_dim, row_dim = a->c.row_dim;
    for (int h = 0; h < n; h++) {
        size_t       row  = b->row + (size_t)(h / b->n_heads);
        int          head = u->kv_head * u->group + b->head + h % b->n_heads;
        const float *q    = a->q + (row * (size_t)a->n_heads + (size_t)head) * (size_t)row_dim;
        float        rotated[OPS_MAX_HEAD_DIM];
        if (cache_has_scales(a->c.types.k)) {
            rotate_head(rotated, q, dim, false);
            q = rotated;
        }
        for (int i = 0; i < dim; i += 8)
            v8_store(b->q + (i / 16 * n + h) * 16 + i % 16, i < row_dim ? v8_load(q + i) : v8_set1(0));
        if (dim % 16) v8_store(b->q + (dim / 16 * n + h) * 16 + 8, v8_set1(0));
    }
}

/* Gives the keys of dropped pages the weight 0. */
static void hide_dropped(float *s, unsigned kept)
{
    for (int page = 0; page < KEY_TILE / KV_PAGE; page++)
        for (int i = 0; i < KV_PAGE && !(kept >> page & 1); i++) s[page * KV_PAGE + i] = -INFINITY;
}

/* Initialises the part of each query: maximum, sum, output 0. */
static void soften_block(const unit *u, block *b)
{
    int dim = u->a->c.head_dim;
    for (int h = 0; h < b->n_rows * b->n_heads; h++) {
        int    r = h / b->n_heads;
        float *o = b->o + (size_t)h * part_floats(u->a), *state = o + dim + PART_EXTRA / 2;
        if (!(b->kept[r] & cpu_pages_between(b->first[r], b->last[r]))) continue;
        hide_dropped(b->s + h * SCORES, b->kept[r]);
        state[1] = soften(b->s + h * SCORES, b->first[r], b->last[r], &state[0]);
        memset(o, 0, (size_t)(dim + PART_EXTRA / 2) * sizeof *o);
    }
}

static void do_block(const unit *u, block *b)
{
    size_t query = (b->row - (size_t)u->tile->row) * (size_t)u->group + (size_t)b->head;
    b->o         = u->parts + query * part_floats(u->a);
    if (!look(u, b)) return;
    bool shared = b->from <= b->to;
    pack_queries(u, b);
    do_places_before(u, b, score_places);
    if (shared) {
        find_keys(u, b, b->row, b->from, b->to);
        do_places(u, b, score_places, 0, b->n_rows, b->from, b->to);
    }
    do_places_after(u, b, score_places);
    soften_block(u, b);
    do_places_before(u, b, add_places);
    if (shared) do_places(u, b, add_places, 0, b->n_rows, b->from, b->to);
    do_places_after(u, b, add_places);
}

/* --- units ----------------------------------------------------------------------------------------*/

/* Returns the last tile whose first unit is at or before unit_number. */
static const cpu_row_tile *find_tile(const cpu_attention_args *a, size_t unit_number)
{
    int low = 0, high = a->n_tiles;
    while (high - low > 1) {
        int mid                                             = (low + high) / 2;
        *(a->tiles[mid].unit <= unit_number ? &low : &high) = mid;
    }
    return &a->tiles[low];
}

static void do_unit(const cpu_attention_args *a, size_t number, int32_t *path)
{
    const cpu_row_tile *tile = find_tile(a, number);
    size_t              n = (size_t)tile->n_key_tiles, at = number - tile->unit;
    int                 group = a->n_heads / a->c.n_kv_heads, n_heads = group < BLOCK ? group : BLOCK;
    unit                u = {.a       = a,
                             .tile    = tile,
                             .kv_head = (int)(at / n),
                             .group   = group,
                             .p0      = (tile->key_tile + (int32_t)(at % n)) * KEY_TILE,
                             .parts   = part_of(a, number, 0),
                             .path    = path};
    block               b;
    for (int32_t row = tile->row, rows; row < tile[1].row; row += rows) {
        rows = BLOCK / n_heads < tile[1].row - row ? BLOCK / n_heads : tile[1].row - row;
        for (b.head = 0; b.head < group; b.head += n_heads) {
            b.row     = (size_t)row;
            b.n_rows  = rows;
            b.n_heads = group - b.head < n_heads ? group - b.head : n_heads;
            do_block(&u, &b);
        }
    }
}

void CPU_FN(attention)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_attention_args *a = args;
    assert(a->c.head_dim % 8 == 0 && a->c.head_dim <= OPS_MAX_HEAD_DIM);
    for (size_t i = from; i < to; i++) do_unit(a, a->first + i, a->path + (size_t)thread * (size_t)a->max_path);
}

/* --- merging --------------------------------------------------------------------------------------*/

/* n: elements of y. */
static void merge_part(float *y, int n, float state[2], const float *o, int dim)
{
    const float *of  = o + dim + PART_EXTRA / 2;
    float        max = state[0] > of[0] ? state[0] : of[0];
    v8f          e = v8_exp((v8f){state[0] - max, of[0] - max}), old = v8_set1(e[0]), new = v8_set1(e[1]);
    for (int i = 0; i < n; i += 8) v8_store(y + i, v8_fma(v8_load(o + i), new, v8_load(y + i) * old));
    state[1] = state[1] * e[0] + of[1] * e[1];
    state[0] = max;
}

/* Divides by the sum of weights, and rotates the output back if V is rotated. */
static void finish_query(const cpu_attention_args *a, float *y, float sum)
{
    int dim = a->c.row_dim;
    for (int i = 0; i < dim; i += 8) v8_store(y + i, v8_load(y + i) / v8_set1(sum));
    if (cache_has_scales(a->c.types.v)) rotate_head(y, y, dim, true);
}

/* Returns whether the queries of a row and kv head attend to any key of the tile. */
static bool attends(const cpu_attention_args *a, size_t row, int kv_head, cpu_seen seen, int32_t key_tile)
{
    int32_t p0 = key_tile * KEY_TILE, first = seen.first > p0 ? seen.first - p0 : 0;
    int32_t last = seen.last < p0 + KEY_TILE ? seen.last - p0 : KEY_TILE - 1;
    return first < KEY_TILE && (cpu_kept_pages(a, row, kv_head, key_tile) & cpu_pages_between(first, last));
}

static void merge_query(const cpu_attention_args *a, const cpu_row_tile *tile, size_t row, int head)
{
    int      group = a->n_heads / a->c.n_kv_heads, dim = a->c.row_dim;
    size_t   n = (size_t)tile->n_key_tiles, begin = tile->unit + (size_t)(head / group) * n, end = begin + n;
    size_t   query = (row - (size_t)tile->row) * (size_t)group + (size_t)(head % group);
    size_t   from = begin > a->first ? begin : a->first, to = end < a->end ? end : a->end;
    cpu_seen seen = cpu_row_sees(a, row);
    float   *y = a->y + (row * (size_t)a->n_heads + (size_t)head) * (size_t)dim, state[2] = {-INFINITY, 0};
    if (from >= to || seen.last < seen.first) return;
    if (begin < from)
        memcpy(state, a->carry_in + 2 * query, sizeof state);
    else
        memset(y, 0, (size_t)dim * sizeof *y);
    for (size_t i = from; i < to; i++) {
        int32_t key_tile = tile->key_tile + (int32_t)(i - begin);
        if (attends(a, row, head / group, seen, key_tile))
            merge_part(y, dim, state, part_of(a, i, query), a->c.head_dim);
    }
    if (end > to)
        memcpy(a->carry_out + 2 * query, state, sizeof state);
    else
        finish_query(a, y, state[1]);
}

void CPU_FN(attention_merge)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_attention_args *a    = args;
    const cpu_row_tile       *tile = find_tile(a, a->first);
    (void)thread;
    for (size_t i = from; i < to; i++) {
        size_t row = (size_t)a->first_row + i / (size_t)a->n_heads;
        while (row >= (size_t)tile[1].row) tile++;
        merge_query(a, tile, row, (int)(i % (size_t)a->n_heads));
    }
}
