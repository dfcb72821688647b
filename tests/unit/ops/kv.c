#include "ops_test.h"

/* One K or V, found by the layout that ops.h promises, written here a second time. */
static float stored(rig *g, const kv_class *c, int layer, int v, int head, int lane, int slot, int i)
{
    int32_t page;
    g->o->download(g->q, &page, dev_at(c->table, sizeof page * (size_t)(lane * c->table_stride + slot / 16)),
                   sizeof page);
    g->o->sync(g->q);
    size_t k_bytes = c->types.k == CACHE_F16 ? 2 : 4, v_bytes = c->types.v == CACHE_F16 ? 2 : 4;
    size_t bytes = v ? v_bytes : k_bytes, plane = (size_t)c->n_kv_heads * 16 * (size_t)c->head_dim;
    size_t element = ((size_t)head * 16 + (size_t)(slot % 16)) * (size_t)c->head_dim + (size_t)i;
    size_t at      = (size_t)layer * plane * (k_bytes + v_bytes) + (v ? plane * k_bytes : 0) + element * bytes;
    union {
        uint16_t h;
        float    f;
    } x;
    g->o->download(g->q, &x, dev_at(c->pool, (size_t)page * 256 + at), bytes);
    g->o->sync(g->q);
    return bytes == 2 ? f16_to_f32(x.h) : x.f;
}

static const cache_types kv_types[] = {RIG_F32, RIG_F16, {CACHE_F16, CACHE_F32}, {CACHE_F32, CACHE_F16}};

static float as_stored(cache_type t, float x) { return t == CACHE_F16 ? f16_to_f32(f32_to_f16(x)) : x; }

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
            float want_k = as_stored(c.types.k, key[i]), want_v = as_stored(c.types.v, val[i]);
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
        OP(g, kv_move, &c, rig_put(g, items, sizeof items), COUNT(items), NULL);
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

/* --- turned keys and two lanes ---------------------------------------------------------------------- */
enum { T_LAYERS = 2, T_HEADS = 3, T_SLOTS = 40, T_WIDE = 72 };

static rope_params put_rope(rig *g, int n_dims)
{
    float freq[T_WIDE / 2];
    for (int i = 0; i < n_dims / 2; i++) freq[i] = powf(10000.0f, -2.0f * (float)i / (float)n_dims);
    return (rope_params){.n_dims = n_dims, .freq = rig_put_f32(g, freq, (size_t)n_dims / 2)};
}

/* Keys turned to their positions, values as they come, in both layers of lane 0. */
static kv_class turned_lane(rig *g, cache_types type, int head_dim, const rope_params *rope)
{
    kv_class  c    = rig_kv(g, type, T_LAYERS, T_HEADS, head_dim, 2, T_SLOTS);
    step_rows rows = rig_chain(g, 0, 0, T_SLOTS);
    size_t    n    = (size_t)(T_SLOTS * T_HEADS * head_dim);
    for (int layer = 0; layer < T_LAYERS; layer++) {
        dev k = rig_put_randn(g, n), v = rig_put_randn(g, n);
        OP(g, rope, k, &rows, T_HEADS, head_dim, rope);
        OP(g, kv_store, &c, layer, &rows, k, v);
    }
    return c;
}

/* All that lane `lane` holds in slots [0, n). */
static float *read_lane(rig *g, const kv_class *c, int lane, int n)
{
    size_t each = (size_t)(T_LAYERS * 2 * T_HEADS * c->head_dim);
    float *x = arena_new_n(&g->host, float, (size_t)n *each), *at = x;
    for (int slot = 0; slot < n; slot++)
        for (int plane = 0; plane < 2 * T_LAYERS; plane++)
            for (int i = 0; i < T_HEADS * c->head_dim; i++)
                *at++ = stored(g, c, plane / 2, plane % 2, i / c->head_dim, lane, slot, i % c->head_dim);
    return x;
}

static const kv_move_item turned[] = {{0, 0, 1, 2, 512}, {0, 1, 1, 1, 512},   {0, 20, 1, 0, 0},
                                      {0, 3, 1, 3, 64},  {0, 17, 1, 4, -300}, {0, 5, 1, 5, 100000}};

typedef struct {
    cache_types type;
    int         head_dim, n_rotated;
} turn_case;
static const turn_case turn_cases[] = {{RIG_F32, 64, 64}, {RIG_F16, 64, 64}, {RIG_F32, 72, 72},
                                       {RIG_F16, 8, 8},   {RIG_F16, 64, 16}, {{CACHE_F32, CACHE_F16}, 72, 18}};

