/* Gated delta nets: agreement of the backends, and promise 1: a row has the same bits as a sure row, as a kept row of a
 * chain or of a tree, in steps of any size, and a state has the same bits after any commit. */
#include "ops_test.h"

enum { LAYERS = 2, LAYER = 1, TAPS = 4, LANES = 3, PLACES = 48, MAX_T = 80 };

typedef struct {
    int  n_k_heads, n_v_heads, head_dim;
    bool tiled;
} net_shape;

/* A delta net and the inputs of a text of MAX_T tokens. */
typedef struct {
    rig        *g;
    delta_class c;
    size_t      n, V, values, pool_bytes;
    dev         w, rate, bias;
    float      *x, *a, *b; /* on the host: [MAX_T][n], [MAX_T][V] */
} net;

static net new_net(rig *g, const net_shape *s)
{
    delta_class c = {.n_layers  = LAYERS,
                     .n_k_heads = s->n_k_heads,
                     .n_v_heads = s->n_v_heads,
                     .head_dim  = s->head_dim,
                     .n_taps    = TAPS,
                     .tiled     = s->tiled};
    size_t      n = (size_t)delta_channels(&c), V = (size_t)s->n_v_heads;
    size_t      state = (LAYERS * delta_state_floats(&c) * sizeof(float) + KV_UNIT - 1) / KV_UNIT * KV_UNIT;
    int32_t     table[LANES * 2];
    float      *rate = rig_randn(g, V);
    for (size_t i = 0; i < V; i++) rate[i] = -fabsf(rate[i]);
    for (int i = 0; i < LANES; i++) table[2 * i] = (int32_t)((size_t)(LANES - 1 - i) * state / KV_UNIT);
    c.row_bytes    = LAYERS * delta_kept_floats(&c) * sizeof(float);
    c.pool         = rig_put_randn(g, LANES * state / sizeof(float));
    c.table        = rig_put_i32(g, table, COUNT(table));
    c.table_stride = 2;
    c.kept         = rig_new(g, PLACES * c.row_bytes);
    return (net){.g          = g,
                 .c          = c,
                 .n          = n,
                 .V          = V,
                 .values     = V * (size_t)s->head_dim,
                 .pool_bytes = LANES * state,
                 .w          = rig_put_randn(g, TAPS * n),
                 .rate       = rig_put_f32(g, rate, V),
                 .bias       = rig_put_randn(g, V),
                 .x          = rig_randn(g, MAX_T * n),
                 .a          = rig_randn(g, MAX_T * V),
                 .b          = rig_randn(g, MAX_T * V)};
}

typedef struct {
    int     n;
    int32_t lane[MAX_T], pos[MAX_T], before[MAX_T], kept[MAX_T];
    int     token[MAX_T]; /* the inputs of the row */
} rows_of;

static int add(rows_of *r, int lane, int pos, int before, int kept, int token)
{
    r->lane[r->n]   = lane;
    r->pos[r->n]    = pos;
    r->before[r->n] = before;
    r->kept[r->n]   = kept;
    r->token[r->n]  = token;
    return r->n++;
}

/* Returns the outputs of the rows, on the device. */
static dev run(net *m, const rows_of *r)
{
    rig   *g = m->g;
    size_t n = (size_t)r->n;
    dev    x = rig_new(g, n * m->n * sizeof(float)), a = rig_new(g, n * m->V * sizeof(float));
    dev    b = rig_new(g, n * m->V * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        size_t from = (size_t)r->token[i];
        g->o->upload(g->q, dev_at_f32(x, i * m->n), m->x + from * m->n, m->n * sizeof(float));
        g->o->upload(g->q, dev_at_f32(a, i * m->V), m->a + from * m->V, m->V * sizeof(float));
        g->o->upload(g->q, dev_at_f32(b, i * m->V), m->b + from * m->V, m->V * sizeof(float));
    }
    delta_io  io   = {.y    = rig_new(g, n * m->values * sizeof(float)),
                      .x    = x,
                      .conv = rig_new(g, n * m->n * sizeof(float)),
                      .a    = a,
                      .b    = b,
                      .w    = m->w,
                      .rate = m->rate,
                      .bias = m->bias};
    step_rows rows = {.n_rows  = r->n,
                      .lane    = rig_put_i32(g, r->lane, n),
                      .pos     = rig_put_i32(g, r->pos, n),
                      .before  = rig_put_i32(g, r->before, n),
                      .kept    = rig_put_i32(g, r->kept, n),
                      .settled = true};
    OP(g, delta, &io, &m->c, LAYER, &rows);
    return io.y;
}

/* Commits the rows in these places to the lane, whose state covers pos tokens. */
static void replay(net *m, int lane, int pos, const int32_t *place, int n)
{
    delta_replay_item item = {lane, pos, 1, n};
    int32_t           at[MAX_T + 1];
    at[0] = -1;
    memcpy(at + 1, place, (size_t)n * sizeof *at);
    dev items = rig_put(m->g, &item, sizeof item), places = rig_put_i32(m->g, at, (size_t)n + 1);
    OP(m->g, delta_replay, &m->c, items, 1, places);
}

