#include "ops/cuda/convert.cuh"

/* 0.5 x (1 + tanh u) = x / (1 + e^-2u), which loses no digits where tanh nears -1; u = sqrt(2/pi) (x + 0.044715 x^3) */
static __device__ inline float gelu_tanh(float x)
{
    float u2 = -2 * 0.797884561f * x * fmaf(0.044715f, x * x, 1);
    return x / (1 + expf(u2));
}

static __device__ inline float silu(float x) { return x / (1 + expf(-x)); }

static __device__ inline float gate_of(float g, act_kind act) { return act == ACT_SILU ? silu(g) : gelu_tanh(g); }

/* A block per row. */
template <int THREADS, int QUADS>
static __global__ void __launch_bounds__(THREADS)
    gated_kernel(float *y, cuda_x to, const float *gate, size_t gate_stride, const float *up, size_t up_stride, int n,
                 act_kind act)
{
    size_t                    row = blockIdx.x;
    row_quads<THREADS, QUADS> g, u;
    let_next_start();
    wait_for_previous();
    g.load(gate + row * gate_stride, n);
    u.load(up + row * up_stride, n);
#pragma unroll
    for (int j = 0; j < QUADS; j++)
        if (g.at(j) < n)
            g.v[j] = make_float4(gate_of(g.v[j].x, act) * u.v[j].x, gate_of(g.v[j].y, act) * u.v[j].y,
                                 gate_of(g.v[j].z, act) * u.v[j].z, gate_of(g.v[j].w, act) * u.v[j].w);
    g.store(y + row * n, n);
    if (to.high) g.convert(to, (int)row, n, block_max<THREADS>(g.largest()));
}

extern "C" cudaError_t cuda_gated(cudaStream_t s, float *y, cuda_x to, const float *gate, int gate_stride,
                                  const float *up, int up_stride, int n_rows, int n, act_kind act)
{
#define CALL(THREADS, QUADS)                                                                                           \
    LAUNCH_EARLY((gated_kernel<THREADS, QUADS>), (unsigned)n_rows, THREADS, 0, s, y, to, gate, (size_t)gate_stride,    \
                 up, (size_t)up_stride, n, act)
    BY_ROW_LENGTH(n, CALL);
#undef CALL
    return cudaGetLastError();
}
