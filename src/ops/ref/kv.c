#include "ops/ref/table.h"

#include <assert.h>
#include <string.h>

static cache_type type_of(const kv_class *c, int k_or_v) { return k_or_v == KV_K ? c->types.k : c->types.v; }

void *ref_kv_at(const kv_class *c, int layer, int k_or_v, int head, int32_t lane, int32_t slot)
{
    assert(slot >= 0 && slot / KV_PAGE < c->table_stride && layer >= 0 && layer < c->n_layers);
    const int32_t *table   = c->table.p;
    int32_t        id      = table[(size_t)lane * (size_t)c->table_stride + (size_t)(slot / KV_PAGE)];
    size_t         page    = (size_t)id;
    cache_type     type    = type_of(c, k_or_v);
    size_t         vec     = cache_code_bytes(cache_layout_of(type), c->head_dim);
    size_t         to_v    = k_or_v == KV_V ? kv_plane_bytes(c, c->types.k) : 0;
    size_t         in_head = (size_t)(slot % KV_PAGE) * vec;
    assert(id >= 0); /* a released page is never read */
    return (char *)c->pool.p + page * KV_UNIT + (size_t)layer * kv_layer_bytes(c) + to_v +
           (size_t)head * cache_head_bytes(cache_layout_of(type), c->head_dim) + in_head;
}

float ref_kv_get(cache_type type, const void *vec, int i)
{
    return type == CACHE_F32 ? ((const float *)vec)[i] : f16_to_f32(((const uint16_t *)vec)[i]);
}

static void store_values(void *to, cache_type type, const float *x, int n)
{
    if (type == CACHE_F32) memcpy(to, x, (size_t)n * sizeof *x);
    if (type == CACHE_F16)
        for (int i = 0; i < n; i++) ((uint16_t *)to)[i] = f32_to_f16(x[i]);
}

void ref_kv_store(queue *q, const kv_class *c, int layer, const step_rows *rows, dev k, dev v)
{
    (void)q;
    const int32_t *lane = rows->lane.p, *slot = rows->slot.p;
    for (int r = 0; r < rows->n_rows; r++)
        for (int h = 0; h < c->n_kv_heads; h++) {
            size_t at = ((size_t)r * (size_t)c->n_kv_heads + (size_t)h) * (size_t)c->head_dim;
            store_values(ref_kv_at(c, layer, KV_K, h, lane[r], slot[r]), c->types.k, (const float *)k.p + at,
                         c->head_dim);
            store_values(ref_kv_at(c, layer, KV_V, h, lane[r], slot[r]), c->types.v, (const float *)v.p + at,
                         c->head_dim);
        }
}

static void move_rotated(void *to, const void *from, const kv_class *c, int32_t rotation, const rope_params *p)
{
    float x[OPS_MAX_HEAD_DIM];
    for (int i = 0; i < c->head_dim; i++) x[i] = ref_kv_get(c->types.k, from, i);
    ref_rotate_head(x, p, rotation, NULL);
    store_values(to, c->types.k, x, c->head_dim);
}

static void move_slot(const kv_class *c, kv_move_item m, const rope_params *p)
{
    assert(p || m.rotation == 0);
    for (int layer = 0; layer < c->n_layers; layer++)
        for (int h = 0; h < c->n_kv_heads; h++)
            for (int kv = KV_K; kv <= KV_V; kv++) {
                size_t      bytes = cache_code_bytes(cache_layout_of(type_of(c, kv)), c->head_dim);
                void       *to    = ref_kv_at(c, layer, kv, h, m.to_lane, m.to);
                const void *from  = ref_kv_at(c, layer, kv, h, m.from_lane, m.from);
                if (kv == KV_K && m.rotation)
                    move_rotated(to, from, c, m.rotation, p);
                else
                    memmove(to, from, bytes);
            }
}

void ref_kv_move(queue *q, const kv_class *c, dev items, int n_items, const rope_params *p)
{
    (void)q;
    const kv_move_item *m = items.p;
    assert(c->head_dim <= OPS_MAX_HEAD_DIM);
    for (int i = 0; i < n_items; i++) move_slot(c, m[i], p);
}
