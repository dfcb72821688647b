/* gguf/safetensors.h - reads one safetensors file, or a directory's shards by their index, mapped.
 *
 * Checked: header at most 100 MB and inside the file, offsets sorted without overlap or gap beyond the data, sizes equal to
 * shape times type, names unique and not empty, shard names that stay in the directory.
 * Shapes are turned round: dim[0] is the contiguous one. */
#ifndef TANDEM_GGUF_SAFETENSORS_H
#define TANDEM_GGUF_SAFETENSORS_H
#include "gguf/tensor.h"

typedef struct safetensors safetensors;

/* path: a .safetensors file, or a directory with model.safetensors or model.safetensors.index.json */
bool safetensors_open(safetensors **out, const char *path, err *e);
void safetensors_close(safetensors *s);
const tensor_table *safetensors_tensors(const safetensors *s);

/* A small writer for results: tensors in order, f32 and i32; written whole to a temporary name, then renamed. */
typedef struct {
    const char *name;
    quant_type  type; /* QUANT_F32, QUANT_I32, QUANT_I64 */
    int         n_dims;
    int64_t     dim[TENSOR_MAX_DIMS]; /* dim[0] the contiguous one */
    const void *data;
} safetensors_out;
bool safetensors_write(const char *path, const safetensors_out *t, size_t n, err *e);
#endif
