/* Attention on tensor cores for prompts: a block works for up to 128 queries, the heads of a K/V head of many rows that
 * follow each other in a lane, and shares each tile of K and V among them. The arithmetic is that of attention_mma.cu,
 * to the bit. A part is a span of 256 positions, also where a row sees some of it only; the merge is the same.
 *
 * A warp has 16 queries; its scores, weights and outputs stay in registers. Heads of 512 take two warps for the same
 * queries: each makes the scores of every other 16 keys, and half of the elements of the outputs.
 *
 * A tile comes in four pieces: two of K, 32 keys each, and two of V, half of the elements of all 64 keys each. While
 * one is used, the next ones are on their way to the other places. Keys that no row sees are zero. */
#include "ops/cuda/attention_mma.cuh"

enum { MANY_WARPS = 8, MANY_THREADS = MANY_WARPS * WARP, PIECE_KEYS = 32, TILE_PIECES = 4 };

template <int DIM> struct many_cut {
    static constexpr int HALVES    = DIM == 512 ? 2 : 1; /* warps for the same queries */
    static constexpr int QUERIES   = 16 * MANY_WARPS / HALVES;
    static constexpr int ELEMS     = DIM / HALVES;                    /* elements of the outputs of a warp, */
    static constexpr int CHUNK     = ELEMS / 2 < 64 ? ELEMS / 2 : 64; /* and how many it works on at a time */
    static constexpr int KEY_TILES = PIECE_KEYS / 8 / HALVES;         /* groups of 8 keys of a piece per warp */
    /* Bytes from row to row in shared memory, without bank conflicts. */
    static constexpr int Q_STRIDE = 2 * DIM + 64, V_STRIDE = DIM + 16;
    static constexpr int PLACE =
        PIECE_KEYS * Q_STRIDE > TILE_KEYS *V_STRIDE ? PIECE_KEYS *Q_STRIDE : TILE_KEYS *V_STRIDE;
    static constexpr int PLACES = DIM == 512 ? 2 : 4;
};

template <int DIM> struct many_shared {
    typedef many_cut<DIM> C;
    alignas(16) char q[2][C::QUERIES][C::Q_STRIDE]; /* high, low */
    alignas(16) char piece[C::PLACES][C::PLACE];
    alignas(16) float s[C::HALVES == 2 ? C::QUERIES : 1][TILE_KEYS + 4];
    int32_t  first[C::QUERIES], last[C::QUERIES], lane[C::QUERIES]; /* by row of the block */
    char    *page[2][TILE_KEYS / KV_PAGE];                          /* K of the pages of a tile, by turns */
    uint64_t gate[C::PLACES];
    int      odd;
};

/* The rows of a block that share keys, [from, to) of those it has, and what they see: some of them, all of them. */
struct many_group {
    int     from, to;
    int32_t lane, first, last, all_first, all_last;
};

/* Tiles of a group that a block works through: spans z, z + step, ... of those that the group sees. */
struct many_walk {
    int first, last; /* tiles */
    int step;

    __device__ inline int start(int z) const { return max_of_two((first / SPAN_TILES + z) * SPAN_TILES, first); }
    __device__ inline int after(int tile) const
    {
        if (tile % SPAN_TILES < SPAN_TILES - 1) return tile + 1;
        return tile + 1 + (step - 1) * SPAN_TILES;
    }
    static __device__ inline int max_of_two(int a, int b) { return a > b ? a : b; }
    __device__ inline bool       has(int tile) const { return tile <= last; }
};

/* --- pieces on their way --------------------------------------------------------------------------*/

/* Finds the pages of a tile; by the first threads. */
template <int DIM>
static __device__ inline void find_pages(many_shared<DIM> *t, const cuda_attention_args &a, const many_group &g,
                                         int kv_head, int tile, int turn)
{
    int     i = threadIdx.x;
    int32_t p = tile * TILE_KEYS + i * KV_PAGE;
    if (i < TILE_KEYS / KV_PAGE && p <= g.last && p + KV_PAGE > g.first)
        t->page[turn][i] = cache_k(a.c, a.layer, kv_head, g.lane, p);
}

