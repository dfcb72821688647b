/* The pool: its classes and the tables that the device reads. */
#include "kv/inside.h"

#include "base/mem.h"

#include <assert.h>

/* Sets page[i] to the bytes of a page of each class, state classes last. */
static bool all_page_bytes(const kv_pool_spec *spec, size_t page[KV_MAX_CLASSES])
{
    assert(spec->n_classes >= 1 && spec->n_states <= KV_MAX_STATES);
    assert(spec->n_classes + spec->n_states <= KV_MAX_CLASSES);
    for (int i = 0; i < spec->n_classes; i++)
        if (!kv_page_bytes(&spec->classes[i], &page[i])) return false;
    for (int i = 0; i < spec->n_states; i++)
        if (!kv_state_page_bytes(&spec->states[i], &page[spec->n_classes + i])) return false;
    return true;
}

/* Sets *out to the bytes of the whole slabs that a lane takes in a pool of max_bytes. */
static bool lane_bytes(const kv_pool_spec *spec, int n_slots, size_t max_bytes, size_t *out)
{
    size_t page[KV_MAX_CLASSES] = {0}, n_slabs = 0;
    int    n = spec->n_classes + spec->n_states;
    if (!all_page_bytes(spec, page)) return false;
    size_t slab_bytes = kv_slab_bytes(page, n, max_bytes);
    for (int i = 0; i < n; i++) {
        size_t per_slab = slab_bytes / page[i], pages = i < spec->n_classes ? (size_t)pages_for(n_slots) : LANE_STATES;
        n_slabs += (pages + per_slab - 1) / per_slab;
    }
    return size_mul(out, n_slabs, slab_bytes);
}

size_t kv_bytes_per_pos(const kv_class_spec *s)
{
    size_t page;
    return kv_page_bytes(s, &page) ? page / KV_PAGE : 0; /* exact: a page is a multiple of KV_UNIT */
}

bool kv_kept_bytes(const kv_pool_spec *spec, size_t *out)
{
    size_t bytes = 0, n;
    for (int i = 0; i < spec->n_states; i++)
        if (!size_mul(&n, spec->states[i].row_bytes, (size_t)spec->max_kept_rows) || !size_add(&bytes, bytes, n))
            return false;
    *out = bytes;
    return true;
}

bool kv_bytes_for(const kv_pool_spec *spec, int n_slots, size_t *out)
{
    size_t need = 0, kept;
    do { /* a larger pool has larger slabs, up to a point */
        *out = need;
        if (!lane_bytes(spec, n_slots, *out, &need)) return false;
    } while (need > *out);
    return kv_kept_bytes(spec, &kept) && size_add(out, *out, kept);
}

/* --- classes ------------------------------------------------------------------------------------*/
static bool init_group(kv_pool *p, int at, int n_classes, int max_seqs, int max_slots, err *e)
{
    seq_group *g = &p->group[at];
    assert(max_seqs >= 1 && max_slots >= 1);
    *g = (seq_group){.first_class = at,
                     .n_classes   = n_classes,
                     .max_seqs    = max_seqs,
                     .max_slots   = max_slots,
                     .seqs        = mem_try_n((size_t)max_seqs, sizeof *g->seqs)};
    if (!g->seqs) return err_set(e, ERR_LIMIT, "no memory for %d sequences", max_seqs);
    for (int i = 0; i < max_seqs; i++) g->seqs[i] = (kv_seq){.pool = p, .group = at, .lane = i};
    return true;
}

/* Sets up the table of a class whose page_bytes is set. */
static bool init_table(kv_pool *p, int cls, int group, int stride, err *e)
{
    page_class *c      = &p->cls[cls];
    size_t      n      = (size_t)p->group[group].max_seqs * (size_t)stride;
    c->kv.table_stride = stride;
    c->kv.pool         = p->memory;
    c->group           = group;
    c->per_slab        = (int)(p->slab_bytes / c->page_bytes);
    c->open            = NO_SLAB;
    c->table           = mem_try_n(n, sizeof *c->table);
    if (!c->table) return err_set(e, ERR_LIMIT, "no memory for a page table of %zu entries", n);
    for (size_t i = 0; i < n; i++) c->table[i] = NO_PAGE;
    for (int i = 0; i < p->group[group].max_seqs; i++) {
        p->group[group].seqs[i].dirty            = true;
        p->group[group].seqs[i].of[cls].dirty_to = stride;
    }
    return p->o->alloc(p->o, &c->kv.table, n * sizeof *c->table, e);
}

