/* Lanes whose state is more than pages: every way of drafting, sharing and failing over a target with recurrent
 * layers writes the text of plain decoding, which is known without any of them (toy_next). */
#include "base/fault.h"
#include "grammar/rig.h"
#include "kv/inside.h"
#include "toy_target.h"
#include "views.h"

enum { N_METHODS = 6 };
static const int methods[N_METHODS] = {SPEC_OFF, SPEC_DFLASH, SPEC_TREE, SPEC_MTP, SPEC_NGRAM, SPEC_AUTO};

enum { LANES = 4, CTX = 512, VOCAB = 96, PROMPT = 45, TEXT = 120 };

typedef struct {
    toy       *y;
    spec      *s;
    spec_lane *l[LANES];
} stage;

static const spec_options common = {
    .n_ctx = CTX, .max_lanes = LANES, .kv_type = KV_TYPES_ALL(CACHE_F32), .save_every = 64};

static bool open_stage(test_case *t, stage *g, const char *device, int n_vocab, int max_kept_rows, size_t kv_bytes)
{
    err          e  = {0};
    spec_options so = common;
    so.kv_bytes     = kv_bytes;
    *g              = (stage){.y = toy_target_open(t, device, n_vocab, 64, max_kept_rows)};
    if (!g->y || !CHECK_OK(spec_new(&g->s, &g->y->t, &so, &e), e)) return false;
    toy_add_drafter(g->s, g->y, SPEC_DFLASH);
    toy_add_drafter(g->s, g->y, SPEC_MTP);
    for (int i = 0; i < LANES; i++)
        if (!CHECK_OK(spec_lane_new(g->s, &g->l[i], &e), e)) return false;
    return true;
}

static void close_stage(stage *g)
{
    for (int i = 0; i < LANES; i++) spec_lane_free(g->l[i]);
    if (g->s) kv_pool_check(g->s->kv);
    spec_free(g->s);
    toy_target_close(g->y);
}

static void make_prompt(int32_t *out, int n, uint32_t seed)
{
    for (int i = 0; i < n; i++) out[i] = (int32_t)((seed + (uint32_t)i * (i % 5 == 0 ? seed : 3u)) % 90);
}

static lane_options options(int method)
{
    return (lane_options){.params = {.top_p = 1}, .penalty.repeat = 1, .n_top = -1, .spec.method = method};
}

static int32_t begin(test_case *t, stage *g, int lane, int method, const int32_t *prompt, int n)
{
    err          e      = {0};
    size_t       reused = 0;
    lane_request r      = {.opt = options(method), .prompt = prompt, .n_prompt = (size_t)n};
    CHECK_OK(spec_lane_begin(g->l[lane], &r, &reused, &e), e);
    return (int32_t)reused;
}

/* Compares the lane's text with the plain one; returns whether they agree. */
static bool is_plain(const stage *g, const spec_lane *l)
{
    for (int32_t i = l->n_prompt; i < l->n_text; i++)
        if (l->text[i] != toy_next(g->y, l->text, i)) return false;
    return true;
}

static bool step_alone(test_case *t, stage *g, int lane)
{
    err e = {0};
    return CHECK_OK(spec_step_alone(g->s, &g->l[lane], 1, &e), e);
}

/* Decodes up to n_text tokens of text, of each round at most n_keep tokens (0: all). */
static void decode(test_case *t, stage *g, int lane, int32_t n_text, int n_keep)
{
    spec_lane *l = g->l[lane];
    while (l->n_text < n_text && step_alone(t, g, lane)) {
        int n = spec_lane_out(l)->n;
        n     = min_int(n, n_text - l->n_text);
        spec_lane_keep(l, n_keep ? min_int(n, n_keep) : n);
        kv_pool_check(g->s->kv);
    }
}

/* --- methods ------------------------------------------------------------------------------------*/
static void every_method(test_case *t, const char *device)
{
    stage   g;
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, 7);
    if (open_stage(t, &g, device, VOCAB, 0, 0))
        for (int k = 0, m; k < N_METHODS && (m = methods[k], true); k++) {
            spec_forget(g.s);
            CHECK_INT(begin(t, &g, 0, m, prompt, PROMPT), 0);
            decode(t, &g, 0, PROMPT + TEXT, 0);
            const tandem_spec_counts *st = spec_lane_stats(g.l[0]);
            CHECK_MSG(is_plain(&g, g.l[0]), "method %d", m);
            if (m == SPEC_OFF || m == SPEC_AUTO) continue;
            CHECK_MSG(st->accepted > 10 && st->drafted > st->accepted + 10, "method %d: %d of %d accepted", m,
                      (int)st->accepted, (int)st->drafted);
        }
    CHECK(g.y->n_replays > 0);
    close_stage(&g);
}

