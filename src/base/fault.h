/* base/fault.h - injects allocation failures, for tests.
 *
 * fault_fail_nth: makes one allocation that may fail (mem_try, mem_try_resize and their callers) return NULL. The
 * counter is shared by all threads.
 * fault_no_alloc_begin: until the matching fault_no_alloc_end, on this thread and on the pool threads that work for it,
 * any allocation through base/mem.h prints the name of the outermost scope and aborts (promise 4). Freeing and logging
 * are allowed. Test programs also route libc's malloc through fault_check_alloc, to find calls in libraries. */
#ifndef TANDEM_BASE_FAULT_H
#define TANDEM_BASE_FAULT_H
#include <stdbool.h>

void fault_fail_nth(long n); /* the n-th allocation from now fails, later ones do not; 0: none fails */
long fault_tries(void);      /* number of allocations that may fail since fault_fail_nth */
bool fault_now(void);        /* counts one allocation; true when it must fail. Called by base/mem.c */

void        fault_no_alloc_begin(const char *scope); /* keeps the pointer until the end; scopes may be nested */
void        fault_no_alloc_end(void);
const char *fault_scope(void);              /* name of this thread's outermost scope, NULL outside */
void        fault_scope_set(const char *s); /* enters a scope, or with NULL suspends it, on this thread only */
void        fault_check_alloc(void);        /* aborts inside a scope */
#endif
