#include "base/mem.h"
#include "model/config_value.h"
#include "model/convert_plan.h"

#include <stdio.h>

enum { MAX_LAYERS = 256, MAX_WIDTH = 1 << 20, MAX_CONTEXT = 1 << 24, MAX_CAPTURES = 64 };

typedef struct {
    int     n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab, n_ctx, block, window;
    double  eps, theta, softcap;
    int     n_captures;
    int32_t capture[MAX_CAPTURES]; /* layers of the target whose output is a feature, plus one: GGUF's convention */
    bool    sliding[MAX_LAYERS], any_sliding;
} config;

static bool read_captures(config *c, const json_value *dflash, err *e)
{
    const json_value *ids = hf_present(dflash, "target_layer_ids");
    if (!ids || ids->kind != JSON_ARRAY || ids->n < 1 || ids->n > MAX_CAPTURES)
        return err_set(e, ERR_FORMAT, "dflash_config.target_layer_ids is not a list of 1 to %d layers", MAX_CAPTURES);
    for (size_t i = 0; i < ids->n; i++) {
        int id;
        if (ids->item[i].kind != JSON_INT)
            return err_set(e, ERR_FORMAT, "dflash_config.target_layer_ids[%zu] is not an integer", i);
        if (!config_int("an entry of dflash_config.target_layer_ids", ids->item[i].i, 0, 1 << 16, &id, e)) return false;
        c->capture[i] = id + 1;
    }
    c->n_captures = (int)ids->n;
    return true;
}

/* A window counts where use_sliding_window says so. */
static bool read_window(config *c, const json_value *o, err *e)
{
    if (!hf_bool(o, "use_sliding_window") || !hf_present(o, "layer_types")) return true;
    if (!hf_layer_types(o, c->n_layers, c->sliding, e)) return false;
    for (int l = 0; l < c->n_layers; l++) c->any_sliding |= c->sliding[l];
    return !c->any_sliding || hf_int(o, "sliding_window", CONFIG_REQUIRED, 1, MAX_CONTEXT, &c->window, e);
}

static bool check_rope(const json_value *rope, err *e)
{
    const json_value *type = hf_present(rope, "rope_type");
    if (!type || (type->kind == JSON_STRING && str_is(type->s, "default"))) return true;
    return err_set(e, ERR_FORMAT, "rope_parameters.rope_type is not default");
}

static bool read_config(config *c, const json_value *o, int *mask_id, err *e)
{
    const json_value *dflash = hf_present(o, "dflash_config"), *rope = hf_present(o, "rope_parameters");
    if (!dflash) return config_missing("dflash_config", e);
    if (hf_present(o, "quantization_config"))
        return err_set(e, ERR_FORMAT,
                       "its weights are quantised in a way that only other engines read "
                       "(quantization_config)");
    if (hf_bool(o, "attention_bias")) return err_set(e, ERR_FORMAT, "attention_bias is true, which is not supported");
    int block = 16;
    return hf_int(o, "num_hidden_layers", CONFIG_REQUIRED, 1, MAX_LAYERS, &c->n_layers, e) &&
           hf_int(o, "hidden_size", CONFIG_REQUIRED, 8, MAX_WIDTH, &c->n_embd, e) &&
           hf_int(o, "intermediate_size", CONFIG_REQUIRED, 1, MAX_WIDTH, &c->n_ff, e) &&
           hf_int(o, "num_attention_heads", CONFIG_REQUIRED, 1, 1024, &c->n_heads, e) &&
           hf_int(o, "num_key_value_heads", c->n_heads, 1, 1024, &c->n_kv_heads, e) &&
           hf_int(o, "head_dim", c->n_embd / c->n_heads, 8, 4096, &c->head_dim, e) &&
           hf_int(o, "vocab_size", CONFIG_REQUIRED, 2, 1 << 22, &c->n_vocab, e) &&
           hf_int(o, "max_position_embeddings", 131072, 1, MAX_CONTEXT, &c->n_ctx, e) &&
           hf_real(o, "rms_norm_eps", 1e-6, 0, 1, &c->eps, e) &&
           hf_real(o, "final_logit_softcapping", 0, 0, 1e6, &c->softcap, e) &&
           hf_real(hf_present(rope, "rope_theta") ? rope : o, "rope_theta", 1e6, 1, 1e12, &c->theta, e) &&
           check_rope(rope, e) && hf_int(o, "block_size", 16, 2, 256, &block, e) &&
           hf_int(dflash, "block_size", block, 2, 256, &c->block, e) &&
           hf_int(dflash, "mask_token_id", CONFIG_REQUIRED, 0, c->n_vocab - 1, mask_id, e) &&
           read_captures(c, dflash, e) && read_window(c, o, e);
}

