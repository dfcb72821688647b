/* ops/cuda/cuda.h - the backend for NVIDIA GPUs of compute capability 8.0 and later.
 *
 * One queue is one stream. Ops enqueue kernels whose launch depends on shapes and numbers of rows alone; everything
 * else is read from device arrays, and nothing is allocated or waited for, so that a step can be captured as a graph.
 * In a build without CUDA (absent.c) every function fails with ERR_NOT_FOUND. */
#ifndef TANDEM_OPS_CUDA_CUDA_H
#define TANDEM_OPS_CUDA_CUDA_H
#include "ops/ops.h"

/* Opens GPU number `device`; closed with ops_close. n_threads: threads that copy weights to the GPU; 0: all that this
 * process may use. On failure *out is NULL. */
bool cuda_ops_open(ops **out, int device, int n_threads, err *e);
/* Returns the number of GPUs; if it is 0, *e is set to the reason. */
int cuda_devices(err *e);
/* Describes a GPU. Fails also when it is too old. */
bool cuda_device_info(ops_device *out, int device, err *e);
#endif
