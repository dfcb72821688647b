/* Reads the config.json of DFlash, DSpark and DFlash-2 drafters.
 *
 *   DFlash, DFlash-2   the usual keys of a decoder, and dflash_config
 *   DSpark, native     the keys of the target's own config.json with a few replaced; DSpark's keys next to them
 *   speculators        the decoder in transformer_layer_config, the drafter's keys at the top level
 *   SpecForge          as DFlash, with DSpark's keys in dflash_config
 *
 * A key of the drafter is taken from dspark_config or dflash_config if they have it, else from the top level. */
#include "base/mem.h"
#include "model/config_value.h"
#include "model/dflash_read.h"
#include "ops/ops.h"

#include <math.h>

enum { DEFAULT_TOP = 16 };

typedef struct {
    const json_value *top, *inner; /* inner: dspark_config or dflash_config; NULL: neither */
    const json_value *body;        /* keys of the decoder */
    bool              native;      /* DSpark made of a copy of the target's configuration */
} source;

/* Returns the object that has this key of the drafter. */
static const json_value *at(const source *s, const char *key) { return hf_present(s->inner, key) ? s->inner : s->top; }

static const json_value *find(const source *s, const char *key) { return hf_present(at(s, key), key); }

static bool is_false(const json_value *v) { return v && v->kind == JSON_BOOL && !v->b; }

static bool is_name(const json_value *v, const char *name) { return v && v->kind == JSON_STRING && str_is(v->s, name); }

static bool contains(str s, const char *part)
{
    for (size_t i = 0; i < s.n; i++)
        if (str_starts((str){s.s + i, s.n - i}, part)) return true;
    return false;
}

/* --- kind ---------------------------------------------------------------------------------------*/
static str architecture(const json_value *o)
{
    const json_value *archs = hf_present(o, "architectures");
    bool              named = archs && archs->kind == JSON_ARRAY && archs->n && archs->item[0].kind == JSON_STRING;
    return named ? archs->item[0].s : (str){0};
}

bool dflash_dir_matches(const json_value *o)
{
    str arch = architecture(o);
    return hf_present(o, "dflash_config") || hf_present(o, "dspark_config") || contains(arch, "DSpark") ||
           contains(arch, "DFlash") || is_name(hf_present(o, "speculators_model_type"), "dspark");
}

static bool read_kind(dflash_config *c, const source *s, const checkpoint *cp, err *e)
{
    str arch = architecture(s->top);
    if (contains(arch, "Laguna"))
        return err_set(e, ERR_INPUT, "this is a Laguna drafter ('%.*s'), which is not supported", STR_ARG(arch));
    bool spark = contains(arch, "DSpark") || dflash_tensor(c, cp, DFLASH_W1, 0) ||
                 is_name(hf_present(s->top, "speculators_model_type"), "dspark") ||
                 is_name(find(s, "projector_type"), "dspark") ||
                 hf_bool(at(s, "sample_from_anchor"), "sample_from_anchor");
    bool second = contains(arch, "DFlash2") || dflash_tensor(c, cp, DFLASH_BEFORE, 0);
    c->kind     = second ? DFLASH_2 : spark ? DFLASH_SPARK : DFLASH_1;
    c->gemma    = c->kind == DFLASH_SPARK && str_starts(arch, "Gemma4");
    if (c->gemma) c->layout = DFLASH_GEMMA_DIR;
    c->k_is_v = c->gemma && hf_bool(s->body, "attention_k_eq_v");
    return true;
}

/* --- the block ----------------------------------------------------------------------------------*/
/* Checks the number of draft tokens that the file states against the layout of the block. */
static bool check_tokens(const dflash_config *c, const source *s, err *e)
{
    const json_value *all = hf_present(hf_present(s->top, "speculators_config"), "proposal_methods");
    int               n, want = dflash_max_tokens(c);
    if (!all || all->kind != JSON_ARRAY || !all->n) return true;
    if (!hf_int(&all->item[0], "speculative_tokens", want, 1, DFLASH_MAX_BLOCK, &n, e)) return false;
    return n == want || err_set(e, ERR_FORMAT, "speculative_tokens is %d, but a block of %d rows drafts %d (%s)", n,
                                c->block, want, c->anchored ? "sample_from_anchor" : "no sample_from_anchor");
}

