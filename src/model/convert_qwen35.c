/* A Qwen 3.5 directory as a GGUF file: keys and tensors as llama.cpp's converter writes them.
 *
 * GGUF files have the value heads of delta nets in tiled order: with r value heads for each of K key heads, head
 * j * K + c is head c * r + j of the directory. Seven tensors follow this order. Norms are stored with 1 added, A_log
 * as -e^x, gates and up projections of experts apart. */
#include "base/mem.h"
#include "model/convert_plan.h"
#include "model/qwen35_roles.h"

#include <math.h>
#include <stdio.h>

/* --- keys ---------------------------------------------------------------------------------------*/
void plan_qwen35_keys(convert_plan *p, const qwen35_config *c)
{
    int     every      = 0;
    int32_t sections[] = {11, 11, 10, 0};
    bool    recurrent[QWEN35_MAX_LAYERS + 1];
    char    key[64];
    for (int l = 0; l < c->n_layers; l++) recurrent[l] = !c->full[l];
    while (every < c->n_layers && !c->full[every]) every++;
    for (int i = 0; i < c->n_mtp; i++) recurrent[c->n_layers + i] = false;
    p->n_layers = c->n_layers + c->n_mtp;
    p->n_vocab  = c->n_vocab;
    plan_u32(p, "block_count", c->n_layers + c->n_mtp);
    if (c->n_mtp) plan_u32(p, "nextn_predict_layers", c->n_mtp);
    plan_u32(p, "vocab_size", c->n_vocab);
    plan_u32(p, "context_length", c->n_ctx);
    plan_u32(p, "embedding_length", c->n_embd);
    if (!c->n_experts) plan_u32(p, "feed_forward_length", c->n_ff);
    plan_u32(p, "attention.head_count", c->n_heads);
    plan_u32(p, "attention.head_count_kv", c->n_kv_heads);
    plan_u32(p, "attention.key_length", c->head_dim);
    plan_u32(p, "attention.value_length", c->head_dim);
    plan_f32(p, "attention.layer_norm_rms_epsilon", c->eps);
    plan_f32(p, "rope.freq_base", c->theta);
    plan_u32(p, "rope.dimension_count", c->n_rot);
    if (c->n_rot != 64) { /* small models: as even as three sections can be */
        sections[0] = (c->n_rot / 2 + 2) / 3;
        sections[1] = (c->n_rot / 2 + 1) / 3;
        sections[2] = c->n_rot / 2 / 3;
    }
    snprintf(key, sizeof key, "%s.rope.dimension_sections", p->arch);
    gguf_put_array(p->w, key, GGUF_I32, sections, COUNT(sections));
    plan_u32(p, "ssm.conv_kernel", c->n_taps);
    plan_u32(p, "ssm.state_size", c->delta_dim);
    plan_u32(p, "ssm.group_count", c->n_k_heads);
    plan_u32(p, "ssm.time_step_rank", c->n_v_heads);
    plan_u32(p, "ssm.inner_size", c->n_v_heads * c->delta_dim);
    plan_u32(p, "full_attention_interval", every + 1);
    plan_bools(p, "attention.recurrent_layers", recurrent, p->n_layers);
    if (!c->n_experts) return;
    plan_u32(p, "expert_count", c->n_experts);
    plan_u32(p, "expert_used_count", c->n_used);
    plan_u32(p, "expert_feed_forward_length", c->n_ff_expert);
    plan_u32(p, "expert_shared_feed_forward_length", c->n_ff_shared);
}

/* --- tensors ------------------------------------------------------------------------------------*/
typedef struct {
    convert_plan *p;
    qwen35_config c;
    const char   *prefix;   /* prefix of the layer's names in the directory */
    int           from, to; /* the layer in the directory and in the file */
} walk;

/* Returns the head of the directory that is head h of the file. */
static int source_head(const qwen35_config *c, int h)
{
    return h % c->n_k_heads * (c->n_v_heads / c->n_k_heads) + h / c->n_k_heads;
}

static const tensor *find_role(const walk *w, qwen35_role r)
{
    char name[ROLE_NAME_MAX];
    role_name(&qwen35_roles, (int)r, w->prefix, w->from, name);
    return tensor_find(w->p->cp->tensors, str_of(name));
}

static bool require(const walk *w, qwen35_role r, const tensor **out, err *e)
{
    char name[ROLE_NAME_MAX];
    role_name(&qwen35_roles, (int)r, w->prefix, w->from, name);
    *out = tensor_find(w->p->cp->tensors, str_of(name));
    return *out || err_set(e, ERR_FORMAT, "tensor '%s' is missing", name);
}

