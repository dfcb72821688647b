#include "ops/sparse.h"

#include "gguf/safetensors.h"
#include "ops/joined.h"
#include "ops_test.h"

/* --- the choice by whole numbers --------------------------------------------------------------------- */
/* The threshold from its definition: the largest t, at most SPARSE_WEIGHT, whose smaller n are within the share. */
static uint32_t plain_threshold(const uint32_t *n, int count, uint32_t drop)
{
    uint64_t sum = 0;
    uint32_t t   = 0;
    for (int i = 0; i < count; i++) sum += n[i];
    for (int i = 0; i <= count; i++) {
        uint32_t at    = i < count ? n[i] : SPARSE_WEIGHT;
        uint64_t below = 0;
        for (int k = 0; k < count; k++) below += n[k] < at ? n[k] : 0;
        if ((double)below <= floor((double)sum * drop / SPARSE_ONE) && at > t) t = at;
    }
    return t;
}

TEST(sparse_threshold_drops_a_share)
{
    uint64_t rand = 5;
    for (int round = 0; round < 200; round++) {
        uint32_t n[60], drop = (uint32_t)(test_rand(&rand) % (SPARSE_ONE / 2));
        int      count = 1 + (int)(test_rand(&rand) % COUNT(n));
        for (int i = 0; i < count; i++) n[i] = (uint32_t)(test_rand(&rand) % (round % 2 ? 9 : SPARSE_WEIGHT + 1));
        n[count / 2] = SPARSE_WEIGHT;
        uint32_t got = sparse_threshold(n, count, drop), want = plain_threshold(n, count, drop);
        /* pages between the two are none, so both keep the same */
        for (int i = 0; i < count; i++) CHECK_INT(n[i] >= got, n[i] >= want);
    }
}

/* A million pages of the largest weight: all are kept or none, so all are. */
TEST(sparse_threshold_of_many_equal_pages)
{
    enum { N = 1 << 20 };
    uint32_t *n = xnew_n(uint32_t, N);
    for (int i = 0; i < N; i++) n[i] = SPARSE_WEIGHT;
    CHECK_INT(sparse_threshold(n, N, SPARSE_ONE - 1), SPARSE_WEIGHT);
    n[7] = 3;
    CHECK(sparse_threshold(n, N, 1) > 3); /* its weight is below a 2^24th of the sum */
    mem_free(n);
}

TEST(sparse_parses_shares)
{
    sparse_params p = {0};
    err           e = {0};
    char          text[SPARSE_TEXT];
    CHECK_OK(sparse_parse(&p, STR("0.25"), &e), e);
    CHECK_INT(p.drop, SPARSE_ONE / 4);
    CHECK_INT(p.min_ctx, 4096);
    CHECK_OK(sparse_parse(&p, STR("0.05"), &e), e);
    CHECK_STR(str_of(sparse_text(&p, text)), STR("0.05"));
    CHECK_NEAR(sparse_share(&p), 0.05, 0);
    CHECK_OK(sparse_parse(&p, STR("0"), &e), e);
    CHECK(!p.drop && !p.min_ctx);
    static const char *const wrong[] = {"", "1", "-0.1", "x", "0.1x", "nan", "inf"};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        err no = {0};
        CHECK_FAILS(sparse_parse(&p, str_of(wrong[i]), &no), no, "from 0 to below 1");
    }
    for (uint32_t drop = 1; drop < SPARSE_ONE; drop = drop * 3 + 1) {
        sparse_params a = {.drop = drop}, b = {0};
        CHECK_OK(sparse_parse(&b, str_of(sparse_text(&a, text)), &e), e);
        CHECK_INT(b.drop, drop);
    }
}

TEST(sparse_rows_by_position)
{
    sparse_params p = {1, 4, 512, 4096}, off = {0};
    CHECK_INT(sparse_far_pages(&p, 4094), 0);
    CHECK_INT(sparse_far_pages(&p, 4095), (4096 - 512) / 16);
    CHECK_INT(sparse_far_pages(&p, 4110), (4111 - 512) / 16);
    CHECK_INT(sparse_far_pages(&off, 100000), 0);
}

/* --- pages as golden vectors choose them ------------------------------------------------------------- */
enum { G_D = 64, G_N = 512, G_PAGES = G_N / KV_PAGE, G_HEADS = 4, G_ROWS = 4, G_ALPHAS = 4 };

