/* Attention on tensor cores, for an F16 cache and heads of 64, 128, 256 or 512.
 *
 * Positions are cut into tiles of 64 at multiples of 64. For the keys that a row sees in a tile: scores s, their
 * maximum m, weights p = e^(s - m), their sum l, o = sum of p v. Queries and weights are two f16 each (high, low), so
 * that nothing is lost. Scores go through the tensor core in steps of 16 elements, outputs in steps of 16 keys. The
 * tiles of a span of 256 positions join one after the other, and the spans of a row join at the end, both from left
 * to right:
 *
 *     span   m' = max(m, m[t])    a = e^(m - m')    b = e^(m[t] - m')    l = l a + b l[t]    o = o a + b o[t]
 *     row    M = max of m[s]      f[s] = e^(m[s] - M)    L = sum of f[s] l[s]    O = sum of f[s] o[s]    y = O / L
 *
 * A number depends on the query, the keys and their positions alone (promise 1). A span is joined by the block that
 * worked through its tiles, or by the merge, with the same result.
 *
 * A block works for up to 16 queries that share a K/V head: the heads of one row, or of several rows of a lane that
 * see the same keys. A unit of work is a span that a row sees as a whole, or a single tile. Where rows see different
 * keys of a tile (the ends of windows and of chains, branches of a tree), each has its own block, and V that it does
 * not see counts as zero: a page may hold anything there.
 *
 * There are two kernels. One works on single tiles, which it has in registers; it takes little shared memory, so that
 * other kernels of the step run concurrently. The one for long contexts works on spans: K of the next tile is on its
 * way to registers, and V to shared memory, while a tile is worked on. */
#include "ops/cuda/attention.cuh"
#include "ops/cuda/convert.cuh"

enum {
    QUERIES       = 16,
    SPAN_TILES    = 4,
    SPAN_KEYS     = SPAN_TILES * TILE_KEYS,
    MERGE_THREADS = 128,
    TILE_BLOCKS   = 64,
};

template <int DIM> struct head_cut {
    static constexpr int WARPS     = DIM == 512 ? 8 : 4;
    static constexpr int THREADS   = WARPS * WARP;
    static constexpr int KEY_TILES = TILE_KEYS / 8 / WARPS; /* groups of 8 keys per warp */
    static constexpr int PIECES    = DIM / 32;
    static constexpr int PER_QUERY = THREADS / QUERIES; /* threads */
    /* Bytes from key to key of V in shared memory, without bank conflicts, and of a tile. */
    static constexpr int V_STRIDE = 2 * DIM + 16, V_BYTES = TILE_KEYS * V_STRIDE;
};

/* Followed by V of two tiles in the kernel for long contexts. */
template <int DIM> struct tile_shared {
    alignas(16) uint16_t high[QUERIES][DIM + 32];
    alignas(16) uint16_t low[QUERIES][DIM + 32];
    alignas(16) float s[QUERIES][TILE_KEYS + 4];
    alignas(16) uint16_t p[2][QUERIES][TILE_KEYS + 8]; /* high, low */
    float       max[QUERIES], sum[QUERIES];            /* over the tiles so far */
    float       old[QUERIES], now[QUERIES];            /* factors of the tiles before and of this one */
    const char *at[SPAN_KEYS];                         /* stored keys; V lies plane_bytes further */
    uint64_t    gate[2];                               /* names of the copies of V */
    int32_t     row[QUERIES];                          /* row of each query */
    int         n_rows;
    bool        same[QUERIES]; /* the row sees the whole unit and is in the same lane as its neighbours */
};

/* --- units of work --------------------------------------------------------------------------------*/

/* The spans that a row sees as a whole, each position at the slot of its own number; none when to <= from. */
struct span_range {
    int from, to;

    __device__ inline bool has(int tile) const { return tile / SPAN_TILES >= from && tile / SPAN_TILES < to; }
};
/* Rows with few tiles have no spans: their tiles go side by side. */
static __device__ inline span_range spans_of(const cuda_attention_args &a, const head_view &v)
{
    int32_t end = v.last + 1 < a.root[v.row] ? v.last + 1 : a.root[v.row];
    if (v.last / TILE_KEYS - v.first / TILE_KEYS < a.few_tiles) return {0, 0};
    return {(v.first + SPAN_KEYS - 1) / SPAN_KEYS, end / SPAN_KEYS};
}

