#include "base/mem.h"
#include "model/config_value.h"
#include "model/convert_plan.h"
#include "model/dflash_config.h"

enum { DEFAULT_CONTEXT = 131072 };

/* Refuses configurations that GGUF keys cannot express. */
static bool check_config(const dflash_config *c, err *e)
{
    if (!c->n_captures) return config_missing("dflash_config.target_layer_ids", e);
    if (c->n_features % c->n_captures)
        return err_set(e, ERR_FORMAT, "features of width %d do not match %d layers", c->n_features, c->n_captures);
    if (c->window && !c->causal_sliding)
        return err_set(e, ERR_FORMAT, "its sliding layers see the whole block, for which GGUF has no key");
    return true;
}

void plan_dflash_keys(convert_plan *p, const dflash_config *c)
{
    int32_t inputs[DFLASH_MAX_CAPTURES]; /* GGUF counts the layer that an output goes into */
    for (int i = 0; i < c->n_captures; i++) inputs[i] = c->capture[i] + 1;
    plan_u32(p, "block_count", c->n_layers);
    plan_u32(p, "vocab_size", c->n_vocab);
    plan_u32(p, "context_length", c->n_ctx ? c->n_ctx : DEFAULT_CONTEXT);
    plan_u32(p, "embedding_length", c->n_embd);
    plan_u32(p, "feed_forward_length", c->n_ff);
    plan_u32(p, "attention.head_count", c->n_heads);
    plan_u32(p, "attention.head_count_kv", c->n_kv_heads);
    plan_u32(p, "attention.key_length", c->head_dim);
    plan_u32(p, "attention.value_length", c->head_dim);
    plan_f32(p, "attention.layer_norm_rms_epsilon", c->eps);
    plan_f32(p, "rope.freq_base", c->theta);
    plan_u32(p, "rope.dimension_count", c->head_dim);
    plan_u32(p, "block_size", c->block);
    gguf_put_array(p->w, "dflash.target_layers", GGUF_I32, inputs, (size_t)c->n_captures);
    if (c->softcap > 0) plan_f32(p, "final_logit_softcapping", c->softcap);
    if (c->causal_full) gguf_put_bool(p->w, "dflash.attention.causal", true);
    if (!c->window) return;
    plan_u32(p, "attention.sliding_window", c->window);
    plan_bools(p, "attention.sliding_window_pattern", c->sliding, c->n_layers);
}

/* The tensor of a role under GGUF's name; the shape is that of the configuration. */
static bool put_role(convert_plan *p, const dflash_config *c, dflash_role r, int l, int64_t d0, int64_t d1, err *e)
{
    char from[DFLASH_NAME_MAX], to[DFLASH_NAME_MAX];
    dflash_tensor_name(DFLASH_DIR, c->prefix, r, l, from);
    dflash_tensor_name(DFLASH_LLAMA, "", r, l, to);
    return plan_tensor(p, from, to, d0, d1, e);
}

static bool put_layer(convert_plan *p, const dflash_config *c, int l, err *e)
{
    int64_t H = c->n_embd, D = c->head_dim, Q = c->n_heads * D, K = c->n_kv_heads * D, F = c->n_ff;
    const struct {
        dflash_role role;
        int64_t     d0, d1;
    } layer[] = {
        {DFLASH_ATTN_NORM, H, 1}, {DFLASH_Q, H, Q},      {DFLASH_K, H, K},      {DFLASH_V, H, K},
        {DFLASH_O, Q, H},         {DFLASH_Q_NORM, D, 1}, {DFLASH_K_NORM, D, 1}, {DFLASH_FF_NORM, H, 1},
        {DFLASH_GATE, H, F},      {DFLASH_UP, H, F},     {DFLASH_DOWN, F, H},
    };
    for (size_t i = 0; i < COUNT(layer); i++)
        if (!put_role(p, c, layer[i].role, l, layer[i].d0, layer[i].d1, e)) return false;
    return true;
}

/* Most drafters borrow the target's; a file that has a table and says that it is no good is believed. */
static bool put_own_tables(convert_plan *p, const dflash_config *c, err *e)
{
    char embed[DFLASH_NAME_MAX], head[DFLASH_NAME_MAX];
    dflash_tensor_name(DFLASH_DIR, c->prefix, DFLASH_EMBED, 0, embed);
    dflash_tensor_name(DFLASH_DIR, c->prefix, DFLASH_HEAD, 0, head);
    return (!c->own_embed || plan_optional(p, embed, "token_embd.weight", e)) &&
           plan_optional(p, head, "output.weight", e);
}

bool plan_dflash(convert_plan *p, err *e)
{
    dflash_config c;
    p->arch = "dflash";
    if (!dflash_config_read(&c, p->cp, e) || !check_config(&c, e)) return false;
    p->n_layers = c.n_layers;
    p->n_vocab  = c.n_vocab;
    p->mask_id  = c.mask_id;
    plan_dflash_keys(p, &c);
    if (!put_role(p, &c, DFLASH_FC, 0, c.n_features, c.n_embd, e) ||
        !put_role(p, &c, DFLASH_HIDDEN_NORM, 0, c.n_embd, 1, e) || !put_role(p, &c, DFLASH_NORM, 0, c.n_embd, 1, e))
        return false;
    for (int l = 0; l < c.n_layers; l++)
        if (!put_layer(p, &c, l, e)) return false;
    return put_own_tables(p, &c, e);
}
