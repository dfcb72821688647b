/* Matmul of many rows on wgmma: a block makes 128 outputs of up to 128 pairs. The arithmetic is that of matmul.cu, to
 * the bit: two sets of sums, those of the segment and the total, and the same steps in the same order.
 *
 * Weights are operand A, decoded in registers from their panels; a warp has a panel of 16 outputs, a warpgroup four.
 * Rows are operand B, in shared memory. Tiles of 64 inputs of both pass through stages of shared memory: a tile is
 * asked for AHEAD tiles before it is needed, is decoded while the tensor cores work on the one before it, and its stage
 * is filled again two tiles later. A block goes from item to item (a run of pairs, 128 outputs) without emptying the
 * stages.
 *
 * In a stage, pieces of 16 bytes of a row are CORE bytes apart, so that the copies of a row have no bank conflicts. */
#include "ops/cuda/convert.cuh"
#include "ops/cuda/matmul.cuh"

enum {
    WIDE_WARPS   = 8,
    WIDE_THREADS = WIDE_WARPS * WARP,
    CORE         = 144,                /* bytes from 8 rows x 8 inputs to the next 8 inputs, */
    CORES        = TILE_IN / 8 * CORE, /* and to the next 8 rows */
    ITEMS        = 8,                  /* items that a block knows of: more than AHEAD */
    STAGE_ROOM   = 216 << 10,
};

template <quant_type T> struct wide_cut {
    static constexpr int PLANES = is_float<T>() ? 2 : 1;    /* high, low */
    static constexpr int ROWS   = is_float<T>() ? 64 : 128; /* pairs of an item at most */
    static constexpr int TILE = (int)layout_tile_bytes(T), SUPER = 8 * layout_d(T);
    static constexpr int B_BYTES = ROWS / 8 * CORES, A_BYTES = TILE + SUPER;
    static constexpr int STAGE  = PLANES * B_BYTES + WIDE_WARPS * A_BYTES;
    static constexpr int STAGES = STAGE_ROOM / STAGE < 6 ? STAGE_ROOM / STAGE : 6, AHEAD = STAGES - 2;
    static constexpr int PIECES = ROWS * 8 / WIDE_THREADS; /* a thread's share of a plane's tile, 16 bytes each */
    static_assert(AHEAD >= 2, "the next tile is there while one is multiplied");
};

/* An item: up to C::ROWS pairs of a run, and the outputs of panels panel to panel + WIDE_WARPS - 1 of a part. */
struct wide_item {
    int part, panel, mat, first, n; /* n 0: it is empty; -1: there are no more */
};
template <quant_type T> struct wide_shared {
    alignas(16) char stage[wide_cut<T>::STAGES][wide_cut<T>::STAGE];
    uint64_t  gate[wide_cut<T>::STAGES];
    wide_item item[ITEMS];
    float     scale[ITEMS][wide_cut<T>::ROWS];
    int32_t   pair[ITEMS][wide_cut<T>::ROWS];
};

/* Describes the items: a run has `pieces` of up to `pairs` pairs each. Item i is block i % n_blocks of outputs of piece
 * i / n_blocks. */
