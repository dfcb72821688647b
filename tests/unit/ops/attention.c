#include "ops_test.h"

/* Stores random K and V for the rows; returns nothing to keep, the cache holds them. */
static void store_random(rig *g, const kv_class *c, int layer, const step_rows *rows)
{
    size_t n = (size_t)rows->n_rows * (size_t)c->n_kv_heads * (size_t)kv_row_dim(c);
    OP(g, kv_store, c, layer, rows, rig_put_randn(g, n), rig_put_randn(g, n));
}

typedef struct {
    cache_types type;
    int         head_dim, n_heads, n_kv_heads, n_ctx, n_rows, window;
} shape;

/* n_rows queries at the end of n_ctx positions. */
static rig_result play_attention(rig *g, const void *arg)
{
    const shape *s    = arg;
    int          past = s->n_ctx - s->n_rows;
    size_t       n    = (size_t)s->n_rows * (size_t)s->n_heads * (size_t)s->head_dim;
    kv_class     c    = rig_kv(g, s->type, 2, s->n_kv_heads, s->head_dim, 2, s->n_ctx);
    step_rows    old = rig_chain(g, 1, 0, past), rows = rig_chain(g, 1, past, s->n_rows);
    dev          y = rig_new(g, n * sizeof(float)), q = rig_put_randn(g, n);
    store_random(g, &c, 1, &old);
    store_random(g, &c, 1, &rows);
    OP(g, attention, y, q, s->n_heads, &c, 1, &rows, 1 / sqrtf((float)s->head_dim), s->window);
    return rig_give(g, y, n, 1e-5, 1e-5);
}

TEST(attention_agrees_with_ref)
{
    static const shape s[] = {{RIG_F32, 8, 1, 1, 1, 1, 0},
                              {RIG_F32, 64, 4, 4, 33, 33, 0},
                              {RIG_F32, 64, 8, 2, 15, 2, 0},
                              {RIG_F16, 64, 6, 2, 16, 3, 0},
                              {RIG_F16, 128, 8, 1, 17, 7, 0},
                              {RIG_F32, 256, 4, 2, 200, 7, 64},
                              {RIG_F16, 256, 8, 4, 300, 33, 5},
                              {RIG_F16, 512, 8, 1, 130, 1, 0},
                              {RIG_F32, 512, 2, 2, 64, 33, 1},
                              {RIG_F16, 64, 2, 1, 1030, 3, 512},
                              {{CACHE_F16, CACHE_F32}, 64, 4, 2, 90, 5, 0},
                              {{CACHE_F32, CACHE_F16}, 64, 4, 2, 90, 5, 0},
                              {{CACHE_F16, CACHE_F32}, 256, 8, 1, 300, 1, 70},
                              {{CACHE_F32, CACHE_F16}, 72, 6, 2, 270, 9, 0}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_attention, &s[i]);
}

/* Every head size and type, lengths on both sides of where contexts are cut, and rows that are many together. */
TEST_LONG(attention_agrees_with_ref_at_length)
{
    static const shape s[] = {{RIG_F16, 64, 4, 1, 4097, 2, 0},   {RIG_F32, 64, 2, 2, 513, 1, 0},
                              {RIG_F16, 128, 4, 2, 1500, 3, 0},  {RIG_F32, 128, 4, 1, 512, 9, 300},
                              {RIG_F16, 256, 4, 2, 1500, 17, 0}, {RIG_F32, 256, 2, 1, 511, 20, 256},
                              {RIG_F16, 512, 8, 1, 560, 48, 0},  {RIG_F32, 512, 8, 1, 1025, 2, 0},
                              {RIG_F16, 72, 12, 1, 300, 5, 100}, {RIG_F32, 24, 6, 2, 700, 11, 0}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_attention, &s[i]);
}

/* ref takes most of the time. */
TEST_LONG(attention_agrees_with_ref_at_16k)
{
    static const shape s[] = {{RIG_F16, 64, 2, 1, 16400, 3, 0},
                              {RIG_F16, 512, 2, 1, 16384, 1, 0},
                              {RIG_F16, 128, 2, 1, 16390, 17, 0},
                              {RIG_F16, 256, 2, 1, 16385, 2, 0}};
    for (size_t i = 0; i < (test_full() ? COUNT(s) : 2); i++) rig_compare(t, play_attention, &s[i]);
}
TEST_SLOW(attention_agrees_with_ref_at_128k)
{
    static const shape s[] = {{RIG_F16, 64, 2, 1, 131080, 5, 0},
                              {RIG_F16, 128, 1, 1, 131073, 2, 0},
                              {RIG_F16, 256, 1, 1, 131072, 1, 0},
                              {RIG_F16, 512, 1, 1, 131072, 1, 0}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_attention, &s[i]);
}

/* --- rows that have a part of a stored head --------------------------------------------------------- */
typedef struct {
    shape s; /* head_dim: of the pages */
    int   row_dim;
    bool  prompt; /* the rows are a long chain that sees all of itself, as the patches of a picture */
} part_shape;

