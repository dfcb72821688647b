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
#include "ops/cuda/act.cuh"
#include "ops/cuda/convert.cuh"
#include "ops/cuda/matmul.cuh"
#include "ops/cuda/router.cuh"

enum { LONG_THREADS = 512 };
/* Kinds of kernels by their rows:
 *   READ    read from memory, tile by tile
 *   STAGED  one or two, staged in shared memory
 *   OF_ONE  the experts of one row, staged
 *   GATED   the same for gate and up of the experts: two panels one after the other
 *   PAIRED  gate and up of one or two rows, staged
 *   RAW     rows that PAIRED wrote, converted to f16 when they are staged */
enum row_kind { ROWS_READ, ROWS_STAGED, ROWS_OF_ONE, ROWS_GATED, ROWS_PAIRED, ROWS_RAW };
/* Return how many warps a block has at most, and for how many such blocks registers leave room. F32 has short segments
 * and few panels: all segments of a panel are one turn. */
template <quant_type T, int COLS, row_kind KIND> static __host__ __device__ constexpr int most_warps()
{
    return COLS > 1                                     ? 14
           : T == QUANT_F32                             ? 12
           : KIND == ROWS_RAW                           ? 7
           : KIND == ROWS_STAGED || KIND == ROWS_PAIRED ? 8
                                                        : 10;
}
template <quant_type T, int COLS, row_kind KIND> static __host__ __device__ constexpr int least_blocks()
{
    if (COLS > 1 || T == QUANT_F32) return 1;
    return KIND == ROWS_STAGED || KIND == ROWS_PAIRED || KIND == ROWS_RAW ? 3 : 2;
}
enum { PART_STRIDE = 20 }; /* floats of a column of 16 outputs in shared memory, without bank conflicts */

/* --- activations ---------------------------------------------------------------------------------
 * A block per row. */
template <int THREADS, int QUADS>
static __global__ void __launch_bounds__(THREADS) convert_kernel(cuda_x out, const float *x, int n)
{
    row_quads<THREADS, QUADS> r;
    let_next_start();
    wait_for_previous();
    int row = source_of(out, blockIdx.x);
    if (row < 0) return;
    r.load(x + (size_t)row * n, n);
    r.convert(out, blockIdx.x, n, block_max<THREADS>(r.largest()));
}

/* Rows that are too long for registers are read twice. */
static __global__ void __launch_bounds__(LONG_THREADS) convert_long_kernel(cuda_x out, const float *x, int n)
{
    uint32_t largest = 0;
    let_next_start();
    wait_for_previous();
    int row = source_of(out, blockIdx.x);
    if (row < 0) return;
    x += (size_t)row * n;
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
    if (out.order) n_rows = out.n_order;
    cudaError_t status = convert_short(s, out, x, n_rows, n);
    if (status != cudaErrorInvalidValue) return status;
    LAUNCH_EARLY(convert_long_kernel, (unsigned)n_rows, LONG_THREADS, 0, s, out, x, n);
    return cudaGetLastError();
}

/* Grid: x over groups of rows, y over blocks of tiles. A thread has a piece of 16 bytes of a row, and goes from tile to
 * tile. */
enum { SORT_THREADS = 256, SORT_TILES = 16 };
static __global__ void __launch_bounds__(SORT_THREADS)
    sort_rows_kernel(cuda_x out, cuda_x x, int slots, int n_tiles, bool low)
{
    int i = (int)threadIdx.x % 64, piece = i % 2, r = i / 2 % GROUP_ROWS, step = i / 16;
    int at = (int)blockIdx.x * GROUP_ROWS + r, end = min_of(n_tiles, ((int)blockIdx.y + 1) * SORT_TILES);
    let_next_start();
    wait_for_previous();
    int pair = out.order[at];
    if (pair < 0) return;
    int    row = pair / slots, in = step * STEP_IN + piece * 2;
    size_t from = x_offset_wide(row, in, 0), to = x_offset_wide(at, in, 0);
    if (blockIdx.y == 0 && threadIdx.x < 64 && step == 0 && piece == 0) out.scale[at] = x.scale[row];
    for (int t = (int)blockIdx.y * SORT_TILES + (int)threadIdx.x / 64; t < end; t += SORT_THREADS / 64) {
        *(uint4 *)(out.high + t * out.tile_bytes + to) = *(const uint4 *)(x.high + t * x.tile_bytes + from);
        if (low) *(uint4 *)(out.low + t * out.tile_bytes + to) = *(const uint4 *)(x.low + t * x.tile_bytes + from);
    }
}

extern "C" cudaError_t cuda_sort_rows(cudaStream_t s, cuda_x out, cuda_x x, int slots, int n, bool low)
{
    int  n_tiles = (int)layout_tiles((size_t)n);
    dim3 grid(blocks_for((size_t)out.n_order, GROUP_ROWS), blocks_for((size_t)n_tiles, SORT_TILES));
    LAUNCH_EARLY(sort_rows_kernel, grid, SORT_THREADS, 0, s, out, x, slots, n_tiles, low);
    return cudaGetLastError();
}

/* --- pairs by matrix -----------------------------------------------------------------------------*/

