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
/* AT_ONCE: slots that are loaded before the first is added */
template <int AT_ONCE, int THREADS, int QUADS>
static __device__ inline void sum_slots(row_quads<THREADS, QUADS> &r, const float *slots, const float *w, int n_slots,
                                        int n)
{
#pragma unroll
    for (int j = 0; j < QUADS; j++) r.v[j] = make_float4(0, 0, 0, 0);
#pragma unroll AT_ONCE
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
            sum_slots<8>(e, a.slots + at * a.n_slots, a.slot_w + (size_t)row * a.n_slots, a.n_slots, n);
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

/* The same for many rows: small blocks, of which several fit a multiprocessor, so that one loads while another one
 * adds up. A block of THREADS threads makes the sums of one of 1,024: turn k of a thread is thread k THREADS + i of
 * those. */
enum { NORMS_MANY_ROWS = 160 };
template <int TAG, int THREADS, int QUADS, int N>
static __device__ inline void square_sums(float (&sums)[N], const row_quads<THREADS, QUADS> *const (&r)[N])
{
    constexpr int    ALL = 1024, TURNS = ALL / THREADS;
    __shared__ float part[N][ALL / WARP];
    float            ss[N][TURNS] = {};
    int              lane         = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            float4 v         = r[i]->v[j];
            ss[i][j % TURNS] = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, ss[i][j % TURNS]))));
        }
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int k = 0; k < TURNS; k++) {
            ss[i][k] = warp_sum(ss[i][k]);
            if (lane == 0) part[i][(k * THREADS + threadIdx.x) / WARP] = ss[i][k];
        }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) sums[i] = warp_sum(part[i][lane]);
}
template <int TAG, int THREADS, int QUADS>
static __device__ inline float inverse_of_many(const row_quads<THREADS, QUADS> &r, int n, float eps)
{
    const row_quads<THREADS, QUADS> *one[1] = {&r};
    float                            sum[1];
    square_sums<TAG>(sum, one);
    return inverse_of(sum[0], n, eps);
}

template <int THREADS, int QUADS>
static __global__ void __launch_bounds__(THREADS, 1024 / THREADS) norms_many_kernel(cuda_norms_args a)
{
    int                       row = blockIdx.x, n = a.n;
    size_t                    at = (size_t)row * n;
    row_quads<THREADS, QUADS> r, w, res;
    let_next_start();
    wait_for_previous();
    r.load(a.z + at, n);
    if (a.slots || a.sum) {
        row_quads<THREADS, QUADS> e;
        if (a.sum)
            e.load(a.sum + at, n);
        else
            sum_slots<1>(e, a.slots + at * a.n_slots, a.slot_w + (size_t)row * a.n_slots, a.n_slots, n);
        const row_quads<THREADS, QUADS> *both[2] = {&r, &e};
        float                            sums[2];
        square_sums<0>(sums, both);
        w.load(a.w_z, n);
        scale_row(r, inverse_of(sums[0], n, a.eps), &w);
        w.load(a.w_slots, n);
        scale_row(e, inverse_of(sums[1], n, a.eps), &w);
#pragma unroll
        for (int j = 0; j < QUADS; j++) r.v[j] = added(r.v[j], e.v[j], 1);
    }
    res.load(a.res + at, n);
    float inverse = inverse_of_many<1>(r, n, a.eps);
    w.load(a.w, n);
    scale_row(r, inverse, &w);
#pragma unroll
    for (int j = 0; j < QUADS; j++) r.v[j] = added(res.v[j], r.v[j], a.scale);
    r.store(a.y + at, n);
    if (!a.n_outs) return; /* the whole block */
    inverse = inverse_of_many<2>(r, n, a.eps);
#pragma unroll
    for (int i = 0; i < JOINED_NORMS; i++) {
        if (i >= a.n_outs) continue;
        w.load(a.out[i].w, n);
#pragma unroll
        for (int j = 0; j < QUADS; j++) w.v[j] = times(times(r.v[j], inverse), w.v[j]);
        w.store(a.out[i].y + at, n);
        if (a.out[i].to.high) w.convert(a.out[i].to, row, n, block_max<THREADS>(w.largest()));
    }
}

