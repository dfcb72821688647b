/* base/mem.h - heap memory and sizes.
 *
 * xnew, xnew_n, xalloc and xalloc_n take sizes chosen by the program and abort with a message on failure.
 * mem_try* take sizes chosen by a file or a client, which the caller has bounded, and return NULL on failure.
 * All are freed with mem_free. A size of 0 is allowed and gives a pointer. Compute sizes from untrusted numbers with
 * size_add and size_mul. Any thread may call these functions. */
#ifndef TANDEM_BASE_MEM_H
#define TANDEM_BASE_MEM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Number of elements of an array (not of a pointer). */
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

#define xnew(T)      ((T *)xalloc(sizeof(T)))
#define xnew_n(T, n) ((T *)xalloc_n((n), sizeof(T)))

void *xalloc(size_t bytes);                  /* zeroed */
void *xalloc_n(size_t n, size_t each);       /* zeroed */
void *mem_try(size_t bytes);                 /* zeroed, or NULL */
void *mem_try_n(size_t n, size_t each);      /* zeroed, or NULL also when n * each overflows */
void *mem_try_large(size_t bytes);           /* as mem_try, in huge pages: the first use of 4 KiB pages takes longer
                                                than reading a file into them */
void *mem_try_resize(void *p, size_t bytes); /* as realloc: p may be NULL, and stays valid when NULL is returned;
                                                new bytes are not zeroed */
void  mem_free(void *p);                     /* p may be NULL */
void  mem_trim(void);                        /* returns free heap memory to the system; takes milliseconds */

/* Returns the bytes that this process may still allocate: the minimum of the machine's available memory, of what its
 * cgroup (version 1 or 2) and the parents of that leave, and of its address space (ulimit -v). A limit that cannot be
 * read does not count; SIZE_MAX: none can. */
size_t mem_available(void);

/* Set *out to the sum or product. Return false on overflow; *out is then wrong. */
static inline bool size_add(size_t *out, size_t a, size_t b) { return !__builtin_add_overflow(a, b, out); }
static inline bool size_mul(size_t *out, size_t a, size_t b) { return !__builtin_mul_overflow(a, b, out); }
/* Returns true when [offset, offset + bytes) is inside [0, total]; an empty range may be at total. */
static inline bool range_inside(size_t offset, size_t bytes, size_t total)
{
    return offset <= total && bytes <= total - offset;
}
#endif
