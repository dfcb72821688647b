/* The DFlash drafter: a small decoder that fills in a block of masked tokens in one pass, reading the target's mind.
 *
 * Context row of position p, from c, the outputs of some layers of the target side by side:
 *   g = N_hidden(Wfc c)                              what all layers of the drafter see of p
 *   layer:  k = rope(N_k(Wk g), p)   v = Wv g        so context K/V is made once and never changes
 *
 * Block of B rows: the anchor (the newest token, not yet through the target) and B - 1 masks, at positions n ..
 *   x = E[token]                                     the target's table, scaled as the target scales it
 *   layer:  y = N_in(x)
 *           q = rope(N_q(Wq y))   k = rope(N_k(Wk y))   v = Wv y
 *           x = x + Wo attention(q, k, v)            over the context and the block; scale 1/sqrt(D)
 *           x = x + Wdown(silu(Wgate z) * Wup z)     z = N_ff(x)
 *   row j of N(x) guesses the token at position n + j; the anchor's row guesses nothing.
 *
 * Full layers see the whole block, sliding ones are causal in it. The block's K/V goes to the slots behind the context
 * and is cut away after the pass.
 *
 * A lane's context is a pure function of its text. With N positions folded in, slot s holds
 *
 *   slots   | first page |     recent ...      |        position s + shift for s >= KV_PAGE, and of the first page
 *   text    | first page |  left out  | recent ... |    what positions s + shift would be: models lean on first rows
 *
 *   shift(N) = 0 while N <= n_ctx, then n_drop * ceil((N - n_ctx) / n_drop)
 *
 * Keys are turned by absolute positions and masked by slots; both see only differences, so the drafter never meets one
 * that it was not trained on. Recent pages are the same for every shift, so that requests share them (kv/prefix.h); a
 * slide drops pages. The keys of the first page are turned further, from the page as it was made, which a second sequence
 * keeps. What no draft can see is not folded in: of a long prompt the rows before shift(prompt), less n_drop for the
 * next request whose prompt is a little shorter. */
#include "model/dflash.h"

#include "base/fault.h"
#include "base/mem.h"
#include "base/num.h"
#include "model/bind.h"
#include "model/dflash_config.h"

#include <assert.h>
#include <math.h>

enum {
    MAX_ROWS      = STEP_MAX_ROWS, /* of a pass */
    WAITING_BYTES = 1 << 20,       /* for features of a lane that wait to be folded in, */
    MIN_WAITING   = 64,            /* unless so many rows are more */
    MAX_WAITING   = MAX_ROWS,
    MIN_LEFT      = 8, /* requests whose rows are kept: as many as there are lanes, or so many */
    MIN_CTX       = 2 * KV_PAGE,
    DEFAULT_CTX   = 4096,  /* what drafters are trained on, where their files do not say */
    MAX_TRAINED   = 32768, /* a larger max_position_embeddings is the target's, not what the drafter was trained on */
    PER_LAYER     = 11,    /* tensors */
};

typedef struct {
    weight *q, *k, *v, *o, *gate, *up, *down;
    dev     n_in, n_q, n_k, n_ff;
} layer;

/* The rows of one pass, uploaded in one piece. */
typedef struct {
    int32_t token[MAX_ROWS];
    int32_t pos[MAX_ROWS]; /* in the text: what rope turns by */
    int32_t lane[MAX_ROWS];
    int32_t slot[MAX_ROWS];         /* where K/V goes; to attention, the position */
    int32_t root[MAX_ROWS];         /* above all slots that the row sees */
    int32_t last_full[MAX_ROWS];    /* last slot that it sees in full layers, */
    int32_t last_sliding[MAX_ROWS]; /* and in sliding ones */
    int     n;
} block_rows;

/* Scratch of a pass; [MAX_ROWS][n] floats unless said. */
typedef struct {
    dev features; /* [MAX_ROWS][n_features]: gathered */
    dev x, y, f;  /* [n_embd] */
    dev q, heads; /* [n_heads * head_dim] */
    dev k, v;     /* [n_kv_heads * head_dim] */
    dev gate, up; /* [n_ff] */
    dev hidden;   /* [HEAD_ROWS][n_embd]: gathered */
    dev logits;   /* [HEAD_ROWS][n_vocab of the target] */
    dev few;      /* [HEAD_ROWS][n_few]: logits of a reduced vocabulary */
    dev rows;     /* block_rows */
    dev index;    /* int32 [MAX_ROWS]: rows to gather */
    dev moves;    /* kv_move_item [MAX_ROWS] */
} scratch;

/* Positions are counted from the context's first, which is 0 unless the drafter came in the middle of a text. */
struct draft_lane {
    kv_seq           *seq;           /* the rows folded in; between calls nothing else */
    kv_seq           *first;         /* its first page as it was made, once that of seq is turned; NULL: seq's is */
    int32_t           base;          /* the text's position that is the context's first */
    int32_t           n_seen;        /* positions of the context */
    int32_t           shift, turned; /* turned: the shift that seq's first page is turned for */
    int32_t           wished;        /* the first position behind the first page that this request's drafts can see */
    int               n_wait;        /* rows in `waiting`: the last of those seen */
    dev               waiting;       /* [n_waiting][n_features] */
    const draft_text *text;          /* NULL: it shares nothing */
    int               n_given;       /* pages of the text that are in the tree, or never will be */
};

/* Rows of a text that are not folded in: whole pages. */
typedef struct {
    int32_t        first; /* position, the first of a page */
    int            n;     /* rows */
    const int32_t *token; /* [n] */
    dev            features;
} unfolded;

/* Those that a request left: features that no draft had to see are kept as they are, for a text that goes on there. */
typedef struct {
    unfolded rows;   /* n 0: nothing is left here */
    uint64_t salt;   /* of the text, */
    uint64_t before; /* and a hash of what comes before the rows */
    int32_t  token[MAX_WAITING];
    uint64_t stamp; /* when they were left */
} left_rows;

typedef struct {
    drafter       d; /* first: a drafter * is a dflash * */
    dflash_config c;
    const ops    *o;
    queue        *q;
    weight       *fc, *embed, *head; /* embed, head NULL: the target's */
    float         embed_scale;       /* of its own table */
    float         softcap;
    int           n_few; /* rows of a head of its own for fewer tokens; 0: all */
    dev           d2t;   /* [n_few]: their ids */
    dev           n_hidden, n_out, freq;
    layer        *layers;
    scratch       s;
    block_rows    rows;
    kv_pool      *kv, *own_kv; /* own_kv NULL: somebody else's */
    int           cls;
    bool          has_cls;
    int           n_lanes, max_lanes;
    draft_lane  **lanes; /* [max_lanes], NULL where free */
    left_rows    *left;  /* [n_left] */
    int           n_left;
    uint64_t      now;           /* the last stamp */
    int           n_waiting;     /* rows that may wait in a lane */
    int           n_ctx, n_drop; /* slots of context; dropped when they are full */
    draft_picker  pick;
    owned         own;
} dflash;

