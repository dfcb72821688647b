/* server/files.h - the files of the model and its drafters, with their SHA-256 hashes.
 *
 * Hashing takes as long as loading, so a thread of low priority does it once, after the first request for it. Until
 * then the hashes are absent.
 *
 * Thread: one caller. */
#ifndef TANDEM_SERVER_FILES_H
#define TANDEM_SERVER_FILES_H
#include "sched/engine.h"

#include <time.h>

typedef struct {
    time_t modified; /* 0: not known */
    bool   is_dir;
} path_info;
/* Reads the properties of a file or a directory from the disk. */
path_info files_read_path(const char *path);

typedef struct model_files model_files;
/* Lists the files of the parts. */
model_files *files_open(const engine_part *part, int n);
void         files_close(model_files *m);       /* ends the thread; m may be NULL */
void         files_want(model_files *m);        /* starts hashing, once */
bool         files_ready(const model_files *m); /* returns whether all files are hashed */
path_info    files_first(const model_files *m); /* properties of the first part when it was opened; m may be NULL */
/* Writes an array of {role, name, bytes, sha256}; sha256 is null while unknown. */
void files_write(const model_files *m, json_writer *w);
#endif
