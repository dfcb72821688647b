/* The cpu backend: host memory, weights in tiles, scratch per queue, and each op divided into items for the thread
 * pool.
 *
 * Ops run immediately, on the caller and the pool's threads; sync does nothing. One thread at a time may use the
 * backend. */
#include "ops/cpu/cpu.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "ops/cpu/kernels.h"
#include "ops/sampling.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

enum {
    ALIGN          = 256,
    HUGE_BYTES     = 4 << 20,  /* larger blocks use huge pages */
    PAGES_BYTES    = 64 << 10, /* larger blocks take memory when a page is first used */
    SMALL_JOB      = 200000,   /* multiplications: below this, waking a thread costs more than it saves */
    CHUNK_JOB      = SMALL_JOB / 2,
    PART_SCRATCH   = 512 << 10, /* floats per thread for parts of attention */
    CHOICE_SCRATCH = 8 << 20,   /* floats for the choice of pages of sparse attention, at least */
    SLAB_BYTES     = 8 << 20,   /* bytes of weights packed at a time */
    TILE_CHUNK     = 128 << 10, /* bytes of tiles per thread and turn: they stay in its L2 cache for all rows */
};

typedef struct {
    pool              *pool;
    const cpu_kernels *k;
} backend;

struct queue {
    const backend *b;
    queue_limits   lim;
    int            n_threads;
    cpu_xblock    *x;     /* [max_rows * max(1, slots)][max_in / 32] */
    int32_t       *order; /* [max_rows * slots]: pairs by expert */
    int32_t       *first; /* [n_experts + 1]: runs in it */
    int32_t       *mat;   /* [n_experts]: the runs' experts */
    int32_t       *next;  /* [n_experts]: counting sort */
    int32_t       *path;  /* [thread][max_rows] */
    cpu_row_tile  *tiles; /* [max_rows + 1] */
    float         *parts; /* PART_SCRATCH per thread, with sparse attention at least choice_floats; room to align it */
    uint16_t      *kept; /* [choice_floats / 16], with sparse attention: pages that pairs of a row and a kv head keep */
    float         *numerators;      /* [thread][n_experts] */
    sampling_candidate *candidates; /* [thread][max_vocab] */
    cpu_ranking        *seen;       /* [thread][max_rows] */
    double              mark[QUEUE_MARKS];
};

/* --- jobs -----------------------------------------------------------------------------------------*/

typedef struct {
    cpu_kernel *kernel;
    const void *args;
    size_t      n, grain;
} job;

static void run_chunk(void *ctx, int chunk, int thread)
{
    const job *j    = ctx;
    size_t     from = (size_t)chunk * j->grain, to = j->n - from < j->grain ? j->n : from + j->grain;
    j->kernel(j->args, from, to, thread);
}

static void run_grains(const backend *b, cpu_kernel *kernel, const void *args, size_t n, size_t grain)
{
    job j = {kernel, args, n, grain};
    pool_run(b->pool, (int)((n + grain - 1) / grain), run_chunk, &j);
}

static size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

/* Runs n items of about `cost` multiplications each, in chunks: a few per thread, none too small. With many items a
 * chunk is a multiple of 8, so that vectors of elements are not cut. */
static void run_items(const backend *b, cpu_kernel *kernel, const void *args, size_t n, size_t cost)
{
    if (!n) return;
    if (n * cost < SMALL_JOB) {
        kernel(args, 0, n, 0);
        return;
    }
    size_t grain = max_size(ceil_div(n, 4 * (size_t)pool_threads(b->pool)), ceil_div(CHUNK_JOB, cost));
    run_grains(b, kernel, args, n, grain < 64 ? grain : ceil_div(grain, 8) * 8);
}

/* --- memory ---------------------------------------------------------------------------------------
 * A block starts at the first multiple of ALIGN that leaves room for the pointer returned by malloc. */
static bool cpu_alloc(const ops *o, dev *out, size_t bytes, err *e)
{
    size_t padded;
    char  *raw = size_add(&padded, bytes, ALIGN + sizeof(void *)) ? mem_try(padded) : NULL;
    (void)o;
    out->p = NULL;
    if (!raw) return err_set(e, ERR_UNAVAILABLE, "no memory for a buffer of %zu bytes", bytes);
    char *p = raw + sizeof(void *);
    p += ALIGN - (uintptr_t)p % ALIGN;
    memcpy(p - sizeof(void *), &raw, sizeof(void *));
    if (bytes >= HUGE_BYTES) { /* advice only: without huge pages it is a little slower */
        size_t page = HUGE_BYTES / 2, skip = page - (uintptr_t)p % page;
        madvise(p + skip, (bytes - skip) / page * page, MADV_HUGEPAGE);
    }
    if (bytes >= PAGES_BYTES) { /* malloc may have zeroed freed memory: only pages that are used should take room */
        size_t page = (size_t)sysconf(_SC_PAGESIZE), skip = page - (uintptr_t)p % page;
        madvise(p + skip, (bytes - skip) / page * page, MADV_DONTNEED);
    }
    out->p = p;
    return true;
}

static void cpu_free(const ops *o, dev d)
{
    void *raw;
    (void)o;
    if (!d.p) return;
    memcpy(&raw, (char *)d.p - sizeof(void *), sizeof raw);
    mem_free(raw);
}

/* --- weights --------------------------------------------------------------------------------------*/

