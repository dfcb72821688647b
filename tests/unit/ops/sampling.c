#include "ops/sampling.h"
#include "ops/sampling_math.h"
#include "ops_test.h"

#include <stdlib.h>

/* --- log and exp ------------------------------------------------------------------------------------ */
static double from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double sampling_noise(uint64_t seed, int32_t pos, int32_t token)
{
    return sampling_noise_of(sampling_token_bits(sampling_position_key(seed, pos), token));
}

TEST(sampling_log_agrees_with_libm)
{
    static const double fixed[] = {
        1,         2,       0.5,   1.4142135623730950,  1.4142135623730951, 1.4142135623730954,
        0x1p-1022, 0x1p-53, 1e308, 0.70710678118654746, 0.99999999999,      1.00000000001};
    uint64_t rand = 1;
    for (size_t i = 0; i < COUNT(fixed); i++)
        CHECK_NEAR(sampling_math_log(fixed[i]), log(fixed[i]), 1e-14 * fabs(log(fixed[i])));
    CHECK_NEAR(sampling_math_log(1), 0, 0);
    for (int i = 0; i < 200000; i++) { /* every exponent of a normal number; every second one near 1 */
        uint64_t exponent = i % 2 ? test_rand(&rand) % 2046 + 1 : 1022 + test_rand(&rand) % 2;
        double   x        = from_bits(exponent << 52 | test_rand(&rand) >> 12);
        CHECK_NEAR(sampling_math_log(x), log(x), 1e-14 * fabs(log(x)));
    }
}

TEST(sampling_exp_agrees_with_libm)
{
    uint64_t rand = 2;
    for (int i = 0; i < 200000; i++) {
        double u = (double)(test_rand(&rand) >> 11) * 0x1p-53, x = i % 2 ? -707 + u * 1415 : u * 2 - 1;
        CHECK_NEAR(sampling_math_exp(x), exp(x), 1e-14 * exp(x));
    }
    CHECK_NEAR(sampling_math_exp(0), 1, 0);
    CHECK_NEAR(sampling_math_exp(-709), 0, 1e-300);
    CHECK_NEAR(sampling_math_exp(-1e300), 0, 0);
    CHECK_NEAR(sampling_math_exp(-INFINITY), 0, 0);
    CHECK(isfinite(sampling_math_exp(1e300)));
}

/* --- the noise -------------------------------------------------------------------------------------- */
enum { DRAWS = 100000 };