/* Asks for piece number i of a tile: K of keys 32 i on, or V. Heads of 512: a quarter of V for each half of it. */
template <int DIM>
static __device__ inline void ask_piece(many_shared<DIM> *t, const cuda_attention_args &a, const many_group &g,
                                        int tile, int turn, int i, int place)
{
    typedef many_cut<DIM> C;
    constexpr int         K_PARTS = DIM / 8, V_PARTS = DIM / 16, ROUNDS = PIECE_KEYS * K_PARTS / MANY_THREADS;
    char                 *to = t->piece[place];
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        int  n    = r * MANY_THREADS + (int)threadIdx.x, key, from, at;
        bool is_v = i >= 2;
        if (is_v) {
            int part = n % V_PARTS, half = part / (V_PARTS / C::HALVES), in = part % (V_PARTS / C::HALVES);
            key  = n / V_PARTS;
            at   = key * C::V_STRIDE + part * 16;
            from = (half * C::ELEMS + (i - 2) * (C::ELEMS / 2)) * 2 + in * 16;
        } else {
            key  = n / K_PARTS;
            at   = key * C::Q_STRIDE + n % K_PARTS * 16;
            from = n % K_PARTS * 16;
            key += i * PIECE_KEYS;
        }
        int32_t     p    = tile * TILE_KEYS + key;
        bool        seen = p >= g.first && p <= g.last;
        const char *page = seen ? t->page[turn][key / KV_PAGE] + (is_v ? a.c.plane_bytes : 0) : a.c.pool;
        copy_piece(&t->gate[place], to + at, seen ? page + key % KV_PAGE * (2 * DIM) + from : page, seen);
    }
}

/* --- scores ---------------------------------------------------------------------------------------*/

/* Scores of a warp's queries with its keys of the piece at `keys`: s[n] of keys 8 n on, counted from the warp's
 * first. */
template <int DIM>
static __device__ inline void score_piece(float (&s)[many_cut<DIM>::KEY_TILES][4], const many_shared<DIM> *t,
                                          const char *keys, int query, int half, float scale, int lane)
{
    typedef many_cut<DIM> C;
    int                   g = lane / 4, c = lane % 4;
    float                 acc[C::KEY_TILES][4] = {}, rest[C::KEY_TILES][4] = {};
#pragma unroll 2
    for (int j = 0; j < DIM / 32; j++) {
        int      at = 64 * j + 16 * c;
        uint4    h0 = *(const uint4 *)&t->q[0][query + g][at], h1 = *(const uint4 *)&t->q[0][query + g + 8][at];
        uint4    l0 = *(const uint4 *)&t->q[1][query + g][at], l1 = *(const uint4 *)&t->q[1][query + g + 8][at];
        uint32_t high[2][4] = {{h0.x, h1.x, h0.y, h1.y}, {h0.z, h1.z, h0.w, h1.w}};
        uint32_t low[2][4]  = {{l0.x, l1.x, l0.y, l1.y}, {l0.z, l1.z, l0.w, l1.w}};
        uint4    k[C::KEY_TILES];
#pragma unroll
        for (int n = 0; n < C::KEY_TILES; n++)
            k[n] = *(const uint4 *)(keys + ((half * C::KEY_TILES + n) * 8 + g) * C::Q_STRIDE + at);
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int n = 0; n < C::KEY_TILES; n++) {
                mma_16x8x16(acc[n], high[step], step ? k[n].z : k[n].x, step ? k[n].w : k[n].y);
                mma_16x8x16(rest[n], low[step], step ? k[n].z : k[n].x, step ? k[n].w : k[n].y);
            }
    }
#pragma unroll
    for (int n = 0; n < C::KEY_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = (acc[n][i] + rest[n][i]) * scale;
}

