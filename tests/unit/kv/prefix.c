#include "kv_rig.h"

#include "base/fault.h"
#include "kv/inside.h"

enum { MAX_TEXT = 400 };

/* A text of which page k is of kind `kinds[k]`. */
static void make_text(int32_t *text, const char *kinds)
{
    for (int k = 0; kinds[k]; k++)
        for (int i = 0; i < KV_PAGE; i++) text[k * KV_PAGE + i] = kinds[k] * 100 + i;
}

/* Puts pages [from, to) of a sequence whose text it is; returns the last node. */
static kv_node *put(kv_rig *g, uint64_t salt, kv_node *at, const int32_t *text, kv_seq *s, int from, int to)
{
    test_case *t = g->t;
    for (int k = from; k < to; k++) {
        at = kv_prefix_put(g->tree, salt, at, text + k * KV_PAGE, s, k);
        if (!CHECK(at != NULL)) return NULL;
        CHECK_INT(kv_node_end(at), (k + 1) * KV_PAGE);
    }
    kv_pool_check(g->p);
    return at;
}

static int32_t find(kv_rig *g, uint64_t salt, const int32_t *text, int32_t n)
{
    test_case      *t = g->t;
    kv_node        *at;
    kv_prefix_stats before  = kv_prefix_get_stats(g->tree);
    int32_t         reached = kv_prefix_reach(g->tree, salt, text, n, NULL, 0);
    kv_prefix_stats looked  = kv_prefix_get_stats(g->tree);
    int32_t         n_pos   = kv_prefix_find(g->tree, salt, text, n, NULL, 0, &at);
    kv_prefix_stats found   = kv_prefix_get_stats(g->tree);
    CHECK_INT(reached, n_pos);
    CHECK(looked.hits == before.hits && looked.misses == before.misses && looked.hit_tokens == before.hit_tokens);
    CHECK_INT(found.hits - before.hits, n_pos > 0);
    CHECK_INT(found.misses - before.misses, n_pos == 0);
    CHECK_INT(found.hit_tokens - before.hit_tokens, n_pos);
    return at ? n_pos : -n_pos;
}

/* A lane that runs the whole text, puts it and ends, as many positions as `kinds` has pages. */
static void run_text(kv_rig *g, uint64_t salt, const char *kinds, uint32_t tags, bool keep)
{
    test_case *t = g->t;
    int32_t    text[MAX_TEXT], n = (int32_t)strlen(kinds) * KV_PAGE;
    kv_node   *at;
    make_text(text, kinds);
    kv_seq *s     = kv_seq_new(g->p, 0);
    int32_t n_hit = kv_prefix_find(g->tree, salt, text, n + 1, NULL, 0, &at);
    kv_prefix_take(g->tree, at, s);
    CHECK_INT(kv_seq_len(s), n_hit);
    kv_rig_extend(g, s, n, tags);
    at = put(g, salt, at, text, s, n_hit / KV_PAGE, n / KV_PAGE);
    if (keep) kv_prefix_keep(g->tree, at);
    kv_seq_free(s);
    kv_pool_check(g->p);
}

