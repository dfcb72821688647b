/* gguf/out_file.h - a file that appears whole or not at all.
 *
 * The bytes go to a temporary name in the target's directory, which is renamed at the end: open, put, close, keep,
 * discard. A caller that writes several files closes all of them before it keeps any. Nothing is synced to the disk.
 * After any failure, and at the end, call out_file_discard. */
#ifndef TANDEM_GGUF_OUT_FILE_H
#define TANDEM_GGUF_OUT_FILE_H
#include "base/err.h"

#include <stddef.h>

typedef struct {
    int   fd;          /* -1: not open */
    char *path, *temp; /* owned: the target with links resolved, the temporary name */
    bool  kept;        /* out_file_keep succeeded */
} out_file;            /* zeroed: empty; out_file_discard may be called */

/* Creates the temporary file. If path is a symbolic link, the file that it names is replaced later. Fails when path
 * exists and is not a regular file. */
bool out_file_open(out_file *f, const char *path, err *e);
bool out_file_put(out_file *f, const void *p, size_t n, err *e); /* appends n bytes */
bool out_file_close(out_file *f, err *e);                        /* closes the temporary file */
bool out_file_keep(out_file *f, err *e); /* renames the closed file to path; replaces an old file */
void out_file_discard(out_file *f);      /* closes the file, removes it unless it was kept, and frees the members */
#endif
