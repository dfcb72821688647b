/* Slabs and pages: free pages, owners and reference counts. */
#include "kv/inside.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

/* --- geometry -----------------------------------------------------------------------------------*/
bool kv_page_bytes(const kv_class_spec *s, size_t *out)
{
    size_t n, head = cache_head_bytes(cache_layout_of(s->types.k), s->head_dim) +
                     cache_head_bytes(cache_layout_of(s->types.v), s->head_dim);
    if (s->sparse.drop) head += 2 * (size_t)s->head_dim * sizeof(uint16_t); /* summaries */
    return size_mul(&n, (size_t)s->n_layers, (size_t)s->n_kv_heads) && size_mul(&n, n, head) &&
           size_add(&n, n, KV_UNIT - 1) && (*out = n / KV_UNIT * KV_UNIT, true);
}

bool kv_state_page_bytes(const kv_state_spec *s, size_t *out)
{
    size_t n;
    assert(s->bytes > 0 && s->bytes % sizeof(float) == 0 && s->row_bytes % sizeof(float) == 0);
    return s->bytes <= INT32_MAX && size_add(&n, s->bytes, KV_UNIT - 1) && (*out = n / KV_UNIT * KV_UNIT, true);
}

/* Returns the share of a slab that the class with the most waste can use. */
static double fill_of(size_t slab_bytes, const size_t *page, int n)
{
    double fill = 1;
    for (int i = 0; i < n; i++) {
        double f = (double)(slab_bytes / page[i] * page[i]) / (double)slab_bytes;
        if (f < fill) fill = f;
    }
    return fill;
}

/* Returns the slab size: a multiple of the largest page, at least min(1 MiB, pool / 64), so that classes added later
 * fit. It is the smallest of eight candidates that every class fills to 95%, or the best of them. */
size_t kv_slab_bytes(const size_t *page, int n, size_t max_bytes)
{
    size_t largest = 0, best = 0, min_bytes = max_bytes / 64 < (1 << 20) ? max_bytes / 64 : 1 << 20;
    double best_fill = 0;
    for (int i = 0; i < n; i++)
        if (page[i] > largest) largest = page[i];
    size_t m = (min_bytes + largest - 1) / largest;
    for (int i = 0; i < 8 && best_fill < 0.95; i++) {
        size_t bytes = (m + (size_t)i + (m == 0)) * largest;
        double fill  = fill_of(bytes, page, n);
        if (fill > best_fill) {
            best_fill = fill;
            best      = bytes;
        }
    }
    return best;
}

/* --- lists --------------------------------------------------------------------------------------*/
static void link_slab(kv_pool *p, int *list, int s)
{
    p->slabs[s].prev = NO_SLAB;
    p->slabs[s].next = *list;
    if (*list != NO_SLAB) p->slabs[*list].prev = s;
    *list = s;
}

static void unlink_slab(kv_pool *p, int *list, int s)
{
    slab *x = &p->slabs[s];
    if (x->prev != NO_SLAB)
        p->slabs[x->prev].next = x->next;
    else
        *list = x->next;
    if (x->next != NO_SLAB) p->slabs[x->next].prev = x->prev;
}

static void clear_pages(page_info *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = (page_info){.node = NO_NODE};
}

bool kv_slabs_init(kv_pool *p, size_t max_bytes, int n_classes, bool wipe, err *e)
{
    size_t n = max_bytes / p->slab_bytes;
    if (n < (size_t)n_classes)
        return err_set(e, ERR_LIMIT, "%zu bytes of K/V memory are not enough: one page of each kind needs %zu",
                       max_bytes, p->slab_bytes * (size_t)n_classes);
    if (n > (size_t)INT32_MAX * KV_UNIT / p->slab_bytes) n = (size_t)INT32_MAX * KV_UNIT / p->slab_bytes;
    p->n_slabs   = (int)n;
    p->free_slab = NO_SLAB;
    p->slabs     = mem_try_n(n, sizeof *p->slabs);
    p->pages     = mem_try_n(n * (size_t)p->max_per_slab, sizeof *p->pages);
    p->moved     = mem_try_n((size_t)p->max_per_slab, sizeof *p->moved);
    if (!p->slabs || !p->pages || !p->moved) return err_set(e, ERR_LIMIT, "no memory to manage %zu slabs of pages", n);
    clear_pages(p->pages, n * (size_t)p->max_per_slab);
    for (int s = p->n_slabs; s-- > 0;) {
        p->slabs[s].cls = NO_CLASS;
        link_slab(p, &p->free_slab, s);
    }
    return p->o->alloc(p->o, &p->memory, n * p->slab_bytes, e) &&
           (!wipe || p->o->alloc(p->o, &p->zeros, p->slab_bytes, e));
}

