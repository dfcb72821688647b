/* y = softmax(scale q.k) v over the positions of a row's own path.
 *
 * Positions are cut into tiles of 64 at multiples of 64, for every row and step. For the keys that a row sees in a
 * tile: scores, their maximum m, weights p = e^(s - m), their sum l, o = sum of p v in ascending order. Tiles merge
 * from left to right:
 *
 *     M' = max(M, m)    L' = L e^(M - M') + l e^(m - M')    O' = O e^(M - M') + o e^(m - M')    at last y = O / L
 *
 * A dot runs in 32 chains, elements 2 i and 2 i + 1 in chain i mod 32; l is summed by a key's place in its tile, by
 * halves. So a number depends on the query, the keys and their positions alone (promise 1).
 *
 * A block works for one head of one row. Either it walks all tiles, or (few rows, so that many multiprocessors would
 * idle) blocks make the tiles side by side and a second kernel merges them: the same functions, the same bits. */
#include "ops/cuda/attention.cuh"

enum {
    ATTENTION_THREADS = 128,
    ATTENTION_WARPS   = ATTENTION_THREADS / WARP,
    MAX_PARTS         = OPS_MAX_HEAD_DIM / ATTENTION_THREADS
};
enum { SPLIT_BLOCKS = 64 }; /* over the tiles of one head of one row */

/* The work of a block, and its current tile. */
struct tile_keys {
    const char *k[TILE_KEYS];  /* stored keys; NULL where the row sees nothing. Types with scales: their planes */
    const char *v[TILE_KEYS];  /* stored values, the same */
    int         at[TILE_KEYS]; /* positions in their pages */
    float       p[TILE_KEYS];  /* scores, then weights; 0 where the row sees nothing */
    float       max, sum;
};
template <typename S> static __device__ inline float stored(const char *vec, int i);
template <> __device__ inline float stored<float>(const char *vec, int i) { return ((const float *)vec)[i]; }
template <> __device__ inline float stored<__half>(const char *vec, int i)
{
    return from_f16(((const uint16_t *)vec)[i]);
}

/* Any types, of which K or V has scales. */
struct coded {
};

/* Element i of K or V of a key of the tile. */
template <typename S, bool IS_V> struct stored_at {
    static __device__ inline float get(const tile_keys *t, const kv_view &, int key, int i)
    {
        return stored<S>(IS_V ? t->v[key] : t->k[key], i);
    }
};
template <bool IS_V> struct stored_at<coded, IS_V> {
    static __device__ inline float get(const tile_keys *t, const kv_view &c, int key, int i)
    {
        cache_vec vec(c, IS_V, (char *)(IS_V ? t->v[key] : t->k[key]), t->at[key]);
        return cache_value(IS_V ? c.types.v : c.types.k, vec, i);
    }
};

/* Returns q.k, by a warp. */
template <typename S>
static __device__ inline float dot(const float *q, const tile_keys *t, const kv_view &c, int key, int lane)
{
    float acc = 0;
    for (int i = 2 * lane; i < c.row_dim; i += 2 * WARP) {
        acc = fmaf(q[i], stored_at<S, false>::get(t, c, key, i), acc);
        acc = fmaf(q[i + 1], stored_at<S, false>::get(t, c, key, i + 1), acc);
    }
    return warp_sum(acc);
}

/* Notes where K and V of a slot are. */
template <typename S>
static __device__ inline void find_key(tile_keys *t, const cuda_attention_args &a, const head_view &v, int key,
                                       int32_t slot)
{
    t->k[key] = cache_k(a.c, a.layer, v.kv_head, a.lane[v.row], slot);
    t->v[key] = cache_v(a.c, a.layer, v.kv_head, a.lane[v.row], slot);
}
template <>
__device__ inline void find_key<coded>(tile_keys *t, const cuda_attention_args &a, const head_view &v, int key,
                                       int32_t slot)
{
    int32_t page = cache_page(a.c, a.lane[v.row], slot);
    t->k[key]    = cache_plane_in(a.c, false, a.layer, v.kv_head, page);
    t->v[key]    = cache_plane_in(a.c, true, a.layer, v.kv_head, page);
    t->at[key]   = slot % KV_PAGE;
}

/* Positions p0 .. p0 + 63: finds the keys of those `pages`, scores them, softens the scores. All threads see the
 * result. */
