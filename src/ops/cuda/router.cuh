/* ops/cuda/router.cuh - chooses the experts of a row. */
#ifndef TANDEM_OPS_CUDA_ROUTER_CUH
#define TANDEM_OPS_CUDA_ROUTER_CUH
#include "ops/cuda/device.cuh"
#include "ops/cuda/ptx.cuh"

/* Returns an integer, at least 1, that orders as the logit does. A NaN ranks last, so that ids are valid even if all
 * logits are NaN. */
static __device__ inline uint32_t rank_of(float z)
{
    uint32_t bits = __float_as_uint(z);
    if (isnan(z)) return 1;
    if (z == 0) bits = 0; /* -0 is 0 */
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Returns the logit of a rank. */
static __device__ inline float logit_of(uint32_t rank)
{
    return __uint_as_float(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank);
}

/* The best of a lane's experts, which are lane, lane + 32, ...; the lower id of equals. */
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

/* The choice of a row, in shared memory: [n_experts] ranks, 0: chosen already; [n_slots] weights; [n_slots] ids. */
struct choice {
    uint32_t *ranks;
    float    *weights;
    int32_t  *chosen;
    float     sum; /* sum of the weights */

    /* Returns the words of shared memory. */
    static __host__ __device__ inline size_t words(int n_experts, int n_slots)
    {
        return (size_t)n_experts + 2 * (size_t)n_slots;
    }
    /* Chooses the n_slots experts with the highest logits z; called by all lanes of a warp. room: words() words. Logits
     * are ranked, not their exponentials, which may be equal where logits are not; ties go to the lower id. The sum
     * over all experts cancels: softmax, then made to sum to 1 over the chosen, is softmax over the chosen. */
    __device__ inline void make(uint32_t *room, const float *z, int n_experts, int n_slots, int lane)
    {
        ranks   = room;
        weights = (float *)(ranks + n_experts);
        chosen  = (int32_t *)(weights + n_slots);
        for (int e = lane; e < n_experts; e += WARP) ranks[e] = rank_of(z[e]);
        lane_best mine;
        mine.find(ranks, lane, n_experts);
        float first = 0;
        sum         = 0;
        for (int slot = 0; slot < n_slots; slot++) {
            uint32_t top = warp_max_u32(mine.rank);
            int      at  = (int)warp_min_u32(mine.rank == top ? (uint32_t)mine.at : 0x7fffffffu);
            float    z0  = logit_of(top);
            if (slot == 0) first = z0;
            float p = expf(z0 - first);
            sum += p;
            if (at == mine.at) { /* true in one lane */
                ranks[at]     = 0;
                weights[slot] = p;
                chosen[slot]  = at;
                mine.find(ranks, lane, n_experts);
            }
        }
        __syncwarp();
    }
    /* Writes a row's ids and weights; scale may be NULL. */
    __device__ inline void put(int32_t *id, float *w, const float *scale, int n_slots, int lane) const
    {
        for (int slot = lane; slot < n_slots; slot += WARP) {
            id[slot] = chosen[slot];
            w[slot]  = weights[slot] / sum * (scale ? scale[chosen[slot]] : 1);
        }
    }
};
#endif
