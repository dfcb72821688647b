#include "model/qwen35_roles.h"

/* The sizes of tensors. */
enum {
    ONE,
    EMBD,
    EMBD_2,
    VOCAB,
    HEAD,
    QUERIES,
    QUERIES_2,
    KEYS,
    CHANNELS,
    VALUES,
    V_HEADS,
    DELTA_HEAD,
    TAPS,
    FF,
    EXPERTS,
    EXPERT_FF,
    EXPERT_FF_2,
    SHARED_FF,
};

static int size_of(const void *config, int dim, int l)
{
    const qwen35_config *c = config;
    (void)l; /* all layers of a kind are alike */
    switch (dim) {
    case EMBD: return c->n_embd;
    case EMBD_2: return 2 * c->n_embd;
    case VOCAB: return c->n_vocab;
    case HEAD: return c->head_dim;
    case QUERIES: return c->n_heads * c->head_dim;
    case QUERIES_2: return 2 * c->n_heads * c->head_dim;
    case KEYS: return c->n_kv_heads * c->head_dim;
    case CHANNELS: return (2 * c->n_k_heads + c->n_v_heads) * c->delta_dim;
    case VALUES: return c->n_v_heads * c->delta_dim;
    case V_HEADS: return c->n_v_heads;
    case DELTA_HEAD: return c->delta_dim;
    case TAPS: return c->n_taps;
    case FF: return c->n_ff;
    case EXPERTS: return c->n_experts;
    case EXPERT_FF: return c->n_ff_expert;
    case EXPERT_FF_2: return 2 * c->n_ff_expert;
    case SHARED_FF: return c->n_ff_shared;
    default: return 1;
    }
}

