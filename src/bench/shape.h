/* bench/shape.h - models with random weights and the shape of real ones, generated in memory, to measure speed.
 *
 * A shape_image is a whole GGUF file in memory, determined by the seed. It is small: all matrices of a type share one
 * slab of random blocks that is mapped repeatedly. The scales of blocks make every product with a normed vector about
 * 1. The norms after a sublayer make the next token and the experts depend on the whole text: routing is close to
 * uniform, and text does not repeat. Norms and the texts of the vocabulary, which are fillers unless a tokenizer is
 * given, have no other effect on speed. */
#ifndef TANDEM_BENCH_SHAPE_H
#define TANDEM_BENCH_SHAPE_H
#include "base/err.h"
#include "base/str.h"

#include <signal.h>
#include <stdint.h>

typedef struct {
    int         shape;    /* index into shape_names */
    int         n_layers; /* 0: as in the real model */
    int         quant;    /* index into shape_quants: of the matrices whose rows it divides, else Q8_0 or BF16 */
    uint64_t    seed;
    const char *tokenizer; /* a GGUF file, a Hugging Face directory or a tokenizer.json; NULL: fillers */
} shape_spec;
extern const char *const shape_names[], *const shape_quants[]; /* end with NULL */
enum { SHAPE_MAX_LAYERS = 128 };

typedef struct {
    str  bytes;    /* readable until shape_free */
    char name[64]; /* for people: "random 31b, 60 layers, q4_0" */
} shape_image;     /* a zeroed one is empty */

/* Generate a model, or a drafter for it with the published shape: DFlash, or Gemma's assistant (MTP). Overwrite *out;
 * it has no bytes on failure. */
bool shape_target(shape_image *out, const shape_spec *s, err *e);
bool shape_drafter(shape_image *out, const shape_spec *s, err *e);
bool shape_assistant(shape_image *out, const shape_spec *s, err *e);
/* Writes a GGUF file; none is left on failure. stop: as in recode_options. */
bool shape_write(const shape_image *i, const char *path, const volatile sig_atomic_t *stop, err *e);
void shape_free(shape_image *i); /* leaves it empty; accepts an empty one */
#endif
