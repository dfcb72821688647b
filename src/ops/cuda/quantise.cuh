/* ops/cuda/quantise.cuh - activations as int8, where they are made or before they are multiplied. */
#ifndef TANDEM_OPS_CUDA_QUANTISE_CUH
#define TANDEM_OPS_CUDA_QUANTISE_CUH
#include "ops/cuda/device.cuh"

/* One block of 32 by a warp, v its lane's number. What is too small for 1 / d counts as 0; a NaN or an infinity makes d NaN, so
 * that it is seen in the product. */
static __device__ inline void quantise_block(cuda_xblock *out, float v, int lane)
{
    bool  bad = __any_sync(ALL_LANES, !isfinite(v));
    float d   = warp_max(fabsf(v)) / 127;
    d         = bad ? NAN : d < FLT_MIN ? 0 : d;
    int q     = bad || !(d > 0) ? 0 : __float2int_rn(v * (1 / d));
    int sum   = q;
    for (int k = 8; k > 0; k /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, k); /* of each half */
    int other    = __shfl_xor_sync(ALL_LANES, sum, 16);
    out->q[lane] = (int8_t)q;
    if (lane == 0) {
        out->d      = d;
        out->ds     = d * (float)(sum + other);
        out->sum[0] = sum;
        out->sum[1] = other;
    }
}
#endif
