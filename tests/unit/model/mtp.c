/* The Gemma 4 assistant against Hugging Face transformers, and all that may be wrong with its files. */
#include "backends.h"
#include "base/buf.h"
#include "base/fault.h"
#include "base/file.h"
#include "gguf/inside.h"
#include "model/convert.h"
#include "model/drafter.h"
#include "model/open_target.h"
#include "test.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_LANES = 4, N_SLOTS = 256 };

typedef struct {
    target     *m;
    kv_pool    *kv;
    kv_seq     *seq[N_LANES];
    drafter    *d;
    draft_lane *lane[N_LANES];
    step        s;
} rig;

static const char *golden_path(const char *name)
{
    char rel[160];
    snprintf(rel, sizeof rel, "tests/golden/%s", name);
    return test_path(rel);
}

static bool open_target(test_case *t, rig *g, const char *path, const char *dev_name, cache_types kv_type)
{
    model_options opt = {.device = dev_name, .n_threads = 2};
    *g                = (rig){0};
    if (!test_open_target(t, &g->m, path, &opt)) return false;
    for (int i = 0; i < g->m->n_kv_classes; i++) g->m->kv_class[i].types = kv_type;
    if (!test_open_pool(t, &g->kv, g->m, &(test_pool){.max_lanes = N_LANES, .max_slots = N_SLOTS})) return false;
    for (int i = 0; i < N_LANES; i++) g->seq[i] = kv_seq_new(g->kv, 0);
    step_init(&g->s, g->m->max_rows);
    return true;
}

static bool open_drafter(rig *g, const char *path, const drafter_options *opt, err *e)
{
    checkpoint *cp;
    if (!checkpoint_open(&cp, path, e)) return false;
    bool ok = drafter_open(&g->d, g->m, cp, opt, e);
    checkpoint_close(cp);
    for (int i = 0; ok && i < N_LANES; i++) ok = g->d->lane_new(g->d, &g->lane[i], e);
    return ok;
}

static void close_drafter(rig *g)
{
    for (int i = 0; g->d && i < N_LANES; i++) g->d->lane_free(g->d, g->lane[i]);
    drafter_close(g->d);
    g->d = NULL;
}

static void close_rig(rig *g)
{
    close_drafter(g);
    for (int i = 0; i < N_LANES; i++) kv_seq_free(g->seq[i]);
    kv_pool_free(g->kv);
    step_deinit(&g->s);
    model_close(g->m);
}

static bool open_rig(test_case *t, rig *g, const char *target_path, const char *path, const char *dev_name)
{
    err             e   = {0};
    drafter_options opt = {.max_lanes = N_LANES, .keep_rows = true};
    return open_target(t, g, target_path, dev_name, cache_types_both(CACHE_F32)) &&
           CHECK_OK(open_drafter(g, path, &opt, &e), e);
}

/* The ids through the target, and what the drafter is told of it; returns the target's next token. */
static int32_t feed(test_case *t, rig *g, int lane, const int32_t *id, int n)
{
    err     e = {0};
    target *m = g->m;
    int32_t row[N_SLOTS], pos = kv_seq_len(g->seq[lane]), next;
    dev     picked = {0};
    CHECK_OK(kv_seq_grow(g->seq[lane], pos + n, &e), e);
    step_clear(&g->s);
    for (int i = 0; i < n; i++) {
        step_add(&g->s, kv_seq_lane(g->seq[lane]), pos + i, id[i], i == n - 1);
        row[i] = i;
    }
    CHECK_OK(m->step(m, g->kv, &g->s, &e), e);
    if (g->d) CHECK_OK(g->d->observe(g->d, g->lane[lane], &(draft_rows){.pos = pos, .row = row, .n = n}, &e), e);
    m->head(m, 0, 1);
    CHECK_OK(m->o->alloc(m->o, &picked, sizeof next, &e), e);
    m->o->argmax(m->q, picked, m->logits, 1, m->n_vocab);
    m->o->download(m->q, &next, picked, sizeof next);
    m->o->sync(m->q);
    m->o->free(m->o, picked);
    return next;
}

static draft_job job_for(rig *g, int lane, const int32_t *text, int n_text, int n_want)
{
    return (draft_job){.lane    = g->lane[lane],
                       .kv_lane = kv_seq_lane(g->seq[lane]),
                       .text    = text,
                       .n_text  = n_text,
                       .params  = {.top_p = 1},
                       .n_want  = n_want,
                       .n       = -1};
}

static void draft(test_case *t, rig *g, draft_job *j)
{
    err        e    = {0};
    draft_job *jobs = j;
    CHECK_OK(g->d->draft(g->d, g->kv, &jobs, 1, &e), e);
}

static float *download(rig *g, dev d, size_t n)
{
    float *y = xnew_n(float, n);
    g->m->o->download(g->m->q, y, d, n * sizeof *y);
    g->m->o->sync(g->m->q);
    return y;
}

