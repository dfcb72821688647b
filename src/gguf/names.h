/* gguf/names.h - a list of names, each with its place; the inside of the tensor table and of GGUF's keys.
 *
 * The table's hash has a random key, so no file can choose names that collide. Memory grows with what was
 * added. Names are borrowed: they must outlive the list. */
#ifndef TANDEM_GGUF_NAMES_H
#define TANDEM_GGUF_NAMES_H
#include "base/str.h"

typedef struct {
    str      *name;   /* in the order they came */
    uint32_t *slot;   /* 2 * cap of them: place + 1, 0 is free */
    size_t    n, cap; /* cap is a power of two */
    uint64_t  key[2]; /* drawn with the first name */
} names;              /* a zeroed one is empty */

typedef enum { NAMES_ADDED, NAMES_TWICE, NAMES_NO_MEMORY } names_result;

void         names_deinit(names *x);
names_result names_add(names *x, str name); /* its place is the old x->n */
bool         names_find(const names *x, str name, size_t *at);
#endif
