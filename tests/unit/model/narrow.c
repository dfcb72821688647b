/* Rows whose results nobody reads end in the last layer that stores K/V or a state. The bits of the others, of the K/V
 * and of captured features are those of a step that runs every row through every layer. */
#include "backends.h"
#include "base/mem.h"
#include "base/num.h"
#include "kv/lane.h"
#include "model/model.h"
#include "model/open_target.h"
#include "test.h"

enum {
    ROWS  = 72,
    TREE  = 7,
    SLOTS = 128,
    LANES = 2
}; /* more than GRAPH_MAX_ROWS: steps that are recorded run all rows */
_Static_assert((int)ROWS > (int)GRAPH_MAX_ROWS, "the step is not recorded");

typedef struct {
    target  *m;
    kv_pool *kv;
    kv_lane *lane[LANES];
    step     s;
} rig;

/* Counts the rows of attention, which has one call per layer, and the calls that may read early what other rows of the
 * step have just stored. Tests run on one thread. */
static void (*attend)(queue *, dev, dev, int, const kv_class *, int, const step_rows *, float, int);
static int  n_attended, n_rows_of_step, n_too_early;
static void count_attention(queue *q, dev y, dev x, int n_heads, const kv_class *c, int layer, const step_rows *r,
                            float scale, int window)
{
    n_attended += r->n_rows;
    n_too_early += r->settled && r->n_rows < n_rows_of_step;
    attend(q, y, x, n_heads, c, layer, r, scale, window);
}
static ops *count_ops(ops *inner)
{
    attend           = inner->attention;
    inner->attention = count_attention;
    return inner;
}

static bool open_rig(test_case *t, rig *g, const char *name, const test_backend *b)
{
    model_options opt = {.device = b->name, .n_threads = b->n_threads, .wrap = count_ops};
    char          dir[256];
    *g = (rig){0};
    snprintf(dir, sizeof dir, "tests/golden/%s", name);
    if (!test_open_target(t, &g->m, test_path(dir), &opt) ||
        !test_open_pool(
            t, &g->kv, g->m,
            &(test_pool){.max_lanes = LANES, .max_slots = SLOTS, .max_kept_rows = TREE, .full_lanes = 2 * LANES}))
        return false;
    for (int i = 0; i < LANES; i++) g->lane[i] = kv_lane_new(g->kv);
    step_init(&g->s, g->m->max_rows);
    return true;
}

static void close_rig(rig *g)
{
    for (int i = 0; i < LANES && g->kv; i++) kv_lane_free(g->lane[i]);
    kv_pool_free(g->kv);
    step_deinit(&g->s);
    model_close(g->m);
}

static void restart(rig *g, int lane)
{
    kv_lane_free(g->lane[lane]);
    g->lane[lane] = kv_lane_new(g->kv);
}

static int32_t token_at(int i) { return (i * 29 + i * i * 3 + 5) % 90; }

/* Runs the step. Returns the logits of the wanted rows, which the caller frees. */
static float *run_step(test_case *t, rig *g)
{
    err     e   = {0};
    target *m   = g->m;
    size_t  V   = (size_t)m->n_vocab;
    float  *out = xnew_n(float, (size_t)(g->s.n_want + 1) * V);
    n_attended = n_too_early = 0;
    n_rows_of_step           = g->s.n_rows;
    CHECK_OK(m->step(m, g->kv, &g->s, &e), e);
    CHECK_INT(n_too_early, 0);
    for (int first = 0; first < g->s.n_want; first += HEAD_ROWS) {
        int n = min_int(g->s.n_want - first, HEAD_ROWS);
        m->head(m, first, n);
        m->o->download(m->q, out + (size_t)first * V, m->logits, (size_t)n * V * sizeof(float));
        m->o->sync(m->q);
    }
    return out;
}

/* Adds the next n tokens of a lane as sure rows. The last n_want of them are wanted. */
static void add_prompt(test_case *t, rig *g, int lane, int n, int n_want)
{
    err e   = {0};
    int pos = kv_lane_len(g->lane[lane]);
    CHECK_OK(kv_lane_grow(g->lane[lane], n, 0, &e), e);
    for (int i = 0; i < n; i++)
        step_add(&g->s, kv_lane_index(g->lane[lane]), pos + i, token_at(pos + i), i >= n - n_want);
}

static float *run_prompt(test_case *t, rig *g, int n, int n_want)
{
    kv_step_begin(g->kv);
    step_clear(&g->s);
    add_prompt(t, g, 0, n, n_want);
    float *out = run_step(t, g);
    kv_lane_commit(g->lane[0], NULL, 0);
    return out;
}

/* Returns how many rows pass through attention in all layers, for `all` rows of which `read` are read. */
static int attention_rows(const rig *g, int all, int read)
{
    int n = 0;
    for (int i = 0; i < g->m->n_kv_classes; i++) n += g->m->kv_class[i].n_layers;
    int shared = g->m->n_states ? 0 : g->m->n_layers - n; /* layers that read the K/V of others */
    return (n - 1) * all + (1 + shared) * read;
}

static void same_row(test_case *t, const rig *g, const float *a, const float *b, const char *what, int row)
{
    CHECK_MSG(!memcmp(a, b, (size_t)g->m->n_vocab * sizeof *a), "%s: %s, row %d", g->m->o->name, what, row);
}

