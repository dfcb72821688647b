/* bench/cells.h - a measurement of the model's steps with a number of rows after a context.
 *
 *      rows 8 512 4       8 lanes, one row each after 512 positions, 4 steps
 *      chain 8 512 4      one lane, 8 rows in a row after 512 positions, as verification has them, 4 steps
 *      tree 32 8192 4     the same as a tree: half of the rows are a chain, and each of the others is a branch of it
 *      prefill 512        one lane, a prompt of 512 tokens; "prefill 512 8192": after 8192 positions
 *
 * The context is not computed: its K/V is filled with fixed random numbers of realistic size. Every step is at the same
 * positions with other tokens, and ends with the best token of each row on the host. With recurrent layers each step
 * is one position after the one before and includes the commit of one row of each lane. */
#ifndef TANDEM_BENCH_CELLS_H
#define TANDEM_BENCH_CELLS_H
#include "base/str.h"
#include "bench/experts.h"
#include "kv/lane.h"
#include "model/model.h"

enum { CELL_MAX_ROWS = 64, CELL_MAX_CONTEXT = 1 << 22, CELL_MAX_STEPS = 1 << 20 };

typedef enum { CELL_ROWS, CELL_CHAIN, CELL_TREE, CELL_PREFILL } cell_kind; /* the four lines above */
extern const char *const cell_kinds[];                                     /* their names, by cell_kind */

typedef struct {
    cell_kind kind;
    int       rows;    /* for a prefill, its tokens */
    int       context; /* positions before the rows */
    int       steps;   /* 1 for a prefill */
} cell;

/* Parses one of the lines above. ERR_INPUT names the wrong word; *out is unchanged then. */
bool cell_parse(cell *out, str line, err *e);

#define OPT_CPU_TIME(to)                                                                                               \
    {                                                                                                                  \
        .name = "cpu-time", .kind = OPT_FLAG, .dest = &(to),                                                           \
        .help =                                                                                                        \
            "measure the CPU time of the process, for a busy machine; with --threads 1, because threads that wait "    \
            "for others spin"                                                                                          \
    }

typedef struct cell_rig cell_rig;
/* Creates a rig. The model is borrowed. profiled: an ops_profile table below the model's, cleared before each timed
 * run, or NULL. After a failure, too, free *out with cell_rig_free. */
bool cell_rig_new(cell_rig **out, target *m, const kv_types *kv, const ops *profiled, err *e);
void cell_rig_free(cell_rig *g); /* accepts NULL */
/* Plans memory for the cell in addition to earlier ones; cell_run allocates it. ERR_INPUT: the cell exceeds the model's
 * context; ERR_UNAVAILABLE: free_bytes, the free memory of the device, is not enough. */
bool cell_reserve(cell_rig *g, const cell *c, size_t free_bytes, err *e);
/* Measures the CPU time of the process from now on instead of elapsed time. */
void cell_rig_use_cpu_time(cell_rig *g);
/* Sets *ms to the milliseconds of a step, or of the whole prefill, measured after a warm-up step. experts, unless NULL,
 * are counted in a separate step; the model's ops must then be those of experts_watch. The cell must be reserved; the
 * first run after a reservation allocates the pages. Pages are filled before the clock starts. */
bool   cell_run(cell_rig *g, const cell *c, double *ms, experts_touched *experts, err *e);
double cell_rate(const cell *c, double ms); /* tokens per second, of all rows */
#endif
