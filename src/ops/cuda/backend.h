/* ops/cuda/backend.h - what the C files of the backend share. */
#ifndef TANDEM_OPS_CUDA_BACKEND_H
#define TANDEM_OPS_CUDA_BACKEND_H
#include "base/thread.h"
#include "ops/cuda/kernels.h"

enum { STAGES = 2, STAGE_BYTES = 16 << 20 };

typedef struct {
    int          device;
    pool        *pool;          /* copies weights */
    cudaStream_t load;          /* uploads and repacks them */
    char        *stage[STAGES]; /* pinned; taken when the first weight is loaded */
    char        *raw[STAGES];   /* the same on the device */
    uint32_t    *largest;       /* largest magnitude of a weight, on the device */
    cudaEvent_t  sent[STAGES];  /* both are free again */
} backend;

/* The sentence for a call that failed; true when it did not. The error does not linger in the runtime. */
bool cuda_ok(cudaError_t status, err_code code, const char *doing, err *e);
bool cuda_take(const backend *b, void *out, size_t bytes, const char *what, err *e); /* *out: device memory, zeroed */
bool cuda_take_raw(const backend *b, void *out, size_t bytes, const char *what, err *e); /* not zeroed */
void cuda_drop(const backend *b, void *p);

bool cuda_weight_load(const ops *o, weight **out, const weight_src *src, err *e);
void cuda_weight_free(const ops *o, weight *w);

extern const ops cuda_table; /* everything but state */
#endif