static rig_result play_part(rig *g, const void *arg)
{
    const part_shape *x    = arg;
    const shape      *s    = &x->s;
    int               past = s->n_ctx - s->n_rows;
    size_t            n    = (size_t)s->n_rows * (size_t)s->n_heads * (size_t)x->row_dim;
    kv_class          c    = rig_kv(g, s->type, 2, s->n_kv_heads, s->head_dim, 2, s->n_ctx);
    step_rows         old = rig_chain(g, 1, 0, past), rows = rig_chain(g, 1, past, s->n_rows);
    int32_t *last = arena_new_n(&g->host, int32_t, s->n_rows), *root = arena_new_n(&g->host, int32_t, s->n_rows);
    dev      y = rig_new(g, n * sizeof(float)), q = rig_put_randn(g, n);
    c.row_dim        = x->row_dim;
    queue_limits lim = {.max_rows = s->n_rows, .max_in = RIG_IN};
    err          e   = {0};
    test_case   *t   = g->t;
    CHECK_OK(g->o->queue_reserve(g->q, &lim, &e), e);
    for (int i = 0; i < s->n_rows; i++) last[i] = s->n_ctx - 1, root[i] = s->n_ctx;
    if (x->prompt) {
        rows.last     = rig_put_i32(g, last, (size_t)s->n_rows);
        rows.root     = rig_put_i32(g, root, (size_t)s->n_rows);
        rows.chain_to = s->n_rows, rows.chain_end = s->n_ctx;
    }
    store_random(g, &c, 1, &old);
    store_random(g, &c, 1, &rows);
    OP(g, attention, y, q, s->n_heads, &c, 1, &rows, 1 / sqrtf((float)x->row_dim), s->window);
    return rig_give(g, y, n, 1e-5, 1e-5);
}

/* Pages are NaN before rows are stored, so an element that a row does not have must be stored as zero. */
TEST(attention_of_parts_of_heads_agrees_with_ref)
{
    static const part_shape s[] = {
        {{RIG_F16, 64, 2, 2, 40, 9, 0}, 32, false},    {{RIG_F16, 128, 4, 2, 75, 70, 0}, 72, true},
        {{RIG_F16, 128, 2, 2, 300, 140, 0}, 72, true}, {{RIG_F16, 128, 3, 1, 330, 70, 0}, 80, true},
        {{RIG_F16, 128, 2, 1, 70, 66, 0}, 88, true},   {{RIG_F16, 256, 2, 1, 33, 33, 20}, 136, false},
        {{RIG_F32, 64, 4, 2, 90, 20, 0}, 40, false},   {{{CACHE_F16, CACHE_F32}, 128, 2, 2, 70, 3, 0}, 8, false}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_part, &s[i]);
}

/* Gemma's scale is 1, so scores are large and the softmax is nearly one-hot: differences are only in which key wins. */
static void large_scores(rig *g)
{
    enum { D = 64, N = 40 };
    kv_class  c    = rig_kv(g, cache_types_both(CACHE_F32), 1, 1, D, 1, N);
    step_rows rows = rig_chain(g, 0, 0, N), last = rig_chain(g, 0, N - 1, 1);
    float    *k = arena_new_n(&g->host, float, N *D), *v = rig_randn(g, N * D), q[D];
    for (int i = 0; i < N * D; i++) k[i] = i / D == 11 ? 40.0f : -40.0f;
    for (int i = 0; i < D; i++) q[i] = 40;
    OP(g, kv_store, &c, 0, &rows, rig_put_f32(g, k, N * D), rig_put_f32(g, v, N * D));
    dev y = rig_new(g, D * sizeof(float));
    OP(g, attention, y, rig_put_f32(g, q, D), 1, &c, 0, &last, 1, 0);
    SAME_F32(g, rig_get_f32(g, y, D), v + 11 * D, D);
}
TEST(attention_survives_large_scores) { rig_each(t, large_scores); }

/* --- what a row sees -------------------------------------------------------------------------------- */
/* With equal keys every visible position weighs the same, so y is the mean of the visible values. v[p] = p, so a
 * mean over first .. pos is (first + pos) / 2. */
static void equal_keys(rig *g, cache_types type, int window)
{
    enum { D = 16, N = 60 };
    kv_class  c    = rig_kv(g, type, 1, 1, D, 1, N);
    step_rows rows = rig_chain(g, 0, 0, N);
    float     k[N * D], v[N * D], q[N * D];
    for (int i = 0; i < N * D; i++) {
        k[i] = 0.25f * (float)(i % D);
        q[i] = 1;
        v[i] = (float)(i / D);
    }
    OP(g, kv_store, &c, 0, &rows, rig_put_f32(g, k, N * D), rig_put_f32(g, v, N * D));
    dev y = rig_new(g, sizeof q);
    OP(g, attention, y, rig_put_f32(g, q, N * D), 1, &c, 0, &rows, 1, window);
    float *got = rig_get_f32(g, y, N * D);
    for (int i = 0; i < N * D; i++) {
        int pos = i / D, first = window && pos >= window ? pos - window + 1 : 0;
        NEAR(g, got[i], (first + pos) / 2.0, 2e-5 * (pos + 1));
    }
}

static void averages(rig *g)
{
    static const int windows[] = {0, 1, 2, 15, 16, 17, 32, 59, 60, 61};
    for (size_t i = 0; i < COUNT(windows); i++) {
        equal_keys(g, cache_types_both(CACHE_F32), windows[i]);
        equal_keys(g, cache_types_both(CACHE_F16), windows[i]);
    }
}
TEST(attention_with_equal_keys_averages_the_window) { rig_each(t, averages); }

/* Values that name their kv head: query head h must see head h / (n_heads / n_kv_heads). */
static void head_mapping(rig *g)
{
    enum { D = 8, N = 5, KV = 3, HEADS = 12 };
    kv_class  c    = rig_kv(g, cache_types_both(CACHE_F32), 2, KV, D, 1, N);
    step_rows rows = rig_chain(g, 0, 0, N);
    float     v[N * KV * D];
    for (int i = 0; i < N * KV * D; i++) v[i] = (float)(100 + i / D % KV);
    for (int layer = 0; layer < 2; layer++)
        OP(g, kv_store, &c, layer, &rows, rig_put_randn(g, N * KV * D), rig_put_f32(g, v, N * KV * D));
    dev y = rig_new(g, N * HEADS * D * sizeof(float));
    OP(g, attention, y, rig_put_randn(g, N * HEADS * D), HEADS, &c, 0, &rows, 0.1f, 0);
    float *got = rig_get_f32(g, y, N * HEADS * D);
    for (int i = 0; i < N * HEADS * D; i++) NEAR(g, got[i], 100 + i / D % HEADS / 4, 1e-4);
}
TEST(attention_maps_query_heads_to_kv_heads) { rig_each(t, head_mapping); }

