/* spec/survival.h - acceptance statistics of draft tokens, by their place in the draft. The policy keeps one record per
 * lane and method. All zeros: an empty record.
 *
 * Not every draft token gets a row of the step (give.c). So there are two questions per depth: does a token get a row,
 * and is it accepted. Both are recorded given that all tokens before it did. */
#ifndef TANDEM_SPEC_SURVIVAL_H
#define TANDEM_SPEC_SURVIVAL_H
#include "model/drafter.h"

typedef struct {
    /* Decayed counts for each depth d, of rounds that drafted token d. tried: all tokens before it were accepted;
     * right: it was accepted, too. open: all before it got rows; given: it got one, too. */
    double right[DRAFT_MAX], tried[DRAFT_MAX];
    double given[DRAFT_MAX], open[DRAFT_MAX];
    double surprise; /* smoothed deviation of the last rounds from the record, in standard deviations */
} survival;

/* Records a round: n draft tokens in a row (the depth of a tree) were made, the first n_given got rows and the first
 * `right` were accepted. right <= n_given <= n, and n is from 1 to DRAFT_MAX. */
void survival_note(survival *s, int n, int n_given, int right);
/* Multiplies all counts by `kept`. */
void survival_forget(survival *s, double kept);
/* Adds the counts of another record, multiplied by `share`. */
void survival_add(survival *s, const survival *other, double share);
/* Returns P(token d is accepted | those before it were), d from 0. Without data it is `before`: the rate of depth
 * d - 1, or SURVIVAL_FIRST for d = 0. */
double survival_rate(const survival *s, int d, double before);
/* Returns P(token d gets a row | those before it did). Without data it is `before`: that of depth d - 1, or 1. */
double survival_share(const survival *s, int d, double before);
/* Sets out[d] to the probability that tokens 0 .. d are all accepted, for d < n. */
void                survival_curve(const survival *s, double *out, int n);
extern const double SURVIVAL_FIRST; /* assumed rate of a first token, with the weight of one observation at most */
#endif
