/* The choice for one lane: its best plan, its record, and trials of methods that it does not use. The constants set how
 * often a method that lost is tried. None of them decides which method is good: that is measured. */
#include "spec/policy.h"

#include "base/mem.h"
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
};
const double        HOPED_RATE  = 0.8;
const double        BEST_RATE   = 0.95;
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
int choice_depth(const policy_lane *l, spec_method m)
{
    const policy_limits *lim = &l->p->limits;
    if (m == SPEC_OFF || !lim->there[m] || l->without >> m & 1) return 0;
    int n = min_int(min_int(lim->max_draft[m], DRAFT_MAX), l->room);
    return n > 0 ? n : 0;
}

int choice_budgets(const policy_lane *l, int out[MAX_TREE_PLANS])
{
    static const int budget[] = {8, 16, 22, 32, 48};
    int              n = 0, max_budget = min_int(min_int(l->p->limits.tree_budget, DRAFT_MAX), l->room);
    _Static_assert(COUNT(budget) < MAX_TREE_PLANS, "and one more");
    if (choice_depth(l, SPEC_TREE) == 0) return 0;
    while (n < (int)COUNT(budget) && budget[n] < max_budget) {
        out[n] = budget[n];
        n++;
    }
    if (max_budget > 0) out[n++] = max_budget;
    return n;
}

/* Returns the share of a chain's rejected tokens that a tree of this budget recovers with its other branches. It
 * grows with the logarithm of the budget. Only differences between budgets depend on it; the level comes from the
 * tree's record. */
static double tree_gain(int budget) { return budget > 8 ? fmin(0.5, 0.1 * log2(budget / 8.0)) : 0; }

static double hoped_tree_rate(int budget) { return 1 - (1 - HOPED_RATE) * (1 - tree_gain(budget)); }

/* Sets out[d] to the acceptance rate of a tree at depth d, given that all before were accepted, at the budgets of its
 * record. DFlash's record gives the expectation; the tree's own record, if long enough, corrects it. */
static void tree_rates(const policy *p, double *out, int n)
{
    const survival *own = &p->record[SPEC_TREE], *chain = &p->record[SPEC_DFLASH];
    double          chain_rate = SURVIVAL_FIRST;
    for (int d = 0; d < n; d++) {
        chain_rate      = survival_rate(chain, d, chain_rate);
        double expected = 1 - (1 - chain_rate) * (1 - p->tree_gain);
        out[d]          = (own->right[d] + TREE_DOUBT * expected) / (own->tried[d] + TREE_DOUBT);
    }
}

void choice_tree_tokens(const policy_lane *l, const int *budget, int n, double *out)
{
    double rate[DRAFT_MAX];
    int    depth = choice_depth(l, SPEC_TREE);
    if (n > 0) tree_rates(l->p, rate, min_int(depth, budget[n - 1]));
    for (int i = 0; i < n; i++) {
        double all = 1, caught = (1 - tree_gain(budget[i])) / (1 - l->p->tree_gain);
        out[i] = 1;
        for (int d = 0; d < min_int(depth, budget[i]); d++) out[i] += all *= fmax(0, 1 - (1 - rate[d]) * caught);
    }
}

double choice_hoped_tokens(double rate, int n)
{
    double all = 1, tokens = 1;
    for (int d = 0; d < n; d++) tokens += all *= rate;
    return tokens;
}

bool choice_knows_dflash(const policy *p) { return p->record[SPEC_DFLASH].tried[0] >= FREE_TRIALS - 1; }

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

/* --- one lane ------------------------------------------------------------------------------------ */
typedef struct {
    const policy_lane *l;
    const cost_table  *c;
    const cost_view   *v;
    int                base_rows; /* rows of the step without draft tokens */
    double             prompts;   /* seconds of prompt chunks in the step: not a cost of drafting */
} choice;

static double plan_cost(const choice *k, spec_method m, int n)
{
    int    in_a_row = min_int(n, choice_depth(k->l, m));
    double draft    = m == SPEC_OFF     ? 0
                      : m == SPEC_MTP   ? k->v->pass[1] * in_a_row
                      : m == SPEC_NGRAM ? k->v->ngram * in_a_row
                                        : k->v->block[m][1 + in_a_row];
    return draft + k->v->step[k->base_rows + n] - k->prompts;
}

static void consider_plan(const choice *k, spec_plan *best, spec_method m, int n, double tokens)
{
    double rate = tokens / plan_cost(k, m, n);
    if (rate > best->rate) *best = (spec_plan){.method = m, .n = n, .rate = rate};
}

static void consider_chains(const choice *k, spec_plan *best, spec_method m, bool hoped)
{
    double curve[DRAFT_MAX], tokens = 1;
    int    n = choice_depth(k->l, m);
    if (!hoped) survival_curve(&k->l->p->record[m], curve, n);
    for (int d = 0; d < n; d++) {
        tokens += hoped ? pow(HOPED_RATE, d + 1) : curve[d];
        consider_plan(k, best, m, d + 1, tokens);
    }
}

