/* Ops of the encoders of pictures. */
#include "ops/cuda/act.cuh"
#include "ops/cuda/convert.cuh"

enum { ELEMENT_THREADS = 256 };

/* A block per row. Each thread sums its quads; the sums are added by a fixed tree. y may be x. */
template <int THREADS, int QUADS>
static __global__ void __launch_bounds__(THREADS)
    layer_norm_kernel(float *y, cuda_x to, const float *x, const float *w, const float *b, int n, float eps)
{
    size_t                    at  = (size_t)blockIdx.x * n;
    float                     sum = 0, ss = 0;
    row_quads<THREADS, QUADS> r, by, plus;
    by.load(w, n);
    plus.load(b, n);
    let_next_start();
    wait_for_previous();
    r.load(x + at, n);
#pragma unroll
    for (int j = 0; j < QUADS; j++) sum += (r.v[j].x + r.v[j].y) + (r.v[j].z + r.v[j].w);
    float mean = block_sum<THREADS, 0>(sum) / (float)n;
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        float4 v = r.v[j];
        int    i = r.at(j);
        r.v[j] =
            make_float4(v.x - mean, i + 1 < n ? v.y - mean : 0, i + 2 < n ? v.z - mean : 0, i + 3 < n ? v.w - mean : 0);
        if (i >= n) r.v[j].x = 0;
        v  = r.v[j];
        ss = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, ss))));
    }
    float inverse = 1 / sqrtf(block_sum<THREADS, 1>(ss) / (float)n + eps);
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        float4 v = r.v[j], m = by.v[j], p = plus.v[j];
        r.v[j] = make_float4(fmaf(v.x * inverse, m.x, p.x), fmaf(v.y * inverse, m.y, p.y),
                             fmaf(v.z * inverse, m.z, p.z), fmaf(v.w * inverse, m.w, p.w));
    }
    r.store(y + at, n);
    if (to.high) r.convert(to, blockIdx.x, n, block_max<THREADS>(r.largest()));
}

extern "C" cudaError_t cuda_layer_norm(cudaStream_t s, float *y, cuda_x to, const float *x, const float *w,
                                       const float *b, int n_rows, int n, float eps)
{
#define CALL(THREADS, QUADS)                                                                                           \
    LAUNCH_EARLY((layer_norm_kernel<THREADS, QUADS>), (unsigned)n_rows, THREADS, 0, s, y, to, x, w, b, n, eps)
    BY_ROW_LENGTH(n, CALL);
#undef CALL
    return cudaGetLastError();
}

static __device__ inline float activate(float v, bias_act act)
{
    return act == BIAS_PLAIN ? v : act == BIAS_GELU ? 0.5f * v * erfcf(-0.707106781f * v) : gelu_tanh(v);
}

/* A block per row. y may be x or res. */
template <int THREADS, int QUADS>
static __global__ void __launch_bounds__(THREADS)
    bias_kernel(float *y, cuda_x to, const float *res, const float *x, const float *b, int n, bias_act act)
{
    size_t                    at = (size_t)blockIdx.x * n;
    row_quads<THREADS, QUADS> r, plus, before = {};
    plus.load(b, n);
    let_next_start();
    wait_for_previous();
    r.load(x + at, n);
    if (res) before.load(res + at, n);
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        float4 v = r.v[j], p = plus.v[j], o = before.v[j];
        v = make_float4(activate(v.x + p.x, act), activate(v.y + p.y, act), activate(v.z + p.z, act),
                        activate(v.w + p.w, act));
        if (res) v = make_float4(o.x + v.x, o.y + v.y, o.z + v.z, o.w + v.w);
        r.v[j] = v;
    }
    r.store(y + at, n);
    if (to.high) r.convert(to, blockIdx.x, n, block_max<THREADS>(r.largest()));
}

extern "C" cudaError_t cuda_bias(cudaStream_t s, float *y, cuda_x to, const float *res, const float *x, const float *b,
                                 int n_rows, int n, bias_act act)
{
#define CALL(THREADS, QUADS)                                                                                           \
    LAUNCH_EARLY((bias_kernel<THREADS, QUADS>), (unsigned)n_rows, THREADS, 0, s, y, to, res, x, b, n, act)
    BY_ROW_LENGTH(n, CALL);
#undef CALL
    return cudaGetLastError();
}

static __global__ void clamp_kernel(float *y, const float *x, size_t n, float low, float high)
{
    let_next_start();
    wait_for_previous();
    size_t i = (size_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x;
    if (i < n) y[i] = x[i] < low ? low : x[i] > high ? high : x[i];
}

extern "C" cudaError_t cuda_clamp(cudaStream_t s, float *y, const float *x, size_t n, float low, float high)
{
    LAUNCH_EARLY(clamp_kernel, blocks_for(n, ELEMENT_THREADS), ELEMENT_THREADS, 0, s, y, x, n, low, high);
    return cudaGetLastError();
}

static __global__ void lookup_kernel(float *y, const uint8_t *x, const float *table, size_t n)
{
    let_next_start();
    wait_for_previous();
    size_t i = (size_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x;
    if (i < n) y[i] = table[x[i]];
}

extern "C" cudaError_t cuda_lookup(cudaStream_t s, float *y, const uint8_t *x, const float *table, size_t n)
{
    LAUNCH_EARLY(lookup_kernel, blocks_for(n, ELEMENT_THREADS), ELEMENT_THREADS, 0, s, y, x, table, n);
    return cudaGetLastError();
}

/* Grid: x over rows, y over elements. */
static __global__ void pool_kernel(float *y, const float *x, const float *add, const float *by, int n_each, int n,
                                   float scale)
{
    let_next_start();
    wait_for_previous();
    size_t row = blockIdx.x;
    int    i   = blockIdx.y * ELEMENT_THREADS + threadIdx.x;
    float  sum = 0;
    if (i >= n) return;
    for (int s = 0; s < n_each; s++) sum += x[(row * n_each + s) * n + i];
    sum            = sum * scale + (add ? add[i] : 0);
    y[row * n + i] = by ? sum * by[i] : sum;
}

extern "C" cudaError_t cuda_pool(cudaStream_t s, float *y, const float *x, const float *add, const float *by,
                                 int n_rows, int n_each, int n, float scale)
{
    dim3 grid((unsigned)n_rows, blocks_for((size_t)n, ELEMENT_THREADS));
    LAUNCH_EARLY(pool_kernel, grid, ELEMENT_THREADS, 0, s, y, x, add, by, n_each, n, scale);
    return cudaGetLastError();
}
