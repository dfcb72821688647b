/* ops/cuda/kernels.h - the launchers of kernels, called by the C files: one per op, or two where an op has two steps.
 *
 * A launcher enqueues on the stream and returns cudaGetLastError(). Argument structs are host memory and read before it
 * returns; pointers in them are device memory unless a comment states otherwise. ops.h defines the operations and
 * shapes. Kernels are compiled without contraction (a * b + c is rounded as written; kernels call fma where they need
 * it), so variants of one kernel for other numbers of rows give the same bits. */
#ifndef TANDEM_OPS_CUDA_KERNELS_H
#define TANDEM_OPS_CUDA_KERNELS_H
#include "ops/kv_view.h"

#include <cuda_runtime_api.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    weight pub;  /* first member: model code holds a pointer to it */
    char  *data; /* [n_mats * n_panels] panels of panel_bytes, layout.h */
    size_t panel_bytes;
    int    n_tiles, n_panels; /* tiles per panel; panels per matrix */
    float  up, down;          /* a power of two by which weights are multiplied to fit the range of f16; its inverse */
} cuda_weight;

/* Calls X for each type of weights. */
#define EACH_TYPE(X)                                                                                                   \
    X(F32)                                                                                                             \
    X(F16)                                                                                                             \
    X(BF16) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS) X(MXFP4)

/* --- weights --------------------------------------------------------------------------------------*/
typedef struct {      /* panels first_panel .. first_panel + count - 1 of a weight, counted over all matrices */
    const void *file; /* the file's rows from first_row on, all that the panels need */
    char       *to;   /* the weight's first panel */
    size_t      first_panel, first_row, count, n_panels; /* n_panels: per matrix */
    int         n_in, n_out;
    uint32_t   *largest; /* raised to the bits of the largest finite |w| */
} cuda_repack_args;
/* Writes panels from the rows of a file. */
cudaError_t cuda_repack(cudaStream_t s, quant_type type, const cuda_repack_args *a);
cudaError_t cuda_embed(cudaStream_t s, float *y, const cuda_weight *w, const int32_t *id, int n_rows, float scale);

/* --- matmul ---------------------------------------------------------------------------------------*/
/* Rows of f16 in one of the layouts for tensor cores (layout.h): x = (high + low) * scale[row]. */
typedef struct {
    char  *high, *low; /* high NULL: there are no such rows */
    float *scale;
    bool   wide;       /* tile by tile, for cuda_matmul_wide */
    size_t tile_bytes; /* wide: from one tile to the next */
    /* wide, not NULL: [n_order], row i is that of pair order[i]; -1: there is none */
    const int32_t *order;
    int            n_order;
} cuda_x;

typedef struct { /* pairs that share a matrix: order[first .. first + n - 1] */
    int32_t mat, first, n;
} cuda_run;
enum { RUN_PAIRS_MIN = 8, RUN_PAIRS_MAX = 32, RUN_PAIRS_WIDE = 128 }; /* bounds of run_pairs; for cuda_matmul_wide */

typedef struct {
    int32_t  *order;     /* written: [n_pairs] pairs sorted by matrix */
    cuda_run *run;       /* written: [n_runs]; n is 0 after the last run */
    int       n_runs;    /* maximum of runs */
    int       run_pairs; /* maximum of pairs of a run */
    /* 0, or the length of order: then runs begin at multiples of GROUP_ROWS, with -1 between them and after the last
     * one, and those of a matrix have about the same length. */
    int            n_order;
    const int32_t *id; /* [n_pairs]: matrix of a pair; -1: none, the pair is left out */
    int            n_pairs, n_mats;
} cuda_group_args;

typedef struct {
    int32_t     *id;             /* written: [n_rows][n_slots] */
    float       *w;              /* written: the same shape */
    const float *logits, *scale; /* [n_rows][n_experts], [n_experts]; scale NULL: 1 */
    int          n_experts, n_slots;
    /* [n_rows]: a row with a negative one is padding and gets ids of -1. NULL: none is. Not used for one row. */
    const int32_t *lane;
} cuda_router_args;
enum { ROUTER_EXPERTS = 1024, CHOICE_EXPERTS = 512, CHOICE_SLOTS = 32 }; /* at most; choice: in a matmul that chooses */

