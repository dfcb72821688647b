/* Attention on tensor cores, for caches without F32 and heads of 64, 128, 256 or 512.
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
 * A block works for up to 16 queries (32 in attention_span.cu) that share a K/V head: the heads of one row, or of
 * several rows of a lane. A unit of work is a span that a row sees as a whole, or a single tile. Rows share a unit when
 * each position that they see is at the slot of its own number: a chain shares all of them, also where its rows see
 * different keys (the ends of the chain and of windows). A key counts as zero for a row that does not see it, V too: a
 * page may hold anything there. Where V of a row's neighbour is an infinity or a NaN, each row is computed separately.
 * The branches of a tree have a block each, and so have rows with sparse attention, which work on the tiles that they
 * keep a page of.
 *
 * There are several kernels. The one here works on single tiles, which it has in registers; it takes little shared
 * memory, so that other kernels of the step run concurrently. The one of attention_span.cu is for long contexts, where
 * neither or both of K and V have scales, that of attention_chain.cu for chains and trees after them, that of
 * attention_warp.cu for a few rows and more that see no more than a window. */
#include "ops/cuda/attention_mma.cuh"

enum {
    QUERIES       = 16,
    MERGE_THREADS = 128, /* CACHE_GROUP */
    TILE_BLOCKS   = 64,
};

template <int DIM> struct head_cut {
    static constexpr int WARPS     = DIM == 512 ? 8 : 4;
    static constexpr int THREADS   = WARPS * WARP;
    static constexpr int KEY_TILES = TILE_KEYS / 8 / WARPS; /* groups of 8 keys per warp */
    static constexpr int PIECES    = DIM / 32;
};

template <int DIM> struct tile_shared {
    alignas(16) uint16_t high[QUERIES][DIM + 32];
    alignas(16) uint16_t low[QUERIES][DIM + 32];
    tile_weights<QUERIES> w;
    unit_keys             keys;
    uint8_t               in_page[TILE_KEYS]; /* types with scales: positions in the pages that keys.at names */
    unit_rows<QUERIES>    rows;
    float                *part[QUERIES]; /* where a query's output goes */
    int                   odd;           /* a V that some rows do not see is not a number */
};

/* --- keys on their way ----------------------------------------------------------------------------*/

static __device__ inline uint4 load_part(const char *vec, int bytes) { return *(const uint4 *)(vec + bytes); }

/* A warp's keys of the unit's tile i as operand B: lane 4 g + c has, of key g, the elements 8 c to 8 c + 7 of each
 * 32. */
template <int DIM> struct warp_keys {
    uint4 k[head_cut<DIM>::KEY_TILES][head_cut<DIM>::PIECES];

    __device__ inline uint4 at(int n, int j) const { return k[n][j]; }
    __device__ inline void  load(const tile_shared<DIM> *t, const char *pool, uint64_t seen, int warp, int lane)
    {
#pragma unroll
        for (int n = 0; n < head_cut<DIM>::KEY_TILES; n++) {
            int         key = (warp * head_cut<DIM>::KEY_TILES + n) * 8 + lane / 4;
            const char *at  = pool + (size_t)t->keys.at[key] * KEY_STEP;
#pragma unroll
            for (int j = 0; j < head_cut<DIM>::PIECES; j++)
                k[n][j] = seen >> key & 1 ? load_part(at, j * 64 + lane % 4 * 16) : uint4{0, 0, 0, 0};
        }
    }
    /* The same of codes: decoded on the way. */
    template <cache_type T>
    __device__ inline void load_codes(const tile_shared<DIM> *t, const cuda_attention_args &a, int kv_head,
                                      uint64_t seen, int warp, int lane)
    {
#pragma unroll
        for (int n = 0; n < head_cut<DIM>::KEY_TILES; n++) {
            int       key  = (warp * head_cut<DIM>::KEY_TILES + n) * 8 + lane / 4;
            bool      sees = seen >> key & 1;
            cache_vec from(a.c, false, cache_plane_in(a.c, false, a.layer, kv_head, sees ? (int)t->keys.at[key] : 0),
                           t->in_page[key]);
#pragma unroll
            for (int j = 0; j < head_cut<DIM>::PIECES; j++)
                k[n][j] = sees ? cache_eight<T>(from.code, from.scale, 32 * j + lane % 4 * 8) : uint4{0, 0, 0, 0};
        }
    }
    __device__ inline void load_coded(const tile_shared<DIM> *t, const cuda_attention_args &a, int kv_head,
                                      uint64_t seen, int warp, int lane)
    {
        switch (a.c.types.k) {
        case CACHE_Q8_0: load_codes<CACHE_Q8_0>(t, a, kv_head, seen, warp, lane); break;
        case CACHE_Q4_0: load_codes<CACHE_Q4_0>(t, a, kv_head, seen, warp, lane); break;
        case CACHE_TQ3: load_codes<CACHE_TQ3>(t, a, kv_head, seen, warp, lane); break;
        default: load_codes<CACHE_F16>(t, a, kv_head, seen, warp, lane);
        }
    }
};

