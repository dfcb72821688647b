/* What is drafted is a function of the text: with a given method and number of guesses, the guesses behind a text are the
 * same in every round of every request that comes there, alone or among others that join and leave, however the prompt
 * was cut, after a prefix hit, after rounds without guesses or with other methods, after the context slid. And the text
 * is that of plain decoding. */
#include "backends.h"
#include "base/fault.h"
#include "kv/inside.h"
#include "spec/inside.h"
#include "test.h"

enum { PROMPTS = 4, CTX = 320, MAX_PROMPT = 160, MOST = 8, MANY = 32 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MAX_NEW = 48, LARGEST = 4, LEAST = 8 }; /* many times slower */
#else
enum { MAX_NEW = 60, LARGEST = MANY, LEAST = 200 };
#endif
static const int n_draft[SPEC_METHODS] = {[SPEC_DFLASH] = 5, [SPEC_TREE] = 7, [SPEC_MTP] = 3, [SPEC_NGRAM] = 4};

typedef struct {
    int     n; /* -1: not known */
    int32_t token[MOST];
    int     parent[MOST];
} guess;

/* What a prompt leads to: its text, and the guesses of each method behind every part of it. */
typedef struct {
    int32_t text[MAX_PROMPT + MAX_NEW + 1];
    int     n_prompt, n;
    guess   at[SPEC_METHODS][MAX_PROMPT + MAX_NEW + 1];
} story;

typedef struct {
    const char *target, *drafter[2]; /* the second NULL: no MTP */
    int         n_vocab;             /* ids of prompts are below it */
    bool        ends_early;          /* a lane that is alone ends chains by confidence */
} models;
static const models nano = {
    "models/nano/target.gguf", {"models/nano/dflash.gguf", "models/nano/mtp.gguf"}, 4096, false};
static const models dspark  = {"tests/golden/gemma4-dense", {"tests/golden/gemma4-dense-dspark", NULL}, 512, true};
static const models dflash2 = {"tests/golden/gemma4-dense", {"tests/golden/gemma4-dense-dflash2", NULL}, 512, false};

typedef struct {
    test_case    *t;
    const models *of;
    target       *m;
    spec         *s;
    spec_lane    *lane[MANY];
    int           which[MANY]; /* story of the lane's request */
    int           n_want[MANY], n_out[MANY];
    size_t        n_reused[MANY]; /* prompt tokens of the lane's request that a prefix hit saved */
    story        *story;          /* [PROMPTS] */
    bool          learning;
    long          compared[SPEC_METHODS];
    uint64_t      rng;
} world;

static int below(world *w, int n) { return (int)(test_rand(&w->rng) % (uint64_t)n); }

/* --- rounds as they are drafted -------------------------------------------------------------------*/
static guess guess_of(const spec_round *r)
{
    guess g = {.n = r->n};
    for (int i = 0; i < r->n && i < MOST; i++) {
        g.token[i]  = r->token[i];
        g.parent[i] = r->parent[i];
    }
    return g;
}

static void on_round(void *ctx, const spec_round *r)
{
    world     *w    = ctx;
    story     *x    = &w->story[w->which[r->lane]];
    guess     *want = &x->at[r->method][r->n_text], got = guess_of(r);
    test_case *t = w->t;
    if (r->n_want != n_draft[r->method] || r->n > MOST) return; /* cut to what a step or a text has room for */
    if (w->learning) {
        *want = got;
        return;
    }
    if (want->n < 0) return;
    w->compared[r->method]++;
    if (w->of->ends_early && r->method == SPEC_DFLASH && got.n > 0 && got.n < want->n) {
        CHECK(!memcmp(got.token, want->token, (size_t)got.n * sizeof *got.token));
        return;
    }
    CHECK_MSG(got.n == want->n && !memcmp(got.token, want->token, sizeof got.token) &&
                  !memcmp(got.parent, want->parent, sizeof got.parent),
              "%s behind %d tokens of prompt %d: %d guesses (%d %d %d), alone %d (%d %d %d)",
              spec_method_names[r->method], r->n_text, w->which[r->lane], got.n, got.token[0], got.token[1],
              got.token[2], want->n, want->token[0], want->token[1], want->token[2]);
}

