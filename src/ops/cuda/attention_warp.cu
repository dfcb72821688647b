/* Attention of short contexts and of windows, by single warps, for caches of F16. The arithmetic is that of
 * attention_mma.cu, to the bit.
 *
 * A block is a warp. A unit is a tile and up to 8 queries: the heads of a K/V head of rows of a lane, from up to
 * 8 / (heads per K/V head) rows that follow each other (a window of rows). Rows share a tile when each position that
 * they see is at the slot of its own number; a row of a tree has its other tiles for itself. Each block counts the
 * units of all rows, and takes an equal share, so the grid depends on nothing but the GPU, and lanes of different
 * lengths are balanced. No warp waits for another one: K of the next unit is on its way while this one's scores become
 * outputs, V while the next scores are computed.
 *
 *     S = K Q^T   keys are rows of operand A, queries its 8 columns
 *     O = V^T P   elements are rows of operand A */
#include "ops/cuda/attention_mma.cuh"

enum { WARP_QUERIES = 8, WARP_ROWS = 64, SCORE_TILES = TILE_KEYS / 16, TILE_PAGES = TILE_KEYS / KV_PAGE };

template <int DIM> struct warp_cut {
    static constexpr int KEY_BYTES = 2 * DIM;
    static constexpr int STEPS     = DIM / 32;
    static constexpr int PIECES    = DIM / 8;                     /* 16 bytes each, in a key */
    static constexpr int KEYS      = WARP / PIECES;               /* that are copied at once */
    static constexpr int AT_ONCE   = DIM / 16 < 8 ? DIM / 16 : 8; /* tiles of 16 elements */
};

template <int DIM> struct warp_shared {
    alignas(128) char k[TILE_KEYS * 2 * DIM];
    alignas(128) char v[TILE_KEYS * 2 * DIM];               /* piece i of key j is at place i ^ j % 8 */
    alignas(16) uint16_t p[2][WARP_QUERIES][TILE_KEYS + 8]; /* high, low */
    uint64_t gate, v_gate;
    uint32_t at[TILE_KEYS]; /* where the keys of a row's own tile are, in steps of KEY_STEP */
    int32_t  first[WARP_ROWS], last[WARP_ROWS], root[WARP_ROWS], lane[WARP_ROWS];
    int32_t  pos[WARP_ROWS], slot[WARP_ROWS], parent[WARP_ROWS];
    int32_t  before[WARP_ROWS + 1]; /* units of a K/V head of the rows before */
};

/* --- units ----------------------------------------------------------------------------------------*/

/* Tiles from first on, n of them. */
struct tile_run {
    int first, n;

    __device__ inline bool has(int tile) const { return tile >= first && tile < first + n; }
};
template <int DIM> static __device__ inline tile_run shared_tiles(const warp_shared<DIM> *t, int row)
{
    int first = t->first[row], last = t->last[row], root = t->root[row];
    int end = last < root ? last / TILE_KEYS + 1 : root / TILE_KEYS;
    if (last < first || end <= first / TILE_KEYS) return {0, 0};
    return {first / TILE_KEYS, end - first / TILE_KEYS};
}
/* Returns the tiles with positions at slots of other numbers. */
template <int DIM> static __device__ inline tile_run own_tiles(const warp_shared<DIM> *t, int row)
{
    int first = t->first[row], last = t->last[row], root = t->root[row];
    int from = (root > first ? root : first) / TILE_KEYS;
    if (last < first || last < root) return {0, 0};
    return {from, last / TILE_KEYS + 1 - from};
}

/* The units of a row: of a window of rows, if it is the first one of its lane there, and its own. */
struct row_units {
    tile_run shared, own;
};
template <int DIM> static __device__ inline row_units units_of(const warp_shared<DIM> *t, int row, int size)
{
    row_units u    = {{0, 0}, own_tiles(t, row)};
    int       from = row - row % size, to = min_of(from + size, WARP_ROWS);
    for (int i = from; i < to; i++) {
        tile_run x = shared_tiles(t, i);
        if (t->lane[i] != t->lane[row] || !x.n) continue;
        if (i < row) return {{0, 0}, u.own};
        int first = u.shared.n && u.shared.first < x.first ? u.shared.first : x.first, end = x.first + x.n;
        if (u.shared.n && u.shared.first + u.shared.n > end) end = u.shared.first + u.shared.n;
        u.shared = {first, end - first};
    }
    return u;
}

