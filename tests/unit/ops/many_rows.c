/* Steps of many rows, as prompts have them: a row's numbers are the same, to the bit, as with few rows (promise 1). */
#include "ops_test.h"

#include "base/num.h"

static void reserve_rows(rig *g, int n_rows)
{
    test_case   *t   = g->t;
    queue_limits lim = {.max_rows = n_rows, .max_in = RIG_IN};
    err          e   = {0};
    CHECK_OK(g->o->queue_reserve(g->q, &lim, &e), e);
}

/* Multiplies ROWS rows at once and in pieces of 1, 7 and 64. */
static void matmul_in_pieces(rig *g, quant_type type, int n_in, int n_out, int n_rows)
{
    static const int piece[] = {64, 1, 7};

    size_t        in = (size_t)n_in, out = (size_t)n_out, rows = (size_t)n_rows;
    const weight *w = rig_weight(g, type, n_in, n_out, 1, rig_rand_blocks(g, type, in * out));
    dev           x = rig_put_randn(g, rows * in), y = rig_new(g, rows * out * sizeof(float));
    OP(g, matmul, y, w, x, n_rows);
    float *together = rig_get_f32(g, y, rows * out);
    for (int r = 0, i = 0, n; r < n_rows; r += n, i++) {
        n = min_int(piece[(size_t)i % COUNT(piece)], n_rows - r);
        OP(g, matmul, dev_at_f32(y, (size_t)r * out), w, dev_at_f32(x, (size_t)r * in), n);
    }
    SAME_F32(g, rig_get_f32(g, y, rows * out), together, rows * out);
    rig_close_weights(g);
}

static void all_types_in_pieces(rig *g)
{
    static const quant_type types[] = {QUANT_F32,  QUANT_F16,  QUANT_BF16, QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0,
                                       QUANT_Q5_1, QUANT_Q8_0, QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K};
    reserve_rows(g, 200);
    for (size_t i = 0; i < COUNT(types); i++) matmul_in_pieces(g, types[i], 256, 150, 140);
}
TEST(matmul_of_many_rows_equals_each_alone) { rig_each(t, all_types_in_pieces); }

/* Several segments, an odd number of tiles, few and many outputs, a last piece of a few rows. */
static void sizes_in_pieces(rig *g)
{
    reserve_rows(g, 200);
    matmul_in_pieces(g, QUANT_Q4_0, 1600, 20, 129);
    matmul_in_pieces(g, QUANT_Q4_0, 832, 150, 200);
    matmul_in_pieces(g, QUANT_Q4_0, 64, 300, 128);
    matmul_in_pieces(g, QUANT_F32, 576, 20, 130);
}
TEST(matmul_of_many_rows_equals_each_alone_at_odd_sizes) { rig_each(t, sizes_in_pieces); }

/* Experts with 300, 70, 40, 20 and 10 pairs, and one with none. */
static void experts_in_pieces(rig *g)
{
    enum { IN = 128, OUT = 40, MATS = 6, ROWS = 220, SLOTS = 2, PAIRS = ROWS * SLOTS };
    static const int        count[] = {300, 70, 0, 40, 20, 10};
    static const quant_type types[] = {QUANT_Q4_0, QUANT_F16};
    test_case              *t       = g->t;
    int32_t                 id[PAIRS];
    err                     e = {0};
    for (int m = 0, i = 0; m < MATS; m++)
        for (int k = 0; k < count[m]; k++, i++) id[i * 7 % PAIRS] = m;
    queue_limits lim = {
        .max_rows = ROWS, .max_in = RIG_IN, .max_expert_slots = SLOTS, .n_experts = MATS, .max_expert_in = IN};
    CHECK_OK(g->o->queue_reserve(g->q, &lim, &e), e);
    for (size_t k = 0; k < 2 * COUNT(types); k++) {
        quant_type    type     = types[k / 2];
        bool          per_slot = k % 2;
        int           each     = per_slot ? SLOTS : 1;
        const weight *w        = rig_weight(g, type, IN, OUT, MATS, rig_rand_blocks(g, type, (size_t)MATS * OUT * IN));
        dev           ids      = rig_put_i32(g, id, PAIRS);
        dev           x        = rig_put_randn(g, (size_t)(ROWS * each * IN));
        dev           y        = rig_new(g, PAIRS * OUT * sizeof(float));
        OP(g, matmul_experts, y, w, x, per_slot, ids, ROWS, SLOTS);
        float *together = rig_get_f32(g, y, PAIRS * OUT);
        for (int r = 0, n; r < ROWS; r += n) {
            n = min_int(r % 2 ? 64 : 7, ROWS - r);
            OP(g, matmul_experts, dev_at_f32(y, (size_t)(r * SLOTS * OUT)), w, dev_at_f32(x, (size_t)(r * each * IN)),
               per_slot, dev_at(ids, (size_t)(r * SLOTS) * sizeof(int32_t)), n, SLOTS);
        }
        SAME_F32(g, rig_get_f32(g, y, PAIRS * OUT), together, PAIRS * OUT);
    }
}
TEST(matmul_experts_of_many_rows_equals_each_alone) { rig_each(t, experts_in_pieces); }

