/* Chooses the plans of all lanes of a step: draft tokens go where they are likeliest to be accepted, while they raise
 * the tokens per second of the step.
 *
 * The rows of all lanes are one step, and the drafts of all lanes that use a drafter are one pass of it (for MTP, one
 * pass per position of the draft). The first lane pays for the pass, and the others add rows to it. So one drafter is
 * considered at a time, with these starts:
 *
 *   plain     no lane drafts
 *   chains    draft tokens of one drafter are given out one by one, the likeliest first, up to the
 *             number with the most tokens per second (all numbers are tried, because costs rise in steps)
 *   trees     all lanes have trees of one budget
 *
 * In each of them, each lane in turn then takes another drafter, another length or n-grams if that is better still. The
 * best result is taken. */
#include "base/mem.h"
#include "spec/choice.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    SORT_BINS      = 128,
    MAX_TREE_PLANS = 6,
    TRIAL_CHAIN    = 6, /* maximum draft tokens of a trial */
    TRIAL_TREE     = 8, /* maximum rows of a tree in a trial */
    /* Steps after which the cost of plain decoding is measured again: where speculation is little faster, and where
     * it is much faster. */
    PLAIN_AGE_NEAR = 64,
    PLAIN_AGE_FAR  = 256,
};
static const double HOPED_RATE  = 0.8;   /* acceptance rate that is assumed to choose the length of a trial */
static const double BEST_RATE   = 0.95;  /* a method that loses even at this acceptance rate is not tried */
static const double MARGIN      = 0.03;  /* minimum relative gain of several lanes over plain decoding, */
static const double OF_NOISE    = 0.75;  /* at least this share of the noise */
static const double NEAR        = 1.5;   /* factor of plain decoding below which the gain counts as small */
static const double TRIAL_SHARE = 0.006; /* share of the tokens that trials of all lanes together may cost */
static const double WORTHLESS   = 1e-3;  /* tokens: longer drafts are not considered */

/* The possible plans of a lane, with the expected tokens of the round and the expected draft tokens that get rows. */
typedef struct {
    int   n_chain[DRAFTER_KINDS];
    float chain[DRAFTER_KINDS][1 + DRAFT_MAX], rows[DRAFTER_KINDS][1 + DRAFT_MAX]; /* by number of draft tokens */
    int   n_trees, budget[MAX_TREE_PLANS], depth[MAX_TREE_PLANS];
    float tree[MAX_TREE_PLANS], tree_rows[MAX_TREE_PLANS];
    bool  whole_drafts; /* as in cost_table */
} menu;

typedef struct {
    spec_method method;
    int         n, depth;     /* draft tokens; those in a row */
    double      tokens, rows; /* expected */
    bool        whole;        /* all draft tokens get rows */
} pick;
static const pick PLAIN = {.method = SPEC_OFF, .tokens = 1};

/* The step with the plans chosen so far. */
typedef struct {
    int    max_rows;             /* rows of the step, if all draft tokens get one */
    double rows;                 /* expected rows */
    int    block_rows, n_trees;  /* rows of the DFlash pass; number of lanes with trees in it */
    double mtp_lanes[DRAFT_MAX]; /* expected number of lanes with a draft token in this position */
    int    ngram_tokens;
    double tokens;
} load;

typedef struct {
    const policy_lane *lanes;
    int                n, max_rows;
    cost_view          v;
    double             steps[COST_MAX_ROWS + 2]; /* storage of v.step */
    menu               menus[POLICY_MAX_LANES];
} table;

/* --- menus --------------------------------------------------------------------------------------- */
/* Returns the maximum number of draft tokens in a row, or the depth of a tree; 0: the lane cannot use the method. */
static int max_depth(const policy_lane *l, spec_method m)
{
    const policy_limits *lim = &l->p->limits;
    if (m == SPEC_OFF || !lim->there[m] || l->without >> m & 1) return 0;
    return max_int(0, min_int(min_int(lim->max_draft[m], DRAFT_MAX), l->room));
}

