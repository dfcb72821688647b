#include "ops_test.h"

static const quant_type all_types[]   = {QUANT_F32,  QUANT_F16,  QUANT_BF16, QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0,
                                         QUANT_Q5_1, QUANT_Q8_0, QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K};
static const quant_type block_types[] = {QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0, QUANT_Q5_1,
                                         QUANT_Q8_0, QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K};

/* Types that a backend may hold as F16, which rounds the weights: that the cpu does not, cpu_promise1.c sees to. */
static const quant_type loose_types[] = {QUANT_Q2_K, QUANT_Q3_K, QUANT_IQ4_NL, QUANT_IQ4_XS, QUANT_MXFP4};
static const double     LOOSE         = 5e-4;

typedef struct {
    quant_type type;
    int        n_in, n_out, n_mats, n_rows, n_slots;
    bool       x_per_slot, exact_x;
    double     tol; /* of sum |w x| */
} shape;

/* The GPU rounds quantised weights to f16, types with a minimum twice: up to 1e-3 of a term. Floats it does not round. */
static double gpu_allows(quant_type type, double tol) { return quant_is_float(type) ? 1 : 1e-3 / tol; }

/* Rows that int8 blocks hold exactly: integers up to 127 times a power of two that is the same over 256 elements,
 * with a 127 in each 32. What a backend loses by quantising the activations is then nothing. */
static float *exact_rows(rig *g, size_t n)
{
    float *x = arena_new_n(&g->host, float, n);
    float  d = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % 256 == 0) d = ldexpf(1, -6 - (int)(test_rand(&g->rand) % 3));
        x[i] = d * (float)((int)(test_rand(&g->rand) % 255) - 127);
        if (i % 32 == 31) x[i - test_rand(&g->rand) % 32] = test_rand(&g->rand) % 2 ? 127 * d : -127 * d;
    }
    return x;
}

/* allow[o] = tol * sum_i |w[o][i] x[i]|, and enough for the last rounding */
static void allow_terms(float *allow, const float *w, const float *x, int n_in, int n_out, double tol)
{
    for (int o = 0; o < n_out; o++) {
        double sum = 0;
        for (int i = 0; i < n_in; i++) sum += fabs((double)w[(size_t)o * (size_t)n_in + (size_t)i] * x[i]);
        allow[o] = (float)(tol * sum + 1e-30);
    }
}

static const float *dequantised(rig *g, quant_type type, const void *blocks, size_t n)
{
    float *w = arena_new_n(&g->host, float, n);
    quant_dequantise(type, blocks, w, n);
    return w;
}

static rig_result play_matmul(rig *g, const void *arg)
{
    const shape *s   = arg;
    size_t       n_x = (size_t)s->n_rows * (size_t)s->n_in, n_y = (size_t)s->n_rows * (size_t)s->n_out;
    size_t       n_w    = (size_t)s->n_in * (size_t)s->n_out;
    void        *blocks = rig_rand_blocks(g, s->type, n_w);
    float       *x      = s->exact_x ? exact_rows(g, n_x) : rig_randn(g, n_x);
    dev          y      = rig_new(g, n_y * sizeof(float));
    OP(g, matmul, y, rig_weight(g, s->type, s->n_in, s->n_out, 1, blocks), rig_put_f32(g, x, n_x), s->n_rows);

    rig_result r   = rig_give(g, y, n_y, 0, 0);
    r.gpu_allows   = s->tol < 1e-3 ? gpu_allows(s->type, s->tol) : 1;
    const float *w = dequantised(g, s->type, blocks, n_w);
    for (int i = 0; i < s->n_rows; i++)
        allow_terms(r.allow + (size_t)i * (size_t)s->n_out, w, x + (size_t)i * (size_t)s->n_in, s->n_in, s->n_out,
                    s->tol);
    return r;
}

TEST(matmul_agrees_with_ref)
{
    static const int rows[] = {1, 2, 3, 7, 33};
    for (size_t k = 0; k < COUNT(all_types); k++)
        for (size_t i = 0; i < COUNT(rows); i++) {
            shape s = {all_types[k], 512, 37, 1, rows[i], 0, false, true, 1e-5};
            rig_compare(t, play_matmul, &s);
        }
}

