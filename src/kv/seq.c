/* Sequences: their lists of pages, and sharing of pages. */
#include "base/num.h"
#include "kv/inside.h"

#include <assert.h>
#include <string.h>

#define EACH_CLASS(s, i)                                                                                               \
    for (int i = (s)->pool->group[(s)->group].first_class, end_ = i + (s)->pool->group[(s)->group].n_classes;          \
         i < end_; i++)

static int32_t *row_of(const kv_seq *s, int cls) { return table_row(&s->pool->cls[cls], s->lane); }

static void mark_dirty(kv_seq *s, int cls, int32_t from, int32_t to)
{
    bool clean            = s->of[cls].dirty_from >= s->of[cls].dirty_to;
    s->of[cls].dirty_from = clean ? from : min_int(s->of[cls].dirty_from, from);
    s->of[cls].dirty_to   = clean ? to : max_int(s->of[cls].dirty_to, to);
    s->dirty              = true;
}

void kv_seq_set_page(kv_seq *s, int cls, int32_t k, int32_t id)
{
    row_of(s, cls)[k] = id;
    mark_dirty(s, cls, k, k + 1);
}

void kv_seq_release(kv_seq *s, int cls, int32_t k)
{
    int32_t id = row_of(s, cls)[k];
    kv_seq_set_page(s, cls, k, NO_PAGE);
    kv_page_unref(s->pool, cls, id);
}

/* --- creation ---------------------------------------------------------------------------------------*/
kv_seq *kv_seq_new(kv_pool *p, int group)
{
    seq_group *g = &p->group[group];
    assert(g->n_classes > 0);
    for (int i = 0; i < g->max_seqs; i++)
        if (!g->seqs[i].live) {
            g->seqs[i].live = true;
            return &g->seqs[i];
        }
    return NULL;
}