struct wide_plan {
    int n_blocks, n_runs, pieces, pairs;
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

static __device__ inline wide_item item_at(const cuda_matmul_args &a, const wide_plan &plan, int i)
{
    int       piece = i / plan.n_blocks, block = i % plan.n_blocks, run = piece / plan.pieces;
    int       skip = piece % plan.pieces * plan.pairs;
    wide_item t    = {};
    cuda_run  r    = {0, 0, a.n_pairs};
    if (a.order && run < plan.n_runs)
        r = {read_l2(&a.run[run].mat), read_l2(&a.run[run].first), read_l2(&a.run[run].n)};
    t.mat   = r.mat;
    t.first = r.first + skip;
    t.n     = run >= plan.n_runs || r.n < 1 ? -1 : r.n <= skip ? 0 : min_of(r.n - skip, plan.pairs);
    if (t.n < 1) return t;
    int first = 0;
#pragma unroll
    for (int p = 1; p < JOINED_MATMULS; p++)
        if (p < a.n_parts && block >= a.part[p].first_block) t.part = p, first = a.part[p].first_block;
    t.panel = (block - first) * WIDE_WARPS;
    return t;
}

/* Returns the thread's number, as a new number each time: what is computed from it is not kept in registers. */
static __device__ inline int thread_here() { return (int)in_register(threadIdx.x); }

/* Returns for how many columns the product of n pairs is computed. */
static __device__ inline int columns_of(int n) { return n > 64 ? 128 : n > 32 ? 64 : n > 16 ? 32 : 16; }

/* --- tiles on their way --------------------------------------------------------------------------*/

/* Tracks what a thread asks for next. */
template <quant_type T> struct wide_copies {
    typedef wide_cut<T> C;
    wide_item           item;
    int                 i, ordinal; /* the item's number, and how many items came before it in this block */
    int                 tile;
    unsigned            stage;
    const char         *panel;          /* the warp's panel */
    uint32_t            row[C::PIECES]; /* offsets of the thread's pieces */

    /* Returns the row in the tile of a thread's piece k. */
    static __device__ inline int row_at(int thread, int k)
    {
        return (k * WIDE_WARPS + thread / WARP) * 4 + thread % WARP / 8;
    }

    /* Starts with item number i: finds rows and panel, and leaves a note for the block. */
    __device__ inline void enter(wide_shared<T> *s, const cuda_matmul_args &a, const wide_plan &plan)
    {
        int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, slot = ordinal % ITEMS;
        for (item = item_at(a, plan, i); item.n == 0; item = item_at(a, plan, i)) i += gridDim.x;
        tile = 0;
        if (threadIdx.x == 0) s->item[slot] = item;
        if (item.n < 1) return;
        cuda_matmul_part part = part_at(a, item.part);
        panel                 = part.data +
                ((size_t)item.mat * part.n_panels + min_of(item.panel + warp, part.n_panels - 1)) * a.panel_bytes;
#pragma unroll
        for (int k = 0; k < C::PIECES; k++) {
            /* A column past the last pair reads the last pair's row: nobody reads what comes out. */
            int r = row_at(threadIdx.x, k), pair = pair_at(a, {item.mat, item.first, item.n}, min_of(r, item.n - 1));
            int x_row = row_of(a, pair);
            row[k]    = (uint32_t)((size_t)x_row * a.n_tiles * WIDE_BYTES) + lane % 8 * 16;
            if (lane % 8 == 0) s->pair[slot][r] = pair, s->scale[slot][r] = a.x.scale[x_row];
        }
    }
    /* Asks for the next tile. Rows that no column of the item's product needs are left out. */
    __device__ inline void ask(wide_shared<T> *s, const cuda_matmul_args &a, const wide_plan &plan)
    {
        int warp = thread_here() / WARP, lane = thread_here() % WARP;
        if (item.n > 0) {
            char     *to   = s->stage[stage];
            uint64_t *gate = &s->gate[stage];
#pragma unroll
            for (int k = 0; k < C::PIECES; k++) {
                int   r  = row_at(thread_here(), k);
                char *at = to + r / 8 * CORES + lane % 8 * CORE + r % 8 * 16;
                if (r >= columns_of(item.n)) break;
#pragma unroll
                for (int p = 0; p < C::PLANES; p++)
                    copy_piece(gate, at + p * C::B_BYTES, (p ? a.x.low : a.x.high) + row[k] + (size_t)tile * WIDE_BYTES,
                               true);
            }
            char *mine = to + C::PLANES * C::B_BYTES + warp * C::A_BYTES;
            for (int at = lane * 16; at < C::TILE; at += WARP * 16)
                copy_piece(gate, mine + at, panel + (size_t)tile * C::TILE + at, true);
            if (C::SUPER && lane * 16 < C::SUPER)
                copy_piece(gate, mine + C::TILE + lane * 16,
                           panel + (size_t)a.n_tiles * C::TILE + tile / SUPER_TILES * C::SUPER + lane * 16, true);
            if (++tile == a.n_tiles) {
                i += gridDim.x;
                ordinal++;
                enter(s, a, plan);
            }
        }
        copy_commit();
        stage = stage + 1 == C::STAGES ? 0 : stage + 1;
    }
};

/* --- an item --------------------------------------------------------------------------------------*/

/* Operand A of a tile. */
template <quant_type T> struct wide_weights {
    uint32_t a[TILE_STEPS][4], low[T == QUANT_F32 ? TILE_STEPS : 1][4];

    __device__ inline void decode(const wide_shared<T> *s, unsigned stage, uint32_t up, uint32_t h2_1024)
    {
        typedef wide_cut<T> C;
        int                 warp = thread_here() / WARP, lane = thread_here() % WARP;
        const char         *mine = s->stage[stage] + C::PLANES * C::B_BYTES + warp * C::A_BYTES;
        lane_tile<T>        k;
        load_tile<T>(k, mine, mine + C::TILE, lane);
#pragma unroll
        for (int step = 0; step < TILE_STEPS; step++)
            decode_step<T>(a[step], low[T == QUANT_F32 ? step : 0], k, step, up, h2_1024);
    }
};

/* Starts the products of a tile. first: it is the first of its segment. */
template <quant_type T, int N>
static __device__ inline void multiply(float (&acc)[N / 2], const wide_weights<T> &w, const wide_shared<T> *s,
                                       unsigned stage, bool first)
{
    typedef wide_cut<T> C;
    wgmma_rows          rows(s->stage[stage], CORE, CORES);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < TILE_STEPS; step++) {
        wgmma<N>(acc, w.a[step], rows.at(step * 2 * CORE), !first || step);
        if constexpr (C::PLANES == 2) wgmma<N>(acc, w.a[step], rows.at(step * 2 * CORE + C::B_BYTES), true);
        if constexpr (T == QUANT_F32) wgmma<N>(acc, w.low[step], rows.at(step * 2 * CORE), true);
    }
    wgmma_commit();
}