enum { SUM_SLOTS = 8 };

typedef struct {
    const char *data; /* as in cuda_weight, like n_panels, up and down */
    float      *y;    /* [pair][n_out] */
    int         n_out, n_panels;
    int         first_block; /* set by the launcher */
    float       up, down;
} cuda_matmul_part;

/* Pairs are (row, slot), numbered row * n_slots + slot; a plain matmul has one slot and matrix 0. */
typedef struct {
    cuda_matmul_part part[JOINED_MATMULS]; /* weights of one type and n_in */
    int              n_parts, n_tiles, n_in;
    size_t           panel_bytes;
    cuda_x           x;
    int              pairs_to_x; /* row of x = pair / pairs_to_x: n_slots, or 1 */
    int              n_pairs;
    const int32_t   *id;    /* matrix of a pair; NULL: 0 */
    const int32_t   *order; /* pairs sorted by matrix; NULL: pair i is i */
    const cuda_run  *run;   /* with order; n is 0 after the last */
    int              n_runs, run_pairs;
    int              n_order; /* for cuda_matmul_wide: the length of order, see cuda_group_args */
    /* A kernel may start before the kernels before it have finished, and then waits for them (wait_for_previous). */
    bool gives;   /* wait before anything else: a later kernel with `settled` reads id, order and run */
    bool settled; /* read id, order and run, and load weights, before waiting */
    /* Only for up to STAGED_ROWS rows without id: */
    bool            paired;  /* part 0 is a gate, part 1 is gated: y of part 0 = act(gate x) * (part 1 x) */
    uint32_t       *largest; /* with paired, written: [row][panels] bits of the largest |y| of a panel */
    const float    *raw;     /* not NULL: [row][n_in], used instead of x */
    const uint32_t *tops;    /* with raw: [row][n_tops] bits of its largest magnitudes, as `largest` */
    int             n_tops;
    /* Only for experts of one row: */
    int              act;    /* an act_kind: y[pair][n_out / 2] = act(first half) * second half; -1: none; see paired */
    cuda_router_args router; /* with act: this kernel also chooses the experts, and writes router.id and .w */
    const float     *rows;   /* not NULL: [pair][n_in], used instead of x; see cuda_matmul_can_convert */
    float           *sum;    /* with rows, up to SUM_SLOTS pairs; not NULL: [n_out], written too: y by rank, weighted */
    const float     *slot_w; /* with sum: [n_pairs] */
} cuda_matmul_args;

/* Writes rows of floats as f16; with out.order those of pairs. */
cudaError_t cuda_convert(cudaStream_t s, cuda_x out, const float *x, int n_rows, int n);
/* Copies rows in the wide layout to the places of their pairs, `slots` pairs a row. low: also the low halves. */
cudaError_t cuda_sort_rows(cudaStream_t s, cuda_x out, cuda_x x, int slots, int n, bool low);
cudaError_t cuda_matmul(cudaStream_t s, quant_type type, const cuda_matmul_args *a);
/* The same for many rows, which are in the wide layout, with `order` those of its pairs; runs have RUN_PAIRS_WIDE
 * pairs. cuda_has_wide returns whether this program and the current GPU support it. */
cudaError_t cuda_matmul_wide(cudaStream_t s, quant_type type, const cuda_matmul_args *a);
bool        cuda_has_wide(void);
/* The same for matrices without id that have many panels together. cuda_matmul_shares returns whether it supports them
 * and is faster; cuda_matmul then calls it. */
cudaError_t cuda_matmul_shared(cudaStream_t s, quant_type type, const cuda_matmul_args *a);
bool        cuda_matmul_shares(quant_type type, const cuda_matmul_args *a);
/* Returns whether a paired matmul supports this. */
bool cuda_matmul_can_pair(quant_type type, int n_tiles, int n_rows);
enum { STAGED_ROWS = 2 };
/* Return whether a matmul of one row's experts with these weights supports `act`, and `rows`. */
bool cuda_matmul_can_gate(quant_type type, int n_tiles);
bool cuda_matmul_can_convert(quant_type type, int n_tiles);
/* Returns whether a matmul of one row's experts supports `sum` with this many slots: shared memory limits it. */
bool cuda_matmul_can_sum(quant_type type, int n_slots);

