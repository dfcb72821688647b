/* Plans for many lanes in one step, where the best plan of a lane depends on those of the others.
 *
 * The rows of all lanes are one step, and the drafts of all lanes that use a drafter are one pass of it (for MTP, one
 * pass per position of the draft). The first lane pays for the pass, and the others add rows to it. Where rows are
 * expensive, each lane's draft delays all others. The search:
 *
 *   starts    no lane drafts; or all lanes use one method, and draft tokens are distributed up to the number with
 *             the most tokens per second (all numbers are tried, because costs rise in steps)
 *   sweeps    each lane in turn gets the plan with the largest (tokens - rate * seconds), given the plans of the
 *             others, until no plan changes. `rate` is that of the plans so far, so tokens per second can only rise
 *
 * The best result is taken. Seconds are sums of values from tables, so the plans of a lane are compared in a plain
 * loop. */
#include "spec/choice.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    SWEEPS    = 8, /* maximum; nearly all searches end earlier */
    SORT_BINS = 128,
    SPAN      = 16,
};
static const double MARGIN      = 0.03;  /* minimum relative gain over plain decoding, */
static const double NEAR        = 1.5;   /* factor of plain decoding below which the gain counts as small */
static const double OF_NOISE    = 0.75;  /* at least this share of the noise */
static const double BATCH_SHARE = 0.006; /* share of the tokens that trials of all lanes together may cost */
static const double WORTHLESS   = 1e-3;  /* tokens: longer drafts are not considered */

/* The possible plans of a lane, with their expected tokens. */
typedef struct {
    int   n_chain[DRAFTER_KINDS];
    float chain[DRAFTER_KINDS][1 + DRAFT_MAX]; /* by number of draft tokens */
    int   n_trees, budget[MAX_TREE_PLANS], depth[MAX_TREE_PLANS];
    float tree[MAX_TREE_PLANS];
} menu;

typedef struct {
    spec_method method;
    int         n, depth; /* rows without the anchor; draft tokens in a row */
    double      tokens;
} pick;

/* The step with the plans chosen so far. */
typedef struct {
    int    rows;                 /* rows of the step */
    int    block_rows, n_trees;  /* rows of the DFlash pass; number of lanes with trees in it */
    int    mtp_lanes[DRAFT_MAX]; /* number of lanes with a draft token in this position */
    int    ngram_tokens;
    double tokens;
} load;

typedef struct {
    const policy_lane *lanes;
    int                n, max_rows;
    cost_view          v;
    double             steps[COST_MAX_ROWS + 1]; /* storage of v.step */
    menu               menus[POLICY_MAX_LANES];
} table;

/* --- menus --------------------------------------------------------------------------------------- */
static void chain_menu(menu *m, int k, const policy_lane *l)
{
    const survival *record = &l->p->record[spec_chain_method((drafter_kind)k)];
    double          rate = SURVIVAL_FIRST, all = 1;
    int             n = choice_depth(l, spec_chain_method((drafter_kind)k)), i = 0;
    m->chain[k][0] = 1;
    for (; i < n; i++) {
        rate = survival_rate(record, i, rate);
        all *= rate;
        if (all < WORTHLESS) break;
        m->chain[k][i + 1] = m->chain[k][i] + (float)all;
    }
    m->n_chain[k] = i;
}

static void make_menu(menu *m, const policy_lane *l)
{
    double tokens[MAX_TREE_PLANS];
    for (int k = 0; k < DRAFTER_KINDS; k++) chain_menu(m, k, l);
    m->n_trees = choice_budgets(l, m->budget);
    choice_tree_tokens(l, m->budget, m->n_trees, tokens);
    for (int i = 0; i < m->n_trees; i++) {
        m->tree[i]  = (float)tokens[i];
        m->depth[i] = min_int(choice_depth(l, SPEC_TREE), m->budget[i]);
    }
}

