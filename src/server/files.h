/* server/files.h - which bytes a server runs on: the SHA-256 of every file of its model and drafters, as `sha256sum` gives it.
 *
 * Reading them takes as long as loading did, so it is done once, when somebody first asks, by a thread of its own at low
 * priority; until it is through the hashes are absent.
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
void         files_close(model_files *m); /* NULL is fine; ends the thread */
void         files_want(model_files *m);  /* the hashes, soon */
bool         files_ready(const model_files *m);
path_info    files_first(const model_files *m); /* properties of the first source when it was opened; m may be NULL */
void         files_write(const model_files *m,
                         json_writer       *w); /* an array of {role, name, bytes, sha256}; sha256 may be null */
#endif
