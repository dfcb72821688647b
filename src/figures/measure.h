/* figures/measure.h - orders the runs of a measurement, for `tandem bench`, `tandem loadtest` and POST /api/bench.
 *
 * A measurement compares arms, such as methods or servers. A turn runs every arm once. The first arm moves on by one
 * with each turn and cell, so that disturbances affect all arms alike. The values of one turn belong together:
 * stats_ratio compares arms turn by turn. A measurement may have several cells, such as numbers of users.
 *
 *      2 cells of 3 arms a, b, c, 2 turns:   abc bca | bca cab     cell by cell
 *                                            abc | bca | bca | cab  interleaved
 *
 *      measure_loop m;
 *      measure_run  at;
 *      for (measure_begin(&m, &plan); measure_next(&m, &at);) ... run at.arm of at.cell ...
 */
#ifndef TANDEM_FIGURES_MEASURE_H
#define TANDEM_FIGURES_MEASURE_H
#include <stdbool.h>
#include <stddef.h>

typedef struct {
    int    n_cells, n_arms; /* at least 1 each */
    int    n_turns;         /* for each cell */
    int    n_warm_up;       /* turns of each cell before these, whose values are not used; they have negative numbers */
    bool   interleave;      /* run turn 0 of all cells, then turn 1; default: all turns of a cell, then the next cell */
    double end_at;          /* clock_s when measure_next stops; 0: no limit */
} measure_plan;

typedef struct {
    int  cell, turn, arm; /* numbers from 0; a warm-up turn has a negative one */
    bool warm_up;         /* turn < 0 */
    bool first, last;     /* the first or last arm of the turn */
} measure_run;

typedef struct {
    measure_plan plan;
    size_t       n_begun; /* runs that measure_next returned */
} measure_loop;

void measure_begin(measure_loop *m, const measure_plan *plan); /* copies *plan; nothing to free */
/* Sets *out to the next run. Returns false, with *out unchanged, after the last one or when end_at has passed. */
bool   measure_next(measure_loop *m, measure_run *out);
size_t measure_total(const measure_plan *plan);     /* the number of all runs, with warm-up */
bool   measure_time_over(const measure_plan *plan); /* end_at is set and has passed */
#endif
