/* The paged cache with types that have scales, on every backend that supports them. */
#include "ops/cache_code.h"
#include "ops_test.h"

#define KINDS                                                                                                          \
    {                                                                                                                  \
        CACHE_F32, CACHE_F16, CACHE_Q8_0, CACHE_Q4_0, CACHE_TQ3                                                        \
    }
static const cache_type kinds[CACHE_N_TYPES] = KINDS;

/* Copies K or V of one head of the page of a slot from the device, found by the layout that ops.h describes. */
static uint8_t *plane_at(rig *g, const kv_class *c, int layer, bool v, int head, int lane, int slot)
{
    int32_t page;
    g->o->download(g->q, &page, dev_at(c->table, sizeof page * (size_t)(lane * c->table_stride + slot / KV_PAGE)),
                   sizeof page);
    g->o->sync(g->q);
    size_t k_bytes = cache_head_bytes(cache_layout_of(c->types.k), c->head_dim);
    size_t v_bytes = cache_head_bytes(cache_layout_of(c->types.v), c->head_dim), heads = (size_t)c->n_kv_heads;
    size_t at = (size_t)layer * heads * (k_bytes + v_bytes) +
                (v ? heads * k_bytes + (size_t)head * v_bytes : (size_t)head * k_bytes);
    uint8_t *plane = arena_alloc(&g->host, v ? v_bytes : k_bytes);
    g->o->download(g->q, plane, dev_at(c->pool, (size_t)page * KV_UNIT + at), v ? v_bytes : k_bytes);
    g->o->sync(g->q);
    return plane;
}

static bool same_plane(rig *g, const kv_class *c, int layer, bool v, int head, int lane, int slot, const uint8_t *want)
{
    size_t bytes = cache_head_bytes(cache_layout_of(v ? c->types.v : c->types.k), c->head_dim);
    return !memcmp(plane_at(g, c, layer, v, head, lane, slot), want, bytes);
}

/* Stores rows that end in a second page. Every byte of the pages is as cache_encode writes it, and all others are
 * untouched. */
static void check_store(rig *g, cache_types types, int D)
{
    enum { HEADS = 2, ROWS = 13, FIRST = 9, PAGES = 3 };
    test_case *t    = g->t;
    kv_class   c    = rig_kv(g, types, 2, HEADS, D, 2, PAGES * KV_PAGE);
    step_rows  rows = rig_chain(g, 1, FIRST, ROWS);
    size_t     n    = (size_t)(ROWS * HEADS * D);
    float     *x[2] = {rig_randn(g, n), rig_randn(g, n)};
    OP(g, kv_store, &c, 1, &rows, rig_put_f32(g, x[0], n), rig_put_f32(g, x[1], n));
    for (int v = 0; v < 2; v++)
        for (int h = 0; h < HEADS; h++)
            for (int page = 0; page < PAGES; page++) {
                cache_type           type  = v ? types.v : types.k;
                size_t               bytes = cache_head_bytes(cache_layout_of(type), D);
                _Alignas(16) uint8_t want[512 * KV_PAGE * 4];
                memset(want, 0xFF, bytes);
                for (int r = 0; r < ROWS; r++)
                    if ((FIRST + r) / KV_PAGE == page)
                        cache_encode(type, want, (FIRST + r) % KV_PAGE, x[v] + (size_t)((r * HEADS + h) * D), D);
                CHECK_MSG(same_plane(g, &c, 1, v, h, 1, page * KV_PAGE, want), "%s: %s of %d, %s, page %d", g->o->name,
                          cache_layout_of(type)->name, D, v ? "V" : "K", page);
            }
    memset(x[0], 0xFF, n * sizeof *x[0]);
    CHECK(same_plane(g, &c, 0, false, 0, 1, FIRST, (uint8_t *)x[0]));
}

static void store_all(rig *g)
{
    static const int dims[] = {64, 128, 256, 512};
    for (int k = CACHE_Q8_0; k < CACHE_N_TYPES && g->o->kv_scales; k++)
        for (size_t d = 0; d < COUNT(dims); d++) {
            check_store(g, cache_types_both(kinds[k]), dims[d]);
            check_store(g, (cache_types){kinds[k], kinds[(k + 1) % CACHE_N_TYPES]}, dims[d]);
        }
}
TEST(kv_store_writes_codes_and_scales) { rig_each(t, store_all); }

