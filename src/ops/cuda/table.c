/* The ops: one queue is one stream, and each op is a launch or two on it. */
#include "base/fault.h"
#include "base/mem.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/graph.h"
#include "ops/cuda/layout.h"
#include "ops/cuda/scratch.h"

#include <assert.h>
#include <string.h>

enum {
    WIDE_ROWS     = 128,     /* steps of at least this many rows take cuda_matmul_wide */
    STEP_ROWS     = 2048,    /* default of a step: prompts need many to keep the tensor cores busy */
    RING_BYTES    = 1 << 20, /* uploads wait here, so that their source may change at once; two halves */
    RING_ALIGN    = 64,
    LANDING_BYTES = 256 << 10, /* downloads land here, pinned, and go on to their place at the next sync */
    MAX_LANDED    = 64,
    PARTIAL_BYTES = 256 << 20, /* scratch for attention's tiles, see below */
    SPLIT_HEADS   = 512, /* (row, head) pairs below this leave multiprocessors idle: their tiles go side by side */
};

/* Describes what scratch holds, so that it is not computed twice: the f16 form of rows that several matrices multiply,
 * the order of pairs that several stacks of experts share. The source's address is the key; `wrote` invalidates it. */
typedef struct {
    const char *of; /* NULL: nothing */
    size_t      bytes;
    int         a, b; /* rows and n_in; pairs, and matrices with run_pairs */
    bool        wide; /* as in cuda_x */
    uint64_t    used;
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
    cudaStream_t   stream, side;
    cudaEvent_t    parted, met;   /* points where one stream waits for the other */
    bool           has_wide;      /* cuda_has_wide */
    bool           aside, beside; /* ops go to `side`; what went there may still run */
    uint64_t       parted_at;     /* the clock when they parted */
    float         *partial;
    made           x[X_SLOTS], order; /* in s.x; in s.order and s.run */
    made           sum, sum_w;        /* in s.sum: the slots that were summed, and their weights */
    made           gated;             /* in s.tops: rows that a matmul can convert */
    uint64_t       clock;             /* counts uses of x */
    char          *ring;              /* pinned */
    int            half;              /* half of the ring that is being filled */
    size_t         half_used;         /* bytes */
    cudaEvent_t    sent[2];           /* the contents of a half were copied */
    cudaEvent_t    mark[QUEUE_MARKS];
    char          *landing; /* pinned */
    size_t         landing_used;
    landed         landed[MAX_LANDED]; /* downloads since the last sync */
    int            n_landed;
    graph_cache    graphs;
    const int32_t *padding; /* lanes of the rows, see ops.padding; NULL: no row is padding */
    cudaError_t    error;   /* the first */
    const char    *failed;  /* in which op */
};

/* --- queues ---------------------------------------------------------------------------------------*/

/* While a run is recorded, its failure is not yet the queue's: it is launched plainly then. */
static void note_status(queue *q, const char *op, cudaError_t status)
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
    return q->aside ? q->side : q->stream;
}

static void wait_for(queue *q, cudaStream_t waits, cudaStream_t other, cudaEvent_t at)
{
    note_status(q, "aside", cudaEventRecord(at, other));
    note_status(q, "aside", cudaStreamWaitEvent(waits, at, 0));
}

static void wrote(queue *q, const void *p, size_t bytes)
{
    const char *at      = p;
    made       *other[] = {&q->order, &q->sum, &q->sum_w, &q->gated};
    for (int i = 0; i < X_SLOTS + (int)COUNT(other); i++) {
        made *m = i < X_SLOTS ? &q->x[i] : other[i - X_SLOTS];
        if (at < m->of + m->bytes && m->of < at + bytes) *m = (made){.used = m->used}; /* an op may still read it */
    }
}

static void wrote_f32(queue *q, dev y, int n_rows, int n) { wrote(q, y.p, (size_t)n_rows * (size_t)n * sizeof(float)); }

/* Between runs of ops nothing is known: a replayed one does not pass through here. */
static void forget_made(queue *q)
{
    for (int i = 0; i < X_SLOTS; i++) q->x[i] = (made){.used = q->x[i].used};
    q->order = q->sum = q->sum_w = q->gated = (made){0};
}

/* Whether scratch holds this; from now on it does. */
static bool is_made(made *m, const void *of, size_t bytes, int a, int b)
{
    bool same = m->of == of && m->bytes == bytes && m->a == a && m->b == b;
    *m        = (made){of, bytes, a, b, false, 0};
    return same;
}

/* Returns how many pairs share a pass over a matrix, by how many it has on average. */
static int run_pairs(int n_pairs, int n_mats, bool wide)
{
    int n = RUN_PAIRS_MIN;
    if (wide) return RUN_PAIRS_WIDE;
    while (n < RUN_PAIRS_MAX && n * n_mats < n_pairs) n *= 2;
    return n;
}

/* Returns whether a step of n_rows rows has them in the wide layout. */
static bool is_wide(const queue *q, int n_rows) { return q->has_wide && n_rows >= WIDE_ROWS; }

static void op_queue_free(queue *q)
{
    if (!q) return;
    cudaSetDevice(q->b->device);
    if (q->stream) graph_forget(&q->graphs, q->stream);
    scratch_drop(q->b, &q->s);
    cuda_drop(q->b, q->partial);
    if (q->ring) cudaFreeHost(q->ring);
    if (q->landing) cudaFreeHost(q->landing);
    for (int i = 0; i < 2; i++)
        if (q->sent[i]) cudaEventDestroy(q->sent[i]);
    for (int i = 0; i < QUEUE_MARKS; i++)
        if (q->mark[i]) cudaEventDestroy(q->mark[i]);
    if (q->parted) cudaEventDestroy(q->parted);
    if (q->met) cudaEventDestroy(q->met);
    if (q->side) cudaStreamDestroy(q->side);
    if (q->stream) cudaStreamDestroy(q->stream);
    mem_free(q);
}

