/* tests/emu - enough of CUDA, on the processor, to run the kernels of src/ops/cuda where there is no GPU.
 *
 * `make CUDA=emu` puts this header before CUDA's own ones in the include path. A thread of a block is a fiber. Blocks
 * run one after the other; the order of the threads of a block changes at every switch, so that a missing barrier is
 * likely to show. A barrier that not all threads reach ends the program with a message. Device memory is heap memory,
 * so the address sanitizer checks the reads and writes of kernels. In a build without sanitizers, kernels that use memory
 * before the kernels before them have finished are found (watch.h). Nothing here is fast. */
#ifndef TANDEM_EMU_CUDA_RUNTIME_API_H
#define TANDEM_EMU_CUDA_RUNTIME_API_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    cudaSuccess               = 0,
    cudaErrorInvalidValue     = 1,
    cudaErrorMemoryAllocation = 2,
} cudaError_t;
typedef struct emu_stream *cudaStream_t;
typedef struct emu_event  *cudaEvent_t;
typedef struct emu_node   *cudaGraph_t; /* the first launch of a list */
typedef struct emu_node   *cudaGraphExec_t;
enum { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum { cudaHostAllocDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2 };
enum { cudaStreamCaptureModeThreadLocal = 1 };
struct cudaDeviceProp {
    char   name[256];
    size_t totalGlobalMem;
    int    major, minor;
};

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemset(void *p, int byte, size_t n);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, cudaStream_t s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaGetLastError(void);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, int mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e);
const char *cudaGetErrorString(cudaError_t e);

/* --- what kernels call ----------------------------------------------------------------------------*/
typedef struct {
    unsigned x, y, z;
} emu_dim;
typedef struct {
    emu_dim thread, block, block_dim, grid_dim;
    void   *dynamic; /* shared memory of the launch */
} emu_place;
extern emu_place emu_at; /* the running fiber's */

/* A launch. The kernel's arguments follow the struct in memory. */
typedef struct emu_node emu_node;
struct emu_node {
    emu_node   *next;
    const char *name;
    int         early; /* may start before the launches before it have finished */
    emu_dim     grid, block;
    size_t      shared;
    void (*kernel)(void *node);
    void (*free)(emu_node *node);
    int refs; /* to the list: a graph and its executable share one */
};
int  emu_recording(void); /* launches are to be kept, not run */
void emu_record(emu_node *n);

void emu_run(emu_node *n);
void emu_sync_block(void);
void emu_yield(void); /* lets other warps run */
/* Gives 8 bytes to the other lanes of the warp; returns what all of them gave, [32], when all have. */
const uint64_t *emu_sync_warp(uint64_t mine);
/* The same for a lane's operands of a tensor-core instruction. */
typedef struct {
    uint32_t a[4], b[2];
} emu_operands;
const emu_operands *emu_sync_operands(const emu_operands *mine);
int                 emu_lane(void);
void                emu_fail(const char *what); /* says so and ends the program */
extern float        emu_f16[1 << 16];           /* as floats; filled by the first launch */

/* Programmatic launch, and reads that the compiler does not report (watch.h). */
void    emu_wait_for_previous(void);
void    emu_let_next_start(void);
void    emu_reads(const void *p, size_t bytes);
int32_t emu_read_l2(const int32_t *p);
#ifdef __cplusplus
}
#include "emu_kernel.h"
#endif
#endif
