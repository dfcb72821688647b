/* base/file.h - maps whole files for reading, and handles paths.
 *
 * Only regular files are mapped. The contents are untrusted: check them before use. When a file shrinks while it is
 * mapped, a read beyond its new end raises SIGBUS, which ends the process. Symbolic links are followed. */
#ifndef TANDEM_BASE_FILE_H
#define TANDEM_BASE_FILE_H
#include "base/err.h"
#include "base/str.h"

typedef struct {
    const char *p;        /* NULL for an empty file */
    size_t      n;        /* bytes */
    uint64_t    dev, ino; /* identify the file, as in struct stat */
} file_map;

/* Maps a file and closes its descriptor. On failure *out needs no close. */
bool file_map_open(file_map *out, const char *path, err *e);
void file_map_close(file_map *m); /* unmaps and zeroes *m; m may be zeroed */
/* Releases the memory of the whole pages in [from, from + n) bytes. They stay readable: the kernel reads them again. */
void file_map_drop(const file_map *m, size_t from, size_t n);
/* Reads n mapped bytes into memory and blocks meanwhile. Before Linux 5.14 it only asks the kernel to read them. */
void file_prefetch(const void *p, size_t n);
/* Asks the kernel to read n mapped bytes, and does not wait for them. */
void file_request(const void *p, size_t n);
bool file_map_is(const file_map *m, const char *path); /* true if path is the mapped file; false if it cannot be read */
/* Returns the part of path after the last slash; path itself when that part is empty or there is no slash. */
const char *file_name(const char *path);
bool        file_is_dir(const char *path); /* false also when the path cannot be examined */
bool        file_exists(const char *path); /* any kind of file; false also when the path cannot be examined */
/* Writes dir + "/" + name to out, without the slash when dir ends in one. Returns false, with out cut to cap - 1
 * characters, when it does not fit. */
bool file_join(char *out, size_t cap, const char *dir, const char *name);
#endif
