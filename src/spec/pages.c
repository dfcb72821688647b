/* Memory of requests: the pool, reservations, prefix hits, and pages added to the prefix tree. */
#include "base/mem.h"
#include "spec/inside.h"

#include <assert.h>

/* --- the pool -----------------------------------------------------------------------------------*/
/* Returns the geometry of the pool. The rows of a tree need slots after the last position. */
static kv_pool_spec pool_spec(const target *t, const spec_options *o)
{
    return (kv_pool_spec){.classes       = t->kv_class,
                          .n_classes     = t->n_kv_classes,
                          .max_lanes     = o->max_lanes,
                          .max_slots     = o->n_ctx + DRAFT_MAX,
                          .states        = t->state,
                          .n_states      = t->n_states,
                          .max_kept_rows = max_kept_rows(t),
                          .wipe          = o->wipe,
                          .q             = t->q};
}

bool spec_kv_bytes(const target *t, const spec_options *o, size_t *out)
{
    kv_class_spec typed[KV_MAX_CLASSES];
    kv_pool_spec  pool = pool_spec(t, o), alone = pool;
    size_t        kept;
    if (o->kv_bytes) {
        *out = o->kv_bytes;
        return true;
    }
    alone.n_classes     = target_kv_classes(t, &o->kv_type, typed);
    alone.classes       = typed;
    alone.max_kept_rows = 0; /* counted once for all lanes */
    return kv_bytes_for(&alone, pool.max_slots, out) && size_mul(out, *out, (size_t)o->max_lanes) &&
           kv_kept_bytes(&pool, &kept) && size_add(out, *out, kept);
}

static double kv_cap(const spec *s) { return s->opt.kv_cap > 0 ? s->opt.kv_cap : 1; }

/* Sets *out to the size of the pool. If none was given, all lanes fit under the kv_cap, which counts whole slabs. */
static bool pool_bytes(const spec *s, size_t *out)
{
    if (!spec_kv_bytes(s->t, &s->opt, out)) return false;
    if (s->opt.kv_bytes) return true;
    if (!size_add(out, *out, s->extra)) return false;
    double under_cap = 1.05 * (double)*out / kv_cap(s) + (2 << 20);
    if (kv_cap(s) < 1 && under_cap < (double)SIZE_MAX / 2) *out = (size_t)under_cap;
    return true;
}

bool open_pool(spec *s, size_t extra, err *e)
{
    kv_pool_spec kvs = pool_spec(s->t, &s->opt);
    close_pool(s);
    s->extra = extra;
    if (!pool_bytes(s, &kvs.max_bytes)) return err_set(e, ERR_LIMIT, "a context of %d is too large", s->opt.n_ctx);
    if (!kv_pool_new(&s->kv, s->t->o, &kvs, e)) return false;
    return (s->opt.no_prefix || kv_prefix_new(&s->tree, s->kv, e)) && move_drafters(s, s->kv, e);
}

void close_pool(spec *s)
{
    for (int i = 0; i < s->opt.max_lanes; i++) assert(!s->lanes[i] || !s->lanes[i]->live);
    move_drafters(s, NULL, NULL);
    kv_prefix_free(s->tree);
    kv_pool_free(s->kv);
    s->tree = NULL;
    s->kv   = NULL;
}

bool need_pool(spec *s, err *e)
{
    if (s->kv || open_pool(s, s->extra, e)) return true;
    close_pool(s); /* the pool without its prefix tree */
    return false;
}

int64_t spec_kv_wiped(const spec *s) { return s->kv ? kv_pool_wiped(s->kv) : 0; }

size_t spec_kv_pinned(const spec *s) { return s->kv ? kv_pool_pinned_bytes(s->kv) : 0; }
size_t spec_kv_bytes_total(const spec *s) { return s->kv ? kv_pool_bytes(s->kv) : 0; }
size_t spec_kv_reserved(const spec *s) { return s->kv ? kv_pool_reserved_bytes(s->kv) : 0; }

