/* Attention on tensor cores for long contexts: a block works through the tiles of its spans, with K and V of the tiles
 * ahead on their way to shared memory. The arithmetic is that of attention_mma.cu, to the bit.
 *
 * Keys, and elements of V, are rows of operand A, queries are the columns of B, 8 at a time: a row with 8 heads per K/V
 * head fills them, and several rows of a lane share what is in shared memory. Warps split a tile's keys for the scores
 * and the elements for the outputs.
 *
 * K comes by pages, V by pieces of 16 bytes, which leave room between its keys. A place is asked for again when all
 * warps are done with it: K of a later tile after the scores, V of the next one while its scores are computed, those of
 * the next unit after the last ones of this unit. */
#include "ops/cuda/attention_mma.cuh"

enum { SPAN_WARPS = 8, SPAN_THREADS = SPAN_WARPS * WARP, STEP_KEYS = 16, WARP_KEYS = TILE_KEYS / SPAN_WARPS };
enum { WINDOW_PARTS = 64 }; /* rows with fewer parts look back over a window */

/* GROUPS: of 8 queries; SLOTS: for K. */
template <int DIM, int GROUPS, int SLOTS> struct span_cut {
    static constexpr int DIMS = DIM, N_GROUPS = GROUPS, N_SLOTS = SLOTS, QUERIES = 8 * GROUPS;
    static constexpr int KEY_BYTES = 2 * DIM;
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
    alignas(16) char k[C::N_SLOTS][TILE_KEYS * C::KEY_BYTES];
    alignas(16) char v[TILE_KEYS * C::V_STRIDE];
    alignas(16) uint16_t high[C::QUERIES][C::DIMS + 32];
    alignas(16) uint16_t low[C::QUERIES][C::DIMS + 32];
    tile_weights<C::QUERIES> w;
    float                   *part[C::QUERIES]; /* where a query's output goes */
    uint64_t                 gate[C::N_SLOTS], v_gate;
    span_work                work[2]; /* this unit and the next, by turns */
    unit_keys                keys[2]; /* theirs */
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
    unsigned base;        /* tiles of the units before this one */
};

/* A tile, and where its keys are stored. */
struct span_tile {
    const uint32_t *at;    /* unit_keys::at of these */
    bool            paged; /* by pages */
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
    return {t->keys[turn].at + (w.u.n > 1 ? i * (TILE_KEYS / KV_PAGE) : 0), w.u.n > 1, w.u.there && i < w.u.n, w.any};
}

/* Asks for K of the next tile, by the last warps, one page each; all of them where its keys are not in pages. */
template <typename C>
static __device__ inline void ask_k(span_shared<C> *t, const cuda_attention_args &a, span_state *s)
{
    constexpr int PAGES = TILE_KEYS / KV_PAGE;
    int           warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, slot = (int)(s->asked % C::N_SLOTS);
    if (s->asked - s->done >= C::N_SLOTS) return;
    span_tile x = tile_at(t, *s, (int)(s->asked - s->base));
    if (!x.there) return;
    s->asked++;
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

/* Scores of the tile in `keys`: a warp has 16 keys and every second group of queries. The products with high and with
 * low are summed apart. Asks for V of the tile x meanwhile. */
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
#pragma unroll
            for (int n = 0; n < PAIR; n++) {
                if (n0 + 2 * n >= n_groups) break;
                uint4 high = *(const uint4 *)&t->high[8 * (n0 + 2 * n) + g][32 * (j0 + s) + 8 * c];
                uint4 low  = *(const uint4 *)&t->low[8 * (n0 + 2 * n) + g][32 * (j0 + s) + 8 * c];
                mma_16x8x16(acc[n], k[0], high.x, high.y);
                mma_16x8x16(rest[n], k[0], low.x, low.y);
                mma_16x8x16(acc[n], k[1], high.z, high.w);
                mma_16x8x16(rest[n], k[1], low.z, low.w);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < PAIR; n++) {
        if (n0 + 2 * n >= n_groups) break;
#pragma unroll
        for (int i = 0; i < 4; i++)
            t->w.s[8 * (n0 + 2 * n) + 2 * c + i % 2][key + i / 2 * 8] = (acc[n][i] + rest[n][i]) * a.scale;
    }
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

/* Works through a unit. found: what the last warp found of the keys of the next unit. */
template <typename C>
static __device__ inline void do_unit(span_shared<C> *t, const cuda_attention_args &a, int per_row, span_state *s,
                                      const uint32_t (&found)[2])
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
        score_tile(t, t->k[slot], n_groups, a, tile_at(t, *s, i));
        copy_commit();
        if (i == 0 && warp == SPAN_WARPS - 1)
            for (int j = 0; j < 2; j++) t->keys[1 - s->turn].at[lane + j * WARP] = found[j];
        __syncthreads();
        s->done++;
        ask_k(t, a, s);
        if (whole)
            soften<C::QUERIES, SPAN_WARPS>(
                &t->w, [](int) { return seen_keys{~(uint64_t)0}; }, n, i == 0);
        else
            soften<C::QUERIES, SPAN_WARPS>(
                &t->w, [=](int m) { return t->rows.seen[m]; }, n, i == 0);
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
    if (!a.settled) wait_for_previous();
    head_view  v     = view_of(a, row, kv_head * per_row);
    span_range spans = spans_of(a, v);
    group_rows group(a, row, C::QUERIES / per_row);
    span_state s   = {};
    span_work  now = next_work(group, v, spans, blockIdx.x);
    if (now.u.there) {
        if (threadIdx.x == 0) t->work[0] = now, t->work[1].u.there = false;
        if (threadIdx.x < TILE_KEYS) t->keys[0].at[threadIdx.x] = unit_keys::find(a, v, now.u, now.any, threadIdx.x);
        __syncthreads();
        if (a.settled && is_old(a, row, now.u))
            for (int i = 0; i < C::N_SLOTS; i++) ask_k(t, a, &s);
    }
    if (a.settled) wait_for_previous();
    for (unsigned staged = 0; now.u.there; s.turn = 1 - s.turn) {
        uint32_t found[2] = {};
        for (int i = 0; i < C::N_SLOTS; i++) ask_k(t, a, &s);
        start_unit(t, a, now, group, kv_head, per_row, now.rows == staged);
        staged         = now.rows;
        span_work next = next_work(group, v, spans, now.i + (int)gridDim.x);
        if (next.u.there && threadIdx.x / WARP == SPAN_WARPS - 1)
            for (int j = 0; j < 2; j++)
                found[j] = unit_keys::find(a, v, next.u, next.any, threadIdx.x % WARP + j * WARP);
        if (threadIdx.x == 0) t->work[1 - s.turn] = next;
        do_unit(t, a, per_row, &s, found);
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

void cuda_attention_spans(cudaStream_t s, const cuda_attention_args *a)
{
    switch (a->c.head_dim) {
    case 64: launch_spans<span_cut<64, 2, 1>>(s, a); break;
    case 128: launch_spans<span_cut<128, 2, 1>>(s, a); break;
    case 256: launch_spans<span_cut<256, 2, 1>>(s, a); break;
    default:
        if (a->n_rows * (a->n_heads / a->c.n_kv_heads) <= 8)
            launch_spans<span_cut<512, 1, 2>>(s, a);
        else
            launch_spans<span_cut<512, 4, 1>>(s, a);
    }
}