/* The pairs of block y, at most n. */
static __device__ inline cuda_run find_run(const cuda_matmul_args &a, int y, int n)
{
    cuda_run r;
    if (a.order) {
        r.mat = read_l2(&a.run[y].mat), r.first = read_l2(&a.run[y].first), r.n = read_l2(&a.run[y].n);
        return r;
    }
    r.first = y * n;
    r.n     = a.n_pairs - r.first < n ? a.n_pairs - r.first : n;
    r.mat   = a.id ? read_l2(&a.id[r.first]) : 0;
    return r;
}

/* --- a segment -----------------------------------------------------------------------------------*/
/* Sets how many tiles of weights make a chunk, which is requested at once, and how
 * many chunks a warp has room for; how many tiles of the rows it asks for before
 * it needs them, a divisor of the chunk. */
template <quant_type T> static __host__ __device__ constexpr int chunk_tiles()
{
    return layout_tile_bytes(T) <= 640 ? 6 : layout_tile_bytes(T) <= 1152 ? 4 : 2;
}
template <quant_type T> static __host__ __device__ constexpr int chunk_slots() { return chunk_tiles<T>() == 4 ? 3 : 2; }
template <quant_type T, int COLS> static __host__ __device__ constexpr int rows_ahead()
{
    return is_float<T>() ? (COLS == 1 ? 2 : 1) : chunk_tiles<T>() == 6 && COLS == 1 ? 3 : 2;
}

/* Where a lane finds its pieces of operand B, by column tile. A column past the
 * last pair reads the last pair's row: nobody reads what comes out. */
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
 * of a segment. */
template <quant_type T, int COLS> struct row_ring {
    static constexpr int X = rows_ahead<T, COLS>(), PLANES = is_float<T>() ? 2 : 1;

    uint4           rows[X][COLS][2 * PLANES]; /* two pieces of high, then of low */
    lane_rows<COLS> x;

    /* Asks for tile t of the rows. */
    __device__ inline void load(int i, int t)
    {
#pragma unroll
        for (int j = 0; j < COLS; j++) {
            const char *at = x.high[j] + t * XTILE_BYTES;
#pragma unroll
            for (int p = 0; p < 2 * PLANES; p++)
                rows[i][j][p] = *(const uint4 *)(at + (p / 2 ? x.to_low : 0) + p % 2 * 512);
        }
    }
    __device__ inline void start(const segment_at &g)
    {
#pragma unroll
        for (int i = 0; i < X; i++)
            if (i < g.n) load(i, g.first + i);
    }
};

/* The same rows in shared memory, a segment of each, asked for all at once: a few
 * rows cost their latency, not their bytes. */
template <quant_type T> struct staged_rows {
    static constexpr int PLANES = is_float<T>() ? 2 : 1;
    static constexpr int TILES  = layout_segment_max(T);
    static constexpr int STRIDE = PLANES * TILES * 128 + 64; /* bytes of a row, without bank conflicts */

    const char *mine; /* the lane's first piece */

    static __host__ __device__ constexpr int bytes(int n_rows) { return n_rows * STRIDE; }

    /* A segment of one row on its way to shared memory. */
    struct piece {
        uint4 v[PLANES][TILES / 4];

        __device__ inline void ask(const cuda_matmul_args &a, const segment_at &g, int row, int lane)
        {
            const char *from =
                a.x.high + ((size_t)(row / GROUP_ROWS) * a.n_tiles + g.first) * XTILE_BYTES + row % GROUP_ROWS * 64;
#pragma unroll
            for (int j = 0; j < TILES / 4; j++) {
                int i = lane + j * WARP; /* tile i / 8, half i / 4 % 2, lane i % 4 */
                if (i >= g.n * 8) continue;
                size_t at = (size_t)(i / 4) * 512 + i % 4 * 16;
                v[0][j]   = *(const uint4 *)(from + at);
                if constexpr (PLANES == 2) v[1][j] = *(const uint4 *)(from + (a.x.low - a.x.high) + at);
            }
        }
        __device__ inline void put(char *to, const segment_at &g, int lane) const
        {
#pragma unroll
            for (int j = 0; j < TILES / 4; j++) {
                int i = lane + j * WARP;
                if (i >= g.n * 8) continue;
#pragma unroll
                for (int p = 0; p < PLANES; p++) *(uint4 *)(to + p * TILES * 128 + i * 16) = v[p][j];
            }
        }
    };
    /* Makes what was put at `to` the rows of the lanes; by a warp. */
    __device__ inline void take_rows(const char *to, int n, int lane)
    {
        mine = to + min_of(lane / 4, n - 1) * STRIDE + lane % 4 * 16;
        __syncwarp();
    }
    /* Copies the rows of the first pair and of the last one, n of them, and waits. */
    __device__ inline void load(char *to, const cuda_matmul_args &a, const segment_at &g, const int (&row)[STAGED_ROWS],
                                int n, int lane)
    {
#pragma unroll
        for (int r = 0; r < STAGED_ROWS; r++) {
            if (r >= n) break;
            piece one;
            one.ask(a, g, row[r], lane);
            one.put(to + r * STRIDE, g, lane);
        }
        take_rows(to, n, lane);
    }
    /* A segment of a row of n floats. */
    struct floats {
        static constexpr int QUADS = TILES * TILE_IN / 4 / WARP;
        float4               v[QUADS];

        __device__ inline void load(const float *from, int n, int lane)
        {
#pragma unroll
            for (int j = 0; j < QUADS; j++) v[j] = load_quad(from, 4 * (lane + j * WARP), n);
        }
        __device__ inline uint32_t largest() const
        {
            uint32_t top = 0;
#pragma unroll
            for (int j = 0; j < QUADS; j++) top = largest_of(v[j], top);
            return warp_max_u32(top);
        }
        __device__ inline void put(char *to, int n_tiles, float up, int lane) const
        {
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                int    in = 4 * (lane + j * WARP);
                float4 u =
                    up != 0 ? make_float4(v[j].x * up, v[j].y * up, v[j].z * up, v[j].w * up) : make_float4(0, 0, 0, 0);
                if (in < n_tiles * TILE_IN)
                    *(uint2 *)(to + in / TILE_IN * 128 + in % TILE_IN / 32 * 64 + in % STEP_IN / 4 * 16 +
                               in % 32 / STEP_IN * 8) = {h2_from_f32(u.x, u.y), h2_from_f32(u.z, u.w)};
            }
        }
    };
    /* Converts a row of floats that is one segment; returns its scale. */
    __device__ inline float convert(char *to, const float *from, int n_in, int lane)
    {
        floats f;
        f.load(from, n_in, lane);
        row_scale s = scale_of_row(f.largest());
        f.put(to, (int)layout_tiles(n_in), s.up, lane);
        take_rows(to, 1, lane);
        return s.down;
    }
    /* Converts a segment of a.raw; up: by row. */
    __device__ inline void convert_raw(char *to, const cuda_matmul_args &a, const segment_at &g, const float *up,
                                       int lane)
    {
        int n = min_of(a.n_in - g.first * TILE_IN, g.n * TILE_IN);
#pragma unroll
        for (int r = 0; r < STAGED_ROWS; r++) {
            if (r >= a.n_pairs) break;
            floats f;
            f.load(a.raw + (size_t)r * a.n_in + g.first * TILE_IN, n, lane);
            f.put(to + r * STRIDE, g.n, up[r], lane);
        }
        take_rows(to, a.n_pairs, lane);
    }
    __device__ inline void take(uint4 (&rows)[1][2 * PLANES], int t) const
    {
#pragma unroll
        for (int p = 0; p < 2 * PLANES; p++)
            rows[0][p] = *(const uint4 *)(mine + p / 2 * (TILES * 128) + t * 128 + p % 2 * 64);
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
    int apart, ahead,
        stride;       /* panels from one of a block's to the next, from one step to the next, to the next block's */
    int each, longer; /* tiles of a segment; how many have one more */

    __device__ inline int first_tile(int segment) const
    {
        segment = min_of(segment, n_segments);
        return segment * each + min_of(segment, longer);
    }
};