/* Returns the tile bytes per block of the type: 8 source blocks, plus the growth of the scales of super-blocks. */
static size_t unit_bytes(quant_type t)
{
    bool grows = t == QUANT_Q3_K || t == QUANT_Q4_K || t == QUANT_Q5_K;
    return TILE_ROWS * quant_block_bytes(t) + (grows ? 32 : t == QUANT_IQ4_XS ? 16 : 0);
}

static void cpu_weight_free(const ops *o, weight *w)
{
    if (!w) return;
    cpu_free(o, (dev){((cpu_weight *)w)->tiles});
    mem_free(w);
}

/* Packs slab by slab, so that the source's pages can be reported and dropped. */
static void pack_slabs(const backend *b, const cpu_weight *w, const weight_src *s, size_t row_bytes)
{
    size_t n = w->n_tiles * (size_t)s->n_mats, per_slab = max_size(SLAB_BYTES / w->tile_bytes, 1);
    for (size_t from = 0, to; from < n; from = to) {
        to              = min_size(from + per_slab, n);
        cpu_pack_args a = {w, s->data, row_bytes, from};
        run_items(b, b->k->pack, &a, to - from, (size_t)s->n_in * TILE_ROWS);
        size_t row = min_size(to % w->n_tiles * TILE_ROWS, (size_t)s->n_out);
        if (s->took) s->took(s->ctx, (to / w->n_tiles * (size_t)s->n_out + row) * row_bytes);
    }
}

static bool cpu_weight_load(const ops *o, weight **out, const weight_src *s, err *e)
{
    dev    tiles;
    size_t total;
    *out = NULL;
    if (!ops_check_weight(s, quant_can_dequantise(s->type), e)) return false;
    size_t n_units = (size_t)s->n_in / (size_t)quant_block(s->type), n_tiles = ceil_div((size_t)s->n_out, TILE_ROWS);
    size_t tile_bytes = n_units * unit_bytes(s->type), all = n_tiles * (size_t)s->n_mats;
    if (!size_mul(&total, tile_bytes, all))
        return err_set(e, ERR_FORMAT, "a weight of %d x %d x %d is too large", s->n_mats, s->n_out, s->n_in);
    cpu_weight *w = mem_try(sizeof *w);
    if (!w) return err_set(e, ERR_UNAVAILABLE, "no memory for a weight");
    if (!cpu_alloc(o, &tiles, total, e)) {
        mem_free(w);
        return false;
    }
    *w = (cpu_weight){{s->type, s->n_in, s->n_out, s->n_mats, total}, tiles.p, tile_bytes, n_tiles};
    pack_slabs(o->state, w, s, n_units * quant_block_bytes(s->type));
    *out = &w->pub;
    return true;
}

/* --- queues ---------------------------------------------------------------------------------------*/

static void free_scratch(queue *q)
{
    mem_free(q->x);
    mem_free(q->order);
    mem_free(q->first);
    mem_free(q->mat);
    mem_free(q->next);
    mem_free(q->path);
    mem_free(q->tiles);
    mem_free(q->parts);
    mem_free(q->kept);
    mem_free(q->numerators);
    mem_free(q->candidates);
    mem_free(q->seen);
}

/* Returns the floats for the choice of pages: those of several rows, and at least of one. */
static size_t choice_floats(const queue_limits *l) { return l->sparse ? max_size(CHOICE_SCRATCH, l->sparse) : 0; }

static bool take_scratch(queue *q)
{
    const queue_limits *l    = &q->lim;
    size_t              rows = (size_t)l->max_rows, slots = (size_t)l->max_expert_slots, experts = (size_t)l->n_experts;
    size_t              threads = (size_t)q->n_threads, pairs, blocks, vocab;
    size_t              choices = choice_floats(l);
    if (!size_mul(&pairs, rows, max_size(slots, 1))) return false;
    if (!size_mul(&blocks, pairs, ceil_div((size_t)l->max_in, QK))) return false;
    if (!size_mul(&vocab, threads, (size_t)l->max_vocab)) return false;
    return (q->x = mem_try_n(blocks, sizeof *q->x)) && (q->order = mem_try_n(pairs, sizeof *q->order)) &&
           (q->first = mem_try_n(experts + 1, sizeof *q->first)) && (q->mat = mem_try_n(experts, sizeof *q->mat)) &&
           (q->next = mem_try_n(experts, sizeof *q->next)) && (q->path = mem_try_n(threads * rows, sizeof *q->path)) &&
           (q->tiles = mem_try_n(rows + 1, sizeof *q->tiles)) &&
           (q->parts = mem_try_n(max_size(threads * PART_SCRATCH, choices) + ALIGN, sizeof *q->parts)) &&
           (q->kept = mem_try_n(choices / 16 + 1, sizeof *q->kept)) &&
           (q->numerators = mem_try_n(threads * experts, sizeof *q->numerators)) &&
           (q->candidates = mem_try_n(vocab, sizeof *q->candidates)) &&
           (q->seen = mem_try_n(threads * rows, sizeof *q->seen));
}

/* Allocates all new scratch before it frees the old one, so that the queue stays usable when memory runs out. */
static bool cpu_queue_reserve(queue *q, const queue_limits *l, err *e)
{
    queue grown = {.b = q->b, .lim = queue_limits_max(&q->lim, l), .n_threads = q->n_threads};
    bool  ok    = take_scratch(&grown);
    if (ok) {
        queue old = *q;
        *q        = grown;
        grown     = old;
    }
    free_scratch(&grown);
    return ok || err_set(e, ERR_UNAVAILABLE, "no memory for the scratch of steps of %d rows", l->max_rows);
}

