/* gguf/ahead.h - reads tensors from the disk ahead of the loader, on its own thread.
 *
 * The list has the tensors in the order in which they are loaded. The thread requests at most AHEAD_BYTES beyond the
 * bytes taken so far, so a file larger than memory can pass through. */
#ifndef TANDEM_GGUF_AHEAD_H
#define TANDEM_GGUF_AHEAD_H
#include "gguf/tensor.h"

enum { AHEAD_BYTES = 64 << 20 };
typedef struct ahead ahead;

/* Starts the thread. Borrows the list until ahead_stop. Returns NULL when no thread can be started: loading is then
 * slower. */
ahead *ahead_start(const tensor *const *list, size_t n);
/* Reports that n_bytes more of the list were loaded. a may be NULL, here and below. */
void ahead_take(ahead *a, size_t n_bytes);
void ahead_stop(ahead *a);
#endif
