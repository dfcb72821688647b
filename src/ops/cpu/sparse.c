/* Sparse attention (ops/sparse.h): writes the summaries of pages, and chooses the pages that a row attends to.
 *
 * A pair is a row and a kv head. `page_bounds` computes the bounds of the query heads of a pair for a block of pages;
 * all heads share the loads of a summary. `page_choice` turns the bounds of a pair into a bit for each page. A bound is
 * summed in 16 lanes by channel mod 16, smallest and largest values apart, so it depends on the query and the page
 * alone. */
#include "ops/cpu/hadamard.h"
#include "ops/cpu/kernels.h"

#include <assert.h>
#include <math.h>

enum { HEADS = 4, PAGES_AHEAD = 2 }; /* query heads that share a load; pages of prefetch distance */

static const uint16_t *summary_of(const kv_view *c, int layer, int head, int32_t lane, int32_t page)
{
    return (const uint16_t *)(const void *)cpu_summary(c, layer, head, lane, page * KV_PAGE);
}

/* --- summaries ------------------------------------------------------------------------------------*/
static void summarise_head(const kv_view *c, uint16_t *to, const char *plane)
{
    float     low[OPS_MAX_HEAD_DIM], high[OPS_MAX_HEAD_DIM], k[OPS_MAX_HEAD_DIM];
    const int dim = c->head_dim;
    cache_decode(c->types.k, plane, 0, low, dim);
    memcpy(high, low, (size_t)dim * sizeof *low);
    for (int at = 1; at < KV_PAGE; at++) {
        cache_decode(c->types.k, plane, at, k, dim);
        for (int i = 0; i < dim; i++) {
            low[i]  = k[i] < low[i] ? k[i] : low[i];
            high[i] = k[i] > high[i] ? k[i] : high[i];
        }
    }
    for (int i = 0; i < dim; i++) {
        to[i]       = cache_clamped_f16(low[i]);
        to[dim + i] = cache_clamped_f16(high[i]);
    }
}

void CPU_FN(kv_summary)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_kv_summary_args *a = args;
    (void)thread;
    for (size_t item = from; item < to; item++) {
        size_t  i     = item % (size_t)a->n_slots * a->step;
        int     layer = a->first_layer + (int)(item / (size_t)a->n_slots);
        int32_t lane = a->lane[i], slot = a->slot[i];
        if (slot % KV_PAGE != KV_PAGE - 1) continue;
        for (int h = 0; h < a->c.n_kv_heads; h++)
            summarise_head(&a->c, (uint16_t *)(void *)cpu_summary(&a->c, layer, h, lane, slot),
                           cpu_plane_k(&a->c, layer, h, lane, slot));
    }
}

/* --- bounds ---------------------------------------------------------------------------------------*/
/* The positive and the negative part of up to HEADS queries times scale, zeros after the end of a head. */
typedef struct {
    int n_heads;
    _Alignas(64) float up[HEADS][OPS_MAX_HEAD_DIM + 8], down[HEADS][OPS_MAX_HEAD_DIM + 8];
} parts;

static void split_queries(const cpu_attention_args *a, parts *x, size_t row, int head)
{
    int dim = a->c.head_dim;
    for (int h = 0; h < x->n_heads; h++) {
        const float *q = a->q + (row * (size_t)a->n_heads + (size_t)(head + h)) * (size_t)dim;
        float        rotated[OPS_MAX_HEAD_DIM];
        if (cache_has_scales(a->c.types.k)) {
            rotate_head(rotated, q, dim, false);
            q = rotated;
        }
        for (int i = 0; i < dim; i++) {
            float v       = q[i] * a->scale;
            x->up[h][i]   = v > 0 ? v : v == v ? 0 : v;
            x->down[h][i] = v < 0 ? v : 0;
        }
        for (int i = dim; i < dim + 8; i++) x->up[h][i] = x->down[h][i] = 0;
    }
}

/* Writes the bounds of n heads for a page, `stride` apart. A query that is positive takes the largest values, a
 * negative one the smallest. */
