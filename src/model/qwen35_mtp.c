/* The MTP head. Row p of its context, for p >= 1, pairs token p with the target's final state of position p - 1:
 *
 *   u = Wfc [N_e(E[token p]); N_h(h)],  h = N_out(x of position p - 1)
 *   x = layer(u): full attention over the rows so far, feed-forward block        (qwen35_layer.h)
 *   t = N(x),  logits = H t: the token at position p + 1
 *
 * A draft goes on from its own token and t, which takes the place of h. The rows of a draft are removed after it; when
 * the target has run the tokens, their rows are made again from its states. Only the K/V of context rows is made.
 *
 * Positions that the target decodes one by one wait with their states, until a draft needs their rows or WAITING of
 * them are there. So rows are made many at a time, and those of several lanes together.
 *
 * Rows are rotated by p - 1 and stored in slots without gaps. A prefix hit of n positions leaves a gap: the K/V of
 * the rows before it comes from the prefix tree, and the context goes on with row n + 1, because the state of position
 * n - 1 is not kept. A node of the tree has the K/V of the 16 rows that end with the row of its own first token, which
 * is the last token that they depend on. The first node has none.
 *
 *      node        0           1                2                          hit of 3 nodes, n = 48
 *      its rows    -           1 .. 16          17 .. 32                   rows 33 .. 48 are missing
 *      slots                   0 .. 15          16 .. 31      32: row 49 */
#include "model/qwen35_mtp.h"

#include "base/fault.h"
#include "base/mem.h"
#include "base/num.h"
#include "model/draft_chain.h"
#include "model/family.h"
#include "model/qwen35_layer.h"

#include <assert.h>
#include <stdio.h>

enum {
    MAX_ROWS = 256, /* rows of a pass; more rows take several */
    WAITING  = 32,  /* maximum of positions of a lane that wait */
    STATES   = 1 + WAITING,
};

/* The rows of one pass. `from`: row of `states` that the row's h is copied from. */
typedef struct {
    int32_t token[MAX_ROWS], pos[MAX_ROWS], slot[MAX_ROWS], lane[MAX_ROWS], last[MAX_ROWS], root[MAX_ROWS];
    int32_t from[MAX_ROWS];
    int32_t section[MAX_ROWS][ROPE_SECTIONS]; /* for targets with sections */
} pass_rows;

struct draft_lane {
    kv_seq           *seq;
    const draft_text *text;           /* NULL outside a request */
    int32_t           n_taken;        /* slots that hold rows of the prefix tree */
    int32_t           base;           /* position of the text at which the other rows begin */
    int32_t           n_seen;         /* positions observed, from base on */
    int               n_wait;         /* the last of them, whose rows are not made yet */
    int32_t           token[WAITING]; /* their tokens */
    int32_t           n_given;        /* pages that the tree has */
    int32_t           place;          /* index of its states in `states` */
};

typedef struct {
    drafter       d; /* first member: a drafter * is a qwen35_mtp * */
    qwen35_config c;
    qwen35_layer  layer;
    weight       *fc;
    dev           n_embed, n_hidden, n_out, n_target; /* n_target: the target's final norm */
    qwen35_pass   p;
    /* [max_lanes][STATES][H]: x of the position before those that wait, and of these. The last one is that of the last
     * position. */
    dev          states;
    dev          in, h;  /* [MAX_ROWS][2 H], [MAX_ROWS][H] */
    dev          logits; /* [HEAD_ROWS][n_vocab] */
    dev          rows;   /* pass_rows */
    pass_rows    host;
    kv_pool     *kv, *own_kv; /* own_kv NULL: kv is borrowed */
    cache_types  kv_type;
    int          cls, n_ctx, max_lanes;
    bool         has_cls;
    draft_lane **lanes; /* [max_lanes]; NULL: free */
    draft_picker pick;
    owned        own;
} qwen35_mtp;

/* --- the checkpoint -----------------------------------------------------------------------------*/
static bool is_qwen35(const checkpoint *c)
{
    return str_starts(model_arch(c), "qwen35") || str_starts(model_arch(c), "qwen3_5");
}

