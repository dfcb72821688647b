/* Rows for draft tokens by the drafters' confidence: which tokens of which lanes get them, and what is learned. */
#include "spec/spec_rig.h"

static double uniform(uint64_t *seed) { return (double)(test_rand(seed) >> 11) * 0x1p-53; }

/* --- calibration ----------------------------------------------------------------------------------*/
TEST(confidence_is_believed_at_first)
{
    calibration c = {0};
    for (int d = 0; d < 20; d++)
        for (double p = 0; p <= 1; p += 0.125) CHECK_NEAR(calibration_rate(&c, d, p), p, 1e-12);
}

/* A drafter that is too sure of itself, and more so the further it goes. */
TEST(confidence_is_corrected_by_what_happened)
{
    calibration c    = {0};
    uint64_t    seed = 3;
    for (int i = 0; i < 40000; i++) {
        int    d = (int)(test_rand(&seed) % 12);
        double p = uniform(&seed), really = p * (1 - 0.05 * d);
        calibration_note(&c, d, p, uniform(&seed) < really);
    }
    for (int d = 0; d < 12; d++)
        for (double p = 0.05; p < 1; p += 0.15) {
            double got = calibration_rate(&c, d, p), want = p * (1 - 0.05 * d);
            CHECK_MSG(fabs(got - want) < 0.13, "depth %d, confidence %.2f: %.3f, really %.3f", d, p, got, want);
        }
    CHECK(calibration_rate(&c, 0, 0.99) > calibration_rate(&c, 11, 0.99) + 0.2);
}

TEST(confidence_follows_a_change)
{
    calibration c = {0};
    for (int i = 0; i < 5000; i++) calibration_note(&c, 1, 0.9, true);
    CHECK(calibration_rate(&c, 1, 0.9) > 0.99);
    for (int i = 0; i < 1500; i++) calibration_note(&c, 1, 0.9, false);
    CHECK(calibration_rate(&c, 1, 0.9) < 0.15);
}

/* --- rows -----------------------------------------------------------------------------------------*/
/* Steps that cost `row` more with each row. */
static void price_rows(cost_table *c, double row)
{
    *c = (cost_table){0};
    for (int pass = 0; pass < 8; pass++)
        for (int n = 1; n <= 120; n++) cost_note_step(c, n, 100, 0.01 * (1 + row * n));
}

/* A lane with a draft of these confidences. */
static void give_draft(spec_lane *l, int n, const float *confidence, double rate)
{
    int32_t token[DRAFT_MAX] = {0};
    tree_start(&l->tree, 5);
    tree_add_chain(&l->tree, token, confidence, n);
    l->opt.spec.method = SPEC_AUTO;
    l->plan            = (spec_plan){.method = SPEC_DFLASH, .n = n, .rate = rate};
    l->n_drafted = l->n_grown = l->n_made = n;
    l->n_tail                             = 0;
    l->n_chunk                            = 1;
    l->n_text                             = 100;
    l->later                              = false;
}

static bool open_rig(test_case *t, spec_rig *g)
{
    return spec_rig_open(t, g, &(spec_options){.n_ctx = 512, .max_lanes = 3, .kv_type = KV_TYPES_ALL(CACHE_F16)}, true);
}

TEST(rows_go_to_the_likeliest_tokens)
{
    static const float sure[]     = {0.99f, 0.99f, 0.98f, 0.97f, 0.99f, 0.98f};
    static const float doubtful[] = {0.97f, 0.5f, 0.5f, 0.5f};
    static const float lost[]     = {0.1f, 0.9f};
    spec_rig           g;
    if (open_rig(t, &g)) {
        spec_lane **l = g.l;
        price_rows(&g.s->cost, 0.1); /* a step of three rows takes 13 ms, a row more one ms */
        give_draft(l[0], 6, sure, 600);
        give_draft(l[1], 4, doubtful, 600);
        give_draft(l[2], 2, lost, 600); /* a row is worth 0.6 tokens */
        give_rows(g.s, l, 3);
        CHECK_INT(l[0]->tree.n - 1, 6);
        CHECK_INT(l[1]->tree.n - 1, 1); /* the second has 0.97 * 0.5 */
        CHECK_INT(l[2]->tree.n - 1, 0);
        CHECK_INT(l[1]->n_drafted, 1);
        CHECK_INT(l[1]->n_made, 4);

        price_rows(&g.s->cost, 0.01); /* a row is worth 0.06 tokens */
        give_draft(l[0], 6, sure, 600);
        give_draft(l[1], 4, doubtful, 600);
        give_draft(l[2], 2, lost, 600);
        give_rows(g.s, l, 3);
        CHECK(l[0]->tree.n - 1 == 6 && l[1]->tree.n - 1 == 4 && l[2]->tree.n - 1 == 2);
    }
    spec_rig_close(&g);
}