/* Releases pages from the end, so that in the prefix tree a page becomes idle before its predecessor. */
static void drop_pages_from(kv_seq *s, int32_t first)
{
    EACH_CLASS(s, i)
    {
        for (int32_t k = s->n_pages; k-- > max_int(first, s->of[i].first);) kv_seq_release(s, i, k);
        s->of[i].first = min_int(s->of[i].first, first);
    }
    s->n_pages = min_int(s->n_pages, first);
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

/* Returns whether the sequence has all pages that a row at n_slots sees. */
static bool has_window(const kv_seq *s, int32_t n_slots)
{
    EACH_CLASS(s, i)
    if (s->of[i].first > first_seen_page(&s->pool->cls[i], n_slots)) return false;
    return true;
}

kv_seq *kv_seq_fork(kv_seq *s, int32_t n_slots)
{
    assert(s->live && n_slots >= 0 && n_slots <= s->n_slots && has_window(s, n_slots)); /* (3) */
    kv_seq *f = kv_seq_new(s->pool, s->group);
    if (!f) return NULL;
    f->n_slots = n_slots;
    f->n_pages = pages_for(n_slots);
    EACH_CLASS(s, i)
    {
        f->of[i].first = s->of[i].first;
        for (int32_t k = f->of[i].first; k < f->n_pages; k++) {
            kv_page_ref(s->pool, i, row_of(s, i)[k]);
            kv_seq_set_page(f, i, k, row_of(s, i)[k]);
        }
    }
    return f;
}

/* --- room ---------------------------------------------------------------------------------------*/
/* Adds one page in every class, or in none. */
static bool add_page(kv_seq *s)
{
    EACH_CLASS(s, i)
    {
        int32_t id = kv_page_take(s->pool, i);
        if (id == NO_PAGE) {
            while (i-- > s->pool->group[s->group].first_class) kv_seq_release(s, i, s->n_pages);
            return false;
        }
        kv_seq_set_page(s, i, s->n_pages, id);
    }
    s->n_pages++;
    return true;
}

/* Replaces a page that has other references by a private one, with the same content when `copy` is set. */
static bool own_page(kv_seq *s, int cls, int32_t k, bool copy)
{
    kv_pool          *p = s->pool;
    const page_class *c = &p->cls[cls];
    const page_info  *x = kv_page_info(p, c, row_of(s, cls)[k]);
    if (x->refs == 1 && x->node == NO_NODE) return true;
    int32_t id = kv_page_take(p, cls), old = row_of(s, cls)[k]; /* taking first: it may move pages */
    x = kv_page_info(p, c, old);
    if (id == NO_PAGE && x->refs > 1) return false;
    if (id == NO_PAGE) { /* only the tree and this sequence refer to it: the tree removes its page */
        if (x->node != NO_NODE) p->cache.remove(p->cache.ctx, x->node, cls);
        return true;
    }
    if (copy) kv_page_copy(p, cls, id, old);
    kv_seq_set_page(s, cls, k, id);
    kv_page_unref(p, cls, old);
    return true;
}

/* Makes the pages from slot n_slots on private, up to page end - 1. */
static bool own_pages(kv_seq *s, int32_t end)
{
    for (int32_t k = s->n_slots / KV_PAGE; k < end; k++) EACH_CLASS(s, i)
    if (!own_page(s, i, k, k * KV_PAGE < s->n_slots)) return false;
    return true;
}

bool kv_seq_grow(kv_seq *s, int32_t n_slots, err *e)
{
    int32_t before = s->n_pages, limit = s->pool->group[s->group].max_slots, need = pages_for(n_slots);
    bool    ok = true;
    assert(s->live);
    if (n_slots > limit)
        return err_set(e, ERR_TOO_LARGE, "a sequence of %d positions is over the limit of %d", n_slots, limit);
    if (n_slots <= s->n_slots) return true;
    while (ok && s->n_pages < need) ok = add_page(s);
    if (!ok || !own_pages(s, min_int(before, need))) {
        drop_pages_from(s, before);
        return err_set(e, ERR_LIMIT, "the K/V cache is full");
    }
    s->n_slots = n_slots;
    return true;
}

bool kv_seq_own(kv_seq *s, int page_index, err *e)
{
    assert(s->live && s->group != 0 && page_index >= 0 && page_index < s->n_pages);
    EACH_CLASS(s, i)
    if (page_index >= s->of[i].first && !own_page(s, i, page_index, true))
        return err_set(e, ERR_LIMIT, "the K/V cache is full");
    return true;
}

void kv_seq_cut(kv_seq *s, int32_t n_slots)
{
    assert(n_slots >= 0 && n_slots <= s->n_slots && (n_slots == 0 || has_window(s, n_slots))); /* (3) */
    int32_t keep = pages_for(n_slots);
    s->n_slots   = n_slots;
    drop_pages_from(s, has_window(s, n_slots) ? keep + 1 : keep);
}

void kv_seq_settle(kv_seq *s, int32_t n_slots)
{
    assert(n_slots >= 0 && n_slots <= s->n_slots);
    EACH_CLASS(s, i)
    {
        int32_t first = first_seen_page(&s->pool->cls[i], n_slots);
        for (int32_t k = first; k-- > s->of[i].first;) kv_seq_release(s, i, k);
        s->of[i].first = max_int(s->of[i].first, first);
    }
}

void kv_seq_drop(kv_seq *s, int first_page, int n_pages)
{
    int32_t end = first_page + n_pages;
    assert(s->group != 0 && first_page >= 0 && n_pages >= 0 && end * KV_PAGE <= s->n_slots);
    EACH_CLASS(s, i)
    {
        int32_t *row = row_of(s, i);
        assert(s->of[i].first <= first_page);
        for (int32_t k = end; k-- > first_page;) kv_seq_release(s, i, k);
        memmove(row + first_page, row + end, (size_t)(s->n_pages - end) * sizeof *row);
        for (int32_t k = s->n_pages - n_pages; k < s->n_pages; k++) row[k] = NO_PAGE;
        mark_dirty(s, i, first_page, s->n_pages);
    }
    s->n_pages -= n_pages;
    s->n_slots -= n_pages * KV_PAGE;
}
