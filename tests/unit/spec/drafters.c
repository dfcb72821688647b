/* Drafters of a loop as others see them, the counts of a lane, and what a plan is cut to. */
#include "base/file.h"
#include "spec_rig.h"
#include "views.h"

#include <unistd.h>

static const spec_options two_lanes = {.n_ctx = 256, .max_lanes = 2, .kv_type = KV_TYPES_ALL(CACHE_F16)};

/* Decodes n tokens in the rig's first lane, all of which are kept. */
static void decode(test_case *t, spec_rig *g, const lane_options *o, int n, tandem_spec_counts *out)
{
    err          e = {0};
    size_t       reused;
    lane_request r = {.opt = *o, .prompt = rig_prompt, .n_prompt = RIG_PROMPT};
    if (!CHECK_OK(spec_lane_begin(g->l[0], &r, &reused, &e), e)) return;
    for (int32_t done = 0; done < n;) {
        spec_lane_limit(g->l[0], n - done);
        if (!CHECK_OK(spec_step_alone(g->s, g->l, 1, &e), e)) break;
        int kept = spec_lane_out(g->l[0])->n;
        spec_lane_keep(g->l[0], kept);
        done += kept;
    }
    if (out) *out = *spec_lane_stats(g->l[0]);
    spec_lane_end(g->l[0]);
}

/* --- views ----------------------------------------------------------------------------------------*/
static drafter_view view(test_case *t, const spec_rig *g, spec_method m)
{
    drafter_view v;
    CHECK(spec_drafter_view(g->s, m, &v));
    return v;
}

static const char *copy_of(test_case *t, const char *from, char *path, size_t n)
{
    err      e   = {0};
    file_map map = {0};
    if (CHECK_OK(file_map_open(&map, test_path(from), &e), e))
        snprintf(path, n, "%s", test_tmp_file("drafter.gguf", map.p, map.n));
    file_map_close(&map);
    return path;
}

/* From "opened when first wanted" to open, parked, gone, and back: each change is counted, and seen in the view. */
TEST(spec_views_of_a_drafter_follow_its_life)
{
    spec_rig g;
    err      e = {0};
    char     path[4096];
    if (spec_rig_open(t, &g, &two_lanes, false)) {
        drafter_view none;
        lane_options o = spec_rig_options(SPEC_MTP);
        CHECK(!spec_drafter_view(g.s, SPEC_MTP, &none) && !spec_drafter_view(g.s, SPEC_DFLASH, &none));
        CHECK_FAILS(spec_park(g.s, SPEC_MTP, &e), e, "no drafter for mtp");
        CHECK_INT(e.code, ERR_NOT_FOUND);
        CHECK_FAILS(spec_unpark(g.s, SPEC_DFLASH, &e), e, "no drafter for dflash");
        CHECK_FAILS(spec_park(g.s, SPEC_NGRAM, &e), e, "no drafter for ngram"); /* has no memory to give back */
        spec_draft_source src = {.path         = copy_of(t, "models/nano/mtp.gguf", path, sizeof path),
                                 .name         = "the assistant",
                                 .lazy         = true,
                                 .opt.quantise = QUANT_Q8_0};
        CHECK_OK(spec_add_drafter(g.s, &src, &e), e);
        drafter_view v = view(t, &g, SPEC_MTP);
        CHECK_INT(v.state, DRAFTER_LAZY);
        CHECK_STR(str_of(v.name), STR("the assistant"));
        CHECK(v.weight_bytes == 0 && v.max_draft == 0 && v.problem[0] == 0);
        unsigned before = spec_drafter_changes(g.s);
        decode(t, &g, &o, 10, NULL);
        v = view(t, &g, SPEC_MTP);
        CHECK_INT(v.state, DRAFTER_OPEN);
        CHECK(v.weight_bytes > 1000 && v.max_draft > 0 && v.type == QUANT_Q8_0);
        CHECK(spec_drafter_changes(g.s) != before);

        size_t bytes = v.weight_bytes;
        before       = spec_drafter_changes(g.s);
        CHECK_OK(spec_park(g.s, SPEC_MTP, &e), e);
        v = view(t, &g, SPEC_MTP);
        CHECK(v.state == DRAFTER_PARKED && v.weight_bytes == bytes && spec_drafter_changes(g.s) != before);
        before = spec_drafter_changes(g.s);
        CHECK_OK(spec_park(g.s, SPEC_MTP, &e), e); /* nothing to do */
        CHECK_INT(spec_drafter_changes(g.s), before);
        unlink(path);
        CHECK_FAILS(spec_unpark(g.s, SPEC_MTP, &e), e, "drafter.gguf");
        v = view(t, &g, SPEC_MTP);
        CHECK(v.state == DRAFTER_FAILED && strstr(v.problem, "drafter.gguf"));
        CHECK(!spec_has_drafter(g.s, SPEC_MTP) && drafter_problem(g.s, SPEC_MTP));
        CHECK(spec_drafter_changes(g.s) != before);

        copy_of(t, "models/nano/mtp.gguf", path, sizeof path);
        CHECK_OK(spec_unpark(g.s, SPEC_MTP, &e), e); /* tries again */
        v = view(t, &g, SPEC_MTP);
        CHECK(v.state == DRAFTER_OPEN && v.problem[0] == 0 && spec_has_drafter(g.s, SPEC_MTP));
        tandem_spec_counts st;
        decode(t, &g, &o, 20, &st);
        CHECK(st.drafted > 0);
    }
    spec_rig_close(&g);
}

