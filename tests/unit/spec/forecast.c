/* What a step of many lanes is expected to bring and to cost, and what a trial is charged, against sums by hand over costs
 * that rise in stairs. */
#include "spec/choice.h"
#include "spec/inside.h"
#include "test.h"
#include "views.h"

enum { LANES = 6, DEPTH = 15 };
static const policy_limits ALL_METHODS = {
    .there = {true, true, true, true, true}, .max_draft = {0, DEPTH, DEPTH, 7, 12}, .tree_budget = 22};

static double uniform(uint64_t *seed) { return (double)(test_rand(seed) >> 11) * 0x1p-53; }
static int    below(uint64_t *seed, int n) { return (int)(test_rand(seed) % (uint64_t)n); }

/* --- a step, by hand ------------------------------------------------------------------------------*/
typedef struct {
    cost_table  c;
    policy      p[LANES];
    policy_lane lane[LANES];
    int         n, fixed_rows;
    double      step[COST_MAX_ROWS + 1]; /* of so many rows, less what pieces of prompts add */
} scene;

/* Most rows cost nothing, some much. With rates from 0.7 on, even the last guess of a draft counts. */
static void draw_stairs(cost_series *s, double first, double most, uint64_t *seed)
{
    for (int rows = 1; rows <= COST_MAX_ROWS; rows++) {
        s->at[rows] = (cost){.seconds = first, .n = 20};
        if (below(seed, 3) == 0) first += most * uniform(seed);
    }
}

static double mean_of_a_row(const double *steps, int from, int to)
{
    return to > from ? (steps[to] - steps[from]) / (to - from) : 0;
}

/* A row costs at least a quarter of the mean: of the rows from half to twice as many (and two), or of the 16 that each lane
 * could ask for, whichever is less. */
static void expect_steps(scene *x)
{
    const double *m    = x->c.step[0].curve;
    int           base = x->n + x->fixed_rows, half = base / 2 > 1 ? base / 2 : 1;
    int           twice = 2 * base + 2 < COST_MAX_ROWS ? 2 * base + 2 : COST_MAX_ROWS;
    int           ahead = base + 16 * x->n < COST_MAX_ROWS ? base + 16 * x->n : COST_MAX_ROWS;
    double        least = fmin(mean_of_a_row(m, half, twice), mean_of_a_row(m, base, ahead)) / 4;
    x->step[base]       = m[x->n];
    for (int rows = base + 1; rows <= COST_MAX_ROWS; rows++)
        x->step[rows] = fmax(m[rows] - m[base] + m[x->n], x->step[rows - 1] + least);
}

static void know(policy *p, double least_rate, uint64_t *seed)
{
    policy_init(p, &ALL_METHODS);
    for (int m = 0; m < SPEC_METHODS; m++) {
        double rate = least_rate + (0.98 - least_rate) * uniform(seed);
        p->wait[m]  = 1000;
        for (int d = 0; d < DRAFT_MAX; d++) {
            p->record[m].tried[d] = 1000;
            p->record[m].right[d] = 1000 * rate;
        }
    }
}

static void hardly_know_dflash(policy *p) { p->record[SPEC_DFLASH] = (survival){.tried = {1.5}, .right = {0.2}}; }

static void set_scene(scene *x, int n, int fixed_rows, double least_rate, uint64_t *seed)
{
    *x = (scene){.n = n, .fixed_rows = fixed_rows};
    draw_stairs(&x->c.step[0], 0.01, 0.004 * uniform(seed), seed);
    draw_stairs(&x->c.block[SPEC_DFLASH], 0.004 * uniform(seed), 0.0003, seed);
    draw_stairs(&x->c.block[SPEC_TREE], 0.005 * uniform(seed), 0.0004, seed);
    draw_stairs(&x->c.pass, 0.003 * uniform(seed), 0.002, seed);
    x->c.ngram = (cost){.seconds = 0.0002 * uniform(seed), .n = 20};
    cost_refresh(&x->c);
    for (int i = 0; i < n; i++) {
        know(&x->p[i], least_rate, seed);
        x->lane[i] = (policy_lane){.p = &x->p[i], .room = 1000};
    }
    expect_steps(x);
}

