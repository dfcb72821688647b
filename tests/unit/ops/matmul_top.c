#include "ops_test.h"

enum { IN = 256, MAX_OUT = 1003, MAX_ROWS = 33 };

static bool goes_first(const float *y, int a, int b) { return y[a] > y[b] || (y[a] == y[b] && a < b); }

/* The list of row y, as one writes it down: the best that is not yet there, again and again. */
static void check_list(rig *g, const token_logit *got, const float *y, int n_out, int n_top)
{
    test_case *t              = g->t;
    bool       taken[MAX_OUT] = {0};
    for (int i = 0; i < n_top; i++) {
        int best = -1;
        for (int o = 0; o < n_out; o++)
            if (!taken[o] && isfinite(y[o]) && (best < 0 || goes_first(y, o, best))) best = o;
        if (best >= 0) taken[best] = true;
        if (!CHECK_MSG(got[i].id == best, "%s, place %d of %d: %d, expected %d", g->o->name, i, n_top, got[i].id, best))
            return;
        if (best >= 0) SAME_F32(g, &got[i].logit, &y[best], 1);
    }
}

static void check_top(rig *g, const weight *w, dev x, int n_rows, float cap, int n_top)
{
    size_t       n_y = (size_t)n_rows * (size_t)w->n_out, n_list = (size_t)n_rows * (size_t)n_top;
    dev          y = rig_new(g, n_y * sizeof(float)), list = rig_new(g, n_list * sizeof(token_logit));
    token_logit *got = arena_new_n(&g->host, token_logit, n_list);
    OP(g, matmul, y, w, x, n_rows);
    if (cap > 0) OP(g, softcap, y, n_y, cap);
    OP(g, matmul_top, list, w, x, n_rows, cap, n_top);
    g->o->download(g->q, got, list, n_list * sizeof *got);
    float *want = rig_get_f32(g, y, n_y);
    for (int r = 0; r < n_rows; r++)
        check_list(g, got + (size_t)r * (size_t)n_top, want + (size_t)r * (size_t)w->n_out, w->n_out, n_top);
}

/* A cap of 0.01 makes most of the logits the same two numbers. */
static void every_type(rig *g)
{
    static const quant_type types[] = {QUANT_F32,    QUANT_F16,   QUANT_BF16, QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0,
                                       QUANT_Q5_1,   QUANT_Q8_0,  QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K, QUANT_IQ4_NL,
                                       QUANT_IQ4_XS, QUANT_MXFP4, QUANT_Q2_K, QUANT_Q3_K};
    static const struct {
        int   n_out, n_rows, n_top;
        float cap;
    } c[] = {{MAX_OUT, 1, 1, 30},     {MAX_OUT, 1, 64, 0.01f}, {MAX_OUT, 2, 5, 0}, {MAX_OUT, MAX_ROWS, 64, 30},
             {MAX_OUT, 7, 64, 0.01f}, {37, 3, 64, 30},         {1, 1, 1, 0},       {8, 1, 2, 0.01f}};
    if (!g->o->matmul_top) return;
    for (size_t k = 0; k < COUNT(types); k++) {
        dev x = rig_put_randn(g, MAX_ROWS * IN);
        for (size_t i = 0; i < COUNT(c); i++) {
            rig_close_weights(g);
            void *blocks = rig_rand_blocks(g, types[k], (size_t)IN * (size_t)c[i].n_out);
            check_top(g, rig_weight(g, types[k], IN, c[i].n_out, 1, blocks), x, c[i].n_rows, c[i].cap, c[i].n_top);
        }
    }
}
TEST_LONG(matmul_top_is_the_best_of_matmul) { rig_each(t, every_type); }

/* Rows and outputs that are no numbers: they are in no list, and their neighbours do not notice. */
static void no_numbers(rig *g)
{
    if (!g->o->matmul_top) return;
    float *w = rig_randn(g, IN * MAX_OUT), *x = rig_randn(g, 3 * IN);
    x[IN + 7] = NAN;
    for (int o = 0; o < MAX_OUT; o += 5) w[(size_t)o * IN] = o % 2 ? INFINITY : -INFINITY;
    check_top(g, rig_weight(g, QUANT_F32, IN, MAX_OUT, 1, w), rig_put_f32(g, x, 3 * IN), 3, 30, 64);
    for (size_t i = 0; i < IN * MAX_OUT; i++) w[i] = NAN;
    check_top(g, rig_weight(g, QUANT_F32, IN, MAX_OUT, 1, w), rig_put_f32(g, x, 3 * IN), 3, 0, 2);
}
TEST(matmul_top_passes_over_what_is_not_finite) { rig_each(t, no_numbers); }
