/* The Gemma 4 assistant. H is the target's width, d its own; a few layers, each sliding or full in its attention.
 *
 *   a draft token after token t, from a state h of width H, at position p:
 *           x = W_pre [E_target[t] * sqrt(H); h]
 *   layer:  u = x + N_post_attn(Wo attention(rope(N_q(Wq N_in(x))), K and V of the target))       scale is 1
 *           x = (u + N_post_ff(MLP(N_pre_ff(u)))) * layer_scalar
 *           y = N(x),  logits = E y (no softcap),  h for the next draft token = W_post y
 *
 * It has no K/V: a layer reads the K/V of the target's last layer of its kind that has any. The first draft token
 * follows the anchor at position p, which the target has not run: h is the target's final state of position p - 1,
 * and the keys are those of positions 0 .. p - 1, in sliding layers those with p - k < window. All draft tokens of a
 * round have the same p and the same keys; only t and h differ.
 *
 * The centroid head of the small assistants: tokens are in n_clusters clusters of one size. c = C y ranks the
 * clusters, and only the tokens of the best n_chosen get a logit; all others get the smallest of these minus 1. The
 * rows of E are sorted by cluster at load, so a cluster is one matrix of a stack and the head is an expert layer. */
#include "model/mtp.h"

#include "base/fault.h"
#include "base/mem.h"
#include "model/config_value.h"
#include "model/draft_chain.h"
#include "model/gemma4_roles.h"
#include "ops/joined.h"

#include <assert.h>

enum { MAX_CLUSTERS = 1 << 16, MAX_CHOSEN = 256 };

typedef struct {
    weight *q, *o, *gate, *up, *down;
    dev     n_in, n_q, n_post_attn, n_pre_ff, n_post_ff;
    float   scalar;
} layer;

/* The rows of one draft position: one per lane that still wants draft tokens. */
typedef struct {
    int32_t token[HEAD_ROWS], pos[HEAD_ROWS], lane[HEAD_ROWS], last[HEAD_ROWS], place[HEAD_ROWS];
} draft_step_rows;

/* [max_rows][n] floats unless noted. */
typedef struct {
    dev in, embd, h;      /* [2H], [H], [H] */
    dev x, u, n, f, y;    /* [d] */
    dev q, heads;         /* heads of the widest layer */
    dev gate, up;         /* [n_ff] */
    dev c, id, w, chosen; /* [n_clusters], int32 [n_chosen], [n_chosen], [n_chosen][tokens of a cluster] */
    dev logits;           /* [n_vocab] */
    dev rows;             /* draft_step_rows */
} scratch;

struct draft_lane {
    bool    used, known; /* known: h is the state of position n_pos - 1 */
    int32_t n_pos;       /* committed positions */
    int32_t place;       /* index of h in `states` */
};

typedef struct {
    drafter       d; /* first member: a drafter * is an mtp * */
    gemma4_config c;
    int           n_target;             /* H from the file */
    int           n_clusters, n_chosen; /* 0: the dense head */
    int           max_lanes, max_rows;
    weight       *pre, *post, *head, *centroids; /* head: [n_vocab][d], or a stack of clusters */
    dev           order;                         /* int32 [n_vocab]: tokens, cluster by cluster */
    dev           n_out;
    rope_params   rope_full, rope_sliding;
    layer         layers[GEMMA4_MAX_LAYERS];
    dev           states; /* [max_lanes][H] */
    draft_lane   *lanes;
    scratch       s;
    draft_picker  pick;
    owned         own;
    bool          keep_rows;
    tensor        file_centroids, file_order; /* in a GGUF file, where they are metadata */
} mtp;

/* --- what the file says, and whether it fits the target -----------------------------------------*/
static bool check_clusters(const mtp *m, err *e)
{
    if (m->n_chosen > m->n_clusters)
        return err_set(e, ERR_FORMAT, "centroid_intermediate_top_k is %d of %d centroids", m->n_chosen, m->n_clusters);
    if (m->c.n_vocab % m->n_clusters)
        return err_set(e, ERR_FORMAT, "%d tokens cannot be shared evenly by %d centroids", m->c.n_vocab, m->n_clusters);
    return true;
}

