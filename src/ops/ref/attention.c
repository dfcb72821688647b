#include "ops/cache_code.h"
#include "ops/ref/table.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { MAX_PAGES = 1 << 16 }; /* maximum for a lane with sparse attention */

/* One query head of one row, and the keys that it sees. */
typedef struct {
    const kv_class  *c;
    const step_rows *rows;
    int              layer, row, kv_head;
    int32_t          first, last; /* positions */
    int32_t          far;         /* pages before it are seen if their bit in `kept` is set */
    const uint16_t  *kept;
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

static bool is_seen(const view *v, int32_t p)
{
    int32_t page = p / KV_PAGE;
    return page >= v->far || (v->kept[page / 16] >> page % 16 & 1);
}

static double score(const view *v, const float *q, int32_t p, float scale)
{
    float  k[OPS_MAX_HEAD_DIM];
    double sum = 0;
    read_stored(v, KV_K, p, k);
    for (int i = 0; i < kv_row_dim(v->c); i++) sum += (double)q[i] * k[i];
    return scale * sum;
}

/* Computes y = sum over p of softmax(score)[p] * v[p], 0 without positions. Computes the scores twice instead of
 * storing them. */
static void attend(float *y, const float *q, const view *v, float scale)
{
    double max = -INFINITY, total = 0, out[OPS_MAX_HEAD_DIM] = {0};
    float  value[OPS_MAX_HEAD_DIM];
    for (int32_t p = v->first; p <= v->last; p++)
        if (is_seen(v, p)) max = fmax(max, score(v, q, p, scale));
    for (int32_t p = v->first; p <= v->last; p++) {
        if (!is_seen(v, p)) continue;
        double w = exp(score(v, q, p, scale) - max);
        read_stored(v, KV_V, p, value);
        total += w;
        for (int i = 0; i < kv_row_dim(v->c); i++) out[i] += w * value[i];
    }
    for (int i = 0; i < kv_row_dim(v->c); i++) y[i] = v->first <= v->last ? (float)(out[i] / total) : 0;
}

/* Copies a query to the basis of the stored keys. */
static void copy_query(float *to, const float *q, const kv_class *c)
{
    memcpy(to, q, (size_t)kv_row_dim(c) * sizeof *q);
    if (cache_has_scales(c->types.k)) cache_rotate(to, c->head_dim);
}

/* Attends with the query in the basis of the stored keys, and returns the output in the model's basis. */
static void attend_stored(float *y, const float *q, const view *v, float scale)
{
    float turned[OPS_MAX_HEAD_DIM];
    copy_query(turned, q, v->c);
    attend(y, turned, v, scale);
    if (cache_has_scales(v->c->types.v)) cache_unrotate(y, v->c->head_dim);
}

/* --- sparse attention (ops/sparse.h) --------------------------------------------------------------*/
/* Returns the largest score that a key of the page can have. q: in the basis of the stored keys. */
static float bound_of(const view *v, const float *q, int32_t page, float scale)
{
    const int32_t  *lane = v->rows->lane.p;
    const uint16_t *low  = ref_summary_at(v->c, v->layer, v->kv_head, lane[v->row], page * KV_PAGE);
    double          sum  = 0;
    for (int i = 0; i < v->c->head_dim; i++) {
        double x = (double)q[i] * scale;
        sum += fmax(x * f16_to_f32(low[i]), x * f16_to_f32(low[v->c->head_dim + i]));
    }
    return (float)sum;
}

/* Adds the candidate pages that a query head keeps. */
static void choose_pages(uint16_t *kept, const float *q, const view *v, float scale)
{
    static _Thread_local uint32_t n[MAX_PAGES];
    static _Thread_local float    bound[MAX_PAGES];
    float                         turned[OPS_MAX_HEAD_DIM], max = -INFINITY;
    bool                          finite = true;
    copy_query(turned, q, v->c);
    for (int32_t j = 0; j < v->far; j++) {
        bound[j] = bound_of(v, turned, j, scale);
        max      = fmaxf(max, bound[j]);
        finite &= isfinite(bound[j]) != 0;
    }
    for (int32_t j = 0; j < v->far; j++)
        n[j] = finite ? (uint32_t)(SPARSE_WEIGHT * exp((double)bound[j] - max)) : SPARSE_WEIGHT;
    sparse_keep(kept, n, v->far, &v->c->sparse);
}

/* Attends with the query heads of one row that read one kv head. y, q_rows: of the first of them. */
static void attend_group(float *y, const float *q_rows, int n_heads, view v, float scale)
{
    uint16_t kept[MAX_PAGES / 16] = {0};
    size_t   dim                  = (size_t)kv_row_dim(v.c);
    v.kept                        = kept;
    assert(v.far <= MAX_PAGES);
    for (int h = 0; h < n_heads && v.far; h++) choose_pages(kept, q_rows + (size_t)h * dim, &v, scale);
    for (int h = 0; h < n_heads; h++) attend_stored(y + (size_t)h * dim, q_rows + (size_t)h * dim, &v, scale);
}

void ref_attention(queue *q, dev y, dev q_rows, int n_heads, const kv_class *c, int layer, const step_rows *rows,
                   float scale, int window)
{
    (void)q;
    const int32_t *pos = rows->pos.p, *last = rows->last.p;
    assert(c->head_dim <= OPS_MAX_HEAD_DIM && n_heads % c->n_kv_heads == 0);
    assert(!c->sparse.drop || window == 0);
    for (int r = 0; r < rows->n_rows; r++)
        for (int h = 0; h < c->n_kv_heads; h++) {
            int     group = n_heads / c->n_kv_heads;
            int32_t first = window > 0 && pos[r] >= window ? pos[r] - window + 1 : 0;
            view    v     = {.c       = c,
                             .rows    = rows,
                             .layer   = layer,
                             .row     = r,
                             .kv_head = h,
                             .first   = first,
                             .last    = last[r],
                             .far     = sparse_far_pages(&c->sparse, pos[r])};
            size_t  at    = ((size_t)r * (size_t)n_heads + (size_t)(h * group)) * (size_t)kv_row_dim(c);
            attend_group((float *)y.p + at, (const float *)q_rows.p + at, group, v, scale);
        }
}
