#include "ops/cache_code.h"
#include "ops/ref/table.h"

#include <assert.h>
#include <math.h>
#include <string.h>

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

static void read_stored(const view *v, int k_or_v, int32_t p, float *y)
{
    const int32_t *lane = v->rows->lane.p;
    ref_kv_read(ref_kv_at(v->c, v->layer, k_or_v, v->kv_head, lane[v->row], slot_of(v->rows, v->row, p)), y);
}

static double score(const view *v, const float *q, int32_t p, float scale)
{
    float  k[OPS_MAX_HEAD_DIM];
    double sum = 0;
    read_stored(v, KV_K, p, k);
    for (int i = 0; i < v->c->head_dim; i++) sum += (double)q[i] * k[i];
    return scale * sum;
}

/* Computes y = sum over p of softmax(score)[p] * v[p], 0 without positions. Computes the scores twice instead of
 * storing them. */
static void attend(float *y, const float *q, const view *v, float scale)
{
    double max = -INFINITY, total = 0, out[OPS_MAX_HEAD_DIM] = {0};
    float  value[OPS_MAX_HEAD_DIM];
    for (int32_t p = v->first; p <= v->last; p++) max = fmax(max, score(v, q, p, scale));
    for (int32_t p = v->first; p <= v->last; p++) {
        double w = exp(score(v, q, p, scale) - max);
        read_stored(v, KV_V, p, value);
        total += w;
        for (int i = 0; i < v->c->head_dim; i++) out[i] += w * value[i];
    }
    for (int i = 0; i < v->c->head_dim; i++) y[i] = v->first <= v->last ? (float)(out[i] / total) : 0;
}

/* Attends with the query in the basis of the stored keys, and returns the output in the model's basis. */
static void attend_stored(float *y, const float *q, const view *v, float scale)
{
    float turned[OPS_MAX_HEAD_DIM];
    memcpy(turned, q, (size_t)v->c->head_dim * sizeof *q);
    if (cache_has_scales(v->c->types.k)) cache_rotate(turned, v->c->head_dim);
    attend(y, turned, v, scale);
    if (cache_has_scales(v->c->types.v)) cache_unrotate(y, v->c->head_dim);
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
            attend_stored((float *)y.p + at, (const float *)q_rows.p + at, &v, scale);
        }
}