static void chain_menu(menu *m, int k, const policy_lane *l)
{
    spec_method     method = spec_chain_method((drafter_kind)k);
    const survival *record = &l->p->record[method];
    double          rate = SURVIVAL_FIRST, all = 1, share = 1, given = 1;
    int             n = max_depth(l, method), i = 0;
    m->chain[k][0] = 1;
    m->rows[k][0]  = 0;
    for (; i < n; i++) {
        rate  = survival_rate(record, i, rate);
        share = survival_share(record, i, share);
        all *= rate;
        given *= share;
        if (all < WORTHLESS) break;
        m->chain[k][i + 1] = m->chain[k][i] + (float)all;
        m->rows[k][i + 1]  = m->rows[k][i] + (float)given;
    }
    m->n_chain[k] = i;
}

/* Fills out with the tree budgets to consider, ascending, and returns their number. */
static int tree_budgets(const policy_lane *l, int out[MAX_TREE_PLANS])
{
    static const int budget[] = {8, 16, 22, 32, 48};
    int              n = 0, max_budget = min_int(min_int(l->p->limits.tree_budget, DRAFT_MAX), l->room);
    _Static_assert(COUNT(budget) < MAX_TREE_PLANS, "and one more");
    if (max_depth(l, SPEC_TREE) == 0) return 0;
    while (n < (int)COUNT(budget) && budget[n] < max_budget) {
        out[n] = budget[n];
        n++;
    }
    if (max_budget > 0) out[n++] = max_budget;
    return n;
}

static void make_menu(menu *m, const policy_lane *l)
{
    int    depth = max_depth(l, SPEC_TREE);
    double rate[DRAFT_MAX];
    for (int k = 0; k < DRAFTER_KINDS; k++) chain_menu(m, k, l);
    m->n_trees = tree_budgets(l, m->budget);
    if (m->n_trees) policy_tree_rates(l->p, rate, depth);
    for (int i = 0; i < m->n_trees; i++) {
        m->depth[i]     = min_int(depth, m->budget[i]);
        m->tree[i]      = (float)policy_tree_tokens(l->p, rate, m->budget[i], m->depth[i]);
        m->tree_rows[i] = (float)((1 - l->p->tree_cut) * m->budget[i]);
    }
}

/* --- the current step --------------------------------------------------------------------------- */
/* Returns the value of a curve by rows between two whole numbers; it begins with 0. */
static double between(const double *curve, double rows)
{
    int    low  = (int)rows;
    double rest = rows - low, at = low ? curve[low] : 0;
    return rest > 0 ? at + rest * (curve[low + 1] - at) : at;
}

static double draft_seconds(const cost_view *v, const load *s)
{
    double sum = s->block_rows > 0 ? v->block[s->n_trees > 0 ? SPEC_TREE : SPEC_DFLASH][s->block_rows] : 0;
    for (int d = 0; d < DRAFT_MAX && s->mtp_lanes[d] > 0; d++) sum += between(v->pass, s->mtp_lanes[d]);
    return sum + v->ngram * s->ngram_tokens;
}

static double step_seconds(const cost_view *v, const load *s)
{
    return draft_seconds(v, s) + between(v->step, s->rows);
}

/* Returns the share of rounds in which the lane's MTP drafter makes draft token d: the draft ends after a token that
 * gets no row. */
static double pass_share(const menu *m, int d)
{
    const float *rows = m->rows[DRAFTER_MTP];
    return d && !m->whole_drafts ? (double)(rows[d] - rows[d - 1]) : 1;
}

/* Adds the pick of a lane to the step, or removes it. */
static void count_pick(load *s, const menu *m, const pick *p, int sign)
{
    s->max_rows += sign * p->n;
    s->rows += sign * p->rows;
    s->tokens += sign * p->tokens;
    if (p->method == SPEC_DFLASH || p->method == SPEC_TREE) s->block_rows += sign * (1 + p->depth);
    if (p->method == SPEC_TREE) s->n_trees += sign;
    if (p->method == SPEC_NGRAM) s->ngram_tokens += sign * p->n;
    for (int d = 0; p->method == SPEC_MTP && d < p->n; d++)
        s->mtp_lanes[d] = fmax(0, s->mtp_lanes[d] + sign * (p->whole ? 1 : pass_share(m, d)));
}

static pick chain_pick(const menu *m, int k, int n)
{
    return (pick){.method = spec_chain_method((drafter_kind)k),
                  .n      = n,
                  .depth  = n,
                  .tokens = (double)m->chain[k][n],
                  .rows   = (double)m->rows[k][n]};
}

static pick tree_pick(const menu *m, int i)
{
    return (pick){.method = SPEC_TREE,
                  .n      = m->budget[i],
                  .depth  = m->depth[i],
                  .tokens = (double)m->tree[i],
                  .rows   = (double)m->tree_rows[i]};
}

