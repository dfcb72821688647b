/* base/file.h - a whole file mapped for reading. The bytes are foreign: check before use.
 * A file that shrinks while mapped is the user's doing; we open only regular files. */
#ifndef TANDEM_BASE_FILE_H
#define TANDEM_BASE_FILE_H
#include "base/err.h"
#include "base/str.h"

typedef struct {
    const char *p; /* NULL for an empty file */
    size_t      n;
    uint64_t    dev, ino; /* which file it is, whatever its name */
} file_map;

bool file_map_open(file_map *out, const char *path, err *e);
void file_map_close(file_map *m);                             /* a zeroed one is fine */
void file_map_drop(const file_map *m, size_t from, size_t n); /* these pages are not needed soon */
/* Mapped bytes that are needed soon: returns when they were read, or at least asked for. */
void        file_want(const void *p, size_t n);
bool        file_map_is(const file_map *m, const char *path); /* path names the mapped file */
const char *file_name(const char *path);                      /* behind the last slash, where something is */
bool        file_is_dir(const char *path);
bool        file_exists(const char *path);
/* dir + "/" + name into out; false when it does not fit */
bool file_join(char *out, size_t cap, const char *dir, const char *name);
#endif
