#include "model/dflash_config.h"

#include "base/mem.h"
#include "model/config_value.h"
#include "model/model.h"
#include "ops/ops.h"

#include <math.h>
#include <stdio.h>

enum { MAX_WIDTH = 1 << 20, MAX_CONTEXT = 1 << 24, MAX_VOCAB = 1 << 22, DEFAULT_BLOCK = 16 };

/* --- names --------------------------------------------------------------------------------------*/
static const struct {
    const char *dir, *gguf; /* %d: the layer */
    const char *ik, *luce;  /* where they differ from llama.cpp's */
} names[DFLASH_ROLES] = {
    [DFLASH_FC]          = {"fc.weight", "fc.weight", "dflash_fc.weight", "dflash.fc.weight"},
    [DFLASH_HIDDEN_NORM] = {"hidden_norm.weight", "enc.output_norm.weight", "dflash_hidden_norm.weight",
                            "dflash.hidden_norm.weight"},
    [DFLASH_NORM]        = {"norm.weight", "output_norm.weight", NULL, NULL},
    [DFLASH_EMBED]       = {"embed_tokens.weight", "token_embd.weight", NULL, NULL},
    [DFLASH_HEAD]        = {"lm_head.weight", "output.weight", NULL, NULL},
    [DFLASH_D2T]         = {"d2t", "d2t", NULL, NULL},
    [DFLASH_ATTN_NORM]   = {"layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", NULL, NULL},
    [DFLASH_Q]           = {"layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", NULL, NULL},
    [DFLASH_K]           = {"layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", NULL, NULL},
    [DFLASH_V]           = {"layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", NULL, NULL},
    [DFLASH_O]           = {"layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", NULL, NULL},
    [DFLASH_Q_NORM]      = {"layers.%d.self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight", NULL, NULL},
    [DFLASH_K_NORM]      = {"layers.%d.self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight", NULL, NULL},
    [DFLASH_FF_NORM]     = {"layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight",
                            "blk.%d.post_attention_norm.weight", NULL},
    [DFLASH_GATE]        = {"layers.%d.mlp.gate_proj.weight", "blk.%d.ffn_gate.weight", NULL, NULL},
    [DFLASH_UP]          = {"layers.%d.mlp.up_proj.weight", "blk.%d.ffn_up.weight", NULL, NULL},
    [DFLASH_DOWN]        = {"layers.%d.mlp.down_proj.weight", "blk.%d.ffn_down.weight", NULL, NULL},
};

void dflash_tensor_name(dflash_layout layout, const char *prefix, dflash_role r, int l, char out[DFLASH_NAME_MAX])
{
    const char *other = layout == DFLASH_IK ? names[r].ik : layout == DFLASH_LUCE ? names[r].luce : NULL;
    const char *name  = layout == DFLASH_DIR ? names[r].dir : other ? other : names[r].gguf;
    const char *d     = strstr(name, "%d");
    if (layout != DFLASH_DIR) prefix = "";
    if (d)
        snprintf(out, DFLASH_NAME_MAX, "%s%.*s%d%s", prefix, (int)(d - name), name, l, d + 2);
    else
        snprintf(out, DFLASH_NAME_MAX, "%s%s", prefix, name);
}

const tensor *dflash_tensor(const dflash_config *c, const checkpoint *cp, dflash_role r, int l)
{
    char name[DFLASH_NAME_MAX];
    dflash_tensor_name(c->layout, c->prefix, r, l, name);
    return tensor_find(cp->tensors, str_of(name));
}

/* Returns the number after "layers." or "blk."; 0 for other tensors. */
static int layer_of(str name)
{
    static const char *const before[] = {"model.layers.", "layers.", "blk."};
    for (size_t i = 0; i < COUNT(before); i++) {
        size_t at = strlen(before[i]), end = at;
        if (!str_starts(name, before[i])) continue;
        int64_t l = 0;
        while (end < name.n && name.s[end] != '.') end++;
        return str_to_i64((str){name.s + at, end - at}, &l) && l >= 0 && l < DFLASH_MAX_LAYERS ? (int)l : -1;
    }
    return 0;
}

