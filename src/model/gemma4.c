/* The Gemma 4 text decoder. H wide, L layers; a layer is sliding (S) or full (F) in its attention.
 *
 *   x0 = E[token] * sqrt(H)
 *   layer:  n = N_in(x)
 *           q = rope(N_q(Wq n))   k = rope(N_k(Wk n))   v = N(Wv n), or N(Wk n) where K is V     N: per head
 *           u = x + N_post_attn(Wo attention(q, k, v))                                 attention scale is 1
 *           f = MLP(N_pre_ff(u))
 *           with experts: f = N_post_ff_1(f) + N_post_ff_2(sum of the chosen experts(N_pre_ff_2(u)))
 *           v = u + N_post_ff(f)
 *           with per-layer embeddings: v = v + N_ple(Wp(gelu(Wg v) * p[layer]))
 *           x = v * layer_scalar
 *   y = N(x), logits = cap * tanh(E y / cap)
 *
 * All norms are RMS norms. Trailing layers may have no K/V: they read the K/V of the last layer of their kind that
 * has some. The per-layer inputs are made once per step: p = (N_p(M x0 / sqrt(H)) + E_ple[token] * sqrt(P)) / sqrt(2).
 * Scale factors before a norm are folded into its epsilon, those after it into its weight. */
#include "model/gemma4.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "model/decoder.h"
#include "model/gemma4_roles.h"
#include "model/vision.h"
#include "ops/joined.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    weight *q, *k, *v, *o; /* k, v NULL: the layer has no K/V of its own */
    weight *gate, *up, *down;
    weight *router, *exp_gate_up, *exp_gate, *exp_up, *exp_down; /* exp_gate_up, or exp_gate and exp_up */
    weight *ple_gate, *ple_proj;
    dev     n_in, n_post_attn, n_pre_ff, n_post_ff, n_q, n_k;
    dev     n_router, expert_scale, n_pre_ff_2, n_post_ff_1, n_post_ff_2;
    dev     n_ple;
    float   scalar;
    int     kv_class, kv_layer; /* the K/V that it reads; its own when k is not NULL */
} layer;

/* Scratch of a step: [max_rows][n] floats unless noted. */
typedef struct {
    dev u, attn, f;                             /* [H] */
    dev n_router, n_exp;                        /* [H]: u, normed for the router and for the experts */
    dev q, k, v, heads;                         /* widest layer's heads */
    dev gate, up;                               /* [n_ff] */
    dev exp_logits, exp_id, exp_w;              /* [n_experts], [n_used] */
    dev exp_gate_up, exp_act, exp_out, exp_sum; /* [n_used][2 n_ff_expert], ..., [n_used][H], [H] */
    dev ple, ple_token, ple_gate;               /* [L][P], [L][P], [P]; ple_token is free after ple is made */
} scratch;

typedef struct {
    decoder       d; /* first: a decoder * is a gemma4 * */
    gemma4_config c;
    weight       *ple_embed, *ple_model;
    dev           n_ple_model;
    rope_params   rope_full, rope_sliding;
    layer        *layers;
    scratch       s;
} gemma4;

/* --- binding ------------------------------------------------------------------------------------*/
typedef struct {
    gemma4      *m;
    role_binder *g;
} loader;

static bool load_attention(loader *ld, layer *y, int l, err *e)
{
    const gemma4_config *c = &ld->m->c;
    if (!role_vector(ld->g, &y->n_in, ROLE_ATTN_NORM, l, 1, e) ||
        !role_vector(ld->g, &y->n_post_attn, ROLE_POST_ATTN_NORM, l, 1, e) ||
        !role_vector(ld->g, &y->n_q, ROLE_Q_NORM, l, 1, e) || !role_matrix(ld->g, &y->q, ROLE_ATTN_Q, l, e) ||
        !role_matrix(ld->g, &y->o, ROLE_ATTN_O, l, e))
        return false;
    if (gemma4_kv_donor(c, l) != l) return true; /* files may hold K/V tensors of such layers: not used */
    return role_vector(ld->g, &y->n_k, ROLE_K_NORM, l, 1, e) && role_matrix(ld->g, &y->k, ROLE_ATTN_K, l, e) &&
           (c->k_is_v[l] || role_matrix(ld->g, &y->v, ROLE_ATTN_V, l, e));
}