int spec_kv_classes(const spec *s, kv_class_use out[KV_MAX_CLASSES]) { return s->kv ? kv_pool_classes(s->kv, out) : 0; }

size_t spec_kv_need(const spec *s, int32_t n_pos)
{
    kv_need n = {0};
    if (s->kv) kv_need_add(s->kv, &n, 0, n_pos, s->t->max_rows);
    return s->kv ? kv_need_bytes(s->kv, &n) : 0;
}

kv_prefix_stats spec_prefix_stats(const spec *s)
{
    kv_prefix_stats none = {0};
    return s->tree ? kv_prefix_get_stats(s->tree) : none;
}

void spec_forget(spec *s)
{
    if (s->tree) kv_prefix_forget(s->tree);
}

/* --- reservations (promise 5) -------------------------------------------------------------------*/
static kv_need need_of_text(const spec_lane *l)
{
    kv_need n = {0};
    kv_need_add(l->s->kv, &n, 0, l->n_max + (l->opt.spec.method == SPEC_OFF ? 0 : DRAFT_MAX), l->s->t->max_rows);
    return n;
}

static kv_need need_of_draft(const spec_lane *l, drafter_kind k)
{
    kv_need        n = {0};
    const drafter *d = l->s->slots[k].d;
    if (l->uses[k] && d->need) d->need(d, &n, l->n_max);
    return n;
}

static void add_need(kv_need *sum, const kv_need *b)
{
    for (int i = 0; i < KV_MAX_CLASSES; i++) sum->pages[i] += b->pages[i];
}

static void forget_drafts(spec_lane *l)
{
    for (int i = 0; i < DRAFTER_KINDS; i++) l->draft[i] = (kv_need){0};
}

/* Reserves for the text and the drafters. If the drafters' context can never fit, the request runs without them. */
static bool reserve_memory(spec_lane *l, err *e)
{
    spec *s     = l->s;
    l->need     = need_of_text(l);
    kv_need all = l->need;
    for (int i = 0; i < DRAFTER_KINDS; i++) {
        l->draft[i] = need_of_draft(l, (drafter_kind)i);
        add_need(&all, &l->draft[i]);
    }
    if (!kv_could_reserve(s->kv, &all, kv_cap(s))) {
        for (int i = 0; i < DRAFTER_KINDS; i++) lane_no_room_for_draft(l, (drafter_kind)i);
        forget_drafts(l);
        all = l->need;
    }
    if (kv_reserve(s->kv, &all, kv_cap(s))) return true;
    l->need = (kv_need){0};
    forget_drafts(l);
    if (kv_could_reserve(s->kv, &all, kv_cap(s))) return err_set(e, ERR_BUSY, "there is no room for this request now");
    return err_set(e, ERR_CONTEXT,
                   "the request needs %.1f MB of K/V, more than the whole cache: use a shorter prompt or a smaller "
                   "max_tokens, or a larger cache (kv_bytes)",
                   (double)kv_need_bytes(s->kv, &all) / 1e6);
}

bool lane_reserve_draft(spec_lane *l, drafter_kind k)
{
    kv_need n = need_of_draft(l, k);
    if (!kv_reserve(l->s->kv, &n, kv_cap(l->s))) return false;
    l->draft[k] = n;
    return true;
}

void lane_unreserve_draft(spec_lane *l, drafter_kind k)
{
    if (l->s->kv) kv_unreserve(l->s->kv, &l->draft[k]); /* without a pool nothing is reserved */
    l->draft[k] = (kv_need){0};
}

/* --- the prefix tree ----------------------------------------------------------------------------*/
static void begin_drafts(spec_lane *l)
{
    for (int i = 0; i < DRAFTER_KINDS; i++) {
        drafter *d = l->s->slots[i].d;
        if (!l->uses[i]) continue;
        d->cut(d, l->draft_lane[i], 0);
        if (d->begin) d->begin(d, l->draft_lane[i], &l->shared);
    }
}

