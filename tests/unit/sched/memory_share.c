/* The K/V cache as a share of the memory that is free on the device. */
#include "base/mem.h"
#include "engine_rig.h"

#include <math.h>

static size_t cache_bytes(test_case *t, float share)
{
    tandem_options o;
    tandem        *e;
    tandem_info    info;
    nano_options(&o);
    o.memory_share = share;
    if (!nano_open(t, &e, &o)) return 0;
    tandem_get_info(e, &info);
    tandem_close(e);
    return (size_t)info.kv_bytes;
}

/* Other programs take and free memory meanwhile, so the bounds are wide. */
TEST(sched_memory_share_sets_the_cache)
{
    double free_bytes = (double)mem_available();
    size_t one = cache_bytes(t, 0.01f), four = cache_bytes(t, 0.04f);
    CHECK_MSG((double)one > 0.003 * free_bytes && (double)one < 0.03 * free_bytes, "%zu of %.0f bytes", one,
              free_bytes);
    CHECK_MSG(four > 2 * one && four < 8 * one, "%zu and %zu bytes", one, four);
}

TEST(sched_memory_share_is_checked)
{
    static const struct {
        float       share;
        uint64_t    bytes;
        const char *why;
    } bad[] = {{-0.1f, 0, "memory_share must be between 0 and 1, got -0.1"},
               {1.5f, 0, "memory_share must be between 0 and 1, got 1.5"},
               {NAN, 0, "memory_share must be between 0 and 1"},
               {0.5f, 1 << 20, "memory_share and kv_bytes both set the size of the K/V cache: give one"},
               {1e-9f, 0, "K/V"}}; /* too little for one lane */
    for (size_t i = 0; i < COUNT(bad); i++) {
        tandem_options o;
        tandem        *e   = NULL;
        tandem_error   why = {0};
        nano_options(&o);
        o.memory_share = bad[i].share;
        o.kv_bytes     = bad[i].bytes;
        CHECK(!tandem_open(&e, &o, &why));
        CHECK_MSG(strstr(why.text, bad[i].why) != NULL, "%zu: '%s'", i, why.text);
    }
}
