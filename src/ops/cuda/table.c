/* The ops: one queue is one stream, and each op is a launch or two on it. */
#include "base/fault.h"
#include "base/mem.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/graph.h"

#include <assert.h>
#include <string.h>

enum {
    RING_BYTES    = 1 << 20, /* uploads wait here, so that their source may change at once; two halves */
    RING_ALIGN    = 64,
    LANDING_BYTES = 256 << 10, /* downloads land here, pinned, and go on to their place at the next sync */
    MAX_LANDED    = 64,
    PARTIAL_BYTES = 32 << 20, /* of attention's tiles, see below */
    SPLIT_HEADS   = 512,      /* (row, head) pairs below this leave multiprocessors idle: their tiles go side by side */
};

/* What grows with the limits. */
typedef struct {
    cuda_xblock *x;      /* [max_rows * max(1, slots)][max_in / 32] */
    int32_t     *order;  /* [max_rows * slots]: pairs by expert */
    cuda_run    *run;    /* [max_runs] */
    double      *scores; /* [PICK_BLOCKS][max_vocab] */
} scratch;

/* What scratch holds, so that it need not be made again: the quantised form of rows that several matrices multiply, the
 * order of pairs that several stacks of experts share. Known by address; whoever writes there says so (wrote). */
typedef struct {
    const char *of; /* NULL: nothing */
    size_t      bytes;
    int         a, b; /* rows and n_in; pairs and matrices */
} made;

typedef struct {
    void       *to;
    const char *from; /* in the landing */
    size_t      bytes;
} landed;

struct queue {
    const backend *b;
    queue_limits   lim;
    scratch        s;
    cudaStream_t   stream;
    float         *partial;
    made           x, order;  /* in s.x; in s.order and s.run */
    bool           quantises; /* some weight did */
    char          *ring;      /* pinned */
    int            half;      /* of the ring that is being filled */
    size_t         half_used; /* bytes */
    cudaEvent_t    sent[2];   /* what lay in a half has left it */
    cudaEvent_t    mark[QUEUE_MARKS];
    char          *landing; /* pinned */
    size_t         landing_used;
    landed         landed[MAX_LANDED]; /* downloads since the last sync */
    int            n_landed;
    graph_cache    graphs;
    cudaError_t    error;  /* the first */
    const char    *failed; /* in which op */
};

/* --- queues ---------------------------------------------------------------------------------------*/

/* While a run is recorded, its failure is not yet the queue's: it is launched plainly then. */
static void note(queue *q, const char *op, cudaError_t status)
{
    if (q->graphs.recording && status != cudaSuccess) q->graphs.error = status;
    if (status == cudaSuccess || q->error != cudaSuccess || q->graphs.recording) return;
    q->error  = status;
    q->failed = op;
}

/* The stream, ready for a launch from this thread. */
static cudaStream_t on(const queue *q)
{
    cudaSetDevice(q->b->device);
    return q->stream;
}

static void wrote(queue *q, const void *p, size_t bytes)
{
    made *all[] = {&q->x, &q->order};
    for (size_t i = 0; i < COUNT(all); i++)
        if ((const char *)p < all[i]->of + all[i]->bytes && all[i]->of < (const char *)p + bytes) *all[i] = (made){0};
}

static void wrote_f32(queue *q, dev y, int n_rows, int n) { wrote(q, y.p, (size_t)n_rows * (size_t)n * sizeof(float)); }

/* Between runs of ops nothing is known: a replayed one does not pass through here. */
static void forget_made(queue *q) { q->x = q->order = (made){0}; }

/* Whether scratch holds this; from now on it does. */
static bool is_made(made *m, const void *of, size_t bytes, int a, int b)
{
    bool same = m->of == of && m->bytes == bytes && m->a == a && m->b == b;
    *m        = (made){of, bytes, a, b};
    return same;
}

static size_t max_pairs(const queue_limits *l)
{
    return (size_t)l->max_rows * (size_t)(l->max_expert_slots > 1 ? l->max_expert_slots : 1);
}

static int max_runs(int n_pairs, int n_mats) { return n_pairs / RUN_PAIRS + n_mats; }

static void drop_scratch(const backend *b, scratch *s)
{
    cuda_drop(b, s->x);
    cuda_drop(b, s->order);
    cuda_drop(b, s->run);
    cuda_drop(b, s->scores);
    *s = (scratch){0};
}

