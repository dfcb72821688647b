#include "gguf/out_file.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEMP_NAMES = 100, TEMP_SUFFIX = 40 };

static bool cannot_write(const out_file *f, err *e)
{
    return err_set(e, ERR_IO, "cannot write %s: %s", f->path, strerror(errno));
}

/* Refuses to replace a device or a directory. */
static bool check_target(const char *path, err *e)
{
    struct stat st;
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode)) return true;
    return err_set(e, ERR_IO, "cannot write %s: it exists and is not a regular file", path);
}

/* Resolves a symbolic link, so that its target is replaced and the link stays. */
static char *resolve(const char *path)
{
    char *real = realpath(path, NULL), *copy = mem_try(strlen(real ? real : path) + 1);
    if (copy) strcpy(copy, real ? real : path);
    free(real);
    return copy;
}

bool out_file_open(out_file *f, const char *path, err *e)
{
    *f       = (out_file){.fd = -1, .path = resolve(path)};
    size_t n = f->path ? strlen(f->path) + TEMP_SUFFIX : 0;
    f->temp  = f->path ? mem_try(n) : NULL;
    if (!f->temp) return err_set(e, ERR_UNAVAILABLE, "no memory for the name of a file");
    if (!check_target(f->path, e)) return false;
    for (int i = 0; i < TEMP_NAMES && f->fd < 0; i++) {
        snprintf(f->temp, n, "%s.%ld-%d.tmp", f->path, (long)getpid(), i);
        f->fd = open(f->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd < 0 && errno != EEXIST) break;
    }
    if (f->fd >= 0) return true;
    cannot_write(f, e);
    f->temp[0] = 0; /* it was not created here */
    return false;
}

bool out_file_put(out_file *f, const void *p, size_t n, err *e)
{
    const char *at = p;
    while (n) {
        ssize_t k = write(f->fd, at, n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return cannot_write(f, e);
        at += k;
        n -= (size_t)k;
    }
    return true;
}

bool out_file_close(out_file *f, err *e)
{
    int fd = f->fd;
    f->fd  = -1;
    return close(fd) == 0 || cannot_write(f, e);
}

bool out_file_keep(out_file *f, err *e)
{
    assert(f->fd < 0 && f->temp);
    f->kept = rename(f->temp, f->path) == 0;
    return f->kept || cannot_write(f, e);
}

void out_file_discard(out_file *f)
{
    if (f->temp && f->fd >= 0) close(f->fd);
    if (f->temp && f->temp[0] && !f->kept) unlink(f->temp);
    mem_free(f->path);
    mem_free(f->temp);
    *f = (out_file){0};
}
