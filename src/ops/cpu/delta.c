/* Gated delta nets (ops.h). A row of the transposed memory depends on no other row of it, so threads divide the memory
 * by rows and each applies all rows of the step in order. */
#include "ops/cpu/kernels.h"
#include "ops/cpu/vec.h"

/* --- convolution ----------------------------------------------------------------------------------*/
/* Sets in[j] to the input of tap j of row r, from channel i on; NULL: zeros before the text. window: the inputs before
 * the step, or NULL. */
static void find_inputs(const cpu_conv_args *a, int r, const float *window, int n_taps, size_t i, const float **in)
{
    size_t n = (size_t)delta_channels(a->c);
    for (int j = n_taps - 1, at = a->c->n_taps - 2; j >= 0; j--) {
        if (r >= 0) {
            in[j] = a->x + (size_t)r * n + i;
            r     = a->rows.before[r];
        } else {
            in[j] = window ? window + (size_t)at-- * n + i : NULL;
        }
    }
}

static void conv_span(const cpu_conv_args *a, float *y, const float *const *in, size_t i)
{
    const delta_class *c = a->c;
    size_t             n = (size_t)delta_channels(c);
    for (size_t k = 0; k < CONV_SPAN && i + k < n; k += 8) {
        v8f acc = {0};
        for (int j = 0; j < c->n_taps; j++)
            if (in[j]) acc = v8_fma(v8_load(a->w + (size_t)j * n + i + k), v8_load(in[j] + k), acc);
        v8_store(y + i + k, v8_silu(acc));
    }
}

/* The sure rows become the last inputs. A new input may come from an old one, so all are read first. */
static void keep_inputs(const cpu_conv_args *a, const delta_lane *l, float *window, size_t i)
{
    const delta_class *c      = a->c;
    int                n_last = c->n_taps - 1;
    size_t             n = (size_t)delta_channels(c), span = n - i < CONV_SPAN ? n - i : CONV_SPAN;
    const float       *in[DELTA_MAX_TAPS];
    float              last[DELTA_MAX_TAPS][CONV_SPAN] = {0};
    find_inputs(a, l->first_kept - 1, l->from_zero ? NULL : window, n_last, i, in);
    for (int j = 0; j < n_last; j++)
        if (in[j]) memcpy(last[j], in[j], span * sizeof(float));
    for (int j = 0; j < n_last; j++) memcpy(window + (size_t)j * n + i, last[j], span * sizeof(float));
}

void CPU_FN(conv)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_conv_args *a = args;
    const delta_class   *c = a->c;
    size_t               n = (size_t)delta_channels(c);
    (void)thread;
    for (size_t item = from; item < to; item++) {
        size_t     i = item * CONV_SPAN, span = n - i < CONV_SPAN ? n - i : CONV_SPAN;
        delta_lane l = {0};
        while (delta_next_lane(&a->rows, &l)) {
            float *window = delta_live(c, a->layer, l.lane) + delta_memory_floats(c);
            for (int r = l.first; r < l.end; r++) {
                const float *in[DELTA_MAX_TAPS];
                find_inputs(a, r, l.from_zero ? NULL : window, c->n_taps, i, in);
                conv_span(a, a->y + (size_t)r * n, in, i);
                if (r >= l.first_kept)
                    memcpy(delta_kept(c, a->layer, a->rows.kept[r]) + delta_tape_floats(c) + i,
                           a->x + (size_t)r * n + i, span * sizeof(float));
            }
            if (l.first_kept > l.first) keep_inputs(a, &l, window, i);
        }
    }
}

/* --- the delta rule -------------------------------------------------------------------------------*/
static void make_unit(float *x, int n, float scale)
{
    v8f acc = {0};
    for (int i = 0; i < n; i += 8) acc = v8_fma(v8_load(x + i), v8_load(x + i), acc);
    v8f by = v8_set1(scale / sqrtf(v8_sum(acc) + 1e-6f));
    for (int i = 0; i < n; i += 8) v8_store(x + i, v8_load(x + i) * by);
}

static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

