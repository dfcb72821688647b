/* How many guesses are right, over nano's held-out prompts.
 *
 *     spec_accept reference TARGET DRAFTER SAMPLES METHOD [DRAFT_MAX]
 *         greedy, against the rounds that the reference loop in Python counted: the means must agree within 2%
 *     spec_accept warm TARGET DRAFTER SAMPLES METHOD [DRAFT_MAX] [EVERY]
 *         acceptance length at temperatures 0, 0.7 and 1 for argmax, half-noise and full-noise guesses, by class;
 *         on structured classes at 0.7 with the default guesses it must stay above 70% of the greedy one
 *
 *     spec_accept long TARGET DRAFTER SAMPLES METHOD DRAFT_MAX EVERY DRAFT_CTX LENGTH
 *         greedy acceptance length behind LENGTH tokens of other conversations
 *
 * EVERY takes one prompt out of so many; 0 for DRAFT_MAX and DRAFT_CTX is the default. */
#include "rig.h"

#include "base/inside.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_CLASSES = 32, MAX_TOKENS = 400 };

typedef struct {
    str    name;
    double rounds, tokens;         /* ours */
    double ref_rounds, ref_tokens; /* the reference's */
} class_sum;
static class_sum classes[MAX_CLASSES];
static int       n_classes;

static class_sum *class_of(str name)
{
    for (int i = 0; i < n_classes; i++)
        if (str_eq(classes[i].name, name)) return &classes[i];
    classes[n_classes] = (class_sum){.name = name};
    return &classes[n_classes++];
}

static bool is_structured(str name)
{
    static const char *const some[] = {"arith", "json", "tool", "table", "code", "convert", "sort"};
    for (size_t i = 0; i < COUNT(some); i++)
        if (str_is(name, some[i])) return true;
    return false;
}

static spec_method method_named(const char *name)
{
    for (int m = SPEC_OFF + 1; m < SPEC_METHODS; m++)
        if (strcmp(spec_method_names[m], name) == 0) return (spec_method)m;
    fprintf(stderr, "no method %s\n", name);
    exit(2);
}

/* --- against the reference ------------------------------------------------------------------------*/
/* Of the reference's answer, the first token came with the prompt. The answer ends where the reference's does: some
 * reached its limit instead of a stop token. */
static bool compare_prompt(rig *g, spec_lane *l, const sample *s, const spec_settings *how)
{
    static answer a;
    lane_options  o = {.params.top_p = 1, .penalty.repeat = 1, .n_top = -1, .spec = *how};
    class_sum    *c = class_of(s->kind);
    rig_answer(g, l, &o, s, s->n_answer, NULL, NULL, &a);
    c->rounds += (double)(a.stats.rounds + a.stats.plain_rounds - 1);
    c->tokens += a.n - 1;
    c->ref_rounds += s->n_rounds;
    c->ref_tokens += s->mean_round * s->n_rounds;
    return a.n == s->n_answer && memcmp(a.token, s->answer, (size_t)a.n * sizeof *a.token) == 0;
}

static int reference(rig *g, spec_lane *l, const spec_settings *how)
{
    class_sum all  = {0};
    int       same = 0;
    for (int i = 0; i < g->n_samples; i++) same += compare_prompt(g, l, &g->samples[i], how);
    printf("%-14s %8s %9s\n", "class", "ours", "reference");
    for (int i = 0; i < n_classes; i++) {
        class_sum *c = &classes[i];
        printf("%-14.*s %8.2f %9.2f\n", STR_ARG(c->name), c->tokens / c->rounds, c->ref_tokens / c->ref_rounds);
        all.tokens += c->tokens;
        all.rounds += c->rounds;
        all.ref_tokens += c->ref_tokens;
        all.ref_rounds += c->ref_rounds;
    }
    double ours = all.tokens / all.rounds, ref = all.ref_tokens / all.ref_rounds;
    bool   ok = fabs(ours / ref - 1) <= 0.02;
    printf("%-14s %8.3f %9.3f  %+.2f%%, %d of %d answers the same: %s\n", "all", ours, ref, 100 * (ours / ref - 1),
           same, g->n_samples, ok ? "passed" : "FAILED");
    return ok ? 0 : 1;
}

/* --- at temperature -------------------------------------------------------------------------------*/
static double measure(rig *g, spec_lane *l, const spec_settings *how, float temp, int every, bool structured)
{
    static answer      a;
    tandem_spec_counts sum = {0};
    for (int i = 0; i < g->n_samples; i += every) {
        lane_options o = {
            .params = {.temp = temp, .top_p = 1, .seed = (uint64_t)i}, .penalty.repeat = 1, .n_top = -1, .spec = *how};
        if (is_structured(g->samples[i].kind) != structured) continue;
        rig_answer(g, l, &o, &g->samples[i], MAX_TOKENS, NULL, NULL, &a);
        spec_counts_add(&sum, &a.stats);
    }
    return spec_acceptance_length(&sum);
}