/* Returns a plan of the lane in which all n draft tokens get rows. */
static pick whole_pick(const table *t, int i, spec_method method, int n)
{
    const policy_lane *l     = &t->lanes[i];
    const menu        *m     = &t->menus[i];
    int                depth = min_int(n, max_depth(l, method));
    if (method == SPEC_OFF || n <= 0) return PLAIN;
    pick p = {.method = method, .n = n, .depth = depth, .tokens = 1, .rows = n, .whole = true};
    if (method == SPEC_TREE) {
        double rate[DRAFT_MAX];
        policy_tree_rates(l->p, rate, depth);
        p.tokens = policy_tree_tokens(l->p, rate, n, depth);
    } else {
        int k    = (int)spec_method_drafter(method);
        p.tokens = (double)m->chain[k][min_int(depth, m->n_chain[k])];
    }
    return p;
}

/* --- starts -------------------------------------------------------------------------------------- */
typedef struct {
    load   s;
    pick   picks[POLICY_MAX_LANES];
    double rate;
} outcome;

/* Copies the picks of the lanes alone: there is room for many more. */
static void copy_outcome(const table *t, outcome *to, const outcome *from)
{
    to->s    = from->s;
    to->rate = from->rate;
    memcpy(to->picks, from->picks, (size_t)t->n * sizeof *to->picks);
}

static void replace_pick(const table *t, outcome *o, int lane, pick p)
{
    count_pick(&o->s, &t->menus[lane], &o->picks[lane], -1);
    count_pick(&o->s, &t->menus[lane], &p, 1);
    o->picks[lane] = p;
}

static double rate_of(const table *t, const load *s) { return s->tokens / step_seconds(&t->v, s); }

/* Starts with draft tokens only for lanes with given plans; if they do not all fit, each gets an equal share. */
static void start_plain(const table *t, int fixed_rows, outcome *o)
{
    int rows[POLICY_MAX_LANES];
    o->s = (load){.rows = fixed_rows + t->n, .max_rows = fixed_rows + t->n};
    for (int i = 0; i < t->n; i++) rows[i] = t->lanes[i].fixed ? t->lanes[i].fixed->n : 0;
    choice_share_rows(rows, t->n, t->max_rows - o->s.max_rows);
    for (int i = 0; i < t->n; i++) {
        const spec_plan *fixed = t->lanes[i].fixed;
        o->picks[i]            = whole_pick(t, i, fixed ? fixed->method : SPEC_OFF, rows[i]);
        count_pick(&o->s, &t->menus[i], &o->picks[i], 1);
    }
    o->rate = rate_of(t, &o->s);
}

/* Lists lanes in the order in which they get draft tokens, once for each token: the token most likely to be accepted
 * first. */
static int by_worth(const table *t, int k, uint16_t *order)
{
    int first[SORT_BINS + 1] = {0}, n = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < t->n; i++) {
            const menu *m = &t->menus[i];
            for (int d = 0; !t->lanes[i].fixed && d < m->n_chain[k]; d++) {
                int bin = (int)((1 - (m->chain[k][d + 1] - m->chain[k][d])) * (SORT_BINS - 1));
                if (pass == 0)
                    first[bin + 1]++;
                else
                    order[first[bin]++] = (uint16_t)i;
            }
        }
        for (int b = 0; pass == 0 && b < SORT_BINS; b++) first[b + 1] += first[b];
        if (pass == 0) n = first[SORT_BINS];
    }
    return n;
}

/* Lists one draft token per lane, the best lane first, then a second one: a pass is expensive and shared by all. */
static int by_place(const table *t, int k, uint16_t *order)
{
    uint16_t lane[POLICY_MAX_LANES];
    int      n_lanes = 0, n = 0;
    for (int i = 0; i < t->n; i++) {
        if (t->lanes[i].fixed || t->menus[i].n_chain[k] == 0) continue;
        int at = n_lanes++;
        for (; at > 0 && t->menus[lane[at - 1]].chain[k][1] < t->menus[i].chain[k][1]; at--) lane[at] = lane[at - 1];
        lane[at] = (uint16_t)i;
    }
    for (int d = 0; d < DRAFT_MAX; d++) {
        int before = n;
        for (int i = 0; i < n_lanes; i++)
            if (t->menus[lane[i]].n_chain[k] > d) order[n++] = lane[i];
        if (n == before) break;
    }
    return n;
}

