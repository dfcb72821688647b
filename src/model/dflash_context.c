/* The context of a DFlash lane: converts the target's features of committed rows to K/V of the drafter. */
#include "base/fault.h"
#include "base/mem.h"
#include "model/dflash_inside.h"

#include <assert.h>

int32_t dflash_shift(const dflash *m, int32_t n_pos)
{
    return n_pos <= m->n_ctx ? 0 : (n_pos - m->n_ctx + m->n_drop - 1) / m->n_drop * m->n_drop;
}

/* --- lanes --------------------------------------------------------------------------------------*/
void dflash_lane_free(drafter *d, draft_lane *l)
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

/* Makes a lane. Pages are allocated when rows arrive. */
bool dflash_lane_new(drafter *d, draft_lane **out, err *e)
{
    dflash     *m = (dflash *)d;
    draft_lane *l = xnew(draft_lane);
    *out          = NULL;
    bool ok       = m->n_lanes++ < m->max_lanes || err_set(e, ERR_BUSY, "all lanes of the drafter are taken");
    if (ok) l->seq = kv_seq_new(m->kv, m->cls);
    ok = ok && dflash_take_waiting(m, &l->waiting, e);
    if (ok)
        list_lane(m, *out = l);
    else
        dflash_lane_free(d, l);
    return ok;
}

int32_t dflash_next_pos(const draft_lane *l) { return l->base + l->n_seen; }

int32_t dflash_slot(const draft_lane *l, int32_t pos) { return pos < KV_PAGE ? pos : pos - l->shift; }

/* Returns the first position that a draft attends to and that is not converted yet. */
int32_t dflash_folded_end(const draft_lane *l)
{
    int32_t len = kv_seq_len(l->seq);
    return len < KV_PAGE ? len : len + l->shift;
}

/* Starts an empty context at text position `pos`. No draft attends to the first `skip` rows after its first page. */
void dflash_start_at(const dflash *m, draft_lane *l, int32_t pos, int32_t skip)
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

/* Invalidates the context after a failure: the next rows start a new one. */
void dflash_lose(const dflash *m, draft_lane *l)
{
    dflash_start_at(m, l, 0, 0);
    l->text = NULL;
}

void dflash_cut(drafter *d, draft_lane *l, int32_t n_pos)
{
    dflash *m = (dflash *)d;
    int32_t n = n_pos - l->base, folded = dflash_folded_end(l);
    if (n_pos >= dflash_next_pos(l)) return;
    if (n <= 0 || l->shift > dflash_shift(m, n)) { /* the rows before it were dropped */
        dflash_start_at(m, l, n_pos, 0);
        return;
    }
    l->n_seen  = n;
    l->n_wait  = n > folded ? n - folded : 0;
    l->n_given = l->n_given < n / KV_PAGE ? l->n_given : n / KV_PAGE;
    if (n < folded) kv_seq_cut(l->seq, dflash_slot(l, n));
}

/* --- requests -----------------------------------------------------------------------------------*/
static int32_t first_wished(const void *lane, int32_t n_pos)
{
    (void)n_pos;
    return ((const draft_lane *)lane)->wished;
}

void dflash_wish(const drafter *d, const draft_lane *l, kv_wish *out)
{
    *out = (kv_wish){.cls = ((const dflash *)d)->cls, .head_pages = 1, .first = first_wished, .ctx = l};
}

void dflash_take(drafter *d, draft_lane *l, kv_node *at)
{
    (void)d;
    l->n_seen = kv_node_end(at);
    kv_prefix_take_class(l->text->tree, at, l->seq, 1, l->wished < l->n_seen ? l->wished : l->n_seen);
    l->n_given = l->n_seen / KV_PAGE;
    l->shift   = l->wished - KV_PAGE;
}

