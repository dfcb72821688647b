/* Norms: alone, with a residual, as the chain between two blocks of a layer, and of heads.
 *
 * A block per row. Squares are summed in one chain per thread, quad by quad (convert.cuh), and the chains by a fixed
 * tree. */
#include "ops/cuda/act.cuh"
#include "ops/cuda/cache.cuh"
#include "ops/cuda/convert.cuh"
#include "ops/cuda/rotate.cuh"

template <int THREADS, int QUADS> static __device__ inline float square_sum(const row_quads<THREADS, QUADS> &r)
{
    float ss = 0;
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        float4 v = r.v[j];
        ss       = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, ss))));
    }
    return ss;
}
static __device__ inline float inverse_of(float square_sum, int n, float eps)
{
    return 1 / sqrtf(square_sum / (float)n + eps);
}
/* TAG: block_sum's */
template <int TAG, int THREADS, int QUADS>
static __device__ inline float inverse_rms(const row_quads<THREADS, QUADS> &r, int n, float eps)
{
    return inverse_of(block_sum<THREADS, TAG>(square_sum(r)), n, eps);
}

static __device__ inline float4 times(float4 v, float by)
{
    return make_float4(v.x * by, v.y * by, v.z * by, v.w * by);
}
static __device__ inline float4 times(float4 v, float4 u)
{
    return make_float4(v.x * u.x, v.y * u.y, v.z * u.z, v.w * u.w);
}
static __device__ inline float4 added(float4 a, float4 b, float scale)
{
    return make_float4((a.x + b.x) * scale, (a.y + b.y) * scale, (a.z + b.z) * scale, (a.w + b.w) * scale);
}

/* r times `by`, times w; w NULL: 1 */
template <int THREADS, int QUADS>
static __device__ inline void scale_row(row_quads<THREADS, QUADS> &r, float by, const row_quads<THREADS, QUADS> *w)
{
#pragma unroll
    for (int j = 0; j < QUADS; j++) r.v[j] = w ? times(times(r.v[j], by), w->v[j]) : times(r.v[j], by);
}

/* --- one norm -------------------------------------------------------------------------------------
 * y = (res + norm(x) w) * scale; y may be x or res. */
template <int THREADS, int QUADS>
static __global__ void __launch_bounds__(THREADS) rms_norm_kernel(float *y, cuda_x to, const float *res, const float *x,
                                                                  const float *w, int n, float eps, float scale)
{
    size_t                    at = (size_t)blockIdx.x * n;
    row_quads<THREADS, QUADS> r, by = {}, before = {};
    if (w) by.load(w, n);
    let_next_start();
    wait_for_previous();
    r.load(x + at, n);
    if (res) before.load(res + at, n);
    scale_row(r, inverse_rms<0>(r, n, eps), w ? &by : NULL);
    if (res)
#pragma unroll
        for (int j = 0; j < QUADS; j++) r.v[j] = added(before.v[j], r.v[j], scale);
    r.store(y + at, n);
    if (to.high) r.convert(to, blockIdx.x, n, block_max<THREADS>(r.largest()));
}

extern "C" cudaError_t cuda_rms_norm(cudaStream_t s, float *y, cuda_x to, const float *res, const float *x,
                                     const float *w, int n_rows, int n, float eps, float scale)
{
#define CALL(THREADS, QUADS)                                                                                           \
    LAUNCH_EARLY((rms_norm_kernel<THREADS, QUADS>), (unsigned)n_rows, THREADS, 0, s, y, to, res, x, w, n, eps, scale)
    BY_ROW_LENGTH(n, CALL);
#undef CALL
    return cudaGetLastError();
}

