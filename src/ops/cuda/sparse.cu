/* Sparse attention (ops/sparse.h): writes the summaries of pages, and chooses the pages that rows attend to.
 *
 * Bounds are computed by a warp for a page and up to BOUND_HEADS heads at once, which share the loads of its summary.
 * A block per query head then finds its threshold among whole numbers, whose sums do not depend on their order, and
 * adds what it keeps to the bits of its K/V head. */
#include "ops/cuda/attention.cuh"

enum {
    SUMMARY_THREADS = 256,
    BOUND_WARPS     = 8,
    BOUND_HEADS     = 8,  /* heads of one K/V head at once */
    BOUND_PAGES     = 64, /* pages of a block */
    CHOICE_THREADS  = 512,
    CHOICE_WARPS    = CHOICE_THREADS / WARP,
};

static __device__ inline uint16_t *summary_at(const kv_view &c, int layer, int head, int32_t page)
{
    return (uint16_t *)(c.pool + (size_t)page * KV_UNIT + (size_t)layer * c.layer_bytes + c.summary_at) +
           (size_t)head * 2 * c.head_dim;
}

/* --- summaries ------------------------------------------------------------------------------------*/

/* Writes the summary of the page of a slot, by a block, if the slot is the last of the page. */
static __device__ inline void summarise(const kv_view &c, int layer, int head, int32_t lane, int32_t slot)
{
    if (lane < 0 || slot % KV_PAGE != KV_PAGE - 1) return;
    int32_t   page  = cache_page(c, lane, slot);
    char     *plane = cache_plane_in(c, false, layer, head, page);
    uint16_t *to    = summary_at(c, layer, head, page);
    for (int i = threadIdx.x; i < c.head_dim; i += SUMMARY_THREADS) {
        float low = cache_value(c.types.k, cache_vec(c, false, plane, 0), i), high = low;
        for (int at = 1; at < KV_PAGE; at++) {
            float k = cache_value(c.types.k, cache_vec(c, false, plane, at), i);
            low     = k < low ? k : low;
            high    = k > high ? k : high;
        }
        to[i]              = clamped_f16(low);
        to[c.head_dim + i] = clamped_f16(high);
    }
}

/* Grid: x over kv heads, y over rows. */
static __global__ void __launch_bounds__(SUMMARY_THREADS)
    summarise_rows_kernel(kv_view c, int layer, const int32_t *lane, const int32_t *slot)
{
    let_next_start();
    wait_for_previous();
    summarise(c, layer, blockIdx.x, lane[blockIdx.y], slot[blockIdx.y]);
}

/* Grid: x over kv heads, y over layers, z over moves. */
static __global__ void __launch_bounds__(SUMMARY_THREADS) summarise_moves_kernel(kv_view c, const kv_move_item *items)
{
    let_next_start();
    wait_for_previous();
    summarise(c, blockIdx.y, blockIdx.x, items[blockIdx.z].to_lane, items[blockIdx.z].to);
}

