/* Promise 1 on the cpu backend: a row's numbers are the same bits alone and among others, at every number of rows and
 * threads, on each instruction set; and what the tiles hold and multiply is what the file says. */
#include "base/fault.h"
#include "gguf/build_gguf.h"
#include "ops/cpu/cpu.h"
#include "test.h"

#include <stdlib.h>

enum { MAX_ROWS = 33, N_EXPERTS = 6, N_SLOTS = 3, MAX_IN = 2048, VOCAB = 517 };

static const char *const ISA[]  = {"base", "avx2", "vnni"};
static const quant_type  TYPE[] = {QUANT_F32,    QUANT_F16,   QUANT_BF16, QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0,
                                   QUANT_Q5_1,   QUANT_Q8_0,  QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K, QUANT_IQ4_NL,
                                   QUANT_IQ4_XS, QUANT_MXFP4, QUANT_Q2_K, QUANT_Q3_K};

typedef struct {
    ops   *o;
    queue *q;
} bed;

static bool bed_open(bed *b, const char *isa, int n_threads)
{
    queue_limits lim = {MAX_ROWS, MAX_IN, N_SLOTS, N_EXPERTS, VOCAB, 0, 0, 0};
    err          e;
    *b = (bed){0};
    return cpu_ops_open_isa(&b->o, isa, n_threads, &e) && b->o->queue_new(b->o, &b->q, &lim, &e);
}

static void bed_close(bed *b)
{
    if (!b->o) return;
    b->o->queue_free(b->q);
    ops_close(b->o);
}

static dev at(const void *p) { return (dev){(void *)(uintptr_t)p}; } /* this backend's memory is the host's */

static void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) x[i] = test_randn(&seed);
}

/* --- weights made of random blocks with sane scales -----------------------------------------------*/

static uint8_t *random_weight(quant_type t, size_t n, uint64_t seed)
{
    size_t bytes = 0;
    quant_bytes(t, n, &bytes);
    uint8_t *p = xalloc(bytes);
    test_random_blocks(t, &seed, 0.5f, p, n);
    return p;
}

static weight *load(test_case *t, const bed *b, quant_type type, int n_in, int n_out, int n_mats, uint64_t seed)
{
    weight    *w = NULL;
    err        e = {0};
    uint8_t   *p = random_weight(type, (size_t)n_in * (size_t)n_out * (size_t)n_mats, seed);
    weight_src s = {type, n_in, n_out, n_mats, .data = p};
    CHECK_OK(b->o->weight_load(b->o, &w, &s, &e), e);
    mem_free(p);
    return w;
}

/* --- rows alone and together ----------------------------------------------------------------------*/

/* Runs an op on rows [first, first + n) of the case's inputs; y: [n][width]. */
typedef struct row_case row_case;
struct row_case {
    const char *name;
    void (*run)(const row_case *c, const bed *b, float *y, int first, int n);
    int         width; /* floats of a row of y */
    weight     *w;
    act_kind    act;
    cache_types kv_type;
    int         head_dim, n_heads, n_kv_heads, window, ahead; /* ahead: last - pos */
};

static float X[MAX_ROWS * 4096], X2[MAX_ROWS * 4096], W[4096];

static int32_t pos_of(int row) { return (int32_t)((unsigned)row * 37 % 201); }

static void run_rows(const row_case *c, const bed *b, float *y, int first, int n)
{
    fault_no_alloc_begin(c->name);
    c->run(c, b, y, first, n);
    fault_no_alloc_end();
}

static void check_rows(test_case *t, const row_case *c, const bed *alone, const bed *b, int n_threads)
{
    static const int ROWS[] = {1, 2, 3, 5, 16, 17, MAX_ROWS};
    size_t           row    = (size_t)c->width * sizeof(float);
    float           *one = xalloc(MAX_ROWS * row), *many = xalloc(MAX_ROWS * row);
    for (int r = 0; r < MAX_ROWS; r++) run_rows(c, alone, one + (size_t)r * (size_t)c->width, r, 1);
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        int first = MAX_ROWS - ROWS[i]; /* so that a row's place in the step changes too */
        run_rows(c, b, many, first, ROWS[i]);
        for (int r = 0; r < ROWS[i]; r++)
            CHECK_MSG(!memcmp(many + (size_t)r * (size_t)c->width, one + (size_t)(first + r) * (size_t)c->width, row),
                      "%s, %d rows, %d threads: row %d is not what it is alone", c->name, ROWS[i], n_threads, r);
    }
    mem_free(one);
    mem_free(many);
}

/* For each instruction set: `make` prepares the case on a backend of 1, 2 and 3 threads. */
static void check_case(test_case *t, row_case c, quant_type type, int n_in, int n_out, int n_mats)
{
    for (size_t i = 0; i < COUNT(ISA); i++)
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            bed one, b;
            if (!bed_open(&one, ISA[i], 1)) {
                bed_close(&one);
                continue;
            }
            if (!CHECK(bed_open(&b, ISA[i], n_threads))) continue;
            c.w = n_in ? load(t, &b, type, n_in, n_out, n_mats, 7) : NULL;
            check_rows(t, &c, &one, &b, n_threads);
            b.o->weight_free(b.o, c.w);
            bed_close(&b);
            bed_close(&one);
        }
}

