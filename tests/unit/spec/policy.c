#include "spec/policy.h"
#include "spec/inside.h"
#include "test.h"
#include "views.h"

/* --- worlds: what is true, and what the policy makes of it --------------------------------------- */
enum { ROUNDS = 2000 };

typedef struct {
    const char   *name;
    policy_limits limits;
    double        step_s, per_row, per_row_from_8; /* a step; each row more; each row from the 8th on more */
    double        draft_s[SPEC_METHODS];           /* one draft, or one guess */
    double        rate[SPEC_METHODS];              /* of every guess; a tree's: a chain's, the tree improves on it */
    double        rate2[SPEC_METHODS];             /* in the other phase */
    int           phase;                           /* rounds; 0: rate only */
    double        late_step_s, late_per_row;       /* from the middle on; 0: as before */
    double        tree_gain;                       /* misses caught, per doubling of the budget from 8 */
} world;

#define CHAINS(dflash, mtp, ngram)                                                                                     \
    {                                                                                                                  \
        [SPEC_DFLASH] = (dflash), [SPEC_TREE] = (dflash), [SPEC_MTP] = (mtp), [SPEC_NGRAM] = (ngram)                   \
    }
static const policy_limits ALL     = {.there       = {true, true, true, true, true},
                                      .max_draft   = {0, 15, 15, 8, 32},
                                      .tree_budget = 32},
                           NO_TREE = {.there = {true, true, false, true, true}, .max_draft = {0, 15, 0, 8, 32}},
                           DFLASH  = {.there = {true, true, false, false, false}, .max_draft = {0, 15, 0, 0, 0}},
                           MTP     = {.there = {true, false, false, true, false}, .max_draft = {0, 0, 0, 8, 0}},
                           NGRAM   = {.there = {true, false, false, false, true}, .max_draft = {0, 0, 0, 0, 32}};

static double true_step(const world *w, int rows, int round)
{
    bool   late = round >= ROUNDS / 2;
    double one  = late && w->late_step_s > 0 ? w->late_step_s : w->step_s;
    double row  = late && w->late_per_row > 0 ? w->late_per_row : w->per_row;
    return one + row * (rows - 1) + w->per_row_from_8 * (rows > 8 ? rows - 8 : 0);
}

static double true_draft(const world *w, spec_method m, int n)
{
    return w->draft_s[m] * (n == 0 ? 0 : m == SPEC_MTP || m == SPEC_NGRAM ? n : 1);
}

static double true_rate(const world *w, const spec_plan *p, int round)
{
    double r = w->phase && round / w->phase % 2 ? w->rate2[p->method] : w->rate[p->method];
    if (p->method != SPEC_TREE || p->n <= 8) return r;
    return 1 - (1 - r) * (1 - w->tree_gain * log2(p->n / 8.0));
}

static int depth_of(const world *w, const spec_plan *p)
{
    return p->method == SPEC_TREE && p->n > w->limits.max_draft[SPEC_TREE] ? w->limits.max_draft[SPEC_TREE] : p->n;
}

static double expected_tokens(const world *w, const spec_plan *p, int round)
{
    double all = 1, tokens = 1, rate = true_rate(w, p, round);
    for (int d = 0; d < depth_of(w, p); d++) tokens += all *= rate;
    return tokens;
}

/* Tokens per second of one setting for all rounds, as expected. */
static double fixed_rate(const world *w, spec_method m, int n)
{
    spec_plan p      = {.method = m, .n = n};
    double    tokens = 0, seconds = 0;
    for (int round = 0; round < ROUNDS; round++) {
        tokens += expected_tokens(w, &p, round);
        seconds += true_draft(w, m, n) + true_step(w, 1 + n, round);
    }
    return tokens / seconds;
}

static double best_fixed_rate(const world *w)
{
    double best = fixed_rate(w, SPEC_OFF, 0);
    for (int m = 1; m < SPEC_METHODS; m++) {
        int most = m == SPEC_TREE ? w->limits.tree_budget : w->limits.max_draft[m];
        for (int n = 1; w->limits.there[m] && n <= most; n++) best = fmax(best, fixed_rate(w, m, n));
    }
    return best;
}

typedef struct {
    double rate;                  /* tokens per second */
    int    rounds[SPEC_METHODS];  /* for merit */
    int    n_draft[SPEC_METHODS]; /* in them */
    int    trials;
    int    late_rounds[SPEC_METHODS]; /* the same, in the second half */
    int    late_n_draft[SPEC_METHODS];
} outcome;

static double uniform(uint64_t *seed) { return (double)(test_rand(seed) >> 11) * 0x1p-53; }

/* Measurements are off by up to 8%, and one in 150 is ten times too long: the machine was busy. */
static double measured(double seconds, uint64_t *seed)
{
    return seconds * (0.92 + 0.16 * uniform(seed)) * (test_rand(seed) % 150 == 0 ? 10 : 1);
}

static void count_plan(outcome *o, const spec_plan *plan, int round)
{
    o->trials += plan->trial;
    if (plan->trial) return;
    o->rounds[plan->method]++;
    o->n_draft[plan->method] += plan->n;
    if (round < ROUNDS / 2) return;
    o->late_rounds[plan->method]++;
    o->late_n_draft[plan->method] += plan->n;
}

