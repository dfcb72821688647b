/* The numbers of the cost table, rule by rule: bins, contexts, averages, ages, the pace. */
#include "spec/cost.h"
#include "spec/inside.h"
#include "test.h"
#include "views.h"

#include <stdlib.h>

static void note_n(cost_table *c, int n, int rows, int32_t ctx, double seconds)
{
    for (int i = 0; i < n; i++) cost_note_step(c, rows, ctx, seconds);
}

/* Texts of up to 1K, 4K, 16K, 64K tokens, and longer ones, are measured by themselves. */
TEST(cost_contexts_have_their_bounds)
{
    cost_table c = {0};
    for (int32_t most = 1024, i = 0; most <= 65536; most *= 4, i++) cost_note_step(&c, 1, most, 0.01 * (i + 1));
    cost_note_step(&c, 1, 65537, 0.05);
    for (int32_t most = 1024, i = 0; most <= 65536; most *= 4, i++) {
        CHECK_INT(c.step[i].at[1].n, 1);
        CHECK_NEAR(cost_step(&c, 1, most), 0.01 * (i + 1), 1e-12);
        CHECK_NEAR(cost_step(&c, 1, most + 1), 0.01 * (i + 2), 1e-12);
    }
    CHECK_NEAR(cost_step(&c, 1, INT32_MAX), 0.05, 1e-12);
    CHECK_NEAR(cost_step(&c, 1, 1), 0.01, 1e-12);
}

/* Each number of rows below 16 by itself, then in eighths of an octave. */
TEST(cost_rows_have_bins)
{
    static const int of[][2] = {{1, 1},   {2, 2},   {15, 15},   {16, 16},   {17, 18},   {18, 18},   {19, 20},  {31, 32},
                                {32, 32}, {33, 32}, {34, 36},   {37, 36},   {38, 40},   {64, 64},   {67, 64},  {68, 72},
                                {75, 72}, {76, 80}, {128, 128}, {135, 128}, {136, 144}, {248, 256}, {256, 256}};
    for (size_t i = 0; i < COUNT(of); i++) {
        cost_table c = {0};
        cost_note_step(&c, of[i][0], 0, 0.02);
        for (int r = 1; r <= COST_MAX_ROWS; r++)
            CHECK_MSG(c.step[0].at[r].n == (r == of[i][1]), "%d rows are counted at %d", of[i][0], r);
    }
}

/* The smallest of the first three; then an average that moves by a sixteenth, faster after a pause, by half at most. */
TEST(cost_averages_move)
{
    cost_table c = {0};
    cost_note_step(&c, 2, 0, 0.030);
    CHECK_NEAR(c.step[0].at[2].seconds, 0.030, 1e-12);
    cost_note_step(&c, 2, 0, 0.020);
    cost_note_step(&c, 2, 0, 0.025);
    CHECK_NEAR(c.step[0].at[2].seconds, 0.020, 1e-12);
    cost_note_step(&c, 2, 0, 0.022); /* the fourth is averaged */
    CHECK_NEAR(c.step[0].at[2].seconds, 0.020 + 0.002 / 16, 1e-12);
    double was = c.step[0].at[2].seconds;
    note_n(&c, 31, 5, 0, 0.021);
    cost_note_step(&c, 2, 0, 0.022); /* 32 steps later: a quarter */
    CHECK_NEAR(c.step[0].at[2].seconds, was + (0.022 - was) * 32 / 128, 1e-12);
    was = c.step[0].at[2].seconds;
    note_n(&c, 200, 5, 0, 0.021);
    cost_note_step(&c, 2, 0, 0.022);
    CHECK_NEAR(c.step[0].at[2].seconds, was + (0.022 - was) / 2, 1e-12);
    CHECK_INT(c.n_steps, 4 + 31 + 1 + 200 + 1);
    CHECK_INT(c.step[0].at[2].n, 6);
    CHECK_INT(c.step[0].at[2].at, c.n_steps);
}

