/* ops/cuda/backend.h - shared by the C files of the backend. */
#ifndef TANDEM_OPS_CUDA_BACKEND_H
#define TANDEM_OPS_CUDA_BACKEND_H
#include "base/thread.h"
#include "ops/cuda/kernels.h"

enum { STAGES = 2, STAGE_BYTES = 16 << 20 }; /* buffers for loading weights, and their size */

typedef struct {
    int          device;
    char         kernels[16];   /* ops.kernels: the compute capability, such as "sm_90" */
    pool        *pool;          /* threads that copy weights to the stages */
    cudaStream_t load;          /* uploads and repacks them */
    char        *stage[STAGES]; /* pinned host memory; allocated when the first weight is loaded */
    char        *raw[STAGES];   /* device memory of the same size */
    uint32_t    *largest;       /* device memory: bits of the largest magnitude of the weight being loaded */
    cudaEvent_t  sent[STAGES];  /* stage i and raw i were read and may be overwritten */
} backend;

/* Returns true if status is cudaSuccess. Otherwise sets *e to "the GPU failed at DOING: ...", clears the runtime's
 * error and returns false. */
bool cuda_ok(cudaError_t status, err_code code, const char *doing, err *e);
/* Allocate device memory, zeroed or not, and set the pointer at `out` to it. what: its use, for the message. On failure
 * the pointer is unchanged. */
bool cuda_take(const backend *b, void *out, size_t bytes, const char *what, err *e);
bool cuda_take_raw(const backend *b, void *out, size_t bytes, const char *what, err *e);
void cuda_drop(const backend *b, void *p); /* frees it; p may be NULL */

bool cuda_weight_load(const ops *o, weight **out, const weight_src *src, err *e);
void cuda_weight_free(const ops *o, weight *w);

extern const ops cuda_table; /* all members except `close`, `state` and `kernels` */
#endif
