/* gguf/gguf.h - reads GGUF v3, single or split files (-00001-of-0000N.gguf), mapped.
 *
 * Every count, size, offset, alignment, type and string length is checked against the file before use; keys and
 * tensor names are unique and not empty; tensors do not overlap. What is returned points into the mapping and
 * lives until gguf_close. Memory taken is bounded by a small multiple of the header's size in the file.
 * Of a split model the values are those of its first part. */
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
    gguf_type   item; /* of an array */
    uint64_t    n;    /* items of an array, else 1 */
    const char *data; /* first item, unaligned little endian; strings are u64 length + bytes */
} gguf_value;

bool        gguf_open(gguf **out, const char *path, err *e); /* any part of a split model opens the whole */
bool        gguf_open_bytes(gguf **out, str bytes, err *e);  /* one whole file in memory, borrowed until gguf_close */
void        gguf_close(gguf *g);                             /* NULL is fine */
const maps *gguf_files(const gguf *g);
size_t      gguf_bytes(const gguf *g);                      /* of all mapped parts */
void        gguf_drop(const gguf *g, const tensor *t);      /* its pages are not needed soon */
bool        gguf_has_file(const gguf *g, const char *path); /* path names one of the mapped parts */
size_t      gguf_n_values(const gguf *g);
const gguf_value   *gguf_value_at(const gguf *g, size_t i);
const gguf_value   *gguf_find(const gguf *g, const char *key); /* NULL when absent */
const tensor_table *gguf_tensors(const gguf *g);

/* Scalars of any integer type that holds the value; false when absent or of another kind. */
bool   gguf_int(const gguf_value *v, int64_t *out);
bool   gguf_real(const gguf_value *v, double *out); /* f32, f64 or an integer */
bool   gguf_bool(const gguf_value *v, bool *out);
bool   gguf_str(const gguf_value *v, str *out);
bool   gguf_item_int(const gguf_value *v, uint64_t i, int64_t *out); /* of an array of integers or bools */
size_t gguf_type_bytes(gguf_type t);                                 /* of one; 0 for strings and arrays */
size_t gguf_value_bytes(const gguf_value *v);                        /* from v->data on */
/* Walks an array of strings: *at starts as v->data and moves on. The lengths were checked at open. */
str gguf_next_str(const char **at);
#endif