/* --- attention ------------------------------------------------------------------------------------- */
typedef struct {
    cache_types types;
    int         head_dim, n_ctx, n_rows, window;
} pair_case;
enum { HEADS = 6, KV = 2 };

static void store_random(rig *g, const kv_class *c, const step_rows *rows)
{
    size_t n = (size_t)rows->n_rows * (size_t)c->n_kv_heads * (size_t)c->head_dim;
    OP(g, kv_store, c, 0, rows, rig_put_randn(g, n), rig_put_randn(g, n));
}

static rig_result play_pair(rig *g, const void *arg)
{
    const pair_case *a = arg;
    size_t           n = (size_t)(a->n_rows * HEADS * a->head_dim);
    if (!g->o->kv_scales) return (rig_result){.skipped = true};
    kv_class  c   = rig_kv(g, a->types, 1, KV, a->head_dim, 1, a->n_ctx);
    step_rows all = rig_chain(g, 0, 0, a->n_ctx), last = rig_chain(g, 0, a->n_ctx - a->n_rows, a->n_rows);
    dev       y = rig_new(g, n * sizeof(float)), q = rig_put_randn(g, n);
    store_random(g, &c, &all);
    OP(g, attention, y, q, HEADS, &c, 0, &last, 1 / sqrtf((float)a->head_dim), a->window);
    rig_result r = rig_give(g, y, n, 1e-5, 1e-5);
    r.gpu_allows = 100; /* it rounds values to f16 */
    return r;
}

TEST(attention_agrees_with_ref_for_every_pair_of_types)
{
    static const int dims[] = {64, 128, 256, 512};
    for (int k = 0; k < CACHE_N_TYPES; k++)
        for (int v = 0; v < CACHE_N_TYPES; v++)
            for (size_t d = 0; d < COUNT(dims); d++) {
                pair_case a = {{kinds[k], kinds[v]}, dims[d], 35 + 3 * k, 1 + (k + v) % 4, v == k ? 20 : 0};
                if (k >= CACHE_Q8_0 || v >= CACHE_Q8_0) rig_compare(t, play_pair, &a);
            }
}

/* Long contexts, where many tiles merge. ref takes most of the time. */
TEST_LONG(attention_with_scales_agrees_with_ref_at_length)
{
    static const pair_case a[] = {
        {{CACHE_Q8_0, CACHE_Q8_0}, 64, 16400, 2, 0}, {{CACHE_Q8_0, CACHE_Q4_0}, 128, 4100, 2, 0},
        {{CACHE_TQ3, CACHE_TQ3}, 64, 4097, 3, 0},    {{CACHE_Q8_0, CACHE_Q8_0}, 512, 2300, 1, 0},
        {{CACHE_TQ3, CACHE_Q4_0}, 512, 2200, 4, 0},  {{CACHE_Q8_0, CACHE_TQ3}, 256, 2306, 7, 2200},
        {{CACHE_Q4_0, CACHE_TQ3}, 256, 1030, 5, 600}};
    for (size_t i = 0; i < COUNT(a); i++) rig_compare(t, play_pair, &a[i]);
}

TEST_SLOW(attention_with_scales_agrees_with_ref_at_16k_and_128k)
{
    static const pair_case a[] = {
        {{CACHE_Q8_0, CACHE_Q8_0}, 512, 16384, 1, 0}, {{CACHE_Q4_0, CACHE_Q4_0}, 256, 16390, 2, 0},
        {{CACHE_TQ3, CACHE_TQ3}, 128, 16400, 3, 0},   {{CACHE_Q8_0, CACHE_Q4_0}, 64, 16385, 17, 0},
        {{CACHE_Q8_0, CACHE_TQ3}, 512, 16384, 4, 0},  {{CACHE_Q8_0, CACHE_Q8_0}, 256, 131072, 1, 0},
        {{CACHE_TQ3, CACHE_Q4_0}, 128, 131080, 2, 0}, {{CACHE_Q4_0, CACHE_Q8_0}, 64, 131073, 3, 0},
        {{CACHE_Q8_0, CACHE_F16}, 64, 131072, 1, 0}};
    for (size_t i = 0; i < COUNT(a); i++) rig_compare(t, play_pair, &a[i]);
}