struct unit {
    int  tile, n; /* first tile, and how many */
    bool there;
};
/* Unit i of a row: spans, then the tiles before and after them. */
static __device__ inline unit unit_at(const head_view &v, const span_range &s, int i)
{
    int first = v.first / TILE_KEYS, last = v.last / TILE_KEYS, n = s.to > s.from ? s.to - s.from : 0;
    if (v.last < v.first) return {0, 0, false};
    if (i < n) return {(s.from + i) * SPAN_TILES, SPAN_TILES, true};
    int tile = first + i - n;
    if (n && tile >= s.from * SPAN_TILES) tile += n * SPAN_TILES;
    return {tile, 1, tile <= last};
}

/* Whether a row sees every position of the unit, each at the slot of its own number, and works on it as this unit. */
static __device__ inline bool has_unit(const cuda_attention_args &a, int row, const unit &u)
{
    head_view  v    = view_of(a, row, 0);
    span_range s    = spans_of(a, v);
    int32_t    from = u.tile * TILE_KEYS, to = from + u.n * TILE_KEYS;
    return v.first <= from && v.last >= to - 1 && to <= a.root[row] && s.has(u.tile) == (u.n == SPAN_TILES);
}

/* Rows come in groups that fit a block. The first of those that see the whole unit works for all of them. Returns false
 * when another row's block does. */
template <int DIM>
static __device__ inline bool find_rows(tile_shared<DIM> *t, const cuda_attention_args &a, int row, const unit &u,
                                        int group)
{
    int first = row - row % group, i = threadIdx.x;
    if (i < group) t->same[i] = first + i < a.n_rows && a.lane[first + i] == a.lane[row] && has_unit(a, first + i, u);
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

/* --- keys on their way ----------------------------------------------------------------------------*/

/* The keys of tile u.tile + i that the row sees, counted in the tile. */
struct seen_keys {
    int from, to;

    __device__ inline bool has(int key) const { return key >= from && key < to; }
    __device__ inline bool all() const { return from == 0 && to == TILE_KEYS; }
};
static __device__ inline seen_keys keys_of(const head_view &v, int tile)
{
    int32_t p0   = tile * TILE_KEYS;
    int     from = v.first > p0 ? (int)(v.first - p0) : 0;
    return {from, v.last - p0 < TILE_KEYS - 1 ? (int)(v.last - p0) + 1 : (int)TILE_KEYS};
}

template <int DIM>
static __device__ inline void find_keys(tile_shared<DIM> *t, const cuda_attention_args &a, const head_view &v,
                                        const unit &u)
{
    for (int i = threadIdx.x; i < u.n * TILE_KEYS; i += head_cut<DIM>::THREADS) {
        int32_t p = u.tile * TILE_KEYS + i;
        if (p >= v.first && p <= v.last)
            t->at[i] = cache_k(a.c, a.layer, v.kv_head, a.lane[v.row], slot_of(a, v.row, p));
    }
}

static __device__ inline uint4 load_part(const char *vec, int bytes) { return *(const uint4 *)(vec + bytes); }

/* A warp's keys of the unit's tile i as operand B: lane 4 g + c has, of key g, the elements 8 c to 8 c + 7 of each
 * 32. */
template <int DIM> struct warp_keys {
    uint4 k[head_cut<DIM>::KEY_TILES][head_cut<DIM>::PIECES];

    __device__ inline void load(const tile_shared<DIM> *t, const seen_keys &seen, int i, int warp, int lane)
    {
#pragma unroll
        for (int n = 0; n < head_cut<DIM>::KEY_TILES; n++) {
            int         key = (warp * head_cut<DIM>::KEY_TILES + n) * 8 + lane / 4;
            const char *at  = t->at[i * TILE_KEYS + key];
#pragma unroll
            for (int j = 0; j < head_cut<DIM>::PIECES; j++)
                k[n][j] = seen.has(key) ? load_part(at, j * 64 + lane % 4 * 16) : uint4{0, 0, 0, 0};
        }
    }
};

/* A warp's 64 elements of V as operand B: lane 4 g + c has elements 8 g to 8 g + 7 of keys 2 c, 2 c + 1, 2 c + 8, 2 c +
 * 9 of each 16. */
struct warp_values {
    uint4 v[TILE_KEYS / 16][4];

    static __device__ inline int key(int s, int i, int lane) { return 16 * s + 2 * (lane % 4) + i % 2 + i / 2 * 8; }
    __device__ inline void       load(const char *const *at, const seen_keys &seen, size_t bytes, int lane)
    {
#pragma unroll
        for (int s = 0; s < TILE_KEYS / 16; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[s][i] = seen.has(key(s, i, lane)) ? load_part(at[key(s, i, lane)], (int)bytes + lane / 4 * 16)
                                                    : uint4{0, 0, 0, 0};
    }
    __device__ inline void take(uint4 (&to)[4], int s) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++) to[i] = v[s][i];
    }
};