/* Reserves the scratch for a row of sparse attention that sees all positions. */
static bool reserve_sparse(kv_pool *p, int group, const kv_class_spec *s, err *e)
{
    size_t heads   = (size_t)(s->n_heads ? s->n_heads : s->n_kv_heads),
           pages   = (size_t)pages_for(p->group[group].max_slots);
    queue_limits l = {.sparse = heads * ((pages + 15) / 16 * 16)};
    return p->o->queue_reserve(p->q, &l, e) || err_wrap(e, "sparse attention over %zu pages", pages);
}

static bool init_class(kv_pool *p, int cls, int group, const kv_class_spec *s, err *e)
{
    page_class *c = &p->cls[cls];
    if (!ops_check_kv(p->o, s->types, s->head_dim, e)) return false;
    if (s->sparse.drop && !p->o->kv_sparse)
        return err_set(e, ERR_INPUT, "sparse attention is not supported on %s: set --sparse-fa to 0", p->o->name);
    assert(!s->sparse.drop || p->q);
    if (s->sparse.drop && !reserve_sparse(p, group, s, e)) return false;
    if (!kv_page_bytes(s, &c->page_bytes)) return err_set(e, ERR_LIMIT, "a K/V page is too large");
    c->kv     = (kv_class){.n_layers   = s->n_layers,
                           .n_kv_heads = s->n_kv_heads,
                           .head_dim   = s->head_dim,
                           .types      = s->types,
                           .sparse     = s->sparse};
    c->window = s->window;
    return init_table(p, cls, group, pages_for(p->group[group].max_slots) + 1, e);
}

static bool init_state_class(kv_pool *p, int i, const kv_state_spec *s, err *e)
{
    page_class *c = &p->cls[state_class(p, i)];
    if (!kv_state_page_bytes(s, &c->page_bytes)) return err_set(e, ERR_LIMIT, "a lane's state is too large");
    c->is_state = true;
    p->group[0].n_states++;
    return init_table(p, state_class(p, i), 0, LANE_STATES, e);
}

static void free_class(kv_pool *p, int cls)
{
    page_class *c = &p->cls[cls];
    mem_free(c->table);
    if (c->kv.table.p) p->o->free(p->o, c->kv.table);
    mem_free(p->group[cls].seqs);
    *c            = (page_class){.group = NO_CLASS};
    p->group[cls] = (seq_group){0};
}

static bool add_class(kv_pool *p, int cls, const kv_class_spec *s, int max_seqs, int max_slots, err *e)
{
    return init_group(p, cls, 1, max_seqs, max_slots, e) && init_class(p, cls, cls, s, e) &&
           kv_slabs_widen(p, p->cls[cls].per_slab, e);
}

bool kv_pool_add_class(kv_pool *p, const kv_class_spec *s, int max_seqs, int max_slots, int *cls, err *e)
{
    size_t bytes;
    *cls = p->group[0].n_classes;
    while (*cls < KV_MAX_CLASSES && p->cls[*cls].group != NO_CLASS) ++*cls;
    if (*cls == KV_MAX_CLASSES) return err_set(e, ERR_LIMIT, "the K/V cache cannot hold another kind of page");
    if (!kv_page_bytes(s, &bytes) || bytes > p->slab_bytes)
        return err_set(e, ERR_LIMIT, "a K/V page of %zu bytes does not fit into a cache of %zu", bytes,
                       kv_pool_bytes(p));
    if (add_class(p, *cls, s, max_seqs, max_slots, e)) return true;
    free_class(p, *cls);
    return err_wrap(e, "cannot add to the K/V cache");
}

void kv_pool_drop_class(kv_pool *p, int cls)
{
    assert(cls >= p->group[0].n_classes && p->cls[cls].group == cls && p->cls[cls].reserved == 0);
    for (int i = 0; i < p->group[cls].max_seqs; i++) assert(!p->group[cls].seqs[i].live);
    if (p->cache.drop_class) p->cache.drop_class(p->cache.ctx, cls);
    assert(p->cls[cls].n_used == 0);
    free_class(p, cls);
}

/* --- the pool -----------------------------------------------------------------------------------*/
/* The prefix tree needs a class whose pages a sequence never releases: the anchor. */
static void choose_anchor(kv_pool *p)
{
    for (int i = 0; i < p->group[0].n_classes; i++)
        if (p->cls[i].window == 0) return;
    p->cls[0].window = 0;
}

