/* Joined ops against the single ops of ref. */
#include "ops_test.h"

#include "ops/joined.h"

enum { ROWS = 5 };

static rig_result play_matmuls(rig *g, const void *arg)
{
    static const quant_type types[JOINED_MATMULS] = {QUANT_F32, QUANT_F32, QUANT_BF16, QUANT_BF16};
    enum { IN = 160, OUT = 37 };
    const int    *n_w = arg;
    const weight *w[JOINED_MATMULS];
    dev           x = rig_put_randn(g, ROWS * IN), all = rig_new(g, JOINED_MATMULS * ROWS * OUT * sizeof(float));
    dev           y[JOINED_MATMULS];
    for (int i = 0; i < *n_w; i++) {
        y[i] = dev_at_f32(all, (size_t)i * ROWS * OUT);
        w[i] = rig_weight(g, types[i], IN, OUT, 1, rig_rand_blocks(g, types[i], (size_t)IN * OUT));
    }
    ops_matmuls(g->o, g->q, y, w, *n_w, x, ROWS);
    return rig_give(g, all, (size_t)*n_w * ROWS * OUT, 1e-4, 1e-4);
}

TEST(joined_matmuls_agree_with_ref)
{
    for (int n = 1; n <= JOINED_MATMULS; n++) rig_compare(t, play_matmuls, &n);
}

typedef struct {
    int  n, n_slots;
    bool norm;
} sum_shape;

static rig_result play_sums(rig *g, const void *arg)
{
    const sum_shape *s = arg;
    size_t           n = (size_t)s->n, all = ROWS * n;
    dev              out = rig_new(g, 2 * all * sizeof(float));
    sum_rows         c   = {.y       = out,
                            .res     = rig_put_randn(g, all),
                            .z       = rig_put_randn(g, all),
                            .out     = s->norm ? dev_at_f32(out, all) : (dev){0},
                            .w       = rig_put_randn(g, n),
                            .n_slots = s->n_slots,
                            .n       = s->n,
                            .eps     = 1e-6f};
    if (s->n_slots) {
        c.slots  = rig_put_randn(g, all * (size_t)s->n_slots);
        c.slot_w = rig_put_randn(g, (size_t)(ROWS * s->n_slots));
        c.shared = rig_put_randn(g, all);
        c.gate   = rig_put_randn(g, ROWS);
    }
    ops_sums(g->o, g->q, &c, ROWS);
    return rig_give(g, out, 2 * all, 1e-4, 1e-4);
}

TEST(joined_sums_agree_with_ref)
{
    static const sum_shape s[] = {{64, 0, true}, {257, 0, false}, {2048, 8, true}, {320, 3, false}, {5120, 2, true}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_sums, &s[i]);
}

/* The rows are multiplied, as the model does: the GPU then reads the f16 form that the op wrote. */
static rig_result play_gated_norm(rig *g, const void *arg)
{
    const sum_shape *s   = arg; /* n_slots heads of n */
    int              n   = s->n * s->n_slots;
    size_t           all = (size_t)(ROWS * n);
    dev              x = rig_put_randn(g, all), gate = rig_put_randn(g, all), w = rig_put_randn(g, (size_t)s->n);
    dev              y = rig_new(g, ROWS * 32 * sizeof(float));
    const weight    *m = rig_weight(g, QUANT_F32, n, 32, 1, rig_rand_blocks(g, QUANT_F32, 32 * (size_t)n));
    ops_gated_norm(g->o, g->q, gate, x, w, gate, ROWS, s->n_slots, s->n, 1e-6f, s->norm ? ACT_SILU : ACT_SIGMOID);
    OP(g, matmul, y, m, gate, ROWS);
    return rig_give(g, y, ROWS * 32, 1e-3, 1e-3);
}

TEST(joined_gated_norm_agrees_with_ref)
{
    static const sum_shape s[] = {{8, 1, true}, {16, 6, false}, {40, 4, true}, {64, 8, true}, {128, 32, true}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_gated_norm, &s[i]);
}

