/* Attention on wgmma for chains and trees: steps of up to 64 rows, of which many are of one lane, with heads of 512 in
 * F16. The arithmetic is that of attention_mma.cu, to the bit.
 *
 * A block has a warp that plans, three that copy and two warpgroups that compute. It works for up to 64 queries of a
 * lane at a time: a group is the rows of a lane among up to 8 rows that follow each other. The units of all groups are
 * two lists, spans and single tiles, of which each block has an equal share: units of one group and K/V head follow
 * each other, so that queries are staged seldom, and lanes of different lengths are balanced.
 *
 * K and V pass through a ring of places. A piece is 128 elements of the 64 keys of a tile, as two blocks of 64
 * elements, which wgmma takes from there as operand B, along k (K) or along n (V).
 *
 *     S = Q K^T   warpgroup w: queries 32 w to 32 w + 31, of which warp i has eight: high in rows 0 to 7 of its 16, low
 *                 in rows 8 to 15. So a thread has both products of a query and a key, and adds them.
 *     P           high and low, in shared memory: operand A of both warpgroups
 *     O = P V     warpgroup w: all queries, half w of the elements */
#include "ops/cuda/attention_wgmma.cuh"

enum {
    CHAIN_DIM     = 512,
    CHAIN_QUERIES = 64,
    CHAIN_ROWS    = 64, /* rows of a launch */
    SHARE_ROWS    = 8,  /* rows of a group, at most */
    COPY_WARPS    = 3,  /* after the one that plans */
    WORK_WARPS    = 8,
    WORK_THREADS  = WORK_WARPS * WARP,
    PLAN_THREADS  = (1 + COPY_WARPS) * WARP,
    CHAIN_THREADS = PLAN_THREADS + WORK_THREADS,
    CHAIN_WARPS   = CHAIN_THREADS / WARP,
    CORE_BYTES    = 1024, /* eight rows of 128 bytes */
    PIECE_DIMS    = 128,
    PIECE_BYTES   = 2 * BLOCK_BYTES,
    PIECES        = CHAIN_DIM / PIECE_DIMS, /* in a tile of K, and in one of V */
    MINE          = PIECES / 2,             /* pieces of V of a warpgroup: piece i belongs to warpgroup i % 2 */
    TILE_PAGES    = TILE_KEYS / KV_PAGE,
    KEY_BYTES     = 2 * CHAIN_DIM,
    CHAIN_BYTES   = 227 << 10,
    CONTROL_BYTES = 3 * CORE_BYTES,
    P_BYTES       = 2 * CHAIN_QUERIES / 8 * CORE_BYTES,
    Q_BLOCKS      = CHAIN_DIM / 64,
    MOST_PLACES   = 12,
    UNITS         = 2, /* that planning is ahead, at most */
    STAGED        = 1, /* ids of barriers */
    WEIGHED       = 2,
    LOOKED        = 3, /* and 4 */
};

struct alignas(CORE_BYTES) chain_align {
    char bytes[CORE_BYTES];
};

/* A unit on its way from the warp that plans to those that copy and compute. step: where its pages, or the keys that
 * are gathered, start in the pool, in steps of KEY_STEP. Row i is row first_row + i of the step. */
struct chain_unit {
    int       n, first_row, kv_head, what; /* tiles, 0: no more units; what: of which group and K/V head */
    unsigned  rows;                        /* that the unit is for */
    int       n_rows;                      /* from the first of the group's lane to the last */
    bool      own, fresh;                  /* keys are gathered; keys may be stored by kernels before this one */
    uint64_t  any, some;                   /* keys that some rows see; except those that all see */
    uint32_t  step[TILE_KEYS];
    seen_keys seen[SHARE_ROWS];
    int       part[SHARE_ROWS];
};

/* Shared memory: this, P (high, low: 8 x CORE_BYTES each), the queries, the ring. Queries: by 64 elements, of 8 queries
 * each high, then low. Where no group has more than 8 queries, only those have room, and the ring has more places. */
struct chain_shared {
    uint64_t   full[MOST_PLACES], empty[MOST_PLACES], unit_full[UNITS], unit_empty[UNITS];
    chain_unit unit[UNITS];
    float      old[CHAIN_QUERIES], now[CHAIN_QUERIES];
    int        before[2][CHAIN_ROWS + 1]; /* spans, tiles of the groups of the rows before this one, of a K/V head */
    int        max_rows;                  /* largest chain_unit::n_rows */

    __device__ inline char *p(int part, int group)
    {
        return (char *)this + CONTROL_BYTES + (part * (CHAIN_QUERIES / 8) + group) * CORE_BYTES;
    }
};

