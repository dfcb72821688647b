/* Attention on tensor cores for long contexts: a block works through the tiles of its spans, with K and V of the tiles
 * ahead on their way to shared memory. The arithmetic is that of attention_mma.cu, to the bit.
 *
 * Keys, and elements of V, are rows of operand A, queries are the columns of B, 8 at a time: a row with 8 heads per K/V
 * head fills them, and several rows of a lane share what is in shared memory. Warps split a tile's keys for the scores
 * and the elements for the outputs.
 *
 * K comes by pages, V by pieces of 16 bytes, which leave room between its keys. A place is asked for again when all
 * warps are done with it: K of a later tile after the scores, V of the next one while its scores are computed, those of
 * the next unit after the last ones of this unit.
 *
 * K and V with scales come by pages both, as they are stored. Codes of K are decoded when the scores are computed,
 * those of V before, to where V is as f16; V of the next tile is then asked for. A tile whose keys are not in pages is
 * copied by all threads, key by key. */
#include "ops/cuda/attention_mma.cuh"

enum { SPAN_WARPS = 8, SPAN_THREADS = SPAN_WARPS * WARP, STEP_KEYS = 16, WARP_KEYS = TILE_KEYS / SPAN_WARPS };
enum { WINDOW_PARTS = 64 }; /* rows with fewer parts look back over a window */

/* GROUPS: of 8 queries; SLOTS: for K; CODED: K and V have scales. */
template <int DIM, int GROUPS, int SLOTS, bool CODED = false> struct span_cut {
    static constexpr int  DIMS = DIM, N_GROUPS = GROUPS, N_SLOTS = SLOTS, QUERIES = 8 * GROUPS;
    static constexpr bool HAS_CODES = CODED;
    static constexpr int  KEY_BYTES = 2 * DIM;
    /* Bytes of a tile of K; codes and scales of q8_0 take the most. */
    static constexpr int TILE_BYTES = TILE_KEYS * (CODED ? DIM + DIM / 16 : KEY_BYTES);
    /* Bytes from key to key of V in shared memory, without bank conflicts. */
    static constexpr int V_STRIDE   = 2 * DIM + 16;
    static constexpr int ELEM_TILES = DIM < 128 ? 1 : DIM / 128; /* tiles of 16 elements per warp */
    static constexpr int STEPS      = DIM / 32;                  /* 32 elements each; pieces of V per thread */
};

/* A unit of the block, the rows of the group that it works for, and the keys that some and that all of them see. */
struct span_work {
    unit     u;
    unsigned rows;
    int      i;
    uint64_t any, all;
};

template <typename C> struct span_shared {
    alignas(16) char k[C::N_SLOTS][C::TILE_BYTES];
    alignas(16) char v[TILE_KEYS * C::V_STRIDE];
    alignas(16) char codes[C::HAS_CODES ? C::TILE_BYTES : 16]; /* codes and scales of V */
    alignas(16) uint16_t high[C::QUERIES][C::DIMS + 32];
    alignas(16) uint16_t low[C::QUERIES][C::DIMS + 32];
    tile_weights<C::QUERIES> w;
    float                   *part[C::QUERIES]; /* where a query's output goes */
    uint64_t                 gate[C::N_SLOTS], v_gate;
    span_work                work[2];                                  /* this unit and the next, by turns */
    unit_keys                keys[2];                                  /* theirs; with codes, the ids of pages */
    uint8_t                  in_page[2][C::HAS_CODES ? TILE_KEYS : 1]; /* positions of a tile's keys in these */
    unit_rows<C::QUERIES>    rows;
    int                      odd; /* a V that some rows do not see is not a number */
};

/* --- units of a block -----------------------------------------------------------------------------*/

/* Returns the first unit from number i on that the block does: the first of the rows that share a unit does it. */
static __device__ inline span_work next_work(const group_rows &group, const head_view &v, const span_range &spans,
                                             int i)
{
    for (;; i += gridDim.x) {
        unit u = unit_at(v, spans, i);
        if (!u.there) return {u, 0, i, 0, 0};
        unsigned mine = 1u << group.mine, rows = u.n > 1 ? group.having(u.tile) : group.touching(u.tile);
        if (!(rows & mine)) rows = mine;
        if (rows & (mine - 1)) continue;
        if (u.n > 1) return {u, rows, i, ~(uint64_t)0, ~(uint64_t)0};
        seen_tile seen(group, rows, u.tile);
        return {u, rows, i, seen.any, seen.all};
    }
}

