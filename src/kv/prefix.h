/* kv/prefix.h - the prefix cache: a tree over tokens that keeps computed pages and states for all lanes.
 *
 * A node is one full page of KV_PAGE tokens that follows its parent. It refers to at most one page of each class, and
 * to a state of each state class that covers the text up to the node's end. Any of them may be missing except the
 * page of the anchor class, the first class of group 0 that kv_pool treats as without a window. Tokens are compared; a
 * hash never decides alone. Texts of different salts (tenants) share nothing. A pointer to a node is valid while a
 * sequence refers to its anchor page, and otherwise until the next page is taken from the pool.
 *
 *      salt -> [The quick ..] -> [fox jumps ..] -> [over ..]           full:    p0  p1  p2
 *                                              \-> [past ..]           sliding: --  P1  P2       --: evicted
 *
 * Pages that only the tree refers to are idle. They are evicted when the pool needs room and merging slabs does not
 * give it: those that have been idle longest first, and those that kv_prefix_keep marked after all others. Evicting an
 * anchor page removes its node and all nodes below it. Sequences release their pages from the end, so this is rarely
 * more than one node.
 *
 * Invariants, asserted by kv_pool_check in addition to those of kv/pages.h:
 *  (5) a page belongs to at most one node, and knows it. A node has its anchor page, follows its parent, and is in its
 *      parent's list of children and in its hash bucket;
 *  (6) the idle lists contain exactly the idle pages, oldest first. If the anchor page of a node is marked, so is that
 *      of its parent.
 *
 * Nothing is allocated after kv_prefix_new. The engine thread is the only caller. */
#ifndef TANDEM_KV_PREFIX_H
#define TANDEM_KV_PREFIX_H
#include "kv/pages.h"

typedef struct kv_prefix kv_prefix;
typedef struct kv_node   kv_node;

/* Creates a tree and installs it as the pool's evictor; a pool has at most one. Sets *out to NULL on failure. Free the
 * tree before the pool. kv_prefix_free accepts NULL. Sequences keep the pages that they refer to. */
bool kv_prefix_new(kv_prefix **out, kv_pool *p, err *e);
void kv_prefix_free(kv_prefix *t);

/* Pages that a hit at n_pos needs in an added class: its first head_pages pages, and the pages of positions
 * first(ctx, n_pos) .. n_pos - 1. */
typedef struct {
    int cls, head_pages;
    int32_t (*first)(const void *ctx, int32_t n_pos);
    const void *ctx;
} kv_wish;

/* Returns the length in tokens of the longest prefix of text[0 .. n - 2] for which the tree has everything that the
 * next row sees: pages of all classes of group 0, all wishes, and a state of each state class at exactly that length.
 * It is a multiple of KV_PAGE, and at least one token is left to run. Sets *at to the last node, NULL for length 0.
 * Counts a hit or a miss. */
int32_t kv_prefix_find(kv_prefix *t, uint64_t salt, const int32_t *text, int32_t n, const kv_wish *w, int n_wishes,
                       kv_node **at);
/* Returns the same length as kv_prefix_find, and counts nothing. */
int32_t kv_prefix_reach(const kv_prefix *t, uint64_t salt, const int32_t *text, int32_t n, const kv_wish *w,
                        int n_wishes);
/* Returns the same length without wishes, and whether or not there are states. Counts nothing. */
int32_t kv_prefix_reach_pages(const kv_prefix *t, uint64_t salt, const int32_t *text, int32_t n);
/* Gives an empty sequence of group 0 the pages of the prefix that ends with `at`, as far as its next row sees them. The
 * tree must have them, as after kv_prefix_find. Does nothing if `at` is NULL, like kv_prefix_take_class. */
void kv_prefix_take(kv_prefix *t, kv_node *at, kv_seq *s);
/* Gives an empty sequence of an added class the pages 0 .. head_pages - 1 of the prefix, then those from position
 * `from` on. `from` is a multiple of KV_PAGE, from head_pages * KV_PAGE to the end of `at`. The tree must have all
 * these pages. */
void kv_prefix_take_class(kv_prefix *t, kv_node *at, kv_seq *s, int head_pages, int32_t from);
/* Adds the page that follows `at` (NULL: the first page) and has these KV_PAGE tokens. It is page page_index of s, a
 * full one, in every class of the group of s where s has not released it. Where the tree has the page already, s gets
 * the tree's page instead of its own: both are equal bit by bit (promise 1). Returns the node. Returns NULL only for a
 * sequence of an added class, when the target has not added the node. */
kv_node *kv_prefix_put(kv_prefix *t, uint64_t salt, kv_node *at, const int32_t *tokens, kv_seq *s, int page_index);
/* Returns the node that follows `at` (NULL: the first page) and has these tokens, or NULL. Its pages may be idle:
 * then the pointer is valid only until the next page is taken from the pool. */
kv_node *kv_prefix_next(const kv_prefix *t, uint64_t salt, const kv_node *at, const int32_t *tokens);
kv_node *kv_node_parent(kv_node *n);             /* NULL: it is a first page */
bool     kv_node_has(const kv_node *n, int cls); /* whether it has a page of this class */
int32_t  kv_node_end(const kv_node *n);          /* length in tokens of the text up to its end */
/* Marks the end of a prompt or of a response, where later requests are likely to continue. The pages and states of the
 * target that a hit there needs are evicted last. Does nothing if n is NULL. */
void kv_prefix_keep(kv_prefix *t, kv_node *n);
void kv_prefix_forget(kv_prefix *t); /* removes all idle pages; does not count them as evicted */

typedef struct {
    size_t  nodes, pages, bytes;      /* in the tree, idle or not; states count as pages */
    int64_t hits, misses, hit_tokens; /* counted by kv_prefix_find */
    int64_t evicted;                  /* pages that were removed to make room */
} kv_prefix_stats;
kv_prefix_stats kv_prefix_get_stats(const kv_prefix *t);
#endif
