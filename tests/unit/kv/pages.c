#include "kv_rig.h"

#include "base/fault.h"
#include "kv/inside.h"

TEST(kv_bytes_for_one_lane_are_enough_for_it_and_no_more)
{
    kv_rig  g = kv_rig_open(t, 0, 2, 1000);
    kv_seq *a = kv_seq_new(g.p, 0), *b;
    err     e = {0};
    CHECK_OK(kv_seq_grow(a, 1000, &e), e);
    CHECK_FAILS(kv_seq_grow(a, 1001, &e), e, "over the limit of 1000");
    kv_pool_check(g.p);
    b = kv_seq_new(g.p, 0);
    CHECK_FAILS(kv_seq_grow(b, 1000, &e), e, "cache is full");
    CHECK_INT(kv_seq_len(b), 0);
    CHECK(kv_seq_new(g.p, 0) == NULL);
    kv_pool_check(g.p);
    kv_seq_free(a);
    CHECK_OK(kv_seq_grow(b, 1000, &e), e);
    kv_seq_free(b);
    CHECK_INT(g.p->used_bytes, 0);
    kv_rig_close(&g);
}

TEST(kv_cut_keeps_one_page_more_than_it_needs)
{
    kv_rig  g = kv_rig_open(t, 0, 1, 512);
    kv_seq *s = kv_seq_new(g.p, 0);
    err     e = {0};
    CHECK_OK(kv_seq_grow(s, 256, &e), e);
    size_t per_page = g.p->used_bytes / 16;
    for (int n = 256; n >= 0; n--) {
        kv_seq_cut(s, n);
        int pages = (n + KV_PAGE - 1) / KV_PAGE + 1;
        CHECK_INT(g.p->used_bytes / per_page, pages > 16 ? 16 : pages);
        CHECK_INT(kv_seq_len(s), n);
        kv_pool_check(g.p);
    }
    kv_rig_close(&g);
}

TEST(kv_random_growing_and_cutting_keeps_the_invariants)
{
    kv_rig   g       = kv_rig_open(t, 300 << 10, 7, 600);
    kv_seq  *lane[7] = {0};
    uint64_t r       = 1;
    int      n_full  = 0;
    err      e       = {0};
    for (int round = 0; round < 5000; round++) {
        kv_seq **s = &lane[test_rand(&r) % 7];
        if (!*s) *s = kv_seq_new(g.p, 0);
        CHECK(*s != NULL);
        switch (test_rand(&r) % 4) {
        case 0:
        case 1: n_full += !kv_seq_grow(*s, (int)(test_rand(&r) % 601), &e); break;
        case 2: kv_seq_cut(*s, (int)(test_rand(&r) % (uint64_t)(kv_seq_len(*s) + 1))); break;
        default: kv_seq_free(*s); *s = NULL;
        }
        if (round % 16 == 0) kv_pool_check(g.p);
        CHECK(g.p->used_bytes <= kv_pool_bytes(g.p));
    }
    CHECK_MSG(n_full > 10, "the pool was full only %d times: the test is too easy", n_full);
    for (int i = 0; i < 7; i++) kv_seq_free(lane[i]);
    CHECK_INT(g.p->used_bytes, 0);
    kv_pool_check(g.p);
    kv_rig_close(&g);
}

TEST(kv_flush_sends_only_what_changed_and_the_device_has_the_table)
{
    kv_rig          g = kv_rig_open(t, 0, 2, 64);
    err             e = {0};
    kv_seq         *s = kv_seq_new(g.p, 0);
    const kv_class *c = kv_pool_class(g.p, 0);
    int32_t         row[8];
    CHECK_OK(kv_seq_grow(s, 33, &e), e);
    kv_pool_flush(g.p, g.q);
    g.o->download(g.q, row, c->table, sizeof(int32_t) * (size_t)c->table_stride);
    g.o->sync(g.q);
    for (int i = 0; i < c->table_stride; i++) CHECK_INT(row[i] >= 0, i < 3);
    CHECK(row[0] != row[1] && row[1] != row[2] && row[0] != row[2]);
    kv_rig_close(&g);
}

TEST(kv_pool_survives_each_failed_allocation)
{
    ops         *o;
    err          e    = {0};
    kv_pool_spec spec = {.classes   = kv_rig_classes,
                         .n_classes = COUNT(kv_rig_classes),
                         .max_bytes = 1 << 20,
                         .max_lanes = 2,
                         .max_slots = 100};
    CHECK_OK(ops_open(&o, "ref", 1, &e), e);
    int n_failed = 0;
    for (long n = 1;; n++) {
        kv_pool *p;
        fault_fail_nth(n);
        bool ok = kv_pool_new(&p, o, &spec, &e);
        fault_fail_nth(0);
        kv_pool_free(p);
        if (ok) break;
        CHECK(strstr(e.text, "cannot set up the K/V cache") != NULL);
        n_failed++;
    }
    CHECK(n_failed >= 5);
    CHECK_FAILS(
        kv_pool_new(&(kv_pool *){0}, o,
                    &(kv_pool_spec){
                        .classes = kv_rig_classes, .n_classes = 2, .max_bytes = 1000, .max_lanes = 1, .max_slots = 10},
                    &e),
        e, "not enough");
    ops_close(o);
}

TEST(kv_nothing_is_fine_to_free)
{
    kv_pool_free(NULL);
    kv_seq_free(NULL);
}

/* Bytes in use after a sequence has grown to 384 slots, with everything behind the windows given back. */
static size_t used_by(test_case *t, const kv_class_spec *classes)
{
    ops         *o    = NULL;
    kv_pool     *p    = NULL;
    err          e    = {0};
    kv_pool_spec spec = {.classes = classes, .n_classes = 2, .max_lanes = 1, .max_slots = 400};
    size_t       used = 0;
    CHECK(kv_bytes_for(&spec, 400, &spec.max_bytes));
    if (CHECK_OK(ops_open(&o, "ref", 1, &e), e) && CHECK_OK(kv_pool_new(&p, o, &spec, &e), e)) {
        kv_seq *s = kv_seq_new(p, 0);
        for (int32_t n = KV_PAGE; n <= 384; n += KV_PAGE) {
            CHECK_OK(kv_seq_grow(s, n, &e), e);
            kv_seq_settle(s, n);
        }
        used = p->used_bytes;
        kv_pool_check(p);
        kv_seq_free(s);
    }
    kv_pool_free(p);
    ops_close(o);
    return used;
}

/* Windows are kept whichever class comes first; where all classes have one, the first is held whole. */
TEST(kv_windows_hold_in_any_order_of_classes)
{
    const kv_class_spec full = kv_rig_classes[RIG_FULL], sliding = kv_rig_classes[RIG_SLIDING];
    kv_class_spec       whole = sliding;
    whole.window              = 0;
    size_t a = used_by(t, (kv_class_spec[]){full, sliding}), b = used_by(t, (kv_class_spec[]){sliding, full}),
           c = used_by(t, (kv_class_spec[]){sliding, sliding}), d = used_by(t, (kv_class_spec[]){whole, sliding}),
           all = used_by(t, (kv_class_spec[]){full, whole});
    CHECK_INT(a, b);
    CHECK_INT(c, d);
    CHECK_MSG(a > 0 && a < all, "%zu bytes of %zu", a, all);
}