static void cpu_queue_free(queue *q)
{
    if (!q) return;
    free_scratch(q);
    mem_free(q);
}

static bool cpu_queue_new(const ops *o, queue **out, const queue_limits *l, err *e)
{
    const backend *b = o->state;
    queue         *q = mem_try(sizeof *q);
    *out             = NULL;
    if (!q) return err_set(e, ERR_UNAVAILABLE, "no memory for a queue");
    q->b         = b;
    q->n_threads = pool_threads(b->pool);
    if (!cpu_queue_reserve(q, l, e)) {
        cpu_queue_free(q);
        return false;
    }
    *out = q;
    return true;
}

static void cpu_upload(queue *q, dev dst, const void *src, size_t bytes)
{
    (void)q;
    if (bytes) memcpy(dst.p, src, bytes);
}

static void cpu_download(queue *q, void *dst, dev src, size_t bytes)
{
    (void)q;
    if (bytes) memcpy(dst, src.p, bytes);
}

static void cpu_sync(queue *q) { (void)q; }

static bool cpu_check(queue *q, err *e)
{
    (void)q, (void)e;
    return true;
}

static void   cpu_mark(queue *q, int which) { q->mark[which] = clock_s(); }
static double cpu_between_s(queue *q, int from, int to) { return q->mark[to] - q->mark[from]; }

/* --- matmul ---------------------------------------------------------------------------------------*/

static const cpu_weight *tiles_of(const weight *w) { return (const cpu_weight *)w; }

static void cpu_embed(queue *q, dev y, const weight *table, dev ids, int n_rows, float scale)
{
    cpu_embed_args a = {y.p, tiles_of(table), ids.p, scale};
    run_items(q->b, q->b->k->embed, &a, (size_t)n_rows, (size_t)table->n_in * 4);
}

/* Sets a->x to the rows, or to their quantised form in the queue's scratch. */
static void prepare_x(queue *q, cpu_matmul_args *a, const float *x, size_t n_rows)
{
    size_t n_in = (size_t)a->w->pub.n_in, n_blocks = n_in / QK;
    if (quant_is_float(a->w->pub.type)) {
        a->x       = x;
        a->x_bytes = n_in * sizeof(float);
        return;
    }
    assert(n_in <= (size_t)q->lim.max_in);
    cpu_quantise_args args = {q->x, x};
    run_items(q->b, q->b->k->quantise, &args, n_rows * n_blocks, 2 * QK);
    a->x       = q->x;
    a->x_bytes = n_blocks * sizeof(cpu_xblock);
}

static void run_matmul(queue *q, const cpu_matmul_args *a, size_t n_runs, size_t n_pairs)
{
    size_t n = n_runs * a->w->n_tiles, cost = n_pairs * (size_t)a->w->pub.n_in * (size_t)a->w->pub.n_out;
    size_t chunk = n_pairs > n_runs * CPU_ROW_BLOCK ? TILE_CHUNK : 8 * TILE_CHUNK; /* read once: few chunk ends */
    size_t grain = min_size(max_size(chunk / a->w->tile_bytes, 1), ceil_div(n, 4 * (size_t)q->n_threads));
    run_grains(q->b, q->b->k->matmul, a, n, cost < SMALL_JOB ? n : ceil_div(grain, TILE_STRIP) * TILE_STRIP);
}

static void matmul_rows(queue *q, float *y, const cpu_top_args *top, const weight *w, dev x, int n_rows)
{
    int32_t         first[2] = {0, n_rows}, mat = 0;
    cpu_matmul_args a = {.w = tiles_of(w), .y = y, .pairs_to_x = 1, .first = first, .mat = &mat, .top = top};
    assert(n_rows <= q->lim.max_rows);
    if (n_rows < 1) return;
    prepare_x(q, &a, x.p, (size_t)n_rows);
    run_matmul(q, &a, 1, (size_t)n_rows);
}

static void cpu_matmul(queue *q, dev y, const weight *w, dev x, int n_rows) { matmul_rows(q, y.p, NULL, w, x, n_rows); }

/* Merges the threads' rankings. Every division among threads gives the same result. */
static void cpu_matmul_top(queue *q, dev out, const weight *w, dev x, int n_rows, float cap, int n_top)
{
    cpu_top_args a = {q->seen, n_rows, n_top, cap};
    assert(n_top >= 1 && n_top <= SAMPLE_TOP_MAX);
    for (int i = 0; i < q->n_threads * n_rows; i++) q->seen[i].n = 0;
    matmul_rows(q, NULL, &a, w, x, n_rows);
    for (int r = 0; r < n_rows; r++) {
        token_logit *best = (token_logit *)out.p + (size_t)r * (size_t)n_top;
        int          n    = 0;
        for (int t = 0; t < q->n_threads; t++) {
            const cpu_ranking *seen = &q->seen[t * n_rows + r];
            for (int i = 0; i < seen->n; i++) n = sampling_rank(best, n, n_top, seen->best[i].id, seen->best[i].logit);
        }
        for (; n < n_top; n++) best[n] = (token_logit){-1, -INFINITY};
    }
}

/* Sorts the pairs by expert, stable. Returns the number of experts used. */
static size_t sort_pairs(queue *q, const int32_t *id, int n_pairs, int n_mats)
{
    int n_runs = 0, at = 0;
    memset(q->next, 0, (size_t)n_mats * sizeof *q->next);
    for (int i = 0; i < n_pairs; i++) {
        assert(id[i] >= 0 && id[i] < n_mats);
        q->next[id[i]]++;
    }
    for (int m = 0; m < n_mats; m++) {
        int count  = q->next[m];
        q->next[m] = at;
        if (!count) continue;
        q->mat[n_runs]     = m;
        q->first[n_runs++] = at;
        at += count;
    }
    q->first[n_runs] = at;
    for (int i = 0; i < n_pairs; i++) q->order[q->next[id[i]]++] = i;
    return (size_t)n_runs;
}

