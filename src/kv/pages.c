#include "kv/pages.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

enum { NO_PAGE = -1, NO_SLAB = -1 };

typedef struct {
    int cls;    /* NO_PAGE: free */
    int n_used; /* pages */
    int next;   /* in the free list, or in its class's list of slabs with a free page */
} slab;

typedef struct {
    kv_class kv; /* what ops see */
    size_t   page_bytes;
    int      per_slab; /* pages */
    int      open;     /* first slab with a free page */
    int32_t *table;    /* host mirror: [max_lanes][kv.table_stride] */
} page_class;

struct kv_pool {
    const ops *o;
    dev        memory;
    size_t     slab_bytes;
    int        n_slabs, max_per_slab;
    slab      *slabs;
    int        free_slab; /* first of the free list */
    uint16_t  *refs;      /* [n_slabs][max_per_slab] */
    page_class cls[KV_MAX_CLASSES];
    int        n_classes, max_lanes, max_slots;
    kv_seq    *lanes; /* [max_lanes] */
    size_t     used_bytes;
};

struct kv_seq {
    kv_pool *pool;
    int      lane;
    bool     live, dirty; /* dirty: its table rows differ from the device's */
    int32_t  n_slots;     /* in use */
    int32_t  n_pages;     /* held, the same in every class */
};

/* --- geometry -----------------------------------------------------------------------------------*/
static bool page_bytes_of(const kv_class_spec *s, size_t *out)
{
    size_t n;
    return size_mul(&n, (size_t)s->n_layers * 2, (size_t)s->n_kv_heads) &&
           size_mul(&n, n, (size_t)s->head_dim * KV_PAGE) && size_mul(&n, n, quant_block_bytes(s->type)) &&
           size_add(&n, n, KV_UNIT - 1) && (*out = n / KV_UNIT * KV_UNIT, true);
}

/* The smallest multiple of the largest page that every class fills to 95% or better, or the best of eight. */
static size_t choose_slab_bytes(const size_t *page, int n)
{
    size_t largest = 0, best = 0;
    double best_fill = 0;
    for (int i = 0; i < n; i++)
        if (page[i] > largest) largest = page[i];
    for (size_t m = 1; m <= 8; m++) {
        double fill = 1;
        for (int i = 0; i < n; i++) {
            double f = (double)(m * largest / page[i] * page[i]) / (double)(m * largest);
            if (f < fill) fill = f;
        }
        if (fill > best_fill) {
            best_fill = fill;
            best      = m * largest;
        }
        if (best_fill >= 0.95) break;
    }
    return best;
}

static int pages_for(int32_t n_slots) { return (n_slots + KV_PAGE - 1) / KV_PAGE; }

bool kv_bytes_for(const kv_pool_spec *spec, int n_slots, size_t *out)
{
    size_t page[KV_MAX_CLASSES] = {0}, n_slabs = 0;
    for (int i = 0; i < spec->n_classes; i++)
        if (!page_bytes_of(&spec->classes[i], &page[i])) return false;
    size_t slab_bytes = choose_slab_bytes(page, spec->n_classes);
    for (int i = 0; i < spec->n_classes; i++) {
        size_t per_slab = slab_bytes / page[i];
        n_slabs += ((size_t)pages_for(n_slots) + per_slab - 1) / per_slab;
    }
    return size_mul(out, n_slabs, slab_bytes);
}

/* --- pages --------------------------------------------------------------------------------------*/
static int32_t page_id(const kv_pool *p, const page_class *c, int s, int i)
{
    return (int32_t)(((size_t)s * p->slab_bytes + (size_t)i * c->page_bytes) / KV_UNIT);
}

static uint16_t *refs_of(const kv_pool *p, const page_class *c, int32_t id, int *slab_out)
{
    size_t at = (size_t)id * KV_UNIT;
    int    s = (int)(at / p->slab_bytes), i = (int)(at % p->slab_bytes / c->page_bytes);
    *slab_out = s;
    return &p->refs[(size_t)s * (size_t)p->max_per_slab + (size_t)i];
}

static int open_slab(kv_pool *p, page_class *c)
{
    int s = p->free_slab;
    if (s == NO_SLAB) return NO_SLAB;
    p->free_slab = p->slabs[s].next;
    p->slabs[s]  = (slab){.cls = (int)(c - p->cls), .next = c->open};
    c->open      = s;
    return s;
}

