#include "model/qwen35_config.h"

#include "model/config_value.h"

enum { MAX_WIDTH = 1 << 20, MAX_CONTEXT = 1 << 24, MAX_HEADS = 1024 };

/* --- GGUF ---------------------------------------------------------------------------------------*/
static const char *arch_of(const gguf *g)
{
    str arch = {0};
    gguf_str(gguf_find(g, "general.architecture"), &arch);
    return str_is(arch, "qwen35moe") ? "qwen35moe" : "qwen35";
}

static bool g_int(const gguf *g, const char *suffix, int64_t fallback, int64_t lo, int64_t hi, int *out, err *e)
{
    return gguf_arch_int(g, arch_of(g), suffix, fallback, lo, hi, out, e);
}

/* A list of flags, or the distance between layers with full attention. */
static bool g_layer_kinds(const gguf *g, qwen35_config *c, err *e)
{
    char              key[CONFIG_KEY_MAX];
    const gguf_value *v = gguf_arch_find(g, arch_of(g), "attention.recurrent_layers", key);
    int               every;
    if (v && (v->type != GGUF_ARRAY || v->n < (uint64_t)c->n_layers))
        return err_set(e, ERR_FORMAT, "%s is not a list of %d flags", key, c->n_layers);
    if (!g_int(g, "full_attention_interval", 4, 1, QWEN35_MAX_LAYERS, &every, e)) return false;
    for (int l = 0; l < c->n_layers; l++) {
        int64_t flag;
        if (v && !gguf_item_int(v, (uint64_t)l, &flag)) return err_set(e, ERR_FORMAT, "%s is not a list of flags", key);
        c->full[l] = v ? !flag : (l + 1) % every == 0;
    }
    return true;
}

static bool g_delta(const gguf *g, qwen35_config *c, err *e)
{
    int inner;
    if (!g_int(g, "ssm.conv_kernel", 4, 2, DELTA_MAX_TAPS, &c->n_taps, e) ||
        !g_int(g, "ssm.state_size", CONFIG_REQUIRED, 8, DELTA_MAX_HEAD, &c->delta_dim, e) ||
        !g_int(g, "ssm.group_count", CONFIG_REQUIRED, 1, MAX_HEADS, &c->n_k_heads, e) ||
        !g_int(g, "ssm.time_step_rank", CONFIG_REQUIRED, 1, MAX_HEADS, &c->n_v_heads, e) ||
        !g_int(g, "ssm.inner_size", (int64_t)c->n_v_heads * c->delta_dim, 1, MAX_WIDTH, &inner, e))
        return false;
    c->delta_gate = ACT_SILU;
    return inner == c->n_v_heads * c->delta_dim ||
           err_set(e, ERR_FORMAT, "ssm.inner_size is %d, expected %d heads of %d", inner, c->n_v_heads, c->delta_dim);
}

/* Divides the pairs among the sections where the file does not: a third each, the first ones get the rest. */
static void default_sections(qwen35_config *c)
{
    for (int i = 0; i < ROPE_SECTIONS; i++) c->section[i] = (c->n_rot / 2 + ROPE_SECTIONS - 1 - i) / ROPE_SECTIONS;
}

static void g_sections(const gguf *g, qwen35_config *c)
{
    char              key[CONFIG_KEY_MAX];
    const gguf_value *v = gguf_arch_find(g, arch_of(g), "rope.dimension_sections", key);
    int64_t           n;
    default_sections(c);
    for (int i = 0; v && i < ROPE_SECTIONS; i++)
        if (gguf_item_int(v, (uint64_t)i, &n) && n >= 0 && n <= c->n_rot) c->section[i] = (int)n;
}

