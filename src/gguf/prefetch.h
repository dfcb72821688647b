/* gguf/prefetch.h - reads the mapped data of tensors from the disk ahead of the loader, on its own thread.
 *
 * The list has the tensors in the order in which they are loaded. The thread stays about PREFETCH_BYTES ahead of the
 * bytes loaded so far, so that a file larger than memory can be loaded. */
#ifndef TANDEM_GGUF_PREFETCH_H
#define TANDEM_GGUF_PREFETCH_H
#include "gguf/tensor.h"

enum { PREFETCH_BYTES = 64 << 20 };
typedef struct prefetcher prefetcher;

/* Starts the thread. Borrows the list, the tensors and their data until prefetch_stop. Returns NULL when no thread
 * can be started: loading is then slower. */
prefetcher *prefetch_start(const tensor *const *list, size_t n);
/* Reports that n_bytes more of the list were loaded. a may be NULL, here and below. */
void prefetch_advance(prefetcher *a, size_t n_bytes);
void prefetch_stop(prefetcher *a); /* ends and joins the thread, and frees a */
#endif
