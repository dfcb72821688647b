/* Promise 1 through the whole model: a row's logits are the same bits whatever shares its step. */
#include "backends.h"
#include "base/fault.h"
#include "model/model.h"
#include "model/open_target.h"
#include "test.h"
#include "tiny_model.h"

enum { T = 90, VOCAB = 96, LANES = 20, MAX_SLOTS = 160 };

typedef struct {
    target  *m;
    kv_pool *kv;
    kv_seq  *lane[LANES];
    step     s;
} rig1;

static bool open_rig(test_case *t, rig1 *g, const char *path, const test_backend *b, cache_types kv_type)
{
    model_options opt = {.device = b->name, .n_threads = b->n_threads};
    *g                = (rig1){0};
    if (!test_open_target(t, &g->m, path, &opt)) return false;
    target_set_kv(g->m, &(kv_types){.full = kv_type, .sliding = kv_type, .draft = kv_type});
    if (!test_open_pool(t, &g->kv, g->m, &(test_pool){.max_lanes = LANES, .max_slots = MAX_SLOTS})) return false;
    for (int i = 0; i < LANES; i++) g->lane[i] = kv_seq_new(g->kv, 0);
    step_init(&g->s, g->m->max_rows);
    return true;
}

static void close_rig(rig1 *g)
{
    for (int i = 0; i < LANES && g->kv; i++) kv_seq_free(g->lane[i]);
    kv_pool_free(g->kv);
    step_deinit(&g->s);
    model_close(g->m);
}

/* Runs the step; the logits of its wanted rows go to out, one row of VOCAB each. */
static void run_step(test_case *t, rig1 *g, float *out)
{
    err     e = {0};
    target *m = g->m;
    CHECK_OK(m->step(m, g->kv, &g->s, &e), e);
    for (int first = 0; first < g->s.n_want; first += HEAD_ROWS) {
        int n = g->s.n_want - first < HEAD_ROWS ? g->s.n_want - first : HEAD_ROWS;
        m->head(m, first, n);
        m->o->download(m->q, out + (size_t)first * VOCAB, m->logits, (size_t)n * VOCAB * sizeof(float));
        m->o->sync(m->q);
    }
}

static void prompt_in_chunks(test_case *t, rig1 *g, int lane, const int32_t *id, int n, int chunk, float *out)
{
    err e = {0};
    CHECK_OK(kv_seq_grow(g->lane[lane], n, &e), e);
    for (int from = 0; from < n; from += chunk) {
        step_clear(&g->s);
        for (int i = from; i < n && i < from + chunk; i++)
            step_add(&g->s, kv_seq_lane(g->lane[lane]), i, id[i], out != NULL);
        run_step(t, g, out ? out + (size_t)from * VOCAB : NULL);
    }
}

static void same_bits(test_case *t, const float *a, const float *b, int n_rows, const char *what, int k)
{
    for (int r = 0; r < n_rows; r++)
        if (!CHECK_MSG(!memcmp(a + (size_t)r * VOCAB, b + (size_t)r * VOCAB, VOCAB * sizeof(float)),
                       "row %d differs: %s %d (first logit %.9g, alone %.9g)", r, what, k, (double)a[(size_t)r * VOCAB],
                       (double)b[(size_t)r * VOCAB]))
            return;
}

/* The row at position T-1 with k rows of other lanes before and after it, each at a position of its own. */
static void among_others(test_case *t, rig1 *g, const int32_t *id, const float *alone)
{
    static const int others[] = {1, 2, 3, 16, 17};
    err              e        = {0};
    float            out[VOCAB];
    for (int lane = 1; lane < LANES - 1; lane++) prompt_in_chunks(t, g, lane, id + lane, 3 * lane, 64, NULL);
    prompt_in_chunks(t, g, LANES - 1, id, T - 1, 64, NULL);
    CHECK_OK(kv_seq_grow(g->lane[LANES - 1], T, &e), e);
    for (size_t k = 0; k < COUNT(others); k++) {
        step_clear(&g->s);
        for (int i = 0; i <= others[k]; i++) {
            int lane = i + 1;
            if (i == others[k] / 2) step_add(&g->s, kv_seq_lane(g->lane[LANES - 1]), T - 1, id[T - 1], true);
            if (i == others[k]) break;
            CHECK_OK(kv_seq_grow(g->lane[lane], 3 * lane + 1, &e), e);
            step_add(&g->s, kv_seq_lane(g->lane[lane]), 3 * lane, id[i], false);
        }
        CHECK_INT(g->s.n_rows, others[k] + 1);
        run_step(t, g, out);
        same_bits(t, out, alone + (size_t)(T - 1) * VOCAB, 1, "among other rows:", others[k]);
    }
}

