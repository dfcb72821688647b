/* kv/lane.h - the state of a lane of the target: its pages, and the states of recurrent layers.
 *
 * Attention layers can forget positions: their pages are cut. A recurrent layer has one state per lane, which covers
 * the text up to some length and cannot be undone. Therefore a step runs two kinds of rows of a lane, sure rows
 * first:
 *
 *   sure rows   text that is committed whatever the target picks. The target applies them to the live state in place.
 *   kept rows   rows that the commit may reject: the anchor (the newest token of the text), draft tokens, and the last
 *               rows of a prompt. The target reads the live state but does not change it. For each kept row it stores
 *               what the commit needs: the inputs of the layer's update, or the whole state after the row.
 *
 *      positions    n   n+1 | n+2    n+3
 *      step         s0  s1  | A ---- b              live state after the step: up to s1
 *      kept row             | 0    \ 1
 *                           |       \ c
 *                           |         2
 *      commit A, c: rows 0 and 2 are applied to the live state, the K/V of row 2 moves to slot n+3, the rest is cut
 *
 * When the pool has a prefix tree and kv_lane_commit passes the end of a page, the state at that length is copied to
 * the lane's saved state; if there is no room, the lane has no saved state. kv_lane_save gives it to a node of the
 * prefix tree. kv_lane_take starts a lane from the pages and states of a node. A lane therefore needs two states of
 * each class, which kv_need_add counts.
 *
 * Kept rows of classes with `replay` are applied at the next kv_step_begin, or earlier when a state is saved, so that
 * one call of `replay` serves all lanes of a step. Kept rows of other classes are applied by the commit. For a target
 * without state classes a lane is only its pages, and none of this takes time.
 *
 * Invariant, asserted by kv_pool_check: (8) a lane has live states of all classes or of none, and saved states exactly
 * when n_saved > 0. The live states cover the committed length, once pending commits are applied.
 *
 * Nothing is allocated after kv_pool_new. Thread: the engine thread only. */
#ifndef TANDEM_KV_LANE_H
#define TANDEM_KV_LANE_H
#include "kv/prefix.h"

typedef struct kv_lane kv_lane;

enum { KV_MAX_PATH = 128 }; /* maximum number of kept rows of one lane in a step */

/* Applies the pending commits of states. Call it once before the lanes grow for a step: the step overwrites the kept
 * rows of the step before. */
void kv_step_begin(kv_pool *p);

kv_lane *kv_lane_new(kv_pool *p);         /* empty; NULL when all lanes are taken */
void     kv_lane_free(kv_lane *l);        /* accepts NULL */
int      kv_lane_index(const kv_lane *l); /* value of `lane` for its rows in a step */
kv_seq  *kv_lane_pages(kv_lane *l);       /* owned by the lane */
int32_t  kv_lane_len(const kv_lane *l);   /* committed positions */

/* Makes room for the rows of a step after the committed length. kv_lane_commit or kv_lane_rollback must end it before
 * the next call. On failure (errors as of kv_seq_grow) no row is added, but the lane may have got its live states. */
bool kv_lane_grow(kv_lane *l, int n_sure, int n_kept, err *e);
/* Returns the place of the lane's first kept row among the kept rows of the step. */
int kv_lane_kept(const kv_lane *l);
/* Commits the sure rows and leaves the kept rows to kv_lane_commit. With `save`, the state after the sure rows becomes
 * the saved state, if there is room; they must end at the end of a page. */
void kv_lane_commit_sure(kv_lane *l, bool save);
/* Commits the sure rows, unless kv_lane_commit_sure did, and the kept rows path[0 .. n - 1], counted from the lane's
 * first kept row; n may be 0. Each row of the path is the parent of the next. The step's other rows are removed. */
void kv_lane_commit(kv_lane *l, const int *path, int n);
/* Removes the rows of the step and returns the committed length. If the step ran (`ran`) and sure rows of it may have
 * changed the live states, the lane becomes empty and the result is 0: the caller must run its text again. */
int32_t kv_lane_rollback(kv_lane *l, bool ran);
/* Releases the pages that no later row can see. */
void kv_lane_settle(kv_lane *l);

/* Starts an empty lane with the prefix that ends with `at`, a result of kv_prefix_find; NULL leaves it empty. Returns
 * false when there is no room for its states: the lane is empty. */
bool kv_lane_take(kv_lane *l, kv_prefix *t, kv_node *at);
/* Returns the length that the saved state covers; 0: there is none. */
int32_t kv_lane_saved(const kv_lane *l);
/* Gives the saved state to the node, which must end where the state does. The lane has no saved state afterwards. */
void kv_lane_save(kv_lane *l, kv_prefix *t, kv_node *n);
#endif
