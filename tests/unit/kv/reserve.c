#include "kv/inside.h"
#include "kv_rig.h"

/* In a pool of 160 KiB a slab holds 3 pages of the full class or 2 of the sliding one. */
enum { BYTES = 160 << 10, FULL_PER_SLAB = 3, SLIDING_PER_SLAB = 2, SLAB = 6144 };

TEST(kv_need_counts_the_window_and_what_is_ahead)
{
    kv_rig  g = kv_rig_open(t, BYTES, 2, 1000);
    kv_need n = {{0}};
    kv_need_add(g.p, &n, 0, 30, 8);
    CHECK_INT(n.pages[RIG_FULL], 2);
    CHECK_INT(n.pages[RIG_SLIDING], 2);
    kv_need_add(g.p, &n, 0, 1000, 8); /* 39 behind and 8 ahead: at most 4 pages, wherever they begin */
    CHECK_INT(n.pages[RIG_FULL], 2 + 63);
    CHECK_INT(n.pages[RIG_SLIDING], 2 + 4);
    CHECK_INT(kv_need_bytes(g.p, &n), (22 + 3) * SLAB);
    n = (kv_need){{0}};
    kv_need_add(g.p, &n, 0, 5000, 5000); /* the lane ends at 1000 */
    CHECK_INT(n.pages[RIG_FULL], 63);
    CHECK_INT(n.pages[RIG_SLIDING], 63);
    kv_rig_close(&g);
}

/* Every length, every number of rows ahead: what a lane holds at a time is what was asked for, and all of it is needed. */
TEST(kv_need_is_what_a_lane_holds)
{
    kv_rig g    = kv_rig_open(t, 1 << 20, 1, 200);
    size_t full = 2048, sliding = 3072;
    err    e = {0};
    for (int ahead = 1; ahead < 40; ahead++) {
        kv_seq *s    = kv_seq_new(g.p, 0);
        kv_need n    = {{0}};
        size_t  most = 0;
        kv_need_add(g.p, &n, 0, 200, ahead);
        for (int len = 0; len + ahead <= 200; len++) {
            kv_seq_settle(s, len);
            CHECK_OK(kv_seq_grow(s, len + ahead, &e), e);
            size_t held = kv_pool_pinned_bytes(g.p) - (size_t)((len + ahead + 15) / 16) * full;
            if (held > most) most = held;
            kv_seq_cut(s, len + 1);
        }
        CHECK_INT(most, (size_t)n.pages[RIG_SLIDING] * sliding);
        kv_seq_free(s);
    }
    kv_rig_close(&g);
}

TEST(kv_reserve_counts_whole_slabs_of_each_class)
{
    kv_rig g       = kv_rig_open(t, BYTES, 2, 1000);
    int    n_slabs = (int)(kv_pool_bytes(g.p) / SLAB);
    CHECK_INT(n_slabs, 26);
    kv_need one = {{1, 0}}, both = {{4, 3}}, most = {{FULL_PER_SLAB * 26, 0}}, over = {{FULL_PER_SLAB * 26 + 1, 0}};
    CHECK(kv_could_reserve(g.p, &most, 1) && !kv_could_reserve(g.p, &over, 1) && !kv_could_reserve(g.p, &most, 0.9));
    CHECK_INT(kv_need_bytes(g.p, &one), SLAB);
    CHECK_INT(kv_need_bytes(g.p, &(kv_need){{0, 1}}), SLAB);
    CHECK_INT(kv_need_bytes(g.p, &(kv_need){{1, 1}}), 2 * SLAB);
    CHECK_INT(kv_need_bytes(g.p, &(kv_need){{0}}), 0);
    CHECK(kv_reserve(g.p, &one, 1) && kv_reserve(g.p, &one, 1) && kv_reserve(g.p, &one, 1));
    CHECK_INT(kv_pool_reserved_bytes(g.p), SLAB);
    CHECK(kv_reserve(g.p, &both, 1)); /* 7 and 3 pages: 3 and 2 slabs */
    CHECK_INT(kv_pool_reserved_bytes(g.p), 5 * SLAB);
    CHECK(!kv_reserve(g.p, &most, 1));
    CHECK_INT(kv_pool_reserved_bytes(g.p), 5 * SLAB);
    CHECK(!kv_reserve(g.p, &both, 0.25) && kv_reserve(g.p, &both, 0.35)); /* 11 and 6 pages: 4 and 3 slabs */
    kv_pool_check(g.p);
    kv_unreserve(g.p, &both);
    kv_unreserve(g.p, &both);
    for (int i = 0; i < 3; i++) kv_unreserve(g.p, &one);
    CHECK_INT(kv_pool_reserved_bytes(g.p), 0);
    CHECK(kv_reserve(g.p, &most, 1));
    kv_unreserve(g.p, &most);
    kv_rig_close(&g);
}

