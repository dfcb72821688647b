#include "ops_test.h"

/* theta^(-2i / head_dim) for the first n_turning pairs, 0 for the others. */
static float *frequencies(rig *g, int head_dim, double theta, int n_turning)
{
    float *f = arena_new_n(&g->host, float, head_dim / 2);
    for (int i = 0; i < n_turning; i++) f[i] = (float)pow(theta, -2.0 * i / head_dim);
    return f;
}

/* Whole heads, the first n_turning pairs at theta. */
static rope_params whole_heads(rig *g, int head_dim, double theta, int n_turning)
{
    float *f = frequencies(g, head_dim, theta, n_turning);
    return (rope_params){.n_dims = head_dim, .freq = rig_put_f32(g, f, (size_t)head_dim / 2)};
}

/* Sections as M-RoPE interleaves them (time, height, width, time, ...), and positions that differ in each. */
static void add_sections(rig *g, rope_params *p, step_rows *rows)
{
    int32_t *section = arena_new_n(&g->host, int32_t, p->n_dims / 2);
    for (int i = 0; i < p->n_dims / 2; i++) section[i] = i % ROPE_SECTIONS;
    p->section        = rig_put_i32(g, section, (size_t)p->n_dims / 2);
    size_t n          = (size_t)rows->n_rows * ROPE_SECTIONS;
    rows->section_pos = rig_put_i32(g, rig_randint(g, n, 5000), n);
}

typedef struct {
    int32_t first_pos;
    int     rows, n_heads, head_dim;
    int     n_dims; /* 0: head_dim */
    bool    sections;
} shape;

static rig_result play_rope(rig *g, const void *arg)
{
    const shape *s    = arg;
    int          dims = s->n_dims ? s->n_dims : s->head_dim;
    size_t       n    = (size_t)s->rows * (size_t)s->n_heads * (size_t)s->head_dim;
    rope_params  p    = whole_heads(g, dims, 1e4, dims / 2);
    float       *x    = rig_randn(g, n);
    dev          d    = rig_put_f32(g, x, n);
    step_rows    rows = rig_chain(g, 0, s->first_pos, s->rows);
    if (s->sections) add_sections(g, &p, &rows);
    OP(g, rope, d, &rows, s->n_heads, s->head_dim, &p);

    rig_result r    = rig_give(g, d, n, 0, 0);
    size_t     half = (size_t)dims / 2;
    for (size_t i = 0; i < n; i++) {
        size_t at = i % (size_t)s->head_dim, pair = at >= half ? i - half : i;
        r.allow[i] = at < (size_t)dims ? 5e-7f * hypotf(x[pair], x[pair + half]) : 0;
    }
    return r;
}

TEST(rope_agrees_with_ref)
{
    static const shape s[] = {
        {0, 1, 1, 16, 0, false},       {1, 3, 1, 8, 0, false},        {100, 7, 3, 64, 0, false},
        {4090, 33, 2, 256, 0, false},  {7, 2, 16, 512, 0, false},     {131000, 2, 4, 256, 0, false},
        {262100, 1, 1, 512, 0, false}, {9, 5, 3, 256, 64, false},     {3, 4, 2, 64, 6, false},
        {70, 3, 2, 128, 2, false},     {5000, 6, 1, 512, 264, false}, {0, 7, 2, 256, 64, true},
        {11, 33, 3, 64, 0, true},      {2, 1, 1, 256, 150, true}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_rope, &s[i]);
}

/* Pair i of (1, 0) turns to (cos, sin) of pos * f_i; the pair is (i, i + half), not (2i, 2i + 1). */
static void turns_pairs(rig *g)
{
    enum { D = 8, ROWS = 3, HEADS = 2 };
    float       x[ROWS * HEADS * D] = {0};
    rope_params p                   = whole_heads(g, D, 100, D / 2);
    for (int i = 0; i < ROWS * HEADS * D; i++) x[i] = i % D < D / 2 ? 1 : 0;
    dev       d    = rig_put_f32(g, x, COUNT(x));
    step_rows rows = rig_chain(g, 0, 0, ROWS);
    OP(g, rope, d, &rows, HEADS, D, &p);
    float *y = rig_get_f32(g, d, COUNT(x));
    SAME_F32(g, y, x, HEADS * D); /* position 0 turns nothing */
    for (int i = 0; i < ROWS * HEADS * D; i++) {
        double angle = i / (HEADS * D) * pow(100, -2.0 * (i % (D / 2)) / D);
        NEAR(g, y[i], i % D < D / 2 ? cos(angle) : sin(angle), 1e-6);
    }
}
TEST(rope_turns_pairs_half_a_head_apart) { rig_each(t, turns_pairs); }

