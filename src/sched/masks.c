#include "sched/masks.h"

#include "base/clock.h"

#include <math.h>

#define SHARE       0.125 /* share of the model's part of a step */
#define ALONE_S     2e-3  /* budget when no lane is ready: the inbox is checked after it */
#define MIN_S       20e-6 /* minimum slice of a lane */
#define MAX_DEBTS   4     /* budgets of debt from which lanes with a grammar skip steps */
#define FIRST_STEP  1e-3
#define FIRST_UNIT  10e-9
#define ENOUGH_WORK 1000  /* steps that are worth measuring */
#define MUCH_WORK   20000 /* that count as much as all before them */

void masks_init(mask_budget *b) { *b = (mask_budget){.step_s = FIRST_STEP, .unit_s = FIRST_UNIT}; }

static void move_average(double *average, double x, double part) { *average += part * (x - *average); }

/* Works on one lane's mask for a slice; returns the seconds that it took. */
static double work_on(mask_budget *b, spec_lane *l, double slice_s, bool *ready)
{
    int64_t granted = (int64_t)(slice_s / b->unit_s) + 1, left = granted;
    double  before = clock_thread_s();
    *ready         = spec_lane_prepare(l, &left);
    double took    = clock_thread_s() - before;
    double used    = (double)(granted - left);
    if (used >= ENOUGH_WORK) move_average(&b->unit_s, took / used, used / (used + MUCH_WORK));
    return took;
}

/* Finds the masks that are there already. Returns how many are not; *n_free: lanes without a grammar. */
static int find_ready(spec_lane *const *lane, int n, bool *ready, int *n_ready, int *n_free)
{
    *n_ready = *n_free = 0;
    for (int i = 0; i < n; i++) {
        int64_t none = 0;
        ready[i]     = spec_lane_prepare(lane[i], &none);
        *n_ready += ready[i];
        *n_free += !spec_lane_is_guided(lane[i]);
    }
    return n - *n_ready;
}

static void sit_out(spec_lane *const *lane, int n, bool *ready)
{
    for (int i = 0; i < n; i++) ready[i] &= !spec_lane_is_guided(lane[i]);
}

void masks_prepare(mask_budget *b, spec *s, spec_lane *const *lane, int n, bool *ready)
{
    int    n_ready, n_free, waiting = find_ready(lane, n, ready, &n_ready, &n_free);
    double allowance = SHARE * b->step_s;
    b->spent_s       = 0;
    b->crowded       = n_free > 0;
    if (!b->crowded) b->debt_s = 0;
    double left = allowance - b->debt_s;
    if (!n_ready) left = fmax(left, ALONE_S);
    unsigned first = b->first_lane++;
    for (int k = 0; k < n && waiting && left > 0; k++) {
        int i = (int)((first + (unsigned)k) % (unsigned)n);
        if (ready[i]) continue;
        double took = work_on(b, lane[i], fmax(left / waiting--, MIN_S), &ready[i]);
        left -= took;
        b->spent_s += took;
    }
    if (b->crowded && b->debt_s > MAX_DEBTS * allowance) sit_out(lane, n, ready);
    b->granted = left > 0 ? (int64_t)(left / b->unit_s) : 0;
    spec_grant_mask_work(s, b->granted);
}

void masks_note_step(mask_budget *b, double took_s, int64_t work)
{
    double in_step = (double)work * b->unit_s;
    move_average(&b->step_s, fmax(took_s - in_step, 0), 0.1);
    b->spent_s += in_step;
    b->debt_s = fmax(0, b->debt_s + b->spent_s - SHARE * b->step_s);
}
