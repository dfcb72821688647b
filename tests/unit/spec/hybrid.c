/* Speculation over a hybrid target with its own MTP head and a DFlash drafter: every method writes the plain text, with
 * log-probabilities equal bit by bit, alone and among other lanes, after prefix hits and with rounds kept in part. */
#include "base/num.h"
#include "spec/image.h"
#include "spec/inside.h"
#include "test.h"

enum { LANES = 3, PROMPT = 40, TEXT = 64 };

static const spec_settings methods[] = {
    {.method = SPEC_DFLASH, .draft_max = 7},
    {.method = SPEC_TREE, .tree_budget = 12},
    {.method = SPEC_MTP, .draft_max = 3},
    {.method = SPEC_MTP, .draft_max = 7},
    {.method = SPEC_NGRAM},
    {.method = SPEC_AUTO},
};

typedef struct {
    target    *m;
    spec      *s;
    spec_lane *l[LANES];
} stage;

static bool add_drafter(test_case *t, stage *g, const char *dir, cache_types types)
{
    err               e   = {0};
    spec_draft_source src = {.path = test_path(dir), .opt = {.kv_type = types}, .fingerprint = true};
    return CHECK_OK(spec_add_drafter(g->s, &src, &e), e);
}

static const char dense[] = "tests/golden/qwen35-dense", experts[] = "tests/golden/qwen35-moe";

static bool open_stage(test_case *t, stage *g, const char *dir, const kv_types *types)
{
    err           e  = {0};
    checkpoint   *cp = NULL;
    model_options mo = {.device = "cpu", .n_threads = 1};
    spec_options  so = {.n_ctx = 256, .max_lanes = LANES, .kv_type = *types, .save_every = 32};
    *g               = (stage){0};
    if (!CHECK_OK(checkpoint_open(&cp, test_path(dir), &e), e)) return false;
    bool ok = CHECK_OK(model_open(&g->m, cp, &mo, &e), e) && CHECK_OK(spec_new(&g->s, g->m, &so, &e), e);
    checkpoint_close(cp);
    if (!ok || !add_drafter(t, g, dir, types->draft) ||
        !add_drafter(t, g, "tests/golden/qwen35-dense-dflash", types->draft))
        return false;
    for (int i = 0; i < LANES; i++)
        if (!CHECK_OK(spec_lane_new(g->s, &g->l[i], &e), e)) return false;
    return true;
}

static void close_stage(stage *g)
{
    for (int i = 0; i < LANES; i++) spec_lane_free(g->l[i]);
    spec_free(g->s);
    model_close(g->m);
}

typedef struct {
    int32_t token[TEXT];
    float   logprob[TEXT];
    int     n;
    int64_t drafted, accepted;
} answer;

static void make_prompt(int32_t *out, int seed)
{
    for (int i = 0; i < PROMPT; i++) out[i] = (seed * 7 + i * i * 3 + i % 9) % 500 + 2;
}

static lane_request request(const int32_t *prompt, float temp, const spec_settings *how)
{
    return (lane_request){.opt      = {.params  = {.temp = temp, .top_p = 1, .top_k = temp > 0 ? 3 : 0, .seed = 5},
                                       .penalty = {.repeat = 1},
                                       .n_top   = 0,
                                       .spec    = how ? *how : (spec_settings){.method = SPEC_OFF}},
                          .prompt   = prompt,
                          .n_prompt = PROMPT};
}

static void begin(test_case *t, stage *g, int lane, const int32_t *prompt, float temp, const spec_settings *how)
{
    err          e      = {0};
    size_t       reused = 0;
    lane_request r      = request(prompt, temp, how);
    CHECK_OK(spec_lane_begin(g->l[lane], &r, &reused, &e), e);
}

static void keep(spec_lane *l, answer *a, int n)
{
    const spec_out *out = spec_lane_out(l);
    for (int i = 0; i < n; i++) {
        a->token[a->n]     = out->token[i];
        a->logprob[a->n++] = out->logprob[i][0].logprob;
    }
    spec_lane_keep(l, n);
}