/* More than one and a half times the average is not believed once; the second counts as twice the average at most. */
TEST(cost_outliers_are_believed_the_second_time)
{
    cost_table c = {0};
    note_n(&c, 8, 1, 0, 0.020);
    cost_note_step(&c, 1, 0, 0.029); /* not far */
    double was = c.step[0].at[1].seconds;
    CHECK_NEAR(was, 0.020 + 0.009 / 16, 1e-12);
    cost_note_step(&c, 1, 0, 0.5);
    CHECK_NEAR(c.step[0].at[1].seconds, was, 1e-12);
    cost_note_step(&c, 1, 0, 0.020);
    was += (0.020 - was) / 16;
    CHECK_NEAR(c.step[0].at[1].seconds, was, 1e-12);
    note_n(&c, 5, 1, 0, 0.020); /* two of the last five steps do not change the pace */
    was = c.step[0].at[1].seconds;
    note_n(&c, 2, 1, 0, 0.5);
    CHECK_NEAR(c.step[0].at[1].seconds, was + was / 16, 1e-12);
}

/* A number that was measured 512 steps ago counts, an older one does not. */
TEST(cost_numbers_grow_old)
{
    cost_table c = {0};
    note_n(&c, 3, 8, 0, 0.080);
    note_n(&c, 512, 1, 0, 0.020);
    CHECK_NEAR(cost_step(&c, 8, 0), 0.080, 1e-9);
    cost_note_step(&c, 1, 0, 0.020);
    CHECK_NEAR(cost_step(&c, 8, 0), 0.020 * (1 + 7 * 0.05), 1e-9); /* as assumed of what was never measured */
}

/* Each number of a pass by itself, in every series: the younger ones stay when an old one goes. */
TEST(cost_of_drafts_grows_old_one_by_one)
{
    for (int m = SPEC_DFLASH; m <= SPEC_MTP; m++) {
        cost_table c = {0};
        cost_view  v;
        int        at16 = m == SPEC_MTP ? 16 : 1, of16 = m == SPEC_MTP ? 1 : 16; /* MTP: lanes */
        int        at8 = m == SPEC_MTP ? 8 : 1, of8 = m == SPEC_MTP ? 1 : 8;
        cost_note_step(&c, 1, 0, 0.02);
        for (int i = 0; i < 3; i++) cost_note_draft(&c, (spec_method)m, at16, of16, 0.064);
        note_n(&c, 300, 1, 0, 0.02);
        for (int i = 0; i < 3; i++) cost_note_draft(&c, (spec_method)m, at8, of8, 0.027);
        for (int later = 0; later < 2; later++) {
            note_n(&c, later ? 1 : 212, 1, 0, 0.02);
            cost_view_init(&v, &c, 0);
            const double *curve = m == SPEC_MTP ? v.pass : v.block[m];
            CHECK_NEAR(curve[8], 0.027, 1e-9);
            CHECK_NEAR(curve[16], later ? 0.020 * (1 + 0.05 * 15) : 0.064, 1e-9); /* as assumed behind the highest */
        }
    }
}

/* Of a number with fewer than three measurements sixteen steps are long ago. */
TEST(cost_is_known_for_a_while)
{
    cost_table c = {0};
    CHECK(!cost_step_is_known(&c, 1, 256, 0, 1000));
    note_n(&c, 2, 6, 0, 0.02);
    note_n(&c, 16, 1, 0, 0.02);
    CHECK(cost_step_is_known(&c, 6, 6, 0, 1000) && cost_step_is_known(&c, 2, 6, 0, 1000));
    CHECK(cost_step_is_known(&c, 6, 300, 0, 1000));
    CHECK(!cost_step_is_known(&c, 2, 5, 0, 1000) && !cost_step_is_known(&c, 7, 9, 0, 1000));
    CHECK(!cost_step_is_known(&c, 6, 6, 5000, 1000)); /* another context */
    cost_note_step(&c, 1, 0, 0.02);
    CHECK(!cost_step_is_known(&c, 6, 6, 0, 1000));
    cost_note_step(&c, 6, 0, 0.02); /* the third */
    note_n(&c, 40, 1, 0, 0.02);
    CHECK(cost_step_is_known(&c, 6, 6, 0, 40) && !cost_step_is_known(&c, 6, 6, 0, 39));
}

