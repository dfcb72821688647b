/* base/clock.h - monotonic time, CPU time, and dates as text. */
#ifndef TANDEM_BASE_CLOCK_H
#define TANDEM_BASE_CLOCK_H
#include "base/buf.h"

#include <stdint.h>
#include <time.h>

int64_t              clock_ns(void);
static inline double clock_s(void) { return (double)clock_ns() * 1e-9; }
double               clock_thread_s(void); /* CPU time of this thread */
/* Appends a date in the format of RFC 3339, 2026-01-31T23:59:59.123Z, with `digits` (0 to 9) after the point. */
void clock_put_utc(buf *out, const struct timespec *at, int digits);
#endif
