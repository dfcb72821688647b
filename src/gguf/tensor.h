/* gguf/tensor.h - tensors in mapped files: name, type, shape and place, and a table that finds them by name. */
#ifndef TANDEM_GGUF_TENSOR_H
#define TANDEM_GGUF_TENSOR_H
#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "gguf/quant.h"

enum { TENSOR_MAX_DIMS = 4 };

typedef struct {
    str         name; /* borrowed, as data is: valid until the file is closed */
    quant_type  type;
    int         n_dims;               /* 1 to TENSOR_MAX_DIMS */
    int64_t     dim[TENSOR_MAX_DIMS]; /* in elements; dim[0] is contiguous, as in GGUF; unused ones are 1 */
    const void *data;                 /* in the mapped file; may be unaligned */
    size_t      bytes;                /* size of data */
} tensor;

/* Sets t->bytes from its type and shape. The type must be known and each dim at least 1. Fails when a row is not a
 * multiple of the type's block, or the size overflows. */
bool tensor_size(tensor *t, err *e);

bool    tensor_is_ints(const tensor *t, int64_t n); /* returns whether t is a vector of n int64 or int32 */
int64_t tensor_int(const tensor *t, size_t i);      /* element i of such a vector, i < n */

typedef struct tensor_table tensor_table;

/* Makes an empty table for at most max_tensors. Returns NULL when there is no memory. */
tensor_table *tensor_table_new(size_t max_tensors);
void          tensor_table_free(tensor_table *t); /* t may be NULL */
/* Appends a copy of *x, with the name borrowed. Fails when the table has the name already or is full, or there is no
 * memory. */
bool tensor_table_add(tensor_table *t, const tensor *x, err *e);
/* Return a tensor by name (NULL: there is none) or by its index in the order of addition, i < tensor_count. The pointer
 * is valid until the next tensor_table_add or tensor_table_free. */
const tensor *tensor_find(const tensor_table *t, str name);
const tensor *tensor_at(const tensor_table *t, size_t i);
size_t        tensor_count(const tensor_table *t);
#endif
