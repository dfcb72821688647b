/* server/files_inside.h - the end of hashing, for tests. */
#ifndef TANDEM_SERVER_FILES_INSIDE_H
#define TANDEM_SERVER_FILES_INSIDE_H
#include "server/files.h"

/* Returns whether every file is hashed or could not be read. */
bool files_ready(const model_files *m);
#endif
