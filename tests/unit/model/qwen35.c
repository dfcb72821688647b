/* Promise 1 of a model with recurrent layers: a row's logits are the same bits however its text is divided into steps,
 * among other lanes, as a sure row, as a kept row of a chain or of a tree, and after any commit. */
#include "backends.h"
#include "base/file.h"
#include "base/num.h"
#include "kv/inside.h"
#include "model/convert.h"
#include "model/drafter.h"
#include "model/model.h"
#include "model/open_target.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { T = 70, VOCAB = 512, LANES = 6, KEPT = 40, SLOTS = 160 };

typedef struct {
    target  *m;
    kv_pool *kv;
    kv_lane *lane[LANES];
    step     s;
    int32_t  id[T];
    float   *alone; /* [T][VOCAB]: all tokens, one step each */
} recurrent_rig;

static bool open_rig_at(test_case *t, recurrent_rig *g, const char *path, const test_backend *b)
{
    model_options opt = {.device = b->name, .n_threads = b->n_threads};
    *g                = (recurrent_rig){0};
    if (!test_open_target(t, &g->m, path, &opt) ||
        !test_open_pool(
            t, &g->kv, g->m,
            &(test_pool){.max_lanes = LANES, .max_slots = SLOTS, .max_kept_rows = KEPT, .full_lanes = 2 * LANES}))
        return false;
    for (int i = 0; i < LANES; i++) g->lane[i] = kv_lane_new(g->kv);
    step_init(&g->s, g->m->max_rows);
    for (int i = 0; i < T; i++) g->id[i] = (i * 37 + i * i * 5 + 3) % VOCAB;
    g->alone = xnew_n(float, (size_t)T *VOCAB);
    return true;
}

static bool open_rig(test_case *t, recurrent_rig *g, const char *name, const test_backend *b)
{
    return open_rig_at(t, g, test_path(name), b);
}

static void close_rig(recurrent_rig *g)
{
    for (int i = 0; i < LANES && g->kv; i++) kv_lane_free(g->lane[i]);
    kv_pool_free(g->kv);
    step_deinit(&g->s);
    model_close(g->m);
    mem_free(g->alone);
}

static void restart(recurrent_rig *g, int lane)
{
    kv_lane_free(g->lane[lane]);
    g->lane[lane] = kv_lane_new(g->kv);
}

static void begin_step(recurrent_rig *g)
{
    kv_step_begin(g->kv);
    step_clear(&g->s);
}

/* Adds the next n tokens of the text as sure rows. */
static void add_sure(test_case *t, recurrent_rig *g, int lane, int n)
{
    err e   = {0};
    int pos = kv_lane_len(g->lane[lane]);
    CHECK_OK(kv_lane_grow(g->lane[lane], n, 0, &e), e);
    for (int i = 0; i < n; i++) step_add(&g->s, kv_lane_index(g->lane[lane]), pos + i, g->id[pos + i], true);
}

static void run_step(test_case *t, recurrent_rig *g, float *out)
{
    err     e = {0};
    target *m = g->m;
    CHECK_OK(m->step(m, g->kv, &g->s, &e), e);
    for (int first = 0; first < g->s.n_want; first += HEAD_ROWS) {
        int n = min_int(g->s.n_want - first, HEAD_ROWS);
        m->head(m, first, n);
        m->o->download(m->q, out + (size_t)first * VOCAB, m->logits, (size_t)n * VOCAB * sizeof(float));
        m->o->sync(m->q);
    }
}

static void same_rows(test_case *t, const recurrent_rig *g, const float *out, int pos, int n, const char *what, int k)
{
    for (int i = 0; i < n; i++)
        if (!CHECK_MSG(!memcmp(out + (size_t)i * VOCAB, g->alone + (size_t)(pos + i) * VOCAB, VOCAB * sizeof(float)),
                       "position %d differs: %s %d", pos + i, what, k))
            return;
}

/* Runs n tokens of the text as sure rows of one step and compares their logits. */
static void go_on(test_case *t, recurrent_rig *g, int lane, int n, const char *what, int k)
{
    float out[T * VOCAB];
    int   pos = kv_lane_len(g->lane[lane]);
    begin_step(g);
    add_sure(t, g, lane, n);
    run_step(t, g, out);
    kv_lane_commit(g->lane[lane], NULL, 0);
    same_rows(t, g, out, pos, n, what, k);
}

static void run_alone(test_case *t, recurrent_rig *g)
{
    for (int i = 0; i < T; i++) {
        begin_step(g);
        add_sure(t, g, 0, 1);
        run_step(t, g, g->alone + (size_t)i * VOCAB);
        kv_lane_commit(g->lane[0], NULL, 0);
    }
}

