/* Reservations. Proof that a reserved page can always be taken: suppose that sequences refer to at most the reserved
 * pages of each class, and that taking a page of class c fails. Then no page is idle, no slab is free, all slabs of c
 * are full, and no class has free pages worth a slab. So each class d has at most ceil(pinned pages of d / pages per
 * slab of d) slabs, which is at most its reservation, and c has fewer than its reservation. All slabs together are
 * fewer than those of the pool, so one is free: a contradiction. */
#include "kv/inside.h"

#include <assert.h>

void kv_need_add(const kv_pool *p, kv_need *n, int group, int32_t n_slots, int32_t n_unsettled)
{
    const seq_group *g = &p->group[group];
    if (n_slots > g->max_slots) n_slots = g->max_slots;
    for (int i = g->first_class; i < g->first_class + g->n_classes; i++) {
        /* pages of the positions that unsettled rows see, for any alignment */
        int32_t all = pages_for(n_slots), seen = p->cls[i].window - 1 + n_unsettled,
                some = (seen + KV_PAGE - 2) / KV_PAGE + 1;
        n->pages[i] += p->cls[i].window > 0 && some < all ? some : all;
    }
    for (int i = 0; i < g->n_states; i++) n->pages[state_class(p, i)] += LANE_STATES;
}

/* Returns the number of slabs for the pages of n and, unless `alone`, all reserved pages. */
static int64_t slabs_for(const kv_pool *p, const kv_need *n, bool alone)
{
    int64_t slabs = 0;
    for (int i = 0; i < KV_MAX_CLASSES; i++) {
        const page_class *c     = &p->cls[i];
        int64_t           pages = (n ? n->pages[i] : 0) + (int64_t)(alone ? 0 : c->reserved);
        if (pages > 0) slabs += (pages + c->per_slab - 1) / c->per_slab;
    }
    return slabs;
}

static bool slabs_fit(const kv_pool *p, int64_t slabs, double share)
{
    return (double)slabs <= share * p->n_slabs + 1e-6;
}

size_t kv_need_bytes(const kv_pool *p, const kv_need *n) { return (size_t)slabs_for(p, n, true) * p->slab_bytes; }
size_t kv_pool_reserved_bytes(const kv_pool *p) { return (size_t)slabs_for(p, NULL, false) * p->slab_bytes; }

bool kv_could_reserve(const kv_pool *p, const kv_need *n, double share)
{
    return slabs_fit(p, slabs_for(p, n, true), share);
}

bool kv_reserve(kv_pool *p, const kv_need *n, double share)
{
    assert(share <= 1);
    if (!slabs_fit(p, slabs_for(p, n, false), share)) return false;
    for (int i = 0; i < KV_MAX_CLASSES; i++) p->cls[i].reserved += n->pages[i];
    return true;
}

void kv_unreserve(kv_pool *p, const kv_need *n)
{
    for (int i = 0; i < KV_MAX_CLASSES; i++) {
        assert(p->cls[i].reserved >= n->pages[i]);
        p->cls[i].reserved -= n->pages[i];
    }
}

bool kv_within_reserved(const kv_pool *p, int cls)
{
    for (int i = 0; i < KV_MAX_CLASSES; i++)
        if (p->cls[i].n_pinned + (i == cls) > p->cls[i].reserved) return false;
    return true;
}