bool kv_slabs_widen(kv_pool *p, int per_slab, err *e)
{
    if (per_slab <= p->max_per_slab) return true;
    size_t     n = (size_t)p->n_slabs, old = (size_t)p->max_per_slab, wide = (size_t)per_slab;
    page_info *x = mem_try_n(n * wide, sizeof *x);
    int32_t   *m = mem_try_n(wide, sizeof *m);
    if (!x || !m) {
        mem_free(x);
        mem_free(m);
        return err_set(e, ERR_LIMIT, "no memory to manage %zu pages", n * wide);
    }
    clear_pages(x, n * wide);
    for (size_t s = 0; s < n; s++) memcpy(x + s * wide, p->pages + s * old, old * sizeof *x);
    mem_free(p->pages);
    mem_free(p->moved);
    p->pages        = x;
    p->moved        = m;
    p->max_per_slab = per_slab;
    return true;
}

/* --- pages --------------------------------------------------------------------------------------*/
static int32_t page_id(const kv_pool *p, const page_class *c, int s, int i)
{
    return (int32_t)(((size_t)s * p->slab_bytes + (size_t)i * c->page_bytes) / KV_UNIT);
}

int kv_page_slab(const kv_pool *p, int32_t id) { return (int)((size_t)id * KV_UNIT / p->slab_bytes); }

page_info *kv_page_info(const kv_pool *p, const page_class *c, int32_t id)
{
    size_t at = (size_t)id * KV_UNIT;
    return &p->pages[at / p->slab_bytes * (size_t)p->max_per_slab + at % p->slab_bytes / c->page_bytes];
}

static void open_slab(kv_pool *p, int cls)
{
    int s = p->free_slab;
    unlink_slab(p, &p->free_slab, s);
    p->slabs[s] = (slab){.cls = cls};
    link_slab(p, &p->cls[cls].open, s);
    p->cls[cls].n_slabs++;
}

/* Frees a slab that is empty and in no list. */
static void close_slab(kv_pool *p, page_class *c, int s)
{
    c->n_slabs--;
    p->slabs[s].cls = NO_CLASS;
    link_slab(p, &p->free_slab, s);
}

static void count_pinned(kv_pool *p, page_class *c, int by)
{
    c->n_pinned += by;
    p->pinned_bytes += (size_t)by * c->page_bytes;
}

static bool in_use(const page_info *x) { return x->refs || x->node != NO_NODE; }

/* Returns a free page of an open slab, which counts it as used. */
static int32_t place_page(kv_pool *p, int cls, page_info **out)
{
    page_class *c = &p->cls[cls];
    int         s = c->open, i = 0;
    page_info  *x = &p->pages[(size_t)s * (size_t)p->max_per_slab];
    while (in_use(&x[i])) i++;
    assert(i < c->per_slab); /* (2) an open slab has a free page */
    if (++p->slabs[s].n_used == c->per_slab) unlink_slab(p, &c->open, s);
    *out = &x[i];
    return page_id(p, c, s, i);
}

/* Enqueues the overwriting of a page that is free from now on. */
static void wipe_page(kv_pool *p, const page_class *c, int32_t id)
{
    const int n = (int)(c->page_bytes / sizeof(float));
    if (!p->zeros.p) return;
    assert(p->q);
    p->n_wiped++;
    p->o->copy_rows(p->q, dev_at(p->memory, (size_t)id * KV_UNIT), n, p->zeros, n, (dev){0}, 1, n);
}

/* Frees a page without references. */
static void free_page(kv_pool *p, page_class *c, int32_t id)
{
    int s = kv_page_slab(p, id);
    wipe_page(p, c, id);
    c->n_used--;
    p->used_bytes -= c->page_bytes;
    if (p->slabs[s].n_used-- == c->per_slab) link_slab(p, &c->open, s);
    if (p->slabs[s].n_used == 0) { /* (2) */
        unlink_slab(p, &c->open, s);
        close_slab(p, c, s);
    }
}

void kv_page_ref(kv_pool *p, int cls, int32_t id)
{
    page_info *x = kv_page_info(p, &p->cls[cls], id);
    assert(x->refs || x->node != NO_NODE); /* (1) */
    if (x->refs++) return;
    count_pinned(p, &p->cls[cls], 1);
    p->cache.busy(p->cache.ctx, x->node, cls);
}

void kv_page_unref(kv_pool *p, int cls, int32_t id)
{
    page_info *x = kv_page_info(p, &p->cls[cls], id);
    assert(x->refs > 0); /* (1) */
    if (--x->refs) return;
    count_pinned(p, &p->cls[cls], -1);
    if (x->node != NO_NODE)
        p->cache.idle(p->cache.ctx, x->node, cls);
    else
        free_page(p, &p->cls[cls], id);
}

