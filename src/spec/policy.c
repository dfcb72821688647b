/* The numbers here are of three kinds: what is assumed before anything was measured, how fast estimates follow, and how
 * often a method that lost is tried. None of them decides which method is good: that is measured. */
#include "spec/policy.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>

const char *const spec_method_names[] = {[SPEC_OFF]     = "off",
                                         [SPEC_DFLASH]  = "dflash",
                                         [SPEC_TREE]    = "tree",
                                         [SPEC_MTP]     = "mtp",
                                         [SPEC_NGRAM]   = "ngram",
                                         [SPEC_METHODS] = "auto",
                                         NULL};

/* --- costs -------------------------------------------------------------------------------------- */
static const double ASSUMED_STEP_S  = 0.02;
static const double ASSUMED_PER_ROW = 0.05; /* of a step of one row */
/* Of a step of one row: one draft, or one guess. */
static const double ASSUMED_DRAFT[SPEC_METHODS] = {[SPEC_DFLASH] = 0.2, [SPEC_TREE] = 0.2, [SPEC_MTP] = 0.05};
enum { FEW = 3, OLD = 512 }; /* measurements; steps */

/* The first few measurements leave their smallest: a busy machine makes a step slower, nothing makes it faster. Then a
 * moving average. Its memory is short in steps, not in measurements, so that a number that was not used for a while (the
 * context grew meanwhile) is soon right again. One measurement far above it is not believed before the next one says so
 * too, and counts as twice the average at most. */
static void note_cost(cost *c, long now, double seconds)
{
    if (!(seconds > 0) || isinf(seconds)) return;
    double share = fmin(0.5, fmax(1.0 / 16, (double)(now - c->at) / 128));
    double far   = 1.5 * c->seconds;
    if (c->n < FEW)
        c->seconds = c->n ? fmin(c->seconds, seconds) : seconds;
    else if (seconds <= far || c->last > far)
        c->seconds += share * (fmin(seconds, 2 * c->seconds) - c->seconds);
    c->last = seconds;
    c->at   = now;
    if (c->n < 1 << 20) c->n++;
}

void cost_note_step(cost_table *c, int rows, double seconds)
{
    if (rows >= 1 && rows <= COST_MAX_ROWS) note_cost(&c->step[rows], ++c->n_steps, seconds);
}

static bool costs_per_guess(spec_method m) { return m == SPEC_MTP || m == SPEC_NGRAM; }

void cost_note_draft(cost_table *c, spec_method m, int n_guesses, double seconds)
{
    if (m == SPEC_OFF || n_guesses < 1 || n_guesses > DRAFT_MAX) return;
    if (costs_per_guess(m))
        note_cost(&c->guess[m], c->n_steps, seconds / n_guesses);
    else
        note_cost(&c->block[m][1 + n_guesses], c->n_steps, seconds);
}

/* The measured costs as a curve that never falls: flat over each span of rows, straight between them. */
typedef struct {
    int    first, last; /* rows */
    double seconds, weight;
} span;
typedef struct {
    span at[COST_MAX_ROWS];
    int  n;
} cost_curve;

/* Neighbours that fall become one span at their mean, weighted so that a number measured once does not move one that was
 * measured often. */
static void add_span(cost_curve *v, int rows, const cost *k)
{
    v->at[v->n++] = (span){rows, rows, k->seconds, k->n < FEW ? 0.25 : fmin(k->n, 16)};
    for (; v->n > 1 && v->at[v->n - 2].seconds > v->at[v->n - 1].seconds; v->n--) {
        span  *a = &v->at[v->n - 2], *b = &v->at[v->n - 1];
        double sum = a->weight + b->weight;
        *a         = (span){a->first, b->last, (a->seconds * a->weight + b->seconds * b->weight) / sum, sum};
    }
}

/* Inside what was measured. */
static double curve_between(const cost_curve *v, double rows)
{
    int i = 0;
    while (i + 1 < v->n && rows > v->at[i].last) i++;
    if (i == 0 || rows >= v->at[i].first) return v->at[i].seconds;
    const span *a = &v->at[i - 1], *b = &v->at[i];
    return a->seconds + (b->seconds - a->seconds) * (rows - a->last) / (b->first - a->last);
}