TEST(matmul_agrees_with_ref_at_odd_sizes)
{
    static const struct {
        quant_type type;
        int        n_in, n_out;
    } c[] = {{QUANT_F32, 1, 1},     {QUANT_F32, 8, 3},     {QUANT_F32, 257, 5},  {QUANT_F16, 100, 64},
             {QUANT_F16, 257, 33},  {QUANT_BF16, 63, 7},   {QUANT_BF16, 257, 1}, {QUANT_BF16, 5120, 9},
             {QUANT_Q8_0, 32, 1},   {QUANT_Q4_0, 64, 257}, {QUANT_Q4_1, 96, 2},  {QUANT_Q5_0, 160, 31},
             {QUANT_Q5_1, 2816, 6}, {QUANT_Q4_0, 5120, 8}, {QUANT_Q4_K, 256, 1}, {QUANT_Q5_K, 768, 15},
             {QUANT_Q6_K, 5120, 17}};
    for (size_t i = 0; i < COUNT(c); i++)
        for (int rows = 1; rows <= 9; rows += 4) {
            shape s = {c[i].type, c[i].n_in, c[i].n_out, 1, rows, 0, false, true, 1e-5};
            rig_compare(t, play_matmul, &s);
        }
}

/* Activations that int8 cannot hold exactly. */
TEST(matmul_stays_close_when_activations_are_rounded)
{
    for (size_t k = 0; k < COUNT(block_types); k++) {
        shape s = {block_types[k], 1024, 33, 1, 5, 0, false, false, 0.01};
        rig_compare(t, play_matmul, &s);
    }
}

/* Blocks of Q4_0 whose scales span three decades in one tensor, all of them tiny, or all of them large: small blocks
 * keep their precision, and nothing overflows. arg: the exponent of the largest scale. */
static rig_result play_scales(rig *g, const void *arg)
{
    enum { IN = 512, OUT = 33, ROWS = 3, BYTES = 18 };
    double         tol    = 1e-5;
    unsigned char *blocks = rig_rand_blocks(g, QUANT_Q4_0, IN * OUT);
    float         *x      = exact_rows(g, ROWS * IN);
    for (int i = 0; i < IN * OUT / 32; i++) {
        int      small = i / (IN / 32) % 11;
        uint16_t d     = f32_to_f16(ldexpf(1 + (float)(i % 16) / 16, *(const int *)arg - small));
        memcpy(blocks + (size_t)i * BYTES, &d, sizeof d);
    }
    dev y = rig_new(g, ROWS * OUT * sizeof(float));
    OP(g, matmul, y, rig_weight(g, QUANT_Q4_0, IN, OUT, 1, blocks), rig_put_f32(g, x, ROWS * IN), ROWS);
    rig_result r   = rig_give(g, y, ROWS * OUT, 0, 0);
    r.gpu_allows   = gpu_allows(QUANT_Q4_0, tol);
    const float *w = dequantised(g, QUANT_Q4_0, blocks, IN * OUT);
    for (int i = 0; i < ROWS; i++) allow_terms(r.allow + i * OUT, w, x + i * IN, IN, OUT, tol);
    return r;
}

TEST(matmul_keeps_blocks_of_very_different_scales)
{
    static const int largest[] = {-12, -6, 0, 14};
    for (size_t i = 0; i < COUNT(largest); i++) rig_compare(t, play_scales, &largest[i]);
}

/* The largest integers on both sides, all of one sign: sums of products in 16 bits must not saturate. */
typedef struct {
    quant_type type;
    int        byte;
    double     tol;
} extreme;

static rig_result play_extremes(rig *g, const void *arg)
{
    enum { IN = 512, OUT = 9, ROWS = 4 };
    const extreme *s      = arg;
    void          *blocks = rig_flat_blocks(g, s->type, IN * OUT, s->byte);
    float         *x      = arena_new_n(&g->host, float, ROWS *IN);
    for (int i = 0; i < ROWS * IN; i++) x[i] = (i / IN % 2 ? 127.0f : -127.0f) * (i / IN > 1 && i % 3 ? -1 : 1);
    dev y = rig_new(g, ROWS * OUT * sizeof(float));
    OP(g, matmul, y, rig_weight(g, s->type, IN, OUT, 1, blocks), rig_put_f32(g, x, ROWS * IN), ROWS);
    rig_result r   = rig_give(g, y, ROWS * OUT, 0, 0);
    r.gpu_allows   = gpu_allows(s->type, s->tol);
    const float *w = dequantised(g, s->type, blocks, IN * OUT);
    for (int i = 0; i < ROWS; i++) allow_terms(r.allow + i * OUT, w, x + i * IN, IN, OUT, s->tol);
    return r;
}

