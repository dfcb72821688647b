/* ops/ops.h - the operations that models are written in, one table per backend.
 *
 * Model code sees device memory only as `dev` and never dereferences it; token ids, positions, parents, page
 * tables and sampler parameters are device arrays, so that the result of one op can feed the next without
 * the host. Ops are enqueued in order on a queue and may run later; `sync` waits. Nothing here allocates
 * after the queue is made (promise 4).
 *
 * Promise 1: the numbers of a row depend on its own inputs alone, bit for bit, whatever the number of rows,
 * their order, or the number of threads. So every sum has an order fixed by the weight's shape or by absolute
 * positions. Activations are f32, row-major and dense: [n_rows][n]. */
#ifndef TANDEM_OPS_OPS_H
#define TANDEM_OPS_OPS_H
#include "base/err.h"
#include "gguf/quant.h"
#include "ops/cache_type.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    void *p;
} dev; /* an address in the backend's memory */
static inline dev dev_at(dev d, size_t bytes) { return (dev){(char *)d.p + bytes}; }
static inline dev dev_at_f32(dev d, size_t n) { return dev_at(d, n * sizeof(float)); }

/* --- weights --------------------------------------------------------------------------------------
 * A matrix, or a stack of n_mats of one shape (experts), in whatever form the backend multiplies best. */
typedef struct {
    quant_type  type;
    int32_t     n_in, n_out, n_mats; /* n_in is contiguous: data is [n_mats][n_out][n_in] */
    const void *data;                /* read during weight_load only; may be unaligned */
    /* NULL, or told now and then that the first `bytes` of data will not be read again. */
    void (*took)(void *ctx, size_t bytes);
    void *ctx;
} weight_src;
typedef struct weight { /* backends append their own fields */
    quant_type type;
    int32_t    n_in, n_out, n_mats;
    size_t     bytes; /* of device memory */
} weight;

/* --- the rows of a step ---------------------------------------------------------------------------
 * Device arrays of int32, n_rows each. A row's K/V is written to `slot` of its lane and its keys are read from
 * there: position p of row r lies at slot p when p < root[r], and otherwise in the slot of r's ancestor (or r
 * itself) that has position p, found by walking `parent`. In a chain slot == pos and root == pos + 1: no walk.
 * In a tree slot == root + index of the row in the lane's rows, so siblings share a position, not a slot.
 * A row sees the positions up to `last`: its own in a target; the end of the block for a drafter that looks both ways;
 * the position before its own where it has no K/V itself. Past its own position it sees slots, so then last < root. */
typedef struct {
    int n_rows;
    dev token;  /* vocabulary id; -1: the row's embedding was uploaded instead */
    dev pos;    /* position in its own sequence */
    dev lane;   /* which page table */
    dev slot;   /* where its K/V is stored, in positions of the lane's pages */
    dev parent; /* row of this step that precedes it; read only where a walk needs it */
    dev root;   /* positions below this lie at slot == position */
    dev last;   /* last position that it sees */
    /* M-RoPE: int32 [n_rows][ROPE_SECTIONS], the positions that rope rotates by. NULL (.p): `pos` in every section.
     * Attention and the cache always use `pos`. */
    dev section_pos;
    /* These arrays, and K and V of positions before the step's own, were written before the first op of this run of ops, and the
     * last thing before it was an upload. */
    bool settled;
} step_rows;

/* --- rotary embedding -----------------------------------------------------------------------------
 * Pair i of a head is (i, i + n_dims / 2), for i < n_dims / 2. It rotates by position * freq[i]. The last
 * head_dim - n_dims elements of a head are not rotated. */
enum { ROPE_SECTIONS = 3 }; /* M-RoPE: time, height, width */
typedef struct {
    int n_dims;  /* rotated elements of a head: even, at most head_dim */
    dev freq;    /* f32 [n_dims / 2] */
    dev section; /* int32 [n_dims / 2]: the section whose position rotates pair i. NULL (.p): every pair uses `pos` */
} rope_params;

