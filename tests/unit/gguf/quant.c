/* The layout of every block is written here a second time, element by element and in double, so that a mistake
 * in gguf/quant.c cannot hide behind itself. */
#include "gguf/quant.h"

#include "build_gguf.h"
#include "test.h"

#include <stdlib.h>

/* Those whose elements are not simply bits of a float first. */
static const quant_type can[] = {QUANT_F16,    QUANT_Q4_0,  QUANT_Q4_1, QUANT_Q5_0, QUANT_Q5_1, QUANT_Q8_0,
                                 QUANT_Q4_K,   QUANT_Q5_K,  QUANT_Q6_K, QUANT_Q2_K, QUANT_Q3_K, QUANT_IQ4_NL,
                                 QUANT_IQ4_XS, QUANT_MXFP4, QUANT_F32,  QUANT_BF16};
enum { N_CODED = COUNT(can) - 2 };

/* A binary16 by its definition. */
static double half(const uint8_t *p)
{
    int    u = p[0] | p[1] << 8, exponent = u >> 10 & 31, fraction = u & 1023;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                  : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                 : ldexp(fraction, -24);
    return u & 0x8000 ? -size : size;
}

static int bits(const uint8_t *p, int at, int n) /* n bits from bit `at`, low bits first */
{
    int v = 0;
    for (int i = 0; i < n; i++) v |= (p[(at + i) / 8] >> ((at + i) % 8) & 1) << i;
    return v;
}

/* 6-bit scale (which 0) or minimum (which 1) of sub-block j. */
static int k_scale(const uint8_t *s, int j, int which)
{
    if (j < 4) return s[4 * which + j] % 64;
    int low = which ? s[8 + j - 4] / 16 : s[8 + j - 4] % 16;
    return low + 16 * (s[4 * which + j - 4] / 64);
}

/* The sixteen levels of IQ4, outwards from zero. */
static int level(int q)
{
    static const int above[8] = {1, 13, 25, 38, 53, 69, 89, 113}, below[8] = {-10, -22, -35, -49, -65, -83, -104, -127};
    return q < 8 ? below[7 - q] : above[q - 8];
}

/* A float of four bits: sign, two bits of exponent with bias 1, one of fraction. */
static double fp4(int q)
{
    int    exponent = q >> 1 & 3, fraction = q & 1;
    double size = exponent ? ldexp(1 + fraction * 0.5, exponent - 1) : fraction * 0.5;
    return q & 8 ? -size : size;
}

/* 6-bit scale of sixteen elements in a Q3_K. */
static int q3_scale(const uint8_t *s, int j)
{
    return bits(s, 8 * (j % 8) + j / 8 * 4, 4) + 16 * bits(s + 8, 8 * (j % 4) + j / 4 * 2, 2) - 32;
}