/* Without a key, the anchor's row of DSpark predicts a token, except in exports of speculators. */
static bool read_block(dflash_config *c, const source *s, err *e)
{
    const json_value *v     = find(s, "sample_from_anchor");
    bool              other = s->body != s->top || hf_present(s->top, "aux_hidden_state_layer_ids");
    if (v && v->kind != JSON_BOOL) return err_set(e, ERR_FORMAT, "sample_from_anchor is neither true nor false");
    c->anchored = c->kind == DFLASH_SPARK && (v ? v->b : !other);
    return hf_int(at(s, "block_size"), "block_size", DFLASH_DEFAULT_BLOCK, 2, DFLASH_MAX_BLOCK, &c->block, e) &&
           hf_int(at(s, "mask_token_id"), "mask_token_id", CONFIG_REQUIRED, 0, c->n_vocab - 1, &c->mask_id, e) &&
           check_tokens(c, s, e);
}

/* aux_hidden_state_layer_ids names the layers that the outputs go into. */
static bool read_captures(dflash_config *c, const source *s, err *e)
{
    const char       *key   = "target_layer_ids";
    const json_value *ids   = find(s, key);
    int               shift = 0;
    if (!ids && (ids = hf_present(s->top, "aux_hidden_state_layer_ids"))) key = "aux_hidden_state_layer_ids", shift = 1;
    if (!ids) return true;
    if (ids->kind != JSON_ARRAY || ids->n < 1 || ids->n > DFLASH_MAX_CAPTURES)
        return err_set(e, ERR_FORMAT, "%s is not a list of 1 to %d layers", key, DFLASH_MAX_CAPTURES);
    for (size_t i = 0; i < ids->n; i++) {
        if (ids->item[i].kind != JSON_INT) return err_set(e, ERR_FORMAT, "%s[%zu] is not an integer", key, i);
        if (!config_int(key, ids->item[i].i, c->kind == DFLASH_SPARK ? shift - 1 : 0, 1 << 16, &c->capture[i], e))
            return false;
        c->capture[i] -= shift;
    }
    c->n_captures = (int)ids->n;
    return true;
}

/* --- masks --------------------------------------------------------------------------------------*/
/* Reads which layers slide: layer_types, else use_swa. use_sliding_window false disables the window. */
static bool read_window(dflash_config *c, const source *s, err *e)
{
    const json_value *o   = s->body;
    bool              any = false, all = hf_bool(s->inner, "use_swa");
    if (hf_present(o, "layer_types") && !hf_layer_types(o, c->n_layers, c->sliding, e)) return false;
    for (int l = 0; l < c->n_layers; l++) any |= c->sliding[l];
    if (any && c->gemma) return err_set(e, ERR_FORMAT, "sliding layers like Gemma 4's are not supported");
    bool off = is_false(hf_present(o, "use_sliding_window")) && !all;
    for (int l = 0; l < c->n_layers; l++) c->sliding[l] = !off && (any ? c->sliding[l] : all);
    if (off || (!any && !all)) return true;
    const json_value *own = hf_present(s->inner, "swa_window_size");
    return hf_int(own ? s->inner : o, own ? "swa_window_size" : "sliding_window", CONFIG_REQUIRED, 1,
                  DFLASH_MAX_CONTEXT, &c->window, e);
}

static bool read_causal(dflash_config *c, const source *s, err *e)
{
    const json_value *first = hf_present(s->top, "is_causal"), *v = first ? first : hf_present(s->inner, "causal");
    if (v && v->kind != JSON_BOOL)
        return err_set(e, ERR_FORMAT, "%s is neither true nor false", first ? "is_causal" : "dflash_config.causal");
    c->causal_full    = v ? v->b : false;
    c->causal_sliding = v ? v->b : !hf_bool(at(s, "sliding_window_non_causal"), "sliding_window_non_causal");
    return true;
}

/* The layers of a native DSpark attend to everything, whatever keys its configuration has from the target's. */
static bool read_masks(dflash_config *c, const source *s, err *e)
{
    if (s->native && !c->gemma) return true;
    return read_window(c, s, e) && (s->native || read_causal(c, s, e));
}

/* --- rope ---------------------------------------------------------------------------------------*/
static bool read_yarn(dflash_config *c, const source *s, const json_value *rope, err *e)
{
    dflash_yarn *y = &c->yarn;
    if (!hf_present(rope, "factor")) return config_missing("factor of rope_type yarn", e);
    return hf_real(rope, "factor", 1, 1, 1e6, &y->factor, e) &&
           hf_int(rope, "original_max_position_embeddings", c->n_ctx ? c->n_ctx : CONFIG_REQUIRED, 1,
                  DFLASH_MAX_CONTEXT, &y->original, e) &&
           hf_real(rope, "beta_fast", 32, 0, 1e6, &y->fast, e) && hf_real(rope, "beta_slow", 1, 0, 1e6, &y->slow, e) &&
           (!hf_present(rope, "mscale") && !hf_present(rope, "mscale_all_dim")
                ? true
                : err_set(e, ERR_FORMAT, "rope scaled with mscale is not supported")) &&
           hf_real(hf_present(rope, "attention_factor") ? rope : s->body, "attention_factor", 0.1 * log(y->factor) + 1,
                   0, 1e6, &y->attention, e);
}