/* --- the paged cache, as ops see it ---------------------------------------------------------------
 * A page holds KV_PAGE positions of all layers of one class:
 *     [layer][K, V][kv head][position in page][head_dim]      (types with scales: cache_type.h)
 * Its id is its offset in the pool in units of KV_UNIT bytes. table[lane * table_stride + slot / KV_PAGE]. */
enum { KV_UNIT = 256, OPS_MAX_HEAD_DIM = 1024 };
typedef struct {
    dev         pool, table;
    int         table_stride;
    int         n_layers, n_kv_heads, head_dim;
    cache_types types;
} kv_class;
/* Returns the bytes of K or V of one layer in one page. */
static inline size_t kv_plane_bytes(const kv_class *c, cache_type t)
{
    return (size_t)c->n_kv_heads * cache_head_bytes(cache_layout_of(t), c->head_dim);
}
/* Returns the bytes of K and V of one layer in one page. */
static inline size_t kv_layer_bytes(const kv_class *c)
{
    return kv_plane_bytes(c, c->types.k) + kv_plane_bytes(c, c->types.v);
}
typedef struct {
    int32_t from_lane, from, to_lane, to; /* slots */
    int32_t turn;                         /* positions by which the key is turned further; 0: copied as it is */
} kv_move_item;

/* --- sampling (promise 2) -------------------------------------------------------------------------*/
typedef struct {
    float    temp;  /* 0: greedy */
    float    top_p; /* 1: off */
    float    min_p; /* 0: off */
    int32_t  top_k; /* 0: off */
    uint64_t seed;
    int32_t  pos; /* of the token that is picked */
} sample_params;

/* One token's logit in one row: first + bias, then the repetition penalty (a positive logit is divided by `repeat`, another
 * multiplied), then - minus (presence and frequency). An item per (row, token). */
typedef struct {
    int32_t row, token;
    float   bias, repeat, minus;
    float   was; /* written by change_logits, read by restore_logits */
} logit_change;
typedef struct {
    int32_t id; /* -1: there are fewer tokens with a finite logit */
    float   logprob;
} token_logprob;

typedef struct {
    int32_t id; /* -1: there are fewer tokens with a finite logit */
    float   logit;
} token_logit;

enum { SAMPLE_TOP_MAX = 64 };
static inline size_t sampling_mask_words(int n_vocab)
{
    return ((size_t)n_vocab + 63) / 64;
} /* bit id & 63 of word id >> 6 */

typedef enum { ACT_GELU_TANH, ACT_SILU } act_kind;

/* --- joined ops ------------------------------------------------------------------------------------
 * Several ops that one kernel can do. A backend may leave them NULL: joined.h calls them, or the single ops instead. */
enum { JOINED_MATMULS = 3, JOINED_NORMS = 3 };
typedef struct { /* Heads on their way to attention. q, k, v: [n_rows][n_heads or n_kv_heads][head_dim], overwritten */
    dev             q, k, v; /* k NULL (.p): no K/V is made */
    dev             w_q, w_k;
    rope_params     rope;
    int             n_heads, layer;
    bool            norm_v, k_as_v; /* V is normed; V is K before its norm, and `v` is room for it */
    const kv_class *c;
    float           eps;
} head_rows;
typedef struct
{ /* Rows of n between two blocks of a layer: y = (res + norm(z) w) * scale, then out[i].y = norm(y) out[i].w */
    dev y, res, z, w;
    /* With parts: z stands for norm(z) w_z + norm(sum over s of slot_w[s] slots[s]) w_slots; z and `sum` are overwritten */
    bool  parts;
    dev   w_z, w_slots, slots, slot_w, sum;
    int   n_slots, n, n_outs;
    float scale, eps;
    struct {
        dev y, w;
    } out[JOINED_NORMS];
} norm_rows;

