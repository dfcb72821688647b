/* What a step gives to each of its lanes, what it leaves behind when it fails, and what lanes learn on the way. */
#include "spec/choice.h"
#include "spec_rig.h"

enum { LANES = RIG_LANES, CTX = 256, TEXT = 40 };
static const spec_options four_lanes = {.n_ctx = CTX, .max_lanes = LANES, .kv_type = KV_TYPES_ALL(CACHE_F16)};

static bool begin(test_case *t, spec_lane *l, int method, const int32_t *prompt, int n)
{
    err    e = {0};
    size_t reused;
    return CHECK_OK(
        spec_lane_begin(l, &(lane_request){.opt = spec_rig_options(method), .prompt = prompt, .n_prompt = (size_t)n},
                        &reused, &e),
        e);
}

static bool step_one(test_case *t, spec_rig *g, int lane, spec_plan plan)
{
    err       e    = {0};
    spec_part part = {.lane = g->l[lane], .plan = plan};
    return CHECK_OK(spec_step(g->s, &part, 1, &e), e);
}

/* The answer to the rig's prompt, plainly. */
static void plain_text(test_case *t, spec_rig *g, int32_t *out)
{
    if (!begin(t, g->l[0], SPEC_OFF, rig_prompt, RIG_PROMPT)) return;
    for (int i = 0; i < TEXT && step_one(t, g, 0, (spec_plan){0}); i++) {
        out[i] = spec_lane_out(g->l[0])->token[0];
        spec_lane_keep(g->l[0], 1);
    }
    spec_lane_end(g->l[0]);
}

/* --- rows -----------------------------------------------------------------------------------------*/
/* Rows of text and guesses that each part is to have: a row for every lane, then prompts in the order of the lanes, and
 * equal shares of the rest for guesses. */
static void expect_rows(const spec_part *part, int n, int max_rows, int *text, int *guesses)
{
    int left = max_rows - n;
    for (int i = 0; i < n; i++) {
        const spec_lane *l    = part[i].lane;
        int              want = spec_lane_pending(l);
        if (part[i].max_rows) want = min_int(want, part[i].max_rows);
        text[i] = 1 + min_int(want - 1, left);
        left -= text[i] - 1;
        guesses[i] = spec_lane_can_draft(l) ? part[i].plan.n : 0;
    }
    choice_share_rows(guesses, n, left);
}

static void check_rows(test_case *t, const spec_rig *g, const spec_part *part, int n, const int *text,
                       const int *guesses)
{
    int rows = 0;
    for (int i = 0; i < n; i++) {
        const spec_lane *l = part[i].lane;
        CHECK_MSG(l->n_chunk == text[i] && l->tree.n - 1 == guesses[i],
                  "part %d of %d, %d rows: %d of text and %d guesses, expected %d and %d", i, n, g->m->max_rows,
                  l->n_chunk, l->tree.n - 1, text[i], guesses[i]);
        rows += text[i] + guesses[i];
    }
    CHECK_INT(g->s->step.n_rows, rows);
    CHECK(rows <= g->m->max_rows);
}

/* Prompts and guesses of several lanes in steps of few rows. */
TEST(spec_rows_of_a_step_are_given_to_all_lanes)
{
    static const int size[] = {4, 5, 7, 12, 19, 26, 40, 64};
    static int32_t   plain[TEXT];
    spec_rig         g;
    uint64_t         rng = 3;
    if (spec_rig_open(t, &g, &four_lanes, true)) {
        int most = g.m->max_rows;
        plain_text(t, &g, plain);
        for (size_t k = 0; k < COUNT(size); k++) {
            int n_out[LANES] = {0};
            g.m->max_rows    = size[k];
            spec_forget(g.s);
            for (int i = 0; i < LANES; i++) begin(t, g.l[i], SPEC_AUTO, rig_prompt, RIG_PROMPT);
            for (int round = 0; round < 12 && !t->n_failed; round++) {
                err       e = {0};
                spec_part part[LANES];
                int       text[LANES], guesses[LANES], n = 0;
                for (int i = 0; i < LANES; i++)
                    if (n_out[i] < TEXT - 8 && (test_rand(&rng) % 4 || (i == LANES - 1 && n == 0)))
                        part[n++] = (spec_part){.lane     = g.l[i],
                                                .max_rows = (int)(test_rand(&rng) % 3) * 3,
                                                .plan     = {.method = SPEC_DFLASH, .n = (int)(test_rand(&rng) % 7)}};
                if (n == 0) continue;
                expect_rows(part, n, size[k], text, guesses);
                if (!CHECK_OK(spec_step(g.s, part, n, &e), e)) break;
                check_rows(t, &g, part, n, text, guesses);
                for (int i = 0; i < n; i++) {
                    const spec_out *x   = spec_lane_out(part[i].lane);
                    int            *out = &n_out[part[i].lane->index];
                    for (int j = 0; j < x->n; j++) CHECK_INT(x->token[j], plain[(*out)++]);
                    spec_lane_keep(part[i].lane, x->n);
                }
            }
            for (int i = 0; i < LANES; i++) spec_lane_end(g.l[i]);
        }
        g.m->max_rows = most;
    }
    spec_rig_close(&g);
}