/* Reads how rope is scaled: not at all, or by YaRN. `name` is for messages. */
static bool read_scaling(dflash_config *c, const source *s, const json_value *rope, const char *name, err *e)
{
    static const char *const keys[] = {"rope_type", "type"};
    for (size_t i = 0; i < COUNT(keys); i++) {
        const json_value *v = hf_present(rope, keys[i]);
        if (is_name(v, "yarn")) return read_yarn(c, s, rope, e);
        if (v && !is_name(v, "default"))
            return err_set(e, ERR_FORMAT, "%s.%s is '%.*s', expected default or yarn", name, keys[i],
                           STR_ARG(v->kind == JSON_STRING ? v->s : (str){0}));
    }
    if (hf_present(rope, "full_attention") || hf_present(rope, "sliding_attention"))
        return err_set(e, ERR_FORMAT, "%s differ by the kind of layer, which is not supported", name);
    return true;
}

/* Rotates a part of the pairs, with the frequencies of whole heads. */
static bool read_gemma_rope(dflash_config *c, const source *s, err *e)
{
    const json_value *rope = hf_present(hf_present(s->body, "rope_parameters"), "full_attention");
    const json_value *kind = hf_present(rope, "rope_type");
    if (!rope) return config_missing("rope_parameters.full_attention", e);
    if (kind && !is_name(kind, "proportional") && !is_name(kind, "default"))
        return err_set(e, ERR_FORMAT, "rope_parameters.full_attention.rope_type is neither proportional nor default");
    return hf_real(rope, "partial_rotary_factor", 1, 0, 1, &c->rope_part, e) &&
           hf_real(rope, "rope_theta", 1e6, 1, 1e12, &c->theta, e);
}

static bool read_rope(dflash_config *c, const source *s, err *e)
{
    const json_value *o    = s->body;
    const json_value *rope = hf_present(o, "rope_parameters"), *old = hf_present(o, "rope_scaling");
    double            part, part_top;
    c->rope_part = 1;
    if (c->gemma) return read_gemma_rope(c, s, e);
    if (!read_scaling(c, s, rope, "rope_parameters", e) || !read_scaling(c, s, old, "rope_scaling", e) ||
        !hf_real(o, "partial_rotary_factor", 1, 0, 1, &part_top, e) ||
        !hf_real(rope, "partial_rotary_factor", part_top, 0, 1, &part, e) ||
        !hf_real(hf_present(rope, "rope_theta") ? rope : o, "rope_theta", 1e6, 1, 1e12, &c->theta, e))
        return false;
    return part == 1 || s->native ||
           err_set(e, ERR_FORMAT, "partial_rotary_factor is %g, which is not supported", part);
}

/* --- sizes --------------------------------------------------------------------------------------*/
/* Checks a size of the configuration against the tensor. */
static bool agrees(const json_value *o, const char *key, int is, err *e)
{
    int said;
    if (!hf_int(o, key, is, 0, INT32_MAX, &said, e)) return false;
    return said == is || err_set(e, ERR_FORMAT, "%s is %d, but the tensors are made for %d", key, said, is);
}

static bool read_sizes(dflash_config *c, const source *s, const checkpoint *cp, err *e)
{
    const json_value *o      = s->body;
    bool              shared = c->gemma && c->k_is_v;
    return dflash_read_sizes(c, cp, e) && agrees(o, "hidden_size", c->n_embd, e) &&
           agrees(o, "intermediate_size", c->n_ff, e) && agrees(o, "num_attention_heads", c->n_heads, e) &&
           agrees(o, shared ? "num_global_key_value_heads" : "num_key_value_heads", c->n_kv_heads, e) &&
           agrees(o, c->gemma ? "global_head_dim" : "head_dim", c->head_dim, e);
}

/* --- heads --------------------------------------------------------------------------------------*/
static bool read_spark(dflash_config *c, const source *s, err *e)
{
    const json_value *type = find(s, "markov_head_type");
    if (type && !is_name(type, "vanilla"))
        return err_set(e, ERR_FORMAT, "markov_head_type is '%.*s', and only vanilla is supported",
                       STR_ARG(type->kind == JSON_STRING ? type->s : (str){0}));
    if (is_false(find(s, "enable_confidence_head"))) c->conf = false;
    return agrees(at(s, "markov_rank"), "markov_rank", c->rank, e);
}

