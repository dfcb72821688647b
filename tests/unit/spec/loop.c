/* The loop with nano: what is kept, what is reused, and what happens when a drafter goes wrong. */
#include "backends.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "gguf/gguf.h"
#include "kv/inside.h"
#include "spec/inside.h"
#include "test.h"
#include "views.h"

#include <malloc.h>

enum { N_PROMPT = 20, MAX_OUT = 160 };
static const int32_t prompt[N_PROMPT] = {2,   15, 591, 281, 285, 349, 630, 280, 290, 283,
                                         283, 16, 281, 15,  590, 281, 13,  599, 281, 14};

typedef struct {
    target    *m;
    spec      *s;
    spec_lane *l;
} loop;

static bool open_threaded(test_case *t, loop *g, int n_ctx, const char *device, int n_threads)
{
    err           e   = {0};
    checkpoint   *cp  = NULL;
    model_options opt = {.device = device, .n_threads = n_threads};
    *g                = (loop){0};
    if (!CHECK_OK(checkpoint_open(&cp, test_path("models/nano/target.gguf"), &e), e)) return false;
    bool ok = CHECK_OK(model_open(&g->m, cp, &opt, &e), e);
    checkpoint_close(cp);
    spec_options so = {.n_ctx = n_ctx, .max_lanes = 2, .kv_type = KV_TYPES_ALL(CACHE_F16)};
    return ok && CHECK_OK(spec_new(&g->s, g->m, &so, &e), e) && CHECK_OK(spec_lane_new(g->s, &g->l, &e), e);
}

static bool open_loop(test_case *t, loop *g, int n_ctx, const char *device)
{
    return open_threaded(t, g, n_ctx, device, 1);
}

static void close_loop(loop *g)
{
    spec_lane_free(g->l);
    spec_free(g->s);
    model_close(g->m);
}

static bool add_drafter(loop *g, const char *path, bool lazy, err *e)
{
    static char kept[8][4096]; /* paths live as long as the loop */
    static int  n;
    char       *mine = kept[n++ % 8];
    snprintf(mine, sizeof kept[0], "%s", path);
    return spec_add_drafter(g->s, &(spec_draft_source){.path = mine, .lazy = lazy}, e);
}

static bool add_both(test_case *t, loop *g)
{
    err e = {0};
    return CHECK_OK(add_drafter(g, test_path("models/nano/dflash.gguf"), false, &e), e) &&
           CHECK_OK(add_drafter(g, test_path("models/nano/mtp.gguf"), false, &e), e);
}

typedef struct {
    int32_t            token[MAX_OUT];
    int                n;
    tandem_spec_counts stats;
} text;

static lane_options with(int method)
{
    return (lane_options){.params = {.top_p = 1}, .penalty.repeat = 1, .n_top = -1, .spec.method = method};
}

/* n tokens, whatever they are. */
static void go_on(test_case *t, loop *g, int n, text *out)
{
    err e = {0};
    while (out->n < n && !spec_lane_full(g->l)) {
        spec_lane_limit(g->l, n - out->n);
        if (!CHECK_OK(spec_step_alone(g->s, &g->l, 1, &e), e)) return;
        const spec_out *x = spec_lane_out(g->l);
        CHECK(x->n <= n - out->n);
        for (int i = 0; i < x->n; i++) out->token[out->n++] = x->token[i];
        if (x->n) spec_lane_keep(g->l, x->n);
    }
    out->stats = *spec_lane_stats(g->l);
}

static text answer_by(test_case *t, loop *g, const lane_options *o, const int32_t *ids, size_t n_ids, int n)
{
    err    e = {0};
    text   a = {0};
    size_t reused;
    if (CHECK_OK(spec_lane_begin(g->l, &(lane_request){.opt = *o, .prompt = ids, .n_prompt = n_ids}, &reused, &e), e))
        go_on(t, g, n, &a);
    return a;
}

static text answer_with(test_case *t, loop *g, int method, const int32_t *ids, size_t n_ids, int n)
{
    lane_options o = with(method);
    return answer_by(t, g, &o, ids, n_ids, n);
}

static void check_same(test_case *t, const text *a, const text *b)
{
    CHECK_INT(a->n, b->n);
    for (int i = 0; i < a->n && i < b->n; i++) CHECK_INT(a->token[i], b->token[i]);
}