/* Reads the centroid head of a GGUF file, which is metadata of our own: other readers refuse unknown tensors, but
 * ignore unknown keys. 16-bit integers are the bits of bf16 numbers. */
static bool read_ordered(mtp *m, const gguf *g, err *e)
{
    const gguf_value *c = gguf_find(g, MTP_CENTROIDS_KEY), *order = gguf_find(g, MTP_ORDER_KEY);
    int64_t           d = m->c.n_embd, chosen = 0;
    if (!c && !order) return true;
    bool listed = c && c->type == GGUF_ARRAY && (c->item == GGUF_U16 || c->item == GGUF_F32) && c->n >= (uint64_t)d &&
                  c->n % (uint64_t)d == 0 && c->n / (uint64_t)d <= MAX_CLUSTERS;
    if (!listed || !order || order->type != GGUF_ARRAY || order->item != GGUF_I32 ||
        order->n != (uint64_t)m->c.n_vocab || !gguf_int(gguf_find(g, MTP_CHOSEN_KEY), &chosen))
        return err_set(e, ERR_FORMAT, "the keys %s, %s and %s do not match %d tokens of width %d", MTP_CENTROIDS_KEY,
                       MTP_ORDER_KEY, MTP_CHOSEN_KEY, m->c.n_vocab, m->c.n_embd);
    m->n_clusters     = (int)(c->n / (uint64_t)d);
    m->file_centroids = (tensor){.name   = str_of(MTP_CENTROIDS_KEY),
                                 .type   = c->item == GGUF_U16 ? QUANT_BF16 : QUANT_F32,
                                 .n_dims = 2,
                                 .dim    = {d, m->n_clusters, 1, 1},
                                 .data   = c->data,
                                 .bytes  = gguf_value_bytes(c)};
    m->file_order     = (tensor){.name   = str_of(MTP_ORDER_KEY),
                                 .type   = QUANT_I32,
                                 .n_dims = 1,
                                 .dim    = {m->c.n_vocab, 1, 1, 1},
                                 .data   = order->data,
                                 .bytes  = gguf_value_bytes(order)};
    return config_int(MTP_CHOSEN_KEY, chosen, 1, MAX_CHOSEN, &m->n_chosen, e) && check_clusters(m, e);
}

static bool read_gguf(mtp *m, const checkpoint *cp, err *e)
{
    static const char key[] = "gemma4-assistant.embedding_length_out";
    const gguf_value *v     = gguf_find(cp->gguf, key);
    int64_t           i;
    if (!v) return config_missing(key, e);
    if (!gguf_int(v, &i)) return err_set(e, ERR_FORMAT, "%s is not an integer", key);
    return config_int(key, i, 8, 1 << 20, &m->n_target, e) && read_ordered(m, cp->gguf, e);
}

static bool read_hf(mtp *m, const json_value *o, err *e)
{
    if (!hf_int(o, "backbone_hidden_size", CONFIG_REQUIRED, 8, 1 << 20, &m->n_target, e)) return false;
    if (!hf_bool(o, "use_ordered_embeddings")) return true; /* the other keys may still be present */
    if (!hf_int(o, "num_centroids", CONFIG_REQUIRED, 1, MAX_CLUSTERS, &m->n_clusters, e) ||
        !hf_int(o, "centroid_intermediate_top_k", CONFIG_REQUIRED, 1, MAX_CHOSEN, &m->n_chosen, e))
        return false;
    return check_clusters(m, e);
}

static bool read_config(mtp *m, const checkpoint *cp, err *e)
{
    if (!gemma4_config_read(&m->c, cp, e) || !(cp->gguf ? read_gguf(m, cp, e) : read_hf(m, cp->config, e)))
        return false;
    if (m->c.n_ple || m->c.n_experts)
        return err_set(e, ERR_FORMAT, "assistants with experts or per-layer embeddings are not supported");
    return true;
}