extern "C" cudaError_t cuda_kv_summary(cudaStream_t s, const kv_view *c, int layer, const int32_t *lane,
                                       const int32_t *slot, int n_rows)
{
    LAUNCH_EARLY(summarise_rows_kernel, dim3((unsigned)c->n_kv_heads, (unsigned)n_rows), SUMMARY_THREADS, 0, s, *c,
                 layer, lane, slot);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_kv_summary_moved(cudaStream_t s, const kv_view *c, const kv_move_item *items, int n_items)
{
    LAUNCH_EARLY(summarise_moves_kernel, dim3((unsigned)c->n_kv_heads, (unsigned)c->n_layers, (unsigned)n_items),
                 SUMMARY_THREADS, 0, s, *c, items);
    return cudaGetLastError();
}

/* --- bounds ---------------------------------------------------------------------------------------*/

/* Returns the candidate pages of a row; 0: the row is dense, or padding. */
static __device__ inline int32_t far_pages(const cuda_attention_args &a, int row)
{
    const sparse_params &p = a.c.sparse;
    int32_t              n = a.pos[row] + 1;
    return a.lane[row] >= 0 && n >= p.min_ctx && n >= p.near ? (n - p.near) / KV_PAGE : 0;
}

static __device__ inline float *bounds_of(const cuda_attention_args &a, int row, int head)
{
    return a.bounds + ((size_t)(row - a.first_row) * a.n_heads + head) * a.n_pages;
}

/* Bounds of n heads for one page, by a warp. q: the queries times scale, dim apart. */
static __device__ inline void bound_page(const cuda_attention_args &a, const float *q, int n, int row, int head,
                                         const uint16_t *low, int32_t page)
{
    int   lane = threadIdx.x % WARP, dim = a.c.head_dim;
    float sum[BOUND_HEADS] = {};
    for (int i = 2 * lane; i < dim; i += 2 * WARP) {
        uint32_t lo = *(const uint32_t *)(low + i), hi = *(const uint32_t *)(low + dim + i);
        float    l0 = from_f16((uint16_t)lo), l1 = from_f16((uint16_t)(lo >> 16));
        float    h0 = from_f16((uint16_t)hi), h1 = from_f16((uint16_t)(hi >> 16));
#pragma unroll
        for (int h = 0; h < BOUND_HEADS; h++) {
            if (h >= n) break;
            float x = q[h * dim + i], y = q[h * dim + i + 1];
            sum[h] = fmaf(x, x > 0 ? h0 : l0, sum[h]);
            sum[h] = fmaf(y, y > 0 ? h1 : l1, sum[h]);
        }
    }
#pragma unroll
    for (int h = 0; h < BOUND_HEADS; h++) {
        if (h >= n) break;
        float all = warp_sum(sum[h]);
        if (lane == 0) bounds_of(a, row, head + h)[page] = all;
    }
}

/* Grid: x over blocks of pages, y over kv heads, z over rows. Also clears the bits of kept pages. */
static __global__ void __launch_bounds__(BOUND_WARPS *WARP) bounds_kernel(cuda_attention_args a)
{
    __shared__ float q[BOUND_HEADS * OPS_MAX_HEAD_DIM];
    let_next_start();
    wait_for_previous();
    int     row = a.first_row + (int)blockIdx.z, kv_head = blockIdx.y, group = a.n_heads / a.c.n_kv_heads;
    int     dim = a.c.head_dim, first = (int)blockIdx.x * BOUND_PAGES;
    int32_t far = far_pages(a, row), end = min_of(first + BOUND_PAGES, far);
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < a.kept_stride; i += BOUND_WARPS * WARP) kept_words(a, row, kv_head)[i] = 0;
    for (int h = 0; h < group && first < end; h += BOUND_HEADS) {
        int          n = min_of(group - h, BOUND_HEADS), head = kv_head * group + h;
        const float *from = a.q + ((size_t)row * a.n_heads + head) * dim;
        __syncthreads(); /* the heads before are done with */
        for (int i = threadIdx.x; i < n * dim; i += BOUND_WARPS * WARP) q[i] = from[i] * a.scale;
        __syncthreads();
        for (int32_t j = first + (int)threadIdx.x / WARP; j < end; j += BOUND_WARPS)
            bound_page(a, q, n, row, head, summary_at(a.c, a.layer, kv_head, cache_page(a.c, a.lane[row], j * KV_PAGE)),
                       j);
    }
}

/* --- the choice -----------------------------------------------------------------------------------*/

/* Sums of a block, one after the other: a barrier each. */
struct choice_sums {
    unsigned long long part[2][CHOICE_WARPS]; /* by turns */
};
static __device__ inline unsigned long long sum_of_block(choice_sums *s, int turn, unsigned long long v)
{
    for (int k = WARP / 2; k > 0; k /= 2) v += __shfl_xor_sync(ALL_LANES, v, k);
    if (threadIdx.x % WARP == 0) s->part[turn % 2][threadIdx.x / WARP] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < CHOICE_WARPS; i++) v += s->part[turn % 2][i];
    return v;
}