/* A tree after `root` committed positions whose one path is the text itself; then the path is compacted and the text
 * goes on from there. */
static void as_tree(test_case *t, rig1 *g, const int32_t *id, int root, const float *alone)
{
    static const int parent[]  = {-1, 0, 0, 1, 2, 2, 4, 4, 7}; /* the path 0, 2, 4, 7, 8 is the text */
    static const int on_path[] = {0, 2, 4, 7, 8};
    int              lane = kv_seq_lane(g->lane[0]), depth[COUNT(parent)] = {0};
    float            out[COUNT(parent) * VOCAB];
    err              e = {0};
    kv_seq_cut(g->lane[0], root);
    CHECK_OK(kv_seq_grow(g->lane[0], root + (int)COUNT(parent), &e), e);
    step_clear(&g->s);
    for (int i = 0; i < (int)COUNT(parent); i++) {
        bool text = false;
        depth[i]  = parent[i] < 0 ? 0 : depth[parent[i]] + 1;
        for (size_t k = 0; k < COUNT(on_path); k++) text |= on_path[k] == i;
        step_add_tree(&g->s, lane, root, i, parent[i],
                      text ? id[root + depth[i]] : (id[root + depth[i]] + 1 + i) % VOCAB, true);
    }
    run_step(t, g, out);
    kv_move_item move[COUNT(on_path)];
    for (int k = 0; k < (int)COUNT(on_path); k++) {
        same_bits(t, out + (size_t)on_path[k] * VOCAB, alone + (size_t)(root + k) * VOCAB, 1, "in a tree at depth", k);
        move[k] = (kv_move_item){lane, root + on_path[k], lane, root + k, 0};
    }
    dev items;
    CHECK_OK(g->m->o->alloc(g->m->o, &items, sizeof move, &e), e);
    g->m->o->upload(g->m->q, items, move, sizeof move);
    for (int c = 0; c < g->m->n_kv_classes; c++)
        g->m->o->kv_move(g->m->q, kv_pool_class(g->kv, c), items, (int)COUNT(on_path), NULL);
    int next = root + (int)COUNT(on_path);
    kv_seq_cut(g->lane[0], next);
    CHECK_OK(kv_seq_grow(g->lane[0], next + 1, &e), e);
    step_clear(&g->s);
    step_add(&g->s, lane, next, id[next], true);
    run_step(t, g, out);
    same_bits(t, out, alone + (size_t)next * VOCAB, 1, "after the tree was compacted at", root);
    g->m->o->sync(g->m->q);
    g->m->o->free(g->m->o, items);
}