/* Decodes lane 0 to TEXT tokens; the other lanes that are alive share its steps. part: of each round at most so many. */
static void decode(test_case *t, stage *g, answer *a, int n_lanes, int part)
{
    err    e = {0};
    answer other[LANES];
    *a = (answer){0};
    for (int i = 1; i < n_lanes; i++) other[i] = (answer){0};
    while (a->n < TEXT) {
        spec_lane *live[LANES];
        int        n = 0;
        for (int i = 0; i < n_lanes; i++)
            if (i == 0 || other[i].n < TEXT) live[n++] = g->l[i];
        if (!CHECK_OK(spec_step_alone(g->s, live, n, &e), e)) return;
        for (int i = 0; i < n_lanes; i++) {
            answer *to  = i ? &other[i] : a;
            int     got = min_int(spec_lane_out(g->l[i])->n, TEXT - to->n);
            if (got) keep(g->l[i], to, i == 0 && part ? min_int(got, part) : got);
        }
    }
    a->drafted  = spec_lane_stats(g->l[0])->drafted;
    a->accepted = spec_lane_stats(g->l[0])->accepted;
}

static void check_same(test_case *t, const answer *a, const answer *plain, size_t m, const char *what)
{
    int i = 0;
    while (i < a->n && a->token[i] == plain->token[i] && a->logprob[i] == plain->logprob[i]) i++;
    CHECK_MSG(i == TEXT, "method %zu, %s: token %d is %d, plainly %d", m, what, i, a->token[i < TEXT ? i : 0],
              plain->token[i < TEXT ? i : 0]);
}

static void check_methods(test_case *t, const char *dir, const kv_types *types, int n_seeds)
{
    stage   g;
    int32_t prompt[PROMPT], others[PROMPT];
    int64_t drafted[COUNT(methods)] = {0};
    if (open_stage(t, &g, dir, types))
        for (int seed = 0; seed < n_seeds; seed++)
            for (int w = 0; w < 2; w++) {
                answer plain, a;
                make_prompt(prompt, seed);
                make_prompt(others, seed + 20);
                spec_forget(g.s);
                begin(t, &g, 0, prompt, (float)w, NULL);
                decode(t, &g, &plain, 1, 0);
                for (size_t m = 0; m < COUNT(methods); m++) {
                    spec_forget(g.s);
                    begin(t, &g, 0, prompt, (float)w, &methods[m]);
                    decode(t, &g, &a, 1, 0);
                    check_same(t, &a, &plain, m, "cold");
                    drafted[m] += a.drafted;
                    begin(t, &g, 0, prompt, (float)w, &methods[m]); /* the prefix tree has the prompt now */
                    decode(t, &g, &a, 1, 2);
                    check_same(t, &a, &plain, m, "after a prefix hit, two tokens of a round");
                    begin(t, &g, 0, prompt, (float)w, &methods[m]);
                    for (int i = 1; i < LANES; i++) begin(t, &g, i, others, (float)w, &methods[(m + (size_t)i) % 4]);
                    decode(t, &g, &a, LANES, 0);
                    check_same(t, &a, &plain, m, "among others");
                    for (int i = 1; i < LANES; i++) spec_lane_end(g.l[i]);
                }
            }
    for (size_t m = 0; m < 4; m++)
        CHECK_MSG(drafted[m] > 30 * n_seeds, "method %zu drafted %d tokens", m, (int)drafted[m]);
    close_stage(&g);
}

TEST(hybrid_every_method_writes_the_plain_text) { check_methods(t, dense, &(kv_types)KV_TYPES_ALL(CACHE_F16), 2); }
TEST(hybrid_every_method_writes_the_plain_text_with_experts)
{
    check_methods(t, experts, &(kv_types)KV_TYPES_ALL(CACHE_F16), 1);
}