static bool open_stream(queue *q, err *e)
{
    static const char doing[] = "creating a queue";
    void             *ring = NULL, *landing = NULL;
    if (fault_now()) return err_set(e, ERR_UNAVAILABLE, "no memory for a queue");
    if (!cuda_ok(cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking), ERR_UNAVAILABLE, doing, e) ||
        !cuda_ok(cudaStreamCreateWithFlags(&q->side, cudaStreamNonBlocking), ERR_UNAVAILABLE, doing, e) ||
        !cuda_ok(cudaEventCreateWithFlags(&q->parted, cudaEventDisableTiming), ERR_UNAVAILABLE, doing, e) ||
        !cuda_ok(cudaEventCreateWithFlags(&q->met, cudaEventDisableTiming), ERR_UNAVAILABLE, doing, e))
        return false;
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
    if (!q) return err_set(e, ERR_UNAVAILABLE, "no memory for a queue");
    cudaSetDevice(b->device);
    *q = (queue){.b = b, .lim = *l, .has_wide = cuda_has_wide()};
    if (!open_stream(q, e) || !scratch_take(b, &q->s, l, q->has_wide, e) ||
        !cuda_take_raw(b, &q->partial, PARTIAL_BYTES, "the scratch of attention", e)) {
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
    if (!scratch_take(q->b, &s, &all, q->has_wide, e)) return false;
    scratch_drop(q->b, &q->s);
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
        note_status(q, "upload", cudaEventRecord(q->sent[q->half], q->stream));
        q->half = 1 - q->half;
        note_status(q, "upload", cudaEventSynchronize(q->sent[q->half]));
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
    note_status(q, "upload", cudaMemcpyAsync(dst.p, src, bytes, cudaMemcpyHostToDevice, s));
}

/* Downloads that do not fit the buffer go directly to their target, and the runtime waits for them. */
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
    note_status(q, "download", cudaMemcpyAsync(to, src.p, bytes, cudaMemcpyDeviceToHost, on(q)));
}

static void op_sync(queue *q)
{
    assert(!q->graphs.recording);
    if (q->beside) note_status(q, "a step", cudaStreamSynchronize(q->side));
    note_status(q, "a step", cudaStreamSynchronize(on(q)));
    forget_made(q); /* buffers may come and go now */
    for (int i = 0; i < q->n_landed; i++) memcpy(q->landed[i].to, q->landed[i].from, q->landed[i].bytes);
    q->n_landed     = 0;
    q->landing_used = 0;
}

static bool op_check(queue *q, err *e)
{
    return q->error == cudaSuccess || cuda_ok(q->error, ERR_UNAVAILABLE, q->failed, e);
}

static void op_mark(queue *q, int which) { note_status(q, "a mark", cudaEventRecord(q->mark[which], on(q))); }

static double op_between_s(queue *q, int from, int to)
{
    float ms = 0;
    note_status(q, "a mark", cudaEventElapsedTime(&ms, q->mark[from], q->mark[to]));
    return 1e-3 * (double)ms;
}

static bool op_replay(queue *q, uint64_t key)
{
    cudaError_t status;
    forget_made(q);
    bool there = graph_replay(&q->graphs, on(q), key, &status);
    note_status(q, "a recorded step", status);
    return there;
}

static bool op_record_end(queue *q)
{
    forget_made(q);
    return graph_record_end(&q->graphs, on(q));
}

static void op_padding(queue *q, dev lane) { q->padding = lane.p; }

static graph_counts op_recordings(const queue *q)
{
    return (graph_counts){.n = graph_count(&q->graphs), .bytes = q->graphs.bytes, .recorded = q->graphs.recorded};
}

static void op_aside(queue *q, aside_part part)
{
    if (part == ASIDE_BEGIN) {
        assert(!q->aside && !q->beside);
        wait_for(q, q->side, q->stream, q->parted);
        q->aside = q->beside = true;
        q->parted_at         = q->clock;
    } else if (part == ASIDE_END) {
        q->aside = false;
    } else if (q->beside) {
        wait_for(q, q->stream, q->side, q->met);
        q->beside = false;
    }
}

/* --- matmul ---------------------------------------------------------------------------------------*/

static const cuda_weight *packed(const weight *w) { return (const cuda_weight *)w; }

static void op_embed(queue *q, dev y, const weight *table, dev ids, int n_rows, float scale)
{
    wrote_f32(q, y, n_rows, table->n_in);
    if (n_rows > 0) note_status(q, "embed", cuda_embed(on(q), y.p, packed(table), ids.p, n_rows, scale));
}

/* --- rows as f16 ---*/

/* Returns the slot for rows that are about to be made: the pairs' own, or the one that was used longest ago. */
static int free_x(queue *q, int n_rows)
{
    int oldest = 1;
    if (n_rows > q->lim.max_rows) return 0;
    for (int i = 2; i < X_SLOTS; i++)
        if (q->x[i].used < q->x[oldest].used) oldest = i;
    if (q->beside && q->x[oldest].used > q->parted_at) { /* an op of the other stream may still read it */
        wait_for(q, q->stream, q->side, q->met);
        wait_for(q, q->side, q->stream, q->parted);
    }
    return oldest;
}

static cuda_x take_x_slot(queue *q, int slot)
{
    cuda_x x        = q->s.x[slot];
    q->x[slot].used = ++q->clock;
    x.wide          = q->x[slot].wide;
    x.tile_bytes    = ((size_t)q->x[slot].a + GROUP_ROWS - 1) / GROUP_ROWS * XTILE_BYTES;
    return x;
}

/* Returns the rows as f16, in the queue's scratch. */
static cuda_x prepare_x(queue *q, const weight *w, const float *x, int n_rows, bool wide)
{
    size_t bytes = (size_t)n_rows * (size_t)w->n_in * sizeof *x;
    assert(w->n_in <= q->lim.max_in);
    for (int i = 0; i < X_SLOTS; i++)
        if (q->x[i].of == (const char *)x && q->x[i].bytes == bytes && q->x[i].a == n_rows && q->x[i].b == w->n_in &&
            q->x[i].wide == wide)
            return take_x_slot(q, i);
    int slot   = free_x(q, n_rows);
    q->x[slot] = (made){(const char *)x, bytes, n_rows, w->n_in, wide, 0};
    cuda_x to  = take_x_slot(q, slot);
    note_status(q, "convert", cuda_convert(on(q), to, x, n_rows, w->n_in));
    return to;
}

/* Returns where rows that are made now go as f16, because a matrix multiplies them soon; no room: nowhere. */
static cuda_x room_for_x(queue *q, dev y, int n_rows, int n, bool wide)
{
    int max_in = n_rows > q->lim.max_rows ? scratch_pair_in(&q->lim, q->has_wide) : q->lim.max_in;
    if (n_rows < 1 || n > max_in || (size_t)n_rows > scratch_pairs(&q->lim)) return (cuda_x){0};
    int slot   = free_x(q, n_rows);
    q->x[slot] = (made){y.p, (size_t)n_rows * (size_t)n * sizeof(float), n_rows, n, wide, 0};
    return take_x_slot(q, slot);
}

/* Returns where rows of pairs go that cuda_matmul_wide multiplies, which are in the order of a. */
static cuda_x room_for_sorted(queue *q, const cuda_matmul_args *a, const void *of, size_t bytes, int n)
{
    q->x[0]    = (made){of, bytes, a->n_order, n, true, 0};
    cuda_x to  = take_x_slot(q, 0);
    to.order   = a->order;
    to.n_order = a->n_order;
    return to;
}

