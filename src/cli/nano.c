#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

extern const char nano_target[], nano_target_end[];

static bool write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

/* Files are what all readers take, so the bytes become one: in memory, gone with the process. */
static bool as_file(const char *from, const char *to, char *path, size_t cap, err *e)
{
    int fd = memfd_create("nano", MFD_CLOEXEC);
    if (fd < 0 || !write_all(fd, from, (size_t)(to - from)))
        return err_set(e, ERR_IO, "cannot unpack the model nano: %s", strerror(errno));
    snprintf(path, cap, "/proc/self/fd/%d", fd);
    return true;
}

bool cli_resolve_model(const char **path, err *e)
{
    static char nano_path[64];
    if (*path && strcmp(*path, "nano") != 0) return true;
    if (!nano_path[0] && !as_file(nano_target, nano_target_end, nano_path, sizeof nano_path, e)) return false;
    *path = nano_path;
    return true;
}
