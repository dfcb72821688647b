/* tandem bench spec: the speedup of speculation, measured in interleaved pairs.
 *
 * Every arm runs every prompt, in an order that rotates by one each time, so that disturbances affect all arms alike.
 * The responses to one prompt in one repeat are a pair. Plain decoding runs twice, as `off` and `off again`: their
 * difference shows the noise. The result is the median of the ratios of the pairs with a 90% interval from order
 * statistics, without assumptions about the noise. Rates count tokens after the first. The arms share one loop, so
 * `auto` uses costs measured by the others. */
#include "bench/arms.h"
#include "bench/bare.h"
#include "bench/bench.h"
#include "bench/oracle.h"
#include "bench/rig.h"
#include "figures/result.h"

#include <math.h>
#include <stdio.h>

enum { MAX_PAIRS = 4096, MAX_ACCEPTS = 8, RANDOM_PROMPTS = 4 };

static struct {
    method_flags with;
    const char  *accept;
    int          repeats, n_prompt;
    bool         json, n_prompt_given;
} flags = {.with = METHOD_DEFAULTS, .repeats = 3, .n_prompt = 128};

static const option opts[] = {
    OPT_GENERATE(flags.with.gen),
    OPT_SHAPE(flags.with.shape),
    OPT_WORDS("accept", flags.accept,
              "simulated acceptance: drafters run, and a round of the longest draft commits N tokens, such as 7.7,1.5"),
    OPT_PROMPT_TOKENS(flags.n_prompt, 1 << 20, &flags.n_prompt_given,
                      "length of the random prompts that a shape gets (default 128)"),
    OPT_WORDS("methods", flags.with.methods, ARMS_HELP),
    OPT_PROMPTS(flags.with.prompts, "a prompt a line (default: built-in ones)"),
    OPT_REPEATS(flags.repeats, 1000, NULL,
                "times that every prompt is answered by every arm; a shape gets new prompts each time (default 3)"),
    {.name = "json",
     .kind = OPT_FLAG,
     .dest = &flags.json,
     .help = "the results as JSON, a line for each number of --accept"},
    OPT_NO_HASH(flags.with.no_hash),
    OPT_LOGGING,
};
static const opt_spec usage = {
    "bench", "bench spec [-m MODEL | --shape SHAPE] [--draft DRAFTER] [FLAGS]",
    "Compares methods of speculation with plain decoding, in interleaved pairs: the ratio of the rates with a 90% "
    "interval,\n"
    "acceptance as vLLM counts it, and the time of each phase. Also checks that all arms write the same text.",
    opts, COUNT(opts)};

typedef struct {
    arm_choice         choice;
    tandem_spec_counts stats;
    int64_t            tokens;
    double             seconds;
    double             pair_s[MAX_PAIRS]; /* seconds of each pair */
} arm;

typedef struct {
    bench_rig rig;
    bare      gen;
    oracle   *oracle;              /* NULL: no simulated acceptance */
    double    accept[MAX_ACCEPTS]; /* simulated acceptance of each table */
    int       n_accepts;
    int       n_repeats, n_arms, n_pairs, n_different;
    arm       arms[ARMS_MAX];
    tok_ids   text, first_text;
} bench;

/* --- arms -----------------------------------------------------------------------------------------*/
static bool choose_arms(bench *b, err *e)
{
    arm_choice choice[ARMS_MAX];
    if (!rig_choose_arms(&b->rig, &flags.with, choice, &b->n_arms, e)) return false;
    for (int i = 0; i < b->n_arms; i++) b->arms[i].choice = choice[i];
    return true;
}

static bool parse_accepts(double *out, int *n, err *e)
{
    *n = 0;
    for (const char *at = flags.accept ? flags.accept : ""; *at;) {
        str word = str_next_word(&at);
        if (*n == MAX_ACCEPTS) return err_set(e, ERR_INPUT, "the list has more than %d entries", MAX_ACCEPTS);
        if (!str_to_f64(word, &out[*n]) || !(out[*n] >= 1 && out[*n] <= 1 + DRAFT_MAX))
            return err_set(e, ERR_INPUT, "'%.*s' is not a number from 1 to %d", STR_ARG(word), 1 + DRAFT_MAX);
        ++*n;
    }
    return *n > 0 || !flags.accept || err_set(e, ERR_INPUT, "it is empty");
}

/* --- prompts --------------------------------------------------------------------------------------*/
static bool choose_prompts(bench *b, err *e)
{
    int n        = RANDOM_PROMPTS * flags.repeats;
    b->n_repeats = flags.with.shape.given ? 1 : flags.repeats;
    if (flags.with.shape.given && n > PROMPT_SET_MAX)
        return err_set(e, ERR_INPUT, "--repeats must be at most %d for a shape", PROMPT_SET_MAX / RANDOM_PROMPTS);
    if (!rig_fill_prompts(&b->rig, &flags.with, n, flags.n_prompt, e)) return false;
    for (int i = 0; i < b->rig.prompts.n; i++)
        if (!bare_check(&b->gen, &b->rig.prompts.prompt[i].ids, e)) return false;
    return true;
}

