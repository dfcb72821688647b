/* kv/inside.h - types and functions shared by the files of kv: slabs, pages, classes, sequences, lanes. The contracts
 * are in kv/pages.h, kv/prefix.h and kv/lane.h. */
#ifndef TANDEM_KV_INSIDE_H
#define TANDEM_KV_INSIDE_H
#include "kv/image.h"
#include "kv/lane.h"

/* Entries of a lane in the table of a state class: the live state, and the state at the end of a page (kv/lane.h). */
enum { LIVE_STATE, SAVED_STATE, LANE_STATES };

enum { NO_PAGE = -1, NO_SLAB = -1, NO_CLASS = -1, NO_NODE = -1 };

typedef struct {
    int cls;        /* NO_CLASS: free */
    int n_used;     /* number of pages in use */
    int prev, next; /* neighbours in the list of free slabs, or in its class's list of open slabs */
} slab;

typedef struct {
    int32_t  node; /* index of the prefix tree's node that refers to it, or NO_NODE */
    uint16_t refs; /* number of table entries that refer to it */
} page_info;

typedef struct {
    kv_class kv; /* the class as ops see it */
    size_t   page_bytes;
    int      group;    /* NO_CLASS: the class does not exist */
    bool     is_state; /* a page is the state of a lane and has no positions */
    int      window;
    int      per_slab; /* pages per slab */
    int      open;     /* head of the list of open slabs: those with a free page */
    int      n_slabs;
    int      n_used, n_pinned; /* numbers of pages; pinned: sequences refer to them */
    int32_t  reserved;         /* number of pages */
    int32_t *table;            /* host mirror: [seqs of the group][kv.table_stride] */
} page_class;

typedef struct {
    int     first_class, n_classes; /* n_classes 0: the group does not exist */
    int     n_states;               /* state classes, which follow the page classes; only group 0 has any */
    int     max_seqs, max_slots;
    kv_seq *seqs;
} seq_group;

/* Callbacks from the pool to the prefix tree. A page is idle when a node refers to it and no sequence does. */
typedef struct {
    void *ctx;
    void (*idle)(void *ctx, int32_t node, int cls);              /* the page became idle */
    void (*busy)(void *ctx, int32_t node, int cls);              /* the page is no longer idle */
    void (*remove)(void *ctx, int32_t node, int cls);            /* removes the page, and nodes that depend on it */
    void (*moved)(void *ctx, int32_t node, int cls, int32_t id); /* the page has a new id */
    bool (*evict)(void *ctx);                                    /* evicts at least one page; false when none is idle */
    void (*drop_class)(void *ctx, int cls);                      /* removes all pages of the class from the tree */
    void (*check)(const void *ctx);                              /* asserts the tree's invariants */
} cache_hooks;                                                   /* all NULL: there is no tree */

struct kv_pool {
    const ops  *o;
    queue      *q;
    dev         memory;
    dev         zeros;   /* [slab_bytes], for freed pages; NULL (.p): they are not wiped */
    int64_t     n_wiped; /* pages that were overwritten */
    size_t      slab_bytes;
    int         n_slabs, max_per_slab;
    slab       *slabs;
    int         free_slab; /* head of the list of free slabs */
    page_info  *pages;     /* [n_slabs][max_per_slab] */
    int32_t    *moved;     /* [max_per_slab]: new ids of the pages of the slab that is being emptied */
    page_class  cls[KV_MAX_CLASSES];
    seq_group   group[KV_MAX_CLASSES];
    size_t      used_bytes, pinned_bytes;
    cache_hooks cache;

    /* lanes (lane.c) */
    kv_lane        *lanes; /* [max_seqs of group 0] */
    dev             moves; /* kv_move_item [KV_MAX_PATH] */
    kv_state        state[KV_MAX_STATES];
    kv_state_spec   state_spec[KV_MAX_STATES];
    int             max_kept, n_kept; /* kept rows: the limit, and those of the current step */
    kv_replay_item *replay;           /* [max_seqs of group 0]: pending commits, applied by kv_step_begin */
    int             n_replays;
    int32_t        *replay_row; /* [max_kept] */
    int             n_replay_rows;
};

struct kv_lane {
    kv_seq *seq;                        /* NULL: not in use */
    int32_t len;                        /* committed positions */
    int32_t n_saved;                    /* length that the saved states cover; 0: there are none */
    int     n_sure, n_kept, first_kept; /* rows of the current step; first_kept: place of the first kept row */
};

struct kv_seq {
    kv_pool *pool;
    int      group, lane;
    bool     live, dirty; /* dirty: its table rows differ from the device's */
    int32_t  n_slots;     /* slots in use */
    int32_t  n_pages;     /* capacity in pages, equal in every class */
    struct {
        int32_t first;                /* pages below this index were released */
        int32_t dirty_from, dirty_to; /* range of changed entries; none when from >= to */
    } of[KV_MAX_CLASSES];
};

static inline int pages_for(int32_t n_slots) { return (n_slots + KV_PAGE - 1) / KV_PAGE; }