static const void *find(test_case *t, const safetensors *s, const char *name, size_t bytes)
{
    const tensor *x = tensor_find(safetensors_tensors(s), str_of(name));
    return CHECK_MSG(x && x->bytes == bytes, "%s is missing or has another size", name) ? x->data : NULL;
}

/* V has one channel per page, so an output shows the pages that a row attends to. */
static void golden_pages(rig *g)
{
    test_case   *t = g->t;
    safetensors *s;
    err          e = {0};
    if (!g->o->kv_sparse) return;
    if (!CHECK_OK(safetensors_open(&s, test_path("tests/golden/kv-types/sparse.safetensors"), &e), e)) return;
    const uint16_t *k16   = find(t, s, "sparse.k", G_N * G_D * sizeof *k16);
    const float    *alpha = find(t, s, "sparse.alpha", G_ALPHAS * sizeof *alpha);
    const float    *q     = find(t, s, "sparse.q", G_ROWS * G_HEADS * G_D * sizeof *q);
    const int32_t  *pos   = find(t, s, "sparse.pos", G_ROWS * sizeof *pos);
    const uint8_t  *kept  = find(t, s, "sparse.kept", G_ROWS * G_ALPHAS * G_PAGES);
    float          *k = arena_new_n(&g->host, float, G_N *G_D), *v = arena_new_n(&g->host, float, G_N *G_D);
    for (int i = 0; i < G_N * G_D; i++) {
        k[i] = f16_to_f32(k16[i]);
        v[i] = i % G_D == i / G_D / KV_PAGE ? 1e30f : 0;
    }
    for (int a = 0; a < G_ALPHAS; a++) {
        sparse_params p   = {(uint32_t)(alpha[a] * SPARSE_ONE), 1, 64, 256};
        kv_class      c   = rig_kv_sparse(g, (cache_types){CACHE_F16, CACHE_F32}, 1, 1, G_D, 1, G_N, p);
        step_rows     all = rig_chain(g, 0, 0, G_N);
        OP(g, kv_store, &c, 0, &all, rig_put_f32(g, k, G_N * G_D), rig_put_f32(g, v, G_N * G_D));
        for (int r = 0; r < G_ROWS; r++) {
            enum { N = G_HEADS * G_D };
            step_rows row = rig_chain(g, 0, pos[r], 1);
            dev       y   = rig_new(g, N * sizeof(float));
            OP(g, attention, y, rig_put_f32(g, q + (size_t)(r * N), N), G_HEADS, &c, 0, &row, 0.75f, 0);
            float *got = rig_get_f32(g, y, N);
            for (int i = 0; i < G_HEADS * G_PAGES; i++) {
                int page = i % G_PAGES, want = page * KV_PAGE <= pos[r] && kept[(r * G_ALPHAS + a) * G_PAGES + page];
                CHECK_MSG((got[i / G_PAGES * G_D + page] > 0) == want, "%s: alpha %g, row %d: page %d is %s",
                          g->o->name, (double)alpha[a], r, page, want ? "dropped" : "kept");
            }
        }
    }
    safetensors_close(s);
}
TEST(sparse_attention_keeps_the_golden_pages) { rig_each(t, golden_pages); }

/* --- ref and others ---------------------------------------------------------------------------------- */
typedef struct {
    cache_types   types;
    int           head_dim, n_heads, n_kv_heads, n_ctx, n_rows;
    sparse_params p;
    bool          tree;
} scene;

/* Stores random K and V for n_ctx positions of a lane, in pieces. */
static void fill(rig *g, const kv_class *c, int lane, int n_ctx)
{
    for (int at = 0, n; at < n_ctx; at += n) {
        n              = n_ctx - at < 4096 ? n_ctx - at : 4096;
        step_rows rows = rig_chain(g, lane, at, n);
        size_t    size = (size_t)n * (size_t)c->n_kv_heads * (size_t)c->head_dim;
        OP(g, kv_store, c, 0, &rows, rig_put_randn(g, size), rig_put_randn(g, size));
    }
}