static int warm(rig *g, spec_lane *l, const spec_settings *how, int every)
{
    static const float noises[] = {0, 0.25f, 0.5f, 0.75f, 1};
    static const float temps[]  = {0.7f, 1};
    bool               ok       = true;
    for (int structured = 1; structured >= 0; structured--) {
        double greedy = measure(g, l, how, 0, every, structured), now = measure(g, l, how, 0.7f, every, structured);
        printf("%s classes: greedy %.3f, temperature 0.7 with the default guesses %.3f (%.0f%%)\n",
               structured ? "structured" : "other", greedy, now, 100 * now / greedy);
        if (structured && now < 0.7 * greedy) ok = false;
        for (size_t t = 0; t < COUNT(temps); t++)
            for (size_t n = 0; n < COUNT(noises); n++) {
                spec_settings s = *how;
                s.draft_noise   = noises[n];
                printf("    temperature %.1f, noise %5.2f: %.3f\n", (double)temps[t], (double)noises[n],
                       measure(g, l, &s, temps[t], every, structured));
            }
    }
    printf("%s\n", ok ? "passed" : "FAILED");
    return ok ? 0 : 1;
}

/* --- behind a long text ---------------------------------------------------------------------------*/
/* Other samples with their answers, as one conversation after the other, then the sample. */
static sample behind(rig *g, int i, int length)
{
    sample s    = g->samples[i];
    int    n    = 1;
    s.prompt    = arena_new_n(&g->mem, int32_t, length + 2048);
    s.prompt[0] = g->samples[i].prompt[0];
    for (int k = (i + 7) % g->n_samples; n < length; k = (k + 31) % g->n_samples) {
        const sample *x = &g->samples[k];
        if (k == i || x->n_prompt + x->n_answer > 600) continue;
        memcpy(s.prompt + n, x->prompt + 1, (size_t)(x->n_prompt - 1) * sizeof *s.prompt);
        n += x->n_prompt - 1;
        memcpy(s.prompt + n, x->answer, (size_t)x->n_answer * sizeof *s.prompt);
        n += x->n_answer;
    }
    memcpy(s.prompt + n, g->samples[i].prompt + 1, (size_t)(g->samples[i].n_prompt - 1) * sizeof *s.prompt);
    s.n_prompt = n + g->samples[i].n_prompt - 1;
    return s;
}

static int after_long(rig *g, spec_lane *l, const spec_settings *how, int every, int length)
{
    static answer      a;
    tandem_spec_counts sum = {0};
    for (int i = 0; i < g->n_samples; i += every) {
        lane_options o = {.params.top_p = 1, .penalty.repeat = 1, .n_top = -1, .spec = *how};
        arena_mark   m = arena_save(&g->mem);
        sample       s = behind(g, i, length);
        rig_answer(g, l, &o, &s, MAX_TOKENS, NULL, NULL, &a);
        arena_restore(&g->mem, m);
        spec_counts_add(&sum, &a.stats);
    }
    printf("behind %d tokens: acceptance length %.2f, rate %.1f%%\n", length, spec_acceptance_length(&sum),
           100 * spec_acceptance_rate(&sum));
    return 0;
}

static int number(int argc, char **argv, int i, int fallback) { return argc > i ? atoi(argv[i]) : fallback; }

int main(int argc, char **argv)
{
    rig        g;
    spec_lane *l;
    if (argc < 6) return fputs("see the top of tests/spec/accept.c\n", stderr), 2;
    spec_settings how   = {.method = method_named(argv[5]), .draft_max = number(argc, argv, 6, 0)};
    int           every = number(argc, argv, 7, 1), draft_ctx = number(argc, argv, 8, 0), code;
    rig_open(&g, &(rig_options){.model      = argv[2],
                                .drafters   = {argv[3]},
                                .n_drafters = 1,
                                .samples    = argv[4],
                                .draft_ctx  = draft_ctx,
                                .loop       = {.n_ctx = 12288, .max_lanes = 1, .kv_type = KV_TYPES_ALL(CACHE_F32)}});
    if (!spec_lane_new(g.spec, &l, NULL)) return 1;
    if (strcmp(argv[1], "long") == 0)
        code = after_long(&g, l, &how, every, number(argc, argv, 9, 1024));
    else
        code = strcmp(argv[1], "warm") == 0 ? warm(&g, l, &how, every) : reference(&g, l, &how);
    spec_lane_free(l);
    rig_close(&g);
    return code;
}
