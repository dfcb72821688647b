/* What quantising costs, on data of every kind. The figures are those of docs/quantisation.md. */
#include "gguf/quant.h"
#include "test.h"

static const struct {
    quant_type type;
    double     rmse;   /* on numbers of a normal distribution; a later change may be 1% worse, no more */
    double     within; /* no element of a block is off by more than this part of the block's largest, */
    int        steps;  /* and by so many times half the smallest f16, for scales that have few bits */
} figures[] = {
    {QUANT_F32, 0, 0, 0},
    {QUANT_F16, 0.000208, 0x1p-11, 1},
    {QUANT_BF16, 0.001662, 0x1p-8, 0},
    {QUANT_Q8_0, 0.005349, 1 / 250.0, 127},
    {QUANT_Q4_0, 0.080930, 1 / 6.0, 8},
    {QUANT_Q4_1, 0.069934, 1 / 6.0, 16},
    {QUANT_Q5_0, 0.040236, 1 / 13.0, 16},
    {QUANT_Q5_1, 0.033779, 1 / 13.0, 32},
    {QUANT_Q4_K, 0.071319, 1 / 5.0, 1008},
    {QUANT_Q5_K, 0.035834, 1 / 9.0, 2016},
    {QUANT_Q6_K, 0.017305, 1 / 20.0, 4096},
    {QUANT_IQ4_NL, 0.073640, 1 / 6.0, 127},
    {QUANT_IQ4_XS, 0.074390, 1 / 5.0, 4096},
    {QUANT_MXFP4, 0.111700, 1 / 3.9, 1},
};
enum { N = 1 << 17 };

static double largest(const float *x, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++) most = fmax(most, fabs((double)x[i]));
    return most;
}

/* There and back; true when it was taken. `back` may be x. */
static bool round_trip(quant_type type, const float *x, float *back, size_t n)
{
    char *bytes = xalloc(n * sizeof(float) + 1);
    bool  ok    = quant_quantise(type, x, bytes + 1, n); /* unaligned */
    if (ok) quant_dequantise(type, bytes + 1, back, n);
    mem_free(bytes);
    return ok;
}

TEST(quantise_error_on_normal_data)
{
    float   *x = xnew_n(float, N), *y = xnew_n(float, N);
    uint64_t seed = 12345;
    for (int i = 0; i < N; i++) x[i] = test_randn(&seed);
    for (size_t k = 0; k < COUNT(figures); k++) {
        double sum = 0;
        CHECK(round_trip(figures[k].type, x, y, N));
        for (int i = 0; i < N; i++) sum += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        double rmse = sqrt(sum / N);
        CHECK_MSG(rmse <= figures[k].rmse * 1.01, "%s: root-mean-square error %.6f, expected %.6f",
                  quant_name(figures[k].type), rmse, figures[k].rmse);
    }
    mem_free(x);
    mem_free(y);
}

static void check_within(test_case *t, size_t k, const float *x, const char *what)
{
    float y[QK_K];
    if (!CHECK(round_trip(figures[k].type, x, y, QK_K))) return;
    int    block = quant_block(figures[k].type) == QK_K ? QK_K : QK;
    double slack = figures[k].steps * 0x1p-25 + 1e-39; /* subnormal numbers too */
    for (int i = 0; i < QK_K; i += block) {
        double most = largest(x + i, block);
        for (int j = i; j < i + block; j++)
            CHECK_MSG(fabs((double)x[j] - y[j]) <= figures[k].within * most + slack,
                      "%s of %s: element %d is %g, was %g", quant_name(figures[k].type), what, j, y[j], x[j]);
    }
}

TEST(quantise_no_element_is_far_off)
{
    static const float sizes[] = {1, 1e-3f, 3e4f, 1e-7f, 1e-12f, 1e-40f, 0};
    uint64_t           seed    = 3;
    for (size_t k = 0; k < COUNT(figures); k++)
        for (int round = 0; round < 200; round++) {
            float x[QK_K], size = sizes[round % (int)COUNT(sizes)];
            for (int i = 0; i < QK_K; i++) {
                float r = test_randn(&seed);
                x[i]    = size * (round % 3 == 0   ? fmaxf(-2, fminf(2, r))
                                  : round % 3 == 1 ? fabsf(r) / 6
                                                   : (r > 0 ? 1 : -1));
            }
            check_within(t, k, x, "random numbers");
        }
}

TEST(quantise_constants_and_single_spikes)
{
    static const float values[] = {0, 1, -1, 0.37f, -1234.5f, 65504, -65504, 1e-3f};
    for (size_t k = 0; k < COUNT(figures); k++)
        for (size_t v = 0; v < COUNT(values); v++) {
            float x[QK_K], y[QK_K];
            for (int i = 0; i < QK_K; i++) x[i] = values[v];
            double part = figures[k].type == QUANT_MXFP4 ? 0.2 : 0.01; /* of two values to each power of two */
            CHECK(round_trip(figures[k].type, x, y, QK_K));
            for (int i = 0; i < QK_K; i++)
                CHECK_MSG(fabs((double)y[i] - x[i]) <= part * fabs((double)x[i]) + figures[k].steps * 0x1p-25,
                          "%s: %g became %g", quant_name(figures[k].type), x[i], y[i]);
            memset(x, 0, sizeof x);
            x[77] = values[v];
            check_within(t, k, x, "one spike");
        }
}

TEST(quantise_refuses_what_an_f16_cannot_hold)
{
    static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY, 65520, -1e10f, 3e38f};
    for (size_t k = 0; k < COUNT(figures); k++)
        for (size_t v = 0; v < COUNT(odd); v++) {
            quant_type type = figures[k].type;
            float      x[QK_K], y[QK_K];
            for (int i = 0; i < QK_K; i++) x[i] = 1;
            x[200]   = odd[v];
            bool any = type == QUANT_F32 || type == QUANT_BF16;
            CHECK_MSG(round_trip(type, x, y, QK_K) == any, "%s and %g", quant_name(type), odd[v]);
            if (any)
                CHECK(isnan(odd[v]) ? isnan(y[200]) : fabs((double)y[200] / odd[v] - 1) < 0.01 || y[200] == odd[v]);
        }
}

TEST(quantise_bf16_rounds_to_nearest_even)
{
    static const struct {
        uint32_t f32;
        uint16_t bf16;
    } cases[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
                 {0xbf807fff, 0xbf80}, {0x7f7fffff, 0x7f80}, {0x00008001, 0x0001}, {0x80000000, 0x8000}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        float f;
        memcpy(&f, &cases[i].f32, sizeof f);
        CHECK_INT(f32_to_bf16(f), cases[i].bf16);
    }
    CHECK_INT(f32_to_bf16(NAN) & 0x7fc0, 0x7fc0);
}

TEST(quantise_knows_what_it_can)
{
    for (int i = 0, n = 0; i <= QUANT_TYPES; i++) {
        n += quant_can_quantise((quant_type)i);
        if (i == QUANT_TYPES) CHECK_INT(n, COUNT(figures));
    }
    CHECK(!quant_can_quantise(QUANT_Q2_K) && !quant_can_quantise(QUANT_I32) && !quant_can_quantise((quant_type)-1));
}