static bool check_donor(const mtp *m, const target_shape *t, int l, err *e)
{
    const gemma4_config *c    = &m->c;
    const kv_donor      *k    = &t->donor[c->sliding[l]];
    const char          *kind = c->sliding[l] ? "sliding" : "full";
    if (!k->there) return err_set(e, ERR_INPUT, "the target has no %s layer whose K/V the assistant could read", kind);
    if (k->n_kv_heads != c->n_kv_heads[l] || k->head_dim != c->head_dim[l])
        return err_set(e, ERR_INPUT,
                       "the assistant reads %d K/V heads of size %d in %s layers, the target's have %d of size %d",
                       c->n_kv_heads[l], c->head_dim[l], kind, k->n_kv_heads, k->head_dim);
    if (c->sliding[l] && c->window > k->window)
        return err_set(e, ERR_INPUT, "the assistant's window is %d positions, the target's only %d", c->window,
                       k->window);
    return true;
}

static bool check_fit(const mtp *m, const target_shape *t, err *e)
{
    if (m->n_target != t->n_embd)
        return err_set(e, ERR_INPUT, "the assistant is for a target of width %d, this one's is %d", m->n_target,
                       t->n_embd);
    if (m->c.n_vocab != t->n_vocab)
        return err_set(e, ERR_INPUT, "the assistant has %d tokens, the target %d", m->c.n_vocab, t->n_vocab);
    for (int l = 0; l < m->c.n_layers; l++)
        if (!check_donor(m, t, l, e)) return false;
    return true;
}

bool mtp_fits(const checkpoint *cp, const target_shape *t, err *e)
{
    mtp *m  = xnew(mtp);
    bool ok = read_config(m, cp, e) && check_fit(m, t, e);
    mem_free(m);
    return ok;
}

/* --- binding ------------------------------------------------------------------------------------*/
typedef struct {
    mtp        *m;
    role_binder g;
} loader;

static bool load_layer(loader *ld, int l, err *e)
{
    layer *y = &ld->m->layers[l];
    return role_vector(&ld->g, &y->n_in, ROLE_ATTN_NORM, l, 1, e) && role_matrix(&ld->g, &y->q, ROLE_ATTN_Q, l, e) &&
           role_vector(&ld->g, &y->n_q, ROLE_Q_NORM, l, 1, e) && role_matrix(&ld->g, &y->o, ROLE_ATTN_O, l, e) &&
           role_vector(&ld->g, &y->n_post_attn, ROLE_POST_ATTN_NORM, l, 1, e) &&
           role_vector(&ld->g, &y->n_pre_ff, ROLE_FF_NORM, l, 1, e) &&
           role_matrix(&ld->g, &y->gate, ROLE_FF_GATE, l, e) && role_matrix(&ld->g, &y->up, ROLE_FF_UP, l, e) &&
           role_matrix(&ld->g, &y->down, ROLE_FF_DOWN, l, e) &&
           role_vector(&ld->g, &y->n_post_ff, ROLE_POST_FF_NORM, l, 1, e) &&
           role_scalar(&ld->g, &y->scalar, ROLE_LAYER_SCALAR, l, e);
}

/* Reads the order of tokens, each exactly once, as int32. The caller frees it. */
static bool read_order(const tensor *t, int n_vocab, int32_t **out, err *e)
{
    int32_t *order = mem_try_n((size_t)n_vocab, sizeof *order);
    bool    *seen  = mem_try_n((size_t)n_vocab, sizeof *seen);
    bool     ok    = (order && seen) || err_set(e, ERR_UNAVAILABLE, "no memory for %d tokens", n_vocab);
    for (int i = 0; ok && i < n_vocab; i++) {
        int64_t id = tensor_int(t, (size_t)i);
        ok         = id >= 0 && id < n_vocab && !seen[id];
        if (ok)
            seen[order[i] = (int32_t)id] = true;
        else
            err_set(e, ERR_FORMAT, "'%.*s' is not an order of the tokens: entry %d is %lld", STR_ARG(t->name), i,
                    (long long)id);
    }
    mem_free(seen);
    if (!ok) mem_free(order);
    *out = ok ? order : NULL;
    return ok;
}