static void every_method(test_case *t, const char *device)
{
    loop g;
    if (open_loop(t, &g, 256, device) && add_both(t, &g)) {
        text plain = answer_with(t, &g, SPEC_OFF, prompt, N_PROMPT, 100);
        CHECK_INT(plain.stats.drafted, 0); /* off means none by any method */
        CHECK_INT(plain.stats.plain_rounds, 100);
        for (int m = SPEC_DFLASH; m <= SPEC_AUTO; m++) {
            text a = answer_with(t, &g, m, prompt, N_PROMPT, 100);
            check_same(t, &a, &plain);
            CHECK_INT(a.stats.tokens + a.stats.plain_rounds, 100);
            CHECK(a.stats.drafted > 0 && a.stats.rounds > 0); /* auto too: what does not pay is still tried */
            if (m == SPEC_AUTO) continue;                     /* how much is a matter of how long things take */
            CHECK(a.stats.accepted > 0 && a.stats.drafted > a.stats.accepted);
            CHECK(a.stats.rounds + a.stats.plain_rounds < 100);
            CHECK_INT(a.stats.right_at[0] <= a.stats.tried_at[0], true);
        }
    }
    close_loop(&g);
}

TEST(spec_every_method_writes_the_plain_text)
{
    const char *device[TEST_BACKENDS_MAX];
    for (int i = 1, n = test_devices(device); i < n; i++) every_method(t, device[i]); /* ref, the first, is slow */
}

static void (*real_sync)(queue *q);
static int n_syncs;

static void counted_sync(queue *q)
{
    n_syncs++;
    real_sync(q);
}

/* Guesses of a chain go from the drafter to the target on the device: the host waits once, for picks and guesses. */
static void waits(test_case *t, const char *device)
{
    static const int methods[] = {SPEC_OFF, SPEC_DFLASH, SPEC_MTP, SPEC_NGRAM};
    loop             g;
    if (open_loop(t, &g, 256, device) && add_both(t, &g)) {
        ops *o    = (ops *)g.m->o;
        real_sync = o->sync;
        o->sync   = counted_sync;
        for (size_t i = 0; i < COUNT(methods); i++) {
            n_syncs = 0;
            text a  = answer_with(t, &g, methods[i], prompt, N_PROMPT, 40);
            CHECK_INT(n_syncs, a.stats.rounds + a.stats.plain_rounds);
            CHECK(methods[i] == SPEC_OFF || a.stats.accepted > 0);
        }
        o->sync = real_sync;
    }
    close_loop(&g);
}

TEST(spec_waits_once_per_step)
{
    const char *device[TEST_BACKENDS_MAX];
    for (int i = 1, n = test_devices(device); i < n; i++) waits(t, device[i]);
}

/* --- recordings -----------------------------------------------------------------------------------*/
static void check_nothing_recorded(test_case *t, loop *g)
{
    graph_counts before = spec_recordings(g->s);
    for (int m = SPEC_OFF; m <= SPEC_AUTO; m++) {
        text a = answer_with(t, g, m, prompt, N_PROMPT, 30);
        CHECK_INT(a.n, 30);
        CHECK_INT(spec_recordings(g->s).recorded, before.recorded);
    }
}

static void recorded_in_advance(test_case *t, const char *device)
{
    loop g;
    err  e = {0};
    if (open_loop(t, &g, 256, device) && add_both(t, &g) && CHECK_OK(spec_warm(g.s, &e), e)) {
        graph_counts first = spec_recordings(g.s);
        CHECK_INT(first.n > 12 && first.bytes > 0, g.m->o->padding != NULL);
        check_nothing_recorded(t, &g);
        spec_lane_end(g.l);
        CHECK_OK(spec_park(g.s, SPEC_DFLASH, &e), e);
        check_nothing_recorded(t, &g);
        spec_lane_end(g.l);
        CHECK_OK(spec_unpark(g.s, SPEC_DFLASH, &e), e);
        check_nothing_recorded(t, &g);
        CHECK_INT(spec_recordings(g.s).recorded > first.recorded, g.m->o->padding != NULL);
        CHECK_INT(spec_recordings(g.s).n, first.n); /* nothing is kept twice */
    }
    close_loop(&g);
}

TEST(spec_records_nothing_while_it_answers)
{
    const char *device[TEST_BACKENDS_MAX];
    for (int i = 1, n = test_devices(device); i < n; i++) recorded_in_advance(t, device[i]);
}

/* --- all logits, or the best of them --------------------------------------------------------------*/
static void (*real_head)(target *t, int first, int n);
static void (*real_head_top)(target *t, int first, int n, int n_top);
static int n_heads, n_tops, most_top;

static void counted_head(target *t, int first, int n)
{
    n_heads++;
    real_head(t, first, n);
}

static void counted_head_top(target *t, int first, int n, int n_top)
{
    n_tops++;
    most_top = n_top > most_top ? n_top : most_top;
    real_head_top(t, first, n, n_top);
}

