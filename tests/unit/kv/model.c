/* Lanes that come, grow, speculate, fork, slide and go at random over one pool, each with a plain list of what its slots must
 * hold. A slot's tag is a function of the text up to it, as K and V are (promise 1), so shared pages hold what each of their
 * owners expects or somebody wrote into another's page. */
#include "kv_rig.h"

#include "base/fault.h"
#include "kv/inside.h"

enum {
    LANES  = 6,
    CHUNK  = 40, /* rows of text at a time */
    AHEAD  = 20, /* rows of drafts */
    TEXT   = 320,
    SLOTS  = TEXT + AHEAD,
    D_CTX  = 8 * KV_PAGE, /* of a drafter: its sinks and the latest positions */
    D_DROP = 2 * KV_PAGE
};

typedef struct {
    kv_seq  *s;
    uint64_t salt;
    int32_t  text[TEXT];
    uint32_t tag[TEXT]; /* of the text up to there */
    int32_t  n_goal, n, settled;
    kv_node *at; /* the last page that was put */
    int32_t  n_put;
    kv_need  need;
    kv_seq  *d, *sinks; /* the drafter's; sinks: page 0 as it was, when d has slid */
    int32_t  shift;
    uint32_t d_tag[D_CTX];
} lane;

typedef struct {
    kv_rig   g;
    uint64_t rand;
    bool     reserves; /* then nothing may fail */
    int      cls;      /* the drafter's, 0: none */
    lane     lanes[LANES];
    int      n_full, n_refused, n_hits, n_drafter_hits, n_moved, n_forks, n_slides, n_swaps;
} world;

static int32_t below(world *w, int32_t n) { return (int32_t)(test_rand(&w->rand) % (uint64_t)n); }
static bool    once_in(world *w, int n) { return below(w, n) == 0; }

static uint32_t class_tag(const lane *l, int32_t pos, int cls) { return (l->tag[pos] * 8 + (uint32_t)cls) | 1u << 31; }

/* Pages of few kinds, mostly the first, so that texts meet. From position `from` on. */
static void make_text(world *w, lane *l, int32_t from)
{
    for (int32_t i = from; i < TEXT; i += KV_PAGE - i % KV_PAGE) {
        int32_t kind = once_in(w, 4) ? 1 + below(w, 3) : 0;
        for (int32_t k = i; k < TEXT && k / KV_PAGE == i / KV_PAGE; k++) l->text[k] = kind * 100 + k % KV_PAGE;
    }
    for (int32_t i = from; i < TEXT; i++) {
        uint64_t h = (i ? l->tag[i - 1] : l->salt) * 0x9E3779B97F4A7C15u + (uint64_t)(l->text[i] + 7);
        l->tag[i]  = (uint32_t)((h ^ h >> 31) * 0xBF58476D1CE4E5B9u >> 40);
    }
}

/* --- what must be there -----------------------------------------------------------------------------*/
static void expect(world *w, const kv_seq *s, int cls, int32_t slot, uint32_t want)
{
    test_case *t = w->g.t;
    CHECK_INT(kv_rig_read(&w->g, cls, s, slot), want);
}

static void verify(world *w, const lane *l)
{
    if (!l->s) return;
    for (int32_t i = 0; i < l->n; i++) expect(w, l->s, RIG_FULL, i, class_tag(l, i, RIG_FULL));
    int32_t first = l->settled >= RIG_WINDOW ? l->settled - RIG_WINDOW + 1 : 0;
    for (int32_t i = first; i < l->n; i++) expect(w, l->s, RIG_SLIDING, i, class_tag(l, i, RIG_SLIDING));
    for (int32_t i = 0; l->d && i < kv_seq_len(l->d); i++) expect(w, l->d, w->cls, i, l->d_tag[i]);
    for (int32_t i = 0; l->sinks && i < KV_PAGE; i++) expect(w, l->sinks, w->cls, i, class_tag(l, i, w->cls));
}

/* --- the drafter ------------------------------------------------------------------------------------*/
static int32_t first_wanted(const void *ctx, int32_t n_pos)
{
    (void)ctx;
    int32_t shift = n_pos <= D_CTX ? 0 : (n_pos - D_CTX + D_DROP - 1) / D_DROP * D_DROP;
    return shift + KV_PAGE;
}

