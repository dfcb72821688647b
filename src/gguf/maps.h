/* gguf/maps.h - the mapped files of one model: the parts of a split GGUF, the shards of a directory. */
#ifndef TANDEM_GGUF_MAPS_H
#define TANDEM_GGUF_MAPS_H
#include "base/file.h"

typedef struct {
    file_map map;
    char    *path;
} mapped_file;

typedef struct {
    mapped_file *file;
    size_t       n, cap;
    size_t       bytes; /* bytes of all files */
} maps;                 /* zeroed: empty */

/* Maps a file and sets *bytes to its content. */
bool maps_add(maps *m, const char *path, str *bytes, err *e);
bool maps_holds(const maps *m, size_t i, const void *p);      /* returns whether p points into file i */
void maps_drop(const maps *m, const void *p, size_t n_bytes); /* drops pages; ignores other memory */
bool maps_has_file(const maps *m, const char *path);          /* returns whether path names one of the files */
void maps_deinit(maps *m);
#endif
