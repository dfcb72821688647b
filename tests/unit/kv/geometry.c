/* Sizes of pages and slabs, and what lanes of any window need: against their definitions. */
#include "kv/inside.h"
#include "kv_rig.h"

static bool fills(size_t slab_bytes, const size_t *page, int n, double share)
{
    for (int i = 0; i < n; i++)
        if ((double)(slab_bytes / page[i] * page[i]) < share * (double)slab_bytes) return false;
    return true;
}

static double worst_fill(size_t slab_bytes, const size_t *page, int n)
{
    double worst = 1;
    for (int i = 0; i < n; i++) {
        double f = (double)(slab_bytes / page[i] * page[i]) / (double)slab_bytes;
        worst    = f < worst ? f : worst;
    }
    return worst;
}

/* The smallest of eight multiples of the largest page, from 1 MiB or a 64th of the pool on, that all classes fill to 95%; else
 * the one that is filled best. */
TEST(kv_slab_is_the_smallest_that_is_well_filled)
{
    uint64_t seed   = 8;
    int      n_best = 0, at_last = 0;
    for (int round = 0; round < 20000; round++) {
        size_t page[3], largest = 0, pool = (size_t)1 << (12 + test_rand(&seed) % 20);
        int    n = 1 + (int)(test_rand(&seed) % 3), k = 0;
        pool += test_rand(&seed) % pool;
        for (int i = 0; i < n; i++) {
            page[i] = 256 * (1 + test_rand(&seed) % 400);
            largest = page[i] > largest ? page[i] : largest;
        }
        size_t at_least = pool / 64 < 1 << 20 ? pool / 64 : 1 << 20, first = largest,
               got = kv_slab_bytes(page, n, pool);
        while (first < at_least) first += largest;
        while (k < 8 && !fills(first + (size_t)k * largest, page, n, 0.95)) k++;
        CHECK(got >= at_least && got % largest == 0);
        if (k < 8)
            CHECK_INT(got, first + (size_t)k * largest);
        else
            for (int i = 0; i < 8; i++)
                CHECK(worst_fill(got, page, n) >= worst_fill(first + (size_t)i * largest, page, n) &&
                      got < first + 8 * largest);
        n_best += k == 8;
        at_last += k == 7;
    }
    CHECK_MSG(n_best > 100 && at_last > 10, "too easy: %d without a good one, %d with the last", n_best, at_last);
}

TEST(kv_page_bytes_by_type)
{
    static const struct {
        kv_class_spec s;
        size_t        bytes;
    } page[] = {{{1, 1, 8, {CACHE_F32, CACHE_F32}, 0, {0}, 0}, 2 * 8 * KV_PAGE * 4},
                {{1, 1, 8, {CACHE_F16, CACHE_F16}, 0, {0}, 0}, 2 * 8 * KV_PAGE * 2},
                {{3, 2, 64, {CACHE_F16, CACHE_F16}, 40, {0}, 0}, 3 * 2 * 2 * 64 * KV_PAGE * 2},
                /* sparse attention: two f16 per layer, head and channel */
                {{3, 2, 64, {CACHE_F16, CACHE_F16}, 0, {1, 4, 512, 4096}, 0}, 3 * 2 * 2 * 64 * (KV_PAGE + 1) * 2},
                {{1, 1, 1, {CACHE_F16, CACHE_F16}, 0, {0}, 0}, 256}}; /* whole units */
    for (size_t i = 0; i < COUNT(page); i++) {
        size_t bytes = 0;
        CHECK(kv_page_bytes(&page[i].s, &bytes));
        CHECK_INT(bytes, page[i].bytes);
    }
    kv_class_spec huge = {1 << 30, 1 << 30, 1 << 30, {CACHE_F32, CACHE_F32}, 0, {0}, 0};
    size_t        bytes;
    CHECK(!kv_page_bytes(&huge, &bytes));
}

/* Of every window, the largest number of pages that rows [p, p + ahead) and the window before them touch. */
TEST(kv_need_of_every_window)
{
    enum { SLOTS = 120 };
    ops *o;
    err  e = {0};
    if (!CHECK_OK(ops_open(&o, "ref", 1, &e), e)) return;
    for (int window = 0; window <= 50; window++) {
        kv_class_spec cls[2] = {{1, 1, 8, {CACHE_F32, CACHE_F32}, 0, {0}, 0},
                                {1, 1, 8, {CACHE_F32, CACHE_F32}, window, {0}, 0}};
        kv_pool_spec  spec = {.classes = cls, .n_classes = 2, .max_bytes = 1 << 18, .max_lanes = 1, .max_slots = SLOTS};
        kv_pool      *p    = NULL;
        if (!CHECK_OK(kv_pool_new(&p, o, &spec, &e), e)) break;
        for (int ahead = 1; ahead <= 40; ahead += 3) {
            kv_need n    = {{0}};
            int     most = 0;
            for (int at = 0; at < KV_PAGE; at++) { /* wherever pages begin */
                int first = window ? 64 + at - (window - 1) : 0, last = 64 + at + ahead - 1;
                int pages = last / KV_PAGE - (first < 0 ? 0 : first) / KV_PAGE + 1;
                most      = pages > most ? pages : most;
            }
            kv_need_add(p, &n, 0, SLOTS, ahead);
            CHECK_INT(n.pages[0], (SLOTS + KV_PAGE - 1) / KV_PAGE);
            if (!window || most > n.pages[0]) most = n.pages[0];
            CHECK_MSG(n.pages[1] == most, "window %d, %d ahead: %d pages, expected %d", window, ahead, n.pages[1],
                      most);
        }
        kv_pool_free(p);
    }
    ops_close(o);
}
