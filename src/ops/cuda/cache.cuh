/* ops/cuda/cache.cuh - where a key lies. */
#ifndef TANDEM_OPS_CUDA_CACHE_CUH
#define TANDEM_OPS_CUDA_CACHE_CUH
#include "ops/cuda/device.cuh"

/* Where K of a head begins in the page of `slot`, at that slot; V is plane_bytes further. */
static __device__ inline char *cache_k(const kv_view &c, int layer, int head, int32_t lane, int32_t slot)
{
    size_t page = (size_t)c.table[lane * c.table_stride + slot / KV_PAGE];
    return c.pool + page * KV_UNIT + (size_t)layer * 2 * c.plane_bytes + head * c.head_bytes +
           slot % KV_PAGE * c.vec_bytes;
}

static __device__ inline void cache_put(quant_type type, char *vec, int i, float x)
{
    if (type == QUANT_F32)
        ((float *)vec)[i] = x;
    else
        ((uint16_t *)vec)[i] = to_f16(x);
}
#endif
