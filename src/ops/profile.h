/* ops/profile.h - a table of ops that times the ops of another table.
 *
 * It waits for the queue before and after each op. So a time includes one launch and one wait, a step takes longer than
 * usual, and nothing is recorded as a graph. For measurements, not for serving. */
#ifndef TANDEM_OPS_PROFILE_H
#define TANDEM_OPS_PROFILE_H
#include "ops/ops.h"

#include <stdio.h>

ops *ops_profile(ops *inner); /* owns inner: closing the new table closes both */
/* Clears the times. o: from ops_profile. */
void ops_profile_clear(const ops *o);
/* Prints a line per op and shape, the longest time first: calls, seconds, share, and for matmuls the rate of reading
 * weights. For experts the rate is an upper bound: as if no two rows shared one. */
void ops_profile_print(const ops *o, FILE *to);
#endif