extern "C" cudaError_t cuda_norms(cudaStream_t s, const cuda_norms_args *a, int n_rows)
{
#define CALL(THREADS, QUADS) LAUNCH_EARLY((norms_kernel<THREADS, QUADS>), (unsigned)n_rows, THREADS, 0, s, *a)
#define MANY(THREADS, QUADS) LAUNCH_EARLY((norms_many_kernel<THREADS, QUADS>), (unsigned)n_rows, THREADS, 0, s, *a)
    if (n_rows < NORMS_MANY_ROWS || a->n <= 1024 || a->n > 8192)
        BY_ROW_LENGTH(a->n, CALL);
    else if (a->n <= 3072)
        MANY(256, 3);
    else if (a->n <= 4096)
        MANY(256, 4);
    else if (a->n <= 6144)
        MANY(512, 3);
    else
        MANY(512, 4);
#undef MANY
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
        sum_slots<8>(z, a.slots + at * a.n_slots, a.slot_w + (size_t)row * a.n_slots, a.n_slots, n);
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

/* Stores element i of a head: of q in place, of k and v in the cache at `to`; of types with scales back in x, from
 * where the head is encoded as a whole. */
static __device__ inline void put_head(const cuda_heads_args &a, char *to, cache_type type, float *x, size_t at, int i,
                                       float v)
{
    if (!to)
        a.q[at + i] = v;
    else if (cache_is_coded(type))
        x[i] = v;
    else
        cache_put(type, to, i, v);
}

/* PART: rows have a part of a stored head, whose other elements become zero. */
template <bool PART> static __global__ void __launch_bounds__(HEAD_THREADS) heads_kernel(cuda_heads_args a)
{
    __shared__ float x[OPS_MAX_HEAD_DIM];
    enum { TURNS = OPS_MAX_HEAD_DIM / 2 / HEAD_THREADS };
    int  head = blockIdx.x, row = blockIdx.y, dim = a.c.row_dim, half = a.rope.n_dims / 2, nk = a.c.n_kv_heads;
    bool is_q = head < a.n_heads, is_v = head >= a.n_heads + nk;
    if (!is_q) head = (head - a.n_heads) % nk;

    const float                        *from = is_q ? a.q_in : is_v && !a.k_as_v ? a.v : a.k;
    size_t                              n    = (size_t)row * (is_q ? a.n_heads : nk) + head;
    size_t                              at   = n * dim;
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
    r.load(from + (is_q ? n * a.q_stride : at), dim);
    if (!is_v || a.norm_v) scale_row(r, inverse_rms<0>(r, dim, a.eps), is_v ? NULL : &by);
    r.store(x, dim);
    __syncthreads();
    for (int i = threadIdx.x + (is_v ? 0 : a.rope.n_dims); i < dim; i += HEAD_THREADS)
        put_head(a, to, type, x, at, i, x[i]);
#pragma unroll
    for (int j = 0; j < TURNS; j++) {
        int i = threadIdx.x + j * HEAD_THREADS;
        if (is_v || i >= half) break;
        float first = x[i], second = x[i + half];
        put_head(a, to, type, x, at, i, first * cosine[j] - second * sine[j]);
        put_head(a, to, type, x, at, i + half, second * cosine[j] + first * sine[j]);
    }
    for (int i = dim + (int)threadIdx.x; PART && to && i < a.c.head_dim; i += HEAD_THREADS)
        put_head(a, to, type, x, at, i, 0);
    if (is_q || !cache_is_coded(type)) return; /* the whole block */
    turn_head(x, dim, false);
    encode_head(type, cache_vec(a.c, is_v, a.layer, head, a.lane[row], a.slot[row]), x, dim);
}

/* The same for many rows. A block has a row, a warp a head at a time, of which it loads the next one before it works
 * on this one; the angles are computed once. The sum over a head is that of block_sum: quads 0 to 31 and 64 to 95 of
 * a head are those of its first warp. QUADS: of a lane. IN_LANES: both elements of a pair belong to the same lane.
 * PART: as above. */
enum { HEADS_MANY_ROWS = 65, HEADS_WARPS = 8 };

/* Stores four elements of a head. */
static __device__ inline void put_quad(char *to, bool is_f32, int i, float4 v)
{
    if (is_f32)
        *(float4 *)(to + 4 * i) = v;
    else
        *(uint2 *)(to + 2 * i) = uint2{h2_from_f32(v.x, v.y), h2_from_f32(v.z, v.w)};
}
/* Stores pairs i to i + 3 of a head, rotated: elements i on and i + half on. */
static __device__ inline void put_turned(char *to, bool is_f32, int i, int half, float4 x, float4 y, const float *sine,
                                         const float *cosine)
{
    float4 s = *(const float4 *)(sine + i), c = *(const float4 *)(cosine + i);
    put_quad(to, is_f32, i,
             make_float4(x.x * c.x - y.x * s.x, x.y * c.y - y.y * s.y, x.z * c.z - y.z * s.z, x.w * c.w - y.w * s.w));
    put_quad(to, is_f32, i + half,
             make_float4(y.x * c.x + x.x * s.x, y.y * c.y + x.y * s.y, y.z * c.z + x.z * s.z, y.w * c.w + x.w * s.w));
}

template <int QUADS> struct lane_quads {
    float4 v[QUADS];

    static __device__ inline int at(int j) { return 4 * ((int)threadIdx.x % WARP + j * WARP); }
    __device__ inline void       load(const float *x, int dim)
    {
#pragma unroll
        for (int j = 0; j < QUADS; j++) v[j] = at(j) < dim ? *(const float4 *)(x + at(j)) : make_float4(0, 0, 0, 0);
    }
    __device__ inline float inverse_rms(int dim, float eps) const
    {
        float ss[2] = {};
#pragma unroll
        for (int j = 0; j < QUADS; j++)
            ss[j % 2] =
                fmaf(v[j].w, v[j].w, fmaf(v[j].z, v[j].z, fmaf(v[j].y, v[j].y, fmaf(v[j].x, v[j].x, ss[j % 2]))));
        return inverse_of(warp_sum(ss[0]) + warp_sum(ss[1]), dim, eps);
    }
};

/* A head of a row: where it comes from and goes to. */
struct row_head {
    const float *from;
    char        *to; /* NULL: nowhere */
    bool         is_q, is_v, is_f32;

    __device__ inline row_head(const cuda_heads_args &a, int row, int h, int32_t lane, int32_t slot, int32_t page)
    {
        int nk = a.c.n_kv_heads, dim = a.c.row_dim, head = h < a.n_heads ? h : (h - a.n_heads) % nk;
        is_q = h < a.n_heads, is_v = h >= a.n_heads + nk;
        size_t n = (size_t)row * (is_q ? a.n_heads : nk) + head;
        from     = is_q ? a.q_in + n * a.q_stride : (is_v && !a.k_as_v ? a.v : a.k) + n * dim;
        if (is_q) {
            to     = (char *)(a.q + n * dim);
            is_f32 = true;
        } else {
            is_f32 = (is_v ? a.c.types.v : a.c.types.k) == CACHE_F32;
            to     = lane < 0 ? NULL
                              : cache_plane_in(a.c, is_v, a.layer, head, page) +
                                slot % KV_PAGE * (is_v ? a.c.v_vec_bytes : a.c.vec_bytes);
        }
    }
};

template <int QUADS, bool IN_LANES, bool PART = false>
static __global__ void __launch_bounds__(HEADS_WARPS *WARP) heads_of_row_kernel(cuda_heads_args a)
{
    alignas(16) __shared__ float sine[OPS_MAX_HEAD_DIM / 2], cosine[OPS_MAX_HEAD_DIM / 2];
    alignas(16) __shared__ float x[IN_LANES ? 1 : HEADS_WARPS][IN_LANES ? 4 : 128 * QUADS];
    int               row = blockIdx.x, dim = a.c.row_dim, half = a.rope.n_dims / 2, warp = threadIdx.x / WARP;
    int               all = a.n_heads + (a.k ? 2 * a.c.n_kv_heads : 0);
    lane_quads<QUADS> r, next, by_q, by_k = {};
    by_q.load(a.w_q, dim);
    if (a.k) by_k.load(a.w_k, dim);
    let_next_start();
    wait_for_previous();
    int32_t lane = a.k ? a.lane[row] : -1, slot = lane < 0 ? 0 : a.slot[row];
    int32_t page = lane < 0 ? 0 : cache_page(a.c, lane, slot);
    if (warp < all) next.load(row_head(a, row, warp, lane, slot, page).from, dim);
    for (int i = threadIdx.x; i < half; i += HEADS_WARPS * WARP)
        sincosf((float)rope_pos(a.rope, a.pos, a.section_pos, row, i) * a.rope.freq[i], &sine[i], &cosine[i]);
    __syncthreads();
#pragma unroll 1
    for (int h = warp; h < all; h += HEADS_WARPS) {
        row_head head(a, row, h, lane, slot, page);
        r = next;
        if (h + HEADS_WARPS < all) next.load(row_head(a, row, h + HEADS_WARPS, lane, slot, page).from, dim);
        if (!head.is_v || a.norm_v) {
            float inverse = r.inverse_rms(dim, a.eps);
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                r.v[j] = times(r.v[j], inverse);
                if (!head.is_v) r.v[j] = times(r.v[j], head.is_q ? by_q.v[j] : by_k.v[j]);
            }
        }
        if (!head.to) continue; /* the whole warp */
        if (PART && !head.is_q)
            for (int i = dim + r.at(0); i < a.c.head_dim; i += 4 * WARP)
                put_quad(head.to, head.is_f32, i, make_float4(0, 0, 0, 0));
        if (head.is_v) {
#pragma unroll
            for (int j = 0; j < QUADS; j++)
                if (r.at(j) < dim) put_quad(head.to, head.is_f32, r.at(j), r.v[j]);
        } else if (IN_LANES) {
#pragma unroll
            for (int j = 0; j < QUADS / 2; j++)
                put_turned(head.to, head.is_f32, r.at(j), 64 * QUADS, r.v[j], r.v[j + QUADS / 2], sine, cosine);
        } else {
            float *mine = x[warp % (IN_LANES ? 1 : HEADS_WARPS)];
#pragma unroll
            for (int j = 0; j < QUADS; j++) *(float4 *)(mine + r.at(j)) = r.v[j];
            __syncwarp();
            for (int i = r.at(0); i < half; i += 4 * WARP)
                put_turned(head.to, head.is_f32, i, half, *(float4 *)(mine + i), *(float4 *)(mine + i + half), sine,
                           cosine);
            for (int i = 2 * half + r.at(0); i < dim; i += 4 * WARP)
                put_quad(head.to, head.is_f32, i, *(float4 *)(mine + i));
            __syncwarp();
        }
    }
}