/* --- worlds ---------------------------------------------------------------------------------------*/
typedef struct {
    const char   *device;
    int           n_lanes, draft_ctx;
    bool          no_prefix;
    const models *of; /* NULL: nano */
} shape;

static bool open_world(test_case *t, world *w, story *stories, const shape *sh, uint64_t seed)
{
    static char   path[2][4096];
    const models *of  = sh->of ? sh->of : &nano;
    err           e   = {0};
    checkpoint   *cp  = NULL;
    model_options opt = {.device = sh->device, .n_threads = 1};
    *w                = (world){.t = t, .of = of, .story = stories, .rng = seed};
    if (!CHECK_OK(checkpoint_open(&cp, test_path(of->target), &e), e)) return false;
    bool ok = CHECK_OK(model_open(&w->m, cp, &opt, &e), e);
    checkpoint_close(cp);
    spec_options so = {.n_ctx        = CTX,
                       .max_lanes    = sh->n_lanes,
                       .kv_type      = KV_TYPES_ALL(CACHE_F16),
                       .no_prefix    = sh->no_prefix,
                       .on_round     = on_round,
                       .on_round_ctx = w};
    if (!ok || !CHECK_OK(spec_new(&w->s, w->m, &so, &e), e)) return false;
    for (int i = 0; ok && i < 2 && of->drafter[i]; i++) {
        snprintf(path[i], sizeof path[i], "%s", test_path(of->drafter[i]));
        ok = CHECK_OK(spec_add_drafter(w->s, &(spec_draft_source){.path = path[i], .opt.n_ctx = sh->draft_ctx}, &e), e);
    }
    for (int i = 0; ok && i < sh->n_lanes; i++) ok = CHECK_OK(spec_lane_new(w->s, &w->lane[i], &e), e);
    return ok;
}

static void close_world(world *w)
{
    for (int i = 0; i < MANY; i++) spec_lane_free(w->lane[i]);
    spec_free(w->s);
    model_close(w->m);
}

/* The first n_out tokens of the answer belong to the prompt. */
static bool begin_at(world *w, int lane, int which, int method, int n_out, uint64_t salt)
{
    test_case   *t = w->t;
    err          e = {0};
    const story *x = &w->story[which];
    lane_request r = {.opt      = {.params = {.top_p = 1}, .penalty.repeat = 1, .n_top = -1, .spec.method = method},
                      .prompt   = x->text,
                      .n_prompt = (size_t)(x->n_prompt + n_out),
                      .max_new  = MAX_NEW - n_out,
                      .salt     = salt};
    w->which[lane] = which;
    w->n_out[lane] = n_out;
    return CHECK_OK(spec_lane_begin(w->lane[lane], &r, &w->n_reused[lane], &e), e);
}

/* A request that may use all methods: the plans say which. */
static bool begin(world *w, int lane, int which, int method) { return begin_at(w, lane, which, method, 0, 0); }

static bool run(world *w, const spec_part *parts, int n)
{
    test_case *t = w->t;
    err        e = {0};
    fault_no_alloc_begin("step"); /* promise 4 */
    bool ok = spec_step(w->s, parts, n, &e);
    fault_no_alloc_end();
    return CHECK_OK(ok, e);
}

static void keep(world *w, int lane, int most)
{
    test_case      *t = w->t;
    const story    *x = &w->story[w->which[lane]];
    const spec_out *o = spec_lane_out(w->lane[lane]);
    int             n = min_int(o->n, most);
    for (int i = 0; i < n; i++) {
        int at = x->n_prompt + w->n_out[lane]++;
        CHECK_MSG(o->token[i] == x->text[at], "prompt %d: token %d is %d, alone %d", w->which[lane], at, o->token[i],
                  x->text[at]);
    }
    fault_no_alloc_begin("keep");
    spec_lane_keep(w->lane[lane], n);
    fault_no_alloc_end();
}

