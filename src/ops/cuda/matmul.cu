/* y[pair][o] = sum over i of w[mat][o][i] x[row][i].
 *
 * The arithmetic of one number is fixed by the weight's type and n_in (promise 1):
 *   quantised   16 chains, block b in chain b mod 16: acc = fma(dw * dx, exact integer dot, acc), and where the type has
 *               a minimum acc = fma(m, dx * sum of x, acc); then the chains add up from first to last
 *   floats      32 chains, inputs 4 g .. 4 g + 3 in chain g mod 32, an fma per input in order; then the chains add up by
 *               halves: c + (c xor 16), then 8, 4, 2, 1
 * A team of lanes, one per chain, makes OUTS outputs of ROWS rows at a time. Each (row, output) has its own chains, so
 * ROWS and OUTS change the speed, never a bit. */
#include "ops/cuda/quantise.cuh"

enum { CHAINS = 16, MATMUL_THREADS = 128 };

/* --- activations ----------------------------------------------------------------------------------*/

/* A warp per block of 32. */
static __global__ void quantise_kernel(cuda_xblock *out, const float *x, size_t n_blocks)
{
    int    lane = threadIdx.x % WARP;
    size_t b    = (size_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (b < n_blocks) quantise_block(&out[b], x[b * QK + lane], lane); /* the whole warp */
}

extern "C" cudaError_t cuda_quantise(cudaStream_t s, cuda_xblock *out, const float *x, size_t n_blocks)
{
    enum { THREADS = 256 };
    LAUNCH(quantise_kernel, blocks_for(n_blocks, THREADS / WARP), THREADS, 0, s, out, x, n_blocks);
    return cudaGetLastError();
}

/* --- pairs by matrix ------------------------------------------------------------------------------*/

/* One block. A thread per matrix finds its pairs, in order; between the two passes one thread adds up. */
static __global__ void group_pairs_kernel(int32_t *order, cuda_run *run, int n_runs, const int32_t *id, int n_pairs,
                                          int n_mats)
{
    DYNAMIC_SHARED(int32_t, group_shared); /* [n_mats] pairs, then [n_mats] runs: how many, then where */
    int32_t *pairs = group_shared, *runs = group_shared + n_mats;
    for (int m = threadIdx.x; m < n_mats; m += blockDim.x) {
        int n = 0;
        for (int i = 0; i < n_pairs; i++) n += id[i] == m;
        pairs[m] = n;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int pair = 0, r = 0;
        for (int m = 0; m < n_mats; m++) {
            int n    = pairs[m];
            pairs[m] = pair;
            runs[m]  = r;
            pair += n;
            r += (n + RUN_PAIRS - 1) / RUN_PAIRS;
        }
        for (; r < n_runs; r++) run[r].n = 0;
    }
    __syncthreads();
    for (int m = threadIdx.x; m < n_mats; m += blockDim.x) {
        int first = pairs[m], at = first;
        for (int i = 0; i < n_pairs; i++)
            if (id[i] == m) order[at++] = i;
        for (int from = first, r = runs[m]; from < at; from += RUN_PAIRS, r++) {
            run[r].mat   = m;
            run[r].first = from;
            run[r].n     = at - from < RUN_PAIRS ? at - from : RUN_PAIRS;
        }
    }
}

extern "C" cudaError_t cuda_group_pairs(cudaStream_t s, int32_t *order, cuda_run *run, int n_runs, const int32_t *id,
                                        int n_pairs, int n_mats)
{
    LAUNCH(group_pairs_kernel, 1, 128, 2 * (size_t)n_mats * sizeof(int32_t), s, order, run, n_runs, id, n_pairs,
           n_mats);
    return cudaGetLastError();
}

/* The pairs of block y, at most ROWS. */
template <int ROWS> static __device__ inline cuda_run find_run(const cuda_matmul_args &a, int y)
{
    if (a.order) return a.run[y];
    cuda_run r;
    r.first = y * ROWS;
    r.n     = a.n_pairs - r.first < ROWS ? a.n_pairs - r.first : ROWS;
    r.mat   = a.id ? a.id[r.first] : 0;
    return r;
}

/* Pair i of the run; past its end the last one, with which nothing is done. */
static __device__ inline int pair_at(const cuda_matmul_args &a, const cuda_run &r, int i)
{
    int at = r.first + (i < r.n ? i : r.n - 1);
    return a.order ? a.order[at] : at;
}

/* --- one block of weights -------------------------------------------------------------------------*/
struct wblock {
    int   w[8];  /* inputs 4 g .. 4 g + 3, a byte each, before the offset */
    float d, m;  /* weight = d * q + m; m only where the type has it */
    int   sc[2]; /* Q6_K: scales of the halves */
};

template <quant_type T> static __device__ inline void load_numbers(wblock *k, const char *row, int n_blocks, int b)
{
    const int4 *q = (const int4 *)(row + b * layout_q(T));
    int4        v = q[0];
    if (layout_bits(T) == 8) {
        int4 u  = q[1];
        k->w[0] = v.x, k->w[1] = v.y, k->w[2] = v.z, k->w[3] = v.w;
        k->w[4] = u.x, k->w[5] = u.y, k->w[6] = u.z, k->w[7] = u.w;
        return;
    }
    const int low = 0x0f0f0f0f;
    k->w[0] = v.x & low, k->w[1] = v.y & low, k->w[2] = v.z & low, k->w[3] = v.w & low;
    k->w[4] = v.x >> 4 & low, k->w[5] = v.y >> 4 & low, k->w[6] = v.z >> 4 & low, k->w[7] = v.w >> 4 & low;
    const uint32_t *h = (const uint32_t *)(row + layout_h_at(T, n_blocks) + b * layout_h(T));
    if (layout_bits(T) == 5) {
        uint32_t fifth = h[0];
#pragma unroll
        for (int g = 0; g < 8; g++) k->w[g] |= (int)((fifth >> g & 0x01010101) << 4);
    }
    if (layout_bits(T) == 6) {
        uint32_t top[2] = {h[0], h[1]};
#pragma unroll
        for (int g = 0; g < 8; g++) k->w[g] |= (int)((top[g / 4] >> (2 * (g % 4)) & 0x03030303) << 4);
    }
}

template <quant_type T> static __device__ inline void load_scales(wblock *k, const char *row, int n_blocks, int b)
{
    const uint8_t  *s = (const uint8_t *)row + layout_s_at(T, n_blocks) + b * layout_s(T);
    const uint16_t *d = (const uint16_t *)(row + layout_d_at(T, n_blocks) + b / SUPER_BLOCKS * layout_d(T));
    if (T == QUANT_Q6_K) {
        k->d     = from_f16(d[0]);
        k->sc[0] = (int8_t)s[0];
        k->sc[1] = (int8_t)s[1];
    } else if (layout_is_super(T)) {
        k->d = from_f16(d[0]) * (float)s[0];
        k->m = -(from_f16(d[1]) * (float)s[1]);
    } else {
        k->d = from_f16(((const uint16_t *)s)[0]);
        if (layout_has_min(T)) k->m = from_f16(((const uint16_t *)s)[1]);
    }
}

/* acc plus one block of one row. */
template <quant_type T> static __device__ inline float add_block(const wblock &k, const cuda_xblock *x, float acc)
{
    const int4 *q  = (const int4 *)x->q;
    int4        x0 = q[0], x1 = q[1];
    float       d   = x->d;
    int         low = 0, high = 0;
    low = __dp4a(k.w[0], x0.x, low), low = __dp4a(k.w[1], x0.y, low);
    low = __dp4a(k.w[2], x0.z, low), low = __dp4a(k.w[3], x0.w, low);
    high = __dp4a(k.w[4], x1.x, high), high = __dp4a(k.w[5], x1.y, high);
    high = __dp4a(k.w[6], x1.z, high), high = __dp4a(k.w[7], x1.w, high);
    int sum = low + high;
    if (T == QUANT_Q6_K)
        sum = (low - 32 * x->sum[0]) * k.sc[0] + (high - 32 * x->sum[1]) * k.sc[1];
    else if (layout_offset(T))
        sum -= layout_offset(T) * (x->sum[0] + x->sum[1]);
    acc = fmaf(k.d * d, (float)sum, acc);
    return layout_has_min(T) ? fmaf(k.m, x->ds, acc) : acc;
}

/* --- the kernels ----------------------------------------------------------------------------------
 * Grid: x over outputs, y over runs of rows. */
template <quant_type T, int ROWS, int OUTS>
static __global__ void __launch_bounds__(MATMUL_THREADS) ints_kernel(cuda_matmul_args a)
{
    cuda_run r = find_run<ROWS>(a, blockIdx.y);
    if (r.n < 1) return; /* the whole block */
    int lane = threadIdx.x % CHAINS, team = blockIdx.x * (MATMUL_THREADS / CHAINS) + threadIdx.x / CHAINS;
    int n_blocks = a.n_in / QK, out0 = team * OUTS;

    const cuda_xblock *x[ROWS];
    const char        *row[OUTS];
    float              acc[OUTS][ROWS] = {};
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        x[i] = (const cuda_xblock *)a.x + (size_t)(pair_at(a, r, i) / a.pairs_to_x) * n_blocks;
#pragma unroll
    for (int o = 0; o < OUTS; o++) {
        int out = out0 + o < a.n_out ? out0 + o : a.n_out - 1;
        row[o]  = a.data + ((size_t)r.mat * a.n_out + out) * a.row_bytes;
    }
    for (int b = lane; b < n_blocks; b += CHAINS) {
        wblock k[OUTS];
#pragma unroll
        for (int o = 0; o < OUTS; o++) {
            load_numbers<T>(&k[o], row[o], n_blocks, b);
            load_scales<T>(&k[o], row[o], n_blocks, b);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (i >= r.n) continue; /* the whole block */
#pragma unroll
            for (int o = 0; o < OUTS; o++) acc[o][i] = add_block<T>(k[o], x[i] + b, acc[o][i]);
        }
    }
#pragma unroll
    for (int o = 0; o < OUTS; o++)
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (i >= r.n) continue;
            float sum = __shfl_sync(ALL_LANES, acc[o][i], 0, CHAINS);
            for (int c = 1; c < CHAINS; c++) sum += __shfl_sync(ALL_LANES, acc[o][i], c, CHAINS);
            if (lane == 0 && out0 + o < a.n_out) a.y[(size_t)pair_at(a, r, i) * a.n_out + out0 + o] = sum;
        }
}

