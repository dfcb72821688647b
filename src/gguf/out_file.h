/* gguf/out_file.h - a file that appears whole or not at all.
 *
 * The bytes go to a temporary name in the target's directory, which is renamed at the end. A caller that writes several
 * files closes all of them before it keeps any. */
#ifndef TANDEM_GGUF_OUT_FILE_H
#define TANDEM_GGUF_OUT_FILE_H
#include "base/err.h"

#include <stddef.h>

typedef struct {
    int   fd; /* -1: not open */
    char *path, *temp;
    bool  kept;
} out_file; /* zeroed: empty */

bool out_file_open(out_file *f, const char *path, err *e);
bool out_file_put(out_file *f, const void *p, size_t n, err *e);
bool out_file_close(out_file *f, err *e); /* flushes; fails when not all bytes were written */
bool out_file_keep(out_file *f, err *e);  /* renames it to path; replaces an old file */
void out_file_discard(out_file *f);       /* frees f and removes its temporary file, if any */
#endif