static void cpu_matmul_experts(queue *q, dev y, const weight *w, dev x, bool x_per_slot, dev id, int n_rows,
                               int n_slots)
{
    int             n_pairs = n_rows * n_slots;
    cpu_matmul_args a       = {.w = tiles_of(w), .y = y.p, .pairs_to_x = x_per_slot ? 1 : n_slots};
    assert(n_rows <= q->lim.max_rows && n_slots <= q->lim.max_expert_slots && w->n_mats <= q->lim.n_experts);
    if (n_pairs < 1) return;
    size_t n_runs = sort_pairs(q, id.p, n_pairs, w->n_mats);
    a.order       = q->order;
    a.first       = q->first;
    a.mat         = q->mat;
    prepare_x(q, &a, x.p, (size_t)(x_per_slot ? n_pairs : n_rows));
    run_matmul(q, &a, n_runs, (size_t)n_pairs);
}

/* --- rows and elements ----------------------------------------------------------------------------*/

static void cpu_rms_norm(queue *q, dev y, dev x, dev w, int n_rows, int n, float eps)
{
    cpu_norm_args a = {y.p, NULL, x.p, w.p, n, eps, 1};
    run_items(q->b, q->b->k->rms_norm, &a, (size_t)n_rows, (size_t)n);
}

static void cpu_rms_norm_add(queue *q, dev y, dev res, dev x, dev w, int n_rows, int n, float eps, float scale)
{
    cpu_norm_args a = {y.p, res.p, x.p, w.p, n, eps, scale};
    run_items(q->b, q->b->k->rms_norm, &a, (size_t)n_rows, (size_t)n);
}

static void cpu_rope(queue *q, dev x, const step_rows *rows, int n_heads, int head_dim, const rope_params *p)
{
    cpu_rope_args a = {x.p, rows->pos.p, rows->section_pos.p, rope_view_of(p), n_heads, head_dim};
    assert(p->n_dims % 2 == 0 && p->n_dims <= head_dim);
    run_items(q->b, q->b->k->rope, &a, (size_t)rows->n_rows,
              (size_t)head_dim * (size_t)(n_heads + 20)); /* 20: sin and cos */
}

static void cpu_gated(queue *q, dev y, dev gate, int gate_stride, dev up, int up_stride, int n_rows, int n,
                      act_kind act)
{
    cpu_gated_args a = {y.p, gate.p, up.p, (size_t)gate_stride, (size_t)up_stride, n, act};
    run_items(q->b, q->b->k->gated, &a, (size_t)n_rows * ceil_div((size_t)n, GATED_SPAN),
              4 * min_size((size_t)n, GATED_SPAN));
}

static void cpu_router(queue *q, dev id, dev w, dev logits, dev expert_scale, int n_rows, int n_experts, int n_slots)
{
    cpu_router_args a = {id.p, w.p, logits.p, expert_scale.p, n_experts, n_slots, q->numerators};
    assert(n_experts <= q->lim.n_experts && n_slots <= n_experts);
    run_items(q->b, q->b->k->router, &a, (size_t)n_rows, (size_t)n_experts * (size_t)(n_slots * n_slots + 8));
}

static void cpu_experts_sum(queue *q, dev y, dev x, dev w, int n_rows, int n_slots, int n)
{
    cpu_experts_sum_args a = {y.p, x.p, w.p, n_slots, n};
    run_items(q->b, q->b->k->experts_sum, &a, (size_t)n_rows, (size_t)n_slots * (size_t)n);
}

static void cpu_add(queue *q, dev y, dev a, dev b, size_t n, float scale)
{
    cpu_elements_args args = {y.p, a.p, b.p, scale};
    run_items(q->b, q->b->k->add, &args, n, 1);
}

static void cpu_softcap(queue *q, dev x, size_t n, float cap)
{
    cpu_elements_args args = {x.p, x.p, NULL, cap};
    run_items(q->b, q->b->k->softcap, &args, n, 4);
}

static void cpu_copy_rows(queue *q, dev y, int y_stride, dev x, int x_stride, dev idx, int n_rows, int n)
{
    cpu_copy_args a = {y.p, x.p, (size_t)y_stride, (size_t)x_stride, idx.p, n};
    run_items(q->b, q->b->k->copy_rows, &a, (size_t)n_rows, (size_t)n);
}

static void cpu_add_gated(queue *q, dev y, dev a, dev b, dev gate, int n_rows, int n)
{
    cpu_add_gated_args args = {y.p, a.p, b.p, gate.p, n};
    run_items(q->b, q->b->k->add_gated, &args, (size_t)n_rows, (size_t)n);
}

/* --- encoders of pictures -------------------------------------------------------------------------*/
static void cpu_layer_norm(queue *q, dev y, dev x, dev w, dev b, int n_rows, int n, float eps)
{
    cpu_layer_norm_args a = {y.p, x.p, w.p, b.p, n, eps};
    run_items(q->b, q->b->k->layer_norm, &a, (size_t)n_rows, 2 * (size_t)n);
}