/* Parking one drafter leaves the other; only what was open is opened again. */
TEST(spec_parks_one_drafter_of_two)
{
    spec_rig g;
    err      e = {0};
    if (spec_rig_open(t, &g, &two_lanes, true)) {
        tandem_spec_counts st;
        lane_options       mtp = spec_rig_options(SPEC_MTP), dflash = spec_rig_options(SPEC_DFLASH);
        CHECK(spec_trained_ctx(g.s) > 0 && spec_trained_ctx(g.s) == view(t, &g, SPEC_DFLASH).trained_ctx);
        CHECK_OK(spec_park(g.s, SPEC_DFLASH, &e), e);
        CHECK(view(t, &g, SPEC_DFLASH).state == DRAFTER_PARKED && view(t, &g, SPEC_TREE).state == DRAFTER_PARKED);
        CHECK_INT(view(t, &g, SPEC_MTP).state, DRAFTER_OPEN);
        CHECK(spec_trained_ctx(g.s) > 0); /* as it was when last open */
        CHECK_INT(g.m->n_features, 0);    /* nothing is captured for nobody */
        decode(t, &g, &mtp, 20, &st);
        CHECK(st.drafted > 0);
        decode(t, &g, &dflash, 20, &st);
        CHECK(st.drafted == 0 && st.plain_rounds == 20);
        CHECK_OK(spec_unpark(g.s, SPEC_MTP, &e), e); /* it was not parked */
        CHECK_INT(view(t, &g, SPEC_DFLASH).state, DRAFTER_PARKED);
        CHECK_OK(spec_unpark(g.s, SPEC_DFLASH, &e), e);
        CHECK(g.m->n_features > 0 && spec_trained_ctx(g.s) > 0);
        decode(t, &g, &dflash, 20, &st);
        CHECK(st.drafted > 0);
    }
    spec_rig_close(&g);
}

static bool failing_draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e)
{
    (void)d, (void)kv, (void)jobs, (void)n_jobs;
    return err_set(e, ERR_IO, "the drafter fell over");
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)); text++) n++;
    return n;
}

