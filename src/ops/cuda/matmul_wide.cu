/* Matmul of many rows on wgmma: a block makes 128 outputs of up to 128 pairs. The arithmetic is that of matmul.cu, to
 * the bit: two sets of sums, those of the segment and the total, and the same steps in the same order.
 *
 * Weights are operand A, decoded in registers from their panels; a warp has a panel of 16 outputs, a warpgroup four.
 * Rows are operand B, in shared memory. Both come by bulk copies into two rings: `rows` holds a tile of 64 inputs of
 * all rows in a place, `weights` a chunk of tiles of all panels. Warps have different work:
 *
 *     lister      finds the items (a run of pairs, 128 outputs) and writes them to a ring, with pairs and scales
 *     copiers     one for each ring: wait until a place is free, and ask for the next tile or chunk
 *     consumers   warpgroups: wait for a place, decode a step of 16 inputs into one of four sets of registers while
 *                 the tensor cores work on the steps before it, and report the place as free
 *
 * wgmma reads what bulk copies wrote, so that no fence is needed. The rings go from item to item without a gap. */
#include "ops/cuda/convert.cuh"
#include "ops/cuda/matmul.cuh"

enum {
    WIDE_GROUPS        = 2, /* warpgroups of consumers */
    WIDE_PANELS        = 4 * WIDE_GROUPS,
    WIDE_THREADS       = (WIDE_GROUPS + 1) * 128,  /* the last warpgroup: lister, copiers */
    WIDE_COLS          = RUN_PAIRS_WIDE,           /* pairs of an item at most */
    ITEMS              = 2,                        /* places for items */
    STEP_BYTES         = GROUP_ROWS * STEP_IN * 2, /* a step of 8 rows */
    RING_ROOM          = 202 << 10,
    PENDING            = 2,  /* steps whose products may be incomplete when the next one is decoded; 3 take registers */
    OUT_COLS           = 32, /* columns of a panel that pass through shared memory at a time */
    OUT_FLOATS         = OUT_COLS * PANEL_OUTS + OUT_COLS / 2 * 8,
    COPY_REGISTERS     = 40,
    MULTIPLY_REGISTERS = 232,
};

template <quant_type T> struct wide_cut {
    static constexpr int PLANES = is_float<T>() ? 2 : 1;               /* high, low */
    static constexpr int COLS   = is_float<T>() ? 64 : (int)WIDE_COLS; /* pairs of an item at most */
    static constexpr int TILE = (int)layout_tile_bytes(T), SUPER = 8 * layout_d(T);
    static constexpr int CHUNK       = TILE > 2048 ? 1 : TILE > 1152 ? 2 : (int)SUPER_TILES; /* tiles */
    static constexpr int PANEL_CHUNK = CHUNK * TILE + SUPER, CHUNK_BYTES = WIDE_PANELS * PANEL_CHUNK;
    static constexpr int CHUNKS = 3 * CHUNK_BYTES <= 100 << 10 ? 3 : 2; /* places for weights */
    static constexpr int PLANE = COLS / GROUP_ROWS * XTILE_BYTES, STAGE = PLANES * PLANE;
    static constexpr int LEFT = (RING_ROOM - CHUNKS * CHUNK_BYTES) / STAGE, STAGES = LEFT < 8 ? LEFT : 8;
    static_assert(STAGES >= 3, "places for rows");
};

/* An item: up to COLS pairs of a run, and the outputs of panels panel to panel + WIDE_PANELS - 1 of a part. */
struct wide_item {
    int     part, panel, mat, first, n; /* first: of the pairs, and of their rows; n 0: there are no more */
    float   scale[WIDE_COLS];
    int32_t pair[WIDE_COLS];
};
struct alignas(256) wide_line { /* the alignment is that of wgmma_rows */
    char b[256];
};
template <quant_type T> struct wide_shared {
    typedef wide_cut<T> C;
    alignas(256) char rows[C::STAGES][C::STAGE];
    alignas(128) char weights[C::CHUNKS][WIDE_PANELS][C::PANEL_CHUNK];
    alignas(16) float out[WIDE_PANELS][OUT_FLOATS];
    wide_item item[ITEMS];
    uint64_t  rows_full[C::STAGES], rows_free[C::STAGES], weights_full[C::CHUNKS], weights_free[C::CHUNKS];
    uint64_t  item_full[ITEMS], item_free[ITEMS];
};

