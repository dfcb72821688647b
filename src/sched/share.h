/* sched/share.h - distributes the rows of one step among prompts and responses. Pure functions.
 *
 * Every lane that decodes has its row in every step. Prompts get the rest in the order of the lanes, one prompt after
 * another: the first is answered as early as possible, and the others no later than if all advanced together. Half of
 * the rows go to prompts that are shorter than the first one, if there are any, the shortest first: a short request
 * waits for one chunk of a long prompt, not for all of it. While lanes decode, the prompt rows of a step are limited to
 * those that take max_stall_s, but at least SHARE_MIN: both always make progress. Some rows stay free for draft tokens,
 * so that a long prompt does not stop all speculation.
 *
 * After a chunk of a long prompt, steps without one follow until all chunks together took SHARE_PROMPTS of the time:
 * lanes that decode keep the rest of their rate. Prompts that fit into half of a chunk do not wait for that. */
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
    bool   rest;        /* long prompts sit out this step, if lanes decode: share_pace.debt_s > 0 */
    int    n_equal;     /* the first n_equal lanes have the same priority: shorter prompts may overtake there */
} share_limits;

/* Share of the time that chunks of prompts may take from lanes that decode. */
#define SHARE_PROMPTS 0.2
typedef struct {
    double plain_s; /* seconds of a step without a prompt, a moving average; 0: not known */
    double debt_s;  /* seconds of such steps that are due before the next chunk of a long prompt */
} share_pace;       /* zeros at first */
/* Counts a step. n_running: lanes that decoded in it. row_s: as in share_limits, of this step or later. */
void share_note(share_pace *p, double took, int prompt_rows, int n_running, double row_s);

/* Sets rows[i] to the rows of lane i in this step; 0: none. pending[i]: rows that it has left, 1 for a lane that
 * decodes, 0 for one that skips the step. Returns the sum. Requires n <= step_rows. */
int share_rows(const share_limits *l, const int *pending, int n, int *rows);
/* Gives lanes that have some rows, but fewer than smallest[i], the rest of these: free rows, then those of prompts
 * after them. A lane for which they do not suffice gets none in this step. The first prompt gets its rows if step_rows
 * are enough for it and a row of every other lane. Returns the sum. */
int share_whole(const share_limits *l, const int *pending, const int *smallest, int n, int *rows);
/* Returns the moving average of seconds per prompt row after one more measurement. average 0: there was none yet. */
double share_average(double average, double row_s);

/* Returns the index, of n lanes, that comes first when drafts are planned in this step. When there are not enough rows
 * for all drafts, the order decides. Steps of the golden ratio make each lane come first equally often. */
int share_first_lane(int64_t step, int n);
#endif