static int32_t take_page(kv_pool *p, page_class *c)
{
    int s = c->open != NO_SLAB ? c->open : open_slab(p, c);
    if (s == NO_SLAB) return NO_PAGE;
    uint16_t *refs = &p->refs[(size_t)s * (size_t)p->max_per_slab];
    int       i    = 0;
    while (refs[i]) i++;
    assert(i < c->per_slab); /* (2) an open slab has a free page */
    refs[i] = 1;
    if (++p->slabs[s].n_used == c->per_slab) c->open = p->slabs[s].next;
    p->used_bytes += c->page_bytes;
    return page_id(p, c, s, i);
}

static void unlink_open(kv_pool *p, page_class *c, int s)
{
    int *at = &c->open;
    while (*at != s) at = &p->slabs[*at].next;
    *at = p->slabs[s].next;
}

static void drop_page(kv_pool *p, page_class *c, int32_t id)
{
    int       s;
    uint16_t *refs = refs_of(p, c, id, &s);
    assert(*refs > 0); /* (1) */
    if (--*refs) return;
    p->used_bytes -= c->page_bytes;
    if (p->slabs[s].n_used-- == c->per_slab) { /* it was full: open again */
        p->slabs[s].next = c->open;
        c->open          = s;
    }
    if (p->slabs[s].n_used == 0) { /* (2) */
        unlink_open(p, c, s);
        p->slabs[s]  = (slab){.cls = NO_PAGE, .next = p->free_slab};
        p->free_slab = s;
    }
}

/* --- the pool -----------------------------------------------------------------------------------*/
static bool init_class(kv_pool *p, page_class *c, const kv_class_spec *s, int stride, err *e)
{
    size_t n = (size_t)p->max_lanes * (size_t)stride;
    c->kv    = (kv_class){.table_stride = stride,
                          .n_layers     = s->n_layers,
                          .n_kv_heads   = s->n_kv_heads,
                          .head_dim     = s->head_dim,
                          .type         = s->type};
    c->open  = NO_SLAB;
    c->table = mem_try_n(n, sizeof *c->table);
    if (!c->table) return err_set(e, ERR_LIMIT, "no memory for a page table of %zu entries", n);
    for (size_t i = 0; i < n; i++) c->table[i] = NO_PAGE;
    return p->o->alloc(p->o, &c->kv.table, n * sizeof *c->table, e);
}

static bool init_slabs(kv_pool *p, size_t max_bytes, err *e)
{
    size_t n = max_bytes / p->slab_bytes;
    if (n < (size_t)p->n_classes)
        return err_set(e, ERR_LIMIT, "%zu bytes of K/V memory are too few: a page of each kind takes %zu", max_bytes,
                       p->slab_bytes * (size_t)p->n_classes);
    if (n > (size_t)INT32_MAX * KV_UNIT / p->slab_bytes) n = (size_t)INT32_MAX * KV_UNIT / p->slab_bytes;
    p->n_slabs = (int)n;
    p->slabs   = mem_try_n(n, sizeof *p->slabs);
    p->refs    = mem_try_n(n * (size_t)p->max_per_slab, sizeof *p->refs);
    if (!p->slabs || !p->refs) return err_set(e, ERR_LIMIT, "no memory to keep track of %zu slabs of pages", n);
    for (int i = 0; i < p->n_slabs; i++)
        p->slabs[i] = (slab){.cls = NO_PAGE, .next = i + 1 < p->n_slabs ? i + 1 : NO_SLAB};
    p->free_slab = 0;
    return p->o->alloc(p->o, &p->memory, n * p->slab_bytes, e);
}

static bool init_pool(kv_pool *p, const kv_pool_spec *spec, err *e)
{
    size_t page[KV_MAX_CLASSES] = {0};
    assert(spec->n_classes >= 1 && spec->n_classes <= KV_MAX_CLASSES && spec->max_lanes >= 1 && spec->max_slots >= 1);
    p->n_classes = spec->n_classes;
    p->max_lanes = spec->max_lanes;
    p->max_slots = spec->max_slots;
    for (int i = 0; i < p->n_classes; i++)
        if (!page_bytes_of(&spec->classes[i], &page[i])) return err_set(e, ERR_LIMIT, "a K/V page would be too large");
    p->slab_bytes = choose_slab_bytes(page, p->n_classes);
    for (int i = 0; i < p->n_classes; i++) {
        p->cls[i].page_bytes = page[i];
        p->cls[i].per_slab   = (int)(p->slab_bytes / page[i]);
        if (p->cls[i].per_slab > p->max_per_slab) p->max_per_slab = p->cls[i].per_slab;
        if (!init_class(p, &p->cls[i], &spec->classes[i], pages_for(spec->max_slots) + 1, e)) return false;
    }
    if (!init_slabs(p, spec->max_bytes, e)) return false;
    for (int i = 0; i < p->n_classes; i++) p->cls[i].kv.pool = p->memory;
    p->lanes = xnew_n(kv_seq, (size_t)p->max_lanes);
    for (int i = 0; i < p->max_lanes; i++) p->lanes[i] = (kv_seq){.pool = p, .lane = i};
    return true;
}