/* A place in a ring of N, and the phase of its gates. */
template <int N> struct ring_place {
    unsigned i, phase;

    __device__ inline void next()
    {
        if (++i == N) i = 0, phase ^= 1;
    }
};

/* Describes the items: a run has `pieces` of up to `pairs` pairs each. Items that are done at the same time share
 * weights, or, where those of runs differ, rows: item i is piece i % n_pieces of block i / n_pieces of outputs, or
 * block i % n_blocks of piece i / n_blocks. */
struct wide_plan {
    int n_items, n_blocks, n_pieces, pieces, pairs;
    int n_segments, each, longer; /* tiles of a segment; how many have one more */
};

/* Returns a part. An index that is not a constant would move all of them to local memory. */
static __device__ inline cuda_matmul_part part_at(const cuda_matmul_args &a, int i)
{
    cuda_matmul_part p = a.part[0];
#pragma unroll
    for (int k = 1; k < JOINED_MATMULS; k++)
        if (i == k) p = a.part[k];
    return p;
}

/* --- items ----------------------------------------------------------------------------------------*/

/* Finds item i, whose n is 0 if it has no pairs. */
static __device__ inline void find_item(wide_item &t, const cuda_matmul_args &a, const wide_plan &plan, int i)
{
    int      piece = a.order ? i / plan.n_blocks : i % plan.n_pieces;
    int      block = a.order ? i % plan.n_blocks : i / plan.n_pieces;
    int      run = piece / plan.pieces, skip = piece % plan.pieces * plan.pairs, first = 0;
    cuda_run r = {0, 0, a.n_pairs};
    if (a.order) r = {read_l2(&a.run[run].mat), read_l2(&a.run[run].first), read_l2(&a.run[run].n)};
    t.mat   = r.mat;
    t.first = r.first + skip;
    t.n     = r.n <= skip ? 0 : min_of(r.n - skip, plan.pairs);
    t.part  = 0;
#pragma unroll
    for (int p = 1; p < JOINED_MATMULS; p++)
        if (p < a.n_parts && block >= a.part[p].first_block) t.part = p, first = a.part[p].first_block;
    t.panel = (block - first) * WIDE_PANELS;
}

/* The lister's warp. The items of a block are those from its own number on, a grid apart. */
template <quant_type T>
static __device__ inline void list_items(wide_shared<T> *s, const cuda_matmul_args &a, const wide_plan &plan)
{
    int               lane = threadIdx.x % WARP;
    ring_place<ITEMS> at   = {};
    for (int i = blockIdx.x;; i += gridDim.x) {
        wide_item *to = &s->item[at.i];
        wide_item  t;
        t.n = 0;
        if (i < plan.n_items) {
            find_item(t, a, plan, i);
            if (t.n < 1) continue;
        }
        ring_wait(&s->item_free[at.i], at.phase ^ 1);
        if (lane == 0) to->part = t.part, to->panel = t.panel, to->mat = t.mat, to->first = t.first, to->n = t.n;
        for (int col = lane; col < t.n; col += WARP) {
            to->pair[col]  = a.order ? read_l2(&a.order[t.first + col]) : t.first + col;
            to->scale[col] = a.x.scale[t.first + col];
        }
        __syncwarp();
        if (lane == 0) ring_arrive(&s->item_full[at.i]);
        at.next();
        if (i >= plan.n_items) return;
    }
}

/* --- copies ---------------------------------------------------------------------------------------*/

/* The thread that asks for rows. */
template <quant_type T> static __device__ inline void copy_rows(wide_shared<T> *s, const cuda_matmul_args &a)
{
    typedef wide_cut<T>   C;
    ring_place<ITEMS>     at = {};
    ring_place<C::STAGES> to = {};
    for (;; at.next()) {
        const wide_item *item = &s->item[at.i];
        ring_wait(&s->item_full[at.i], at.phase);
        int    n    = (item->n + GROUP_ROWS - 1) / GROUP_ROWS * XTILE_BYTES;
        size_t from = (size_t)(item->first / GROUP_ROWS) * XTILE_BYTES;
        ring_arrive(&s->item_free[at.i]);
        if (!n) return;
        for (int t = 0; t < a.n_tiles; t++, to.next(), from += a.x.tile_bytes) {
            uint64_t *gate = &s->rows_full[to.i];
            ring_wait(&s->rows_free[to.i], to.phase ^ 1);
            ring_expect(gate, C::PLANES * n);
            ring_copy(gate, s->rows[to.i], a.x.high + from, n);
            if (C::PLANES == 2) ring_copy(gate, s->rows[to.i] + C::PLANE, a.x.low + from, n);
        }
    }
}