static bool is_known(const dflash_config *c, str name)
{
    int l = layer_of(name);
    if (str_is(name, "t2d")) return true; /* used in training only */
    for (int r = 0; l >= 0 && l < c->n_layers && r < DFLASH_ROLES; r++) {
        char known[DFLASH_NAME_MAX];
        dflash_tensor_name(c->layout, c->prefix, (dflash_role)r, l, known);
        if (str_is(name, known)) return true;
    }
    return false;
}

/* Refuses unknown tensors: without them the drafter would be worse than it is. */
static bool check_tensors(const dflash_config *c, const checkpoint *cp, err *e)
{
    for (size_t i = 0; i < tensor_count(cp->tensors); i++) {
        str name = tensor_at(cp->tensors, i)->name;
        if (!is_known(c, name))
            return err_set(e, ERR_FORMAT, "tensor '%.*s' is not part of a DFlash drafter", STR_ARG(name));
    }
    return true;
}

/* --- relatives that are something else ----------------------------------------------------------*/
static bool contains(str s, const char *part)
{
    for (size_t i = 0; i < s.n; i++)
        if (str_starts((str){s.s + i, s.n - i}, part)) return true;
    return false;
}

static const struct {
    const char *sign, *kind;
} tensor_signs[] = {{"_conv.", "DFlash-2"}, {"selector", "DFlash-2"}, {"markov", "DSpark"}, {"conf", "DSpark"}},
  arch_signs[]   = {{"DFlash2", "DFlash-2"}, {"DSpark", "DSpark"}, {"Laguna", "Laguna"}};

static bool refuse_config(const char *kind, str why, err *e)
{
    return err_set(e, ERR_INPUT, "this is a %s drafter ('%.*s'), which is not supported, only DFlash is", kind,
                   STR_ARG(why));
}

static bool refuse_relatives(const checkpoint *cp, err *e)
{
    const json_value *archs  = cp->gguf ? NULL : hf_present(cp->config, "architectures");
    bool              listed = archs && archs->kind == JSON_ARRAY && archs->n && archs->item[0].kind == JSON_STRING;
    str               arch   = listed ? archs->item[0].s : (str){0};
    for (size_t k = 0; k < COUNT(arch_signs); k++)
        if (contains(arch, arch_signs[k].sign)) return refuse_config(arch_signs[k].kind, arch, e);
    for (size_t i = 0; i < tensor_count(cp->tensors); i++)
        for (size_t k = 0; k < COUNT(tensor_signs); k++) {
            str name = tensor_at(cp->tensors, i)->name;
            if (contains(name, tensor_signs[k].sign)) return refuse_config(tensor_signs[k].kind, name, e);
        }
    return true;
}

/* --- sizes, from tensors ------------------------------------------------------------------------*/
static bool require(const dflash_config *c, const checkpoint *cp, dflash_role r, const tensor **out, err *e)
{
    char name[DFLASH_NAME_MAX];
    dflash_tensor_name(c->layout, c->prefix, r, 0, name);
    *out = tensor_find(cp->tensors, str_of(name));
    return *out || err_set(e, ERR_FORMAT, "tensor '%s' is missing", name);
}

static bool read_heads(dflash_config *c, const tensor *q, const tensor *k, err *e)
{
    int D = c->head_dim, nq, nk;
    if (!config_int("the width of the query heads together", q->dim[1], 8, MAX_WIDTH, &nq, e) ||
        !config_int("the width of the K/V heads together", k->dim[1], 8, MAX_WIDTH, &nk, e))
        return false;
    if (D % 8 || D > OPS_MAX_HEAD_DIM || nq % D || nk % D || nq % nk)
        return err_set(e, ERR_FORMAT, "queries of width %d, keys of width %d and heads of size %d do not match", nq, nk,
                       D);
    c->n_heads    = nq / D;
    c->n_kv_heads = nk / D;
    return true;
}

static bool read_sizes(dflash_config *c, const checkpoint *cp, err *e)
{
    const tensor *fc, *q_norm, *q, *k, *gate;
    return require(c, cp, DFLASH_FC, &fc, e) && require(c, cp, DFLASH_Q_NORM, &q_norm, e) &&
           require(c, cp, DFLASH_Q, &q, e) && require(c, cp, DFLASH_K, &k, e) &&
           require(c, cp, DFLASH_GATE, &gate, e) &&
           config_int("the width of the features", fc->dim[0], 8, DFLASH_MAX_CAPTURES * MAX_WIDTH, &c->n_features, e) &&
           config_int("the width", fc->dim[1], 8, MAX_WIDTH, &c->n_embd, e) &&
           config_int("the head size", q_norm->dim[0], 8, 1024, &c->head_dim, e) && read_heads(c, q, k, e) &&
           config_int("the inner width", gate->dim[1], 1, MAX_WIDTH, &c->n_ff, e);
}

