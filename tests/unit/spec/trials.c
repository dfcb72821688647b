/* One lane's choice against all plans that there are, and the numbers by which methods are tried again. */
#include "spec/choice.h"
#include "test.h"
#include "views.h"

static double uniform(uint64_t *seed) { return (double)(test_rand(seed) >> 11) / (double)(1ull << 53); }

static policy random_policy(uint64_t *seed)
{
    policy_limits lim = {.tree_budget = 22};
    for (int m = SPEC_DFLASH; m < SPEC_METHODS; m++) {
        lim.there[m]     = m != SPEC_TREE && test_rand(seed) % 4 != 0;
        lim.max_draft[m] = 1 + (int)(test_rand(seed) % 20);
    }
    policy p;
    policy_init(&p, &lim);
    for (int m = 0; m < SPEC_METHODS; m++) {
        p.wait[m]  = 100; /* no trials */
        double all = 40, rate = 0.3 + 0.65 * uniform(seed);
        for (int d = 0; d < DRAFT_MAX && m; d++, all *= rate) {
            p.record[m].tried[d] = all;
            p.record[m].right[d] = all * rate;
        }
    }
    return p;
}

static cost_table random_costs(uint64_t *seed)
{
    cost_table c   = {0};
    double     row = 0.001 * uniform(seed), pass = 0.004 * uniform(seed);
    for (int rows = 1; rows <= 40; rows++)
        for (int i = 0; i < 3; i++) {
            cost_note_step(&c, rows, 0, 0.01 + row * rows);
            cost_note_draft(&c, SPEC_DFLASH, 1, rows, 0.001 + pass + 0.0001 * rows);
            cost_note_draft(&c, SPEC_MTP, 1, 1, 0.0005 + pass);
            cost_note_draft(&c, SPEC_NGRAM, 1, 1, 0.00001);
        }
    return c;
}

/* The plan is the one of all methods and lengths with the most tokens per second. */
TEST(policy_choice_is_the_best_of_all_plans)
{
    uint64_t seed                 = 77;
    int      chosen[SPEC_METHODS] = {0};
    for (int i = 0; i < 300; i++) {
        policy     p    = random_policy(&seed);
        cost_table c    = random_costs(&seed);
        int        room = (int)(test_rand(&seed) % 24);
        spec_plan  best = {.rate = 1 / cost_step(&c, 1, 0)}, got = policy_choose(&p, &c, room, 0);
        for (int m = SPEC_DFLASH; m < SPEC_METHODS; m++)
            for (int n = 1; n <= p.limits.max_draft[m] && n <= room && p.limits.there[m]; n++) {
                double tokens = 1;
                for (int d = 1; d <= n; d++) tokens += survival_at(&p.record[m], d);
                double rate = tokens / (cost_draft(&c, (spec_method)m, n) + cost_step(&c, 1 + n, 0));
                if (rate > best.rate) best = (spec_plan){.method = (spec_method)m, .n = n, .rate = rate};
            }
        CHECK_MSG(got.method == best.method && got.n == best.n && fabs(got.rate / best.rate - 1) < 1e-6,
                  "case %d: %s %d at %g, expected %s %d at %g", i, spec_method_names[got.method], got.n, got.rate,
                  spec_method_names[best.method], best.n, best.rate);
        CHECK(!got.trial);
        chosen[best.method]++;
    }
    CHECK(chosen[SPEC_OFF] > 5 && chosen[SPEC_DFLASH] > 20 && chosen[SPEC_MTP] > 20 && chosen[SPEC_NGRAM] > 20);
}

/* --- trials ---------------------------------------------------------------------------------------*/
static const policy_limits three = {.there       = {[SPEC_DFLASH] = true, [SPEC_MTP] = true, [SPEC_NGRAM] = true},
                                    .max_draft   = {[SPEC_DFLASH] = 15, [SPEC_MTP] = 7, [SPEC_NGRAM] = 8},
                                    .tree_budget = 22};