/* Sets up the cost of added rows. Prompt chunks run in any case: their cost is not a cost of drafting, and must not
 * make drafts look cheap in comparison. They only move the point on the curve at which rows are added.
 *
 * One row among many costs less than the noise of a measurement, so it may look free, and a row that looks free would
 * always be used. Therefore a row costs at least a quarter of the average cost per row, around this point or up to the
 * maximum number of rows, whichever is less. */
static double mean_row(const double *steps, int from, int to)
{
    return to > from ? (steps[to] - steps[from]) / (to - from) : 0;
}

static void draw_steps(table *t, int fixed_rows)
{
    const double *measured = t->v.step;
    int           base = fixed_rows + t->n, low = base > 1 ? base / 2 : 1, high = min_int(2 * base + 2, COST_MAX_ROWS);
    double        at_least =
        fmin(mean_row(measured, low, high), mean_row(measured, base, min_int(base + t->n * SPAN, COST_MAX_ROWS))) / 4;
    double prompts = measured[base] - measured[t->n];
    t->steps[base] = measured[t->n];
    for (int rows = base + 1; rows <= t->max_rows; rows++)
        t->steps[rows] = fmax(measured[rows] - prompts, t->steps[rows - 1] + at_least);
    t->v.step = t->steps;
}

/* --- the current step --------------------------------------------------------------------------- */
static const double *block_costs(const cost_view *v, int n_trees)
{
    return v->block[n_trees > 0 ? SPEC_TREE : SPEC_DFLASH];
}

static double block_cost(const cost_view *v, const load *s)
{
    return s->block_rows > 0 ? block_costs(v, s->n_trees)[s->block_rows] : 0;
}

static double mtp_cost(const cost_view *v, const load *s)
{
    double sum = 0;
    for (int d = 0; d < DRAFT_MAX && s->mtp_lanes[d] > 0; d++) sum += v->pass[s->mtp_lanes[d]];
    return sum;
}

static double draft_seconds(const cost_view *v, const load *s)
{
    return block_cost(v, s) + mtp_cost(v, s) + v->ngram * s->ngram_tokens;
}

static double step_seconds(const cost_view *v, const load *s) { return draft_seconds(v, s) + v->step[s->rows]; }

/* Adds the pick to the step, or removes it. */
static void count_pick(load *s, const pick *p, int sign)
{
    s->rows += sign * p->n;
    s->tokens += sign * p->tokens;
    if (p->method == SPEC_DFLASH || p->method == SPEC_TREE) s->block_rows += sign * (1 + p->depth);
    if (p->method == SPEC_TREE) s->n_trees += sign;
    if (p->method == SPEC_NGRAM) s->ngram_tokens += sign * p->n;
    for (int d = 0; p->method == SPEC_MTP && d < p->n; d++) s->mtp_lanes[d] += sign;
}

/* --- sweeps -------------------------------------------------------------------------------------- */
typedef struct {
    pick   p;
    double worth; /* added tokens - rate * added seconds */
} offer;

static void offer_plan(offer *best, spec_method m, int n, int depth, double tokens, double worth)
{
    if (worth > best->worth) *best = (offer){{m, n, depth, tokens}, worth};
}

/* The choice of one lane: the step without its draft tokens. */
typedef struct {
    const cost_view *v;
    const load      *s;
    const double    *steps; /* by number of added draft tokens */
    int              room;
    double           rate, block_now;
} seat;

/* Finds the best length of a chain. extra[n]: seconds of drafting n tokens; `before`: without any. Costs never
 * decrease: once all tokens of the chain do not pay for the cost so far, no longer chain does. */
static void best_length(const seat *k, offer *best, spec_method m, const float *tokens, int n, const double *extra,
                        double before)
{
    int    at  = 0;
    double top = best->worth, paid = k->steps[0] + before, all = (double)tokens[n];
    for (int i = 1; i <= n; i++) {
        double spent = k->rate * (k->steps[i] + extra[i] - paid), worth = (double)tokens[i] - spent;
        if (all - spent <= top) break;
        if (worth > top) {
            top = worth;
            at  = i;
        }
    }
    if (at) offer_plan(best, m, at, at, (double)tokens[at], top);
}

