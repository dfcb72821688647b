#include "bench/cells.h"

#include "backends.h"
#include "bench/inside.h"
#include "model/open_target.h"
#include "model/tiny_model.h"
#include "test.h"

TEST(bench_experts_drawn_evenly)
{
    CHECK_NEAR(experts_uniform(128, 8, 16), 82.4, 0.05);
    CHECK_NEAR(experts_uniform(128, 8, 1), 8, 1e-9);
    CHECK_NEAR(experts_uniform(8, 2, 1000), 8, 1e-9);
    CHECK_INT(experts_distinct((const int32_t[]){5, 0, 5, 127, 64, 0}, 6, 128), 4);
    CHECK_INT(experts_distinct(NULL, 0, 128), 0);
}

TEST(bench_cells_are_read)
{
    static const struct {
        const char *text;
        cell        c;
    } good[]                       = {{"rows 8 512 4", {CELL_ROWS, 8, 512, 4}},
                                      {"chain 64 0 1", {CELL_CHAIN, 64, 0, 1}},
                                      {"tree 32 8192 4", {CELL_TREE, 32, 8192, 4}},
                                      {"  prefill   512 ", {CELL_PREFILL, 512, 0, 1}},
                                      {"prefill 100 32768", {CELL_PREFILL, 100, 32768, 1}}};
    static const char *const bad[] = {"",           "rows",          "rows 8",        "rows 8 512",   "rows 0 512 4",
                                      "rows 8 x 4", "rows 65 512 4", "rows 8 512 -1", "rows 8 512 0", "rows 8 512 4 5",
                                      "prefill",    "prefill 0",     "prefill 5 x",   "column 1 1 1", "chain 8 512 4x"};
    for (size_t i = 0; i < COUNT(good); i++) {
        cell c = {0};
        err  e = {0};
        if (!CHECK_OK(cell_parse(&c, str_of(good[i].text), &e), e)) continue;
        CHECK_INT(c.kind, good[i].c.kind);
        CHECK_INT(c.rows, good[i].c.rows);
        CHECK_INT(c.context, good[i].c.context);
        CHECK_INT(c.steps, good[i].c.steps);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        cell c;
        err  e = {0};
        CHECK_MSG(!cell_parse(&c, str_of(bad[i]), &e) && e.text[0], "'%s' was read as a cell", bad[i]);
    }
}

static target *open_model(test_case *t, const char *path, const char *device)
{
    target       *m   = NULL;
    model_options opt = {.device = device, .n_threads = 2, .wrap = experts_watch};
    test_open_target(t, &m, path, &opt);
    return m;
}

static target *open_tiny(test_case *t, const char *device)
{
    static const tiny_model shape = {QUANT_Q8_0, 128, 3, 96, 8, 0, false, 5};
    return open_model(t, tiny_model_write(&shape, "cells.gguf"), device);
}

static void run_cells(test_case *t, target *m)
{
    static const char *const text[] = {"rows 5 70 2", "chain 9 100 1", "tree 8 60 2",
                                       "prefill 300", "rows 1 0 1",    "prefill 20 260"};
    cell_rig                *g      = NULL;
    err                      e      = {0};
    CHECK_OK(cell_rig_new(&g, m, &(kv_types)KV_TYPES_ALL(CACHE_F16), NULL, &e), e);
    for (size_t i = 0; i < COUNT(text); i++) {
        cell            c;
        double          ms    = 0;
        experts_touched touch = {0};
        CHECK_OK(cell_parse(&c, str_of(text[i]), &e), e);
        CHECK_OK(cell_reserve(g, &c, 1 << 28, &e), e);
        CHECK_OK(cell_run(g, &c, &ms, &touch, &e), e);
        CHECK(ms > 0);
        CHECK_NEAR(cell_rate(&c, ms), c.rows * 1000 / ms, 1e-6);
        CHECK_INT(touch.n_experts, 8);
        CHECK_INT(touch.n_layers, 3); /* a router per layer, one step */
        CHECK(touch.min >= 2 && touch.min <= touch.distinct && touch.distinct <= touch.max && touch.max <= 8);
        if (c.rows == 1) CHECK_INT(touch.max, 2);
    }
    cell_rig_free(g);
}

TEST(bench_cells_run)
{
    const char *device[TEST_BACKENDS_MAX];
    int         n = test_devices(device);
    for (int i = 0; i < n; i++) {
        target *m = open_tiny(t, device[i]);
        if (m) run_cells(t, m);
        model_close(m);
    }
}

/* Pages of one type that hold bytes of another give NaN, and then all rows choose the same two experts. */
TEST(bench_cells_of_every_type_see_numbers)
{
    static const cache_type type[] = {CACHE_F16, CACHE_Q8_0, CACHE_Q4_0, CACHE_TQ3};
    for (size_t i = 0; i < COUNT(type); i++) {
        target         *m     = open_model(t, test_path("models/nano/target.gguf"), "cpu");
        cell_rig       *g     = NULL;
        cell            c     = {CELL_CHAIN, 8, 600, 1};
        kv_types        kv    = kv_types_default(cache_types_both(type[i]));
        experts_touched touch = {0};
        err             e     = {0};
        double          ms;
        if (!m) return;
        CHECK_OK(cell_rig_new(&g, m, &kv, NULL, &e), e);
        CHECK_OK(cell_reserve(g, &c, 1 << 28, &e), e);
        CHECK_OK(cell_run(g, &c, &ms, &touch, &e), e);
        CHECK_MSG(touch.min > 2, "type %d: %d experts", (int)type[i], touch.min);
        cell_rig_free(g);
        model_close(m);
    }
}

TEST(bench_cells_measure_cpu_time)
{
    target   *m = open_tiny(t, "ref");
    cell_rig *g = NULL;
    cell      c = {CELL_CHAIN, 4, 40, 3};
    err       e = {0};
    double    ms, start;
    if (!m) return;
    CHECK_OK(cell_rig_new(&g, m, &(kv_types)KV_TYPES_ALL(CACHE_F16), NULL, &e), e);
    cell_rig_use_cpu_time(g);
    CHECK_OK(cell_reserve(g, &c, 1 << 28, &e), e);
    start = test_cpu_s();
    CHECK_OK(cell_run(g, &c, &ms, NULL, &e), e);
    CHECK(ms > 0 && ms * c.steps <= 1e3 * (test_cpu_s() - start));
    cell_rig_free(g);
    model_close(m);
}

TEST(bench_cells_without_room_are_refused)
{
    target   *m = open_tiny(t, "ref");
    cell_rig *g = NULL;
    err       e = {0};
    double    ms;
    if (!m) return;
    CHECK_OK(cell_rig_new(&g, m, &(kv_types)KV_TYPES_ALL(CACHE_F32), NULL, &e), e);
    CHECK(!cell_reserve(g, &(cell){CELL_ROWS, 64, 4000, 1}, 1 << 20, &e) && strstr(e.text, "of memory"));
    CHECK(!cell_reserve(g, &(cell){CELL_ROWS, 1, 1 << 22, 1}, 1 << 30, &e) && strstr(e.text, "limit"));
    CHECK_OK(cell_reserve(g, &(cell){CELL_ROWS, 2, 40, 1}, 1 << 20, &e), e);
    CHECK_OK(cell_run(g, &(cell){CELL_ROWS, 2, 40, 1}, &ms, NULL, &e), e);
    cell_rig_free(g);
    model_close(m);
}
