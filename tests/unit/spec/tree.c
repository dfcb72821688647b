#include "spec/tree.h"
#include "test.h"

enum { DEPTHS = 5, RANKS = 4 };

/* Candidates with random shares, best first; with_ties makes many of them equal. */
static void random_top(token_logprob top[][DRAFT_TOP_MAX], uint64_t *rng, bool with_ties)
{
    for (int d = 0; d < DEPTHS; d++) {
        float p = 0;
        for (int r = 0; r < RANKS; r++) {
            p -= with_ties ? (float)(test_rand(rng) % 2) : (float)(test_rand(rng) % 1000) / 300;
            top[d][r] = (token_logprob){(int32_t)(100 * d + r), p};
        }
    }
}

static double score_of(const draft_tree *t, const token_logprob top[][DRAFT_TOP_MAX], int row)
{
    double s = 0;
    for (; row > 0; row = t->parent[row]) s += (double)top[t->depth[row] - 1][t->token[row] % 100].logprob;
    return s;
}

/* The scores of all paths there are, best first. */
static int all_scores(const token_logprob top[][DRAFT_TOP_MAX], double *out)
{
    int n = 0, from = 0;
    for (int d = 0; d < DEPTHS; d++) {
        int to = n;
        for (int i = d ? from : -1; i < (d ? to : 0); i++)
            for (int r = 0; r < RANKS; r++) out[n++] = (d ? out[i] : 0) + (double)top[d][r].logprob;
        from = to;
    }
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && out[k] > out[k - 1]; k--) {
            double x   = out[k];
            out[k]     = out[k - 1];
            out[k - 1] = x;
        }
    return n;
}

static void check_shape(test_case *t, const draft_tree *tree)
{
    for (int i = 1; i < tree->n; i++) {
        CHECK(tree->parent[i] >= 0 && tree->parent[i] < i);
        CHECK_INT(tree->depth[i], tree->depth[tree->parent[i]] + 1);
        CHECK_INT(tree_child(tree, tree->parent[i], tree->token[i]), i); /* no two of a name below one parent */
    }
}

TEST(tree_has_the_best_paths)
{
    static double        all[2000];
    static token_logprob top[DRAFT_MAX][DRAFT_TOP_MAX];
    uint64_t             rng = 7;
    for (int round = 0; round < 60; round++) {
        draft_tree tree;
        random_top(top, &rng, round % 3 == 0);
        all_scores(top, all);
        int budget = 1 + (int)(test_rand(&rng) % DRAFT_MAX);
        tree_start(&tree, 9);
        tree_add_best(&tree, top, DEPTHS, RANKS, budget, false);
        CHECK_INT(tree.n, budget + 1);
        check_shape(t, &tree);
        for (int i = 1; i < tree.n; i++) CHECK_NEAR(score_of(&tree, top, i), all[i - 1], 1e-9); /* in order, too */
    }
}

TEST(tree_with_a_seed_holds_the_chain)
{
    static token_logprob top[DRAFT_MAX][DRAFT_TOP_MAX];
    uint64_t             rng = 8;
    for (int budget = 1; budget <= DRAFT_MAX; budget++) {
        draft_tree tree;
        random_top(top, &rng, false);
        tree_start(&tree, 9);
        tree_add_best(&tree, top, DEPTHS, RANKS, budget, true);
        CHECK_INT(tree.n, budget + 1);
        check_shape(t, &tree);
        for (int i = 1; i < tree.n && i <= DEPTHS; i++) {
            CHECK_INT(tree.parent[i], i - 1);
            CHECK_INT(tree.token[i], 100 * (i - 1));
        }
        CHECK_INT(tree_depth(&tree), budget < DEPTHS ? budget : DEPTHS);
        CHECK(tree_is_chain(&tree) == (budget <= DEPTHS));
    }
}

TEST(tree_ends_with_its_candidates)
{
    static token_logprob top[DRAFT_MAX][DRAFT_TOP_MAX];
    draft_tree           tree;
    uint64_t             rng = 9;
    random_top(top, &rng, false);
    for (int d = 0; d < DEPTHS; d++) top[d][1].id = -1; /* one candidate for each */
    tree_start(&tree, 9);
    tree_add_best(&tree, top, DEPTHS, RANKS, DRAFT_MAX, false);
    CHECK_INT(tree.n, 1 + DEPTHS);
    CHECK(tree_is_chain(&tree));
    top[0][0].id = -1; /* none at all */
    for (int seed = 0; seed < 2; seed++) {
        tree_start(&tree, 9);
        tree_add_best(&tree, top, DEPTHS, RANKS, DRAFT_MAX, seed);
        CHECK_INT(tree.n, 1);
        CHECK_INT(tree_child(&tree, 0, 0), -1);
    }
}

TEST(tree_of_a_chain)
{
    draft_tree tree;
    tree_start(&tree, 1);
    CHECK_INT(tree_depth(&tree), 0);
    tree_add_chain(&tree, (int32_t[]){5, 5, 6}, NULL, 3);
    CHECK(tree_is_chain(&tree));
    CHECK_INT(tree_depth(&tree), 3);
    CHECK_INT(tree_child(&tree, 0, 5), 1);
    CHECK_INT(tree_child(&tree, 1, 5), 2); /* the same token again is another row */
    CHECK_INT(tree_child(&tree, 1, 6), -1);
}