static void note_draft(cost_table *c, const spec_plan *plan, double seconds)
{
    bool in_passes = plan->method == SPEC_MTP || plan->method == SPEC_NGRAM;
    cost_note_draft(c, plan->method, 1, in_passes ? plan->n : 1 + plan->n, seconds);
}

static outcome live(const world *w, uint64_t seed)
{
    cost_table costs = {0};
    policy     p;
    outcome    o      = {0};
    double     tokens = 0, seconds = 0;
    policy_init(&p, &w->limits);
    for (int round = 0; round < ROUNDS; round++) {
        spec_plan plan = policy_choose(&p, &costs, 1000, 0);
        int       n = depth_of(w, &plan), right = 0;
        while (right < n && uniform(&seed) < true_rate(w, &plan, round)) right++;
        double draft_s = true_draft(w, plan.method, plan.n), step_s = true_step(w, 1 + plan.n, round);
        tokens += expected_tokens(w, &plan, round);
        seconds += draft_s + step_s;
        cost_note_step(&costs, 1 + plan.n, 0, measured(step_s, &seed));
        if (plan.n) note_draft(&costs, &plan, measured(draft_s, &seed));
        policy_note(&p, &costs, &plan, n, n, right);
        count_plan(&o, &plan, round);
    }
    o.rate = tokens / seconds;
    return o;
}

/* The outcome of one of the lives; all of them must be good enough. */
static outcome check_world(test_case *t, const world *w, double of_best)
{
    double  plain = fixed_rate(w, SPEC_OFF, 0), best = best_fixed_rate(w);
    outcome o = {0};
    for (uint64_t seed = 1; seed <= 8; seed++) {
        o = live(w, seed * 7919);
        CHECK_MSG(o.rate >= 0.97 * plain, "%s: %.1f tokens/s, plain decoding has %.1f", w->name, o.rate, plain);
        CHECK_MSG(o.rate >= of_best * best, "%s: %.1f tokens/s, the best setting has %.1f", w->name, o.rate, best);
    }
    return o;
}

static double mean_length(const outcome *o, spec_method m)
{
    return o->rounds[m] ? (double)o->n_draft[m] / o->rounds[m] : 0;
}

TEST(policy_world_dense_rows_make_long_drafts)
{
    world   w = {.name    = "dense, good drafter",
                 .limits  = DFLASH,
                 .step_s  = 0.030,
                 .per_row = 0.0002,
                 .draft_s = CHAINS(0.003, 0, 0),
                 .rate    = CHAINS(0.9, 0, 0)};
    outcome o = check_world(t, &w, 0.95);
    CHECK_MSG(mean_length(&o, SPEC_DFLASH) > 12, "drafts of %.1f", mean_length(&o, SPEC_DFLASH));
}

TEST(policy_world_expert_rows_make_short_drafts)
{
    world   w = {.name    = "MoE, fair drafter",
                 .limits  = DFLASH,
                 .step_s  = 0.010,
                 .per_row = 0.0035,
                 .draft_s = CHAINS(0.001, 0, 0),
                 .rate    = CHAINS(0.75, 0, 0)};
    outcome o = check_world(t, &w, 0.95);
    CHECK_MSG(mean_length(&o, SPEC_DFLASH) > 1 && mean_length(&o, SPEC_DFLASH) < 6, "drafts of %.1f",
              mean_length(&o, SPEC_DFLASH));
}

TEST(policy_world_bad_drafters_are_left)
{
    world   w = {.name    = "bad drafters",
                 .limits  = ALL,
                 .step_s  = 0.020,
                 .per_row = 0.001,
                 .draft_s = CHAINS(0.006, 0.002, 0.000002),
                 .rate    = CHAINS(0.1, 0.08, 0.02)};
    outcome o = check_world(t, &w, 0.97);
    CHECK_MSG(o.rounds[SPEC_OFF] > ROUNDS * 9 / 10, "%d plain rounds", o.rounds[SPEC_OFF]);
    CHECK_MSG(o.trials >= 12 && o.trials < 100, "%d trials", o.trials);
}

TEST(policy_world_expensive_draft_pass)
{
    world w = {.name    = "expensive pass",
               .limits  = DFLASH,
               .step_s  = 0.020,
               .per_row = 0.001,
               .draft_s = CHAINS(0.030, 0, 0),
               .rate    = CHAINS(0.5, 0, 0)};
    check_world(t, &w, 0.97); /* 2 tokens for the price of 2.6 */
    w.rate[SPEC_DFLASH] = 0.9;
    outcome o           = check_world(t, &w, 0.95);
    CHECK_MSG(mean_length(&o, SPEC_DFLASH) > 10, "drafts of %.1f", mean_length(&o, SPEC_DFLASH));
}

TEST(policy_world_good_mtp_bad_dflash)
{
    world   w = {.name    = "good MTP, bad DFlash",
                 .limits  = NO_TREE,
                 .step_s  = 0.020,
                 .per_row = 0.0008,
                 .draft_s = CHAINS(0.004, 0.001, 0.000002),
                 .rate    = CHAINS(0.3, 0.8, 0.1)};
    outcome o = check_world(t, &w, 0.95);
    CHECK_MSG(o.rounds[SPEC_MTP] > ROUNDS * 9 / 10, "%d rounds of MTP", o.rounds[SPEC_MTP]);
}