static void check_model(test_case *t, const tiny_model *m, cache_types kv_type)
{
    static const int chunks[] = {1, 7, 64, T};
    static float     alone[T * VOCAB], out[T * VOCAB];
    int32_t          id[T + LANES];
    uint64_t         r = 7;
    char             path[512];
    rig1             g;
    snprintf(path, sizeof path, "%s", tiny_model_write(m, "promise1.gguf"));
    for (int i = 0; i < T + LANES; i++) id[i] = (int32_t)(test_rand(&r) % VOCAB);
    test_backend b[TEST_BACKENDS_MAX];
    for (int i = 1, n = test_backends(b); i < n; i++) { /* ref, the first, has one thread and no tiles */
        if (!open_rig(t, &g, path, &b[i], kv_type)) return;
        for (size_t c = 0; c < COUNT(chunks); c++) {
            bool first = c == 0 && strcmp(b[i].name, b[i - 1].name);
            prompt_in_chunks(t, &g, 0, id, T, chunks[c], first ? alone : out);
            if (!first) same_bits(t, out, alone, T, c ? "chunks of" : "more threads, chunks of", chunks[c]);
            kv_seq_cut(g.lane[0], 0);
        }
        prompt_in_chunks(t, &g, 0, id, T, 64, NULL);
        as_tree(t, &g, id, 40, alone);
        prompt_in_chunks(t, &g, 0, id, T, 64, NULL);
        as_tree(t, &g, id, 61, alone); /* across a page and a tile of attention */
        among_others(t, &g, id, alone);
        close_rig(&g);
    }
    float spread = 0;
    for (int i = 1; i < VOCAB; i++) spread += fabsf(alone[i] - alone[0]);
    CHECK_MSG(isfinite(spread) && spread > 1, "the logits are flat (%g): the model tests nothing", (double)spread);
}

#define MODEL(type_, experts, ple)                                                                                     \
    (&(tiny_model){                                                                                                    \
        .type = type_, .n_embd = 256, .n_layers = ple ? 6 : 3, .n_vocab = VOCAB, .n_experts = experts, .n_ple = ple})

TEST(model_promise1_f32) { check_model(t, MODEL(QUANT_F32, 4, 0), cache_types_both(CACHE_F32)); }
TEST(model_promise1_f16) { check_model(t, MODEL(QUANT_F16, 0, 0), cache_types_both(CACHE_F16)); }
TEST(model_promise1_bf16) { check_model(t, MODEL(QUANT_BF16, 4, 0), cache_types_both(CACHE_F16)); }
TEST(model_promise1_q8_0) { check_model(t, MODEL(QUANT_Q8_0, 4, 0), cache_types_both(CACHE_F16)); }
TEST(model_promise1_q4_0) { check_model(t, MODEL(QUANT_Q4_0, 4, 0), cache_types_both(CACHE_F32)); }
TEST(model_promise1_q5_0) { check_model(t, MODEL(QUANT_Q5_0, 0, 0), cache_types_both(CACHE_F16)); }
TEST(model_promise1_q4_k) { check_model(t, MODEL(QUANT_Q4_K, 4, 0), cache_types_both(CACHE_F16)); }
TEST(model_promise1_q5_k) { check_model(t, MODEL(QUANT_Q5_K, 0, 0), cache_types_both(CACHE_F16)); }
TEST(model_promise1_q6_k) { check_model(t, MODEL(QUANT_Q6_K, 4, 0), cache_types_both(CACHE_F32)); }
TEST(model_promise1_q2_k) { check_model(t, MODEL(QUANT_Q2_K, 4, 0), (cache_types){CACHE_F16, CACHE_F32}); }
TEST(model_promise1_q3_k) { check_model(t, MODEL(QUANT_Q3_K, 0, 0), cache_types_both(CACHE_F32)); }
TEST(model_promise1_iq4_nl) { check_model(t, MODEL(QUANT_IQ4_NL, 0, 0), cache_types_both(CACHE_F16)); }
TEST(model_promise1_iq4_xs) { check_model(t, MODEL(QUANT_IQ4_XS, 4, 0), cache_types_both(CACHE_F32)); }
TEST(model_promise1_mxfp4) { check_model(t, MODEL(QUANT_MXFP4, 4, 0), cache_types_both(CACHE_F16)); }
TEST(model_promise1_per_layer_embeddings) { check_model(t, MODEL(QUANT_Q8_0, 0, 64), cache_types_both(CACHE_F16)); }