/* The text from the best `expect` logits (0: from all, because of what was asked for) is the text from all. */
static void check_best(test_case *t, loop *g, const lane_options *o, int expect)
{
    n_heads = n_tops = most_top = 0;
    g->m->head_top              = counted_head_top;
    text a                      = answer_by(t, g, o, prompt, N_PROMPT, 40);
    CHECK_INT(most_top, expect);
    CHECK(expect ? n_tops > 0 && n_heads == 0 : n_tops == 0 && n_heads > 0);
    g->m->head_top = NULL;
    text b         = answer_by(t, g, o, prompt, N_PROMPT, 40);
    CHECK(a.n == 40 && n_heads > 0);
    check_same(t, &a, &b);
}

static void best_or_all(test_case *t, const char *device)
{
    static const struct {
        sample_params p;
        int           expect;
    } c[]                        = {{{.temp = 0, .top_p = 1}, 1},
                                    {{.temp = 0, .top_p = 0.5f, .top_k = 500}, 1},
                                    {{.temp = 1.5f, .top_p = 1, .top_k = 1}, 1},
                                    {{.temp = 1.5f, .top_p = 1, .top_k = 64, .seed = 3}, 64},
                                    {{.temp = 2, .top_p = 0.8f, .min_p = 0.05f, .top_k = 40, .seed = 4}, 40},
                                    {{.temp = 1.5f, .top_p = 1, .top_k = 65, .seed = 5}, 0},
                                    {{.temp = 1.5f, .top_p = 0.9f, .seed = 6}, 0}};
    static const logit_bias bias = {599, 2};
    loop                    g;
    if (open_loop(t, &g, 128, device) && add_both(t, &g) && g.m->head_top) {
        real_head     = g.m->head;
        real_head_top = g.m->head_top;
        g.m->head     = counted_head;
        for (size_t i = 0; i < COUNT(c); i++)
            for (int m = SPEC_OFF; m <= SPEC_MTP; m++) {
                lane_options o = with(m);
                o.params       = c[i].p;
                check_best(t, &g, &o, c[i].expect);
            }
        lane_options shown = with(SPEC_DFLASH), biased = shown, counted = shown;
        shown.n_top              = 0;
        biased.penalty.bias      = &bias;
        biased.penalty.n_bias    = 1;
        counted.penalty.presence = 0.5f;
        check_best(t, &g, &shown, 0);
        check_best(t, &g, &biased, 0);
        CHECK_INT(history_size(g.l->history), 1); /* the text was not counted */
        check_best(t, &g, &counted, 0);
    }
    close_loop(&g);
}

TEST_LONG(spec_judges_by_the_best_where_they_decide)
{
    const char *device[TEST_BACKENDS_MAX];
    for (int i = 1, n = test_devices(device); i < n; i++) best_or_all(t, device[i]);
}

TEST(spec_on_the_reference_backend)
{
    loop g;
    if (open_loop(t, &g, 64, "ref") && add_both(t, &g)) {
        text plain = answer_with(t, &g, SPEC_OFF, prompt, N_PROMPT, 12);
        for (int m = SPEC_DFLASH; m <= SPEC_MTP; m++) {
            text a = answer_with(t, &g, m, prompt, N_PROMPT, 12);
            check_same(t, &a, &plain);
            CHECK(a.stats.accepted > 0);
        }
    }
    close_loop(&g);
}

/* Also for the thread sanitizer. */
TEST(spec_with_two_threads)
{
    loop one, two;
    if (open_loop(t, &one, 64, "cpu") && open_threaded(t, &two, 64, "cpu", 2) && add_both(t, &two)) {
        text plain = answer_with(t, &one, SPEC_OFF, prompt, N_PROMPT, 16);
        for (int m = SPEC_OFF; m <= SPEC_AUTO; m++) {
            text a = answer_with(t, &two, m, prompt, N_PROMPT, 16);
            check_same(t, &a, &plain);
            if (m == SPEC_DFLASH || m == SPEC_TREE || m == SPEC_MTP) CHECK(a.stats.drafted > 0);
        }
    }
    close_loop(&two);
    close_loop(&one);
}

/* The last position of the context is used, and no guess reaches beyond it. */
TEST(spec_fills_the_context_to_its_end)
{
    loop g;
    if (open_loop(t, &g, 61, "cpu") && add_both(t, &g)) {
        text plain = answer_with(t, &g, SPEC_OFF, prompt, N_PROMPT, MAX_OUT);
        CHECK_INT(plain.n, 61 - N_PROMPT + 1);
        for (int m = SPEC_DFLASH; m <= SPEC_AUTO; m++) {
            text a = answer_with(t, &g, m, prompt, N_PROMPT, MAX_OUT);
            check_same(t, &a, &plain);
            CHECK(spec_lane_full(g.l));
        }
    }
    close_loop(&g);
}