/* A drafter that fails in every request is logged once; a request after it works again says nothing. */
TEST(spec_problems_of_a_drafter_are_logged_once)
{
    spec_rig g;
    if (spec_rig_open(t, &g, &two_lanes, true)) {
        lane_options o                                                    = spec_rig_options(SPEC_DFLASH);
        drafter     *d                                                    = g.s->slots[DRAFTER_DFLASH].d;
        bool (*own)(drafter *, kv_pool *, draft_job *const *, int, err *) = d->draft;
        unsigned changes                                                  = spec_drafter_changes(g.s);
        d->draft                                                          = failing_draft;
        test_listen_begin(false);
        for (int i = 0; i < 3; i++) decode(t, &g, &o, 5, NULL);
        const char *said = test_listen_end();
        CHECK_MSG(count(said, "fell over") == 1 && strstr(said, "continuing without it"), "logged: %s", said);
        CHECK(spec_drafter_changes(g.s) != changes);
        const char *why = drafter_problem(g.s, SPEC_DFLASH);
        CHECK(why && strstr(why, "dflash.gguf") && !drafter_problem(g.s, SPEC_MTP));
        d->draft = own;
        test_listen_begin(false);
        decode(t, &g, &o, 5, NULL);
        CHECK_INT(count(test_listen_end(), "fell over"), 0);
    }
    spec_rig_close(&g);
}

/* --- counts ---------------------------------------------------------------------------------------*/
TEST(spec_stats_add_up)
{
    tandem_spec_counts a = {.rounds = 1, .plain_rounds = 2, .drafted = 30, .accepted = 4, .tokens = 5}, b = a,
                       sum = {0};
    a.draft_s              = 1;
    a.verify_s             = 2;
    a.commit_s             = 4;
    for (int i = 0; i < DRAFT_MAX; i++) {
        a.right_at[i] = i + 1;
        b.right_at[i] = 100;
        a.tried_at[i] = 2 * i + 1;
    }
    for (int i = 0; i < SPEC_METHODS; i++) {
        a.rounds_by_method[i]   = i + 1;
        a.drafted_by_method[i]  = i + 10;
        a.accepted_by_method[i] = i + 20;
    }
    spec_counts_add(&sum, &a);
    CHECK(!memcmp(&sum, &a, sizeof a));
    b.rounds = 10;
    spec_counts_add(&sum, &b);
    CHECK(sum.rounds == 11 && sum.plain_rounds == 4 && sum.drafted == 60 && sum.accepted == 8 && sum.tokens == 10 &&
          sum.verify_s == 2);
    CHECK(sum.right_at[0] == 101 && sum.right_at[DRAFT_MAX - 1] == 100 + DRAFT_MAX);
    CHECK_NEAR(spec_acceptance_length(&a), 5, 1e-12);
    CHECK_NEAR(spec_acceptance_rate(&a), 4 / 30.0, 1e-12);
    /* Three rounds commit 6 tokens, 4 of them draft tokens; two plain rounds one each. */
    tandem_spec_counts few = {.rounds = 3, .plain_rounds = 2, .drafted = 9, .accepted = 4, .tokens = 6};
    CHECK_NEAR(spec_accepted_share(&few), 0.5, 1e-12);
    CHECK_NEAR(spec_tokens_per_round(&few), 1.6, 1e-12);
    CHECK(spec_accepted_share(&(tandem_spec_counts){0}) == 0 && spec_tokens_per_round(&(tandem_spec_counts){0}) == 0);
    CHECK(spec_acceptance_length(&(tandem_spec_counts){0}) == 0 && spec_acceptance_rate(&(tandem_spec_counts){0}) == 0);
}

