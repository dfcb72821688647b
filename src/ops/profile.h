/* ops/profile.h - a table of ops that times the ops of another table.
 *
 * It waits for the queue before and after each op. So a time includes one launch and one wait, a step takes longer than
 * usual, and nothing is recorded as a graph or run concurrently. For measurements, not for serving. */
#ifndef TANDEM_OPS_PROFILE_H
#define TANDEM_OPS_PROFILE_H
#include "ops/ops.h"

#include <stdio.h>

/* Returns a new table, never NULL. It owns inner: ops_close of the new table closes both. Weights, buffers and queues
 * must be made with the table that frees them. */
ops *ops_profile(ops *inner);
/* Clears the times. o: from ops_profile. */
void ops_profile_clear(const ops *o);
/* Prints a line per op and shape, the longest time first: calls, milliseconds, microseconds per call, share of all, and
 * for matmuls, embeddings and copies the megabytes read per call, their rate in GB/s and its share of `roof`, the rate
 * of the memory in bytes per second (0: not known, no such column). For experts these are upper bounds: as if no two
 * rows shared one. After 512 different lines, further ones are added up as "other". o: from ops_profile. */
void ops_profile_print(const ops *o, double roof, FILE *to);
#endif