/* --- the reference vectors ----------------------------------------------------------------------*/
static const void *golden(test_case *t, const safetensors *ref, int n, const char *what, quant_type type, size_t *count)
{
    char name[64];
    snprintf(name, sizeof name, "case%d.%s", n, what);
    const tensor *x = tensor_find(safetensors_tensors(ref), str_of(name));
    if (!CHECK_MSG(x && x->type == type, "%s is missing", name)) abort();
    *count = x->bytes / 4;
    return x->data;
}

static int golden_ids(test_case *t, const safetensors *ref, int n_case, const char *what, int32_t *out)
{
    size_t      n;
    const void *raw = golden(t, ref, n_case, what, QUANT_I32, &n);
    memcpy(out, raw, n * sizeof *out);
    return (int)n;
}

static void compare(test_case *t, rig *g, dev y, const safetensors *ref, int n_case, const char *what)
{
    size_t       n;
    const char  *want = golden(t, ref, n_case, what, QUANT_F32, &n);
    float       *have = download(g, y, n), w;
    const double abs = 2e-3, rel = 1e-3;
    for (size_t i = 0; i < n; i++) {
        memcpy(&w, want + i * sizeof w, sizeof w);
        if (!CHECK_MSG(fabs((double)have[i] - (double)w) <= abs + rel * fabs((double)w),
                       "%s of %s, case %d, element %zu: %.9g, expected %.9g", what, g->m->o->name, n_case, i,
                       (double)have[i], (double)w))
            break;
    }
    mem_free(have);
}

static void check_case(test_case *t, rig *g, const safetensors *ref, int n_case)
{
    int32_t text[N_SLOTS], next, want[4];
    int     n = golden_ids(t, ref, n_case, "input_ids", text);
    golden_ids(t, ref, n_case, "next", &next);
    golden_ids(t, ref, n_case, "draft_tokens", want);
    text[n] = feed(t, g, 0, text, n);
    CHECK_INT(text[n], next);
    compare(t, g, g->m->hidden, ref, n_case, "target_hidden_last");
    draft_job j = job_for(g, 0, text, n + 1, 4);
    draft(t, g, &j);
    CHECK_INT(j.n, 4);
    for (int i = 0; i < 4; i++) CHECK_INT(j.token[i], want[i]);
    compare(t, g, g->d->draft_logits, ref, n_case, "draft_logits");
    kv_seq_cut(g->seq[0], 0);
    g->d->cut(g->d, g->lane[0], 0);
}

static void check_golden(test_case *t, const char *target_name, const char *name)
{
    const char *device[TEST_BACKENDS_MAX];
    for (int i = 0, n = test_devices(device); i < n; i++) {
        rig          g;
        err          e = {0};
        safetensors *ref;
        char         file[128];
        snprintf(file, sizeof file, "%s/golden.safetensors", name);
        if (!CHECK_OK(safetensors_open(&ref, golden_path(file), &e), e)) return;
        if (open_rig(t, &g, golden_path(target_name), golden_path(name), device[i])) {
            CHECK_INT(g.d->kind, DRAFTER_MTP);
            CHECK_INT(g.d->n_draft_hidden, 64);
            for (int c = 1; c < 3; c++) check_case(t, &g, ref, c);
        }
        close_rig(&g);
        safetensors_close(ref);
    }
}

TEST(mtp_golden_moe) { check_golden(t, "gemma4-moe", "gemma4-moe-assistant"); }
TEST(mtp_golden_ordered_head) { check_golden(t, "gemma4-ple", "gemma4-ple-assistant"); }

/* draft_hidden is what the output matrix was given. */
TEST(mtp_keeps_the_states_of_guesses)
{
    rig         g;
    err         e        = {0};
    checkpoint *cp       = NULL;
    int32_t     text[10] = {2, 7, 11, 300, 45, 9, 120, 400, 17};
    if (open_rig(t, &g, golden_path("gemma4-moe"), golden_path("gemma4-moe-assistant"), "ref") &&
        CHECK_OK(checkpoint_open(&cp, golden_path("gemma4-moe-assistant"), &e), e)) {
        text[9]     = feed(t, &g, 0, text, 9);
        draft_job j = job_for(&g, 0, text, 10, 3);
        draft(t, &g, &j);
        float *y = download(&g, g.d->draft_hidden, 3 * 64), *logits = download(&g, g.d->draft_logits, 3 * 512), row[64];
        const tensor *E = tensor_find(cp->tensors, STR("model.embed_tokens.weight"));
        for (int r = 0; r < 3; r++)
            for (int v = 0; v < 512; v += 37) {
                double sum = 0;
                quant_dequantise(E->type, (const char *)E->data + (size_t)v * 128, row, 64);
                for (int i = 0; i < 64; i++) sum += (double)row[i] * y[r * 64 + i];
                CHECK_NEAR(logits[r * 512 + v], sum, 1e-4);
            }
        mem_free(y);
        mem_free(logits);
    }
    checkpoint_close(cp);
    close_rig(&g);
}

/* --- lanes --------------------------------------------------------------------------------------*/
static const int32_t prompts[N_LANES][40] = {
    {2, 7, 11, 300, 45}, {2, 9}, {2, 120, 400, 17, 33, 8, 8, 8, 91}, {2, 5, 6}};
