/* Many lanes in one step: against brute force, and in worlds whose costs and rates are known. */
#include "base/clock.h"
#include "spec/choice.h"
#include "spec/inside.h"
#include "spec/policy.h"
#include "test.h"
#include "views.h"
#include <stdio.h>
#include <stdlib.h>

enum { MAX_LANES = 32, DEPTH = 15 };
static const policy_limits CHAINS_AND_TREES = {.there       = {true, true, true, true, true},
                                               .max_draft   = {0, DEPTH, DEPTH, 7, 16},
                                               .tree_budget = 22},
                           DFLASH_ONLY      = {.there = {true, true}, .max_draft = {0, DEPTH}},
                           DFLASH_MTP       = {.there = {true, true, false, true}, .max_draft = {0, 6, 0, 4}};

static double uniform(uint64_t *seed) { return (double)(test_rand(seed) >> 11) * 0x1p-53; }

/* --- costs that are known ------------------------------------------------------------------------ */
/* A step: `flat` rows cost as much as one; each row more per_row; a pass of the drafter the same with its own numbers. */
typedef struct {
    double step_s, per_row;
    int    flat;
    double draft_s, draft_per_row;
    double mtp_s, mtp_per_lane;
} machine;

static const machine CPU_LIKE   = {0.010, 0.004, 1, 0.003, 0.0008, 0.002, 0.0005};
static const machine GPU_LIKE   = {0.010, 0.0002, 64, 0.002, 0.00002, 0.0008, 0.00001};
static const machine DEAR_DRAFT = {0.010, 0.0005, 8, 0.020, 0.0005, 0.010, 0.001};

static double step_cost(const machine *m, int rows)
{
    return m->step_s + m->per_row * (rows > m->flat ? rows - m->flat : 0);
}
static double block_cost(const machine *m, int rows) { return rows ? m->draft_s + m->draft_per_row * rows : 0; }
static double mtp_cost(const machine *m, int lanes) { return lanes ? m->mtp_s + m->mtp_per_lane * lanes : 0; }

static void measure(cost_series *s, int rows, double seconds)
{
    s->at[rows].seconds = seconds;
    s->at[rows].n       = 20;
}

static cost_table known_costs(const machine *m)
{
    cost_table c = {0};
    for (int rows = 1; rows <= COST_MAX_ROWS; rows++) {
        measure(&c.step[0], rows, step_cost(m, rows));
        measure(&c.block[SPEC_DFLASH], rows, block_cost(m, rows));
        measure(&c.block[SPEC_TREE], rows, block_cost(m, rows));
        measure(&c.pass, rows, mtp_cost(m, rows));
    }
    c.ngram.seconds = 1e-6;
    cost_refresh(&c);
    return c;
}

/* --- lanes whose rates are known ----------------------------------------------------------------- */
static policy known_policy(const policy_limits *l, double dflash, double mtp, double ngram)
{
    policy       p;
    const double rate[SPEC_METHODS] = {0, dflash, dflash, mtp, ngram};
    policy_init(&p, l);
    for (int m = 0; m < SPEC_METHODS; m++) {
        p.wait[m] = 1000; /* no trials */
        for (int d = 0; d < DRAFT_MAX; d++) {
            p.record[m].tried[d] = 1000;
            p.record[m].right[d] = 1000 * rate[m];
        }
    }
    return p;
}

typedef struct {
    policy      p[MAX_LANES];
    policy_lane lane[MAX_LANES];
    int         n;
} crowd;

static void join(crowd *c, policy p)
{
    c->p[c->n]    = p;
    c->lane[c->n] = (policy_lane){.p = &c->p[c->n], .room = 1000};
    c->n++;
}

/* --- what plans are worth ------------------------------------------------------------------------ */
static double plan_tokens(const policy *p, const spec_plan *plan)
{
    double tokens = 1;
    for (int d = 1; d <= plan->n && d <= DEPTH; d++) tokens += survival_at(&p->record[plan->method], d);
    return tokens;
}

static double plans_rate(const machine *m, const crowd *c, const spec_plan *plan, int fixed_rows)
{
    double tokens = 0, s = 0;
    int    rows = fixed_rows + c->n, block = 0;
    for (int i = 0; i < c->n; i++) {
        tokens += plan_tokens(&c->p[i], &plan[i]);
        rows += plan[i].n;
        if (plan[i].method == SPEC_DFLASH || plan[i].method == SPEC_TREE)
            block += 1 + (plan[i].n < DEPTH ? plan[i].n : DEPTH);
        if (plan[i].method == SPEC_NGRAM) s += 1e-6 * plan[i].n;
    }
    for (int d = 0; d < DEPTH; d++) {
        int lanes = 0;
        for (int i = 0; i < c->n; i++) lanes += plan[i].method == SPEC_MTP && plan[i].n > d;
        s += mtp_cost(m, lanes);
    }
    return tokens / (s + step_cost(m, rows) + block_cost(m, block));
}

