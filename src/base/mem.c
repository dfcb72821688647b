#include "base/mem.h"

#include "base/fault.h"
#include "base/inside.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

static void out_of_memory(size_t bytes)
{
    fprintf(stderr, "tandem: out of memory (%zu bytes)\n", bytes);
    abort();
}

void *xalloc(size_t bytes)
{
    fault_check_alloc();
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) out_of_memory(bytes);
    return p;
}

void *xalloc_n(size_t n, size_t each)
{
    size_t bytes;
    if (!size_mul(&bytes, n, each)) out_of_memory(SIZE_MAX);
    return xalloc(bytes);
}

void *mem_try(size_t bytes)
{
    fault_check_alloc();
    if (fault_now()) return NULL;
    return calloc(1, bytes ? bytes : 1);
}

void *mem_try_large(size_t bytes)
{
#ifdef MADV_HUGEPAGE
    enum { HUGE_PAGE = 2 << 20 };
    char  *p    = mem_try(bytes);
    size_t skip = (0 - (uintptr_t)p) % HUGE_PAGE;
    if (p && bytes >= 2 * HUGE_PAGE) madvise(p + skip, (bytes - skip) / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return p;
#else
    return mem_try(bytes);
#endif
}

void *mem_try_n(size_t n, size_t each)
{
    size_t bytes;
    return size_mul(&bytes, n, each) ? mem_try(bytes) : NULL;
}

void *mem_try_resize(void *p, size_t bytes)
{
    fault_check_alloc();
    if (fault_now()) return NULL;
    return realloc(p, bytes ? bytes : 1);
}

void mem_free(void *p) { free(p); }

void mem_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

/* --- how much there is --------------------------------------------------------------------------*/
static size_t read_number(const char *path, const char *key, size_t unit)
{
    char   line[256];
    size_t n = SIZE_MAX;
    FILE  *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        unsigned long long v;
        if (!strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), "%llu", &v) == 1) {
            n = v > SIZE_MAX / unit ? SIZE_MAX : (size_t)v * unit;
            break;
        }
    }
    if (f) fclose(f);
    return n;
}

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static size_t rest(size_t limit, size_t used) { return limit == SIZE_MAX ? SIZE_MAX : limit > used ? limit - used : 0; }

/* Returns the bytes that one cgroup leaves. limit, used: names of the files with the limit and the usage. */
static size_t left_in_group(const char *root, const char *mount, const char *group, const char *limit, const char *used)
{
    char   path[1024];
    size_t max, now;
    snprintf(path, sizeof path, "%s%s%s/%s", root, mount, group, limit);
    max = read_number(path, "", 1);
    snprintf(path, sizeof path, "%s%s%s/%s", root, mount, group, used);
    now = read_number(path, "", 1);
    return now == SIZE_MAX ? SIZE_MAX : rest(max, now);
}

/* Returns the minimum over the group and its parents. In a container the path may be the host's, where only the root
 * exists. */
static size_t left_in_groups(const char *root, const char *mount, char *group, const char *limit, const char *used)
{
    size_t left = SIZE_MAX;
    for (;;) {
        left        = min_size(left, left_in_group(root, mount, group, limit, used));
        char *slash = strrchr(group, '/');
        if (!slash) return left;
        *slash = 0;
    }
}

/* Reads a line of /proc/self/cgroup: "0::/path" of version 2, "5:memory:/path" of version 1. */
static size_t left_by_line(const char *root, char *line)
{
    char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
    if (!group) return SIZE_MAX;
    *group++                    = 0;
    group[strcspn(group, "\n")] = 0;
    if (!strcmp(names, ":")) return left_in_groups(root, "/sys/fs/cgroup", group, "memory.max", "memory.current");
    for (char *save, *name = strtok_r(names + 1, ",", &save); name; name = strtok_r(NULL, ",", &save))
        if (!strcmp(name, "memory"))
            return left_in_groups(root, "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes",
                                  "memory.usage_in_bytes");
    return SIZE_MAX;
}

static size_t left_in_cgroup(const char *root)
{
    char   line[1024];
    size_t left = SIZE_MAX;
    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *f = fopen(line, "re");
    while (f && fgets(line, sizeof line, f)) left = min_size(left, left_by_line(root, line));
    if (f) fclose(f);
    return left;
}

/* Returns the address space that ulimit -v leaves. */
static size_t left_by_rlimit(const char *root)
{
    struct rlimit r;
    char          path[1024];
    snprintf(path, sizeof path, "%s/proc/self/status", root);
    size_t used = read_number(path, "VmSize:", 1024);
    if (getrlimit(RLIMIT_AS, &r) != 0 || r.rlim_cur == RLIM_INFINITY || used == SIZE_MAX) return SIZE_MAX;
    return rest((size_t)r.rlim_cur, used);
}

size_t mem_available_under(const char *root)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    size_t left = min_size(read_number(path, "MemAvailable:", 1024), left_in_cgroup(root));
    return min_size(left, left_by_rlimit(root));
}

size_t mem_available(void) { return mem_available_under(""); }