/* A block's shared memory after the weights: the segments' sums by warp, where
 * turns are added up, and the pairs with the powers of two of their rows. */
template <int COLS> struct block_sums {
    float (*part)[8 * COLS][PART_STRIDE]; /* by warp */
    float (*total)[8 * COLS][PANEL_OUTS]; /* by panel; with turns only */
    float   *scale;
    int32_t *pair;

    static size_t bytes(int n_warps, int n_totals)
    {
        return (size_t)n_warps * sizeof *part + (size_t)n_totals * sizeof *total + 8 * COLS * 8;
    }
};

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
    p.panel = block * cut.stride;
    return p;
}

/* The warp's segment in unit u of the block's work: a step to the next panels,
 * or a turn; with `paired`, a panel of the gate, then of the other matrix. A panel past the last is the last. */
static __device__ inline segment_at unit_of(const cuda_matmul_args &a, const matmul_cut &cut, const block_part &part,
                                            int u)
{
    int         step = cut.turns == 1 ? u : 0, turn = cut.turns == 1 ? 0 : u;
    int         panel   = min_of(part.panel + step * cut.ahead + (int)threadIdx.z * cut.apart, part.of.n_panels - 1);
    int         segment = turn * cut.segments + (int)threadIdx.y, first = cut.first_tile(segment);
    const char *data = part.of.data;
    if (a.paired) {
        panel = part.panel;
        if (u) data = a.part[1].data;
    }
    return {data + (size_t)panel * a.panel_bytes, first, cut.first_tile(segment + 1) - first};
}

/* --- weights on their way ------------------------------------------------------------------------
 * A warp's segments pass through slots of shared memory, a chunk of up to C
 * tiles at a time, each followed by what scales its super-blocks. A slot that
 * was used is filled with the chunk S further on. */