static bool take_scratch(const backend *b, scratch *s, const queue_limits *l, err *e)
{
    static const char what[] = "the scratch of steps";
    size_t            pairs  = max_pairs(l), blocks, vocab;
    size_t            runs   = pairs / RUN_PAIRS + (size_t)l->n_experts;
    *s                       = (scratch){0};
    if (!size_mul(&blocks, pairs, ((size_t)l->max_in + QK - 1) / QK) || !size_mul(&blocks, blocks, sizeof *s->x) ||
        !size_mul(&vocab, PICK_BLOCKS * sizeof(double), (size_t)l->max_vocab))
        return err_set(e, ERR_UNAVAILABLE, "there is no memory for steps of %d rows", l->max_rows);
    if (cuda_take(b, &s->x, blocks, what, e) && cuda_take(b, &s->order, pairs * sizeof *s->order, what, e) &&
        cuda_take(b, &s->run, runs * sizeof *s->run, what, e) && cuda_take(b, &s->scores, vocab, what, e))
        return true;
    drop_scratch(b, s);
    return false;
}

static void op_queue_free(queue *q)
{
    if (!q) return;
    cudaSetDevice(q->b->device);
    if (q->stream) graph_forget(&q->graphs, q->stream);
    drop_scratch(q->b, &q->s);
    cuda_drop(q->b, q->partial);
    if (q->ring) cudaFreeHost(q->ring);
    if (q->landing) cudaFreeHost(q->landing);
    for (int i = 0; i < 2; i++)
        if (q->sent[i]) cudaEventDestroy(q->sent[i]);
    for (int i = 0; i < QUEUE_MARKS; i++)
        if (q->mark[i]) cudaEventDestroy(q->mark[i]);
    if (q->stream) cudaStreamDestroy(q->stream);
    mem_free(q);
}

static bool open_stream(queue *q, err *e)
{
    static const char doing[] = "making a queue";
    void             *ring = NULL, *landing = NULL;
    if (fault_now()) return err_set(e, ERR_UNAVAILABLE, "there is no memory for a queue");
    if (!cuda_ok(cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking), ERR_UNAVAILABLE, doing, e)) return false;
    for (int i = 0; i < 2; i++)
        if (!cuda_ok(cudaEventCreateWithFlags(&q->sent[i], cudaEventDisableTiming), ERR_UNAVAILABLE, doing, e))
            return false;
    for (int i = 0; i < QUEUE_MARKS; i++)
        if (!cuda_ok(cudaEventCreateWithFlags(&q->mark[i], cudaEventDefault), ERR_UNAVAILABLE, doing, e)) return false;
    if (!cuda_ok(cudaHostAlloc(&ring, RING_BYTES, cudaHostAllocDefault), ERR_UNAVAILABLE, doing, e)) return false;
    q->ring = ring;
    if (!cuda_ok(cudaHostAlloc(&landing, LANDING_BYTES, cudaHostAllocDefault), ERR_UNAVAILABLE, doing, e)) return false;
    q->landing = landing;
    return true;
}

static bool op_queue_new(const ops *o, queue **out, const queue_limits *l, err *e)
{
    const backend *b = o->state;
    queue         *q = mem_try(sizeof *q);
    *out             = NULL;
    if (!q) return err_set(e, ERR_UNAVAILABLE, "there is no memory for a queue");
    cudaSetDevice(b->device);
    *q = (queue){.b = b, .lim = *l};
    if (!open_stream(q, e) || !take_scratch(b, &q->s, l, e) ||
        !cuda_take(b, &q->partial, PARTIAL_BYTES, "the scratch of attention", e)) {
        op_queue_free(q);
        return false;
    }
    *out = q;
    return true;
}

static bool op_queue_reserve(queue *q, const queue_limits *l, err *e)
{
    queue_limits all = queue_limits_max(&q->lim, l);
    scratch      s;
    graph_forget(&q->graphs, on(q));
    forget_made(q);
    if (!memcmp(&all, &q->lim, sizeof all)) return true;
    if (!take_scratch(q->b, &s, &all, e)) return false;
    drop_scratch(q->b, &q->s);
    q->s   = s;
    q->lim = all;
    return true;
}

/* --- host and device ------------------------------------------------------------------------------*/

