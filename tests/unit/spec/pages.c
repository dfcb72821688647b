/* What a request finds of its text where another one without its drafter has left only the target's pages. */
#include "kv/inside.h"
#include "spec_rig.h"

enum { CTX = 320, DRAFT_CTX = 40, LONGEST = 150, ANSWER = 12 };
static const spec_options one_lane = {.n_ctx = CTX, .max_lanes = 1, .kv_type = KV_TYPES_ALL(CACHE_F16)};
static int32_t            prompt[LONGEST];

/* nano with a DFlash drafter of a short context, and all pages of the longest prompt in the tree, without the drafter's. */
static bool open_with_pages(test_case *t, spec_rig *g)
{
    static char path[4096];
    err         e = {0};
    size_t      reused;
    for (int i = 0; i < LONGEST; i++) prompt[i] = i < RIG_PROMPT ? rig_prompt[i] : 280 + i * 37 % 200;
    lane_request r = {.opt = spec_rig_options(SPEC_OFF), .prompt = prompt, .n_prompt = LONGEST};
    snprintf(path, sizeof path, "%s", test_path("models/nano/dflash.gguf"));
    if (!spec_rig_open(t, g, &one_lane, false)) return false;
    if (!CHECK_OK(spec_add_drafter(g->s, &(spec_draft_source){.path = path, .opt.n_ctx = DRAFT_CTX}, &e), e) ||
        !CHECK_OK(spec_lane_begin(g->l[0], &r, &reused, &e), e))
        return false;
    while (spec_lane_pending(g->l[0]) > 1 || g->l[0]->n_text == LONGEST) {
        if (!CHECK_OK(spec_step_alone(g->s, g->l, 1, &e), e)) return false;
        spec_lane_keep(g->l[0], spec_lane_out(g->l[0])->n);
    }
    spec_lane_end(g->l[0]);
    return true;
}

/* Returns how much of the first n tokens of the prompt is there, and the tokens that follow them. */
static int answer(test_case *t, spec_rig *g, int method, int n, int32_t *out)
{
    err          e      = {0};
    size_t       reused = 0;
    lane_request r      = {.opt = spec_rig_options(method), .prompt = prompt, .n_prompt = (size_t)n, .max_new = ANSWER};
    if (!CHECK_OK(spec_lane_begin(g->l[0], &r, &reused, &e), e)) return -1;
    for (int i = 0; i < ANSWER;) {
        spec_lane_limit(g->l[0], ANSWER - i);
        if (!CHECK_OK(spec_step_alone(g->s, g->l, 1, &e), e)) break;
        const spec_out *x = spec_lane_out(g->l[0]);
        for (int k = 0; k < x->n; k++) out[i++] = x->token[k];
        spec_lane_keep(g->l[0], x->n);
    }
    kv_pool_check(g->s->kv);
    spec_lane_end(g->l[0]);
    return (int)reused;
}

/* A drafter's drafts see the first page and the last 40 positions. Where the first page is all that it lacks of a hit of more
 * than 64 tokens, that page is run again, and is not counted as found. The next request finds it. */
TEST(spec_runs_the_first_page_again_for_a_drafter)
{
    static const struct {
        int n, found, then;
    } c[] = {{96, 0, 80}, {97, 64, 96}, {112, 64, 96}, {113, 80, 112}};
    for (size_t i = 0; i < COUNT(c); i++) {
        spec_rig g;
        int32_t  plain[ANSWER], first[ANSWER], second[ANSWER];
        if (open_with_pages(t, &g)) {
            CHECK_INT(answer(t, &g, SPEC_OFF, c[i].n, plain), (c[i].n - 1) / KV_PAGE * KV_PAGE);
            CHECK_INT(answer(t, &g, SPEC_DFLASH, c[i].n, first), c[i].found);
            CHECK_INT(spec_lane_stats(g.l[0])->drafted > 0, true);
            CHECK_INT(answer(t, &g, SPEC_DFLASH, c[i].n, second), c[i].then);
            CHECK(!memcmp(first, plain, sizeof plain) && !memcmp(second, plain, sizeof plain));
        }
        spec_rig_close(&g);
    }
}

static bool (*real_step)(target *t, kv_pool *kv, const step *st, err *e);

/* Steps of no more than a page fail. */
static bool failing_page(target *t, kv_pool *kv, const step *st, err *e)
{
    return st->n_rows == KV_PAGE ? err_set(e, ERR_IO, "no page") : real_step(t, kv, st, e);
}

/* Where the page cannot be run, or steps have too few rows for it, all of the prompt is. */
TEST(spec_goes_on_when_the_first_page_cannot_be_run)
{
    for (int small = 0; small < 2; small++) {
        spec_rig g;
        int32_t  plain[ANSWER], got[ANSWER];
        if (open_with_pages(t, &g)) {
            answer(t, &g, SPEC_OFF, 130, plain);
            real_step = g.m->step;
            int rows  = g.m->max_rows;
            if (small)
                g.m->max_rows = KV_PAGE - 1;
            else
                g.m->step = failing_page;
            CHECK_INT(answer(t, &g, SPEC_DFLASH, 130, got), 0);
            g.m->step     = real_step;
            g.m->max_rows = rows;
            CHECK(!memcmp(got, plain, sizeof plain));
            CHECK_INT(spec_kv_reserved(g.s), 0);
        }
        spec_rig_close(&g);
    }
}