/* --- between two blocks ---------------------------------------------------------------------------*/
template <int THREADS, int QUADS>
static __device__ inline void sum_slots(row_quads<THREADS, QUADS> &r, const float *slots, const float *w, int n_slots,
                                        int n)
{
#pragma unroll
    for (int j = 0; j < QUADS; j++) r.v[j] = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int s = 0; s < n_slots; s++) {
        float by = w[s];
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            float4 x = load_quad(slots + (size_t)s * n, r.at(j), n), v = r.v[j];
            r.v[j] = make_float4(fmaf(by, x.x, v.x), fmaf(by, x.y, v.y), fmaf(by, x.z, v.z), fmaf(by, x.w, v.w));
        }
    }
}

/* Norms' weights are loaded before the kernel waits, as far as registers hold them: no kernel writes them. */
template <int THREADS, int QUADS> static __global__ void __launch_bounds__(THREADS) norms_kernel(cuda_norms_args a)
{
    constexpr bool            EARLY = QUADS == 1;
    int                       row = blockIdx.x, n = a.n;
    size_t                    at = (size_t)row * n;
    row_quads<THREADS, QUADS> r, e = {}, w, res, w_z = {}, w_slots = {}, o[JOINED_NORMS] = {};
    uint32_t                  largest[JOINED_NORMS] = {};
    w.load(a.w, n);
    bool parts = a.slots || a.sum;
    if (EARLY && parts) w_z.load(a.w_z, n), w_slots.load(a.w_slots, n);
    if (EARLY)
#pragma unroll
        for (int i = 0; i < JOINED_NORMS; i++)
            if (i < a.n_outs) o[i].load(a.out[i].w, n);
    let_next_start();
    wait_for_previous();
    r.load(a.z + at, n);
    res.load(a.res + at, n);
    if (parts) {
        if (a.sum)
            e.load(a.sum + at, n);
        else
            sum_slots(e, a.slots + at * a.n_slots, a.slot_w + (size_t)row * a.n_slots, a.n_slots, n);
        if (!EARLY) w_z.load(a.w_z, n), w_slots.load(a.w_slots, n);
        float sums[2] = {square_sum(r), square_sum(e)};
        block_sums_of<THREADS, 0>(sums);
        scale_row(r, inverse_of(sums[0], n, a.eps), &w_z);
        scale_row(e, inverse_of(sums[1], n, a.eps), &w_slots);
#pragma unroll
        for (int j = 0; j < QUADS; j++) r.v[j] = added(r.v[j], e.v[j], 1);
    }
    scale_row(r, inverse_rms<1>(r, n, a.eps), &w);
#pragma unroll
    for (int j = 0; j < QUADS; j++) r.v[j] = added(res.v[j], r.v[j], a.scale);
    r.store(a.y + at, n);
    if (!a.n_outs) return; /* the whole block */
    float inverse = inverse_rms<2>(r, n, a.eps);
#pragma unroll
    for (int i = 0; i < JOINED_NORMS; i++) {
        if (i >= a.n_outs) continue;
        if (!EARLY) o[i].load(a.out[i].w, n);
#pragma unroll
        for (int j = 0; j < QUADS; j++) o[i].v[j] = times(times(r.v[j], inverse), o[i].v[j]);
        o[i].store(a.out[i].y + at, n);
        largest[i] = o[i].largest();
    }
    block_max<THREADS, JOINED_NORMS>(largest);
#pragma unroll
    for (int i = 0; i < JOINED_NORMS; i++)
        if (i < a.n_outs && a.out[i].to.high) o[i].convert(a.out[i].to, row, n, largest[i]);
}

extern "C" cudaError_t cuda_norms(cudaStream_t s, const cuda_norms_args *a, int n_rows)
{
#define CALL(THREADS, QUADS) LAUNCH_EARLY((norms_kernel<THREADS, QUADS>), (unsigned)n_rows, THREADS, 0, s, *a)
    BY_ROW_LENGTH(a->n, CALL);
#undef CALL
    return cudaGetLastError();
}

