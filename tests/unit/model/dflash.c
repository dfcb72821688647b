/* The DFlash drafter: the reference's numbers, whatever way the context came; and what a lane and a draft promise. */
#include "backends.h"
#include "base/fault.h"
#include "base/file.h"
#include "model/dflash_rig.h"

#include <stdlib.h>

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
    const tensor *want = dflash_rig_golden(t, g, n_case, "context_features");
    float        *y    = xalloc(want->bytes);
    g->m->o->download(g->m->q, y, g->m->features, want->bytes);
    g->m->o->sync(g->m->q);
    compare(t, y, want, "features", g->m->o->name);
    mem_free(y);
}

static void check_case(test_case *t, rig *g, int n_case)
{
    text          x      = dflash_rig_text(t, g, n_case);
    const tensor *logits = dflash_rig_golden(t, g, n_case, "draft_logits_no_softcap");
    g->d->cut(g->d, g->lane[0], 0);
    dflash_rig_observe(t, g, 0, &x, 0, x.n - 1, MAX_TEXT);
    check_features(t, g, n_case);
    drafted r = dflash_rig_draft(t, g, 0, &x);
    compare(t, r.hidden, dflash_rig_golden(t, g, n_case, "draft_hidden"), "hidden states", g->m->o->name);
    compare(t, r.logits, logits, "logits", g->m->o->name);
    for (int i = 0; logits && i < r.job.n; i++) {
        const char *row = (const char *)logits->data + (size_t)(i + 1) * (size_t)g->m->n_vocab * sizeof(float);
        CHECK_INT(r.job.token[i], argmax(row, g->m->n_vocab));
    }
    dflash_rig_free(&r);
}

static void check_model(test_case *t, const char *name)
{
    const char *device[TEST_BACKENDS_MAX];
    for (int k = 0, n = test_devices(device); k < n; k++) {
        rig g;
        if (dflash_rig_open(t, &g, name, device[k]))
            for (int i = 0; i < 3; i++) check_case(t, &g, i);
        dflash_rig_close(&g);
    }
}

TEST(dflash_golden_moe) { check_model(t, "gemma4-moe"); }
TEST(dflash_golden_dense) { check_model(t, "gemma4-dense"); }

/* --- the context --------------------------------------------------------------------------------*/
TEST(dflash_chunks_do_not_matter)
{
    static const int chunk[] = {7, 1, 65, 33};
    rig              g;
    if (dflash_rig_open(t, &g, "gemma4-moe", "cpu")) {
        text x = dflash_rig_text(t, &g, 2);
        dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, MAX_TEXT);
        drafted whole = dflash_rig_draft(t, &g, 0, &x);
        for (size_t i = 0; i < COUNT(chunk); i++) {
            g.d->cut(g.d, g.lane[0], 0);
            dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, chunk[i]);
            drafted r = dflash_rig_draft(t, &g, 0, &x);
            dflash_rig_same(t, &g, &whole, &r, "another chunk");
        }
        drafted again = dflash_rig_draft(t, &g, 0, &x); /* a draft leaves nothing behind */
        dflash_rig_same(t, &g, &whole, &again, "again");
        dflash_rig_free(&whole);
    }
    dflash_rig_close(&g);
}

static void check_lanes(test_case *t, int n_ctx)
{
    rig             g;
    err             e   = {0};
    drafter_options opt = dflash_rig_exact;
    opt.n_ctx           = n_ctx;
    if (dflash_rig_target(t, &g, "gemma4-dense", "cpu") &&
        dflash_rig_drafter(t, &g, dflash_rig_path("gemma4-dense"), &opt)) {
        text x[2] = {dflash_rig_text(t, &g, 1), dflash_rig_text(t, &g, 2)};
        for (int i = 0; i < 2; i++) dflash_rig_observe(t, &g, i, &x[i], 0, x[i].n - 1, 5);
        draft_job  job[2] = {dflash_rig_job(&g, 0, &x[0]), dflash_rig_job(&g, 1, &x[1])};
        draft_job *jobs[] = {&job[0], &job[1]};
        CHECK_OK(g.d->draft(g.d, g.kv, jobs, 2, &e), e);
        for (int i = 0; i < 2; i++) {
            g.d->cut(g.d, g.lane[i], 0);
            dflash_rig_observe(t, &g, i, &x[i], 0, x[i].n - 1, 5);
            drafted alone = dflash_rig_draft(t, &g, i, &x[i]);
            CHECK_INT(job[i].n, alone.job.n);
            for (int k = 0; k < job[i].n; k++) CHECK_INT(job[i].token[k], alone.job.token[k]);
            dflash_rig_free(&alone);
        }
    }
    dflash_rig_close(&g);
}

