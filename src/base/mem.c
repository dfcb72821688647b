#include "base/mem.h"

#include "base/fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

size_t mem_available(void)
{
    size_t free_here = read_number("/proc/meminfo", "MemAvailable:", 1024);
    size_t limit     = read_number("/sys/fs/cgroup/memory.max", "", 1),
           used      = read_number("/sys/fs/cgroup/memory.current", "", 1);
    size_t left      = limit == SIZE_MAX || used == SIZE_MAX ? SIZE_MAX : limit > used ? limit - used : 0;
    return left < free_here ? left : free_here;
}
