/* Attention on tensor cores, for an F16 cache and heads of 64, 128, 256 or 512.
 *
 * Positions are cut into tiles of 64 at multiples of 64. Of the keys that a row sees in a tile: scores s, their maximum m, weights
 * p = e^(s - m), their sum l, o = sum of p v. Queries and weights are two f16 each (high, low), so that nothing is lost; scores
 * go through the tensor core in steps of 16 elements, high before low, and outputs in steps of 16 keys. Tiles t of a head join as
 *
 *     M = max of m[t]    f[t] = e^(m[t] - M)    L = sum of f[t] l[t]    O = sum of f[t] o[t]    from left to right; y = O / L
 *
 * A number depends on the query, the keys and their positions alone (promise 1).
 *
 * A block works for up to 16 queries that share a K/V head: the heads of one row, or of several rows of a lane that see the same
 * 64 keys. Where rows see different keys of a tile (the ends of windows and of chains, branches of a tree), each has its own
 * block, and what it does not see is zero: a page may hold anything there. */
#include "ops/cuda/attention.cuh"

enum { QUERIES = 16, MERGE_THREADS = 128, MERGE_TILES = 64, TILE_BLOCKS = 64 };

template <int DIM> struct head_cut {
    static constexpr int WARPS     = DIM == 512 ? 8 : 4;
    static constexpr int THREADS   = WARPS * WARP;
    static constexpr int KEY_TILES = TILE_KEYS / 8 / WARPS; /* of 8 keys, by a warp */
    static constexpr int PIECES    = DIM / 32;
    static constexpr int PER_QUERY = THREADS / QUERIES; /* threads */
};

template <int DIM> struct tile_shared {
    alignas(16) uint16_t high[QUERIES][DIM + 32];
    alignas(16) uint16_t low[QUERIES][DIM + 32];
    alignas(16) float s[QUERIES][TILE_KEYS + 4];
    alignas(16) uint16_t p[2][QUERIES][TILE_KEYS + 8]; /* high, low */
    float       max[QUERIES], sum[QUERIES];
    const char *k[TILE_KEYS]; /* stored vectors; NULL: not seen. V lies plane_bytes further */
    int32_t     row[QUERIES]; /* whose queries these are */
    int         n_rows;
    bool        same[QUERIES]; /* of the row's neighbours: sees the whole tile, in the same lane */
};

/* --- which rows and keys --------------------------------------------------------------------------*/

/* Whether a row sees every position of the tile, each at the slot of its own number. */
static __device__ inline bool sees_all(const cuda_attention_args &a, int row, int32_t p0)
{
    head_view v = view_of(a, row, 0);
    return v.first <= p0 && v.last >= p0 + TILE_KEYS - 1 && p0 + TILE_KEYS - 1 < a.root[row];
}

/* Rows come in groups that fit a block. The first of those that see the whole tile works for all of them. Returns false when
 * another row's block does. */
template <int DIM>
static __device__ inline bool find_rows(tile_shared<DIM> *t, const cuda_attention_args &a, int row, int32_t p0,
                                        int group)
{
    int first = row - row % group, i = threadIdx.x;
    if (i < group) t->same[i] = first + i < a.n_rows && a.lane[first + i] == a.lane[row] && sees_all(a, first + i, p0);
    __syncthreads();
    bool whole = t->same[row - first];
    for (int j = 0; whole && j < row - first; j++)
        if (t->same[j]) return false; /* the whole block */
    if (i == 0) {
        int n = 0;
        for (int j = row - first; j < group; j++)
            if (whole ? t->same[j] : j == row - first) t->row[n++] = first + j;
        t->n_rows = n;
    }
    return true;
}

template <int DIM>
static __device__ inline void find_keys(tile_shared<DIM> *t, const cuda_attention_args &a, const head_view &v,
                                        int32_t p0)
{
    if (threadIdx.x >= TILE_KEYS) return;
    int32_t p         = p0 + (int)threadIdx.x;
    bool    seen      = p >= v.first && p <= v.last;
    t->k[threadIdx.x] = seen ? cache_k(a.c, a.layer, v.kv_head, a.lane[v.row], slot_of(a, v.row, p)) : NULL;
}