/* --- alone ----------------------------------------------------------------------------------------*/
static void write_prompts(story *x, int n_vocab)
{
    static const int32_t question[]      = {2,   15, 591, 281, 285, 349, 630, 280, 290, 283,
                                            283, 16, 281, 15,  590, 281, 13,  599, 281, 14};
    static const int     length[PROMPTS] = {20, 78, 113, 150}, like_the_first_long[PROMPTS] = {20, 78, 70, 49};
    uint64_t             rng = 5;
    for (int p = 0; p < PROMPTS; p++) {
        memset(&x[p], 0, sizeof x[p]);
        for (int m = 0; m < SPEC_METHODS; m++)
            for (size_t i = 0; i < COUNT(x[p].at[m]); i++) x[p].at[m][i].n = -1;
        for (int i = 0; i < length[p]; i++)
            x[p].text[i] = p > 1 && i < like_the_first_long[p] ? x[1].text[i]
                           : i < 20                            ? question[i]
                                                               : 280 + (int32_t)(test_rand(&rng) % 200);
        for (int i = 0; i < length[p]; i++) x[p].text[i] %= n_vocab;
        x[p].n_prompt = x[p].n = length[p];
    }
}

static void decode_plainly(world *w, int p)
{
    story *x = &w->story[p];
    begin(w, 0, p, SPEC_OFF);
    while (x->n < x->n_prompt + MAX_NEW) {
        if (!run(w, &(spec_part){.lane = w->lane[0]}, 1)) return;
        const spec_out *o = spec_lane_out(w->lane[0]);
        for (int i = 0; i < o->n; i++) x->text[x->n++] = o->token[i];
        spec_lane_keep(w->lane[0], o->n);
    }
}

/* A round behind every token. */
static void learn_guesses(world *w, int p, spec_method m)
{
    const story *x = &w->story[p];
    begin(w, 0, p, m);
    while (x->n_prompt + w->n_out[0] < x->n - 1) {
        spec_part part = {.lane = w->lane[0], .plan = {.method = m, .n = n_draft[m]}};
        if (!run(w, &part, 1)) return;
        keep(w, 0, 1);
    }
}

static void learn_of(test_case *t, const char *device, story *x, int draft_ctx, const models *of)
{
    world w;
    write_prompts(x, of->n_vocab);
    shape sh = {.device = device, .n_lanes = 1, .draft_ctx = draft_ctx, .no_prefix = true, .of = of};
    if (open_world(t, &w, x, &sh, 1)) {
        w.learning = true;
        for (int p = 0; p < PROMPTS; p++) decode_plainly(&w, p);
        for (int p = 0; p < PROMPTS; p++)
            for (int m = SPEC_DFLASH; m <= SPEC_NGRAM; m++)
                if (m != SPEC_MTP || of->drafter[1]) learn_guesses(&w, p, (spec_method)m);
    }
    close_world(&w);
}

static void learn(test_case *t, const char *device, story *x, int draft_ctx)
{
    learn_of(t, device, x, draft_ctx, &nano);
}

/* --- together -------------------------------------------------------------------------------------*/
/* One step with these lanes, each with a method of its own that changes from round to round. */
static bool step_some(world *w, const int *which, int n)
{
    spec_part part[MANY] = {0};
    for (int i = 0; i < n; i++) {
        int m   = below(w, SPEC_METHODS);
        part[i] = (spec_part){.lane     = w->lane[which[i]],
                              .max_rows = 1 + below(w, 48),
                              .plan     = {.method = (spec_method)m, .n = n_draft[m]}};
    }
    if (!run(w, part, n)) return false;
    for (int i = 0; i < n; i++) keep(w, which[i], below(w, 4) ? MAX_NEW : below(w, 3));
    return true;
}

static bool wants_more(const world *w, int lane) { return w->n_out[lane] < w->n_want[lane]; }

/* n_requests in n_lanes lanes: they join when one is free, more or less, and leave when they have enough. */
static bool run_requests(world *w, int n_lanes, int n_requests, int64_t *cached)
{
    bool live[MANY] = {0};
    for (int left = n_requests, n_live = 0; left > 0 || n_live > 0;) {
        int some[MANY], n = 0;
        for (int i = 0; i < n_lanes; i++) {
            if (live[i] && !wants_more(w, i)) {
                *cached += (int64_t)w->n_reused[i];
                spec_lane_end(w->lane[i]);
                live[i] = false;
                n_live--;
            }
            if (!live[i] && left > 0 && (n_live == 0 || below(w, 2))) {
                if (!begin(w, i, below(w, PROMPTS), SPEC_AUTO)) return false;
                w->n_want[i] = 8 + below(w, MAX_NEW - 16);
                live[i]      = true;
                n_live++;
                left--;
            }
            if (live[i] && below(w, 8)) some[n++] = i;
        }
        if (n && !step_some(w, some, n)) return false;
    }
    return true;
}

