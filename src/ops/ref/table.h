/* ops/ref/table.h - the functions of the reference backend's table, one op a file, and what they share. Contracts are
 * in ops/ops.h. Device memory is plain memory here, and an op has run when its call returns. */
#ifndef TANDEM_OPS_REF_TABLE_H
#define TANDEM_OPS_REF_TABLE_H
#include "ops/ops.h"
#include "ops/sampling.h"

#include <math.h>

struct queue {
    queue_limits        lim;
    sampling_candidate *candidates;        /* [max_vocab] */
    double              mark[QUEUE_MARKS]; /* clock_s */
};

typedef struct {
    weight w;
    float *data; /* [n_mats][n_out][n_in] */
} ref_weight;
/* Returns matrix `mat` of a weight. */
static inline const float *weight_mat(const weight *w, int mat)
{
    return ((const ref_weight *)w)->data + (size_t)mat * (size_t)w->n_out * (size_t)w->n_in;
}

/* Returns cap * tanh(x / cap). */
static inline float ref_capped(float x, float cap) { return (float)(cap * tanh((double)x / cap)); }

bool ref_weight_load(const ops *o, weight **out, const weight_src *src, err *e);
void ref_weight_free(const ops *o, weight *w);

void ref_embed(queue *q, dev y, const weight *table, dev ids, int n_rows, float scale);
void ref_matmul(queue *q, dev y, const weight *w, dev x, int n_rows);
void ref_matmul_top(queue *q, dev out, const weight *w, dev x, int n_rows, float cap, int n_top);
void ref_matmul_experts(queue *q, dev y, const weight *w, dev x, bool x_per_slot, dev id, int n_rows, int n_slots);
void ref_rms_norm(queue *q, dev y, dev x, dev w, int n_rows, int n, float eps);
void ref_rms_norm_add(queue *q, dev y, dev res, dev x, dev w, int n_rows, int n, float eps, float scale);
void ref_rope(queue *q, dev x, const step_rows *rows, int n_heads, int head_dim, const rope_params *p);
void ref_kv_store(queue *q, const kv_class *c, int layer, const step_rows *rows, dev k, dev v);
void ref_kv_move(queue *q, const kv_class *c, dev items, int n_items, const rope_params *p);
void ref_attention(queue *q, dev y, dev q_rows, int n_heads, const kv_class *c, int layer, const step_rows *rows,
                   float scale, int window);
void ref_gated(queue *q, dev y, dev gate, int gate_stride, dev up, int up_stride, int n_rows, int n, act_kind act);
void ref_router(queue *q, dev id, dev w, dev logits, dev expert_scale, int n_rows, int n_experts, int n_slots);
void ref_experts_sum(queue *q, dev y, dev x, dev w, int n_rows, int n_slots, int n);
void ref_add(queue *q, dev y, dev a, dev b, size_t n, float scale);
void ref_add_gated(queue *q, dev y, dev a, dev b, dev gate, int n_rows, int n);
void ref_layer_norm(queue *q, dev y, dev x, dev w, dev b, int n_rows, int n, float eps);
void ref_bias(queue *q, dev y, dev res, dev x, dev b, int n_rows, int n, bias_act act);
void ref_clamp(queue *q, dev y, dev x, size_t n, float low, float high);
void ref_lookup(queue *q, dev y, dev x, dev table, size_t n);
void ref_pool(queue *q, dev y, dev x, dev add, dev by, int n_rows, int n_each, int n, float scale);
void ref_delta(queue *q, const delta_io *io, const delta_class *c, int layer, const step_rows *rows);
void ref_delta_replay(queue *q, const delta_class *c, dev items, int n_items, dev places);
void ref_softcap(queue *q, dev x, size_t n, float cap);
void ref_copy_rows(queue *q, dev y, int y_stride, dev x, int x_stride, dev idx, int n_rows, int n);
void ref_argmax(queue *q, dev id, dev logits, int n_rows, int n_vocab);
void ref_change_logits(queue *q, dev logits, int n_vocab, dev items, int n_items);
void ref_restore_logits(queue *q, dev logits, int n_vocab, dev items, int n_items);
void ref_mask_logits(queue *q, dev logits, int n_vocab, dev masks, dev rows, int n);
void ref_logprobs(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab, int n_top);
void ref_sample(queue *q, dev id, dev logits, dev params, int n_rows, int n_vocab);
void ref_confidence(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab);
void ref_sample_top(queue *q, dev out, dev logits, dev params, int n_rows, int n_vocab, int n_top, float soft);
void ref_scatter_logits(queue *q, dev y, dev x, dev sel, dev map, int n_rows, int n_slots, int n, int n_vocab,
                        float below);
void ref_block_conv(queue *q, const conv_rows *c, int n_rows);
void ref_pair_logits(queue *q, const pair_rows *c, int n_rows);

/* Rotates one head in place. section_pos: [ROPE_SECTIONS]; NULL: pos in every section. */
void ref_rotate_head(float *x, const rope_params *p, int32_t pos, const int32_t *section_pos);

enum { KV_K, KV_V }; /* for k_or_v */
typedef struct {     /* one key or value in the cache */
    cache_type type;
    void      *plane; /* K or V of its head in its page */
    int        at;    /* position in the page */
    int        head_dim;
} ref_head;
ref_head ref_kv_at(const kv_class *c, int layer, int k_or_v, int head, int32_t lane, int32_t slot);
void     ref_kv_read(ref_head h, float *y); /* writes the head_dim stored values, rotated for types with scales */
/* Returns the summary of a head in the page of `slot`: the smallest values of the keys, then the largest. */
uint16_t *ref_summary_at(const kv_class *c, int layer, int head, int32_t lane, int32_t slot);
#endif