TEST(recurrent_every_method_writes_the_plain_text)
{
    every_method(t, "ref");
    every_method(t, "cpu");
}

/* Fewer tokens kept than decided, none among them: the live state is that of the last token kept. */
TEST(recurrent_goes_on_from_the_tokens_kept)
{
    stage   g;
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, 8);
    if (open_stage(t, &g, "cpu", VOCAB, 0, 0))
        for (int k = 0, m; k < N_METHODS && (m = methods[k], true); k++)
            for (int keep = 1; keep < 4; keep++) {
                begin(t, &g, 0, m, prompt, PROMPT - keep);
                for (int i = 0; i < 3 && step_alone(t, &g, 0); i++) spec_lane_keep(g.l[0], 0);
                decode(t, &g, 0, PROMPT + 60, keep);
                CHECK_MSG(is_plain(&g, g.l[0]), "method %d, %d kept", m, keep);
            }
    close_stage(&g);
}

/* At temperature 1 the text of plain decoding is the engine's own. */
TEST(recurrent_sampled_text_is_the_plain_text)
{
    stage   g;
    int32_t prompt[PROMPT], plain[PROMPT + TEXT];
    make_prompt(prompt, PROMPT, 9);
    if (open_stage(t, &g, "cpu", VOCAB, 0, 0))
        for (int k = 0, m; k < N_METHODS && (m = methods[k], true); k++) {
            err          e = {0};
            size_t       reused;
            lane_request r       = {.opt = options(m), .prompt = prompt, .n_prompt = PROMPT};
            r.opt.params.temp    = 1.5f;
            r.opt.params.seed    = 5;
            r.opt.penalty.repeat = 1.2f;
            CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
            decode(t, &g, 0, PROMPT + TEXT, 0);
            if (m == SPEC_OFF) memcpy(plain, g.l[0]->text, sizeof plain);
            CHECK_MSG(!memcmp(plain, g.l[0]->text, sizeof plain), "method %d", m);
        }
    close_stage(&g);
}

/* --- grammars -----------------------------------------------------------------------------------*/
static guide *make_guide(test_case *t, guide_markers *markers)
{
    static const char words[] =
        "root ::= \"{\\\"items\\\": [\" item (\", \" item)* \"]}\"\n"
        "item ::= \"{\\\"name\\\": \\\"\" [a-z]{3,9} \"\\\", \\\"count\\\": \" [0-9]{1,3} \"}\"\n";
    err      e   = {0};
    grammar *g   = NULL;
    guide   *out = NULL;
    if (CHECK_OK(grammar_from_gbnf(&g, str_of(words), NULL, &e), e))
        CHECK_OK(guide_new(&out, g, false, rig_nano()->vocab, markers, &e), e);
    return out;
}

/* Draft tokens that the grammar forces, and those of every method that it cuts. */
TEST(recurrent_answers_held_to_a_grammar)
{
    stage         g;
    guide_markers markers;
    err           e = {0};
    int32_t       prompt[PROMPT], plain[TEXT];
    static float  favour[4096];
    int           n_plain = 0;
    make_prompt(prompt, PROMPT, 10);
    for (int i = 0; i < 4096; i++)
        favour[i] = (float)tok_bytes(rig_nano()->tok, i).n; /* as drafts of the grammar have it */
    if (open_stage(t, &g, "cpu", 4096, 0, 0) &&
        CHECK_OK(guide_markers_init(&markers, rig_nano()->tok, &rig_nano()->end, 1, &e), e)) {
        g.y->favour = favour;
        for (int k = 0, m; k < N_METHODS && (m = methods[k], true); k++) {
            guide       *held = make_guide(t, &markers);
            lane_request r = {.opt = options(m), .prompt = prompt, .n_prompt = PROMPT, .guide = held, .max_new = TEXT};
            size_t       reused;
            CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
            bool done = false;
            while (!done && step_alone(t, &g, 0)) {
                const spec_out *out = spec_lane_out(g.l[0]);
                int             n   = 0;
                while (n < out->n && !done) done = out->token[n++] == rig_nano()->end;
                if (!CHECK_MSG(out->n > 0 && !out->problem, "%s", out->problem ? out->problem : "no token")) break;
                spec_lane_keep(g.l[0], n);
                done |= spec_lane_full(g.l[0]);
            }
            int n = g.l[0]->n_text - PROMPT;
            if (m == SPEC_OFF) memcpy(plain, g.l[0]->text + PROMPT, (size_t)(n_plain = n) * sizeof *plain);
            CHECK_MSG(n == n_plain && n > 20 && !memcmp(plain, g.l[0]->text + PROMPT, (size_t)n * sizeof *plain),
                      "method %d: %d tokens, %d plainly", m, n, n_plain);
            if (m != SPEC_OFF)
                CHECK_MSG(spec_lane_stats(g.l[0])->accepted > 5, "method %d: %d of %d, %d tokens", m,
                          (int)spec_lane_stats(g.l[0])->accepted, (int)spec_lane_stats(g.l[0])->drafted, n);
            spec_lane_end(g.l[0]);
            guide_free(held);
        }
        guide_markers_deinit(&markers);
    }
    close_stage(&g);
}

