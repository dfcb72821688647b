/* The record of a lane, what it leads to expect, and when methods that the lane does not use are tried. The constants
 * set how often a method that lost is tried. None of them decides which method is good: that is measured. */
#include "spec/policy.h"

#include "spec/choice.h"

#include <assert.h>
#include <math.h>

enum {
    GAP_FIRST   = 16,
    GAP_MAX     = 64, /* multiplied by the number of methods */
    START_GAP   = GAP_FIRST / 2,
    FREE_TRIALS = 3,   /* trials before a method is judged; later ones are limited by TRIAL_SHARE */
    LONG_WAIT   = 512, /* rounds; after the free trials, WAIT_MAX */
    WAIT_MAX    = 8192,
    NEXT_WAIT   = 192, /* a new text shortens waits, down to this */
    KNOWN       = 3,   /* weight of the record at the start of a text, in rounds */
    TREE_ROUNDS = 8,   /* rounds over which the given rows of trees are averaged */
};
static const double TRIAL_SHARE = 0.015; /* share of the time that all trials of a lane together may take */
static const double TREE_KEPT =
    0.957; /* factor of a tree's counts per round without a tree: DFlash's record takes over again */
static const double TREE_DOUBT = 3;       /* weight of the chain's record for predicting trees, in rounds */
static const double LEDGER     = 1 << 14; /* tokens after which the account of trials is halved */

void policy_init(policy *p, const policy_limits *l)
{
    *p = (policy){.limits = *l};
    for (int m = 0; m < SPEC_METHODS; m++) {
        p->wait[m] = 2 * m; /* each is tried soon, but not all at once */
        p->gap[m]  = START_GAP;
    }
}

void policy_next_text(policy *p)
{
    for (int m = 0; m < SPEC_METHODS; m++) {
        if (p->record[m].tried[0] > KNOWN) survival_forget(&p->record[m], KNOWN / p->record[m].tried[0]);
        p->record[m].surprise = 0;
        if (p->wait[m] > NEXT_WAIT) p->wait[m] -= (p->wait[m] - NEXT_WAIT) / 4;
    }
}

void policy_seed(policy *p, const policy *from)
{
    policy_limits own = p->limits;
    *p                = *from;
    p->limits         = own;
    policy_next_text(p);
}

/* --- expected tokens ---------------------------------------------------------------------------- */
/* Returns the share of a chain's rejected tokens that a tree of this budget recovers with its other branches. It
 * grows with the logarithm of the budget. Only differences between budgets depend on it; the level comes from the
 * tree's record. */
static double tree_gain(int budget) { return budget > 8 ? fmin(0.5, 0.1 * log2(budget / 8.0)) : 0; }

void policy_tree_rates(const policy *p, double *out, int n)
{
    const survival *own = &p->record[SPEC_TREE], *chain = &p->record[SPEC_DFLASH];
    double          chain_rate = SURVIVAL_FIRST;
    for (int d = 0; d < n; d++) {
        chain_rate      = survival_rate(chain, d, chain_rate);
        double expected = 1 - (1 - chain_rate) * (1 - p->tree_gain);
        out[d]          = (own->right[d] + TREE_DOUBT * expected) / (own->tried[d] + TREE_DOUBT);
    }
}

double policy_tree_tokens(const policy *p, const double *rate, int budget, int depth)
{
    double tokens = 1, all = 1, caught = (1 - tree_gain(budget)) / (1 - p->tree_gain);
    for (int d = 0; d < depth; d++) tokens += all *= fmax(0, 1 - (1 - rate[d]) * caught);
    return tokens;
}

bool policy_knows_dflash(const policy *p) { return p->record[SPEC_DFLASH].tried[0] >= FREE_TRIALS - 1; }

/* Returns the largest limit per entry with which the sum fits. */
static int highest_level(const int *n, int count, int room)
{
    for (int level = 0;; level++) {
        int sum = 0, more = 0;
        for (int i = 0; i < count; i++) {
            sum += min_int(n[i], level + 1);
            more += n[i] > level;
        }
        if (sum > room || more == 0) return level;
    }
}

void choice_share_rows(int *n, int count, int room)
{
    int level = highest_level(n, count, room), left = room;
    for (int i = 0; i < count; i++) left -= min_int(n[i], level);
    for (int i = 0; i < count; i++) {
        bool one_more = n[i] > level && left > 0;
        n[i]          = min_int(n[i], level) + one_more;
        left -= one_more;
    }
}