static void cpu_bias(queue *q, dev y, dev res, dev x, dev b, int n_rows, int n, bias_act act)
{
    cpu_bias_args a = {y.p, res.p, x.p, b.p, n, act};
    run_items(q->b, q->b->k->bias, &a, (size_t)n_rows, (size_t)n * (act == BIAS_PLAIN ? 1 : act == BIAS_GELU ? 20 : 4));
}

static void cpu_clamp(queue *q, dev y, dev x, size_t n, float low, float high)
{
    cpu_clamp_args a = {y.p, x.p, low, high};
    run_items(q->b, q->b->k->clamp, &a, n, 1);
}

static void cpu_lookup(queue *q, dev y, dev x, dev table, size_t n)
{
    cpu_lookup_args a = {y.p, x.p, table.p};
    run_items(q->b, q->b->k->lookup, &a, n, 1);
}

static void cpu_pool(queue *q, dev y, dev x, dev add, dev by, int n_rows, int n_each, int n, float scale)
{
    cpu_pool_args a = {y.p, x.p, add.p, by.p, n_each, n, scale};
    run_items(q->b, q->b->k->pool, &a, (size_t)n_rows, (size_t)n_each * (size_t)n);
}

/* --- recurrent layers -----------------------------------------------------------------------------*/
static void cpu_delta(queue *q, const delta_io *io, const delta_class *c, int layer, const step_rows *rows)
{
    size_t         D = (size_t)c->head_dim, n = (size_t)c->n_v_heads * D / DELTA_COLS, rows_n = (size_t)rows->n_rows;
    size_t         channels = (size_t)delta_channels(c);
    cpu_conv_args  conv     = {io->conv.p, io->x.p, io->w.p, c, layer, delta_rows_of(rows)};
    cpu_delta_args t        = {io->y.p, io->conv.p, io->a.p,   io->b.p,  io->rate.p,  io->bias.p,
                               c,       layer,      conv.rows, q->parts, PART_SCRATCH};
    _Static_assert(CPU_MAX_KEPT * DELTA_COLS * DELTA_MAX_HEAD <= PART_SCRATCH, "scratch for the kept rows of a lane");
    assert(c->n_taps <= DELTA_MAX_TAPS && D % 8 == 0 && D <= DELTA_MAX_HEAD);
    run_items(q->b, q->b->k->conv, &conv, ceil_div(channels, CONV_SPAN), rows_n * CONV_SPAN * (size_t)(c->n_taps + 8));
    run_items(q->b, q->b->k->delta_heads, &t, rows_n, 2 * channels + 64 * (size_t)c->n_v_heads);
    run_items(q->b, q->b->k->delta, &t, n, rows_n * DELTA_COLS * 3 * D);
}

static void cpu_delta_replay(queue *q, const delta_class *c, dev items, int n_items, dev places)
{
    size_t          D = (size_t)c->head_dim, L = (size_t)c->n_layers, n_rows = 0;
    cpu_replay_args t = {c, items.p, n_items, places.p};
    for (int i = 0; i < n_items; i++) n_rows += (size_t)t.item[i].n;
    run_items(q->b, q->b->k->delta_replay, &t, L * (size_t)c->n_v_heads * D / DELTA_COLS, n_rows * DELTA_COLS * D);
    run_items(q->b, q->b->k->conv_replay, &t, L * (size_t)n_items, (size_t)(delta_channels(c) * c->n_taps));
}

static void cpu_scatter_logits(queue *q, dev y, dev x, dev sel, dev map, int n_rows, int n_slots, int n, int n_vocab,
                               float below)
{
    cpu_scatter_args a = {y.p, x.p, sel.p, map.p, n_slots, n, n_vocab, below};
    run_items(q->b, q->b->k->scatter_logits, &a, (size_t)n_rows, (size_t)n_vocab + 4 * (size_t)n_slots * (size_t)n);
}

static void cpu_block_conv(queue *q, const conv_rows *c, int n_rows)
{
    run_items(q->b, q->b->k->block_conv, c, (size_t)n_rows, 2 * (size_t)c->n * (size_t)c->n_taps);
}

static void cpu_pair_logits(queue *q, const pair_rows *c, int n_rows)
{
    run_items(q->b, q->b->k->pair_logits, c, (size_t)n_rows, (size_t)c->n_vocab + (size_t)c->n_top * (size_t)c->n);
}

/* --- the paged cache ------------------------------------------------------------------------------*/

static void cpu_kv_store(queue *q, const kv_class *c, int layer, const step_rows *rows, dev k, dev v)
{
    cpu_kv_store_args a = {kv_view_of(c), layer, rows->lane.p, rows->slot.p, k.p, v.p};
    run_items(q->b, q->b->k->kv_store, &a, (size_t)rows->n_rows, (size_t)c->n_kv_heads * (size_t)c->head_dim);
    if (c->sparse.drop) {
        cpu_kv_summary_args s = {a.c, layer, rows->n_rows, a.lane, a.slot, 1};
        run_items(q->b, q->b->k->kv_summary, &s, (size_t)rows->n_rows, (size_t)c->n_kv_heads * (size_t)c->head_dim);
    }
}

static void cpu_kv_move(queue *q, const kv_class *c, dev items, int n_items, const rope_params *p)
{
    cpu_kv_move_args a = {kv_view_of(c), items.p, n_items, rope_view_of(p)};
    run_items(q->b, q->b->k->kv_move, &a, (size_t)c->n_layers * 2 * (size_t)c->n_kv_heads,
              (size_t)n_items * (size_t)c->head_dim);
    if (c->sparse.drop && n_items) {
        cpu_kv_summary_args s = {a.c, 0, n_items, &a.move->to_lane, &a.move->to, sizeof *a.move / sizeof(int32_t)};
        run_items(q->b, q->b->k->kv_summary, &s, (size_t)c->n_layers * (size_t)n_items,
                  (size_t)c->n_kv_heads * (size_t)c->head_dim);
    }
}

