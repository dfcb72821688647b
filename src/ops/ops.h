/* ops/ops.h - the operations that models are written in. Each backend has one table of functions.
 *
 * Model code never dereferences a `dev`. Token ids, positions, parents, page tables and sampler parameters are
 * device arrays, so that the result of one op can feed the next without the host. Ops are enqueued in order on a
 * queue and may run later; `sync` waits for them. Structs and device addresses that are passed to an op are read before
 * it returns; the arrays at these addresses must live until the op has run. No op allocates memory (promise 4).
 *
 * Promise 1: the numbers of a row depend on its own inputs alone, bit for bit, whatever the number of rows,
 * their order, or the number of threads. So every sum has an order fixed by the weight's shape or by absolute
 * positions. Activations are f32, row-major and dense: [n_rows][n].
 *
 * Threads: a table and its queues are used by one thread at a time. */
#ifndef TANDEM_OPS_OPS_H
#define TANDEM_OPS_OPS_H
#include "base/err.h"
#include "gguf/quant.h"
#include "ops/cache_type.h"
#include "ops/sparse.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    void *p;
} dev; /* an address in the backend's memory */
/* Return the address `bytes` bytes, or n floats, after d. */
static inline dev dev_at(dev d, size_t bytes) { return (dev){(char *)d.p + bytes}; }
static inline dev dev_at_f32(dev d, size_t n) { return dev_at(d, n * sizeof(float)); }

/* --- weights --------------------------------------------------------------------------------------
 * A matrix, or a stack of n_mats of one shape (experts), in the form that the backend multiplies best. */
typedef struct {
    quant_type  type;
    int32_t     n_in, n_out, n_mats; /* n_in is contiguous: data is [n_mats][n_out][n_in] */
    const void *data;                /* read during weight_load only; may be unaligned */
    /* Called repeatedly during weight_load: the first `bytes` of data will not be read again. Some backends never call
     * it. May be NULL. */
    void (*took)(void *ctx, size_t bytes);
    void *ctx;
} weight_src;
typedef struct weight { /* backends append their own fields */
    quant_type type;
    int32_t    n_in, n_out, n_mats;
    size_t     bytes; /* size in device memory */
} weight;

/* --- the rows of a step ---------------------------------------------------------------------------
 * Device arrays of int32, n_rows each. The K/V of a row is stored in `slot` of its lane. Position p of row r is read
 * from slot p if p < root[r], otherwise from the slot of the ancestor of r (or r itself) that has position p. `parent`
 * leads to the ancestors. In a chain slot == pos and root == pos + 1, so `parent` is not read. In a tree
 * slot == root + index of the row among the rows of its lane: siblings share a position but not a slot.
 * A row sees the positions up to `last`. In a target this is its own position. In a drafter that attends in both
 * directions it is the end of the block. For a row without K/V it is the position before its own. If last > pos, the
 * positions after pos are read from the slots of the same number, so last < root. */
