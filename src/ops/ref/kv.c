#include "ops/ref/table.h"

#include <assert.h>
#include <string.h>

void *ref_kv_at(const kv_class *c, int layer, int k_or_v, int head, int32_t lane, int32_t slot)
{
    assert(slot >= 0 && slot / KV_PAGE < c->table_stride && layer >= 0 && layer < c->n_layers);
    const int32_t *table   = c->table.p;
    int32_t        id      = table[(size_t)lane * (size_t)c->table_stride + (size_t)(slot / KV_PAGE)];
    size_t         page    = (size_t)id;
    size_t         plane   = (size_t)layer * 2 + (size_t)k_or_v;
    size_t         element = ((size_t)head * KV_PAGE + (size_t)(slot % KV_PAGE)) * (size_t)c->head_dim;
    assert(id >= 0); /* a page that was let go is not looked at */
    return (char *)c->pool.p + page * KV_UNIT + plane * kv_plane_bytes(c) + element * quant_block_bytes(c->type);
}

static void store(void *to, quant_type type, const float *x, int n)
{
    if (type == QUANT_F32) memcpy(to, x, (size_t)n * sizeof *x);
    if (type == QUANT_F16)
        for (int i = 0; i < n; i++) ((uint16_t *)to)[i] = f32_to_f16(x[i]);
}

void ref_kv_store(queue *q, const kv_class *c, int layer, const step_rows *rows, dev k, dev v)
{
    (void)q;
    const int32_t *lane = rows->lane.p, *slot = rows->slot.p;
    assert(c->type == QUANT_F32 || c->type == QUANT_F16);
    for (int r = 0; r < rows->n_rows; r++)
        for (int h = 0; h < c->n_kv_heads; h++) {
            size_t at = ((size_t)r * (size_t)c->n_kv_heads + (size_t)h) * (size_t)c->head_dim;
            store(ref_kv_at(c, layer, KV_K, h, lane[r], slot[r]), c->type, (const float *)k.p + at, c->head_dim);
            store(ref_kv_at(c, layer, KV_V, h, lane[r], slot[r]), c->type, (const float *)v.p + at, c->head_dim);
        }
}

static void move_turned(void *to, const void *from, const kv_class *c, int32_t turn, const rope_params *p)
{
    float x[OPS_MAX_HEAD_DIM];
    for (int i = 0; i < c->head_dim; i++)
        x[i] = c->type == QUANT_F32 ? ((const float *)from)[i] : f16_to_f32(((const uint16_t *)from)[i]);
    ref_rotate_head(x, p, turn, NULL);
    store(to, c->type, x, c->head_dim);
}

static void move_slot(const kv_class *c, kv_move_item m, const rope_params *p)
{
    size_t bytes = (size_t)c->head_dim * quant_block_bytes(c->type);
    assert(p || m.turn == 0);
    for (int layer = 0; layer < c->n_layers; layer++)
        for (int h = 0; h < c->n_kv_heads; h++)
            for (int kv = KV_K; kv <= KV_V; kv++) {
                void       *to   = ref_kv_at(c, layer, kv, h, m.to_lane, m.to);
                const void *from = ref_kv_at(c, layer, kv, h, m.from_lane, m.from);
                if (kv == KV_K && m.turn)
                    move_turned(to, from, c, m.turn, p);
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
