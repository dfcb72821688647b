/* ops/cpu/kernels.h - the kernels that cpu.c calls. They are compiled once per instruction set.
 *
 * A kernel runs items [from, to) of a job described by `args`, on thread `thread` of the pool. The comment of each
 * argument struct defines an item. No two items write the same number of a result, so every division among threads
 * gives the same bits (promise 1). Items of one thread share its scratch and, for matmul_top, its rankings, which cpu.c
 * merges to the same result for every division. Kernels allocate nothing. ops.h defines the operations and the shapes
 * of their arguments. */
#ifndef TANDEM_OPS_CPU_KERNELS_H
#define TANDEM_OPS_CPU_KERNELS_H
#include "ops/delta_view.h"
#include "ops/kv_view.h"

typedef void cpu_kernel(const void *args, size_t from, size_t to, int thread);

/* clang-format off */
#define CPU_KERNELS(X)                                                                                                 \
    X(pack) X(embed) X(quantise) X(matmul) X(rms_norm) X(rope) X(kv_store) X(kv_move) X(attention) X(attention_merge)  \
    X(kv_summary) X(page_bounds) X(page_choice)                                                                        \
    X(gated) X(router) X(experts_sum) X(add) X(softcap) X(copy_rows) X(scatter_logits) X(add_gated) X(conv)            \
    X(layer_norm) X(bias) X(clamp) X(lookup) X(pool) X(confidence)                                                     \
    X(delta_heads) X(delta) X(delta_replay) X(conv_replay) X(block_conv) X(pair_logits)
/* clang-format on */

#define CPU_MEMBER(name) cpu_kernel *name;
typedef struct {
    const char *isa; /* "base", "avx2" or "vnni" */
    CPU_KERNELS(CPU_MEMBER)
} cpu_kernels;

extern const cpu_kernels cpu_base_kernels, cpu_avx2_kernels, cpu_vnni_kernels; /* base: the only one outside x86-64 */

#ifdef CPU_ISA /* inside a kernel file: CPU_FN(pack) is cpu_avx2_pack */
#define CPU_PASTE_(isa, name) cpu_##isa##_##name
#define CPU_PASTE(isa, name)  CPU_PASTE_(isa, name)
#define CPU_FN(name)          CPU_PASTE(CPU_ISA, name)
#define CPU_DECLARE(name)     cpu_kernel CPU_FN(name);
CPU_KERNELS(CPU_DECLARE)
#endif

/* --- weights --------------------------------------------------------------------------------------*/
enum {
    TILE_ROWS  = 8, /* output rows of a tile, one per SIMD lane */
    TILE_STRIP = 4  /* tiles that matmul multiplies at a time; cpu.c cuts chunks at multiples of it */
};
typedef struct {
    weight   pub;        /* first member: model code holds a pointer to it */
    uint8_t *tiles;      /* [n_mats][n_tiles] tiles */
    size_t   tile_bytes; /* TILE_ROWS rows, all inputs; layouts in tile.h */
    size_t   n_tiles;    /* per matrix: n_out / 8, rounded up; padding rows are zero */
} cpu_weight;

typedef struct {                 /* item: a tile; numbered over all matrices */
    const cpu_weight *w;         /* its tiles are written */
    const uint8_t    *src;       /* the file's rows of all matrices */
    size_t            row_bytes; /* bytes of a row of src */
    size_t            first;     /* tile of item 0 */
} cpu_pack_args;

typedef struct { /* item: a row */
    float            *y;
    const cpu_weight *w;
    const int32_t    *id;
    float             scale;
} cpu_embed_args;

/* --- matmul ---------------------------------------------------------------------------------------*/
typedef struct { /* 32 activations: x = d * q, with |q| <= 127 */
    int8_t  q[QK];
    float   d;
    float   ds;         /* d * sum of q, for types with a minimum */
    int32_t off8, low8; /* -8 * sum of q, and of its first half: the effect of an offset of 8 */
} cpu_xblock;

typedef struct { /* item: a block; rows are contiguous */
    cpu_xblock  *out;
    const float *x;
} cpu_quantise_args;

typedef struct { /* a thread's best outputs of a row */
    int         n;
    token_logit best[SAMPLE_TOP_MAX];
} cpu_ranking;
typedef struct {
    cpu_ranking *seen; /* [thread][n_rows] */
    int          n_rows, n_top;
    float        cap; /* softcap; 0: none */
} cpu_top_args;

/* Pairs (row, slot) are numbered row * n_slots + slot and sorted into runs of one matrix each: run g is
 * order[first[g]] to order[first[g + 1] - 1] and uses matrix mat[g]. A plain matmul has one run, one slot, no
 * `order`. */
enum { CPU_ROW_BLOCK = 32 }; /* rows that pass over a chunk of tiles before the next rows do */
typedef struct {             /* item: a tile of a run's matrix; numbered over all runs */
    const cpu_weight *w;
    float            *y;          /* [pair][n_out] */
    const void       *x;          /* f32, or cpu_xblock for quantised weights */
    size_t            x_bytes;    /* bytes of a row of x */
    int               pairs_to_x; /* row of x = pair / pairs_to_x: n_slots, or 1 */
    const int32_t    *order;      /* NULL: pair i is i */
    const int32_t    *first, *mat;

    const cpu_top_args *top; /* not NULL: for matmul_top, ranks the outputs and does not write y */
} cpu_matmul_args;

