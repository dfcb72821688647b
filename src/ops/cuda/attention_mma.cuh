/* ops/cuda/attention_mma.cuh - attention on tensor cores: units of work, and what both of its kernels compute alike.
 * attention_mma.cu describes the arithmetic. */
#ifndef TANDEM_OPS_CUDA_ATTENTION_MMA_CUH
#define TANDEM_OPS_CUDA_ATTENTION_MMA_CUH
#include "ops/cuda/attention.cuh"
#include "ops/cuda/convert.cuh"

enum { SPAN_TILES = 4, SPAN_KEYS = SPAN_TILES * TILE_KEYS };

/* attention_span.cu. Returns whether this GPU can run the kernel for spans; launches it for the
 * rows from first_row to end_row. */
bool cuda_attention_has_spans(void);
void cuda_attention_spans(cudaStream_t s, const cuda_attention_args *a);
/* attention_warp.cu. Returns whether this GPU can run the kernel of single warps for these rows; launches it for all of
 * them, whose parts are tiles. */
bool cuda_attention_has_warps(const cuda_attention_args *a);
void cuda_attention_warps(cudaStream_t s, const cuda_attention_args *a);
/* attention_chain.cu. Launches the kernel for chains and trees, for the rows from first_row to end_row. A block works
 * for up to cuda_attention_chain_rows rows at a time. */
void cuda_attention_chain(cudaStream_t s, const cuda_attention_args *a);
int  cuda_attention_chain_rows(const cuda_attention_args *a);
/* attention_many.cu. Returns whether this GPU can run the kernel for prompts, with such heads; launches it for the rows
 * from first_row to end_row, and merges their parts; by_span is set. A block works for up to cuda_attention_many_rows
 * rows, for which it takes cuda_attention_many_bytes of scratch. */
bool   cuda_attention_has_many(const cuda_attention_args *a);
int    cuda_attention_many_rows(const cuda_attention_args *a);
size_t cuda_attention_many_bytes(const cuda_attention_args *a);
void   cuda_attention_many(cudaStream_t s, const cuda_attention_args *a);

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

/* The keys of a tile that a row sees, counted in the tile. */
struct seen_keys {
    uint64_t bits;

    __device__ inline bool has(int key) const { return bits >> key & 1; }
};
static __device__ inline seen_keys keys_of(const head_view &v, int tile)
{
    int32_t p0   = tile * TILE_KEYS;
    int     from = v.first > p0 ? (int)(v.first - p0) : 0;
    int     to   = v.last - p0 < TILE_KEYS - 1 ? (int)(v.last - p0) + 1 : (int)TILE_KEYS;
    return {to > from ? (~(uint64_t)0 >> (TILE_KEYS - (to - from))) << from : 0};
}
/* Returns the keys of a tile's pages, of which each is a bit. */
static __device__ inline uint64_t keys_of_pages(unsigned pages)
{
    uint32_t low  = (pages & 1 ? 0xffffu : 0) | (pages & 2 ? 0xffff0000u : 0);
    uint32_t high = (pages & 4 ? 0xffffu : 0) | (pages & 8 ? 0xffff0000u : 0);
    return (uint64_t)high << 32 | low;
}

/* Returns whether one of two f16 is an infinity or a NaN. */
static __device__ inline bool is_odd(uint32_t x)
{
    return (x & 0x7c00u) == 0x7c00u || (x & 0x7c000000u) == 0x7c000000u;
}

/* The rows that a block works for, with up to N queries: query m belongs to row m / per_row of them. */
template <int N> struct unit_rows {
    int32_t   row[N];  /* row of each query */
    seen_keys seen[N]; /* keys that each query sees, when the unit is a tile */
    int       n;       /* rows */
};

/* The rows that may share units with the block's: each lane of a warp has one. */
struct group_rows {
    head_view  v;
    span_range spans;
    int32_t    root;
    int        first, mine, size; /* first row of the group; the block's, counted from it; rows at most */
    bool       there;

