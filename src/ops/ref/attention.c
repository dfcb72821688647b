#include "ops/ref/table.h"

#include <assert.h>
#include <math.h>

/* One query head of one row, and the keys that it sees. */
typedef struct {
    const kv_class  *c;
    const step_rows *rows;
    int              layer, row, kv_head;
    int32_t          first, last; /* positions */
} view;

static int32_t slot_of(const step_rows *rows, int row, int32_t p)
{
    const int32_t *pos = rows->pos.p, *slot = rows->slot.p, *parent = rows->parent.p;
    if (p < ((const int32_t *)rows->root.p)[row]) return p;
    assert(((const int32_t *)rows->last.p)[row] == pos[row]);
    while (pos[row] > p) row = parent[row];
    return slot[row];
}

static const void *stored(const view *v, int k_or_v, int32_t p)
{
    const int32_t *lane = v->rows->lane.p;
    return ref_kv_at(v->c, v->layer, k_or_v, v->kv_head, lane[v->row], slot_of(v->rows, v->row, p));
}

static double score(const view *v, const float *q, int32_t p, float scale)
{
    const void *k   = stored(v, KV_K, p);
    double      sum = 0;
    for (int i = 0; i < v->c->head_dim; i++) sum += (double)q[i] * ref_kv_get(v->c->types.k, k, i);
    return scale * sum;
}

/* Computes y = sum over p of softmax(score)[p] * v[p], 0 without positions. Computes the scores twice instead of
 * storing them. */
static void attend(float *y, const float *q, const view *v, float scale)
{
    double max = -INFINITY, total = 0, out[OPS_MAX_HEAD_DIM] = {0};
    for (int32_t p = v->first; p <= v->last; p++) max = fmax(max, score(v, q, p, scale));
    for (int32_t p = v->first; p <= v->last; p++) {
        const void *value = stored(v, KV_V, p);
        double      w     = exp(score(v, q, p, scale) - max);
        total += w;
        for (int i = 0; i < v->c->head_dim; i++) out[i] += w * ref_kv_get(v->c->types.v, value, i);
    }
    for (int i = 0; i < v->c->head_dim; i++) y[i] = v->first <= v->last ? (float)(out[i] / total) : 0;
}

void ref_attention(queue *q, dev y, dev q_rows, int n_heads, const kv_class *c, int layer, const step_rows *rows,
                   float scale, int window)
{
    (void)q;
    const int32_t *pos = rows->pos.p, *last = rows->last.p;
    assert(c->head_dim <= OPS_MAX_HEAD_DIM && n_heads % c->n_kv_heads == 0);
    for (int r = 0; r < rows->n_rows; r++)
        for (int h = 0; h < n_heads; h++) {
            int32_t first = window > 0 && pos[r] >= window ? pos[r] - window + 1 : 0;
            view    v     = {c, rows, layer, r, h / (n_heads / c->n_kv_heads), first, last[r]};
            size_t  at    = ((size_t)r * (size_t)n_heads + (size_t)h) * (size_t)c->head_dim;
            attend((float *)y.p + at, (const float *)q_rows.p + at, &v, scale);
        }
}