/* --- rows and elements ----------------------------------------------------------------------------*/
/* y = (res + norm(x) * w) * scale; res and w may be NULL. to, here and below: unless high is NULL, y is also written
 * there as f16. */
cudaError_t cuda_rms_norm(cudaStream_t s, float *y, cuda_x to, const float *res, const float *x, const float *w,
                          int n_rows, int n, float eps, float scale);
typedef struct { /* as norm_rows; slots and sum NULL: parts is not set */
    float       *y;
    const float *res, *z, *w, *w_z, *w_slots, *slots, *slot_w;
    const float *sum; /* [n_rows][n], the sum over slots, if it is known; then slots is NULL */
    int          n_slots, n, n_outs;
    float        scale, eps;
    struct {
        float       *y;
        const float *w;
        cuda_x       to;
    } out[JOINED_NORMS];
} cuda_norms_args;
cudaError_t cuda_norms(cudaStream_t s, const cuda_norms_args *a, int n_rows);
typedef struct { /* as sum_rows; slots and out may be NULL */
    float       *y, *out;
    const float *res, *z, *slots, *slot_w, *shared, *gate, *w;
    cuda_x       to; /* for out */
    int          n_slots, n;
    float        eps;
} cuda_sums_args;
cudaError_t cuda_sums(cudaStream_t s, const cuda_sums_args *a, int n_rows);
/* y = norm(x) w * act(gate), head by head; cuda_gated_norm_fits returns whether it supports these heads. */
bool        cuda_gated_norm_fits(int n_heads, int dim);
cudaError_t cuda_gated_norm(cudaStream_t s, float *y, cuda_x to, const float *x, const float *w, const float *gate,
                            int n_rows, int n_heads, int dim, float eps, act_kind act);
typedef struct { /* as head_rows; k NULL: no K/V is stored */
    float         *q;
    const float   *q_in, *k, *v, *w_q, *w_k;
    const int32_t *pos, *section_pos, *lane, *slot; /* section_pos may be NULL */
    kv_view        c;
    rope_view      rope;
    int            n_heads, layer, q_stride;
    bool           norm_v, k_as_v, settled; /* settled: as in step_rows */
    float          eps;
} cuda_heads_args;
cudaError_t cuda_heads(cudaStream_t s, const cuda_heads_args *a, int n_rows);
/* section_pos may be NULL */
cudaError_t cuda_rope(cudaStream_t s, float *x, const int32_t *pos, const int32_t *section_pos, const rope_view *p,
                      int n_rows, int n_heads, int head_dim);
/* y NULL: only `to` is written. Every `group` elements of a row of gates are followed by `gap` others. */
cudaError_t cuda_gated(cudaStream_t s, float *y, cuda_x to, const float *gate, int gate_stride, int group, int gap,
                       const float *up, int up_stride, int n_rows, int n, act_kind act);
cudaError_t cuda_router(cudaStream_t s, const cuda_router_args *a, int n_rows);
/* Sorts the pairs by matrix, in runs of up to run_pairs. */
cudaError_t cuda_group_pairs(cudaStream_t s, const cuda_group_args *a);
/* cuda_router and cuda_group_pairs in one kernel; cuda_route_fits returns whether it supports this many rows. */
bool        cuda_route_fits(int n_rows, int n_experts, int n_slots);
cudaError_t cuda_route(cudaStream_t s, const cuda_router_args *a, const cuda_group_args *g);
cudaError_t cuda_experts_sum(cudaStream_t s, float *y, const float *x, const float *w, int n_rows, int n_slots, int n);
cudaError_t cuda_add(cudaStream_t s, float *y, const float *a, const float *b, size_t n, float scale);
cudaError_t cuda_add_gated(cudaStream_t s, float *y, const float *a, const float *b, const float *gate, int n_rows,
                           int n);
cudaError_t cuda_layer_norm(cudaStream_t s, float *y, cuda_x to, const float *x, const float *w, const float *b,
                            int n_rows, int n, float eps);
/* res may be NULL */
cudaError_t cuda_bias(cudaStream_t s, float *y, cuda_x to, const float *res, const float *x, const float *b, int n_rows,
                      int n, bias_act act);
