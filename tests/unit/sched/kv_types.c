/* The engine with types of K and V: what it reports and refuses, and that the text depends on the types alone. */
#include "engine_rig.h"

#include "base/num.h"
#include "sched/inside.h"

#include <string.h>

static const char *const types[] = {"k=q8_0,v=q4_0", "q8_0", "q4_0", "tq3", "f16/tq3"};

static bool open_types(test_case *t, tandem **e, const char *all, int step_tokens)
{
    tandem_options o;
    nano_options(&o);
    o.kv_type = o.kv_sliding = o.kv_draft = all;
    o.step_tokens                         = step_tokens;
    o.max_lanes                           = 4;
    return nano_open(t, e, &o);
}

TEST(sched_reports_the_types_of_k_and_v)
{
    tandem_options o;
    tandem        *e;
    tandem_info    i;
    nano_options(&o);
    o.kv_type = "k=q8_0,v=q4_0";
    if (!nano_open(t, &e, &o)) return;
    tandem_get_info(e, &i);
    CHECK_STR(str_of(i.kv_type), STR("q8_0/q4_0"));
    CHECK_STR(str_of(i.kv_sliding), STR("f16"));
    CHECK_STR(str_of(i.kv_draft), STR("f16"));
    /* Two full layers with one head of 128: q8_0 and q4_0 in the first, q8_0 in the one that assistants read. Six
     * sliding layers with two heads of 64 as f16. */
    CHECK_INT(i.kv_bytes_per_token_full, 136 + 72 + 2 * 136);
    CHECK_INT(i.kv_bytes_per_token, 136 + 72 + 2 * 136 + 6 * 2 * 256);
    tandem_close(e);
}

/* Summaries of keys take 4 bytes per channel and page of a full layer: 32 bytes per token in a head of 128. */
TEST(sched_counts_the_summaries_of_sparse_attention)
{
    tandem_options o;
    tandem        *e;
    tandem_info    dense, sparse;
    nano_options(&o);
    o.kv_type = "q8_0";
    o.n_ctx   = 4096; /* in a small pool the summaries fit into the rest of the slabs */
    if (!nano_open(t, &e, &o)) return;
    tandem_get_info(e, &dense);
    tandem_close(e);
    o.sparse_fa = "0.01";
    if (!nano_open(t, &e, &o)) return;
    tandem_get_info(e, &sparse);
    CHECK_INT(sparse.kv_bytes_per_token_full, dense.kv_bytes_per_token_full + 2 * 32);
    CHECK_INT(sparse.kv_bytes_per_token, dense.kv_bytes_per_token + 2 * 32);
    CHECK(sparse.kv_bytes > dense.kv_bytes);
    tandem_close(e);
}

TEST(sched_settings_replace_the_types_of_the_options)
{
    tandem_options o;
    tandem        *e;
    tandem_info    i;
    char           first[ENGINE_FINGERPRINT_MAX] = "";
    for (int set = 0; set < 2; set++) {
        nano_options(&o);
        o.kv_type    = "q4_0";
        o.kv_sliding = "q8_0";
        if (set) nano_setting(&o, "kv_sliding", "k=q4_0,v=tq3");
        if (!nano_open(t, &e, &o)) return;
        tandem_get_info(e, &i);
        CHECK_STR(str_of(i.kv_type), STR("q4_0"));
        CHECK_STR(str_of(i.kv_sliding), set ? STR("q4_0/tq3") : STR("q8_0"));
        if (set) CHECK(strcmp(first, e->fingerprint) != 0); /* other types, other numbers */
        memcpy(first, e->fingerprint, sizeof first);
        tandem_close(e);
    }
}

TEST(sched_refuses_types_that_it_does_not_know)
{
    tandem_options o;
    tandem_error   why = {0};
    tandem        *e;
    nano_options(&o);
    o.kv_draft = "q5";
    CHECK_FAILS(tandem_open(&e, &o, &why), why, "kv_draft: a K/V type must be f32, f16, q8_0, q4_0 or tq3");
    nano_options(&o);
    nano_setting(&o, "kv_type", "k=q8_0,v=");
    CHECK_FAILS(tandem_open(&e, &o, &why), why, "kv_type: a K/V type must be");
    CHECK(!e);
}

/* A pool for the same context is smaller by the bytes of the types. */
TEST(sched_reserves_the_bytes_of_the_types)
{
    uint64_t per_token[3], pool[3];
    for (int i = 0; i < 3; i++) {
        static const char *const all[] = {"f16", "q8_0", "tq3"};
        tandem                  *e;
        tandem_info              info;
        tandem_options           o;
        nano_options(&o);
        o.kv_type = o.kv_sliding = o.kv_draft = all[i];
        o.n_ctx                               = 8192;
        if (!nano_open(t, &e, &o)) return;
        tandem_get_info(e, &info);
        per_token[i] = info.kv_bytes_per_token;
        pool[i]      = info.kv_bytes;
        tandem_close(e);
    }
    for (int i = 1; i < 3; i++)
        CHECK_NEAR((double)pool[i] / (double)pool[0], (double)per_token[i] / (double)per_token[0], 0.08);
    CHECK(per_token[1] * 160 == per_token[0] * 85);
}

/* Every method, whole prompts and chunks of 16, with and without a prefix hit: one text per pair of types. */
TEST_LONG(sched_text_is_the_same_with_every_type)
{
    static const tandem_method method[] = {TANDEM_SPEC_OFF, TANDEM_SPEC_DFLASH, TANDEM_SPEC_TREE,
                                           TANDEM_SPEC_MTP, TANDEM_SPEC_NGRAM,  TANDEM_SPEC_AUTO};
    static nano_answer         plain[2], got; /* greedy, and sampled */
    for (size_t k = 0; k < COUNT(types); k += test_full() ? 1 : 3)
        for (int rows = 16; rows <= 256; rows += 240) {
            tandem        *e;
            tandem_request r;
            if (!open_types(t, &e, types[k], rows)) return;
            for (size_t m = 0; m < COUNT(method); m++)
                for (int warm = 0; warm < 2; warm++) {
                    nano_request(e, &r, 40);
                    r.temp        = warm ? 0.8f : 0; /* the second finds the prompt in the prefix cache */
                    r.has_seed    = true;
                    r.seed        = 5;
                    r.spec.method = method[m];
                    nano_ask(t, e, &r, &got);
                    if (m == 0 && rows == 16) plain[warm] = got;
                    nano_same(t, &got, &plain[warm]);
                }
            nano_check_idle(t, e);
            tandem_close(e);
        }
}