static bool load_mlp(loader *ld, layer *y, int l, err *e)
{
    return role_vector(ld->g, &y->n_pre_ff, ROLE_FF_NORM, l, 1, e) &&
           role_vector(ld->g, &y->n_post_ff, ROLE_POST_FF_NORM, l, 1, e) &&
           role_matrix(ld->g, &y->gate, ROLE_FF_GATE, l, e) && role_matrix(ld->g, &y->up, ROLE_FF_UP, l, e) &&
           role_matrix(ld->g, &y->down, ROLE_FF_DOWN, l, e) && role_scalar(ld->g, &y->scalar, ROLE_LAYER_SCALAR, l, e);
}

static bool load_moe(loader *ld, layer *y, int l, err *e)
{
    const gemma4_config *c = &ld->m->c;
    if (!role_vector(ld->g, &y->n_router, ROLE_ROUTER_SCALE, l, 1 / sqrtf((float)c->n_embd), e) ||
        !role_matrix(ld->g, &y->router, ROLE_ROUTER, l, e) ||
        !role_vector(ld->g, &y->expert_scale, ROLE_EXPERT_SCALE, l, 1, e) ||
        !role_vector(ld->g, &y->n_pre_ff_2, ROLE_FF_NORM_2, l, 1, e) ||
        !role_vector(ld->g, &y->n_post_ff_1, ROLE_POST_FF_NORM_1, l, 1, e) ||
        !role_vector(ld->g, &y->n_post_ff_2, ROLE_POST_FF_NORM_2, l, 1, e) ||
        !role_matrix(ld->g, &y->exp_down, ROLE_EXP_DOWN, l, e))
        return false;
    if (ld->g->b.cp->gguf && role_find(ld->g, ROLE_EXP_GATE, l))
        return role_matrix(ld->g, &y->exp_gate, ROLE_EXP_GATE, l, e) &&
               role_matrix(ld->g, &y->exp_up, ROLE_EXP_UP, l, e);
    return role_matrix(ld->g, &y->exp_gate_up, ROLE_EXP_GATE_UP, l, e);
}

static bool load_ple(loader *ld, layer *y, int l, err *e)
{
    return role_matrix(ld->g, &y->ple_gate, ROLE_PLE_GATE, l, e) &&
           role_matrix(ld->g, &y->ple_proj, ROLE_PLE_PROJ, l, e) &&
           role_vector(ld->g, &y->n_ple, ROLE_PLE_NORM, l, 1, e);
}

static bool load_head(loader *ld, err *e)
{
    gemma4       *m = ld->m;
    const tensor *t =
        tensor_find(ld->g->b.cp->tensors, ld->g->b.cp->gguf ? STR("output.weight") : STR("lm_head.weight"));
    const json_value *tied = json_get(ld->g->b.cp->config, "tie_word_embeddings");
    bool              own  = ld->g->b.cp->gguf ? t != NULL : tied && tied->kind == JSON_BOOL && !tied->b;
    if (!own) {
        m->d.head = m->d.embed;
        return true;
    }
    if (!t) return err_set(e, ERR_FORMAT, "tensor 'lm_head.weight' is missing, and tie_word_embeddings is false");
    return bind_matrix(&ld->g->b, &m->d.head, t, m->c.n_embd, m->c.n_vocab, 1, e);
}

static bool load_all(decoder *d, role_binder *g, err *e)
{
    gemma4              *m  = (gemma4 *)d;
    const gemma4_config *c  = &m->c;
    loader              *ld = &(loader){m, g};
    if (!role_matrix(ld->g, &m->d.embed, ROLE_EMBED, 0, e) || !load_head(ld, e) ||
        !role_vector(ld->g, &m->d.n_out, ROLE_OUT_NORM, 0, 1, e))
        return false;
    if (c->n_ple && (!role_matrix(ld->g, &m->ple_embed, ROLE_PLE_EMBED, 0, e) ||
                     !role_matrix(ld->g, &m->ple_model, ROLE_PLE_MODEL, 0, e) ||
                     !role_vector(ld->g, &m->n_ple_model, ROLE_PLE_MODEL_NORM, 0, 1, e)))
        return false;
    for (int l = 0; l < c->n_layers; l++) {
        layer *y = &m->layers[l];
        if (!load_attention(ld, y, l, e) || !load_mlp(ld, y, l, e)) return false;
        if (c->n_experts && !load_moe(ld, y, l, e)) return false;
        if (c->n_ple && !load_ple(ld, y, l, e)) return false;
    }
    return true;
}

