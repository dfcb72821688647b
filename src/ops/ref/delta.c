/* Gated delta nets: the convolution of their inputs, the delta rule, and the replay of kept rows. */
#include "ops/delta_view.h"
#include "ops/ref/table.h"

#include <string.h>

/* --- convolution ----------------------------------------------------------------------------------*/
/* Returns the input that is `back` rows before r on its path. window: the last inputs before the step. */
static float input_at(const float *x, const int32_t *before, int n, int r, int back, const float *window, int n_taps,
                      int i)
{
    for (; back && r >= 0; back--) r = before[r];
    if (r >= 0) return x[(size_t)r * (size_t)n + (size_t)i];
    return window ? window[(size_t)(n_taps - 2 - back) * (size_t)n + (size_t)i] : 0;
}

static void convolve(const delta_io *io, const delta_class *c, int layer, const step_rows *rows)
{
    delta_rows   at = delta_rows_of(rows);
    const float *xs = io->x.p, *ws = io->w.p;
    int          n = delta_channels(c), taps = c->n_taps;
    delta_lane   l = {0};
    while (delta_next_lane(&at, &l)) {
        float *window = delta_live(c, layer, l.lane) + delta_memory_floats(c), *old = l.from_zero ? NULL : window;
        for (int i = 0; i < n; i++) {
            float last[DELTA_MAX_TAPS];
            for (int r = l.first; r < l.end; r++) {
                double sum = 0;
                for (int j = 0; j < taps; j++)
                    sum += (double)ws[(size_t)j * (size_t)n + (size_t)i] *
                           input_at(xs, at.before, n, r, taps - 1 - j, old, taps, i);
                ((float *)io->conv.p)[(size_t)r * (size_t)n + (size_t)i] = (float)(sum / (1 + exp(-sum)));
                if (at.kept[r] >= 0)
                    delta_kept(c, layer, at.kept[r])[delta_tape_floats(c) + (size_t)i] =
                        xs[(size_t)r * (size_t)n + (size_t)i];
            }
            if (l.first_kept == l.first) continue;
            for (int j = 0; j < taps - 1; j++)
                last[j] = input_at(xs, at.before, n, l.first_kept - 1, taps - 2 - j, old, taps, i);
            for (int j = 0; j < taps - 1; j++) window[(size_t)j * (size_t)n + (size_t)i] = last[j];
        }
    }
}

/* --- the delta rule -------------------------------------------------------------------------------*/
static void make_unit(float *x, int n, double scale)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * x[i];
    scale /= sqrt(sum + 1e-6);
    for (int i = 0; i < n; i++) x[i] = (float)(x[i] * scale);
}

static double softplus(double x) { return x > 20 ? x : log1p(exp(x)); }

/* Makes queries and keys unit vectors, a the decay and b the strength of the update, in place. */
static void prepare_rows(float *x, float *a, float *b, const float *rate, const float *bias, const delta_class *c,
                         int n_rows)
{
    int n = delta_channels(c), D = c->head_dim, K = c->n_k_heads, V = c->n_v_heads;
    for (int r = 0; r < n_rows; r++) {
        float *row = x + (size_t)r * (size_t)n;
        for (int h = 0; h < 2 * K; h++) make_unit(row + (size_t)h * (size_t)D, D, h < K ? 1 / sqrt(D) : 1);
        for (int h = 0; h < V; h++) {
            size_t i = (size_t)r * (size_t)V + (size_t)h;
            a[i]     = (float)exp(rate[h] * softplus((double)a[i] + bias[h]));
            b[i]     = (float)(1 / (1 + exp(-(double)b[i])));
        }
    }
}

/* s = decay s + d k: one row of the transposed memory. Sure rows, kept rows and replay share it. */
static void update(float *s, float decay, float d, const float *k, int n)
{
    for (int i = 0; i < n; i++) s[i] = (float)((double)decay * s[i] + (double)d * k[i]);
}

typedef struct {
    float             *y;
    const float       *x, *decay, *beta;
    const delta_class *c;
    int                layer;
    const int32_t     *before, *kept;
} delta_job;

/* Applies row r to row j of the memory of value head h, and writes its output. Returns the correction. */
static float run_row(const delta_job *t, float *s, int r, int h, int j)
{
    const delta_class *c = t->c;
    size_t             D = (size_t)c->head_dim, V = (size_t)c->n_v_heads, at = (size_t)r * V + (size_t)h;
    const float       *row = t->x + (size_t)r * (size_t)delta_channels(c);
    const float       *q = row + (size_t)delta_key_head(c, h) * D, *k = q + (size_t)c->n_k_heads * D;
    double             m = 0, o = 0;
    for (size_t i = 0; i < D; i++) m += (double)t->decay[at] * s[i] * k[i];
    float v = row[(2 * (size_t)c->n_k_heads + (size_t)h) * D + (size_t)j];
    float d = (float)(t->beta[at] * (v - m));
    update(s, t->decay[at], d, k, c->head_dim);
    for (size_t i = 0; i < D; i++) o += (double)s[i] * q[i];
    t->y[at * D + (size_t)j] = (float)o;
    return d;
}

