/* The oracle drafter has the accuracy that was set, and the text stays the target's. */
#include "bench/oracle.h"

#include "backends.h"
#include "bench/inside.h"
#include "bench/shape.h"
#include "spec/spec.h"
#include "test.h"

enum { N_PROMPT = 8, N_OUT = 96, MINI = 3, BLOCK = 16 };

typedef struct {
    shape_image image[2];
    target     *m;
    spec       *s;
    spec_lane  *lane[2];
    oracle     *o;
} rig;

static bool open_model(test_case *t, rig *g, const char *device)
{
    err           e   = {0};
    checkpoint   *cp  = NULL;
    shape_spec    s   = {.shape = MINI, .n_layers = 1, .seed = 1};
    model_options opt = {.device = device, .n_threads = 1};
    bool ok = CHECK_OK(shape_target(&g->image[0], &s, &e), e) && CHECK_OK(shape_drafter(&g->image[1], &s, &e), e) &&
              CHECK_OK(checkpoint_open_bytes(&cp, "shape", g->image[0].bytes, &e), e) &&
              CHECK_OK(model_open(&g->m, cp, &opt, &e), e);
    checkpoint_close(cp);
    return ok;
}

static bool open_rig(test_case *t, rig *g, const char *device)
{
    err e = {0};
    *g    = (rig){.o = oracle_new(1)};
    if (!open_model(t, g, device)) return false;
    spec_options      so  = {.n_ctx = 1024, .max_lanes = 2, .kv_type = KV_TYPES_ALL(CACHE_F16)};
    spec_draft_source src = {.name     = "shape",
                             .image    = g->image[1].bytes,
                             .wrap     = oracle_wrap,
                             .wrap_ctx = g->o,
                             .opt      = {.kv_type = {CACHE_F16, CACHE_F16}}};
    return CHECK_OK(spec_new(&g->s, g->m, &so, &e), e) && CHECK_OK(spec_add_drafter(g->s, &src, &e), e) &&
           CHECK_OK(spec_lane_new(g->s, &g->lane[0], &e), e) && CHECK_OK(spec_lane_new(g->s, &g->lane[1], &e), e);
}

static void close_rig(rig *g)
{
    for (int i = 0; i < 2; i++) spec_lane_free(g->lane[i]);
    spec_free(g->s);
    model_close(g->m);
    oracle_free(g->o);
    for (int i = 0; i < 2; i++) shape_free(&g->image[i]);
}

typedef struct {
    int32_t            token[N_PROMPT + N_OUT];
    int                n;
    tandem_spec_counts stats;
} text;

/* Each lane its own prompt. */
static void answer(test_case *t, rig *g, int method, int n_lanes, text *out)
{
    err          e = {0};
    size_t       reused;
    lane_options o = {.params      = {.temp = 1, .top_k = 64, .top_p = 0.95f, .seed = 5},
                      .penalty     = {.repeat = 1},
                      .n_top       = -1,
                      .spec.method = method};
    for (int k = 0; k < n_lanes; k++) {
        out[k] = (text){.n = N_PROMPT};
        for (int i = 0; i < N_PROMPT; i++) out[k].token[i] = 300 + 17 * i + 1000 * k;
        if (!CHECK_OK(spec_lane_begin(g->lane[k],
                                      &(lane_request){.opt = o, .prompt = out[k].token, .n_prompt = N_PROMPT}, &reused,
                                      &e),
                      e))
            return;
    }
    for (bool more = true; more;) {
        spec_lane *some[2];
        int        n = 0;
        for (int k = 0; k < n_lanes; k++) {
            spec_lane_limit(g->lane[k], N_PROMPT + N_OUT - out[k].n);
            if (out[k].n < N_PROMPT + N_OUT) some[n++] = g->lane[k];
        }
        if ((more = n > 0) && !CHECK_OK(spec_step_alone(g->s, some, n, &e), e)) return;
        for (int k = 0; k < n_lanes; k++) {
            const spec_out *x = spec_lane_out(g->lane[k]);
            for (int i = 0; i < x->n; i++) out[k].token[out[k].n++] = x->token[i];
            spec_lane_keep(g->lane[k], x->n);
            out[k].stats = *spec_lane_stats(g->lane[k]);
        }
    }
}

static void check_same(test_case *t, const text *a, const text *b)
{
    CHECK_INT(a->n, b->n);
    CHECK(memcmp(a->token, b->token, sizeof a->token) == 0);
}

