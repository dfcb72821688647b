/* model/gemma4.h - the Gemma 4 text decoder: dense, mixture of experts, per-layer embeddings. */
#ifndef TANDEM_MODEL_GEMMA4_H
#define TANDEM_MODEL_GEMMA4_H
#include "model/family.h"

/* Fills in all of `target` but stop_id and defaults. */
bool gemma4_open(target **out, const checkpoint *c, const model_options *opt, ops *o, err *e);
/* Whether all its tensors are there, in the right shapes. */
bool gemma4_check(const checkpoint *c, err *e);
bool gemma4_describe(model_summary *out, const checkpoint *c, err *e);
#endif