/* The rows of a chain over a long context, together and one by one. */
static void check_alone(rig *g, cache_types types, int D, int n_ctx, int n_rows, int window)
{
    size_t    each = (size_t)(HEADS * D), n = (size_t)n_rows * each;
    kv_class  c   = rig_kv(g, types, 1, KV, D, 1, n_ctx);
    step_rows all = rig_chain(g, 0, 0, n_ctx);
    float    *q   = rig_randn(g, n);
    dev       y = rig_new(g, n * sizeof(float)), alone = rig_new(g, each * sizeof(float));
    store_random(g, &c, &all);
    step_rows rows = rig_chain(g, 0, n_ctx - n_rows, n_rows);
    OP(g, attention, y, rig_put_f32(g, q, n), HEADS, &c, 0, &rows, 0.3f, window);
    float *together = rig_get_f32(g, y, n);
    for (int r = 0; r < n_rows; r++) {
        step_rows row = rig_chain(g, 0, n_ctx - n_rows + r, 1);
        OP(g, attention, alone, rig_put_f32(g, q + (size_t)r * each, each), HEADS, &c, 0, &row, 0.3f, window);
        SAME_F32(g, rig_get_f32(g, alone, each), together + (size_t)r * each, each);
    }
}

static void rows_alone(rig *g)
{
    if (!g->o->kv_scales || !strcmp(g->o->name, "ref")) return; /* ref has one way only */
    check_alone(g, cache_types_both(CACHE_Q8_0), 512, 2310, 5, 0);
    check_alone(g, (cache_types){CACHE_Q4_0, CACHE_TQ3}, 256, 2500, 3, 2300);
    check_alone(g, (cache_types){CACHE_TQ3, CACHE_Q8_0}, 128, 2177, 6, 0);
    check_alone(g, cache_types_both(CACHE_Q4_0), 64, 4200, 17, 0);
    check_alone(g, (cache_types){CACHE_F16, CACHE_Q4_0}, 64, 2200, 3, 0);
}
TEST_LONG(attention_with_scales_of_rows_alone_and_together) { rig_each(t, rows_alone); }

/* Copies a cache with scales into one of f32: the values as attention reads them, in the rotated basis. */
static kv_class decoded_copy(rig *g, const kv_class *c, int n_ctx)
{
    cache_types f32 = cache_types_both(CACHE_F32);
    kv_class    to  = rig_kv(g, f32, 1, KV, c->head_dim, 1, n_ctx);
    size_t      n   = (size_t)(n_ctx * KV * c->head_dim);
    float      *x[2];
    for (int v = 0; v < 2; v++) {
        x[v] = arena_new_n(&g->host, float, n);
        for (int p = 0; p < n_ctx; p++)
            for (int h = 0; h < KV; h++)
                cache_decode(v ? c->types.v : c->types.k, plane_at(g, c, 0, v, h, 0, p), p % KV_PAGE,
                             x[v] + (size_t)((p * KV + h) * c->head_dim), c->head_dim);
    }
    step_rows rows = rig_chain(g, 0, 0, n_ctx);
    OP(g, kv_store, &to, 0, &rows, rig_put_f32(g, x[0], n), rig_put_f32(g, x[1], n));
    return to;
}

static void each_head(float *x, int n, int dim, void (*fn)(float *, int))
{
    for (int i = 0; i < n; i++) fn(x + (size_t)i * (size_t)dim, dim);
}