TEST(matmul_holds_the_largest_integers)
{
    static const int bytes[] = {0x00, 0x0F, 0x7F, 0x80, 0x81, 0xF0, 0xFF};
    for (size_t i = 0; i < COUNT(bytes); i++) {
        for (size_t k = 0; k < COUNT(block_types); k++)
            rig_compare(t, play_extremes, &(extreme){block_types[k], bytes[i], 1e-5});
        for (size_t k = 0; k < COUNT(loose_types); k++)
            rig_compare(t, play_extremes, &(extreme){loose_types[k], bytes[i], LOOSE});
    }
}

/* A row that overflowed says so, and its neighbours do not notice. */
static void broken_row(rig *g)
{
    enum { IN = 256, OUT = 11, ROWS = 3 };
    static const float broken[] = {NAN, INFINITY, -INFINITY};

    test_case *t = g->t;
    for (size_t k = 0; k < COUNT(all_types); k++) {
        const weight *w = rig_weight(g, all_types[k], IN, OUT, 1, rig_rand_blocks(g, all_types[k], IN * OUT));
        float        *x = rig_randn(g, ROWS * IN);
        dev           y = rig_new(g, ROWS * OUT * sizeof(float));
        OP(g, matmul, y, w, rig_put_f32(g, x, ROWS * IN), ROWS);
        float *whole = rig_get_f32(g, y, ROWS * OUT);
        for (size_t i = 0; i < COUNT(broken); i++) {
            x[IN + 77] = broken[i];
            OP(g, matmul, y, w, rig_put_f32(g, x, ROWS * IN), ROWS);
            float *got = rig_get_f32(g, y, ROWS * OUT);
            SAME_F32(g, got, whole, OUT);
            SAME_F32(g, got + 2 * OUT, whole + 2 * OUT, OUT);
            for (int o = 0; o < OUT; o++) CHECK(!isfinite(got[OUT + o]));
        }
    }
}
TEST(matmul_shows_a_broken_row_and_only_that) { rig_each(t, broken_row); }

/* Promise 1: a row's numbers do not depend on how many rows share the call, nor on its place among them. */
static void rows_alone(rig *g)
{
    enum { IN = 512, OUT = 67, ROWS = 33 };
    for (size_t k = 0; k < COUNT(all_types); k++) {
        quant_type    type = all_types[k];
        const weight *w    = rig_weight(g, type, IN, OUT, 1, rig_rand_blocks(g, type, IN * OUT));
        dev           x = rig_put_randn(g, ROWS * IN), y = rig_new(g, ROWS * OUT * sizeof(float));
        OP(g, matmul, y, w, x, ROWS);
        float *together = rig_get_f32(g, y, ROWS * OUT);
        for (int r = 0, n; r < ROWS; r += n) {
            n = r % 3 + 1 < ROWS - r ? r % 3 + 1 : ROWS - r;
            OP(g, matmul, dev_at_f32(y, (size_t)r * OUT), w, dev_at_f32(x, (size_t)r * IN), n);
        }
        SAME_F32(g, rig_get_f32(g, y, ROWS * OUT), together, ROWS * OUT);
    }
}
TEST(matmul_rows_are_their_own) { rig_each(t, rows_alone); }

/* 3 x 2 by hand, and zeros: a block whose largest activation is 0 has no scale to divide by. */
static void small_matmul(rig *g)
{
    static const float w[] = {1, 2, 3, 4, 5, 6}, x[] = {1, 10, -1, 0.5f, 0, 0},
                       want[] = {21, 43, 65, 0, -1, -2, 0, 0, 0};

    dev y = rig_new(g, sizeof want);
    OP(g, matmul, y, rig_weight(g, QUANT_F32, 2, 3, 1, w), rig_put_f32(g, x, 6), 3);
    float *got = rig_get_f32(g, y, 9);
    for (int i = 0; i < 9; i++) NEAR(g, got[i], want[i], 1e-5);

    const weight *q = rig_weight(g, QUANT_Q8_0, 64, 4, 1, rig_rand_blocks(g, QUANT_Q8_0, 256));
    dev           z = rig_put_randn(g, 4);
    OP(g, matmul, z, q, rig_new(g, 64 * sizeof(float)), 1);
    got = rig_get_f32(g, z, 4);
    for (int i = 0; i < 4; i++) NEAR(g, got[i], 0, 0);
}
TEST(matmul_by_hand) { rig_each(t, small_matmul); }