TEST(kv_prefix_hit_shares_what_was_computed)
{
    kv_rig   g = kv_rig_open(t, 1 << 20, 3, MAX_TEXT);
    int32_t  text[MAX_TEXT], other[MAX_TEXT];
    kv_node *at;
    make_text(text, "abcdefgh");
    make_text(other, "abcxefgh");
    CHECK_INT(find(&g, 1, text, 128), 0);
    run_text(&g, 1, "abcdefgh", 1000, false);
    CHECK_INT(kv_pool_pinned_bytes(g.p), 0);
    CHECK(g.p->used_bytes > 0);
    static const int32_t want[][2] = {{129, 128}, {128, 112}, {113, 112}, {112, 96}, {17, 16}, {16, 0}, {1, 0}, {0, 0}};
    for (size_t i = 0; i < COUNT(want); i++) CHECK_INT(find(&g, 1, text, want[i][0]), want[i][1]);
    CHECK_INT(find(&g, 1, other, 129), 48);
    CHECK_INT(find(&g, 2, text, 129), 0); /* another tenant's */
    kv_seq *s = kv_seq_new(g.p, 0);
    CHECK_INT(kv_prefix_find(g.tree, 1, text, 129, NULL, 0, &at), 128);
    kv_prefix_take(g.tree, at, s);
    kv_pool_check(g.p);
    kv_rig_expect(&g, RIG_FULL, s, 0, 128, 1000);
    kv_rig_expect(&g, RIG_SLIDING, s, 128 - RIG_WINDOW + 1, 128, 1000);
    CHECK_INT(kv_rig_entry(&g, RIG_SLIDING, s, 4), -1);
    CHECK_INT(kv_seq_len(s), 128);
    int depth = 0;
    for (kv_node *n = at; n; n = kv_node_parent(n)) depth++;
    CHECK_INT(depth, 8);
    kv_prefix_stats st = kv_prefix_get_stats(g.tree);
    CHECK_INT(st.nodes, 8);
    CHECK_INT(st.pages, 16);
    CHECK_INT(st.bytes, g.p->used_bytes);
    CHECK_INT(st.hits, 7);
    CHECK_INT(st.misses, 6);
    CHECK_INT(st.hit_tokens, 128 + 112 + 112 + 96 + 16 + 48 + 128);
    kv_rig_close(&g);
}

/* Writing on after a hit does not touch what is cached, also where the sequence was cut back into it. */
TEST(kv_prefix_pages_are_never_written)
{
    kv_rig   g = kv_rig_open(t, 1 << 20, 3, MAX_TEXT);
    int32_t  text[MAX_TEXT];
    kv_node *at;
    make_text(text, "abcdefgh");
    run_text(&g, 1, "abcd", 1000, false);
    for (int round = 0; round < 3; round++) {
        kv_seq *s = kv_seq_new(g.p, 0);
        CHECK_INT(kv_prefix_find(g.tree, 1, text, 100, NULL, 0, &at), 64);
        kv_prefix_take(g.tree, at, s);
        kv_rig_expect(&g, RIG_FULL, s, 0, 64, 1000);
        kv_rig_expect(&g, RIG_SLIDING, s, 64 - RIG_WINDOW + 1, 64, 1000);
        if (round) kv_seq_cut(s, 64 - 3 * round);
        kv_rig_extend(&g, s, 90, 7000);
        kv_pool_check(g.p);
        kv_seq_free(s);
    }
    kv_rig_close(&g);
}

/* Two lanes that run the same text at the same time end up with one copy of it. */
TEST(kv_prefix_put_swaps_equal_pages)
{
    kv_rig  g = kv_rig_open(t, 1 << 20, 3, MAX_TEXT);
    int32_t text[MAX_TEXT];
    make_text(text, "abcdefgh");
    kv_seq *a = kv_seq_new(g.p, 0), *b = kv_seq_new(g.p, 0);
    kv_rig_extend(&g, a, 128, 1000);
    size_t alone = g.p->used_bytes;
    kv_rig_extend(&g, b, 128, 1000);
    CHECK_INT(g.p->used_bytes, 2 * alone);
    kv_node *at = put(&g, 1, NULL, text, a, 0, 8);
    CHECK(put(&g, 1, NULL, text, b, 0, 8) == at);
    CHECK_INT(g.p->used_bytes, alone);
    for (int c = 0; c < 2; c++)
        for (int k = 0; k < 8; k++) CHECK_INT(kv_rig_entry(&g, c, a, k), kv_rig_entry(&g, c, b, k));
    kv_seq_free(a);
    kv_rig_expect(&g, RIG_FULL, b, 0, 128, 1000);
    kv_rig_close(&g);
}