static void in_chunks(test_case *t, recurrent_rig *g)
{
    static const int chunk[] = {2, 3, 7, 64, T};
    for (size_t k = 0; k < COUNT(chunk); k++) {
        restart(g, 0);
        for (int at = 0; at < T; at += chunk[k]) go_on(t, g, 0, min_int(chunk[k], T - at), "in chunks of", chunk[k]);
    }
}

/* Lanes at different positions, with different numbers of rows. */
static void among_others(test_case *t, recurrent_rig *g)
{
    float out[T * VOCAB];
    for (int i = 0; i < LANES; i++) {
        restart(g, i);
        go_on(t, g, i, 1 + 3 * i, "before it meets others, lane", i);
    }
    for (int round = 0; round < 5; round++) {
        int pos[LANES], first[LANES];
        begin_step(g);
        for (int i = LANES; i-- > 0;) {
            pos[i]   = kv_lane_len(g->lane[i]);
            first[i] = g->s.n_rows;
            add_sure(t, g, i, 1 + (i + round) % 4);
        }
        run_step(t, g, out);
        for (int i = 0; i < LANES; i++) {
            kv_lane_commit(g->lane[i], NULL, 0);
            same_rows(t, g, out + (size_t)first[i] * VOCAB, pos[i], 1 + (i + round) % 4, "among others, lane", i);
        }
    }
}

/* Adds n_sure sure rows, then a tree whose row i is right (the text) or wrong. */
static void add_tree(test_case *t, recurrent_rig *g, int lane, int n_sure, const int *parent, const bool *right, int n)
{
    err e    = {0};
    int root = kv_lane_len(g->lane[lane]) + n_sure, first, index = kv_lane_index(g->lane[lane]), depth[KEPT];
    CHECK_OK(kv_lane_grow(g->lane[lane], n_sure, n, &e), e);
    for (int i = 0; i < n_sure; i++) step_add(&g->s, index, root - n_sure + i, g->id[root - n_sure + i], false);
    first = g->s.n_rows;
    for (int i = 0; i < n; i++) {
        depth[i]      = parent[i] < 0 ? 0 : depth[parent[i]] + 1;
        int32_t token = g->id[root + depth[i]];
        step_add_tree(&g->s, index, root, i, parent[i] < 0 ? -1 : first + parent[i],
                      right[i] ? token : (token + 11 + i) % VOCAB, true);
    }
    step_keep(&g->s, n, kv_lane_kept(g->lane[lane]));
}

/* A tree of which m rows of the right path are committed; the text goes on from there. Before it come sure rows of the
 * same step, and another lane has a tree of its own. */
static void keep_part(test_case *t, recurrent_rig *g, int n_before, int n_sure, int m)
{
    static const int  parent[] = {-1, 0, 0, 1, 2, 2, 4, 4, 7}, path[] = {0, 2, 4, 7, 8};
    static const bool right[] = {1, 0, 1, 0, 1, 0, 0, 1, 1};
    float             out[2 * COUNT(parent) * VOCAB];
    for (int lane = 0; lane < 2; lane++) {
        restart(g, lane);
        if (n_before) go_on(t, g, lane, n_before, "before the tree, lane", lane);
    }
    begin_step(g);
    add_tree(t, g, 1, 1, parent, right, (int)COUNT(parent));
    add_tree(t, g, 0, n_sure, parent, right, (int)COUNT(parent));
    run_step(t, g, out);
    for (int k = 0; k < (int)COUNT(path); k++)
        same_rows(t, g, out + (COUNT(parent) + (size_t)path[k]) * VOCAB, n_before + n_sure + k, 1, "in a tree, depth",
                  k);
    kv_lane_commit(g->lane[1], path, (int)COUNT(path));
    kv_lane_commit(g->lane[0], path, m);
    CHECK_INT(kv_lane_len(g->lane[0]), n_before + n_sure + m);
    go_on(t, g, 0, 3, "after committing rows", m);
    go_on(t, g, 1, 3, "after committing a whole path", m);
    go_on(t, g, 0, 1, "after committing rows, later", m);
}

static void check_model(test_case *t, const char *name)
{
    test_backend b[TEST_BACKENDS_MAX];
    for (int i = 0, n = test_backends(b); i < n; i++) {
        recurrent_rig g;
        if (open_rig(t, &g, name, &b[i]) && g.m->n_states) {
            run_alone(t, &g);
            in_chunks(t, &g);
            among_others(t, &g);
            for (int m = 0; m <= 5; m++)
                for (int k = 0; k < 6; k++) keep_part(t, &g, k % 3 * 8, k % 2 + k / 3 * 4, m);
        }
        close_rig(&g);
    }
}