/* --- GGUF ---------------------------------------------------------------------------------------*/
static const gguf_value *find_key(const checkpoint *cp, const char *suffix, char key[DFLASH_NAME_MAX])
{
    snprintf(key, DFLASH_NAME_MAX, "%.*s.%s", STR_ARG(model_arch(cp)), suffix);
    return gguf_find(cp->gguf, key);
}

static bool g_int(const checkpoint *cp, const char *suffix, int64_t fallback, int64_t lo, int64_t hi, int *out, err *e)
{
    char              key[DFLASH_NAME_MAX];
    const gguf_value *v = find_key(cp, suffix, key);
    int64_t           i;
    if (!v && fallback == CONFIG_REQUIRED) return config_missing(key, e);
    if (!v) return *out = (int)fallback, true;
    if (!gguf_int(v, &i)) return err_set(e, ERR_FORMAT, "%s is not an integer", key);
    return config_int(key, i, lo, hi, out, e);
}

static bool g_real(const checkpoint *cp, const char *suffix, double fallback, double lo, double hi, double *out, err *e)
{
    char              key[DFLASH_NAME_MAX];
    const gguf_value *v = find_key(cp, suffix, key);
    double            d;
    if (!v) return *out = fallback, true;
    if (!gguf_real(v, &d)) return err_set(e, ERR_FORMAT, "%s is not a number", key);
    return config_real(key, d, lo, hi, out, e);
}

/* Reads capture ids. llama.cpp captures the input of a layer, so its ids are one higher. */
static bool g_captures(dflash_config *c, const checkpoint *cp, err *e)
{
    char              key[DFLASH_NAME_MAX];
    bool              inputs = c->layout == DFLASH_LLAMA;
    const gguf_value *v      = find_key(cp, inputs ? "target_layers" : "dflash.target_layer_ids", key);
    if (!v) return true;
    if (v->type != GGUF_ARRAY || v->n < 1 || v->n > DFLASH_MAX_CAPTURES)
        return err_set(e, ERR_FORMAT, "%s is not a list of 1 to %d layers", key, DFLASH_MAX_CAPTURES);
    for (uint64_t i = 0; i < v->n; i++) {
        int64_t id;
        if (!gguf_item_int(v, i, &id)) return err_set(e, ERR_FORMAT, "%s is not a list of integers", key);
        if (!config_int(key, id, inputs, 1 << 16, &c->capture[i], e)) return false;
        c->capture[i] -= inputs;
    }
    c->n_captures = (int)v->n;
    return true;
}

static bool g_mask(dflash_config *c, const checkpoint *cp, int64_t hi, err *e)
{
    const char       *key = "tokenizer.ggml.mask_token_id";
    const gguf_value *v   = gguf_find(cp->gguf, key);
    int64_t           id;
    if (c->layout != DFLASH_LLAMA) return g_int(cp, "dflash.mask_token_id", CONFIG_REQUIRED, 0, hi, &c->mask_id, e);
    if (!v) return config_missing(key, e);
    if (!gguf_int(v, &id)) return err_set(e, ERR_FORMAT, "%s is not an integer", key);
    return config_int(key, id, 0, hi, &c->mask_id, e);
}

/* Reads the sliding pattern: a list of flags, or a period. With a window and neither, all layers except the last
 * slide. */
static bool g_window(dflash_config *c, const checkpoint *cp, err *e)
{
    char              key[DFLASH_NAME_MAX];
    const gguf_value *v = find_key(cp, "attention.sliding_window_pattern", key);
    int64_t           x = 0;
    if (!g_int(cp, "attention.sliding_window", 0, 0, MAX_CONTEXT, &c->window, e)) return false;
    if (!c->window) return true;
    bool list = v && v->type == GGUF_ARRAY;
    if (list && v->n < (uint64_t)c->n_layers)
        return err_set(e, ERR_FORMAT, "%s has %llu entries for %d layers", key, (unsigned long long)v->n, c->n_layers);
    if (v && !list && (!gguf_int(v, &x) || x < 1))
        return err_set(e, ERR_FORMAT, "%s is neither a list nor a period", key);
    for (int l = 0; l < c->n_layers; l++) {
        if (list && !gguf_item_int(v, (uint64_t)l, &x)) return err_set(e, ERR_FORMAT, "%s is not a list of flags", key);
        c->sliding[l] = list ? x != 0 : v ? (l + 1) % x != 0 : l + 1 < c->n_layers;
    }
    return true;
}

