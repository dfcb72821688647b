/* gguf/gguf.h - reads GGUF v2 and v3, single or split files (-00001-of-0000N.gguf), mapped.
 *
 * Every count, size, offset, alignment, type and string length is checked against the file before use; keys and
 * tensor names are unique and not empty; tensors do not overlap. Returned pointers point into the mapping and are valid
 * until gguf_close. Memory use is bounded by a small multiple of the header's size in the file. The values of a split
 * model are those of its first part. */
#ifndef TANDEM_GGUF_GGUF_H
#define TANDEM_GGUF_GGUF_H
#include "base/err.h"
#include "base/str.h"
#include "gguf/maps.h"
#include "gguf/tensor.h"

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
    gguf_type   item; /* type of the items of an array; of a scalar its type */
    uint64_t    n;    /* items of an array, else 1 */
    const char *data; /* first item, unaligned little endian; strings are u64 length + bytes */
} gguf_value;

bool        gguf_open(gguf **out, const char *path, err *e); /* path: the file, or any part of a split model */
bool        gguf_open_bytes(gguf **out, str bytes, err *e);  /* one whole file in memory, borrowed until gguf_close */
void        gguf_close(gguf *g);                             /* NULL is fine */
const maps *gguf_files(const gguf *g);
size_t      gguf_bytes(const gguf *g);                      /* bytes of all mapped parts */
void        gguf_drop(const gguf *g, const tensor *t);      /* drops its pages from memory */
bool        gguf_has_file(const gguf *g, const char *path); /* returns whether path names a mapped part */
size_t      gguf_n_values(const gguf *g);
const gguf_value   *gguf_value_at(const gguf *g, size_t i);
const gguf_value   *gguf_find(const gguf *g, const char *key); /* NULL when absent */
const tensor_table *gguf_tensors(const gguf *g);

/* Read a scalar. Return false when v is NULL or of another kind. gguf_int accepts every integer type. */
bool   gguf_int(const gguf_value *v, int64_t *out);
bool   gguf_real(const gguf_value *v, double *out); /* f32, f64 or an integer */
bool   gguf_bool(const gguf_value *v, bool *out);
bool   gguf_str(const gguf_value *v, str *out);
bool   gguf_item_int(const gguf_value *v, uint64_t i, int64_t *out); /* item i of an array of integers or bools */
size_t gguf_type_bytes(gguf_type t);                                 /* bytes of one value; 0 for strings and arrays */
size_t gguf_value_bytes(const gguf_value *v);                        /* bytes from v->data on */
/* Returns the next string of an array. *at starts as v->data and moves on. The lengths were checked by gguf_open. */
str gguf_next_str(const char **at);
#endif