/* --- rope, pages, scratch -----------------------------------------------------------------------*/
static bool init_rope(gemma4 *m, const checkpoint *cp, err *e)
{
    const gemma4_config *c         = &m->c;
    bool                 have_full = false, have_sliding = false;
    for (int l = 0; l < c->n_layers; l++) {
        int D = c->head_dim[l];
        if (c->sliding[l] && !have_sliding) {
            have_sliding = true;
            if (!bind_rope(&m->d.own, &m->rope_sliding, D, c->theta_sliding, c->rope_factor_sliding, 1, NULL, e))
                return false;
        } else if (!c->sliding[l] && !have_full) {
            float *divisor;
            have_full = true;
            if (!bind_rope_divisors(cp, D, &divisor, e)) return false;
            bool ok =
                bind_rope(&m->d.own, &m->rope_full, D, c->theta_full, c->rope_factor_full, c->rotary_part, divisor, e);
            mem_free(divisor);
            if (!ok) return false;
        }
    }
    return true;
}

/* The page classes of a model, and the class and index of each layer's K/V. */
typedef struct {
    kv_class_spec spec[KV_MAX_CLASSES];
    int           n;
    int           cls[GEMMA4_MAX_LAYERS], at[GEMMA4_MAX_LAYERS];
} kv_plan;

/* Returns the last layer of a kind that has K/V of its own: the one whose K/V an MTP assistant reads. */
static int read_layer(const gemma4_config *c, bool sliding)
{
    int last = -1;
    for (int l = 0; l < c->n_layers; l++)
        if (c->sliding[l] == sliding && gemma4_kv_donor(c, l) == l) last = l;
    return last;
}

/* Makes a class of the full layers and one of the sliding layers. K/V that an MTP assistant reads is never below q8_0,
 * whether there is an assistant or not, so that the text does not depend on it. Where the type is below, the layer is a
 * class of its own. */
static void plan_kv(kv_plan *p, const gemma4_config *c, const kv_types *types)
{
    int class_of[2][2] = {{-1, -1}, {-1, -1}}; /* [sliding][read by assistants] */
    int read[2]        = {read_layer(c, false), read_layer(c, true)};
    p->n               = 0;
    for (int l = 0; l < c->n_layers; l++) {
        int         kind = c->sliding[l], d = gemma4_kv_donor(c, l);
        cache_types type = kind ? types->sliding : types->full, raised = cache_types_at_least(type, CACHE_Q8_0);
        bool        apart = d == read[kind] && !cache_types_equal(type, raised);
        int        *cls   = &class_of[kind][apart];
        if (*cls < 0) {
            *cls          = p->n;
            p->spec[p->n] = (kv_class_spec){.n_heads    = c->n_heads,
                                            .n_kv_heads = c->n_kv_heads[l],
                                            .head_dim   = c->head_dim[l],
                                            .types      = apart ? raised : type,
                                            .window     = kind ? c->window : 0};
            if (!kind) p->spec[p->n].sparse = types->sparse;
            p->n++;
        }
        p->cls[l] = *cls;
        p->at[l]  = d == l ? p->spec[*cls].n_layers++ : p->at[d];
    }
}

static int gemma4_kv_classes(const target *t, const kv_types *types, kv_class_spec out[KV_MAX_CLASSES])
{
    kv_plan p;
    plan_kv(&p, &((const gemma4 *)t)->c, types);
    memcpy(out, p.spec, (size_t)p.n * sizeof *out);
    return p.n;
}

static void log_raised(bool sliding, cache_types asked, cache_types got)
{
    char a[CACHE_TYPES_TEXT], b[CACHE_TYPES_TEXT];
    if (!cache_types_equal(asked, got))
        log_event(LOG_INFO, "kv", "the last %s layer stores K/V as %s instead of %s: MTP assistants read it",
                  sliding ? "sliding" : "full", cache_types_text(got, a), cache_types_text(asked, b));
}

/* Returns the layer whose K/V an assistant reads in its full (kind 0) or sliding (1) layers. */
static kv_donor donor_of(const gemma4_config *c, const kv_plan *p, int kind)
{
    int l = read_layer(c, kind);
    if (l < 0) return (kv_donor){0};
    return (kv_donor){true, p->cls[l], p->at[l], c->n_kv_heads[l], c->head_dim[l], kind ? c->window : 0};
}