static void take_prefix(spec_lane *l, kv_node *at)
{
    if (!kv_lane_take(l->kv, l->s->tree, at)) return;
    for (int i = 0; i < DRAFTER_KINDS; i++) {
        drafter *d = l->s->slots[i].d;
        if (l->uses[i] && d->take) d->take(d, l->draft_lane[i], at);
    }
    l->n_cached       = kv_node_end(at);
    l->shared.n_nodes = l->n_cached / KV_PAGE;
    for (int k = l->shared.n_nodes; k-- > 0; at = kv_node_parent(at)) l->shared.node[k] = at;
}

static int make_wishes(const spec_lane *l, kv_wish *wish)
{
    int n = 0;
    for (int i = 0; i < DRAFTER_KINDS; i++) {
        const drafter *d = l->s->slots[i].d;
        if (l->uses[i] && d->wish) d->wish(d, l->draft_lane[i], &wish[n++]);
    }
    return n;
}

/* Gives the lane empty pages and states. */
static void new_lane_state(spec_lane *l)
{
    l->kv = kv_lane_new(l->s->kv);
    assert(l->kv);
    l->n_cached       = 0;
    l->branch         = 0;
    l->shared.n_nodes = 0;
}

/* Returns whether a much longer hit only lacks the first page of a drafter's K/V. Requests without the drafter leave
 * only the target's pages. */
static bool lacks_first_page(const spec_lane *l, const kv_wish *wish, int n_wishes)
{
    enum { WORTH = 4 * KV_PAGE }; /* minimum length of a hit, in tokens, that is worth the extra step */
    kv_wish    rest[DRAFTER_KINDS];
    kv_prefix *t = l->s->tree;
    for (int i = 0; i < n_wishes; i++) {
        rest[i]            = wish[i];
        rest[i].head_pages = 0;
    }
    bool begins = media_prompt_spans(l->media) && media_prompt_span(l->media, 0)->first < KV_PAGE;
    return n_wishes > 0 && l->s->t->max_rows >= KV_PAGE && l->n_prompt > WORTH && !begins &&
           !kv_prefix_reach(t, l->shared.salt, l->text, l->n_prompt, wish, n_wishes) &&
           kv_prefix_reach(t, l->shared.salt, l->text, l->n_prompt, rest, n_wishes) > WORTH;
}

/* Shows the first page to the drafters with K/V of their own, which add it to the prefix tree. */
static void show_first_page(spec_lane *l)
{
    int32_t    row[KV_PAGE];
    draft_rows r = {.pos = 0, .row = row, .token = l->text, .n = KV_PAGE, .hidden = -1};
    for (int i = 0; i < KV_PAGE; i++) row[i] = i;
    for (int i = 0; i < DRAFTER_KINDS; i++) {
        drafter *d = l->s->slots[i].d;
        if (!l->uses[i] || !d->begin) continue;
        d->observe(d, l->draft_lane[i], &r, NULL);
        d->end(d, l->draft_lane[i]);
        d->begin(d, l->draft_lane[i], &l->shared); /* computes K/V of the features that `end` left, if any */
    }
}

/* Runs the first page of the text for the drafters. The tree has the same K/V of the target bit by bit (promise 1),
 * so the lane releases its own copy afterwards. */
static void run_first_page(spec_lane *l)
{
    spec *s = l->s;
    kv_step_begin(s->kv);
    if (!kv_lane_grow(l->kv, KV_PAGE, 0, NULL)) return;
    step_clear(&s->step);
    for (int i = 0; i < KV_PAGE; i++) step_add(&s->step, kv_lane_index(l->kv), i, l->text[i], false);
    if (s->t->step(s->t, s->kv, &s->step, NULL)) {
        kv_lane_commit(l->kv, NULL, 0);
        l->n_cached = KV_PAGE;
        lane_share_pages(l);
        show_first_page(l);
        l->n_run_again = KV_PAGE;
    }
    kv_lane_free(l->kv);
    new_lane_state(l);
}