static const int n_prompt[N_LANES] = {5, 2, 9, 3};

static int fill_lane(test_case *t, rig *g, int lane, int32_t text[40])
{
    int n = n_prompt[lane];
    memcpy(text, prompts[lane], sizeof prompts[lane]);
    text[n] = feed(t, g, lane, text, n);
    return n + 1;
}

static void check_lanes(test_case *t, rig *g)
{
    static const int n_want[N_LANES] = {2, 7, 0, 4};
    int32_t          text[N_LANES][40];
    draft_job        alone[N_LANES], together[N_LANES], *jobs[N_LANES];
    err              e = {0};
    for (int i = 0; i < N_LANES; i++) {
        int n    = fill_lane(t, g, i, text[i]);
        alone[i] = together[i] = job_for(g, i, text[i], n, n_want[i]);
        jobs[i]                = &together[i];
    }
    for (int i = N_LANES - 1; i >= 0; i--) draft(t, g, &alone[i]); /* the first one last: its rows are kept */
    float *want = download(g, g->d->draft_logits, 2 * 512);
    CHECK_OK(g->d->draft(g->d, g->kv, jobs, N_LANES, &e), e);
    float *have = download(g, g->d->draft_logits, 2 * 512);
    CHECK(memcmp(want, have, 2 * 512 * sizeof *want) == 0); /* promise 1 */
    for (int i = 0; i < N_LANES; i++) {
        CHECK_INT(alone[i].n, n_want[i]);
        CHECK_INT(together[i].n, n_want[i]);
        for (int k = 0; k < n_want[i]; k++) CHECK_INT(together[i].token[k], alone[i].token[k]);
    }
    mem_free(want);
    mem_free(have);
}

TEST(mtp_lanes_together_draft_as_alone)
{
    static const char *const pair[][2] = {{"gemma4-moe", "gemma4-moe-assistant"},
                                          {"gemma4-ple", "gemma4-ple-assistant"}};
    const char              *device[TEST_BACKENDS_MAX];
    for (int i = 0, n = test_devices(device); i < n; i++)
        for (size_t k = 0; k < COUNT(pair); k++) {
            rig g;
            if (open_rig(t, &g, golden_path(pair[k][0]), golden_path(pair[k][1]), device[i])) check_lanes(t, &g);
            close_rig(&g);
        }
}

/* More jobs than rows of a batch: the same lane again and again is as good as another. */
TEST(mtp_drafts_more_jobs_than_rows)
{
    enum { N = 2 * HEAD_ROWS + 3 };
    rig        g;
    err        e = {0};
    int32_t    text[40];
    draft_job *job = xnew_n(draft_job, N), *jobs[N];
    if (open_rig(t, &g, golden_path("gemma4-moe"), golden_path("gemma4-moe-assistant"), "cpu")) {
        int n = fill_lane(t, &g, 0, text);
        for (int i = 0; i < N; i++) {
            job[i]  = job_for(&g, 0, text, n, 1 + i % 3);
            jobs[i] = &job[i];
        }
        CHECK_OK(g.d->draft(g.d, g.kv, jobs, N, &e), e);
        for (int i = 0; i < N; i++) {
            CHECK_INT(job[i].n, 1 + i % 3);
            for (int k = 0; k < job[i].n; k++) CHECK_INT(job[i].token[k], job[2].token[k]);
        }
    }
    close_rig(&g);
    mem_free(job);
}

static void check_no_draft(test_case *t, rig *g, const int32_t *text, int n)
{
    draft_job j = job_for(g, 0, text, n, 3);
    draft(t, g, &j);
    CHECK_INT(j.n, 0);
}

TEST(mtp_drafts_only_where_it_knows_the_state)
{
    rig     g;
    err     e   = {0};
    int32_t row = 0, text[40];
    if (open_rig(t, &g, golden_path("gemma4-moe"), golden_path("gemma4-moe-assistant"), "cpu")) {
        check_no_draft(t, &g, prompts[0], 1); /* nothing seen */
        int       n    = fill_lane(t, &g, 0, text);
        draft_job j    = job_for(&g, 0, text, n, DRAFT_MAX), again;
        draft_job last = j;
        draft(t, &g, &j);
        CHECK_INT(j.n, DRAFT_MAX);
        check_no_draft(t, &g, text, n - 1); /* a text that ends elsewhere */
        g.d->cut(g.d, g.lane[0], n - 1);    /* nothing to cut */
        again = last;
        draft(t, &g, &again);
        CHECK(again.n == DRAFT_MAX && memcmp(again.token, j.token, sizeof j.token) == 0);
        g.d->cut(g.d, g.lane[0], n - 2);
        check_no_draft(t, &g, text, n);
        check_no_draft(t, &g, text, n - 1);
        kv_seq_cut(g.seq[0], n - 2);
        CHECK_INT(feed(t, &g, 0, text + n - 2, 1), text[n - 1]);
        again = last;
        draft(t, &g, &again);
        CHECK(again.n == DRAFT_MAX && memcmp(again.token, j.token, sizeof j.token) == 0);
        CHECK_OK(g.d->observe(g.d, g.lane[0], &(draft_rows){.pos = n - 1, .row = &row, .hidden = -1}, &e),
                 e); /* nothing became text */
        again = last;
        draft(t, &g, &again);
        CHECK_INT(again.n, DRAFT_MAX);
        CHECK_OK(g.d->observe(g.d, g.lane[0], &(draft_rows){.pos = n - 2, .row = &row, .n = 1, .hidden = -1}, &e), e);
        check_no_draft(t, &g, text, n);
    }
    close_rig(&g);
}

