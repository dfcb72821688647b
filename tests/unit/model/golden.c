/* The reference vectors: logits, hidden states and greedy continuations of Hugging Face transformers in float64. */
#include "backends.h"
#include "kv/lane.h"
#include "model/model.h"
#include "model/open_target.h"
#include "test.h"

typedef struct {
    target      *m;
    kv_pool     *kv;
    kv_lane     *lane;
    step         s;
    safetensors *ref;
    double       abs_tol, rel_tol;
} rig2;

static bool open_rig(test_case *t, rig2 *g, const char *name, const char *device)
{
    err           e   = {0};
    model_options opt = {.device = device, .n_threads = 2};
    char          dir[256], file[256];
    bool          exact = !strcmp(device, "ref"), gpu = !strcmp(device, "cuda");
    *g = (rig2){.abs_tol = exact ? 5e-4 : gpu ? 4e-3 : 2e-3, .rel_tol = exact ? 2e-4 : gpu ? 2e-3 : 1e-3};
    snprintf(dir, sizeof dir, "tests/golden/%s", name);
    snprintf(file, sizeof file, "tests/golden/%s/golden.safetensors", name);
    if (!CHECK_OK(safetensors_open(&g->ref, test_path(file), &e), e)) return false;
    if (!test_open_target(t, &g->m, test_path(dir), &opt)) return false;
    for (int i = 0; i < g->m->n_kv_classes; i++) g->m->kv_class[i].types = cache_types_both(CACHE_F32);
    if (!test_open_pool(t, &g->kv, g->m, &(test_pool){.max_lanes = 1, .max_slots = 256, .max_kept_rows = 1}))
        return false;
    g->lane = kv_lane_new(g->kv);
    step_init(&g->s, g->m->max_rows);
    return true;
}

static void close_rig(rig2 *g)
{
    if (g->lane) kv_lane_free(g->lane);
    kv_pool_free(g->kv);
    step_deinit(&g->s);
    model_close(g->m);
    safetensors_close(g->ref);
}

static const void *golden(test_case *t, rig2 *g, int n, const char *what, quant_type type, size_t *count)
{
    char name[64];
    snprintf(name, sizeof name, "case%d.%s", n, what);
    const tensor *x = tensor_find(safetensors_tensors(g->ref), str_of(name));
    if (!CHECK_MSG(x && x->type == type, "%s is missing", name)) return NULL;
    *count = x->bytes / 4;
    return x->data;
}

static void compare(test_case *t, const rig2 *g, const float *y, const float *want, size_t n, const char *what,
                    int which)
{
    for (size_t i = 0; i < n; i++) {
        float w;
        memcpy(&w, (const char *)want + i * sizeof w, sizeof w);
        if (!CHECK_MSG(fabs((double)y[i] - (double)w) <= g->abs_tol + g->rel_tol * fabs((double)w),
                       "%s of %s %d, element %zu: %.9g, expected %.9g", what, g->m->o->name, which, i, (double)y[i],
                       (double)w))
            return;
    }
}

/* All tokens in one step; every row's logits. */
static float *feed(test_case *t, rig2 *g, const int32_t *id, int n)
{
    target *m   = g->m;
    float  *out = xnew_n(float, (size_t)n *(size_t)m->n_vocab);
    err     e   = {0};
    int     pos = kv_lane_len(g->lane);
    kv_step_begin(g->kv);
    CHECK_OK(kv_lane_grow(g->lane, n, 0, &e), e);
    step_clear(&g->s);
    for (int i = 0; i < n; i++) step_add(&g->s, 0, pos + i, id[i], true);
    CHECK_OK(m->step(m, g->kv, &g->s, &e), e);
    kv_lane_commit(g->lane, NULL, 0);
    for (int first = 0; first < n; first += HEAD_ROWS) {
        int rows = n - first < HEAD_ROWS ? n - first : HEAD_ROWS;
        m->head(m, first, rows);
        m->o->download(m->q, out + (size_t)first * (size_t)m->n_vocab, m->logits,
                       (size_t)rows * (size_t)m->n_vocab * sizeof(float));
    }
    m->o->sync(m->q);
    return out;
}