/* --- tiles on their way ---------------------------------------------------------------------------*/

/* The block's way through its units. */
struct span_state {
    int      turn;        /* which of the two is this unit */
    unsigned asked, done; /* tiles whose K was asked for, and that are done with */
    unsigned v_asked;     /* tiles whose codes of V were asked for */
    unsigned base;        /* tiles of the units before this one */
};

/* A tile, and where its keys are stored. */
struct span_tile {
    const uint32_t *at;      /* unit_keys::at of these */
    const uint8_t  *in_page; /* with codes */
    bool            paged;   /* by pages */
    bool            there;
    uint64_t        seen;

    __device__ inline const char *key(const cuda_attention_args &a, int i, int bytes) const
    {
        size_t steps = paged ? at[i / KV_PAGE] + i % KV_PAGE * (bytes / KEY_STEP) : at[i];
        return a.c.pool + steps * KEY_STEP;
    }
};

/* Returns tile number i of this unit and the next. */
template <typename C> static __device__ inline span_tile tile_at(const span_shared<C> *t, const span_state &s, int i)
{
    int turn = s.turn;
    if (i >= t->work[turn].u.n) {
        i -= t->work[turn].u.n;
        turn = 1 - turn;
    }
    const span_work &w = t->work[turn];
    return {t->keys[turn].at + (w.u.n > 1 ? i * (TILE_KEYS / KV_PAGE) : 0), t->in_page[turn], w.u.n > 1,
            w.u.there && i < w.u.n, w.any};
}

/* Where key i of a unit is stored. */
struct key_place {
    uint32_t at;
    uint8_t  in_page;
};
template <typename C>
static __device__ inline key_place find_place(const cuda_attention_args &a, const head_view &v, const unit &u,
                                              uint64_t seen, int i)
{
    if (!C::HAS_CODES) return {unit_keys::find(a, v, u, seen, i), 0};
    bool    there = u.n > 1 ? i < u.n * TILE_KEYS / KV_PAGE : seen >> i & 1;
    int32_t p     = u.tile * TILE_KEYS + i * (u.n > 1 ? (int)KV_PAGE : 1);
    if (!there) return {0, 0};
    int32_t slot = p > v.last ? p : slot_of(a, v.row, p); /* as unit_keys::find_key */
    return {(uint32_t)cache_page(a.c, a.lane[v.row], slot), (uint8_t)(slot % KV_PAGE)};
}
template <typename C>
static __device__ inline void put_place(span_shared<C> *t, int turn, int i, const key_place &place)
{
    t->keys[turn].at[i] = place.at;
    if (C::HAS_CODES) t->in_page[turn][i] = place.in_page;
}

/* --- codes on their way ---------------------------------------------------------------------------*/

/* Sizes of stored K or V: of a head in a page, of a position's codes and scales. */
struct code_sizes {
    int head, vec, scale;

    __device__ inline code_sizes(const kv_view &c, bool is_v)
        : head((int)(is_v ? c.v_head_bytes : c.head_bytes)), vec((int)(is_v ? c.v_vec_bytes : c.vec_bytes)),
          scale((int)(is_v ? c.v_scale_bytes : c.scale_bytes))
    {
    }
    /* Return where codes and scales of a tile's key are, in shared memory. */
    __device__ inline int code_at(int key) const { return key / KV_PAGE * head + key % KV_PAGE * vec; }
    __device__ inline int scale_at(int key) const
    {
        return key / KV_PAGE * head + KV_PAGE * vec + key % KV_PAGE * scale;
    }
};

/* Copies codes and scales of the keys that are seen, by all threads, to where a copy of pages puts them. */
static __device__ inline void gather_codes(char *to, const cuda_attention_args &a, int kv_head, const span_tile &x,
                                           bool is_v)
{
    code_sizes size(a.c, is_v);
    int        words = size.vec / 4, scales = size.scale / 2;
    for (int i = threadIdx.x; i < TILE_KEYS * (words + scales); i += SPAN_THREADS) {
        int key = i / (words + scales), at = i % (words + scales);
        if (!(x.seen >> key & 1)) continue;
        cache_vec from(a.c, is_v, cache_plane_in(a.c, is_v, a.layer, kv_head, (int32_t)x.at[key]), x.in_page[key]);
        if (at < words)
            ((uint32_t *)(to + size.code_at(key)))[at] = ((const uint32_t *)from.code)[at];
        else
            ((uint16_t *)(to + size.scale_at(key)))[at - words] = from.scale[at - words];
    }
}