/* The counts of an answer fit together, and a guess that was right but not kept is not counted as accepted. */
TEST(spec_counts_of_an_answer_fit_together)
{
    spec_rig g;
    if (spec_rig_open(t, &g, &two_lanes, true))
        for (int m = SPEC_DFLASH; m <= SPEC_NGRAM; m++) {
            tandem_spec_counts st    = {0};
            lane_options       o     = spec_rig_options(m);
            int64_t            tried = 0, right = 0, n = 0;
            decode(t, &g, &o, 60, &st);
            for (int i = 0; i < DRAFT_MAX; i++) {
                tried += st.tried_at[i];
                right += st.right_at[i];
                CHECK(st.right_at[i] <= st.tried_at[i] && (i == 0 || st.tried_at[i] <= st.tried_at[i - 1]));
            }
            for (int i = 0; i < SPEC_METHODS; i++) n += st.rounds_by_method[i];
            CHECK(st.tried_at[0] == st.rounds && n == st.rounds && st.rounds_by_method[m] == st.rounds);
            CHECK(right == st.accepted && st.accepted_by_method[m] == st.accepted &&
                  st.drafted_by_method[m] == st.drafted);
            CHECK(m == SPEC_TREE ? tried <= st.drafted : tried == st.drafted);
            CHECK_INT(st.tokens + st.plain_rounds, 60);
            CHECK(st.accepted >= st.tokens - st.rounds && st.accepted <= st.tokens);
            CHECK(st.verify_s > 0 && st.draft_s > 0 && st.commit_s > 0 && st.verify_s < 600 && st.draft_s < 600);
        }
    spec_rig_close(&g);
}

TEST(spec_counts_only_what_is_kept)
{
    spec_rig g;
    err      e = {0};
    size_t   reused;
    if (spec_rig_open(t, &g, &two_lanes, true)) {
        lane_request r    = {.opt = spec_rig_options(SPEC_DFLASH), .prompt = rig_prompt, .n_prompt = RIG_PROMPT};
        int64_t      kept = 0, tokens = 0;
        CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
        for (int i = 0; i < 40; i++) {
            if (!CHECK_OK(spec_step_alone(g.s, g.l, 1, &e), e)) break;
            const tandem_spec_counts before = *spec_lane_stats(g.l[0]);
            int                      path = g.l[0]->n_path - 1, keep = i % 3 < spec_lane_out(g.l[0])->n ? i % 3 : 1;
            bool                     drafted = g.l[0]->tree.n > 1;
            spec_lane_keep(g.l[0], keep);
            const tandem_spec_counts *st = spec_lane_stats(g.l[0]);
            CHECK_INT(st->rounds - before.rounds, drafted);
            CHECK_INT(st->plain_rounds - before.plain_rounds, !drafted);
            CHECK_INT(st->accepted - before.accepted, drafted ? (path < keep ? path : keep) : 0);
            tokens += drafted ? keep : 0;
            kept += keep;
            CHECK_INT(st->tokens, tokens);
            int32_t n_text = g.l[0]->n_text;
            CHECK_INT(n_text, RIG_PROMPT + kept);
            CHECK_INT(spec_lane_pending(g.l[0]), n_text == RIG_PROMPT ? spec_lane_pending(g.l[0]) : 1);
        }
        CHECK(spec_lane_stats(g.l[0])->rounds > 5);
    }
    spec_rig_close(&g);
}

/* --- plans ----------------------------------------------------------------------------------------*/
static int         last_n, last_depth, n_shown;
static spec_method last_method;

static void look(void *ctx, const spec_round *r)
{
    (void)ctx;
    int depth[1 + DRAFT_MAX] = {0};
    n_shown++;
    last_n      = r->n;
    last_method = r->method;
    last_depth  = 0;
    for (int i = 0; i < r->n; i++) {
        depth[i + 1] = depth[r->parent[i]] + 1;
        last_depth   = depth[i + 1] > last_depth ? depth[i + 1] : last_depth;
    }
}