static void gemma4_set_kv(target *t, const kv_types *types)
{
    gemma4              *m = (gemma4 *)t;
    const gemma4_config *c = &m->c;
    kv_plan              p;
    plan_kv(&p, c, types);
    for (int l = 0; l < c->n_layers; l++) {
        m->layers[l].kv_class = p.cls[l];
        m->layers[l].kv_layer = p.at[l];
    }
    for (int kind = 0; kind < 2; kind++) {
        kv_donor *k = &t->donor[kind];
        *k          = donor_of(c, &p, kind);
        if (k->there) log_raised(kind, kind ? types->sliding : types->full, p.spec[k->kv_class].types);
    }
}

static int max_of(const int *v, int n)
{
    int max = 0;
    for (int i = 0; i < n; i++)
        if (v[i] > max) max = v[i];
    return max;
}

static bool init_scratch(decoder *d, const checkpoint *cp, err *e)
{
    gemma4              *m = (gemma4 *)d;
    const gemma4_config *c = &m->c;
    scratch             *s = &m->s;
    size_t               H = (size_t)c->n_embd, F = (size_t)max_of(c->n_ff, c->n_layers), FE = (size_t)c->n_ff_expert;
    size_t               heads = (size_t)c->n_heads * (size_t)max_of(c->head_dim, c->n_layers), K = (size_t)c->n_used;
    size_t               LP = (size_t)c->n_layers * (size_t)c->n_ple;
    return init_rope(m, cp, e) && decoder_take_floats(d, &s->u, H, e) && decoder_take_floats(d, &s->attn, H, e) &&
           decoder_take_floats(d, &s->f, H, e) && decoder_take_floats(d, &s->q, heads, e) &&
           decoder_take_floats(d, &s->k, heads, e) && decoder_take_floats(d, &s->v, heads, e) &&
           decoder_take_floats(d, &s->heads, heads, e) && decoder_take_floats(d, &s->gate, F, e) &&
           decoder_take_floats(d, &s->up, F, e) &&
           (!K ||
            (decoder_take_floats(d, &s->exp_logits, (size_t)c->n_experts, e) &&
             decoder_take_floats(d, &s->exp_id, K, e) && decoder_take_floats(d, &s->exp_w, K, e) &&
             decoder_take_floats(d, &s->exp_gate_up, K * 2 * FE, e) && decoder_take_floats(d, &s->exp_act, K * FE, e) &&
             decoder_take_floats(d, &s->exp_out, K * H, e) && decoder_take_floats(d, &s->exp_sum, H, e) &&
             decoder_take_floats(d, &s->n_router, H, e) && decoder_take_floats(d, &s->n_exp, H, e))) &&
           (!LP || (decoder_take_floats(d, &s->ple, LP, e) && decoder_take_floats(d, &s->ple_token, LP, e) &&
                    decoder_take_floats(d, &s->ple_gate, (size_t)c->n_ple, e)));
}

static queue_limits limits_of(const gemma4 *m)
{
    const gemma4_config *c     = &m->c;
    int                  heads = c->n_heads * max_of(c->head_dim, c->n_layers), F = max_of(c->n_ff, c->n_layers);
    int                  wide[] = {c->n_embd, heads, F, c->n_ff_expert, c->n_ple};
    return (queue_limits){.max_rows         = m->d.t.max_rows,
                          .max_in           = max_of(wide, COUNT(wide)),
                          .max_expert_slots = c->n_used,
                          .n_experts        = c->n_experts,
                          .max_vocab        = c->n_vocab,
                          .max_expert_in    = c->n_ff_expert,
                          .max_expert_x     = c->n_embd};
}

/* --- the forward pass ---------------------------------------------------------------------------*/
static void per_layer_inputs(gemma4 *m, const step_rows *r)
{
    const gemma4_config *c = &m->c;
    const ops           *o = m->d.o;
    queue               *q = m->d.t.q;
    int                  P = c->n_ple, n = r->n_rows;
    o->embed(q, m->s.ple_token, m->ple_embed, r->token, n, sqrtf((float)P));
    o->matmul(q, m->s.ple, m->ple_model, m->d.x, n);
    o->rms_norm(q, m->s.ple, m->s.ple, m->n_ple_model, n * c->n_layers, P, c->eps * (float)c->n_embd);
    o->add(q, m->s.ple, m->s.ple, m->s.ple_token, (size_t)n * (size_t)c->n_layers * (size_t)P, 0.70710678118654752f);
}

