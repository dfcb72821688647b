#include "ops/cuda/device.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/rotate.cuh"

enum { ROPE_PAIRS = 32, ROPE_HEADS = 8 };

/* Grid: x over pairs, y over rows. A thread keeps its angle and rotates every ROPE_HEADS-th head by it. */
static __global__ void rope_kernel(float *x, const int32_t *pos, const int32_t *section_pos, rope_view p, int n_heads,
                                   int head_dim)
{
    let_next_start();
    wait_for_previous();
    int half = p.n_dims / 2, i = blockIdx.x * ROPE_PAIRS + threadIdx.x;
    if (i >= half) return;
    float angle = (float)rope_pos(p, pos, section_pos, blockIdx.y, i) * p.freq[i], sine, cosine;
    sincosf(angle, &sine, &cosine);
    for (int h = threadIdx.y; h < n_heads; h += ROPE_HEADS) {
        float *lo = x + ((size_t)blockIdx.y * n_heads + h) * head_dim + i, *hi = lo + half;
        float  a = *lo, b = *hi;
        *lo = a * cosine - b * sine;
        *hi = b * cosine + a * sine;
    }
}

extern "C" cudaError_t cuda_rope(cudaStream_t s, float *x, const int32_t *pos, const int32_t *section_pos,
                                 const rope_view *p, int n_rows, int n_heads, int head_dim)
{
    dim3 grid(blocks_for((size_t)p->n_dims / 2, ROPE_PAIRS), (unsigned)n_rows), block(ROPE_PAIRS, ROPE_HEADS);
    LAUNCH_EARLY(rope_kernel, grid, block, 0, s, x, pos, section_pos, *p, n_heads, head_dim);
    return cudaGetLastError();
}