/* Where queries and places are. */
struct chain_room {
    int   q_stride, places; /* bytes from 64 elements of the queries to the next */
    char *q, *place;

    __device__ inline chain_room(chain_shared *t, int per_row)
    {
        q_stride = t->max_rows * per_row <= 8 ? 2 * CORE_BYTES : CHAIN_QUERIES / 4 * CORE_BYTES;
        q        = (char *)t + CONTROL_BYTES + P_BYTES;
        place    = q + Q_BLOCKS * q_stride;
        places   = min_of(MOST_PLACES, (CHAIN_BYTES - CONTROL_BYTES - P_BYTES - Q_BLOCKS * q_stride) / PIECE_BYTES);
    }
    __device__ inline char *at(int i) const { return place + i * PIECE_BYTES; }
};

/* Which place of the ring, or which slot of units, comes next. */
struct chain_turn {
    int      at;
    unsigned phase;

    __device__ inline void advance(int n)
    {
        if (++at == n) at = 0, phase ^= 1;
    }
};

/* --- work -----------------------------------------------------------------------------------------*/

/* Returns the rows of a group, at most. */
static __host__ __device__ inline int group_size(const cuda_attention_args &a)
{
    int n = CHAIN_QUERIES / (a.n_heads / a.c.n_kv_heads);
    return n < SHARE_ROWS ? n : (int)SHARE_ROWS;
}

/* The units of a group, which `row` leads; each lane of a warp has a row. */
struct chain_group {
    group_rows rows;
    int        leader;
    int        span, n_spans;          /* spans that some row has */
    int        tile[2], n_tile[2];     /* tiles before and after those */
    int        own, own_before, n_own; /* tiles with positions at slots of other numbers: the row's first, those of rows
                                        * before it, all */

    __device__ inline chain_group(const cuda_attention_args &a, int row) : rows(a, row, group_size(a)), leader(row)
    {
        const span_range &spans = rows.spans;
        int               lane = threadIdx.x % WARP, first = rows.v.first, last = rows.v.last;
        bool              sees = rows.there && last >= first, has = sees && spans.to > spans.from;
        unsigned          any = __ballot_sync(ALL_LANES, sees), all = __ballot_sync(ALL_LANES, has);
        uint32_t          none  = 0x7fffffffu;
        int               from0 = (int)warp_min_u32(has ? (uint32_t)spans.from : none);
        int               from1 = (int)warp_max_u32(has ? (uint32_t)spans.from : 0);
        int               to0   = (int)warp_min_u32(has ? (uint32_t)spans.to : none);
        int               to1   = (int)warp_max_u32(has ? (uint32_t)spans.to : 0);
        int               tile0 = (int)warp_min_u32(sees ? (uint32_t)(first / TILE_KEYS) : none);
        int               tile1 = (int)warp_max_u32(sees ? (uint32_t)(last / TILE_KEYS) : 0) + 1;
        own                     = (first > rows.root ? first : rows.root) / TILE_KEYS;
        own_before              = 0;
        n_own                   = 0;
        span                    = from0;
        n_spans                 = all ? to1 - from0 : 0;
        tile[0] = tile[1] = tile0;
        n_tile[0] = n_tile[1] = 0;
        int mine              = n_of_own();
        for (int i = 0; i < SHARE_ROWS; i++) {
            int n = __shfl_sync(ALL_LANES, mine, i);
            own_before += i < lane ? n : 0;
            n_own += n;
        }
        if (any && any != all) n_tile[0] = tile1 - tile0;
        if (any && any == all) {
            n_tile[0] = from1 * SPAN_TILES > tile0 ? from1 * SPAN_TILES - tile0 : 0;
            tile[1]   = to0 * SPAN_TILES;
            if (tile[1] < tile0 + n_tile[0]) tile[1] = tile0 + n_tile[0];
            n_tile[1] = tile1 > tile[1] ? tile1 - tile[1] : 0;
        }
    }
    __device__ inline int n_of_own() const
    {
        const head_view &v = rows.v;
        return rows.there && v.last >= v.first && v.last >= rows.root ? v.last / TILE_KEYS + 1 - own : 0;
    }
    __device__ inline int n(bool tiles) const { return tiles ? n_tile[0] + n_tile[1] + n_own : n_spans; }
    /* Returns the rows of the lane, a bit each. */
    __device__ inline unsigned members() const { return __ballot_sync(ALL_LANES, rows.there); }
};

/* n: tiles. rows: of the group, 0: nothing is to be done. own: gathered for one row. any, all: keys of a tile that some
 * and that all of them see. */
struct chain_item {
    int      tile, n;
    unsigned rows;
    bool     own;
    uint64_t any, all;
};