TEST(qwen_rows_do_not_depend_on_steps) { check_model(t, "tests/golden/qwen35-dense"); }
TEST(qwen_expert_rows_do_not_depend_on_steps) { check_model(t, "tests/golden/qwen35-moe"); }

/* --- drafters -----------------------------------------------------------------------------------*/
/* A drafter and its reference: rows of logits after the prompt and the next token. */
typedef struct {
    const char *target, *dir, *file, *next, *logits;
    int         n_want, n_rows, first_case;
} reference;
static const reference mtp = {"qwen35-dense", "qwen35-dense", "qwen35-dense/mtp", "next", "draft_logits", 4, 4, 1};
static const reference expert_mtp = {"qwen35-moe", "qwen35-moe", "qwen35-moe/mtp", "next", "draft_logits", 4, 4, 1};
static const reference dflash     = {"qwen35-dense",
                                     "qwen35-dense-dflash",
                                     "qwen35-dense-dflash/golden",
                                     "block_ids",
                                     "draft_logits_no_softcap",
                                     15,
                                     16,
                                     0};

static const reference dspark = {
    "qwen35-dense", "qwen35-dense-dspark", "qwen35-dense-dspark/golden", "block_ids", "draft_logits", 7, 7, 0};
/* The layout of another publisher: the anchor's row drafts nothing, one layer slides and is causal, YaRN. */
static const reference speculators = {
    "qwen35-dense", "qwen35-dense-dspark", "qwen35-dense-dspark/speculators", "block_ids", "draft_logits", 6, 6, 0};

static const void *golden(test_case *t, const safetensors *ref, int n, const char *what, size_t *count)
{
    char name[64];
    snprintf(name, sizeof name, "case%d.%s", n, what);
    const tensor *x = tensor_find(safetensors_tensors(ref), str_of(name));
    if (!CHECK_MSG(x != NULL, "%s is missing", name)) return NULL;
    *count = x->bytes / 4;
    return x->data;
}

/* Runs n tokens of the text chunk by chunk, and shows them to the drafter. */
static void observe_text(test_case *t, recurrent_rig *g, drafter *d, draft_lane *l, const int32_t *text, int n,
                         int chunk)
{
    err     e = {0};
    int32_t row[T];
    for (int at = 0; at < n; at += chunk) {
        int        rows = min_int(chunk, n - at);
        draft_rows seen = {.pos = at, .row = row, .token = text + at, .n = rows, .hidden = -1};
        begin_step(g);
        CHECK_OK(kv_lane_grow(g->lane[0], rows, 0, &e), e);
        for (int i = 0; i < rows; i++) {
            row[i] = i;
            step_add(&g->s, kv_lane_index(g->lane[0]), at + i, text[at + i], false);
        }
        CHECK_OK(g->m->step(g->m, g->kv, &g->s, &e), e);
        kv_lane_commit(g->lane[0], NULL, 0);
        CHECK_OK(d->observe(d, l, &seen, &e), e);
    }
}

/* Runs the prompt chunk by chunk, and drafts after the token that follows it. */
static void draft_after(test_case *t, recurrent_rig *g, drafter *d, draft_job *job, int chunk)
{
    err e = {0};
    observe_text(t, g, d, job->lane, job->text, job->n_text - 1, chunk);
    CHECK_OK(d->draft(d, g->kv, &job, 1, &e), e);
    CHECK_INT(job->n, job->n_want);
}

static void compare_logits(test_case *t, const recurrent_rig *g, const drafter *d, const float *want, int n_rows,
                           const char *what)
{
    float got[16 * VOCAB];
    g->m->o->download(g->m->q, got, d->draft_logits, (size_t)n_rows * VOCAB * sizeof *got);
    g->m->o->sync(g->m->q);
    for (int i = 0; i < n_rows * VOCAB; i++) {
        float w;
        memcpy(&w, (const char *)want + (size_t)i * 4, 4);
        if (!CHECK_MSG(fabs((double)got[i] - (double)w) <= 2e-3 + 1e-3 * fabs((double)w),
                       "%s on %s: logit %d is %.7g, expected %.7g", what, g->m->o->name, i, (double)got[i], (double)w))
            return;
    }
}

