#include "model/dflash_config.h"

#include "base/mem.h"
#include "model/config_value.h"
#include "model/dflash_read.h"
#include "model/model.h"
#include "ops/ops.h"

#include <math.h>
#include <stdio.h>

enum { MAX_WIDTH = 1 << 20, MAX_RANK = 1 << 14, DEFAULT_TOP = 16 };

/* --- names --------------------------------------------------------------------------------------*/
static const struct {
    const char *dir, *gguf; /* %d: the layer */
    const char *ik, *luce;  /* where they differ from llama.cpp's */
    const char *gemma;      /* where it differs from dir */
} names[DFLASH_ROLES] = {
    [DFLASH_FC]          = {"fc.weight", "fc.weight", "dflash_fc.weight", "dflash.fc.weight"},
    [DFLASH_HIDDEN_NORM] = {"hidden_norm.weight", "enc.output_norm.weight", "dflash_hidden_norm.weight",
                            "dflash.hidden_norm.weight"},
    [DFLASH_NORM]        = {"norm.weight", "output_norm.weight", NULL, NULL},
    [DFLASH_EMBED]       = {"embed_tokens.weight", "token_embd.weight", NULL, NULL},
    [DFLASH_HEAD]        = {"lm_head.weight", "output.weight", NULL, NULL},
    [DFLASH_D2T]         = {"d2t", "d2t", NULL, NULL},
    [DFLASH_W1]          = {"markov_head.markov_w1.weight", "markov_w1.weight", NULL, NULL},
    [DFLASH_W2]          = {"markov_head.markov_w2.weight", "markov_w2.weight", NULL, NULL},
    [DFLASH_CONF]        = {"confidence_head.proj.weight", "conf_proj.weight", NULL, NULL},
    [DFLASH_CONF_BIAS]   = {"confidence_head.proj.bias", "conf_proj.bias", NULL, NULL},
    [DFLASH_BEFORE]      = {"candidate_selector.predecessor_codebook", "selector_predecessor.weight", NULL, NULL},
    [DFLASH_AFTER]       = {"candidate_selector.successor_codebook", "selector_successor.weight", NULL, NULL},
    [DFLASH_MIDDLE]      = {"candidate_selector.hidden_projection.weight", "selector_hidden.weight", NULL, NULL},
    [DFLASH_ATTN_NORM]   = {"layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", NULL, NULL},
    [DFLASH_Q]           = {"layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", NULL, NULL},
    [DFLASH_K]           = {"layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", NULL, NULL},
    [DFLASH_V]           = {"layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", NULL, NULL},
    [DFLASH_O]           = {"layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", NULL, NULL},
    [DFLASH_Q_NORM]      = {"layers.%d.self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight", NULL, NULL},
    [DFLASH_K_NORM]      = {"layers.%d.self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight", NULL, NULL},
    [DFLASH_FF_NORM]     = {"layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight",
                            "blk.%d.post_attention_norm.weight", NULL, "layers.%d.pre_feedforward_layernorm.weight"},
    [DFLASH_GATE]        = {"layers.%d.mlp.gate_proj.weight", "blk.%d.ffn_gate.weight", NULL, NULL},
    [DFLASH_UP]          = {"layers.%d.mlp.up_proj.weight", "blk.%d.ffn_up.weight", NULL, NULL},
    [DFLASH_DOWN]        = {"layers.%d.mlp.down_proj.weight", "blk.%d.ffn_down.weight", NULL, NULL},
    [DFLASH_POST_ATTN] = {"", "blk.%d.post_attention_norm.weight", "", "", "layers.%d.post_attention_layernorm.weight"},
    [DFLASH_POST_FF]   = {"", "blk.%d.post_ffw_norm.weight", "", "", "layers.%d.post_feedforward_layernorm.weight"},
    [DFLASH_SCALE]     = {"", "blk.%d.layer_output_scale.weight", "", "", "layers.%d.layer_scalar"},
    [DFLASH_ATTN_BASE] = {"layers.%d.attention_conv.base_kernel", "blk.%d.attn_conv_base.weight", NULL, NULL},
    [DFLASH_ATTN_CONV] = {"layers.%d.attention_conv.kernel_projection.weight", "blk.%d.attn_conv_proj.weight", NULL,
                          NULL},
    [DFLASH_FF_BASE]   = {"layers.%d.mlp_conv.base_kernel", "blk.%d.ffn_conv_base.weight", NULL, NULL},
    [DFLASH_FF_CONV]   = {"layers.%d.mlp_conv.kernel_projection.weight", "blk.%d.ffn_conv_proj.weight", NULL, NULL},
};

