/* model/mtp.h - the Gemma 4 assistant: drafts token by token from the target's last hidden state and its K/V. The table
 * of drafter kinds (model/drafter.h) refers to it. */
#ifndef TANDEM_MODEL_MTP_H
#define TANDEM_MODEL_MTP_H
#include "model/drafter.h"

/* Keys of a GGUF file for the centroid head. */
#define MTP_CENTROIDS_KEY "tandem.ordered_head.centroids" /* [centroids][width], f32, or u16: the bits of bf16 */
#define MTP_ORDER_KEY     "tandem.ordered_head.tokens"    /* i32: the tokens by centroid */
#define MTP_CHOSEN_KEY    "tandem.ordered_head.chosen"    /* centroids that a pass uses */

bool mtp_open(drafter **out, target *t, const checkpoint *c, const drafter_options *opt, err *e); /* drafter_open */
bool mtp_fits(const checkpoint *c, const target_shape *t, err *e);                                /* drafter_fits */
#endif