/* Loads the rows of the table in that order, as a stack of clusters. */
static bool load_ordered(loader *ld, const tensor *table, const int32_t *order, err *e)
{
    mtp   *m         = ld->m;
    int    n_each    = m->c.n_vocab / m->n_clusters;
    size_t row_bytes = table->bytes / (size_t)m->c.n_vocab;
    tensor t         = *table;
    char  *rows      = mem_try(table->bytes);
    if (!rows) return err_set(e, ERR_UNAVAILABLE, "no memory to put the embeddings in order");
    for (int i = 0; i < m->c.n_vocab; i++)
        memcpy(rows + (size_t)i * row_bytes, (const char *)table->data + (size_t)order[i] * row_bytes, row_bytes);
    t.data   = rows;
    t.dim[1] = n_each;
    t.dim[2] = m->n_clusters;
    bool ok  = bind_matrix(&ld->g.b, &m->head, &t, m->c.n_embd, n_each, m->n_clusters, e) &&
              owned_put(&m->own, &m->order, order, (size_t)m->c.n_vocab * sizeof *order, e);
    mem_free(rows);
    checkpoint_drop(ld->g.b.cp, table);
    return ok;
}

/* Finds the centroids and the order of the tokens: tensors of a directory, metadata of a GGUF file. */
static bool find_ordered(const loader *ld, const tensor **centroids, const tensor **order, err *e)
{
    mtp *m = ld->m;
    if (m->file_order.data) {
        *centroids = &m->file_centroids;
        *order     = &m->file_order;
        return true;
    }
    return bind_require(&ld->g.b, "masked_embedding.centroids.weight", centroids, e) &&
           bind_require(&ld->g.b, "masked_embedding.token_ordering", order, e);
}

static bool load_head(loader *ld, err *e)
{
    mtp          *m = ld->m;
    int           d = m->c.n_embd, V = m->c.n_vocab;
    const tensor *table, *centroids, *order;
    int32_t      *ids;
    if (!role_require(&ld->g, ROLE_EMBED, 0, &table, e)) return false;
    if (!m->n_clusters) return bind_matrix(&ld->g.b, &m->head, table, d, V, 1, e);
    if (!bind_check_shape(table, d, V, 1, e) || !find_ordered(ld, &centroids, &order, e) ||
        !bind_matrix(&ld->g.b, &m->centroids, centroids, d, m->n_clusters, 1, e))
        return false;
    if (!tensor_is_ints(order, V))
        return err_set(e, ERR_FORMAT, "'%.*s' is not a list of %d integers", STR_ARG(order->name), V);
    if (!read_order(order, V, &ids, e)) return false;
    bool ok = ld->g.b.dry || load_ordered(ld, table, ids, e);
    mem_free(ids);
    return ok;
}

static bool load_all(loader *ld, err *e)
{
    mtp          *m = ld->m;
    int           d = m->c.n_embd, H = m->n_target;
    const tensor *pre, *post;
    if (!bind_require(&ld->g.b, ld->g.hf_prefix ? "pre_projection.weight" : "nextn.pre_projection.weight", &pre, e) ||
        !bind_matrix(&ld->g.b, &m->pre, pre, 2 * H, d, 1, e) ||
        !bind_require(&ld->g.b, ld->g.hf_prefix ? "post_projection.weight" : "nextn.post_projection.weight", &post,
                      e) ||
        !bind_matrix(&ld->g.b, &m->post, post, d, H, 1, e) || !role_vector(&ld->g, &m->n_out, ROLE_OUT_NORM, 0, 1, e))
        return false;
    for (int l = 0; l < m->c.n_layers; l++)
        if (!load_layer(ld, l, e)) return false;
    return load_head(ld, e);
}

/* --- rope, scratch ------------------------------------------------------------------------------*/
static int widest(const int *v, int n, int min)
{
    for (int i = 0; i < n; i++)
        if (v[i] > min) min = v[i];
    return min;
}

static int first_of_kind(const gemma4_config *c, bool sliding)
{
    for (int l = 0; l < c->n_layers; l++)
        if (c->sliding[l] == sliding) return l;
    return -1;
}

