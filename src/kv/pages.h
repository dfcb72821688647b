/* kv/pages.h - the paged cache: pages of KV_PAGE positions, one class of pages per layer geometry.
 *
 * A kv_pool owns all cache memory, taken once at start. It is cut into slabs of one size; a slab is given to a class
 * when the class needs pages and comes back when its last page is free, so that classes share the memory. A kv_seq is
 * one conversation (a lane): for each class of its group a list of pages, mirrored as a row of the table that attention
 * reads. Group 0 is the target's classes; a class that was added later, a drafter's, is a group of its own.
 *
 *      pool    | slab: full layers  p p p p | slab: sliding layers  P | free | ...
 *      table   class 0:  lane 0 -> p3 p0 p1      class 1:  lane 0 -> -- P2 P1        --: behind the window, let go
 *
 * Positions and slots: a chain keeps position p in slot p. The rows of a tree take one slot each beyond the committed
 * length, so a sequence may hold more slots than positions until it is cut.
 *
 * Sharing: sequences, and the prefix tree (kv/prefix.h), may name the same page. A page that somebody else names too is
 * copied before it is written; what kv_seq_grow made room for, from the old length on, is the sequence's alone.
 *
 * Invariants, asserted by kv_pool_check:
 *  (1) a page's refs equal the table entries that name it; it is in use when there are any, or when the tree names it;
 *  (2) a slab belongs to one class or is free; it is free exactly when none of its pages is used, and it is in the
 *      list of free slabs, or of its class's slabs with a free page, exactly when it should be;
 *  (3) the entries of a sequence from the first page that it holds in a class up to its capacity are pages of that class,
 *      the others are -1; what its next row sees, and all of a class without window, is held;
 *  (4) counts of pages and bytes, in use and named by sequences, are what counting finds;
 *  (5) (6) the prefix tree's, in kv/prefix.h;
 *  (7) what is reserved fits into the pool in whole slabs of each class, and while sequences hold no more than that no page
 *      that is taken within it is refused.
 *
 * Ownership: what *_new or *_fork gives you, you return with the matching *_free. Thread: the scheduler's only. */
#ifndef TANDEM_KV_PAGES_H
#define TANDEM_KV_PAGES_H
#include "ops/ops.h"

typedef struct kv_pool kv_pool;
typedef struct kv_seq  kv_seq;

enum {
    KV_MAX_CLASSES = 6, /* of pages and states together */
    KV_MAX_STATES  = 2,
};
typedef struct {
    int        n_layers, n_kv_heads, head_dim;
    quant_type type;   /* QUANT_F32 or QUANT_F16 */
    int        window; /* positions that a row sees, its own included; 0: all */
} kv_class_spec;

/* --- state classes (kv/lane.h) --------------------------------------------------------------------
 * The memory of recurrent layers: of a fixed size per lane, whatever the length of its text. */
/* As the target sees it. The live state of a lane is at byte KV_UNIT * table[lane * table_stride] of the pool. */
typedef struct {
    dev    pool, table;
    int    table_stride;
    size_t bytes;     /* of a state */
    dev    kept;      /* [max_kept_rows][row_bytes] */
    size_t row_bytes; /* bytes that a kept row stores for the commit */
} kv_state;

/* Rows to be applied to the live states of lanes. */
typedef struct {
    int     lane;
    int32_t pos;      /* positions that the live state covers; 0: it is all zeros, whatever its page holds */
    int     first, n; /* row[first .. first + n - 1] are the kept rows to apply, in this order */
} kv_replay_item;
typedef struct {
    const kv_replay_item *item;
    int                   n_items;
    const int32_t        *row; /* [n_rows] */
    int                   n_rows;
} kv_replay;

typedef struct {
    size_t bytes, row_bytes;
    /* Enqueues the update of live states by kept rows. NULL: a kept row is the whole state after that row, and row_bytes is
     * bytes. */
    void (*replay)(void *ctx, const kv_state *s, const kv_replay *r);
    void *ctx;
} kv_state_spec;

typedef struct {
    const kv_class_spec *classes;
    int                  n_classes; /* the first without a window, or else the first, is held whole by every sequence */
    size_t               max_bytes; /* of pages, states and kept rows */
    int                  max_lanes;
    int                  max_slots;     /* per lane */
    const kv_state_spec *states;        /* each lane of the pool has one of each */
    int                  n_states;      /* 0: no layer is recurrent */
    int                  max_kept_rows; /* of a step, all lanes together */
} kv_pool_spec;

