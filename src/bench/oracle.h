/* bench/oracle.h - simulated acceptance: a real drafter's time with a chosen acceptance rate.
 *
 * The oracle knows the target's text from earlier runs. It wraps a real drafter, lets it do its whole work and then
 * replaces the draft tokens: each is correct with a fixed probability, decided by a hash of (seed, text, position), so
 * the result does not depend on other rows. Its confidence is drawn the same way; of the tokens with a confidence of c,
 * a share of c is correct. Candidates of a tree other than the first are always wrong. After the end
 * of a known text, and in an unknown one, the drafter's own tokens are used. */
#ifndef TANDEM_BENCH_ORACLE_H
#define TANDEM_BENCH_ORACLE_H
#include "model/drafter.h"

typedef struct oracle oracle;
oracle               *oracle_new(uint64_t seed); /* never NULL; at first no draft token is correct */
void                  oracle_free(oracle *o);    /* o may be NULL; the wrapped drafters must be closed */
/* Adds a known text, prompt and response, unless a known one begins with it. Copies them. */
void oracle_learn(oracle *o, const int32_t *text, size_t n);
/* Sets the mean number of tokens that a round with the drafter's longest draft commits, including the target's own.
 * Fails if no wrapped drafter makes drafts that long. */
bool oracle_accept(oracle *o, double tokens, err *e);
/* Wraps d, for spec_draft_source.wrap: ctx is the oracle. The result owns d and borrows the oracle. */
drafter *oracle_wrap(void *ctx, drafter *d);
#endif