static void consider_trees(const choice *k, spec_plan *best, bool hoped)
{
    int    budget[MAX_TREE_PLANS], depth = choice_depth(k->l, SPEC_TREE);
    double tokens[MAX_TREE_PLANS];
    int    n = choice_budgets(k->l, budget);
    if (!hoped) choice_tree_tokens(k->l, budget, n, tokens);
    for (int i = 0; i < n; i++)
        consider_plan(k, best, SPEC_TREE, budget[i],
                      hoped ? choice_hoped_tokens(hoped_tree_rate(budget[i]), min_int(depth, budget[i])) : tokens[i]);
}

/* Replaces *best by the method's best length, if that is better. */
static void consider_method(const choice *k, spec_plan *best, spec_method m, bool hoped)
{
    if (m == SPEC_OFF)
        consider_plan(k, best, m, 0, 1);
    else if (m == SPEC_TREE)
        consider_trees(k, best, hoped);
    else
        consider_chains(k, best, m, hoped);
}

/* Returns whether the trial would reach par at the best possible acceptance. */
static bool may_pay(const choice *k, const spec_plan *trial)
{
    int n = min_int(trial->n, choice_depth(k->l, trial->method));
    return choice_hoped_tokens(BEST_RATE, n) > trial->par;
}

/* Returns whether trees are far from paying according to DFlash's record, so that a trial is useless. */
static bool is_hopeless(const choice *k, const spec_plan *best, spec_method m)
{
    spec_plan own = {0};
    if (m != SPEC_TREE || !choice_knows_dflash(k->l->p)) return false;
    consider_trees(k, &own, false);
    return own.rate < 0.7 * best->rate;
}

/* Returns whether the cost of plain decoding, with which all plans are compared, must be measured again. */
static bool plain_due(const choice *k)
{
    return k->base_rows == 1 && !cost_step_is_known(k->c, 1, 1, k->l->ctx, PLAIN_AGE_FAR);
}

/* Chooses a method whose trial is due, with the length that would be best if it were good. */
static bool due_trial(const choice *k, const spec_plan *best, spec_plan *trial)
{
    for (int m = 0; m < SPEC_METHODS; m++) {
        if (m == (int)best->method || k->l->p->wait[m] > 0 || (m == SPEC_OFF && !plain_due(k))) continue;
        *trial = (spec_plan){0};
        consider_method(k, trial, m, true);
        if (!(trial->rate > 0) || is_hopeless(k, best, m)) continue; /* not available, no room, or useless */
        trial->trial = true;
        trial->n     = min_int(trial->n, m == SPEC_TREE ? TRIAL_TREE : TRIAL_CHAIN);
        trial->par   = best->rate * plan_cost(k, m, trial->n);
        if (m == SPEC_OFF || may_pay(k, trial)) return true;
    }
    return false;
}

spec_plan choose_alone(const policy_lane *l, const cost_table *c, const cost_view *v, int fixed_rows, int max_rows)
{
    policy_lane within = *l;
    choice      k      = {.l = &within, .c = c, .v = v, .base_rows = fixed_rows + 1};
    spec_plan   best   = {0}, trial;

    within.room = min_int(l->room, max_rows - k.base_rows);
    k.prompts   = v->step[k.base_rows] - v->step[1];
    for (int m = 0; m < SPEC_METHODS; m++) consider_method(&k, &best, (spec_method)m, false);
    if (within.room > 0 && due_trial(&k, &best, &trial)) best = trial;
    if (!v->measured) best.rate = 0;
    return best;
}

spec_plan policy_choose(const policy *p, const cost_table *c, int room, int32_t ctx)
{
    cost_view v;
    cost_view_init(&v, c, ctx);
    return choose_alone(&(policy_lane){.p = p, .room = room, .ctx = ctx}, c, &v, 0, COST_MAX_ROWS);
}

/* --- after a round ------------------------------------------------------------------------------- */
static void note_acceptance(policy *p, spec_method m, int n_judged, int n_right)
{
    if (n_judged > 0)
        survival_note(&p->record[m], n_judged, n_right);
    else
        survival_note(&p->record[m], 1, 0);
}

void policy_note_idle(policy *p, spec_method m, int n_judged, int n_right)
{
    if (m != SPEC_OFF && m != SPEC_TREE && n_judged > 0) note_acceptance(p, m, n_judged, n_right);
}

static int n_methods(const policy_limits *l)
{
    int n = 0;
    for (int m = SPEC_OFF + 1; m < SPEC_METHODS; m++) n += l->there[m];
    return n;
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

void policy_note(policy *p, cost_table *c, const spec_plan *plan, int n_judged, int n_right)
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
    note_acceptance(p, plan->method, n_judged, n_right);
}