/* Two keys, by hand: weights e^1 / (e^1 + e^-1) and the rest. The row attends the stored, rounded form of its own
 * key and value. */
static void two_keys(rig *g)
{
    enum { D = 8 };
    static const float k[2 * D] = {1, [D] = -1}, v[2 * D] = {1, 0.1f, [D] = 3, 0.1f}, q[2 * D] = {5, 5, [D] = 2, 7};
    for (int f16 = 0; f16 < 2; f16++) {
        kv_class  c    = rig_kv(g, cache_types_both(f16 ? CACHE_F16 : CACHE_F32), 1, 1, D, 1, 2);
        step_rows rows = rig_chain(g, 0, 0, 2);
        dev       y    = rig_new(g, sizeof q);
        OP(g, kv_store, &c, 0, &rows, rig_put_f32(g, k, 2 * D), rig_put_f32(g, v, 2 * D));
        OP(g, attention, y, rig_put_f32(g, q, 2 * D), 1, &c, 0, &rows, 0.5f, 0);
        float *got = rig_get_f32(g, y, 2 * D);
        double w = exp(1) / (exp(1) + exp(-1)), tenth = f16 ? f16_to_f32(f32_to_f16(0.1f)) : 0.1f;
        NEAR(g, got[0], 1, 1e-6);
        NEAR(g, got[1], tenth, 2e-8);
        NEAR(g, got[D], w * 1 + (1 - w) * 3, 1e-6);
        NEAR(g, got[D + 1], tenth, 2e-8);
        NEAR(g, got[D + 2], 0, 0);
    }
}
TEST(attention_over_two_keys_by_hand) { rig_each(t, two_keys); }

/* --- rows that see to another position than their own ------------------------------------------------ */
enum { L_D = 64, L_HEADS = 4, L_KV = 2, L_N = 140, L_ONE = L_KV * L_D, L_Q = L_HEADS * L_D };

/* Rows at any positions of a lane, each with its own last; root lies past all of them, so no path is walked. */
static step_rows looking(rig *g, int lane, const int32_t *pos, const int32_t *last, int n_rows)
{
    step_rows rows = rig_chain(g, lane, 0, n_rows);
    int32_t  *root = arena_new_n(&g->host, int32_t, n_rows);
    for (int i = 0; i < n_rows; i++) root[i] = (pos[i] > last[i] ? pos[i] : last[i]) + 1;
    rows.pos = rows.slot = rig_put_i32(g, pos, (size_t)n_rows);
    rows.last            = rig_put_i32(g, last, (size_t)n_rows);
    rows.root            = rig_put_i32(g, root, (size_t)n_rows);
    return rows;
}

/* K and V of L_N positions of two lanes. */
static kv_class full_lanes(rig *g, cache_types type)
{
    kv_class c = rig_kv(g, type, 1, L_KV, L_D, 2, L_N);
    for (int lane = 0; lane < 2; lane++)
        for (int at = 0; at < L_N; at += 35) {
            step_rows rows = rig_chain(g, lane, at, 35);
            store_random(g, &c, 0, &rows);
        }
    return c;
}

static float *look(rig *g, const kv_class *c, const step_rows *rows, const float *q, int window)
{
    size_t n = (size_t)rows->n_rows * L_Q;
    dev    y = rig_new(g, n * sizeof(float)), q_rows = rig_put_f32(g, q, n);
    OP(g, attention, y, q_rows, L_HEADS, c, 0, rows, 0.2f, window);
    return rig_get_f32(g, y, n);
}

/* A block 120 .. 134 in which every row sees to the block's end: without a window, what the block's last row sees. */
static void both_ways(rig *g)
{
    enum { FROM = 120, N = 15 };
    int32_t  pos[N], end[N], at_end[N];
    kv_class c = full_lanes(g, cache_types_both(CACHE_F16));
    float   *q = rig_randn(g, N * L_Q);
    for (int i = 0; i < N; i++) {
        pos[i] = FROM + i;
        end[i] = at_end[i] = FROM + N - 1;
    }
    step_rows rows = looking(g, 1, pos, end, N), last = looking(g, 1, at_end, end, N);
    SAME_F32(g, look(g, &c, &rows, q, 0), look(g, &c, &last, q, 0), N * L_Q);
}
TEST(attention_of_a_block_that_looks_both_ways) { rig_each(t, both_ways); }

/* Query at n, keys 0 .. n - 1: without a window it is the row n - 1; in one, the key that is window positions back is
 * out, so it is that row in a window one shorter. */
static void not_itself(rig *g)
{
    enum { N = 9 };
    static const int32_t pos[N] = {1, 2, 16, 63, 64, 65, 128, 129, 139};

    int32_t  before[N];
    kv_class c = full_lanes(g, cache_types_both(CACHE_F32));
    float   *q = rig_randn(g, N * L_Q);
    for (int i = 0; i < N; i++) before[i] = pos[i] - 1;
    step_rows rows = looking(g, 0, pos, before, N), own = looking(g, 0, before, before, N);
    SAME_F32(g, look(g, &c, &rows, q, 0), look(g, &c, &own, q, 0), N * L_Q);
    for (int window = 2; window < 130; window += 21)
        SAME_F32(g, look(g, &c, &rows, q, window), look(g, &c, &own, q, window - 1), N * L_Q);
}
TEST(attention_of_rows_without_keys_of_their_own) { rig_each(t, not_itself); }