/* Guesses in a row that the lane may make with m, 0: none. */
static int most_in_a_row(const scene *x, int i, spec_method m)
{
    const policy_lane *l = &x->lane[i];
    return m == SPEC_OFF || l->without >> m & 1 ? 0 : min_int(ALL_METHODS.max_draft[m], l->room);
}

static int depth_of(const scene *x, int i, const spec_plan *p) { return min_int(p->n, most_in_a_row(x, i, p->method)); }

static double tokens_of(const scene *x, int i, const spec_plan *p)
{
    double tokens = 1;
    if (p->method == SPEC_OFF) return 1;
    if (p->method == SPEC_TREE) return tree_tokens(&x->p[i], p->n, depth_of(x, i, p));
    for (int d = 1; d <= depth_of(x, i, p); d++) tokens += survival_at(&x->p[i].record[p->method], d);
    return tokens;
}

/* One pass of DFlash for all its lanes, at the cost of trees where there is one; one of MTP for each place in the draft. */
static double draft_seconds(const scene *x, const spec_plan *plan)
{
    int    block = 0, trees = 0;
    double s = 0;
    for (int i = 0; i < x->n; i++) {
        spec_method m = plan[i].method;
        if (m == SPEC_DFLASH || m == SPEC_TREE) block += 1 + depth_of(x, i, &plan[i]);
        if (m == SPEC_NGRAM) s += x->c.ngram.seconds * plan[i].n;
        trees += m == SPEC_TREE;
    }
    for (int d = 0; d < DRAFT_MAX; d++) {
        int lanes = 0;
        for (int i = 0; i < x->n; i++) lanes += plan[i].method == SPEC_MTP && plan[i].n > d;
        if (lanes) s += x->c.pass.curve[lanes];
    }
    return s + (block ? x->c.block[trees ? SPEC_TREE : SPEC_DFLASH].curve[block] : 0);
}

static double step_seconds(const scene *x, const spec_plan *plan)
{
    int rows = x->fixed_rows + x->n;
    for (int i = 0; i < x->n; i++) rows += plan[i].n;
    return x->step[rows];
}

static double all_tokens(const scene *x, const spec_plan *plan)
{
    double tokens = 0;
    for (int i = 0; i < x->n; i++) tokens += tokens_of(x, i, &plan[i]);
    return tokens;
}

static double all_seconds(const scene *x, const spec_plan *plan)
{
    return draft_seconds(x, plan) + step_seconds(x, plan);
}

/* --- forecasts ------------------------------------------------------------------------------------*/
static spec_plan random_plan(uint64_t *seed)
{
    spec_method m = (spec_method)below(seed, SPEC_METHODS);
    return (spec_plan){.method = m,
                       .n      = m == SPEC_OFF ? 0 : 1 + below(seed, m == SPEC_TREE ? 22 : ALL_METHODS.max_draft[m])};
}

/* Plans that are settled come back as they are, with what they bring and cost together at the pace of the machine. */
TEST(joint_forecast_is_the_sum_of_the_plans)
{
    uint64_t seed = 23;
    for (int i = 0; i < 200; i++) {
        static scene    x;
        spec_plan       fixed[LANES], plan[LANES];
        policy_forecast f;
        set_scene(&x, 1 + i % LANES, i % 3 ? below(&seed, 100) : 0, 0.7, &seed);
        for (int k = 0; k < x.n; k++) {
            fixed[k]        = random_plan(&seed);
            x.lane[k].fixed = &fixed[k];
        }
        x.c.slower = i % 2 ? 0.25 : 0;
        policy_choose_all(x.lane, x.n, &x.c, x.fixed_rows, COST_MAX_ROWS, plan, &f);
        for (int k = 0; k < x.n; k++)
            CHECK(plan[k].method == fixed[k].method && plan[k].n == fixed[k].n && !plan[k].trial);
        double pace = 1 + x.c.slower;
        CHECK_NEAR(f.tokens, all_tokens(&x, plan), 1e-5 * f.tokens);
        CHECK_NEAR(f.draft_s, pace * draft_seconds(&x, plan), 1e-9);
        CHECK_NEAR(f.step_s, pace * step_seconds(&x, plan), 1e-9);
        CHECK_NEAR(f.plain_s, pace * x.c.step[0].curve[x.n], 1e-9);
        CHECK_INT((int)f.plain_tokens, x.n);
        CHECK_NEAR(plan[0].rate, f.tokens * pace / (f.draft_s + f.step_s), 1e-5 * plan[0].rate);
    }
}

