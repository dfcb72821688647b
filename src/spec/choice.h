/* spec/choice.h - functions of the policy that choose.c and the step share: expected tokens, rows. Private to spec. */
#ifndef TANDEM_SPEC_CHOICE_H
#define TANDEM_SPEC_CHOICE_H
#include "base/num.h"
#include "spec/policy.h"

/* Sets out[d] to the acceptance rate of a tree at depth d < n, given that all before were accepted, at the budgets of
 * its record. DFlash's record gives the expectation; the tree's own record, if long enough, corrects it. */
void policy_tree_rates(const policy *p, double *out, int n);
/* Returns the expected tokens of a round with a tree of this budget and depth. rate: from policy_tree_rates. */
double policy_tree_tokens(const policy *p, const double *rate, int budget, int depth);
/* Returns whether the record of DFlash has enough rounds to predict trees, which are built from its candidates. */
bool policy_knows_dflash(const policy *p);

/* Reduces n[0 .. count - 1] so that their sum is at most `room`: all get equal shares, or what they asked for if that
 * is less. Remaining rows go to the first ones. */
void choice_share_rows(int *n, int count, int room);

/* Sets steps[base .. max_rows] to seconds of steps by their rows, without the cost of prompts, base = fixed_rows +
 * n_lanes: prompt chunks of fixed_rows run in any case. Their cost is not a cost of drafting and must not make drafts
 * look cheap in comparison; they only move the point on the curve at which rows are added.
 *
 * One row among many costs less than the noise of a measurement, so it may look free, and a row that looks free would
 * always be used. Therefore a row costs at least a quarter of the average cost per row, around this point or up to the
 * maximum number of rows, whichever is less. measured: seconds by rows, up to COST_MAX_ROWS. */
void choice_row_costs(double *steps, const double *measured, int fixed_rows, int n_lanes, int max_rows);
#endif
