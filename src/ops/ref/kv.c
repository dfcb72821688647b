#include "ops/cache_code.h"
#include "ops/ref/table.h"

#include <assert.h>
#include <string.h>

ref_head ref_kv_at(const kv_class *c, int layer, int k_or_v, int head, int32_t lane, int32_t slot)
{
    assert(slot >= 0 && slot / KV_PAGE < c->table_stride && layer >= 0 && layer < c->n_layers);
    const int32_t *table = c->table.p;
    int32_t        id    = table[(size_t)lane * (size_t)c->table_stride + (size_t)(slot / KV_PAGE)];
    size_t         page  = (size_t)id;
    cache_type     type  = k_or_v == KV_K ? c->types.k : c->types.v;
    size_t         to_v  = k_or_v == KV_V ? kv_plane_bytes(c, c->types.k) : 0;
    assert(id >= 0); /* a released page is never read */
    return (ref_head){type,
                      (char *)c->pool.p + page * KV_UNIT + (size_t)layer * kv_layer_bytes(c) + to_v +
                          (size_t)head * cache_head_bytes(cache_layout_of(type), c->head_dim),
                      slot % KV_PAGE, c->head_dim};
}

void ref_kv_read(ref_head h, float *y) { cache_decode(h.type, h.plane, h.at, y, h.head_dim); }

static void store_head(ref_head h, const float *x) { cache_encode(h.type, h.plane, h.at, x, h.head_dim); }

/* Stores a head of a row; the elements from n on are zero. */
static void store_row(ref_head h, const float *x, size_t n)
{
    float whole[OPS_MAX_HEAD_DIM] = {0};
    memcpy(whole, x, n * sizeof *x);
    store_head(h, whole);
}

/* Writes the smallest and the largest value of each channel of the 16 keys of a head, as f16. */
static void summarise_head(uint16_t *to, ref_head h)
{
    float low[OPS_MAX_HEAD_DIM], high[OPS_MAX_HEAD_DIM], k[OPS_MAX_HEAD_DIM];
    for (h.at = 0; h.at < KV_PAGE; h.at++) {
        ref_kv_read(h, k);
        for (int i = 0; i < h.head_dim; i++) {
            if (h.at == 0 || k[i] < low[i]) low[i] = k[i];
            if (h.at == 0 || k[i] > high[i]) high[i] = k[i];
        }
    }
    for (int i = 0; i < h.head_dim; i++) {
        to[i]              = cache_clamped_f16(low[i]);
        to[h.head_dim + i] = cache_clamped_f16(high[i]);
    }
}

uint16_t *ref_summary_at(const kv_class *c, int layer, int head, int32_t lane, int32_t slot)
{
    ref_head first = ref_kv_at(c, layer, KV_K, 0, lane, slot);
    return (uint16_t *)(void *)((char *)first.plane + kv_layer_bytes(c) - kv_summary_bytes(c)) +
           (size_t)head * 2 * (size_t)c->head_dim;
}

/* Writes the summaries of a layer for the page of a slot that was written, if it is the last of its page. */
static void summarise_page(const kv_class *c, int layer, int32_t lane, int32_t slot)
{
    if (!c->sparse.drop || slot % KV_PAGE != KV_PAGE - 1) return;
    for (int h = 0; h < c->n_kv_heads; h++)
        summarise_head(ref_summary_at(c, layer, h, lane, slot), ref_kv_at(c, layer, KV_K, h, lane, slot));
}

void ref_kv_store(queue *q, const kv_class *c, int layer, const step_rows *rows, dev k, dev v)
{
    (void)q;
    const int32_t *lane = rows->lane.p, *slot = rows->slot.p;
    size_t         dim = (size_t)kv_row_dim(c);
    for (int r = 0; r < rows->n_rows; r++)
        for (int h = 0; h < c->n_kv_heads; h++) {
            size_t at = ((size_t)r * (size_t)c->n_kv_heads + (size_t)h) * dim;
            store_row(ref_kv_at(c, layer, KV_K, h, lane[r], slot[r]), (const float *)k.p + at, dim);
            store_row(ref_kv_at(c, layer, KV_V, h, lane[r], slot[r]), (const float *)v.p + at, dim);
        }
    for (int r = 0; r < rows->n_rows; r++) summarise_page(c, layer, lane[r], slot[r]);
}

static void move_rotated(ref_head to, ref_head from, int32_t rotation, const rope_params *p)
{
    float x[OPS_MAX_HEAD_DIM];
    ref_kv_read(from, x);
    if (cache_has_scales(from.type)) cache_unrotate(x, from.head_dim);
    ref_rotate_head(x, p, rotation, NULL);
    store_head(to, x);
}

static void move_slot(const kv_class *c, kv_move_item m, const rope_params *p)
{
    assert(p || m.rotation == 0);
    for (int layer = 0; layer < c->n_layers; layer++)
        for (int h = 0; h < c->n_kv_heads; h++)
            for (int kv = KV_K; kv <= KV_V; kv++) {
                ref_head to   = ref_kv_at(c, layer, kv, h, m.to_lane, m.to);
                ref_head from = ref_kv_at(c, layer, kv, h, m.from_lane, m.from);
                if (kv == KV_K && m.rotation)
                    move_rotated(to, from, m.rotation, p);
                else
                    cache_copy(to.type, to.plane, to.at, from.plane, from.at, c->head_dim);
            }
}

void ref_kv_move(queue *q, const kv_class *c, dev items, int n_items, const rope_params *p)
{
    (void)q;
    const kv_move_item *m = items.p;
    assert(c->head_dim <= OPS_MAX_HEAD_DIM);
    for (int i = 0; i < n_items; i++) move_slot(c, m[i], p);
    for (int i = 0; i < n_items; i++)
        for (int layer = 0; layer < c->n_layers; layer++) summarise_page(c, layer, m[i].to_lane, m[i].to);
}