/* Attention over stored codes is, bit for bit, attention over their values as f32: nothing else depends on the type. */
static void check_as_f32(rig *g, cache_types types, int D, int n_ctx, int n_rows)
{
    size_t    n   = (size_t)(n_rows * HEADS * D);
    kv_class  c   = rig_kv(g, types, 1, KV, D, 1, n_ctx);
    step_rows all = rig_chain(g, 0, 0, n_ctx), last = rig_chain(g, 0, n_ctx - n_rows, n_rows);
    float    *q = rig_randn(g, n);
    dev       y = rig_new(g, n * sizeof(float)), z = rig_new(g, n * sizeof(float));
    OP(g, attention, y, rig_put_f32(g, q, n), HEADS, &c, 0, (store_random(g, &c, &all), &last), 0.3f, 0);
    kv_class plain = decoded_copy(g, &c, n_ctx);
    if (cache_has_scales(types.k)) each_head(q, n_rows * HEADS, D, cache_rotate);
    OP(g, attention, z, rig_put_f32(g, q, n), HEADS, &plain, 0, &last, 0.3f, 0);
    float *want = rig_get_f32(g, z, n);
    if (cache_has_scales(types.v)) each_head(want, n_rows * HEADS, D, cache_unrotate);
    SAME_F32(g, rig_get_f32(g, y, n), want, n);
}

static void as_f32(rig *g)
{
    if (!g->o->kv_scales || !strcmp(g->o->name, "cuda")) return; /* a GPU rounds values to f16 */
    for (int k = CACHE_Q8_0; k < CACHE_N_TYPES; k++) {
        check_as_f32(g, cache_types_both(kinds[k]), 64, 300, 1);
        check_as_f32(g, (cache_types){kinds[k], CACHE_F16}, 128, 40, 5);
        check_as_f32(g, (cache_types){CACHE_F16, kinds[k]}, 256, 33, 2);
    }
}
TEST(attention_over_codes_is_attention_over_their_values) { rig_each(t, as_f32); }

/* The kernels of each instruction set. */
TEST(attention_over_codes_on_every_instruction_set)
{
    static const char *const isa[] = {"cpu:base", "cpu:avx2", "cpu:vnni"};
    for (size_t i = 0; i < COUNT(isa); i++) {
        ops_device d;
        rig        g;
        if (!ops_device_find(&d, isa[i], NULL)) continue;
        if (rig_open(&g, t, isa[i], 1)) as_f32(&g);
        rig_close(&g);
    }
}

/* --- moves ----------------------------------------------------------------------------------------- */
enum { M_LAYERS = 2, M_SLOTS = 40 };

static kv_class filled(rig *g, cache_types types, int D)
{
    kv_class  c    = rig_kv(g, types, M_LAYERS, KV, D, 2, M_SLOTS);
    step_rows rows = rig_chain(g, 0, 0, M_SLOTS);
    size_t    n    = (size_t)(M_SLOTS * KV * D);
    for (int layer = 0; layer < M_LAYERS; layer++)
        OP(g, kv_store, &c, layer, &rows, rig_put_randn(g, n), rig_put_randn(g, n));
    return c;
}

static float *read_head(rig *g, const kv_class *c, int layer, bool v, int head, int lane, int slot)
{
    float     *y    = arena_new_n(&g->host, float, (size_t)c->head_dim);
    cache_type type = v ? c->types.v : c->types.k;
    cache_decode(type, plane_at(g, c, layer, v, head, lane, slot), slot % KV_PAGE, y, c->head_dim);
    return y;
}

static void check_moves(rig *g, cache_types types, int D)
{
    static const kv_move_item items[] = {{0, 3, 1, 2, 0}, {0, 37, 1, 18, 0}, {0, 5, 0, 4, 0}, {0, 6, 0, 5, 0}};
    kv_class                  c       = filled(g, types, D);
    float                    *want[COUNT(items)][M_LAYERS][2][KV];
    for (int i = 0; i < (int)COUNT(items) * M_LAYERS * 2 * KV; i++) {
        int item = i / (M_LAYERS * 2 * KV), layer = i / (2 * KV) % M_LAYERS, v = i / KV % 2, h = i % KV;
        want[item][layer][v][h] = read_head(g, &c, layer, v, h, 0, items[item].from);
    }
    OP(g, kv_move, &c, rig_put(g, items, sizeof items), COUNT(items), NULL);
    for (int i = 0; i < (int)COUNT(items) * M_LAYERS * 2 * KV; i++) {
        int item = i / (M_LAYERS * 2 * KV), layer = i / (2 * KV) % M_LAYERS, v = i / KV % 2, h = i % KV;
        SAME_F32(g, read_head(g, &c, layer, v, h, items[item].to_lane, items[item].to), want[item][layer][v][h],
                 (size_t)D);
    }
}

