/* Checks the invariants of kv/pages.h by counting everything again. */
#include "kv/inside.h"

#include "base/mem.h"

#include <assert.h>

static void check_row(const kv_pool *p, const kv_seq *s, int cls, uint16_t *named)
{
    const page_class *c = &p->cls[cls];
    assert(s->of[cls].first <= first_seen_page(c, s->n_slots)); /* (3) */
    for (int32_t k = 0; k < c->kv.table_stride; k++) {
        int32_t id = table_row(c, s->lane)[k];
        assert((id != NO_PAGE) == (k >= s->of[cls].first && k < s->n_pages)); /* (3) */
        if (id == NO_PAGE) continue;
        assert(p->slabs[kv_page_slab(p, id)].cls == cls); /* (3) */
        named[kv_page_info(p, c, id) - p->pages]++;
    }
}

/* Checks (8): the states of a lane. */
static void check_states(const kv_pool *p, const kv_seq *s, uint16_t *named)
{
    const kv_lane *l = &p->lanes[s->lane];
    for (int i = 0; i < p->group[0].n_states; i++) {
        int            cls = state_class(p, i);
        const int32_t *row = table_row(&p->cls[cls], s->lane), *first = table_row(&p->cls[state_class(p, 0)], s->lane);
        assert((row[LIVE_STATE] == NO_PAGE) == (first[LIVE_STATE] == NO_PAGE)); /* (8) */
        assert((row[SAVED_STATE] == NO_PAGE) == (l->n_saved == 0));             /* (8) */
        for (int k = 0; k < LANE_STATES; k++)
            if (row[k] != NO_PAGE) named[kv_page_info(p, &p->cls[cls], row[k]) - p->pages]++;
    }
}

static void check_seq(const kv_pool *p, const kv_seq *s, uint16_t *named)
{
    const seq_group *g = &p->group[s->group];
    assert(s->n_pages >= pages_for(s->n_slots)); /* (3) */
    if (!s->live) assert(s->n_pages == 0);
    for (int i = g->first_class; i < g->first_class + g->n_classes; i++) check_row(p, s, i, named);
    if (s->group == 0) check_states(p, s, named);
}

/* Returns the length of a list of slabs, which must all belong to class c. */
static int list_length(const kv_pool *p, int first, int c)
{
    int n = 0;
    for (int s = first, prev = NO_SLAB; s != NO_SLAB; prev = s, s = p->slabs[s].next) {
        assert(p->slabs[s].cls == c && p->slabs[s].prev == prev); /* (2) */
        if (c != NO_CLASS) assert(p->slabs[s].n_used < p->cls[c].per_slab);
        assert(++n <= p->n_slabs); /* no cycle */
    }
    return n;
}

/* Checks that all free and all partly used slabs are in their lists. */
static void check_lists(const kv_pool *p)
{
    int n_free = 0, n_open[KV_MAX_CLASSES] = {0}, n_slabs[KV_MAX_CLASSES] = {0};
    for (int s = 0; s < p->n_slabs; s++) {
        int c = p->slabs[s].cls;
        n_free += c == NO_CLASS;
        if (c == NO_CLASS) continue;
        n_slabs[c]++;
        n_open[c] += p->slabs[s].n_used < p->cls[c].per_slab;
    }
    assert(list_length(p, p->free_slab, NO_CLASS) == n_free);
    for (int c = 0; c < KV_MAX_CLASSES; c++) {
        assert(n_slabs[c] == p->cls[c].n_slabs); /* (4) */
        if (p->cls[c].group != NO_CLASS) assert(list_length(p, p->cls[c].open, c) == n_open[c]);
    }
}

typedef struct {
    int    used[KV_MAX_CLASSES], pinned[KV_MAX_CLASSES];
    size_t used_bytes, pinned_bytes;
} tally;

static void check_slab(const kv_pool *p, int s, tally *sum)
{
    int cls = p->slabs[s].cls, n_used = 0;
    for (int i = 0; i < p->max_per_slab; i++) {
        const page_info *x = &p->pages[(size_t)s * (size_t)p->max_per_slab + (size_t)i];
        if (!x->refs && x->node == NO_NODE) continue;
        assert(cls != NO_CLASS && i < p->cls[cls].per_slab); /* (2) */
        n_used++;
        sum->used[cls]++;
        sum->pinned[cls] += x->refs > 0;
        sum->used_bytes += p->cls[cls].page_bytes;
        if (x->refs) sum->pinned_bytes += p->cls[cls].page_bytes;
    }
    assert(n_used == p->slabs[s].n_used && (n_used == 0) == (cls == NO_CLASS)); /* (2) */
}

void kv_pool_check(const kv_pool *p)
{
    size_t    n     = (size_t)p->n_slabs * (size_t)p->max_per_slab;
    uint16_t *named = xnew_n(uint16_t, n);
    tally     sum   = {0};
    check_lists(p);
    for (int g = 0; g < KV_MAX_CLASSES; g++)
        for (int i = 0; i < p->group[g].max_seqs; i++) check_seq(p, &p->group[g].seqs[i], named);
    for (size_t i = 0; i < n; i++) assert(named[i] == p->pages[i].refs); /* (1) */
    for (int s = 0; s < p->n_slabs; s++) check_slab(p, s, &sum);
    assert(sum.used_bytes == p->used_bytes && sum.pinned_bytes == p->pinned_bytes); /* (4) */
    for (int c = 0; c < KV_MAX_CLASSES; c++)
        assert(sum.used[c] == p->cls[c].n_used && sum.pinned[c] == p->cls[c].n_pinned); /* (4) */
    mem_free(named);
    assert(kv_pool_reserved_bytes(p) <= kv_pool_bytes(p)); /* (7) */
    if (p->cache.check) p->cache.check(p->cache.ctx);
}
