/* Opening a GPU, and its memory. */
#include "ops/cuda/cuda.h"

#include "base/fault.h"
#include "base/mem.h"
#include "ops/cuda/backend.h"

#include <stdio.h>

enum { OLDEST_MAJOR = 8 };

bool cuda_ok(cudaError_t status, err_code code, const char *doing, err *e)
{
    if (status == cudaSuccess) return true;
    cudaGetLastError();
    return err_set(e, code, "the GPU failed at %s: %s", doing, cudaGetErrorString(status));
}

static bool alloc_device(const backend *b, void *out, size_t bytes, bool zero, const char *what, err *e)
{
    void *p = NULL;
    fault_check_alloc();
    cudaSetDevice(b->device);
    cudaError_t status = fault_now() ? cudaErrorMemoryAllocation : cudaMalloc(&p, bytes ? bytes : 1);
    if (status == cudaSuccess && zero) status = cudaMemset(p, 0, bytes ? bytes : 1);
    if (status == cudaSuccess) status = cudaDeviceSynchronize(); /* zero before any stream uses it */
    if (status != cudaSuccess) {
        cudaGetLastError();
        cudaFree(p);
        return err_set(e, ERR_UNAVAILABLE, "no GPU memory for %s of %zu bytes: %s", what, bytes,
                       cudaGetErrorString(status));
    }
    *(void **)out = p;
    return true;
}

bool cuda_take(const backend *b, void *out, size_t bytes, const char *what, err *e)
{
    return alloc_device(b, out, bytes, true, what, e);
}

bool cuda_take_raw(const backend *b, void *out, size_t bytes, const char *what, err *e)
{
    return alloc_device(b, out, bytes, false, what, e);
}

void cuda_drop(const backend *b, void *p)
{
    if (!p) return;
    cudaSetDevice(b->device);
    cudaFree(p);
}

/* --- devices --------------------------------------------------------------------------------------*/

int cuda_devices(err *e)
{
    int         n = 0, driver = 0;
    cudaError_t status = cudaGetDeviceCount(&n);
    if (status != cudaSuccess && (cudaDriverGetVersion(&driver) != cudaSuccess || !driver)) {
        cudaGetLastError();
        err_set(e, ERR_UNAVAILABLE, "no GPU can be used: no NVIDIA driver is installed");
        return 0;
    }
    if (status != cudaSuccess) {
        cudaGetLastError();
        err_set(e, ERR_UNAVAILABLE, "no GPU can be used: %s", cudaGetErrorString(status));
        return 0;
    }
    if (!n) err_set(e, ERR_UNAVAILABLE, "there is no GPU");
    return n;
}

bool cuda_device_info(ops_device *out, int device, err *e)
{
    struct cudaDeviceProp prop;
    int                   n = cuda_devices(e);
    if (!n) return false;
    if (device < 0 || device >= n) return err_set(e, ERR_INPUT, "there is no GPU %d, expected 0 to %d", device, n - 1);
    if (!cuda_ok(cudaGetDeviceProperties(&prop, device), ERR_UNAVAILABLE, "reading its properties", e)) return false;
    *out = (ops_device){.total_bytes = prop.totalGlobalMem, .free_bytes = prop.totalGlobalMem};
    snprintf(out->name, sizeof out->name, "cuda:%d", device);
    snprintf(out->what, sizeof out->what, "%.80s, compute capability %d.%d", prop.name, prop.major, prop.minor);
    if (prop.major < OLDEST_MAJOR)
        return err_set(e, ERR_UNAVAILABLE, "GPU %d, a %s, is too old: at least %d.0 is needed", device, out->what,
                       OLDEST_MAJOR);
    cudaSetDevice(device);
    return cuda_ok(cudaMemGetInfo(&out->free_bytes, &out->total_bytes), ERR_UNAVAILABLE, "reading its free memory", e);
}

/* --- the table's memory ---------------------------------------------------------------------------*/

static void cuda_close(ops *o)
{
    backend *b = o->state;
    cudaSetDevice(b->device);
    for (int i = 0; i < STAGES; i++) {
        if (b->stage[i]) cudaFreeHost(b->stage[i]);
        if (b->raw[i]) cudaFree(b->raw[i]);
        if (b->sent[i]) cudaEventDestroy(b->sent[i]);
    }
    if (b->largest) cudaFree(b->largest);
    if (b->load) cudaStreamDestroy(b->load);
    pool_free(b->pool);
    mem_free(b);
    mem_free(o);
}

static bool open_streams(backend *b, err *e)
{
    static const char doing[] = "creating a stream";
    if (!cuda_ok(cudaSetDevice(b->device), ERR_UNAVAILABLE, "being opened", e)) return false;
    if (!cuda_ok(cudaStreamCreateWithFlags(&b->load, cudaStreamNonBlocking), ERR_UNAVAILABLE, doing, e)) return false;
    for (int i = 0; i < STAGES; i++)
        if (!cuda_ok(cudaEventCreateWithFlags(&b->sent[i], cudaEventDisableTiming), ERR_UNAVAILABLE, doing, e))
            return false;
    return true;
}

bool cuda_ops_open(ops **out, int device, int n_threads, err *e)
{
    ops_device            info;
    struct cudaDeviceProp prop;
    *out = NULL;
    if (!cuda_device_info(&info, device, e)) return false;
    if (!cuda_ok(cudaGetDeviceProperties(&prop, device), ERR_UNAVAILABLE, "reading its properties", e)) return false;
    ops     *o = xnew(ops);
    backend *b = xnew(backend);
    *o         = cuda_table;
    o->close   = cuda_close;
    o->state   = b;
    *b         = (backend){.device = device, .pool = pool_new(n_threads)};
    o->kernels = b->kernels;
    snprintf(b->kernels, sizeof b->kernels, "sm_%d%d", prop.major, prop.minor);
    if (!open_streams(b, e)) {
        cuda_close(o);
        return false;
    }
    *out = o;
    return true;
}