/* --- binding ------------------------------------------------------------------------------------*/
static bool require(const dflash *m, const binder *b, dflash_role r, int l, const tensor **out, err *e)
{
    char name[DFLASH_NAME_MAX];
    dflash_tensor_name(m->c.layout, m->c.prefix, r, l, name);
    return bind_require(b, name, out, e);
}

static bool load_matrix(dflash *m, binder *b, weight **out, dflash_role r, int l, int n_in, int n_out, err *e)
{
    const tensor *t;
    return require(m, b, r, l, &t, e) && bind_matrix(b, out, t, n_in, n_out, 1, e);
}

static bool load_vector(dflash *m, binder *b, dev *out, dflash_role r, int l, int n, err *e)
{
    const tensor *t;
    return require(m, b, r, l, &t, e) && bind_vector(b, out, t, n, 1, e);
}

static bool load_layer(dflash *m, binder *b, int l, err *e)
{
    const dflash_config *c = &m->c;
    layer               *y = &m->layers[l];
    int                  H = c->n_embd, D = c->head_dim, F = c->n_ff, nq = c->n_heads * D, nk = c->n_kv_heads * D;
    return load_vector(m, b, &y->n_in, DFLASH_ATTN_NORM, l, H, e) &&
           load_vector(m, b, &y->n_ff, DFLASH_FF_NORM, l, H, e) && load_vector(m, b, &y->n_q, DFLASH_Q_NORM, l, D, e) &&
           load_vector(m, b, &y->n_k, DFLASH_K_NORM, l, D, e) && load_matrix(m, b, &y->q, DFLASH_Q, l, H, nq, e) &&
           load_matrix(m, b, &y->k, DFLASH_K, l, H, nk, e) && load_matrix(m, b, &y->v, DFLASH_V, l, H, nk, e) &&
           load_matrix(m, b, &y->o, DFLASH_O, l, nq, H, e) && load_matrix(m, b, &y->gate, DFLASH_GATE, l, H, F, e) &&
           load_matrix(m, b, &y->up, DFLASH_UP, l, H, F, e) && load_matrix(m, b, &y->down, DFLASH_DOWN, l, F, H, e);
}

/* A table of ids, one per row of the head: in directories an offset from the row's own number, in GGUF the id itself. */
static bool read_d2t(const dflash *m, const tensor *t, int32_t *map, err *e)
{
    int      n_vocab = m->d.t->n_vocab;
    uint8_t *seen    = mem_try((size_t)n_vocab);
    bool     ok      = seen || err_set(e, ERR_UNAVAILABLE, "no memory to read 'd2t'");
    for (int i = 0; ok && i < m->n_few; i++) {
        int64_t id = tensor_int(t, (size_t)i);
        if (m->c.layout == DFLASH_DIR && id > -n_vocab && id < n_vocab) id += i;
        ok = (id >= 0 && id < n_vocab) ||
             err_set(e, ERR_FORMAT, "'d2t' leads from row %d to token %lld of %d", i, (long long)id, n_vocab);
        ok = ok && (!seen[id]++ || err_set(e, ERR_FORMAT, "'d2t' names token %lld twice", (long long)id));
        if (ok) map[i] = (int32_t)id;
    }
    mem_free(seen);
    return ok;
}

static bool load_d2t(dflash *m, binder *b, const tensor *t, err *e)
{
    if (!tensor_is_ints(t, m->n_few))
        return err_set(e, ERR_FORMAT, "'d2t' is not a list of %d integers, one per row of the output matrix", m->n_few);
    int32_t *map = mem_try_n((size_t)m->n_few, sizeof *map);
    bool     ok  = (map || err_set(e, ERR_UNAVAILABLE, "no memory to read 'd2t'")) && read_d2t(m, t, map, e) &&
              (b->dry || owned_put(b->own, &m->d2t, map, (size_t)m->n_few * sizeof *map, e));
    mem_free(map);
    return ok;
}

/* A head of its own: for all tokens of the target, or with d2t for some. */
static bool load_head(dflash *m, binder *b, const tensor *t, err *e)
{
    const tensor *d2t     = dflash_tensor(&m->c, b->cp, DFLASH_D2T, 0);
    int           n_vocab = m->d.t->n_vocab;
    if (t->dim[1] < 1 || t->dim[1] > n_vocab || (!d2t && t->dim[1] != n_vocab))
        return err_set(e, ERR_INPUT, "its output matrix is for %lld tokens, the target has %d", (long long)t->dim[1],
                       n_vocab);
    m->n_few = d2t ? (int)t->dim[1] : 0;
    return bind_matrix(b, &m->head, t, m->c.n_embd, (int)t->dim[1], 1, e) && (!d2t || load_d2t(m, b, d2t, e));
}

static bool load_tables(dflash *m, binder *b, err *e)
{
    const dflash_config *c     = &m->c;
    const target        *t     = m->d.t;
    const tensor        *embed = c->own_embed ? dflash_tensor(c, b->cp, DFLASH_EMBED, 0) : NULL;
    const tensor        *head  = dflash_tensor(c, b->cp, DFLASH_HEAD, 0);
    bool                 tied  = embed && !head && c->tied;
    if ((!embed || (!head && !tied)) && c->n_embd != t->n_embd)
        return err_set(e, ERR_INPUT, "it is %d wide and borrows the embeddings of the target, which is %d wide",
                       c->n_embd, t->n_embd);
    if (embed && embed->dim[1] != t->n_vocab)
        return err_set(e, ERR_INPUT, "its embeddings are for %lld tokens, the target has %d", (long long)embed->dim[1],
                       t->n_vocab);
    if (embed && !bind_matrix(b, &m->embed, embed, c->n_embd, t->n_vocab, 1, e)) return false;
    if (tied) m->head = m->embed;
    return !head || load_head(m, b, head, e);
}

static bool load_all(dflash *m, binder *b, err *e)
{
    const dflash_config *c = &m->c;
    if (!load_matrix(m, b, &m->fc, DFLASH_FC, 0, c->n_features, c->n_embd, e) ||
        !load_vector(m, b, &m->n_hidden, DFLASH_HIDDEN_NORM, 0, c->n_embd, e) ||
        !load_vector(m, b, &m->n_out, DFLASH_NORM, 0, c->n_embd, e) || !load_tables(m, b, e))
        return false;
    for (int l = 0; l < c->n_layers; l++)
        if (!load_layer(m, b, l, e)) return false;
    return true;
}

