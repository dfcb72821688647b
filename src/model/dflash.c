/* The DFlash drafter: a small decoder that fills in a block of masked tokens in one pass, from the target's features.
 *
 * Context row of position p, from c, the concatenated outputs of some layers of the target:
 *   g = N_hidden(Wfc c)                              input of all layers of the drafter for p
 *   layer:  k = rope(N_k(Wk g), p)   v = Wv g        context K/V is computed once and never changes
 *
 * Block of B rows: the anchor (the newest token, not run by the target yet) and B - 1 masks, at positions n ..
 *   x = E[token]                                     the target's table, scaled as the target scales it
 *   layer:  y = N_in(x)
 *           q = rope(N_q(Wq y))   k = rope(N_k(Wk y))   v = Wv y
 *           x = x + Wo attention(q, k, v)            over the context and the block; scale 1/sqrt(D)
 *           x = x + Wdown(silu(Wgate z) * Wup z)     z = N_ff(x)
 *   row j of N(x) predicts the token at position n + j; the anchor's row predicts nothing.
 *
 * Full layers attend to the whole block, sliding layers are causal in it. The block's K/V uses the slots after the
 * context and is removed after the pass.
 *
 * A lane's context is a pure function of its text. With N positions converted, slot s holds
 *
 *   slots   | first page |     recent ...      |        position s + shift for s >= KV_PAGE; the first page is
 *   text    | first page |  left out  | recent ... |    rotated to positions s + shift: models rely on first rows
 *
 *   shift(N) = 0 while N <= n_ctx, then n_drop * ceil((N - n_ctx) / n_drop)
 *
 * Keys are rotated by absolute positions and masked by slots. Both depend on differences only, so the drafter never
 * sees a distance beyond its training. Recent pages are the same for every shift, so requests share them
 * (kv/prefix.h); a slide drops pages. The keys of the first page are rotated again from the page as made, which a
 * second sequence keeps. Rows that no draft attends to are not converted: of a long prompt those before
 * shift(prompt), less n_drop for the next request with a slightly shorter prompt. */
#include "base/mem.h"
#include "model/dflash_inside.h"

#include <math.h>

/* --- memory -------------------------------------------------------------------------------------*/
static bool take_floats(dflash *m, dev *out, int rows, int n, err *e)
{
    return owned_buf(&m->own, out, (size_t)rows * (size_t)n * sizeof(float), e);
}

static bool init_scratch(dflash *m, bool keep_rows, err *e)
{
    const dflash_config *c = &m->c;
    scratch             *s = &m->s;
    int                  H = c->n_embd, nq = c->n_heads * c->head_dim, nk = c->n_kv_heads * c->head_dim, R = MAX_ROWS;
    int                  V = m->d.t->n_vocab;
    return take_floats(m, &s->features, R, c->n_features, e) && take_floats(m, &s->x, R, H, e) &&
           take_floats(m, &s->y, R, H, e) && take_floats(m, &s->f, R, H, e) && take_floats(m, &s->q, R, nq, e) &&
           take_floats(m, &s->heads, R, nq, e) && take_floats(m, &s->k, R, nk, e) && take_floats(m, &s->v, R, nk, e) &&
           take_floats(m, &s->gate, R, c->n_ff, e) && take_floats(m, &s->up, R, c->n_ff, e) &&
           take_floats(m, &s->hidden, HEAD_ROWS, H, e) && take_floats(m, &s->logits, HEAD_ROWS, V, e) &&
           (!m->n_few || take_floats(m, &s->few, HEAD_ROWS, m->n_few, e)) &&
           owned_buf(&m->own, &s->rows, sizeof(block_rows), e) &&
           owned_buf(&m->own, &s->index, MAX_ROWS * sizeof(int32_t), e) &&
           owned_buf(&m->own, &s->moves, KV_PAGE * sizeof(kv_move_item), e) &&
           (c->kind != DFLASH_2 ||
            (take_floats(m, &s->z, R, H, e) && take_floats(m, &s->delta, R, 2 * c->n_taps * (H / c->group), e))) &&
           dflash_pairs_init(m, keep_rows, e) &&
           (!keep_rows ||
            (take_floats(m, &m->d.draft_hidden, c->block, H, e) && take_floats(m, &m->d.draft_logits, c->block, V, e)));
}

