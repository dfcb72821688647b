/* sched/share.h - the rows of one step: how many of each prompt, how many are left for guesses.
 *
 * Every running answer has its row in every step. Prompts get the rest in the order of the lanes (priority, then age), one
 * prompt after another: the first is answered as early as it can be, and the others no later than if all had crept on
 * together. Beside running answers a step's prompt rows are as many as take max_stall_s, at least SHARE_LEAST: neither
 * side ever stands still. Some rows stay free for guesses, so that a long prompt does not end all speculation. */
#ifndef TANDEM_SCHED_SHARE_H
#define TANDEM_SCHED_SHARE_H
#include <stdbool.h>
#include <stdint.h>

enum {
    SHARE_LEAST   = 16,
    SHARE_GUESSES = 8
}; /* guesses: rows kept for each running answer, up to a quarter of the step */

typedef struct {
    int    step_rows;
    double max_stall_s;
    double row_s; /* seconds that a prompt row takes, as measured; 0: not known yet */
} share_limits;

/* pending[i]: rows of lane i that are to be run, 1 for a running answer; rows[i]: how many of them now, 0: not its turn.
 * Returns the sum. n <= step_rows. */
int share_rows(const share_limits *l, const int *pending, int n, int *rows);
/* Returns the moving average of seconds per prompt row with one more measurement. average 0: there was none yet. */
double share_average(double average, double row_s);

/* Returns the turn of n that comes first when plans for guesses are chosen in this step. Where not all lanes can have the
 * guesses that they want, the order decides; by steps of the golden ratio each comes first equally often, and soon again. */
int share_first_turn(int64_t step, int n);
#endif