static void sample_of_each_type(rig *g)
{
    test_case *t = g->t;
    for (size_t k = 0; k < COUNT(all_types); k++) {
        quant_type    type = all_types[k];
        const weight *w    = rig_weight(g, type, 256, 2, 1, rig_rand_blocks(g, type, 512));
        CHECK(w->type == type && w->n_in == 256 && w->n_out == 2 && w->n_mats == 1 && w->bytes > 0);
    }
    weight    *w = NULL;
    err        e = {0};
    float      x[64];
    weight_src odd = {QUANT_Q8_0, 33, 1, 1, .data = x}, none = {QUANT_F32, 4, 0, 1, .data = x},
               unknown = {QUANT_I32, 4, 4, 1, .data = x};
    CHECK_FAILS(g->o->weight_load(g->o, &w, &odd, &e), e, "33");
    CHECK_FAILS(g->o->weight_load(g->o, &w, &none, &e), e, "0");
    CHECK_FAILS(g->o->weight_load(g->o, &w, &unknown, &e), e, "type");
    CHECK(!w);
}
TEST(weights_say_what_they_are) { rig_each(t, sample_of_each_type); }

/* --- experts ---------------------------------------------------------------------------------------- */
static rig_result play_experts(rig *g, const void *arg)
{
    const shape *s       = arg;
    size_t       n_pairs = (size_t)s->n_rows * (size_t)s->n_slots, n_w = (size_t)s->n_in * (size_t)s->n_out;
    size_t       n_x    = (s->x_per_slot ? n_pairs : (size_t)s->n_rows) * (size_t)s->n_in;
    size_t       n_y    = n_pairs * (size_t)s->n_out;
    void        *blocks = rig_rand_blocks(g, s->type, n_w * (size_t)s->n_mats);
    float       *x      = exact_rows(g, n_x);
    int32_t     *id     = rig_randint(g, n_pairs, s->n_mats);
    dev          y      = rig_new(g, n_y * sizeof(float));
    OP(g, matmul_experts, y, rig_weight(g, s->type, s->n_in, s->n_out, s->n_mats, blocks), rig_put_f32(g, x, n_x),
       s->x_per_slot, rig_put_i32(g, id, n_pairs), s->n_rows, s->n_slots);

    rig_result r   = rig_give(g, y, n_y, 0, 0);
    r.gpu_allows   = s->tol < 1e-3 ? gpu_allows(s->type, s->tol) : 1;
    const float *w = dequantised(g, s->type, blocks, n_w * (size_t)s->n_mats);
    for (size_t i = 0; i < n_pairs; i++)
        allow_terms(r.allow + i * (size_t)s->n_out, w + (size_t)id[i] * n_w,
                    x + (s->x_per_slot ? i : i / (size_t)s->n_slots) * (size_t)s->n_in, s->n_in, s->n_out, s->tol);
    return r;
}

TEST(matmul_experts_agrees_with_ref)
{
    for (size_t k = 0; k < COUNT(all_types); k++)
        for (int per_slot = 0; per_slot < 2; per_slot++) {
            shape a = {all_types[k], 256, 37, 5, 1, 2, per_slot, true, 1e-5};
            shape b = {all_types[k], 256, 6, 128, 33, 8, per_slot, true, 1e-5};
            rig_compare(t, play_experts, &a);
            rig_compare(t, play_experts, &b);
        }
}

TEST(matmul_agrees_with_ref_on_loose_types)
{
    static const int shapes[][3] = {{256, 1, 1}, {512, 37, 2}, {768, 8, 9}, {2816, 67, 33}};
    for (size_t k = 0; k < COUNT(loose_types); k++)
        for (size_t i = 0; i < COUNT(shapes); i++) {
            shape s = {loose_types[k], shapes[i][0], shapes[i][1], 1, shapes[i][2], 0, false, true, LOOSE};
            shape x = {loose_types[k], 256, 6, 128, shapes[i][2], 8, i % 2, true, LOOSE};
            rig_compare(t, play_matmul, &s);
            rig_compare(t, play_experts, &x);
        }
}

