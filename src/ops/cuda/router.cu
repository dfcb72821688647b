#include "ops/cuda/router.cuh"

enum { GROUP_THREADS = 256, CHOICE_WARPS = 32 };

/* Chooses the experts of a row; by a warp. room: as for choice::make. */
static __device__ inline void choose(const cuda_router_args &a, size_t row, uint32_t *room, int lane)
{
    int32_t *id = a.id + row * a.n_slots;
    float   *w  = a.w + row * a.n_slots;
    choice   c;
    if (a.lane && a.lane[row] < 0) {
        choice::put_none(id, w, a.n_slots, lane);
        return;
    }
    c.make<ROUTER_EXPERTS>(room, a.logits + row * a.n_experts, a.n_experts, a.n_slots, lane);
    c.put(id, w, a.scale, a.n_slots, lane);
}

/* A warp per row. */
static __global__ void router_kernel(cuda_router_args a)
{
    DYNAMIC_SHARED(uint32_t, room);
    let_next_start();
    wait_for_previous();
    choose(a, blockIdx.x, room, threadIdx.x);
}

extern "C" cudaError_t cuda_router(cudaStream_t s, const cuda_router_args *a, int n_rows)
{
    size_t shared = choice::words(a->n_slots) * sizeof(uint32_t);
    allow_shared(router_kernel, shared);
    LAUNCH_EARLY(router_kernel, (unsigned)n_rows, WARP, shared, s, *a);
    return cudaGetLastError();
}

/* --- pairs by matrix ------------------------------------------------------------------------------*/

/* Return how many pairs of a matrix's n a run has, and how many places they take. */
static __device__ inline int pairs_of_run(const cuda_group_args &a, int n)
{
    int runs = (n + a.run_pairs - 1) / a.run_pairs;
    return a.n_order && runs ? ((n + runs - 1) / runs + GROUP_ROWS - 1) / GROUP_ROWS * GROUP_ROWS : a.run_pairs;
}
static __device__ inline int places_of(const cuda_group_args &a, int n)
{
    return a.n_order ? (n + GROUP_ROWS - 1) / GROUP_ROWS * GROUP_ROWS : n;
}

/* By one block. Counts, adds up, places. Where a pair stands among those of its matrix changes no bit of it. at:
 * shared, [n_mats] pairs: how many, then where; [n_mats] where they begin; [n_mats] runs */
static __device__ inline void group_pairs(int32_t *at, const cuda_group_args &a)
{
    int32_t *first = at + a.n_mats, *runs = first + a.n_mats;
    int      lane = threadIdx.x % WARP, n_threads = blockDim.x;
    for (int i = threadIdx.x; i < a.n_pairs; i += n_threads)
        if (a.id[i] >= 0) atomicAdd(&at[a.id[i]], 1);
    __syncthreads();
    if (threadIdx.x < WARP) {
        int pairs = 0, n = 0;
        for (int m0 = 0; m0 < a.n_mats; m0 += WARP) {
            int mine = m0 + lane < a.n_mats ? at[m0 + lane] : 0, mine_runs = (mine + a.run_pairs - 1) / a.run_pairs;
            int places = places_of(a, mine), p = places, r = mine_runs;
            for (int k = 1; k < WARP; k *= 2) {
                int before_p = __shfl_sync(ALL_LANES, p, lane - k), before_r = __shfl_sync(ALL_LANES, r, lane - k);
                if (lane >= k) p += before_p, r += before_r;
            }
            if (m0 + lane < a.n_mats) {
                first[m0 + lane] = at[m0 + lane] = pairs + p - places;
                runs[m0 + lane]                  = n + r - mine_runs;
            }
            pairs += __shfl_sync(ALL_LANES, p, WARP - 1);
            n += __shfl_sync(ALL_LANES, r, WARP - 1);
        }
        for (int r = n + lane; r < a.n_runs; r += WARP) a.run[r].n = 0;
        for (int i = pairs + lane; i < a.n_order; i += WARP) a.order[i] = -1;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < a.n_pairs; i += n_threads)
        if (a.id[i] >= 0) a.order[atomicAdd(&at[a.id[i]], 1)] = i;
    __syncthreads();
    for (int m = threadIdx.x; m < a.n_mats; m += n_threads) {
        int n = at[m] - first[m], each = pairs_of_run(a, n);
        for (int from = first[m], r = runs[m]; from < at[m]; from += each, r++) {
            a.run[r].mat   = m;
            a.run[r].first = from;
            a.run[r].n     = min_of(at[m] - from, each);
        }
        for (int i = n; i < places_of(a, n); i++) a.order[first[m] + i] = -1;
    }
}