/* --- prefix hits --------------------------------------------------------------------------------*/
/* The same prompt again, the next turn of a conversation, and a text that leaves the first one in the middle. */
TEST(recurrent_hits_end_where_a_state_was_saved)
{
    stage   g;
    int32_t prompt[PROMPT], longer[CTX], other[150];
    make_prompt(prompt, PROMPT, 11);
    for (int k = 0, m; k < N_METHODS && (m = methods[k], true); k++) {
        if (!open_stage(t, &g, "cpu", VOCAB, 0, 0)) break;
        CHECK_INT(begin(t, &g, 0, m, prompt, PROMPT), 0);
        decode(t, &g, 0, PROMPT + 100, 0);
        memcpy(longer, g.l[0]->text, (PROMPT + 100) * sizeof *longer);
        CHECK_INT(begin(t, &g, 1, m, prompt, PROMPT),
                  32); /* while the first request goes on; 45 tokens end in page 2 */
        decode(t, &g, 1, PROMPT + 60, 0);
        CHECK(is_plain(&g, g.l[1]));
        spec_lane_end(g.l[0]);
        /* 144 positions went through the target: nine pages, whose last end has a state */
        for (int i = 0; i < 30; i++) longer[PROMPT + 100 + i] = 5 + i;
        CHECK_INT(begin(t, &g, 0, m, longer, PROMPT + 130), 144);
        decode(t, &g, 0, PROMPT + 200, 0);
        CHECK_MSG(is_plain(&g, g.l[0]), "method %d", m);
        /* shares 100 tokens with that text: pages up to 96, states only up to 64 (save_every); then also at 96 */
        memcpy(other, longer, sizeof other);
        for (int i = 100; i < 150; i++) other[i] = 3;
        CHECK_INT(begin(t, &g, 2, m, other, 150), 32);
        decode(t, &g, 2, 180, 0);
        CHECK(is_plain(&g, g.l[2]));
        for (int i = 100; i < 150; i++) other[i] = 4;
        CHECK_INT(begin(t, &g, 3, m, other, 150), 96);
        decode(t, &g, 3, 180, 0);
        CHECK_MSG(is_plain(&g, g.l[3]), "method %d", m);
        close_stage(&g);
    }
}

/* A long prompt has a state every save_every positions: a text that leaves it after the first request finds one. */
TEST(recurrent_long_prompts_save_states_on_the_way)
{
    stage   g;
    int32_t prompt[400];
    make_prompt(prompt, 400, 12);
    if (open_stage(t, &g, "cpu", VOCAB, 0, 0)) {
        begin(t, &g, 0, SPEC_DFLASH, prompt, 400);
        decode(t, &g, 0, 420, 0);
        CHECK(is_plain(&g, g.l[0]));
        for (int i = 200; i < 400; i++) prompt[i] = 2;
        CHECK_INT(begin(t, &g, 1, SPEC_TREE, prompt, 400), 192);
        decode(t, &g, 1, 430, 0);
        CHECK(is_plain(&g, g.l[1]));
    }
    close_stage(&g);
}

/* --- many lanes ---------------------------------------------------------------------------------*/
typedef struct {
    stage    g;
    uint64_t rng;
    int      n_cancels, n_ends, n_hits, n_busy, n_failed;
    bool     alive[LANES];
} crowd;

static int below(crowd *w, int n) { return (int)(test_rand(&w->rng) % (uint64_t)n); }

/* Admits a request. Prompts have few beginnings, so that texts meet. The method is not auto, which depends on
 * measured times. */