static bool init_rope(mtp *m, const checkpoint *cp, err *e)
{
    const gemma4_config *c    = &m->c;
    int                  full = first_of_kind(c, false), sliding = first_of_kind(c, true);
    bool                 ok = true;
    if (full >= 0) {
        float *divisor;
        int    D = c->head_dim[full];
        ok       = bind_rope_divisors(cp, D, &divisor, e) &&
             bind_rope(&m->own, &m->rope_full, D, c->theta_full, c->rope_factor_full, c->rotary_part, divisor, e);
        mem_free(divisor);
    }
    if (ok && sliding >= 0)
        ok = bind_rope(&m->own, &m->rope_sliding, c->head_dim[sliding], c->theta_sliding, c->rope_factor_sliding, 1,
                       NULL, e);
    return ok;
}

static bool take_floats(mtp *m, dev *out, size_t n, err *e)
{
    return owned_buf(&m->own, out, (size_t)m->max_rows * n * sizeof(float), e);
}

static bool init_scratch(mtp *m, err *e)
{
    const gemma4_config *c = &m->c;
    scratch             *s = &m->s;
    size_t               H = (size_t)m->n_target, d = (size_t)c->n_embd, V = (size_t)c->n_vocab;
    size_t               F = (size_t)widest(c->n_ff, c->n_layers, 1), K = (size_t)m->n_chosen;
    size_t               heads = (size_t)c->n_heads * (size_t)widest(c->head_dim, c->n_layers, 1);
    return owned_buf(&m->own, &m->states, (size_t)m->max_lanes * H * sizeof(float), e) &&
           take_floats(m, &s->in, 2 * H, e) && take_floats(m, &s->embd, H, e) && take_floats(m, &s->h, H, e) &&
           take_floats(m, &s->x, d, e) && take_floats(m, &s->u, d, e) && take_floats(m, &s->n, d, e) &&
           take_floats(m, &s->f, d, e) && take_floats(m, &s->y, d, e) && take_floats(m, &s->q, heads, e) &&
           take_floats(m, &s->heads, heads, e) && take_floats(m, &s->gate, F, e) && take_floats(m, &s->up, F, e) &&
           take_floats(m, &s->logits, V, e) && owned_buf(&m->own, &s->rows, sizeof(draft_step_rows), e) &&
           (!K || (take_floats(m, &s->c, (size_t)m->n_clusters, e) && take_floats(m, &s->id, K, e) &&
                   take_floats(m, &s->w, K, e) && take_floats(m, &s->chosen, K * (V / (size_t)m->n_clusters), e)));
}

static bool init_kept_rows(mtp *m, err *e)
{
    size_t d = (size_t)m->c.n_embd, V = (size_t)m->c.n_vocab;
    return !m->keep_rows || (owned_buf(&m->own, &m->d.draft_hidden, DRAFT_MAX * d * sizeof(float), e) &&
                             owned_buf(&m->own, &m->d.draft_logits, DRAFT_MAX * V * sizeof(float), e));
}

static bool reserve_queue(mtp *m, err *e)
{
    const gemma4_config *c      = &m->c;
    int                  wide[] = {2 * m->n_target, c->n_heads * widest(c->head_dim, c->n_layers, 1)};
    int                  min_in = widest(wide, COUNT(wide), c->n_embd);
    queue_limits         lim    = {.max_rows         = m->max_rows,
                                   .max_in           = widest(c->n_ff, c->n_layers, min_in),
                                   .max_expert_slots = m->n_chosen,
                                   .n_experts        = m->n_clusters,
                                   .max_vocab        = c->n_vocab,
                                   .max_expert_in    = 1, /* all clusters read one row */
                                   .max_expert_x     = c->n_embd};
    return m->d.t->o->queue_reserve(m->d.t->q, &lim, e);
}