/* attention.causal false means "not everywhere": sliding layers are causal in any case. */
static bool g_causal(dflash_config *c, const checkpoint *cp, err *e)
{
    char              key[DFLASH_NAME_MAX];
    const gguf_value *v  = find_key(cp, "attention.causal", key);
    bool              on = false;
    if (v && !gguf_bool(v, &on)) return err_set(e, ERR_FORMAT, "%s is neither true nor false", key);
    c->causal_sliding = true;
    c->causal_full    = on;
    return true;
}

static bool g_rope(dflash_config *c, const checkpoint *cp, err *e)
{
    char              key[DFLASH_NAME_MAX];
    const gguf_value *v = find_key(cp, "rope.scaling.type", key);
    str               s = {0};
    double            base;
    int               n_rot;
    if (v && !(gguf_str(v, &s) && str_is(s, "none")))
        return err_set(e, ERR_FORMAT, "%s is '%.*s', and only drafters without rope scaling are supported", key,
                       STR_ARG(s));
    if (!g_int(cp, "rope.dimension_count", c->head_dim, 1, MAX_WIDTH, &n_rot, e) ||
        !g_real(cp, "dflash.backbone_rotary_base", 1e6, 1, 1e12, &base, e) ||
        !g_real(cp, "rope.freq_base", base, 1, 1e12, &c->theta, e))
        return false;
    return n_rot == c->head_dim ||
           err_set(e, ERR_FORMAT, "rope rotates %d of %d dimensions of a head, which is not supported", n_rot,
                   c->head_dim);
}

static bool g_vocab(dflash_config *c, const checkpoint *cp, err *e)
{
    const gguf_value *tokens = gguf_find(cp->gguf, "tokenizer.ggml.tokens");
    int64_t           n      = tokens && tokens->type == GGUF_ARRAY && tokens->n <= MAX_VOCAB ? (int64_t)tokens->n : 0;
    return g_int(cp, "vocab_size", n, 2, MAX_VOCAB, &c->n_vocab, e);
}

static bool g_anchor(const checkpoint *cp, err *e)
{
    char key[DFLASH_NAME_MAX];
    bool on = false;
    return !gguf_bool(find_key(cp, "sample_from_anchor", key), &on) || !on || refuse_config("DSpark", str_of(key), e);
}

static bool from_gguf(dflash_config *c, const checkpoint *cp, err *e)
{
    str arch          = model_arch(cp);
    c->layout         = str_is(arch, "dflash") ? DFLASH_LLAMA : str_is(arch, "dflash-draft") ? DFLASH_IK : DFLASH_LUCE;
    c->own_embed      = true;
    const char *block = c->layout == DFLASH_LLAMA ? "block_size" : "dflash.block_size";
    return g_anchor(cp, e) && g_int(cp, "block_count", CONFIG_REQUIRED, 1, DFLASH_MAX_LAYERS, &c->n_layers, e) &&
           read_sizes(c, cp, e) && g_vocab(c, cp, e) && g_int(cp, "context_length", 0, 1, MAX_CONTEXT, &c->n_ctx, e) &&
           g_int(cp, block, DEFAULT_BLOCK, 2, DFLASH_MAX_BLOCK, &c->block, e) &&
           g_mask(c, cp, (c->n_vocab ? c->n_vocab : MAX_VOCAB) - 1, e) && g_captures(c, cp, e) && g_window(c, cp, e) &&
           g_causal(c, cp, e) && g_rope(c, cp, e) &&
           g_real(cp, "attention.layer_norm_rms_epsilon", 1e-6, 0, 1, &c->eps, e) &&
           g_real(cp, "final_logit_softcapping", -1, 0, 1e6, &c->softcap, e);
}

