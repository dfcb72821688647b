/* server/files.h - the files of the model and its drafters, with their SHA-256 hashes.
 *
 * Hashing takes as long as loading, so a thread of low priority does it once, after the first request for it. A
 * hash is absent until its file is done.
 *
 * One thread at a time uses a model_files: a worker opens it, then it belongs to the I/O thread. */
#ifndef TANDEM_SERVER_FILES_H
#define TANDEM_SERVER_FILES_H
#include "sched/engine.h"

#include <time.h>

typedef struct {
    time_t modified; /* 0: not known */
    bool   is_dir;
} path_info;
/* Reads the properties of a file or a directory from the disk; all zero if path is NULL or cannot be read. */
path_info files_read_path(const char *path);

typedef struct model_files model_files;
/* Lists the files of n parts. Starts no thread. Copies paths and names, borrows each role until files_close. Never
 * returns NULL: a part without memory for its files is left out, with a warning in the log. */
model_files *files_open(const engine_part *part, int n);
void         files_close(model_files *m);       /* cancels hashing, waits for the thread, frees m; m may be NULL */
void         files_want(model_files *m);        /* starts the hashing thread, unless it was started */
path_info    files_first(const model_files *m); /* properties of part[0].path, read by files_open; m may be NULL */
/* Writes an array of {role, name, bytes, sha256}. sha256 is null until the file is hashed, and stays null if it
 * cannot be read or its size has changed. */
void files_write(const model_files *m, json_writer *w);
#endif