    __device__ inline group_rows(const cuda_attention_args &a, int row, int group)
    {
        int lane = threadIdx.x % WARP;
        first    = row - (row - a.first_row) % group;
        mine     = row - first;
        size     = group;
        there    = lane < group && first + lane < a.end_row && a.lane[first + lane] == a.lane[row];
        v        = view_of(a, there ? first + lane : row, 0);
        root     = a.root[v.row];
        spans    = spans_of(a, v);
    }
    /* Returns the rows that see some of a tile, each position at the slot of its own number, and work on it as a tile;
     * by all lanes. */
    __device__ inline unsigned touching(int tile) const
    {
        int32_t from = tile * TILE_KEYS, last = v.last < from + TILE_KEYS - 1 ? v.last : from + TILE_KEYS - 1;
        return __ballot_sync(ALL_LANES, there && v.first <= last && v.last >= from && last < root && !spans.has(tile));
    }
    /* Returns the rows that have a span; by all lanes. */
    __device__ inline unsigned having(int tile) const { return __ballot_sync(ALL_LANES, there && spans.has(tile)); }
};

/* The keys of a tile that a block's rows see: some of them, all of them. */
struct seen_tile {
    uint64_t any, all;

    __device__ inline void keep(uint64_t keys) { any &= keys, all &= keys; }
    __device__ inline seen_tile(const group_rows &group, unsigned rows, int tile)
    {
        seen_keys mine = keys_of(group.v, tile);
        any            = 0;
        all            = ~(uint64_t)0;
        for (; rows; rows &= rows - 1) {
            int      lane = __popc((rows & -rows) - 1);
            uint64_t one  = __shfl_sync(ALL_LANES, mine.bits, lane);
            any |= one;
            all &= one;
        }
    }
};

/* Writes down the rows of the group that `rows` names, and which of `keys` they see; by the first warp. A barrier
 * follows. Returns the row of query threadIdx.x, or -1. */
template <int N>
static __device__ inline int put_rows(unit_rows<N> *t, const group_rows &group, unsigned rows, int tile, int per_row,
                                      uint64_t keys = ~(uint64_t)0)
{
    static_assert(N <= WARP, "a lane for each query");
    int i = threadIdx.x, n = __popc(rows);
    if (i >= WARP) return -1;
    seen_keys mine = keys_of(group.v, tile);
    for (int j = 0; j < i / per_row; j++) rows &= rows - 1;
    int       lane = rows ? __popc((rows & -rows) - 1) : 0;
    seen_keys seen = {__shfl_sync(ALL_LANES, mine.bits, lane) & keys};
    if (i == 0) t->n = n;
    if (i >= n * per_row) return -1;
    t->row[i]  = group.first + lane;
    t->seen[i] = seen;
    return group.first + lane;
}

/* Returns whether the unit's keys were stored before this step: it has n_rows rows at most in a lane, so those are
 * further back. */
static __device__ inline bool is_old(const cuda_attention_args &a, int row, const unit &u)
{
    int32_t end = (u.tile + u.n) * TILE_KEYS;
    return end <= a.pos[row] - a.n_rows + 1 && end <= a.root[row];
}

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
    /* Returns which part starts at `tile`. */
    __device__ inline int at(int tile) const
    {
        if (tile < first + before) return tile - first;
        int span = tile / SPAN_TILES - from;
        return span < spans ? before + span : tile - first - spans * (SPAN_TILES - 1);
    }
};
static __device__ inline part_list parts_of(const cuda_attention_args &a, const head_view &v)
{
    span_range s = a.by_span ? span_range{v.first / SPAN_KEYS, v.last / SPAN_KEYS + 1} : spans_of(a, v);
    int first = v.first / TILE_KEYS, n = v.last / TILE_KEYS - first + 1, spans = s.to > s.from ? s.to - s.from : 0;
    if (v.last < v.first) return {0, 0, 0, 0, 0};
    if (a.by_span) return {first, 0, spans, s.from, spans};
    return {first, spans ? s.from * SPAN_TILES - first : n, spans, s.from, n - spans * (SPAN_TILES - 1)};
}

