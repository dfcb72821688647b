/* base/clock.h - monotonic time; it never goes back and does not know the date. */
#ifndef TANDEM_BASE_CLOCK_H
#define TANDEM_BASE_CLOCK_H
#include <stdint.h>

int64_t              clock_ns(void);
static inline double clock_s(void) { return (double)clock_ns() * 1e-9; }
double               clock_thread_s(void); /* CPU time of this thread */
#endif