/* Fewer tokens kept than decided: the next ones are the target's picks after the last token kept. */
TEST(spec_goes_on_from_what_was_kept)
{
    loop g;
    if (open_loop(t, &g, 256, "cpu") && add_both(t, &g)) {
        text plain = answer_with(t, &g, SPEC_OFF, prompt, N_PROMPT, 60);
        for (int m = SPEC_DFLASH; m <= SPEC_AUTO; m++)
            for (int keep = 0; keep < 4; keep++) {
                err          e = {0};
                text         a = {0};
                lane_options o = with(m);
                size_t       reused;
                int          left = 12; /* rounds of which little is kept */
                CHECK_OK(spec_lane_begin(g.l, &(lane_request){.opt = o, .prompt = prompt, .n_prompt = N_PROMPT},
                                         &reused, &e),
                         e);
                while (left-- > 0 && a.n < 50) {
                    if (!CHECK_OK(spec_step_alone(g.s, &g.l, 1, &e), e)) break;
                    const spec_out *x = spec_lane_out(g.l);
                    int             n = keep < x->n ? keep : x->n;
                    for (int i = 0; i < n; i++) a.token[a.n++] = x->token[i];
                    spec_lane_keep(g.l, n);
                }
                go_on(t, &g, 60, &a);
                check_same(t, &a, &plain);
            }
    }
    close_loop(&g);
}

static size_t begin_under(test_case *t, loop *g, int method, const int32_t *ids, size_t n, uint64_t salt)
{
    err          e      = {0};
    size_t       reused = 0;
    lane_request r      = {.opt = with(method), .prompt = ids, .n_prompt = n, .salt = salt};
    CHECK_OK(spec_lane_begin(g->l, &r, &reused, &e), e);
    return reused;
}

/* A second turn: the first one's text is not run again but for its last page, and drafts go on working. Another tenant
 * finds nothing. */
TEST(spec_reuses_what_was_there)
{
    loop g;
    if (open_loop(t, &g, 256, "cpu") && add_both(t, &g)) {
        for (int m = SPEC_OFF; m <= SPEC_AUTO; m++) {
            int32_t  longer[N_PROMPT + 45];
            uint64_t salt  = (uint64_t)m + 1;
            text     first = {0}, second = {0}, fresh = {0};
            CHECK_INT(begin_under(t, &g, m, prompt, N_PROMPT, salt), 0);
            go_on(t, &g, 40, &first);
            memcpy(longer, prompt, sizeof prompt);
            memcpy(longer + N_PROMPT, first.token, 40 * sizeof *longer);
            for (int i = 0; i < 5; i++) longer[N_PROMPT + 40 + i] = 300 + i;
            /* the last token never went through the target: 59 positions, whole pages of them */
            CHECK_INT(begin_under(t, &g, m, longer, COUNT(longer), salt), 48);
            go_on(t, &g, 30, &second);
            CHECK_INT(begin_under(t, &g, SPEC_OFF, longer, COUNT(longer), 100 + salt), 0);
            go_on(t, &g, 30, &fresh);
            check_same(t, &second, &fresh);
            if (m == SPEC_DFLASH || m == SPEC_MTP) CHECK(second.stats.accepted > 0);
        }
    }
    close_loop(&g);
}

TEST(spec_lanes_are_counted)
{
    loop       g;
    spec_lane *more, *none;
    err        e = {0};
    if (open_loop(t, &g, 64, "cpu")) {
        CHECK_OK(spec_lane_new(g.s, &more, &e), e);
        CHECK_FAILS(spec_lane_new(g.s, &none, &e), e, "all 2 lanes are in use");
        CHECK_INT(e.code, ERR_BUSY);
        spec_lane_free(more);
        lane_options o = with(SPEC_OFF);
        size_t       reused;
        int32_t      many[65] = {2};
        CHECK_FAILS(spec_lane_begin(g.l, &(lane_request){.opt = o, .prompt = many, .n_prompt = 65}, &reused, &e), e,
                    "65 tokens and the context holds 64");
        CHECK_FAILS(spec_lane_begin(g.l, &(lane_request){.opt = o, .prompt = many, .n_prompt = 0}, &reused, &e), e,
                    "0 tokens");
    }
    close_loop(&g);
}

/* --- drafters that go wrong -----------------------------------------------------------------------*/
static const char *copy_with(test_case *t, const char *name, const char *from, size_t cut, const char *spoil)
{
    static char path[4096];
    err         e   = {0};
    file_map    map = {0};
    gguf       *g;
    if (!CHECK_OK(file_map_open(&map, test_path(from), &e), e)) return NULL;
    char *bytes = xalloc(map.n);
    memcpy(bytes, map.p, map.n);
    if (spoil && CHECK_OK(gguf_open(&g, test_path(from), &e), e)) {
        const tensor *x = tensor_find(gguf_tensors(g), str_of(spoil));
        if (CHECK(x && x->type == QUANT_F32)) {
            void *at = memmem(bytes, map.n, x->data, x->bytes);
            if (CHECK(at)) memset(at, 0xFF, 4 * 8); /* NaN */
        }
        gguf_close(g);
    }
    snprintf(path, sizeof path, "%s", test_tmp_file(name, bytes, cut ? cut : map.n));
    mem_free(bytes);
    file_map_close(&map);
    return path;
}