/* --- weights --------------------------------------------------------------------------------------*/

/* One of a thread's two queries: what its row sees, and maximum and sum of the span so far. */
struct many_query {
    int32_t first, last; /* last < first: nothing */
    float   max, sum;
    bool    began; /* the span has a tile that the row sees */
    float   old, now;
};

/* Turns the scores of a tile, keys 8 n + 2 c and 8 n + 2 c + 1, into weights of query `side`. Returns whether its row
 * sees some of the tile. */
static __device__ inline bool soften_query(float (&s)[TILE_KEYS / 8][4], many_query *q, int side, int tile, bool whole,
                                           int lane)
{
    int   from = q->first - tile * TILE_KEYS, to = q->last - tile * TILE_KEYS, c = lane % 4;
    float max = -INFINITY;
    if (!whole)
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                int key = 8 * n + 2 * c + k;
                if (key < from || key > to) s[n][2 * side + k] = -INFINITY;
            }
#pragma unroll
    for (int n = 0; n < TILE_KEYS / 8; n++) max = fmaxf(max, fmaxf(s[n][2 * side], s[n][2 * side + 1]));
    max        = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 1));
    max        = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 2));
    bool  sees = from < TILE_KEYS && to >= 0 && from <= to;
    float part[TILE_KEYS / 8][2];
#pragma unroll
    for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int  key   = 8 * n + 2 * c + k;
            bool has   = whole || (key >= from && key <= to);
            part[n][k] = s[n][2 * side + k] = has ? expf(s[n][2 * side + k] - max) : 0;
        }
        /* By halves: keys i and i + 32, then 16, 8, 4, 2, 1 apart. */
#pragma unroll
    for (int apart = TILE_KEYS / 16; apart > 0; apart /= 2)
#pragma unroll
        for (int n = 0; n < apart; n++)
#pragma unroll
            for (int k = 0; k < 2; k++) part[n][k] += part[n + apart][k];
#pragma unroll
    for (int k = 0; k < 2; k++) part[0][k] += __shfl_xor_sync(ALL_LANES, part[0][k], 2);
#pragma unroll
    for (int k = 0; k < 2; k++) part[0][k] += __shfl_xor_sync(ALL_LANES, part[0][k], 1);
    float sum = part[0][0] + part[0][1];
    if (!sees) {
        q->old = 1, q->now = 0;
    } else if (!q->began) {
        q->max = max, q->sum = sum, q->old = 0, q->now = 1;
        q->began = true;
    } else {
        joint to_all = join_sums(q->max, q->sum, max, sum);
        q->max = to_all.max, q->sum = to_all.sum, q->old = to_all.old, q->now = to_all.now;
    }
    return sees;
}

/* Weights of a warp's queries for a tile as operand A, high and low. */
struct many_weights {
    uint32_t p[2][TILE_KEYS / 16][4];

    __device__ inline void take(const float (&s)[TILE_KEYS / 8][4])
    {
#pragma unroll
        for (int k = 0; k < TILE_KEYS / 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float x = s[2 * k + i / 2][i % 2 * 2], y = s[2 * k + i / 2][i % 2 * 2 + 1];
                p[0][k][i] = h2_from_f32(x, y);
                p[1][k][i] =
                    h2_from_f32(x - from_f16((uint16_t)p[0][k][i]), y - from_f16((uint16_t)(p[0][k][i] >> 16)));
            }
    }
};

/* --- outputs --------------------------------------------------------------------------------------*/

/* Computes out: CHUNK elements of V from byte `at` of the piece on, by the weights. MASKED: V of keys that are not in
 * `seen` counts as zero. */
