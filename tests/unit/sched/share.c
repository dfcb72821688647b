#include "sched/share.h"
#include "test.h"

static int share(const share_limits *l, int n, const int *pending, int *rows)
{
    return share_rows(l, pending, n, rows);
}

TEST(share_running_answers_have_their_row)
{
    share_limits l = {.step_rows = 64, .max_stall_s = 0.2, .row_s = 1};
    int          rows[64], pending[64];
    for (int n = 1; n <= 64; n++) {
        for (int i = 0; i < n; i++) pending[i] = i % 3 == 1 ? 500 : 1;
        int used = share(&l, n, pending, rows), prompts = 0;
        for (int i = 0; i < n; i++) {
            if (pending[i] == 1) CHECK_INT(rows[i], 1);
            if (pending[i] > 1) prompts += rows[i];
        }
        CHECK(used <= 64);
        if (n > 1 && n <= 48) CHECK_INT(prompts, SHARE_MIN); /* rows are slow: as few as there may be, but some */
    }
}

TEST(share_prompts_one_after_another)
{
    share_limits l = {.step_rows = 256, .max_stall_s = 0.2};
    int          rows[4];
    CHECK_INT(share(&l, 3, (int[]){100, 100, 100}, rows), 256); /* nobody waits: the whole step */
    CHECK_INT(rows[0], 100);
    CHECK_INT(rows[1], 100);
    CHECK_INT(rows[2], 56);
    CHECK_INT(share(&l, 2, (int[]){300, 7}, rows), 256);
    CHECK_INT(rows[1], 0); /* of a lower priority: not its turn */
}

/* Prompts that are shorter than the first one have half of the rows, the shortest first. */
TEST(share_short_prompts_do_not_wait)
{
    share_limits l = {.step_rows = 256, .max_stall_s = 0.2, .n_equal = 5};
    int          rows[5];
    CHECK_INT(share(&l, 2, (int[]){30000, 7}, rows), 256);
    CHECK_INT(rows[0], 249);
    CHECK_INT(rows[1], 7);
    CHECK_INT(share(&l, 5, (int[]){30000, 500, 100, 30000, 20}, rows), 256);
    CHECK_INT(rows[0], 128);
    CHECK_INT(rows[1], 8);
    CHECK_INT(rows[2], 100);
    CHECK_INT(rows[3], 0);
    CHECK_INT(rows[4], 20);
    CHECK_INT(share(&l, 3, (int[]){60, 500, 59}, rows), 256); /* the first one leaves the rest to the others in order */
    CHECK_INT(rows[0], 60);
    CHECK_INT(rows[1], 137);
    CHECK_INT(rows[2], 59);
    l.n_equal = 2;
    CHECK_INT(share(&l, 3, (int[]){30000, 200, 7}, rows), 256); /* a lower priority does not overtake */
    CHECK_INT(rows[0], 128);
    CHECK_INT(rows[1], 128);
    CHECK_INT(rows[2], 0);
}

/* While lanes decode, long prompts rest after a chunk; short ones, and all when nobody waits, do not. */
TEST(share_long_prompts_rest)
{
    share_limits l = {.step_rows = 256, .max_stall_s = 0.2, .row_s = 1e-6, .rest = true, .n_equal = 3};
    int          rows[3];
    CHECK_INT(share(&l, 3, (int[]){1, 30000, 40}, rows), 41);
    CHECK_INT(rows[1], 0);
    CHECK_INT(rows[2], 40);
    CHECK_INT(share(&l, 2, (int[]){1, 124}, rows), 1);
    CHECK_INT(share(&l, 2, (int[]){1, 123}, rows), 124); /* half of 256 - 1 - SHARE_DRAFT */
    CHECK_INT(share(&l, 1, (int[]){30000}, rows), 256);
}

/* Runs prompts whenever they do not rest. Returns the share of the time that they take from the lanes that decode. */
static double share_taken(double plain_s, double chunk_s, double unit_s, int n_steps)
{
    share_pace p       = {0};
    double     prompts = 0, all = 0;
    for (int i = 0; i < n_steps; i++) {
        bool   chunk = i > 5 && p.debt_s <= 0;
        double took  = plain_s + (chunk ? chunk_s : 0);
        share_note(&p, took, chunk ? 100 : 0, 4, unit_s);
        prompts += chunk ? chunk_s : 0;
        all += took;
    }
    return prompts / all;
}

TEST(share_prompts_take_their_part_of_the_time)
{
    static const double chunk[] = {0.001, 0.01, 0.2};
    for (size_t i = 0; i < COUNT(chunk); i++) {
        double part = share_taken(0.004, chunk[i], chunk[i] / 100, 20000);
        CHECK_MSG(part <= SHARE_PROMPTS + 0.01 && part > (i ? 0.16 : 0.12), "chunks of %g s: %g", chunk[i], part);
    }
    share_pace p = {0};
    int        n = 0;
    share_note(&p, 0.01, 0, 1, 1e-3);
    for (share_note(&p, 0.11, 100, 1, 1e-3); p.debt_s > 0 && n < 1000; n++) /* short prompts in every step */
        share_note(&p, 0.02, 10, 1, 1e-3);
    CHECK_MSG(n > 10 && n < 50, "a long prompt rests for %d steps", n);
    CHECK_NEAR(p.plain_s, 0.01, 1e-9);
    share_note(&p, 60, 10, 1, 1e-3); /* the machine slept: only what the rows should take counts */
    CHECK_NEAR(p.debt_s, 0.02 * 4 - 0.01, 1e-9);
    share_note(&p, 0.01, 10, 0, 1e-3); /* nobody decodes */
    CHECK_NEAR(p.debt_s, 0, 0);
}