/* The same in shared memory. */
template <int DIM> struct staged_values {
    const char *at; /* the warp's part of the first key */
    seen_keys   seen;
    int         lane;

    __device__ inline void take(uint4 (&to)[4], int s) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int key = warp_values::key(s, i, lane);
            to[i]   = seen.has(key) ? *(const uint4 *)(at + key * head_cut<DIM>::V_STRIDE + lane / 4 * 16)
                                    : uint4{0, 0, 0, 0};
        }
    }
};

/* Asks for V of the unit's tile i, into one of two places. */
template <int DIM>
static __device__ inline void ask_values(tile_shared<DIM> *t, const cuda_attention_args &a, const seen_keys &seen,
                                         int i)
{
    constexpr int PIECES = DIM / 8; /* pieces of 16 bytes */
    int           part   = threadIdx.x % PIECES * 16;
    char         *to     = (char *)(t + 1) + i % 2 * head_cut<DIM>::V_BYTES + part;
    size_t        from   = a.c.plane_bytes + part;
#pragma unroll 4
    for (int key = threadIdx.x / PIECES; key < TILE_KEYS; key += head_cut<DIM>::THREADS / PIECES)
        if (seen.has(key))
            copy_piece(&t->gate[i % 2], to + key * head_cut<DIM>::V_STRIDE, t->at[i * TILE_KEYS + key] + from);
    copy_commit();
}

/* --- a tile ---------------------------------------------------------------------------------------*/

/* Query m belongs to row m / per_row of the block's, head m % per_row of the K/V head's. Queries past the last are not
 * staged: nobody reads what comes out of them. */
template <int DIM>
static __device__ inline void stage_queries(tile_shared<DIM> *t, const cuda_attention_args &a, int kv_head, int per_row)
{
    constexpr int ROUNDS = QUERIES * DIM / 4 / head_cut<DIM>::THREADS, BATCH = ROUNDS < 4 ? ROUNDS : 4;
    int           n = t->n_rows * per_row * (DIM / 4);
#pragma unroll 1
    for (int j0 = 0; j0 < ROUNDS; j0 += BATCH) {
        float4 x[BATCH];
        if (j0 * head_cut<DIM>::THREADS >= n) break;
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            int i = threadIdx.x + (j0 + j) * head_cut<DIM>::THREADS, m = i / (DIM / 4), d = i % (DIM / 4) * 4;
            if (i < n)
                x[j] = *(const float4 *)(a.q +
                                         ((size_t)t->row[m / per_row] * a.n_heads + kv_head * per_row + m % per_row) *
                                             DIM +
                                         d);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            int i = threadIdx.x + (j0 + j) * head_cut<DIM>::THREADS, m = i / (DIM / 4), d = i % (DIM / 4) * 4;
            if (i >= n) break;
            uint2 high = {h2_from_f32(x[j].x, x[j].y), h2_from_f32(x[j].z, x[j].w)}, low;
            low.x      = h2_from_f32(x[j].x - from_f16((uint16_t)high.x), x[j].y - from_f16((uint16_t)(high.x >> 16)));
            low.y      = h2_from_f32(x[j].z - from_f16((uint16_t)high.y), x[j].w - from_f16((uint16_t)(high.y >> 16)));
            *(uint2 *)&t->high[m][d] = high;
            *(uint2 *)&t->low[m][d]  = low;
        }
    }
}

