#include "kv/inside.h"
#include "kv_rig.h"

TEST(kv_fork_shares_and_a_write_copies_first)
{
    kv_rig  g = kv_rig_open(t, 1 << 20, 4, 200);
    kv_seq *a = kv_seq_new(g.p, 0);
    kv_rig_extend(&g, a, 70, 1000);
    size_t  alone = g.p->used_bytes;
    kv_seq *b     = kv_seq_fork(a, 55); /* ends inside page 3 */
    CHECK_INT(kv_seq_len(b), 55);
    CHECK_INT(g.p->used_bytes, alone);
    for (int c = 0; c < 2; c++)
        for (int k = 0; k < 5; k++) CHECK_INT(kv_rig_entry(&g, c, b, k), k < 4 ? kv_rig_entry(&g, c, a, k) : -1);
    kv_rig_extend(&g, b, 80, 5000);
    kv_pool_check(g.p);
    for (int c = 0; c < 2; c++) {
        for (int k = 0; k < 5; k++) CHECK_INT(kv_rig_entry(&g, c, b, k) == kv_rig_entry(&g, c, a, k), k < 3);
        kv_rig_expect(&g, c, a, 0, 70, 1000);
        kv_rig_expect(&g, c, b, 0, 55, 1000);
        kv_rig_expect(&g, c, b, 55, 80, 5000);
    }
    kv_seq_cut(a, 20); /* now a writes into what b shares */
    kv_rig_extend(&g, a, 50, 9000);
    for (int c = 0; c < 2; c++) {
        kv_rig_expect(&g, c, b, 0, 55, 1000);
        kv_rig_expect(&g, c, a, 0, 20, 1000);
        kv_rig_expect(&g, c, a, 20, 50, 9000);
    }
    kv_pool_check(g.p);
    kv_seq_free(a);
    kv_rig_expect(&g, 0, b, 0, 55, 1000);
    kv_seq_free(b);
    CHECK_INT(g.p->used_bytes, 0);
    CHECK_INT(kv_pool_pinned_bytes(g.p), 0);
    kv_rig_close(&g);
}

TEST(kv_fork_at_a_page_border_copies_nothing)
{
    kv_rig  g = kv_rig_open(t, 1 << 20, 4, 200);
    kv_seq *a = kv_seq_new(g.p, 0);
    kv_rig_extend(&g, a, 64, 100);
    kv_seq *b = kv_seq_fork(a, 32), *c = kv_seq_fork(a, 0);
    size_t  before = g.p->used_bytes;
    CHECK_INT(kv_seq_len(c), 0);
    kv_rig_extend(&g, b, 40, 100);
    CHECK_INT((g.p->used_bytes - before) * 4, before); /* one page in each class; a has four */
    CHECK(kv_seq_fork(a, 1) != NULL && kv_seq_fork(a, 1) == NULL);
    kv_rig_close(&g);
}

/* Two sequences share a page, and there is none left for a copy: growing fails, and neither changes. */
TEST(kv_fork_in_a_full_pool_writes_nothing)
{
    kv_rig  g = kv_rig_open(t, 0, 4, 64);
    err     e = {0};
    kv_seq *a = kv_seq_new(g.p, 0);
    kv_rig_extend(&g, a, 64, 1000);
    kv_seq *more = kv_seq_new(g.p, 0);
    for (int32_t n = 16; n <= 64 && kv_seq_grow(more, n, &e); n += 16) continue; /* what is left of the pool */
    kv_seq *b = kv_seq_fork(a, 55);
    CHECK_FAILS(kv_seq_grow(b, 60, &e), e, "the K/V cache is full");
    CHECK_INT(kv_seq_len(b), 55);
    kv_pool_check(g.p);
    kv_seq_free(more);
    for (int c = 0; c < 2; c++) kv_rig_expect(&g, c, a, 0, 64, 1000);
    kv_seq_free(a); /* now b's pages are its own */
    kv_rig_extend(&g, b, 64, 5000);
    for (int c = 0; c < 2; c++) kv_rig_expect(&g, c, b, 24, 55, 1000);
    kv_seq_free(b);
    kv_rig_close(&g);
}