static void name_in_file(const walk *w, qwen35_role r, char out[ROLE_NAME_MAX])
{
    role_name(&qwen35_roles, (int)r, NULL, w->to, out);
}

/* A matrix as it is. */
static bool put_matrix(const walk *w, qwen35_role r, err *e)
{
    char          to[ROLE_NAME_MAX];
    const tensor *t;
    name_in_file(w, r, to);
    return require(w, r, &t, e) && plan_found(w->p, t, to, e);
}

/* A vector, changed as its role says; heads: it has a number for each value head. */
static bool put_vector(const walk *w, qwen35_role r, bool heads, err *e)
{
    char          to[ROLE_NAME_MAX];
    const tensor *t;
    int           n      = role_size(&qwen35_roles, &w->c, (int)r, 0, 0);
    role_change   change = (role_change)qwen35_roles.role[r].change;
    name_in_file(w, r, to);
    if (!require(w, r, &t, e) || !bind_check_shape(t, n, 1, 1, e)) return false;
    float *from = mem_try_n((size_t)n, sizeof *from), *v = mem_try_n((size_t)n, sizeof *v);
    bool   ok = (from && v) || err_set(e, ERR_UNAVAILABLE, "no memory for tensor '%.*s'", STR_ARG(t->name));
    if (ok) quant_dequantise(t->type, t->data, from, (size_t)n);
    for (int i = 0; ok && i < n; i++) v[i] = role_changed(change, from[heads ? source_head(&w->c, i) : i]);
    ok = ok && plan_made(w->p, to, v, n, e) && plan_use(w->p, t);
    mem_free(from);
    mem_free(v);
    return ok;
}

/* --- tensors in another order --------------------------------------------------------------------*/
/* Parts of `bytes` each: `first` of them as they are, then one for each value head, repeated n times. */
typedef struct {
    const tensor *from;
    qwen35_config c;
    size_t        bytes, first, n;
} head_order;

static void copy_heads(const plan_item *x, char *to)
{
    const head_order *o     = x->ctx;
    size_t            heads = (size_t)o->c.n_v_heads, all = (o->first + heads) * o->bytes;
    for (size_t i = 0; i < o->n; i++) {
        const char *from = (const char *)o->from->data + i * all;
        char       *row  = to + i * all;
        memcpy(row, from, o->first * o->bytes);
        for (size_t h = 0; h < heads; h++)
            memcpy(row + (o->first + h) * o->bytes, from + (o->first + (size_t)source_head(&o->c, (int)h)) * o->bytes,
                   o->bytes);
    }
}

/* Plans a matrix whose rows, or columns, follow the value heads: `each` rows or columns of a head, after `first` such
 * groups that have no order. */
static bool put_heads(const walk *w, qwen35_role r, int each, int first, bool columns, err *e)
{
    const tensor *t;
    char          to[ROLE_NAME_MAX];
    size_t        n_in  = (size_t)role_size(&qwen35_roles, &w->c, (int)r, 0, 0);
    size_t        n_out = (size_t)role_size(&qwen35_roles, &w->c, (int)r, 1, 0), element;
    if (w->c.n_k_heads == w->c.n_v_heads) return put_matrix(w, r, e);
    name_in_file(w, r, to);
    if (!require(w, r, &t, e) || !bind_check_shape(t, (int64_t)n_in, (int64_t)n_out, 1, e)) return false;
    if (!quant_is_float(t->type))
        return err_set(e, ERR_FORMAT, "tensor '%.*s' is quantised: its heads cannot be put in order", STR_ARG(t->name));
    head_order *o = arena_try(&w->p->mem, 1, sizeof *o);
    if (!o) return err_set(e, ERR_UNAVAILABLE, "no memory for a plan");
    element = quant_block_bytes(t->type);
    *o      = (head_order){.from  = t,
                           .c     = w->c,
                           .bytes = (size_t)each * (columns ? 1 : n_in) * element,
                           .first = (size_t)first,
                           .n     = columns ? n_out : 1};
    return plan_computed(w->p, t, to, copy_heads, o, e) && plan_use(w->p, t);
}

