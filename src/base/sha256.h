/* base/sha256.h - SHA-256 (FIPS 180-4), with the same output as `sha256sum`. */
#ifndef TANDEM_BASE_SHA256_H
#define TANDEM_BASE_SHA256_H
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t h[8];      /* state after the complete blocks */
    uint64_t n;         /* bytes so far */
    uint8_t  block[64]; /* incomplete block */
} sha256;               /* nothing to free */

void sha256_init(sha256 *s);
void sha256_put(sha256 *s, const void *p, size_t n); /* hashes n more bytes */
/* Finishes the hash and writes 64 lowercase hexadecimal digits and a NUL. Call sha256_init before s is used again. */
void sha256_hex(sha256 *s, char out[65]);
#endif