/* A tree with branches of different lengths: rows 0 1 2 3 in a chain, two more branches from 0 and from the root. */
static step_rows some_tree(rig *g, int lane, int32_t root, int n_rows)
{
    int32_t parent[RIG_ROWS];
    for (int i = 0; i < n_rows; i++) parent[i] = i % 4 == 0 ? (i ? 0 : -1) : i - 1;
    if (n_rows > 5) parent[5] = -1;
    return rig_tree(g, lane, root, parent, n_rows);
}

static rig_result play_scene(rig *g, const void *arg)
{
    const scene *s = arg;
    if (!g->o->kv_sparse || (!g->o->kv_scales && (cache_has_scales(s->types.k) || cache_has_scales(s->types.v))))
        return (rig_result){.skipped = true};
    size_t n   = (size_t)s->n_rows * (size_t)s->n_heads * (size_t)s->head_dim,
           one = (size_t)(s->n_kv_heads * s->head_dim);
    kv_class c = rig_kv_sparse(g, s->types, 1, s->n_kv_heads, s->head_dim, 2, s->n_ctx + RIG_ROWS, s->p);
    dev      y = rig_new(g, n * sizeof(float)), q;
    fill(g, &c, 1, s->n_ctx - s->n_rows);
    step_rows rows =
        s->tree ? some_tree(g, 1, s->n_ctx - s->n_rows, s->n_rows) : rig_chain(g, 1, s->n_ctx - s->n_rows, s->n_rows);
    OP(g, kv_store, &c, 0, &rows, rig_put_randn(g, (size_t)s->n_rows * one), rig_put_randn(g, (size_t)s->n_rows * one));
    q = rig_put_randn(g, n);
    OP(g, attention, y, q, s->n_heads, &c, 0, &rows, 2 / sqrtf((float)s->head_dim), 0);
    rig_result r = rig_give(g, y, n, 1e-5, 1e-5);
    if (cache_has_scales(s->types.k) || cache_has_scales(s->types.v)) r.gpu_allows = 100; /* it rounds values to f16 */
    return r;
}

#define QUARTER SPARSE_ONE / 4
TEST(sparse_attention_agrees_with_ref)
{
    static const scene s[] = {
        {RIG_F16, 64, 4, 2, 600, 1, {QUARTER, 1, 64, 256}, false},
        {RIG_F16, 64, 4, 2, 600, 9, {QUARTER, 1, 64, 256}, false},
        {RIG_F16, 64, 6, 2, 601, 13, {QUARTER, 2, 64, 256}, true},
        {RIG_F32, 128, 8, 1, 530, 16, {SPARSE_ONE / 2, 1, 64, 256}, false},
        {RIG_F16, 72, 3, 1, 400, 3, {QUARTER, 1, 32, 100}, false},
        {{CACHE_Q8_0, CACHE_Q4_0}, 128, 4, 2, 530, 5, {QUARTER, 1, 64, 256}, false},
        {{CACHE_TQ3, CACHE_TQ3}, 64, 5, 1, 300, 6, {QUARTER, 1, 64, 256}, true},
        {{CACHE_Q4_0, CACHE_F16}, 256, 2, 1, 300, 2, {QUARTER, 1, 64, 256}, false},
        {RIG_F16, 512, 8, 1, 400, 5, {QUARTER, 1, 64, 256}, true},
        {RIG_F16, 512, 8, 1, 260, 20, {QUARTER, 1, 64, 256}, false}, /* some rows are dense */
    };
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_scene, &s[i]);
}

#define DEFAULTS                                                                                                       \
    {                                                                                                                  \
        SPARSE_ONE / 3, SPARSE_SINK, SPARSE_NEAR, SPARSE_MIN_CTX                                                       \
    }
/* ref takes most of the time. */
TEST_LONG(sparse_attention_agrees_with_ref_at_16k)
{
    static const scene s[] = {
        {RIG_F16, 64, 2, 1, 16390, 3, DEFAULTS, true},
        {{CACHE_Q8_0, CACHE_Q8_0}, 64, 1, 1, 16384, 2, DEFAULTS, false},
        {RIG_F16, 128, 1, 1, 16400, 1, DEFAULTS, false},
        {RIG_F16, 256, 1, 1, 16384, 1, DEFAULTS, false},
        {RIG_F16, 512, 1, 1, 16384, 1, DEFAULTS, false},
    };
    for (size_t i = 0; i < (test_full() ? COUNT(s) : 2); i++) rig_compare(t, play_scene, &s[i]);
}