static void check_compared(test_case *t, const world *w, long least_each)
{
    for (int m = SPEC_DFLASH; m <= SPEC_NGRAM; m++)
        CHECK_MSG((m == SPEC_MTP && !w->of->drafter[1]) || (m == SPEC_NGRAM && w->of != &nano) ||
                      w->compared[m] >= (m == SPEC_NGRAM ? least_each / 8 : least_each),
                  "%s: %ld rounds were compared", spec_method_names[m], w->compared[m]);
}

/* Steps of up to so many lanes, and requests among so many others. */
static void check_crowds(test_case *t, const char *device, story *x, int draft_ctx, bool no_prefix, const models *of)
{
    static const int size[] = {32, 1, 2, 17, 3, 4, 5, 24, 6, 7, 8, 16, 18, 23, 31};
    world            w;
    int64_t          cached     = 0;
    size_t           every      = no_prefix ? 4 : draft_ctx ? 2 : 1;
    long             least_each = (no_prefix ? LEAST / 8 : LEAST) / (test_full() ? 1 : 4);
    if (!test_full()) every = no_prefix ? 8 : 4;
    shape sh = {.device = device, .n_lanes = MANY, .draft_ctx = draft_ctx, .no_prefix = no_prefix, .of = of};
    if (open_world(t, &w, x, &sh, 7)) {
        for (size_t i = 0; i < COUNT(size); i++)
            if (size[i] <= LARGEST && i % every == 0) run_requests(&w, size[i], size[i] + 2, &cached);
        check_compared(t, &w, least_each);
        CHECK_MSG(no_prefix ? cached == 0 : cached > 200, "%lld tokens were there already", (long long)cached);
    }
    close_world(&w);
}

static void check_drafts(test_case *t, int draft_ctx, const models *of)
{
    static story x[PROMPTS];
    const char  *device[TEST_BACKENDS_MAX];
    for (int i = 1, n = test_devices(device); i < n; i++) { /* ref, the first, is slow */
        learn_of(t, device[i], x, draft_ctx, of);
        check_crowds(t, device[i], x, draft_ctx, false, of);
        if (draft_ctx == 0) check_crowds(t, device[i], x, draft_ctx, true, of);
    }
}

TEST_LONG(spec_drafts_are_a_function_of_the_text) { check_drafts(t, 0, &nano); }
TEST_LONG(spec_drafts_are_a_function_of_the_text_when_the_context_slides) { check_drafts(t, 48, &nano); }
TEST_LONG(spec_drafts_of_dspark_are_a_function_of_the_text)
{
    check_drafts(t, 0, &dspark);
    check_drafts(t, 48, &dspark);
}
TEST_LONG(spec_drafts_of_dflash2_are_a_function_of_the_text)
{
    check_drafts(t, 0, &dflash2);
    check_drafts(t, 48, &dflash2);
}

/* --- turns of conversations ----------------------------------------------------------------------*/
typedef struct {
    int      lane, story;
    uint64_t salt;
    int      from, to; /* tokens of the answer: given, and when the request ends */
    bool     drafts;   /* with DFlash; else it might, but never does */
    int      cached;   /* positions that were there */
    int      folded;   /* rows that became the drafter's K/V for it, before its first step */
} talk_turn;

static int64_t n_folded(const world *w) { return w->s->slots[DRAFTER_DFLASH].d->n_folded; }

