/* model/dflash.h - the DFlash drafter: a block of draft tokens in one pass, conditioned on hidden states of the
 * target. The table of drafter kinds (model/drafter.h) refers to these functions. */
#ifndef TANDEM_MODEL_DFLASH_H
#define TANDEM_MODEL_DFLASH_H
#include "model/drafter.h"

bool dflash_open(drafter **out, target *t, const checkpoint *c, const drafter_options *opt, err *e); /* drafter_open */
bool dflash_fits(const checkpoint *c, const target_shape *t, err *e);               /* as drafter_fits */
size_t dflash_kv_bytes(target *t, const checkpoint *c, const drafter_options *opt); /* as drafter_kv_bytes */
bool   dflash_describe(drafter_summary *out, const checkpoint *c, err *e);          /* as drafter_kind_info.describe */
#endif