/* --- the end of a block without a norm of its own ---------------------------------------------------*/
template <int THREADS, int QUADS> static __global__ void __launch_bounds__(THREADS) sums_kernel(cuda_sums_args a)
{
    int                       row = blockIdx.x, n = a.n;
    size_t                    at = (size_t)row * n;
    row_quads<THREADS, QUADS> r, z, w = {};
    if (a.out) w.load(a.w, n);
    let_next_start();
    wait_for_previous();
    r.load(a.res + at, n);
    if (a.slots) {
        row_quads<THREADS, QUADS> shared;
        float                     gate = sigmoid(a.gate[row]);
        shared.load(a.shared + at, n);
        sum_slots(z, a.slots + at * a.n_slots, a.slot_w + (size_t)row * a.n_slots, a.n_slots, n);
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            float4 b = shared.v[j], s = z.v[j];
            z.v[j] =
                make_float4(fmaf(gate, b.x, s.x), fmaf(gate, b.y, s.y), fmaf(gate, b.z, s.z), fmaf(gate, b.w, s.w));
        }
    } else {
        z.load(a.z + at, n);
    }
#pragma unroll
    for (int j = 0; j < QUADS; j++) r.v[j] = added(r.v[j], z.v[j], 1);
    r.store(a.y + at, n);
    if (!a.out) return; /* the whole block */
    scale_row(r, inverse_rms<0>(r, n, a.eps), &w);
    r.store(a.out + at, n);
    if (a.to.high) r.convert(a.to, row, n, block_max<THREADS>(r.largest()));
}

extern "C" cudaError_t cuda_sums(cudaStream_t s, const cuda_sums_args *a, int n_rows)
{
#define CALL(THREADS, QUADS) LAUNCH_EARLY((sums_kernel<THREADS, QUADS>), (unsigned)n_rows, THREADS, 0, s, *a)
    BY_ROW_LENGTH(a->n, CALL);
#undef CALL
    return cudaGetLastError();
}

/* --- the norm of heads with a gate -----------------------------------------------------------------
 * A block per row. A quad's head belongs to the lanes of one warp, because dim / 4 is a power of two up to 32. */
template <int THREADS, int QUADS>
static __global__ void __launch_bounds__(THREADS)
    gated_norm_kernel(float *y, cuda_x to, const float *x, const float *w, const float *gate, int n, int dim, float eps,
                      act_kind act)
{
    size_t                    at    = (size_t)blockIdx.x * n;
    int                       group = dim / 4;
    row_quads<THREADS, QUADS> r, g;
    let_next_start();
    wait_for_previous();
    r.load(x + at, n);
    g.load(gate + at, n);
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        float4 v = r.v[j], b = g.v[j];
        float  ss = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, v.x * v.x)));
        for (int k = group / 2; k > 0; k /= 2) ss += __shfl_xor_sync(ALL_LANES, ss, k);
        int    i  = r.at(j) % dim;
        float4 by = make_float4(w[i], w[i + 1], w[i + 2], w[i + 3]);
        b         = make_float4(gate_of(b.x, act), gate_of(b.y, act), gate_of(b.z, act), gate_of(b.w, act));
        r.v[j]    = r.at(j) < n ? times(times(times(v, inverse_of(ss, dim, eps)), by), b) : make_float4(0, 0, 0, 0);
    }
    r.store(y + at, n);
    if (to.high) r.convert(to, blockIdx.x, n, block_max<THREADS>(r.largest()));
}

extern "C" bool cuda_gated_norm_fits(int n_heads, int dim)
{
    return (dim == 8 || dim == 16 || dim == 32 || dim == 64 || dim == 128) && n_heads * dim <= 24576;
}

extern "C" cudaError_t cuda_gated_norm(cudaStream_t s, float *y, cuda_x to, const float *x, const float *w,
                                       const float *gate, int n_rows, int n_heads, int dim, float eps, act_kind act)
{
    int n = n_heads * dim;
#define CALL(THREADS, QUADS)                                                                                           \
    LAUNCH_EARLY((gated_norm_kernel<THREADS, QUADS>), (unsigned)n_rows, THREADS, 0, s, y, to, x, w, gate, n, dim, eps, \
                 act)
    BY_ROW_LENGTH(n, CALL);
#undef CALL
    return cudaGetLastError();
}