/* rows: of the window that starts at `from`; any, all: keys that some and that all of them see. */
struct warp_unit {
    int      from, kv_head, tile;
    unsigned rows;
    bool     own;
    uint64_t any, all;
    int32_t  page; /* lane i: the id of page i of the tile */
};

template <int DIM> static __device__ inline seen_keys keys_of_row(const warp_shared<DIM> *t, int row, int tile)
{
    return keys_of({0, 0, 0, t->first[row], t->last[row]}, tile);
}

/* A block's way through its units: the row that they belong to. */
struct warp_walk {
    int       row, begin, end; /* units of all K/V heads of the row */
    row_units of;
};

/* Returns unit i of all. */
template <int DIM>
static __device__ inline warp_unit find_unit(const warp_shared<DIM> *t, const cuda_attention_args &a, int size, int i,
                                             warp_walk *walk)
{
    int lane = threadIdx.x, heads = a.c.n_kv_heads;
    if (i >= walk->end) {
        unsigned low  = __ballot_sync(ALL_LANES, t->before[lane] * heads <= i);
        unsigned high = __ballot_sync(ALL_LANES, t->before[lane + WARP] * heads <= i);
        int      row  = __popc(low) + __popc(high) - 1;
        *walk         = {row, t->before[row] * heads, t->before[row + 1] * heads, units_of(t, row, size)};
    }
    const row_units &u   = walk->of;
    int              row = walk->row, n = u.shared.n + u.own.n, at = i - walk->begin;
    warp_unit        x = {row - row % size, at / n, at % n, 0, false, 0, ~(uint64_t)0, 0};
    x.own              = x.tile >= u.shared.n;
    x.tile             = x.own ? u.own.first + x.tile - u.shared.n : u.shared.first + x.tile;
    for (int k = 0; k < size && x.from + k < WARP_ROWS; k++) {
        int  r    = x.from + k;
        bool sees = x.own ? r == row : t->lane[r] == t->lane[row] && shared_tiles(t, r).has(x.tile);
        if (!sees) continue;
        uint64_t keys = keys_of_row(t, r, x.tile).bits;
        x.rows |= 1u << k, x.any |= keys, x.all &= keys;
    }
    if (lane < TILE_PAGES && !x.own && x.any >> (lane * KV_PAGE) & 0xffff)
        x.page = cache_page(a.c, t->lane[row], x.tile * TILE_KEYS + lane * KV_PAGE);
    return x;
}

/* Reads the rows of the step, and counts their units. */
template <int DIM>
static __device__ inline void count_units(warp_shared<DIM> *t, const cuda_attention_args &a, int size)
{
    int lane = threadIdx.x, sum[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int i = lane + k * WARP, row = i < a.n_rows ? i : 0;
        int pos      = a.pos[row];
        t->pos[i]    = pos;
        t->first[i]  = a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;
        t->last[i]   = i < a.n_rows ? a.last[row] : -1;
        t->root[i]   = a.root[row];
        t->lane[i]   = a.lane[row];
        t->slot[i]   = a.slot[row];
        t->parent[i] = a.parent[row];
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 2; k++) {
        row_units u = units_of(t, lane + k * WARP, size);
        sum[k]      = u.shared.n + u.own.n;
    }
    int mine[2] = {sum[0], sum[1]};
#pragma unroll
    for (int k = 1; k < WARP; k *= 2)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int x = __shfl_sync(ALL_LANES, sum[i], lane >= k ? lane - k : lane);
            sum[i] += lane >= k ? x : 0;
        }
    int half               = __shfl_sync(ALL_LANES, sum[0], WARP - 1);
    t->before[lane]        = sum[0] - mine[0];
    t->before[lane + WARP] = half + sum[1] - mine[1];
    if (lane == WARP - 1) t->before[WARP_ROWS] = half + sum[1];
    __syncwarp();
}

/* --- keys and values on their way -----------------------------------------------------------------*/

/* Asks for K of a unit's pages. */
template <int DIM>
static __device__ inline void ask_k(warp_shared<DIM> *t, const cuda_attention_args &a, const warp_unit &x)
{
    constexpr int BYTES = KV_PAGE * warp_cut<DIM>::KEY_BYTES;
    int           lane  = threadIdx.x;
    if (x.own) return;
    bool real = lane < TILE_PAGES && x.any >> (lane % TILE_PAGES * KV_PAGE) & 0xffff;
    int  n    = __popc(__ballot_sync(ALL_LANES, real));
    if (lane == 0) gate_announce(&t->gate, n * BYTES);
    __syncwarp();
    if (real) gate_copy(&t->gate, t->k + lane * BYTES, cache_plane_in(a.c, false, a.layer, x.kv_head, x.page), BYTES);
}