/* Query m belongs to row m / per_row of the block's, head m % per_row of the K/V head's. */
template <int DIM>
static __device__ inline void stage_queries(tile_shared<DIM> *t, const cuda_attention_args &a, int kv_head, int per_row)
{
    constexpr int ROUNDS = QUERIES * DIM / 4 / head_cut<DIM>::THREADS, BATCH = ROUNDS < 4 ? ROUNDS : 4;
#pragma unroll 1
    for (int j0 = 0; j0 < ROUNDS; j0 += BATCH) {
        float4 x[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            int i = threadIdx.x + (j0 + j) * head_cut<DIM>::THREADS, m = i / (DIM / 4), d = i % (DIM / 4) * 4;
            int r = m / per_row;
            x[j]  = make_float4(0, 0, 0, 0);
            if (r < t->n_rows)
                x[j] = *(const float4 *)(a.q + ((size_t)t->row[r] * a.n_heads + kv_head * per_row + m % per_row) * DIM +
                                         d);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            int   i = threadIdx.x + (j0 + j) * head_cut<DIM>::THREADS, m = i / (DIM / 4), d = i % (DIM / 4) * 4;
            uint2 high = {h2_from_f32(x[j].x, x[j].y), h2_from_f32(x[j].z, x[j].w)}, low;
            low.x      = h2_from_f32(x[j].x - from_f16((uint16_t)high.x), x[j].y - from_f16((uint16_t)(high.x >> 16)));
            low.y      = h2_from_f32(x[j].z - from_f16((uint16_t)high.y), x[j].w - from_f16((uint16_t)(high.y >> 16)));
            *(uint2 *)&t->high[m][d] = high;
            *(uint2 *)&t->low[m][d]  = low;
        }
    }
}

/* --- a tile ---------------------------------------------------------------------------------------*/
static __device__ inline uint4 load_part(const char *vec, int bytes)
{
    return vec ? *(const uint4 *)(vec + bytes) : uint4{0, 0, 0, 0};
}

/* A warp's keys as operand B: lane 4 g + c has, of key g, the elements 8 c to 8 c + 7 of each 32. */
template <int DIM> struct warp_keys {
    uint4 k[head_cut<DIM>::KEY_TILES][head_cut<DIM>::PIECES];

    __device__ inline void load(const tile_shared<DIM> *t, int warp, int lane)
    {
#pragma unroll
        for (int n = 0; n < head_cut<DIM>::KEY_TILES; n++) {
            const char *key = t->k[(warp * head_cut<DIM>::KEY_TILES + n) * 8 + lane / 4];
#pragma unroll
            for (int j = 0; j < head_cut<DIM>::PIECES; j++) k[n][j] = load_part(key, j * 64 + lane % 4 * 16);
        }
    }
};

template <int DIM>
static __device__ inline void score_keys(tile_shared<DIM> *t, const warp_keys<DIM> &keys, float scale, int warp,
                                         int lane)
{
    constexpr int N = head_cut<DIM>::KEY_TILES;
    int           g = lane / 4, c = lane % 4;
    float         acc[N][4] = {};
#pragma unroll
    for (int j = 0; j < head_cut<DIM>::PIECES; j++) {
        int      at = 32 * j + 8 * c;
        uint4    h0 = *(const uint4 *)&t->high[g][at], h1 = *(const uint4 *)&t->high[g + 8][at];
        uint4    l0 = *(const uint4 *)&t->low[g][at], l1 = *(const uint4 *)&t->low[g + 8][at];
        uint32_t high[2][4] = {{h0.x, h1.x, h0.y, h1.y}, {h0.z, h1.z, h0.w, h1.w}};
        uint32_t low[2][4]  = {{l0.x, l1.x, l0.y, l1.y}, {l0.z, l1.z, l0.w, l1.w}};
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                uint4 k = keys.k[n][j];
                mma_16x8x16(acc[n], high[s], s ? k.z : k.x, s ? k.w : k.y);
                mma_16x8x16(acc[n], low[s], s ? k.z : k.x, s ? k.w : k.y);
            }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) t->s[g + i / 2 * 8][(warp * N + n) * 8 + 2 * c + i % 2] = acc[n][i] * scale;
}

/* Scores to weights; a query by neighbouring lanes. */
template <int DIM> static __device__ inline void soften(tile_shared<DIM> *t)
{
    constexpr int P = head_cut<DIM>::PER_QUERY;
    int           m = threadIdx.x / P, sub = threadIdx.x % P;
    float         s[TILE_KEYS / P], max = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < TILE_KEYS / P; i++) {
        s[i] = t->s[m][sub + P * i];
        if (t->k[sub + P * i]) max = fmaxf(max, s[i]);
    }
#pragma unroll
    for (int k = P / 2; k > 0; k /= 2) max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, k));
#pragma unroll
    for (int i = 0; i < TILE_KEYS / P; i++) {
        float    p    = t->k[sub + P * i] ? expf(s[i] - max) : 0;
        uint16_t high = to_f16(p), low = to_f16(p - from_f16(high));
        t->p[0][m][sub + P * i] = high;
        t->p[1][m][sub + P * i] = low;
        sum += p;
    }
#pragma unroll
    for (int k = P / 2; k > 0; k /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, k);
    if (sub == 0) t->max[m] = max, t->sum[m] = sum;
}

