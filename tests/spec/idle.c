/* What drafters cost that do not help.
 *
 *     spec_idle [PAIRS]
 *
 * Four lanes decode in turns, a few tokens at a time, so that what else the machine does hits all alike: plainly without
 * drafters, the same again, plainly with drafters loaded, and `auto` with drafters that are always wrong, so that it chooses
 * not to draft. Counted is processor time of one thread from token 160 on; the median over the rounds of the ratios. Loaded
 * and idle, drafters may cost 1%; an `auto` that has chosen length 0 may cost 3%, its trials included. */
#include "rig.h"

#include "base/mem.h"
#include "figures/stats.h"
#include "spec/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { WARM_TOKENS = 160, TOKENS = 800, TURN = 80, MAX_ROUNDS = 99 };
enum { ALONE, AGAIN, IDLE, AUTO, ARMS };

static bool (*real_draft[DRAFTER_KINDS])(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e);

static bool wrong_draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n, err *e)
{
    for (int i = 0; i < n; i++) jobs[i]->device_tokens = (dev){0}; /* they are to be seen here */
    if (!real_draft[d->kind](d, kv, jobs, n, e)) return false;
    for (int i = 0; i < n; i++)
        for (int g = 0; g < jobs[i]->n; g++) {
            jobs[i]->token[g] = 5; /* a token that nano does not write */
            for (int r = 0; r < jobs[i]->n_top; r++) jobs[i]->top[g][r].id = 5 + r;
        }
    return true;
}

static double used_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct {
    rig       *g;
    spec_lane *l;
    int        method, n; /* tokens so far */
    double     seconds;
} arm;

static void begin(arm *a, const sample *s)
{
    lane_options o = {
        .params = {.temp = 1, .top_p = 1, .seed = 3}, .penalty.repeat = 1, .n_top = -1, .spec.method = a->method};
    err    e = {0};
    size_t reused;
    a->n       = 0;
    a->seconds = 0;
    if (!spec_lane_begin(
            a->l,
            &(lane_request){
                .opt = o, .prompt = s->prompt, .n_prompt = (size_t)s->n_prompt, .salt = (uint64_t)(uintptr_t)a->l},
            &reused, &e))
        exit(1);
}

static void decode_to(arm *a, int n)
{
    err    e     = {0};
    double start = used_s();
    while (a->n < n) {
        spec_lane_limit(a->l, n - a->n);
        if (!spec_step_alone(a->g->spec, &a->l, 1, &e)) exit(1);
        int k = spec_lane_out(a->l)->n;
        spec_lane_keep(a->l, k);
        a->n += k;
    }
    if (n > WARM_TOKENS) a->seconds += used_s() - start;
}

static void spoil_drafters(rig *g)
{
    for (int k = 0; k < DRAFTER_KINDS; k++) {
        drafter *d    = g->spec->slots[k].d;
        real_draft[k] = d->draft;
        d->draft      = wrong_draft;
    }
}

static void open_arms(arm *a, rig *without, rig *with)
{
    rig_options o = {
        .device = "cpu", .n_threads = 1, .loop = {.n_ctx = 1024, .max_lanes = 2, .kv_type = KV_TYPES_ALL(CACHE_F16)}};
    rig_open(with, &o);
    o.n_drafters = -1;
    rig_open(without, &o);
    spoil_drafters(with);
    for (int i = 0; i < ARMS; i++) {
        a[i] = (arm){.g = i < IDLE ? without : with, .method = i == AUTO ? SPEC_AUTO : SPEC_OFF};
        if (!spec_lane_new(a[i].g->spec, &a[i].l, NULL)) exit(1);
    }
}

int main(int argc, char **argv)
{
    static double ratio[ARMS][MAX_ROUNDS];
    int           n = argc > 1 ? atoi(argv[1]) : 9;
    rig           without, with;
    arm           a[ARMS];
    if (n < 1 || n > MAX_ROUNDS) return 2;
    open_arms(a, &without, &with);
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < ARMS; i++) begin(&a[i], &with.samples[3]);
        for (int to = TURN; to <= TOKENS; to += TURN)
            for (int i = 0; i < ARMS; i++) decode_to(&a[(i + to / TURN) % ARMS], to);
        for (int i = 0; i < ARMS; i++) ratio[i][r] = a[i].seconds / a[ALONE].seconds;
    }
    double again = stats_median(ratio[AGAIN], n).median, idle = stats_median(ratio[IDLE], n).median,
           zero = stats_median(ratio[AUTO], n).median;
    printf(
        "time over plain decoding without drafters, medians of %d: the same again %.3f, drafters idle %.3f, auto with "
        "useless drafters %.3f\n",
        n, again, idle, zero);
    for (int i = 0; i < ARMS; i++) spec_lane_free(a[i].l);
    rig_close(&without);
    rig_close(&with);
    return idle <= 1.01 && zero <= 1.03 ? 0 : 1;
}