/* --- rows and elements ----------------------------------------------------------------------------*/
typedef struct { /* item: a row; y = (res + norm(x) * w) * scale; res NULL: y = norm(x) * w; w NULL: 1 */
    float       *y;
    const float *res, *x, *w;
    int          n;
    float        eps, scale;
} cpu_norm_args;

typedef struct { /* item: a row */
    float         *x;
    const int32_t *pos, *section_pos; /* section_pos may be NULL */
    rope_view      p;
    int            n_heads, head_dim;
} cpu_rope_args;

enum { GATED_SPAN = 512 };
typedef struct { /* item: a span of GATED_SPAN elements; each row has n / GATED_SPAN of them, rounded up */
    float       *y;
    const float *gate, *up;
    size_t       gate_stride, up_stride;
    int          n;
    act_kind     act;
} cpu_gated_args;

typedef struct { /* item: a row */
    int32_t     *id;
    float       *w;
    const float *logits, *expert_scale;
    int          n_experts, n_slots;
    float       *scratch; /* [thread][n_experts] */
} cpu_router_args;

typedef struct { /* item: a row */
    float         *out;
    const float   *logits;
    const int32_t *id;
    int            n_vocab;
} cpu_confidence_args;

typedef struct { /* item: a row */
    float       *y;
    const float *x, *w;
    int          n_slots, n;
} cpu_experts_sum_args;

typedef struct { /* item: an element; for add and softcap */
    float       *y;
    const float *a, *b; /* softcap: b is not used */
    float        scale; /* softcap: the cap */
} cpu_elements_args;

typedef struct { /* item: a row */
    float         *y;
    const float   *x;
    size_t         y_stride, x_stride;
    const int32_t *idx;
    int            n;
} cpu_copy_args;

typedef struct { /* item: a row */
    float         *y;
    const float   *x;
    const int32_t *sel, *map; /* sel may be NULL */
    int            n_slots, n, n_vocab;
    float          below;
} cpu_scatter_args;

typedef struct { /* item: a row */
    float       *y;
    const float *a, *b, *gate;
    int          n;
} cpu_add_gated_args;

typedef struct { /* item: a row */
    float       *y;
    const float *x, *w, *b;
    int          n;
    float        eps;
} cpu_layer_norm_args;

typedef struct { /* item: a row */
    float       *y;
    const float *res, *x, *b; /* res NULL: 0 */
    int          n;
    bias_act     act;
} cpu_bias_args;

typedef struct { /* item: an element */
    float       *y;
    const float *x;
    float        low, high;
} cpu_clamp_args;

typedef struct { /* item: an element */
    float         *y;
    const uint8_t *x;
    const float   *table;
} cpu_lookup_args;

typedef struct { /* item: a row */
    float       *y;
    const float *x, *add, *by; /* add, by NULL: 0, 1 */
    int          n_each, n;
    float        scale;
} cpu_pool_args;

/* --- recurrent layers -----------------------------------------------------------------------------*/
enum { CONV_SPAN = 64, DELTA_COLS = 4, CPU_MAX_KEPT = 512 /* kept rows of a lane: at least KV_MAX_PATH */ };
typedef struct { /* item: CONV_SPAN channels, all rows */
    float             *y;
    const float       *x, *w;
    const delta_class *c;
    int                layer;
    delta_rows         rows;
} cpu_conv_args;

typedef struct { /* item of delta_heads: a row; of delta: DELTA_COLS rows of the memory of a value head */
    float             *y, *x, *decay, *beta;
    const float       *rate, *bias;
    const delta_class *c;
    int                layer;
    delta_rows         rows;
    float             *states; /* [thread][states_stride]: memories after the kept rows of a lane */
    size_t             states_stride;
} cpu_delta_args;

typedef struct { /* item of delta_replay: DELTA_COLS rows of the memory of a layer's value head; of conv_replay: a layer
                    of a replay item */
    const delta_class       *c;
    const delta_replay_item *item;
    int                      n_items;
    const int32_t           *place;
} cpu_replay_args;

/* --- the paged cache ------------------------------------------------------------------------------*/
/* Return the addresses of K and of V of one head in the page of `slot`. */
static inline char *cpu_plane_k(const kv_view *c, int layer, int head, int32_t lane, int32_t slot)
{
    int32_t page = c->table[(size_t)lane * c->table_stride + (size_t)slot / KV_PAGE];
    return c->pool + (size_t)page * KV_UNIT + (size_t)layer * c->layer_bytes + (size_t)head * c->head_bytes;
}
static inline char *cpu_plane_v(const kv_view *c, int layer, int head, int32_t lane, int32_t slot)
{
    int32_t page = c->table[(size_t)lane * c->table_stride + (size_t)slot / KV_PAGE];
    return c->pool + (size_t)page * KV_UNIT + (size_t)layer * c->layer_bytes + c->plane_bytes +
           (size_t)head * c->v_head_bytes;
}