/* Finds the keys of a row's own tile. */
template <int DIM>
static __device__ inline void find_own(warp_shared<DIM> *t, const cuda_attention_args &a, const warp_unit &x)
{
    int     row = x.from + __popc((x.rows & -x.rows) - 1), root = t->root[row], lane = t->lane[row];
    int32_t p0 = x.tile * TILE_KEYS;
    for (int i = threadIdx.x; i < TILE_KEYS; i += WARP) t->at[i] = (uint32_t)(p0 + i);
    __syncwarp();
    for (int r = row; r >= 0 && t->pos[r] >= root && t->pos[r] >= p0; r = t->parent[r])
        if (threadIdx.x == 0 && t->pos[r] < p0 + TILE_KEYS) t->at[t->pos[r] - p0] = (uint32_t)t->slot[r];
    __syncwarp();
    for (int i = threadIdx.x; i < TILE_KEYS; i += WARP) {
        const char *at = a.c.pool;
        if (x.any >> i & 1) at = cache_k(a.c, a.layer, x.kv_head, lane, (int32_t)t->at[i]);
        t->at[i] = (uint32_t)((size_t)(at - a.c.pool) / KEY_STEP);
    }
    __syncwarp();
}

/* Asks for V of a unit, and for K of a row's own tile. V that the rows do not see is zero. */
template <int DIM>
static __device__ inline void ask_v(warp_shared<DIM> *t, const cuda_attention_args &a, const warp_unit &x)
{
    typedef warp_cut<DIM> C;
    int                   piece = threadIdx.x % C::PIECES, in = threadIdx.x / C::PIECES;
    if (x.own) {
        find_own(t, a, x);
#pragma unroll 4
        for (int i = 0; i < TILE_KEYS; i += C::KEYS) {
            int         key  = i + in;
            bool        sees = x.any >> key & 1;
            const char *from = a.c.pool + (size_t)t->at[key] * KEY_STEP + piece * 16;
            copy_piece(&t->v_gate, t->k + key * C::KEY_BYTES + piece * 16, from, sees);
            copy_piece(&t->v_gate, t->v + key * C::KEY_BYTES + ((piece ^ key % 8) << 4),
                       from + (sees ? a.c.plane_bytes : 0), sees);
        }
    } else {
        bool whole = ~x.any == 0;
#pragma unroll
        for (int page = 0; page < TILE_PAGES; page++) {
            int32_t     id   = __shfl_sync(ALL_LANES, x.page, page);
            const char *from = cache_plane_in(a.c, true, a.layer, x.kv_head, id) + in * C::KEY_BYTES + piece * 16;
            char       *to   = t->v + (page * KV_PAGE + in) * C::KEY_BYTES;
            unsigned    seen = (unsigned)(x.any >> (page * KV_PAGE)) & 0xffff;
#pragma unroll
            for (int i = 0; i < KV_PAGE; i += C::KEYS) {
                bool sees = whole || seen >> (i + in) & 1;
                copy_piece(&t->v_gate, to + i * C::KEY_BYTES + ((piece ^ (i + in) % 8) << 4), from + i * C::KEY_BYTES,
                           sees);
            }
        }
    }
    copy_commit();
}

/* --- a unit ---------------------------------------------------------------------------------------*/

/* The queries as operand B: lane 4 g + c has, of query g, the elements 8 c to 8 c + 7 of each 32, high and low.
 * Query g belongs to row g / per_row of the window, head g % per_row of the K/V head's. */
