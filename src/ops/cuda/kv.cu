/* Writing into the paged cache, and moving what an accepted branch of a tree left apart. */
#include "ops/cuda/cache.cuh"

enum { KV_THREADS = 256 };

static __device__ inline void put(quant_type type, char *vec, int i, float x)
{
    if (type == QUANT_F32)
        ((float *)vec)[i] = x;
    else
        ((uint16_t *)vec)[i] = to_f16(x);
}

/* Grid: x over kv heads, y over rows. */
static __global__ void kv_store_kernel(kv_view c, int layer, const int32_t *lane, const int32_t *slot, const float *k,
                                       const float *v)
{
    int    row = blockIdx.y, head = blockIdx.x;
    size_t from = ((size_t)row * c.n_kv_heads + head) * c.head_dim;
    char  *to   = cache_k(c, layer, head, lane[row], slot[row]);
    for (int i = threadIdx.x; i < c.head_dim; i += KV_THREADS) {
        put(c.type, to, i, k[from + i]);
        put(c.type, to + c.plane_bytes, i, v[from + i]);
    }
}

extern "C" cudaError_t cuda_kv_store(cudaStream_t s, const kv_view *c, int layer, const int32_t *lane,
                                     const int32_t *slot, const float *k, const float *v, int n_rows)
{
    dim3 grid((unsigned)c->n_kv_heads, (unsigned)n_rows);
    LAUNCH(kv_store_kernel, grid, KV_THREADS, 0, s, *c, layer, lane, slot, k, v);
    return cudaGetLastError();
}

/* Grid: x over kv heads, y over K and V of the layers. A block makes all the moves, in order; a thread moves the same 4-byte
 * words every time, so that what one move writes the next one reads. */
static __global__ void kv_move_kernel(kv_view c, const kv_move_item *items, int n_items)
{
    int    layer = blockIdx.y / 2, head = blockIdx.x;
    size_t v = blockIdx.y % 2 ? c.plane_bytes : 0;
    for (int m = 0; m < n_items; m++) {
        const uint32_t *from = (const uint32_t *)(cache_k(c, layer, head, items[m].lane, items[m].from) + v);
        uint32_t       *to   = (uint32_t *)(cache_k(c, layer, head, items[m].lane, items[m].to) + v);
        for (size_t i = threadIdx.x; i < c.vec_bytes / sizeof *to; i += KV_THREADS) to[i] = from[i];
    }
}

extern "C" cudaError_t cuda_kv_move(cudaStream_t s, const kv_view *c, const kv_move_item *items, int n_items)
{
    dim3 grid((unsigned)c->n_kv_heads, 2 * (unsigned)c->n_layers);
    LAUNCH(kv_move_kernel, grid, KV_THREADS, 0, s, *c, items, n_items);
    return cudaGetLastError();
}