static void give_draft_token(const table *t, int k, load *s, int n, int lane)
{
    const menu *m = &t->menus[lane];
    s->max_rows++;
    s->rows += (double)(m->rows[k][n + 1] - m->rows[k][n]);
    s->tokens += (double)(m->chain[k][n + 1] - m->chain[k][n]);
    s->block_rows += k == DRAFTER_DFLASH ? (n == 0) + 1 : 0;
    s->ngram_tokens += k == DRAFTER_NGRAM;
    if (k == DRAFTER_MTP) s->mtp_lanes[n] += pass_share(m, n);
}

/* Adds the number of draft tokens of one drafter that gives the best step. Returns false if that is none. */
static bool add_chains(const table *t, int k, outcome *o)
{
    uint16_t order[POLICY_MAX_LANES * DRAFT_MAX];
    uint8_t  given[POLICY_MAX_LANES] = {0};
    load     at                      = o->s;
    int      all                     = k == DRAFTER_MTP ? by_place(t, k, order) : by_worth(t, k, order);
    int      n = min_int(all, t->max_rows - o->s.max_rows), best = 0;
    for (int i = 0; i < n; i++) {
        give_draft_token(t, k, &at, given[order[i]]++, order[i]);
        double rate = rate_of(t, &at);
        if (rate <= o->rate) continue;
        o->rate = rate;
        best    = i + 1;
    }
    if (best == 0) return false;
    memset(given, 0, sizeof given);
    for (int i = 0; i < best; i++) given[order[i]]++;
    for (int i = 0; i < t->n; i++)
        if (given[i]) replace_pick(t, o, i, chain_pick(&t->menus[i], k, given[i]));
    return true;
}

/* Gives a tree of the budget to all lanes that can have one. Returns false if there is none. */
static bool add_trees(const table *t, int budget, outcome *o)
{
    bool any = false;
    for (int i = 0; i < t->n; i++) {
        const menu *m = &t->menus[i];
        if (t->lanes[i].fixed || budget >= m->n_trees || o->s.max_rows + m->budget[budget] > t->max_rows) continue;
        replace_pick(t, o, i, tree_pick(m, budget));
        any = true;
    }
    o->rate = rate_of(t, &o->s);
    return any;
}

/* The step without a lane, for its choice. */
typedef struct {
    const table *t;
    const load  *s;
    double       rate, row_s; /* row_s: seconds of every row that is added */
    double       block;       /* seconds of the DFlash pass */
} seat;

/* Returns the seconds that n draft tokens of the lane add to the drafts of the others. before: those of n - 1. */
static double added_draft(const seat *k, const menu *m, int kind, int n, double before)
{
    const cost_view *v = &k->t->v;
    if (kind == DRAFTER_NGRAM) return v->ngram * n;
    if (kind == DRAFTER_DFLASH) return v->block[SPEC_DFLASH][k->s->block_rows + 1 + n] - k->block;
    double lanes = k->s->mtp_lanes[n - 1];
    return before + between(v->pass, lanes + pass_share(m, n - 1)) - between(v->pass, lanes);
}

/* Finds the chain of the drafter that is worth most: tokens less those that all lanes make in the time. Once all tokens
 * of the chain are not worth the time so far, no longer one is. */
static void best_chain(const seat *k, const menu *m, int kind, pick *best, double *top)
{
    const float *tokens = m->chain[kind];
    int          n = min_int(m->n_chain[kind], k->t->max_rows - k->s->max_rows), at = 0;
    double       draft = 0;
    for (int i = 1; i <= n; i++) {
        draft        = added_draft(k, m, kind, i, draft);
        double spent = k->rate * (draft + k->row_s * (double)m->rows[kind][i]);
        if ((double)tokens[n] - spent <= *top) break;
        if ((double)tokens[i] - spent <= *top) continue;
        *top = (double)tokens[i] - spent;
        at   = i;
    }
    if (at) *best = chain_pick(m, kind, at);
}