TEST_SLOW(sparse_attention_agrees_with_ref_at_128k)
{
    static const scene s[] = {
        {RIG_F16, 64, 2, 1, 131072, 2, DEFAULTS, false},
        {{CACHE_TQ3, CACHE_TQ3}, 64, 1, 1, 131090, 3, DEFAULTS, true},
        {{CACHE_Q8_0, CACHE_Q4_0}, 128, 1, 1, 131072, 1, DEFAULTS, false},
        {RIG_F16, 256, 1, 1, 131072, 1, DEFAULTS, false},
        {RIG_F16, 512, 1, 1, 131072, 1, DEFAULTS, false},
    };
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_scene, &s[i]);
}

/* --- dense attention --------------------------------------------------------------------------------- */
typedef struct {
    const float *k, *v, *q;
    size_t       n_kv, n_q;
} numbers;

static numbers some_numbers(rig *g, int n_ctx, int n_rows, int heads, int kv, int D)
{
    numbers x = {.n_kv = (size_t)n_ctx * (size_t)(kv * D), .n_q = (size_t)n_rows * (size_t)(heads * D)};
    x.k       = rig_randn(g, x.n_kv);
    x.v       = rig_randn(g, x.n_kv);
    x.q       = rig_randn(g, x.n_q);
    return x;
}

/* The outputs of the last n_rows of n_ctx positions. */
static float *attend(rig *g, cache_types types, sparse_params p, const numbers *x, int n_ctx, int n_rows, int heads,
                     int kv, int D, float scale)
{
    kv_class  c   = rig_kv_sparse(g, types, 1, kv, D, 1, n_ctx, p);
    step_rows all = rig_chain(g, 0, 0, n_ctx), rows = rig_chain(g, 0, n_ctx - n_rows, n_rows);
    dev       y = rig_new(g, x->n_q * sizeof(float));
    OP(g, kv_store, &c, 0, &all, rig_put_f32(g, x->k, x->n_kv), rig_put_f32(g, x->v, x->n_kv));
    OP(g, attention, y, rig_put_f32(g, x->q, x->n_q), heads, &c, 0, &rows, scale, 0);
    return rig_get_f32(g, y, x->n_q);
}

/* A share too small to drop a page: the scores are flat, so every page has a weight. Then a share that drops some. */
static void check_all_kept(rig *g, cache_types types, int D, int n_ctx, int n_rows)
{
    enum { HEADS = 4, KV = 2 };
    numbers x    = some_numbers(g, n_ctx, n_rows, HEADS, KV, D);
    float  *want = attend(g, types, (sparse_params){0}, &x, n_ctx, n_rows, HEADS, KV, D, 0.02f);
    float  *got  = attend(g, types, (sparse_params){1, 1, 64, 256}, &x, n_ctx, n_rows, HEADS, KV, D, 0.02f);
    float *less = attend(g, types, (sparse_params){SPARSE_ONE / 2, 1, 64, 256}, &x, n_ctx, n_rows, HEADS, KV, D, 0.02f);
    SAME_F32(g, got, want, x.n_q);
    SAME(g, memcmp(less, want, x.n_q * sizeof *want) != 0, true);
}

static void all_kept(rig *g)
{
    static const int dims[] = {64, 128, 256, 512};
    for (size_t i = 0; i < COUNT(dims) && g->o->kv_sparse; i++)
        for (int rows = 1; rows <= 16; rows += 15) {
            check_all_kept(g, cache_types_both(CACHE_F16), dims[i], 300, rows);
            if (g->o->kv_scales && i < 2) check_all_kept(g, (cache_types){CACHE_Q8_0, CACHE_TQ3}, dims[i], 300, rows);
        }
}
TEST(sparse_attention_with_all_pages_is_dense_attention) { rig_each(t, all_kept); }
static void all_kept_at_16k(rig *g)
{
    if (!g->o->kv_sparse) return;
    check_all_kept(g, cache_types_both(CACHE_F16), 64, 16390, 16);
    check_all_kept(g, cache_types_both(CACHE_F16), 512, 16384, 1);
    if (g->o->kv_scales) check_all_kept(g, (cache_types){CACHE_Q8_0, CACHE_TQ3}, 128, 16390, 16);
}
TEST_SLOW(sparse_attention_with_all_pages_is_dense_attention_at_16k) { rig_each(t, all_kept_at_16k); }