/* A block's way through its share of the spans or of the tiles, by all lanes of a warp. */
struct chain_walk {
    bool tiles;
    int  i, left, row, head, at, n; /* item of the list; of the row's group and its K/V head, of n */

    __device__ inline chain_walk(const chain_shared *t, const cuda_attention_args &a, bool of_tiles)
        : tiles(of_tiles), row(-1), head(0), at(0), n(0)
    {
        int all = t->before[tiles][CHAIN_ROWS] * a.c.n_kv_heads, blocks = (int)gridDim.x, b = (int)blockIdx.x;
        if (tiles) b = blocks - 1 - b; /* the first blocks have more spans */
        i    = all / blocks * b + min_of(b, all % blocks);
        left = all / blocks + (b < all % blocks);
    }
    /* Finds the row, counted from the launch's first, whose group has item i. */
    __device__ inline void find(const chain_shared *t, const cuda_attention_args &a)
    {
        const int *before = t->before[tiles];
        int        lane = threadIdx.x % WARP, heads = a.c.n_kv_heads;
        unsigned   low  = __ballot_sync(ALL_LANES, before[lane] * heads <= i);
        unsigned   high = __ballot_sync(ALL_LANES, before[lane + WARP] * heads <= i);
        row             = __popc(low) + __popc(high) - 1;
        n               = before[row + 1] - before[row];
        at              = i - before[row] * heads;
        head            = at / n;
        at -= head * n;
    }
    /* Returns whether the next item is of another group. */
    __device__ inline bool go_on(const cuda_attention_args &a)
    {
        i++;
        if (--left == 0 || ++at < n) return false;
        at = 0;
        return ++head == a.c.n_kv_heads;
    }
    __device__ inline chain_item item(const chain_group &group) const
    {
        int        k = at, n_shared = group.n_tile[0] + group.n_tile[1];
        chain_item x = {(group.span + k) * SPAN_TILES, SPAN_TILES, 0, false, ~(uint64_t)0, ~(uint64_t)0};
        if (!tiles) {
            x.rows = group.rows.having(x.tile);
            return x;
        }
        x.n   = 1;
        x.own = k >= n_shared;
        if (!x.own) {
            x.tile = k < group.n_tile[0] ? group.tile[0] + k : group.tile[1] + k - group.n_tile[0];
            x.rows = group.rows.touching(x.tile);
        } else {
            k -= n_shared;
            x.rows = __ballot_sync(ALL_LANES, k >= group.own_before && k < group.own_before + group.n_of_own());
            x.tile = __shfl_sync(ALL_LANES, group.own + k - group.own_before, __ffs((int)x.rows) - 1);
        }
        seen_tile seen(group.rows, x.rows, x.tile);
        x.any = seen.any, x.all = seen.all;
        return x;
    }
};

/* Counts the units of all groups, which their first rows have. */
static __device__ inline void count_units(chain_shared *t, const cuda_attention_args &a)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n_rows = a.end_row - a.first_row;
    for (int row = warp; row < CHAIN_ROWS; row += CHAIN_WARPS) {
        int spans = 0, tiles = 0;
        if (row < n_rows) {
            chain_group group(a, a.first_row + row);
            unsigned    members = group.members();
            bool        leads   = __ffs((int)members) - 1 == group.rows.mine;
            int         n       = WARP - __clz((int)members) - group.rows.mine;
            spans = leads ? group.n(false) : 0, tiles = leads ? group.n(true) : 0;
            if (lane == 0 && spans + tiles && n > t->max_rows) atomicMax(&t->max_rows, n);
        }
        if (lane == 0) t->before[0][row] = spans, t->before[1][row] = tiles;
    }
    __syncthreads();
    if (warp < 2) {
        int x = t->before[warp][2 * lane], y = t->before[warp][2 * lane + 1], sum = x + y;
        for (int k = 1; k < WARP; k *= 2) {
            int z = __shfl_sync(ALL_LANES, sum, lane >= k ? lane - k : lane);
            sum += lane >= k ? z : 0;
        }
        __syncwarp();
        t->before[warp][2 * lane]     = sum - x - y;
        t->before[warp][2 * lane + 1] = sum - y;
        if (lane == WARP - 1) t->before[warp][CHAIN_ROWS] = sum;
    }
    __syncthreads();
}

/* --- planning -------------------------------------------------------------------------------------*/