/* The taps of the convolution, f32 [channels][taps]. */
static bool put_conv(const walk *w, err *e)
{
    const qwen35_config *c = &w->c;
    const tensor        *t;
    char                 to[ROLE_NAME_MAX];
    size_t               taps = (size_t)c->n_taps, D = (size_t)c->delta_dim, keys = 2 * (size_t)c->n_k_heads * D;
    size_t               n = (keys + (size_t)c->n_v_heads * D) * taps;
    name_in_file(w, QWEN35_DELTA_CONV, to);
    if (!require(w, QWEN35_DELTA_CONV, &t, e)) return false;
    if (!quant_can_dequantise(t->type) || t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3] != (int64_t)n)
        return err_set(e, ERR_FORMAT, "tensor '%.*s' does not have %zu numbers", STR_ARG(t->name), n);
    float *from = mem_try_n(n, sizeof *from), *v = mem_try_n(n, sizeof *v);
    bool   ok = (from && v) || err_set(e, ERR_UNAVAILABLE, "no memory for tensor '%.*s'", STR_ARG(t->name));
    if (ok) {
        quant_dequantise(t->type, t->data, from, n);
        memcpy(v, from, keys * taps * sizeof *v);
        for (int h = 0; h < c->n_v_heads; h++)
            memcpy(v + (keys + (size_t)h * D) * taps, from + (keys + (size_t)source_head(c, h) * D) * taps,
                   D * taps * sizeof *v);
        ok = plan_made_2d(w->p, to, v, (int)taps, (int)(n / taps), e) && plan_use(w->p, t);
    }
    mem_free(from);
    mem_free(v);
    return ok;
}

/* --- experts ------------------------------------------------------------------------------------*/
/* Matrices of one shape: from[i], or half `half` of matrix i of `whole`. */
typedef struct {
    const tensor  *whole;
    const tensor **from;
    size_t         n, half;
} expert_stack;

static void copy_experts(const plan_item *x, char *to)
{
    const expert_stack *s     = x->ctx;
    size_t              bytes = x->src.bytes / s->n;
    for (size_t i = 0; i < s->n; i++)
        memcpy(to + i * bytes,
               s->whole ? (const char *)s->whole->data + (2 * i + s->half) * bytes : (const char *)s->from[i]->data,
               bytes);
}

static bool put_stack(const walk *w, qwen35_role r, const tensor *like, expert_stack s, err *e)
{
    char          to[ROLE_NAME_MAX];
    tensor        t = *like;
    expert_stack *o = arena_try(&w->p->mem, 1, sizeof *o);
    if (!o) return err_set(e, ERR_UNAVAILABLE, "no memory for a plan");
    *o       = s;
    t.n_dims = 3;
    for (int i = 0; i < 3; i++) t.dim[i] = role_size(&qwen35_roles, &w->c, (int)r, i, 0);
    t.bytes = s.whole ? s.whole->bytes / 2 : like->bytes * s.n;
    name_in_file(w, r, to);
    return plan_computed(w->p, &t, to, copy_experts, o, e);
}

/* Experts of a directory that has one tensor for each. */
static bool put_single_experts(const walk *w, qwen35_role r, const char *what, err *e)
{
    int            n = w->c.n_experts;
    char           name[ROLE_NAME_MAX];
    const tensor **from = arena_try(&w->p->mem, (size_t)n, sizeof *from);
    if (!from) return err_set(e, ERR_UNAVAILABLE, "no memory for a plan");
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%slayers.%d.mlp.experts.%d.%s.weight", w->prefix, w->from, i, what);
        from[i] = tensor_find(w->p->cp->tensors, str_of(name));
        if (!from[i]) return err_set(e, ERR_FORMAT, "tensor '%s' is missing", name);
        if (!bind_check_shape(from[i], role_size(&qwen35_roles, &w->c, (int)r, 0, 0),
                              role_size(&qwen35_roles, &w->c, (int)r, 1, 0), 1, e))
            return false;
        if (from[i]->type != from[0]->type)
            return err_set(e, ERR_FORMAT, "tensor '%s' has another type than that of the first expert", name);
        if (!plan_use(w->p, from[i])) return false;
    }
    return put_stack(w, r, from[0], (expert_stack){.from = from, .n = (size_t)n}, e);
}