/* Returns the first page that a row at position n_slots or later sees. */
static inline int32_t first_seen_page(const page_class *c, int32_t n_slots)
{
    return c->window > 0 && n_slots >= c->window ? (n_slots - c->window + 1) / KV_PAGE : 0;
}

/* Returns the index of state class i among all classes. */
static inline int state_class(const kv_pool *p, int i) { return p->group[0].n_classes + i; }

static inline int32_t *table_row(const page_class *c, int lane)
{
    return c->table + (size_t)lane * (size_t)c->kv.table_stride;
}

/* --- slabs.c ------------------------------------------------------------------------------------*/
/* A page id is the offset of the page in the pool's memory, in units of KV_UNIT bytes. */
/* Set *out to the bytes of a page, a multiple of KV_UNIT. Return false when it is too large. */
bool kv_page_bytes(const kv_class_spec *s, size_t *out);
bool kv_state_page_bytes(const kv_state_spec *s, size_t *out);
/* Returns the size of slabs that suits n classes with these page sizes, in a pool of max_bytes. */
size_t kv_slab_bytes(const size_t *page_bytes, int n, size_t max_bytes);
/* Allocates the memory and its slabs, all free. p->slab_bytes and p->max_per_slab are set. Fails unless there is a slab
 * for each of n_classes. kv_pool_free frees what was allocated before a failure. */
bool       kv_slabs_init(kv_pool *p, size_t max_bytes, int n_classes, bool wipe, err *e);
bool       kv_slabs_widen(kv_pool *p, int per_slab, err *e); /* raises max_per_slab to per_slab, if it is less */
int        kv_page_slab(const kv_pool *p, int32_t id);       /* index of the slab that contains the page */
page_info *kv_page_info(const kv_pool *p, const page_class *c, int32_t id);
/* Takes a free page and sets its refs to 1. May merge slabs, which changes ids of other pages, and evict pages. Returns
 * NO_PAGE when the pool is full. */
int32_t kv_page_take(kv_pool *p, int cls);
void    kv_page_ref(kv_pool *p, int cls, int32_t id);     /* counts one more table entry that refers to it */
void    kv_page_unref(kv_pool *p, int cls, int32_t id);   /* the last one frees the page, or makes it idle */
void    kv_page_uncache(kv_pool *p, int cls, int32_t id); /* its node no longer refers to it: frees it if refs is 0 */
void    kv_page_copy(kv_pool *p, int cls, int32_t to, int32_t from); /* enqueues the copy on p->q, which is set */

/* --- reserve.c ----------------------------------------------------------------------------------*/
/* Returns whether one more pinned page of this class, and all pages pinned now, are within the reservations. */
bool kv_within_reserved(const kv_pool *p, int cls);

/* --- seq.c --------------------------------------------------------------------------------------*/
void kv_seq_set_page(kv_seq *s, int cls, int32_t k, int32_t id); /* sets an entry of its table; refs are the caller's */
void kv_seq_release(kv_seq *s, int cls, int32_t k);              /* clears an entry and unrefs its page */

/* --- lane.c -------------------------------------------------------------------------------------*/
bool kv_lanes_init(kv_pool *p, const kv_pool_spec *spec, err *e); /* after a failure, kv_lanes_deinit still applies */
void kv_lanes_deinit(kv_pool *p);

/* --- prefix.c -----------------------------------------------------------------------------------*/
/* Copies the states of the node into new live states of the sequence. Returns false when the pool is full: the caller
 * drops the states that were taken. */
bool kv_prefix_take_states(kv_prefix *t, const kv_node *at, kv_seq *s);
/* Gives the saved states of the sequence to the node. The sequence has none afterwards. */
void kv_prefix_put_states(kv_prefix *t, kv_node *n, kv_seq *s);

kv_pool *kv_prefix_pool(const kv_prefix *t);
int      kv_prefix_anchor(const kv_prefix *t);    /* index of the anchor class */
int32_t  kv_node_page(const kv_node *n, int cls); /* id of its page of this class, or NO_PAGE */
/* Pages outside of the tree: has returns whether page k of the text, or the state at its end, is there. */
typedef struct {
    bool (*has)(const void *ctx, int32_t k, int cls);
    const void *ctx;
} page_source;
/* Returns the length that kv_prefix_find would find if the tree had these pages too. */
int32_t kv_prefix_reach_with(const kv_prefix *t, const kv_wanted *w, const page_source *more);
/* Adds a page, to which a sequence or the caller refers, to the node with these tokens after `at`. If there is no such
 * node, cls must be the anchor class, and the node is made. The node has no page of this class. */
kv_node *kv_prefix_add(kv_prefix *t, uint64_t salt, kv_node *at, const int32_t *tokens, int cls, int32_t id);

/* --- for tests ----------------------------------------------------------------------------------*/
void kv_pool_check(const kv_pool *p); /* asserts the invariants of kv/pages.h, kv/prefix.h and kv/lane.h */
#endif
