/* kv/pages.h - the paged K/V cache: pages of KV_PAGE positions, one page class per layer geometry.
 *
 * A kv_pool owns all cache memory, which is allocated once at start and divided into slabs of one size. A class gets
 * a slab when it needs pages and returns it when the last page of the slab is free, so that all classes share the
 * memory. A kv_seq is one sequence of positions. It has a list of pages for each class of its group, and the list is
 * mirrored as a row of the table that attention reads. Group 0 holds the classes of the target. A class that is added
 * later, by a drafter, is a group of its own.
 *
 *      pool    | slab: full layers  p p p p | slab: sliding layers  P | free | ...
 *      table   class 0:  lane 0 -> p3 p0 p1      class 1:  lane 0 -> -- P2 P1        --: left the window, released
 *
 * Positions and slots: a chain keeps position p in slot p. The rows of a tree take one slot each after the committed
 * length, so a sequence may have more slots than positions until it is cut.
 *
 * Sharing: several sequences and the prefix tree (kv/prefix.h) may refer to the same page. kv_seq_grow copies a shared
 * page before it adds slots to it, so the slots that it adds are in pages that only this sequence refers to. A write to
 * older slots of a shared page needs kv_seq_own first.
 *
 * Invariants, asserted by kv_pool_check (kv/inside.h):
 *  (1) refs of a page equals the number of table entries that refer to it; a page is in use when refs > 0 or when a
 *      node of the prefix tree refers to it;
 *  (2) a slab belongs to one class or is free. It is free exactly when none of its pages is in use. It is in the list
 *      of free slabs exactly when it is free, and in its class's list of open slabs exactly when it has a free page;
 *  (3) in each class, the table entries of a sequence from its first page to its capacity are pages of that class,
 *      and all others are -1. A sequence has all pages that its next row sees, and all pages of a class without a
 *      window;
 *  (4) the counters of pages and bytes, in use and pinned, equal the numbers found by counting;
 *  (5) (6) belong to kv/prefix.h, (8) to kv/lane.h;
 *  (7) reservations fit into the pool, rounded up to whole slabs of each class. While sequences hold no more pages than
 *      are reserved and the pool has a queue, taking a page never fails.
 *
 * The engine thread is the only caller. Free what *_new and *_fork return with the matching *_free. A pool owns its
 * sequences: kv_pool_free frees their memory too. */
#ifndef TANDEM_KV_PAGES_H
#define TANDEM_KV_PAGES_H
#include "ops/ops.h"

typedef struct kv_pool kv_pool;
typedef struct kv_seq  kv_seq;

enum {
    KV_MAX_CLASSES = 6, /* page classes and state classes together */
    KV_MAX_STATES  = 2,
};
typedef struct {
    int           n_layers, n_kv_heads, head_dim;
    cache_types   types;
    int           window;  /* number of positions that a row sees, its own included; 0: all */
    sparse_params sparse;  /* zeros: attention is dense */
    int           n_heads; /* query heads, with sparse attention; 0: n_kv_heads */
} kv_class_spec;

/* --- state classes (kv/lane.h) --------------------------------------------------------------------
 * The memory of recurrent layers. Its size per lane is fixed and does not depend on the length of the text. */
/* A state class as the target sees it. The live state of a lane is at byte KV_UNIT * table[lane * table_stride] of
 * `pool`. */
typedef struct {
    dev    pool, table;
    int    table_stride;
    size_t bytes;     /* size of one state */
    dev    kept;      /* [max_kept_rows][row_bytes] */
    size_t row_bytes; /* size of what one kept row stores for the commit */
} kv_state;

/* Kept rows that are to be applied to the live states of lanes. An item is one lane. */
typedef struct {
    int     lane;
    int32_t pos;      /* length that the live state covers; 0: treat the state as all zeros */
    int     first, n; /* row[first .. first + n - 1] are the kept rows to apply, in this order */
} kv_replay_item;
typedef struct {
    const kv_replay_item *item;
    int                   n_items;
    const int32_t        *row; /* [n_rows]: indices into kv_state.kept */
    int                   n_rows;
} kv_replay;

typedef struct {
    size_t bytes, row_bytes; /* as in kv_state; multiples of sizeof(float) */
    /* Enqueues the update of live states by kept rows. NULL: each kept row stores the whole state after that row, and
     * row_bytes equals bytes. */
    void (*replay)(void *ctx, const kv_state *s, const kv_replay *r);
    void *ctx;
} kv_state_spec;

typedef struct {
    const kv_class_spec *classes;
    int    n_classes; /* if all have a window, that of the first is ignored: the prefix tree needs one without */
    size_t max_bytes; /* limit for pages, states and kept rows together; tables are not counted */
    int    max_lanes;
    int    max_slots;                   /* per lane */
    const kv_state_spec *states;        /* a lane has states of each of these classes */
    int                  n_states;      /* 0: the target has no recurrent layer */
    int                  max_kept_rows; /* per step, all lanes together */
    bool                 wipe;          /* pages are overwritten with zeros when they are freed; needs a queue */
    /* The queue on which pages are copied and K/V rows are moved: that of the steps that read them. NULL: pages cannot
     * be shared, states used, draft tokens committed, or attention sparse; partly used slabs are not merged. */
    queue *q;
} kv_pool_spec;

/* Set *out to the max_bytes of a pool that holds exactly one lane of n_slots, and to the bytes of the kept rows of all
 * lanes together. Both ignore spec->max_bytes, and return false on overflow: *out is undefined then. */