/* With equal keys, the mean of the positions that are seen: last and window cut each on their own side. */
static void mean_of_seen(rig *g)
{
    enum { D = 16, N = 100, ROWS = 7 };
    static const int32_t pos[ROWS]  = {0, 50, 50, 50, 90, 64, 99};
    static const int32_t last[ROWS] = {99, 99, 49, 40, 63, 64, 98};
    static const int     windows[]  = {0, 20, 28, 51, 200};

    kv_class  c        = rig_kv(g, cache_types_both(CACHE_F32), 1, 1, D, 1, N);
    float     k[N * D] = {0}, v[N * D];
    step_rows all = rig_chain(g, 0, 0, N), rows = looking(g, 0, pos, last, ROWS);
    for (int i = 0; i < N * D; i++) v[i] = (float)(i / D);
    OP(g, kv_store, &c, 0, &all, rig_put_f32(g, k, N * D), rig_put_f32(g, v, N * D));
    dev y = rig_new(g, ROWS * D * sizeof(float)), q = rig_put_randn(g, ROWS * D);
    for (size_t w = 0; w < COUNT(windows); w++) {
        OP(g, attention, y, q, 1, &c, 0, &rows, 1, windows[w]);
        float *got = rig_get_f32(g, y, ROWS * D);
        for (int i = 0; i < ROWS * D; i++) {
            int32_t at = pos[i / D], first = windows[w] && at >= windows[w] ? at - windows[w] + 1 : 0;
            NEAR(g, got[i], first <= last[i / D] ? (first + last[i / D]) / 2.0 : 0, 1e-4);
        }
    }
}
TEST(attention_averages_from_the_window_to_the_last) { rig_each(t, mean_of_seen); }

/* Before the first position, or with a last before the window: zeros to the bit, whatever y and the cache held. */
static void nothing_seen(rig *g)
{
    enum { N = 4 };
    static const int32_t pos[N] = {0, 5, 70, 130}, last[N] = {-1, -1, 60, 128};
    static const float   zeros[N * L_Q];

    kv_class  c    = rig_kv(g, cache_types_both(CACHE_F16), 1, L_KV, L_D, 1, L_N);
    step_rows rows = looking(g, 0, pos, last, N);
    dev       y = rig_put_randn(g, N * L_Q), q = rig_put_randn(g, N * L_Q);
    OP(g, attention, y, q, L_HEADS, &c, 0, &rows, 0.2f, 2);
    SAME_F32(g, rig_get_f32(g, y, N * L_Q), zeros, N * L_Q);
}
TEST(attention_of_a_row_that_sees_nothing_is_zero) { rig_each(t, nothing_seen); }

/* All kinds in one step, on two lanes, against each alone. */
static void looking_alone(rig *g)
{
    enum { N = 8 };
    static const int32_t pos[N]  = {120, 121, 122, 139, 64, 0, 7, 100};
    static const int32_t last[N] = {134, 134, 134, 138, 63, -1, 7, 20};
    static const int32_t lane[N] = {0, 0, 0, 1, 1, 0, 1, 1};

    kv_class c = full_lanes(g, cache_types_both(CACHE_F16));
    float   *q = rig_randn(g, N * L_Q);
    for (int window = 0; window <= 70; window += 35) {
        step_rows rows = looking(g, 0, pos, last, N);
        rows.lane      = rig_put_i32(g, lane, N);
        float *all     = look(g, &c, &rows, q, window);
        for (int r = 0; r < N; r++) {
            step_rows one = looking(g, lane[r], pos + r, last + r, 1);
            SAME_F32(g, look(g, &c, &one, q + (size_t)r * L_Q, window), all + (size_t)r * L_Q, L_Q);
        }
    }
}
TEST(attention_rows_that_look_elsewhere_are_their_own) { rig_each(t, looking_alone); }

typedef struct {
    int n_back, n_ahead, window; /* positions that a row's last is before or after its own */
} outlook;

static rig_result play_outlook(rig *g, const void *arg)
{
    enum { N = 12 };
    const outlook *o = arg;
    int32_t        pos[N], last[N];
    kv_class       c = full_lanes(g, cache_types_both(CACHE_F16));
    for (int i = 0; i < N; i++) {
        pos[i]  = 50 + 6 * i;
        last[i] = pos[i] - o->n_back + o->n_ahead;
    }
    step_rows rows = looking(g, 1, pos, last, N);
    dev       y = rig_new(g, N * L_Q * sizeof(float)), q = rig_put_randn(g, N * L_Q);
    OP(g, attention, y, q, L_HEADS, &c, 0, &rows, 0.125f, o->window);
    return rig_give(g, y, N * L_Q, 1e-5, 1e-5);
}

TEST(attention_to_another_position_agrees_with_ref)
{
    static const outlook o[] = {{1, 0, 0}, {1, 0, 33}, {0, 15, 0}, {0, 15, 64}, {20, 0, 30}};
    for (size_t i = 0; i < COUNT(o); i++) rig_compare(t, play_outlook, &o[i]);
}