static double uniform_rate(const machine *m, const crowd *c, spec_method method, int n)
{
    spec_plan plan[MAX_LANES] = {0};
    for (int i = 0; i < c->n; i++) plan[i] = (spec_plan){.method = method, .n = n};
    return plans_rate(m, c, plan, 0);
}

static double chosen_rate(const machine *m, const crowd *c, spec_plan *plan)
{
    cost_table costs = known_costs(m);
    policy_choose_all(c->lane, c->n, &costs, 0, COST_MAX_ROWS, plan, NULL);
    return plans_rate(m, c, plan, 0);
}

/* Every plan of every lane. */
static double brute_force(const machine *m, const crowd *c, spec_plan *plan, int i, int fixed_rows)
{
    double best = 0;
    if (i == c->n) return plans_rate(m, c, plan, fixed_rows);
    for (int method = 0; method < SPEC_METHODS; method++)
        for (int n = method ? 1 : 0; n <= (method ? c->p[i].limits.max_draft[method] : 0); n++) {
            plan[i] = (spec_plan){.method = (spec_method)method, .n = n};
            best    = fmax(best, brute_force(m, c, plan, i + 1, fixed_rows));
        }
    return best;
}

static machine random_machine(uint64_t *seed)
{
    return (machine){.step_s        = 0.01,
                     .per_row       = 0.006 * pow(uniform(seed), 3),
                     .flat          = 1 + (int)(test_rand(seed) % 12),
                     .draft_s       = 0.02 * pow(uniform(seed), 2),
                     .draft_per_row = 0.001 * uniform(seed),
                     .mtp_s         = 0.005 * pow(uniform(seed), 2),
                     .mtp_per_lane  = 0.001 * uniform(seed)};
}

static void random_crowd(crowd *c, int n, const policy_limits *l, uint64_t *seed)
{
    c->n = 0;
    for (int i = 0; i < n; i++) {
        double dflash = uniform(seed), mtp = uniform(seed), ngram = uniform(seed);
        join(c, known_policy(l, dflash, mtp, ngram));
    }
}

TEST(joint_choice_is_near_brute_force)
{
    uint64_t seed = 11;
    double   sum  = 0;
    int      n    = 0;
    for (int i = 0; i < 200; i++, n++) {
        static crowd c;
        machine      m = random_machine(&seed);
        spec_plan    plan[3], any[3];
        random_crowd(&c, 2 + i % 2, &DFLASH_MTP, &seed);
        double got = chosen_rate(&m, &c, plan), best = brute_force(&m, &c, any, 0, 0);
        CHECK_MSG(got > 0.9 * best && got <= best * (1 + 1e-6), "case %d: %.2f, the best is %.2f", i, got, best);
        sum += got / best;
    }
    CHECK_MSG(sum / n > 0.997, "%.5f of the best on average", sum / n);
}

/* Each option is the best plan of its method while the other lanes keep theirs, and the survival is the record's. */
TEST(joint_comparison_is_brute_force_for_one_lane)
{
    uint64_t seed = 23;
    for (int i = 0; i < 100; i++) {
        static crowd   c;
        machine        m     = i % 4 ? random_machine(&seed) : CPU_LIKE;
        cost_table     costs = known_costs(&m);
        spec_plan      plan[3], other[3];
        policy_options o;
        int            n = 1 + i % 3, at = i / 3 % n;
        random_crowd(&c, n, &DFLASH_MTP, &seed);
        policy_choose_all(c.lane, n, &costs, 0, COST_MAX_ROWS, plan, NULL);
        for (int k = 0; k < n; k++) c.lane[k].fixed = &plan[k];
        policy_compare(c.lane, n, at, &costs, 0, COST_MAX_ROWS, &o);
        CHECK(o.option[SPEC_TREE].rate == 0 && o.option[SPEC_NGRAM].rate == 0);
        int rows = n;
        for (int k = 0; k < n; k++) rows += k == at ? 0 : plan[k].n;
        CHECK_INT(o.rows, rows);
        if (i % 4 == 0 && rows < 15) /* further on, neighbouring numbers share a measurement */
            CHECK_NEAR(o.row_s, CPU_LIKE.per_row, 1e-9);
        for (int method = 0; method <= SPEC_MTP; method += method == SPEC_DFLASH ? 2 : 1) {
            double best = 0;
            memcpy(other, plan, sizeof other);
            for (int d = method ? 1 : 0; d <= (method ? c.p[at].limits.max_draft[method] : 0); d++) {
                other[at] = (spec_plan){.method = (spec_method)method, .n = d};
                best      = fmax(best, plans_rate(&m, &c, other, 0));
            }
            const policy_option *x = &o.option[method];
            CHECK_MSG(x->rate <= best * 1.001 && x->rate > 0.9 * best, "case %d, %s: %.2f, brute force %.2f", i,
                      spec_method_name(method), x->rate, best);
            for (int d = 0; d < x->n_survival; d++)
                CHECK_NEAR(x->survival[d], survival_at(&c.p[at].record[method], d + 1), 1e-6);
        }
    }
}