/* Settled plans that do not fit are cut in equal shares, and what is expected is of what is left of them. */
TEST(joint_forecast_of_plans_that_do_not_fit)
{
    uint64_t seed = 24;
    for (int i = 0; i < 100; i++) {
        static scene    x;
        spec_plan       fixed[LANES], plan[LANES];
        policy_forecast f;
        int             want[LANES], room = below(&seed, 20);
        set_scene(&x, 2 + i % (LANES - 1), below(&seed, 10), 0.7, &seed);
        for (int k = 0; k < x.n; k++) {
            fixed[k]        = random_plan(&seed);
            want[k]         = fixed[k].n;
            x.lane[k].fixed = &fixed[k];
        }
        choice_share_rows(want, x.n, room);
        policy_choose_all(x.lane, x.n, &x.c, x.fixed_rows, x.n + x.fixed_rows + room, plan, &f);
        for (int k = 0; k < x.n; k++) {
            CHECK_INT(plan[k].n, want[k]);
            CHECK_INT(plan[k].method, want[k] ? fixed[k].method : SPEC_OFF);
        }
        CHECK_NEAR(f.tokens, all_tokens(&x, plan), 1e-5 * f.tokens);
        CHECK_NEAR(f.draft_s + f.step_s, all_seconds(&x, plan), 1e-9);
    }
}

/* --- trials ---------------------------------------------------------------------------------------*/
enum { TRIAL_CHAIN = 6, TRIAL_TREE = 8 };
static const double HOPED_RATE = 0.8, BEST_RATE = 0.95;

static double hoped_tokens(double rate, int n)
{
    double tokens = 1;
    for (int d = 1; d <= n; d++) tokens += pow(rate, d);
    return tokens;
}

/* The plans with the lanes in `who` trying m. */
static void with_trial(const scene *x, const spec_plan *best, const bool *who, spec_method m, int n, spec_plan *out)
{
    for (int i = 0; i < x->n; i++) {
        int depth = most_in_a_row(x, i, m);
        out[i]    = who[i] ? (spec_plan){.method = m,
                                         .n = m == SPEC_TREE ? min_int(TRIAL_TREE, x->lane[i].room) : min_int(n, depth)}
                           : best[i];
    }
}

/* Tokens of those who try at which the step would be as good as the best plans. */
static double par_of(const scene *x, const spec_plan *best, const spec_plan *trial, const bool *who)
{
    double rate = all_tokens(x, best) / all_seconds(x, best);
    double par  = rate * (all_seconds(x, trial) - all_seconds(x, best));
    for (int i = 0; i < x->n; i++) par += who[i] ? tokens_of(x, i, &best[i]) : 0;
    return par;
}

static double hoped(const scene *x, const spec_plan *trial, const bool *who, double rate)
{
    double sum = 0;
    for (int i = 0; i < x->n; i++) sum += who[i] ? hoped_tokens(rate, depth_of(x, i, &trial[i])) : 0;
    return sum;
}

/* The length up to 6 with the most to win if the method were good; 0: not even nearly perfect guesses would pay. */
static int expect_length(const scene *x, const spec_plan *best, const bool *who, spec_method m, spec_plan *out)
{
    int    at  = 0;
    double top = 0;
    for (int n = 1; n <= (m == SPEC_TREE ? 1 : TRIAL_CHAIN); n++) {
        spec_plan p[LANES];
        with_trial(x, best, who, m, n, p);
        double gain = hoped(x, p, who, HOPED_RATE) - par_of(x, best, p, who);
        if (at == 0 || gain > top + 1e-9) {
            top = gain;
            at  = n;
        }
    }
    with_trial(x, best, who, m, at, out);
    double par = par_of(x, best, out, who), record = 0;
    bool   known = true; /* what is expected of a tree rests on DFlash's record */
    for (int i = 0; i < x->n; i++) {
        record += who[i] ? tokens_of(x, i, &out[i]) : 0;
        known &= !who[i] || policy_knows_dflash(&x->p[i]);
    }
    if (m == SPEC_TREE && known && record < 0.7 * par) return 0;
    bool plain = x->n > 1; /* several lanes change from plain decoding for a gain of 3% only */
    for (int i = 0; i < x->n; i++) plain &= best[i].method == SPEC_OFF;
    double margin = plain ? 0.03 * all_tokens(x, best) / all_seconds(x, best) * all_seconds(x, out) : 0;
    return hoped(x, out, who, BEST_RATE) > par + margin ? at : 0;
}