static void admit(test_case *t, crowd *w, int lane)
{
    err          e = {0};
    size_t       reused;
    int32_t      prompt[200];
    int          n = 20 + below(w, 180), shared = below(w, n);
    lane_request r = {.opt = options(methods[below(w, N_METHODS - 1)]), .prompt = prompt, .n_prompt = (size_t)n};
    r.max_new      = 40 + below(w, 80);
    make_prompt(prompt, n, 20 + (uint32_t)below(w, 3));
    for (int i = shared; i < n; i++) prompt[i] = below(w, 2);
    w->alive[lane] = spec_lane_begin(w->g.l[lane], &r, &reused, &e);
    if (!w->alive[lane]) {
        CHECK_INT(e.code, ERR_BUSY);
        w->n_busy++;
        return;
    }
    w->n_hits += reused > 0;
}

static bool (*real_step)(target *t, kv_pool *kv, const step *st, err *e);
static bool failing_step(target *t, kv_pool *kv, const step *st, err *e)
{
    real_step(t, kv, st, e); /* and its results are lost */
    return err_set(e, ERR_UNAVAILABLE, "the device is gone");
}

static void crowd_step(test_case *t, crowd *w)
{
    err       e = {0};
    spec_part part[LANES];
    int       n     = 0;
    bool      fails = below(w, 25) == 0;
    for (int i = 0; i < LANES; i++) {
        spec_lane *l = w->g.l[i];
        if (!w->alive[i] || below(w, 4) == 0) continue;
        part[n++] = (spec_part){.lane = l, .max_rows = below(w, 3) * 13, .plan = spec_choose_alone(l)};
    }
    if (n == 0) return;
    w->g.y->t.step = fails ? failing_step : real_step;
    fault_no_alloc_begin("a step");
    bool ok = spec_step(w->g.s, part, n, &e);
    for (int i = 0; ok && i < n; i++) {
        int got = spec_lane_out(part[i].lane)->n;
        if (got) spec_lane_keep(part[i].lane, below(w, 3) ? got : below(w, got + 1));
    }
    fault_no_alloc_end();
    w->g.y->t.step = real_step;
    CHECK(ok != fails);
    w->n_failed += fails;
}

static void crowd_lanes(test_case *t, crowd *w)
{
    for (int i = 0; i < LANES; i++) {
        spec_lane *l = w->g.l[i];
        if (!w->alive[i]) {
            admit(t, w, i);
            continue;
        }
        bool full = spec_lane_full(l), cancel = below(w, 40) == 0;
        if (!full && !cancel) continue;
        if (l->n_text > l->n_prompt) CHECK_MSG(is_plain(&w->g, l), "lane %d: %d tokens", i, l->n_text);
        spec_lane_end(l);
        w->alive[i] = false;
        w->n_ends += full;
        w->n_cancels += !full;
    }
}

static void run_crowd(test_case *t, size_t kv_bytes, int max_kept_rows, int n_steps, crowd *out)
{
    crowd *w = out;
    *w       = (crowd){.rng = 77};
    if (open_stage(t, &w->g, "cpu", VOCAB, max_kept_rows, kv_bytes)) {
        real_step = w->g.y->t.step;
        for (int i = 0; i < n_steps && !t->n_failed; i++) {
            crowd_lanes(t, w);
            crowd_step(t, w);
            kv_pool_check(w->g.s->kv);
        }
        CHECK_MSG(w->n_ends > 10 && w->n_cancels > 10 && w->n_hits > 10 && w->n_failed > 5,
                  "%d ends, %d cancels, %d hits, %d failed steps, %d busy", w->n_ends, w->n_cancels, w->n_hits,
                  w->n_failed, w->n_busy);
    }
}

/* Requests come, meet, are cancelled, fail and end, in a pool for all of them and in one where they wait and evict. */
TEST_LONG(recurrent_lanes_come_and_go)
{
    crowd w;
    run_crowd(t, 0, 0, 1200, &w);
    CHECK_INT(w.n_busy, 0);
    close_stage(&w.g);
    run_crowd(t, 40 << 10, 9, 1500, &w); /* fewer kept rows than a page: prompts end with a step of their own */
    CHECK(w.n_busy > 10 && kv_prefix_get_stats(w.g.s->tree).evicted > 100);
    close_stage(&w.g);
}