/* Element i of one block at b. */
static double element(quant_type type, const uint8_t *b, int i)
{
    int nibble16 = 8 * (i % 16) + 4 * (i / 16);                  /* bit of element i in 32 halves of 16 bytes */
    int nibble64 = 8 * (i / 64 * 32 + i % 32) + i % 64 / 32 * 4; /* the same in groups of 64 */
    switch (type) {
    case QUANT_F16: return half(b);
    case QUANT_Q4_0: return half(b) * (bits(b + 2, nibble16, 4) - 8);
    case QUANT_Q4_1: return half(b) * bits(b + 4, nibble16, 4) + half(b + 2);
    case QUANT_Q5_0: return half(b) * (bits(b + 6, nibble16, 4) + 16 * bits(b + 2, i, 1) - 16);
    case QUANT_Q5_1: return half(b) * (bits(b + 8, nibble16, 4) + 16 * bits(b + 4, i, 1)) + half(b + 2);
    case QUANT_Q8_0: return half(b) * (int8_t)b[2 + i];
    case QUANT_Q4_K:
        return (float)(half(b) * k_scale(b + 4, i / 32, 0) * bits(b + 16, nibble64, 4)) -
               half(b + 2) * k_scale(b + 4, i / 32, 1);
    case QUANT_Q5_K:
        return (float)(half(b) * k_scale(b + 4, i / 32, 0) *
                       (bits(b + 48, nibble64, 4) + 16 * bits(b + 16, 8 * (i % 32) + i / 32, 1))) -
               half(b + 2) * k_scale(b + 4, i / 32, 1);
    case QUANT_Q6_K: {
        int low  = bits(b, 8 * (i / 128 * 64 + i % 64) + i % 128 / 64 * 4, 4);
        int high = bits(b + 128, 8 * (i / 128 * 32 + i % 32) + i % 128 / 32 * 2, 2);
        return half(b + 208) * (int8_t)b[192 + i / 16] * (low + 16 * high - 32);
    }
    case QUANT_Q2_K: {
        int q = bits(b + 16, 8 * (i / 128 * 32 + i % 32) + i % 128 / 32 * 2, 2);
        return (float)(half(b + 80) * (b[i / 16] % 16) * q) - half(b + 82) * (b[i / 16] / 16);
    }
    case QUANT_Q3_K: {
        int low  = bits(b + 32, 8 * (i / 128 * 32 + i % 32) + i % 128 / 32 * 2, 2),
            high = bits(b, 8 * (i % 32) + i / 32, 1);
        return half(b + 108) * q3_scale(b + 96, i / 16) * (low + 4 * high - 4);
    }
    case QUANT_IQ4_NL: return half(b) * level(bits(b + 2, nibble16, 4));
    case QUANT_IQ4_XS: {
        int sub = i / 32, scale = bits(b + 4, 4 * sub, 4) + 16 * bits(b + 2, 2 * sub, 2) - 32;
        return half(b) * scale * level(bits(b + 8 + 16 * sub, 8 * (i % 16) + i % 32 / 16 * 4, 4));
    }
    case QUANT_MXFP4: return ldexp(fp4(bits(b + 1, nibble16, 4)), b[0] - 127);
    default: abort();
    }
}

static void check_blocks(test_case *t, quant_type type, uint64_t *seed)
{
    enum { N = 4 * QK_K };
    size_t   bytes = 0;
    uint8_t *b = xalloc(N * 4), *odd = xalloc(N * 4 + 1);
    float   *y     = xnew_n(float, N);
    int      block = quant_block(type);
    CHECK(quant_bytes(type, N, &bytes));
    test_random_blocks(type, seed, 3.0f, b, N);
    memcpy(odd + 1, b, bytes);
    quant_dequantise(type, odd + 1, y, N);
    for (int i = 0; i < N; i++) {
        float want = (float)element(type, b + (size_t)(i / block) * quant_block_bytes(type), i % block);
        CHECK_MSG(!memcmp(&y[i], &want, sizeof want) || (y[i] == 0 && want == 0),
                  "%s element %d is %.9g, expected %.9g", quant_name(type), i, y[i], want);
    }
    mem_free(y);
    mem_free(odd);
    mem_free(b);
}

TEST(quant_blocks_are_read_as_defined)
{
    uint64_t seed = 1;
    for (int k = 0; k < N_CODED; k++)
        for (int i = 0; i < 8; i++) check_blocks(t, can[k], &seed);
}

TEST(quant_hand_made_blocks_have_hand_made_values)
{
    float      y[QK_K];
    block_q4_0 a = {.d = 0x3800, .qs = {[0] = 0xf0, [15] = 0x2b}}; /* d = 0.5 */
    quant_dequantise(QUANT_Q4_0, &a, y, QK);
    CHECK(y[0] == -4.0f && y[16] == 3.5f && y[15] == 1.5f && y[31] == -3.0f && y[1] == -4.0f);

    block_q5_1 b = {.d = 0x3c00, .m = 0xc000, .qh = {1, 0, 0, 0x80}, .qs = {[0] = 0x04, [15] = 0xf0}}; /* 1, -2 */
    quant_dequantise(QUANT_Q5_1, &b, y, QK);
    CHECK(y[0] == 18.0f && y[16] == -2.0f && y[15] == -2.0f && y[31] == 29.0f);

    block_q4_K k     = {.d = 0x3c00, .dmin = 0x3c00}; /* sub-block 5: scale 9 + 2 * 16, minimum 3 + 16 */
    k.scales[1]      = 0x80;
    k.scales[5]      = 0x40;
    k.scales[9]      = 0x39;
    k.qs[2 * 32 + 7] = 0xe0; /* sub-block 5 is the upper half of the third group */
    quant_dequantise(QUANT_Q4_K, &k, y, QK_K);
    CHECK(y[5 * 32 + 7] == 41.0f * 14 - 19 && y[5 * 32 + 8] == -19.0f && y[0] == 0.0f);

    block_q6_K s  = {.d = 0x4000}; /* 2 */
    s.scales[15]  = -3;
    s.ql[64 + 63] = 0x70; /* element 255: low bits 7 */
    s.qh[32 + 31] = 0x80; /* and high bits 2 */
    quant_dequantise(QUANT_Q6_K, &s, y, QK_K);
    CHECK(y[255] == 2.0f * -3 * (7 + 32 - 32) && y[254] == 2.0f * -3 * -32 && y[0] == 0.0f);
}