/* A query that is not a number keeps all pages, and nothing is read outside of them. */
static void odd_queries(rig *g)
{
    enum { D = 64, N = 400, HEADS = 2 };
    if (!g->o->kv_sparse) return;
    numbers x    = some_numbers(g, N, 1, HEADS, 1, D);
    float  *q    = (float *)x.q;
    q[3]         = NAN;
    float *dense = attend(g, cache_types_both(CACHE_F16), (sparse_params){0}, &x, N, 1, HEADS, 1, D, 1);
    float *got = attend(g, cache_types_both(CACHE_F16), (sparse_params){QUARTER, 1, 64, 256}, &x, N, 1, HEADS, 1, D, 1);
    for (int i = 0; i < D; i++) SAME(g, isnan(got[i]) && isnan(dense[i]), true);
    SAME_F32(g, got + D, dense + D, D); /* the other head keeps what the first one keeps */
}
TEST(sparse_attention_of_a_query_that_is_not_a_number) { rig_each(t, odd_queries); }

/* --- promise 1 --------------------------------------------------------------------------------------- */
/* The last N rows in one step, in steps of 7 and a row at a time, each in a lane of its own. */
static void check_chunks(rig *g, cache_types types, int D, int heads, int kv)
{
    enum { N = 24, CTX = 420 };
    static const int chunks[] = {N, 7, 1};
    sparse_params    p        = {QUARTER, 1, 64, 256};
    kv_class         c        = rig_kv_sparse(g, types, 1, kv, D, COUNT(chunks), CTX, p);
    numbers          x        = some_numbers(g, CTX, N, heads, kv, D);
    dev              k = rig_put_f32(g, x.k, x.n_kv), v = rig_put_f32(g, x.v, x.n_kv), q = rig_put_f32(g, x.q, x.n_q);
    float           *want = NULL;
    size_t           one = (size_t)(kv * D), width = (size_t)(heads * D);
    for (int lane = 0; lane < (int)COUNT(chunks); lane++) {
        dev       y   = rig_new(g, x.n_q * sizeof(float));
        step_rows old = rig_chain(g, lane, 0, CTX - N);
        OP(g, kv_store, &c, 0, &old, k, v);
        for (int at = 0, n; at < N; at += n) {
            n              = chunks[lane] < N - at ? chunks[lane] : N - at;
            step_rows rows = rig_chain(g, lane, CTX - N + at, n);
            size_t    from = (size_t)(CTX - N + at) * one;
            OP(g, kv_store, &c, 0, &rows, dev_at_f32(k, from), dev_at_f32(v, from));
            OP(g, attention, dev_at_f32(y, (size_t)at * width), dev_at_f32(q, (size_t)at * width), heads, &c, 0, &rows,
               0.3f, 0);
        }
        float *got = rig_get_f32(g, y, x.n_q);
        if (want) SAME_F32(g, got, want, x.n_q);
        want = got;
    }
}

static void chunks(rig *g)
{
    if (!g->o->kv_sparse) return;
    check_chunks(g, cache_types_both(CACHE_F16), 64, 4, 2);
    check_chunks(g, cache_types_both(CACHE_F32), 64, 3, 3);
    check_chunks(g, cache_types_both(CACHE_F16), 512, 4, 1);
    if (g->o->kv_scales) check_chunks(g, (cache_types){CACHE_Q8_0, CACHE_Q4_0}, 128, 4, 2);
}
TEST(sparse_rows_are_their_own_however_chunked) { rig_each(t, chunks); }

/* Positions 0 .. CTX - 1 by plain decoding in lane 0. In lane 1 the last DRAFT of them are rows of a tree, each with a
 * wrong sibling before it; the right path is moved to its slots. Afterwards both lanes attend alike from far on, so the
 * summaries of the pages are those of the moved keys. */
