/* Attention in steps of chains and trees of few lanes (step_rows.few_lanes), whose keys a GPU shares among many rows. */
#include "ops_test.h"

enum { D = 512, MOST = 64, LANES = 4, SHORT = 1024, LONG = 2400 }; /* SHORT, LONG: slots that a lane can have */

typedef struct {
    int  past, n_rows; /* n_rows 0: no more lanes */
    bool tree;
} lane_rows;
typedef struct {
    int       n_heads, n_kv_heads, window;
    int       n_padding; /* rows of padding after the others */
    bool      odd;       /* V of a row is an infinity */
    lane_rows lane[LANES];
} company;

/* The arrays of a step on the host. */
typedef struct {
    int     n;
    int32_t pos[MOST], lane[MOST], slot[MOST], parent[MOST], root[MOST], last[MOST];
} host_rows;

static step_rows upload(rig *g, const host_rows *h)
{
    size_t n = (size_t)h->n;
    return (step_rows){.n_rows  = h->n,
                       .token   = rig_put_i32(g, h->pos, n),
                       .pos     = rig_put_i32(g, h->pos, n),
                       .lane    = rig_put_i32(g, h->lane, n),
                       .slot    = rig_put_i32(g, h->slot, n),
                       .parent  = rig_put_i32(g, h->parent, n),
                       .root    = rig_put_i32(g, h->root, n),
                       .last    = rig_put_i32(g, h->last, n),
                       .settled = true};
}

static void add_row(host_rows *h, int32_t pos, int lane, int32_t slot, int parent, int32_t root, int32_t last)
{
    int i        = h->n++;
    h->pos[i]    = pos;
    h->lane[i]   = lane;
    h->slot[i]   = slot;
    h->parent[i] = parent;
    h->root[i]   = root;
    h->last[i]   = last;
}

/* In a tree, row i follows the last of three rows before it, or the context. */
static host_rows rows_of(const company *s)
{
    host_rows h = {0};
    for (int lane = 0; lane < LANES; lane++) {
        const lane_rows *l = &s->lane[lane];
        for (int i = 0, first = h.n; i < l->n_rows; i++) {
            int     parent = l->tree && i > 2 ? first + i - 1 - i % 3 : -1;
            int32_t pos    = !l->tree ? l->past + i : parent < 0 ? l->past : h.pos[parent] + 1;
            add_row(&h, pos, lane, l->past + i, parent, l->tree ? l->past : pos + 1, pos);
        }
    }
    for (int i = 0; i < s->n_padding; i++) add_row(&h, 0, -1, 0, -1, 0, -1);
    return h;
}

/* Row `row` with nothing but its ancestors in the step. */
static host_rows path_of(const host_rows *h, int row)
{
    host_rows p = {0};
    int       path[MOST], n = 0;
    for (int r = row; r >= 0; r = h->root[r] <= h->pos[r] ? h->parent[r] : -1) path[n++] = r;
    while (n-- > 0) {
        int r = path[n];
        add_row(&p, h->pos[r], h->lane[r], h->slot[r], p.n - 1, h->root[r], h->last[r]);
    }
    return p;
}

static void store(rig *g, const kv_class *c, const step_rows *rows, bool odd)
{
    size_t one = (size_t)(c->n_kv_heads * D), n = (size_t)rows->n_rows * one;
    float *v = rig_randn(g, n);
    if (odd) v[n - 3 * one + 1] = INFINITY; /* rows after it see it, those before it do not */
    OP(g, kv_store, c, 0, rows, rig_put_randn(g, n), rig_put_f32(g, v, n));
}

static float *attend(rig *g, const company *s, const kv_class *c, const host_rows *h, dev q, bool few_lanes)
{
    size_t    n = (size_t)(h->n * s->n_heads * D);
    step_rows r = upload(g, h);
    dev       y = rig_new(g, n * sizeof(float));
    r.few_lanes = few_lanes;
    OP(g, attention, y, q, s->n_heads, c, 0, &r, 0.05f, s->window);
    return rig_get_f32(g, y, n);
}

/* All rows together equal the same step without the hint, and every fifth row with its ancestors alone. What was not
 * stored in pages is NaN. */
