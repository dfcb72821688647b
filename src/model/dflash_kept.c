/* Keeps features that ended requests leave. Rows that no draft needed become K/V when a text continues there. */
#include "model/dflash_inside.h"

static uint64_t hash_of(const int32_t *token, int32_t n)
{
    uint64_t h = 0;
    for (int32_t i = 0; i < n; i++) {
        h = (h ^ (uint32_t)token[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    }
    return h;
}

/* Finds the complete pages among the lane's waiting rows. Returns false when there are none, or when the first is
 * partly converted. */
static bool unfolded_pages(const draft_lane *l, unfolded *out)
{
    const draft_text *t     = l->text;
    int32_t           first = dflash_folded_end(l), end = min_int(l->n_seen / KV_PAGE, t->n_nodes) * KV_PAGE;
    if (first % KV_PAGE || first + l->n_wait != l->n_seen || end <= first) return false;
    *out = (unfolded){first, end - first, t->token + first, l->waiting};
    return true;
}

static kept_rows *place_for_more(dflash *m)
{
    kept_rows *best = &m->kept[0];
    for (int i = 1; i < m->n_kept_rows && best->rows.n; i++)
        if (!m->kept[i].rows.n || m->kept[i].stamp < best->stamp) best = &m->kept[i];
    return best;
}

/* Exchanges the features of the lane and of the kept rows. */
static void keep_waiting_rows(dflash *m, draft_lane *l, const unfolded *rows)
{
    kept_rows *x      = place_for_more(m);
    dev        unused = x->rows.features;
    memcpy(x->token, rows->token, (size_t)rows->n * sizeof *x->token);
    x->rows       = *rows;
    x->rows.token = x->token;
    x->salt       = l->text->salt;
    x->before     = hash_of(l->text->token, rows->first);
    x->stamp      = ++m->now;
    l->waiting    = unused;
}

/* Ends a request: keeps its waiting rows, or converts their complete pages (fold_at_end). Rows that cannot be kept are
 * only missing for later hits. */
void dflash_end(drafter *d, draft_lane *l)
{
    dflash  *m = (dflash *)d;
    unfolded rows;
    if (l->text && l->text->tree && l->n_wait) {
        int n_full = l->n_wait - l->n_seen % KV_PAGE;
        if (!m->fold_at_end && unfolded_pages(l, &rows))
            keep_waiting_rows(m, l, &rows);
        else if (n_full > 0)
            dflash_fold_rows(m, l, l->waiting, n_full, NULL);
    }
    dflash_lose(m, l);
}

/* Returns how many of the rows belong to this text and help a hit, in whole pages. */
static int rows_alike(const unfolded *x, const draft_text *t)
{
    int n = 0;
    while (n < x->n && x->first + n + KV_PAGE < t->n_prompt &&
           !memcmp(x->token + n, t->token + x->first + n, KV_PAGE * sizeof *x->token))
        n += KV_PAGE;
    return n;
}

static bool is_wished(const draft_lane *l, int32_t pos) { return pos < KV_PAGE || pos >= l->wished; }

/* Returns the first page before `end` that a hit needs and of which the tree has only the target's part; `end`: none.
 * Sets *before to the node of the page before it. */
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

/* Converts n rows from `pos` on, the first missing page, and adds them to the tree. Making room may evict pages
 * before them. */
static bool fold_pages(dflash *m, draft_lane *l, const draft_text *t, const unfolded *x, int32_t pos, int n)
{
    kv_node *at;
    dflash_start_at(m, l, pos, 0);
    m->rows.n = 0;
    if (!dflash_add_context(m, l, n, NULL) || first_missing(m, l, t, pos + KV_PAGE, &at) != pos) return false;
    dflash_fold(m, dev_at_f32(x->features, (size_t)(pos - x->first) * (size_t)m->c.n_features));
    for (int k = 0; k < n / KV_PAGE; k++) {
        at = kv_prefix_put(t->tree, t->salt, at, t->token + pos + (size_t)k * KV_PAGE, l->seq, k);
        if (!at) return k > 0;
    }
    return true;
}

/* Adds the first n of these rows that are missing and directly follow the tree. */
static void fold_missing(dflash *m, draft_lane *l, const draft_text *t, const unfolded *x, int n)
{
    int32_t  end = x->first + n, pos;
    kv_node *at;
    while ((pos = first_missing(m, l, t, end, &at)) < end && pos >= x->first) {
        int some = min_int(end - pos, min_int(m->n_drop, MAX_ROWS));
        if (!fold_pages(m, l, t, x, pos, some)) return;
    }
}

static kept_rows *next_kept_rows(const dflash *m, uint64_t stamp)
{
    kept_rows *next = NULL;
    for (int i = 0; i < m->n_kept_rows; i++) {
        kept_rows *x = &m->kept[i];
        if (x->rows.n && x->stamp > stamp && (!next || x->stamp < next->stamp)) next = x;
    }
    return next;
}

/* Adds kept rows of this text, oldest first, since later rows may start where they end. Leaves rows of other texts. */
static void fold_kept_rows(dflash *m, draft_lane *l, const draft_text *t)
{
    uint64_t stamp = 0;
    for (kept_rows *x; (x = next_kept_rows(m, stamp)); stamp = x->stamp) {
        int n = x->salt == t->salt ? rows_alike(&x->rows, t) : 0;
        if (!n || x->before != hash_of(t->token, x->rows.first)) continue;
        fold_missing(m, l, t, &x->rows, n);
        if (n == x->rows.n) x->rows.n = 0;
    }
}

/* Adds rows that wait in other lanes. They stay there too. */
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

/* Begins a request: converts the kept rows of its text, so that its prefix hit finds them. */
void dflash_begin(drafter *d, draft_lane *l, const draft_text *t)
{
    dflash *m    = (dflash *)d;
    int32_t seen = dflash_shift(m, t->n_prompt);
    l->wished    = KV_PAGE + seen;
    if (t->tree) {
        fold_kept_rows(m, l, t);
        fold_of_lanes(m, l, t);
    }
    dflash_start_at(m, l, 0, seen > m->n_drop ? seen - m->n_drop : 0);
    l->text = t;
}