static void put_keys(convert_plan *p, const config *c)
{
    char key[64];
    plan_u32(p, "block_count", c->n_layers);
    plan_u32(p, "vocab_size", c->n_vocab);
    plan_u32(p, "context_length", c->n_ctx);
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
    snprintf(key, sizeof key, "%s.target_layers", p->arch);
    gguf_put_array(p->w, key, GGUF_I32, c->capture, (size_t)c->n_captures);
    if (c->softcap > 0) plan_f32(p, "final_logit_softcapping", c->softcap);
    if (!c->any_sliding) return;
    plan_u32(p, "attention.sliding_window", c->window);
    plan_bools(p, "attention.sliding_window_pattern", c->sliding, c->n_layers);
}

static const char *find_prefix(const tensor_table *t) { return tensor_find(t, STR("model.fc.weight")) ? "model." : ""; }

static bool put(convert_plan *p, const char *from, const char *to, int64_t d0, int64_t d1, err *e)
{
    char name[96];
    snprintf(name, sizeof name, "%s%s", find_prefix(p->cp->tensors), from);
    return plan_tensor(p, name, to, d0, d1, e);
}

static bool put_layer(convert_plan *p, const config *c, int l, err *e)
{
    int64_t H = c->n_embd, D = c->head_dim, Q = c->n_heads * D, K = c->n_kv_heads * D, F = c->n_ff;
    const struct {
        const char *from, *to;
        int64_t     d0, d1;
    } layer[] = {
        {"input_layernorm", "attn_norm", H, 1},    {"self_attn.q_proj", "attn_q", H, Q},
        {"self_attn.k_proj", "attn_k", H, K},      {"self_attn.v_proj", "attn_v", H, K},
        {"self_attn.o_proj", "attn_output", Q, H}, {"self_attn.q_norm", "attn_q_norm", D, 1},
        {"self_attn.k_norm", "attn_k_norm", D, 1}, {"post_attention_layernorm", "ffn_norm", H, 1},
        {"mlp.gate_proj", "ffn_gate", H, F},       {"mlp.up_proj", "ffn_up", H, F},
        {"mlp.down_proj", "ffn_down", F, H},
    };
    for (size_t i = 0; i < COUNT(layer); i++) {
        char from[96], to[96];
        snprintf(from, sizeof from, "layers.%d.%s.weight", l, layer[i].from);
        snprintf(to, sizeof to, "blk.%d.%s.weight", l, layer[i].to);
        if (!put(p, from, to, layer[i].d0, layer[i].d1, e)) return false;
    }
    return true;
}

/* Most drafters borrow the target's; a file that has a table and says that it is no good is believed. */
static bool put_own_tables(convert_plan *p, err *e)
{
    const json_value *has = hf_present(p->cp->config, "has_embed_tokens");
    bool              own = !has || has->kind != JSON_BOOL || has->b;
    char              embed[64], head[64];
    snprintf(embed, sizeof embed, "%sembed_tokens.weight", find_prefix(p->cp->tensors));
    snprintf(head, sizeof head, "%slm_head.weight", find_prefix(p->cp->tensors));
    return (!own || plan_optional(p, embed, "token_embd.weight", e)) && plan_optional(p, head, "output.weight", e);
}

bool plan_dflash(convert_plan *p, err *e)
{
    config c = {0};
    p->arch  = "dflash";
    if (!read_config(&c, p->cp->config, &p->mask_id, e)) return false;
    p->n_layers = c.n_layers;
    p->n_vocab  = c.n_vocab;
    put_keys(p, &c);
    if (!put(p, "fc.weight", "fc.weight", (int64_t)c.n_captures * c.n_embd, c.n_embd, e) ||
        !put(p, "hidden_norm.weight", "enc.output_norm.weight", c.n_embd, 1, e) ||
        !put(p, "norm.weight", "output_norm.weight", c.n_embd, 1, e))
        return false;
    for (int l = 0; l < c.n_layers; l++)
        if (!put_layer(p, &c, l, e)) return false;
    return put_own_tables(p, e);
}
