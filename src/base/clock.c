#include "base/clock.h"

int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double clock_thread_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void clock_put_utc(buf *out, const struct timespec *at, int digits)
{
    struct tm utc;
    long      unit = 1;
    gmtime_r(&at->tv_sec, &utc);
    buf_printf(out, "%04d-%02d-%02dT%02d:%02d:%02d", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour,
               utc.tm_min, utc.tm_sec);
    for (int i = digits; i < 9; i++) unit *= 10;
    if (digits) buf_printf(out, ".%0*ld", digits, at->tv_nsec / unit);
    buf_putc(out, 'Z');
}
