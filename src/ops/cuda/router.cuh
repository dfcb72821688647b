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

/* The ranks of a lane's experts, which are lane, lane + 32, ...; 0 for one that was taken or does not exist. */
template <int EACH> struct lane_ranks {
    uint32_t rank[EACH];

    __device__ inline void load(const float *z, int n_experts, int lane)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) rank[i] = lane + i * WARP < n_experts ? rank_of(z[lane + i * WARP]) : 0;
    }
    /* Takes the best expert of all lanes, the lower id of equals, and returns its rank; called by a whole warp. */
    __device__ inline uint32_t take(int lane, int *id)
    {
        uint32_t best = 0;
        int      mine = 0x7fffffff;
#pragma unroll
        for (int i = 0; i < EACH; i++) best = rank[i] > best ? rank[i] : best;
        best = warp_max_u32(best);
#pragma unroll
        for (int i = EACH - 1; i >= 0; i--) mine = rank[i] == best ? lane + i * WARP : mine;
        *id = (int)warp_min_u32((uint32_t)mine);
#pragma unroll
        for (int i = 0; i < EACH; i++) rank[i] = lane + i * WARP == *id ? 0 : rank[i];
        return best;
    }
};

/* The choice of a row, in shared memory: [n_slots] weights; [n_slots] ids. */
struct choice {
    float   *weights;
    int32_t *chosen;
    float    sum; /* sum of the weights */

    /* Returns the words of shared memory. */
    static __host__ __device__ inline size_t words(int n_slots) { return 2 * (size_t)n_slots; }
    /* Chooses the n_slots experts with the highest logits z, of at most MOST; called by all lanes of a warp. room:
     * words() words. Logits are ranked, not their exponentials, which may be equal where logits are not; ties go to the
     * lower id. The sum over all experts cancels: softmax, then made to sum to 1 over the chosen, is softmax over the
     * chosen. */
    template <int MOST>
    __device__ inline void make(uint32_t *room, const float *z, int n_experts, int n_slots, int lane)
    {
        weights = (float *)room;
        chosen  = (int32_t *)(weights + n_slots);
        if (n_experts <= 4 * WARP)
            pick<4>(z, n_experts, n_slots, lane);
        else
            pick<MOST / WARP>(z, n_experts, n_slots, lane);
    }
    template <int EACH> __device__ inline void pick(const float *z, int n_experts, int n_slots, int lane)
    {
        lane_ranks<EACH> ranks;
        float            first = 0;
        ranks.load(z, n_experts, lane);
        sum = 0;
        for (int slot = 0; slot < n_slots; slot++) {
            int   id;
            float z0 = logit_of(ranks.take(lane, &id));
            if (slot == 0) first = z0;
            float p = expf(z0 - first);
            sum += p;
            if (lane == 0) weights[slot] = p, chosen[slot] = id;
        }
        __syncwarp();
    }
    /* Writes those of a padding row. */
    static __device__ inline void put_none(int32_t *id, float *w, int n_slots, int lane)
    {
        for (int slot = lane; slot < n_slots; slot += WARP) id[slot] = -1, w[slot] = 0;
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