/* Beyond it goes on as it rose over its upper half: two neighbours alone would make a slope of noise. */
static double curve_at(const cost_curve *v, int rows)
{
    if (v->n == 0) return ASSUMED_STEP_S * (1 + ASSUMED_PER_ROW * (rows - 1));
    const span *low = &v->at[0], *high = &v->at[v->n - 1];
    double      one = low->seconds / (1 + ASSUMED_PER_ROW * (low->first - 1));
    if (rows < low->first) return one * (1 + ASSUMED_PER_ROW * (rows - 1));
    if (rows <= high->last) return curve_between(v, rows);
    double half = fmax(low->first, high->last / 2.0);
    double slope =
        half < high->last ? (high->seconds - curve_between(v, half)) / (high->last - half) : one * ASSUMED_PER_ROW;
    return high->seconds + slope * (rows - high->last);
}

/* 0: not known, or too old. */
static double known_cost(const cost_table *c, const cost *k) { return c->n_steps - k->at > OLD ? 0 : k->seconds; }

/* Two kinds of numbers are left out: old ones, so that a length that was too dear once is tried again; and one that was
 * measured only once and is more than twice what the others say, which may have been the machine's doing. */
static void measured_curve(cost_curve *v, const cost_table *c, const cost *by_rows)
{
    cost_curve sure = {.n = 0};
    for (int pass = 0; pass < 2; pass++) {
        v->n = 0;
        for (int rows = 1; rows <= COST_MAX_ROWS; rows++) {
            const cost *k = &by_rows[rows];
            if (!(known_cost(c, k) > 0)) continue;
            if (k->n == 1 && (pass == 0 || (sure.n > 0 && k->seconds > 2 * curve_at(&sure, rows)))) continue;
            add_span(v, rows, k);
        }
        if (pass == 0) sure = *v;
    }
}

/* What depends on rows. */
typedef struct {
    cost_curve step, block[SPEC_TREE + 1];
} cost_curves;

static void measured_curves(cost_curves *v, const cost_table *c)
{
    measured_curve(&v->step, c, c->step);
    for (int m = SPEC_DFLASH; m <= SPEC_TREE; m++) measured_curve(&v->block[m], c, c->block[m]);
}

double cost_step(const cost_table *c, int rows)
{
    cost_curve v;
    measured_curve(&v, c, c->step);
    return curve_at(&v, rows);
}

/* A tree and a chain come from the same pass: what is not known of one is taken from the other. */
static double block_cost(const cost_curves *v, spec_method m, int rows)
{
    const cost_curve *own = &v->block[m], *other = &v->block[m == SPEC_TREE ? SPEC_DFLASH : SPEC_TREE];
    return own->n > 0 ? curve_at(own, rows) : other->n > 0 ? curve_at(other, rows) : 0;
}

static double draft_cost(const cost_table *c, const cost_curves *v, spec_method m, int n_guesses)
{
    if (m == SPEC_OFF || n_guesses < 1) return 0;
    double s = costs_per_guess(m) ? known_cost(c, &c->guess[m]) : block_cost(v, m, 1 + n_guesses);
    if (!(s > 0)) s = ASSUMED_DRAFT[m] * curve_at(&v->step, 1);
    return costs_per_guess(m) ? s * n_guesses : s;
}

double cost_draft(const cost_table *c, spec_method m, int n_guesses)
{
    cost_curves v;
    measured_curves(&v, c);
    return draft_cost(c, &v, m, n_guesses);
}

/* --- a lane's record ---------------------------------------------------------------------------- */
static const double FIRST_RATE = 0.75;   /* assumed of a first guess, with the weight of one that was seen */
static const double HOPED_RATE = 0.8;    /* of every guess, to choose the length of a trial */
static const double BEST_RATE  = 0.95;   /* a method that would lose even so is not tried */
static const double KEPT       = 0.9928; /* of the counts, each round: half of them after 96 */
static const double TREE_KEPT  = 0.957;  /* of a tree's, each round without one: it is judged by DFlash's again */
static const double SURPRISED  = 1;      /* standard deviations, smoothed over four rounds: 2.6 of them in effect */

