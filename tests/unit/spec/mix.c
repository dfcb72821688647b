/* Lanes with random requests in the same steps: methods, sampling, penalties, log-probabilities, kept counts, prompts that
 * begin like the last text, limits, the context's end, parking. Every text and every log-probability must be that of the
 * request alone, decoded plainly. */
#include "spec/inside.h"
#include "test.h"
#include "views.h"

enum { LANES = 4, CTX = 180, MAX_PROMPT = 150, MAX_TEXT = CTX + 1 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TURNS = 2, LEAST_ACCEPTED = 10 }; /* ten times slower */
#else
enum { TURNS = 6, LEAST_ACCEPTED = 50 };
#endif

typedef struct {
    lane_options  o;
    logit_bias    bias[2];
    int32_t       prompt[MAX_PROMPT], out[MAX_TEXT];
    int           n_prompt, n_out, n_want;
    token_logprob top[MAX_TEXT][1 + SPEC_MAX_TOP];
} request;

typedef struct {
    target    *m;
    spec      *s;
    spec_lane *l[LANES];
    uint64_t   rng;
} mix;

static int below(mix *g, int n) { return (int)(test_rand(&g->rng) % (uint64_t)n); }

static bool open_mix(test_case *t, mix *g, int n_lanes, int draft_ctx, uint64_t seed)
{
    static const char *const drafters[] = {"models/nano/dflash.gguf", "models/nano/mtp.gguf"};
    static char              path[2][4096];
    err                      e   = {0};
    checkpoint              *cp  = NULL;
    model_options            opt = {.device = "cpu", .n_threads = 1};
    *g                           = (mix){.rng = seed};
    if (!CHECK_OK(checkpoint_open(&cp, test_path("models/nano/target.gguf"), &e), e)) return false;
    bool ok = CHECK_OK(model_open(&g->m, cp, &opt, &e), e);
    checkpoint_close(cp);
    spec_options so = {.n_ctx = CTX, .max_lanes = n_lanes, .kv_type = KV_TYPES_ALL(CACHE_F16)};
    if (!ok || !CHECK_OK(spec_new(&g->s, g->m, &so, &e), e)) return false;
    for (int i = 0; i < n_lanes; i++) ok = ok && CHECK_OK(spec_lane_new(g->s, &g->l[i], &e), e);
    for (int i = 0; i < 2 && draft_ctx >= 0; i++) {
        snprintf(path[i], sizeof path[i], "%s", test_path(drafters[i]));
        spec_draft_source src = {.path = path[i], .opt.n_ctx = draft_ctx};
        ok                    = ok && CHECK_OK(spec_add_drafter(g->s, &src, &e), e);
    }
    return ok;
}

static void close_mix(mix *g)
{
    for (int i = 0; i < LANES; i++) spec_lane_free(g->l[i]);
    spec_free(g->s);
    model_close(g->m);
}

static void random_sampling(mix *g, request *r)
{
    static const float temps[] = {0, 0.7f, 1, 1.5f};
    r->o.params                = (sample_params){.temp  = temps[below(g, 4)],
                                                 .top_p = below(g, 2) ? 0.95f : 1,
                                                 .top_k = below(g, 3) ? 0 : 20,
                                                 .seed  = test_rand(&g->rng)};
    r->o.penalty               = (penalty_params){.repeat = 1, .bias = r->bias, .n_bias = below(g, 3)};
    r->bias[0]                 = (logit_bias){280 + below(g, 20), 2};
    r->bias[1]                 = (logit_bias){320 + below(g, 20), -INFINITY};
    if (below(g, 2)) {
        r->o.penalty.repeat    = 1.2f;
        r->o.penalty.frequency = below(g, 2) ? 0.3f : 0;
        r->o.penalty.presence  = below(g, 2) ? -0.4f : 0;
    }
    r->o.n_top = below(g, 3) ? -1 : below(g, 1 + SPEC_MAX_TOP);
}

static void random_method(mix *g, spec_settings *s)
{
    *s = (spec_settings){.method        = below(g, SPEC_AUTO + 1),
                         .draft_max     = below(g, 2) ? 1 + below(g, 20) : 0,
                         .tree_budget   = below(g, 2) ? 1 + below(g, DRAFT_MAX) : 0,
                         .tree_temp     = below(g, 2) ? 0.5f + (float)below(g, 3) : 0,
                         .no_chain_seed = below(g, 2),
                         .draft_noise   = (float)below(g, 3) / 2,
                         .draft_tail    = below(g, 2) ? below(g, 30) : 0};
}

/* A part of the lane's last text with something new behind it, or a fresh prompt. */
static void random_prompt(mix *g, request *r, const request *last)
{
    static const int32_t question[] = {2,   15, 591, 281, 285, 349, 630, 280, 290, 283,
                                       283, 16, 281, 15,  590, 281, 13,  599, 281, 14};
    int                  keep       = last->n_prompt && below(g, 3) ? 1 + below(g, last->n_prompt + last->n_out) : 0;
    for (int i = 0; i < keep && r->n_prompt < 120; i++)
        r->prompt[r->n_prompt++] = i < last->n_prompt ? last->prompt[i] : last->out[i - last->n_prompt];
    for (size_t i = 0; i < COUNT(question) && !keep; i++) r->prompt[r->n_prompt++] = question[i];
    for (int i = below(g, keep ? 4 : 30); i > 0; i--) r->prompt[r->n_prompt++] = 280 + below(g, 200);
    r->n_want = 10 + below(g, 60);
}