/* Makes queries and keys unit vectors, a the decay and b the strength of the update, in place. */
void CPU_FN(delta_heads)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_delta_args *t = args;
    const delta_class    *c = t->c;
    size_t                D = (size_t)c->head_dim, K = (size_t)c->n_k_heads, V = (size_t)c->n_v_heads;
    (void)thread;
    for (size_t r = from; r < to; r++) {
        float *x = t->x + r * (size_t)delta_channels(c), *a = t->decay + r * V, *b = t->beta + r * V;
        for (size_t h = 0; h < 2 * K; h++) make_unit(x + h * D, c->head_dim, h < K ? 1 / sqrtf((float)D) : 1);
        for (size_t h = 0; h < V; h++) {
            a[h] = expf(t->rate[h] * softplus(a[h] + t->bias[h]));
            b[h] = 1 / (1 + expf(-b[h]));
        }
        if (t->rows.kept[r] < 0) continue;
        float *tape = delta_kept(c, t->layer, t->rows.kept[r]);
        memcpy(tape + V * D, x + K * D, K * D * sizeof *tape);
        memcpy(tape + (V + K) * D, a, V * sizeof *tape);
    }
}

/* s = decay s + d k, DELTA_COLS rows of the memory. Every way of applying a row uses this. */
INLINE void update_rows(float *to, const float *from, v8f decay, const float *d, const float *k, size_t D)
{
    for (size_t i = 0; i < D; i += 8) {
        v8f key = v8_load(k + i);
#pragma GCC unroll 4
        for (size_t j = 0; j < DELTA_COLS; j++)
            v8_store(to + j * D + i, v8_fma(v8_set1(d[j]), key, decay * v8_load(from + j * D + i)));
    }
}

/* Applies row r to rows j .. j + DELTA_COLS - 1 of the memory of value head h. S q = decay S q + d (k q), so that the
 * memory is read once for both products. The decay multiplies the products instead of every element. */
static void run_row(const cpu_delta_args *t, float *to, const float *from, int r, size_t h, size_t j, float *d)
{
    const delta_class *c = t->c;
    size_t             D = (size_t)c->head_dim, K = (size_t)c->n_k_heads, at = (size_t)r * (size_t)c->n_v_heads + h;
    const float       *x = t->x + (size_t)r * (size_t)delta_channels(c), *v = x + (2 * K + h) * D + j;
    const float       *q = x + (size_t)delta_key_head(c, (int)h) * D, *k = q + K * D;
    float             *y  = t->y + at * D + j;
    v8f                kq = {0}, acc[2 * DELTA_COLS] = {0}; /* S k, then S q */
    for (size_t i = 0; i < D; i += 8) {
        v8f key = v8_load(k + i), query = v8_load(q + i);
        kq = v8_fma(key, query, kq);
#pragma GCC unroll 4
        for (int n = 0; n < DELTA_COLS; n++) {
            v8f s               = v8_load(from + (size_t)n * D + i);
            acc[n]              = v8_fma(s, key, acc[n]);
            acc[DELTA_COLS + n] = v8_fma(s, query, acc[DELTA_COLS + n]);
        }
    }
    v8f   sums = v8_set1(t->decay[at]) * v8_sums(acc);
    float dot  = v8_sum(kq);
    for (int n = 0; n < DELTA_COLS; n++) {
        d[n] = t->beta[at] * (v[n] - sums[n]);
        y[n] = sums[DELTA_COLS + n] + d[n] * dot;
    }
    update_rows(to, from, v8_set1(t->decay[at]), d, k, D);
}

/* Prefetches the memory of an item that follows soon. Hardware prefetchers are late: an item is short, and its rows are
 * read side by side. */
INLINE void prefetch_memory(const float *live, size_t part)
{
    enum { LINE = 64 / sizeof(float), ITEMS_AHEAD = 2 };
    for (size_t i = 0; i < part; i += LINE) __builtin_prefetch(live + ITEMS_AHEAD * part + i, 1);
}