bool qwen35_has_mtp(const checkpoint *c)
{
    if (!is_qwen35(c)) return false;
    for (size_t i = 0; i < tensor_count(c->tensors); i++) {
        str name = tensor_at(c->tensors, i)->name;
        if (str_ends(name, ".nextn.eh_proj.weight") || str_ends(name, "mtp.fc.weight")) return true;
    }
    return false;
}

size_t qwen35_mtp_bytes(const checkpoint *c)
{
    qwen35_config config;
    char          block[32];
    size_t        n = 0;
    if (!qwen35_config_read(&config, c, NULL)) return c->bytes;
    snprintf(block, sizeof block, "blk.%d.", config.n_layers);
    for (size_t i = 0; i < tensor_count(c->tensors); i++) {
        const tensor *t = tensor_at(c->tensors, i);
        if (str_starts(t->name, c->gguf ? block : "mtp.") || str_starts(t->name, "model.mtp.")) n += t->bytes;
    }
    return n;
}

static bool check_fit(const qwen35_config *c, const target_shape *t, err *e)
{
    return (c->n_embd == t->n_embd && c->n_vocab == t->n_vocab) ||
           err_set(e, ERR_INPUT, "the MTP head is for a model of width %d with %d tokens, this one has %d and %d",
                   c->n_embd, c->n_vocab, t->n_embd, t->n_vocab);
}

bool qwen35_mtp_fits(const checkpoint *cp, const target_shape *t, err *e)
{
    qwen35_config c;
    return qwen35_config_read(&c, cp, e) && check_fit(&c, t, e);
}

static bool load_all(qwen35_mtp *m, binder *b, err *e)
{
    role_binder g = role_binder_of(*b, &qwen35_roles, &m->c), trunk = g;
    int         l = b->cp->gguf ? m->c.n_layers : 0;
    if (!b->cp->gguf) g.hf_prefix = tensor_find(b->cp->tensors, STR("mtp.fc.weight")) ? "mtp." : "model.mtp.";
    bool own_norm = role_find(&g, QWEN35_MTP_OUT_NORM, l) != NULL;
    bool ok       = role_vector(&trunk, &m->n_target, QWEN35_OUT_NORM, 0, 1, e);
    g.b           = trunk.b;
    ok            = ok && role_matrix(&g, &m->fc, QWEN35_MTP_FC, l, e) &&
         role_vector(&g, &m->n_embed, QWEN35_MTP_EMBED_NORM, l, 1, e) &&
         role_vector(&g, &m->n_hidden, QWEN35_MTP_HIDDEN_NORM, l, 1, e) &&
         (!own_norm || role_vector(&g, &m->n_out, QWEN35_MTP_OUT_NORM, l, 1, e)) &&
         qwen35_load_attention(&g, &m->layer, l, e) && qwen35_load_ffn(&g, &m->layer, l, e);
    if (!own_norm) m->n_out = m->n_target;
    *b = g.b;
    return ok;
}

/* --- memory -------------------------------------------------------------------------------------*/
static kv_class_spec class_spec(const qwen35_config *c, cache_types types)
{
    return (kv_class_spec){.n_layers = 1, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim, .types = types};
}

static int max_slots(const qwen35_mtp *m) { return m->n_ctx + DRAFT_MAX; }

/* Returns twice the bytes of the pages, since up to half of a slab may be too small for one; 0: too many. */
static size_t kv_bytes(const qwen35_mtp *m, const kv_class_spec *cls)
{
    kv_pool_spec spec = {.classes = cls, .n_classes = 1, .max_slots = max_slots(m)};
    size_t       n;
    return kv_bytes_for(&spec, max_slots(m), &n) && size_mul(&n, n, 2 * (size_t)m->max_lanes) ? n : 0;
}

static void init_context(qwen35_mtp *m, const drafter_options *opt)
{
    m->max_lanes = opt->max_lanes ? opt->max_lanes : 1;
    m->n_ctx     = m->d.t->n_ctx;
    if (opt->max_ctx && opt->max_ctx < m->n_ctx) m->n_ctx = opt->max_ctx;
    m->n_ctx = (m->n_ctx + KV_PAGE - 1) / KV_PAGE * KV_PAGE;
}