/* Asks for codes and scales of a tile. A barrier follows before they are used. */
static __device__ inline void ask_codes(uint64_t *gate, char *to, const cuda_attention_args &a, int kv_head,
                                        const span_tile &x, bool is_v)
{
    constexpr int PAGES = TILE_KEYS / KV_PAGE;
    int           page = (int)(threadIdx.x / WARP) - (SPAN_WARPS - PAGES), bytes = code_sizes(a.c, is_v).head;
    if (threadIdx.x == 0) gate_announce(gate, x.paged ? PAGES * bytes : 0);
    if (!x.paged)
        gather_codes(to, a, kv_head, x, is_v);
    else if (page >= 0 && threadIdx.x % WARP == 0)
        gate_copy(gate, to + page * bytes, cache_plane_in(a.c, is_v, a.layer, kv_head, (int32_t)x.at[page]), bytes);
}

/* Asks for the codes of V of the next tile, when those before are decoded. */
template <typename C>
static __device__ inline void ask_v_codes(span_shared<C> *t, const cuda_attention_args &a, int kv_head, span_state *s,
                                          unsigned decoded)
{
    if (s->v_asked != decoded) return;
    span_tile x = tile_at(t, *s, (int)(s->v_asked - s->base));
    if (!x.there) return;
    s->v_asked++;
    ask_codes(&t->v_gate, t->codes, a, kv_head, x, true);
}

/* Decodes V of a tile. V that the rows do not see is zero. */
template <cache_type T, typename C>
static __device__ inline void decode_values(type_tag<T>, span_shared<C> *t, const cuda_attention_args &a,
                                            const span_tile &x)
{
    constexpr int PIECES = C::DIMS / 8;
    code_sizes    size(a.c, true);
#pragma unroll
    for (int i = 0; i < C::STEPS; i++) {
        int   key = threadIdx.x / PIECES + i * (SPAN_THREADS / PIECES), part = threadIdx.x % PIECES * 8;
        uint4 v = {0, 0, 0, 0};
        if (x.paged || x.seen >> key & 1)
            v = cache_eight<T>(t->codes + size.code_at(key), (const uint16_t *)(t->codes + size.scale_at(key)), part);
        *(uint4 *)(t->v + key * C::V_STRIDE + 2 * part) = v;
    }
}

/* Asks for K of the next tile, by the last warps, one page each; all of them where its keys are not in pages. */
template <typename C>
static __device__ inline void ask_k(span_shared<C> *t, const cuda_attention_args &a, int kv_head, span_state *s)
{
    constexpr int PAGES = TILE_KEYS / KV_PAGE;
    int           warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, slot = (int)(s->asked % C::N_SLOTS);
    if (s->asked - s->done >= C::N_SLOTS) return;
    span_tile x = tile_at(t, *s, (int)(s->asked - s->base));
    if (!x.there) return;
    s->asked++;
    if constexpr (C::HAS_CODES) {
        ask_codes(&t->gate[slot], t->k[slot], a, kv_head, x, false);
        return;
    }
    if (threadIdx.x == 0) gate_announce(&t->gate[slot], __popcll(x.seen) * C::KEY_BYTES);
    if (x.paged) {
        int page = warp - (SPAN_WARPS - PAGES);
        if (page >= 0 && lane == 0)
            gate_copy(&t->gate[slot], t->k[slot] + page * KV_PAGE * C::KEY_BYTES,
                      x.key(a, page * KV_PAGE, C::KEY_BYTES), KV_PAGE * C::KEY_BYTES);
    } else {
        int key = warp * WARP_KEYS + lane;
        if (lane < WARP_KEYS && x.seen >> key & 1)
            gate_copy(&t->gate[slot], t->k[slot] + key * C::KEY_BYTES, x.key(a, key, C::KEY_BYTES), C::KEY_BYTES);
    }
}

