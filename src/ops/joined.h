/* ops/joined.h - sequences of ops that some backends run as one kernel and others op by op. ops.h describes the
 * arguments. Each function calls the joined op of the table if it has one, else the single ops. */
#ifndef TANDEM_OPS_JOINED_H
#define TANDEM_OPS_JOINED_H
#include "ops/ops.h"

/* y[i][r] = w[i] x[r], for n_w <= JOINED_MATMULS matrices of the same n_in. */
void ops_matmuls(const ops *o, queue *q, const dev *y, const weight *const *w, int n_w, dev x, int n_rows);
/* y[r] = act(gate x[r]) * (up x[r]), for two matrices of the same shape. scratch: as y */
void ops_gate_up(const ops *o, queue *q, dev y, dev scratch, const weight *gate, const weight *up, dev x, int n_rows,
                 act_kind act);
/* q = rope(norm(q) w_q). Stores rope(norm(k) w_k) and v, with norm_v norm(v), in the cache. */
void ops_heads(const ops *o, queue *q, const head_rows *h, const step_rows *rows);
/* y = (res + norm(z) w) * scale, then up to JOINED_NORMS norms of y. */
void ops_norms(const ops *o, queue *q, const norm_rows *c, int n_rows);
/* y = res + z, where z may be the sum of experts and of a gated shared expert; then a norm of y. */
void ops_sums(const ops *o, queue *q, const sum_rows *c, int n_rows);
/* y = rms_norm(x, w) * act(gate), head by head. x may be overwritten. */
void ops_gated_norm(const ops *o, queue *q, dev y, dev x, dev w, dev gate, int n_rows, int n_heads, int n, float eps,
                    act_kind act);
/* y = act(gate) * x, head by head; the heads of gate are gate_stride elements apart. */
void ops_gated_heads(const ops *o, queue *q, dev y, dev gate, int gate_stride, dev x, int n_rows, int n_heads, int n,
                     act_kind act);
/* Chooses experts by their logits, then runs them: y[row][slot] = down(act(gate x) * (up x)). */
void ops_experts(const ops *o, queue *q, const expert_rows *e, int n_rows);
/* Marks ops that may run concurrently with others, if the backend can (ops.aside). */
void ops_aside(const ops *o, queue *q, aside_part part);
#endif
