/* Attention for prompts on wgmma: a block works for up to 128 queries, the heads of a K/V head of many rows that
 * follow each other in a lane, and shares each tile of K and V among them. The arithmetic is that of
 * attention_mma.cu, to the bit. A part is a span of 256 positions, also where a row sees some of it only;
 * many_merge_kernel joins them.
 *
 * Two warpgroups compute, a third one copies. A warpgroup has 64 queries; scores, weights and the outputs of a span
 * stay in registers. Heads of 512 take both warpgroups for the same 64 queries: one multiplies the high halves of
 * the queries, one the low ones, each makes the weights of every other 32 keys, and half of the elements of the
 * outputs.
 *
 * K and V come in pieces, through a ring of places in shared memory: 128 elements of the 64 keys of a tile. Heads of
 * 512: a piece of V has 64 elements for each warpgroup. Keys that no row sees are zero. A piece is blocks of 64
 * elements as wgmma reads them (wgmma_matrix). K and queries are stored in the order in which attention_mma.cu
 * multiplies: of each 32 elements, those with the numbers 0 to 3 mod 8 form a step, then the others.
 *
 * Rows may have a part of a stored head (kv_class.row_dim), at most USED elements: the steps of the others are left
 * out, which add zero, and their outputs are not kept. */
#include "ops/cuda/attention_wgmma.cuh"

enum {
    MANY_THREADS = 3 * GROUP_THREADS,
    PAIR_BARRIER = 3, /* for both warpgroups that compute; 1 and 2: for one of them */
};

template <int DIM, int USED = DIM> struct many_cut {
    static constexpr int HALVES       = DIM == 512 ? 2 : 1; /* warpgroups for the same queries */
    static constexpr int QUERIES      = 128 / HALVES;
    static constexpr int ELEMS        = USED / HALVES; /* elements of the outputs of a warpgroup */
    static constexpr int BLOCKS       = DIM / 64;      /* blocks of a key */
    static constexpr int PIECE_BLOCKS = DIM == 64 ? 1 : 2;
    static constexpr int PIECES       = BLOCKS / PIECE_BLOCKS; /* pieces of K of a tile; and of V */
    static constexpr int PLACES       = DIM == 512 ? 5 : 6;
    static constexpr int CHUNK        = 64; /* elements of the outputs computed at once */
    static constexpr int BUFFERS      = 1;
    static constexpr int VALUES       = PIECE_BLOCKS * 64 / HALVES; /* elements of a piece of V for a warpgroup */
    static_assert(USED == DIM || (HALVES == 1 && USED % 16 == 0), "a part of a head has whole steps of outputs");

    /* Steps of a block that has some of the elements that are used: two for each 32. */
    static constexpr __device__ inline int steps(int block)
    {
        int left = USED - 64 * block;
        return left > 32 ? 4 : left > 0 ? 2 : 0;
    }
};

struct alignas(1024) many_align {
    char bytes[1024];
};
template <int DIM> struct many_shared {
    typedef many_cut<DIM> C;
    alignas(1024) char q[2][C::QUERIES / 64][C::BLOCKS][BLOCK_BYTES]; /* high, low; by 64 queries */
    alignas(1024) char piece[C::PLACES][C::PIECE_BLOCKS * BLOCK_BYTES];
    float    given[2][C::HALVES == 2 ? 16 : 1][GROUP_THREADS]; /* numbers of a thread for that of the other warpgroup */
    float    max[2][C::HALVES == 2 ? 64 : 1];
    int32_t  first[C::QUERIES], last[C::QUERIES], lane[C::QUERIES]; /* by row of the block */
    uint64_t full[C::PLACES], empty[C::PLACES];
};

/* The rows of a block that share keys, [from, to) of those it has, and the positions that some of them see. */
struct many_group {
    int     from, to;
    int32_t lane, first, last;
};

/* Tiles of a group that a block works through: spans z, z + step, ... of those that the group sees. */
struct many_walk {
    int first, last; /* tiles */
    int step;

    __device__ inline many_walk(const many_group &g)
        : first(g.first / TILE_KEYS), last(g.last < g.first ? -1 : g.last / TILE_KEYS), step((int)gridDim.z)
    {
    }
    __device__ inline int start(int z) const
    {
        int tile = (first / SPAN_TILES + z) * SPAN_TILES;
        return tile > first ? tile : first;
    }
    __device__ inline int after(int tile) const
    {
        if (tile % SPAN_TILES < SPAN_TILES - 1) return tile + 1;
        return tile + 1 + (step - 1) * SPAN_TILES;
    }
    __device__ inline bool has(int tile) const { return tile <= last; }
    __device__ inline bool ends_span(int tile) const
    {
        return !has(after(tile)) || after(tile) / SPAN_TILES != tile / SPAN_TILES;
    }
};

/* A place of the ring, and the phase in which it is used. */
struct ring_place {
    int      at;
    unsigned phase;

    template <int PLACES> __device__ inline void advance()
    {
        if (++at == PLACES) at = 0, phase ^= 1;
    }
};

/* --- pieces on their way --------------------------------------------------------------------------*/