static void run_lane(const cpu_delta_args *t, const delta_lane *l, size_t h, size_t j, float *states)
{
    const delta_class *c = t->c;
    size_t             D = (size_t)c->head_dim, part = DELTA_COLS * D;
    float             *live = delta_live(c, t->layer, l->lane) + (h * D + j) * D, d[DELTA_COLS];
    prefetch_memory(live, part);
    if (l->from_zero) memset(live, 0, part * sizeof *live);
    for (int r = l->first; r < l->first_kept; r++) run_row(t, live, live, r, h, j, d);
    for (int r = l->first_kept; r < l->end; r++) {
        int          p    = t->rows.before[r] - l->first_kept;
        const float *from = p < 0 ? live : states + (size_t)p * part;
        run_row(t, states + (size_t)(r - l->first_kept) * part, from, r, h, j, d);
        memcpy(delta_kept(c, t->layer, t->rows.kept[r]) + h * D + j, d, sizeof d);
    }
}

void CPU_FN(delta)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_delta_args *t      = args;
    size_t                blocks = (size_t)t->c->head_dim / DELTA_COLS;
    for (size_t item = from; item < to; item++) {
        delta_lane l = {0};
        while (delta_next_lane(&t->rows, &l))
            run_lane(t, &l, item / blocks, item % blocks * DELTA_COLS, t->states + (size_t)thread * t->states_stride);
    }
}

/* --- replay ---------------------------------------------------------------------------------------*/
void CPU_FN(delta_replay)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_replay_args *t = args;
    const delta_class     *c = t->c;
    size_t D = (size_t)c->head_dim, V = (size_t)c->n_v_heads, K = (size_t)c->n_k_heads, blocks = D / DELTA_COLS;
    (void)thread;
    for (size_t item = from; item < to; item++) {
        int    layer = (int)(item / (V * blocks));
        size_t h = item / blocks % V, j = item % blocks * DELTA_COLS;
        for (int n = 0; n < t->n_items; n++) {
            const delta_replay_item *it   = &t->item[n];
            float                   *live = delta_live(c, layer, it->lane) + (h * D + j) * D;
            prefetch_memory(live, DELTA_COLS * D);
            if (it->pos == 0) memset(live, 0, DELTA_COLS * D * sizeof *live);
            for (int k = 0; k < it->n; k++) {
                const float *tape = delta_kept(c, layer, t->place[it->first + k]);
                update_rows(live, live, v8_set1(tape[(V + K) * D + h]), tape + h * D + j,
                            tape + (V + (size_t)delta_key_head(c, (int)h)) * D, D);
            }
        }
    }
}

/* The last inputs of the convolution: of the kept rows, and of the inputs before them while those do not suffice. */
void CPU_FN(conv_replay)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_replay_args *t = args;
    const delta_class     *c = t->c;
    size_t                 n = (size_t)delta_channels(c), bytes = n * sizeof(float);
    int                    n_last = c->n_taps - 1;
    (void)thread;
    for (size_t item = from; item < to; item++) {
        const delta_replay_item *it     = &t->item[item % (size_t)t->n_items];
        int                      layer  = (int)(item / (size_t)t->n_items);
        float                   *window = delta_live(c, layer, it->lane) + delta_memory_floats(c);
        for (int j = 0; j < n_last; j++) {
            int    k      = it->n - n_last + j; /* negative: an old input, which has a higher index */
            float *to_row = window + (size_t)j * n;
            if (k >= 0)
                memcpy(to_row, delta_kept(c, layer, t->place[it->first + k]) + delta_tape_floats(c), bytes);
            else if (it->pos == 0)
                memset(to_row, 0, bytes);
            else
                memmove(to_row, window + (size_t)(n_last + k) * n, bytes);
        }
    }
}

/* --- gates ----------------------------------------------------------------------------------------*/
void CPU_FN(add_gated)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_add_gated_args *t = args;
    (void)thread;
    for (size_t r = from; r < to; r++) {
        v8f    gate = v8_sigmoid(v8_set1(t->gate[r]));
        size_t at   = r * (size_t)t->n;
        for (int i = 0; i < t->n; i += 8) {
            int left = t->n - i;
            v8_store_n(t->y + at + i, v8_fma(gate, v8_load_n(t->b + at + i, left), v8_load_n(t->a + at + i, left)),
                       left);
        }
    }
}
