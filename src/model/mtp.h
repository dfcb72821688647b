/* model/mtp.h - the Gemma 4 assistant: drafts token by token from the target's last hidden state and its K/V. The table
 * of drafter kinds (model/drafter.h) refers to it. */
#ifndef TANDEM_MODEL_MTP_H
#define TANDEM_MODEL_MTP_H
#include "model/drafter.h"

bool mtp_open(drafter **out, target *t, const checkpoint *c, const drafter_options *opt, err *e); /* drafter_open */
bool mtp_fits(const checkpoint *c, const target_shape *t, err *e);                                /* drafter_fits */
#endif
