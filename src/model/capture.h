/* model/capture.h - for targets: the residual streams that drafters read as features (target->capture). */
#ifndef TANDEM_MODEL_CAPTURE_H
#define TANDEM_MODEL_CAPTURE_H
#include "model/model.h"

enum { CAPTURE_MAX = 257 }; /* layers of a target, and the stream after the last */

typedef struct {
    int      id[CAPTURE_MAX];
    uint64_t key; /* hash of the ids and of the features' address, for graph_key */
} captures;       /* zeroed: none */

/* Selects the features of t, as target->capture. Frees those selected before. */
bool captures_select(captures *c, target *t, const int *ids, int n_ids, err *e);
void captures_free(target *t);
/* Copies n rows of the residual stream x before layer h, if it was selected. */
void captures_copy(const captures *c, const target *t, dev x, int h, int n);
#endif