/* --- promise 1 -------------------------------------------------------------------------------------- */
/* A prompt fed in one step, or in chunks of 7, or a row at a time; in another lane, so on other pages. */
static void chunked(rig *g)
{
    enum { D = 64, HEADS = 4, KV = 2, N = 33, Q = HEADS * D, ONE = KV * D };
    static const int chunks[] = {N, 7, 1};

    kv_class c = rig_kv(g, cache_types_both(CACHE_F16), 1, KV, D, COUNT(chunks), N);
    dev      k = rig_put_randn(g, N * ONE), v = rig_put_randn(g, N * ONE), q = rig_put_randn(g, N * Q);
    float   *want = NULL;
    for (size_t lane = 0; lane < COUNT(chunks); lane++) {
        dev y = rig_new(g, N * Q * sizeof(float));
        for (int at = 0, n; at < N; at += n) {
            n               = chunks[lane] < N - at ? chunks[lane] : N - at;
            step_rows rows  = rig_chain(g, (int)lane, at, n);
            size_t    first = (size_t)at;
            OP(g, kv_store, &c, 0, &rows, dev_at_f32(k, first * ONE), dev_at_f32(v, first * ONE));
            OP(g, attention, dev_at_f32(y, first * Q), dev_at_f32(q, first * Q), HEADS, &c, 0, &rows, 0.2f, 20);
        }
        float *got = rig_get_f32(g, y, N * Q);
        if (want) SAME_F32(g, got, want, N * Q);
        want = got;
    }
}
TEST(attention_rows_are_their_own_however_chunked) { rig_each(t, chunked); }

/* Rows from `first` on of a chain. */
static step_rows rows_of(const step_rows *all, int first, int n_rows)
{
    size_t at = (size_t)first * sizeof(int32_t);
    return (step_rows){.n_rows = n_rows,
                       .token  = dev_at(all->token, at),
                       .pos    = dev_at(all->pos, at),
                       .lane   = dev_at(all->lane, at),
                       .slot   = dev_at(all->slot, at),
                       .parent = dev_at(all->parent, at),
                       .root   = dev_at(all->root, at),
                       .last   = dev_at(all->last, at)};
}

/* The last N rows of a long context, in one step, in steps of 7 and a row at a time, each in a lane of its own. */
static void chunked_at(rig *g, cache_types type, int D, int N, int n_ctx, int window)
{
    enum { HEADS = 4, KV = 2 };
    const int chunks[] = {N, 7, 1};
    int       Q = HEADS * D, ONE = KV * D;

    size_t   n = (size_t)n_ctx * (size_t)ONE, n_q = (size_t)N * (size_t)Q;
    kv_class c = rig_kv(g, type, 1, KV, D, COUNT(chunks), n_ctx);
    dev      k = rig_put_randn(g, n), v = rig_put_randn(g, n), q = rig_put_randn(g, n_q);
    float   *want = NULL;
    for (int lane = 0; lane < (int)COUNT(chunks); lane++) {
        dev       y   = rig_new(g, n_q * sizeof(float));
        step_rows all = rig_chain(g, lane, 0, n_ctx);
        OP(g, kv_store, &c, 0, &all, k, v);
        for (int at = 0, rows; at < N; at += rows) {
            rows           = chunks[lane] < N - at ? chunks[lane] : N - at;
            step_rows some = rows_of(&all, n_ctx - N + at, rows);
            size_t    from = (size_t)at * (size_t)Q;
            OP(g, attention, dev_at_f32(y, from), dev_at_f32(q, from), HEADS, &c, 0, &some, 0.2f, window);
        }
        float *got = rig_get_f32(g, y, n_q);
        if (want) SAME_F32(g, got, want, n_q);
        want = got;
    }
}

/* Calls fn for types with scales, K and V apart, where the backend has them. */
static void each_scaled(rig *g, void (*fn)(rig *g, cache_types types))
{
    static const cache_types types[] = {{CACHE_Q8_0, CACHE_Q8_0}, {CACHE_Q8_0, CACHE_Q4_0}, {CACHE_Q4_0, CACHE_TQ3},
                                        {CACHE_TQ3, CACHE_TQ3},   {CACHE_TQ3, CACHE_F16},   {CACHE_F32, CACHE_Q4_0}};
    for (size_t i = 0; i < COUNT(types) && g->o->kv_scales; i++) fn(g, types[i]);
}

static void chunked_scaled(rig *g, cache_types types)
{
    chunked_at(g, types, 64, 20, 275, 0);
    chunked_at(g, types, 128, 20, 513, 245);
}

static void chunked_all_scaled(rig *g) { each_scaled(g, chunked_scaled); }
TEST(attention_rows_are_their_own_with_scales) { rig_each(t, chunked_all_scaled); }

static void chunked_at_length(rig *g)
{
    static const int n_ctx[] = {255, 256, 257, 275, 511, 512, 513, 532, 1500, 4097};
    for (size_t i = 0; i < COUNT(n_ctx); i++) {
        chunked_at(g, cache_types_both(CACHE_F16), 32, 20, n_ctx[i], 0);
        chunked_at(g, cache_types_both(CACHE_F32), 32, 20, n_ctx[i], 245);
    }
}
TEST(attention_rows_are_their_own_at_every_length) { rig_each(t, chunked_at_length); }

/* Heads that a backend may treat specially, among many rows, and contexts on both sides of where it may call them long. */
static void chunked_many(rig *g)
{
    chunked_at(g, cache_types_both(CACHE_F16), 64, 40, 310, 0);
    chunked_at(g, cache_types_both(CACHE_F16), 128, 33, 600, 290);
    chunked_at(g, cache_types_both(CACHE_F16), 64, 9, 2052, 0);
    chunked_at(g, cache_types_both(CACHE_F16), 64, 17, 2500, 0);
    chunked_at(g, cache_types_both(CACHE_F16), 64, 9, 2600, 2200);
}
TEST(attention_rows_are_their_own_among_many) { rig_each(t, chunked_many); }