TEST(policy_world_trees)
{
    world   w = {.name      = "trees, cheap rows",
                 .limits    = ALL,
                 .step_s    = 0.030,
                 .per_row   = 0.0002,
                 .draft_s   = CHAINS(0.003, 0.003, 0.000002),
                 .rate      = CHAINS(0.8, 0.6, 0.1),
                 .tree_gain = 0.12};
    outcome o = check_world(t, &w, 0.90); /* DFlash's chains are within 15%, hard to tell apart by 100 rounds */
    CHECK_MSG(o.rounds[SPEC_TREE] > ROUNDS / 2, "%d rounds with trees", o.rounds[SPEC_TREE]);
    w.name    = "trees, dear rows";
    w.per_row = 0.004;
    o         = check_world(t, &w, 0.95);
    CHECK_MSG(mean_length(&o, SPEC_TREE) < 12, "trees of %.1f", mean_length(&o, SPEC_TREE));
    w.name      = "trees, no better than chains";
    w.per_row   = 0.001;
    w.tree_gain = 0;
    check_world(t, &w, 0.92);
}

TEST(policy_world_copy_then_prose)
{
    world   w = {.name    = "copy, then prose",
                 .limits  = NO_TREE,
                 .step_s  = 0.020,
                 .per_row = 0.0005,
                 .draft_s = CHAINS(0.004, 0.002, 0.000002),
                 .rate    = CHAINS(0.5, 0.6, 0.97),
                 .rate2   = CHAINS(0.5, 0.6, 0.02),
                 .phase   = ROUNDS / 2};
    outcome o = check_world(t, &w, 1.05);
    CHECK_MSG(o.rounds[SPEC_NGRAM] - o.late_rounds[SPEC_NGRAM] > 850, "%d copying rounds",
              o.rounds[SPEC_NGRAM] - o.late_rounds[SPEC_NGRAM]);
    CHECK_MSG(o.late_rounds[SPEC_NGRAM] < 60, "%d rounds of n-grams in prose", o.late_rounds[SPEC_NGRAM]);
    w.limits = NGRAM;
    check_world(t, &w, 0.95);
}

TEST(policy_world_acceptance_switches)
{
    world w = {.name    = "switches",
               .limits  = DFLASH,
               .step_s  = 0.020,
               .per_row = 0.0015,
               .draft_s = CHAINS(0.006, 0, 0),
               .rate    = CHAINS(0.95, 0, 0),
               .rate2   = CHAINS(0.1, 0, 0),
               .phase   = 150};
    check_world(t, &w, 1);
    w.limits            = MTP;
    w.draft_s[SPEC_MTP] = 0.002;
    w.rate[SPEC_MTP]    = 0.95;
    w.rate2[SPEC_MTP]   = 0.1;
    check_world(t, &w, 1);
}

TEST(policy_world_costs_change)
{
    world w = {.name        = "the context grows",
               .limits      = DFLASH,
               .step_s      = 0.020,
               .per_row     = 0.0003,
               .draft_s     = CHAINS(0.003, 0, 0),
               .rate        = CHAINS(0.8, 0, 0),
               .late_step_s = 0.060};
    check_world(t, &w, 0.95); /* all steps alike: the same choices */
    w.name         = "rows become dear";
    w.late_step_s  = 0;
    w.late_per_row = 0.010;
    outcome o      = check_world(t, &w, 0.9); /* lengths that were cheap are tried one after another */
    CHECK_MSG(o.late_n_draft[SPEC_DFLASH] < 5 * ROUNDS / 2, "%d guesses", o.late_n_draft[SPEC_DFLASH]);
    w.name         = "rows become cheap";
    w.per_row      = 0.030;
    w.late_per_row = 0.0003;
    check_world(t, &w, 1);
}

static world random_world(uint64_t *seed)
{
    world w          = {.name = "random", .limits = test_rand(seed) % 2 ? ALL : NO_TREE, .step_s = 0.02};
    w.per_row        = 0.02 * pow(uniform(seed), 3);
    w.per_row_from_8 = test_rand(seed) % 3 ? 0 : 0.01 * uniform(seed);
    w.tree_gain      = 0.2 * uniform(seed);
    for (int m = 1; m < SPEC_METHODS; m++) w.rate[m] = uniform(seed);
    w.rate[SPEC_TREE]      = w.rate[SPEC_DFLASH];
    w.draft_s[SPEC_DFLASH] = w.draft_s[SPEC_TREE] = 0.03 * pow(uniform(seed), 2);
    w.draft_s[SPEC_MTP]                           = 0.01 * pow(uniform(seed), 2);
    w.draft_s[SPEC_NGRAM]                         = 0.000002;
    return w;
}