/* Lets lanes change their plans one after another where that makes a better step: each may suit another drafter. */
static void improve_picks(const table *t, outcome *o)
{
    for (int i = 0; i < t->n; i++) {
        const menu *m   = &t->menus[i];
        pick        was = o->picks[i], best = PLAIN;
        double      top = 1;
        int         row = min_int((int)o->s.rows, t->max_rows - 1);
        if (t->lanes[i].fixed) continue;
        count_pick(&o->s, m, &was, -1);
        seat k = {t, &o->s, o->rate, t->v.step[row + 1] - t->v.step[row], 0};
        if (o->s.block_rows) k.block = t->v.block[SPEC_DFLASH][o->s.block_rows];
        for (int d = 0; d < DRAFTER_KINDS; d++) best_chain(&k, m, d, &best, &top);
        count_pick(&o->s, m, &best, 1);
        double rate = rate_of(t, &o->s);
        if (rate > o->rate * (1 + 1e-9)) {
            o->picks[i] = best;
            o->rate     = rate;
        } else {
            count_pick(&o->s, m, &best, -1);
            count_pick(&o->s, m, &was, 1);
        }
    }
}

static void take_better(const table *t, outcome *best, outcome *o)
{
    improve_picks(t, o);
    if (o->rate > best->rate) copy_outcome(t, best, o);
}

/* Returns the relative gain over plain decoding below which several lanes decode plainly. */
static double needed_gain(const table *t, const cost_table *c)
{
    return t->n > 1 ? fmax(MARGIN, OF_NOISE * c->noise) : 0;
}

static void best_outcome(const table *t, const cost_table *c, const outcome *plain, outcome *best)
{
    outcome o;
    copy_outcome(t, best, plain);
    improve_picks(t, best);
    for (int k = 0; k < DRAFTER_KINDS; k++) {
        copy_outcome(t, &o, plain);
        if (add_chains(t, k, &o)) take_better(t, best, &o);
    }
    for (int b = 0; b < MAX_TREE_PLANS; b++) {
        copy_outcome(t, &o, plain);
        if (!add_trees(t, b, &o)) break;
        take_better(t, best, &o);
    }
    if (best->rate < (1 + needed_gain(t, c)) * plain->rate) copy_outcome(t, best, plain);
}

/* --- trials -------------------------------------------------------------------------------------- */
/* Lanes that try a method together, because they share its pass. */
typedef struct {
    spec_method method;
    bool        in[POLICY_MAX_LANES];
    int         n;
    outcome     o;
    double      par;    /* tokens of all these lanes that would equal the best plans */
    double      needed; /* tokens with which the method would be chosen */
    double      hoped;  /* expected tokens if the method were good */
    double      max;    /* expected tokens if nearly all draft tokens were accepted */
    double      record; /* expected tokens by the records of the lanes */
} group;

static bool may_try(const table *t, const outcome *best, int i, spec_method m)
{
    const policy_lane *l = &t->lanes[i];
    if (l->fixed || best->picks[i].method == m || l->p->wait[m] > 0 || max_depth(l, m) == 0) return false;
    return m != SPEC_TREE || t->menus[i].n_trees > 0;
}

/* Returns 1 + rate + rate^2 + ... + rate^n. */
static double hoped_tokens(double rate, int n)
{
    double all = 1, tokens = 1;
    for (int d = 0; d < n; d++) tokens += all *= rate;
    return tokens;
}

static bool drafts_nothing(const table *t, const outcome *o)
{
    for (int i = 0; i < t->n; i++)
        if (!t->lanes[i].fixed && o->picks[i].method != SPEC_OFF) return false;
    return true;
}

/* gain: as needed_gain. */
static void make_group(const table *t, const outcome *best, spec_method m, int n, double gain, group *g)
{
    double par = 0;
    g->method  = m;
    g->n       = 0;
    g->hoped = g->max = g->record = 0;
    copy_outcome(t, &g->o, best);
    for (int i = 0; i < t->n; i++) {
        int room = min_int(t->max_rows - g->o.s.max_rows + best->picks[i].n, t->lanes[i].room);
        g->in[i] = may_try(t, best, i, m) && room > 0;
        if (!g->in[i]) continue;
        int want = m == SPEC_TREE ? TRIAL_TREE : min_int(n, max_depth(&t->lanes[i], m));
        replace_pick(t, &g->o, i, whole_pick(t, i, m, min_int(want, room)));
        const pick *p = &g->o.picks[i];
        g->n++;
        par += best->picks[i].tokens;
        g->hoped += hoped_tokens(HOPED_RATE, p->depth);
        g->max += hoped_tokens(BEST_RATE, p->depth);
        g->record += p->tokens;
    }
    double s  = step_seconds(&t->v, &g->o.s);
    g->par    = par + best->rate * (s - step_seconds(&t->v, &best->s));
    g->needed = g->par + (drafts_nothing(t, best) ? gain * best->rate * s : 0);
}

