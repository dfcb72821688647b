#include "base/log.h"
#include "base/mem.h"
#include "model/config_value.h"
#include "model/convert_plan.h"
#include "model/gemma4.h"
#include "model/gemma4_roles.h"
#include "model/mtp.h"

#include <math.h>

/* --- keys --------------------------------------------------------------------------------------- */
/* Returns the head size of the full or the sliding layers; that of the others when there are none. */
static int head_dim(const gemma4_config *c, bool sliding)
{
    for (int l = 0; l < c->n_layers; l++)
        if (c->sliding[l] == sliding) return c->head_dim[l];
    return c->head_dim[0];
}

static void put_attention(convert_plan *p, const gemma4_config *c)
{
    int full = head_dim(c, false), sliding = head_dim(c, true);
    plan_u32(p, "attention.head_count", c->n_heads);
    plan_u32_per_layer(p, "attention.head_count_kv", c->n_kv_heads);
    plan_u32(p, "attention.key_length", full);
    plan_u32(p, "attention.value_length", full);
    plan_u32(p, "attention.key_length_swa", sliding);
    plan_u32(p, "attention.value_length_swa", sliding);
    plan_f32(p, "attention.layer_norm_rms_epsilon", c->eps);
    plan_u32(p, "attention.sliding_window", c->window);
    plan_bools(p, "attention.sliding_window_pattern", c->sliding, c->n_layers);
    plan_u32(p, "attention.shared_kv_layers", c->n_kv_shared);
    plan_f32(p, "rope.freq_base", c->theta_full);
    plan_f32(p, "rope.freq_base_swa", c->theta_sliding);
    plan_u32(p, "rope.dimension_count", full);
    plan_u32(p, "rope.dimension_count_swa", sliding);
}

void plan_gemma4_keys(convert_plan *p, const gemma4_config *c)
{
    p->n_layers = c->n_layers;
    p->n_vocab  = c->n_vocab;
    plan_u32(p, "block_count", c->n_layers);
    plan_u32(p, "vocab_size", c->n_vocab);
    plan_u32(p, "context_length", c->n_ctx);
    plan_u32(p, "embedding_length", c->n_embd);
    plan_u32(p, "embedding_length_per_layer_input", c->n_ple);
    plan_u32_per_layer(p, "feed_forward_length", c->n_ff);
    put_attention(p, c);
    if (c->softcap > 0) plan_f32(p, "final_logit_softcapping", c->softcap);
    if (!c->n_experts) return;
    plan_u32(p, "expert_count", c->n_experts);
    plan_u32(p, "expert_used_count", c->n_used);
    plan_u32(p, "expert_feed_forward_length", c->n_ff_expert);
}

/* Puts the divisors of the frequencies of full layers; 1e30 stops a pair. Only full layers have such a table. */
static bool put_rope(convert_plan *p, const gemma4_config *c, err *e)
{
    int    half = head_dim(c, false) / 2, turning = (int)(c->rotary_part * half);
    float *f = xnew_n(float, (size_t)half);
    for (int i = 0; i < half; i++) f[i] = i < turning ? (float)c->rope_factor_full : 1e30f;
    bool ok = c->rope_factor_sliding == 1 ||
              err_set(e, ERR_FORMAT, "rope_parameters.sliding_attention.factor is %g, for which GGUF has no key",
                      c->rope_factor_sliding);
    ok = ok && plan_made(p, "rope_freqs.weight", f, half, e);
    mem_free(f);
    return ok;
}

/* --- tensors ------------------------------------------------------------------------------------ */
static bool put_role(convert_plan *p, gemma4_role r, const char *prefix, int l, err *e)
{
    char from[ROLE_NAME_MAX], to[ROLE_NAME_MAX];
    role_name(&gemma4_roles, r, prefix, l, from);
    role_name(&gemma4_roles, r, NULL, l, to);
    return plan_optional(p, from, to, e);
}

static bool is_kv(gemma4_role r) { return r == ROLE_ATTN_K || r == ROLE_ATTN_V || r == ROLE_K_NORM; }

/* Puts all tensors of the directory, the layers in order, except K/V of layers that read another layer's. */
static bool put_tensors(convert_plan *p, const gemma4_config *c, err *e)
{
    const char *prefix = role_hf_prefix(&gemma4_roles, p->cp->tensors);
    for (gemma4_role r = 0; r < GEMMA4_ROLES; r++)
        if (!role_has_layers(&gemma4_roles, r) && !put_role(p, r, prefix, 0, e)) return false;
    for (int l = 0; l < c->n_layers; l++)
        for (gemma4_role r = 0; r < GEMMA4_ROLES; r++) {
            bool skip = !role_has_layers(&gemma4_roles, r) || (is_kv(r) && gemma4_kv_donor(c, l) != l) ||
                        (r == ROLE_ATTN_V && c->k_is_v[l]);
            if (!skip && !put_role(p, r, prefix, l, e)) return false;
        }
    return true;
}