typedef struct { /* Experts that `router` chooses by logits: y[row][slot] = down(act(gate x) * (up x)) */
    dev           logits, expert_scale, id, w; /* router's */
    dev           y, x;                        /* [n_rows][n_slots][n_embd], [n_rows][n_embd] */
    dev           inner, act;                  /* scratch: [n_rows][n_slots][2 n_ff], [n_rows][n_slots][n_ff] */
    const weight *gate_up, *gate, *up, *down;  /* gate_up, or gate and up */
    int           n_experts, n_slots, n_ff;
    act_kind      kind;
} expert_rows;

typedef enum { ASIDE_BEGIN, ASIDE_END, ASIDE_JOIN } aside_part;

enum { QUEUE_MARKS = 8 };
typedef struct queue queue;
typedef struct {          /* what the queue's scratch must hold; taken once */
    int max_rows;         /* of a step */
    int max_in;           /* widest matmul input */
    int max_expert_slots; /* experts per row; 0 for dense models */
    int n_experts;
    int max_vocab;
} queue_limits;
queue_limits queue_limits_max(const queue_limits *a, const queue_limits *b); /* the larger, field by field */

typedef struct ops ops;
struct ops {
    const char *name; /* "ref", "cpu", "cuda" */
    void       *state;
    const char *kernels;   /* which of its variants runs here: "avx2"; NULL: it has one */
    int         n_threads; /* of the processor; 0: not its work */

    /* memory: alloc gives zeroed bytes, aligned to 256 */
    bool (*alloc)(const ops *o, dev *out, size_t bytes, err *e);
    void (*free)(const ops *o, dev d);
    bool (*weight_load)(const ops *o, weight **out, const weight_src *src, err *e);
    void (*weight_free)(const ops *o, weight *w);
    bool (*queue_new)(const ops *o, queue **out, const queue_limits *lim, err *e);
    /* Makes the queue fit for these limits too: a drafter works on its target's queue. Not inside a step. */
    bool (*queue_reserve)(queue *q, const queue_limits *lim, err *e);
    void (*queue_free)(queue *q);
    void (*close)(ops *o);

    /* host <-> device; upload has read its source when it returns, download is complete after sync */
    void (*upload)(queue *q, dev dst, const void *src, size_t bytes);
    void (*download)(queue *q, void *dst, dev src, size_t bytes);
    void (*sync)(queue *q);
    /* After sync: false when something that was enqueued has failed, with the reason; what it wrote means nothing then,
     * and the queue stays failed. */
    bool (*check)(queue *q, err *e);

    /* A point in the queue's own time, numbered below QUEUE_MARKS; after sync, the seconds from one to a later one. */
    void (*mark)(queue *q, int which);
    double (*between_s)(queue *q, int from, int to);

    /* A run of ops that comes again and again, as one piece:
     *     for (bool done = o->replay(q, key); !done; done = o->record_end(q)) ops, but no upload, download or sync
     * replay: true when the run of this key was recorded before, and has been enqueued. false: what follows may be being
     * recorded. record_end: false when recording failed and nothing has run; the next time round it is not tried again.
     * The key stands for every argument of the run's ops, addresses too (graph_key); queue_reserve forgets all runs, so
     * that what is taken after it, weights and scratch, need not be in keys. */
    bool (*replay)(queue *q, uint64_t key);
    bool (*record_end)(queue *q);