/* --- does it fit the target? --------------------------------------------------------------------*/
static bool fit_captures(dflash *m, err *e)
{
    dflash_config *c = &m->c;
    const target  *t = m->d.t;
    if (!c->n_captures && c->n_features % t->n_embd == 0 && c->n_features / t->n_embd <= t->n_layers &&
        c->n_features / t->n_embd <= DFLASH_MAX_CAPTURES) {
        c->n_captures = c->n_features / t->n_embd;
        dflash_default_captures(c->capture, c->n_captures, t->n_layers);
    }
    if (!c->n_captures || (int64_t)c->n_captures * t->n_embd != c->n_features)
        return err_set(e, ERR_INPUT,
                       "its features are %d wide, and %d layers of the target, %d wide each, do not make that",
                       c->n_features, c->n_captures, t->n_embd);
    if (c->n_captures > t->n_layers)
        return err_set(e, ERR_INPUT, "it wants the outputs of %d layers, the target has %d", c->n_captures,
                       t->n_layers);
    for (int i = 0; i < c->n_captures; i++) {
        if (c->capture[i] >= t->n_layers)
            return err_set(e, ERR_INPUT, "it wants the output of layer %d, the target has %d", c->capture[i],
                           t->n_layers);
        m->d.capture_id[i] = c->capture[i] + 1; /* what comes out of a layer goes into the next */
    }
    m->d.n_capture = c->n_captures;
    return true;
}

static bool fit_target(dflash *m, err *e)
{
    const dflash_config *c = &m->c;
    const target        *t = m->d.t;
    if (c->n_vocab && c->n_vocab != t->n_vocab)
        return err_set(e, ERR_INPUT, "its vocabulary has %d tokens, the target's %d", c->n_vocab, t->n_vocab);
    if (c->mask_id >= t->n_vocab)
        return err_set(e, ERR_INPUT, "its mask token is %d, the target has %d tokens", c->mask_id, t->n_vocab);
    return fit_captures(m, e);
}

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
           (!keep_rows ||
            (take_floats(m, &m->d.draft_hidden, c->block, H, e) && take_floats(m, &m->d.draft_logits, c->block, V, e)));
}

static bool take_waiting(const dflash *m, dev *out, err *e)
{
    return m->o->alloc(m->o, out, (size_t)m->n_waiting * (size_t)m->c.n_features * sizeof(float), e);
}

static bool init_left(dflash *m, err *e)
{
    int n   = m->max_lanes > MIN_LEFT ? m->max_lanes : MIN_LEFT;
    m->left = xnew_n(left_rows, (size_t)n);
    while (m->n_left < n && take_waiting(m, &m->left[m->n_left].rows.features, e)) m->n_left++;
    return m->n_left == n;
}

static bool init_queue(dflash *m, err *e)
{
    const dflash_config *c    = &m->c;
    int                  wide = c->n_features, nq = c->n_heads * c->head_dim;
    if (wide < nq) wide = nq;
    if (wide < c->n_ff) wide = c->n_ff;
    if (wide < c->n_embd) wide = c->n_embd;
    return m->o->queue_reserve(m->q, &(queue_limits){MAX_ROWS, wide, 0, 0, m->d.t->n_vocab}, e);
}

static int32_t max_slots(const dflash *m) { return m->n_ctx + m->n_drop + m->c.block; }

static kv_class_spec class_spec(const dflash_config *c, quant_type type)
{
    return (kv_class_spec){.n_layers = c->n_layers, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim, .type = type};
}

/* Twice the pages, since up to half of a slab may be too small for one; 0: it would be too much. */
static size_t kv_bytes(const dflash *m, const kv_class_spec *cls)
{
    kv_pool_spec spec = {.classes = cls, .n_classes = 1, .max_slots = max_slots(m)};
    size_t       n;
    return kv_bytes_for(&spec, max_slots(m) + KV_PAGE, &n) && size_mul(&n, n, 2 * (size_t)m->max_lanes) ? n : 0;
}

/* Without a pool to share; the class that a pool has from the start is not used. */
static bool make_pool(dflash *m, const kv_class_spec *cls, err *e)
{
    kv_pool_spec spec = {
        .classes = cls, .n_classes = 1, .max_bytes = kv_bytes(m, cls), .max_lanes = 1, .max_slots = KV_PAGE};
    if (!spec.max_bytes)
        return err_set(e, ERR_LIMIT, "the drafter's context of %d for %d lanes is too large", m->n_ctx, m->max_lanes);
    if (!kv_pool_new(&m->own_kv, m->o, &spec, e)) return false;
    kv_pool_set_queue(m->own_kv, m->q);
    m->kv = m->own_kv;
    return true;
}

static bool init_kv(dflash *m, const drafter_options *opt, err *e)
{
    kv_class_spec cls = class_spec(&m->c, opt->kv_type);
    m->kv             = opt->pool;
    if (!m->kv && !make_pool(m, &cls, e)) return false;
    /* two sequences for a lane: the second is its first page as it was made */
    m->has_cls = kv_pool_add_class(m->kv, &cls, 2 * m->max_lanes, max_slots(m), &m->cls, e);
    return m->has_cls;
}

static int whole_pages(int n) { return (n + KV_PAGE - 1) / KV_PAGE * KV_PAGE; }

/* So that a plain answer of usual length is never folded in, where its features are small. */
static int rows_that_wait(const dflash *m)
{
    size_t n = WAITING_BYTES / ((size_t)m->c.n_features * sizeof(float)) / KV_PAGE * KV_PAGE;
    return n < MIN_WAITING ? MIN_WAITING : n > MAX_WAITING ? MAX_WAITING : (int)n;
}

static bool init_context(dflash *m, const drafter_options *opt, err *e)
{
    const target *t  = m->d.t;
    m->d.trained_ctx = m->c.n_ctx <= MAX_TRAINED ? m->c.n_ctx : 0;
    m->n_ctx         = opt->n_ctx ? opt->n_ctx : m->d.trained_ctx ? m->d.trained_ctx : DEFAULT_CTX;
    if (m->n_ctx > t->n_ctx) m->n_ctx = t->n_ctx;
    m->n_ctx = whole_pages(m->n_ctx);
    if (m->n_ctx < MIN_CTX)
        return err_set(e, ERR_INPUT, "a drafter's context of %d is too short, it needs %d", m->n_ctx, MIN_CTX);
    m->n_drop    = whole_pages(m->n_ctx / 4);
    m->max_lanes = opt->max_lanes > 0 ? opt->max_lanes : 1;
    m->n_waiting = rows_that_wait(m);
    return true;
}

static int32_t shift_of(const dflash *m, int32_t n_pos)
{
    return n_pos <= m->n_ctx ? 0 : (n_pos - m->n_ctx + m->n_drop - 1) / m->n_drop * m->n_drop;
}

/* --- lanes --------------------------------------------------------------------------------------*/
static void dflash_lane_free(drafter *d, draft_lane *l)
{
    dflash *m = (dflash *)d;
    if (!l) return;
    kv_seq_free(l->seq);
    kv_seq_free(l->first);
    m->n_lanes--;
    for (int i = 0; i < m->max_lanes; i++)
        if (m->lanes[i] == l) m->lanes[i] = NULL;
    if (l->waiting.p) m->o->free(m->o, l->waiting);
    mem_free(l);
}