/* A machine that is busy for a while changes the pace, not the costs; what lasts is the new cost. */
TEST(cost_pace_is_the_median_of_the_last_steps)
{
    cost_table c = {0};
    note_n(&c, 20, 1, 0, 0.020);
    CHECK_NEAR(cost_pace(&c), 1, 1e-12);
    note_n(&c, 2, 1, 0, 0.040);
    CHECK_NEAR(cost_pace(&c), 1, 1e-12); /* two of five */
    note_n(&c, 3, 1, 0, 0.040);
    CHECK_MSG(cost_pace(&c) > 1.6 && cost_pace(&c) <= 2, "%g", cost_pace(&c));
    CHECK_MSG(fabs(c.step[0].at[1].seconds - 0.020) < 0.003, "%g", c.step[0].at[1].seconds);
    CHECK_NEAR(cost_step(&c, 1, 0), cost_pace(&c) * c.step[0].at[1].seconds, 1e-12);
    CHECK_NEAR(cost_draft(&c, SPEC_DFLASH, 3), cost_pace(&c) * 0.2 * c.step[0].at[1].seconds, 1e-12);
    note_n(&c, 5, 1, 0, 0.020); /* over */
    CHECK_NEAR(cost_pace(&c), 1, 1e-12);
    note_n(&c, 5, 1, 0, 0.022); /* a tenth is as usual */
    CHECK_NEAR(cost_pace(&c), 1, 1e-12);
    note_n(&c, 300, 1, 0, 0.040);
    CHECK_NEAR(cost_pace(&c), 1, 0.15);
    CHECK_NEAR(cost_step(&c, 1, 0), 0.040, 0.004);
}

/* The one of five that two are not above and two not below. */
static double median_of_five(const double *x)
{
    for (int i = 0; i < 5; i++) {
        int below = 0, above = 0;
        for (int k = 0; k < 5; k++) {
            below += x[k] < x[i];
            above += x[k] > x[i];
        }
        if (below <= 2 && above <= 2) return x[i];
    }
    return 0;
}

/* Steps in any order, of which some are far slower or faster; when that is the rule for more than 48 of them, it is no pace. */
TEST(cost_pace_follows_any_order_of_steps)
{
    cost_table c    = {0};
    uint64_t   seed = 9;
    double     last[5];
    int        n = 0, odd_for = 0, n_paced = 0, n_ended = 0;
    note_n(&c, 3, 1, 0, 0.020);
    for (int i = 0; i < 1500; i++) {
        double usual   = i / 200 % 3 == 1 ? 2.5 : i / 200 % 3 == 2 ? 0.7 : 1;
        double seconds = c.step[0].at[1].seconds * usual * (0.5 + 0.001 * (double)(test_rand(&seed) % 1000));
        last[n++ % 5]  = seconds / c.step[0].at[1].seconds;
        cost_note_step(&c, 1, 0, seconds);
        double now = n >= 5 ? median_of_five(last) : 1;
        odd_for    = now > 1.15 || now < 1 / 1.15 ? odd_for + 1 : 0;
        bool paced = odd_for > 0 && odd_for <= 48;
        CHECK_NEAR(cost_pace(&c), paced ? now : 1, 1e-9);
        n_paced += paced;
        n_ended += odd_for == 49;
    }
    CHECK_MSG(n_paced > 200 && n_ended > 1, "%d steps at another pace, %d times for too long", n_paced, n_ended);
}

/* Noise is by how much steps differ from what was expected at the pace of the machine, of the last 64 or so; one of them
 * counts as its whole cost at most. */