/* Returns the rows of the pairs of a as f16: n_rows rows, or one for each pair. */
static cuda_x prepare_pairs(queue *q, const cuda_matmul_args *a, const weight *w, const float *x, bool x_per_slot,
                            int n_rows, int n_slots)
{
    int         n     = x_per_slot ? a->n_pairs : n_rows;
    size_t      bytes = (size_t)n * (size_t)w->n_in * sizeof *x;
    const made *m     = &q->x[0];
    bool        low   = quant_is_float(w->type);
    if (!a->n_order) return prepare_x(q, w, x, n, false);
    if (m->of == (const char *)x && m->bytes == bytes && m->a == a->n_order && m->b == w->n_in && m->wide &&
        (x_per_slot || !low)) {
        cuda_x same  = take_x_slot(q, 0);
        same.order   = a->order;
        same.n_order = a->n_order;
        return same;
    }
    if (x_per_slot) {
        cuda_x to = room_for_sorted(q, a, x, bytes, w->n_in);
        note_status(q, "convert", cuda_convert(on(q), to, x, n, w->n_in));
        return to;
    }
    cuda_x from = prepare_x(q, w, x, n_rows, true), to = room_for_sorted(q, a, x, bytes, w->n_in);
    note_status(q, "sort_rows", cuda_sort_rows(on(q), to, from, n_slots, w->n_in, low));
    return to;
}

static cuda_matmul_part matmul_part(const weight *w, dev y)
{
    const cuda_weight *p = packed(w);
    return (cuda_matmul_part){
        .data = p->data, .y = y.p, .n_out = w->n_out, .n_panels = p->n_panels, .up = p->up, .down = p->down};
}

static cuda_matmul_args matmul_args(const weight *w, dev y, int n_pairs, int pairs_to_x)
{
    return (cuda_matmul_args){.part        = {matmul_part(w, y)},
                              .n_parts     = 1,
                              .n_tiles     = packed(w)->n_tiles,
                              .n_in        = w->n_in,
                              .act         = -1,
                              .panel_bytes = packed(w)->panel_bytes,
                              .n_pairs     = n_pairs,
                              .pairs_to_x  = pairs_to_x};
}

static void multiply(queue *q, const char *op, quant_type type, const cuda_matmul_args *a)
{
    note_status(q, op, a->x.wide ? cuda_matmul_wide(on(q), type, a) : cuda_matmul(on(q), type, a));
}

/* Returns whether a gate left these rows for the matrix that multiplies them next, which converts them itself. */
static bool is_gated(const queue *q, const weight *w, dev x, int n_rows)
{
    const made *g = &q->gated;
    return g->of == x.p && g->a == n_rows && g->b == w->n_in && !quant_is_float(w->type);
}

static void matmul_gated(queue *q, dev y, const weight *w, dev x, int n_rows)
{
    cuda_matmul_args a = matmul_args(w, y, n_rows, 1);
    a.raw              = x.p;
    a.tops             = q->s.tops;
    a.n_tops           = (int)layout_panels((size_t)w->n_in);
    note_status(q, "matmul", cuda_matmul(on(q), w->type, &a));
    wrote_f32(q, y, n_rows, w->n_out);
}

/* Matrices of one type share a launch. */
static void op_matmuls(queue *q, const dev *y, const weight *const *w, int n_w, dev x, int n_rows)
{
    assert(n_rows <= q->lim.max_rows);
    if (n_rows < 1) return;
    if (n_w == 1 && is_gated(q, w[0], x, n_rows)) {
        matmul_gated(q, y[0], w[0], x, n_rows);
        return;
    }
    cuda_x rows = prepare_x(q, w[0], x.p, n_rows, is_wide(q, n_rows));
    for (int i = 0, n; i < n_w; i += n) {
        cuda_matmul_args a = matmul_args(w[i], y[i], n_rows, 1);
        a.x                = rows;
        for (n = 1; i + n < n_w && w[i + n]->type == w[i]->type; n++)
            a.part[a.n_parts++] = matmul_part(w[i + n], y[i + n]);
        assert(w[i]->n_in == w[0]->n_in);
        multiply(q, "matmul", w[i]->type, &a);
    }
    for (int i = 0; i < n_w; i++) wrote_f32(q, y[i], n_rows, w[i]->n_out);
}

static void op_matmul(queue *q, dev y, const weight *w, dev x, int n_rows) { op_matmuls(q, &y, &w, 1, x, n_rows); }

/* The matrix that follows computes the rows' scales and converts them: no block has to read a whole row first. Not
 * for rows that run concurrently with others: measured, it is slower there. */
static bool op_gate_up(queue *q, dev y, const weight *gate, const weight *up, dev x, int n_rows, act_kind act)
{
    int n = gate->n_out;
    if (n_rows < 1) return true;
    if (q->aside || gate->type != up->type || n % PANEL_OUTS || n > q->lim.max_in ||
        !cuda_matmul_can_pair(gate->type, packed(gate)->n_tiles, n_rows))
        return false;
    cuda_matmul_args a  = matmul_args(gate, y, n_rows, 1);
    a.x                 = prepare_x(q, gate, x.p, n_rows, false);
    a.part[a.n_parts++] = matmul_part(up, (dev){0});
    a.paired            = true;
    a.act               = (int)act;
    a.largest           = q->s.tops;
    note_status(q, "gate_up", cuda_matmul(on(q), gate->type, &a));
    wrote_f32(q, y, n_rows, n);
    q->gated = (made){.of = y.p, .bytes = (size_t)n_rows * (size_t)n * sizeof(float), .a = n_rows, .b = n};
    return true;
}

/* One row's experts differ; pairs of several rows are sorted, so that a matrix is read once for up to run_pairs of
 * them. */
static cuda_group_args group_args(queue *q, dev id, int n_rows, int n_slots, int n_mats)
{
    bool wide    = is_wide(q, n_rows);
    int  n_pairs = n_rows * n_slots, each = run_pairs(n_pairs, n_mats, wide);
    return (cuda_group_args){.order     = q->s.order,
                             .run       = q->s.run,
                             .n_runs    = n_pairs / each + n_mats,
                             .run_pairs = each,
                             .n_order   = wide ? (int)scratch_places((size_t)n_pairs, (size_t)n_mats) : 0,
                             .id        = id.p,
                             .n_pairs   = n_pairs,
                             .n_mats    = n_mats};
}

