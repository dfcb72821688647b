/* spec/choice.h - functions shared by the policy's choice for one lane (policy.c) and for many (joint.c): plans,
 * expected tokens, rows. Private to spec. */
#ifndef TANDEM_SPEC_CHOICE_H
#define TANDEM_SPEC_CHOICE_H
#include "base/num.h"
#include "spec/policy.h"

enum {
    TRIAL_CHAIN    = 6, /* maximum draft tokens of a trial */
    TRIAL_TREE     = 8, /* maximum rows of a tree in a trial */
    MAX_TREE_PLANS = 6,
    /* Steps after which the cost of plain decoding is measured again: where speculation is little faster, and where
     * it is much faster. */
    PLAIN_AGE_NEAR = 64,
    PLAIN_AGE_FAR  = 256,
};
extern const double HOPED_RATE; /* acceptance rate that is assumed to choose the length of a trial */
extern const double BEST_RATE;  /* a method that loses even at this acceptance rate is not tried */

/* Returns the maximum number of draft tokens in a row, or the depth of a tree; 0: the lane cannot use the method. */
int choice_depth(const policy_lane *l, spec_method m);
/* Fills out with the tree budgets to consider, ascending, and returns their number; 0: the lane cannot use trees. */
int choice_budgets(const policy_lane *l, int out[MAX_TREE_PLANS]);
/* Sets out[i] to the expected tokens of a round with a tree of budget[i]. The n budgets ascend. */
void choice_tree_tokens(const policy_lane *l, const int *budget, int n, double *out);
/* Returns 1 + rate + rate^2 + ... + rate^n. */
double choice_hoped_tokens(double rate, int n);
/* Returns whether the record of DFlash has enough rounds to predict trees, which are built from its candidates. */
bool choice_knows_dflash(const policy *p);

/* Reduces n[0 .. count - 1] so that their sum is at most `room`: all get equal shares, or what they asked for if that
 * is less. Remaining rows go to the first ones. */
void choice_share_rows(int *n, int count, int room);

/* Returns the plan of a lane that is alone in the step with fixed_rows rows of prompts: a trial if one is due, or else
 * the best plan. v: the costs at the lane's context length. max_rows: limit of all rows of the step. */
spec_plan choose_alone(const policy_lane *l, const cost_table *c, const cost_view *v, int fixed_rows, int max_rows);
#endif