bool kv_pool_new(kv_pool **out, const ops *o, const kv_pool_spec *spec, err *e)
{
    kv_pool *p = xnew(kv_pool);
    p->o       = o;
    *out       = NULL;
    if (!init_pool(p, spec, e)) {
        kv_pool_free(p);
        return err_wrap(e, "cannot set up the K/V cache");
    }
    *out = p;
    return true;
}

void kv_pool_free(kv_pool *p)
{
    if (!p) return;
    for (int i = 0; i < p->n_classes; i++) {
        mem_free(p->cls[i].table);
        if (p->cls[i].kv.table.p) p->o->free(p->o, p->cls[i].kv.table);
    }
    if (p->memory.p) p->o->free(p->o, p->memory);
    mem_free(p->slabs);
    mem_free(p->refs);
    mem_free(p->lanes);
    mem_free(p);
}

const kv_class *kv_pool_class(const kv_pool *p, int i) { return &p->cls[i].kv; }
uint64_t        kv_pool_key(const kv_pool *p)
{
    uint64_t key = 0;
    for (int i = 0; i < p->n_classes; i++) {
        const kv_class *c = &p->cls[i].kv;
        key               = graph_key_at(graph_key_at(key, c->pool.p), c->table.p);
        key               = graph_key(graph_key(key, (uint64_t)c->table_stride), (uint64_t)c->type);
        key               = graph_key(graph_key(key, (uint64_t)c->n_layers), (uint64_t)c->n_kv_heads);
        key               = graph_key(key, (uint64_t)c->head_dim);
    }
    return key;
}
size_t kv_pool_used_bytes(const kv_pool *p) { return p->used_bytes; }
size_t kv_pool_bytes(const kv_pool *p) { return (size_t)p->n_slabs * p->slab_bytes; }

static int32_t *table_row(const page_class *c, int lane)
{
    return c->table + (size_t)lane * (size_t)c->kv.table_stride;
}

void kv_pool_flush(kv_pool *p, queue *q)
{
    for (int lane = 0; lane < p->max_lanes; lane++) {
        if (!p->lanes[lane].dirty) continue;
        for (int i = 0; i < p->n_classes; i++) {
            page_class *c   = &p->cls[i];
            size_t      row = (size_t)c->kv.table_stride * sizeof(int32_t);
            p->o->upload(q, dev_at(c->kv.table, (size_t)lane * row), table_row(c, lane), row);
        }
        p->lanes[lane].dirty = false;
    }
}

/* --- sequences ----------------------------------------------------------------------------------*/
kv_seq *kv_seq_new(kv_pool *p)
{
    for (int i = 0; i < p->max_lanes; i++)
        if (!p->lanes[i].live) {
            p->lanes[i].live = true;
            return &p->lanes[i];
        }
    return NULL;
}

static void drop_pages_from(kv_seq *s, int first)
{
    for (int i = 0; i < s->pool->n_classes; i++) {
        page_class *c   = &s->pool->cls[i];
        int32_t    *row = table_row(c, s->lane);
        for (int k = first; k < s->n_pages; k++) {
            drop_page(s->pool, c, row[k]);
            row[k] = NO_PAGE;
        }
    }
    if (first < s->n_pages) {
        s->n_pages = first;
        s->dirty   = true;
    }
}

void kv_seq_free(kv_seq *s)
{
    if (!s) return;
    drop_pages_from(s, 0);
    s->n_slots = 0;
    s->live    = false;
}

int     kv_seq_lane(const kv_seq *s) { return s->lane; }
int32_t kv_seq_len(const kv_seq *s) { return s->n_slots; }

