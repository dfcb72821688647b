#include "model/bind.h"

#include "base/mem.h"
#include "gguf/build_gguf.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { N_IN = 1024, N_OUT = 1 << 16, MATS = 4, MiB = 1 << 20 };

/* Of this process: pages of mapped files. */
static size_t file_bytes(void)
{
    size_t pages = 0;
    FILE  *f     = fopen("/proc/self/statm", "re");
    if (!f || fscanf(f, "%*u %*u %zu", &pages) != 1) abort();
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

typedef struct {
    size_t base, most; /* resident */
    size_t done, total;
    int    calls, backwards;
} watch;

static void look(void *ctx, size_t done, size_t total)
{
    watch *w   = ctx;
    size_t now = file_bytes();
    if (now > w->base && now - w->base > w->most) w->most = now - w->base;
    w->backwards += done < w->done;
    w->done  = done;
    w->total = total;
    w->calls++;
}

static bool load_twice(binder *b, weight **w, err *e)
{
    const tensor *x;
    if (!bind_require(b, "w", &x, e) || !bind_matrix(b, w, x, N_IN, N_OUT, MATS, e)) return false;
    bind_begin(b);
    return bind_matrix(b, w, x, N_IN, N_OUT, MATS, e);
}

static void check_load(test_case *t, const checkpoint *cp, const char *device)
{
    err     e   = {0};
    ops    *o   = NULL;
    owned   own = {0};
    weight *w   = NULL;
    watch   at  = {.base = file_bytes()};
    binder  b   = {.cp = cp, .own = &own, .dry = true, .progress = look, .progress_ctx = &at};
    if (!CHECK_OK(ops_open(&o, device, 2, &e), e)) return;
    owned_init(&own, o, 8);
    if (CHECK_OK(load_twice(&b, &w, &e), e)) {
        CHECK_INT(at.done, tensor_at(cp->tensors, 0)->bytes);
        CHECK_INT(at.total, cp->bytes);
        CHECK_INT(at.backwards, 0);
        CHECK(at.calls >= (int)(at.done / (16 * MiB))); /* told on the way, not at the end */
        CHECK(at.most < PREFETCH_BYTES + 24 * MiB);     /* what was packed went, and not too much came */
    }
    bind_end(&b);
    owned_free(&own);
    ops_close(o);
}

/* 144 MiB of weights pass through less than 90. */
TEST_LONG(bind_gives_back_what_was_packed)
{
    gguf_builder g;
    err          e  = {0};
    checkpoint  *cp = NULL;
    gguf_builder_init(&g);
    gguf_builder_tensor(&g, "w", QUANT_Q4_0, 3, (int64_t[]){N_IN, N_OUT, MATS}, NULL);
    if (CHECK_OK(checkpoint_open(&cp, gguf_builder_write(&g, "large.gguf"), &e), e)) check_load(t, cp, "cpu");
    checkpoint_close(cp);
    gguf_builder_deinit(&g);
}
