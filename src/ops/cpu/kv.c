/* Writes into the paged cache, and moves the rows of an accepted branch to consecutive slots. */
#include "ops/cpu/kernels.h"
#include "ops/cpu/rotate.h"

#include <assert.h>

static void store_values(cache_type type, char *dst, const float *x, int n)
{
    if (type == CACHE_F32)
        memcpy(dst, x, (size_t)n * sizeof *x);
    else
        for (int i = 0; i < n; i += 8) v8_to_f16((uint16_t *)dst + i, v8_load(x + i));
}

void CPU_FN(kv_store)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_kv_store_args *a = args;
    const kv_view           *c = &a->c;
    (void)thread;
    for (size_t r = from; r < to; r++)
        for (int h = 0; h < c->n_kv_heads; h++) {
            size_t at = (r * (size_t)c->n_kv_heads + (size_t)h) * (size_t)c->head_dim;
            store_values(c->types.k, cpu_cache_k(c, a->layer, h, a->lane[r], a->slot[r]), a->k + at, c->head_dim);
            store_values(c->types.v, cpu_cache_v(c, a->layer, h, a->lane[r], a->slot[r]), a->v + at, c->head_dim);
        }
}

static void load_values(cache_type type, float *x, const char *src, int n)
{
    if (type == CACHE_F32)
        memcpy(x, src, (size_t)n * sizeof *x);
    else
        for (int i = 0; i < n; i += 8) v8_store(x + i, v8_from_f16((const uint16_t *)src + i));
}

typedef struct { /* kept between moves, which mostly rotate by the same angle */
    int32_t by;
    float   cosine[OPS_MAX_HEAD_DIM / 2], sine[OPS_MAX_HEAD_DIM / 2];
} turning;

static void move_rotated(const cpu_kv_move_args *a, turning *t, char *to, const char *from, int32_t by)
{
    float x[OPS_MAX_HEAD_DIM];
    int   half = a->rope.n_dims / 2;
    if (t->by != by) pair_angles(t->cosine, t->sine, by, a->rope.freq, half);
    t->by = by;
    load_values(a->c.types.k, x, from, a->c.head_dim);
    rotate_pairs(x, t->cosine, t->sine, 0, half, half);
    store_values(a->c.types.k, to, x, a->c.head_dim);
}

static void move_key(const cpu_kv_move_args *a, turning *t, char *to, const char *from, int32_t by)
{
    if (by)
        move_rotated(a, t, to, from, by);
    else
        memmove(to, from, a->c.vec_bytes);
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
        int  head = (int)(item % (size_t)c->n_kv_heads), plane = (int)(item / (size_t)c->n_kv_heads), layer = plane / 2;
        bool is_v = plane % 2;
        for (int i = 0; i < a->n_moves; i++) {
            const kv_move_item *m = &a->move[i];
            if (is_v)
                memmove(cpu_cache_v(c, layer, head, m->to_lane, m->to),
                        cpu_cache_v(c, layer, head, m->from_lane, m->from), c->v_vec_bytes);
            else
                move_key(a, &t, cpu_cache_k(c, layer, head, m->to_lane, m->to),
                         cpu_cache_k(c, layer, head, m->from_lane, m->from), m->rotation);
        }
    }
}