/* The choice of one lane among many is the lane's alone when there is nobody else. */
TEST(joint_choice_of_one_lane_is_its_own)
{
    uint64_t seed = 5;
    for (int i = 0; i < 300; i++) {
        static crowd    c;
        machine         m     = random_machine(&seed);
        cost_table      costs = known_costs(&m);
        spec_plan       plan;
        policy_forecast f;
        random_crowd(&c, 1, &CHAINS_AND_TREES, &seed);
        for (int k = 0; k < SPEC_METHODS; k++) c.p[0].wait[k] = i % 2 ? 1000 : 0;
        c.lane[0].room = i % 5 == 0 ? i % 8 : 100;
        c.lane[0].ctx  = 100 * i;
        policy_choose_all(c.lane, 1, &costs, 0, COST_MAX_ROWS, &plan, &f);
        spec_plan own = policy_choose(&c.p[0], &costs, c.lane[0].room, c.lane[0].ctx);
        CHECK(plan.method == own.method && plan.n == own.n && plan.trial == own.trial && plan.par == own.par);
        CHECK(plan.rate == own.rate);
        if (!plan.trial) CHECK_NEAR(f.tokens / (f.draft_s + f.step_s), plan.rate, 1e-3 * plan.rate);
        CHECK_NEAR(f.plain_s, step_cost(&m, 1), 1e-9);
    }
}

/* Never much under the better of plain batching and drafts of a whole block in all lanes. */
TEST(joint_choice_beats_all_plain_and_all_dflash)
{
    static const struct {
        const char *name;
        machine     m;
    } k[]                    = {{"cpu", CPU_LIKE}, {"gpu", GPU_LIKE}, {"dear drafts", DEAR_DRAFT}};
    static const int lanes[] = {1, 2, 3, 4, 5, 7, 8, 16, 17, 23, 31, 32};
    uint64_t         seed    = 3;
    for (size_t i = 0; i < COUNT(k); i++)
        for (size_t j = 0; j < COUNT(lanes); j++)
            for (int kind = 0; kind < 4; kind++) { /* good, bad, mixed texts; all methods */
                static crowd c;
                spec_plan    plan[MAX_LANES];
                c.n = 0;
                while (c.n < lanes[j]) {
                    double rate = kind == 0 ? 0.9 : kind == 1 ? 0.3 : uniform(&seed), other = uniform(&seed);
                    join(&c, known_policy(kind == 3 ? &CHAINS_AND_TREES : &DFLASH_ONLY, rate, other, 0.2));
                }
                int    whole = COST_MAX_ROWS / c.n - 1 < DEPTH ? COST_MAX_ROWS / c.n - 1 : DEPTH;
                double got = chosen_rate(&k[i].m, &c, plan), plain = uniform_rate(&k[i].m, &c, SPEC_OFF, 0);
                double dflash = uniform_rate(&k[i].m, &c, SPEC_DFLASH, whole);
                CHECK_MSG(got >= fmax(plain, dflash) * 0.999, "%s, %d lanes, kind %d: %.1f, plain %.1f, dflash %.1f",
                          k[i].name, c.n, kind, got, plain, dflash);
                int rows = c.n;
                for (int l = 0; l < c.n; l++) rows += plan[l].n;
                CHECK(rows <= COST_MAX_ROWS);
            }
}