/* The lane's request before this one ends with it. */
static void check_turn(test_case *t, world *w, const talk_turn *x)
{
    spec_method m      = x->drafts ? SPEC_DFLASH : SPEC_OFF;
    spec_part   plan   = {.lane = w->lane[x->lane], .plan = {.method = m, .n = n_draft[m]}};
    long        rounds = w->compared[m];
    int64_t     before = n_folded(w);
    if (!begin_at(w, x->lane, x->story, SPEC_AUTO, x->from, x->salt)) return;
    CHECK_INT(w->n_reused[x->lane], x->cached);
    CHECK_INT(n_folded(w) - before, x->folded);
    before = n_folded(w);
    while (w->n_out[x->lane] < x->to && run(w, &plan, 1)) keep(w, x->lane, 1);
    CHECK((n_folded(w) > before) == x->drafts);
    CHECK(w->compared[m] - rounds >= (x->drafts ? 5 : 0));
    kv_pool_check(w->s->kv);
}

static void check_turns(test_case *t, story *stories, const shape *sh, const talk_turn *x, size_t n)
{
    world w;
    if (open_world(t, &w, stories, sh, 1))
        for (size_t i = 0; i < n; i++) check_turn(t, &w, &x[i]);
    close_world(&w);
}

/* Features are of the whole text before a row: rows of the same tokens behind another text are not used. */
TEST(spec_rows_that_were_left_are_of_their_text)
{
    static const struct {
        int story, n, method, cached, folded;
    } ask[] = {{3, 40, SPEC_AUTO, 0, 0},   {1, 40, SPEC_AUTO, 0, 0},
               {1, 78, SPEC_AUTO, 32, 32}, /* and leaves the next two pages */
               {3, 78, SPEC_OFF, 32, 0},   /* the target has what the drafter has not */
               {3, 78, SPEC_AUTO, 32, 32}, {1, 78, SPEC_AUTO, 64, 32}};
    static story x[PROMPTS];
    world        w;
    write_prompts(x, nano.n_vocab);
    x[3] = x[1];
    x[3].text[9]++;
    if (open_world(t, &w, x, &(shape){.device = "cpu", .n_lanes = 1}, 1))
        for (size_t i = 0; i < COUNT(ask); i++) {
            int64_t before = n_folded(&w);
            if (!begin_at(&w, 0, ask[i].story, ask[i].method, ask[i].n - 78, 0)) break;
            CHECK_INT(w.n_reused[0], ask[i].cached);
            CHECK_INT(n_folded(&w) - before, ask[i].folded);
            if (run(&w, &(spec_part){.lane = w.lane[0]}, 1)) spec_lane_keep(w.lane[0], 0);
        }
    close_world(&w);
}

/* Others take the place of what a request left: a shorter hit, and no more than that. */
TEST_LONG(spec_turns_without_drafts_are_forgotten)
{
    enum { PLACES = 8 }; /* for rows that requests left */
    static const talk_turn begins = {.story = 1, .to = 4},
                           middle = {.story = 1, .from = 5, .to = 20, .cached = 80, .folded = 80};
    static story x[PROMPTS];
    learn(t, "cpu", x, 0);
    for (int strangers = PLACES - 1; strangers <= PLACES; strangers++) {
        bool      there = strangers < PLACES;
        talk_turn ends  = {.story = 1, .from = 21, .to = 28, .drafts = true};
        ends.cached     = there ? 96 : 80;
        ends.folded     = there ? 16 : 0;
        world w;
        if (open_world(t, &w, x, &(shape){.device = "cpu", .n_lanes = 1}, 1)) {
            check_turn(t, &w, &begins);
            check_turn(t, &w, &middle);
            for (int i = 1; i <= strangers; i++)
                check_turn(t, &w, &(talk_turn){.story = 0, .salt = (uint64_t)i, .to = 1});
            check_turn(t, &w, &ends);
        }
        close_world(&w);
    }
}

/* Rows of turns without drafts are folded in when a text goes on behind them, and only then. The story that goes on is of 78
 * tokens before its answer. */