static void chunked_at_16k_scaled(rig *g, cache_types types)
{
    chunked_at(g, types, 64, types.k == types.v ? 20 : 8, 16400, 0);
}
static void chunked_at_16k(rig *g)
{
    chunked_at(g, cache_types_both(CACHE_F16), 64, 20, 16400, 0);
    if (!test_full()) return;
    chunked_at(g, cache_types_both(CACHE_F16), 512, 9, 16390, 0);
    if (g->o->kv_scales) chunked_at(g, cache_types_both(CACHE_Q8_0), 512, 9, 16390, 0);
    each_scaled(g, chunked_at_16k_scaled);
}
TEST_LONG(attention_rows_are_their_own_at_16k) { rig_each(t, chunked_at_16k); }
static void chunked_at_128k(rig *g)
{
    chunked_at(g, cache_types_both(CACHE_F16), 64, 9, 131080, 0);
    if (g->o->kv_scales) chunked_at(g, (cache_types){CACHE_Q8_0, CACHE_TQ3}, 128, 9, 131080, 0);
}
TEST_SLOW(attention_rows_are_their_own_at_128k) { rig_each(t, chunked_at_128k); }

/* A chain in which the K or V of one row is not a number, or as large as f16 can be: the rows before it, and those
 * whose window has left it behind, are as if it were zero. */
static void odd_neighbour(rig *g, int D, int n_past, int window, float odd)
{
    enum { HEADS = 4, KV = 2, N = 12, AT = 5 };
    int       Q = HEADS * D, ONE = KV * D, n_all = n_past + N;
    size_t    n = (size_t)n_all * (size_t)ONE, n_q = (size_t)N * (size_t)Q;
    kv_class  c   = rig_kv(g, cache_types_both(CACHE_F16), 1, KV, D, 1, n_all);
    step_rows all = rig_chain(g, 0, 0, n_all), rows = rows_of(&all, n_past, N);
    float    *k = rig_randn(g, n), *v = rig_randn(g, n), *want = NULL;
    dev       q = rig_put_randn(g, n_q), y = rig_new(g, n_q * sizeof(float));
    for (int turn = 0; turn < 2; turn++) {
        int at = n_past + AT - (window ? window - N / 2 : 0); /* a row of the step, or at the edge of the windows */
        for (int i = 0; i < ONE; i++) k[at * ONE + i] = v[at * ONE + i] = turn ? odd : 0;
        OP(g, kv_store, &c, 0, &all, rig_put_f32(g, k, n), rig_put_f32(g, v, n));
        OP(g, attention, y, q, HEADS, &c, 0, &rows, 0.2f, window);
        float *got = rig_get_f32(g, y, n_q);
        for (int r = 0; want && r < N; r++) {
            bool sees = n_past + r >= at && (!window || n_past + r - at < window);
            if (!sees) SAME_F32(g, got + (size_t)r * (size_t)Q, want + (size_t)r * (size_t)Q, (size_t)Q);
        }
        want = got;
    }
}
static void odd_neighbours(rig *g)
{
    static const float odd[] = {NAN, INFINITY, 65504};
    for (size_t i = 0; i < COUNT(odd); i++) {
        odd_neighbour(g, 64, 60, 0, odd[i]);
        odd_neighbour(g, 64, 130, 40, odd[i]);
        odd_neighbour(g, 64, 2300, 0, odd[i]);
    }
}
TEST(attention_rows_ignore_what_only_their_neighbours_see) { rig_each(t, odd_neighbours); }

/* A context, then a tree across page ends. Its rows come level by level, so that a parent is seldom the row before:
 *
 *     0 - 2 - 5 - 9 - 13 - 16 - 18 - 20 - 21
 *       \   \    10 - 14 - 17 - 19
 *        \    6 - 11
 *          3 - 7 - 12 - 15            1 - 4 - 8   (a second root)
 *
 * Each row must equal, to the bit, the last row of its own path fed as a chain into another lane. */
enum { T_D = 64, T_HEADS = 4, T_KV = 2, T_N = 22, T_ONE = T_KV * T_D, T_Q = T_HEADS * T_D, T_DEPTH = 9 };
static const int32_t tree_parent[T_N] = {-1, -1, 0, 0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 9, 10, 12, 13, 14, 16, 17, 18, 20};

typedef struct {
    kv_class c;
    float   *past_k, *past_v, *k, *v, *q; /* of the context, of the tree's rows */
    int      n_past, window;
} tree_scene;

static void store_past(rig *g, const tree_scene *s, int lane)
{
    size_t    n    = (size_t)s->n_past * T_ONE;
    step_rows rows = rig_chain(g, lane, 0, s->n_past);
    OP(g, kv_store, &s->c, 0, &rows, rig_put_f32(g, s->past_k, n), rig_put_f32(g, s->past_v, n));
}

static float *attend_path(rig *g, const tree_scene *s, int row)
{
    float k[T_DEPTH * T_ONE], v[T_DEPTH * T_ONE];
    int   path[T_DEPTH], n = 0;
    for (int r = row; r >= 0; r = tree_parent[r]) path[n++] = r;
    for (int i = 0; i < n; i++) {
        memcpy(k + (size_t)i * T_ONE, s->k + (size_t)path[n - 1 - i] * T_ONE, T_ONE * sizeof *k);
        memcpy(v + (size_t)i * T_ONE, s->v + (size_t)path[n - 1 - i] * T_ONE, T_ONE * sizeof *v);
    }
    step_rows rows = rig_chain(g, 1, s->n_past, n), last = rig_chain(g, 1, s->n_past + n - 1, 1);
    dev       y = rig_new(g, T_Q * sizeof(float));
    OP(g, kv_store, &s->c, 0, &rows, rig_put_f32(g, k, (size_t)n * T_ONE), rig_put_f32(g, v, (size_t)n * T_ONE));
    OP(g, attention, y, rig_put_f32(g, s->q + (size_t)row * T_Q, T_Q), T_HEADS, &s->c, 0, &last, 0.2f, s->window);
    return rig_get_f32(g, y, T_Q);
}

