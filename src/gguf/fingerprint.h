/* gguf/fingerprint.h - identifies the bytes of a model or drafter.
 *
 * A fingerprint is a SHA-256. A file of up to 64 MiB is hashed whole; of a larger one its size and 64 pieces of 64 KiB
 * each, so 30 GB take milliseconds. The fingerprint of a checkpoint is one hash over config.json and all files with
 * weights, in the order of checkpoint_files. It begins with "sha256-sampled:" if any file was sampled, else with
 * "sha256:". */
#ifndef TANDEM_GGUF_FINGERPRINT_H
#define TANDEM_GGUF_FINGERPRINT_H
#include "gguf/checkpoint.h"

enum { FINGERPRINT_MAX = 96 };

/* Write the fingerprint as a string. */
void fingerprint_bytes(str bytes, char out[FINGERPRINT_MAX]);
void fingerprint_checkpoint(const checkpoint *cp, char out[FINGERPRINT_MAX]);
#endif
