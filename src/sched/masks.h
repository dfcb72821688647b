/* sched/masks.h - the time that a step spends on grammar masks.
 *
 * A costly grammar needs milliseconds for the mask of one token. All masks of a step share one budget, an eighth of the
 * duration of the model's part of a step. A lane whose mask is not complete skips the step, and its work continues in
 * the next one. This changes when tokens appear, never which. When no lane is ready, no lane has to wait and the budget
 * is larger. While lanes without a grammar are running, time over the budget is a debt that is subtracted from the next
 * budgets; above a few budgets of debt, lanes with a grammar skip steps.
 *
 * Work is granted in steps of the grammar machine and measured as CPU time of the engine thread, the only caller. */
#ifndef TANDEM_SCHED_MASKS_H
#define TANDEM_SCHED_MASKS_H
#include "spec/spec.h"

typedef struct {
    double   step_s;     /* duration of the model's part of a step, a moving average */
    double   unit_s;     /* duration of a step of the grammar machine, a moving average */
    double   debt_s;     /* seconds over the budgets so far */
    double   spent_s;    /* seconds spent on masks in the current step */
    int64_t  granted;    /* machine steps for draft tokens in the current step */
    bool     crowded;    /* lanes without a grammar are in the step */
    unsigned first_lane; /* number of steps: lane turn % n is first to compute its mask */
} mask_budget;

void masks_init(mask_budget *b);
/* Computes masks of the n lanes within the budget. Sets ready[i] to whether lane i can take part in the step; lanes
 * without a grammar always can. The remaining machine steps are granted to draft tokens (spec_grant_mask_work). */
void masks_prepare(mask_budget *b, spec *s, spec_lane *const *lane, int n, bool *ready);
/* Records a finished step: its duration without masks_prepare, and the machine steps that its lanes used in that time.
 * */
void masks_note_step(mask_budget *b, double took_s, int64_t work);
#endif