static rig_result play_turn(rig *g, const void *arg)
{
    const turn_case *a    = arg;
    rope_params      rope = put_rope(g, a->n_rotated);
    kv_class         c    = turned_lane(g, a->type, a->head_dim, &rope);
    size_t           n    = COUNT(turned) * (size_t)(T_LAYERS * 2 * T_HEADS * a->head_dim);
    OP(g, kv_move, &c, rig_put(g, turned, sizeof turned), COUNT(turned), &rope);
    return rig_give(g, rig_put_f32(g, read_lane(g, &c, 1, COUNT(turned)), n), n, a->type.k == CACHE_F16 ? 1e-3 : 1e-6,
                    1e-6);
}
TEST(kv_move_turns_keys_as_ref_does)
{
    for (size_t i = 0; i < COUNT(turn_cases); i++) rig_compare(t, play_turn, &turn_cases[i]);
}

/* A key that moved `turn` further is the key that rope makes there; values stay what they were. */
static void turn_adds_up(rig *g)
{
    enum { D = 32, N = 16, TURN = 480 };
    for (size_t k = 0; k < COUNT(kv_types); k++) {
        rope_params  rope = put_rope(g, D);
        kv_class     c    = rig_kv(g, kv_types[k], T_LAYERS, T_HEADS, D, 2, N);
        step_rows    home = rig_chain(g, 0, 0, N), far = rig_chain(g, 0, TURN, N);
        float       *x = rig_randn(g, N * T_HEADS * D), *v = rig_randn(g, N * T_HEADS * D);
        dev          key = rig_put_f32(g, x, N * T_HEADS * D), want = rig_put_f32(g, x, N * T_HEADS * D);
        kv_move_item item[N];
        OP(g, rope, key, &home, T_HEADS, D, &rope);
        OP(g, rope, want, &far, T_HEADS, D, &rope);
        for (int layer = 0; layer < T_LAYERS; layer++)
            OP(g, kv_store, &c, layer, &home, key, rig_put_f32(g, v, N * T_HEADS * D));
        for (int i = 0; i < N; i++) item[i] = (kv_move_item){0, i, 1, i, TURN};
        OP(g, kv_move, &c, rig_put(g, item, sizeof item), N, &rope);
        const float *far_key = rig_get_f32(g, want, N * T_HEADS * D);
        for (int i = 0; i < N * T_HEADS * D; i++) {
            int slot = i / (T_HEADS * D), h = i / D % T_HEADS;
            NEAR(g, stored(g, &c, 1, 0, h, 1, slot, i % D), far_key[i], c.types.k == CACHE_F16 ? 5e-3 : 2e-4);
            NEAR(g, stored(g, &c, 1, 1, h, 1, slot, i % D), as_stored(c.types.v, v[i]), 0);
        }
    }
}
TEST(kv_move_turned_key_is_the_key_of_the_summed_position) { rig_each(t, turn_adds_up); }

/* All at once, one by one, the other way round, and in place: the same bits. */
static void turn_alone(rig *g)
{
    for (size_t k = 0; k < COUNT(turn_cases); k++) {
        const turn_case *a    = &turn_cases[k];
        rope_params      rope = put_rope(g, a->n_rotated);
        dev              all  = rig_put(g, turned, sizeof turned);
        kv_class         c    = turned_lane(g, a->type, a->head_dim, &rope);
        size_t           n = COUNT(turned) * (size_t)(T_LAYERS * 2 * T_HEADS * a->head_dim), each = n / COUNT(turned);
        OP(g, kv_move, &c, all, COUNT(turned), &rope);
        const float *want = read_lane(g, &c, 1, COUNT(turned));
        for (size_t i = COUNT(turned); i-- > 0;) OP(g, kv_move, &c, dev_at(all, i * sizeof *turned), 1, &rope);
        SAME_F32(g, read_lane(g, &c, 1, COUNT(turned)), want, n);
        kv_move_item in_place = {0, 5, 0, 5, 100000};
        OP(g, kv_move, &c, rig_put(g, &in_place, sizeof in_place), 1, &rope);
        SAME_F32(g, read_lane(g, &c, 0, 6) + 5 * each, want + 5 * each, each);
    }
}
TEST(kv_move_gives_the_same_bits_in_any_batch) { rig_each(t, turn_alone); }
