/* gguf/gguf.h - reads GGUF v2 and v3, single or split files (-00001-of-0000N.gguf), mapped.
 *
 * gguf_open checks every count, size, offset, alignment, type and string length against the file; that keys and tensor
 * names are unique and not empty; that tensors do not overlap. The contents of strings and tensors are not checked.
 * Returned pointers are valid until gguf_close; keys, values, names and tensor data are in the mapping. Memory use is
 * bounded by a small multiple of the header's size in the file. The values of a split model are those of its first
 * part. After gguf_open a gguf does not change: any thread may read it. */
#ifndef TANDEM_GGUF_GGUF_H
#define TANDEM_GGUF_GGUF_H
#include "base/err.h"
#include "base/str.h"
#include "gguf/maps.h"
#include "gguf/tensor.h"

/* Types of values; the numbers are those in the file. An array of arrays is refused. */
typedef enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
} gguf_type;

typedef struct gguf gguf;
typedef struct {
    str         key;
    gguf_type   type; /* GGUF_ARRAY for an array */
    gguf_type   item; /* type of the items of an array; for a scalar, its own type */
    uint64_t    n;    /* number of items of an array, else 1 */
    const char *data; /* first item, unaligned little endian; a string is a u64 length and its bytes */
} gguf_value;

/* Opens a file, or all parts of a split model when path names any of them. On failure *out is NULL, here and below. */
bool        gguf_open(gguf **out, const char *path, err *e);
bool        gguf_open_bytes(gguf **out, str bytes, err *e); /* one whole file in memory, borrowed until gguf_close */
void        gguf_close(gguf *g);                            /* g may be NULL */
const maps *gguf_files(const gguf *g);                      /* the mapped parts in order; none after gguf_open_bytes */
size_t      gguf_bytes(const gguf *g);                      /* bytes of all mapped parts; 0 after gguf_open_bytes */
/* Releases the memory of the tensor's pages, as file_map_drop does. Does nothing after gguf_open_bytes. */
void                gguf_drop(const gguf *g, const tensor *t);
bool                gguf_has_file(const gguf *g, const char *path); /* returns whether path names a mapped part */
size_t              gguf_n_values(const gguf *g);
const gguf_value   *gguf_value_at(const gguf *g, size_t i);    /* in the order of the file; i < gguf_n_values */
const gguf_value   *gguf_find(const gguf *g, const char *key); /* NULL when absent */
const tensor_table *gguf_tensors(const gguf *g);               /* in the order of the file, part by part */

/* Read a scalar. Return false, with *out unchanged, when v is NULL or of another type. gguf_int accepts every integer
 * type, but no u64 above INT64_MAX. */
bool gguf_int(const gguf_value *v, int64_t *out);
bool gguf_real(const gguf_value *v, double *out); /* f32, f64, or what gguf_int accepts */
bool gguf_bool(const gguf_value *v, bool *out);
bool gguf_str(const gguf_value *v, str *out);
/* Reads item i of an array of integers or booleans. Returns false also when i is not below v->n. */
bool   gguf_item_int(const gguf_value *v, uint64_t i, int64_t *out);
size_t gguf_type_bytes(gguf_type t);          /* bytes of one value; 0 for strings and arrays */
size_t gguf_value_bytes(const gguf_value *v); /* number of bytes from v->data to the end of the value */
/* Returns the next string of an array of strings. *at starts as v->data and is moved after the string. Call it at most
 * v->n times. */
str gguf_next_str(const char **at);
#endif
