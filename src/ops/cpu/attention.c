/* y = softmax(scale q.k) v over the positions of a row's own path.
 *
 * Positions are cut into tiles of 64 at multiples of 64, whatever the row or the step. Of the keys that a row sees in
 * a tile: scores, their maximum m, weights p = e^(s - m), their sum l, o = sum of p v in ascending order. Tiles merge
 * from left to right:
 *
 *     M' = max(M, m)    L' = L e^(M - M') + l e^(m - M')    O' = O e^(M - M') + o e^(m - M')    at last y = O / L
 *
 * Sums run in lanes fixed by a key's place in its tile and an element's place in its head, so a number depends on the
 * query, the keys and their positions alone (promise 1). Query heads of one kv head go together to share
 * its loads; each keeps its own chains. */
#include "ops/cpu/kernels.h"
#include "ops/cpu/vec.h"

#include <assert.h>

enum { TILE_KEYS = 64 };

/* Up to HEAD_BLOCK query heads on their way through the tiles. */
typedef struct {
    const cpu_attention_args *a;
    const float              *q; /* [n][head_dim] */
    float                    *y; /* O while running; [n][head_dim] */
    float                     max[HEAD_BLOCK], sum[HEAD_BLOCK];
} heads;

/* The keys that the row sees in the tile at hand: lanes first to last of it. */
typedef struct {
    int         first, last;
    const char *k[TILE_KEYS]; /* stored vectors; V lies plane_bytes further */
} tile_keys;

INLINE v8f load_stored(quant_type t, const char *p, int i)
{
    return t == QUANT_F32 ? v8_load((const float *)p + i) : v8_from_f16((const uint16_t *)p + i);
}

/* s[h][key] = scale * q[h].k: two chains by 8-lane group mod 2. */
INLINE void key_scores(quant_type t, int n, float s[][TILE_KEYS], const heads *hd, const tile_keys *keys, int key)
{
    int         dim = hd->a->c.head_dim, i = 0;
    const char *k                  = keys->k[key];
    v8f         acc[HEAD_BLOCK][2] = {0};
    for (; i + 16 <= dim; i += 16) {
        v8f k0 = load_stored(t, k, i), k1 = load_stored(t, k, i + 8);
#pragma GCC unroll 4
        for (int h = 0; h < n; h++) {
            const float *q = hd->q + (size_t)h * (size_t)dim + i;
            acc[h][0]      = v8_fma(v8_load(q), k0, acc[h][0]);
            acc[h][1]      = v8_fma(v8_load(q + 8), k1, acc[h][1]);
        }
    }
    if (i < dim)
#pragma GCC unroll 4
        for (int h = 0; h < n; h++)
            acc[h][0] = v8_fma(v8_load(hd->q + (size_t)h * (size_t)dim + i), load_stored(t, k, i), acc[h][0]);
#pragma GCC unroll 4
    for (int h = 0; h < n; h++) s[h][key] = v8_sum(acc[h][0] + acc[h][1]) * hd->a->scale;
}

/* s becomes p, 0 outside first .. last; returns the sum, the maximum through *max. */
static float soften(float s[TILE_KEYS], int first, int last, float *max)
{
    float m = s[first];
    for (int i = first + 1; i <= last; i++) m = s[i] > m ? s[i] : m;
    for (int i = 0; i < TILE_KEYS; i += 8) v8_store(s + i, v8_exp(v8_load(s + i) - v8_set1(m)));
    for (int i = 0; i < first; i++) s[i] = 0;
    for (int i = last + 1; i < TILE_KEYS; i++) s[i] = 0;
    v8f acc = {0};
    for (int i = 0; i < TILE_KEYS; i += 8) acc += v8_load(s + i);
    *max = m;
    return v8_sum(acc);
}