static bool from_gguf(qwen35_config *c, const checkpoint *cp, err *e)
{
    const gguf   *g     = cp->gguf;
    const tensor *embed = tensor_find(cp->tensors, STR("token_embd.weight"));
    int           n_all, moe = !strcmp(arch_of(g), "qwen35moe");
    double        eps;
    if (!embed) return err_set(e, ERR_FORMAT, "tensor 'token_embd.weight' is missing");
    if (!g_int(g, "block_count", CONFIG_REQUIRED, 1, QWEN35_MAX_LAYERS, &n_all, e) ||
        !g_int(g, "nextn_predict_layers", 0, 0, n_all > 1, &c->n_mtp, e) ||
        !g_int(g, "embedding_length", CONFIG_REQUIRED, 8, MAX_WIDTH, &c->n_embd, e) ||
        !g_int(g, "context_length", CONFIG_REQUIRED, 1, MAX_CONTEXT, &c->n_ctx, e) ||
        !g_int(g, "attention.head_count", CONFIG_REQUIRED, 1, MAX_HEADS, &c->n_heads, e) ||
        !g_int(g, "attention.head_count_kv", CONFIG_REQUIRED, 1, MAX_HEADS, &c->n_kv_heads, e) ||
        !g_int(g, "attention.key_length", CONFIG_REQUIRED, 8, OPS_MAX_HEAD_DIM, &c->head_dim, e) ||
        !g_int(g, "rope.dimension_count", c->head_dim / 4, 2, c->head_dim, &c->n_rot, e) ||
        !gguf_arch_real(g, arch_of(g), "rope.freq_base", 1e7, 1, 1e12, &c->theta, e) ||
        !gguf_arch_real(g, arch_of(g), "attention.layer_norm_rms_epsilon", 1e-6, 0, 1, &eps, e) ||
        !config_int("the number of rows of token_embd.weight", embed->dim[1], 2, 1 << 22, &c->n_vocab, e) ||
        !g_int(g, "feed_forward_length", moe ? 0 : CONFIG_REQUIRED, 0, MAX_WIDTH, &c->n_ff, e))
        return false;
    g_sections(g, c);
    c->n_layers = n_all - c->n_mtp;
    c->eps      = (float)eps;
    c->tied     = !tensor_find(cp->tensors, STR("output.weight"));
    c->tiled    = true;
    return (!moe ||
            (g_int(g, "expert_count", CONFIG_REQUIRED, 1, QWEN35_MAX_EXPERTS, &c->n_experts, e) &&
             g_int(g, "expert_used_count", CONFIG_REQUIRED, 1, QWEN35_MAX_USED, &c->n_used, e) &&
             g_int(g, "expert_feed_forward_length", CONFIG_REQUIRED, 1, MAX_WIDTH, &c->n_ff_expert, e) &&
             g_int(g, "expert_shared_feed_forward_length", CONFIG_REQUIRED, 1, MAX_WIDTH, &c->n_ff_shared, e))) &&
           g_layer_kinds(g, c, e) && g_delta(g, c, e);
}

/* --- config.json --------------------------------------------------------------------------------*/
static bool h_layer_kinds(const json_value *o, qwen35_config *c, err *e)
{
    const json_value *types = hf_present(o, "layer_types");
    int               every;
    if (!hf_int(o, "full_attention_interval", 4, 1, QWEN35_MAX_LAYERS, &every, e)) return false;
    if (types && (types->kind != JSON_ARRAY || types->n != (size_t)c->n_layers))
        return err_set(e, ERR_FORMAT, "layer_types is not a list of %d names", c->n_layers);
    for (int l = 0; l < c->n_layers; l++) {
        const json_value *v = types ? &types->item[l] : NULL;
        c->full[l]          = v ? v->kind == JSON_STRING && str_is(v->s, "full_attention") : (l + 1) % every == 0;
        if (v && !c->full[l] && !(v->kind == JSON_STRING && str_is(v->s, "linear_attention")))
            return err_set(e, ERR_FORMAT, "layer_types[%d] is neither linear_attention nor full_attention", l);
    }
    return true;
}