template <quant_type T> static __device__ inline float4 load_weights(const char *row, int i)
{
    if (T == QUANT_F32) return *(const float4 *)((const float *)row + i);
    ushort4 h = *(const ushort4 *)((const uint16_t *)row + i);
    if (T == QUANT_F16) return make_float4(from_f16(h.x), from_f16(h.y), from_f16(h.z), from_f16(h.w));
    return make_float4(from_bf16(h.x), from_bf16(h.y), from_bf16(h.z), from_bf16(h.w));
}

/* The next inputs of a row that has n left, 4 at most. */
static __device__ inline float4 load_inputs(const float *x, int n, bool aligned)
{
    if (aligned) return *(const float4 *)x;
    return make_float4(x[0], n > 1 ? x[1] : 0, n > 2 ? x[2] : 0, n > 3 ? x[3] : 0);
}

/* acc plus the products of those that there are. */
static __device__ inline float add_inputs(float4 w, float4 x, int n, float acc)
{
    acc = fmaf(w.x, x.x, acc);
    if (n > 1) acc = fmaf(w.y, x.y, acc);
    if (n > 2) acc = fmaf(w.z, x.z, acc);
    if (n > 3) acc = fmaf(w.w, x.w, acc);
    return acc;
}

template <quant_type T, int ROWS, int OUTS>
static __global__ void __launch_bounds__(MATMUL_THREADS) floats_kernel(cuda_matmul_args a)
{
    cuda_run r = find_run<ROWS>(a, blockIdx.y);
    if (r.n < 1) return; /* the whole block */
    int lane = threadIdx.x % WARP, team = blockIdx.x * (MATMUL_THREADS / WARP) + threadIdx.x / WARP;
    int out0 = team * OUTS;

    bool         aligned = a.n_in % 4 == 0 && (uintptr_t)a.x % sizeof(float4) == 0;
    const float *x[ROWS];
    const char  *row[OUTS];
    float        acc[OUTS][ROWS] = {};
#pragma unroll
    for (int i = 0; i < ROWS; i++) x[i] = (const float *)a.x + (size_t)(pair_at(a, r, i) / a.pairs_to_x) * a.n_in;
#pragma unroll
    for (int o = 0; o < OUTS; o++) {
        int out = out0 + o < a.n_out ? out0 + o : a.n_out - 1;
        row[o]  = a.data + ((size_t)r.mat * a.n_out + out) * a.row_bytes;
    }
    for (int at = 4 * lane; at < a.n_in; at += 4 * WARP) {
        float4 w[OUTS];
#pragma unroll
        for (int o = 0; o < OUTS; o++) w[o] = load_weights<T>(row[o], at);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (i >= r.n) continue; /* the whole block */
            float4 xi = load_inputs(x[i] + at, a.n_in - at, aligned);
#pragma unroll
            for (int o = 0; o < OUTS; o++) acc[o][i] = add_inputs(w[o], xi, a.n_in - at, acc[o][i]);
        }
    }