static __device__ inline void find_pages(int32_t (&id)[TILE_KEYS / KV_PAGE], const cuda_attention_args &a,
                                         const many_group &g, int tile)
{
#pragma unroll
    for (int i = 0; i < TILE_KEYS / KV_PAGE; i++) {
        int32_t p = tile * TILE_KEYS + i * KV_PAGE;
        id[i]     = p <= g.last && p + KV_PAGE > g.first ? cache_page(a.c, g.lane, p) : 0;
    }
}

/* A thread's share of each piece: of K 8 bytes of every STEP-th key, of V 16 bytes. */
template <int DIM> struct many_copies {
    typedef many_cut<DIM> C;
    static constexpr int  K_UNITS = C::PIECE_BLOCKS * 16, V_UNITS = C::PIECE_BLOCKS * 8;
    static constexpr int  K_STEP = GROUP_THREADS / K_UNITS, V_STEP = GROUP_THREADS / V_UNITS;
    int                   k_key, k_from, k_to, v_key, v_from, v_to; /* first keys; bytes in a page and in a place */

    __device__ inline many_copies(int thread)
    {
        int k = thread % K_UNITS, v = thread % V_UNITS;
        k_key  = thread / K_UNITS;
        k_from = k_key * 2 * DIM + k * 8;
        k_to   = key_place(k_key, k);
        v_key  = thread / V_UNITS;
        v_from = v_key * 2 * DIM + (C::HALVES == 2 ? v / 8 * DIM + v % 8 * 16 : v * 16);
        v_to   = v / 8 * BLOCK_BYTES + v_key * 128 + ((v % 8 ^ v_key % 8) << 4);
    }
    /* Asks for a piece of a tile; the group sees keys first to last of it. */
    __device__ inline void ask_k(many_shared<DIM> *t, int place, const char *const (&page)[TILE_KEYS / KV_PAGE],
                                 int piece, int first, int last) const
    {
#pragma unroll
        for (int i = 0; i < TILE_KEYS / K_STEP; i++) {
            int key = i * K_STEP + k_key, page_key = i * K_STEP % KV_PAGE;
            int to = K_STEP == 4 && i % 2 ? k_to ^ 64 : k_to; /* the swizzle of keys 4 further */
            copy_half_piece(&t->full[place], t->piece[place] + to + i * K_STEP * 128,
                            page[i * K_STEP / KV_PAGE] + page_key * 2 * DIM + k_from + piece * C::PIECE_BLOCKS * 128,
                            key >= first && key <= last);
        }
        ring_arrive_copies(&t->full[place]);
    }
    __device__ inline void ask_v(many_shared<DIM> *t, int place, const char *const (&page)[TILE_KEYS / KV_PAGE],
                                 size_t plane, int piece, int first, int last) const
    {
        size_t from = plane + v_from + piece * C::VALUES * 2;
#pragma unroll
        for (int i = 0; i < TILE_KEYS / V_STEP; i++) {
            int key = i * V_STEP + v_key;
            copy_piece(&t->full[place], t->piece[place] + v_to + i * V_STEP * 128,
                       page[i * V_STEP / KV_PAGE] + i * V_STEP % KV_PAGE * 2 * DIM + from, key >= first && key <= last);
        }
        ring_arrive_copies(&t->full[place]);
    }
};

/* Copies the tiles of a group; by the warpgroup that copies. */
template <int DIM>
static __device__ inline void copy_group(many_shared<DIM> *t, const cuda_attention_args &a, const many_group &g,
                                         int kv_head, ring_place &ring)
{
    typedef many_cut<DIM> C;
    many_copies<DIM>      copies(threadIdx.x % GROUP_THREADS);
    many_walk             walk(g);
    int32_t               id[TILE_KEYS / KV_PAGE];
    int                   tile = walk.start(blockIdx.z);
    find_pages(id, a, g, tile);
#pragma unroll 1
    for (; walk.has(tile); tile = walk.after(tile)) {
        const char *page[TILE_KEYS / KV_PAGE];
        int         first = g.first - tile * TILE_KEYS, last = g.last - tile * TILE_KEYS;
#pragma unroll
        for (int i = 0; i < TILE_KEYS / KV_PAGE; i++) page[i] = cache_plane_in(a.c, false, a.layer, kv_head, id[i]);
        find_pages(id, a, g, walk.after(tile));
#pragma unroll 1
        for (int piece = 0; piece < C::PIECES; piece++) {
            ring_wait(&t->empty[ring.at], ring.phase ^ 1);
            copies.ask_k(t, ring.at, page, piece, first, last);
            ring.advance<C::PLACES>();
        }
#pragma unroll 1
        for (int piece = 0; piece < C::PIECES; piece++) {
            ring_wait(&t->empty[ring.at], ring.phase ^ 1);
            copies.ask_v(t, ring.at, page, a.c.plane_bytes, piece, first, last);
            ring.advance<C::PLACES>();
        }
    }
}

/* --- scores ---------------------------------------------------------------------------------------*/

/* Multiplies 64 queries, `high` and `low`, by the keys of a tile. The products of a warpgroup for heads of 512 are
 * those of `half`: high, low. */
