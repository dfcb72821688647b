/* kv_error TEXT [TOKENS]: the error that K/V types and sparse attention make in attention itself, on nano's keys and
 * queries.
 *
 * The model runs a text with f32 K/V. K and V of the layers with full attention are stored a second time as each
 * variant, and each attention is computed again over them. The error is the length of the difference to dense f32
 * attention, relative to its length, over all rows; the model itself continues with f32. For sparse attention the rows
 * from position 4095 on count, and for some of them the weights of all pages are computed: the share of pages that are
 * kept, and the weight that is lost. Other summaries of a page are compared at the same number of pages. */
#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "ops/cache_code.h"
#include "rig.h"
#include "sched/open.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 64, EVERY = 61 }; /* rows whose pages are looked at: one of so many */

typedef struct {
    const char   *name;
    cache_types   types;
    bool          plain; /* without the rotation */
    sparse_params sparse;
    kv_class      c; /* of its own */
    double        error, size;
} variant;

#define SPARSE(share)                                                                                                  \
    {                                                                                                                  \
        (uint32_t)((share)*SPARSE_ONE), SPARSE_SINK, SPARSE_NEAR, SPARSE_MIN_CTX                                       \
    }
#define F32 CACHE_F32
static variant variants[] = {
    {.name = "f16", .types = {CACHE_F16, CACHE_F16}},
    {.name = "q8_0", .types = {CACHE_Q8_0, CACHE_Q8_0}},
    {.name = "q8_0, K alone", .types = {CACHE_Q8_0, F32}},
    {.name = "q8_0, V alone", .types = {F32, CACHE_Q8_0}},
    {.name = "q8_0 without rotation", .types = {CACHE_Q8_0, CACHE_Q8_0}, .plain = true},
    {.name = "q8_0/q4_0", .types = {CACHE_Q8_0, CACHE_Q4_0}},
    {.name = "q4_0", .types = {CACHE_Q4_0, CACHE_Q4_0}},
    {.name = "q4_0, K alone", .types = {CACHE_Q4_0, F32}},
    {.name = "q4_0, V alone", .types = {F32, CACHE_Q4_0}},
    {.name = "q4_0 without rotation", .types = {CACHE_Q4_0, CACHE_Q4_0}, .plain = true},
    {.name = "q8_0/tq3", .types = {CACHE_Q8_0, CACHE_TQ3}},
    {.name = "tq3", .types = {CACHE_TQ3, CACHE_TQ3}},
    {.name = "tq3, K alone", .types = {CACHE_TQ3, F32}},
    {.name = "tq3, V alone", .types = {F32, CACHE_TQ3}},
    {.name = "tq3 without rotation", .types = {CACHE_TQ3, CACHE_TQ3}, .plain = true},
    {.name = "sparse 0.001", .types = {F32, F32}, .sparse = SPARSE(0.001)},
    {.name = "sparse 0.01", .types = {F32, F32}, .sparse = SPARSE(0.01)},
    {.name = "sparse 0.03", .types = {F32, F32}, .sparse = SPARSE(0.03)},
    {.name = "sparse 0.1", .types = {F32, F32}, .sparse = SPARSE(0.1)},
    {.name = "sparse 0.3", .types = {F32, F32}, .sparse = SPARSE(0.3)},
    {.name = "sparse 0.5", .types = {F32, F32}, .sparse = SPARSE(0.5)},
};

/* Sums over rows and query heads that were looked at, by share. */
static const double shares[] = {0.001, 0.01, 0.03, 0.1, 0.3, 0.5};
static const double spread[] = {0, 1, 2, 3}; /* mean + this times the deviation */
static struct {
    double pages, kept, lost, lost_by[COUNT(spread)];
    long   n;
} seen[COUNT(shares)];

static struct {
    const ops *o;
    void (*store)(queue *q, const kv_class *c, int layer, const step_rows *rows, dev k, dev v);
    void (*attention)(queue *q, dev y, dev q_rows, int n_heads, const kv_class *c, int layer, const step_rows *rows,
                      float scale, int window);
    const kv_class *watched;          /* the class with full attention */
    float          *keys[MAX_LAYERS]; /* [position][kv head][channel] */
    float          *scratch[3];       /* rows in another basis */
    size_t          n_scratch;
} tap;

static void need(bool ok, const err *e)
{
    if (ok) return;
    fprintf(stderr, "kv_error: %s\n", e->text);
    exit(1);
}