static bool mtp_set_pool(drafter *d, kv_pool *p, err *e)
{
    qwen35_mtp   *m   = (qwen35_mtp *)d;
    kv_class_spec cls = class_spec(&m->c, m->kv_type);
    if (m->has_cls) kv_pool_drop_class(m->kv, m->cls);
    m->kv      = p;
    m->has_cls = p && kv_pool_add_class(p, &cls, m->max_lanes, max_slots(m), &m->cls, e);
    return !p || m->has_cls;
}

/* The first class of a pool of its own is not used. */
static bool init_kv(qwen35_mtp *m, const drafter_options *opt, err *e)
{
    kv_class_spec cls  = class_spec(&m->c, opt->kv_type);
    kv_pool_spec  spec = {.classes = &cls, .n_classes = 1, .max_lanes = 1, .max_slots = KV_PAGE, .q = m->d.t->q};
    m->kv_type         = opt->kv_type;
    if (!opt->pool) {
        spec.max_bytes = kv_bytes(m, &cls);
        if (!spec.max_bytes)
            return err_set(e, ERR_LIMIT, "its context of %d for %d lanes is too large", m->n_ctx, m->max_lanes);
        if (!kv_pool_new(&m->own_kv, m->d.t->o, &spec, e)) return false;
    }
    return mtp_set_pool(&m->d, opt->pool ? opt->pool : m->own_kv, e);
}

static bool init_scratch(qwen35_mtp *m, bool keep_rows, err *e)
{
    size_t H = (size_t)m->c.n_embd, V = (size_t)m->c.n_vocab;
    m->p = (qwen35_pass){.c = &m->c, .o = m->d.t->o, .q = m->d.t->q, .own = &m->own, .max_rows = MAX_ROWS};
    return qwen35_take_floats(&m->p, &m->p.x, H, e) && qwen35_take_floats(&m->p, &m->p.n, H, e) &&
           qwen35_pass_init(&m->p, e) && qwen35_take_floats(&m->p, &m->in, 2 * H, e) &&
           qwen35_take_floats(&m->p, &m->h, H, e) &&
           owned_buf(&m->own, &m->states, (size_t)m->max_lanes * STATES * H * sizeof(float), e) &&
           owned_buf(&m->own, &m->logits, HEAD_ROWS * V * sizeof(float), e) &&
           owned_buf(&m->own, &m->rows, sizeof m->host, e) &&
           (!keep_rows || (owned_buf(&m->own, &m->d.draft_hidden, DRAFT_MAX * H * sizeof(float), e) &&
                           owned_buf(&m->own, &m->d.draft_logits, DRAFT_MAX * V * sizeof(float), e)));
}

/* --- passes -------------------------------------------------------------------------------------*/
static step_rows upload_rows(qwen35_mtp *m, int n, bool tokens)
{
    const ops *o    = m->d.t->o;
    size_t     skip = tokens ? 0 : offsetof(pass_rows, pos);
    dev        d = m->rows, pos = dev_at(d, offsetof(pass_rows, pos));
    o->upload(m->d.t->q, dev_at(d, skip), (const char *)&m->host + skip, sizeof m->host - skip);
    return (step_rows){.n_rows      = n,
                       .token       = d,
                       .pos         = pos,
                       .lane        = dev_at(d, offsetof(pass_rows, lane)),
                       .slot        = dev_at(d, offsetof(pass_rows, slot)),
                       .parent      = pos, /* not read: all slots are below root */
                       .root        = dev_at(d, offsetof(pass_rows, root)),
                       .last        = dev_at(d, offsetof(pass_rows, last)),
                       .section_pos = m->d.t->sections ? dev_at(d, offsetof(pass_rows, section)) : (dev){0}};
}

/* Adds row i of the pass, at `slot`. */
static void set_row(qwen35_mtp *m, int i, const draft_lane *l, int32_t token, int32_t slot)
{
    m->host.token[i] = token;
    m->host.pos[i]   = slot - l->n_taken + l->base;
    m->host.slot[i]  = slot;
    m->host.lane[i]  = kv_seq_lane(l->seq);
    m->host.last[i]  = slot;
    m->host.root[i]  = slot + 1;
    if (m->d.t->sections)
        media_prompt_place(l->text ? l->text->media : NULL, m->d.t->media->image.cell, m->host.pos[i],
                           m->host.section[i]);
}