static __global__ void group_pairs_kernel(cuda_group_args a)
{
    DYNAMIC_SHARED(int32_t, group_shared);
    let_next_start();
    for (int m = threadIdx.x; m < a.n_mats; m += GROUP_THREADS) group_shared[m] = 0;
    __syncthreads();
    wait_for_previous();
    group_pairs(group_shared, a);
}

static size_t group_bytes(int n_mats) { return 3 * (size_t)n_mats * sizeof(int32_t); }

extern "C" cudaError_t cuda_group_pairs(cudaStream_t s, const cuda_group_args *a)
{
    size_t shared = group_bytes(a->n_mats);
    allow_shared(group_pairs_kernel, shared);
    LAUNCH_EARLY(group_pairs_kernel, 1, GROUP_THREADS, shared, s, *a);
    return cudaGetLastError();
}

/* Both by one block: a warp per row chooses, then the pairs are sorted. */
static __global__ void __launch_bounds__(CHOICE_WARPS *WARP) route_kernel(cuda_router_args a, cuda_group_args g)
{
    DYNAMIC_SHARED(int32_t, route_shared); /* for group_pairs, then for each warp's choice */
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    let_next_start();
    for (int m = threadIdx.x; m < g.n_mats; m += (int)blockDim.x) route_shared[m] = 0;
    wait_for_previous();
    for (int row = warp; row < g.n_pairs / a.n_slots; row += (int)blockDim.x / WARP) {
        uint32_t *room = (uint32_t *)route_shared + 3 * g.n_mats + warp * choice::words(a.n_slots);
        choose(a, (size_t)row, room, lane);
        __syncwarp(); /* the room may be written again */
    }
    __syncthreads();
    group_pairs(route_shared, g);
}

static size_t route_bytes(int n_experts, int n_slots, int warps)
{
    return group_bytes(n_experts) + (size_t)warps * choice::words(n_slots) * sizeof(uint32_t);
}

extern "C" bool cuda_route_fits(int n_rows, int n_experts, int n_slots)
{
    return n_rows <= CHOICE_WARPS && route_bytes(n_experts, n_slots, n_rows) <= (size_t)shared_limit();
}

extern "C" cudaError_t cuda_route(cudaStream_t s, const cuda_router_args *a, const cuda_group_args *g)
{
    int    n_rows = g->n_pairs / a->n_slots;
    size_t shared = route_bytes(a->n_experts, a->n_slots, n_rows);
    allow_shared(route_kernel, shared);
    LAUNCH_EARLY(route_kernel, 1, (unsigned)(n_rows * WARP), shared, s, *a, *g);
    return cudaGetLastError();
}

/* Grid: x over elements, y over rows. */
static __global__ void experts_sum_kernel(float *y, const float *x, const float *w, int n_slots, int n)
{
    let_next_start();
    wait_for_previous();
    size_t row = blockIdx.y;
    int    i   = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int slot = 0; slot < n_slots; slot++)
        sum = fmaf(w[row * n_slots + slot], x[(row * n_slots + slot) * n + i], sum);
    y[row * n + i] = sum;
}

extern "C" cudaError_t cuda_experts_sum(cudaStream_t s, float *y, const float *x, const float *w, int n_rows,
                                        int n_slots, int n)
{
    enum { THREADS = 256 };
    dim3 grid(blocks_for((size_t)n, THREADS), (unsigned)n_rows);
    LAUNCH_EARLY(experts_sum_kernel, grid, THREADS, 0, s, y, x, w, n_slots, n);
    return cudaGetLastError();
}
