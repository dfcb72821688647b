#include "kv_rig.h"
#include "kv/inside.h"

const kv_class_spec kv_rig_classes[2] = {
    {.n_layers = 2, .n_kv_heads = 1, .head_dim = 8, .types = {CACHE_F32, CACHE_F32}, .window = 0},
    {.n_layers = 3, .n_kv_heads = 2, .head_dim = 8, .types = {CACHE_F16, CACHE_F16}, .window = RIG_WINDOW},
};
const kv_class_spec kv_rig_drafter = {
    .n_layers = 1, .n_kv_heads = 1, .head_dim = 8, .types = {CACHE_F32, CACHE_F32}, .window = 0};

kv_rig kv_rig_open(test_case *t, size_t max_bytes, int max_lanes, int max_slots)
{
    kv_rig       g    = {.t = t};
    err          e    = {0};
    queue_limits lim  = {.max_rows = 1, .max_in = 8, .max_vocab = 8};
    kv_pool_spec spec = {.classes   = kv_rig_classes,
                         .n_classes = COUNT(kv_rig_classes),
                         .max_bytes = max_bytes,
                         .max_lanes = max_lanes,
                         .max_slots = max_slots};
    if (!max_bytes) CHECK(kv_bytes_for(&spec, max_slots, &spec.max_bytes));
    CHECK_OK(ops_open(&g.o, "ref", 1, &e), e);
    CHECK_OK(g.o->queue_new(g.o, &g.q, &lim, &e), e);
    spec.q = g.q;
    CHECK_OK(kv_pool_new(&g.p, g.o, &spec, &e), e);
    CHECK_OK(kv_prefix_new(&g.tree, g.p, &e), e);
    return g;
}

void kv_rig_close(kv_rig *g)
{
    kv_pool_check(g->p);
    kv_prefix_free(g->tree);
    kv_pool_check(g->p);
    kv_pool_free(g->p);
    g->o->queue_free(g->q);
    ops_close(g->o);
}

int32_t kv_rig_entry(kv_rig *g, int cls, const kv_seq *s, int page)
{
    const kv_class *c = kv_pool_class(g->p, cls);
    kv_pool_flush(g->p, g->q);
    return ((const int32_t *)c->table.p)[kv_seq_lane(s) * c->table_stride + page];
}

/* Where the vector of a slot begins in plane 0, and the bytes to the next plane. */
static char *vector(kv_rig *g, int cls, const kv_seq *s, int32_t slot, size_t *step)
{
    const kv_class *c  = kv_pool_class(g->p, cls);
    int32_t         id = kv_rig_entry(g, cls, s, slot / KV_PAGE);
    *step              = kv_plane_bytes(c, c->types.k) / (size_t)c->n_kv_heads; /* K and V have one type here */
    if (!test_check(g->t, id >= 0, __FILE__, __LINE__, "slot %d of class %d has no page", slot, cls)) return NULL;
    return (char *)c->pool.p + (size_t)id * KV_UNIT + (size_t)(slot % KV_PAGE) * (*step / KV_PAGE);
}

static int n_planes(const kv_rig *g, int cls)
{
    const kv_class *c = kv_pool_class(g->p, cls);
    return c->n_layers * 2 * c->n_kv_heads;
}

void kv_rig_write(kv_rig *g, int cls, const kv_seq *s, int32_t slot, uint32_t tag)
{
    size_t step;
    char  *at = vector(g, cls, s, slot, &step);
    for (int i = 0; at && i < n_planes(g, cls); i++) memcpy(at + (size_t)i * step, &tag, sizeof tag);
}

uint32_t kv_rig_read(kv_rig *g, int cls, const kv_seq *s, int32_t slot)
{
    size_t   step;
    char    *at  = vector(g, cls, s, slot, &step);
    uint32_t tag = 0, other;
    for (int i = 0; at && i < n_planes(g, cls); i++) {
        memcpy(&other, at + (size_t)i * step, sizeof other);
        if (i == 0) tag = other;
        if (tag != other) return 0;
    }
    return tag;
}

void kv_rig_extend(kv_rig *g, kv_seq *s, int32_t to, uint32_t first)
{
    test_case *t    = g->t;
    err        e    = {0};
    int32_t    from = kv_seq_len(s);
    CHECK_OK(kv_seq_grow(s, to, &e), e);
    for (int32_t i = from; i < to; i++)
        for (int c = 0; c < 2; c++) kv_rig_write(g, c, s, i, first + (uint32_t)i);
}

void kv_rig_expect(kv_rig *g, int cls, const kv_seq *s, int32_t from, int32_t to, uint32_t first)
{
    test_case *t = g->t;
    for (int32_t i = from; i < to; i++) CHECK_INT(kv_rig_read(g, cls, s, i), first + (uint32_t)i);
}
