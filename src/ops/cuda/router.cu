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

/* A warp per row. Logits rank, not their exponentials, which may be equal where logits are not; ties go to the lower id. The
 * sum over all experts cancels: softmax, then made to sum to 1 over the chosen, is softmax over the chosen. */
static __global__ void router_kernel(int32_t *id, float *w, const float *logits, const float *expert_scale,
                                     int n_experts, int n_slots)
{
    DYNAMIC_SHARED(uint32_t, rank); /* [n_experts]; 0: taken */
    int          lane = threadIdx.x;
    const float *z    = logits + (size_t)blockIdx.x * n_experts;
    int32_t     *ids  = id + (size_t)blockIdx.x * n_slots;
    float       *ws   = w + (size_t)blockIdx.x * n_slots;
    let_next_start();
    wait_for_previous();
    for (int e = lane; e < n_experts; e += WARP) rank[e] = rank_of(z[e]);
    __syncwarp();
    float first = 0, sum = 0;
    for (int slot = 0; slot < n_slots; slot++) {
        uint32_t best = 0;
        int      at   = n_experts;
        for (int e = lane; e < n_experts; e += WARP)
            if (rank[e] > best) best = rank[e], at = e;
        uint32_t top = warp_max_u32(best);
        at           = (int)warp_min_u32(best == top ? (uint32_t)at : 0x7fffffffu);
        float chosen = z[at];
        if (slot == 0) first = chosen;
        float p = expf(chosen - first);
        sum += p;
        if (lane == 0) {
            rank[at]  = 0;
            ids[slot] = at;
            ws[slot]  = p;
        }
        __syncwarp();
    }
    for (int slot = lane; slot < n_slots; slot += WARP)
        ws[slot] = ws[slot] / sum * (expert_scale ? expert_scale[ids[slot]] : 1);
}

extern "C" cudaError_t cuda_router(cudaStream_t s, int32_t *id, float *w, const float *logits,
                                   const float *expert_scale, int n_rows, int n_experts, int n_slots)
{
    size_t shared = (size_t)n_experts * sizeof(uint32_t);
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