/* Applies the kept row at `place` to row j of the memory of value head h. */
static void apply_kept(const delta_class *c, int layer, int32_t place, float *s, int h, int j)
{
    const float *tape = delta_kept(c, layer, place);
    size_t       D = (size_t)c->head_dim, V = (size_t)c->n_v_heads, K = (size_t)c->n_k_heads;
    update(s, tape[(V + K) * D + (size_t)h], tape[(size_t)h * D + (size_t)j],
           tape + (V + (size_t)delta_key_head(c, h)) * D, c->head_dim);
}

/* Applies the kept rows from the beginning of the path up to row r. */
static void apply_path(const delta_job *t, float *s, int r, int h, int j)
{
    if (r < 0 || t->kept[r] < 0) return;
    apply_path(t, s, t->before[r], h, j);
    apply_kept(t->c, t->layer, t->kept[r], s, h, j);
}

static void keep_heads(const delta_job *t, int r)
{
    const delta_class *c = t->c;
    size_t             D = (size_t)c->head_dim, V = (size_t)c->n_v_heads, K = (size_t)c->n_k_heads;
    float             *tape = delta_kept(c, t->layer, t->kept[r]);
    memcpy(tape + V * D, t->x + (size_t)r * (size_t)delta_channels(c) + K * D, K * D * sizeof *tape);
    memcpy(tape + (V + K) * D, t->decay + (size_t)r * V, V * sizeof *tape);
}

static void run_lane(const delta_job *t, const delta_lane *l, int h, int j)
{
    const delta_class *c    = t->c;
    size_t             D    = (size_t)c->head_dim;
    float             *live = delta_live(c, t->layer, l->lane) + ((size_t)h * D + (size_t)j) * D, s[DELTA_MAX_HEAD];
    if (l->from_zero) memset(live, 0, D * sizeof *live);
    for (int r = l->first; r < l->first_kept; r++) run_row(t, live, r, h, j);
    for (int r = l->first_kept; r < l->end; r++) {
        memcpy(s, live, D * sizeof *s);
        apply_path(t, s, t->before[r], h, j);
        delta_kept(c, t->layer, t->kept[r])[(size_t)h * D + (size_t)j] = run_row(t, s, r, h, j);
    }
}

void ref_delta(queue *q, const delta_io *io, const delta_class *c, int layer, const step_rows *rows)
{
    delta_rows at = delta_rows_of(rows);
    delta_job  t  = {io->y.p, io->conv.p, io->a.p, io->b.p, c, layer, at.before, at.kept};
    delta_lane l  = {0};
    (void)q;
    convolve(io, c, layer, rows);
    prepare_rows(io->conv.p, io->a.p, io->b.p, io->rate.p, io->bias.p, c, rows->n_rows);
    for (int r = 0; r < rows->n_rows; r++)
        if (t.kept[r] >= 0) keep_heads(&t, r);
    while (delta_next_lane(&at, &l))
        for (int h = 0; h < c->n_v_heads; h++)
            for (int j = 0; j < c->head_dim; j++) run_lane(&t, &l, h, j);
}

/* --- replay ---------------------------------------------------------------------------------------*/
static void replay_inputs(const delta_class *c, int layer, const delta_replay_item *it, const int32_t *place)
{
    float *window = delta_live(c, layer, it->lane) + delta_memory_floats(c);
    int    n = delta_channels(c), taps = c->n_taps;
    for (int i = 0; i < n; i++) {
        float last[DELTA_MAX_TAPS] = {0};
        for (int j = 0; j < taps - 1 && it->pos != 0; j++) last[j] = window[(size_t)j * (size_t)n + (size_t)i];
        for (int k = 0; k < it->n; k++) {
            for (int j = 0; j + 1 < taps - 1; j++) last[j] = last[j + 1];
            last[taps - 2] = delta_kept(c, layer, place[it->first + k])[delta_tape_floats(c) + (size_t)i];
        }
        for (int j = 0; j < taps - 1; j++) window[(size_t)j * (size_t)n + (size_t)i] = last[j];
    }
}

void ref_delta_replay(queue *q, const delta_class *c, dev items, int n_items, dev places)
{
    const delta_replay_item *item  = items.p;
    const int32_t           *place = places.p;
    size_t                   D     = (size_t)c->head_dim;
    (void)q;
    for (int l = 0; l < c->n_layers; l++)
        for (const delta_replay_item *it = item; it < item + n_items; it++) {
            float *live = delta_live(c, l, it->lane);
            if (it->pos == 0) memset(live, 0, delta_memory_floats(c) * sizeof *live);
            for (int h = 0; h < c->n_v_heads; h++)
                for (int j = 0; j < c->head_dim; j++)
                    for (int k = 0; k < it->n; k++)
                        apply_kept(c, l, place[it->first + k], live + ((size_t)h * D + (size_t)j) * D, h, j);
            replay_inputs(c, l, it, place);
        }
}