static void check_hidden(test_case *t, rig2 *g, int n_case, int T)
{
    target *m = g->m;
    size_t  H = (size_t)m->n_embd, L = (size_t)m->n_layers, n;
    float  *f = xnew_n(float, (size_t)T *L *H), *y = xnew_n(float, (size_t)T *H);
    m->o->download(m->q, f, m->features, (size_t)T * L * H * sizeof(float));
    for (size_t l = 0; l <= L; l++) {
        char what[32];
        snprintf(what, sizeof what, "hidden.%zu", l);
        const float *want = golden(t, g, n_case, what, QUANT_F32, &n);
        m->o->download(m->q, y, m->hidden, (size_t)T * H * sizeof(float));
        m->o->sync(m->q);
        for (size_t r = 0; l < L && r < (size_t)T; r++) memcpy(y + r * H, f + (r * L + l) * H, H * sizeof(float));
        if (want && CHECK(n == (size_t)T * H)) compare(t, g, y, want, n, what, n_case);
    }
    mem_free(f);
    mem_free(y);
}

static int32_t argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Equal up to the first step whose two best logits are closer than the tolerance can tell apart. */
static void check_greedy(test_case *t, rig2 *g, int n_case, int32_t next)
{
    size_t         n, n_margin;
    const int32_t *want   = golden(t, g, n_case, "greedy", QUANT_I32, &n);
    const float   *margin = golden(t, g, n_case, "greedy_margin", QUANT_F32, &n_margin);
    if (!want || !margin) return;
    for (size_t i = 0; i < n; i++) {
        int32_t w;
        float   gap;
        memcpy(&w, (const char *)want + i * 4, 4);
        memcpy(&gap, (const char *)margin + i * 4, 4);
        if (gap < 1e-3f) return;
        if (!CHECK_MSG(next == w, "case %d, greedy token %zu is %d, expected %d (margin %g)", n_case, i, next, w,
                       (double)gap))
            return;
        float *logits = feed(t, g, &next, 1);
        next          = argmax(logits, g->m->n_vocab);
        mem_free(logits);
    }
}

static void check_case(test_case *t, rig2 *g, int n_case)
{
    size_t         T, n;
    const int32_t *raw  = golden(t, g, n_case, "input_ids", QUANT_I32, &T);
    const float   *want = golden(t, g, n_case, "logits", QUANT_F32, &n);
    if (!raw || !want) return;
    int32_t id[128];
    memcpy(id, raw, T * sizeof *id);
    float *logits = feed(t, g, id, (int)T);
    compare(t, g, logits, want, n, "logits", n_case);
    if (n_case == 1) check_hidden(t, g, n_case, (int)T);
    check_greedy(t, g, n_case, argmax(logits + (T - 1) * (size_t)g->m->n_vocab, g->m->n_vocab));
    mem_free(logits);
    kv_lane_free(g->lane);
    g->lane = kv_lane_new(g->kv);
}

static void check_model(test_case *t, const char *name)
{
    const char *device[TEST_BACKENDS_MAX];
    for (int d = 0, n = test_devices(device); d < n; d++) {
        rig2 g;
        err  e = {0};
        int  all[64];
        if (open_rig(t, &g, name, device[d])) {
            for (int l = 0; l < g.m->n_layers; l++) all[l] = l;
            CHECK_OK(g.m->capture(g.m, all, g.m->n_layers, &e), e);
            for (int c = 0; c < 3; c++) check_case(t, &g, c);
        }
        close_rig(&g);
    }
}

TEST(model_golden_dense) { check_model(t, "gemma4-dense"); }
TEST(model_golden_moe) { check_model(t, "gemma4-moe"); }
TEST(model_golden_qwen_dense) { check_model(t, "qwen35-dense"); }
TEST(model_golden_qwen_moe) { check_model(t, "qwen35-moe"); }
TEST(model_golden_ple) { check_model(t, "gemma4-ple"); }
