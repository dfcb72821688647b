/* gguf/safetensors.h - reads one safetensors file, or a directory's shards by their index, mapped.
 *
 * The reader checks that the header is strict JSON of at most 100 MB inside the file; that tensors cover the data
 * without overlap or gap; that sizes equal shape times type; that names are unique and not empty; that shard names
 * stay in the directory. Shapes are reversed: dim[0] is the contiguous dimension. A scalar has one dimension of 1.
 * With more than four dimensions, the outermost ones must be 1 and are dropped. U8 and BOOL become I8. */
#ifndef TANDEM_GGUF_SAFETENSORS_H
#define TANDEM_GGUF_SAFETENSORS_H
#include "gguf/maps.h"
#include "gguf/tensor.h"

typedef struct safetensors safetensors;

/* path: a .safetensors file, or a directory with model.safetensors or model.safetensors.index.json */
bool                safetensors_open(safetensors **out, const char *path, err *e);
bool                safetensors_open_bytes(safetensors **out, str bytes, err *e); /* one file, borrowed until close */
void                safetensors_close(safetensors *s);                            /* NULL is fine */
const tensor_table *safetensors_tensors(const safetensors *s);
const maps         *safetensors_files(const safetensors *s);
size_t              safetensors_bytes(const safetensors *s);                 /* bytes of all mapped files */
void                safetensors_drop(const safetensors *s, const tensor *t); /* drops its pages from memory */

/* Writes tensors in order, to a temporary name that is then renamed to path. */
typedef struct {
    const char *name;
    quant_type  type; /* a plain float or integer type */
    int         n_dims;
    int64_t     dim[TENSOR_MAX_DIMS]; /* dim[0] is contiguous */
    const void *data;
} safetensors_out;
bool safetensors_write(const char *path, const safetensors_out *t, size_t n, err *e);
#endif