/* Makes a row tile of rows `row` to `end` with the range of key tiles that they see. Adds up the keys. */
static cpu_row_tile row_tile(const cpu_attention_args *a, int32_t row, int32_t end, size_t unit, size_t *n_keys)
{
    cpu_seen all = {INT32_MAX, -1};
    for (int32_t r = row; r < end; r++) {
        cpu_seen seen = cpu_row_sees(a, (size_t)r);
        if (seen.last < seen.first) continue;
        if (seen.first < all.first) all.first = seen.first;
        if (seen.last > all.last) all.last = seen.last;
        *n_keys += (size_t)(seen.last - seen.first + 1);
    }
    if (all.last < 0) return (cpu_row_tile){row, 0, 0, unit};
    return (cpu_row_tile){row, all.first / KEY_TILE, all.last / KEY_TILE - all.first / KEY_TILE + 1, unit};
}

/* Groups adjacent rows of a lane, from `row` to `all` - 1, into tiles. Returns the multiplications of all units. */
static size_t cut_rows(queue *q, cpu_attention_args *a, int32_t row, int32_t all)
{
    int    group = a->n_heads / a->c.n_kv_heads, max_rows = ROW_TILE / group > 1 ? ROW_TILE / group : 1;
    size_t unit = 0, n_keys = 0;
    a->n_tiles = a->tile_queries = 0;
    for (int32_t end; row < all; row = end) {
        for (end = row + 1; end < all && end - row < max_rows && a->lane[end] == a->lane[row];) end++;
        cpu_row_tile *t = &q->tiles[a->n_tiles++];
        *t              = row_tile(a, row, end, unit, &n_keys);
        unit += (size_t)t->n_key_tiles * (size_t)a->c.n_kv_heads;
        if (a->tile_queries < (end - row) * group) a->tile_queries = (end - row) * group;
    }
    q->tiles[a->n_tiles] = (cpu_row_tile){all, 0, 0, unit};
    a->tiles             = q->tiles;
    return 2 * n_keys * (size_t)a->n_heads * (size_t)a->c.head_dim;
}

static void zero_blind_rows(const cpu_attention_args *a)
{
    size_t width = (size_t)a->n_heads * (size_t)a->c.row_dim;
    for (int r = 0; r < a->n_rows; r++) {
        cpu_seen seen = cpu_row_sees(a, (size_t)r);
        if (seen.last < seen.first) memset(a->y + (size_t)r * width, 0, width * sizeof *a->y);
    }
}

static int32_t end_row(const cpu_attention_args *a)
{
    int i = a->n_tiles;
    while (a->tiles[i - 1].unit >= a->end) i--;
    return a->tiles[i].row;
}

static int32_t start_row(const cpu_attention_args *a)
{
    int i = a->n_tiles - 1;
    while (a->tiles[i].unit > a->first) i--;
    return a->tiles[i].row;
}

/* Runs as many units at a time as the scratch for their parts holds. */
static void run_units(queue *q, cpu_attention_args *a, size_t cost)
{
    size_t n = a->tiles[a->n_tiles].unit, part = (size_t)a->c.head_dim + PART_EXTRA;
    size_t queries = (size_t)a->tile_queries, carry = ceil_div(2 * queries, PART_EXTRA) * PART_EXTRA;
    size_t room    = (PART_SCRATCH * (size_t)q->n_threads - 2 * carry) / (queries * part);
    float *aligned = (float *)(((uintptr_t)q->parts + ALIGN - 1) / ALIGN * ALIGN);
    assert(room > 0 && PART_SCRATCH > 2 * carry);
    a->carry_in  = aligned;
    a->carry_out = aligned + carry;
    a->parts     = aligned + 2 * carry;
    for (a->first = 0; a->first < n; a->first = a->end) {
        a->end       = min_size(n, a->first + room);
        a->first_row = start_row(a);
        size_t units = a->end - a->first, each = ceil_div(cost, n);
        size_t items = (size_t)(end_row(a) - a->first_row) * (size_t)a->n_heads;
        run_grains(q->b, q->b->k->attention, a, units, units * each < SMALL_JOB ? units : ceil_div(CHUNK_JOB, each));
        run_items(q->b, q->b->k->attention_merge, a, items, ceil_div(units * queries * (size_t)a->c.head_dim, items));
        float *swap  = a->carry_in;
        a->carry_in  = a->carry_out;
        a->carry_out = swap;
    }
}

/* --- sparse attention -----------------------------------------------------------------------------*/
/* Returns the most candidate pages that a row has; 0: all rows are dense. */
static int32_t max_far_pages(const cpu_attention_args *a)
{
    int32_t max = 0;
    for (int r = 0; r < a->n_rows; r++) {
        int32_t far = sparse_far_pages(&a->c.sparse, a->pos[r]);
        if (far > max) max = far;
    }
    return max;
}