static bool init_pool(kv_pool *p, const kv_pool_spec *spec, err *e)
{
    size_t page[KV_MAX_CLASSES] = {0}, kept, bytes = spec->max_bytes;
    int    n = spec->n_classes + spec->n_states;
    if (!all_page_bytes(spec, page) || !kv_kept_bytes(spec, &kept))
        return err_set(e, ERR_LIMIT, "a K/V page is too large");
    bytes         = bytes > kept ? bytes - kept : 0;
    p->slab_bytes = kv_slab_bytes(page, n, bytes);
    for (int i = 0; i < n; i++)
        if ((int)(p->slab_bytes / page[i]) > p->max_per_slab) p->max_per_slab = (int)(p->slab_bytes / page[i]);
    if (!kv_slabs_init(p, bytes, n, spec->wipe, e)) return false;
    if (!init_group(p, 0, spec->n_classes, spec->max_lanes, spec->max_slots, e)) return false;
    for (int i = 0; i < spec->n_classes; i++)
        if (!init_class(p, i, 0, &spec->classes[i], e)) return false;
    for (int i = 0; i < spec->n_states; i++)
        if (!init_state_class(p, i, &spec->states[i], e)) return false;
    choose_anchor(p);
    return kv_lanes_init(p, spec, e);
}

bool kv_pool_new(kv_pool **out, const ops *o, const kv_pool_spec *spec, err *e)
{
    kv_pool *p = xnew(kv_pool);
    p->o       = o;
    p->q       = spec->q;
    *out       = NULL;
    for (int i = 0; i < KV_MAX_CLASSES; i++) p->cls[i].group = NO_CLASS;
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
    kv_lanes_deinit(p);
    for (int i = 0; i < KV_MAX_CLASSES; i++) free_class(p, i);
    if (p->memory.p) p->o->free(p->o, p->memory);
    if (p->zeros.p) p->o->free(p->o, p->zeros);
    mem_free(p->slabs);
    mem_free(p->pages);
    mem_free(p->moved);
    mem_free(p);
}

const kv_class *kv_pool_class(const kv_pool *p, int i) { return &p->cls[i].kv; }
const kv_state *kv_pool_state(const kv_pool *p, int i) { return &p->state[i]; }

uint64_t kv_pool_key(const kv_pool *p)
{
    uint64_t key = 0;
    for (int i = 0; i < KV_MAX_CLASSES; i++) {
        const kv_class *c = &p->cls[i].kv;
        key               = graph_key_at(graph_key_at(key, c->pool.p), c->table.p);
        key               = graph_key(graph_key(key, (uint64_t)c->table_stride), (uint64_t)c->types.k);
        key               = graph_key(graph_key(key, (uint64_t)c->n_layers), (uint64_t)c->n_kv_heads);
        key               = graph_key(graph_key(key, (uint64_t)c->head_dim), (uint64_t)c->types.v);
        key               = graph_key(key, c->sparse.drop);
    }
    for (int i = 0; i < p->group[0].n_states; i++)
        key = graph_key(graph_key_at(key, p->state[i].kept.p), (uint64_t)p->state[i].row_bytes);
    return key;
}

size_t  kv_pool_pinned_bytes(const kv_pool *p) { return p->pinned_bytes; }
int64_t kv_pool_wiped(const kv_pool *p) { return p->n_wiped; }
size_t  kv_pool_bytes(const kv_pool *p) { return (size_t)p->n_slabs * p->slab_bytes; }

int kv_pool_classes(const kv_pool *p, kv_class_use out[KV_MAX_CLASSES])
{
    int n = 0;
    for (int i = 0; i < KV_MAX_CLASSES; i++) {
        const page_class *c = &p->cls[i];
        if (c->group == NO_CLASS) continue;
        out[n++] = (kv_class_use){.is_state = c->is_state,
                                  .is_draft = c->group > 0,
                                  .window   = c->window,
                                  .held     = (size_t)c->n_slabs * p->slab_bytes,
                                  .used     = (size_t)c->n_used * c->page_bytes,
                                  .pinned   = (size_t)c->n_pinned * c->page_bytes,
                                  .reserved = (size_t)c->reserved * c->page_bytes};
    }
    return n;
}

/* --- the device's tables ------------------------------------------------------------------------*/
static void flush_seq(kv_pool *p, kv_seq *s, queue *q)
{
    for (int i = 0; i < KV_MAX_CLASSES; i++) {
        const page_class *c    = &p->cls[i];
        int32_t           from = s->of[i].dirty_from, n = s->of[i].dirty_to - from;
        if (n <= 0) continue;
        size_t at = (size_t)s->lane * (size_t)c->kv.table_stride + (size_t)from;
        p->o->upload(q, dev_at(c->kv.table, at * sizeof *c->table), c->table + at, (size_t)n * sizeof *c->table);
        s->of[i].dirty_from = s->of[i].dirty_to = 0;
    }
    s->dirty = false;
}

void kv_pool_flush(kv_pool *p, queue *q)
{
    for (int g = 0; g < KV_MAX_CLASSES; g++)
        for (int i = 0; i < p->group[g].max_seqs; i++)
            if (p->group[g].seqs[i].dirty) flush_seq(p, &p->group[g].seqs[i], q);
}