static void offer_blocks(const seat *k, const menu *m, offer *best)
{
    int           n     = min_int(m->n_chain[DRAFTER_DFLASH], k->room);
    const double *extra = block_costs(k->v, k->s->n_trees) + k->s->block_rows + 1;
    const double *tree  = k->v->block[SPEC_TREE] + k->s->block_rows + 1;
    best_length(k, best, SPEC_DFLASH, m->chain[DRAFTER_DFLASH], n, extra, k->block_now);
    for (int i = 0; i < m->n_trees && m->budget[i] <= k->room; i++) {
        double more = tree[m->depth[i]] - k->block_now + k->steps[m->budget[i]] - k->steps[0];
        offer_plan(best, SPEC_TREE, m->budget[i], m->depth[i], (double)m->tree[i], (double)m->tree[i] - k->rate * more);
    }
}

static void offer_mtp(const seat *k, const menu *m, offer *best)
{
    double extra[1 + DRAFT_MAX];
    int    n = min_int(m->n_chain[DRAFTER_MTP], k->room);
    extra[0] = 0;
    for (int i = 0; i < n; i++) {
        int lanes    = k->s->mtp_lanes[i];
        extra[i + 1] = extra[i] + k->v->pass[lanes + 1] - (lanes > 0 ? k->v->pass[lanes] : 0);
    }
    best_length(k, best, SPEC_MTP, m->chain[DRAFTER_MTP], n, extra, 0);
}

static void offer_ngrams(const seat *k, const menu *m, offer *best)
{
    double extra[1 + DRAFT_MAX];
    int    n = min_int(m->n_chain[DRAFTER_NGRAM], k->room);
    for (int i = 1; i <= n; i++) extra[i] = k->v->ngram * i;
    best_length(k, best, SPEC_NGRAM, m->chain[DRAFTER_NGRAM], n, extra, 0);
}

/* Returns the best plan of a lane whose pick is not in s. */
static offer best_offer(const table *t, const menu *m, const load *s, double rate)
{
    seat  k    = {.v         = &t->v,
                  .s         = s,
                  .steps     = t->v.step + s->rows,
                  .room      = t->max_rows - s->rows,
                  .rate      = rate,
                  .block_now = block_cost(&t->v, s)};
    offer best = {{SPEC_OFF, 0, 0, 1}, 1};
    offer_blocks(&k, m, &best);
    if (m->n_chain[DRAFTER_MTP] > 0) offer_mtp(&k, m, &best);
    if (m->n_chain[DRAFTER_NGRAM] > 0) offer_ngrams(&k, m, &best);
    return best;
}

static double worth_of(const table *t, const load *without, const pick *p, double rate)
{
    load with = *without;
    count_pick(&with, p, 1);
    return p->tokens - rate * (step_seconds(&t->v, &with) - step_seconds(&t->v, without));
}

static bool sweep_lanes(const table *t, load *s, pick *picks)
{
    bool   changed = false;
    double rate    = s->tokens / step_seconds(&t->v, s);
    for (int i = 0; i < t->n; i++) {
        pick *p = &picks[i];
        if (t->lanes[i].fixed) continue;
        count_pick(s, p, -1);
        offer best = best_offer(t, &t->menus[i], s, rate);
        if ((best.p.method != p->method || best.p.n != p->n) && best.worth > worth_of(t, s, p, rate) + 1e-9) {
            *p      = best.p;
            changed = true;
        }
        count_pick(s, p, 1);
    }
    return changed;
}