static void list_lane(dflash *m, draft_lane *l)
{
    int i = 0;
    while (m->lanes[i]) i++;
    m->lanes[i] = l;
}

/* Pages are taken when rows come. */
static bool dflash_lane_new(drafter *d, draft_lane **out, err *e)
{
    dflash     *m = (dflash *)d;
    draft_lane *l = xnew(draft_lane);
    *out          = NULL;
    bool ok       = m->n_lanes++ < m->max_lanes || err_set(e, ERR_BUSY, "all lanes of the drafter are taken");
    if (ok) l->seq = kv_seq_new(m->kv, m->cls);
    ok = ok && take_waiting(m, &l->waiting, e);
    if (ok)
        list_lane(m, *out = l);
    else
        dflash_lane_free(d, l);
    return ok;
}

static int32_t next_pos(const draft_lane *l) { return l->base + l->n_seen; }

static int32_t slot_of(const draft_lane *l, int32_t pos) { return pos < KV_PAGE ? pos : pos - l->shift; }

/* The first position that is not folded in, of those that a draft can see. */
static int32_t folded_end(const draft_lane *l)
{
    int32_t len = kv_seq_len(l->seq);
    return len < KV_PAGE ? len : len + l->shift;
}

/* An empty context whose first row is the text's at `pos`; `skip` rows behind its first page will not be seen. */
static void start_at(const dflash *m, draft_lane *l, int32_t pos, int32_t skip)
{
    kv_seq_free(l->seq);
    kv_seq_free(l->first);
    l->seq    = kv_seq_new(m->kv, m->cls);
    l->first  = NULL;
    l->base   = pos;
    l->n_seen = l->n_wait = l->n_given = 0;
    l->shift                           = skip;
    l->turned                          = 0;
    if (pos) l->text = NULL;
}

/* What is in its pages may not be what it should be: the next rows start a new context. */
static void lose(const dflash *m, draft_lane *l)
{
    start_at(m, l, 0, 0);
    l->text = NULL;
}

static void dflash_cut(drafter *d, draft_lane *l, int32_t n_pos)
{
    dflash *m = (dflash *)d;
    int32_t n = n_pos - l->base, folded = folded_end(l);
    if (n_pos >= next_pos(l)) return;
    if (n <= 0 || l->shift > shift_of(m, n)) { /* what was before it is no more */
        start_at(m, l, n_pos, 0);
        return;
    }
    l->n_seen  = n;
    l->n_wait  = n > folded ? n - folded : 0;
    l->n_given = l->n_given < n / KV_PAGE ? l->n_given : n / KV_PAGE;
    if (n < folded) kv_seq_cut(l->seq, slot_of(l, n));
}

/* --- requests -----------------------------------------------------------------------------------*/
static int32_t first_wished(const void *lane, int32_t n_pos)
{
    (void)n_pos;
    return ((const draft_lane *)lane)->wished;
}

static void dflash_wish(const drafter *d, const draft_lane *l, kv_wish *out)
{
    *out = (kv_wish){.cls = ((const dflash *)d)->cls, .head_pages = 1, .first = first_wished, .ctx = l};
}

static void dflash_take(drafter *d, draft_lane *l, kv_node *at)
{
    (void)d;
    l->n_seen = kv_node_end(at);
    kv_prefix_take_class(l->text->tree, at, l->seq, 1, l->wished < l->n_seen ? l->wished : l->n_seen);
    l->n_given = l->n_seen / KV_PAGE;
    l->shift   = l->wished - KV_PAGE;
}

/* Pages that are complete go into the tree; where others were faster, the lane goes on with theirs. */
static void give_pages(draft_lane *l)
{
    const draft_text *t = l->text;
    if (!t || !t->tree) return;
    for (int k; (k = l->n_given) < t->n_nodes && (k + 1) * KV_PAGE <= folded_end(l); l->n_given++) {
        kv_seq *s = k == 0 && l->first ? l->first : l->seq;
        if (k > 0 && k * KV_PAGE < KV_PAGE + l->shift) continue; /* left out, or dropped */
        kv_prefix_put(t->tree, t->salt, k ? t->node[k - 1] : NULL, t->token + (size_t)k * KV_PAGE, s,
                      slot_of(l, k * KV_PAGE) / KV_PAGE);
    }
}

/* No more than this can be in the context at once, a block and the page as it was made counted. */
static void dflash_need(const drafter *d, kv_need *n, int32_t n_pos)
{
    const dflash *m     = (const dflash *)d;
    int32_t       slots = n_pos + m->c.block < max_slots(m) ? n_pos + m->c.block : max_slots(m);
    kv_need_add(m->kv, n, m->cls, slots, slots);
    kv_need_add(m->kv, n, m->cls, KV_PAGE, KV_PAGE);
}

/* --- the context --------------------------------------------------------------------------------*/
static step_rows upload_rows(dflash *m)
{
    dev d = m->s.rows;
    m->o->upload(m->q, d, &m->rows, sizeof m->rows);
    return (step_rows){.n_rows = m->rows.n,
                       .token  = dev_at(d, offsetof(block_rows, token)),
                       .pos    = dev_at(d, offsetof(block_rows, pos)),
                       .lane   = dev_at(d, offsetof(block_rows, lane)),
                       .slot   = dev_at(d, offsetof(block_rows, slot)),
                       .parent = dev_at(d, offsetof(block_rows, slot)), /* not read: all that is seen lies below root */
                       .root   = dev_at(d, offsetof(block_rows, root)),
                       .last   = dev_at(d, offsetof(block_rows, last_full))};
}

static void add_row(dflash *m, const draft_lane *l, int32_t token, int32_t slot, int32_t end)
{
    const dflash_config *c       = &m->c;
    block_rows          *b       = &m->rows;
    int                  i       = b->n++;
    int32_t              in_view = slot + c->window - 1 < end ? slot + c->window - 1 : end;
    assert(i < MAX_ROWS);
    b->token[i]        = token;
    b->pos[i]          = l->base + (slot < KV_PAGE ? slot : slot + l->shift);
    b->lane[i]         = kv_seq_lane(l->seq);
    b->slot[i]         = slot;
    b->root[i]         = end + 1;
    b->last_full[i]    = c->causal_full ? slot : end;
    b->last_sliding[i] = c->causal_sliding ? slot : in_view;
}