template <int DIM, bool MASKED>
static __device__ inline void weigh_chunk(float (&out)[many_cut<DIM>::CHUNK / 8][4], const many_weights &w,
                                          const char *values, int at, uint64_t seen, int lane)
{
    typedef many_cut<DIM> C;
    int                   i = lane / 8, r = lane % 8, c = lane % 4;
#pragma unroll
    for (int k = 0; k < TILE_KEYS / 16; k++) {
        const char *row = values + (16 * k + i % 2 * 8 + r) * C::V_STRIDE + at + i / 2 * 16;
#pragma unroll
        for (int n = 0; n < C::CHUNK / 16; n++) {
            uint32_t v[4]; /* elements 16 n on, keys 0 and 8; elements 16 n + 8 on, the same */
            load_matrices_transposed(v, row + n * 32);
            if (MASKED) {
                uint32_t bits = (uint32_t)(seen >> (16 * k));
                uint32_t low  = (bits >> (2 * c) & 1 ? 0xffffu : 0) | (bits >> (2 * c + 1) & 1 ? 0xffff0000u : 0);
                uint32_t high = (bits >> (2 * c + 8) & 1 ? 0xffffu : 0) | (bits >> (2 * c + 9) & 1 ? 0xffff0000u : 0);
                v[0] &= low, v[1] &= high, v[2] &= low, v[3] &= high;
            }
#pragma unroll
            for (int part = 0; part < 2; part++) {
                mma_16x8x16(out[2 * n], w.p[part][k], v[0], v[1]);
                mma_16x8x16(out[2 * n + 1], w.p[part][k], v[2], v[3]);
            }
        }
    }
}

