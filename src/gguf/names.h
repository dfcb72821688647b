/* gguf/names.h - a list of distinct names with a hash table; used by the tensor table and for the keys of a GGUF file.
 *
 * The hash has a random key, so a file cannot contain names that are prepared to collide. The bytes of the names are
 * borrowed and must outlive the list; memory use depends only on their number. */
#ifndef TANDEM_GGUF_NAMES_H
#define TANDEM_GGUF_NAMES_H
#include "base/str.h"

typedef struct {
    str      *name;   /* in the order of names_add */
    uint32_t *slot;   /* [2 * cap]: index + 1 in name; 0: free */
    size_t    n, cap; /* cap is a power of two */
    uint64_t  key[2]; /* set when the first name is added */
} names;              /* zeroed: empty */

typedef enum { NAMES_ADDED, NAMES_TWICE, NAMES_NO_MEMORY } names_result;

void names_deinit(names *x); /* frees the memory; *x is then empty */
/* Adds a name. NAMES_ADDED: its index is x->n - 1. NAMES_TWICE: it is in the list already. NAMES_NO_MEMORY: there is no
 * memory for it. In the last two cases the list has the same names as before. */
names_result names_add(names *x, str name);
bool names_find(const names *x, str name, size_t *at); /* if it is found, sets *at to its index and returns true */
#endif
