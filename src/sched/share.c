#include "sched/share.h"

#include "base/num.h"

#include <math.h>

/* Rows of prompts in a step that n_running answers wait for. */
static int prompt_budget(const share_limits *l, int n_running)
{
    int left = l->step_rows - n_running;
    if (n_running == 0) return left;
    double fits = l->row_s > 0 ? l->max_stall_s / l->row_s : 2 * SHARE_MIN;
    int    want = fits < l->step_rows ? (int)fits : l->step_rows;
    int    free = min_int(SHARE_DRAFT * n_running, l->step_rows / 4);
    return min_int(left, max_int(SHARE_MIN, min_int(want, left - free)));
}

int share_rows(const share_limits *l, const int *pending, int n, int *rows)
{
    int n_running = 0, used = 0;
    for (int i = 0; i < n; i++) n_running += pending[i] == 1;
    int left = prompt_budget(l, n_running);
    for (int i = 0; i < n; i++) {
        rows[i] = pending[i] == 1 ? 1 : min_int(pending[i], left);
        if (pending[i] > 1) left -= rows[i];
        used += rows[i];
    }
    return used;
}

double share_average(double average, double row_s) { return average > 0 ? average + 0.25 * (row_s - average) : row_s; }

int share_first_lane(int64_t step, int n)
{
    double turns = 0.6180339887498949 * (double)(step % (1 << 20));
    return (int)((turns - floor(turns)) * n);
}
