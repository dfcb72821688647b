/* Speculation never changes the text: every way of drafting against plain decoding, token for token.
 *
 *     spec_exact [PROMPTS] [TOKENS] [KV] [MODEL]
 *
 * For each prompt and each way of sampling: the plain answer, then the answer with every method, from the same seed.
 * Some answers keep only a part of what a round decided, as a stop or a limit inside a block does; some run together
 * with other lanes in the same steps. In the cells of a method, draft tokens must have been both accepted and rejected:
 * a method that silently ran plainly fails. With TOKENS it repeats the prompts with new seeds until that number of
 * tokens was compared. KV is the type of all K and V, such as q8_0/q4_0 (default f16), or "all": one run for each of a
 * list with scales. MODEL: nano (default), nano-qwen, or one of those with random weights and an oracle's drafts:
 * qwen35-dense, qwen35-moe, qwen35-dspark, gemma4-dspark, gemma4-dflash2. The last two have no MTP drafter. */
#include "rig.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_TOKENS = 96, LANES = 4, MORE_PROMPTS = 8 };

static const struct {
    const char   *name;
    spec_settings spec;
} methods[] = {
    {"dflash 4", {.method = SPEC_DFLASH, .draft_max = 4}},
    {"dflash 8", {.method = SPEC_DFLASH, .draft_max = 8}},
    {"dflash 16", {.method = SPEC_DFLASH, .draft_max = 16}},
    {"tree 8", {.method = SPEC_TREE, .tree_budget = 8}},
    {"tree 22", {.method = SPEC_TREE, .tree_budget = 22}},
    {"tree 64", {.method = SPEC_TREE, .tree_budget = 64, .tree_temp = 1.5f, .no_chain_seed = true}},
    {"mtp 1", {.method = SPEC_MTP, .draft_max = 1}},
    {"mtp 3", {.method = SPEC_MTP, .draft_max = 3}},
    {"mtp 7", {.method = SPEC_MTP, .draft_max = 7}},
    {"dflash + 8", {.method = SPEC_DFLASH, .draft_tail = 8}},
    {"mtp + 20", {.method = SPEC_MTP, .draft_tail = 20}},
    {"ngram", {.method = SPEC_NGRAM}},
    {"auto + 16", {.method = SPEC_AUTO, .draft_tail = 16}},
    {"auto", {.method = SPEC_AUTO}},
};

static const logit_bias bias[] = {{291, 1.5f}, {283, -INFINITY}};
static const logit_bias few[]  = {{40, 60}, {41, 60}, {42, 60}, {43, 60}}; /* text of a few tokens repeats itself */
static const struct {
    const char    *name;
    sample_params  params;
    penalty_params penalty;
} ways[] = {
    {"greedy", {.top_p = 1}, {.repeat = 1}},
    {"temp 0.7", {.temp = 0.7f, .top_p = 1}, {.repeat = 1}},
    {"temp 1, top-p 0.95", {.temp = 1, .top_p = 0.95f}, {.repeat = 1}},
    {"penalties",
     {.temp = 0.7f, .top_p = 1, .top_k = 40},
     {.repeat = 1.15f, .presence = 0.3f, .frequency = 0.2f, .bias = bias, .n_bias = COUNT(bias)}},
    {"few tokens", {.temp = 0.7f, .top_p = 1}, {.repeat = 1, .bias = few, .n_bias = COUNT(few)}}, /* random weights */
};
static size_t n_ways; /* the last one is for random weights, whose text otherwise never repeats itself */

typedef struct {
    long               tokens, wrong;
    tandem_spec_counts stats;
} cell;
static cell             cells[COUNT(methods)][COUNT(ways)];
static const rig_model *model;
static oracle          *known; /* NULL: the drafters are real */

static bool usable(size_t m) { return methods[m].spec.method != SPEC_MTP || model->drafters[1]; }