TEST(mtp_lanes_are_given_back)
{
    rig         g;
    err         e = {0};
    draft_lane *more;
    if (open_rig(t, &g, golden_path("gemma4-moe"), golden_path("gemma4-moe-assistant"), "ref")) {
        int32_t text[40];
        int     n = fill_lane(t, &g, 0, text);
        CHECK_FAILS(g.d->lane_new(g.d, &more, &e), e, "4 lanes are all taken");
        CHECK(!more);
        g.d->lane_free(g.d, NULL);
        g.d->lane_free(g.d, g.lane[0]);
        CHECK_OK(g.d->lane_new(g.d, &g.lane[0], &e), e);
        check_no_draft(t, &g, text, n); /* a new lane knows nothing of the old one */
    }
    close_rig(&g);
}

/* --- how a guess is picked ----------------------------------------------------------------------*/
TEST(mtp_guesses_follow_bias_and_candidates)
{
    rig      g;
    err      e = {0};
    int32_t  text[40];
    history *h = NULL;
    if (open_rig(t, &g, golden_path("gemma4-ple"), golden_path("gemma4-ple-assistant"), "cpu") &&
        CHECK_OK(history_new(&h, 512, &e), e)) {
        int       n = fill_lane(t, &g, 0, text);
        draft_job j = job_for(&g, 0, text, n, 5), top = j, other = j;
        draft(t, &g, &j);
        top.n_top = 6;
        top.soft  = 1;
        draft(t, &g, &top);
        for (int i = 0; i < 5; i++) {
            CHECK_INT(top.token[i], j.token[i]);
            CHECK_INT(top.top[i][0].id, j.token[i]);
            CHECK(top.top[i][0].logprob >= top.top[i][5].logprob && top.top[i][5].id >= 0);
        }
        logit_bias     never   = {j.token[0], -INFINITY};
        penalty_params penalty = {.repeat = 1, .bias = &never, .n_bias = 1};
        history_bias(h, &never, 1);
        other.history = h;
        other.penalty = &penalty;
        draft(t, &g, &other);
        CHECK_INT(other.n, 5);
        CHECK_INT(other.token[0], top.top[0][1].id); /* the second best */
        for (int i = 0; i < 5; i++) CHECK(other.token[i] != never.token);
        other        = j;
        other.params = (sample_params){.temp = 50, .top_p = 1, .seed = 3};
        draft(t, &g, &other);
        CHECK(memcmp(other.token, j.token, 5 * sizeof *j.token) != 0);
    }
    history_free(h);
    close_rig(&g);
}

/* --- nano ---------------------------------------------------------------------------------------*/
static int ids_of(const json_value *o, const char *key, int32_t *out, int cap)
{
    const json_value *v = json_get(o, key);
    if (!v || v->kind != JSON_ARRAY || v->n > (size_t)cap) abort();
    for (size_t i = 0; i < v->n; i++) out[i] = (int32_t)v->item[i].i;
    return (int)v->n;
}

/* Rounds of 3 guesses along the recorded answer; returns their number. */
static int run_rounds(test_case *t, rig *g, int32_t *text, int n_prompt_ids, int n_all)
{
    int rounds = 0, at = n_prompt_ids;
    CHECK_INT(feed(t, g, 0, text, at), text[at]);
    for (; at < n_all - 1; rounds++) {
        draft_job j = job_for(g, 0, text, at + 1, 3);
        int       a = 0;
        draft(t, g, &j);
        CHECK_INT(j.n, 3);
        while (a < j.n && at + 1 + a < n_all && j.token[a] == text[at + 1 + a]) a++;
        feed(t, g, 0, text + at, a + 1);
        at += a + 1;
    }
    kv_seq_cut(g->seq[0], 0);
    g->d->cut(g->d, g->lane[0], 0);
    return rounds;
}