static float *attend_tree(rig *g, const tree_scene *s)
{
    step_rows rows = rig_tree(g, 0, s->n_past, tree_parent, T_N);
    dev       y    = rig_new(g, T_N * T_Q * sizeof(float));
    rows.settled   = true; /* the past was stored before these rows were uploaded */
    OP(g, kv_store, &s->c, 0, &rows, rig_put_f32(g, s->k, T_N * T_ONE), rig_put_f32(g, s->v, T_N * T_ONE));
    OP(g, attention, y, rig_put_f32(g, s->q, T_N * T_Q), T_HEADS, &s->c, 0, &rows, 0.2f, s->window);
    return rig_get_f32(g, y, T_N * T_Q);
}

static void tree_is_chains(rig *g, cache_types type, int n_past, int window)
{
    size_t     n = (size_t)n_past * T_ONE;
    tree_scene s = {rig_kv(g, type, 1, T_KV, T_D, 2, n_past + T_N),
                    rig_randn(g, n),
                    rig_randn(g, n),
                    rig_randn(g, T_N * T_ONE),
                    rig_randn(g, T_N * T_ONE),
                    rig_randn(g, T_N * T_Q),
                    n_past,
                    window};
    store_past(g, &s, 0);
    store_past(g, &s, 1);
    float *tree = attend_tree(g, &s);
    for (int r = 0; r < T_N; r++) SAME_F32(g, tree + (size_t)r * T_Q, attend_path(g, &s, r), T_Q);
}

static void trees_full(rig *g) { tree_is_chains(g, cache_types_both(CACHE_F32), 61, 0); }
static void trees_where_contexts_are_cut(rig *g)
{
    tree_is_chains(g, cache_types_both(CACHE_F16), 251, 0);
    tree_is_chains(g, cache_types_both(CACHE_F32), 508, 260);
}
static void trees_windowed(rig *g)
{
    tree_is_chains(g, cache_types_both(CACHE_F16), 27, 6);
    tree_is_chains(g, (cache_types){CACHE_F16, CACHE_F32}, 27, 6);
}
static void trees_scaled(rig *g, cache_types types) { tree_is_chains(g, types, 251, types.k == types.v ? 0 : 40); }
static void trees_all_scaled(rig *g) { each_scaled(g, trees_scaled); }
TEST(attention_tree_rows_equal_their_chains_with_scales) { rig_each(t, trees_all_scaled); }
static void trees_from_nothing(rig *g) { tree_is_chains(g, cache_types_both(CACHE_F32), 0, 0); }
TEST(attention_tree_rows_equal_their_chains) { rig_each(t, trees_full); }
TEST(attention_tree_rows_equal_their_chains_where_contexts_are_cut) { rig_each(t, trees_where_contexts_are_cut); }
TEST(attention_tree_rows_equal_their_chains_in_a_window) { rig_each(t, trees_windowed); }
TEST(attention_tree_at_position_zero) { rig_each(t, trees_from_nothing); }
static void trees_at_16k(rig *g)
{
    tree_is_chains(g, cache_types_both(CACHE_F16), 16390, 0);
    if (g->o->kv_scales) tree_is_chains(g, (cache_types){CACHE_Q8_0, CACHE_Q4_0}, 16380, 0);
    if (g->o->kv_scales && test_full()) tree_is_chains(g, cache_types_both(CACHE_TQ3), 16385, 0);
}
TEST_LONG(attention_tree_rows_equal_their_chains_at_16k) { rig_each(t, trees_at_16k); }
static void trees_at_128k(rig *g)
{
    tree_is_chains(g, cache_types_both(CACHE_F16), 131070, 0);
    if (g->o->kv_scales) tree_is_chains(g, cache_types_both(CACHE_Q8_0), 131070, 0);
}
TEST_SLOW(attention_tree_rows_equal_their_chains_at_128k) { rig_each(t, trees_at_128k); }

/* An accepted path that kv_move compacted is a chain. */
static void compacted_as(rig *g, cache_types types)
{
    static const kv_move_item keep[] = {
        {0, 20 + 3, 0, 20 + 1, 0}, {0, 20 + 7, 0, 20 + 2, 0}, {0, 20 + 12, 0, 20 + 3, 0}};

    tree_scene s = {rig_kv(g, types, 1, T_KV, T_D, 2, 20 + T_N),
                    rig_randn(g, 20 * T_ONE),
                    rig_randn(g, 20 * T_ONE),
                    rig_randn(g, T_N * T_ONE),
                    rig_randn(g, T_N * T_ONE),
                    rig_randn(g, T_N * T_Q),
                    20,
                    0};
    store_past(g, &s, 0);
    store_past(g, &s, 1);
    attend_tree(g, &s);
    OP(g, kv_move, &s.c, rig_put(g, keep, sizeof keep), COUNT(keep), NULL);
    step_rows last = rig_chain(g, 0, 20 + 3, 1);
    dev       y    = rig_new(g, T_Q * sizeof(float));
    OP(g, attention, y, rig_put_f32(g, s.q + (size_t)12 * T_Q, T_Q), T_HEADS, &s.c, 0, &last, 0.2f, 0);
    SAME_F32(g, rig_get_f32(g, y, T_Q), attend_path(g, &s, 12), T_Q);
}
static void compacted(rig *g)
{
    compacted_as(g, cache_types_both(CACHE_F16));
    each_scaled(g, compacted_as);
}
TEST(attention_over_a_compacted_path) { rig_each(t, compacted); }

