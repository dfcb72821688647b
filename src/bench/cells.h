/* bench/cells.h - one measurement of the model's steps: so many rows after so much context.
 *
 *      rows 8 512 4       8 lanes, one row each after 512 positions, 4 steps
 *      chain 8 512 4      one lane, 8 rows in a row after 512 positions, as verification has them, 4 steps
 *      prefill 512        one lane, a prompt of 512 tokens; "prefill 512 8192": after 8192 positions
 *
 * The context is not computed: its K/V is filled with numbers of the size that the model's own have, the same every time.
 * Every step comes at the same positions with other tokens, and ends with the best token of each row on the host. */
#ifndef TANDEM_BENCH_CELLS_H
#define TANDEM_BENCH_CELLS_H
#include "base/str.h"
#include "bench/experts.h"
#include "model/model.h"

enum { CELL_MAX_ROWS = 64, CELL_MAX_CONTEXT = 1 << 22, CELL_MAX_STEPS = 1 << 20 };

typedef enum { CELL_ROWS, CELL_CHAIN, CELL_PREFILL } cell_kind;
extern const char *const cell_kinds[];

typedef struct {
    cell_kind kind;
    int       rows; /* of a prefill: its tokens */
    int       context;
    int       steps;
} cell;

bool cell_parse(cell *out, str line, err *e);

typedef struct cell_rig cell_rig;
/* The model stays the caller's. profiled: a table of ops_profile under the model's, cleared before what is timed, or NULL. */
bool cell_rig_new(cell_rig **out, target *m, cache_types kv_type, const ops *profiled, err *e);
void cell_rig_free(cell_rig *g); /* NULL is fine */
/* Makes room for the cell beside those reserved before: false when the machine has not enough. */
bool cell_reserve(cell_rig *g, const cell *c, size_t free_bytes, err *e);
/* Milliseconds of a step, or of the whole prefill, after a step to warm up. The experts, when asked for, are counted in a
 * step of their own; the model's ops are of experts_watch then. The first run after a reservation fills the pages. */
bool   cell_run(cell_rig *g, const cell *c, double *ms, experts_touched *experts, err *e);
double cell_rate(const cell *c, double ms); /* tokens per second */
#endif
