/* Linked into test programs with --wrap: libc's allocator asks base/fault first, so that a malloc
 * hidden inside a no_alloc scope is found (promise 4). */
#include "base/fault.h"

#include <stddef.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n)
{
    fault_check_alloc();
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t each)
{
    fault_check_alloc();
    return __real_calloc(n, each);
}

void *__wrap_realloc(void *p, size_t n)
{
    fault_check_alloc();
    return __real_realloc(p, n);
}
