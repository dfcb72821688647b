#include "ops_test.h"

/* One K or V, found by the layout that ops.h promises, written here a second time. */
static float stored(rig *g, const kv_class *c, int layer, int v, int head, int lane, int slot, int i)
{
    int32_t page;
    g->o->download(g->q, &page, dev_at(c->table, sizeof page * (size_t)(lane * c->table_stride + slot / 16)),
                   sizeof page);
    g->o->sync(g->q);
    size_t element = (((size_t)(layer * 2 + v) * (size_t)c->n_kv_heads + (size_t)head) * 16 + (size_t)(slot % 16)) *
                         (size_t)c->head_dim +
                     (size_t)i;
    union {
        uint16_t h;
        float    f;
    } x;
    size_t bytes = c->type == QUANT_F16 ? sizeof x.h : sizeof x.f;
    g->o->download(g->q, &x, dev_at(c->pool, (size_t)page * 256 + element * bytes), bytes);
    g->o->sync(g->q);
    return c->type == QUANT_F16 ? f16_to_f32(x.h) : x.f;
}

static const quant_type kv_types[] = {QUANT_F32, QUANT_F16};

static void layout(rig *g)
{
    enum { LAYERS = 2, HEADS = 3, D = 8, ROWS = 20, FIRST = 9 };
    for (size_t k = 0; k < COUNT(kv_types); k++) {
        kv_class  c    = rig_kv(g, kv_types[k], LAYERS, HEADS, D, 2, 40);
        step_rows rows = rig_chain(g, 1, FIRST, ROWS);
        float    *key = rig_randn(g, ROWS * HEADS * D), *val = rig_randn(g, ROWS * HEADS * D);
        OP(g, kv_store, &c, 1, &rows, rig_put_f32(g, key, ROWS * HEADS * D), rig_put_f32(g, val, ROWS * HEADS * D));
        for (int i = 0; i < ROWS * HEADS * D; i++) {
            int   r = i / (HEADS * D), h = i / D % HEADS;
            float want_k = k ? f16_to_f32(f32_to_f16(key[i])) : key[i],
                  want_v = k ? f16_to_f32(f32_to_f16(val[i])) : val[i];
            NEAR(g, stored(g, &c, 1, 0, h, 1, FIRST + r, i % D), want_k, 0);
            NEAR(g, stored(g, &c, 1, 1, h, 1, FIRST + r, i % D), want_v, 0);
        }
        test_case *t = g->t; /* and nothing beside them */
        CHECK(isnan(stored(g, &c, 1, 0, 0, 1, FIRST - 1, 0)) && isnan(stored(g, &c, 1, 0, 0, 1, FIRST + ROWS, 0)));
        CHECK(isnan(stored(g, &c, 0, 0, 0, 1, FIRST, 0)) && isnan(stored(g, &c, 1, 0, 0, 0, FIRST, 0)));
    }
}
TEST(kv_store_follows_the_page_layout) { rig_each(t, layout); }

/* A tree's accepted path, compacted: slots 3, 5, 18 to 2, 3, 4. In order, so that 3 is read before it is written. */
static void compaction(rig *g)
{
    enum { LAYERS = 3, HEADS = 2, D = 8, ROWS = 20 };
    static const kv_move_item items[] = {{0, 3, 0, 2, 0}, {0, 5, 0, 3, 0}, {0, 18, 0, 4, 0}, {0, 6, 0, 6, 0}};
    static const int          from[]  = {0, 1, 3, 5, 18, 5, 6, 7};

    for (size_t k = 0; k < COUNT(kv_types); k++) {
        kv_class  c    = rig_kv(g, kv_types[k], LAYERS, HEADS, D, 2, 32);
        step_rows rows = rig_chain(g, 0, 0, ROWS);
        for (int layer = 0; layer < LAYERS; layer++) {
            float key[ROWS * HEADS * D], val[ROWS * HEADS * D];
            for (int i = 0; i < ROWS * HEADS * D; i++) {
                key[i] = (float)(layer * 400 + i);
                val[i] = -key[i];
            }
            OP(g, kv_store, &c, layer, &rows, rig_put_f32(g, key, COUNT(key)), rig_put_f32(g, val, COUNT(val)));
        }
        OP(g, kv_move, &c, rig_put(g, items, sizeof items), COUNT(items), (dev){0});
        for (int layer = 0; layer < LAYERS; layer++)
            for (int i = 0; i < (int)COUNT(from) * HEADS * D; i++) {
                int slot = i / (HEADS * D), h = i / D % HEADS;
                int want = layer * 400 + (from[slot] * HEADS + h) * D + i % D;
                NEAR(g, stored(g, &c, layer, 0, h, 0, slot, i % D), want, 0);
                NEAR(g, stored(g, &c, layer, 1, h, 0, slot, i % D), -want, 0);
            }
        test_case *t = g->t;
        CHECK(isnan(stored(g, &c, 0, 0, 0, 1, 2, 0)));
    }
}
TEST(kv_move_compacts_in_order_in_all_layers) { rig_each(t, compaction); }