INLINE void bound_page(int n, float *to, size_t stride, const parts *x, const uint16_t *low, int dim)
{
    v16f up[HEADS], down[HEADS];
#pragma GCC unroll 4
    for (int h = 0; h < n; h++) up[h] = down[h] = v16_set1(0);
    for (int i = 0; i < dim; i += 16) {
        bool half = i + 16 > dim;
        v16f lo   = half ? v16_from_low(v8_from_f16(low + i)) : v16_from_f16(low + i);
        v16f hi   = half ? v16_from_low(v8_from_f16(low + dim + i)) : v16_from_f16(low + dim + i);
#pragma GCC unroll 4
        for (int h = 0; h < n; h++) {
            up[h]   = v16_fma(v16_load(x->up[h] + i), hi, up[h]);
            down[h] = v16_fma(v16_load(x->down[h] + i), lo, down[h]);
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < n; h++)
        to[(size_t)h * stride] = v8_sum(v16_low(up[h]) + v16_high(up[h]) + (v16_low(down[h]) + v16_high(down[h])));
}

/* Asks for a summary. The summaries of two pages are far apart, so the processor does not fetch them by itself. */
INLINE void prefetch_summary(const uint16_t *low, int dim)
{
    for (int i = 0; i < 2 * dim; i += 32) __builtin_prefetch(low + i);
}

static void bound_pages(const cpu_choice_args *c, const parts *x, float *to, size_t row, int kv_head, int32_t first,
                        int32_t end)
{
    const cpu_attention_args *a = c->a;
    for (int32_t j = first; j < end; j++) {
        const uint16_t *low = summary_of(&a->c, a->layer, kv_head, a->lane[row], j);
        if (j + PAGES_AHEAD < end)
            prefetch_summary(summary_of(&a->c, a->layer, kv_head, a->lane[row], j + PAGES_AHEAD), a->c.head_dim);
        if (x->n_heads == 4) bound_page(4, to + j, c->stride, x, low, a->c.head_dim);
        if (x->n_heads == 3) bound_page(3, to + j, c->stride, x, low, a->c.head_dim);
        if (x->n_heads == 2) bound_page(2, to + j, c->stride, x, low, a->c.head_dim);
        if (x->n_heads == 1) bound_page(1, to + j, c->stride, x, low, a->c.head_dim);
    }
}

/* Returns the bounds of query head `head` of the pair's group. */
static float *bounds_at(const cpu_choice_args *c, size_t pair, int head)
{
    size_t group = (size_t)(c->a->n_heads / c->a->c.n_kv_heads);
    return c->bound + (pair * group + (size_t)head) * c->stride;
}

static int32_t far_pages(const cpu_choice_args *c, size_t row)
{
    return sparse_far_pages(&c->a->c.sparse, c->a->pos[row]);
}

void CPU_FN(page_bounds)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_choice_args    *c     = args;
    const cpu_attention_args *a     = c->a;
    size_t                    heads = (size_t)a->c.n_kv_heads;
    int                       group = a->n_heads / a->c.n_kv_heads;
    (void)thread;
    for (size_t item = from; item < to; item++) {
        size_t  pair = item / c->n_blocks, row = (size_t)a->kept_row + pair / heads;
        int     kv_head = (int)(pair % heads);
        int32_t first = (int32_t)(item % c->n_blocks) * PAGE_BLOCK, far = far_pages(c, row);
        int32_t end = first + PAGE_BLOCK < far ? first + PAGE_BLOCK : far;
        parts   x;
        for (int h = 0; h < group && first < end; h += HEADS) {
            x.n_heads = group - h < HEADS ? group - h : HEADS;
            split_queries(a, &x, row, kv_head * group + h);
            bound_pages(c, &x, bounds_at(c, pair, h), row, kv_head, first, end);
        }
    }
}

/* --- the choice -----------------------------------------------------------------------------------*/
/* Writes n of each page, in place of its bound. */
static void weigh_pages(uint32_t *n, const float *bound, int32_t count)
{
    float max    = -INFINITY;
    bool  finite = true;
    for (int32_t j = 0; j < count; j++) {
        max = bound[j] > max ? bound[j] : max;
        finite &= bound[j] - bound[j] == 0;
    }
    for (int32_t j = 0; j < count; j += 8) {
        float    x[8], e[8];
        uint32_t whole[8];
        int32_t  m = count - j < 8 ? count - j : 8;
        for (int32_t i = 0; i < 8; i++) x[i] = i < m && finite ? bound[j + i] - max : 0;
        v8_store(e, v8_exp(v8_load(x)) * v8_set1(SPARSE_WEIGHT));
        for (int32_t i = 0; i < 8; i++) whole[i] = (uint32_t)e[i];
        memcpy(n + j, whole, (size_t)m * sizeof *n);
    }
}

void CPU_FN(page_choice)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_choice_args    *c     = args;
    const cpu_attention_args *a     = c->a;
    int                       group = a->n_heads / a->c.n_kv_heads;
    (void)thread;
    for (size_t pair = from; pair < to; pair++) {
        int32_t   far  = far_pages(c, (size_t)a->kept_row + pair / (size_t)a->c.n_kv_heads);
        uint16_t *kept = c->kept + pair * a->kept_stride;
        memset(kept, 0, a->kept_stride * sizeof *kept);
        for (int h = 0; h < group && far; h++) {
            float    *bound = bounds_at(c, pair, h);
            uint32_t *n     = (uint32_t *)(void *)bound;
            weigh_pages(n, bound, far);
            sparse_keep(kept, n, far, &a->c.sparse);
        }
        for (int32_t j = far; j < (int32_t)a->kept_stride * 16; j++)
            kept[j / 16] = (uint16_t)(kept[j / 16] | 1u << j % 16);
    }
}