/* A lane whose guesses are right has more of them than one whose guesses are not. */
TEST(joint_choice_gives_rows_where_they_pay)
{
    static crowd c;
    spec_plan    plan[MAX_LANES];
    c.n = 0;
    for (int i = 0; i < 16; i++) join(&c, known_policy(&DFLASH_ONLY, i < 4 ? 0.95 : 0.2, 0, 0));
    chosen_rate(&GPU_LIKE, &c, plan);
    for (int i = 0; i < 4; i++) CHECK_MSG(plan[i].method == SPEC_DFLASH && plan[i].n >= 8, "lane %d: %d", i, plan[i].n);
    for (int i = 4; i < 16; i++) CHECK_MSG(plan[i].n < 4, "lane %d: %d", i, plan[i].n);
}

/* Plans change as the costs do, from a script. */
TEST(joint_choice_follows_scripted_costs)
{
    static const struct {
        machine m;
        int     lanes, fixed_rows, min, max; /* guesses of all lanes */
    } k[] = {
        {{0.010, 0.0001, 64, 0.001, 0, 1, 1}, 4, 0, 40, 60}, /* rows cost nothing: whole blocks */
        {{0.010, 0.0040, 1, 0.001, 0, 1, 1}, 4, 0, 1, 20},   /* dear rows: a few guesses */
        {{0.010, 0.0200, 1, 0.001, 0, 1, 1}, 4, 0, 0, 0},    /* as dear as a token */
        {{0.010, 0.0001, 64, 0.100, 0, 1, 1}, 4, 0, 0, 0},   /* a pass that costs ten steps */
        {{0.010, 0.0001, 64, 0.100, 0, 1, 1}, 32, 0, 0, 0},  /* for many lanes too */
        {{0.010, 0.0001, 64, 0.025, 0, 1, 1}, 4, 0, 40, 60}, /* two and a half: all of them, or none */
        {{0.010, 0.0010, 64, 0.001, 0, 1, 1}, 4, 0, 40, 60},
        {{0.010, 0.0100, 64, 0.001, 0, 1, 1}, 4, 62, 0, 0}, /* a prompt fills what is cheap */
    };
    for (size_t i = 0; i < COUNT(k); i++) {
        static crowd c;
        cost_table   costs = known_costs(&k[i].m);
        spec_plan    plan[MAX_LANES];
        int          n = 0;
        c.n            = 0;
        while (c.n < k[i].lanes) join(&c, known_policy(&DFLASH_ONLY, 0.9, 0, 0));
        policy_choose_all(c.lane, c.n, &costs, k[i].fixed_rows, COST_MAX_ROWS, plan, NULL);
        for (int l = 0; l < c.n; l++) n += plan[l].n;
        CHECK_MSG(n >= k[i].min && n <= k[i].max, "case %zu: %d guesses", i, n);
    }
}

/* A prompt makes the step long, but guesses no cheaper: as many as without it where rows cost the same, none more. */
TEST(joint_choice_beside_prompts)
{
    for (int lanes = 1; lanes <= 8; lanes += 7)
        for (int rate = 1; rate < 10; rate++) {
            static crowd c;
            cost_table   costs = known_costs(&CPU_LIKE);
            spec_plan    alone[MAX_LANES], beside[MAX_LANES];
            c.n = 0;
            while (c.n < lanes) join(&c, known_policy(&DFLASH_MTP, 0.1 * rate, 0.1 * rate, 0));
            policy_choose_all(c.lane, c.n, &costs, 0, COST_MAX_ROWS, alone, NULL);
            policy_choose_all(c.lane, c.n, &costs, 100, COST_MAX_ROWS, beside, NULL);
            for (int i = 0; i < lanes; i++)
                CHECK_MSG(alone[i].method == beside[i].method && alone[i].n == beside[i].n,
                          "%d lanes, rate %d: %s %d beside a prompt, %s %d without", lanes, rate,
                          spec_method_names[beside[i].method], beside[i].n, spec_method_names[alone[i].method],
                          alone[i].n);
        }
}

/* Steps without guesses are measured again when that was long ago, also where lanes wait for all their trials: soon where
 * they are nearly as good, seldom where guessing is far ahead. */