/* A node that lost its sliding page, or never had it, gets it from the next lane that runs the text. */
TEST(kv_prefix_put_fills_gaps)
{
    kv_rig   g = kv_rig_open(t, 1 << 20, 3, MAX_TEXT);
    int32_t  text[MAX_TEXT];
    kv_node *at;
    make_text(text, "abcdefgh");
    kv_seq *s = kv_seq_new(g.p, 0);
    kv_rig_extend(&g, s, 128, 1000);
    kv_seq_settle(s, 128); /* pages 0 .. 4 of the sliding class are gone: a hit reaches nowhere in between */
    put(&g, 1, NULL, text, s, 0, 8);
    kv_seq_free(s);
    CHECK_INT(find(&g, 1, text, 129), 128);
    CHECK_INT(find(&g, 1, text, 128), 0);
    s = kv_seq_new(g.p, 0);
    kv_rig_extend(&g, s, 64, 1000);
    put(&g, 1, NULL, text, s, 0, 4);
    kv_seq_free(s);
    CHECK_INT(find(&g, 1, text, 128), 64);
    CHECK_INT(kv_prefix_find(g.tree, 1, text, 129, NULL, 0, &at), 128);
    kv_rig_close(&g);
}

/* --- a drafter's pages ------------------------------------------------------------------------------*/
/* A context of 4 pages of which the first is always kept: from n_pos - 48 on, in whole pages. */
static int32_t first_of(const void *ctx, int32_t n_pos)
{
    int32_t head = *(const int32_t *)ctx * KV_PAGE;
    return n_pos - 48 > head ? (n_pos - 48) / KV_PAGE * KV_PAGE : head;
}

TEST(kv_prefix_hit_reaches_as_far_as_the_wishes)
{
    kv_rig  g = kv_rig_open(t, 1 << 20, 3, MAX_TEXT);
    int32_t text[MAX_TEXT], head = 1;
    err     e = {0};
    int     cls;
    make_text(text, "abcdefgh");
    CHECK_OK(kv_pool_add_class(g.p, &kv_rig_drafter, 2, MAX_TEXT, &cls, &e), e);
    kv_wish  wish = {cls, 1, first_of, &head};
    kv_node *at, *nodes[8];
    kv_seq  *s = kv_seq_new(g.p, 0), *d = kv_seq_new(g.p, cls);
    kv_rig_extend(&g, s, 128, 1000);
    CHECK_OK(kv_seq_grow(d, 128, &e), e);
    for (int i = 0; i < 128; i++) kv_rig_write(&g, cls, d, i, 5000 + (uint32_t)i);
    CHECK(kv_prefix_put(g.tree, 1, NULL, text, d, 0) == NULL); /* the target's first */
    for (int k = 0; k < 8; k++) nodes[k] = kv_prefix_put(g.tree, 1, k ? nodes[k - 1] : NULL, text + k * KV_PAGE, s, k);
    CHECK_INT(kv_prefix_find(g.tree, 1, text, 129, &wish, 1, &at), 0);
    static const struct {
        int     page;
        int32_t reach;
    } order[] = {{1, 0}, {2, 0}, {0, 48}, {4, 48}, {5, 48}, {6, 112}, {7, 128}};
    for (size_t i = 0; i < COUNT(order); i++) {
        int      k = order[i].page;
        kv_node *n = kv_prefix_put(g.tree, 1, k ? nodes[k - 1] : NULL, text + k * KV_PAGE, d, k);
        CHECK(n == nodes[k]);
        CHECK_INT(kv_prefix_find(g.tree, 1, text, 129, &wish, 1, &at), order[i].reach);
        for (int pages = 2; pages <= 5; pages++) { /* a head as long as the hit, or longer: the hit is all head */
            int32_t all  = pages;
            kv_wish more = {cls, pages, first_of, &all};
            CHECK_INT(kv_prefix_reach(g.tree, 1, text, 49, &more, 1), i < 2 ? 0 : 48);
        }
    }
    kv_pool_check(g.p);
    kv_seq_free(s);
    kv_seq_free(d);

    s = kv_seq_new(g.p, 0), d = kv_seq_new(g.p, cls);
    kv_prefix_take(g.tree, at, s);
    kv_prefix_take_class(g.tree, at, d, 1, first_of(&head, 128));
    kv_pool_check(g.p);
    CHECK_INT(kv_seq_len(d), 64);
    kv_rig_expect(&g, cls, d, 0, 16, 5000);
    kv_rig_expect(&g, cls, d, 16, 64, 5000 + 64);
    kv_seq_free(d);
    kv_pool_drop_class(g.p, cls); /* what is cached of it is forgotten */
    kv_pool_check(g.p);
    CHECK_INT(kv_prefix_find(g.tree, 1, text, 129, NULL, 0, &at), 128);
    kv_rig_close(&g);
}