/* Returns whether heads_of_row_kernel supports these heads. */
static bool heads_by_quads(const cuda_heads_args *a)
{
    uintptr_t all = (uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)a->w_q | (uintptr_t)a->w_k;
    return (all | (uintptr_t)a->q_in) % 16 == 0 && a->q_stride % 4 == 0 && a->c.row_dim % 8 == 0 &&
           a->c.row_dim <= 512 && a->rope.n_dims % 8 == 0;
}

extern "C" cudaError_t cuda_heads(cudaStream_t s, const cuda_heads_args *a, int n_rows)
{
    dim3 grid((unsigned)(a->n_heads + (a->k ? 2 * a->c.n_kv_heads : 0)), (unsigned)n_rows);
    int  dim  = a->c.row_dim;
    bool part = dim < a->c.head_dim;
#define MANY(...) LAUNCH_EARLY((heads_of_row_kernel<__VA_ARGS__>), (unsigned)n_rows, HEADS_WARPS *WARP, 0, s, *a)
    if (n_rows < HEADS_MANY_ROWS || !heads_by_quads(a) || a->c.scale_bytes || a->c.v_scale_bytes) {
        if (part)
            LAUNCH_EARLY(heads_kernel<true>, grid, HEAD_THREADS, 0, s, *a);
        else
            LAUNCH_EARLY(heads_kernel<false>, grid, HEAD_THREADS, 0, s, *a);
    } else if (part && dim <= 256)
        MANY(2, false, true);
    else if (part)
        MANY(4, false, true);
    else if (dim == 256 && a->rope.n_dims == dim)
        MANY(2, true);
    else if (dim == 512 && a->rope.n_dims == dim)
        MANY(4, true);
    else if (dim <= 256)
        MANY(2, false);
    else
        MANY(4, false);
#undef MANY
    return cudaGetLastError();
}
