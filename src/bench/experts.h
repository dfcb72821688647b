/* bench/experts.h - counts the experts that the rows of a step use.
 *
 * The speed of a mixture of experts depends on the number of experts that a step reads. A table of ops with its own
 * router and experts ops counts them. While it counts, it waits for every layer, and no graph is recorded or replayed.
 * Only one such table may exist at a time, because the counts are global. */
#ifndef TANDEM_BENCH_EXPERTS_H
#define TANDEM_BENCH_EXPERTS_H
#include "ops/ops.h"

typedef struct {
    int    n_experts;
    int    n_layers; /* layers counted, of all steps; 0: none, or more than 16384 experts or (row, expert) pairs */
    double distinct; /* experts used, mean of the layers */
    int    min, max; /* minimum and maximum of a layer */
    double uniform;  /* the expected value for random routing */
} experts_touched;

ops            *experts_watch(ops *inner); /* returns the table; its close closes inner */
void            experts_count_begin(void); /* clears the counts and starts counting */
experts_touched experts_count_end(void);   /* stops counting */
#endif
