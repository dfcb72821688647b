/* base/bell.h - lets one thread sleep until another one has work for it; no wake-up is lost.
 *
 * The sleeper reads the bell, checks for work, and waits unless the bell was rung in between:
 *
 *      unsigned seen = bell_read(b);
 *      if (!work()) bell_wait(b, seen, -1);
 *
 * Without a sleeper, a ring makes no system call. Writes before a ring are visible after the wait that it ends.
 * Any number of threads may ring and wait. */
#ifndef TANDEM_BASE_BELL_H
#define TANDEM_BASE_BELL_H
#include <stdatomic.h>
#include <stdbool.h>

typedef struct {
    atomic_uint rings, sleepers; /* number of rings, of threads in bell_wait */
} bell;                          /* zeroed storage is valid, and there is nothing to free */

unsigned bell_read(bell *b); /* returns the number of rings, modulo 2^32 */
void     bell_ring(bell *b); /* wakes all sleepers */
/* Blocks until the number of rings differs from `seen`. Returns false when `seconds` have passed; < 0: no timeout.
 * A signal can end the wait early, with true: check for work again. */
bool bell_wait(bell *b, unsigned seen, double seconds);
#endif