/* --- agreement --------------------------------------------------------------------------------------*/
/* Three lanes: one from the beginning, a tree after a state, sure rows and then kept ones of two branches. */
static rows_of mixed_rows(void)
{
    static const int parent[] = {-1, 0, 1, 0, 3, -1, 5, 2}; /* among the rows of the tree */
    rows_of          r        = {0};
    int              depth[COUNT(parent)];
    for (int i = 0; i < 11; i++) add(&r, 2, i, i - 1, -1, i);
    for (int i = 0; i < (int)COUNT(parent); i++) {
        depth[i] = parent[i] < 0 ? 0 : depth[parent[i]] + 1;
        add(&r, 0, 5 + depth[i], parent[i] < 0 ? -1 : 11 + parent[i], i, 11 + i);
    }
    int first = add(&r, 1, 0, -1, -1, 20);
    add(&r, 1, 1, first, 10, 21);
    add(&r, 1, 2, first + 1, 11, 22);
    add(&r, 1, 1, first, 12, 23);
    return r;
}

static rig_result play_mixed(rig *g, const void *arg)
{
    static const int32_t path[] = {0, 1, 2, 7};
    net                  m      = new_net(g, arg);
    rows_of              r      = mixed_rows();
    size_t               n_y = (size_t)r.n * m.values, n_pool = m.pool_bytes / sizeof(float);
    dev                  all = rig_new(g, n_y * sizeof(float) + m.pool_bytes), y = run(&m, &r);
    replay(&m, 0, 5, path, COUNT(path));
    replay(&m, 1, 1, (int32_t[]){12}, 1);
    OP(g, copy_rows, all, (int)n_y, y, (int)n_y, (dev){0}, 1, (int)n_y);
    OP(g, copy_rows, dev_at_f32(all, n_y), (int)n_pool, m.c.pool, (int)n_pool, (dev){0}, 1, (int)n_pool);
    return rig_give(g, all, n_y + n_pool, 1e-4, 1e-4);
}

static const net_shape shapes[] = {{1, 1, 8, false}, {2, 4, 16, true},  {2, 6, 40, false},
                                   {1, 2, 64, true}, {2, 4, 128, true}, {1, 2, 256, false}};

TEST(delta_agrees_with_ref)
{
    for (size_t i = 0; i < COUNT(shapes); i++) rig_compare(t, play_mixed, &shapes[i]);
}

/* --- promise 1 ----------------------------------------------------------------------------------------*/
enum { T = 24 };

static float *live_state(net *m, int lane)
{
    int32_t *table = rig_get_i32(m->g, m->c.table, LANES * 2);
    dev      at    = dev_at(m->c.pool, (size_t)table[2 * lane] * KV_UNIT);
    return rig_get_f32(m->g, dev_at_f32(at, LAYER * delta_state_floats(&m->c)), delta_state_floats(&m->c));
}

static void same_state(net *m, int lane, const float *expected)
{
    SAME_F32(m->g, live_state(m, lane), expected, delta_state_floats(&m->c));
}

/* Runs tokens from .. to - 1 as sure rows of one step of lane 1, and compares them with `alone`. */
static void run_sure(net *m, int from, int to, const float *alone)
{
    rows_of r = {0};
    for (int i = from; i < to; i++) add(&r, 1, i, i > from ? i - from - 1 : -1, -1, i);
    SAME_F32(m->g, rig_get_f32(m->g, run(m, &r), (size_t)r.n * m->values), alone + (size_t)from * m->values,
             (size_t)r.n * m->values);
}

/* Runs tokens from .. T - 1 as kept rows after `from` committed ones, each followed by a wrong one if `wrong`; then
 * commits them. */
static void run_kept(net *m, int from, bool wrong, const float *alone)
{
    rows_of r = {0};
    int32_t place[T];
    int     row[T];
    for (int i = from; i < T; i++) {
        place[i] = r.n;
        row[i]   = add(&r, 1, i, i > from ? row[i - 1] : -1, r.n, i);
        if (wrong && i + 1 < T) add(&r, 1, i + 1, row[i], r.n, T + i % (MAX_T - T));
    }
    const float *y = rig_get_f32(m->g, run(m, &r), (size_t)r.n * m->values);
    for (int i = from; i < T; i++)
        SAME_F32(m->g, y + (size_t)row[i] * m->values, alone + (size_t)i * m->values, m->values);
    replay(m, 1, from, place + from, T - from);
}

static void play_promise(rig *g)
{
    for (size_t k = 0; k < COUNT(shapes); k++) {
        net    m     = new_net(g, &shapes[k]);
        float *alone = rig_randn(g, T * m.values);
        for (int i = 0; i < T; i++) {
            rows_of r = {0};
            add(&r, 1, i, -1, -1, i);
            memcpy(alone + (size_t)i * m.values, rig_get_f32(g, run(&m, &r), m.values), m.values * sizeof(float));
        }
        const float *state = live_state(&m, 1);
        run_sure(&m, 0, T, alone);
        same_state(&m, 1, state);
        for (int from = 0; from < 12; from += from < 5 ? 1 : 6) {
            if (from) run_sure(&m, 0, from, alone);
            run_kept(&m, from, false, alone);
            same_state(&m, 1, state);
        }
        run_sure(&m, 0, 9, alone);
        run_kept(&m, 9, true, alone);
        same_state(&m, 1, state);
    }
}
TEST(delta_rows_do_not_depend_on_steps) { rig_each(t, play_promise); }

