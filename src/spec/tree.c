#include "spec/tree.h"

#include <assert.h>

void tree_start(draft_tree *t, int32_t anchor)
{
    t->n         = 1;
    t->token[0]  = anchor;
    t->parent[0] = -1;
    t->depth[0]  = 0;
}

static int add(draft_tree *t, int parent, int32_t token)
{
    int row = t->n++;
    assert(row <= DRAFT_MAX && parent < row);
    t->token[row]  = token;
    t->parent[row] = parent;
    t->depth[row]  = t->depth[parent] + 1;
    return row;
}

void tree_add_chain(draft_tree *t, const int32_t *token, int n)
{
    for (int i = 0; i < n; i++) add(t, t->n - 1, token[i]);
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
/* A row that could be added: candidate `rank` of its depth, below `parent`. */
typedef struct {
    double score;
    int    parent, depth, rank;
} branch;

/* Each row that is added offers at most a sibling and a child, so this is all there can be. */
enum { MAX_BRANCHES = 2 * DRAFT_MAX + 2 };

typedef struct {
    const token_logprob (*top)[DRAFT_TOP_MAX];
    int    n_depths, n_top;
    branch open[MAX_BRANCHES];
    int    n_open;
} search;

/* The better score; then the shallower row, the earlier parent. Never equal: a (parent, rank) is offered once. */
static bool goes_first(const branch *a, const branch *b)
{
    if (a->score != b->score) return a->score > b->score;
    if (a->depth != b->depth) return a->depth < b->depth;
    return a->parent != b->parent ? a->parent < b->parent : a->rank < b->rank;
}

static void offer(search *s, double score_before, int parent, int depth, int rank)
{
    if (depth >= s->n_depths || rank >= s->n_top) return;
    const token_logprob *c = &s->top[depth][rank];
    if (c->id < 0) return;
    assert(s->n_open < MAX_BRANCHES);
    s->open[s->n_open++] = (branch){score_before + (double)c->logprob, parent, depth, rank};
}

static branch take_best(search *s)
{
    int best = 0;
    for (int i = 1; i < s->n_open; i++)
        if (goes_first(&s->open[i], &s->open[best])) best = i;
    branch b      = s->open[best];
    s->open[best] = s->open[--s->n_open];
    return b;
}

/* The likeliest chain, with its siblings on offer. */
static void seed_chain(draft_tree *t, search *s, int budget)
{
    double before = 0;
    for (int d = 0; d < s->n_depths && t->n <= budget && s->top[d][0].id >= 0; d++) {
        int parent = t->n - 1;
        add(t, parent, s->top[d][0].id);
        offer(s, before, parent, d, 1);
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
        offer(&s, 0, 0, 0, 0);
    while (s.n_open > 0 && t->n <= budget) {
        branch b   = take_best(&s);
        int    row = add(t, b.parent, top[b.depth][b.rank].id);
        offer(&s, b.score - (double)top[b.depth][b.rank].logprob, b.parent, b.depth, b.rank + 1);
        offer(&s, b.score, row, b.depth + 1, 0);
    }
}