/* The sum of what rows bring, less what they cost, is the largest of all ways to give them; checked by brute force. */
TEST(rows_are_worth_their_cost)
{
    spec_rig g;
    uint64_t seed = 5;
    if (open_rig(t, &g))
        for (int i = 0; i < 300; i++) {
            float  p[2][6], rate = (float)(100 + 900 * uniform(&seed)), row = (float)(0.15 * uniform(&seed));
            int    n[2];
            double best = -1, got = 0;
            price_rows(&g.s->cost, (double)row);
            for (int k = 0; k < 2; k++) {
                n[k] = 1 + (int)(test_rand(&seed) % 6);
                for (int d = 0; d < n[k]; d++) p[k][d] = (float)sqrt(uniform(&seed));
                give_draft(g.l[k], n[k], p[k], (double)rate);
            }
            give_rows(g.s, g.l, 2);
            for (int a = 0; a <= n[0]; a++)
                for (int b = 0; b <= n[1]; b++) {
                    double tokens = 0, all = 1;
                    for (int d = 0; d < a; d++) tokens += all *= (double)p[0][d];
                    all = 1;
                    for (int d = 0; d < b; d++) tokens += all *= (double)p[1][d];
                    double worth = tokens - (double)rate * 0.01 * (double)row * (a + b);
                    if (worth > best) best = worth;
                    if (a == g.l[0]->tree.n - 1 && b == g.l[1]->tree.n - 1) got = worth;
                }
            CHECK_MSG(got > best - 0.02, "case %d: %.4f, the best is %.4f", i, got, best);
        }
    spec_rig_close(&g);
}

/* Branches of a tree compete with chains of other lanes, and none is left without its parent. */
TEST(rows_of_trees_and_chains_are_shared)
{
    static const token_logprob top[3][DRAFT_TOP_MAX] = {
        {{1, -0.05f}, {2, -3}}, {{3, -0.1f}, {4, -2.4f}}, {{5, -0.2f}, {6, -2}}};
    static const float sure[] = {0.99f, 0.98f};
    spec_rig           g;
    if (open_rig(t, &g)) {
        spec_lane *a = g.l[0], *b = g.l[1];
        for (double row = 1e-5; row < 0.3; row *= 2) {
            price_rows(&g.s->cost, row);
            give_draft(a, 0, NULL, 600);
            tree_add_best(&a->tree, top, 3, 2, 14, true);
            a->plan.method = SPEC_TREE;
            a->plan.n = a->n_grown = a->tree.n - 1;
            give_draft(b, 2, sure, 600);
            give_rows(g.s, g.l, 2);
            for (int i = 1; i < a->tree.n; i++) {
                int parent = a->tree.parent[i];
                CHECK(parent >= 0 && parent < i && a->tree.depth[i] == a->tree.depth[parent] + 1);
            }
            if (row < 2e-5) CHECK(a->tree.n - 1 == 14 && b->tree.n - 1 == 2);
            if (a->tree.n > 1) CHECK_INT(a->tree.token[1], 1); /* the likeliest first */
        }
        CHECK(a->tree.n - 1 < 4);
    }
    spec_rig_close(&g);
}

/* Requests that name a method, trials and drafts of which nothing is known keep their rows; they make those of others
 * no cheaper. */
TEST(rows_that_are_not_shared_stay)
{
    static const float doubtful[] = {0.2f, 0.2f, 0.2f, 0.2f};
    spec_rig           g;
    if (open_rig(t, &g)) {
        spec_lane **l = g.l;
        price_rows(&g.s->cost, 0.1);
        for (int i = 0; i < 3; i++) give_draft(l[i], 4, doubtful, 600);
        l[0]->opt.spec.method = SPEC_DFLASH;
        l[1]->plan.trial      = true;
        give_rows(g.s, l, 3);
        CHECK(l[0]->tree.n - 1 == 4 && l[1]->tree.n - 1 == 4 && l[2]->tree.n - 1 == 0);
        give_draft(l[2], 4, doubtful, 0); /* no rate: nothing was measured yet */
        give_rows(g.s, &l[2], 1);
        CHECK_INT(l[2]->tree.n - 1, 4);
    }
    spec_rig_close(&g);
}

/* In steps with more rows than the cost model has, too. */
TEST(rows_beside_a_long_prompt)
{
    static const float sure[] = {0.99f, 0.99f, 0.1f};
    spec_rig           g;
    if (open_rig(t, &g)) {
        price_rows(&g.s->cost, 0.02);
        give_draft(g.l[0], 3, sure, 600);
        give_draft(g.l[1], 0, NULL, 0);
        g.l[1]->plan    = (spec_plan){0};
        g.l[1]->n_chunk = 2000;
        give_rows(g.s, g.l, 2);
        CHECK_INT(g.l[0]->tree.n - 1, 2);
    }
    spec_rig_close(&g);
}
