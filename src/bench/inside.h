/* bench/inside.h - functions of bench that only tests call from other files. */
#ifndef TANDEM_BENCH_INSIDE_H
#define TANDEM_BENCH_INSIDE_H
#include <stdint.h>

/* Returns the expected number of distinct experts of n_experts when each row draws n_slots at random. */
double experts_uniform(int n_experts, int n_slots, int n_rows);
/* Returns the number of different values of id[n], each from 0 to n_experts - 1, or negative: not counted. n_experts:
 * at most 16384. */
int experts_distinct(const int32_t *id, int n, int n_experts);
/* Returns p with 1 + p + p^2 + ... + p^n = tokens, for tokens from 1 to n + 1. */
double oracle_chance(double tokens, int n);
#endif