/* --- heads ----------------------------------------------------------------------------------------
 * Grid: x over q's heads, then k's, then v's; y over rows. */
enum { HEAD_THREADS = 64, HEAD_QUADS = OPS_MAX_HEAD_DIM / 4 / HEAD_THREADS };

/* Stores element i of a head: of q in place, of k and v in the cache at `to`. */
static __device__ inline void put_head(const cuda_heads_args &a, char *to, cache_type type, size_t at, int i, float v)
{
    if (to)
        cache_put(type, to, i, v);
    else
        a.q[at + i] = v;
}

static __global__ void __launch_bounds__(HEAD_THREADS) heads_kernel(cuda_heads_args a)
{
    __shared__ float x[OPS_MAX_HEAD_DIM];
    enum { TURNS = OPS_MAX_HEAD_DIM / 2 / HEAD_THREADS };
    int  head = blockIdx.x, row = blockIdx.y, dim = a.c.head_dim, half = a.rope.n_dims / 2, nk = a.c.n_kv_heads;
    bool is_q = head < a.n_heads, is_v = head >= a.n_heads + nk;
    if (!is_q) head = (head - a.n_heads) % nk;

    const float                        *from = is_q ? a.q : is_v && !a.k_as_v ? a.v : a.k;
    size_t                              at   = ((size_t)row * (is_q ? a.n_heads : nk) + head) * dim;
    row_quads<HEAD_THREADS, HEAD_QUADS> r, by = {};
    float                               sine[TURNS] = {}, cosine[TURNS] = {};
    if (!is_v) by.load(is_q ? a.w_q : a.w_k, dim);
    let_next_start();
    if (!a.settled) wait_for_previous();
    if (!is_q && a.lane[row] < 0) { /* padding; the whole block */
        if (a.settled) wait_for_previous();
        return;
    }
    cache_type type = is_v ? a.c.types.v : a.c.types.k;
    char      *to   = is_q   ? NULL
                      : is_v ? cache_v(a.c, a.layer, head, a.lane[row], a.slot[row])
                             : cache_k(a.c, a.layer, head, a.lane[row], a.slot[row]);
#pragma unroll
    for (int j = 0; j < TURNS; j++) {
        int i = threadIdx.x + j * HEAD_THREADS;
        if (!is_v && i < half)
            sincosf((float)rope_pos(a.rope, a.pos, a.section_pos, row, i) * a.rope.freq[i], &sine[j], &cosine[j]);
    }
    if (a.settled) wait_for_previous();
    r.load(from + at, dim);
    if (!is_v || a.norm_v) scale_row(r, inverse_rms<0>(r, dim, a.eps), is_v ? NULL : &by);
    r.store(x, dim);
    __syncthreads();
    if (is_v) {
        for (int i = threadIdx.x; i < dim; i += HEAD_THREADS) put_head(a, to, type, at, i, x[i]);
        return;
    }
    for (int i = threadIdx.x + a.rope.n_dims; i < dim; i += HEAD_THREADS) put_head(a, to, type, at, i, x[i]);
#pragma unroll
    for (int j = 0; j < TURNS; j++) {
        int i = threadIdx.x + j * HEAD_THREADS;
        if (i >= half) break;
        put_head(a, to, type, at, i, x[i] * cosine[j] - x[i + half] * sine[j]);
        put_head(a, to, type, at, i + half, x[i + half] * cosine[j] + x[i] * sine[j]);
    }
}

/* The same for many rows. A block has a row, all heads of it, HEADS_AT_ONCE at a time, and computes its angles once.
 * The sum over a head is that of block_sum: two warps, one added to the other. */