template <int DIM, int USED>
static __device__ inline void score_tile(float (&s)[32], float (&rest)[32], many_shared<DIM> *t, int set, int half,
                                         ring_place &ring, int lane)
{
    typedef many_cut<DIM, USED> C;
    int                         place = ring.at;
    wgmma_begin();
#pragma unroll
    for (int piece = 0; piece < C::PIECES; piece++) {
        ring_wait(&t->full[ring.at], ring.phase);
        wgmma_sees();
#pragma unroll
        for (int b = 0; b < C::PIECE_BLOCKS; b++) {
            int          block = piece * C::PIECE_BLOCKS + b;
            wgmma_matrix keys(t->piece[ring.at] + b * BLOCK_BYTES);
            wgmma_matrix high(t->q[C::HALVES == 2 ? half : 0][set][block]), low(t->q[1][set][block]);
#pragma unroll
            for (int step = 0; step < C::steps(block); step++) {
                wgmma_shared(s, high.at(32 * step), keys.at(32 * step), block || step);
                if (C::HALVES == 1) wgmma_shared(rest, low.at(32 * step), keys.at(32 * step), block || step);
            }
        }
        wgmma_commit();
        ring.template advance<C::PLACES>();
    }
    wgmma_wait<0>(s);
    if (C::HALVES == 1) wgmma_done(rest);
#pragma unroll 1
    for (int i = 0; i < C::PIECES; i++) {
        if (lane == 0) ring_arrive(&t->empty[place]);
        place = place + 1 == C::PLACES ? 0 : place + 1;
    }
}

/* --- weights --------------------------------------------------------------------------------------*/

/* One of a thread's two queries: what its row sees, and maximum and sum of the span so far. */
struct many_query {
    int32_t first, last; /* last < first: nothing */
    float   max, sum;
    bool    began; /* the span has a tile that the row sees */
    float   old, now;

    /* Joins a tile with those before it. */
    __device__ inline void join(bool sees, float tile_max, float tile_sum)
    {
        if (!sees) {
            old = 1, now = 0;
        } else if (!began) {
            max = tile_max, sum = tile_sum, old = 0, now = 1;
            began = true;
        } else {
            joint all = join_sums(max, sum, tile_max, tile_sum);
            max = all.max, sum = all.sum, old = all.old, now = all.now;
        }
    }
};

/* The keys of a tile that a query's row sees. */
struct many_keys {
    int from, to;

    __device__ inline bool      has(int key) const { return key >= from && key <= to; }
    __device__ inline bool      some() const { return from < TILE_KEYS && to >= 0 && from <= to; }
    __device__ inline many_keys after(int n) const { return {from - n, to - n}; }
};

/* The scores of a thread's query `side` with 8 N keys are s[4 n + 2 side + k], keys 8 n + 2 c + k, k 0 and 1. Sets
 * those of keys that the row does not see to -inf: their weights are 0. */
template <int N> static __device__ inline void hide_keys(float (&s)[4 * N], int side, many_keys keys, int lane)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (!keys.has(8 * n + lane % 4 * 2 + k)) s[4 * n + 2 * side + k] = -INFINITY;
}

/* Turns the products of a tile into weights, and joins maximum and sum of the thread's queries. */
static __device__ inline void soften_tile(float (&s)[32], const float (&rest)[32], many_query (&q)[2],
                                          const many_keys (&keys)[2], bool whole, float scale, int lane)
{
#pragma unroll
    for (int i = 0; i < 32; i++) s[i] = (s[i] + rest[i]) * scale;
    if (!whole)
#pragma unroll
        for (int side = 0; side < 2; side++) hide_keys<8>(s, side, keys[side], lane);
#pragma unroll
    for (int side = 0; side < 2; side++) {
        float max = max_score<8>(s, side);
        soften_scores<8>(s, max, side);
        q[side].join(keys[side].some(), max, sum_weights(s, side));
    }
}

/* The same by two warpgroups, which have the high and the low products of the same queries; each makes the weights
 * of 32 keys. */
template <int DIM>
static __device__ inline void soften_halves(float (&s)[32], many_shared<DIM> *t, many_query (&q)[2],
                                            const many_keys (&keys)[2], bool whole, float scale, int half, int lane)
{
    int   thread = threadIdx.x % GROUP_THREADS, query = thread / WARP * 16 + lane / 4;
    float mine[16], max[2];
    some_sync(PAIR_BARRIER, 2 * GROUP_THREADS); /* all have read what was given for the tile before */
#pragma unroll
    for (int i = 0; i < 16; i++) t->given[half][i][thread] = half ? s[i] : s[16 + i];
    some_sync(PAIR_BARRIER, 2 * GROUP_THREADS);
#pragma unroll
    for (int i = 0; i < 16; i++) mine[i] = ((half ? s[16 + i] : s[i]) + t->given[1 - half][i][thread]) * scale;
    if (!whole)
#pragma unroll
        for (int side = 0; side < 2; side++) hide_keys<4>(mine, side, keys[side].after(32 * half), lane);
#pragma unroll
    for (int side = 0; side < 2; side++) {
        max[side] = max_score<4>(mine, side);
        if (lane % 4 == 0) t->max[half][query + 8 * side] = max[side];
    }
    some_sync(PAIR_BARRIER, 2 * GROUP_THREADS);
#pragma unroll
    for (int side = 0; side < 2; side++) {
        max[side] = fmaxf(max[side], t->max[1 - half][query + 8 * side]);
        soften_scores<4>(mine, max[side], side);
    }
#pragma unroll
    for (int i = 0; i < 16; i++) t->given[half][i][thread] = mine[i];
    some_sync(PAIR_BARRIER, 2 * GROUP_THREADS);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float other = t->given[1 - half][i][thread];
        s[i]        = half ? other : mine[i];
        s[16 + i]   = half ? mine[i] : other;
    }