/* As many rounds as the training run counted on the unquantised weights, or nearly. */
TEST(mtp_nano_drafts_as_it_was_trained_to)
{
    rig               g;
    err               e    = {0};
    file_map          file = {0};
    arena             mem;
    const json_value *all      = NULL;
    drafter_options   opt      = {.max_lanes = N_LANES};
    int               n_rounds = 0, n_expected = 0;
    int32_t           text[N_SLOTS], unused[N_SLOTS];
    arena_init(&mem, 64 << 20);
    if (open_target(t, &g, test_path("models/nano/target.gguf"), "cpu", cache_types_both(CACHE_F16)) &&
        CHECK_OK(open_drafter(&g, test_path("models/nano/mtp.gguf"), &opt, &e), e) &&
        CHECK_OK(file_map_open(&file, test_path("tests/golden/nano/mtp-acceptance.json"), &e), e) &&
        CHECK_OK(json_parse(&all, &mem, (str){file.p, file.n}, NULL, &e), e)) {
        for (size_t i = 0; i < all->n; i += 20) {
            if (json_get(&all->item[i], "prompt")->n > 100) continue;
            int n = ids_of(&all->item[i], "prompt", text, N_SLOTS);
            int k = ids_of(&all->item[i], "answer", text + n, N_SLOTS - n);
            n_expected += ids_of(&all->item[i], "rounds", unused, N_SLOTS);
            n_rounds += run_rounds(t, &g, text, n, n + k);
        }
        CHECK_MSG(n_rounds >= n_expected * 9 / 10 && n_rounds <= n_expected * 11 / 10, "%d rounds, expected about %d",
                  n_rounds, n_expected);
    }
    arena_deinit(&mem);
    file_map_close(&file);
    close_rig(&g);
}

/* --- files --------------------------------------------------------------------------------------*/
/* The tokens and logits of four guesses after a fixed text. */
typedef struct {
    int32_t token[4];
    float   logits[4 * 512];
} drafted;

static bool draft_with(test_case *t, rig *g, const char *path, quant_type quantise, drafted *out)
{
    err             e   = {0};
    drafter_options opt = {.max_lanes = N_LANES, .keep_rows = true, .quantise = quantise};
    int32_t         text[40];
    if (!CHECK_OK(open_drafter(g, path, &opt, &e), e)) return false;
    draft_job j = job_for(g, 2, text, fill_lane(t, g, 2, text), 4);
    draft(t, g, &j);
    CHECK_INT(j.n, 4);
    float *logits = download(g, g->d->draft_logits, 4 * 512);
    memcpy(out->token, j.token, sizeof out->token);
    memcpy(out->logits, logits, sizeof out->logits);
    mem_free(logits);
    kv_seq_cut(g->seq[2], 0);
    close_drafter(g);
    return true;
}

static const char *converted(test_case *t, const char *name)
{
    static char     path[512];
    err             e   = {0};
    convert_options opt = {.as_stored = true, .recode = {.n_threads = 2}};
    snprintf(path, sizeof path, "%s/assistant.gguf", test_tmp_dir());
    CHECK_OK(convert_dir(golden_path(name), path, &opt, &e), e);
    return path;
}

TEST(mtp_gguf_drafts_as_the_directory)
{
    rig     g;
    drafted a, b;

    const char *device[TEST_BACKENDS_MAX];
    for (int i = 0, n = test_devices(device); i < n; i++) {
        if (open_target(t, &g, golden_path("gemma4-moe"), device[i], cache_types_both(CACHE_F32)) &&
            draft_with(t, &g, golden_path("gemma4-moe-assistant"), QUANT_F32, &a) &&
            draft_with(t, &g, converted(t, "gemma4-moe-assistant"), QUANT_F32, &b))
            CHECK(memcmp(&a, &b, sizeof a) == 0);
        close_rig(&g);
        if (open_target(t, &g, golden_path("gemma4-ple"), device[i], cache_types_both(CACHE_F32)) &&
            draft_with(t, &g, golden_path("gemma4-ple-assistant"), QUANT_F32, &a) &&
            draft_with(t, &g, converted(t, "gemma4-ple-assistant"), QUANT_F32, &b))
            CHECK(memcmp(&a, &b, sizeof a) == 0); /* with the centroid head */
        close_rig(&g);
    }
}

/* The file with one key changed to another name, so that it is not found. */
static const char *without_key(test_case *t, const char *path, const char *key)
{
    static char other[512];
    err         e = {0};
    file_map    m;
    snprintf(other, sizeof other, "%s/other.gguf", test_tmp_dir());
    if (!CHECK_OK(file_map_open(&m, path, &e), e)) return path;
    char *copy = xalloc(m.n), *at;
    memcpy(copy, m.p, m.n);
    at = memmem(copy, m.n, key, strlen(key));
    if (CHECK(at != NULL)) at[0] = 'x';
    test_tmp_file("other.gguf", copy, m.n);
    mem_free(copy);
    file_map_close(&m);
    return other;
}

TEST(mtp_refuses_a_part_of_a_centroid_head)
{
    static const char *const key[] = {"tandem.ordered_head.centroids", "tandem.ordered_head.tokens",
                                      "tandem.ordered_head.chosen"};
    rig                      g;
    err                      e   = {0};
    drafter_options          opt = {.max_lanes = 1};
    if (open_target(t, &g, golden_path("gemma4-ple"), "cpu", cache_types_both(CACHE_F32)))
        for (size_t i = 0; i < COUNT(key); i++)
            CHECK_FAILS(open_drafter(&g, without_key(t, converted(t, "gemma4-ple-assistant"), key[i]), &opt, &e), e,
                        "do not match 512 tokens of width 64");
    close_rig(&g);
}