static int keep_some(void *ctx, int n)
{
    uint64_t *state = ctx;
    *state          = *state * 6364136223846793005ull + 1442695040888963407ull;
    return 1 + (int)((*state >> 33) % (uint64_t)n);
}

static bool same(const answer *a, const answer *b)
{
    if (a->n != b->n || memcmp(a->token, b->token, (size_t)a->n * sizeof *a->token) != 0) return false;
    return memcmp(a->logprob, b->logprob, (size_t)a->n * sizeof *a->logprob) == 0;
}

static void report(const char *method, const char *way, int prompt, const answer *got, const answer *want)
{
    int i = 0;
    while (i < got->n && i < want->n && got->token[i] == want->token[i] && got->logprob[i] == want->logprob[i]) i++;
    printf("FAILED: %s, %s, prompt %d: token %d is %d (%.9g), plainly %d (%.9g)\n", method, way, prompt, i,
           i < got->n ? got->token[i] : -1, i < got->n ? got->logprob[i] : 0, i < want->n ? want->token[i] : -1,
           i < want->n ? want->logprob[i] : 0);
}

static void note(cell *c, const char *method, const char *way, int prompt, const answer *got, const answer *want)
{
    c->tokens += got->n;
    spec_counts_add(&c->stats, &got->stats);
    if (same(got, want)) return;
    if (c->wrong++ < 3) report(method, way, prompt, got, want);
}

static lane_options options(size_t way, int prompt, long pass, const spec_settings *how)
{
    lane_options o = {.params = ways[way].params, .penalty = ways[way].penalty, .n_top = prompt % 4 == 0 ? 2 : -1};
    o.params.seed  = (uint64_t)prompt * 1000 + (uint64_t)pass;
    if (how) o.spec = *how;
    return o;
}

/* Tells the oracle the text of plain decoding. */
static void learn_plain(const sample *s, const answer *plain)
{
    static int32_t text[4096];
    if (!known) return;
    memcpy(text, s->prompt, (size_t)s->n_prompt * sizeof *text);
    memcpy(text + s->n_prompt, plain->token, (size_t)plain->n * sizeof *text);
    oracle_learn(known, text, (size_t)(s->n_prompt + plain->n));
}

static long try_prompt(rig *g, spec_lane *l, int prompt, long pass)
{
    static answer plain, got;
    uint64_t      random = (uint64_t)prompt + 77 * (uint64_t)pass;
    long          n      = 0;
    for (size_t w = 0; w < n_ways; w++) {
        lane_options o = options(w, prompt, pass, NULL);
        rig_answer(g, l, &o, &g->samples[prompt], MAX_TOKENS, NULL, NULL, &plain);
        learn_plain(&g->samples[prompt], &plain);
        for (size_t m = 0; m < COUNT(methods); m++) {
            if (!usable(m)) continue;
            o = options(w, prompt, pass, &methods[m].spec);
            rig_answer(g, l, &o, &g->samples[prompt], MAX_TOKENS, (prompt + (int)m) % 3 == 0 ? keep_some : NULL,
                       &random, &got);
            note(&cells[m][w], methods[m].name, ways[w].name, prompt, &got, &plain);
            n += got.n;
        }
    }
    return n;
}

/* --- several lanes in the same steps --------------------------------------------------------------*/
typedef struct {
    spec_lane *lane;
    answer     out;
    bool       done;
} runner;

static void take(rig *g, runner *r)
{
    const spec_out *x = spec_lane_out(r->lane);
    int             k = 0;
    if (x->n == 0) return;
    for (; !r->done && k < x->n; k++) {
        r->out.token[r->out.n++] = x->token[k];
        r->done                  = rig_is_stop(g, x->token[k]) || r->out.n == MAX_TOKENS;
    }
    spec_lane_keep(r->lane, k);
}