#pragma unroll
    for (int o = 0; o < OUTS; o++)
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (i >= r.n) continue;
            float sum = warp_sum(acc[o][i]);
            if (lane == 0 && out0 + o < a.n_out) a.y[(size_t)pair_at(a, r, i) * a.n_out + out0 + o] = sum;
        }
}

/* --- launches -------------------------------------------------------------------------------------*/
template <quant_type T, int ROWS, int OUTS> static void launch(cudaStream_t s, const cuda_matmul_args *a)
{
    constexpr bool floats = T == QUANT_F32 || T == QUANT_F16 || T == QUANT_BF16;
    constexpr int  team   = floats ? (int)WARP : (int)CHAINS;
    unsigned       n_y    = a->order ? (unsigned)a->n_runs : blocks_for((size_t)a->n_pairs, ROWS);
    dim3           grid(blocks_for((size_t)a->n_out, (size_t)MATMUL_THREADS / team * OUTS), n_y);
    if constexpr (floats)
        LAUNCH((floats_kernel<T, ROWS, OUTS>), grid, MATMUL_THREADS, 0, s, *a);
    else
        LAUNCH((ints_kernel<T, ROWS, OUTS>), grid, MATMUL_THREADS, 0, s, *a);
}

/* A run of sorted pairs is at most RUN_PAIRS; pairs that are not sorted and have a matrix each go one by one. */
template <quant_type T> static void launch_type(cudaStream_t s, const cuda_matmul_args *a)
{
    int rows = a->order ? RUN_PAIRS : a->id ? 1 : a->n_pairs;
    if (rows == 1)
        launch<T, 1, 1>(s, a);
    else if (rows == 2)
        launch<T, 2, 1>(s, a);
    else if (rows <= 4)
        launch<T, 4, 1>(s, a);
    else
        launch<T, RUN_PAIRS, 2>(s, a);
}