static double mean_row(const double *steps, int from, int to)
{
    return to > from ? (steps[to] - steps[from]) / (to - from) : 0;
}

void choice_row_costs(double *steps, const double *measured, int fixed_rows, int n_lanes, int max_rows)
{
    enum { SPAN = 16 }; /* draft tokens of a lane, about */
    int    base = fixed_rows + n_lanes, low = base > 1 ? base / 2 : 1, high = min_int(2 * base + 2, COST_MAX_ROWS);
    double near    = mean_row(measured, low, high),
           far     = mean_row(measured, base, min_int(base + n_lanes * SPAN, COST_MAX_ROWS));
    double prompts = measured[base] - measured[n_lanes];
    steps[base]    = measured[n_lanes];
    for (int rows = base + 1; rows <= max_rows; rows++)
        steps[rows] = fmax(measured[rows] - prompts, steps[rows - 1] + fmin(near, far) / 4);
}

/* --- after a round ------------------------------------------------------------------------------- */
static void note_acceptance(policy *p, spec_method m, int n_made, int n_given, int n_right)
{
    if (n_made > 0)
        survival_note(&p->record[m], n_made, n_given, n_right);
    else
        survival_note(&p->record[m], 1, 1, 0);
}

void policy_note_idle(policy *p, spec_method m, int n_judged, int n_right)
{
    if (m != SPEC_OFF && m != SPEC_TREE && n_judged > 0) note_acceptance(p, m, n_judged, n_judged, n_right);
}

static int n_methods(const policy_limits *l)
{
    int n = 0;
    for (int m = SPEC_OFF + 1; m < SPEC_METHODS; m++) n += l->there[m];
    return n;
}

void policy_note_tree(policy *p, int n, int n_given)
{
    if (n > 0) p->tree_cut += (1 - (double)n_given / n - p->tree_cut) / TREE_ROUNDS;
}

/* Schedules the next trial. A trial that reached par is repeated at once, until the method is chosen by its record or a
 * trial fails. Each failure doubles the interval; a loss of more than two tokens makes it longer still, and after the
 * first few all trials together may lose only a small share of the tokens. When the method is chosen as the best, the
 * interval returns to the first one. */
static void set_next_trial(policy *p, const spec_plan *plan, int n_right)
{
    int   *gap = &p->gap[plan->method], *wait = &p->wait[plan->method];
    double lost = plan->par - (1 + n_right);
    if (!plan->trial) {
        *wait = *gap          = GAP_FIRST;
        p->lost[plan->method] = 0;
    } else if (lost <= 0)
        *wait = 0;
    else {
        *gap  = min_int(2 * *gap, GAP_MAX * n_methods(&p->limits));
        *wait = (int)fmin(*gap * fmax(1, lost / 2), LONG_WAIT);
        if (++p->lost[plan->method] > FREE_TRIALS)
            *wait = (int)fmax(*wait, fmin(lost * n_methods(&p->limits) / TRIAL_SHARE, WAIT_MAX));
    }
}

/* Adds to the tokens of all lanes, and to the tokens that trials cost. */
static void keep_ledger(cost_table *c, const spec_plan *plan, int n_right)
{
    c->tokens += 1 + n_right;
    if (plan->trial) c->lost = fmax(0, c->lost + plan->par - (1 + n_right));
    if (c->tokens < LEDGER) return;
    c->tokens /= 2;
    c->lost /= 2;
}

void policy_note(policy *p, cost_table *c, const spec_plan *plan, int n_made, int n_given, int n_right)
{
    keep_ledger(c, plan, n_right);
    set_next_trial(p, plan, n_right);
    for (int m = 0; m < SPEC_METHODS; m++)
        if (p->wait[m] > 0) p->wait[m]--;
    if (plan->method != SPEC_TREE) survival_forget(&p->record[SPEC_TREE], TREE_KEPT);
    if (plan->method == SPEC_OFF) return;
    if (plan->method == SPEC_TREE) {
        double share = 1 / (p->record[SPEC_TREE].tried[0] + 1);
        p->tree_gain += share * (tree_gain(plan->n) - p->tree_gain);
    }
    note_acceptance(p, plan->method, n_made, n_given, n_right);
}
