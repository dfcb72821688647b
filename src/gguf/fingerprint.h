/* gguf/fingerprint.h - identifies the bytes of a model or drafter.
 *
 * "sha256:..." of all bytes up to 64 MiB. For a larger file "sha256-sampled:..." of its size and of 64 KiB in 64 places, so
 * that the fingerprint of 30 GB takes milliseconds. A checkpoint's is that of its config.json and of all files of its
 * weights, in order; that of one in memory is of its bytes. */
#ifndef TANDEM_GGUF_FINGERPRINT_H
#define TANDEM_GGUF_FINGERPRINT_H
#include "gguf/checkpoint.h"

enum { FINGERPRINT_MAX = 96 };

void fingerprint_bytes(str bytes, char out[FINGERPRINT_MAX]);
void fingerprint_checkpoint(const checkpoint *cp, char out[FINGERPRINT_MAX]);
bool fingerprint_path(const char *path, char out[FINGERPRINT_MAX], err *e);
#endif
