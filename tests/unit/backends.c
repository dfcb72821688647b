#include "backends.h"

#include <string.h>

int test_backends(test_backend out[TEST_BACKENDS_MAX])
{
    ops_device gpu;
    int        n = 0;
    out[n++]     = (test_backend){"ref", 1};
    out[n++]     = (test_backend){"cpu", 1};
    out[n++]     = (test_backend){"cpu", 3};
    if (ops_device_find(&gpu, "cuda", NULL)) out[n++] = (test_backend){"cuda", 2};
    return n;
}

int test_devices(const char *out[TEST_BACKENDS_MAX])
{
    test_backend b[TEST_BACKENDS_MAX];
    int          n = 0;
    for (int i = 0, all = test_backends(b); i < all; i++)
        if (!i || strcmp(b[i].name, b[i - 1].name)) out[n++] = b[i].name;
    return n;
}