/* Whether the pairs of these ids are sorted; from now on they are. */
static bool is_grouped(queue *q, const cuda_group_args *g)
{
    return is_made(&q->order, g->id, (size_t)g->n_pairs * sizeof(int32_t), g->n_pairs,
                   g->n_mats * (RUN_PAIRS_WIDE + 1) + g->run_pairs);
}

static cuda_matmul_args experts_args(queue *q, dev y, const weight *w, bool x_per_slot, dev id, int n_rows, int n_slots)
{
    int              n_pairs = n_rows * n_slots;
    cuda_matmul_args a       = matmul_args(w, y, n_pairs, x_per_slot ? 1 : n_slots);
    assert(n_rows <= q->lim.max_rows && n_slots <= q->lim.max_expert_slots && w->n_mats <= q->lim.n_experts);
    a.id = id.p;
    if (n_rows > 1) {
        cuda_group_args g = group_args(q, id, n_rows, n_slots, w->n_mats);
        a.order           = g.order;
        a.run             = g.run;
        a.run_pairs       = g.run_pairs;
        a.n_runs          = g.n_runs;
        a.n_order         = g.n_order;
        if (!is_grouped(q, &g)) {
            q->x[0] = (made){.used = q->x[0].used}; /* it may be in the order of before */
            note_status(q, "group_pairs", cuda_group_pairs(on(q), &g));
        }
    }
    return a;
}

static void op_matmul_experts(queue *q, dev y, const weight *w, dev x, bool x_per_slot, dev id, int n_rows, int n_slots)
{
    if (n_rows < 1) return;
    cuda_matmul_args a = experts_args(q, y, w, x_per_slot, id, n_rows, n_slots);
    a.x                = prepare_pairs(q, &a, w, x.p, x_per_slot, n_rows, n_slots);
    multiply(q, "matmul_experts", w->type, &a);
    wrote_f32(q, y, a.n_pairs, w->n_out);
}

/* --- rows and elements ----------------------------------------------------------------------------*/

/* More rows than a step has are heads, which no matrix multiplies. */
static void op_rms_norm(queue *q, dev y, dev x, dev w, int n_rows, int n, float eps)
{
    wrote_f32(q, y, n_rows, n);
    cuda_x to = n_rows > q->lim.max_rows ? (cuda_x){0} : room_for_x(q, y, n_rows, n, is_wide(q, n_rows));
    if (n_rows > 0) note_status(q, "rms_norm", cuda_rms_norm(on(q), y.p, to, NULL, x.p, w.p, n_rows, n, eps, 1));
}

static void op_rms_norm_add(queue *q, dev y, dev res, dev x, dev w, int n_rows, int n, float eps, float scale)
{
    wrote_f32(q, y, n_rows, n);
    if (n_rows > 0)
        note_status(q, "rms_norm_add", cuda_rms_norm(on(q), y.p, (cuda_x){0}, res.p, x.p, w.p, n_rows, n, eps, scale));
}

/* Note, and return whether, scratch holds the sum of one row's slots of n numbers, weighted by w. */
static void note_sum(queue *q, dev slots, dev w, int n_slots, int n)
{
    q->sum   = (made){.of = slots.p, .bytes = (size_t)n_slots * (size_t)n * sizeof(float), .a = n_slots, .b = n};
    q->sum_w = (made){.of = w.p, .bytes = (size_t)n_slots * sizeof(float), .a = n_slots, .b = n};
}
static bool is_summed(const queue *q, dev slots, dev w, int n_slots, int n)
{
    const made *s = &q->sum, *by = &q->sum_w;
    return s->of == slots.p && by->of == w.p && s->a == n_slots && s->b == n && by->a == n_slots;
}

static void op_norms(queue *q, const norm_rows *c, int n_rows)
{
    cuda_norms_args a = {.y       = c->y.p,
                         .res     = c->res.p,
                         .z       = c->z.p,
                         .w       = c->w.p,
                         .w_z     = c->w_z.p,
                         .w_slots = c->w_slots.p,
                         .slots   = c->parts ? c->slots.p : NULL,
                         .slot_w  = c->slot_w.p,
                         .n_slots = c->n_slots,
                         .n       = c->n,
                         .n_outs  = c->n_outs,
                         .scale   = c->scale,
                         .eps     = c->eps};
    if (n_rows < 1) return;
    if (c->parts && n_rows == 1 && is_summed(q, c->slots, c->slot_w, c->n_slots, c->n)) {
        a.slots = NULL;
        a.sum   = q->s.sum;
    }
    wrote_f32(q, c->y, n_rows, c->n);
    for (int i = 0; i < c->n_outs; i++) wrote_f32(q, c->out[i].y, n_rows, c->n);
    for (int i = 0; i < c->n_outs; i++) {
        a.out[i].y  = c->out[i].y.p;
        a.out[i].w  = c->out[i].w.p;
        a.out[i].to = room_for_x(q, c->out[i].y, n_rows, c->n, is_wide(q, n_rows));
    }
    note_status(q, "norms", cuda_norms(on(q), &a, n_rows));
}

/* Summarises the pages that the step filled, in a class with sparse attention. */
static void summarise(queue *q, const kv_view *c, int layer, const step_rows *rows)
{
    if (c->sparse.drop)
        note_status(q, "kv_summary", cuda_kv_summary(on(q), c, layer, rows->lane.p, rows->slot.p, rows->n_rows));
}

static void op_heads(queue *q, const head_rows *h, const step_rows *rows)
{
    cuda_heads_args a = {.q           = h->q.p,
                         .q_in        = h->q_in.p ? h->q_in.p : h->q.p,
                         .q_stride    = h->q_in.p ? h->q_stride : kv_row_dim(h->c),
                         .k           = h->k.p,
                         .v           = h->v.p,
                         .w_q         = h->w_q.p,
                         .w_k         = h->w_k.p,
                         .pos         = rows->pos.p,
                         .section_pos = rows->section_pos.p,
                         .rope        = rope_view_of(&h->rope),
                         .lane        = rows->lane.p,
                         .slot        = rows->slot.p,
                         .c           = kv_view_of(h->c),
                         .n_heads     = h->n_heads,
                         .layer       = h->layer,
                         .norm_v      = h->norm_v,
                         .k_as_v      = h->k_as_v,
                         .settled     = rows->settled,
                         .eps         = h->eps};
    assert(h->c->head_dim <= OPS_MAX_HEAD_DIM && h->rope.n_dims % 2 == 0 && h->rope.n_dims <= kv_row_dim(h->c));
    wrote_f32(q, h->q, rows->n_rows, h->n_heads * kv_row_dim(h->c));
    if (rows->n_rows < 1) return;
    note_status(q, "heads", cuda_heads(on(q), &a, rows->n_rows));
    if (a.k) summarise(q, &a.c, h->layer, rows);
}