bool kv_bytes_for(const kv_pool_spec *spec, int n_slots, size_t *out);
bool kv_kept_bytes(const kv_pool_spec *spec, size_t *out);
/* Returns the bytes of K and V of one position in all layers of a class, pages rounded up; 0 on overflow. */
size_t kv_bytes_per_pos(const kv_class_spec *s);

/* Allocates the pool. Sets *out to NULL on failure. `o`, the queue and the contexts of the states must outlive it;
 * *spec is copied. */
bool kv_pool_new(kv_pool **out, const ops *o, const kv_pool_spec *spec, err *e);
void kv_pool_free(kv_pool *p); /* accepts NULL, like all *_free here */
/* Adds a class with max_seqs sequences of its own, each of up to max_slots slots. Sets *cls to its index, which is also
 * its group; *cls is undefined on failure. Not inside a step. */
bool kv_pool_add_class(kv_pool *p, const kv_class_spec *s, int max_seqs, int max_slots, int *cls, err *e);
/* Removes an added class, and its pages from the prefix tree. All its sequences must be free and none of its pages
 * reserved. kv_pool_add_class may use the index again. */
void            kv_pool_drop_class(kv_pool *p, int cls);
const kv_class *kv_pool_class(const kv_pool *p, int i); /* valid until class i is dropped */
const kv_state *kv_pool_state(const kv_pool *p, int i); /* a state class of the target */
uint64_t        kv_pool_key(const kv_pool *p);          /* hash of all that ops see of the classes, for graph_key */
size_t          kv_pool_pinned_bytes(const kv_pool *p); /* pages and states that sequences refer to */
int64_t         kv_pool_wiped(const kv_pool *p);        /* pages that kv_pool_spec.wipe overwrote */
size_t          kv_pool_bytes(const kv_pool *p);        /* size of all slabs; kept rows are not counted */
/* The memory of one class. */
typedef struct {
    bool   is_state, is_draft; /* states of recurrent layers; pages of a drafter */
    int    window;             /* as in kv_class_spec */
    size_t held;               /* bytes of its slabs */
    size_t used, pinned;       /* bytes of pages that sequences or the prefix tree refer to; that sequences refer to */
    size_t reserved;           /* bytes of its reserved pages */
} kv_class_use;
int kv_pool_classes(const kv_pool *p, kv_class_use out[KV_MAX_CLASSES]); /* returns their number */
/* Uploads the table entries that changed since the last call. Call it before any op reads the tables, kv_move included:
 * taking a page may move other pages. */
void kv_pool_flush(kv_pool *p, queue *q);

/* --- reservations (promise 5) -------------------------------------------------------------------
 * A reservation is a number of pages of each class. The reserved pages of a class together take whole slabs. Reserved
 * pages are always available: pages that only the prefix tree refers to are evicted for them, and partly used slabs are
 * merged. */
typedef struct {
    int32_t pages[KV_MAX_CLASSES]; /* starts as all zeros */
} kv_need;
/* Adds the pages of a sequence with up to n_slots slots, of which up to n_unsettled follow the settled length
 * (kv_seq_settle). For group 0 two states of each state class are added too. An n_slots over the group's maximum counts
 * as that maximum. */
void   kv_need_add(const kv_pool *p, kv_need *n, int group, int32_t n_slots, int32_t n_unsettled);
size_t kv_need_bytes(const kv_pool *p, const kv_need *n); /* in whole slabs, without other reservations */
/* Reserves n. Returns false, and reserves nothing, when n and the other reservations exceed this share of the pool.
 * share is at most 1. */
bool   kv_reserve(kv_pool *p, const kv_need *n, double share);
bool   kv_could_reserve(const kv_pool *p, const kv_need *n, double share); /* whether it would, alone in the pool */
void   kv_unreserve(kv_pool *p, const kv_need *n);                         /* n: as passed to kv_reserve */
size_t kv_pool_reserved_bytes(const kv_pool *p);                           /* in whole slabs */

/* --- sequences ----------------------------------------------------------------------------------*/
kv_seq *kv_seq_new(kv_pool *p, int group); /* NULL when all sequences of the group are taken */
void    kv_seq_free(kv_seq *s);
/* Returns a new sequence that shares the pages of the first n_slots, including a partly filled one, or NULL when all
 * sequences of the group are taken. */
kv_seq *kv_seq_fork(kv_seq *s, int32_t n_slots);
int     kv_seq_lane(const kv_seq *s); /* its row in the tables of its classes */
/* Extends the sequence to n_slots, with pages in all classes of the group; does nothing if it is that long. On failure
 * the length is unchanged. ERR_LIMIT: the pool is full; ERR_TOO_LARGE: n_slots is over the group's maximum. */
bool kv_seq_grow(kv_seq *s, int32_t n_slots, err *e);
/* Removes the slots from n_slots on; n_slots is at most the length. Keeps one page more than needed if there is one,
 * because the next draft needs it. Released pages do not come back: either n_slots is 0, or a row at n_slots sees no
 * page that kv_seq_settle released. */
void kv_seq_cut(kv_seq *s, int32_t n_slots);
/* Declares the slots below n_slots committed and releases the pages that no later row can see. */
void kv_seq_settle(kv_seq *s, int32_t n_slots);
/* Removes n_pages full pages of a sequence of an added class, which shortens it. The pages after them move down. */
void kv_seq_drop(kv_seq *s, int first_page, int n_pages);
/* Makes a page of a sequence of an added class private, by a copy if it is shared, so that it may be written. Does
 * nothing for a released page. ERR_LIMIT: the pool is full. */
bool    kv_seq_own(kv_seq *s, int page_index, err *e);
int32_t kv_seq_len(const kv_seq *s); /* number of slots */
#endif