/* --- starts -------------------------------------------------------------------------------------- */
/* Returns a given plan of the lane, shortened to the remaining rows. */
static pick pick_of(const table *t, int i, const spec_plan *plan, int room)
{
    const policy_lane *l = &t->lanes[i];
    const menu        *m = &t->menus[i];
    pick               p = {SPEC_OFF, 0, 0, 1};
    int                n = min_int(plan->n, room);
    if (plan->method == SPEC_OFF || n <= 0) return p;
    p = (pick){plan->method, n, min_int(n, choice_depth(l, plan->method)), 1};
    if (p.method == SPEC_TREE) choice_tree_tokens(l, &n, 1, &p.tokens);
    for (int k = 0; k < DRAFTER_KINDS; k++)
        if (p.method == spec_chain_method((drafter_kind)k))
            p.tokens = (double)m->chain[k][min_int(p.depth, m->n_chain[k])];
    return p;
}

/* Starts with draft tokens only for lanes with given plans; if they do not all fit, each gets an equal share. */
static void start_plain(const table *t, int fixed_rows, load *s, pick *picks)
{
    int rows[POLICY_MAX_LANES];
    *s = (load){.rows = fixed_rows + t->n};
    for (int i = 0; i < t->n; i++) rows[i] = t->lanes[i].fixed ? t->lanes[i].fixed->n : 0;
    choice_share_rows(rows, t->n, t->max_rows - s->rows);
    for (int i = 0; i < t->n; i++) {
        const spec_plan *fixed = t->lanes[i].fixed;
        picks[i]               = pick_of(t, i, fixed ? fixed : &(spec_plan){0}, rows[i]);
        count_pick(s, &picks[i], 1);
    }
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

static void give_draft_token(const table *t, int k, load *s, pick *p, int lane)
{
    const float *tokens = t->menus[lane].chain[k];
    int          n      = p->method == SPEC_OFF ? 0 : p->n;
    *p                  = (pick){spec_chain_method((drafter_kind)k), n + 1, n + 1, (double)tokens[n + 1]};
    s->rows++;
    s->tokens += (double)(tokens[n + 1] - tokens[n]);
    s->block_rows += k == DRAFTER_DFLASH ? (n == 0) + 1 : 0;
    if (k == DRAFTER_MTP) s->mtp_lanes[n]++;
    s->ngram_tokens += k == DRAFTER_NGRAM;
}

/* Adds the number of draft tokens of one method that gives the best step to the plain start. Returns false if none
 * does. */
static bool start_chains(const table *t, int k, load *s, pick *picks)
{
    uint16_t order[POLICY_MAX_LANES * DRAFT_MAX];
    pick     trial[POLICY_MAX_LANES];
    load     at  = *s;
    int      all = k == DRAFTER_MTP ? by_place(t, k, order) : by_worth(t, k, order);
    int      n = min_int(all, t->max_rows - s->rows), best_n = 0;
    double   best = s->tokens / step_seconds(&t->v, s);
    memcpy(trial, picks, (size_t)t->n * sizeof *picks);
    for (int i = 0; i < n; i++) {
        give_draft_token(t, k, &at, &trial[order[i]], order[i]);
        double rate = at.tokens / step_seconds(&t->v, &at);
        if (rate > best) {
            best   = rate;
            best_n = i + 1;
        }
    }
    for (int i = 0; i < best_n; i++) give_draft_token(t, k, s, &picks[order[i]], order[i]);
    return best_n > 0;
}

typedef struct {
    load   s;
    pick   picks[POLICY_MAX_LANES];
    double rate;
} outcome;

static void improve_picks(const table *t, outcome *o)
{
    for (int i = 0; i < SWEEPS && sweep_lanes(t, &o->s, o->picks); i++) {}
    o->rate = o->s.tokens / step_seconds(&t->v, &o->s);
}

static void best_outcome(const table *t, const cost_table *c, const outcome *plain, outcome *best)
{
    *best = *plain;
    improve_picks(t, best);
    for (int k = 0; k < DRAFTER_NGRAM; k++) { /* n-grams share no pass: the sweeps find them */
        outcome o = *plain;
        if (!start_chains(t, k, &o.s, o.picks)) continue;
        improve_picks(t, &o);
        if (o.rate > best->rate) *best = o;
    }
    if (best->rate < (1 + fmax(MARGIN, OF_NOISE * c->noise)) * plain->rate) *best = *plain;
}

/* --- trials -------------------------------------------------------------------------------------- */
/* Lanes that try a method together, because they share its pass. */
typedef struct {
    spec_method method;
    bool        in[POLICY_MAX_LANES];
    int         n;
    outcome     o;
    double      par;    /* tokens of all these lanes that would equal the best plans */
    double      hoped;  /* expected tokens if the method were good */
    double      max;    /* expected tokens if nearly all draft tokens were accepted */
    double      record; /* expected tokens by the records of the lanes */
} group;

static bool may_try(const table *t, const outcome *best, int i, spec_method m)
{
    const policy_lane *l = &t->lanes[i];
    if (l->fixed || best->picks[i].method == m || l->p->wait[m] > 0 || choice_depth(l, m) == 0) return false;
    return m != SPEC_TREE || t->menus[i].n_trees > 0;
}

static void make_group(const table *t, const outcome *best, spec_method m, int n, group *g)
{
    g->method = m;
    g->n      = 0;
    g->hoped = g->max = g->record = 0;
    g->o.s                        = best->s;
    double par                    = 0;
    for (int i = 0; i < t->n; i++) {
        int room = t->max_rows - g->o.s.rows + best->picks[i].n;
        g->in[i] = may_try(t, best, i, m) && room > 0;
        if (!g->in[i]) continue;
        int  depth = choice_depth(&t->lanes[i], m);
        pick p     = pick_of(t, i, &(spec_plan){.method = m, .n = m == SPEC_TREE ? TRIAL_TREE : min_int(n, depth)},
                             min_int(room, t->lanes[i].room));
        count_pick(&g->o.s, &best->picks[i], -1);
        count_pick(&g->o.s, &p, 1);
        g->o.picks[i] = p;
        g->n++;
        par += best->picks[i].tokens;
        g->hoped += choice_hoped_tokens(HOPED_RATE, p.depth);
        g->max += choice_hoped_tokens(BEST_RATE, p.depth);
        g->record += p.tokens;
    }
    g->par = par + best->rate * (step_seconds(&t->v, &g->o.s) - step_seconds(&t->v, &best->s));
}

/* Allows a small loss for lanes that have just begun, because they have no record. */
static bool within_budget(const table *t, const cost_table *c, const group *g)
{
    double free_tokens = 2.0 * t->n;
    return c->lost + fmax(0, g->par - g->record) <= BATCH_SHARE * c->tokens + free_tokens;
}

static bool is_hopeless(const table *t, const group *g)
{
    if (g->method != SPEC_TREE) return false;
    for (int i = 0; i < t->n; i++)
        if (g->in[i] && !choice_knows_dflash(t->lanes[i].p)) return false;
    return g->record < 0.7 * g->par;
}

/* Finds the length with the largest gain of the group if the method were good. */
static bool best_group(const table *t, const outcome *best, const cost_table *c, spec_method m, group *g)
{
    double top = 0;
    int    at  = 0;
    for (int n = 2; n <= (m == SPEC_TREE ? 2 : TRIAL_CHAIN); n += 2) {
        make_group(t, best, m, n, g);
        if (g->n == 0) return false;
        if (at == 0 || g->hoped - g->par > top) {
            top = g->hoped - g->par;
            at  = n;
        }
    }
    make_group(t, best, m, at, g);
    return g->max > g->par && !is_hopeless(t, g) && within_budget(t, c, g);
}

/* Returns whether all lanes should decode plainly once, to measure its cost: every plan is compared with it. If
 * drafting gains much, an older cost of a similar number of rows suffices. */
static bool plain_due(const table *t, const outcome *best, const outcome *plain, const cost_table *c, int fixed_rows,
                      int32_t ctx)
{
    bool near = best->rate < NEAR * plain->rate;
    int  low = near ? t->n - t->n / 8 : t->n / 2, high = near ? t->n + t->n / 16 : 2 * t->n;
    if (fixed_rows > 0 || best->s.rows == t->n ||
        cost_step_is_known(c, low, high, ctx, near ? PLAIN_AGE_NEAR : PLAIN_AGE_FAR))
        return false;
    for (int i = 0; i < t->n; i++)
        if (t->lanes[i].fixed) return false;
    return true;
}

static void put_plans(const table *t, const outcome *o, double rate, spec_plan *out)
{
    for (int i = 0; i < t->n; i++)
        out[i] = (spec_plan){.method = o->picks[i].method, .n = o->picks[i].n, .rate = t->v.measured ? rate : 0};
}

/* Divides the change of the step's cost by the trial among the lanes that try. */
static void put_trial(const outcome *best, const outcome *o, int i, double each, spec_plan *out)
{
    *out = (spec_plan){.method = o->picks[i].method,
                       .n      = o->picks[i].n,
                       .trial  = true,
                       .rate   = out->rate,
                       .par    = best->picks[i].tokens + each};
}

static void put_plain_trial(const table *t, const outcome *best, const outcome *plain, spec_plan *out)
{
    int n = 0;
    for (int i = 0; i < t->n; i++) n += best->picks[i].method != SPEC_OFF;
    double each = best->rate * (step_seconds(&t->v, &plain->s) - step_seconds(&t->v, &best->s)) / n;
    for (int i = 0; i < t->n; i++)
        if (best->picks[i].method != SPEC_OFF) put_trial(best, plain, i, each, &out[i]);
}

static void put_group(const table *t, const outcome *best, const group *g, spec_plan *out)
{
    double each = best->rate * (step_seconds(&t->v, &g->o.s) - step_seconds(&t->v, &best->s)) / g->n;
    for (int i = 0; i < t->n; i++)
        if (g->in[i]) put_trial(best, &g->o, i, each, &out[i]);
}

/* --- all together -------------------------------------------------------------------------------- */
static void forecast_step(const table *t, const cost_table *c, const load *s, int fixed_rows, policy_forecast *f)
{
    double pace = cost_pace(c), prompts = t->v.step[fixed_rows + t->n] - t->v.step[t->n];
    if (t->v.step == t->steps) prompts = 0; /* already excluded */
    *f = (policy_forecast){.tokens       = s->tokens,
                           .draft_s      = pace * draft_seconds(&t->v, s),
                           .step_s       = pace * (t->v.step[s->rows] - prompts),
                           .plain_tokens = t->n,
                           .plain_s      = pace * (t->v.step[fixed_rows + t->n] - prompts)};
}

static int32_t mean_context(const policy_lane *lanes, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += lanes[i].ctx;
    return (int32_t)(sum / n);
}

static void choose_together(table *t, const cost_table *c, int fixed_rows, int32_t ctx, spec_plan *out,
                            policy_forecast *f)
{
    outcome plain, best;
    group   g;
    start_plain(t, fixed_rows, &plain.s, plain.picks);
    plain.rate = plain.s.tokens / step_seconds(&t->v, &plain.s);
    best_outcome(t, c, &plain, &best);
    put_plans(t, &best, best.rate, out);
    if (f) forecast_step(t, c, &best.s, fixed_rows, f);
    if (plain_due(t, &best, &plain, c, fixed_rows, ctx)) {
        put_plain_trial(t, &best, &plain, out);
        return;
    }
    for (int m = SPEC_OFF + 1; m < SPEC_METHODS; m++)
        if (best_group(t, &best, c, (spec_method)m, &g)) {
            put_group(t, &best, &g, out);
            return;
        }
}

static void choose_single(table *t, const cost_table *c, int fixed_rows, spec_plan *out, policy_forecast *f)
{
    load s = {.rows = fixed_rows + 1};
    *out   = choose_alone(t->lanes, c, &t->v, fixed_rows, t->max_rows);
    if (!f) return;
    pick p = pick_of(t, 0, out, t->max_rows);
    count_pick(&s, &p, 1);
    forecast_step(t, c, &s, fixed_rows, f);
}

static void table_init(table *t, const policy_lane *lanes, int n, const cost_table *c, int32_t ctx, int fixed_rows,
                       int max_rows)
{
    assert(n >= 1 && n <= POLICY_MAX_LANES && max_rows <= COST_MAX_ROWS && fixed_rows + n <= max_rows);
    cost_view_init(&t->v, c, ctx);
    t->lanes    = lanes;
    t->n        = n;
    t->max_rows = max_rows;
    for (int i = 0; i < n; i++) make_menu(&t->menus[i], &lanes[i]);
}

void policy_choose_all(const policy_lane *lanes, int n, const cost_table *c, int fixed_rows, int max_rows,
                       spec_plan *out, policy_forecast *f)
{
    table   t;
    int32_t ctx = mean_context(lanes, n);
    table_init(&t, lanes, n, c, ctx, fixed_rows, max_rows);
    if (n == 1 && !lanes[0].fixed)
        choose_single(&t, c, fixed_rows, out, f);
    else {
        draw_steps(&t, fixed_rows);
        choose_together(&t, c, fixed_rows, ctx, out, f);
    }
}

/* --- comparisons --------------------------------------------------------------------------------- */
static int n_plans(const menu *m, spec_method method)
{
    if (method == SPEC_OFF) return 1;
    return method == SPEC_TREE ? m->n_trees : m->n_chain[spec_method_drafter(method)];
}

static pick nth_plan(const menu *m, spec_method method, int i)
{
    if (method == SPEC_OFF) return (pick){SPEC_OFF, 0, 0, 1};
    if (method == SPEC_TREE) return (pick){SPEC_TREE, m->budget[i], m->depth[i], (double)m->tree[i]};
    return (pick){method, i + 1, i + 1, (double)m->chain[spec_method_drafter(method)][i + 1]};
}

/* Finds the plan of the method with the best step. s: the step without the lane. */
static void compare_method(const table *t, const menu *m, const load *s, spec_method method, policy_option *out)
{
    for (int i = 0; i < n_plans(m, method); i++) {
        load with = *s;
        pick p    = nth_plan(m, method, i);
        if (s->rows + p.n > t->max_rows) break;
        count_pick(&with, &p, 1);
        double rate = with.tokens / step_seconds(&t->v, &with);
        if (rate > out->rate) *out = (policy_option){.n = p.n, .tokens = p.tokens, .rate = rate};
    }
}

void policy_compare(const policy_lane *lanes, int n, int at, const cost_table *c, int fixed_rows, int max_rows,
                    policy_options *out)
{
    table  t;
    load   s;
    pick   picks[POLICY_MAX_LANES];
    double pace = cost_pace(c);
    table_init(&t, lanes, n, c, mean_context(lanes, n), fixed_rows, max_rows);
    draw_steps(&t, fixed_rows);
    start_plain(&t, fixed_rows, &s, picks);
    count_pick(&s, &picks[at], -1);
    *out = (policy_options){.rows = s.rows};
    if (!t.v.measured) return;
    if (s.rows < max_rows) out->row_s = pace * (t.v.step[s.rows + 1] - t.v.step[s.rows]);
    for (int m = 0; m < SPEC_METHODS; m++) {
        policy_option *o = &out->option[m];
        compare_method(&t, &t.menus[at], &s, (spec_method)m, o);
        o->rate /= pace;
        if (m == SPEC_OFF || m == SPEC_TREE) continue;
        o->n_survival = min_int(o->n, POLICY_SHOWN);
        survival_curve(&lanes[at].p->record[m], o->survival, o->n_survival);
    }
}