template <quant_type T> struct weight_ring {
    static constexpr int TILE = (int)layout_tile_bytes(T), D = 8 * layout_d(T);
    static constexpr int C = chunk_tiles<T>(), S = chunk_slots<T>();
    static constexpr int SUPERS = D ? (C + 6) / 4 : 0, SLOT = C * TILE + SUPERS * D, WARP_BYTES = S * SLOT;

    char       *slots;
    uint64_t   *gates;
    segment_at  next;                /* the next chunk to request, */
    int         unit, from, n_units; /* its unit, and its first tile in the segment */
    const char *tile;                /* the chunk's first */
    int         slot;
    unsigned    phase;
    int         ordinal; /* index of that tile in its super-block */

    __device__ inline void ask(const cuda_matmul_args &a, const matmul_cut &cut, const block_part &part, int to)
    {
        if (unit < n_units) {
            int   n = min_of(next.n - from, C), first = next.first + from, s0 = first / SUPER_TILES;
            int   supers = D ? ((first + n - 1) / SUPER_TILES - s0 + 1) * D : 0;
            char *at     = slots + to * SLOT;
            gate_expect(&gates[to], n * TILE + supers);
            gate_piece(&gates[to], at, next.panel + (size_t)first * TILE, n * TILE);
            if constexpr (D > 0)
                gate_piece(&gates[to], at + C * TILE, next.panel + (size_t)a.n_tiles * TILE + s0 * D, supers);
            from += n;
            if (from >= next.n) {
                from = 0;
                do {
                    unit++;
                    if (unit < n_units) next = unit_of(a, cut, part, unit);
                } while (unit < n_units && next.n == 0);
            }
        }
        gate_commit();
    }
    __device__ inline void start(const cuda_matmul_args &a, const matmul_cut &cut, const block_part &part, int units)
    {
        unit = from = slot = 0;
        phase              = 0;
        n_units            = units;
        next               = unit_of(a, cut, part, 0);
#pragma unroll
        for (int i = 0; i < S; i++) ask(a, cut, part, i);
    }
    /* Waits for the chunk that begins at a panel's tile `first`. */
    __device__ inline void enter(int first)
    {
        gate_wait<S - 1>(&gates[slot], phase);
        tile    = slots + slot * SLOT;
        ordinal = first % SUPER_TILES;
    }
    __device__ inline void leave(const cuda_matmul_args &a, const matmul_cut &cut, const block_part &part)
    {
        __syncwarp(); /* all lanes have read the slot */
        ask(a, cut, part, slot);
        if (++slot == S) slot = 0, phase ^= 1;
    }
    /* Takes tile i of the chunk. */
    __device__ inline void take(lane_tile<T> &k, int i, int lane) const
    {
        load_tile<T>(k, tile + i * TILE, D ? tile + C * TILE + (ordinal + i) / SUPER_TILES * D : NULL, lane);
    }
};

/* Adds the turn's segments to the sums, in order; the last turn writes them. */
template <int COLS>
static __device__ inline void add_parts(const block_sums<COLS> &sums, const matmul_cut &cut, const block_part &part,
                                        int panel, int n_pairs, int first)
{
    int n         = min_of(cut.n_segments - first, cut.segments);
    int thread    = (threadIdx.z * blockDim.y + threadIdx.y) * WARP + threadIdx.x,
        n_threads = WARP * blockDim.y * blockDim.z;
    for (int i = thread; i < cut.panels * 8 * COLS * PANEL_OUTS; i += n_threads) {
        int p = i / (8 * COLS * PANEL_OUTS), col = i / PANEL_OUTS % (8 * COLS), out = i % PANEL_OUTS;
        int at = (panel + p) * PANEL_OUTS + out;
        if (col >= n_pairs || at >= part.of.n_out) continue;
        float sum = first ? sums.total[p][col][out] : sums.part[p * cut.segments][col][out];
        for (int s = first ? 0 : 1; s < n; s++) sum += sums.part[p * cut.segments + s][col][out];
        if (first + n < cut.n_segments)
            sums.total[p][col][out] = sum;
        else
            part.of.y[(size_t)sums.pair[col] * part.of.n_out + at] = sum * sums.scale[col] * part.of.down;
    }
}

/* Does the same as add_parts for the two halves of a gate: panel p of the first, and of the second. A block has all
 * segments of both. */
template <int COLS>
static __device__ inline void add_gated(const block_sums<COLS> &sums, const matmul_cut &cut, const block_part &part,
                                        int panel, int n_pairs, act_kind act)
{
    int thread    = (threadIdx.z * blockDim.y + threadIdx.y) * WARP + threadIdx.x,
        n_threads = WARP * blockDim.y * blockDim.z;
    for (int i = thread; i < n_pairs * PANEL_OUTS; i += n_threads) {
        int   col = i / PANEL_OUTS, out = i % PANEL_OUTS;
        float v[2];
#pragma unroll
        for (int p = 0; p < 2; p++) {
            v[p] = sums.part[p * cut.segments][col][out];
            for (int s = 1; s < cut.segments; s++) v[p] += sums.part[p * cut.segments + s][col][out];
            v[p] = v[p] * sums.scale[col] * part.of.down;
        }
        part.of.y[(size_t)sums.pair[col] * (part.of.n_out / 2) + panel * PANEL_OUTS + out] = gate_of(v[0], act) * v[1];
    }
}

/* Does the same for a pair of matrices, and writes the largest magnitude of each row. A row has 16 lanes of a warp. */
template <int COLS>
static __device__ inline void add_paired(const block_sums<COLS> &sums, const matmul_cut &cut, const cuda_matmul_args &a,
                                         int panel, int warp, int lane)
{
    static_assert(STAGED_ROWS * PANEL_OUTS <= WARP, "a lane for each output");
    if (warp) return;
    int   col = lane / PANEL_OUTS, out = lane % PANEL_OUTS;
    float v[2], y                      = 0;
    if (col < a.n_pairs) {
#pragma unroll
        for (int p = 0; p < 2; p++) {
            v[p] = sums.part[p * cut.segments][col][out];
            for (int s = 1; s < cut.segments; s++) v[p] += sums.part[p * cut.segments + s][col][out];
            v[p] = v[p] * sums.scale[col] * a.part[p].down;
        }
        y                                                                     = gate_of(v[0], (act_kind)a.act) * v[1];
        a.part[0].y[(size_t)col * a.part[0].n_out + panel * PANEL_OUTS + out] = y;
    }
    uint32_t top = __float_as_uint(y) & 0x7fffffffu;
    for (int k = PANEL_OUTS / 2; k > 0; k /= 2) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, top, k);
        top            = other > top ? other : top;
    }
    if (out == 0 && col < a.n_pairs) a.largest[(size_t)col * gridDim.x + blockIdx.x] = top;
}