bool dflash_take_waiting(const dflash *m, dev *out, err *e)
{
    return m->o->alloc(m->o, out, (size_t)m->n_waiting * (size_t)m->c.n_features * sizeof(float), e);
}

static bool init_kept_rows(dflash *m, err *e)
{
    int n   = m->max_lanes > MIN_LEFT ? m->max_lanes : MIN_LEFT;
    m->kept = xnew_n(kept_rows, (size_t)n);
    while (m->n_kept_rows < n && dflash_take_waiting(m, &m->kept[m->n_kept_rows].rows.features, e)) m->n_kept_rows++;
    return m->n_kept_rows == n;
}

static bool init_queue(dflash *m, err *e)
{
    const dflash_config *c    = &m->c;
    int                  wide = c->n_features, nq = c->n_heads * c->head_dim;
    if (wide < nq) wide = nq;
    if (wide < c->n_ff) wide = c->n_ff;
    if (wide < c->n_embd) wide = c->n_embd;
    return m->o->queue_reserve(m->q,
                               &(queue_limits){.max_rows = MAX_ROWS, .max_in = wide, .max_vocab = m->d.t->n_vocab}, e);
}

int32_t dflash_max_slots(const dflash *m) { return m->n_ctx + m->n_drop + m->c.block; }

static kv_class_spec class_spec(const dflash_config *c, cache_types types)
{
    return (kv_class_spec){
        .n_layers = c->n_layers, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim, .types = types};
}

/* Returns twice the bytes of the pages, since up to half of a slab may be too small for one; 0: too many. */
static size_t kv_bytes(const dflash *m, const kv_class_spec *cls)
{
    kv_pool_spec spec = {.classes = cls, .n_classes = 1, .max_slots = dflash_max_slots(m)};
    size_t       n;
    return kv_bytes_for(&spec, dflash_max_slots(m) + KV_PAGE, &n) && size_mul(&n, n, 2 * (size_t)m->max_lanes) ? n : 0;
}

/* Makes its own pool. The first class of a pool is not used. */
static bool make_pool(dflash *m, const kv_class_spec *cls, err *e)
{
    kv_pool_spec spec = {
        .classes = cls, .n_classes = 1, .max_bytes = kv_bytes(m, cls), .max_lanes = 1, .max_slots = KV_PAGE, .q = m->q};
    if (!spec.max_bytes)
        return err_set(e, ERR_LIMIT, "the drafter's context of %d for %d lanes is too large", m->n_ctx, m->max_lanes);
    return kv_pool_new(&m->own_kv, m->o, &spec, e);
}

/* Two sequences per lane: the second is its first page as made. */
static bool dflash_set_pool(drafter *d, kv_pool *p, err *e)
{
    dflash       *m   = (dflash *)d;
    kv_class_spec cls = class_spec(&m->c, m->kv_type);
    if (m->has_cls) kv_pool_drop_class(m->kv, m->cls);
    m->kv      = p;
    m->has_cls = p && kv_pool_add_class(p, &cls, 2 * m->max_lanes, dflash_max_slots(m), &m->cls, e);
    return !p || m->has_cls;
}

static bool init_kv(dflash *m, const drafter_options *opt, err *e)
{
    kv_class_spec cls = class_spec(&m->c, opt->kv_type);
    m->kv_type        = opt->kv_type;
    if (!opt->pool && !make_pool(m, &cls, e)) return false;
    return dflash_set_pool(&m->d, opt->pool ? opt->pool : m->own_kv, e);
}

static int whole_pages(int n) { return (n + KV_PAGE - 1) / KV_PAGE * KV_PAGE; }

/* Chooses the rows that may wait, so that a plain answer of usual length is never converted if its features are
 * small. */
static int rows_that_wait(const dflash *m)
{
    size_t n = WAITING_BYTES / ((size_t)m->c.n_features * sizeof(float)) / KV_PAGE * KV_PAGE;
    return n < MIN_WAITING ? MIN_WAITING : n > MAX_WAITING ? MAX_WAITING : (int)n;
}