TEST(quant_hand_made_blocks_of_types_that_are_only_read)
{
    float      y[QK_K];
    block_q2_K a  = {.d = 0x3c00, .dmin = 0x4000}; /* 1, 2 */
    a.scales[9]   = 0x35;                          /* scale 5, minimum 3: elements 144 to 159 */
    a.qs[32 + 17] = 0x03;                          /* element 145 */
    quant_dequantise(QUANT_Q2_K, &a, y, QK_K);
    CHECK(y[145] == 5.0f * 3 - 2 * 3 && y[144] == -6.0f && y[0] == 0.0f);

    block_q3_K b    = {.d = 0x3800}; /* 0.5 */
    b.scales[3]     = 0x70;          /* scale 11: low bits 7 */
    b.scales[8 + 3] = 0x30;          /* and high bits 3: 55 - 32 */
    b.qs[32 + 20]   = 0x08;          /* element 128 + 32 + 20: low bits 2 */
    b.hmask[20]     = 0x20;          /* and the third */
    quant_dequantise(QUANT_Q3_K, &b, y, QK_K);
    CHECK(y[180] == 0.5f * 23 * (2 + 4 - 4) && y[181] == 0.5f * 23 * -4);

    block_iq4_nl c = {.d = 0x4000, .qs = {[3] = 0xf0}};
    quant_dequantise(QUANT_IQ4_NL, &c, y, QK);
    CHECK(y[3] == -254.0f && y[19] == 226.0f);

    block_iq4_xs d   = {.d = 0x3c00, .scales_h = 2 << 10}; /* sub-block 5: scale 9 + 2 * 16 - 32 */
    d.scales_l[2]    = 0x90;
    d.qs[5 * 16 + 4] = 0x80;
    quant_dequantise(QUANT_IQ4_XS, &d, y, QK_K);
    CHECK(y[5 * 32 + 4] == 9.0f * -127 && y[5 * 32 + 20] == 9.0f && y[0] == -32.0f * -127);

    block_mxfp4 m = {.e = 130, .qs = {[0] = 0x7f, [1] = 0x19}}; /* 8 */
    quant_dequantise(QUANT_MXFP4, &m, y, QK);
    CHECK(y[0] == -48.0f && y[16] == 48.0f && y[1] == -4.0f && y[17] == 4.0f);
    m.e = 0;
    quant_dequantise(QUANT_MXFP4, &m, y, QK);
    CHECK(y[17] == 0x1p-128f);
}

TEST(quant_plain_floats_are_copied_or_widened)
{
    const float    f[4] = {1.5f, -0.0f, INFINITY, 0x1p-149f};
    const uint16_t b[4] = {0x3fc0, 0x8000, 0x7f80, 0x0001};
    char           odd[1 + sizeof f];
    float          y[4];
    memcpy(odd + 1, f, sizeof f);
    quant_dequantise(QUANT_F32, odd + 1, y, 4);
    CHECK(!memcmp(y, f, sizeof f));
    memcpy(odd + 1, b, sizeof b);
    quant_dequantise(QUANT_BF16, odd + 1, y, 4);
    CHECK(y[0] == 1.5f && y[1] == 0 && signbit(y[1]) && isinf(y[2]) && y[3] == 0x1p-133f);
}