/* Settled at every length: exactly the pages go that hold nothing that a row from there on sees. */
TEST(kv_settle_lets_go_of_what_no_row_sees)
{
    kv_rig  g = kv_rig_open(t, 1 << 20, 1, 200);
    kv_seq *s = kv_seq_new(g.p, 0);
    kv_rig_extend(&g, s, 150, 100);
    for (int n = 0; n <= 150; n++) {
        kv_seq_settle(s, n);
        kv_pool_check(g.p);
        int seen = n - RIG_WINDOW + 1;
        for (int k = 0; k < 10; k++) {
            CHECK(kv_rig_entry(&g, RIG_FULL, s, k) >= 0);
            CHECK_INT(kv_rig_entry(&g, RIG_SLIDING, s, k) >= 0, (k + 1) * KV_PAGE > seen);
        }
    }
    kv_rig_expect(&g, RIG_FULL, s, 0, 150, 100);
    kv_rig_expect(&g, RIG_SLIDING, s, 150 - RIG_WINDOW + 1, 150, 100);
    kv_seq *f = kv_seq_fork(s, 150);
    CHECK(f == NULL);
    kv_seq_cut(s, 0); /* anew */
    CHECK_INT(g.p->used_bytes, 0);
    kv_rig_extend(&g, s, 20, 100);
    kv_rig_expect(&g, RIG_SLIDING, s, 0, 20, 100);
    kv_rig_close(&g);
}

TEST(kv_fork_of_a_settled_sequence_has_its_window)
{
    kv_rig  g = kv_rig_open(t, 1 << 20, 2, 200);
    kv_seq *s = kv_seq_new(g.p, 0);
    kv_rig_extend(&g, s, 100, 100);
    kv_seq_settle(s, 90);
    kv_seq *f = kv_seq_fork(s, 91);
    kv_pool_check(g.p);
    kv_rig_expect(&g, RIG_SLIDING, f, 91 - RIG_WINDOW + 1, 91, 100);
    kv_rig_expect(&g, RIG_FULL, f, 0, 91, 100);
    kv_rig_extend(&g, f, 120, 700);
    kv_seq_settle(f, 120);
    kv_rig_expect(&g, RIG_SLIDING, s, 91 - RIG_WINDOW + 1, 100, 100);
    kv_pool_check(g.p);
    kv_rig_close(&g);
}

/* --- added classes ----------------------------------------------------------------------------------*/
static int add_drafter(kv_rig *g, int max_seqs, int max_slots)
{
    test_case *t = g->t;
    err        e = {0};
    int        cls;
    CHECK_OK(kv_pool_add_class(g->p, &kv_rig_drafter, max_seqs, max_slots, &cls, &e), e);
    kv_pool_check(g->p);
    return cls;
}

static void fill(kv_rig *g, int cls, kv_seq *s, int32_t to, uint32_t first)
{
    test_case *t    = g->t;
    err        e    = {0};
    int32_t    from = kv_seq_len(s);
    CHECK_OK(kv_seq_grow(s, to, &e), e);
    for (int32_t i = from; i < to; i++) kv_rig_write(g, cls, s, i, first + (uint32_t)i);
}

TEST(kv_added_class_has_sequences_of_its_own)
{
    kv_rig   g   = kv_rig_open(t, 1 << 20, 1, 100);
    kv_seq  *a   = kv_seq_new(g.p, 0);
    uint64_t key = kv_pool_key(g.p);
    kv_rig_extend(&g, a, 60, 100); /* pages are in use while more, smaller ones come */
    int cls = add_drafter(&g, 2, 300);
    CHECK_INT(cls, 2);
    CHECK(kv_pool_key(g.p) != key);
    kv_seq *d = kv_seq_new(g.p, cls), *f = kv_seq_new(g.p, cls);
    err     e = {0};
    CHECK(kv_seq_new(g.p, cls) == NULL && kv_seq_new(g.p, 0) == NULL);
    fill(&g, cls, d, 300, 5000);
    CHECK_FAILS(kv_seq_grow(d, 301, &e), e, "over the limit of 300");
    fill(&g, cls, f, 40, 7000);
    kv_rig_expect(&g, cls, d, 0, 300, 5000);
    kv_rig_expect(&g, cls, f, 0, 40, 7000);
    kv_rig_expect(&g, RIG_FULL, a, 0, 60, 100);
    kv_pool_check(g.p);
    kv_seq_free(d);
    kv_seq_free(f);
    kv_pool_drop_class(g.p, cls);
    kv_pool_check(g.p);
    CHECK_INT(add_drafter(&g, 1, 50), 2);
    CHECK_INT(add_drafter(&g, 1, 50), 3);
    kv_rig_expect(&g, RIG_SLIDING, a, 0, 60, 100);
    kv_rig_close(&g);
}

TEST(kv_add_class_says_what_does_not_fit)
{
    kv_rig        g    = kv_rig_open(t, 1 << 20, 1, 100);
    kv_class_spec huge = {.n_layers = 400, .n_kv_heads = 8, .head_dim = 64, .types = {CACHE_F32, CACHE_F32}};
    err           e    = {0};
    int           cls;
    CHECK_FAILS(kv_pool_add_class(g.p, &huge, 1, 10, &cls, &e), e, "does not fit into a cache of");
    for (int i = 2; i < KV_MAX_CLASSES; i++) add_drafter(&g, 1, 10);
    CHECK_FAILS(kv_pool_add_class(g.p, &kv_rig_drafter, 1, 10, &cls, &e), e, "cannot hold another kind");
    kv_pool_check(g.p);
    kv_rig_close(&g);
}

