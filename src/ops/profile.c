#include "ops/profile.h"

#include "base/clock.h"
#include "base/mem.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ENTRIES = 512, NAME_BYTES = 64 };

typedef struct {
    char   name[NAME_BYTES]; /* op and shape */
    long   calls;
    double seconds, bytes;
} entry;

typedef struct {
    ops  *inner;
    entry entries[MAX_ENTRIES];
    int   n;
    entry other; /* ops beyond the table's size */
} profile;

struct queue {
    queue   *q; /* the inner table's queue */
    profile *p;
};

static const ops *inner_of(const ops *o) { return ((const profile *)o->state)->inner; }

/* --- timing ---------------------------------------------------------------------------------------*/
static double begin_timing(queue *q)
{
    q->p->inner->sync(q->q);
    return clock_s();
}

static entry *find_entry(profile *p, const char *name)
{
    for (int i = 0; i < p->n; i++)
        if (!strcmp(p->entries[i].name, name)) return &p->entries[i];
    if (p->n == MAX_ENTRIES) return &p->other;
    entry *x = &p->entries[p->n++];
    *x       = (entry){0};
    snprintf(x->name, sizeof x->name, "%s", name);
    return x;
}

static void end_timing(queue *q, double start, size_t bytes, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void end_timing(queue *q, double start, size_t bytes, const char *fmt, ...)
{
    char    name[NAME_BYTES];
    va_list args;
    q->p->inner->sync(q->q);
    double seconds = clock_s() - start;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    entry *x = find_entry(q->p, name);
    x->calls++;
    x->seconds += seconds;
    x->bytes += (double)bytes;
}

/* Runs the inner op between two waits. */
#define TIMED(call, bytes, ...)                                                                                        \
    do {                                                                                                               \
        const ops *o     = q->p->inner;                                                                                \
        double     start = begin_timing(q);                                                                            \
        o->call;                                                                                                       \
        end_timing(q, start, bytes, __VA_ARGS__);                                                                      \
    } while (0)

/* --- memory ---------------------------------------------------------------------------------------*/
static bool p_alloc(const ops *o, dev *out, size_t bytes, err *e)
{
    return inner_of(o)->alloc(inner_of(o), out, bytes, e);
}

static void p_free(const ops *o, dev d) { inner_of(o)->free(inner_of(o), d); }

static bool p_weight_load(const ops *o, weight **out, const weight_src *src, err *e)
{
    return inner_of(o)->weight_load(inner_of(o), out, src, e);
}

static void p_weight_free(const ops *o, weight *w) { inner_of(o)->weight_free(inner_of(o), w); }

static bool p_queue_new(const ops *o, queue **out, const queue_limits *lim, err *e)
{
    queue *q = xnew(queue);
    *q       = (queue){.p = o->state};
    *out     = NULL;
    if (!inner_of(o)->queue_new(inner_of(o), &q->q, lim, e)) {
        mem_free(q);
        return false;
    }
    *out = q;
    return true;
}

static bool p_queue_reserve(queue *q, const queue_limits *lim, err *e)
{
    return q->p->inner->queue_reserve(q->q, lim, e);
}

static void p_queue_free(queue *q)
{
    if (!q) return;
    q->p->inner->queue_free(q->q);
    mem_free(q);
}

static void p_close(ops *o)
{
    profile *p = o->state;
    ops_close(p->inner);
    mem_free(p);
    mem_free(o);
}

/* --- host and device ------------------------------------------------------------------------------*/
static void p_upload(queue *q, dev dst, const void *src, size_t bytes)
{
    TIMED(upload(q->q, dst, src, bytes), bytes, "upload");
}

static void p_download(queue *q, void *dst, dev src, size_t bytes)
{
    TIMED(download(q->q, dst, src, bytes), bytes, "download");
}

static void   p_sync(queue *q) { q->p->inner->sync(q->q); }
static void   p_mark(queue *q, int which) { q->p->inner->mark(q->q, which); }
static double p_between_s(queue *q, int from, int to) { return q->p->inner->between_s(q->q, from, to); }
static bool   p_check(queue *q, err *e) { return q->p->inner->check(q->q, e); }

/* --- matmul ---------------------------------------------------------------------------------------*/
static void p_embed(queue *q, dev y, const weight *table, dev ids, int n_rows, float scale)
{
    size_t bytes = table->bytes / (size_t)table->n_out * (size_t)n_rows;
    TIMED(embed(q->q, y, table, ids, n_rows, scale), bytes, "embed %s %d", quant_name(table->type), table->n_in);
}

static void p_matmul(queue *q, dev y, const weight *w, dev x, int n_rows)
{
    TIMED(matmul(q->q, y, w, x, n_rows), w->bytes, "matmul %s %d -> %d", quant_name(w->type), w->n_in, w->n_out);
}

static void p_matmul_top(queue *q, dev out, const weight *w, dev x, int n_rows, float cap, int n_top)
{
    TIMED(matmul_top(q->q, out, w, x, n_rows, cap, n_top), w->bytes, "matmul_top %s %d -> %d", quant_name(w->type),
          w->n_in, w->n_out);
}

static void p_matmul_experts(queue *q, dev y, const weight *w, dev x, bool x_per_slot, dev id, int n_rows, int n_slots)
{
    int    pairs = n_rows * n_slots, used = pairs < w->n_mats ? pairs : w->n_mats;
    size_t bytes = w->bytes / (size_t)w->n_mats * (size_t)used;
    TIMED(matmul_experts(q->q, y, w, x, x_per_slot, id, n_rows, n_slots), bytes, "experts %s %d -> %d x %d",
          quant_name(w->type), w->n_in, w->n_out, w->n_mats);
}

/* Times matrices of the same rows, named by their first type, n_in and the sum of their outputs. */
static void p_matmuls(queue *q, const dev *y, const weight *const *w, int n_w, dev x, int n_rows)
{
    size_t bytes = 0;
    int    n_out = 0;
    for (int i = 0; i < n_w; i++) bytes += w[i]->bytes, n_out += w[i]->n_out;
    TIMED(matmuls(q->q, y, w, n_w, x, n_rows), bytes, "matmuls %s %d -> %d (%d)", quant_name(w[0]->type), w[0]->n_in,
          n_out, n_w);
}

static bool p_gate_up(queue *q, dev y, const weight *gate, const weight *up, dev x, int n_rows, act_kind act)
{
    double start = begin_timing(q);
    if (!q->p->inner->gate_up(q->q, y, gate, up, x, n_rows, act)) return false;
    end_timing(q, start, gate->bytes + up->bytes, "gate_up %s %d -> %d", quant_name(gate->type), gate->n_in,
               gate->n_out);
    return true;
}

/* --- rows and elements ----------------------------------------------------------------------------*/
static void p_norms(queue *q, const norm_rows *c, int n_rows)
{
    TIMED(norms(q->q, c, n_rows), 0, "norms %d, %s, %d out", c->n, c->parts ? "experts" : "plain", c->n_outs);
}

static void p_sums(queue *q, const sum_rows *c, int n_rows)
{
    TIMED(sums(q->q, c, n_rows), 0, "sums %d, %s%s", c->n, c->slots.p ? "experts" : "plain", c->out.p ? ", norm" : "");
}

static void p_gated_norm(queue *q, dev y, dev x, dev w, dev gate, int n_rows, int n_heads, int n, float eps,
                         act_kind act)
{
    TIMED(gated_norm(q->q, y, x, w, gate, n_rows, n_heads, n, eps, act), 0, "gated_norm %d x %d", n_heads, n);
}

static void p_gated_heads(queue *q, dev y, dev gate, int gate_stride, dev x, int n_rows, int n_heads, int n,
                          act_kind act)
{
    TIMED(gated_heads(q->q, y, gate, gate_stride, x, n_rows, n_heads, n, act), 0, "gated_heads %d x %d", n_heads, n);
}

static void p_heads(queue *q, const head_rows *h, const step_rows *rows)
{
    TIMED(heads(q->q, h, rows), 0, "heads %d/%d x %d", h->n_heads, h->c->n_kv_heads, kv_row_dim(h->c));
}

static void p_rms_norm(queue *q, dev y, dev x, dev w, int n_rows, int n, float eps)
{
    TIMED(rms_norm(q->q, y, x, w, n_rows, n, eps), 0, "rms_norm %d", n);
}

static void p_rms_norm_add(queue *q, dev y, dev res, dev x, dev w, int n_rows, int n, float eps, float scale)
{
    TIMED(rms_norm_add(q->q, y, res, x, w, n_rows, n, eps, scale), 0, "rms_norm_add %d", n);
}

static void p_rope(queue *q, dev x, const step_rows *rows, int n_heads, int head_dim, const rope_params *p)
{
    TIMED(rope(q->q, x, rows, n_heads, head_dim, p), 0, "rope %d x %d", n_heads, head_dim);
}

static void p_gated(queue *q, dev y, dev gate, int gate_stride, dev up, int up_stride, int n_rows, int n, act_kind act)
{
    TIMED(gated(q->q, y, gate, gate_stride, up, up_stride, n_rows, n, act), 0, "gated %d", n);
}

static void p_router(queue *q, dev id, dev w, dev logits, dev expert_scale, int n_rows, int n_experts, int n_slots)
{
    TIMED(router(q->q, id, w, logits, expert_scale, n_rows, n_experts, n_slots), 0, "router %d of %d", n_slots,
          n_experts);
}

static void p_experts_sum(queue *q, dev y, dev x, dev w, int n_rows, int n_slots, int n)
{
    TIMED(experts_sum(q->q, y, x, w, n_rows, n_slots, n), 0, "experts_sum %d", n);
}

static void p_add(queue *q, dev y, dev a, dev b, size_t n, float scale)
{
    TIMED(add(q->q, y, a, b, n, scale), 0, "add");
}

static void p_softcap(queue *q, dev x, size_t n, float cap) { TIMED(softcap(q->q, x, n, cap), 0, "softcap"); }

static void p_copy_rows(queue *q, dev y, int y_stride, dev x, int x_stride, dev idx, int n_rows, int n)
{
    TIMED(copy_rows(q->q, y, y_stride, x, x_stride, idx, n_rows, n), 0, "copy_rows %d", n);
}

/* --- the paged cache ------------------------------------------------------------------------------*/
static void p_kv_store(queue *q, const kv_class *c, int layer, const step_rows *rows, dev k, dev v)
{
    TIMED(kv_store(q->q, c, layer, rows, k, v), 0, "kv_store %d x %d", c->n_kv_heads, kv_row_dim(c));
}

static void p_attention(queue *q, dev y, dev q_rows, int n_heads, const kv_class *c, int layer, const step_rows *rows,
                        float scale, int window)
{
    TIMED(attention(q->q, y, q_rows, n_heads, c, layer, rows, scale, window), 0, "attention %d/%d x %d, window %d",
          n_heads, c->n_kv_heads, kv_row_dim(c), window);
}

static void p_kv_move(queue *q, const kv_class *c, dev items, int n_items, const rope_params *p)
{
    TIMED(kv_move(q->q, c, items, n_items, p), 0, "kv_move");
}

/* --- encoders of pictures -------------------------------------------------------------------------*/
static void p_layer_norm(queue *q, dev y, dev x, dev w, dev b, int n_rows, int n, float eps)
{
    TIMED(layer_norm(q->q, y, x, w, b, n_rows, n, eps), 0, "layer_norm %d", n);
}

static void p_bias(queue *q, dev y, dev res, dev x, dev b, int n_rows, int n, bias_act act)
{
    TIMED(bias(q->q, y, res, x, b, n_rows, n, act), 0, "bias %d", n);
}

static void p_clamp(queue *q, dev y, dev x, size_t n, float low, float high)
{
    TIMED(clamp(q->q, y, x, n, low, high), 0, "clamp");
}

static void p_lookup(queue *q, dev y, dev x, dev table, size_t n) { TIMED(lookup(q->q, y, x, table, n), 0, "lookup"); }

static void p_pool(queue *q, dev y, dev x, dev add, dev by, int n_rows, int n_each, int n, float scale)
{
    TIMED(pool(q->q, y, x, add, by, n_rows, n_each, n, scale), 0, "pool %d x %d", n_each, n);
}

/* --- recurrent layers -----------------------------------------------------------------------------*/
static void p_add_gated(queue *q, dev y, dev a, dev b, dev gate, int n_rows, int n)
{
    TIMED(add_gated(q->q, y, a, b, gate, n_rows, n), 0, "add_gated %d", n);
}

static void p_delta(queue *q, const delta_io *io, const delta_class *c, int layer, const step_rows *rows)
{
    TIMED(delta(q->q, io, c, layer, rows), 0, "delta %d/%d x %d", c->n_v_heads, c->n_k_heads, c->head_dim);
}

static void p_delta_replay(queue *q, const delta_class *c, dev items, int n_items, dev places)
{
    TIMED(delta_replay(q->q, c, items, n_items, places), 0, "delta_replay");
}

/* --- picking --------------------------------------------------------------------------------------*/
static void p_argmax(queue *q, dev id, dev logits, int n_rows, int n_vocab)
{
    TIMED(argmax(q->q, id, logits, n_rows, n_vocab), 0, "argmax %d", n_vocab);
}

static void p_change_logits(queue *q, dev logits, int n_vocab, dev items, int n_items)
{
    TIMED(change_logits(q->q, logits, n_vocab, items, n_items), 0, "change_logits");
}

static void p_restore_logits(queue *q, dev logits, int n_vocab, dev items, int n_items)
{
    TIMED(restore_logits(q->q, logits, n_vocab, items, n_items), 0, "restore_logits");
}

static void p_mask_logits(queue *q, dev logits, int n_vocab, dev masks, dev rows, int n)
{
    TIMED(mask_logits(q->q, logits, n_vocab, masks, rows, n), 0, "mask_logits %d", n_vocab);
}

static void p_logprobs(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab, int n_top)
{
    TIMED(logprobs(q->q, out, logits, id, n_rows, n_vocab, n_top), 0, "logprobs %d", n_vocab);
}

static void p_confidence(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab)
{
    TIMED(confidence(q->q, out, logits, id, n_rows, n_vocab), 0, "confidence %d", n_vocab);
}

static void p_sample(queue *q, dev id, dev logits, dev params, int n_rows, int n_vocab)
{
    TIMED(sample(q->q, id, logits, params, n_rows, n_vocab), 0, "sample %d", n_vocab);
}

static void p_sample_top(queue *q, dev out, dev logits, dev params, int n_rows, int n_vocab, int n_top, float soft)
{
    TIMED(sample_top(q->q, out, logits, params, n_rows, n_vocab, n_top, soft), 0, "sample_top %d", n_vocab);
}

static void p_scatter_logits(queue *q, dev y, dev x, dev sel, dev map, int n_rows, int n_slots, int n, int n_vocab,
                             float below)
{
    TIMED(scatter_logits(q->q, y, x, sel, map, n_rows, n_slots, n, n_vocab, below), 0, "scatter_logits %d", n_vocab);
}

static void p_block_conv(queue *q, const conv_rows *c, int n_rows)
{
    TIMED(block_conv(q->q, c, n_rows), 0, "block_conv %d x %d", c->n_taps, c->n);
}

static void p_pair_logits(queue *q, const pair_rows *c, int n_rows)
{
    TIMED(pair_logits(q->q, c, n_rows), 0, "pair_logits %d", c->n_vocab);
}

static const ops TABLE = {
    .name           = "profile",
    .alloc          = p_alloc,
    .free           = p_free,
    .weight_load    = p_weight_load,
    .weight_free    = p_weight_free,
    .queue_new      = p_queue_new,
    .queue_reserve  = p_queue_reserve,
    .queue_free     = p_queue_free,
    .close          = p_close,
    .upload         = p_upload,
    .download       = p_download,
    .sync           = p_sync,
    .check          = p_check,
    .mark           = p_mark,
    .between_s      = p_between_s,
    .replay         = ops_no_replay,
    .record_end     = ops_no_record,
    .embed          = p_embed,
    .matmul         = p_matmul,
    .matmul_experts = p_matmul_experts,
    .rms_norm       = p_rms_norm,
    .rms_norm_add   = p_rms_norm_add,
    .rope           = p_rope,
    .kv_store       = p_kv_store,
    .attention      = p_attention,
    .kv_move        = p_kv_move,
    .gated          = p_gated,
    .router         = p_router,
    .experts_sum    = p_experts_sum,
    .add            = p_add,
    .add_gated      = p_add_gated,
    .layer_norm     = p_layer_norm,
    .bias           = p_bias,
    .clamp          = p_clamp,
    .lookup         = p_lookup,
    .pool           = p_pool,
    .delta          = p_delta,
    .delta_replay   = p_delta_replay,
    .softcap        = p_softcap,
    .copy_rows      = p_copy_rows,
    .argmax         = p_argmax,
    .change_logits  = p_change_logits,
    .restore_logits = p_restore_logits,
    .mask_logits    = p_mask_logits,
    .logprobs       = p_logprobs,
    .confidence     = p_confidence,
    .sample         = p_sample,
    .sample_top     = p_sample_top,
    .scatter_logits = p_scatter_logits,
    .block_conv     = p_block_conv,
    .pair_logits    = p_pair_logits,
};

static bool p_asks_lanes(queue *q, const kv_class *c, int n_rows) { return q->p->inner->asks_lanes(q->q, c, n_rows); }

ops *ops_profile(ops *inner)
{
    ops     *o      = xnew(ops);
    profile *p      = xnew(profile);
    p->inner        = inner;
    p->other        = (entry){.name = "other"};
    *o              = TABLE;
    o->state        = p;
    o->kernels      = inner->kernels;
    o->n_threads    = inner->n_threads;
    o->kv_scales    = inner->kv_scales;
    o->kv_sparse    = inner->kv_sparse;
    o->f16_heads    = inner->f16_heads;
    o->runs_later   = inner->runs_later;
    o->default_rows = inner->default_rows;
    if (inner->matmul_top) o->matmul_top = p_matmul_top;
    if (inner->matmuls) o->matmuls = p_matmuls;
    if (inner->gate_up) o->gate_up = p_gate_up;
    if (inner->norms) o->norms = p_norms;
    if (inner->heads) o->heads = p_heads;
    if (inner->sums) o->sums = p_sums;
    if (inner->gated_norm) o->gated_norm = p_gated_norm;
    if (inner->gated_heads) o->gated_heads = p_gated_heads;
    if (inner->asks_lanes) o->asks_lanes = p_asks_lanes;
    return o;
}

/* --- the result -----------------------------------------------------------------------------------*/
static profile *profile_of(const ops *o)
{
    assert(o->close == p_close);
    return o->state;
}

void ops_profile_clear(const ops *o)
{
    profile *p = profile_of(o);
    p->n       = 0;
    p->other   = (entry){.name = "other"};
}

static int longer_first(const void *a, const void *b)
{
    double x = ((const entry *)a)->seconds, y = ((const entry *)b)->seconds;
    return (x < y) - (x > y);
}

/* roof: bytes per second; 0: not known */
static void print_entry(const entry *x, double total, double roof, FILE *to)
{
    fprintf(to, "%-44s %7ld %10.3f %9.2f %5.1f%%", x->name, x->calls, 1e3 * x->seconds,
            1e6 * x->seconds / (double)x->calls, 100 * x->seconds / total);
    if (x->bytes > 0) fprintf(to, " %9.3f %8.1f", 1e-6 * x->bytes / (double)x->calls, 1e-9 * x->bytes / x->seconds);
    if (x->bytes > 0 && roof > 0) fprintf(to, " %5.1f%%", 100 * x->bytes / x->seconds / roof);
    fprintf(to, "\n");
}

void ops_profile_print(const ops *o, double roof, FILE *to)
{
    profile *p     = profile_of(o);
    double   total = p->other.seconds;
    long     calls = p->other.calls;
    qsort(p->entries, (size_t)p->n, sizeof *p->entries, longer_first);
    for (int i = 0; i < p->n; i++) total += p->entries[i].seconds, calls += p->entries[i].calls;
    fprintf(to, "%-44s %7s %10s %9s %6s %9s %8s%s\n", "op", "calls", "ms", "us/call", "share", "MB/call", "GB/s",
            roof > 0 ? "   roof" : "");
    for (int i = 0; i < p->n; i++) print_entry(&p->entries[i], total, roof, to);
    if (p->other.calls) print_entry(&p->other, total, roof, to);
    fprintf(to, "%-44s %7ld %10.3f\n", "all", calls, 1e3 * total);
}