/* Chooses the pages of n rows from a->kept_row on. */
static void choose_pages(queue *q, cpu_attention_args *a, int32_t n, size_t stride)
{
    size_t          group = (size_t)(a->n_heads / a->c.n_kv_heads), pairs = (size_t)n * (size_t)a->c.n_kv_heads;
    cpu_choice_args c = {a, q->parts, q->kept, stride, ceil_div(stride, PAGE_BLOCK)};
    run_items(q->b, q->b->k->page_bounds, &c, pairs * c.n_blocks, PAGE_BLOCK * group * (size_t)a->c.head_dim);
    run_items(q->b, q->b->k->page_choice, &c, pairs, 8 * group * stride);
}

/* Runs as many rows at a time as the scratch for their choices holds. */
static void run_sparse(queue *q, cpu_attention_args *a, int32_t max_pages)
{
    size_t stride = ceil_div((size_t)max_pages, 16) * 16, room = choice_floats(&q->lim) / ((size_t)a->n_heads * stride);
    int32_t n;
    assert(room > 0);
    a->kept        = q->kept;
    a->kept_stride = stride / 16;
    for (a->kept_row = 0; a->kept_row < a->n_rows; a->kept_row += n) {
        n = (int32_t)min_size(room, (size_t)(a->n_rows - a->kept_row));
        choose_pages(q, a, n, stride);
        run_units(q, a, cut_rows(q, a, a->kept_row, a->kept_row + n));
    }
}

static void cpu_attention(queue *q, dev y, dev q_rows, int n_heads, const kv_class *c, int layer, const step_rows *rows,
                          float scale, int window)
{
    cpu_attention_args a = {.c        = kv_view_of(c),
                            .y        = y.p,
                            .q        = q_rows.p,
                            .pos      = rows->pos.p,
                            .lane     = rows->lane.p,
                            .slot     = rows->slot.p,
                            .parent   = rows->parent.p,
                            .root     = rows->root.p,
                            .last     = rows->last.p,
                            .n_rows   = rows->n_rows,
                            .n_heads  = n_heads,
                            .layer    = layer,
                            .window   = window,
                            .scale    = scale,
                            .path     = q->path,
                            .max_path = q->lim.max_rows};
    assert(n_heads % c->n_kv_heads == 0 && rows->n_rows <= q->lim.max_rows && (!c->sparse.drop || window == 0));
    int32_t max_pages = max_far_pages(&a);
    zero_blind_rows(&a);
    if (max_pages)
        run_sparse(q, &a, max_pages);
    else
        run_units(q, &a, cut_rows(q, &a, 0, a.n_rows));
}

/* --- picking --------------------------------------------------------------------------------------*/

typedef struct {
    const queue         *q;
    int32_t             *id;
    const float         *logits;
    const sample_params *params; /* NULL: greedy */
    int                  n_vocab;
} pick_args;

static sampling_candidate *candidates_of(const queue *q, int thread)
{
    return q->candidates + (size_t)thread * (size_t)q->lim.max_vocab;
}

static void pick_row(void *ctx, int row, int thread)
{
    const pick_args *a      = ctx;
    const float     *logits = a->logits + (size_t)row * (size_t)a->n_vocab;
    a->id[row] = a->params ? sampling_pick(logits, a->n_vocab, &a->params[row], candidates_of(a->q, thread))
                           : sampling_argmax(logits, a->n_vocab);
}

static void cpu_argmax(queue *q, dev id, dev logits, int n_rows, int n_vocab)
{
    pick_args a = {q, id.p, logits.p, NULL, n_vocab};
    pool_run(q->b->pool, n_rows, pick_row, &a);
}

static void cpu_sample(queue *q, dev id, dev logits, dev params, int n_rows, int n_vocab)
{
    pick_args a = {q, id.p, logits.p, params.p, n_vocab};
    assert(n_vocab <= q->lim.max_vocab);
    pool_run(q->b->pool, n_rows, pick_row, &a);
}

static void cpu_change_logits(queue *q, dev logits, int n_vocab, dev items, int n_items)
{
    (void)q;
    sampling_change(logits.p, n_vocab, items.p, n_items);
}

static void cpu_restore_logits(queue *q, dev logits, int n_vocab, dev items, int n_items)
{
    (void)q;
    sampling_restore(logits.p, n_vocab, items.p, n_items);
}

typedef struct {
    float          *logits;
    const uint64_t *masks;
    const int32_t  *rows;
    int             n_vocab;
} mask_args;

static void mask_row(void *ctx, int i, int thread)
{
    const mask_args *a = ctx;
    (void)thread;
    sampling_mask(a->logits + (size_t)a->rows[i] * (size_t)a->n_vocab, a->n_vocab,
                  a->masks + (size_t)i * sampling_mask_words(a->n_vocab));
}

static void cpu_mask_logits(queue *q, dev logits, int n_vocab, dev masks, dev rows, int n)
{
    mask_args a = {logits.p, masks.p, rows.p, n_vocab};
    pool_run(q->b->pool, n, mask_row, &a);
}

typedef struct {
    const queue   *q;
    token_logprob *out;
    const float   *logits;
    const int32_t *id;
    int            n_vocab, n_top;
} logprob_args;

static void logprob_row(void *ctx, int row, int thread)
{
    const logprob_args *a = ctx;
    sampling_logprobs(a->logits + (size_t)row * (size_t)a->n_vocab, a->n_vocab, a->id[row], a->n_top,
                      a->out + (size_t)row * (size_t)(1 + a->n_top), candidates_of(a->q, thread));
}

static void cpu_logprobs(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab, int n_top)
{
    logprob_args a = {q, out.p, logits.p, id.p, n_vocab, n_top};
    assert(n_vocab <= q->lim.max_vocab);
    pool_run(q->b->pool, n_rows, logprob_row, &a);
}

