/* y[row][o] = sum over i of w[o][i] x[row][i] for 5 rows and more, and matrices with many panels. The arithmetic is
 * that of matmul.cu, to the bit, where each panel reads the rows again: 16 rows of f16 are four times as many bytes as
 * the weights that they meet.
 *
 * Here a block per multiprocessor has a share of the panels, in couples, and walks over the segments of the inputs. A
 * segment of the rows is in shared memory once per block; a warp of its own brings the next ones.
 *
 *     items of a block: (segment 0, couple 0), (segment 0, couple 1), ... (segment 1, couple 0), ...
 *     warp w of W makes items w, w + W, w + 2 W, ...
 *
 * The sums of a couple's earlier segments wait in shared memory; who has the next segment adds it to them when its turn
 * has come, so segments are added from left to right. A share whose sums do not fit is divided into passes. The weights
 * of a warp pass through a ring that goes on from item to item. Hopper and later only. */
#include "ops/cuda/matmul.cuh"

enum { COUPLE = 2, ROW_STAGES = 2, WEIGHT_SLOTS = 2, MOST_COUPLES = 64, STAGE_TILES = 12 };

/* Sizes, by type and by the rows in groups of 8. */
template <quant_type T, int COLS> struct shared_shape {
    static constexpr int  TILE = (int)layout_tile_bytes(T), D = 8 * layout_d(T);
    static constexpr bool SMALL    = TILE <= 640;
    static constexpr int  WARPS    = COLS == 4 && !SMALL ? 8 : 12; /* without the one that brings rows */
    static constexpr int  C        = COLS == 1   ? (SMALL ? 6 : 3) /* tiles of a panel in a slot */
                                     : COLS == 2 ? (SMALL         ? 4
                                                    : TILE <= 900 ? 3
                                                                  : 2)
                                                 : 2;
    static constexpr int  TOGETHER = COLS == 4 ? 1 : 2; /* tiles of a panel whose operands are loaded together */
    static constexpr int  SUPERS = D ? (C + 6) / 4 : 0, PANEL = C * TILE + SUPERS * D, SLOT = COUPLE * PANEL;
    static constexpr int  WARP_BYTES = WEIGHT_SLOTS * SLOT;
    static constexpr int  ROWS_BYTES = COLS * STAGE_TILES * XTILE_BYTES; /* a stage */
    static constexpr int  SUM_BYTES  = COUPLE * COLS * WARP * (int)sizeof(float4);
    static constexpr int  FIXED      = WARPS * WARP_BYTES + ROW_STAGES * ROWS_BYTES;
};

struct shared_plan {
    int n_couples; /* sum over the parts */
    int pass;      /* couples of a pass at most */
    int n_segments, each, longer;

    __device__ inline int first_tile(int segment) const { return segment * each + min_of(segment, longer); }
    __device__ inline int tiles(int segment) const { return each + (segment < longer); }
};

/* A couple of panels; the second is the first again where the matrix has no more. */
struct couple_at {
    cuda_matmul_part of;
    int              panel;
};
static __device__ inline couple_at find_couple(const cuda_matmul_args &a, int i)
{
    couple_at c = {a.part[0], i};
#pragma unroll
    for (int p = 1; p < JOINED_MATMULS; p++)
        if (p < a.n_parts && i >= a.part[p].first_block) c.of = a.part[p], c.panel = i - a.part[p].first_block;
    c.panel *= COUPLE;
    return c;
}

/* The items of a warp, in order. */
struct item_walk {
    int first, end, pass; /* the block's couples from the current pass on; couples of a pass */
    int n;                /* couples of the current pass; 0: there are no more items */
    int stage;            /* index of the rows that the item needs: counts segments over all passes */
    int segment, couple;  /* couple: of the pass */