static bool h_rope(const json_value *o, qwen35_config *c, err *e)
{
    const json_value *rope = hf_present(o, "rope_parameters"), *type = hf_present(rope, "rope_type");
    double            part;
    if (type && !(type->kind == JSON_STRING && str_is(type->s, "default")))
        return err_set(e, ERR_FORMAT, "the rope_type is not default: scaled rotary embeddings are not supported");
    if (!hf_real(o, "partial_rotary_factor", 0.25, 0, 1, &part, e) ||
        !hf_real(rope, "partial_rotary_factor", part, 0, 1, &part, e) ||
        !hf_real(o, "rope_theta", 1e7, 1, 1e12, &c->theta, e) ||
        !hf_real(rope, "rope_theta", c->theta, 1, 1e12, &c->theta, e))
        return false;
    c->n_rot = (int)(part * c->head_dim);
    default_sections(c);
    const json_value *s = hf_present(rope, "mrope_section");
    for (int i = 0; s && s->kind == JSON_ARRAY && s->n >= ROPE_SECTIONS && i < ROPE_SECTIONS; i++)
        if (s->item[i].kind == JSON_INT && s->item[i].i >= 0 && s->item[i].i <= c->n_rot)
            c->section[i] = (int)s->item[i].i;
    return true;
}

static bool h_delta(const json_value *o, qwen35_config *c, err *e)
{
    const json_value *gate = hf_present(o, "output_gate_type");
    int               key_dim;
    if (!hf_int(o, "linear_conv_kernel_dim", 4, 2, DELTA_MAX_TAPS, &c->n_taps, e) ||
        !hf_int(o, "linear_num_key_heads", 16, 1, MAX_HEADS, &c->n_k_heads, e) ||
        !hf_int(o, "linear_num_value_heads", 32, 1, MAX_HEADS, &c->n_v_heads, e) ||
        !hf_int(o, "linear_key_head_dim", 128, 8, DELTA_MAX_HEAD, &key_dim, e) ||
        !hf_int(o, "linear_value_head_dim", 128, 8, DELTA_MAX_HEAD, &c->delta_dim, e))
        return false;
    if (key_dim != c->delta_dim)
        return err_set(e, ERR_FORMAT, "linear_key_head_dim is %d and linear_value_head_dim %d: they must be equal",
                       key_dim, c->delta_dim);
    c->delta_gate = ACT_SILU;
    if (!gate) return true;
    if (gate->kind == JSON_STRING && str_is(gate->s, "sigmoid")) c->delta_gate = ACT_SIGMOID;
    return (gate->kind == JSON_STRING &&
            (str_is(gate->s, "swish") || str_is(gate->s, "silu") || str_is(gate->s, "sigmoid"))) ||
           err_set(e, ERR_FORMAT, "output_gate_type is neither swish nor sigmoid");
}

static bool h_experts(const json_value *o, qwen35_config *c, err *e)
{
    return hf_int(o, "num_experts", 256, 1, QWEN35_MAX_EXPERTS, &c->n_experts, e) &&
           hf_int(o, "num_experts_per_tok", 8, 1, QWEN35_MAX_USED, &c->n_used, e) &&
           hf_int(o, "moe_intermediate_size", 512, 1, MAX_WIDTH, &c->n_ff_expert, e) &&
           hf_int(o, "shared_expert_intermediate_size", 512, 1, MAX_WIDTH, &c->n_ff_shared, e);
}

/* Members of the family, and exports of it, that this code would run wrongly. */
static bool h_refuse_unknown(const checkpoint *cp, const json_value *o, err *e)
{
    const json_value *act = hf_present(o, "hidden_act");
    if (hf_present(cp->config, "quantization_config"))
        return err_set(e, ERR_FORMAT,
                       "its weights are quantised in a way that only other engines read (quantization_config): "
                       "use the original checkpoint or a GGUF file");
    if (act && !(act->kind == JSON_STRING && str_is(act->s, "silu")))
        return err_set(e, ERR_FORMAT, "hidden_act is not silu");
    return !hf_bool(o, "attention_bias") || err_set(e, ERR_FORMAT, "attention_bias is true, Qwen 3.5 has none");
}