/* Returns which of a thread's pieces of V are seen. */
template <typename C> static __device__ inline unsigned pieces_seen(const span_tile &x)
{
    constexpr int PIECES = C::DIMS / 8;
    unsigned      bits   = 0;
    if (x.paged) return ~0u;
    for (int i = 0; i < C::STEPS; i++)
        bits |= (unsigned)(x.seen >> (threadIdx.x / PIECES + i * (SPAN_THREADS / PIECES)) & 1) << i;
    return bits;
}

/* Asks for a thread's piece i of V of a tile. V that the row does not see is zero. */
template <typename C>
static __device__ inline void ask_v(span_shared<C> *t, const cuda_attention_args &a, const span_tile &x, unsigned seen,
                                    int i)
{
    constexpr int PIECES = C::DIMS / 8;
    int           key = threadIdx.x / PIECES + i * (SPAN_THREADS / PIECES), part = threadIdx.x % PIECES * 16;
    bool          sees = seen >> i & 1;
    const char   *from = sees ? x.key(a, key, C::KEY_BYTES) + a.c.plane_bytes + part : a.c.pool;
    if (x.there) copy_piece(&t->v_gate, t->v + key * C::V_STRIDE + part, from, sees);
}

/* --- a tile ---------------------------------------------------------------------------------------*/

/* Adds step j of a warp's scores: 16 keys and every second group of queries. The products with high and with low are
 * summed apart. */
template <int PAIR, typename C>
static __device__ inline void score_step(float (&acc)[PAIR][4], float (&rest)[PAIR][4], const uint32_t (&k)[2][4],
                                         const span_shared<C> *t, int n0, int n_groups, int j, int g, int c)
{
#pragma unroll
    for (int n = 0; n < PAIR; n++) {
        if (n0 + 2 * n >= n_groups) break;
        uint4 high = *(const uint4 *)&t->high[8 * (n0 + 2 * n) + g][32 * j + 8 * c];
        uint4 low  = *(const uint4 *)&t->low[8 * (n0 + 2 * n) + g][32 * j + 8 * c];
        mma_16x8x16(acc[n], k[0], high.x, high.y);
        mma_16x8x16(rest[n], k[0], low.x, low.y);
        mma_16x8x16(acc[n], k[1], high.z, high.w);
        mma_16x8x16(rest[n], k[1], low.z, low.w);
    }
}

template <int PAIR, typename C>
static __device__ inline void put_scores(span_shared<C> *t, const float (&acc)[PAIR][4], const float (&rest)[PAIR][4],
                                         int n0, int n_groups, int key, int c, float scale)
{
#pragma unroll
    for (int n = 0; n < PAIR; n++) {
        if (n0 + 2 * n >= n_groups) break;
#pragma unroll
        for (int i = 0; i < 4; i++)
            t->w.s[8 * (n0 + 2 * n) + 2 * c + i % 2][key + i / 2 * 8] = (acc[n][i] + rest[n][i]) * scale;
    }
}

/* Computes the scores of the tile in `keys`. Asks for V of the tile x meanwhile. */
template <typename C>
static __device__ inline void score_tile(span_shared<C> *t, const char *keys, int n_groups,
                                         const cuda_attention_args &a, const span_tile &x)
{
    constexpr int PAIR = C::N_GROUPS > 2 ? 2 : 1; /* groups at once */
    int           warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int           g = lane / 4, c = lane % 4, n0 = warp / 4, key = warp % 4 * STEP_KEYS + g;
    const char   *at           = keys + key * C::KEY_BYTES + 16 * c;
    float         acc[PAIR][4] = {}, rest[PAIR][4] = {};
    unsigned      seen = pieces_seen<C>(x);
    if (n0 >= n_groups) { /* the whole warp */
#pragma unroll
        for (int j = 0; j < C::STEPS; j++) ask_v(t, a, x, seen, j);
        return;
    }
#pragma unroll
    for (int j0 = 0; j0 < C::STEPS; j0 += 2) {
        key_steps k0(at + 64 * j0, g % 2), k1(at + 64 * j0 + 8 * C::KEY_BYTES, g % 2);
        ask_v(t, a, x, seen, j0);
        ask_v(t, a, x, seen, j0 + 1);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            uint32_t k[2][4] = {{k0.x[s].x, k1.x[s].x, k0.x[s].y, k1.x[s].y},
                                {k0.x[s].z, k1.x[s].z, k0.x[s].w, k1.x[s].w}};
            score_step(acc, rest, k, t, n0, n_groups, j0 + s, g, c);
        }
    }
    put_scores<PAIR>(t, acc, rest, n0, n_groups, key, c, a.scale);
}