#pragma unroll
    for (int side = 0; side < 2; side++) q[side].join(keys[side].some(), max[side], sum_weights(s, side));
}

/* --- outputs --------------------------------------------------------------------------------------*/

/* A thread's two queries and its outputs of the span. */
template <int DIM, int USED> struct many_state {
    static constexpr int ELEMS = many_cut<DIM, USED>::ELEMS;
    many_query           q[2];
    float                acc[ELEMS / 2]; /* as wgmma has them */

    __device__ inline void begin_span()
    {
        q[0].began = q[1].began = false;
#pragma unroll
        for (int i = 0; i < ELEMS / 2; i++) acc[i] = 0;
    }
    /* Joins N outputs of a tile with those before it, which are acc[at] on, as far as they are kept; all: both queries
     * see some of the tile. */
    template <int N> __device__ inline void join(const float (&out)[N], int at, bool all, const bool (&sees)[2])
    {
        if (all) { /* the whole warp */
#pragma unroll
            for (int i = 0; i < N; i++)
                if (at + i < ELEMS / 2) acc[at + i] = joined(out[i], acc[at + i], q[i / 2 % 2]);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                if (at + i < ELEMS / 2 && sees[i / 2 % 2]) acc[at + i] = joined(out[i], acc[at + i], q[i / 2 % 2]);
        }
    }
    static __device__ inline float joined(float out, float before, const many_query &q)
    {
        return fmaf(out, q.now, before * q.old);
    }
};

/* The same where rows see different keys and a V that only some of them see is not a number: each row by itself. */
template <int DIM>
static __device__ inline void weigh_rows(float *out, const held_weights &w, const many_shared<DIM> *t,
                                         const char *block, int at, int tile, int query, int per_row, int lane)
{
#pragma unroll 1
    for (int row = query / per_row; row <= (query + 15) / per_row; row++) {
        float     one[2][4] = {};
        many_keys keys      = {t->first[row] - tile * TILE_KEYS, t->last[row] - tile * TILE_KEYS};
        uint64_t  seen      = 0;
        for (int key = 0; key < TILE_KEYS; key++) seen |= (uint64_t)keys.has(key) << key;
        weigh_seen(one, w, block, at, seen, lane);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if ((query + lane / 4 + i / 2 % 2 * 8) / per_row == row) out[i] = one[i / 4][i % 4];
    }
}

/* The positions that some and all of a warpgroup's rows of a group see. */
struct many_seen {
    int32_t first, last, all_first, all_last;

    template <int DIM>
    __device__ inline many_seen(const many_shared<DIM> *t, const many_group &g, int query, int per_row)
        : first(INT32_MAX), last(-1), all_first(-1), all_last(INT32_MAX)
    {
        for (int row = query / per_row; row <= (query + 63) / per_row; row++) {
            if (row < g.from || row >= g.to) continue;
            first     = t->first[row] < first ? t->first[row] : first;
            all_first = t->first[row] > all_first ? t->first[row] : all_first;
            last      = t->last[row] > last ? t->last[row] : last;
            all_last  = t->last[row] < all_last ? t->last[row] : all_last;
        }
        first = same_in_warp(first), last = same_in_warp(last);
        all_first = same_in_warp(all_first), all_last = same_in_warp(all_last);
    }
    __device__ inline bool some(int tile) const { return last >= tile * TILE_KEYS && first < (tile + 1) * TILE_KEYS; }
    __device__ inline bool whole(int tile) const
    {
        return tile * TILE_KEYS >= all_first && (tile + 1) * TILE_KEYS - 1 <= all_last;
    }
};

/* Returns whether V of a key that not all rows of the warpgroup see has an infinity or a NaN, in its blocks of a
 * piece. */
template <int DIM>
static __device__ inline bool find_odd(const char *blocks, const many_seen &seen, int tile, int group)
{
    bool odd = false;
    for (int i = threadIdx.x % GROUP_THREADS; i < TILE_KEYS * many_cut<DIM>::VALUES / 8; i += GROUP_THREADS) {
        int32_t p = tile * TILE_KEYS + i / 8 % TILE_KEYS;
        if (p >= seen.all_first && p <= seen.all_last) continue;
        uint4 x = *(const uint4 *)(blocks + i * 16);
        odd     = odd || is_odd(x.x) || is_odd(x.y) || is_odd(x.z) || is_odd(x.w);
    }
    return same_in_warp(some_any(1 + group, GROUP_THREADS, odd));
}