/* Adds complete pages to the tree. Where the tree has the page already, the lane uses that one. */
static void give_pages(draft_lane *l)
{
    const draft_text *t = l->text;
    if (!t || !t->tree) return;
    for (int k; (k = l->n_given) < t->n_nodes && (k + 1) * KV_PAGE <= dflash_folded_end(l); l->n_given++) {
        kv_seq *s = k == 0 && l->first ? l->first : l->seq;
        if (k > 0 && k * KV_PAGE < KV_PAGE + l->shift) continue; /* skipped or dropped */
        kv_prefix_put(t->tree, t->salt, k ? t->node[k - 1] : NULL, t->token + (size_t)k * KV_PAGE, s,
                      dflash_slot(l, k * KV_PAGE) / KV_PAGE);
    }
}

/* Counts the maximum of pages: the context, a block, and the first page as made. */
void dflash_need(const drafter *d, kv_need *n, int32_t n_pos)
{
    const dflash *m     = (const dflash *)d;
    int32_t       slots = n_pos + m->c.block < dflash_max_slots(m) ? n_pos + m->c.block : dflash_max_slots(m);
    kv_need_add(m->kv, n, m->cls, slots, slots);
    kv_need_add(m->kv, n, m->cls, KV_PAGE, KV_PAGE);
}

/* --- the context --------------------------------------------------------------------------------*/
/* Computes K/V of the pass's rows, and of padding up to n_rows, from g. */
void dflash_store_context(dflash *m, dev g, int n_rows)
{
    kv_pool_flush(m->kv, m->q);
    step_rows r = dflash_upload_rows(m, n_rows);
    for (bool done = dflash_replay(m, g, n_rows); !done; done = m->o->record_end(m->q))
        for (int l = 0; l < m->c.n_layers; l++) dflash_store_kv(m, l, g, &r);
}

/* Drops pages that no later draft attends to. */
static void slide(const dflash *m, draft_lane *l)
{
    int32_t shift = dflash_shift(m, dflash_folded_end(l)), more = shift - l->shift;
    if (more <= 0) return;
    kv_seq_drop(l->seq, 1, more / KV_PAGE);
    l->shift = shift;
}

/* Rotates the first page to the positions before the recent pages. */
bool dflash_rotate_first(dflash *m, draft_lane *l, err *e)
{
    kv_move_item item[KV_PAGE];
    if (l->turned == l->shift) return true;
    if (!l->first) l->first = kv_seq_fork(l->seq, KV_PAGE);
    assert(l->first); /* every lane has two sequences */
    if (!kv_seq_own(l->seq, 0, e)) return false;
    for (int s = 0; s < KV_PAGE; s++)
        item[s] = (kv_move_item){.from_lane = kv_seq_lane(l->first),
                                 .from      = s,
                                 .to_lane   = kv_seq_lane(l->seq),
                                 .to        = s,
                                 .rotation  = l->shift};
    kv_pool_flush(m->kv, m->q);
    m->o->upload(m->q, m->s.moves, item, sizeof item);
    m->o->kv_move(m->q, kv_pool_class(m->kv, m->cls), m->s.moves, KV_PAGE, &m->rope);
    l->turned = l->shift;
    return true;
}

/* Adds the lane's next n rows to the pass. */
bool dflash_add_context(dflash *m, draft_lane *l, int n, err *e)
{
    int32_t len = kv_seq_len(l->seq);
    if (!kv_seq_grow(l->seq, len + n, e)) return false;
    for (int i = 0; i < n; i++) dflash_add_row(m, l, 0, len + i, len, len + i);
    return true;
}

/* Runs the pass: features to K/V. */
void dflash_fold(dflash *m, dev features)
{
    int n = m->rows.n;
    m->d.n_folded += n;
    m->o->matmul(m->q, m->s.y, m->fc, features, n);
    m->o->rms_norm(m->q, m->s.y, m->s.y, m->n_hidden, n, m->c.n_embd, (float)m->c.eps);
    dflash_store_context(m, m->s.y, graph_rows(m->o, n, MAX_ROWS));
    m->rows.n = 0;
}

static void folded(const dflash *m, draft_lane *l)
{
    give_pages(l);
    slide(m, l);
}

