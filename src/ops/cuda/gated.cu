#include "ops/cuda/quantise.cuh"

/* 0.5 x (1 + tanh u) = x / (1 + e^-2u), which loses no digits where tanh nears -1; u = sqrt(2/pi) (x + 0.044715 x^3) */
static __device__ inline float gelu_tanh(float x)
{
    float u2 = -2 * 0.797884561f * x * fmaf(0.044715f, x * x, 1);
    return x / (1 + expf(u2));
}

static __device__ inline float silu(float x) { return x / (1 + expf(-x)); }

/* Grid: x over elements, y over rows. With n a multiple of 32 a warp has whole blocks for q. */
static __global__ void gated_kernel(float *y, cuda_xblock *q, const float *gate, size_t gate_stride, const float *up,
                                    size_t up_stride, int n, act_kind act)
{
    size_t row = blockIdx.y;
    int    i   = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float g        = gate[row * gate_stride + i];
    float v        = (act == ACT_SILU ? silu(g) : gelu_tanh(g)) * up[row * up_stride + i];
    y[row * n + i] = v;
    if (q) quantise_block(&q[(row * n + i) / QK], v, threadIdx.x % WARP);
}

extern "C" cudaError_t cuda_gated(cudaStream_t s, float *y, cuda_xblock *q, const float *gate, int gate_stride,
                                  const float *up, int up_stride, int n_rows, int n, act_kind act)
{
    enum { THREADS = 256 };
    dim3 grid(blocks_for((size_t)n, THREADS), (unsigned)n_rows);
    LAUNCH(gated_kernel, grid, THREADS, 0, s, y, q, gate, (size_t)gate_stride, up, (size_t)up_stride, n, act);
    return cudaGetLastError();
}
