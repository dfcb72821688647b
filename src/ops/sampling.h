/* ops/sampling.h - how a token is picked (promise 2). The same bytes on every machine and backend.
 *
 * Order, for ever: temperature, top-k, top-p, min-p, noise, argmax, ties to the lower id. (Bias, penalties and the
 * grammar mask act on the logits before this.) The noise is Gumbel noise, a function of (seed, position, token), so
 * argmax of logit / temp + noise is a draw from the softmax, and it does not depend on how the position was reached. */
#ifndef TANDEM_OPS_SAMPLING_H
#define TANDEM_OPS_SAMPLING_H
#include "ops/ops.h"

/* Natural logarithm of a positive normal double and e^x, from IEEE additions, multiplications and divisions
 * alone: no libm, so that no library version changes a text. Relative error below 1e-14. */
double sampling_log(double x);
double sampling_exp(double x);
double sampling_noise(uint64_t seed, int32_t pos, int32_t token);

typedef struct {
    double  z; /* logit / temp; with the noise added, the score */
    int32_t id;
} sampling_candidate;

/* scratch: at least n_vocab entries. Logits that are not finite are never picked; -1 when none is. */
int32_t sampling_pick(const float *logits, int n_vocab, const sample_params *p, sampling_candidate *scratch);
/* The n_top best scores, of which the first is sampling_pick's; shares as in ops.h. */
void sampling_top(const float *logits, int n_vocab, const sample_params *p, int n_top, float soft, token_logprob *out,
                  sampling_candidate *scratch);
/* How many of the best logits decide sampling_pick; 0: all, or more than SAMPLE_TOP_MAX. */
int sampling_needs(const sample_params *p);
/* sampling_pick from a ranked list of at least so many of the best, or of all that are finite; -1 ends it early. */
int32_t sampling_pick_best(const token_logit *best, int n, const sample_params *p);
/* Puts a logit in its place of a ranked list of n, which keeps at most `most`; returns how many it has then. */
int sampling_rank(token_logit *best, int n, int most, int32_t id, float logit);
/* The log-probability of `id`, then of the n_top likeliest; shares are summed exactly, so in any order. */
void sampling_logprobs(const float *logits, int n_vocab, int32_t id, int n_top, token_logprob *out,
                       sampling_candidate *scratch);
/* Bias and penalties; the old logits are kept in the items. */
void sampling_change(float *logits, int n_vocab, logit_change *c, int n);
void sampling_restore(float *logits, int n_vocab, const logit_change *c, int n);
/* What a grammar does not allow can no longer be picked. */
void     sampling_mask(float *logits, int n_vocab, const uint64_t *mask);
int32_t  sampling_argmax(const float *logits, int n_vocab);
uint64_t sampling_choice_seed(uint64_t seed, int choice); /* choice i of n; choice 0 is the seed itself */
#endif