/* Returns where key or page i of an item starts, in steps of KEY_STEP. */
static __device__ inline uint32_t find_step(const cuda_attention_args &a, const chain_item &x, const chain_group &group,
                                            int kv_head, int i)
{
    int32_t slot = x.tile * TILE_KEYS + i * (x.own ? 1 : (int)KV_PAGE);
    if (x.own ? !(x.any >> i & 1) : i >= x.n * TILE_PAGES || !(x.any >> (i % TILE_PAGES * KV_PAGE) & 0xffff)) return 0;
    if (x.own) slot = slot_of(a, group.rows.first + __ffs((int)x.rows) - 1, slot);
    return (uint32_t)((size_t)(cache_k(a.c, a.layer, kv_head, a.lane[group.leader], slot) - a.c.pool) / KEY_STEP);
}

/* Describes an item to those that copy and compute; by a warp. */
static __device__ inline void put_unit(chain_unit *u, const cuda_attention_args &a, const chain_item &x,
                                       const chain_group &group, int kv_head, uint32_t step0, uint32_t step1)
{
    int      lane = threadIdx.x % WARP, base = group.leader - group.rows.first;
    unsigned members = group.members();
    if (lane == 0) {
        u->n = x.n, u->first_row = group.leader, u->kv_head = kv_head;
        u->what = (group.leader - a.first_row) * a.c.n_kv_heads + kv_head;
        u->rows = x.rows >> base, u->n_rows = WARP - __clz((int)members) - base;
        u->own = x.own, u->fresh = x.own || !is_old(a, group.leader, {x.tile, x.n, true});
        u->any = x.any, u->some = x.any & ~x.all;
    }
    if (group.rows.there) {
        u->part[lane - base] = parts_of(a, group.rows.v).at(x.tile);
        u->seen[lane - base] = x.n > 1 ? seen_keys{~(uint64_t)0} : keys_of(group.rows.v, x.tile);
    }
    u->step[lane] = step0;
    if (x.own) u->step[lane + WARP] = step1;
}

/* Finds the units of a list one after the other; by a warp. */
static __device__ inline void plan_list(chain_shared *t, const cuda_attention_args &a, bool tiles, chain_turn *slot)
{
    int        lane = threadIdx.x % WARP;
    chain_walk walk(t, a, tiles);
    while (walk.left) {
        walk.find(t, a);
        chain_group group(a, a.first_row + walk.row);
        for (bool other = false; walk.left && !other; other = walk.go_on(a)) {
            chain_item x = walk.item(group);
            if (!x.rows) continue;
            uint32_t step0 = find_step(a, x, group, walk.head, lane);
            uint32_t step1 = x.own ? find_step(a, x, group, walk.head, lane + WARP) : 0;
            ring_wait(&t->unit_empty[slot->at], slot->phase ^ 1);
            put_unit(&t->unit[slot->at], a, x, group, walk.head, step0, step1);
            __syncwarp();
            if (lane == 0) ring_arrive(&t->unit_full[slot->at]);
            slot->advance(UNITS);
        }
    }
}

static __device__ inline void plan_units(chain_shared *t, const cuda_attention_args &a)
{
    chain_turn slot = {0, 0};
    plan_list(t, a, false, &slot);
    plan_list(t, a, true, &slot);
    ring_wait(&t->unit_empty[slot.at], slot.phase ^ 1);
    if (threadIdx.x % WARP == 0) {
        t->unit[slot.at].n = 0;
        ring_arrive(&t->unit_full[slot.at]);
    }
    if (a.settled) wait_for_previous();
}

/* --- copying --------------------------------------------------------------------------------------*/

/* Returns where 16 bytes of V of a key are in a place. */
static __device__ inline int value_place(int key, int part)
{
    return part / 8 * BLOCK_BYTES + key * 128 + ((part % 8 ^ key % 8) << 4);
}

/* Copy 16 keys of a piece, by a warp. V: 16 bytes at a time; lane 16 i + j has part j of keys i, i + 2, ... K: four
 * elements at a time; lane j has part j of all keys. copy_page: the keys follow each other from `from` on. copy_keys:
 * those in `seen`, zeros for the others; own: key i is step[i] * KEY_STEP after `from`. */
template <bool IS_V> static __device__ inline void copy_page(uint64_t *gate, char *to, const char *from, int lane)
{
#pragma unroll
    for (int r = 0; r < (IS_V ? KV_PAGE / 2 : (int)KV_PAGE); r++)
        if (IS_V) {
            int key = 2 * r + lane / 16, part = lane % 16;
            copy_piece(gate, to + value_place(key, part), from + key * KEY_BYTES + part * 16, true);
        } else {
            copy_half_piece(gate, to + key_place(r, lane), from + r * KEY_BYTES + lane * 8, true);
        }
}
template <bool IS_V>
static __device__ __noinline__ void copy_keys(uint64_t *gate, char *to, const char *from, const uint32_t *step,
                                              bool own, unsigned seen, int lane)
{
#pragma unroll 1
    for (int r = 0; r < (IS_V ? KV_PAGE / 2 : (int)KV_PAGE); r++) {
        int         key = IS_V ? 2 * r + lane / 16 : r, part = IS_V ? lane % 16 : lane;
        bool        real = seen >> key & 1;
        const char *at   = from;
        if (real) at += (own ? (size_t)step[key] * KEY_STEP : (size_t)key * KEY_BYTES) + part * (IS_V ? 16 : 8);
        if (IS_V)
            copy_piece(gate, to + value_place(key, part), at, real);
        else
            copy_half_piece(gate, to + key_place(key, part), at, real);
    }
}