static void run_matmul(const row_case *c, const bed *b, float *y, int first, int n)
{
    b->o->matmul(b->q, at(y), c->w, at(X + (size_t)first * (size_t)c->w->n_in), n);
}

static void run_matmul_top(const row_case *c, const bed *b, float *y, int first, int n)
{
    b->o->matmul_top(b->q, at(y), c->w, at(X + (size_t)first * (size_t)c->w->n_in), n, 2, c->width / 2);
}

static void random_ids(int32_t *id, int first, int n)
{
    for (int i = 0; i < n * N_SLOTS; i++) {
        uint64_t seed = (uint64_t)(first * N_SLOTS + i) + 1;
        id[i]         = (int32_t)(test_rand(&seed) % N_EXPERTS);
    }
}

static void run_experts(const row_case *c, const bed *b, float *y, int first, int n)
{
    int32_t id[MAX_ROWS * N_SLOTS];
    random_ids(id, first, n);
    b->o->matmul_experts(b->q, at(y), c->w, at(X + (size_t)first * (size_t)c->w->n_in), false, at(id), n, N_SLOTS);
}

static void run_experts_per_slot(const row_case *c, const bed *b, float *y, int first, int n)
{
    int32_t id[MAX_ROWS * N_SLOTS];
    random_ids(id, first, n);
    b->o->matmul_experts(b->q, at(y), c->w, at(X + (size_t)(first * N_SLOTS * c->w->n_in)), true, at(id), n, N_SLOTS);
}

TEST(cpu_matmul_rows_are_their_own)
{
    static const int OUT[] = {13, 37, 200};
    fill(X, COUNT(X), 1);
    for (size_t i = 0; i < COUNT(TYPE); i++)
        for (size_t j = 0; j < COUNT(OUT); j++)
            check_case(t, (row_case){.name = quant_name(TYPE[i]), .run = run_matmul, .width = OUT[j]}, TYPE[i],
                       quant_block(TYPE[i]) > 1 ? 512 : 259, OUT[j], 1);
}

TEST(cpu_best_outputs_of_a_row_are_its_own)
{
    static const quant_type SOME[]  = {QUANT_F32, QUANT_Q4_0, QUANT_Q8_0};
    static const int        N_TOP[] = {1, SAMPLE_TOP_MAX};
    fill(X, COUNT(X), 1);
    for (size_t i = 0; i < COUNT(SOME); i++)
        for (size_t j = 0; j < COUNT(N_TOP); j++)
            check_case(t, (row_case){.name = quant_name(SOME[i]), .run = run_matmul_top, .width = 2 * N_TOP[j]},
                       SOME[i], 512, VOCAB, 1);
}

TEST(cpu_expert_rows_are_their_own)
{
    fill(X, COUNT(X), 2);
    for (size_t i = 0; i < COUNT(TYPE); i++) {
        row_case c = {.name = "experts", .run = run_experts, .width = N_SLOTS * 37};
        check_case(t, c, TYPE[i], 256, 37, N_EXPERTS);
        c.run = run_experts_per_slot;
        check_case(t, c, TYPE[i], 256, 37, N_EXPERTS);
    }
}

static void run_norm(const row_case *c, const bed *b, float *y, int first, int n)
{
    b->o->rms_norm(b->q, at(y), at(X + first * c->width), at(W), n, c->width, 1e-6f);
}

static void run_norm_add(const row_case *c, const bed *b, float *y, int first, int n)
{
    b->o->rms_norm_add(b->q, at(y), at(X2 + first * c->width), at(X + first * c->width), at(W), n, c->width, 1e-6f,
                       0.3f);
}

static void run_gated(const row_case *c, const bed *b, float *y, int first, int n)
{
    int stride = 2 * c->width; /* gate and up of a row side by side, as experts leave them */
    b->o->gated(b->q, at(y), at(X + first * stride), stride, at(X + first * stride + c->width), stride, n, c->width,
                c->act);
}

static void run_router(const row_case *c, const bed *b, float *y, int first, int n)
{
    int32_t id[MAX_ROWS * N_SLOTS];
    float   w[MAX_ROWS * N_SLOTS];
    (void)c;
    b->o->router(b->q, at(id), at(w), at(X + first * N_EXPERTS), at(W), n, N_EXPERTS, N_SLOTS);
    for (int r = 0; r < n; r++)
        for (int s = 0; s < N_SLOTS; s++) {
            y[(2 * r) * N_SLOTS + s]     = (float)id[r * N_SLOTS + s];
            y[(2 * r + 1) * N_SLOTS + s] = w[r * N_SLOTS + s];
        }
}

static void run_experts_sum(const row_case *c, const bed *b, float *y, int first, int n)
{
    b->o->experts_sum(b->q, at(y), at(X + first * N_SLOTS * c->width), at(X2 + first * N_SLOTS), n, N_SLOTS, c->width);
}

static void run_add(const row_case *c, const bed *b, float *y, int first, int n)
{
    b->o->add(b->q, at(y), at(X + first * c->width), at(X2 + first * c->width), (size_t)(n * c->width), 0.7f);
}

