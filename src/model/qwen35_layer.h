/* model/qwen35_layer.h - a layer of Qwen 3.5 without its recurrent part: full attention and the feed-forward block,
 * shared by the target and its MTP head. qwen35.c describes the model. */
#ifndef TANDEM_MODEL_QWEN35_LAYER_H
#define TANDEM_MODEL_QWEN35_LAYER_H
#include "model/qwen35_roles.h"

typedef struct {
    weight *gate, *up, *down;
} qwen35_mlp;

typedef struct {
    weight    *q, *k, *v, *o; /* full attention */
    dev        n_q, n_k;
    weight    *qkv, *z, *a, *b, *out; /* gated delta net */
    dev        conv, rate, bias, n_o;
    qwen35_mlp ff;                                                           /* dense, or the shared expert */
    weight    *router, *exp_gate_up, *exp_gate, *exp_up, *exp_down, *shared; /* exp_gate_up, or exp_gate and exp_up */
    dev        n_in, n_post;
    int        index; /* among the layers of its kind */
} qwen35_layer;

/* The parameters and scratch of a pass over layers. Scratch: [max_rows][n] floats unless noted. */
typedef struct {
    const qwen35_config *c;
    const ops           *o;
    queue               *q;
    owned               *own;
    int                  max_rows;
    rope_params          rope;
    dev                  x, n, f;                       /* [H] */
    dev                  qg, heads_q, k, v, heads;      /* [2 heads], [heads], ... */
    dev                  gate, up;                      /* [n_ff or n_ff_shared] */
    dev                  exp_logits, exp_id, exp_w;     /* [n_experts], [n_used] */
    dev                  exp_gate_up, exp_act, exp_out; /* [n_used][2 n_ff_expert], ..., [n_used][H] */
    dev                  shared, shared_gate;           /* [H], [1] */
} qwen35_pass;

/* Binds the norms and the feed-forward block of layer l, or the attention. */
bool qwen35_load_ffn(role_binder *g, qwen35_layer *y, int l, err *e);
bool qwen35_load_attention(role_binder *g, qwen35_layer *y, int l, err *e);

/* Allocates scratch for p->max_rows rows, except x and n, and the frequencies of rope; all owned by p->own. */
bool qwen35_pass_init(qwen35_pass *p, err *e);
bool qwen35_take_floats(const qwen35_pass *p, dev *out, size_t n, err *e); /* [max_rows][n] */
/* Returns the limits of a queue for the target and its MTP head. */
queue_limits qwen35_limits(const qwen35_config *c, int max_rows);

/* Makes queries, gates, keys and values of n, and stores the K/V of the rows. */
void qwen35_make_heads(const qwen35_pass *p, const qwen35_layer *y, const kv_class *kv, const step_rows *r);
/* f = Wo (attention * sigmoid(gate)), after qwen35_make_heads. `seen` are the rows as attention sees them. */
void qwen35_attend(const qwen35_pass *p, const qwen35_layer *y, const kv_class *kv, const step_rows *seen);
/* x = x + f, then x = x + FFN(N_post(x)), then n = norm(x) next; next NULL (.p): n is undefined. */
void qwen35_end_layer(const qwen35_pass *p, const qwen35_layer *y, dev next, int n_rows);
#endif