/* P(guess d is right | those before it were). What was not seen is assumed to be as `before`, the depth above it. */
static double rate_at(const survival *s, int d, double before)
{
    double assumed = d ? 2 : 1 / (1 + s->tried[0] / 4);
    return (s->right[d] + assumed * before) / (s->tried[d] + assumed);
}

/* out[d]: the chance that guesses 0 .. d are all right. */
static void survival_curve(const survival *s, double *out, int n)
{
    double rate = FIRST_RATE, all = 1;
    for (int d = 0; d < n; d++) {
        rate   = rate_at(s, d, rate);
        out[d] = all *= rate;
    }
}

double survival_at(const survival *s, int d)
{
    double curve[DRAFT_MAX];
    assert(d >= 1 && d <= DRAFT_MAX);
    survival_curve(s, curve, d);
    return curve[d - 1];
}

/* How many standard deviations `right` lies above what the record expects of n guesses. */
static double surprise_of(const survival *s, int n, int right)
{
    double curve[DRAFT_MAX], mean = 0, square = 0;
    survival_curve(s, curve, n);
    for (int d = 0; d < n; d++) {
        mean += curve[d];
        square += (2 * d + 1) * curve[d]; /* E[x^2] = sum of (2k - 1) P(x >= k) */
    }
    return (right - mean) / fmax(0.3, sqrt(fmax(0, square - mean * mean)));
}

static void forget(survival *s, double kept)
{
    for (int d = 0; d < DRAFT_MAX; d++) {
        s->right[d] *= kept;
        s->tried[d] *= kept;
    }
}

/* A lane's text changes its kind at once, from prose to a copied table. When the last rounds do not look like the record,
 * it shrinks, to the weight of three rounds at least, and the new ones decide. */
void survival_note(survival *s, int n, int right)
{
    assert(n >= 1 && n <= DRAFT_MAX && right >= 0 && right <= n);
    s->surprise += (surprise_of(s, n, right) - s->surprise) / 4;
    forget(s, fabs(s->surprise) > SURPRISED && s->tried[0] > 3 ? fmin(KEPT, fmax(0.25, 3 / s->tried[0])) : KEPT);
    for (int d = 0; d < n && d <= right; d++) {
        s->tried[d]++;
        if (d < right) s->right[d]++;
    }
}

/* --- the choice --------------------------------------------------------------------------------- */
enum {
    GAP_FIRST   = 16,
    GAP_MAX     = 64, /* times the number of methods */
    START_GAP   = GAP_FIRST / 2,
    FREE_TRIALS = 3,    /* a method is not judged by less; the following ones have to keep to TRIAL_SHARE */
    WAIT_MAX    = 8192, /* rounds */
    NEXT_WAIT   = 192,  /* with a new text waits become shorter, down to this */
    TRIAL_CHAIN = 6,    /* guesses are enough to see whether a method is any good, */
    TRIAL_TREE  = 8,    /* so many rows of a tree */
};
static const double TRIAL_SHARE = 0.015; /* of the time, for all trials together */

void policy_init(policy *p, const policy_limits *l)
{
    *p = (policy){.limits = *l};
    for (int m = 0; m < SPEC_METHODS; m++) {
        p->wait[m] = 2 * m; /* each is soon tried, not all at once */
        p->gap[m]  = START_GAP;
    }
}

static int least(int a, int b) { return a < b ? a : b; }

void policy_next_text(policy *p)
{
    for (int m = 0; m < SPEC_METHODS; m++) {
        if (p->record[m].tried[0] > 3) forget(&p->record[m], 3 / p->record[m].tried[0]);
        p->record[m].surprise = 0;
        if (p->wait[m] > NEXT_WAIT) p->wait[m] -= (p->wait[m] - NEXT_WAIT) / 4;
    }
}

/* Guesses in a row at most; a tree's depth. */
static int depth_max(const policy *p, spec_method m, int room)
{
    if (m == SPEC_OFF || !p->limits.there[m]) return 0;
    return least(least(p->limits.max_draft[m], DRAFT_MAX), room);
}