static void check_trial(test_case *t, const scene *x, const spec_plan *best, const spec_plan *got, const bool *who,
                        spec_method m)
{
    spec_plan want[LANES];
    double    sum = 0;
    int       n   = 0;
    expect_length(x, best, who, m, want);
    for (int i = 0; i < x->n; i++) {
        CHECK_INT(got[i].trial, who[i]);
        CHECK(got[i].method == want[i].method && got[i].n == want[i].n);
        CHECK_NEAR(got[i].rate, best[i].rate, 1e-9);
        sum += who[i] ? got[i].par : 0;
        n += who[i];
    }
    double par = par_of(x, best, want, who), each = par;
    for (int i = 0; i < x->n; i++) each -= who[i] ? tokens_of(x, i, &best[i]) : 0;
    CHECK_NEAR(sum, par, 1e-4 * (1 + fabs(par)));
    for (int i = 0; i < x->n; i++) /* what the step costs more or less is shared equally */
        if (who[i]) CHECK_NEAR(got[i].par, tokens_of(x, i, &best[i]) + each / n, 1e-4);
}

/* Lanes whose turn it is try a method together, at the length that has the most to win, and are charged what the step
 * costs more; nobody else's plan changes. What could not pay is not tried. */
TEST(joint_trials_are_charged_what_they_cost)
{
    uint64_t seed = 29;
    int      made = 0, refused = 0, lengths = 0;
    for (int i = 0; i < 300; i++) {
        static scene x;
        spec_plan    best[LANES], got[LANES], want[LANES];
        bool         who[LANES];
        spec_method  m = (spec_method)(1 + i % (SPEC_METHODS - 1));
        int          n = 0;
        set_scene(&x, 1 + i % LANES, 0, 0.4, &seed);
        for (int k = 0; k < x.n; k++)
            if (below(&seed, 3) == 0) x.lane[k].room = 1 + below(&seed, 9);
        for (int k = 0; k < x.n; k++)
            if (i % 8 < 4 && below(&seed, 2)) hardly_know_dflash(&x.p[k]);
        x.c.tokens = 1e9; /* all lanes together have made so much that a trial is never too dear */
        policy_choose_all(x.lane, x.n, &x.c, 0, COST_MAX_ROWS, best, NULL);
        for (int k = 0; k < x.n; k++) {
            CHECK(!best[k].trial);
            x.p[k].wait[m] = below(&seed, 3) ? 0 : 1;
            who[k]         = x.p[k].wait[m] == 0 && best[k].method != m;
            n += who[k];
        }
        policy_choose_all(x.lane, x.n, &x.c, 0, COST_MAX_ROWS, got, NULL);
        int length = n ? expect_length(&x, best, who, m, want) : 0;
        for (int k = 0; length == 0 && k < x.n; k++)
            CHECK(!got[k].trial && got[k].method == best[k].method && got[k].n == best[k].n);
        if (length) check_trial(t, &x, best, got, who, m);
        made += length > 0;
        refused += n && !length;
        if (m != SPEC_TREE) lengths |= 1 << length;
    }
    CHECK_MSG(made > 60 && refused > 60 && __builtin_popcount(lengths) > 4, "%d trials, %d refused, lengths %x", made,
              refused, lengths);
}