TEST(policy_waits_between_trials)
{
    policy     p;
    cost_table c     = {0};
    spec_plan  trial = {.method = SPEC_MTP, .n = 4, .trial = true, .par = 2.5};
    policy_init(&p, &three);
    for (int m = 0; m < SPEC_METHODS; m++) CHECK(p.wait[m] == 2 * m && p.gap[m] == 8);
    policy_note(&p, &c, &trial, 4, 4, 2); /* three tokens: par is reached, it goes on */
    CHECK_INT(p.wait[SPEC_MTP], 0);
    CHECK_INT(p.wait[SPEC_NGRAM], 7); /* a round less */
    CHECK_INT(p.gap[SPEC_MTP], 8);
    policy_note(&p, &c, &trial, 4, 4, 0); /* lost one and a half tokens */
    CHECK_INT(p.gap[SPEC_MTP], 16);
    CHECK_INT(p.wait[SPEC_MTP], 16 - 1);
    trial.par = 9;
    policy_note(&p, &c, &trial, 4, 4, 0); /* lost eight: four times as long */
    CHECK_INT(p.gap[SPEC_MTP], 32);
    CHECK_INT(p.wait[SPEC_MTP], 32 * 4 - 1);
    trial.par = 2;
    policy_note(&p, &c, &trial, 4, 4, 0); /* the third that failed is the last free one */
    CHECK_INT(p.gap[SPEC_MTP], 64);
    CHECK_INT(p.wait[SPEC_MTP], 64 - 1);
    CHECK_INT(p.lost[SPEC_MTP], 3);
    policy_note(&p, &c, &trial, 4, 4, 0); /* all of them may lose 1.5% of the tokens, three methods share that */
    CHECK_INT(p.gap[SPEC_MTP], 128);
    CHECK_INT(p.wait[SPEC_MTP], 3 / 0.015 - 1);
    policy_note(&p, &c, &trial, 4, 4, 0);
    CHECK_INT(p.gap[SPEC_MTP], 3 * 64); /* no longer than this */
    trial.par = 100;
    policy_note(&p, &c, &trial, 4, 4, 0);
    CHECK_INT(p.wait[SPEC_MTP], 8192 - 1);
    policy_note(&p, &c, &(spec_plan){.method = SPEC_MTP, .n = 4}, 4, 4, 3); /* chosen for its merit */
    CHECK(p.wait[SPEC_MTP] == 16 - 1 && p.gap[SPEC_MTP] == 16 && p.lost[SPEC_MTP] == 0);
}

TEST(policy_notes_what_was_judged)
{
    policy     p;
    cost_table c = {0};
    policy_init(&p, &three);
    policy_note(&p, &c, &(spec_plan){.method = SPEC_DFLASH, .n = 6}, 6, 6, 2);
    const survival *s = &p.record[SPEC_DFLASH];
    CHECK(s->tried[0] == 1 && s->tried[2] == 1 && s->tried[3] == 0 && s->right[1] == 1 && s->right[2] == 0);
    policy_note(&p, &c, &(spec_plan){.method = SPEC_MTP, .n = 6}, 0, 0, 0); /* no guess is a wrong one */
    CHECK(p.record[SPEC_MTP].tried[0] == 1 && p.record[SPEC_MTP].right[0] == 0 && p.record[SPEC_MTP].tried[1] == 0);
    CHECK(s->tried[0] == 1);
    policy_note(&p, &c, &(spec_plan){.method = SPEC_OFF}, 0, 0, 0);
    CHECK(p.record[SPEC_OFF].tried[0] == 0);
    policy_note_idle(&p, SPEC_NGRAM, 3, 3);
    CHECK(p.record[SPEC_NGRAM].tried[2] == 1 && p.record[SPEC_NGRAM].right[2] == 1);
    policy_note_idle(&p, SPEC_NGRAM, 0, 0);
    policy_note_idle(&p, SPEC_TREE, 2, 1);
    policy_note_idle(&p, SPEC_OFF, 2, 1);
    CHECK(p.record[SPEC_NGRAM].tried[0] == 1 && p.record[SPEC_TREE].tried[0] == 0 && p.record[SPEC_OFF].tried[0] == 0);
    CHECK_NEAR(c.tokens, 3 + 1 + 1, 1e-12);
    CHECK_NEAR(c.lost, 0, 1e-12);
}

/* What trials cost is counted against what all rounds made; beyond 16384 tokens the past counts half. */
TEST(policy_keeps_a_ledger_of_trials)
{
    policy     p;
    cost_table c     = {0};
    spec_plan  trial = {.method = SPEC_MTP, .n = 4, .trial = true, .par = 4};
    policy_init(&p, &three);
    policy_note(&p, &c, &trial, 4, 4, 1);
    CHECK(c.tokens == 2 && c.lost == 2);
    policy_note(&p, &c, &trial, 4, 4, 4); /* one that won pays back */
    CHECK(c.tokens == 7 && c.lost == 1);
    policy_note(&p, &c, &trial, 4, 4, 4);
    policy_note(&p, &c, &trial, 4, 4, 4);
    CHECK(c.tokens == 17 && c.lost == 0); /* but no more than was lost */
    policy_note(&p, &c, &trial, 4, 4, 1);
    c.tokens = (1 << 14) - 3;
    policy_note(&p, &c, &trial, 4, 4, 1);
    CHECK(c.tokens == (1 << 14) - 1 && c.lost == 4);
    policy_note(&p, &c, &(spec_plan){.method = SPEC_OFF}, 0, 0, 0);
    CHECK(c.tokens == (1 << 13) && c.lost == 2);
}