/* The same of codes. Neighbouring keys read four steps in different order: they lie in the same banks. */
template <cache_type T, typename C>
static __device__ inline void score_codes(type_tag<T>, span_shared<C> *t, const char *keys, int n_groups,
                                          const cuda_attention_args &a)
{
    constexpr int PAIR = C::N_GROUPS > 2 ? 2 : 1, TURNS = C::STEPS < 4 ? C::STEPS : 4;
    code_sizes    size(a.c, false);
    int           warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int           g = lane / 4, c = lane % 4, n0 = warp / 4, key = warp % 4 * STEP_KEYS + g;
    float         acc[PAIR][4] = {}, rest[PAIR][4] = {};
    if (n0 >= n_groups) return; /* the whole warp */
#pragma unroll
    for (int j0 = 0; j0 < C::STEPS; j0 += TURNS) {
        uint4 k[2][TURNS];
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const char     *code  = keys + size.code_at(key + 8 * side);
            const uint16_t *scale = (const uint16_t *)(keys + size.scale_at(key + 8 * side));
            cache_raw       raw[TURNS];
#pragma unroll
            for (int i = 0; i < TURNS; i++) raw[i] = cache_load<T>(code, scale, 32 * (j0 + (i + g) % TURNS) + 8 * c);
#pragma unroll
            for (int i = 0; i < TURNS; i++) {
                cache_raw x = raw[0]; /* that of step i */
#pragma unroll
                for (int n = 1; n < TURNS; n++)
                    if ((n + g) % TURNS == i) x = raw[n];
                k[side][i] = cache_decoded<T>(x, 32 * (j0 + i) + 8 * c);
            }
        }
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            uint32_t x[2][4] = {{k[0][i].x, k[1][i].x, k[0][i].y, k[1][i].y},
                                {k[0][i].z, k[1][i].z, k[0][i].w, k[1][i].w}};
            score_step(acc, rest, x, t, n0, n_groups, j0 + i, g, c);
        }
    }
    put_scores<PAIR>(t, acc, rest, n0, n_groups, key, c, a.scale);
}

/* A warp's outputs: elements g and g + 8 of each tile of 16, queries 2 c and 2 c + 1 of each group. */
template <typename C> struct span_output {
    float o[C::ELEM_TILES][C::N_GROUPS][4];
};

/* V of a warp's elements and 16 keys. */
template <typename C> struct step_values {
    uint32_t v[C::ELEM_TILES][4];

    __device__ inline void load(const char *values, int k)
    {
        int         warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, i = lane / 8, r = lane % 8;
        const char *at = values + (k * STEP_KEYS + i / 2 * 8 + r) * C::V_STRIDE;
#pragma unroll
        for (int m = 0; m < C::ELEM_TILES; m++)
            load_matrices_transposed(v[m], at + 2 * ((warp * C::ELEM_TILES + m) * 16 + i % 2 * 8));
    }
};

/* Weights of the queries for 16 keys, high and low. */
template <typename C> struct step_weights {
    uint32_t p[C::N_GROUPS][4];

    __device__ inline void load(const span_shared<C> *t, int n_groups, int k)
    {
        int lane = threadIdx.x % WARP, i = lane / 8, r = lane % 8;
#pragma unroll
        for (int n = 0; n < C::N_GROUPS; n++)
            if (n < n_groups) load_matrices(p[n], &t->w.p[i / 2][8 * n + r][STEP_KEYS * k + i % 2 * 8]);
    }
};

/* Returns whether V of one of these keys has an infinity or a NaN; by all threads. */
template <typename C> static __device__ inline bool has_odd(span_shared<C> *t, uint64_t keys)
{
    constexpr int PIECES = C::DIMS / 8;
    for (int i = threadIdx.x; i < TILE_KEYS * PIECES; i += SPAN_THREADS) {
        if (!(keys >> (i / PIECES) & 1)) continue;
        uint4 x = *(const uint4 *)(t->v + i / PIECES * C::V_STRIDE + i % PIECES * 16);
        if (is_odd(x.x) || is_odd(x.y) || is_odd(x.z) || is_odd(x.w)) t->odd = 1;
    }
    __syncthreads();
    return t->odd;
}

