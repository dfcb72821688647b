#include "gguf/prefetch.h"

#include "base/clock.h"
#include "base/file.h"
#include "test.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N = 3, EACH = 48 << 20 };

static size_t resident(const file_map *m)
{
    static unsigned char there[(size_t)N * EACH / 4096];
    size_t               n = 0;
    if (mincore((void *)(uintptr_t)m->p, m->n, there) != 0) abort();
    for (size_t i = 0; i < m->n / 4096; i++) n += there[i] & 1;
    return n * 4096;
}

static bool reaches(const file_map *m, size_t bytes)
{
    for (double start = clock_s(); clock_s() - start < 10; usleep(1000))
        if (resident(m) >= bytes) return true;
    return false;
}

/* A sparse file: its pages are in memory only when somebody asked for them. */
TEST(ahead_reads_the_list_a_window_at_a_time)
{
    file_map    m  = {0};
    err         e  = {0};
    const char *at = test_tmp_file("ahead", "", 0);
    if (!CHECK(truncate(at, (off_t)N * EACH) == 0) || !CHECK_OK(file_map_open(&m, at, &e), e)) return;
    tensor        x[N];
    const tensor *list[N] = {&x[2], &x[0], &x[1]};
    for (int i = 0; i < N; i++) x[i] = (tensor){.data = m.p + (size_t)i * EACH, .bytes = EACH};

    CHECK_INT(resident(&m), 0);
    prefetcher *a = prefetch_start(list, N);
    CHECK(reaches(&m, PREFETCH_BYTES));
    usleep(20000);
    CHECK(resident(&m) < PREFETCH_BYTES + (32 << 20)); /* the system reads a little around what is asked for */
    CHECK(resident(&(file_map){.p = m.p + EACH, .n = EACH}) < EACH / 2); /* 2, 0, then 1 */
    prefetch_advance(a, 2 * (size_t)EACH);
    CHECK(reaches(&m, (size_t)N * EACH));
    prefetch_stop(a);
    file_map_close(&m);

    prefetch_stop(prefetch_start(list, 0)); /* nothing to do */
    prefetch_advance(NULL, 1);
    prefetch_stop(NULL);
}
