#include "ops/cuda/act.cuh"
#include "ops/cuda/convert.cuh"

/* A block per row. Every `group` elements of a gate are followed by `gap` others. */
template <int THREADS, int QUADS>
static __global__ void __launch_bounds__(THREADS)
    gated_kernel(float *y, cuda_x to, const float *gate, size_t gate_stride, int group, int gap, const float *up,
                 size_t up_stride, int n, act_kind act)
{
    row_quads<THREADS, QUADS> g, u;
    let_next_start();
    wait_for_previous();
    int source = source_of(to, blockIdx.x);
    if (source < 0) return;
    size_t row = (size_t)source;
#pragma unroll
    for (int j = 0; j < QUADS; j++)
        g.v[j] = load_quad(gate + row * gate_stride + (size_t)(g.at(j) / group) * gap, g.at(j), n);
    u.load(up + row * up_stride, n);
#pragma unroll
    for (int j = 0; j < QUADS; j++)
        if (g.at(j) < n)
            g.v[j] = make_float4(gate_of(g.v[j].x, act) * u.v[j].x, gate_of(g.v[j].y, act) * u.v[j].y,
                                 gate_of(g.v[j].z, act) * u.v[j].z, gate_of(g.v[j].w, act) * u.v[j].w);
    if (y) g.store(y + row * n, n);
    if (to.high) g.convert(to, blockIdx.x, n, block_max<THREADS>(g.largest()));
}

extern "C" cudaError_t cuda_gated(cudaStream_t s, float *y, cuda_x to, const float *gate, int gate_stride, int group,
                                  int gap, const float *up, int up_stride, int n_rows, int n, act_kind act)
{
    if (to.order) n_rows = to.n_order;
#define CALL(THREADS, QUADS)                                                                                           \
    LAUNCH_EARLY((gated_kernel<THREADS, QUADS>), (unsigned)n_rows, THREADS, 0, s, y, to, gate, (size_t)gate_stride,    \
                 group, gap, up, (size_t)up_stride, n, act)
    BY_ROW_LENGTH(n, CALL);
#undef CALL
    return cudaGetLastError();
}