/* A plan that wants more than the request's limit, the lane's room or the step has is cut, and never more. */
TEST(spec_plans_are_cut_to_what_there_is_room_for)
{
    spec_rig     g;
    err          e = {0};
    size_t       reused;
    spec_options so = two_lanes;
    so.on_round     = look;
    if (spec_rig_open(t, &g, &so, true)) {
        static const struct {
            int       draft_max, tree_budget, limit;
            spec_plan plan;
            int       n, depth; /* expected: at most, and at least one */
        } c[] = {
            {0, 0, 100, {SPEC_DFLASH, .n = 5}, 5, 5},  {3, 0, 100, {SPEC_DFLASH, .n = 5}, 3, 3},
            {0, 0, 4, {SPEC_DFLASH, .n = 5}, 3, 3},    {0, 0, 2, {SPEC_DFLASH, .n = 5}, 1, 1},
            {0, 0, 1, {SPEC_DFLASH, .n = 5}, 0, 0},    {0, 0, 100, {SPEC_MTP, .n = 2}, 2, 2},
            {0, 0, 100, {SPEC_TREE, .n = 20}, 20, 15}, {2, 0, 100, {SPEC_TREE, .n = 20}, 20, 2},
            {0, 0, 3, {SPEC_TREE, .n = 20}, 20, 2},    {0, 0, 100, {SPEC_OFF, .n = 5}, 0, 0},
            {0, 0, 100, {SPEC_DFLASH, .n = 0}, 0, 0},
        };
        for (size_t i = 0; i < COUNT(c); i++) {
            lane_request r         = {.opt = spec_rig_options(SPEC_AUTO), .prompt = rig_prompt, .n_prompt = RIG_PROMPT};
            r.opt.spec.draft_max   = c[i].draft_max;
            r.opt.spec.tree_budget = c[i].tree_budget;
            spec_part part         = {.lane = g.l[0]};
            CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
            CHECK(!spec_lane_can_draft(g.l[0])); /* the prompt comes first */
            CHECK_OK(spec_step(g.s, &part, 1, &e), e);
            spec_lane_keep(g.l[0], 1);
            CHECK(spec_lane_can_draft(g.l[0]));
            spec_lane_limit(g.l[0], c[i].limit);
            part.plan = c[i].plan;
            n_shown = last_n = last_depth = 0;
            CHECK_OK(spec_step(g.s, &part, 1, &e), e);
            CHECK_INT(n_shown, c[i].n > 0);
            CHECK_MSG(last_n <= c[i].n && last_depth <= c[i].depth && (last_n > 0) == (c[i].n > 0),
                      "case %zu: %d guesses, %d deep", i, last_n, last_depth);
            if (c[i].plan.method == SPEC_DFLASH || c[i].plan.method == SPEC_MTP) CHECK_INT(last_n, c[i].n);
            if (n_shown) CHECK_INT(last_method, c[i].plan.method);
            CHECK(spec_lane_out(g.l[0])->n >= 1 && spec_lane_out(g.l[0])->n <= c[i].limit);
            spec_lane_keep(g.l[0], 1);
            spec_lane_end(g.l[0]);
        }
    }
    spec_rig_close(&g);
}

/* The facts for a plan: what the request asks for, what is there, the room that is left. */
TEST(spec_facts_of_a_lane)
{
    spec_rig     g;
    err          e = {0};
    size_t       reused;
    policy_facts f;
    if (spec_rig_open(t, &g, &two_lanes, true)) {
        lane_request r = {
            .opt = spec_rig_options(SPEC_AUTO), .prompt = rig_prompt, .n_prompt = RIG_PROMPT, .max_new = 30};
        CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
        CHECK_INT(spec_lane_pending(g.l[0]), RIG_PROMPT);
        spec_lane_facts(g.l[0], &f);
        CHECK(f.method == SPEC_AUTO && f.n_ctx == RIG_PROMPT && f.n_prompt == RIG_PROMPT && f.room == 29);
        CHECK(f.p->limits.there[SPEC_DFLASH] && f.p->limits.there[SPEC_TREE] && f.p->limits.there[SPEC_MTP]);
        CHECK(f.p->limits.max_draft[SPEC_MTP] == 7 && f.p->limits.tree_budget == 22 && !f.p->limits.there[SPEC_OFF]);
        CHECK(f.p->limits.max_draft[SPEC_DFLASH] == g.s->slots[DRAFTER_DFLASH].d->max_draft);
        spec_lane_limit(g.l[0], 7);
        spec_lane_facts(g.l[0], &f);
        CHECK_INT(f.room, 6);
        spec_lane_limit(g.l[0], 0);
        spec_lane_facts(g.l[0], &f);
        CHECK_INT(f.room, 0);
        r.max_new              = 0;
        r.opt.spec.draft_max   = 2;
        r.opt.spec.tree_budget = 9;
        CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
        spec_lane_facts(g.l[0], &f);
        CHECK_INT(f.room, 256 - RIG_PROMPT);
        CHECK(f.p->limits.max_draft[SPEC_MTP] == 2 && f.p->limits.max_draft[SPEC_DFLASH] == 2 &&
              f.p->limits.tree_budget == 9);
        r.opt.spec = (spec_settings){.method = SPEC_MTP};
        CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
        spec_lane_facts(g.l[0], &f);
        CHECK(f.method == SPEC_MTP && f.p->limits.max_draft[SPEC_MTP] == 3 && !f.p->limits.there[SPEC_DFLASH]);
        CHECK_INT(spec_choose_alone(g.l[0]).method, SPEC_OFF); /* behind the prompt nothing can be guessed yet */
    }
    spec_rig_close(&g);
}