/* --- steps that fail ------------------------------------------------------------------------------*/
static bool (*real_step)(target *t, kv_pool *kv, const step *st, err *e);
static int steps_left;

static bool failing_step(target *t, kv_pool *kv, const step *st, err *e)
{
    if (steps_left-- > 0) return real_step(t, kv, st, e);
    return err_set(e, ERR_UNAVAILABLE, "the device is gone");
}

/* A step that fails leaves text, K/V and counts as they were; the next one goes on from there. */
TEST(spec_goes_on_after_a_step_that_failed)
{
    static int32_t plain[TEXT];
    spec_rig       g;
    if (spec_rig_open(t, &g, &four_lanes, true)) {
        plain_text(t, &g, plain);
        real_step = g.m->step;
        for (int m = SPEC_OFF; m <= SPEC_NGRAM; m++) {
            int n = 0, failed = 0;
            begin(t, g.l[0], m, rig_prompt, RIG_PROMPT);
            for (int round = 0; n < TEXT && !t->n_failed; round++) {
                err                e      = {0};
                tandem_spec_counts before = *spec_lane_stats(g.l[0]);
                int32_t            cached = g.l[0]->n_cached;
                spec_part          part   = {.lane = g.l[0], .plan = spec_choose_alone(g.l[0])};
                spec_lane_limit(g.l[0], TEXT - n);
                steps_left = round % 2;
                g.m->step  = failing_step;
                bool ok    = spec_step(g.s, &part, 1, &e);
                g.m->step  = real_step;
                if (steps_left < 0) {
                    CHECK(!ok && strstr(e.text, "the device is gone") && e.code == ERR_UNAVAILABLE);
                    CHECK_INT(kv_lane_len(g.l[0]->kv), cached);
                    CHECK(!memcmp(&before, spec_lane_stats(g.l[0]), sizeof before));
                    CHECK_INT(spec_lane_out(g.l[0])->n, 0);
                    failed++;
                    continue;
                }
                const spec_out *x = spec_lane_out(g.l[0]);
                for (int i = 0; i < x->n && CHECK(n < TEXT); i++) CHECK_INT(x->token[i], plain[n++]);
                spec_lane_keep(g.l[0], x->n);
            }
            CHECK(failed > 2);
            spec_lane_end(g.l[0]);
        }
    }
    spec_rig_close(&g);
}

/* --- what n-grams would have said -------------------------------------------------------------------*/
static int     n_seen;
static int32_t seen[DRAFT_MAX];

static void see(void *ctx, const spec_round *r)
{
    (void)ctx;
    n_seen = r->n;
    memcpy(seen, r->token, (size_t)r->n * sizeof *seen);
}

/* A lane that chooses by itself knows what n-grams would guess, uses no more of them, and learns from the text whether they
 * would have been right; a lane with a method of its own does not ask. */
TEST(spec_auto_judges_ngrams_without_using_them)
{
    spec_rig     g;
    spec_options so = four_lanes;
    int32_t      many[60];
    int          n_notes = 0, n_right = 0, n_wrong = 0;
    for (int i = 0; i < 60; i++) many[i] = rig_prompt[i % RIG_PROMPT]; /* there is something to copy */
    so.on_round = see;
    if (spec_rig_open(t, &g, &so, true)) {
        begin(t, g.l[0], SPEC_AUTO, many, 60);
        begin(t, g.l[1], SPEC_NGRAM, many, 60);
        for (int round = 0; round < 60 && !t->n_failed; round++) {
            policy_facts f;
            survival     want = g.l[0]->policy.record[SPEC_NGRAM];
            bool         can  = spec_lane_can_draft(g.l[0]);
            n_seen            = 0;
            if (!step_one(t, &g, 1, (spec_plan){.method = SPEC_NGRAM, .n = DRAFT_MAX})) break;
            spec_lane_facts(g.l[0], &f);
            if (can) { /* behind the same text */
                CHECK_INT(min_int(f.p->limits.max_draft[SPEC_NGRAM], 8), n_seen);
                CHECK_INT(f.p->limits.there[SPEC_NGRAM], n_seen > 0);
                CHECK(!memcmp(g.l[0]->shadow, seen, (size_t)n_seen * sizeof *seen));
            }
            if (!step_one(t, &g, 0, (spec_plan){.method = SPEC_MTP, .n = round % 3})) break;
            const spec_out *x = spec_lane_out(g.l[0]);
            int             n = g.l[0]->n_shadow, judged = min_int(n, x->n), right = 0;
            while (right < judged && g.l[0]->shadow[right] == x->token[right]) right++;
            if (n) survival_note(&want, right < judged ? n : judged, right < judged ? n : judged, right);
            n_notes += n > 0;
            n_right += right;
            n_wrong += right < judged;
            spec_lane_keep(g.l[0], 1);
            CHECK(!memcmp(&want, &g.l[0]->policy.record[SPEC_NGRAM], sizeof want));
            CHECK_INT(spec_lane_out(g.l[1])->token[0], g.l[0]->text[g.l[0]->n_text - 1]);
            spec_lane_keep(g.l[1], 1);
            CHECK(g.l[1]->n_shadow == 0 && g.l[1]->policy.record[SPEC_NGRAM].tried[0] == 0);
        }
        CHECK_MSG(n_notes > 10 && n_right > 5 && n_wrong > 0, "%d notes, %d right, %d wrong", n_notes, n_right,
                  n_wrong);
    }
    spec_rig_close(&g);
}