static bool step_all(rig *g, runner *r, err *e)
{
    spec_lane *live[LANES];
    int        n = 0;
    for (int i = 0; i < LANES; i++)
        if (!r[i].done) live[n++] = r[i].lane;
    if (n == 0) return false;
    for (int i = 0; i < LANES; i++)
        if (!r[i].done) spec_lane_limit(r[i].lane, MAX_TOKENS - r[i].out.n);
    if (!spec_step_alone(g->spec, live, n, e)) {
        printf("FAILED: %s\n", e->text);
        exit(1);
    }
    for (int i = 0; i < LANES; i++)
        if (!r[i].done) take(g, &r[i]);
    return true;
}

/* Four prompts, each with its own method and way, against the same alone and plain. */
static int try_together(rig *g, spec_lane *const *lanes, int first)
{
    static runner r[LANES];
    static answer plain;
    int           wrong = 0;
    err           e     = {0};
    for (int i = 0; i < LANES; i++) {
        size_t m = (size_t)(first + i * 3) % COUNT(methods), w = (size_t)(first + i) % n_ways, reused;
        if (!usable(m)) m = (size_t)i;
        lane_options o  = options(w, first + i, 0, &methods[m].spec);
        o.n_top         = -1;
        r[i]            = (runner){.lane = lanes[i]};
        const sample *s = &g->samples[first + i];
        if (!spec_lane_begin(lanes[i], &(lane_request){.opt = o, .prompt = s->prompt, .n_prompt = (size_t)s->n_prompt},
                             &reused, &e))
            exit(1);
    }
    while (step_all(g, r, &e)) continue;
    for (int i = 0; i < LANES; i++) {
        lane_options o = options((size_t)(first + i) % n_ways, first + i, 0, NULL);
        o.n_top        = -1;
        rig_answer(g, lanes[0], &o, &g->samples[first + i], MAX_TOKENS, NULL, NULL, &plain);
        memset(plain.logprob, 0, sizeof plain.logprob);
        memset(r[i].out.logprob, 0, sizeof r[i].out.logprob);
        if (same(&r[i].out, &plain)) continue;
        wrong++;
        report("together", ways[(size_t)(first + i) % n_ways].name, first + i, &r[i].out, &plain);
    }
    return wrong;
}

/* --- the table ------------------------------------------------------------------------------------*/
static cell cell_sum(size_t m)
{
    cell all = {0};
    for (size_t w = 0; w < n_ways; w++) {
        all.tokens += cells[m][w].tokens;
        all.wrong += cells[m][w].wrong;
        spec_counts_add(&all.stats, &cells[m][w].stats);
    }
    return all;
}

/* Returns whether draft tokens were both accepted and rejected. */
static bool shows_both(const cell *c) { return c->stats.accepted > 0 && c->stats.drafted > c->stats.accepted; }

static bool all_show_both(void)
{
    for (size_t m = 0; m < COUNT(methods); m++) {
        cell c = cell_sum(m);
        if (usable(m) && !shows_both(&c)) return false;
    }
    return true;
}

static bool print_method(size_t m)
{
    cell all = cell_sum(m);
    bool ok  = all.wrong == 0 && shows_both(&all);
    printf("%-10s %8ld %9lld %9lld %6ld", methods[m].name, all.tokens, (long long)all.stats.drafted,
           (long long)all.stats.accepted, all.wrong);
    for (size_t w = 0; w < n_ways; w++) printf("  %18.2f", spec_acceptance_length(&cells[m][w].stats));
    printf("%s\n", ok ? "" : all.wrong ? "  FAILED" : "  FAILED: not both accepted and rejected");
    return ok;
}

static bool print_table(int n_prompts, int n_together, int wrong_together)
{
    bool ok = wrong_together == 0;
    long n  = 0;
    printf("%-10s %8s %9s %9s %6s", "method", "tokens", "drafted", "accepted", "wrong");
    for (size_t w = 0; w < n_ways; w++) printf("  %18s", ways[w].name);
    printf("   (acceptance length)\n");
    for (size_t m = 0; m < COUNT(methods); m++) {
        if (usable(m)) ok = print_method(m) && ok;
        for (size_t w = 0; w < n_ways; w++) n += cells[m][w].tokens;
    }
    printf("%d groups of %d lanes together: %d answers wrong\n", n_together, LANES, wrong_together);
    printf("%ld tokens over %d prompts, %zu methods and %zu ways of sampling: %s\n", n, n_prompts, COUNT(methods),
           n_ways, ok ? "all cases passed" : "FAILED");
    return ok;
}

