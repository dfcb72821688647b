/* kv/prefix.h - what was computed before and may be needed again: a tree over tokens, shared by all lanes.
 *
 * A node is one full page of KV_PAGE tokens behind its parent. It names at most one page of each class; any of them may be
 * missing but that of the anchor, the first class of group 0 without a window. Its tokens are compared, a hash never decides
 * alone. Texts of different salts (tenants) have nothing in common. A pointer to a node is good while a sequence names
 * its page of the anchor class.
 *
 *      salt -> [The quick ..] -> [fox jumps ..] -> [over ..]           full:    p0  p1  p2
 *                                              \-> [past ..]           sliding: --  P1  P2       --: evicted
 *
 * Pages that only the tree names are idle: they are evicted when the pool needs room, those that have been idle longest
 * first, and those that kv_prefix_keep marked after all others. With a page of the anchor class goes its node, and all that
 * follow it; since a sequence lets go of its pages from the end, that is seldom more than the node.
 *
 * Invariants, asserted by kv_pool_check beside those of kv/pages.h:
 *  (5) a page is named by one node at most, and knows it; a node has its page of the anchor class; it lies behind its parent,
 *      in its parent's list and in its bucket;
 *  (6) the lists of idle pages hold exactly the idle pages, oldest first; a parent of a marked node is marked.
 *
 * Nothing is allocated after kv_prefix_new. */
#ifndef TANDEM_KV_PREFIX_H
#define TANDEM_KV_PREFIX_H
#include "kv/pages.h"

typedef struct kv_prefix kv_prefix;
typedef struct kv_node   kv_node;

/* Hooks itself in as the pool's evictor: free it before the pool. */
bool kv_prefix_new(kv_prefix **out, kv_pool *p, err *e);
void kv_prefix_free(kv_prefix *t);

/* What a hit at n_pos needs of a class besides those of group 0: its first head_pages pages, and those of
 * [first(ctx, n_pos), n_pos). */
typedef struct {
    int cls, head_pages;
    int32_t (*first)(const void *ctx, int32_t n_pos);
    const void *ctx;
} kv_wish;

/* The longest prefix of text[0 .. n - 2] in whole pages (one token is always left to run) of which everything is there that
 * a row behind it sees, in the classes of group 0 and for all wishes. *at: its last node, NULL when it is 0. */
int32_t kv_prefix_find(kv_prefix *t, uint64_t salt, const int32_t *text, int32_t n, const kv_wish *w, int n_wishes,
                       kv_node **at);
/* Returns what kv_prefix_find would, without counting it as a lookup. */
int32_t kv_prefix_reach(const kv_prefix *t, uint64_t salt, const int32_t *text, int32_t n, const kv_wish *w,
                        int n_wishes);
/* Returns the length in tokens of the longest prefix whose pages of group 0 are there, with or without states. */
int32_t kv_prefix_reach_pages(const kv_prefix *t, uint64_t salt, const int32_t *text, int32_t n);
/* To an empty sequence of group 0: the pages of the prefix that ends with `at`, as far as its next row sees them. */
void kv_prefix_take(kv_prefix *t, kv_node *at, kv_seq *s);
/* To an empty sequence of an added class: pages 0 .. head_pages - 1 of the prefix, then those from position `from` on. */
void kv_prefix_take_class(kv_prefix *t, kv_node *at, kv_seq *s, int head_pages, int32_t from);
/* The page behind `at` (NULL: the first) with these KV_PAGE tokens: it lies at page_index of s in every class of s's group.
 * What the tree has already it keeps, and s gets that page instead of its own: they are the same to the bit (promise 1).
 * NULL, for a sequence of an added class alone, when there is no such node. */
kv_node *kv_prefix_put(kv_prefix *t, uint64_t salt, kv_node *at, const int32_t *tokens, kv_seq *s, int page_index);
/* The page behind `at` (NULL: the first) with these tokens, NULL when it is not there. It may be idle: then the pointer is
 * good until the next page is taken from the pool. */
kv_node *kv_prefix_next(const kv_prefix *t, uint64_t salt, const kv_node *at, const int32_t *tokens);
kv_node *kv_node_parent(kv_node *n);
bool     kv_node_has(const kv_node *n, int cls); /* a page of this class */
int32_t  kv_node_end(const kv_node *n);          /* positions up to its end */
/* The end of a prompt or of a turn, where a text is likely to go on: all that a hit there needs is evicted last. */
void kv_prefix_keep(kv_prefix *t, kv_node *n);
void kv_prefix_forget(kv_prefix *t); /* everything that no sequence names */

typedef struct {
    size_t  nodes, pages, bytes;      /* that the tree names, idle or not */
    int64_t hits, misses, hit_tokens; /* of kv_prefix_find */
    int64_t evicted;                  /* pages */
} kv_prefix_stats;
kv_prefix_stats kv_prefix_get_stats(const kv_prefix *t);
#endif