/* The same where rows see different keys and a V that only some of them see is not a number: each row by itself. */
template <int DIM>
static __device__ inline void weigh_rows(float (&out)[many_cut<DIM>::CHUNK / 8][4], const many_weights &w,
                                         const char *values, int at, int tile, const int32_t *first,
                                         const int32_t *last, int query, int per_row, int lane)
{
#pragma unroll 1
    for (int row = query / per_row; row <= (query + 15) / per_row; row++) {
        float    one[many_cut<DIM>::CHUNK / 8][4] = {};
        int      from = first[row] - tile * TILE_KEYS, to = last[row] - tile * TILE_KEYS;
        uint64_t seen = 0;
        for (int key = 0; key < TILE_KEYS; key++) seen |= (uint64_t)(key >= from && key <= to) << key;
        weigh_chunk<DIM, true>(one, w, values, at, seen, lane);
#pragma unroll
        for (int j = 0; j < many_cut<DIM>::CHUNK / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if ((query + lane / 4 + i / 2 * 8) / per_row == row) out[j][i] = one[j][i];
    }
}

/* Sets t->odd if V of a key in the piece that not all rows see has an infinity or a NaN; a barrier follows. */
template <int DIM>
static __device__ inline void find_odd(many_shared<DIM> *t, const char *values, const many_group &g, int tile)
{
    typedef many_cut<DIM> C;
    constexpr int         PARTS = DIM / 16;
    for (int i = threadIdx.x; i < TILE_KEYS * PARTS; i += MANY_THREADS) {
        int32_t p = tile * TILE_KEYS + i / PARTS;
        if (p >= g.all_first && p <= g.all_last) continue;
        uint4 x = *(const uint4 *)(values + i / PARTS * C::V_STRIDE + i % PARTS * 16);
        if (is_odd(x.x) || is_odd(x.y) || is_odd(x.z) || is_odd(x.w)) t->odd = 1;
    }
}

/* --- a block --------------------------------------------------------------------------------------*/

/* Splits the block's queries into two f16 each. Queries past the last row are zero. */
template <int DIM>
static __device__ inline void stage_many(many_shared<DIM> *t, const cuda_attention_args &a, int first_row, int n_rows,
                                         int kv_head, int per_row)
{
    typedef many_cut<DIM> C;
#pragma unroll 4
    for (int i = threadIdx.x; i < C::QUERIES * (DIM / 4); i += MANY_THREADS) {
        int    m = i / (DIM / 4), d = i % (DIM / 4) * 4;
        float4 x = make_float4(0, 0, 0, 0);
        if (m / per_row < n_rows)
            x = *(const float4 *)(a.q +
                                  ((size_t)(first_row + m / per_row) * a.n_heads + kv_head * per_row + m % per_row) *
                                      DIM +
                                  d);
        uint2 up = {h2_from_f32(x.x, x.y), h2_from_f32(x.z, x.w)}, rest;
        rest.x   = h2_from_f32(x.x - from_f16((uint16_t)up.x), x.y - from_f16((uint16_t)(up.x >> 16)));
        rest.y   = h2_from_f32(x.z - from_f16((uint16_t)up.y), x.w - from_f16((uint16_t)(up.y >> 16)));
        *(uint2 *)&t->q[0][m][2 * d] = up;
        *(uint2 *)&t->q[1][m][2 * d] = rest;
    }
}

/* Returns the rows from `from` on that are of one lane. */
template <int DIM> static __device__ inline many_group group_at(const many_shared<DIM> *t, int from, int n_rows)
{
    many_group g = {from, from, t->lane[from], t->first[from], t->last[from], t->first[from], t->last[from]};
    for (; g.to < n_rows && t->lane[g.to] == g.lane; g.to++) {
        int32_t first = t->first[g.to], last = t->last[g.to];
        g.first     = first < g.first ? first : g.first;
        g.all_first = first > g.all_first ? first : g.all_first;
        g.last      = last > g.last ? last : g.last;
        g.all_last  = last < g.all_last ? last : g.all_last;
    }
    return g;
}

/* A thread's two queries and its outputs of the span. */
template <int DIM> struct many_state {
    many_query q[2];
    float      acc[many_cut<DIM>::ELEMS / 8][4];
};

/* Stores a span of the thread's queries. */
template <int DIM>
static __device__ inline void store_span(const many_state<DIM> &st, const cuda_attention_args &a, int span,
                                         int first_row, int kv_head, int per_row, int query, int half, int lane)
{
#pragma unroll
    for (int side = 0; side < 2; side++) {
        int m = query + lane / 4 + 8 * side, row = first_row + m / per_row;
        if (!st.q[side].began) continue;
        float *to = head_parts(a, row, kv_head * per_row + m % per_row) +
                    (size_t)(span - st.q[side].first / SPAN_KEYS) * (4 + DIM);
        if (half == 0 && lane % 4 == 0) *(float2 *)to = float2{st.q[side].max, st.q[side].sum};
        to += 4 + half * many_cut<DIM>::ELEMS + 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < many_cut<DIM>::ELEMS / 8; n++)
            *(float2 *)(to + 8 * n) = float2{st.acc[n][2 * side], st.acc[n][2 * side + 1]};
    }
}

template <int DIM> static __device__ inline void begin_span(many_state<DIM> &st)
{
    st.q[0].began = st.q[1].began = false;
#pragma unroll
    for (int n = 0; n < many_cut<DIM>::ELEMS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) st.acc[n][i] = 0;
}

/* Adds the outputs of the piece of V at `values`, elements from element `at` of the warp's on. */
template <int DIM>
static __device__ inline void add_piece(many_state<DIM> &st, const many_weights &w, const many_shared<DIM> *t,
                                        const char *values, int piece, int tile, bool odd, int query, int per_row,
                                        int half, const bool (&sees)[2], int lane)
{
    typedef many_cut<DIM> C;
    constexpr int         CHUNKS = C::ELEMS / 2 / C::CHUNK;
#pragma unroll
    for (int p = 0; p < 2; p++) {
        if (p != piece) continue; /* registers need constants as indices */
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            float out[C::CHUNK / 8][4] = {};
            int   at                   = (half * (C::ELEMS / 2) + k * C::CHUNK) * 2;
            if (odd)
                weigh_rows<DIM>(out, w, values, at, tile, t->first, t->last, query, per_row, lane);
            else
                weigh_chunk<DIM, false>(out, w, values, at, 0, lane);
#pragma unroll
            for (int n = 0; n < C::CHUNK / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float &to = st.acc[(p * CHUNKS + k) * (C::CHUNK / 8) + n][i];
                    float  x  = fmaf(out[n][i], st.q[i / 2].now, to * st.q[i / 2].old);
                    to        = sees[i / 2] ? x : to;
                }
        }
    }
}

