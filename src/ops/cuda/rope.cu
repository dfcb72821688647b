#include "ops/cuda/device.cuh"
#include "ops/cuda/ptx.cuh"

enum { ROPE_PAIRS = 32, ROPE_HEADS = 8 };

/* Grid: x over pairs, y over rows. A thread keeps its angle and turns every ROPE_HEADS-th head by it. */
static __global__ void rope_kernel(float *x, const int32_t *pos, const float *freq, int n_heads, int head_dim)
{
    let_next_start();
    wait_for_previous();
    int half = head_dim / 2, i = blockIdx.x * ROPE_PAIRS + threadIdx.x;
    if (i >= half) return;
    float angle = (float)pos[blockIdx.y] * freq[i], sine, cosine;
    sincosf(angle, &sine, &cosine);
    for (int h = threadIdx.y; h < n_heads; h += ROPE_HEADS) {
        float *lo = x + ((size_t)blockIdx.y * n_heads + h) * head_dim + i, *hi = lo + half;
        float  a = *lo, b = *hi;
        *lo = a * cosine - b * sine;
        *hi = b * cosine + a * sine;
    }
}

extern "C" cudaError_t cuda_rope(cudaStream_t s, float *x, const int32_t *pos, const float *freq, int n_rows,
                                 int n_heads, int head_dim)
{
    dim3 grid(blocks_for((size_t)head_dim / 2, ROPE_PAIRS), (unsigned)n_rows), block(ROPE_PAIRS, ROPE_HEADS);
    LAUNCH_EARLY(rope_kernel, grid, block, 0, s, x, pos, freq, n_heads, head_dim);
    return cudaGetLastError();
}