bool plan_gemma4(convert_plan *p, err *e)
{
    gemma4_config     c;
    const json_value *tied = hf_present(p->cp->config, "tie_word_embeddings");
    p->arch                = "gemma4";
    if (!gemma4_check(p->cp, e) || !gemma4_config_read(&c, p->cp, e)) return false;
    plan_gemma4_keys(p, &c);
    if (!put_rope(p, &c, e) || !put_tensors(p, &c, e)) return false;
    bool own_head = tied && tied->kind == JSON_BOOL && !tied->b;
    return !own_head || plan_tensor(p, "lm_head.weight", "output.weight", c.n_embd, c.n_vocab, e);
}

/* --- the assistant ------------------------------------------------------------------------------ */
/* Plans the tensor of a role; it must be there in the shape of the role. */
static bool require_role(convert_plan *p, const gemma4_config *c, gemma4_role r, int l, err *e)
{
    char from[ROLE_NAME_MAX], to[ROLE_NAME_MAX];
    role_name(&gemma4_roles, r, role_hf_prefix(&gemma4_roles, p->cp->tensors), l, from);
    role_name(&gemma4_roles, r, NULL, l, to);
    return plan_tensor(p, from, to, role_size(&gemma4_roles, c, r, 0, l), role_size(&gemma4_roles, c, r, 1, l), e);
}

static bool put_assistant_layer(convert_plan *p, const gemma4_config *c, int l, err *e)
{
    static const gemma4_role layer[] = {ROLE_ATTN_NORM,      ROLE_ATTN_Q,       ROLE_Q_NORM,      ROLE_ATTN_O,
                                        ROLE_POST_ATTN_NORM, ROLE_FF_NORM,      ROLE_FF_GATE,     ROLE_FF_UP,
                                        ROLE_FF_DOWN,        ROLE_POST_FF_NORM, ROLE_LAYER_SCALAR};
    for (size_t i = 0; i < COUNT(layer); i++)
        if (!require_role(p, c, layer[i], l, e)) return false;
    return true;
}

/* Puts the order of the tokens as 32-bit integers. */
static bool put_order(convert_plan *p, const tensor *t, int n, err *e)
{
    int32_t *id = mem_try_n((size_t)n, sizeof *id);
    if (!id) return err_set(e, ERR_UNAVAILABLE, "no memory for an order of %d tokens", n);
    for (int i = 0; i < n; i++) {
        int64_t v = tensor_int(t, (size_t)i);
        id[i]     = v >= 0 && v < n ? (int32_t)v : -1; /* the reader refuses it */
    }
    gguf_put_array(p->w, MTP_ORDER_KEY, GGUF_I32, id, (size_t)n);
    mem_free(id);
    return true;
}

/* Puts the centroid head as keys of our own: llama.cpp refuses files with tensors that it does not know. */
static bool put_ordered_head(convert_plan *p, const gemma4_config *c, err *e)
{
    const tensor *x     = tensor_find(p->cp->tensors, STR("masked_embedding.centroids.weight"));
    const tensor *order = tensor_find(p->cp->tensors, STR("masked_embedding.token_ordering"));
    int           chosen;
    if (!hf_bool(p->cp->config, "use_ordered_embeddings")) return true;
    if (!hf_int(p->cp->config, "centroid_intermediate_top_k", CONFIG_REQUIRED, 1, 1 << 20, &chosen, e)) return false;
    if (!x || x->dim[0] != c->n_embd || x->dim[1] < 1 || x->dim[1] > c->n_vocab || x->dim[2] != 1 ||
        (x->type != QUANT_BF16 && x->type != QUANT_F32))
        return err_set(e, ERR_FORMAT, "'masked_embedding.centroids.weight' is not a matrix of width %d, bf16 or f32",
                       c->n_embd);
    if (!order || !tensor_is_ints(order, c->n_vocab))
        return err_set(e, ERR_FORMAT, "'masked_embedding.token_ordering' is not a list of %d integers", c->n_vocab);
    gguf_put_array(p->w, MTP_CENTROIDS_KEY, x->type == QUANT_BF16 ? GGUF_U16 : GGUF_F32, x->data,
                   (size_t)(x->dim[0] * x->dim[1]));
    gguf_put_u32(p->w, MTP_CHOSEN_KEY, (uint32_t)chosen);
    return plan_use(p, x) && plan_use(p, order) && put_order(p, order, c->n_vocab, e);
}

bool plan_assistant(convert_plan *p, err *e)
{
    gemma4_config c;
    int           backbone; /* the target's width */
    p->arch = "gemma4-assistant";
    if (!gemma4_config_read(&c, p->cp, e) ||
        !hf_int(p->cp->config, "backbone_hidden_size", CONFIG_REQUIRED, 8, 1 << 20, &backbone, e))
        return false;
    plan_gemma4_keys(p, &c);
    plan_u32(p, "embedding_length_out", backbone);
    plan_u32(p, "nextn_predict_layers", c.n_layers);
    if (!put_rope(p, &c, e) || !require_role(p, &c, ROLE_EMBED, 0, e) || !require_role(p, &c, ROLE_OUT_NORM, 0, e) ||
        !plan_tensor(p, "pre_projection.weight", "nextn.pre_projection.weight", 2 * (int64_t)backbone, c.n_embd, e) ||
        !plan_tensor(p, "post_projection.weight", "nextn.post_projection.weight", c.n_embd, backbone, e))
        return false;
    for (int l = 0; l < c.n_layers; l++)
        if (!put_assistant_layer(p, &c, l, e)) return false;
    return put_ordered_head(p, &c, e);
}
