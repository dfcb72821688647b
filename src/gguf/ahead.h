/* gguf/ahead.h - reads tensors from the disk ahead of the one who loads them, on a thread of its own.
 *
 * The tensors come in the order in which they will be loaded. At most AHEAD_BYTES are asked for beyond what was taken, so
 * that a file larger than the memory passes through it. */
#ifndef TANDEM_GGUF_AHEAD_H
#define TANDEM_GGUF_AHEAD_H
#include "gguf/tensor.h"

enum { AHEAD_BYTES = 64 << 20 };
typedef struct ahead ahead;

/* The list is borrowed until ahead_stop. NULL when there is no thread to be had: loading is slower then, and right. */
ahead *ahead_start(const tensor *const *list, size_t n);
/* So many more bytes of the list are done with. NULL is fine, here and below. */
void ahead_take(ahead *a, size_t n_bytes);
void ahead_stop(ahead *a);
#endif
