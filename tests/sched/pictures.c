/* Draft tokens after a picture are accepted as often as without it.
 *
 *     engine_pictures [PROMPTS [TOKENS]]
 *
 * Each held-out prompt of nano is answered by nano-vision, greedily, once as it is and once with a picture before the
 * question. At least 90% of the texts must be the same. Over these, the mean number of tokens of a round after pictures
 * must be at least 90% of that without, by each method. */
#include "stage.h"

#include "base/clock.h"
#include "base/mem.h"
#include "media/prompt.h"
#include "sched/engine.h"

#include <stdio.h>
#include <stdlib.h>

enum { SHARE = 90, SIDE = 8 };

static const tandem_method methods[] = {TANDEM_SPEC_DFLASH, TANDEM_SPEC_TREE, TANDEM_SPEC_MTP};

typedef struct {
    long tokens, rounds;
} sum;

static double length(const sum *x) { return x->rounds ? (double)x->tokens / (double)x->rounds : 0; }

static sum ask(reply *out, tandem *t, const prompt_set *p, const tandem_ids *prompt, tandem_method m, int max)
{
    tandem_request r;
    tandem_error   e = {0};
    request_for(&r, t, prompt, 0, 1, max);
    r.logprobs    = -1;
    r.spec.method = m;
    if (!reply_of(out, t, p, &r, &e)) {
        fprintf(stderr, "FAILED: %s\n", e.text);
        exit(1);
    }
    const tandem_spec_counts *c = &out->result.usage.spec;
    return (sum){out->n, c->rounds + c->plain_rounds};
}

static void add(sum *to, const sum *x)
{
    to->tokens += x->tokens;
    to->rounds += x->rounds;
}

static bool same_tokens(const reply *a, const reply *b)
{
    return a->n == b->n && memcmp(a->token, b->token, (size_t)a->n * sizeof *a->token) == 0;
}

int main(int argc, char **argv)
{
    static prompt_set with, without;
    static reply      a, b;
    int               n_prompts = argc > 1 ? atoi(argv[1]) : 60, max = argc > 2 ? atoi(argv[2]) : 128, same = 0;
    bool              ok    = true;
    double            start = clock_s();
    tandem_options    o;
    tandem_drafter    drafters[2];
    sum               all[COUNT(methods)][2] = {0};
    prompts_open(&without, n_prompts < MAX_PROMPTS ? n_prompts : MAX_PROMPTS, 0);
    with        = without;
    stage_model = rig_find_model("nano-vision");
    stage_options(&o, &without, drafters);
    o.max_lanes = 1;
    tandem *t   = need_engine(&o);
    for (int i = 0; i < without.n_prompts; i++) {
        with.media[i] = stage_add_picture(&with.prompt[i], &without.texts.mem, SIDE, (uint64_t)i);
        for (size_t m = 0; m < COUNT(methods); m++) {
            sum plain = ask(&a, t, &without, &without.prompt[i], methods[m], max);
            sum seen  = ask(&b, t, &with, &with.prompt[i], methods[m], max);
            if (!same_tokens(&a, &b)) continue;
            add(&all[m][0], &plain);
            add(&all[m][1], &seen);
            same++;
        }
        media_prompt_drop(with.media[i]);
    }
    for (size_t m = 0; m < COUNT(methods); m++) {
        double plain = length(&all[m][0]), seen = length(&all[m][1]);
        bool   fine = seen * 100 >= plain * SHARE;
        printf("%-8s %.2f tokens a round without a picture, %.2f after one (%.0f%%)%s\n",
               tandem_method_name((int)methods[m]), plain, seen, 100 * seen / plain, fine ? "" : "  FAILED");
        ok &= fine;
    }
    int n = without.n_prompts * (int)COUNT(methods);
    ok &= same * 100 >= n * SHARE;
    printf("%d of %d texts are the same after a picture, %.0f s: %s\n", same, n, clock_s() - start,
           ok ? "passed" : "FAILED");
    tandem_close(t);
    prompts_close(&without);
    return ok ? 0 : 1;
}