/* K and V apart, and sparse attention over texts as short as these. */
TEST_LONG(hybrid_every_method_writes_the_plain_text_with_every_type)
{
    static const kv_types types[] = {
        {.full = {CACHE_Q8_0, CACHE_Q4_0}, .draft = {CACHE_F16, CACHE_F16}},
        {.full = {CACHE_TQ3, CACHE_TQ3}, .draft = {CACHE_Q8_0, CACHE_TQ3}},
        {.full = {CACHE_Q8_0, CACHE_Q8_0}, .draft = {CACHE_Q4_0, CACHE_Q4_0}},
        {.full = {CACHE_F16, CACHE_TQ3}, .draft = {CACHE_F16, CACHE_F16}, .sparse = {SPARSE_ONE / 3, 1, 32, 40}}};
    for (size_t i = 0; i < COUNT(types); i++) check_methods(t, i % 2 ? experts : dense, &types[i], test_full() ? 2 : 1);
}

/* The rows of the MTP head are pages of the prefix tree, except those of its first and last node; a hit takes them. */
TEST(hybrid_mtp_rows_are_in_the_prefix_tree)
{
    enum { NODES = (PROMPT + TEXT) / KV_PAGE };
    const spec_settings mtp = {.method = SPEC_MTP, .draft_max = 3};
    stage               g;
    int32_t             prompt[PROMPT];
    answer              plain, a;
    make_prompt(prompt, 4);
    if (open_stage(t, &g, dense, &(kv_types)KV_TYPES_ALL(CACHE_F16))) {
        begin(t, &g, 0, prompt, 0, NULL);
        decode(t, &g, &plain, 1, 0);
        spec_lane_end(g.l[0]);
        size_t without = spec_prefix_stats(g.s).pages;
        spec_forget(g.s);
        begin(t, &g, 0, prompt, 0, &mtp);
        decode(t, &g, &a, 1, 0);
        check_same(t, &a, &plain, 0, "cold");
        spec_lane_end(g.l[0]);
        size_t with = spec_prefix_stats(g.s).pages;
        CHECK_MSG(with >= without + NODES - 2, "%zu pages, %zu without the head", with, without);
        begin(t, &g, 0, prompt, 0, NULL);
        size_t target_alone = kv_pool_pinned_bytes(g.s->kv);
        spec_lane_end(g.l[0]);
        begin(t, &g, 0, prompt, 0, &mtp);
        CHECK(kv_pool_pinned_bytes(g.s->kv) > target_alone);
        decode(t, &g, &a, 1, 0);
        check_same(t, &a, &plain, 0, "after a hit");
    }
    close_stage(&g);
}

/* A request that uses the MTP head takes its rows from an image, though its hit does not need them. */
TEST(hybrid_mtp_rows_come_back_with_an_image)
{
    const spec_settings mtp = {.method = SPEC_MTP, .draft_max = 3};
    stage               g;
    int32_t             prompt[PROMPT];
    answer              plain, a;
    err                 e    = {0};
    bool                done = false;
    kv_export          *x    = NULL;
    make_prompt(prompt, 4);
    if (open_stage(t, &g, dense, &(kv_types)KV_TYPES_ALL(CACHE_F16))) {
        kv_range range       = {.text = prompt, .to = (PROMPT - 1) / KV_PAGE * KV_PAGE};
        g.s->opt.fingerprint = "x";
        begin(t, &g, 0, prompt, 0, &mtp);
        decode(t, &g, &plain, 1, 0);
        spec_lane_end(g.l[0]);
        if (CHECK_OK(spec_export_begin(g.s, &range, &x, &e), e) &&
            CHECK_OK(spec_export_more(g.s, x, SIZE_MAX, &done, &e), e)) {
            size_t pinned[2];
            for (int with = 0; with < 2; with++) {
                const pack  *image  = kv_export_pack(x);
                size_t       reused = 0;
                lane_request r      = request(prompt, 0, with ? &mtp : NULL);
                spec_forget(g.s);
                r.images   = &image;
                r.n_images = 1;
                CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
                CHECK_INT((int)reused, range.to);
                pinned[with] = kv_pool_pinned_bytes(g.s->kv);
                decode(t, &g, &a, 1, 0);
                check_same(t, &a, &plain, 0, "after an import");
                spec_lane_end(g.l[0]);
            }
            CHECK_MSG(pinned[1] > pinned[0], "%zu bytes, %zu without the head", pinned[1], pinned[0]);
        }
        kv_export_free(x);
    }
    close_stage(&g);
}