static void write_draft(world *w, lane *l, int32_t slot, uint32_t tag)
{
    l->d_tag[slot] = tag;
    kv_rig_write(&w->g, w->cls, l->d, slot, tag);
}

/* Page 0 as it is seen `shift` positions later. */
static bool turn_sinks(world *w, lane *l)
{
    err e = {0};
    if (!l->sinks) l->sinks = kv_seq_fork(l->d, KV_PAGE);
    if (!kv_seq_own(l->d, 0, &e)) return false;
    for (int32_t i = 0; i < KV_PAGE; i++) write_draft(w, l, i, class_tag(l, i, w->cls) ^ (uint32_t)l->shift << 8);
    return true;
}

static bool slide(world *w, lane *l)
{
    int32_t from = KV_PAGE + D_DROP, n = kv_seq_len(l->d) - from;
    if (!l->sinks) l->sinks = kv_seq_fork(l->d, KV_PAGE);
    kv_seq_drop(l->d, 1, D_DROP / KV_PAGE);
    memmove(l->d_tag + KV_PAGE, l->d_tag + from, (size_t)n * sizeof *l->d_tag);
    l->shift += D_DROP;
    w->n_slides++;
    return turn_sinks(w, l);
}

/* The drafter's page of text page k, when the node is there. */
static void put_draft_page(world *w, lane *l, int32_t k)
{
    kv_node *n = l->at;
    if (!n || kv_node_end(n) < (k + 1) * KV_PAGE) return;
    while (kv_node_end(n) > (k + 1) * KV_PAGE) n = kv_node_parent(n);
    kv_seq    *s = k == 0 && l->sinks ? l->sinks : l->d;
    test_case *t = w->g.t;
    CHECK(kv_prefix_put(w->g.tree, l->salt, kv_node_parent(n), l->text + k * KV_PAGE, s,
                        k - (k ? l->shift / KV_PAGE : 0)) == n);
}

/* Rows up to the lane's length are folded in. */
static bool fold(world *w, lane *l)
{
    err e = {0};
    for (int32_t pos = kv_seq_len(l->d) + l->shift; pos < l->n; pos++) {
        if (kv_seq_len(l->d) == D_CTX && !slide(w, l)) return false;
        if (!kv_seq_grow(l->d, pos - l->shift + 1, &e)) return false;
        write_draft(w, l, pos - l->shift, class_tag(l, pos, w->cls));
        if (pos % KV_PAGE == KV_PAGE - 1 && once_in(w, 2)) put_draft_page(w, l, pos / KV_PAGE);
    }
    return true;
}

static bool take_draft(world *w, lane *l, kv_node *at)
{
    int32_t n = at ? kv_node_end(at) : 0, from = at ? first_wanted(NULL, n) : 0;
    l->d     = kv_seq_new(w->g.p, w->cls);
    l->shift = at ? from - KV_PAGE : 0;
    if (!at) return true;
    w->n_drafter_hits++;
    kv_prefix_take_class(w->g.tree, at, l->d, 1, from);
    for (int32_t i = 0; i < kv_seq_len(l->d); i++) l->d_tag[i] = class_tag(l, i < KV_PAGE ? i : i + l->shift, w->cls);
    return l->shift == 0 || turn_sinks(w, l);
}

/* --- a lane's life ----------------------------------------------------------------------------------*/
static void end(world *w, lane *l)
{
    if (l->at && once_in(w, 2)) kv_prefix_keep(w->g.tree, l->at);
    bool first = once_in(w, 2);
    if (first) kv_seq_free(l->s);
    kv_seq_free(l->sinks);
    kv_seq_free(l->d);
    if (!first) kv_seq_free(l->s);
    if (w->reserves) kv_unreserve(w->g.p, &l->need);
    *l = (lane){0};
}

/* A failure where it may be, and then the lane's end. */
static void failed(world *w, lane *l)
{
    test_case *t = w->g.t;
    CHECK(!w->reserves);
    w->n_full++;
    end(w, l);
}

static bool admit(world *w, lane *l, bool drafts)
{
    l->need = (kv_need){{0}};
    if (!w->reserves) return true;
    kv_need_add(w->g.p, &l->need, 0, l->n_goal + AHEAD, CHUNK + AHEAD);
    if (drafts) {
        kv_need_add(w->g.p, &l->need, w->cls, D_CTX, D_CTX);
        kv_need_add(w->g.p, &l->need, w->cls, KV_PAGE, KV_PAGE);
    }
    if (kv_reserve(w->g.p, &l->need, once_in(w, 2) ? 1 : 0.9)) return true;
    w->n_refused++;
    return false;
}

