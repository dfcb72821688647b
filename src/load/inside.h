/* load/inside.h - functions of load that only tests call from other files. */
#ifndef TANDEM_LOAD_INSIDE_H
#define TANDEM_LOAD_INSIDE_H
#include "load/report.h"

/* Reads the prompts of a file in memory, which must outlive p. */
bool load_prompts_parse(load_prompts *p, str text, err *e);
/* Returns the mean number of tokens per round: accepted draft tokens plus one. NaN: unknown. */
double load_acceptance_length(const load_tally *t);
double load_acceptance_rate(const load_tally *t); /* accepted draft tokens / draft tokens; NaN: unknown */
/* Returns the median, with interval, of the ratios a / b of the pairs; NaN without pairs. */
interval load_ratio_of(const load_tally *a, const load_tally *b, load_ratio which);
#endif