TEST_LONG(spec_turns_without_drafts_leave_their_rows)
{
    static const talk_turn talk[]    = {{.story = 1, .to = 4},
                                        {.story = 1, .from = 5, .to = 20, .cached = 80, .folded = 80},
                                        {.story = 1, .from = 21, .to = 28, .drafts = true, .cached = 96, .folded = 16}};
    static const talk_turn tenants[] = {
        {.story = 1, .salt = 1, .to = 4},
        {.lane = 1, .story = 1, .salt = 2, .from = 5, .to = 6},
        {.story = 1, .salt = 1, .from = 5, .to = 12, .drafts = true, .cached = 80, .folded = 80},
        {.lane = 1, .story = 1, .salt = 3, .from = 7, .to = 8}};
    static const talk_turn together[] = {{.story = 1, .to = 4},
                                         {.lane = 1, .story = 1, .to = 12, .drafts = true, .cached = 64, .folded = 64},
                                         {.story = 1, .from = 5, .to = 12, .drafts = true, .cached = 80}};
    static const talk_turn branches[] = {{.story = 1, .to = 4},
                                         {.story = 2, .to = 8, .drafts = true, .cached = 64, .folded = 64},
                                         {.story = 1, .from = 5, .to = 12, .drafts = true, .cached = 80, .folded = 16}};
    static const talk_turn alone[]    = {{.story = 1, .to = 4}, {.story = 1, .from = 5, .to = 12, .drafts = true}};
    static story           x[PROMPTS];
    shape                  one = {.device = "cpu", .n_lanes = 1}, two = {.device = "cpu", .n_lanes = 2};
    shape                  no_prefix = {.device = "cpu", .n_lanes = 1, .no_prefix = true};
    learn(t, "cpu", x, 0);
    check_turns(t, x, &one, talk, COUNT(talk));
    check_turns(t, x, &two, tenants, COUNT(tenants));
    check_turns(t, x, &two, together, COUNT(together));
    check_turns(t, x, &one, branches, COUNT(branches));
    check_turns(t, x, &no_prefix, alone, COUNT(alone));
}

/* --- a lane whose numbers are none ----------------------------------------------------------------*/
static struct {
    void (*head)(target *t, int first, int n);
    const spec      *s;
    const spec_lane *victim;
} poison;

static void poisoned_head(target *t, int first, int n)
{
    poison.head(t, first, n);
    for (int i = 0; i < n; i++) {
        if (poison.s->judged[first + i].lane != poison.victim) continue;
        size_t V   = (size_t)t->n_vocab;
        float *bad = xnew_n(float, V);
        for (size_t k = 0; k < V; k++) bad[k] = NAN;
        t->o->upload(t->q, dev_at_f32(t->logits, (size_t)i * V), bad, V * sizeof(float));
        mem_free(bad);
    }
}

/* It ends with a reason; the others do not notice, and neither does the next request in its place. */
TEST_LONG(spec_a_lane_without_numbers_is_alone_with_it)
{
    static story x[PROMPTS];
    world        w;
    err          e = {0};
    learn(t, "cpu", x, 0);
    if (open_world(t, &w, x, &(shape){.device = "cpu", .n_lanes = 4}, 3)) {
        w.m->head_top = NULL;
        poison.head   = w.m->head;
        poison.s      = w.s;
        poison.victim = NULL;
        w.m->head     = poisoned_head;
        for (int i = 0; i < 4; i++) begin(&w, i, i, SPEC_AUTO);
        for (int round = 0; round < 20; round++) {
            spec_part part[4];
            int       n = 0;
            if (round == 8) poison.victim = w.lane[2];
            for (int i = 0; i < 4; i++)
                if (!spec_lane_out(w.lane[i])->problem)
                    part[n++] = (spec_part){.lane = w.lane[i], .plan = {.method = (spec_method)(1 + i), .n = 3}};
            CHECK_INT(n, round <= 8 ? 4 : 3);
            if (!CHECK_OK(spec_step(w.s, part, n, &e), e)) break;
            for (int i = 0; i < n; i++) {
                int lane = (int)(part[i].lane->index);
                if (!spec_lane_out(part[i].lane)->problem && w.n_out[lane] < MAX_NEW)
                    keep(&w, lane, MAX_NEW - w.n_out[lane]);
            }
        }
        CHECK(spec_lane_out(w.lane[2])->problem && !spec_lane_out(w.lane[3])->problem);
        poison.victim = NULL;
        for (int i = 0; i < 4; i++) spec_lane_end(w.lane[i]);
        int64_t cached = 0;
        run_requests(&w, 4, 8, &cached);
        kv_pool_check(w.s->kv);
    }
    close_world(&w);
}
