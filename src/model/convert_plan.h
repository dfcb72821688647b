/* model/convert_plan.h - the plan of a GGUF file: its keys and tensors, before anything is written. For
 * model/convert*.c, and for bench/shape.c, which makes models of random weights. */
#ifndef TANDEM_MODEL_CONVERT_PLAN_H
#define TANDEM_MODEL_CONVERT_PLAN_H
#include "gguf/checkpoint.h"
#include "model/convert.h"
#include "model/dflash_config.h"
#include "model/gemma4_config.h"
#include "model/qwen35_config.h"

typedef struct plan_item plan_item;
struct plan_item {
    tensor src; /* in the directory, or computed (plan_made) */
    tensor out; /* with its name and type in the GGUF file */
    /* Computes the src.bytes bytes of src when it is written (plan_computed). NULL: src.data has them. */
    void (*compute)(const plan_item *x, char *to);
    const void *ctx;
};

typedef struct convert_plan {
    const checkpoint *cp;   /* the directory */
    gguf_writer      *w;    /* collects the keys */
    const char       *arch; /* architecture in the GGUF file; set by the functions that plan a kind of model */
    int               n_layers, n_vocab;
    int               mask_id; /* mask token of a drafter; -1: none */
    arena             mem;     /* names and computed tensors */
    plan_item        *item;    /* [n], in the order of the file */
    size_t            n, cap;
    bool             *used; /* by index in the directory's tensors: it is planned */
} convert_plan;

/* Put a key into p->w under the architecture's name, such as gemma4.block_count. */
void plan_u32(convert_plan *p, const char *key, int v);
void plan_f32(convert_plan *p, const char *key, double v);
void plan_bools(convert_plan *p, const char *key, const bool *v, int n);
/* Puts one number when all values v[p->n_layers] are equal, else a list. */
void plan_u32_per_layer(convert_plan *p, const char *key, const int *v);

/* Plans the directory's tensor `from` under the name `to`. It must exist and have the shape [d0, d1], innermost
 * first. */
bool plan_tensor(convert_plan *p, const char *from, const char *to, int64_t d0, int64_t d1, err *e);
/* Plans the tensor in whatever shape it has, or does nothing when it is missing. */
bool plan_optional(convert_plan *p, const char *from, const char *to, err *e);
/* Plans a tensor of the directory as it is, and marks it as used. */
bool plan_found(convert_plan *p, const tensor *t, const char *to, err *e);
/* Plans a computed tensor of n floats, which are copied; plan_made_2d: of n_out rows of n_in floats. */
bool plan_made(convert_plan *p, const char *to, const float *v, int n, err *e);
bool plan_made_2d(convert_plan *p, const char *to, const float *v, int n_in, int n_out, err *e);
/* Plans a list of n ids. They are borrowed until the file is written. */
bool plan_made_ids(convert_plan *p, const char *to, const int32_t *id, int n, err *e);
/* Plans a tensor of the shape and type of `like` whose numbers `compute` makes when it is written. ctx is borrowed. */
bool plan_computed(convert_plan *p, const tensor *like, const char *to, void (*compute)(const plan_item *x, char *to),
                   const void *ctx, err *e);
bool plan_use(convert_plan *p, const tensor *t); /* marks a tensor of the directory as used; returns true */

/* Plan all keys and tensors of the directory of a kind of model, except its tokenizer. Set p->arch. */
bool plan_gemma4(convert_plan *p, err *e);    /* convert_gemma4.c */
bool plan_assistant(convert_plan *p, err *e); /* convert_gemma4.c */
bool plan_dflash(convert_plan *p, err *e);    /* convert_dflash.c */
bool plan_qwen35(convert_plan *p, err *e);    /* convert_qwen35.c */
/* Put the keys alone. They need only p->w and p->arch. The keys of targets set p->n_layers and p->n_vocab. */
void plan_gemma4_keys(convert_plan *p, const gemma4_config *c);
void plan_qwen35_keys(convert_plan *p, const qwen35_config *c);
void plan_dflash_keys(convert_plan *p, const dflash_config *c);
/* Puts tokenizer.* keys, including the chat template of the directory. json: the path of a tokenizer.json; NULL: the
 * file gets no vocabulary. */
bool plan_tokenizer(convert_plan *p, const char *json, err *e); /* convert_tok.c */
#endif
