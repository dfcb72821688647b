#include "base/mem.h"
#include "model/config_value.h"
#include "model/convert_plan.h"
#include "model/dflash_config.h"

enum { DEFAULT_CONTEXT = 131072 };

/* Refuses configurations that GGUF keys cannot express. */
static bool check_config(const dflash_config *c, err *e)
{
    if (!c->n_captures) return config_missing("target_layer_ids", e);
    if (c->n_features % c->n_captures)
        return err_set(e, ERR_FORMAT, "features of width %d do not match %d layers", c->n_features, c->n_captures);
    return true;
}

/* Rope and factors, where they are not the defaults. */
static void put_scales(convert_plan *p, const dflash_config *c)
{
    const dflash_yarn *y = &c->yarn;
    if (c->embed_scale > 0) plan_f32(p, "embedding_scale", c->embed_scale);
    if (c->logit_scale != 1) plan_f32(p, "logit_scale", c->logit_scale);
    if (c->rope_part < 1) plan_f32(p, "rope.partial_rotary_factor", c->rope_part);
    if (y->factor <= 0) return;
    gguf_put_str(p->w, "dflash.rope.scaling.type", STR("yarn"));
    plan_f32(p, "rope.scaling.factor", y->factor);
    plan_u32(p, "rope.scaling.original_context_length", y->original);
    plan_f32(p, "rope.scaling.yarn_beta_fast", y->fast);
    plan_f32(p, "rope.scaling.yarn_beta_slow", y->slow);
    plan_f32(p, "rope.scaling.attn_factor", y->attention);
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
    if (c->kind == DFLASH_SPARK) gguf_put_bool(p->w, "dflash.sample_from_anchor", c->anchored);
    if (c->kind == DFLASH_2) plan_u32(p, "selector_top_k", c->n_top);
    put_scales(p, c);
    if (!c->window) return;
    if (c->causal_sliding != (c->causal_full || c->kind != DFLASH_2)) /* not what the reader assumes */
        gguf_put_bool(p->w, "dflash.attention.sliding_causal", c->causal_sliding);
    plan_u32(p, "attention.sliding_window", c->window);
    plan_bools(p, "attention.sliding_window_pattern", c->sliding, c->n_layers);
}

/* Plans the tensor of a role under GGUF's name; the shape is that of the configuration. */
static bool put_role(convert_plan *p, const dflash_config *c, dflash_role r, int l, int64_t d0, int64_t d1, err *e)
{
    char from[DFLASH_NAME_MAX], to[DFLASH_NAME_MAX];
    dflash_tensor_name(c->layout, c->prefix, r, l, from);
    dflash_tensor_name(DFLASH_LLAMA, "", r, l, to);
    return plan_tensor(p, from, to, d0, d1, e);
}

/* Plans the tensor of a role in whatever shape it has, or does nothing when it is missing. */
static bool put_if_there(convert_plan *p, const dflash_config *c, dflash_role r, int l, err *e)
{
    char          to[DFLASH_NAME_MAX];
    const tensor *t = dflash_tensor(c, p->cp, r, l);
    dflash_tensor_name(DFLASH_LLAMA, "", r, l, to);
    return !t || plan_found(p, t, to, e);
}

/* Plans a kernel of a convolution. */
static bool put_base(convert_plan *p, const dflash_config *c, dflash_role r, int l, err *e)
{
    char          from[DFLASH_NAME_MAX];
    const tensor *t = dflash_tensor(c, p->cp, r, l);
    dflash_tensor_name(c->layout, c->prefix, r, l, from);
    if (!t) return err_set(e, ERR_FORMAT, "tensor '%s' is missing", from);
    if (t->dim[0] != c->n_embd || t->dim[1] != c->n_taps || t->dim[2] != 2 || t->dim[3] != 1)
        return err_set(e, ERR_FORMAT, "tensor '%s' is not a pair of %d taps of %d numbers", from, c->n_taps, c->n_embd);
    return put_if_there(p, c, r, l, e);
}

typedef struct {
    dflash_role role;
    int64_t     d0, d1; /* shape */
} planned_role;

static bool put_roles(convert_plan *p, const dflash_config *c, const planned_role *role, size_t n, int l, err *e)
{
    for (size_t i = 0; i < n; i++)
        if (!put_role(p, c, role[i].role, l, role[i].d0, role[i].d1, e)) return false;
    return true;
}