    __device__ inline void settle(const shared_plan &plan)
    {
        while (n && couple >= n) {
            couple -= n;
            stage++;
            if (++segment < plan.n_segments) continue;
            segment = 0;
            first += n;
            n = min_of(pass, end - first);
        }
    }
    __device__ inline void start(const shared_plan &plan, int from, int to, int warp)
    {
        int n_passes = (to - from + plan.pass - 1) / plan.pass;
        first = from, end = to;
        pass  = n_passes ? (to - from + n_passes - 1) / n_passes : 0;
        n     = min_of(pass, to - from);
        stage = segment = 0;
        couple          = warp;
        settle(plan);
    }
    __device__ inline void next(const shared_plan &plan, int n_warps)
    {
        couple += n_warps;
        settle(plan);
    }
};

/* A warp's weights on their way: slots of up to C tiles of both panels of a couple, each followed by what scales its
 * super-blocks. */
template <quant_type T, int COLS> struct couple_ring {
    typedef shared_shape<T, COLS> S;

    char       *slots;
    uint64_t   *gates;
    item_walk   at;   /* the item of the next slot to request, */
    const char *data; /* its first panel, */
    size_t      next; /* bytes from there to its second, */
    int         from; /* and the slot's first tile in the segment */
    int         slot;
    unsigned    phase;

    __device__ inline void find(const cuda_matmul_args &a)
    {
        if (!at.n) return;
        couple_at c = find_couple(a, at.first + at.couple);
        data        = c.of.data + (size_t)c.panel * a.panel_bytes;
        next        = c.panel + 1 < c.of.n_panels ? a.panel_bytes : 0;
    }
    __device__ inline void ask(const cuda_matmul_args &a, const shared_plan &plan, int to)
    {
        if (!at.n) return;
        int         left = plan.tiles(at.segment) - from, n = min_of(left, S::C);
        int         tile = plan.first_tile(at.segment) + from, s0 = tile / SUPER_TILES;
        int         supers = S::D ? ((tile + n - 1) / SUPER_TILES - s0 + 1) * S::D : 0;
        const char *tiles = data + (size_t)tile * S::TILE, *scales = data + (size_t)a.n_tiles * S::TILE + s0 * S::D;
        char       *room = slots + to * S::SLOT;
        if (elected_lane()) {
            gate_announce(&gates[to], COUPLE * (n * S::TILE + supers));
#pragma unroll
            for (int p = 0; p < COUPLE; p++) {
                gate_copy_once(&gates[to], room + p * S::PANEL, tiles + p * next, n * S::TILE);
                if constexpr (S::D > 0)
                    gate_copy_once(&gates[to], room + p * S::PANEL + S::C * S::TILE, scales + p * next, supers);
            }
        }
        from += n;
        if (n < left) return;
        from = 0;
        at.next(plan, S::WARPS);
        find(a);
    }
    __device__ inline void start(const cuda_matmul_args &a, const shared_plan &plan, const item_walk &first)
    {
        at   = first;
        from = slot = 0;
        phase       = 0;
        find(a);
        for (int i = 0; i < WEIGHT_SLOTS; i++) ask(a, plan, i);
    }
    __device__ inline const char *enter() const
    {
        gate_wait<0>(&gates[slot], phase);
        return slots + slot * S::SLOT;
    }
    __device__ inline void leave(const cuda_matmul_args &a, const shared_plan &plan)
    {
        __syncwarp(); /* all lanes have read the slot */
        ask(a, plan, slot);
        if (++slot == WEIGHT_SLOTS) slot = 0, phase ^= 1;
    }
};

/* acc plus N tiles of both panels. slot: their slot; i: the first one's place in it; ordinal: that of the slot's first
 * tile in its super-block; rows: the lane's first piece of the first tile of the rows. */