/* --- eviction ---------------------------------------------------------------------------------------*/
/* Fills the pool with texts of one page, one a tenant; what is used again stays, what was used longest ago goes. */
TEST(kv_prefix_evicts_what_was_used_longest_ago)
{
    enum { DEAR = 102 };
    kv_rig   g = kv_rig_open(t, 160 << 10, 2, MAX_TEXT);
    int32_t  text[MAX_TEXT];
    uint64_t end = 100;
    make_text(text, "x");
    while (kv_prefix_get_stats(g.tree).evicted < 9 && end < 200) {
        run_text(&g, end++, "x", 1000, false);
        if (end > DEAR) run_text(&g, DEAR, "x", 1000, false);
    }
    CHECK(end > 120 && end < 200);
    int n_gone = 0; /* the oldest, without a gap */
    for (uint64_t salt = 100; salt < end; salt++) n_gone += find(&g, salt, text, 17) == 0;
    CHECK(n_gone >= 4);
    for (uint64_t salt = 100; salt < end; salt++)
        CHECK_INT(find(&g, salt, text, 17) == 0, salt != DEAR && salt <= 100 + (uint64_t)n_gone);
    kv_pool_check(g.p);
    kv_prefix_forget(g.tree);
    kv_pool_check(g.p);
    CHECK_INT(g.p->used_bytes, 0);
    CHECK_INT(kv_prefix_get_stats(g.tree).nodes, 0);
    kv_rig_close(&g);
}

/* A text goes from its end; what a sequence names stays, whatever comes. */
TEST(kv_prefix_evicts_from_the_end_and_never_what_is_named)
{
    kv_rig   g = kv_rig_open(t, 160 << 10, 3, MAX_TEXT);
    int32_t  text[MAX_TEXT], reach, before = 64;
    kv_node *at;
    make_text(text, "abcdefgh");
    run_text(&g, 1, "abcd", 1000, false);
    kv_seq *s = kv_seq_new(g.p, 0);
    CHECK_INT(kv_prefix_find(g.tree, 1, text, 33, NULL, 0, &at), 32);
    kv_prefix_take(g.tree, at, s);
    uint64_t salt = 100; /* a text of one page for each */
    for (; salt < 160; salt++) {
        run_text(&g, salt, "x", 1000, false);
        reach = find(&g, 1, text, 129);
        CHECK(reach <= before && reach >= 32);
        before = reach;
    }
    CHECK_INT(before, 32);
    kv_rig_expect(&g, RIG_FULL, s, 0, 32, 1000);
    kv_rig_expect(&g, RIG_SLIDING, s, 0, 32, 1000);
    kv_seq_free(s);
    for (; salt < 210; salt++) run_text(&g, salt, "x", 1000, false);
    CHECK_INT(find(&g, 1, text, 129), 0);
    kv_rig_close(&g);
}