static void run_softcap(const row_case *c, const bed *b, float *y, int first, int n)
{
    memcpy(y, X + first * c->width, (size_t)(n * c->width) * sizeof *y);
    b->o->softcap(b->q, at(y), (size_t)(n * c->width), 1.5f);
}

static void run_rope(const row_case *c, const bed *b, float *y, int first, int n)
{
    int32_t   pos[MAX_ROWS];
    step_rows rows = {.n_rows = n, .pos = at(pos)};
    for (int i = 0; i < n; i++) pos[i] = 1000 * pos_of(first + i);
    memcpy(y, X + first * c->width, (size_t)(n * c->width) * sizeof *y);
    b->o->rope(b->q, at(y), &rows, c->width / 36, 36, &(rope_params){.n_dims = 36, .freq = at(W)});
}

static void run_pick(const row_case *c, const bed *b, float *y, int first, int n)
{
    int32_t       greedy[MAX_ROWS], drawn[MAX_ROWS];
    sample_params p[MAX_ROWS];
    (void)c;
    for (int i = 0; i < n; i++)
        p[i] = (sample_params){.temp = 1, .top_p = 0.9f, .top_k = 40, .seed = 5, .pos = first + i};
    b->o->argmax(b->q, at(greedy), at(X + first * VOCAB), n, VOCAB);
    b->o->sample(b->q, at(drawn), at(X + first * VOCAB), at(p), n, VOCAB);
    for (int i = 0; i < n; i++) {
        y[2 * i]     = (float)greedy[i];
        y[2 * i + 1] = (float)drawn[i];
    }
}

static void run_top(const row_case *c, const bed *b, float *y, int first, int n)
{
    token_logprob out[MAX_ROWS * N_SLOTS];
    sample_params p[MAX_ROWS];
    (void)c;
    for (int i = 0; i < n; i++) p[i] = (sample_params){.temp = (float)((first + i) % 3), .top_p = 1, .pos = first + i};
    b->o->sample_top(b->q, at(out), at(X + first * VOCAB), at(p), n, VOCAB, N_SLOTS, 0.5f);
    for (int i = 0; i < n * N_SLOTS; i++) {
        y[2 * i]     = (float)out[i].id;
        y[2 * i + 1] = out[i].logprob;
    }
}

static void run_scatter(const row_case *c, const bed *b, float *y, int first, int n)
{
    enum { GROUP = 50 };
    int32_t sel[MAX_ROWS * N_SLOTS], map[N_EXPERTS * GROUP];
    random_ids(sel, first, n);
    for (int i = 0; i < N_EXPERTS * GROUP; i++) map[i] = (i * 7 + 3) % c->width;
    b->o->scatter_logits(b->q, at(y), at(X + first * N_SLOTS * GROUP), at(sel), at(map), n, N_SLOTS, GROUP, c->width,
                         1);
}

TEST(cpu_small_ops_rows_are_their_own)
{
    static const row_case CASE[] = {
        {.name = "rms_norm", .run = run_norm, .width = 257},
        {.name = "rms_norm_add", .run = run_norm_add, .width = 1031},
        {.name = "gelu", .run = run_gated, .width = 1037, .act = ACT_GELU_TANH},
        {.name = "silu", .run = run_gated, .width = 1037, .act = ACT_SILU},
        {.name = "router", .run = run_router, .width = 2 * N_SLOTS},
        {.name = "experts_sum", .run = run_experts_sum, .width = 1003},
        {.name = "add", .run = run_add, .width = 1003},
        {.name = "softcap", .run = run_softcap, .width = 1003},
        {.name = "rope", .run = run_rope, .width = 36 * 5},
        {.name = "argmax and sample", .run = run_pick, .width = 2},
        {.name = "sample_top", .run = run_top, .width = 2 * N_SLOTS},
        {.name = "scatter_logits", .run = run_scatter, .width = 1003},
    };
    fill(X, COUNT(X), 3);
    fill(X2, COUNT(X2), 4);
    fill(W, COUNT(W), 5);
    for (size_t i = 0; i < COUNT(CASE); i++) check_case(t, CASE[i], 0, 0, 0, 0);
}

/* --- attention ------------------------------------------------------------------------------------*/

enum { N_LANES = 3, LANE_SLOTS = 656, LANE_LENGTH = 601, LANE_PAGES = LANE_SLOTS / KV_PAGE, N_LAYERS = 2 };

typedef struct {
    kv_class c;
    char    *pool;
    int32_t  table[N_LANES * LANE_PAGES];
} cache;

/* Pages lie in the pool in an order that `turn` shuffles. */
static void cache_init(cache *k, const row_case *rc, int turn)
{
    int n_pages = N_LANES * LANE_PAGES;
    k->c        = (kv_class){.table        = at(k->table),
                             .table_stride = LANE_PAGES,
                             .n_layers     = N_LAYERS,
                             .n_kv_heads   = rc->n_kv_heads,
                             .head_dim     = rc->head_dim,
                             .types        = rc->kv_type};
    size_t page = (N_LAYERS * kv_layer_bytes(&k->c) + KV_UNIT - 1) / KV_UNIT;
    k->pool     = xalloc((size_t)n_pages * page * KV_UNIT);
    k->c.pool   = at(k->pool);
    for (int i = 0; i < n_pages; i++) k->table[i] = (int32_t)((size_t)((i * 5 + turn) % n_pages) * page);
}