/* Types of K and V with scales. */
TEST(model_promise1_kv_q8_0) { check_model(t, MODEL(QUANT_Q8_0, 4, 0), cache_types_both(CACHE_Q8_0)); }
TEST(model_promise1_kv_q8_0_q4_0) { check_model(t, MODEL(QUANT_Q8_0, 0, 0), (cache_types){CACHE_Q8_0, CACHE_Q4_0}); }
TEST(model_promise1_kv_q4_0) { check_model(t, MODEL(QUANT_Q8_0, 0, 64), cache_types_both(CACHE_Q4_0)); }
TEST(model_promise1_kv_tq3) { check_model(t, MODEL(QUANT_Q8_0, 0, 64), cache_types_both(CACHE_TQ3)); }

/* --- padding --------------------------------------------------------------------------------------*/
/* A tree of n rows in which each has the row before it, or the one before that, as its parent. */
static void run_tree(test_case *t, rig1 *g, const int32_t *id, int root, int n, float *out)
{
    err e = {0};
    kv_seq_cut(g->lane[0], root);
    CHECK_OK(kv_seq_grow(g->lane[0], root + n, &e), e);
    step_clear(&g->s);
    for (int i = 0; i < n; i++)
        step_add_tree(&g->s, kv_seq_lane(g->lane[0]), root, i, i < 2 ? i - 1 : i - 1 - i % 2, id[i], i % 3 != 1);
    run_step(t, g, out);
}

/* Steps of 1 to 65 rows, padded to buckets and recorded before, and the same steps as they are. */
static void padded(test_case *t, const char *path, const test_backend *b, const int32_t *id, cache_type kv_type)
{
    enum { ROOT = 20, MOST = 65 };
    static float with[MOST * VOCAB], without[MOST * VOCAB];
    rig1         g;
    if (!open_rig(t, &g, path, b, cache_types_both(kv_type))) return;
    ops *o                               = (ops *)g.m->o;
    void (*padding)(queue * q, dev lane) = o->padding;
    prompt_in_chunks(t, &g, 0, id, ROOT, ROOT, NULL);
    g.m->warm(g.m, g.kv);
    for (int n = 1; n <= MOST; n += n < 8 ? 1 : n % 8 ? 9 : 1) {
        uint64_t before = o->recordings ? o->recordings(g.m->q).recorded : 0;
        run_tree(t, &g, id, ROOT, n, with);
        if (o->recordings) CHECK_INT(o->recordings(g.m->q).recorded, before);
        o->padding = NULL;
        run_tree(t, &g, id, ROOT, n, without);
        o->padding = padding;
        same_bits(t, with, without, g.s.n_want, "padded, rows", n);
    }
    close_rig(&g);
}

TEST(model_promise1_padding_changes_nothing)
{
    test_backend b[TEST_BACKENDS_MAX];
    int32_t      id[70];
    uint64_t     r = 9;
    char         path[512];
    snprintf(path, sizeof path, "%s", tiny_model_write(MODEL(QUANT_Q8_0, 4, 0), "padding.gguf"));
    for (size_t i = 0; i < COUNT(id); i++) id[i] = (int32_t)(test_rand(&r) % VOCAB);
    for (int i = 1, n = test_backends(b); i < n; i++) {
        padded(t, path, &b[i], id, CACHE_F16);
        padded(t, path, &b[i], id, CACHE_Q8_0);
    }
}

/* --- steps of few lanes ---------------------------------------------------------------------------*/
static int hints[2]; /* calls of attention, by step_rows.few_lanes */

static bool asked(queue *q, const kv_class *c, int n_rows)
{
    (void)q, (void)c;
    return n_rows >= 12;
}
static void count_hint(queue *q, dev y, dev q_rows, int n_heads, const kv_class *c, int layer, const step_rows *rows,
                       float scale, int window)
{
    (void)q, (void)y, (void)q_rows, (void)n_heads, (void)c, (void)layer, (void)scale, (void)window;
    hints[rows->few_lanes]++;
}
static void store_nothing(queue *q, const kv_class *c, int layer, const step_rows *rows, dev k, dev v)
{
    (void)q, (void)c, (void)layer, (void)rows, (void)k, (void)v;
}

/* Returns the graphs of a model after all steps were recorded in advance. */
static int graphs_of(rig1 *g)
{
    g->m->warm(g->m, g->kv);
    return g->m->o->recordings ? g->m->o->recordings(g->m->q).n : 0;
}

