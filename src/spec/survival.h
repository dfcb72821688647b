/* spec/survival.h - how often guesses were right, by their place in the draft. */
#ifndef TANDEM_SPEC_SURVIVAL_H
#define TANDEM_SPEC_SURVIVAL_H
#include "model/drafter.h"

typedef struct {
    double right[DRAFT_MAX], tried[DRAFT_MAX]; /* decayed counts: guess d right, given that those before it were */
    double surprise; /* smoothed, in standard deviations: by how much the last rounds were better than the record */
} survival;

/* n guesses in a row (the depth of a tree) were judged, the first `right` of them were right. */
void survival_note(survival *s, int n, int right);
/* Counts shrink to this share. */
void survival_forget(survival *s, double kept);
/* P(guess d is right | those before it were), d from 0. What was not seen is taken to be as `before`, the depth above. */
double survival_rate(const survival *s, int d, double before);
/* out[d]: the chance that guesses 0 .. d are all right. */
void survival_curve(const survival *s, double *out, int n);
/* P(the first d guesses are all right), d >= 1. */
double              survival_at(const survival *s, int d);
extern const double SURVIVAL_FIRST; /* assumed of a first guess, with the weight of one that was seen */
#endif