/* What n-grams said of a lane's last text is nothing to its next request, also where the texts are equally long. */
TEST(spec_auto_asks_ngrams_for_every_text)
{
    spec_rig     g;
    policy_facts f;
    int32_t      copies[60], fresh[60];
    for (int i = 0; i < 60; i++) {
        copies[i] = rig_prompt[i % RIG_PROMPT];
        fresh[i]  = 300 + i;
    }
    if (spec_rig_open(t, &g, &four_lanes, false))
        for (int i = 0; i < 4; i++) {
            begin(t, g.l[0], SPEC_AUTO, i % 2 ? fresh : copies, 60);
            spec_lane_facts(g.l[0], &f);
            CHECK_INT(f.p->limits.there[SPEC_NGRAM], i % 2 == 0);
            CHECK_INT(f.p->limits.max_draft[SPEC_NGRAM] > 0, i % 2 == 0);
        }
    spec_rig_close(&g);
}

/* --- what requests of a class learn -----------------------------------------------------------------*/
static const policy *begin_in_class(test_case *t, spec_rig *g, int lane, policy_classes *c, uint64_t key)
{
    err          e = {0};
    size_t       reused;
    lane_request r = {.opt       = spec_rig_options(SPEC_AUTO),
                      .prompt    = rig_prompt,
                      .n_prompt  = RIG_PROMPT,
                      .classes   = c,
                      .class_key = key};
    CHECK_OK(spec_lane_begin(g->l[lane], &r, &reused, &e), e);
    return &g->l[lane]->policy;
}

static void draft_for(test_case *t, spec_rig *g, int lane, int n_rounds)
{
    for (int i = 0; i < n_rounds; i++) {
        if (!step_one(t, g, lane, (spec_plan){.method = SPEC_DFLASH, .n = 4})) return;
        spec_lane_keep(g->l[lane], 1);
    }
}

/* What a request has seen of drafts is known to the next one of its class in any lane, and to no other; without classes a
 * lane keeps what its last text showed. */
TEST(spec_requests_of_a_class_learn_from_each_other)
{
    spec_rig        g;
    policy_classes *c = policy_classes_new(4);
    if (spec_rig_open(t, &g, &four_lanes, true)) {
        const policy *p = begin_in_class(t, &g, 0, c, 7);
        CHECK(p->record[SPEC_DFLASH].tried[0] == 0);
        draft_for(t, &g, 0, 12);
        double tried = p->record[SPEC_DFLASH].tried[0], right = p->record[SPEC_DFLASH].right[0];
        CHECK(tried > 5 && right > 1);
        p = begin_in_class(t, &g, 1, c, 7); /* it has not ended yet */
        CHECK(p->record[SPEC_DFLASH].tried[0] == 0);
        spec_lane_end(g.l[1]);
        spec_lane_end(g.l[0]);
        p = begin_in_class(t, &g, 1, c, 7);
        CHECK_NEAR(p->record[SPEC_DFLASH].tried[0], 3, 1e-9);
        CHECK_NEAR(p->record[SPEC_DFLASH].right[0], 3 * right / tried, 1e-9);
        p = begin_in_class(t, &g, 0, c, 8); /* of another class */
        CHECK(p->record[SPEC_DFLASH].tried[0] == 0);
        draft_for(t, &g, 0, 3);
        begin(t, g.l[0], SPEC_AUTO, rig_prompt, RIG_PROMPT); /* of none: as the lane's last */
        CHECK(p->record[SPEC_DFLASH].tried[0] > 1);
        draft_for(t, &g, 0, 3);
        spec_lane_end(g.l[0]);
        p = begin_in_class(t, &g, 2, c, 8); /* has learnt nothing from it */
        CHECK(p->record[SPEC_DFLASH].tried[0] > 1 && p->record[SPEC_DFLASH].tried[0] < 2);
        for (int i = 0; i < LANES; i++) spec_lane_end(g.l[i]);
    }
    spec_rig_close(&g);
    policy_classes_free(c);
}