TEST(dflash_lanes_do_not_matter)
{
    check_lanes(t, 0);
    check_lanes(t, 32); /* one of them slides */
}

TEST(dflash_cut_and_observed_again)
{
    static const int at[] = {1, 40, 64, 66, 69};
    rig              g;
    if (dflash_rig_open(t, &g, "gemma4-moe", "cpu")) {
        text x = dflash_rig_text(t, &g, 2), other = x;
        for (int i = 0; i < other.n; i++) other.id[i] = (x.id[i] + 101) % g.m->n_vocab;
        dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, MAX_TEXT);
        drafted whole = dflash_rig_draft(t, &g, 0, &x);
        for (size_t i = 0; i < COUNT(at); i++) {
            dflash_rig_observe(t, &g, 0, &other, at[i], x.n - 1, 3); /* starts a context there: it has to go */
            g.d->cut(g.d, g.lane[0], 0);
            dflash_rig_observe(t, &g, 0, &x, 0, at[i], 9);
            dflash_rig_observe(t, &g, 0, &other, at[i], x.n - 1, 3);
            g.d->cut(g.d, g.lane[0], at[i]);
            dflash_rig_observe(t, &g, 0, &x, at[i], x.n - 1, 2);
            drafted r = dflash_rig_draft(t, &g, 0, &x);
            dflash_rig_same(t, &g, &whole, &r, "cut");
        }
        dflash_rig_free(&whole);
    }
    dflash_rig_close(&g);
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

/* Within what turning a stored key costs. */
static void check_near(test_case *t, const rig *g, const drafted *a, const drafted *b)
{
    size_t n = (size_t)a->block * (size_t)g->m->n_vocab;
    for (int i = 0; i < a->job.n; i++) CHECK_INT(a->job.token[i], b->job.token[i]);
    for (size_t i = 0; i < n; i++)
        if (!CHECK_MSG(fabs((double)a->logits[i] - (double)b->logits[i]) <= 2e-4 * (1 + fabs((double)a->logits[i])),
                       "logit %zu: %.9g, fresh %.9g", i, (double)b->logits[i], (double)a->logits[i]))
            return;
}

/* 32 slots, 16 dropped at a time: 70 rows leave 0 .. 15 and 64 .. 69, as if they were one text; bit for bit the same
 * however they came. */
TEST(dflash_context_slides)
{
    static const int chunk[] = {MAX_TEXT, 8, 1, 17};
    rig              g;
    if (dflash_rig_open(t, &g, "gemma4-moe", "cpu")) {
        text x = dflash_rig_text(t, &g, 2);
        observe_pieces(t, &g, &x, 16, 64);
        drafted         fresh = dflash_rig_draft(t, &g, 0, &x), first = {0};
        drafter_options small = dflash_rig_exact;
        small.n_ctx           = 32;
        dflash_rig_drop(&g);
        if (dflash_rig_drafter(t, &g, dflash_rig_path("gemma4-moe"), &small))
            for (size_t i = 0; i < COUNT(chunk); i++) {
                dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, chunk[i]);
                drafted r = dflash_rig_draft(t, &g, 0, &x);
                check_near(t, &g, &fresh, &r);
                if (i)
                    dflash_rig_same(t, &g, &first, &r, "slid");
                else
                    first = r;
                g.d->cut(g.d, g.lane[0], 0);
            }
        dflash_rig_free(&fresh);
        dflash_rig_free(&first);
    }
    dflash_rig_close(&g);
}

/* 32 positions of context. */
static bool open_short(test_case *t, rig *g)
{
    drafter_options opt = dflash_rig_exact;
    opt.n_ctx           = 32;
    return dflash_rig_target(t, g, "gemma4-moe", "cpu") &&
           dflash_rig_drafter(t, g, dflash_rig_path("gemma4-moe"), &opt);
}

/* Drafts on the way, so that the first page is turned again and again, change nothing. */
TEST(dflash_drafts_on_the_way_do_not_matter)
{
    rig g;
    if (open_short(t, &g)) {
        text x = dflash_rig_text(t, &g, 2);
        for (int n = 20; n < x.n; n += 7) {
            text so_far = x;
            so_far.n    = n;
            dflash_rig_observe(t, &g, 0, &x, n == 20 ? 0 : n - 8, n - 1, 3);
            drafted way = dflash_rig_draft(t, &g, 0, &so_far);
            g.d->cut(g.d, g.lane[1], 0);
            dflash_rig_observe(t, &g, 1, &x, 0, n - 1, MAX_TEXT);
            drafted fresh = dflash_rig_draft(t, &g, 1, &so_far);
            dflash_rig_same(t, &g, &way, &fresh, "drafts on the way");
            dflash_rig_free(&way);
        }
    }
    dflash_rig_close(&g);
}

