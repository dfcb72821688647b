/* base/mem.h - heap memory and sizes.
 *
 * Sizes that we choose cannot fail: xnew and xalloc abort with a message.
 * Sizes that a file or a client chooses are bounded first and may fail: mem_try returns NULL.
 * Every size computed from foreign numbers goes through size_add and size_mul. */
#ifndef TANDEM_BASE_MEM_H
#define TANDEM_BASE_MEM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

#define xnew(T)      ((T *)xalloc(sizeof(T)))
#define xnew_n(T, n) ((T *)xalloc_n((n), sizeof(T)))

void *xalloc(size_t bytes);                  /* zeroed */
void *xalloc_n(size_t n, size_t each);       /* zeroed */
void *mem_try(size_t bytes);                 /* zeroed, or NULL */
void *mem_try_n(size_t n, size_t each);      /* zeroed, or NULL also when n * each overflows */
void *mem_try_resize(void *p, size_t bytes); /* NULL leaves p as it was; new bytes are not zeroed */
void  mem_free(void *p);                     /* NULL is fine */
void  mem_trim(void); /* gives free memory of all threads back to the system; takes milliseconds */

/* Returns the bytes that this process may still take: of the machine, of its cgroup (version 1 or 2) and those above it, and
 * of its address space (ulimit -v). */
size_t mem_available(void);
size_t mem_available_under(const char *root); /* the same with /proc and /sys below root, for tests */

/* True when the result fits; *out is written only then. */
static inline bool size_add(size_t *out, size_t a, size_t b) { return !__builtin_add_overflow(a, b, out); }
static inline bool size_mul(size_t *out, size_t a, size_t b) { return !__builtin_mul_overflow(a, b, out); }
/* [offset, offset + bytes) lies inside [0, total) */
static inline bool range_inside(size_t offset, size_t bytes, size_t total)
{
    return offset <= total && bytes <= total - offset;
}
#endif