/* A warp's 64 elements of V as operand B: lane 4 g + c has elements 8 g to 8 g + 7 of keys 2 c, 2 c + 1, 2 c + 8, 2 c + 9. */
struct warp_values {
    uint4 v[TILE_KEYS / 16][4];

    __device__ inline void load(const char *const *k, size_t bytes, int lane)
    {
#pragma unroll
        for (int s = 0; s < TILE_KEYS / 16; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[s][i] = load_part(k[16 * s + 2 * (lane % 4) + i % 2 + i / 2 * 8], (int)bytes + lane / 4 * 16);
    }
};

static __device__ inline uint32_t word_of(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/* out[j]: queries g and g + 8, elements 16 c + j and 16 c + 8 + j of the 64. */
template <int DIM>
static __device__ inline void weigh_values(float (&out)[8][4], const tile_shared<DIM> *t, const warp_values &values,
                                           int lane)
{
    int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int s = 0; s < TILE_KEYS / 16; s++) {
        uint32_t p[2][4];
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[part][i] = *(const uint32_t *)&t->p[part][g + i % 2 * 8][16 * s + 2 * c + i / 2 * 8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            unsigned pick = j % 2 ? 0x7632 : 0x5410;
            uint32_t b0   = __byte_perm(word_of(values.v[s][0], j / 2), word_of(values.v[s][1], j / 2), pick);
            uint32_t b1   = __byte_perm(word_of(values.v[s][2], j / 2), word_of(values.v[s][3], j / 2), pick);
            mma_16x8x16(out[j], p[0], b0, b1);
            mma_16x8x16(out[j], p[1], b0, b1);
        }
    }
}

/* --- tiles side by side ---------------------------------------------------------------------------*/

/* Maximum, sum and output of a tile of a head, the tile counted from the row's first. */
static __device__ inline float *part_at(const cuda_attention_args &a, const head_view &v, int tile)
{
    size_t at = ((size_t)(v.row - a.first_row) * a.n_heads + v.head) * a.n_tiles + (tile - v.first / TILE_KEYS);
    return a.partial + at * (4 + a.c.head_dim);
}

template <int DIM>
static __device__ inline void store_tile(const tile_shared<DIM> *t, const cuda_attention_args &a, int kv_head,
                                         int per_row, int tile, const float (&out)[8][4], int warp, int lane)
{
    int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        int m = g + 8 * side;
        if (m / per_row >= t->n_rows) continue;
        float *to = part_at(a, view_of(a, t->row[m / per_row], kv_head * per_row + m % per_row), tile);
        if (warp == 0 && c == 0) to[0] = t->max[m], to[1] = t->sum[m];
        if (64 * warp >= DIM) continue;
#pragma unroll
        for (int col = 0; col < 2; col++)
#pragma unroll
            for (int j = 0; j < 8; j += 4)
                *(float4 *)(to + 4 + 64 * warp + 16 * c + 8 * col + j) =
                    make_float4(out[j][2 * side + col], out[j + 1][2 * side + col], out[j + 2][2 * side + col],
                                out[j + 3][2 * side + col]);
    }
}

/* Whether the tile's keys were stored before this step: it has n_rows rows at most in a lane, so those are further back. */
static __device__ inline bool is_old(const cuda_attention_args &a, int row, int32_t p0)
{
    return p0 + TILE_KEYS <= a.pos[row] - a.n_rows + 1 && p0 + TILE_KEYS <= a.root[row];
}

/* Grid: x over tiles, y over K/V heads, z over rows. In a step whose rows are settled, the first tile's rows and keys are found
 * before the kernel waits, and old keys loaded. */
template <int DIM>
static __global__ void __launch_bounds__(head_cut<DIM>::THREADS) mma_tiles_kernel(cuda_attention_args a)
{
    __shared__ tile_shared<DIM> t;
    int            warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, per_row = a.n_heads / a.c.n_kv_heads;
    int            kv_head = blockIdx.y, row = a.first_row + (int)blockIdx.z;
    warp_keys<DIM> keys;
    warp_values    values;
    bool           found = false, mine = true, loaded = false; /* of the first tile */
    let_next_start();
    if (!a.settled) wait_for_previous();
    head_view v     = view_of(a, row, kv_head * per_row);
    int       first = v.first / TILE_KEYS + (int)blockIdx.x;
    if (a.settled) {
        if (first * TILE_KEYS <= v.last) {
            found = true;
            mine  = find_rows(&t, a, row, first * TILE_KEYS, QUERIES / per_row);
            if (mine) find_keys(&t, a, v, first * TILE_KEYS);
            __syncthreads();
            loaded = mine && is_old(a, row, first * TILE_KEYS);
        }
        if (loaded) {
            keys.load(&t, warp, lane);
            if (64 * warp < DIM) values.load(t.k, a.c.plane_bytes + 128 * (size_t)warp, lane);
        }
        wait_for_previous();
    }
    for (int tile = first; tile * TILE_KEYS <= v.last; tile += gridDim.x) {
        if (!found) {
            __syncthreads(); /* the tile before this one is done with */
            mine = find_rows(&t, a, row, tile * TILE_KEYS, QUERIES / per_row);
            if (mine) find_keys(&t, a, v, tile * TILE_KEYS);
            __syncthreads();
        }
        found = false;
        if (!mine) continue; /* the whole block */
        if (!loaded) {
            keys.load(&t, warp, lane);
            if (64 * warp < DIM) values.load(t.k, a.c.plane_bytes + 128 * (size_t)warp, lane);
        }
        loaded = false;
        stage_queries(&t, a, kv_head, per_row);
        __syncthreads();
        score_keys(&t, keys, a.scale, warp, lane);
        __syncthreads();
        soften(&t);
        __syncthreads();
        float out[8][4] = {};
        if (64 * warp < DIM) weigh_values(out, &t, values, lane);
        store_tile(&t, a, kv_head, per_row, tile, out, warp, lane);
    }
}