/* A GGUF file without centroids gets the dense head: the same logits where both have one. */
TEST(mtp_dense_head_agrees_with_the_ordered_one)
{
    rig         g;
    drafted     a, b;
    const char *path = without_key(t, converted(t, "gemma4-ple-assistant"), "tandem.ordered_head.centroids");
    path             = without_key(t, path, "tandem.ordered_head.tokens");
    if (open_target(t, &g, golden_path("gemma4-ple"), "cpu", cache_types_both(CACHE_F32)) &&
        draft_with(t, &g, golden_path("gemma4-ple-assistant"), QUANT_F32, &a) &&
        draft_with(t, &g, path, QUANT_F32, &b)) {
        int   n_same = 0;
        float least  = INFINITY;
        for (int v = 0; v < 512; v++) least = fminf(least, a.logits[v]);
        for (int v = 0; v < 512; v++) n_same += a.logits[v] > least && a.logits[v] == b.logits[v];
        CHECK_INT(n_same, 4 * 512 / 32); /* four clusters of 16 tokens */
    }
    close_rig(&g);
}

static double distance(const drafted *a, const drafted *b)
{
    double d = 0, s = 0;
    for (int i = 0; i < 512; i++) { /* of the first guess: later ones may follow other tokens */
        d += ((double)a->logits[i] - b->logits[i]) * ((double)a->logits[i] - b->logits[i]);
        s += (double)a->logits[i] * a->logits[i];
    }
    return sqrt(d / s);
}

TEST(mtp_quantised_at_load)
{
    rig     g;
    drafted a, b;
    if (open_target(t, &g, golden_path("gemma4-moe"), "cpu", cache_types_both(CACHE_F32)) &&
        draft_with(t, &g, golden_path("gemma4-moe-assistant"), QUANT_F32, &a)) {
        if (draft_with(t, &g, golden_path("gemma4-moe-assistant"), QUANT_Q8_0, &b))
            CHECK_MSG(distance(&a, &b) > 0 && distance(&a, &b) < 0.05, "q8_0 is %g away", distance(&a, &b));
        if (draft_with(t, &g, golden_path("gemma4-moe-assistant"), QUANT_Q4_0, &b))
            CHECK_MSG(distance(&a, &b) > 0.01 && distance(&a, &b) < 0.5, "q4_0 is %g away", distance(&a, &b));
    }
    close_rig(&g);
    if (open_target(t, &g, golden_path("gemma4-ple"), "cpu", cache_types_both(CACHE_F32)) &&
        draft_with(t, &g, golden_path("gemma4-ple-assistant"), QUANT_F32, &a) &&
        draft_with(t, &g, golden_path("gemma4-ple-assistant"), QUANT_Q8_0, &b))
        CHECK_MSG(distance(&a, &b) < 0.5, "q8_0 with the ordered head is %g away", distance(&a, &b));
    close_rig(&g);
}

/* --- files that are wrong -----------------------------------------------------------------------*/
static char made_dir[256];

static char *slurp(const char *dir, const char *name, size_t *n)
{
    char     path[512];
    file_map m;
    err      e = {0};
    if (!file_join(path, sizeof path, dir, name) || !file_map_open(&m, path, &e)) abort();
    char *bytes = xalloc(m.n);
    memcpy(bytes, m.p, *n = m.n);
    file_map_close(&m);
    return bytes;
}

static void spill(const char *dir, const char *name, const char *bytes, size_t n)
{
    char path[512];
    if (!file_join(path, sizeof path, dir, name)) abort();
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) abort();
}

static void replace(buf *out, const char *bytes, size_t n, const char *old, const char *new)
{
    const char *at = memmem(bytes, n, old, strlen(old));
    if (!at) abort();
    buf_init(out, 1 << 24);
    buf_put(out, bytes, (size_t)(at - bytes));
    buf_puts(out, new);
    buf_put(out, at + strlen(old), n - (size_t)(at - bytes) - strlen(old));
}

/* Overwrites the start of a tensor. */
static void poke(char *bytes, size_t n, const char *name, const void *with, size_t n_with)
{
    err          e = {0};
    safetensors *st;
    if (!safetensors_open_bytes(&st, (str){bytes, n}, &e)) abort();
    const tensor *x = tensor_find(safetensors_tensors(st), str_of(name));
    if (!x || x->bytes < n_with) abort();
    memcpy(bytes + ((const char *)x->data - bytes), with, n_with);
    safetensors_close(st);
}

/* A copy of a golden directory; in `file` the text old became new (NULL: no), and the tensor's first bytes `with`. */
typedef struct {
    const char *from, *file, *old, *new, *tensor;
    const void *with;
    size_t      n_with;
} damage;

static const char *make_dir(const damage *x)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    snprintf(made_dir, sizeof made_dir, "%s/mtp-made", test_tmp_dir());
    mkdir(made_dir, 0777);
    for (size_t i = 0; i < COUNT(files); i++) {
        size_t n;
        char  *bytes = slurp(golden_path(x->from), files[i], &n);
        buf    b;
        if (x->tensor && i == 1) poke(bytes, n, x->tensor, x->with, x->n_with);
        bool here = x->old && !strcmp(x->file, files[i]);
        replace(&b, bytes, n, here ? x->old : "{", here ? x->new : "{");
        spill(made_dir, files[i], b.p, b.n);
        buf_deinit(&b);
        mem_free(bytes);
    }
    return made_dir;
}