TEST(share_stall_limit)
{
    share_limits l = {.step_rows = 256, .max_stall_s = 0.2, .row_s = 0.002};
    int          rows[2];
    share(&l, 2, (int[]){1, 1000}, rows);
    CHECK_INT(rows[1], 100); /* 0.2 s at 2 ms a row */
    l.row_s = 1e-6;
    share(&l, 2, (int[]){1, 1000}, rows);
    CHECK_INT(rows[1], 256 - 1 - SHARE_DRAFT); /* room for guesses stays */
    l.row_s = 0;
    share(&l, 2, (int[]){1, 1000}, rows);
    CHECK_INT(rows[1], 2 * SHARE_MIN); /* not measured yet: careful */
    l = (share_limits){.step_rows = 256, .max_stall_s = 0, .row_s = 0.002};
    share(&l, 2, (int[]){1, 1000}, rows);
    CHECK_INT(rows[1], SHARE_MIN);
}

/* At most a quarter of the step is kept for guesses, and prompts have SHARE_MIN rows while there are as many. */
TEST(share_rows_beside_many_answers)
{
    static const struct {
        int n_running, prompt;
    } k[]          = {{1, 64 - 1 - SHARE_DRAFT},
                      {2, 64 - 2 - 16},
                      {3, 64 - 3 - 16},
                      {20, 64 - 20 - 16},
                      {31, 17},
                      {32, 16},
                      {33, 16},
                      {48, 16},
                      {49, 15},
                      {63, 1}};
    share_limits l = {.step_rows = 64, .max_stall_s = 0.2, .row_s = 1e-6};
    int          rows[64], pending[64];
    for (size_t i = 0; i < COUNT(k); i++) {
        int n = k[i].n_running;
        for (int x = 0; x < n; x++) pending[x] = 1;
        pending[n] = 1000;
        CHECK_INT(share(&l, n + 1, pending, rows), n + k[i].prompt);
        CHECK_INT(rows[n], k[i].prompt);
        pending[n] = 0; /* sits out */
        CHECK_INT(share(&l, n + 1, pending, rows), n);
        CHECK_INT(rows[n], 0);
    }
}

TEST(share_average_follows_the_rows)
{
    CHECK_NEAR(share_average(0, 0.5), 0.5, 0); /* the first one is all there is */
    CHECK_NEAR(share_average(0.5, 0.5), 0.5, 0);
    CHECK_NEAR(share_average(0.4, 0.8), 0.5, 1e-12);
    CHECK_NEAR(share_average(1e-4, 5e-4), 2e-4, 1e-12);
    double x = 1;
    for (int i = 0; i < 100; i++) x = share_average(x, 1e-3);
    CHECK_NEAR(x, 1e-3, 1e-9);
}

/* Every turn comes first equally often, in any number of steps, and none waits for long. */
TEST(share_first_lanes_are_fair)
{
    for (int n = 1; n <= 64; n++) {
        int count[64] = {0}, last[64] = {0};
        for (int step = 0; step < 50 * n; step++) {
            int i = share_first_lane(step, n);
            if (!CHECK(i >= 0 && i < n)) return;
            CHECK_MSG(step - last[i] <= 3 * n, "%d of %d waits for %d steps", i, n, step - last[i]);
            last[i] = step;
            count[i]++;
        }
        for (int i = 0; i < n; i++) CHECK_MSG(count[i] >= 45 && count[i] <= 55, "%d of %d: %d times", i, n, count[i]);
    }
    CHECK_INT(share_first_lane((int64_t)1 << 40, 7), share_first_lane(0, 7));
}

/* A picture that must not be divided gets all of its rows or none; the first prompt's always fits. */
TEST(share_whole_pictures)
{
    share_limits l = {.step_rows = 64, .max_stall_s = 0.2};
    int          rows[4];
    share(&l, 4, (int[]){1, 300, 1, 20}, rows);
    CHECK_INT(share_whole(&l, (int[]){1, 300, 1, 20}, (int[]){1, 62, 1, 1}, 4, rows), 64);
    CHECK(rows[0] == 1 && rows[1] == 62 && rows[2] == 1 && rows[3] == 0); /* the later prompt waits */
    memcpy(rows, (int[]){40, 10, 1, 0}, sizeof rows);
    CHECK_INT(share_whole(&l, (int[]){300, 300, 1, 300}, (int[]){1, 30, 1, 60}, 4, rows), 41);
    CHECK(rows[0] == 40 && rows[1] == 0 && rows[3] == 0); /* not after the first one's rows; none stays none */
    memcpy(rows, (int[]){10, 10, 1, 10}, sizeof rows);
    CHECK_INT(share_whole(&l, (int[]){300, 300, 1, 300}, (int[]){1, 40, 1, 10}, 4, rows), 61);
    CHECK(rows[0] == 10 && rows[1] == 40 && rows[3] == 10); /* free rows first */
}
