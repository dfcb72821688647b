/* base/fault.h - injects allocation failures, for tests.
 *
 * fail_nth: the n-th allocation that may fail (mem_try and its callers) returns NULL.
 * no_alloc: inside the scope, on this thread and on the pool threads that work for it, any allocation is a bug
 * and aborts with the name of the outermost scope (promise 4). Test programs also route libc's malloc through
 * fault_check_alloc, to find calls in libraries. */
#ifndef TANDEM_BASE_FAULT_H
#define TANDEM_BASE_FAULT_H
#include <stdbool.h>

void fault_fail_nth(long n); /* 1: the next allocation fails; 0: none */
long fault_tries(void);      /* number of allocations that may fail since fault_fail_nth */
bool fault_now(void);        /* counts one allocation; true when it must fail */

void        fault_no_alloc_begin(const char *scope);
void        fault_no_alloc_end(void);
const char *fault_scope(void);              /* scope of this thread, NULL outside */
void        fault_scope_set(const char *s); /* sets the scope of this thread; for thread pools */
void        fault_check_alloc(void);        /* aborts inside a no_alloc scope */
#endif