/* The share of a chain's misses that a tree of this budget catches with its other branches: it rises with the logarithm of
 * the budget. Only the differences between budgets rest on this; the level is the tree's record. */
static double tree_gain(int budget) { return budget > 8 ? fmin(0.5, 0.1 * log2(budget / 8.0)) : 0; }

/* out[d]: the chance that a tree of this budget is right to depth d. From its own record; before it has one, DFlash's. */
static void tree_curve(const policy *p, double *out, int n, int budget)
{
    const survival *own = &p->record[SPEC_TREE], *chain = &p->record[SPEC_DFLASH];
    double          rate = 0, chain_rate = FIRST_RATE, all = 1;
    double          caught = (1 - tree_gain(budget)) / (1 - p->tree_gain);
    for (int d = 0; d < n; d++) {
        chain_rate = rate_at(chain, d, chain_rate);
        if (d == 0 || own->tried[d - 1] < 1) rate = 1 - (1 - chain_rate) * (1 - p->tree_gain);
        rate   = rate_at(own, d, rate);
        out[d] = all *= fmax(0, 1 - (1 - rate) * caught);
    }
}

typedef struct {
    const policy     *p;
    const cost_table *c;
    cost_curves       v;
    int               room;
} choice;

static double plan_cost(const choice *k, spec_method m, int n)
{
    int in_a_row = least(n, depth_max(k->p, m, k->room));
    return draft_cost(k->c, &k->v, m, in_a_row) + curve_at(&k->v.step, 1 + n);
}

static void consider(const choice *k, spec_plan *best, spec_method m, int n, double tokens)
{
    double rate = tokens / plan_cost(k, m, n);
    if (rate > best->rate) *best = (spec_plan){.method = m, .n = n, .rate = rate};
}

static void hoped_curve(double *out, int n, double rate)
{
    for (int d = 0; d < n; d++) out[d] = pow(rate, d + 1);
}

static void consider_chains(const choice *k, spec_plan *best, spec_method m, bool hoped)
{
    double curve[DRAFT_MAX], tokens = 1;
    int    n = depth_max(k->p, m, k->room);
    if (hoped)
        hoped_curve(curve, n, HOPED_RATE);
    else
        survival_curve(&k->p->record[m], curve, n);
    for (int d = 0; d < n; d++) {
        tokens += curve[d];
        consider(k, best, m, d + 1, tokens);
    }
}

static void consider_tree(const choice *k, spec_plan *best, int budget, bool hoped)
{
    double curve[DRAFT_MAX], tokens = 1;
    int    n = least(depth_max(k->p, SPEC_TREE, k->room), budget);
    if (hoped)
        hoped_curve(curve, n, 1 - (1 - HOPED_RATE) * (1 - tree_gain(budget)));
    else
        tree_curve(k->p, curve, n, budget);
    for (int d = 0; d < n; d++) tokens += curve[d];
    if (n > 0) consider(k, best, SPEC_TREE, budget, tokens);
}

static void consider_trees(const choice *k, spec_plan *best, bool hoped)
{
    static const int budget[] = {8, 16, 22, 32, 48};
    int              most     = least(least(k->p->limits.tree_budget, DRAFT_MAX), k->room);
    for (size_t i = 0; i < COUNT(budget) && budget[i] < most; i++) consider_tree(k, best, budget[i], hoped);
    if (most > 0) consider_tree(k, best, most, hoped);
}

/* The method's best length, if it beats what *best holds. */
static void consider_method(const choice *k, spec_plan *best, spec_method m, bool hoped)
{
    if (m == SPEC_OFF)
        consider(k, best, m, 0, 1);
    else if (m == SPEC_TREE)
        consider_trees(k, best, hoped);
    else
        consider_chains(k, best, m, hoped);
}

/* Whether a trial could show anything: the best that can be hoped for is better than what we have. */
static bool may_pay(const choice *k, const spec_plan *trial)
{
    double curve[DRAFT_MAX], tokens = 1;
    int    n = least(trial->n, depth_max(k->p, trial->method, k->room));
    hoped_curve(curve, n, BEST_RATE);
    for (int d = 0; d < n; d++) tokens += curve[d];
    return tokens > trial->par;
}

