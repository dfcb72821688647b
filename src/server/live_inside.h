/* server/live_inside.h - the samples for the rates of GET /api/stats, for live.c and its tests. */
#ifndef TANDEM_SERVER_LIVE_INSIDE_H
#define TANDEM_SERVER_LIVE_INSIDE_H
#include "server/live.h"

/* Adds a sample. now: clock_s. */
void live_note(live_stats *l, double now, const tandem_stats *s);
/* Computes the difference between the last sample and one about window_s older, or the oldest. *seconds: the time
 * between them; 0: there are less than two samples. */
void live_since(const live_stats *l, double window_s, live_sample *out, double *seconds);
#endif