/* Adds the outputs of a tile, a chunk of elements at a time; the last BUFFERS chunks are on their way. */
template <int DIM, int USED>
static __device__ inline void weigh_tile(many_state<DIM, USED> &st, const held_weights &w, many_shared<DIM> *t,
                                         const many_seen &seen, int tile, int group, int query, int per_row,
                                         const bool (&sees)[2], ring_place &ring, int lane)
{
    typedef many_cut<DIM, USED> C;
    constexpr int               CHUNKS = many_cut<DIM>::ELEMS / C::CHUNK, EACH = C::VALUES / C::CHUNK;
    constexpr int               BEHIND = C::BUFFERS - 1;
    bool                        whole = seen.whole(tile), all = __all_sync(ALL_LANES, sees[0] && sees[1]);
    bool                        odd[2]   = {}; /* by the parity of pieces */
    int                         place[2] = {};
    float                       out[C::BUFFERS][C::CHUNK / 2];
    auto                        block_of = [&](int i) { /* chunk i */
                                 int at = C::HALVES == 2 ? group : i % EACH * C::CHUNK / 64;
                                 return t->piece[place[i / EACH % 2]] + at * BLOCK_BYTES;
    };
#pragma unroll
    for (int i = 0; i < CHUNKS + BEHIND; i++) {
        if (i < CHUNKS) {
            int piece = i / EACH % 2;
            if (i % EACH == 0) {
                ring_wait(&t->full[ring.at], ring.phase);
                place[piece] = ring.at;
                odd[piece]   = !whole && find_odd<DIM>(block_of(i), seen, tile, group);
                ring.template advance<C::PLACES>();
                wgmma_sees();
            }
            wgmma_matrix values(block_of(i));
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < TILE_KEYS / 16; k++)
#pragma unroll
                for (int part = 0; part < 2; part++)
                    wgmma_flipped<C::CHUNK>(out[i % C::BUFFERS], w.p[part][k],
                                            values.at(i * C::CHUNK % 64 * 2 + 2048 * k), k || part);
            wgmma_commit();
        }
        int done = i - BEHIND, from = done / EACH % 2;
        if (done < 0) continue;
        float(&mine)[C::CHUNK / 2] = out[done % C::BUFFERS];
        if (i < CHUNKS && BEHIND) {
            wgmma_wait<BEHIND>(mine);
            wgmma_done(mine);
        } else {
            wgmma_wait<0>(mine);
        }
        if (odd[from])
#pragma unroll
            for (int k = 0; k < C::CHUNK / 16; k++)
                weigh_rows<DIM>(mine + 8 * k, w, t, block_of(done), done * C::CHUNK % 64 + 16 * k, tile, query, per_row,
                                lane);
        if (done % EACH == EACH - 1 && lane == 0) ring_arrive(&t->empty[place[from]]);
        st.join(mine, done * C::CHUNK / 2, all, sees);
    }
}

/* --- spans ---------------------------------------------------------------------------------------- The parts of 16
 * queries, of a warp, are together, so that a warp stores and loads 512 bytes at a time: span k has the maxima of
 * all 16, then their sums, then outputs by half (heads of 512), by side, by 16 elements, by lane. Lane 4 g + c has
 * those of query g, or g + 8: elements 2 c, 2 c + 1, 2 c + 8 and 2 c + 9. Spans of a query are counted from the
 * first one that its row sees some of. */
template <int DIM, int USED> struct many_part {
    typedef many_cut<DIM, USED> C;
    static constexpr int        SETS = C::QUERIES / 16, FLOATS = 2 * 16 + 16 * USED;
    static constexpr int QUADS = C::ELEMS / 16, MERGED = QUADS % 4 ? QUADS : 4; /* in a lane; by a warp's merge */

    /* Returns the first part of a set of 16 queries of a block of rows. */
    static __device__ inline float *first(const cuda_attention_args &a, int block, int kv_head, int set)
    {
        return a.partial + (((size_t)block * a.c.n_kv_heads + kv_head) * SETS + set) * a.n_parts * FLOATS;
    }
    static __device__ inline int outputs_at(int half, int side, int lane)
    {
        return 2 * 16 + (half * 2 + side) * QUADS * 128 + 4 * lane;
    }
};

/* Stores a span of the thread's queries. parts: of the warp's. */
template <int DIM, int USED>
static __device__ inline void store_span(const many_state<DIM, USED> &st, float *parts, int span, int half, int lane)
{
    typedef many_part<DIM, USED> P;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        if (!st.q[side].began) continue;
        float *to = parts + (size_t)(span - st.q[side].first / SPAN_KEYS) * P::FLOATS;
        if (half == 0 && lane % 4 == 0) {
            to[8 * side + lane / 4]      = st.q[side].max;
            to[16 + 8 * side + lane / 4] = st.q[side].sum;
        }
        to += P::outputs_at(half, side, lane);
#pragma unroll
        for (int i = 0; i < P::QUADS; i++) {
            const float *x            = st.acc + 8 * i + 2 * side;
            *(float4 *)(to + 128 * i) = make_float4(x[0], x[1], x[4], x[5]);
        }
    }
}

