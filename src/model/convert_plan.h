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
    const char       *arch; /* the GGUF name */
    int               n_layers, n_vocab;
    int               mask_id; /* mask token of a drafter; -1: none */
    arena             mem;
    plan_item        *item;
    size_t            n, cap;
    bool             *used; /* by index in the directory's tensors */
} convert_plan;

/* Put a key under the architecture's name, such as gemma4.block_count. */
void plan_u32(convert_plan *p, const char *key, int v);
void plan_f32(convert_plan *p, const char *key, double v);
void plan_bools(convert_plan *p, const char *key, const bool *v, int n);
/* Puts one number when all layers have the same, else a list. */
void plan_u32_per_layer(convert_plan *p, const char *key, const int *v);

/* Puts the directory's tensor `from` as `to`. d0 > 0: it must have the shape [d0, d1]. */
bool plan_tensor(convert_plan *p, const char *from, const char *to, int64_t d0, int64_t d1, err *e);
/* Does the same, or nothing when the tensor is missing. */
bool plan_optional(convert_plan *p, const char *from, const char *to, err *e);
/* Puts a computed tensor of n floats. */
bool plan_made(convert_plan *p, const char *to, const float *v, int n, err *e);

/* Put all keys and tensors of a kind of model. */
bool plan_gemma4(convert_plan *p, err *e);    /* convert_gemma4.c */
bool plan_assistant(convert_plan *p, err *e); /* convert_gemma4.c */
bool plan_dflash(convert_plan *p, err *e);    /* convert_dflash.c */
/* Put the keys alone. They use only p->w and p->arch. */
void plan_gemma4_keys(convert_plan *p, const gemma4_config *c);
void plan_dflash_keys(convert_plan *p, const dflash_config *c);
/* Puts tokenizer.* keys. json: the path of a tokenizer.json; NULL: none. */
bool plan_tokenizer(convert_plan *p, const char *json, err *e); /* convert_tok.c */
#endif