/* Copies a piece of tile k of a unit. from: where the piece begins in a key, counted from the pool. */
template <bool IS_V>
static __device__ inline void copy_tile(uint64_t *gate, char *to, const char *from, const chain_unit *u, int k,
                                        int lane)
{
    bool     own = u->own;
    uint64_t any = u->any;
#pragma unroll 1
    for (int p = 0; p < TILE_PAGES; p++, to += KV_PAGE * 128) {
        unsigned    seen = (unsigned)(any >> (p * KV_PAGE)) & 0xffff;
        const char *page = own ? from : from + (size_t)u->step[k * TILE_PAGES + p] * KEY_STEP;
        if (own || seen != 0xffff)
            copy_keys<IS_V>(gate, to, page, u->step + p * KV_PAGE, own, seen, lane);
        else
            copy_page<IS_V>(gate, to, page, lane);
    }
    ring_arrive_copies(gate);
}

/* Copies the pieces of all units, by the warps after the first, a piece each. */
static __device__ inline void copy_units(chain_shared *t, const cuda_attention_args &a, int per_row)
{
    int        lane = threadIdx.x % WARP, next = (int)(threadIdx.x / WARP) - 1; /* pieces until the warp's next one */
    bool       waits = a.settled;
    chain_room room(t, per_row);
    chain_turn turn = {0, 0}, slot = {0, 0};
    for (;; slot.advance(UNITS)) {
        const chain_unit *u = &t->unit[slot.at];
        ring_wait(&t->unit_full[slot.at], slot.phase);
        int n = u->n;
        if (!n) break;
        if (waits && u->fresh) wait_for_previous(), waits = false;
        for (int k = 0; k < n; k++) {
#pragma unroll 1
            for (int i = 0; i < 2 * PIECES; i++, turn.advance(room.places)) {
                if (next-- > 0) continue;
                next           = COPY_WARPS - 1;
                int       v    = i - PIECES;
                uint64_t *gate = &t->full[turn.at];
                ring_wait(&t->empty[turn.at], turn.phase ^ 1);
                if (i < PIECES)
                    copy_tile<false>(gate, room.at(turn.at), a.c.pool + i * (2 * PIECE_DIMS), u, k, lane);
                else
                    copy_tile<true>(gate, room.at(turn.at),
                                    a.c.pool + a.c.plane_bytes + (v % 2 * MINE + v / 2) * (2 * PIECE_DIMS), u, k, lane);
            }
        }
        __syncwarp();
        if (lane == 0) ring_arrive(&t->unit_empty[slot.at]);
    }
    if (waits) wait_for_previous();
}

/* --- computing ------------------------------------------------------------------------------------*/

/* Splits the queries of a group into two f16 each, by all threads that compute. A barrier follows. */
static __device__ inline void stage_group(const chain_room &room, const cuda_attention_args &a, const chain_unit &x,
                                          int per_row, int thread)
{
    constexpr int QUADS = CHAIN_DIM / 4, BATCH = 4;
    int           total = x.n_rows * per_row * QUADS;
#pragma unroll 1
    for (int i0 = thread; i0 < total; i0 += BATCH * WORK_THREADS) {
        float4 v[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            int    i = i0 + j * WORK_THREADS, m = i / QUADS;
            size_t row = (size_t)(x.first_row + m / per_row);
            if (i < total)
                v[j] = *(const float4 *)(a.q + (row * a.n_heads + x.kv_head * per_row + m % per_row) * CHAIN_DIM +
                                         i % QUADS * 4);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            int i = i0 + j * WORK_THREADS, m = i / QUADS, unit = i % QUADS;
            if (i >= total) break;
            char *to = room.q + unit / 16 * room.q_stride + m / 8 * (2 * CORE_BYTES) + key_place(m % 8, unit % 16);
            put_query(to, to + CORE_BYTES, v[j]);
        }
    }
}