typedef struct {
    int n_rows;
    dev token;  /* vocabulary id; -1: embed does not write the row */
    dev pos;    /* position in its own sequence */
    dev lane;   /* index of its page table; -1: a padding row (ops.padding) */
    dev slot;   /* slot of its K/V in the pages of the lane */
    dev parent; /* row of this step that precedes it in its sequence; read for positions from root on only */
    dev root;   /* positions below this are in the slot of the same number */
    dev last;   /* last position that the row sees */
    /* M-RoPE: int32 [n_rows][ROPE_SECTIONS], the positions that rope rotates by. NULL (.p): `pos` in every section.
     * Attention and the cache always use `pos`. */
    dev section_pos;
    /* For recurrent layers. NULL (.p) for models without them. A lane's rows are contiguous, sure rows first,
     * then kept rows (kv/lane.h). */
    dev before; /* the row before it on its path, in this step; -1: its path begins with the lane's live state */
    dev kept;   /* its place among the kept rows (kv/lane.h); -1: a sure row, which changes the live state */
    /* The caller promises that these arrays, and K and V of all positions before the step, were written before the
     * first op that uses them, with an upload directly before that op. A backend may then read them while the op before
     * still runs. It takes positions that are n_rows and more before a row's own for those before the step, so these
     * are all rows that store K/V in it. */
    bool settled;
    /* Rows chain_from to chain_to - 1 are chains of 16 rows or more, and see no position from chain_end on; a hint for
     * attention, read when the step is not recorded. chain_to 0: nothing is known. Such a row sees at most chain_sees
     * positions from its own on; 0: as many as the step has rows. */
    int chain_from, chain_to, chain_end, chain_sees;
    /* Chains or trees of 8 rows or more, after 4,096 positions or more, have most of the keys that the rows see: a hint
     * for attention. A recording has one value (ops.asks_lanes). */
    bool few_lanes;
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

/* --- the paged cache ---------------------------------------------------------------------------
 * A page holds KV_PAGE positions of all layers of one class:
 *     [layer][K, V][kv head][position in page][head_dim]      (types with scales: cache_type.h)
 * A class with sparse attention (ops/sparse.h) has summaries of K after V of each layer:
 *     f16 [kv head][smallest, largest][head_dim]      written with the last slot of the page
 * The id of a page is its offset in the pool in units of KV_UNIT bytes. The page of a slot is
 * table[lane * table_stride + slot / KV_PAGE].
 * Rows of q, k, v and y may have a part of each head, row_dim elements: kv_store makes the others of a stored head
 * zero, so that they count for nothing. Only with types without scales, and without sparse attention. */
enum { KV_UNIT = 256, OPS_MAX_HEAD_DIM = CACHE_MAX_HEAD };
typedef struct {
    dev           pool, table;  /* table: int32 [lanes][table_stride] */
    int           table_stride; /* pages that a lane can have */
    int           n_layers, n_kv_heads;
    int           head_dim; /* a multiple of 8, at most OPS_MAX_HEAD_DIM */
    int           row_dim;  /* elements of a head that rows have, a multiple of 8; 0: head_dim */
    cache_types   types;
    sparse_params sparse; /* zeros: attention is dense */
} kv_class;
static inline int kv_row_dim(const kv_class *c) { return c->row_dim ? c->row_dim : c->head_dim; }
/* Returns the bytes of K or V of one layer in one page. */
static inline size_t kv_plane_bytes(const kv_class *c, cache_type t)
{
    return (size_t)c->n_kv_heads * cache_head_bytes(cache_layout_of(t), c->head_dim);
}
/* Returns the bytes of the summaries of one layer in one page. */
static inline size_t kv_summary_bytes(const kv_class *c)
{
    return c->sparse.drop ? (size_t)c->n_kv_heads * 2 * (size_t)c->head_dim * sizeof(uint16_t) : 0;
}
/* Returns the bytes of K, V and summaries of one layer in one page. */
static inline size_t kv_layer_bytes(const kv_class *c)
{
    return kv_plane_bytes(c, c->types.k) + kv_plane_bytes(c, c->types.v) + kv_summary_bytes(c);
}
typedef struct {
    int32_t from_lane, from, to_lane, to; /* slots */
    int32_t rotation;                     /* positions by which the key is rotated; 0: copied unchanged */
} kv_move_item;

/* --- recurrent layers: gated delta nets ------------------------------------------------------------
 * A layer has n_k_heads keys and queries and n_v_heads values of head_dim elements: n_channels in all, in the order
 * queries, keys, values. A lane's state of one layer is
 *     f32 [n_v_heads][head_dim of the value][head_dim of the key]     the memory S, transposed
 *     f32 [n_taps - 1][n_channels]                                    the last inputs of the convolution
 * and a kept row stores what applies it to a state later:
 *     f32 [n_v_heads][head_dim] corrections, [n_k_heads][head_dim] keys, [n_v_heads] decays, [n_channels] inputs
 * where the decays are padded to a multiple of 4 floats.
 * A lane whose first row has position 0 starts from zeros. The rows of a path are applied one after another, so the
 * bits do not depend on how a text is divided into steps. */
typedef struct {
    dev    pool, table; /* the live state of a lane is at byte KV_UNIT * table[lane * table_stride] of the pool */
    int    table_stride;
    dev    kept; /* [place][row_bytes], layer by layer */
    size_t row_bytes;
    int    n_layers, n_k_heads, n_v_heads, head_dim, n_taps;
    bool   tiled; /* value head h has key head h % n_k_heads; otherwise h / (n_v_heads / n_k_heads) */
} delta_class;
enum { DELTA_MAX_TAPS = 8, DELTA_MAX_HEAD = 256 };
static inline int delta_channels(const delta_class *c) { return (2 * c->n_k_heads + c->n_v_heads) * c->head_dim; }
static inline int delta_key_head(const delta_class *c, int v_head)
{
    return c->tiled ? v_head % c->n_k_heads : v_head / (c->n_v_heads / c->n_k_heads);
}
/* Floats of one layer: the memory, the state with the inputs, the parts of a kept row before its inputs, all of it. */
static inline size_t delta_memory_floats(const delta_class *c)
{
    return (size_t)c->n_v_heads * (size_t)c->head_dim * (size_t)c->head_dim;
}
static inline size_t delta_state_floats(const delta_class *c)
{
    return delta_memory_floats(c) + (size_t)(c->n_taps - 1) * (size_t)delta_channels(c);
}
static inline size_t delta_tape_floats(const delta_class *c)
{
    return (size_t)(c->n_v_heads + c->n_k_heads) * (size_t)c->head_dim + ((size_t)c->n_v_heads + 3) / 4 * 4;
}
static inline size_t delta_kept_floats(const delta_class *c)
{
    return delta_tape_floats(c) + (size_t)delta_channels(c);
}
typedef struct {    /* the rows of one layer */
    dev y;          /* [n_rows][n_v_heads][head_dim] */
    dev x;          /* [n_rows][n_channels]: queries, keys and values before the convolution */
    dev conv;       /* scratch of the same size */
    dev a, b;       /* [n_rows][n_v_heads], overwritten */
    dev w;          /* [n_taps][n_channels] */
    dev rate, bias; /* [n_v_heads] */
} delta_io;
/* Kept rows to apply to the live state of a lane. */
typedef struct {
    int32_t lane;
    int32_t pos;      /* length that the state covers; 0: treat it as all zeros */
    int32_t first, n; /* places[first .. first + n - 1], in this order */
} delta_replay_item;

/* --- sampling (promise 2) -------------------------------------------------------------------------*/
typedef struct {
    float    temp;  /* 0: greedy */
    float    top_p; /* 1: off */
    float    min_p; /* 0: off */
    int32_t  top_k; /* 0: off */
    uint64_t seed;
    int32_t  pos; /* position of the token to pick */
} sample_params;

/* A change of one logit, at most one per (row, token). `bias` is added first. Then the repetition penalty divides a
 * positive logit by `repeat` and multiplies any other. Then `minus` (presence and frequency) is subtracted. */
typedef struct {
    int32_t row, token;
    float   bias, repeat, minus;
    float   was; /* the original logit, written by change_logits for restore_logits */
} logit_change;
typedef struct {
    int32_t id; /* -1: no more tokens with a finite logit */
    float   logprob;
} token_logprob;

typedef struct {
    int32_t id; /* -1: no more tokens with a finite logit */
    float   logit;
} token_logit;

enum { SAMPLE_TOP_MAX = 64 }; /* maximum of n_top */
/* Returns the number of words of a mask. The bit of a token is bit id & 63 of word id >> 6. */
static inline size_t sampling_mask_words(int n_vocab) { return ((size_t)n_vocab + 63) / 64; }

typedef enum { ACT_GELU_TANH, ACT_SILU, ACT_SIGMOID } act_kind; /* ACT_SIGMOID: 1 / (1 + e^-x), for `gated` only */

/* Activations of ops.bias: none; GELU by its tanh formula; 0.5 x (1 + erf(x / sqrt 2)) */
typedef enum { BIAS_PLAIN, BIAS_GELU_TANH, BIAS_GELU } bias_act;

/* --- joined ops ------------------------------------------------------------------------------------
 * Sequences of ops that one kernel can run. Optional: joined.h calls the joined op if the backend has it, otherwise the
 * single ops. */
enum { JOINED_MATMULS = 4, JOINED_NORMS = 3 };
typedef struct { /* The heads before attention: [n_rows][n_heads or n_kv_heads][row_dim]. q becomes the result; k and v
                  * may be overwritten */
    dev             q, k, v; /* k NULL (.p): no K/V is stored */
    dev             q_in;    /* the queries, if they are not in q: heads q_stride elements apart */
    int             q_stride;
    dev             w_q, w_k; /* weights of the norms, [row_dim] */
    rope_params     rope;
    int             n_heads, layer;
    bool            norm_v; /* V is normalised, without a weight */
    bool            k_as_v; /* only with norm_v: V is K before its norm, and `v` is scratch */
    const kv_class *c;
    float           eps;
} head_rows;
typedef struct
{ /* Rows of n between two blocks of a layer: y = (res + norm(z) w) * scale, then out[i].y = norm(y) out[i].w */
    dev y, res, z, w; /* y may be res */
    /* If parts is set, z is replaced by norm(z) w_z + norm(sum over s of slot_w[s] slots[s]) w_slots first. Then z and
     * `sum`, [n_rows][n], may be overwritten. slots: [n_rows][n_slots][n], slot_w: [n_rows][n_slots]. */
    bool  parts;
    dev   w_z, w_slots, slots, slot_w, sum;
    int   n_slots, n, n_outs; /* n_outs: at most JOINED_NORMS */
    float scale, eps;
    struct {
        dev y, w;
    } out[JOINED_NORMS];
} norm_rows;

typedef struct
{ /* The end of a block without a norm of its own: y = res + z, then out = norm(y) w. If slots is set (.p),
                  * z is computed first: z = sum over s of slot_w[s] slots[s] + shared / (1 + e^-gate) */
    dev   y, res, z;     /* [n_rows][n]; y may be res; z is scratch with slots */
    dev   slots, slot_w; /* [n_rows][n_slots][n], [n_rows][n_slots] */
    dev   shared, gate;  /* [n_rows][n], [n_rows] */
    dev   out, w;        /* out NULL (.p): no norm */
    int   n_slots, n;
    float eps;
} sum_rows;

typedef struct { /* Experts that `router` chooses by logits: y[row][slot] = down(act(gate x) * (up x)) */
    dev           logits, expert_scale, id, w; /* as for router, which writes id and w */
    dev           y, x;                        /* [n_rows][n_slots][n_embd], [n_rows][n_embd] */
    dev           inner, act;                  /* scratch: [n_rows][n_slots][2 n_ff], [n_rows][n_slots][n_ff] */
    const weight *gate_up, *gate, *up, *down;  /* gate_up, or gate and up */
    int           n_experts, n_slots, n_ff;
    act_kind      kind;
} expert_rows;

/* --- drafters that fill in blocks ------------------------------------------------------------------*/
typedef struct { /* Convolves the rows of blocks, by channel, with kernels to which each row adds its own part by groups
                  * of `group` channels: y[r][i] = sum over u = 0, 1, ..., u < n_taps, u <= place[r], of
                  * (base[u][i] + delta[r * delta_stride + u * (n / group) + i / group]) * x[r - u][i] */
    dev y, x;    /* [n_rows][n]; y is not x */
    dev base;    /* [n_taps][n] */
    dev delta;
    dev place; /* int32 [n_rows]: index of the row in its block, whose rows are contiguous */
    int delta_stride, n, n_taps, group;
} conv_rows;
typedef struct { /* Scores n_top <= SAMPLE_TOP_MAX candidates (id, logprob) = top[r][s] of each row by the token before:
                  * y[r][id] = logprob + sum over i of a[r][i] b[r][i] c[r][s][i]
                  * Candidates with an id of -1 are left out. The other elements of y[r] become the smallest of these
                  * minus `below` (INFINITY: never picked), and are not finite without candidates */
    dev   y;     /* [n_rows][n_vocab] */
    dev   top;   /* device token_logprob [n_rows][n_top], distinct ids */
    dev   a, b;  /* [n_rows][n]; b NULL (.p): 1 */
    dev   c;     /* [n_rows][n_top][n] */
    int   n_top, n, n_vocab;
    float below;
} pair_rows;

typedef enum { ASIDE_BEGIN, ASIDE_END, ASIDE_JOIN } aside_part; /* see ops.aside */

typedef struct {
    int      n;        /* recordings that are kept */
    size_t   bytes;    /* device memory that they take */
    uint64_t recorded; /* sequences that were recorded since the queue was made */
} graph_counts;

enum { QUEUE_MARKS = 8 };
typedef struct queue queue; /* ops in order; defined by each backend */
typedef struct {            /* maximum sizes, which determine the scratch of a queue; larger ones must not be passed */
    int max_rows;           /* rows of a step */
    int max_in;             /* widest matmul input */
    int max_expert_slots;   /* experts per row; 0 for dense models */
    int n_experts;
    int max_vocab;
    int max_expert_in; /* widest input of experts that each have a row of their own; 0: max_in */
    int max_expert_x;  /* widest input of experts that share a row; 0: max_in */
    /* Scratch of sparse attention: query heads times pages of a row, rounded up to 16; 0: attention is dense. */
    size_t sparse;
} queue_limits;
queue_limits queue_limits_max(const queue_limits *a, const queue_limits *b); /* the larger, field by field */

typedef struct ops ops;
struct ops {
    const char *name;         /* "ref", "cpu", "cuda"; "profile" for ops/profile.h */
    void       *state;        /* private to the backend */
    const char *kernels;      /* the variant in use, such as "avx2"; NULL: there is only one */
    int         n_threads;    /* threads of the processor; 0: the backend does not run on it, or has no threads */
    bool        kv_scales;    /* the paged cache may have types with scales */
    bool        kv_sparse;    /* attention may be sparse */
    const int  *f16_heads;    /* sizes of heads for which f16 pages make attention fast, 0 ends them; may be NULL */
    bool        runs_later;   /* ops are enqueued and run while the host goes on; otherwise they run at once */
    int         default_rows; /* rows of a step unless a number is given; 0: STEP_DEFAULT_ROWS */

    /* Memory. alloc returns zeroed bytes, aligned to 256. On failure *out is NULL, here and below. The functions that
     * free accept NULL. Everything is freed before close, which frees the table itself. */
    bool (*alloc)(const ops *o, dev *out, size_t bytes, err *e);
    void (*free)(const ops *o, dev d);
    bool (*weight_load)(const ops *o, weight **out, const weight_src *src, err *e);
    void (*weight_free)(const ops *o, weight *w);
    bool (*queue_new)(const ops *o, queue **out, const queue_limits *lim, err *e);
    /* Grows the scratch to these limits; a drafter uses the queue of its target. Must not be called inside a step. */
    bool (*queue_reserve)(queue *q, const queue_limits *lim, err *e);
    void (*queue_free)(queue *q);
    void (*close)(ops *o);

    /* Copies between host and device. The source of an upload may change when the call returns. A download is complete
     * after sync; its target must live until then. sync blocks until all ops of the queue have run. */
    void (*upload)(queue *q, dev dst, const void *src, size_t bytes);
    void (*download)(queue *q, void *dst, dev src, size_t bytes);
    void (*sync)(queue *q);
    /* Call after sync. Returns false with the reason if an op failed: its results are undefined, and the queue stays
     * in this state. */
    bool (*check)(queue *q, err *e);

    /* mark records a point in time when the queue reaches it; which < QUEUE_MARKS. between_s returns the seconds
     * between two marks, after sync. */
    void (*mark)(queue *q, int which);
    double (*between_s)(queue *q, int from, int to);

    /* Records a sequence of ops that is repeated, and launches it as one piece:
     *     for (bool done = o->replay(q, key); !done; done = o->record_end(q)) ops, but no upload, download or sync
     * replay enqueues the sequence and returns true if it was recorded under this key before. Otherwise it returns
     * false, and the ops that follow may be recorded. record_end returns false if recording failed and nothing ran; in
     * the next iteration the ops are not recorded. The key covers every argument of the ops, including addresses
     * (graph_key). queue_reserve drops all recordings, so memory that is allocated once after it need not be part of
     * keys. */
    bool (*replay)(queue *q, uint64_t key);
    bool (*record_end)(queue *q);
    /* Optional, both: NULL for backends that do not record.
     * padding: from here on, rows whose `lane` is negative are padding: no expert is computed for them. NULL (.p): no
     * row is padding. A recorded step has a number of rows that graph_rows returns, and its last rows may be padding,
     * with lane -1, token -1 and last -1: they store no K/V, attend to nothing, and their results are undefined.
     * recordings: counts for metrics and tests. */
    void (*padding)(queue *q, dev lane);
    graph_counts (*recordings)(const queue *q);

    /* y[r] = table[ids[r]] * scale; rows with an id < 0 are not written */
    void (*embed)(queue *q, dev y, const weight *table, dev ids, int n_rows, float scale);
    /* y[r][o] = sum_i w[o][i] x[r][i] */
    void (*matmul)(queue *q, dev y, const weight *w, dev x, int n_rows);
    /* Writes the n_top <= SAMPLE_TOP_MAX largest results of matmul followed by softcap (no softcap if cap is 0), with
     * the same bits, ranked, ties to the lower id; only finite ones, then ids of -1. out: device token_logit
     * [n_rows][n_top]. Optional: this member may be NULL. */
    void (*matmul_top)(queue *q, dev out, const weight *w, dev x, int n_rows, float cap, int n_top);
    /* y[r][s] = w[id[r][s]] x[r], or with x_per_slot w[id[r][s]] x[r][s].
     * id: int32 [n_rows][n_slots], y: [n_rows][n_slots][n_out] */
    void (*matmul_experts)(queue *q, dev y, const weight *w, dev x, bool x_per_slot, dev id, int n_rows, int n_slots);
    /* y = x / sqrt(mean(x^2) + eps) * w, over n; w NULL (.p): 1. With heads, n_rows counts rows * heads. y may be x */
    void (*rms_norm)(queue *q, dev y, dev x, dev w, int n_rows, int n, float eps);
    /* y = (res + rms_norm(x, w)) * scale; y may be res */
    void (*rms_norm_add)(queue *q, dev y, dev res, dev x, dev w, int n_rows, int n, float eps, float scale);
    /* Rotates the heads of x in place, as rope_params describes. x: [n_rows][n_heads][head_dim] */
    void (*rope)(queue *q, dev x, const step_rows *rows, int n_heads, int head_dim, const rope_params *p);
    /* Stores K and V of the rows in the cache. k, v: [n_rows][n_kv_heads][row_dim]. Then, in a class with sparse
     * attention, writes the summaries of the pages whose last slot was stored. */
    void (*kv_store)(queue *q, const kv_class *c, int layer, const step_rows *rows, dev k, dev v);
    /* y = softmax(scale q.k) v over the positions p of the row's own path with p <= last, and pos - p < window if
     * window > 0; 0 for a row that sees no position. q, y: [n_rows][n_heads][row_dim]; head h reads kv head
     * h / (n_heads / n_kv_heads). Tiles are cut at absolute positions; (max, sum, output) merge from left to right.
     * In a class with sparse attention a row sees the pages that it keeps (ops/sparse.h); window is 0 then. */
    void (*attention)(queue *q, dev y, dev q_rows, int n_heads, const kv_class *c, int layer, const step_rows *rows,
                      float scale, int window);
    /* Copies K and V of all layers from slot `from` of a lane to slot `to` of the same or another lane, item by item in
     * order. items: device kv_move_item[n_items]. A key with a `rotation` is rotated by that many positions in every
     * section, in f32, from its stored form. p may be NULL when no item has a rotation. Then, in a class with sparse
     * attention, writes the summaries of the pages whose last slot is a `to`. */
    void (*kv_move)(queue *q, const kv_class *c, dev items, int n_items, const rope_params *p);
    /* y[r][i] = act(gate[r * gate_stride + i]) * up[r * up_stride + i]; y: [n_rows][n], may be gate when dense */
    void (*gated)(queue *q, dev y, dev gate, int gate_stride, dev up, int up_stride, int n_rows, int n, act_kind act);
    /* Selects the n_slots experts with the highest softmax(logits), ranked, ties to the lower id. Their weights are
     * these probabilities divided by their sum, times expert_scale[id] (NULL .p: 1).
     * id: int32, w: f32, both [n_rows][n_slots] */
    void (*router)(queue *q, dev id, dev w, dev logits, dev expert_scale, int n_rows, int n_experts, int n_slots);
    /* y[r] = sum over s = 0, 1, ... of w[r][s] * x[r][s]; x: [n_rows][n_slots][n] */
    void (*experts_sum)(queue *q, dev y, dev x, dev w, int n_rows, int n_slots, int n);
    /* y = (a + b) * scale, n elements; y may be a or b */
    void (*add)(queue *q, dev y, dev a, dev b, size_t n, float scale);
    /* y[r] = a[r] + b[r] / (1 + e^-gate[r]), rows of n; y may be a or b */
    void (*add_gated)(queue *q, dev y, dev a, dev b, dev gate, int n_rows, int n);
    /* For the encoders of pictures; y may be x in the first three, and res.
     * y = (x - mean(x)) / sqrt(var(x) + eps) * w + b, over n; var(x): the mean of (x - mean(x))^2 */
    void (*layer_norm)(queue *q, dev y, dev x, dev w, dev b, int n_rows, int n, float eps);
    /* y[r] = res[r] + act(x[r] + b), rows of n; res NULL (.p): 0 */
    void (*bias)(queue *q, dev y, dev res, dev x, dev b, int n_rows, int n, bias_act act);
    /* y = x limited to low .. high, n elements */
    void (*clamp)(queue *q, dev y, dev x, size_t n, float low, float high);
    /* y[i] = table[x[i]], n elements. x: bytes, table: f32 [256] */
    void (*lookup)(queue *q, dev y, dev x, dev table, size_t n);
    /* y[r][i] = (scale * sum over s = 0, 1, ... of x[r][s][i] + add[i]) * by[i]; add and by NULL (.p): 0 and 1.
     * x: [n_rows][n_each][n] */
    void (*pool)(queue *q, dev y, dev x, dev add, dev by, int n_rows, int n_each, int n, float scale);
    /* A gated delta net. First the convolution of rows with those before them on their paths, by channel, then SiLU:
     *     c[r][i] = silu(sum_j w[j][i] x[n_taps - 1 - j rows before r][i])
     * Then the gated delta rule, with q, k of length 1 (eps 1e-6 under the root), q times head_dim^-0.5, decay =
     * exp(rate softplus(a + bias)), beta = 1 / (1 + e^-b), for each row and value head:
     *     S = decay S;  d = beta (v - S k);  S = S + d k^T;  y = S q
     * Sure rows go into the live state, kept rows into `kept`. */
    void (*delta)(queue *q, const delta_io *io, const delta_class *c, int layer, const step_rows *rows);
    /* Applies kept rows to the live states of all layers, with the bits of sure rows. items: device
     * delta_replay_item[n_items], places: device int32 */
    void (*delta_replay)(queue *q, const delta_class *c, dev items, int n_items, dev places);
    /* x = cap * tanh(x / cap), in place */
    void (*softcap)(queue *q, dev x, size_t n, float cap);
    /* y[r * y_stride + i] = x[idx[r] * x_stride + i]; idx: int32, NULL (.p): r itself */
    void (*copy_rows)(queue *q, dev y, int y_stride, dev x, int x_stride, dev idx, int n_rows, int n);
    /* id[r] = index of the largest finite logit, ties to the lower id; -1: none is finite */
    void (*argmax)(queue *q, dev id, dev logits, int n_rows, int n_vocab);
    /* Apply bias and penalties before sampling, and undo them. items: device logit_change[n_items]; change_logits
     * writes `was` for restore_logits */
    void (*change_logits)(queue *q, dev logits, int n_vocab, dev items, int n_items);
    void (*restore_logits)(queue *q, dev logits, int n_vocab, dev items, int n_items);
    /* Sets the logits of row rows[i] to -inf for tokens whose bit in mask i is clear. masks: device uint64_t
     * [n][sampling_mask_words(n_vocab)], rows: device int32_t[n], distinct */
    void (*mask_logits)(queue *q, dev logits, int n_vocab, dev masks, dev rows, int n);
    /* Writes natural log-probabilities: out[r][0] for token id[r], out[r][1 ..] for the n_top most likely tokens,
     * ranked, ties to the lower id. A token without a finite logit has -infinity. out: device token_logprob
     * [n_rows][1 + n_top] */
    void (*logprobs)(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab, int n_top);
    /* For drafts: out[r] = softmax(logits[r])[id[r]], about: the backends round differently; 0 where id[r] is -1.
     * out: device float[n_rows] */
    void (*confidence)(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab);
    /* Picks id[r] with params[r], as sampling_pick does; -1: no logit is finite. params: device sample_params[n_rows].
     * The logits are not changed. */
    void (*sample)(queue *q, dev id, dev logits, dev params, int n_rows, int n_vocab);
    /* For drafts: writes the n_top <= SAMPLE_TOP_MAX tokens with the highest scores, best first, and the logarithms of
     * their softmax(score / soft), soft > 0. `sample` picks the token with the highest score; with temp 0 the score is
     * the logit.
     * The softmax covers the SAMPLE_TOP_MAX best tokens. out: device token_logprob [n_rows][n_top], id -1 if fewer */
    void (*sample_top)(queue *q, dev out, dev logits, dev params, int n_rows, int n_vocab, int n_top, float soft);
    /* Expands logits of some tokens to all tokens: y[r][map[sel[r][s] * n + i]] = x[r][s][i]. The other elements of
     * y[r] become the smallest x[r] minus `below` (INFINITY: never picked). sel: int32 [n_rows][n_slots], NULL (.p): s;
     * map: int32 token ids; x: [n_rows][n_slots][n]; y: [n_rows][n_vocab] */
    void (*scatter_logits)(queue *q, dev y, dev x, dev sel, dev map, int n_rows, int n_slots, int n, int n_vocab,
                           float below);
    void (*block_conv)(queue *q, const conv_rows *c, int n_rows);
    void (*pair_logits)(queue *q, const pair_rows *c, int n_rows);

    /* Joined ops. Optional: these members may be NULL; call them through joined.h. */
    void (*matmuls)(queue *q, const dev *y, const weight *const *w, int n_w, dev x, int n_rows);
    /* Returns false, having done nothing, where it does not support the shapes. */
    bool (*gate_up)(queue *q, dev y, const weight *gate, const weight *up, dev x, int n_rows, act_kind act);
    void (*heads)(queue *q, const head_rows *h, const step_rows *rows);
    void (*norms)(queue *q, const norm_rows *c, int n_rows);
    void (*sums)(queue *q, const sum_rows *c, int n_rows);
    /* y = rms_norm(x, w) * act(gate), head by head: [n_rows][n_heads][n]; y may be gate */
    void (*gated_norm)(queue *q, dev y, dev x, dev w, dev gate, int n_rows, int n_heads, int n, float eps,
                       act_kind act);
    /* y = act(gate) * x, head by head: [n_rows][n_heads][n]; a head of gate begins gate_stride elements after the one
     * before it */
    void (*gated_heads)(queue *q, dev y, dev gate, int gate_stride, dev x, int n_rows, int n_heads, int n,
                        act_kind act);
    void (*experts)(queue *q, const expert_rows *e, int n_rows);

    /* Marks ops that may run concurrently: the ops between ASIDE_BEGIN and ASIDE_END write nothing that the ops between
     * ASIDE_END and ASIDE_JOIN read or write, and vice versa. Optional: call it through joined.h. */
    void (*aside)(queue *q, aside_part part);

    /* Returns whether step_rows.few_lanes may change how attention over this class runs in steps of n_rows rows, which
     * then are recorded with both values. Optional: NULL: never. */
    bool (*asks_lanes)(queue *q, const kv_class *c, int n_rows);
};

/* Steps with more rows than this are not recorded: the time to enqueue their ops does not matter. */
enum { GRAPH_MAX_ROWS = 64 };
/* Returns the number of rows that a step of n >= 1 rows runs with, at most max >= n: the next bucket if the backend
 * records it, otherwise n. */
int graph_rows(const ops *o, int n, int max);
/* Returns the next larger result of graph_rows after `rows`, 0 at first; 0: there is none, or the backend does not
 * record. For recording all steps in advance. */
int graph_rows_after(const ops *o, int rows, int max);
/* Return `key` extended by a number or an address. A key for replay starts as any number. */
static inline uint64_t graph_key(uint64_t key, uint64_t part)
{
    key = (key ^ part) * 0x9E3779B97F4A7C15u;
    return key ^ key >> 29;
}
static inline uint64_t graph_key_at(uint64_t key, const void *p) { return graph_key(key, (uint64_t)(uintptr_t)p); }
/* For backends: checks the type and shape of a source. known: the backend supports its type. */
bool ops_check_weight(const weight_src *s, bool known, err *e);
/* Fails when the backend cannot store heads of this size as these types. */
bool ops_check_kv(const ops *o, cache_types t, int head_dim, err *e);
/* For backends that do not record: the members replay (always false) and record_end (always true). */
bool ops_no_replay(queue *q, uint64_t key);
bool ops_no_record(queue *q);

/* Opens a backend. name is "cpu", "ref", "cuda", "cuda:1" and so on, or "auto": a GPU if there is one, otherwise the
 * processor. "cpu:avx2" selects the kernels of an instruction set. n_threads: threads of the processor, which a GPU
 * uses to load weights; 0: all that this process may use. On failure *out is NULL. */
bool ops_open(ops **out, const char *name, int n_threads, err *e);
void ops_close(ops *o); /* o may be NULL; all weights, buffers and queues must have been freed */

/* A device that ops_open can open. */
typedef struct {
    char   name[16];                /* for ops_open */
    char   what[128];               /* description, such as the model of the GPU */
    size_t total_bytes, free_bytes; /* memory */
} ops_device;
/* Writes up to max devices that can be used, GPUs first, then the processor. Returns their number. */
int ops_devices(ops_device *out, int max);
/* Describes a device by its name for ops_open, without opening it. */
bool ops_device_find(ops_device *out, const char *name, err *e);
#endif
