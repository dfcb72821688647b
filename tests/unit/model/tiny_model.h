/* tests/unit/model/tiny_model.h - small Gemma 4 models with random weights, as GGUF files, for tests. */
#ifndef TANDEM_TEST_TINY_MODEL_H
#define TANDEM_TEST_TINY_MODEL_H
#include "gguf/build_gguf.h"

typedef struct {
    quant_type type;     /* of all matrices */
    int        n_embd;   /* a multiple of the type's block, as are the widths that follow from it */
    int        n_layers; /* every third is full, and the last */
    int        n_vocab;
    int        n_experts;     /* 0: dense; 2 are used */
    int        n_ple;         /* 0: none; else the last two layers share K/V */
    bool       split_experts; /* gate and up as two tensors */
    uint64_t   seed;
} tiny_model;

/* Fills a builder with the model's keys and tensors: heads of n_embd/4 (full: n_embd/2), window 24. */
void tiny_model_build(gguf_builder *b, const tiny_model *m);
/* ... and writes it; the path as test_tmp_file. */
const char *tiny_model_write(const tiny_model *m, const char *name);
#endif
