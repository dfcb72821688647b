/* gguf/tensor.h - named tensors in mapped files, found by name. */
#ifndef TANDEM_GGUF_TENSOR_H
#define TANDEM_GGUF_TENSOR_H
#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "gguf/quant.h"

enum { TENSOR_MAX_DIMS = 4 };

typedef struct {
    str         name;
    quant_type  type;
    int         n_dims;
    int64_t     dim[TENSOR_MAX_DIMS]; /* dim[0] is contiguous, as in GGUF; unused ones are 1 */
    const void *data;                 /* unaligned; inside a mapping */
    size_t      bytes;
} tensor;

/* Sets t->bytes from type and shape, each dim at least 1. Refuses a row that is not a multiple of the block, and a size
 * that overflows. */
bool tensor_size(tensor *t, err *e);

bool    tensor_is_ints(const tensor *t, int64_t n); /* returns whether t is a list of n int64 or int32 */
int64_t tensor_int(const tensor *t, size_t i);      /* entry i of such a list */

typedef struct tensor_table tensor_table;

/* Makes an empty table for at most max_tensors. Returns NULL when there is no memory. */
tensor_table *tensor_table_new(size_t max_tensors);
void          tensor_table_free(tensor_table *t);
bool          tensor_table_add(tensor_table *t, const tensor *x, err *e); /* refuses a duplicate name */
const tensor *tensor_find(const tensor_table *t, str name);               /* NULL: there is none */
size_t        tensor_count(const tensor_table *t);
const tensor *tensor_at(const tensor_table *t, size_t i);
#endif
