/* spec/tree.h - the draft tokens of a round as a tree: row 0 is the anchor, parents come before their children.
 *
 * A chain is a tree of width one. A best-first tree takes independent candidates for each position, scores a path by
 * the sum of its log-probabilities, and extends the best paths until the budget is spent:
 *
 *      anchor - the - cat - sat          position 1: the a       2: cat dog       3: sat
 *             \      \ dog
 *              a
 */
#ifndef TANDEM_SPEC_TREE_H
#define TANDEM_SPEC_TREE_H
#include "model/drafter.h"

typedef struct {
    int     n; /* number of rows, including the anchor */
    int32_t token[1 + DRAFT_MAX];
    int     parent[1 + DRAFT_MAX]; /* -1 for the anchor */
    int     depth[1 + DRAFT_MAX];
    float
        confidence[1 + DRAFT_MAX]; /* as draft_job.confidence; set by tree_add_best, and for rows of chains if known */
} draft_tree;

void tree_start(draft_tree *t, int32_t anchor); /* sets *t to a tree of the anchor alone */
/* Adds n tokens in a row after the last row. A tree has at most DRAFT_MAX rows in addition to the anchor. confidence:
 * of the tokens; NULL: not known. */
void tree_add_chain(draft_tree *t, const int32_t *token, const float *confidence, int n);
/* Adds up to `budget` rows (at most DRAFT_MAX) to a tree of the anchor alone, best path first. top[d] holds up to n_top
 * candidates for depth d + 1, best first; id -1 ends them. With chain_seed the best candidate of every depth is added
 * first, so that the tree contains the chain. */
void tree_add_best(draft_tree *t, const token_logprob (*top)[DRAFT_TOP_MAX], int n_depths, int n_top, int budget,
                   bool chain_seed);
/* Removes the rows whose `kept` is false. A row that is kept has a parent that is kept; kept[0] is not read. */
void tree_keep(draft_tree *t, const bool *kept);
int  tree_child(const draft_tree *t, int row, int32_t token); /* -1: no such child */
int  tree_depth(const draft_tree *t);                         /* depth of the deepest row */
bool tree_is_chain(const draft_tree *t);
#endif
