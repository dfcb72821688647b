/* gguf/maps.h - the mapped files of one model: the parts of a split GGUF, the shards of a directory. */
#ifndef TANDEM_GGUF_MAPS_H
#define TANDEM_GGUF_MAPS_H
#include "base/file.h"

typedef struct {
    file_map map;
    char    *path; /* as given to maps_add */
} mapped_file;

typedef struct {
    mapped_file *file;   /* [n], in the order of maps_add */
    size_t       n, cap; /* files in use, allocated */
    size_t       bytes;  /* bytes of all files */
} maps;                  /* zeroed: empty */

/* Maps a file, appends it and sets *bytes to its content, valid until maps_deinit. Copies path. On failure *m has the
 * same files as before. */
bool maps_add(maps *m, const char *path, str *bytes, err *e);
bool maps_holds(const maps *m, size_t i, const void *p); /* returns whether p points into file i */
/* Removes the whole pages in p[0..n_bytes) from the process's memory, as file_map_drop does. They stay
 * readable. Does nothing if p is in no file. */
void maps_drop(const maps *m, const void *p, size_t n_bytes);
bool maps_has_file(const maps *m, const char *path); /* returns whether path names one of the files */
void maps_deinit(maps *m);                           /* unmaps all files; *m is then empty */
#endif
