/* model/gemma4.h - the Gemma 4 text decoder: dense, mixture of experts, per-layer embeddings. */
#ifndef TANDEM_MODEL_GEMMA4_H
#define TANDEM_MODEL_GEMMA4_H
#include "model/family.h"

bool gemma4_open(target **out, const checkpoint *c, const model_options *opt, ops *o, err *e); /* model_family.open */
/* Checks that the configuration is valid and that all tensors are there, in the right shapes. */
bool gemma4_check(const checkpoint *c, err *e);
bool gemma4_describe(model_summary *out, const checkpoint *c, const kv_types *types,
                     err *e); /* model_family.describe */
#endif
