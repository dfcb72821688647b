/* bench/shape.h - models of random weights that have the shape of real ones, made in memory: speed without weights.
 *
 * A shape_image is a whole GGUF file in memory, deterministic from the seed, and small: the bytes of all matrices of a type
 * are one slab of random blocks that is mapped again and again, so only what the engine makes of it takes room. Blocks have
 * scales such that every product of a normed vector is about 1, norms behind a sublayer are such that the next token and the
 * experts hang on the whole text and not on the last token: routing is close to uniform, text does not repeat itself.
 * Norms have no other effect on speed, nor have the vocabulary's texts, which are fillers. */
#ifndef TANDEM_BENCH_SHAPE_H
#define TANDEM_BENCH_SHAPE_H
#include "base/err.h"
#include "base/str.h"

#include <stdint.h>

typedef struct {
    int      shape;    /* index into shape_names */
    int      n_layers; /* 0: as many as the real one */
    int      quant;    /* index into shape_quants: of the matrices whose rows it divides, else Q8_0 or BF16 */
    uint64_t seed;
} shape_spec;
extern const char *const shape_names[], *const shape_quants[];
enum { SHAPE_MAX_LAYERS = 128 };

typedef struct {
    str  bytes; /* readable until shape_free */
    char name[64];
} shape_image; /* a zeroed one is empty */

bool shape_target(shape_image *out, const shape_spec *s, err *e);
/* A DFlash drafter for it, of the published one's shape. */
bool shape_drafter(shape_image *out, const shape_spec *s, err *e);
bool shape_write(const shape_image *i, const char *path, err *e);
void shape_free(shape_image *i);
#endif