static void cpu_confidence(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab)
{
    cpu_confidence_args a = {out.p, logits.p, id.p, n_vocab};
    run_items(q->b, q->b->k->confidence, &a, (size_t)n_rows, (size_t)n_vocab * 8);
}

typedef struct {
    const queue         *q;
    token_logprob       *out;
    const float         *logits;
    const sample_params *params;
    int                  n_vocab, n_top;
    float                soft;
} top_args;

static void top_row(void *ctx, int row, int thread)
{
    const top_args *a = ctx;
    sampling_top(a->logits + (size_t)row * (size_t)a->n_vocab, a->n_vocab, &a->params[row], a->n_top, a->soft,
                 a->out + (size_t)row * (size_t)a->n_top, candidates_of(a->q, thread));
}

static void cpu_sample_top(queue *q, dev out, dev logits, dev params, int n_rows, int n_vocab, int n_top, float soft)
{
    top_args a = {q, out.p, logits.p, params.p, n_vocab, n_top, soft};
    assert(n_vocab <= q->lim.max_vocab);
    pool_run(q->b->pool, n_rows, top_row, &a);
}

/* --- opening --------------------------------------------------------------------------------------*/

static void cpu_close(ops *o)
{
    backend *b = o->state;
    pool_free(b->pool);
    mem_free(b);
    mem_free(o);
}

#ifdef __x86_64__
/* Returns whether the processor has everything that the avx2 kernels use and the system saves the wide registers. */
static bool has_avx2(void)
{
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

/* Returns the same for the vnni kernels: also AVX-512 integer dot products in 256-bit registers. */
static bool has_vnni(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

static const cpu_kernels *find_kernels(const char *isa, err *e)
{
#ifdef __x86_64__
    if ((!isa || !strcmp(isa, "vnni")) && has_vnni()) return &cpu_vnni_kernels;
    if ((!isa || !strcmp(isa, "avx2")) && has_avx2()) return &cpu_avx2_kernels;
#endif
    if (!isa || !strcmp(isa, "base")) return &cpu_base_kernels;
    if (!strcmp(isa, "vnni"))
        err_set(e, ERR_INPUT, "this processor has no AVX-512 VL, BW and VNNI, which the kernels 'vnni' need");
    else if (!strcmp(isa, "avx2"))
        err_set(e, ERR_INPUT, "this processor has no AVX2, FMA, F16C and BMI2, which the kernels 'avx2' need");
    else
        err_set(e, ERR_INPUT, "unknown CPU kernels '%.40s': use base, avx2 or vnni", isa);
    return NULL;
}

const char *cpu_ops_isa(const char *isa, err *e)
{
    const cpu_kernels *k = find_kernels(isa, e);
    return k ? k->isa : NULL;
}

static const ops TABLE = {
    .name           = "cpu",
    .kv_scales      = true,
    .kv_sparse      = true,
    .alloc          = cpu_alloc,
    .free           = cpu_free,
    .weight_load    = cpu_weight_load,
    .weight_free    = cpu_weight_free,
    .queue_new      = cpu_queue_new,
    .queue_reserve  = cpu_queue_reserve,
    .queue_free     = cpu_queue_free,
    .close          = cpu_close,
    .upload         = cpu_upload,
    .download       = cpu_download,
    .sync           = cpu_sync,
    .check          = cpu_check,
    .mark           = cpu_mark,
    .between_s      = cpu_between_s,
    .replay         = ops_no_replay,
    .record_end     = ops_no_record,
    .embed          = cpu_embed,
    .matmul         = cpu_matmul,
    .matmul_top     = cpu_matmul_top,
    .matmul_experts = cpu_matmul_experts,
    .rms_norm       = cpu_rms_norm,
    .rms_norm_add   = cpu_rms_norm_add,
    .rope           = cpu_rope,
    .kv_store       = cpu_kv_store,
    .attention      = cpu_attention,
    .kv_move        = cpu_kv_move,
    .gated          = cpu_gated,
    .router         = cpu_router,
    .experts_sum    = cpu_experts_sum,
    .add            = cpu_add,
    .add_gated      = cpu_add_gated,
    .layer_norm     = cpu_layer_norm,
    .bias           = cpu_bias,
    .clamp          = cpu_clamp,
    .lookup         = cpu_lookup,
    .pool           = cpu_pool,
    .delta          = cpu_delta,
    .delta_replay   = cpu_delta_replay,
    .softcap        = cpu_softcap,
    .copy_rows      = cpu_copy_rows,
    .argmax         = cpu_argmax,
    .change_logits  = cpu_change_logits,
    .restore_logits = cpu_restore_logits,
    .mask_logits    = cpu_mask_logits,
    .logprobs       = cpu_logprobs,
    .confidence     = cpu_confidence,
    .sample         = cpu_sample,
    .sample_top     = cpu_sample_top,
    .scatter_logits = cpu_scatter_logits,
    .block_conv     = cpu_block_conv,
    .pair_logits    = cpu_pair_logits,
};

bool cpu_ops_open_isa(ops **out, const char *isa, int n_threads, err *e)
{
    const cpu_kernels *k = find_kernels(isa, e);
    *out                 = NULL;
    if (!k) return false;
    backend *b   = xnew(backend);
    *b           = (backend){pool_new(n_threads), k};
    ops *o       = xnew(ops);
    *o           = TABLE;
    o->state     = b;
    o->kernels   = k->isa;
    o->n_threads = pool_threads(b->pool);
    *out         = o;
    return true;
}