template <int DIM> struct warp_queries {
    uint4 high[warp_cut<DIM>::STEPS], low[warp_cut<DIM>::STEPS];

    __device__ inline void load(const cuda_attention_args &a, const warp_unit &x, int per_row)
    {
        int    g = threadIdx.x / 4, c = threadIdx.x % 4, row = x.from + g / per_row;
        bool   there = g < WARP_QUERIES / per_row * per_row && row < a.n_rows;
        size_t at    = ((size_t)row * a.n_heads + x.kv_head * per_row + g % per_row) * DIM + 8 * c;
#pragma unroll
        for (int j = 0; j < warp_cut<DIM>::STEPS; j++) {
            float4 v[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
            if (there) v[0] = *(const float4 *)(a.q + at + 32 * j), v[1] = *(const float4 *)(a.q + at + 32 * j + 4);
            high[j] = {h2_from_f32(v[0].x, v[0].y), h2_from_f32(v[0].z, v[0].w), h2_from_f32(v[1].x, v[1].y),
                       h2_from_f32(v[1].z, v[1].w)};
            low[j] = {rest(v[0].x, v[0].y, high[j].x), rest(v[0].z, v[0].w, high[j].y), rest(v[1].x, v[1].y, high[j].z),
                      rest(v[1].z, v[1].w, high[j].w)};
        }
    }
    static __device__ inline uint32_t rest(float x, float y, uint32_t up)
    {
        return h2_from_f32(x - from_f16((uint16_t)up), y - from_f16((uint16_t)(up >> 16)));
    }
};

/* s[i]: products of tile i of 16 keys, as mma has them; high and low are summed apart. */
template <int DIM>
static __device__ inline void score_keys(float (&s)[SCORE_TILES][4], const warp_shared<DIM> *t,
                                         const warp_queries<DIM> &q, float scale)
{
    constexpr int BYTES = warp_cut<DIM>::KEY_BYTES;
    int           g = threadIdx.x / 4, c = threadIdx.x % 4;
    float         rest[SCORE_TILES][4] = {};
    const char   *at                   = t->k + g * BYTES + 16 * c;
#pragma unroll
    for (int j0 = 0; j0 < warp_cut<DIM>::STEPS; j0 += 2)
#pragma unroll
        for (int m = 0; m < SCORE_TILES; m++) {
            key_steps k0(at + 16 * m * BYTES + 64 * j0, g % 2), k1(at + (16 * m + 8) * BYTES + 64 * j0, g % 2);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t     k[2][4] = {{k0.x[i].x, k1.x[i].x, k0.x[i].y, k1.x[i].y},
                                        {k0.x[i].z, k1.x[i].z, k0.x[i].w, k1.x[i].w}};
                const uint4 &high = q.high[j0 + i], &low = q.low[j0 + i];
                mma_16x8x16(s[m], k[0], high.x, high.y);
                mma_16x8x16(rest[m], k[0], low.x, low.y);
                mma_16x8x16(s[m], k[1], high.z, high.w);
                mma_16x8x16(rest[m], k[1], low.z, low.w);
            }
        }
#pragma unroll
    for (int m = 0; m < SCORE_TILES; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[m][i] = (s[m][i] + rest[m][i]) * scale;
}

/* Turns the scores of query 2 c + i into weights, of which keys 16 m + 8 h + g are s[m][2 h + i]. Returns their maximum
 * and sum, which is by halves: keys j and j + 32, then 16, 8, ... apart. */
template <int DIM>
static __device__ inline float2 soften(warp_shared<DIM> *t, const float (&s)[SCORE_TILES][4], int i, seen_keys seen)
{
    int   g = threadIdx.x / 4, query = threadIdx.x % 4 * 2 + i;
    float max = -INFINITY, p[SCORE_TILES][2];
#pragma unroll
    for (int m = 0; m < SCORE_TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (seen.has(16 * m + 8 * h + g)) max = fmaxf(max, s[m][2 * h + i]);
#pragma unroll
    for (int k = 4; k < WARP; k *= 2) max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, k));
#pragma unroll
    for (int m = 0; m < SCORE_TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int      key        = 16 * m + 8 * h + g;
            float    w          = seen.has(key) ? expf(s[m][2 * h + i] - max) : 0;
            uint16_t high       = to_f16(w);
            t->p[0][query][key] = high;
            t->p[1][query][key] = to_f16(w - from_f16(high));
            p[m][h]             = w;
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int m = 0; m < SCORE_TILES / 2; m++) p[m][h] += p[m + SCORE_TILES / 2][h];
        p[0][h] += p[1][h];
    }
    float sum = p[0][0] + p[0][1];
#pragma unroll
    for (int k = WARP / 2; k > 2; k /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, k);
    return {max, sum};
}