/* Allows a small loss for lanes that have just begun, because they have no record. A lane that is alone limits its
 * trials itself (policy_note). */
static bool within_budget(const table *t, const cost_table *c, const group *g)
{
    double free_tokens = 2.0 * t->n;
    return t->n == 1 || c->lost + fmax(0, g->par - g->record) <= TRIAL_SHARE * c->tokens + free_tokens;
}

/* Returns whether trees are far from paying according to DFlash's records, so that a trial is useless. */
static bool is_hopeless(const table *t, const group *g)
{
    if (g->method != SPEC_TREE) return false;
    for (int i = 0; i < t->n; i++)
        if (g->in[i] && !policy_knows_dflash(t->lanes[i].p)) return false;
    return g->record < 0.7 * g->par;
}

/* Finds the length with the largest gain of the group if the method were good. */
static bool best_group(const table *t, const outcome *best, const cost_table *c, spec_method m, group *g)
{
    double top = 0, gain = needed_gain(t, c);
    int    at = 0;
    for (int n = 1; n <= (m == SPEC_TREE ? 1 : TRIAL_CHAIN); n++) {
        make_group(t, best, m, n, gain, g);
        if (g->n == 0) return false;
        if (at == 0 || g->hoped - g->par > top) {
            top = g->hoped - g->par;
            at  = n;
        }
    }
    make_group(t, best, m, at, gain, g);
    return g->max > g->needed && !is_hopeless(t, g) && within_budget(t, c, g);
}

/* Returns whether all lanes should decode plainly once, to measure its cost: every plan is compared with it. If
 * drafting gains much, an older cost of a similar number of rows suffices. */
static bool plain_due(const table *t, const outcome *best, const outcome *plain, const cost_table *c, int fixed_rows,
                      int32_t ctx)
{
    bool near = t->n > 1 && best->rate < NEAR * plain->rate;
    int  low = near ? t->n - t->n / 8 : (t->n + 1) / 2, high = near ? t->n + t->n / 16 : 2 * t->n - (t->n == 1);
    if (fixed_rows > 0 || best->s.max_rows == t->n ||
        cost_step_is_known(c, low, high, ctx, near ? PLAIN_AGE_NEAR : PLAIN_AGE_FAR))
        return false;
    for (int i = 0; i < t->n; i++)
        if (t->lanes[i].fixed || (t->n == 1 && t->lanes[i].p->wait[SPEC_OFF] > 0)) return false;
    return true;
}

static void put_plans(const table *t, const outcome *o, double rate, spec_plan *out)
{
    for (int i = 0; i < t->n; i++)
        out[i] = (spec_plan){.method = o->picks[i].method, .n = o->picks[i].n, .rate = t->v.measured ? rate : 0};
}

/* Divides the change of the step's cost by the trial among the lanes that try: those whose plans change. */
static void put_trial(const table *t, const outcome *best, const outcome *o, spec_plan *out)
{
    bool   in[POLICY_MAX_LANES];
    int    n = 0;
    double s = step_seconds(&t->v, &o->s) - step_seconds(&t->v, &best->s);
    for (int i = 0; i < t->n; i++) n += in[i] = o->picks[i].method != best->picks[i].method;
    for (int i = 0; i < t->n; i++)
        if (in[i])
            out[i] = (spec_plan){.method = o->picks[i].method,
                                 .n      = o->picks[i].n,
                                 .trial  = true,
                                 .rate   = out[i].rate,
                                 .par    = best->picks[i].tokens + best->rate * s / n,
                                 .step_s = step_seconds(&t->v, &o->s)};
}

/* --- all together -------------------------------------------------------------------------------- */
static void forecast_step(const table *t, const cost_table *c, const load *s, int fixed_rows, policy_forecast *f)
{
    double pace = cost_pace(c);
    *f          = (policy_forecast){.tokens       = s->tokens,
                                    .draft_s      = pace * draft_seconds(&t->v, s),
                                    .step_s       = pace * between(t->v.step, s->rows),
                                    .plain_tokens = t->n,
                                    .plain_s      = pace * t->v.step[fixed_rows + t->n]};
}