static void remove_dir(void)
{
    char path[300];
    snprintf(path, sizeof path, "%s/config.json", made_dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", made_dir);
    unlink(path);
    rmdir(made_dir);
}

static void check_refused(test_case *t, rig *g, const damage *x, const char *want)
{
    err             e   = {0};
    drafter_options opt = {.max_lanes = N_LANES};
    CHECK_FAILS(open_drafter(g, make_dir(x), &opt, &e), e, want);
    CHECK(!g->d);
    close_drafter(g);
    remove_dir();
}

#define MOE "gemma4-moe-assistant"
#define PLE "gemma4-ple-assistant"
/* One piece of text replaced; a number in config.json; the start of a tensor. */
#define SWAP(dir, name, x, y)                                                                                          \
    {                                                                                                                  \
        .from = (dir), .file = (name), .old = (x), .new = (y)                                                          \
    }
#define SET(dir, key, x, y) SWAP(dir, "config.json", "\"" key "\": " x, "\"" key "\": " y)
#define DROP(dir, key, x)   SWAP(dir, "config.json", "\"" key "\": " x ",", "")
#define RENAME(dir, x, y)   SWAP(dir, "model.safetensors", x, y)
#define POKE(dir, name, x)                                                                                             \
    {                                                                                                                  \
        .from = (dir), .tensor = (name), .with = &(x), .n_with = sizeof(x)                                             \
    }

static const int64_t beyond = 512, below = -1, twice[2] = {7, 7};
typedef struct {
    damage      d;
    const char *want;
} misfit;

static const misfit misfits_moe[] = {
    {SET(MOE, "backbone_hidden_size", "128", "96"), "for a target of width 96, this one's is 128"},
    {DROP(MOE, "backbone_hidden_size", "128"), "backbone_hidden_size is missing"},
    {SET(MOE, "vocab_size", "512", "256"), "has 256 tokens, the target 512"},
    {SET(MOE, "num_key_value_heads", "2", "4"),
     "reads 4 K/V heads of size 64 in sliding layers, the target's have 2 of size 64"},
    {SET(MOE, "head_dim", "128", "64"), "reads 1 K/V heads of size 64 in full layers, the target's have 1 of size 128"},
    {SET(MOE, "sliding_window", "16", "17"), "window is 17 positions, the target's only 16"},
    {SET(MOE, "rope_theta", "10000.0", "-1.0"), "rope_theta is -1"},
    {SET(MOE, "intermediate_size", "128", "64"), "has shape"},
    {SET(MOE, "model_type", "\"gemma4_assistant\"", "\"gemma4_text\""),
     "'gemma4_text' is neither a DFlash or DSpark drafter nor has an MTP head"},
    {SET(MOE, "hidden_size_per_layer_input", "0", "8"),
     "assistants with experts or per-layer embeddings are not supported"},
    {RENAME(MOE, "pre_projection.weight", "pre_projectionXweight"), "'pre_projection.weight' is missing"},
    {RENAME(MOE, "layers.2.layer_scalar", "layers.2.layer_scalaX"), "layers.2.layer_scalar' is missing"},
    {SET(MOE, "use_ordered_embeddings", "false", "true"), "'masked_embedding.centroids.weight' is missing"},
};

static const misfit misfits_ple[] = {
    {SET(PLE, "num_centroids", "32", "33"), "512 tokens cannot be shared evenly by 33"},
    {SET(PLE, "num_centroids", "32", "64"), "has shape [64, 32, 1, 1], expected [64, 64"},
    {DROP(PLE, "num_centroids", "32"), "num_centroids is missing"},
    {SET(PLE, "centroid_intermediate_top_k", "4", "40"), "is 40 of 32"},
    {RENAME(PLE, "masked_embedding.token_ordering", "masked_embedding.token_orderinX"), "token_ordering' is missing"},
    {POKE(PLE, "masked_embedding.token_ordering", beyond), "entry 0 is 512"},
    {POKE(PLE, "masked_embedding.token_ordering", below), "entry 0 is -1"},
    {POKE(PLE, "masked_embedding.token_ordering", twice), "entry 1 is 7"},
};

TEST(mtp_refuses_what_does_not_fit)
{
    rig g;
    if (open_target(t, &g, golden_path("gemma4-moe"), "ref", cache_types_both(CACHE_F32)))
        for (size_t i = 0; i < COUNT(misfits_moe); i++) check_refused(t, &g, &misfits_moe[i].d, misfits_moe[i].want);
    close_rig(&g);
    if (open_target(t, &g, golden_path("gemma4-ple"), "ref", cache_types_both(CACHE_F32)))
        for (size_t i = 0; i < COUNT(misfits_ple); i++) check_refused(t, &g, &misfits_ple[i].d, misfits_ple[i].want);
    close_rig(&g);
}

TEST(mtp_refuses_a_target_without_donors)
{
    static const char *const want[] = {"no full layer whose K/V", "no sliding layer whose K/V"};
    rig                      g;
    drafter_options          opt = {0};
    if (open_target(t, &g, golden_path("gemma4-moe"), "ref", cache_types_both(CACHE_F32)))
        for (int kind = 0; kind < 2; kind++) {
            err e                  = {0};
            g.m->donor[kind].there = false;
            CHECK_FAILS(open_drafter(&g, golden_path(MOE), &opt, &e), e, want[kind]);
            g.m->donor[kind].there = true;
        }
    close_rig(&g);
}

/* The number of a key in the converted file overwritten. */
static void check_gguf_refused(test_case *t, rig *g, const char *key, const void *with, const char *want)
{
    err             e   = {0};
    drafter_options opt = {0};
    size_t          n;
    char           *bytes = slurp(test_tmp_dir(), "assistant.gguf", &n), *at = memmem(bytes, n, key, strlen(key));
    if (!at) abort();
    memcpy(at + strlen(key) + 4, with, 4); /* name, type, value */
    spill(test_tmp_dir(), "damaged.gguf", bytes, n);
    mem_free(bytes);
    char path[512];
    if (!file_join(path, sizeof path, test_tmp_dir(), "damaged.gguf")) abort();
    CHECK_FAILS(open_drafter(g, path, &opt, &e), e, want);
    close_drafter(g);
    unlink(path);
}

TEST(mtp_refuses_a_gguf_with_wrong_keys)
{
    static const float    not_a_number = NAN;
    static const uint32_t width = 64, many = 5;
    rig                   g;
    converted(t, MOE);
    if (open_target(t, &g, golden_path("gemma4-moe"), "ref", cache_types_both(CACHE_F32))) {
        check_gguf_refused(t, &g, "gemma4-assistant.rope.freq_base_swa", &not_a_number, "freq_base_swa is nan");
        check_gguf_refused(t, &g, "gemma4-assistant.embedding_length_out", &width, "for a target of width 64");
        check_gguf_refused(t, &g, "gemma4-assistant.attention.shared_kv_layers", &many, "is 5, expected 0 to 4");
        check_gguf_refused(t, &g, "gemma4-assistant.block_count", &many, "5 layers");
    }
    close_rig(&g);
}

TEST(mtp_weights_that_are_no_numbers_end_a_draft)
{
    static const uint16_t    nan_bf16 = 0x7fc0;
    static const char *const names[]  = {"model.norm.weight", "pre_projection.weight",
                                         "masked_embedding.centroids.weight"};
    rig                      g;
    if (open_target(t, &g, golden_path("gemma4-ple"), "cpu", cache_types_both(CACHE_F32)))
        for (size_t i = 0; i < COUNT(names); i++) {
            err             e   = {0};
            drafter_options opt = {.max_lanes = N_LANES};
            int32_t         text[40];
            uint16_t        all[64];
            for (size_t k = 0; k < COUNT(all); k++) all[k] = nan_bf16;
            damage x = POKE(PLE, names[i], all);
            if (CHECK_OK(open_drafter(&g, make_dir(&x), &opt, &e), e)) {
                draft_job j = job_for(&g, 0, text, fill_lane(t, &g, 0, text), 2), *jobs = &j;
                if (i < 2) CHECK_FAILS(g.d->draft(g.d, g.kv, &jobs, 1, &e), e, "its output is not a number");
                if (i == 2) CHECK_OK(g.d->draft(g.d, g.kv, &jobs, 1, &e), e); /* one cluster out of its mind */
                kv_seq_cut(g.seq[0], 0);
            }
            close_drafter(&g);
            opt.quantise = QUANT_Q8_0;
            if (i) CHECK_FAILS(open_drafter(&g, make_dir(&x), &opt, &e), e, "not finite");
            close_drafter(&g);
            remove_dir();
        }
    close_rig(&g);
}

/* Every allocation of opening made to fail in turn: a sentence each time, and nothing left behind. */
TEST(mtp_open_survives_a_lack_of_memory)
{
    rig             g;
    err             e   = {0};
    checkpoint     *cp  = NULL;
    drafter_options opt = {.max_lanes = 2, .keep_rows = true, .quantise = QUANT_Q8_0};
    long            n   = 1;
    if (open_target(t, &g, golden_path("gemma4-ple"), "ref", cache_types_both(CACHE_F32)) &&
        CHECK_OK(checkpoint_open(&cp, golden_path(PLE), &e), e))
        for (bool ok = false; !ok && n < 1000; n++) {
            e.text[0] = 0;
            fault_fail_nth(n);
            ok = drafter_open(&g.d, g.m, cp, &opt, &e);
            fault_fail_nth(0);
            CHECK(ok == (g.d != NULL) && (ok || strstr(e.text, "memory")));
            drafter_close(g.d);
            g.d = NULL;
        }
    CHECK(n > 50 && n < 1000);
    checkpoint_close(cp);
    close_rig(&g);
}