static void in_company(rig *g, const company *s, int n_slots)
{
    kv_class  c = rig_kv(g, cache_types_both(CACHE_F16), 1, s->n_kv_heads, D, LANES, n_slots);
    host_rows h = rows_of(s);
    size_t    Q = (size_t)(s->n_heads * D), real = (size_t)(h.n - s->n_padding);
    float    *x = rig_randn(g, (size_t)h.n * Q);
    dev       q = rig_put_f32(g, x, (size_t)h.n * Q);
    for (int i = 0; i < LANES; i++) {
        step_rows past = rig_chain(g, i, 0, s->lane[i].past ? s->lane[i].past : 1);
        if (s->lane[i].past) store(g, &c, &past, false);
    }
    host_rows stored = h;
    stored.n         = (int)real;
    step_rows rows   = upload(g, &stored);
    store(g, &c, &rows, s->odd);
    float *together = attend(g, s, &c, &h, q, true);
    SAME_F32(g, together, attend(g, s, &c, &h, q, false), real * Q);
    for (int r = 0; r < (int)real; r += 5) {
        host_rows p  = path_of(&h, r);
        float    *px = arena_new_n(&g->host, float, (size_t)p.n *Q);
        memcpy(px + (size_t)(p.n - 1) * Q, x + (size_t)r * Q, Q * sizeof *x); /* the others' do not matter */
        float *alone = attend(g, s, &c, &p, rig_put_f32(g, px, (size_t)p.n * Q), false);
        SAME_F32(g, alone + (size_t)(p.n - 1) * Q, together + (size_t)r * Q, Q);
    }
}

/* Pages, tiles and spans end in the chains; 1 to 16 heads for a K/V head. */
static void chains(rig *g)
{
    static const company s[] = {{8, 1, 0, 0, false, {{50, 12, false}}},
                                {4, 2, 0, 0, false, {{245, 16, false}}},
                                {16, 1, 0, 1, false, {{120, 12, false}}},
                                {1, 1, 0, 0, false, {{40, 33, false}}}};
    for (size_t i = 0; i < COUNT(s); i++) in_company(g, &s[i], LONG);
}
TEST_LONG(attention_of_chains_equals_each_row_alone) { rig_each(t, chains); }

static void trees(rig *g)
{
    static const company s[] = {{2, 1, 0, 0, false, {{62, 32, true}}}, {8, 1, 0, 4, true, {{130, 12, true}}}};
    for (size_t i = 0; i < COUNT(s); i++) in_company(g, &s[i], LONG);
}
TEST_LONG(attention_of_trees_equals_each_row_alone) { rig_each(t, trees); }

static void mixed(rig *g)
{
    static const company s[] = {{8, 1, 0, 2, false, {{255, 10, false}, {63, 9, true}, {70, 1, false}, {0, 10, false}}},
                                {8, 1, 70, 0, false, {{190, 13, false}, {4, 3, false}}},
                                {8, 1, 0, 0, true, {{20, 1, false}, {57, 12, false}}}};
    for (size_t i = 0; i < COUNT(s); i++) in_company(g, &s[i], LONG);
}
TEST_LONG(attention_of_mixed_lanes_equals_each_row_alone) { rig_each(t, mixed); }

/* Contexts on both sides of where rows have spans, and of where the engine gives the hint. */
static void after_2k(rig *g)
{
    static const company s = {8, 1, 0, 0, false, {{2042, 12, false}}};
    in_company(g, &s, LONG);
}
TEST_LONG(attention_of_chains_equals_each_row_alone_after_2k) { rig_each(t, after_2k); }

static void at_length(rig *g)
{
    static const company s[] = {{8, 1, 0, 0, false, {{60, 64, false}}},
                                {2, 1, 0, 0, false, {{125, 64, true}}},
                                {8, 1, 0, 0, true, {{2299, 12, false}}},
                                {2, 1, 0, 1, false, {{2172, 12, true}, {2060, 1, false}}},
                                {8, 1, 0, 0, false, {{4088, 16, false}}}};
    for (size_t i = 0; i < COUNT(s); i++) in_company(g, &s[i], 2 * LONG);
}
TEST_SLOW(attention_of_chains_equals_each_row_alone_at_length) { rig_each(t, at_length); }

/* A backend wants to know of lanes only where that may change something. */
static void seldom_asked(rig *g)
{
    kv_class c = rig_kv(g, cache_types_both(CACHE_F16), 1, 1, D, 1, LONG), wide = c, brief = c;
    wide.types         = cache_types_both(CACHE_F32);
    brief.table_stride = SHORT / KV_PAGE;
    if (!g->o->asks_lanes) return;
    SAME(g, g->o->asks_lanes(g->q, &c, 8), false);
    SAME(g, g->o->asks_lanes(g->q, &c, 65), false);
    SAME(g, g->o->asks_lanes(g->q, &wide, 16), false);
    SAME(g, g->o->asks_lanes(g->q, &brief, 16), false);
    c.head_dim = 256;
    SAME(g, g->o->asks_lanes(g->q, &c, 16), false);
}
TEST(attention_asks_for_lanes_seldom) { rig_each(t, seldom_asked); }