/* Keeps those of 16 keys that a row sees; bits: of the keys. */
template <typename C> static __device__ inline void mask_values(step_values<C> *x, uint32_t bits)
{
    int      c    = threadIdx.x % 4;
    uint32_t low  = (bits >> (2 * c) & 1 ? 0xffffu : 0) | (bits >> (2 * c + 1) & 1 ? 0xffff0000u : 0);
    uint32_t high = (bits >> (2 * c + 8) & 1 ? 0xffffu : 0) | (bits >> (2 * c + 9) & 1 ? 0xffff0000u : 0);
#pragma unroll
    for (int m = 0; m < C::ELEM_TILES; m++) {
        x->v[m][0] &= low, x->v[m][1] &= low;
        x->v[m][2] &= high, x->v[m][3] &= high;
    }
}

/* Computes the outputs of the tile in t->v. MASKED: V of keys that are not in `seen` counts as zero. */
template <bool MASKED, typename C>
static __device__ inline void weigh_values(span_output<C> &out, const span_shared<C> *t, int n_groups, uint64_t seen)
{
    constexpr int  STEPS = TILE_KEYS / STEP_KEYS;
    step_values<C> step[2];
    step[0].load(t->v, 0);
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        step_weights<C> w;
        w.load(t, n_groups, k);
        if (k + 1 < STEPS) step[(k + 1) % 2].load(t->v, k + 1);
        if (MASKED) mask_values(&step[k % 2], (uint32_t)(seen >> (STEP_KEYS * k)));
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
            for (int n = 0; n < C::N_GROUPS; n++) {
                if (n >= n_groups) break;
#pragma unroll
                for (int m = 0; m < C::ELEM_TILES; m++)
                    mma_16x8x16(out.o[m][n], step[k % 2].v[m], w.p[n][2 * part], w.p[n][2 * part + 1]);
            }
    }
}

/* Adds the tile in t->v to the outputs. */
template <typename C>
static __device__ inline void weigh_tile(span_output<C> &acc, const span_shared<C> *t, int n_groups, bool first)
{
    int            c   = threadIdx.x % 4;
    span_output<C> out = {};
    weigh_values<false>(out, t, n_groups, 0);
#pragma unroll
    for (int n = 0; n < C::N_GROUPS; n++) {
        if (n >= n_groups) break;
        float2 old = *(const float2 *)&t->w.old[8 * n + 2 * c], now = *(const float2 *)&t->w.now[8 * n + 2 * c];
#pragma unroll
        for (int m = 0; m < C::ELEM_TILES; m++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float x        = out.o[m][n][j];
                acc.o[m][n][j] = first ? x : fmaf(x, j % 2 ? now.y : now.x, acc.o[m][n][j] * (j % 2 ? old.y : old.x));
            }
    }
}

/* Stores maximum, sum and outputs of queries first to end - 1. */
template <typename C>
static __device__ inline void store_unit(const span_output<C> &acc, const span_shared<C> *t, int first, int end)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, c = lane % 4;
    if (warp == 0 && lane >= first && lane < end) *(float2 *)t->part[lane] = float2{t->w.max[lane], t->w.sum[lane]};
#pragma unroll
    for (int n = 0; n < C::N_GROUPS; n++)
#pragma unroll
        for (int col = 0; col < 2; col++) {
            int q = 8 * n + 2 * c + col;
            if (q < first || q >= end) continue;
            float *to = t->part[q] + 4 + warp * C::ELEM_TILES * 16 + g;
#pragma unroll
            for (int m = 0; m < C::ELEM_TILES; m++) {
                to[16 * m]     = acc.o[m][n][col];
                to[16 * m + 8] = acc.o[m][n][2 + col];
            }
        }
}

/* Makes and stores a tile whose rows see different keys, when some V that not all of them see is not a number: each row
 * by itself. Seldom. */
template <typename C> static __device__ __noinline__ void weigh_rows(const span_shared<C> *t, int n_groups, int per_row)
{
#pragma unroll 1
    for (int r = 0; r < t->rows.n; r++) {
        span_output<C> out = {};
        weigh_values<true>(out, t, n_groups, t->rows.seen[r * per_row].bits);
        store_unit(out, t, r * per_row, (r + 1) * per_row);
    }
}

/* --- a unit ---------------------------------------------------------------------------------------*/

/* Makes the unit's rows the block's: their numbers, their queries where these are not staged yet, and where their
 * outputs go. */
