/* Steps of up to 4,096 rows: the same bits as smaller ones. */
#include "backends.h"
#include "base/mem.h"
#include "kv/lane.h"
#include "model/model.h"
#include "model/open_target.h"
#include "test.h"

typedef struct {
    target  *m;
    kv_pool *kv;
    kv_seq  *seq;
    step     s;
} rig;

static bool open_rig(test_case *t, rig *g, const char *device, int max_rows, int n_rows)
{
    err           e   = {0};
    model_options opt = {.device = device, .n_threads = 2, .max_rows = max_rows};
    *g                = (rig){0};
    if (!test_open_target(t, &g->m, test_path("models/nano/target.gguf"), &opt) ||
        !test_open_pool(t, &g->kv, g->m, &(test_pool){.max_lanes = 1, .max_slots = n_rows}))
        return false;
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

/* Runs n_rows rows in steps of `chunk`. Returns the logits of the last one. */
static float *run_prompt(test_case *t, rig *g, int n_rows, int chunk)
{
    uint64_t seed   = 11;
    size_t   V      = (size_t)g->m->n_vocab;
    float   *logits = xnew_n(float, V);
    for (int at = 0, rows; at < n_rows; at += rows) {
        err e = {0};
        rows  = n_rows - at < chunk ? n_rows - at : chunk;
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

/* Returns K and V of a class, page after page; freed by the caller. */
static char *read_pages(rig *g, const kv_class *c, size_t bytes, int n_pages)
{
    const ops *o     = g->m->o;
    int32_t   *table = xnew_n(int32_t, (size_t)c->table_stride);
    char      *out   = xnew_n(char, (size_t)n_pages *bytes);
    o->download(g->m->q, table, dev_at(c->table, (size_t)(kv_seq_lane(g->seq) * c->table_stride) * sizeof *table),
                (size_t)c->table_stride * sizeof *table);
    o->sync(g->m->q);
    for (int i = 0; i < n_pages; i++)
        o->download(g->m->q, out + (size_t)i * bytes, dev_at(c->pool, (size_t)table[i] * KV_UNIT), bytes);
    o->sync(g->m->q);
    mem_free(table);
    return out;
}

static void same_pages(test_case *t, rig *a, rig *b, int n_rows, int chunk)
{
    for (int i = 0; i < a->m->n_kv_classes; i++) {
        const kv_class *ca = kv_pool_class(a->kv, i), *cb = kv_pool_class(b->kv, i);
        size_t          bytes = (size_t)ca->n_layers * kv_layer_bytes(ca);
        char           *x = read_pages(a, ca, bytes, n_rows / KV_PAGE), *y = read_pages(b, cb, bytes, n_rows / KV_PAGE);
        CHECK_MSG(!memcmp(x, y, bytes * (size_t)(n_rows / KV_PAGE)), "K/V of class %d differs: chunks of %d", i, chunk);
        mem_free(x);
        mem_free(y);
    }
}

/* Runs a prompt in one step, and in steps of each of these sizes. */
static void check_chunks(test_case *t, const char *device, int n_rows, const int *chunk, size_t n)
{
    rig a = {0};
    if (open_rig(t, &a, device, n_rows, n_rows)) {
        float *x = run_prompt(t, &a, n_rows, n_rows);
        for (size_t i = 0; i < n; i++) {
            rig b = {0};
            if (open_rig(t, &b, device, n_rows, n_rows)) {
                float *y = run_prompt(t, &b, n_rows, chunk[i]);
                CHECK_MSG(!memcmp(x, y, (size_t)a.m->n_vocab * sizeof *x), "logits differ: chunks of %d", chunk[i]);
                same_pages(t, &a, &b, n_rows, chunk[i]);
                mem_free(y);
            }
            close_rig(&b);
        }
        mem_free(x);
    }
    close_rig(&a);
}

static void each_device(test_case *t, int n_rows, const int *chunk, size_t n)
{
    const char *name[TEST_BACKENDS_MAX];
    for (int i = 0, n_devices = test_devices(name); i < n_devices; i++)
        if (strcmp(name[i], "ref") != 0) check_chunks(t, name[i], n_rows, chunk, n);
}

TEST(model_large_steps_give_the_same_bits) { each_device(t, 304, (const int[]){256, 61}, 2); }
TEST_SLOW(model_steps_of_4096_rows_give_the_same_bits)
{
    each_device(t, STEP_MAX_ROWS, (const int[]){1, 7, 64, 512}, 4);
}
