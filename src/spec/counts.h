/* spec/counts.h - counters of speculative decoding: one struct, tandem_spec_counts, from the lane to the metrics. */
#ifndef TANDEM_SPEC_COUNTS_H
#define TANDEM_SPEC_COUNTS_H
#include "tandem.h"

/* Adds all counters and times of `more` to `to`. */
void spec_counts_add(tandem_spec_counts *to, const tandem_spec_counts *more);
/* Returns 1 + accepted / rounds, as vLLM counts; 0 when nothing was drafted. */
double spec_acceptance_length(const tandem_spec_counts *c);
/* Returns accepted / drafted, as vLLM counts; 0 when nothing was drafted. */
double spec_acceptance_rate(const tandem_spec_counts *c);
/* Returns the share of accepted draft tokens in all generated tokens; 0 when none was generated. */
double spec_accepted_share(const tandem_spec_counts *c);
/* Returns the generated tokens per round, with and without draft tokens; 0 when there was no round. */
double spec_tokens_per_round(const tandem_spec_counts *c);
#endif