/* K and V of (lane, position) in layer 1, as a function of both alone. */
static void key_value(float *k, float *v, int n, int lane, int pos)
{
    fill(k, (size_t)n, (uint64_t)(lane * 1000 + pos + 1));
    fill(v, (size_t)n, (uint64_t)(lane * 1000 + pos + 500001));
}

static void put_key(const bed *b, const cache *k, int32_t lane, int32_t pos, int32_t slot)
{
    float     kv[2][2048];
    step_rows rows = {.n_rows = 1, .lane = at(&lane), .slot = at(&slot)};
    key_value(kv[0], kv[1], k->c.n_kv_heads * k->c.head_dim, lane, pos);
    b->o->kv_store(b->q, &k->c, 1, &rows, at(kv[0]), at(kv[1]));
}

static cache CACHE; /* filled by the test, read by run_attention */

static void run_attention(const row_case *c, const bed *b, float *y, int first, int n)
{
    int32_t   pos[MAX_ROWS], lane[MAX_ROWS], root[MAX_ROWS], last[MAX_ROWS];
    step_rows rows = {
        .n_rows = n, .pos = at(pos), .lane = at(lane), .slot = at(pos), .root = at(root), .last = at(last)};
    for (int i = 0; i < n; i++) {
        int run = (first + i) / 5; /* of rows that follow each other */
        pos[i]  = (run * 173 + (first + i) % 5) % LANE_LENGTH;
        lane[i] = run % N_LANES;
        last[i] = pos[i] + c->ahead >= LANE_LENGTH ? LANE_LENGTH - 1 : pos[i] + c->ahead;
        root[i] = (pos[i] > last[i] ? pos[i] : last[i]) + 1;
    }
    b->o->attention(b->q, at(y), at(X + first * c->width), c->n_heads, &CACHE.c, 1, &rows, 0.2f, c->window);
}

static const row_case ATTENTION[] = {
    {.kv_type = {CACHE_F32, CACHE_F32}, .head_dim = 64, .n_heads = 4, .n_kv_heads = 4, .window = 0},
    {.kv_type = {CACHE_F16, CACHE_F16}, .head_dim = 64, .n_heads = 7, .n_kv_heads = 1, .window = 70},
    {.kv_type = {CACHE_F16, CACHE_F16}, .head_dim = 256, .n_heads = 4, .n_kv_heads = 2, .window = 64},
    {.kv_type = {CACHE_F16, CACHE_F32}, .head_dim = 128, .n_heads = 4, .n_kv_heads = 2, .window = 0},
    {.kv_type = {CACHE_F32, CACHE_F16}, .head_dim = 64, .n_heads = 6, .n_kv_heads = 2, .window = 70},
    {.kv_type = {CACHE_F16, CACHE_F16}, .head_dim = 512, .n_heads = 8, .n_kv_heads = 1, .window = 0},
    {.kv_type = {CACHE_F32, CACHE_F32}, .head_dim = 72, .n_heads = 6, .n_kv_heads = 2, .window = 1},
    {.kv_type = {CACHE_F16, CACHE_F16}, .head_dim = 64, .n_heads = 4, .n_kv_heads = 2, .window = 70, .ahead = 15},
    {.kv_type = {CACHE_F16, CACHE_F16}, .head_dim = 64, .n_heads = 4, .n_kv_heads = 2, .window = 0, .ahead = -1},
    {.kv_type = {CACHE_F32, CACHE_F32}, .head_dim = 64, .n_heads = 2, .n_kv_heads = 2, .window = 5, .ahead = -5},
    {.kv_type = {CACHE_Q8_0, CACHE_Q8_0}, .head_dim = 128, .n_heads = 4, .n_kv_heads = 1, .window = 0},
    {.kv_type = {CACHE_Q4_0, CACHE_TQ3}, .head_dim = 64, .n_heads = 6, .n_kv_heads = 2, .window = 70},
    {.kv_type = {CACHE_TQ3, CACHE_Q4_0}, .head_dim = 64, .n_heads = 3, .n_kv_heads = 1, .window = 0, .ahead = 15},
};

static void fill_lanes(const bed *b, const cache *k)
{
    for (int lane = 0; lane < N_LANES; lane++)
        for (int p = 0; p < LANE_LENGTH; p++) put_key(b, k, lane, p, p);
}

TEST(cpu_attention_rows_are_their_own)
{
    bed b;
    CHECK(bed_open(&b, NULL, 1));
    for (size_t i = 0; i < COUNT(ATTENTION); i++) {
        row_case c = ATTENTION[i];
        c.name     = "attention";
        c.run      = run_attention;
        c.width    = c.n_heads * c.head_dim;
        fill(X, COUNT(X), 6);
        cache_init(&CACHE, &c, (int)i);
        fill_lanes(&b, &CACHE);
        check_case(t, c, 0, 0, 0, 0);
        mem_free(CACHE.pool);
    }
    bed_close(&b);
}

