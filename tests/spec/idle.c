/* What drafters cost that do not help.
 *
 *     spec_idle [PAIRS] [TARGET DFLASH MTP]
 *
 * Plain decoding with the drafters' memory given back, plain decoding with them loaded, and `auto` with drafters that are
 * always wrong, so that it chooses not to draft: interleaved, the medians of the pairs' ratios. Loaded and idle they may
 * cost 1%, an `auto` that has chosen length 0 may cost 3%, its trials included. */
#include "rig.h"

#include "base/clock.h"
#include "base/mem.h"
#include "spec/inside.h"

#include <stdio.h>
#include <stdlib.h>

enum { WARM_TOKENS = 160, TOKENS = 400, MAX_PAIRS = 999 };

static bool (*real_draft[DRAFTERS])(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e);

static bool wrong_draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n, err *e)
{
    drafter_index k = d->kind[0] == 'd' ? WITH_DFLASH : d->kind[0] == 'm' ? WITH_MTP : WITH_NGRAM;
    if (!real_draft[k](d, kv, jobs, n, e)) return false;
    for (int i = 0; i < n; i++)
        for (int g = 0; g < jobs[i]->n; g++) {
            jobs[i]->token[g] = 5; /* a token that nano does not write */
            for (int r = 0; r < jobs[i]->n_top; r++) jobs[i]->top[g][r].id = 5 + r;
        }
    return true;
}

/* Seconds for TOKENS tokens, after WARM_TOKENS others. */
static double decode(rig *g, spec_lane *l, int method)
{
    lane_options o = {
        .params = {.temp = 1, .top_p = 1, .seed = 3}, .penalty.repeat = 1, .n_top = -1, .spec.method = method};
    err    e = {0};
    size_t reused;
    double start = 0;
    int    n     = 0;
    if (!spec_lane_begin(l, &o, g->samples[3].prompt, (size_t)g->samples[3].n_prompt, &reused, &e)) exit(1);
    while (n < WARM_TOKENS + TOKENS) {
        if (n >= WARM_TOKENS && start == 0) start = clock_s();
        spec_lane_limit(l, WARM_TOKENS + TOKENS - n);
        if (!spec_step(g->spec, &l, 1, &e)) exit(1);
        int k = spec_lane_out(l)->n;
        spec_lane_keep(l, k);
        n += k;
    }
    return clock_s() - start;
}

static double with_wrong_drafts(rig *g, spec_lane *l)
{
    for (int k = 0; k < DRAFTERS; k++) {
        drafter *d    = g->spec->slots[k].d;
        real_draft[k] = d->draft;
        d->draft      = wrong_draft;
    }
    double s = decode(g, l, SPEC_AUTO);
    for (int k = 0; k < DRAFTERS; k++) g->spec->slots[k].d->draft = real_draft[k];
    return s;
}

static int by_size(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return x[n / 2];
}

int main(int argc, char **argv)
{
    const char *drafters[] = {argc > 4 ? argv[3] : "models/nano/dflash.gguf",
                              argc > 4 ? argv[4] : "models/nano/mtp.gguf"};
    static double again[MAX_PAIRS], idle[MAX_PAIRS], zero[MAX_PAIRS];
    int           n = argc > 1 ? atoi(argv[1]) : 9;
    rig           g;
    spec_lane    *l;
    rig_open(&g, NULL, argc > 4 ? argv[2] : "models/nano/target.gguf", drafters, 2, 0,
             &(spec_options){.n_ctx = 1024, .max_lanes = 1, .kv_type = QUANT_F16},
             "tests/golden/nano/dflash-acceptance.json");
    if (n < 1 || n > MAX_PAIRS || !spec_lane_new(g.spec, &l, NULL)) return 2;
    decode(&g, l, SPEC_OFF);
    for (int i = 0; i < n; i++) {
        double t[4];
        for (int k = 0; k < 4; k++) {
            int arm = (i + k) % 4;
            if (arm < 2) spec_park(g.spec);
            t[arm] = arm == 3 ? with_wrong_drafts(&g, l) : decode(&g, l, SPEC_OFF);
            if (arm < 2 && !spec_unpark(g.spec, NULL)) return 1;
        }
        again[i] = t[1] / t[0];
        idle[i]  = t[2] / t[0];
        zero[i]  = t[3] / t[0];
    }
    double a = median(again, n), b = median(idle, n), c = median(zero, n);
    printf(
        "time over plain decoding without drafters, medians of %d: the same again %.3f, drafters idle %.3f, auto with "
        "useless drafters %.3f\n",
        n, a, b, c);
    spec_lane_free(l);
    rig_close(&g);
    return b <= 1.01 && c <= 1.03 ? 0 : 1;
}