/* All else is compared with plain decoding, so its cost must be known, and of late. */
static bool plain_due(const cost_table *c)
{
    const cost *one = &c->step[1];
    return !(one->seconds > 0) || c->n_steps - one->at > (one->n < FEW ? GAP_FIRST : OLD / 2);
}

/* A tree is made of DFlash's candidates: where its chains are far from paying, trees are no better. */
static bool is_hopeless(const choice *k, const spec_plan *best, spec_method m)
{
    spec_plan own = {0};
    if (m != SPEC_TREE || k->p->record[SPEC_DFLASH].tried[0] < FREE_TRIALS - 1) return false;
    consider_trees(k, &own, false);
    return own.rate < 0.7 * best->rate;
}

/* A method whose turn has come, at the length that would be best if it were good. */
static bool due_trial(const choice *k, const spec_plan *best, spec_plan *trial)
{
    for (int m = 0; m < SPEC_METHODS; m++) {
        if (m == (int)best->method || k->p->wait[m] > 0 || (m == SPEC_OFF && !plain_due(k->c))) continue;
        *trial = (spec_plan){0};
        consider_method(k, trial, m, true);
        if (!(trial->rate > 0) || is_hopeless(k, best, m)) continue; /* not there, no room, or no use */
        trial->trial = true;
        trial->n     = least(trial->n, m == SPEC_TREE ? TRIAL_TREE : TRIAL_CHAIN);
        trial->par   = best->rate * plan_cost(k, m, trial->n);
        if (m == SPEC_OFF || may_pay(k, trial)) return true;
    }
    return false;
}

spec_plan policy_choose(const policy *p, const cost_table *c, int room)
{
    choice    k    = {.p = p, .c = c, .room = room};
    spec_plan best = {0}, trial;

    measured_curves(&k.v, c);
    for (int m = 0; m < SPEC_METHODS; m++) consider_method(&k, &best, m, false);
    if (room > 0 && due_trial(&k, &best, &trial)) best = trial;
    if (k.v.step.n == 0) best.rate = 0;
    return best;
}

static void learn(policy *p, spec_method m, int n_judged, int n_right)
{
    if (n_judged > 0)
        survival_note(&p->record[m], n_judged, n_right);
    else
        survival_note(&p->record[m], 1, 0);
}

void policy_note_idle(policy *p, spec_method m, int n_judged, int n_right)
{
    if (m != SPEC_OFF && m != SPEC_TREE && n_judged > 0) learn(p, m, n_judged, n_right);
}

static int n_methods(const policy_limits *l)
{
    int n = 0;
    for (int m = SPEC_OFF + 1; m < SPEC_METHODS; m++) n += l->there[m];
    return n;
}

/* A trial that reached par is repeated at once, until the record speaks for the method or a trial fails. Each that fails
 * doubles the distance to the next; one that lost more than two tokens makes it longer still, and after the first few all
 * of them together may lose only a small share of the tokens. Being chosen for its merit brings the distance back to the
 * first one. */
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
        *gap  = least(2 * *gap, GAP_MAX * n_methods(&p->limits));
        *wait = (int)fmin(*gap * fmax(1, lost / 2), OLD);
        if (++p->lost[plan->method] > FREE_TRIALS)
            *wait = (int)fmax(*wait, fmin(lost * n_methods(&p->limits) / TRIAL_SHARE, WAIT_MAX));
    }
}

void policy_note(policy *p, const spec_plan *plan, int n_judged, int n_right)
{
    set_next_trial(p, plan, n_right);
    for (int m = 0; m < SPEC_METHODS; m++)
        if (p->wait[m] > 0) p->wait[m]--;
    if (plan->method != SPEC_TREE) forget(&p->record[SPEC_TREE], TREE_KEPT);
    if (plan->method == SPEC_OFF) return;
    if (plan->method == SPEC_TREE) {
        double share = 1 / (p->record[SPEC_TREE].tried[0] + 1);
        p->tree_gain += share * (tree_gain(plan->n) - p->tree_gain);
    }
    learn(p, plan->method, n_judged, n_right);
}
