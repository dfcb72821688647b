/* Steps of many rows, as prompts have them: a row's numbers are the same, to the bit, as with few rows (promise 1). */
#include "ops_test.h"

#include "base/num.h"
#include "ops/joined.h"

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

/* Multiplies all rows at once, and the first and the last ones again, by twos. */
static void matmul_by_twos(rig *g, quant_type type, int n_in, int n_out, int n_rows)
{
    size_t        in = (size_t)n_in, out = (size_t)n_out, rows = (size_t)n_rows;
    const weight *w = rig_weight(g, type, n_in, n_out, 1, rig_rand_blocks(g, type, in * out));
    dev           x = rig_put_randn(g, rows * in), y = rig_new(g, rows * out * sizeof(float));
    OP(g, matmul, y, w, x, n_rows);
    float *together = rig_get_f32(g, y, rows * out);
    for (int r = 0, n; r < n_rows; r += n) {
        bool near_end = r < 3 || r >= n_rows - 3; /* the others take much time */
        n             = near_end ? min_int(2, n_rows - r) : n_rows - 3 - r;
        if (near_end) OP(g, matmul, dev_at_f32(y, (size_t)r * out), w, dev_at_f32(x, (size_t)r * in), n);
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

/* Matrices with many panels, which a GPU multiplies by 5 rows and more in another way than by two: each number of
 * columns, passes over several segments, an odd number of panels. */
static void many_panels_in_pieces(rig *g)
{
    enum { IN = 1792, OUT = 1048, ROWS = 37, LONG_OUT = 12700 };
    static const quant_type types[] = {QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0, QUANT_Q8_0, QUANT_Q4_K, QUANT_Q6_K};
    static const int        rows[]  = {5, 9, ROWS};
    reserve_rows(g, 64);
    for (size_t i = 0; i < COUNT(types); i++)
        for (size_t k = 0; k < COUNT(rows); k++)
            if (types[i] == QUANT_Q4_0 || k == i % COUNT(rows)) matmul_by_twos(g, types[i], IN, OUT, rows[k]);
    matmul_by_twos(g, QUANT_Q4_0, 832, LONG_OUT, 10);
}
TEST(matmul_of_many_panels_equals_each_row_alone) { rig_each(t, many_panels_in_pieces); }

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
    int  ahead;   /* positions that rows see beyond their own, as in an image */
    bool odd;     /* some V is an infinity */
    int  row_dim; /* elements of a head in rows; 0: head_dim */
} prompt_shape;

static void store_rows(rig *g, kv_class *c, const step_rows *rows, bool odd)
{
    size_t n = (size_t)(c->n_kv_heads * kv_row_dim(c)), all = (size_t)rows->n_rows * n;
    float *v = rig_randn(g, all);
    if (odd) v[all - 3 * n + 1] = INFINITY; /* only the last rows see it */
    OP(g, kv_store, c, 0, rows, rig_put_randn(g, all), rig_put_f32(g, v, all));
}

/* Attention of two chains in one step, with the hint that makes a GPU share their keys, against pieces without it. */
static void prompt_in_pieces(rig *g, const prompt_shape *s)
{
    enum { KV = 1, ROWS = CHAIN + SECOND };
    size_t   Q = (size_t)(s->n_heads * (s->row_dim ? s->row_dim : s->head_dim));
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
    c.row_dim      = s->row_dim;
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
    static const prompt_shape s[] = {{64, 2, 0, 0, false, 0},  {64, 3, 100, 0, false, 0},  {128, 2, 0, 5, false, 0},
                                     {64, 16, 30, 0, true, 0}, {256, 2, 0, 0, false, 0},   {256, 1, 90, 40, true, 0},
                                     {512, 2, 0, 0, false, 0}, {128, 2, 0, 90, false, 72}, {128, 3, 50, 0, true, 72}};
    reserve_rows(g, 200);
    for (size_t i = 0; i < COUNT(s); i++) prompt_in_pieces(g, &s[i]);
}
TEST(attention_of_a_prompt_equals_each_row_alone) { rig_each(t, prompts_in_pieces); }

/* --- rows -----------------------------------------------------------------------------------------*/
typedef struct {
    int  n, n_slots, n_outs;
    bool parts;
} norm_shape;

static void norms_in_pieces(rig *g, const norm_shape *s)
{
    enum { ROWS = 161 };
    static const int piece[] = {64, 1, 7};
    size_t           n = (size_t)s->n, all = ROWS * n, slots = (size_t)s->n_slots, outs = (size_t)s->n_outs + 1;
    dev              y[2] = {rig_new(g, outs * all * sizeof(float)), rig_new(g, outs * all * sizeof(float))};
    norm_rows        c    = {.res     = rig_put_randn(g, all),
                             .w       = rig_put_randn(g, n),
                             .parts   = s->parts,
                             .w_z     = rig_put_randn(g, n),
                             .w_slots = rig_put_randn(g, n),
                             .slots   = rig_put_randn(g, all * slots),
                             .slot_w  = rig_put_randn(g, ROWS * slots),
                             .sum     = rig_new(g, all * sizeof(float)),
                             .n_slots = s->n_slots,
                             .n       = s->n,
                             .n_outs  = s->n_outs,
                             .scale   = 0.75f,
                             .eps     = 1e-6f};
    for (int i = 0; i < s->n_outs; i++) c.out[i].w = rig_put_randn(g, n);
    float *z = rig_randn(g, all);
    for (int together = 0; together < 2; together++) {
        c.z = rig_put_f32(g, z, all); /* single ops work in place */
        for (int r = 0, k = 0, rows; r < ROWS; r += rows, k++) {
            norm_rows one = c;
            size_t    at  = (size_t)r * n;
            rows          = together ? (int)ROWS : min_int(piece[(size_t)k % COUNT(piece)], ROWS - r);
            one.res       = dev_at_f32(c.res, at);
            one.z         = dev_at_f32(c.z, at);
            one.sum       = dev_at_f32(c.sum, at);
            one.slots     = dev_at_f32(c.slots, at * slots);
            one.slot_w    = dev_at_f32(c.slot_w, (size_t)r * slots);
            one.y         = dev_at_f32(y[together], at);
            for (int i = 0; i < s->n_outs; i++) one.out[i].y = dev_at_f32(y[together], (size_t)(1 + i) * all + at);
            ops_norms(g->o, g->q, &one, rows);
        }
    }
    SAME_F32(g, rig_get_f32(g, y[1], outs * all), rig_get_f32(g, y[0], outs * all), outs * all);
}

static void all_norms_in_pieces(rig *g)
{
    static const norm_shape s[] = {{900, 2, 1, true},   {2816, 3, 3, true},  {2818, 2, 1, true},
                                   {4000, 1, 0, false}, {5376, 2, 1, false}, {8000, 2, 2, true}};
    reserve_rows(g, 200);
    for (size_t i = 0; i < COUNT(s); i++) norms_in_pieces(g, &s[i]);
}
TEST(norms_of_many_rows_equal_each_alone) { rig_each(t, all_norms_in_pieces); }

typedef struct {
    int  dim, n_heads, n_kv_heads, n_rotated;
    bool stores, norm_v, k_as_v;
    int  stored_dim; /* of the cache; 0: dim */
} head_shape;

/* The rotated queries, and what attention of the last row finds in the cache. All rows together have their queries
 * elsewhere, with gaps. */
static void heads_in_pieces(rig *g, const head_shape *s)
{
    enum { ROWS = 75 };
    static const int piece[] = {1, 30, 7};
    size_t           nq = (size_t)(s->n_heads * s->dim), nk = (size_t)(s->n_kv_heads * s->dim), all = ROWS * nq;
    dev              q[2], y = rig_new(g, nq * sizeof(float)), apart = rig_new(g, 2 * all * sizeof(float));
    float           *x = rig_randn(g, all), *found[2], *k = rig_randn(g, ROWS * nk), *v = rig_randn(g, ROWS * nk);
    step_rows        rows = rig_chain(g, 0, 0, ROWS);
    rope_params      rope = {.n_dims = s->n_rotated, .freq = rig_put_randn(g, (size_t)s->n_rotated / 2)};
    head_rows        h    = {.w_q     = rig_put_randn(g, (size_t)s->dim),
                             .w_k     = rig_put_randn(g, (size_t)s->dim),
                             .rope    = rope,
                             .n_heads = s->n_heads,
                             .norm_v  = s->norm_v,
                             .k_as_v  = s->k_as_v,
                             .eps     = 1e-6f};
    for (int together = 0; together < 2; together++) {
        int      D  = s->stored_dim ? s->stored_dim : s->dim;
        kv_class kv = rig_kv(g, cache_types_both(CACHE_F16), 1, s->n_kv_heads, D, 1, ROWS);
        kv.row_dim  = s->dim;
        dev all_k = rig_put_f32(g, k, ROWS * nk), all_v = rig_put_f32(g, v, ROWS * nk);
        q[together] = rig_put_f32(g, x, all);
        OP(g, copy_rows, apart, 2 * s->dim, q[together], s->dim, (dev){0}, ROWS * s->n_heads, s->dim);
        for (int r = 0, i = 0, n; r < ROWS; r += n, i++) {
            size_t    at  = (size_t)r * sizeof(int32_t);
            head_rows one = h;
            step_rows of  = {.pos = dev_at(rows.pos, at), .lane = dev_at(rows.lane, at), .slot = dev_at(rows.slot, at)};
            of.n_rows = n = together ? (int)ROWS : min_int(piece[(size_t)i % COUNT(piece)], ROWS - r);
            one.c         = &kv;
            one.q         = dev_at_f32(q[together], (size_t)r * nq);
            one.v         = dev_at_f32(all_v, (size_t)r * nk);
            if (together) one.q_in = apart, one.q_stride = 2 * s->dim;
            if (s->stores) one.k = dev_at_f32(all_k, (size_t)r * nk);
            ops_heads(g->o, g->q, &one, &of);
        }
        found[together] = rig_get_f32(g, q[together], all);
        if (!s->stores) continue;
        step_rows last = rig_chain(g, 0, ROWS - 1, 1);
        OP(g, attention, y, dev_at_f32(q[0], 0), s->n_heads, &kv, 0, &last, 0.1f, 0);
        memcpy(found[together], rig_get_f32(g, y, nq), nq * sizeof(float)); /* in the place of the first row */
    }
    SAME_F32(g, found[1], found[0], all);
}

static void all_heads_in_pieces(rig *g)
{
    static const head_shape s[] = {{256, 4, 2, 256, true, true, true, 0},   {512, 9, 1, 512, true, true, false, 0},
                                   {512, 2, 1, 128, true, false, false, 0}, {256, 2, 1, 64, true, true, false, 0},
                                   {64, 6, 2, 64, true, true, false, 0},    {128, 2, 1, 98, true, true, false, 0},
                                   {256, 2, 1, 256, false, true, false, 0}, {72, 2, 2, 72, true, true, false, 128}};
    reserve_rows(g, 200);
    for (size_t i = 0; i < COUNT(s); i++) heads_in_pieces(g, &s[i]);
}
TEST(heads_of_many_rows_equal_each_alone) { rig_each(t, all_heads_in_pieces); }