/* --- tiles join -----------------------------------------------------------------------------------
 * Grid: x over heads, y over rows. */
static __global__ void __launch_bounds__(MERGE_THREADS) mma_merge_kernel(cuda_attention_args a)
{
    __shared__ float factor[MERGE_TILES], sums[MERGE_TILES];
    enum { PARTS = 512 / MERGE_THREADS };
    int      row = a.first_row + (int)blockIdx.y, dim = a.c.head_dim;
    float    out[PARTS] = {}, sum = 0;
    uint32_t most = 0; /* of m, as numbers that order as floats do */
    let_next_start();
    if (!a.settled) wait_for_previous();
    head_view v = view_of(a, row, blockIdx.x);
    if (a.settled) wait_for_previous();
    int    first = v.first / TILE_KEYS, n_tiles = v.last < v.first ? 0 : v.last / TILE_KEYS - first + 1;
    float *y = a.y + ((size_t)row * a.n_heads + blockIdx.x) * dim;
    for (int t = threadIdx.x; t < n_tiles; t += MERGE_THREADS) {
        uint32_t bits = __float_as_uint(part_at(a, v, first + t)[0]);
        bits          = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        most          = bits > most ? bits : most;
    }
    most      = block_max<MERGE_THREADS>(most);
    float max = __uint_as_float(most & 0x80000000u ? most & 0x7fffffffu : ~most);
    for (int t0 = 0; t0 < n_tiles; t0 += MERGE_TILES) {
        int n = min_of(n_tiles - t0, MERGE_TILES);
        __syncthreads();
        if ((int)threadIdx.x < n) {
            const float *from   = part_at(a, v, first + t0 + (int)threadIdx.x);
            factor[threadIdx.x] = expf(from[0] - max);
            sums[threadIdx.x]   = from[1];
        }
        __syncthreads();
#pragma unroll 4
        for (int t = 0; t < n; t++) {
            const float *from = part_at(a, v, first + t0 + t) + 4;
            sum               = fmaf(factor[t], sums[t], sum);
#pragma unroll
            for (int j = 0; j < PARTS; j++)
                if ((int)threadIdx.x + j * MERGE_THREADS < dim)
                    out[j] = fmaf(factor[t], from[threadIdx.x + j * MERGE_THREADS], out[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < PARTS; j++)
        if ((int)threadIdx.x + j * MERGE_THREADS < dim) y[threadIdx.x + j * MERGE_THREADS] = n_tiles ? out[j] / sum : 0;
}

template <int DIM> static void launch_tiles(cudaStream_t s, const cuda_attention_args *a, int n_rows)
{
    dim3 grid((unsigned)min_int(a->n_tiles, TILE_BLOCKS), (unsigned)a->c.n_kv_heads, (unsigned)n_rows);
    LAUNCH_EARLY(mma_tiles_kernel<DIM>, grid, head_cut<DIM>::THREADS, 0, s, *a);
}

extern "C" cudaError_t cuda_attention_mma(cudaStream_t s, const cuda_attention_args *args, int chunk)
{
    cuda_attention_args a = *args;
    for (; a.first_row < a.n_rows; a.first_row += chunk) {
        int n = min_int(a.n_rows - a.first_row, chunk);
        switch (a.c.head_dim) {
        case 64: launch_tiles<64>(s, &a, n); break;
        case 128: launch_tiles<128>(s, &a, n); break;
        case 256: launch_tiles<256>(s, &a, n); break;
        default: launch_tiles<512>(s, &a, n); break;
        }
        LAUNCH_EARLY(mma_merge_kernel, dim3((unsigned)a.n_heads, (unsigned)n), MERGE_THREADS, 0, s, a);
    }
    return cudaGetLastError();
}