/* Rows of several lanes in one step, a tree after a chain: parents are rows of the step, not of the lane. */
static void two_lanes(rig *g)
{
    enum { D = 16, N = 4 };
    static const int32_t pos[N] = {0, 0, 1, 1}, lane[N] = {0, 1, 1, 1}, slot[N] = {0, 0, 1, 2};
    static const int32_t parent[N] = {-1, -1, 1, 1}, root[N] = {1, 0, 0, 0};

    kv_class  c        = rig_kv(g, cache_types_both(CACHE_F32), 1, 1, D, 2, 16);
    float     k[N * D] = {0}, v[N * D];
    step_rows rows     = {.n_rows = N,
                          .token  = rig_put_i32(g, pos, N),
                          .pos    = rig_put_i32(g, pos, N),
                          .lane   = rig_put_i32(g, lane, N),
                          .slot   = rig_put_i32(g, slot, N),
                          .parent = rig_put_i32(g, parent, N),
                          .root   = rig_put_i32(g, root, N),
                          .last   = rig_put_i32(g, pos, N)};
    for (int i = 0; i < N * D; i++) v[i] = (float)(1 << i / D);
    dev y = rig_new(g, sizeof v);
    OP(g, kv_store, &c, 0, &rows, rig_put_f32(g, k, N * D), rig_put_f32(g, v, N * D));
    OP(g, attention, y, rig_put_randn(g, N * D), 1, &c, 0, &rows, 1, 0);
    float *got = rig_get_f32(g, y, N * D);
    NEAR(g, got[0 * D], 1, 1e-6);
    NEAR(g, got[1 * D], 2, 1e-6);
    NEAR(g, got[2 * D], (2 + 4) / 2.0, 1e-6);
    NEAR(g, got[3 * D], (2 + 8) / 2.0, 1e-6);
}
TEST(attention_over_lanes_of_one_step) { rig_each(t, two_lanes); }

/* So many rows that a backend may work on them in another way than on one: the bits stay. */
static void many_rows(rig *g)
{
    enum { D = 16, HEADS = 16, KV = 2, PAST = 150, ROWS = RIG_ROWS, ONE = KV * D, Q = HEADS * D };
    kv_class  c   = rig_kv(g, cache_types_both(CACHE_F16), 1, KV, D, 1, PAST + ROWS);
    step_rows old = rig_chain(g, 0, 0, PAST), rows = rig_chain(g, 0, PAST, ROWS);
    dev q = rig_put_randn(g, ROWS * Q), y = rig_new(g, ROWS * Q * sizeof(float)), z = rig_new(g, Q * sizeof(float));
    store_random(g, &c, 0, &old);
    store_random(g, &c, 0, &rows);
    OP(g, attention, y, q, HEADS, &c, 0, &rows, 0.2f, 0);
    float *together = rig_get_f32(g, y, ROWS * Q);
    for (int r = 0; r < ROWS; r += 9) {
        step_rows one = rig_chain(g, 0, PAST + r, 1);
        OP(g, attention, z, dev_at_f32(q, (size_t)r * Q), HEADS, &c, 0, &one, 0.2f, 0);
        SAME_F32(g, rig_get_f32(g, z, Q), together + (size_t)r * Q, Q);
    }
}
TEST(attention_of_many_rows_equals_each_alone) { rig_each(t, many_rows); }

/* --- pages behind the window ------------------------------------------------------------------------ */
static void set_entry(rig *g, const kv_class *c, int lane, int page, int32_t id)
{
    g->o->upload(g->q, dev_at(c->table, sizeof id * (size_t)(lane * c->table_stride + page)), &id, sizeof id);
}

/* n_rows rows at the end of W_CTX positions, as a chain or as a tree; pages that none of them sees are let go (-1), or hold
 * NaN: the same bits. */
enum { W_CTX = 700, W_KV = 2, W_HEADS = 4, W_D = 64 };
static void behind_window(rig *g, cache_types type, int window, int n_rows, bool tree)
{
    static const int32_t parent[] = {-1, 0, 0, 1, 2, 2, 3, 6};
    int                  past     = W_CTX - n_rows;
    kv_class             c        = rig_kv(g, type, 1, W_KV, W_D, 2, W_CTX + 16);
    step_rows            old      = rig_chain(g, 0, 0, past);
    step_rows            rows     = tree ? rig_tree(g, 0, past, parent, n_rows) : rig_chain(g, 0, past, n_rows);
    size_t               n        = (size_t)(n_rows * W_HEADS * W_D);
    dev                  q = rig_put_randn(g, n), y = rig_new(g, n * sizeof(float));
    store_random(g, &c, 0, &old);
    store_random(g, &c, 0, &rows);
    OP(g, attention, y, q, W_HEADS, &c, 0, &rows, 0.125f, window);
    const float *want = rig_get_f32(g, y, n);
    for (int nan = 0; nan < 2; nan++) {
        int32_t blank; /* an untouched page of lane 1: every byte of it is 0xFF */
        g->o->download(g->q, &blank, dev_at(c.table, sizeof blank * (size_t)c.table_stride), sizeof blank);
        g->o->sync(g->q);
        for (int page = 0; (page + 1) * KV_PAGE <= past - window + 1; page++)
            set_entry(g, &c, 0, page, nan ? blank : -1);
        OP(g, attention, y, q, W_HEADS, &c, 0, &rows, 0.125f, window);
        SAME_F32(g, rig_get_f32(g, y, n), want, n);
    }
}

static void pages_let_go(rig *g)
{
    static const int windows[] = {1, 16, 17, 63, 64, 65, 100, 256, 300, 512};
    for (size_t i = 0; i < COUNT(windows); i++) {
        behind_window(g, cache_types_both(i % 2 ? CACHE_F16 : CACHE_F32), windows[i], 1, false);
        behind_window(g, cache_types_both(i % 2 ? CACHE_F32 : CACHE_F16), windows[i], 33, false);
        behind_window(g, cache_types_both(CACHE_F16), windows[i], 8, true);
    }
}
TEST(attention_never_looks_at_pages_behind_the_window) { rig_each(t, pages_let_go); }