/* Whatever the world is like: never much slower than plain decoding, and on average near the best setting. */
TEST(policy_world_at_random)
{
    enum { WORLDS = 50 };
    uint64_t seed = 4;
    double   sum  = 0;
    for (int i = 0; i < WORLDS; i++) {
        world  w     = random_world(&seed);
        double plain = fixed_rate(&w, SPEC_OFF, 0), best = best_fixed_rate(&w), got = live(&w, seed).rate;
        CHECK_MSG(got > 0.95 * plain, "world %d: %.1f tokens/s, plain decoding has %.1f", i, got, plain);
        CHECK_MSG(got > 0.8 * best, "world %d: %.1f tokens/s, the best setting has %.1f", i, got, best);
        sum += got / best;
    }
    CHECK_MSG(sum / WORLDS > 0.96, "%.3f of the best setting", sum / WORLDS);
}

/* --- the choice ---------------------------------------------------------------------------------- */
/* A record as of very many rounds, each guess right at this rate. */
static survival steady_record(double rate)
{
    survival s = {0};
    for (int d = 0; d < DRAFT_MAX; d++) {
        s.tried[d] = 1000;
        s.right[d] = 1000 * rate;
    }
    return s;
}

static policy steady_policy(const policy_limits *l, double dflash, double mtp, double ngram)
{
    policy p;
    policy_init(&p, l);
    p.record[SPEC_DFLASH] = steady_record(dflash);
    p.record[SPEC_MTP]    = steady_record(mtp);
    p.record[SPEC_NGRAM]  = steady_record(ngram);
    for (int m = 0; m < SPEC_METHODS; m++) p.wait[m] = 100; /* no trials */
    return p;
}

static void set_step(cost_table *c, int rows, double seconds)
{
    c->step[0].at[rows].seconds = seconds;
    cost_refresh(c);
}

static cost_table straight_costs(double one, double per_row, double dflash, double mtp)
{
    cost_table c             = {0};
    c.step[0].at[1].seconds  = one;
    c.step[0].at[16].seconds = one + 15 * per_row;
    c.pass.at[1].seconds     = mtp;
    c.ngram.seconds          = 1e-6;
    for (int rows = 2; rows <= 16; rows += 14)
        c.block[SPEC_DFLASH].at[rows].seconds = c.block[SPEC_TREE].at[rows].seconds = dflash;
    cost_refresh(&c);
    return c;
}

/* Each case differs from the one before it in one number. */
TEST(policy_choice_follows_each_number)
{
    static const struct {
        double      one, per_row, dflash_s, mtp_s; /* ms */
        double      dflash, mtp, ngram;            /* rates */
        int         room;
        spec_method method;
        int         min, max;
    } k[] = {
        {20, 0.1, 2, 2, 0.90, 0.6, 0, 99, SPEC_DFLASH, 15, 15}, /* cheap rows: all of the block */
        {20, 4.0, 2, 2, 0.90, 0.6, 0, 99, SPEC_DFLASH, 3, 7},   /* dear rows: a part of it */
        {20, 30., 2, 2, 0.90, 0.6, 0, 99, SPEC_OFF, 0, 0},      /* rows that cost more than a step */
        {90, 30., 2, 2, 0.90, 0.6, 0, 99, SPEC_DFLASH, 2, 6},   /* unless the step is dear as well */
        {90, 30., 300, 2, 0.90, 0.6, 0, 99, SPEC_MTP, 1, 2},    /* a pass that costs three steps: the other drafter */
        {90, 30., 300, 60, 0.90, 0.6, 0, 99, SPEC_OFF, 0, 0},   /* that one is dear too */
        {90, 0.1, 300, 60, 0.90, 0.6, 0, 99, SPEC_DFLASH, 15, 15},
        {90, 0.1, 300, 60, 0.50, 0.6, 0, 99, SPEC_OFF, 0, 0},
        {90, 0.1, 300, 60, 0.50, 0.9, 0, 99, SPEC_MTP, 1, 3},
        {90, 0.1, 300, 60, 0.50, 0.9, 0.7, 99, SPEC_NGRAM, 6, 32}, /* the text repeats itself */
        {90, 0.1, 300, 60, 0.50, 0.9, 0.7, 2, SPEC_NGRAM, 2, 2},   /* the answer may have two tokens more */
        {90, 0.1, 300, 60, 0.50, 0.9, 0.7, 0, SPEC_OFF, 0, 0},
    };
    for (size_t i = 0; i < COUNT(k); i++) {
        policy     p = steady_policy(&NO_TREE, k[i].dflash, k[i].mtp, k[i].ngram);
        cost_table c = straight_costs(k[i].one / 1e3, k[i].per_row / 1e3, k[i].dflash_s / 1e3, k[i].mtp_s / 1e3);
        spec_plan  a = policy_choose(&p, &c, k[i].room, 0), b = policy_choose(&p, &c, k[i].room, 0);
        CHECK_MSG(a.method == k[i].method && a.n >= k[i].min && a.n <= k[i].max, "case %zu: %s %d", i,
                  spec_method_names[a.method], a.n);
        CHECK(!a.trial && a.rate > 0);
        CHECK(a.method == b.method && a.n == b.n && a.rate == b.rate && a.trial == b.trial && a.par == b.par);
    }
}