/* Works on the tile in `stage`, decoded in `now`, and decodes the next one, if there is one, into `next`. */
template <quant_type T, int N>
static __device__ inline void do_tile(float (&acc)[N / 2], const wide_weights<T> &now, wide_weights<T> &next,
                                      wide_shared<T> *s, const cuda_matmul_args &a, const wide_plan &plan,
                                      wide_copies<T> &copies, unsigned &stage, bool first, bool more, uint32_t up,
                                      uint32_t h2_1024)
{
    typedef wide_cut<T> C;
    unsigned            mine = stage;
    stage                    = mine + 1 == C::STAGES ? 0 : mine + 1;
    copy_wait_wgmma<C::AHEAD - 2>(&s->gate[stage]);
    multiply<T, N>(acc, now, s, mine, first);
    copies.ask(s, a, plan);
    wgmma_wait<1>(acc); /* the tile before is done: `next` is free */
    if (more) next.decode(s, stage, up, h2_1024);
}

template <quant_type T, int N>
static __device__ inline void do_item(wide_shared<T> *s, const cuda_matmul_args &a, const wide_plan &plan,
                                      wide_copies<T> &copies, unsigned &stage, int slot)
{
    const wide_item        item = s->item[slot];
    const cuda_matmul_part part = part_at(a, item.part);
    uint32_t               up = up_bits<T>(part.up), h2_1024 = in_register(H2_1024);
    float                  acc[N / 2], total[N / 2];
    wide_weights<T>        w[2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) total[i] = -0.0f; /* -0 + x is x, whatever its sign */
    w[0].decode(s, stage, up, h2_1024);
#pragma unroll 1
    for (int segment = 0; segment < plan.n_segments; segment++) {
        int  n    = plan.each + (segment < plan.longer);
        bool last = segment + 1 == plan.n_segments;
#pragma unroll 1
        for (int t = 0; t < n; t += 2) {
            do_tile<T, N>(acc, w[0], w[1], s, a, plan, copies, stage, t == 0, !last || t + 1 < n, up, h2_1024);
            if (t + 1 == n) break;
            do_tile<T, N>(acc, w[1], w[0], s, a, plan, copies, stage, false, !last || t + 2 < n, up, h2_1024);
        }
        wgmma_wait<0>(acc);
        if (n % 2) w[0] = w[1];
#pragma unroll
        for (int i = 0; i < N / 2; i++) total[i] += acc[i];
    }
    int warp = thread_here() / WARP, lane = thread_here() % WARP, panel = item.panel + warp;
    if (panel >= part.n_panels) return;
    int out = panel * PANEL_OUTS + lane / 4;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        keep_order(); /* else all addresses are computed first, and take the registers of other things */
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int col = 8 * j + lane % 4 * 2 + k;
            if (col >= item.n) break;
            float *y = part.y + (size_t)s->pair[slot][col] * part.n_out + out, by = s->scale[slot][col];
            if (out < part.n_out) y[0] = total[4 * j + k] * by * part.down;
            if (out + 8 < part.n_out) y[8] = total[4 * j + 2 + k] * by * part.down;
        }
    }
}