/* --- the forward pass ---------------------------------------------------------------------------*/
/* u = x + N_post_attn(Wo attention(N_in(x))) over the target's keys */
static void attention_block(mtp *m, int l, kv_pool *pool, const step_rows *r)
{
    const gemma4_config *c    = &m->c;
    const layer         *y    = &m->layers[l];
    const ops           *o    = m->d.t->o;
    queue               *q    = m->d.t->q;
    const kv_donor      *from = &m->d.t->donor[c->sliding[l]];
    int                  n    = r->n_rows;
    head_rows            h    = {.q       = m->s.q,
                                 .w_q     = y->n_q,
                                 .rope    = c->sliding[l] ? m->rope_sliding : m->rope_full,
                                 .n_heads = c->n_heads,
                                 .c       = kv_pool_class(pool, from->kv_class),
                                 .eps     = c->eps};
    o->rms_norm(q, m->s.n, m->s.x, y->n_in, n, c->n_embd, c->eps);
    o->matmul(q, m->s.q, y->q, m->s.n, n);
    ops_heads(o, q, &h, r);
    o->attention(q, m->s.heads, m->s.q, c->n_heads, h.c, from->kv_layer, r, 1.0f, c->sliding[l] ? c->window : 0);
    o->matmul(q, m->s.f, y->o, m->s.heads, n);
    o->rms_norm_add(q, m->s.u, m->s.x, m->s.f, y->n_post_attn, n, c->n_embd, c->eps, 1);
}

/* x = (u + N_post_ff(MLP(N_pre_ff(u)))) * scalar */
static void dense_block(mtp *m, int l, int n)
{
    const gemma4_config *c = &m->c;
    const layer         *y = &m->layers[l];
    const ops           *o = m->d.t->o;
    queue               *q = m->d.t->q;
    int                  F = c->n_ff[l];
    o->rms_norm(q, m->s.n, m->s.u, y->n_pre_ff, n, c->n_embd, c->eps);
    ops_matmuls(o, q, (dev[]){m->s.gate, m->s.up}, (const weight *[]){y->gate, y->up}, 2, m->s.n, n);
    o->gated(q, m->s.gate, m->s.gate, F, m->s.up, F, n, F, ACT_GELU_TANH);
    o->matmul(q, m->s.f, y->down, m->s.gate, n);
    o->rms_norm_add(q, m->s.x, m->s.u, m->s.f, y->n_post_ff, n, c->n_embd, c->eps, y->scalar);
}

static void head(mtp *m, int n)
{
    const ops *o = m->d.t->o;
    queue     *q = m->d.t->q;
    int        V = m->c.n_vocab, C = m->n_clusters, K = m->n_chosen;
    if (!C) {
        o->matmul(q, m->s.logits, m->head, m->s.y, n);
        return;
    }
    o->matmul(q, m->s.c, m->centroids, m->s.y, n);
    o->router(q, m->s.id, m->s.w, m->s.c, (dev){0}, n, C, K);
    o->matmul_experts(q, m->s.chosen, m->head, m->s.y, false, m->s.id, n, K);
    o->scatter_logits(q, m->s.logits, m->s.chosen, m->s.id, m->order, n, K, V / C, V, 1);
}

/* Computes the logits of the next draft token of each row, and y. The first starts from the lanes' states, the others
 * from y. */
static void draft_pass(mtp *m, kv_pool *kv, const step_rows *r, bool first)
{
    target    *t = m->d.t;
    const ops *o = t->o;
    int        H = m->n_target, n = r->n_rows;
    dev h = first ? m->states : m->s.h, place = first ? dev_at(m->s.rows, offsetof(draft_step_rows, place)) : (dev){0};
    if (!first) o->matmul(t->q, m->s.h, m->post, m->s.y, n);
    t->embed(t, m->s.embd, r->token, n);
    o->copy_rows(t->q, m->s.in, 2 * H, m->s.embd, H, (dev){0}, n, H);
    o->copy_rows(t->q, dev_at_f32(m->s.in, (size_t)H), 2 * H, h, H, place, n, H);
    o->matmul(t->q, m->s.x, m->pre, m->s.in, n);
    for (int l = 0; l < m->c.n_layers; l++) {
        attention_block(m, l, kv, r);
        dense_block(m, l, n);
    }
    o->rms_norm(t->q, m->s.y, m->s.x, m->n_out, n, m->c.n_embd, m->c.eps);
    head(m, n);
}