/* --- memory ---------------------------------------------------------------------------------------*/
TEST(spec_kv_sizes)
{
    spec_rig     g;
    spec_options so = two_lanes;
    if (spec_rig_open(t, &g, &so, false)) {
        size_t one, two, given, typed;
        so.max_lanes = 1;
        CHECK(spec_kv_bytes(g.m, &so, &one));
        so.max_lanes = 2;
        CHECK(spec_kv_bytes(g.m, &so, &two));
        CHECK_INT(two, 2 * one);
        CHECK_INT(spec_kv_bytes_total(g.s), two); /* no more than it takes */
        so.kv_type = (kv_types)KV_TYPES_ALL(CACHE_F32);
        CHECK(spec_kv_bytes(g.m, &so, &typed) && typed > two);
        CHECK(g.m->kv_class[0].types.k == CACHE_F16); /* asking changes nothing */
        so.kv_bytes = 12345678;
        CHECK(spec_kv_bytes(g.m, &so, &given));
        CHECK_INT(given, 12345678);
    }
    spec_rig_close(&g);
}

static struct {
    bool (*alloc)(const ops *o, dev *out, size_t bytes, err *e);
    void (*free)(const ops *o, dev d);
    int held, left; /* buffers; allocations until one fails, below 0: none does */
} device;

static bool counted_alloc(const ops *o, dev *out, size_t bytes, err *e)
{
    if (device.left >= 0 && device.left-- == 0) return err_set(e, ERR_UNAVAILABLE, "the device is full");
    bool ok = device.alloc(o, out, bytes, e);
    device.held += ok;
    return ok;
}

static void counted_free(const ops *o, dev d)
{
    device.held--;
    device.free(o, d);
}

/* A loop gives all of the device's memory back; where one of its buffers cannot be had, it says so and holds none. */
TEST(spec_gives_the_memory_of_the_device_back)
{
    spec_rig g;
    err      e        = {0};
    int      n_failed = 0;
    if (spec_rig_open(t, &g, &two_lanes, false)) {
        ops *o       = (ops *)g.m->o;
        device.alloc = o->alloc;
        device.free  = o->free;
        o->alloc     = counted_alloc;
        o->free      = counted_free;
        for (int k = 0; k < 100; k++) {
            spec *s     = NULL;
            device.held = 0;
            device.left = k;
            bool ok     = spec_new(&s, g.m, &two_lanes, &e);
            device.left = -1;
            CHECK(ok == (s != NULL) && (ok ? device.held > 5 : strstr(e.text, "the device is full") != NULL));
            spec_free(s);
            CHECK_INT(device.held, 0);
            if (ok) break;
            n_failed++;
        }
        CHECK(n_failed > 5 && n_failed < 99);
        o->alloc = device.alloc;
        o->free  = device.free;
    }
    spec_rig_close(&g);
}

