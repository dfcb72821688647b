/* ops/cuda/act.cuh - activation functions of gates. */
#ifndef TANDEM_OPS_CUDA_ACT_CUH
#define TANDEM_OPS_CUDA_ACT_CUH
#include "ops/cuda/device.cuh"

/* Returns 0.5 x (1 + tanh u) = x / (1 + e^-2u), which loses no digits where tanh nears -1; u = sqrt(2/pi) (x + 0.044715
 * x^3) */
static __device__ inline float gelu_tanh(float x)
{
    float u2 = -2 * 0.797884561f * x * fmaf(0.044715f, x * x, 1);
    return x / (1 + expf(u2));
}

static __device__ inline float silu(float x) { return x / (1 + expf(-x)); }

static __device__ inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }

static __device__ inline float gate_of(float g, act_kind act)
{
    return act == ACT_SILU ? silu(g) : act == ACT_SIGMOID ? sigmoid(g) : gelu_tanh(g);
}
#endif