/* Every slab of the full class is left with one page of three: two thirds of the pool are free, and no slab is. What the
 * sliding class then needs is had by moving pages; the sequences that they belong to do not see it. */
TEST(kv_slabs_are_merged_when_no_slab_is_free)
{
    enum { DRAFT_SEQS = 72, KEPT = 24 };
    kv_rig        g    = kv_rig_open(t, BYTES, 2, 400);
    kv_class_spec same = kv_rig_classes[RIG_FULL];
    err           e    = {0};
    int           cls;
    kv_seq       *d[DRAFT_SEQS], *s = kv_seq_new(g.p, 0);
    CHECK_OK(kv_pool_add_class(g.p, &same, DRAFT_SEQS, 16, &cls, &e), e);
    for (int i = 0; i < DRAFT_SEQS; i++) {
        d[i] = kv_seq_new(g.p, cls);
        CHECK_OK(kv_seq_grow(d[i], 16, &e), e);
        for (int k = 0; k < 16; k++) kv_rig_write(&g, cls, d[i], k, (uint32_t)(1000 + i * 16 + k));
    }
    for (int i = 0; i < DRAFT_SEQS; i++)
        if (i % 3) {
            kv_seq_free(d[i]);
            d[i] = NULL;
        }
    kv_pool_check(g.p);
    CHECK_INT(g.p->used_bytes, KEPT * 2048);
    kv_rig_extend(&g, s, 16 * 15, 50000); /* 5 and 8 slabs, of which two were free */
    kv_pool_check(g.p);
    for (int i = 0; i < DRAFT_SEQS; i += 3) kv_rig_expect(&g, cls, d[i], 0, 16, (uint32_t)(1000 + i * 16));
    for (int c = 0; c < 2; c++) kv_rig_expect(&g, c, s, 0, 16 * 15, 50000);
    kv_rig_extend(&g, s, 16 * 21, 50000); /* 7 and 11 slabs beside 8 */
    CHECK_FAILS(kv_seq_grow(s, 16 * 21 + 1, &e), e, "cache is full");
    CHECK_INT(kv_seq_len(s), 16 * 21);
    kv_pool_check(g.p);
    for (int i = 0; i < DRAFT_SEQS; i += 3) kv_rig_expect(&g, cls, d[i], 0, 16, (uint32_t)(1000 + i * 16));
    for (int c = 0; c < 2; c++) kv_rig_expect(&g, c, s, 0, 16 * 21, 50000);
    kv_rig_close(&g);
}

/* A lane that holds all that it reserved, the last page of it in the tree too, may still write into that page. */
TEST(kv_tree_gives_in_when_a_lane_holds_all_that_it_reserved)
{
    kv_rig   g    = kv_rig_open(t, 2 * SLAB, 1, 100);
    kv_need  need = {{0}};
    int32_t  text[48];
    kv_node *at = NULL;
    kv_seq  *s  = kv_seq_new(g.p, 0);
    for (int i = 0; i < 48; i++) text[i] = i;
    kv_need_add(g.p, &need, 0, 32, 32);
    CHECK(kv_reserve(g.p, &need, 1));
    kv_rig_extend(&g, s, 32, 100);
    for (int k = 0; k < 2; k++) at = kv_prefix_put(g.tree, 0, at, text + k * KV_PAGE, s, k);
    kv_seq_cut(s, 30);
    kv_rig_extend(&g, s, 32, 900);
    kv_pool_check(g.p);
    for (int c = 0; c < 2; c++) {
        kv_rig_expect(&g, c, s, 0, 30, 100);
        kv_rig_expect(&g, c, s, 30, 32, 900);
    }
    CHECK_INT(kv_prefix_find(g.tree, 0, text, 48, NULL, 0, &at), 16);
    kv_seq_free(s);
    kv_unreserve(g.p, &need);
    kv_rig_close(&g);
}