TEST(dflash_cut_after_a_slide)
{
    rig g;
    if (open_short(t, &g)) {
        text x = dflash_rig_text(t, &g, 2);
        dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, 1);
        drafted whole = dflash_rig_draft(t, &g, 0, &x);
        g.d->cut(g.d, g.lane[0], 66); /* among the recent rows: they come back */
        dflash_rig_observe(t, &g, 0, &x, 66, x.n - 1, 4);
        drafted back = dflash_rig_draft(t, &g, 0, &x);
        dflash_rig_same(t, &g, &whole, &back, "cut behind the first page");
        dflash_rig_free(&whole);

        g.d->cut(g.d, g.lane[0], 30); /* long dropped: a new context, as if the lane had never seen anything */
        dflash_rig_observe(t, &g, 0, &x, 30, x.n - 1, 5);
        drafted after = dflash_rig_draft(t, &g, 0, &x);
        dflash_rig_observe(t, &g, 1, &x, 0, 30, MAX_TEXT);
        g.d->cut(g.d, g.lane[1], 0);
        dflash_rig_observe(t, &g, 1, &x, 30, x.n - 1, 5);
        drafted fresh = dflash_rig_draft(t, &g, 1, &x);
        dflash_rig_same(t, &g, &after, &fresh, "cut to what was dropped");
        dflash_rig_free(&after);
    }
    dflash_rig_close(&g);
}

/* A context that starts in the middle is that of its own rows alone. */
TEST(dflash_a_hole_starts_a_new_context)
{
    rig g;
    if (dflash_rig_open(t, &g, "gemma4-moe", "cpu")) {
        text x = dflash_rig_text(t, &g, 2);
        observe_pieces(t, &g, &x, 0, 40);
        drafted fresh = dflash_rig_draft(t, &g, 0, &x);
        g.d->cut(g.d, g.lane[0], 0);
        dflash_rig_observe(t, &g, 0, &x, 0, 20, MAX_TEXT);
        observe_pieces(t, &g, &x, 0, 40);
        drafted after = dflash_rig_draft(t, &g, 0, &x);
        dflash_rig_same(t, &g, &fresh, &after, "after a hole");
        dflash_rig_free(&fresh);

        draft_job behind = dflash_rig_job(&g, 0, &x); /* a text that the context is not of */
        err       e      = {0};
        behind.n_text -= 3;
        CHECK_OK(g.d->draft(g.d, g.kv, (draft_job *[]){&behind}, 1, &e), e);
        CHECK_INT(behind.n, 0);
    }
    dflash_rig_close(&g);
}

/* --- drafts -------------------------------------------------------------------------------------*/
TEST(dflash_wants_what_it_is_asked_for)
{
    rig g;
    err e = {0};
    if (dflash_rig_open(t, &g, "gemma4-dense", "cpu")) {
        text x = dflash_rig_text(t, &g, 1);
        CHECK_INT(g.d->max_draft, 15);
        CHECK_INT(g.d->trained_ctx, 4096);
        CHECK(g.d->one_pass && g.d->weight_bytes > 0);
        dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, 4);
        drafted all = dflash_rig_draft(t, &g, 0, &x);
        for (int n = 0; n <= 20; n += 5) {
            draft_job job = dflash_rig_job(&g, 0, &x), *jobs[] = {&job};
            job.n_want = n;
            job.n_top  = n / 5;
            job.soft   = 1;
            CHECK_OK(g.d->draft(g.d, g.kv, jobs, 1, &e), e);
            CHECK_INT(job.n, n < 15 ? n : 15);
            for (int i = 0; i < job.n; i++) {
                CHECK_INT(job.token[i], all.job.token[i]);
                CHECK_INT(job.top[i][0].id, job.token[i]);
            }
        }
        dflash_rig_free(&all);
    }
    dflash_rig_close(&g);
}