/* A new text: the weight of three rounds stays, long waits become shorter, surprises are forgotten. */
TEST(policy_next_text_keeps_a_little)
{
    policy p;
    policy_init(&p, &three);
    p.record[SPEC_DFLASH] = (survival){.tried = {30, 10}, .right = {20, 5}, .surprise = 0.5};
    p.record[SPEC_MTP]    = (survival){.tried = {2, 1}, .right = {1, 1}};
    p.wait[SPEC_DFLASH]   = 192;
    p.wait[SPEC_MTP]      = 592;
    policy_next_text(&p);
    CHECK_NEAR(p.record[SPEC_DFLASH].tried[0], 3, 1e-12);
    CHECK_NEAR(p.record[SPEC_DFLASH].right[1], 0.5, 1e-12);
    CHECK_NEAR(p.record[SPEC_MTP].tried[0], 2, 1e-12);
    CHECK(p.record[SPEC_DFLASH].surprise == 0 && p.wait[SPEC_DFLASH] == 192 && p.wait[SPEC_MTP] == 492);
    policy seeded;
    policy_init(&seeded, &(policy_limits){.tree_budget = 5});
    policy_seed(&seeded, &p);
    CHECK(seeded.limits.tree_budget == 5 && !seeded.limits.there[SPEC_DFLASH]);
    CHECK_NEAR(seeded.record[SPEC_DFLASH].tried[0], 3, 1e-12);
    CHECK_INT(seeded.wait[SPEC_MTP], 492 - 75);
}

/* --- survival -------------------------------------------------------------------------------------*/
TEST(survival_rates_by_hand)
{
    survival s     = {.tried = {4, 2}, .right = {3, 1}};
    double   first = (3 + 0.5 * 0.75) / (4 + 0.5), second = (1 + 2 * first) / (2 + 2), third = second;
    double   curve[3];
    CHECK_NEAR(survival_rate(&s, 0, 0.75), first, 1e-12);
    CHECK_NEAR(survival_rate(&s, 1, first), second, 1e-12);
    CHECK_NEAR(survival_rate(&s, 2, second), third, 1e-12); /* never tried: as the one before */
    survival_curve(&s, curve, 3);
    CHECK_NEAR(curve[0], first, 1e-12);
    CHECK_NEAR(curve[1], first * second, 1e-12);
    CHECK_NEAR(curve[2], first * second * third, 1e-12);
    CHECK_NEAR(survival_at(&s, 3), curve[2], 1e-12);
    survival_forget(&s, 0.5);
    CHECK(s.tried[0] == 2 && s.right[0] == 1.5 && s.tried[1] == 1);
    survival fresh = {0};
    survival_note(&fresh, 3, 3, 3);
    CHECK(fresh.tried[2] == 1 && fresh.right[2] == 1 && fresh.tried[3] == 0);
    survival_note(&fresh, DRAFT_MAX, DRAFT_MAX, DRAFT_MAX);
    CHECK(fresh.right[DRAFT_MAX - 1] == 1 && fresh.right[0] > 1.9 && fresh.right[0] < 2);
    CHECK_NEAR(fresh.right[0], 1 + 0.9928, 1e-12);
}

/* How far `right` of n guesses lies above the mean, in standard deviations, from the chances of 0 to n right ones. */
static double surprise_by_hand(const survival *s, int n, int right)
{
    double mean = 0, square = 0;
    for (int x = 0; x <= n; x++) {
        double chance = (x ? survival_at(s, x) : 1) - (x < n ? survival_at(s, x + 1) : 0);
        mean += chance * x;
        square += chance * x * x;
    }
    return (right - mean) / fmax(0.3, sqrt(fmax(0, square - mean * mean)));
}

/* A record keeps 0.9928 of itself each round; one that the last rounds do not look like shrinks to the weight of three rounds,
 * but no more than a quarter at once. */
