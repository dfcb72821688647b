/* store/results.h - texts with a time, the newest last, in a SQLite file: the results of benchmarks.
 *
 * The file is DIR/results.db with mode 0600; several processes may use it. Without a directory, the texts live in
 * memory. At most RESULTS_MAX are kept. Thread: one at a time. Failures of SQLite: ERR_IO. */
#ifndef TANDEM_STORE_RESULTS_H
#define TANDEM_STORE_RESULTS_H
#include "base/err.h"
#include "base/str.h"

#include <stdint.h>

enum { RESULTS_MAX = 100 };

typedef struct results results;
/* Opens or makes the file. dir NULL: memory. The directory is made if its parent exists. *out is NULL on failure. */
bool results_open(results **out, const char *dir, err *e);
void results_close(results *h); /* accepts NULL */
/* Adds a text, and removes the oldest over RESULTS_MAX. ts: seconds since 1970. */
bool results_add(results *h, int64_t ts, str text, err *e);
/* Calls fn with the texts, the newest first, until it returns false. The text is valid during the call. */
bool results_each(results *h, bool (*fn)(void *ctx, int64_t ts, str text), void *ctx, err *e);
#endif
