#include "sched/share.h"

#include "base/num.h"

#include <limits.h>
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

typedef struct {
    const int *pending;
    int       *rows;
    int        left;    /* prompt rows that the step still has */
    int        longest; /* prompts with more rows left sit out */
} sharing;

static void give(sharing *x, int i, int max)
{
    int more = min_int(x->pending[i] - x->rows[i], min_int(x->left, max));
    x->rows[i] += more;
    x->left -= more;
}

static bool may_read(const sharing *x, int i) { return x->pending[i] > 1 && x->pending[i] <= x->longest; }

/* Returns the prompt with the fewest rows left, of those from `from` to `to` that have got none and are shorter than
 * `limit`; -1: there is none. */
static int shortest(const sharing *x, int from, int to, int limit)
{
    int best = -1;
    for (int i = from; i < to; i++)
        if (may_read(x, i) && !x->rows[i] && x->pending[i] < (best < 0 ? limit : x->pending[best])) best = i;
    return best;
}

int share_rows(const share_limits *l, const int *pending, int n, int *rows)
{
    int n_running = 0, first = 0;
    for (int i = 0; i < n; i++) n_running += rows[i] = pending[i] == 1;
    sharing x    = {pending, rows, prompt_budget(l, n_running), INT_MAX};
    int     half = x.left / 2, budget = x.left;
    if (l->rest && n_running) x.longest = half;
    while (first < n && !may_read(&x, first)) first++;
    for (int i; first < n && x.left > budget - half;) { /* shorter ones leave half to the first */
        if ((i = shortest(&x, first + 1, min_int(l->n_equal, n), pending[first])) < 0) break;
        give(&x, i, x.left - (budget - half));
    }
    for (int i = first; i < n; i++)
        if (may_read(&x, i)) give(&x, i, INT_MAX);
    return n_running + budget - x.left;
}

void share_note(share_pace *p, double took, int prompt_rows, int n_running, double row_s)
{
    if (n_running && !prompt_rows) p->plain_s = share_average(p->plain_s, took);
    if (!n_running) {
        p->debt_s = 0;
    } else if (!prompt_rows || p->debt_s > 0) { /* in the second case with short prompts: they do not stop long ones */
        p->debt_s = fmax(p->debt_s - took, 0);
    } else {
        double extra = fmax(fmin(took - p->plain_s, 2 * row_s * prompt_rows), 0); /* without what delayed the machine */
        p->debt_s    = fmax(p->debt_s + extra * (1 - SHARE_PROMPTS) / SHARE_PROMPTS - p->plain_s, 0);
    }
}

int share_whole(const share_limits *l, const int *pending, const int *smallest, int n, int *rows)
{
    int used = 0;
    for (int i = 0; i < n; i++) used += rows[i];
    for (int i = 0; i < n; i++) {
        int lack = smallest[i] - rows[i];
        if (!rows[i] || lack <= 0) continue;
        for (int k = n - 1; k > i && l->step_rows - used < lack; k--) {
            if (pending[k] <= 1) continue;
            used -= rows[k];
            rows[k] = 0;
        }
        if (l->step_rows - used < lack) lack = -rows[i];
        rows[i] += lack;
        used += lack;
    }
    return used;
}

double share_average(double average, double row_s) { return average > 0 ? average + 0.25 * (row_s - average) : row_s; }

int share_first_lane(int64_t step, int n)
{
    double turns = 0.6180339887498949 * (double)(step % (1 << 20));
    return (int)((turns - floor(turns)) * n);
}