/* Replaces the embeddings of n rows by those that the target was given. at: index of the first one in seen->row. */
static void put_soft_rows(qwen35_mtp *m, const draft_rows *seen, int at, int n)
{
    target *t = m->d.t;
    size_t  H = (size_t)m->c.n_embd;
    for (int i = 0; seen && i < seen->n_soft; i++) {
        const draft_soft *s     = &seen->soft[i];
        int               first = max_int(s->first, at), end = min_int(s->first + s->n, at + n);
        if (first < end)
            t->o->upload(t->q, dev_at_f32(m->p.f, (size_t)(first - at) * H), s->x + (size_t)(first - s->first) * H,
                         (size_t)(end - first) * H * sizeof(float));
    }
}

/* x = Wfc [N_e(E[token]); N_h(h)], n = N_in(x). seen, at: as for put_soft_rows; NULL: rows of a draft. */
static void begin_rows(qwen35_mtp *m, const step_rows *r, const draft_rows *seen, int at)
{
    target    *t = m->d.t;
    const ops *o = t->o;
    int        H = m->c.n_embd, n = r->n_rows;
    t->embed(t, m->p.f, r->token, n);
    put_soft_rows(m, seen, at, n);
    o->rms_norm(t->q, m->p.f, m->p.f, m->n_embed, n, H, m->c.eps);
    o->copy_rows(t->q, m->in, 2 * H, m->p.f, H, (dev){0}, n, H);
    o->rms_norm(t->q, m->p.f, m->h, m->n_hidden, n, H, m->c.eps);
    o->copy_rows(t->q, dev_at_f32(m->in, (size_t)H), 2 * H, m->p.f, H, (dev){0}, n, H);
    o->matmul(t->q, m->p.x, m->fc, m->in, n);
    o->rms_norm(t->q, m->p.n, m->p.x, m->layer.n_in, n, H, m->c.eps);
}

/* --- the context --------------------------------------------------------------------------------*/
static bool mtp_lane_new(drafter *d, draft_lane **out, err *e)
{
    qwen35_mtp *m = (qwen35_mtp *)d;
    int         i = 0;
    *out          = NULL;
    while (i < m->max_lanes && m->lanes[i]) i++;
    if (i == m->max_lanes) return err_set(e, ERR_BUSY, "all lanes of the drafter are taken");
    *out = m->lanes[i] = xnew(draft_lane);
    **out              = (draft_lane){.seq = kv_seq_new(m->kv, m->cls), .place = i};
    return true;
}

static void mtp_lane_free(drafter *d, draft_lane *l)
{
    qwen35_mtp *m = (qwen35_mtp *)d;
    if (!l) return;
    kv_seq_free(l->seq);
    m->lanes[l->place] = NULL;
    mem_free(l);
}

/* Frees all pages: a cut would keep one. */
static void start_at(const qwen35_mtp *m, draft_lane *l, int32_t pos)
{
    kv_seq_free(l->seq);
    l->seq    = kv_seq_new(m->kv, m->cls);
    l->base   = pos;
    l->n_seen = l->n_taken = l->n_given = 0;
    l->n_wait                           = 0;
}

static int32_t next_pos(const draft_lane *l) { return l->base + l->n_seen; }

/* The state of the position before the cut is gone, so the context begins again there. */
static void mtp_cut(drafter *d, draft_lane *l, int32_t n_pos)
{
    if (n_pos < next_pos(l)) start_at((const qwen35_mtp *)d, l, n_pos);
}

/* Returns the index of a lane's state, counted from that of the position before those that wait. */
static int32_t state_index(const draft_lane *l, int nth) { return l->place * STATES + nth; }

static dev state_at(const qwen35_mtp *m, const draft_lane *l, int nth)
{
    return dev_at_f32(m->states, (size_t)state_index(l, nth) * (size_t)m->c.n_embd);
}