static bool op_alloc(const ops *o, dev *out, size_t bytes, err *e)
{
    out->p = NULL;
    return cuda_take(o->state, &out->p, bytes, "a buffer", e);
}

static void op_free(const ops *o, dev d) { cuda_drop(o->state, d.p); }

/* Room for `bytes` in the ring. Entering a half waits until what was there before has left. */
static char *ring_room(queue *q, size_t bytes)
{
    size_t half = RING_BYTES / 2;
    if (half - q->half_used < bytes) {
        note(q, "upload", cudaEventRecord(q->sent[q->half], q->stream));
        q->half = 1 - q->half;
        note(q, "upload", cudaEventSynchronize(q->sent[q->half]));
        q->half_used = 0;
    }
    char *room = q->ring + (size_t)q->half * half + q->half_used;
    bytes      = (bytes + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
    q->half_used += bytes;
    return room;
}

/* Large blocks go straight: the runtime then returns when it has copied them. */
static void op_upload(queue *q, dev dst, const void *src, size_t bytes)
{
    assert(!q->graphs.recording);
    if (!bytes) return;
    wrote(q, dst.p, bytes);
    cudaStream_t s = on(q);
    if (bytes <= RING_BYTES / 2) {
        char *room = ring_room(q, bytes);
        memcpy(room, src, bytes);
        src = room;
    }
    note(q, "upload", cudaMemcpyAsync(dst.p, src, bytes, cudaMemcpyHostToDevice, s));
}

/* What does not fit the landing goes straight, and the runtime waits for it. */
static void op_download(queue *q, void *dst, dev src, size_t bytes)
{
    assert(!q->graphs.recording);
    if (!bytes) return;
    void *to = dst;
    if (q->n_landed < MAX_LANDED && LANDING_BYTES - q->landing_used >= bytes) {
        to                       = q->landing + q->landing_used;
        q->landed[q->n_landed++] = (landed){dst, to, bytes};
        q->landing_used += bytes;
    }
    note(q, "download", cudaMemcpyAsync(to, src.p, bytes, cudaMemcpyDeviceToHost, on(q)));
}

static void op_sync(queue *q)
{
    assert(!q->graphs.recording);
    note(q, "a step", cudaStreamSynchronize(on(q)));
    forget_made(q); /* buffers may come and go now */
    for (int i = 0; i < q->n_landed; i++) memcpy(q->landed[i].to, q->landed[i].from, q->landed[i].bytes);
    q->n_landed     = 0;
    q->landing_used = 0;
}

static bool op_check(queue *q, err *e)
{
    return q->error == cudaSuccess || cuda_ok(q->error, ERR_UNAVAILABLE, q->failed, e);
}

static void op_mark(queue *q, int which) { note(q, "a mark", cudaEventRecord(q->mark[which], on(q))); }

static double op_between_s(queue *q, int from, int to)
{
    float ms = 0;
    note(q, "a mark", cudaEventElapsedTime(&ms, q->mark[from], q->mark[to]));
    return 1e-3 * (double)ms;
}

static bool op_replay(queue *q, uint64_t key)
{
    cudaError_t status;
    forget_made(q);
    bool there = graph_replay(&q->graphs, on(q), key, &status);
    note(q, "a recorded step", status);
    return there;
}

static bool op_record_end(queue *q)
{
    forget_made(q);
    return graph_record_end(&q->graphs, on(q));
}

/* --- matmul ---------------------------------------------------------------------------------------*/

static const cuda_weight *packed(const weight *w) { return (const cuda_weight *)w; }

static void op_embed(queue *q, dev y, const weight *table, dev ids, int n_rows, float scale)
{
    wrote_f32(q, y, n_rows, table->n_in);
    if (n_rows > 0) note(q, "embed", cuda_embed(on(q), y.p, packed(table), ids.p, n_rows, scale));
}

static cuda_matmul_args matmul_args(const weight *w, dev y, int n_pairs, int pairs_to_x)
{
    return (cuda_matmul_args){.data       = packed(w)->data,
                              .row_bytes  = packed(w)->row_bytes,
                              .n_in       = w->n_in,
                              .n_out      = w->n_out,
                              .y          = y.p,
                              .n_pairs    = n_pairs,
                              .pairs_to_x = pairs_to_x};
}

/* The rows themselves, or their quantised form in the queue's scratch. */
static const void *prepare_x(queue *q, const weight *w, const float *x, int n_rows)
{
    size_t n_blocks = (size_t)w->n_in / QK;
    if (quant_is_float(packed(w)->form)) return x;
    assert(w->n_in <= q->lim.max_in);
    q->quantises = true;
    if (!is_made(&q->x, x, (size_t)n_rows * (size_t)w->n_in * sizeof *x, n_rows, w->n_in))
        note(q, "quantise", cuda_quantise(on(q), q->s.x, x, (size_t)n_rows * n_blocks));
    return q->s.x;
}

static void op_matmul(queue *q, dev y, const weight *w, dev x, int n_rows)
{
    cuda_matmul_args a = matmul_args(w, y, n_rows, 1);
    assert(n_rows <= q->lim.max_rows);
    if (n_rows < 1) return;
    a.x = prepare_x(q, w, x.p, n_rows);
    note(q, "matmul", cuda_matmul(on(q), packed(w)->form, &a));
    wrote_f32(q, y, n_rows, w->n_out);
}

/* One row's experts differ; those of several rows are sorted, so that a matrix is read once for up to RUN_PAIRS rows. */
static void op_matmul_experts(queue *q, dev y, const weight *w, dev x, bool x_per_slot, dev id, int n_rows, int n_slots)
{
    int              n_pairs = n_rows * n_slots;
    cuda_matmul_args a       = matmul_args(w, y, n_pairs, x_per_slot ? 1 : n_slots);
    assert(n_rows <= q->lim.max_rows && n_slots <= q->lim.max_expert_slots && w->n_mats <= q->lim.n_experts);
    if (n_pairs < 1) return;
    a.id = id.p;
    a.x  = prepare_x(q, w, x.p, x_per_slot ? n_pairs : n_rows);
    if (n_rows > 1) {
        a.order  = q->s.order;
        a.run    = q->s.run;
        a.n_runs = max_runs(n_pairs, w->n_mats);
        if (!is_made(&q->order, id.p, (size_t)n_pairs * sizeof(int32_t), n_pairs, w->n_mats))
            note(q, "group_pairs", cuda_group_pairs(on(q), q->s.order, q->s.run, a.n_runs, id.p, n_pairs, w->n_mats));
    }
    note(q, "matmul_experts", cuda_matmul(on(q), packed(w)->form, &a));
    wrote_f32(q, y, n_pairs, w->n_out);
}

/* --- rows and elements ----------------------------------------------------------------------------*/

/* Rows that are made now and multiplied soon are quantised on the way: where to. */
static cuda_xblock *room_for_x(queue *q, dev y, int n_rows, int n)
{
    if (!q->quantises || n_rows < 1 || n % QK || n > q->lim.max_in || (size_t)n_rows > max_pairs(&q->lim)) return NULL;
    is_made(&q->x, y.p, (size_t)n_rows * (size_t)n * sizeof(float), n_rows, n);
    return q->s.x;
}

/* More rows than those in scratch are heads, which no matrix multiplies: what is there may still be wanted. */
static void op_rms_norm(queue *q, dev y, dev x, dev w, int n_rows, int n, float eps)
{
    wrote_f32(q, y, n_rows, n);
    cuda_xblock *to = q->x.of && n_rows > q->x.a ? NULL : room_for_x(q, y, n_rows, n);
    if (n_rows > 0) note(q, "rms_norm", cuda_rms_norm(on(q), y.p, to, NULL, x.p, w.p, n_rows, n, eps, 1));
}

static void op_rms_norm_add(queue *q, dev y, dev res, dev x, dev w, int n_rows, int n, float eps, float scale)
{
    wrote_f32(q, y, n_rows, n);
    if (n_rows > 0) note(q, "rms_norm_add", cuda_rms_norm(on(q), y.p, NULL, res.p, x.p, w.p, n_rows, n, eps, scale));
}

static void op_rope(queue *q, dev x, const step_rows *rows, int n_heads, int head_dim, dev freq)
{
    wrote_f32(q, x, rows->n_rows, n_heads * head_dim);
    if (rows->n_rows > 0) note(q, "rope", cuda_rope(on(q), x.p, rows->pos.p, freq.p, rows->n_rows, n_heads, head_dim));
}

static void op_gated(queue *q, dev y, dev gate, int gate_stride, dev up, int up_stride, int n_rows, int n, act_kind act)
{
    wrote_f32(q, y, n_rows, n);
    cuda_xblock *to = room_for_x(q, y, n_rows, n);
    if (n_rows > 0) note(q, "gated", cuda_gated(on(q), y.p, to, gate.p, gate_stride, up.p, up_stride, n_rows, n, act));
}

static void op_router(queue *q, dev id, dev w, dev logits, dev expert_scale, int n_rows, int n_experts, int n_slots)
{
    assert(n_slots <= n_experts);
    wrote_f32(q, id, n_rows, n_slots);
    wrote_f32(q, w, n_rows, n_slots);
    if (n_rows > 0)
        note(q, "router", cuda_router(on(q), id.p, w.p, logits.p, expert_scale.p, n_rows, n_experts, n_slots));
}

static void op_experts_sum(queue *q, dev y, dev x, dev w, int n_rows, int n_slots, int n)
{
    wrote_f32(q, y, n_rows, n);
    if (n_rows > 0) note(q, "experts_sum", cuda_experts_sum(on(q), y.p, x.p, w.p, n_rows, n_slots, n));
}

static void op_add(queue *q, dev y, dev a, dev b, size_t n, float scale)
{
    wrote(q, y.p, n * sizeof(float));
    if (n) note(q, "add", cuda_add(on(q), y.p, a.p, b.p, n, scale));
}

static void op_softcap(queue *q, dev x, size_t n, float cap)
{
    wrote(q, x.p, n * sizeof(float));
    if (n) note(q, "softcap", cuda_softcap(on(q), x.p, n, cap));
}

static void op_copy_rows(queue *q, dev y, int y_stride, dev x, int x_stride, dev idx, int n_rows, int n)
{
    wrote_f32(q, y, n_rows, y_stride > n ? y_stride : n);
    if (n_rows > 0 && n > 0)
        note(q, "copy_rows", cuda_copy_rows(on(q), y.p, y_stride, x.p, x_stride, idx.p, n_rows, n));
}

/* --- the paged cache ------------------------------------------------------------------------------*/

static void op_kv_store(queue *q, const kv_class *c, int layer, const step_rows *rows, dev k, dev v)
{
    kv_view cache = kv_view_of(c);
    if (rows->n_rows > 0)
        note(q, "kv_store", cuda_kv_store(on(q), &cache, layer, rows->lane.p, rows->slot.p, k.p, v.p, rows->n_rows));
}

static void op_kv_move(queue *q, const kv_class *c, dev items, int n_items, dev freq)
{
    kv_view cache = kv_view_of(c);
    if (n_items > 0) note(q, "kv_move", cuda_kv_move(on(q), &cache, items.p, n_items, freq.p));
}

/* Whether tiles go side by side follows from shapes alone, so that a captured launch stays right as a sequence grows. */
static bool split_tiles(const cuda_attention_args *a)
{
    size_t heads = (size_t)a->n_rows * (size_t)a->n_heads;
    size_t bytes = heads * (size_t)a->n_tiles * (size_t)(2 + a->c.head_dim) * sizeof(float);
    return heads < SPLIT_HEADS && a->n_tiles > 1 && bytes <= PARTIAL_BYTES;
}

static void op_attention(queue *q, dev y, dev q_rows, int n_heads, const kv_class *c, int layer, const step_rows *rows,
                         float scale, int window)
{
    cuda_attention_args a = {.c       = kv_view_of(c),
                             .y       = y.p,
                             .q       = q_rows.p,
                             .pos     = rows->pos.p,
                             .lane    = rows->lane.p,
                             .slot    = rows->slot.p,
                             .parent  = rows->parent.p,
                             .root    = rows->root.p,
                             .last    = rows->last.p,
                             .n_rows  = rows->n_rows,
                             .n_heads = n_heads,
                             .layer   = layer,
                             .window  = window,
                             .scale   = scale,
                             .n_tiles = (c->table_stride * KV_PAGE + TILE_KEYS - 1) / TILE_KEYS};
    assert(n_heads % c->n_kv_heads == 0 && c->head_dim <= OPS_MAX_HEAD_DIM);
    if (rows->n_rows < 1) return;
    wrote_f32(q, y, rows->n_rows, n_heads * c->head_dim);
    if (c->head_dim % QK == 0) a.quantised = room_for_x(q, y, rows->n_rows, n_heads * c->head_dim);
    if (split_tiles(&a)) a.partial = q->partial;
    note(q, "attention", cuda_attention(on(q), &a));
}

/* --- picking --------------------------------------------------------------------------------------*/

static void op_argmax(queue *q, dev id, dev logits, int n_rows, int n_vocab)
{
    wrote_f32(q, id, n_rows, 1);
    if (n_rows > 0) note(q, "argmax", cuda_argmax(on(q), id.p, logits.p, n_rows, n_vocab));
}

static void op_sample(queue *q, dev id, dev logits, dev params, int n_rows, int n_vocab)
{
    wrote_f32(q, id, n_rows, 1);
    if (n_rows > 0) note(q, "sample", cuda_sample(on(q), id.p, logits.p, params.p, n_rows, n_vocab));
}

static void op_sample_top(queue *q, dev out, dev logits, dev params, int n_rows, int n_vocab, int n_top, float soft)
{
    assert(n_vocab <= q->lim.max_vocab && n_top <= SAMPLE_TOP_MAX && soft > 0);
    forget_made(q);
    if (n_rows > 0)
        note(q, "sample_top",
             cuda_sample_top(on(q), out.p, logits.p, params.p, q->s.scores, n_rows, n_vocab, n_top, soft));
}

static void op_change_logits(queue *q, dev logits, int n_vocab, dev items, int n_items)
{
    forget_made(q);
    if (n_items > 0) note(q, "change_logits", cuda_change_logits(on(q), logits.p, n_vocab, items.p, n_items));
}

static void op_restore_logits(queue *q, dev logits, int n_vocab, dev items, int n_items)
{
    forget_made(q);
    if (n_items > 0) note(q, "restore_logits", cuda_restore_logits(on(q), logits.p, n_vocab, items.p, n_items));
}

static void op_mask_logits(queue *q, dev logits, int n_vocab, dev masks, dev rows, int n)
{
    forget_made(q);
    if (n > 0) note(q, "mask_logits", cuda_mask_logits(on(q), logits.p, n_vocab, masks.p, rows.p, n));
}

static void op_logprobs(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab, int n_top)
{
    forget_made(q);
    if (n_rows > 0) note(q, "logprobs", cuda_logprobs(on(q), out.p, logits.p, id.p, n_rows, n_vocab, n_top));
}

static void op_scatter_logits(queue *q, dev y, dev x, dev sel, dev map, int n_rows, int n_slots, int n, int n_vocab,
                              float below)
{
    forget_made(q);
    if (n_rows > 0)
        note(q, "scatter_logits",
             cuda_scatter_logits(on(q), y.p, x.p, sel.p, map.p, n_rows, n_slots, n, n_vocab, below));
}

const ops cuda_table = {
    .name           = "cuda",
    .alloc          = op_alloc,
    .free           = op_free,
    .weight_load    = cuda_weight_load,
    .weight_free    = cuda_weight_free,
    .queue_new      = op_queue_new,
    .queue_reserve  = op_queue_reserve,
    .queue_free     = op_queue_free,
    .upload         = op_upload,
    .download       = op_download,
    .sync           = op_sync,
    .check          = op_check,
    .mark           = op_mark,
    .between_s      = op_between_s,
    .replay         = op_replay,
    .record_end     = op_record_end,
    .embed          = op_embed,
    .matmul         = op_matmul,
    .matmul_experts = op_matmul_experts,
    .rms_norm       = op_rms_norm,
    .rms_norm_add   = op_rms_norm_add,
    .rope           = op_rope,
    .kv_store       = op_kv_store,
    .attention      = op_attention,
    .kv_move        = op_kv_move,
    .gated          = op_gated,
    .router         = op_router,
    .experts_sum    = op_experts_sum,
    .add            = op_add,
    .softcap        = op_softcap,
    .copy_rows      = op_copy_rows,
    .argmax         = op_argmax,
    .change_logits  = op_change_logits,
    .restore_logits = op_restore_logits,
    .mask_logits    = op_mask_logits,
    .logprobs       = op_logprobs,
    .sample         = op_sample,
    .sample_top     = op_sample_top,
    .scatter_logits = op_scatter_logits,
};
