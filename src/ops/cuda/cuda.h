/* ops/cuda/cuda.h - the backend for NVIDIA GPUs of compute capability 8.0 and later.
 *
 * One queue is one stream. Ops enqueue kernels whose launch depends on shapes and numbers of rows alone; everything
 * else is read from device arrays, and nothing is allocated or waited for, so that a step can be captured as a graph.
 * Without CUDA in the build, or without a GPU, opening says so. */
#ifndef TANDEM_OPS_CUDA_CUDA_H
#define TANDEM_OPS_CUDA_CUDA_H
#include "ops/ops.h"

bool cuda_ops_open(ops **out, int device, int n_threads, err *e);
/* Returns the number of GPUs. 0 with the reason in *e: ERR_NOT_FOUND in a build without CUDA. */
int  cuda_devices(err *e);
bool cuda_device_info(ops_device *out, int device, err *e);
#endif