/* One more page in every class, or in none. */
static bool add_page(kv_seq *s)
{
    kv_pool *p = s->pool;
    for (int i = 0; i < p->n_classes; i++) {
        int32_t id = take_page(p, &p->cls[i]);
        if (id == NO_PAGE) {
            while (i-- > 0) {
                int32_t *entry = &table_row(&p->cls[i], s->lane)[s->n_pages];
                drop_page(p, &p->cls[i], *entry);
                *entry = NO_PAGE;
            }
            return false;
        }
        table_row(&p->cls[i], s->lane)[s->n_pages] = id;
    }
    s->n_pages++;
    s->dirty = true;
    return true;
}

bool kv_seq_grow(kv_seq *s, int32_t n_slots, err *e)
{
    int before = s->n_pages;
    assert(s->live);
    if (n_slots > s->pool->max_slots)
        return err_set(e, ERR_TOO_LARGE, "a sequence of %d positions is over the limit of %d", n_slots,
                       s->pool->max_slots);
    while (s->n_pages < pages_for(n_slots))
        if (!add_page(s)) {
            drop_pages_from(s, before);
            return err_set(e, ERR_LIMIT, "the K/V cache is full");
        }
    if (n_slots > s->n_slots) s->n_slots = n_slots;
    return true;
}

void kv_seq_cut(kv_seq *s, int32_t n_slots)
{
    assert(n_slots >= 0 && n_slots <= s->n_slots);
    s->n_slots = n_slots;
    drop_pages_from(s, pages_for(n_slots) + 1);
}

/* --- the invariants -----------------------------------------------------------------------------*/
static void check_class(const kv_pool *p, const page_class *c, uint16_t *named)
{
    for (int lane = 0; lane < p->max_lanes; lane++) {
        const kv_seq *s = &p->lanes[lane];
        assert(s->n_pages >= pages_for(s->n_slots)); /* (3) */
        for (int k = 0; k < c->kv.table_stride; k++) {
            int32_t id = table_row(c, lane)[k];
            int     at;
            assert((id != NO_PAGE) == (k < s->n_pages)); /* (3) */
            if (id == NO_PAGE) continue;
            named[refs_of(p, c, id, &at) - p->refs]++;
            assert(p->slabs[at].cls == (int)(c - p->cls)); /* (2) */
        }
    }
}

/* Walks a list of slabs that must all belong to class c; returns how many. */
static int list_length(const kv_pool *p, int first, int c)
{
    int n = 0;
    for (int s = first; s != NO_SLAB; s = p->slabs[s].next) {
        assert(p->slabs[s].cls == c); /* (2) */
        if (c != NO_PAGE) assert(p->slabs[s].n_used < p->cls[c].per_slab);
        assert(++n <= p->n_slabs); /* no cycle */
    }
    return n;
}

/* No slab is lost: the free ones and the partly used ones are all in their lists. */
static void check_lists(const kv_pool *p)
{
    int n_free = 0, n_open[KV_MAX_CLASSES] = {0};
    for (int s = 0; s < p->n_slabs; s++) {
        int c = p->slabs[s].cls;
        if (c == NO_PAGE)
            n_free++;
        else
            n_open[c] += p->slabs[s].n_used < p->cls[c].per_slab;
    }
    assert(list_length(p, p->free_slab, NO_PAGE) == n_free);
    for (int c = 0; c < p->n_classes; c++) assert(list_length(p, p->cls[c].open, c) == n_open[c]);
}

void kv_pool_check(const kv_pool *p)
{
    check_lists(p);
    size_t    n = (size_t)p->n_slabs * (size_t)p->max_per_slab, used = 0;
    uint16_t *named = xnew_n(uint16_t, n);
    for (int i = 0; i < p->n_classes; i++) check_class(p, &p->cls[i], named);
    for (size_t i = 0; i < n; i++) assert(named[i] == p->refs[i]); /* (1) */
    for (int s = 0; s < p->n_slabs; s++) {
        int n_used = 0;
        for (int i = 0; i < p->max_per_slab; i++)
            n_used += p->refs[(size_t)s * (size_t)p->max_per_slab + (size_t)i] > 0;
        assert(n_used == p->slabs[s].n_used && (n_used == 0) == (p->slabs[s].cls == NO_PAGE)); /* (2) */
        if (n_used) used += (size_t)n_used * p->cls[p->slabs[s].cls].page_bytes;
    }
    assert(used == p->used_bytes);
    mem_free(named);
}