/* Each (row, slot) is the same, to the bit, as that expert's matrix alone. */
static void experts_are_matmuls(rig *g)
{
    enum { IN = 256, OUT = 19, MATS = 4, ROWS = 7, SLOTS = 3 };
    static const quant_type types[] = {QUANT_BF16, QUANT_Q4_0, QUANT_Q6_K};
    for (size_t k = 0; k < COUNT(types); k++) {
        char         *blocks = rig_rand_blocks(g, types[k], (size_t)MATS * OUT * IN);
        size_t        bytes  = (size_t)OUT * IN / (size_t)quant_block(types[k]) * quant_block_bytes(types[k]);
        const weight *all    = rig_weight(g, types[k], IN, OUT, MATS, blocks), *one[MATS];
        int32_t      *id     = rig_randint(g, ROWS * SLOTS, MATS);
        dev           x = rig_put_randn(g, ROWS * IN), y = rig_new(g, ROWS * SLOTS * OUT * sizeof(float));
        dev           z = rig_new(g, OUT * sizeof(float));
        OP(g, matmul_experts, y, all, x, false, rig_put_i32(g, id, ROWS * SLOTS), ROWS, SLOTS);
        float *got = rig_get_f32(g, y, ROWS * SLOTS * OUT);
        for (int m = 0; m < MATS; m++) one[m] = rig_weight(g, types[k], IN, OUT, 1, blocks + (size_t)m * bytes);
        for (int i = 0; i < ROWS * SLOTS; i++) {
            OP(g, matmul, z, one[id[i]], dev_at_f32(x, (size_t)(i / SLOTS) * IN), 1);
            SAME_F32(g, got + (size_t)i * OUT, rig_get_f32(g, z, OUT), OUT);
        }
    }
}
TEST(matmul_experts_equals_single_matmuls) { rig_each(t, experts_are_matmuls); }

/* --- what a backend keeps between matmuls ------------------------------------------------------------*/
enum { KEPT_ROWS = 3, KEPT_IN = 64, KEPT_OUT = 32, KEPT_N = KEPT_ROWS * KEPT_IN };

/* y of x as it is now, and of a copy that no backend has seen. */
static void check_fresh(rig *g, const weight *w, dev x)
{
    dev y = rig_new(g, KEPT_ROWS * KEPT_OUT * sizeof(float)), z = rig_new(g, KEPT_ROWS * KEPT_OUT * sizeof(float));
    OP(g, matmul, y, w, x, KEPT_ROWS);
    dev copy = rig_put_f32(g, rig_get_f32(g, x, KEPT_N), KEPT_N);
    OP(g, matmul, z, w, copy, KEPT_ROWS);
    float *a = rig_get_f32(g, y, KEPT_ROWS * KEPT_OUT), *b = rig_get_f32(g, z, KEPT_ROWS * KEPT_OUT);
    SAME_F32(g, a, b, KEPT_ROWS * KEPT_OUT);
}

/* All or a part of what was just multiplied changes, by every op that writes rows. */
static void matmul_after_writes(rig *g)
{
    const weight *w =
        rig_weight(g, QUANT_Q4_0, KEPT_IN, KEPT_OUT, 1, rig_rand_blocks(g, QUANT_Q4_0, KEPT_IN * KEPT_OUT));
    const weight *square =
        rig_weight(g, QUANT_Q8_0, KEPT_IN, KEPT_IN, 1, rig_rand_blocks(g, QUANT_Q8_0, KEPT_IN * KEPT_IN));
    dev x = rig_put_randn(g, KEPT_N), other = rig_put_randn(g, KEPT_N), scale = rig_put_randn(g, KEPT_IN);
    dev ids = rig_put_i32(g, (int32_t[]){2, 1, 0}, 3), y = rig_new(g, KEPT_N * sizeof(float));
    for (int way = 0; way < 10; way++) {
        OP(g, matmul, y, w, x, KEPT_ROWS);
        switch (way) {
        case 0: g->o->upload(g->q, dev_at_f32(x, 5), rig_randn(g, 1), sizeof(float)); break;
        case 1: OP(g, add, dev_at_f32(x, KEPT_IN), other, other, 7, 0.5f); break;
        case 2: OP(g, rms_norm, x, other, scale, KEPT_ROWS, KEPT_IN, 1e-6f); break;
        case 3: OP(g, rms_norm, x, x, (dev){0}, KEPT_ROWS * 4, KEPT_IN / 4, 1e-6f); break;
        case 4: OP(g, rms_norm_add, x, other, x, scale, KEPT_ROWS, KEPT_IN, 1e-6f, 2); break;
        case 5: OP(g, gated, x, other, KEPT_IN, other, KEPT_IN, KEPT_ROWS, KEPT_IN, ACT_SILU); break;
        case 6: OP(g, softcap, dev_at_f32(x, KEPT_N - 1), 1, 0.1f); break;
        case 7: OP(g, copy_rows, x, KEPT_IN, other, KEPT_IN, ids, 1, KEPT_IN / 2); break;
        case 8: OP(g, embed, x, square, ids, KEPT_ROWS, 2); break;
        case 9: OP(g, matmul, x, square, other, KEPT_ROWS); break;
        }
        check_fresh(g, w, x);
        OP(g, rms_norm, x, other, scale, KEPT_ROWS, KEPT_IN, 1e-6f); /* quantised on the way, then multiplied twice */
        OP(g, rms_norm, other, other, (dev){0}, KEPT_ROWS * 2, KEPT_IN / 2, 1e-6f);
        check_fresh(g, w, x);
    }
}
TEST(matmul_sees_what_was_written) { rig_each(t, matmul_after_writes); }

