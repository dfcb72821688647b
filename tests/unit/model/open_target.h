/* tests/unit/model/open_target.h - opens a model and a K/V pool for it: the beginning of most tests of models. */
#ifndef TANDEM_TEST_OPEN_TARGET_H
#define TANDEM_TEST_OPEN_TARGET_H
#include "kv/pages.h"
#include "model/model.h"
#include "test.h"

/* The size of a pool. */
typedef struct {
    int max_lanes, max_slots;
    int max_kept_rows; /* of models with recurrent layers; 0: none */
    int full_lanes;    /* there is memory for so many lanes of max_slots; 0: for max_lanes */
} test_pool;

/* Open the model at `path` (a GGUF file or a directory), and a pool of its page classes. A failure is a failed check. */
bool test_open_target(test_case *t, target **out, const char *path, const model_options *opt);
bool test_open_pool(test_case *t, kv_pool **out, target *m, const test_pool *size);
#endif
