/* model/convert_plan.h - what goes into the new file, while it is being decided: for model/convert*.c, and for models
 * that are made up. */
#ifndef TANDEM_MODEL_CONVERT_PLAN_H
#define TANDEM_MODEL_CONVERT_PLAN_H
#include "gguf/checkpoint.h"
#include "model/convert.h"
#include "model/dflash_config.h"
#include "model/gemma4_config.h"

typedef struct {
    tensor src; /* in the directory, or made here */
    tensor out; /* GGUF's name, the type it gets */
} plan_item;

typedef struct convert_plan {
    const checkpoint *cp;
    gguf_writer      *w;
    const char       *arch; /* GGUF's */
    int               n_layers, n_vocab;
    int               mask_id; /* of a drafter's blocks; -1: none */
    arena             mem;
    plan_item        *item;
    size_t            n, cap;
    bool             *used; /* of the directory's tensors */
} convert_plan;

/* gemma4.block_count and such: a key under the architecture's name. */
void plan_u32(convert_plan *p, const char *key, int v);
void plan_f32(convert_plan *p, const char *key, double v);
void plan_bools(convert_plan *p, const char *key, const bool *v, int n);
/* One number when all are the same, else a list. */
void plan_u32_per_layer(convert_plan *p, const char *key, const int *v);

/* The directory's tensor `from` as `to`; d0 > 0: it must have the shape [d0, d1]. */
bool plan_tensor(convert_plan *p, const char *from, const char *to, int64_t d0, int64_t d1, err *e);
/* The same where it may be missing; then nothing happens. */
bool plan_optional(convert_plan *p, const char *from, const char *to, err *e);
/* A tensor of n floats that the directory does not have. */
bool plan_made(convert_plan *p, const char *to, const float *v, int n, err *e);

/* Keys and tensors of each kind. */
bool plan_gemma4(convert_plan *p, err *e);    /* convert_gemma4.c */
bool plan_assistant(convert_plan *p, err *e); /* convert_gemma4.c */
bool plan_dflash(convert_plan *p, err *e);    /* convert_dflash.c */
/* The keys alone: of p only w and arch are looked at. */
void plan_gemma4_keys(convert_plan *p, const gemma4_config *c);
void plan_dflash_keys(convert_plan *p, const dflash_config *c);
/* tokenizer.*; json: the path of a tokenizer.json, NULL when there is none. */
bool plan_tokenizer(convert_plan *p, const char *json, err *e); /* convert_tok.c */
#endif
