/* tests/gpu/speed.c - how fast a model runs on a device: a prompt of 512 tokens, then single tokens of 1, 4 and 16 lanes
 * side by side, greedily.
 *
 *   speed [--profile] DEVICE MODEL.gguf|DIR [TOKENS]
 *
 * Prints "prefill 512  N tok/s" and "decode R rows  N tok/s  N ms". With --profile each op is timed by itself, which slows the
 * steps down, and a table of them follows each figure. */
#include "base/clock.h"
#include "base/mem.h"
#include "model/model.h"
#include "ops/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LANES = 16, PROMPT = 512, WARM_UP = 4 };

typedef struct {
    target  *m;
    kv_pool *kv;
    kv_seq  *lane[MAX_LANES];
    step     s;
    dev      picked;
    bool     profile;
} rig;

static bool open_rig(rig *g, const char *device, const char *path, int n_tokens, err *e)
{
    checkpoint   *cp;
    model_options opt       = {.device = device, .profile = g->profile};
    int           max_slots = PROMPT + 4 * (n_tokens + WARM_UP);
    if (!checkpoint_open(&cp, path, e)) return false;
    bool ok = model_open(&g->m, cp, &opt, e);
    checkpoint_close(cp);
    if (!ok) return false;
    for (int i = 0; i < g->m->n_kv_classes; i++) g->m->kv_class[i].type = QUANT_F16;
    kv_pool_spec spec = {g->m->kv_class, g->m->n_kv_classes, 0, MAX_LANES, max_slots};
    if (!kv_bytes_for(&spec, max_slots, &spec.max_bytes)) return err_set(e, ERR_LIMIT, "too long");
    spec.max_bytes *= MAX_LANES;
    if (!kv_pool_new(&g->kv, g->m->o, &spec, e) || !g->m->o->alloc(g->m->o, &g->picked, MAX_LANES * sizeof(int32_t), e))
        return false;
    for (int i = 0; i < MAX_LANES; i++) g->lane[i] = kv_seq_new(g->kv);
    return true;
}

static void close_rig(rig *g)
{
    for (int i = 0; i < MAX_LANES; i++)
        if (g->lane[i]) kv_seq_free(g->lane[i]);
    if (g->picked.p) g->m->o->free(g->m->o, g->picked);
    kv_pool_free(g->kv);
    model_close(g->m);
}

/* One step of what g->s holds; the wanted rows' best tokens into id. */
static bool run_step(rig *g, int32_t *id, err *e)
{
    target *m = g->m;
    int     n = g->s.n_want;
    if (!m->step(m, g->kv, &g->s, e)) return false;
    if (n) {
        m->head(m, 0, n);
        m->o->argmax(m->q, g->picked, m->logits, n, m->n_vocab);
        m->o->download(m->q, id, g->picked, (size_t)n * sizeof *id);
    }
    m->o->sync(m->q);
    return m->o->check(m->q, e);
}

static bool prefill(rig *g, int lane, int n, int32_t *id, err *e)
{
    int chunk = g->m->max_rows;
    if (!kv_seq_grow(g->lane[lane], n, e)) return false;
    for (int from = 0; from < n; from += chunk) {
        step_clear(&g->s);
        for (int i = from; i < n && i < from + chunk; i++)
            step_add(&g->s, kv_seq_lane(g->lane[lane]), i, (i * 7919 + lane) % g->m->n_vocab, i == n - 1);
        if (!run_step(g, id, e)) return false;
    }
    return true;
}

/* n tokens on each of the first `lanes` lanes. */
static bool decode(rig *g, int lanes, int n, int32_t id[MAX_LANES], err *e)
{
    for (int k = 0; k < n; k++) {
        step_clear(&g->s);
        for (int i = 0; i < lanes; i++) {
            int32_t pos = kv_seq_len(g->lane[i]);
            if (!kv_seq_grow(g->lane[i], pos + 1, e)) return false;
            step_add(&g->s, kv_seq_lane(g->lane[i]), pos, id[i] < 0 ? 0 : id[i], true);
        }
        if (!run_step(g, id, e)) return false;
    }
    return true;
}

static double begin(const rig *g)
{
    if (g->profile) ops_profile_clear(g->m->o);
    return clock_s();
}

static void show_ops(const rig *g)
{
    if (g->profile) ops_profile_print(g->m->o, stdout);
}

static bool measure(rig *g, int n_tokens, err *e)
{
    static const int rows[] = {1, 4, 16};
    int32_t          id[MAX_LANES];
    if (!prefill(g, 0, PROMPT, id, e)) return false;
    kv_seq_cut(g->lane[0], 0);
    double start = begin(g);
    if (!prefill(g, 0, PROMPT, id, e)) return false;
    printf("prefill %d  %.1f tok/s\n", PROMPT, PROMPT / (clock_s() - start));
    show_ops(g);
    for (int i = 1; i < MAX_LANES; i++)
        if (!prefill(g, i, PROMPT, id + i, e)) return false;
    for (size_t r = 0; r < COUNT(rows); r++) {
        if (!decode(g, rows[r], WARM_UP, id, e)) return false;
        start = begin(g);
        if (!decode(g, rows[r], n_tokens, id, e)) return false;
        double s = (clock_s() - start) / n_tokens;
        printf("decode %2d rows  %.1f tok/s  %.3f ms a step\n", rows[r], rows[r] / s, 1e3 * s);
        show_ops(g);
    }
    return true;
}

int main(int argc, char **args)
{
    err  e = {0};
    rig *g = xnew(rig);
    if (argc > 1 && !strcmp(args[1], "--profile")) {
        g->profile = true;
        args++, argc--;
    }
    if (argc < 3) {
        fprintf(stderr, "usage: speed [--profile] DEVICE MODEL [TOKENS]\n");
        return 2;
    }
    int  n  = argc > 3 ? atoi(args[3]) : 64;
    bool ok = n > 0 && open_rig(g, args[1], args[2], n, &e) && measure(g, n, &e);
    if (!ok) fprintf(stderr, "speed: %s\n", e.text);
    if (g->m) close_rig(g);
    mem_free(g);
    return ok ? 0 : 1;
}
