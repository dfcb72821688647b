#include "base/bell.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

unsigned bell_read(bell *b) { return atomic_load(&b->rings); }

/* Sequentially consistent: either the ringer sees the sleeper, or the sleeper sees the ring. */
void bell_ring(bell *b)
{
    atomic_fetch_add(&b->rings, 1);
    if (atomic_load(&b->sleepers)) syscall(SYS_futex, &b->rings, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

bool bell_wait(bell *b, unsigned seen, double seconds)
{
    enum { LONGEST = 1 << 30 };
    struct timespec limit = {.tv_sec = seconds < LONGEST ? (time_t)seconds : LONGEST};
    if (seconds < LONGEST) limit.tv_nsec = (long)((seconds - (double)limit.tv_sec) * 1e9);
    bool in_time = true;
    atomic_fetch_add(&b->sleepers, 1);
    if (atomic_load(&b->rings) == seen)
        in_time = syscall(SYS_futex, &b->rings, FUTEX_WAIT_PRIVATE, seen, seconds < 0 ? NULL : &limit, NULL, 0) == 0 ||
                  errno != ETIMEDOUT;
    atomic_fetch_sub(&b->sleepers, 1);
    return in_time;
}