/* Copies states of the target after its final norm to rows of h: the lane's own state first, if `carry`, then those of
 * the step's rows. */
static void gather_states(qwen35_mtp *m, const draft_lane *l, const int32_t *row, int n, bool carry)
{
    target    *t = m->d.t;
    const ops *o = t->o;
    int        H = m->c.n_embd, n_rows = n - carry;
    if (carry) o->copy_rows(t->q, m->h, H, state_at(m, l, 0), H, (dev){0}, 1, H);
    for (int i = 0; i < n_rows; i++) m->host.from[i] = row[i];
    o->upload(t->q, dev_at(m->rows, offsetof(pass_rows, from)), m->host.from, sizeof m->host.from);
    if (n_rows)
        o->copy_rows(t->q, dev_at_f32(m->h, (size_t)carry * (size_t)H), H, draft_features(&m->d), t->n_features * H,
                     dev_at(m->rows, offsetof(pass_rows, from)), n_rows, H);
    o->rms_norm(t->q, m->h, m->h, m->n_target, n, H, m->c.eps);
}

/* Makes the K/V of up to MAX_ROWS positions, from index `at` of r->row on. The row of the position before the first
 * precedes them unless `carry`. */
static bool fold_rows(qwen35_mtp *m, draft_lane *l, const draft_rows *seen, int at, int n, bool carry, err *e)
{
    int32_t        len = kv_seq_len(l->seq);
    const int32_t *row = seen->row + at, *token = seen->token + at;
    if (!kv_seq_grow(l->seq, len + n, e)) return false;
    for (int i = 0; i < n; i++) set_row(m, i, l, token[i], len + i);
    gather_states(m, l, carry ? row : row - 1, n, carry);
    kv_pool_flush(m->kv, m->d.t->q);
    step_rows r = upload_rows(m, n, true);
    begin_rows(m, &r, seen, at);
    qwen35_make_heads(&m->p, &m->layer, kv_pool_class(m->kv, m->cls), &r);
    m->d.n_folded += n;
    return true;
}

static bool check_room(const qwen35_mtp *m, const draft_lane *l, int n, err *e)
{
    return kv_seq_len(l->seq) + l->n_wait + n <= m->n_ctx ||
           err_set(e, ERR_LIMIT, "the text is longer than its context of %d", m->n_ctx);
}

/* Makes the K/V of the positions of these lanes that wait, at most MAX_ROWS in all. */
static bool fold_pass(qwen35_mtp *m, draft_lane *const *lanes, int n_lanes, err *e)
{
    target *t = m->d.t;
    int     n = 0, H = m->c.n_embd;
    for (int i = 0; i < n_lanes; i++) {
        draft_lane *l   = lanes[i];
        int32_t     len = kv_seq_len(l->seq);
        if (!kv_seq_grow(l->seq, len + l->n_wait, e)) return false;
        for (int k = 0; k < l->n_wait; k++) {
            set_row(m, n, l, l->token[k], len + k);
            m->host.from[n++] = state_index(l, k);
        }
    }
    kv_pool_flush(m->kv, t->q);
    step_rows r = upload_rows(m, n, true);
    t->o->copy_rows(t->q, m->h, H, m->states, H, dev_at(m->rows, offsetof(pass_rows, from)), n, H);
    t->o->rms_norm(t->q, m->h, m->h, m->n_target, n, H, m->c.eps);
    begin_rows(m, &r, NULL, 0);
    qwen35_make_heads(&m->p, &m->layer, kv_pool_class(m->kv, m->cls), &r);
    m->d.n_folded += n;
    for (int i = 0; i < n_lanes; i++) {
        t->o->copy_rows(t->q, state_at(m, lanes[i], 0), H, state_at(m, lanes[i], lanes[i]->n_wait), H, (dev){0}, 1, H);
        lanes[i]->n_wait = 0;
    }
    return true;
}