/* Gates that stand between the heads of other rows, as queries do. */
static rig_result play_gated_heads(rig *g, const void *arg)
{
    const sum_shape *s = arg;
    int              n = s->n * s->n_slots, rows = s->norm ? 1 : ROWS;
    dev              x = rig_put_randn(g, (size_t)(rows * n)), both = rig_put_randn(g, (size_t)(2 * rows * n));
    dev              y = rig_new(g, (size_t)(rows * n) * sizeof(float)), z = rig_new(g, ROWS * 32 * sizeof(float));
    const weight    *m = rig_weight(g, QUANT_F32, n, 32, 1, rig_rand_blocks(g, QUANT_F32, 32 * (size_t)n));
    ops_gated_heads(g->o, g->q, y, dev_at_f32(both, (size_t)s->n), 2 * s->n, x, rows, s->n_slots, s->n, ACT_SIGMOID);
    OP(g, matmul, z, m, y, rows);
    return rig_give(g, z, (size_t)rows * 32, 1e-3, 1e-3);
}

TEST(joined_gated_heads_agree_with_ref)
{
    static const sum_shape s[] = {{8, 1, true}, {16, 6, false}, {40, 4, true}, {256, 24, false}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_gated_heads, &s[i]);
}

typedef struct {
    quant_type type;
    int        n_in, n_ff;
} gate_shape;

/* Runs gate, up and the matrix that follows for n_rows rows, joined or by the single ops; returns its output. */
static float *run_gate(rig *g, const weight *const w[3], dev x, int n_rows, bool joined)
{
    size_t ff = (size_t)w[0]->n_out, in = (size_t)w[0]->n_in;
    ops    single  = *g->o;
    single.gate_up = NULL;
    dev y = rig_new(g, (size_t)n_rows * ff * sizeof(float)), up = rig_new(g, (size_t)n_rows * ff * sizeof(float));
    dev out = rig_new(g, (size_t)n_rows * in * sizeof(float));
    ops_gate_up(joined ? g->o : &single, g->q, y, up, w[0], w[1], x, n_rows, ACT_GELU_TANH);
    g->o->matmul(g->q, out, w[2], y, n_rows);
    return rig_get_f32(g, out, (size_t)n_rows * in);
}

static void gates_joined(rig *g)
{
    enum { MOST = 3 };
    static const gate_shape s[] = {{QUANT_Q4_0, 256, 704},
                                   {QUANT_Q4_0, 1600, 96},
                                   {QUANT_Q8_0, 96, 8000},
                                   {QUANT_Q4_K, 256, 1536},
                                   {QUANT_F16, 96, 48}};
    for (size_t i = 0; i < COUNT(s); i++) {
        size_t        in = (size_t)s[i].n_in, ff = (size_t)s[i].n_ff;
        const weight *w[3];
        for (int k = 0; k < 3; k++)
            w[k] = rig_weight(g, s[i].type, k < 2 ? s[i].n_in : s[i].n_ff, k < 2 ? s[i].n_ff : s[i].n_in, 1,
                              rig_rand_blocks(g, s[i].type, in * ff));
        dev    x   = rig_put_randn(g, MOST * in);
        float *all = run_gate(g, w, x, MOST, false);
        for (int n = 1; n <= MOST; n++)
            for (size_t row = 0; row + (size_t)n <= MOST; row++)
                SAME_F32(g, run_gate(g, w, dev_at_f32(x, row * in), n, true), all + row * in, (size_t)n * in);
        rig_close_weights(g);
    }
}
TEST(joined_gates_are_the_single_ops) { rig_each(t, gates_joined); }

typedef struct {
    int  n, n_slots, n_outs;
    bool parts;
} norm_shape;

static rig_result play_norms(rig *g, const void *arg)
{
    const norm_shape *s = arg;
    size_t            n = (size_t)s->n, all = ROWS * n;
    dev               out = rig_new(g, (1 + JOINED_NORMS) * all * sizeof(float));
    norm_rows         c   = {.y       = out,
                             .res     = rig_put_randn(g, all),
                             .z       = rig_put_randn(g, all),
                             .w       = rig_put_randn(g, n),
                             .parts   = s->parts,
                             .w_z     = rig_put_randn(g, n),
                             .w_slots = rig_put_randn(g, n),
                             .slots   = rig_put_randn(g, all * (size_t)s->n_slots),
                             .slot_w  = rig_put_randn(g, (size_t)(ROWS * s->n_slots)),
                             .sum     = rig_new(g, all * sizeof(float)),
                             .n_slots = s->n_slots,
                             .n       = s->n,
                             .n_outs  = s->n_outs,
                             .scale   = 0.75f,
                             .eps     = 1e-6f};
    for (int i = 0; i < s->n_outs; i++) {
        c.out[i].y = dev_at_f32(out, (size_t)(1 + i) * all);
        c.out[i].w = rig_put_randn(g, n);
    }
    ops_norms(g->o, g->q, &c, ROWS);
    return rig_give(g, out, (size_t)(1 + s->n_outs) * all, 1e-4, 1e-4);
}