/* Returns the parts of a head: maximum, sum, two unused, output of each. */
static __device__ inline float *head_parts(const cuda_attention_args &a, int row, int head)
{
    return a.partial + ((size_t)(row - a.first_row) * a.n_heads + head) * a.n_parts * (4 + a.c.head_dim);
}

/* Returns the part of a head that the unit which starts at `tile` makes. */
static __device__ inline float *part_of(const cuda_attention_args &a, int row, int head, int tile)
{
    head_view v = view_of(a, row, head);
    return head_parts(a, row, head) + (size_t)parts_of(a, v).at(tile) * (4 + a.c.head_dim);
}

/* --- keys and queries -----------------------------------------------------------------------------*/

/* Where the stored keys of a unit are, in steps of KEY_STEP bytes from the pool: of each page of a span, of each key of
 * a tile that the row sees. V lies plane_bytes further. */
enum { KEY_STEP = 128 };
struct unit_keys {
    uint32_t at[TILE_KEYS];

    static __device__ inline uint32_t find_key(const cuda_attention_args &a, const head_view &v, int32_t p)
    {
        /* A position that the row does not see is another row's, at the slot of its own number. */
        int32_t slot = p > v.last ? p : slot_of(a, v.row, p);
        return (uint32_t)((size_t)(cache_k(a.c, a.layer, v.kv_head, a.lane[v.row], slot) - a.c.pool) / KEY_STEP);
    }
    static __device__ inline uint32_t find(const cuda_attention_args &a, const head_view &v, const unit &u,
                                           uint64_t seen, int i)
    {
        bool there = u.n > 1 ? i < u.n * TILE_KEYS / KV_PAGE : seen >> i & 1;
        return there ? find_key(a, v, u.tile * TILE_KEYS + i * (u.n > 1 ? (int)KV_PAGE : 1)) : 0;
    }
};

/* Splits four elements of a query into two f16 each. */
static __device__ inline void put_query(void *high, void *low, float4 x)
{
    uint2 up = {h2_from_f32(x.x, x.y), h2_from_f32(x.z, x.w)}, rest;
    rest.x   = h2_from_f32(x.x - from_f16((uint16_t)up.x), x.y - from_f16((uint16_t)(up.x >> 16)));
    rest.y   = h2_from_f32(x.z - from_f16((uint16_t)up.y), x.w - from_f16((uint16_t)(up.y >> 16)));

    *(uint2 *)high = up;
    *(uint2 *)low  = rest;
}

/* Splits the queries of a block's rows into two f16 each, in shared memory; a.turn_q: rotates them before. Query m
 * belongs to row m / per_row of the block's, head m % per_row of the K/V head's. Queries past the last are not staged:
 * nobody reads what comes out of them. PART: rows have row_dim elements of a head, and the others are zero. */
template <int DIM, int N, int THREADS, bool PART = false>
static __device__ inline void stage_queries(uint16_t (*high)[DIM + 32], uint16_t (*low)[DIM + 32],
                                            const unit_rows<N> &rows, const cuda_attention_args &a, int kv_head,
                                            int per_row)
{
    constexpr int ROUNDS = (N * DIM / 4 + THREADS - 1) / THREADS, BATCH = ROUNDS < 4 ? ROUNDS : 4;
    int           n = rows.n * per_row * (DIM / 4);
#pragma unroll 1
    for (int j0 = 0; j0 < ROUNDS; j0 += BATCH) {
        float4 x[BATCH] = {};
        if (j0 * THREADS >= n) break;
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            int i = threadIdx.x + (j0 + j) * THREADS, m = i / (DIM / 4), d = i % (DIM / 4) * 4;
            if (i < n && (!PART || d < a.c.row_dim))
                x[j] = *(const float4 *)(a.q +
                                         ((size_t)rows.row[m] * a.n_heads + kv_head * per_row + m % per_row) *
                                             (PART ? a.c.row_dim : DIM) +
                                         d);
        }
        if (a.turn_q) /* a warp has whole groups */
#pragma unroll
            for (int j = 0; j < BATCH; j++) x[j] = turn_quads < DIM == 64 ? 64 : (int)CACHE_GROUP > (x[j]);
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            int i = threadIdx.x + (j0 + j) * THREADS, m = i / (DIM / 4), d = i % (DIM / 4) * 4;
            if (i < n) put_query(&high[m][d], &low[m][d], x[j]);
        }
    }
}