/* More lanes than a pass has rows for, and than a head has. */
TEST(dflash_many_lanes_in_several_passes)
{
    enum { MANY = 19 };
    rig             g;
    drafter_options opt = dflash_rig_exact;
    err             e   = {0};
    opt.max_lanes       = MANY;
    if (dflash_rig_target(t, &g, "gemma4-dense", "cpu") &&
        dflash_rig_drafter(t, &g, dflash_rig_path("gemma4-dense"), &opt)) {
        text        x = dflash_rig_text(t, &g, 1);
        draft_job   job[MANY], *jobs[MANY];
        draft_lane *lane[MANY];
        for (int i = 0; i < MANY; i++) {
            lane[i] = i < LANES ? g.lane[i] : NULL;
            if (!lane[i]) CHECK_OK(g.d->lane_new(g.d, &lane[i], &e), e);
            g.lane[0] = lane[i];
            dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, 1 + i);
            jobs[i] = &job[i];
            job[i]  = dflash_rig_job(&g, 0, &x);
        }
        draft_lane *none;
        CHECK_FAILS(g.d->lane_new(g.d, &none, &e), e, "all lanes of the drafter are taken");
        CHECK_OK(g.d->draft(g.d, g.kv, jobs, MANY, &e), e);
        for (int i = 1; i < MANY; i++) {
            CHECK_INT(job[i].n, 15);
            for (int k = 0; k < job[i].n; k++) CHECK_INT(job[i].token[k], job[0].token[k]);
        }
        for (int i = 0; i < MANY; i++) g.d->lane_free(g.d, lane[i]);
        g.lane[0] = g.lane[1] = NULL;
    }
    dflash_rig_close(&g);
}

TEST(dflash_quantised_at_load)
{
    static const quant_type type[] = {QUANT_Q8_0, QUANT_Q4_0};
    rig                     g;
    if (dflash_rig_target(t, &g, "gemma4-moe", "cpu")) {
        size_t bytes = SIZE_MAX;
        for (size_t i = 0; i < COUNT(type); i++) {
            drafter_options opt = dflash_rig_exact;
            opt.quantise        = type[i];
            opt.kv_type         = cache_types_both(CACHE_F16);
            if (dflash_rig_drafter(t, &g, dflash_rig_path("gemma4-moe"), &opt)) {
                text x = dflash_rig_text(t, &g, 2);
                CHECK(g.d->weight_bytes < bytes);
                bytes = g.d->weight_bytes;
                dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, 20);
                drafted       r    = dflash_rig_draft(t, &g, 0, &x);
                const tensor *want = dflash_rig_golden(t, &g, 2, "draft_logits_no_softcap");
                double        err2 = 0, all2 = 0;
                for (size_t k = 0; k < want->bytes / sizeof(float); k++) {
                    float w;
                    memcpy(&w, (const char *)want->data + k * sizeof w, sizeof w);
                    err2 += ((double)w - (double)r.logits[k]) * ((double)w - (double)r.logits[k]);
                    all2 += (double)w * (double)w;
                }
                CHECK_MSG(err2 < (i ? 0.15 : 0.001) * all2, "%g of the logits is error", err2 / all2);
                dflash_rig_free(&r);
            }
            dflash_rig_drop(&g);
        }
    }
    dflash_rig_close(&g);
}

/* --- nano ---------------------------------------------------------------------------------------*/
static int ids_of(const json_value *o, const char *key, int32_t *out, int cap)
{
    const json_value *v = json_get(o, key);
    if (!v || v->kind != JSON_ARRAY || v->n > (size_t)cap) abort();
    for (size_t i = 0; i < v->n; i++) out[i] = (int32_t)v->item[i].i;
    return (int)v->n;
}

/* Rounds along a recorded answer, each a draft and what of it was right; returns their number. */
static int run_rounds(test_case *t, rig *g, const text *all, int n_prompt)
{
    int n_rounds = 0, at = n_prompt;
    g->d->cut(g->d, g->lane[0], 0);
    dflash_rig_observe(t, g, 0, all, 0, at, MAX_TEXT);
    for (; at < all->n - 1; n_rounds++) {
        err  e        = {0};
        text seen     = *all;
        int  a        = 0;
        seen.n        = at + 1;
        draft_job job = dflash_rig_job(g, 0, &seen), *jobs[] = {&job};
        if (!CHECK_OK(g->d->draft(g->d, g->kv, jobs, 1, &e), e)) return 0;
        while (a < job.n && at + 1 + a < all->n && job.token[a] == all->id[at + 1 + a]) a++;
        dflash_rig_observe(t, g, 0, all, at, at + a + 1 < all->n ? at + a + 1 : all->n, MAX_TEXT);
        at += a + 1;
    }
    return n_rounds;
}