TEST(joined_norms_agree_with_ref)
{
    static const norm_shape s[] = {
        {64, 1, 0, false}, {257, 3, 1, true}, {2816, 8, 3, true}, {5376, 2, 2, false}, {6200, 2, 3, true}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_norms, &s[i]);
}

typedef struct {
    int         dim, n_heads, n_kv_heads;
    bool        stores, norm_v, k_as_v;
    cache_types type;
    int         n_rotated; /* 0: all; otherwise with sections */
} head_shape;

/* The rotated queries, then what attention finds in the cache. */
static rig_result play_heads(rig *g, const void *arg)
{
    const head_shape *s  = arg;
    size_t            nq = (size_t)(ROWS * s->n_heads * s->dim), nk = (size_t)(ROWS * s->n_kv_heads * s->dim);
    kv_class          kv   = rig_kv(g, s->type, 2, s->n_kv_heads, s->dim, 1, 64);
    step_rows         rows = rig_chain(g, 0, 3, ROWS), before = rig_chain(g, 0, 0, 3);
    dev               both = rig_new(g, 2 * nq * sizeof(float)), old = rig_put_randn(g, 3 * nk);
    rope_params       rope = {.n_dims = s->n_rotated ? s->n_rotated : s->dim};
    int               half = rope.n_dims / 2;
    float            *freq = arena_new_n(&g->host, float, half);
    for (int i = 0; i < half; i++) freq[i] = powf(10000, -(float)i / (float)half);
    rope.freq = rig_put_f32(g, freq, (size_t)half);
    if (s->n_rotated) {
        rope.section     = rig_put_i32(g, rig_randint(g, (size_t)half, ROPE_SECTIONS), (size_t)half);
        rows.section_pos = rig_put_i32(g, rig_randint(g, ROWS * ROPE_SECTIONS, 900), ROWS * ROPE_SECTIONS);
    }
    float *x = rig_randn(g, nq);
    g->o->upload(g->q, both, x, nq * sizeof(float));
    head_rows h = {.q       = both,
                   .w_q     = rig_put_randn(g, (size_t)s->dim),
                   .w_k     = rig_put_randn(g, (size_t)s->dim),
                   .rope    = rope,
                   .n_heads = s->n_heads,
                   .layer   = 1,
                   .norm_v  = s->norm_v,
                   .k_as_v  = s->k_as_v,
                   .c       = &kv,
                   .eps     = 1e-6f};
    dev       k = rig_put_randn(g, nk), v = rig_put_randn(g, nk);
    if (s->stores) h.k = k, h.v = v;
    OP(g, kv_store, &kv, 1, &before, old, old);
    if (!s->stores) OP(g, kv_store, &kv, 1, &rows, k, v);
    ops_heads(g->o, g->q, &h, &rows);
    OP(g, attention, dev_at_f32(both, nq), both, s->n_heads, &kv, 1, &rows, 0.1f, 0);
    return rig_give(g, both, 2 * nq, 2e-3, 4e-3);
}

TEST(joined_heads_agree_with_ref)
{
    static const head_shape s[] = {{32, 4, 2, true, true, false, RIG_F32, 0},
                                   {256, 2, 1, true, true, true, RIG_F16, 0},
                                   {512, 2, 2, false, true, false, RIG_F16, 0},
                                   {64, 3, 3, true, false, false, RIG_F32, 0},
                                   {256, 4, 2, true, false, false, RIG_F16, 64},
                                   {128, 2, 1, true, false, false, {CACHE_F16, CACHE_F32}, 98},
                                   {64, 4, 2, true, true, false, {CACHE_F32, CACHE_F16}, 0},
                                   {512, 4, 2, true, true, true, {CACHE_Q8_0, CACHE_Q4_0}, 0},
                                   {256, 4, 2, true, true, false, {CACHE_TQ3, CACHE_Q8_0}, 64},
                                   {128, 2, 1, true, false, false, {CACHE_F16, CACHE_TQ3}, 0},
                                   {64, 3, 3, true, true, false, {CACHE_Q4_0, CACHE_F32}, 0}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_heads, &s[i]);
}

