/* gguf/fingerprint.h - identifies the bytes of a model or drafter.
 *
 * A fingerprint is "sha256:" and a SHA-256 in hexadecimal. A file of up to 64 MiB is hashed whole. A larger file is
 * sampled: its size and 64 evenly spaced pieces of 64 KiB are hashed, so 30 GB take milliseconds. The fingerprint of a
 * checkpoint is one hash over config.json (of a directory) and all files with weights, in the order of
 * checkpoint_files. If any file was sampled, the prefix is "sha256-sampled:". */
#ifndef TANDEM_GGUF_FINGERPRINT_H
#define TANDEM_GGUF_FINGERPRINT_H
#include "gguf/checkpoint.h"

enum { FINGERPRINT_MAX = 96, FINGERPRINT_STAMP_MAX = 128 }; /* bytes, with the NUL at the end */

/* Writes the fingerprint as a string. */
void fingerprint_checkpoint(const checkpoint *cp, char out[FINGERPRINT_MAX]);
/* Writes the fingerprint of the checkpoint and, if files were sampled, a hash of their times of modification: a change
 * between the samples is noticed on the same machine. */
void fingerprint_stamp(const checkpoint *cp, const char *fingerprint, char out[FINGERPRINT_STAMP_MAX]);
#endif
