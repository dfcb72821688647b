/* ops/joined.h - ops that some backends run as one kernel and others one by one. ops.h describes the arguments. */
#ifndef TANDEM_OPS_JOINED_H
#define TANDEM_OPS_JOINED_H
#include "ops/ops.h"

/* y[i] = w[i] x, for n_w <= JOINED_MATMULS matrices of the same n_in. */
void ops_matmuls(const ops *o, queue *q, const dev *y, const weight *const *w, int n_w, dev x, int n_rows);
/* q = rope(norm(q) w_q); k = rope(norm(k) w_k) and v = norm(v) go into the cache. */
void ops_heads(const ops *o, queue *q, const head_rows *h, const step_rows *rows);
void ops_norms(const ops *o, queue *q, const norm_rows *c, int n_rows);
/* Chooses experts by their logits, then runs them: y[row][slot] = down(act(gate x) * (up x)). */
void ops_experts(const ops *o, queue *q, const expert_rows *e, int n_rows);
/* Lets ops run concurrently with others, if the backend can. */
void ops_aside(const ops *o, queue *q, aside_part part);
#endif
