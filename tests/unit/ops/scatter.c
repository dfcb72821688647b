#include "ops_test.h"

typedef struct {
    int   n_rows, n_slots, n_groups, n, n_vocab; /* n_groups: rows of the map, of which sel takes n_slots */
    float below;
} shape;

/* Different tokens, n_groups * n of the vocabulary, in random order. */
static int32_t *random_map(rig *g, const shape *s)
{
    int32_t *map = arena_new_n(&g->host, int32_t, s->n_vocab);
    for (int i = 0; i < s->n_vocab; i++) {
        int j  = (int)(test_rand(&g->rand) % (uint64_t)(i + 1));
        map[i] = map[j];
        map[j] = i;
    }
    return map;
}

/* Every row its own groups, different ones: i * 5 + r steps through a number of groups that 5 does not divide. */
static int32_t *some_groups(rig *g, const shape *s)
{
    int32_t *sel = arena_new_n(&g->host, int32_t, s->n_rows * s->n_slots);
    for (int i = 0; i < s->n_rows * s->n_slots; i++) sel[i] = (i % s->n_slots * 5 + i / s->n_slots) % s->n_groups;
    return sel;
}

/* Looks each token up instead of scattering: the logit that names it, or the floor. */
static float expected(const shape *s, const float *x, const int32_t *sel, const int32_t *map, int32_t token)
{
    float min = INFINITY;
    for (int j = 0; j < s->n_slots * s->n; j++) {
        int slot = sel ? sel[j / s->n] : j / s->n;
        if (map[slot * s->n + j % s->n] == token) return x[j];
        min = fminf(min, x[j]);
    }
    return min - s->below;
}

static void check_scatter(rig *g, const shape *s, bool choose)
{
    size_t   n_x = (size_t)(s->n_slots * s->n), n_y = (size_t)(s->n_rows * s->n_vocab);
    int32_t *map = random_map(g, s), *sel = choose ? some_groups(g, s) : NULL;
    float   *x = rig_randn(g, (size_t)s->n_rows * n_x), *want = arena_new_n(&g->host, float, n_y);
    dev      y = rig_put_randn(g, n_y), chosen = {0};
    if (choose) chosen = rig_put_i32(g, sel, (size_t)(s->n_rows * s->n_slots));
    OP(g, scatter_logits, y, rig_put_f32(g, x, (size_t)s->n_rows * n_x), chosen,
       rig_put_i32(g, map, (size_t)(s->n_groups * s->n)), s->n_rows, s->n_slots, s->n, s->n_vocab, s->below);
    for (size_t i = 0; i < n_y; i++) {
        size_t r = i / (size_t)s->n_vocab;
        want[i] =
            expected(s, x + r * n_x, sel ? sel + r * (size_t)s->n_slots : NULL, map, (int32_t)(i % (size_t)s->n_vocab));
    }
    SAME_F32(g, rig_get_f32(g, y, n_y), want, n_y);
}

static void chosen_groups(rig *g)
{
    static const shape s[] = {
        {1, 1, 1, 1, 1, 1}, {3, 4, 7, 5, 35, 1}, {5, 2, 16, 8, 200, 0.5f}, {17, 6, 32, 33, 1200, INFINITY}};
    for (size_t i = 0; i < COUNT(s); i++) check_scatter(g, &s[i], true);
}
TEST(scatter_logits_of_chosen_groups) { rig_each(t, chosen_groups); }

/* A drafter's own, smaller vocabulary: one group, no choice; and a map that reaches every token. */
static void own_vocabulary(rig *g)
{
    static const shape s[] = {{2, 1, 1, 300, 1000, INFINITY}, {9, 1, 1, 64, 700, 2}, {4, 3, 3, 20, 60, 1}};
    for (size_t i = 0; i < COUNT(s); i++) check_scatter(g, &s[i], false);
}
TEST(scatter_logits_of_a_smaller_vocabulary) { rig_each(t, own_vocabulary); }

/* The floor is the row's own smallest minus `below`; under INFINITY it is never picked. */
static void floors(rig *g)
{
    enum { V = 6 };
    static const float   x[]      = {-1, 4, 0.5f, /* row 1 */ 8, 7, 9};
    static const int32_t map[]    = {5, 0, 3};
    static const float   near[]   = {4, -3, -3, 0.5f, -3, -1, /* row 1 */ 7, 5, 5, 9, 5, 8};
    static const float   below[2] = {2, INFINITY};
    for (int i = 0; i < 2; i++) {
        dev y = rig_new(g, 2 * V * sizeof(float));
        OP(g, scatter_logits, y, rig_put_f32(g, x, 6), (dev){0}, rig_put_i32(g, map, 3), 2, 1, 3, V, below[i]);
        float *got = rig_get_f32(g, y, 2 * V);
        for (int j = 0; j < 2 * V; j++)
            SAME_F32(g, &got[j], &(float){i && (j % V == 1 || j % V == 2 || j % V == 4) ? -INFINITY : near[j]}, 1);
    }
}
TEST(scatter_logits_floors_by_hand) { rig_each(t, floors); }