TEST(joint_choice_measures_plain_steps)
{
    static const struct {
        double rate;
        int    before, after; /* steps without a plain one */
    } k[] = {{0.5, 50, 20}, {0.9, 245, 20}};
    for (size_t i = 0; i < COUNT(k); i++) {
        static crowd c;
        cost_table   costs = known_costs(&GPU_LIKE);
        spec_plan    plan[MAX_LANES];
        c.n = 0;
        while (c.n < 16) join(&c, known_policy(&DFLASH_ONLY, k[i].rate, 0, 0));
        for (int at = 0; at < k[i].before; at++) cost_note_step(&costs, 60, 0, step_cost(&GPU_LIKE, 60));
        policy_choose_all(c.lane, c.n, &costs, 0, COST_MAX_ROWS, plan, NULL);
        for (int l = 0; l < c.n; l++) CHECK(plan[l].method == SPEC_DFLASH && !plan[l].trial);
        for (int at = 0; at < k[i].after; at++) cost_note_step(&costs, 60, 0, step_cost(&GPU_LIKE, 60));
        policy_choose_all(c.lane, c.n, &costs, 5, COST_MAX_ROWS, plan,
                          NULL); /* not beside a prompt: nothing would be learnt */
        CHECK(plan[0].method == SPEC_DFLASH && !plan[0].trial);
        policy_choose_all(c.lane, c.n, &costs, 0, COST_MAX_ROWS, plan, NULL);
        for (int l = 0; l < c.n; l++) CHECK(plan[l].method == SPEC_OFF && plan[l].trial && plan[l].par > 1);
        cost_note_step(&costs, 16, 0, step_cost(&GPU_LIKE, 16));
        policy_choose_all(c.lane, c.n, &costs, 0, COST_MAX_ROWS, plan, NULL);
        CHECK(plan[0].method == SPEC_DFLASH && !plan[0].trial);
    }
}

TEST(joint_choice_keeps_to_limits)
{
    uint64_t seed = 17;
    for (int i = 0; i < 300; i++) {
        static crowd c;
        machine      m     = random_machine(&seed);
        cost_table   costs = known_costs(&m);
        spec_plan    plan[MAX_LANES], fixed = {.method = SPEC_DFLASH, .n = 5};
        int          n = 2 + (int)(test_rand(&seed) % 31), prompt = (int)(test_rand(&seed) % 100);
        int          max_rows = n + prompt + (int)(test_rand(&seed) % 100), rows = n + prompt;
        if (max_rows > COST_MAX_ROWS) max_rows = COST_MAX_ROWS;
        random_crowd(&c, n, &CHAINS_AND_TREES, &seed);
        for (int l = 0; l < n; l++) {
            for (int k = 0; k < SPEC_METHODS; k++) c.p[l].wait[k] = (int)(test_rand(&seed) % 2);
            c.lane[l].room    = (int)(test_rand(&seed) % 12) - 1;
            c.lane[l].without = (unsigned)(test_rand(&seed) % 32);
            if (test_rand(&seed) % 5 == 0) c.lane[l].fixed = &fixed;
        }
        policy_choose_all(c.lane, n, &costs, prompt, max_rows, plan, NULL);
        for (int l = 0; l < n; l++) {
            rows += plan[l].n;
            CHECK((plan[l].method == SPEC_OFF) == (plan[l].n == 0));
            if (c.lane[l].fixed) {
                CHECK(plan[l].n <= fixed.n && !plan[l].trial);
                continue;
            }
            CHECK_MSG(plan[l].n <= (c.lane[l].room > 0 ? c.lane[l].room : 0), "%d in a room of %d", plan[l].n,
                      c.lane[l].room);
            CHECK(plan[l].method == SPEC_OFF || !(c.lane[l].without >> plan[l].method & 1));
            CHECK(plan[l].n <= CHAINS_AND_TREES.max_draft[plan[l].method] || plan[l].method == SPEC_TREE);
        }
        CHECK_MSG(rows <= max_rows, "%d rows of %d", rows, max_rows);
    }
}

/* --- lives: lanes that come and go, measurements with noise --------------------------------------- */
typedef struct {
    machine m;
    double  rate[SPEC_METHODS]; /* of every guess */
    double  rate2[SPEC_METHODS];
    int     phase;  /* steps; 0: rate only */
    int     length; /* rounds of a request, on average; 0: they do not end */
    bool    busy;   /* for moments the machine does something else too */
} world;

typedef struct {
    double rate, plain, dflash; /* tokens per second: chosen, all plain, all with whole blocks */
    double trial_share;         /* of the tokens, lost by trials */
    int    trials, steps;
} life;

static double now_rate(const world *w, spec_method m, int at)
{
    return w->phase && at / w->phase % 2 ? w->rate2[m] : w->rate[m];
}

static double expected(const world *w, const spec_plan *p, int at)
{
    double all = 1, tokens = 1;
    for (int d = 0; d < p->n && d < DEPTH; d++) tokens += all *= now_rate(w, p->method, at);
    return tokens;
}

static double noisy(double s, uint64_t *seed)
{
    return s * (0.92 + 0.16 * uniform(seed)) * (test_rand(seed) % 150 == 0 ? 10 : 1);
}