/* The products with high and with low are summed apart: two short chains instead of a long one. */
template <int DIM>
static __device__ inline void score_keys(tile_shared<DIM> *t, const warp_keys<DIM> &keys, float scale, int warp,
                                         int lane)
{
    constexpr int N = head_cut<DIM>::KEY_TILES;
    int           g = lane / 4, c = lane % 4;
    float         acc[N][4] = {}, rest[N][4] = {};
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
                mma_16x8x16(rest[n], low[s], s ? k.z : k.x, s ? k.w : k.y);
            }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            t->s[g + i / 2 * 8][(warp * N + n) * 8 + 2 * c + i % 2] = (acc[n][i] + rest[n][i]) * scale;
}

/* Maximum, sum and the factors when a tile with `max` and `sum` joins those before it. */
struct joint {
    float max, sum, old, now;
};
static __device__ inline joint join_sums(float max0, float sum0, float max, float sum)
{
    float both = fmaxf(max0, max), old = expf(max0 - both), now = expf(max - both);
    return {both, fmaf(sum, now, sum0 * old), old, now};
}

/* Scores to weights; a query by neighbouring lanes. */
template <int DIM> static __device__ inline void soften(tile_shared<DIM> *t, const seen_keys &seen, bool first)
{
    constexpr int P = head_cut<DIM>::PER_QUERY;
    int           m = threadIdx.x / P, sub = threadIdx.x % P;
    float         s[TILE_KEYS / P], max = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < TILE_KEYS / P; i++) {
        s[i] = t->s[m][sub + P * i];
        if (seen.has(sub + P * i)) max = fmaxf(max, s[i]);
    }
#pragma unroll
    for (int k = P / 2; k > 0; k /= 2) max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, k));
#pragma unroll
    for (int i = 0; i < TILE_KEYS / P; i++) {
        float    p    = seen.has(sub + P * i) ? expf(s[i] - max) : 0;
        uint16_t high = to_f16(p), low = to_f16(p - from_f16(high));
        t->p[0][m][sub + P * i] = high;
        t->p[1][m][sub + P * i] = low;
        sum += p;
    }
#pragma unroll
    for (int k = P / 2; k > 0; k /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, k);
    if (sub == 0) {
        joint j   = first ? joint{max, sum, 0, 1} : join_sums(t->max[m], t->sum[m], max, sum);
        t->max[m] = j.max, t->sum[m] = j.sum;
        t->old[m] = j.old, t->now[m] = j.now;
    }
}

static __device__ inline uint32_t word_of(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/* out[j]: queries g and g + 8, elements 16 c + j and 16 c + 8 + j of a warp's 64. */
template <int DIM, typename V>
static __device__ inline void weigh_values(float (&out)[8][4], const tile_shared<DIM> *t, const V &values, int lane)
{
    int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int s = 0; s < TILE_KEYS / 16; s++) {
        uint32_t p[2][4];
        uint4    v[4];
        values.take(v, s);
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[part][i] = *(const uint32_t *)&t->p[part][g + i % 2 * 8][16 * s + 2 * c + i / 2 * 8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            unsigned pick = j % 2 ? 0x7632 : 0x5410;
            uint32_t b0   = __byte_perm(word_of(v[0], j / 2), word_of(v[1], j / 2), pick);
            uint32_t b1   = __byte_perm(word_of(v[2], j / 2), word_of(v[3], j / 2), pick);
            mma_16x8x16(out[j], p[0], b0, b1);
            mma_16x8x16(out[j], p[1], b0, b1);
        }
    }
}

/* --- a unit ---------------------------------------------------------------------------------------*/

/* Maximum, sum and output of a unit of a head, at the unit's first tile, counted from the row's first. */
static __device__ inline float *part_at(const cuda_attention_args &a, const head_view &v, int tile)
{
    size_t at = ((size_t)(v.row - a.first_row) * a.n_heads + v.head) * a.n_tiles + (tile - v.first / TILE_KEYS);
    return a.partial + at * (4 + a.c.head_dim);
}

