/* ops/cache_code.h - K/V vectors in their stored form: the definition that every backend follows bit for bit.
 *
 * A type with scales stores R x instead of x. R is a fixed orthogonal matrix that spreads outlier channels over their
 * group: signs, a Walsh-Hadamard transform, a factor. Scores q.k do not change when q is rotated too. An output that is
 * made of rotated values is rotated back once per row.
 *
 * The plane of a head holds the codes of positions 0 .. KV_PAGE - 1, then their f16 scales in the same order:
 *
 *      q8_0   32 values share a scale; a code is a signed byte
 *      q4_0   32 values share a scale; byte j of 16 holds value j in its low nibble and value j + 16 in its high one
 *      tq3    a group (64 or 128 values) shares a scale; 32 codes of 3 bits are three 32-bit words (cache_code.c)
 *
 * All arithmetic is f32, one rounding per operation, in the order written. Inputs are finite. */
#ifndef TANDEM_OPS_CACHE_CODE_H
#define TANDEM_OPS_CACHE_CODE_H
#include "ops/cache_type.h"

enum { CACHE_GROUP = 128, CACHE_BLOCK = 32 };
/* Returns the number of channels that R mixes: 64 in heads of 64, else CACHE_GROUP. */
static inline int cache_group(int head_dim) { return head_dim == 64 ? 64 : CACHE_GROUP; }

/* Channel i of a group is negated when bit i % 64 of word i / 64 is set. The words are two outputs of splitmix64. */
#define CACHE_SIGNS                                                                                                    \
    {                                                                                                                  \
        0x90f2ad539c6b6130u, 0xc41d6d01b2aaa655u                                                                       \
    }
extern const uint64_t cache_signs[2];
/* The levels of tq3, in units of scale / 64: Lloyd-Max levels of a normal distribution, as integers. X is applied to
 * each. */
#define CACHE_TQ3_LEVELS(X)                                                                                            \
    {                                                                                                                  \
        X(-127), X(-79), X(-45), X(-14), X(14), X(45), X(79), X(127)                                                   \
    }
/* 1 / sqrt(group), rounded to f32. */
#define CACHE_FACTOR_64  0.125f
#define CACHE_FACTOR_128 0x1.6a09e6p-4f
/* Multiply a head by R, and by its inverse, in place. head_dim: 64 or a multiple of 128. */
void cache_rotate(float *x, int head_dim);
void cache_unrotate(float *x, int head_dim);

/* Returns the f16 nearest to v, at most 65504 in magnitude. */
uint16_t cache_clamped_f16(float v);

/* Stores one head of one position. plane: of this head in its page; at: the position in the page. x is not rotated
 * yet. */
void cache_encode(cache_type t, void *plane, int at, const float *x, int head_dim);
/* Reads a stored head as attention sees it: rotated, for a type with scales. */
void cache_decode(cache_type t, const void *plane, int at, float *y, int head_dim);
/* Copies one position between planes of the same type. */
void cache_copy(cache_type t, void *to, int to_at, const void *from, int from_at, int head_dim);

#endif