static void op_rope(queue *q, dev x, const step_rows *rows, int n_heads, int head_dim, const rope_params *p)
{
    rope_view v = rope_view_of(p);
    assert(p->n_dims % 2 == 0 && p->n_dims <= head_dim);
    wrote_f32(q, x, rows->n_rows, n_heads * head_dim);
    if (rows->n_rows > 0)
        note_status(q, "rope",
                    cuda_rope(on(q), x.p, rows->pos.p, rows->section_pos.p, &v, rows->n_rows, n_heads, head_dim));
}

/* pairs: the rows are those of pairs that cuda_matmul_wide multiplies next, and are written as f16 alone; NULL: they
 * are not. */
static void gate_rows(queue *q, dev y, dev gate, int gate_stride, dev up, int up_stride, int n_rows, int n,
                      act_kind act, bool wide, const cuda_matmul_args *pairs)
{
    wrote_f32(q, y, n_rows, n);
    cuda_x to = pairs ? room_for_sorted(q, pairs, y.p, (size_t)n_rows * (size_t)n * sizeof(float), n)
                      : room_for_x(q, y, n_rows, n, wide);
    if (n_rows > 0)
        note_status(
            q, "gated",
            cuda_gated(on(q), pairs ? NULL : y.p, to, gate.p, gate_stride, n, 0, up.p, up_stride, n_rows, n, act));
}

static void op_gated(queue *q, dev y, dev gate, int gate_stride, dev up, int up_stride, int n_rows, int n, act_kind act)
{
    gate_rows(q, y, gate, gate_stride, up, up_stride, n_rows, n, act, is_wide(q, n_rows), NULL);
}

static void op_gated_heads(queue *q, dev y, dev gate, int gate_stride, dev x, int n_rows, int n_heads, int n,
                           act_kind act)
{
    int all = n_heads * n;
    if (n_rows < 1) return;
    wrote_f32(q, y, n_rows, all);
    cuda_x to = room_for_x(q, y, n_rows, all, is_wide(q, n_rows));
    note_status(
        q, "gated_heads",
        cuda_gated(on(q), y.p, to, gate.p, n_heads * gate_stride, n, gate_stride - n, x.p, all, n_rows, all, act));
}

static void op_router(queue *q, dev id, dev w, dev logits, dev expert_scale, int n_rows, int n_experts, int n_slots)
{
    cuda_router_args a = {id.p, w.p, logits.p, expert_scale.p, n_experts, n_slots, q->padding};
    assert(n_slots <= n_experts && n_experts <= ROUTER_EXPERTS);
    wrote_f32(q, id, n_rows, n_slots);
    wrote_f32(q, w, n_rows, n_slots);
    if (n_rows > 0) note_status(q, "router", cuda_router(on(q), &a, n_rows));
}

static cuda_router_args router_args(const queue *q, const expert_rows *e)
{
    return (cuda_router_args){e->id.p, e->w.p, e->logits.p, e->expert_scale.p, e->n_experts, e->n_slots, q->padding};
}

static void wrote_chosen(queue *q, const expert_rows *e, int n_rows)
{
    wrote_f32(q, e->id, n_rows, e->n_slots);
    wrote_f32(q, e->w, n_rows, e->n_slots);
}

/* The choice of several rows' experts, and the order of the pairs. */
static void route(queue *q, const expert_rows *e, int n_rows)
{
    cuda_router_args r = router_args(q, e);
    cuda_group_args  g = group_args(q, e->id, n_rows, e->n_slots, e->n_experts);
    wrote_chosen(q, e, n_rows);
    if (n_rows > 1 && e->down->n_mats == e->n_experts && cuda_route_fits(n_rows, e->n_experts, e->n_slots)) {
        is_grouped(q, &g);
        note_status(q, "router", cuda_route(on(q), &r, &g));
    } else
        note_status(q, "router", cuda_router(on(q), &r, n_rows));
}

/* One row's experts: one kernel makes the choice, gate, up and act. */
static void experts_inner_one(queue *q, const expert_rows *e)
{
    cuda_matmul_args a = experts_args(q, e->act, e->gate_up, false, e->id, 1, e->n_slots);
    a.x                = prepare_x(q, e->gate_up, e->x.p, 1, false);
    a.router           = router_args(q, e);
    a.act              = (int)e->kind;
    a.gives            = true;
    note_status(q, "matmul_experts", cuda_matmul(on(q), e->gate_up->type, &a));
    wrote_f32(q, e->act, a.n_pairs, e->n_ff);
    wrote_chosen(q, e, 1);
}

static void experts_inner(queue *q, const expert_rows *e, int n_rows)
{
    int  F = e->n_ff, K = e->n_slots;
    bool wide = is_wide(q, n_rows);
    if (!e->gate_up) op_matmul_experts(q, e->act, e->gate, e->x, false, e->id, n_rows, K);
    const weight    *w = e->gate_up ? e->gate_up : e->up;
    cuda_matmul_args a = experts_args(q, e->inner, w, false, e->id, n_rows, K);
    a.x                = prepare_pairs(q, &a, w, e->x.p, false, n_rows, K);
    a.gives            = true;
    multiply(q, "matmul_experts", w->type, &a);
    wrote_f32(q, e->inner, a.n_pairs, w->n_out);
    const cuda_matmul_args *pairs = wide && e->down->n_mats == w->n_mats ? &a : NULL;
    if (e->gate_up)
        gate_rows(q, e->act, e->inner, 2 * F, dev_at_f32(e->inner, (size_t)F), 2 * F, n_rows * K, F, e->kind, wide,
                  pairs);
    else
        gate_rows(q, e->act, e->act, F, e->inner, F, n_rows * K, F, e->kind, wide, pairs);
}

/* The experts were chosen before the first kernel of these waited, so the last one may ask for its weights before it
 * waits. */
static void op_experts(queue *q, const expert_rows *e, int n_rows)
{
    if (n_rows < 1) return;
    bool one = n_rows == 1 && e->gate_up && e->n_ff % PANEL_OUTS == 0 && e->n_experts <= CHOICE_EXPERTS &&
               e->n_slots <= CHOICE_SLOTS && cuda_matmul_can_gate(e->gate_up->type, packed(e->gate_up)->n_tiles) &&
               cuda_matmul_can_convert(e->down->type, packed(e->down)->n_tiles);
    if (one) {
        experts_inner_one(q, e);
    } else {
        route(q, e, n_rows);
        experts_inner(q, e, n_rows);
    }
    cuda_matmul_args a   = experts_args(q, e->y, e->down, true, e->id, n_rows, e->n_slots);
    bool             sum = one && cuda_matmul_can_sum(e->down->type, e->n_slots) && e->down->n_out <= q->lim.max_in;
    if (one)
        a.rows = e->act.p;
    else
        a.x = prepare_pairs(q, &a, e->down, e->act.p, true, n_rows, e->n_slots);
    a.settled = true;
    a.sum     = sum ? q->s.sum : NULL;
    a.slot_w  = e->w.p;
    multiply(q, "matmul_experts", e->down->type, &a);
    wrote_f32(q, e->y, a.n_pairs, e->down->n_out);
    if (sum) note_sum(q, e->y, e->w, e->n_slots, e->down->n_out);
}