/* --- Hugging Face -------------------------------------------------------------------------------*/
static bool h_captures(dflash_config *c, const json_value *dflash, err *e)
{
    const json_value *ids = hf_present(dflash, "target_layer_ids");
    if (!ids) return true;
    if (ids->kind != JSON_ARRAY || ids->n < 1 || ids->n > DFLASH_MAX_CAPTURES)
        return err_set(e, ERR_FORMAT, "dflash_config.target_layer_ids is not a list of 1 to %d layers",
                       DFLASH_MAX_CAPTURES);
    for (size_t i = 0; i < ids->n; i++) {
        if (ids->item[i].kind != JSON_INT)
            return err_set(e, ERR_FORMAT, "dflash_config.target_layer_ids[%zu] is not an integer", i);
        if (!config_int("an entry of dflash_config.target_layer_ids", ids->item[i].i, 0, 1 << 16, &c->capture[i], e))
            return false;
    }
    c->n_captures = (int)ids->n;
    return true;
}

static bool is_false(const json_value *o, const char *key)
{
    const json_value *v = hf_present(o, key);
    return v && v->kind == JSON_BOOL && !v->b;
}

/* Reads which layers slide: layer_types, else use_swa. use_sliding_window false disables the window. */
static bool h_window(dflash_config *c, const json_value *o, const json_value *dflash, err *e)
{
    bool any = false, all = hf_bool(dflash, "use_swa");
    if (hf_present(o, "layer_types") && !hf_layer_types(o, c->n_layers, c->sliding, e)) return false;
    for (int l = 0; l < c->n_layers; l++) any |= c->sliding[l];
    bool off = is_false(o, "use_sliding_window") && !all;
    for (int l = 0; l < c->n_layers; l++) c->sliding[l] = !off && (any ? c->sliding[l] : all);
    if (off || (!any && !all)) return true;
    const json_value *own = hf_present(dflash, "swa_window_size");
    return hf_int(own ? dflash : o, own ? "swa_window_size" : "sliding_window", CONFIG_REQUIRED, 1, MAX_CONTEXT,
                  &c->window, e);
}

static bool h_causal(dflash_config *c, const json_value *o, const json_value *dflash, err *e)
{
    const json_value *top = hf_present(o, "is_causal"), *v = top ? top : hf_present(dflash, "causal");
    if (v && v->kind != JSON_BOOL)
        return err_set(e, ERR_FORMAT, "%s is neither true nor false", top ? "is_causal" : "dflash_config.causal");
    c->causal_full    = v ? v->b : false;
    c->causal_sliding = v ? v->b : true;
    return true;
}

/* Returns whether the rope scaling is "default", under either of its key names. */
static bool h_rope_kind(const json_value *rope, const char *name, err *e)
{
    static const char *const keys[] = {"rope_type", "type"};
    for (size_t i = 0; i < COUNT(keys); i++) {
        const json_value *v = hf_present(rope, keys[i]);
        if (v && !(v->kind == JSON_STRING && str_is(v->s, "default")))
            return err_set(e, ERR_FORMAT, "%s.%s is not default but '%.*s': scaled ropes are not supported", name,
                           keys[i], STR_ARG(v->s));
    }
    if (hf_present(rope, "full_attention") || hf_present(rope, "sliding_attention"))
        return err_set(e, ERR_FORMAT, "%s differ by the kind of layer, which is not supported", name);
    return true;
}

static bool h_rope(dflash_config *c, const json_value *o, err *e)
{
    const json_value *rope = hf_present(o, "rope_parameters"), *old = hf_present(o, "rope_scaling");
    double            part, part_top;
    if (!h_rope_kind(rope, "rope_parameters", e) || !h_rope_kind(old, "rope_scaling", e) ||
        !hf_real(o, "partial_rotary_factor", 1, 0, 1, &part_top, e) ||
        !hf_real(rope, "partial_rotary_factor", part_top, 0, 1, &part, e) ||
        !hf_real(hf_present(rope, "rope_theta") ? rope : o, "rope_theta", 1e6, 1, 1e12, &c->theta, e))
        return false;
    return part == 1 || err_set(e, ERR_FORMAT, "partial_rotary_factor is %g, which is not supported", part);
}

