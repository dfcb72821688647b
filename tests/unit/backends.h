/* tests/unit/backends.h - the backends that are here, ref first: what a test of ops or models runs on. */
#ifndef TANDEM_TEST_BACKENDS_H
#define TANDEM_TEST_BACKENDS_H
#include "ops/ops.h"

enum { TEST_BACKENDS_MAX = 4 };
typedef struct {
    const char *name; /* as ops_open takes it */
    int         n_threads;
} test_backend;
int test_backends(test_backend out[TEST_BACKENDS_MAX]); /* returns how many */
int test_devices(const char *out[TEST_BACKENDS_MAX]);   /* the same, each name once */
#endif