/* Heads, attention and the matrix that reads its outputs, for a chain of CHAIN rows in steps of n. */
enum { CHAIN = 16, AFTER = 55, CHAIN_DIM = 512, CHAIN_HEADS = 4 };
static float *chain_in_steps(rig *g, const head_rows *h, const weight *w, const float *const x[3], const float *old,
                             int n)
{
    enum { Q = CHAIN_HEADS * CHAIN_DIM, OUT = 32, SLOTS = 2400 };
    kv_class  kv     = rig_kv(g, cache_types_both(CACHE_F16), 1, 1, CHAIN_DIM, 1, SLOTS);
    step_rows before = rig_chain(g, 0, 0, AFTER);
    dev       past = rig_put_f32(g, old, AFTER * CHAIN_DIM), q = rig_put_f32(g, x[0], CHAIN * Q);
    dev       k = rig_put_f32(g, x[1], CHAIN * CHAIN_DIM), v = rig_put_f32(g, x[2], CHAIN * CHAIN_DIM);
    dev       y = rig_new(g, CHAIN * Q * sizeof(float)), out = rig_new(g, CHAIN * OUT * sizeof(float));
    OP(g, kv_store, &kv, 0, &before, past, past);
    for (int at = 0; at < CHAIN; at += n) {
        step_rows rows = rig_chain(g, 0, AFTER + at, n);
        head_rows some = *h;
        size_t    from = (size_t)at * Q;
        rows.settled   = true;
        rows.few_lanes = n > 1;
        some.c         = &kv;
        some.q         = dev_at_f32(q, from);
        some.k         = dev_at_f32(k, (size_t)(at * CHAIN_DIM));
        some.v         = dev_at_f32(v, (size_t)(at * CHAIN_DIM));
        ops_heads(g->o, g->q, &some, &rows);
        OP(g, attention, dev_at_f32(y, from), some.q, CHAIN_HEADS, &kv, 0, &rows, 1, 0);
        OP(g, matmul, dev_at_f32(out, (size_t)(at * OUT)), w, dev_at_f32(y, from), n);
    }
    return rig_get_f32(g, out, CHAIN * OUT);
}

static void chain_through_ops(rig *g)
{
    enum { Q = CHAIN_HEADS * CHAIN_DIM, OUT = 32 };
    const weight *w    = rig_weight(g, QUANT_F16, Q, OUT, 1, rig_rand_blocks(g, QUANT_F16, Q * OUT));
    float        *x[3] = {rig_randn(g, CHAIN * Q), rig_randn(g, CHAIN * CHAIN_DIM), rig_randn(g, CHAIN * CHAIN_DIM)};
    float        *old  = rig_randn(g, AFTER * CHAIN_DIM);
    head_rows     h    = {.w_q     = rig_put_randn(g, CHAIN_DIM),
                          .w_k     = rig_put_randn(g, CHAIN_DIM),
                          .rope    = {.n_dims = CHAIN_DIM, .freq = rig_put_randn(g, CHAIN_DIM / 2)},
                          .n_heads = CHAIN_HEADS,
                          .norm_v  = true,
                          .eps     = 1e-6f};
    const float  *in[] = {x[0], x[1], x[2]};
    SAME_F32(g, chain_in_steps(g, &h, w, in, old, CHAIN), chain_in_steps(g, &h, w, in, old, 1), CHAIN * OUT);
}
TEST(joined_heads_of_a_chain_are_those_of_each_row) { rig_each(t, chain_through_ops); }

/* Products of many rows, one by one or the first half of them aside: more than a backend has room for at a time. */
static rig_result play_aside(rig *g, const void *arg)
{
    enum { IN = 96, OUT = 40, N = 10 };
    bool          aside = *(const bool *)arg;
    const weight *w     = rig_weight(g, QUANT_F32, IN, OUT, 1, rig_rand_blocks(g, QUANT_F32, (size_t)IN * OUT));
    dev           x = rig_put_randn(g, N * ROWS * IN), all = rig_new(g, (N + 1) * ROWS * OUT * sizeof(float));
    dev           sum = dev_at_f32(all, (size_t)N * ROWS * OUT);
    if (aside) ops_aside(g->o, g->q, ASIDE_BEGIN);
    for (size_t i = 0; i < N; i++) {
        if (aside && i == N / 2) ops_aside(g->o, g->q, ASIDE_END);
        OP(g, matmul, dev_at_f32(all, i * ROWS * OUT), w, dev_at_f32(x, i * ROWS * IN), ROWS);
    }
    if (aside) ops_aside(g->o, g->q, ASIDE_JOIN);
    OP(g, add, sum, all, dev_at_f32(all, (size_t)(N - 1) * ROWS * OUT), ROWS * OUT, 1);
    return rig_give(g, all, (N + 1) * ROWS * OUT, 1e-4, 1e-4);
}

