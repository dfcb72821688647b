/* base/bell.h - one sleeper, any number of ringers; nothing is polled and no ring is lost.
 *
 * The sleeper reads the bell, looks whether there is work, and waits only while nobody has rung since:
 *
 *      unsigned seen = bell_read(b);
 *      if (!work()) bell_wait(b, seen, -1);
 *
 * Ringing a bell that nobody sleeps on is one atomic addition. What was written before a ring is seen after it. */
#ifndef TANDEM_BASE_BELL_H
#define TANDEM_BASE_BELL_H
#include <stdatomic.h>
#include <stdbool.h>

typedef struct {
    atomic_uint rings, sleepers;
} bell; /* zeroed storage is one */

unsigned bell_read(bell *b);
void     bell_ring(bell *b);
/* Until a ring after `seen`, or so many seconds, < 0: for ever. False: time passed. May return early. */
bool bell_wait(bell *b, unsigned seen, double seconds);
#endif