template <typename S>
static __device__ inline void weigh_tile(tile_keys *t, const cuda_attention_args &a, const head_view &v, const float *q,
                                         int32_t p0, unsigned pages)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    __syncthreads(); /* the tile before this one is done with */
    if (threadIdx.x < TILE_KEYS) {
        int32_t p         = p0 + (int)threadIdx.x;
        bool    seen      = p >= v.first && p <= v.last && pages >> (threadIdx.x / KV_PAGE) & 1;
        t->k[threadIdx.x] = NULL;
        if (seen) find_key<S>(t, a, v, threadIdx.x, slot_of(a, v.row, p));
    }
    __syncthreads();
    for (int key = warp; key < TILE_KEYS; key += ATTENTION_WARPS) {
        if (!t->k[key]) continue; /* the whole warp */
        float s = dot<S>(q, t, a.c, key, lane) * a.scale;
        if (lane == 0) t->p[key] = s;
    }
    __syncthreads();
    if (warp == 0) {
        bool  low = t->k[lane] != NULL, high = t->k[lane + WARP] != NULL;
        float s0 = low ? t->p[lane] : -INFINITY, s1 = high ? t->p[lane + WARP] : -INFINITY;
        float max = warp_max(fmaxf(s0, s1)), p0f = low ? expf(s0 - max) : 0, p1f = high ? expf(s1 - max) : 0;
        float sum         = warp_sum(p0f + p1f);
        t->p[lane]        = p0f;
        t->p[lane + WARP] = p1f;
        if (lane == 0) t->max = max, t->sum = sum;
    }
    __syncthreads();
}

/* Element i of the tile's output. */
template <typename S> static __device__ inline float tile_value(const tile_keys *t, const kv_view &c, int i)
{
    float acc = 0;
    for (int key = 0; key < TILE_KEYS; key++)
        if (t->k[key]) acc = fmaf(t->p[key], stored_at<S, true>::get(t, c, key, i), acc);
    return acc;
}

/* A head on its way through the tiles. */
struct running {
    float max, sum;
};
struct shares {
    float before, now;
};
static __device__ inline shares merge(running *r, float max, float sum)
{
    float  both = fmaxf(r->max, max);
    shares f    = {expf(r->max - both), expf(max - both)};
    r->sum      = fmaf(r->sum, f.before, sum * f.now);
    r->max      = both;
    return f;
}
static __device__ inline float merge_output(float before, float now, shares f)
{
    return fmaf(before, f.before, now * f.now);
}

static __device__ inline void store_head(const cuda_attention_args &a, const head_view &v, const running &r,
                                         const float (&out)[MAX_PARTS])
{
    size_t at = ((size_t)v.row * a.n_heads + v.head) * a.c.row_dim;
#pragma unroll
    for (int j = 0; j < MAX_PARTS; j++) {
        int i = threadIdx.x + j * ATTENTION_THREADS;
        if (i >= a.c.row_dim) continue;
        a.y[at + i] = v.last < v.first ? 0 : out[j] / r.sum;
    }
}

/* Grid: x over heads, y over rows. */
template <typename K, typename V>
static __global__ void __launch_bounds__(ATTENTION_THREADS) attend_kernel(cuda_attention_args a)
{
    let_next_start();
    wait_for_previous();
    __shared__ tile_keys t;
    __shared__ float     q[OPS_MAX_HEAD_DIM];
    head_view            v              = view_of(a, a.first_row + (int)blockIdx.y, blockIdx.x);
    int                  dim            = a.c.row_dim;
    size_t               at             = ((size_t)v.row * a.n_heads + v.head) * dim;
    running              r              = {-INFINITY, 0};
    float                out[MAX_PARTS] = {};
    for (int i = threadIdx.x; i < dim; i += ATTENTION_THREADS) q[i] = a.q[at + i];
    for (int32_t p0 = v.first / TILE_KEYS * TILE_KEYS; p0 <= v.last; p0 += TILE_KEYS) {
        unsigned pages = pages_kept(a, v, p0 / TILE_KEYS);
        if (!pages) continue;
        weigh_tile<K>(&t, a, v, q, p0, pages);
        shares f = merge(&r, t.max, t.sum);
#pragma unroll
        for (int j = 0; j < MAX_PARTS; j++) {
            int i = threadIdx.x + j * ATTENTION_THREADS;
            if (i < dim) out[j] = merge_output(out[j], tile_value<V>(&t, a.c, i), f);
        }
    }
    store_head(a, v, r, out);
}