static void op_experts_sum(queue *q, dev y, dev x, dev w, int n_rows, int n_slots, int n)
{
    wrote_f32(q, y, n_rows, n);
    if (n_rows > 0) note_status(q, "experts_sum", cuda_experts_sum(on(q), y.p, x.p, w.p, n_rows, n_slots, n));
}

static void op_add(queue *q, dev y, dev a, dev b, size_t n, float scale)
{
    wrote(q, y.p, n * sizeof(float));
    if (n) note_status(q, "add", cuda_add(on(q), y.p, a.p, b.p, n, scale));
}

static void op_add_gated(queue *q, dev y, dev a, dev b, dev gate, int n_rows, int n)
{
    wrote_f32(q, y, n_rows, n);
    if (n_rows > 0) note_status(q, "add_gated", cuda_add_gated(on(q), y.p, a.p, b.p, gate.p, n_rows, n));
}

static void op_layer_norm(queue *q, dev y, dev x, dev w, dev b, int n_rows, int n, float eps)
{
    if (n_rows < 1) return;
    wrote_f32(q, y, n_rows, n);
    cuda_x to = room_for_x(q, y, n_rows, n, is_wide(q, n_rows));
    note_status(q, "layer_norm", cuda_layer_norm(on(q), y.p, to, x.p, w.p, b.p, n_rows, n, eps));
}

/* Rows with an activation go to a matrix. */
static void op_bias(queue *q, dev y, dev res, dev x, dev b, int n_rows, int n, bias_act act)
{
    if (n_rows < 1) return;
    wrote_f32(q, y, n_rows, n);
    cuda_x to = act == BIAS_PLAIN ? (cuda_x){0} : room_for_x(q, y, n_rows, n, is_wide(q, n_rows));
    note_status(q, "bias", cuda_bias(on(q), y.p, to, res.p, x.p, b.p, n_rows, n, act));
}

static void op_clamp(queue *q, dev y, dev x, size_t n, float low, float high)
{
    wrote(q, y.p, n * sizeof(float));
    if (n) note_status(q, "clamp", cuda_clamp(on(q), y.p, x.p, n, low, high));
}

static void op_lookup(queue *q, dev y, dev x, dev table, size_t n)
{
    wrote(q, y.p, n * sizeof(float));
    if (n) note_status(q, "lookup", cuda_lookup(on(q), y.p, x.p, table.p, n));
}

static void op_pool(queue *q, dev y, dev x, dev add, dev by, int n_rows, int n_each, int n, float scale)
{
    wrote_f32(q, y, n_rows, n);
    if (n_rows > 0) note_status(q, "pool", cuda_pool(on(q), y.p, x.p, add.p, by.p, n_rows, n_each, n, scale));
}

static void op_sums(queue *q, const sum_rows *c, int n_rows)
{
    cuda_sums_args a = {.y       = c->y.p,
                        .out     = c->out.p,
                        .res     = c->res.p,
                        .z       = c->z.p,
                        .slots   = c->slots.p,
                        .slot_w  = c->slot_w.p,
                        .shared  = c->shared.p,
                        .gate    = c->gate.p,
                        .w       = c->w.p,
                        .n_slots = c->n_slots,
                        .n       = c->n,
                        .eps     = c->eps};
    if (n_rows < 1) return;
    wrote_f32(q, c->y, n_rows, c->n);
    if (c->out.p) {
        wrote_f32(q, c->out, n_rows, c->n);
        a.to = room_for_x(q, c->out, n_rows, c->n, is_wide(q, n_rows));
    }
    note_status(q, "sums", cuda_sums(on(q), &a, n_rows));
}

/* Heads of other sizes are normalised one by one. */
static void op_gated_norm(queue *q, dev y, dev x, dev w, dev gate, int n_rows, int n_heads, int n, float eps,
                          act_kind act)
{
    int all = n_heads * n;
    if (n_rows < 1) return;
    if (!cuda_gated_norm_fits(n_heads, n)) {
        op_rms_norm(q, x, x, w, n_rows * n_heads, n, eps);
        op_gated(q, y, gate, all, x, all, n_rows, all, act);
        return;
    }
    wrote_f32(q, y, n_rows, all);
    cuda_x to = room_for_x(q, y, n_rows, all, is_wide(q, n_rows));
    note_status(q, "gated_norm", cuda_gated_norm(on(q), y.p, to, x.p, w.p, gate.p, n_rows, n_heads, n, eps, act));
}

static void op_softcap(queue *q, dev x, size_t n, float cap)
{
    wrote(q, x.p, n * sizeof(float));
    if (n) note_status(q, "softcap", cuda_softcap(on(q), x.p, n, cap));
}

static void op_copy_rows(queue *q, dev y, int y_stride, dev x, int x_stride, dev idx, int n_rows, int n)
{
    wrote_f32(q, y, n_rows, y_stride > n ? y_stride : n);
    if (n_rows > 0 && n > 0)
        note_status(q, "copy_rows", cuda_copy_rows(on(q), y.p, y_stride, x.p, x_stride, idx.p, n_rows, n));
}

/* --- the paged cache ------------------------------------------------------------------------------*/

static void op_kv_store(queue *q, const kv_class *c, int layer, const step_rows *rows, dev k, dev v)
{
    kv_view cache = kv_view_of(c);
    if (rows->n_rows < 1) return;
    note_status(q, "kv_store", cuda_kv_store(on(q), &cache, layer, rows->lane.p, rows->slot.p, k.p, v.p, rows->n_rows));
    summarise(q, &cache, layer, rows);
}

static void op_kv_move(queue *q, const kv_class *c, dev items, int n_items, const rope_params *p)
{
    kv_view   cache = kv_view_of(c);
    rope_view v     = rope_view_of(p);
    if (n_items < 1) return;
    note_status(q, "kv_move", cuda_kv_move(on(q), &cache, items.p, n_items, &v));
    if (c->sparse.drop) note_status(q, "kv_summary", cuda_kv_summary_moved(on(q), &cache, items.p, n_items));
}