static bool shares_prefixes(const spec_lane *l) { return l->s->tree && !l->opt.score_prompt; }

/* Takes the longest cached prefix of the text. It may end inside a span whose rows see each other: ids of a span are
 * equal only where all of its pixels are, and its rows ran in one step, so the K/V of a part of it is that of this
 * text. The next step runs the rest of the span. */
static void find_prefix(spec_lane *l)
{
    kv_wish  wish[DRAFTER_KINDS];
    kv_node *at       = NULL;
    int      n_wishes = make_wishes(l, wish);
    kv_prefix_find(l->s->tree, l->shared.salt, l->text, l->n_prompt, wish, n_wishes, &at);
    if (at) take_prefix(l, at);
    if (l->s->t->n_states || spec_has_images(l->s))
        l->branch = kv_prefix_reach_pages(l->s->tree, l->shared.salt, l->text, l->n_prompt);
}

/* Adds the request's images to the prefix tree, as far as the request needs them. */
static void take_images(spec_lane *l, const lane_request *r)
{
    kv_wish   wish[DRAFTER_KINDS];
    kv_wanted w = {l->shared.salt, l->text, l->n_prompt, wish, make_wishes(l, wish)};
    bool      done;
    if (r->n_images && spec_has_images(l->s)) import_images(l->s, &w, r->images, r->n_images, SIZE_MAX, &done);
}

bool lane_take_pages(spec_lane *l, const lane_request *r, err *e)
{
    kv_wish wish[DRAFTER_KINDS];
    if (!reserve_memory(l, e)) return false;
    new_lane_state(l);
    l->n_run_again      = 0;
    l->shared.n_prompt  = l->n_prompt;
    l->shared.token     = l->text;
    l->shared.media     = l->media;
    l->shared.tree      = l->s->tree;
    l->shared.salt      = r->salt;
    l->prompt_is_marked = false;
    begin_drafts(l);
    if (!shares_prefixes(l)) return true;
    take_images(l, r);
    if (lacks_first_page(l, wish, make_wishes(l, wish))) run_first_page(l);
    find_prefix(l);
    return true;
}

void lane_restart(spec_lane *l)
{
    kv_lane_free(l->kv);
    new_lane_state(l);
    begin_drafts(l);
    if (shares_prefixes(l)) find_prefix(l);
}

static void mark_end(spec_lane *l, int32_t n_pos)
{
    int n = min_int(n_pos / KV_PAGE, l->shared.n_nodes);
    if (n) kv_prefix_keep(l->s->tree, l->shared.node[n - 1]);
}

void lane_share_pages(spec_lane *l)
{
    draft_text *t = &l->shared;
    while (t->tree && (t->n_nodes + 1) * KV_PAGE <= l->n_cached) {
        kv_node       *at    = t->n_nodes ? t->node[t->n_nodes - 1] : NULL;
        const int32_t *token = t->token + (size_t)t->n_nodes * KV_PAGE;
        t->node[t->n_nodes]  = kv_prefix_put(t->tree, t->salt, at, token, kv_lane_pages(l->kv), t->n_nodes);
        t->n_nodes++;
    }
    if (!l->prompt_is_marked && l->n_cached >= l->n_prompt) {
        mark_end(l, l->n_prompt);
        l->prompt_is_marked = true;
    }
    kv_lane_settle(l->kv);
}

void lane_give_pages(spec_lane *l)
{
    lane_give_state(l);
    mark_end(l, l->n_cached);
    for (int i = 0; i < DRAFTER_KINDS; i++) {
        drafter *d = l->s->slots[i].d;
        if (l->draft_lane[i] && d->end) d->end(d, l->draft_lane[i]);
    }
    kv_lane_free(l->kv);
    l->kv = NULL;
    for (int i = 0; i < DRAFTER_KINDS; i++) lane_unreserve_draft(l, (drafter_kind)i);
    kv_unreserve(l->s->kv, &l->need);
}