template <int DIM>
static __device__ inline void store_unit(const tile_shared<DIM> *t, const cuda_attention_args &a, int kv_head,
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

/* Whether the unit's keys were stored before this step: it has n_rows rows at most in a lane, so those are further
 * back. */
static __device__ inline bool is_old(const cuda_attention_args &a, int row, const unit &u)
{
    int32_t end = (u.tile + u.n) * TILE_KEYS;
    return end <= a.pos[row] - a.n_rows + 1 && end <= a.root[row];
}

/* A single tile, whose keys and values are on their way to registers. */
template <int DIM>
static __device__ inline void do_tile(tile_shared<DIM> *t, const cuda_attention_args &a, const head_view &v,
                                      const unit &u, int per_row, const warp_keys<DIM> &keys, const warp_values &values)
{
    int   warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float out[8][4] = {};
    stage_queries(t, a, v.kv_head, per_row);
    __syncthreads();
    score_keys(t, keys, a.scale, warp, lane);
    __syncthreads();
    soften(t, keys_of(v, u.tile), true);
    __syncthreads();
    if (64 * warp < DIM) weigh_values(out, t, values, lane);
    store_unit(t, a, v.kv_head, per_row, u.tile, out, warp, lane);
}

/* A span or a tile, whose first keys and values are asked for. */
template <int DIM>
static __device__ inline void do_span(tile_shared<DIM> *t, const cuda_attention_args &a, const head_view &v,
                                      const unit &u, int per_row, warp_keys<DIM> &keys)
{
    int         warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float       acc[8][4] = {};
    const char *v_at      = (const char *)(t + 1) + 128 * warp;
    stage_queries(t, a, v.kv_head, per_row);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < u.n; i++) {
        seen_keys seen = keys_of(v, u.tile + i), next = keys_of(v, u.tile + i + 1);
        float     out[8][4] = {};
        if (i + 1 < u.n)
            ask_values(t, a, next, i + 1);
        else
            copy_commit();
        score_keys(t, keys, a.scale, warp, lane);
        if (i + 1 < u.n) keys.load(t, next, i + 1, warp, lane);
        __syncthreads();
        soften(t, seen, i == 0);
        copy_wait<1>(&t->gate[i % 2]);
        if (64 * warp < DIM)
            weigh_values(out, t, staged_values<DIM>{v_at + i % 2 * head_cut<DIM>::V_BYTES, seen, lane}, lane);
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int m     = lane / 4 + k / 2 * 8;
                acc[j][k] = i ? fmaf(out[j][k], t->now[m], acc[j][k] * t->old[m]) : out[j][k];
            }
        __syncthreads(); /* the tile is done with */
    }
    store_unit(t, a, v.kv_head, per_row, u.tile, acc, warp, lane);
}

/* Grid: x over units, y over K/V heads, z over rows. In a step whose rows are settled, the first unit's rows and keys
 * are found before the kernel waits, and old keys asked for. */
template <int DIM, bool SPANS>
static __global__ void __launch_bounds__(head_cut<DIM>::THREADS) mma_tiles_kernel(cuda_attention_args a)
{
    DYNAMIC_SHARED(uint4, attention_shared);
    tile_shared<DIM> *t       = (tile_shared<DIM> *)attention_shared;
    int               kv_head = blockIdx.y, row = a.first_row + (int)blockIdx.z, per_row = a.n_heads / a.c.n_kv_heads;
    int               warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    bool              waits = true; /* still has to */
    warp_keys<DIM>    keys;
    warp_values       values;
    let_next_start();
    if (!a.settled) wait_for_previous(), waits = false;
    head_view  v     = view_of(a, row, kv_head * per_row);
    span_range spans = spans_of(a, v);
    for (int i = blockIdx.x;; i += gridDim.x) {
        unit u = unit_at(v, spans, i);
        if (!u.there) break;
        __syncthreads();                                           /* the unit before this one is done with */
        if (!find_rows(t, a, row, u, QUERIES / per_row)) continue; /* the whole block */
        find_keys(t, a, v, u);
        __syncthreads();
        if (waits && !is_old(a, row, u)) wait_for_previous(), waits = false;
        seen_keys seen = keys_of(v, u.tile);
        keys.load(t, seen, 0, warp, lane);
        if (SPANS)
            ask_values(t, a, seen, 0);
        else if (64 * warp < DIM)
            values.load(t->at, seen, a.c.plane_bytes + 128 * (size_t)warp, lane);
        if (waits) wait_for_previous(), waits = false;
        if (SPANS)
            do_span(t, a, v, u, per_row, keys);
        else
            do_tile(t, a, v, u, per_row, keys, values);
    }
    if (waits) wait_for_previous();
}

/* --- units join -----------------------------------------------------------------------------------*/

/* The stored parts of a row in order: single tiles, spans, single tiles. */
struct part_list {
    int first, before, spans, from; /* first tile; tiles before the spans; spans, and the first of them */
    int n;