TEST(cost_noise_is_the_mean_surprise)
{
    cost_table c     = {0};
    uint64_t   seed  = 5;
    double     noise = 0;
    note_n(&c, 4, 2, 0, 0.020);
    CHECK_NEAR(c.noise, 0, 1e-12);
    for (int i = 0; i < 300; i++) {
        double before = c.step[0].curve[2], pace = cost_pace(&c);
        double seconds = 0.015 + 0.00001 * (double)(test_rand(&seed) % 1000) + (i % 50 == 7 ? 1 : 0);
        if (i % 60 > 40) seconds *= 1.5; /* a busy moment */
        cost_note_step(&c, 2, 0, seconds);
        noise += (fmin(1, fabs(seconds / (pace * before) - 1)) - noise) / 64;
        CHECK_NEAR(c.noise, noise, 1e-12);
    }
    CHECK(noise > 0.05 && noise < 0.5);
    cost_note_step(&c, 2, 0, -1); /* no measurements */
    cost_note_step(&c, 2, 0, INFINITY);
    cost_note_step(&c, 2, 0, NAN);
    CHECK_NEAR(c.noise, noise, 1e-12);
}

/* Assumed before anything was measured: 20 ms a step and a twentieth for each further row. */
TEST(cost_before_anything_was_measured)
{
    cost_table c = {0};
    cost_view  v;
    cost_view_init(&v, &c, 0);
    CHECK(!v.measured && v.ngram == 0 && !v.block[0]);
    for (int r = 1; r <= COST_MAX_ROWS; r++) CHECK_NEAR(v.step[r], 0.02 * (1 + 0.05 * (r - 1)), 1e-12);
    CHECK_NEAR(v.block[SPEC_DFLASH][COST_MAX_ROWS], 0.2 * 0.02, 1e-12);
    CHECK_NEAR(v.block[SPEC_TREE][1], 0.2 * 0.02, 1e-12);
    CHECK_NEAR(v.pass[1], 0.05 * 0.02, 1e-12);
    CHECK_NEAR(v.pass[9], 0.05 * v.step[9], 1e-12);
    cost_note_step(&c, 5, 0, 0.024);
    cost_view_init(&v, &c, 0);
    CHECK(v.measured);
    CHECK_NEAR(v.step[1], 0.02, 1e-12); /* the lowest that was measured, less a twentieth for each row */
    CHECK_NEAR(v.step[3], 0.022, 1e-12);
    CHECK_NEAR(v.step[5], 0.024, 1e-12);
    CHECK_NEAR(v.step[256], 0.02 * (1 + 0.05 * 255), 1e-12);
}

/* Numbers in the ranges' last places are taken, those beyond are not. */
TEST(cost_of_drafts_has_limits)
{
    cost_table c = {0};
    cost_note_draft(&c, SPEC_DFLASH, 1, COST_MAX_ROWS + 1, 0.01);
    cost_note_draft(&c, SPEC_DFLASH, COST_MAX_ROWS + 1, 1, 0.01);
    cost_note_draft(&c, SPEC_DFLASH, 0, 1, 0.01);
    cost_note_draft(&c, SPEC_MTP, COST_MAX_ROWS + 1, 1, 0.01);
    CHECK(c.block[SPEC_DFLASH].n_known == 0 && c.pass.n_known == 0 && c.block[SPEC_DFLASH].low == 0);
    cost_note_draft(&c, SPEC_DFLASH, 1, COST_MAX_ROWS, 0.01);
    cost_note_draft(&c, SPEC_MTP, COST_MAX_ROWS, 2, 0.01);
    cost_note_draft(&c, SPEC_NGRAM, 2, 5, 0.01);
    CHECK_INT(c.block[SPEC_DFLASH].at[COST_MAX_ROWS].n, 1);
    CHECK_NEAR(c.pass.at[COST_MAX_ROWS].seconds, 0.005, 1e-12);
    CHECK_NEAR(c.ngram.seconds, 0.001, 1e-12);
    CHECK_NEAR(cost_draft(&c, SPEC_NGRAM, 3), 0.003, 1e-12);
    cost_note_step(&c, COST_MAX_ROWS, 0, 0.5);
    CHECK_NEAR(cost_step(&c, COST_MAX_ROWS, 0), 0.5, 1e-12);
    note_n(&c, 513, 1, 0, 0.02);
    cost_view v;
    cost_view_init(&v, &c, 0);
    CHECK(v.ngram == 0); /* long ago */
}

