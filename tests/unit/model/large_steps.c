/* Steps of up to 4,096 rows: the same bits as steps of 256. */
#include "base/mem.h"
#include "kv/lane.h"
#include "model/model.h"
#include "test.h"

typedef struct {
    target  *m;
    kv_pool *kv;
    kv_seq  *seq;
    step     s;
} rig;

static bool open_rig(test_case *t, rig *g, int max_rows, int n_rows)
{
    err           e   = {0};
    checkpoint   *cp  = NULL;
    model_options opt = {.device = "cpu", .n_threads = 2, .max_rows = max_rows};
    *g                = (rig){0};
    if (!CHECK_OK(checkpoint_open(&cp, test_path("models/nano/target.gguf"), &e), e)) return false;
    bool ok = CHECK_OK(model_open(&g->m, cp, &opt, &e), e);
    checkpoint_close(cp);
    if (!ok) return false;
    kv_pool_spec spec = {
        .classes = g->m->kv_class, .n_classes = g->m->n_kv_classes, .max_lanes = 1, .max_slots = n_rows};
    CHECK(kv_bytes_for(&spec, n_rows, &spec.max_bytes));
    if (!CHECK_OK(kv_pool_new(&g->kv, g->m->o, &spec, &e), e)) return false;
    g->seq = kv_seq_new(g->kv, 0);
    step_init(&g->s, g->m->max_rows);
    CHECK_INT(g->m->max_rows, max_rows);
    return CHECK_OK(kv_seq_grow(g->seq, n_rows, &e), e);
}

static void close_rig(rig *g)
{
    kv_seq_free(g->seq);
    kv_pool_free(g->kv);
    step_deinit(&g->s);
    model_close(g->m);
}

/* Runs n_rows rows in steps of max_rows. Returns the logits of the last one. */
static float *run_prompt(test_case *t, rig *g, int n_rows)
{
    uint64_t seed   = 11;
    size_t   V      = (size_t)g->m->n_vocab;
    float   *logits = xnew_n(float, V);
    for (int at = 0, rows; at < n_rows; at += rows) {
        err e = {0};
        rows  = n_rows - at < g->m->max_rows ? n_rows - at : g->m->max_rows;
        step_clear(&g->s);
        for (int i = 0; i < rows; i++)
            step_add(&g->s, kv_seq_lane(g->seq), at + i, (int32_t)(test_rand(&seed) % V), at + i == n_rows - 1);
        CHECK_OK(g->m->step(g->m, g->kv, &g->s, &e), e);
    }
    g->m->head(g->m, 0, 1);
    g->m->o->download(g->m->q, logits, g->m->logits, V * sizeof *logits);
    g->m->o->sync(g->m->q);
    return logits;
}

/* Returns the address of a page; the memory of this backend is the host's. */
static const char *page_at(const kv_class *c, const kv_seq *s, int page)
{
    int32_t id = ((const int32_t *)c->table.p)[kv_seq_lane(s) * c->table_stride + page];
    return (const char *)c->pool.p + (size_t)id * KV_UNIT;
}

static void check_large(test_case *t, int max_rows, int n_rows)
{
    rig a = {0}, b = {0};
    if (open_rig(t, &a, STEP_DEFAULT_ROWS, n_rows) && open_rig(t, &b, max_rows, n_rows)) {
        float *x = run_prompt(t, &a, n_rows), *y = run_prompt(t, &b, n_rows);
        CHECK(!memcmp(x, y, (size_t)a.m->n_vocab * sizeof *x));
        for (int i = 0; i < a.m->n_kv_classes; i++) {
            const kv_class *ca = kv_pool_class(a.kv, i), *cb = kv_pool_class(b.kv, i);
            size_t          bytes = (size_t)ca->n_layers * kv_layer_bytes(ca);
            for (int page = 0; page < n_rows / KV_PAGE; page++)
                CHECK(!memcmp(page_at(ca, a.seq, page), page_at(cb, b.seq, page), bytes));
        }
        mem_free(x);
        mem_free(y);
    }
    close_rig(&a);
    close_rig(&b);
}

TEST(model_large_steps_give_the_same_bits) { check_large(t, 600, 600); }
TEST_SLOW(model_steps_of_4096_rows_give_the_same_bits) { check_large(t, STEP_MAX_ROWS, STEP_MAX_ROWS); }