    __device__ inline int tile(int i) const
    {
        if (i < before) return first + i;
        return i < before + spans ? (from + i - before) * SPAN_TILES : first + i + spans * (SPAN_TILES - 1);
    }
    __device__ inline bool is_span(int i) const { return i >= before && i < before + spans; }
};
static __device__ inline part_list parts_of(const head_view &v, const span_range &s)
{
    int first = v.first / TILE_KEYS, n = v.last / TILE_KEYS - first + 1, spans = s.to > s.from ? s.to - s.from : 0;
    if (v.last < v.first) return {0, 0, 0, 0, 0};
    return {first, spans ? s.from * SPAN_TILES - first : n, spans, s.from, n - spans * (SPAN_TILES - 1)};
}

/* A part on its way into a row: x = x old + now part. After the last part of a span, the span counts `by`. */
struct merge_part {
    float old, now, by, sum; /* sum: of the span so far */
    bool  last;
};

/* Part i, joined to those before it in its span; by is its maximum. Loads nothing that depends on another load. */
static __device__ inline merge_part find_part(const part_list &list, const float *parts, int stride, int i)
{
    int    tile = list.tile(i), n = list.is_span(i) ? 0 : tile % SPAN_TILES;
    float2 head[SPAN_TILES]; /* maximum and sum of this one and of up to three before it */
    if (!list.is_span(i) && n > tile - list.first) n = tile - list.first;
#pragma unroll
    for (int k = 0; k < SPAN_TILES; k++)
        if (k <= n) head[k] = *(const float2 *)(parts + (ptrdiff_t)(tile - k) * stride);
    joint j = {0, 0, 0, 1};
#pragma unroll
    for (int k = SPAN_TILES - 1; k >= 0; k--) {
        if (k == n) j = {head[k].x, head[k].y, 0, 1};
        if (k < n) j = join_sums(j.max, j.sum, head[k].x, head[k].y);
    }
    bool last = list.is_span(i) || i + 1 == list.n || tile % SPAN_TILES == SPAN_TILES - 1;
    return {j.old, j.now, j.max, j.sum, last};
}

