/* base/inside.h - functions of base that only tests call from other files. root is a directory with made-up /proc and
 * /sys; "" is the machine's own. */
#ifndef TANDEM_BASE_INSIDE_H
#define TANDEM_BASE_INSIDE_H
#include "base/arena.h"

size_t mem_available_under(const char *root); /* as mem_available */
/* Returns the smallest CPU quota of the process's cgroup (version 1 or 2) and its parents, rounded up to whole
 * processors; 0: no quota. */
int cpu_quota(const char *root);
/* Allocate from an arena. Never return NULL: they abort when the system has no memory, and assert that the limit is not
 * passed. */
void *arena_alloc(arena *a, size_t bytes);
#define arena_new(a, T)      ((T *)arena_alloc((a), sizeof(T)))
#define arena_new_n(a, T, n) ((T *)arena_alloc((a), (size_t)(n) * sizeof(T)))
#endif
