/* tandem bench spec: the speedup of speculation, measured in interleaved pairs.
 *
 * Every arm runs every prompt, in an order that rotates by one each time, so that disturbances affect all arms alike.
 * The responses to one prompt in one repeat are a pair. Plain decoding runs twice, as `off` and `off again`: their
 * difference shows the noise. The result is the median of the ratios of the pairs with a 90% interval from order
 * statistics, without assumptions about the noise. The arms share one loop, so `auto` uses costs measured by the
 * others.
 *
 *      gen    tokens after the first / the time after it: decoding alone
 *      wall   all tokens / the time of the whole response, with its prompt
 *
 * Where the prompts have several classes, each is also reported alone. */
#include "bench/arms.h"
#include "bench/bare.h"
#include "bench/bench.h"
#include "bench/oracle.h"
#include "bench/rig.h"
#include "figures/result.h"

#include <math.h>
#include <stdio.h>

enum { MAX_PAIRS = 4096, MIN_PAIRS = 9, MAX_ACCEPTS = 8, RANDOM_PROMPTS = 4, REPEATS = 3 };

static struct {
    method_flags with;
    const char  *accept;
    int          repeats, n_prompt;
    bool         json, n_prompt_given, repeats_given;
} flags = {.with = METHOD_DEFAULTS, .repeats = REPEATS, .n_prompt = 128};

static const option opts[] = {
    OPT_GENERATE(flags.with.gen),
    OPT_SHAPE(flags.with.shape),
    OPT_WORDS("accept", flags.accept,
              "simulated acceptance: drafters run, and a round of the longest draft commits N tokens, such as 7.7,1.5"),
    OPT_PROMPT_TOKENS(flags.n_prompt, 1 << 20, &flags.n_prompt_given,
                      "length of the random prompts that a shape gets (default 128)"),
    OPT_WORDS("methods", flags.with.methods, ARMS_HELP),
    OPT_PROMPTS(flags.with.prompts, PROMPTS_HELP),
    OPT_REPEATS(
        flags.repeats, 1000, &flags.repeats_given,
        "times that every prompt is answered by every arm; a shape gets new prompts each time (default 3, and at "
        "least 9 pairs)"),
    {.name = "json",
     .kind = OPT_FLAG,
     .dest = &flags.json,
     .help = "the results as JSON, a line for each number of --accept"},
    OPT_NO_HASH(flags.with.no_hash),
    OPT_LOGGING,
};
static const opt_spec usage = {
    "bench spec", "bench spec [-m MODEL | --shape SHAPE] [--draft DRAFTER] [FLAGS]",
    "Compares methods of speculation with plain decoding, in interleaved pairs: rates and their ratios with 90% "
    "intervals,\n"
    "of decoding alone (gen) and with the prompt (wall), acceptance, and the time of each phase. Also checks that all "
    "arms write\n"
    "the same text.",
    opts, COUNT(opts)};

typedef struct {
    arm_choice         choice;
    tandem_spec_counts stats, of_class[PROMPT_CLASSES_MAX];
    int64_t            tokens;                          /* after the first ones */
    double             gen[MAX_PAIRS], wall[MAX_PAIRS]; /* tokens per second in each pair */
} arm;