/* Compares tokens and confidences. */
static void compare_tokens(test_case *t, const safetensors *ref, const draft_job *job, int n_case)
{
    size_t      n, m;
    const char *id = golden(t, ref, n_case, "draft_tokens", &n), *conf = golden(t, ref, n_case, "confidence", &m);
    if (!id || !conf || !CHECK(n == (size_t)job->n && m == n)) return;
    for (size_t i = 0; i < n; i++) {
        int32_t token;
        float   c;
        memcpy(&token, id + 4 * i, 4);
        memcpy(&c, conf + 4 * i, 4);
        CHECK_INT(job->token[i], token);
        CHECK_MSG(fabsf(job->confidence[i] - c) < 1e-3f, "confidence %zu is %g, expected %g", i,
                  (double)job->confidence[i], (double)c);
    }
}

static void check_drafts(test_case *t, recurrent_rig *g, drafter *d, const safetensors *ref, const reference *r,
                         int n_case)
{
    static const int chunk[] = {T, 1, 7};
    err              e       = {0};
    size_t           n, k;
    const int32_t   *raw = golden(t, ref, n_case, "input_ids", &n), *next = golden(t, ref, n_case, r->next, &k);
    const float     *logits = golden(t, ref, n_case, r->logits, &k);
    int32_t          id[T + 1];
    if (!raw || !next || !logits || !CHECK(n <= T)) return;
    memcpy(id, raw, n * sizeof *id);
    memcpy(id + n, next, sizeof *id);
    for (size_t c = 0; c < COUNT(chunk); c++) {
        draft_job *job = xnew(draft_job);
        *job           = (draft_job){.text = id, .n_text = (int32_t)n + 1, .params = {.top_p = 1}, .n_want = r->n_want};
        restart(g, 0);
        CHECK_OK(d->lane_new(d, &job->lane, &e), e);
        draft_after(t, g, d, job, chunk[c]);
        compare_logits(t, g, d, logits, r->n_rows, drafter_kinds[d->kind].name);
        if (d->confident) compare_tokens(t, ref, job, n_case);
        d->lane_free(d, job->lane);
        mem_free(job);
    }
}

/* path: of the drafter; NULL: r->dir */
static void check_drafter_at(test_case *t, const reference *r, const char *path)
{
    test_backend b[TEST_BACKENDS_MAX];
    char         model[128], dir[512], file[128];
    snprintf(model, sizeof model, "tests/golden/%s", r->target);
    snprintf(dir, sizeof dir, "tests/golden/%s", r->dir);
    snprintf(dir, sizeof dir, "%s", path ? path : test_path(dir));
    snprintf(file, sizeof file, "tests/golden/%s.safetensors", r->file);
    for (int i = 0, n = test_backends(b); i < n; i++) {
        recurrent_rig   g;
        err             e   = {0};
        checkpoint     *cp  = NULL;
        drafter        *d   = NULL;
        safetensors    *ref = NULL;
        drafter_options opt = {.max_lanes = 2, .n_ctx = 128, .kv_type = {CACHE_F32, CACHE_F32}, .keep_rows = true};
        if (open_rig(t, &g, model, &b[i]) && CHECK_OK(checkpoint_open(&cp, dir, &e), e) &&
            CHECK_OK(safetensors_open(&ref, test_path(file), &e), e) &&
            CHECK_OK(drafter_open(&d, g.m, cp, &opt, &e), e) &&
            CHECK_OK(g.m->capture(g.m, d->capture_id, d->n_capture, &e), e))
            for (int c = r->first_case; c <= 2; c++) check_drafts(t, &g, d, ref, r, c);
        drafter_close(d);
        checkpoint_close(cp);
        safetensors_close(ref);
        close_rig(&g);
    }
}

static void check_drafter(test_case *t, const reference *r) { check_drafter_at(t, r, NULL); }

TEST(qwen_mtp_golden) { check_drafter(t, &mtp); }
TEST(qwen_expert_mtp_golden) { check_drafter(t, &expert_mtp); }
TEST(qwen_dflash_golden) { check_drafter(t, &dflash); }

/* Positions that are decoded one by one wait until a draft, which makes the rows of all its lanes together, or until
 * there is no room for more. Drafts are those after a whole prompt. */