TEST(spec_refuses_drafters_with_a_reason)
{
    loop g;
    err  e = {0};
    if (open_loop(t, &g, 128, "cpu")) {
        CHECK_FAILS(add_drafter(&g, "/nowhere/at/all.gguf", false, &e), e, "/nowhere/at/all.gguf");
        CHECK_FAILS(add_drafter(&g, "/nowhere/at/all.gguf", true, &e), e, "/nowhere/at/all.gguf");
        CHECK_FAILS(add_drafter(&g, copy_with(t, "cut.gguf", "models/nano/dflash.gguf", 300000, NULL), false, &e), e,
                    "cut.gguf");
        CHECK_FAILS(add_drafter(&g, test_path("models/nano/target.gguf"), false, &e), e, "not a drafter");
        CHECK_FAILS(add_drafter(&g, test_path("tests/golden/gemma4-moe-dflash"), false, &e), e, "gemma4-moe-dflash");
        CHECK_FAILS(add_drafter(&g, test_path("tests/golden/gemma4-moe-assistant"), false, &e), e,
                    "gemma4-moe-assistant");
        CHECK(!spec_has_drafter(g.s, SPEC_DFLASH) && !spec_has_drafter(g.s, SPEC_MTP));
        text plain = answer_with(t, &g, SPEC_OFF, prompt, N_PROMPT, 30);
        for (int m = SPEC_DFLASH; m <= SPEC_AUTO; m++) {
            text a = answer_with(t, &g, m, prompt, N_PROMPT, 30);
            check_same(t, &a, &plain);
        }
        CHECK_OK(add_drafter(&g, test_path("models/nano/mtp.gguf"), false, &e), e);
        CHECK_FAILS(add_drafter(&g, test_path("models/nano/mtp.gguf"), false, &e), e, "already a drafter of this kind");
    }
    close_loop(&g);
}

TEST(spec_goes_on_when_a_drafter_is_not_a_number)
{
    loop g;
    err  e = {0};
    if (open_loop(t, &g, 128, "cpu")) {
        text        plain  = answer_with(t, &g, SPEC_OFF, prompt, N_PROMPT, 40);
        const char *dflash = copy_with(t, "nan-dflash.gguf", "models/nano/dflash.gguf", 0, "output_norm.weight");
        CHECK_OK(add_drafter(&g, dflash, false, &e), e);
        const char *mtp = copy_with(t, "nan-mtp.gguf", "models/nano/mtp.gguf", 0, "output_norm.weight");
        CHECK_OK(add_drafter(&g, mtp, false, &e), e);
        for (int m = SPEC_DFLASH; m <= SPEC_AUTO; m++) {
            text a = answer_with(t, &g, m, prompt, N_PROMPT, 40);
            check_same(t, &a, &plain);
            if (m != SPEC_NGRAM && m != SPEC_AUTO) CHECK_INT(a.stats.drafted, 0);
        }
        const char *why = drafter_problem(g.s, SPEC_DFLASH);
        CHECK_MSG(why && strstr(why, "not a number"), "the reason is %s", why ? why : "missing");
        CHECK(drafter_problem(g.s, SPEC_MTP));
    }
    close_loop(&g);
}

static bool (*real_draft)(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e);
static bool (*real_observe)(drafter *d, draft_lane *l, const draft_rows *r, err *e);
static int drafts_left;

static bool failing_draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e)
{
    if (drafts_left-- > 0) return real_draft(d, kv, jobs, n_jobs, e);
    return err_set(e, ERR_IO, "the drafter fell over");
}
static bool failing_observe(drafter *d, draft_lane *l, const draft_rows *r, err *e)
{
    if (drafts_left-- > 0) return real_observe(d, l, r, e);
    return err_set(e, ERR_IO, "the drafter lost its place");
}

/* In a request a drafter that failed is not asked again, also when the method is the loop's to choose. */
TEST(spec_auto_does_not_ask_a_drafter_that_failed)
{
    loop g;
    if (open_loop(t, &g, 512, "cpu") && add_both(t, &g)) {
        text     plain = answer_with(t, &g, SPEC_OFF, prompt, N_PROMPT, 150);
        drafter *d     = g.s->slots[DRAFTER_DFLASH].d;
        real_draft     = d->draft;
        drafts_left    = 1;
        d->draft       = failing_draft;
        text a         = answer_with(t, &g, SPEC_AUTO, prompt, N_PROMPT, 150);
        d->draft       = real_draft;
        check_same(t, &a, &plain);
        CHECK(drafts_left >= -1); /* asked once more at most, and that failed */
    }
    close_loop(&g);
}