static bool from_hf(qwen35_config *c, const checkpoint *cp, err *e)
{
    const json_value *text = hf_present(cp->config, "text_config"), *o = text ? text : cp->config;
    const json_value *kind = hf_present(cp->config, "model_type");
    bool              moe  = kind && kind->kind == JSON_STRING && str_starts(kind->s, "qwen3_5_moe");
    double            eps;
    if (!h_refuse_unknown(cp, o, e) ||
        !hf_int(o, "num_hidden_layers", CONFIG_REQUIRED, 1, QWEN35_MAX_LAYERS, &c->n_layers, e) ||
        !hf_int(o, "mtp_num_hidden_layers", 0, 0, 1, &c->n_mtp, e) ||
        !hf_int(o, "hidden_size", CONFIG_REQUIRED, 8, MAX_WIDTH, &c->n_embd, e) ||
        !hf_int(o, "vocab_size", 248320, 2, 1 << 22, &c->n_vocab, e) ||
        !hf_int(o, "max_position_embeddings", 32768, 1, MAX_CONTEXT, &c->n_ctx, e) ||
        !hf_int(o, "num_attention_heads", CONFIG_REQUIRED, 1, MAX_HEADS, &c->n_heads, e) ||
        !hf_int(o, "num_key_value_heads", moe ? 2 : 4, 1, MAX_HEADS, &c->n_kv_heads, e) ||
        !hf_int(o, "head_dim", 256, 8, OPS_MAX_HEAD_DIM, &c->head_dim, e) ||
        !hf_int(o, "intermediate_size", moe ? 0 : CONFIG_REQUIRED, 0, MAX_WIDTH, &c->n_ff, e) ||
        !hf_real(o, "rms_norm_eps", 1e-6, 0, 1, &eps, e))
        return false;
    c->eps  = (float)eps;
    c->tied = hf_bool(o, "tie_word_embeddings") || hf_bool(cp->config, "tie_word_embeddings");
    return h_layer_kinds(o, c, e) && h_rope(o, c, e) && h_delta(o, c, e) && (!moe || h_experts(o, c, e));
}

/* --- numbers that must fit together -------------------------------------------------------------*/
static bool check_whole(const qwen35_config *c, err *e)
{
    if (c->n_heads % c->n_kv_heads)
        return err_set(e, ERR_FORMAT, "%d query heads cannot share %d K/V heads", c->n_heads, c->n_kv_heads);
    if (c->n_v_heads % c->n_k_heads)
        return err_set(e, ERR_FORMAT, "%d value heads cannot share %d key heads", c->n_v_heads, c->n_k_heads);
    if (c->head_dim % 8 || c->delta_dim % 8)
        return err_set(e, ERR_FORMAT, "the head sizes are %d and %d, not multiples of 8", c->head_dim, c->delta_dim);
    if (c->n_rot < 2 || c->n_rot % 2)
        return err_set(e, ERR_FORMAT, "%d elements of a head cannot be rotated in pairs", c->n_rot);
    if (c->n_experts && c->n_used > c->n_experts)
        return err_set(e, ERR_FORMAT, "%d of %d experts cannot be used at a time", c->n_used, c->n_experts);
    for (int l = 0; l < c->n_layers; l++)
        if (c->full[l]) return true;
    return err_set(e, ERR_FORMAT, "no layer has full attention");
}

bool qwen35_config_read(qwen35_config *out, const checkpoint *c, err *e)
{
    *out = (qwen35_config){0};
    return (c->gguf ? from_gguf(out, c, e) : from_hf(out, c, e)) && check_whole(out, e);
}