/* What is not known of a context is taken from the nearest one, at equal distance the shorter. */
TEST(cost_contexts_borrow_from_the_nearest)
{
    static const int32_t ctx[COST_CONTEXTS] = {1000, 4000, 16000, 64000, 100000};
    for (unsigned known = 1; known < 1 << COST_CONTEXTS; known++) {
        cost_table c = {0};
        for (int i = 0; i < COST_CONTEXTS; i++)
            if (known >> i & 1) cost_note_step(&c, 1, ctx[i], 0.01 * (i + 1));
        for (int i = 0; i < COST_CONTEXTS; i++) {
            int nearest = -1;
            for (int k = 0; k < COST_CONTEXTS; k++)
                if ((known >> k & 1) && (nearest < 0 || abs(k - i) < abs(nearest - i))) nearest = k;
            CHECK_NEAR(cost_step(&c, 1, ctx[i]), 0.01 * (nearest + 1), 1e-12);
        }
    }
}

/* By how much steps are dearer here than there is judged by all rows that were measured here. */
TEST(cost_contexts_are_scaled)
{
    cost_table c = {0};
    for (int rows = 1; rows <= 4; rows++) note_n(&c, 4, rows, 1000, 0.010 * rows);
    note_n(&c, 4, 1, 2000, 0.020); /* twice as dear */
    note_n(&c, 4, 3, 2000, 0.120); /* four times */
    double scale = (0.020 + 0.120) / (0.010 + 0.030);
    CHECK_NEAR(cost_step(&c, 4, 2000), 0.040 * scale, 1e-9);
    CHECK_NEAR(cost_step(&c, 1, 2000), 0.020, 1e-9);
    CHECK_NEAR(cost_step(&c, 4, 1000), 0.040, 1e-9);
}

/* A number that was measured once is believed up to twice what the others say: below, among and beyond them. */
TEST(cost_one_measurement_is_believed_when_it_fits)
{
    static const struct {
        int    rows;
        double said; /* by the others: 80 ms at 8 rows, 120 ms at 16 */
    } c[] = {{1, 0.080 / 1.35}, {4, 0.080 / 1.35 * 1.15}, {12, 0.100}, {20, 0.140}, {32, 0.200}};
    for (size_t i = 0; i < COUNT(c); i++)
        for (int twice = 0; twice < 2; twice++) {
            cost_table x = {0};
            note_n(&x, 3, 8, 0, 0.080);
            note_n(&x, 3, 16, 0, 0.120);
            CHECK_NEAR(cost_step(&x, c[i].rows, 0), c[i].said, 1e-9);
            double once = c[i].said * (twice ? 2.02 : 1.98);
            cost_note_step(&x, c[i].rows, 0, once);
            double now = cost_step(&x, c[i].rows, 0);
            CHECK_MSG(twice ? fabs(now - c[i].said) < 1e-9 : now > c[i].said + 0.001, "%d rows, measured as %g: %g",
                      c[i].rows, once, now);
        }
}

/* Numbers that were written by hand are used after cost_refresh, in every series. */
TEST(cost_refresh_draws_all_curves)
{
    cost_table c = {0};
    cost_view  v;
    for (int i = 0; i < COST_CONTEXTS; i++) c.step[i].at[2] = (cost){.seconds = 0.02 + 0.001 * i, .n = 4};
    c.block[SPEC_DFLASH].at[COST_MAX_ROWS] = (cost){.seconds = 0.5, .n = 4};
    c.block[SPEC_TREE].at[1]               = (cost){.seconds = 0.25, .n = 4};
    c.pass.at[3]                           = (cost){.seconds = 0.125, .n = 4};
    cost_refresh(&c);
    for (int32_t i = 0, ctx = 1024; i < COST_CONTEXTS; i++, ctx *= 4)
        CHECK_NEAR(cost_step(&c, 2, ctx), 0.02 + 0.001 * i, 1e-12);
    cost_view_init(&v, &c, 0);
    CHECK_NEAR(v.block[SPEC_DFLASH][COST_MAX_ROWS], 0.5, 1e-12);
    CHECK_NEAR(v.block[SPEC_TREE][1], 0.25, 1e-12);
    CHECK_NEAR(v.pass[3], 0.125, 1e-12);
}
