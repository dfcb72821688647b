/* kv/inside.h - what the files of kv share: slabs, pages, classes, sequences. Contracts are in kv/pages.h. */
#ifndef TANDEM_KV_INSIDE_H
#define TANDEM_KV_INSIDE_H
#include "kv/pages.h"

enum { NO_PAGE = -1, NO_SLAB = -1, NO_CLASS = -1, NO_NODE = -1 };

typedef struct {
    int cls;        /* NO_CLASS: free */
    int n_used;     /* pages */
    int prev, next; /* in the list of free slabs, or of its class's slabs with a free page */
} slab;

typedef struct {
    int32_t  node; /* of the prefix tree, or NO_NODE */
    uint16_t refs; /* table entries that name it */
} page_info;

typedef struct {
    kv_class kv; /* what ops see */
    size_t   page_bytes;
    int      group; /* NO_CLASS: there is no such class */
    int      window;
    int      per_slab; /* pages */
    int      open;     /* first slab with a free page */
    int      n_slabs;
    int      n_used, n_pinned; /* pages; pinned: named by sequences */
    int32_t  reserved;         /* pages */
    int32_t *table;            /* host mirror: [seqs of the group][kv.table_stride] */
} page_class;

typedef struct {
    int     first_class, n_classes; /* n_classes 0: there is no such group */
    int     max_seqs, max_slots;
    kv_seq *seqs;
} seq_group;

/* What the pool tells the prefix tree. A page is idle when the tree names it and no sequence does. */
typedef struct {
    void *ctx;
    void (*idle)(void *ctx, int32_t node, int cls);
    void (*wanted)(void *ctx, int32_t node, int cls); /* no longer idle */
    void (*forget)(void *ctx, int32_t node, int cls); /* the page, and what cannot be there without it */
    void (*moved)(void *ctx, int32_t node, int cls, int32_t id);
    bool (*evict)(void *ctx); /* one page at least; false when none is idle */
    void (*drop_class)(void *ctx, int cls);
    void (*check)(const void *ctx);
} cache_hooks;

struct kv_pool {
    const ops  *o;
    queue      *q;
    dev         memory;
    size_t      slab_bytes;
    int         n_slabs, max_per_slab;
    slab       *slabs;
    int         free_slab; /* first of the list */
    page_info  *pages;     /* [n_slabs][max_per_slab] */
    int32_t    *moved;     /* [max_per_slab]: where the pages of a slab went that is being emptied */
    page_class  cls[KV_MAX_CLASSES];
    seq_group   group[KV_MAX_CLASSES];
    size_t      used_bytes, pinned_bytes;
    cache_hooks cache;
};

struct kv_seq {
    kv_pool *pool;
    int      group, lane;
    bool     live, dirty; /* dirty: its table rows differ from the device's */
    int32_t  n_slots;     /* in use */
    int32_t  n_pages;     /* capacity, the same in every class */
    struct {
        int32_t first;                /* pages below were let go */
        int32_t dirty_from, dirty_to; /* entries; none when from >= to */
    } of[KV_MAX_CLASSES];
};

static inline int pages_for(int32_t n_slots) { return (n_slots + KV_PAGE - 1) / KV_PAGE; }

/* The first page that a row at position n_slots or later sees. */
static inline int32_t first_seen_page(const page_class *c, int32_t n_slots)
{
    return c->window > 0 && n_slots >= c->window ? (n_slots - c->window + 1) / KV_PAGE : 0;
}

static inline int32_t *table_row(const page_class *c, int lane)
{
    return c->table + (size_t)lane * (size_t)c->kv.table_stride;
}

/* --- slabs.c ------------------------------------------------------------------------------------*/
bool       kv_page_bytes(const kv_class_spec *s, size_t *out);
size_t     kv_slab_bytes(const size_t *page_bytes, int n, size_t max_bytes);
bool       kv_slabs_init(kv_pool *p, size_t max_bytes, int n_classes, err *e);
bool       kv_slabs_widen(kv_pool *p, int per_slab, err *e); /* for a class with smaller pages */
int        kv_page_slab(const kv_pool *p, int32_t id);
page_info *kv_page_info(const kv_pool *p, const page_class *c, int32_t id);
int32_t    kv_page_take(kv_pool *p, int cls);             /* named once; NO_PAGE when the pool is full */
void       kv_page_name(kv_pool *p, int cls, int32_t id); /* by one more table entry */
void       kv_page_unname(kv_pool *p, int cls, int32_t id);
void       kv_page_uncache(kv_pool *p, int cls, int32_t id); /* its node names it no longer */
void       kv_page_copy(kv_pool *p, int cls, int32_t to, int32_t from);

/* --- reserve.c ----------------------------------------------------------------------------------*/
/* Whether a page more in this class is within what is reserved, and all else that sequences name. */
bool kv_within_reserved(const kv_pool *p, int cls);

/* --- seq.c --------------------------------------------------------------------------------------*/
void kv_seq_set_page(kv_seq *s, int cls, int32_t k, int32_t id); /* an entry of its table; counts no names */
#endif
