/* The functions of cuda.h in a build without CUDA. */
#include "ops/cuda/cuda.h"

static bool absent(err *e)
{
    return err_set(e, ERR_NOT_FOUND, "this build has no CUDA (it is built with: make CUDA=1)");
}

bool cuda_ops_open(ops **out, int device, int n_threads, err *e)
{
    (void)device, (void)n_threads;
    *out = NULL;
    return absent(e);
}

int cuda_devices(err *e)
{
    absent(e);
    return 0;
}

bool cuda_device_info(ops_device *out, int device, err *e)
{
    (void)out, (void)device;
    return absent(e);
}