static bool init_context(dflash *m, const drafter_options *opt, err *e)
{
    const target *t  = m->d.t;
    m->d.trained_ctx = dflash_trained_ctx(&m->c);
    m->n_ctx         = opt->n_ctx ? opt->n_ctx : dflash_default_ctx(&m->c);
    m->full_window   = opt->window;
    if (m->n_ctx > t->n_ctx) m->n_ctx = t->n_ctx;
    m->n_ctx = whole_pages(m->n_ctx);
    if (m->n_ctx < MIN_CTX)
        return err_set(e, ERR_INPUT, "a drafter's context of %d is too short, it needs %d", m->n_ctx, MIN_CTX);
    m->n_drop      = whole_pages(m->n_ctx / 4);
    m->max_lanes   = opt->max_lanes > 0 ? opt->max_lanes : 1;
    m->fold_at_end = opt->fold_at_end;
    m->n_waiting   = rows_that_wait(m);
    return true;
}

/* --- open and close -----------------------------------------------------------------------------*/
static void dflash_close(drafter *d)
{
    dflash *m = (dflash *)d;
    draft_picker_deinit(&m->pick);
    for (int i = 0; i < m->n_kept_rows; i++) m->o->free(m->o, m->kept[i].rows.features);
    if (m->has_cls) kv_pool_drop_class(m->kv, m->cls);
    kv_pool_free(m->own_kv);
    owned_free(&m->own);
    mem_free(m->layers);
    mem_free(m->lanes);
    mem_free(m->live);
    mem_free(m->drafting);
    mem_free(m->kept);
    mem_free(m);
}

/* A pass may be shorter than a block only where no row sees later ones, except for DFlash. */
static void set_block(dflash *m)
{
    const dflash_config *c = &m->c;
    double               s = c->gemma ? 1 : 1 / sqrt(c->head_dim), a = c->yarn.factor > 0 ? c->yarn.attention : 1;
    m->attention_scale = (float)(s * a * a);
    for (int l = 0; c->kind != DFLASH_1 && l < c->n_layers; l++)
        m->whole_block |= !(c->sliding[l] ? c->causal_sliding : c->causal_full);
}

/* The target's embeddings come scaled. */
static void set_embed_scale(dflash *m)
{
    double theirs  = m->d.t->scaled_embed ? sqrt(m->c.n_embd) : 1;
    double own     = m->c.embed_scale > 0 ? m->c.embed_scale : theirs;
    m->embed_scale = (float)(m->embed ? own : own / theirs);
}

/* Divides the frequencies as YaRN does: slow pairs by the factor, fast ones not, and those between them by a ramp. */
static void yarn_divisors(const dflash_config *c, float *out)
{
    const dflash_yarn *y = &c->yarn;
    double             D = c->head_dim, log_theta = log(c->theta), two_pi = 2 * acos(-1.0);
    double             lo = fmax(floor(D * log(y->original / (two_pi * y->fast)) / (2 * log_theta)), 0);
    double             hi = fmin(ceil(D * log(y->original / (two_pi * y->slow)) / (2 * log_theta)), D - 1);
    for (int i = 0; i < c->head_dim / 2; i++) {
        double ramp = fmin(fmax((i - lo) / (hi > lo ? hi - lo : 0.001), 0), 1);
        out[i]      = (float)(1 / (1 - ramp + ramp / y->factor));
    }
}

static bool make_rope(dflash *m, err *e)
{
    const dflash_config *c       = &m->c;
    float               *divisor = c->yarn.factor > 0 ? xnew_n(float, (size_t)c->head_dim / 2) : NULL;
    if (divisor) yarn_divisors(c, divisor);
    bool ok = bind_rope(&m->own, &m->rope, c->head_dim, c->theta, 1, c->rope_part, divisor, e);
    mem_free(divisor);
    return ok;
}

/* Checks shapes first: they bound all allocations. */
static bool load_drafter(dflash *m, binder *b, const drafter_options *opt, err *e)
{
    if (!dflash_config_read(&m->c, b->cp, e) || !dflash_fit_target(m, e)) return false;
    const dflash_config *c = &m->c;
    owned_init(&m->own, m->o, c->n_layers * PER_LAYER + 96);
    m->own.q   = m->q;
    m->layers  = xnew_n(layer, (size_t)c->n_layers);
    m->softcap = c->softcap >= 0 ? (float)c->softcap : m->d.t->softcap;
    set_block(m);
    if (!init_context(m, opt, e)) return false;
    m->lanes    = xnew_n(draft_lane *, (size_t)m->max_lanes);
    m->live     = xnew_n(draft_job *, (size_t)m->max_lanes);
    m->drafting = xnew_n(draft_lane *, (size_t)m->max_lanes);
    if (!dflash_load_all(m, b, e) || !init_queue(m, e) || !dflash_compare_tables(m, b->cp, e)) return false;
    if (m->same_embed || m->same_head) { /* the order of loading has changed */
        bind_end(b);
        *b = (binder){.cp = b->cp, .own = b->own, .dry = true, .recode = b->recode};
        if (!dflash_load_all(m, b, e)) return false;
    }
    bind_begin(b);
    if (!dflash_load_all(m, b, e)) return false;
    set_embed_scale(m);
    return make_rope(m, e) && init_scratch(m, opt->keep_rows, e) && init_kept_rows(m, e) && init_kv(m, opt, e) &&
           draft_picker_init(&m->pick, m->d.t, e);
}

