#include "base/fault.h"

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

static atomic_long               fail_at, n_tries;
static _Thread_local const char *no_alloc_scope;
static _Thread_local int         n_inner; /* depth inside the outermost scope */

void fault_fail_nth(long n)
{
    atomic_store(&n_tries, 0);
    atomic_store(&fail_at, n);
}

long fault_tries(void) { return atomic_load(&n_tries); }

bool fault_now(void)
{
    long n = atomic_fetch_add(&n_tries, 1) + 1;
    return n == atomic_load(&fail_at);
}

void fault_no_alloc_begin(const char *scope)
{
    assert(scope);
    if (no_alloc_scope)
        n_inner++;
    else
        no_alloc_scope = scope;
}

void fault_no_alloc_end(void)
{
    assert(no_alloc_scope);
    if (n_inner)
        n_inner--;
    else
        no_alloc_scope = NULL;
}

const char *fault_scope(void) { return no_alloc_scope; }
void        fault_scope_set(const char *s) { no_alloc_scope = s; }

void fault_check_alloc(void)
{
    if (!no_alloc_scope) return;
    const char *scope = no_alloc_scope;
    no_alloc_scope    = NULL; /* printing may allocate */
    fprintf(stderr, "tandem: memory was allocated inside '%s', where nothing may be allocated\n", scope);
    abort();
}