/* Works through the tiles of a group. */
template <int DIM>
static __device__ inline void do_group(many_shared<DIM> *t, const cuda_attention_args &a, const many_group &g,
                                       int first_row, int kv_head, int per_row)
{
    typedef many_cut<DIM> C;
    int                   warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, half = warp % C::HALVES;
    int                   query = warp / C::HALVES * 16;
    many_walk             walk  = {g.first / TILE_KEYS, g.last / TILE_KEYS, (int)gridDim.z};
    many_state<DIM>       st;
    if (g.last < g.first) return;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        int row    = (query + lane / 4 + 8 * side) / per_row;
        st.q[side] = {1, 0, 0, 0, false, 0, 0};
        if (row >= g.from && row < g.to) st.q[side].first = t->first[row], st.q[side].last = t->last[row];
    }
    begin_span(st);
    int tile = walk.start(blockIdx.z), turn = 0;
    if (!walk.has(tile)) return;
    /* The next piece to ask for. */
    int  asked_tile = tile, asked_turn = 0, asked = 0, place = 0, asked_place = 0;
    auto ask = [&]() {
        if (walk.has(asked_tile)) ask_piece<DIM>(t, a, g, asked_tile, asked_turn, asked, asked_place);
        copy_commit();
        asked_place = asked_place + 1 == C::PLACES ? 0 : asked_place + 1;
        if (++asked == TILE_PIECES) asked = 0, asked_turn = 1 - asked_turn, asked_tile = walk.after(asked_tile);
    };
    __syncthreads(); /* pages, pieces and `odd` of the group before are done with */
    find_pages(t, a, g, kv_head, tile, 0);
    if (walk.has(walk.after(tile))) find_pages(t, a, g, kv_head, walk.after(tile), 1);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < C::PLACES - 1; i++) ask();
#pragma unroll 1
    for (; walk.has(tile); tile = walk.after(tile), turn = 1 - turn) {
        int32_t      p0    = tile * TILE_KEYS;
        bool         whole = p0 >= g.all_first && p0 + TILE_KEYS - 1 <= g.all_last, odd = false;
        float        s[TILE_KEYS / 8][4];
        many_weights w;
        bool         sees[2];
#pragma unroll
        for (int piece = 0; piece < 2; piece++) {
            float some[C::KEY_TILES][4];
            copy_wait<C::PLACES - 2>(&t->gate[place]);
            if (piece == 0) t->odd = 0;
            ask();
            score_piece<DIM>(some, t, t->piece[place], query, half, a.scale, lane);
            place = place + 1 == C::PLACES ? 0 : place + 1;
#pragma unroll
            for (int n = 0; n < C::KEY_TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if constexpr (C::HALVES == 1)
                        s[piece * C::KEY_TILES + n][i] = some[n][i];
                    else
                        t->s[query + lane / 4 + i / 2 * 8]
                            [piece * PIECE_KEYS + (half * C::KEY_TILES + n) * 8 + lane % 4 * 2 + i % 2] = some[n][i];
                }
        }
#pragma unroll
        for (int piece = 0; piece < 2; piece++) {
            copy_wait<C::PLACES - 2>(&t->gate[place]);
            if (piece == 0) {
                if constexpr (C::HALVES == 2) {
#pragma unroll
                    for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            s[n][i] = t->s[query + lane / 4 + i / 2 * 8][8 * n + lane % 4 * 2 + i % 2];
                }
                ask();
                sees[0] = soften_query(s, &st.q[0], 0, tile, whole, lane);
                sees[1] = soften_query(s, &st.q[1], 1, tile, whole, lane);
                w.take(s);
            } else {
                ask();
            }
            if (!whole) { /* the whole block */
                find_odd<DIM>(t, t->piece[place], g, tile);
                __syncthreads();
                odd = t->odd;
            }
            add_piece<DIM>(st, w, t, t->piece[place], piece, tile, odd, query, per_row, half, sees, lane);
            place = place + 1 == C::PLACES ? 0 : place + 1;
        }
        __syncthreads();
        int next = walk.after(walk.after(tile)); /* it takes the place of this tile's pages, which are read no more */
        if (walk.has(next)) find_pages(t, a, g, kv_head, next, turn);
        if (!walk.has(walk.after(tile)) || walk.after(tile) / SPAN_TILES != tile / SPAN_TILES) {
            store_span<DIM>(st, a, tile / SPAN_TILES, first_row, kv_head, per_row, query, half, lane);
            begin_span(st);
        }
    }
}