static void begin(world *w, lane *l)
{
    bool     drafts = w->cls && once_in(w, 2);
    kv_wish  wish   = {w->cls, 1, first_wanted, NULL};
    kv_node *at;
    *l = (lane){.salt = 1 + (uint64_t)below(w, 2), .n_goal = 1 + below(w, TEXT)};
    make_text(w, l, 0);
    if (!admit(w, l, drafts)) {
        *l = (lane){0};
        return;
    }
    test_case *t = w->g.t;
    l->s         = kv_seq_new(w->g.p, 0);
    CHECK(l->s != NULL);
    l->n = l->settled = kv_prefix_find(w->g.tree, l->salt, l->text, l->n_goal, &wish, drafts, &at);
    CHECK(l->n < l->n_goal && (l->n == 0) == (at == NULL));
    w->n_hits += at != NULL;
    kv_prefix_take(w->g.tree, at, l->s);
    l->at    = at;
    l->n_put = l->n / KV_PAGE;
    if (drafts && !take_draft(w, l, at)) failed(w, l);
}

static void put(world *w, lane *l)
{
    while ((l->n_put + 1) * KV_PAGE <= l->n) {
        int32_t k = l->n_put++, id = kv_rig_entry(&w->g, RIG_FULL, l->s, k);
        l->at = kv_prefix_put(w->g.tree, l->salt, l->at, l->text + k * KV_PAGE, l->s, k);
        w->n_swaps += kv_rig_entry(&w->g, RIG_FULL, l->s, k) != id;
    }
}

/* A step: some rows of text, and rows of drafts behind them that are all rejected. */
static void step(world *w, lane *l)
{
    err     e     = {0};
    int32_t chunk = 1 + below(w, CHUNK), ahead = below(w, AHEAD + 1);
    if (l->n + chunk > l->n_goal) chunk = l->n_goal - l->n;
    if (w->reserves || once_in(w, 3)) {
        kv_seq_settle(l->s, l->n);
        l->settled = l->n;
    }
    if (!kv_seq_grow(l->s, l->n + chunk + ahead, &e)) {
        failed(w, l);
        return;
    }
    for (int c = 0; c < 2; c++)
        for (int32_t i = l->n; i < l->n + chunk + ahead; i++)
            kv_rig_write(&w->g, c, l->s, i, i < l->n + chunk ? class_tag(l, i, c) : 0xDEAD);
    l->n += chunk;
    kv_seq_cut(l->s, l->n);
    if (once_in(w, 2)) put(w, l);
    if (l->d && once_in(w, 2) && !fold(w, l)) failed(w, l);
}

/* The nodes of pages that end at or before n. */
static void trim_put(lane *l)
{
    while (l->at && kv_node_end(l->at) > l->n) l->at = kv_node_parent(l->at);
    if (l->n_put > l->n / KV_PAGE) l->n_put = l->n / KV_PAGE;
}

static void fork_lane(world *w, lane *l, lane *to)
{
    lane f = *l;
    f.d = f.sinks = NULL;
    f.n           = l->settled + below(w, l->n - l->settled + 1);
    if (!admit(w, &f, false)) return;
    f.s = kv_seq_fork(l->s, f.n);
    trim_put(&f);
    make_text(w, &f, f.n);
    *to = f;
    w->n_forks++;
}

/* Another text from somewhere behind what is settled. */
static void cut(world *w, lane *l)
{
    if (l->d) return;
    l->n = l->settled + below(w, l->n - l->settled + 1);
    kv_seq_cut(l->s, l->n);
    trim_put(l);
    make_text(w, l, l->n);
}

