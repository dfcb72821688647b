/* bench/oracle.h - a drafter that takes all the time that it takes, and guesses as well as it is told to.
 *
 * The oracle knows what the target will say, from texts that were written before. It stands before a real drafter, lets it
 * do its whole work and then changes the guesses: the one for a position is right with a fixed chance, which a hash of (seed,
 * text, position) decides, so a text's coins fall the same way whatever is in a step. Candidates of a tree beside the first are
 * always wrong. Behind the end of a known text, and in an unknown one, guesses stay the drafter's. */
#ifndef TANDEM_BENCH_ORACLE_H
#define TANDEM_BENCH_ORACLE_H
#include "model/drafter.h"

typedef struct oracle oracle;
oracle               *oracle_new(uint64_t seed);
void                  oracle_free(oracle *o); /* NULL is fine; drafters that it stands before are closed */
/* Prompt and answer; copied. */
void oracle_learn(oracle *o, const int32_t *text, size_t n);
/* Tokens that a round with a drafter's longest draft is to commit on average, the target's own included. */
bool oracle_accept(oracle *o, double tokens, err *e); /* refused when no drafter's draft is long enough */
/* As spec_draft_source.wrap: ctx is the oracle. */
drafter *oracle_wrap(void *ctx, drafter *d);
/* The chance p with 1 + p + p^2 + ... + p^n = tokens, tokens from 1 to n + 1. */
double oracle_chance(double tokens, int n);
#endif