/* --- running --------------------------------------------------------------------------------------*/
static bool note_token(void *ctx, int32_t id)
{
    bench *b = ctx;
    return tok_ids_put(&b->text, id);
}

static bool run_arm(bench *b, arm *a, const chat_prompt *p, double *seconds, err *e)
{
    b->gen.lane.spec = job_spec_settings(&a->choice.spec);
    b->text.n        = 0;
    if (!bare_run(&b->gen, &p->ids, e)) return false;
    *seconds = b->gen.decode_s;
    a->seconds += b->gen.decode_s;
    a->tokens += b->gen.n_out - 1;
    spec_counts_add(&a->stats, spec_lane_stats(b->rig.g.lane));
    return true;
}

/* Records the text of plain decoding, for the oracle. */
static bool learn_texts(bench *b, err *e)
{
    tok_ids all;
    double  unused;
    bool    ok = true;
    tok_ids_init(&all, GENERATE_MAX_CONTEXT);
    for (int i = 0; ok && b->oracle && i < b->rig.prompts.n; i++) {
        const tok_ids *prompt = &b->rig.prompts.prompt[i].ids;
        ok                    = run_arm(b, &b->arms[0], &b->rig.prompts.prompt[i], &unused, e);
        tok_ids_clear(&all);
        tok_ids_put_n(&all, prompt->p, prompt->n);
        tok_ids_put_n(&all, b->text.p, b->text.n);
        if (ok) oracle_learn(b->oracle, all.p, all.n);
    }
    tok_ids_deinit(&all);
    return ok;
}

/* Runs one arm on the prompt of the turn. The warm-up is for drafters, pages and the cost model of auto. */
static bool measure_arm(void *ctx, const measure_run *at, err *e)
{
    bench             *b = ctx;
    arm               *a = &b->arms[at->arm];
    const chat_prompt *p = &b->rig.prompts.prompt[at->warm_up ? 0 : at->turn % b->rig.prompts.n];
    if (!run_arm(b, a, p, &a->pair_s[b->n_pairs], e)) return false;
    b->n_different += !arms_agree(&b->first_text, &b->text, at->first);
    if (at->warm_up) {
        a->stats   = (tandem_spec_counts){0};
        a->seconds = 0;
        a->tokens  = 0;
    } else if (at->last && b->gen.n_out >= 2) { /* fewer: nothing was decoded */
        b->n_pairs++;
    }
    return true;
}

static bool measure_arms(bench *b, err *e)
{
    int          n    = b->n_repeats * b->rig.prompts.n;
    measure_plan plan = {.n_cells = 1, .n_arms = b->n_arms, .n_turns = n < MAX_PAIRS ? n : MAX_PAIRS, .n_warm_up = 1};
    b->n_pairs = b->n_different = 0;
    return bench_measure(&plan, measure_arm, b, e);
}

/* --- results --------------------------------------------------------------------------------------*/
/* Returns the ratio of the time of plain decoding to that of an arm. */
static interval speedup(const bench *b, const arm *a) { return stats_ratio(b->arms[0].pair_s, a->pair_s, b->n_pairs); }

static void print_arm(const bench *b, const arm *a)
{
    interval                  r = speedup(b, a);
    const tandem_spec_counts *s = &a->stats;
    int64_t                   n = s->rounds + s->plain_rounds;
    printf("%-12s %9.1f   %5.2f [%.2f, %.2f] %7.2f %6.1f%% %8.2f %8.2f %8.3f\n", a->choice.name,
           (double)a->tokens / a->seconds, r.median, r.low, r.high, spec_acceptance_length(s),
           100 * spec_acceptance_rate(s), 1e3 * s->draft_s / (double)n, 1e3 * s->verify_s / (double)n,
           1e3 * s->commit_s / (double)n);
}

static void print_table(bench *b, double accept)
{
    if (flags.with.shape.given) printf("%s; ", flags.with.shape.target.name);
    if (b->oracle) printf("simulated acceptance, %g tokens a round; ", accept);
    printf("%s, %d threads, temperature %g; %d prompts, %d pairs, %lld tokens an arm\n", b->rig.g.model->o->name,
           b->rig.g.model->o->n_threads, (double)b->gen.lane.params.temp, b->rig.prompts.n, b->n_pairs,
           (long long)b->arms[0].tokens);
    printf("%-12s %9s   %-18s %7s %7s %8s %8s %8s\n", "arm", "tok/s", "ratio [90%]", "length", "rate", "draft ms",
           "verify", "commit");
    for (int i = 0; i < b->n_arms; i++) print_arm(b, &b->arms[i]);
    printf("%s\n", b->n_different ? "THE TEXTS DIFFER" : "all arms wrote the same text");
}