/* Returns the sum of those n that are below t. */
static __device__ inline unsigned long long sum_below(choice_sums *s, int turn, const uint32_t *n, int count,
                                                      uint32_t t)
{
    unsigned long long sum = 0;
    for (int j = threadIdx.x; j < count; j += CHOICE_THREADS) sum += n[j] < t ? n[j] : 0;
    return sum_of_block(s, turn, sum);
}

/* Replaces the bounds of a head by whole numbers. Each thread reads and writes the same places in all passes. */
static __device__ inline void weigh_pages(uint32_t *n, int count)
{
    uint32_t top = 0;
    bool     odd = false;
    for (int j = threadIdx.x; j < count; j += CHOICE_THREADS) {
        float    x     = __uint_as_float((uint32_t)read_l2((const int32_t *)n + j));
        uint32_t order = __float_as_uint(x);
        order          = order & 0x80000000u ? ~order : order | 0x80000000u;
        odd |= !(x - x == 0);
        top = order > top ? order : top;
    }
    uint32_t largest[2] = {top, odd};
    block_max<CHOICE_THREADS>(largest);
    float max = __uint_as_float(largest[0] & 0x80000000u ? largest[0] & 0x7fffffffu : ~largest[0]);
    for (int j = threadIdx.x; j < count; j += CHOICE_THREADS) {
        float x = __uint_as_float((uint32_t)read_l2((const int32_t *)n + j));
        n[j]    = largest[1] ? (uint32_t)SPARSE_WEIGHT : (uint32_t)(expf(x - max) * SPARSE_WEIGHT);
    }
}

/* Grid: x over heads, y over rows. */
static __global__ void __launch_bounds__(CHOICE_THREADS) choice_kernel(cuda_attention_args a)
{
    __shared__ choice_sums sums;
    let_next_start();
    wait_for_previous();
    int       row = a.first_row + (int)blockIdx.y, head = blockIdx.x, group = a.n_heads / a.c.n_kv_heads, turn = 0;
    int32_t   far  = far_pages(a, row);
    uint32_t *kept = kept_words(a, row, head / group), *n = (uint32_t *)bounds_of(a, row, head), t = 0;
    if (far) {
        weigh_pages(n, far);
        unsigned long long sum   = sum_below(&sums, turn++, n, far, 0xffffffffu);
        unsigned long long limit = (sum >> 24) * a.c.sparse.drop + ((sum & (SPARSE_ONE - 1)) * a.c.sparse.drop >> 24);
        for (uint32_t bit = SPARSE_WEIGHT; bit; bit >>= 1)
            if (sum_below(&sums, turn++, n, far, t | bit) <= limit) t |= bit;
    }
    /* A warp has the pages of a word. Pages from `far` on are kept. */
    for (int j = threadIdx.x; j < a.kept_stride * WARP; j += CHOICE_THREADS) {
        bool     keeps = j >= far || n[j] >= t || j < a.c.sparse.sink;
        unsigned word  = __ballot_sync(ALL_LANES, keeps);
        if (j % WARP == 0 && word) atomicOr(&kept[j / WARP], word);
    }
}

extern "C" void cuda_choose_pages(cudaStream_t s, const cuda_attention_args *a)
{
    unsigned rows = (unsigned)(a->end_row - a->first_row);
    LAUNCH_EARLY(bounds_kernel, dim3(blocks_for((size_t)a->n_pages, BOUND_PAGES), (unsigned)a->c.n_kv_heads, rows),
                 BOUND_WARPS * WARP, 0, s, *a);
    LAUNCH_EARLY(choice_kernel, dim3((unsigned)a->n_heads, rows), CHOICE_THREADS, 0, s, *a);
}
