#include "ops/sampling.h"
#include "ops_test.h"

static const int sizes[] = {1, 8, 100, 257, 5120};

static rig_result play_add(rig *g, const void *arg)
{
    size_t n = (size_t) * (const int *)arg;
    dev    a = rig_put_randn(g, n), b = rig_put_randn(g, n);
    OP(g, add, b, a, b, n, 0.70710678f);
    return rig_give(g, b, n, 1e-6, 1e-6);
}

static rig_result play_softcap(rig *g, const void *arg)
{
    size_t n = (size_t) * (const int *)arg;
    float *x = rig_randn(g, n);
    for (size_t i = 0; i < n; i++) x[i] *= 30;
    dev d = rig_put_f32(g, x, n);
    OP(g, softcap, d, n, 30);
    return rig_give(g, d, n, 1e-5, 1e-6);
}

TEST(add_agrees_with_ref)
{
    for (size_t i = 0; i < COUNT(sizes); i++) rig_compare(t, play_add, &sizes[i]);
}

TEST(softcap_agrees_with_ref)
{
    for (size_t i = 0; i < COUNT(sizes); i++) rig_compare(t, play_softcap, &sizes[i]);
}

static void add_values(rig *g)
{
    static const float a[] = {1, -2, 0.5f}, b[] = {3, 2, 0.25f}, want[] = {8, 0, 1.5f};

    dev y = rig_new(g, sizeof want), da = rig_put_f32(g, a, 3);
    OP(g, add, y, da, rig_put_f32(g, b, 3), 3, 2);
    SAME_F32(g, rig_get_f32(g, y, 3), want, 3);
    SAME_F32(g, rig_get_f32(g, da, 3), a, 3);
}
TEST(add_by_hand) { rig_each(t, add_values); }

static void softcap_values(rig *g)
{
    static const float  x[]    = {0, 30, -30, 1, 1000, -1000};
    static const double want[] = {0, 22.847824668, -22.847824668, 0.999629794, 30, -30};

    dev d = rig_put_f32(g, x, 6);
    OP(g, softcap, d, 6, 30);
    float *y = rig_get_f32(g, d, 6);
    for (int i = 0; i < 6; i++) NEAR(g, y[i], want[i], 1e-5);
}
TEST(softcap_by_hand) { rig_each(t, softcap_values); }

/* Slices of 257 start at every alignment; a vector's tail must give the same bits as its middle. */
static void slices_alone(rig *g)
{
    enum { ROWS = 9, N = 257, ALL = ROWS * N };
    float *a = rig_randn(g, ALL), *b = rig_randn(g, ALL);
    dev    together = rig_put_f32(g, a, ALL), alone = rig_put_f32(g, a, ALL), other = rig_put_f32(g, b, ALL);
    OP(g, add, together, together, other, ALL, 13.7f);
    OP(g, softcap, together, ALL, 30);
    for (size_t r = 0; r < ROWS; r++) {
        dev x = dev_at_f32(alone, r * N);
        OP(g, add, x, x, dev_at_f32(other, r * N), N, 13.7f);
        OP(g, softcap, x, N, 30);
    }
    SAME_F32(g, rig_get_f32(g, alone, ALL), rig_get_f32(g, together, ALL), ALL);
}
TEST(add_and_softcap_do_not_depend_on_place) { rig_each(t, slices_alone); }

static void copies(rig *g)
{
    static const float   x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, before[] = {-1, -1, -1, -1, -1, -1};
    static const int32_t idx[]    = {2, 0, 2};
    static const float   picked[] = {7, 8, 1, 2, 7, 8}, straight[] = {1, 2, -1, 4, 5, -1};

    dev d = rig_put_f32(g, x, 9), y = rig_put_f32(g, before, 6), z = rig_put_f32(g, before, 6);
    OP(g, copy_rows, y, 2, d, 3, rig_put_i32(g, idx, 3), 3, 2);
    SAME_F32(g, rig_get_f32(g, y, 6), picked, 6);
    OP(g, copy_rows, z, 3, d, 3, (dev){0}, 2, 2);
    SAME_F32(g, rig_get_f32(g, z, 6), straight, 6);
}
TEST(copy_rows_by_index_and_stride) { rig_each(t, copies); }

/* --- picking: every backend must say exactly what ops/sampling.h says -------------------------------- */
static void picks(rig *g)
{
    enum { ROWS = 33, VOCAB = 1000 };
    sampling_candidate scratch[VOCAB];
    sample_params      p[ROWS];
    float             *z = rig_randn(g, ROWS * VOCAB);
    for (int r = 0; r < ROWS; r++)
        p[r] = (sample_params){.temp  = r % 4 ? 0.3f * (float)(r % 4) : 0,
                               .top_p = r % 3 ? 0.9f : 1,
                               .min_p = r % 5 ? 0 : 0.02f,
                               .top_k = r % 2 ? 40 : 0,
                               .seed  = 7,
                               .pos   = 100 + r};
    z[2 * VOCAB + 5] = z[2 * VOCAB + 900] = 50;
    dev logits = rig_put_f32(g, z, ROWS * VOCAB), id = rig_new(g, ROWS * sizeof(int32_t));
    OP(g, argmax, id, logits, ROWS, VOCAB);
    int32_t *best = rig_get_i32(g, id, ROWS);
    SAME(g, best[2], 5);
    for (int r = 0; r < ROWS; r++) SAME(g, best[r], sampling_argmax(z + (size_t)r * VOCAB, VOCAB));

    OP(g, sample, id, logits, rig_put(g, p, sizeof p), ROWS, VOCAB);
    int32_t *got = rig_get_i32(g, id, ROWS), n_differ = 0;
    for (int r = 0; r < ROWS; r++) {
        SAME(g, got[r], sampling_pick(z + (size_t)r * VOCAB, VOCAB, &p[r], scratch));
        n_differ += got[r] != best[r];
    }
    test_case *t = g->t;
    CHECK(n_differ > 5);
    SAME_F32(g, rig_get_f32(g, logits, ROWS * VOCAB), z, ROWS * VOCAB);
}
TEST(argmax_and_sample_pick_as_the_contract_says) { rig_each(t, picks); }

