/* Tails of the text itself after a chain. */
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