    /* y[r] = table[id[r]] * scale; rows with id < 0 are left alone */
    void (*embed)(queue *q, dev y, const weight *table, dev ids, int n_rows, float scale);
    /* y[r][o] = sum_i w[o][i] x[r][i] */
    void (*matmul)(queue *q, dev y, const weight *w, dev x, int n_rows);
    /* The n_top <= SAMPLE_TOP_MAX largest of what matmul and then softcap (unless cap is 0) would write, to the bit, but
     * they write it nowhere: ranked, ties to the lower id. out: device token_logit [n_rows][n_top]. NULL in backends that
     * gain nothing by it. */
    void (*matmul_top)(queue *q, dev out, const weight *w, dev x, int n_rows, float cap, int n_top);
    /* y[r][s] = w[id[r][s]] x[x_per_slot ? r][s] : r]    id: [n_rows][n_slots] int32, y: [n_rows][n_slots][n_out] */
    void (*matmul_experts)(queue *q, dev y, const weight *w, dev x, bool x_per_slot, dev id, int n_rows, int n_slots);
    /* y = x / sqrt(mean(x^2) + eps) * w, over n; w NULL (.p): 1. With heads, n_rows counts rows * heads. y may be x */
    void (*rms_norm)(queue *q, dev y, dev x, dev w, int n_rows, int n, float eps);
    /* y = (res + rms_norm(x, w)) * scale; y may be res */
    void (*rms_norm_add)(queue *q, dev y, dev res, dev x, dev w, int n_rows, int n, float eps, float scale);
    /* Rotates the heads of x in place, as rope_params describes. x: [n_rows][n_heads][head_dim] */
    void (*rope)(queue *q, dev x, const step_rows *rows, int n_heads, int head_dim, const rope_params *p);
    /* K and V of the rows into the cache; k, v: [n_rows][n_kv_heads][head_dim] */
    void (*kv_store)(queue *q, const kv_class *c, int layer, const step_rows *rows, dev k, dev v);
    /* softmax(scale q.k) v over positions p of the row's own path, p <= last, and pos - p < window when window > 0; 0 for
     * a row that sees nothing. q, y: [n_rows][n_heads][head_dim]; head h reads kv head h / (n_heads / n_kv_heads).
     * Tiles are cut at absolute positions; (max, sum, output) merge left to right. */
    void (*attention)(queue *q, dev y, dev q_rows, int n_heads, const kv_class *c, int layer, const step_rows *rows,
                      float scale, int window);
    /* Copies K and V of all layers from slot `from` of a lane to slot `to` of the same or another lane, item by item in
     * order. items: device kv_move_item[n_items]. A key with a `turn` is rotated by that many positions in every
     * section, in f32, from its stored form. p may be NULL when no item has a turn. */
    void (*kv_move)(queue *q, const kv_class *c, dev items, int n_items, const rope_params *p);
    /* y[r][i] = act(gate[r * gate_stride + i]) * up[r * up_stride + i]; y: [n_rows][n], may be gate when dense */
    void (*gated)(queue *q, dev y, dev gate, int gate_stride, dev up, int up_stride, int n_rows, int n, act_kind act);
    /* Top n_slots experts by softmax(logits), ranked, ties to the lower id; their probabilities made to sum
     * to 1, then times expert_scale[id] (NULL .p: 1). id: int32, w: f32, both [n_rows][n_slots] */
    void (*router)(queue *q, dev id, dev w, dev logits, dev expert_scale, int n_rows, int n_experts, int n_slots);
    /* y[r] = sum over s = 0, 1, ... of w[r][s] * x[r][s]; x: [n_rows][n_slots][n] */
    void (*experts_sum)(queue *q, dev y, dev x, dev w, int n_rows, int n_slots, int n);
    /* y = (a + b) * scale, n elements; y may be a or b */
    void (*add)(queue *q, dev y, dev a, dev b, size_t n, float scale);
    /* x = cap * tanh(x / cap), in place */
    void (*softcap)(queue *q, dev x, size_t n, float cap);
    /* y[r * y_stride + i] = x[idx[r] * x_stride + i]; idx: int32, NULL (.p): r itself */
    void (*copy_rows)(queue *q, dev y, int y_stride, dev x, int x_stride, dev idx, int n_rows, int n);
    /* id[r] of the largest, ties to the lower */
    void (*argmax)(queue *q, dev id, dev logits, int n_rows, int n_vocab);
    /* Bias and penalties, before sampling; restore puts the logits back. items: device logit_change[n_items] */
    void (*change_logits)(queue *q, dev logits, int n_vocab, dev items, int n_items);
    void (*restore_logits)(queue *q, dev logits, int n_vocab, dev items, int n_items);
    /* Row row[i] keeps the tokens whose bit in mask i is set, the others become -inf. masks: device uint64_t
     * [n][sampling_mask_words(n_vocab)], rows: device int32_t[n], none twice */
    void (*mask_logits)(queue *q, dev logits, int n_vocab, dev masks, dev rows, int n);
    /* Natural log-probabilities of the logits as they are: out[r][0] of token id[r], out[r][1 ..] of the n_top likeliest,
     * ranked, ties to the lower id. out: device token_logprob [n_rows][1 + n_top] */
    void (*logprobs)(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab, int n_top);
    /* id[r] picked by params[r]; params: device sample_params[n_rows]; logits are not changed */
    void (*sample)(queue *q, dev id, dev logits, dev params, int n_rows, int n_vocab);
    /* For drafts: the n_top <= SAMPLE_TOP_MAX tokens that `sample` would pick first, best first, with the logarithms of
     * their shares softmax(score / soft); score is what sample compares (the logit when temp is 0), the softmax runs over
     * the SAMPLE_TOP_MAX best. out: device token_logprob [n_rows][n_top], id -1 where there are fewer */
    void (*sample_top)(queue *q, dev out, dev logits, dev params, int n_rows, int n_vocab, int n_top, float soft);
    /* Logits of some tokens to logits of all: y[r][map[sel[r][s] * n + i]] = x[r][s][i], the rest of y[r] is the smallest
     * x[r] minus `below` (INFINITY: never picked). sel: int32 [n_rows][n_slots], NULL (.p): s itself;
     * map: int32; x: [n_rows][n_slots][n]; y: [n_rows][n_vocab] */
    void (*scatter_logits)(queue *q, dev y, dev x, dev sel, dev map, int n_rows, int n_slots, int n, int n_vocab,
                           float below);

