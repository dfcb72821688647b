/* base/bell.h - lets one thread sleep until another one has work for it; no wake-up is lost.
 *
 * The sleeper reads the bell, checks for work, and waits unless the bell was rung in between:
 *
 *      unsigned seen = bell_read(b);
 *      if (!work()) bell_wait(b, seen, -1);
 *
 * Without a sleeper, a ring is one atomic addition. Writes before a ring are visible after the wait it ends. */
#ifndef TANDEM_BASE_BELL_H
#define TANDEM_BASE_BELL_H
#include <stdatomic.h>
#include <stdbool.h>

typedef struct {
    atomic_uint rings, sleepers;
} bell; /* zero-initialized storage is valid */

unsigned bell_read(bell *b);
void     bell_ring(bell *b);
/* Blocks until a ring after `seen`. Returns false after `seconds`; < 0: no timeout. May return early. */
bool bell_wait(bell *b, unsigned seen, double seconds);
#endif
