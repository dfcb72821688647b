/* y[pair][o] = sum over i of w[mat][o][i] x[row][i], on tensor cores: weights
 * are operand A, rows are operand B.
 *
 * The arithmetic of one number is fixed by the weight's type and n_in (promise
 * 1). Inputs are cut into segments of up to 12 tiles of 64 (layout.h).
 * A segment starts from zero and goes through the tensor core in steps of 16
 * inputs, in ascending order; segments are added from left to right. Float
 * types take two products a step (x high, x low), F32 three (then w low, x
 * high). A column's bits do not depend on its neighbours, so the number of rows
 * changes nothing.
 *
 * A warp makes one segment of a panel of 16 outputs, for up to 8 COLS pairs;
 * the segments of a panel are warps of one block. */
#include "ops/cuda/convert.cuh"
#include "ops/cuda/panel.cuh"

enum { MATMUL_WARPS = 8, MATMUL_THREADS = MATMUL_WARPS * WARP, LONG_THREADS = 512, GROUP_THREADS = 256 };
enum { PART_STRIDE = 20 }; /* floats of a column of 16 outputs in shared memory, without bank conflicts */

/* --- activations ---------------------------------------------------------------------------------
 * A block per row. */
template <int THREADS, int QUADS>
static __global__ void __launch_bounds__(THREADS) convert_kernel(cuda_x out, const float *x, int n)
{
    row_quads<THREADS, QUADS> r;
    let_next_start();
    wait_for_previous();
    r.load(x + (size_t)blockIdx.x * n, n);
    r.convert(out, blockIdx.x, n, block_max<THREADS>(r.largest()));
}

/* Rows that are too long for registers are read twice. */
static __global__ void __launch_bounds__(LONG_THREADS) convert_long_kernel(cuda_x out, const float *x, int n)
{
    uint32_t largest = 0;
    let_next_start();
    wait_for_previous();
    x += (size_t)blockIdx.x * n;
    for (int i = 4 * threadIdx.x; i < n; i += 4 * LONG_THREADS) largest = largest_of(load_quad(x, i, n), largest);
    row_scale s       = scale_of_row(block_max<LONG_THREADS>(largest));
    int       n_tiles = (int)layout_tiles(n);
    if (threadIdx.x == 0) out.scale[blockIdx.x] = s.down;
    for (int i = 4 * threadIdx.x; i < n_tiles * TILE_IN; i += 4 * LONG_THREADS)
        put_x(out, blockIdx.x, i, n_tiles, load_quad(x, i, n), s.up);
}