/* Codes of a warp's keys, which are decoded when they are used: all loads are under way before the first is needed. */
template <int DIM> struct coded_keys {
    cache_raw k[head_cut<DIM>::KEY_TILES][head_cut<DIM>::PIECES];

    template <cache_type T>
    __device__ inline void load(const tile_shared<DIM> *t, const cuda_attention_args &a, int kv_head, uint64_t seen,
                                int warp, int lane)
    {
#pragma unroll
        for (int n = 0; n < head_cut<DIM>::KEY_TILES; n++) {
            int       key  = (warp * head_cut<DIM>::KEY_TILES + n) * 8 + lane / 4;
            bool      sees = seen >> key & 1;
            cache_vec from(a.c, false, cache_plane_in(a.c, false, a.layer, kv_head, sees ? (int)t->keys.at[key] : 0),
                           t->in_page[key]);
#pragma unroll
            for (int j = 0; j < head_cut<DIM>::PIECES; j++) {
                k[n][j] = {};
                if (sees) k[n][j] = cache_load<T>(from.code, from.scale, 32 * j + lane % 4 * 8);
            }
        }
    }
};

/* Keys, and values, of one type. */
template <int DIM, cache_type T> struct typed_keys {
    const coded_keys<DIM> &c;
    int                    lane;

    __device__ inline uint4 at(int n, int j) const { return cache_decoded<T>(c.k[n][j], 32 * j + lane % 4 * 8); }
};