TEST(quant_the_same_values_come_back_from_simple_quantisers)
{
    static const struct {
        quant_type type;
        float      within; /* of the largest value */
    } cases[]     = {{QUANT_F32, 0},          {QUANT_F16, 0x1p-10f},  {QUANT_BF16, 0x1p-8f},
                     {QUANT_Q8_0, 1 / 250.f}, {QUANT_Q4_0, 1 / 13.f}, {QUANT_Q4_1, 1 / 14.f}};
    uint64_t seed = 7;
    float    x[QK_K], y[QK_K], most = 0;
    char     bytes[QK_K * 4];
    for (int i = 0; i < QK_K; i++) most = fmaxf(most, fabsf(x[i] = test_randn(&seed)));
    for (size_t k = 0; k < COUNT(cases); k++) {
        test_quantise(cases[k].type, x, bytes, QK_K);
        quant_dequantise(cases[k].type, bytes, y, QK_K);
        for (int i = 0; i < QK_K; i++) CHECK_NEAR(y[i], x[i], cases[k].within * most);
    }
}

TEST(quant_table_knows_sizes_and_names)
{
    size_t     n;
    quant_type type;
    CHECK(quant_bytes(QUANT_Q4_K, 512, &n) && n == 288);
    CHECK(quant_bytes(QUANT_I64, 3, &n) && n == 24);
    CHECK(!quant_bytes(QUANT_Q4_K, 255, &n));
    CHECK(!quant_bytes(QUANT_F32, UINT64_MAX / 2, &n));
    CHECK(!quant_bytes((quant_type)4, 32, &n) && !quant_bytes((quant_type)1000, 32, &n));
    CHECK(quant_name((quant_type)5) == NULL && quant_name((quant_type)-1) == NULL && quant_name(QUANT_TYPES) == NULL);
    CHECK_INT(quant_block((quant_type)16), 0);
    CHECK_INT(quant_block_bytes((quant_type)16), 0);
    CHECK(quant_parse("q4_k", &type) && type == QUANT_Q4_K);
    CHECK(quant_parse("BF16", &type) && type == QUANT_BF16);
    CHECK(!quant_parse("q3_x", &type) && !quant_parse("", &type) && !quant_parse("q4", &type));
    CHECK(!quant_can_dequantise(QUANT_I32) && !quant_can_dequantise((quant_type)99) && !quant_is_float(QUANT_Q8_0));
    for (size_t k = 0; k < COUNT(can); k++) {
        CHECK(quant_can_dequantise(can[k]));
        CHECK(quant_parse(quant_name(can[k]), &type) && type == can[k]);
    }
}

static bool is_nan16(uint16_t h) { return (h & 0x7c00) == 0x7c00 && (h & 0x3ff); }

TEST(f16_every_value_is_read_and_written_back)
{
    for (uint32_t u = 0; u < 65536; u++) {
        uint8_t bytes[2] = {(uint8_t)u, (uint8_t)(u >> 8)};
        float   f        = f16_to_f32((uint16_t)u);
        if (is_nan16((uint16_t)u)) {
            CHECK_MSG(isnan(f) && is_nan16(f32_to_f16(f)), "%04x is not NaN", u);
            continue;
        }
        CHECK_MSG((double)f == half(bytes) && !signbit(f) == (u < 0x8000), "%04x is %.9g", u, f);
        CHECK_MSG(f32_to_f16(f) == u, "%04x came back as %04x", u, f32_to_f16(f));
    }
}

TEST(f16_rounds_to_nearest_and_ties_to_even)
{
    for (uint32_t u = 0; u < 0x7c00; u++) {
        uint32_t next = u + 1, even = u & 1 ? next : u;
        float    a = f16_to_f32((uint16_t)u), b = next == 0x7c00 ? 65536.0f : f16_to_f32((uint16_t)next);
        float    middle = (a + b) / 2;
        CHECK_MSG(f32_to_f16(middle) == even, "the middle above %04x became %04x", u, f32_to_f16(middle));
        CHECK_MSG(f32_to_f16(nextafterf(middle, 0)) == u, "just below the middle above %04x", u);
        CHECK_MSG(f32_to_f16(nextafterf(middle, INFINITY)) == next, "just above the middle above %04x", u);
        CHECK_MSG(f32_to_f16(-middle) == (even | 0x8000), "the negative middle above %04x", u);
    }
    CHECK_INT(f32_to_f16(INFINITY), 0x7c00);
    CHECK_INT(f32_to_f16(-3e38f), 0xfc00);
    CHECK_INT(f32_to_f16(0x1p-149f), 0);
    CHECK(is_nan16(f32_to_f16(NAN)));
}