void kv_page_uncache(kv_pool *p, int cls, int32_t id)
{
    page_info *x = kv_page_info(p, &p->cls[cls], id);
    assert(x->node != NO_NODE); /* (5) */
    x->node = NO_NODE;
    if (!x->refs) free_page(p, &p->cls[cls], id);
}

void kv_page_copy(kv_pool *p, int cls, int32_t to, int32_t from)
{
    const int n = (int)(p->cls[cls].page_bytes / sizeof(float));
    assert(p->q);
    p->o->copy_rows(p->q, dev_at(p->memory, (size_t)to * KV_UNIT), n, dev_at(p->memory, (size_t)from * KV_UNIT), n,
                    (dev){0}, 1, n);
}

/* --- room ---------------------------------------------------------------------------------------*/
/* Returns the slab of a class with the fewest pages, if they fit into the free pages of its other slabs, or NO_SLAB. */
static int slab_to_empty(const kv_pool *p, const page_class *c)
{
    int best = NO_SLAB;
    if (c->group == NO_CLASS || c->n_slabs * c->per_slab - c->n_used < c->per_slab) return NO_SLAB;
    for (int s = c->open; s != NO_SLAB; s = p->slabs[s].next)
        if (best == NO_SLAB || p->slabs[s].n_used < p->slabs[best].n_used) best = s;
    return best;
}

/* Updates the table entries that refer to pages of slab s to the ids in p->moved. */
static void rename_pages(kv_pool *p, int cls, int s)
{
    const page_class *c = &p->cls[cls];
    const seq_group  *g = &p->group[c->group];
    for (int i = 0; i < g->max_seqs; i++) {
        kv_seq  *seq = &g->seqs[i];
        int32_t *row = table_row(c, i);
        int32_t  end = c->is_state ? LANE_STATES : seq->n_pages + 1; /* + 1: a page that the sequence is taking now */
        for (int32_t k = seq->of[cls].first; k < end; k++) {
            if (row[k] == NO_PAGE || kv_page_slab(p, row[k]) != s) continue;
            size_t at = (size_t)(row[k] - page_id(p, c, s, 0)) * KV_UNIT;
            kv_seq_set_page(seq, cls, k, p->moved[at / c->page_bytes]);
        }
    }
}

static void empty_slab(kv_pool *p, int cls, int s)
{
    page_class *c = &p->cls[cls];
    page_info  *x = &p->pages[(size_t)s * (size_t)p->max_per_slab], *to;
    unlink_slab(p, &c->open, s);
    for (int i = 0; i < c->per_slab; i++) {
        if (!in_use(&x[i])) continue;
        p->moved[i] = place_page(p, cls, &to);
        kv_page_copy(p, cls, p->moved[i], page_id(p, c, s, i));
        wipe_page(p, c, page_id(p, c, s, i));
        if (x[i].node != NO_NODE) p->cache.moved(p->cache.ctx, x[i].node, cls, p->moved[i]);
        *to  = x[i];
        x[i] = (page_info){.node = NO_NODE};
    }
    rename_pages(p, cls, s);
    p->slabs[s].n_used = 0;
    close_slab(p, c, s);
}

/* Frees a slab by moving its pages into other slabs of its class. */
static bool merge_slabs(kv_pool *p)
{
    int    best_class = NO_CLASS, best = NO_SLAB;
    size_t min_bytes = SIZE_MAX;
    for (int i = 0; i < KV_MAX_CLASSES && p->q; i++) {
        int s = slab_to_empty(p, &p->cls[i]);
        if (s == NO_SLAB || (size_t)p->slabs[s].n_used * p->cls[i].page_bytes >= min_bytes) continue;
        min_bytes  = (size_t)p->slabs[s].n_used * p->cls[i].page_bytes;
        best_class = i;
        best       = s;
    }
    if (best == NO_SLAB) return false;
    empty_slab(p, best_class, best);
    return true;
}

/* Merges slabs before it evicts: moving pages costs less than computing them again. */
static bool make_room(kv_pool *p) { return merge_slabs(p) || (p->cache.evict && p->cache.evict(p->cache.ctx)); }

int32_t kv_page_take(kv_pool *p, int cls)
{
    page_class *c = &p->cls[cls];
    page_info  *x;
    while (c->open == NO_SLAB && p->free_slab == NO_SLAB)
        if (!make_room(p)) {
            assert(!p->q || !kv_within_reserved(p, cls)); /* (7) */
            return NO_PAGE;
        }
    if (c->open == NO_SLAB) open_slab(p, cls);
    int32_t id = place_page(p, cls, &x);
    x->refs    = 1;
    c->n_used++;
    p->used_bytes += c->page_bytes;
    count_pinned(p, c, 1);
    return id;
}