typedef struct {
    bench_rig rig;
    bare      gen;
    oracle   *oracle;              /* NULL: no simulated acceptance */
    double    accept[MAX_ACCEPTS]; /* simulated acceptance of each table */
    int       n_accepts;
    int       n_repeats, n_arms, n_pairs, n_different;
    int       pair_class[MAX_PAIRS]; /* class of the prompt of each pair */
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
    int n = RANDOM_PROMPTS * flags.repeats;
    if (flags.with.shape.given && n > PROMPT_SET_MAX)
        return err_set(e, ERR_INPUT, "--repeats must be at most %d for a shape", PROMPT_SET_MAX / RANDOM_PROMPTS);
    if (!rig_fill_prompts(&b->rig, &flags.with, n, flags.n_prompt, e)) return false;
    b->n_repeats = flags.with.shape.given ? 1 : flags.repeats;
    if (!flags.repeats_given && b->n_repeats * b->rig.prompts.n < MIN_PAIRS)
        b->n_repeats = (MIN_PAIRS + b->rig.prompts.n - 1) / b->rig.prompts.n;
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

/* Runs one response and writes its rates to entry n_pairs. */
static bool run_arm(bench *b, arm *a, int prompt, err *e)
{
    const chat_prompt *p = &b->rig.prompts.prompt[prompt];
    b->gen.lane.spec     = job_spec_settings(&a->choice.spec);
    b->text.n            = 0;
    if (!bare_run(&b->gen, &p->ids, e)) return false;
    a->gen[b->n_pairs]  = (b->gen.n_out - 1) / b->gen.decode_s;
    a->wall[b->n_pairs] = b->gen.n_out / (b->gen.prefill_s + b->gen.decode_s);
    a->tokens += b->gen.n_out - 1;
    spec_counts_add(&a->stats, spec_lane_stats(b->rig.g.lane));
    spec_counts_add(&a->of_class[b->rig.prompts.class_of[prompt]], spec_lane_stats(b->rig.g.lane));
    return true;
}

/* Records the text of plain decoding, for the oracle. */
static bool learn_texts(bench *b, err *e)
{
    tok_ids all;
    bool    ok = true;
    tok_ids_init(&all, GENERATE_MAX_CONTEXT);
    for (int i = 0; ok && b->oracle && i < b->rig.prompts.n; i++) {
        const tok_ids *prompt = &b->rig.prompts.prompt[i].ids;
        ok                    = run_arm(b, &b->arms[0], i, e);
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
    bench *b      = ctx;
    arm   *a      = &b->arms[at->arm];
    int    prompt = at->warm_up ? 0 : at->turn % b->rig.prompts.n;
    if (!run_arm(b, a, prompt, e)) return false;
    b->n_different += !arms_agree(&b->first_text, &b->text, at->first);
    if (at->warm_up) {
        a->stats  = (tandem_spec_counts){0};
        a->tokens = 0;
        memset(a->of_class, 0, sizeof a->of_class);
    } else if (at->last && b->gen.n_out >= 2) { /* fewer: nothing was decoded */
        b->pair_class[b->n_pairs++] = b->rig.prompts.class_of[prompt];
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
/* Copies the values of the pairs of a class (-1: of all) to `out`. Returns their number. */
static int values_of(const bench *b, const double *x, int class, double out[MAX_PAIRS])
{
    int n = 0;
    for (int i = 0; i < b->n_pairs; i++)
        if (class < 0 || b->pair_class[i] == class) out[n++] = x[i];
    return n;
}

/* The rates of an arm and their ratios to plain decoding, pair by pair. */
typedef struct {
    interval gen, gen_ratio, wall, wall_ratio;
    int      n; /* pairs */
} rates;

static rates rates_of(const bench *b, const arm *a, int class)
{
    static double mine[MAX_PAIRS], plain[MAX_PAIRS];
    rates         r;
    r.n         = values_of(b, a->gen, class, mine);
    r.gen       = stats_median(mine, r.n);
    r.gen_ratio = stats_ratio(mine, plain, values_of(b, b->arms[0].gen, class, plain));
    values_of(b, a->wall, class, mine);
    r.wall       = stats_median(mine, r.n);
    r.wall_ratio = stats_ratio(mine, plain, values_of(b, b->arms[0].wall, class, plain));
    return r;
}

/* Prints the columns of rates and acceptance. */
static void print_rates(const rates *r, const tandem_spec_counts *s)
{
    bench_print_interval(r->gen, 24, 1);
    bench_print_interval(r->gen_ratio, 19, 2);
    bench_print_interval(r->wall, 24, 1);
    bench_print_interval(r->wall_ratio, 19, 2);
    printf(" %8.1f%% %7.1f%% %9.2f %7.2f", 100 * spec_acceptance_rate(s), 100 * spec_accepted_share(s),
           spec_tokens_per_round(s), spec_acceptance_length(s));
}

static void print_arm(const bench *b, const arm *a)
{
    rates                     r = rates_of(b, a, -1);
    const tandem_spec_counts *s = &a->stats;
    int64_t                   n = s->rounds + s->plain_rounds;
    printf("%-12s", a->choice.name);
    print_rates(&r, s);
    printf(" %8.2f %7.2f %7.3f\n", 1e3 * s->draft_s / (double)n, 1e3 * s->verify_s / (double)n,
           1e3 * s->commit_s / (double)n);
}

static void print_heads(void)
{
    printf("%-12s %24s %19s %24s %19s %9s %8s %9s %7s", "arm", "gen tok/s [90%]", "ratio [90%]", "wall tok/s [90%]",
           "ratio [90%]", "acc/draft", "acc/gen", "tok/round", "length");
}

static void print_class(const bench *b, int class)
{
    char title[PROMPT_CLASS_NAME + 48];
    snprintf(title, sizeof title, "%s, %d pairs", b->rig.prompts.class_name[class], rates_of(b, &b->arms[0], class).n);
    printf("class %s\n", title);
    for (int i = 0; i < b->n_arms; i++) {
        rates r = rates_of(b, &b->arms[i], class);
        printf("  %-10s", b->arms[i].choice.name);
        print_rates(&r, &b->arms[i].of_class[class]);
        putchar('\n');
    }
}

static void print_table(bench *b, double accept)
{
    if (flags.with.shape.given) printf("%s; ", flags.with.shape.target.name);
    if (b->oracle) printf("simulated acceptance, %g tokens a round; ", accept);
    printf("%s, %d threads, temperature %g; %d prompts, %d pairs, %lld tokens an arm\n", b->rig.g.model->o->name,
           b->rig.g.model->o->n_threads, (double)b->gen.lane.params.temp, b->rig.prompts.n, b->n_pairs,
           (long long)b->arms[0].tokens);
    print_heads();
    printf(" %8s %7s %7s\n", "draft ms", "verify", "commit");
    for (int i = 0; i < b->n_arms; i++) print_arm(b, &b->arms[i]);
    for (int c = 0; c < b->rig.prompts.n_classes && b->rig.prompts.n_classes > 1; c++) print_class(b, c);
    printf("%s\n", b->n_different ? "THE TEXTS DIFFER" : "all arms wrote the same text");
}

static void put_rates(json_writer *w, const rates *r, const tandem_spec_counts *s)
{
    result_interval(w, "tokens_per_second", r->gen);
    result_interval(w, "ratio", r->gen_ratio);
    result_interval(w, "wall_tokens_per_second", r->wall);
    result_interval(w, "wall_ratio", r->wall_ratio);
    arms_put_rounds(w, s);
    json_member_int(w, "drafted", s->drafted);
    json_member_int(w, "accepted", s->accepted);
    json_member_real(w, "acceptance_rate", spec_acceptance_rate(s));
    json_member_real(w, "accepted_share", spec_accepted_share(s));
    json_member_real(w, "tokens_per_round", spec_tokens_per_round(s));
    json_member_real(w, "acceptance_length", spec_acceptance_length(s));
}

static void put_classes(json_writer *w, const bench *b, const arm *a)
{
    json_key(w, "classes");
    json_begin_array(w);
    for (int c = 0; c < b->rig.prompts.n_classes; c++) {
        rates r = rates_of(b, a, c);
        json_begin_object(w);
        json_member_str(w, "class", b->rig.prompts.class_name[c]);
        json_member_int(w, "pairs", r.n);
        put_rates(w, &r, &a->of_class[c]);
        json_end(w);
    }
    json_end(w);
}

static void put_arm(json_writer *w, const bench *b, const arm *a)
{
    const tandem_spec_counts *s = &a->stats;
    rates                     r = rates_of(b, a, -1);
    json_begin_object(w);
    json_member_str(w, "name", a->choice.name);
    json_member_int(w, "tokens", a->tokens);
    put_rates(w, &r, s);
    json_key(w, "accepted_by_position");
    json_begin_array(w);
    for (int i = 0; i < DRAFT_MAX && s->tried_at[i]; i++) json_put_real(w, (double)s->right_at[i] / (double)s->rounds);
    json_end(w);
    json_member_real(w, "draft_s", s->draft_s);
    json_member_real(w, "verify_s", s->verify_s);
    json_member_real(w, "commit_s", s->commit_s);
    put_classes(w, b, a);
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
