/* The DFlash drafter: the reference's numbers, whatever way the context came and whichever file the weights lie in. */
#include "model/dflash.h"

#include "base/buf.h"
#include "base/fault.h"
#include "base/file.h"
#include "gguf/gguf_write.h"
#include "model/dflash_config.h"
#include "test.h"

#include <sys/stat.h>

enum { MAX_TEXT = 160, LANES = 2 };

/* A target, its drafter, and lanes in both. */
typedef struct {
    target      *m;
    kv_pool     *kv;
    kv_seq      *seq[LANES];
    drafter     *d;
    draft_lane  *lane[LANES];
    safetensors *ref;
    step         s;
} rig;

static const drafter_options exact = {.max_lanes = LANES, .kv_type = QUANT_F32, .keep_rows = true};

/* --- set-up -------------------------------------------------------------------------------------*/
static bool open_drafter(test_case *t, rig *g, const char *path, const drafter_options *opt)
{
    err         e  = {0};
    checkpoint *cp = NULL;
    if (!CHECK_OK(checkpoint_open(&cp, path, &e), e)) return false;
    bool ok = CHECK_OK(dflash_open(&g->d, g->m, cp, opt, &e), e);
    checkpoint_close(cp);
    if (!ok || !CHECK_OK(g->m->capture(g->m, g->d->capture_id, g->d->n_capture, &e), e)) return false;
    for (int i = 0; i < LANES && i < opt->max_lanes; i++) CHECK_OK(g->d->lane_new(g->d, &g->lane[i], &e), e);
    return true;
}

static void close_drafter(rig *g)
{
    for (int i = 0; i < LANES; i++) {
        if (g->d) g->d->lane_free(g->d, g->lane[i]);
        g->lane[i] = NULL;
    }
    if (g->d) g->d->close(g->d);
    g->d = NULL;
}

static bool open_target(test_case *t, rig *g, const char *name, const char *device)
{
    err           e   = {0};
    checkpoint   *cp  = NULL;
    model_options opt = {.device = device, .n_threads = 2};
    char          dir[256], file[256];
    *g = (rig){0};
    snprintf(dir, sizeof dir, "tests/golden/%s", name);
    snprintf(file, sizeof file, "tests/golden/%s-dflash/golden.safetensors", name);
    if (!CHECK_OK(safetensors_open(&g->ref, test_path(file), &e), e)) return false;
    if (!CHECK_OK(checkpoint_open(&cp, test_path(dir), &e), e)) return false;
    bool ok = CHECK_OK(model_open(&g->m, cp, &opt, &e), e);
    checkpoint_close(cp);
    if (!ok) return false;
    for (int i = 0; i < g->m->n_kv_classes; i++) g->m->kv_class[i].type = QUANT_F32;
    kv_pool_spec spec = {g->m->kv_class, g->m->n_kv_classes, 0, LANES, MAX_TEXT};
    CHECK(kv_bytes_for(&spec, MAX_TEXT, &spec.max_bytes));
    spec.max_bytes *= LANES;
    if (!CHECK_OK(kv_pool_new(&g->kv, g->m->o, &spec, &e), e)) return false;
    for (int i = 0; i < LANES; i++) g->seq[i] = kv_seq_new(g->kv);
    return true;
}

static void close_rig(rig *g)
{
    close_drafter(g);
    for (int i = 0; i < LANES; i++) kv_seq_free(g->seq[i]);
    kv_pool_free(g->kv);
    model_close(g->m);
    safetensors_close(g->ref);
}

static const char *golden_drafter(const char *name)
{
    char dir[256];
    snprintf(dir, sizeof dir, "tests/golden/%s-dflash", name);
    return test_path(dir);
}

static bool open_rig(test_case *t, rig *g, const char *name, const char *device)
{
    return open_target(t, g, name, device) && open_drafter(t, g, golden_drafter(name), &exact);
}

/* --- texts --------------------------------------------------------------------------------------*/
typedef struct {
    int32_t id[MAX_TEXT]; /* the anchor last */
    int     n;
} text;

static const tensor *golden(test_case *t, const rig *g, int n, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "case%d.%s", n, what);
    const tensor *x = tensor_find(safetensors_tensors(g->ref), str_of(name));
    CHECK_MSG(x, "%s is missing", name);
    return x;
}

/* The reference's prompt, and the target's next token. */
static text golden_text(test_case *t, const rig *g, int n)
{
    text          x   = {0};
    const tensor *ids = golden(t, g, n, "input_ids"), *block = golden(t, g, n, "block_ids");
    if (!ids || !block) return x;
    memcpy(x.id, ids->data, ids->bytes);
    x.n = (int)(ids->bytes / sizeof(int32_t));
    memcpy(&x.id[x.n++], block->data, sizeof(int32_t));
    return x;
}