/* How much slower all is in this step: one in 60 begins a moment of up to 40 steps. */
static double moment(const world *w, int *left, double *slower, uint64_t *seed)
{
    if (*left > 0) return (*left)--, *slower;
    if (w->busy && test_rand(seed) % 60 == 0) {
        *left   = (int)(test_rand(seed) % 40);
        *slower = 1.2 + 0.8 * uniform(seed);
    }
    return 1;
}

/* Costs of the plans are noted as the loop notes them; seconds of the whole step, on a machine that is not busy. */
static double note_costs(const world *w, const spec_plan *plan, int n, cost_table *c, double slower, uint64_t *seed)
{
    int    rows = n, block = 0, block_lanes = 0, passes = 0, guesses = 0;
    double mtp = 0;
    for (int i = 0; i < n; i++) {
        rows += plan[i].n;
        if (plan[i].method == SPEC_DFLASH || plan[i].method == SPEC_TREE) {
            block += 1 + (plan[i].n < DEPTH ? plan[i].n : DEPTH);
            block_lanes++;
        }
        if (plan[i].method == SPEC_MTP) {
            guesses += plan[i].n;
            if (plan[i].n > passes) passes = plan[i].n;
        }
    }
    for (int d = 0; d < passes; d++) {
        int lanes = 0;
        for (int i = 0; i < n; i++) lanes += plan[i].method == SPEC_MTP && plan[i].n > d;
        mtp += mtp_cost(&w->m, lanes);
    }
    cost_note_step(c, rows, 0, slower * noisy(step_cost(&w->m, rows), seed));
    if (block) cost_note_draft(c, SPEC_DFLASH, block_lanes, block, slower * noisy(block_cost(&w->m, block), seed));
    if (passes) cost_note_draft(c, SPEC_MTP, (guesses + passes / 2) / passes, passes, slower * noisy(mtp, seed));
    return step_cost(&w->m, rows) + block_cost(&w->m, block) + mtp;
}

static double all_alike(const world *w, spec_method m, int guesses, int n, int at, double *s)
{
    spec_plan         plan[MAX_LANES], p = {.method = m, .n = guesses};
    static cost_table none;
    uint64_t          seed = 1;
    for (int i = 0; i < n; i++) plan[i] = p;
    *s += note_costs(w, plan, n, &none, 1, &seed);
    return n * expected(w, &p, at);
}

/* A request ends, another one of its class begins in its lane. */
static void next_request(policy_classes *classes, policy *p, const policy_limits *l)
{
    policy_classes_learn(classes, 1, p);
    policy_init(p, l);
    policy_classes_seed(classes, 1, p);
}

static life live(const world *w, const policy_limits *l, int n, int steps, uint64_t seed)
{
    policy_classes   *classes = policy_classes_new(4);
    static crowd      c;
    static cost_table costs;
    double            tokens = 0, s = 0, plain = 0, plain_s = 0, dflash = 0, dflash_s = 0, lost = 0, slower = 1;
    int               left  = 0;
    life              o     = {.steps = steps};
    int               whole = COST_MAX_ROWS / n - 1 < DEPTH ? COST_MAX_ROWS / n - 1 : DEPTH;
    costs                   = (cost_table){0};
    c.n                     = 0;
    for (int i = 0; i < n; i++) {
        policy p;
        policy_init(&p, l);
        join(&c, p);
    }
    for (int at = 0; at < steps; at++) {
        spec_plan plan[MAX_LANES];
        bool      tried = false;
        policy_choose_all(c.lane, n, &costs, 0, COST_MAX_ROWS, plan, NULL);
        s += note_costs(w, plan, n, &costs, moment(w, &left, &slower, &seed), &seed);
        for (int i = 0; i < n; i++) {
            int depth = plan[i].n < DEPTH ? plan[i].n : DEPTH, right = 0;
            while (right < depth && uniform(&seed) < now_rate(w, plan[i].method, at)) right++;
            tokens += expected(w, &plan[i], at);
            policy_note(&c.p[i], &costs, &plan[i], depth, depth, right);
            tried |= plan[i].trial;
            if (plan[i].trial) lost += plan[i].par - expected(w, &plan[i], at);
            if (w->length && test_rand(&seed) % (unsigned)w->length == 0) next_request(classes, &c.p[i], l);
        }
        o.trials += tried;
        plain += all_alike(w, SPEC_OFF, 0, n, at, &plain_s);
        dflash += all_alike(w, SPEC_DFLASH, whole, n, at, &dflash_s);
    }
    policy_classes_free(classes);
    o.rate        = tokens / s;
    o.plain       = plain / plain_s;
    o.dflash      = dflash / dflash_s;
    o.trial_share = lost / tokens;
    return o;
}