static __device__ inline float *partial_at(const cuda_attention_args &a, const head_view &v, int tile)
{
    return a.partial + (((size_t)(v.row - a.first_row) * a.n_heads + v.head) * a.n_tiles + tile) * (2 + a.c.row_dim);
}

/* Grid: x over tiles, SPLIT_BLOCKS at most; y over heads, z over rows. */
template <typename K, typename V>
static __global__ void __launch_bounds__(ATTENTION_THREADS) tiles_kernel(cuda_attention_args a)
{
    let_next_start();
    wait_for_previous();
    __shared__ tile_keys t;
    __shared__ float     q[OPS_MAX_HEAD_DIM];
    head_view            v   = view_of(a, a.first_row + (int)blockIdx.z, blockIdx.y);
    int                  dim = a.c.row_dim;
    for (int i = threadIdx.x; i < dim; i += ATTENTION_THREADS)
        q[i] = a.q[((size_t)v.row * a.n_heads + v.head) * dim + i];
    for (int tile = v.first / TILE_KEYS + blockIdx.x; tile * TILE_KEYS <= v.last; tile += gridDim.x) {
        float   *to    = partial_at(a, v, tile);
        unsigned pages = pages_kept(a, v, tile);
        if (!pages) continue;
        weigh_tile<K>(&t, a, v, q, tile * TILE_KEYS, pages);
        if (threadIdx.x == 0) to[0] = t.max, to[1] = t.sum;
        for (int i = threadIdx.x; i < dim; i += ATTENTION_THREADS) to[2 + i] = tile_value<V>(&t, a.c, i);
    }
}

/* Grid: x over heads, y over rows. */
static __global__ void __launch_bounds__(ATTENTION_THREADS) merge_kernel(cuda_attention_args a)
{
    let_next_start();
    wait_for_previous();
    head_view v              = view_of(a, a.first_row + (int)blockIdx.y, blockIdx.x);
    int       dim            = a.c.row_dim;
    running   r              = {-INFINITY, 0};
    float     out[MAX_PARTS] = {};
    for (int tile = v.first / TILE_KEYS; tile * TILE_KEYS <= v.last; tile++) {
        if (!pages_kept(a, v, tile)) continue;
        const float *from = partial_at(a, v, tile);
        shares       f    = merge(&r, from[0], from[1]);
#pragma unroll
        for (int j = 0; j < MAX_PARTS; j++) {
            int i = threadIdx.x + j * ATTENTION_THREADS;
            if (i < dim) out[j] = merge_output(out[j], from[2 + i], f);
        }
    }
    store_head(a, v, r, out);
}

template <typename K, typename V> static void launch_attention(cudaStream_t s, const cuda_attention_args *a)
{
    unsigned rows = (unsigned)(a->end_row - a->first_row);
    dim3     heads((unsigned)a->n_heads, rows);
    if (!a->partial) {
        LAUNCH_EARLY((attend_kernel<K, V>), heads, ATTENTION_THREADS, 0, s, *a);
        return;
    }
    unsigned n = (unsigned)(a->n_tiles < SPLIT_BLOCKS ? a->n_tiles : (int)SPLIT_BLOCKS);
    LAUNCH_EARLY((tiles_kernel<K, V>), dim3(n, (unsigned)a->n_heads, rows), ATTENTION_THREADS, 0, s, *a);
    LAUNCH_EARLY(merge_kernel, heads, ATTENTION_THREADS, 0, s, *a);
}

extern "C" cudaError_t cuda_attention(cudaStream_t s, const cuda_attention_args *a)
{
    bool k32 = a->c.types.k == CACHE_F32, v32 = a->c.types.v == CACHE_F32;
    if (a->c.scale_bytes || a->c.v_scale_bytes)
        launch_attention<coded, coded>(s, a);
    else if (k32 && v32)
        launch_attention<float, float>(s, a);
    else if (k32)
        launch_attention<float, __half>(s, a);
    else if (v32)
        launch_attention<__half, float>(s, a);
    else
        launch_attention<__half, __half>(s, a);
    return cudaGetLastError();
}