/* The warp that asks for weights, a panel by each lane. A panel past the last is the last. */
template <quant_type T> static __device__ inline void copy_weights(wide_shared<T> *s, const cuda_matmul_args &a)
{
    typedef wide_cut<T>   C;
    int                   lane = threadIdx.x % WARP;
    ring_place<ITEMS>     at   = {};
    ring_place<C::CHUNKS> to   = {};
    for (;; at.next()) {
        const wide_item *item = &s->item[at.i];
        ring_wait(&s->item_full[at.i], at.phase);
        cuda_matmul_part part  = part_at(a, item->part);
        size_t           panel = (size_t)item->mat * part.n_panels + min_of(item->panel + lane, part.n_panels - 1);
        const char      *tiles = part.data + panel * a.panel_bytes, *super = tiles + (size_t)a.n_tiles * C::TILE;
        int              n = item->n;
        __syncwarp();
        if (lane == 0) ring_arrive(&s->item_free[at.i]);
        if (!n) return;
        for (int t = 0; t < a.n_tiles; t += C::CHUNK, to.next()) {
            int       bytes = min_of(a.n_tiles - t, C::CHUNK) * C::TILE;
            uint64_t *gate  = &s->weights_full[to.i];
            if (lane == 0) {
                ring_wait(&s->weights_free[to.i], to.phase ^ 1);
                ring_expect(gate, WIDE_PANELS * (bytes + C::SUPER));
            }
            __syncwarp();
            if (lane < WIDE_PANELS) {
                char *mine = s->weights[to.i][lane];
                ring_copy(gate, mine, tiles, bytes);
                if (C::SUPER) ring_copy(gate, mine + C::CHUNK * C::TILE, super, C::SUPER);
            }
            tiles += bytes;
            super += C::SUPER;
        }
    }
}

/* --- products -------------------------------------------------------------------------------------*/

/* A warp's place in the rings. */
template <quant_type T> struct wide_reader {
    typedef wide_cut<T>   C;
    wide_shared<T>       *s;
    ring_place<C::STAGES> rows;
    ring_place<C::CHUNKS> weights;

    __device__ inline void free_rows(unsigned i)
    {
        if (threadIdx.x % WARP == 0) ring_arrive(&s->rows_free[i]);
    }
    /* Loads the warp's part of tile t of n. */
    __device__ inline void load_weights(lane_tile<T> &k, int warp, int t, int n)
    {
        int         in_chunk = t % C::CHUNK, lane = threadIdx.x % WARP;
        const char *mine = s->weights[weights.i][warp];
        if (in_chunk == 0) ring_wait(&s->weights_full[weights.i], weights.phase);
        load_tile<T>(k, mine + in_chunk * C::TILE, mine + C::CHUNK * C::TILE, lane);
        if (in_chunk < C::CHUNK - 1 && t + 1 < n) return;
        __syncwarp();
        if (lane == 0) ring_arrive(&s->weights_free[weights.i]);
        weights.next();
    }
};

/* Starts the products of a step. add: they are added to acc. */
template <quant_type T, int N>
static __device__ inline void multiply(float (&acc)[N / 2], const uint32_t (&a)[4], const uint32_t (&low)[4],
                                       const wgmma_rows &rows, bool add)
{
    typedef wide_cut<T> C;
    (void)low;
    wgmma_begin();
    wgmma<N>(acc, a, rows, add);
    if constexpr (C::PLANES == 2) wgmma<N>(acc, a, rows.at(C::PLANE), true);
    if constexpr (T == QUANT_F32) wgmma<N>(acc, low, rows, true);
    wgmma_commit();
}

/* Returns the place of an output of a column in `out`, which no two lanes of a warp share a bank for. */
static __device__ inline int out_at(int col, int out) { return col * PANEL_OUTS + col / 2 * 8 + out; }

/* Stores a warp's outputs by way of shared memory, so that they leave as lines of 64 bytes. */
template <int N>
static __device__ inline void store(float *room, const float (&total)[N / 2], const wide_item &item,
                                    const cuda_matmul_part &part, int panel)
{
    int  lane = threadIdx.x % WARP, out = panel * PANEL_OUTS + lane % 4 * 4;
    bool whole = out + 4 <= part.n_out && part.n_out % 4 == 0 && (uintptr_t)part.y % sizeof(float4) == 0;
    if (panel >= part.n_panels) return;
#pragma unroll
    for (int from = 0; from < N; from += OUT_COLS) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < OUT_COLS / 2 && from / 2 + i < N / 2; i++)
            room[out_at(i / 4 * 8 + lane % 4 * 2 + i % 2, lane / 4 + i % 4 / 2 * 8)] = total[from / 2 + i];
        __syncwarp();
