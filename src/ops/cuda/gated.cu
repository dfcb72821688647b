#include "ops/cuda/device.cuh"

/* 0.5 x (1 + tanh u) = x / (1 + e^-2u), which loses no digits where tanh nears -1; u = sqrt(2/pi) (x + 0.044715 x^3) */
static __device__ inline float gelu_tanh(float x)
{
    float u2 = -2 * 0.797884561f * x * fmaf(0.044715f, x * x, 1);
    return x / (1 + expf(u2));
}

static __device__ inline float silu(float x) { return x / (1 + expf(-x)); }

/* Grid: x over elements, y over rows. */
static __global__ void gated_kernel(float *y, const float *gate, size_t gate_stride, const float *up, size_t up_stride,
                                    int n, act_kind act)
{
    size_t row = blockIdx.y;
    int    i   = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float g        = gate[row * gate_stride + i];
    y[row * n + i] = (act == ACT_SILU ? silu(g) : gelu_tanh(g)) * up[row * up_stride + i];
}

extern "C" cudaError_t cuda_gated(cudaStream_t s, float *y, const float *gate, int gate_stride, const float *up,
                                  int up_stride, int n_rows, int n, act_kind act)
{
    enum { THREADS = 256 };
    dim3 grid(blocks_for((size_t)n, THREADS), (unsigned)n_rows);
    LAUNCH(gated_kernel, grid, THREADS, 0, s, y, gate, (size_t)gate_stride, up, (size_t)up_stride, n, act);
    return cudaGetLastError();
}
