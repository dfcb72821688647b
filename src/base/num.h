/* base/num.h - the minimum and maximum of two integers. */
#ifndef TANDEM_BASE_NUM_H
#define TANDEM_BASE_NUM_H
static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }
#endif