/* Makes the K/V of all positions of these lanes that wait. On failure the lanes of that pass have no context. */
static bool fold_waiting(qwen35_mtp *m, draft_lane *const *lanes, int n_lanes, err *e)
{
    draft_lane *some[MAX_ROWS];
    for (int i = 0; i < n_lanes;) {
        int n = 0, rows = 0;
        for (; i < n_lanes && rows + lanes[i]->n_wait <= MAX_ROWS; i++) {
            if (lanes[i]->n_wait > 0) some[n++] = lanes[i];
            rows += lanes[i]->n_wait;
        }
        if (n == 0 || fold_pass(m, some, n, e)) continue;
        for (int k = 0; k < n; k++) start_at(m, some[k], next_pos(some[k]));
        return false;
    }
    return true;
}

/* Copies the state of a row of the step. */
static void keep_state(qwen35_mtp *m, draft_lane *l, int nth, int32_t row)
{
    target *t = m->d.t;
    size_t  F = (size_t)t->n_features * (size_t)m->c.n_embd;
    t->o->copy_rows(t->q, state_at(m, l, nth), m->c.n_embd, dev_at_f32(draft_features(&m->d), (size_t)row * F), (int)F,
                    (dev){0}, 1, m->c.n_embd);
}

/* Lets the positions wait, if they are few. */
static bool add_waiting(qwen35_mtp *m, draft_lane *l, const draft_rows *r)
{
    if (l->n_seen == 0 || r->n_soft > 0 || l->n_wait + r->n > WAITING) return false;
    for (int i = 0; i < r->n; i++) {
        l->token[l->n_wait++] = r->token[i];
        keep_state(m, l, l->n_wait, r->row[i]);
    }
    return true;
}

static bool observe_rows(qwen35_mtp *m, draft_lane *l, const draft_rows *r, err *e)
{
    if (r->pos != next_pos(l)) start_at(m, l, r->pos);
    bool carry = l->n_seen > 0; /* the state before the first row; without it that row has no pair */
    if (!check_room(m, l, r->n, e)) return false;
    if (l->n_wait + r->n > WAITING && !fold_waiting(m, &l, 1, e)) return false;
    if (!add_waiting(m, l, r)) {
        if (!fold_waiting(m, &l, 1, e)) return false;
        for (int i = carry ? 0 : 1, n; i < r->n; i += n) {
            n = min_int(r->n - i, MAX_ROWS);
            if (!fold_rows(m, l, r, i, n, carry && i == 0, e)) return false;
        }
        keep_state(m, l, 0, r->row[r->n - 1]);
    }
    l->n_seen += r->n;
    return true;
}

/* Adds complete pages to the tree. Where the tree has the page already, the lane uses that one. */
static void give_pages(draft_lane *l)
{
    const draft_text *t     = l->text;
    int32_t           first = l->base / KV_PAGE - l->n_taken / KV_PAGE + 1; /* node of the lane's first page */
    if (!t || !t->tree || l->base % KV_PAGE) return;
    for (int32_t k; k = l->n_given, (k + 1) * KV_PAGE <= kv_seq_len(l->seq) && first + k < t->n_nodes; l->n_given++)
        kv_prefix_put(t->tree, t->salt, t->node[first + k - 1], t->token + (size_t)(first + k) * KV_PAGE, l->seq, k);
}

static bool mtp_observe(drafter *d, draft_lane *l, const draft_rows *r, err *e)
{
    fault_no_alloc_begin("observe"); /* promise 4 */
    bool ok = r->n <= 0 || observe_rows((qwen35_mtp *)d, l, r, e);
    if (ok) give_pages(l);
    fault_no_alloc_end();
    if (!ok) start_at((const qwen35_mtp *)d, l, r->pos + r->n);
    return ok;
}

/* --- a draft ------------------------------------------------------------------------------------*/
static bool can_draft(const draft_job *j) { return j->lane->n_seen > 0 && next_pos(j->lane) == j->n_text - 1; }

static bool begin_pass(drafter *d, const draft_group *g, int nth, step_rows *r, err *e)
{
    qwen35_mtp *m = (qwen35_mtp *)d;
    for (int i = 0; i < g->n; i++) {
        const draft_job *j   = g->job[i];
        int32_t          len = kv_seq_len(j->lane->seq);
        if (!kv_seq_grow(j->lane->seq, len + 1, e)) return false;
        set_row(m, i, j->lane, j->text[j->n_text - 1], len);
        m->host.from[i] = state_index(j->lane, 0);
    }
    kv_pool_flush(m->kv, d->t->q);
    *r = upload_rows(m, g->n, nth == 0);
    return true;
}

