/* Ops of the encoders of pictures. */
#include "ops/cuda/act.cuh"
#include "ops/cuda/ptx.cuh"

enum { NORM_THREADS = 256, BIAS_THREADS = 256 };

/* A block per row. Each thread sums every NORM_THREADS-th number; the sums are added by a fixed tree. y may be x: a
 * thread reads its numbers before it writes them. */
static __global__ void layer_norm_kernel(float *y, const float *x, const float *w, const float *b, int n, float eps)
{
    size_t at  = (size_t)blockIdx.x * n;
    float  sum = 0, ss = 0;
    let_next_start();
    wait_for_previous();
    for (int i = threadIdx.x; i < n; i += NORM_THREADS) sum += x[at + i];
    float mean = block_sum<NORM_THREADS, 0>(sum) / (float)n;
    for (int i = threadIdx.x; i < n; i += NORM_THREADS) {
        float d = x[at + i] - mean;
        ss      = fmaf(d, d, ss);
    }
    float inverse = 1 / sqrtf(block_sum<NORM_THREADS, 1>(ss) / (float)n + eps);
    for (int i = threadIdx.x; i < n; i += NORM_THREADS) y[at + i] = fmaf((x[at + i] - mean) * inverse, w[i], b[i]);
}

extern "C" cudaError_t cuda_layer_norm(cudaStream_t s, float *y, const float *x, const float *w, const float *b,
                                       int n_rows, int n, float eps)
{
    LAUNCH_EARLY(layer_norm_kernel, (unsigned)n_rows, NORM_THREADS, 0, s, y, x, w, b, n, eps);
    return cudaGetLastError();
}

/* Grid: x over rows, y over elements. */
static __global__ void bias_kernel(float *y, const float *x, const float *b, int n, bias_act act)
{
    let_next_start();
    wait_for_previous();
    size_t row = blockIdx.x;
    int    i   = blockIdx.y * BIAS_THREADS + threadIdx.x;
    if (i >= n) return;
    float v        = x[row * n + i] + b[i];
    y[row * n + i] = act == BIAS_PLAIN ? v : act == BIAS_GELU ? 0.5f * v * erfcf(-0.707106781f * v) : gelu_tanh(v);
}

extern "C" cudaError_t cuda_bias(cudaStream_t s, float *y, const float *x, const float *b, int n_rows, int n,
                                 bias_act act)
{
    dim3 grid((unsigned)n_rows, blocks_for((size_t)n, BIAS_THREADS));
    LAUNCH_EARLY(bias_kernel, grid, BIAS_THREADS, 0, s, y, x, b, n, act);
    return cudaGetLastError();
}

static __global__ void clamp_kernel(float *y, const float *x, size_t n, float low, float high)
{
    let_next_start();
    wait_for_previous();
    size_t i = (size_t)blockIdx.x * BIAS_THREADS + threadIdx.x;
    if (i < n) y[i] = x[i] < low ? low : x[i] > high ? high : x[i];
}

extern "C" cudaError_t cuda_clamp(cudaStream_t s, float *y, const float *x, size_t n, float low, float high)
{
    LAUNCH_EARLY(clamp_kernel, blocks_for(n, BIAS_THREADS), BIAS_THREADS, 0, s, y, x, n, low, high);
    return cudaGetLastError();
}
