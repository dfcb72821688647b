/* bench/experts.h - counts the experts that the rows of a step use.
 *
 * The speed of a mixture of experts depends on the number of experts that a step reads. A table of ops with its own
 * router op counts them. While it counts, it waits for every layer, and no graph is recorded. Only one such table may
 * exist at a time. */
#ifndef TANDEM_BENCH_EXPERTS_H
#define TANDEM_BENCH_EXPERTS_H
#include "ops/ops.h"

typedef struct {
    int    n_experts;
    int    n_layers; /* calls of the router, one per layer; 0: none */
    double distinct; /* experts used, mean of the layers */
    int    min, max; /* minimum and maximum of a layer */
    double uniform;  /* the expected value for random routing */
} experts_touched;

ops            *experts_watch(ops *inner); /* takes ownership of inner */
void            experts_count_begin(void);
experts_touched experts_count_end(void);
/* Returns the expected number of distinct experts of n_experts when each row draws n_slots at random. */
double experts_uniform(int n_experts, int n_slots, int n_rows);
int    experts_distinct(const int32_t *id, int n, int n_experts);
#endif