/* Returns whether tiles run in parallel. Depends on shapes alone, so that a captured launch stays valid as a sequence
 * grows. */
static bool split_tiles(const cuda_attention_args *a)
{
    size_t heads = (size_t)a->n_rows * (size_t)a->n_heads;
    size_t bytes = heads * (size_t)a->n_tiles * (size_t)(2 + a->c.head_dim) * sizeof(float);
    return heads < SPLIT_HEADS && a->n_tiles > 1 && bytes <= PARTIAL_BYTES;
}

/* Prepares the choice of pages, if a row may see enough positions: the rows of a prompt see no more than chain_end. */
static void plan_sparse(const queue *q, cuda_attention_args *a, const kv_class *c)
{
    int seen = c->table_stride * KV_PAGE;
    if (a->chain_from == 0 && a->chain_to == a->n_rows && a->chain_end < seen) seen = a->chain_end;
    if (!c->sparse.drop || seen < c->sparse.min_ctx) return;
    a->n_tiles     = (seen + TILE_KEYS - 1) / TILE_KEYS;
    a->n_pages     = (seen + KV_PAGE - 1) / KV_PAGE;
    a->kept_stride = (a->n_pages + 31) / 32;
    size_t words = (size_t)c->n_kv_heads * (size_t)a->kept_stride, bounds = (size_t)a->n_heads * (size_t)a->n_pages;
    size_t rows = scratch_sparse_bytes(&q->lim) / ((words + bounds) * sizeof(float));
    assert(rows > 0 && q->s.sparse);
    a->kept_rows = rows < (size_t)a->n_rows ? (int)rows : a->n_rows;
    a->kept      = (uint32_t *)(void *)q->s.sparse;
    a->bounds    = (float *)(void *)(a->kept + (size_t)a->kept_rows * words);
}

/* Runs attention without tensor cores. */
static cudaError_t attend_plain(queue *q, cuda_attention_args *a)
{
    cudaError_t status = cudaSuccess;
    int         chunk  = a->kept ? a->kept_rows : a->n_rows;
    for (; a->first_row < a->n_rows && !status; a->first_row += chunk) {
        a->end_row = a->n_rows - a->first_row < chunk ? a->n_rows : a->first_row + chunk;
        if (a->kept) cuda_choose_pages(on(q), a);
        status = cuda_attention(on(q), a);
    }
    return status;
}

/* Returns the tiles of the longest context that a lane can have. */
static int all_tiles(const kv_class *c) { return (c->table_stride * KV_PAGE + TILE_KEYS - 1) / TILE_KEYS; }

/* A row that looks back over a window sees no more tiles than that, and those of the rows after it in the step. */
static int tiles_seen(int n_tiles, int window, int n_rows)
{
    int max_tiles = window / TILE_KEYS + n_rows / TILE_KEYS + 3;
    return window > 0 && max_tiles < n_tiles ? max_tiles : n_tiles;
}

static void op_attention(queue *q, dev y, dev q_rows, int n_heads, const kv_class *c, int layer, const step_rows *rows,
                         float scale, int window)
{
    cuda_attention_args a      = {.c          = kv_view_of(c),
                                  .y          = y.p,
                                  .q          = q_rows.p,
                                  .pos        = rows->pos.p,
                                  .lane       = rows->lane.p,
                                  .slot       = rows->slot.p,
                                  .parent     = rows->parent.p,
                                  .root       = rows->root.p,
                                  .last       = rows->last.p,
                                  .n_rows     = rows->n_rows,
                                  .n_heads    = n_heads,
                                  .layer      = layer,
                                  .window     = window,
                                  .scale      = scale,
                                  .settled    = rows->settled,
                                  .n_tiles    = all_tiles(c),
                                  .chain_from = rows->chain_from,
                                  .chain_to   = rows->chain_to,
                                  .chain_end  = rows->chain_end,
                                  .chain_sees = rows->chain_sees,
                                  .few_lanes  = rows->few_lanes};
    bool                turn_q = cache_has_scales(c->types.k), turn_y = cache_has_scales(c->types.v);
    int                 heads = rows->n_rows * n_heads, width = n_heads * kv_row_dim(c);
    assert(n_heads % c->n_kv_heads == 0 && c->head_dim <= OPS_MAX_HEAD_DIM && (!turn_q || y.p != q_rows.p) &&
           (!c->sparse.drop || window == 0));
    if (rows->n_rows < 1) return;
    wrote_f32(q, y, rows->n_rows, width);
    plan_sparse(q, &a, c);
    cuda_attention_args m = a;
    m.partial             = q->partial;
    m.n_tiles             = tiles_seen(a.n_tiles, window, rows->n_rows);
    bool mma              = cuda_attention_plan(&m, PARTIAL_BYTES);
    if (split_tiles(&a)) a.partial = q->partial;
    if (turn_q && !(mma && m.turn_q)) { /* y holds the queries until the outputs replace them, head by head */
        note_status(q, "attention", cuda_turn_heads(on(q), y.p, q_rows.p, heads, c->head_dim, false));
        a.q = m.q = y.p;
    }
    if (mma && width % TILE_IN == 0) m.to = room_for_x(q, y, rows->n_rows, width, is_wide(q, rows->n_rows));
    note_status(q, "attention", mma ? cuda_attention_mma(on(q), &m, PARTIAL_BYTES) : attend_plain(q, &a));
    if (turn_y && !mma) note_status(q, "attention", cuda_turn_heads(on(q), y.p, y.p, heads, c->head_dim, true));
}

static bool op_asks_lanes(queue *q, const kv_class *c, int n_rows)
{
    kv_view v      = kv_view_of(c);
    bool    sparse = c->sparse.drop && c->table_stride * KV_PAGE >= c->sparse.min_ctx;
    on(q);
    return !sparse && cuda_attention_asks_lanes(&v, n_rows, all_tiles(c));
}

/* --- recurrent layers -----------------------------------------------------------------------------*/

static cuda_delta_class delta_class_of(const delta_class *c, int layer)
{
    assert(c->head_dim % 4 == 0 && c->head_dim <= DELTA_MAX_HEAD && c->n_taps <= DELTA_MAX_TAPS);
    return (cuda_delta_class){.pool          = c->pool.p,
                              .kept          = c->kept.p,
                              .table         = c->table.p,
                              .table_stride  = (size_t)c->table_stride,
                              .row_bytes     = c->row_bytes,
                              .state_floats  = delta_state_floats(c),
                              .memory_floats = delta_memory_floats(c),
                              .kept_floats   = delta_kept_floats(c),
                              .tape_floats   = delta_tape_floats(c),
                              .n_layers      = c->n_layers,
                              .n_k_heads     = c->n_k_heads,
                              .n_v_heads     = c->n_v_heads,
                              .head_dim      = c->head_dim,
                              .n_taps        = c->n_taps,
                              .n_channels    = delta_channels(c),
                              .layer         = layer,
                              .tiled         = c->tiled};
}

