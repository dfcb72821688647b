/* Writing into the paged cache, and moving what an accepted branch of a tree left apart. */
#include "ops/cpu/kernels.h"
#include "ops/cpu/vec.h"

static void store(const kv_view *c, char *dst, const float *x)
{
    if (c->type == QUANT_F32)
        memcpy(dst, x, c->vec_bytes);
    else
        for (int i = 0; i < c->head_dim; i += 8) v8_to_f16((uint16_t *)dst + i, v8_load(x + i));
}

void CPU_FN(kv_store)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_kv_store_args *a = args;
    const kv_view           *c = &a->c;
    (void)thread;
    for (size_t r = from; r < to; r++)
        for (int h = 0; h < c->n_kv_heads; h++) {
            size_t at = (r * (size_t)c->n_kv_heads + (size_t)h) * (size_t)c->head_dim;
            char  *k  = cpu_cache_k(c, a->layer, h, a->lane[r], a->slot[r]);
            store(c, k, a->k + at);
            store(c, k + c->plane_bytes, a->v + at);
        }
}

void CPU_FN(kv_move)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_kv_move_args *a = args;
    const kv_view          *c = &a->c;
    (void)thread;
    for (size_t item = from; item < to; item++) {
        int    head = (int)(item % (size_t)c->n_kv_heads), plane = (int)(item / (size_t)c->n_kv_heads);
        size_t v = plane % 2 ? c->plane_bytes : 0;
        for (int i = 0; i < a->n_moves; i++) {
            const kv_move_item *m = &a->move[i];
            memmove(cpu_cache_k(c, plane / 2, head, m->lane, m->to) + v,
                    cpu_cache_k(c, plane / 2, head, m->lane, m->from) + v, c->vec_bytes);
        }
    }
}
