/* gguf/fingerprint.h - identifies the bytes of a model or drafter.
 *
 * Up to 64 MiB it is "sha256:..." over all bytes. For a larger file it is "sha256-sampled:..." over the size and 64
 * KiB in 64 places, so the fingerprint of 30 GB takes milliseconds. The fingerprint of a checkpoint covers
 * config.json and all files with weights, in order. */
#ifndef TANDEM_GGUF_FINGERPRINT_H
#define TANDEM_GGUF_FINGERPRINT_H
#include "gguf/checkpoint.h"

enum { FINGERPRINT_MAX = 96 };

/* Write the fingerprint. */
void fingerprint_bytes(str bytes, char out[FINGERPRINT_MAX]);
void fingerprint_checkpoint(const checkpoint *cp, char out[FINGERPRINT_MAX]);
#endif