/* Finds the scales of the rows of a.raw, for the whole block. */
static __device__ inline void raw_scales(const cuda_matmul_args &a, float *up, float *down)
{
    __shared__ uint32_t top[STAGED_ROWS][WARP];
    int                 n_threads = WARP * blockDim.y * blockDim.z;
    int                 thread = (threadIdx.z * blockDim.y + threadIdx.y) * WARP + threadIdx.x, warp = thread / WARP;
#pragma unroll
    for (int r = 0; r < STAGED_ROWS; r++) {
        uint32_t mine = 0;
        if (r >= a.n_pairs) break;
        for (int i = thread; i < a.n_tops; i += n_threads) {
            uint32_t v = a.tops[(size_t)r * a.n_tops + i];
            mine       = v > mine ? v : mine;
        }
        mine = warp_max_u32(mine);
        if (threadIdx.x == 0) top[r][warp] = mine;
    }
    __syncthreads();
    if (thread < a.n_pairs) {
        uint32_t largest = 0;
        for (int w = 0; w < n_threads / WARP; w++) largest = top[thread][w] > largest ? top[thread][w] : largest;
        row_scale s  = scale_of_row(largest);
        up[thread]   = s.up;
        down[thread] = s.down;
    }
    __syncthreads();
}

/* Writes the outputs of one row's experts, a warp each, and their sum by rank. */
template <int COLS>
static __device__ inline void add_slots(const block_sums<COLS> &sums, const cuda_matmul_args &a, const block_part &part,
                                        int warp, int lane)
{
    int at = part.panel * PANEL_OUTS + lane;
    if (lane >= PANEL_OUTS || at >= part.of.n_out) return;
    part.of.y[(size_t)warp * part.of.n_out + at] = sums.part[warp][0][lane] * sums.scale[warp] * part.of.down;
    if (warp) return;
    float sum = 0;
    for (int s = 0; s < a.n_pairs; s++)
        sum = fmaf(a.slot_w[s], sums.part[s][0][lane] * sums.scale[s] * part.of.down, sum);
    a.sum[at] = sum;
}

/* Returns the expert of pair `slot`. Every block chooses for itself; one writes the choice for later kernels. */
static __device__ inline int choose_here(const cuda_router_args &a, int slot, int warp, int lane)
{
    __shared__ uint32_t room[2 * CHOICE_SLOTS];
    choice              c;
    if (warp == 0) {
        c.make<CHOICE_EXPERTS>(room, a.logits, a.n_experts, a.n_slots, lane);
        if (blockIdx.x == 0 && blockIdx.y == 0) {
            c.put(a.id, a.w, a.scale, a.n_slots, lane);
            __threadfence(); /* before let_next_start: read_l2 of the next kernel sees the ids */
        }
    }
    __syncthreads();
    return ((const int32_t *)room)[a.n_slots + slot];
}