TEST(cpu_attention_is_the_same_on_all_instruction_sets)
{
    static float y[COUNT(ISA)][MAX_ROWS * 4096];
    for (size_t i = 0; i < COUNT(ATTENTION); i++) {
        row_case c = ATTENTION[i];
        size_t   n = (size_t)(MAX_ROWS * (c.width = c.n_heads * c.head_dim));
        bool     has[COUNT(ISA)];
        cache_init(&CACHE, &c, (int)i);
        for (size_t k = 0; k < COUNT(ISA); k++) {
            bed b;
            if ((has[k] = bed_open(&b, ISA[k], 2))) {
                fill(X, COUNT(X), 6);
                fill_lanes(&b, &CACHE);
                run_attention(&c, &b, y[k], 0, MAX_ROWS);
            }
            bed_close(&b);
        }
        mem_free(CACHE.pool);
        if (has[1])
            for (size_t j = 0; j < n; j++) CHECK_NEAR(y[0][j], y[1][j], 1e-5);
        if (has[2]) CHECK(!memcmp(y[1], y[2], n * sizeof(float)));
    }
}

/* The same keys as a chain in one page order, as a branch of a tree in another, and after the branch was moved home. */
static void check_tree(test_case *t, const bed *b, const row_case *c)
{
    enum { ROOT = 120, DEPTH = 10, AT = ROOT + DEPTH - 1 };
    int       width = c->n_heads * c->head_dim;
    cache     chain, tree;
    int32_t   pos[2 * DEPTH], lane[2 * DEPTH] = {0}, slot[2 * DEPTH], parent[2 * DEPTH], root[2 * DEPTH];
    step_rows rows = {.n_rows = 2 * DEPTH,
                      .pos    = at(pos),
                      .lane   = at(lane),
                      .slot   = at(slot),
                      .parent = at(parent),
                      .root   = at(root),
                      .last   = at(pos)};
    float    *y = xnew_n(float, 2 * DEPTH * width), *z = xnew_n(float, width), *moved = xnew_n(float, width);
    cache_init(&chain, c, 1);
    cache_init(&tree, c, 17);
    fill_lanes(b, &chain);
    for (int p = 0; p < ROOT; p++) put_key(b, &tree, 0, p, p);
    for (int i = 0; i < 2 * DEPTH; i++) { /* two branches, rows taking turns; the odd one is the chain's */
        pos[i]    = ROOT + i / 2;
        slot[i]   = ROOT + i;
        parent[i] = i - 2;
        root[i]   = ROOT;
        put_key(b, &tree, 0, i % 2 ? pos[i] : pos[i] + 1000, slot[i]);
    }
    b->o->attention(b->q, at(y), at(X), c->n_heads, &tree.c, 1, &rows, 0.2f, c->window);

    int32_t   last = AT, none = AT + 1, zero = 0;
    step_rows one = {
        .n_rows = 1, .pos = at(&last), .lane = at(&zero), .slot = at(&last), .root = at(&none), .last = at(&last)};
    dev q = at(X + (2 * DEPTH - 1) * width);
    b->o->attention(b->q, at(z), q, c->n_heads, &chain.c, 1, &one, 0.2f, c->window);
    CHECK(!memcmp(z, y + (2 * DEPTH - 1) * width, (size_t)width * sizeof *z));

    kv_move_item item[DEPTH];
    for (int i = 0; i < DEPTH; i++) item[i] = (kv_move_item){0, ROOT + 2 * i + 1, 0, ROOT + i, 0};
    b->o->kv_move(b->q, &tree.c, at(item), DEPTH, NULL);
    b->o->attention(b->q, at(moved), q, c->n_heads, &tree.c, 1, &one, 0.2f, c->window);
    CHECK(!memcmp(z, moved, (size_t)width * sizeof *z));
    mem_free(chain.pool);
    mem_free(tree.pool);
    mem_free(y);
    mem_free(z);
    mem_free(moved);
}

TEST(cpu_tree_row_is_the_chain_row)
{
    bed b;
    CHECK(bed_open(&b, NULL, 2));
    fill(X, COUNT(X), 8);
    for (size_t i = 0; i < COUNT(ATTENTION); i++) check_tree(t, &b, &ATTENTION[i]);
    bed_close(&b);
}

/* --- tiles hold and multiply what the file says ---------------------------------------------------*/

static void check_embed(test_case *t, const bed *b, quant_type type, int n_in, int n_out)
{
    err        e   = {0};
    size_t     n   = (size_t)n_in * (size_t)n_out;
    uint8_t   *src = random_weight(type, n, 11);
    float     *all = xnew_n(float, n), *y = xnew_n(float, n);
    int32_t   *id = xnew_n(int32_t, n_out);
    weight    *w  = NULL;
    weight_src s  = {type, n_in, n_out, 1, .data = src};
    quant_dequantise(type, src, all, n);
    for (int i = 0; i < n_out; i++) id[i] = n_out - 1 - i;
    id[0] = -1;
    if (CHECK_OK(b->o->weight_load(b->o, &w, &s, &e), e)) {
        b->o->embed(b->q, at(y), w, at(id), n_out, 1);
        for (int i = 0; i < n_in; i++) CHECK(y[i] == 0); /* left alone */
        for (int i = 1; i < n_out; i++)
            CHECK_MSG(!memcmp(y + i * n_in, all + id[i] * n_in, (size_t)n_in * sizeof *y), "%s: row %d differs",
                      quant_name(type), id[i]);
        CHECK(w->bytes <= (size_t)(n_out + 7) / 8 * 8 * (size_t)n_in / (size_t)quant_block(type) *
                              quant_block_bytes(type) * (type == QUANT_Q3_K ? 104 : 103) / 100);
    }
    b->o->weight_free(b->o, w);
    mem_free(src);
    mem_free(all);
    mem_free(y);
    mem_free(id);
}