/* --- attention -----------------------------------------------------------------------------------*/
enum { PAST = 230, CHAIN = 70, SECOND = 20 }; /* positions before the step, rows of its first and of its second lane */

typedef struct {
    int  head_dim, n_heads, window;
    int  ahead; /* positions that rows see beyond their own, as in an image */
    bool odd;   /* some V is an infinity */
} prompt_shape;

static void store_rows(rig *g, kv_class *c, const step_rows *rows, bool odd)
{
    size_t n = (size_t)(c->n_kv_heads * c->head_dim), all = (size_t)rows->n_rows * n;
    float *v = rig_randn(g, all);
    if (odd) v[all - 3 * n + 1] = INFINITY; /* only the last rows see it */
    OP(g, kv_store, c, 0, rows, rig_put_randn(g, all), rig_put_f32(g, v, all));
}

/* Attention of two chains in one step, with the hint that makes a GPU share their keys, against pieces without it. */
static void prompt_in_pieces(rig *g, const prompt_shape *s)
{
    enum { KV = 1, ROWS = CHAIN + SECOND };
    size_t   Q = (size_t)(s->n_heads * s->head_dim);
    kv_class c = rig_kv(g, cache_types_both(CACHE_F16), 1, KV, s->head_dim, 2, PAST + ROWS);
    int32_t  pos[ROWS], lane[ROWS], slot[ROWS], parent[ROWS], root[ROWS], last[ROWS];
    for (int i = 0; i < ROWS; i++) {
        lane[i] = i >= CHAIN;
        pos[i] = slot[i] = i < CHAIN ? PAST + i : i - CHAIN;
        last[i]          = min_int(pos[i] + s->ahead, lane[i] ? SECOND - 1 : PAST + CHAIN - 1);
        root[i]          = last[i] + 1;
        parent[i]        = -1;
    }
    step_rows all  = {.n_rows     = ROWS,
                      .pos        = rig_put_i32(g, pos, ROWS),
                      .lane       = rig_put_i32(g, lane, ROWS),
                      .slot       = rig_put_i32(g, slot, ROWS),
                      .parent     = rig_put_i32(g, parent, ROWS),
                      .root       = rig_put_i32(g, root, ROWS),
                      .last       = rig_put_i32(g, last, ROWS),
                      .chain_from = 3,
                      .chain_to   = ROWS,
                      .chain_end  = PAST + CHAIN};
    step_rows past = rig_chain(g, 0, 0, PAST);
    dev       q = rig_put_randn(g, ROWS * Q), y = rig_new(g, ROWS * Q * sizeof(float));
    store_rows(g, &c, &past, false);
    store_rows(g, &c, &all, s->odd);
    OP(g, attention, y, q, s->n_heads, &c, 0, &all, 0.2f, s->window);
    float *together = rig_get_f32(g, y, ROWS * Q);
    for (int r = 0, n; r < ROWS; r += n) {
        size_t    at  = (size_t)r * sizeof(int32_t);
        step_rows one = {.pos    = dev_at(all.pos, at),
                         .lane   = dev_at(all.lane, at),
                         .slot   = dev_at(all.slot, at),
                         .parent = dev_at(all.parent, at),
                         .root   = dev_at(all.root, at),
                         .last   = dev_at(all.last, at)};
        one.n_rows = n = min_int(r % 2 ? 1 : 7, ROWS - r);
        OP(g, attention, dev_at_f32(y, (size_t)r * Q), dev_at_f32(q, (size_t)r * Q), s->n_heads, &c, 0, &one, 0.2f,
           s->window);
    }
    SAME_F32(g, rig_get_f32(g, y, ROWS * Q), together, ROWS * Q);
}

static void prompts_in_pieces(rig *g)
{
    static const prompt_shape s[] = {{64, 2, 0, 0, false},  {64, 3, 100, 0, false}, {128, 2, 0, 5, false},
                                     {64, 16, 30, 0, true}, {256, 2, 0, 0, false},  {256, 1, 90, 40, true},
                                     {512, 2, 0, 0, false}};
    reserve_rows(g, 200);
    for (size_t i = 0; i < COUNT(s); i++) prompt_in_pieces(g, &s[i]);
}
TEST(attention_of_a_prompt_equals_each_row_alone) { rig_each(t, prompts_in_pieces); }