static int32_t mean_context(const policy_lane *lanes, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += lanes[i].ctx;
    return (int32_t)(sum / n);
}

static void table_init(table *t, const policy_lane *lanes, int n, const cost_table *c, int32_t ctx, int fixed_rows,
                       int max_rows)
{
    assert(n >= 1 && n <= POLICY_MAX_LANES && max_rows <= COST_MAX_ROWS && fixed_rows + n <= max_rows);
    cost_view_init(&t->v, c, ctx);
    t->lanes    = lanes;
    t->n        = n;
    t->max_rows = max_rows;
    for (int i = 0; i < n; i++) {
        make_menu(&t->menus[i], &lanes[i]);
        t->menus[i].whole_drafts = c->whole_drafts;
    }
    choice_row_costs(t->steps, t->v.step, fixed_rows, n, max_rows);
    t->v.step = t->steps;
}

void policy_choose_all(const policy_lane *lanes, int n, const cost_table *c, int fixed_rows, int max_rows,
                       spec_plan *out, policy_forecast *f)
{
    table   t;
    outcome plain, best;
    group   g;
    int32_t ctx = mean_context(lanes, n);
    table_init(&t, lanes, n, c, ctx, fixed_rows, max_rows);
    start_plain(&t, fixed_rows, &plain);
    best_outcome(&t, c, &plain, &best);
    put_plans(&t, &best, best.rate, out);
    if (f) forecast_step(&t, c, &best.s, fixed_rows, f);
    if (plain_due(&t, &best, &plain, c, fixed_rows, ctx)) {
        put_trial(&t, &best, &plain, out);
        return;
    }
    for (int m = SPEC_OFF + 1; m < SPEC_METHODS; m++)
        if (best_group(&t, &best, c, (spec_method)m, &g)) {
            put_trial(&t, &best, &g.o, out);
            return;
        }
}

spec_plan policy_choose(const policy *p, const cost_table *c, int room, int32_t ctx)
{
    spec_plan plan;
    policy_choose_all(&(policy_lane){.p = p, .room = room, .ctx = ctx}, 1, c, 0, COST_MAX_ROWS, &plan, NULL);
    return plan;
}

/* --- comparisons --------------------------------------------------------------------------------- */
static int n_plans(const menu *m, spec_method method)
{
    if (method == SPEC_OFF) return 1;
    return method == SPEC_TREE ? m->n_trees : m->n_chain[spec_method_drafter(method)];
}

static pick nth_plan(const menu *m, spec_method method, int i)
{
    if (method == SPEC_OFF) return PLAIN;
    return method == SPEC_TREE ? tree_pick(m, i) : chain_pick(m, (int)spec_method_drafter(method), i + 1);
}

/* Finds the plan of the method with the best step. s: the step without the lane. */
static void compare_method(const table *t, const menu *m, const load *s, spec_method method, policy_option *out)
{
    for (int i = 0; i < n_plans(m, method); i++) {
        load with = *s;
        pick p    = nth_plan(m, method, i);
        if (s->max_rows + p.n > t->max_rows) break;
        count_pick(&with, m, &p, 1);
        double rate = rate_of(t, &with);
        if (rate > out->rate) *out = (policy_option){.n = p.n, .tokens = p.tokens, .rate = rate};
    }
}

void policy_compare(const policy_lane *lanes, int n, int at, const cost_table *c, int fixed_rows, int max_rows,
                    policy_options *out)
{
    table   t;
    outcome o;
    double  pace = cost_pace(c);
    table_init(&t, lanes, n, c, mean_context(lanes, n), fixed_rows, max_rows);
    start_plain(&t, fixed_rows, &o);
    count_pick(&o.s, &t.menus[at], &o.picks[at], -1);
    *out = (policy_options){.rows = o.s.max_rows};
    if (!t.v.measured) return;
    if (o.s.max_rows < max_rows) out->row_s = pace * (t.v.step[o.s.max_rows + 1] - t.v.step[o.s.max_rows]);
    for (int m = 0; m < SPEC_METHODS; m++) {
        policy_option *p = &out->option[m];
        compare_method(&t, &t.menus[at], &o.s, (spec_method)m, p);
        p->rate /= pace;
        if (m == SPEC_OFF || m == SPEC_TREE) continue;
        p->n_survival = min_int(p->n, POLICY_SHOWN);
        survival_curve(&lanes[at].p->record[m], p->survival, p->n_survival);
    }
}