static void keeps_lengths(rig *g)
{
    enum { D = 256, ROWS = 5 };
    float      *x    = rig_randn(g, ROWS * D);
    rope_params p    = whole_heads(g, D, 1e4, D / 2);
    dev         d    = rig_put_f32(g, x, ROWS * D);
    step_rows   rows = rig_chain(g, 0, 1000, ROWS);
    OP(g, rope, d, &rows, 1, D, &p);
    float *y = rig_get_f32(g, d, ROWS * D);
    for (int i = 0; i < ROWS * D; i += D) {
        double before = 0, after = 0;
        for (int j = 0; j < D; j++) before += (double)x[i + j] * x[i + j], after += (double)y[i + j] * y[i + j];
        NEAR(g, after / before, 1, 1e-5);
    }
}
TEST(rope_keeps_lengths) { rig_each(t, keeps_lengths); }

/* q.k after turning depends on the distance of the two positions alone. */
static void relative(rig *g)
{
    enum { D = 64 };
    static const int32_t at[] = {0, 7, 400};

    float      *q = rig_randn(g, D), *k = rig_randn(g, D);
    rope_params p = whole_heads(g, D, 1e4, D / 2);
    double      dot[COUNT(at)];
    for (size_t i = 0; i < COUNT(at); i++) {
        step_rows qr = rig_chain(g, 0, at[i] + 5, 1), kr = rig_chain(g, 0, at[i], 1);
        dev       a = rig_put_f32(g, q, D), b = rig_put_f32(g, k, D);
        OP(g, rope, a, &qr, 1, D, &p);
        OP(g, rope, b, &kr, 1, D, &p);
        float *x = rig_get_f32(g, a, D), *y = rig_get_f32(g, b, D);
        dot[i] = 0;
        for (int j = 0; j < D; j++) dot[i] += (double)x[j] * y[j];
        NEAR(g, dot[i], dot[0], 2e-3);
    }
}
TEST(rope_scores_depend_on_distance) { rig_each(t, relative); }

/* Full layers of Gemma 4: a quarter of the pairs turn, at frequencies cut from the whole head. */
static void proportional(rig *g)
{
    enum { D = 512, POS = 777 };
    float *freq = frequencies(g, D, 1e6, D / 8), *x = rig_randn(g, D);
    NEAR(g, freq[0], 1, 0);
    NEAR(g, freq[63], 0.0333762, 1e-7);
    NEAR(g, freq[64], 0, 0);

    dev       d    = rig_put_f32(g, x, D);
    step_rows rows = rig_chain(g, 0, POS, 1);
    OP(g, rope, d, &rows, 1, D, &(rope_params){.n_dims = D, .freq = rig_put_f32(g, freq, D / 2)});
    float *y = rig_get_f32(g, d, D);
    SAME_F32(g, y + 64, x + 64, 192);
    SAME_F32(g, y + 320, x + 320, 192);
    double angle = fmod(POS * 0.033376247, 2 * 3.141592653589793);
    NEAR(g, y[63], x[63] * cos(angle) - x[319] * sin(angle), 1e-4);
    NEAR(g, y[319], x[319] * cos(angle) + x[63] * sin(angle), 1e-4);
}
TEST(rope_proportional_turns_a_quarter_of_the_pairs) { rig_each(t, proportional); }

static void rows_alone(rig *g)
{
    enum { ROWS = 7, HEADS = 3, D = 72, ONE = HEADS * D };
    float      *x        = rig_randn(g, ROWS * ONE);
    dev         together = rig_put_f32(g, x, ROWS * ONE), alone = rig_put_f32(g, x, ROWS * ONE);
    rope_params p    = whole_heads(g, D - 8, 1e4, D / 2 - 4);
    step_rows   rows = rig_chain(g, 0, 1234, ROWS);
    add_sections(g, &p, &rows);
    OP(g, rope, together, &rows, HEADS, D, &p);
    for (int r = 0; r < ROWS; r++) {
        step_rows one   = rig_chain(g, 0, 1234 + r, 1);
        one.section_pos = dev_at(rows.section_pos, (size_t)r * ROPE_SECTIONS * sizeof(int32_t));
        OP(g, rope, dev_at_f32(alone, (size_t)r * ONE), &one, HEADS, D, &p);
    }
    SAME_F32(g, rig_get_f32(g, alone, ROWS * ONE), rig_get_f32(g, together, ROWS * ONE), ROWS * ONE);
}
TEST(rope_rows_are_their_own) { rig_each(t, rows_alone); }