static bool read_pairs(dflash_config *c, const source *s, err *e)
{
    return agrees(at(s, "selector_rank"), "selector_rank", c->rank, e) &&
           agrees(at(s, "conv_kernel_size"), "conv_kernel_size", c->n_taps, e) &&
           agrees(at(s, "conv_group_size"), "conv_group_size", c->group, e) &&
           hf_int(at(s, "selector_top_k"), "selector_top_k", DEFAULT_TOP, 1, SAMPLE_TOP_MAX, &c->n_top, e);
}

/* DSpark's embeddings are used as stored, except those of a drafter like Gemma 4, and only that has a softcap. DFlash
 * has what the target has, unless the file says otherwise. */
static bool read_scales(dflash_config *c, const source *s, err *e)
{
    const char *cap = "final_logit_softcapping", *embed = "input_embedding_scale";
    const char *factor = hf_present(s->inner, "output_multiplier") || hf_present(s->top, "output_multiplier")
                             ? "output_multiplier"
                             : "logit_scale";
    bool        capped = (c->kind != DFLASH_SPARK || c->gemma) && find(s, cap);
    c->softcap         = c->kind == DFLASH_1 ? -1 : 0;
    c->embed_scale     = c->gemma ? sqrt(c->n_embd) : c->kind == DFLASH_1 ? 0 : 1;
    return (!capped || hf_real(at(s, cap), cap, 0, 0, 1e6, &c->softcap, e)) &&
           (!find(s, embed) || hf_real(at(s, embed), embed, 1, 1e-6, 1e6, &c->embed_scale, e)) &&
           hf_real(at(s, factor), factor, 1, -1e6, 1e6, &c->logit_scale, e);
}

static bool read_heads(dflash_config *c, const source *s, err *e)
{
    return (c->kind != DFLASH_SPARK || read_spark(c, s, e)) && (c->kind != DFLASH_2 || read_pairs(c, s, e)) &&
           read_scales(c, s, e);
}

/* --- all ----------------------------------------------------------------------------------------*/
static bool refuse_unknown(const source *s, err *e)
{
    if (hf_present(s->top, "quantization_config"))
        return err_set(e, ERR_FORMAT,
                       "its weights are quantised in a way that only other engines read (quantization_config)");
    if (hf_bool(s->body, "attention_bias"))
        return err_set(e, ERR_FORMAT, "attention_bias is true, which is not supported");
    return true;
}

static source find_source(const json_value *o)
{
    const json_value *spark = hf_present(o, "dspark_config"), *body = hf_present(o, "transformer_layer_config");
    return (source){.top    = o,
                    .inner  = spark ? spark : hf_present(o, "dflash_config"),
                    .body   = body ? body : o,
                    .native = !body && contains(architecture(o), "DSpark") && hf_present(o, "target_layer_ids")};
}

bool dflash_read_dir(dflash_config *c, const checkpoint *cp, err *e)
{
    source            s = find_source(cp->config);
    const json_value *o = s.body;
    c->layout           = DFLASH_DIR;
    c->prefix           = tensor_find(cp->tensors, STR("model.fc.weight")) ? "model." : "";
    c->own_embed        = !is_false(hf_present(s.top, "has_embed_tokens"));
    c->tied             = hf_bool(s.top, "tie_word_embeddings");
    return refuse_unknown(&s, e) && read_kind(c, &s, cp, e) &&
           hf_int(o, "num_hidden_layers", CONFIG_REQUIRED, 1, DFLASH_MAX_LAYERS, &c->n_layers, e) &&
           read_sizes(c, &s, cp, e) && hf_int(o, "vocab_size", CONFIG_REQUIRED, 2, DFLASH_MAX_VOCAB, &c->n_vocab, e) &&
           hf_int(s.top, "num_target_layers", 0, 0, 1 << 16, &c->n_target_layers, e) &&
           hf_int(o, "max_position_embeddings", 0, 0, DFLASH_MAX_CONTEXT, &c->n_ctx, e) && read_block(c, &s, e) &&
           read_captures(c, &s, e) && read_masks(c, &s, e) && read_rope(c, &s, e) &&
           hf_real(o, "rms_norm_eps", 1e-6, 0, 1, &c->eps, e) && read_heads(c, &s, e);
}