/* k = rope(N_k(Wk x)), v = Wv x, into the pages */
static void store_kv(dflash *m, int l, dev x, const step_rows *r)
{
    const dflash_config *c  = &m->c;
    const ops           *o  = m->o;
    const layer         *y  = &m->layers[l];
    int                  nk = c->n_kv_heads, D = c->head_dim;
    o->matmul(m->q, m->s.k, y->k, x, r->n_rows);
    o->matmul(m->q, m->s.v, y->v, x, r->n_rows);
    o->rms_norm(m->q, m->s.k, m->s.k, y->n_k, r->n_rows * nk, D, (float)c->eps);
    o->rope(m->q, m->s.k, r, nk, D, m->freq);
    o->kv_store(m->q, kv_pool_class(m->kv, m->cls), l, r, m->s.k, m->s.v);
}

/* A pass over the rows at hand, from x; false: it is to be enqueued op by op. */
static bool replay(dflash *m, dev x)
{
    uint64_t key = graph_key_at(graph_key_at(kv_pool_key(m->kv), m), x.p);
    return m->rows.n <= GRAPH_MAX_ROWS && m->o->replay(m->q, graph_key(key, (uint64_t)m->rows.n));
}

/* K/V of the pass's rows from g, whose rows they are. */
static void store_context(dflash *m, dev g)
{
    kv_pool_flush(m->kv, m->q);
    step_rows r = upload_rows(m);
    for (bool done = replay(m, g); !done; done = m->o->record_end(m->q))
        for (int l = 0; l < m->c.n_layers; l++) store_kv(m, l, g, &r);
}

/* Forgets what no draft behind the folded rows can see. */
static void slide(const dflash *m, draft_lane *l)
{
    int32_t shift = shift_of(m, folded_end(l)), more = shift - l->shift;
    if (more <= 0) return;
    kv_seq_drop(l->seq, 1, more / KV_PAGE);
    l->shift = shift;
}

/* The first page for the positions before the recent ones. */
static bool turn_first(dflash *m, draft_lane *l, err *e)
{
    kv_move_item item[KV_PAGE];
    if (l->turned == l->shift) return true;
    if (!l->first) l->first = kv_seq_fork(l->seq, KV_PAGE);
    assert(l->first); /* there are two sequences for every lane */
    if (!kv_seq_own(l->seq, 0, e)) return false;
    for (int s = 0; s < KV_PAGE; s++)
        item[s] = (kv_move_item){
            .from_lane = kv_seq_lane(l->first), .from = s, .to_lane = kv_seq_lane(l->seq), .to = s, .turn = l->shift};
    kv_pool_flush(m->kv, m->q);
    m->o->upload(m->q, m->s.moves, item, sizeof item);
    m->o->kv_move(m->q, kv_pool_class(m->kv, m->cls), m->s.moves, KV_PAGE, m->freq);
    l->turned = l->shift;
    return true;
}

/* The lane's next n rows join the pass. */
static bool add_context(dflash *m, draft_lane *l, int n, err *e)
{
    int32_t len = kv_seq_len(l->seq);
    if (!kv_seq_grow(l->seq, len + n, e)) return false;
    for (int i = 0; i < n; i++) add_row(m, l, 0, len + i, len + i);
    return true;
}

/* The pass's rows from features to K/V. */
static void fold(dflash *m, dev features)
{
    int n = m->rows.n;
    m->d.n_folded += n;
    m->o->matmul(m->q, m->s.y, m->fc, features, n);
    m->o->rms_norm(m->q, m->s.y, m->s.y, m->n_hidden, n, m->c.n_embd, (float)m->c.eps);
    store_context(m, m->s.y);
    m->rows.n = 0;
}

static void folded(const dflash *m, draft_lane *l)
{
    give_pages(l);
    slide(m, l);
}

/* Rows of features that lie side by side, n_drop at most at a time: so much room there always is. */
static bool fold_rows(dflash *m, draft_lane *l, dev features, int n_rows, err *e)
{
    size_t F = (size_t)m->c.n_features;
    for (int done = 0, n; done < n_rows; done += n) {
        n         = min_int(n_rows - done, min_int(m->n_drop, MAX_ROWS));
        m->rows.n = 0;
        if (!add_context(m, l, n, e)) return false;
        fold(m, dev_at_f32(features, (size_t)done * F));
        folded(m, l);
    }
    return true;
}

static bool fold_waiting(dflash *m, draft_lane *l, err *e)
{
    int n     = l->n_wait;
    l->n_wait = 0;
    return fold_rows(m, l, l->waiting, n, e);
}

/* What waits in these lanes: gathered, so that a pass over the weights serves several. */
static bool fold_together(dflash *m, draft_lane *const *lanes, int n_lanes, err *e)
{
    size_t F = (size_t)m->c.n_features;
    for (int i = 0; i < n_lanes; i++)
        if (lanes[i]->n_wait > m->n_drop && !fold_waiting(m, lanes[i], e)) return false;
    for (int i = 0, end; i < n_lanes; i = end) {
        m->rows.n = 0;
        for (end = i; end < n_lanes && m->rows.n + lanes[end]->n_wait <= MAX_ROWS; end++) {
            draft_lane *l = lanes[end];
            if (!l->n_wait) continue;
            m->o->copy_rows(m->q, dev_at_f32(m->s.features, (size_t)m->rows.n * F), (int)F, l->waiting, (int)F,
                            (dev){0}, l->n_wait, (int)F);
            if (!add_context(m, l, l->n_wait, e)) return false;
            l->n_wait = 0;
        }
        if (m->rows.n) fold(m, m->s.features);
        for (; i < end; i++) folded(m, lanes[i]);
    }
    return true;
}

/* Features of the target's rows, side by side at `to`. */
static void gather(dflash *m, dev to, const int32_t *row, int n)
{
    int F = m->c.n_features;
    m->o->upload(m->q, m->s.index, row, (size_t)n * sizeof *row);
    m->o->copy_rows(m->q, to, F, m->d.t->features, F, m->s.index, n, F);
}

/* Many rows at once, such as a prompt's: they need not wait. Where they lie side by side they need no gathering. */
static bool fold_now(dflash *m, draft_lane *l, const int32_t *row, int n, err *e)
{
    bool dense = true;
    for (int i = 1; i < n; i++) dense &= row[i] == row[0] + i;
    if (!dense) gather(m, m->s.features, row, n);
    return fold_rows(
        m, l, dense ? dev_at_f32(m->d.t->features, (size_t)row[0] * (size_t)m->c.n_features) : m->s.features, n, e);
}

static bool take_rows(dflash *m, draft_lane *l, const int32_t *row, int n, err *e)
{
    size_t F = (size_t)m->c.n_features;
    if (n <= 0) return true;
    if (l->n_wait + n > m->n_waiting && !fold_waiting(m, l, e)) return false;
    if (n > m->n_waiting) return fold_now(m, l, row, n, e);
    gather(m, dev_at_f32(l->waiting, (size_t)l->n_wait * F), row, n);
    l->n_wait += n;
    return true;
}