/* The first pass starts from the lanes' states, the others from t of the pass before, which is in h. */
static void run_pass(drafter *d, kv_pool *kv, const step_rows *r, int nth)
{
    qwen35_mtp *m = (qwen35_mtp *)d;
    target     *t = d->t;
    const ops  *o = t->o;
    int         H = m->c.n_embd, n = r->n_rows;
    (void)kv; /* not used: the context has its own pages */
    if (nth == 0) {
        o->copy_rows(t->q, m->h, H, m->states, H, dev_at(m->rows, offsetof(pass_rows, from)), n, H);
        o->rms_norm(t->q, m->h, m->h, m->n_target, n, H, m->c.eps);
    }
    const kv_class *c = kv_pool_class(m->kv, m->cls);
    begin_rows(m, r, NULL, 0);
    qwen35_make_heads(&m->p, &m->layer, c, r);
    qwen35_attend(&m->p, &m->layer, c, r);
    qwen35_end_layer(&m->p, &m->layer, (dev){0}, n);
    o->rms_norm(t->q, m->h, m->p.x, m->n_out, n, H, m->c.eps);
    t->project(t, m->logits, m->h, n);
}

static void end_group(drafter *d, const draft_group *g)
{
    (void)d;
    for (int i = 0; i < g->n; i++) { /* the next rows of the text use these slots */
        draft_lane *l = g->job[i]->lane;
        kv_seq_cut(l->seq, l->n_taken + l->n_seen - 1);
    }
}

static bool fold_for_jobs(qwen35_mtp *m, draft_job *const *jobs, int n_jobs, err *e)
{
    bool ok = true;
    fault_no_alloc_begin("draft"); /* promise 4 */
    for (int i = 0, n; ok && i < n_jobs; i += n) {
        draft_lane *lanes[MAX_ROWS];
        n = min_int(n_jobs - i, MAX_ROWS);
        for (int k = 0; k < n; k++) lanes[k] = jobs[i + k]->lane;
        ok = fold_waiting(m, lanes, n, e);
    }
    fault_no_alloc_end();
    for (int i = 0; !ok && i < n_jobs; i++) jobs[i]->n = 0;
    return ok;
}

static bool mtp_draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e)
{
    qwen35_mtp *m = (qwen35_mtp *)d;
    draft_chain c = {.d         = d,
                     .pick      = &m->pick,
                     .max_rows  = HEAD_ROWS,
                     .logits    = m->logits,
                     .token     = m->rows,
                     .hidden    = m->h,
                     .can_draft = can_draft,
                     .begin     = begin_pass,
                     .run       = run_pass,
                     .end       = end_group};
    return fold_for_jobs(m, jobs, n_jobs, e) && draft_chain_run(&c, kv, jobs, n_jobs, e);
}

/* --- requests -----------------------------------------------------------------------------------*/
static void mtp_begin(drafter *d, draft_lane *l, const draft_text *t)
{
    start_at((const qwen35_mtp *)d, l, 0);
    l->text = t;
}

static int32_t needs_nothing(const void *ctx, int32_t n_pos)
{
    (void)ctx;
    return n_pos;
}

/* A prefix hit does not depend on this drafter: it takes the rows that the tree has. */
static void mtp_wish(const drafter *d, const draft_lane *l, kv_wish *out)
{
    *out = (kv_wish){.cls = ((const qwen35_mtp *)d)->cls, .first = needs_nothing, .ctx = l};
}

/* Takes the last pages of the prefix, back to the first that is missing. */
static void mtp_take(drafter *d, draft_lane *l, kv_node *at)
{
    const qwen35_mtp *m = (const qwen35_mtp *)d;
    int32_t           n = at ? kv_node_end(at) : 0, from = n;
    start_at(m, l, n);
    for (kv_node *k = at; k && kv_node_has(k, m->cls); k = kv_node_parent(k)) from -= KV_PAGE;
    if (from == n) return;
    kv_prefix_take_class(l->text->tree, at, l->seq, 0, from);
    l->n_taken = n - from;
    l->n_given = l->n_taken / KV_PAGE;
}