/* --- variants -------------------------------------------------------------------------------------*/
/* Makes the pages of a variant: those of the watched class, in order. */
static void open_variant(variant *v)
{
    err      e  = {0};
    kv_class c  = *tap.watched;
    c.types     = v->types;
    c.sparse    = v->sparse;
    size_t page = ((size_t)c.n_layers * kv_layer_bytes(&c) + KV_UNIT - 1) / KV_UNIT;
    need(tap.o->alloc(tap.o, &c.pool, page * (size_t)c.table_stride * KV_UNIT, &e) &&
             tap.o->alloc(tap.o, &c.table, (size_t)c.table_stride * sizeof(int32_t), &e),
         &e);
    for (int i = 0; i < c.table_stride; i++) ((int32_t *)c.table.p)[i] = (int32_t)((size_t)i * page);
    v->c = c;
}

/* Returns the rows turned by the inverse rotation, which the store or the attention then undoes. */
static dev turned(dev x, size_t n, int dim, int which, bool turn, void (*fn)(float *, int))
{
    if (!turn) return x;
    float *to = tap.scratch[which];
    memcpy(to, x.p, n * sizeof *to);
    for (size_t i = 0; i < n; i += (size_t)dim) fn(to + i, dim);
    return (dev){to};
}

static void store_tap(queue *q, const kv_class *c, int layer, const step_rows *rows, dev k, dev v)
{
    tap.store(q, c, layer, rows, k, v);
    if (c != tap.watched) return;
    size_t         one = (size_t)(c->n_kv_heads * c->head_dim), n = (size_t)rows->n_rows * one;
    const int32_t *pos = rows->pos.p;
    for (int r = 0; r < rows->n_rows; r++)
        memcpy(tap.keys[layer] + (size_t)pos[r] * one, (const float *)k.p + (size_t)r * one, one * sizeof(float));
    for (size_t i = 0; i < COUNT(variants); i++) {
        variant *x    = &variants[i];
        bool     flat = x->plain;
        tap.store(q, &x->c, layer, rows,
                  turned(k, n, c->head_dim, 0, flat && cache_has_scales(x->types.k), cache_unrotate),
                  turned(v, n, c->head_dim, 1, flat && cache_has_scales(x->types.v), cache_unrotate));
    }
}

/* --- pages ----------------------------------------------------------------------------------------*/
typedef struct {
    const float *q; /* of one head */
    float        scale;
    int          layer, kv_head, n_pages, far;
    double      *weight, *bound, *other; /* [n_pages] */
} look;

static const float *key_at(const look *l, int p)
{
    const kv_class *c = tap.watched;
    return tap.keys[l->layer] + ((size_t)p * (size_t)c->n_kv_heads + (size_t)l->kv_head) * (size_t)c->head_dim;
}

/* Computes the share of attention of each page, over positions 0 .. pos. */
static void weigh_pages(look *l, int pos)
{
    int     dim = tap.watched->head_dim;
    double *s = xnew_n(double, (size_t)pos + 1), max = -INFINITY, sum = 0;
    for (int p = 0; p <= pos; p++) {
        const float *k = key_at(l, p);
        for (int i = 0; i < dim; i++) s[p] += (double)l->q[i] * k[i];
        s[p] *= l->scale;
        max = fmax(max, s[p]);
    }
    for (int j = 0; j < l->n_pages; j++) l->weight[j] = 0;
    for (int p = 0; p <= pos; p++) sum += exp(s[p] - max);
    for (int p = 0; p <= pos; p++) l->weight[p / KV_PAGE] += exp(s[p] - max) / sum;
    mem_free(s);
}

