/* sched/masks.h - how long steps work on the masks of grammars.
 *
 * A costly grammar needs milliseconds for the mask of one token. All masks of a step share one allowance, an eighth of what the
 * model's part of a step takes; a lane whose mask is not done sits out the step, and its work goes on in the next one. Only the
 * time of its tokens changes, never their choice. Where no lane is ready, there is nobody to wait for and the allowance is
 * larger. What was used beyond an allowance is a debt: it is taken from the next ones.
 *
 * Work is granted in steps of the machine and measured as CPU time of the engine's thread. Thread: the engine's. */
#ifndef TANDEM_SCHED_MASKS_H
#define TANDEM_SCHED_MASKS_H
#include "spec/spec.h"

typedef struct {
    double   step_s; /* of the model's part of a step, a moving average */
    double   unit_s; /* of a step of a machine, the same */
    double   debt_s;
    double   spent_s; /* on masks, of the step at hand */
    int64_t  granted; /* for guesses, of the step at hand */
    bool     crowded; /* lanes without a grammar are in the step */
    unsigned turn;    /* whose mask is worked on first */
} mask_budget;

void masks_init(mask_budget *b);
/* Works on the masks of the lanes. ready[i]: the lane can take part in the step. The steps left are granted to its guesses. */
void masks_prepare(mask_budget *b, spec *s, spec_lane *const *lane, int n, bool *ready);
/* The step is over: it took so long, masks_prepare not counted, and the grammars of its lanes worked so many steps. */
void masks_note_step(mask_budget *b, double took_s, int64_t work);
#endif