template <quant_type T, int COLS, int N>
static __device__ inline void add_tiles(float (&acc)[COUPLE][COLS][4], const char *slot, int i, int ordinal,
                                        const char *rows, const uint32_t (&up)[COUPLE], uint32_t h2_1024, int lane)
{
    typedef shared_shape<T, COLS> S;
    lane_tile<T>                  k[N][COUPLE];
    uint4                         b[N][COLS][2];
#pragma unroll
    for (int t = 0; t < N; t++) {
#pragma unroll
        for (int p = 0; p < COUPLE; p++) {
            const char *panel = slot + p * S::PANEL;
            load_tile<T>(k[t][p], panel + (i + t) * S::TILE,
                         S::D ? panel + S::C * S::TILE + (ordinal + i + t) / SUPER_TILES * S::D : NULL, lane);
        }
#pragma unroll
        for (int j = 0; j < COLS; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                b[t][j][h] = *(const uint4 *)(rows + (j * STAGE_TILES + t) * XTILE_BYTES + h * 512);
    }
#pragma unroll
    for (int t = 0; t < N; t++)
#pragma unroll
        for (int step = 0; step < TILE_STEPS; step++) {
            uint32_t w[COUPLE][4], rest[4];
#pragma unroll
            for (int p = 0; p < COUPLE; p++) decode_step<T>(w[p], rest, k[t][p], step, up[p], h2_1024);
#pragma unroll
            for (int p = 0; p < COUPLE; p++)
#pragma unroll
                for (int j = 0; j < COLS; j++) {
                    uint4 x = b[t][j][step / 2];
                    mma_16x8x16(acc[p][j], w[p], step % 2 ? x.z : x.x, step % 2 ? x.w : x.y);
                }
        }
}

/* The state that the warps of a block share. */
struct block_state {
    uint64_t full[ROW_STAGES], empty[ROW_STAGES];
    int      added[MOST_COUPLES]; /* segments of a couple that were added so far, over all passes */
};

/* Brings the rows of all stages, one after the other; by a warp. */
template <quant_type T, int COLS>
static __device__ inline void bring_rows(block_state *s, char *rows, const cuda_matmul_args &a, const shared_plan &plan,
                                         int n_stages, int lane)
{
    typedef shared_shape<T, COLS> S;
    int                           group = blockIdx.y * COLS, last = (a.n_pairs - 1) / GROUP_ROWS;
    for (int i = 0; i < n_stages; i++) {
        int    at = i % ROW_STAGES, segment = i % plan.n_segments, n = plan.tiles(segment) * XTILE_BYTES;
        size_t first = (size_t)plan.first_tile(segment) * XTILE_BYTES;
        if (i >= ROW_STAGES) ring_wait(&s->empty[at], (unsigned)(i / ROW_STAGES - 1) & 1);
        if (lane == 0) {
            ring_expect(&s->full[at], COLS * n);
            for (int j = 0; j < COLS; j++)
                ring_copy(&s->full[at], rows + at * S::ROWS_BYTES + j * STAGE_TILES * XTILE_BYTES,
                          a.x.high + (size_t)min_of(group + j, last) * a.n_tiles * XTILE_BYTES + first, n);
        }
        __syncwarp();
    }
}

/* Adds an item's sums to those of the couple's earlier segments. Returns whether they are the last. */
template <int COLS>
static __device__ inline bool add_in_turn(float (&acc)[COUPLE][COLS][4], block_state *s, float4 *sums,
                                          const item_walk &item, int n_segments, int lane)
{
    bool last = item.segment + 1 == n_segments;
    if (n_segments == 1) return true;
    sums += item.couple * COUPLE * COLS * WARP + lane;
    if (item.stage) wait_for_count(&s->added[item.couple], item.stage); /* also: the pass before has read its sums */
#pragma unroll
    for (int i = 0; i < COUPLE * COLS; i++) {
        float(&v)[4] = acc[i / COLS][i % COLS];
        if (item.segment) {
            float4 before = sums[i * WARP];
            v[0] = before.x + v[0], v[1] = before.y + v[1], v[2] = before.z + v[2], v[3] = before.w + v[3];
        }
        if (!last) sums[i * WARP] = make_float4(v[0], v[1], v[2], v[3]);
    }
    __threadfence_block();
    __syncwarp();
    if (lane == 0) *(volatile int *)&s->added[item.couple] = item.stage + 1;
    return last;
}

template <quant_type T, int COLS>
static __global__ void __launch_bounds__((shared_shape<T, COLS>::WARPS + 1) * WARP, 1)
    matmul_shared_kernel(cuda_matmul_args a, shared_plan plan)
{
    typedef shared_shape<T, COLS> S;
    DYNAMIC_SHARED(uint4, shared_room); /* each warp's slots, the stages of rows, the sums of couples */
    __shared__ uint64_t    gates[S::WARPS * WEIGHT_SLOTS];
    __shared__ block_state state;
    int                    lane = threadIdx.x, warp = threadIdx.y;
    char                  *rows   = (char *)shared_room + S::WARPS * S::WARP_BYTES;
    float4                *sums   = (float4 *)(rows + ROW_STAGES * S::ROWS_BYTES);
    bool                   brings = warp == S::WARPS;
    couple_ring<T, COLS>   ring;
    item_walk              item;
    int                    from = (int)((long long)plan.n_couples * blockIdx.x / gridDim.x);
    int                    to   = (int)((long long)plan.n_couples * (blockIdx.x + 1) / gridDim.x);
    let_next_start();
    item.start(plan, from, to, warp);
    if (brings) {
        if (lane < ROW_STAGES)
            ring_init(&state.full[lane], 1), ring_init(&state.empty[lane], S::WARPS), ring_init_done();
        for (int i = lane; i < MOST_COUPLES; i += WARP) state.added[i] = 0;
    } else {
        ring.slots = (char *)shared_room + warp * S::WARP_BYTES;
        ring.gates = gates + warp * WEIGHT_SLOTS;
        if (lane < WEIGHT_SLOTS) gate_init(&ring.gates[lane]);
        __syncwarp();
        ring.start(a, plan, item);
    }
    __syncthreads();
    wait_for_previous();
    int n_stages = (item.pass ? (to - from + item.pass - 1) / item.pass : 0) * plan.n_segments;
    if (brings) {
        bring_rows<T, COLS>(&state, rows, a, plan, n_stages, lane);
        return;
    }
    uint32_t h2_1024   = T == QUANT_Q4_0 ? 0 : in_register(H2_1024);
    int      first_row = blockIdx.y * 8 * COLS + lane % 4 * 2, left = 0; /* left: stages that this warp gave back */
    float    scale[COLS][2];
#pragma unroll
    for (int j = 0; j < 2 * COLS; j++)
        scale[j / 2][j % 2] = a.x.scale[min_of(first_row + j / 2 * 8 + j % 2, a.n_pairs - 1)];
    for (; item.n; item.next(plan, S::WARPS)) {
        couple_at couple = find_couple(a, item.first + item.couple);
        int       n = plan.tiles(item.segment), first = plan.first_tile(item.segment);
        uint32_t  up[COUPLE]           = {up_bits<T>(couple.of.up), up_bits<T>(couple.of.up)};
        float     acc[COUPLE][COLS][4] = {};
        for (; left < item.stage; left++) { /* in order, also where the warp has no item */
            ring_wait(&state.full[left % ROW_STAGES], (unsigned)(left / ROW_STAGES) & 1);
            __syncwarp();
            if (lane == 0) ring_arrive(&state.empty[left % ROW_STAGES]);
        }
        ring_wait(&state.full[item.stage % ROW_STAGES], (unsigned)(item.stage / ROW_STAGES) & 1);
        const char *x = rows + item.stage % ROW_STAGES * S::ROWS_BYTES + lane * 16;
        for (int t0 = 0; t0 < n; t0 += S::C) {
            int         m = min_of(n - t0, S::C), i = 0, ordinal = (first + t0) % SUPER_TILES;
            const char *slot = ring.enter();
            for (; i + S::TOGETHER <= m; i += S::TOGETHER, x += S::TOGETHER * XTILE_BYTES)
                add_tiles<T, COLS, S::TOGETHER>(acc, slot, i, ordinal, x, up, h2_1024, lane);
            if constexpr (S::TOGETHER > 1)
                for (; i < m; i++, x += XTILE_BYTES) add_tiles<T, COLS, 1>(acc, slot, i, ordinal, x, up, h2_1024, lane);
            ring.leave(a, plan);
        }
        if (!add_in_turn<COLS>(acc, &state, sums, item, plan.n_segments, lane)) continue;
#pragma unroll
        for (int i = 0; i < COUPLE * COLS * 4; i++) {
            int p = i / (4 * COLS), j = i / 4 % COLS, row = first_row + 8 * j + i % 2;
            int out = (couple.panel + p) * PANEL_OUTS + lane / 4 + i % 4 / 2 * 8;
            if (row < a.n_pairs && out < couple.of.n_out)
                couple.of.y[(size_t)row * couple.of.n_out + out] = acc[p][j][i % 4] * scale[j][i % 2] * couple.of.down;
        }
    }
    for (; left < n_stages - ROW_STAGES; left++) {
        ring_wait(&state.full[left % ROW_STAGES], (unsigned)(left / ROW_STAGES) & 1);
        __syncwarp();
        if (lane == 0) ring_arrive(&state.empty[left % ROW_STAGES]);
    }
}

/* --- launches -------------------------------------------------------------------------------------*/

template <quant_type T, int COLS> static void launch_shared(cudaStream_t s, const cuda_matmul_args *args)
{
    typedef shared_shape<T, COLS> S;
    cuda_matmul_args              a = *args;
    int                           n = layout_segments(T, a.n_tiles), processors = multiprocessors();
    shared_plan                   plan = {0, 0, n, a.n_tiles / n, a.n_tiles % n};
    for (int i = 0; i < a.n_parts; i++) {
        a.part[i].first_block = plan.n_couples;
        plan.n_couples += (a.part[i].n_panels + COUPLE - 1) / COUPLE;
    }
    int share     = (plan.n_couples + processors - 1) / processors;
    int room      = min_int((shared_limit() - (4 << 10) - S::FIXED) / S::SUM_BYTES, MOST_COUPLES);
    plan.pass     = n == 1 || share < room ? share : room;
    size_t shared = S::FIXED + (n == 1 ? 0 : (size_t)(plan.pass * S::SUM_BYTES));
    allow_shared(matmul_shared_kernel<T, COLS>, shared);
    LAUNCH_EARLY((matmul_shared_kernel<T, COLS>),
                 dim3((unsigned)min_int(processors, plan.n_couples), blocks_for((size_t)a.n_pairs, 8 * COLS)),
                 dim3(WARP, S::WARPS + 1), shared, s, a, plan);
}

template <quant_type T> static void launch_type(cudaStream_t s, const cuda_matmul_args *a)
{
    if constexpr (!is_float<T>()) {
        if (a->n_pairs <= 8)
            launch_shared<T, 1>(s, a);
        else if (a->n_pairs <= 16)
            launch_shared<T, 2>(s, a);
        else
            launch_shared<T, 4>(s, a);
    }
}

/* Measured with 3, 8, 9, 16 and more rows: with fewer panels, or 3 rows, matmul.cu is faster or as fast. */
extern "C" bool cuda_matmul_shares(quant_type type, const cuda_matmul_args *a)
{
    enum { LEAST_ROWS = 5, FEW_ROWS_PANELS = 16, PANELS = 6 }; /* panels of a multiprocessor: up to 8 rows, more */
    int panels = 0;
    if (type == QUANT_F32 || type == QUANT_F16 || type == QUANT_BF16 || a->id || a->order || a->raw || a->act >= 0 ||
        a->x.wide || a->n_pairs < LEAST_ROWS || a->pairs_to_x != 1)
        return false;
    for (int i = 0; i < a->n_parts; i++) panels += a->part[i].n_panels;
    return panels >= (a->n_pairs <= 8 ? FEW_ROWS_PANELS : PANELS) * multiprocessors() && can_start_early() &&
           shared_limit() >= 227 << 10;
}

extern "C" cudaError_t cuda_matmul_shared(cudaStream_t s, quant_type type, const cuda_matmul_args *a)
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