/* Parked drafters and those that come again, in the middle of an answer. */
TEST(recurrent_goes_on_while_drafters_are_parked)
{
    stage   g;
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, 13);
    if (open_stage(t, &g, "cpu", VOCAB, 0, 0))
        for (int m = SPEC_DFLASH; m <= SPEC_MTP; m++) {
            begin(t, &g, 0, m, prompt, PROMPT);
            decode(t, &g, 0, PROMPT + 30, 0);
            park_all(g.s);
            int64_t before = spec_lane_stats(g.l[0])->drafted;
            decode(t, &g, 0, PROMPT + 60, 0);
            CHECK_INT(spec_lane_stats(g.l[0])->drafted, before);
            toy_add_drafter(g.s, g.y, SPEC_DFLASH); /* in place of unpark_all, which opens files */
            toy_add_drafter(g.s, g.y, SPEC_MTP);
            lane_take_drafters(g.l[0]);
            decode(t, &g, 0, PROMPT + 90, 0);
            CHECK(spec_lane_stats(g.l[0])->drafted > before && is_plain(&g, g.l[0]));
        }
    close_stage(&g);
}

/* --- memory -------------------------------------------------------------------------------------*/
/* A pool for one request alone holds its two states of each class, and a second request waits for them. */
TEST(recurrent_admission_reserves_states)
{
    stage        g;
    err          e    = {0};
    spec_options one  = common;
    size_t       kept = 0, bytes = 0, reused;
    int32_t      prompt[PROMPT];
    make_prompt(prompt, PROMPT, 14);
    one.max_lanes = 1;
    if (open_stage(t, &g, "cpu", VOCAB, 0, 0)) {
        CHECK(spec_kv_bytes(&g.y->t, &one, &bytes));
        close_stage(&g);
    }
    if (open_stage(t, &g, "cpu", VOCAB, 0, bytes)) {
        kv_pool     *p = g.s->kv;
        kv_need      n = {0};
        lane_request r = {.opt = options(SPEC_OFF), .prompt = prompt, .n_prompt = PROMPT};
        kv_need_add(p, &n, 0, CTX, 64);
        for (int i = 0; i < 2; i++) {
            CHECK_INT(n.pages[state_class(p, i)], LANE_STATES);
            kept += g.y->t.state[i].row_bytes * 64;
        }
        CHECK(kv_pool_bytes(p) + kept <= bytes);
        begin(t, &g, 0, SPEC_OFF, prompt, PROMPT);
        CHECK_FAILS(spec_lane_begin(g.l[1], &r, &reused, &e), e, "no room");
        CHECK_INT(e.code, ERR_BUSY);
        decode(t, &g, 0, PROMPT + 40, 0);
        int live = p->cls[state_class(p, 0)].n_pinned;
        CHECK_INT(live, LANE_STATES); /* the live state, and the one at the end of a page */
        CHECK(spec_kv_pinned(g.s) >= 2 * LANE_STATES * KV_UNIT);
        spec_lane_end(g.l[0]);
        CHECK_INT(p->cls[state_class(p, 0)].n_pinned, 0);
        CHECK(p->cls[state_class(p, 0)].n_used > 0); /* saved in the tree */
        CHECK_INT(begin(t, &g, 1, SPEC_OFF, prompt, PROMPT), 32);
    }
    close_stage(&g);
}

/* --- mistakes -----------------------------------------------------------------------------------*/
/* The tests above would find a commit that takes the state of another row: with such a mistake planted the text
 * differs. */
TEST(recurrent_planted_mistakes_change_the_text)
{
    static const struct {
        toy_mistake mistake;
        int         method;
    } c[] = {{TOY_REPLAYS_NEXT_ROW, SPEC_TREE}, {TOY_REPLAYS_NEXT_ROW, SPEC_DFLASH}, {TOY_SKIPS_LAST_ROW, SPEC_OFF},
             {TOY_SKIPS_LAST_ROW, SPEC_MTP},    {TOY_KEEPS_PARENT, SPEC_TREE},       {TOY_KEEPS_PARENT, SPEC_NGRAM},
             {TOY_CHANGES_LIVE, SPEC_TREE},     {TOY_CHANGES_LIVE, SPEC_DFLASH}};
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, 15);
    for (size_t i = 0; i < COUNT(c); i++) {
        stage g;
        if (open_stage(t, &g, "cpu", VOCAB, 0, 0)) {
            begin(t, &g, 0, c[i].method, prompt, PROMPT);
            decode(t, &g, 0, PROMPT + 20, 0);
            CHECK(is_plain(&g, g.l[0]));
            g.y->mistake = c[i].mistake;
            decode(t, &g, 0, PROMPT + TEXT, 0);
            CHECK_MSG(!is_plain(&g, g.l[0]), "mistake %d with method %d went unnoticed", c[i].mistake, c[i].method);
        }
        close_stage(&g);
    }
}