/* q, k and v of s.n; q stays in s.q, k and v go into the cache. */
static void make_heads(gemma4 *m, const layer *y, int l, const kv_class *kv, const step_rows *r)
{
    const gemma4_config *c     = &m->c;
    dev                  to[]  = {m->s.q, m->s.k, m->s.v};
    const weight        *w[]   = {y->q, y->k, y->v};
    head_rows            heads = {.q       = m->s.q,
                                  .w_q     = y->n_q,
                                  .rope    = c->sliding[l] ? m->rope_sliding : m->rope_full,
                                  .n_heads = c->n_heads,
                                  .layer   = y->kv_layer,
                                  .c       = kv,
                                  .eps     = c->eps};
    if (y->k) {
        heads.k      = m->s.k;
        heads.v      = m->s.v;
        heads.w_k    = y->n_k;
        heads.norm_v = true;
        heads.k_as_v = !y->v; /* before K's own norm */
    }
    ops_matmuls(m->d.o, m->d.t.q, to, w, !y->k ? 1 : !y->v ? 2 : 3, m->d.n, r->n_rows);
    ops_heads(m->d.o, m->d.t.q, &heads, r);
}

/* u = x + N_post_attn(Wo attention(q)); then the norms of u that the blocks after this one read. narrowed: r are the
 * rows that are read; then no row sees ahead. */
static void attention_block(gemma4 *m, const layer *y, int l, const kv_class *kv, const step_rows *r, bool narrowed)
{
    const gemma4_config *c  = &m->c;
    const ops           *o  = m->d.o;
    queue               *q  = m->d.t.q;
    int                  n  = r->n_rows;
    norm_rows            to = {.y      = m->s.u,
                               .res    = m->d.x,
                               .z      = m->s.attn,
                               .w      = y->n_post_attn,
                               .n      = c->n_embd,
                               .scale  = 1,
                               .eps    = c->eps,
                               .n_outs = c->n_experts ? 3 : 1,
                               .out    = {{m->d.n, y->n_pre_ff}}};
    if (c->n_experts) {
        to.out[1].y = m->s.n_router, to.out[1].w = y->n_router;
        to.out[2].y = m->s.n_exp, to.out[2].w = y->n_pre_ff_2;
    }
    step_rows seen = *r;
    if (c->sliding[l] && !narrowed) seen.last = m->d.ahead;
    o->attention(q, m->s.heads, m->s.q, c->n_heads, kv, y->kv_layer, &seen, 1.0f, c->sliding[l] ? c->window : 0);
    o->matmul(q, m->s.attn, y->o, m->s.heads, n);
    ops_norms(o, q, &to, n);
}

/* f = MLP(n), n = N_pre_ff(u) */
static void dense_block(gemma4 *m, const layer *y, int n)
{
    const ops *o = m->d.o;
    queue     *q = m->d.t.q;
    ops_gate_up(o, q, m->s.gate, m->s.up, y->gate, y->up, m->d.n, n, ACT_GELU_TANH);
    o->matmul(q, m->s.f, y->down, m->s.gate, n);
}

/* exp_out: the outputs of the chosen experts for N_pre_ff_2(u); the router reads N_router(u) */
static void expert_block(gemma4 *m, const layer *y, int n)
{
    const gemma4_config *c  = &m->c;
    const ops           *o  = m->d.o;
    queue               *q  = m->d.t.q;
    expert_rows          to = {.logits       = m->s.exp_logits,
                               .expert_scale = y->expert_scale,
                               .id           = m->s.exp_id,
                               .w            = m->s.exp_w,
                               .y            = m->s.exp_out,
                               .x            = m->s.n_exp,
                               .inner        = m->s.exp_gate_up,
                               .act          = m->s.exp_act,
                               .gate_up      = y->exp_gate_up,
                               .gate         = y->exp_gate,
                               .up           = y->exp_up,
                               .down         = y->exp_down,
                               .n_experts    = c->n_experts,
                               .n_slots      = c->n_used,
                               .n_ff         = c->n_ff_expert,
                               .kind         = ACT_GELU_TANH};
    o->matmul(q, m->s.exp_logits, y->router, m->s.n_router, n);
    ops_experts(o, q, &to, n);
}