TEST(policy_choice_of_a_tree)
{
    policy_limits l = {.there = {true, true, true}, .max_draft = {0, 15, 15}, .tree_budget = 40};
    policy        p = steady_policy(&l, 0.7, 0, 0);
    cost_table    c = straight_costs(0.02, 0.00005, 0.002, 0);
    spec_plan     a = policy_choose(&p, &c, 99, 0);
    CHECK_STR(str_of(spec_method_names[a.method]), STR("tree")); /* no record of its own: DFlash's, and better */
    CHECK_INT(a.n, 40);
    a = policy_choose(&p, &c, 20, 0);
    CHECK_MSG(a.n <= 20, "a budget of %d in a room of 20", a.n);
    p.record[SPEC_TREE] = steady_record(0.4);
    a                   = policy_choose(&p, &c, 99, 0);
    CHECK_STR(str_of(spec_method_names[a.method]), STR("dflash"));
    p.record[SPEC_TREE] = steady_record(0.8);
    set_step(&c, 41, 0.08);
    a = policy_choose(&p, &c, 99, 0);
    CHECK_STR(str_of(spec_method_names[a.method]), STR("tree"));
    CHECK_MSG(a.n == 16 || a.n == 22, "a budget of %d", a.n);
}

/* Nothing is known: drafts of moderate length, and each method has its turn. */
TEST(policy_starts_with_drafts)
{
    cost_table none = {0};
    policy     p;
    bool       seen[SPEC_METHODS] = {false};
    policy_init(&p, &ALL);
    for (int i = 0; i < 20; i++) {
        spec_plan a = policy_choose(&p, &none, 99, 0);
        CHECK(a.rate == 0);
        if (i == 1) CHECK_MSG(a.n >= 3 && a.n <= 16, "%s %d", spec_method_names[a.method], a.n);
        seen[a.method] = true;
        policy_note(&p, &none, &a, a.n < 8 ? a.n : 8, a.n < 8 ? a.n : 8, a.n < 2 ? a.n : 2);
    }
    for (int m = 0; m < SPEC_METHODS; m++) CHECK_MSG(seen[m], "%s was not tried", spec_method_names[m]);
}

TEST(policy_without_methods_or_room_is_plain)
{
    policy_limits nothing = {.there = {true}};
    cost_table    c       = {0};
    policy        p;
    policy_init(&p, &nothing);
    for (int i = 0; i < 300; i++) {
        spec_plan a = policy_choose(&p, &c, 99, 0);
        CHECK(a.method == SPEC_OFF && a.n == 0 && !a.trial);
        policy_note(&p, &c, &a, 0, 0, 0);
        cost_note_step(&c, 1, 0, 0.01);
    }
    policy_init(&p, &ALL);
    for (int i = 0; i < 300; i++) {
        spec_plan a = policy_choose(&p, &c, i % 3 - 2, 0);
        CHECK(a.method == SPEC_OFF && a.n == 0);
        policy_note(&p, &c, &a, 0, 0, 0);
    }
}

/* Trials of a bad method come at distances of 16, 32, 64 rounds; one that pays is followed by the next at once. */
TEST(policy_tries_again_at_growing_distances)
{
    policy     p  = steady_policy(&DFLASH, 0.05, 0, 0);
    cost_table c  = straight_costs(0.02, 0.002, 0.004, 0);
    int        at = -1, n = 0, gap[4];
    p.wait[SPEC_DFLASH] = 0;
    for (int i = 0; n < 4; i++) {
        spec_plan a = policy_choose(&p, &c, 99, 0);
        CHECK(a.method == SPEC_OFF || a.trial);
        if (a.trial && at >= 0) gap[n++] = i - at;
        if (a.trial) at = i;
        policy_note(&p, &c, &a, a.n, a.n, 0);
    }
    CHECK_INT(gap[0], 16);
    CHECK_INT(gap[1], 32);
    CHECK_INT(gap[2], 64);
    CHECK_INT(gap[3], 64);
    int rounds = 0;
    for (; rounds < 80; rounds++) { /* now it is good */
        spec_plan a = policy_choose(&p, &c, 99, 0);
        if (a.method == SPEC_DFLASH && !a.trial) break;
        policy_note(&p, &c, &a, a.n, a.n, a.n);
    }
    CHECK_MSG(rounds < 64 + 6, "chosen after %d rounds", rounds);
}

/* A method whose rows cannot pay even when all is right is left alone, until the costs are old. */
TEST(policy_does_not_try_what_cannot_pay)
{
    policy     p        = steady_policy(&DFLASH, 0.9, 0, 0);
    cost_table c        = straight_costs(0.02, 0.03, 0.02, 0);
    int        n        = 0;
    p.wait[SPEC_DFLASH] = 0;
    for (int i = 0; i < 1200; i++) {
        spec_plan a = policy_choose(&p, &c, 99, 0);
        n += a.method == SPEC_DFLASH;
        if (i < 500) CHECK(a.method == SPEC_OFF);
        cost_note_step(&c, 1 + a.n, 0, 0.02 + 0.03 * a.n);
        if (a.n) cost_note_draft(&c, SPEC_DFLASH, 1, 1 + a.n, 0.02);
        policy_note(&p, &c, &a, a.n, a.n, 0);
    }
    CHECK_MSG(n >= 1 && n < 20, "%d drafts", n);
}