/* Two lanes in one step of many rows, the second with a branch of kept rows, and each of them in a step of its own. */
static void play_many(rig *g)
{
    enum { FIRST = 30, SECOND = 50, KEPT = 10 };
    static const net_shape some[] = {{2, 6, 40, false}, {2, 4, 128, true}, {1, 2, 256, false}};
    for (size_t k = 0; k < COUNT(some); k++) {
        net     m   = new_net(g, &some[k]);
        rows_of all = {0}, part[2] = {{0}, {0}};
        int32_t place[KEPT];
        for (int i = 0; i < FIRST; i++) {
            add(&all, 0, i, i - 1, -1, i);
            add(&part[0], 0, i, i - 1, -1, i);
        }
        for (int i = 0; i < SECOND; i++) {
            int kept = i - (SECOND - KEPT), before = kept == 7 ? i - 3 : i - 1, pos = kept < 7 ? i : i - 2;
            if (kept >= 0) place[kept] = kept;
            add(&all, 2, pos, before < 0 ? -1 : FIRST + before, kept < 0 ? -1 : kept, FIRST + i);
            add(&part[1], 2, pos, before, kept < 0 ? -1 : kept, FIRST + i);
        }
        const float *y = rig_get_f32(g, run(&m, &all), (size_t)all.n * m.values), *state[2];
        replay(&m, 2, SECOND - KEPT, place, 7);
        for (int i = 0; i < 2; i++) state[i] = live_state(&m, 2 * i);
        for (int i = 0; i < 2; i++) {
            size_t n = (size_t)part[i].n * m.values;
            SAME_F32(g, rig_get_f32(g, run(&m, &part[i]), n), y + (i ? FIRST * m.values : 0), n);
        }
        replay(&m, 2, SECOND - KEPT, place, 7);
        for (int i = 0; i < 2; i++) same_state(&m, 2 * i, state[i]);
    }
}
TEST(delta_of_many_rows_equals_each_lane_alone) { rig_each(t, play_many); }

/* Kept rows of all lanes in one commit: a new lane, one with as many rows as a kernel takes at once, one with more. */
static void play_commit(rig *g)
{
    static const int       from[LANES] = {0, 5, 3}, n[LANES] = {2, 16, 19};
    static const net_shape some[] = {{2, 6, 40, false}, {2, 6, 128, true}, {1, 2, 256, false}};
    for (size_t k = 0; k < COUNT(some); k++) {
        net               m = new_net(g, &some[k]);
        delta_replay_item item[LANES];
        int32_t           place[PLACES];
        float            *state[LANES];
        int               n_places = 0;
        for (int lane = 0; lane < LANES; lane++) {
            rows_of sure = {0}, kept = {0};
            for (int i = 0; i < from[lane]; i++) add(&sure, lane, i, i - 1, -1, i);
            if (sure.n) run(&m, &sure);
            item[lane] = (delta_replay_item){lane, from[lane], n_places, n[lane]};
            for (int i = 0; i < n[lane]; i++) {
                place[n_places] = (n_places * 7 + 3) % PLACES; /* anywhere */
                add(&kept, lane, from[lane] + i, i - 1, place[n_places++], from[lane] + i);
            }
            run(&m, &kept);
        }
        dev items = rig_put(g, item, sizeof item), places = rig_put_i32(g, place, (size_t)n_places);
        OP(g, delta_replay, &m.c, items, LANES, places);
        for (int lane = 0; lane < LANES; lane++) state[lane] = live_state(&m, lane);
        for (int lane = 0; lane < LANES; lane++) {
            rows_of all = {0};
            for (int i = 0; i < from[lane] + n[lane]; i++) add(&all, lane, i, i - 1, -1, i);
            run(&m, &all);
            same_state(&m, lane, state[lane]);
        }
    }
}
TEST(delta_replay_commits_all_lanes_at_once) { rig_each(t, play_commit); }

/* --- gates ----------------------------------------------------------------------------------------*/
typedef struct {
    int rows, heads, n;
} gate_shape;

static rig_result play_add_gated(rig *g, const void *arg)
{
    const gate_shape *s = arg;
    size_t            n = (size_t)s->rows * (size_t)s->n;
    dev               a = rig_put_randn(g, n), b = rig_put_randn(g, n), gate = rig_put_randn(g, (size_t)s->rows);
    OP(g, add_gated, a, a, b, gate, s->rows, s->n);
    return rig_give(g, a, n, 1e-5, 1e-6);
}
TEST(add_gated_agrees_with_ref)
{
    static const gate_shape s[] = {{1, 1, 8}, {3, 1, 257}, {17, 1, 1024}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_add_gated, &s[i]);
}
