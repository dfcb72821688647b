/* gguf/safetensors.h - maps and reads a safetensors file, or the files that a directory's index names; writes one
 * file.
 *
 * Tensors, their names and data are valid until safetensors_close. The reader checks that the header is strict JSON of
 * at most 100 MB inside the file; that tensors cover the data without overlap or gap; that each tensor has the size of
 * its shape and type, with dimensions of at least 1; that names are not empty and unique over all files; that shard
 * names stay in the directory. Shapes are reversed: dim[0] is the contiguous dimension. A scalar has one dimension of
 * 1. Outermost dimensions beyond four must be 1 and are dropped. U8 and BOOL are reported as I8, with the same bytes;
 * other types that quant_type lacks are refused. */
#ifndef TANDEM_GGUF_SAFETENSORS_H
#define TANDEM_GGUF_SAFETENSORS_H
#include "gguf/maps.h"
#include "gguf/tensor.h"

typedef struct safetensors safetensors;

/* Opens a file, or a directory with model.safetensors or else model.safetensors.index.json. On failure *out is NULL,
 * here and below. */
bool                safetensors_open(safetensors **out, const char *path, err *e);
void                safetensors_close(safetensors *s); /* s may be NULL */
const tensor_table *safetensors_tensors(const safetensors *s);
const maps         *safetensors_files(const safetensors *s); /* the files with tensors; none for a file in memory */
size_t              safetensors_bytes(const safetensors *s); /* bytes of these files; 0 for a file in memory */
/* Releases the memory of the tensor's pages, as file_map_drop does. Does nothing for a file in memory. */
void safetensors_drop(const safetensors *s, const tensor *t);

typedef struct { /* a tensor to write */
    const char *name;
    quant_type  type;                 /* a plain float or integer type, asserted */
    int         n_dims;               /* 0 to TENSOR_MAX_DIMS */
    int64_t     dim[TENSOR_MAX_DIMS]; /* dim[0] is contiguous */
    const void *data;                 /* as many bytes as type and shape need */
} safetensors_out;
/* Writes n tensors in order, under a temporary name that is then renamed to path. A failure leaves path as it was. The
 * names must be distinct. */
bool safetensors_write(const char *path, const safetensors_out *t, size_t n, err *e);
#endif