/* The rows after those of r are padding, or those of lanes that want no more draft tokens. */
static void forward(mtp *m, kv_pool *kv, const step_rows *r, bool first)
{
    const ops *o   = m->d.t->o;
    step_rows  all = *r;
    all.n_rows     = graph_rows(o, r->n_rows, m->max_rows);
    uint64_t key   = graph_key_at(kv_pool_key(kv), m);
    key            = graph_key(graph_key(key, (uint64_t)all.n_rows), first);
    for (bool done = o->replay(m->d.t->q, key); !done; done = o->record_end(m->d.t->q)) draft_pass(m, kv, &all, first);
}

/* --- lanes --------------------------------------------------------------------------------------*/
static bool mtp_lane_new(drafter *d, draft_lane **out, err *e)
{
    mtp *m = (mtp *)d;
    *out   = NULL;
    for (int i = 0; i < m->max_lanes && !*out; i++)
        if (!m->lanes[i].used) *out = &m->lanes[i];
    if (!*out) return err_set(e, ERR_LIMIT, "the assistant's %d lanes are all taken", m->max_lanes);
    **out = (draft_lane){.used = true, .place = (int32_t)(*out - m->lanes)};
    return true;
}

static void mtp_lane_free(drafter *d, draft_lane *l)
{
    (void)d;
    if (l) l->used = false;
}

static void mtp_cut(drafter *d, draft_lane *l, int32_t n_pos)
{
    (void)d;
    if (n_pos >= l->n_pos) return;
    l->n_pos = n_pos;
    l->known = false;
}

static bool mtp_observe(drafter *d, draft_lane *l, const draft_rows *r, err *e)
{
    mtp   *m  = (mtp *)d;
    int    H  = m->n_target;
    size_t at = (size_t)l->place * (size_t)H;
    (void)e;
    if (!r->n) return true;
    l->n_pos = r->pos + r->n;
    l->known = r->hidden >= 0;
    fault_no_alloc_begin("observe"); /* promise 4 */
    if (l->known)
        d->t->o->copy_rows(d->t->q, dev_at_f32(m->states, at), H,
                           dev_at_f32(d->t->hidden, (size_t)r->hidden * (size_t)H), H, (dev){0}, 1, H);
    fault_no_alloc_end();
    return true;
}

/* --- a round of drafting ------------------------------------------------------------------------*/
static bool can_draft(const draft_job *j) { return j->lane->known && j->lane->n_pos == j->n_text - 1; }

/* Returns the rows that upload_rows uploaded; no slot is written and no parent is read. */
static step_rows rows_of(const mtp *m)
{
    dev rows = m->s.rows, pos = dev_at(rows, offsetof(draft_step_rows, pos));
    return (step_rows){.token = rows,
                       .pos   = pos,
                       .lane  = dev_at(rows, offsetof(draft_step_rows, lane)),
                       .slot  = pos,
                       .root  = pos,
                       .last  = dev_at(rows, offsetof(draft_step_rows, last))};
}

static void upload_rows(mtp *m, const draft_group *g)
{
    draft_step_rows r = {0};
    for (int i = g->n; i < HEAD_ROWS; i++) r.token[i] = r.lane[i] = r.last[i] = -1; /* padding */
    for (int i = 0; i < g->n; i++) {
        const draft_job *j = g->job[i];
        r.token[i]         = j->text[j->n_text - 1];
        r.pos[i]           = j->n_text - 1;
        r.last[i]          = j->n_text - 2;
        r.lane[i]          = j->kv_lane;
        r.place[i]         = j->lane->place;
        assert(r.token[i] >= 0 && r.token[i] < m->c.n_vocab);
    }
    m->d.t->o->upload(m->d.t->q, m->s.rows, &r, sizeof r);
}

/* Positions and lanes stay the same for the whole round. */
static bool begin_pass(drafter *d, const draft_group *g, int depth, step_rows *out, err *e)
{
    mtp *m = (mtp *)d;
    (void)e;
    if (depth == 0) upload_rows(m, g);
    *out = rows_of(m);
    return true;
}

