#include "cli/cli.h"

#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

extern const char nano_target[], nano_target_end[], nano_dflash[], nano_dflash_end[], nano_mtp[], nano_mtp_end[];

enum { TARGET, DFLASH, MTP, BLOBS };
static const struct {
    const char *name, *from, *to;
} blobs[BLOBS] = {{"nano", nano_target, nano_target_end},
                  {"nano-dflash", nano_dflash, nano_dflash_end},
                  {"nano-mtp", nano_mtp, nano_mtp_end}};
static char paths[BLOBS][32]; /* once unpacked */

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

/* Makes the bytes available as a file in memory, because all readers take files. */
static bool unpack(int i, const char **path, err *e)
{
    if (!paths[i][0]) {
        int fd = memfd_create("nano", MFD_CLOEXEC);
        if (fd < 0 || !write_all(fd, blobs[i].from, (size_t)(blobs[i].to - blobs[i].from))) {
            err_set(e, ERR_IO, "cannot unpack the model nano: %s", strerror(errno));
            if (fd >= 0) close(fd);
            return false;
        }
        snprintf(paths[i], sizeof paths[i], "/proc/self/fd/%d", fd);
    }
    *path = paths[i];
    return true;
}

bool cli_resolve_model(const char **path, err *e)
{
    return (*path && strcmp(*path, "nano") != 0) || unpack(TARGET, path, e);
}

bool cli_is_nano(const char *path) { return paths[TARGET][0] && strcmp(path, paths[TARGET]) == 0; }

/* Returns NULL if the path is not a part of nano. */
static const char *part_name(const char *path)
{
    for (int i = 0; i < BLOBS; i++)
        if (paths[i][0] && strcmp(path, paths[i]) == 0) return blobs[i].name;
    return NULL;
}

const char *cli_path_name(const char *path) { return part_name(path) ? part_name(path) : path; }
const char *cli_id(const char *path) { return part_name(path) ? part_name(path) : file_name(path); }
const char *cli_shown_path(const char *path) { return part_name(path) ? "nano" : path; }

bool cli_unpack_drafters(const char *out[2], err *e) { return unpack(DFLASH, &out[0], e) && unpack(MTP, &out[1], e); }
