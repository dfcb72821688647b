#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

static bool map_fd(file_map *out, int fd, const char *path, err *e)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return err_set(e, ERR_IO, "cannot read %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return err_set(e, ERR_INPUT, "%s is a directory, expected a file", path);
    if (!S_ISREG(st.st_mode)) return err_set(e, ERR_INPUT, "%s is not a regular file", path);
    out->dev = st.st_dev;
    out->ino = st.st_ino;
    if (st.st_size == 0) return true;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) return err_set(e, ERR_IO, "cannot map %s: %s", path, strerror(errno));
    out->p = p;
    out->n = (size_t)st.st_size;
    return true;
}

bool file_map_open(file_map *out, const char *path, err *e)
{
    *out   = (file_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a FIFO must not block */
    if (fd < 0)
        return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "cannot open %s: %s", path, strerror(errno));
    bool ok = map_fd(out, fd, path, e);
    close(fd);
    return ok;
}

void file_map_close(file_map *m)
{
    if (m->p) munmap((void *)(uintptr_t)m->p, m->n);
    *m = (file_map){0};
}

void file_map_drop(const file_map *m, size_t from, size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t lo = (from + page - 1) / page * page, hi = (from + n) / page * page;
    if (m->p && lo < hi && hi <= m->n) madvise((void *)(uintptr_t)(m->p + lo), hi - lo, MADV_DONTNEED);
}

static bool advise(const void *p, size_t n, int what)
{
    size_t    page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)p / page * page;
    return madvise((void *)from, (uintptr_t)p + n - from, what) == 0;
}

void file_request(const void *p, size_t n) { advise(p, n, MADV_WILLNEED); }

void file_prefetch(const void *p, size_t n)
{
    if (!advise(p, n, MADV_POPULATE_READ)) file_request(p, n);
}

bool file_map_is(const file_map *m, const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && st.st_dev == m->dev && st.st_ino == m->ino;
}

const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

bool file_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool file_join(char *out, size_t cap, const char *dir, const char *name)
{
    size_t n = strlen(dir);
    int    k = snprintf(out, cap, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
    return k >= 0 && (size_t)k < cap;
}