TEST(policy_idle_notes_count)
{
    policy     p = steady_policy(&NGRAM, 0, 0, 0.01);
    cost_table c = straight_costs(0.02, 0.002, 0, 0);
    CHECK(policy_choose(&p, &c, 99, 0).method == SPEC_OFF);
    for (int i = 0; i < 10; i++) policy_note_idle(&p, SPEC_NGRAM, 1, 1);
    CHECK(policy_choose(&p, &c, 99, 0).method == SPEC_NGRAM);
    CHECK_INT(p.wait[SPEC_NGRAM], 100); /* no round went by */
    p.limits.max_draft[SPEC_NGRAM] = 0; /* none found this time */
    CHECK(policy_choose(&p, &c, 99, 0).method == SPEC_OFF);
}

/* A drafter that has nothing to say is no reason to choose it. */
TEST(policy_counts_missing_draft_tokens)
{
    policy     p = steady_policy(&NGRAM, 0, 0, 0.9);
    cost_table c = straight_costs(0.02, 0.002, 0, 0);
    int        n = 0;
    for (; n < 40; n++) {
        spec_plan a = policy_choose(&p, &c, 99, 0);
        if (a.method == SPEC_OFF) break;
        policy_note(&p, &c, &a, 0, 0, 0);
    }
    CHECK_MSG(n < 20, "chosen %d times", n);
}

/* --- records ------------------------------------------------------------------------------------- */
TEST(survival_finds_the_rates)
{
    static const double rate[] = {0.9, 0.8, 0.5, 0.9};
    survival            s      = {0};
    uint64_t            seed   = 3;
    double              all = 1, mean[4] = {0};
    CHECK(survival_at(&s, 1) >= 0.7 && survival_at(&s, 1) <= 0.8);
    CHECK(survival_at(&s, DRAFT_MAX) > 0);
    for (int i = 0; i < 4000; i++) {
        int right = 0;
        while (right < 4 && uniform(&seed) < rate[right]) right++;
        survival_note(&s, 4, 4, right);
        for (int d = 0; d < 4; d++) mean[d] += survival_at(&s, d + 1) / 4000;
    }
    for (int d = 0; d < 4; d++) CHECK_NEAR(mean[d], all *= rate[d], 0.03);
    for (int d = 2; d <= DRAFT_MAX; d++) CHECK(survival_at(&s, d) <= survival_at(&s, d - 1));
}

/* Ten rounds after the text has become another kind of text, the record is of that kind. */
TEST(survival_follows_a_change)
{
    survival s = {0};
    for (int i = 0; i < 500; i++) survival_note(&s, 8, 8, i % 3 ? 8 : 6);
    CHECK(survival_at(&s, 1) > 0.95);
    for (int i = 0; i < 10; i++) survival_note(&s, 8, 8, i % 5 == 4);
    CHECK_MSG(survival_at(&s, 1) < 0.4, "%.2f after good text", survival_at(&s, 1));
    for (int i = 0; i < 500; i++) survival_note(&s, 8, 8, i % 8 == 0);
    CHECK(survival_at(&s, 1) < 0.2);
    for (int i = 0; i < 10; i++) survival_note(&s, 8, 8, 8);
    CHECK_MSG(survival_at(&s, 1) > 0.8 && survival_at(&s, 8) > 0.3, "%.2f, %.2f after bad text", survival_at(&s, 1),
              survival_at(&s, 8));
}

/* --- costs --------------------------------------------------------------------------------------- */
TEST(cost_between_and_beyond)
{
    cost_table c = {0};
    CHECK(cost_step(&c, 1, 0) > 0 && cost_step(&c, 9, 0) > cost_step(&c, 1, 0));
    set_step(&c, 4, 0.010);
    CHECK(cost_step(&c, 1, 0) < 0.010 && cost_step(&c, 8, 0) > 0.010);
    set_step(&c, 8, 0.014);
    set_step(&c, 16, 0.018);
    CHECK_NEAR(cost_step(&c, 4, 0), 0.010, 1e-12);
    CHECK_NEAR(cost_step(&c, 6, 0), 0.012, 1e-12);
    CHECK_NEAR(cost_step(&c, 12, 0), 0.016, 1e-12);
    CHECK_NEAR(cost_step(&c, 32, 0), 0.026, 1e-12); /* as it rose from 8 to 16 */
    set_step(&c, 20, 0.002);
    /* cannot be: the two share a level */
    for (int r = 2; r <= COST_MAX_ROWS; r++) CHECK(cost_step(&c, r, 0) >= cost_step(&c, r - 1, 0));
    CHECK_NEAR(cost_step(&c, 16, 0), cost_step(&c, 20, 0), 1e-12);
}

TEST(cost_never_falls_with_the_rows)
{
    uint64_t seed = 9;
    for (int i = 0; i < 200; i++) {
        cost_table c = {0};
        for (int k = 0; k < 60; k++)
            cost_note_step(&c, 1 + (int)(test_rand(&seed) % COST_MAX_ROWS), 0, 0.001 + uniform(&seed));
        for (int r = 2; r <= COST_MAX_ROWS; r++) CHECK(cost_step(&c, r, 0) >= cost_step(&c, r - 1, 0));
    }
}

