/* ops/cuda/rotate.cuh - the position by which rope rotates a pair. */
#ifndef TANDEM_OPS_CUDA_ROTATE_CUH
#define TANDEM_OPS_CUDA_ROTATE_CUH
#include "ops/cuda/device.cuh"

/* Returns the position by which rope rotates pair i of a row. section_pos may be NULL. */
static __device__ inline int32_t rope_pos(const rope_view &p, const int32_t *pos, const int32_t *section_pos, int row,
                                          int i)
{
    return p.section && section_pos ? section_pos[row * ROPE_SECTIONS + p.section[i]] : pos[row];
}
#endif
