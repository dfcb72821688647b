#include "ops/cuda/quantise.cuh"

enum { NORM_THREADS = 256 };

/* y = (res + x / sqrt(mean(x^2) + eps) * w) * scale. A block per row: 256 partial sums by i mod 256, then a fixed tree. y may
 * be x or res: a thread reads an element before it writes it. With n a multiple of 32 a warp has whole blocks for q. */
static __global__ void rms_norm_kernel(float *y, cuda_xblock *q, const float *res, const float *x, const float *w,
                                       int n, float eps, float scale)
{
    size_t at = (size_t)blockIdx.x * n;
    float  ss = 0;
    for (int i = threadIdx.x; i < n; i += NORM_THREADS) ss = fmaf(x[at + i], x[at + i], ss);
    float inverse = 1 / sqrtf(block_sum<NORM_THREADS>(ss) / (float)n + eps);
    for (int i = threadIdx.x; i < n; i += NORM_THREADS) {
        float v = x[at + i] * inverse;
        if (w) v *= w[i];
        if (res) v = (res[at + i] + v) * scale;
        y[at + i] = v;
        if (q) quantise_block(&q[(at + i) / QK], v, threadIdx.x % WARP);
    }
}

extern "C" cudaError_t cuda_rms_norm(cudaStream_t s, float *y, cuda_xblock *q, const float *res, const float *x,
                                     const float *w, int n_rows, int n, float eps, float scale)
{
    LAUNCH(rms_norm_kernel, (unsigned)n_rows, NORM_THREADS, 0, s, y, q, res, x, w, n, eps, scale);
    return cudaGetLastError();
}