static void check_oracle(test_case *t, const char *device)
{
    static const double accept[] = {1, 4.25, BLOCK}; /* with so few tokens 4.25 is roughly that */
    rig                 g;
    err                 e = {0};
    text                plain[2], a[2], b[2];
    if (open_rig(t, &g, device)) {
        answer(t, &g, SPEC_OFF, 2, plain);
        answer(t, &g, SPEC_DFLASH, 1, a); /* an unknown text is not changed */
        check_same(t, &a[0], &plain[0]);
        CHECK_NEAR(spec_acceptance_length(&a[0].stats), 1, 0.05);
        for (int k = 0; k < 2; k++) oracle_learn(g.o, plain[k].token, (size_t)plain[k].n);
        for (size_t i = 0; i < COUNT(accept); i++) {
            if (!test_full() && i != 1) continue;
            CHECK_OK(oracle_accept(g.o, accept[i], &e), e);
            answer(t, &g, SPEC_DFLASH, 2, a);
            answer(t, &g, SPEC_DFLASH, 1, b);
            for (int k = 0; k < 2; k++) check_same(t, &a[k], &plain[k]);
            check_same(t, &b[0], &plain[0]);
            CHECK_INT(a[0].stats.accepted, b[0].stats.accepted); /* the same with another lane */
            CHECK_INT(a[0].stats.rounds, b[0].stats.rounds);
            tandem_spec_counts both = a[0].stats;
            spec_counts_add(&both, &a[1].stats);
            CHECK_NEAR(spec_acceptance_length(&both), accept[i], 0.2 * accept[i]);
            if (accept[i] == 1) continue;
            answer(t, &g, SPEC_TREE, 1, b);
            check_same(t, &b[0], &plain[0]);
            CHECK_NEAR(spec_acceptance_length(&b[0].stats), accept[i], 0.2 * accept[i]);
            answer(t, &g, SPEC_AUTO, 1, b);
            check_same(t, &b[0], &plain[0]);
        }
        CHECK(!oracle_accept(g.o, BLOCK + 0.1, &e));
    }
    close_rig(&g);
}

TEST_LONG(oracle_is_as_right_as_it_is_told)
{
    const char *device[TEST_BACKENDS_MAX];
    for (int i = 1, n = test_devices(device); i < n; i++) check_oracle(t, device[i]); /* ref, the first, is slow */
}

/* --- at length, with a drafter that has no model ------------------------------------------------- */
enum { LONG = 40000 };

static bool stub_draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e)
{
    (void)d, (void)kv, (void)e;
    for (int i = 0; i < n_jobs; i++) {
        jobs[i]->n = jobs[i]->n_want;
        for (int k = 0; k < jobs[i]->n; k++) {
            jobs[i]->token[k] = 7;
            for (int c = 0; c < jobs[i]->n_top; c++) jobs[i]->top[k][c] = (token_logprob){7 + c, -1.0f - (float)c};
        }
    }
    return true;
}

static void stub_close(drafter *d) { (void)d; }

static void check_top(test_case *t, const draft_job *j, int i, int32_t truth)
{
    CHECK_INT(j->top[i][0].id, j->token[i]);
    for (int a = 1; a < j->n_top; a++) {
        CHECK(j->top[i][a].id != truth);
        for (int b = 0; b < a; b++) CHECK(j->top[i][a].id != j->top[i][b].id);
    }
}

/* Tokens of a round, over a whole text of rounds. */
static double mean_round(test_case *t, drafter *d, const int32_t *words, int n_top)
{
    draft_job *j  = xnew(draft_job);
    int        at = 1, rounds = 0;
    for (; at + BLOCK < LONG; rounds++) {
        *j        = (draft_job){.text = words, .n_text = at, .n_want = BLOCK - 1, .n_top = n_top};
        int right = 0;
        CHECK(d->draft(d, NULL, &j, 1, NULL));
        for (int i = 0; n_top && i < j->n && rounds < 50; i++) check_top(t, j, i, words[at + i]);
        while (right < j->n && j->token[right] == words[at + right]) right++;
        at += 1 + right;
    }
    mem_free(j);
    return (double)(at - 1) / rounds;
}

TEST_LONG(oracle_means_what_it_is_told)
{
    static const double accept[] = {1, 1.5, 4.25, 7.7, 15};
    uint64_t            seed     = 1;
    err                 e        = {0};
    target              m        = {.n_vocab = 20};
    drafter             stub     = {.t = &m, .max_draft = BLOCK - 1, .draft = stub_draft, .close = stub_close};
    oracle             *o        = oracle_new(1);
    drafter            *d        = oracle_wrap(o, &stub);
    int32_t            *words    = xnew_n(int32_t, LONG);
    for (int i = 0; i < LONG; i++) words[i] = (int32_t)(test_rand(&seed) % 20);
    oracle_learn(o, words, LONG);
    for (size_t i = 0; i < COUNT(accept); i += test_full() ? 1 : 2) {
        CHECK_OK(oracle_accept(o, accept[i], &e), e);
        CHECK_NEAR(mean_round(t, d, words, 0), accept[i], 0.03 * accept[i]);
        CHECK_NEAR(mean_round(t, d, words, 4), accept[i], 0.03 * accept[i]);
    }
    drafter_close(d);
    oracle_free(o);
    mem_free(words);
}

TEST(oracle_chance_makes_the_length)
{
    for (int n = 1; n <= 63; n += 7)
        for (double tokens = 1; tokens <= n + 1; tokens += 0.7) {
            double p = oracle_chance(tokens, n), sum = 1, all = 1;
            for (int i = 0; i < n; i++) sum += all *= p;
            CHECK_NEAR(sum, tokens, 1e-9 * tokens);
        }
}