TEST(survival_shrinks_when_it_is_surprised)
{
    survival s        = {0};
    uint64_t seed     = 6;
    int      n_shrunk = 0, n_small = 0;
    for (int i = 0; i < 800; i++) {
        survival was = s;
        int      n = 1 + (int)(test_rand(&seed) % 15), right = 0;
        double   rate = i / 100 % 2 ? 0.15 : 0.9, surprise = was.surprise;
        while (right < n && uniform(&seed) < rate) right++;
        surprise += (surprise_by_hand(&was, n, right) - surprise) / 4;
        double kept = 0.9928;
        if (fabs(surprise) > 1 && was.tried[0] > 3) kept = fmin(kept, fmax(0.25, 3 / was.tried[0]));
        n_shrunk += kept < 0.9;
        n_small += kept == 0.25;
        survival_note(&s, n, n, right);
        CHECK_NEAR(s.surprise, surprise, 1e-9);
        for (int d = 0; d < DRAFT_MAX; d++) {
            CHECK_NEAR(s.tried[d], was.tried[d] * kept + (d < n && d <= right), 1e-9);
            CHECK_NEAR(s.right[d], was.right[d] * kept + (d < right), 1e-9);
        }
    }
    CHECK_MSG(n_shrunk > 10 && n_small > 2, "shrunk %d times, %d to a quarter", n_shrunk, n_small);
}

/* --- trees ----------------------------------------------------------------------------------------*/
/* With rows that cost next to nothing, a tree has as many as its budget and the room of the lane allow. */
TEST(policy_budgets_of_trees)
{
    static const struct {
        int budget, room, depth, expect; /* 0: no tree */
    } c[] = {{22, 99, 15, 22}, {64, 99, 15, 64}, {5, 99, 15, 5},   {22, 12, 15, 12},
             {22, 0, 15, 0},   {22, 99, 0, 0},   {200, 99, 15, 64}};
    for (size_t i = 0; i < COUNT(c); i++) {
        policy         p;
        policy_options o;
        cost_table     costs = {0};
        for (int rows = 1; rows <= 70; rows++) cost_note_step(&costs, rows, 0, 0.01 + 1e-7 * rows);
        policy_init(&p, &(policy_limits){.there       = {[SPEC_TREE] = true},
                                         .max_draft   = {[SPEC_TREE] = c[i].depth},
                                         .tree_budget = c[i].budget});
        spec_plan   none = {0};
        policy_lane l    = {.p = &p, .room = c[i].room, .fixed = &none};
        policy_compare(&l, 1, 0, &costs, 0, COST_MAX_ROWS, &o);
        CHECK_MSG(o.option[SPEC_TREE].n == c[i].expect, "case %zu: %d", i, o.option[SPEC_TREE].n);
        l.without = 1u << SPEC_TREE;
        policy_compare(&l, 1, 0, &costs, 0, COST_MAX_ROWS, &o);
        CHECK(o.option[SPEC_TREE].n == 0 && o.option[SPEC_MTP].n == 0);
    }
}

/* 1 + rate + rate^2 + ... */
static double tokens_at(double rate, int n)
{
    double tokens = 1;
    for (int d = 1; d <= n; d++) tokens += pow(rate, d);
    return tokens;
}

/* Before a tree was tried, it is expected to catch a tenth of a chain's misses for each doubling of 8 rows, at most half. */
TEST(policy_tokens_of_trees)
{
    policy p;
    policy_init(&p, &(policy_limits){.there       = {[SPEC_TREE] = true, [SPEC_DFLASH] = true},
                                     .max_draft   = {[SPEC_TREE] = 6, [SPEC_DFLASH] = 6},
                                     .tree_budget = 64});
    p.record[SPEC_DFLASH] = (survival){.tried = {1e9}, .right = {0.6e9}};
    CHECK_NEAR(tree_tokens(&p, 4, 4), tokens_at(0.6, 4), 1e-4); /* as a chain of four */
    CHECK_NEAR(tree_tokens(&p, 8, 6), tokens_at(0.6, 6), 1e-4);
    CHECK_NEAR(tree_tokens(&p, 16, 6), tokens_at(1 - 0.4 * 0.9, 6), 1e-4);
    CHECK_NEAR(tree_tokens(&p, 64, 6), tokens_at(1 - 0.4 * 0.7, 6), 1e-4);
    cost_table c = {0};
    for (int i = 0; i < 200; i++) policy_note(&p, &c, &(spec_plan){.method = SPEC_TREE, .n = 16}, 6, 6, 6);
    CHECK_NEAR(p.tree_gain, 0.1, 1e-3);
    double of_16 = tree_tokens(&p, 16, 6); /* what it did itself counts more */
    CHECK(of_16 > 6.2 && tree_tokens(&p, 64, 6) > of_16 && tree_tokens(&p, 8, 6) < of_16);
    double tried = p.record[SPEC_TREE].tried[0];
    policy_note(&p, &c, &(spec_plan){.method = SPEC_OFF}, 0, 0, 0);
    CHECK_NEAR(p.record[SPEC_TREE].tried[0], 0.957 * tried, 1e-9); /* and is forgotten while it is not used */
    CHECK(policy_knows_dflash(&p));
    p.record[SPEC_DFLASH].tried[0] = 1.9;
    CHECK(!policy_knows_dflash(&p));
}