TEST(spec_auto_keeps_to_the_limits)
{
    loop g;
    if (open_loop(t, &g, 512, "cpu") && add_both(t, &g)) {
        err          e = {0};
        lane_options o = with(SPEC_AUTO);
        int32_t      many[200];
        size_t       reused;
        o.spec.draft_max   = 2;
        o.spec.tree_budget = 5;
        for (int i = 0; i < 200; i++) many[i] = prompt[i % N_PROMPT]; /* n-grams have much to say */
        CHECK_OK(spec_lane_begin(g.l, &(lane_request){.opt = o, .prompt = many, .n_prompt = 200}, &reused, &e), e);
        for (int i = 0; i < 120 && !spec_lane_full(g.l); i++) {
            if (!CHECK_OK(spec_step_alone(g.s, &g.l, 1, &e), e)) break;
            CHECK(g.l->tree.n - 1 <= (g.l->plan.method == SPEC_TREE ? 5 : 2) && tree_depth(&g.l->tree) <= 2);
            spec_lane_keep(g.l, spec_lane_out(g.l)->n);
        }
    }
    close_loop(&g);
}

/* What a drafter's context needs and nobody has kept goes through the target again: 128 positions of context, of a text
 * of 600 the first page and those from 464 on. */
TEST(spec_fills_a_drafters_context_again)
{
    loop g;
    err  e = {0};
    if (open_loop(t, &g, 1024, "cpu")) {
        char    path[4096];
        int32_t many[600];
        snprintf(path, sizeof path, "%s", test_path("models/nano/dflash.gguf"));
        CHECK_OK(spec_add_drafter(g.s, &(spec_draft_source){.path = path, .opt.n_ctx = 128}, &e), e);
        for (int i = 0; i < 600; i++) many[i] = prompt[i % N_PROMPT];
        answer_with(t, &g, SPEC_DFLASH, many, 600, 20);
        CHECK_INT(begin_under(t, &g, SPEC_DFLASH, many, 600, 0), 592);
        CHECK_INT(begin_under(t, &g, SPEC_DFLASH, many, 570, 0), 560);
        CHECK_INT(begin_under(t, &g, SPEC_DFLASH, many, 301, 0), 208); /* its drafts see 0 .. 15 and 208 .. 300 */
        CHECK_INT(begin_under(t, &g, SPEC_OFF, many, 301, 0), 288);
        CHECK_INT(begin_under(t, &g, SPEC_DFLASH, many, 20, 0), 16);
    }
    close_loop(&g);
}

/* nano with both drafters, and one lane, in a loop of other options. */
static bool open_as(test_case *t, loop *g, const spec_options *o)
{
    err e = {0};
    if (!open_loop(t, g, 64, "cpu")) return false;
    spec_lane_free(g->l);
    spec_free(g->s);
    g->l = NULL;
    return CHECK_OK(spec_new(&g->s, g->m, o, &e), e) && add_both(t, g) && CHECK_OK(spec_lane_new(g->s, &g->l, &e), e);
}

/* Without a tree nothing is found, and nothing is left in the pool. */
TEST(spec_keeps_nothing_when_told_so)
{
    loop g;
    if (open_as(t, &g,
                &(spec_options){.n_ctx = 256, .max_lanes = 1, .kv_type = KV_TYPES_ALL(CACHE_F16), .no_prefix = true})) {
        answer_with(t, &g, SPEC_DFLASH, prompt, N_PROMPT, 40);
        CHECK(spec_kv_pinned(g.s) > 0);
        CHECK_INT(begin_under(t, &g, SPEC_DFLASH, prompt, N_PROMPT, 0), 0);
        spec_lane_end(g.l);
        CHECK_INT(spec_kv_pinned(g.s), 0);
        CHECK_INT(g.s->kv->used_bytes, 0);
        CHECK_INT(spec_kv_reserved(g.s), 0);
    }
    close_loop(&g);
}

TEST(spec_forgets_what_was_left)
{
    loop g;
    if (open_as(t, &g, &(spec_options){.n_ctx = 256, .max_lanes = 1, .kv_type = KV_TYPES_ALL(CACHE_F16)})) {
        answer_with(t, &g, SPEC_DFLASH, prompt, N_PROMPT, 40);
        CHECK_INT(begin_under(t, &g, SPEC_DFLASH, prompt, N_PROMPT, 0), 16);
        spec_lane_end(g.l);
        CHECK(g.s->kv->used_bytes > 0);
        CHECK(spec_prefix_stats(g.s).hit_tokens == 16 && spec_prefix_stats(g.s).misses == 1);
        spec_forget(g.s);
        CHECK_INT(g.s->kv->used_bytes, 0);
        CHECK_INT(begin_under(t, &g, SPEC_DFLASH, prompt, N_PROMPT, 0), 0);
    }
    close_loop(&g);
}