/* Sparse attention that drops pages in texts as short as these. */
static const sparse_params short_sparse = {3 * (SPARSE_ONE / 10), 1, 32, 48};

static bool run_types(int n_prompts, long enough, cache_types types, sparse_params sparse)
{
    rig        g;
    spec_lane *lanes[LANES];
    long       n     = 0;
    int        wrong = 0, together = 0;
    char       text[CACHE_TYPES_TEXT];
    memset(cells, 0, sizeof cells);
    known = rig_oracle_new(model);
    rig_open(&g, &(rig_options){.model      = model->model,
                                .drafters   = {model->drafters[0], model->drafters[1]},
                                .n_drafters = model->drafters[1] ? 2 : 1,
                                .oracle     = known,
                                .samples    = model->samples,
                                .n_vocab    = model->random ? 512 : 0,
                                .loop = {.n_ctx = 1024, .max_lanes = LANES, .kv_type = {types, types, types, sparse}}});
    for (int i = 0; i < LANES; i++)
        if (!spec_lane_new(g.spec, &lanes[i], NULL)) exit(1);
    if (n_prompts > g.n_samples) n_prompts = g.n_samples;
    for (long pass = 0; pass == 0 || n < enough; pass++)
        for (int i = 0; i < n_prompts && (pass == 0 || n < enough); i++) /* spread over the classes */
            n += try_prompt(&g, lanes[0], (int)((long)i * 53 % g.n_samples), pass);
    /* A good drafter may have all tokens of few prompts accepted. */
    for (int i = n_prompts; i < n_prompts + MORE_PROMPTS && i < g.n_samples && !all_show_both(); i++)
        n += try_prompt(&g, lanes[0], (int)((long)i * 53 % g.n_samples), 0);
    for (int first = 0; first + LANES <= n_prompts && first + LANES <= 64; first += LANES, together++)
        wrong += try_together(&g, lanes, first);
    for (int i = 0; i < LANES; i++) spec_lane_free(lanes[i]);
    printf("%s, K/V %s%s\n", model->name, cache_types_text(types, text), sparse.drop ? ", sparse attention" : "");
    bool ok = print_table(n_prompts, together, wrong);
    rig_close(&g);
    oracle_free(known);
    return ok;
}

int main(int argc, char **argv)
{
    /* "+": with sparse attention too */
    static const char *const scaled[]  = {"q8_0", "q8_0/q4_0", "q4_0", "q8_0/tq3",
                                          "tq3",  "f16/q4_0",  "f16+", "q8_0/tq3+"};
    int                      n_prompts = argc > 1 ? atoi(argv[1]) : 20;
    long                     enough    = argc > 2 ? atol(argv[2]) : 0;
    const char              *kv        = argc > 3 ? argv[3] : "f16";
    bool                     all = !strcmp(kv, "all"), ok = true;
    model  = rig_find_model(argc > 4 ? argv[4] : "nano");
    n_ways = COUNT(ways) - !model->random;
    for (size_t i = 0; i < (all ? COUNT(scaled) : 1); i++) {
        cache_types types;
        err         e      = {0};
        str         name   = str_of(all ? scaled[i] : kv);
        bool        sparse = name.n && name.s[name.n - 1] == '+';
        if (!cache_types_parse(&types, (str){name.s, name.n - sparse}, &e)) {
            fprintf(stderr, "%s\n", e.text);
            return 2;
        }
        ok = run_types(n_prompts, enough, types, sparse ? short_sparse : (sparse_params){0}) && ok;
    }
    return ok ? 0 : 1;
}
