/* ops/sampling.h - how a token is picked (promise 2). The same logits give the same bits on every machine and backend.
 * Logits are host memory, [n_vocab] for one row. Functions that take scratch use n_vocab entries of it.
 *
 * The order is fixed: temperature, top-k, top-p, min-p, noise, argmax, ties to the lower id. (Bias, penalties and the
 * grammar mask change the logits before this.) The noise is Gumbel noise, a function of (seed, position, token), so
 * argmax of logit / temp + noise is a draw from the softmax, and it does not depend on how the position was reached. */
#ifndef TANDEM_OPS_SAMPLING_H
#define TANDEM_OPS_SAMPLING_H
#include "ops/ops.h"

typedef struct {
    double  z; /* logit / temp; with the noise added, the score */
    int32_t id;
} sampling_candidate;

/* Returns the picked token. Never picks a logit that is not finite; returns -1 when none is. */
int32_t sampling_pick(const float *logits, int n_vocab, const sample_params *p, sampling_candidate *scratch);
/* Writes the n_top tokens with the best scores, the first of which sampling_pick would return, and their
 * log-probabilities, as ops.sample_top does. */
void sampling_top(const float *logits, int n_vocab, const sample_params *p, int n_top, float soft, token_logprob *out,
                  sampling_candidate *scratch);
/* Returns how many of the best logits decide sampling_pick, at most SAMPLE_TOP_MAX; 0: all, or more. */
int sampling_needs(const sample_params *p);
/* Picks as sampling_pick does, from a ranked list of at least the sampling_needs best logits, or of all finite ones if
 * there are fewer. sampling_needs must not be 0. An id of -1 ends the list early. */
int32_t sampling_pick_best(const token_logit *best, int n, const sample_params *p);
/* Inserts a logit into a ranked list of n, which keeps the best `max`, ties to the lower id. Ignores a logit that is
 * not finite. Returns the new length. */
int sampling_rank(token_logit *best, int n, int max, int32_t id, float logit);
/* Writes the log-probability of `id` to out[0], then the n_top likeliest tokens and theirs. Probabilities are summed as
 * integers, so the order of the sum does not matter. */
void sampling_logprobs(const float *logits, int n_vocab, int32_t id, int n_top, token_logprob *out,
                       sampling_candidate *scratch);
/* Apply bias and penalties to logits [rows][n_vocab], and undo them. The items keep the old logits. */
void sampling_change(float *logits, int n_vocab, logit_change *c, int n);
void sampling_restore(float *logits, int n_vocab, const logit_change *c, int n);
/* Sets the logits of tokens outside the mask to -infinity. */
void     sampling_mask(float *logits, int n_vocab, const uint64_t *mask);
int32_t  sampling_argmax(const float *logits, int n_vocab); /* ties to the lower id; -1: none is finite */
uint64_t sampling_choice_seed(uint64_t seed, int choice); /* seed of response `choice` to one prompt; 0: seed itself */
#endif
