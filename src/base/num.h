/* base/num.h - the smaller and the larger of two. */
#ifndef TANDEM_BASE_NUM_H
#define TANDEM_BASE_NUM_H
static inline int least(int a, int b) { return a < b ? a : b; }
static inline int most(int a, int b) { return a > b ? a : b; }
#endif