const char *dflash_kind_name(dflash_kind k)
{
    return k == DFLASH_SPARK ? "DSpark" : k == DFLASH_2 ? "DFlash-2" : "DFlash";
}

void dflash_tensor_name(dflash_layout layout, const char *prefix, dflash_role r, int l, char out[DFLASH_NAME_MAX])
{
    bool        dir   = layout == DFLASH_DIR || layout == DFLASH_GEMMA_DIR;
    const char *other = layout == DFLASH_IK          ? names[r].ik
                        : layout == DFLASH_LUCE      ? names[r].luce
                        : layout == DFLASH_GEMMA_DIR ? names[r].gemma
                                                     : NULL;
    const char *name  = other ? other : dir ? names[r].dir : names[r].gguf;
    const char *d     = strstr(name, "%d");
    if (!dir) prefix = "";
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

/* Returns whether drafters of this kind have the tensor. */
static bool has_role(const dflash_config *c, dflash_role r)
{
    switch (r) {
    case DFLASH_V: return !c->k_is_v;
    case DFLASH_W1:
    case DFLASH_W2:
    case DFLASH_CONF:
    case DFLASH_CONF_BIAS: return c->kind == DFLASH_SPARK;
    case DFLASH_POST_ATTN:
    case DFLASH_POST_FF:
    case DFLASH_SCALE: return c->gemma;
    case DFLASH_BEFORE:
    case DFLASH_AFTER:
    case DFLASH_MIDDLE:
    case DFLASH_ATTN_BASE:
    case DFLASH_ATTN_CONV:
    case DFLASH_FF_BASE:
    case DFLASH_FF_CONV: return c->kind == DFLASH_2;
    default: return true;
    }
}

static bool is_known(const dflash_config *c, str name)
{
    int l = layer_of(name);
    if (str_is(name, "t2d") || str_is(name, "mask_embedding")) return true; /* used in training only */
    for (int r = 0; l >= 0 && l < c->n_layers && r < DFLASH_ROLES; r++) {
        char known[DFLASH_NAME_MAX];
        if (!has_role(c, (dflash_role)r)) continue;
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
            return err_set(e, ERR_FORMAT, "tensor '%.*s' is not part of a %s drafter", STR_ARG(name),
                           dflash_kind_name(c->kind));
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

static bool read_spark(dflash_config *c, const checkpoint *cp, err *e)
{
    const tensor *w1 = dflash_tensor(c, cp, DFLASH_W1, 0), *conf = dflash_tensor(c, cp, DFLASH_CONF, 0);
    if (w1 && !config_int("the rank of the token pairs", w1->dim[0], 1, MAX_RANK, &c->rank, e)) return false;
    c->conf       = conf != NULL;
    c->conf_pairs = conf && w1 && conf->dim[0] == c->n_embd + c->rank;
    return true;
}

static bool read_pairs(dflash_config *c, const checkpoint *cp, err *e)
{
    const tensor *before, *base, *conv;
    int           n;
    if (!require(c, cp, DFLASH_BEFORE, &before, e) || !require(c, cp, DFLASH_ATTN_BASE, &base, e) ||
        !require(c, cp, DFLASH_ATTN_CONV, &conv, e) ||
        !config_int("the rank of the token pairs", before->dim[0], 1, MAX_RANK, &c->rank, e) ||
        !config_int("the taps of a convolution", base->dim[1], 1, DFLASH_MAX_TAPS, &c->n_taps, e) ||
        !config_int("the width of a convolution's kernels", conv->dim[1], 1, MAX_WIDTH, &n, e))
        return false;
    int groups = n / (2 * c->n_taps);
    if (groups < 1 || n != groups * 2 * c->n_taps || c->n_embd % groups)
        return err_set(e, ERR_FORMAT, "kernels of width %d and %d taps do not match a width of %d", n, c->n_taps,
                       c->n_embd);
    c->group = c->n_embd / groups;
    return true;
}

static bool read_common_sizes(dflash_config *c, const checkpoint *cp, err *e)
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

bool dflash_read_sizes(dflash_config *c, const checkpoint *cp, err *e)
{
    if (!read_common_sizes(c, cp, e)) return false;
    return c->kind == DFLASH_SPARK ? read_spark(c, cp, e) : c->kind == DFLASH_2 ? read_pairs(c, cp, e) : true;
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
        if (!config_int(key, id, inputs && c->kind == DFLASH_1, 1 << 16, &c->capture[i], e)) return false;
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
    if (!g_int(cp, "attention.sliding_window", 0, 0, DFLASH_MAX_CONTEXT, &c->window, e)) return false;
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

/* attention.causal false means "not everywhere": sliding layers of DFlash and DSpark are causal all the same, unless
 * attention.sliding_causal, a key of our own, is false. */
static bool g_causal(dflash_config *c, const checkpoint *cp, err *e)
{
    char              key[DFLASH_NAME_MAX];
    const gguf_value *v  = find_key(cp, "attention.causal", key);
    bool              on = false, sliding = c->kind != DFLASH_2;
    if (v && !gguf_bool(v, &on)) return err_set(e, ERR_FORMAT, "%s is neither true nor false", key);
    v = find_key(cp, "attention.sliding_causal", key);
    if (v && !gguf_bool(v, &sliding)) return err_set(e, ERR_FORMAT, "%s is neither true nor false", key);
    c->causal_sliding = sliding || on;
    c->causal_full    = on;
    return true;
}

static bool g_yarn(dflash_config *c, const checkpoint *cp, err *e)
{
    dflash_yarn *y = &c->yarn;
    return g_real(cp, "rope.scaling.factor", 1, 1, 1e6, &y->factor, e) &&
           g_int(cp, "rope.scaling.original_context_length", CONFIG_REQUIRED, 1, DFLASH_MAX_CONTEXT, &y->original, e) &&
           g_real(cp, "rope.scaling.yarn_beta_fast", 32, 0, 1e6, &y->fast, e) &&
           g_real(cp, "rope.scaling.yarn_beta_slow", 1, 0, 1e6, &y->slow, e) &&
           g_real(cp, "rope.scaling.attn_factor", 0.1 * log(y->factor) + 1, 0, 1e6, &y->attention, e);
}

static bool g_rope(dflash_config *c, const checkpoint *cp, err *e)
{
    char              key[DFLASH_NAME_MAX];
    const gguf_value *v = find_key(cp, "rope.scaling.type", key);
    str               s = {0};
    double            base, part;
    int               n_rot;
    if (v && !(gguf_str(v, &s) && (str_is(s, "none") || str_is(s, "yarn"))))
        return err_set(e, ERR_FORMAT, "%s is '%.*s', expected none or yarn", key, STR_ARG(s));
    if (v && str_is(s, "yarn") && !g_yarn(c, cp, e)) return false;
    if (!g_int(cp, "rope.dimension_count", c->head_dim, 1, MAX_WIDTH, &n_rot, e) ||
        !g_real(cp, "rope.partial_rotary_factor", 1, 0, 1, &part, e) ||
        !g_real(cp, "dflash.backbone_rotary_base", 1e6, 1, 1e12, &base, e) ||
        !g_real(cp, "rope.freq_base", base, 1, 1e12, &c->theta, e))
        return false;
    c->rope_part = c->gemma ? part : 1; /* a key of our own */
    return n_rot == c->head_dim ||
           err_set(e, ERR_FORMAT, "rope rotates %d of %d dimensions of a head, which is not supported", n_rot,
                   c->head_dim);
}

static bool g_vocab(dflash_config *c, const checkpoint *cp, err *e)
{
    const gguf_value *tokens = gguf_find(cp->gguf, "tokenizer.ggml.tokens");
    int64_t n = tokens && tokens->type == GGUF_ARRAY && tokens->n <= DFLASH_MAX_VOCAB ? (int64_t)tokens->n : 0;
    return g_int(cp, "vocab_size", n, 2, DFLASH_MAX_VOCAB, &c->n_vocab, e);
}

/* Finds the kind by its tensors, and by the layout of the block, which only DSpark files state. */
static bool g_kind(dflash_config *c, const checkpoint *cp, err *e)
{
    char              key[DFLASH_NAME_MAX];
    const gguf_value *v = find_key(cp, "sample_from_anchor", key);
    bool              on, spark = dflash_tensor(c, cp, DFLASH_W1, 0) != NULL;
    if (v && !gguf_bool(v, &on)) return err_set(e, ERR_FORMAT, "%s is neither true nor false", key);
    if (!v) on = spark;
    c->kind     = spark || on ? DFLASH_SPARK : dflash_tensor(c, cp, DFLASH_BEFORE, 0) ? DFLASH_2 : DFLASH_1;
    c->anchored = on;
    c->gemma    = c->kind == DFLASH_SPARK && dflash_tensor(c, cp, DFLASH_POST_FF, 0);
    c->k_is_v   = c->gemma && !dflash_tensor(c, cp, DFLASH_V, 0);
    return true;
}

/* DFlash's embeddings are scaled as the target's, unless the file says otherwise. */
static bool g_scales(dflash_config *c, const checkpoint *cp, err *e)
{
    double embed = c->gemma ? sqrt(c->n_embd) : c->kind == DFLASH_1 ? 0 : 1;
    return g_real(cp, "embedding_scale", embed, 0, 1e6, &c->embed_scale, e) &&
           g_real(cp, "logit_scale", 1, -1e6, 1e6, &c->logit_scale, e) &&
           g_real(cp, "final_logit_softcapping", c->kind == DFLASH_1 ? -1 : 0, 0, 1e6, &c->softcap, e);
}

static bool from_gguf(dflash_config *c, const checkpoint *cp, err *e)
{
    str arch          = model_arch(cp);
    c->layout         = str_is(arch, "dflash") ? DFLASH_LLAMA : str_is(arch, "dflash-draft") ? DFLASH_IK : DFLASH_LUCE;
    c->own_embed      = true;
    const char *block = c->layout == DFLASH_LLAMA ? "block_size" : "dflash.block_size";
    return g_kind(c, cp, e) && g_int(cp, "block_count", CONFIG_REQUIRED, 1, DFLASH_MAX_LAYERS, &c->n_layers, e) &&
           dflash_read_sizes(c, cp, e) && g_vocab(c, cp, e) &&
           g_int(cp, "context_length", 0, 1, DFLASH_MAX_CONTEXT, &c->n_ctx, e) &&
           g_int(cp, block, DFLASH_DEFAULT_BLOCK, 2, DFLASH_MAX_BLOCK, &c->block, e) &&
           g_int(cp, "selector_top_k", DEFAULT_TOP, 1, SAMPLE_TOP_MAX, &c->n_top, e) &&
           g_mask(c, cp, (c->n_vocab ? c->n_vocab : DFLASH_MAX_VOCAB) - 1, e) && g_captures(c, cp, e) &&
           g_window(c, cp, e) && g_causal(c, cp, e) && g_rope(c, cp, e) &&
           g_real(cp, "attention.layer_norm_rms_epsilon", 1e-6, 0, 1, &c->eps, e) && g_scales(c, cp, e);
}

/* --- both ---------------------------------------------------------------------------------------*/
bool dflash_config_read(dflash_config *out, const checkpoint *cp, err *e)
{
    *out = (dflash_config){.prefix = ""};
    return (cp->gguf ? from_gguf : dflash_read_dir)(out, cp, e) && check_tensors(out, cp, e);
}

void dflash_default_captures(int *out, int n, int n_layers)
{
    for (int i = 0; i < n; i++) {
        double at =
            n == 1 ? n_layers / 2 : rint(1 + (double)i * (n_layers - 4) / (n - 1)); /* ties to even, as trained */
        out[i] = at < 0 ? 0 : at >= n_layers ? n_layers - 1 : (int)at;
    }
}

/* A larger max_position_embeddings than this is the target's, not the drafter's trained length. Rope scaled by YaRN is
 * made for the length that it is scaled to, as far as the drafter follows it. */
enum { MAX_TRAINED = 32768 };

int dflash_trained_ctx(const dflash_config *c)
{
    double scaled = c->yarn.factor * c->yarn.original;
    if (c->yarn.factor <= 0) return c->n_ctx <= MAX_TRAINED ? c->n_ctx : 0;
    if (c->n_ctx && scaled > c->n_ctx) scaled = c->n_ctx;
    return scaled < MAX_TRAINED ? (int)scaled : MAX_TRAINED;
}

/* Acceptance of DFlash falls beyond 4096 positions; that of native DSpark drafters does not up to 16384. */
int dflash_default_ctx(const dflash_config *c)
{
    int  trained = dflash_trained_ctx(c);
    bool native  = c->kind == DFLASH_SPARK && c->anchored && !c->window;
    return trained ? trained : native ? 16384 : 4096;
}
