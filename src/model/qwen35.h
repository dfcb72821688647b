/* model/qwen35.h - the Qwen 3.5 text decoder: gated delta nets and full attention, dense or mixture of experts. */
#ifndef TANDEM_MODEL_QWEN35_H
#define TANDEM_MODEL_QWEN35_H
#include "model/family.h"

/* As model_family: open takes over o, also on failure. */
bool qwen35_open(target **out, const checkpoint *c, const model_options *opt, ops *o, err *e);
bool qwen35_describe(model_summary *out, const checkpoint *c, const kv_types *types, err *e);
#endif
