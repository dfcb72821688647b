/* base/inside.h - functions of base that only tests call from other files. root is a directory with made-up /proc and
 * /sys; "" is the machine's own. */
#ifndef TANDEM_BASE_INSIDE_H
#define TANDEM_BASE_INSIDE_H
#include <stddef.h>

size_t mem_available_under(const char *root); /* as mem_available */
/* Returns the smallest CPU quota of the process's cgroup (version 1 or 2) and its parents, rounded up to whole
 * processors; 0: no quota. */
int cpu_quota(const char *root);
#endif