static void check_committed_tree(rig *g, cache_types types)
{
    enum { D = 64, HEADS = 4, KV = 2, ONE = KV * D, DRAFT = 20, CTX = 240, MORE = 400, LAYERS = 2 };
    sparse_params p = {QUARTER, 1, 64, 128};
    kv_class      c = rig_kv_sparse(g, types, LAYERS, KV, D, 2, CTX + MORE + 2 * DRAFT, p);
    numbers       x = some_numbers(g, CTX + MORE, 1, HEADS, KV, D);
    dev           k = rig_put_f32(g, x.k, x.n_kv), v = rig_put_f32(g, x.v, x.n_kv), q = rig_put_f32(g, x.q, x.n_q);
    int32_t       parent[2 * DRAFT];
    float        *tree[2] = {rig_randn(g, 2 * DRAFT * ONE), rig_randn(g, 2 * DRAFT * ONE)};
    kv_move_item  move[DRAFT];
    for (int i = 0; i < DRAFT; i++) { /* rows 2 i: wrong, 2 i + 1: right */
        parent[2 * i] = parent[2 * i + 1] = i ? 2 * i - 1 : -1;
        memcpy(tree[0] + (size_t)((2 * i + 1) * ONE), x.k + (size_t)((CTX - DRAFT + i) * ONE), ONE * sizeof(float));
        memcpy(tree[1] + (size_t)((2 * i + 1) * ONE), x.v + (size_t)((CTX - DRAFT + i) * ONE), ONE * sizeof(float));
        move[i] = (kv_move_item){1, CTX - DRAFT + 2 * i + 1, 1, CTX - DRAFT + i, 0};
    }
    float *out[2];
    for (int lane = 0; lane < 2; lane++) {
        step_rows all = rig_chain(g, lane, 0, CTX - (lane ? DRAFT : 0)), rest = rig_chain(g, lane, CTX, MORE);
        step_rows rows = rig_tree(g, lane, CTX - DRAFT, parent, 2 * DRAFT),
                  last = rig_chain(g, lane, CTX + MORE - 1, 1);
        for (int layer = 0; layer < LAYERS; layer++) {
            OP(g, kv_store, &c, layer, &all, k, v);
            if (lane)
                OP(g, kv_store, &c, layer, &rows, rig_put_f32(g, tree[0], 2 * DRAFT * ONE),
                   rig_put_f32(g, tree[1], 2 * DRAFT * ONE));
        }
        if (lane) OP(g, kv_move, &c, rig_put(g, move, sizeof move), DRAFT, NULL);
        for (int layer = 0; layer < LAYERS; layer++)
            OP(g, kv_store, &c, layer, &rest, dev_at_f32(k, CTX * ONE), dev_at_f32(v, CTX * ONE));
        dev y = rig_new(g, LAYERS * x.n_q * sizeof(float));
        for (int layer = 0; layer < LAYERS; layer++)
            OP(g, attention, dev_at_f32(y, (size_t)layer * x.n_q), q, HEADS, &c, layer, &last, 0.3f, 0);
        out[lane] = rig_get_f32(g, y, LAYERS * x.n_q);
    }
    SAME_F32(g, out[1], out[0], LAYERS * x.n_q);
}

static void committed_tree(rig *g)
{
    if (!g->o->kv_sparse) return;
    check_committed_tree(g, cache_types_both(CACHE_F16));
    if (g->o->kv_scales) check_committed_tree(g, (cache_types){CACHE_TQ3, CACHE_Q8_0});
}
TEST(sparse_summaries_follow_the_moves_of_a_tree) { rig_each(t, committed_tree); }