static void op_delta(queue *q, const delta_io *io, const delta_class *c, int layer, const step_rows *rows)
{
    int             n = rows->n_rows, channels = delta_channels(c);
    cuda_delta_args a = {.c       = delta_class_of(c, layer),
                         .y       = io->y.p,
                         .conv    = io->conv.p,
                         .a       = io->a.p,
                         .b       = io->b.p,
                         .x       = io->x.p,
                         .w       = io->w.p,
                         .rate    = io->rate.p,
                         .bias    = io->bias.p,
                         .lane    = rows->lane.p,
                         .pos     = rows->pos.p,
                         .before  = rows->before.p,
                         .kept    = rows->kept.p,
                         .n_rows  = n,
                         .settled = rows->settled};
    assert(n <= DELTA_MAX_ROWS);
    if (n < 1) return;
    wrote_f32(q, io->y, n, c->n_v_heads * c->head_dim);
    wrote_f32(q, io->conv, n, channels);
    wrote_f32(q, io->a, n, c->n_v_heads);
    wrote_f32(q, io->b, n, c->n_v_heads);
    note_status(q, "delta", cuda_delta(on(q), &a));
}

static void op_delta_replay(queue *q, const delta_class *c, dev items, int n_items, dev places)
{
    cuda_delta_class v = delta_class_of(c, 0);
    if (n_items > 0) note_status(q, "delta_replay", cuda_delta_replay(on(q), &v, items.p, n_items, places.p));
}

/* --- picking --------------------------------------------------------------------------------------*/

static void op_argmax(queue *q, dev id, dev logits, int n_rows, int n_vocab)
{
    assert(n_rows <= q->lim.max_rows);
    wrote_f32(q, id, n_rows, 1);
    if (n_rows > 0) note_status(q, "argmax", cuda_argmax(on(q), id.p, logits.p, q->s.argmax, n_rows, n_vocab));
}

static void op_sample(queue *q, dev id, dev logits, dev params, int n_rows, int n_vocab)
{
    wrote_f32(q, id, n_rows, 1);
    if (n_rows > 0)
        note_status(q, "sample", cuda_sample(on(q), id.p, logits.p, q->s.sample, params.p, n_rows, n_vocab));
}

static void op_sample_top(queue *q, dev out, dev logits, dev params, int n_rows, int n_vocab, int n_top, float soft)
{
    assert(n_vocab <= q->lim.max_vocab && n_top <= SAMPLE_TOP_MAX && soft > 0);
    forget_made(q);
    if (n_rows > 0)
        note_status(
            q, "sample_top",
            cuda_sample_top(on(q), out.p, logits.p, params.p, q->s.scores, q->s.sample, n_rows, n_vocab, n_top, soft));
}

static void op_change_logits(queue *q, dev logits, int n_vocab, dev items, int n_items)
{
    forget_made(q);
    if (n_items > 0) note_status(q, "change_logits", cuda_change_logits(on(q), logits.p, n_vocab, items.p, n_items));
}

static void op_restore_logits(queue *q, dev logits, int n_vocab, dev items, int n_items)
{
    forget_made(q);
    if (n_items > 0) note_status(q, "restore_logits", cuda_restore_logits(on(q), logits.p, n_vocab, items.p, n_items));
}

static void op_mask_logits(queue *q, dev logits, int n_vocab, dev masks, dev rows, int n)
{
    forget_made(q);
    if (n > 0) note_status(q, "mask_logits", cuda_mask_logits(on(q), logits.p, n_vocab, masks.p, rows.p, n));
}

static void op_logprobs(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab, int n_top)
{
    forget_made(q);
    if (n_rows > 0)
        note_status(q, "logprobs", cuda_logprobs(on(q), out.p, logits.p, q->s.sample, id.p, n_rows, n_vocab, n_top));
}

static void op_confidence(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab)
{
    forget_made(q);
    if (n_rows > 0) note_status(q, "confidence", cuda_confidence(on(q), out.p, logits.p, id.p, n_rows, n_vocab));
}

static void op_scatter_logits(queue *q, dev y, dev x, dev sel, dev map, int n_rows, int n_slots, int n, int n_vocab,
                              float below)
{
    forget_made(q);
    if (n_rows > 0)
        note_status(q, "scatter_logits",
                    cuda_scatter_logits(on(q), y.p, x.p, sel.p, map.p, n_rows, n_slots, n, n_vocab, below));
}

static void op_block_conv(queue *q, const conv_rows *c, int n_rows)
{
    forget_made(q);
    if (n_rows > 0) note_status(q, "block_conv", cuda_block_conv(on(q), c, n_rows));
}

static void op_pair_logits(queue *q, const pair_rows *c, int n_rows)
{
    forget_made(q);
    if (n_rows > 0) note_status(q, "pair_logits", cuda_pair_logits(on(q), c, n_rows));
}

static const int f16_heads[] = {64, 128, 256, 512, 0}; /* as cuda_attention_plan requires */

const ops cuda_table = {
    .name           = "cuda",
    .kv_scales      = true,
    .kv_sparse      = true,
    .f16_heads      = f16_heads,
    .runs_later     = true,
    .default_rows   = STEP_ROWS,
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
    .padding        = op_padding,
    .recordings     = op_recordings,
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
    .add_gated      = op_add_gated,
    .layer_norm     = op_layer_norm,
    .bias           = op_bias,
    .clamp          = op_clamp,
    .lookup         = op_lookup,
    .pool           = op_pool,
    .delta          = op_delta,
    .delta_replay   = op_delta_replay,
    .softcap        = op_softcap,
    .copy_rows      = op_copy_rows,
    .argmax         = op_argmax,
    .change_logits  = op_change_logits,
    .restore_logits = op_restore_logits,
    .mask_logits    = op_mask_logits,
    .logprobs       = op_logprobs,
    .confidence     = op_confidence,
    .sample         = op_sample,
    .sample_top     = op_sample_top,
    .scatter_logits = op_scatter_logits,
    .block_conv     = op_block_conv,
    .pair_logits    = op_pair_logits,
    .matmuls        = op_matmuls,
    .gate_up        = op_gate_up,
    .heads          = op_heads,
    .norms          = op_norms,
    .sums           = op_sums,
    .gated_norm     = op_gated_norm,
    .gated_heads    = op_gated_heads,
    .experts        = op_experts,
    .aside          = op_aside,
    .asks_lanes     = op_asks_lanes,
};
