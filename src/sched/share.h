/* sched/share.h - distributes the rows of one step among prompts and running answers.
 *
 * Every running answer has its row in every step. Prompts get the rest in the order of the lanes (priority, then age),
 * one prompt after another: the first is answered as early as possible, and the others no later than if all advanced
 * together. While answers are running, the prompt rows of a step are limited to those that take max_stall_s, but at
 * least SHARE_MIN: both always make progress. Some rows stay free for draft tokens, so that a long prompt does not stop
 * all speculation. */
#ifndef TANDEM_SCHED_SHARE_H
#define TANDEM_SCHED_SHARE_H
#include <stdbool.h>
#include <stdint.h>

enum {
    SHARE_MIN   = 16, /* prompt rows of a step */
    SHARE_DRAFT = 8,  /* rows kept for drafts of each running answer, up to a quarter of the step */
};

typedef struct {
    int    step_rows;
    double max_stall_s;
    double row_s; /* seconds that a prompt row takes, as measured; 0: not known yet */
} share_limits;

/* Sets rows[i] to the rows of lane i in this step; 0: none. pending[i]: rows that it has left, 1 for a running answer.
 * Returns the sum. Requires n <= step_rows. */
int share_rows(const share_limits *l, const int *pending, int n, int *rows);
/* Returns the moving average of seconds per prompt row after one more measurement. average 0: there was none yet. */
double share_average(double average, double row_s);

/* Returns the index, of n lanes, that comes first when drafts are planned in this step. When there are not enough rows
 * for all drafts, the order decides. Steps of the golden ratio make each lane come first equally often. */
int share_first_lane(int64_t step, int n);
#endif
