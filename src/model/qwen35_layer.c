#include "model/qwen35_layer.h"

#include "base/mem.h"
#include "ops/joined.h"

#include <math.h>
#include <stdio.h>

/* --- binding ------------------------------------------------------------------------------------*/
bool qwen35_load_attention(role_binder *g, qwen35_layer *y, int l, err *e)
{
    return role_matrix(g, &y->q, QWEN35_ATTN_Q, l, e) && role_matrix(g, &y->k, QWEN35_ATTN_K, l, e) &&
           role_matrix(g, &y->v, QWEN35_ATTN_V, l, e) && role_matrix(g, &y->o, QWEN35_ATTN_O, l, e) &&
           role_vector(g, &y->n_q, QWEN35_Q_NORM, l, 1, e) && role_vector(g, &y->n_k, QWEN35_K_NORM, l, 1, e);
}

/* Experts of a directory that has one tensor for each. */
static bool load_expert_stack(role_binder *g, weight **out, const char *what, int l, int n_in, int n_out, err *e)
{
    const qwen35_config *c = g->config;
    const tensor        *t[QWEN35_MAX_EXPERTS];
    char                 name[ROLE_NAME_MAX];
    for (int i = 0; i < c->n_experts; i++) {
        snprintf(name, sizeof name, "%slayers.%d.mlp.experts.%d.%s.weight", g->hf_prefix, l, i, what);
        if (!bind_require(&g->b, name, &t[i], e)) return false;
    }
    return bind_stack(&g->b, out, t, n_in, n_out, c->n_experts, e);
}

/* Backends with a kernel for gate and up together get them as one stack. */
static bool load_gate_up(role_binder *g, qwen35_layer *y, int l, err *e)
{
    const qwen35_config *c   = g->config;
    const tensor        *t[] = {role_find(g, QWEN35_EXP_GATE, l), role_find(g, QWEN35_EXP_UP, l)};
    if (g->b.own->o->experts && t[0] && t[1] && t[0]->type == t[1]->type)
        return bind_pairs(&g->b, &y->exp_gate_up, t, c->n_embd, c->n_ff_expert, c->n_experts, e);
    return role_matrix(g, &y->exp_gate, QWEN35_EXP_GATE, l, e) && role_matrix(g, &y->exp_up, QWEN35_EXP_UP, l, e);
}

static bool load_experts(role_binder *g, qwen35_layer *y, int l, err *e)
{
    const qwen35_config *c = g->config;
    if (role_find(g, QWEN35_EXP_GATE_UP, l))
        return role_matrix(g, &y->exp_gate_up, QWEN35_EXP_GATE_UP, l, e) &&
               role_matrix(g, &y->exp_down, QWEN35_EXP_DOWN, l, e);
    if (g->b.cp->gguf) return load_gate_up(g, y, l, e) && role_matrix(g, &y->exp_down, QWEN35_EXP_DOWN, l, e);
    return load_expert_stack(g, &y->exp_gate, "gate_proj", l, c->n_embd, c->n_ff_expert, e) &&
           load_expert_stack(g, &y->exp_up, "up_proj", l, c->n_embd, c->n_ff_expert, e) &&
           load_expert_stack(g, &y->exp_down, "down_proj", l, c->n_ff_expert, c->n_embd, e);
}

bool qwen35_load_ffn(role_binder *g, qwen35_layer *y, int l, err *e)
{
    bool moe = ((const qwen35_config *)g->config)->n_experts > 0;
    return role_vector(g, &y->n_in, QWEN35_IN_NORM, l, 1, e) && role_vector(g, &y->n_post, QWEN35_POST_NORM, l, 1, e) &&
           role_matrix(g, &y->ff.gate, moe ? QWEN35_SHARED_GATE : QWEN35_FF_GATE, l, e) &&
           role_matrix(g, &y->ff.up, moe ? QWEN35_SHARED_UP : QWEN35_FF_UP, l, e) &&
           role_matrix(g, &y->ff.down, moe ? QWEN35_SHARED_DOWN : QWEN35_FF_DOWN, l, e) &&
           (!moe || (role_matrix(g, &y->router, QWEN35_ROUTER, l, e) &&
                     role_matrix(g, &y->shared, QWEN35_SHARED_SCALE, l, e) && load_experts(g, y, l, e)));
}

