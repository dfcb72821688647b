/* base/file.h - maps whole files for reading. Only regular files are opened. The contents are untrusted: check them
 * before use. A file that shrinks while it is mapped ends the process with SIGBUS. */
#ifndef TANDEM_BASE_FILE_H
#define TANDEM_BASE_FILE_H
#include "base/err.h"
#include "base/str.h"

typedef struct {
    const char *p; /* NULL for an empty file */
    size_t      n;
    uint64_t    dev, ino; /* identify the file */
} file_map;

bool file_map_open(file_map *out, const char *path, err *e);
void file_map_close(file_map *m);                             /* m may be zeroed */
void file_map_drop(const file_map *m, size_t from, size_t n); /* releases pages that are not needed soon */
/* Reads mapped bytes into memory, or asks the kernel to. */
void        file_want(const void *p, size_t n);
bool        file_map_is(const file_map *m, const char *path); /* true if path is the mapped file */
const char *file_name(const char *path); /* the part after the last slash that has a part after it */
bool        file_is_dir(const char *path);
bool        file_exists(const char *path);
/* Writes dir + "/" + name to out. Returns false when it does not fit. */
bool file_join(char *out, size_t cap, const char *dir, const char *name);
#endif