static __device__ inline uint32_t word_of(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/* A warp's 64 elements of V as operand B: lane 4 g + c has elements 8 g to 8 g + 7 of keys 2 c, 2 c + 1, 2 c + 8, 2 c +
 * 9 of each 16. */
struct warp_values {
    uint4 v[TILE_KEYS / 16][4];

    static __device__ inline int key(int s, int i, int lane) { return 16 * s + 2 * (lane % 4) + i % 2 + i / 2 * 8; }
    __device__ inline uint4      at(int s, int i) const { return v[s][i]; }
    __device__ inline void       load(const uint32_t *at, const char *from, uint64_t seen, int lane)
    {
#pragma unroll
        for (int s = 0; s < TILE_KEYS / 16; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[s][i] = seen >> key(s, i, lane) & 1
                              ? load_part(from + (size_t)at[key(s, i, lane)] * KEY_STEP, lane / 4 * 16)
                              : uint4{0, 0, 0, 0};
    }
    /* The same of codes, for elements from `first` on: decoded on the way. */
    template <cache_type T>
    __device__ inline void load_codes(const uint32_t *at, const uint8_t *in_page, const cuda_attention_args &a,
                                      int kv_head, int first, uint64_t seen, int lane)
    {
#pragma unroll
        for (int s = 0; s < TILE_KEYS / 16; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int       k    = key(s, i, lane);
                bool      sees = seen >> k & 1;
                cache_vec from(a.c, true, cache_plane_in(a.c, true, a.layer, kv_head, sees ? (int)at[k] : 0),
                               in_page[k]);
                v[s][i] = sees ? cache_eight<T>(from.code, from.scale, first + lane / 4 * 8) : uint4{0, 0, 0, 0};
            }
    }
    __device__ inline void load_coded(const uint32_t *at, const uint8_t *in_page, const cuda_attention_args &a,
                                      int kv_head, int first, uint64_t seen, int lane)
    {
        switch (a.c.types.v) {
        case CACHE_Q8_0: load_codes<CACHE_Q8_0>(at, in_page, a, kv_head, first, seen, lane); break;
        case CACHE_Q4_0: load_codes<CACHE_Q4_0>(at, in_page, a, kv_head, first, seen, lane); break;
        case CACHE_TQ3: load_codes<CACHE_TQ3>(at, in_page, a, kv_head, first, seen, lane); break;
        default: load_codes<CACHE_F16>(at, in_page, a, kv_head, first, seen, lane);
        }
    }
};

/* Codes of a warp's 64 elements of V, as coded_keys; first: the first element. */
struct coded_values {
    cache_raw v[TILE_KEYS / 16][4];
    int       first;

    template <cache_type T>
    __device__ inline void load(const uint32_t *at, const uint8_t *in_page, const cuda_attention_args &a, int kv_head,
                                uint64_t seen, int lane)
    {
#pragma unroll
        for (int s = 0; s < TILE_KEYS / 16; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int       k    = warp_values::key(s, i, lane);
                bool      sees = seen >> k & 1;
                cache_vec from(a.c, true, cache_plane_in(a.c, true, a.layer, kv_head, sees ? (int)at[k] : 0),
                               in_page[k]);
                v[s][i] = {};
                if (sees) v[s][i] = cache_load<T>(from.code, from.scale, first + lane / 4 * 8);
            }
    }
};
template <cache_type T> struct typed_values {
    const coded_values &c;
    int                 lane;

    __device__ inline uint4 at(int s, int i) const { return cache_decoded<T>(c.v[s][i], c.first + lane / 4 * 8); }
};

/* Returns whether V of one of these keys has an infinity or a NaN. */
template <typename V> static __device__ inline bool has_odd_value(const V &values, uint64_t keys, int lane)
{
    bool odd = false;
#pragma unroll
    for (int s = 0; s < TILE_KEYS / 16; s++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (keys >> warp_values::key(s, i, lane) & 1) {
                uint4 x = values.at(s, i);
                odd |= is_odd(x.x) || is_odd(x.y) || is_odd(x.z) || is_odd(x.w);
            }
    return odd;
}

/* --- a tile ---------------------------------------------------------------------------------------*/

/* The products with high and with low are summed apart: two short chains instead of a long one. */
template <int DIM, typename K>
static __device__ inline void score_keys(tile_shared<DIM> *t, const K &keys, float scale, int warp, int lane)
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
        uint4    k[N];
#pragma unroll
        for (int n = 0; n < N; n++) k[n] = keys.at(n, j);
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                mma_16x8x16(acc[n], high[s], s ? k[n].z : k[n].x, s ? k[n].w : k[n].y);
                mma_16x8x16(rest[n], low[s], s ? k[n].z : k[n].x, s ? k[n].w : k[n].y);
            }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            t->w.s[g + i / 2 * 8][(warp * N + n) * 8 + 2 * c + i % 2] = (acc[n][i] + rest[n][i]) * scale;
}

/* out[j]: queries g and g + 8, elements 16 c + j and 16 c + 8 + j of a warp's 64. MASKED: V of keys that are not in
 * `seen` counts as zero. */
template <bool MASKED, int DIM, typename V>
static __device__ inline void weigh_values(float (&out)[8][4], const tile_shared<DIM> *t, const V &values,
                                           uint64_t seen, int lane)
{
    int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int s = 0; s < TILE_KEYS / 16; s++) {
        uint32_t p[2][4];
        uint4    v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = !MASKED || seen >> warp_values::key(s, i, lane) & 1 ? values.at(s, i) : uint4{0, 0, 0, 0};
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[part][i] = *(const uint32_t *)&t->w.p[part][g + i % 2 * 8][16 * s + 2 * c + i / 2 * 8];
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

/* The same where rows see different keys and some V that not all of them see is not a number: each row by itself. */
template <int DIM, typename V>
static __device__ inline void weigh_rows(float (&out)[8][4], const tile_shared<DIM> *t, const V &values, int per_row,
                                         int lane)
{
#pragma unroll 1
    for (int r = 0; r < t->rows.n; r++) {
        float one[8][4] = {};
        weigh_values<true>(one, t, values, t->rows.seen[r * per_row].bits, lane);
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                if ((lane / 4 + k / 2 * 8) / per_row == r) out[j][k] = one[j][k];
    }
}

template <int DIM>
static __device__ inline void store_unit(const tile_shared<DIM> *t, int n, const float (&out)[8][4], int warp, int lane)
{
    int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        int m = g + 8 * side;
        if (m >= n) continue;
        float *to = t->part[m];
        if (warp == 0 && c == 0) to[0] = t->w.max[m], to[1] = t->w.sum[m];
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

/* Keys and values of a tile in registers: as f16, or as codes. PART: as for stage_queries. */
template <int DIM> struct plain_tile {
    static constexpr bool PART = false, CODED = false;
    warp_keys<DIM>        keys;
    warp_values           values;

    __device__ inline void load(const tile_shared<DIM> *t, const cuda_attention_args &a, int, uint64_t seen, int warp,
                                int lane)
    {
        keys.load(t, a.c.pool, seen, warp, lane);
        if (64 * warp < DIM) values.load(t->keys.at, a.c.pool + a.c.plane_bytes + 128 * warp, seen, lane);
    }
    template <typename F> __device__ inline void with_keys(const cuda_attention_args &, int, const F &f) const
    {
        f(keys);
    }
    template <typename F> __device__ inline void with_values(const cuda_attention_args &, int, const F &f) const
    {
        f(values);
    }
};
template <int DIM> struct part_tile : plain_tile<DIM> {
    static constexpr bool PART = true;
};
/* K or V is f16, the other has scales: decoded when it is loaded. */
template <int DIM> struct mixed_tile : plain_tile<DIM> {
    static constexpr bool  CODED = true;
    __device__ inline void load(const tile_shared<DIM> *t, const cuda_attention_args &a, int kv_head, uint64_t seen,
                                int warp, int lane)
    {
        this->keys.load_coded(t, a, kv_head, seen, warp, lane);
        if (64 * warp < DIM) this->values.load_coded(t->keys.at, t->in_page, a, kv_head, 64 * warp, seen, lane);
    }
};
template <int DIM> struct coded_tile {
    static constexpr bool PART = false, CODED = true;
    coded_keys<DIM>       keys;
    coded_values          values;

    __device__ inline void load(const tile_shared<DIM> *t, const cuda_attention_args &a, int kv_head, uint64_t seen,
                                int warp, int lane)
    {
        values.first = 64 * warp;
        with_type(a.c.types.k, [&](auto tag) { load_keys(tag, t, a, kv_head, seen, warp, lane); });
        if (64 * warp < DIM) with_type(a.c.types.v, [&](auto tag) { load_values(tag, t, a, kv_head, seen, lane); });
    }
    template <cache_type T>
    __device__ inline void load_keys(type_tag<T>, const tile_shared<DIM> *t, const cuda_attention_args &a, int kv_head,
                                     uint64_t seen, int warp, int lane)
    {
        keys.template load<T>(t, a, kv_head, seen, warp, lane);
    }
    template <cache_type T>
    __device__ inline void load_values(type_tag<T>, const tile_shared<DIM> *t, const cuda_attention_args &a,
                                       int kv_head, uint64_t seen, int lane)
    {
        values.load<T>(t->keys.at, t->in_page, a, kv_head, seen, lane);
    }
    template <cache_type T> __device__ inline typed_keys<DIM, T> keys_of(type_tag<T>, int lane) const
    {
        return {keys, lane};
    }
    template <cache_type T> __device__ inline typed_values<T> values_of(type_tag<T>, int lane) const
    {
        return {values, lane};
    }
    template <typename F> __device__ inline void with_keys(const cuda_attention_args &a, int lane, const F &f) const
    {
        with_type(a.c.types.k, [&](auto tag) { f(keys_of(tag, lane)); });
    }
    template <typename F> __device__ inline void with_values(const cuda_attention_args &a, int lane, const F &f) const
    {
        with_type(a.c.types.v, [&](auto tag) { f(values_of(tag, lane)); });
    }
};

/* A single tile, whose keys and values are on their way to registers. */
template <int DIM, typename X>
static __device__ inline void do_tile(tile_shared<DIM> *t, const cuda_attention_args &a, int kv_head, int per_row,
                                      const seen_tile &seen, const X &x)
{
    int   warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n = t->rows.n * per_row;
    bool  weighs    = 64 * warp < DIM;
    float out[8][4] = {};
    stage_queries<DIM, QUERIES, head_cut<DIM>::THREADS, X::PART>(t->high, t->low, t->rows, a, kv_head, per_row);
    __syncthreads();
    x.with_keys(a, lane, [&](const auto &keys) { score_keys(t, keys, a.scale, warp, lane); });
    if (weighs && seen.any != seen.all)
        x.with_values(a, lane, [&](const auto &values) {
            if (has_odd_value(values, seen.any & ~seen.all, lane)) t->odd = 1;
        });
    __syncthreads();
    soften<QUERIES, head_cut<DIM>::WARPS>(
        &t->w, [=](int m) { return t->rows.seen[m]; }, n, true);
    __syncthreads();
    if (weighs)
        x.with_values(a, lane, [&](const auto &values) {
            if (t->odd)
                weigh_rows(out, t, values, per_row, lane);
            else
                weigh_values<false>(out, t, values, seen.any, lane);
        });
    store_unit(t, n, out, warp, lane);
}

/* Notes the page and the position in it of the tile's key i, for types with scales. */
template <int DIM>
static __device__ inline void find_coded(tile_shared<DIM> *t, const cuda_attention_args &a, const head_view &v,
                                         int tile, uint64_t seen, int i)
{
    int32_t p = tile * TILE_KEYS + i;
    if (!(seen >> i & 1)) return;
    int32_t slot  = p > v.last ? p : slot_of(a, v.row, p);
    t->keys.at[i] = (uint32_t)cache_page(a.c, a.lane[v.row], slot);
    t->in_page[i] = (uint8_t)(slot % KV_PAGE);
}

/* Grid: x over tiles, y over K/V heads, z over rows. In a step whose rows are settled, the first tile's rows and keys
 * are found before the kernel waits, and old keys asked for. The first of the rows that share a tile works on it. */
template <int DIM, typename X, bool SPARSE>
static __global__ void __launch_bounds__(head_cut<DIM>::THREADS) mma_tiles_kernel(cuda_attention_args a)
{
    DYNAMIC_SHARED(uint4, attention_shared);
    tile_shared<DIM> *t       = (tile_shared<DIM> *)attention_shared;
    int               kv_head = blockIdx.y, row = a.first_row + (int)blockIdx.z, per_row = a.n_heads / a.c.n_kv_heads;
    int               warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, i = threadIdx.x;
    bool              waits = true; /* still has to */
    X                 x;
    let_next_start();
    if (!a.settled || SPARSE) wait_for_previous(), waits = false;
    head_view  v = view_of(a, row, kv_head * per_row);
    group_rows group(a, row, QUERIES / per_row);
    for (int tile = v.first / TILE_KEYS + (int)blockIdx.x; tile * TILE_KEYS <= v.last; tile += gridDim.x) {
        unit     u    = {tile, 1, true};
        unsigned mine = 1u << group.mine, rows = group.touching(tile), pages = SPARSE ? pages_kept(a, v, tile) : 15;
        if (!(rows & mine) || SPARSE) rows = mine;
        if (rows & (mine - 1) || !pages) continue; /* the whole block */
        seen_tile seen(group, rows, tile);
        if (SPARSE) seen.keep(keys_of_pages(pages));
        __syncthreads(); /* the tile before this one is done with */
        int of = put_rows(&t->rows, group, rows, tile, per_row, SPARSE ? seen.any : ~(uint64_t)0);
        if (X::CODED && i < TILE_KEYS) find_coded(t, a, v, tile, seen.any, i);
        if (!X::CODED && i < TILE_KEYS) t->keys.at[i] = unit_keys::find(a, v, u, seen.any, i);
        if (i == 0) t->odd = 0;
        __syncthreads();
        if (of >= 0) t->part[i] = part_of(a, of, kv_head * per_row + i % per_row, tile);
        if (waits && !is_old(a, row, u)) wait_for_previous(), waits = false;
        x.load(t, a, kv_head, seen.any, warp, lane);
        if (waits) wait_for_previous(), waits = false;
        do_tile(t, a, kv_head, per_row, seen, x);
    }
    if (waits) wait_for_previous();
}

/* --- units join -----------------------------------------------------------------------------------*/

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
        if (k <= n) head[k] = *(const float2 *)(parts + (ptrdiff_t)(i - k) * stride);
    joint j = {0, 0, 0, 1};
#pragma unroll
    for (int k = SPAN_TILES - 1; k >= 0; k--) {
        if (k == n) j = {head[k].x, head[k].y, 0, 1};
        if (k < n) j = join_sums(j.max, j.sum, head[k].x, head[k].y);
    }
    bool last = list.is_span(i) || i + 1 == list.n || tile % SPAN_TILES == SPAN_TILES - 1;
    return {j.old, j.now, j.max, j.sum, last};
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

/* Parts arrive later than they are added: the next batch is asked for before this one is added, the first one before
 * its factors are known. */
struct part_batch {
    enum { SIZE = 16 };
    float v[SIZE];

    __device__ inline void load(int n, const float *at, int stride, int from)
    {
#pragma unroll
        for (int j = 0; j < SIZE; j++) v[j] = from + j < n ? at[(size_t)(from + j) * stride] : 0;
    }
    __device__ inline void add(merged *m, const merge_part *part, int n) const
    {
#pragma unroll
        for (int j = 0; j < SIZE; j++)
            if (j < n) m->add(part[j], v[j]);
    }
};

/* Stores a thread's element of a head, if there is one, after rotating it back where V is rotated; by all threads. */
static __device__ inline void put_head(const cuda_attention_args &a, int row, int head, int at, float y)
{
    int n = a.n_heads * a.c.row_dim, in = head * a.c.row_dim + at;
    if (a.turn_y) y = turn_back(y, a.c.head_dim);
    if (at >= a.c.row_dim) return;
    a.y[(size_t)row * n + in] = y;
    if (!a.to.high) return;
    int      n_tiles              = (int)layout_tiles(n);
    size_t   to                   = a.to.wide ? x_offset_wide(row, in - in % 2, a.to.tile_bytes) + in % 2 * 2
                                              : x_offset(row, in - in % 4, n_tiles) + in % 4 * 2;
    uint16_t high                 = to_f16(y);
    *(uint16_t *)(a.to.high + to) = high;
    *(uint16_t *)(a.to.low + to)  = to_f16(y - from_f16(high));
    if (in == 0) a.to.scale[row] = 1;
}

/* Returns the largest maximum of a thread's parts, except its first. */
static __device__ inline uint32_t max_of_rest(const part_list &list, const float *parts, int stride)
{
    uint32_t top = 0;
    for (int i = MERGE_THREADS + (int)threadIdx.x; i < list.n; i += MERGE_THREADS) {
        uint32_t o = order_of(parts[(size_t)i * stride]);
        top        = o > top ? o : top;
    }
    return top;
}

/* Finds the factors of parts i0 to i0 + MERGE_THREADS - 1, a thread each; max: of all parts, found with the first ones,
 * when it is the largest of a thread's others. */
static __device__ inline void find_parts(merge_part *to, const part_list &list, const float *parts, int stride, int i0,
                                         uint32_t *max)
{
    int        i = threadIdx.x, n = min_of(list.n - i0, MERGE_THREADS);
    merge_part p = {};
    if (i < n) p = find_part(list, parts, stride, i0 + i);
    if (i0 == 0) {
        uint32_t o = i < n ? order_of(parts[(size_t)i * stride]) : 0;
        *max       = block_max<MERGE_THREADS>(o > *max ? o : *max);
    } else {
        __syncthreads(); /* the parts before are added */
    }
    p.by  = expf(p.by - float_of(*max));
    to[i] = p;
    __syncthreads();
}

/* Grid: x over heads, y over rows, z over the elements of a head. Also writes the row as f16 at scale 1: no output is
 * larger than the largest V, which is f16. MANY: where rows may have many parts, loads are ahead of sums. */
template <bool MANY> static __global__ void __launch_bounds__(MERGE_THREADS) mma_merge_kernel(cuda_attention_args a)
{
    __shared__ merge_part part[MERGE_THREADS];
    int  row = a.first_row + (int)blockIdx.y, dim = a.c.head_dim, at = (int)(blockIdx.z * MERGE_THREADS + threadIdx.x);
    int  stride = 4 + dim;
    bool mine   = at < dim;
    let_next_start();
    if (!a.settled) wait_for_previous();
    head_view    v     = view_of(a, row, blockIdx.x);
    part_list    list  = parts_of(a, v);
    const float *parts = head_parts(a, row, blockIdx.x), *from = parts + 4 + (mine ? at : 0);
    part_batch   batch[2];
    merged       m = {};
    if (a.settled) wait_for_previous();
    batch[0].load(list.n, from, stride, 0);
    uint32_t max = max_of_rest(list, parts, stride);
    for (int i0 = 0; i0 < list.n; i0 += MERGE_THREADS) {
        int n = min_of(list.n - i0, MERGE_THREADS);
        find_parts(part, list, parts, stride, i0, &max);
        for (int j0 = 0; j0 < n; j0 += (1 + MANY) * part_batch::SIZE) {
            int next = i0 + j0 + part_batch::SIZE;
            if (MANY) batch[1].load(list.n, from, stride, next);
            batch[0].add(&m, part + j0, n - j0);
            batch[0].load(list.n, from, stride, next + MANY * part_batch::SIZE);
            if (MANY) batch[1].add(&m, part + j0 + part_batch::SIZE, n - j0 - part_batch::SIZE);
        }
    }
    put_head(a, row, (int)blockIdx.x, at, list.n && mine ? m.out / m.sum : 0);
}

/* --- units that a row with sparse attention keeps join --------------------------------------------*/

/* The parts of a span of tiles: which of them there are, and how they join. */
struct span_parts {
    merge_part part[SPAN_TILES];
    unsigned   there; /* a bit each */
};

/* Returns the tiles of a span that a row keeps some page of and that it sees. */
static __device__ inline unsigned tiles_kept(const cuda_attention_args &a, const head_view &v, int span)
{
    unsigned tiles = 0;
#pragma unroll
    for (int k = 0; k < SPAN_TILES; k++) {
        int tile = span * SPAN_TILES + k;
        if (tile * TILE_KEYS <= v.last && pages_kept(a, v, tile)) tiles |= 1u << k;
    }
    return tiles;
}

/* Joins the parts of a span, from left to right; by is the span's maximum. */
static __device__ inline void join_span(span_parts *to, const float *parts, int stride, int span, unsigned tiles)
{
    joint j   = {0, 0, 0, 1};
    to->there = tiles;
#pragma unroll
    for (int k = 0; k < SPAN_TILES; k++) {
        if (!(tiles >> k & 1)) continue;
        float2 head     = *(const float2 *)(parts + (size_t)(span * SPAN_TILES + k) * stride);
        bool   is_first = !(tiles & ((1u << k) - 1));
        j               = is_first ? joint{head.x, head.y, 0, 1} : join_sums(j.max, j.sum, head.x, head.y);
        to->part[k]     = {j.old, j.now, j.max, j.sum, tiles >> (k + 1) == 0};
    }
}

/* The parts of SPAN_TILES spans, on their way. */
struct span_batch {
    float v[SPAN_TILES][SPAN_TILES];

    __device__ inline void load(const span_parts *list, int n, const float *from, int stride, int span)
    {
#pragma unroll
        for (int i = 0; i < SPAN_TILES; i++)
#pragma unroll
            for (int k = 0; k < SPAN_TILES; k++)
                if (i < n && list[i].there >> k & 1) v[i][k] = from[(size_t)((span + i) * SPAN_TILES + k) * stride];
    }
    __device__ inline void add(merged *m, const span_parts *list, int n) const
    {
#pragma unroll
        for (int i = 0; i < SPAN_TILES; i++)
#pragma unroll
            for (int k = 0; k < SPAN_TILES; k++)
                if (i < n && list[i].there >> k & 1) m->add(list[i].part[k], v[i][k]);
    }
};

/* Grid: as mma_merge_kernel. Parts are stored by tile. */
static __global__ void __launch_bounds__(MERGE_THREADS) sparse_merge_kernel(cuda_attention_args a)
{
    __shared__ span_parts list[MERGE_THREADS];
    let_next_start();
    wait_for_previous();
    int  row = a.first_row + (int)blockIdx.y, dim = a.c.head_dim, at = (int)(blockIdx.z * MERGE_THREADS + threadIdx.x);
    int  stride        = 4 + dim;
    bool mine          = at < dim;
    head_view    v     = view_of(a, row, blockIdx.x);
    int          spans = v.last < v.first ? 0 : v.last / SPAN_KEYS + 1;
    const float *parts = head_parts(a, row, blockIdx.x), *from = parts + 4 + (mine ? at : 0);
    merged       m   = {};
    uint32_t     top = 0;
    for (int span = threadIdx.x; span < spans; span += MERGE_THREADS)
        for (unsigned t = tiles_kept(a, v, span); t; t &= t - 1) {
            uint32_t o = order_of(parts[(size_t)(span * SPAN_TILES + __popc((t & -t) - 1)) * stride]);
            top        = o > top ? o : top;
        }
    float max = float_of(block_max<MERGE_THREADS>(top));
    for (int s0 = 0; s0 < spans; s0 += MERGE_THREADS) {
        int         n = min_of(spans - s0, MERGE_THREADS), i = threadIdx.x;
        span_parts *one = &list[i];
        span_batch  batch[2];
        if (i < n) join_span(one, parts, stride, s0 + i, tiles_kept(a, v, s0 + i));
        for (int k = 0; k < SPAN_TILES && i < n; k++)
            if (one->there >> k & 1) one->part[k].by = expf(one->part[k].by - max);
        __syncthreads();
        batch[0].load(list, n, from, stride, s0);
        for (int j = 0; j < n; j += 2 * SPAN_TILES) {
            batch[1].load(list + j + SPAN_TILES, n - j - SPAN_TILES, from, stride, s0 + j + SPAN_TILES);
            batch[0].add(&m, list + j, n - j);
            batch[0].load(list + j + 2 * SPAN_TILES, n - j - 2 * SPAN_TILES, from, stride, s0 + j + 2 * SPAN_TILES);
            batch[1].add(&m, list + j + SPAN_TILES, n - j - SPAN_TILES);
        }
        __syncthreads(); /* the list is done with */
    }
    put_head(a, row, (int)blockIdx.x, at, spans && mine ? m.out / m.sum : 0);
}

/* --- launches -------------------------------------------------------------------------------------*/
template <int DIM, typename X, bool SPARSE>
static void launch_tiles_as(cudaStream_t s, const cuda_attention_args *a, dim3 grid)
{
    allow_shared(mma_tiles_kernel<DIM, X, SPARSE>, sizeof(tile_shared<DIM>));
    LAUNCH_EARLY((mma_tiles_kernel<DIM, X, SPARSE>), grid, head_cut<DIM>::THREADS, sizeof(tile_shared<DIM>), s, *a);
}
template <int DIM, typename X> static void launch_tiles_of(cudaStream_t s, const cuda_attention_args *a, dim3 grid)
{
    if (a->kept)
        launch_tiles_as<DIM, X, true>(s, a, grid);
    else
        launch_tiles_as<DIM, X, false>(s, a, grid);
}

static bool is_coded(const cuda_attention_args *a) { return a->c.scale_bytes || a->c.v_scale_bytes; }

template <int DIM> static void launch_tiles(cudaStream_t s, const cuda_attention_args *a, dim3 grid)
{
    if (a->c.scale_bytes && a->c.v_scale_bytes)
        launch_tiles_of<DIM, coded_tile<DIM>>(s, a, grid);
    else if (is_coded(a))
        launch_tiles_of<DIM, mixed_tile<DIM>>(s, a, grid);
    else if (a->c.row_dim < DIM)
        launch_tiles_as<DIM, part_tile<DIM>, false>(s, a, grid);
    else
        launch_tiles_of<DIM, plain_tile<DIM>>(s, a, grid);
}

static void launch_units(cudaStream_t s, const cuda_attention_args *a)
{
    dim3 grid((unsigned)min_int(a->n_parts, TILE_BLOCKS), (unsigned)a->c.n_kv_heads,
              (unsigned)(a->end_row - a->first_row));
    if (a->by_warp) {
        cuda_attention_warps(s, a);
        return;
    }
    if (a->by_chain) {
        cuda_attention_chain(s, a);
        return;
    }
    if (a->few_tiles < a->n_tiles) {
        cuda_attention_spans(s, a);
        return;
    }
    switch (a->c.head_dim) {
    case 64: launch_tiles<64>(s, a, grid); break;
    case 128: launch_tiles<128>(s, a, grid); break;
    case 256: launch_tiles<256>(s, a, grid); break;
    default: launch_tiles<512>(s, a, grid); break;
    }
}

/* Contexts that are at most so long, because of a window or of the pages that a lane may have, go tile by tile, except
 * when there are many rows, but not a prompt, and the kernel of single warps cannot do them; so do rows whose context
 * is not long at the moment, and rows that have a part of a head. */
enum { SHORT_TILES = 32, MANY_ROWS = 17, STEP_ROWS = 64, WARP_ROWS_MIN = 4, CHAIN_ROWS_MIN = 12 };

extern "C" bool cuda_attention_asks_lanes(const kv_view *c, int n_rows, int n_tiles)
{
    return c->head_dim == 512 && c->row_dim == 512 && c->types.k == CACHE_F16 && c->types.v == CACHE_F16 &&
           n_rows >= CHAIN_ROWS_MIN && n_rows <= STEP_ROWS && n_tiles > SHORT_TILES && has_wgmma() &&
           shared_limit() >= 227 << 10;
}

/* Chooses the kernel for chains and trees, if it suits the rows. A launch has more rows than a block of the kernel for
 * spans works for, half a group, and whole groups if possible. */
static void plan_chain(cuda_attention_args *a)
{
    int  rows   = cuda_attention_chain_rows(a);
    bool can    = cuda_attention_asks_lanes(&a->c, a->n_rows, a->n_tiles);
    a->by_chain = can && a->few_lanes && !a->kept && a->chunk > rows / 2;
    if (a->by_chain && a->chunk > rows && a->chunk < a->n_rows) a->chunk -= a->chunk % rows;
}

extern "C" bool cuda_attention_plan(cuda_attention_args *a, size_t bytes)
{
    int D = a->c.head_dim, per_row = a->n_heads / a->c.n_kv_heads;
    if (a->c.types.k == CACHE_F32 || a->c.types.v == CACHE_F32 || (D != 64 && D != 128 && D != 256 && D != 512) ||
        per_row > QUERIES)
        return false;
    bool is_short = a->n_tiles <= SHORT_TILES, many = a->n_rows >= MANY_ROWS && a->n_rows <= STEP_ROWS;
    bool mixed   = is_coded(a) && !(a->c.scale_bytes && a->c.v_scale_bytes);
    bool part    = a->c.row_dim < D;
    bool spans   = (!is_short || (many && !is_coded(a))) && !mixed && !part && !a->kept && cuda_attention_has_spans();
    int  parts   = a->n_tiles / SPAN_TILES + SHORT_TILES + 2 * SPAN_TILES + a->n_rows / TILE_KEYS;
    a->turn_q    = a->c.scale_bytes && !a->kept && a->n_rows <= STEP_ROWS;
    a->turn_y    = a->c.v_scale_bytes;
    a->few_tiles = !spans ? a->n_tiles : is_short ? 0 : (int)SHORT_TILES;
    a->n_parts   = spans ? min_int(parts, a->n_tiles) : a->n_tiles;
    size_t row   = (size_t)a->n_heads * (size_t)a->n_parts * (size_t)(4 + D) * sizeof(float);
    a->chunk     = (int)min_size(bytes / row, (size_t)(a->kept ? a->kept_rows : a->n_rows));
    a->by_warp = is_short && !is_coded(a) && !part && !a->kept && a->n_rows >= WARP_ROWS_MIN && a->chunk == a->n_rows &&
                 cuda_attention_has_warps(a);
    if (a->by_warp) a->few_tiles = a->n_tiles;
    plan_chain(a);
    return a->chunk > 0;
}

/* Launches chunks of the rows from first_row to end_row, and merges their parts. */
static void launch_rows(cudaStream_t s, cuda_attention_args a, int first_row, int end_row)
{
    for (a.first_row = first_row; a.first_row < end_row; a.first_row += a.chunk) {
        a.end_row = min_int(a.first_row + a.chunk, end_row);
        dim3 merge((unsigned)a.n_heads, (unsigned)(a.end_row - a.first_row),
                   blocks_for((size_t)a.c.head_dim, MERGE_THREADS));
        if (a.by_span) {
            cuda_attention_many(s, &a);
            continue;
        }
        if (a.kept) cuda_choose_pages(s, &a);
        launch_units(s, &a);
        if (a.kept)
            LAUNCH_EARLY(sparse_merge_kernel, merge, MERGE_THREADS, 0, s, a);
        else if (a.n_parts > MERGE_THREADS / 2)
            LAUNCH_EARLY(mma_merge_kernel<true>, merge, MERGE_THREADS, 0, s, a);
        else
            LAUNCH_EARLY(mma_merge_kernel<false>, merge, MERGE_THREADS, 0, s, a);
    }
}

/* Returns the maximum of spans that a row of the long chains sees some of. */
static int chain_spans(const cuda_attention_args *a)
{
    int all  = (a->chain_end + SPAN_KEYS - 1) / SPAN_KEYS;
    int keys = a->window - 1 + (a->chain_sees ? a->chain_sees : a->n_rows);
    return a->window > 0 ? min_int(all, (keys + 2 * SPAN_KEYS - 2) / SPAN_KEYS) : all;
}

/* Plans attention of the rows of long chains, in chunks whose blocks fill the multiprocessors, and returns whether
 * it is possible. */
static bool plan_many(cuda_attention_args *a, size_t bytes)
{
    enum { FEW_ROWS = 64 }; /* so few are not worth it */
    int n = a->chain_to - a->chain_from, rows = cuda_attention_many_rows(a), full = multiprocessors() / a->c.n_kv_heads;
    if (n < FEW_ROWS || is_coded(a) || a->kept || !cuda_attention_has_many(a)) return false;
    a->by_span = true;
    a->n_parts = chain_spans(a);
    int blocks = (n + rows - 1) / rows, fit = (int)min_size(bytes / cuda_attention_many_bytes(a), (size_t)blocks);
    if (fit < blocks && full > 0 && fit > full) fit = fit / full * full;
    a->chunk = fit * rows;
    return fit > 0;
}

extern "C" cudaError_t cuda_attention_mma(cudaStream_t s, const cuda_attention_args *a, size_t bytes)
{
    cuda_attention_args many = *a;
    int                 from = 0, to = 0;
    if (plan_many(&many, bytes)) from = a->chain_from, to = a->chain_to;
    launch_rows(s, *a, 0, from);
    if (to > from) launch_rows(s, many, from, to);
    launch_rows(s, *a, to, a->n_rows);
    return cudaGetLastError();
}