template <typename C>
static __device__ inline void start_unit(span_shared<C> *t, const cuda_attention_args &a, const span_work &w,
                                         const group_rows &group, int kv_head, int per_row, bool staged)
{
    int i   = threadIdx.x;
    int row = put_rows(&t->rows, group, w.rows, w.u.tile, per_row);
    if (i == 0) t->odd = 0;
    if (!staged) {
        __syncthreads();
        stage_queries<C::DIMS, C::QUERIES, SPAN_THREADS>(t->high, t->low, t->rows, a, kv_head, per_row);
    }
    if (row >= 0) t->part[i] = part_of(a, row, kv_head * per_row + i % per_row, w.u.tile);
    if (!staged) __syncthreads();
}

/* Waits for V of the unit's tile i and decodes it; asks for the next V if that is of this unit. */
template <typename C>
static __device__ inline void take_values(span_shared<C> *t, const cuda_attention_args &a, int kv_head, span_state *s,
                                          int i)
{
    span_tile x = tile_at(t, *s, i);
    gate_wait_block(&t->v_gate, s->done % 2);
    if (!x.paged) __syncthreads(); /* other threads have copied it */
    with_type(a.c.types.v, [&](auto tag) { decode_values(tag, t, a, x); });
    __syncthreads();
    if (i + 1 < t->work[s->turn].u.n) ask_v_codes(t, a, kv_head, s, s->done + 1);
}

/* Works through a unit. found: where the last warp found the keys of the next unit. */
template <typename C>
static __device__ inline void do_unit(span_shared<C> *t, const cuda_attention_args &a, int kv_head, int per_row,
                                      span_state *s, const key_place (&found)[2])
{
    const span_work *w    = &t->work[s->turn];
    int              warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int              n = __popc(w->rows) * per_row, n_groups = (n + 7) / 8, n_tiles = w->u.n;
    bool             weighs = warp * C::ELEM_TILES * 16 < C::DIMS, whole = ~w->all == 0;
    span_output<C>   acc;
#pragma unroll 1
    for (int i = 0; i < n_tiles; i++) {
        int slot = (int)(s->done % C::N_SLOTS);
        gate_wait_block(&t->gate[slot], s->done / C::N_SLOTS % 2);
        if constexpr (C::HAS_CODES) {
            take_values(t, a, kv_head, s, i);
            with_type(a.c.types.k, [&](auto tag) { score_codes(tag, t, t->k[slot], n_groups, a); });
        } else {
            score_tile(t, t->k[slot], n_groups, a, tile_at(t, *s, i));
            copy_commit();
        }
        if (i == 0 && warp == SPAN_WARPS - 1)
            for (int j = 0; j < 2; j++) put_place(t, 1 - s->turn, lane + j * WARP, found[j]);
        __syncthreads();
        s->done++;
        ask_k(t, a, kv_head, s);
        if constexpr (C::HAS_CODES) ask_v_codes(t, a, kv_head, s, s->done);
        if (whole)
            soften<C::QUERIES, SPAN_WARPS>(
                &t->w, [](int) { return seen_keys{~(uint64_t)0}; }, n, i == 0);
        else
            soften<C::QUERIES, SPAN_WARPS>(
                &t->w, [=](int m) { return t->rows.seen[m]; }, n, i == 0);
        if constexpr (C::HAS_CODES)
            __syncthreads();
        else
            copy_wait<0>(&t->v_gate);
        if (!whole && has_odd(t, w->any & ~w->all)) { /* the whole block; the unit is a tile */
            if (weighs) weigh_rows(t, n_groups, per_row);
            return;
        }
        if (weighs) weigh_tile(acc, t, n_groups, i == 0);
        __syncthreads();
    }
    if (weighs) store_unit(acc, t, 0, n);
}

/* Asks for as many tiles of this unit as there are places for. */
template <typename C>
static __device__ inline void ask_first(span_shared<C> *t, const cuda_attention_args &a, int kv_head, span_state *s)
{
    for (int i = 0; i < C::N_SLOTS && (int)(s->asked - s->base) < t->work[s->turn].u.n; i++) ask_k(t, a, kv_head, s);
    if constexpr (C::HAS_CODES) ask_v_codes(t, a, kv_head, s, s->done);
}

/* Grid: x over units, y over K/V heads, z over rows. In a step whose rows are settled, the first unit's rows and keys
 * are found before the kernel waits, and old keys asked for. */
