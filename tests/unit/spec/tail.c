/* The end of a chain: tails of the text itself, and rows that are not worth their cost. */
#include "spec/spec_rig.h"

/* A text that repeats itself, so that drafts end where the text has been before. */
static void run_text(test_case *t, spec_lane *l, int method, int tail, int32_t *out, int n)
{
    err          e = {0};
    int32_t      prompt[5 * RIG_PROMPT];
    lane_options opt = spec_rig_options(method);
    size_t       reused;
    opt.spec.draft_tail = tail;
    for (int i = 0; i < 5 * RIG_PROMPT; i++) prompt[i] = rig_prompt[i % RIG_PROMPT];
    if (!CHECK_OK(
            spec_lane_begin(l, &(lane_request){.opt = opt, .prompt = prompt, .n_prompt = 5 * RIG_PROMPT}, &reused, &e),
            e))
        return;
    for (int at = 0; at < n;) {
        if (!CHECK_OK(spec_step_alone(l->s, &l, 1, &e), e)) return;
        const spec_out *o = spec_lane_out(l);
        int             k = min_int(o->n, n - at);
        memcpy(out + at, o->token, (size_t)k * sizeof *out);
        at += k;
        spec_lane_keep(l, k);
    }
}

TEST(spec_tail_follows_a_draft)
{
    enum { N = 60 };
    static const int methods[] = {SPEC_DFLASH, SPEC_MTP, SPEC_AUTO};
    spec_rig         g;
    spec_options     o = {.n_ctx = 512, .max_lanes = 1, .kv_type = KV_TYPES_ALL(CACHE_F16)};
    int32_t          plain[N], got[N];
    if (spec_rig_open(t, &g, &o, true)) {
        run_text(t, g.l[0], SPEC_OFF, 0, plain, N);
        for (size_t i = 0; i < COUNT(methods); i++)
            for (int tail = 0; tail <= 50; tail += 10) {
                run_text(t, g.l[0], methods[i], tail, got, N);
                CHECK_MSG(!memcmp(plain, got, sizeof got), "method %d with a tail of %d: another text", methods[i],
                          tail);
                const tandem_spec_counts *c = spec_lane_stats(g.l[0]);
                int64_t                   n = c->drafted_by_method[SPEC_NGRAM];
                if (methods[i] != SPEC_AUTO) CHECK_INT(n > 0, tail > 0);
                CHECK(c->accepted_by_method[SPEC_NGRAM] <= n);
                int64_t drafted = 0;
                for (int m = 0; m < SPEC_METHODS; m++) drafted += c->drafted_by_method[m];
                CHECK_INT(drafted, c->drafted);
            }
    }
    spec_rig_close(&g);
}

/* Steps that cost `row` more with each row. */
static void price_rows(cost_table *c, double row)
{
    *c = (cost_table){0};
    for (int pass = 0; pass < 8; pass++)
        for (int n = 1; n <= 20; n++) cost_note_step(c, n, 100, 0.01 * (1 + row * n));
    for (int pass = 0; pass < 8; pass++)
        for (int n = 2; n <= 20; n++) cost_note_draft(c, SPEC_DFLASH, 1, n, 0.001);
}

static int rows_kept(spec_lane *l, int n_draft, int n_tail, float confidence, double row)
{
    int32_t token[DRAFT_MAX] = {0};
    price_rows(&l->s->cost, row);
    tree_start(&l->tree, 5);
    tree_add_chain(&l->tree, token, n_draft + n_tail);
    l->plan      = (spec_plan){.method = SPEC_DFLASH, .n = n_draft};
    l->n_drafted = n_draft;
    l->n_tail = l->max_tail = n_tail;
    l->later                = false;
    for (int i = 0; i < n_draft; i++) l->job.confidence[i] = i < 3 ? 0.95f : confidence;
    lane_end_chain(l);
    return l->tree.n - 1;
}

TEST(spec_chain_ends_where_it_does_not_pay)
{
    spec_rig     g;
    spec_options o = {.n_ctx = 512, .max_lanes = 1, .kv_type = KV_TYPES_ALL(CACHE_F16)};
    if (spec_rig_open(t, &g, &o, true)) {
        int32_t    some[1];
        spec_lane *l = g.l[0];
        run_text(t, l, SPEC_AUTO, 0, some, 1);
        drafter *d   = g.s->slots[DRAFTER_DFLASH].d;
        d->confident = true;
        CHECK_INT(rows_kept(l, 12, 0, 0.05f, 0.2), 3);    /* rows are dear, and the fourth is doubtful */
        CHECK_INT(rows_kept(l, 12, 0, 0.95f, 0.001), 12); /* rows are cheap, and all are likely */
        CHECK_INT(rows_kept(l, 12, 0, 0, 0.001), 3);      /* nothing is expected of the fourth */
        int all = rows_kept(l, 6, 8, 0.95f, 1e-5);
        CHECK_INT(all, 14);                           /* the tail, too */
        CHECK_INT(rows_kept(l, 6, 8, 0.01f, 0.1), 3); /* never reached */
        CHECK_INT(l->n_tail, 0);
        CHECK_INT(l->n_drafted, 3);
        l->opt.spec.method = SPEC_DFLASH; /* as the request asked */
        CHECK_INT(rows_kept(l, 12, 0, 0, 0.2), 12);
        l->opt.spec.method = SPEC_AUTO;
        d->confident       = false;
        CHECK_INT(rows_kept(l, 12, 0, 0, 0.2), 12); /* the plan knew all that */
    }
    spec_rig_close(&g);
}