/* Several lives, as shares of the better of all plain and all DFlash. */
typedef struct {
    double least, mean;
} shares;

static shares check_lives(test_case *t, const char *name, const world *w, const policy_limits *l, int lanes, int n)
{
    shares x = {1e9, 0};
    for (uint64_t seed = 1; seed <= (uint64_t)n; seed++) {
        life   o     = live(w, l, lanes, 1500, seed * 7919);
        double share = o.rate / fmax(o.plain, o.dflash);
        x.least      = fmin(x.least, share);
        x.mean += share / n;
        CHECK_MSG(lanes == 1 || o.trial_share < 0.0145, "%s, %d lanes: trials cost %.2f%%", name, lanes,
                  100 * o.trial_share);
    }
    return x;
}

static double check_life(test_case *t, const char *name, const world *w, const policy_limits *l, int lanes)
{
    return check_lives(t, name, w, l, lanes, lanes == 1 ? 6 : 2).mean; /* one lane is soon simulated */
}

TEST_LONG(joint_life_is_near_the_better_setting)
{
    static const struct {
        const char *name;
        world       w;
    } k[] = {
        {"cpu, good drafter", {.m = CPU_LIKE, .rate = {0, 0.9, 0.9, 0.8, 0.1}}},
        {"cpu, bad drafter", {.m = CPU_LIKE, .rate = {0, 0.2, 0.2, 0.2, 0.02}}},
        {"gpu, good drafter", {.m = GPU_LIKE, .rate = {0, 0.9, 0.9, 0.8, 0.1}}},
        {"gpu, bad drafter", {.m = GPU_LIKE, .rate = {0, 0.1, 0.1, 0.1, 0.02}}},
        {"dear drafts, good", {.m = DEAR_DRAFT, .rate = {0, 0.9, 0.9, 0.8, 0.1}}},
        {"dear drafts, bad", {.m = DEAR_DRAFT, .rate = {0, 0.3, 0.3, 0.2, 0.02}}},
    };
    static const int lanes[] = {1, 2, 3, 8, 32};
    for (size_t i = 0; i < COUNT(k); i++)
        for (size_t j = 0; j < COUNT(lanes); j += test_full() ? 1 : 2)
            for (int all = 0; all < 2; all++) {
                double got = check_life(t, k[i].name, &k[i].w, all ? &CHAINS_AND_TREES : &DFLASH_ONLY, lanes[j]);
                CHECK_MSG(got >= 0.97, "%s, %d lanes, %s: %.3f of the better of plain and DFlash", k[i].name, lanes[j],
                          all ? "all methods" : "DFlash", got);
            }
}

/* Requests of 40 rounds: what one has learnt is there for the next. */
TEST(joint_life_of_short_requests)
{
    static const machine small = {0.00016, 0.000097, 0, 0.0004, 0.00006, 0.00006, 0.00003};
    static const struct {
        const char *name;
        world       w;
    } k[] = {
        {"cpu, good drafter", {.m = CPU_LIKE, .rate = {0, 0.9, 0.9, 0.8, 0.1}, .length = 40}},
        {"cpu, bad drafter", {.m = CPU_LIKE, .rate = {0, 0.2, 0.2, 0.2, 0.02}, .length = 40}},
        {"gpu, bad drafter", {.m = GPU_LIKE, .rate = {0, 0.1, 0.1, 0.1, 0.02}, .length = 40}},
        {"nano", {.m = small, .rate = {0, 0.8, 0.8, 0.9, 0.3}, .length = 40}},
    };
    static const int lanes[] = {1, 2, 4, 8, 32};
    for (size_t i = 0; i < COUNT(k); i++)
        for (size_t j = 0; j < COUNT(lanes); j++) {
            double got = check_life(t, k[i].name, &k[i].w, &CHAINS_AND_TREES, lanes[j]);
            CHECK_MSG(got >= 0.97, "%s, %d lanes: %.3f of the better of plain and DFlash", k[i].name, lanes[j], got);
        }
}