static bool put_layer(convert_plan *p, const dflash_config *c, int l, err *e)
{
    int64_t            H = c->n_embd, D = c->head_dim, Q = c->n_heads * D, K = c->n_kv_heads * D, F = c->n_ff;
    int64_t            G = c->group ? H / c->group : 0, W = 2 * c->n_taps * G;
    const planned_role layer[] = {
        {DFLASH_ATTN_NORM, H, 1}, {DFLASH_Q, H, Q},       {DFLASH_K, H, K},    {DFLASH_O, Q, H},  {DFLASH_Q_NORM, D, 1},
        {DFLASH_K_NORM, D, 1},    {DFLASH_FF_NORM, H, 1}, {DFLASH_GATE, H, F}, {DFLASH_UP, H, F}, {DFLASH_DOWN, F, H},
    };
    const planned_role v       = {DFLASH_V, H, K};
    const planned_role gemma[] = {{DFLASH_POST_ATTN, H, 1}, {DFLASH_POST_FF, H, 1}, {DFLASH_SCALE, 1, 1}};
    const planned_role conv[]  = {{DFLASH_ATTN_CONV, H, W}, {DFLASH_FF_CONV, H, W}};
    return put_roles(p, c, layer, COUNT(layer), l, e) && (c->k_is_v || put_roles(p, c, &v, 1, l, e)) &&
           (!c->gemma || put_roles(p, c, gemma, COUNT(gemma), l, e)) &&
           (c->kind != DFLASH_2 || (put_roles(p, c, conv, COUNT(conv), l, e) &&
                                    put_base(p, c, DFLASH_ATTN_BASE, l, e) && put_base(p, c, DFLASH_FF_BASE, l, e)));
}

/* Plans the ids of a reduced vocabulary, which directories have as offsets from the row number. */
static bool put_ids(convert_plan *p, const dflash_config *c, err *e)
{
    const tensor *t = dflash_tensor(c, p->cp, DFLASH_D2T, 0), *head = dflash_tensor(c, p->cp, DFLASH_HEAD, 0);
    if (!t) return true;
    int n = head && head->dim[1] <= c->n_vocab ? (int)head->dim[1] : 0;
    if (!n || !tensor_is_ints(t, n))
        return err_set(e, ERR_FORMAT, "'d2t' is not a list of integers, one per row of the output matrix");
    int32_t *id = arena_try(&p->mem, (size_t)n, sizeof *id);
    if (!id) return err_set(e, ERR_UNAVAILABLE, "no memory for 'd2t'");
    for (int i = 0; i < n; i++) {
        int64_t offset = tensor_int(t, (size_t)i);
        if (offset <= -c->n_vocab || offset >= c->n_vocab || offset + i < 0 || offset + i >= c->n_vocab)
            return err_set(e, ERR_FORMAT, "'d2t' maps row %d outside the vocabulary of %d tokens", i, c->n_vocab);
        id[i] = (int32_t)(offset + i);
    }
    return plan_use(p, t) && plan_made_ids(p, "d2t", id, n, e);
}

/* Plans its own tables. Most drafters borrow the target's. A table that the configuration says is not to be used is
 * left out. */
static bool put_own_tables(convert_plan *p, const dflash_config *c, err *e)
{
    return (!c->own_embed || put_if_there(p, c, DFLASH_EMBED, 0, e)) && put_if_there(p, c, DFLASH_HEAD, 0, e) &&
           put_ids(p, c, e);
}

static bool put_pairs(convert_plan *p, const dflash_config *c, err *e)
{
    const tensor      *head  = dflash_tensor(c, p->cp, DFLASH_HEAD, 0);
    int64_t            n_out = head ? head->dim[1] : c->n_vocab, r = c->rank, H = c->n_embd;
    const planned_role spark[] = {{DFLASH_W1, r, c->n_vocab}, {DFLASH_W2, r, n_out}};
    const planned_role conf    = {DFLASH_CONF, H + (c->conf_pairs ? r : 0), 1};
    const planned_role pair[]  = {{DFLASH_BEFORE, r, c->n_vocab}, {DFLASH_AFTER, r, c->n_vocab}, {DFLASH_MIDDLE, H, r}};
    if (!c->rank) return true;
    if (c->kind == DFLASH_2) return put_roles(p, c, pair, COUNT(pair), 0, e);
    return put_roles(p, c, spark, COUNT(spark), 0, e) &&
           (!c->conf || (put_roles(p, c, &conf, 1, 0, e) && put_if_there(p, c, DFLASH_CONF_BIAS, 0, e)));
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
    const planned_role first[] = {
        {DFLASH_FC, c.n_features, c.n_embd}, {DFLASH_HIDDEN_NORM, c.n_embd, 1}, {DFLASH_NORM, c.n_embd, 1}};
    if (!put_roles(p, &c, first, COUNT(first), 0, e)) return false;
    for (int l = 0; l < c.n_layers; l++)
        if (!put_layer(p, &c, l, e)) return false;
    return put_pairs(p, &c, e) && put_own_tables(p, &c, e);
}
