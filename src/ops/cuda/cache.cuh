/* ops/cuda/cache.cuh - addresses of keys and values in the paged cache. */
#ifndef TANDEM_OPS_CUDA_CACHE_CUH
#define TANDEM_OPS_CUDA_CACHE_CUH
#include "ops/cuda/device.cuh"

/* Returns the address of the key of one head at `slot`. Where K and V have one type, the value is plane_bytes
 * after it. */
static __device__ inline char *cache_k(const kv_view &c, int layer, int head, int32_t lane, int32_t slot)
{
    size_t page = (size_t)c.table[lane * c.table_stride + slot / KV_PAGE];
    return c.pool + page * KV_UNIT + (size_t)layer * c.layer_bytes + head * c.head_bytes + slot % KV_PAGE * c.vec_bytes;
}

/* Returns the address of the value of one head at `slot`. */
static __device__ inline char *cache_v(const kv_view &c, int layer, int head, int32_t lane, int32_t slot)
{
    size_t page = (size_t)c.table[lane * c.table_stride + slot / KV_PAGE];
    return c.pool + page * KV_UNIT + (size_t)layer * c.layer_bytes + c.plane_bytes + head * c.v_head_bytes +
           slot % KV_PAGE * c.v_vec_bytes;
}

/* Stores x as element i of a key or value. */
static __device__ inline void cache_put(cache_type type, char *vec, int i, float x)
{
    if (type == CACHE_F32)
        ((float *)vec)[i] = x;
    else
        ((uint16_t *)vec)[i] = to_f16(x);
}
#endif
