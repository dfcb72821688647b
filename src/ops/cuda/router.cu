#include "ops/cuda/device.cuh"

/* The better of two: a higher logit, ties to the lower id; id -1 is none. A NaN ranks last, so that even among NaNs the ids
 * are valid ones. */
static __device__ inline bool better(float a, int ia, float b, int ib)
{
    if (ia < 0 || ib < 0) return ia >= 0;
    if (isnan(a) || isnan(b)) return isnan(a) == isnan(b) ? ia < ib : isnan(b);
    return a > b || (a == b && ia < ib);
}

/* A warp per row. Logits rank, not their exponentials, which may be equal where logits are not. The sum over all experts
 * cancels: softmax, then made to sum to 1 over the chosen, is softmax over the chosen. */
static __global__ void router_kernel(int32_t *id, float *w, const float *logits, const float *expert_scale,
                                     int n_experts, int n_slots)
{
    DYNAMIC_SHARED(uint8_t, taken); /* [n_experts] */
    int          lane = threadIdx.x;
    const float *z    = logits + (size_t)blockIdx.x * n_experts;
    int32_t     *ids  = id + (size_t)blockIdx.x * n_slots;
    float       *ws   = w + (size_t)blockIdx.x * n_slots;
    for (int e = lane; e < n_experts; e += WARP) taken[e] = 0;
    __syncwarp();
    float first = 0, sum = 0;
    for (int slot = 0; slot < n_slots; slot++) {
        float best = 0;
        int   at   = -1;
        for (int e = lane; e < n_experts; e += WARP)
            if (!taken[e] && better(z[e], e, best, at)) best = z[e], at = e;
        for (int k = WARP / 2; k > 0; k /= 2) {
            float other    = __shfl_xor_sync(ALL_LANES, best, k);
            int   other_at = __shfl_xor_sync(ALL_LANES, at, k);
            if (better(other, other_at, best, at)) best = other, at = other_at;
        }
        if (slot == 0) first = best;
        float p = expf(best - first);
        sum += p;
        if (lane == 0) {
            taken[at] = 1;
            ids[slot] = at;
            ws[slot]  = p;
        }
        __syncwarp();
    }
    if (lane == 0)
        for (int slot = 0; slot < n_slots; slot++)
            ws[slot] = ws[slot] / sum * (expert_scale ? expert_scale[ids[slot]] : 1);
}

extern "C" cudaError_t cuda_router(cudaStream_t s, int32_t *id, float *w, const float *logits,
                                   const float *expert_scale, int n_rows, int n_experts, int n_slots)
{
    LAUNCH(router_kernel, (unsigned)n_rows, WARP, (size_t)n_experts, s, id, w, logits, expert_scale, n_experts,
           n_slots);
    return cudaGetLastError();
}

/* Grid: x over elements, y over rows. */
static __global__ void experts_sum_kernel(float *y, const float *x, const float *w, int n_slots, int n)
{
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
    LAUNCH(experts_sum_kernel, grid, THREADS, 0, s, y, x, w, n_slots, n);
    return cudaGetLastError();
}