/* Draw i under one of the three ways to vary it. */
static double draw(int way, int i)
{
    switch (way) {
    case 0: return sampling_noise(5, 17, i);
    case 1: return sampling_noise(5, i, 17);
    default: return sampling_noise((uint64_t)i, 5, 17);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

TEST(sampling_noise_is_gumbel)
{
    double *g = xnew_n(double, DRAWS);
    for (int way = 0; way < 3; way++) {
        double mean = 0, var = 0, gap = 0;
        for (int i = 0; i < DRAWS; i++) mean += (g[i] = draw(way, i)) / DRAWS;
        for (int i = 0; i < DRAWS; i++) var += (g[i] - mean) * (g[i] - mean) / DRAWS;
        CHECK_NEAR(mean, 0.5772157, 0.016); /* four standard errors, as below */
        CHECK_NEAR(var, 1.6449341, 0.045);
        qsort(g, DRAWS, sizeof *g, by_value); /* Kolmogorov and Smirnov: the largest distance to e^-e^-x */
        for (int i = 0; i < DRAWS; i++) gap = fmax(gap, fabs(exp(-exp(-g[i])) - (i + 0.5) / DRAWS));
        CHECK_NEAR(gap, 0, 0.0065);
    }
    mem_free(g);
}

/* Neighbours in token, position or seed know nothing of each other, in their values and in their extremes. */
TEST(sampling_noise_of_neighbours_is_independent)
{
    static const int apart[] = {1, 2, 16, 256, 65536};
    for (int way = 0; way < 3; way++)
        for (size_t k = 0; k < COUNT(apart); k++) {
            double correlation = 0;
            int    both_large  = 0;
            for (int i = 0; i < DRAWS; i++) {
                double a = draw(way, i), b = draw(way, i + apart[k]);
                correlation += (a - 0.5772157) * (b - 0.5772157) / 1.6449341 / DRAWS;
                both_large += a > 2.2503673 && b > 2.2503673; /* each above with probability 0.1 */
            }
            CHECK_NEAR(correlation, 0, 0.016);
            CHECK_NEAR(both_large, 0.01 * DRAWS, 130);
        }
}

/* No two (seed, position, token) of a grid share their noise, also where their sums or products agree. */
TEST(sampling_noise_does_not_repeat)
{
    double *g = xnew_n(double, 40 * 40 * 40);
    size_t  n = 0;
    for (int seed = 0; seed < 40; seed++)
        for (int pos = 0; pos < 40; pos++)
            for (int token = 0; token < 40; token++) g[n++] = sampling_noise((uint64_t)seed, pos, token);
    CHECK(sampling_noise(3, 4, 5) == g[3 * 1600 + 4 * 40 + 5]); /* nothing but its arguments */
    qsort(g, n, sizeof *g, by_value);
    for (size_t i = 1; i < n; i++)
        if (!CHECK(g[i] != g[i - 1])) break;
    CHECK(isfinite(g[0]) && isfinite(g[n - 1]));
    mem_free(g);
}

TEST(sampling_choice_seeds_differ)
{
    CHECK(sampling_choice_seed(77, 0) == 77);
    for (int i = 0; i < 50; i++)
        for (int j = 0; j < i; j++) {
            CHECK(sampling_choice_seed(77, i) != sampling_choice_seed(77, j));
            CHECK(i == 0 || sampling_choice_seed(77, i) != sampling_choice_seed(78, i));
        }
}

/* --- picks ------------------------------------------------------------------------------------------ */
static sampling_candidate scratch[1024];

/* Which of the first 32 ids come up in `n` picks at different positions: one bit each. */
static uint32_t seen(const float *z, int n_vocab, sample_params p, int n)
{
    uint32_t bits = 0;
    for (int i = 0; i < n; i++) {
        p.pos      = i;
        int32_t id = sampling_pick(z, n_vocab, &p, scratch);
        bits |= id >= 0 && id < 32 ? 1u << id : 1u << 31;
    }
    return bits;
}

static float *logs(float *z, const float *p, int n)
{
    for (int i = 0; i < n; i++) z[i] = (float)log(p[i]);
    return z;
}

TEST(sampling_greedy_takes_the_lower_of_equals)
{
    static const float  z[] = {-3, 7, 2, 7, 7}, flat[] = {0, 0}, one[] = {-1e30f}, signs[] = {-0.0f, 0.0f};
    const sample_params greedy = {.top_p = 1}, cold = {.temp = -1, .top_p = 0.5f, .top_k = 1};
    CHECK_INT(sampling_pick(z, 5, &greedy, scratch), 1);
    CHECK_INT(sampling_pick(z, 5, &cold, scratch), 1);
    CHECK_INT(sampling_argmax(z, 5), 1);
    CHECK_INT(sampling_argmax(flat, 2), 0);
    CHECK_INT(sampling_argmax(one, 1), 0);
    CHECK_INT(sampling_argmax(signs, 2), 0);
}

/* The whole distribution, by chi-square: 7 degrees of freedom stay under 29.9 in all but 1 of 10000 worlds. */
static void check_frequencies(test_case *t, sample_params p, const double *want, int n_picks)
{
    enum { N = 8 };
    static const float z[N] = {1, -1, 0.5f, 2, 0, -3, 1.5f, 1};

    int    count[N] = {0};
    double chi      = 0;
    for (int i = 0; i < n_picks; i++) {
        p.pos      = i;
        int32_t id = sampling_pick(z, N, &p, scratch);
        if (!CHECK(id >= 0 && id < N)) return;
        count[id]++;
    }
    for (int i = 0; i < N; i++) chi += pow(count[i] - n_picks * want[i], 2) / (n_picks * want[i]);
    CHECK_MSG(chi < 29.9, "chi-square is %g at temperature %g", chi, p.temp);
}

TEST(sampling_frequencies_follow_the_softmax)
{
    static const float z[]    = {1, -1, 0.5f, 2, 0, -3, 1.5f, 1};
    static const float temp[] = {0.7f, 1, 1.8f};
    for (size_t k = 0; k < COUNT(temp); k++) {
        double p[8], sum = 0;
        for (int i = 0; i < 8; i++) sum += p[i] = exp(z[i] / temp[k]);
        for (int i = 0; i < 8; i++) p[i] /= sum;
        check_frequencies(t, (sample_params){.temp = temp[k], .top_p = 1, .seed = 10 + k}, p,
                          temp[k] == 1 ? 200000 : 50000);
    }
}

TEST(sampling_top_k_keeps_exactly_k)
{
    static const float    z[]    = {0, 1, 1, 1, -1, 1, 0.5f};
    const sample_params   warm   = {.temp = 5, .top_p = 1};
    static const uint32_t want[] = {0x7F, 0x02, 0x06, 0x0E, 0x2E, 0x6E, 0x6F, 0x7F, 0x7F}; /* by k */
    for (int k = 0; k < (int)COUNT(want); k++) {
        sample_params p = warm;
        p.top_k         = k;
        CHECK_INT(seen(z, 7, p, 3000), want[k]);
    }
    sample_params huge = warm;
    huge.top_k         = INT32_MAX;
    CHECK_INT(seen(z, 7, huge, 3000), 0x7F);
}

TEST(sampling_top_p_keeps_the_shortest_prefix)
{
    static const float prob[] = {0.05f, 0.5f, 0.1f, 0.25f, 0.1f}, even[] = {3, 3, 3, 3};
    static const struct {
        float    top_p;
        uint32_t want;
    } c[] = {{0, 0x02},     {1e-9f, 0x02}, {0.49f, 0x02}, {0.51f, 0x0A}, {0.74f, 0x0A},
             {0.76f, 0x0E}, {0.84f, 0x0E}, {0.86f, 0x1E}, {0.96f, 0x1F}, {1, 0x1F}};
    float z[5];
    logs(z, prob, 5);
    for (size_t i = 0; i < COUNT(c); i++)
        CHECK_INT(seen(z, 5, (sample_params){.temp = 1, .top_p = c[i].top_p}, 3000), c[i].want);
    /* exactly reached is reached */
    CHECK_INT(seen(even, 4, (sample_params){.temp = 1, .top_p = 0.5f}, 3000), 0x03);
    CHECK_INT(seen(even, 4, (sample_params){.temp = 1, .top_p = 0.500001f}, 3000), 0x07);
}

TEST(sampling_min_p_is_relative_to_the_best)
{
    static const float prob[] = {0.05f, 0.5f, 0.1f, 0.25f, 0.1f};
    static const struct {
        float    min_p;
        uint32_t want;
    } c[] = {{0, 0x1F},     {0.09f, 0x1F}, {0.11f, 0x1E}, {0.19f, 0x1E},
             {0.21f, 0x0A}, {0.49f, 0x0A}, {0.51f, 0x02}, {1, 0x02}};
    float z[5];
    logs(z, prob, 5);
    for (size_t i = 0; i < COUNT(c); i++)
        CHECK_INT(seen(z, 5, (sample_params){.temp = 1, .top_p = 1, .min_p = c[i].min_p}, 3000), c[i].want);
}

/* Each case gives another answer when its two filters change places. */
TEST(sampling_filters_act_in_order)
{
    static const float two[] = {0.9f, 0.1f}, four[] = {0.4f, 0.3f, 0.2f, 0.1f};
    float              z[4];
    /* temperature 2 makes 0.75, 0.25 of them, so 0.8 needs both; and 0.25 / 0.75 passes min-p, 0.1 / 0.9 would not */
    logs(z, two, 2);
    CHECK_INT(seen(z, 2, (sample_params){.temp = 2, .top_p = 0.8f}, 3000), 0x3);
    CHECK_INT(seen(z, 2, (sample_params){.temp = 2, .top_p = 1, .min_p = 0.2f}, 3000), 0x3);
    CHECK_INT(seen(z, 2, (sample_params){.temp = 0.5f, .top_p = 0.95f}, 3000), 0x1);
    /* top-k first: of the two left, the better has 0.57 and reaches 0.5 alone */
    logs(z, four, 4);
    CHECK_INT(seen(z, 4, (sample_params){.temp = 1, .top_p = 0.5f, .top_k = 2}, 3000), 0x1);
    /* top-p before min-p: with the tail that min-p cuts still there, 0.4 does not reach 0.5 */
    CHECK_INT(seen(z, 4, (sample_params){.temp = 1, .top_p = 0.5f, .min_p = 0.6f}, 3000), 0x3);
}

TEST(sampling_never_picks_what_is_not_finite)
{
    const float z[]   = {NAN, 1, -INFINITY, 2, INFINITY, NAN, 1.5f, -NAN};
    const float bad[] = {NAN, -INFINITY, INFINITY};

    const sample_params c[] = {{.top_p = 1},
                               {.temp = 1, .top_p = 1},
                               {.temp = 1, .top_p = 0.9f},
                               {.temp = 1, .top_p = 1, .min_p = 0.01f},
                               {.temp = 1, .top_p = 0.9f, .min_p = 0.01f, .top_k = 2},
                               {.temp = 1e-30f, .top_p = 0.9f, .top_k = 7},
                               {.temp = 1e30f, .top_p = 0.99f, .top_k = 7}};
    for (size_t i = 0; i < COUNT(c); i++) {
        CHECK_INT(seen(z, 8, c[i], 200) & ~0x4Au, 0);
        for (int n = 1; n <= 3; n++) CHECK_INT(sampling_pick(bad, n, &c[i], scratch), -1);
        CHECK_INT(sampling_pick(z, 2, &c[i], scratch), 1);
    }
    CHECK_INT(sampling_argmax(z, 8), 3);
    CHECK_INT(sampling_argmax(bad, 3), -1);
}

TEST(sampling_of_one_and_two_tokens)
{
    static const float z[] = {-4, -4};
    for (int k = 0; k < 3; k++) {
        CHECK_INT(seen(z, 1, (sample_params){.temp = 1, .top_p = 0.3f, .min_p = 0.5f, .top_k = k}, 50), 0x1);
        CHECK_INT(seen(z, 2, (sample_params){.temp = 1, .top_p = 1, .top_k = k}, 50), k == 1 ? 0x1 : 0x3);
    }
}

/* --- against a plain second writing: sort all, cut, add the noise of all ------------------------------ */
typedef struct {
    float   logit;
    int32_t id;
} ranked;

static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : (x->id > y->id) - (x->id < y->id);
}

static ranked *rank_all(const float *z, int n)
{
    ranked *r = xnew_n(ranked, (size_t)n);
    for (int i = 0; i < n; i++) r[i] = (ranked){z[i], i};
    qsort(r, (size_t)n, sizeof *r, by_rank);
    return r;
}

static int n_kept(const ranked *r, int n, const sample_params *p)
{
    double total = 0, sum = 0;
    int    kept = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    for (int i = 0; i < kept; i++) total += exp(((double)r[i].logit - r[0].logit) / p->temp);
    for (int i = 0; i < kept && p->top_p < 1; i++)
        if ((sum += exp(((double)r[i].logit - r[0].logit) / p->temp)) >= p->top_p * total) kept = i + 1;
    while (p->min_p > 0 && ((double)r[kept - 1].logit - r[0].logit) / p->temp < log(p->min_p)) kept--;
    return kept;
}

static int32_t plain_pick(const ranked *r, int n, const sample_params *p)
{
    double  best = -INFINITY;
    int32_t id   = -1;
    for (int i = 0, kept = n_kept(r, n, p); i < kept; i++) {
        double score = (double)r[i].logit / p->temp + sampling_noise(p->seed, p->pos, r[i].id);
        if (score > best || (score == best && r[i].id < id)) {
            best = score;
            id   = r[i].id;
        }
    }
    return id;
}

static void check_against_plain(test_case *t, int n_vocab, double spread, int n_picks)
{
    float              *z    = xnew_n(float, (size_t)n_vocab);
    sampling_candidate *room = xnew_n(sampling_candidate, (size_t)n_vocab);
    uint64_t            rand = 3;
    for (int i = 0; i < n_vocab; i++) z[i] = (float)(spread * test_randn(&rand));
    ranked *r = rank_all(z, n_vocab);
    for (int i = 0; i < n_picks; i++) {
        sample_params p = {.temp  = i % 4 == 3 ? 1.5f : 0.8f,
                           .top_p = i % 3 ? 0.95f : 1,
                           .min_p = i % 5 == 4 ? 0.05f : 0,
                           .top_k = i % 2 ? 64 : 0,
                           .seed  = 1234567890123u,
                           .pos   = i};
        CHECK_INT(sampling_pick(z, n_vocab, &p, room), plain_pick(r, n_vocab, &p));
    }
    mem_free(z);
    mem_free(r);
    mem_free(room);
}

TEST(sampling_equals_the_plain_algorithm)
{
    check_against_plain(t, 512, 0.1, 200);
    check_against_plain(t, 512, 3, 200);
    check_against_plain(t, 512, 40, 60);
    check_against_plain(t, 262144, 0.5, 5);
    check_against_plain(t, 262144, 4, 5);
}

/* The ids of a vocabulary of equal logits: all picks differ by noise alone, and the last id can win as the first. */
TEST(sampling_reaches_the_whole_vocabulary)
{
    enum { N = 262144, PICKS = 16 };
    float              *z    = xnew_n(float, N);
    sampling_candidate *room = xnew_n(sampling_candidate, N);
    double              mean = 0;
    for (int i = 0; i < PICKS; i++) {
        sample_params p = {.temp = 1, .top_p = 1, .seed = 9, .pos = i};
        mean += (double)sampling_pick(z, N, &p, room) / N / PICKS;
    }
    CHECK_NEAR(mean, 0.5, 0.25); /* the standard error is 0.07 */
    mem_free(z);
    mem_free(room);
}

TEST(logit_changes_follow_the_fixed_order_and_are_undone)
{
    float        x[] = {2, -2, 0.5f, 7, /* row 1 */ 1, 1, -3, 4}, before_[8];
    logit_change c[] = {{.row = 0, .token = 0, .bias = 1, .repeat = 2, .minus = 0.25f},
                        {.row = 0, .token = 1, .bias = 0, .repeat = 2, .minus = 0},
                        {.row = 1, .token = 2, .bias = 4, .repeat = 4, .minus = 1.5f},
                        {.row = 1, .token = 3, .bias = -5, .repeat = 3, .minus = 0}};
    memcpy(before_, x, sizeof x);
    sampling_change(x, 4, c, COUNT(c));
    CHECK_NEAR(x[0], (2.0 + 1) / 2 - 0.25, 0);
    CHECK_NEAR(x[1], -4, 0);
    CHECK_NEAR(x[2], 0.5, 0);
    CHECK_NEAR(x[6], (-3.0 + 4) / 4 - 1.5, 0); /* the sign after the bias decides */
    CHECK_NEAR(x[7], (4.0 - 5) * 3, 0);
    sampling_restore(x, 4, c, COUNT(c));
    CHECK(!memcmp(x, before_, sizeof x));
}

/* Words of all ones, all zeros and anything; a last word that is not whole; rows without a mask stay as they are. */
static void mask_scene(rig *g)
{
    enum { V = 300, ROWS = 4, MASKS = 2 };
    size_t    words = sampling_mask_words(V), n = (size_t)ROWS * V;
    float    *x = rig_randn(g, n), *want = arena_new_n(&g->host, float, ROWS *V);
    uint64_t *mask    = arena_new_n(&g->host, uint64_t, (size_t)MASKS * words);
    int32_t   rows[2] = {2, 0}; /* in any order */
    memcpy(want, x, n * sizeof *x);
    for (size_t i = 0; i < MASKS * words; i++) mask[i] = i % 5 == 1 ? UINT64_MAX : i % 5 == 2 ? 0 : test_rand(&g->rand);
    for (int i = 0; i < MASKS; i++)
        for (int id = 0; id < V; id++)
            if (!(mask[(size_t)i * words + (size_t)id / 64] >> id % 64 & 1)) want[rows[i] * V + id] = -INFINITY;
    dev logits = rig_put_f32(g, x, n);
    OP(g, mask_logits, logits, V, rig_put(g, mask, MASKS * words * sizeof *mask), rig_put_i32(g, rows, 2), MASKS);
    SAME_F32(g, rig_get_f32(g, logits, n), want, n);
}

TEST(mask_logits_leaves_what_is_allowed) { rig_each(t, mask_scene); }

static void logprobs_scene(rig *g)
{
    enum { V = 300, TOP = 5, ROWS = 3 };
    float        *x        = rig_randn(g, ROWS * V);
    int32_t       id[ROWS] = {7, 0, V - 1};
    token_logprob out[ROWS * (1 + TOP)];
    x[V + 3] = x[V + 9] = 6; /* a tie for the first place of row 1 */
    x[2 * V]            = NAN;
    dev logits = rig_put_f32(g, x, ROWS * V), ids = rig_put_i32(g, id, ROWS), d = rig_new(g, sizeof out);
    OP(g, logprobs, d, logits, ids, ROWS, V, TOP);
    g->o->download(g->q, out, d, sizeof out);
    g->o->sync(g->q);
    for (int r = 0; r < ROWS; r++) {
        double sum = 0, above = INFINITY;
        for (int i = 0; i < V; i++)
            if (isfinite(x[r * V + i])) sum += exp((double)x[r * V + i]);
        const token_logprob *row = out + r * (1 + TOP);
        SAME(g, row[0].id, id[r]);
        NEAR(g, row[0].logprob, (double)x[r * V + id[r]] - log(sum), 1e-6);
        for (int k = 1; k <= TOP; k++) {
            NEAR(g, row[k].logprob, (double)x[r * V + row[k].id] - log(sum), 1e-6);
            test_check(g->t, (double)row[k].logprob <= above, __FILE__, __LINE__, "row %d is not ranked", r);
            above = row[k].logprob;
        }
    }
    SAME(g, out[1 * (1 + TOP) + 1].id, 3);
    SAME(g, out[1 * (1 + TOP) + 2].id, 9);
}

TEST(logprobs_are_those_of_the_softmax_and_ranked) { rig_each(t, logprobs_scene); }

static void confidence_scene(rig *g)
{
    static const int vocab[] = {1, 8, 301, 4096};
    for (size_t v = 0; v < COUNT(vocab); v++) {
        enum { ROWS = 5 };
        int     V        = vocab[v];
        float  *x        = rig_randn(g, ROWS * V);
        int32_t id[ROWS] = {V - 1, 0, V / 2, -1, V / 3};
        if (V > 8) x[2 * V + 1] = -INFINITY;
        x[4 * V + V / 3] += 20;
        dev logits = rig_put_f32(g, x, ROWS * V), ids = rig_put_i32(g, id, ROWS), d = rig_new(g, ROWS * sizeof(float));
        OP(g, confidence, d, logits, ids, ROWS, V);
        const float *out = rig_get_f32(g, d, ROWS);
        for (int r = 0; r < ROWS; r++) {
            double sum = 0;
            for (int i = 0; i < V; i++) sum += exp((double)x[r * V + i]);
            NEAR(g, out[r], id[r] < 0 ? 0 : exp((double)x[r * V + id[r]]) / sum, 1e-6);
        }
    }
}

TEST(confidence_is_the_share_of_the_pick) { rig_each(t, confidence_scene); }

TEST(logprobs_say_when_there_are_too_few_tokens)
{
    float         x[] = {1, NAN, -INFINITY, 2};
    token_logprob out[5];
    sampling_logprobs(x, 4, 1, 4, out, scratch);
    CHECK(isinf(out[0].logprob) && out[0].logprob < 0);
    CHECK_INT(out[1].id, 3);
    CHECK_INT(out[2].id, 0);
    CHECK_INT(out[3].id, -1);
    CHECK_INT(out[4].id, -1);
}

/* --- the best scores -------------------------------------------------------------------------------- */
typedef struct {
    double  score;
    int32_t id;
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : (x->id > y->id) - (x->id < y->id);
}

/* All that the filters leave, with the noise of all, sorted. */
static int plain_scores(scored *s, const ranked *r, int n, const sample_params *p)
{
    int kept = p->temp > 0 ? n_kept(r, n, p) : n;
    for (int i = 0; i < kept; i++) {
        s[i].id    = r[i].id;
        s[i].score = p->temp > 0 ? (double)r[i].logit / p->temp + sampling_noise(p->seed, p->pos, r[i].id) : r[i].logit;
    }
    qsort(s, (size_t)kept, sizeof *s, by_score);
    return kept;
}

static void check_top(test_case *t, const float *z, int n_vocab, const sample_params *p, int n_top, float soft)
{
    ranked             *r = rank_all(z, n_vocab);
    scored             *s = xnew_n(scored, (size_t)n_vocab);
    sampling_candidate *c = xnew_n(sampling_candidate, (size_t)n_vocab);
    token_logprob       out[SAMPLE_TOP_MAX];
    double              sum = 0;
    int                 n   = plain_scores(s, r, n_vocab, p);
    sampling_top(z, n_vocab, p, n_top, soft, out, c);
    for (int i = 0; i < n && i < SAMPLE_TOP_MAX; i++) sum += exp((s[i].score - s[0].score) / soft);
    for (int i = 0; i < n_top; i++) {
        CHECK_INT(out[i].id, i < n ? s[i].id : -1);
        if (i < n) CHECK_NEAR(out[i].logprob, (s[i].score - s[0].score) / soft - log(sum), 1e-6 * (1 - out[i].logprob));
        if (i >= n) CHECK(isinf(out[i].logprob) && out[i].logprob < 0);
    }
    mem_free(r);
    mem_free(s);
    mem_free(c);
}

/* Every combination of the filters by the bits of `which`. */
static sample_params mixed_params(int which, int32_t pos)
{
    static const float temps[] = {0, 0.3f, 1, 1.7f};
    return (sample_params){.temp  = temps[which & 3],
                           .top_p = which & 4 ? 0.9f : 1,
                           .min_p = which & 8 ? 0.02f : 0,
                           .top_k = which & 16 ? 40 : 0,
                           .seed  = 77,
                           .pos   = pos};
}
enum { MIXES = 32 };

TEST(sampling_top_equals_the_plain_algorithm)
{
    static const int   vocab[]  = {1, 5, 17, 64, 65, 512, 4096};
    static const float spread[] = {0, 0.1f, 3, 40}, soft[] = {0.25f, 1, 2};
    uint64_t           rand = 4;
    float              z[4096];
    for (size_t v = 0; v < COUNT(vocab); v++)
        for (int i = 0; i < 4 * MIXES; i++) {
            for (int k = 0; k < vocab[v]; k++) z[k] = spread[i / MIXES] * test_randn(&rand);
            sample_params p = mixed_params(i % MIXES, i);
            check_top(t, z, vocab[v], &p, i % 3 ? SAMPLE_TOP_MAX : 1 + i % 20, soft[i % COUNT(soft)]);
        }
}

/* Rows of few distinct logits, so that ties are common, and some that are never picked. */
TEST(sampling_top_begins_with_the_pick)
{
    static const struct {
        int n_vocab, n_rows;
    } c[] = {{17, 4000}, {512, 2000}, {4096, 400}, {50000, 64}};

    float              *z    = xnew_n(float, 50000);
    sampling_candidate *room = xnew_n(sampling_candidate, 50000);
    uint64_t            rand = 5;
    token_logprob       best;
    for (size_t i = 0; i < COUNT(c); i++)
        for (int row = 0; row < c[i].n_rows; row++) {
            sample_params p = mixed_params(row % MIXES, row);
            for (int k = 0; k < c[i].n_vocab; k++) {
                float x = test_randn(&rand) * 2;
                z[k]    = row % 3 == 0 ? roundf(x) : k % 7 == 3 ? -INFINITY : x;
            }
            sampling_top(z, c[i].n_vocab, &p, 1, 1, &best, room);
            int32_t pick = sampling_pick(z, c[i].n_vocab, &p, room);
            if (!CHECK_MSG(best.id == pick, "of %d tokens the best is %d, the pick is %d, mix %d", c[i].n_vocab,
                           best.id, pick, row % MIXES))
                break;
        }
    mem_free(z);
    mem_free(room);
}

TEST(sampling_top_shares_are_of_the_best_alone)
{
    enum { N = 200 };
    float         z[N] = {0};
    token_logprob out[SAMPLE_TOP_MAX];
    sampling_top(z, N, &(sample_params){.top_p = 1}, SAMPLE_TOP_MAX, 1, out, scratch);
    for (int i = 0; i < SAMPLE_TOP_MAX; i++) { /* equal, ranked by id; the other 136 have no share */
        CHECK_INT(out[i].id, i);
        CHECK_NEAR(out[i].logprob, -log(SAMPLE_TOP_MAX), 1e-6);
    }
    z[150] = 2;
    sampling_top(z, 151, &(sample_params){.top_p = 1}, 2, 0.5f, out, scratch); /* asked for two, shared by 64 */
    CHECK_INT(out[0].id, 150);
    CHECK_NEAR(out[0].logprob, -log1p(63 * exp(-4)), 1e-6);
    CHECK_NEAR(out[1].logprob, -4 - log1p(63 * exp(-4)), 1e-6);
}

TEST(sampling_top_says_when_there_are_too_few_tokens)
{
    const float   z[] = {NAN, 1, -INFINITY, 2, INFINITY}, none[] = {NAN, -INFINITY};
    token_logprob out[4];
    for (int which = 0; which < MIXES; which++) {
        sample_params p = mixed_params(which & ~12, 3); /* top-p and min-p would leave one */
        sampling_top(z, 5, &p, 4, 1, out, scratch);
        CHECK_INT(out[0].id + out[1].id, 3 + 1);
        CHECK_INT(out[2].id, -1);
        CHECK_INT(out[3].id, -1);
        sampling_top(none, 2, &p, 2, 1, out, scratch);
        CHECK_INT(out[0].id, -1);
        CHECK_INT(out[1].id, -1);
    }
}

/* Each row by its own parameters, and its first id is what sample and argmax say. */
static void top_scene(rig *g)
{
    enum { V = 1000, ROWS = MIXES, TOP = 10 };
    float         *z = rig_randn(g, ROWS * V);
    sample_params  p[ROWS];
    token_logprob *out = arena_new_n(&g->host, token_logprob, ROWS * TOP), want[TOP];
    for (int r = 0; r < ROWS; r++) p[r] = mixed_params(r, 100 - r);
    dev logits = rig_put_f32(g, z, ROWS * V), params = rig_put(g, p, sizeof p), ids = rig_new(g, ROWS * 4);
    dev best = rig_new(g, ROWS * 4), d = rig_new(g, ROWS * TOP * sizeof *out);
    OP(g, sample_top, d, logits, params, ROWS, V, TOP, 0.7f);
    OP(g, sample, ids, logits, params, ROWS, V);
    OP(g, argmax, best, logits, ROWS, V);
    g->o->download(g->q, out, d, ROWS * TOP * sizeof *out);
    const int32_t *id = rig_get_i32(g, ids, ROWS), *top = rig_get_i32(g, best, ROWS);
    SAME_F32(g, rig_get_f32(g, logits, ROWS * V), z, ROWS * V);
    for (int r = 0; r < ROWS; r++) {
        sampling_top(z + r * V, V, &p[r], TOP, 0.7f, want, scratch);
        for (int i = 0; i < TOP; i++) {
            SAME(g, out[r * TOP + i].id, want[i].id);
            SAME_F32(g, &out[r * TOP + i].logprob, &want[i].logprob, 1);
        }
        SAME(g, out[r * TOP].id, id[r]);
        if (p[r].temp <= 0) SAME(g, out[r * TOP].id, top[r]);
    }
}
TEST(sample_top_of_each_row_by_its_own_parameters) { rig_each(t, top_scene); }

/* --- from the best alone ------------------------------------------------------------------------ */
static int ranking_of(const float *z, int n_vocab, int most, token_logit *best)
{
    int n = 0;
    for (int i = 0; i < n_vocab; i++) { /* in no order: as threads find them */
        int32_t id = (int32_t)((unsigned)i * 7 % (unsigned)n_vocab);
        n          = sampling_rank(best, n, most, id, z[id]);
    }
    return n;
}

TEST(sampling_rank_keeps_the_best_in_order)
{
    static const float z[] = {1, NAN, 3, 3, -INFINITY, 2, INFINITY, 3, 0, -0.0f};
    token_logit        best[8];
    CHECK_INT(ranking_of(z, 10, 4, best), 4);
    CHECK(best[0].id == 2 && best[1].id == 3 && best[2].id == 7 && best[3].id == 5 && best[3].logit == 2);
    CHECK_INT(ranking_of(z, 10, 8, best), 7); /* all that are finite */
    CHECK(best[4].id == 0 && best[5].id == 8 && best[6].id == 9);
    CHECK_INT(ranking_of(z, 2, 1, best), 1);
    CHECK_INT(best[0].id, 0);
}

TEST(sampling_needs_what_decides)
{
    CHECK_INT(sampling_needs(&(sample_params){.temp = 0, .top_k = 500}), 1);
    CHECK_INT(sampling_needs(&(sample_params){.temp = 1, .top_k = 0}), 0);
    CHECK_INT(sampling_needs(&(sample_params){.temp = 1, .top_k = 1}), 1);
    CHECK_INT(sampling_needs(&(sample_params){.temp = 1, .top_k = SAMPLE_TOP_MAX}), SAMPLE_TOP_MAX);
    CHECK_INT(sampling_needs(&(sample_params){.temp = 1, .top_k = SAMPLE_TOP_MAX + 1}), 0);
}

static float uniform(uint64_t *r) { return (float)(test_rand(r) >> 40) * 0x1p-24f; }

/* Coarse logits, so that ties stand at every border; lists longer than need be, too. */
TEST(sampling_pick_best_is_the_pick)
{
    enum { N = 517 };
    static const int   sizes[] = {N, 64, 20, 1};
    float              z[N];
    token_logit        best[SAMPLE_TOP_MAX];
    sampling_candidate room[N];
    uint64_t           r    = 77;
    int                seen = 0;
    for (int turn = 0; turn < 4000; turn++) {
        int           n_vocab = sizes[test_rand(&r) % COUNT(sizes)];
        float         grain   = turn % 2 ? 0.5f : 1e-3f;
        sample_params p       = {.temp  = turn % 9 ? 0.05f + 2 * uniform(&r) : 0,
                                 .top_p = turn % 3 ? uniform(&r) : 1,
                                 .min_p = turn % 5 ? 0 : uniform(&r),
                                 .top_k = 1 + (int32_t)(test_rand(&r) % SAMPLE_TOP_MAX),
                                 .seed  = test_rand(&r),
                                 .pos   = turn};
        for (int i = 0; i < n_vocab; i++) z[i] = grain * roundf(3 * test_randn(&r) / grain);
        if (turn % 50 == 0) z[0] = NAN;
        int     n    = ranking_of(z, n_vocab, turn % 4 ? sampling_needs(&p) : SAMPLE_TOP_MAX, best);
        int32_t want = sampling_pick(z, n_vocab, &p, room);
        CHECK_INT(sampling_pick_best(best, n, &p), want);
        seen += want > 0 && want != best[0].id;
    }
    CHECK(seen > 500); /* not only the likeliest */
    CHECK_INT(sampling_pick_best(best, 0, &(sample_params){.temp = 1, .top_k = 3}), -1);
    CHECK_INT(sampling_pick_best(best, 0, &(sample_params){.temp = 0}), -1);
}