    /* Joined ops, NULL in backends that gain nothing by them; call them through joined.h. */
    void (*matmuls)(queue *q, const dev *y, const weight *const *w, int n_w, dev x, int n_rows);
    void (*heads)(queue *q, const head_rows *h, const step_rows *rows);
    void (*norms)(queue *q, const norm_rows *c, int n_rows);
    void (*experts)(queue *q, const expert_rows *e, int n_rows);

    /* Ops that may run beside others: those between aside(q, ASIDE_BEGIN) and aside(q, ASIDE_END) write nothing that the ops
     * from there to aside(q, ASIDE_JOIN) read or write, and the other way round. Call it through joined.h. */
    void (*aside)(queue *q, aside_part part);
};

/* Runs of more rows than this are bound by their work, not by being enqueued: they are not worth recording. */
enum { GRAPH_MAX_ROWS = 64 };
static inline uint64_t graph_key(uint64_t key, uint64_t part)
{
    key = (key ^ part) * 0x9E3779B97F4A7C15u;
    return key ^ key >> 29;
}
static inline uint64_t graph_key_at(uint64_t key, const void *p) { return graph_key(key, (uint64_t)(uintptr_t)p); }
/* For backends: what can be wrong with a source; `known`: the backend multiplies its type. */
bool ops_check_weight(const weight_src *s, bool known, err *e);
/* For backends that do not record. */
bool ops_no_replay(queue *q, uint64_t key);
bool ops_no_record(queue *q);

/* name: "cpu", "ref", "cuda", "cuda:1" and so on, or "auto": a GPU when there is one, else the processor; "cpu:avx2" and
 * the like: with the kernels of that instruction set. n_threads 0: as many as this process may use. */
bool ops_open(ops **out, const char *name, int n_threads, err *e);
void ops_close(ops *o); /* NULL is fine; weights, buffers and queues must be gone */

/* What ops_open can open, without opening it. */
typedef struct {
    char   name[16];  /* as ops_open takes it */
    char   what[128]; /* for people */
    size_t total_bytes, free_bytes;
} ops_device;
int  ops_devices(ops_device *out, int max); /* GPUs first; returns how many were written */
bool ops_device_find(ops_device *out, const char *name, err *e);
#endif