/* All trials of all lanes may cost 0.6% of the tokens, and two tokens for each lane of the step. */
TEST(joint_trials_keep_to_their_share)
{
    uint64_t seed = 31;
    int      n    = 0;
    for (int i = 0; i < 60; i++) {
        static scene x;
        spec_plan    best[LANES], got[LANES], want[LANES];
        bool         who[LANES] = {0};
        set_scene(&x, 2 + i % (LANES - 1), 0, 0.4, &seed);
        x.c.tokens = 1e9;
        policy_choose_all(x.lane, x.n, &x.c, 0, COST_MAX_ROWS, best, NULL);
        for (int k = 0; k < x.n; k++) {
            x.p[k].wait[SPEC_NGRAM] = 0;
            who[k]                  = best[k].method != SPEC_NGRAM;
        }
        if (!expect_length(&x, best, who, SPEC_NGRAM, want) || !memchr(who, true, sizeof who)) continue;
        double record = 0;
        for (int k = 0; k < x.n; k++) record += who[k] ? tokens_of(&x, k, &want[k]) : 0;
        double dear = fmax(0, par_of(&x, best, want, who) - record);
        for (int over = 0; over < 2; over++) {
            bool tried = false;
            x.c.tokens = 1000;
            x.c.lost   = 0.006 * 1000 + 2 * x.n - dear + (over ? 0.01 : -0.01);
            policy_choose_all(x.lane, x.n, &x.c, 0, COST_MAX_ROWS, got, NULL);
            for (int k = 0; k < x.n; k++) tried |= got[k].trial;
            CHECK_INT(tried, !over);
        }
        n++;
    }
    CHECK_MSG(n > 10, "%d trials", n);
}

/* A step without guesses, to know its cost: the lanes that would have guessed are charged for it. */
TEST(joint_plain_steps_are_charged_what_they_cost)
{
    uint64_t seed = 37;
    int      n    = 0;
    for (int i = 0; i < 100; i++) {
        static scene x;
        spec_plan    best[LANES], got[LANES], plain[LANES] = {0};
        int          guessing = 0;
        set_scene(&x, 2 + i % (LANES - 1), 0, 0.4, &seed);
        if (i % 2) x.lane[0].room = 0; /* it guesses nothing anyway */
        policy_choose_all(x.lane, x.n, &x.c, 0, COST_MAX_ROWS, best, NULL);
        x.c.n_steps = 300; /* nothing was measured in all of them */
        policy_choose_all(x.lane, x.n, &x.c, 0, COST_MAX_ROWS, got, NULL);
        for (int k = 0; k < x.n; k++) guessing += best[k].method != SPEC_OFF;
        if (!guessing) continue;
        double rate = all_tokens(&x, best) / all_seconds(&x, best);
        double each = rate * (all_seconds(&x, plain) - all_seconds(&x, best)) / guessing;
        for (int k = 0; k < x.n; k++) {
            CHECK(got[k].method == SPEC_OFF && got[k].n == 0 && got[k].trial == (best[k].method != SPEC_OFF));
            if (got[k].trial) CHECK_NEAR(got[k].par, tokens_of(&x, k, &best[k]) + each, 1e-4);
        }
        n++;
    }
    CHECK_MSG(n > 30, "%d steps", n);
}

/* --- margins ----------------------------------------------------------------------------------------*/
/* Guessing has to be ahead of plain decoding by 3%, and by three quarters of the noise of the measurements. */
TEST(joint_choice_is_worth_its_trouble)
{
    uint64_t seed = 43;
    int      n = 0, n_plain = 0;
    for (int i = 0; i < 200; i++) {
        static scene x;
        spec_plan    best[LANES], got[LANES];
        set_scene(&x, 2 + i % (LANES - 1), 0, 0.05, &seed);
        double dear = 0.03 * x.n * uniform(&seed); /* a pass that takes as long as several steps */
        draw_stairs(&x.c.block[SPEC_DFLASH], dear, 0.0003, &seed);
        draw_stairs(&x.c.block[SPEC_TREE], dear, 0.0003, &seed);
        draw_stairs(&x.c.pass, dear / 4, 0.0003, &seed);
        cost_refresh(&x.c);
        for (int k = 0; k < x.n; k++) x.lane[k].without = 1u << SPEC_NGRAM; /* costs nothing, nearly */
        policy_choose_all(x.lane, x.n, &x.c, 0, COST_MAX_ROWS, best, NULL);
        double plain = x.n / x.c.step[0].curve[x.n], ahead = all_tokens(&x, best) / all_seconds(&x, best) / plain - 1;
        if (step_seconds(&x, best) == x.c.step[0].curve[x.n]) {
            n_plain++;
            continue;
        }
        CHECK_MSG(ahead > 0.03 - 1e-4, "case %d: %.4f ahead of plain decoding", i, ahead);
        for (int over = 0; over < 2; over++) {
            x.c.noise = ahead / 0.75 * (over ? 1.01 : 0.99);
            policy_choose_all(x.lane, x.n, &x.c, 0, COST_MAX_ROWS, got, NULL);
            for (int k = 0; k < x.n; k++)
                CHECK(over ? got[k].method == SPEC_OFF : got[k].method == best[k].method && got[k].n == best[k].n);
        }
        n++;
    }
    CHECK_MSG(n > 30 && n_plain > 30, "%d with guesses, %d without", n, n_plain);
}