/* Of two long texts the end that was marked outlives the other's, though it was used before it. */
TEST(kv_prefix_kept_ends_outlive_the_rest)
{
    for (int late = 0; late < 2; late++) { /* marked before the lane ends, or long after */
        kv_rig   g = kv_rig_open(t, 160 << 10, 3, MAX_TEXT);
        int32_t  kept[MAX_TEXT], loose[MAX_TEXT];
        kv_node *at;
        make_text(kept, "abcdef");
        make_text(loose, "ABCDEF");
        run_text(&g, 1, "abcdef", 1000, !late);
        run_text(&g, 1, "ABCDEF", 2000, false);
        if (late) {
            CHECK_INT(kv_prefix_find(g.tree, 1, kept, 97, NULL, 0, &at), 96);
            kv_prefix_keep(g.tree, at);
            kv_pool_check(g.p);
        }
        uint64_t salt = 100;
        for (; find(&g, 1, loose, 97) == 96 && salt < 180; salt++) run_text(&g, salt, "x", 1000, false);
        CHECK(kv_prefix_get_stats(g.tree).evicted > 0);
        for (; find(&g, 1, loose, 97) > 0 && salt < 180; salt++) run_text(&g, salt, "x", 1000, false);
        CHECK_INT(find(&g, 1, loose, 97), 0);
        CHECK_INT(find(&g, 1, kept, 97), 96);
        CHECK_INT(find(&g, 1, kept, 50), 0); /* only the window at the end was */
        kv_rig_close(&g);
    }
}

TEST(kv_prefix_survives_failed_allocations)
{
    kv_rig g = kv_rig_open(t, 1 << 20, 1, 100);
    int    cls, n_failed = 0;
    err    e = {0};
    kv_prefix_free(g.tree);
    for (long n = 1;; n++) {
        g.tree = (kv_prefix *)&g; /* what a failure leaves there is NULL */
        fault_fail_nth(n);
        bool ok = kv_prefix_new(&g.tree, g.p, &e);
        fault_fail_nth(0);
        if (ok) break;
        CHECK(!g.tree && strstr(e.text, "no memory for a prefix index") != NULL);
        n_failed++;
    }
    CHECK_INT(n_failed, 2);
    for (long n = 1;; n++) {
        fault_fail_nth(n);
        bool ok = kv_pool_add_class(g.p, &kv_rig_drafter, 2, 100, &cls, &e);
        fault_fail_nth(0);
        kv_pool_check(g.p);
        if (ok) break;
        CHECK(strstr(e.text, "cannot add to the K/V cache") != NULL);
        n_failed++;
    }
    CHECK(n_failed >= 2 + 4);
    kv_rig_close(&g);
}

/* Thousands of other salts, of other tokens and of other places share buckets with a text; none of them finds it. */
TEST(kv_prefix_finds_only_what_is_the_same)
{
    kv_rig   g    = kv_rig_open(t, 1 << 20, 2, MAX_TEXT);
    uint64_t seed = 4;
    int32_t  text[MAX_TEXT], other[MAX_TEXT];
    run_text(&g, 1, "abc", 1, false);
    run_text(&g, 1, "xbc", 2, false);
    make_text(text, "abc");
    for (uint64_t salt = 2; salt < 5000; salt++) CHECK_INT(find(&g, salt, text, 49), 0);
    for (int i = 0; i < 5000; i++) {
        memcpy(other, text, 48 * sizeof *other);
        other[test_rand(&seed) % KV_PAGE] = (int32_t)(test_rand(&seed) % 1000000);
        CHECK(!memcmp(other, text, KV_PAGE * sizeof *other) || find(&g, 1, other, 49) == 0);
    }
    kv_node *a = kv_prefix_next(g.tree, 1, NULL, text), *b = a ? kv_prefix_next(g.tree, 1, a, text + KV_PAGE) : NULL;
    CHECK(a && b && kv_node_parent(b) == a && kv_node_end(b) == 2 * KV_PAGE);
    CHECK(!kv_prefix_next(g.tree, 1, NULL, text + KV_PAGE)); /* the second page begins no text, */
    CHECK(!kv_prefix_next(g.tree, 1, b, text + KV_PAGE));    /* and does not follow itself */
    make_text(other, "xbc");
    kv_node *x = kv_prefix_next(g.tree, 1, NULL, other);
    CHECK(x && x != a && kv_prefix_next(g.tree, 1, x, other + KV_PAGE) != b);
    CHECK(!kv_prefix_next(g.tree, 2, NULL, text) && !kv_prefix_next(g.tree, 2, a, text + KV_PAGE));
    kv_rig_close(&g);
}