/* Qwen 3.5: 64 of 256 elements rotate, in pairs (i, i + 32); the rest pass unchanged. */
static void part_of_a_head(rig *g)
{
    enum { D = 256, DIMS = 64 };
    float       x[D];
    rope_params p    = whole_heads(g, DIMS, 1e7, DIMS / 2);
    step_rows   rows = rig_chain(g, 0, 7, 1);
    for (int i = 0; i < D; i++) x[i] = 0.01f * (float)(i + 1);
    dev d = rig_put_f32(g, x, D);
    OP(g, rope, d, &rows, 1, D, &p);
    float *y = rig_get_f32(g, d, D);
    static const struct {
        int   i;
        float y;
    } known[] = {{0, -0.209267f}, {1, 0.291938f},   {2, -0.218384f}, {31, 0.319999f},
                 {32, 0.255358f}, {33, -0.175421f}, {63, 0.640000f}};
    for (size_t k = 0; k < COUNT(known); k++) NEAR(g, y[known[k].i], known[k].y, 2e-6);
    SAME_F32(g, y + DIMS, x + DIMS, D - DIMS);
}
TEST(rope_of_a_part_leaves_the_rest_of_a_head) { rig_each(t, part_of_a_head); }

/* Pair i rotates by the position of its section: the bits of a plain rope at that position. */
static void sections_have_positions(rig *g)
{
    enum { D = 64, HALF = D / 2, ROWS = 4 };
    float      *x = rig_randn(g, ROWS * D);
    dev         d = rig_put_f32(g, x, ROWS * D);
    rope_params p = whole_heads(g, D, 1e4, HALF), plain = p;
    step_rows   rows = rig_chain(g, 0, 100, ROWS);
    add_sections(g, &p, &rows);
    OP(g, rope, d, &rows, 1, D, &p);
    const float   *y   = rig_get_f32(g, d, ROWS * D);
    const int32_t *pos = rig_get_i32(g, rows.section_pos, ROWS * ROPE_SECTIONS);
    for (int r = 0; r < ROWS; r++)
        for (int section = 0; section < ROPE_SECTIONS; section++) {
            dev       alone = rig_put_f32(g, x + r * D, D);
            step_rows one   = rig_chain(g, 0, pos[r * ROPE_SECTIONS + section], 1);
            OP(g, rope, alone, &one, 1, D, &plain);
            const float *want = rig_get_f32(g, alone, D);
            for (int i = section; i < HALF; i += ROPE_SECTIONS) {
                SAME_F32(g, y + r * D + i, want + i, 1);
                SAME_F32(g, y + r * D + HALF + i, want + HALF + i, 1);
            }
        }
}
TEST(rope_sections_rotate_by_their_own_positions) { rig_each(t, sections_have_positions); }

/* Text has one position for all sections: with or without them, the same bits. */
static void equal_sections(rig *g)
{
    enum { D = 128, ROWS = 5 };
    float      *x = rig_randn(g, ROWS * D);
    dev         a = rig_put_f32(g, x, ROWS * D), b = rig_put_f32(g, x, ROWS * D), c = rig_put_f32(g, x, ROWS * D);
    rope_params p = whole_heads(g, D, 1e4, D / 2), plain = p;
    step_rows   rows = rig_chain(g, 0, 900, ROWS), text = rows;
    int32_t     same[ROWS * ROPE_SECTIONS];
    for (int i = 0; i < ROWS * ROPE_SECTIONS; i++) same[i] = 900 + i / ROPE_SECTIONS;
    add_sections(g, &p, &rows);
    rows.section_pos = rig_put_i32(g, same, COUNT(same));
    OP(g, rope, a, &rows, 1, D, &p);     /* sections, positions for them */
    OP(g, rope, b, &text, 1, D, &p);     /* sections, none */
    OP(g, rope, c, &rows, 1, D, &plain); /* no sections */
    const float *y = rig_get_f32(g, a, ROWS * D);
    SAME_F32(g, rig_get_f32(g, b, ROWS * D), y, ROWS * D);
    SAME_F32(g, rig_get_f32(g, c, ROWS * D), y, ROWS * D);
}
TEST(rope_equal_sections_are_a_plain_rope) { rig_each(t, equal_sections); }