TEST(cost_survives_a_busy_machine)
{
    cost_table c = {0};
    cost_note_step(&c, 1, 0, 0.2); /* the first of all was one of them */
    for (int i = 0; i < 100; i++) cost_note_step(&c, 1, 0, i % 20 == 10 ? 0.2 : 0.02);
    CHECK_NEAR(cost_step(&c, 1, 0), 0.02, 1e-9);
    for (int i = 0; i < 30; i++) cost_note_step(&c, 5, 0, 0.022);
    cost_note_step(&c, 6, 0, 0.2); /* measured once: not believed */
    CHECK(cost_step(&c, 6, 0) < 0.03);
    cost_note_step(&c, 6, 0, 0.21);
    CHECK(cost_step(&c, 6, 0) > 0.1);
    for (int i = 0; i < 40; i++) cost_note_step(&c, 1, 0, 0.06); /* slower for good */
    CHECK_NEAR(cost_step(&c, 1, 0), 0.06, 0.006);
}

TEST(cost_ignores_nonsense)
{
    cost_table c = {0};
    cost_note_step(&c, 0, 0, 1);
    cost_note_step(&c, -1, 0, 1);
    cost_note_step(&c, COST_MAX_ROWS + 1, 0, 1);
    cost_note_step(&c, 1, 0, 0);
    cost_note_step(&c, 1, 0, -1);
    cost_note_step(&c, 1, 0, NAN);
    cost_note_step(&c, 1, 0, INFINITY);
    cost_note_draft(&c, SPEC_MTP, 1, 0, 1);
    cost_note_draft(&c, SPEC_OFF, 1, 1, 1);
    CHECK(c.step[0].at[1].n == 0 && c.pass.at[1].n == 0);
}

TEST(cost_of_drafts)
{
    cost_table c = {0};
    cost_note_step(&c, 1, 0, 0.02);
    CHECK(cost_draft(&c, SPEC_MTP, 2) > 0 && cost_draft(&c, SPEC_DFLASH, 4) == cost_draft(&c, SPEC_DFLASH, 15));
    cost_note_draft(&c, SPEC_MTP, 1, 4, 0.008);
    cost_note_draft(&c, SPEC_DFLASH, 1, 16, 0.008);
    CHECK_NEAR(cost_draft(&c, SPEC_MTP, 3), 0.006, 1e-12);
    CHECK(cost_draft(&c, SPEC_DFLASH, 3) < 0.008);
    cost_note_draft(&c, SPEC_DFLASH, 1, 4, 0.004);
    CHECK_NEAR(cost_draft(&c, SPEC_DFLASH, 3), 0.004, 1e-12);
    CHECK_NEAR(cost_draft(&c, SPEC_DFLASH, 9), 0.006, 1e-12);
    CHECK_NEAR(cost_draft(&c, SPEC_TREE, 15), 0.008, 1e-12); /* the same pass */
    cost_note_draft(&c, SPEC_TREE, 1, 16, 0.009);
    CHECK_NEAR(cost_draft(&c, SPEC_TREE, 15), 0.009, 1e-12);
    CHECK_NEAR(cost_draft(&c, SPEC_DFLASH, 15), 0.008, 1e-12);
}

/* Where nothing was measured at a context, the next one is asked; with a few numbers of its own, it is scaled to them. */
TEST(cost_contexts_borrow)
{
    cost_table c = {0};
    for (int i = 0; i < 20; i++)
        for (int rows = 1; rows <= 8; rows++) cost_note_step(&c, rows, 500, 0.010 + 0.001 * rows);
    CHECK_NEAR(cost_step(&c, 4, 500), 0.014, 1e-9);
    CHECK_NEAR(cost_step(&c, 4, 100000), 0.014, 1e-9);
    for (int i = 0; i < 5; i++) cost_note_step(&c, 1, 5000, 0.022);
    CHECK_NEAR(cost_step(&c, 1, 5000), 0.022, 1e-9);
    CHECK_NEAR(cost_step(&c, 4, 5000), 0.028, 1e-9); /* twice as dear here */
    CHECK_NEAR(cost_step(&c, 4, 3000), 0.014, 1e-9); /* as near to both: the shorter one */
    CHECK_NEAR(cost_step(&c, 4, 70000), 0.028, 1e-9);
    for (int i = 0; i < 5; i++) cost_note_step(&c, 4, 5000, 0.050);
    CHECK_NEAR(cost_step(&c, 4, 5000), 0.050, 1e-3);
    CHECK_NEAR(cost_step(&c, 4, 500), 0.014, 1e-9);
    CHECK(cost_step_is_known(&c, 4, 4, 5000, 256) && !cost_step_is_known(&c, 8, 8, 5000, 256) &&
          cost_step_is_known(&c, 8, 8, 500, 256));
}

