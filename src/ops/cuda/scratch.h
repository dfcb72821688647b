/* ops/cuda/scratch.h - the scratch of a queue that grows with its limits. */
#ifndef TANDEM_OPS_CUDA_SCRATCH_H
#define TANDEM_OPS_CUDA_SCRATCH_H
#include "ops/cuda/backend.h"

enum { X_SLOTS = 7 };
typedef struct {
    cuda_x   x[X_SLOTS]; /* the first for pairs: one more row each, of scratch_pair_in; the others [max_rows][max_in] */
    int32_t *order;      /* [rows of x[0]]: pairs by expert */
    cuda_run *run;       /* the runs of these pairs */
    char     *argmax;    /* [max_rows][ARGMAX_SLICES][ARGMAX_BYTES] */
    double   *scores;    /* [PICK_BLOCKS][max_vocab] */
    char     *sample;    /* [SAMPLE_ROWS][SAMPLE_ROW_BYTES] */
    uint32_t *tops;      /* [STAGED_ROWS][layout_panels(max_in)]: largest magnitudes of rows that a gate left */
    char     *sparse;    /* bits and bounds of pages; NULL: attention is dense */
    float    *sum;       /* [max_in]: the outputs of one row's experts, added up */
} scratch;

/* Takes scratch for steps of these limits. has_wide: for cuda_matmul_wide too. On failure nothing is taken. */
bool scratch_take(const backend *b, scratch *s, const queue_limits *l, bool has_wide, err *e);
void scratch_drop(const backend *b, scratch *s); /* frees it and zeroes *s */

/* Return the maximum of pairs of a step; how many places n pairs take at most that are sorted for cuda_matmul_wide; the
 * widest input of which each pair has its own row, or a copy of it. */
size_t scratch_pairs(const queue_limits *l);
size_t scratch_places(size_t n_pairs, size_t n_mats);
int    scratch_pair_in(const queue_limits *l, bool has_wide);
/* Returns the bytes for the choice of pages of sparse attention. */
size_t scratch_sparse_bytes(const queue_limits *l);
#endif