/* Rows of the first page, and those that a draft can see. */
static bool observe_rows(dflash *m, draft_lane *l, const draft_rows *r, err *e)
{
    if (r->pos != next_pos(l)) start_at(m, l, r->pos, 0);
    int head = min_int(r->n, KV_PAGE - l->n_seen), tail = min_int(r->n, KV_PAGE + l->shift - l->n_seen);
    if (head < 0) head = 0;
    if (tail < head) tail = head;
    l->n_seen += r->n;
    return take_rows(m, l, r->row, head, e) && take_rows(m, l, r->row + tail, r->n - tail, e);
}

static bool dflash_observe(drafter *d, draft_lane *l, const draft_rows *r, err *e)
{
    dflash *m = (dflash *)d;
    assert(d->t->n_features == d->n_capture && r->n <= MAX_ROWS);
    fault_no_alloc_begin("observe"); /* promise 4 */
    bool ok = r->n <= 0 || observe_rows(m, l, r, e);
    fault_no_alloc_end();
    if (!ok) lose(m, l);
    return ok;
}

/* --- a block ------------------------------------------------------------------------------------*/
/* x = x + Wo attention(N_in(x)) */
static void attention_block(dflash *m, int l, const step_rows *r)
{
    const dflash_config *c = &m->c;
    const ops           *o = m->o;
    const layer         *y = &m->layers[l];
    int                  n = r->n_rows, D = c->head_dim;
    step_rows            seen = *r;
    o->rms_norm(m->q, m->s.y, m->s.x, y->n_in, n, c->n_embd, (float)c->eps);
    o->matmul(m->q, m->s.q, y->q, m->s.y, n);
    o->rms_norm(m->q, m->s.q, m->s.q, y->n_q, n * c->n_heads, D, (float)c->eps);
    o->rope(m->q, m->s.q, r, c->n_heads, D, m->freq);
    store_kv(m, l, m->s.y, r);
    seen.pos = r->slot;
    if (c->sliding[l]) seen.last = dev_at(m->s.rows, offsetof(block_rows, last_sliding));
    o->attention(m->q, m->s.heads, m->s.q, c->n_heads, kv_pool_class(m->kv, m->cls), l, &seen, 1 / sqrtf((float)D),
                 c->sliding[l] ? c->window : 0);
    o->matmul(m->q, m->s.f, y->o, m->s.heads, n);
    o->add(m->q, m->s.x, m->s.x, m->s.f, (size_t)n * (size_t)c->n_embd, 1);
}

/* x = x + Wdown(silu(Wgate z) * Wup z), z = N_ff(x) */
static void dense_block(dflash *m, int l, int n)
{
    const dflash_config *c = &m->c;
    const ops           *o = m->o;
    const layer         *y = &m->layers[l];
    int                  F = c->n_ff;
    o->rms_norm(m->q, m->s.y, m->s.x, y->n_ff, n, c->n_embd, (float)c->eps);
    o->matmul(m->q, m->s.gate, y->gate, m->s.y, n);
    o->matmul(m->q, m->s.up, y->up, m->s.y, n);
    o->gated(m->q, m->s.gate, m->s.gate, F, m->s.up, F, n, F, ACT_SILU);
    o->matmul(m->q, m->s.f, y->down, m->s.gate, n);
    o->add(m->q, m->s.x, m->s.x, m->s.f, (size_t)n * (size_t)c->n_embd, 1);
}

static void run_layers(dflash *m, const step_rows *r)
{
    target *t = m->d.t;
    if (m->embed)
        m->o->embed(m->q, m->s.x, m->embed, r->token, r->n_rows, m->embed_scale);
    else
        t->embed(t, m->s.x, r->token, r->n_rows);
    for (int l = 0; l < m->c.n_layers; l++) {
        attention_block(m, l, r);
        dense_block(m, l, r->n_rows);
    }
    m->o->rms_norm(m->q, m->s.y, m->s.x, m->n_out, r->n_rows, m->c.n_embd, (float)m->c.eps);
}

/* The pass's rows through all layers; s.y has them after the last norm. */
static void forward(dflash *m)
{
    kv_pool_flush(m->kv, m->q);
    step_rows r = upload_rows(m);
    for (bool done = replay(m, m->s.rows); !done; done = m->o->record_end(m->q)) run_layers(m, &r);
}

/* Logits of n <= HEAD_ROWS states. The cap comes before tokens that the drafter does not know get their -inf. */
static void project(dflash *m, dev logits, dev hidden, int n, float cap)
{
    target *t    = m->d.t;
    dev     made = m->n_few ? m->s.few : logits;
    if (m->head)
        m->o->matmul(m->q, made, m->head, hidden, n);
    else
        t->project(t, made, hidden, n);
    if (cap > 0) m->o->softcap(m->q, made, (size_t)n * (size_t)(m->n_few ? m->n_few : t->n_vocab), cap);
    if (m->n_few) m->o->scatter_logits(m->q, logits, made, (dev){0}, m->d2t, n, 1, m->n_few, t->n_vocab, INFINITY);
}

static int wanted(const dflash *m, const draft_job *job)
{
    return job->n_want < m->d.max_draft ? job->n_want : m->d.max_draft;
}

typedef struct {
    draft_job *job;
    int        first, n; /* guesses of the job */
    int        at;       /* row of the logits */
} guess_run;

static bool pick_runs(dflash *m, const guess_run *run, int n_runs, err *e)
{
    for (int i = 0; i < n_runs; i++) {
        dev logits = dev_at_f32(m->s.logits, (size_t)run[i].at * (size_t)m->d.t->n_vocab);
        if (!draft_pick(&m->pick, run[i].job, logits, run[i].first, run[i].n, e)) return false;
        run[i].job->n = run[i].first + run[i].n;
    }
    return true;
}

/* Row after row, HEAD_ROWS at a time, whosever they are: the output matrix is the largest of all. */
static bool pick_guesses(dflash *m, draft_job *const *jobs, int n_jobs, err *e)
{
    int H = m->c.n_embd;
    for (int j = 0, done = 0, block = 0; j < n_jobs;) { /* block: row where job j's begins */
        guess_run run[HEAD_ROWS];
        int32_t   row[HEAD_ROWS];
        int       n = 0, n_runs = 0;
        while (j < n_jobs && n < HEAD_ROWS) {
            int left = wanted(m, jobs[j]) - done, k = left < HEAD_ROWS - n ? left : HEAD_ROWS - n;
            run[n_runs++] = (guess_run){jobs[j], done, k, n};
            for (int i = 0; i < k; i++) row[n++] = block + 1 + done++;
            if (k == left) block += 1 + wanted(m, jobs[j++]), done = 0;
        }
        m->o->upload(m->q, m->s.index, row, (size_t)n * sizeof *row);
        m->o->copy_rows(m->q, m->s.hidden, H, m->s.y, H, m->s.index, n, H);
        project(m, m->s.logits, m->s.hidden, n, m->softcap);
        if (!pick_runs(m, run, n_runs, e)) return false;
    }
    return true;
}