#pragma unroll
        for (int k = 0; k < OUT_COLS / 8 && from + 8 * k < N; k++) {
            int col = 8 * k + lane / 4;
            if (from + col >= item.n) continue;
            float4 v  = *(const float4 *)&room[out_at(col, lane % 4 * 4)];
            float  by = item.scale[from + col], *y = part.y + (size_t)item.pair[from + col] * part.n_out + out;
            v = make_float4(v.x * by * part.down, v.y * by * part.down, v.z * by * part.down, v.w * by * part.down);
            if (whole)
                *(float4 *)y = v;
            else
                store_quad(y, 0, part.n_out - out, v);
        }
    }
}

template <quant_type T, int N>
static __device__ inline void do_item(wide_reader<T> &r, const wide_item &item, const cuda_matmul_args &a,
                                      const wide_plan &plan, int warp)
{
    const cuda_matmul_part part = part_at(a, item.part);
    uint32_t               up = up_bits<T>(part.up), h2_1024 = in_register(H2_1024);
    float                  acc[N / 2], total[N / 2];
    uint32_t               w[TILE_STEPS][4], low[T == QUANT_F32 ? TILE_STEPS : 1][4];
    int                    tile = 0;
#pragma unroll
    for (int i = 0; i < N / 2; i++) acc[i] = 0, total[i] = -0.0f; /* -0 + x is x, whatever its sign */
#pragma unroll 1
    for (int segment = 0; segment < plan.n_segments; segment++) {
        int n = plan.each + (segment < plan.longer);
#pragma unroll 1
        for (int t = 0; t < n; t++, tile++) {
            lane_tile<T> k;
            unsigned     before = r.rows.i ? r.rows.i - 1 : wide_cut<T>::STAGES - 1;
            r.load_weights(k, warp, tile, a.n_tiles);
            ring_wait(&r.s->rows_full[r.rows.i], r.rows.phase);
            wgmma_rows rows(r.s->rows[r.rows.i], XTILE_BYTES);
#pragma unroll
            for (int step = 0; step < TILE_STEPS; step++) {
                wgmma_wait<PENDING>(acc); /* the last products with these registers are done */
                if (step == PENDING && t) r.free_rows(before);
                decode_step<T>(w[step], low[T == QUANT_F32 ? step : 0], k, step, up, h2_1024);
                multiply<T, N>(acc, w[step], low[T == QUANT_F32 ? step : 0], rows.at(step * STEP_BYTES), t || step);
            }
            r.rows.next();
            /* Not decoded: the next tile is loaded into the registers that products read. */
            if constexpr (T == QUANT_F16) wgmma_wait<0>(acc);
        }
        wgmma_wait<0>(acc);
        r.free_rows(r.rows.i ? r.rows.i - 1 : wide_cut<T>::STAGES - 1);
#pragma unroll
        for (int i = 0; i < N / 2; i++) total[i] += acc[i];
    }
    store<N>(r.s->out[warp], total, item, part, item.panel + warp);
}

/* The warps of the consumers. */
template <quant_type T>
static __device__ inline void consume(wide_shared<T> *s, const cuda_matmul_args &a, const wide_plan &plan, int warp)
{
    ring_place<ITEMS> at = {};
    wide_reader<T>    r  = {s, {}, {}};
    for (;; at.next()) {
        const wide_item &item = s->item[at.i];
        ring_wait(&s->item_full[at.i], at.phase);
        if (!item.n) return;
        constexpr int COLS = wide_cut<T>::COLS; /* 128 or 64 */
        if (item.n > 96)
            do_item<T, COLS>(r, item, a, plan, warp);
        else if (item.n > 80)
            do_item < T, COLS<96 ? COLS : 96>(r, item, a, plan, warp);
        else if (item.n > 64)
            do_item < T, COLS<80 ? COLS : 80>(r, item, a, plan, warp);
        else if (item.n > 32)
            do_item<T, 64>(r, item, a, plan, warp);
        else if (item.n > 16)
            do_item<T, 32>(r, item, a, plan, warp);
        else
            do_item<T, 16>(r, item, a, plan, warp);
        __syncwarp();
        if (threadIdx.x % WARP == 0) ring_arrive(&s->item_free[at.i]);
    }
}