cudaError_t cuda_clamp(cudaStream_t s, float *y, const float *x, size_t n, float low, float high);
cudaError_t cuda_lookup(cudaStream_t s, float *y, const uint8_t *x, const float *table, size_t n);
/* add and by may be NULL */
cudaError_t cuda_pool(cudaStream_t s, float *y, const float *x, const float *add, const float *by, int n_rows,
                      int n_each, int n, float scale);
cudaError_t cuda_softcap(cudaStream_t s, float *x, size_t n, float cap);
cudaError_t cuda_copy_rows(cudaStream_t s, float *y, int y_stride, const float *x, int x_stride, const int32_t *idx,
                           int n_rows, int n);

/* --- the paged cache ------------------------------------------------------------------------------*/
cudaError_t cuda_kv_store(cudaStream_t s, const kv_view *c, int layer, const int32_t *lane, const int32_t *slot,
                          const float *k, const float *v, int n_rows);
cudaError_t cuda_kv_move(cudaStream_t s, const kv_view *c, const kv_move_item *items, int n_items, const rope_view *p);
/* Write the summaries of pages whose last slot was stored or moved to, in classes with sparse attention. */
cudaError_t cuda_kv_summary(cudaStream_t s, const kv_view *c, int layer, const int32_t *lane, const int32_t *slot,
                            int n_rows);
cudaError_t cuda_kv_summary_moved(cudaStream_t s, const kv_view *c, const kv_move_item *items, int n_items);

/* Multiplies heads by the rotation of types with scales (ops/cache_code.h), or by its inverse. y may be x. */
cudaError_t cuda_turn_heads(cudaStream_t s, float *y, const float *x, int n_heads, int dim, bool inverse);

enum { TILE_KEYS = 64 }; /* positions of a tile of keys; tiles start at multiples of it */
typedef struct {
    kv_view        c;
    float         *y;
    const float   *q;
    const int32_t *pos, *lane, *slot, *parent, *root, *last;
    int            n_rows, n_heads, layer, window;
    float          scale;
    float *partial; /* scratch [row - first_row][head][tile][2 + head_dim]: maximum, sum, output; NULL: one pass */
    int    n_tiles; /* maximum of tiles that a row sees */
    bool   settled; /* as in step_rows */
    int    first_row, end_row; /* rows of a launch */
    /* Sparse attention (sparse.cu). kept: the pages that a row attends to, bit j % 32 of word j / 32; NULL: all. */
    uint32_t *kept;        /* [row - first_row][kv head][kept_stride] */
    float    *bounds;      /* scratch [row - first_row][head][n_pages] */
    int       kept_stride; /* words, for all tiles that a row sees */
    int       n_pages;     /* maximum of pages that a row sees */
    int       kept_rows;   /* rows that fit in both */
    /* Only for cuda_attention_mma, where partial is [row - first_row][head][n_parts][4 + head_dim]. cuda_attention_plan
     * sets the first three, the launcher the next one. */
    int    n_parts;                         /* maximum of parts that a row has */
    int    few_tiles;                       /* tiles of rows with at most this many are not joined to spans */
    int    chunk;                           /* rows per launch */
    bool   by_span;                         /* each part is a span; false */
    bool   turn_q, turn_y;                  /* set by the plan: it multiplies queries and outputs by the rotation */
    bool   by_warp, by_chain;               /* attention_warp.cu, attention_chain.cu makes the parts */
    int    chain_from, chain_to, chain_end; /* as in step_rows */
    int    chain_sees;                      /* as in step_rows */
    bool   few_lanes;                       /* as in step_rows */
    cuda_x to;                              /* as for cuda_rms_norm */
} cuda_attention_args;
cudaError_t cuda_attention(cudaStream_t s, const cuda_attention_args *a);
/* Prepares attention on tensor cores with `bytes` of scratch at partial; n_rows and n_tiles are set. Returns false if
 * it is not possible: it requires K and V of any type but F32, a head_dim of 64, 128, 256 or 512, and scratch for the
 * parts of one row. */