/* As many rounds as the training run counted on the unquantised weights, or nearly. */
TEST(dflash_nano_drafts_as_it_was_trained_to)
{
    rig               g    = {0};
    err               e    = {0};
    file_map          file = {0};
    arena             mem;
    const json_value *all      = NULL;
    drafter_options   opt      = {.kv_type = {CACHE_F16, CACHE_F16}, .max_lanes = 1};
    int               n_rounds = 0, n_expected = 0;
    int32_t           unused[MAX_TEXT];
    arena_init(&mem, 64 << 20);
    if (dflash_rig_model(t, &g, test_path("models/nano/target.gguf"), "cpu") &&
        dflash_rig_drafter(t, &g, test_path("models/nano/dflash.gguf"), &opt) &&
        CHECK_OK(file_map_open(&file, test_path("tests/golden/nano/dflash-acceptance.json"), &e), e) &&
        CHECK_OK(json_parse(&all, &mem, (str){file.p, file.n}, NULL, &e), e)) {
        for (size_t i = 0; i < all->n; i += 20) {
            const json_value *one = &all->item[i];
            text              x   = {0};
            if (json_get(one, "prompt")->n + json_get(one, "answer")->n > MAX_TEXT) continue;
            int n_prompt = ids_of(one, "prompt", x.id, MAX_TEXT);
            x.n          = n_prompt + ids_of(one, "answer", x.id + n_prompt, MAX_TEXT - n_prompt);
            n_expected += ids_of(one, "rounds", unused, MAX_TEXT);
            n_rounds += run_rounds(t, &g, &x, n_prompt);
        }
        CHECK_MSG(n_expected > 30 && n_rounds >= n_expected * 95 / 100 && n_rounds <= n_expected * 105 / 100,
                  "%d rounds, expected about %d", n_rounds, n_expected);
    }
    arena_deinit(&mem);
    file_map_close(&file);
    dflash_rig_close(&g);
}

/* --- memory -------------------------------------------------------------------------------------*/
static int        n_live; /* buffers and weights of the backend */
static const ops *counted;

static bool count_alloc(const ops *o, dev *out, size_t bytes, err *e)
{
    bool ok = counted->alloc(o, out, bytes, e);
    n_live += ok;
    return ok;
}
static void count_free(const ops *o, dev d)
{
    n_live--;
    counted->free(o, d);
}
static bool count_weight(const ops *o, weight **out, const weight_src *src, err *e)
{
    bool ok = counted->weight_load(o, out, src, e);
    n_live += ok;
    return ok;
}
static void count_weight_free(const ops *o, weight *w)
{
    n_live--;
    counted->weight_free(o, w);
}

static ops count_ops(target *m)
{
    ops o         = *m->o;
    counted       = m->o;
    n_live        = 0;
    o.alloc       = count_alloc;
    o.free        = count_free;
    o.weight_load = count_weight;
    o.weight_free = count_weight_free;
    return o;
}

TEST(dflash_gives_all_memory_back)
{
    rig g;
    err e = {0};
    if (dflash_rig_target(t, &g, "gemma4-moe", "cpu")) {
        const ops *own = g.m->o;
        ops        o   = count_ops(g.m);
        int        n   = 0;
        g.m->o         = &o;
        if (dflash_rig_drafter(t, &g, dflash_rig_path("gemma4-moe"), &dflash_rig_exact)) {
            text x = dflash_rig_text(t, &g, 2);
            n      = n_live;
            CHECK(n > 30);
            dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, 20);
            drafted r = dflash_rig_draft(t, &g, 0, &x);
            dflash_rig_free(&r);
            CHECK_INT(n_live, n);
        }
        dflash_rig_drop(&g);
        CHECK_OK(g.m->capture(g.m, NULL, 0, &e), e);
        CHECK_INT(n_live, 0);
        for (long k = 1; k < 1000; k++) { /* each allocation that may fail, in turn */
            checkpoint *cp = NULL;
            drafter    *d  = NULL;
            draft_lane *l  = NULL;
            e.text[0]      = 0;
            CHECK_OK(checkpoint_open(&cp, dflash_rig_path("gemma4-moe"), &e), e);
            fault_fail_nth(k);
            bool ok = dflash_open(&d, g.m, cp, &dflash_rig_exact, &e) && d->lane_new(d, &l, &e);
            fault_fail_nth(0);
            checkpoint_close(cp);
            if (d) d->lane_free(d, l);
            if (d) d->close(d);
            CHECK_INT(n_live, 0);
            if (ok) {
                CHECK_MSG(k > 50, "only %ld allocations may fail", k);
                break;
            }
            if (!CHECK_MSG(e.text[0], "allocation %ld failed without a sentence", k)) break;
        }
        g.m->o = own;
    }
    dflash_rig_close(&g);
}
