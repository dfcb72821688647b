/* Linked into the unit tests with --wrap: counts how often the files of a list are opened. */
#include "wrap_open.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static opened_file    *counted; /* NULL: nothing is counted */
static int             n_counted;

void wrap_open_count(opened_file *files, int n)
{
    pthread_mutex_lock(&lock);
    counted   = files;
    n_counted = n;
    pthread_mutex_unlock(&lock);
}

int __wrap_open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    pthread_mutex_lock(&lock);
    for (int i = 0; counted && i < n_counted; i++) counted[i].n += !strcmp(path, counted[i].path);
    pthread_mutex_unlock(&lock);
    return __real_open(path, flags, mode);
}
