/* bench/experts.h - how many experts the rows of a step are sent to.
 *
 * A mixture of experts reads from memory the experts that a step touches, so its speed is that of the routing too. A
 * table of ops with one op of its own, the router, looks on; while it counts, it waits for every layer and nothing is
 * recorded as a graph. One table at a time. */
#ifndef TANDEM_BENCH_EXPERTS_H
#define TANDEM_BENCH_EXPERTS_H
#include "ops/ops.h"

typedef struct {
    int    n_experts;
    int    n_layers;    /* calls of the router, one a layer; 0: there is none */
    double distinct;    /* experts touched, the mean of the layers */
    int    least, most; /* of a layer */
    double uniform;     /* what it would be if every row drew its experts at random */
} experts_touched;

ops            *experts_watch(ops *inner); /* takes it over: closing the new one closes both */
void            experts_count_begin(void);
experts_touched experts_count_end(void);
/* Of n_experts, by rows that each draw n_slots different ones. */
double experts_uniform(int n_experts, int n_slots, int n_rows);
int    experts_distinct(const int32_t *id, int n, int n_experts);
#endif
