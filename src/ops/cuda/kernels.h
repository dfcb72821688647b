/* ops/cuda/kernels.h - what the C side asks of the kernels: one launcher per op, or two where an op has two steps.
 *
 * A launcher enqueues on the stream and returns cudaGetLastError(). Pointers are device memory unless a comment
 * says otherwise. Kernels are compiled without contraction (a * b + c is rounded as written; they ask for fma by name), so
 * variants of one kernel for other numbers of rows give the same bits. */
#ifndef TANDEM_OPS_CUDA_KERNELS_H
#define TANDEM_OPS_CUDA_KERNELS_H
#include "ops/kv_view.h"

#include <cuda_runtime_api.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    weight     pub;  /* first: model code holds a pointer to this */
    quant_type form; /* of the rows in memory: pub.type, or F16 for types without a kernel */
    char      *data; /* [n_mats * n_out] rows, layouts in layout.h */
    size_t     row_bytes;
} cuda_weight;

/* --- matmul ---------------------------------------------------------------------------------------*/
typedef struct { /* 32 activations: x = d * q, with |q| <= 127 */
    int8_t  q[QK];
    float   d;
    float   ds;     /* d * (sum[0] + sum[1]), for types with a minimum */
    int32_t sum[2]; /* of q, by halves of 16 */
} cuda_xblock;

typedef struct { /* up to RUN_PAIRS pairs that share a matrix: order[first .. first + n - 1] */
    int32_t mat, first, n;
} cuda_run;
enum { RUN_PAIRS = 8 };

/* Pairs (row, slot), numbered row * n_slots + slot; a plain matmul has one slot and matrix 0. */
typedef struct {
    const char     *data;
    size_t          row_bytes;
    int             n_in, n_out;
    float          *y;          /* [pair][n_out] */
    const void     *x;          /* f32, or cuda_xblock for quantised weights; rows dense */
    int             pairs_to_x; /* row of x = pair / pairs_to_x: n_slots, or 1 */
    int             n_pairs;
    const int32_t  *id;    /* matrix of a pair; NULL: 0 */
    const int32_t  *order; /* pairs sorted by matrix; NULL: pair i is i */
    const cuda_run *run;   /* with order; n is 0 after the last */
    int             n_runs;
} cuda_matmul_args;

cudaError_t cuda_quantise(cudaStream_t s, cuda_xblock *out, const float *x, size_t n_blocks);
cudaError_t cuda_group_pairs(cudaStream_t s, int32_t *order, cuda_run *run, int n_runs, const int32_t *id, int n_pairs,
                             int n_mats);
cudaError_t cuda_matmul(cudaStream_t s, quant_type form, const cuda_matmul_args *a);
cudaError_t cuda_embed(cudaStream_t s, float *y, const cuda_weight *w, const int32_t *id, int n_rows, float scale);

/* --- rows and elements ----------------------------------------------------------------------------*/
/* y = (res + norm(x) * w) * scale; res and w may be NULL. q, here and in gated: y quantised too, when not NULL; n is a
 * multiple of 32 then */
cudaError_t cuda_rms_norm(cudaStream_t s, float *y, cuda_xblock *q, const float *res, const float *x, const float *w,
                          int n_rows, int n, float eps, float scale);
cudaError_t cuda_rope(cudaStream_t s, float *x, const int32_t *pos, const float *freq, int n_rows, int n_heads,
                      int head_dim);
cudaError_t cuda_gated(cudaStream_t s, float *y, cuda_xblock *q, const float *gate, int gate_stride, const float *up,
                       int up_stride, int n_rows, int n, act_kind act);
cudaError_t cuda_router(cudaStream_t s, int32_t *id, float *w, const float *logits, const float *expert_scale,
                        int n_rows, int n_experts, int n_slots);
cudaError_t cuda_experts_sum(cudaStream_t s, float *y, const float *x, const float *w, int n_rows, int n_slots, int n);
cudaError_t cuda_add(cudaStream_t s, float *y, const float *a, const float *b, size_t n, float scale);
cudaError_t cuda_softcap(cudaStream_t s, float *x, size_t n, float cap);
cudaError_t cuda_copy_rows(cudaStream_t s, float *y, int y_stride, const float *x, int x_stride, const int32_t *idx,
                           int n_rows, int n);

/* --- the paged cache ------------------------------------------------------------------------------*/
cudaError_t cuda_kv_store(cudaStream_t s, const kv_view *c, int layer, const int32_t *lane, const int32_t *slot,
                          const float *k, const float *v, int n_rows);
cudaError_t cuda_kv_move(cudaStream_t s, const kv_view *c, const kv_move_item *items, int n_items, const float *freq);

enum { TILE_KEYS = 64 };
typedef struct {
    kv_view        c;
    float         *y;
    const float   *q;
    const int32_t *pos, *lane, *slot, *parent, *root, *last;
    int            n_rows, n_heads, layer, window;
    float          scale;
    float         *partial; /* [row][head][tile][2 + head_dim]: maximum, sum, output of each tile; NULL: one pass */
    int            n_tiles;
    cuda_xblock   *quantised; /* y, too; NULL: not wanted */
} cuda_attention_args;
cudaError_t cuda_attention(cudaStream_t s, const cuda_attention_args *a);

/* --- picking --------------------------------------------------------------------------------------*/
enum { PICK_BLOCKS = 16, LOGPROBS_MAX = 256 };
cudaError_t cuda_argmax(cudaStream_t s, int32_t *id, const float *logits, int n_rows, int n_vocab);
cudaError_t cuda_sample(cudaStream_t s, int32_t *id, const float *logits, const sample_params *p, int n_rows,
                        int n_vocab);
/* scores: [PICK_BLOCKS][n_vocab] */
cudaError_t cuda_sample_top(cudaStream_t s, token_logprob *out, const float *logits, const sample_params *p,
                            double *scores, int n_rows, int n_vocab, int n_top, float soft);
cudaError_t cuda_change_logits(cudaStream_t s, float *logits, int n_vocab, logit_change *items, int n_items);
cudaError_t cuda_restore_logits(cudaStream_t s, float *logits, int n_vocab, const logit_change *items, int n_items);
cudaError_t cuda_mask_logits(cudaStream_t s, float *logits, int n_vocab, const uint64_t *masks, const int32_t *rows,
                             int n);
cudaError_t cuda_logprobs(cudaStream_t s, token_logprob *out, const float *logits, const int32_t *id, int n_rows,
                          int n_vocab, int n_top);
cudaError_t cuda_scatter_logits(cudaStream_t s, float *y, const float *x, const int32_t *sel, const int32_t *map,
                                int n_rows, int n_slots, int n, int n_vocab, float below);
#ifdef __cplusplus
}
#endif
#endif