/* Converts contiguous rows of features, at most n_drop at a time, for which there is always room. */
bool dflash_fold_rows(dflash *m, draft_lane *l, dev features, int n_rows, err *e)
{
    size_t F = (size_t)m->c.n_features;
    for (int done = 0, n; done < n_rows; done += n) {
        n         = min_int(n_rows - done, min_int(m->n_drop, MAX_ROWS));
        m->rows.n = 0;
        if (!dflash_add_context(m, l, n, e)) return false;
        dflash_fold(m, dev_at_f32(features, (size_t)done * F));
        folded(m, l);
    }
    return true;
}

static bool fold_waiting(dflash *m, draft_lane *l, err *e)
{
    int n     = l->n_wait;
    l->n_wait = 0;
    return dflash_fold_rows(m, l, l->waiting, n, e);
}

/* Converts the waiting rows of several lanes in shared passes. */
bool dflash_fold_together(dflash *m, draft_lane *const *lanes, int n_lanes, err *e)
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
            if (!dflash_add_context(m, l, l->n_wait, e)) return false;
            l->n_wait = 0;
        }
        if (m->rows.n) dflash_fold(m, m->s.features);
        for (; i < end; i++) folded(m, lanes[i]);
    }
    return true;
}

/* Gathers the features of the target's rows at `to`. */
static void gather(dflash *m, dev to, const int32_t *row, int n)
{
    int F = m->c.n_features, stride = m->d.t->n_features * m->d.t->n_embd;
    m->o->upload(m->q, m->s.index, row, (size_t)n * sizeof *row);
    m->o->copy_rows(m->q, to, F, draft_features(&m->d), stride, m->s.index, n, F);
}

/* Converts many rows at once, such as those of a prompt. Contiguous rows need no gathering, unless the target captures
 * other features too. */
static bool fold_now(dflash *m, draft_lane *l, const int32_t *row, int n, err *e)
{
    size_t F     = (size_t)m->c.n_features;
    bool   dense = m->d.t->n_features == m->d.n_capture;
    for (int i = 1; i < n; i++) dense &= row[i] == row[0] + i;
    if (!dense) gather(m, m->s.features, row, n);
    return dflash_fold_rows(m, l, dense ? dev_at_f32(m->d.t->features, (size_t)row[0] * F) : m->s.features, n, e);
}

/* n <= MAX_ROWS. */
static bool take_piece(dflash *m, draft_lane *l, const int32_t *row, int n, err *e)
{
    size_t F = (size_t)m->c.n_features;
    if (l->n_wait + n > m->n_waiting && !fold_waiting(m, l, e)) return false;
    if (n > m->n_waiting) return fold_now(m, l, row, n, e);
    gather(m, dev_at_f32(l->waiting, (size_t)l->n_wait * F), row, n);
    l->n_wait += n;
    return true;
}

static bool take_rows(dflash *m, draft_lane *l, const int32_t *row, int n, err *e)
{
    for (int i = 0; i < n; i += MAX_ROWS)
        if (!take_piece(m, l, row + i, min_int(n - i, MAX_ROWS), e)) return false;
    return true;
}

/* Takes the rows of the first page and those that a draft can attend to; skips those between them. */
static bool observe_rows(dflash *m, draft_lane *l, const draft_rows *r, err *e)
{
    if (r->pos != dflash_next_pos(l)) dflash_start_at(m, l, r->pos, 0);
    int head = min_int(r->n, KV_PAGE - l->n_seen), tail = min_int(r->n, KV_PAGE + l->shift - l->n_seen);
    if (head < 0) head = 0;
    if (tail < head) tail = head;
    l->n_seen += r->n;
    return take_rows(m, l, r->row, head, e) && take_rows(m, l, r->row + tail, r->n - tail, e);
}

bool dflash_observe(drafter *d, draft_lane *l, const draft_rows *r, err *e)
{
    dflash *m = (dflash *)d;
    fault_no_alloc_begin("observe"); /* promise 4 */
    bool ok = r->n <= 0 || observe_rows(m, l, r, e);
    fault_no_alloc_end();
    if (!ok) dflash_lose(m, l);
    return ok;
}