/* Returns whether V of one of these keys has an infinity or a NaN. */
template <int DIM> static __device__ inline bool has_odd(const warp_shared<DIM> *t, uint64_t keys)
{
    constexpr int PIECES = warp_cut<DIM>::PIECES;
    bool          odd    = false;
    for (int i = threadIdx.x; i < TILE_KEYS * PIECES; i += WARP) {
        if (!(keys >> (i / PIECES) & 1)) continue;
        uint4 x = *(const uint4 *)(t->v + i * 16);
        odd     = odd || is_odd(x.x) || is_odd(x.y) || is_odd(x.z) || is_odd(x.w);
    }
    return __any_sync(ALL_LANES, odd);
}

/* Computes and stores the outputs of queries 2 c and 2 c + 1, where `to` is not NULL. MASKED: V of keys that are not in
 * `seen` counts as zero. */
template <bool MASKED, int DIM>
static __device__ inline void weigh_values(float *const (&to)[2], const warp_shared<DIM> *t, uint64_t seen)
{
    typedef warp_cut<DIM> C;
    int                   lane = threadIdx.x, g = lane / 4, c = lane % 4, i = lane / 8, r = lane % 8;
    uint32_t              p[TILE_KEYS / 16][4];
#pragma unroll
    for (int k = 0; k < TILE_KEYS / 16; k++) load_matrices(p[k], &t->p[i / 2][r][16 * k + i % 2 * 8]);
#pragma unroll
    for (int m0 = 0; m0 < DIM / 16; m0 += C::AT_ONCE) {
        float out[C::AT_ONCE][4] = {};
#pragma unroll
        for (int k = 0; k < TILE_KEYS / 16; k++) {
            const char *at   = t->v + (16 * k + i / 2 * 8 + r) * C::KEY_BYTES;
            uint32_t    bits = (uint32_t)(seen >> (16 * k));
            uint32_t    low  = (bits >> (2 * c) & 1 ? 0xffffu : 0) | (bits >> (2 * c + 1) & 1 ? 0xffff0000u : 0);
            uint32_t    high = (bits >> (2 * c + 8) & 1 ? 0xffffu : 0) | (bits >> (2 * c + 9) & 1 ? 0xffff0000u : 0);
#pragma unroll
            for (int m = 0; m < C::AT_ONCE; m++) {
                uint32_t v[4];
                load_matrices_transposed(v, at + (((2 * (m0 + m) + i % 2) ^ r) << 4));
                if (MASKED) v[0] &= low, v[1] &= low, v[2] &= high, v[3] &= high;
                mma_16x8x16(out[m], v, p[k][0], p[k][1]);
                mma_16x8x16(out[m], v, p[k][2], p[k][3]);
            }
        }
#pragma unroll
        for (int m = 0; m < C::AT_ONCE; m++)
#pragma unroll
            for (int col = 0; col < 2; col++)
                if (to[col]) to[col][16 * (m0 + m) + g] = out[m][col], to[col][16 * (m0 + m) + 8 + g] = out[m][2 + col];
    }
}

/* Stores a unit of which V is there; sums: maximum and sum of queries 2 c and 2 c + 1. */
template <int DIM>
static __device__ inline void store_unit(const warp_shared<DIM> *t, const cuda_attention_args &a, const warp_unit &x,
                                         const float2 (&sums)[2], int per_row)
{
    float *to[2];
    int    of[2]; /* rows of the window */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int query = threadIdx.x % 4 * 2 + i, row = x.from + query / per_row;
        of[i] = query / per_row;
        to[i] = NULL;
        if (!(x.rows >> of[i] & 1)) continue;
        to[i] = head_parts(a, row, x.kv_head * per_row + query % per_row) +
                (size_t)(x.tile - t->first[row] / TILE_KEYS) * (4 + DIM);
        if (threadIdx.x < 4) *(float2 *)to[i] = sums[i];
        to[i] += 4;
    }
    if (x.any == x.all || !has_odd(t, x.any & ~x.all)) {
        weigh_values<false>(to, t, 0);
        return;
    }
    /* Seldom: rows see different keys, and some V that not all of them see is not a number. Each row by itself. */
#pragma unroll 1
    for (unsigned rows = x.rows; rows; rows &= rows - 1) {
        int    row    = __popc((rows & -rows) - 1);
        float *one[2] = {of[0] == row ? to[0] : NULL, of[1] == row ? to[1] : NULL};
        weigh_values<true>(one, t, keys_of_row(t, x.from + row, x.tile).bits);
    }
}