/* Returns whether a warpgroup has scores of some of these rows. */
static __device__ inline bool has_scores(unsigned rows, int group, int per_row)
{
    int from = 32 * group / per_row, n = (32 * group + 31) / per_row - from + 1;
    return from < SHARE_ROWS && rows >> from & ((1u << min_of(n, SHARE_ROWS)) - 1);
}

static __device__ inline void release(uint64_t *gate)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0) ring_arrive(gate);
}

/* A query's maximum and sum of the unit so far. */
struct chain_query {
    float max, sum;
};

/* Turns a thread's products of query q into weights. */
static __device__ inline void soften_query(chain_shared *t, float (&d)[32], chain_query *query, int q, float scale,
                                           uint64_t seen, bool first)
{
    int      c       = threadIdx.x % 4;
    uint32_t bits[2] = {(uint32_t)seen >> (2 * c), (uint32_t)(seen >> 32) >> (2 * c)};
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            d[4 * n + k] = (d[4 * n + k] + d[4 * n + 2 + k]) * scale;
            if (!(bits[n / 4] >> (n % 4 * 8 + k) & 1)) d[4 * n + k] = -INFINITY;
        }
    float max = max_score<8>(d, 0);
    soften_scores<8>(d, max, 0);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        uint32_t high = h2_from_f32(d[4 * n], d[4 * n + 1]);
        uint32_t low =
            h2_from_f32(d[4 * n] - from_f16((uint16_t)high), d[4 * n + 1] - from_f16((uint16_t)(high >> 16)));
        int at                             = q % 8 * 128 + (n ^ q % 8) * 16 + c * 4;
        *(uint32_t *)(t->p(0, q / 8) + at) = high;
        *(uint32_t *)(t->p(1, q / 8) + at) = low;
    }
    float sum = sum_weights(d, 0);
    joint to  = first ? joint{max, sum, 0, 1} : join_sums(query->max, query->sum, max, sum);
    *query    = {to.max, to.sum};
    if (c == 0) t->old[q] = to.old, t->now[q] = to.now;
}

/* Computes the scores of a warpgroup's queries, and their weights. */
static __device__ inline void score_group(chain_shared *t, const chain_room &room, chain_turn *turn, chain_query *query,
                                          int group, int q, float scale, uint64_t seen, bool first)
{
    float     d[32];
    uint64_t *before = NULL;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        ring_wait(&t->full[turn->at], turn->phase);
        wgmma_sees();
        wgmma_begin();
#pragma unroll
        for (int b = 0; b < PIECE_DIMS / 64; b++) {
            wgmma_matrix keys(room.at(turn->at) + b * BLOCK_BYTES);
            wgmma_matrix queries(room.q + 8 * group * CORE_BYTES + (2 * i + b) * room.q_stride);
#pragma unroll
            for (int step = 0; step < 4; step++)
                wgmma_shared(d, queries.at(32 * step), keys.at(32 * step), i || b || step);
        }
        wgmma_commit();
        if (i > 0) {
            wgmma_wait<1>(d);
            release(before);
        }
        before = &t->empty[turn->at];
        turn->advance(room.places);
    }
    wgmma_wait<0>(d);
    release(before);
    some_sync(WEIGHED, WORK_THREADS); /* the weights before are done with */
    if (__any_sync(ALL_LANES, seen != 0)) soften_query(t, d, query, q, scale, seen, first);
}

/* Adds a tile to the outputs of a warpgroup; m: the thread's first query. hold: its pieces of V are not released. */
static __device__ inline void weigh_tile(float (&acc)[MINE][64], chain_shared *t, const chain_room &room,
                                         chain_turn *turn, int group, int m, bool hold)
{
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        float one[64];
        if (group == 1) {
            release(&t->empty[turn->at]);
            turn->advance(room.places);
        }
        ring_wait(&t->full[turn->at], turn->phase);
        wgmma_sees();
        wgmma_matrix high(t->p(0, 0)), low(t->p(1, 0)), values(room.at(turn->at), BLOCK_BYTES);
        wgmma_begin();
#pragma unroll
        for (int s = 0; s < TILE_KEYS / 16; s++) {
            wgmma_shared_flipped(one, high.at(32 * s), values.at(2 * CORE_BYTES * s), s > 0);
            wgmma_shared_flipped(one, low.at(32 * s), values.at(2 * CORE_BYTES * s), true);
        }
        wgmma_commit();
        wgmma_wait<0>(one);
        if (!hold) release(&t->empty[turn->at]);
        turn->advance(room.places);
        if (group == 0) {
            release(&t->empty[turn->at]);
            turn->advance(room.places);
        }
        float2 old = {t->old[m], t->old[m + 8]}, now = {t->now[m], t->now[m + 8]};
#pragma unroll
        for (int n = 0; n < 64; n++) {
            float o = n / 2 % 2 ? old.y : old.x, w = n / 2 % 2 ? now.y : now.x;
            acc[i][n] = fmaf(one[n], w, acc[i][n] * o);
        }
    }
}