/* Returns the summary of a head in the page of `slot`. */
static inline char *cpu_summary(const kv_view *c, int layer, int head, int32_t lane, int32_t slot)
{
    return cpu_plane_k(c, layer, 0, lane, slot) + c->summary_at +
           (size_t)head * 2 * (size_t)c->head_dim * sizeof(uint16_t);
}

typedef struct { /* item: a row */
    kv_view        c;
    int            layer;
    const int32_t *lane, *slot;
    const float   *k, *v;
} cpu_kv_store_args;

typedef struct { /* item: a written slot in a layer; layer by layer. Does nothing unless it is the last of its page */
    kv_view        c;
    int            first_layer, n_slots;
    const int32_t *lane, *slot; /* element i * step belongs to slot i */
    size_t         step;
} cpu_kv_summary_args;

typedef struct { /* item: a head of K or V of a layer; does all moves in order */
    kv_view             c;
    const kv_move_item *move;
    int                 n_moves;
    rope_view           rope; /* may be zeros when no move has a rotation */
} cpu_kv_move_args;

/* A unit of attention is the queries of a row tile that read one kv head, over one tile of keys. Its result is a
 * part (output, maximum and sum of each query), which attention_merge adds to y. Units are numbered by row tile, kv
 * head and key tile. A job runs units `first` to `end` - 1; the maximum and sum of a query whose key tiles belong to
 * two jobs are carried over to the second. */
enum {
    KEY_TILE   = 256, /* positions; tiles start at multiples of it, which fixes the order of sums */
    ROW_TILE   = 32,  /* queries of a row tile; at least one row */
    PART_EXTRA = 16   /* floats of a part after the output: 8 zeros, maximum, sum, padding */
};
typedef struct {           /* rows of one lane, from `row` to before the next tile's `row` */
    int32_t row, key_tile; /* its first row, first key tile */
    int     n_key_tiles;
    size_t  unit; /* its first unit */
} cpu_row_tile;

typedef struct { /* item: a unit, counted from `first`; for attention_merge a head of a row, from first_row */
    kv_view             c;
    float              *y;
    const float        *q;
    const int32_t      *pos, *lane, *slot, *parent, *root, *last;
    int                 n_rows, n_heads, layer, window;
    float               scale;
    int32_t            *path; /* [thread][max_path]: scratch for a row's ancestors */
    int                 max_path;
    const cpu_row_tile *tiles;                 /* [n_tiles + 1] */
    int                 n_tiles, tile_queries; /* tile_queries: maximum of queries of a row tile */
    size_t              first, end;            /* units of this job */
    int32_t             first_row;             /* first row of the row tile of `first` */
    float              *parts;                 /* [unit][tile_queries][head_dim + PART_EXTRA] */
    float              *carry_in, *carry_out;  /* [tile_queries][2]: max, sum */
    /* Sparse attention: pages that rows from kept_row on keep, [row][kv head][kept_stride]. Word i has the pages of key
     * tile i. Pages after the last word are kept. NULL: all are. */
    const uint16_t *kept;
    int32_t         kept_row;
    size_t          kept_stride;
} cpu_attention_args;

enum { PAGE_BLOCK = 64 }; /* pages of an item of page_bounds */
_Static_assert(KEY_TILE == 16 * KV_PAGE, "a word of `kept` is a tile of keys");
typedef struct { /* item of page_bounds: PAGE_BLOCK pages of a pair; of page_choice: a pair, a row and a kv head */
    const cpu_attention_args *a;
    float                    *bound;            /* [pair][query head of the group][stride], overwritten */
    uint16_t                 *kept;             /* is a->kept */
    size_t                    stride, n_blocks; /* pages; items of a pair */
} cpu_choice_args;

/* Returns the pages of a key tile that the queries of a row and kv head attend to, a bit each. */
static inline unsigned cpu_kept_pages(const cpu_attention_args *a, size_t row, int kv_head, int32_t key_tile)
{
    if (!a->kept || (size_t)key_tile >= a->kept_stride) return 0xFFFF;
    size_t pair = (row - (size_t)a->kept_row) * (size_t)a->c.n_kv_heads + (size_t)kv_head;
    return a->kept[pair * a->kept_stride + (size_t)key_tile];
}
/* Returns the pages, of a tile of keys, of its positions first .. last, a bit each; none if last < first. */
static inline unsigned cpu_pages_between(int first, int last)
{
    return last < first ? 0 : (2u << last / KV_PAGE) - (1u << first / KV_PAGE);
}

/* The first and last position that a row sees; none when last < first. */
typedef struct {
    int32_t first, last;
} cpu_seen;
static inline cpu_seen cpu_row_sees(const cpu_attention_args *a, size_t row)
{
    int32_t pos = a->pos[row];
    return (cpu_seen){a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0, a->last[row]};
}
#endif