/* Returns whether the keys of a unit were stored before this step (attention_mma.cuh: is_old). */
template <int DIM>
static __device__ inline bool is_old_unit(const warp_shared<DIM> *t, const cuda_attention_args &a, const warp_unit &x)
{
    int row = x.from + __popc((x.rows & -x.rows) - 1), end = (x.tile + 1) * TILE_KEYS;
    return x.rows && !x.own && end <= t->pos[row] - a.n_rows + 1 && end <= t->root[row];
}

/* Grid: as many blocks as fit. In a step whose rows are settled, units are counted before the kernel waits, and old
 * keys asked for. */
template <int DIM> static __global__ void __launch_bounds__(WARP) warp_kernel(cuda_attention_args a)
{
    DYNAMIC_SHARED(uint4, warp_memory);
    auto             *t       = (warp_shared<DIM> *)warp_memory;
    int               per_row = a.n_heads / a.c.n_kv_heads, size = WARP_QUERIES / per_row, staged = -1;
    unsigned          phase = 0;
    bool              asked = false;
    warp_queries<DIM> q;
    let_next_start();
    if (threadIdx.x == 0) gate_init(&t->gate);
    if (!a.settled) wait_for_previous();
    count_units(t, a, size);
    int       all = t->before[WARP_ROWS] * a.c.n_kv_heads, blocks = (int)gridDim.x, b = (int)blockIdx.x;
    int       i = all / blocks * b + min_of(b, all % blocks), end = i + all / blocks + (b < all % blocks);
    warp_walk walk = {};
    warp_unit now = {}, next = {};
    if (i < end) now = find_unit(t, a, size, i, &walk);
    if (a.settled) {
        asked = i < end && is_old_unit(t, a, now);
        if (asked) ask_k(t, a, now), ask_v(t, a, now);
        wait_for_previous();
    }
    if (i < end && !asked) ask_k(t, a, now), ask_v(t, a, now);
#pragma unroll 1
    for (; i < end; i++, now = next) {
        float  s[SCORE_TILES][4] = {};
        float2 sums[2];
        if (now.from * a.c.n_kv_heads + now.kv_head != staged) {
            q.load(a, now, per_row);
            staged = now.from * a.c.n_kv_heads + now.kv_head;
        }
        if (i + 1 < end) next = find_unit(t, a, size, i + 1, &walk);
        if (now.own)
            copy_wait<0>(&t->v_gate);
        else
            gate_wait_block(&t->gate, phase), phase ^= 1;
        score_keys(s, t, q, a.scale);
        __syncwarp();
        if (now.own) wgmma_sees(); /* K of the next unit comes in another way */
        if (i + 1 < end) ask_k(t, a, next);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int row = (threadIdx.x % 4 * 2 + k) / per_row;
            sums[k] = soften(t, s, k, now.rows >> row & 1 ? keys_of_row(t, now.from + row, now.tile) : seen_keys{0});
        }
        copy_wait<0>(&t->v_gate);
        store_unit(t, a, now, sums, per_row);
        __syncwarp();
        if (i + 1 < end) ask_v(t, a, next);
    }
}

/* --- launches -------------------------------------------------------------------------------------*/

template <int DIM> static void launch_warps(cudaStream_t s, const cuda_attention_args *a)
{
    enum { RESERVED = 1 << 10, ALL_SHARED = 228 << 10, MOST = 16 };
    constexpr int BYTES = (int)sizeof(warp_shared<DIM>), EACH = ALL_SHARED / (BYTES + RESERVED);
    static_assert(BYTES <= 227 << 10, "a block has 227 KB on Hopper");
    unsigned blocks = (unsigned)(multiprocessors() * (EACH < MOST ? EACH : (int)MOST));
    allow_shared(warp_kernel<DIM>, (size_t)BYTES);
    LAUNCH_EARLY(warp_kernel<DIM>, blocks, WARP, (size_t)BYTES, s, *a);
}

bool cuda_attention_has_warps(const cuda_attention_args *a)
{
    return can_start_early() && shared_limit() >= 227 << 10 && a->c.head_dim <= 256 && a->n_rows <= WARP_ROWS &&
           a->n_heads / a->c.n_kv_heads <= WARP_QUERIES;
}

void cuda_attention_warps(cudaStream_t s, const cuda_attention_args *a)
{
    switch (a->c.head_dim) {
    case 64: launch_warps<64>(s, a); break;
    case 128: launch_warps<128>(s, a); break;
    default: launch_warps<256>(s, a); break;
    }
}
