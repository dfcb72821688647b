/* model/gemma4_bind.h - tensors by their role in a Gemma 4, whatever the file calls them: for the models and their assistants. */
#ifndef TANDEM_MODEL_GEMMA4_BIND_H
#define TANDEM_MODEL_GEMMA4_BIND_H
#include "model/bind.h"
#include "model/gemma4_names.h"

typedef struct {
    binder      b;
    const char *hf_prefix; /* NULL for GGUF */
} gemma4_binder;

gemma4_binder gemma4_binder_of(binder b);

const tensor *gemma4_find(const gemma4_binder *g, gemma4_role r, int layer); /* NULL when absent */
bool          gemma4_require(const gemma4_binder *g, gemma4_role r, int layer, const tensor **out, err *e);
bool gemma4_matrix(gemma4_binder *g, weight **out, gemma4_role r, int layer, int n_in, int n_out, int n_mats, err *e);
bool gemma4_vector(gemma4_binder *g, dev *out, gemma4_role r, int layer, int n, err *e);
/* GGUF files may leave it out where it is 1. */
bool gemma4_scalar(const gemma4_binder *g, float *out, gemma4_role r, int layer, err *e);
#endif