/* A pool that holds one or two requests of this size: the next one waits, one that is larger than all never fits. */
TEST(spec_reserves_before_it_begins)
{
    loop         g;
    err          e = {0};
    size_t       reused;
    lane_request r = {.opt = with(SPEC_DFLASH), .prompt = prompt, .n_prompt = N_PROMPT, .max_new = 120};
    if (open_as(
            t, &g,
            &(spec_options){.n_ctx = 2048, .max_lanes = 3, .kv_type = KV_TYPES_ALL(CACHE_F16), .kv_bytes = 3 << 20})) {
        spec_lane *l[3] = {g.l};
        int        n    = 0;
        for (int i = 1; i < 3; i++) CHECK_OK(spec_lane_new(g.s, &l[i], &e), e);
        while (n < 3 && spec_lane_begin(l[n], &r, &reused, &e)) n++;
        CHECK_MSG(n >= 1 && n < 3 && e.code == ERR_BUSY, "%d of 3 requests fit: %s", n, e.text);
        spec_lane_end(l[0]);
        CHECK_OK(spec_lane_begin(l[2], &r, &reused, &e), e);
        for (int i = 0; i < 3; i++) spec_lane_end(l[i]);
        r.max_new = 0;
        CHECK(!spec_lane_begin(l[0], &r, &reused, &e) && e.code == ERR_CONTEXT);
        CHECK_INT(spec_kv_reserved(g.s), 0);
        for (int i = 1; i < 3; i++) spec_lane_free(l[i]);
    }
    close_loop(&g);
}

/* Every allocation of a request that may fail, in turn: it says so, holds nothing, and the next one works. */
TEST(spec_begins_or_says_why)
{
    loop         g;
    err          e = {0};
    size_t       reused;
    lane_request r         = {.opt = with(SPEC_AUTO), .prompt = prompt, .n_prompt = N_PROMPT, .max_new = 20};
    r.opt.penalty.presence = 0.5f;
    if (open_as(t, &g, &(spec_options){.n_ctx = 256, .max_lanes = 2, .kv_type = KV_TYPES_ALL(CACHE_F16)})) {
        int n_failed = 0;
        for (long k = 1; k < 50; k++) {
            spec_lane *l = NULL;
            e.text[0]    = 0;
            fault_fail_nth(k);
            bool made = spec_lane_new(g.s, &l, &e), ok = made && spec_lane_begin(l, &r, &reused, &e);
            long tries = fault_tries();
            fault_fail_nth(0);
            if (!ok) CHECK_MSG(e.text[0], "allocation %ld failed without a sentence", k);
            n_failed += !ok;
            spec_lane_free(l);
            CHECK_INT(spec_kv_reserved(g.s), 0);
            if (ok && tries < k) break;
        }
        CHECK(n_failed >= 4);
        text a = answer_with(t, &g, SPEC_DFLASH, prompt, N_PROMPT, 20);
        CHECK(a.n == 20 && a.stats.accepted > 0);
    }
    close_loop(&g);
}

TEST(spec_goes_on_when_a_drafter_fails_in_the_middle)
{
    loop g;
    if (open_loop(t, &g, 256, "cpu") && add_both(t, &g)) {
        text plain = answer_with(t, &g, SPEC_OFF, prompt, N_PROMPT, 80);
        for (int k = DRAFTER_DFLASH; k <= DRAFTER_MTP; k++)
            for (int observing = 0; observing < 2; observing++) {
                drafter *d   = g.s->slots[k].d;
                real_draft   = d->draft;
                real_observe = d->observe;
                drafts_left  = 3;
                if (observing)
                    d->observe = failing_observe;
                else
                    d->draft = failing_draft;
                text a     = answer_with(t, &g, k == DRAFTER_MTP ? SPEC_MTP : SPEC_DFLASH, prompt, N_PROMPT, 80);
                d->draft   = real_draft;
                d->observe = real_observe;
                check_same(t, &a, &plain);
                CHECK_MSG(a.stats.rounds >= 2 && a.stats.rounds <= 4 && a.stats.plain_rounds > 5,
                          "%s: %lld rounds, %lld plain", drafter_kinds[d->kind].name, (long long)a.stats.rounds,
                          (long long)a.stats.plain_rounds);
                const char *why = drafter_problem(g.s, k == DRAFTER_MTP ? SPEC_MTP : SPEC_DFLASH);
                CHECK(why && strstr(why, observing ? "lost its place" : "fell over"));
                a = answer_with(t, &g, k == DRAFTER_MTP ? SPEC_MTP : SPEC_DFLASH, prompt, N_PROMPT, 80);
                check_same(t, &a, &plain);
                CHECK(a.stats.rounds > 4); /* the next request tries again */
            }
    }
    close_loop(&g);
}