/* Two steps of 32 elements of a key. Neighbouring keys read them in different order: they lie in the same banks. */
struct key_steps {
    uint4 x[2];

    __device__ inline key_steps(const char *key, bool odd)
    {
        uint4 a = *(const uint4 *)(key + (odd ? 64 : 0)), b = *(const uint4 *)(key + (odd ? 0 : 64));
        x[0] = {odd ? b.x : a.x, odd ? b.y : a.y, odd ? b.z : a.z, odd ? b.w : a.w};
        x[1] = {odd ? a.x : b.x, odd ? a.y : b.y, odd ? a.z : b.z, odd ? a.w : b.w};
    }
};

/* --- weights --------------------------------------------------------------------------------------*/

/* Maximum, sum and the factors when a tile with `max` and `sum` joins those before it. */
struct joint {
    float max, sum, old, now;
};
static __device__ inline joint join_sums(float max0, float sum0, float max, float sum)
{
    float both = fmaxf(max0, max), old = expf(max0 - both), now = expf(max - both);
    return {both, fmaf(sum, now, sum0 * old), old, now};
}

/* Scores and weights of up to N queries over a tile. */
template <int N> struct tile_weights {
    alignas(16) float s[N][TILE_KEYS + 4];
    alignas(16) uint16_t p[2][N][TILE_KEYS + 8]; /* high, low */
    float max[N], sum[N];                        /* over the tiles so far */
    float old[N], now[N];                        /* factors of the tiles before and of this one */
};

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

/* Turns the scores of n queries into weights, a query by a warp, EACH at once. seen_by(m): the keys that query m sees.
 * The sum is by halves: keys i and i + 32, then 16, 8, ... apart. */
template <int EACH, int WARPS, int N, typename S>
static __device__ inline void soften_some(tile_weights<N> *t, const S &seen_by, int n, bool first)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int m0 = warp; m0 < n; m0 += EACH * WARPS) {
        float p[EACH][2], max[EACH], sum[EACH];
        bool  has[EACH][2];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int       m    = m0 + i * WARPS;
            seen_keys seen = seen_by(m < n ? m : m0);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                has[i][j] = m < n && seen.has(lane + j * WARP);
                p[i][j]   = has[i][j] ? t->s[m][lane + j * WARP] : -INFINITY;
            }
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) max[i] = float_of(warp_max_u32(order_of(fmaxf(p[i][0], p[i][1]))));
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int j = 0; j < 2; j++) p[i][j] = has[i][j] ? expf(p[i][j] - max[i]) : 0;
            sum[i] = p[i][0] + p[i][1];
        }
#pragma unroll
        for (int k = WARP / 2; k > 0; k /= 2)
#pragma unroll
            for (int i = 0; i < EACH; i++) sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], k);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int m = m0 + i * WARPS;
            if (m >= n) break;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint16_t high               = to_f16(p[i][j]);
                t->p[0][m][lane + j * WARP] = high;
                t->p[1][m][lane + j * WARP] = to_f16(p[i][j] - from_f16(high));
            }
            joint to = first ? joint{max[i], sum[i], 0, 1} : join_sums(t->max[m], t->sum[m], max[i], sum[i]);
            __syncwarp();
            if (lane == 0) {
                t->max[m] = to.max, t->sum[m] = to.sum;
                t->old[m] = to.old, t->now[m] = to.now;
            }
        }
    }
}
template <int N, int WARPS, typename S>
static __device__ inline void soften(tile_weights<N> *t, const S &seen_by, int n, bool first)
{
    constexpr int MOST = N / WARPS < 4 ? N / WARPS : 4;
    if (n <= WARPS)
        soften_some<1, WARPS>(t, seen_by, n, first);
    else
        soften_some<MOST, WARPS>(t, seen_by, n, first);
}
#endif