/* Grid: x over the sets, halves and sides of a block and K/V head, 64 elements a warp, or those of a part of a head; y
 * over K/V heads; z over blocks of rows. */
enum { MERGE_WARPS = 8, MERGE_AHEAD = 2 };
template <int DIM, int USED>
static __global__ void __launch_bounds__(MERGE_WARPS *WARP) many_merge_kernel(cuda_attention_args a)
{
    typedef many_cut<DIM, USED>  C;
    typedef many_part<DIM, USED> P;
    constexpr int                MERGE_QUADS = P::MERGED;
    int part = (int)(blockIdx.x * MERGE_WARPS + threadIdx.x / WARP), lane = threadIdx.x % WARP, c = lane % 4;
    int from = part % (P::QUADS / MERGE_QUADS) * MERGE_QUADS, per_row = a.n_heads / a.c.n_kv_heads;
    part /= P::QUADS / MERGE_QUADS;
    int side = part % 2, half = part / 2 % C::HALVES, set = part / 2 / C::HALVES, kv_head = blockIdx.y;
    int m = set * 16 + side * 8 + lane / 4, limit = C::QUERIES / per_row;
    int row = a.first_row + (int)blockIdx.z * limit + m / per_row, head = kv_head * per_row + m % per_row;
    let_next_start();
    wait_for_previous();
    bool         there = m / per_row < limit && row < a.end_row;
    head_view    v     = view_of(a, there ? row : a.first_row, head);
    int          n     = there && v.last >= v.first ? v.last / SPAN_KEYS - v.first / SPAN_KEYS + 1 : 0;
    int          n_all = (int)warp_max_u32((uint32_t)n);
    uint32_t     top   = 0;
    float        sum   = 0;
    float4       out[MERGE_QUADS], x[MERGE_AHEAD][MERGE_QUADS];
    float2       span[MERGE_AHEAD];
    const float *parts = P::first(a, blockIdx.z, kv_head, set), *mine = parts + 8 * side + lane / 4;
    parts += P::outputs_at(half, side, lane) + 128 * from;
#pragma unroll
    for (int i = 0; i < MERGE_QUADS; i++) out[i] = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int k = 0; k < n_all; k++) {
        uint32_t o = k < n ? order_of(mine[(size_t)k * P::FLOATS]) : 0;
        top        = o > top ? o : top;
    }
#pragma unroll 1
    for (int k0 = 0; k0 < n_all; k0 += MERGE_AHEAD) {
#pragma unroll
        for (int k = 0; k < MERGE_AHEAD; k++) {
            size_t at = (size_t)(k0 + k) * P::FLOATS;
            if (k0 + k >= n) continue;
            span[k] = float2{mine[at], mine[at + 16]};
#pragma unroll
            for (int i = 0; i < MERGE_QUADS; i++) x[k][i] = *(const float4 *)(parts + at + 128 * i);
        }
#pragma unroll
        for (int k = 0; k < MERGE_AHEAD; k++) {
            if (k0 + k >= n) continue;
            float by = expf(span[k].x - float_of(top));
            sum      = fmaf(by, span[k].y, sum);
#pragma unroll
            for (int i = 0; i < MERGE_QUADS; i++)
                out[i] = make_float4(fmaf(by, x[k][i].x, out[i].x), fmaf(by, x[k][i].y, out[i].y),
                                     fmaf(by, x[k][i].z, out[i].z), fmaf(by, x[k][i].w, out[i].w));
        }
    }
#pragma unroll
    for (int i = 0; i < MERGE_QUADS; i++) {
        float4 y =
            n ? make_float4(out[i].x / sum, out[i].y / sum, out[i].z / sum, out[i].w / sum) : make_float4(0, 0, 0, 0);
        /* Lanes exchange pairs, so that each has four elements that follow each other. */
        bool  odd     = c % 2;
        float give[2] = {odd ? y.x : y.z, odd ? y.y : y.w}, got[2];
#pragma unroll
        for (int k = 0; k < 2; k++) got[k] = __shfl_xor_sync(ALL_LANES, give[k], 1);
        y       = odd ? make_float4(got[0], got[1], y.z, y.w) : make_float4(y.x, y.y, got[0], got[1]);
        int dim = USED < DIM ? a.c.row_dim : DIM, at = half * C::ELEMS + (from + i) * 16 + c % 2 * 8 + c / 2 * 4;
        int in = head * dim + at, all = a.n_heads * dim;
        if (!there || (USED < DIM && at >= dim)) continue;
        *(float4 *)(a.y + (size_t)row * all + in) = y;
        if (!a.to.high) continue;
        put_x(a.to, row, in, (int)layout_tiles((size_t)all), y, 1);
        if (in == 0) a.to.scale[row] = 1;
    }
}

/* --- a block --------------------------------------------------------------------------------------*/