static cudaError_t convert_short(cudaStream_t s, cuda_x out, const float *x, int n_rows, int n)
{
#define CALL(THREADS, QUADS) LAUNCH_EARLY((convert_kernel<THREADS, QUADS>), (unsigned)n_rows, THREADS, 0, s, out, x, n)
    BY_ROW_LENGTH(n, CALL);
#undef CALL
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_convert(cudaStream_t s, cuda_x out, const float *x, int n_rows, int n)
{
    cudaError_t status = convert_short(s, out, x, n_rows, n);
    if (status != cudaErrorInvalidValue) return status;
    LAUNCH_EARLY(convert_long_kernel, (unsigned)n_rows, LONG_THREADS, 0, s, out, x, n);
    return cudaGetLastError();
}

/* --- pairs by matrix -----------------------------------------------------------------------------*/

/* One block. Counts, adds up, places. Where a pair stands among those of its
 * matrix changes no bit of it. */
static __global__ void group_pairs_kernel(int32_t *order, cuda_run *run, int n_runs, int run_pairs, const int32_t *id,
                                          int n_pairs, int n_mats)
{
    DYNAMIC_SHARED(int32_t, group_shared); /* [n_mats] pairs: how many, then where;
                                   [n_mats] where they begin; [n_mats] runs */
    int32_t *at = group_shared, *first = at + n_mats, *runs = first + n_mats;
    int      lane = threadIdx.x % WARP;
    let_next_start();
    for (int m = threadIdx.x; m < n_mats; m += GROUP_THREADS) at[m] = 0;
    __syncthreads();
    wait_for_previous();
    for (int i = threadIdx.x; i < n_pairs; i += GROUP_THREADS) atomicAdd(&at[id[i]], 1);
    __syncthreads();
    if (threadIdx.x < WARP) {
        int pairs = 0, n = 0;
        for (int m0 = 0; m0 < n_mats; m0 += WARP) {
            int mine = m0 + lane < n_mats ? at[m0 + lane] : 0, mine_runs = (mine + run_pairs - 1) / run_pairs;
            int p = mine, r = mine_runs;
            for (int k = 1; k < WARP; k *= 2) {
                int before_p = __shfl_sync(ALL_LANES, p, lane - k), before_r = __shfl_sync(ALL_LANES, r, lane - k);
                if (lane >= k) p += before_p, r += before_r;
            }
            if (m0 + lane < n_mats) {
                first[m0 + lane] = at[m0 + lane] = pairs + p - mine;
                runs[m0 + lane]                  = n + r - mine_runs;
            }
            pairs += __shfl_sync(ALL_LANES, p, WARP - 1);
            n += __shfl_sync(ALL_LANES, r, WARP - 1);
        }
        for (int r = n + lane; r < n_runs; r += WARP) run[r].n = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n_pairs; i += GROUP_THREADS) order[atomicAdd(&at[id[i]], 1)] = i;
    __syncthreads();
    for (int m = threadIdx.x; m < n_mats; m += GROUP_THREADS)
        for (int from = first[m], r = runs[m]; from < at[m]; from += run_pairs, r++) {
            run[r].mat   = m;
            run[r].first = from;
            run[r].n     = min_of(at[m] - from, run_pairs);
        }
}

extern "C" cudaError_t cuda_group_pairs(cudaStream_t s, int32_t *order, cuda_run *run, int n_runs, int run_pairs,
                                        const int32_t *id, int n_pairs, int n_mats)
{
    size_t shared = 3 * (size_t)n_mats * sizeof(int32_t);
    allow_shared(group_pairs_kernel, shared);
    LAUNCH_EARLY(group_pairs_kernel, 1, GROUP_THREADS, shared, s, order, run, n_runs, run_pairs, id, n_pairs, n_mats);
    return cudaGetLastError();
}

/* The pairs of block y, at most n. */
static __device__ inline cuda_run find_run(const cuda_matmul_args &a, int y, int n)
{
    if (a.order) return a.run[y];
    cuda_run r;
    r.first = y * n;
    r.n     = a.n_pairs - r.first < n ? a.n_pairs - r.first : n;
    r.mat   = a.id ? a.id[r.first] : 0;
    return r;
}

static __device__ inline int row_of(const cuda_matmul_args &a, int pair)
{
    return a.pairs_to_x == 1 ? pair : pair / a.pairs_to_x;
}

static __device__ inline int pair_at(const cuda_matmul_args &a, const cuda_run &r, int i)
{
    return a.order ? a.order[r.first + i] : r.first + i;
}

/* --- a segment -----------------------------------------------------------------------------------*/
template <quant_type T> static __host__ __device__ constexpr bool is_float()
{
    return T == QUANT_F32 || T == QUANT_F16 || T == QUANT_BF16;
}
/* How many tiles of weights a warp has in shared memory or under way to it, and
 * of rows in registers. */
template <quant_type T> static __host__ __device__ constexpr int weights_ahead()
{
    return slot_bytes<T>() <= 960 ? 5 : slot_bytes<T>() <= 2048 ? 4 : 3;
}
template <quant_type T, int COLS> static __host__ __device__ constexpr int rows_ahead()
{
    return is_float<T>() && COLS == 4 ? 1 : 2;
}

/* Where a lane finds its pieces of operand B, by column tile; NULL: past the
 * last pair. */
template <int COLS> struct lane_rows {
    const char *high[COLS];
    size_t      to_low;
};

/* A segment of a panel: its first tile, that tile's place in the panel, and how
 * many there are. */
struct segment_at {
    const char *panel;
    int         first, n;
};

/* Tiles of the rows, on their way to a lane: slot i holds tiles i, i + X, ...
 */
template <quant_type T, int COLS> struct row_ring {
    static constexpr int X = rows_ahead<T, COLS>(), PLANES = is_float<T>() ? 2 : 1;

    uint4           rows[X][COLS][2 * PLANES]; /* two pieces of high, then of low */
    lane_rows<COLS> x;

    /* t0: a multiple of X that the slot's tile is counted from */
    __device__ inline void load(int i, const segment_at &g, int t0)
    {
        if (t0 + i >= g.n) return;
#pragma unroll
        for (int j = 0; j < COLS; j++)
            if (x.high[j])
#pragma unroll
                for (int p = 0; p < 2 * PLANES; p++)
                    rows[i][j][p] =
                        *(const uint4 *)(x.high[j] + (p / 2 ? x.to_low : 0) + (size_t)(g.first + t0) * XTILE_BYTES +
                                         i * XTILE_BYTES + p % 2 * 512);
    }
    __device__ inline void start(const segment_at &g)
    {
#pragma unroll
        for (int i = 0; i < X * COLS * 2 * PLANES; i++)
            rows[i / (COLS * 2 * PLANES)][i / (2 * PLANES) % COLS][i % (2 * PLANES)] = uint4{0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < X; i++) load(i, g, 0);
    }
};

/* acc plus one tile. */
template <quant_type T, int COLS, int PIECES>
static __device__ inline void add_tile(float (&acc)[COLS][4], const lane_tile<T> &k, const uint4 (&rows)[COLS][PIECES],
                                       uint32_t up, uint32_t h2_1024)
{
#pragma unroll
    for (int step = 0; step < TILE_STEPS; step++) {
        uint32_t a[4], rest[4];
        decode_step<T>(a, rest, k, step, up, h2_1024);
#pragma unroll
        for (int j = 0; j < COLS; j++) {
            uint4 h = rows[j][step / 2];
            mma_16x8x16(acc[j], a, step % 2 ? h.z : h.x, step % 2 ? h.w : h.y);
            if constexpr (is_float<T>()) {
                uint4 l = rows[j][2 + step / 2];
                mma_16x8x16(acc[j], a, step % 2 ? l.z : l.x, step % 2 ? l.w : l.y);
            }
            if constexpr (T == QUANT_F32) mma_16x8x16(acc[j], rest, step % 2 ? h.z : h.x, step % 2 ? h.w : h.y);
        }
    }
}

/* --- the kernel ----------------------------------------------------------------------------------
 * Grid: x over panels, y over runs of pairs. A block is lanes x `segments` x
 * `panels`, and goes on to the next panels `steps` times; where a panel has
 * more segments than that, it takes several turns at it. */
struct matmul_cut {
    int panels, segments, n_segments, turns, steps;
    int each, longer; /* tiles of a segment; how many have one more */

    __device__ inline int first_tile(int segment) const
    {
        segment = min_of(segment, n_segments);
        return segment * each + min_of(segment, longer);
    }
};

/* A block's outputs: sums of the segments so far, plus this turn's. */
template <int COLS> struct block_sums {
    float (*part)[8 * COLS][PART_STRIDE]; /* by warp */
    float (*total)[8 * COLS][PANEL_OUTS]; /* by panel */

    static size_t bytes(int n_warps, int n_panels)
    {
        return (size_t)n_warps * sizeof *part + (size_t)n_panels * sizeof *total;
    }
};

template <quant_type T> static __device__ inline uint32_t up_bits(float up)
{
    if (is_float<T>()) return __float_as_uint(up);
    if (T == QUANT_MXFP4) return (__float_as_uint(up) >> 23) - 127;
    return h2_from_f32(up, up);
}

/* The matrix of block x, and the block's first panel in it. */
struct block_part {
    cuda_matmul_part of;
    int              panel;
};
static __device__ inline block_part part_of(const cuda_matmul_args &a, const matmul_cut &cut)
{
    block_part p     = {a.part[0], 0};
    int        block = blockIdx.x;
#pragma unroll
    for (int i = 1; i < JOINED_MATMULS; i++)
        if (i < a.n_parts && (int)blockIdx.x >= a.part[i].first_block)
            p.of = a.part[i], block = (int)blockIdx.x - a.part[i].first_block;
    p.panel = block * cut.panels * cut.steps;
    return p;
}

/* The warp's segment in unit u of the block's work: a step to the next panels,
 * or a turn. A panel past the last is the last. */
static __device__ inline segment_at unit_of(const cuda_matmul_args &a, const matmul_cut &cut, const block_part &part,
                                            int u)
{
    int step = cut.turns == 1 ? u : 0, turn = cut.turns == 1 ? 0 : u;
    int panel   = min_of(part.panel + step * cut.panels + (int)threadIdx.z, part.of.n_panels - 1);
    int segment = turn * cut.segments + (int)threadIdx.y, first = cut.first_tile(segment);
    return {part.of.data + (size_t)panel * a.panel_bytes, first, cut.first_tile(segment + 1) - first};
}

/* A warp's tiles on their way to shared memory, through all units of the block's work. */
template <quant_type T> struct tile_ring {
    static constexpr int W = weights_ahead<T>(), SLOT = slot_bytes<T>(), TILE = (int)layout_tile_bytes(T);

    char       *shared, *fill, *take_at; /* the ring; the slots to fill and to take next */
    const char *from;                    /* the next tile to ask for */
    segment_at  at;                      /* its segment, of unit u */
    int         u, left, in_unit;        /* tiles to ask for, of all units and of u */

    __device__ inline void enter(const cuda_matmul_args &a, const matmul_cut &cut, const block_part &part)
    {
        at      = unit_of(a, cut, part, u);
        from    = at.panel + (size_t)at.first * TILE;
        in_unit = at.n;
    }
    __device__ inline void ask(const cuda_matmul_args &a, const matmul_cut &cut, const block_part &part, int lane)
    {
        if (left > 0) {
            copy_tile<T>(fill, from, at.panel + (size_t)a.n_tiles * TILE, at.first + at.n - in_unit, lane);
            fill += SLOT, from += TILE, left--;
            if (fill == shared + W * SLOT) fill = shared;
            if (--in_unit == 0 && left > 0) u++, enter(a, cut, part);
        }
        copy_commit();
    }
    __device__ inline void start(const cuda_matmul_args &a, const matmul_cut &cut, const block_part &part, int n_units,
                                 int lane)
    {
        fill = take_at = shared;
        u = left = 0;
        if (cut.turns == 1)
            left = n_units * unit_of(a, cut, part, 0).n;
        else
            for (int i = 0; i < n_units; i++) left += unit_of(a, cut, part, i).n;
        enter(a, cut, part);
#pragma unroll 1
        for (int i = 0; i < W - 1; i++) ask(a, cut, part, lane);
    }
    /* Takes the oldest tile, and asks for another in the place of the one before. */
    __device__ inline void take(lane_tile<T> &k, const cuda_matmul_args &a, const matmul_cut &cut,
                                const block_part &part, int lane)
    {
        copy_wait<W - 2>();
        __syncwarp();
        load_tile<T>(k, take_at, lane);
        take_at += SLOT;
        if (take_at == shared + W * SLOT) take_at = shared;
        ask(a, cut, part, lane);
    }
};

/* Adds the turn's segments to the sums, in order; the last turn writes them. */
template <int COLS>
static __device__ inline void add_parts(const block_sums<COLS> &sums, const cuda_matmul_args &a, const matmul_cut &cut,
                                        const block_part &part, int panel, const cuda_run &r, int first)
{
    int n         = min_of(cut.n_segments - first, cut.segments);
    int thread    = (threadIdx.z * blockDim.y + threadIdx.y) * WARP + threadIdx.x,
        n_threads = WARP * blockDim.y * blockDim.z;
    for (int i = thread; i < cut.panels * 8 * COLS * PANEL_OUTS; i += n_threads) {
        int p = i / (8 * COLS * PANEL_OUTS), col = i / PANEL_OUTS % (8 * COLS), out = i % PANEL_OUTS;
        int at = (panel + p) * PANEL_OUTS + out;
        if (col >= r.n || at >= part.of.n_out) continue;
        float sum = first ? sums.total[p][col][out] : sums.part[p * cut.segments][col][out];
        for (int s = first ? 0 : 1; s < n; s++) sum += sums.part[p * cut.segments + s][col][out];
        sums.total[p][col][out] = sum;
        if (first + n < cut.n_segments) continue;
        int pair                                     = pair_at(a, r, col);
        part.of.y[(size_t)pair * part.of.n_out + at] = sum * a.x.scale[row_of(a, pair)] * part.of.down;
    }
}

template <quant_type T, int COLS>
static __global__ void __launch_bounds__(MATMUL_THREADS) matmul_kernel(cuda_matmul_args a, matmul_cut cut)
{
    DYNAMIC_SHARED(uint4, matmul_shared); /* each warp's tiles, then the sums */
    int              n_warps = (int)(blockDim.y * blockDim.z);
    block_sums<COLS> sums;
    sums.part =
        (float(*)[8 * COLS][PART_STRIDE])((char *)matmul_shared + n_warps * weights_ahead<T>() * slot_bytes<T>());
    sums.total      = (float(*)[8 * COLS][PANEL_OUTS])(sums.part + n_warps);
    int        lane = threadIdx.x, warp = threadIdx.z * blockDim.y + threadIdx.y;
    block_part part    = part_of(a, cut);
    int        n_units = min_of(cut.steps, (part.of.n_panels - part.panel + cut.panels - 1) / cut.panels) * cut.turns;

    tile_ring<T>      ring;
    row_ring<T, COLS> rows;
    ring.shared = (char *)matmul_shared + warp * (weights_ahead<T>() * slot_bytes<T>());
    if (!a.id) ring.start(a, cut, part, n_units, lane); /* weights wait for nothing, their choice does */
    let_next_start();
    wait_for_previous();
    cuda_run r = find_run(a, blockIdx.y, a.id ? 1 : 8 * COLS);
    if (r.n < 1) return; /* the whole block */
    if (a.id) {
        part.of.data += (size_t)r.mat * part.of.n_panels * a.panel_bytes;
        ring.start(a, cut, part, n_units, lane);
    }
    rows.x.to_low = (size_t)(a.x.low - a.x.high);
#pragma unroll
    for (int j = 0; j < COLS; j++) {
        int i          = 8 * j + lane / 4;
        int row        = i < r.n ? row_of(a, pair_at(a, r, i)) : 0;
        rows.x.high[j] = i < r.n ? a.x.high + (size_t)(row / GROUP_ROWS) * a.n_tiles * XTILE_BYTES +
                                       (row % GROUP_ROWS * 4 + lane % 4) * 16
                                 : NULL;
    }
    segment_at now = unit_of(a, cut, part, 0);
    rows.start(now);
    uint32_t up = up_bits<T>(part.of.up), h2_1024 = in_register(H2_1024);
    for (int unit = 0; unit < n_units; unit++) {
        constexpr int X    = rows_ahead<T, COLS>();
        segment_at    next = {NULL, 0, 0};
        if (unit + 1 < n_units) next = unit_of(a, cut, part, unit + 1);
        float acc[COLS][4] = {};
        for (int t0 = 0; t0 < now.n; t0 += X) {
            bool       last = t0 + X >= now.n;
            segment_at then = last ? next : now;
#pragma unroll
            for (int i = 0; i < X; i++) {
                if (t0 + i < now.n) { /* the whole warp */
                    lane_tile<T> k;
                    ring.take(k, a, cut, part, lane);
                    add_tile<T, COLS>(acc, k, rows.rows[i], up, h2_1024);
                }
                rows.load(i, then, last ? 0 : t0 + X);
            }
        }
        now = next;
        if (unit) __syncthreads(); /* the parts before are added */
#pragma unroll
        for (int j = 0; j < COLS; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums.part[warp][8 * j + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = acc[j][i];
        __syncthreads();
        int step = cut.turns == 1 ? unit : 0, turn = cut.turns == 1 ? 0 : unit;
        add_parts<COLS>(sums, a, cut, part, part.panel + step * cut.panels, r, turn * cut.segments);
    }
}

/* --- launches ------------------------------------------------------------------------------------*/
enum { ENOUGH_BLOCKS = 4500, MOST_STEPS = 8 }; /* several times what a large GPU holds; more take several steps each */

static matmul_cut cut_of(int n_tiles)
{
    int n = layout_segments(n_tiles), each = n_tiles / n, longer = n_tiles % n;
    int turns = (n + MATMUL_WARPS - 1) / MATMUL_WARPS;
    return {n == 1 ? 4 : n == 2 ? 2 : 1, (n + turns - 1) / turns, n, turns, 1, each, longer};
}

template <quant_type T, int COLS> static void launch(cudaStream_t s, const cuda_matmul_args *args)
{
    cuda_matmul_args a   = *args;
    matmul_cut       cut = cut_of(a.n_tiles);
    unsigned blocks = 0, n_y = a.order ? (unsigned)a.n_runs : blocks_for((size_t)a.n_pairs, a.id ? 1 : 8 * COLS);
    size_t   panels = 0, busy_y = a.order ? (size_t)min_int(a.n_runs, a.n_pairs) : n_y;
    for (int i = 0; i < a.n_parts; i++) panels += (size_t)a.part[i].n_panels;
    if (cut.turns == 1) {
        size_t steps = panels / (size_t)cut.panels * busy_y / ENOUGH_BLOCKS;
        cut.steps    = steps < 1 ? 1 : steps > MOST_STEPS ? (int)MOST_STEPS : (int)steps;
    }
    for (int i = 0; i < a.n_parts; i++) {
        a.part[i].first_block = (int)blocks;
        blocks += blocks_for((size_t)a.part[i].n_panels, (size_t)(cut.panels * cut.steps));
    }
    size_t shared = (size_t)(cut.panels * cut.segments * weights_ahead<T>() * slot_bytes<T>()) +
                    block_sums<COLS>::bytes(cut.panels * cut.segments, cut.panels);
    allow_shared(matmul_kernel<T, COLS>, shared);
    LAUNCH_EARLY((matmul_kernel<T, COLS>), dim3(blocks, n_y), dim3(WARP, (unsigned)cut.segments, (unsigned)cut.panels),
                 shared, s, a, cut);
}

template <quant_type T> static void launch_type(cudaStream_t s, const cuda_matmul_args *a)
{
    int rows = a->order ? a->run_pairs : a->id ? 1 : a->n_pairs;
    if (rows <= 8)
        launch<T, 1>(s, a);
    else if (rows <= 16)
        launch<T, 2>(s, a);
    else
        launch<T, 4>(s, a);
}

extern "C" cudaError_t cuda_matmul(cudaStream_t s, quant_type type, const cuda_matmul_args *a)
{
    switch (type) {
#define CASE(T)                                                                                                        \
    case QUANT_##T: launch_type<QUANT_##T>(s, a); break;
        EACH_TYPE(CASE)
#undef CASE
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