/* --- V that is not a number -----------------------------------------------------------------------*/

/* Returns whether V of one of these keys has an infinity or a NaN in a piece, by a warpgroup. */
static __device__ inline bool has_odd(const char *piece, uint64_t keys)
{
    bool odd = false;
    for (int i = threadIdx.x % GROUP_THREADS; i < TILE_KEYS * PIECE_DIMS / 8; i += GROUP_THREADS) {
        if (!(keys >> (i % TILE_KEYS) & 1)) continue;
        uint4 x = *(const uint4 *)(piece + value_place(i % TILE_KEYS, i / TILE_KEYS));
        odd     = odd || is_odd(x.x) || is_odd(x.y) || is_odd(x.z) || is_odd(x.w);
    }
    return odd;
}

/* A thread's two queries of the outputs: their rows in the unit, -1: none, and where their halves of a part go. */
struct chain_out {
    int    row[2];
    float *to[2];

    __device__ inline chain_out(const cuda_attention_args &a, const chain_unit *x, int group, int m, int per_row)
    {
#pragma unroll
        for (int side = 0; side < 2; side++) {
            int r = (m + 8 * side) / per_row, head = x->kv_head * per_row + (m + 8 * side) % per_row;
            row[side] = r < SHARE_ROWS && x->rows >> r & 1 ? r : -1;
            to[side]  = NULL;
            if (row[side] >= 0)
                to[side] = head_parts(a, x->first_row + r, head) + (size_t)x->part[r] * (4 + CHAIN_DIM) + 4 +
                           group * (CHAIN_DIM / 2);
        }
    }
};

/* Computes and stores a piece of the outputs of a tile whose rows see different keys, and some V that not all of them
 * see is not a number: each row by itself. at: the first element. Seldom. */
static __device__ inline void weigh_rows(chain_shared *t, const char *piece, const chain_unit *x, const chain_out &out,
                                         int at)
{
    int          warp = threadIdx.x / WARP % 4, lane = threadIdx.x % WARP, i = lane / 8, r = lane % 8, c = lane % 4;
    held_weights w;
#pragma unroll
    for (int part = 0; part < 2; part++)
#pragma unroll
        for (int k = 0; k < TILE_KEYS / 16; k++)
            load_matrices(w.p[part][k], t->p(part, 2 * warp + i % 2) + r * 128 + (((2 * k + i / 2) ^ r) << 4));
#pragma unroll 1
    for (int row = 0; row < SHARE_ROWS; row++) {
        if (!(x->rows >> row & 1)) continue;
#pragma unroll 1
        for (int n = 0; n < PIECE_DIMS / 16; n++) {
            float one[2][4] = {};
            weigh_seen(one, w, piece + n / 4 * BLOCK_BYTES, n % 4 * 16, x->seen[row].bits, lane);
#pragma unroll
            for (int side = 0; side < 2; side++)
#pragma unroll
                for (int k = 0; k < 2; k++)
                    if (out.row[side] == row)
                        *(float2 *)(out.to[side] + at + 16 * n + 8 * k + 2 * c) =
                            float2{one[k][2 * side], one[k][2 * side + 1]};
        }
    }
}

/* The pieces of V of a tile of which some rows see some keys, and not all: looks for what is not a number, computes
 * those outputs again, and releases the places. turn: after the tile. */
static __device__ __noinline__ void check_values(chain_shared *t, chain_room room, chain_turn turn, const chain_unit *x,
                                                 chain_out out, int group)
{
    int  at[MINE];
    bool odd = false;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        at[i] = turn.at - PIECES + 2 * i + group;
        at[i] += at[i] < 0 ? room.places : 0;
        odd = has_odd(room.at(at[i]), x->some) || odd;
    }
    odd = some_any(LOOKED + group, GROUP_THREADS, odd);
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        if (odd) weigh_rows(t, room.at(at[i]), x, out, i * PIECE_DIMS);
        release(&t->empty[at[i]]);
    }
}

/* --- a block --------------------------------------------------------------------------------------*/

