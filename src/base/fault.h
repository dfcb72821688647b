/* base/fault.h - makes rare failures happen on purpose, for tests.
 *
 * fail_nth: the n-th allocation that may fail (mem_try and what stands on it) returns NULL.
 * no_alloc: inside the scope, on this thread and on the pool threads that work for it, any
 * allocation is our bug and aborts with the name of the outermost scope (promise 4). Test programs also route
 * libc's malloc through fault_check_alloc, so that a hidden malloc is found too. */
#ifndef TANDEM_BASE_FAULT_H
#define TANDEM_BASE_FAULT_H
#include <stdbool.h>

void fault_fail_nth(long n); /* 0 switches it off; the first is 1 */
long fault_tries(void);      /* allocations that might have failed since fault_fail_nth */
bool fault_now(void);        /* counts one; true when this one is to fail */

void        fault_no_alloc_begin(const char *scope);
void        fault_no_alloc_end(void);
const char *fault_scope(void);              /* this thread's scope, NULL outside; */
void        fault_scope_set(const char *s); /* for thread pools, to hand it to their workers */
void        fault_check_alloc(void);        /* aborts inside a no_alloc scope */
#endif