/* A slide: pages behind the first go, what follows moves down, and page 0 is written anew while its old self is kept. */
TEST(kv_drop_takes_pages_out_of_the_middle)
{
    kv_rig  g   = kv_rig_open(t, 1 << 20, 1, 100);
    int     cls = add_drafter(&g, 2, 200);
    kv_seq *d = kv_seq_new(g.p, cls), *first = NULL;
    err     e = {0};
    fill(&g, cls, d, 150, 1000);
    first = kv_seq_fork(d, KV_PAGE);
    kv_seq_drop(d, 1, 3);
    kv_pool_check(g.p);
    CHECK_INT(kv_seq_len(d), 102);
    kv_rig_expect(&g, cls, d, 0, 16, 1000);
    kv_rig_expect(&g, cls, d, 16, 102, 1048);
    CHECK_INT(kv_rig_entry(&g, cls, d, 7), -1);
    CHECK_OK(kv_seq_own(d, 0, &e), e);
    kv_pool_check(g.p);
    kv_rig_expect(&g, cls, d, 0, 16, 1000); /* a copy */
    for (int i = 0; i < KV_PAGE; i++) kv_rig_write(&g, cls, d, i, 9000 + (uint32_t)i);
    kv_rig_expect(&g, cls, first, 0, 16, 1000);
    int32_t id = kv_rig_entry(&g, cls, d, 0);
    CHECK_OK(kv_seq_own(d, 0, &e), e); /* its own already */
    CHECK_INT(kv_rig_entry(&g, cls, d, 0), id);
    kv_seq_drop(d, 6, 0);
    fill(&g, cls, d, 200, 1048);
    kv_rig_expect(&g, cls, d, 16, 200, 1048);
    kv_pool_check(g.p);
    kv_rig_close(&g);
}

/* --- the device's table -----------------------------------------------------------------------------*/
static size_t uploaded;
static void (*real_upload)(queue *q, dev dst, const void *src, size_t bytes);
static void count_upload(queue *q, dev dst, const void *src, size_t bytes)
{
    uploaded += bytes;
    real_upload(q, dst, src, bytes);
}

TEST(kv_flush_sends_the_entries_that_changed)
{
    kv_rig  g = kv_rig_open(t, 1 << 20, 2, 500);
    kv_seq *a = kv_seq_new(g.p, 0), *b = kv_seq_new(g.p, 0);
    kv_rig_extend(&g, a, 200, 1);
    kv_rig_extend(&g, b, 200, 1);
    kv_pool_flush(g.p, g.q);
    real_upload = g.o->upload;
    g.o->upload = count_upload;
    uploaded    = 0;
    kv_pool_flush(g.p, g.q);
    CHECK_INT(uploaded, 0);
    err e = {0};
    CHECK_OK(kv_seq_grow(b, 208, &e), e);
    kv_pool_flush(g.p, g.q);
    CHECK_INT(uploaded, 0);
    CHECK_OK(kv_seq_grow(b, 240, &e), e);
    kv_pool_flush(g.p, g.q);
    CHECK_INT(uploaded, 2 * 2 * sizeof(int32_t)); /* two pages, two classes */
    kv_seq_settle(a, 100);                        /* one class: pages 0 .. 2 */
    kv_pool_flush(g.p, g.q);
    CHECK_INT(uploaded, (4 + 3) * sizeof(int32_t));
    g.o->upload = real_upload;
    kv_rig_close(&g);
}

/* Where every class has a window, the first is held whole all the same: the tree hangs on it. */
TEST(kv_first_of_windowed_classes_is_held_whole)
{
    static const kv_class_spec sliding[] = {{1, 1, 8, {CACHE_F32, CACHE_F32}, 20, {0}, 0},
                                            {2, 1, 8, {CACHE_F32, CACHE_F32}, 20, {0}, 0}};
    kv_pool_spec spec = {.classes = sliding, .n_classes = 2, .max_bytes = 1 << 16, .max_lanes = 1, .max_slots = 200};
    kv_rig       g    = kv_rig_open(t, 1 << 16, 1, 100);
    kv_pool     *p;
    err          e = {0};
    CHECK_OK(kv_pool_new(&p, g.o, &spec, &e), e);
    kv_seq *s = kv_seq_new(p, 0);
    CHECK_OK(kv_seq_grow(s, 160, &e), e);
    size_t all = p->used_bytes;
    kv_seq_settle(s, 160);
    kv_pool_check(p);
    CHECK_INT(p->used_bytes * 30, all * (10 + 2 * 2)); /* 10 pages of one part, 2 of 10 of two parts */
    kv_seq_free(s);
    kv_pool_free(p);
    kv_rig_close(&g);
}