/* The drafter goes, or another comes. */
static void change_class(world *w)
{
    static const kv_class_spec kinds[] = {
        {.n_layers = 1, .n_kv_heads = 1, .head_dim = 8, .types = {CACHE_F16, CACHE_F16}},
        {.n_layers = 1, .n_kv_heads = 1, .head_dim = 8, .types = {CACHE_F32, CACHE_F32}},
        {.n_layers = 2, .n_kv_heads = 2, .head_dim = 8, .types = {CACHE_F32, CACHE_F32}}};
    test_case *t = w->g.t;
    err        e = {0};
    if (w->cls) {
        for (int i = 0; i < LANES; i++)
            if (w->lanes[i].d) end(w, &w->lanes[i]);
        kv_pool_drop_class(w->g.p, w->cls);
        w->cls = 0;
        return;
    }
    CHECK_OK(kv_pool_add_class(w->g.p, &kinds[below(w, COUNT(kinds))], 2 * LANES, D_CTX, &w->cls, &e), e);
}

static void act(world *w, lane *l)
{
    lane *other = &w->lanes[below(w, LANES)];
    fault_no_alloc_begin("kv"); /* promise 4 */
    if (!l->s)
        begin(w, l);
    else if (l->n == l->n_goal || once_in(w, 30))
        end(w, l);
    else if (once_in(w, 10) && !other->s)
        fork_lane(w, l, other);
    else if (once_in(w, 12))
        cut(w, l);
    else
        step(w, l);
    if (once_in(w, 700)) kv_prefix_forget(w->g.tree);
    fault_no_alloc_end();
    if (once_in(w, 150)) change_class(w);
}

static void first_pages(world *w, int32_t *id)
{
    for (int i = 0; i < LANES; i++)
        id[i] = w->lanes[i].s && w->lanes[i].n ? kv_rig_entry(&w->g, RIG_FULL, w->lanes[i].s, 0) : -1;
}

static void play(world *w, int n_acts)
{
    for (int n = 0; n < n_acts && !w->g.t->n_failed; n++) {
        int     i = below(w, LANES);
        int32_t before[LANES], after[LANES];
        first_pages(w, before);
        act(w, &w->lanes[i]);
        first_pages(w, after);
        for (int k = 0; k < LANES; k++)
            w->n_moved += k != i && before[k] >= 0 && after[k] >= 0 && before[k] != after[k];
        kv_pool_check(w->g.p);
        for (int k = 0; k < LANES; k++)
            if (k == i || n % 8 == 0) verify(w, &w->lanes[k]);
    }
}

static world *open_world(test_case *t, size_t bytes, uint64_t seed)
{
    world *w = xnew(world);
    w->g     = kv_rig_open(t, bytes, LANES, SLOTS);
    w->rand  = seed;
    return w;
}

static void close_world(world *w)
{
    test_case *t = w->g.t;
    for (int i = 0; i < LANES; i++) end(w, &w->lanes[i]);
    kv_pool_check(w->g.p);
    CHECK_INT(kv_pool_pinned_bytes(w->g.p), 0);
    CHECK_INT(kv_pool_reserved_bytes(w->g.p), 0);
    kv_prefix_forget(w->g.tree);
    CHECK_INT(w->g.p->used_bytes, 0);
    kv_rig_close(&w->g);
    mem_free(w);
}

static void check_counts(world *w)
{
    test_case *t       = w->g.t;
    int64_t    evicted = kv_prefix_get_stats(w->g.tree).evicted;
    CHECK_MSG(w->n_hits > 50 && w->n_drafter_hits > 3 && w->n_forks > 20 && w->n_slides > 5 && w->n_swaps > 20 &&
                  w->n_moved > 0 && evicted > 100,
              "too easy: %d hits, %d of drafters, %d forks, %d slides, %d swaps, %d moved, %lld evicted", w->n_hits,
              w->n_drafter_hits, w->n_forks, w->n_slides, w->n_swaps, w->n_moved, (long long)evicted);
}

TEST(kv_random_lanes_find_what_they_wrote)
{
    world *w = open_world(t, 240 << 10, 1);
    play(w, 20000);
    check_counts(w);
    CHECK_MSG(w->n_full > 20, "the pool was full only %d times", w->n_full);
    close_world(w);
}

/* Promise 5: what was admitted never fails, in pools from one that takes a lane or two to one for all. */
TEST(kv_random_lanes_within_their_reservations_never_fail)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        world *w    = open_world(t, (size_t)(110 + 40 * seed) << 10, seed);
        w->reserves = true;
        play(w, 10000);
        check_counts(w);
        CHECK_MSG(w->n_refused > 20, "only %d were refused", w->n_refused);
        close_world(w);
    }
}
