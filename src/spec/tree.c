#include "spec/tree.h"

#include <assert.h>
#include <math.h>

void tree_start(draft_tree *t, int32_t anchor)
{
    t->n         = 1;
    t->token[0]  = anchor;
    t->parent[0] = -1;
    t->depth[0]  = 0;
}

static int add_tree_row(draft_tree *t, int parent, int32_t token)
{
    int row = t->n++;
    assert(row <= DRAFT_MAX && parent < row);
    t->token[row]  = token;
    t->parent[row] = parent;
    t->depth[row]  = t->depth[parent] + 1;
    return row;
}

void tree_add_chain(draft_tree *t, const int32_t *token, const float *confidence, int n)
{
    for (int i = 0; i < n; i++) {
        int row            = add_tree_row(t, t->n - 1, token[i]);
        t->confidence[row] = confidence ? confidence[i] : 0;
    }
}

void tree_keep(draft_tree *t, const bool *kept)
{
    int to[1 + DRAFT_MAX] = {0}, n = 1;
    for (int i = 1; i < t->n; i++) {
        to[i] = kept[i] ? n : -1;
        if (!kept[i]) continue;
        assert(to[t->parent[i]] >= 0);
        t->token[n]      = t->token[i];
        t->parent[n]     = to[t->parent[i]];
        t->depth[n]      = t->depth[i];
        t->confidence[n] = t->confidence[i];
        n++;
    }
    t->n = n;
}

int tree_child(const draft_tree *t, int row, int32_t token)
{
    for (int i = row + 1; i < t->n; i++)
        if (t->parent[i] == row && t->token[i] == token) return i;
    return -1;
}

int tree_depth(const draft_tree *t)
{
    int deepest = 0;
    for (int i = 1; i < t->n; i++)
        if (t->depth[i] > deepest) deepest = t->depth[i];
    return deepest;
}

bool tree_is_chain(const draft_tree *t)
{
    for (int i = 1; i < t->n; i++)
        if (t->parent[i] != i - 1) return false;
    return true;
}

/* --- best first ---------------------------------------------------------------------------------*/
/* A row that can be added: candidate `rank` of its depth, as a child of `parent`. */
typedef struct {
    double score;
    int    parent, depth, rank;
} branch;

/* Each added row opens at most two branches: its next sibling and its first child. */
enum { MAX_BRANCHES = 2 * DRAFT_MAX + 2 };

typedef struct {
    const token_logprob (*top)[DRAFT_TOP_MAX];
    int    n_depths, n_top;
    branch open[MAX_BRANCHES];
    int    n_open;
} search;

/* Orders branches: better score, then smaller depth, then earlier parent. No two are equal: a (parent, rank) occurs
 * once. */
static bool goes_first(const branch *a, const branch *b)
{
    if (a->score != b->score) return a->score > b->score;
    if (a->depth != b->depth) return a->depth < b->depth;
    return a->parent != b->parent ? a->parent < b->parent : a->rank < b->rank;
}

static void open_branch(search *s, double score_before, int parent, int depth, int rank)
{
    if (depth >= s->n_depths || rank >= s->n_top) return;
    const token_logprob *c = &s->top[depth][rank];
    if (c->id < 0) return;
    assert(s->n_open < MAX_BRANCHES);
    s->open[s->n_open++] = (branch){score_before + (double)c->logprob, parent, depth, rank};
}

static branch take_best_branch(search *s)
{
    int best = 0;
    for (int i = 1; i < s->n_open; i++)
        if (goes_first(&s->open[i], &s->open[best])) best = i;
    branch b      = s->open[best];
    s->open[best] = s->open[--s->n_open];
    return b;
}

/* Adds the likeliest chain, and opens the branches of its siblings. */
static void seed_chain(draft_tree *t, search *s, int budget)
{
    double before = 0;
    for (int d = 0; d < s->n_depths && t->n <= budget && s->top[d][0].id >= 0; d++) {
        int parent = t->n - 1, row = add_tree_row(t, parent, s->top[d][0].id);
        t->confidence[row] = expf(s->top[d][0].logprob);
        open_branch(s, before, parent, d, 1);
        before += (double)s->top[d][0].logprob;
    }
}

void tree_add_best(draft_tree *t, const token_logprob (*top)[DRAFT_TOP_MAX], int n_depths, int n_top, int budget,
                   bool chain_seed)
{
    search s = {.top = top, .n_depths = n_depths, .n_top = n_top};
    assert(t->n == 1 && budget <= DRAFT_MAX);
    if (chain_seed)
        seed_chain(t, &s, budget);
    else
        open_branch(&s, 0, 0, 0, 0);
    while (s.n_open > 0 && t->n <= budget) {
        branch b   = take_best_branch(&s);
        int    row = add_tree_row(t, b.parent, top[b.depth][b.rank].id);

        t->confidence[row] = expf(top[b.depth][b.rank].logprob);
        open_branch(&s, b.score - (double)top[b.depth][b.rank].logprob, b.parent, b.depth, b.rank + 1);
        open_branch(&s, b.score, row, b.depth + 1, 0);
    }
}