/* The rows of the pass's first block, n of them, for whoever wants to look. */
static void keep_rows(dflash *m, int n_rows)
{
    drafter *d = &m->d;
    size_t   H = (size_t)m->c.n_embd, V = (size_t)d->t->n_vocab;
    if (!d->draft_hidden.p) return;
    m->o->copy_rows(m->q, d->draft_hidden, (int)H, m->s.y, (int)H, (dev){0}, n_rows, (int)H);
    for (int first = 0, n; first < n_rows; first += n) {
        n = min_int(n_rows - first, HEAD_ROWS);
        project(m, dev_at_f32(d->draft_logits, (size_t)first * V), dev_at_f32(d->draft_hidden, (size_t)first * H), n,
                0);
    }
}

static bool add_block(dflash *m, const draft_job *job, err *e)
{
    draft_lane *l   = job->lane;
    int32_t     len = kv_seq_len(l->seq), end = len + wanted(m, job);
    if (!kv_seq_grow(l->seq, end + 1, e)) return false;
    add_row(m, l, job->text[job->n_text - 1], len, end);
    for (int32_t s = len + 1; s <= end; s++) add_row(m, l, m->c.mask_id, s, end);
    return true;
}

/* A pass over the blocks of these jobs, whose contexts are complete. */
static bool run_blocks(dflash *m, draft_job *const *jobs, int n_jobs, err *e)
{
    bool ok   = true;
    m->rows.n = 0;
    for (int i = 0; ok && i < n_jobs; i++) ok = add_block(m, jobs[i], e);
    if (ok) forward(m);
    for (int i = 0; i < n_jobs; i++) { /* the next rows of the text come where the blocks were */
        draft_lane *l = jobs[i]->lane;
        kv_seq_cut(l->seq, slot_of(l, l->n_seen));
    }
    return ok;
}

static bool draft_pass(dflash *m, draft_job *const *jobs, int n_jobs, bool first, err *e)
{
    if (!run_blocks(m, jobs, n_jobs, e)) return false;
    if (first) keep_rows(m, 1 + wanted(m, jobs[0]));
    return pick_guesses(m, jobs, n_jobs, e);
}

/* As many blocks in a pass as it has rows for. */
static bool draft_passes(dflash *m, draft_job *const *jobs, int n_jobs, err *e)
{
    for (int i = 0, end; i < n_jobs; i = end) {
        int rows = 0;
        for (end = i; end < n_jobs && rows + 1 + wanted(m, jobs[end]) <= MAX_ROWS; end++)
            rows += 1 + wanted(m, jobs[end]);
        if (!draft_pass(m, jobs + i, end - i, i == 0, e)) return false;
    }
    return true;
}

/* One whose context is not that of its text gets no guesses. */
static bool draft_all(dflash *m, draft_job *const *jobs, int n_jobs, err *e)
{
    draft_job  *live[STEP_MAX_ROWS];
    draft_lane *lanes[STEP_MAX_ROWS];
    int         n = 0;
    for (int i = 0; i < n_jobs; i++)
        if (jobs[i]->n_want > 0 && next_pos(jobs[i]->lane) == jobs[i]->n_text - 1) {
            live[n]    = jobs[i];
            lanes[n++] = jobs[i]->lane;
        }
    if (!fold_together(m, lanes, n, e)) return false;
    for (int i = 0; i < n; i++)
        if (!turn_first(m, lanes[i], e)) return false;
    return draft_passes(m, live, n, e);
}

static bool dflash_draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e)
{
    assert(n_jobs <= STEP_MAX_ROWS);
    (void)kv; /* its context is its own */
    for (int i = 0; i < n_jobs; i++) jobs[i]->n = 0, jobs[i]->later = false;
    fault_no_alloc_begin("draft"); /* promise 4 */
    bool ok = draft_all((dflash *)d, jobs, n_jobs, e);
    fault_no_alloc_end();
    for (int i = 0; !ok && i < n_jobs; i++) {
        jobs[i]->n = 0;
        lose((dflash *)d, jobs[i]->lane);
    }
    return ok;
}

