/* load/random.h - reproducible random numbers: the same ones for the same seed on every machine. */
#ifndef TANDEM_LOAD_RANDOM_H
#define TANDEM_LOAD_RANDOM_H
#include <math.h>
#include <stdint.h>

/* Returns the next number of the sequence (SplitMix64). *state starts as any seed and is advanced. */
static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z          = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z          = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Returns the seconds to the next arrival of a Poisson process with `rate` > 0 arrivals per second. */
static inline double random_wait(uint64_t *state, double rate)
{
    double u = ((double)(random_next(state) >> 11) + 0.5) * 0x1p-53;
    return -log(u) / rate;
}
#endif