/* Stores a warp's sums of one unit where add_parts and add_gated read them. */
template <int COLS>
static __device__ inline void store_part(const block_sums<COLS> &sums, const float (&acc)[COLS][4], int warp, int lane)
{
#pragma unroll
    for (int j = 0; j < COLS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums.part[warp][8 * j + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = acc[j][i];
}

/* Puts the rows of a warp's first segment into shared memory as f16, and the pairs and their scales where the sums are
 * made, which reads them after a barrier. */
template <quant_type T, int COLS, row_kind KIND>
static __device__ inline void stage_rows(staged_rows<T> &staged, block_sums<COLS> &sums, const cuda_matmul_args &a,
                                         cuda_run r, segment_at now, char *rows_at, float *raw_up, float *raw_down)
{
    constexpr bool ONE = KIND == ROWS_OF_ONE, RAW = KIND == ROWS_RAW;
    bool           summed = ONE && a.sum;
    int            lane = threadIdx.x, warp = threadIdx.z * blockDim.y + threadIdx.y;
    int            row[STAGED_ROWS] = {row_of(a, r.first), row_of(a, r.first + r.n - 1)};
    float          scale            = 1;
    if constexpr (RAW) {
        raw_scales(a, raw_up, raw_down);
        staged.convert_raw(rows_at, a, now, raw_up, lane);
    } else if (ONE && !is_float<T>() && a.rows)
        scale = staged.convert(rows_at, a.rows + (size_t)r.first * a.n_in, a.n_in, lane);
    else
        staged.load(rows_at, a, now, row, r.n, lane);
    if (summed) {
        if (lane == 0) sums.scale[threadIdx.z] = scale;
    } else if (warp == 0 && lane < r.n) { /* read after a barrier */
        sums.pair[lane]  = r.first + lane;
        sums.scale[lane] = ONE && a.rows ? scale : RAW ? raw_down[lane] : a.x.scale[row_of(a, r.first + lane)];
    }
}

/* Finds the rows of a run that are read as they are needed, and notes pairs and scales as stage_rows does. */
template <quant_type T, int COLS>
static __device__ inline void find_rows(row_ring<T, COLS> &rows, block_sums<COLS> &sums, const cuda_matmul_args &a,
                                        cuda_run r)
{
    int lane = threadIdx.x, warp = threadIdx.z * blockDim.y + threadIdx.y;
    rows.x.to_low = (size_t)(a.x.low - a.x.high);
#pragma unroll
    for (int j = 0; j < COLS; j++) {
        int pair = pair_at(a, r, min_of(8 * j + lane / 4, r.n - 1)), row = row_of(a, pair);
        rows.x.high[j] =
            a.x.high + (size_t)(row / GROUP_ROWS) * a.n_tiles * XTILE_BYTES + (row % GROUP_ROWS * 4 + lane % 4) * 16;
        if (warp == 0 && lane % 4 == 0) { /* read after a barrier */
            sums.pair[8 * j + lane / 4]  = pair;
            sums.scale[8 * j + lane / 4] = a.x.scale[row];
        }
    }
}

template <quant_type T, int COLS, row_kind KIND>
static __global__ void __launch_bounds__(most_warps<T, COLS, KIND>() * WARP, least_blocks<T, COLS, KIND>())
    matmul_kernel(cuda_matmul_args a, matmul_cut cut)
{
    typedef weight_ring<T> weights;
    constexpr bool         STAGED = KIND != ROWS_READ, GATED = KIND == ROWS_GATED, ONE = KIND == ROWS_OF_ONE || GATED;
    constexpr bool         PAIRED = KIND == ROWS_PAIRED, RAW = KIND == ROWS_RAW;
    bool                   by_id = ONE || (!STAGED && a.id), summed = KIND == ROWS_OF_ONE && a.sum;
    DYNAMIC_SHARED(uint4, matmul_shared); /* each warp's slots, then the sums, then each warp's rows */
    __shared__ uint64_t gates[most_warps<T, COLS, KIND>() * weights::S];
    __shared__ float    raw_up[STAGED_ROWS], raw_down[STAGED_ROWS];
    int                 n_warps = (int)(blockDim.y * blockDim.z);
    int                 lane = threadIdx.x, warp = threadIdx.z * blockDim.y + threadIdx.y;
    block_sums<COLS>    sums;
    sums.part       = (float(*)[8 * COLS][PART_STRIDE])((char *)matmul_shared + n_warps * weights::WARP_BYTES);
    sums.total      = (float(*)[8 * COLS][PANEL_OUTS])(sums.part + (GATED || PAIRED ? 2 : 1) * n_warps);
    sums.scale      = (float *)(sums.total + (cut.turns > 1 ? cut.panels : 0));
    sums.pair       = (int32_t *)(sums.scale + 8 * COLS);
    block_part part = part_of(a, cut);
    int        left = part.of.n_panels - part.panel;
    int        n_units =
        PAIRED ? 2 : (left < cut.steps * cut.ahead ? (left + cut.ahead - 1) / cut.ahead : cut.steps) * cut.turns;

    weights           ring;
    row_ring<T, COLS> rows;
    staged_rows<T>    staged;
    /* GATED: the row is asked for before 18 MB of weights are. */
    typename staged_rows<T>::piece early;
    ring.slots = (char *)matmul_shared + warp * weights::WARP_BYTES;
    ring.gates = gates + warp * weights::S;
    if (lane < weights::S) gate_init(&ring.gates[lane]);
    __syncwarp();
    /* Weights wait for nothing, their choice may. */
    cuda_run r = {};
    if (by_id && (a.gives || !a.settled)) wait_for_previous();
    if constexpr (GATED) {
        early.ask(a, unit_of(a, cut, part, 0), 0, lane);
        r = {choose_here(a.router, blockIdx.y, warp, lane), (int32_t)blockIdx.y, 1};
        let_next_start();
    } else {
        let_next_start();
        r = find_run(a, summed ? (int)threadIdx.z : (int)blockIdx.y, ONE ? 1 : 8 * COLS);
    }
    if (r.n > 0) {
        if (by_id) part.of.data += (size_t)r.mat * part.of.n_panels * a.panel_bytes;
        ring.start(a, cut, part, n_units);
    }
    if (!by_id || (!a.gives && a.settled)) wait_for_previous();
    if (r.n < 1) return; /* the whole block */
    segment_at now     = unit_of(a, cut, part, 0);
    char      *rows_at = (char *)(sums.pair + 8 * COLS) + warp * staged.bytes(STAGED ? r.n : 0);
    if constexpr (GATED) {
        early.put(rows_at, now, lane);
        staged.take_rows(rows_at, 1, lane);
        if (warp == 0 && lane == 0) sums.pair[0] = r.first, sums.scale[0] = a.x.scale[0]; /* read after a barrier */
    } else if constexpr (STAGED) {
        stage_rows<T, COLS, KIND>(staged, sums, a, r, now, rows_at, raw_up, raw_down);
    } else {
        find_rows<T, COLS>(rows, sums, a, r);
        rows.start(now);
    }
    uint32_t up = up_bits<T>(part.of.up), h2_1024 = T == QUANT_Q4_0 ? 0 : in_register(H2_1024);
    for (int unit = 0; unit < n_units; unit++) {
        constexpr int X = rows_ahead<T, COLS>(), C = weights::C;
        static_assert(C % X == 0, "a chunk begins with the first of the rows' places");
        float acc[COLS][4] = {};
        for (int t0 = 0; t0 < now.n; t0 += C) {
            int n = min_of(now.n - t0, C);
            ring.enter(now.first + t0);
#pragma unroll
            for (int i = 0; i < C; i++) {
                lane_tile<T> k;
                int          t = t0 + i;
                if (i >= n) break; /* the whole warp */
                ring.take(k, i, lane);
                if constexpr (STAGED) {
                    uint4 b[COLS][2 * staged.PLANES];
                    staged.take(b, t);
                    add_tile<T, COLS>(acc, k, b, up, h2_1024);
                } else {
                    add_tile<T, COLS>(acc, k, rows.rows[i % X], up, h2_1024);
                    if (t + X < now.n) rows.load(i % X, now.first + t + X);
                }
            }
            ring.leave(a, cut, part);
        }
        if (unit + 1 < n_units) {
            segment_at next = unit_of(a, cut, part, unit + 1);
            if constexpr (STAGED) {
                if (cut.turns > 1) {
                    int row[STAGED_ROWS] = {row_of(a, r.first), row_of(a, r.first + r.n - 1)};
                    __syncwarp();
                    if constexpr (RAW)
                        staged.convert_raw(rows_at, a, next, raw_up, lane);
                    else
                        staged.load(rows_at, a, next, row, r.n, lane);
                }
            } else {
                rows.start(next);
            }
            now = next;
        }
        if (unit && !GATED && !PAIRED) __syncthreads(); /* the parts before are added */
        store_part<COLS>(sums, acc, GATED || PAIRED ? unit * n_warps + warp : warp, lane);
        if (PAIRED) up = up_bits<T>(a.part[1].up);
        if ((GATED || PAIRED) && unit == 0) continue;
        __syncthreads();
        int step = cut.turns == 1 ? unit : 0, turn = cut.turns == 1 ? 0 : unit;
        if constexpr (GATED)
            add_gated<COLS>(sums, cut, part, part.panel, r.n, (act_kind)a.act);
        else if constexpr (PAIRED)
            add_paired<COLS>(sums, cut, a, part.panel, warp, lane);
        else if (summed)
            add_slots<COLS>(sums, a, part, warp, lane);
        else
            add_parts<COLS>(sums, cut, part, part.panel + step * cut.panels, r.n, turn * cut.segments);
    }
}

/* --- launches ------------------------------------------------------------------------------------*/
enum {
    ENOUGH_BLOCKS = 1000,
    MOST_STEPS    = 4
}; /* more than a large GPU holds at a time; with more work, blocks take several steps */

/* Cuts inputs into segments, and a panel's segments into turns of at most most_warps. With many rows a block has two
 * panels, if that takes no more than pair_warps: they share the rows, through the first cache. */
static matmul_cut cut_of(quant_type type, int n_tiles, int most_warps, int pair_warps)
{
    int n = layout_segments(type, n_tiles), each = n_tiles / n, longer = n_tiles % n;
    int turns  = (n + most_warps - 1) / most_warps;
    int panels = n == 1 ? 4 : n == 2 || 2 * n <= pair_warps ? 2 : 1;
    return {panels, (n + turns - 1) / turns, n, turns, 1, 1, panels, panels, each, longer};
}

template <quant_type T, int COLS, row_kind KIND> static void launch(cudaStream_t s, const cuda_matmul_args *args)
{
    enum { REST = 4352 }; /* bytes: where turns are added up, the pairs, and room for the experts' choice */
    cuda_matmul_args a          = *args;
    size_t           warp_bytes = (size_t)weight_ring<T>::WARP_BYTES + block_sums<COLS>::bytes(1, 0) +
                        (KIND == ROWS_READ ? 0 : (size_t)staged_rows<T>::bytes(a.id ? 1 : a.n_pairs));
    size_t     room   = ((size_t)shared_limit() - REST) / warp_bytes;
    matmul_cut cut    = cut_of(T, a.n_tiles, min_int((int)room, most_warps<T, COLS, KIND>()),
                            COLS == 1   ? 0
                               : COLS == 2 ? 8
                                           : 14);
    unsigned   blocks = 0, n_y = a.order ? (unsigned)min_int(a.n_runs, a.n_pairs) /* no run is empty */
                                         : blocks_for((size_t)a.n_pairs, a.id ? 1 : 8 * COLS);
    size_t     panels = 0;
    for (int i = 0; i < a.n_parts; i++) panels += (size_t)a.part[i].n_panels;
    if (KIND == ROWS_PAIRED) {
        cut.panels = cut.ahead = 1;
        a.n_parts              = 1;
    } else if (KIND == ROWS_GATED) {
        cut.panels = 1, cut.ahead = a.part[0].n_panels / 2, cut.steps = 2;
    } else if (KIND == ROWS_OF_ONE && a.sum) { /* a warp for each expert */
        cut.panels = a.n_pairs, cut.apart = 0, cut.ahead = 1;
        n_y = 1;
    } else if (cut.turns == 1) {
        size_t steps = panels / (size_t)cut.panels * n_y / ENOUGH_BLOCKS;
        cut.steps    = steps < 1 ? 1 : steps > MOST_STEPS ? (int)MOST_STEPS : (int)steps;
    }
    cut.stride = KIND == ROWS_GATED ? 1 : cut.ahead * cut.steps;
    for (int i = 0; i < a.n_parts; i++) {
        a.part[i].first_block = (int)blocks;
        blocks += blocks_for((size_t)(KIND == ROWS_GATED ? cut.ahead : a.part[i].n_panels), (size_t)cut.stride);
    }
    int    n_warps = cut.panels * cut.segments;
    size_t shared  = (size_t)(n_warps * weight_ring<T>::WARP_BYTES) +
                    block_sums<COLS>::bytes(KIND == ROWS_GATED || KIND == ROWS_PAIRED ? 2 * n_warps : n_warps,
                                            cut.turns > 1 ? cut.panels : 0);
    if (KIND != ROWS_READ) shared += (size_t)(n_warps * staged_rows<T>::bytes(a.id ? 1 : a.n_pairs));
    allow_shared(matmul_kernel<T, COLS, KIND>, shared);
    LAUNCH_EARLY((matmul_kernel<T, COLS, KIND>), dim3(blocks, n_y),
                 dim3(WARP, (unsigned)cut.segments, (unsigned)cut.panels), shared, s, a, cut);
}

template <quant_type T> static void launch_type(cudaStream_t s, const cuda_matmul_args *a)
{
    int rows = a->order ? a->run_pairs : a->id ? 1 : a->n_pairs;
    if constexpr (!is_float<T>())
        if (a->act >= 0 || a->raw) {
            a->raw      ? launch<T, 1, ROWS_RAW>(s, a)
            : a->paired ? launch<T, 1, ROWS_PAIRED>(s, a)
                        : launch<T, 1, ROWS_GATED>(s, a);
            return;
        }
    if (a->id && !a->order)
        launch<T, 1, ROWS_OF_ONE>(s, a);
    else if (rows <= STAGED_ROWS && !a->order)
        launch<T, 1, ROWS_STAGED>(s, a);
    else if (rows <= 8)
        launch<T, 1, ROWS_READ>(s, a);
    else if (rows <= 16)
        launch<T, 2, ROWS_READ>(s, a);
    else
        launch<T, 4, ROWS_READ>(s, a);
}

template <quant_type T> static bool can_gate(int n_tiles)
{
    int n = layout_segments(T, n_tiles);
    return !is_float<T>() && n <= most_warps<T, 1, ROWS_GATED>() &&
           n * (weight_ring<T>::WARP_BYTES + (int)block_sums<1>::bytes(2, 0) + staged_rows<T>::bytes(1)) <=
               shared_limit();
}

extern "C" bool cuda_matmul_can_gate(quant_type type, int n_tiles)
{
    switch (type) {
#define CASE(T)                                                                                                        \
    case QUANT_##T: return can_gate<QUANT_##T>(n_tiles);
        EACH_TYPE(CASE)
#undef CASE
    default: return false;
    }
}

/* A gate's halves are panels of one block, which has all their segments. */
template <quant_type T> static bool can_pair(int n_tiles, int n_rows)
{
    int    n = layout_segments(T, n_tiles);
    size_t warp =
        (size_t)weight_ring<T>::WARP_BYTES + block_sums<1>::bytes(2, 0) + (size_t)staged_rows<T>::bytes(n_rows);
    return !is_float<T>() && n_rows <= STAGED_ROWS && n <= most_warps<T, 1, ROWS_PAIRED>() &&
           (size_t)n * warp + 4096 <= (size_t)shared_limit();
}

extern "C" bool cuda_matmul_can_pair(quant_type type, int n_tiles, int n_rows)
{
    switch (type) {
#define CASE(T)                                                                                                        \
    case QUANT_##T: return can_pair<QUANT_##T>(n_tiles, n_rows);
        EACH_TYPE(CASE)
#undef CASE
    default: return false;
    }
}

/* A block has a warp for each slot, and its rows. */
template <quant_type T> static bool can_sum(int n_slots)
{
    size_t rest = 4352; /* as in launch */
    return (size_t)n_slots * (size_t)(weight_ring<T>::WARP_BYTES + staged_rows<T>::bytes(1)) +
               block_sums<1>::bytes(n_slots, 0) + rest <=
           (size_t)shared_limit();
}

extern "C" bool cuda_matmul_can_sum(quant_type type, int n_slots)
{
    if (n_slots > SUM_SLOTS) return false;
    switch (type) {
#define CASE(T)                                                                                                        \
    case QUANT_##T: return can_sum<QUANT_##T>(n_slots);
        EACH_TYPE(CASE)
#undef CASE
    default: return false;
    }
}

extern "C" bool cuda_matmul_can_convert(quant_type type, int n_tiles)
{
    bool is_float = type == QUANT_F32 || type == QUANT_F16 || type == QUANT_BF16;
    return !is_float && layout_segments(type, n_tiles) == 1;
}

extern "C" cudaError_t cuda_matmul(cudaStream_t s, quant_type type, const cuda_matmul_args *a)
{
    if (cuda_matmul_shares(type, a)) return cuda_matmul_shared(s, type, a);
    switch (type) {
#define CASE(T)                                                                                                        \
    case QUANT_##T: launch_type<QUANT_##T>(s, a); break;
        EACH_TYPE(CASE)
#undef CASE
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