/* Tokens from .. end - 1 of the text through the target, `chunk` at a time, each step's rows shown to the drafter. */
static void observe(test_case *t, rig *g, int lane, const text *x, int from, int end, int chunk)
{
    err     e = {0};
    int32_t row[MAX_TEXT];
    for (int i = 0; i < MAX_TEXT; i++) row[i] = i;
    kv_seq_cut(g->seq[lane], from);
    for (int n; from < end; from += n) {
        n = end - from < chunk ? end - from : chunk;
        CHECK_OK(kv_seq_grow(g->seq[lane], from + n, &e), e);
        step_clear(&g->s);
        for (int i = 0; i < n; i++) step_add(&g->s, kv_seq_lane(g->seq[lane]), from + i, x->id[from + i], false);
        CHECK_OK(g->m->step(g->m, g->kv, &g->s, &e), e);
        draft_rows rows = {.pos = from, .row = row, .n = n, .hidden = -1};
        CHECK_OK(g->d->observe(g->d, g->lane[lane], &rows, &e), e);
    }
}

typedef struct {
    draft_job job;
    float    *hidden, *logits; /* [block][H], [block][V]; of the first job */
    int       block;
} drafted;

static draft_job job_for(rig *g, int lane, const text *x)
{
    return (draft_job){.lane    = g->lane[lane],
                       .kv_lane = kv_seq_lane(g->seq[lane]),
                       .text    = x->id,
                       .n_text  = x->n,
                       .params  = {.top_p = 1},
                       .n_want  = g->d->max_draft};
}

static void free_drafted(drafted *r)
{
    mem_free(r->hidden);
    mem_free(r->logits);
}

static void download_rows(rig *g, drafted *r)
{
    const target *m = g->m;
    size_t        B = (size_t)r->block, H = (size_t)g->d->n_draft_hidden, V = (size_t)m->n_vocab;
    r->hidden = xnew_n(float, B *H);
    r->logits = xnew_n(float, B *V);
    m->o->download(m->q, r->hidden, g->d->draft_hidden, B * H * sizeof(float));
    m->o->download(m->q, r->logits, g->d->draft_logits, B * V * sizeof(float));
    m->o->sync(m->q);
}

static drafted draft(test_case *t, rig *g, int lane, const text *x)
{
    err     e = {0};
    drafted r = {.job = job_for(g, lane, x), .block = g->d->max_draft + 1};
    CHECK_OK(g->d->draft(g->d, g->kv, (draft_job *[]){&r.job}, 1, &e), e);
    CHECK_INT(r.job.n, r.job.n_want);
    download_rows(g, &r);
    return r;
}

/* Bit for bit (promise 1); frees b. */
static void check_same(test_case *t, const rig *g, const drafted *a, drafted *b, const char *what)
{
    size_t n = (size_t)a->block * (size_t)g->m->n_vocab;
    CHECK_INT(a->job.n, b->job.n);
    for (int i = 0; i < a->job.n; i++) CHECK_INT(a->job.token[i], b->job.token[i]);
    CHECK_MSG(!memcmp(a->logits, b->logits, n * sizeof(float)), "%s: other logits", what);
    free_drafted(b);
}

/* --- the reference ------------------------------------------------------------------------------*/
static void compare(test_case *t, const float *y, const tensor *want, const char *what, const char *device)
{
    for (size_t i = 0; want && i < want->bytes / sizeof(float); i++) {
        float w;
        memcpy(&w, (const char *)want->data + i * sizeof w, sizeof w);
        if (!CHECK_MSG(fabs((double)y[i] - (double)w) <= 2e-3 + 1e-3 * fabs((double)w),
                       "%s of %s, element %zu: %.9g, expected %.9g", what, device, i, (double)y[i], (double)w))
            return;
    }
}

static int32_t argmax(const char *row, int n)
{
    int   best = 0;
    float top, x;
    memcpy(&top, row, sizeof top);
    for (int i = 1; i < n; i++) {
        memcpy(&x, row + (size_t)i * sizeof x, sizeof x);
        if (x > top) top = x, best = i;
    }
    return best;
}

static void check_features(test_case *t, const rig *g, int n_case)
{
    const tensor *want = golden(t, g, n_case, "context_features");
    float        *y    = xalloc(want->bytes);
    g->m->o->download(g->m->q, y, g->m->features, want->bytes);
    g->m->o->sync(g->m->q);
    compare(t, y, want, "features", g->m->o->name);
    mem_free(y);
}

