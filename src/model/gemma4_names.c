#include "model/gemma4_names.h"

#include "base/mem.h"

#include <stdio.h>

static const struct {
    const char *gguf, *hf; /* %d: the layer; hf without the prefix, empty: only GGUF has it */
} names[GEMMA4_ROLES] = {
    [ROLE_EMBED]          = {"token_embd.weight", "embed_tokens.weight"},
    [ROLE_OUT_NORM]       = {"output_norm.weight", "norm.weight"},
    [ROLE_PLE_EMBED]      = {"per_layer_token_embd.weight", "embed_tokens_per_layer.weight"},
    [ROLE_PLE_MODEL]      = {"per_layer_model_proj.weight", "per_layer_model_projection.weight"},
    [ROLE_PLE_MODEL_NORM] = {"per_layer_proj_norm.weight", "per_layer_projection_norm.weight"},
    [ROLE_ATTN_NORM]      = {"blk.%d.attn_norm.weight", "layers.%d.input_layernorm.weight"},
    [ROLE_ATTN_Q]         = {"blk.%d.attn_q.weight", "layers.%d.self_attn.q_proj.weight"},
    [ROLE_ATTN_K]         = {"blk.%d.attn_k.weight", "layers.%d.self_attn.k_proj.weight"},
    [ROLE_ATTN_V]         = {"blk.%d.attn_v.weight", "layers.%d.self_attn.v_proj.weight"},
    [ROLE_ATTN_O]         = {"blk.%d.attn_output.weight", "layers.%d.self_attn.o_proj.weight"},
    [ROLE_Q_NORM]         = {"blk.%d.attn_q_norm.weight", "layers.%d.self_attn.q_norm.weight"},
    [ROLE_K_NORM]         = {"blk.%d.attn_k_norm.weight", "layers.%d.self_attn.k_norm.weight"},
    [ROLE_POST_ATTN_NORM] = {"blk.%d.post_attention_norm.weight", "layers.%d.post_attention_layernorm.weight"},
    [ROLE_FF_NORM]        = {"blk.%d.ffn_norm.weight", "layers.%d.pre_feedforward_layernorm.weight"},
    [ROLE_POST_FF_NORM]   = {"blk.%d.post_ffw_norm.weight", "layers.%d.post_feedforward_layernorm.weight"},
    [ROLE_FF_GATE]        = {"blk.%d.ffn_gate.weight", "layers.%d.mlp.gate_proj.weight"},
    [ROLE_FF_UP]          = {"blk.%d.ffn_up.weight", "layers.%d.mlp.up_proj.weight"},
    [ROLE_FF_DOWN]        = {"blk.%d.ffn_down.weight", "layers.%d.mlp.down_proj.weight"},
    [ROLE_LAYER_SCALAR]   = {"blk.%d.layer_output_scale.weight", "layers.%d.layer_scalar"},
    [ROLE_ROUTER]         = {"blk.%d.ffn_gate_inp.weight", "layers.%d.router.proj.weight"},
    [ROLE_ROUTER_SCALE]   = {"blk.%d.ffn_gate_inp.scale", "layers.%d.router.scale"},
    [ROLE_EXPERT_SCALE]   = {"blk.%d.ffn_down_exps.scale", "layers.%d.router.per_expert_scale"},
    [ROLE_EXP_GATE_UP]    = {"blk.%d.ffn_gate_up_exps.weight", "layers.%d.experts.gate_up_proj"},
    [ROLE_EXP_GATE]       = {"blk.%d.ffn_gate_exps.weight", ""},
    [ROLE_EXP_UP]         = {"blk.%d.ffn_up_exps.weight", ""},
    [ROLE_EXP_DOWN]       = {"blk.%d.ffn_down_exps.weight", "layers.%d.experts.down_proj"},
    [ROLE_FF_NORM_2]      = {"blk.%d.pre_ffw_norm_2.weight", "layers.%d.pre_feedforward_layernorm_2.weight"},
    [ROLE_POST_FF_NORM_1] = {"blk.%d.post_ffw_norm_1.weight", "layers.%d.post_feedforward_layernorm_1.weight"},
    [ROLE_POST_FF_NORM_2] = {"blk.%d.post_ffw_norm_2.weight", "layers.%d.post_feedforward_layernorm_2.weight"},
    [ROLE_PLE_GATE]       = {"blk.%d.inp_gate.weight", "layers.%d.per_layer_input_gate.weight"},
    [ROLE_PLE_PROJ]       = {"blk.%d.proj.weight", "layers.%d.per_layer_projection.weight"},
    [ROLE_PLE_NORM]       = {"blk.%d.post_norm.weight", "layers.%d.post_per_layer_input_norm.weight"},
};

void gemma4_tensor_name(gemma4_role r, const char *hf_prefix, int layer, char out[GEMMA4_NAME_MAX])
{
    const char *fmt = hf_prefix ? names[r].hf : names[r].gguf, *at = strstr(fmt, "%d");
    const char *prefix = hf_prefix ? hf_prefix : "";
    if (at)
        snprintf(out, GEMMA4_NAME_MAX, "%s%.*s%d%s", prefix, (int)(at - fmt), fmt, layer, at + 2);
    else
        snprintf(out, GEMMA4_NAME_MAX, "%s%s", prefix, fmt);
}

bool gemma4_role_has_layers(gemma4_role r) { return strstr(names[r].gguf, "%d") != NULL; }

const char *gemma4_hf_prefix(const tensor_table *t)
{
    static const char *const prefix[] = {"model.language_model.", "model.", "language_model.model.", ""};
    char                     name[GEMMA4_NAME_MAX];
    for (size_t i = 0; i < COUNT(prefix); i++) {
        gemma4_tensor_name(ROLE_EMBED, prefix[i], 0, name);
        if (tensor_find(t, str_of(name))) return prefix[i];
    }
    return "model.";
}