/* --- memory ---------------------------------------------------------------------------------------*/
TEST(spec_opens_lazy_drafters_when_they_are_wanted)
{
    loop g;
    err  e = {0};
    if (open_loop(t, &g, 128, "cpu")) {
        CHECK_OK(add_drafter(&g, test_path("models/nano/dflash.gguf"), true, &e), e);
        CHECK(spec_has_drafter(g.s, SPEC_TREE) && !g.s->slots[DRAFTER_DFLASH].d);
        answer_with(t, &g, SPEC_OFF, prompt, N_PROMPT, 5);
        answer_with(t, &g, SPEC_NGRAM, prompt, N_PROMPT, 5);
        CHECK(!g.s->slots[DRAFTER_DFLASH].d);
        text a = answer_with(t, &g, SPEC_TREE, prompt, N_PROMPT, 40);
        CHECK(g.s->slots[DRAFTER_DFLASH].d && a.stats.accepted > 0);
        CHECK_OK(add_drafter(&g, copy_with(t, "later.gguf", "models/nano/mtp.gguf", 0, NULL), true, &e), e);
        remove(g.s->slots[DRAFTER_MTP].src.path);
        a = answer_with(t, &g, SPEC_MTP, prompt, N_PROMPT, 10); /* gone in the meantime */
        CHECK_INT(a.stats.rounds, 0);
        CHECK(!spec_has_drafter(g.s, SPEC_MTP) && drafter_problem(g.s, SPEC_MTP));
    }
    close_loop(&g);
}

/* Bytes of the heap; the allocator's own lists of small pieces move it a little. 0 where it cannot be asked. */
static size_t in_use(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

TEST(spec_parks_whatever_the_method)
{
    loop g;
    err  e = {0};
    if (open_loop(t, &g, 512, "cpu") && add_both(t, &g)) {
        text plain = answer_with(t, &g, SPEC_OFF, prompt, N_PROMPT, 120);
        for (int m = SPEC_DFLASH; m <= SPEC_AUTO; m++) {
            text a = answer_with(t, &g, m, prompt, N_PROMPT, 30);
            park_all(g.s);
            go_on(t, &g, 60, &a);
            CHECK_OK(unpark_all(g.s, &e), e);
            int64_t before = a.stats.rounds;
            go_on(t, &g, 120, &a);
            check_same(t, &a, &plain);
            if (m < SPEC_NGRAM) CHECK(a.stats.rounds > before);
        }
        park_all(g.s); /* a request that begins meanwhile drafts when it can */
        text a = answer_with(t, &g, SPEC_DFLASH, prompt, N_PROMPT, 5);
        CHECK_OK(unpark_all(g.s, &e), e);
        go_on(t, &g, 120, &a);
        check_same(t, &a, &plain);
        CHECK(a.stats.rounds_by_method[SPEC_DFLASH] > 0);
    }
    close_loop(&g);
}

TEST(spec_parks_and_unparks)
{
    loop g;
    err  e = {0};
    if (open_loop(t, &g, 256, "cpu") && add_both(t, &g)) {
        text   plain = answer_with(t, &g, SPEC_OFF, prompt, N_PROMPT, 60);
        text   a     = answer_with(t, &g, SPEC_DFLASH, prompt, N_PROMPT, 20);
        size_t full = 0, parked = 0;
        for (int i = 0; i < 100; i++) {
            park_all(g.s);
            CHECK(!g.s->slots[DRAFTER_DFLASH].d && !g.s->slots[DRAFTER_MTP].d);
            if (i == 0) parked = in_use();
            CHECK_NEAR((double)in_use(), (double)parked, 65536);
            if (i == 0) go_on(t, &g, 40, &a); /* plainly meanwhile */
            CHECK_OK(unpark_all(g.s, &e), e);
            if (i == 0) full = in_use();
            CHECK_NEAR((double)in_use(), (double)full, 65536);
        }
        CHECK_MSG(parked + 4000000 < full || parked == 0, "parked %zu bytes, open %zu", parked, full);
        int64_t before = a.stats.rounds;
        go_on(t, &g, 60, &a); /* and drafts again, in the same answer */
        CHECK(a.stats.rounds > before);
        check_same(t, &a, &plain);
    }
    close_loop(&g);
}