static void check_case(test_case *t, rig *g, int n_case)
{
    text          x      = golden_text(t, g, n_case);
    const tensor *logits = golden(t, g, n_case, "draft_logits_no_softcap");
    g->d->cut(g->d, g->lane[0], 0);
    observe(t, g, 0, &x, 0, x.n - 1, MAX_TEXT);
    check_features(t, g, n_case);
    drafted r = draft(t, g, 0, &x);
    compare(t, r.hidden, golden(t, g, n_case, "draft_hidden"), "hidden states", g->m->o->name);
    compare(t, r.logits, logits, "logits", g->m->o->name);
    for (int i = 0; logits && i < r.job.n; i++) {
        const char *row = (const char *)logits->data + (size_t)(i + 1) * (size_t)g->m->n_vocab * sizeof(float);
        CHECK_INT(r.job.token[i], argmax(row, g->m->n_vocab));
    }
    free_drafted(&r);
}

static void check_model(test_case *t, const char *name)
{
    static const char *const device[] = {"ref", "cpu"};
    for (size_t k = 0; k < COUNT(device); k++) {
        rig g;
        if (open_rig(t, &g, name, device[k]))
            for (int i = 0; i < 3; i++) check_case(t, &g, i);
        close_rig(&g);
    }
}

TEST(dflash_golden_moe) { check_model(t, "gemma4-moe"); }
TEST(dflash_golden_dense) { check_model(t, "gemma4-dense"); }

/* --- the context --------------------------------------------------------------------------------*/
TEST(dflash_chunks_do_not_matter)
{
    static const int chunk[] = {7, 1, 65, 33};
    rig              g;
    if (open_rig(t, &g, "gemma4-moe", "cpu")) {
        text x = golden_text(t, &g, 2);
        observe(t, &g, 0, &x, 0, x.n - 1, MAX_TEXT);
        drafted whole = draft(t, &g, 0, &x);
        for (size_t i = 0; i < COUNT(chunk); i++) {
            g.d->cut(g.d, g.lane[0], 0);
            observe(t, &g, 0, &x, 0, x.n - 1, chunk[i]);
            drafted r = draft(t, &g, 0, &x);
            check_same(t, &g, &whole, &r, "another chunk");
        }
        drafted again = draft(t, &g, 0, &x); /* a draft leaves nothing behind */
        check_same(t, &g, &whole, &again, "again");
        free_drafted(&whole);
    }
    close_rig(&g);
}

TEST(dflash_lanes_do_not_matter)
{
    rig g;
    err e = {0};
    if (open_rig(t, &g, "gemma4-dense", "cpu")) {
        text x[2] = {golden_text(t, &g, 1), golden_text(t, &g, 2)};
        for (int i = 0; i < 2; i++) observe(t, &g, i, &x[i], 0, x[i].n - 1, 5);
        draft_job  job[2] = {job_for(&g, 0, &x[0]), job_for(&g, 1, &x[1])};
        draft_job *jobs[] = {&job[0], &job[1]};
        CHECK_OK(g.d->draft(g.d, g.kv, jobs, 2, &e), e);
        for (int i = 0; i < 2; i++) {
            drafted alone = draft(t, &g, i, &x[i]);
            CHECK_INT(job[i].n, alone.job.n);
            for (int k = 0; k < job[i].n; k++) CHECK_INT(job[i].token[k], alone.job.token[k]);
            free_drafted(&alone);
        }
    }
    close_rig(&g);
}

TEST(dflash_cut_and_observed_again)
{
    static const int at[] = {1, 40, 64, 66, 69};
    rig              g;
    if (open_rig(t, &g, "gemma4-moe", "cpu")) {
        text x = golden_text(t, &g, 2), other = x;
        for (int i = 0; i < other.n; i++) other.id[i] = (x.id[i] + 101) % g.m->n_vocab;
        observe(t, &g, 0, &x, 0, x.n - 1, MAX_TEXT);
        drafted whole = draft(t, &g, 0, &x);
        for (size_t i = 0; i < COUNT(at); i++) {
            observe(t, &g, 0, &other, at[i], x.n - 1, 3); /* starts a context there: it has to go */
            g.d->cut(g.d, g.lane[0], 0);
            observe(t, &g, 0, &x, 0, at[i], 9);
            observe(t, &g, 0, &other, at[i], x.n - 1, 3);
            g.d->cut(g.d, g.lane[0], at[i]);
            observe(t, &g, 0, &x, at[i], x.n - 1, 2);
            drafted r = draft(t, &g, 0, &x);
            check_same(t, &g, &whole, &r, "cut");
        }
        free_drafted(&whole);
    }
    close_rig(&g);
}