TEST(cost_of_drafts_for_many_lanes)
{
    cost_table c = {0};
    cost_view  v;
    cost_note_step(&c, 1, 0, 0.02);
    cost_view_init(&v, &c, 0);
    CHECK(v.pass[8] > v.pass[1] && v.block[SPEC_DFLASH][64] > 0);
    cost_note_draft(&c, SPEC_DFLASH, 4, 64, 0.016);
    cost_note_draft(&c, SPEC_DFLASH, 2, 32, 0.008);
    cost_note_draft(&c, SPEC_MTP, 1, 3, 0.003);
    cost_note_draft(&c, SPEC_MTP, 8, 3, 0.006);
    cost_note_draft(&c, SPEC_NGRAM, 4, 5, 0.0002);
    cost_view_init(&v, &c, 0);
    CHECK_NEAR(v.block[SPEC_DFLASH][48], 0.012, 1e-12);
    CHECK_NEAR(v.pass[1], 0.001, 1e-12);
    CHECK_NEAR(v.pass[8], 0.002, 1e-12);
    CHECK_NEAR(v.ngram, 1e-5, 1e-12);
}

/* What was measured long ago counts half, later a quarter, but no less than what is assumed of the unknown. */
TEST(cost_of_drafts_fades)
{
    cost_table c = {0};
    cost_note_step(&c, 1, 0, 0.02);
    cost_note_draft(&c, SPEC_DFLASH, 1, 16, 0.064);
    for (int i = 0; i < 512; i++) cost_note_step(&c, 1, 0, 0.02);
    CHECK_NEAR(cost_draft(&c, SPEC_DFLASH, 15), 0.064, 1e-9);
    for (int i = 0; i < 2; i++) cost_note_step(&c, 1, 0, 0.02);
    CHECK_NEAR(cost_draft(&c, SPEC_DFLASH, 15), 0.032, 1e-9);
    CHECK_NEAR(cost_draft(&c, SPEC_TREE, 15), 0.032, 1e-9);
    for (int i = 0; i < 5000; i++) cost_note_step(&c, 1, 0, 0.02);
    CHECK_NEAR(cost_draft(&c, SPEC_DFLASH, 15), 0.004, 1e-9);
}

/* --- classes ------------------------------------------------------------------------------------- */
TEST(policy_classes_hand_on_what_was_learnt)
{
    policy_classes *s = policy_classes_new(4);
    policy          good, bad, p;
    cost_table      c = straight_costs(0.02, 0.002, 0.004, 0);
    good              = steady_policy(&DFLASH, 0.9, 0, 0);
    bad               = steady_policy(&DFLASH, 0.05, 0, 0);
    policy_init(&p, &NO_TREE);
    CHECK(!policy_classes_seed(s, 1, &p));
    CHECK(p.record[SPEC_DFLASH].tried[0] == 0);
    policy_classes_learn(s, 1, &good);
    policy_classes_learn(s, 2, &bad);
    CHECK(policy_classes_seed(s, 1, &p));
    CHECK_NEAR(p.record[SPEC_DFLASH].tried[0], 3, 1e-9); /* a guess, not knowledge */
    CHECK_INT(p.limits.max_draft[SPEC_MTP], NO_TREE.max_draft[SPEC_MTP]);
    CHECK_INT(policy_choose(&p, &c, 99, 0).method, SPEC_DFLASH);
    policy_init(&p, &DFLASH);
    CHECK(policy_classes_seed(s, 2, &p));
    CHECK_INT(policy_choose(&p, &c, 99, 0).method, SPEC_OFF);
    for (int i = 0; i < 6; i++) policy_classes_learn(s, 2, &good); /* the class has changed */
    policy_init(&p, &DFLASH);
    policy_classes_seed(s, 2, &p);
    CHECK_INT(policy_choose(&p, &c, 99, 0).method, SPEC_DFLASH);
    policy_classes_free(s);
}

TEST(policy_classes_forget_the_one_least_used)
{
    policy_classes *s = policy_classes_new(3);
    policy          p = steady_policy(&DFLASH, 0.5, 0, 0);
    for (uint64_t key = 10; key < 13; key++) policy_classes_learn(s, key, &p);
    CHECK(policy_classes_seed(s, 10, &p));
    policy_classes_learn(s, 13, &p);
    CHECK(!policy_classes_seed(s, 11, &p));
    CHECK(policy_classes_seed(s, 10, &p) && policy_classes_seed(s, 12, &p) && policy_classes_seed(s, 13, &p));
    policy_classes_free(s);
    policy_classes_free(NULL);
}

/* What a class has learnt before counts half beside what its last request has seen. */
TEST(policy_classes_weigh_the_past_half)
{
    policy_classes *s    = policy_classes_new(2);
    policy          good = steady_policy(&DFLASH, 0.9, 0, 0), bad = good, p;
    for (int d = 0; d < DRAFT_MAX; d++) bad.record[SPEC_DFLASH].right[d] = 0;
    policy_classes_learn(s, 1, &good);
    policy_classes_learn(s, 1, &bad);
    policy_init(&p, &DFLASH);
    CHECK(policy_classes_seed(s, 1, &p));
    const survival *was = &good.record[SPEC_DFLASH], *now = &p.record[SPEC_DFLASH];
    CHECK_NEAR(now->right[0] / now->tried[0], was->right[0] / was->tried[0] / 3, 1e-9);
    policy_classes_free(s);
}