TEST(cpu_embed_reads_tiles_exactly)
{
    for (size_t k = 0; k < COUNT(ISA); k++) {
        bed b;
        if (bed_open(&b, ISA[k], 2))
            for (size_t i = 0; i < COUNT(TYPE); i++) check_embed(t, &b, TYPE[i], 768, 21);
        bed_close(&b);
    }
}

/* x as a quantised matmul sees it. */
static void round_activations(float *x, int n)
{
    for (int b = 0; b < n; b += QK) {
        float max = 0;
        for (int i = 0; i < QK; i++) max = fmaxf(max, fabsf(x[b + i]));
        float d = max / 127, inverse = d > 0 ? 1 / d : 0;
        for (int i = 0; i < QK; i++) x[b + i] = d * nearbyintf(x[b + i] * inverse);
    }
}

static void check_matmul(test_case *t, const bed *b, quant_type type, int n_in, int n_out, int n_rows)
{
    err        e   = {0};
    size_t     n   = (size_t)n_in * (size_t)n_out;
    uint8_t   *src = random_weight(type, n, 13);
    float     *all = xnew_n(float, n), *y = xnew_n(float, n_rows *n_out);
    weight    *w = NULL;
    weight_src s = {type, n_in, n_out, 1, .data = src};
    quant_dequantise(type, src, all, n);
    fill(X, COUNT(X), 14);
    for (int i = 0; i < QK && i < n_in; i++) X[i] = 0; /* a block of zeros */
    CHECK_OK(b->o->weight_load(b->o, &w, &s, &e), e);
    b->o->matmul(b->q, at(y), w, at(X), n_rows);
    for (int r = 0; r < n_rows; r++) {
        if (!quant_is_float(type)) round_activations(X + r * n_in, n_in);
        for (int o = 0; o < n_out; o++) {
            double sum = 0, size = 0;
            for (int i = 0; i < n_in; i++) {
                sum += (double)all[o * n_in + i] * X[r * n_in + i];
                size += fabs((double)all[o * n_in + i] * X[r * n_in + i]);
            }
            CHECK_MSG(fabs(y[r * n_out + o] - sum) <= 1e-5 * size, "%s: y[%d][%d] is %.9g, expected %.9g",
                      quant_name(type), r, o, y[r * n_out + o], sum);
        }
    }
    b->o->weight_free(b->o, w);
    mem_free(src);
    mem_free(all);
    mem_free(y);
}

TEST(cpu_matmul_multiplies_what_the_file_says)
{
    for (size_t k = 0; k < COUNT(ISA); k++) {
        bed b;
        if (bed_open(&b, ISA[k], 2))
            for (size_t i = 0; i < COUNT(TYPE); i++) {
                check_matmul(t, &b, TYPE[i], 512, 37, 5);
                check_matmul(t, &b, TYPE[i], quant_block(TYPE[i]) > 1 ? 2048 : 1027, 13, 3);
            }
        bed_close(&b);
    }
}

/* 2^-128 and the other scales that are no normal floats, up to where a weight would be infinite. */
TEST(cpu_mxfp4_scales_at_the_ends)
{
    enum { ROWS = 250 };
    static block_mxfp4 src[ROWS];
    static float       all[ROWS * QK], x[QK], y[ROWS], back[ROWS * QK];
    static int32_t     id[ROWS];
    uint64_t           seed = 3;
    test_random_blocks(QUANT_MXFP4, &seed, 1, src, COUNT(all));
    for (int r = 0; r < ROWS; r++) src[r].e = (uint8_t)(id[r] = r);
    quant_dequantise(QUANT_MXFP4, src, all, COUNT(all));
    x[21] = 127;
    for (size_t k = 0; k < COUNT(ISA); k++) {
        bed b;
        if (bed_open(&b, ISA[k], 1)) {
            weight    *w = NULL;
            err        e = {0};
            weight_src s = {.type = QUANT_MXFP4, .n_in = QK, .n_out = ROWS, .n_mats = 1, .data = src};
            CHECK_OK(b.o->weight_load(b.o, &w, &s, &e), e);
            b.o->matmul(b.q, at(y), w, at(x), 1);
            b.o->embed(b.q, at(back), w, at(id), ROWS, 1);
            for (int r = 0; r < ROWS; r++)
                CHECK_MSG(y[r] == 127 * all[r * QK + 21], "%s, e = %d: %g, expected %g", ISA[k], r, y[r],
                          127 * all[r * QK + 21]);
            CHECK(!memcmp(back, all, sizeof all));
            b.o->weight_free(b.o, w);
        }
        bed_close(&b);
    }
}