/* Scores page j by its smallest and largest keys, or by mean + by * deviation. */
static double score_page(const look *l, int j, bool bound, double by)
{
    int    dim = tap.watched->head_dim;
    double sum = 0, var = 0;
    for (int i = 0; i < dim; i++) {
        double x = (double)l->q[i] * l->scale, low = INFINITY, high = -INFINITY, mean = 0, square = 0;
        for (int p = j * KV_PAGE; p < (j + 1) * KV_PAGE; p++) {
            double k = (double)key_at(l, p)[i];
            low      = fmin(low, k);
            high     = fmax(high, k);
            mean += k / KV_PAGE;
            square += k * k / KV_PAGE;
        }
        sum += bound ? fmax(x * low, x * high) : x * mean;
        var += x * x * fmax(0, square - mean * mean);
    }
    return bound ? sum : sum + by * sqrt(var);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Returns the weight of candidate pages outside of the n with the largest score. */
static double lost_of(const look *l, const double *score, int n)
{
    double *sorted = xnew_n(double, (size_t)l->far + 1), lost = 0;
    memcpy(sorted, score, (size_t)l->far * sizeof *sorted);
    qsort(sorted, (size_t)l->far, sizeof *sorted, by_size);
    for (int j = SPARSE_SINK; j < l->far && n > 0; j++)
        if (score[j] < sorted[n - 1]) lost += l->weight[j];
    mem_free(sorted);
    return lost;
}

static void look_at_shares(look *l)
{
    uint32_t *n   = xnew_n(uint32_t, (size_t)l->far + 1);
    double    max = -INFINITY;
    for (int j = 0; j < l->far; j++) l->bound[j] = score_page(l, j, true, 0);
    for (int j = 0; j < l->far; j++) max = fmax(max, l->bound[j]);
    for (int j = 0; j < l->far; j++) n[j] = (uint32_t)(SPARSE_WEIGHT * exp(l->bound[j] - max));
    for (size_t a = 0; a < COUNT(shares); a++) {
        uint32_t t    = sparse_threshold(n, l->far, (uint32_t)(shares[a] * SPARSE_ONE));
        int      kept = 0;
        for (int j = 0; j < l->far; j++) {
            kept += n[j] >= t;
            if (n[j] < t && j >= SPARSE_SINK) seen[a].lost += l->weight[j];
        }
        seen[a].kept += kept;
        seen[a].pages += l->far;
        seen[a].n++;
        for (size_t b = 0; b < COUNT(spread); b++) {
            for (int j = 0; j < l->far; j++) l->other[j] = score_page(l, j, false, spread[b]);
            seen[a].lost_by[b] += lost_of(l, l->other, kept);
        }
    }
    mem_free(n);
}

static void look_at_row(const float *q, int n_heads, int layer, int pos, float scale)
{
    sparse_params p     = SPARSE(0.1);
    int           group = n_heads / tap.watched->n_kv_heads, pages = pos / KV_PAGE + 1;
    look          l     = {.scale = scale, .layer = layer, .n_pages = pages, .far = sparse_far_pages(&p, pos)};
    const char   *scope = fault_scope();
    fault_scope_set(NULL); /* allocates inside a step */
    double *room = xnew_n(double, 3 * (size_t)pages);
    l.weight     = room;
    l.bound      = room + pages;
    l.other      = room + 2 * pages;
    for (int h = 0; h < n_heads && l.far; h += group) {
        l.q       = q + (size_t)h * (size_t)tap.watched->head_dim;
        l.kv_head = h / group;
        weigh_pages(&l, pos);
        look_at_shares(&l);
    }
    mem_free(room);
    fault_scope_set(scope);
}

/* --- attention ------------------------------------------------------------------------------------*/
static void add_error(variant *x, const float *got, const float *want, const step_rows *rows, size_t width)
{
    const int32_t *pos = rows->pos.p;
    for (int r = 0; r < rows->n_rows; r++) {
        if (x->sparse.drop && !sparse_far_pages(&x->sparse, pos[r])) continue;
        for (size_t i = (size_t)r * width; i < (size_t)(r + 1) * width; i++) {
            x->error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
            x->size += (double)want[i] * want[i];
        }
    }
}

static void attention_tap(queue *q, dev y, dev q_rows, int n_heads, const kv_class *c, int layer, const step_rows *rows,
                          float scale, int window)
{
    tap.attention(q, y, q_rows, n_heads, c, layer, rows, scale, window);
    if (c != tap.watched) return;
    size_t         width = (size_t)(n_heads * c->head_dim), n = (size_t)rows->n_rows * width;
    const int32_t *pos = rows->pos.p;
    for (size_t i = 0; i < COUNT(variants); i++) {
        variant *x   = &variants[i];
        dev      out = {tap.scratch[2]};
        tap.attention(q, out,
                      turned(q_rows, n, c->head_dim, 0, x->plain && cache_has_scales(x->types.k), cache_unrotate),
                      n_heads, &x->c, layer, rows, scale, 0);
        out = turned(out, n, c->head_dim, 1, x->plain && cache_has_scales(x->types.v), cache_rotate);
        add_error(x, out.p, y.p, rows, width);
    }
    for (int r = 0; r < rows->n_rows; r++)
        if (pos[r] % EVERY == 0)
            look_at_row((const float *)q_rows.p + (size_t)r * width, n_heads, layer, pos[r], scale);
}

static ops *wrap(ops *inner)
{
    tap.store        = inner->kv_store;
    tap.attention    = inner->attention;
    tap.o            = inner;
    inner->kv_store  = store_tap;
    inner->attention = attention_tap;
    return inner;
}

/* --- the program ----------------------------------------------------------------------------------*/
static void watch(opened_model *m, int n_ctx)
{
    for (int i = 0; i < m->model->n_kv_classes; i++)
        if (!m->model->kv_class[i].window) tap.watched = kv_pool_class(m->kv, i);
    for (int l = 0; l < tap.watched->n_layers; l++)
        tap.keys[l] = xnew_n(float, (size_t)n_ctx *(size_t)(tap.watched->n_kv_heads * tap.watched->head_dim));
    for (int i = 0; i < 3; i++) tap.scratch[i] = xnew_n(float, (size_t)m->model->max_rows *(size_t)16384);
    for (size_t i = 0; i < COUNT(variants); i++) open_variant(&variants[i]);
}

static void run_text(opened_model *m, const tok_ids *ids, int n)
{
    err e = {0};
    for (int from = 0; from < n; from += m->model->max_rows) {
        int rows = n - from < m->model->max_rows ? n - from : m->model->max_rows;
        step_clear(&m->step);
        for (int i = 0; i < rows; i++)
            step_add(&m->step, kv_lane_index(m->lane_kv), from + i, ids->p[from + i], i == rows - 1);
        need(kv_lane_grow(m->lane_kv, rows, 0, &e) && m->model->step(m->model, m->kv, &m->step, &e), &e);
        kv_lane_commit(m->lane_kv, NULL, 0);
    }
}

static void print_results(int n)
{
    printf("%d tokens, heads of %d\n%-24s relative error of the output\n", n, tap.watched->head_dim, "K/V");
    for (size_t i = 0; i < COUNT(variants); i++)
        if (variants[i].size > 0) printf("%-24s %.5f\n", variants[i].name, sqrt(variants[i].error / variants[i].size));
    printf("\n%-8s %10s %12s  %s\n", "share", "kept", "weight lost",
           "lost with mean + 0, 1, 2, 3 deviations, same number");
    for (size_t a = 0; a < COUNT(shares); a++) {
        if (!seen[a].n) continue;
        printf("%-8g %9.1f%% %12.5f ", shares[a], 100 * seen[a].kept / seen[a].pages, seen[a].lost / (double)seen[a].n);
        for (size_t b = 0; b < COUNT(spread); b++) printf(" %8.5f", seen[a].lost_by[b] / (double)seen[a].n);
        putchar('\n');
    }
}

int main(int argc, char **argv)
{
    opened_model m;
    err          e    = {0};
    file_map     text = {0};
    tok_ids      ids;
    char         path[4096];
    if (argc < 2) {
        fprintf(stderr, "usage: spec_kv_error TEXT [TOKENS]\n");
        return 2;
    }
    int          n   = argc > 2 ? atoi(argv[2]) : 8192;
    open_options o   = {.path   = rig_path("models/nano/target.gguf", path),
                        .name   = "nano",
                        .device = "cpu",
                        .n_ctx  = n,
                        .text   = true,
                        .wrap   = wrap};
    kv_types     f32 = KV_TYPES_ALL(CACHE_F32);
    need(open_model(&m, &o, &e) && open_pages(&m, &f32, &e) && file_map_open(&text, argv[1], &e), &e);
    tok_ids_init(&ids, 1 << 22);
    need(tok_encode(m.tok, &ids, (str){text.p, text.n}, true, &e), &e);
    if ((size_t)n > ids.n) n = (int)ids.n;
    watch(&m, n);
    run_text(&m, &ids, n);
    print_results(n);
    tok_ids_deinit(&ids);
    file_map_close(&text);
    for (size_t i = 0; i < COUNT(variants); i++) {
        tap.o->free(tap.o, variants[i].c.pool);
        tap.o->free(tap.o, variants[i].c.table);
    }
    for (int l = 0; l < MAX_LAYERS; l++) mem_free(tap.keys[l]);
    for (int i = 0; i < 3; i++) mem_free(tap.scratch[i]);
    open_close(&m);
    return 0;
}