/* Moments in which all is slower are no reason to guess more, nor less. */
TEST_LONG(joint_life_on_a_busy_machine)
{
    static const machine small = {0.00016, 0.000097, 0, 0.0004, 0.00006, 0.00006, 0.00003};
    static const struct {
        const char *name;
        world       w;
    } k[] = {
        {"cpu, good drafter", {.m = CPU_LIKE, .rate = {0, 0.9, 0.9, 0.8, 0.1}, .busy = true}},
        {"cpu, bad drafter", {.m = CPU_LIKE, .rate = {0, 0.2, 0.2, 0.2, 0.02}, .busy = true}},
        {"gpu, bad drafter", {.m = GPU_LIKE, .rate = {0, 0.1, 0.1, 0.1, 0.02}, .busy = true}},
        {"nano", {.m = small, .rate = {0, 0.8, 0.8, 0.9, 0.3}, .busy = true, .length = 40}},
    };
    static const int lanes[] = {1, 2, 4, 8, 32};
    for (size_t i = 0; i < COUNT(k); i++)
        for (size_t j = 0; j < COUNT(lanes); j++) {
            shares got = check_lives(t, k[i].name, &k[i].w, &CHAINS_AND_TREES, lanes[j], 8);
            CHECK_MSG(got.mean >= 0.965 && got.least >= 0.87, "%s, %d lanes: %.3f of the better setting, at least %.3f",
                      k[i].name, lanes[j], got.mean, got.least);
        }
}

/* Text that is good for drafts in every other 300 steps: with few lanes it takes some steps to find out that it is good
 * again, with many the lanes that try share the cost. */
TEST(joint_life_follows_texts_that_switch)
{
    static const world w = {.m = GPU_LIKE, .rate = {0, 0.9, 0.9, 0.8, 0}, .rate2 = {0, 0.1, 0.1, 0.1}, .phase = 300};
    static const int   lanes[] = {2, 3, 8, 16, 32};
    for (size_t j = 0; j < COUNT(lanes); j++) {
        double got = check_life(t, "texts that switch", &w, &DFLASH_ONLY, lanes[j]);
        CHECK_MSG(got >= (lanes[j] < 8 ? 0.9 : 1.15), "%d lanes: %.3f of the better setting", lanes[j], got);
    }
}

/* --- time ---------------------------------------------------------------------------------------- */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW_BUILD = 1 };
#else
enum { SLOW_BUILD = 0 };
#endif

static double best_time_us(const crowd *c, const cost_table *costs)
{
    double best = 1;
    for (int i = 0; i < 200; i++) {
        spec_plan       plan[MAX_LANES];
        policy_forecast f;
        double          from = clock_s();
        policy_choose_all(c->lane, c->n, costs, 0, COST_MAX_ROWS, plan, &f);
        best = fmin(best, clock_s() - from);
    }
    return 1e6 * best;
}

TEST(joint_choice_is_quick)
{
    static const int lanes[] = {1, 2, 8, 32};
    for (int due = 0; due < 2; due++)
        for (size_t i = 0; i < COUNT(lanes); i++) {
            static crowd c;
            cost_table   costs = known_costs(&GPU_LIKE);
            uint64_t     seed  = 1;
            random_crowd(&c, lanes[i], &CHAINS_AND_TREES, &seed);
            for (int l = 0; due && l < c.n; l++)
                for (int m = 0; m < SPEC_METHODS; m++) c.p[l].wait[m] = 0;
            double us   = best_time_us(&c, &costs);
            double most = c.n == 1 ? 16 : 150; /* three times what it takes here */
            if (getenv("US")) printf("%d lanes due %d: %.1f us\n", c.n, due, us);
            CHECK_MSG(SLOW_BUILD || us < most, "%d lanes: %.1f us, %.0f are allowed", c.n, us, most);
        }
}

/* Against giving out one row after another to whoever has fewest and wants more. */
TEST(joint_rows_are_shared_equally)
{
    uint64_t seed = 3;
    for (int round = 0; round < 2000; round++) {
        int want[12], got[12], give[12] = {0}, n = 1 + (int)(test_rand(&seed) % 12),
                               room = (int)(test_rand(&seed) % 60);
        for (int i = 0; i < n; i++) want[i] = got[i] = (int)(test_rand(&seed) % 12);
        for (int left = room; left > 0; left--) {
            int poorest = -1;
            for (int i = 0; i < n; i++)
                if (give[i] < want[i] && (poorest < 0 || give[i] < give[poorest])) poorest = i;
            if (poorest < 0) break;
            give[poorest]++;
        }
        choice_share_rows(got, n, room);
        for (int i = 0; i < n; i++)
            CHECK_MSG(got[i] == give[i], "%d of %d: %d rows, expected %d", i, n, got[i], give[i]);
    }
}