/* O = O * old[h] + (sum of p v over the keys) * new[h], for width * 8 elements from i on. */
INLINE void add_values(quant_type t, int n, int width, const heads *hd, const tile_keys *keys, float p[][TILE_KEYS],
                       const float *old, const float *new, int i)
{
    size_t dim = (size_t)hd->a->c.head_dim, to_v = hd->a->c.plane_bytes;
    v8f    acc[HEAD_BLOCK][2] = {0};
    for (int key = keys->first; key <= keys->last; key++) {
        const char *v = keys->k[key] + to_v;
#pragma GCC unroll 2
        for (int j = 0; j < width; j++) {
            v8f x = load_stored(t, v, i + 8 * j);
#pragma GCC unroll 4
            for (int h = 0; h < n; h++) acc[h][j] = v8_fma(v8_set1(p[h][key]), x, acc[h][j]);
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < n; h++)
#pragma GCC unroll 2
        for (int j = 0; j < width; j++) {
            float *y = hd->y + (size_t)h * dim + i + 8 * j;
            v8_store(y, v8_fma(acc[h][j], v8_set1(new[h]), v8_load(y) * v8_set1(old[h])));
        }
}

/* One tile of keys for n heads. */
INLINE void add_tile(quant_type t, int n, heads *hd, const tile_keys *keys)
{
    float s[HEAD_BLOCK][TILE_KEYS] = {0}, old[HEAD_BLOCK], new[HEAD_BLOCK];
    int   dim = hd->a->c.head_dim, i = 0;
    for (int key = keys->first; key <= keys->last; key++) key_scores(t, n, s, hd, keys, key);
    for (int h = 0; h < n; h++) {
        float m, l = soften(s[h], keys->first, keys->last, &m), max = hd->max[h] > m ? hd->max[h] : m;
        v8f   e    = v8_exp((v8f){hd->max[h] - max, m - max});
        old[h]     = e[0];
        new[h]     = e[1];
        hd->sum[h] = hd->sum[h] * old[h] + l * new[h];
        hd->max[h] = max;
    }
    for (; i + 16 <= dim; i += 16) add_values(t, n, 2, hd, keys, s, old, new, i);
    if (i < dim) add_values(t, n, 1, hd, keys, s, old, new, i);
}

#define ADD_TILE(t, n)                                                                                                 \
    static void add_tile_##t##_##n(heads *hd, const tile_keys *keys) { add_tile(QUANT_##t, n, hd, keys); }
ADD_TILE(F32, 1)
ADD_TILE(F32, 2)
ADD_TILE(F32, 4)
ADD_TILE(F16, 1)
ADD_TILE(F16, 2)
ADD_TILE(F16, 4)

typedef void        add_tile_fn(heads *hd, const tile_keys *keys);
static add_tile_fn *pick_add_tile(quant_type t, int n)
{
    if (t == QUANT_F32) return n == 4 ? add_tile_F32_4 : n == 2 ? add_tile_F32_2 : add_tile_F32_1;
    return n == 4 ? add_tile_F16_4 : n == 2 ? add_tile_F16_2 : add_tile_F16_1;
}

/* path[p - root] = slot of position p, for the row's own ancestors in this step and itself. */
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

/* Positions [p0, p0 + 64) that the row sees. */
static void find_keys(tile_keys *keys, const cpu_attention_args *a, size_t row, int kv_head, const int32_t *path,
                      int32_t p0, int32_t lo)
{
    int32_t last = a->last[row], root = a->root[row];
    keys->first = lo > p0 ? lo - p0 : 0;
    keys->last  = last - p0 < TILE_KEYS ? last - p0 : TILE_KEYS - 1;
    for (int i = keys->first; i <= keys->last; i++) {
        int32_t p  = p0 + i;
        keys->k[i] = cpu_cache_k(&a->c, a->layer, kv_head, a->lane[row], p < root ? p : path[p - root]);
    }
}

/* n heads from h0 on of one row, all of one kv head; 0 when the row sees nothing. */
static void attend(const cpu_attention_args *a, size_t row, int h0, int n, const int32_t *path)
{
    size_t       at  = (row * (size_t)a->n_heads + (size_t)h0) * (size_t)a->c.head_dim;
    size_t       len = (size_t)n * (size_t)a->c.head_dim;
    int32_t      pos = a->pos[row], lo = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
    int32_t      last    = a->last[row];
    add_tile_fn *add     = pick_add_tile(a->c.type, n);
    int          kv_head = h0 / (a->n_heads / a->c.n_kv_heads);
    heads        hd      = {.a = a, .q = a->q + at, .y = a->y + at};
    tile_keys    keys;
    memset(hd.y, 0, len * sizeof(float));
    if (last < lo) return;
    for (int h = 0; h < n; h++) hd.max[h] = -INFINITY;
    for (int32_t p0 = lo / TILE_KEYS * TILE_KEYS; p0 <= last; p0 += TILE_KEYS) {
        find_keys(&keys, a, row, kv_head, path, p0, lo);
        add(&hd, &keys);
    }
    for (size_t i = 0; i < len; i += 8)
        v8_store(hd.y + i, v8_load(hd.y + i) / v8_set1(hd.sum[i / (size_t)a->c.head_dim]));
}

void CPU_FN(attention)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_attention_args *a       = args;
    int                       group   = a->n_heads / a->c.n_kv_heads;
    size_t                    n_items = cpu_attention_items(a), n_blocks = n_items / (size_t)a->c.n_kv_heads;
    int32_t                  *path = a->path + (size_t)thread * (size_t)a->max_path;
    assert(a->c.head_dim % 8 == 0);
    for (size_t item = from; item < to; item++) {
        size_t row = item / n_items, kv_head = item % n_items / n_blocks;
        int first = (int)(item % n_blocks) * HEAD_BLOCK, last = group - first < HEAD_BLOCK ? group : first + HEAD_BLOCK;
        if (a->root[row] <= a->last[row]) walk_path(a, path, row);
        for (int h = first, n; h < last; h += n) {
            n = last - h == 4 ? 4 : last - h >= 2 ? 2 : 1;
            attend(a, row, (int)kv_head * group + h, n, path);
        }
    }
}
