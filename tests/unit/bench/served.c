/* What `tandem bench serve` does: an engine whose drafters an oracle corrects, which learns the responses. */
#include "../sched/engine_rig.h"
#include "bench/oracle.h"
#include "bench/shape.h"
#include "sched/engine.h"
#include "spec/spec.h"

#include <assert.h>

enum { OUT = 48 };

static void learn(void *ctx, const tandem_job *j)
{
    tok_ids text;
    int32_t n_prompt;
    tok_ids_init(&text, 1 << 16);
    engine_job_text(j, &text, &n_prompt);
    assert(n_prompt == NANO_PROMPT);
    oracle_learn(ctx, text.p, text.n);
    tok_ids_deinit(&text);
}

TEST(bench_serve_learns_responses)
{
    tandem_options o;
    tandem        *x;
    tandem_request r;
    nano_answer    plain, drafted;
    err            e    = {0};
    oracle        *know = oracle_new(1);
    engine_extra   more = {.watch = {.wrap = oracle_wrap, .ended = learn, .ctx = know}};
    nano_options(&o);
    if (CHECK_OK(engine_open(&x, &o, &more, &e), e)) {
        nano_request(x, &r, OUT);
        r.spec.method = TANDEM_SPEC_OFF;
        nano_ask(t, x, &r, &plain);
        CHECK_OK(oracle_accept(know, 12, &e), e);
        for (int m = TANDEM_SPEC_DFLASH; m <= TANDEM_SPEC_MTP; m += TANDEM_SPEC_MTP - TANDEM_SPEC_DFLASH) {
            r.spec = (tandem_speculation){.method = (tandem_method)m, .draft_max = 3};
            nano_ask(t, x, &r, &drafted);
            nano_same(t, &plain, &drafted);
            const tandem_spec_counts *c = &drafted.result.usage.spec;
            CHECK_MSG(c->drafted > 20 && c->accepted * 10 > c->drafted * 7, "method %d: %lld of %lld accepted", m,
                      (long long)c->accepted, (long long)c->drafted);
        }
        tandem_close(x);
    }
    oracle_free(know);
}

static int shape_number(const char *name)
{
    int i = 0;
    while (strcmp(shape_names[i], name) != 0) i++;
    return i;
}

TEST(shape_assistant_drafts_for_its_target)
{
    err               e     = {0};
    shape_image       model = {0}, draft = {0};
    target           *m  = NULL;
    spec             *s  = NULL;
    checkpoint       *cp = NULL;
    shape_spec        of = {.shape = shape_number("mini"), .n_layers = 3, .seed = 1};
    model_options     mo = {.device = "cpu", .n_threads = 1};
    spec_options      so = {.n_ctx = 64, .max_lanes = 1, .kv_type = KV_TYPES_ALL(CACHE_F16)};
    spec_draft_source src;
    if (CHECK_OK(shape_target(&model, &of, &e), e) && CHECK_OK(shape_assistant(&draft, &of, &e), e) &&
        CHECK_OK(checkpoint_open_bytes(&cp, model.name, model.bytes, &e), e) &&
        CHECK_OK(model_open(&m, cp, &mo, &e), e) && CHECK_OK(spec_new(&s, m, &so, &e), e)) {
        src = (spec_draft_source){.name = draft.name, .image = draft.bytes, .method = SPEC_MTP};
        CHECK_OK(spec_add_drafter(s, &src, &e), e);
        CHECK(spec_has_drafter(s, SPEC_MTP));
    }
    checkpoint_close(cp);
    spec_free(s);
    model_close(m);
    shape_free(&model);
    shape_free(&draft);
    of.shape = shape_number("27b");
    CHECK_FAILS(shape_assistant(&draft, &of, &e), e, "27b has no assistant");
}