/* Bytes that one lane of n_slots needs, in whole slabs: what kv_pool_new must be given for it to fit alone. */
bool kv_bytes_for(const kv_pool_spec *spec, int n_slots, size_t *out);
/* Sets *out to the bytes that the kept rows of all lanes take together. */
bool kv_kept_bytes(const kv_pool_spec *spec, size_t *out);

bool kv_pool_new(kv_pool **out, const ops *o, const kv_pool_spec *spec, err *e);
void kv_pool_free(kv_pool *p); /* NULL is fine, here and below */
/* Where pages are copied: the queue of the steps that read them. Needed before pages are shared. */
void kv_pool_set_queue(kv_pool *p, queue *q);
/* One class more, with max_seqs sequences of its own; *cls is its index and its group. Not inside a step. */
bool kv_pool_add_class(kv_pool *p, const kv_class_spec *s, int max_seqs, int max_slots, int *cls, err *e);
/* None of its sequences and reservations is left. The index may be given out again. */
void            kv_pool_drop_class(kv_pool *p, int cls);
const kv_class *kv_pool_class(const kv_pool *p, int i);
const kv_state *kv_pool_state(const kv_pool *p, int i);
uint64_t        kv_pool_key(const kv_pool *p); /* of all that ops are told of its classes, for graph_key */
size_t          kv_pool_used_bytes(const kv_pool *p);
size_t          kv_pool_pinned_bytes(const kv_pool *p); /* of pages that sequences name */
size_t          kv_pool_bytes(const kv_pool *p);
/* Sends the table entries that changed since the last call to the device: before any op reads them, kv_move too, since
 * taking a page may move others. */
void kv_pool_flush(kv_pool *p, queue *q);
void kv_pool_check(const kv_pool *p); /* asserts the invariants; for tests */

/* --- reservations (promise 5) -------------------------------------------------------------------
 * Pages of each class, counted in whole slabs of each. What is reserved can be had: pages that only the prefix tree names are
 * evicted for it, and partly used slabs are merged. */
typedef struct {
    int32_t pages[KV_MAX_CLASSES];
} kv_need;
/* Adds the needs of a sequence of up to n_slots, up to n_ahead of them beyond the settled ones; for group 0 its states too. */
void   kv_need_add(const kv_pool *p, kv_need *n, int group, int32_t n_slots, int32_t n_ahead);
size_t kv_need_bytes(const kv_pool *p, const kv_need *n); /* alone, in whole slabs */
/* false: it does not fit beside the other reservations into this share of the pool, at most 1. */
bool   kv_reserve(kv_pool *p, const kv_need *n, double share);
bool   kv_could_reserve(const kv_pool *p, const kv_need *n, double share); /* were there no others */
void   kv_unreserve(kv_pool *p, const kv_need *n);
size_t kv_pool_reserved_bytes(const kv_pool *p);

/* --- sequences ----------------------------------------------------------------------------------*/
kv_seq *kv_seq_new(kv_pool *p, int group); /* NULL when all lanes are taken */
void    kv_seq_free(kv_seq *s);
/* Shares all pages of the first n_slots, a partly filled one too; NULL when all lanes are taken. */
kv_seq *kv_seq_fork(kv_seq *s, int32_t n_slots);
int     kv_seq_lane(const kv_seq *s);
/* Pages for the slots below n_slots, in every class or (on failure) in none. ERR_LIMIT when the pool is full. */
bool kv_seq_grow(kv_seq *s, int32_t n_slots, err *e);
/* Forgets the slots from n_slots on. One page more than needed is kept: the next round of drafts wants it again. What was
 * let go does not come back: a row at n_slots must see nothing of it, or n_slots is 0. */
void kv_seq_cut(kv_seq *s, int32_t n_slots);
/* The slots below n_slots are committed: pages that no row from there on can see are let go. */
void kv_seq_settle(kv_seq *s, int32_t n_slots);
/* Takes full pages out of the middle of a sequence of an added class; what is behind them moves down. */
void kv_seq_drop(kv_seq *s, int first_page, int n_pages);
/* The page of a sequence of an added class is its alone afterwards: it may be written. */
bool    kv_seq_own(kv_seq *s, int page_index, err *e);
int32_t kv_seq_len(const kv_seq *s); /* slots in use */
#endif