bool cuda_attention_plan(cuda_attention_args *a, size_t bytes);
/* Returns whether few_lanes may change what cuda_attention_plan plans for rows that see up to n_tiles tiles. */
bool        cuda_attention_asks_lanes(const kv_view *c, int n_rows, int n_tiles);
cudaError_t cuda_attention_mma(cudaStream_t s, const cuda_attention_args *a, size_t bytes);
/* Chooses the pages that the rows from first_row to end_row attend to. */
void cuda_choose_pages(cudaStream_t s, const cuda_attention_args *a);

/* --- recurrent layers -----------------------------------------------------------------------------*/
enum { DELTA_MAX_ROWS = 4096, DELTA_MAX_KEPT = 512 }; /* rows in a step; kept rows in a lane */
typedef struct {                                      /* a delta_class and one of its layers */
    char          *pool, *kept;
    const int32_t *table;
    size_t         table_stride, row_bytes;
    size_t         state_floats, memory_floats, kept_floats, tape_floats; /* in one layer, as ops.h computes them */
    int            n_layers, n_k_heads, n_v_heads, head_dim, n_taps, n_channels, layer;
    bool           tiled;
} cuda_delta_class;
typedef struct { /* as delta_io and the rows of a step */
    cuda_delta_class c;
    float           *y, *conv, *a, *b;
    const float     *x, *w, *rate, *bias;
    const int32_t   *lane, *pos, *before, *kept;
    int              n_rows;
    bool             settled; /* as in step_rows */
} cuda_delta_args;
/* Runs the convolution and prepares heads and gates, then the delta rule. */
cudaError_t cuda_delta(cudaStream_t s, const cuda_delta_args *a);
cudaError_t cuda_delta_replay(cudaStream_t s, const cuda_delta_class *c, const delta_replay_item *items, int n_items,
                              const int32_t *places);

/* --- picking --------------------------------------------------------------------------------------*/
enum { PICK_BLOCKS = 16, LOGPROBS_MAX = 256 }; /* LOGPROBS_MAX: maximum of n_top of cuda_logprobs */
enum { ARGMAX_SLICES = 32, ARGMAX_BYTES = 8 };
/* scratch: [n_rows][ARGMAX_SLICES] of ARGMAX_BYTES */
cudaError_t cuda_argmax(cudaStream_t s, int32_t *id, const float *logits, void *scratch, int n_rows, int n_vocab);
enum { SAMPLE_SLICES = 32, SLICE_BEST = 64, SAMPLE_ROWS = 64, SAMPLE_ROW_BYTES = 64 << 10 };
/* scratch: [SAMPLE_ROWS] of SAMPLE_ROW_BYTES */
cudaError_t cuda_sample(cudaStream_t s, int32_t *id, const float *logits, void *scratch, const sample_params *p,
                        int n_rows, int n_vocab);
/* scores: scratch [PICK_BLOCKS][n_vocab]; scratch: as for cuda_sample */
cudaError_t cuda_sample_top(cudaStream_t s, token_logprob *out, const float *logits, const sample_params *p,
                            double *scores, void *scratch, int n_rows, int n_vocab, int n_top, float soft);
cudaError_t cuda_change_logits(cudaStream_t s, float *logits, int n_vocab, logit_change *items, int n_items);
cudaError_t cuda_restore_logits(cudaStream_t s, float *logits, int n_vocab, const logit_change *items, int n_items);
cudaError_t cuda_mask_logits(cudaStream_t s, float *logits, int n_vocab, const uint64_t *masks, const int32_t *rows,
                             int n);
/* scratch: as for cuda_sample */
cudaError_t cuda_logprobs(cudaStream_t s, token_logprob *out, const float *logits, void *scratch, const int32_t *id,
                          int n_rows, int n_vocab, int n_top);
cudaError_t cuda_confidence(cudaStream_t s, float *out, const float *logits, const int32_t *id, int n_rows,
                            int n_vocab);
cudaError_t cuda_scatter_logits(cudaStream_t s, float *y, const float *x, const int32_t *sel, const int32_t *map,
                                int n_rows, int n_slots, int n, int n_vocab, float below);
cudaError_t cuda_block_conv(cudaStream_t s, const conv_rows *c, int n_rows);
cudaError_t cuda_pair_logits(cudaStream_t s, const pair_rows *c, int n_rows);
#ifdef __cplusplus
}
#endif
#endif
