/* ops/sampling.h - how a token is picked (promise 2). The same bytes on every machine and backend.
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

/* Returns the picked token. Never picks a logit that is not finite; returns -1 when none is. scratch: n_vocab
 * entries. */
int32_t sampling_pick(const float *logits, int n_vocab, const sample_params *p, sampling_candidate *scratch);
/* Finds the n_top best scores, the first of which is sampling_pick's. Shares are those of ops.sample_top. */
void sampling_top(const float *logits, int n_vocab, const sample_params *p, int n_top, float soft, token_logprob *out,
                  sampling_candidate *scratch);
/* Returns how many of the best logits decide sampling_pick; 0: all, or more than SAMPLE_TOP_MAX. */
int sampling_needs(const sample_params *p);
/* Picks as sampling_pick does, from a ranked list of the sampling_needs best logits or of all finite ones. An id of
 * -1 ends the list early. */
int32_t sampling_pick_best(const token_logit *best, int n, const sample_params *p);
/* Inserts a logit into a ranked list of n, which keeps at most `max`. Returns the new length. */
int sampling_rank(token_logit *best, int n, int max, int32_t id, float logit);
/* Computes the log-probability of `id`, then of the n_top likeliest tokens. Shares are integers, so their sum has no
 * order. */
void sampling_logprobs(const float *logits, int n_vocab, int32_t id, int n_top, token_logprob *out,
                       sampling_candidate *scratch);
/* Apply bias and penalties, and undo them. The items keep the old logits. */
void sampling_change(float *logits, int n_vocab, logit_change *c, int n);
void sampling_restore(float *logits, int n_vocab, const logit_change *c, int n);
/* Sets the logits of tokens outside the mask to -infinity. */
void     sampling_mask(float *logits, int n_vocab, const uint64_t *mask);
int32_t  sampling_argmax(const float *logits, int n_vocab);
uint64_t sampling_choice_seed(uint64_t seed, int choice); /* choice i of n; choice 0 is the seed itself */
#endif