/* Few tokens decide, or all of them: top-k about the sizes at which a backend may change its way, equal logits all over
 * the row, rows with few finite logits or none, and more rows than it may take at a time. */
static void picks_of_few(rig *g)
{
    static const int32_t top_k[] = {1, 2, 40, 63, 64, 65, 0};
    enum { ROWS = 70, VOCAB = 2049 };
    sampling_candidate *scratch = arena_new_n(&g->host, sampling_candidate, VOCAB);
    sample_params       p[ROWS];
    float              *z = rig_randn(g, ROWS * VOCAB);
    for (int r = 0; r < ROWS; r++) {
        p[r]       = (sample_params){.temp  = r % 9 ? 0.25f * (float)(1 + r % 6) : 0,
                                     .top_p = r % 3 ? 0.8f : 1,
                                     .min_p = r % 5 ? 0 : 0.05f,
                                     .top_k = top_k[r % (int)COUNT(top_k)],
                                     .seed  = 11,
                                     .pos   = r};
        float *row = z + (size_t)r * VOCAB;
        for (int i = 0; i < VOCAB; i++) {
            if (r % 4 == 1) row[i] = 0.5f * floorf(row[i]);
            if (r % 4 == 2 && i % (10 * r) != 7) row[i] = r % 8 == 2 ? -INFINITY : NAN;
            if (r % 4 == 3 && i < 64) row[i] += 10; /* the best are neighbours */
            if (r == 69) row[i] = NAN;
        }
    }
    dev logits = rig_put_f32(g, z, ROWS * VOCAB), id = rig_new(g, ROWS * sizeof(int32_t));
    OP(g, sample, id, logits, rig_put(g, p, sizeof p), ROWS, VOCAB);
    int32_t *got = rig_get_i32(g, id, ROWS);
    for (int r = 0; r < ROWS; r++) SAME(g, got[r], sampling_pick(z + (size_t)r * VOCAB, VOCAB, &p[r], scratch));
}
TEST(sample_of_few_tokens_picks_as_the_contract_says) { rig_each(t, picks_of_few); }

/* The same where a thread of a GPU has several tokens: equal logits, the best all in one thread, few finite ones. Rows
 * from 4 on depend on many tokens: top-p among distinct and among equal logits, min-p, temperature alone, both filters
 * after few finite logits, and a filter of one token. */
static void picks_of_many(rig *g)
{
    static const int32_t top_k[] = {64, 40, 2, 0, 0, 0, 0, 0, 0, 0};
    static const float   temp[]  = {1.5f, 1.5f, 1.5f, 0, 1, 2, 0.7f, 1, 0.9f, 1};
    static const float   top_p[] = {0.9f, 0.9f, 0.9f, 0.9f, 0.95f, 0.5f, 1, 1, 0.9f, 0};
    static const float   min_p[] = {0, 0, 0, 0, 0, 0.01f, 0.05f, 0, 0.001f, 0};
    enum { ROWS = 10, VOCAB = 70001, SLICE = (VOCAB + 31) / 32, THREADS = 1024 };
    static const queue_limits limits  = {.max_rows = ROWS, .max_in = 32, .max_vocab = VOCAB};
    test_case                *t       = g->t;
    err                       e       = {0};
    sampling_candidate       *scratch = arena_new_n(&g->host, sampling_candidate, VOCAB);
    sample_params             p[ROWS];
    float                    *z = rig_randn(g, (size_t)ROWS * VOCAB);
    if (!CHECK_OK(g->o->queue_reserve(g->q, &limits, &e), e)) return;
    for (int r = 0; r < ROWS; r++) {
        p[r] = (sample_params){
            .temp = temp[r], .top_p = top_p[r], .min_p = min_p[r], .top_k = top_k[r], .seed = 3, .pos = r};
        for (int i = 0; i < VOCAB; i++) {
            float *x = &z[(size_t)r * VOCAB + (size_t)i];
            if (r == 0 || r == 5) *x = 0.5f * floorf(*x);
            if (r == 1 && i % SLICE % THREADS == 5) *x += 10;
            if (r == 2 && i % 30000 != 7) *x = -INFINITY;
            if (r == 8 && i % 5000 != 9) *x = NAN;
        }
    }
    dev logits = rig_put_f32(g, z, (size_t)ROWS * VOCAB), id = rig_new(g, ROWS * sizeof(int32_t));
    OP(g, sample, id, logits, rig_put(g, p, sizeof p), ROWS, VOCAB);
    int32_t *got = rig_get_i32(g, id, ROWS);
    for (int r = 0; r < ROWS; r++) SAME(g, got[r], sampling_pick(z + (size_t)r * VOCAB, VOCAB, &p[r], scratch));
    OP(g, argmax, id, logits, ROWS, VOCAB);
    got = rig_get_i32(g, id, ROWS);
    for (int r = 0; r < ROWS; r++) SAME(g, got[r], sampling_argmax(z + (size_t)r * VOCAB, VOCAB));
}
TEST(sample_of_a_large_vocabulary_picks_as_the_contract_says) { rig_each(t, picks_of_many); }
