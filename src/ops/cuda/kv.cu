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
    size_t from = ((size_t)row * c.n_kv_heads + head) * c.row_dim;
    if (lane[row] < 0) return; /* padding; the whole block */
    char *to_k = cache_k(c, layer, head, lane[row], slot[row]), *to_v = cache_v(c, layer, head, lane[row], slot[row]);
    for (int i = threadIdx.x; i < c.head_dim; i += KV_THREADS) {
        cache_put(c.types.k, to_k, i, i < c.row_dim ? k[from + i] : 0);
        cache_put(c.types.v, to_v, i, i < c.row_dim ? v[from + i] : 0);
    }
}

/* Types with scales. Grid: x over kv heads, y over rows, z over K and V. */
static __global__ void __launch_bounds__(KV_THREADS)
    kv_code_kernel(kv_view c, int layer, const int32_t *lane, const int32_t *slot, const float *k, const float *v)
{
    __shared__ float y[OPS_MAX_HEAD_DIM];
    let_next_start();
    wait_for_previous();
    int        row = blockIdx.y, head = blockIdx.x;
    bool       is_v = blockIdx.z;
    cache_type type = is_v ? c.types.v : c.types.k;
    size_t     from = ((size_t)row * c.n_kv_heads + head) * c.head_dim;
    if (lane[row] < 0) return; /* padding; the whole block */
    for (int i = threadIdx.x; i < c.head_dim; i += KV_THREADS) y[i] = (is_v ? v : k)[from + i];
    if (cache_is_coded(type)) turn_head(y, c.head_dim, false);
    encode_head(type, cache_vec(c, is_v, layer, head, lane[row], slot[row]), y, c.head_dim);
}

extern "C" cudaError_t cuda_kv_store(cudaStream_t s, const kv_view *c, int layer, const int32_t *lane,
                                     const int32_t *slot, const float *k, const float *v, int n_rows)
{
    dim3 grid((unsigned)c->n_kv_heads, (unsigned)n_rows);
    if (c->scale_bytes || c->v_scale_bytes) {
        grid.z = 2;
        LAUNCH_EARLY(kv_code_kernel, grid, KV_THREADS, 0, s, *c, layer, lane, slot, k, v);
    } else {
        LAUNCH_EARLY(kv_store_kernel, grid, KV_THREADS, 0, s, *c, layer, lane, slot, k, v);
    }
    return cudaGetLastError();
}

/* Rotates the key x, in shared memory, by that many positions. Begins and ends with a barrier. */
static __device__ inline void rope_head(float *x, int32_t rotation, const rope_view &p)
{
    int half = p.n_dims / 2;
    __syncthreads();
    for (int i = threadIdx.x; i < half; i += KV_THREADS) {
        float a = x[i], b = x[i + half], sine, cosine;
        sincosf((float)rotation * p.freq[i], &sine, &cosine);
        x[i]        = a * cosine - b * sine;
        x[i + half] = b * cosine + a * sine;
    }
    __syncthreads();
}

static __device__ inline void move_rotated(const kv_view &c, float *x, const cache_vec &to, const cache_vec &from,
                                           int32_t rotation, const rope_view &p)
{
    bool turned = cache_is_coded(c.types.k);
    for (int i = threadIdx.x; i < c.head_dim; i += KV_THREADS) x[i] = cache_value(c.types.k, from, i);
    if (turned) turn_head(x, c.head_dim, true);
    rope_head(x, rotation, p);
    if (turned) turn_head(x, c.head_dim, false);
    encode_head(c.types.k, to, x, c.head_dim);
}

/* Grid: x over kv heads, y over K and V of the layers. A block makes all the moves, in order; what one move writes
 * the next one may read. */
static __global__ void __launch_bounds__(KV_THREADS)
    kv_move_kernel(kv_view c, const kv_move_item *items, int n_items, rope_view p)
{
    __shared__ float x[OPS_MAX_HEAD_DIM];
    let_next_start();
    wait_for_previous();
    int    layer = blockIdx.y / 2, head = blockIdx.x;
    bool   is_v  = blockIdx.y % 2;
    size_t bytes = is_v ? c.v_vec_bytes : c.vec_bytes, scales = is_v ? c.v_scale_bytes : c.scale_bytes;
    for (int n = 0; n < n_items; n++) {
        kv_move_item m = items[n];
        cache_vec    from(c, is_v, layer, head, m.from_lane, m.from), to(c, is_v, layer, head, m.to_lane, m.to);
        if (m.rotation && !is_v) {
            move_rotated(c, x, to, from, m.rotation, p);
        } else {
            for (size_t i = threadIdx.x; i < bytes / sizeof(uint32_t); i += KV_THREADS)
                ((uint32_t *)to.code)[i] = ((const uint32_t *)from.code)[i];
            for (size_t i = threadIdx.x; i < scales / sizeof(uint16_t); i += KV_THREADS) to.scale[i] = from.scale[i];
        }
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

/* Grid: x over heads of rows. y may be x. */
static __global__ void __launch_bounds__(KV_THREADS) turn_heads_kernel(float *y, const float *x, int dim, bool inverse)
{
    __shared__ float one[OPS_MAX_HEAD_DIM];
    let_next_start();
    wait_for_previous();
    size_t at = (size_t)blockIdx.x * dim;
    for (int i = threadIdx.x; i < dim; i += KV_THREADS) one[i] = x[at + i];
    turn_head(one, dim, inverse);
    for (int i = threadIdx.x; i < dim; i += KV_THREADS) y[at + i] = one[i];
}

extern "C" cudaError_t cuda_turn_heads(cudaStream_t s, float *y, const float *x, int n_heads, int dim, bool inverse)
{
    LAUNCH_EARLY(turn_heads_kernel, dim3((unsigned)n_heads), KV_THREADS, 0, s, y, x, dim, inverse);
    return cudaGetLastError();
}