/* The layer's end: x = (u + N_post_ff(f)) * scalar, with experts f = N_post_ff_1(f) + N_post_ff_2(their sum); with a
 * per-layer input u takes x's place, unscaled. n = N_in(x) of the next layer, unless that input comes in between. */
static void end_layer(gemma4 *m, const layer *y, int l, int n)
{
    const gemma4_config *c   = &m->c;
    bool                 ple = c->n_ple > 0, last = l + 1 == c->n_layers;
    norm_rows            to = {.y       = ple ? m->s.u : m->d.x,
                               .res     = m->s.u,
                               .z       = m->s.f,
                               .w       = y->n_post_ff,
                               .parts   = c->n_experts > 0,
                               .w_z     = y->n_post_ff_1,
                               .w_slots = y->n_post_ff_2,
                               .slots   = m->s.exp_out,
                               .slot_w  = m->s.exp_w,
                               .sum     = m->s.exp_sum,
                               .n_slots = c->n_used,
                               .n       = c->n_embd,
                               .scale   = ple ? 1 : y->scalar,
                               .eps     = c->eps,
                               .n_outs  = !ple && !last};
    if (to.n_outs) to.out[0].y = m->d.n, to.out[0].w = m->layers[l + 1].n_in;
    ops_norms(m->d.o, m->d.t.q, &to, n);
}

/* x = (u + N_ple(Wp(gelu(Wg u) * p[l]))) * scalar; n = N_in(x) of the next layer */
static void ple_block(gemma4 *m, const layer *y, int l, int n)
{
    const gemma4_config *c = &m->c;
    const ops           *o = m->d.o;
    queue               *q = m->d.t.q;
    int                  P = c->n_ple;
    o->matmul(q, m->s.ple_gate, y->ple_gate, m->s.u, n);
    o->gated(q, m->s.ple_gate, m->s.ple_gate, P, dev_at_f32(m->s.ple, (size_t)l * (size_t)P), c->n_layers * P, n, P,
             ACT_GELU_TANH);
    o->matmul(q, m->s.f, y->ple_proj, m->s.ple_gate, n);
    norm_rows to = {.y      = m->d.x,
                    .res    = m->s.u,
                    .z      = m->s.f,
                    .w      = y->n_ple,
                    .n      = c->n_embd,
                    .scale  = y->scalar,
                    .eps    = c->eps,
                    .n_outs = l + 1 < c->n_layers};
    if (to.n_outs) to.out[0].y = m->d.n, to.out[0].w = m->layers[l + 1].n_in;
    ops_norms(o, q, &to, n);
}

/* Drops the rows that nobody reads, between the heads of a layer and its attention. */
static void narrow_rows(gemma4 *m, const layer *y, const layer_rows *r)
{
    decoder_narrow(&m->d, r);
    decoder_gather(&m->d, r, m->s.q, y->q->n_out, m->s.heads);
    if (m->c.n_ple) decoder_gather(&m->d, r, m->s.ple, m->c.n_layers * m->c.n_ple, m->s.ple_token);
}

static void run_layer(gemma4 *m, int l, kv_pool *pool, const layer_rows *r)
{
    const layer    *y  = &m->layers[l];
    const kv_class *kv = kv_pool_class(pool, y->kv_class);
    int             n  = layer_rows_out(r, l)->n_rows;
    decoder_capture(&m->d, l, layer_rows_in(r, l)->n_rows);
    make_heads(m, y, l, kv, layer_rows_in(r, l));
    if (!n) return;
    if (l == r->narrow) narrow_rows(m, y, r);
    attention_block(m, y, l, kv, layer_rows_out(r, l), l >= r->narrow);
    if (m->c.n_experts) ops_aside(m->d.o, m->d.t.q, ASIDE_BEGIN);
    dense_block(m, y, n);
    if (m->c.n_experts) {
        ops_aside(m->d.o, m->d.t.q, ASIDE_END);
        expert_block(m, y, n);
        ops_aside(m->d.o, m->d.t.q, ASIDE_JOIN);
    }
    end_layer(m, y, l, n);
    if (m->c.n_ple) ple_block(m, y, l, n);
}