template <typename C>
static __global__ void __launch_bounds__(SPAN_THREADS, C::DIMS <= 256 ? 2 : 1) span_kernel(cuda_attention_args a)
{
    DYNAMIC_SHARED(uint4, span_memory);
    auto *t       = (span_shared<C> *)span_memory;
    int   kv_head = blockIdx.y, row = a.first_row + (int)blockIdx.z, per_row = a.n_heads / a.c.n_kv_heads;
    let_next_start();
    if (threadIdx.x < C::N_SLOTS) gate_init(&t->gate[threadIdx.x]);
    if (C::HAS_CODES && threadIdx.x == C::N_SLOTS) gate_init(&t->v_gate);
    if (!a.settled) wait_for_previous();
    head_view  v     = view_of(a, row, kv_head * per_row);
    span_range spans = spans_of(a, v);
    group_rows group(a, row, C::QUERIES / per_row);
    span_state s   = {};
    span_work  now = next_work(group, v, spans, blockIdx.x);
    if (now.u.there) {
        if (threadIdx.x == 0) t->work[0] = now, t->work[1].u.there = false;
        if (threadIdx.x < TILE_KEYS) put_place(t, 0, threadIdx.x, find_place<C>(a, v, now.u, now.any, threadIdx.x));
        __syncthreads();
        if (a.settled && is_old(a, row, now.u)) ask_first(t, a, kv_head, &s);
    }
    if (a.settled) wait_for_previous();
    for (unsigned staged = 0; now.u.there; s.turn = 1 - s.turn) {
        key_place found[2] = {};
        ask_first(t, a, kv_head, &s);
        start_unit(t, a, now, group, kv_head, per_row, now.rows == staged);
        staged         = now.rows;
        span_work next = next_work(group, v, spans, now.i + (int)gridDim.x);
        if (next.u.there && threadIdx.x / WARP == SPAN_WARPS - 1)
            for (int j = 0; j < 2; j++) found[j] = find_place<C>(a, v, next.u, next.any, threadIdx.x % WARP + j * WARP);
        if (threadIdx.x == 0) t->work[1 - s.turn] = next;
        do_unit(t, a, kv_head, per_row, &s, found);
        s.base += (unsigned)t->work[s.turn].u.n;
        now = t->work[1 - s.turn];
        __syncthreads(); /* the outputs are stored */
    }
}

/* --- launches -------------------------------------------------------------------------------------*/

/* Returns how many blocks share the units of a row. Few blocks with many units each waste least, but the units of few
 * rows have to keep the GPU busy. */
static unsigned blocks_of(const cuda_attention_args *a)
{
    int n = a->n_rows < 8 ? 64 : 16;
    return (unsigned)(a->n_parts < WINDOW_PARTS ? 4 : n);
}

template <typename C> static void launch_spans(cudaStream_t s, const cuda_attention_args *a)
{
    dim3 grid(blocks_of(a), (unsigned)a->c.n_kv_heads, (unsigned)(a->end_row - a->first_row));
    static_assert(sizeof(span_shared<C>) <= 227 << 10, "a block has 227 KB on Hopper");
    allow_shared(span_kernel<C>, sizeof(span_shared<C>));
    LAUNCH_EARLY((span_kernel<C>), grid, SPAN_THREADS, sizeof(span_shared<C>), s, *a);
}

bool cuda_attention_has_spans(void) { return can_start_early() && shared_limit() >= 227 << 10; }

template <bool CODED> static void launch_by_size(cudaStream_t s, const cuda_attention_args *a)
{
    switch (a->c.head_dim) {
    case 64: launch_spans<span_cut<64, 2, 1, CODED>>(s, a); break;
    case 128: launch_spans<span_cut<128, 2, 1, CODED>>(s, a); break;
    case 256: launch_spans<span_cut<256, 2, 1, CODED>>(s, a); break;
    default:
        if (a->n_rows * (a->n_heads / a->c.n_kv_heads) <= 8)
            launch_spans<span_cut<512, 1, 2, CODED>>(s, a);
        else
            launch_spans<span_cut<512, 4, 1, CODED>>(s, a);
    }
}

void cuda_attention_spans(cudaStream_t s, const cuda_attention_args *a)
{
    if (a->c.scale_bytes)
        launch_by_size<true>(s, a);
    else
        launch_by_size<false>(s, a);
}