size_t dflash_kv_bytes(target *t, const checkpoint *cp, const drafter_options *opt)
{
    dflash *m = xnew(dflash);
    size_t  n = 0;
    m->d.t    = t;
    if (dflash_config_read(&m->c, cp, NULL) && init_context(m, opt, NULL)) {
        kv_class_spec cls = class_spec(&m->c, opt->kv_type);
        n                 = kv_bytes(m, &cls);
    }
    mem_free(m);
    return n;
}

bool dflash_open(drafter **out, target *t, const checkpoint *cp, const drafter_options *opt, err *e)
{
    dflash *m = xnew(dflash);
    *out      = NULL;
    m->o      = t->o;
    m->q      = t->q;
    m->d      = (drafter){.kind      = DRAFTER_DFLASH,
                          .t         = t,
                          .one_pass  = true,
                          .lane_new  = dflash_lane_new,
                          .lane_free = dflash_lane_free,
                          .cut       = dflash_cut,
                          .observe   = dflash_observe,
                          .draft     = dflash_draft,
                          .warm      = dflash_warm,
                          .begin     = dflash_begin,
                          .wish      = dflash_wish,
                          .take      = dflash_take,
                          .end       = dflash_end,
                          .need      = dflash_need,
                          .set_pool  = dflash_set_pool,
                          .close     = dflash_close};
    binder b  = {.cp = cp, .own = &m->own, .dry = true, .recode = opt->quantise};
    bool   ok = load_drafter(m, &b, opt, e);
    bind_end(&b);
    if (!ok) {
        dflash_close(&m->d);
        return err_wrap(e, "cannot load %s", cp->path);
    }
    m->d.max_draft      = min_int(dflash_max_tokens(&m->c), DRAFT_MAX);
    m->d.confident      = m->c.conf && m->c.rank;
    m->d.n_lead         = m->c.kind == DFLASH_1;
    m->d.n_hidden_rows  = m->c.kind == DFLASH_1 ? 0 : m->c.block;
    m->d.weight_bytes   = m->own.weight_bytes;
    m->d.n_draft_hidden = m->c.n_embd;
    *out                = &m->d;
    return true;
}

static drafter_summary summary_of(const dflash_config *c)
{
    drafter_summary s = {.kind          = dflash_kind_name(c->kind),
                         .variant       = c->gemma ? " with layers like Gemma 4's" : "",
                         .confident     = c->conf && c->rank,
                         .n_layers      = c->n_layers,
                         .n_embd        = c->n_embd,
                         .n_heads       = c->n_heads,
                         .block         = c->block,
                         .n_draft       = dflash_max_tokens(c),
                         .mask_id       = c->mask_id,
                         .n_captures    = c->n_captures,
                         .window        = c->window,
                         .n_ctx         = c->n_ctx,
                         .trained_ctx   = dflash_trained_ctx(c),
                         .default_ctx   = dflash_default_ctx(c),
                         .target_embd   = c->n_captures ? c->n_features / c->n_captures : 0,
                         .target_vocab  = c->n_vocab,
                         .target_layers = c->n_target_layers};
    for (int l = 0; l < c->n_layers; l++) s.n_sliding += c->sliding[l];
    for (int i = 0; i < c->n_captures; i++) {
        s.capture[i] = c->capture[i];
        if (c->capture[i] >= s.target_layers) s.target_layers = c->capture[i] + 1;
    }
    return s;
}

bool dflash_describe(drafter_summary *out, const checkpoint *cp, err *e)
{
    dflash_config c;
    if (!dflash_config_read(&c, cp, e)) return false;
    *out = summary_of(&c);
    return true;
}