TEST(joined_ops_aside_are_done_when_they_join)
{
    static const bool aside[] = {false, true};
    rig_compare(t, play_aside, &aside[0]);
    rig_compare(t, play_aside, &aside[1]);
}

typedef struct {
    quant_type type;
    int        n_in, n_ff;
    bool       both; /* gate and up are one stack */
} expert_shape;

/* What experts make of n_rows rows, joined or by the single ops. */
static float *run_experts(rig *g, const expert_rows *e, int n_rows, size_t n, bool joined)
{
    ops single     = *g->o;
    single.experts = NULL;
    ops_experts(joined ? g->o : &single, g->q, e, n_rows);
    return rig_get_f32(g, e->y, n);
}

/* Checks that joined and single ops agree, and that rows alone or with one or three after them are what they are among
 * n_rows. */
static void check_experts(rig *g, const expert_rows *e, int n_rows, size_t in)
{
    size_t K = (size_t)e->n_slots, n_all = (size_t)n_rows * K * in;
    float *all = run_experts(g, e, n_rows, n_all, true);
    SAME_F32(g, all, run_experts(g, e, n_rows, n_all, false), n_all);
    for (size_t row = 0; row < 4; row++) {
        expert_rows one = *e;
        int         n   = row < 2 ? 1 : row == 2 ? 2 : 4;
        one.x           = dev_at_f32(e->x, row * in);
        one.logits      = dev_at_f32(e->logits, row * (size_t)e->n_experts);
        float *alone    = run_experts(g, &one, n, (size_t)n * K * in, true);
        SAME_F32(g, alone, all + row * K * in, (size_t)n * K * in);
    }
}

static void experts_of(rig *g, const expert_shape *s)
{
    enum { MATS = 11, SLOTS = 4, MOST = 9 };
    size_t        in = (size_t)s->n_in, ff = (size_t)s->n_ff;
    const weight *w[3];
    for (int i = 0; i < 3; i++) {
        int from = i < 2 ? s->n_in : s->n_ff, to = i == 2 ? s->n_in : s->both ? 2 * s->n_ff : s->n_ff;
        w[i] = rig_weight(g, s->type, from, to, MATS, rig_rand_blocks(g, s->type, MATS * (size_t)from * (size_t)to));
    }
    expert_rows e = {.y         = rig_new(g, MOST * SLOTS * in * sizeof(float)),
                     .x         = rig_put_randn(g, MOST * in),
                     .inner     = rig_new(g, MOST * SLOTS * 2 * ff * sizeof(float)),
                     .act       = rig_new(g, MOST * SLOTS * ff * sizeof(float)),
                     .down      = w[2],
                     .n_experts = MATS,
                     .n_slots   = SLOTS,
                     .n_ff      = s->n_ff,
                     .kind      = s->both ? ACT_GELU_TANH : ACT_SILU};
    if (s->both)
        e.gate_up = w[0];
    else
        e.gate = w[0], e.up = w[1];
    e.logits = rig_put_randn(g, MOST * MATS), e.expert_scale = rig_put_randn(g, MATS);
    e.w = rig_new(g, MOST * SLOTS * sizeof(float)), e.id = rig_new(g, MOST * SLOTS * sizeof(int32_t));
    check_experts(g, &e, MOST, in);
    rig_close_weights(g);
}

static void experts_joined(rig *g)
{
    static const expert_shape s[] = {{QUANT_Q4_0, 256, 704, true}, {QUANT_Q8_0, 1600, 96, true},
                                     {QUANT_Q4_K, 256, 256, true}, {QUANT_Q4_0, 128, 800, true},
                                     {QUANT_F16, 96, 48, true},    {QUANT_Q4_0, 96, 64, false}};
    for (size_t i = 0; i < COUNT(s); i++) experts_of(g, &s[i]);
}
TEST(joined_experts_are_the_single_ops) { rig_each(t, experts_joined); }
