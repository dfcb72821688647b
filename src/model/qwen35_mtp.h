/* model/qwen35_mtp.h - the MTP head of a Qwen 3.5 checkpoint: one layer after the last that drafts token by token. */
#ifndef TANDEM_MODEL_QWEN35_MTP_H
#define TANDEM_MODEL_QWEN35_MTP_H
#include "model/drafter.h"

/* Returns whether the checkpoint is a Qwen 3.5 model with an MTP head. */
bool   qwen35_has_mtp(const checkpoint *c);
size_t qwen35_mtp_bytes(const checkpoint *c); /* the bytes of the head's tensors */
/* As members of drafter_kind_info. */
bool   qwen35_mtp_open(drafter **out, target *t, const checkpoint *c, const drafter_options *opt, err *e);
bool   qwen35_mtp_fits(const checkpoint *c, const target_shape *t, err *e);
size_t qwen35_mtp_kv_bytes(target *t, const checkpoint *c, const drafter_options *opt);
#endif
