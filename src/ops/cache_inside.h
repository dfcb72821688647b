/* ops/cache_inside.h - a part of the K/V types, for their tests. */
#ifndef TANDEM_OPS_CACHE_INSIDE_H
#define TANDEM_OPS_CACHE_INSIDE_H
#include "ops/cache_code.h"

/* Writes the codes of a block of q8_0 or q4_0 that is rotated already, and returns its scale as f16. */
uint16_t cache_encode_block(cache_type t, int8_t code[CACHE_BLOCK], const float *y);
#endif