template <quant_type T>
static __global__ void __launch_bounds__(WIDE_THREADS, 1) matmul_wide_kernel(cuda_matmul_args a, wide_plan plan)
{
    typedef wide_cut<T> C;
    DYNAMIC_SHARED(wide_line, wide_memory);
    auto *s    = (wide_shared<T> *)wide_memory;
    int   warp = (int)warp_max_u32(threadIdx.x / WARP); /* the same in all lanes */
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::STAGES; i++) ring_init(&s->rows_full[i], 1), ring_init(&s->rows_free[i], WIDE_PANELS);
        for (int i = 0; i < C::CHUNKS; i++)
            ring_init(&s->weights_full[i], 1), ring_init(&s->weights_free[i], WIDE_PANELS);
        for (int i = 0; i < ITEMS; i++) ring_init(&s->item_full[i], 1), ring_init(&s->item_free[i], WIDE_PANELS + 2);
        ring_init_done();
    }
    __syncthreads();
    wait_for_previous();
    let_next_start();
    if (warp < WIDE_PANELS) {
        registers_up<MULTIPLY_REGISTERS>();
        consume<T>(s, a, plan, warp);
        return;
    }
    registers_down<COPY_REGISTERS>();
    if (warp == WIDE_PANELS)
        list_items<T>(s, a, plan);
    else if (threadIdx.x == (WIDE_PANELS + 1) * WARP)
        copy_rows<T>(s, a);
    else if (warp == WIDE_PANELS + 2)
        copy_weights<T>(s, a);
}

/* --- launches -------------------------------------------------------------------------------------*/

/* Returns how many pairs an item has at most: as many as possible, unless fewer take a shorter time with this many
 * multiprocessors. An item takes as long as its pairs and ITEM_COST more. */
static int pairs_of(int n_pairs, int blocks, int max_pairs, int processors)
{
    enum { ITEM_COST = 16 };
    static const int sizes[] = {128, 96, 80, 64, 32};
    int              best = max_pairs, shortest = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int items = (n_pairs + sizes[i] - 1) / sizes[i] * blocks;
        int time  = (items + processors - 1) / processors * (sizes[i] + ITEM_COST);
        if (sizes[i] <= max_pairs && (!shortest || time < shortest)) best = sizes[i], shortest = time;
    }
    return best;
}

template <quant_type T> static void launch_wide(cudaStream_t s, const cuda_matmul_args *args)
{
    typedef wide_cut<T> C;
    cuda_matmul_args    a = *args;
    int                 n = layout_segments(T, a.n_tiles), blocks = 0, processors = multiprocessors();
    for (int i = 0; i < a.n_parts; i++) {
        a.part[i].first_block = blocks;
        blocks += (a.part[i].n_panels + WIDE_PANELS - 1) / WIDE_PANELS;
    }
    int       pairs = a.order ? C::COLS : pairs_of(a.n_pairs, blocks, C::COLS, processors);
    wide_plan plan  = {};
    plan.n_blocks   = blocks;
    plan.pieces     = ((a.order ? (int)RUN_PAIRS_WIDE : a.n_pairs) + pairs - 1) / pairs;
    plan.n_pieces   = (a.order ? a.n_runs : 1) * plan.pieces;
    plan.n_items    = plan.n_pieces * blocks;
    plan.pairs      = pairs;
    plan.n_segments = n;
    plan.each       = a.n_tiles / n;
    plan.longer     = a.n_tiles % n;
    allow_shared(matmul_wide_kernel<T>, sizeof(wide_shared<T>));
    LAUNCH_EARLY(matmul_wide_kernel<T>, (unsigned)min_int(plan.n_items, processors), WIDE_THREADS,
                 sizeof(wide_shared<T>), s, a, plan);
}

extern "C" bool cuda_has_wide(void) { return has_wgmma() && shared_limit() >= 227 << 10; }

extern "C" cudaError_t cuda_matmul_wide(cudaStream_t s, quant_type type, const cuda_matmul_args *a)
{
    switch (type) {
#define CASE(T)                                                                                                        \
    case QUANT_##T: launch_wide<QUANT_##T>(s, a); break;
        EACH_TYPE(CASE)
#undef CASE
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