/* Grid: x over K/V heads, y over rows, the last ones first, which see most; z over spans. */
template <int DIM> static __global__ void __launch_bounds__(MANY_THREADS, 1) many_kernel(cuda_attention_args a)
{
    typedef many_cut<DIM> C;
    DYNAMIC_SHARED(uint4, many_memory);
    auto *t       = (many_shared<DIM> *)many_memory;
    int   kv_head = blockIdx.x, per_row = a.n_heads / a.c.n_kv_heads, limit = C::QUERIES / per_row;
    int   first_row = a.first_row + (int)(gridDim.y - 1 - blockIdx.y) * limit,
        n_rows      = min_of(limit, a.end_row - first_row);
    wait_for_previous();
    let_next_start();
    for (int i = threadIdx.x; i < n_rows; i += MANY_THREADS) {
        head_view v = view_of(a, first_row + i, kv_head * per_row);
        t->first[i] = v.first, t->last[i] = v.last, t->lane[i] = a.lane[first_row + i];
    }
    stage_many<DIM>(t, a, first_row, n_rows, kv_head, per_row);
    __syncthreads();
    for (int from = 0; from < n_rows;) {
        many_group g = group_at(t, from, n_rows);
        do_group<DIM>(t, a, g, first_row, kv_head, per_row);
        from = g.to;
    }
}

/* --- launches -------------------------------------------------------------------------------------*/

template <int DIM> static void launch_many(cudaStream_t s, const cuda_attention_args *a)
{
    enum { ENOUGH = 264, MOST_SPLITS = 16 };
    int rows   = many_cut<DIM>::QUERIES / (a->n_heads / a->c.n_kv_heads);
    int blocks = (a->end_row - a->first_row + rows - 1) / rows, splits = 1;
    while (splits < MOST_SPLITS && 2 * splits <= a->n_parts && splits * blocks * a->c.n_kv_heads < ENOUGH) splits *= 2;
    static_assert(sizeof(many_shared<DIM>) <= 227 << 10, "a block has 227 KB on Hopper");
    allow_shared(many_kernel<DIM>, sizeof(many_shared<DIM>));
    LAUNCH_EARLY(many_kernel<DIM>, dim3((unsigned)a->c.n_kv_heads, (unsigned)blocks, (unsigned)splits), MANY_THREADS,
                 sizeof(many_shared<DIM>), s, *a);
}

int cuda_attention_many_rows(const cuda_attention_args *a)
{
    return (a->c.head_dim == 512 ? many_cut<512>::QUERIES : many_cut<256>::QUERIES) / (a->n_heads / a->c.n_kv_heads);
}

void cuda_attention_many(cudaStream_t s, const cuda_attention_args *a)
{
    switch (a->c.head_dim) {
    case 64: launch_many<64>(s, a); break;
    case 128: launch_many<128>(s, a); break;
    case 256: launch_many<256>(s, a); break;
    default: launch_many<512>(s, a); break;
    }
}