/* Checks a size of the configuration against the tensor. */
static bool h_agrees(const json_value *o, const char *key, int is, err *e)
{
    int said;
    if (!hf_int(o, key, is, 0, INT32_MAX, &said, e)) return false;
    return said == is || err_set(e, ERR_FORMAT, "%s is %d, but the tensors are made for %d", key, said, is);
}

static bool h_sizes(dflash_config *c, const checkpoint *cp, err *e)
{
    const json_value *o = cp->config;
    return read_sizes(c, cp, e) && h_agrees(o, "hidden_size", c->n_embd, e) &&
           h_agrees(o, "intermediate_size", c->n_ff, e) && h_agrees(o, "num_attention_heads", c->n_heads, e) &&
           h_agrees(o, "num_key_value_heads", c->n_kv_heads, e) && h_agrees(o, "head_dim", c->head_dim, e);
}

/* Refuses variants of drafters that this code does not implement. */
static bool h_refuse_unknown(const json_value *o, const json_value *dflash, err *e)
{
    double scale;
    if (hf_present(o, "quantization_config"))
        return err_set(e, ERR_FORMAT,
                       "its weights are quantised in a way that only other engines read (quantization_config)");
    if (hf_bool(o, "attention_bias")) return err_set(e, ERR_FORMAT, "attention_bias is true, which is not supported");
    if (hf_bool(o, "sample_from_anchor") || hf_bool(dflash, "sample_from_anchor"))
        return refuse_config("DSpark", STR("sample_from_anchor"), e);
    if (!hf_real(o, "logit_scale", 1, -1e6, 1e6, &scale, e)) return false;
    return scale == 1 || err_set(e, ERR_FORMAT, "logit_scale is %g, which is not supported", scale);
}

static bool from_dir(dflash_config *c, const checkpoint *cp, err *e)
{
    const json_value *o = cp->config, *dflash = hf_present(o, "dflash_config");
    int               block;
    if (!dflash) return config_missing("dflash_config", e);
    c->layout    = DFLASH_DIR;
    c->prefix    = tensor_find(cp->tensors, STR("model.fc.weight")) ? "model." : "";
    c->own_embed = !is_false(o, "has_embed_tokens");
    c->tied      = hf_bool(o, "tie_word_embeddings");
    return h_refuse_unknown(o, dflash, e) &&
           hf_int(o, "num_hidden_layers", CONFIG_REQUIRED, 1, DFLASH_MAX_LAYERS, &c->n_layers, e) &&
           h_sizes(c, cp, e) && hf_int(o, "vocab_size", CONFIG_REQUIRED, 2, MAX_VOCAB, &c->n_vocab, e) &&
           hf_int(o, "max_position_embeddings", 0, 0, MAX_CONTEXT, &c->n_ctx, e) &&
           hf_int(o, "block_size", DEFAULT_BLOCK, 2, DFLASH_MAX_BLOCK, &block, e) &&
           hf_int(dflash, "block_size", block, 2, DFLASH_MAX_BLOCK, &c->block, e) &&
           hf_int(dflash, "mask_token_id", CONFIG_REQUIRED, 0, c->n_vocab - 1, &c->mask_id, e) &&
           h_captures(c, dflash, e) && h_window(c, o, dflash, e) && h_causal(c, o, dflash, e) && h_rope(c, o, e) &&
           hf_real(o, "rms_norm_eps", 1e-6, 0, 1, &c->eps, e) &&
           (hf_present(o, "final_logit_softcapping") ? hf_real(o, "final_logit_softcapping", 0, 0, 1e6, &c->softcap, e)
                                                     : (c->softcap = -1, true));
}

/* --- both ---------------------------------------------------------------------------------------*/
bool dflash_config_read(dflash_config *out, const checkpoint *cp, err *e)
{
    *out = (dflash_config){.prefix = ""};
    return refuse_relatives(cp, e) && (cp->gguf ? from_gguf(out, cp, e) : from_dir(out, cp, e)) &&
           check_tensors(out, cp, e);
}

void dflash_default_captures(int *out, int n, int n_layers)
{
    for (int i = 0; i < n; i++) {
        double at =
            n == 1 ? n_layers / 2 : rint(1 + (double)i * (n_layers - 4) / (n - 1)); /* ties to even, as trained */
        out[i] = at < 0 ? 0 : at >= n_layers ? n_layers - 1 : (int)at;
    }
}
