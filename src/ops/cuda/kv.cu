/* Writing into the paged cache, and moving what an accepted branch of a tree left apart. */
#include "ops/cuda/cache.cuh"
#include "ops/cuda/ptx.cuh"

enum { KV_THREADS = 256 };

/* Grid: x over kv heads, y over rows. */
static __global__ void kv_store_kernel(kv_view c, int layer, const int32_t *lane, const int32_t *slot, const float *k,
                                       const float *v)
{
    let_next_start();
    wait_for_previous();
    int    row = blockIdx.y, head = blockIdx.x;
    size_t from = ((size_t)row * c.n_kv_heads + head) * c.head_dim;
    if (lane[row] < 0) return; /* padding; the whole block */
    char *to_k = cache_k(c, layer, head, lane[row], slot[row]), *to_v = cache_v(c, layer, head, lane[row], slot[row]);
    for (int i = threadIdx.x; i < c.head_dim; i += KV_THREADS) {
        cache_put(c.types.k, to_k, i, k[from + i]);
        cache_put(c.types.v, to_v, i, v[from + i]);
    }
}

extern "C" cudaError_t cuda_kv_store(cudaStream_t s, const kv_view *c, int layer, const int32_t *lane,
                                     const int32_t *slot, const float *k, const float *v, int n_rows)
{
    dim3 grid((unsigned)c->n_kv_heads, (unsigned)n_rows);
    LAUNCH_EARLY(kv_store_kernel, grid, KV_THREADS, 0, s, *c, layer, lane, slot, k, v);
    return cudaGetLastError();
}

static __device__ inline float get(cache_type type, const char *vec, int i)
{
    return type == CACHE_F32 ? ((const float *)vec)[i] : from_f16(((const uint16_t *)vec)[i]);
}

static __device__ inline void move_rotated(const kv_view &c, char *to, const char *from, int32_t rotation,
                                           const rope_view &p)
{
    int half = p.n_dims / 2;
    for (int i = threadIdx.x + p.n_dims; i < c.head_dim; i += KV_THREADS)
        cache_put(c.types.k, to, i, get(c.types.k, from, i));
    for (int i = threadIdx.x; i < half; i += KV_THREADS) {
        float a = get(c.types.k, from, i), b = get(c.types.k, from, i + half), sine, cosine;
        sincosf((float)rotation * p.freq[i], &sine, &cosine);
        cache_put(c.types.k, to, i, a * cosine - b * sine);
        cache_put(c.types.k, to, i + half, b * cosine + a * sine);
    }
}

/* Grid: x over kv heads, y over K and V of the layers. A block makes all the moves, in order; what one move writes
 * the next one may read. */
static __global__ void kv_move_kernel(kv_view c, const kv_move_item *items, int n_items, rope_view p)
{
    let_next_start();
    wait_for_previous();
    int    layer = blockIdx.y / 2, head = blockIdx.x;
    bool   is_v  = blockIdx.y % 2;
    size_t bytes = is_v ? c.v_vec_bytes : c.vec_bytes;
    for (int n = 0; n < n_items; n++) {
        kv_move_item m = items[n];
        const char  *from =
            is_v ? cache_v(c, layer, head, m.from_lane, m.from) : cache_k(c, layer, head, m.from_lane, m.from);
        char *to = is_v ? cache_v(c, layer, head, m.to_lane, m.to) : cache_k(c, layer, head, m.to_lane, m.to);
        if (m.rotation && !is_v)
            move_rotated(c, to, from, m.rotation, p);
        else
            for (size_t i = threadIdx.x; i < bytes / sizeof(uint32_t); i += KV_THREADS)
                ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
        __syncthreads();
    }
}

extern "C" cudaError_t cuda_kv_move(cudaStream_t s, const kv_view *c, const kv_move_item *items, int n_items,
                                    const rope_view *p)
{
    dim3 grid((unsigned)c->n_kv_heads, 2 * (unsigned)c->n_layers);
    LAUNCH_EARLY(kv_move_kernel, grid, KV_THREADS, 0, s, *c, items, n_items, *p);
    return cudaGetLastError();
}