TEST(qwen_mtp_positions_wait)
{
    static const int length[] = {30, 20, 60};
    recurrent_rig    g;
    err              e   = {0};
    checkpoint      *cp  = NULL;
    drafter         *d   = NULL;
    drafter_options  opt = {.max_lanes = 4, .n_ctx = 128, .kv_type = {CACHE_F32, CACHE_F32}};
    const char      *dir = "tests/golden/qwen35-dense";
    if (open_rig(t, &g, dir, &(test_backend){"cpu", 1}) && CHECK_OK(checkpoint_open(&cp, test_path(dir), &e), e) &&
        CHECK_OK(drafter_open(&d, g.m, cp, &opt, &e), e) &&
        CHECK_OK(g.m->capture(g.m, d->capture_id, d->n_capture, &e), e)) {
        draft_job job[COUNT(length)], *jobs[COUNT(length)];
        for (size_t i = 0; i < COUNT(length); i++) {
            jobs[i] = &job[i];
            job[i]  = (draft_job){.text = g.id, .n_text = length[i] + 1, .params = {.top_p = 1}, .n_want = 4};
            restart(&g, 0);
            CHECK_OK(d->lane_new(d, &job[i].lane, &e), e);
            observe_text(t, &g, d, job[i].lane, g.id, length[i], 1);
            CHECK_INT((int)d->n_folded, i < 2 ? 0 : 32); /* the third lane was full once */
        }
        CHECK_OK(d->draft(d, g.kv, jobs, (int)COUNT(length), &e), e);
        CHECK_INT((int)d->n_folded, 29 + 19 + 59); /* all but the first positions, which have no row */
        for (size_t i = 0; i < COUNT(length); i++) {
            draft_job whole = job[i];
            d->cut(d, job[i].lane, 0);
            restart(&g, 0);
            draft_after(t, &g, d, &whole, T);
            CHECK_INT(job[i].n, 4);
            CHECK(!memcmp(whole.token, job[i].token, 4 * sizeof(int32_t)));
            d->lane_free(d, job[i].lane);
        }
    }
    drafter_close(d);
    checkpoint_close(cp);
    close_rig(&g);
}

TEST(qwen_dflash_dspark_golden) { check_drafter(t, &dspark); }

TEST(qwen_dflash_speculators_golden)
{
    char     dir[300], link[400], from[300];
    err      e = {0};
    file_map config;
    snprintf(dir, sizeof dir, "%s/drafter", test_tmp_dir());
    mkdir(dir, 0700);
    snprintf(from, sizeof from, "%s", test_path("tests/golden/qwen35-dense-dspark/speculators.json"));
    if (CHECK_OK(file_map_open(&config, from, &e), e)) test_tmp_file("drafter/config.json", config.p, config.n);
    file_map_close(&config);
    snprintf(link, sizeof link, "%s/model.safetensors", dir);
    unlink(link);
    char *real = realpath(test_path("tests/golden/qwen35-dense-dspark/model.safetensors"), NULL);
    CHECK(real && !symlink(real, link));
    free(real);
    check_drafter_at(t, &speculators, dir);
    snprintf(link, sizeof link, "%s/drafter.gguf", test_tmp_dir());
    if (CHECK_OK(convert_dir(dir, link, &(convert_options){.as_stored = true}, &e), e))
        check_drafter_at(t, &speculators, link);
}

/* --- GGUF ---------------------------------------------------------------------------------------*/
/* The logits of a converted model are those of the directory, but for the order of value heads in a sum. */
static void check_converted(test_case *t, const char *dir, bool has_mtp)
{
    err             e   = {0};
    checkpoint     *cp  = NULL;
    convert_options opt = {.as_stored = true};
    recurrent_rig   a, b;
    char            path[256];
    snprintf(path, sizeof path, "%s/converted.gguf", test_tmp_dir());
    if (!CHECK_OK(convert_dir(test_path(dir), path, &opt, &e), e)) return;
    if (CHECK_OK(checkpoint_open(&cp, path, &e), e)) CHECK(drafter_kind_of(cp) == (has_mtp ? DRAFTER_MTP : -1));
    checkpoint_close(cp);
    if (open_rig(t, &a, dir, &(test_backend){"cpu", 1})) {
        run_alone(t, &a);
        if (open_rig_at(t, &b, path, &(test_backend){"cpu", 1})) {
            run_alone(t, &b);
            for (int i = 0; i < T * VOCAB; i++)
                if (!CHECK_MSG(fabs((double)a.alone[i] - (double)b.alone[i]) <= 1e-3 + 1e-3 * fabs((double)a.alone[i]),
                               "logit %d is %.7g, in the directory %.7g", i, (double)b.alone[i], (double)a.alone[i]))
                    break;
        }
        close_rig(&b);
    }
    close_rig(&a);
}

TEST(qwen_converts_dense) { check_converted(t, "tests/golden/qwen35-dense", true); }
TEST(qwen_converts_experts) { check_converted(t, "tests/golden/qwen35-moe", true); }