/* --- scratch ------------------------------------------------------------------------------------*/
bool qwen35_take_floats(const qwen35_pass *p, dev *out, size_t n, err *e)
{
    return owned_buf(p->own, out, (size_t)p->max_rows * n * sizeof(float), e);
}

static bool init_expert_scratch(qwen35_pass *p, err *e)
{
    const qwen35_config *c = p->c;
    size_t               H = (size_t)c->n_embd, K = (size_t)c->n_used, FE = (size_t)c->n_ff_expert;
    return qwen35_take_floats(p, &p->exp_logits, (size_t)c->n_experts, e) && qwen35_take_floats(p, &p->exp_id, K, e) &&
           qwen35_take_floats(p, &p->exp_w, K, e) && qwen35_take_floats(p, &p->exp_gate_up, K * 2 * FE, e) &&
           qwen35_take_floats(p, &p->exp_act, K * FE, e) && qwen35_take_floats(p, &p->exp_out, K * H, e) &&
           qwen35_take_floats(p, &p->shared, H, e) && qwen35_take_floats(p, &p->shared_gate, 1, e);
}

/* Pairs rotate by time, height and width in turn, as long as a section has pairs left, then by time. */
static bool init_sections(qwen35_pass *p, err *e)
{
    int32_t section[OPS_MAX_HEAD_DIM / 2];
    int     n = p->c->n_rot / 2;
    for (int i = 0; i < n; i++)
        section[i] = i / ROPE_SECTIONS < p->c->section[i % ROPE_SECTIONS] ? i % ROPE_SECTIONS : 0;
    return owned_put(p->own, &p->rope.section, section, (size_t)n * sizeof *section, e);
}

bool qwen35_pass_init(qwen35_pass *p, err *e)
{
    const qwen35_config *c = p->c;
    size_t               H = (size_t)c->n_embd, F = (size_t)(c->n_experts ? c->n_ff_shared : c->n_ff);
    size_t               heads = (size_t)(c->n_heads * c->head_dim);
    return qwen35_take_floats(p, &p->f, H, e) && qwen35_take_floats(p, &p->qg, 2 * heads, e) &&
           qwen35_take_floats(p, &p->heads_q, heads, e) && qwen35_take_floats(p, &p->k, heads, e) &&
           qwen35_take_floats(p, &p->v, heads, e) && qwen35_take_floats(p, &p->heads, heads, e) &&
           qwen35_take_floats(p, &p->gate, F, e) && qwen35_take_floats(p, &p->up, F, e) &&
           (!c->n_experts || init_expert_scratch(p, e)) &&
           bind_rope(p->own, &p->rope, c->n_rot, c->theta, 1, 1, NULL, e) && init_sections(p, e);
}

queue_limits qwen35_limits(const qwen35_config *c, int max_rows)
{
    int wide[] = {c->n_heads * c->head_dim, c->n_v_heads * c->delta_dim, c->n_ff, c->n_ff_expert, c->n_ff_shared};
    int max    = 2 * c->n_embd; /* the MTP head's */
    for (size_t i = 0; i < COUNT(wide); i++)
        if (wide[i] > max) max = wide[i];
    return (queue_limits){.max_rows         = max_rows,
                          .max_in           = max,
                          .max_expert_slots = c->n_used,
                          .n_experts        = c->n_experts,
                          .max_vocab        = c->n_vocab,
                          .max_expert_in    = c->n_ff_expert,
                          .max_expert_x     = c->n_embd};
}