/* --- one lane -------------------------------------------------------------------------------------*/
static spec_plan best_alone(const scene *x, spec_method m)
{
    static const int budgets[] = {8, 16, 22};
    spec_plan        best      = {0};
    int              n         = m == SPEC_TREE ? (int)COUNT(budgets) : most_in_a_row(x, 0, m);
    for (int i = 0; i < n; i++) {
        spec_plan p = {.method = m, .n = m == SPEC_TREE ? min_int(budgets[i], x->lane[0].room) : i + 1};
        if (p.n == 0) continue;
        p.rate = all_tokens(x, &p) / all_seconds(x, &p);
        if (p.rate > best.rate) best = p;
    }
    return best;
}

/* The plan with the most tokens per second. */
TEST(policy_choice_of_one_lane_by_hand)
{
    uint64_t seed               = 41;
    int      used[SPEC_METHODS] = {0};
    for (int i = 0; i < 600; i++) {
        static scene    x;
        spec_plan       best, got;
        policy_forecast f;
        set_scene(&x, 1, i % 3 ? 0 : below(&seed, 60), i % 4 ? 0.2 : 0.7, &seed);
        int max_rows      = i % 4 ? COST_MAX_ROWS : 1 + x.fixed_rows + below(&seed, 20);
        x.lane[0].room    = i % 5 ? 1000 : below(&seed, 20);
        policy_lane asked = x.lane[0];
        x.lane[0].room    = min_int(asked.room, max_rows - 1 - x.fixed_rows);
        asked.room        = x.lane[0].room; /* budgets of trees are those of the room */
        best              = (spec_plan){.rate = 1 / all_seconds(&x, &(spec_plan){0})};
        for (int m = SPEC_DFLASH; m < SPEC_METHODS; m++) {
            spec_plan p = best_alone(&x, (spec_method)m);
            if (p.rate > best.rate) best = p;
        }
        policy_choose_all(&asked, 1, &x.c, x.fixed_rows, max_rows, &got, &f);
        CHECK_MSG(got.method == best.method && got.n == best.n && !got.trial, "case %d: %s %d%s, expected %s %d", i,
                  spec_method_names[got.method], got.n, got.trial ? " as a trial" : "", spec_method_names[best.method],
                  best.n);
        CHECK_NEAR(got.rate, best.rate, 1e-5 * best.rate);
        CHECK_NEAR(f.draft_s + f.step_s, all_seconds(&x, &got), 1e-9);
        CHECK_NEAR(f.tokens, tokens_of(&x, 0, &got), 2e-3); /* guesses that are hardly ever right are not looked at */
        CHECK_NEAR(f.plain_s, x.c.step[0].curve[1], 1e-9);
        used[got.method]++;
    }
    for (int m = SPEC_DFLASH; m < SPEC_METHODS; m++) CHECK_MSG(used[m] > 5, "%s: %d", spec_method_names[m], used[m]);
}

/* Before a step was measured no rate is promised. */
TEST(policy_promises_no_rate_before_it_knows)
{
    policy     p[2];
    spec_plan  plan[2];
    cost_table none = {0}, some = {0};
    for (int i = 0; i < 2; i++) policy_init(&p[i], &ALL_METHODS);
    policy_lane lane[2] = {{.p = &p[0], .room = 100}, {.p = &p[1], .room = 100}};
    cost_note_step(&some, 1, 0, 0.02);
    for (int n = 1; n <= 2; n++) {
        policy_choose_all(lane, n, &none, 0, COST_MAX_ROWS, plan, NULL);
        for (int i = 0; i < n; i++) CHECK(plan[i].rate == 0);
        policy_choose_all(lane, n, &some, 0, COST_MAX_ROWS, plan, NULL);
        for (int i = 0; i < n; i++) CHECK(plan[i].rate > 0);
    }
    CHECK(policy_choose(&p[0], &none, 100, 0).rate == 0 && policy_choose(&p[0], &some, 100, 0).rate > 0);
}