TEST(cpu_expert_is_a_matmul_with_its_matrix)
{
    enum { N_IN = 256, N_OUT = 37, ROWS = 9 };
    fill(X, COUNT(X), 15);
    bed b;
    CHECK(bed_open(&b, NULL, 2));
    for (size_t i = 0; i < COUNT(TYPE); i++) {
        float    y[ROWS * N_SLOTS * N_OUT], one[N_OUT];
        int32_t  id[ROWS * N_SLOTS];
        err      e     = {0};
        weight  *stack = load(t, &b, TYPE[i], N_IN, N_OUT, N_EXPERTS, 16);
        uint8_t *src   = random_weight(TYPE[i], (size_t)N_IN * N_OUT * N_EXPERTS, 16);
        size_t   bytes = 0;
        quant_bytes(TYPE[i], (uint64_t)N_IN * N_OUT, &bytes);
        random_ids(id, 0, ROWS);
        b.o->matmul_experts(b.q, at(y), stack, at(X), false, at(id), ROWS, N_SLOTS);
        for (int p = 0; p < ROWS * N_SLOTS; p++) {
            weight    *w = NULL;
            weight_src s = {TYPE[i], N_IN, N_OUT, 1, .data = src + (size_t)id[p] * bytes};
            CHECK_OK(b.o->weight_load(b.o, &w, &s, &e), e);
            b.o->matmul(b.q, at(one), w, at(X + p / N_SLOTS * N_IN), 1);
            CHECK_MSG(!memcmp(one, y + p * N_OUT, sizeof one), "%s: pair %d differs", quant_name(TYPE[i]), p);
            b.o->weight_free(b.o, w);
        }
        b.o->weight_free(b.o, stack);
        mem_free(src);
    }
    bed_close(&b);
}

/* --- instruction sets agree -----------------------------------------------------------------------*/

static void check_close(test_case *t, const char *what, const float *a, const float *b, int n, double tol)
{
    double size = 0;
    for (int i = 0; i < n; i++) size = fmax(size, fabs((double)a[i]));
    for (int i = 0; i < n; i++)
        CHECK_MSG(fabs((double)a[i] - b[i]) <= tol * size, "%s[%d]: base %.9g, avx2 %.9g", what, i, a[i], b[i]);
}

TEST(cpu_base_is_close_to_avx2)
{
    static const row_case CASE[] = {
        {.name = "rms_norm", .run = run_norm, .width = 257},
        {.name = "gelu", .run = run_gated, .width = 1037, .act = ACT_GELU_TANH},
        {.name = "silu", .run = run_gated, .width = 1037, .act = ACT_SILU},
        {.name = "router", .run = run_router, .width = 2 * N_SLOTS},
        {.name = "softcap", .run = run_softcap, .width = 1003},
    };
    static float y[2][MAX_ROWS * 1037];
    bed          base, avx2;
    fill(X, COUNT(X), 17);
    CHECK(bed_open(&base, "base", 1));
    if (!bed_open(&avx2, "avx2", 1))
        test_skip(t, "this processor has no AVX2");
    else {
        for (size_t i = 0; i < COUNT(CASE); i++) {
            CASE[i].run(&CASE[i], &base, y[0], 0, 5);
            CASE[i].run(&CASE[i], &avx2, y[1], 0, 5);
            check_close(t, CASE[i].name, y[0], y[1], 5 * CASE[i].width, 1e-6);
        }
        for (size_t i = 0; i < COUNT(TYPE); i++) {
            row_case c = {.name = quant_name(TYPE[i]), .width = 37};
            c.w        = load(t, &base, TYPE[i], 768, 37, 1, 18);
            run_matmul(&c, &base, y[0], 0, 5);
            run_matmul(&c, &avx2, y[1], 0, 5);
            check_close(t, c.name, y[0], y[1], 5 * 37, 1e-5);
            base.o->weight_free(base.o, c.w);
        }
    }
    bed_close(&avx2);
    bed_close(&base);
}

/* AVX-512 changes how the dots are computed, not what they are. */
TEST(cpu_vnni_gives_the_bits_of_avx2)
{
    static float y[2][MAX_ROWS * 37];
    bed          avx2, vnni;
    fill(X, COUNT(X), 19);
    if (!bed_open(&avx2, "avx2", 1) || !bed_open(&vnni, "vnni", 1))
        test_skip(t, "this processor has no AVX-512 VNNI");
    else
        for (size_t i = 0; i < COUNT(TYPE); i++) {
            row_case c = {.name = quant_name(TYPE[i]), .width = 37};
            c.w        = load(t, &avx2, TYPE[i], 768, 37, 1, 20);
            run_matmul(&c, &avx2, y[0], 0, MAX_ROWS);
            run_matmul(&c, &vnni, y[1], 0, MAX_ROWS);
            CHECK_MSG(!memcmp(y[0], y[1], sizeof y[0]), "%s differs", c.name);
            avx2.o->weight_free(avx2.o, c.w);
        }
    bed_close(&avx2);
    bed_close(&vnni);
}

