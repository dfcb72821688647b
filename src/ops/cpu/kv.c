/* Writes into the paged cache, and moves the rows of an accepted branch to consecutive slots. */
#include "ops/cache_code.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/rotate.h"

#include <assert.h>
#include <string.h>

static void store_f16(uint16_t *to, const float *x, int n)
{
    for (int i = 0; i < n; i += 8) v8_to_f16(to + i, v8_load(x + i));
}

/* Stores the head x of the position `at` of a page. */
static void store_head(cache_type type, char *plane, int at, const float *x, int n)
{
    if (type == CACHE_F16)
        store_f16((uint16_t *)plane + (size_t)at * (size_t)n, x, n);
    else
        cache_encode(type, plane, at, x, n);
}

/* The same of a row's head, whose other elements are zero. */
static void store_row(cache_type type, char *plane, int at, const float *x, const kv_view *c)
{
    float whole[OPS_MAX_HEAD_DIM];
    if (c->row_dim < c->head_dim) {
        memcpy(whole, x, (size_t)c->row_dim * sizeof *x);
        memset(whole + c->row_dim, 0, (size_t)(c->head_dim - c->row_dim) * sizeof *x);
        x = whole;
    }
    store_head(type, plane, at, x, c->head_dim);
}

void CPU_FN(kv_store)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_kv_store_args *a = args;
    const kv_view           *c = &a->c;
    (void)thread;
    for (size_t r = from; r < to; r++)
        for (int h = 0; h < c->n_kv_heads; h++) {
            size_t  from_row = (r * (size_t)c->n_kv_heads + (size_t)h) * (size_t)c->row_dim;
            int32_t lane = a->lane[r], slot = a->slot[r];
            int     at = slot % KV_PAGE;
            store_row(c->types.k, cpu_plane_k(c, a->layer, h, lane, slot), at, a->k + from_row, c);
            store_row(c->types.v, cpu_plane_v(c, a->layer, h, lane, slot), at, a->v + from_row, c);
        }
}

typedef struct { /* kept between moves, which mostly rotate by the same angle */
    int32_t by;
    float   cosine[OPS_MAX_HEAD_DIM / 2], sine[OPS_MAX_HEAD_DIM / 2];
} turning;

static void move_rotated(const cpu_kv_move_args *a, turning *t, char *to, int to_at, const char *from, int from_at,
                         int32_t by)
{
    cache_type type = a->c.types.k;
    float      x[OPS_MAX_HEAD_DIM];
    int        half = a->rope.n_dims / 2;
    if (t->by != by) pair_angles(t->cosine, t->sine, by, a->rope.freq, half);
    t->by = by;
    cache_decode(type, from, from_at, x, a->c.head_dim);
    if (cache_has_scales(type)) cache_unrotate(x, a->c.head_dim);
    rotate_pairs(x, t->cosine, t->sine, 0, half, half);
    store_head(type, to, to_at, x, a->c.head_dim);
}

static void move_key(const cpu_kv_move_args *a, turning *t, int layer, int head, const kv_move_item *m)
{
    const kv_view *c    = &a->c;
    char          *to   = cpu_plane_k(c, layer, head, m->to_lane, m->to);
    const char    *from = cpu_plane_k(c, layer, head, m->from_lane, m->from);
    if (m->rotation)
        move_rotated(a, t, to, m->to % KV_PAGE, from, m->from % KV_PAGE, m->rotation);
    else
        cache_copy(c->types.k, to, m->to % KV_PAGE, from, m->from % KV_PAGE, c->head_dim);
}

static void move_value(const cpu_kv_move_args *a, int layer, int head, const kv_move_item *m)
{
    const kv_view *c = &a->c;
    cache_copy(c->types.v, cpu_plane_v(c, layer, head, m->to_lane, m->to), m->to % KV_PAGE,
               cpu_plane_v(c, layer, head, m->from_lane, m->from), m->from % KV_PAGE, c->head_dim);
}

void CPU_FN(kv_move)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_kv_move_args *a = args;
    const kv_view          *c = &a->c;
    turning                 t;
    (void)thread;
    t.by = 0;
    assert(c->head_dim % 8 == 0 && c->head_dim <= OPS_MAX_HEAD_DIM);
    for (size_t item = from; item < to; item++) {
        int  head = (int)(item % (size_t)c->n_kv_heads), plane = (int)(item / (size_t)c->n_kv_heads);
        bool is_v = plane % 2;
        for (int i = 0; i < a->n_moves; i++)
            if (is_v)
                move_value(a, plane / 2, head, &a->move[i]);
            else
                move_key(a, &t, plane / 2, head, &a->move[i]);
    }
}