/* More heads and pages than the usual scratch has room for: a row whose key on the first page outweighs all others. */
static void many_pages(rig *g)
{
    enum { D = 8, KV = 2, HEADS = 256, PAGES = 32784, FEW = 2 * KV_PAGE };
    err    e = {0};
    float *k = arena_new_n(&g->host, float, FEW *KV *D), *v = arena_new_n(&g->host, float, FEW *KV *D);
    float *q = arena_new_n(&g->host, float, HEADS *D);
    if (strcmp(g->o->name, "cpu")) return; /* the reference is slow */
    kv_class c =
        rig_kv_sparse(g, cache_types_both(CACHE_F16), 1, KV, D, 1, FEW, (sparse_params){SPARSE_ONE / 2, 1, 64, 256});
    int32_t *table = arena_new_n(&g->host, int32_t, PAGES), *ids = rig_get_i32(g, c.table, 2);
    for (int i = 0; i < FEW * KV * D; i++) k[i] = v[i] = i < FEW / 2 * KV * D ? 4 : 0;
    for (int i = 0; i < HEADS * D; i++) q[i] = 1;
    for (int i = 0; i < PAGES; i++) table[i] = ids[i > 0];
    step_rows few = rig_chain(g, 0, 0, FEW), row = rig_chain(g, 0, PAGES * KV_PAGE - 1, 1);
    dev       y = rig_new(g, HEADS * D * sizeof(float));
    OP(g, kv_store, &c, 0, &few, rig_put_f32(g, k, FEW * KV * D), rig_put_f32(g, v, FEW * KV * D));
    c.table        = rig_put_i32(g, table, PAGES);
    c.table_stride = PAGES;
    SAME(g, g->o->queue_reserve(g->q, &(queue_limits){.sparse = (size_t)HEADS * PAGES}, &e), true);
    OP(g, attention, y, rig_put_f32(g, q, HEADS * D), HEADS, &c, 0, &row, 1, 0);
    const float *out = rig_get_f32(g, y, HEADS * D);
    test_case   *t   = g->t;
    for (int i = 0; i < HEADS * D; i++) CHECK_NEAR(out[i], 4, 1e-3);
}
TEST(sparse_attention_of_many_heads_and_pages) { rig_each(t, many_pages); }

/* Lane 0 gets its keys from `heads`, in steps of several sizes; lane 1 gets the same keys, read back, from `kv_store`.
 * Both attend alike, so `heads` has summarised the pages. Norms and rotation leave keys of this form unchanged. */
static void heads_summarise(rig *g)
{
    enum { D = 64, HEADS = 2, CTX = 320 };
    static const int steps[] = {1, 7, 16, 40, 64, 64, 64, 64};
    sparse_params    p       = {QUARTER, 1, 64, 128};
    if (!g->o->kv_sparse) return;
    kv_class c = rig_kv_sparse(g, cache_types_both(CACHE_F16), 1, 1, D, 2, CTX, p);
    float   *k = arena_new_n(&g->host, float, CTX *D), *ones = arena_new_n(&g->host, float, D);
    float   *none = arena_new_n(&g->host, float, D / 2);
    for (int i = 0; i < CTX * D; i++) /* of norm 1, exactly; the keys of a page are equal */
        k[i] = i / D % KV_PAGE ? k[i - D] : test_rand(&g->rand) % 2 ? 1.0f : -1.0f;
    for (int i = 0; i < D; i++) ones[i] = (float)(1 + i % 7);
    for (int i = 0; i < D / 2; i++) none[i] = 0;
    dev       v = rig_put_randn(g, CTX * D), w = rig_put_f32(g, ones, D), q = rig_put_randn(g, HEADS * D);
    head_rows h = {
        .w_q = w, .w_k = w, .rope = {.n_dims = D, .freq = rig_put_f32(g, none, D / 2)}, .n_heads = HEADS, .c = &c};
    dev x = rig_put_f32(g, k, CTX * D);
    for (int at = 0, i = 0; at < CTX; at += steps[i++]) {
        step_rows rows = rig_chain(g, 0, at, steps[i]);
        h.q            = rig_put_randn(g, (size_t)(steps[i] * HEADS * D));
        h.k            = dev_at_f32(x, (size_t)(at * D));
        h.v            = dev_at_f32(v, (size_t)(at * D));
        ops_heads(g->o, g->q, &h, &rows);
    }
    for (int i = 0; i < CTX * D; i++) k[i] *= ones[i % D];
    step_rows all = rig_chain(g, 1, 0, CTX);
    OP(g, kv_store, &c, 0, &all, rig_put_f32(g, k, CTX * D), v);
    float *out[2];
    for (int lane = 0; lane < 2; lane++) {
        step_rows last = rig_chain(g, lane, CTX - 1, 1);
        dev       y    = rig_new(g, HEADS * D * sizeof(float));
        OP(g, attention, y, q, HEADS, &c, 0, &last, 0.1f, 0);
        out[lane] = rig_get_f32(g, y, HEADS * D);
    }
    SAME_F32(g, out[0], out[1], HEADS * D);
}
TEST(sparse_summaries_follow_heads) { rig_each(t, heads_summarise); }