/* The second time a pass is recorded. */
static void mtp_warm(drafter *d, kv_pool *kv)
{
    mtp      *m = (mtp *)d;
    step_rows r = rows_of(m);
    kv_pool_flush(kv, d->t->q);
    upload_rows(m, &(draft_group){.n = 0});
    for (r.n_rows = 0; (r.n_rows = graph_rows_after(d->t->o, r.n_rows, m->max_rows)) > 0;)
        for (int i = 0; i < 4; i++) forward(m, kv, &r, i % 2 == 0);
}

static void run_pass(drafter *d, kv_pool *kv, const step_rows *r, int depth) { forward((mtp *)d, kv, r, depth == 0); }

static bool mtp_draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e)
{
    mtp        *m = (mtp *)d;
    draft_chain c = {.d         = d,
                     .pick      = &m->pick,
                     .max_rows  = m->max_rows,
                     .logits    = m->s.logits,
                     .token     = m->s.rows,
                     .hidden    = m->s.y,
                     .can_draft = can_draft,
                     .begin     = begin_pass,
                     .run       = run_pass};
    kv_pool_flush(kv, d->t->q);
    return draft_chain_run(&c, kv, jobs, n_jobs, e);
}

/* --- open and close -----------------------------------------------------------------------------*/
static void mtp_close(drafter *d)
{
    mtp *m = (mtp *)d;
    draft_picker_deinit(&m->pick);
    owned_free(&m->own);
    mem_free(m->lanes);
    mem_free(m);
}

static void init_drafter(mtp *m, const drafter_options *opt)
{
    m->keep_rows = opt->keep_rows;
    m->max_lanes = opt->max_lanes ? opt->max_lanes : 1;
    m->max_rows  = m->max_lanes < HEAD_ROWS ? m->max_lanes : HEAD_ROWS;
    m->lanes     = xnew_n(draft_lane, (size_t)m->max_lanes);
    owned_init(&m->own, m->d.t->o, m->c.n_layers * 6 + 64);
    m->own.q            = m->d.t->q;
    m->d.trained_ctx    = m->c.n_ctx;
    m->d.n_draft_hidden = m->c.n_embd;
}

/* Checks names and shapes first: they bound all allocations, and a broken file costs nothing. */
static bool load_drafter(loader *ld, err *e)
{
    mtp *m      = ld->m;
    ld->g.b.dry = true;
    if (!load_all(ld, e) || !reserve_queue(m, e)) return false;
    bind_begin(&ld->g.b);
    if (!load_all(ld, e) || !init_rope(m, ld->g.b.cp, e) || !init_scratch(m, e) || !init_kept_rows(m, e) ||
        !draft_picker_init(&m->pick, m->d.t, e))
        return false;
    m->d.weight_bytes = m->own.weight_bytes;
    return true;
}

bool mtp_open(drafter **out, target *t, const checkpoint *cp, const drafter_options *opt, err *e)
{
    mtp   *m           = xnew(mtp);
    binder b           = {.cp = cp, .own = &m->own, .recode = opt->quantise};
    loader ld          = {m, role_binder_of(b, &gemma4_roles, &m->c)};
    *out               = NULL;
    m->d               = (drafter){.kind      = DRAFTER_MTP,
                                   .t         = t,
                                   .max_draft = DRAFT_MAX,
                                   .lane_new  = mtp_lane_new,
                                   .lane_free = mtp_lane_free,
                                   .cut       = mtp_cut,
                                   .observe   = mtp_observe,
                                   .draft     = mtp_draft,
                                   .warm      = mtp_warm,
                                   .close     = mtp_close};
    target_shape shape = target_shape_of(t);
    bool         ok    = read_config(m, cp, e) && check_fit(m, &shape, e);
    if (ok) init_drafter(m, opt);
    ok = ok && load_drafter(&ld, e);
    bind_end(&ld.g.b);
    if (!ok) {
        mtp_close(&m->d);
        return err_wrap(e, "cannot load %s", cp->path);
    }
    *out = &m->d;
    return true;
}