/* A number that orders as the float does, and back. */
static __device__ inline uint32_t order_of(float x)
{
    uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
static __device__ inline float float_of(uint32_t order)
{
    return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

/* An element of a row, and the sum of its weights, both so far; x: of the span so far. */
struct merged {
    float out, sum, x;

    __device__ inline void add(const merge_part &p, float part)
    {
        x = fmaf(part, p.now, x * p.old);
        if (!p.last) return;
        out = fmaf(p.by, x, out);
        sum = fmaf(p.by, p.sum, sum);
        x   = 0;
    }
};

/* Parts arrive later than they are added: a batch is asked for at once, the first one before its factors are known. */
struct part_batch {
    enum { SIZE = 16 };
    float v[SIZE];

    __device__ inline void load(const part_list &list, const float *at, int stride, int from)
    {
#pragma unroll
        for (int j = 0; j < SIZE; j++)
            if (from + j < list.n) v[j] = at[(ptrdiff_t)list.tile(from + j) * stride];
    }
};

static __device__ inline void put_heads(const cuda_attention_args &a, int row, int in, float y)
{
    int    n                  = a.n_heads * a.c.head_dim;
    size_t to                 = x_offset(row, in, (int)layout_tiles(n)) + in % 4 * 2;
    a.y[(size_t)row * n + in] = y;
    if (!a.to.high) return;
    uint16_t high                 = to_f16(y);
    *(uint16_t *)(a.to.high + to) = high;
    *(uint16_t *)(a.to.low + to)  = to_f16(y - from_f16(high));
    if (in == 0) a.to.scale[row] = 1;
}

/* Grid: x over heads, y over rows, z over the elements of a head. Also writes the row as f16 at scale 1: no output is
 * larger than the largest V, which is f16. */
static __global__ void __launch_bounds__(MERGE_THREADS) mma_merge_kernel(cuda_attention_args a)
{
    __shared__ merge_part part[MERGE_THREADS];
    int  row = a.first_row + (int)blockIdx.y, dim = a.c.head_dim, at = (int)(blockIdx.z * MERGE_THREADS + threadIdx.x);
    int  stride = 4 + dim;
    bool mine   = at < dim;
    let_next_start();
    if (!a.settled) wait_for_previous();
    head_view    v     = view_of(a, row, blockIdx.x);
    part_list    list  = parts_of(v, spans_of(a, v));
    const float *parts = part_at(a, v, 0), *from = parts + 4 + (mine ? at : 0);
    part_batch   batch;
    merged       m   = {};
    uint32_t     top = 0;
    if (a.settled) wait_for_previous();
    batch.load(list, from, stride, 0);
    for (int i = MERGE_THREADS + (int)threadIdx.x; i < list.n; i += MERGE_THREADS) {
        uint32_t o = order_of(parts[(ptrdiff_t)list.tile(i) * stride]);
        top        = o > top ? o : top;
    }
    float max = 0;
    for (int i0 = 0; i0 < list.n; i0 += MERGE_THREADS) {
        int        n = min_of(list.n - i0, MERGE_THREADS), i = threadIdx.x;
        merge_part p = {};
        if (i < n) p = find_part(list, parts, stride, i0 + i);
        if (i0 == 0) {
            uint32_t o = i < n ? order_of(parts[(ptrdiff_t)list.tile(i) * stride]) : 0;
            max        = float_of(block_max<MERGE_THREADS>(o > top ? o : top));
        } else {
            __syncthreads(); /* the parts before are added */
        }
        p.by    = expf(p.by - max);
        part[i] = p;
        __syncthreads();
        for (int j0 = 0; j0 < n; j0 += part_batch::SIZE) {
            if (i0 + j0) batch.load(list, from, stride, i0 + j0);
#pragma unroll
            for (int j = 0; j < part_batch::SIZE; j++)
                if (j0 + j < n) m.add(part[j0 + j], batch.v[j]);
        }
    }
    if (mine) put_heads(a, row, (int)blockIdx.x * dim + at, list.n ? m.out / m.sum : 0);
}

/* --- launches -------------------------------------------------------------------------------------*/
template <int DIM, bool SPANS> static void launch_kernel(cudaStream_t s, const cuda_attention_args *a, dim3 grid)
{
    size_t shared = sizeof(tile_shared<DIM>) + (SPANS ? 2 * head_cut<DIM>::V_BYTES : 0);
    allow_shared(mma_tiles_kernel<DIM, SPANS>, shared);
    LAUNCH_EARLY((mma_tiles_kernel<DIM, SPANS>), grid, head_cut<DIM>::THREADS, shared, s, *a);
}

/* Contexts that are at most so long, because of a window or of the pages that a lane may have, go tile by tile, and so
 * do rows whose context is not long at the moment. */
enum { SHORT_TILES = 32 };

template <int DIM> static void launch_tiles(cudaStream_t s, const cuda_attention_args *args, int n_rows)
{
    cuda_attention_args a = *args;
    dim3                grid((unsigned)min_int(a.n_tiles, TILE_BLOCKS), (unsigned)a.c.n_kv_heads, (unsigned)n_rows);
    if (a.few_tiles < a.n_tiles)
        launch_kernel<DIM, true>(s, &a, grid);
    else
        launch_kernel<DIM, false>(s, &a, grid);
}

extern "C" cudaError_t cuda_attention_mma(cudaStream_t s, const cuda_attention_args *args, int chunk)
{
    cuda_attention_args a    = *args;
    bool                fits = sizeof(tile_shared<512>) + 2 * head_cut<512>::V_BYTES <= (size_t)shared_limit();
    a.few_tiles              = fits && a.n_tiles > SHORT_TILES ? (int)SHORT_TILES : a.n_tiles;
    for (; a.first_row < a.n_rows; a.first_row += chunk) {
        int  n = min_int(a.n_rows - a.first_row, chunk);
        dim3 merge((unsigned)a.n_heads, (unsigned)n, blocks_for((size_t)a.c.head_dim, MERGE_THREADS));
        switch (a.c.head_dim) {
        case 64: launch_tiles<64>(s, &a, n); break;
        case 128: launch_tiles<128>(s, &a, n); break;
        case 256: launch_tiles<256>(s, &a, n); break;
        default: launch_tiles<512>(s, &a, n); break;
        }
        LAUNCH_EARLY(mma_merge_kernel, merge, MERGE_THREADS, 0, s, a);
    }
    return cudaGetLastError();
}