/* The smallest pool that holds a request has no room for the drafter's context too: it goes on without, and says why. */
TEST(spec_goes_without_a_drafter_whose_context_does_not_fit)
{
    spec_options so      = {.n_ctx = 1024, .max_lanes = 1, .kv_type = KV_TYPES_ALL(CACHE_F16)};
    bool         without = false, with = false;
    for (so.kv_bytes = 1 << 19; so.kv_bytes < 1 << 26 && !with; so.kv_bytes += so.kv_bytes / 4) {
        spec_rig     g;
        err          e = {0};
        size_t       reused;
        lane_request r = {.opt = spec_rig_options(SPEC_DFLASH), .prompt = rig_prompt, .n_prompt = RIG_PROMPT};
        if (spec_rig_open(t, &g, &so, true)) {
            if (!spec_lane_begin(g.l[0], &r, &reused, &e))
                CHECK_INT(e.code, ERR_CONTEXT);
            else {
                const char *why = drafter_problem(g.s, SPEC_DFLASH);
                CHECK(spec_kv_reserved(g.s) > 0 && spec_kv_reserved(g.s) <= spec_kv_bytes_total(g.s));
                CHECK(!why || strstr(why, "too few K/V pages"));
                CHECK(!drafter_problem(g.s, SPEC_MTP)); /* has no K/V of its own */
                without |= why != NULL;
                with |= !why;
                CHECK(with || g.l[0]->uses[DRAFTER_DFLASH] == false);
                spec_lane_end(g.l[0]);
                tandem_spec_counts st;
                decode(t, &g, &r.opt, 10, &st);
                CHECK_INT(st.drafted > 0, with);
            }
            CHECK_INT(spec_kv_reserved(g.s), 0);
        }
        spec_rig_close(&g);
    }
    CHECK(without && with);
}

/* Reservations: without guesses a request needs fewer pages than with them; a cap leaves a part of the pool alone. */
TEST(spec_reservations_follow_the_request)
{
    spec_rig g;
    err      e = {0};
    size_t   reused, off, ngram, dflash;
    if (spec_rig_open(t, &g, &two_lanes, true)) {
        lane_request r = {
            .opt = spec_rig_options(SPEC_OFF), .prompt = rig_prompt, .n_prompt = RIG_PROMPT, .max_new = 44};
        CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
        off               = spec_kv_reserved(g.s);
        r.opt.spec.method = SPEC_NGRAM;
        CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
        ngram             = spec_kv_reserved(g.s);
        r.opt.spec.method = SPEC_DFLASH;
        CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
        dflash = spec_kv_reserved(g.s);
        CHECK_MSG(off > 0 && off < ngram && ngram < dflash, "%zu, %zu, %zu bytes", off, ngram, dflash);
        CHECK_OK(spec_park(g.s, SPEC_DFLASH, &e), e); /* gives the drafter's part back, in the middle of a request */
        CHECK_INT(spec_kv_reserved(g.s), ngram);
        CHECK_OK(spec_unpark(g.s, SPEC_DFLASH, &e), e);
        CHECK_INT(spec_kv_reserved(g.s), dflash);
        r.max_new = 200;
        CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
        CHECK(spec_kv_reserved(g.s) > dflash);
        spec_lane_end(g.l[0]);
        CHECK_INT(spec_kv_reserved(g.s), 0);
    }
    spec_rig_close(&g);
    spec_options capped = two_lanes;
    capped.kv_cap       = 0.5; /* of a pool that nobody sized: all lanes still fit */
    if (spec_rig_open(t, &g, &capped, false)) {
        lane_request r = {.opt = spec_rig_options(SPEC_NGRAM), .prompt = rig_prompt, .n_prompt = RIG_PROMPT};
        for (int i = 0; i < 2; i++) CHECK_OK(spec_lane_begin(g.l[i], &r, &reused, &e), e);
        CHECK(spec_kv_reserved(g.s) * 2 <= spec_kv_bytes_total(g.s));
    }
    spec_rig_close(&g);
}