static void run_layers(decoder *d, kv_pool *kv, const layer_rows *r)
{
    gemma4 *m = (gemma4 *)d;
    if (m->c.n_ple) per_layer_inputs(m, &r->all);
    d->o->rms_norm(d->t.q, d->n, d->x, m->layers[0].n_in, r->all.n_rows, m->c.n_embd, m->c.eps);
    for (int l = 0; l < m->c.n_layers && layer_rows_in(r, l)->n_rows; l++) run_layer(m, l, kv, r);
}

/* --- open and close -----------------------------------------------------------------------------*/
static void free_layers(decoder *d) { mem_free(((gemma4 *)d)->layers); }

bool gemma4_check(const checkpoint *cp, err *e)
{
    gemma4     *m  = xnew(gemma4);
    role_binder g  = role_binder_of((binder){.cp = cp, .dry = true}, &gemma4_roles, &m->c);
    bool        ok = gemma4_config_read(&m->c, cp, e);
    m->layers      = xnew_n(layer, GEMMA4_MAX_LAYERS);
    ok             = ok && load_all(&m->d, &g, e);
    bind_end(&g.b);
    mem_free(m->layers);
    mem_free(m);
    return ok;
}

bool gemma4_describe(model_summary *out, const checkpoint *cp, const kv_types *types, err *e)
{
    gemma4_config c;
    kv_plan       p;
    if (!gemma4_config_read(&c, cp, e)) return false;
    *out = (model_summary){.n_layers    = c.n_layers,
                           .window      = c.window,
                           .n_embd      = c.n_embd,
                           .n_heads     = c.n_heads,
                           .n_vocab     = c.n_vocab,
                           .n_ctx       = c.n_ctx,
                           .n_experts   = c.n_experts,
                           .n_used      = c.n_used,
                           .n_ff_expert = c.n_ff_expert,
                           .n_ple       = c.n_ple,
                           .n_kv_shared = c.n_kv_shared};
    for (int l = 0; l < c.n_layers; l++) out->n_full += !c.sliding[l];
    plan_kv(&p, &c, types);
    memcpy(out->kv_class, p.spec, sizeof out->kv_class);
    for (int kind = 0; kind < 2; kind++) out->donor[kind] = donor_of(&c, &p, kind);
    out->n_kv_classes = p.n;
    return true;
}

static void init_target(gemma4 *m, ops *o, const model_options *opt)
{
    const gemma4_config *c     = &m->c;
    target               sizes = {.n_layers      = c->n_layers,
                                  .n_embd        = c->n_embd,
                                  .n_vocab       = c->n_vocab,
                                  .n_ctx         = c->n_ctx,
                                  .softcap       = c->softcap,
                                  .scaled_embed  = true,
                                  .empty_thought = c->n_ple == 0,
                                  .causal_media  = c->n_ple > 0,
                                  .kv_classes    = gemma4_kv_classes,
                                  .set_kv        = gemma4_set_kv};
    m->d                       = (decoder){.embed_scale  = sqrtf((float)c->n_embd),
                                           .eps          = c->eps,
                                           .load         = load_all,
                                           .init_scratch = init_scratch,
                                           .run_layers   = run_layers,
                                           .free_layers  = free_layers};
    decoder_init(&m->d, &sizes, o, opt);
    m->d.last_store = max_int(read_layer(c, false), read_layer(c, true));
    m->layers       = xnew_n(layer, (size_t)c->n_layers);
    target_set_kv(&m->d.t, &(kv_types)KV_TYPES_ALL(CACHE_F16));
}

bool gemma4_open(target **out, const checkpoint *cp, const model_options *opt, ops *o, err *e)
{
    gemma4     *m = xnew(gemma4);
    binder      b = {.cp = cp, .own = &m->d.own, .progress = opt->progress, .progress_ctx = opt->progress_ctx};
    role_binder g = role_binder_of(b, &gemma4_roles, &m->c);
    *out          = NULL;
    if (!gemma4_config_read(&m->c, cp, e)) {
        ops_close(o);
        mem_free(m);
        return false;
    }
    model_options fitted = *opt;
    if (!opt->max_rows && o->default_rows < VISION_STEP_ROWS && !m->c.n_ple && vision_may_exist(cp, opt->mmproj))
        fitted.max_rows = VISION_STEP_ROWS; /* the rows of a picture are not divided */
    init_target(m, o, &fitted);
    queue_limits lim = limits_of(m);
    if (!decoder_load(&m->d, &g, &lim, e)) {
        decoder_close(&m->d.t);
        return false;
    }
    *out = &m->d.t;
    return true;
}