/* Works through the tiles of a group; by the warpgroups that compute. */
template <int DIM, int USED>
static __device__ inline void do_group(many_shared<DIM> *t, const cuda_attention_args &a, const many_group &g,
                                       int block, int kv_head, int per_row, ring_place &ring)
{
    typedef many_cut<DIM, USED> C;
    int       group = same_in_warp(threadIdx.x / GROUP_THREADS - 1), warp = same_in_warp(threadIdx.x / WARP % 4);
    int       lane = threadIdx.x % WARP, half = C::HALVES == 2 ? group : 0, set = C::HALVES == 2 ? 0 : group;
    int       query = set * 64 + warp * 16;
    many_walk walk(g);
    many_seen seen(t, g, set * 64, per_row);

    many_state<DIM, USED> st;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        int row    = (query + lane / 4 + 8 * side) / per_row;
        st.q[side] = {1, 0, 0, 0, false, 0, 0};
        if (row >= g.from && row < g.to) st.q[side].first = t->first[row], st.q[side].last = t->last[row];
    }
    float *parts = many_part<DIM, USED>::first(a, block, kv_head, query / 16);
    st.begin_span();
#pragma unroll 1
    for (int tile = walk.start(blockIdx.z); walk.has(tile); tile = walk.after(tile)) {
        if (seen.some(tile)) {
            float        s[32], rest[32];
            held_weights w;
            many_keys    keys[2];
            bool         sees[2];
#pragma unroll
            for (int side = 0; side < 2; side++) {
                keys[side] = {st.q[side].first - tile * TILE_KEYS, st.q[side].last - tile * TILE_KEYS};
                sees[side] = keys[side].some();
            }
            score_tile<DIM, USED>(s, rest, t, set, half, ring, lane);
            if constexpr (C::HALVES == 1)
                soften_tile(s, rest, st.q, keys, seen.whole(tile), a.scale, lane);
            else
                soften_halves<DIM>(s, t, st.q, keys, seen.whole(tile), a.scale, half, lane);
            w.take(s);
            weigh_tile<DIM, USED>(st, w, t, seen, tile, group, query, per_row, sees, ring, lane);
        } else {
#pragma unroll 1
            for (int i = 0; i < 2 * C::PIECES; i++) {
                ring_wait(&t->full[ring.at], ring.phase);
                if (lane == 0) ring_arrive(&t->empty[ring.at]);
                ring.advance<C::PLACES>();
            }
        }
        if (walk.ends_span(tile)) {
            store_span<DIM, USED>(st, parts, tile / SPAN_TILES, half, lane);
            st.begin_span();
        }
    }
}

/* Splits the block's queries into two f16 each; by the warpgroups that compute. Queries past the last row are zero, and
 * so are elements that rows do not have. */
template <int DIM, int USED>
static __device__ inline void stage_many(many_shared<DIM> *t, const cuda_attention_args &a, int first_row, int n_rows,
                                         int kv_head, int per_row)
{
    typedef many_cut<DIM> C;
#pragma unroll 4
    for (int i = (int)threadIdx.x - GROUP_THREADS; i < C::QUERIES * (DIM / 4); i += 2 * GROUP_THREADS) {
        int    m = i / (DIM / 4), unit = i % (DIM / 4), at = key_place(m % 64, unit);
        float4 x = make_float4(0, 0, 0, 0);
        if (m / per_row < n_rows && (USED == DIM || 4 * unit < a.c.row_dim))
            x = *(const float4 *)(a.q +
                                  ((size_t)(first_row + m / per_row) * a.n_heads + kv_head * per_row + m % per_row) *
                                      (USED < DIM ? a.c.row_dim : DIM) +
                                  4 * unit);
        put_query(t->q[0][m / 64][0] + at, t->q[1][m / 64][0] + at, x);
    }
    wgmma_sees();
    some_sync(PAIR_BARRIER, 2 * GROUP_THREADS);
}

/* Returns the rows from `from` on that are of one lane. */
template <int DIM> static __device__ inline many_group group_at(const many_shared<DIM> *t, int from, int n_rows)
{
    many_group g = {from, from, t->lane[from], t->first[from], t->last[from]};
    for (; g.to < n_rows && t->lane[g.to] == g.lane; g.to++) {
        g.first = t->first[g.to] < g.first ? t->first[g.to] : g.first;
        g.last  = t->last[g.to] > g.last ? t->last[g.to] : g.last;
    }
    return {from, same_in_warp(g.to), same_in_warp(g.lane), same_in_warp(g.first), same_in_warp(g.last)};
}

