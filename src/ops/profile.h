/* ops/profile.h - a table of ops that times another one's, op by op.
 *
 * Before and after each op it waits for the queue, so a number is an op's own time plus the price of one launch and one
 * wait, and a step takes longer than it does otherwise; nothing is recorded as a graph. For measuring, not for serving. */
#ifndef TANDEM_OPS_PROFILE_H
#define TANDEM_OPS_PROFILE_H
#include "ops/ops.h"

#include <stdio.h>

ops *ops_profile(ops *inner); /* takes it over: closing the new one closes both */
/* Of a table that ops_profile gave. */
void ops_profile_clear(const ops *o);
/* A line per op and shape, the longest time first: calls, seconds, share, and for matmuls the rate at which weights were
 * read (of experts at most: as if no two rows shared one). */
void ops_profile_print(const ops *o, FILE *to);
#endif