/* The first n_sinks rows and those from `from` on, shown to a lane as one run of positions that ends where the text does. */
static void observe_pieces(test_case *t, rig *g, const text *x, int n_sinks, int from)
{
    err     e = {0};
    int32_t row[MAX_TEXT];
    int     n = 0, end = x->n - 1;
    kv_seq_cut(g->seq[0], 0);
    CHECK_OK(kv_seq_grow(g->seq[0], end, &e), e);
    step_clear(&g->s);
    for (int i = 0; i < end; i++) step_add(&g->s, kv_seq_lane(g->seq[0]), i, x->id[i], false);
    CHECK_OK(g->m->step(g->m, g->kv, &g->s, &e), e);
    for (int i = 0; i < n_sinks; i++) row[n++] = i;
    for (int i = from; i < end; i++) row[n++] = i;
    draft_rows rows = {.pos = from - n_sinks, .row = row, .n = n, .hidden = -1};
    CHECK_OK(g->d->observe(g->d, g->lane[0], &rows, &e), e);
}

/* 32 slots: 8 sinks, 8 dropped at a time. 70 rows slide five times and leave 0 .. 7 and 48 .. 69. */
TEST(dflash_context_slides)
{
    static const int chunk[] = {MAX_TEXT, 8, 1};
    rig              g;
    if (open_rig(t, &g, "gemma4-moe", "cpu")) {
        text x = golden_text(t, &g, 2);
        observe_pieces(t, &g, &x, 8, 48);
        drafted         want  = draft(t, &g, 0, &x);
        drafter_options small = exact;
        small.n_ctx           = 32;
        close_drafter(&g);
        if (open_drafter(t, &g, golden_drafter("gemma4-moe"), &small))
            for (size_t i = 0; i < COUNT(chunk); i++) {
                observe(t, &g, 0, &x, 0, x.n - 1, chunk[i]);
                drafted r = draft(t, &g, 0, &x);
                check_same(t, &g, &want, &r, "slid");
                g.d->cut(g.d, g.lane[0], 0);
            }
        free_drafted(&want);
    }
    close_rig(&g);
}

TEST(dflash_cut_after_a_slide)
{
    rig             g;
    drafter_options small = exact;
    small.n_ctx           = 32;
    if (open_target(t, &g, "gemma4-moe", "cpu") && open_drafter(t, &g, golden_drafter("gemma4-moe"), &small)) {
        text x = golden_text(t, &g, 2);
        observe(t, &g, 0, &x, 0, x.n - 1, 1);
        drafted whole = draft(t, &g, 0, &x);
        g.d->cut(g.d, g.lane[0], 60); /* among the recent rows: they come back */
        observe(t, &g, 0, &x, 60, x.n - 1, 4);
        drafted back = draft(t, &g, 0, &x);
        check_same(t, &g, &whole, &back, "cut behind the sinks");
        free_drafted(&whole);

        g.d->cut(g.d, g.lane[0], 30); /* long dropped: a new context, as if the lane had never seen anything */
        observe(t, &g, 0, &x, 30, x.n - 1, 5);
        drafted after = draft(t, &g, 0, &x);
        observe(t, &g, 1, &x, 0, 30, MAX_TEXT);
        g.d->cut(g.d, g.lane[1], 0);
        observe(t, &g, 1, &x, 30, x.n - 1, 5);
        drafted fresh = draft(t, &g, 1, &x);
        check_same(t, &g, &after, &fresh, "cut to what was dropped");
        free_drafted(&after);
    }
    close_rig(&g);
}

/* A context that starts in the middle is that of its own rows alone. */
TEST(dflash_a_hole_starts_a_new_context)
{
    rig g;
    if (open_rig(t, &g, "gemma4-moe", "cpu")) {
        text x = golden_text(t, &g, 2);
        observe_pieces(t, &g, &x, 0, 40);
        drafted fresh = draft(t, &g, 0, &x);
        g.d->cut(g.d, g.lane[0], 0);
        observe(t, &g, 0, &x, 0, 20, MAX_TEXT);
        observe_pieces(t, &g, &x, 0, 40);
        drafted after = draft(t, &g, 0, &x);
        check_same(t, &g, &fresh, &after, "after a hole");
        free_drafted(&fresh);

        draft_job behind = job_for(&g, 0, &x); /* a text that the context is not of */
        err       e      = {0};
        behind.n_text -= 3;
        CHECK_OK(g.d->draft(g.d, g.kv, (draft_job *[]){&behind}, 1, &e), e);
        CHECK_INT(behind.n, 0);
    }
    close_rig(&g);
}