/* --- costs ----------------------------------------------------------------------------------------*/
/* Runs the prompts of n lanes and then one round of each with the plan. */
static void one_round(test_case *t, spec_rig *g, int n, spec_plan plan)
{
    err       e = {0};
    size_t    reused;
    spec_part part[RIG_LANES] = {0};
    for (int i = 0; i < n; i++) {
        lane_request r = {.opt = spec_rig_options(SPEC_AUTO), .prompt = rig_prompt, .n_prompt = RIG_PROMPT};
        CHECK_OK(spec_lane_begin(g->l[i], &r, &reused, &e), e);
        part[i] = (spec_part){.lane = g->l[i]};
    }
    g->s->cost = (cost_table){0};
    CHECK_OK(spec_step(g->s, part, n, &e), e);
    CHECK_INT(spec_costs(g->s)->n_steps, 0); /* steps with pieces of prompts say nothing */
    for (int i = 0; i < n; i++) {
        spec_lane_keep(g->l[i], 1);
        part[i].plan = plan;
    }
    CHECK_OK(spec_step(g->s, part, n, &e), e);
    for (int i = 0; i < n; i++) spec_lane_keep(g->l[i], 1);
    CHECK_INT(spec_costs(g->s)->n_steps, 1);
}

/* A step is counted by its rows, a pass of DFlash by anchors and guesses, one of MTP by its lanes. */
TEST(spec_costs_are_noted_by_rows)
{
    spec_rig g;
    if (spec_rig_open(t, &g, &two_lanes, true)) {
        const cost_table *c = spec_costs(g.s);
        one_round(t, &g, 1, (spec_plan){.method = SPEC_OFF});
        CHECK_INT(c->step[0].at[1].n, 1);
        CHECK(c->block[SPEC_DFLASH].low == 0 && c->pass.low == 0 && c->ngram.n == 0);
        one_round(t, &g, 2, (spec_plan){.method = SPEC_OFF});
        CHECK_INT(c->step[0].at[2].n, 1);
        one_round(t, &g, 1, (spec_plan){.method = SPEC_DFLASH, .n = 5});
        CHECK(c->step[0].at[6].n == 1 && c->block[SPEC_DFLASH].at[6].n == 1 && c->block[SPEC_TREE].low == 0);
        one_round(t, &g, 2, (spec_plan){.method = SPEC_DFLASH, .n = 3});
        CHECK(c->step[0].at[8].n == 1 && c->block[SPEC_DFLASH].at[8].n == 1 && c->block[SPEC_DFLASH].low == 8);
        one_round(t, &g, 1, (spec_plan){.method = SPEC_MTP, .n = 3});
        CHECK(c->step[0].at[4].n == 1 && c->pass.at[1].n == 1 && c->block[SPEC_DFLASH].low == 0);
        one_round(t, &g, 2, (spec_plan){.method = SPEC_MTP, .n = 3});
        CHECK(c->step[0].at[8].n == 1 && c->pass.at[2].n == 1);
        one_round(t, &g, 1, (spec_plan){.method = SPEC_TREE, .n = 9});
        CHECK(c->step[0].at[10].n == 1 && c->block[SPEC_TREE].low > 1 && c->block[SPEC_DFLASH].low == 0);
        CHECK(c->step[0].at[10].seconds > 0 && c->step[0].at[10].seconds < 60);
        tandem_spec_counts st;
        decode(t, &g,
               &(lane_options){.params = {.top_p = 1}, .penalty.repeat = 1, .n_top = -1, .spec.method = SPEC_NGRAM}, 60,
               &st);
        CHECK_INT(c->ngram.n > 0, st.rounds > 0);
    }
    spec_rig_close(&g);
}

TEST(spec_nothing_is_fine_to_free)
{
    spec_free(NULL);
    spec_lane_free(NULL);
}