/* Heads side by side, of few rows in a long cache and of one that is short. */
static void matmul_after_attention(rig *g)
{
    enum { HEADS = 2, DIM = KEPT_IN / HEADS };
    const weight *w =
        rig_weight(g, QUANT_Q4_0, KEPT_IN, KEPT_OUT, 1, rig_rand_blocks(g, QUANT_Q4_0, KEPT_IN * KEPT_OUT));
    dev x = rig_put_randn(g, KEPT_N), k = rig_put_randn(g, KEPT_ROWS * DIM), y = rig_new(g, KEPT_N * sizeof(float));
    for (int n_slots = 32; n_slots <= 320; n_slots *= 10) {
        kv_class  kv   = rig_kv(g, cache_types_both(CACHE_F16), 1, 1, DIM, 1, n_slots);
        step_rows rows = rig_chain(g, 0, 0, KEPT_ROWS);
        OP(g, matmul, y, w, x, KEPT_ROWS);
        OP(g, kv_store, &kv, 0, &rows, k, k);
        dev heads = rig_put_randn(g, KEPT_N);
        OP(g, attention, x, heads, HEADS, &kv, 0, &rows, 1, 0);
        check_fresh(g, w, x);
    }
}
TEST(matmul_sees_what_attention_wrote) { rig_each(t, matmul_after_attention); }

/* Rows whose experts change between two stacks. */
static void experts_after_writes(rig *g)
{
    enum { MATS = 4, SLOTS = 2, PAIRS = KEPT_ROWS * SLOTS };
    const void   *data = rig_rand_blocks(g, QUANT_Q4_0, (size_t)MATS * KEPT_IN * KEPT_OUT);
    const weight *w    = rig_weight(g, QUANT_Q4_0, KEPT_IN, KEPT_OUT, MATS, data);
    dev           x = rig_put_randn(g, KEPT_N), y = rig_new(g, PAIRS * KEPT_OUT * sizeof(float));
    dev           z = rig_new(g, PAIRS * KEPT_OUT * sizeof(float)), logits = rig_put_randn(g, KEPT_ROWS * MATS);
    dev weights = rig_new(g, PAIRS * sizeof(float)), ids = rig_put_i32(g, (int32_t[PAIRS]){0, 1, 2, 3, 0, 2}, PAIRS);
    for (int way = 0; way < 2; way++) {
        OP(g, matmul_experts, y, w, x, false, ids, KEPT_ROWS, SLOTS);
        if (way)
            OP(g, router, ids, weights, logits, (dev){0}, KEPT_ROWS, MATS, SLOTS);
        else
            g->o->upload(g->q, dev_at(ids, 4), (int32_t[]){3}, sizeof(int32_t));
        OP(g, matmul_experts, y, w, x, false, ids, KEPT_ROWS, SLOTS);
        dev fresh = rig_put_i32(g, rig_get_i32(g, ids, PAIRS), PAIRS);
        OP(g, matmul_experts, z, w, x, false, fresh, KEPT_ROWS, SLOTS);
        float *a = rig_get_f32(g, y, PAIRS * KEPT_OUT), *b = rig_get_f32(g, z, PAIRS * KEPT_OUT);
        SAME_F32(g, a, b, PAIRS * KEPT_OUT);
    }
}
TEST(matmul_experts_sees_what_was_written) { rig_each(t, experts_after_writes); }
