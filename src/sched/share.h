/* sched/share.h - distributes the rows of one step among prompts and responses. Pure functions.
 *
 * Every lane that decodes has its row in every step. Prompts get the rest in the order of the lanes, one prompt after
 * another: the first is answered as early as possible, and the others no later than if all advanced together. While
 * lanes decode, the prompt rows of a step are limited to those that take max_stall_s, but at least SHARE_MIN: both
 * always make progress. Some rows stay free for draft tokens, so that a long prompt does not stop all speculation. */
#ifndef TANDEM_SCHED_SHARE_H
#define TANDEM_SCHED_SHARE_H
#include <stdbool.h>
#include <stdint.h>

enum {
    SHARE_MIN   = 16, /* minimum of prompt rows in a step, if as many are pending and fit */
    SHARE_DRAFT = 8,  /* rows kept for drafts of each lane that decodes, up to a quarter of the step */
};

typedef struct {
    int    step_rows;   /* maximum of rows in a step */
    double max_stall_s; /* setting max_stall_ms, in seconds */
    double row_s;       /* seconds that a prompt row takes, as measured; 0: not known yet */
} share_limits;

/* Sets rows[i] to the rows of lane i in this step; 0: none. pending[i]: rows that it has left, 1 for a lane that
 * decodes, 0 for one that skips the step. Returns the sum. Requires n <= step_rows. */
int share_rows(const share_limits *l, const int *pending, int n, int *rows);
/* Returns the moving average of seconds per prompt row after one more measurement. average 0: there was none yet. */
double share_average(double average, double row_s);

/* Returns the index, of n lanes, that comes first when drafts are planned in this step. When there are not enough rows
 * for all drafts, the order decides. Steps of the golden ratio make each lane come first equally often. */
int share_first_lane(int64_t step, int n);
#endif