static void put_arm(json_writer *w, const bench *b, const arm *a)
{
    const tandem_spec_counts *s = &a->stats;
    json_begin_object(w);
    json_member_str(w, "name", a->choice.name);
    json_member_int(w, "tokens", a->tokens);
    json_member_real(w, "tokens_per_second", (double)a->tokens / a->seconds);
    result_interval(w, "ratio", speedup(b, a));
    arms_put_rounds(w, s);
    json_member_int(w, "drafted", s->drafted);
    json_member_int(w, "accepted", s->accepted);
    json_member_real(w, "acceptance_length", spec_acceptance_length(s));
    json_member_real(w, "acceptance_rate", spec_acceptance_rate(s));
    json_key(w, "accepted_by_position");
    json_begin_array(w);
    for (int i = 0; i < DRAFT_MAX && s->tried_at[i]; i++) json_put_real(w, (double)s->right_at[i] / (double)s->rounds);
    json_end(w);
    json_member_real(w, "draft_s", s->draft_s);
    json_member_real(w, "verify_s", s->verify_s);
    json_member_real(w, "commit_s", s->commit_s);
    json_end(w);
}

static bool print_json(bench *b, double accept, err *e)
{
    result_doc   doc;
    json_writer *w = result_begin(&doc, "spec");
    json_member_str(w, "device", b->rig.g.model->o->name);
    provenance_put(&b->rig.from, w, &b->rig.g, cli_path_name(flags.with.gen.engine.path),
                   &flags.with.gen.engine.kv.types);
    if (flags.with.shape.given) json_member_str(w, "shape", flags.with.shape.target.name);
    if (b->oracle) json_member_real(w, "accept", accept);
    json_member_int(w, "prompts", b->rig.prompts.n);
    json_member_int(w, "pairs", b->n_pairs);
    json_member_real(w, "temperature", (double)b->gen.lane.params.temp);
    json_member_int(w, "different_texts", b->n_different);
    json_key(w, "arms");
    json_begin_array(w);
    for (int i = 0; i < b->n_arms; i++) put_arm(w, b, &b->arms[i]);
    json_end(w);
    return result_end(&doc, NULL, e);
}

/* --- the command ----------------------------------------------------------------------------------*/
static bool open_bench(bench *b, err *e)
{
    generate_flags *f = &flags.with.gen;
    if (flags.accept) {
        b->oracle         = oracle_new(flags.with.shape.spec.seed);
        f->draft.wrap     = oracle_wrap;
        f->draft.wrap_ctx = b->oracle;
    }
    if (!rig_open(&b->rig, &flags.with, true, e) || !bare_init(&b->gen, &b->rig.g, b->rig.g.tok, f, e)) return false;
    b->gen.on_token   = note_token;
    b->gen.ctx        = b;
    b->gen.ignore_eos = flags.with.shape.given;
    return true;
}

static bool measure_accept(bench *b, double accept, err *e)
{
    if ((b->oracle && !oracle_accept(b->oracle, accept, e)) || !measure_arms(b, e)) return false;
    if (!flags.json) print_table(b, accept);
    if (flags.json && !print_json(b, accept, e)) return false;
    return b->n_different == 0 || err_set(e, ERR_FORMAT, "%d answers differ from the first arm's", b->n_different);
}

static bool measure_spec(void *ctx, err *e)
{
    bench *b = ctx;
    if (!open_bench(b, e) || (flags.json && !rig_note_files(&b->rig, &flags.with, e)) || !choose_arms(b, e) ||
        !choose_prompts(b, e) || !learn_texts(b, e))
        return false;
    if (!b->n_accepts) return measure_accept(b, 0, e);
    for (int i = 0; i < b->n_accepts; i++)
        if (!measure_accept(b, b->accept[i], e)) return false;
    return true;
}

static bool check_flags(void *ctx)
{
    bench *b = ctx;
    err    e = {0};
    if (!bench_check_methods(&flags.with, 0, &usage)) return false;
    if (!parse_accepts(b->accept, &b->n_accepts, &e)) return opt_usage(&usage, "--accept: %s", e.text), false;
    if (flags.n_prompt_given && !flags.with.shape.given)
        return opt_usage(&usage, "--prompt-tokens needs --shape"), false;
    return true;
}

static const bench_command command = {.part = "spec", .usage = &usage, .check = check_flags, .measure = measure_spec};

int bench_spec(int argc, char **args)
{
    bench *b = xnew(bench);
    tok_ids_init(&b->text, GENERATE_MAX_CONTEXT);
    tok_ids_init(&b->first_text, GENERATE_MAX_CONTEXT);
    int code = bench_run(&command, &b->rig.from, b, argc, args);
    if (b->gen.g) bare_deinit(&b->gen);
    rig_close(&b->rig, &flags.with);
    oracle_free(b->oracle);
    tok_ids_deinit(&b->text);
    tok_ids_deinit(&b->first_text);
    mem_free(b);
    return code;
}
