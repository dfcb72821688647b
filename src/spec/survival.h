/* spec/survival.h - acceptance statistics of draft tokens, by their place in the draft. The policy keeps one record per
 * lane and method. All zeros: an empty record. */
#ifndef TANDEM_SPEC_SURVIVAL_H
#define TANDEM_SPEC_SURVIVAL_H
#include "model/drafter.h"

typedef struct {
    /* Decayed counts for each depth d. tried: token d was verified after all before it were accepted; right: it was
     * accepted. */
    double right[DRAFT_MAX], tried[DRAFT_MAX];
    double surprise; /* smoothed deviation of the last rounds from the record, in standard deviations */
} survival;

/* Records a round: n draft tokens in a row (the depth of a tree) were verified, the first `right` were accepted. n is
 * from 1 to DRAFT_MAX. */
void survival_note(survival *s, int n, int right);
/* Multiplies all counts by `kept`. */
void survival_forget(survival *s, double kept);
/* Returns P(token d is accepted | those before it were), d from 0. Without data it is `before`: the rate of depth
 * d - 1, or SURVIVAL_FIRST for d = 0. */
double survival_rate(const survival *s, int d, double before);
/* Sets out[d] to the probability that tokens 0 .. d are all accepted, for d < n. */
void                survival_curve(const survival *s, double *out, int n);
extern const double SURVIVAL_FIRST; /* assumed rate of a first token, with the weight of one observation at most */
#endif