/* --- what requests leave ------------------------------------------------------------------------*/
static uint64_t hash_of(const int32_t *token, int32_t n)
{
    uint64_t h = 0;
    for (int32_t i = 0; i < n; i++) {
        h = (h ^ (uint32_t)token[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    }
    return h;
}

/* The complete pages among the rows that wait in the lane; false: there is none, or a part of the first is folded in. */
static bool unfolded_pages(const draft_lane *l, unfolded *out)
{
    const draft_text *t     = l->text;
    int32_t           first = folded_end(l), end = min_int(l->n_seen / KV_PAGE, t->n_nodes) * KV_PAGE;
    if (first % KV_PAGE || first + l->n_wait != l->n_seen || end <= first) return false;
    *out = (unfolded){first, end - first, t->token + first, l->waiting};
    return true;
}

static left_rows *place_for_more(dflash *m)
{
    left_rows *best = &m->left[0];
    for (int i = 1; i < m->n_left && best->rows.n; i++)
        if (!m->left[i].rows.n || m->left[i].stamp < best->stamp) best = &m->left[i];
    return best;
}

/* The lane gets the features that were there. */
static void leave(dflash *m, draft_lane *l, const unfolded *rows)
{
    left_rows *x      = place_for_more(m);
    dev        unused = x->rows.features;
    memcpy(x->token, rows->token, (size_t)rows->n * sizeof *x->token);
    x->rows       = *rows;
    x->rows.token = x->token;
    x->salt       = l->text->salt;
    x->before     = hash_of(l->text->token, rows->first);
    x->stamp      = ++m->now;
    l->waiting    = unused;
}

/* A request's end. What cannot be folded in is not found by others: no more than that. */
static void dflash_end(drafter *d, draft_lane *l)
{
    dflash  *m = (dflash *)d;
    unfolded rows;
    if (l->text && l->text->tree && l->n_wait) {
        int n_full = l->n_wait - l->n_seen % KV_PAGE;
        if (unfolded_pages(l, &rows))
            leave(m, l, &rows);
        else if (n_full > 0)
            fold_rows(m, l, l->waiting, n_full, NULL);
    }
    lose(m, l);
}

/* How many of the rows are of this text and of use to a hit, in whole pages. */
static int rows_alike(const unfolded *x, const draft_text *t)
{
    int n = 0;
    while (n < x->n && x->first + n + KV_PAGE < t->n_prompt &&
           !memcmp(x->token + n, t->token + x->first + n, KV_PAGE * sizeof *x->token))
        n += KV_PAGE;
    return n;
}

static bool is_wished(const draft_lane *l, int32_t pos) { return pos < KV_PAGE || pos >= l->wished; }

/* The first page before `end` that a hit needs and that only the target has; end: there is none. *before: the node that it
 * lies behind. */
static int32_t first_missing(const dflash *m, const draft_lane *l, const draft_text *t, int32_t end, kv_node **before)
{
    *before = NULL;
    for (int32_t pos = 0; pos < end; pos += KV_PAGE) {
        kv_node *n = kv_prefix_next(t->tree, t->salt, *before, t->token + pos);
        if (!n) break;
        if (is_wished(l, pos) && !kv_node_has(n, m->cls)) return pos;
        *before = n;
    }
    return end;
}

/* n rows from `pos` on, the first page that is missing, into the tree. The room for them may cost what lies before them. */
static bool fold_pages(dflash *m, draft_lane *l, const draft_text *t, const unfolded *x, int32_t pos, int n)
{
    kv_node *at;
    start_at(m, l, pos, 0);
    m->rows.n = 0;
    if (!add_context(m, l, n, NULL) || first_missing(m, l, t, pos + KV_PAGE, &at) != pos) return false;
    fold(m, dev_at_f32(x->features, (size_t)(pos - x->first) * (size_t)m->c.n_features));
    for (int k = 0; k < n / KV_PAGE; k++) {
        at = kv_prefix_put(t->tree, t->salt, at, t->token + pos + (size_t)k * KV_PAGE, l->seq, k);
        if (!at) return k > 0;
    }
    return true;
}

/* The first n of these rows, as far as they are missing and nothing is before them. */
static void fold_missing(dflash *m, draft_lane *l, const draft_text *t, const unfolded *x, int n)
{
    int32_t  end = x->first + n, pos;
    kv_node *at;
    while ((pos = first_missing(m, l, t, end, &at)) < end && pos >= x->first) {
        int some = min_int(end - pos, min_int(m->n_drop, MAX_ROWS));
        if (!fold_pages(m, l, t, x, pos, some)) return;
    }
}

static left_rows *next_left(const dflash *m, uint64_t stamp)
{
    left_rows *next = NULL;
    for (int i = 0; i < m->n_left; i++) {
        left_rows *x = &m->left[i];
        if (x->rows.n && x->stamp > stamp && (!next || x->stamp < next->stamp)) next = x;
    }
    return next;
}

/* What others left of this text, the oldest first: later rows may start where they end. Rows of another text stay. */
static void fold_left(dflash *m, draft_lane *l, const draft_text *t)
{
    uint64_t stamp = 0;
    for (left_rows *x; (x = next_left(m, stamp)); stamp = x->stamp) {
        int n = x->salt == t->salt ? rows_alike(&x->rows, t) : 0;
        if (!n || x->before != hash_of(t->token, x->rows.first)) continue;
        fold_missing(m, l, t, &x->rows, n);
        if (n == x->rows.n) x->rows.n = 0;
    }
}

/* What waits in other lanes, where it goes on waiting. */
static void fold_of_lanes(dflash *m, draft_lane *l, const draft_text *t)
{
    unfolded x;
    for (int i = 0; i < m->max_lanes; i++) {
        const draft_lane *o = m->lanes[i];
        if (!o || o == l || !o->text || o->text->tree != t->tree || o->text->salt != t->salt) continue;
        if (!unfolded_pages(o, &x)) continue;
        int n = rows_alike(&x, t);
        if (n && !memcmp(o->text->token, t->token, (size_t)x.first * sizeof *t->token)) fold_missing(m, l, t, &x, n);
    }
}

/* A request's begin. It finds what was folded in, so rows of its text that were not are now. */
static void dflash_begin(drafter *d, draft_lane *l, const draft_text *t)
{
    dflash *m    = (dflash *)d;
    int32_t seen = shift_of(m, t->n_prompt);
    l->wished    = KV_PAGE + seen;
    if (t->tree) {
        fold_left(m, l, t);
        fold_of_lanes(m, l, t);
    }
    start_at(m, l, 0, seen > m->n_drop ? seen - m->n_drop : 0);
    l->text = t;
}

/* --- open and close -----------------------------------------------------------------------------*/
static void dflash_close(drafter *d)
{
    dflash *m = (dflash *)d;
    draft_picker_deinit(&m->pick);
    for (int i = 0; i < m->n_left; i++) m->o->free(m->o, m->left[i].rows.features);
    if (m->has_cls) kv_pool_drop_class(m->kv, m->cls);
    kv_pool_free(m->own_kv);
    owned_free(&m->own);
    mem_free(m->layers);
    mem_free(m->lanes);
    mem_free(m->left);
    mem_free(m);
}

/* Shapes first: they bound every size that is taken. */
static bool load_drafter(dflash *m, binder *b, const drafter_options *opt, err *e)
{
    if (!dflash_config_read(&m->c, b->cp, e) || !fit_target(m, e)) return false;
    const dflash_config *c = &m->c;
    owned_init(&m->own, m->o, c->n_layers * PER_LAYER + 64);
    m->own.q       = m->q;
    m->layers      = xnew_n(layer, (size_t)c->n_layers);
    m->softcap     = c->softcap >= 0 ? (float)c->softcap : m->d.t->softcap;
    m->embed_scale = strcmp(m->d.t->family, "gemma4") ? 1 : sqrtf((float)c->n_embd);
    if (!init_context(m, opt, e)) return false;
    m->lanes = xnew_n(draft_lane *, (size_t)m->max_lanes);
    if (!load_all(m, b, e) || !init_queue(m, e)) return false;
    bind_begin(b);
    return load_all(m, b, e) && bind_rope(&m->own, &m->freq, c->head_dim, c->theta, 1, 1, NULL, e) &&
           init_scratch(m, opt->keep_rows, e) && init_left(m, e) && init_kv(m, opt, e) &&
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
    m->d      = (drafter){.kind      = "dflash",
                          .t         = t,
                          .one_pass  = true,
                          .lane_new  = dflash_lane_new,
                          .lane_free = dflash_lane_free,
                          .cut       = dflash_cut,
                          .observe   = dflash_observe,
                          .draft     = dflash_draft,
                          .begin     = dflash_begin,
                          .wish      = dflash_wish,
                          .take      = dflash_take,
                          .end       = dflash_end,
                          .need      = dflash_need,
                          .close     = dflash_close};
    binder b  = {.cp = cp, .own = &m->own, .dry = true, .recode = opt->quantise};
    bool   ok = load_drafter(m, &b, opt, e);
    bind_end(&b);
    if (!ok) {
        dflash_close(&m->d);
        return err_wrap(e, "cannot load %s", cp->path);
    }
    m->d.max_draft      = m->c.block - 1 < DRAFT_MAX ? m->c.block - 1 : DRAFT_MAX;
    m->d.weight_bytes   = m->own.weight_bytes;
    m->d.n_draft_hidden = m->c.n_embd;
    *out                = &m->d;
    return true;
}
