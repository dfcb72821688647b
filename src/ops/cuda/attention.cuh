/* ops/cuda/attention.cuh - the positions that a row sees, and their slots in the cache. */
#ifndef TANDEM_OPS_CUDA_ATTENTION_CUH
#define TANDEM_OPS_CUDA_ATTENTION_CUH
#include "ops/cuda/cache.cuh"

struct head_view {
    int     row, head, kv_head;
    int32_t first, last; /* positions that the row sees; none when last < first */
};

/* Returns the view of one head of a row. */
static __device__ inline head_view view_of(const cuda_attention_args &a, int row, int head)
{
    int32_t pos = a.pos[row];
    return {row, head, head / (a.n_heads / a.c.n_kv_heads), a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0,
            a.last[row]};
}

/* Returns the slot of position p of the row's sequence. */
static __device__ inline int32_t slot_of(const cuda_attention_args &a, int row, int32_t p)
{
    if (p < a.root[row]) return p;
    while (a.pos[row] > p) row = a.parent[row];
    return a.slot[row];
}
#endif
