/* ops/cuda/matmul.cuh - shared by the kernels of matmul.cu and matmul_wide.cu. */
#ifndef TANDEM_OPS_CUDA_MATMUL_CUH
#define TANDEM_OPS_CUDA_MATMUL_CUH
#include "ops/cuda/panel.cuh"

template <quant_type T> static __host__ __device__ constexpr bool is_float()
{
    return T == QUANT_F32 || T == QUANT_F16 || T == QUANT_BF16;
}

/* Returns the tensor's power of two as decode_step takes it. */
template <quant_type T> static __device__ inline uint32_t up_bits(float up)
{
    if (is_float<T>()) return __float_as_uint(up);
    int e = (int)(__float_as_uint(up) >> 23) - 127;
    if (T == QUANT_MXFP4) return (uint32_t)e;
    if (T == QUANT_Q4_0) { /* two factors */
        int first = e < -14 ? -14 : e > 15 ? 15 : e;
        return (uint32_t)(first + 15) << 10 | (uint32_t)(e - first + 15) << 26;
    }
    return h2_from_f32(up, up);
}

/* Return the row of a pair, and pair i of a run. */
static __device__ inline int row_of(const cuda_matmul_args &a, int pair)
{
    return a.pairs_to_x == 1 ? pair : pair / a.pairs_to_x;
}
static __device__ inline int pair_at(const cuda_matmul_args &a, const cuda_run &r, int i)
{
    return a.order ? a.order[r.first + i] : r.first + i;
}

#endif