/* --- attention ----------------------------------------------------------------------------------*/
void qwen35_make_heads(const qwen35_pass *p, const qwen35_layer *y, const kv_class *kv, const step_rows *r)
{
    const qwen35_config *c    = p->c;
    dev                  to[] = {p->qg, p->k, p->v};
    const weight        *w[]  = {y->q, y->k, y->v};
    head_rows            h    = {.q        = p->heads_q,
                                 .q_in     = p->qg,
                                 .q_stride = 2 * c->head_dim,
                                 .k        = p->k,
                                 .v        = p->v,
                                 .w_q      = y->n_q,
                                 .w_k      = y->n_k,
                                 .rope     = p->rope,
                                 .n_heads  = c->n_heads,
                                 .layer    = y->index,
                                 .c        = kv,
                                 .eps      = c->eps};
    ops_matmuls(p->o, p->q, to, w, 3, p->n, r->n_rows);
    ops_heads(p->o, p->q, &h, r);
}

void qwen35_attend(const qwen35_pass *p, const qwen35_layer *y, const kv_class *kv, const step_rows *seen)
{
    const qwen35_config *c = p->c;
    const ops           *o = p->o;
    int                  D = c->head_dim, n = seen->n_rows;
    o->attention(p->q, p->heads, p->heads_q, c->n_heads, kv, y->index, seen, 1 / sqrtf((float)D), 0);
    ops_gated_heads(o, p->q, p->heads_q, dev_at_f32(p->qg, (size_t)D), 2 * D, p->heads, n, c->n_heads, D, ACT_SIGMOID);
    o->matmul(p->q, p->f, y->o, p->heads_q, n);
}

/* --- the feed-forward block ---------------------------------------------------------------------*/
/* to = MLP(n) */
static void dense_block(const qwen35_pass *p, const qwen35_mlp *w, dev to, int n)
{
    const ops    *o    = p->o;
    int           F    = w->gate->n_out;
    dev           y[]  = {p->gate, p->up};
    const weight *ws[] = {w->gate, w->up};
    ops_matmuls(o, p->q, y, ws, 2, p->n, n);
    o->gated(p->q, p->gate, p->gate, F, p->up, F, n, F, ACT_SILU);
    o->matmul(p->q, to, w->down, p->gate, n);
}

/* Runs the chosen experts and the shared one; what they give is summed with the residual stream. */
static void expert_block(const qwen35_pass *p, const qwen35_layer *y, int n)
{
    const qwen35_config *c      = p->c;
    const ops           *o      = p->o;
    expert_rows          to     = {.logits    = p->exp_logits,
                                   .id        = p->exp_id,
                                   .w         = p->exp_w,
                                   .y         = p->exp_out,
                                   .x         = p->n,
                                   .inner     = p->exp_gate_up,
                                   .act       = p->exp_act,
                                   .gate_up   = y->exp_gate_up,
                                   .gate      = y->exp_gate,
                                   .up        = y->exp_up,
                                   .down      = y->exp_down,
                                   .n_experts = c->n_experts,
                                   .n_slots   = c->n_used,
                                   .n_ff      = c->n_ff_expert,
                                   .kind      = ACT_SILU};
    dev                  y_of[] = {p->exp_logits, p->shared_gate};
    const weight        *w[]    = {y->router, y->shared};
    ops_aside(o, p->q, ASIDE_BEGIN);
    dense_block(p, &y->ff, p->shared, n);
    ops_aside(o, p->q, ASIDE_END);
    ops_matmuls(o, p->q, y_of, w, 2, p->n, n);
    ops_experts(o, p->q, &to, n);
    ops_aside(o, p->q, ASIDE_JOIN);
}

void qwen35_end_layer(const qwen35_pass *p, const qwen35_layer *y, dev next, int n)
{
    sum_rows mixer = {
        .y = p->x, .res = p->x, .z = p->f, .out = p->n, .w = y->n_post, .n = p->c->n_embd, .eps = p->c->eps};
    sum_rows ffn = mixer;
    ops_sums(p->o, p->q, &mixer, n);
    ffn.out = next.p ? p->n : next;
    ffn.w   = next;
    if (p->c->n_experts) {
        expert_block(p, y, n);
        ffn.slots   = p->exp_out;
        ffn.slot_w  = p->exp_w;
        ffn.n_slots = p->c->n_used;
        ffn.shared  = p->shared;
        ffn.gate    = p->shared_gate;
    } else {
        dense_block(p, &y->ff, p->f, n);
    }
    ops_sums(p->o, p->q, &ffn, n);
}