/* clang-format off */
static const tensor_role roles[QWEN35_ROLES] = {
    [QWEN35_EMBED]        = {"token_embd.weight", "embed_tokens.weight", {EMBD, VOCAB}, ROLE_SAME},
    [QWEN35_OUT_NORM]     = {"output_norm.weight", "norm.weight", {EMBD}, ROLE_PLUS_ONE},
    [QWEN35_IN_NORM]      = {"blk.%d.attn_norm.weight", "layers.%d.input_layernorm.weight", {EMBD}, ROLE_PLUS_ONE},
    [QWEN35_POST_NORM]    = {"blk.%d.post_attention_norm.weight", "layers.%d.post_attention_layernorm.weight", {EMBD},
                             ROLE_PLUS_ONE},
    [QWEN35_ATTN_Q]       = {"blk.%d.attn_q.weight", "layers.%d.self_attn.q_proj.weight", {EMBD, QUERIES_2}, ROLE_SAME},
    [QWEN35_ATTN_K]       = {"blk.%d.attn_k.weight", "layers.%d.self_attn.k_proj.weight", {EMBD, KEYS}, ROLE_SAME},
    [QWEN35_ATTN_V]       = {"blk.%d.attn_v.weight", "layers.%d.self_attn.v_proj.weight", {EMBD, KEYS}, ROLE_SAME},
    [QWEN35_ATTN_O]       = {"blk.%d.attn_output.weight",
                             "layers.%d.self_attn.o_proj.weight", {QUERIES, EMBD}, ROLE_SAME},
    [QWEN35_Q_NORM]       = {"blk.%d.attn_q_norm.weight", "layers.%d.self_attn.q_norm.weight", {HEAD}, ROLE_PLUS_ONE},
    [QWEN35_K_NORM]       = {"blk.%d.attn_k_norm.weight", "layers.%d.self_attn.k_norm.weight", {HEAD}, ROLE_PLUS_ONE},
    [QWEN35_DELTA_QKV]    = {"blk.%d.attn_qkv.weight",
                             "layers.%d.linear_attn.in_proj_qkv.weight", {EMBD, CHANNELS}, ROLE_SAME},
    [QWEN35_DELTA_Z]      = {"blk.%d.attn_gate.weight",
                             "layers.%d.linear_attn.in_proj_z.weight", {EMBD, VALUES}, ROLE_SAME},
    [QWEN35_DELTA_B]      = {"blk.%d.ssm_beta.weight",
                             "layers.%d.linear_attn.in_proj_b.weight", {EMBD, V_HEADS}, ROLE_SAME},
    [QWEN35_DELTA_A]      = {"blk.%d.ssm_alpha.weight",
                             "layers.%d.linear_attn.in_proj_a.weight", {EMBD, V_HEADS}, ROLE_SAME},
    [QWEN35_DELTA_CONV]   = {"blk.%d.ssm_conv1d.weight",
                             "layers.%d.linear_attn.conv1d.weight", {TAPS, CHANNELS}, ROLE_SAME},
    [QWEN35_DELTA_RATE]   = {"blk.%d.ssm_a", "layers.%d.linear_attn.A_log", {V_HEADS}, ROLE_NEG_EXP},
    [QWEN35_DELTA_BIAS]   = {"blk.%d.ssm_dt.bias", "layers.%d.linear_attn.dt_bias", {V_HEADS}, ROLE_SAME},
    [QWEN35_DELTA_NORM]   = {"blk.%d.ssm_norm.weight", "layers.%d.linear_attn.norm.weight", {DELTA_HEAD}, ROLE_SAME},
    [QWEN35_DELTA_OUT]    = {"blk.%d.ssm_out.weight",
                             "layers.%d.linear_attn.out_proj.weight", {VALUES, EMBD}, ROLE_SAME},
    [QWEN35_FF_GATE]      = {"blk.%d.ffn_gate.weight", "layers.%d.mlp.gate_proj.weight", {EMBD, FF}, ROLE_SAME},
    [QWEN35_FF_UP]        = {"blk.%d.ffn_up.weight", "layers.%d.mlp.up_proj.weight", {EMBD, FF}, ROLE_SAME},
    [QWEN35_FF_DOWN]      = {"blk.%d.ffn_down.weight", "layers.%d.mlp.down_proj.weight", {FF, EMBD}, ROLE_SAME},
    [QWEN35_ROUTER]       = {"blk.%d.ffn_gate_inp.weight", "layers.%d.mlp.gate.weight", {EMBD, EXPERTS}, ROLE_SAME},
    [QWEN35_EXP_GATE_UP]  = {"blk.%d.ffn_gate_up_exps.weight", "layers.%d.mlp.experts.gate_up_proj",
                             {EMBD, EXPERT_FF_2, EXPERTS}, ROLE_SAME},
    [QWEN35_EXP_GATE]     = {"blk.%d.ffn_gate_exps.weight", "", {EMBD, EXPERT_FF, EXPERTS}, ROLE_SAME},
    [QWEN35_EXP_UP]       = {"blk.%d.ffn_up_exps.weight", "", {EMBD, EXPERT_FF, EXPERTS}, ROLE_SAME},
    [QWEN35_EXP_DOWN]     = {"blk.%d.ffn_down_exps.weight", "layers.%d.mlp.experts.down_proj",
                             {EXPERT_FF, EMBD, EXPERTS}, ROLE_SAME},
    [QWEN35_SHARED_SCALE] = {"blk.%d.ffn_gate_inp_shexp.weight", "layers.%d.mlp.shared_expert_gate.weight",
                             {EMBD, ONE}, ROLE_SAME},
    [QWEN35_SHARED_GATE]  = {"blk.%d.ffn_gate_shexp.weight", "layers.%d.mlp.shared_expert.gate_proj.weight",
                             {EMBD, SHARED_FF}, ROLE_SAME},
    [QWEN35_SHARED_UP]    = {"blk.%d.ffn_up_shexp.weight", "layers.%d.mlp.shared_expert.up_proj.weight",
                             {EMBD, SHARED_FF}, ROLE_SAME},
    [QWEN35_SHARED_DOWN]  = {"blk.%d.ffn_down_shexp.weight", "layers.%d.mlp.shared_expert.down_proj.weight",
                             {SHARED_FF, EMBD}, ROLE_SAME},
    [QWEN35_MTP_FC]          = {"blk.%d.nextn.eh_proj.weight", "fc.weight", {EMBD_2, EMBD}, ROLE_SAME},
    [QWEN35_MTP_EMBED_NORM]  = {"blk.%d.nextn.enorm.weight", "pre_fc_norm_embedding.weight", {EMBD}, ROLE_PLUS_ONE},
    [QWEN35_MTP_HIDDEN_NORM] = {"blk.%d.nextn.hnorm.weight", "pre_fc_norm_hidden.weight", {EMBD}, ROLE_PLUS_ONE},
    [QWEN35_MTP_OUT_NORM]    = {"blk.%d.nextn.shared_head_norm.weight", "norm.weight", {EMBD}, ROLE_PLUS_ONE},
};
/* clang-format on */

const role_table qwen35_roles = {
    .role        = roles,
    .prefix_role = QWEN35_EMBED,
    .prefixes    = (const char *const[]){"model.language_model.", "model.", "language_model.model.", "", NULL},
    .size        = size_of,
};
