#include "ops/cuda/act.cuh"
#include "ops/cuda/ptx.cuh"

enum { ELEMENT_THREADS = 256 };

static __global__ void add_kernel(float *y, const float *a, const float *b, size_t n, float scale)
{
    let_next_start();
    wait_for_previous();
    size_t i = (size_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x;
    if (i < n) y[i] = (a[i] + b[i]) * scale;
}

extern "C" cudaError_t cuda_add(cudaStream_t s, float *y, const float *a, const float *b, size_t n, float scale)
{
    LAUNCH_EARLY(add_kernel, blocks_for(n, ELEMENT_THREADS), ELEMENT_THREADS, 0, s, y, a, b, n, scale);
    return cudaGetLastError();
}

/* Grid: x over elements, y over rows. */
static __global__ void add_gated_kernel(float *y, const float *a, const float *b, const float *gate, int n)
{
    let_next_start();
    wait_for_previous();
    size_t row = blockIdx.y, at = row * n;
    int    i = blockIdx.x * ELEMENT_THREADS + threadIdx.x;
    if (i < n) y[at + i] = fmaf(sigmoid(gate[row]), b[at + i], a[at + i]);
}

extern "C" cudaError_t cuda_add_gated(cudaStream_t s, float *y, const float *a, const float *b, const float *gate,
                                      int n_rows, int n)
{
    dim3 grid(blocks_for((size_t)n, ELEMENT_THREADS), (unsigned)n_rows);
    LAUNCH_EARLY(add_gated_kernel, grid, ELEMENT_THREADS, 0, s, y, a, b, gate, n);
    return cudaGetLastError();
}

static __global__ void softcap_kernel(float *x, size_t n, float cap)
{
    let_next_start();
    wait_for_previous();
    size_t i = (size_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x;
    if (i < n) x[i] = cap * tanhf(x[i] / cap);
}

extern "C" cudaError_t cuda_softcap(cudaStream_t s, float *x, size_t n, float cap)
{
    LAUNCH_EARLY(softcap_kernel, blocks_for(n, ELEMENT_THREADS), ELEMENT_THREADS, 0, s, x, n, cap);
    return cudaGetLastError();
}

/* Grid: x over rows, of which there may be more than y has places; y over elements. */
static __global__ void copy_rows_kernel(float *y, size_t y_stride, const float *x, size_t x_stride, const int32_t *idx,
                                        int n)
{
    let_next_start();
    wait_for_previous();
    size_t row = blockIdx.x, from = idx ? (size_t)idx[row] : row;
    int    i = blockIdx.y * ELEMENT_THREADS + threadIdx.x;
    if (i < n) y[row * y_stride + i] = x[from * x_stride + i];
}

extern "C" cudaError_t cuda_copy_rows(cudaStream_t s, float *y, int y_stride, const float *x, int x_stride,
                                      const int32_t *idx, int n_rows, int n)
{
    dim3 grid((unsigned)n_rows, blocks_for((size_t)n, ELEMENT_THREADS));
    LAUNCH_EARLY(copy_rows_kernel, grid, ELEMENT_THREADS, 0, s, y, (size_t)y_stride, x, (size_t)x_stride, idx, n);
    return cudaGetLastError();
}

/* Grid: x over channels, y over rows. */
static __global__ void block_conv_kernel(conv_rows c)
{
    let_next_start();
    wait_for_previous();
    size_t row = blockIdx.y;
    int    i   = blockIdx.x * ELEMENT_THREADS + threadIdx.x;
    if (i >= c.n) return;
    const float *x = (const float *)c.x.p + row * c.n, *base = (const float *)c.base.p;
    const float *delta = (const float *)c.delta.p + row * c.delta_stride + i / c.group;
    int          place = ((const int32_t *)c.place.p)[row];
    float        sum   = 0;
    for (int u = 0; u < c.n_taps && u <= place; u++)
        sum = fmaf(base[(size_t)u * c.n + i] + delta[(size_t)u * (c.n / c.group)], x[i - (ptrdiff_t)u * c.n], sum);
    ((float *)c.y.p)[row * c.n + i] = sum;
}

extern "C" cudaError_t cuda_block_conv(cudaStream_t s, const conv_rows *c, int n_rows)
{
    dim3 grid(blocks_for((size_t)c->n, ELEMENT_THREADS), (unsigned)n_rows);
    LAUNCH_EARLY(block_conv_kernel, grid, ELEMENT_THREADS, 0, s, *c);
    return cudaGetLastError();
}
