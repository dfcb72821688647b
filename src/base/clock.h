/* base/clock.h - monotonic time, CPU time, and dates as text. */
#ifndef TANDEM_BASE_CLOCK_H
#define TANDEM_BASE_CLOCK_H
#include "base/buf.h"

#include <stdint.h>
#include <time.h>

/* Return the monotonic time, in ns or s since an unspecified moment: use differences. */
int64_t              clock_ns(void);
static inline double clock_s(void) { return (double)clock_ns() * 1e-9; }
double               clock_thread_s(void); /* returns the CPU time of this thread in seconds */
/* Appends `at`, a time since 1970 in UTC, in the format of RFC 3339: 2026-01-31T23:59:59.123Z. digits: 0 to 9 digits
 * after the point; the rest is cut off. 0 omits the point. */
void clock_put_utc(buf *out, const struct timespec *at, int digits);
#endif