/* --- the ends of the number line, and failures ----------------------------------------------------*/

TEST(cpu_activations_at_the_ends)
{
    static const float AT[] = {0, -0.0f, 1e-8f, -1e-4f, 0.3f, -5, 9.5f, -60, 200, -1e6f, 1e30f, -1e30f};
    enum { N = COUNT(AT) };
    for (size_t k = 0; k < COUNT(ISA); k++) {
        bed   b;
        float one[N], y[N], cap[N];
        if (bed_open(&b, ISA[k], 1)) {
            for (int i = 0; i < N; i++) one[i] = 1;
            memcpy(cap, AT, sizeof cap);
            b.o->gated(b.q, at(y), at(AT), N, at(one), N, 1, N, ACT_GELU_TANH);
            b.o->softcap(b.q, at(cap), N, 30);
            for (int i = 0; i < N; i++) {
                double x = AT[i], gelu = x / (1 + exp(-2 * 0.7978845608028654 * (x + 0.044715 * x * x * x)));
                CHECK_NEAR(y[i], gelu, 2e-6 * fabs(gelu)); /* e^-2u carries the rounding of u, here up to 9 */
                CHECK_NEAR(cap[i], 30 * tanh(x / 30), 1e-6 * fabs(30 * tanh(x / 30)));
            }
        }
        bed_close(&b);
    }
}

TEST(cpu_nan_is_seen_and_harms_no_neighbour)
{
    enum { N_IN = 256, N_OUT = 9 };
    bed b;
    CHECK(bed_open(&b, NULL, 1));
    for (size_t i = 0; i < COUNT(TYPE); i++) {
        weight *w = load(t, &b, TYPE[i], N_IN, N_OUT, 1, 19);
        float   y[2 * N_OUT], one[N_OUT];
        fill(X, COUNT(X), 20);
        X[5]  = NAN;
        X[70] = INFINITY;
        b.o->matmul(b.q, at(y), w, at(X), 2);
        b.o->matmul(b.q, at(one), w, at(X + N_IN), 1);
        CHECK(isnan(y[0]) && isnan(y[N_OUT - 1]));
        CHECK(!memcmp(y + N_OUT, one, sizeof one));
        b.o->weight_free(b.o, w);
    }
    float   logits[N_EXPERTS] = {NAN, NAN, NAN, NAN, NAN, NAN}, weights[N_SLOTS];
    int32_t id[N_SLOTS];
    b.o->router(b.q, at(id), at(weights), at(logits), at(NULL), 1, N_EXPERTS, N_SLOTS);
    for (int s = 0; s < N_SLOTS; s++) CHECK(id[s] >= 0 && id[s] < N_EXPERTS);
    bed_close(&b);
}

TEST(cpu_refuses_what_it_cannot_hold)
{
    static const float zeros[64];
    err                e;
    bed                b;
    weight            *w;
    weight_src         s = {QUANT_Q4_0, 48, 2, 1, .data = zeros};
    CHECK(bed_open(&b, NULL, 1));
    CHECK_FAILS(b.o->weight_load(b.o, &w, &s, &e), e, "multiple of 32");
    s.type = QUANT_I32;
    CHECK_FAILS(b.o->weight_load(b.o, &w, &s, &e), e, "cannot be multiplied");
    s.type = (quant_type)4000;
    CHECK_FAILS(b.o->weight_load(b.o, &w, &s, &e), e, "cannot be multiplied");
    s = (weight_src){QUANT_F32, INT32_MAX, INT32_MAX, INT32_MAX, .data = zeros};
    CHECK_FAILS(b.o->weight_load(b.o, &w, &s, &e), e, "too large");
    s = (weight_src){QUANT_F32, 8, 0, 1, .data = zeros};
    CHECK_FAILS(b.o->weight_load(b.o, &w, &s, &e), e, "shape");
    CHECK(w == NULL);
    ops *o;
    CHECK_FAILS(cpu_ops_open_isa(&o, "sse9", 1, &e), e, "sse9");
    bed_close(&b);
}

TEST(cpu_survives_each_failed_allocation)
{
    static const float zeros[64];
    queue_limits       lim = {4, 64, 2, 4, 100, 0, 0, 0};
    weight_src         s   = {QUANT_F32, 8, 8, 1, .data = zeros};
    bed                b;
    CHECK(bed_open(&b, NULL, 1));
    for (long n = 1;; n++) {
        err     e = {0};
        dev     d = {NULL};
        weight *w = NULL;
        queue  *q = NULL;
        fault_fail_nth(n);
        bool ok =
            b.o->alloc(b.o, &d, 100, &e) && b.o->weight_load(b.o, &w, &s, &e) && b.o->queue_new(b.o, &q, &lim, &e);
        bool reached = fault_tries() >= n;
        fault_fail_nth(0);
        CHECK(ok != reached);
        if (!ok) CHECK(e.code == ERR_UNAVAILABLE);
        if (d.p) CHECK((uintptr_t)d.p % 256 == 0 && ((char *)d.p)[99] == 0);
        b.o->queue_free(q);
        b.o->weight_free(b.o, w);
        b.o->free(b.o, d);
        if (!reached) break;
    }
    bed_close(&b);
}
