#include "figures/measure.h"

#include "base/clock.h"

void measure_begin(measure_loop *m, const measure_plan *plan) { *m = (measure_loop){.plan = *plan}; }

size_t measure_total(const measure_plan *p)
{
    return (size_t)p->n_cells * (size_t)p->n_arms * ((size_t)p->n_turns + (size_t)p->n_warm_up);
}

bool measure_time_over(const measure_plan *p) { return p->end_at > 0 && clock_s() >= p->end_at; }

bool measure_next(measure_loop *m, measure_run *out)
{
    const measure_plan *p = &m->plan;
    if (m->n_begun == measure_total(p) || measure_time_over(p)) return false;
    int turns   = p->n_turns + p->n_warm_up;
    int nth     = (int)(m->n_begun % (size_t)p->n_arms); /* arm of its turn, in order of time */
    int turn_of = (int)(m->n_begun / (size_t)p->n_arms); /* turn among those of all cells */
    int cell    = p->interleave ? turn_of % p->n_cells : turn_of / turns;
    int turn    = p->interleave ? turn_of / p->n_cells : turn_of % turns;
    int shift   = turn + cell + p->n_arms - p->n_warm_up % p->n_arms; /* turn 0 of cell 0 begins with arm 0 */
    m->n_begun++;
    *out = (measure_run){.cell    = cell,
                         .turn    = turn - p->n_warm_up,
                         .arm     = (nth + shift) % p->n_arms,
                         .warm_up = turn < p->n_warm_up,
                         .first   = nth == 0,
                         .last    = nth == p->n_arms - 1};
    return true;
}
