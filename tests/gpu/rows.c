/* tests/gpu/rows.c - runs nano on a device with every number of rows from 1 to 32 and every method of drafting. The
 * text must be the one that a lane writes alone, to the token. Then runs the same prompts on the processor: the text
 * must be equal, or the first token that differs must be a near-tie on both.
 *
 * rows DEVICE [TOKENS]        exit 0 when both hold */
#include "../spec/rig.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 32, MOST_TOKENS = 128 };
#define NEAR_TIE 0.05f /* difference of two logits: the processor rounds activations to int8, the GPU to f16 */

static const spec_settings modes[] = {
    {.method = SPEC_OFF},
    {.method = SPEC_DFLASH, .draft_max = 4},
    {.method = SPEC_TREE, .tree_budget = 8},
    {.method = SPEC_MTP, .draft_max = 3},
    {.method = SPEC_NGRAM},
    {.method = SPEC_AUTO},
};

typedef struct {
    int32_t token[MOST_TOKENS];
    float   margin[MOST_TOKENS]; /* between the two best logits */
    int     n;
    bool    done;
} text;

typedef struct {
    rig        g;
    spec_lane *lane[LANES];
    text       alone[LANES], got[LANES];
    int        n_tokens;
} device;

static void fail(const char *why)
{
    fprintf(stderr, "FAILED: %s\n", why);
    exit(1);
}

static device *open_device(const char *name, int n_tokens)
{
    device *d   = xnew(device);
    d->n_tokens = n_tokens;
    rig_open(&d->g, &(rig_options){.device = name,
                                   .loop   = {.n_ctx = 512, .max_lanes = LANES, .kv_type = KV_TYPES_ALL(CACHE_F16)}});
    if (d->g.n_samples < LANES) fail("there are too few prompts");
    for (int i = 0; i < LANES; i++)
        if (!spec_lane_new(d->g.spec, &d->lane[i], NULL)) fail("there are too few lanes");
    return d;
}

static void close_device(device *d)
{
    for (int i = 0; i < LANES; i++) spec_lane_free(d->lane[i]);
    rig_close(&d->g);
    mem_free(d);
}

/* --- answers --------------------------------------------------------------------------------------*/
/* Prompts of all classes, which differ in length. */
static const sample *prompt_of(const device *d, int which) { return &d->g.samples[which * 53 % d->g.n_samples]; }

static void begin(device *d, int lane, int which, const spec_settings *mode, text *out)
{
    const sample *s = prompt_of(d, which);
    lane_options  o = {.params = {.top_p = 1}, .penalty.repeat = 1, .n_top = 2, .spec = *mode};
    size_t        reused;
    err           e = {0};
    out->n          = 0;
    out->done       = false;
    if (!spec_lane_begin(d->lane[lane], &(lane_request){.opt = o, .prompt = s->prompt, .n_prompt = (size_t)s->n_prompt},
                         &reused, &e))
        fail(e.text);
}

static void take(device *d, int lane, text *out)
{
    const spec_out *x = spec_lane_out(d->lane[lane]);
    int             k = 0;
    if (x->n == 0) return;
    for (; !out->done && k < x->n; k++) {
        out->margin[out->n]  = x->logprob[k][1].logprob - x->logprob[k][2].logprob;
        out->token[out->n++] = x->token[k];
        out->done            = rig_is_stop(&d->g, x->token[k]) || out->n == d->n_tokens;
    }
    spec_lane_keep(d->lane[lane], k);
}

/* The first n lanes in the same steps, each until its text ends. */
static void run_lanes(device *d, int n, text *out)
{
    err e = {0};
    for (;;) {
        spec_lane *live[LANES];
        int        which[LANES], n_live = 0;
        for (int i = 0; i < n; i++) {
            if (out[i].done) continue;
            spec_lane_limit(d->lane[i], d->n_tokens - out[i].n);
            which[n_live]  = i;
            live[n_live++] = d->lane[i];
        }
        if (!n_live) return;
        if (!spec_step_alone(d->g.spec, live, n_live, &e)) fail(e.text);
        for (int i = 0; i < n_live; i++) take(d, which[i], &out[which[i]]);
    }
}

static void answer_alone(device *d)
{
    for (int i = 0; i < LANES; i++) {
        begin(d, 0, i, &modes[0], &d->alone[i]);
        run_lanes(d, 1, &d->alone[i]);
    }
}

static int first_difference(const text *a, const text *b)
{
    int i = 0;
    while (i < a->n && i < b->n && a->token[i] == b->token[i]) i++;
    return i == a->n && i == b->n ? -1 : i;
}

/* --- the device against itself --------------------------------------------------------------------*/
/* n lanes: the odd ones have a prompt of their own, the even ones share one. */
static int try_rows(device *d, int n, bool drafting)
{
    int wrong = 0;
    for (int i = 0; i < n; i++)
        begin(d, i, i % 2 ? i : 0, &modes[drafting ? (size_t)(i + n) % COUNT(modes) : 0], &d->got[i]);
    run_lanes(d, n, d->got);
    for (int i = 0; i < n; i++) {
        int at = first_difference(&d->got[i], &d->alone[i % 2 ? i : 0]);
        if (at < 0) continue;
        wrong++;
        printf("FAILED: %d lanes%s: lane %d differs from itself alone at token %d\n", n, drafting ? ", drafting" : "",
               i, at);
    }
    return wrong;
}

static bool same_at_every_row_count(device *d)
{
    int wrong = 0;
    for (int n = 1; n <= LANES; n++) wrong += try_rows(d, n, false) + try_rows(d, n, true);
    printf("%s  1 to %d lanes, plain and drafting: %d texts differ from those of a lane alone\n",
           wrong ? "FAILED" : "passed", LANES, wrong);
    return wrong == 0;
}

/* --- the device against the processor -------------------------------------------------------------*/
static bool near_the_processor(const device *d, const device *cpu)
{
    int equal = 0, near = 0;
    for (int i = 0; i < LANES; i++) {
        const text *a = &d->alone[i], *b = &cpu->alone[i];
        int         at = first_difference(a, b);
        if (at < 0) {
            equal++;
            continue;
        }
        bool both = at < a->n && at < b->n, tie = both && a->margin[at] <= NEAR_TIE && b->margin[at] <= NEAR_TIE;
        near += tie;
        printf("differs: prompt %d, token %d: %d (margin %.4f) where the processor has %d (margin %.4f)%s\n", i, at,
               both ? a->token[at] : -1, both ? (double)a->margin[at] : 0, both ? b->token[at] : -1,
               both ? (double)b->margin[at] : 0, tie ? "" : "  FAILED: not a near-tie");
    }
    printf("equal to the processor's: %d of %d, %d part at a near-tie (margins up to %g)\n", equal, LANES, near,
           (double)NEAR_TIE);
    return equal + near == LANES;
}

int main(int argc, char **args)
{
    int n = argc > 2 ? atoi(args[2]) : 48;
    if (argc < 2 || n < 1 || n > MOST_TOKENS) {
        fprintf(stderr, "usage: rows DEVICE [TOKENS, at most %d]\n", MOST_TOKENS);
        return 2;
    }
    device *d = open_device(args[1], n), *cpu = open_device("cpu", n);
    answer_alone(d);
    answer_alone(cpu);
    bool near = near_the_processor(d, cpu), same = same_at_every_row_count(d);
    close_device(d);
    close_device(cpu);
    return near && same ? 0 : 1;
}