static bool wants_more(const request *r, const spec_lane *l) { return r->n_out < r->n_want && !spec_lane_full(l); }

static void take(request *r, spec_lane *l, int n)
{
    const spec_out *x = spec_lane_out(l);
    for (int i = 0; i < n; i++) {
        if (r->o.n_top >= 0) memcpy(r->top[r->n_out], x->logprob[i], sizeof x->logprob[0]);
        r->out[r->n_out++] = x->token[i];
    }
    spec_lane_keep(l, n);
}

/* One step with some of the lanes that want more; false when none does. */
static bool step_some(test_case *t, mix *g, request *r)
{
    err        e = {0};
    spec_lane *some[LANES];
    int        who[LANES], n = 0, left = 0;
    for (int i = 0; i < LANES; i++) {
        if (!wants_more(&r[i], g->l[i])) continue;
        left++;
        if (below(g, 8) == 0) continue;
        spec_lane_limit(g->l[i], below(g, 3) ? INT32_MAX : r[i].n_want - r[i].n_out);
        who[n]    = i;
        some[n++] = g->l[i];
    }
    if (n && !CHECK_OK(spec_step_alone(g->s, some, n, &e), e)) return false;
    for (int k = 0; k < n; k++) {
        int      there = spec_lane_out(some[k])->n, keep = below(g, 4) ? there : below(g, there + 1);
        request *x = &r[who[k]];
        take(x, some[k], keep < x->n_want - x->n_out ? keep : x->n_want - x->n_out);
    }
    return left > 0;
}

static void check_alone(test_case *t, mix *plain, const request *r)
{
    static request a;
    err            e = {0};
    size_t         reused;
    a        = *r;
    a.n_out  = 0;
    a.o.spec = (spec_settings){0};
    if (!CHECK_OK(spec_lane_begin(plain->l[0],
                                  &(lane_request){.opt = a.o, .prompt = a.prompt, .n_prompt = (size_t)a.n_prompt},
                                  &reused, &e),
                  e))
        return;
    while (wants_more(&a, plain->l[0])) {
        if (!CHECK_OK(spec_step_alone(plain->s, plain->l, 1, &e), e)) return;
        take(&a, plain->l[0], spec_lane_out(plain->l[0])->n);
    }
    CHECK_INT(r->n_out, a.n_out);
    for (int i = 0; i < a.n_out; i++) {
        if (!CHECK_MSG(r->out[i] == a.out[i], "method %d: token %d is %d, plainly %d", r->o.spec.method, i, r->out[i],
                       a.out[i]))
            return;
        if (a.o.n_top >= 0) CHECK(!memcmp(r->top[i], a.top[i], (size_t)(1 + a.o.n_top) * sizeof a.top[0][0]));
    }
}

static void run_mix(test_case *t, uint64_t seed, int draft_ctx, bool parking)
{
    static request     r[LANES], last[LANES];
    mix                g, plain = {0};
    tandem_spec_counts all = {0};
    err                e   = {0};
    size_t             reused;
    memset(r, 0, sizeof r);
    bool ok = open_mix(t, &g, LANES, draft_ctx, seed) && open_mix(t, &plain, 1, -1, seed);
    for (int turn = 0; ok && turn < TURNS; turn++) {
        bool parked = false;
        for (int i = 0; i < LANES; i++) {
            last[i] = r[i];
            memset(&r[i], 0, sizeof r[i]);
            random_sampling(&g, &r[i]);
            random_method(&g, &r[i].o.spec);
            random_prompt(&g, &r[i], &last[i]);
            ok = ok &&
                 CHECK_OK(spec_lane_begin(
                              g.l[i],
                              &(lane_request){.opt = r[i].o, .prompt = r[i].prompt, .n_prompt = (size_t)r[i].n_prompt},
                              &reused, &e),
                          e);
        }
        while (ok && step_some(t, &g, r)) {
            if (!parking || below(&g, 12)) continue;
            if (parked) CHECK_OK(unpark_all(g.s, &e), e);
            if (!parked) park_all(g.s);
            parked = !parked;
        }
        if (parked) CHECK_OK(unpark_all(g.s, &e), e);
        for (int i = 0; i < LANES; i++) {
            spec_counts_add(&all, spec_lane_stats(g.l[i]));
            check_alone(t, &plain, &r[i]);
        }
    }
    CHECK(all.accepted > LEAST_ACCEPTED && all.drafted > all.accepted);
    close_mix(&g);
    close_mix(&plain);
}

TEST_LONG(spec_any_mix_of_lanes_writes_the_plain_texts) { run_mix(t, 1, 0, false); }
TEST_LONG(spec_any_mix_of_lanes_with_a_short_draft_context) { run_mix(t, 2, 40, false); }
TEST_LONG(spec_any_mix_of_lanes_with_parking) { run_mix(t, 3, 0, true); }
