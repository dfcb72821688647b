#include "ops/cuda/device.cuh"
#include "ops/cuda/ptx.cuh"

/* A whole number that orders as the logit does; a NaN ranks last, so that even among NaNs the ids are valid ones. */
static __device__ inline uint32_t rank_of(float z)
{
    uint32_t bits = __float_as_uint(z);
    if (isnan(z)) return 1;
    if (z == 0) bits = 0; /* -0 is 0 */
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The logit of a rank. */
static __device__ inline float logit_of(uint32_t rank)
{
    return __uint_as_float(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank);
}

/* A lane's best of its experts, lane, lane + 32, ...; the lower of equals. */
struct lane_best {
    uint32_t rank;
    int      at;

    __device__ inline void find(const uint32_t *ranks, int lane, int n_experts)
    {
        rank = 0, at = n_experts;
        for (int e = lane; e < n_experts; e += WARP)
            if (ranks[e] > rank) rank = ranks[e], at = e;
    }
};

/* A warp per row. Logits rank, not their exponentials, which may be equal where logits are not; ties go to the lower id. The
 * sum over all experts cancels: softmax, then made to sum to 1 over the chosen, is softmax over the chosen. */
static __global__ void router_kernel(int32_t *id, float *w, const float *logits, const float *expert_scale,
                                     int n_experts, int n_slots)
{
    DYNAMIC_SHARED(uint32_t,
                   ranks); /* [n_experts], 0: taken; then [n_experts] scales, [n_slots] weights, [n_slots] ids */
    int          lane  = threadIdx.x;
    float       *scale = (float *)ranks + n_experts, *weights = scale + n_experts;
    int32_t     *chosen = (int32_t *)(weights + n_slots);
    const float *z      = logits + (size_t)blockIdx.x * n_experts;
    for (int e = lane; e < n_experts; e += WARP) scale[e] = expert_scale ? expert_scale[e] : 1;
    let_next_start();
    wait_for_previous();
    for (int e = lane; e < n_experts; e += WARP) ranks[e] = rank_of(z[e]);
    lane_best mine;
    mine.find(ranks, lane, n_experts);
    float first = 0, sum = 0;
    for (int slot = 0; slot < n_slots; slot++) {
        uint32_t top = warp_max_u32(mine.rank);
        int      at  = (int)warp_min_u32(mine.rank == top ? (uint32_t)mine.at : 0x7fffffffu);
        float    z0  = logit_of(top);
        if (slot == 0) first = z0;
        float p = expf(z0 - first);
        sum += p;
        if (at == mine.at) { /* a lane's alone */
            ranks[at]     = 0;
            weights[slot] = p;
            chosen[slot]  = at;
            mine.find(ranks, lane, n_experts);
        }
    }
    __syncwarp();
    for (int slot = lane; slot < n_slots; slot += WARP) {
        id[(size_t)blockIdx.x * n_slots + slot] = chosen[slot];
        w[(size_t)blockIdx.x * n_slots + slot]  = weights[slot] / sum * scale[chosen[slot]];
    }
}

extern "C" cudaError_t cuda_router(cudaStream_t s, int32_t *id, float *w, const float *logits,
                                   const float *expert_scale, int n_rows, int n_experts, int n_slots)
{
    size_t shared = 2 * ((size_t)n_experts + (size_t)n_slots) * sizeof(uint32_t);
    allow_shared(router_kernel, shared);
    LAUNCH_EARLY(router_kernel, (unsigned)n_rows, WARP, shared, s, id, w, logits, expert_scale, n_experts, n_slots);
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