/* Works through a unit; by the warpgroups that compute. */
static __device__ inline void do_unit(chain_shared *t, const cuda_attention_args &a, const chain_room &room,
                                      const chain_unit *x, chain_turn *turn, int group, int per_row)
{
    int  lane = threadIdx.x % WARP, warp = threadIdx.x / WARP % 4, g = lane / 4, c = lane % 4, n = same_in_warp(x->n);
    int  q = 32 * group + 8 * warp + g, row = q / per_row; /* the query whose scores it has */
    bool mine = row < SHARE_ROWS && x->rows >> row & 1, scores = same_in_warp(has_scores(x->rows, group, per_row));
    bool hold         = same_in_warp(x->some != 0);
    uint64_t    seen  = mine ? x->seen[row].bits : 0;
    chain_query query = {};
    float       acc[MINE][64];
#pragma unroll
    for (int i = 0; i < MINE; i++)
#pragma unroll
        for (int j = 0; j < 64; j++) acc[i][j] = -0.0f; /* the first tile is multiplied by 1 and added */
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        if (scores) {
            score_group(t, room, turn, &query, group, q, a.scale, seen, k == 0);
        } else {
#pragma unroll 1
            for (int i = 0; i < PIECES; i++, turn->advance(room.places)) {
                ring_wait(&t->full[turn->at], turn->phase);
                release(&t->empty[turn->at]);
            }
            some_sync(WEIGHED, WORK_THREADS);
        }
        wgmma_sees();
        some_sync(STAGED, WORK_THREADS);
        weigh_tile(acc, t, room, turn, group, 16 * warp + g, hold);
    }
    if (mine && c == 0)
        *(float2 *)(head_parts(a, x->first_row + row, x->kv_head * per_row + q % per_row) +
                    (size_t)x->part[row] * (4 + CHAIN_DIM)) = float2{query.max, query.sum};
    chain_out out(a, x, group, 16 * warp + g, per_row);
#pragma unroll
    for (int side = 0; side < 2; side++) {
        if (out.row[side] < 0) continue;
#pragma unroll
        for (int i = 0; i < MINE; i++)
#pragma unroll
            for (int j = 0; j < 16; j++)
                *(float2 *)(out.to[side] + i * PIECE_DIMS + 8 * j + 2 * c) =
                    float2{acc[i][4 * j + 2 * side], acc[i][4 * j + 2 * side + 1]};
    }
    if (hold) check_values(t, room, *turn, x, out, group);
}

static __device__ inline void compute_units(chain_shared *t, const cuda_attention_args &a, int per_row)
{
    int        thread = (int)threadIdx.x - PLAN_THREADS, group = same_in_warp(thread / GROUP_THREADS), staged = -1;
    chain_turn turn = {0, 0}, slot = {0, 0};
    chain_room room(t, per_row);
    if (a.settled) wait_for_previous();
    for (;; slot.advance(UNITS)) {
        const chain_unit *x = &t->unit[slot.at];
        ring_wait(&t->unit_full[slot.at], slot.phase);
        if (!x->n) break;
        if (x->what != staged) {
            stage_group(room, a, *x, per_row, thread);
            wgmma_sees();
            some_sync(STAGED, WORK_THREADS);
            staged = x->what;
        }
        do_unit(t, a, room, x, &turn, group, per_row);
        release(&t->unit_empty[slot.at]);
    }
}

/* Grid: as many blocks as multiprocessors. In a step whose rows are settled, the work is counted and old keys are asked
 * for before the kernel waits. */
static __global__ void __launch_bounds__(CHAIN_THREADS, 1) chain_kernel(cuda_attention_args a)
{
    DYNAMIC_SHARED(chain_align, chain_memory);
    auto *t = (chain_shared *)(void *)chain_memory;
    int   i = threadIdx.x, per_row = a.n_heads / a.c.n_kv_heads;
    let_next_start();
    if (i == 0) {
        t->max_rows = 0;
        for (int k = 0; k < MOST_PLACES; k++) ring_init(&t->full[k], WARP), ring_init(&t->empty[k], WORK_WARPS);
        for (int k = 0; k < UNITS; k++)
            ring_init(&t->unit_full[k], 1), ring_init(&t->unit_empty[k], WORK_WARPS + COPY_WARPS);
        ring_init_done();
    }
    __syncthreads();
    if (!a.settled) wait_for_previous();
    count_units(t, a);
    if (i < PLAN_THREADS) {
        registers_down<72>();
        if (i < WARP)
            plan_units(t, a);
        else
            copy_units(t, a, per_row);
    } else {
        registers_up<216>();
        compute_units(t, a, per_row);
    }
}

int cuda_attention_chain_rows(const cuda_attention_args *a) { return group_size(*a); }

void cuda_attention_chain(cudaStream_t s, const cuda_attention_args *a)
{
    static_assert(sizeof(chain_shared) <= CONTROL_BYTES, "P follows");
    allow_shared(chain_kernel, CHAIN_BYTES);
    LAUNCH_EARLY(chain_kernel, (unsigned)multiprocessors(), CHAIN_THREADS, CHAIN_BYTES, s, *a);
}