/* A prompt of which one row is wanted, and chunks of which none is, against one whose rows are all wanted. */
static void check_prompts(test_case *t, rig *g)
{
    size_t V    = (size_t)g->m->n_vocab;
    float *all  = run_prompt(t, g, ROWS, ROWS);
    int    full = n_attended;
    float *next = run_prompt(t, g, 1, 1);
    CHECK_INT(full, attention_rows(g, ROWS, ROWS));
    static const int wants[] = {0, 1, 5, ROWS / 2};
    for (size_t i = 0; i < COUNT(wants); i++) {
        int n = wants[i];
        restart(g, 0);
        float *some = run_prompt(t, g, ROWS, n);
        CHECK_INT(n_attended, attention_rows(g, ROWS, n));
        for (int k = 0; k < n; k++) same_row(t, g, some + (size_t)k * V, all + (size_t)(ROWS - n + k) * V, "wanted", n);
        float *after = run_prompt(t, g, 1, 1);
        same_row(t, g, after, next, "the row after a prompt, wanted rows", n);
        mem_free(some);
        mem_free(after);
    }
    mem_free(all);
    mem_free(next);
}

/* A tree whose rows are not all wanted, in lane 1 after ten tokens. */
static void add_tree(test_case *t, rig *g)
{
    static const int parent[TREE] = {-1, 0, 1, 0, 3, 2, 3};
    err              e            = {0};
    int              root = kv_lane_len(g->lane[1]), first = g->s.n_rows;
    CHECK_OK(kv_lane_grow(g->lane[1], 0, TREE, &e), e);
    for (int i = 0; i < TREE; i++)
        step_add_tree(&g->s, kv_lane_index(g->lane[1]), root, i, parent[i] < 0 ? -1 : first + parent[i],
                      token_at(40 + i), i != 2 && i != 3);
    step_keep(&g->s, TREE, kv_lane_kept(g->lane[1]));
}

/* The tree alone, and after the rows of a prompt that nobody reads. */
static void check_trees(test_case *t, rig *g)
{
    float *out[2];
    restart(g, 0);
    kv_step_begin(g->kv);
    step_clear(&g->s);
    add_prompt(t, g, 1, 10, 0);
    mem_free(run_step(t, g));
    kv_lane_commit(g->lane[1], NULL, 0);
    for (int among = 0; among < 2; among++) {
        kv_step_begin(g->kv);
        step_clear(&g->s);
        if (among) add_prompt(t, g, 0, ROWS, 0);
        add_tree(t, g);
        out[among] = run_step(t, g);
        if (among) {
            CHECK_INT(n_attended, attention_rows(g, ROWS + TREE, TREE));
            kv_lane_commit(g->lane[0], NULL, 0);
        }
        kv_lane_rollback(g->lane[1], true);
    }
    for (int i = 0; i < TREE - 2; i++)
        same_row(t, g, out[1] + (size_t)i * (size_t)g->m->n_vocab, out[0] + (size_t)i * (size_t)g->m->n_vocab, "tree",
                 i);
    mem_free(out[0]);
    mem_free(out[1]);
}

static float *features_of(rig *g)
{
    size_t n   = (size_t)ROWS * (size_t)g->m->n_features * (size_t)g->m->n_embd;
    float *out = xnew_n(float, n);
    g->m->o->download(g->m->q, out, g->m->features, n * sizeof *out);
    g->m->o->sync(g->m->q);
    return out;
}

/* Features of every row are captured, also before layers that rows end in, and after the last one. */
static void check_captures(test_case *t, rig *g)
{
    int L     = g->m->n_layers;
    err e     = {0};
    int ids[] = {1, L - 2, L - 1, L};
    for (int n_ids = 1; n_ids <= 4; n_ids++) {
        size_t bytes = (size_t)(ROWS * n_ids * g->m->n_embd) * sizeof(float);
        if (!CHECK_OK(g->m->capture(g->m, ids, n_ids, &e), e)) return;
        restart(g, 0);
        float *logits = run_prompt(t, g, ROWS, ROWS), *all = features_of(g);
        restart(g, 0);
        float *last = run_prompt(t, g, ROWS, 1), *some = features_of(g);
        CHECK(ids[n_ids - 1] == L ? n_attended == attention_rows(g, ROWS, ROWS)
                                  : n_attended < attention_rows(g, ROWS, ROWS));
        CHECK_MSG(!memcmp(all, some, bytes), "features of %d layers on %s", n_ids, g->m->o->name);
        same_row(t, g, last, logits + (size_t)(ROWS - 1) * (size_t)g->m->n_vocab, "captures", n_ids);
        mem_free(logits);
        mem_free(all);
        mem_free(last);
        mem_free(some);
    }
    CHECK_OK(g->m->capture(g->m, NULL, 0, &e), e);
}

static void check_model(test_case *t, const char *name)
{
    test_backend b[TEST_BACKENDS_MAX];
    for (int i = 0, n = test_backends(b); i < n; i++) {
        rig g;
        if (open_rig(t, &g, name, &b[i])) {
            check_prompts(t, &g);
            check_trees(t, &g);
            check_captures(t, &g);
        }
        close_rig(&g);
    }
}

TEST(narrow_rows_keep_their_bits_dense) { check_model(t, "gemma4-dense"); }
TEST(narrow_rows_keep_their_bits_experts) { check_model(t, "gemma4-moe"); }
TEST(narrow_rows_keep_their_bits_shared_kv) { check_model(t, "gemma4-ple"); }
TEST(narrow_rows_keep_their_bits_recurrent) { check_model(t, "qwen35-dense"); }
TEST(narrow_rows_keep_their_bits_recurrent_experts) { check_model(t, "qwen35-moe"); }
