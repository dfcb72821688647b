#include "model/gemma4_roles.h"

/* The sizes of tensors. A layer's heads and MLP may differ from those of others. */
enum { ONE, EMBD, VOCAB, HEAD, QUERIES, KEYS, FF, EXPERTS, EXPERT_FF, EXPERT_FF_2, PLE, PLE_ALL };

static int size_of(const void *config, int dim, int l)
{
    const gemma4_config *c = config;
    switch (dim) {
    case EMBD: return c->n_embd;
    case VOCAB: return c->n_vocab;
    case HEAD: return c->head_dim[l];
    case QUERIES: return c->n_heads * c->head_dim[l];
    case KEYS: return c->n_kv_heads[l] * c->head_dim[l];
    case FF: return c->n_ff[l];
    case EXPERTS: return c->n_experts;
    case EXPERT_FF: return c->n_ff_expert;
    case EXPERT_FF_2: return 2 * c->n_ff_expert;
    case PLE: return c->n_ple;
    case PLE_ALL: return c->n_layers * c->n_ple;
    default: return 1;
    }
}

static const tensor_role roles[GEMMA4_ROLES] = {
    [ROLE_EMBED]     = {"token_embd.weight", "embed_tokens.weight", {EMBD, VOCAB}, ROLE_SAME},
    [ROLE_OUT_NORM]  = {"output_norm.weight", "norm.weight", {EMBD}, ROLE_SAME},
    [ROLE_PLE_EMBED] = {"per_layer_token_embd.weight", "embed_tokens_per_layer.weight", {PLE_ALL, VOCAB}, ROLE_SAME},
    [ROLE_PLE_MODEL] = {"per_layer_model_proj.weight", "per_layer_model_projection.weight", {EMBD, PLE_ALL}, ROLE_SAME},
    [ROLE_PLE_MODEL_NORM] = {"per_layer_proj_norm.weight", "per_layer_projection_norm.weight", {PLE}, ROLE_SAME},
    [ROLE_ATTN_NORM]      = {"blk.%d.attn_norm.weight", "layers.%d.input_layernorm.weight", {EMBD}, ROLE_SAME},
    [ROLE_ATTN_Q]         = {"blk.%d.attn_q.weight", "layers.%d.self_attn.q_proj.weight", {EMBD, QUERIES}, ROLE_SAME},
    [ROLE_ATTN_K]         = {"blk.%d.attn_k.weight", "layers.%d.self_attn.k_proj.weight", {EMBD, KEYS}, ROLE_SAME},
    [ROLE_ATTN_V]         = {"blk.%d.attn_v.weight", "layers.%d.self_attn.v_proj.weight", {EMBD, KEYS}, ROLE_SAME},
    [ROLE_ATTN_O] = {"blk.%d.attn_output.weight", "layers.%d.self_attn.o_proj.weight", {QUERIES, EMBD}, ROLE_SAME},
    [ROLE_Q_NORM] = {"blk.%d.attn_q_norm.weight", "layers.%d.self_attn.q_norm.weight", {HEAD}, ROLE_SAME},
    [ROLE_K_NORM] = {"blk.%d.attn_k_norm.weight", "layers.%d.self_attn.k_norm.weight", {HEAD}, ROLE_SAME},
    [ROLE_POST_ATTN_NORM] = {"blk.%d.post_attention_norm.weight",
                             "layers.%d.post_attention_layernorm.weight",
                             {EMBD},
                             ROLE_SAME},
    [ROLE_FF_NORM]        = {"blk.%d.ffn_norm.weight", "layers.%d.pre_feedforward_layernorm.weight", {EMBD}, ROLE_SAME},
    [ROLE_POST_FF_NORM]   = {"blk.%d.post_ffw_norm.weight",
                             "layers.%d.post_feedforward_layernorm.weight",
                             {EMBD},
                             ROLE_SAME},
    [ROLE_FF_GATE]        = {"blk.%d.ffn_gate.weight", "layers.%d.mlp.gate_proj.weight", {EMBD, FF}, ROLE_SAME},
    [ROLE_FF_UP]          = {"blk.%d.ffn_up.weight", "layers.%d.mlp.up_proj.weight", {EMBD, FF}, ROLE_SAME},
    [ROLE_FF_DOWN]        = {"blk.%d.ffn_down.weight", "layers.%d.mlp.down_proj.weight", {FF, EMBD}, ROLE_SAME},
    [ROLE_LAYER_SCALAR]   = {"blk.%d.layer_output_scale.weight", "layers.%d.layer_scalar", {ONE}, ROLE_SAME},
    [ROLE_ROUTER]         = {"blk.%d.ffn_gate_inp.weight", "layers.%d.router.proj.weight", {EMBD, EXPERTS}, ROLE_SAME},
    [ROLE_ROUTER_SCALE]   = {"blk.%d.ffn_gate_inp.scale", "layers.%d.router.scale", {EMBD}, ROLE_SAME},
    [ROLE_EXPERT_SCALE]   = {"blk.%d.ffn_down_exps.scale", "layers.%d.router.per_expert_scale", {EXPERTS}, ROLE_SAME},
    [ROLE_EXP_GATE_UP]    = {"blk.%d.ffn_gate_up_exps.weight",
                             "layers.%d.experts.gate_up_proj",
                             {EMBD, EXPERT_FF_2, EXPERTS},
                             ROLE_SAME},
    [ROLE_EXP_GATE]       = {"blk.%d.ffn_gate_exps.weight", "", {EMBD, EXPERT_FF, EXPERTS}, ROLE_SAME},
    [ROLE_EXP_UP]         = {"blk.%d.ffn_up_exps.weight", "", {EMBD, EXPERT_FF, EXPERTS}, ROLE_SAME},
    [ROLE_EXP_DOWN]       = {"blk.%d.ffn_down_exps.weight",
                             "layers.%d.experts.down_proj",
                             {EXPERT_FF, EMBD, EXPERTS},
                             ROLE_SAME},
    [ROLE_FF_NORM_2]      = {"blk.%d.pre_ffw_norm_2.weight",
                             "layers.%d.pre_feedforward_layernorm_2.weight",
                             {EMBD},
                             ROLE_SAME},
    [ROLE_POST_FF_NORM_1] = {"blk.%d.post_ffw_norm_1.weight",
                             "layers.%d.post_feedforward_layernorm_1.weight",
                             {EMBD},
                             ROLE_SAME},
    [ROLE_POST_FF_NORM_2] = {"blk.%d.post_ffw_norm_2.weight",
                             "layers.%d.post_feedforward_layernorm_2.weight",
                             {EMBD},
                             ROLE_SAME},
    [ROLE_PLE_GATE]       = {"blk.%d.inp_gate.weight", "layers.%d.per_layer_input_gate.weight", {EMBD, PLE}, ROLE_SAME},
    [ROLE_PLE_PROJ]       = {"blk.%d.proj.weight", "layers.%d.per_layer_projection.weight", {PLE, EMBD}, ROLE_SAME},
    [ROLE_PLE_NORM] = {"blk.%d.post_norm.weight", "layers.%d.post_per_layer_input_norm.weight", {EMBD}, ROLE_SAME},
};

const role_table gemma4_roles = {
    .role        = roles,
    .prefix_role = ROLE_EMBED,
    .prefixes    = (const char *const[]){"model.language_model.", "model.", "language_model.model.", "", NULL},
    .size        = size_of,
};