/* Enqueues 12 rows, `each` of a lane from position pos on. Nothing is stored or attended to. */
static void enqueue_rows(test_case *t, rig1 *g, int each, int32_t pos)
{
    err e = {0};
    step_clear(&g->s);
    for (int i = 0; i < 12; i++) step_add(&g->s, kv_seq_lane(g->lane[i / each]), pos + i % each, 1, true);
    CHECK_OK(g->m->step(g->m, g->kv, &g->s, &e), e);
    g->m->o->sync(g->m->q);
}

/* Where a backend asks for lanes, steps are recorded with both values of the hint, and no later step is. */
static void told_of_lanes(test_case *t, const char *path, const test_backend *b)
{
    enum { ROWS = 12, ASKED = 1 }; /* ASKED: numbers of rows of recorded steps from 12 on */
    rig1 g;
    if (!open_rig(t, &g, path, b, cache_types_both(CACHE_F16))) return;
    ops *o        = (ops *)g.m->o;
    g.m->max_rows = ROWS;
    o->asks_lanes = NULL;
    o->attention  = count_hint;
    o->kv_store   = store_nothing;
    o->heads      = NULL;
    int n         = graphs_of(&g);
    o->asks_lanes = asked;
    hints[0] = hints[1] = 0;
    CHECK_INT(graphs_of(&g), o->recordings ? n + ASKED : 0);
    CHECK_INT(hints[1] > 0, o->recordings != NULL);
    uint64_t before = o->recordings ? o->recordings(g.m->q).recorded : 0;
    int      plain  = hints[0], few;
    enqueue_rows(t, &g, 12, 5000);
    few = hints[1];
    CHECK(few > 0 && hints[0] == plain);
    enqueue_rows(t, &g, 1, 5000);
    enqueue_rows(t, &g, 12, 100);
    CHECK_INT(hints[1], few);
    CHECK_INT(hints[0] > plain, o->recordings == NULL);
    if (o->recordings) CHECK_INT(o->recordings(g.m->q).recorded, before);
    close_rig(&g);
}

TEST(model_steps_of_few_lanes_are_recorded_apart)
{
    test_backend b[TEST_BACKENDS_MAX];
    char         path[512];
    snprintf(path, sizeof path, "%s", tiny_model_write(MODEL(QUANT_Q8_0, 0, 0), "few_lanes.gguf"));
    for (int i = 1, n = test_backends(b); i < n; i++) told_of_lanes(t, path, &b[i]);
}

/* Adds n rows of a lane from position pos on. */
static void add_lane(step *s, int lane, int n, int32_t pos)
{
    for (int i = 0; i < n; i++) step_add(s, lane, pos + i, 0, false);
}

TEST(step_has_few_lanes_when_chains_after_long_contexts_weigh_most)
{
    step s;
    step_init(&s, 64);
    add_lane(&s, 0, 8, 4096);
    CHECK(step_has_few_lanes(&s));
    add_lane(&s, 1, 4, 100);
    CHECK(!step_has_few_lanes(&s));
    step_clear(&s);
    add_lane(&s, 0, 7, 30000);
    CHECK(!step_has_few_lanes(&s));
    step_clear(&s);
    add_lane(&s, 0, 16, 20000);
    add_lane(&s, 1, 1, 4096);
    CHECK(step_has_few_lanes(&s));
    add_lane(&s, 2, 1, 20000);
    add_lane(&s, 3, 1, 20000);
    CHECK(!step_has_few_lanes(&s));
    step_clear(&s);
    add_lane(&s, 0, 64, 4000);
    CHECK(!step_has_few_lanes(&s));
    step_clear(&s);
    step_add(&s, 3, 5000, 0, true); /* a tree: its rows share positions */
    for (int i = 1; i < 9; i++) step_add_tree(&s, 3, 5000, i, 0, 0, true);
    CHECK(step_has_few_lanes(&s));
    step_deinit(&s);
}
