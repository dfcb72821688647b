#include "ops/profile.h"
#include "backends.h"
#include "ops/joined.h"
#include "ops_test.h"

#include <stdlib.h>

/* The table for an op that ran n times. */
static void check_line(test_case *t, const char *table, const char *name, long n)
{
    const char *at = strstr(table, name);
    CHECK_MSG(at && strtol(at + strlen(name), NULL, 10) == n, "'%s' is not there %ld times:\n%s", name, n, table);
}

static void count_ops(test_case *t, const char *device)
{
    rig    g = {0};
    char  *table;
    size_t n;
    if (!rig_open(&g, t, device, 1)) return;
    queue *plain     = g.q;
    ops   *inner     = g.o;
    g.o              = ops_profile(inner);
    err          e   = {0};
    queue_limits lim = {4, 64, 1, 1, 64, 0, 0, 0};
    if (CHECK_OK(g.o->queue_new(g.o, &g.q, &lim, &e), e)) {
        dev           x = rig_put_randn(&g, 4 * 64), y = rig_new(&g, 4 * 32 * sizeof(float));
        dev           both = rig_new(&g, 4 * 32 * sizeof(float));
        const weight *w    = rig_weight(&g, QUANT_Q8_0, 64, 32, 1, rig_rand_blocks(&g, QUANT_Q8_0, 64 * 32));
        ops_profile_clear(g.o);
        for (int i = 0; i < 3; i++) OP(&g, matmul, y, w, x, 4);
        OP(&g, add, y, y, y, 32, 1);
        ops_matmuls(g.o, g.q, (dev[]){y, both}, (const weight *[]){w, w}, 2, x, 4);
        FILE *f = open_memstream(&table, &n);
        ops_profile_print(g.o, 1e12, f);
        fclose(f);
        check_line(t, table, "\nmatmul Q8_0 64 -> 32", inner->matmuls ? 3 : 5);
        if (inner->matmuls) check_line(t, table, "\nmatmuls Q8_0 64 -> 64 (2)", 1);
        check_line(t, table, "\nadd", 1);
        check_line(t, table, "\nall", inner->matmuls ? 5 : 6);
        free(table);
        ops_profile_clear(g.o);
        g.o->queue_free(g.q);
    }
    inner->queue_free(plain);
    g.q = NULL;
    rig_close(&g);
}

TEST(profile_counts_what_ran)
{
    const char *device[TEST_BACKENDS_MAX];
    for (int i = 0, n = test_devices(device); i < n; i++) count_ops(t, device[i]);
}