enum { HEADS_AT_ONCE = 4, HEADS_MANY_ROWS = 65 };
static __global__ void __launch_bounds__(HEAD_THREADS *HEADS_AT_ONCE) heads_of_row_kernel(cuda_heads_args a)
{
    __shared__ float x[HEADS_AT_ONCE][OPS_MAX_HEAD_DIM], part[HEADS_AT_ONCE][2];
    __shared__ float sine[OPS_MAX_HEAD_DIM / 2], cosine[OPS_MAX_HEAD_DIM / 2];
    int row = blockIdx.x, dim = a.c.head_dim, half = a.rope.n_dims / 2, nk = a.c.n_kv_heads, y = threadIdx.y;
    int all = a.n_heads + (a.k ? 2 * nk : 0);
    row_quads<HEAD_THREADS, HEAD_QUADS> r, by_q, by_k = {};
    by_q.load(a.w_q, dim);
    if (a.k) by_k.load(a.w_k, dim);
    let_next_start();
    wait_for_previous();
    for (int i = y * HEAD_THREADS + threadIdx.x; i < half; i += HEAD_THREADS * HEADS_AT_ONCE)
        sincosf((float)rope_pos(a.rope, a.pos, a.section_pos, row, i) * a.rope.freq[i], &sine[i], &cosine[i]);
    for (int h0 = 0; h0 < all; h0 += HEADS_AT_ONCE) { /* all threads meet, also those without a head */
        int  head  = h0 + y;
        bool there = head < all, is_q = head < a.n_heads, is_v = head >= a.n_heads + nk;
        if (!is_q) head = (head - a.n_heads) % nk;
        const float *from = is_q ? a.q : is_v && !a.k_as_v ? a.v : a.k;
        size_t       at   = ((size_t)row * (is_q ? a.n_heads : nk) + head) * dim;
        if (there) r.load(from + at, dim);
        float sum = warp_sum(there ? square_sum(r) : 0);
        if (threadIdx.x % WARP == 0) part[y][threadIdx.x / WARP] = sum;
        __syncthreads();
        float inverse = inverse_of(part[y][0] + part[y][1], dim, a.eps);
        if (there && (!is_v || a.norm_v)) scale_row(r, inverse, is_v ? NULL : is_q ? &by_q : &by_k);
        if (there) r.store(x[y], dim);
        __syncthreads();
        if (!there) continue;
        cache_type type = is_v ? a.c.types.v : a.c.types.k;
        char      *to   = is_q   ? NULL
                          : is_v ? cache_v(a.c, a.layer, head, a.lane[row], a.slot[row])
                                 : cache_k(a.c, a.layer, head, a.lane[row], a.slot[row]);
        for (int i = threadIdx.x + (is_v ? 0 : a.rope.n_dims); i < dim; i += HEAD_THREADS)
            put_head(a, to, type, at, i, x[y][i]);
        if (is_v) continue;
        for (int i = threadIdx.x; i < half; i += HEAD_THREADS) {
            put_head(a, to, type, at, i, x[y][i] * cosine[i] - x[y][i + half] * sine[i]);
            put_head(a, to, type, at, i + half, x[y][i + half] * cosine[i] + x[y][i] * sine[i]);
        }
    }
}

extern "C" cudaError_t cuda_heads(cudaStream_t s, const cuda_heads_args *a, int n_rows)
{
    dim3 grid((unsigned)(a->n_heads + (a->k ? 2 * a->c.n_kv_heads : 0)), (unsigned)n_rows);
    if (n_rows >= HEADS_MANY_ROWS)
        LAUNCH_EARLY(heads_of_row_kernel, (unsigned)n_rows, dim3(HEAD_THREADS, HEADS_AT_ONCE), 0, s, *a);
    else
        LAUNCH_EARLY(heads_kernel, grid, HEAD_THREADS, 0, s, *a);
    return cudaGetLastError();
}