static void mtp_end(drafter *d, draft_lane *l)
{
    err e;
    if (kv_seq_len(l->seq) % KV_PAGE + l->n_wait >= KV_PAGE) fold_waiting((qwen35_mtp *)d, &l, 1, &e);
    give_pages(l);
    l->text = NULL;
    start_at((const qwen35_mtp *)d, l, 0);
}

static void mtp_need(const drafter *d, kv_need *n, int32_t n_pos)
{
    const qwen35_mtp *m     = (const qwen35_mtp *)d;
    int32_t           slots = min_int(n_pos + DRAFT_MAX, max_slots(m));
    kv_need_add(m->kv, n, m->cls, slots, slots);
}

/* --- open and close -----------------------------------------------------------------------------*/
static void mtp_close(drafter *d)
{
    qwen35_mtp *m = (qwen35_mtp *)d;
    draft_picker_deinit(&m->pick);
    owned_free(&m->own);
    if (m->has_cls) kv_pool_drop_class(m->kv, m->cls);
    kv_pool_free(m->own_kv);
    mem_free(m->lanes);
    mem_free(m);
}

static bool load_head(qwen35_mtp *m, binder *b, const drafter_options *opt, err *e)
{
    queue_limits lim = qwen35_limits(&m->c, MAX_ROWS);
    if (!load_all(m, b, e) || !m->d.t->o->queue_reserve(m->d.t->q, &lim, e)) return false;
    bind_begin(b);
    return load_all(m, b, e) && init_scratch(m, opt->keep_rows, e) && init_kv(m, opt, e) &&
           draft_picker_init(&m->pick, m->d.t, e);
}

size_t qwen35_mtp_kv_bytes(target *t, const checkpoint *cp, const drafter_options *opt)
{
    qwen35_mtp *m = xnew(qwen35_mtp);
    size_t      n = 0;
    m->d.t        = t;
    if (qwen35_config_read(&m->c, cp, NULL)) {
        kv_class_spec cls = class_spec(&m->c, opt->kv_type);
        init_context(m, opt);
        n = kv_bytes(m, &cls);
    }
    mem_free(m);
    return n;
}

bool qwen35_mtp_open(drafter **out, target *t, const checkpoint *cp, const drafter_options *opt, err *e)
{
    qwen35_mtp *m = xnew(qwen35_mtp);
    binder      b = {.cp = cp, .own = &m->own, .dry = true, .recode = opt->quantise};
    *out          = NULL;
    m->d          = (drafter){.kind       = DRAFTER_MTP,
                              .t          = t,
                              .max_draft  = DRAFT_MAX,
                              .capture_id = {t->n_layers},
                              .n_capture  = 1,
                              .lane_new   = mtp_lane_new,
                              .lane_free  = mtp_lane_free,
                              .cut        = mtp_cut,
                              .observe    = mtp_observe,
                              .draft      = mtp_draft,
                              .begin      = mtp_begin,
                              .wish       = mtp_wish,
                              .take       = mtp_take,
                              .end        = mtp_end,
                              .need       = mtp_need,
                              .set_pool   = mtp_set_pool,
                              .close      = mtp_close};
    owned_init(&m->own, t->o, 96);
    m->own.q           = t->q;
    target_shape shape = target_shape_of(t);
    bool         ok    = qwen35_config_read(&m->c, cp, e) && check_fit(&m->c, &shape, e);
    if (ok) {
        init_context(m, opt);
        m->lanes = xnew_n(draft_lane *, (size_t)m->max_lanes);
        ok       = load_head(m, &b, opt, e);
    }
    bind_end(&b);
    if (!ok) {
        mtp_close(&m->d);
        return err_wrap(e, "cannot load %s", cp->path);
    }
    m->d.trained_ctx    = m->c.n_ctx;
    m->d.weight_bytes   = m->own.weight_bytes;
    m->d.n_draft_hidden = m->c.n_embd;
    *out                = &m->d;
    return true;
}