static bool put_experts(const walk *w, err *e)
{
    const tensor *both = find_role(w, QWEN35_EXP_GATE_UP);
    size_t        n    = (size_t)w->c.n_experts;
    if (!both)
        return put_single_experts(w, QWEN35_EXP_GATE, "gate_proj", e) &&
               put_single_experts(w, QWEN35_EXP_UP, "up_proj", e) &&
               put_single_experts(w, QWEN35_EXP_DOWN, "down_proj", e);
    return bind_check_shape(both, w->c.n_embd, 2 * (int64_t)w->c.n_ff_expert, w->c.n_experts, e) &&
           put_stack(w, QWEN35_EXP_GATE, both, (expert_stack){.whole = both, .n = n, .half = 0}, e) &&
           put_stack(w, QWEN35_EXP_UP, both, (expert_stack){.whole = both, .n = n, .half = 1}, e) &&
           plan_use(w->p, both) && put_matrix(w, QWEN35_EXP_DOWN, e);
}

/* --- layers -------------------------------------------------------------------------------------*/
static bool put_ffn(const walk *w, err *e)
{
    bool moe = w->c.n_experts > 0;
    if (!put_vector(w, QWEN35_IN_NORM, false, e) || !put_vector(w, QWEN35_POST_NORM, false, e)) return false;
    if (!moe)
        return put_matrix(w, QWEN35_FF_GATE, e) && put_matrix(w, QWEN35_FF_UP, e) && put_matrix(w, QWEN35_FF_DOWN, e);
    return put_matrix(w, QWEN35_ROUTER, e) && put_experts(w, e) && put_matrix(w, QWEN35_SHARED_SCALE, e) &&
           put_matrix(w, QWEN35_SHARED_GATE, e) && put_matrix(w, QWEN35_SHARED_UP, e) &&
           put_matrix(w, QWEN35_SHARED_DOWN, e);
}

static bool put_attention(const walk *w, err *e)
{
    return put_matrix(w, QWEN35_ATTN_Q, e) && put_matrix(w, QWEN35_ATTN_K, e) && put_matrix(w, QWEN35_ATTN_V, e) &&
           put_matrix(w, QWEN35_ATTN_O, e) && put_vector(w, QWEN35_Q_NORM, false, e) &&
           put_vector(w, QWEN35_K_NORM, false, e);
}

static bool put_delta(const walk *w, err *e)
{
    int D = w->c.delta_dim;
    return put_heads(w, QWEN35_DELTA_QKV, D, 2 * w->c.n_k_heads, false, e) &&
           put_heads(w, QWEN35_DELTA_Z, D, 0, false, e) && put_heads(w, QWEN35_DELTA_B, 1, 0, false, e) &&
           put_heads(w, QWEN35_DELTA_A, 1, 0, false, e) && put_conv(w, e) &&
           put_vector(w, QWEN35_DELTA_RATE, true, e) && put_vector(w, QWEN35_DELTA_BIAS, true, e) &&
           put_vector(w, QWEN35_DELTA_NORM, false, e) && put_heads(w, QWEN35_DELTA_OUT, D, 0, true, e);
}

static bool put_mtp(walk *w, err *e)
{
    w->prefix = tensor_find(w->p->cp->tensors, STR("mtp.fc.weight")) ? "mtp." : "model.mtp.";
    w->from   = 0;
    w->to     = w->c.n_layers;
    return put_matrix(w, QWEN35_MTP_FC, e) && put_vector(w, QWEN35_MTP_EMBED_NORM, false, e) &&
           put_vector(w, QWEN35_MTP_HIDDEN_NORM, false, e) && put_vector(w, QWEN35_MTP_OUT_NORM, false, e) &&
           put_attention(w, e) && put_ffn(w, e);
}

bool plan_qwen35(convert_plan *p, err *e)
{
    walk w = {.p = p, .prefix = role_hf_prefix(&qwen35_roles, p->cp->tensors)};
    if (!qwen35_config_read(&w.c, p->cp, e)) return false;
    if (!tensor_find(p->cp->tensors, STR("mtp.fc.weight")) && !tensor_find(p->cp->tensors, STR("model.mtp.fc.weight")))
        w.c.n_mtp = 0; /* the configuration has a head that the directory lacks */
    p->arch = w.c.n_experts ? "qwen35moe" : "qwen35";
    plan_qwen35_keys(p, &w.c);
    if (!put_matrix(&w, QWEN35_EMBED, e) || !put_vector(&w, QWEN35_OUT_NORM, false, e) ||
        (!w.c.tied && !plan_tensor(p, "lm_head.weight", "output.weight", w.c.n_embd, w.c.n_vocab, e)))
        return false;
    for (int l = 0; l < w.c.n_layers; l++) {
        w.from = w.to = l;
        if (!(w.c.full[l] ? put_attention : put_delta)(&w, e) || !put_ffn(&w, e)) return false;
    }
    return !w.c.n_mtp || put_mtp(&w, e);
}
