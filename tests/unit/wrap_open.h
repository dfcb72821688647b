/* tests/unit/wrap_open.h - counts how often files are opened. */
#ifndef TANDEM_TEST_WRAP_OPEN_H
#define TANDEM_TEST_WRAP_OPEN_H

typedef struct {
    const char *path;
    int         n; /* calls of open with this path */
} opened_file;
/* Counts the opens of these files from now on, on all threads; NULL ends it. */
void wrap_open_count(opened_file *files, int n);
#endif