/* A turned key is decoded, turned and encoded again; values are copied. Two threads and other batches give the same
 * bytes. */
static void check_turn(rig *g, cache_types types, int D)
{
    static const kv_move_item items[] = {{0, 1, 1, 1, 512}, {0, 20, 1, 2, -7}, {0, 30, 1, 35, 512}};
    float                     freq[256];
    for (int i = 0; i < D / 2; i++) freq[i] = powf(10000.0f, -2.0f * (float)i / (float)D);
    rope_params rope = {.n_dims = D, .freq = rig_put_f32(g, freq, (size_t)D / 2)};
    kv_class    c    = filled(g, types, D);
    OP(g, kv_move, &c, rig_put(g, items, sizeof items), COUNT(items), &rope);
    for (size_t i = 0; i < COUNT(items); i++) {
        float *x = read_head(g, &c, 1, false, 1, 0, items[i].from), *v = read_head(g, &c, 1, true, 1, 0, items[i].from);
        _Alignas(16) uint8_t plane[512 * KV_PAGE * 4];
        float                want[512], *got = read_head(g, &c, 1, false, 1, 1, items[i].to);
        double               size = 0, error = 0;
        cache_unrotate(x, D);
        for (int k = 0; k < D / 2; k++) {
            double a = items[i].rotation * (double)freq[k], p = x[k], q = x[k + D / 2];
            x[k]         = (float)(p * cos(a) - q * sin(a));
            x[k + D / 2] = (float)(p * sin(a) + q * cos(a));
        }
        cache_encode(types.k, plane, 0, x, D);
        cache_decode(types.k, plane, 0, want, D);
        for (int k = 0; k < D; k++) {
            size += (double)want[k] * want[k];
            error += ((double)got[k] - want[k]) * ((double)got[k] - want[k]);
        }
        NEAR(g, sqrt(error / size), 0,
             types.k == CACHE_Q8_0 ? 0.01 : 0.2); /* angles differ by rounding: a few codes do */
        SAME_F32(g, read_head(g, &c, 1, true, 1, 1, items[i].to), v, (size_t)D);
    }
}

static void moves(rig *g)
{
    if (!g->o->kv_scales) return;
    for (int k = CACHE_Q8_0; k < CACHE_N_TYPES; k++) {
        check_moves(g, cache_types_both(kinds[k]), 64);
        check_moves(g, (cache_types){kinds[k], CACHE_F16}, 128);
        check_moves(g, (cache_types){CACHE_F16, kinds[k]}, 128);
        check_turn(g, cache_types_both(kinds[k]), 64);
        check_turn(g, (cache_types){kinds[k], CACHE_F32}, 256);
    }
}
TEST(kv_move_takes_scales_along) { rig_each(t, moves); }

/* --- refusals -------------------------------------------------------------------------------------- */
TEST(kv_types_that_do_not_fit_are_refused)
{
    ops none = {.name = "cuda"}, all = {.name = "cpu", .kv_scales = true};
    err e = {0};
    CHECK(ops_check_kv(&none, cache_types_both(CACHE_F16), 40, &e) &&
          ops_check_kv(&all, cache_types_both(CACHE_TQ3), 64, &e));
    CHECK(ops_check_kv(&all, (cache_types){CACHE_Q8_0, CACHE_Q4_0}, 512, &e));
    CHECK_FAILS(ops_check_kv(&none, (cache_types){CACHE_F16, CACHE_Q8_0}, 64, &e), e,
                "K/V of type f16/q8_0 is not supported on cuda: use f16 or f32");
    CHECK_FAILS(ops_check_kv(&all, (cache_types){CACHE_F16, CACHE_Q4_0}, 96, &e), e,
                "K/V of type q4_0 needs heads of 64 or a multiple of 128, this model has heads of 96");
}