template <quant_type T>
static __global__ void __launch_bounds__(WIDE_THREADS, 1) matmul_wide_kernel(cuda_matmul_args a, wide_plan plan)
{
    typedef wide_cut<T> C;
    DYNAMIC_SHARED(uint4, wide_memory);
    auto          *s = (wide_shared<T> *)wide_memory;
    wide_copies<T> copies;
    wait_for_previous();
    let_next_start();
    copies.i       = blockIdx.x;
    copies.ordinal = 0;
    copies.stage   = 0;
    copies.enter(s, a, plan);
    for (int i = 0; i < C::AHEAD; i++) copies.ask(s, a, plan);
    unsigned stage = 0;
    copy_wait_wgmma<C::AHEAD - 1>(&s->gate[0]);
    for (int ordinal = 0;; ordinal++) {
        int slot = ordinal % ITEMS, n = s->item[slot].n;
        if (n < 1) break;
        if (C::ROWS == 128 && n > 64)
            do_item<T, C::ROWS>(s, a, plan, copies, stage, slot);
        else if (n > 32)
            do_item<T, 64>(s, a, plan, copies, stage, slot);
        else if (n > 16)
            do_item<T, 32>(s, a, plan, copies, stage, slot);
        else
            do_item<T, 16>(s, a, plan, copies, stage, slot);
    }
}

/* --- launches -------------------------------------------------------------------------------------*/

template <quant_type T> static void launch_wide(cudaStream_t s, const cuda_matmul_args *args)
{
    typedef wide_cut<T> C;
    cuda_matmul_args    a = *args;
    int                 n = layout_segments(T, a.n_tiles), blocks = 0, processors = multiprocessors();
    for (int i = 0; i < a.n_parts; i++) {
        a.part[i].first_block = blocks;
        blocks += (a.part[i].n_panels + WIDE_WARPS - 1) / WIDE_WARPS;
    }
    /* Fewer pairs an item where items are fewer than multiprocessors. */
    int pairs = C::ROWS;
    while (!a.order && pairs > 32 && (a.n_pairs + pairs - 1) / pairs * blocks < processors) pairs /= 2;
    wide_plan plan  = {blocks,
                      a.order ? a.n_runs : 1,
                       ((a.order ? (int)RUN_PAIRS_WIDE : a.n_pairs) + pairs - 1) / pairs,
                       pairs,
                       n,
                       a.n_tiles / n,
                       a.n_tiles % n};
    int       items = plan.n_runs * plan.pieces * blocks;
    allow_shared(matmul_wide_kernel<T>, sizeof(wide_shared<T>));
    LAUNCH_EARLY(matmul_wide_kernel<T>, (unsigned)min_int(items, processors), WIDE_THREADS, sizeof(wide_shared<T>), s,
                 a, plan);
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
