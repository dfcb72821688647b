/* spec/choice.h - what the choice for one lane and the choice for many share: plans, what they bring, what they cost. */
#ifndef TANDEM_SPEC_CHOICE_H
#define TANDEM_SPEC_CHOICE_H
#include "base/num.h"
#include "spec/policy.h"

enum {
    TRIAL_CHAIN    = 6, /* guesses are enough to see whether a method is any good, */
    TRIAL_TREE     = 8, /* so many rows of a tree */
    MAX_TREE_PLANS = 6,
    /* Steps after which the cost of plain decoding is measured again: where speculation is little faster, and where it is
     * much faster. */
    PLAIN_AGE_NEAR = 64,
    PLAIN_AGE_FAR  = 256,
};
extern const double HOPED_RATE; /* of every guess, to choose the length of a trial */
extern const double BEST_RATE;  /* a method that would lose even so is not tried */

/* Guesses in a row at most; a tree's depth. */
int choice_depth(const policy_lane *l, spec_method m);
/* Budgets that are considered, rising; how many. */
int choice_budgets(const policy_lane *l, int out[MAX_TREE_PLANS]);
/* Tokens that a tree is expected to bring, for each of the budgets. */
void choice_tree_tokens(const policy_lane *l, const int *budget, int n, double *out);
/* 1 + x + x^2 + ... + x^n */
double choice_hoped_tokens(double rate, int n);
/* Trees are made of DFlash's candidates: whether it was seen often enough to judge them by it. */
bool choice_knows_dflash(const policy *p);

/* Cuts the wishes n[0 .. count - 1] so that their sum fits into `room`: nobody gets more than one row above the others unless
 * those have all they want. Rows that are left over go to the first ones. */
void choice_share_rows(int *n, int count, int room);

spec_plan choose_alone(const policy_lane *l, const cost_table *c, const cost_view *v, int fixed_rows, int max_rows);
#endif