/* Grid: x over K/V heads, y over rows, the last ones first, which see most; z over spans. */
template <int DIM, int USED>
static __global__ void __launch_bounds__(MANY_THREADS, 1) many_kernel(cuda_attention_args a)
{
    typedef many_cut<DIM> C;
    DYNAMIC_SHARED(many_align, many_memory);
    auto      *t       = (many_shared<DIM> *)many_memory;
    int        kv_head = blockIdx.x, per_row = a.n_heads / a.c.n_kv_heads, limit = C::QUERIES / per_row;
    int        block = (int)(gridDim.y - 1 - blockIdx.y), first_row = a.first_row + block * limit;
    int        n_rows = min_of(limit, a.end_row - first_row);
    ring_place ring   = {0, 0};
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::PLACES; i++) {
            ring_init(&t->full[i], GROUP_THREADS);
            ring_init(&t->empty[i], 2 * GROUP_THREADS / WARP);
        }
        ring_init_done();
    }
    wait_for_previous();
    let_next_start();
    for (int i = threadIdx.x; i < n_rows; i += MANY_THREADS) {
        head_view v = view_of(a, first_row + i, kv_head * per_row);
        t->first[i] = v.first, t->last[i] = v.last, t->lane[i] = a.lane[first_row + i];
    }
    __syncthreads();
    if (threadIdx.x < GROUP_THREADS) {
        registers_down<24>();
        for (int from = 0; from < n_rows;) {
            many_group g = group_at(t, from, n_rows);
            copy_group<DIM>(t, a, g, kv_head, ring);
            from = g.to;
        }
    } else {
        registers_up<240>();
        stage_many<DIM, USED>(t, a, first_row, n_rows, kv_head, per_row);
        for (int from = 0; from < n_rows;) {
            many_group g = group_at(t, from, n_rows);
            do_group<DIM, USED>(t, a, g, block, kv_head, per_row, ring);
            from = g.to;
        }
    }
}

/* --- launches -------------------------------------------------------------------------------------*/

/* Returns over how many blocks the spans of a row are divided: those that make the multiprocessors work least, where
 * tiles take one unit of time and the start of a block two. */
static unsigned choose_splits(int blocks, int n_parts, int processors)
{
    unsigned best      = 1;
    int      best_time = INT32_MAX;
    for (int n = 1; n <= n_parts; n++) {
        int rounds = (n * blocks + processors - 1) / processors;
        int time   = rounds * ((n_parts + n - 1) / n * SPAN_TILES + 2);
        if (time < best_time) best_time = time, best = (unsigned)n;
    }
    return best;
}

template <int DIM, int USED = DIM> static void launch_many(cudaStream_t s, const cuda_attention_args *a)
{
    typedef many_cut<DIM, USED> C;
    constexpr unsigned          MERGES = 2 * C::QUERIES / 16 * USED / (16 * many_part<DIM, USED>::MERGED);
    size_t                      rows   = (size_t)(C::QUERIES / (a->n_heads / a->c.n_kv_heads));
    unsigned                    blocks = blocks_for((size_t)(a->end_row - a->first_row), rows);
    unsigned                    heads  = (unsigned)a->c.n_kv_heads;
    unsigned                    splits = choose_splits((int)(blocks * heads), a->n_parts, multiprocessors());
    static_assert(sizeof(many_shared<DIM>) <= 227 << 10, "a block has 227 KB on Hopper");
    static_assert(MERGES % MERGE_WARPS == 0, "all warps of a merge have work");
    allow_shared(many_kernel<DIM, USED>, sizeof(many_shared<DIM>));
    LAUNCH_EARLY((many_kernel<DIM, USED>), dim3(heads, blocks, splits), MANY_THREADS, sizeof(many_shared<DIM>), s, *a);
    LAUNCH_EARLY((many_merge_kernel<DIM, USED>), dim3(MERGES / MERGE_WARPS, heads, blocks), MERGE_WARPS * WARP, 0, s,
                 *a);
}

/* The parts of heads that kernels are made for: those of encoders of pictures have 72 elements. */
enum { PART_DIM = 128, PART_USED = 80 };
static bool is_part(const cuda_attention_args *a) { return a->c.row_dim < a->c.head_dim; }
static int  used_of(const cuda_attention_args *a) { return is_part(a) ? (int)PART_USED : a->c.head_dim; }

bool cuda_attention_has_many(const cuda_attention_args *a)
{
    bool fits = !is_part(a) || (a->c.head_dim == PART_DIM && a->c.row_dim <= PART_USED);
    return fits && has_wgmma() && shared_limit() >= 227 << 10;
}

int cuda_attention_many_rows(const cuda_attention_args *a)
{
    return (a->c.head_dim == 512 ? many_cut<512>::QUERIES : many_cut<256>::QUERIES) / (a->n_heads / a->c.n_kv_heads);
}

size_t cuda_attention_many_bytes(const cuda_attention_args *a)
{
    int queries = a->c.head_dim == 512 ? many_cut<512>::QUERIES : many_cut<256>::QUERIES;
    return (size_t)a->c.n_kv_heads * (size_t)queries * (size_t)a->n_parts * (size_t)(2 + used_of(a)) * sizeof(float);
}

void cuda_attention_many(cudaStream_t s, const cuda_attention_args *a)
{
    if (is_part(a)) {
        launch_many<PART_DIM, PART_USED>(s, a);
        return;
    }
    switch (a->c.head_dim) {
    case 64: launch_many<64>(s, a); break;
    case 128: launch_many<128>(s, a); break;
    case 256: launch_many<256>(s, a); break;
    default: launch_many<512>(s, a); break;
    }
}