extern "C" cudaError_t cuda_matmul(cudaStream_t s, quant_type form, const cuda_matmul_args *a)
{
    switch (form) {
    case QUANT_F32: launch_type<QUANT_F32>(s, a); break;
    case QUANT_F16: launch_type<QUANT_F16>(s, a); break;
    case QUANT_BF16: launch_type<QUANT_BF16>(s, a); break;
    case QUANT_Q4_0: launch_type<QUANT_Q4_0>(s, a); break;
    case QUANT_Q4_1: launch_type<QUANT_Q4_1>(s, a); break;
    case QUANT_Q5_0: launch_type<QUANT_Q5_0>(s, a); break;
    case QUANT_Q5_1: launch_type<QUANT_Q5_1>(s, a); break;
    case QUANT_Q8_0: launch_type<QUANT_Q8_0>(s, a); break;
    case QUANT_Q4_K: launch_type<QUANT_Q4_K>(s, a); break;
    case QUANT_Q5_K: launch_type<QUANT_Q5_K>(s, a); break;
    case QUANT_Q6_K: launch_type<QUANT_Q6_K>(s, a); break;
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}

/* --- embeddings -----------------------------------------------------------------------------------
 * Number i of a row as a float, rounded as quant_dequantise rounds. */
template <quant_type T> static __device__ inline float number_at(const char *row, int n_in, int i)
{
    if (T == QUANT_F32) return ((const float *)row)[i];
    if (T == QUANT_F16) return from_f16(((const uint16_t *)row)[i]);
    if (T == QUANT_BF16) return from_bf16(((const uint16_t *)row)[i]);
    wblock k;
    int    n_blocks = n_in / QK, b = i / QK, in = i % QK;
    load_numbers<T>(&k, row, n_blocks, b);
    load_scales<T>(&k, row, n_blocks, b);
    int word = 0;
#pragma unroll
    for (int g = 0; g < 8; g++) word = g == in / 4 ? k.w[g] : word;
    int byte = word >> (in % 4 * 8) & 0xff;
    int q    = T == QUANT_Q8_0 ? (int8_t)byte : byte - layout_offset(T);
    if (T == QUANT_Q6_K) return k.d * (float)k.sc[in / 16] * (float)q;
    return layout_has_min(T) ? k.d * (float)q + k.m : k.d * (float)q;
}

template <quant_type T>
static __global__ void embed_kernel(float *y, const char *data, size_t row_bytes, int n_in, const int32_t *id,
                                    float scale)
{
    int32_t token = id[blockIdx.x];
    if (token < 0) return;
    for (int i = threadIdx.x; i < n_in; i += blockDim.x)
        y[(size_t)blockIdx.x * n_in + i] = number_at<T>(data + (size_t)token * row_bytes, n_in, i) * scale;
}

extern "C" cudaError_t cuda_embed(cudaStream_t s, float *y, const cuda_weight *w, const int32_t *id, int n_rows,
                                  float scale)
{
#define EMBED(T)                                                                                                       \
    case QUANT_##T:                                                                                                    \
        LAUNCH(embed_kernel<QUANT_##T>, (unsigned)n_rows, 256, 0, s, y, w->data, w->row_bytes, w->pub.n_in, id,        \
               scale);                                                                                                 \
        break
    switch (w->form) {
        EMBED(F32);
        EMBED(F16);
        EMBED(BF16);
        EMBED(Q4_0);
        EMBED(Q4_1);
        EMBED(Q5_0);
        EMBED(Q5_1);
        EMBED(Q8_0);
        EMBED(Q4_K);
        EMBED(Q5_K);
        EMBED(Q6_K);
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
